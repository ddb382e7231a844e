/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines in use: skip connections, several tensors between stages,
 * evaluation, weights and scales, tied parameters, memory, and what is refused.
 */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/pipeline.h>

#include "support/last_error.h"
#include "support/staged_net.h"

/* ---- skip connections ---------------------------------------------------- */

enum { WIDTH = 6, ROWS = 11, MICRO = 4, U_STAGES = 4 };

/* Stage 0 gives its result and a mask of integers; the result goes to stages 1,
 * 2 and 3, the mask to stage 3 by way of stage 1, which passes it on. */
static const oar_stage_input u_input[U_STAGES][3] = {
    { { 0, 0 } },
    { { 0, 0 }, { 0, 1 } },
    { { 0, 0 }, { 1, 0 } },
    { { 2, 0 }, { 1, 1 }, { 0, 0 } },
};
static const int u_inputs[U_STAGES] = { 2, 2, 2, 3 };
static const int u_outputs[U_STAGES] = { 2, 2, 1, 1 };

typedef struct u_stage {
    int index;
    oar_module *linear;
} u_stage;

static oar_status u_forward(void *arg, oar_tape *tape, int micro,
                            oar_tensor *const *in, oar_tensor **out)
{
    u_stage *u = arg;

    switch (u->index) {
    case 0:
        out[0] = oar_forward(tape, u->linear, in[0]);
        out[1] = in[1];
        break;
    case 1:
        out[0] = oar_gelu(tape, oar_forward(tape, u->linear, in[0]));
        out[1] = in[1];
        break;
    case 2:
        out[0] = oar_add(tape, oar_forward(tape, u->linear, in[1]), in[0]);
        break;
    default:
        out[0] = oar_mul(tape, oar_forward(tape, u->linear, in[0]),
                         oar_cast(tape, in[1], OAR_F32));
        out[0] = oar_add(tape, out[0], in[2]);
    }
    return out[0] != NULL ? OAR_OK : oar_last_error()->status;
}

static oar_tensor *u_batch(int what)
{
    if (what == 1)
        return oar_uniform(NULL, OAR_I64, OAR_SHAPE(ROWS, WIDTH), 5, 0, 3);
    return oar_normal(NULL, OAR_F32, OAR_SHAPE(ROWS, WIDTH),
                      40 + (uint64_t)what, 0, 1);
}

static void u_make(u_stage *u, int index)
{
    u->index = index;
    OK(oar_linear_create(WIDTH, WIDTH, 60 + (uint64_t)index, NULL, &u->linear));
}

/* One process: all stages on one tape. */
static void u_reference(uint64_t *hash)
{
    static const int64_t rows[MICRO] = { 3, 3, 3, 2 };
    oar_tensor *batch[3] = { u_batch(0), u_batch(1), u_batch(2) };
    u_stage u[U_STAGES];
    oar_tape *tape;
    int64_t first = 0;

    OK(oar_tape_create(&tape));
    for (int s = 0; s < U_STAGES; s++)
        u_make(&u[s], s);
    for (int m = 0; m < MICRO; first += rows[m++]) {
        oar_tensor *cut[3], *out[U_STAGES][2], *in[3], *loss, *seed;

        for (int i = 0; i < 3; i++)
            cut[i] = oar_narrow(tape, batch[i], 0, first, rows[m]);
        for (int s = 0; s < U_STAGES; s++) {
            for (int i = 0; i < u_inputs[s]; i++)
                in[i] = s == 0 ? cut[i]
                               : out[u_input[s][i].stage][u_input[s][i].output];
            OK(u_forward(&u[s], tape, m, in, out[s]));
        }
        loss = oar_mse(tape, out[U_STAGES - 1][0], cut[2]);
        seed = oar_full(NULL, OAR_F32, OAR_SCALAR,
                        4 * (double)(m + 1) / (1 + 2 + 3 + 4));
        OK(oar_backward_from(tape, 1, &loss, &seed));
        oar_tensor_release(seed);
        oar_tape_reset(tape);
    }
    for (int s = 0; s < U_STAGES; s++) {
        hash[s] = staged_net_hash(u[s].linear);
        oar_module_release(u[s].linear);
    }
    for (int i = 0; i < 3; i++)
        oar_tensor_release(batch[i]);
    oar_tape_destroy(tape);
}

