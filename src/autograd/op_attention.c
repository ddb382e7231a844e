/* SPDX-License-Identifier: Apache-2.0 */
/* op_attention: attention of three tensors, or of one that packs them. Heads
 * are used where they lie if their last dim has no gaps. */
#include <limits.h>
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/packed.h"
#include "autograd/record.h"
#include "autograd/stash.h"
#include "base/status.h"
#include "tensor/attention.h"
#include "tensor/desk.h"

enum { Q, K, V, LSE }; /* inputs, and what is saved */

/* ---- the computation on arrays ------------------------------------------ */

/* Arrays of one attention; dims are [.., positions, width]. */
typedef struct parts {
    oari_array q, k, v, out, lse; /* out: in backward its gradient */
    const oari_array *dq, *dk, *dv;
    int add_q, add_k, add_v;
} parts;

/* Where the heads of a row-major array lie. */
static oari_strip strip_of_rows(const oari_array *a)
{
    int n = a->at.shape.ndim;
    int64_t width = a->at.shape.dim[n - 1], rows = a->at.shape.dim[n - 2];
    int64_t heads = n > 2 ? a->at.shape.dim[n - 3] : 1;

    return (oari_strip){ .data = oari_array_data(a),
                         .outer = heads * rows * width,
                         .head = rows * width,
                         .row = width };
}

static oari_strip place(oari_desk *desk, const oari_array *a)
{
    oari_strip strip;

    if (oari_strip_of(a, &strip))
        return strip;
    return strip_of_rows(oari_desk_in(desk, a));
}

static oari_strip place_out(oari_desk *desk, const oari_array *to, int add)
{
    oari_strip strip = { 0 };

    if (to == NULL || oari_strip_of(to, &strip))
        return strip;
    return strip_of_rows(oari_desk_out(desk, to, add));
}

/* Sizes, and where the inputs lie. */
static oari_attention set_up(oari_desk *desk, const parts *p,
                             const oari_extra *extra)
{
    const oar_shape *q = &p->q.at.shape, *v = &p->v.at.shape;
    int n = q->ndim;
    oari_attention a = { .dtype = oari_work_dtype(p->q.dtype),
                         .outer = 1,
                         .heads = n > 2 ? q->dim[n - 3] : 1,
                         .t = q->dim[n - 2],
                         .s = v->dim[n - 2],
                         .d = q->dim[n - 1],
                         .e = v->dim[n - 1],
                         .scale = extra->attention.scale,
                         .causal = extra->attention.causal,
                         .lse = oari_array_data(&p->lse) };

    for (int i = 0; i < n - 3; i++)
        a.outer *= q->dim[i];
    a.q = place(desk, &p->q);
    a.k = place(desk, &p->k);
    a.v = place(desk, &p->v);
    a.scratch = oari_desk_scratch(desk, a.dtype, oari_attend_scratch(&a));
    return a;
}

static oar_status attend(oari_pool *pool, const parts *p,
                         const oari_extra *extra)
{
    oari_desk desk = { .pool = pool };
    oari_attention a = set_up(&desk, p, extra);

    a.out = place_out(&desk, &p->out, 0);
    if (desk.status == OAR_OK)
        oari_attend(&a);
    return oari_desk_clear(&desk);
}

static oar_status attend_back(oari_pool *pool, const parts *p,
                              const oari_extra *extra)
{
    oari_desk desk = { .pool = pool };
    oari_attention a = set_up(&desk, p, extra);

    a.out = place(&desk, &p->out);
    a.dq = place_out(&desk, p->dq, p->add_q);
    a.dk = place_out(&desk, p->dk, p->add_k);
    a.dv = place_out(&desk, p->dv, p->add_v);
    a.add_q = p->add_q;
    a.add_k = p->add_k;
    a.add_v = p->add_v;
    if (desk.status == OAR_OK)
        oari_attend_back(&a);
    return oari_desk_clear(&desk);
}

/* ---- three tensors ------------------------------------------------------ */

/* All gradients at once: that of q to dq, or nowhere; the others to the stash.
 */
