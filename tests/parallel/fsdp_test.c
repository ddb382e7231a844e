/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP trains what DDP trains, to the bit where sums have one order, however
 * parameters are held and whatever is spread. */
#include "support/test_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "parallel/shards/shards.h"

enum { VOCABULARY = 19, CONTEXT = 7, ROWS = 3, STEPS = 4 };

typedef struct fsdp_case {
    oar_fsdp_opts opts;
    oar_gpt_opts gpt;
    int passes; /* for each step; below 0: without communication but the last */
    int freezes;
    int columns; /* ranks that share the shards; the others have the same ones.
                    0: all */
    int other_order; /* sums have another than DDP's: the model is of f64, and
                        nearly the same is enough */
} fsdp_case;

static void allow_other_order(fsdp_case *c)
{
    c->other_order = 1;
    c->gpt.dtype = OAR_F64;
}

static fsdp_case usual_case(void)
{
    fsdp_case c = { .opts = oar_fsdp_opts_init(),
                    .gpt = oar_gpt_opts_init(),
                    .passes = 1 };

    c.gpt.vocabulary = VOCABULARY;
    c.gpt.context = CONTEXT;
    c.gpt.width = 12;
    c.gpt.layers = 3;
    c.gpt.heads = 3;
    c.gpt.seed = 5;
    c.opts.canonical = 1;
    c.opts.least_bytes = 1;
    return c;
}

static oar_status make_gpt(const fsdp_case *c, oar_module **gpt)
{
    CHECK_OK(oar_gpt_create(&c->gpt, gpt));
    if (c->freezes)
        CHECK_OK(
            oar_module_freeze(oar_module_find_module(*gpt, "blocks.1"), 1));
    return OAR_OK;
}

static oar_status run_pass(oar_module *model, oar_tape *tape, int rank,
                           int pass)
{
    uint64_t seed = (uint64_t)(100 * pass + rank);
    oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), seed,
                                0, VOCABULARY);
    oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                seed + 50, 0, VOCABULARY);

    CHECK_OK(oar_backward(
        tape, oar_cross_entropy(tape, oar_forward(tape, model, x), y)));
    oar_tape_reset(tape);
    return OAR_OK;
}

/* One step; the calls of DDP and of FSDP have the same shape. */
static oar_status train_step(const fsdp_case *c, oar_module *model,
                             oar_tape *tape, oar_optim *adam, int rank,
                             int step, oar_status (*quiet)(oar_module *),
                             oar_status (*loud)(oar_module *))
{
    int passes = c->passes < 0 ? -c->passes : c->passes;

    for (int p = 0; p < passes; p++) {
        int silent = c->passes < 0 && p < passes - 1;

        if (silent)
            CHECK_OK(quiet(model));
        CHECK_OK(run_pass(model, tape, rank, passes * step + p));
        if (silent)
            CHECK_OK(loud(model));
    }
    CHECK_OK(oar_optim_step(adam));
    oar_optim_zero_grad(adam);
    return OAR_OK;
}

static oar_status train_ddp(oar_group *g, const fsdp_case *c, oar_module **net)
{
    oar_tape *tape;
    oar_optim *adam;

    CHECK_OK(make_gpt(c, net));
    CHECK_OK(
        oar_ddp_wrap(*net, g, OAR_OPTS(oar_ddp_opts, .canonical = 1), net));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(
        oar_adamw_create(*net, OAR_OPTS(oar_adam_opts, .lr = 1e-2), &adam));
    for (int step = 0; step < STEPS; step++)
        CHECK_OK(train_step(c, *net, tape, adam, oar_group_rank(g), step,
                            oar_ddp_no_sync_begin, oar_ddp_no_sync_end));
    oar_optim_destroy(adam);
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status same_bits(const oar_module *a, const oar_module *b)
{
    CHECK(oar_module_params(a) == oar_module_params(b));
    for (int i = 0; i < oar_module_params(a); i++) {
        const oar_tensor *x = oar_module_param(a, i);
        const oar_tensor *y = oar_module_param(b, i);
        size_t bytes =
            (size_t)oar_tensor_count(x) * oar_dtype_size(oar_tensor_dtype(x));

        CHECK(oar_tensor_const_data(y) != NULL);
        CHECK(memcmp(oar_tensor_const_data(x), oar_tensor_const_data(y),
                     bytes) == 0);
    }
    return OAR_OK;
}

static oar_status nearly_same(const oar_module *a, const oar_module *b)
{
    for (int i = 0; i < oar_module_params(a); i++) {
        const oar_tensor *x = oar_module_param(a, i);
        const oar_tensor *y = oar_module_param(b, i);
        const double *p = oar_tensor_const_data(x);
        const double *q = oar_tensor_const_data(y);

        CHECK(q != NULL);
        for (int64_t k = 0; k < oar_tensor_count(x); k++)
            CHECK(fabs(p[k] - q[k]) <= 1e-10);
    }
    return OAR_OK;
}

static oar_status train_fsdp(oar_group *g, const fsdp_case *c,
                             const oar_module *ddp)
{
    oar_fsdp_opts o = c->opts;
    int rank = oar_group_rank(g), count;
    oar_group *row = NULL, *column = NULL;
    oar_module *net;
    oar_tape *tape;
    oar_optim *adam;

    if (c->columns > 0) {
        CHECK_OK(oar_group_split(g, rank / c->columns, rank, &row));
        CHECK_OK(oar_group_split(g, rank % c->columns, rank, &column));
        o.replicas = column;
    }
    CHECK_OK(make_gpt(c, &net));
    CHECK_OK(oar_fsdp_wrap(net, row != NULL ? row : g, &o, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_adamw_create_over(count, param,
                                   OAR_OPTS(oar_adam_opts, .lr = 1e-2), &adam));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++)
        CHECK_OK(train_step(c, net, tape, adam, rank, step,
                            oar_fsdp_no_sync_begin, oar_fsdp_no_sync_end));
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    CHECK_OK(c->other_order ? nearly_same(ddp, net) : same_bits(ddp, net));
    CHECK_OK(oar_fsdp_reshard(net, NULL));
    oar_optim_destroy(adam);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static oar_status train_both(oar_group *g, void *arg)
{
    oar_module *ddp;

    CHECK_OK(train_ddp(g, arg, &ddp));
    CHECK_OK(train_fsdp(g, arg, ddp));
    oar_module_release(ddp);
    return OAR_OK;
}

/* Only some backends have memory in common. */
static int possible(const char *backend, oar_hold hold, int ranks)
{
    return ranks == 1 || hold == OAR_HOLD_AUTO || hold == OAR_HOLD_OWN ||
           strcmp(backend, "sim") == 0 || strcmp(backend, "shm") == 0 ||
           strcmp(backend, "native") == 0;
}

static void train_everywhere(fsdp_case *c, int ranks)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (possible(*b, c->opts.hold, ranks))
            assert_int_equal(ranks_run(*b, ranks, NULL, train_both, c), OAR_OK);
}

static void fsdp_trains_what_ddp_trains(void **state)
{
    for (int h = OAR_HOLD_AUTO; h <= OAR_HOLD_OWN; h++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            fsdp_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            train_everywhere(&c, ranks);
        }
}

static void every_stage_trains_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = OAR_ZERO_STAGE_1; stage <= OAR_ZERO_STAGE_2; stage++) {
            fsdp_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            c.opts.stage = (oar_zero_stage)stage;
            train_everywhere(&c, 3);
        }
}

