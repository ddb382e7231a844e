/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_launch: launches the kernels of device/cuda/reduce.cu. */
#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/reduce/reduce.h"
#include "base/reduce/reduce_isa.h"
#include "base/status.h"

/* ---- kernels ------------------------------------------------------------- */

/* Sums of few sources have kernels of their own. A reduction's number is its
 * dtype's; then come the sums. */
enum { FEW_2, FEW_4, FEW_8, FEWS };
enum { COPY = OAR_DTYPE_COUNT * (1 + FEWS), KERNELS };

static const int few_sources[FEWS] = { 2, 4, 8 };

/* NULL: there is none. */
typedef struct names {
    const char *reduce, *sum[FEWS];
} names;

#define REDUCE(dtype) "oari_reduce_" #dtype
#define SUMS(dtype)                                       \
    {                                                     \
        "oari_sum_" #dtype "_2", "oari_sum_" #dtype "_4", \
            "oari_sum_" #dtype "_8"                       \
    }

static const names name[OAR_DTYPE_COUNT] = {
    [OAR_F32] = { REDUCE(f32), SUMS(f32) },
    [OAR_F64] = { .reduce = REDUCE(f64) },
    [OAR_F16] = { REDUCE(f16), SUMS(f16) },
    [OAR_BF16] = { REDUCE(bf16), SUMS(bf16) },
    [OAR_I8] = { .reduce = REDUCE(i8) },
    [OAR_U8] = { .reduce = REDUCE(u8) },
    [OAR_I16] = { .reduce = REDUCE(i16) },
    [OAR_U16] = { .reduce = REDUCE(u16) },
    [OAR_I32] = { .reduce = REDUCE(i32) },
    [OAR_U32] = { .reduce = REDUCE(u32) },
    [OAR_I64] = { .reduce = REDUCE(i64) },
    [OAR_U64] = { .reduce = REDUCE(u64) },
    [OAR_BOOL] = { .reduce = "oari_reduce_bool" }, /* bool may be a macro */
};

int oari_ipc_reduces(oar_dtype dtype)
{
    return name[dtype].reduce != NULL;
}

static oar_status load_kernel(ipc *self, int kernel, const char *called)
{
    if (called == NULL)
        return OAR_OK;
    return oari_cuda_kernel(self->device, "reduce", called,
                            &self->kernel[kernel]);
}

oar_status oari_ipc_load_kernels(ipc *self)
{
    self->kernel = oari_alloc(KERNELS, sizeof *self->kernel);
    if (self->kernel == NULL)
        return OAR_E_NOMEM;
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        OARI_TRY(load_kernel(self, d, name[d].reduce));
        for (int f = 0; f < FEWS; f++)
            OARI_TRY(load_kernel(self, OAR_DTYPE_COUNT * (1 + f) + d,
                                 name[d].sum[f]));
    }
    return load_kernel(self, COPY, "oari_copy");
}

/* ---- reductions ---------------------------------------------------------- */

enum { REDUCE_BLOCKS = 4, COPY_BLOCKS = 8 /* of each multiprocessor */ };

static unsigned blocks_for(const ipc *self, uint64_t steps, unsigned threads,
                           unsigned most)
{
    uint64_t blocks = (steps + threads - 1) / threads;

    most *= self->processors;
    return blocks < most ? (blocks != 0 ? (unsigned)blocks : 1) : most;
}

/* Vectors only where all buffers have the same offset from 16 bytes. */
static oari_cuda_range range_of(const ipc_reduction *r)
{
    uint64_t size = oar_dtype_size(r->dtype);
    uint64_t lanes = OARI_CUDA_VECTOR / size;
    uint64_t odd = r->source[0] % OARI_CUDA_VECTOR / size;
    oari_cuda_range range = { .count = r->count };
    uint64_t differs = 0;

    for (int s = 0; s < r->sources; s++)
        differs |= r->source[0] ^ r->source[s];
    for (int d = 0; d < r->destinations; d++)
        differs |= r->source[0] ^ r->destination[d];
    if (differs % OARI_CUDA_VECTOR != 0)
        return range;
    range.head = odd != 0 ? lanes - odd : 0;
    if (range.head > r->count)
        range.head = r->count;
    range.vectors = (r->count - range.head) / lanes;
    return range;
}

static unsigned reduce_blocks(const ipc *self, const oari_cuda_range *range)
{
    return blocks_for(self, range->vectors != 0 ? range->vectors : range->count,
                      OARI_CUDA_REDUCE_THREADS, REDUCE_BLOCKS);
}

static oar_status launch_kernel(ipc *self, int kernel, unsigned blocks,
                                oari_cu_stream stream, void *given)
{
    void *parameter[] = { given };
    unsigned threads =
        kernel == COPY ? OARI_CUDA_COPY_THREADS : OARI_CUDA_REDUCE_THREADS;

    return oari_cuda_launch(self->device, self->kernel[kernel], blocks, threads,
                            stream, parameter);
}

static oar_status reduce_any(ipc *self, const ipc_reduction *r,
                             oari_cu_stream stream)
{
    oari_cuda_reduction given = { .stop = oari_ipc_stop_word(self),
                                  .range = range_of(r),
                                  .divisor = oari_divisor(r->op, r->sources,
                                                          r->factor),
                                  .op = oari_computed_kind(r->op),
                                  .sources = r->sources,
                                  .destinations = r->destinations,
                                  .factors = oari_needs_factors(r->op) };

    if (given.divisor != 0)
        given.inverse = oari_reduce_exact_inverse(given.divisor);
    for (int s = 0; s < r->sources; s++) {
        given.source[s] = r->source[s];
        given.factor[s] = r->factor[s];
    }
    for (int d = 0; d < r->destinations; d++)
        given.destination[d] = r->destination[d];
    return launch_kernel(self, (int)r->dtype, reduce_blocks(self, &given.range),
                         stream, &given);
}