typedef struct u_case {
    oar_schedule_kind kind;
    int ranks;
    uint64_t hash[U_STAGES];
} u_case;

static int u_stages(const oar_schedule *schedule, int rank, u_stage *u,
                    oar_stage *stage)
{
    int count = 0;

    for (int s = 0; s < U_STAGES; s++) {
        if (oar_schedule_rank_of(schedule, s) != rank)
            continue;
        u_make(&u[count], s);
        stage[count] = oar_stage_init();
        stage[count].index = s;
        stage[count].forward = u_forward;
        stage[count].arg = &u[count];
        stage[count].inputs = u_inputs[s];
        stage[count].outputs = u_outputs[s];
        stage[count].input = u_input[s];
        count++;
    }
    return count;
}

static oar_status u_train(oar_group *g, void *arg)
{
    static const double weight[MICRO] = { 1, 2, 3, 4 };
    const u_case *c = arg;
    int rank = oar_group_rank(g), count;
    oar_tensor *batch[3] = { u_batch(0), u_batch(1), u_batch(2) };
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_stage stage[U_STAGES];
    u_stage u[U_STAGES];
    oar_schedule *schedule;
    oar_pipeline *pipe;

    CHECK_OK(oar_schedule_make(c->kind, c->ranks, MICRO, NULL, &schedule));
    count = u_stages(schedule, rank, u, stage);
    CHECK_OK(oar_pipeline_create(
        g, schedule, count, stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss), &pipe));
    b.inputs = oar_schedule_rank_of(schedule, 0) == rank ? 2 : 0;
    b.input = batch;
    b.targets = oar_schedule_rank_of(schedule, U_STAGES - 1) == rank;
    b.target = &batch[2];
    b.weight = weight;
    b.scale = 4;
    CHECK_OK(oar_pipeline_step(pipe, &b, NULL));
    for (int i = 0; i < count; i++) {
        CHECK(staged_net_hash(u[i].linear) == c->hash[u[i].index]);
        oar_module_release(u[i].linear);
    }
    for (int i = 0; i < 3; i++)
        oar_tensor_release(batch[i]);
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    return OAR_OK;
}

static void stages_are_connected_in_any_way(void **state)
{
    static const u_case list[] = {
        { .kind = OAR_SCHEDULE_1F1B, .ranks = 4 },
        { .kind = OAR_SCHEDULE_GPIPE, .ranks = 4 },
        { .kind = OAR_SCHEDULE_ZB_H1, .ranks = 4 },
        { .kind = OAR_SCHEDULE_INTERLEAVED, .ranks = 2 },
        { .kind = OAR_SCHEDULE_LOOPED_BFS, .ranks = 2 },
        { .kind = OAR_SCHEDULE_ZB_V, .ranks = 2 },
        { .kind = OAR_SCHEDULE_DUALPIPE_V, .ranks = 2 },
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        u_case c = list[i];

        u_reference(c.hash);
        assert_int_equal(ranks_run("sim", c.ranks, NULL, u_train, &c), OAR_OK);
        if (i == 0)
            ranks_all(c.ranks, u_train, &c);
    }
}

/* ---- a small pipeline ---------------------------------------------------- */

typedef struct small {
    staged_case net;
    oar_schedule *schedule;
    oar_stage stage;
    oar_pipeline *pipe;
    oar_tensor *input, *target;
    oar_pipeline_batch batch;
} small;

static oar_status small_open(small *s, oar_group *g, oar_schedule_kind kind,
                             int64_t rows, uint64_t most_bytes)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);

    memset(s, 0, sizeof *s);
    s->net = (staged_case){
        .kind = STAGED_MLP, .micro = 4, .rows = rows, .steps = 1
    };
    CHECK_OK(oar_schedule_make(kind, ranks, 4, NULL, &s->schedule));
    s->stage = oar_stage_init();
    s->stage.index = rank;
    s->stage.module = staged_net_stage(STAGED_MLP, rank);
    CHECK_OK(
        oar_pipeline_create(g, s->schedule, 1, &s->stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss,
                                     .most_bytes = most_bytes),
                            &s->pipe));
    s->input = staged_net_input(&s->net, 0);
    s->target = staged_net_target(&s->net, 0);
    s->batch = oar_pipeline_batch_init();
    s->batch.inputs = rank == 0;
    s->batch.input = &s->input;
    s->batch.targets = rank == ranks - 1;
    s->batch.target = &s->target;
    return OAR_OK;
}