static void models_of_every_kind_train_the_same(void **state)
{
    static const char *const nested[] = { "blocks.*", "class:attention", NULL };

    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int kind = 0; kind < 6; kind++) {
            fsdp_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            c.gpt.recompute = kind == 0;
            c.gpt.tied = kind <= 1;
            c.gpt.rotary = kind == 2;
            c.freezes = kind == 3;
            c.opts.units = kind == 4 ? nested : NULL;
            c.opts.prefetch = kind == 5 ? 2 : 0;
            train_everywhere(&c, 3);
        }
}

static void passes_add_up_with_and_without_communication(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
        fsdp_case c = usual_case();

        c.opts.hold = (oar_hold)h;
        c.passes = -3;
        train_everywhere(&c, 2);
    }
}

static void eight_ranks_train_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        fsdp_case c = usual_case();

        c.opts.hold = (oar_hold)h;
        assert_int_equal(ranks_run("native", 8, NULL, train_both, &c), OAR_OK);
    }
}

/* ---- several hosts ------------------------------------------------------- */

typedef struct fsdp_hosts_case {
    fsdp_case c;
    int here; /* ranks on the first host; -1: every second one */
} fsdp_hosts_case;

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    fsdp_hosts_case *h = arg;
    int first = h->here < 0 ? rank % 2 == 0 : rank < h->here;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", first ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(train_both(g, &h->c));
    oar_group_destroy(g);
    return 0;
}

/* With one copy a host, sums go by index on the host, then by host: that is the
 * order of ranks if every second one is on the first host. */
static void two_hosts_train_the_same(void **state)
{
    static const struct {
        int ranks, here;
        oar_hold hold;
    } layout[] = { { 4, 2, OAR_HOLD_HOST },
                   { 4, -1, OAR_HOLD_HOST },
                   { 3, 2, OAR_HOLD_OWN },
                   { 4, 2, OAR_HOLD_AUTO } };

    for (int i = 0; i < 4; i++)
        for (int z = 0; z < 3; z++) {
            fsdp_hosts_case h = { .c = usual_case(), .here = layout[i].here };
            test_job job;

            h.c.opts.hold = layout[i].hold;
            h.c.opts.stage = (oar_zero_stage)z;
            h.c.opts.prefetch = z == 0 ? 2 : 0;
            if (layout[i].hold != OAR_HOLD_OWN && h.here > 0)
                allow_other_order(&h.c);
            test_job_start(&job, layout[i].ranks, train_on_hosts, &h,
                           "%d ranks, hold %d, stage %d", layout[i].ranks,
                           (int)layout[i].hold, z);
            for (int r = 0; r < layout[i].ranks; r++)
                test_job_expect(&job, r, 0);
            test_job_end(&job);
        }
}

/* ---- replicas ------------------------------------------------------------ */

static void shards_with_replicas_train_what_ddp_trains(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int passes = -2; passes <= 1; passes += 3) {
            fsdp_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            c.columns = 2;
            allow_other_order(&c);
            c.passes = passes;
            train_everywhere(&c, 4);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fsdp_trains_what_ddp_trains),
        cmocka_unit_test(every_stage_trains_the_same),
        cmocka_unit_test(models_of_every_kind_train_the_same),
        cmocka_unit_test(passes_add_up_with_and_without_communication),
        cmocka_unit_test(eight_ranks_train_the_same),
        cmocka_unit_test(two_hosts_train_the_same),
        cmocka_unit_test(shards_with_replicas_train_what_ddp_trains),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
