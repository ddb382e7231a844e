/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: a pre-norm transformer decoder, or some parts of one. Each part of it is
 * a module, so hooks and wrappers find them all. */
#include <limits.h>
#include <stdio.h>

#include <oarsong/models.h>

#include "autograd/ops/positions.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "nn/attention_layer.h"
#include "nn/build.h"

static const double rotary_base = 10000, deviation = 0.02;

/* ---- a block ------------------------------------------------------------- */

enum { NORM1, ATTENTION, DROP1, NORM2, UP, ACTIVATION, DOWN, DROP2 };

/* What flows between the children of a block. */
typedef struct flow {
    oar_tensor *y;
    oar_module *maker; /* of y; NULL: it came from outside */
    int open;          /* y may be known outside, or be what came from there */
} flow;

/* Runs children first to last on what flows. That is dropped once the next has
 * seen it, up to the first child that is open: those after it may pass on what
 * it gave. */
static void run_children(oar_tape *tape, oar_module *module, int first,
                         int last, flow *f)
{
    for (int i = first; i <= last; i++) {
        oar_module *child = oar_module_child(module, i), *act;
        oar_tensor *next;

        act = i == UP ? oar_module_child(module, ACTIVATION) : NULL;
        if (act != NULL && oari_layers_fuse(child, act, f->y)) {
            next = oari_layers_fused(tape, child, act, f->y);
            child = act;
            i++;
        } else {
            next = oar_forward(tape, child, f->y);
        }
        f->open = f->open || oari_layer_is_open(child);
        if (f->maker != NULL && next != f->y && !f->open)
            oari_layer_drop(tape, f->maker, NULL, f->y);
        f->y = next;
        f->maker = child;
    }
}

/* x plus what was made of it. */
static oar_tensor *add_residual(oar_tape *tape, oar_tensor *x, const flow *f)
{
    return f->y != x && !f->open ? oari_add_over(tape, x, f->y)
                                 : oar_add(tape, x, f->y);
}

static oar_tensor *block_forward(oar_tape *tape, oar_module *module,
                                 oar_tensor *x)
{
    oar_module *norm = oar_module_child(module, NORM2);
    oar_tensor *made;
    flow f = { .y = x };

    if (tape == NULL)
        return oari_forward_alone(block_forward, module, x);
    run_children(tape, module, NORM1, DROP1, &f);
    if (f.y != x && !f.open && oari_norm_fuses(norm, f.y)) {
        made = f.y;
        f = (flow){ .y = oari_norm_of_sum(tape, norm, x, made, &x),
                    .maker = norm };
        oari_tape_drop(tape, made);
    } else {
        x = add_residual(tape, x, &f);
        f = (flow){ .y = x };
        run_children(tape, module, NORM2, NORM2, &f);
    }
    run_children(tape, module, UP, DROP2, &f);
    return add_residual(tape, x, &f);
}

static const oar_module_class block_class = { .size = sizeof block_class,
                                              .name = "gpt_block",
                                              .forward = block_forward };

/* Seeds of a model: parameters close together, dropouts far apart, because they
 * go on counting. */
typedef struct seeds {
    uint64_t param, dropout;
} seeds;

static uint64_t param_seed(seeds *s)
{
    s->param += 16;
    return s->param;
}

static uint64_t dropout_seed(seeds *s)
{
    s->dropout += (uint64_t)1 << 32;
    return s->dropout;
}

/* Returns the seeds as they are before a block is made, or before the head if
 * that is the number of layers: those of the whole model, whichever parts of it
 * are made. A block takes three for parameters (attention, up, down). */
static seeds seeds_before_block(const oar_gpt_opts *o, int block)
{
    uint64_t i = (uint64_t)block, params = o->rotary ? 1 : 2;
    uint64_t dropouts = o->attention_dropout > 0 ? 3 : 2;

    return (seeds){
        .param = o->seed + ((params + 3 * i) << 4),
        .dropout = o->seed + ((1 + dropouts * i) << 32),
    };
}