static void small_close(small *s)
{
    oar_pipeline_destroy(s->pipe);
    oar_schedule_release(s->schedule);
    oar_module_release(s->stage.module);
    oar_tensor_release(s->input);
    oar_tensor_release(s->target);
}

/* ---- evaluation ---------------------------------------------------------- */

/* The whole batch at once may take other kernels of the BLAS than its parts. */
static int is_near(const oar_tensor *a, const oar_tensor *b)
{
    const float *x = oar_tensor_const_data(a), *y = oar_tensor_const_data(b);
    int64_t count = oar_tensor_count(a), i = 0;

    while (i < count && fabsf(x[i] - y[i]) < 1e-6f)
        i++;
    return i == count && count == oar_tensor_count(b);
}

static oar_status evaluate(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_pipeline_result r = oar_pipeline_result_init();
    oar_tensor *out = NULL, *x, *y, *mean;
    uint64_t before;
    double loss = 0;
    small s;

    CHECK_OK(small_open(&s, g, OAR_SCHEDULE_1F1B, 10, 0));
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    before = staged_net_hash(s.stage.module);
    oar_module_train(s.stage.module, 0);
    for (int k = 0; k < 2; k++) {
        CHECK_OK(oar_pipeline_eval(s.pipe, &s.batch, &r, &out));
        CHECK((out != NULL) == (rank == ranks - 1));
        oar_tensor_release(k == 0 ? out : NULL);
    }
    CHECK(staged_net_hash(s.stage.module) == before);
    x = oar_tensor_retain(s.input);
    for (int k = 0; k < ranks; k++) {
        oar_module *m = staged_net_stage(STAGED_MLP, k);
        oar_module_train(m, 0);
        y = oar_forward(NULL, m, x);
        oar_tensor_release(x);
        oar_module_release(m);
        x = y;
    }
    mean = oar_mse(NULL, x, s.target);
    CHECK_OK(oar_tensor_item(mean, &loss));
    CHECK(fabs(loss - r.loss) < 1e-6 && r.weight == 10);
    if (rank == ranks - 1)
        CHECK(is_near(out, x));
    oar_tensor_release(mean);
    oar_tensor_release(x);
    oar_tensor_release(out);
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    small_close(&s);
    return OAR_OK;
}

static void evaluation_gives_outputs_and_loss(void **state)
{
    for (int n = 1; n <= 3; n++)
        assert_int_equal(ranks_run("sim", n, NULL, evaluate, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 3, NULL, evaluate, NULL), OAR_OK);
}

/* Stages whose outputs are their inputs: what is sent on, or given in the end,
 * must not be overwritten by the micro-batches that follow. */
static oar_status give_back(void *arg, oar_tape *tape, int micro,
                            oar_tensor *const *in, oar_tensor **out)
{
    out[0] = in[0];
    return OAR_OK;
}

static oar_status pass_through(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_tensor *x = oar_normal(NULL, OAR_F32, OAR_SHAPE(27, 3), 3, 0, 1), *out;
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_stage stage = oar_stage_init();
    oar_schedule *schedule;
    oar_pipeline *pipe;

    stage.index = rank;
    stage.forward = give_back;
    b.inputs = rank == 0;
    b.input = &x;
    CHECK_OK(oar_schedule_make(OAR_SCHEDULE_1F1B, ranks, 9, NULL, &schedule));
    CHECK_OK(
        oar_pipeline_create(g, schedule, 1, &stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss,
                                     .dynamic = arg != NULL),
                            &pipe));
    for (int k = 0; k < 3; k++) {
        CHECK_OK(oar_pipeline_eval(pipe, &b, NULL, &out));
        if (rank < ranks - 1)
            continue;
        CHECK(memcmp(oar_tensor_const_data(out), oar_tensor_const_data(x),
                     27 * 3 * sizeof(float)) == 0);
        oar_tensor_release(out);
    }
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    oar_tensor_release(x);
    return OAR_OK;
}

