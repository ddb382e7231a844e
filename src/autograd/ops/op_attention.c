/* SPDX-License-Identifier: Apache-2.0 */
/* op_attention: attention of three tensors, or of one that packs them. Heads
 * are used where they lie if their last dim has no gaps. */
#include <limits.h>
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/ops/packed.h"
#include "autograd/record.h"
#include "autograd/replay.h"
#include "autograd/fused_backward.h"
#include "base/status.h"
#include "tensor/cpu/nn/attention.h"
#include "tensor/operands.h"

enum { Q, K, V, MASK, LSE, RESULT }; /* inputs, and what is saved */

/* What packed attention saves. */
enum { PACKED_QKV, PACKED_LSE, PACKED_RESULT };

/* Returns the result where backward reads it: on a GPU; else NULL. */
static oar_tensor *saved_result(oar_tensor *out)
{
    return out != NULL && oari_device_of(out).kind == OAR_CUDA ? out : NULL;
}

/* ---- the computation on arrays ------------------------------------------- */

/* Arrays of one attention; dims are [.., positions, width]. */
typedef struct parts {
    oari_array q, k, v, out, lse; /* out: in backward its gradient */
    oari_array result;            /* in backward on a GPU; .data NULL: none */
    const oar_tensor *mask;       /* or NULL */
    const oari_array *dq, *dk, *dv;
    int add_q, add_k, add_v;
    const oari_array *dmask; /* of the mask's shape, is added to; or NULL */
} parts;

/* Where the heads of a row-major array lie. */
static oari_head_strides strip_of_rows(const oari_array *a)
{
    int n = a->at.shape.ndim;
    int64_t width = a->at.shape.dim[n - 1], rows = a->at.shape.dim[n - 2];
    int64_t heads = n > 2 ? a->at.shape.dim[n - 3] : 1;

    return (oari_head_strides){ .data = oari_array_data(a),
                                .outer = heads * rows * width,
                                .head = rows * width,
                                .row = width,
                                .shared = 1 };
}

static oari_head_strides place_input(oari_operands *operands,
                                     const oari_array *a)
{
    oari_head_strides strip;

    if (oari_head_strides_of(a, &strip))
        return strip;
    return strip_of_rows(oari_operands_in(operands, a));
}

static oari_head_strides place_out(oari_operands *operands, oar_dtype dtype,
                                   const oari_array *to, int add)
{
    oari_head_strides strip = { 0 };

    if (to == NULL || (to->dtype == dtype && oari_head_strides_of(to, &strip)))
        return strip;
    return strip_of_rows(oari_operands_out_as(operands, to, dtype, add));
}

/* A mask, or its gradient, repeated to the scores of all heads. */
static oari_array repeat_mask(oari_array mask, const parts *p)
{
    oar_shape scores = p->q.at.shape;

    scores.dim[scores.ndim - 1] = p->v.at.shape.dim[scores.ndim - 2];
    mask.at = oari_layout_expand(&mask.at, scores);
    return mask;
}

/* Sizes, and where the inputs lie. */
static oari_attention set_up(oari_operands *operands, const parts *p,
                             const oari_extra *extra)
{
    const oar_shape *q = &p->q.at.shape, *v = &p->v.at.shape;
    int n = q->ndim;
    int64_t kv_heads = n > 2 ? p->k.at.shape.dim[n - 3] : 0;
    const int wide = oari_kernels_on(p->q.device)->wide;
    oari_attention a = { .device = p->q.device,
                         .dtype =
                             wide ? oari_work_dtype(p->q.dtype) : p->q.dtype,
                         .outer = 1,
                         .heads = n > 2 ? q->dim[n - 3] : 1,
                         .t = q->dim[n - 2],
                         .s = v->dim[n - 2],
                         .d = q->dim[n - 1],
                         .e = v->dim[n - 1],
                         .scale = extra->attention.scale,
                         .causal = extra->attention.causal,
                         .dropout = extra->attention.dropout,
                         .seed = extra->attention.seed,
                         .first_head = extra->attention.first_head,
                         .lse = oari_array_data(&p->lse) };

    a.all_heads =
        extra->attention.all_heads > 0 ? extra->attention.all_heads : a.heads;
    for (int i = 0; i < n - 3; i++)
        a.outer *= q->dim[i];
    a.q = place_input(operands, &p->q);
    a.k = place_input(operands, &p->k);
    a.v = place_input(operands, &p->v);
    /* how many heads of q use one of k's */
    a.k.shared = a.v.shared = kv_heads > 0 ? a.heads / kv_heads : 1;
    if (p->mask != NULL) {
        a.mask = oari_array_of(p->mask); /* used where it lies, if it can be */
        if (oari_dtype_is_half(a.mask.dtype))
            a.mask = *oari_operands_in(operands, &a.mask);
        a.mask = repeat_mask(a.mask, p);
    }
    return a;
}

