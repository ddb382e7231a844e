/* SPDX-License-Identifier: Apache-2.0 */
/* commit: the end of a save, on rank 0. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <oarsong/collective.h>

#include "base/status.h"
#include "parallel/checkpoint/saving.h"

/* Reads what a rank has sent about its files: for each its bytes, where its
 * data begins, and its checksums. */
static oar_status read_written(oari_ckpt_saving *s, int rank,
                               const uint64_t *word, size_t words)
{
    const oar_checkpoint *c = s->c;
    uint64_t block = c->opts.block_bytes;

    for (int64_t i = 0; i < c->layout.file.count; i++) {
        oari_ckpt_written *w = &s->written[i];
        uint64_t blocks;

        if (c->layout.file.data[i].writer != rank)
            continue;
        blocks = words >= 2 ? word[0] / block + (word[0] % block != 0) : 0;
        if (words < 2 || blocks > words - 2)
            return oari_about(rank,
                              oari_fail(OAR_E_DATA,
                                        "rank %d sent sums of its files that "
                                        "are cut short",
                                        rank));
        w->bytes = word[0];
        w->data = word[1];
        w->sum.count = 0;
        OARI_TRY(oari_vec_reserve(&w->sum, (int64_t)blocks));
        memcpy(w->sum.data, word + 2, blocks * sizeof *word);
        w->sum.count = (int64_t)blocks;
        word += 2 + blocks;
        words -= 2 + blocks;
    }
    return OAR_OK;
}

oar_status oari_ckpt_gather_written(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    int64_t files = c->layout.file.count;
    OARI_VEC(uint64_t) mine = { 0 };
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oar_status status = sizes == NULL ? OAR_E_NOMEM : OAR_OK;
    void *bytes = NULL;
    const uint64_t *at;

    for (int64_t i = 0; i < files && status == OAR_OK; i++) {
        const oari_ckpt_written *w = &s->written[i];

        if (c->layout.file.data[i].writer != c->rank)
            continue;
        status = oari_vec_reserve(&mine, w->sum.count + 2);
        if (status != OAR_OK)
            break;
        mine.data[mine.count++] = w->bytes;
        mine.data[mine.count++] = w->data;
        memcpy(mine.data + mine.count, w->sum.data,
               (size_t)w->sum.count * sizeof *mine.data);
        mine.count += w->sum.count;
    }
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK && c->group != NULL)
        status = oar_gather_bytes(c->group, mine.data,
                                  (size_t)mine.count * sizeof *mine.data, 0,
                                  c->rank == 0 ? &bytes : NULL,
                                  c->rank == 0 ? sizes : NULL, NULL, NULL);
    at = bytes;
    for (int r = 0; r < c->ranks && at != NULL && status == OAR_OK; r++) {
        status = read_written(s, r, at, sizes[r] / sizeof *at);
        at += sizes[r] / sizeof *at;
    }
    oari_vec_free(&mine);
    oari_free(sizes);
    oar_free(bytes);
    return status;
}

/* Fills the index in from plan, layout, files and values. */
static oar_status make_index(oari_ckpt_saving *s, oari_ckpt_index *index)
{
    const oar_checkpoint *c = s->c;
    int64_t dims = 0, chunk = 0;

    *index = (oari_ckpt_index){ .id = s->id,
                                .note = s->note,
                                .step = s->step,
                                .saved_unix_s = (int64_t)time(NULL),
                                .ranks = c->ranks,
                                .keep = s->opts.keep != 0,
                                .block_bytes = c->opts.block_bytes,
                                .files = c->layout.file.count,
                                .tensors = c->plan.tensor.count,
                                .chunks = c->plan.chunk.count,
                                .values = s->values.value.count };
    /* aliases come last among the values */
    while (index->values > 0 &&
           s->values.value.data[index->values - 1].section != NULL) {
        index->values--;
        index->aliases++;
    }
    for (int64_t i = 0; i < index->tensors; i++) {
        const oari_ckpt_saved_tensor *t = &c->plan.tensor.data[i];

        index->dims += t->is.whole.ndim * (1 + 2 * t->chunks);
    }
    OARI_TRY(oari_ckpt_index_alloc(index));
    for (int64_t i = 0; i < index->files; i++)
        index->file[i] =
            (oari_ckpt_index_file){ .path = c->layout.file.data[i].path,
                                    .bytes = s->written[i].bytes,
                                    .data = s->written[i].data,
                                    .blocks = s->written[i].sum.count,
                                    .sum = s->written[i].sum.data };
    for (int64_t i = 0; i < index->tensors; i++) {
        const oari_ckpt_saved_tensor *t = &c->plan.tensor.data[i];
        int ndim = t->is.whole.ndim;

        index->tensor[i] = (oari_ckpt_index_tensor){ .section = t->is.section,
                                                     .name = t->is.name,
                                                     .dtype = t->is.dtype,
                                                     .ndim = ndim,
                                                     .dims = dims,
                                                     .first = chunk,
                                                     .chunks = t->chunks };
        memcpy(index->dim + dims, t->is.whole.dim,
               (size_t)ndim * sizeof *index->dim);
        dims += ndim;
        for (int64_t k = 0; k < t->chunks; k++, chunk++) {
            const oari_ckpt_chunk *from = &c->plan.chunk.data[t->first + k];
            const oari_ckpt_place *at = &c->layout.place[t->first + k];

            index->chunk[chunk] =
                (oari_ckpt_index_chunk){ .at =
                                             s->written[at->file].data + at->at,
                                         .file = (int32_t)at->file,
                                         .dims = dims };
            memcpy(index->dim + dims, from->box.offset,
                   (size_t)ndim * sizeof *index->dim);
            memcpy(index->dim + dims + ndim, from->box.extent,
                   (size_t)ndim * sizeof *index->dim);
            dims += 2 * ndim;
        }
    }
    for (int64_t i = 0; i < index->aliases; i++) {
        const oari_ckpt_own_value *v = &s->values.value.data[index->values + i];

        index->alias[i] = (oari_ckpt_alias){ v->section, v->name, v->text };
    }
    for (int64_t i = 0; i < index->values; i++)
        index->value[i] =
            (oari_ckpt_value){ .name = s->values.value.data[i].name,
                               .text = s->values.value.data[i].text,
                               .is_text = s->values.value.data[i].is_text };
    return OAR_OK;
}

