/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_then_dies: a job whose ranks use RPC and end their agents; then rank 1 is
 * killed.
 *     oarsong run -n 3 --keep-going rpc_then_dies
 */
#include <signal.h>
#include <stdio.h>

#include <oarsong/oarsong.h>

static int give_up(void)
{
    fprintf(stderr, "%s\n", oar_last_error_text());
    return 1;
}

int main(void)
{
    oar_group *world;
    oar_rpc *rpc;

    if (oar_group_from_env(NULL, &world) != OAR_OK ||
        oar_rpc_create(world, NULL, &rpc) != OAR_OK ||
        oar_rpc_shutdown(rpc, 0) != OAR_OK)
        return give_up();
    oar_rpc_destroy(rpc);
    if (oar_barrier(world, NULL, NULL) != OAR_OK)
        return give_up();
    if (oar_group_rank(world) == 1)
        raise(SIGKILL);
    oar_group_destroy(world);
    return 0;
}