static void take_scratch(oari_operands *operands, oari_attention *a)
{
    a->scratch =
        oari_operands_scratch(operands, a->device, oari_work_dtype(a->dtype),
                              oari_kernels_on(a->device)->attend_scratch(a));
}

static oar_status attend(oari_pool *pool, const parts *p,
                         const oari_extra *extra)
{
    oari_operands operands = { .pool = pool };
    oari_attention a = set_up(&operands, p, extra);

    a.out = place_out(&operands, a.dtype, &p->out, 0);
    take_scratch(&operands, &a);
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(&p->q, attend, &a);
    return oari_operands_finish(&operands);
}

static oar_status attend_back(oari_pool *pool, const parts *p,
                              const oari_extra *extra)
{
    oari_operands operands = { .pool = pool };
    oari_attention a = set_up(&operands, p, extra);

    a.out = place_input(&operands, &p->out);
    if (p->result.data != NULL)
        a.result = place_input(&operands, &p->result);
    a.dq = place_out(&operands, a.dtype, p->dq, p->add_q);
    a.dk = place_out(&operands, a.dtype, p->dk, p->add_k);
    a.dv = place_out(&operands, a.dtype, p->dv, p->add_v);
    a.dk.shared = a.dv.shared = a.k.shared;
    if (p->dmask != NULL)
        a.dmask = repeat_mask(*p->dmask, p);
    a.pool = pool;
    a.add_q = p->add_q;
    a.add_k = p->add_k;
    a.add_v = p->add_v;
    take_scratch(&operands, &a);
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(&p->q, attend_back, &a);
    return oari_operands_finish(&operands);
}

/* ---- three tensors ------------------------------------------------------- */

/* Computes all gradients at once: that of q goes to dq, which may be NULL, the
 * others to node->fused_grad. */
static oar_status attention_back_all(oari_node *node, const oari_array *dq,
                                     int add)
{
    oar_tensor *k = node->saved[K], *v = node->saved[V];
    oar_tensor *mask = node->saved[MASK];
    oari_array dk, dv, dmask;
    parts p = { .q = oari_array_of(node->saved[Q]),
                .k = oari_array_of(k),
                .v = oari_array_of(v),
                .out = oari_array_of(node->grad),
                .lse = oari_array_of(node->saved[LSE]),
                .mask = mask,
                .dq = dq,
                .add_q = add };

    if (node->saved[RESULT] != NULL)
        p.result = oari_array_of(node->saved[RESULT]);

    OARI_TRY(oari_fused_grad_open(node, K, k->dtype, k->at.shape, &dk));
    OARI_TRY(oari_fused_grad_open(node, V, v->dtype, v->at.shape, &dv));
    if (mask != NULL)
        OARI_TRY(oari_fused_grad_open(node, MASK, mask->dtype, mask->at.shape,
                                      &dmask));
    p.dk = node->fused_grad[K] != NULL ? &dk : NULL;
    p.dv = node->fused_grad[V] != NULL ? &dv : NULL;
    if (node->fused_grad[MASK] != NULL) {
        OARI_TRY(OARI_KERNEL(&dmask, fill, &dmask, 0));
        p.dmask = &dmask;
    }
    return attend_back(&node->tape->pool, &p, &node->extra);
}

static const oari_op_class attention_op = { .name = "attention",
                                            .fused_backward =
                                                attention_back_all };

static oar_status mismatch(const oar_tensor *q, const oar_tensor *k,
                           const oar_tensor *v, const char *why)
{
    return oari_fail(OAR_E_SHAPE, "attention of q %s, k %s, v %s: %s",
                     oari_shape_text(q->at.shape).text,
                     oari_shape_text(k->at.shape).text,
                     oari_shape_text(v->at.shape).text, why);
}

static oar_status check_mask(oar_tape *tape, const oar_tensor *q,
                             const oar_tensor *k, oar_tensor *mask)
{
    oar_shape scores = q->at.shape, both;

    if (mask == NULL)
        return OAR_OK;
    OARI_TRY(oari_check_inputs("attention", tape, 1, &mask));
    if (mask->dtype != OAR_BOOL && mask->dtype != q->dtype)
        return oari_fail(
            OAR_E_DTYPE,
            "attention of %s q %s with a mask %s %s: it is bool "
            "or of q's dtype",
            oar_dtype_name(q->dtype), oari_shape_text(q->at.shape).text,
            oar_dtype_name(mask->dtype), oari_shape_text(mask->at.shape).text);
    scores.dim[scores.ndim - 1] = k->at.shape.dim[scores.ndim - 2];
    if (oari_shape_broadcast(mask->at.shape, scores, &both) &&
        oari_shape_equal(both, scores))
        return OAR_OK;
    return oari_fail(
        OAR_E_SHAPE,
        "attention of q %s and k %s with a mask %s: it does not "
        "broadcast to %s",
        oari_shape_text(q->at.shape).text, oari_shape_text(k->at.shape).text,
        oari_shape_text(mask->at.shape).text, oari_shape_text(scores).text);
}