static oar_status add_norm(oar_module *module, const char *name,
                           const oar_gpt_opts *o)
{
    oar_module *made = NULL;
    oar_status status = oar_layer_norm_create(o->width, 0, o->dtype, &made);

    return oari_layer_child(module, name, status, made);
}

static oar_status add_linear(oar_module *module, const char *name, int64_t in,
                             int64_t out, int no_bias, seeds *s,
                             const oar_gpt_opts *o)
{
    oar_linear_opts opts = { .size = sizeof opts,
                             .no_bias = no_bias,
                             .dtype = o->dtype };
    oar_module *made = NULL;
    oar_status status = oar_linear_create(in, out, param_seed(s), &opts, &made);

    return oari_layer_child(module, name, status, made);
}

static oar_status add_dropout(oar_module *module, const char *name, seeds *s,
                              const oar_gpt_opts *o)
{
    oar_module *made = NULL;
    oar_status status = oar_dropout_create(o->dropout, dropout_seed(s), &made);

    return oari_layer_child(module, name, status, made);
}

static oar_status add_attention(oar_module *module, seeds *s,
                                const oar_gpt_opts *o)
{
    oar_attention_layer_opts opts = { .size = sizeof opts,
                                      .causal = 1,
                                      .rotary_base =
                                          o->rotary ? rotary_base : 0,
                                      .dtype = o->dtype,
                                      .kv_heads = o->kv_heads,
                                      .dropout = o->attention_dropout };
    oar_module *made = NULL;
    oar_status status;

    if (opts.dropout > 0)
        opts.dropout_seed = dropout_seed(s);
    status =
        oar_attention_create(o->width, o->heads, param_seed(s), &opts, &made);
    return oari_layer_child(module, "attention", status, made);
}

static oar_status fill_block(oar_module *block, int rebuild_qkv, seeds *s,
                             const oar_gpt_opts *o)
{
    oar_module *made = NULL;
    oar_status status;

    OARI_TRY(add_norm(block, "norm1", o));
    OARI_TRY(add_attention(block, s, o));
    if (rebuild_qkv)
        oari_attention_rebuild_qkv(oar_module_child(block, ATTENTION));
    OARI_TRY(add_dropout(block, "drop1", s, o));
    OARI_TRY(add_norm(block, "norm2", o));
    OARI_TRY(add_linear(block, "up", o->width, o->hidden, 0, s, o));
    status = oar_activation_create(o->activation, &made);
    OARI_TRY(oari_layer_child(block, "activation", status, made));
    OARI_TRY(add_linear(block, "down", o->hidden, o->width, 0, s, o));
    return add_dropout(block, "drop2", s, o);
}

/* ---- the row of blocks --------------------------------------------------- */

typedef struct blocks {
    int recompute;
} blocks;

static oar_tensor *blocks_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    const blocks *b = oar_module_self(module);

    if (tape == NULL)
        return oari_forward_alone(blocks_forward, module, x);
    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *block = oar_module_child(module, i);
        oar_tensor *next = b->recompute ? oar_recompute(tape, block, x)
                                        : oar_forward(tape, block, x);

        if (i > 0)
            oari_layer_drop(tape, oar_module_child(module, i - 1), block, x);
        x = next;
    }
    return x;
}

static const oar_module_class blocks_class = { .size = sizeof blocks_class,
                                               .name = "gpt_blocks",
                                               .self_size = sizeof(blocks),
                                               .forward = blocks_forward };

/* One block in so many rebuilds its q, k and v in backward: the first blocks,
 * which backward reaches last, when most memory is free again. In the bench's
 * model that is a twentieth of the memory for a seventieth of the time. */
enum { REBUILD_QKV = 4 };

/* Adds blocks first to end - 1 of the model. */
static oar_status fill_blocks(oar_module *row, int first, int end,
                              const oar_gpt_opts *o)
{
    ((blocks *)oar_module_self(row))->recompute = o->recompute;
    for (int i = first; i < end; i++) {
        seeds s = seeds_before_block(o, i);
        oar_module *block;
        char name[16];

        snprintf(name, sizeof name, "%d", i);
        OARI_TRY(oar_module_create(&block_class, &block));
        OARI_TRY(oar_module_add_child(row, name, block));
        OARI_TRY(fill_block(block, i < o->layers / REBUILD_QKV, &s, o));
    }
    return OAR_OK;
}