/* Writes a small file into a folder, and syncs it. */
static oar_status write_small(const oar_checkpoint *c, int folder,
                              const char *name, const oari_json_writer *w)
{
    int fd;
    oar_status status;

    if (w->status != OAR_OK)
        return w->status;
    fd = c->disk->open_file(c->disk, folder, name, OARI_DISK_CREATE);
    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make %s in %s", name, c->path);
    status = oari_disk_write(c->disk, fd, w->text.data, (size_t)w->text.count,
                             0, name);
    if (status == OAR_OK && !c->opts.no_sync)
        return oari_disk_finish(c->disk, fd, name);
    (void)c->disk->close(c->disk, fd);
    return status;
}

oar_status oari_ckpt_write_weight_map(const oari_ckpt_saving *s, int folder)
{
    const oar_checkpoint *c = s->c;
    oari_json_writer w = { 0 };
    uint64_t bytes = 0;
    const char *separator = "";
    oar_status status;

    for (int64_t i = 0; i < c->plan.tensor.count; i++) {
        const oari_ckpt_saved_tensor *t = &c->plan.tensor.data[i];

        if (strcmp(t->is.section, OARI_CKPT_MODEL) == 0)
            bytes +=
                (uint64_t)oari_box_count(&c->plan.chunk.data[t->first].box) *
                oar_dtype_size(t->is.dtype);
    }
    oari_json_add(&w,
                  "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{",
                  bytes);
    for (int64_t i = 0; i < c->plan.tensor.count; i++) {
        const oari_ckpt_saved_tensor *t = &c->plan.tensor.data[i];
        const oari_ckpt_file *f =
            &c->layout.file.data[c->layout.place[t->first].file];
        const char *slash = strchr(f->path, '/');

        if (strcmp(t->is.section, OARI_CKPT_MODEL) != 0)
            continue;
        oari_json_add(&w, "%s", separator);
        oari_json_quote(&w, t->is.name);
        oari_json_add(&w, ":");
        oari_json_quote(&w, slash != NULL ? slash + 1 : f->path);
        separator = ",";
    }
    oari_json_add(&w, "}}\n");
    status = write_small(c, folder, "model.safetensors.index.json", &w);
    oari_vec_free(&w.text);
    return status;
}

/* Syncs the folder of each section; writes the weight map into that of whole
 * models. */
static oar_status finish_sections(const oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    char before[OARI_CKPT_LONGEST_PATH] = "", section[OARI_CKPT_LONGEST_PATH];

    for (int64_t i = 0; i < c->layout.file.count; i++) {
        const oari_ckpt_file *f = &c->layout.file.data[i];
        oar_status status = OAR_OK;
        int fd;

        snprintf(section, sizeof section, "%.*s", (int)strcspn(f->path, "/"),
                 f->path);
        if (strcmp(section, before) == 0)
            continue;
        memcpy(before, section, sizeof before);
        fd = c->disk->open_folder(c->disk, s->generation, section);
        if (fd < 0)
            return oari_fail(OAR_E_SYSTEM, "open %s/%s", c->path, section);
        if (!f->shard && strcmp(section, OARI_CKPT_MODEL) == 0)
            status = oari_ckpt_write_weight_map(s, fd);
        if (status == OAR_OK && !c->opts.no_sync)
            status = oari_disk_finish(c->disk, fd, section);
        else
            (void)c->disk->close(c->disk, fd);
        OARI_TRY(status);
    }
    return OAR_OK;
}

static oar_status sync_folder(const oar_checkpoint *c, int fd)
{
    if (!c->opts.no_sync && c->disk->sync(c->disk, fd) != 0)
        return oari_fail(OAR_E_SYSTEM, "sync a folder of %s", c->path);
    return OAR_OK;
}

static oar_status commit_generation(oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    oari_ckpt_index index;
    oari_json_writer w = { 0 };
    char name[OARI_CKPT_STEP_NAME];
    oar_status status = make_index(s, &index);

    if (status == OAR_OK)
        oari_ckpt_index_write(&w, &index);
    oari_ckpt_index_free(&index);
    if (status == OAR_OK)
        status = finish_sections(s);
    if (status == OAR_OK)
        status = write_small(c, s->generation, OARI_CKPT_INDEX, &w);
    oari_vec_free(&w.text);
    OARI_TRY(status);
    OARI_TRY(sync_folder(c, s->generation));
    oari_ckpt_step_name(s->step, name);
    if (c->disk->rename(c->disk, c->folder, s->part_name, name) != 0)
        return oari_fail(OAR_E_SYSTEM, "rename %s/%s to %s", c->path,
                         s->part_name, name);
    s->part_name[0] = '\0';
    return sync_folder(c, c->folder);
}

oar_status oari_ckpt_commit(oari_ckpt_saving *s)
{
    oar_status status;

    oari_ckpt_slow_begin(s->c, oari_ckpt_slow_limits.sync_ms);
    status = commit_generation(s);
    oari_ckpt_slow_end(s->c);
    return status;
}
