/* SPDX-License-Identifier: Apache-2.0 */
/* file_image: headers of files, and which bytes of which array a block holds.
 */
#include "parallel/checkpoint/file_image.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "file/safetensors_header.h"
#include "parallel/checkpoint/stream_copy.h"

static oari_ckpt_file_entry entry_at(const oari_ckpt_images *images,
                                     const oari_ckpt_image *f, int64_t entry)
{
    return oari_ckpt_file_entry_at(images->plan, images->layout, f->number,
                                   entry);
}

/* ---- headers ------------------------------------------------------------- */

static void write_sharding(oari_json_writer *w, const oari_ckpt_images *images,
                           const oari_ckpt_image *f)
{
    oari_json_add(w, "{");
    for (int64_t i = 0; i < f->is->count; i++) {
        oari_ckpt_file_entry e = entry_at(images, f, i);

        oari_json_add(w, "%s", i > 0 ? "," : "");
        oari_json_quote(w, e.name);
        oari_json_add(w, ":{\"saved_offsets\":[");
        for (int d = 0; d < e.shape.ndim; d++)
            oari_json_add(w, "%s%" PRId64, d > 0 ? "," : "", e.offset[d]);
        oari_json_add(w, "]}");
    }
    oari_json_add(w, "}");
    oari_json_fill(w, 0, 1);
}

static oar_status write_header(const oari_ckpt_images *images,
                               oari_ckpt_image *f,
                               const oari_ckpt_image_label *label)
{
    oari_safetensors_row *row = oari_alloc((size_t)f->is->count, sizeof *row);
    oari_json_writer sharding = { 0 };
    char own[128];
    const char *metadata[4][2] = { { "format", "pt" },
                                   { "oarsong", own },
                                   { "DCP_VERSION", "1.0" },
                                   { "DCP_SHARDING_INFO", NULL } };

    if (row == NULL)
        return OAR_E_NOMEM;
    snprintf(own, sizeof own,
             "{\"id\":\"%s\",\"step\":%" PRId64 ",\"rank\":%d}", label->id,
             label->step, label->rank);
    for (int64_t i = 0; i < f->is->count; i++) {
        oari_ckpt_file_entry e = entry_at(images, f, i);

        row[i] = (oari_safetensors_row){ .name = e.name,
                                         .begin = e.begin,
                                         .end = e.end,
                                         .dtype = (int8_t)e.dtype,
                                         .ndim = (int8_t)e.shape.ndim };
        memcpy(row[i].dim, e.shape.dim, sizeof e.shape.dim);
    }
    if (f->is->shard) {
        write_sharding(&sharding, images, f);
        metadata[3][1] = sharding.text.data;
    }
    if (sharding.status == OAR_OK)
        oari_safetensors_header_write(&f->header, f->is->count, row,
                                      f->is->shard ? 4 : 2,
                                      (const char *const(*)[2])metadata);
    oari_vec_free(&sharding.text);
    oari_free(row);
    return sharding.status != OAR_OK ? sharding.status : f->header.status;
}

/* ---- making -------------------------------------------------------------- */

/* Finds where the parts of a file's entries lie in memory. */
static oar_status find_parts(const oari_ckpt_images *images, oari_ckpt_image *f,
                             const oari_ckpt_part_list *list)
{
    f->part = oari_alloc((size_t)f->is->count, sizeof *f->part);
    if (f->part == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < f->is->count; i++) {
        int64_t number = images->layout->order[f->is->first + i];
        const oari_ckpt_chunk *chunk = &images->plan->chunk.data[number];
        const oari_ckpt_tensor *tensor =
            &images->plan->tensor.data[chunk->tensor].is;
        const oari_ckpt_part *part =
            oari_ckpt_find_part(list, tensor, &chunk->part);

        if (part == NULL)
            return oari_fail(OAR_E_INTERNAL,
                             "a checkpoint's plan has %s %s, which this rank "
                             "does not hold",
                             oari_ckpt_name_text(tensor).text,
                             oari_box_text(&chunk->part).text);
        f->part[i] =
            (oari_ckpt_image_part){ part->item,
                                    (uint64_t)part->first *
                                        oar_dtype_size(part->tensor.dtype) };
    }
    return OAR_OK;
}

