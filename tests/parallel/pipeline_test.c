/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, gradients and running statistics after some steps of a pipeline
 * are bit for bit those of one process that runs the micro-batches one after
 * the other: for all kinds of schedules, ranks, micro-batches and rows. */
#include "support/ranks.h"

#include <stdio.h>
#include <string.h>

#include <oarsong/pipeline.h>

#include "support/last_error.h"
#include "support/staged_net.h"

typedef struct pipe_case {
    staged_case net;
    oar_schedule_kind kind;
    int ranks, chunks;
    const char *text; /* a schedule of the user's */
    int recompute;
    uint64_t hash[STAGED_MOST];
    double loss;
} pipe_case;

static oar_status make_schedule(const pipe_case *c, oar_schedule **schedule)
{
    if (c->text != NULL)
        return oar_schedule_parse(c->text, strlen(c->text), NULL, schedule);
    return oar_schedule_make(c->kind, c->ranks, c->net.micro,
                             OAR_OPTS(oar_schedule_opts, .chunks = c->chunks),
                             schedule);
}

static oar_status train(oar_pipeline *pipe, const pipe_case *c, int first,
                        int last, oar_optim *const *optim, int stages)
{
    double loss = 0;

    for (int k = 0; k < c->net.steps; k++) {
        oar_tensor *input = staged_net_input(&c->net, k);
        oar_tensor *target = staged_net_target(&c->net, k);
        oar_pipeline_batch b = oar_pipeline_batch_init();
        oar_pipeline_result r = oar_pipeline_result_init();

        b.inputs = first;
        b.input = &input;
        b.targets = last;
        b.target = &target;
        b.rows = c->net.rows_of;
        for (int i = 0; i < stages; i++)
            oar_optim_zero_grad(optim[i]);
        CHECK_OK(oar_pipeline_step(pipe, &b, &r));
        CHECK((r.losses != NULL) == last);
        for (int i = 0; i < stages; i++)
            CHECK_OK(oar_optim_step(optim[i]));
        loss = r.loss;
        oar_tensor_release(input);
        oar_tensor_release(target);
    }
    CHECK(loss > c->loss - 1e-5 && loss < c->loss + 1e-5);
    return OAR_OK;
}

static oar_status train_and_compare(oar_group *g, void *arg)
{
    pipe_case *c = arg;
    int rank = oar_group_rank(g), stages = 0;
    oar_stage stage[STAGED_MOST];
    oar_optim *optim[STAGED_MOST];
    oar_schedule *schedule;
    oar_pipeline *pipe;

    CHECK_OK(make_schedule(c, &schedule));
    for (int s = 0; s < c->net.stages; s++) {
        if (oar_schedule_rank_of(schedule, s) != rank)
            continue;
        stage[stages] = oar_stage_init();
        stage[stages].index = s;
        stage[stages].recompute = c->recompute;
        stage[stages].module = staged_net_stage(c->net.kind, s);
        optim[stages] = staged_net_optim(&c->net, stage[stages].module);
        stages++;
    }
    CHECK_OK(
        oar_pipeline_create(g, schedule, stages, stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss,
                                     .equal = c->net.equal),
                            &pipe));
    CHECK_OK(train(pipe, c, oar_schedule_rank_of(schedule, 0) == rank,
                   oar_schedule_rank_of(schedule, c->net.stages - 1) == rank,
                   optim, stages));
    for (int i = 0; i < stages; i++) {
        CHECK(staged_net_hash(stage[i].module) == c->hash[stage[i].index]);
        oar_optim_destroy(optim[i]);
        oar_module_release(stage[i].module);
    }
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    return OAR_OK;
}

static void compare(pipe_case *c, const char *backend)
{
    oar_schedule *schedule;

    OK(make_schedule(c, &schedule));
    c->net.stages = oar_schedule_stages(schedule);
    oar_schedule_release(schedule);
    if (c->net.steps == 0)
        c->net.steps = 2;
    OK(staged_net_train(&c->net, c->hash, &c->loss));
    if (ranks_run(backend, c->ranks, NULL, train_and_compare, c) != OAR_OK)
        fail_msg("%s, %d ranks, %d micro-batches, %lld rows, %s: %s",
                 oar_schedule_kind_name(c->kind), c->ranks, c->net.micro,
                 (long long)c->net.rows, backend, oar_last_error_text());
}

static void every_kind_trains_as_one_process(void **state)
{
    for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int micro = 1; micro <= 9; micro++) {
                int v = kind == OAR_SCHEDULE_DUALPIPE_V;
                pipe_case c = { .kind = (oar_schedule_kind)kind,
                                .ranks = ranks };

                if (v && micro < 2 * ranks)
                    continue;
                c.net.kind = micro % 3 == 2 ? STAGED_CNN : STAGED_MLP;
                c.net.micro = micro;
                c.net.rows = 2 * micro + (micro + ranks) % 3;
                c.net.equal = micro % 2;
                compare(&c, "sim");
            }
}

/* Over processes, ten steps, with other rows than nearly equal ones. */
static void processes_train_as_one(void **state)
{
    static const int64_t rows[] = { 3, 1, 2, 1, 4 };
    static const pipe_case list[] = {
        { .kind = OAR_SCHEDULE_1F1B, .ranks = 3 },
        { .kind = OAR_SCHEDULE_GPIPE, .ranks = 2 },
        { .kind = OAR_SCHEDULE_ZB_V, .ranks = 2 },
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int tcp = 0; tcp < 2; tcp++) {
            pipe_case c = list[i];

            c.net = (staged_case){ .kind = i == 1 ? STAGED_CNN : STAGED_MLP,
                                   .micro = 5,
                                   .rows = 11,
                                   .rows_of = rows,
                                   .steps = 10 };
            compare(&c, tcp ? "tcp" : "shm");
        }
}

static void many_ranks_and_texts_train_as_one(void **state)
{
    static const pipe_case list[] = {
        { .kind = OAR_SCHEDULE_1F1B, .ranks = 8, .net.micro = 5 },
        { .kind = OAR_SCHEDULE_ZB_V, .ranks = 8, .net.micro = 9 },
        { .kind = OAR_SCHEDULE_INTERLEAVED,
          .ranks = 2,
          .chunks = 3,
          .net.micro = 5 },
        { .kind = OAR_SCHEDULE_1F1B,
          .ranks = 3,
          .recompute = 1,
          .net.micro = 4 },
        { .kind = OAR_SCHEDULE_ZB_H1,
          .ranks = 3,
          .recompute = 1,
          .net.micro = 4 },
        /* a stage with two neighbours on one rank, messages given, W late */
        { .ranks = 2,
          .net.micro = 2,
          .text = "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2I0,2SEND_B0,"
                  "2RECV_F1,2F1,2I1,2SEND_B1,0RECV_B0,0I0,0RECV_B1,0I1,"
                  "2W0,2W1,0W0,0W1\n"
                  "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,"
                  "1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n" },
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        pipe_case c = list[i];

        c.net.kind = STAGED_MLP;
        c.net.rows = 2 * c.net.micro + 1;
        compare(&c, "sim");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_trains_as_one_process),
        cmocka_unit_test(processes_train_as_one),
        cmocka_unit_test(many_ranks_and_texts_train_as_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