static oar_status sum_few(ipc *self, const ipc_reduction *r, int few,
                          oari_cu_stream stream)
{
    oari_cuda_sum given = { .stop = oari_ipc_stop_word(self),
                            .range = range_of(r),
                            .divisor =
                                oari_divisor(r->op, r->sources, r->factor),
                            .destinations = r->destinations };

    if (given.divisor != 0)
        given.inverse = oari_reduce_exact_inverse(given.divisor);
    for (int s = 0; s < r->sources; s++)
        given.source[s] = r->source[s];
    for (int d = 0; d < r->destinations; d++)
        given.destination[d] = r->destination[d];
    return launch_kernel(self, OAR_DTYPE_COUNT * (1 + few) + (int)r->dtype,
                         reduce_blocks(self, &given.range), stream, &given);
}

/* ---- copies -------------------------------------------------------------- */

void oari_ipc_copies_begin(ipc *self, oari_cu_stream stream, ipc_copies *c)
{
    c->self = self;
    c->stream = stream;
    c->targets = 0;
    c->given.stop = oari_ipc_stop_word(self);
    c->given.chunks = c->given.pieces = 0;
}

oar_status oari_ipc_copies_end(ipc_copies *c)
{
    ipc *self = c->self;
    oar_status status;

    if (c->given.pieces == 0)
        return OAR_OK;
    status = launch_kernel(self, COPY,
                           blocks_for(self, c->given.chunks, 1, COPY_BLOCKS),
                           c->stream, &c->given);
    oari_ipc_copies_begin(self, c->stream, c);
    return status;
}

/* Adds as many targets as there is room for; returns how many. The unit is the
 * largest from which all addresses have the same offset. */
static int add_piece(ipc_copies *c, oari_cu_memory from,
                     const oari_cu_memory *to, int targets, uint64_t bytes)
{
    oari_cuda_piece *p = &c->given.piece[c->given.pieces++];
    int room = OARI_CUDA_TARGETS - (int)c->targets;
    int n = targets < room ? targets : room;
    uint64_t differs = OARI_CUDA_VECTOR;

    p->from = from;
    p->bytes = bytes;
    p->chunk = c->given.chunks;
    p->target = (uint16_t)c->targets;
    p->targets = (uint16_t)n;
    for (int t = 0; t < n; t++)
        differs |= from ^ to[t];
    p->unit = (uint16_t)(differs & (0 - differs));
    p->skew = (uint16_t)(from % p->unit);
    for (int t = 0; t < n; t++)
        c->given.to[c->targets++] = to[t];
    c->given.chunks +=
        (bytes + p->skew + OARI_CUDA_CHUNK - 1) / OARI_CUDA_CHUNK;
    return n;
}

oar_status oari_ipc_copies_add(ipc_copies *c, oari_cu_memory from,
                               const oari_cu_memory *to, int targets,
                               uint64_t bytes)
{
    oari_cu_memory other[IPC_RANKS];
    int n = 0, at = 0;

    for (int t = 0; t < targets; t++)
        if (to[t] != from)
            other[n++] = to[t];
    while (bytes != 0 && at < n) {
        if (c->given.pieces == OARI_CUDA_PIECES ||
            c->targets == OARI_CUDA_TARGETS)
            OARI_TRY(oari_ipc_copies_end(c));
        at += add_piece(c, from, other + at, n - at, bytes);
    }
    return OAR_OK;
}

oar_status oari_ipc_copy(ipc *self, oari_cu_memory to, oari_cu_memory from,
                         uint64_t bytes, oari_cu_stream stream)
{
    ipc_copies c;

    oari_ipc_copies_begin(self, stream, &c);
    OARI_TRY(oari_ipc_copies_add(&c, from, &to, 1, bytes));
    return oari_ipc_copies_end(&c);
}

/* ---- choosing a kernel --------------------------------------------------- */

/* A single source is copied: NaNs keep their bits. But a bool becomes 0 or 1.
 */
oar_status oari_ipc_reduce(ipc *self, const ipc_reduction *r,
                           oari_cu_stream stream)
{
    int sum = oari_computed_kind(r->op) == OAR_REDUCE_OP_SUM &&
              !oari_needs_factors(r->op);
    int as_it_is = !oari_needs_factors(r->op) && r->op != OAR_REDUCE_OP_AVG;
    ipc_copies c;

    if (r->count == 0 || r->destinations == 0)
        return OAR_OK;
    if (r->sources == 1 && as_it_is && r->dtype != OAR_BOOL) {
        oari_ipc_copies_begin(self, stream, &c);
        OARI_TRY(oari_ipc_copies_add(&c, r->source[0], r->destination,
                                     r->destinations,
                                     r->count * oar_dtype_size(r->dtype)));
        return oari_ipc_copies_end(&c);
    }
    for (int f = 0; sum && f < FEWS && name[r->dtype].sum[f] != NULL; f++)
        if (r->sources == few_sources[f])
            return sum_few(self, r, f, stream);
    return reduce_any(self, r, stream);
}
