/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/host_comparison.h: the same collective twice: on host memory, over the
 * links, in the order of ranks; and on the GPU. The bits must be the same. */
#ifndef TESTS_GPU_HOST_COMPARISON_H
#define TESTS_GPU_HOST_COMPARISON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/backend.h>
#include <oarsong/device.h>
#include <oarsong/p2p.h>

#include "base/half.h"
#include "support/test_job.h"

enum { COMPARED_RANKS = 8, COMPARED_GUARD = 64 /* bytes behind a buffer */ };

/* A rank at work. */
typedef struct gpu_rank {
    test_job *c;
    int rank, ranks;
    oar_device gpu;
    oar_group *group;
    void *stream;
    uint64_t seed;
} gpu_rank;

typedef struct compared_call {
    oar_coll kind;
    oar_dtype dtype;
    oar_reduce_op op;
    size_t count; /* of a rank's part, more or less where it is ragged */
    int root, in_place, ragged;
    size_t skew; /* elements before the buffers */
    int hidden;  /* the device memory is one that cannot be shared */
    double weight;
} compared_call;

typedef struct compared_sizes {
    size_t in, out; /* elements */
    size_t in_part[COMPARED_RANKS], out_part[COMPARED_RANKS];
    const size_t *in_counts, *out_counts; /* what the call is given */
    size_t at; /* of my part in the row, where the kind has one */
} compared_sizes;

/* ---- sizes --------------------------------------------------------------- */

static inline size_t compared_part(const compared_call *t, int from, int to)
{
    if (!t->ragged)
        return t->count;
    return (from + to) % 3 == 1 ? 0 : t->count + (size_t)(2 * from + to);
}

static inline void compared_row(const compared_call *t, int ranks, int rank,
                                size_t part[COMPARED_RANKS], size_t *sum,
                                size_t *at)
{
    *sum = *at = 0;
    for (int r = 0; r < ranks; r++) {
        part[r] = compared_part(t, r, 0);
        *at += r < rank ? part[r] : 0;
        *sum += part[r];
    }
}

static inline void compared_exchange(const gpu_rank *s, const compared_call *t,
                                     compared_sizes *z)
{
    z->in = z->out = 0;
    for (int r = 0; r < s->ranks; r++) {
        z->in_part[r] = compared_part(t, s->rank, r);
        z->out_part[r] = compared_part(t, r, s->rank);
        z->in += z->in_part[r];
        z->out += z->out_part[r];
    }
    z->in_counts = t->ragged ? z->in_part : NULL;
    z->out_counts = t->ragged ? z->out_part : NULL;
}

/* Where the larger side is a row of parts. */
static inline void compared_rows(const gpu_rank *s, const compared_call *t,
                                 compared_sizes *z)
{
    int root = s->rank == t->root;
    size_t row;

    compared_row(t, s->ranks, s->rank, z->in_part, &row, &z->at);
    z->in = z->out = z->in_part[s->rank];
    if (t->kind == OAR_COLL_ALL_GATHER || t->kind == OAR_COLL_GATHER)
        z->out = t->kind == OAR_COLL_GATHER && !root ? 0 : row;
    else
        z->in = t->kind == OAR_COLL_SCATTER && !root ? 0 : row;
    if (t->ragged && (root || t->kind == OAR_COLL_ALL_GATHER ||
                      t->kind == OAR_COLL_REDUCE_SCATTER))
        z->in_counts = z->in_part;
}

static inline void compared_measure(const gpu_rank *s, const compared_call *t,
                                    compared_sizes *z)
{
    memset(z, 0, sizeof *z);
    switch (t->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_ALL_REDUCE: z->in = z->out = t->count; break;
    case OAR_COLL_REDUCE:
        z->in = t->count;
        z->out = s->rank == t->root ? t->count : 0;
        break;
    case OAR_COLL_ALL_TO_ALL: compared_exchange(s, t, z); break;
    default: compared_rows(s, t, z); break;
    }
}

