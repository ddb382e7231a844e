/* SPDX-License-Identifier: Apache-2.0 */
/* A GPT with dropout, its stages on several ranks: bit for bit the parameters
 * and moments of one process, for every kind of schedule. */
#include "support/ranks.h"

#include "support/last_error.h"
#include "support/piped_gpt.h"

enum { STEPS = 2 };

typedef struct piped_gpt_case {
    int ranks;
    piped_kind kind;
    const piped_gpt *whole;
} piped_gpt_case;

static oar_status train_and_compare(oar_group *g, void *arg)
{
    const piped_gpt_case *c = arg;
    piped_gpt p;

    CHECK_OK(piped_gpt_make(&p, g, &c->kind));
    CHECK_OK(piped_gpt_train(&p, STEPS));
    CHECK(c->kind.tied || p.loss == c->whole->loss);
    CHECK(piped_gpt_same(&p, c->whole));
    piped_gpt_drop(&p);
    return OAR_OK;
}

static void compare(const char *backend, int ranks, piped_kind kind)
{
    piped_kind alone = kind;
    piped_gpt whole;
    piped_gpt_case c = { ranks, kind, &whole };

    alone.plain = 1;
    alone.recompute = 0;
    OK(piped_gpt_make(&whole, NULL, &alone));
    OK(piped_gpt_train(&whole, STEPS));
    if (ranks_run(backend, ranks, NULL, train_and_compare, &c) != OAR_OK)
        fail_msg("%s, %d ranks, %d micro-batches, %s: %s",
                 oar_schedule_kind_name(kind.kind), ranks, kind.micro, backend,
                 oar_last_error_text());
    piped_gpt_drop(&whole);
}

static void every_kind_is_one_process(void **state)
{
    for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            piped_kind k = { .kind = (oar_schedule_kind)kind,
                             .micro = ranks < 4 ? 6 : 7 };

            if (kind != OAR_SCHEDULE_DUALPIPE_V || k.micro >= 2 * ranks)
                compare("sim", ranks, k);
        }
}

static void processes_and_recomputation_change_nothing(void **state)
{
    compare("native", 3, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 5 });
    compare(
        "native", 2,
        (piped_kind){ .kind = OAR_SCHEDULE_ZB_V, .micro = 4, .recompute = 1 });
}

/* One table, at both ends: on one rank where places form a V, else tied. */
static void a_shared_table_is_trained_by_both_ends(void **state)
{
    compare("sim", 2,
            (piped_kind){ .kind = OAR_SCHEDULE_ZB_V, .micro = 3, .tied = 1 });
    compare("sim", 3,
            (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 3, .tied = 1 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_one_process),
        cmocka_unit_test(processes_and_recomputation_change_nothing),
        cmocka_unit_test(a_shared_table_is_trained_by_both_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
