/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of pipelines: what some ranks have saved, one process, DDP or
 * another cut goes on with, and back, with the bits of one process that was
 * never interrupted. */
#include "support/ranks.h"

#include <stdio.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/piped_gpt.h"

static char folder[FOLDER_PATH], path[FOLDER_PATH + 8];

/* A part of a run: from the newest generation, if any, to step `end`. */
typedef struct piped_leg {
    int ranks;
    piped_kind kind;
    int64_t end;
    const piped_gpt *whole; /* one process at that step */
} piped_leg;

static oar_status run_leg(oar_group *g, void *arg)
{
    const piped_leg *l = arg;
    oar_checkpoint *c;
    int64_t newest;
    piped_gpt p;

    CHECK_OK(piped_gpt_make(&p, g, &l->kind));
    CHECK_OK(oar_checkpoint_open(
        g, path,
        OAR_OPTS(oar_checkpoint_opts, .no_sync = 1, .check_replicas = 1), &c));
    if (oar_checkpoint_newest(c, &newest) == OAR_OK)
        CHECK_OK(oar_checkpoint_load(c, p.state, newest, NULL));
    CHECK(p.step == l->end - 2); /* each leg is two steps long */
    CHECK_OK(piped_gpt_train(&p, l->end));
    CHECK(l->kind.tied || p.loss == l->whole->loss);
    CHECK(piped_gpt_same(&p, l->whole));
    CHECK_OK(oar_checkpoint_save(c, p.state, p.step, NULL));
    oar_checkpoint_close(c);
    piped_gpt_drop(&p);
    return OAR_OK;
}

static void run_legs(int count, piped_leg *l)
{
    piped_kind alone = { .plain = 1,
                         .micro = l[0].kind.micro,
                         .tied = l[0].kind.tied };
    piped_gpt whole;

    folder_make(folder);
    snprintf(path, sizeof path, "%s/runs", folder);
    OK(piped_gpt_make(&whole, NULL, &alone));
    for (int i = 0; i < count; i++) {
        l[i].end = 2 * (i + 1);
        l[i].whole = &whole;
        l[i].kind.micro = alone.micro;
        l[i].kind.tied = alone.tied;
        OK(piped_gpt_train(&whole, l[i].end));
        if (ranks_run("sim", l[i].ranks, NULL, run_leg, &l[i]) != OAR_OK)
            fail_msg("leg %d: %d ranks: %s", i, l[i].ranks,
                     oar_last_error_text());
    }
    piped_gpt_drop(&whole);
    folder_remove(folder);
}

static void any_cut_goes_on_with_anothers_checkpoint(void **state)
{
    piped_leg l[] = {
        { .ranks = 4, .kind = { .kind = OAR_SCHEDULE_1F1B, .micro = 3 } },
        { .ranks = 1, .kind = { .plain = 1 } },
        { .ranks = 2, .kind = { .kind = OAR_SCHEDULE_INTERLEAVED } },
        { .ranks = 2, .kind = { .plain = 1 } }, /* DDP */
        { .ranks = 3, .kind = { .kind = OAR_SCHEDULE_ZB_V } },
        { .ranks = 4, .kind = { .kind = OAR_SCHEDULE_ZB_H1 } },
    };

    run_legs(sizeof l / sizeof *l, l);
}

/* Both ends of a tied model have one table on the same rank, or tied ones. */
static void a_shared_table_is_saved_once(void **state)
{
    piped_leg l[] = {
        { .ranks = 2,
          .kind = { .kind = OAR_SCHEDULE_ZB_V, .micro = 6, .tied = 1 } },
        { .ranks = 1, .kind = { .plain = 1 } },
        { .ranks = 3, .kind = { .kind = OAR_SCHEDULE_DUALPIPE_V } },
        { .ranks = 3, .kind = { .kind = OAR_SCHEDULE_1F1B } },
        { .ranks = 1, .kind = { .plain = 1 } },
    };

    run_legs(sizeof l / sizeof *l, l);
}

static void an_optimizer_is_named_by_the_modules_before_it(void **state)
{
    oar_module *first, *second;
    oar_gpt_opts o = piped_gpt_opts(&(piped_kind){ .plain = 1 });
    oar_tensor *param[2];
    oar_optim *sgd;
    oar_state *s;

    OK(oar_gpt_stage_create(&o, 0, 2, &first));
    OK(oar_gpt_stage_create(&o, 5, 2, &second));
    param[0] = oar_module_param(first, 0);
    param[1] = oar_module_param(second, 0);
    OK(oar_sgd_create_over(2, param, NULL, &sgd));
    OK(oar_state_create(&s));
    OK(oar_state_add_module(s, first, "a."));
    assert_fails_with(oar_state_add_optim(s, sgd, NULL, NULL), OAR_E_NOT_FOUND,
                      "the modules that were added before it");
    oar_state_destroy(s);
    OK(oar_state_create(&s));
    OK(oar_state_add_module(s, first, "a."));
    OK(oar_state_add_module(s, second, "b."));
    assert_fails_with(oar_state_add_optim(s, sgd, NULL, "c."), OAR_E_ARG,
                      "a prefix \"c.\" without a module");
    OK(oar_state_add_optim(s, sgd, NULL, NULL));
    oar_state_destroy(s);
    oar_optim_destroy(sgd);
    oar_module_release(first);
    oar_module_release(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_goes_on_with_anothers_checkpoint),
        cmocka_unit_test(a_shared_table_is_saved_once),
        cmocka_unit_test(an_optimizer_is_named_by_the_modules_before_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
