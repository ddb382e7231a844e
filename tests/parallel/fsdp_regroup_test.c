/* SPDX-License-Identifier: Apache-2.0 */
/* What oar_fsdp_keep_state and oar_fsdp_regroup refuse; and regroups in which
 * another rank dies, or memory runs out. */
#include "support/leak_check.h"
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "comm/group/group.h"

enum { RANKS = 4, LAYERS = 3, WIDTH = 37, STEPS = 3 };
enum { LOST = 1, SECOND = 2, KILLED = 128 + SIGKILL };

/* A model of some layers, and what trains it. */
typedef struct spread_layers {
    oar_group *group;
    oar_module *model;
    oar_optim *adam;
    oar_tape *tape;
} spread_layers;

static oar_status make_layers(spread_layers *t, const oar_fsdp_opts *opts)
{
    oar_module *layer[LAYERS] = { NULL };
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_tensor *const *param;
    int count;

    if (opts != NULL)
        o = *opts;
    o.least_bytes = 1;
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(oar_linear_create(WIDTH, WIDTH, (uint64_t)i, NULL, &layer[i]));
    CHECK_OK(oar_sequential_create(LAYERS, layer, &t->model));
    CHECK_OK(oar_fsdp_wrap(t->model, t->group, &o, &t->model));
    param = oar_fsdp_params(t->model, &count);
    CHECK_OK(oar_adamw_create_over(count, param, NULL, &t->adam));
    return oar_tape_create(&t->tape);
}

static void drop_layers(spread_layers *t)
{
    oar_optim_destroy(t->adam);
    oar_tape_destroy(t->tape);
    oar_module_release(t->model);
}

static oar_status run_pass(spread_layers *t)
{
    uint64_t seed = (uint64_t)oar_group_rank(t->group);
    oar_tensor *x =
        oar_uniform(t->tape, OAR_F32, OAR_SHAPE(2, WIDTH), seed, -1, 1);
    oar_tensor *y = oar_forward(t->tape, t->model, x);
    oar_tensor *loss =
        y != NULL ? oar_mean(t->tape, oar_mul(t->tape, y, y)) : NULL;
    oar_status status =
        loss != NULL ? oar_backward(t->tape, loss) : oar_last_error()->status;

    oar_tape_reset(t->tape);
    return status;
}

static oar_status train_step(spread_layers *t)
{
    oar_status status = run_pass(t);

    if (status == OAR_OK)
        status = oar_optim_step(t->adam);
    oar_optim_zero_grad(t->adam);
    return status;
}

static int says(const char *text)
{
    return strstr(oar_last_error_text(), text) != NULL;
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status refuse_keeping(oar_group *g, void *arg)
{
    oar_fsdp_opts own = oar_fsdp_opts_init();
    spread_layers a = { .group = g }, b = { .group = g };
    oar_optim *plain;
    oar_tensor *loose = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));

    own.hold = OAR_HOLD_OWN;
    CHECK_OK(make_layers(&a, NULL));
    CHECK_OK(make_layers(&b, &own));
    CHECK_OK(oar_tensor_require_grad(loose, 1));
    CHECK_OK(oar_sgd_create_over(1, &loose, NULL, &plain));
    CHECK(oar_fsdp_keep_state(NULL, a.adam) == OAR_E_ARG);
    CHECK(oar_fsdp_keep_state(a.model, NULL) == OAR_E_ARG);
    CHECK(oar_fsdp_keep_state(a.model, plain) == OAR_E_ARG);
    CHECK(says("parameter 0 of the optimizer is no shard"));
    CHECK(oar_fsdp_keep_state(b.model, b.adam) == OAR_E_UNSUPPORTED);
    CHECK(says("not mapped"));
    CHECK(oar_fsdp_regroup(b.model, g, b.adam) == OAR_E_DATA);
    CHECK(says("oar_fsdp_keep_state was not called"));
    CHECK_OK(oar_fsdp_keep_state(a.model, a.adam));
    CHECK(oar_fsdp_keep_state(a.model, a.adam) == OAR_E_STATE);
    CHECK(says("kept already"));
    CHECK(oar_fsdp_regroup(a.model, NULL, a.adam) == OAR_E_ARG);
    CHECK(oar_fsdp_regroup(a.model, g, NULL) == OAR_E_ARG);
    CHECK(oar_fsdp_regroup(a.model, g, plain) == OAR_E_ARG);
    CHECK(says("optimizer is another"));
    CHECK_OK(train_step(&a));
    oar_optim_destroy(plain);
    oar_tensor_release(loose);
    drop_layers(&a);
    drop_layers(&b);
    return OAR_OK;
}

