/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines whose shapes are sent with tensors: lengths that differ between
 * micro-batches and at every step leave the bits of one process; shapes may
 * depend on numbers; dtypes and numbers of dims may not change. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/ops.h>
#include <oarsong/pipeline.h>

#include "parallel/pipeline/pipeline.h"
#include "support/last_error.h"
#include "support/staged_net.h"

enum { MICRO = 6, STEPS = 4, INNER = 4 };

/* ---- lengths that always differ ------------------------------------------ */

typedef struct ragged_case {
    staged_case net;
    oar_schedule_kind kind;
    int ranks;
    uint64_t hash[STAGED_MOST];
    double loss;
} ragged_case;

typedef struct ragged_rank {
    const ragged_case *c;
    oar_schedule *schedule;
    oar_pipeline *pipe;
    int stages, first, last;
    oar_stage stage[STAGED_MOST];
    oar_optim *optim[STAGED_MOST];
} ragged_rank;

static oar_status open_rank(ragged_rank *r, const ragged_case *c, oar_group *g)
{
    int rank = oar_group_rank(g);

    memset(r, 0, sizeof *r);
    r->c = c;
    CHECK_OK(oar_schedule_make(c->kind, c->ranks, MICRO, NULL, &r->schedule));
    for (int s = 0; s < c->net.stages; s++) {
        oar_stage *mine = &r->stage[r->stages];

        if (oar_schedule_rank_of(r->schedule, s) != rank)
            continue;
        *mine = oar_stage_init();
        mine->index = s;
        mine->module = staged_net_stage(STAGED_MLP, s);
        r->optim[r->stages++] = staged_net_optim(&c->net, mine->module);
    }
    r->first = oar_schedule_rank_of(r->schedule, 0) == rank;
    r->last = oar_schedule_rank_of(r->schedule, c->net.stages - 1) == rank;
    return oar_pipeline_create(
        g, r->schedule, r->stages, r->stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss, .dynamic = 1),
        &r->pipe);
}

static void close_rank(ragged_rank *r)
{
    for (int i = 0; i < r->stages; i++) {
        oar_optim_destroy(r->optim[i]);
        oar_module_release(r->stage[i].module);
    }
    oar_pipeline_destroy(r->pipe);
    oar_schedule_release(r->schedule);
}

/* A step, then an evaluation of the same batch. */
static oar_status run_step(ragged_rank *r, int step, double *loss)
{
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_tensor *input[MICRO], *target[MICRO];

    for (int m = 0; m < MICRO; m++) {
        input[m] = staged_net_ragged(&r->c->net, step, m, 0);
        target[m] = staged_net_ragged(&r->c->net, step, m, 1);
    }
    b.inputs = r->first;
    b.input = input;
    b.targets = r->last;
    b.target = target;
    b.apart = 1;
    for (int i = 0; i < r->stages; i++)
        oar_optim_zero_grad(r->optim[i]);
    CHECK_OK(oar_pipeline_step(r->pipe, &b, &result));
    for (int i = 0; i < r->stages; i++)
        CHECK_OK(oar_optim_step(r->optim[i]));
    *loss = result.loss;
    for (int i = 0; i < r->stages; i++)
        oar_module_train(r->stage[i].module, 0);
    CHECK_OK(oar_pipeline_eval(r->pipe, &b, &result, NULL));
    CHECK(result.loss > 0);
    for (int i = 0; i < r->stages; i++)
        oar_module_train(r->stage[i].module, 1);
    for (int m = 0; m < MICRO; m++) {
        oar_tensor_release(input[m]);
        oar_tensor_release(target[m]);
    }
    return OAR_OK;
}

static oar_status train_ragged(oar_group *g, void *arg)
{
    const ragged_case *c = arg;
    ragged_rank r;
    double loss = 0;

    CHECK_OK(open_rank(&r, c, g));
    for (int k = 0; k < STEPS; k++)
        CHECK_OK(run_step(&r, k, &loss));
    CHECK(loss > c->loss - 1e-5 && loss < c->loss + 1e-5);
    for (int i = 0; i < r.stages; i++)
        CHECK(staged_net_hash(r.stage[i].module) == c->hash[r.stage[i].index]);
    close_rank(&r);
    return OAR_OK;
}