static void outputs_may_be_inputs(void **state)
{
    static const char *const backend[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        for (int dynamic = 0; dynamic < 2; dynamic++)
            assert_int_equal(ranks_run(backend[i], 3, NULL, pass_through,
                                       dynamic ? &i : NULL),
                             OAR_OK);
}

/* ---- memory -------------------------------------------------------------- */

/* The engine's thread may let go of an operation after the next one was posted.
 * That takes memory once more, so a few steps without any are enough, if they
 * are the same ones on both ranks. */
static oar_status count_allocations(oar_group *g, void *arg)
{
    oar_schedule_kind kind = *(oar_schedule_kind *)arg;
    oar_memory_stats before = oar_memory_stats_init(), after = before;
    float none = 0;
    small s;

    CHECK_OK(small_open(&s, g, kind, 10, 0));
    for (int k = 0; k < 4; k++)
        CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    for (int i = 0; i < 5 && none == 0; i++) {
        CHECK_OK(oar_memory_read(&before));
        for (int k = 0; k < 3; k++)
            CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
        CHECK_OK(oar_memory_read(&after));
        none = after.allocations == before.allocations;
        CHECK_OK(oar_all_reduce(g, oar_span_of(&none, 1, OAR_F32), OAR_MIN,
                                NULL, NULL));
    }
    CHECK(none != 0);
    small_close(&s);
    return OAR_OK;
}

static void a_step_allocates_nothing(void **state)
{
    oar_schedule_kind list[] = { OAR_SCHEDULE_1F1B, OAR_SCHEDULE_ZB_H1 };

    for (size_t i = 0; i < 2; i++)
        assert_int_equal(ranks_run("shm", 2, NULL, count_allocations, &list[i]),
                         OAR_OK);
}

/* What is measured lets the schedule's judge say time and memory. */
static oar_status compare_figures(oar_group *g, void *arg)
{
    oar_schedule_kind kind = *(oar_schedule_kind *)arg;
    oar_pipeline_stats stats = oar_pipeline_stats_init();
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule_cost cost;
    int ranks = oar_group_size(g);
    uint64_t most;
    small s;

    CHECK_OK(small_open(&s, g, kind, 12, 0));
    for (int k = 0; k < 2; k++)
        CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    CHECK_OK(oar_pipeline_cost(s.pipe, &cost));
    CHECK_OK(oar_pipeline_read_stats(s.pipe, &stats));
    CHECK(stats.steps == 2 && stats.busy_s > 0 && stats.step_s > stats.busy_s);
    CHECK(stats.bubble > 0 && stats.bubble < 1);
    CHECK(stats.simulated_s > 0 &&
          stats.simulated_s < 10 * ranks * stats.step_s);
    CHECK(stats.simulated_bubble > 0 && stats.simulated_bubble < 1);
    CHECK(cost.hop >= 0 && cost.hop < stats.step_s);
    CHECK(stats.messages ==
          4 * ((oar_group_rank(g) > 0) + (oar_group_rank(g) < ranks - 1)));
    for (int k = 0; k < ranks; k++) {
        CHECK(cost.forward[k] > 0 && cost.inputs[k] > 0 && cost.weights[k] > 0);
        CHECK(cost.held[k] > 0 && cost.message[k] == 3 * WIDTH * 4);
        CHECK((cost.half[k] > 0) == (kind == OAR_SCHEDULE_ZB_H1));
    }
    CHECK_OK(oar_schedule_check(s.schedule, &cost, &report));
    CHECK(report.time > 0);
    most = stats.most_bytes;
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&most, 1, OAR_U64), OAR_MAX, NULL, NULL));
    CHECK(most <= report.most_bytes && most >= report.most_bytes / 20 * 19);
    small_close(&s);
    return OAR_OK;
}

static void a_step_is_measured(void **state)
{
    oar_schedule_kind list[] = { OAR_SCHEDULE_1F1B, OAR_SCHEDULE_ZB_H1,
                                 OAR_SCHEDULE_GPIPE };

    for (size_t i = 0; i < 3; i++)
        for (int ranks = 2; ranks <= 3; ranks++)
            assert_int_equal(
                ranks_run("sim", ranks, NULL, compare_figures, &list[i]),
                OAR_OK);
}

/* ---- limits -------------------------------------------------------------- */

/* What a step needs, by what it was measured to need, is enough, and one byte
 * less is not. The limit changes nothing of what is computed. */
