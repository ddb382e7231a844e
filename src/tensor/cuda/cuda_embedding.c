/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_embedding: starts the kernels of embedding.cu. It has no state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/embedding_job.h"

enum {
    WARP = 32,
    PICK_THREADS = WARP * OARI_PICK_WARPS,
    ADD_BLOCKS = 264 /* so many, all at a time, keep a GPU busy */
};

static int common_unit(uint64_t address_bits)
{
    for (int unit = OARI_PACK_BYTES; unit > 1; unit /= 2)
        if (address_bits % (uint64_t)unit == 0)
            return unit;
    return 1;
}

oar_status oari_cuda_pick_rows(const oari_array *to, const oari_array *table,
                               const oari_array *index,
                               const oari_table_part *part,
                               const oari_array *row)
{
    static oari_cuda_kernel_ref kernel = { .file = "embedding",
                                           .name = "oari_pick_rows" };
    oari_pick_job job = { .index = oari_array_data(index),
                          .table = oari_array_data(table),
                          .to = oari_array_data(to),
                          .row = oari_data_of(row),
                          .picks = oari_shape_count(index->at.shape),
                          .bytes = table->at.shape.dim[1] *
                                   (int64_t)oar_dtype_size(table->dtype),
                          .count = table->at.shape.dim[0] };

    job.first = part != NULL ? part->first : 0;
    job.vocabulary = part != NULL ? part->vocabulary : job.count;
    job.unit = common_unit((uint64_t)(uintptr_t)job.table |
                           (uint64_t)(uintptr_t)job.to | (uint64_t)job.bytes);
    OARI_TRY(oari_index_check_of(to->device.index, &job.check));
    OARI_TRY(oari_start_one(&kernel, to,
                            (job.picks + OARI_PICK_WARPS - 1) / OARI_PICK_WARPS,
                            PICK_THREADS, 0, &job));
    return oari_index_checked(to->device.index, oar_stream_current(to->device));
}

oar_status oari_cuda_positions(const oari_array *to)
{
    static oari_cuda_kernel_ref kernel = { .file = "embedding",
                                           .name = "oari_positions" };
    oari_positions_job job = { oari_array_data(to),
                               oari_shape_count(to->at.shape) };

    return oari_start_one(&kernel, to, oari_blocks_for(job.count, PICK_THREADS),
                          PICK_THREADS, 0, &job);
}

/* ---- sums by row --------------------------------------------------------- */

/* Elements that a block sorts: whole rounds of its threads. */
static int64_t sort_share(int64_t picks)
{
    int64_t share = (picks + OARI_SORT_BLOCKS - 1) / OARI_SORT_BLOCKS;

    share =
        (share + OARI_SORT_THREADS - 1) / OARI_SORT_THREADS * OARI_SORT_THREADS;
    return share > OARI_SORT_SHARE ? share : OARI_SORT_SHARE;
}

int64_t oari_cuda_add_rows_scratch(int64_t picks, int64_t rows)
{
    return 4 * picks + OARI_SORT_DIGITS * OARI_SORT_BLOCKS + 2 * rows;
}

/* Sorts the picks by row; where they are then goes to job->key and place. */
static oar_status sort_picks(const oari_array *index, int64_t rows,
                             uint32_t *scratch, oari_sort_job *job)
{
    static oari_cuda_kernel_ref count = { .file = "embedding",
                                          .name = "oari_sort_count" };
    static oari_cuda_kernel_ref move = { .file = "embedding",
                                         .name = "oari_sort_move" };
    uint32_t *key[2], *place[2];
    int side = 0;

    for (int k = 0; k < 2; k++) {
        key[k] = scratch + 2 * k * job->picks;
        place[k] = key[k] + job->picks;
    }
    job->row = oari_array_data(index);
    job->rows = rows;
    job->count = scratch + 4 * job->picks;
    /* As many digits as `rows` has: one that no row has is above all. */
    for (int64_t left = rows; left > 0; left >>= OARI_SORT_BITS) {
        job->to_key = key[side];
        job->to_place = place[side];
        OARI_TRY(oari_start_one(&count, index, job->blocks, OARI_SORT_THREADS,
                                0, job));
        OARI_TRY(oari_start_one(&move, index, job->blocks, OARI_SORT_THREADS, 0,
                                job));
        job->row = NULL;
        job->key = job->to_key;
        job->place = job->to_place;
        job->shift += OARI_SORT_BITS;
        side = 1 - side;
    }
    return OAR_OK;
}

/* Finds where each row's picks begin. */
static oar_status find_starts(const oari_array *to, oari_add_rows_job *job)
{
    static oari_cuda_kernel_ref starts = { .file = "embedding",
                                           .name = "oari_find_starts" };

    OARI_TRY(oar_device_fill(
        oar_span_on(to->device, job->start, 2 * (size_t)job->count, OAR_I32),
        -1, oar_stream_current(to->device)));
    return oari_start_one(&starts, to,
                          (job->picks + PICK_THREADS - 1) / PICK_THREADS,
                          PICK_THREADS, 0, job);
}

oar_status oari_cuda_add_rows(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *index,
                              int64_t skip, void *scratch)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("embedding", "oari_add_rows");
    int64_t picks = oari_shape_count(index->at.shape), columns, blocks, most;
    oari_sort_job sort = { .picks = picks, .share = sort_share(picks) };
    oari_add_rows_job job = { .grad = oari_array_data(grad),
                              .to = oari_array_data(to),
                              .picks = picks,
                              .count = to->at.shape.dim[0],
                              .width = to->at.shape.dim[1],
                              .skip = skip,
                              .add = add,
                              .is_wide = to->dtype != grad->dtype };

    if (job.count == 0 || job.width == 0 || (picks == 0 && add))
        return OAR_OK;
    if (picks == 0)
        return oari_cuda_fill(to, 0);
    if (job.count >= INT32_MAX || picks >= INT32_MAX)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "embedding's gradient on a GPU of %lld rows and %lld "
                         "indices: below 2^31",
                         (long long)job.count, (long long)picks);
    sort.blocks = (picks + sort.share - 1) / sort.share;
    OARI_TRY(sort_picks(index, job.count, scratch, &sort));
    job.key = sort.key;
    job.place = sort.place;
    job.start = (int2 *)(void *)((uint32_t *)scratch + 4 * picks +
                                 OARI_SORT_DIGITS * OARI_SORT_BLOCKS);
    OARI_TRY(find_starts(to, &job));
    job.is_packed =
        oari_is_packed(grad, job.width) && oari_is_packed(to, job.width);
    columns = job.is_packed
                  ? OARI_PACK_BYTES / (int64_t)oar_dtype_size(grad->dtype)
                  : 1;
    columns *=
        WARP * OARI_ADD_PARTS; /* a warp has so many columns of its rows */
    columns = (job.width + columns - 1) / columns;
    blocks = (job.count + OARI_PICK_WARPS - 1) / OARI_PICK_WARPS;
    most = columns < ADD_BLOCKS ? ADD_BLOCKS / columns : 1;
    blocks = blocks < most ? blocks : most;
    return oari_start_float_grid(&kernels, grad, blocks, columns, PICK_THREADS,
                                 0, &job);
}