/* ---- the model ----------------------------------------------------------- */

/* Parts of a model: 0 is the embedding, 1 to layers are the blocks, the last is
 * norm and head. */
typedef struct gpt {
    oar_gpt_opts opts; /* with defaults */
    int first, end;    /* the parts it has */
} gpt;

static int has_embedding(const gpt *g)
{
    return g->first == 0;
}

static int has_head(const gpt *g)
{
    return g->end == g->opts.layers + 2;
}

static int blocks_begin(const gpt *g)
{
    return g->first > 0 ? g->first - 1 : 0;
}

static int blocks_end(const gpt *g)
{
    return g->end - 1 < g->opts.layers ? g->end - 1 : g->opts.layers;
}

static int has_blocks(const gpt *g)
{
    return blocks_begin(g) < blocks_end(g);
}

/* Whether it has the token table: a tied head is one. */
static int has_table(const gpt *g)
{
    return has_embedding(g) || (has_head(g) && g->opts.tied);
}

/* Its children, as they are now: any of them may have been replaced. */
typedef struct gpt_children {
    oar_module *tok, *pos, *drop, *blocks, *norm, *head; /* or NULL */
} gpt_children;

static gpt_children children_of(const oar_module *module, const gpt *g)
{
    int at = 0;
    gpt_children c = { 0 };

    if (has_table(g))
        c.tok = oar_module_child(module, at++);
    if (has_embedding(g) && !g->opts.rotary)
        c.pos = oar_module_child(module, at++);
    if (has_embedding(g))
        c.drop = oar_module_child(module, at++);
    if (has_blocks(g))
        c.blocks = oar_module_child(module, at++);
    if (has_head(g))
        c.norm = oar_module_child(module, at++);
    if (has_head(g) && !g->opts.tied)
        c.head = oar_module_child(module, at);
    return c;
}

/* Adds the positions to the tokens' rows x, which tok made. */
static oar_tensor *add_positions(oar_tape *tape, const gpt_children *c,
                                 int64_t count, oar_tensor *x)
{
    oar_tensor *place, *rows;

    if (x == NULL) /* its error stays the last one */
        return NULL;
    place = oari_positions(tape, oar_tensor_device(x), count);
    rows = oar_forward(tape, c->pos, place);
    return oari_layer_is_open(c->tok) ? oar_add(tape, rows, x)
                                      : oari_add_over(tape, rows, x);
}

static oar_tensor *embed(oar_tape *tape, const gpt *g, const gpt_children *c,
                         oar_tensor *tokens)
{
    oar_shape s = oar_tensor_shape(tokens);
    oar_tensor *x;

    if (s.ndim != 2 || s.dim[1] > g->opts.context) {
        oari_fail(OAR_E_SHAPE,
                  "gpt of tokens with %d dims, the last %lld long: [n, t] "
                  "with t up to %lld",
                  s.ndim, (long long)(s.ndim > 0 ? s.dim[s.ndim - 1] : 1),
                  (long long)g->opts.context);
        return NULL;
    }
    x = oar_forward(tape, c->tok, tokens);
    if (c->pos != NULL)
        x = add_positions(tape, c, s.dim[1], x);
    return oar_forward(tape, c->drop, x);
}

/* Gives the logits of all tokens of x, one after the other. */
static oar_tensor *run_head(oar_tape *tape, const gpt_children *c,
                            oar_tensor *x)
{
    oar_tensor *logits;
    oar_shape s;

    x = oar_forward(tape, c->norm, x);
    logits = c->head != NULL
                 ? oar_forward(tape, c->head, x)
                 : oar_linear(tape, x, oar_module_param(c->tok, 0), NULL);
    oari_layer_drop(tape, c->norm, c->head, x);
    if (logits == NULL)
        return NULL;
    s = oar_tensor_shape(logits);
    return oar_reshape(tape, logits, OAR_SHAPE(s.dim[0] * s.dim[1], s.dim[2]));
}