/* ---- values -------------------------------------------------------------- */

static inline int compared_is_float(oar_dtype dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
           dtype == OAR_BF16;
}

static inline double compared_number(uint64_t random)
{
    static const double odd[] = { 0.0,     -0.0,  1.0 / 0.0, -1.0 / 0.0,
                                  0x1p-14, 65504, 0x1p-149,  1e300,
                                  0x1p-24, -2,    0x1p-130 };

    if (random % 13 == 0)
        return random / 13 % 40 == 0 ? __builtin_nan("")
                                     : odd[random / 13 % 11];
    return (double)(int64_t)(random >> 8) * 0x1p-55 - 0.5;
}

static inline void compared_write(unsigned char *at, oar_dtype dtype,
                                  uint64_t bits)
{
    double number = compared_number(bits);
    float single = (float)number;
    uint16_t half = dtype == OAR_F16 ? oari_f16_bits_from_f32(single)
                                     : oari_bf16_bits_from_f32(single);

    switch (dtype) {
    case OAR_F64: memcpy(at, &number, 8); break;
    case OAR_F32: memcpy(at, &single, 4); break;
    case OAR_F16:
    case OAR_BF16: memcpy(at, &half, 2); break;
    default: memcpy(at, &bits, oar_dtype_size(dtype)); break;
    }
}

static inline void compared_fill(gpu_rank *s, oar_dtype dtype,
                                 unsigned char *to, size_t count)
{
    size_t size = oar_dtype_size(dtype);

    for (size_t i = 0; i < count; i++)
        compared_write(to + i * size, dtype, next_random(&s->seed));
}

static inline int compared_is_nan(oar_dtype dtype, const unsigned char *at)
{
    double number;
    float single;
    uint16_t half;

    switch (dtype) {
    case OAR_F64: memcpy(&number, at, 8); return number != number;
    case OAR_F32: memcpy(&single, at, 4); return single != single;
    case OAR_F16: memcpy(&half, at, 2); return (half & 0x7fff) > 0x7c00;
    case OAR_BF16: memcpy(&half, at, 2); return (half & 0x7fff) > 0x7f80;
    default: return 0;
    }
}

/* The same bits; the bits of a NaN that arithmetic made are the machine's. */
static inline int compared_same(oar_dtype dtype, const unsigned char *a,
                                const unsigned char *b, size_t count)
{
    size_t size = oar_dtype_size(dtype);

    if (memcmp(a, b, count * size) == 0)
        return 1;
    for (size_t i = 0; i < count; i++, a += size, b += size)
        if (memcmp(a, b, size) != 0 &&
            !(compared_is_nan(dtype, a) && compared_is_nan(dtype, b))) {
            fprintf(stderr, "element %zu of %zu: ", i, count);
            for (size_t k = 0; k < size; k++)
                fprintf(stderr, "%02x/%02x ", a[k], b[k]);
            fprintf(stderr, "\n");
            return 0;
        }
    return 1;
}

/* ---- calling ------------------------------------------------------------- */

static inline oar_status compared_post(const gpu_rank *s,
                                       const compared_call *t,
                                       const compared_sizes *z, oar_span in,
                                       oar_span out, const oar_call_opts *o)
{
    oar_group *g = s->group;
    const size_t *counts = z->in_counts;

    switch (t->kind) {
    case OAR_COLL_BROADCAST: return oar_broadcast(g, in, t->root, o, NULL);
    case OAR_COLL_ALL_REDUCE:
        return oar_all_reduce_into(g, in, out, t->op, o, NULL);
    case OAR_COLL_REDUCE:
        return oar_reduce(g, in, out, t->op, t->root, o, NULL);
    case OAR_COLL_GATHER:
        return t->ragged ? oar_gather_v(g, in, out, counts, t->root, o, NULL)
                         : oar_gather(g, in, out, t->root, o, NULL);
    case OAR_COLL_SCATTER:
        return t->ragged ? oar_scatter_v(g, in, counts, out, t->root, o, NULL)
                         : oar_scatter(g, in, out, t->root, o, NULL);
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_v(g, in, out, counts, o, NULL);
    case OAR_COLL_REDUCE_SCATTER:
        return oar_reduce_scatter_v(g, in, counts, out, t->op, o, NULL);
    default:
        return oar_all_to_all_v(g, in, z->in_counts, out, z->out_counts, o,
                                NULL);
    }
}