oar_status oari_ckpt_images_make(oari_ckpt_images *images,
                                 const oari_ckpt_image_label *label,
                                 const oari_ckpt_part_list *list)
{
    int64_t all = images->layout->file.count;

    images->file = oari_alloc((size_t)all, sizeof *images->file);
    if (images->file == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < all; i++) {
        oari_ckpt_image *f = &images->file[images->files];

        if (images->layout->file.data[i].writer != label->rank)
            continue;
        f->is = &images->layout->file.data[i];
        f->number = i;
        images->files++;
        OARI_TRY(write_header(images, f, label));
        if (images->fill == NULL)
            OARI_TRY(find_parts(images, f, list));
        f->bytes = (uint64_t)f->header.text.count + f->is->data_bytes;
        f->first_block = images->blocks;
        f->blocks = (int64_t)((f->bytes + images->block_bytes - 1) /
                              images->block_bytes);
        images->blocks += f->blocks;
    }
    return OAR_OK;
}

void oari_ckpt_images_free(oari_ckpt_images *images)
{
    for (int i = 0; i < images->files; i++) {
        oari_vec_free(&images->file[i].header.text);
        oari_free(images->file[i].part);
    }
    oari_free(images->file);
    memset(images, 0, sizeof *images);
}

/* ---- the bytes of a block ------------------------------------------------ */

oari_ckpt_image_block oari_ckpt_image_block_at(const oari_ckpt_images *images,
                                               int64_t block)
{
    int low = 0, high = images->files - 1;
    oari_ckpt_image_block b;

    while (low < high) { /* the last file that begins at the block or before */
        int middle = low + (high - low + 1) / 2;

        if (images->file[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    b.file = low;
    b.begin =
        (uint64_t)(block - images->file[low].first_block) * images->block_bytes;
    b.end = b.begin + images->block_bytes;
    if (b.end > images->file[low].bytes)
        b.end = images->file[low].bytes;
    return b;
}

/* Copies what a block has of an entry. */
static oar_status fill_entry(const oari_ckpt_images *images,
                             const oari_ckpt_image_block *b, int64_t entry,
                             oari_ckpt_array_fn *find, void *arg,
                             unsigned char *bytes)
{
    const oari_ckpt_image *f = &images->file[b->file];
    oari_ckpt_file_entry e = entry_at(images, f, entry);
    const oari_ckpt_chunk *chunk = &images->plan->chunk.data[e.chunk];
    uint64_t data = (uint64_t)f->header.text.count + e.begin;
    const void *array;
    const unsigned char *from;
    oari_box_runs runs;
    oari_box_run run;

    OARI_TRY(find(arg, f->part[entry].item, &array));
    from = (const unsigned char *)array + f->part[entry].at;
    oari_box_runs_start(&runs, &chunk->box, &chunk->part, &chunk->box,
                        oar_dtype_size(e.dtype));
    while (oari_box_runs_next(&runs, &run)) {
        uint64_t first = data + run.to, last = first + run.bytes;
        uint64_t a = first > b->begin ? first : b->begin;
        uint64_t end = last < b->end ? last : b->end;

        if (first >= b->end)
            break;
        if (a < end && images->stream)
            oari_stream_copy(bytes + (a - b->begin),
                             from + run.from + (a - first), end - a);
        else if (a < end)
            memcpy(bytes + (a - b->begin), from + run.from + (a - first),
                   end - a);
    }
    return OAR_OK;
}

oar_status oari_ckpt_image_fill(const oari_ckpt_images *images, int64_t block,
                                oari_ckpt_array_fn *find, void *arg,
                                unsigned char *bytes)
{
    oari_ckpt_image_block b = oari_ckpt_image_block_at(images, block);
    const oari_ckpt_image *f = &images->file[b.file];
    uint64_t header = (uint64_t)f->header.text.count;
    uint64_t data = b.begin > header ? b.begin : header;
    int64_t low = 0, high = f->is->count;

    if (b.begin < header)
        memcpy(bytes, f->header.text.data + b.begin,
               (b.end < header ? b.end : header) - b.begin);
    if (images->fill != NULL)
        return data < b.end
                   ? images->fill(images->fill_arg, f->number, data - header,
                                  b.end - header, bytes + (data - b.begin))
                   : OAR_OK;
    while (low < high) { /* the first entry that ends in the block or behind */
        int64_t middle = low + (high - low) / 2;

        if (header + entry_at(images, f, middle).end <= b.begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < f->is->count; low++) {
        oari_ckpt_file_entry e = entry_at(images, f, low);

        if (header + e.begin >= b.end)
            break;
        if (e.begin < e.end)
            OARI_TRY(fill_entry(images, &b, low, find, arg, bytes));
    }
    return OAR_OK;
}
