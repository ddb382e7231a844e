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
 * on all ranks, because means are, and because the arithmetic on them has one
 * order on each kind of device. Vectors, small matrices and the reducer's flags
 * are sent in full with P. On a GPU everything is on the current stream.
 */
#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"
#include "tensor/kernel_table.h"

enum { DEFAULT_START = 10, MOST_RANK = 64 };

/* One array. */
typedef struct matrix {
    int64_t rows, columns; /* 0 rows: sent in full */
    oar_storage *q;        /* r rows of m: kept from pass to pass */
    oar_storage *lost;     /* n x m, or NULL */
} matrix;

/* The data that one bucket sends: P or Q of its matrices, and all else. */
typedef struct message {
    oar_storage *thin, *rest;
    oar_storage *kept; /* P while Q is sent */
    size_t thin_count, rest_count;
} message;

typedef struct power {
    oar_power_sgd_opts opts;
    int rank, arrays, messages;
    int64_t pass;
    matrix *matrix;
    message *message; /* by bucket */
} power;

/* ---- memory -------------------------------------------------------------- */

static int is_thin(const power *p, const oar_bucket *b, int i)
{
    return b->data.dtype == OAR_F32 && p->matrix[b->array[i]].rows != 0;
}

static size_t thin_count(const power *p, const matrix *m, int of_q)
{
    return (size_t)(of_q ? m->columns : m->rows) * (size_t)p->rank;
}

/* Makes room for floats; sent: peers on the host can reach it. */
static oar_status make_room(const oar_bucket *b, size_t floats, int sent,
                            oar_storage **room)
{
    size_t bytes = floats * sizeof(float) + 1;

    return b->data.device.kind == OAR_CPU
               ? oar_storage_create(bytes, sent, room)
               : oar_storage_create_on(b->data.device, bytes, room);
}

/* Returns elements of a storage on the bucket's device. */
static oar_span span_of(const oar_bucket *b, oar_storage *storage, size_t first,
                        size_t count, oar_dtype dtype)
{
    oar_span span = oar_span_of((unsigned char *)oar_storage_data(storage) +
                                    first * oar_dtype_size(dtype),
                                count, dtype);

    span.device = b->data.device;
    return span;
}

static oar_status open_message(power *p, const oar_bucket *b, message **found)
{
    message *k;
    size_t n = 0, m = 0, whole = 0, size = oar_dtype_size(b->data.dtype);

    if (p->message == NULL) {
        p->message = oari_alloc((size_t)b->buckets, sizeof *p->message);
        if (p->message == NULL)
            return OAR_E_NOMEM;
        p->messages = b->buckets;
    }
    *found = k = &p->message[b->index];
    if (k->rest != NULL)
        return OAR_OK;
    for (int i = 0; i < b->arrays; i++)
        if (is_thin(p, b, i)) {
            n += thin_count(p, &p->matrix[b->array[i]], 0);
            m += thin_count(p, &p->matrix[b->array[i]], 1);
            whole += b->count[i];
        }
    k->rest_count = b->data.count - whole;
    if (k->thin == NULL)
        OARI_TRY(make_room(b, n > m ? n : m, 1, &k->thin));
    if (k->kept == NULL)
        OARI_TRY(make_room(b, n, 0, &k->kept));
    return make_room(b, k->rest_count * size / sizeof(float) + 1, 1, &k->rest);
}

/* The iteration begins with the same random numbers on all ranks. */
static oar_status draw_q(power *p, const oar_bucket *b, int index)
{
    matrix *m = &p->matrix[index];
    size_t count = thin_count(p, m, 1);
    oar_span to, from;
    oar_status status;

    OARI_TRY(make_room(b, count, 0, &m->q));
    to = span_of(b, m->q, 0, count, OAR_F32);
    from = oar_span_of(oari_alloc(count, sizeof(float)), count, OAR_F32);
    if (from.data == NULL)
        return OAR_E_NOMEM;
    oari_rng_normal_f32((oari_rng){ p->opts.seed, (uint64_t)index }, 0,
                        from.data, count);
    status = oari_span_copy(&to, &from);
    oari_free(from.data);
    return status;
}

/* Gives what matrix i of the bucket keeps, made at its first pass. */
static oar_status open_matrix(power *p, const oar_bucket *b, int i)
{
    matrix *m = &p->matrix[b->array[i]];
    oar_span lost;

    if (m->q == NULL)
        OARI_TRY(draw_q(p, b, b->array[i]));
    if (m->lost != NULL || p->opts.no_feedback)
        return OAR_OK;
    OARI_TRY(make_room(b, b->count[i], 0, &m->lost));
    lost = span_of(b, m->lost, 0, b->count[i], OAR_F32);
    return oari_span_clear(&lost);
}

