/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_attention_90: starts the kernels of attention_sm90a.cu,
 * attention_back_sm90a.cu and attention_rows_sm90a.cu. It remembers for each
 * device whether they can be used there, and how many multiprocessors it has.
 */
#include "tensor/cuda/cuda_attention_90.h"

#include <stdatomic.h>

#include "base/status.h"
#include "device/cuda/cuda.h"

enum {
    MAJOR = 75, /* CU_DEVICE_ATTRIBUTE_... */
    MINOR = 76,
    PROCESSORS = 16,
    ENOUGH = 132, /* blocks: fewer, and the keys of a head are divided. It does
                     not depend on the device, so that bits do not */
    SMALL_THREADS = 256,
    SMALL_STRIDE = 16 /* bytes: of a dim of 1, where it does not matter */
};

/* ---- whether ------------------------------------------------------------- */

/* Returns the number of multiprocessors of a device, -1 if the kernels cannot
 * be used there. */
static int look_at(int device)
{
    oari_cu_function function;
    int major = 0, minor = 0, processors = 0;
    const oari_cuda *cu;
    oari_cu_device handle = 0;

    if (oari_cuda_load(&cu) != OAR_OK || cu->TensorMapEncodeTiled == NULL ||
        cu->DeviceGet(&handle, device) ||
        cu->DeviceGetAttribute(&major, MAJOR, handle) ||
        cu->DeviceGetAttribute(&minor, MINOR, handle) ||
        cu->DeviceGetAttribute(&processors, PROCESSORS, handle) || major != 9 ||
        minor != 0)
        return -1;
    if (oari_cuda_kernel(device, "attention_sm90a", "oari_attend_90_bf16_64",
                         &function) != OAR_OK ||
        oari_cuda_kernel(device, "attention_back_sm90a",
                         "oari_attend_back_90_bf16_64", &function) != OAR_OK ||
        oari_cuda_kernel(device, "attention_rows_sm90a",
                         "oari_attend_rows_90_bf16_64", &function) != OAR_OK)
        return -1;
    return processors;
}

static int count_processors(int device)
{
    static atomic_int known[OARI_CUDA_DEVICES];
    int found = atomic_load(&known[device]);

    if (found == 0) {
        found = look_at(device);
        atomic_store(&known[device], found);
    }
    return found;
}

/* Strides of 0, of dims of more than 1, are refused by the driver. */
static int is_for_map(const oari_head_strides *h, int64_t rows, int64_t heads,
                      int64_t outer)
{
    return h->data == NULL ||
           ((rows == 1 || h->row > 0) && (heads == 1 || h->head > 0) &&
            (outer == 1 || h->outer > 0));
}

int oari_attend_90_is_for(const oari_attention *a)
{
    int64_t shared = a->heads / a->k.shared;

    return is_for_map(&a->q, a->t, a->heads, a->outer) &&
           is_for_map(&a->k, a->s, shared, a->outer) &&
           is_for_map(&a->v, a->s, shared, a->outer) &&
           is_for_map(&a->out, a->t, a->heads, a->outer) &&
           count_processors(a->device.index) > 0;
}

/* ---- jobs ---------------------------------------------------------------- */

/* Describes an operand to the engine for copies: tiles of 64 columns and so
 * many rows, whose chunks are permuted as wgmma wants them. */
static oar_status make_map(const oari_attention *a,
                           const oari_cuda_heads *operand, int64_t rows,
                           int64_t heads, int tile, oari_cuda_map *map)
{
    enum { UINT16 = 1, PERMUTED_128 = 3, PROMOTE_256 = 3 }; /* CUtensorMap... */
    const uint64_t dims[] = { (uint64_t)a->d, (uint64_t)rows, (uint64_t)heads,
                              (uint64_t)a->outer };
    const int64_t stride[] = { operand->row, operand->head, operand->outer };
    const uint32_t box[] = { 64, (uint32_t)tile, 1, 1 };
    const uint32_t steps[] = { 1, 1, 1, 1 };
    uint64_t bytes[3];
    const oari_cuda *cu;
    int result;

    for (int i = 0; i < 3; i++)
        bytes[i] = dims[i + 1] == 1 ? SMALL_STRIDE : (uint64_t)stride[i] * 2;
    OARI_TRY(oari_cuda_enter(a->device.index, &cu));
    result =
        cu->TensorMapEncodeTiled(map, UINT16, 4, operand->data, dims, bytes,
                                 box, steps, 0, PERMUTED_128, PROMOTE_256, 0);
    oari_cuda_leave();
    return oari_cuda_check(result, "describe an operand of attention");
}

static oar_status make_job(const oari_attention *a,
                           const oari_cuda_attention *from, int rows, int keys,
                           oari_cuda_attention_90 *job)
{
    int64_t shared = a->heads / a->k.shared;

    job->a = *from;
    OARI_TRY(make_map(a, &from->q, a->t, a->heads, rows, &job->q));
    OARI_TRY(make_map(a, &from->out, a->t, a->heads, rows, &job->out));
    OARI_TRY(make_map(a, &from->k, a->s, shared, keys, &job->k));
    return make_map(a, &from->v, a->s, shared, keys, &job->v);
}

