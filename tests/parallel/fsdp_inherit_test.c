/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks die, and the others take over their shards: what they train from then
 * on is what one process trains with the same batches, and, to the bit, what
 * the smaller group trains from a checkpoint. */
#include "support/leak_check.h"
#include "support/test_job.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { RANKS = 4, STEPS = 5, VOCABULARY = 19, CONTEXT = 7, ROWS = 2 };
enum { DEATHS = 2, NAME = 256, KILLED = 128 + SIGKILL };

/* Where a rank is killed in a training step. */
typedef enum killed_at {
    BEFORE_FORWARD,
    BETWEEN_UNITS,
    BEFORE_BACKWARD,
    IN_BACKWARD,
    IN_REDUCTION,
    AFTER_REDUCTION,
    BEFORE_STEP,
    BEFORE_ALL_STEP, /* in the step's hooks, when no rank has begun it */
    AFTER_STEP,
    MOMENTS,
    INSIDE_STEP = MOMENTS, /* all ranks have begun it */
    INSIDE_CHUNK,          /* of the second parameter, the last chunk */
    END_OF_STEP
} killed_at;

typedef enum step_rule {
    ADAMW,
    SGD,
    MOMENTUM,
    AMSGRAD,
    TWO_GROUPS,
    MASTERS
} step_rule;

typedef struct killed_rank {
    int rank; /* of the first group; -1: none */
    int step;
    killed_at when;
} killed_rank;

typedef struct inherit_case {
    killed_rank death[DEATHS];
    step_rule rule;
    oar_zero_stage stage;
    int mixed, freezes, no_sync;
    int joins; /* in odd steps rank 0 has no input */
    int wide;  /* parameters of several chunks */
    int late;  /* rank 0 does not get on once the step has begun */
    int ranks;
    shared_flag over;
} inherit_case;

/* What a rank trains, and what it has noted. */
typedef struct survivor {
    const inherit_case *c;
    int world_rank, step;
    oar_group *group;
    oar_module *model;
    oar_optim *optim;
    oar_tape *tape;
    double loss[STEPS];
    int rank[STEPS], ranks[STEPS]; /* in the group that took the step */
} survivor;

static void reach(const survivor *t, killed_at now)
{
    for (int i = 0; i < DEATHS; i++) {
        const killed_rank *d = &t->c->death[i];
        if (d->rank == t->world_rank && d->step == t->step && d->when == now)
            raise(SIGKILL);
    }
}

#define DEFINE_MODULE_HOOK(name, moment)                                  \
    static oar_status name(oar_tape *tape, oar_module *module, void *arg) \
    {                                                                     \
        reach(arg, moment);                                               \
        return OAR_OK;                                                    \
    }
DEFINE_MODULE_HOOK(reach_between_units, BETWEEN_UNITS)
DEFINE_MODULE_HOOK(reach_in_backward, IN_BACKWARD)

static oar_status reach_reduction(void *arg)
{
    reach(arg, IN_REDUCTION);
    return OAR_OK;
}

static oar_status reach_all_step(oar_optim *optim, void *arg)
{
    reach(arg, BEFORE_ALL_STEP);
    return OAR_OK;
}

static oar_status reach_inside_step(oar_optim *optim, void *arg)
{
    const survivor *t = arg;

    reach(t, INSIDE_STEP);
    return t->c->late && t->world_rank == 0 && t->step == 2 ? OAR_E_PEER
                                                            : OAR_OK;
}

/* Leaves a chunk as nobody could compute it. */
static void reach_inside_chunk(oar_optim *optim, int index, int64_t first,
                               int64_t count, void *arg)
{
    const survivor *t = arg;
    const killed_rank *d = t->c->death;

    if (d->rank != t->world_rank || d->step != t->step ||
        d->when != INSIDE_CHUNK || index != oar_optim_params(optim) / 2)
        return;
    if (first + count < oar_tensor_count(oar_optim_param(optim, index)))
        return;
    for (int slot = -1; slot < 3; slot++) {
        oar_tensor *to = slot < 0 ? oar_optim_param(optim, index)
                                  : oar_optim_state(optim, index, slot);
        if (to != NULL)
            memset((double *)oar_tensor_data(to) + first, 0xff,
                   (size_t)(count + 1) / 2 * sizeof(double));
    }
    raise(SIGKILL);
}

