/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_norm: starts the kernels of norm.cu and norm_back.cu. No state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/norm_job.h"

enum { WARP = 32, THREADS = WARP * OARI_NORM_WARPS };

static int is_wider(const oari_array *a, const oari_array *than)
{
    return a != NULL && a->dtype != than->dtype;
}

static int is_aligned(const oari_array *a)
{
    return a == NULL || (uintptr_t)oari_array_data(a) % OARI_PACK_BYTES == 0;
}

/* Packs of a row of an array. */
static int64_t packs_of(const oari_array *a, int64_t width)
{
    return width * (int64_t)oar_dtype_size(a->dtype) / OARI_PACK_BYTES;
}

static oar_status start_norm(const oari_array *to, int is_packed,
                             oari_norm_job *job)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("norm", "oari_layer_norm");
    static oari_float_kernels adding =
        OARI_FLOAT_KERNELS("norm", "oari_add_layer_norm");
    int64_t packs = packs_of(to, job->width), rows = job->rows;
    unsigned threads = THREADS;

    job->in_registers = is_packed && packs <= OARI_NORM_PARTS * THREADS;
    job->by_block = job->in_registers && packs > OARI_NORM_PARTS * WARP;
    if (job->in_registers) /* two for each warp or block */
        rows = (rows + OARI_NORM_ROWS - 1) / OARI_NORM_ROWS;
    if (job->by_block)
        threads = (unsigned)((packs + WARP * OARI_NORM_PARTS - 1) /
                             (WARP * OARI_NORM_PARTS) * WARP);
    return oari_start_float(
        job->more != NULL ? &adding : &kernels, to,
        job->by_block ? rows : (rows + OARI_NORM_WARPS - 1) / OARI_NORM_WARPS,
        threads, job->by_block ? 4 * OARI_SUM_BYTES : 0, job);
}

static oari_norm_job make_job(const oari_array *to, const oari_array *mean,
                              const oari_array *rstd, const oari_array *x,
                              const oari_array *weight, const oari_array *bias,
                              int *is_packed)
{
    oari_rows r = oari_rows_of(x->at.shape);

    *is_packed = oari_is_packed(x, r.width) && oari_is_packed(to, r.width) &&
                 is_aligned(weight) && is_aligned(bias);
    return (oari_norm_job){ .x = oari_array_data(x),
                            .weight = oari_data_of(weight),
                            .bias = oari_data_of(bias),
                            .to = oari_array_data(to),
                            .mean = oari_data_of(mean),
                            .rstd = oari_array_data(rstd),
                            .rows = r.width > 0 ? r.count : 0,
                            .width = r.width,
                            .is_wide =
                                is_wider(weight, x) || is_wider(bias, x) };
}

oar_status oari_cuda_layer_norm(const oari_array *to, const oari_array *mean,
                                const oari_array *rstd, const oari_array *x,
                                const oari_array *weight,
                                const oari_array *bias, double eps)
{
    int is_packed;
    oari_norm_job job = make_job(to, mean, rstd, x, weight, bias, &is_packed);

    job.eps = eps;
    return start_norm(to, is_packed, &job);
}

oar_status
oari_cuda_layer_norm_again(const oari_array *to, const oari_array *mean,
                           const oari_array *rstd, const oari_array *x,
                           const oari_array *weight, const oari_array *bias)
{
    int is_packed;
    oari_norm_job job = make_job(to, mean, rstd, x, weight, bias, &is_packed);

    job.again = 1;
    return start_norm(to, is_packed, &job);
}

oar_status oari_cuda_add_layer_norm(const oari_array *sum, const oari_array *to,
                                    const oari_array *mean,
                                    const oari_array *rstd, const oari_array *a,
                                    const oari_array *b,
                                    const oari_array *weight,
                                    const oari_array *bias, double eps)
{
    int is_packed;
    oari_norm_job job = make_job(to, mean, rstd, a, weight, bias, &is_packed);

    job.more = oari_array_data(b);
    job.sum = oari_array_data(sum);
    job.eps = eps;
    is_packed = is_packed && oari_is_packed(b, job.width) &&
                oari_is_packed(sum, job.width);
    return start_norm(to, is_packed, &job);
}

/* ---- backward ------------------------------------------------------------ */

static int64_t blocks_of(int64_t rows)
{
    int64_t blocks = (rows + OARI_NORM_WARPS - 1) / OARI_NORM_WARPS;

    return blocks < OARI_NORM_BLOCKS ? blocks : OARI_NORM_BLOCKS;
}

int64_t oari_cuda_norm_sums(oari_rows rows)
{
    return blocks_of(rows.count) * 2 * rows.width;
}

