/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_hello: every rank calls a function of the next one.
 *     oarsong run -n 3 rpc_hello */
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

static void must(oar_status status)
{
    if (status != OAR_OK) {
        fprintf(stderr, "rpc_hello: %s\n", oar_last_error_text());
        exit(1);
    }
}

/* Runs on the rank that is called. */
static oar_status greet(void *arg, oar_rpc_call *call)
{
    char text[100];
    oar_rpc *rpc = arg;
    const char *name;

    if (oar_rpc_get_text(oar_rpc_args(call), &name) != OAR_OK)
        return OAR_E_DATA;
    snprintf(text, sizeof text, "hello %.40s, this is %.40s", name,
             oar_rpc_name(rpc, oar_rpc_rank(rpc)));
    return oar_rpc_put_text(oar_rpc_reply(call), text);
}

int main(void)
{
    oar_rpc_message *args, *reply;
    oar_group *world;
    const char *text;
    oar_rpc *rpc;
    int rank, size;

    must(oar_group_from_env(NULL, &world));
    rank = oar_group_rank(world);
    size = oar_group_size(world);
    must(oar_rpc_create(world, NULL, &rpc));
    must(oar_rpc_register(rpc, OAR_OPTS(oar_rpc_function, .name = "greet",
                                        .fn = greet, .arg = rpc)));
    must(oar_barrier(world, NULL, NULL)); /* all have it */

    must(oar_rpc_message_create(&args));
    must(oar_rpc_put_text(args, oar_rpc_name(rpc, rank)));
    must(oar_rpc_sync(rpc, (rank + 1) % size, "greet", args, NULL, &reply));
    must(oar_rpc_get_text(reply, &text));
    printf("%s\n", text);
    oar_rpc_message_destroy(reply);

    must(oar_rpc_shutdown(rpc, 0));
    oar_rpc_destroy(rpc);
    oar_group_destroy(world);
    return 0;
}
