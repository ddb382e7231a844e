/* SPDX-License-Identifier: Apache-2.0 */
/* The cases that ferrotorch has for pipelines, with its numbers, on all kinds
 * of schedules, in one process and on several ranks; and the cases that it gets
 * wrong: gradients, half types, tensors of any dims, 1F1B itself. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { MOST = 16, STAGES = 4, ACTIONS = 256 };

/* ---- stages of one number ------------------------------------------------ */

/* y = x * weight + plus */
typedef struct arithmetic {
    int plus;
} arithmetic;

static oar_tensor *arithmetic_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    const arithmetic *a = oar_module_self(module);
    oar_tensor *y = oar_mul(tape, x, oar_module_param(module, 0));
    double plus = a->plus;
    oar_tensor *number;

    if (a->plus == 0)
        return y;
    number = oar_full(NULL, oar_tensor_dtype(x), OAR_SCALAR, plus);
    y = oar_add(tape, y, number);
    oar_tensor_release(number);
    return y;
}

static const oar_module_class arithmetic_class = {
    .size = sizeof arithmetic_class,
    .name = "arithmetic",
    .self_size = sizeof(arithmetic),
    .forward = arithmetic_forward,
};

/* What a stage does: "*3", "+10". */
static oar_module *new_stage(const char *what, oar_dtype dtype)
{
    oar_module *made;
    float number;

    OK(oar_module_create(&arithmetic_class, &made));
    assert_int_equal(sscanf(what + 1, "%f", &number), 1);
    if (what[0] == '+')
        ((arithmetic *)oar_module_self(made))->plus = (int)number;
    OK(oar_module_add_param(made, "weight",
                            oar_full(NULL, dtype, OAR_SCALAR,
                                     what[0] == '*' ? (double)number : 1)));
    return made;
}

/* ---- a case -------------------------------------------------------------- */

typedef struct reference_pipe {
    const char *what[STAGES];
    int stages, micro;
    oar_shape shape;
    float factor;       /* of the inputs 1, 2, 3, ...; 0: 1 */
    float result[MOST]; /* 0: as many as the inputs have */
    oar_dtype dtype;    /* f32 if 0 */
    oar_schedule_kind kind;
    int ranks;
} reference_pipe;

typedef struct seen_outputs {
    int count;
    float value[MOST];
} seen_outputs;

/* The loss, the mean of all outputs, sees them. */
static oar_tensor *see_outputs(void *arg, oar_tape *tape, int micro,
                               oar_tensor *const *out, int targets,
                               oar_tensor *const *target)
{
    seen_outputs *seen = arg;

    if (oar_tensor_read(out[0], OAR_F32, &seen->value[seen->count]) != OAR_OK)
        return NULL;
    seen->count += (int)oar_tensor_count(out[0]);
    return oar_mean(tape, out[0]);
}

static oar_tensor *new_input(const reference_pipe *c)
{
    float x[MOST];

    for (int i = 0; i < MOST; i++)
        x[i] = (c->factor != 0 ? c->factor : 1) * (float)(i + 1);
    return oar_from_data(NULL, OAR_F32, c->shape, x);
}

/* The gradient of a weight: the mean of what comes into its stage, times what
 * the stages after it multiply by. */
static double expected_gradient(const reference_pipe *c, int stage)
{
    oar_tensor *input = new_input(c);
    int64_t count = oar_tensor_count(input);
    float x[MOST];
    double mean = 0, number;

    OK(oar_tensor_read(input, OAR_F32, x));
    for (int i = 0; i < count; i++)
        mean += (double)x[i] / (double)count;
    for (int s = 0; s < c->stages; s++) {
        sscanf(c->what[s] + 1, "%lf", &number);
        if (c->what[s][0] == '*' && s != stage)
            mean *= number;
        else if (c->what[s][0] == '+' && s < stage)
            mean += number;
    }
    oar_tensor_release(input);
    return mean;
}

