/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines leave nothing behind: after the first steps memory and descriptors
 * stay as they are, and pipelines that are made and destroyed over and over
 * give back everything. */
#include "support/ranks.h"

#include <stdlib.h>

#include <oarsong/pipeline.h>

#include "support/leak_check.h"
#include "support/staged_net.h"

enum { MICRO = 4, ROWS = 10 };

typedef struct small_pipe {
    oar_schedule *schedule;
    oar_stage stage;
    oar_pipeline *pipe;
    oar_tensor *input, *target;
    oar_pipeline_batch batch;
} small_pipe;

static oar_status open_pipe(small_pipe *s, oar_group *g, int dynamic)
{
    staged_case net = { .kind = STAGED_MLP, .rows = ROWS };
    int rank = oar_group_rank(g), ranks = oar_group_size(g);

    CHECK_OK(oar_schedule_make(dynamic ? OAR_SCHEDULE_ZB_H1 : OAR_SCHEDULE_1F1B,
                               ranks, MICRO, NULL, &s->schedule));
    s->stage = oar_stage_init();
    s->stage.index = rank;
    s->stage.module = staged_net_stage(STAGED_MLP, rank);
    CHECK_OK(
        oar_pipeline_create(g, s->schedule, 1, &s->stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss,
                                     .dynamic = dynamic),
                            &s->pipe));
    s->input = staged_net_input(&net, 0);
    s->target = staged_net_target(&net, 0);
    s->batch = oar_pipeline_batch_init();
    s->batch.inputs = rank == 0;
    s->batch.input = &s->input;
    s->batch.targets = rank == ranks - 1;
    s->batch.target = &s->target;
    return OAR_OK;
}

static void close_pipe(small_pipe *s)
{
    oar_pipeline_destroy(s->pipe);
    oar_schedule_release(s->schedule);
    oar_module_release(s->stage.module);
    oar_tensor_release(s->input);
    oar_tensor_release(s->target);
}

static oar_status use_pipe(oar_group *g, int dynamic, int steps)
{
    oar_schedule_cost cost;
    char *text = NULL;
    small_pipe s;

    CHECK_OK(open_pipe(&s, g, dynamic));
    for (int k = 0; k < steps; k++)
        CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    CHECK_OK(oar_pipeline_eval(s.pipe, &s.batch, NULL, NULL));
    CHECK_OK(oar_pipeline_cost(s.pipe, &cost));
    CHECK_OK(oar_pipeline_draw(s.pipe, OAR_PICTURE_TEXT, &text));
    oar_free(text);
    close_pipe(&s);
    return OAR_OK;
}

/* The engine may keep a few operations for the next ones: a small slack, which
 * does not grow with the number of rounds. */
static int is_flat(const leak_check *from, const leak_check *to)
{
    return to->descriptors <= from->descriptors && to->live <= from->live + 64;
}

static oar_status make_and_destroy(oar_group *g, void *arg)
{
    leak_check from, to;

    for (int k = 0; k < 6; k++)
        CHECK_OK(use_pipe(g, k % 2, 1));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    from = leak_check_begin();
    for (int k = 0; k < 200; k++)
        CHECK_OK(use_pipe(g, k % 2, 1));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    to = leak_check_begin();
    CHECK(is_flat(&from, &to));
    return OAR_OK;
}

static oar_status run_many_steps(oar_group *g, void *arg)
{
    int dynamic = arg != NULL;
    leak_check from, to;
    small_pipe s;

    CHECK_OK(open_pipe(&s, g, dynamic));
    for (int k = 0; k < 20; k++)
        CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    from = leak_check_begin();
    for (int k = 0; k < 500; k++)
        CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    to = leak_check_begin();
    CHECK(is_flat(&from, &to));
    close_pipe(&s);
    return OAR_OK;
}

static void pipelines_give_everything_back(void **state)
{
    assert_int_equal(ranks_run("shm", 2, NULL, make_and_destroy, NULL), OAR_OK);
}

static void steps_leave_nothing_behind(void **state)
{
    int dynamic = 1;

    assert_int_equal(ranks_run("shm", 2, NULL, run_many_steps, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 2, NULL, run_many_steps, &dynamic),
                     OAR_OK);
    assert_int_equal(ranks_run("tcp", 2, NULL, run_many_steps, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines_give_everything_back),
        cmocka_unit_test(steps_leave_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