static oar_status limit_memory(oar_group *g, void *arg)
{
    oar_schedule_kind kind = *(oar_schedule_kind *)arg;
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule_cost cost;
    oar_pipeline_batch fewer;
    oar_tensor *part[2];
    char text[100];
    uint64_t hash;
    small s;

    CHECK_OK(small_open(&s, g, kind, 11, 0));
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    CHECK_OK(oar_pipeline_cost(s.pipe, &cost));
    CHECK_OK(oar_schedule_check(s.schedule, &cost, &report));
    hash = staged_net_hash(s.stage.module);
    small_close(&s);
    CHECK_OK(small_open(&s, g, kind, 11, report.most_bytes));
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    CHECK(staged_net_hash(s.stage.module) == hash);
    small_close(&s);
    CHECK_OK(small_open(&s, g, kind, 11, report.most_bytes - 1));
    snprintf(text, sizeof text,
             "rank %d needs %llu bytes for what is in flight, and %llu are",
             report.most_rank, (unsigned long long)report.most_bytes,
             (unsigned long long)report.most_bytes - 1);
    for (int k = 0; k < 2; k++)
        CHECK(fails_with(oar_pipeline_step(s.pipe, &s.batch, NULL), OAR_E_ARG,
                         text));
    part[0] = oar_narrow(NULL, s.input, 0, 0, 8);
    part[1] = oar_narrow(NULL, s.target, 0, 0, 8);
    fewer = s.batch;
    fewer.input = &part[0];
    fewer.target = &part[1];
    CHECK_OK(oar_pipeline_step(s.pipe, &fewer, NULL));
    for (int i = 0; i < 2; i++)
        oar_tensor_release(part[i]);
    small_close(&s);
    return OAR_OK;
}

static void what_needs_more_memory_is_refused(void **state)
{
    oar_schedule_kind list[] = { OAR_SCHEDULE_1F1B, OAR_SCHEDULE_ZB_H1,
                                 OAR_SCHEDULE_GPIPE };

    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ranks_run("sim", 3, NULL, limit_memory, &list[i]),
                         OAR_OK);
    assert_int_equal(ranks_run("shm", 2, NULL, limit_memory, &list[0]), OAR_OK);
}

/* ---- pictures ------------------------------------------------------------ */

/* Checks that a trace has all actions, each where the schedule allows it. */
static oar_status check_trace(const char *text, int ranks)
{
    double end[3][4], begin, length;

    for (int stage = 0; stage < ranks; stage++)
        for (int m = 0; m < 4; m++) {
            char name[40];
            const char *at;
            snprintf(name, sizeof name, "{\"name\":\"%dF%d\"", stage, m);
            at = strstr(text, name);
            CHECK(at != NULL && (at = strstr(at, "\"ts\":")) != NULL);
            CHECK(sscanf(at, "\"ts\":%lf,\"dur\":%lf", &begin, &length) == 2);
            CHECK(begin >= 0 && length > 0);
            CHECK(stage == 0 || begin >= end[stage - 1][m] - 0.002);
            CHECK(m == 0 || begin >= end[stage][m - 1] - 0.002);
            end[stage][m] = begin + length;
        }
    return OAR_OK;
}

static oar_status draw_steps(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    char *text[3] = { NULL };
    small s;

    CHECK_OK(small_open(&s, g, OAR_SCHEDULE_1F1B, 10, 0));
    CHECK(fails_with(oar_pipeline_draw(s.pipe, OAR_PICTURE_TEXT, &text[0]),
                     OAR_E_STATE, "before the first step"));
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(oar_pipeline_draw(s.pipe, (oar_picture)i, &text[i]));
        CHECK((text[i] != NULL) == (rank == 0));
    }
    if (rank == 0) {
        CHECK(strncmp(text[0], "rank 0 |", 8) == 0); /* it may begin late */
        CHECK(strstr(text[0], "rank 2 |") != NULL);
        CHECK(strstr(text[1], "<title>2B3</title>") != NULL);
        CHECK(strstr(text[2], "\"name\":\"0B3\"") != NULL);
        CHECK_OK(check_trace(text[2], ranks));
    }
    for (int i = 0; i < 3; i++)
        oar_free(text[i]);
    CHECK_OK(oar_pipeline_eval(s.pipe, &s.batch, NULL, NULL));
    CHECK_OK(oar_pipeline_draw(s.pipe, OAR_PICTURE_CHROME, &text[2]));
    if (rank == 0) {
        CHECK(strstr(text[2], "0B0") == NULL);
        CHECK_OK(check_trace(text[2], ranks));
    }
    oar_free(text[2]);
    small_close(&s);
    return OAR_OK;
}