static oar_status check_gradients(const reference_pipe *c, int stages,
                                  const oar_stage *stage)
{
    for (int i = 0; i < stages; i++) {
        double expected = expected_gradient(c, stage[i].index), got;

        CHECK_OK(oar_tensor_item(
            oar_tensor_grad(oar_module_param(stage[i].module, 0)), &got));
        CHECK(fabs(got - expected) <=
              (c->dtype == OAR_F32 ? 1e-5 : 1e-2) * (1 + fabs(expected)));
    }
    return OAR_OK;
}

static oar_status make_schedule(const reference_pipe *c,
                                oar_schedule **schedule)
{
    return oar_schedule_make(
        c->kind, c->ranks, c->micro,
        OAR_OPTS(oar_schedule_opts, .chunks = c->stages / c->ranks), schedule);
}

/* Forward only: the outputs of all micro-batches are put together. */
static oar_status check_outputs(const reference_pipe *c, oar_pipeline *pipe,
                                const oar_pipeline_batch *batch, int is_last)
{
    oar_tensor *out = NULL;
    float value[MOST];

    CHECK_OK(oar_pipeline_eval(pipe, batch, NULL, &out));
    CHECK((out != NULL) == is_last);
    if (!is_last)
        return OAR_OK;
    CHECK(oar_tensor_shape(out).ndim == c->shape.ndim);
    CHECK(oar_tensor_shape(out).dim[0] == c->shape.dim[0]);
    CHECK_OK(oar_tensor_read(out, OAR_F32, value));
    for (int i = 0; i < oar_tensor_count(out) && c->result[0] != 0; i++)
        CHECK(value[i] == c->result[i]);
    oar_tensor_release(out);
    return OAR_OK;
}

static oar_status run_case(oar_group *g, void *arg)
{
    const reference_pipe *c = arg;
    int rank = oar_group_rank(g), stages = 0, is_last;
    seen_outputs seen = { .count = 0 };
    oar_tensor *whole = new_input(c), *x = oar_cast(NULL, whole, c->dtype);
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_stage stage[STAGES];
    oar_schedule *schedule;
    oar_pipeline *pipe;

    CHECK_OK(make_schedule(c, &schedule));
    for (int s = 0; s < c->stages; s++)
        if (oar_schedule_rank_of(schedule, s) == rank) {
            stage[stages] = oar_stage_init();
            stage[stages].index = s;
            stage[stages++].module = new_stage(c->what[s], c->dtype);
        }
    CHECK_OK(oar_pipeline_create(
        g, schedule, stages, stage,
        OAR_OPTS(oar_pipeline_opts, .loss = see_outputs, .loss_arg = &seen),
        &pipe));
    batch.inputs = oar_schedule_rank_of(schedule, 0) == rank;
    batch.input = &x;
    CHECK_OK(oar_pipeline_step(pipe, &batch, &result));
    is_last = oar_schedule_rank_of(schedule, c->stages - 1) == rank;
    if (is_last) {
        CHECK(seen.count == oar_tensor_count(x));
        for (int i = 0; i < seen.count && c->result[0] != 0; i++)
            CHECK(seen.value[i] == c->result[i]);
    }
    CHECK_OK(check_gradients(c, stages, stage));
    CHECK_OK(check_outputs(c, pipe, &batch, is_last));
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    for (int i = 0; i < stages; i++)
        oar_module_release(stage[i].module);
    oar_tensor_release(x);
    oar_tensor_release(whole);
    return OAR_OK;
}

static int kind_fits(oar_schedule_kind kind, int chunks, int ranks, int micro)
{
    if (kind == OAR_SCHEDULE_DUALPIPE_V && micro < 2 * ranks)
        return 0;
    if (kind == OAR_SCHEDULE_ZB_V || kind == OAR_SCHEDULE_DUALPIPE_V)
        return chunks == 2;
    return chunks == 1 || kind == OAR_SCHEDULE_INTERLEAVED ||
           kind == OAR_SCHEDULE_LOOPED_BFS;
}

/* Runs a case with every kind of schedule and every number of ranks that has as
 * many stages. */