static void what_cannot_be_kept_is_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, refuse_keeping, NULL), OAR_OK);
}

static oar_status refuse_replicas(oar_group *g, void *arg)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    spread_layers t = { 0 };
    int rank = oar_group_rank(g);

    CHECK_OK(oar_group_split(g, rank / 2, rank, &t.group));
    CHECK_OK(oar_group_split(g, rank % 2, rank, &o.replicas));
    CHECK_OK(make_layers(&t, &o));
    CHECK(oar_fsdp_keep_state(t.model, t.adam) == OAR_E_UNSUPPORTED);
    CHECK(says("replicas"));
    drop_layers(&t);
    oar_group_destroy(t.group);
    oar_group_destroy(o.replicas);
    return OAR_OK;
}

static void replicas_are_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, refuse_replicas, NULL), OAR_OK);
}

/* Of the ranks of g, all but the last are in the module's group. */
static oar_status refuse_groups(oar_group *g, void *arg)
{
    spread_layers t = { 0 };
    oar_group *same, *half, *pair = NULL;
    int rank = oar_group_rank(g), ranks = oar_group_size(g);

    CHECK_OK(oar_group_split(g, rank < ranks - 1 ? 0 : -1, rank, &t.group));
    CHECK_OK(oar_group_split(g, rank >= ranks - 2 ? 0 : -1, rank, &pair));
    if (t.group == NULL) {
        oar_group_destroy(pair);
        return OAR_OK;
    }
    CHECK_OK(make_layers(&t, NULL));
    CHECK_OK(oar_fsdp_keep_state(t.model, t.adam));
    CHECK_OK(train_step(&t));
    CHECK(oar_fsdp_regroup(t.model, t.group, t.adam) == OAR_E_STATE);
    CHECK(says("the group that the module has"));
    CHECK_OK(oar_group_split(t.group, rank == 0 ? 0 : 1, rank, &half));
    CHECK(oar_fsdp_regroup(t.model, half, t.adam) == OAR_E_STATE);
    CHECK(says("has lost nobody"));
    if (pair != NULL) {
        CHECK(oar_fsdp_regroup(t.model, pair, t.adam) == OAR_E_ARG);
        CHECK(says("is not in"));
    }
    CHECK_OK(train_step(&t)); /* nothing has changed */
    CHECK_OK(oar_group_dup(t.group, &same));
    CHECK_OK(oar_fsdp_regroup(t.model, same, t.adam)); /* all are there */
    CHECK(oar_fsdp_regroup(t.model, same, t.adam) == OAR_E_STATE);
    CHECK_OK(train_step(&t));
    CHECK(oar_optim_steps(t.adam) == 3);
    drop_layers(&t);
    oar_group_destroy(half);
    oar_group_destroy(same);
    oar_group_destroy(pair);
    oar_group_destroy(t.group);
    return OAR_OK;
}

static void other_groups_are_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, refuse_groups, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 4, NULL, refuse_groups, NULL), OAR_OK);
}

/* ---- deaths -------------------------------------------------------------- */

typedef struct regroup_case {
    int second; /* another rank dies in the regroup */
    shared_flag over;
} regroup_case;

static int window_steps; /* in the making of windows, in this process */