static oar_status all_back(oari_node *node, const oari_array *dq, int add)
{
    oar_tensor *k = node->saved[K], *v = node->saved[V];
    oari_array dk, dv;
    parts p = { .q = oari_array_of(node->saved[Q]),
                .k = oari_array_of(k),
                .v = oari_array_of(v),
                .out = oari_array_of(node->grad),
                .lse = oari_array_of(node->saved[LSE]),
                .dq = dq,
                .add_q = add };

    OARI_TRY(oari_stash_open(node, K, k->dtype, k->at.shape, &dk));
    OARI_TRY(oari_stash_open(node, V, v->dtype, v->at.shape, &dv));
    p.dk = node->stash[K] != NULL ? &dk : NULL;
    p.dv = node->stash[V] != NULL ? &dv : NULL;
    return attend_back(&node->tape->pool, &p, &node->extra);
}

static oar_status attention_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    return oari_stash_backward(node, i, to, add, all_back);
}

static const oari_op attention_op = { .name = "attention",
                                      .backward = attention_back };

static oar_status mismatch(const oar_tensor *q, const oar_tensor *k,
                           const oar_tensor *v, const char *why)
{
    return oari_fail(OAR_E_SHAPE, "attention of q %s, k %s, v %s: %s",
                     oari_shape_text(q->at.shape).text,
                     oari_shape_text(k->at.shape).text,
                     oari_shape_text(v->at.shape).text, why);
}

static oar_status check_shapes(const oar_tensor *q, const oar_tensor *k,
                               const oar_tensor *v)
{
    const oar_shape *a = &q->at.shape, *b = &k->at.shape, *c = &v->at.shape;
    int n = a->ndim;

    if (n < 2 || b->ndim != n || c->ndim != n)
        return mismatch(q, k, v, "they have the same dims, at least two");
    for (int i = 0; i < n - 2; i++)
        if (a->dim[i] != b->dim[i] || a->dim[i] != c->dim[i])
            return mismatch(q, k, v, "the leading dims differ");
    if (a->dim[n - 1] != b->dim[n - 1])
        return mismatch(q, k, v, "q and k differ in the last dim");
    if (b->dim[n - 2] != c->dim[n - 2])
        return mismatch(q, k, v, "k and v differ in the dim before the last");
    for (int i = n - 2; i < n; i++)
        if (a->dim[i] > INT_MAX || c->dim[i] > INT_MAX)
            return mismatch(q, k, v, "CBLAS counts in 32 bits");
    return OAR_OK;
}

static oar_status check(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                        oar_tensor *v)
{
    OARI_TRY(
        oari_check_inputs("attention", tape, 3, (oar_tensor *[]){ q, k, v }));
    OARI_TRY(oari_check_same_dtype("attention", q, k));
    OARI_TRY(oari_check_same_dtype("attention", q, v));
    OARI_TRY(oari_check_float("attention", q));
    return check_shapes(q, k, v);
}

static oari_extra extra_of(const oar_attention_opts *o, int64_t width,
                           int heads)
{
    double scale = o->scale != 0 ? o->scale : 1 / sqrt((double)width);

    return (oari_extra){
        .attention = { .scale = scale, .heads = heads, .causal = o->causal }
    };
}

/* Room for the result and for lse; both or none. */
static oar_status make_both(oari_pool *pool, oar_dtype dtype, oar_shape shape,
                            int64_t rows, oar_tensor **out, oar_tensor **lse)
{
    *out = oari_tensor_make(pool, dtype, shape);
    if (*out == NULL)
        return OAR_E_NOMEM;
    *lse = oari_tensor_make(pool, oari_work_dtype(dtype), OAR_SHAPE(rows));
    if (*lse != NULL)
        return OAR_OK;
    oari_tensor_drop(pool, *out);
    *out = NULL;
    return OAR_E_NOMEM;
}