static void run_everywhere(reference_pipe c, const char *backend)
{
    int runs = 0;

    while (c.stages < STAGES && c.what[c.stages] != NULL)
        c.stages++;
    if (c.dtype == 0)
        c.dtype = OAR_F32;
    for (c.ranks = 1; c.ranks <= c.stages; c.ranks++)
        for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++) {
            c.kind = (oar_schedule_kind)kind;
            if (c.stages % c.ranks != 0 ||
                !kind_fits(c.kind, c.stages / c.ranks, c.ranks, c.micro))
                continue;
            runs++;
            if (ranks_run(backend, c.ranks, NULL, run_case, &c) != OAR_OK)
                fail_msg("%s, %d stages on %d ranks, %d micro-batches",
                         oar_schedule_kind_name(c.kind), c.stages, c.ranks,
                         c.micro);
        }
    assert_true(runs >= 2);
}

/* ---- its cases ----------------------------------------------------------- */

static void its_numbers_come_out(void **state)
{
    static const reference_pipe cases[] = {
        { .what = { "*3" },
          .micro = 1,
          .shape = { 1, { 3 } },
          .result = { 3, 6, 9 } },
        { .what = { "*2" },
          .micro = 2,
          .shape = { 1, { 4 } },
          .result = { 2, 4, 6, 8 } },
        { .what = { "*2", "+10" },
          .micro = 2,
          .shape = { 1, { 4 } },
          .result = { 12, 14, 16, 18 } },
        { .what = { "*2", "+1", "*3" },
          .micro = 1,
          .shape = { 1, { 2 } },
          .result = { 9, 15 } },
        { .what = { "*2", "+1", "*3" },
          .micro = 2,
          .shape = { 1, { 4 } },
          .result = { 9, 15, 21, 27 } },
        { .what = { "*2" },
          .micro = 2,
          .shape = { 2, { 4, 2 } },
          .result = { 2, 4, 6, 8, 10, 12, 14, 16 } },
        { .what = { "*1", "*1", "*1" },
          .micro = 3,
          .shape = { 1, { 6 } },
          .result = { 1, 2, 3, 4, 5, 6 } },
        { .what = { "*0.5" },
          .micro = 8,
          .shape = { 1, { 16 } },
          .result = { 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7,
                      7.5, 8 } },
        { .what = { "*2", "+5" },
          .micro = 4,
          .shape = { 1, { 8 } },
          .result = { 7, 9, 11, 13, 15, 17, 19, 21 } },
        { .what = { "*2", "+1", "*3", "+10" },
          .micro = 4,
          .shape = { 1, { 4 } },
          .result = { 19, 25, 31, 37 } },
        /* It refuses a batch of 4 in 3 parts, and of 3 in 2. */
        { .what = { "*2", "+10" },
          .micro = 3,
          .shape = { 1, { 4 } },
          .result = { 12, 14, 16, 18 } },
        { .what = { "*2", "+10" },
          .micro = 2,
          .shape = { 1, { 3 } },
          .result = { 12, 14, 16 } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_everywhere(cases[i], "sim");
    run_everywhere(cases[9], "native");
}

/* It fails for anything but a single number; and two bytes for an element end
 * its process. Over TCP its stage 1 cannot reach stage 2. */
static void tensors_of_any_dims_and_types_go_through(void **state)
{
    static const oar_shape shapes[] = {
        { 1, { 5 } },
        { 2, { 3, 5 } },
        { 3, { 4, 2, 2 } },
        { 4, { 5, 1, 3, 1 } },
    };
    static const oar_dtype types[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };
    reference_pipe c = { .what = { "*2", "+1", "*2" }, .micro = 3 };

    for (int i = 0; i < 4; i++) {
        c.shape = shapes[i];
        c.dtype = types[i];
        run_everywhere(c, "sim");
    }
    run_everywhere(c, "tcp");
}

/* ---- what it refuses ----------------------------------------------------- */

/* Runs one stage on a batch of this shape in one process. */
static oar_status step_alone(oar_shape shape, int micro)
{
    static const float number[MOST] = { 1, 2, 3 };
    oar_tensor *x = oar_from_data(NULL, OAR_F32, shape, number);
    oar_stage stage = oar_stage_init();
    seen_outputs seen = { .count = 0 };
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_schedule *schedule;
    oar_pipeline *pipe;
    oar_group *self;
    oar_status status;

    stage.module = new_stage("*2", OAR_F32);
    OK(oar_group_create(NULL, 0, 1, NULL, &self));
    OK(oar_schedule_make(OAR_SCHEDULE_GPIPE, 1, micro, NULL, &schedule));
    OK(oar_pipeline_create(
        self, schedule, 1, &stage,
        OAR_OPTS(oar_pipeline_opts, .loss = see_outputs, .loss_arg = &seen),
        &pipe));
    batch.inputs = 1;
    batch.input = &x;
    status = oar_pipeline_step(pipe, &batch, NULL);
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    oar_module_release(stage.module);
    oar_group_destroy(self);
    oar_tensor_release(x);
    return status;
}

static void what_has_no_rows_for_all_is_refused(void **state)
{
    oar_schedule *schedule = NULL;

    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_GPIPE, 2, 0, NULL, &schedule), OAR_E_ARG,
        "0 micro-batches");
    assert_null(schedule);
    assert_fails_with(step_alone(OAR_SHAPE(2), 3), OAR_E_ARG,
                      "2 rows for 3 micro-batches");
    assert_fails_with(step_alone(OAR_SCALAR, 1), OAR_E_SHAPE,
                      "a single number");
    OK(step_alone(OAR_SHAPE(3), 1)); /* it wants two ranks */
}