/* A kernel for each half and width. */
typedef struct kernels_90 {
    oari_cuda_kernel_ref of[2][2]; /* [f16, bf16][64, 128] */
} kernels_90;

#define REF(in, kernel)                \
    {                                  \
        .file = (in), .name = (kernel) \
    }
#define KERNELS(in, kernel)                                             \
    {                                                                   \
        {                                                               \
            { REF(in, kernel "_f16_64"), REF(in, kernel "_f16_128") },  \
            {                                                           \
                REF(in, kernel "_bf16_64"), REF(in, kernel "_bf16_128") \
            }                                                           \
        }                                                               \
    }

static oar_status start(const oari_attention *a, kernels_90 *kernels,
                        int64_t blocks, int threads, int shared_bytes,
                        oari_cuda_attention_90 *job)
{
    oari_cuda_grid grid = { { (unsigned)blocks, 1, 1 },
                            { (unsigned)threads, 1, 1 },
                            (unsigned)shared_bytes };

    return oari_cuda_start(
        a->device.index, &kernels->of[a->dtype == OAR_BF16][a->d == 128], &grid,
        oar_stream_current(a->device), (void *[]){ job });
}

/* ---- forward ------------------------------------------------------------- */

oar_status oari_attend_90(const oari_attention *a,
                          const oari_cuda_attention *from)
{
    static kernels_90 kernels = KERNELS("attention_sm90a", "oari_attend_90");
    const int rows = OARI_ATTEND_90_ROWS(a->d);
    const int64_t heads = a->outer * a->heads;
    const int64_t tiles = (a->t + rows - 1) / rows, half = (tiles + 1) / 2;
    const int64_t blocks = count_processors(a->device.index);
    oari_cuda_attention_90 job;

    OARI_TRY(make_job(a, from, rows, OARI_ATTEND_90_KEYS(a->d), &job));
    job.pairs = heads * half >= 4 * blocks;
    job.items = (int)(heads * (job.pairs ? half : tiles));
    return start(a, &kernels, job.items < blocks ? job.items : blocks,
                 OARI_ATTEND_90_THREADS(a->d), OARI_ATTEND_90_SHARED(a->d),
                 &job);
}

/* ---- backward ------------------------------------------------------------ */

static int64_t count_tiles(const oari_attention *a)
{
    return (a->t + OARI_BACK_90_QUERIES - 1) / OARI_BACK_90_QUERIES;
}

static int64_t count_parts(const oari_attention *a)
{
    int64_t heads = a->outer * (a->heads / a->k.shared);
    int64_t most = (a->s + OARI_BACK_90_KEYS - 1) / OARI_BACK_90_KEYS;
    int64_t parts = (ENOUGH + heads - 1) / heads;

    return parts < most ? parts : most;
}

/* lse and delta of all tiles of queries. */
static int64_t count_rows(const oari_attention *a)
{
    return a->outer * a->heads * count_tiles(a) * 2 * OARI_BACK_90_QUERIES;
}

int64_t oari_attend_90_scratch(const oari_attention *a)
{
    return count_rows(a) + count_parts(a) * a->outer * a->heads *
                               count_tiles(a) * OARI_BACK_90_QUERIES * a->d;
}

oar_status oari_attend_90_back(const oari_attention *a,
                               const oari_cuda_attention *from)
{
    static kernels_90 rows =
        KERNELS("attention_rows_sm90a", "oari_attend_rows_90");
    static kernels_90 back =
        KERNELS("attention_back_sm90a", "oari_attend_back_90");
    static kernels_90 parts =
        KERNELS("attention_rows_sm90a", "oari_attend_parts_90");
    const int64_t heads = a->outer * a->heads, tiles = count_tiles(a);
    oari_cuda_attention_90 job;

    OARI_TRY(make_job(a, from, OARI_BACK_90_QUERIES, OARI_BACK_90_KEYS, &job));
    job.a.delta = a->scratch;
    job.a.sums = (float *)a->scratch + count_rows(a);
    job.a.parts = (int)count_parts(a);
    job.a.tiles = tiles;
    OARI_TRY(start(a, &rows,
                   (heads * tiles * OARI_BACK_90_QUERIES * (a->d / 16) +
                    SMALL_THREADS - 1) /
                       SMALL_THREADS,
                   SMALL_THREADS, 0, &job));
    OARI_TRY(start(a, &back, heads / a->k.shared * job.a.parts,
                   OARI_BACK_90_THREADS(a->d), OARI_BACK_90_SHARED(a->d),
                   &job));
    if (a->dq.data == NULL)
        return OAR_OK;
    return start(a, &parts, heads * tiles, SMALL_THREADS, 0, &job);
}
