/* SPDX-License-Identifier: Apache-2.0 */
/* file_layout: sorts chunks into files. */
#include "parallel/checkpoint/file_layout.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"

/* A chunk and what decides about its place. */
typedef struct placed {
    int64_t chunk, tensor;
    int64_t section; /* in order of the plan */
    int shard;
    int writer;
    int number; /* of the writer's files in that section, from 0 */
    int element;
    uint64_t bytes;
} placed;

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_writers(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    int order = compare_numbers(a->writer, b->writer);

    return order != 0 ? order : compare_numbers(a->chunk, b->chunk);
}

/* Tensors are numbered by name. */
static int compare_places(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    int order = compare_numbers(a->section, b->section);

    if (order == 0)
        order = compare_numbers(a->writer, b->writer);
    if (order == 0)
        order = compare_numbers(a->number, b->number);
    if (order == 0)
        order = compare_numbers(b->element, a->element);
    return order != 0 ? order : compare_numbers(a->tensor, b->tensor);
}

/* Fills in the chunks of the tensors of one section, which begins at tensor
 * `first`. Returns the first tensor of the next one. */
static int64_t place_section(const oari_ckpt_save_plan *plan, int64_t first,
                             placed *all)
{
    const oari_ckpt_saved_tensor *tensor = plan->tensor.data;
    int64_t end = first;
    int shard = 0;

    for (; end < plan->tensor.count; end++) {
        if (strcmp(tensor[end].is.section, tensor[first].is.section) != 0)
            break;
        shard = shard || !oari_ckpt_is_whole(plan, end);
    }
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < tensor[t].chunks; i++) {
            int64_t chunk = tensor[t].first + i;
            const oari_ckpt_chunk *c = &plan->chunk.data[chunk];
            size_t element = oar_dtype_size(tensor[t].is.dtype);
            all[chunk] = (placed){
                .chunk = chunk,
                .tensor = t,
                .section = first,
                .shard = shard,
                .writer = c->writer,
                .element = (int)element,
                .bytes = (uint64_t)oari_box_count(&c->box) * element,
            };
        }
    return end;
}

/* Finds the number of each chunk among those that its writer has of the same
 * tensor, then sorts all as they lie in the files. */
static void sort_places(placed *all, int64_t count)
{
    qsort(all, (size_t)count, sizeof *all, compare_writers);
    for (int64_t i = 1; i < count; i++)
        if (all[i].writer == all[i - 1].writer &&
            all[i].tensor == all[i - 1].tensor)
            all[i].number = all[i - 1].number + 1;
    qsort(all, (size_t)count, sizeof *all, compare_places);
}

static int same_file(const placed *a, const placed *b)
{
    return a->section == b->section && a->writer == b->writer &&
           a->number == b->number;
}

/* Names the files from `first` on, which are all that a section, or a writer in
 * a section of shards, has. */
static void name_files(oari_ckpt_file_layout *layout, int64_t first,
                       const char *section)
{
    int files = (int)(layout->file.count - first);

    for (int i = 0; i < files; i++) {
        oari_ckpt_file *file = &layout->file.data[first + i];
        if (file->shard)
            snprintf(file->path, sizeof file->path,
                     "%s/shard-%05d-%s-%05d-of-%05d.safetensors", section,
                     file->writer + 1, section, i + 1, files);
        else
            snprintf(file->path, sizeof file->path,
                     "%s/%s-%05d-of-%05d.safetensors", section, section, i + 1,
                     files);
    }
}

static oar_status make_files(const oari_ckpt_save_plan *plan, const placed *all,
                             oari_ckpt_file_layout *layout)
{
    int64_t named = 0;

    for (int64_t i = 0; i < plan->chunk.count; i++) {
        const placed *x = &all[i];
        oari_ckpt_file *file;
        if (i == 0 || !same_file(x, x - 1))
            OARI_TRY(oari_vec_push(&layout->file,
                                   (oari_ckpt_file){ .writer = x->writer,
                                                     .shard = x->shard,
                                                     .first = i }));
        file = &layout->file.data[layout->file.count - 1];
        layout->order[i] = x->chunk;
        layout->place[x->chunk] =
            (oari_ckpt_place){ layout->file.count - 1, file->data_bytes };
        file->data_bytes += x->bytes; /* the plan's sum fits */
        file->count++;
        if (i + 1 == plan->chunk.count || x->section != x[1].section ||
            (x->shard && x->writer != x[1].writer)) {
            name_files(layout, named, plan->tensor.data[x->tensor].is.section);
            named = layout->file.count;
        }
    }
    return OAR_OK;
}

oar_status oari_ckpt_file_layout_make(const oari_ckpt_save_plan *plan,
                                      oari_ckpt_file_layout *layout)
{
    oari_ckpt_file_layout made = { .chunks = plan->chunk.count };
    size_t n = (size_t)plan->chunk.count;
    placed *all = oari_alloc(n, sizeof *all);
    oar_status status = OAR_E_NOMEM;

    made.place = oari_alloc(n, sizeof *made.place);
    made.order = oari_alloc(n, sizeof *made.order);
    if (all != NULL && made.place != NULL && made.order != NULL) {
        for (int64_t t = 0; t < plan->tensor.count;)
            t = place_section(plan, t, all);
        sort_places(all, plan->chunk.count);
        status = make_files(plan, all, &made);
    }
    oari_free(all);
    if (status == OAR_OK)
        *layout = made;
    else
        oari_ckpt_file_layout_free(&made);
    return status;
}

void oari_ckpt_file_layout_free(oari_ckpt_file_layout *layout)
{
    oari_vec_free(&layout->file);
    oari_free(layout->place);
    oari_free(layout->order);
    memset(layout, 0, sizeof *layout);
}

oari_ckpt_file_entry
oari_ckpt_file_entry_at(const oari_ckpt_save_plan *plan,
                        const oari_ckpt_file_layout *layout, int64_t file,
                        int64_t index)
{
    int64_t chunk = layout->order[layout->file.data[file].first + index];
    const oari_ckpt_chunk *c = &plan->chunk.data[chunk];
    const oari_ckpt_tensor *t = &plan->tensor.data[c->tensor].is;
    oari_ckpt_file_entry entry = {
        .chunk = chunk,
        .name = t->name,
        .dtype = t->dtype,
        .shape = oar_shape_of(c->box.ndim, c->box.extent),
        .begin = layout->place[chunk].at,
    };

    memcpy(entry.offset, c->box.offset, sizeof entry.offset);
    entry.end = entry.begin +
                (uint64_t)oari_box_count(&c->box) * oar_dtype_size(t->dtype);
    return entry;
}
