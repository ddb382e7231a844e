/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches that count by their tokens, of which some are ignored: loss and
 * gradients in f64 are those of the whole batch at once, with and without data
 * parallel replicas. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/layers.h>
#include <oarsong/mesh.h>
#include <oarsong/ops.h>
#include <oarsong/pipeline.h>
#include <oarsong/tape.h>

enum { WIDTH = 5, ROWS = 12, MICRO = 4, REPLICAS = 2, STAGES = 4, MOST = 40 };
enum { IGNORED = -100 };

/* Rows of micro-batches, and how many of them count, by replica. */
static const int64_t rows_of[MICRO] = { 3, 1, 5, 3 };
static const int tokens_of[REPLICAS][MICRO] = { { 2, 0, 5, 1 },
                                                { 1, 1, 2, 0 } };

typedef struct token_case {
    oar_schedule_kind kind;
    int ranks, replicas;
    double loss, tokens;
    double grad[STAGES][2][MOST]; /* of weight and bias */
} token_case;

static oar_module *make_stage(int index)
{
    oar_module *child[2] = { NULL }, *stage = NULL;

    oar_linear_create(WIDTH, WIDTH, 30 + (uint64_t)index,
                      OAR_OPTS(oar_linear_opts, .dtype = OAR_F64), &child[0]);
    oar_activation_create(OAR_GELU, &child[1]);
    oar_sequential_create(2, child, &stage);
    return stage;
}

static oar_tensor *make_input(int replica)
{
    return oar_normal(NULL, OAR_F64, OAR_SHAPE(ROWS, WIDTH),
                      70 + (uint64_t)replica, 0, 1);
}

static oar_tensor *make_target(int replica)
{
    int64_t number[ROWS];

    for (int m = 0, row = 0; m < MICRO; m++)
        for (int k = 0; k < rows_of[m]; k++, row++)
            number[row] = k < tokens_of[replica][m]
                              ? (row * 3 + replica) % WIDTH
                              : IGNORED;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(ROWS), number);
}

static oar_tensor *loss_of(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target)
{
    return oar_cross_entropy_with(
        tape, out[0], target[0],
        OAR_OPTS(oar_cross_entropy_opts, .has_ignore = 1, .ignore = IGNORED));
}

