/* SPDX-License-Identifier: Apache-2.0 */
/* hook_power_sgd: sends a matrix M of n x m as P (n x r) and Q (m x r).
 *
 * One round of subspace iteration in each pass, begun where the last one ended:
 *
 *   P = M Q,  the mean of P over ranks,  made orthonormal,
 *   Q = M' P, the mean of Q over ranks,  and P Q' stands for the mean of M.
 *
 * The difference between this rank's M and P Q' is kept and added to its next
 * M, so that nothing is lost in the long run. P, Q and the result are the same
 * on all ranks, because means are. Vectors, small matrices and the reducer's
 * flags are sent in full with P.
 */
#include <math.h>
#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

enum { DEFAULT_START = 10, MOST_RANK = 64 };

/* One array. */
typedef struct matrix {
    int64_t rows, columns; /* 0 rows: sent in full */
    float *q;              /* r rows of m: kept from pass to pass */
    float *lost;           /* n x m, or NULL */
} matrix;

/* The data that one bucket sends: P or Q of its matrices, and all else. */
typedef struct message {
    oar_storage *thin, *rest;
    size_t thin_count, rest_count;
} message;

typedef struct power {
    oar_power_sgd_opts opts;
    int rank, arrays, messages;
    int64_t pass;
    matrix *matrix;
    message *message; /* by bucket */
} power;

/* ---- which arrays -------------------------------------------------------- */

static int is_thin(const power *p, const oar_bucket *b, int i)
{
    return b->data.dtype == OAR_F32 && p->matrix[b->array[i]].rows != 0;
}

static size_t thin_count(const power *p, const matrix *m, int of_q)
{
    return (size_t)(of_q ? m->columns : m->rows) * (size_t)p->rank;
}

static oar_status open_message(power *p, const oar_bucket *b, message **found)
{
    message *k;
    size_t n = 0, m = 0, whole = 0;

    if (p->message == NULL) {
        p->message = oari_alloc((size_t)b->buckets, sizeof *p->message);
        if (p->message == NULL)
            return OAR_E_NOMEM;
        p->messages = b->buckets;
    }
    *found = k = &p->message[b->index];
    if (k->thin != NULL)
        return OAR_OK;
    for (int i = 0; i < b->arrays; i++)
        if (is_thin(p, b, i)) {
            n += thin_count(p, &p->matrix[b->array[i]], 0);
            m += thin_count(p, &p->matrix[b->array[i]], 1);
            whole += b->count[i];
        }
    k->rest_count = b->data.count - whole;
    OARI_TRY(
        oar_storage_create((n > m ? n : m) * sizeof(float) + 1, 1, &k->thin));
    return oar_storage_create(k->rest_count * oar_dtype_size(b->data.dtype) + 1,
                              1, &k->rest);
}

/* ---- arithmetic ---------------------------------------------------------- */

static float dot(const float *a, const float *b, int64_t n)
{
    float sum[8] = { 0 }, all = 0;
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    for (int k = 0; k < 8; k++)
        all += sum[k];
    return all;
}

static void add_scaled(float *to, const float *from, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* Gram-Schmidt. A column that depends on those before it becomes zero. */
static void make_orthonormal(float *p, int64_t n, int rank)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + k * n, length;
        for (int j = 0; j < k; j++)
            add_scaled(column, p + j * n, -dot(p + j * n, column, n), n);
        length = sqrtf(dot(column, column, n));
        for (int64_t i = 0; i < n; i++)
            column[i] = length > 1e-30f ? column[i] / length : 0;
    }
}

/* Sets data = P Q' and `lost` to the difference. */
static void multiply_pq(const matrix *m, float *data, int rank, const float *p)
{
    for (int64_t i = 0; i < m->rows; i++) {
        float *row = data + i * m->columns;
        float *lost = m->lost != NULL ? m->lost + i * m->columns : NULL;

        if (lost != NULL)
            memcpy(lost, row, (size_t)m->columns * sizeof *row);
        memset(row, 0, (size_t)m->columns * sizeof *row);
        for (int k = 0; k < rank; k++)
            add_scaled(row, m->q + k * m->columns, p[k * m->rows + i],
                       m->columns);
        if (lost != NULL)
            add_scaled(lost, row, -1, m->columns);
    }
}

/* ---- a pass -------------------------------------------------------------- */

/* Copies everything but the thin matrices, gaps and flags included, into the
 * rest or (back) out of it. */