static oar_tensor *gpt_forward(oar_tape *tape, oar_module *module,
                               oar_tensor *x)
{
    const gpt *g = oar_module_self(module);
    gpt_children c = children_of(module, g);
    oar_shape s = oar_tensor_shape(x);

    if (tape == NULL)
        return oari_forward_alone(gpt_forward, module, x);
    if (has_embedding(g)) {
        x = embed(tape, g, &c, x);
    } else if (s.ndim != 3 || s.dim[2] != g->opts.width) {
        oari_fail(OAR_E_SHAPE,
                  "parts %d to %d of a gpt, of a tensor with %d dims, the last "
                  "%lld long: [n, t, %lld] from the part before",
                  g->first, g->end - 1, s.ndim,
                  (long long)(s.ndim > 0 ? s.dim[s.ndim - 1] : 1),
                  (long long)g->opts.width);
        return NULL;
    }
    if (c.blocks != NULL)
        x = oar_forward(tape, c.blocks, x);
    return has_head(g) ? run_head(tape, &c, x) : x;
}

static const oar_module_class gpt_class = { .size = sizeof gpt_class,
                                            .name = "gpt",
                                            .self_size = sizeof(gpt),
                                            .forward = gpt_forward };
static const oar_module_class stage_class = { .size = sizeof stage_class,
                                              .name = "gpt_stage",
                                              .self_size = sizeof(gpt),
                                              .forward = gpt_forward };

/* What the head is given, as rows. */
static oar_tensor *before_head(oar_tape *tape, const gpt *g,
                               const gpt_children *c, oar_tensor *tokens)
{
    oar_tensor *x = embed(tape, g, c, tokens);

    if (x != NULL && c->blocks != NULL)
        x = oar_forward(tape, c->blocks, x);
    if (x != NULL)
        x = oar_forward(tape, c->norm, x);
    return x != NULL ? oar_reshape(tape, x, OAR_SHAPE(-1, g->opts.width))
                     : NULL;
}

oar_tensor *oar_gpt_loss(oar_tape *tape, oar_module *module, oar_tensor *tokens,
                         oar_tensor *target, const oar_cross_entropy_opts *opts)
{
    oar_cross_entropy_opts o;
    const gpt *g;
    gpt_children c;
    oar_tensor *x;

    if (tape == NULL || tokens == NULL || target == NULL ||
        !oar_module_is(module, &gpt_class)) {
        oari_fail(OAR_E_ARG, "gpt_loss without a tape, a model of "
                             "oar_gpt_create, tokens or targets");
        return NULL;
    }
    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    g = oar_module_self(module);
    c = children_of(module, g);
    if (o.weight != NULL || o.reduction == OAR_LOSS_NONE ||
        (c.head != NULL && oari_layer_is_open(c.head)))
        return oar_cross_entropy_with(tape, oar_forward(tape, module, tokens),
                                      target, opts);
    x = before_head(tape, g, &c, tokens);
    if (x == NULL)
        return NULL;
    return oar_linear_cross_entropy(
        tape, x, oar_module_param(c.head != NULL ? c.head : c.tok, 0), target,
        opts);
}

static oar_status check_opts(const oar_gpt_opts *o)
{
    const int64_t limit = INT64_C(1) << 61; /* four times it is no number */
    int too_wide = o->width >= limit || o->width <= -limit;

    if (o->vocabulary >= 1 && o->context >= 1 && o->width >= 1 && !too_wide &&
        o->layers >= 1 && o->layers <= INT_MAX - 2 && o->heads >= 1 &&
        o->hidden >= 0)
        return OAR_OK;
    return oari_fail(
        OAR_E_ARG,
        "gpt with vocabulary %lld, context %lld, width %lld, "
        "layers %d, heads %d, hidden %lld: none may be negative, "
        "and the width is below 2^61",
        (long long)o->vocabulary, (long long)o->context, (long long)o->width,
        o->layers, o->heads,
        (long long)(o->hidden != 0 || too_wide ? o->hidden : 4 * o->width));
}