static void a_step_is_drawn_as_it_was(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, draw_steps, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 3, NULL, draw_steps, NULL), OAR_OK);
}

/* ---- tied parameters ----------------------------------------------------- */

/* The last stage's second layer is the first stage's: 30 steps of SGD leave the
 * same bits in both, and in f64 what one process with one tensor has. */
enum { TIE_STEPS = 30 };

static oar_status tied_forward(void *arg, oar_tape *tape, int micro,
                               oar_tensor *const *in, oar_tensor **out)
{
    out[0] = oar_tanh(tape, oar_matmul(tape, in[0], arg));
    return out[0] != NULL ? OAR_OK : oar_last_error()->status;
}

static oar_tensor *tied_tensor(uint64_t seed, int grad)
{
    oar_tensor *t =
        oar_normal(NULL, OAR_F64, OAR_SHAPE(WIDTH, WIDTH), seed, 0, 0.5);

    if (grad)
        OK(oar_tensor_require_grad(t, 1));
    return t;
}

static oar_status tied_reference(double *numbers)
{
    oar_tensor *w = tied_tensor(1, 1), *mid = tied_tensor(2, 1), *loss;
    oar_tensor *list[2] = { w, mid };
    oar_tensor *x = tied_tensor(3, 0), *y = tied_tensor(4, 0);
    oar_optim *sgd;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(
        oar_sgd_create_over(2, list, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    for (int k = 0; k < TIE_STEPS; k++) {
        loss = oar_tanh(tape, oar_matmul(tape, x, w));
        loss = oar_tanh(tape, oar_matmul(tape, loss, mid));
        loss = oar_tanh(tape, oar_matmul(tape, loss, w));
        CHECK_OK(oar_backward(tape, oar_mse(tape, loss, y)));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    CHECK_OK(oar_tensor_read(w, OAR_F64, numbers));
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    for (int i = 0; i < 2; i++)
        oar_tensor_release(list[i]);
    oar_tensor_release(x);
    oar_tensor_release(y);
    return OAR_OK;
}

static oar_status tied_train(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), tied = rank != 1;
    const double *wanted = arg;
    oar_tensor *w = tied_tensor(rank == 2 ? 99 : (uint64_t)(1 + rank), 1);
    oar_tensor *x = tied_tensor(3, 0), *y = tied_tensor(4, 0);
    oar_pipeline_batch b = oar_pipeline_batch_init();
    double found[WIDTH * WIDTH], first[WIDTH * WIDTH];
    oar_stage stage = oar_stage_init();
    oar_schedule *schedule;
    oar_pipeline *pipe;
    oar_optim *sgd;

    stage.index = rank;
    stage.forward = tied_forward;
    stage.arg = w;
    CHECK_OK(oar_schedule_make(OAR_SCHEDULE_1F1B, 3, 3, NULL, &schedule));
    CHECK_OK(oar_pipeline_create(
        g, schedule, 1, &stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss), &pipe));
    CHECK(fails_with(oar_pipeline_tie(pipe, "w", NULL), OAR_E_ARG,
                     "no rank has w"));
    CHECK_OK(oar_pipeline_tie(pipe, "w", tied ? w : NULL));
    CHECK_OK(
        oar_sgd_create_over(1, &w, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    b.inputs = rank == 0;
    b.input = &x;
    b.targets = rank == 2;
    b.target = &y;
    for (int k = 0; k < TIE_STEPS; k++) {
        /* gradients add up over two steps: half the scale in each */
        b.scale = 0.5;
        CHECK_OK(oar_pipeline_step(pipe, &b, NULL));
        CHECK_OK(oar_pipeline_step(pipe, &b, NULL));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
    }
    CHECK_OK(oar_tensor_read(w, OAR_F64, found));
    memcpy(first, found, sizeof found);
    CHECK_OK(oar_broadcast(g, oar_span_of(first, WIDTH * WIDTH, OAR_F64), 0,
                           NULL, NULL));
    CHECK(!tied || memcmp(first, found, sizeof found) == 0);
    for (int i = 0; tied && i < WIDTH * WIDTH; i++)
        CHECK(fabs(found[i] - wanted[i]) < 1e-12);
    oar_optim_destroy(sgd);
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    oar_tensor_release(w);
    oar_tensor_release(x);
    oar_tensor_release(y);
    return OAR_OK;
}

static void a_tied_parameter_stays_one(void **state)
{
    double wanted[WIDTH * WIDTH];

    OK(tied_reference(wanted));
    assert_int_equal(ranks_run("sim", 3, NULL, tied_train, wanted), OAR_OK);
    assert_int_equal(ranks_run("shm", 3, NULL, tied_train, wanted), OAR_OK);
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status refuse_batches(oar_group *g, void *arg)
{
    static const int64_t rows[4] = { 4, 4, 2, 0 };
    int rank = oar_group_rank(g);
    oar_tensor *narrow = oar_zeros(NULL, OAR_F32, OAR_SHAPE(10, WIDTH - 1));
    oar_tensor *number = oar_zeros(NULL, OAR_F32, OAR_SCALAR);
    oar_tensor *input;
    oar_pipeline_batch b;
    small s;

    CHECK_OK(small_open(&s, g, OAR_SCHEDULE_1F1B, 10, 0));
    input = s.input;
    for (int k = 0; k < 5; k++) {
        static const char *const text[5] = {
            "stage 0, which micro-batches of 3 rows cannot go through",
            "is a single number", "rows for micro-batch 3", "for stage 0",
            "inputs of 8 rows on rank 0, and targets of 10 on rank 1"
        };
        static const oar_status status[5] = { OAR_E_SHAPE, OAR_E_SHAPE,
                                              OAR_E_ARG, OAR_E_ARG,
                                              OAR_E_SHAPE };
        oar_tensor *short_input = oar_narrow(NULL, input, 0, 0, 8);
        oar_tensor *wrong[5] = { narrow, number, input, NULL, short_input };

        b = s.batch;
        b.inputs = rank == 0 && k != 3;
        b.input = &wrong[k];
        b.rows = k == 2 ? rows : NULL;
        CHECK(fails_with(oar_pipeline_step(s.pipe, &b, NULL), status[k],
                         k == 0 || k == 4 || rank == 0 ? text[k]
                                                       : "rank 0 cannot"));
        oar_tensor_release(short_input);
    }
    b = s.batch;
    b.inputs = rank == 1;
    b.targets = rank == 0;
    CHECK(oar_pipeline_step(s.pipe, &b, NULL) == OAR_E_ARG);
    CHECK(fails_with(rank == 0
                         ? oar_pipeline_step(s.pipe, &s.batch, NULL)
                         : oar_pipeline_eval(s.pipe, &s.batch, NULL, NULL),
                     OAR_E_MISMATCH, "is in pipeline_"));
    CHECK_OK(oar_pipeline_step(s.pipe, &s.batch, NULL));
    small_close(&s);
    oar_tensor_release(narrow);
    oar_tensor_release(number);
    return OAR_OK;
}

static oar_status refuse_stages(oar_group *g, void *arg)
{
    static const oar_stage_input nowhere[1] = { { 1, 0 } };
    int rank = oar_group_rank(g);
    oar_stage stage[2] = { oar_stage_init(), oar_stage_init() };
    oar_pipeline_opts opts = oar_pipeline_opts_init();
    oar_schedule *schedule, *other;
    oar_pipeline *pipe = NULL;
    oar_module *module = staged_net_stage(STAGED_MLP, rank);

    CHECK_OK(oar_schedule_make(OAR_SCHEDULE_1F1B, 2, 3, NULL, &schedule));
    CHECK_OK(
        oar_schedule_make(rank == 0 ? OAR_SCHEDULE_GPIPE : OAR_SCHEDULE_1F1B, 2,
                          3, NULL, &other));
    for (int i = 0; i < 2; i++) {
        stage[i].index = rank;
        stage[i].module = module;
    }
    CHECK(fails_with(oar_pipeline_create(g, schedule, 1, stage, NULL, &pipe),
                     OAR_E_ARG, rank == 1 ? "no loss" : "rank 1 could not"));
    opts.loss = staged_net_loss;
    CHECK(fails_with(oar_pipeline_create(g, other, 1, stage, &opts, &pipe),
                     OAR_E_MISMATCH, "different options: a schedule of 2"));
    CHECK(fails_with(oar_pipeline_create(g, schedule, 2, stage, &opts, &pipe),
                     OAR_E_ARG, "is given twice"));
    CHECK(fails_with(oar_pipeline_create(g, schedule, 0, stage, &opts, &pipe),
                     OAR_E_ARG, "is not given"));
    CHECK(fails_with(oar_pipeline_create(g, NULL, 1, stage, &opts, &pipe),
                     OAR_E_ARG, "without a schedule"));
    stage[0].inputs = 2;
    CHECK(fails_with(oar_pipeline_create(g, schedule, 1, stage, &opts, &pipe),
                     OAR_E_ARG, "use a function"));
    stage[0].inputs = 1;
    stage[0].input = nowhere;
    CHECK(fails_with(oar_pipeline_create(g, schedule, 1, stage, &opts, &pipe),
                     OAR_E_ARG, "is to come from stage 1: 0 to 0"));
    stage[0].input = NULL;
    stage[0].index = 1 - rank;
    CHECK(fails_with(oar_pipeline_create(g, schedule, 1, stage, &opts, &pipe),
                     OAR_E_ARG, "in the schedule, and is given on"));
    CHECK(pipe == NULL);
    oar_module_release(module);
    oar_schedule_release(other);
    oar_schedule_release(schedule);
    return OAR_OK;
}

static oar_status fail_at(void *arg, oar_tape *tape, int micro,
                          oar_tensor *const *in, oar_tensor **out)
{
    if (micro == *(int *)arg)
        return OAR_E_DATA;
    out[0] = oar_scale(tape, in[0], 2);
    return OAR_OK;
}

static oar_status fail_in_a_stage(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), when = rank == 1 ? 2 : -7;
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(6, 2));
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_stage stage = oar_stage_init();
    oar_schedule *schedule;
    oar_pipeline *pipe;

    stage.index = rank;
    stage.forward = fail_at;
    stage.arg = &when;
    b.inputs = rank == 0;
    b.input = &x;
    b.targets = rank == 2;
    b.target = &x;
    CHECK_OK(oar_schedule_make(OAR_SCHEDULE_1F1B, 3, 3, NULL, &schedule));
    for (int k = 0; k < 2; k++) {
        CHECK_OK(oar_pipeline_create(
            g, schedule, 1, &stage,
            OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss), &pipe));
        if (k == 0) {
            CHECK(fails_with(oar_pipeline_step(pipe, &b, NULL),
                             rank == 1 ? OAR_E_DATA : OAR_E_ABORTED,
                             "stage 1, F of micro-batch 2: "));
            CHECK(oar_pipeline_step(pipe, &b, NULL) == OAR_E_STATE);
            when = -7;
        } else {
            CHECK_OK(oar_pipeline_step(pipe, &b, NULL));
        }
        oar_pipeline_destroy(pipe);
    }
    oar_schedule_release(schedule);
    oar_tensor_release(x);
    return OAR_OK;
}

static void what_does_not_fit_is_refused_on_all_ranks(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_batches, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_stages, NULL), OAR_OK);
    oar_pipeline_destroy(NULL);
}

/* Not over plugins, where only messages go from rank to rank: there the others
 * wait until their time is up. */
static void a_failing_stage_is_named_everywhere(void **state)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (strchr(*b, '/') == NULL)
            assert_int_equal(ranks_run(*b, 3, NULL, fail_in_a_stage, NULL),
                             OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_are_connected_in_any_way),
        cmocka_unit_test(evaluation_gives_outputs_and_loss),
        cmocka_unit_test(outputs_may_be_inputs),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_step_is_measured),
        cmocka_unit_test(what_needs_more_memory_is_refused),
        cmocka_unit_test(a_step_is_drawn_as_it_was),
        cmocka_unit_test(a_tied_parameter_stays_one),
        cmocka_unit_test(what_does_not_fit_is_refused_on_all_ranks),
        cmocka_unit_test(a_failing_stage_is_named_everywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
