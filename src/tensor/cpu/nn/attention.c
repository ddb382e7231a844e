/* SPDX-License-Identifier: Apache-2.0 */
/* attention: softmax(q k' scale) v, head by head. A block of query rows sees
 * all its keys at once, so its probabilities are a block x keys matrix that
 * stays in cache, and nothing larger is ever held. */
#include "tensor/cpu/nn/attention.h"

#include "base/dtype.h"
#include "base/rng.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/product/gemm.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/target_clones.h"

enum {
    FEW_ROWS = 16,  /* of queries in a block while a head is small: with */
    MANY_ROWS = 64, /* causality fewer compute less that is not seen. Not
                       more: mask_scores has a bit for each */
    SMALL = 8192,   /* numbers in k or v */
    DRAWN = 256     /* random numbers at once */
};

static int64_t block_rows(const oari_attention *a)
{
    int64_t width = a->d > a->e ? a->d : a->e;
    int64_t rows = a->s * width <= SMALL ? FEW_ROWS : MANY_ROWS;

    return a->t < rows ? a->t : rows;
}

int oari_head_strides_of(const oari_array *a, oari_head_strides *strip)
{
    int n = a->at.shape.ndim;

    if (n < 2 || n > 4 ||
        (a->device.kind == OAR_CPU && oari_dtype_is_half(a->dtype)))
        return 0;
    if (a->at.stride[n - 1] != 1 && a->at.shape.dim[n - 1] > 1)
        return 0;
    if (a->at.shape.dim[n - 2] > 1 &&
        a->at.stride[n - 2] < a->at.shape.dim[n - 1])
        return 0;
    *strip = (oari_head_strides){ .data = oari_array_data(a),
                                  .outer = n > 3 ? a->at.stride[n - 4] : 0,
                                  .head = n > 2 ? a->at.stride[n - 3] : 0,
                                  .row = a->at.shape.dim[n - 2] > 1
                                             ? a->at.stride[n - 2]
                                             : a->at.shape.dim[n - 1],
                                  .shared = 1 };
    return 1;
}

/* A block of rows of one head. */
typedef struct block {
    const oari_attention *a;
    int64_t outer, head;
    int64_t first, rows;
    int64_t keys; /* that any of the rows sees */
} block;

static void *element_at(const block *b, const oari_head_strides *s, int64_t row)
{
    int64_t bytes = b->a->dtype == OAR_F32 ? 4 : 8;
    int64_t head = b->head / s->shared;

    return (char *)s->data +
           bytes * (b->outer * s->outer + head * s->head + row * s->row);
}

static void *lse_at(const block *b)
{
    int64_t head = b->outer * b->a->heads + b->head;
    int64_t bytes = b->a->dtype == OAR_F32 ? 4 : 8;

    return (char *)b->a->lse + bytes * (head * b->a->t + b->first);
}

static oari_matrix plain(const void *data, int64_t lead)
{
    return (oari_matrix){ data, lead, 0 };
}

static oari_matrix turned(const void *data, int64_t lead)
{
    return (oari_matrix){ data, lead, 1 };
}

/* How many keys a row sees. */
static int64_t seen_keys(const oari_attention *a, int64_t row)
{
    return a->causal && row + 1 < a->s ? row + 1 : a->s;
}

/* p [rows, keys] = left times right over width, where left's rows are the
 * block's and right [width, s] is k or v turned. */
static void row_products(const block *b, void *p, const oari_head_strides *left,
                         const void *right, int64_t width, double factor)
{
    oari_gemm(
        &(oari_gemm_job){ .dtype = b->a->dtype,
                          .m = b->rows,
                          .n = b->keys,
                          .k = width,
                          .factor = factor,
                          .a = plain(element_at(b, left, b->first), left->row),
                          .b = plain(right, b->a->s),
                          .c = p,
                          .lead = b->keys });
}

/* to, the block's rows, (+)= factor p times right. */
static void mix_rows(const block *b, const oari_head_strides *to, int add,
                     double factor, const void *p,
                     const oari_head_strides *right, int64_t width)
{
    oari_gemm(&(oari_gemm_job){ .dtype = b->a->dtype,
                                .m = b->rows,
                                .n = width,
                                .k = b->keys,
                                .factor = factor,
                                .a = plain(p, b->keys),
                                .b = plain(element_at(b, right, 0), right->row),
                                .c = element_at(b, to, b->first),
                                .lead = to->row,
                                .add = add });
}