static void ragged_lengths_train_as_one_process(void **state)
{
    static const int64_t rows[MICRO] = { 3, 1, 2, 1, 4, 2 };

    for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++)
        for (int way = 0; way < 3; way++) {
            ragged_case c = { .kind = (oar_schedule_kind)kind,
                              .ranks = way == 0 ? 3 : 2 };
            const char *backend = way == 0 ? "sim" : way == 1 ? "shm" : "tcp";
            oar_schedule *schedule;

            OK(oar_schedule_make(c.kind, c.ranks, MICRO, NULL, &schedule));
            c.net = (staged_case){ .kind = STAGED_MLP,
                                   .stages = oar_schedule_stages(schedule),
                                   .micro = MICRO,
                                   .rows = 13,
                                   .rows_of = rows,
                                   .steps = STEPS,
                                   .ragged = 1 };
            oar_schedule_release(schedule);
            OK(staged_net_train(&c.net, c.hash, &c.loss));
            if (ranks_run(backend, c.ranks, NULL, train_ragged, &c) != OAR_OK)
                fail_msg("%s over %s: %s", oar_schedule_kind_name(c.kind),
                         backend, oar_last_error_text());
        }
}

/* ---- shapes that depend on numbers --------------------------------------- */

/* What the middle stage of three does. */
typedef enum middle { CUTS, OTHER_DTYPE, OTHER_DIMS } middle;

typedef struct narrowed_case {
    int dynamic;
    middle middle;
} narrowed_case;

/* Stage 1 keeps as many columns as the first number says. */
static oar_status cut_columns(void *arg, oar_tape *tape, int micro,
                              oar_tensor *const *in, oar_tensor **out)
{
    middle how = *(middle *)arg;
    float first[4 * INNER];

    CHECK_OK(oar_tensor_read(in[0], OAR_F32, first));
    if (how == CUTS)
        out[0] = oar_narrow(tape, in[0], 1, 0, 1 + (int64_t)first[0] % INNER);
    else if (how == OTHER_DTYPE)
        out[0] = oar_cast(tape, in[0], micro == 2 ? OAR_F64 : OAR_F32);
    else
        out[0] = micro == 2 ? oar_reshape(tape, in[0], OAR_SHAPE(2, INNER, 1))
                            : in[0];
    return OAR_OK;
}

static oar_status pass_on(void *arg, oar_tape *tape, int micro,
                          oar_tensor *const *in, oar_tensor **out)
{
    out[0] = oar_scale(tape, in[0], 1);
    return OAR_OK;
}

static oar_tensor *sum_of(void *arg, oar_tape *tape, int micro,
                          oar_tensor *const *out, int targets,
                          oar_tensor *const *target)
{
    return oar_sum(tape, out[0]);
}

static oar_status check_cut(oar_group *g, const narrowed_case *c,
                            oar_pipeline *pipe)
{
    float number[3 * 2 * INNER];
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_pipeline_result r = oar_pipeline_result_init();
    int rank = oar_group_rank(g);
    double sum = 0;
    oar_tensor *x;

    for (int i = 0; i < 3 * 2 * INNER; i++)
        number[i] = (float)(i / (2 * INNER));
    for (int m = 0; m < 3; m++) /* two rows of m + 1 columns, all m */
        sum += 2 * (m + 1) * m / 3.0;
    x = oar_from_data(NULL, OAR_F32, OAR_SHAPE(6, INNER), number);
    CHECK(x != NULL);
    b.inputs = rank == 0;
    b.input = &x;
    if (c->dynamic && c->middle == CUTS) {
        CHECK_OK(oar_pipeline_step(pipe, &b, &r));
        CHECK(r.loss > sum - 1e-6 && r.loss < sum + 1e-6);
    } else {
        const char *why = !c->dynamic ? "make the pipeline dynamic"
                          : c->middle == OTHER_DIMS ? "output 0 has 3 dims, "
                                                      "and had 2 before"
                                                    : "output 0 is f64, and "
                                                      "was f32 before";
        const char *where = c->dynamic ? "stage 1, F of micro-batch 2: "
                                       : "stage 1, F of micro-batch 1: ";
        CHECK(oar_pipeline_step(pipe, &b, &r) != OAR_OK);
        CHECK(last_error_has(why) && last_error_has(where));
    }
    oar_tensor_release(x);
    return OAR_OK;
}

