/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_rewrite: files written out of a catalog, by the writer of saves,
 * which asks here for one block after the other. What is in a block is read at
 * once, so that memory is a few blocks for each thread, whatever the tensors.
 */
#include <string.h>

#include <oarsong/ops.h>

#include "base/status.h"
#include "parallel/checkpoint/catalog/catalog.h"

/* Numbers of a block that are not written as they are read. */
typedef struct converted {
    oar_tensor *tensor; /* as read */
    int transpose;
    oar_dtype dtype; /* as written */
    unsigned char *to;
} converted;

typedef struct block_fill {
    const oari_catalog_rewrite *rewrite;
    oari_ckpt_read_plan plan;
    OARI_VEC(converted) converted;
    OARI_VEC(void *) target; /* the block, then that of each conversion */
} block_fill;

/* Adds memory for a box that is converted, and gives its number. */
static oar_status add_converted(block_fill *b, const oari_catalog_source *from,
                                const oari_box *box, oar_dtype dtype,
                                unsigned char *to, int64_t *target)
{
    converted made = { .transpose = from->transpose, .dtype = dtype, .to = to };

    made.tensor = oar_empty(NULL, from->tensor->dtype,
                            oar_shape_of(box->ndim, box->extent));
    if (made.tensor == NULL)
        return oar_last_error()->status;
    if (oari_vec_push(&b->converted, made) != OAR_OK) {
        oar_tensor_release(made.tensor);
        return OAR_E_NOMEM;
    }
    *target = b->target.count;
    return oari_vec_push(&b->target, oar_tensor_data(made.tensor));
}

/* Adds what bytes [begin, end) of an entry want; they lie at `to`. */
static oar_status add_entry(block_fill *b, const oari_ckpt_file_entry *e,
                            uint64_t begin, uint64_t end, unsigned char *to)
{
    const oar_catalog *catalog = b->rewrite->catalog;
    const oari_ckpt_chunk *chunk = &b->rewrite->to->plan.chunk.data[e->chunk];
    const oari_catalog_source *from = &b->rewrite->source[chunk->tensor];
    size_t element = oar_dtype_size(e->dtype);
    oari_box box[OARI_FLAT_BOXES];
    unsigned char *block = b->target.data[0];
    int boxes = oari_flat_boxes(e->shape, (int64_t)(begin / element),
                                (int64_t)((end - begin) / element), box);

    for (int i = 0; i < boxes; i++) {
        oari_ckpt_wanted wanted = { .box = box[i],
                                    .at = (uint64_t)(to - block) };
        uint64_t bytes = (uint64_t)oari_box_count(&box[i]) * element;

        for (int d = 0; d < e->shape.ndim; d++) {
            int at = from->transpose ? 1 - d : d;

            wanted.box.offset[at] = box[i].offset[d] + chunk->box.offset[d];
            wanted.box.extent[at] = box[i].extent[d];
        }
        if (from->transpose || from->tensor->dtype != e->dtype) {
            OARI_TRY(add_converted(b, from, &wanted.box, e->dtype, to,
                                   &wanted.target));
            wanted.at = 0;
        }
        OARI_TRY(oari_ckpt_read_plan_wanted(&b->plan, &catalog->index,
                                            from->tensor, 1, &wanted));
        to += bytes;
    }
    return OAR_OK;
}

/* Adds the entries of a file that have bytes in [begin, end) of its data. */
static oar_status add_entries(block_fill *b, int64_t file, uint64_t begin,
                              uint64_t end, unsigned char *data)
{
    const oar_checkpoint *to = b->rewrite->to;
    int64_t count = to->layout.file.data[file].count, low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (oari_ckpt_file_entry_at(&to->plan, &to->layout, file, middle).end <=
            begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count; low++) {
        oari_ckpt_file_entry e =
            oari_ckpt_file_entry_at(&to->plan, &to->layout, file, low);
        uint64_t first = e.begin > begin ? e.begin : begin;
        uint64_t last = e.end < end ? e.end : end;

        if (e.begin >= end)
            break;
        if (first < last)
            OARI_TRY(add_entry(b, &e, first - e.begin, last - e.begin,
                               data + (first - begin)));
    }
    return OAR_OK;
}

static oar_status convert(const converted *c)
{
    oar_tensor *turned =
        c->transpose ? oar_transpose(NULL, c->tensor, 0, 1) : NULL;
    oar_status status;

    if (c->transpose && turned == NULL)
        return oar_last_error()->status;
    status =
        oar_tensor_read(turned != NULL ? turned : c->tensor, c->dtype, c->to);
    oar_tensor_release(turned);
    return status;
}

static oar_status fill(void *arg, int64_t file, uint64_t begin, uint64_t end,
                       unsigned char *data)
{
    block_fill b = { .rewrite = arg };
    oar_status status = oari_vec_push(&b.target, data);
    oari_ckpt_reading reading;

    b.plan.gap = oari_ckpt_join_gap(&b.rewrite->catalog->index);
    if (status == OAR_OK)
        status = add_entries(&b, file, begin, end, data);
    if (status == OAR_OK)
        status = oari_ckpt_read_plan_finish(&b.plan);
    if (status == OAR_OK) {
        reading =
            oari_catalog_reading(b.rewrite->catalog, &b.plan, b.target.data, 1);
        status = oari_ckpt_read_files(&reading);
    }
    for (int64_t i = 0; i < b.converted.count; i++) {
        if (status == OAR_OK)
            status = convert(&b.converted.data[i]);
        oar_tensor_release(b.converted.data[i].tensor);
    }
    oari_ckpt_read_plan_free(&b.plan);
    oari_vec_free(&b.converted);
    oari_vec_free(&b.target);
    return status;
}

oar_status oari_catalog_rewrite_files(oari_catalog_rewrite *rewrite,
                                      oari_ckpt_saving *saving)
{
    oar_checkpoint *to = rewrite->to;
    oar_status status = OAR_OK;

    for (int rank = 0; rank < to->ranks && status == OAR_OK; rank++) {
        oari_ckpt_image_label label = { saving->id, saving->step, rank };

        saving->images =
            (oari_ckpt_images){ .plan = &to->plan,
                                .layout = &to->layout,
                                .block_bytes = to->opts.block_bytes,
                                .fill = fill,
                                .fill_arg = rewrite };
        status = oari_ckpt_images_make(&saving->images, &label, NULL);
        if (status == OAR_OK)
            status = oari_ckpt_write_files(saving);
        oari_ckpt_images_free(&saving->images);
    }
    return status;
}