/* to, rows of keys, (+)= factor p' times left, whose rows are the block's. */
static void mix_keys(const block *b, const oari_head_strides *to, int add,
                     double factor, const void *p,
                     const oari_head_strides *left, int64_t width)
{
    oari_gemm(
        &(oari_gemm_job){ .dtype = b->a->dtype,
                          .m = b->keys,
                          .n = width,
                          .k = b->rows,
                          .factor = factor,
                          .a = turned(p, b->keys),
                          .b = plain(element_at(b, left, b->first), left->row),
                          .c = element_at(b, to, 0),
                          .lead = to->row,
                          .add = add });
}

/* ---- masks --------------------------------------------------------------- */

/* Where a row of the block begins in a mask. */
static int64_t mask_offset(const block *b, const oari_layout *m, int64_t row)
{
    int n = m->shape.ndim;
    int64_t at = (b->first + row) * m->stride[n - 2], left = b->outer;

    if (n > 2)
        at += b->head * m->stride[n - 3];
    for (int i = n - 4; i >= 0; left /= m->shape.dim[i--])
        at += left % m->shape.dim[i] * m->stride[i];
    return at;
}

/* Adds the mask to the scores, minus infinity where it hides. A row whose keys
 * are all hidden gets zeros instead. Returns a bit for each such row. */
OARI_TARGET_CLONES static uint64_t mask_scores(const block *b, void *scores)
{
    const oari_array *m = &b->a->mask;
    const int64_t keys = b->keys, step = m->at.stride[m->at.shape.ndim - 1];
    uint64_t blind = 0;

    OARI_BY_FLOAT(b->a->dtype, {
        T *p = scores;
        for (int64_t i = 0; i < b->rows; i++, p += keys) {
            int64_t from = mask_offset(b, &m->at, i);
            int hidden = 1;
            if (m->dtype == OAR_BOOL) {
                const uint8_t *shown = (uint8_t *)oari_array_data(m) + from;
                for (int64_t k = 0; k < keys; k++)
                    p[k] = shown[k * step] ? p[k] : (T)-INFINITY;
            } else {
                const T *more = (T *)oari_array_data(m) + from;
                for (int64_t k = 0; k < keys; k++)
                    p[k] += more[k * step];
            }
            for (int64_t k = seen_keys(b->a, b->first + i) - 1; k >= 0; k--)
                hidden &= p[k] == (T)-INFINITY;
            for (int64_t k = 0; hidden && k < keys; k++)
                p[k] = 0;
            blind |= (uint64_t)hidden << i;
        }
    })
    return blind;
}

/* Sets rows to zero, by their bits. */
static void clear_rows(const block *b, void *rows, uint64_t which)
{
    OARI_BY_FLOAT(b->a->dtype, {
        T *p = rows;
        for (; which != 0; which >>= 1, p += b->keys)
            for (int64_t k = 0; which & 1 && k < b->keys; k++)
                p[k] = 0;
    })
}

/* Adds the gradient of the scores to that of the mask. */
static void add_mask_grads(const block *b, const void *grad)
{
    const oari_array *m = &b->a->dmask;
    const int64_t step = m->at.stride[m->at.shape.ndim - 1];

    OARI_BY_FLOAT(b->a->dtype, {
        const T *g = grad;
        for (int64_t i = 0; i < b->rows; i++, g += b->keys) {
            T *y = (T *)oari_array_data(m) + mask_offset(b, &m->at, i);
            for (int64_t k = 0; k < b->keys; k++)
                y[k * step] += g[k];
        }
    })
}

/* ---- probabilities ------------------------------------------------------- */

/* Leaves out elements of the block's rows x [rows, keys], as oar_dropout does
 * of a tensor [.., heads, t, s]. */
static void drop_elements(const block *b, void *x)
{
    const oari_attention *a = b->a;
    uint64_t head =
        (uint64_t)(b->outer * a->all_heads + a->first_head + b->head);
    oari_rng rng = { .seed = a->seed };
    float drawn[DRAWN];

    if (a->dropout == 0)
        return;
    OARI_BY_FLOAT(a->dtype, {
        const T factor = (T)(a->dropout < 1 ? 1 / (1 - a->dropout) : 0);
        for (int64_t i = 0; i < b->rows; i++) {
            uint64_t row = head * (uint64_t)a->t + (uint64_t)(b->first + i);
            T *p = (T *)x + i * b->keys;
            for (int64_t k = 0; k < b->keys; k += DRAWN) {
                int64_t n = b->keys - k < DRAWN ? b->keys - k : DRAWN;
                oari_rng_uniform_f32(rng, row * (uint64_t)a->s + (uint64_t)k,
                                     drawn, (size_t)n);
                for (int64_t m = 0; m < n; m++)
                    p[k + m] = (double)drawn[m] >= a->dropout
                                   ? p[k + m] * factor
                                   : (T)0;
            }
        }
    })
}

