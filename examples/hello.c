/* SPDX-License-Identifier: Apache-2.0 */
/* hello: every rank says who it is.
 *     oarsong run -n 4 hello */
#include <stdio.h>

#include <oarsong/oarsong.h>

int main(void)
{
    oar_group *world;

    if (oar_group_from_env(NULL, &world) != OAR_OK) {
        fprintf(stderr, "hello: %s\n", oar_last_error_text());
        return 1;
    }
    printf("hello from rank %d of %d, over %s\n", oar_group_rank(world),
           oar_group_size(world), oar_group_backend(world));
    oar_group_destroy(world);
    return 0;
}