static void reach_end_of_step(oar_optim *optim, void *arg)
{
    reach(arg, END_OF_STEP);
}

/* ---- the model ----------------------------------------------------------- */

static oar_status make_gpt(const inherit_case *c, oar_module **gpt)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = 20;
    o.layers = 2;
    o.heads = 2;
    o.tied = 1;
    o.hidden = c->wide ? 900 : 0;
    o.seed = 5;
    o.dtype = c->mixed ? OAR_F32 : c->rule == MASTERS ? OAR_BF16 : OAR_F64;
    CHECK_OK(oar_gpt_create(&o, gpt));
    if (c->freezes)
        CHECK_OK(oar_module_freeze(
            oar_module_find_module(*gpt, "blocks.0.attention"), 1));
    return OAR_OK;
}

/* Two groups: biases and norms are in the second. */
static int in_second_group(const inherit_case *c, const oar_module *model,
                           int index)
{
    return c->rule == TWO_GROUPS &&
           oar_tensor_shape(oar_module_param(model, index)).ndim == 1;
}

/* Parameters in the order of their groups. */
typedef struct param_list {
    oar_tensor *param[64];
    int count, first; /* first: in the first group */
} param_list;

static oar_status make_optim(const inherit_case *c, param_list *l,
                             oar_optim **optim)
{
    if (c->rule == SGD || c->rule == MOMENTUM)
        return oar_sgd_create_over(
            l->count, l->param,
            OAR_OPTS(oar_sgd_opts, .lr = 0.1,
                     .momentum = c->rule == MOMENTUM ? 0.9 : 0),
            optim);
    CHECK_OK(oar_adamw_create_over(
        l->first, l->param,
        OAR_OPTS(oar_adam_opts, .lr = 1e-2, .amsgrad = c->rule == AMSGRAD,
                 .master_weights = c->rule == MASTERS),
        optim));
    return oar_optim_add_group(*optim, l->count - l->first, l->param + l->first,
                               0.5, 0);
}

static void list_shards(const survivor *t, param_list *l)
{
    const oar_shards *shards = oar_fsdp_shards(t->model);
    oar_shard shard = oar_shard_init();

    for (int second = 0; second < 2; second++)
        for (int i = 0; i < oar_shards_count(shards); i++) {
            int index;

            if (oar_shards_shard(shards, i, &shard) != OAR_OK ||
                shard.grad.data == NULL)
                continue;
            index = oar_fsdp_param_index(t->model, shard.array);
            if (in_second_group(t->c, t->model, index) != second)
                continue;
            l->param[l->count++] = shard.tensor;
            l->first += !second;
        }
}

static void list_params(const inherit_case *c, const oar_module *gpt,
                        param_list *l)
{
    for (int second = 0; second < 2; second++)
        for (int i = 0; i < oar_module_params(gpt); i++) {
            oar_tensor *p = oar_module_param(gpt, i);

            if (!oar_tensor_requires_grad(p) ||
                in_second_group(c, gpt, i) != second)
                continue;
            l->param[l->count++] = p;
            l->first += !second;
        }
}

static oar_status wrap(survivor *t)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    param_list list = { .count = 0 };

    CHECK_OK(make_gpt(t->c, &t->model));
    o.units = (const char *const[]){ "blocks.*", "blocks.*.up", NULL };
    o.least_bytes = 1;
    o.canonical = 1;
    o.weighted = t->c->joins;
    o.stage = t->c->stage;
    o.mixed = t->c->mixed;
    o.param_dtype = OAR_BF16;
    CHECK_OK(oar_fsdp_wrap(t->model, t->group, &o, &t->model));
    CHECK(oar_shards_hold(oar_fsdp_shards(t->model)) == OAR_HOLD_MAPPED);
    list_shards(t, &list);
    return make_optim(t->c, &list, &t->optim);
}

