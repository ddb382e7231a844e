/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: every rank contributes its own number; all get the sum. The
 * second one is over shared memory and does not block.
 *     oarsong run -n 4 all_reduce */
#include <stdio.h>

#include <oarsong/oarsong.h>

#define TRY(call)                                                       \
    do {                                                                \
        if ((call) != OAR_OK) {                                         \
            fprintf(stderr, "all_reduce: %s\n", oar_last_error_text()); \
            return 1;                                                   \
        }                                                               \
    } while (0)

enum { COUNT = 1 << 20 };

int main(void)
{
    oar_group *world;
    oar_work *work;
    void *memory;
    float *x, mine;

    TRY(oar_group_from_env(NULL, &world));

    mine = (float)(oar_group_rank(world) + 1);
    TRY(oar_all_reduce(world, oar_span_of(&mine, 1, OAR_F32), OAR_SUM, NULL,
                       NULL));

    TRY(oar_shared_alloc(COUNT * sizeof *x, &memory));
    x = memory;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)oar_group_rank(world);
    TRY(oar_all_reduce(world, oar_span_of(x, COUNT, OAR_F32), OAR_AVG,
                       OAR_OPTS(oar_call_opts, .label = "big one"), &work));
    TRY(oar_work_wait(work)); /* other work would go before this */
    oar_work_release(work);

    if (oar_group_rank(world) == 0)
        printf("sum of ranks + 1: %g, mean rank: %g\n", (double)mine,
               (double)x[COUNT - 1]);
    oar_shared_free(x);
    oar_group_destroy(world);
    return 0;
}