static oar_status add_table(oar_module *module, const char *name, int64_t count,
                            seeds *s, const oar_gpt_opts *o)
{
    oar_module *made = NULL;
    oar_status status = oar_embedding_create(count, o->width, param_seed(s),
                                             deviation, o->dtype, &made);

    return oari_layer_child(module, name, status, made);
}

static oar_status fill_gpt(oar_module *module, const gpt *wanted)
{
    gpt *g = oar_module_self(module);
    const oar_gpt_opts *o = &g->opts;
    seeds s = { .param = wanted->opts.seed, .dropout = wanted->opts.seed };
    oar_module *row;

    *g = *wanted;
    g->opts.size = sizeof g->opts;
    if (has_table(g))
        OARI_TRY(add_table(module, "tok", o->vocabulary, &s, o));
    if (has_embedding(g) && !o->rotary)
        OARI_TRY(add_table(module, "pos", o->context, &s, o));
    if (has_embedding(g))
        OARI_TRY(add_dropout(module, "drop", &s, o));
    if (has_blocks(g)) {
        OARI_TRY(oar_module_create(&blocks_class, &row));
        OARI_TRY(oar_module_add_child(module, "blocks", row));
        OARI_TRY(fill_blocks(row, blocks_begin(g), blocks_end(g), o));
    }
    if (has_head(g))
        OARI_TRY(add_norm(module, "norm", o));
    if (!has_head(g) || o->tied)
        return OAR_OK;
    s = seeds_before_block(o, o->layers);
    return add_linear(module, "head", o->width, o->vocabulary, 1, &s, o);
}

static oar_status read_opts(const oar_gpt_opts *opts, oar_gpt_opts *o)
{
    OARI_TRY(oari_opts_read(o, sizeof *o, opts));
    o->vocabulary = o->vocabulary != 0 ? o->vocabulary : 256;
    o->context = o->context != 0 ? o->context : 64;
    o->width = o->width != 0 ? o->width : 128;
    o->layers = o->layers != 0 ? o->layers : 4;
    o->heads = o->heads != 0 ? o->heads : 4;
    if (o->activation == OAR_ACTIVATION_DEFAULT)
        o->activation = OAR_GELU;
    OARI_TRY(check_opts(o));
    o->hidden = o->hidden != 0 ? o->hidden : 4 * o->width;
    return OAR_OK;
}

oar_status oar_gpt_create(const oar_gpt_opts *opts, oar_module **module)
{
    gpt wanted = { .first = 0 };
    oar_module *made;

    OARI_TRY(read_opts(opts, &wanted.opts));
    wanted.end = wanted.opts.layers + 2;
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "gpt_create: nowhere to give it");
    OARI_TRY(oar_module_create(&gpt_class, &made));
    return oari_layer_give(fill_gpt(made, &wanted), made, module);
}

oar_status oar_gpt_stage_create(const oar_gpt_opts *opts, int first, int count,
                                oar_module **module)
{
    gpt wanted = { .first = first };
    oar_module *made;
    int parts;

    OARI_TRY(read_opts(opts, &wanted.opts));
    parts = wanted.opts.layers + 2;
    if (first < 0 || count < 1 || first > parts - count)
        return oari_fail(OAR_E_ARG,
                         "gpt_stage_create of %d parts from part %d on: a gpt "
                         "of %d layers has parts 0 to %d",
                         count, first, wanted.opts.layers, parts - 1);
    wanted.end = first + count;
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "gpt_stage_create: nowhere to give it");
    OARI_TRY(oar_module_create(&stage_class, &made));
    return oari_layer_give(fill_gpt(made, &wanted), made, module);
}

oar_status oar_gpt_describe(const oar_module *module, oar_gpt_opts *opts)
{
    const gpt *g;

    if (!oar_module_is(module, &gpt_class))
        return oari_fail(OAR_E_ARG, "gpt_describe of a %s: it is no gpt",
                         module != NULL ? oar_module_name(module) : "NULL");
    g = oar_module_self((oar_module *)(uintptr_t)module);
    return oari_struct_give(opts, &g->opts, sizeof g->opts, "gpt_opts");
}