static void die_in_window(const oar_group *group, int step)
{
    if (++window_steps == 3)
        raise(SIGKILL);
}

static oar_status shrink(oar_group *group, oar_group **smaller)
{
    return oar_group_shrink(group, OAR_OPTS(oar_shrink_opts, .any = 1),
                            smaller);
}

/* Regroups; if another rank dies in it, again without that one. */
static oar_status survive(spread_layers *t, const regroup_case *f)
{
    oar_group *smaller, *smallest;
    oar_status status;

    CHECK_OK(shrink(t->group, &smaller));
    if (f->second &&
        oar_group_to_world(t->group, oar_group_rank(t->group)) == SECOND)
        oari_window_hook = die_in_window;
    status = oar_fsdp_regroup(t->model, smaller, t->adam);
    if (f->second) {
        CHECK(status == OAR_E_PEER || status == OAR_E_ABORTED);
        CHECK_OK(shrink(smaller, &smallest));
        oar_group_destroy(smaller);
        smaller = smallest;
        status = oar_fsdp_regroup(t->model, smaller, t->adam);
    }
    oar_group_destroy(t->group);
    t->group = smaller;
    return status;
}

static int lose_rank(test_job *c, int rank, void *arg)
{
    regroup_case *f = arg;
    spread_layers t = { 0 };
    int left = RANKS - 1 - (f->second != 0);
    oar_tensor *old;
    float number;

    RANK_OK(test_job_join(c, rank, NULL, &t.group));
    RANK_OK(make_layers(&t, NULL));
    RANK_OK(oar_fsdp_keep_state(t.model, t.adam));
    RANK_OK(train_step(&t));
    old = oar_tensor_retain(oar_fsdp_params(t.model, NULL)[0]);
    if (rank == LOST)
        raise(SIGKILL);
    RANK_CHECK(train_step(&t) != OAR_OK);
    RANK_OK(survive(&t, f));
    RANK_CHECK(oar_group_size(t.group) == left);
    RANK_CHECK(oar_tensor_read(old, OAR_F32, &number) == OAR_E_STATE);
    RANK_CHECK(says("before oar_fsdp_regroup"));
    oar_tensor_release(old);
    for (int i = 0; i < STEPS; i++)
        RANK_OK(train_step(&t));
    RANK_CHECK(oar_optim_steps(t.adam) == 1 + STEPS);
    shared_flag_raise(&f->over); /* no rank leaves before all are here */
    RANK_CHECK(shared_flag_await(&f->over, (uint32_t)left, TEST_JOB_LIMIT_MS));
    drop_layers(&t);
    oar_group_destroy(t.group);
    return 0;
}

static void run_case(int ranks, regroup_case this, test_job_fn fn)
{
    regroup_case *f = shared_page(sizeof *f);
    test_job job;

    *f = this;
    test_job_start(&job, ranks, fn, f, "second %d", f->second);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&job, r,
                        r == LOST || (f->second && r == SECOND) ? KILLED : 0);
    test_job_end(&job);
    shared_page_free(f, sizeof *f);
}

static void tensors_of_old_shards_say_so(void **state)
{
    run_case(RANKS, (regroup_case){ 0 }, lose_rank);
}

static void a_death_in_a_regroup_is_survived(void **state)
{
    run_case(RANKS, (regroup_case){ .second = 1 }, lose_rank);
}

/* Some ranks have written their part of a parameter, others perhaps not. */
static int write_and_lose(test_job *c, int rank, void *arg)
{
    static float numbers[WIDTH * WIDTH];
    spread_layers t = { 0 };
    oar_group *smaller;

    RANK_OK(test_job_join(c, rank, NULL, &t.group));
    RANK_OK(make_layers(&t, NULL));
    RANK_OK(oar_fsdp_keep_state(t.model, t.adam));
    RANK_OK(train_step(&t));
    RANK_OK(oar_fsdp_write_param(t.model, "0.weight", OAR_F32, numbers));
    if (rank == LOST)
        raise(SIGKILL);
    RANK_CHECK(train_step(&t) != OAR_OK);
    RANK_OK(shrink(t.group, &smaller));
    RANK_CHECK(oar_fsdp_regroup(t.model, smaller, t.adam) == OAR_E_DATA);
    RANK_CHECK(says("being written or loaded"));
    drop_layers(&t);
    oar_group_destroy(t.group);
    oar_group_destroy(smaller);
    return 0;
}