/* Makes scores probabilities and keeps each row's logarithm. What a row does
 * not see is computed too, because whole vectors are quicker, and then set to
 * zero. */
OARI_TARGET_CLONES static void make_probabilities(const block *b, void *scores)
{
    const int64_t keys = b->keys;

    OARI_BY_FLOAT(b->a->dtype, {
        T *p = scores;
        T *lse = lse_at(b);
        for (int64_t i = 0; i < b->rows; i++, p += keys) {
            int64_t n = seen_keys(b->a, b->first + i);
            const T most = OARI_ROW_MAX(p, n);
            T total;
            OARI_EXP_LESS(p, p, most, keys);
            for (int64_t k = n; k < keys; k++)
                p[k] = 0;
            total = OARI_ROW_SUM(p, keys);
            lse[i] = most + (T)log((double)total);
            total = 1 / total;
            for (int64_t k = 0; k < keys; k++)
                p[k] *= total;
        }
    })
}

/* The same probabilities again, from what was kept. For large scores the kept
 * logarithm is rounded to more than a probability may be off, and all of a row
 * by the same factor: dividing by their sum takes it out. */
OARI_TARGET_CLONES static void restore_probabilities(const block *b,
                                                     void *scores)
{
    const int64_t keys = b->keys;

    OARI_BY_FLOAT(b->a->dtype, {
        T *p = scores;
        const T *lse = lse_at(b);
        for (int64_t i = 0; i < b->rows; i++, p += keys) {
            OARI_EXP_LESS(p, p, lse[i], keys);
            for (int64_t k = seen_keys(b->a, b->first + i); k < keys; k++)
                p[k] = 0;
            const T factor = 1 / OARI_ROW_SUM(p, keys);
            for (int64_t k = 0; k < keys; k++)
                p[k] *= factor;
        }
    })
}

/* Makes the gradient of the probabilities that of the scores. */
OARI_TARGET_CLONES static void make_score_grads(const block *b,
                                                const void *prob, void *grad)
{
    const int64_t keys = b->keys;

    OARI_BY_FLOAT(b->a->dtype, {
        const T *p = prob;
        T *g = grad;
        for (int64_t i = 0; i < b->rows; i++, p += keys, g += keys) {
            int64_t n = seen_keys(b->a, b->first + i);
            const T dot = OARI_ROW_DOT(p, g, n);
            for (int64_t k = 0; k < keys; k++)
                g[k] = p[k] * (g[k] - dot);
            for (int64_t k = n; k < keys; k++)
                g[k] = 0;
        }
    })
}

/* Where things are in the scratch memory. */
typedef struct operands {
    char *keys;   /* k turned, [d, s] */
    char *values; /* v turned, [e, s] */
    char *prob, *grad;
} operands;

static operands desk_of(const oari_attention *a)
{
    int64_t bytes = a->dtype == OAR_F32 ? 4 : 8;
    operands d = { .keys = a->scratch };

    d.values = d.keys + bytes * a->d * a->s;
    d.prob = d.values + bytes * a->e * a->s;
    d.grad = d.prob + bytes * block_rows(a) * a->s;
    return d;
}

int64_t oari_attend_scratch(const oari_attention *a)
{
    return (a->d + a->e + 2 * block_rows(a)) * a->s;
}

/* to [width, s] = the rows of from, turned. */
static void transpose_rows(const oari_attention *a, void *to, const void *from,
                           int64_t row, int64_t width)
{
    OARI_BY_FLOAT(a->dtype, {
        const T *x = from;
        T *y = to;
        for (int64_t k = 0; k < width; k++)
            for (int64_t i = 0; i < a->s; i++)
                y[k * a->s + i] = x[i * row + k];
    })
}

static void forward_block(const block *b)
{
    const oari_attention *a = b->a;
    operands d = desk_of(a);
    uint64_t blind = 0;

    row_products(b, d.prob, &a->q, d.keys, a->d, a->scale);
    if (b->keys > 0) {
        if (a->mask.data != NULL)
            blind = mask_scores(b, d.prob);
        make_probabilities(b, d.prob);
        clear_rows(b, d.prob, blind);
        drop_elements(b, d.prob);
    }
    mix_rows(b, &a->out, 0, 1, d.prob, &a->v, a->e);
}