static oar_status check_attention(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                                  oar_tensor *v, const oar_attention_opts *o)
{
    const oar_shape *a, *b, *c;
    int n;

    OARI_TRY(
        oari_check_inputs("attention", tape, 3, (oar_tensor *[]){ q, k, v }));
    OARI_TRY(oari_check_same_dtype("attention", q, k));
    OARI_TRY(oari_check_same_dtype("attention", q, v));
    OARI_TRY(oari_check_float("attention", q));
    a = &q->at.shape;
    b = &k->at.shape;
    c = &v->at.shape;
    n = a->ndim;
    if (n < 2 || b->ndim != n || c->ndim != n)
        return mismatch(q, k, v, "they have the same dims, at least two");
    for (int i = 0; i < n - 2; i++)
        if (b->dim[i] != c->dim[i] || (a->dim[i] != b->dim[i] && i < n - 3))
            return mismatch(q, k, v, "the leading dims differ");
    if (n > 2 && a->dim[n - 3] != b->dim[n - 3] &&
        (b->dim[n - 3] == 0 || a->dim[n - 3] % b->dim[n - 3] != 0))
        return mismatch(q, k, v, "the heads of k and v do not divide q's");
    if (a->dim[n - 1] != b->dim[n - 1])
        return mismatch(q, k, v, "q and k differ in the last dim");
    if (b->dim[n - 2] != c->dim[n - 2])
        return mismatch(q, k, v, "k and v differ in the dim before the last");
    for (int i = n - 2; i < n; i++)
        if (a->dim[i] > INT_MAX || c->dim[i] > INT_MAX)
            return mismatch(q, k, v, "CBLAS counts in 32 bits");
    if (!(o->dropout >= 0 && o->dropout <= 1))
        return oari_fail(OAR_E_ARG,
                         "attention of q %s with dropout %g: from 0 to 1",
                         oari_shape_text(q->at.shape).text, o->dropout);
    if (o->all_heads < 0 || o->first_head < 0 ||
        (o->all_heads == 0 && o->first_head > 0) ||
        (o->all_heads > 0 &&
         (n > 2 ? a->dim[n - 3] : 1) > o->all_heads - o->first_head))
        return oari_fail(OAR_E_ARG,
                         "attention of q %s as heads from %d on of %d: they do "
                         "not fit",
                         oari_shape_text(q->at.shape).text, o->first_head,
                         o->all_heads);
    return check_mask(tape, q, k, o->mask);
}

/* heads and kv_heads of packed ones; else 0. */
static oar_status make_extra(oar_tape *tape, const oar_attention_opts *o,
                             int64_t width, int heads, int kv_heads,
                             oari_extra *extra)
{
    double scale = o->scale != 0 ? o->scale : 1 / sqrt((double)width);
    uint64_t seed = o->seed;

    if (o->dropout > 0)
        OARI_TRY(oari_replay_seed(tape, &seed));
    *extra = (oari_extra){ .attention = { .scale = scale,
                                          .heads = heads,
                                          .kv_heads = kv_heads,
                                          .causal = o->causal,
                                          .dropout = o->dropout,
                                          .all_heads = o->all_heads,
                                          .first_head = o->first_head,
                                          .seed = seed } };
    return OAR_OK;
}

/* Room for the result and for lse; both or none. */
static oar_status make_results(oari_pool *pool, const oar_tensor *like,
                               oar_shape shape, int64_t rows, oar_tensor **out,
                               oar_tensor **lse)
{
    *out = oari_tensor_make_on(pool, oari_device_of(like), like->dtype, shape);
    if (*out == NULL)
        return OAR_E_NOMEM;
    *lse = oari_tensor_make_on(pool, oari_device_of(like),
                               oari_work_dtype(like->dtype), OAR_SHAPE(rows));
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
        check_attention(tape, q, k, v, &o) != OAR_OK)
        return NULL;
    shape = q->at.shape;
    n = shape.ndim;
    if (make_extra(tape, &o, shape.dim[n - 1], 0, 0, &extra) != OAR_OK)
        return NULL;
    shape.dim[n - 1] = 1;
    rows = oari_shape_count(shape);
    shape.dim[n - 1] = v->at.shape.dim[n - 1];
    if (make_results(pool, q, shape, rows, &out, &lse) != OAR_OK)
        return NULL;
    p = (parts){ .q = oari_array_of(q),
                 .k = oari_array_of(k),
                 .v = oari_array_of(v),
                 .out = oari_array_of(out),
                 .lse = oari_array_of(lse),
                 .mask = o.mask };
    if (attend(pool, &p, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        out = NULL;
    }
    out = oari_emit(tape, out,
                    &(oari_node_record){
                        .op = &attention_op,
                        .inputs = 4,
                        .input = { q, k, v, o.mask },
                        .saved = { q, k, v, o.mask, lse, saved_result(out) },
                        .extra = extra });
    oari_tensor_drop(pool, lse);
    return out;
}