oar_tensor *oar_attention(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                          oar_tensor *v, const oar_attention_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out = NULL, *lse = NULL;
    oar_attention_opts o;
    oari_extra extra;
    oar_shape shape;
    int64_t rows;
    parts p;
    int n;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        check(tape, q, k, v) != OAR_OK)
        return NULL;
    shape = q->at.shape;
    n = shape.ndim;
    extra = extra_of(&o, shape.dim[n - 1], 0);
    shape.dim[n - 1] = 1;
    rows = oari_shape_count(shape);
    shape.dim[n - 1] = v->at.shape.dim[n - 1];
    if (make_both(pool, q->dtype, shape, rows, &out, &lse) != OAR_OK)
        return NULL;
    p = (parts){ .q = oari_array_of(q),
                 .k = oari_array_of(k),
                 .v = oari_array_of(v),
                 .out = oari_array_of(out),
                 .lse = oari_array_of(lse) };
    if (attend(pool, &p, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        out = NULL;
    }
    out = oari_emit(tape, out,
                    &(oari_recipe){ .op = &attention_op,
                                    .inputs = 3,
                                    .input = { q, k, v },
                                    .saved = { q, k, v, lse },
                                    .extra = extra });
    oari_tensor_drop(pool, lse);
    return out;
}

/* ---- packed ------------------------------------------------------------- */

/* Part number `part` of `count` that lie side by side in the last dim of
 * a [n, t, ..], as [n, heads, t, width of a head]. */
static oari_array heads_of(oari_array a, int64_t heads, int count, int part)
{
    int64_t width = a.at.shape.dim[2] / (heads * count);
    const int64_t *stride = a.at.stride;
    oari_layout at = {
        .shape = OAR_SHAPE(a.at.shape.dim[0], heads, a.at.shape.dim[1], width),
        .stride = { stride[0], width * stride[2], stride[1], stride[2] },
        .offset = a.at.offset + part * heads * width * stride[2],
    };

    a.at = at;
    return a;
}

static parts packed_parts(oari_array qkv, oari_array out, oari_array lse,
                          int64_t heads)
{
    return (parts){ .q = heads_of(qkv, heads, 3, 0),
                    .k = heads_of(qkv, heads, 3, 1),
                    .v = heads_of(qkv, heads, 3, 2),
                    .out = heads_of(out, heads, 1, 0),
                    .lse = lse };
}

static oar_status packed_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    int64_t heads = node->extra.attention.heads;
    parts p =
        packed_parts(oari_array_of(node->saved[0]), oari_array_of(node->grad),
                     oari_array_of(node->saved[1]), heads);
    oari_array dq = heads_of(*to, heads, 3, 0);
    oari_array dk = heads_of(*to, heads, 3, 1);
    oari_array dv = heads_of(*to, heads, 3, 2);

    p.dq = &dq;
    p.dk = &dk;
    p.dv = &dv;
    p.add_q = p.add_k = p.add_v = add;
    return attend_back(&node->tape->pool, &p, &node->extra);
}

static const oari_op packed_op = { .name = "attention",
                                   .backward = packed_back };

static oar_status check_packed(oar_tape *tape, oar_tensor *qkv, int heads)
{
    OARI_TRY(oari_check_inputs("attention", tape, 1, &qkv));
    OARI_TRY(oari_check_float("attention", qkv));
    if (qkv->at.shape.ndim == 3 && qkv->at.shape.dim[2] % (3 * heads) == 0)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "attention of %s with %d heads: it is [n, t, 3 width]",
                     oari_shape_text(qkv->at.shape).text, heads);
}

oar_tensor *oari_packed_attention(oar_tape *tape, oar_tensor *qkv, int heads,
                                  const oar_attention_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out, *lse;
    oari_extra extra;
    oar_shape shape;
    parts p;

    if (check_packed(tape, qkv, heads) != OAR_OK)
        return NULL;
    shape = qkv->at.shape;
    shape.dim[2] /= 3;
    extra = extra_of(opts, shape.dim[2] / heads, heads);
    if (make_both(pool, qkv->dtype, shape, shape.dim[0] * shape.dim[1] * heads,
                  &out, &lse) != OAR_OK)
        return NULL;
    p = packed_parts(oari_array_of(qkv), oari_array_of(out), oari_array_of(lse),
                     heads);
    if (attend(pool, &p, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        out = NULL;
    }
    out = oari_emit(tape, out,
                    &(oari_recipe){ .op = &packed_op,
                                    .inputs = 1,
                                    .input = { qkv },
                                    .saved = { qkv, lse },
                                    .extra = extra });
    oari_tensor_drop(pool, lse);
    return out;
}