static void move_rest(const power *p, const oar_bucket *b, message *k, int back)
{
    size_t size = oar_dtype_size(b->data.dtype), at = 0, to = 0;
    unsigned char *data = b->data.data, *rest = oar_storage_data(k->rest);

    for (int i = 0; i <= b->arrays; i++) {
        int thin = i < b->arrays && is_thin(p, b, i);
        size_t end = thin ? b->at[i] : b->data.count;
        if (i < b->arrays && !thin)
            continue;
        memcpy(back ? data + at * size : rest + to * size,
               back ? rest + to * size : data + at * size, (end - at) * size);
        to += end - at;
        at = thin ? end + b->count[i] : end;
    }
}

static float *data_of(const oar_bucket *b, int i)
{
    return (float *)b->data.data + b->at[i];
}

/* Computes P, the matrix times Q: its columns lie one after the other. */
static void compute_p(power *p, const oar_bucket *b, message *k)
{
    float *thin = oar_storage_data(k->thin), *data, *column;

    k->thin_count = 0;
    for (int i = 0; i < b->arrays; i++) {
        matrix *m = &p->matrix[b->array[i]];
        if (!is_thin(p, b, i))
            continue;
        if (m->lost != NULL)
            add_scaled(data_of(b, i), m->lost, 1, m->rows * m->columns);
        data = data_of(b, i);
        column = thin + k->thin_count;
        for (int c = 0; c < p->rank; c++, column += m->rows)
            for (int64_t r = 0; r < m->rows; r++)
                column[r] = dot(data + r * m->columns, m->q + c * m->columns,
                                m->columns);
        k->thin_count += thin_count(p, m, 0);
    }
}

static oar_status reduce_thin(const oar_bucket *b, message *k, oar_group *group,
                              oar_work **work)
{
    return oar_all_reduce(
        group, oar_span_of(oar_storage_data(k->thin), k->thin_count, OAR_F32),
        oari_bucket_op(b),
        OAR_OPTS(oar_call_opts, .label = "thin gradients", .weight = b->weight,
                 .canonical = b->canonical),
        work);
}

static int is_full_pass(const power *p)
{
    int64_t start_power_sgd =
        p->opts.start != 0 ? p->opts.start : DEFAULT_START;

    return p->pass < start_power_sgd;
}

static oar_status start_power_sgd(void *arg, oar_group *group,
                                  const oar_bucket *b, oar_work **work)
{
    power *p = arg;
    message *k;
    oar_span rest = b->data;
    oar_call_opts o = oar_call_opts_init();

    if (b->data.device.kind != OAR_CPU)
        return oari_fail(OAR_E_DEVICE,
                         "PowerSGD of gradients on %s: it works on the cpu "
                         "only; oar_hook_half works there",
                         oar_device_text(b->data.device).text);
    o.label = "gradients";
    o.weight = b->weight;
    o.canonical = b->canonical;
    if (is_full_pass(p))
        return oar_all_reduce(group, rest, oari_bucket_op(b), &o, work);
    OARI_TRY(open_message(p, b, &k));
    compute_p(p, b, k);
    move_rest(p, b, k, 0);
    rest.data = oar_storage_data(k->rest);
    rest.count = k->rest_count;
    OARI_TRY(oar_batch_begin(group));
    OARI_TRY(reduce_thin(b, k, group, NULL));
    OARI_TRY(oar_all_reduce(group, rest, oari_bucket_op(b), &o, NULL));
    return oar_batch_end(group, work);
}

/* Computes Q, the matrix transposed times the mean of P, which is kept for
 * multiply_pq. */
static void compute_q(power *p, const oar_bucket *b, message *k, float *kept)
{
    float *thin = oar_storage_data(k->thin), *q;
    const float *data;
    size_t at = 0;

    memcpy(kept, thin, k->thin_count * sizeof *kept);
    k->thin_count = 0;
    for (int i = 0; i < b->arrays; i++) {
        matrix *m = &p->matrix[b->array[i]];
        if (!is_thin(p, b, i))
            continue;
        make_orthonormal(kept + at, m->rows, p->rank);
        data = data_of(b, i);
        q = thin + k->thin_count;
        memset(q, 0, thin_count(p, m, 1) * sizeof *q);
        for (int64_t r = 0; r < m->rows; r++)
            for (int c = 0; c < p->rank; c++)
                add_scaled(q + c * m->columns, data + r * m->columns,
                           kept[at + (size_t)(c * m->rows + r)], m->columns);
        at += thin_count(p, m, 0);
        k->thin_count += thin_count(p, m, 1);
    }
}