/* ---- packed -------------------------------------------------------------- */

/* `heads` heads of those that lie side by side in the last dim of a [n, t, ..],
 * from number `first` on, as [n, heads, t, width of a head]. */
static oari_array heads_of(oari_array a, int64_t first, int64_t heads,
                           int64_t width)
{
    const int64_t *stride = a.at.stride;
    oari_layout at = {
        .shape = OAR_SHAPE(a.at.shape.dim[0], heads, a.at.shape.dim[1], width),
        .stride = { stride[0], width * stride[2], stride[1], stride[2] },
        .offset = a.at.offset + first * width * stride[2],
    };

    a.at = at;
    return a;
}

/* Where q, k and v are in what packs them. */
typedef struct packed {
    oari_array q, k, v;
} packed;

static packed unpack_qkv(const oari_array *qkv, const oari_extra *extra)
{
    int64_t heads = extra->attention.heads, kv = extra->attention.kv_heads;
    int64_t width = qkv->at.shape.dim[2] / (heads + 2 * kv);

    return (packed){ .q = heads_of(*qkv, 0, heads, width),
                     .k = heads_of(*qkv, heads, kv, width),
                     .v = heads_of(*qkv, heads + kv, kv, width) };
}

static parts packed_parts(const oar_tensor *qkv, const oar_tensor *out,
                          const oar_tensor *lse, const oari_extra *extra)
{
    int64_t heads = extra->attention.heads;
    oari_array from = oari_array_of(qkv), to = oari_array_of(out);
    packed in = unpack_qkv(&from, extra);

    return (parts){ .q = in.q,
                    .k = in.k,
                    .v = in.v,
                    .out = heads_of(to, 0, heads, to.at.shape.dim[2] / heads),
                    .lse = oari_array_of(lse) };
}

static oar_status packed_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    parts p = packed_parts(node->saved[PACKED_QKV], node->grad,
                           node->saved[PACKED_LSE], &node->extra);
    packed d = unpack_qkv(to, &node->extra);
    oari_array result;

    if (node->saved[PACKED_RESULT] != NULL) {
        result = oari_array_of(node->saved[PACKED_RESULT]);
        p.result =
            heads_of(result, 0, node->extra.attention.heads,
                     result.at.shape.dim[2] / node->extra.attention.heads);
    }

    p.dq = &d.q;
    p.dk = &d.k;
    p.dv = &d.v;
    p.add_q = p.add_k = p.add_v = add;
    return attend_back(&node->tape->pool, &p, &node->extra);
}

static const oari_op_class packed_op = { .name = "attention",
                                         .backward = packed_back };

static oar_status check_packed(oar_tape *tape, oar_tensor *qkv, int heads,
                               int kv_heads)
{
    OARI_TRY(oari_check_inputs("attention", tape, 1, &qkv));
    OARI_TRY(oari_check_float("attention", qkv));
    if (qkv->at.shape.ndim == 3 &&
        qkv->at.shape.dim[2] % (heads + 2 * kv_heads) == 0)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "attention of %s with %d heads and %d of k and v: it is "
                     "[n, t, all heads]",
                     oari_shape_text(qkv->at.shape).text, heads, kv_heads);
}

oar_tensor *oari_packed_attention(oar_tape *tape, oar_tensor *qkv, int heads,
                                  int kv_heads, const oar_attention_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out, *lse;
    oari_extra extra;
    oar_shape shape;
    int64_t width;
    parts p;

    if (check_packed(tape, qkv, heads, kv_heads) != OAR_OK)
        return NULL;
    shape = qkv->at.shape;
    width = shape.dim[2] / (heads + 2 * kv_heads);
    shape.dim[2] = heads * width;
    if (make_extra(tape, opts, width, heads, kv_heads, &extra) != OAR_OK ||
        make_results(pool, qkv, shape, shape.dim[0] * shape.dim[1] * heads,
                     &out, &lse) != OAR_OK)
        return NULL;
    p = packed_parts(qkv, out, lse, &extra);
    if (attend(pool, &p, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        out = NULL;
    }
    out =
        oari_emit(tape, out,
                  &(oari_node_record){ .op = &packed_op,
                                       .inputs = 1,
                                       .input = { qkv },
                                       .saved = { qkv, lse, saved_result(out) },
                                       .extra = extra });
    oari_tensor_drop(pool, lse);
    return out;
}