/* The whole batch of all replicas, forward and backward at once. */
static oar_status run_whole(token_case *c, int stages)
{
    oar_tensor *x[REPLICAS], *y[REPLICAS], *all, *target, *loss;
    oar_module *stage[STAGES];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    c->tokens = 0;
    for (int r = 0; r < c->replicas; r++) {
        x[r] = make_input(r);
        y[r] = make_target(r);
        for (int m = 0; m < MICRO; m++)
            c->tokens += tokens_of[r][m];
    }
    all = oar_cat(tape, c->replicas, x, 0);
    target = oar_cat(tape, c->replicas, y, 0);
    for (int s = 0; s < stages; s++) {
        stage[s] = make_stage(s);
        all = oar_forward(tape, stage[s], all);
    }
    loss = loss_of(NULL, tape, 0, &all, 1, &target);
    CHECK_OK(oar_tensor_item(loss, &c->loss));
    CHECK_OK(oar_backward(tape, loss));
    for (int s = 0; s < stages; s++) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(
                oar_tensor_read(oar_tensor_grad(oar_module_param(stage[s], i)),
                                OAR_F64, c->grad[s][i]));
        oar_module_release(stage[s]);
    }
    for (int r = 0; r < c->replicas; r++) {
        oar_tensor_release(x[r]);
        oar_tensor_release(y[r]);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status run_step(const token_case *c, oar_pipeline *pipe, int first,
                           int last, int replica, double *loss, double *weight)
{
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_tensor *x = make_input(replica), *y = make_target(replica);
    double tokens[MICRO];

    for (int m = 0; m < MICRO; m++)
        tokens[m] = tokens_of[replica][m];
    b.inputs = first;
    b.input = &x;
    b.targets = last;
    b.target = &y;
    b.rows = rows_of;
    b.weight = tokens;
    CHECK_OK(oar_pipeline_step(pipe, &b, &result));
    *loss = result.loss;
    *weight = result.weight;
    oar_tensor_release(x);
    oar_tensor_release(y);
    return OAR_OK;
}

static oar_status compare(const token_case *c, const oar_stage *stage)
{
    for (int i = 0; i < 2; i++) {
        oar_tensor *grad = oar_tensor_grad(oar_module_param(stage->module, i));
        double found[MOST];

        CHECK(grad != NULL && oar_tensor_count(grad) <= MOST);
        CHECK_OK(oar_tensor_read(grad, OAR_F64, found));
        for (int64_t k = 0; k < oar_tensor_count(grad); k++)
            CHECK(fabs(found[k] - c->grad[stage->index][i][k]) < 1e-12);
    }
    return OAR_OK;
}

static oar_status wrap(oar_group *dp, int replica, int index, oar_stage *stage)
{
    oar_module *inner = make_stage(index);
    double tokens = 0;

    *stage = oar_stage_init();
    stage->index = index;
    stage->module = inner;
    if (dp == NULL)
        return OAR_OK;
    for (int m = 0; m < MICRO; m++)
        tokens += tokens_of[replica][m];
    CHECK_OK(oar_ddp_wrap(inner, dp, OAR_OPTS(oar_ddp_opts, .weighted = 1),
                          &stage->module));
    return oar_ddp_weigh(stage->module, tokens);
}

static oar_status run_pipeline(const token_case *c, oar_group *pp,
                               oar_group *dp)
{
    int rank = oar_group_rank(pp), stages = 0;
    int replica = dp != NULL ? oar_group_rank(dp) : 0;
    oar_stage stage[STAGES];
    oar_schedule *schedule;
    oar_pipeline *pipe;
    double sum[2];

    CHECK_OK(oar_schedule_make(c->kind, c->ranks, MICRO, NULL, &schedule));
    for (int s = 0; s < oar_schedule_stages(schedule); s++)
        if (oar_schedule_rank_of(schedule, s) == rank)
            CHECK_OK(wrap(dp, replica, s, &stage[stages++]));
    CHECK_OK(oar_pipeline_create(pp, schedule, stages, stage,
                                 OAR_OPTS(oar_pipeline_opts, .loss = loss_of),
                                 &pipe));
    CHECK_OK(
        run_step(c, pipe, stage[0].index == 0,
                 stage[stages - 1].index == oar_schedule_stages(schedule) - 1,
                 replica, &sum[0], &sum[1]));
    sum[0] *= sum[1];
    if (dp != NULL)
        CHECK_OK(oar_all_reduce(dp, oar_span_of(sum, 2, OAR_F64), OAR_SUM, NULL,
                                NULL));
    CHECK(sum[1] == c->tokens && fabs(sum[0] / sum[1] - c->loss) < 1e-12);
    for (int i = 0; i < stages; i++) {
        CHECK_OK(compare(c, &stage[i]));
        oar_module_release(stage[i].module);
    }
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    return OAR_OK;
}

static oar_status count_tokens(oar_group *g, void *arg)
{
    static const char *const name[] = { "dp", "pp" };
    const token_case *c = arg;
    int size[] = { c->replicas, c->ranks };
    oar_mesh *mesh;

    if (c->replicas == 1)
        return run_pipeline(c, g, NULL);
    CHECK_OK(oar_mesh_create(g, 2, size, name, NULL, &mesh));
    CHECK_OK(run_pipeline(c, oar_mesh_group(mesh, 1), oar_mesh_group(mesh, 0)));
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void micro_batches_count_by_their_tokens(void **state)
{
    static const oar_schedule_kind kind[] = { OAR_SCHEDULE_1F1B,
                                              OAR_SCHEDULE_GPIPE,
                                              OAR_SCHEDULE_ZB_V };

    for (int k = 0; k < 3; k++)
        for (int replicas = 1; replicas <= REPLICAS; replicas++) {
            token_case c = { .kind = kind[k],
                             .ranks = 2,
                             .replicas = replicas };

            assert_int_equal(run_whole(&c, k == 2 ? 4 : 2), OAR_OK);
            assert_int_equal(
                ranks_run("sim", 2 * replicas, NULL, count_tokens, &c), OAR_OK);
            assert_int_equal(
                ranks_run("shm", 2 * replicas, NULL, count_tokens, &c), OAR_OK);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batches_count_by_their_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