/* What the scores of the block give: to q, k and the mask. stores: this is the
 * first that k gets. */
static void backward_scores(const block *b, int stores)
{
    const oari_attention *a = b->a;
    operands d = desk_of(a);

    row_products(b, d.grad, &a->out, d.values, a->e, 1);
    drop_elements(b, d.grad);
    make_score_grads(b, d.prob, d.grad);
    if (a->dmask.data != NULL)
        add_mask_grads(b, d.grad);
    if (a->dq.data != NULL)
        mix_rows(b, &a->dq, a->add_q, a->scale, d.grad, &a->k, a->d);
    if (a->dk.data != NULL)
        mix_keys(b, &a->dk, a->add_k || !stores, a->scale, d.grad, &a->q, a->d);
}

/* The last block of the first head that uses the keys, which comes first,
 * stores what they get: with causality it is the one that reaches them all. */
static void backward_block(const block *b)
{
    const oari_attention *a = b->a;
    operands d = desk_of(a);
    int stores = b->first + b->rows == a->t && b->head % a->k.shared == 0;
    uint64_t blind = 0;

    row_products(b, d.prob, &a->q, d.keys, a->d, a->scale);
    if (a->mask.data != NULL)
        blind = mask_scores(b, d.prob);
    restore_probabilities(b, d.prob);
    clear_rows(b, d.prob, blind);
    if (a->dq.data != NULL || a->dk.data != NULL || a->dmask.data != NULL)
        backward_scores(b, stores);
    if (a->dv.data == NULL)
        return;
    drop_elements(b, d.prob);
    mix_keys(b, &a->dv, a->add_v || !stores, 1, d.prob, &a->out, a->e);
}

static block block_at(const oari_attention *a, int64_t outer, int64_t head,
                      int64_t first)
{
    int64_t left = a->t - first, rows = block_rows(a);

    if (rows > left)
        rows = left;

    return (block){ .a = a,
                    .outer = outer,
                    .head = head,
                    .first = first,
                    .rows = rows,
                    .keys = seen_keys(a, first + rows - 1) };
}

oar_status oari_attend(const oari_attention *a)
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t h = 0; h < a->heads; h++) {
            block b = { .a = a, .outer = o, .head = h };

            if (h % a->k.shared == 0)
                transpose_rows(a, desk_of(a).keys, element_at(&b, &a->k, 0),
                               a->k.row, a->d);
            for (int64_t i = 0; i < a->t; i += block_rows(a)) {
                b = block_at(a, o, h, i);
                forward_block(&b);
            }
        }
    return OAR_OK;
}

/* Sets the gradient rows of keys from `first` on to zero. */
static void clear_keys(const oari_attention *a, const oari_head_strides *to,
                       int add, const block *b, int64_t first, int64_t width)
{
    for (int64_t i = first; to->data != NULL && !add && i < a->s; i++)
        OARI_BY_FLOAT(a->dtype, {
            T *y = element_at(b, to, i);
            for (int64_t k = 0; k < width; k++)
                y[k] = 0;
        })
}

/* From the last block to the first: the last stores, the others add. */
static void backward_head(const oari_attention *a, int64_t outer, int64_t head)
{
    int64_t rows = block_rows(a), blocks = rows > 0 ? (a->t - 1) / rows + 1 : 0;
    int64_t reached = a->t > 0 ? seen_keys(a, a->t - 1) : 0;
    block b = { .a = a, .outer = outer, .head = head };

    if (head % a->k.shared == 0) {
        transpose_rows(a, desk_of(a).keys, element_at(&b, &a->k, 0), a->k.row,
                       a->d);
        transpose_rows(a, desk_of(a).values, element_at(&b, &a->v, 0), a->v.row,
                       a->e);
        clear_keys(a, &a->dk, a->add_k, &b, reached, a->d);
        clear_keys(a, &a->dv, a->add_v, &b, reached, a->e);
    }
    for (int64_t i = blocks - 1; i >= 0; i--) {
        b = block_at(a, outer, head, i * rows);
        backward_block(&b);
    }
}

oar_status oari_attend_back(const oari_attention *a)
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t h = 0; h < a->heads; h++)
            backward_head(a, o, h);
    return OAR_OK;
}