static void a_pipeline_without_stages_is_refused(void **state)
{
    oar_schedule *schedule;
    oar_pipeline *pipe = NULL;
    oar_group *self;

    OK(oar_group_create(NULL, 0, 1, NULL, &self));
    OK(oar_schedule_make(OAR_SCHEDULE_1F1B, 1, 4, NULL, &schedule));
    assert_int_equal(oar_schedule_micro(schedule), 4);
    assert_int_equal(oar_pipeline_create(self, schedule, 0, NULL, NULL, &pipe),
                     OAR_E_ARG);
    assert_null(pipe);
    oar_schedule_release(schedule);
    oar_group_destroy(self);
}

/* ---- what a stage sees --------------------------------------------------- */

/* What ran on a rank, in order: like "0F0,0B0". */
typedef struct action_log {
    int count;
    oar_action action[ACTIONS];
    float value[MOST]; /* that came out of stage 0 */
    int values;
} action_log;

typedef struct logged_stage {
    action_log *log;
    int index, forwards, backwards;
    oar_hook *hook[2];
} logged_stage;

static void log_action(logged_stage *s, oar_act act, int micro)
{
    if (s->log->count < ACTIONS)
        s->log->action[s->log->count++] =
            (oar_action){ .stage = s->index, .act = act, .micro = micro };
}

static oar_tensor *log_result(oar_tape *tape, oar_module *module, oar_tensor *y,
                              void *arg)
{
    logged_stage *s = arg;

    if (!oar_module_training(module)) /* shapes are found out */
        return y;
    log_action(s, OAR_ACT_F, s->forwards++);
    if (s->index == 0 &&
        oar_tensor_read(y, OAR_F32, &s->log->value[s->log->values]) == OAR_OK)
        s->log->values += (int)oar_tensor_count(y);
    return y;
}

static oar_status log_backward(oar_tape *tape, oar_module *module, void *arg)
{
    logged_stage *s = arg;

    log_action(s, OAR_ACT_B, s->backwards++);
    return OAR_OK;
}

static oar_status make_logged(logged_stage *s, const char *what,
                              oar_stage *stage)
{
    *stage = oar_stage_init();
    stage->index = s->index;
    stage->module = new_stage(what, OAR_F32);
    CHECK_OK(oar_module_map(stage->module, OAR_AFTER_FORWARD, log_result, s,
                            &s->hook[0]));
    return oar_module_on(stage->module, OAR_BEFORE_BACKWARD, log_backward, s,
                         &s->hook[1]);
}

/* What ran is the row of the schedule. So every stage ran backward once for
 * each micro-batch: no tape reaches into the stage of another. */