/* Both sides in one block, each with a guard behind it: the larger one, then,
 * if it is not in place, the smaller. */
typedef struct compared_block {
    size_t in_at, out_at, bytes;
} compared_block;

static inline compared_block compared_lay_out(const compared_call *t,
                                              const compared_sizes *z)
{
    size_t size = oar_dtype_size(t->dtype), skew = t->skew * size;
    size_t in = z->in * size, out = z->out * size;
    compared_block b = { .in_at = skew, .out_at = skew };

    if (t->kind == OAR_COLL_BROADCAST || t->in_place) {
        b.bytes = skew + (in > out ? in : out) + COMPARED_GUARD;
        if (z->in < z->out)
            b.in_at += z->at * size;
        else if (z->out < z->in && z->out != 0)
            b.out_at += z->at * size;
        return b;
    }
    b.out_at = (skew + in + COMPARED_GUARD + 15) / 16 * 16 + skew;
    b.bytes = b.out_at + out + COMPARED_GUARD;
    return b;
}

static inline oar_span compared_span(const compared_call *t, void *block,
                                     size_t at, size_t count, oar_device device)
{
    oar_span span = oar_span_of((unsigned char *)block + at, count, t->dtype);

    span.device = device;
    if (count == 0)
        span.data = NULL;
    return span;
}

static inline oar_status compared_run(const gpu_rank *s, const compared_call *t,
                                      const compared_sizes *z,
                                      const compared_block *b, void *block,
                                      oar_device device)
{
    oar_call_opts o = oar_call_opts_init();

    o.weight = t->weight;
    o.canonical = 1;
    o.stream = device.kind == OAR_CUDA ? s->stream : NULL;
    return compared_post(
        s, t, z, compared_span(t, block, b->in_at, z->in, device),
        compared_span(t, block, b->out_at, z->out, device), &o);
}

static inline oar_status compared_copy(const gpu_rank *s, void *to,
                                       oar_device there, const void *from,
                                       oar_device here, size_t bytes)
{
    oar_status status =
        oar_device_copy(to, there, from, here, bytes, s->stream);

    return status != OAR_OK ? status
                            : oar_stream_synchronize(s->gpu, s->stream);
}

/* On the device, whose memory has been given. */
static inline oar_status compared_on_device(const gpu_rank *s,
                                            const compared_call *t,
                                            const compared_sizes *z,
                                            const compared_block *b,
                                            unsigned char *host, void *memory)
{
    oar_device cpu = oar_device_of(OAR_CPU, 0);
    oar_status status =
        oar_device_copy(memory, s->gpu, host, cpu, b->bytes, s->stream);

    if (status == OAR_OK)
        status = compared_run(s, t, z, b, memory, s->gpu);
    if (status == OAR_OK)
        status = compared_copy(s, host, cpu, memory, s->gpu, b->bytes);
    return status;
}

static inline int compared_describe(const gpu_rank *s, const compared_call *t,
                                    const char *what)
{
    fprintf(stderr,
            "rank %d of %d: %s %s %s count %zu root %d%s%s skew %zu%s: %s: "
            "%s\n",
            s->rank, s->ranks, oar_coll_name(t->kind), oar_dtype_name(t->dtype),
            oar_reduce_op_name(t->op.kind), t->count, t->root,
            t->in_place ? " in place" : "", t->ragged ? " ragged" : "", t->skew,
            t->hidden ? " hidden" : "", what, oar_last_error_text());
    return 1;
}

