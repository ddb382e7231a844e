/* SPDX-License-Identifier: Apache-2.0 */
/* bench_check: one iteration on known numbers.
 *
 * Inputs repeat every PERIOD elements, so that expected results are looked up
 * in a table of that many. Numbers that are combined are 0 or 1: no dtype
 * rounds or overflows. Where each rank is the root in turn, the last one
 * decides what is left in the buffers, except in a broadcast, where the first
 * root's data has reached all. */
#include "bench.h"

#include <string.h>

#include "numbers.h"

enum { PERIOD = 251 }; /* prime: no shift by a part or a vector fits it */

typedef struct expected_table {
    unsigned char element[PERIOD][8];
} expected_table;

static double number(const bench_plan *p, int rank, size_t i)
{
    uint64_t bits = value_mix((uint64_t)rank, i % PERIOD);

    if (bench_kind_folds(p->kind) || p->dtype == OAR_BOOL)
        return (double)(bits & 1);
    return (double)(bits % 100);
}

static void write_number(oar_dtype dtype, double value, unsigned char *element)
{
    uint64_t whole = (uint64_t)value; /* never negative here */

    if (dtype <= OAR_BF16)
        float_write(dtype, value, element);
    else
        memcpy(element, &whole, oar_dtype_size(dtype));
}

static double combined(const bench_plan *p, size_t i)
{
    double sum = number(p, 0, i);
    int bit = (int)sum;

    for (int r = 1; r < p->ranks; r++) {
        double x = number(p, r, i);
        int low = x < sum;
        switch (p->op.kind) {
        case OAR_REDUCE_OP_PROD:
        case OAR_REDUCE_OP_BAND: sum *= x; break;
        case OAR_REDUCE_OP_MIN: sum = low ? x : sum; break;
        case OAR_REDUCE_OP_BOR:
        case OAR_REDUCE_OP_MAX: sum = low ? sum : x; break;
        case OAR_REDUCE_OP_BXOR: sum = bit ^= (int)x; break;
        default: sum += x; break;
        }
    }
    if (p->dtype == OAR_BOOL && sum > 1)
        return 1;
    return p->op.kind == OAR_REDUCE_OP_AVG ? sum / p->ranks : sum;
}

/* rank below 0: the combination of all. */
static void make_table(const bench_plan *p, int rank, expected_table *t)
{
    for (size_t i = 0; i < PERIOD; i++)
        write_number(p->dtype, rank < 0 ? combined(p, i) : number(p, rank, i),
                     t->element[i]);
}

static oar_status fill(const bench_point *at, oar_span s)
{
    const bench_plan *p = at->p;
    size_t size = oar_dtype_size(p->dtype);
    unsigned char *to = p->gpu ? at->mirror : s.data;
    expected_table t;

    make_table(p, at->rank, &t);
    for (size_t i = 0; i < s.count; i++)
        memcpy(to + i * size, t.element[i % PERIOD], size);
    return p->gpu ? bench_gpu_put(at, s) : OAR_OK;
}

/* Elements that are not those of `rank` from its element `start` on. */
static long compare(const bench_plan *p, const unsigned char *from,
                    size_t count, int rank, size_t start)
{
    size_t size = oar_dtype_size(p->dtype);
    long wrong = 0;
    expected_table t;

    make_table(p, rank, &t);
    for (size_t i = 0; i < count; i++)
        wrong +=
            memcmp(from + i * size, t.element[(start + i) % PERIOD], size) != 0;
    return wrong;
}

/* out is a row of parts, one from each rank. */
static long compare_parts(const bench_point *at, const unsigned char *out)
{
    size_t bytes = at->count * oar_dtype_size(at->p->dtype);
    int dealt = at->p->kind == BENCH_ALL_TO_ALL;
    long wrong = 0;

    for (int r = 0; r < at->p->ranks; r++)
        wrong += compare(at->p, out + (size_t)r * bytes, at->count, r,
                         dealt ? (size_t)at->rank * at->count : 0);
    return wrong;
}

static long count_differences(const bench_point *at, const unsigned char *out)
{
    const bench_plan *p = at->p;
    int last = p->ranks - 1;
    size_t start = (size_t)at->rank * at->count;

    switch (p->kind) {
    case BENCH_ALL_REDUCE: return compare(p, out, at->count, -1, 0);
    case BENCH_REDUCE:
        return at->in_place && at->rank != last
                   ? 0 /* the next roots combined what it had */
                   : compare(p, out, at->count, -1, 0);
    case BENCH_BROADCAST: return compare(p, out, at->count, 0, 0);
    case BENCH_REDUCE_SCATTER: return compare(p, out, at->count, -1, start);
    case BENCH_SCATTER: return compare(p, out, at->count, last, start);
    case BENCH_ALL_GATHER:
    case BENCH_GATHER:
    case BENCH_ALL_TO_ALL: return compare_parts(at, out);
    case BENCH_P2P: return at->rank < 2 ? compare(p, out, at->count, 0, 0) : 0;
    case BENCH_STREAM:
        return at->rank == 1 ? compare(p, out, at->count, 0, 0) : 0;
    default: return 0;
    }
}

/* In place, a reduce by every root in turn would combine results: only the last
 * root's is done. A scatter in place would deal out what was dealt out. */
static oar_status operate_once(const bench_point *at)
{
    int last = at->p->ranks - 1;

    if (at->in_place && at->p->kind == BENCH_REDUCE)
        return oar_reduce(at->group, at->in,
                          at->rank == last ? at->out
                                           : oar_span_of(NULL, 0, at->p->dtype),
                          at->p->op, last, NULL, NULL);
    if (at->in_place && at->p->kind == BENCH_SCATTER)
        return oar_scatter(
            at->group,
            at->rank == last ? at->in : oar_span_of(NULL, 0, at->p->dtype),
            at->out, last, NULL, NULL);
    return bench_operate(at);
}

static oar_status clear(const bench_point *at)
{
    if (at->bytes == 0)
        return OAR_OK;
    if (at->p->gpu)
        return bench_gpu_clear(at);
    memset(at->first, 0, at->bytes);
    memset(at->second, 0, at->bytes);
    return OAR_OK;
}

/* What came out, where the host can read it. */
static oar_status look(const bench_point *at, const unsigned char **out)
{
    *out = at->p->gpu ? at->mirror : at->out.data;
    return at->p->gpu ? bench_gpu_get(at, at->out) : OAR_OK;
}

oar_status bench_count_wrong(const bench_point *at, long *wrong)
{
    int broadcast = at->p->kind == BENCH_BROADCAST;
    const unsigned char *out;
    oar_status status;

    *wrong = 0;
    if ((status = clear(at)) != OAR_OK ||
        (status = fill(at, broadcast ? at->out : at->in)) != OAR_OK ||
        (status = operate_once(at)) != OAR_OK ||
        (status = look(at, &out)) != OAR_OK)
        return status;
    *wrong = count_differences(at, out);
    return clear(at);
}