/* ---- a pass -------------------------------------------------------------- */

/* Copies everything but the thin matrices, gaps and flags included, into the
 * rest or (back) out of it. */
static oar_status move_rest(const power *p, const oar_bucket *b, message *k,
                            int back)
{
    oar_dtype dtype = b->data.dtype;
    size_t at = 0, to = 0;

    for (int i = 0; i <= b->arrays; i++) {
        int thin = i < b->arrays && is_thin(p, b, i);
        size_t end = thin ? b->at[i] : b->data.count;
        oar_span data = span_of(b, b->storage, at, end - at, dtype);
        oar_span rest = span_of(b, k->rest, to, end - at, dtype);

        if (i < b->arrays && !thin)
            continue;
        OARI_TRY(oari_span_copy(back ? &data : &rest, back ? &rest : &data));
        to += end - at;
        at = thin ? end + b->count[i] : end;
    }
    return OAR_OK;
}

/* Matrix i of the bucket, with P and Q of it at these places. */
static oari_low_rank low_rank_of(const power *p, const oar_bucket *b, int i,
                                 oar_storage *of_p, size_t at_p,
                                 oar_storage *of_q, size_t at_q)
{
    const matrix *m = &p->matrix[b->array[i]];
    oari_low_rank l = {
        .m = oari_host_array((float *)b->data.data + b->at[i], OAR_F32,
                             OAR_SHAPE(m->rows, m->columns)),
        .lost = m->lost != NULL ? oar_storage_data(m->lost) : NULL,
        .p = (float *)oar_storage_data(of_p) + at_p,
        .q = (float *)oar_storage_data(of_q) + at_q,
        .rank = p->rank
    };

    l.m.device = b->data.device;
    return l;
}

static oar_status compute_p(power *p, const oar_bucket *b, message *k)
{
    k->thin_count = 0;
    for (int i = 0; i < b->arrays; i++) {
        matrix *m = &p->matrix[b->array[i]];
        oari_low_rank l;

        if (!is_thin(p, b, i))
            continue;
        OARI_TRY(open_matrix(p, b, i));
        l = low_rank_of(p, b, i, k->thin, k->thin_count, m->q, 0);
        OARI_TRY(OARI_KERNEL(&l.m, low_rank_p, &l));
        k->thin_count += thin_count(p, m, 0);
    }
    return OAR_OK;
}

static oar_status reduce_thin(const oar_bucket *b, message *k, oar_group *group)
{
    return oar_all_reduce(group, span_of(b, k->thin, 0, k->thin_count, OAR_F32),
                          oari_bucket_op(b),
                          OAR_OPTS(oar_call_opts, .label = "thin gradients",
                                   .weight = b->weight,
                                   .canonical = b->canonical),
                          NULL);
}

static oar_status reduce_whole(const oar_bucket *b, oar_span data,
                               oar_group *group, oar_work **work)
{
    return oar_all_reduce(group, data, oari_bucket_op(b),
                          OAR_OPTS(oar_call_opts, .label = "gradients",
                                   .weight = b->weight,
                                   .canonical = b->canonical),
                          work);
}

/* A batch that an engine refuses is closed, empty: the reducer tries another
 * mean. */
static oar_status reduce_both(const oar_bucket *b, message *k, oar_group *group,
                              oar_work **work)
{
    oar_span rest = span_of(b, k->rest, 0, k->rest_count, b->data.dtype);
    oar_status status;
    oar_error why;

    OARI_TRY(oar_batch_begin(group));
    status = reduce_thin(b, k, group);
    if (status == OAR_OK)
        status = reduce_whole(b, rest, group, NULL);
    if (status == OAR_OK)
        return oar_batch_end(group, work);
    why = *oar_last_error();
    oar_batch_end(group, NULL);
    return oari_fail_with(&why);
}

static int is_full_pass(const power *p)
{
    return p->pass < (p->opts.start != 0 ? p->opts.start : DEFAULT_START);
}