/* What is around the buffers too, and an input that must stay as it was. */
static inline int compare_results(const compared_call *t,
                                  const compared_sizes *z,
                                  const compared_block *b,
                                  const unsigned char *host,
                                  const unsigned char *back)
{
    size_t skew = t->skew * oar_dtype_size(t->dtype);
    size_t end = b->bytes - COMPARED_GUARD;

    if (memcmp(host + end, back + end, COMPARED_GUARD) != 0)
        return 0;
    if (t->in_place || t->kind == OAR_COLL_BROADCAST)
        return memcmp(host, back, skew) == 0 &&
               compared_same(t->dtype, host + skew, back + skew,
                             z->in > z->out ? z->in : z->out);
    return memcmp(host, back, b->out_at) == 0 &&
           compared_same(t->dtype, host + b->out_at, back + b->out_at, z->out);
}

/* Both, and compares all bytes, what is around the buffers too. memory: the
 * device's to use; NULL: its own. 0: they are the same. */
static inline int compare_with_host(gpu_rank *s, const compared_call *t,
                                    void *memory)
{
    oar_device cpu = oar_device_of(OAR_CPU, 0);
    compared_sizes z;
    compared_block b;
    unsigned char *host, *back;
    void *own = NULL;
    oar_status first, second;
    int same;

    compared_measure(s, t, &z);
    b = compared_lay_out(t, &z);
    host = malloc(b.bytes);
    back = malloc(b.bytes);
    memset(host, 0x5c, b.bytes);
    compared_fill(s, t->dtype, host + b.in_at, z.in);
    memcpy(back, host, b.bytes);
    if (memory == NULL && oar_device_alloc(s->gpu, b.bytes, &own) != OAR_OK)
        return compared_describe(s, t, "no memory");
    second = compared_on_device(s, t, &z, &b, back, own != NULL ? own : memory);
    if (second != OAR_OK)
        return compared_describe(s, t, "device");
    first = compared_run(s, t, &z, &b, host, cpu);
    if (first != OAR_OK)
        return compared_describe(s, t, "host");
    same = compare_results(t, &z, &b, host, back);
    oar_device_free(s->gpu, own, s->stream);
    free(host);
    free(back);
    return same ? 0 : compared_describe(s, t, "differs");
}

/* ---- ranks --------------------------------------------------------------- */

static inline int compared_on_gpu(void)
{
    const char *text = getenv("OARSONG_TEST_GPU");

    return text != NULL && strcmp(text, "1") == 0;
}

/* devices: ranks are dealt out to so many. */
static inline int gpu_rank_open_on(gpu_rank *s, test_job *c, int rank,
                                   const char *backend, int devices)
{
    oar_group_opts o = oar_group_opts_init();

    memset(s, 0, sizeof *s);
    s->c = c;
    s->rank = rank;
    s->ranks = c->ranks;
    s->gpu = oar_device_of(OAR_CUDA, rank % devices);
    s->seed = (uint64_t)rank * 977 + 5;
    o.backend = backend;
    o.timeout_ms = 30000;
    RANK_CHECK(oar_device_set_current(s->gpu) == OAR_OK);
    RANK_CHECK(test_job_join(c, rank, &o, &s->group) == OAR_OK);
    RANK_CHECK(oar_stream_create(s->gpu, 0, &s->stream) == OAR_OK);
    return 0;
}

static inline int gpu_rank_open(gpu_rank *s, test_job *c, int rank,
                                const char *backend)
{
    return gpu_rank_open_on(s, c, rank, backend, 1);
}

static inline void gpu_rank_close(gpu_rank *s)
{
    oar_stream_destroy(s->gpu, s->stream);
    oar_group_destroy(s->group);
}

#endif