/* ---- a step -------------------------------------------------------------- */

static oar_tensor *find_loss(oar_tape *tape, oar_module *model, int step,
                             int rank, int ranks)
{
    uint64_t seed = (uint64_t)(1000 * step + 100 * ranks + rank);
    oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), seed,
                                0, VOCABULARY);
    oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                seed + 50, 0, VOCABULARY);
    oar_tensor *z = oar_forward(tape, model, x);

    return z != NULL ? oar_cross_entropy(tape, z, y) : NULL;
}

static int has_input(const inherit_case *c, int step, int rank)
{
    return !c->joins || rank != 0 || step % 2 == 0;
}

/* A pass whose gradients the next one adds to. */
static oar_status accumulate(survivor *t)
{
    oar_tensor *loss;
    oar_status status = oar_fsdp_no_sync_begin(t->model);

    if (status != OAR_OK)
        return status;
    loss = find_loss(t->tape, t->model, t->step + STEPS,
                     oar_group_rank(t->group), oar_group_size(t->group));
    status =
        loss != NULL ? oar_backward(t->tape, loss) : oar_last_error()->status;
    oar_tape_reset(t->tape);
    return status == OAR_OK ? oar_fsdp_no_sync_end(t->model) : status;
}

static oar_status run_pass(survivor *t)
{
    int rank = oar_group_rank(t->group), ranks = oar_group_size(t->group);
    oar_tensor *loss;
    oar_status status;

    oar_tape_defer(t->tape, reach_reduction, t);
    loss = find_loss(t->tape, t->model, t->step, rank, ranks);
    if (loss == NULL)
        return oar_last_error()->status;
    reach(t, BEFORE_BACKWARD);
    status = oar_backward(t->tape, loss);
    if (status != OAR_OK)
        return status;
    reach(t, AFTER_REDUCTION);
    return oar_tensor_item(loss, &t->loss[t->step]);
}

static oar_status train_step(survivor *t)
{
    int has = has_input(t->c, t->step, oar_group_rank(t->group)), active;
    oar_status status;

    reach(t, BEFORE_FORWARD);
    status = t->c->no_sync ? accumulate(t) : OAR_OK;
    if (t->c->joins)
        status = oar_fsdp_join(t->model, has, &active);
    t->rank[t->step] = oar_group_rank(t->group);
    t->ranks[t->step] = oar_group_size(t->group);
    if (status == OAR_OK && has)
        status = run_pass(t);
    oar_tape_reset(t->tape);
    if (status == OAR_OK)
        status = oar_fsdp_clip_grad_norm(t->model, 1, NULL);
    reach(t, BEFORE_STEP);
    if (status == OAR_OK)
        status = oar_optim_step(t->optim);
    if (status != OAR_OK)
        return status;
    oar_optim_zero_grad(t->optim);
    reach(t, AFTER_STEP);
    t->step++;
    return OAR_OK;
}

/* ---- what one process trains --------------------------------------------- */

static oar_status step_plainly(const survivor *t, oar_module *gpt,
                               oar_optim *optim, oar_tape *tape, int step)
{
    int ranks = t->ranks[step], count = oar_optim_params(optim), inputs = 0;
    oar_tensor *param[64];
    double value = 0;

    for (int r = 0; r < ranks; r++) {
        int has = has_input(t->c, step, r);

        inputs += has;
        for (int pass = t->c->no_sync ? 0 : 1; has && pass < 2; pass++) {
            oar_tensor *loss =
                find_loss(tape, gpt, pass == 0 ? step + STEPS : step, r, ranks);

            CHECK_OK(oar_backward(tape, loss));
            CHECK_OK(oar_tensor_item(loss, &value));
            if (r == t->rank[step] && pass == 1)
                CHECK(fabs(value - t->loss[step]) <= 1e-11);
            oar_tape_reset(tape);
        }
    }
    for (int i = 0; i < count; i++)
        param[i] = oar_optim_param(optim, i);
    CHECK_OK(oar_grad_scale(count, param, 1.0 / inputs));
    CHECK_OK(oar_clip_grad_norm(count, param, 1, NULL));
    CHECK_OK(oar_optim_step(optim));
    oar_optim_zero_grad(optim);
    return OAR_OK;
}