static void parameters_that_are_half_written_are_refused(void **state)
{
    run_case(RANKS, (regroup_case){ 0 }, write_and_lose);
}

/* ---- memory -------------------------------------------------------------- */

static uint64_t fail_at; /* which allocation fails, in this process */

/* The window of the parameters is made in five steps; then comes that of the
 * state. The groups of the new shards are there. */
static void fail_after_shards(const oar_group *group, int step)
{
    if (++window_steps == 6)
        oar_memory_fail_after(fail_at);
}

/* Regroups with one allocation of a rank failing, then with the next, and so
 * on: on all ranks or on none. */
static oar_status regroup_at_last(spread_layers *t, int fails, uint64_t *tries)
{
    oar_status status = OAR_E_NOMEM;
    oar_group *smaller, *again;
    uint64_t first = 0;

    CHECK_OK(shrink(t->group, &smaller));
    while (status != OAR_OK) {
        ++*tries;
        window_steps = 0;
        fail_at = fails ? *tries : 0;
        if (oar_group_size(smaller) == 1)
            oar_memory_fail_after(fail_at);
        else
            oari_window_hook = fail_after_shards;
        status = oar_fsdp_regroup(t->model, smaller, t->adam);
        oar_memory_fail_after(0);
        oari_window_hook = NULL;
        CHECK(status == OAR_OK || status == OAR_E_NOMEM ||
              (!fails && status == OAR_E_ABORTED));
        CHECK(status == OAR_OK || says(fails ? "out of memory" : "rank 1"));
        if (oar_barrier(smaller, NULL, NULL) != OAR_OK) { /* it has ended */
            CHECK_OK(shrink(smaller, &again));
            oar_group_destroy(smaller);
            smaller = again;
        }
        if (*tries == 1)
            first = memory_now().live;
        if (status != OAR_OK && oar_group_size(smaller) == 1)
            CHECK(memory_now().live <= first + 20); /* plans may be kept */
    }
    oar_group_destroy(t->group);
    t->group = smaller;
    return OAR_OK;
}

static int regroup_without_memory(test_job *c, int rank, void *arg)
{
    spread_layers t = { 0 };
    uint64_t tries = 0;

    RANK_OK(test_job_join(c, rank, NULL, &t.group));
    RANK_OK(make_layers(&t, NULL));
    RANK_OK(oar_fsdp_keep_state(t.model, t.adam));
    RANK_OK(train_step(&t));
    if (rank == LOST)
        raise(SIGKILL);
    RANK_CHECK(train_step(&t) != OAR_OK);
    RANK_OK(regroup_at_last(&t, c->ranks == 2 || rank == SECOND, &tries));
    RANK_CHECK(tries > 8);
    RANK_OK(train_step(&t));
    RANK_OK(oar_barrier(t.group, NULL, NULL));
    drop_layers(&t);
    oar_group_destroy(t.group);
    return 0;
}

static void a_regroup_without_memory_can_be_repeated(void **state)
{
    run_case(2, (regroup_case){ 0 }, regroup_without_memory);
    run_case(RANKS, (regroup_case){ 0 }, regroup_without_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_kept_is_refused),
        cmocka_unit_test(replicas_are_refused),
        cmocka_unit_test(other_groups_are_refused),
        cmocka_unit_test(tensors_of_old_shards_say_so),
        cmocka_unit_test(a_death_in_a_regroup_is_survived),
        cmocka_unit_test(parameters_that_are_half_written_are_refused),
        cmocka_unit_test(a_regroup_without_memory_can_be_repeated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
