/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP trains what PyTorch's FSDP2 trains: make_fsdp.py let two ranks of it
 * take ten steps of AdamW with clipping, in f64. Any number of ranks of ours,
 * however they hold parameters and whatever they spread, get its losses, norms
 * and parameters from the same batch, divided evenly or not. */
#include "support/ranks.h"

#include "parallel/golden_fsdp.h"
#include "parallel/shards/shards.h"

static void run_on(const char *backend, int ranks, golden_run t)
{
    assert_int_equal(ranks_run(backend, ranks, NULL, train_like_torch, &t),
                     OAR_OK);
}

/* On one to four ranks, with parameters mapped and gathered. */
static void run_everywhere(golden_run t)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
            t.hold = (oar_hold)h;
            run_on("native", ranks, t);
        }
}

static void every_stage_trains_what_fsdp2_trains(void **state)
{
    for (int stage = 0; stage < 3; stage++)
        run_everywhere(
            (golden_run){ .kind = "plain", .stage = (oar_zero_stage)stage });
    run_on("native", 3, (golden_run){ .kind = "plain", .hold = OAR_HOLD_HOST });
    run_on("tcp", 3, (golden_run){ .kind = "plain" });
}

static void a_tied_head_trains_as_in_fsdp2(void **state)
{
    run_everywhere((golden_run){ .kind = "tied" });
}

static void a_batch_divided_unevenly_trains_the_same(void **state)
{
    run_everywhere((golden_run){ .kind = "plain", .uneven = 1 });
}

static void rows_in_passes_of_their_own_train_the_same(void **state)
{
    run_everywhere((golden_run){ .kind = "tied", .by_row = 1 });
}

static int load_golden(void **state)
{
    return golden_load("fsdp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_trains_what_fsdp2_trains),
        cmocka_unit_test(a_tied_head_trains_as_in_fsdp2),
        cmocka_unit_test(a_batch_divided_unevenly_trains_the_same),
        cmocka_unit_test(rows_in_passes_of_their_own_train_the_same),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, load_golden, golden_close);
}