static void rebuild_matrices(power *p, const oar_bucket *b, message *k,
                             const float *kept)
{
    const float *thin = oar_storage_data(k->thin);

    for (int i = 0; i < b->arrays; i++) {
        matrix *m = &p->matrix[b->array[i]];
        if (!is_thin(p, b, i))
            continue;
        memcpy(m->q, thin, thin_count(p, m, 1) * sizeof *thin);
        multiply_pq(m, data_of(b, i), p->rank, kept);
        thin += thin_count(p, m, 1);
        kept += thin_count(p, m, 0);
    }
}

static oar_status finish_power_sgd(void *arg, oar_group *group,
                                   const oar_bucket *b)
{
    power *p = arg;
    message *k;
    float *kept;
    oar_status status;

    if (is_full_pass(p)) {
        p->pass += b->index == b->buckets - 1;
        return OAR_OK;
    }
    k = &p->message[b->index];
    move_rest(p, b, k, 1);
    kept = oari_alloc(k->thin_count + 1, sizeof *kept);
    if (kept == NULL)
        return OAR_E_NOMEM;
    compute_q(p, b, k, kept);
    status = reduce_thin(b, k, group, NULL);
    if (status == OAR_OK)
        rebuild_matrices(p, b, k, kept);
    oari_free(kept);
    p->pass += b->index == b->buckets - 1;
    return status;
}

/* ---- making -------------------------------------------------------------- */

static void forget_power_sgd(void *arg, int for_good)
{
    power *p = arg;

    for (int i = 0; i < p->messages; i++) {
        oar_storage_release(p->message[i].thin);
        oar_storage_release(p->message[i].rest);
    }
    oari_free(p->message);
    p->message = NULL;
    p->messages = 0;
    if (!for_good)
        return;
    for (int i = 0; i < p->arrays; i++) {
        oari_free(p->matrix[i].q);
        oari_free(p->matrix[i].lost);
    }
    oari_free(p->matrix);
    oari_free(p);
}

static oar_status take_matrix(power *p, int index, const int64_t shape[2])
{
    matrix *m = &p->matrix[index];
    double least = p->opts.least > 0 ? p->opts.least : 2;
    int64_t whole = shape[0] * shape[1];

    if (shape[0] <= 0 || shape[1] <= 0 ||
        (double)whole < least * (double)(p->rank * (shape[0] + shape[1])))
        return OAR_OK;
    m->rows = shape[0];
    m->columns = shape[1];
    m->q = oari_alloc((size_t)(m->columns * p->rank), sizeof *m->q);
    if (m->q == NULL)
        return OAR_E_NOMEM;
    /* The iteration begins with the same random numbers on all ranks. */
    oari_rng_normal_f32((oari_rng){ p->opts.seed, (uint64_t)index }, 0, m->q,
                        (size_t)(m->columns * p->rank));
    if (p->opts.no_feedback)
        return OAR_OK;
    m->lost = oari_alloc((size_t)whole, sizeof *m->lost);
    return m->lost != NULL ? OAR_OK : OAR_E_NOMEM;
}

oar_status oar_hook_power_sgd(int arrays, const int64_t (*shape)[2],
                              const oar_power_sgd_opts *opts,
                              oar_reduce_hook *hook)
{
    oar_reduce_hook made = { .size = sizeof made,
                             .start = start_power_sgd,
                             .finish = finish_power_sgd,
                             .forget = forget_power_sgd };
    oar_status status = OAR_OK;
    oar_power_sgd_opts o;
    power *p;

    if (hook == NULL || arrays < 0 || (arrays > 0 && shape == NULL))
        return oari_fail(OAR_E_ARG, "hook_power_sgd without %s",
                         hook == NULL ? "a place for it" : "shapes");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (o.rank < 0 || o.rank > MOST_RANK)
        return oari_fail(OAR_E_ARG, "hook_power_sgd of rank %d: 1 to %d",
                         o.rank, MOST_RANK);
    if ((p = oari_alloc(1, sizeof *p)) == NULL)
        return OAR_E_NOMEM;
    p->opts = o;
    p->rank = o.rank != 0 ? o.rank : 1;
    p->matrix = oari_alloc((size_t)arrays + 1, sizeof *p->matrix);
    if (p->matrix == NULL)
        status = OAR_E_NOMEM;
    for (; status == OAR_OK && p->arrays < arrays; p->arrays++)
        status = take_matrix(p, p->arrays, shape[p->arrays]);
    if (status != OAR_OK) {
        forget_power_sgd(p, 1);
        return status;
    }
    made.arg = p;
    return oari_struct_give(hook, &made, sizeof made, "hook");
}