static oar_status check_order(const oar_schedule *schedule, int rank,
                              const action_log *log)
{
    int at = 0;

    for (int64_t i = 0; i < oar_schedule_actions(schedule, rank); i++) {
        oar_action a;

        CHECK_OK(oar_schedule_action(schedule, rank, i, &a));
        if (a.act != OAR_ACT_F && a.act != OAR_ACT_B && a.act != OAR_ACT_I)
            continue;
        CHECK(at < log->count && log->action[at].stage == a.stage &&
              log->action[at].micro == a.micro &&
              (log->action[at].act == OAR_ACT_F) == (a.act == OAR_ACT_F));
        at++;
    }
    CHECK(at == log->count);
    return OAR_OK;
}

static oar_status run_logged(oar_group *g, void *arg)
{
    const reference_pipe *c = arg;
    int rank = oar_group_rank(g), stages = 0;
    action_log log = { .count = 0 };
    seen_outputs seen = { .count = 0 };
    oar_tensor *x = new_input(c);
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    logged_stage logged[STAGES];
    oar_stage stage[STAGES];
    oar_schedule *schedule;
    oar_pipeline *pipe;

    CHECK_OK(make_schedule(c, &schedule));
    for (int s = 0; s < c->stages; s++) {
        if (oar_schedule_rank_of(schedule, s) != rank)
            continue;
        logged[stages] = (logged_stage){ .log = &log, .index = s };
        CHECK_OK(make_logged(&logged[stages], c->what[s], &stage[stages]));
        stages++;
    }
    CHECK_OK(oar_pipeline_create(
        g, schedule, stages, stage,
        OAR_OPTS(oar_pipeline_opts, .loss = see_outputs, .loss_arg = &seen),
        &pipe));
    batch.inputs = oar_schedule_rank_of(schedule, 0) == rank;
    batch.input = &x;
    CHECK_OK(oar_pipeline_step(pipe, &batch, NULL));
    CHECK_OK(check_order(schedule, rank, &log));
    for (int i = 0; batch.inputs && i < 4; i++)
        CHECK(log.value[i] == 2 * (float)(i + 1)); /* 2 4 / 6 8 */
    oar_pipeline_destroy(pipe);
    oar_schedule_release(schedule);
    for (int i = 0; i < stages; i++) {
        oar_hook_remove(logged[i].hook[0]);
        oar_hook_remove(logged[i].hook[1]);
        oar_module_release(stage[i].module);
    }
    oar_tensor_release(x);
    return OAR_OK;
}

static void actions_run_in_the_order_of_the_schedule(void **state)
{
    reference_pipe c = { .what = { "*2", "+10", "*1", "*1" },
                         .micro = 4,
                         .shape = { 1, { 4 } } };

    for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++)
        for (c.ranks = 1; c.ranks <= 2; c.ranks++)
            for (c.stages = c.ranks; c.stages <= 4; c.stages += c.ranks) {
                c.kind = (oar_schedule_kind)kind;
                if (kind_fits(c.kind, c.stages / c.ranks, c.ranks, c.micro))
                    assert_int_equal(
                        ranks_run("sim", c.ranks, NULL, run_logged, &c),
                        OAR_OK);
            }
}

/* ---- small things -------------------------------------------------------- */

static void stages_have_modes_and_parameters(void **state)
{
    oar_module *stage[2] = { new_stage("*2", OAR_F32),
                             new_stage("+10", OAR_F32) };
    int params = 0;

    for (int i = 0; i < 2; i++) {
        params += oar_module_params(stage[i]);
        oar_module_train(stage[i], 0);
        assert_false(oar_module_training(stage[i]));
        oar_module_train(stage[i], 1);
        assert_true(oar_module_training(stage[i]));
        oar_module_release(stage[i]);
    }
    assert_int_equal(params, 2);
    assert_string_equal(oar_schedule_kind_name(OAR_SCHEDULE_GPIPE), "gpipe");
    assert_string_equal(oar_schedule_kind_name(OAR_SCHEDULE_INTERLEAVED),
                        "interleaved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_numbers_come_out),
        cmocka_unit_test(tensors_of_any_dims_and_types_go_through),
        cmocka_unit_test(what_has_no_rows_for_all_is_refused),
        cmocka_unit_test(a_pipeline_without_stages_is_refused),
        cmocka_unit_test(actions_run_in_the_order_of_the_schedule),
        cmocka_unit_test(stages_have_modes_and_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
