/* SPDX-License-Identifier: Apache-2.0 */
#include "support/spread_gpt.h"

#include <math.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/ranks.h"

void spread_gpt_allow_other_order(spread_gpt *c)
{
    c->other_order = 1;
    c->gpt.dtype = OAR_F64;
}

spread_gpt spread_gpt_usual(void)
{
    spread_gpt c = { .opts = oar_fsdp_opts_init(),
                     .gpt = oar_gpt_opts_init(),
                     .passes = 1 };

    c.gpt.vocabulary = SPREAD_VOCABULARY;
    c.gpt.context = SPREAD_CONTEXT;
    c.gpt.width = 12;
    c.gpt.layers = 3;
    c.gpt.heads = 3;
    c.gpt.seed = 5;
    c.opts.canonical = 1;
    c.opts.least_bytes = 1;
    return c;
}

oar_status spread_gpt_make(const spread_gpt *c, oar_module **gpt)
{
    CHECK_OK(oar_gpt_create(&c->gpt, gpt));
    if (c->freezes)
        CHECK_OK(
            oar_module_freeze(oar_module_find_module(*gpt, "blocks.1"), 1));
    return OAR_OK;
}

oar_status spread_gpt_pass(oar_module *model, oar_tape *tape, int rank,
                           int pass)
{
    uint64_t seed = (uint64_t)(100 * pass + rank);
    oar_tensor *x =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(SPREAD_ROWS, SPREAD_CONTEXT), seed,
                    0, SPREAD_VOCABULARY);
    oar_tensor *y =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(SPREAD_ROWS * SPREAD_CONTEXT),
                    seed + 50, 0, SPREAD_VOCABULARY);

    CHECK_OK(oar_backward(
        tape, oar_cross_entropy(tape, oar_forward(tape, model, x), y)));
    oar_tape_reset(tape);
    return OAR_OK;
}

/* One of the two: its calls have the same shape as those of the other. */
typedef struct trained_gpt {
    oar_group *g;
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;
    oar_status (*quiet)(oar_module *), (*loud)(oar_module *);
} trained_gpt;

/* What FSDP leaves alone has gradients of its own. */
static oar_status average_own_gradients(const trained_gpt *t)
{
    for (int i = 0; i < oar_module_params(t->net); i++) {
        oar_tensor *param = oar_module_param(t->net, i);
        oar_tensor *grad = oar_tensor_grad(param);
        oar_span span;
        int seen = 0;

        for (int k = 0; k < i; k++)
            seen |= oar_module_param(t->net, k) == param;
        if (grad == NULL || seen)
            continue;
        CHECK_OK(oar_tensor_span(grad, &span));
        CHECK_OK(oar_all_reduce(t->g, span, OAR_AVG,
                                OAR_OPTS(oar_call_opts, .canonical = 1), NULL));
    }
    return OAR_OK;
}

static oar_status train_step(const spread_gpt *c, const trained_gpt *t,
                             int step)
{
    int passes = c->passes < 0 ? -c->passes : c->passes;

    for (int p = 0; p < passes; p++) {
        int silent = c->passes < 0 && p < passes - 1;

        if (silent)
            CHECK_OK(t->quiet(t->net));
        CHECK_OK(spread_gpt_pass(t->net, t->tape, oar_group_rank(t->g),
                                 passes * step + p));
        if (silent)
            CHECK_OK(t->loud(t->net));
    }
    if (c->opts.ignored != NULL && oar_fsdp_units(t->net) > 0)
        CHECK_OK(average_own_gradients(t));
    CHECK_OK(oar_optim_step(t->adam));
    oar_optim_zero_grad(t->adam);
    return OAR_OK;
}

static oar_status train_ddp(oar_group *g, const spread_gpt *c, oar_module **net)
{
    trained_gpt t = { .g = g,
                      .quiet = oar_ddp_no_sync_begin,
                      .loud = oar_ddp_no_sync_end };

    CHECK_OK(spread_gpt_make(c, &t.net));
    CHECK_OK(
        oar_ddp_wrap(t.net, g, OAR_OPTS(oar_ddp_opts, .canonical = 1), &t.net));
    CHECK_OK(oar_tape_create(&t.tape));
    CHECK_OK(
        oar_adamw_create(t.net, OAR_OPTS(oar_adam_opts, .lr = 1e-2), &t.adam));
    for (int step = 0; step < SPREAD_STEPS; step++)
        CHECK_OK(train_step(c, &t, step));
    oar_optim_destroy(t.adam);
    oar_tape_destroy(t.tape);
    *net = t.net;
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

/* Over the shards, and over what is left alone. */
static oar_status make_adamw(const oar_module *net, oar_optim **adam)
{
    enum { MOST = 128 };
    oar_tensor *param[MOST];
    int count;
    oar_tensor *const *shard = oar_fsdp_params(net, &count);

    CHECK(count <= MOST);
    for (int i = 0; i < count; i++)
        param[i] = shard[i];
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *own = oar_module_param(net, i);
        int there = 0;

        for (int k = 0; oar_fsdp_param_index(net, k) >= 0; k++)
            there |= oar_module_param(net, oar_fsdp_param_index(net, k)) == own;
        for (int k = 0; k < count; k++)
            there |= param[k] == own;
        if (!there && count < MOST)
            param[count++] = own;
    }
    return oar_adamw_create_over(count, param,
                                 OAR_OPTS(oar_adam_opts, .lr = 1e-2), adam);
}