static oar_status total_columns(const oari_norm_back *n, int64_t blocks,
                                int64_t width)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("norm_back", "oari_norm_total");
    const oari_array *to = n->dweight != NULL ? n->dweight : n->dbias;
    unsigned bytes = 2 * OARI_NORM_TOTAL_WARPS * OARI_NORM_COLUMNS *
                     (n->x->dtype == OAR_F64 ? 8 : 4);
    oari_norm_total_job job = { .sums = n->sums,
                                .dweight = oari_data_of(n->dweight),
                                .dbias = oari_data_of(n->dbias),
                                .blocks = blocks,
                                .width = width,
                                .is_wide = is_wider(to, n->x) };

    return oari_start_float(&kernels, n->x,
                            (width + OARI_NORM_COLUMNS - 1) / OARI_NORM_COLUMNS,
                            WARP * OARI_NORM_TOTAL_WARPS, bytes, &job);
}

/* How the rows of a backward pass are read. */
enum { BY_WARP, BY_BLOCK, BY_BLOCK_TWICE, BY_COLUMN };

static int choose_way(const oari_norm_back *n, int64_t packs, int64_t width)
{
    if (!oari_is_packed(n->x, width) || !oari_is_packed(n->grad, width) ||
        !oari_is_packed(n->dx, width) || !is_aligned(n->weight))
        return BY_COLUMN;
    return packs <= OARI_NORM_PARTS * WARP  ? BY_WARP
           : packs <= OARI_NORM_THREADS     ? BY_BLOCK
           : packs <= 2 * OARI_NORM_THREADS ? BY_BLOCK_TWICE
                                            : BY_COLUMN;
}

/* Divides the rows into equal shares, of which there are *blocks; starts them.
 */
static oar_status start_back(const oari_norm_back *n, oari_norm_back_job *job,
                             int64_t *blocks)
{
    static oari_float_kernels kernels[] = {
        [BY_WARP] = OARI_FLOAT_KERNELS("norm_back", "oari_norm_back"),
        [BY_BLOCK] = OARI_FLOAT_KERNELS("norm_back", "oari_norm_back_wide"),
        [BY_BLOCK_TWICE] =
            OARI_FLOAT_KERNELS("norm_back", "oari_norm_back_wider"),
        [BY_COLUMN] = OARI_FLOAT_KERNELS("norm_back", "oari_norm_back_any")
    };
    const int64_t packs = packs_of(n->x, job->width);
    const int64_t sums = 2 * job->width * (n->x->dtype == OAR_F64 ? 8 : 4);
    const int way = choose_way(n, packs, job->width);
    unsigned threads = THREADS, bytes = 0;

    if (way == BY_WARP) {
        threads = OARI_NORM_BACK_WARPS * WARP;
        bytes = OARI_NORM_BACK_WARPS * OARI_NORM_RING; /* more than sums */
        if (*blocks > OARI_NORM_BACK_BLOCKS)
            *blocks = OARI_NORM_BACK_BLOCKS;
    } else if (way != BY_COLUMN) { /* two rows' sums */
        int64_t each = way == BY_BLOCK ? WARP : 2 * WARP;

        threads = (unsigned)((packs + each - 1) / each * WARP);
        bytes = 4 * OARI_SUM_BYTES;
    } else if (job->sums != NULL && sums <= OARI_NORM_SHARED) {
        job->in_shared = 1;
        bytes = (unsigned)sums;
    }
    if (*blocks > 0) {
        job->share = (job->rows + *blocks - 1) / *blocks;
        if (way == BY_COLUMN) /* a row for each warp */
            job->share = (job->share + OARI_NORM_WARPS - 1) / OARI_NORM_WARPS *
                         OARI_NORM_WARPS;
        *blocks = (job->rows + job->share - 1) / job->share;
    }
    return oari_start_float(&kernels[way], n->x, *blocks, threads, bytes, job);
}

oar_status oari_cuda_layer_norm_back(const oari_norm_back *n)
{
    oari_rows r = oari_rows_of(n->x->at.shape);
    int64_t blocks = blocks_of(r.count);
    int wanted = n->dweight != NULL || n->dbias != NULL;
    oari_norm_back_job job = { .grad = oari_array_data(n->grad),
                               .x = oari_array_data(n->x),
                               .weight = oari_data_of(n->weight),
                               .mean = oari_data_of(n->mean),
                               .rstd = oari_array_data(n->rstd),
                               .dx = oari_data_of(n->dx),
                               .sums = wanted ? n->sums : NULL,
                               .rows = r.count,
                               .width = r.width,
                               .add = n->add,
                               .is_wide = is_wider(n->weight, n->x) };

    if (r.width == 0)
        return OAR_OK;
    if (n->dx != NULL && n->dx->dtype != n->x->dtype)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a norm's gradient on a GPU in %s of numbers in %s",
                         oar_dtype_name(n->dx->dtype),
                         oar_dtype_name(n->x->dtype));
    OARI_TRY(start_back(n, &job, &blocks));
    return wanted ? total_columns(n, blocks, r.width) : OAR_OK;
}