/* Compares every loss of this rank, and every parameter at the end. */
static oar_status as_one_process(const survivor *t)
{
    static double mine[100000];
    param_list list = { .count = 0 };
    oar_module *gpt;
    oar_optim *optim;
    oar_tape *tape;
    char name[NAME];

    CHECK_OK(make_gpt(t->c, &gpt));
    list_params(t->c, gpt, &list);
    CHECK_OK(make_optim(t->c, &list, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++)
        CHECK_OK(step_plainly(t, gpt, optim, tape, step));
    for (int i = 0; i < oar_module_params(gpt); i++) {
        const double *p = oar_tensor_const_data(oar_module_param(gpt, i));

        CHECK_OK(oar_module_param_name(gpt, i, name, sizeof name));
        CHECK_OK(oar_fsdp_read_param(t->model, name, OAR_F64, mine));
        for (int64_t k = 0; k < oar_tensor_count(oar_module_param(gpt, i)); k++)
            CHECK(fabs(p[k] - mine[k]) <= 1e-11);
    }
    oar_optim_destroy(optim);
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    return OAR_OK;
}

/* ---- ranks that die ------------------------------------------------------ */

static oar_status begin(survivor *t)
{
    oar_module *inner;
    oar_hook *hook;

    CHECK_OK(oar_tape_create(&t->tape));
    CHECK_OK(wrap(t));
    inner = oar_module_child(t->model, 0);
    CHECK_OK(oar_module_on(oar_module_find_module(inner, "blocks.1"),
                           OAR_BEFORE_FORWARD, reach_between_units, t, &hook));
    CHECK_OK(oar_module_on(oar_module_find_module(inner, "blocks.0"),
                           OAR_BEFORE_BACKWARD, reach_in_backward, t, &hook));
    CHECK_OK(oar_optim_on_step(t->optim, reach_all_step, t, &hook));
    CHECK_OK(oar_optim_after_step(t->optim, reach_end_of_step, t, &hook));
    CHECK_OK(oar_fsdp_keep_state(t->model, t->optim));
    CHECK_OK(oar_optim_on_move(t->optim, reach_inside_chunk, t, &hook));
    return oar_optim_on_step(t->optim, reach_inside_step, t, &hook);
}

static void end(survivor *t)
{
    oar_optim_destroy(t->optim);
    oar_tape_destroy(t->tape);
    oar_module_release(t->model);
}

static oar_status shrink(const survivor *t, oar_group **smaller)
{
    return oar_group_shrink(t->group, OAR_OPTS(oar_shrink_opts, .any = 1),
                            smaller);
}

/* Goes on with those that are left. */
static oar_status survive(survivor *t)
{
    oar_group *smaller;
    oar_status status;

    CHECK_OK(shrink(t, &smaller));
    status = oar_fsdp_regroup(t->model, smaller, t->optim);
    oar_group_destroy(t->group);
    t->group = smaller;
    t->step = (int)oar_optim_steps(t->optim);
    return status;
}

static oar_status train(survivor *t)
{
    while (t->step < STEPS) {
        oar_status status = train_step(t);

        if (status == OAR_E_PEER || status == OAR_E_ABORTED)
            status = survive(t);
        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

static int train_on(test_job *c, int rank, void *arg)
{
    inherit_case *f = arg;
    survivor t = { .c = f, .world_rank = rank };
    int left = c->ranks;

    for (int i = 0; i < DEATHS; i++)
        left -= f->death[i].rank >= 0;
    RANK_OK(test_job_join(c, rank, NULL, &t.group));
    RANK_OK(begin(&t));
    RANK_OK(train(&t));
    RANK_CHECK(oar_group_size(t.group) == left);
    RANK_OK(as_one_process(&t));
    shared_flag_raise(&f->over); /* no rank leaves before all are here */
    RANK_CHECK(shared_flag_await(&f->over, (uint32_t)left, TEST_JOB_LIMIT_MS));
    end(&t);
    oar_group_destroy(t.group);
    return 0;
}

static const killed_rank nobody = { .rank = -1 };

static void run_with(test_job_fn fn, inherit_case this)
{
    inherit_case *f = shared_page(sizeof *f);
    test_job job;

    *f = this;
    test_job_start(&job, f->ranks != 0 ? f->ranks : RANKS, fn, f,
                   "rank %d at %d of step %d, rank %d at %d; rule %d",
                   f->death[0].rank, (int)f->death[0].when, f->death[0].step,
                   f->death[1].rank, (int)f->death[1].when, (int)f->rule);
    for (int r = 0; r < job.ranks; r++)
        test_job_expect(&job, r,
                        r == f->death[0].rank || r == f->death[1].rank ? KILLED
                                                                       : 0);
    test_job_end(&job);
    shared_page_free(f, sizeof *f);
}

static void run(inherit_case this)
{
    run_with(train_on, this);
}

static void survivors_go_on_whenever_a_rank_dies(void **state)
{
    int all = getenv("OARSONG_TEST_ALL") != NULL;

    for (int when = 0; when < MOMENTS; when++)
        for (int r = all ? 0 : when % RANKS; r < RANKS; r += all ? 1 : RANKS)
            run((inherit_case){
                .death = { { r, 2, (killed_at)when }, nobody } });
}

static void survivors_go_on_twice(void **state)
{
    run((inherit_case){
        .death = { { 3, 1, IN_BACKWARD }, { 0, 3, BEFORE_STEP } } });
    run((inherit_case){
        .death = { { 0, 2, AFTER_STEP }, { 2, 3, BEFORE_FORWARD } } });
}

static void uneven_inputs_go_on(void **state)
{
    run((inherit_case){
        .joins = 1, .ranks = 3, .death = { { 1, 3, IN_BACKWARD }, nobody } });
    run((inherit_case){
        .joins = 1, .ranks = 3, .death = { { 0, 2, AFTER_STEP }, nobody } });
}

static void one_rank_goes_on_alone(void **state)
{
    run((inherit_case){ .ranks = 2,
                        .death = { { 0, 3, IN_REDUCTION }, nobody } });
}

static void every_rule_goes_on(void **state)
{
    for (int r = SGD; r <= TWO_GROUPS; r++)
        run((inherit_case){ .rule = (step_rule)r,
                            .ranks = 3,
                            .freezes = r == MOMENTUM,
                            .stage =
                                r == SGD ? OAR_ZERO_STAGE_1 : OAR_ZERO_STAGE_2,
                            .no_sync = r == AMSGRAD,
                            .death = { { r % 3, 2, IN_BACKWARD }, nobody } });
}

/* ---- a smaller group that loads a checkpoint ----------------------------- */

static oar_status use_checkpoint(const survivor *t, const char *folder,
                                 int loads)
{
    oar_checkpoint *generations;
    oar_state *state;

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_module(state, t->model, NULL));
    CHECK_OK(oar_state_add_optim(state, t->optim, t->model, NULL));
    CHECK_OK(oar_checkpoint_open(t->group, folder, NULL, &generations));
    if (loads)
        CHECK_OK(oar_checkpoint_load(generations, state, 2, NULL));
    else
        CHECK_OK(oar_checkpoint_save(generations, state, 2, NULL));
    oar_checkpoint_close(generations);
    oar_state_destroy(state);
    return OAR_OK;
}

static oar_status same_params(const survivor *a, const survivor *b)
{
    static double x[100000], y[100000];
    const oar_module *inner = oar_module_child(a->model, 0);
    char name[NAME];

    for (int i = 0; i < oar_module_params(inner); i++) {
        size_t count = (size_t)oar_tensor_count(oar_module_param(inner, i));

        CHECK_OK(oar_module_param_name(inner, i, name, sizeof name));
        CHECK_OK(oar_fsdp_read_param(a->model, name, OAR_F64, x));
        CHECK_OK(oar_fsdp_read_param(b->model, name, OAR_F64, y));
        CHECK(memcmp(x, y, count * sizeof *x) == 0);
    }
    return OAR_OK;
}

/* Trains both to the end, in turns; every bit is the same. */
static oar_status train_alike(survivor *t, survivor *other)
{
    while (t->step < STEPS) {
        int step = t->step;

        CHECK_OK(train_step(t));
        CHECK_OK(train_step(other));
        CHECK(t->loss[step] == other->loss[step]);
        CHECK_OK(same_params(t, other));
    }
    return OAR_OK;
}

static int train_beside_checkpoint(test_job *c, int rank, void *arg)
{
    inherit_case *f = arg;
    survivor t = { .c = f, .world_rank = rank }, other;
    char folder[200];

    snprintf(folder, sizeof folder, "%s/run", c->folder);
    RANK_OK(test_job_join(c, rank, NULL, &t.group));
    RANK_OK(begin(&t));
    for (int i = 0; i < 2; i++)
        RANK_OK(train_step(&t));
    RANK_OK(use_checkpoint(&t, folder, 0));
    RANK_CHECK(train_step(&t) != OAR_OK);
    RANK_OK(survive(&t));
    other = (survivor){ .c = f, .world_rank = -2, .step = t.step };
    RANK_CHECK(other.step == 2);
    RANK_OK(oar_group_dup(t.group, &other.group));
    RANK_OK(oar_tape_create(&other.tape));
    RANK_OK(wrap(&other));
    RANK_OK(use_checkpoint(&other, folder, 1));
    RANK_OK(train_alike(&t, &other));
    RANK_OK(oar_barrier(t.group, NULL, NULL));
    if (oar_group_rank(t.group) == 0)
        RANK_ZERO(folder_remove(folder));
    end(&other);
    end(&t);
    oar_group_destroy(other.group);
    oar_group_destroy(t.group);
    return 0;
}

static void survivors_train_what_a_checkpoint_would(void **state)
{
    run_with(train_beside_checkpoint,
             (inherit_case){ .death = { { 2, 2, BEFORE_STEP }, nobody } });
    run_with(train_beside_checkpoint,
             (inherit_case){ .mixed = 1,
                             .freezes = 1,
                             .death = { { 0, 2, IN_BACKWARD }, nobody } });
    run_with(train_beside_checkpoint,
             (inherit_case){ .rule = MASTERS,
                             .ranks = 3,
                             .death = { { 1, 2, IN_REDUCTION }, nobody } });
}

/* ---- a step that is not finished ----------------------------------------- */

/* The step is finished by the others, whatever is left of it. */
static void survivors_finish_a_step(void **state)
{
    for (int when = INSIDE_STEP; when <= END_OF_STEP; when++)
        for (int r = 0; r < 3; r++)
            run((inherit_case){
                .ranks = 3,
                .wide = 1,
                .rule = r == 0   ? AMSGRAD
                        : r == 1 ? ADAMW
                                 : TWO_GROUPS,
                .freezes = r == 1,
                .death = { { r, 2, (killed_at)when }, { -1 } } });
}

/* A rank that has not moved anything when the others have is brought up. */
static void a_late_rank_catches_up(void **state)
{
    run((inherit_case){
        .ranks = 3, .late = 1, .death = { { 1, 2, AFTER_STEP }, nobody } });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_go_on_whenever_a_rank_dies),
        cmocka_unit_test(survivors_go_on_twice),
        cmocka_unit_test(uneven_inputs_go_on),
        cmocka_unit_test(one_rank_goes_on_alone),
        cmocka_unit_test(every_rule_goes_on),
        cmocka_unit_test(survivors_train_what_a_checkpoint_would),
        cmocka_unit_test(survivors_finish_a_step),
        cmocka_unit_test(a_late_rank_catches_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