static oar_status check_gathers(const spread_gpt *c, const oar_module *net)
{
    oar_shards_stats stats = oar_shards_stats_init();

    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), &stats));
    CHECK(c->gathers == 0 || stats.gathers == c->gathers);
    return OAR_OK;
}

static oar_status train_fsdp(oar_group *g, const spread_gpt *c,
                             const oar_module *ddp)
{
    trained_gpt t = { .g = g,
                      .quiet = oar_fsdp_no_sync_begin,
                      .loud = oar_fsdp_no_sync_end };
    oar_fsdp_opts o = c->opts;
    int rank = oar_group_rank(g);
    oar_group *row = NULL, *column = NULL;

    if (c->columns > 0) {
        CHECK_OK(oar_group_split(g, rank / c->columns, rank, &row));
        CHECK_OK(oar_group_split(g, rank % c->columns, rank, &column));
        o.replicas = column;
    }
    CHECK_OK(spread_gpt_make(c, &t.net));
    CHECK_OK(oar_fsdp_wrap(t.net, row != NULL ? row : g, &o, &t.net));
    CHECK_OK(make_adamw(t.net, &t.adam));
    CHECK_OK(oar_tape_create(&t.tape));
    for (int step = 0; step < SPREAD_STEPS; step++)
        CHECK_OK(train_step(c, &t, step));
    CHECK_OK(check_gathers(c, t.net));
    CHECK_OK(oar_fsdp_unshard(t.net, NULL));
    CHECK_OK(c->other_order ? nearly_same(ddp, t.net) : same_bits(ddp, t.net));
    CHECK_OK(oar_fsdp_reshard(t.net, NULL));
    oar_optim_destroy(t.adam);
    oar_tape_destroy(t.tape);
    oar_module_release(t.net);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

oar_status spread_gpt_train_both(oar_group *g, void *arg)
{
    oar_module *ddp = NULL;

    CHECK_OK(train_ddp(g, arg, &ddp));
    CHECK_OK(train_fsdp(g, arg, ddp));
    oar_module_release(ddp);
    return OAR_OK;
}

int hold_is_possible(const char *backend, oar_hold hold, int ranks)
{
    return ranks == 1 || hold == OAR_HOLD_AUTO || hold == OAR_HOLD_OWN ||
           strcmp(backend, "sim") == 0 || strcmp(backend, "shm") == 0 ||
           strcmp(backend, "native") == 0;
}

void spread_gpt_train_everywhere(spread_gpt *c, int ranks)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (hold_is_possible(*b, c->opts.hold, ranks))
            assert_int_equal(
                ranks_run(*b, ranks, NULL, spread_gpt_train_both, c), OAR_OK);
}

/* ---- a layer in a group of one ------------------------------------------- */

oar_status fsdp_train_alone(const oar_fsdp_opts *opts, int passes)
{
    enum { WIDTH = 5, ROWS = 4 };
    oar_module *net = NULL, *wrapped = NULL;
    oar_tape *tape = NULL;
    oar_group *g;
    oar_status status = oar_group_create(NULL, 0, 1, NULL, &g);

    if (status != OAR_OK)
        return status;
    status = oar_linear_create(WIDTH, WIDTH, 1, NULL, &net);
    if (status == OAR_OK)
        status = oar_fsdp_wrap(net, g, opts, &wrapped);
    if (status == OAR_OK)
        status = oar_tape_create(&tape);
    for (int pass = 0; pass < passes && status == OAR_OK; pass++) {
        oar_tensor *x =
            oar_uniform(tape, OAR_F32, OAR_SHAPE(ROWS, WIDTH), 9, -1, 1);
        oar_tensor *loss = oar_mean(tape, oar_forward(tape, wrapped, x));

        status =
            loss != NULL ? oar_backward(tape, loss) : oar_last_error()->status;
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(wrapped);
    oar_group_destroy(g);
    return status;
}