static oar_status run_cut(oar_group *g, void *arg)
{
    narrowed_case *c = arg;
    oar_stage stage = oar_stage_init();
    middle how = c->middle;
    oar_schedule *schedule;
    oar_pipeline *pipe;

    CHECK_OK(oar_schedule_make(OAR_SCHEDULE_GPIPE, 3, 3, NULL, &schedule));
    stage.index = oar_group_rank(g);
    stage.forward = stage.index == 1 ? cut_columns : pass_on;
    stage.arg = &how;
    CHECK_OK(oar_pipeline_create(
        g, schedule, 1, &stage,
        OAR_OPTS(oar_pipeline_opts, .loss = sum_of, .dynamic = c->dynamic),
        &pipe));
    CHECK_OK(check_cut(g, c, pipe));
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    return OAR_OK;
}

static void shapes_may_depend_on_numbers(void **state)
{
    static const narrowed_case list[] = {
        { 0, CUTS }, { 1, CUTS }, { 1, OTHER_DTYPE }, { 1, OTHER_DIMS }
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        narrowed_case c = list[i];

        assert_int_equal(ranks_run("sim", 3, NULL, run_cut, &c), OAR_OK);
        assert_int_equal(ranks_run("shm", 3, NULL, run_cut, &c), OAR_OK);
    }
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status refuse_apart(oar_group *g, void *arg)
{
    ragged_case c = { .kind = OAR_SCHEDULE_1F1B, .ranks = 2 };
    oar_pipeline_batch b = oar_pipeline_batch_init();
    static const int64_t rows[MICRO] = { 1, 1, 1, 1, 1, 1 };
    oar_tensor *input[MICRO] = { NULL };
    ragged_rank r;

    c.net = (staged_case){
        .kind = STAGED_MLP, .stages = 2, .micro = MICRO, .rows = 6
    };
    CHECK_OK(open_rank(&r, &c, g));
    b.inputs = r.first;
    b.input = input;
    b.apart = 1;
    CHECK(fails_with(oar_pipeline_step(r.pipe, &b, NULL), OAR_E_ARG,
                     r.first ? "input 0 of micro-batch 0 is NULL"
                             : "rank 0 cannot begin"));
    b.rows = rows;
    CHECK(fails_with(oar_pipeline_step(r.pipe, &b, NULL), OAR_E_ARG,
                     "that have tensors of their own"));
    close_rank(&r);
    return OAR_OK;
}

static void micro_batches_apart_are_checked(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_apart, NULL), OAR_OK);
}

/* What comes over the wire is read or refused, whatever it is. */
static void heads_are_checked_before_anything_is_made(void **state)
{
    uint32_t seed = 12345;
    int read = 0;

    for (int i = 0; i < 20000; i++) {
        oari_flow_head head = { 0x4f415248, 0, 2, 0, { 3, 4 } };
        oari_flow_spec spec;
        unsigned char *byte = (unsigned char *)&head;

        for (int k = 0; k < 1 + i % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            byte[(seed >> 8) % sizeof head] ^= (unsigned char)(seed >> 24);
        }
        if (oari_head_read(&head, &spec) != OAR_OK)
            continue;
        read++;
        assert_true((unsigned)spec.dtype < OAR_DTYPE_COUNT);
        assert_in_range(spec.shape.ndim, 0, OAR_MAX_DIMS);
        assert_true(oari_spec_bytes(&spec) <= INT64_MAX);
        for (int d = 0; d < spec.shape.ndim; d++)
            assert_true(spec.shape.dim[d] >= 0);
    }
    assert_in_range(read, 1000, 19000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_lengths_train_as_one_process),
        cmocka_unit_test(shapes_may_depend_on_numbers),
        cmocka_unit_test(micro_batches_apart_are_checked),
        cmocka_unit_test(heads_are_checked_before_anything_is_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