static oar_status start_power_sgd(void *arg, oar_group *group,
                                  const oar_bucket *b, oar_work **work)
{
    power *p = arg;
    message *k;

    if (is_full_pass(p))
        return reduce_whole(b, b->data, group, work);
    OARI_TRY(open_message(p, b, &k));
    OARI_TRY(compute_p(p, b, k));
    OARI_TRY(move_rest(p, b, k, 0));
    return reduce_both(b, k, group, work);
}

/* Computes Q, the matrix transposed times the mean of P, which is kept. */
static oar_status compute_q(power *p, const oar_bucket *b, message *k)
{
    oar_span kept = span_of(b, k->kept, 0, k->thin_count, OAR_F32);
    oar_span thin = span_of(b, k->thin, 0, k->thin_count, OAR_F32);
    size_t at = 0;

    OARI_TRY(oari_span_copy(&kept, &thin));
    k->thin_count = 0;
    for (int i = 0; i < b->arrays; i++) {
        const matrix *m = &p->matrix[b->array[i]];
        oari_low_rank l;

        if (!is_thin(p, b, i))
            continue;
        l = low_rank_of(p, b, i, k->kept, at, k->thin, k->thin_count);
        OARI_TRY(OARI_KERNEL(&l.m, low_rank_q, &l));
        at += thin_count(p, m, 0);
        k->thin_count += thin_count(p, m, 1);
    }
    return OAR_OK;
}

static oar_status rebuild_matrices(power *p, const oar_bucket *b, message *k)
{
    size_t at_p = 0, at_q = 0;

    for (int i = 0; i < b->arrays; i++) {
        const matrix *m = &p->matrix[b->array[i]];
        size_t count = thin_count(p, m, 1);
        oar_span from, to;
        oari_low_rank l;

        if (!is_thin(p, b, i))
            continue;
        from = span_of(b, k->thin, at_q, count, OAR_F32);
        to = span_of(b, m->q, 0, count, OAR_F32);
        OARI_TRY(oari_span_copy(&to, &from));
        l = low_rank_of(p, b, i, k->kept, at_p, m->q, 0);
        OARI_TRY(OARI_KERNEL(&l.m, low_rank_back, &l));
        at_p += thin_count(p, m, 0);
        at_q += count;
    }
    return OAR_OK;
}

static oar_status finish_power_sgd(void *arg, oar_group *group,
                                   const oar_bucket *b)
{
    power *p = arg;
    message *k;

    if (!is_full_pass(p)) {
        k = &p->message[b->index];
        OARI_TRY(move_rest(p, b, k, 1));
        OARI_TRY(compute_q(p, b, k));
        OARI_TRY(reduce_thin(b, k, group));
        OARI_TRY(rebuild_matrices(p, b, k));
    }
    p->pass += b->index == b->buckets - 1;
    return OAR_OK;
}

/* ---- making -------------------------------------------------------------- */

static void forget_power_sgd(void *arg, int for_good)
{
    power *p = arg;

    for (int i = 0; i < p->messages; i++) {
        oar_storage_release(p->message[i].thin);
        oar_storage_release(p->message[i].kept);
        oar_storage_release(p->message[i].rest);
    }
    oari_free(p->message);
    p->message = NULL;
    p->messages = 0;
    if (!for_good)
        return;
    for (int i = 0; i < p->arrays; i++) {
        oar_storage_release(p->matrix[i].q);
        oar_storage_release(p->matrix[i].lost);
    }
    oari_free(p->matrix);
    oari_free(p);
}

static void take_matrix(power *p, int index, const int64_t shape[2])
{
    matrix *m = &p->matrix[index];
    double least = p->opts.least > 0 ? p->opts.least : 2;

    if (shape[0] <= 0 || shape[1] <= 0 ||
        (double)(shape[0] * shape[1]) <
            least * (double)(p->rank * (shape[0] + shape[1])))
        return;
    m->rows = shape[0];
    m->columns = shape[1];
}

oar_status oar_hook_power_sgd(int arrays, const int64_t (*shape)[2],
                              const oar_power_sgd_opts *opts,
                              oar_reduce_hook *hook)
{
    oar_reduce_hook made = { .size = sizeof made,
                             .start = start_power_sgd,
                             .finish = finish_power_sgd,
                             .forget = forget_power_sgd };
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
    if (p->matrix == NULL) {
        forget_power_sgd(p, 1);
        return OAR_E_NOMEM;
    }
    for (; p->arrays < arrays; p->arrays++)
        take_matrix(p, p->arrays, shape[p->arrays]);
    made.arg = p;
    return oari_struct_give(hook, &made, sizeof made, "hook");
}
