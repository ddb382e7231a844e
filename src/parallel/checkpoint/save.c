/* SPDX-License-Identifier: Apache-2.0 */
/* save: the phases of a save. After each of them all ranks agree whether it
 * succeeded everywhere, so that all leave at the same place.
 *
 *   plan    lists of arrays, and values; nothing is sent that has not changed
 *   make    rank 0 makes the folder step-N.part-ID
 *   write   each rank its files, synced
 *   commit  rank 0 writes the index, syncs all folders, renames the folder to
 *           step-N and syncs its parent
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <oarsong/collective.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "file/new_file.h"
#include "parallel/checkpoint/checkpoint.h"

/* A save under way. */
typedef struct saving {
    oar_checkpoint *c;
    const oar_state *state;
    int64_t step;
    oar_save_opts opts;
    oari_ckpt_part_list list;
    oari_ckpt_values values; /* of this rank; then, on rank 0, of all */
    void **copy;             /* by item: an array that is not as it is saved */
    const void **array;      /* by item */
    char id[17];
    char part_name[OARI_CKPT_STEP_NAME + 24];
    int generation; /* its folder, or -1 */
    oari_ckpt_written *written;
} saving;

/* ---- plan ---------------------------------------------------------------- */

/* The dtype that an item is saved as. */
static oar_dtype saved_dtype(const saving *s, const oari_ckpt_item *item)
{
    oar_dtype dtype = oar_tensor_dtype(item->tensor);

    if (s->opts.has_dtype && oari_dtype_is_float(dtype) &&
        strcmp(item->section, OARI_CKPT_MODEL) == 0)
        return s->opts.dtype;
    return dtype;
}

static oar_status make_list(saving *s)
{
    for (int64_t i = 0; i < s->state->item.count; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        oari_ckpt_tensor tensor = { .section = item->section,
                                    .name = item->name,
                                    .dtype = saved_dtype(s, item),
                                    .flags = item->flags,
                                    .whole = item->whole };

        if (item->flat)
            OARI_TRY(
                oari_ckpt_part_list_add_flat(&s->list, &tensor, item->first,
                                             oar_tensor_count(item->tensor)));
        else
            OARI_TRY(
                oari_ckpt_part_list_add_box(&s->list, &tensor, &item->box));
    }
    return oari_ckpt_part_list_seal(&s->list);
}

static int by_value_name(const void *a, const void *b)
{
    const oari_ckpt_own_value *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static oar_status collect_values(saving *s)
{
    for (int64_t i = 0; i < s->state->source.count; i++) {
        const oari_ckpt_source *source = &s->state->source.data[i];

        OARI_TRY(source->class->collect(source, &s->values));
    }
    if (s->values.value.count > 0)
        qsort(s->values.value.data, (size_t)s->values.value.count,
              sizeof *s->values.value.data, by_value_name);
    for (int64_t i = 1; i < s->values.value.count; i++)
        if (by_value_name(&s->values.value.data[i - 1],
                          &s->values.value.data[i]) == 0)
            return oari_fail(OAR_E_ARG,
                             "state: the value \"%.100s\" is there "
                             "twice",
                             s->values.value.data[i].name);
    return OAR_OK;
}

/* The values as bytes: name, zero, text, zero, a byte of flags. */
static oar_status encode_values(const saving *s, oari_json_writer *w)
{
    for (int64_t i = 0; i < s->values.value.count; i++) {
        const oari_ckpt_own_value *v = &s->values.value.data[i];

        oari_json_add(w, "%s", v->name);
        oari_json_fill(w, 0, 1);
        oari_json_add(w, "%s", v->text);
        oari_json_fill(w, 0, 1);
        oari_json_fill(w, (char)(v->is_text | v->may_differ << 1), 1);
    }
    return w->status;
}

/* A value of some rank. */
typedef struct rank_value {
    const char *name, *text;
    int rank, flags;
} rank_value;

typedef struct rank_values {
    OARI_VEC(rank_value) value;
} rank_values;

static int by_name_and_rank(const void *a, const void *b)
{
    const rank_value *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order != 0 ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Reads what encode_values wrote on a rank. */
static oar_status decode_values(const char *bytes, size_t size, int rank,
                                rank_values *all)
{
    const char *at = bytes, *end = bytes + size;

    while (at < end) {
        rank_value v = { .rank = rank, .name = at };
        const char *zero = memchr(at, 0, (size_t)(end - at));

        v.text = zero != NULL ? zero + 1 : end;
        zero = v.text < end ? memchr(v.text, 0, (size_t)(end - v.text)) : NULL;
        if (zero == NULL || zero + 1 >= end)
            return oari_fail(OAR_E_DATA,
                             "rank %d sent values that are cut short", rank);
        v.flags = zero[1];
        at = zero + 2;
        OARI_TRY(oari_vec_push(&all->value, v));
    }
    return OAR_OK;
}

/* Joins the different counters of ranks: "17 - 19". */
static oar_status join_counters(const rank_value *v, int64_t count, int ranks,
                                char **text)
{
    oari_json_writer w = { 0 };
    int64_t i = 0;

    for (int r = 0; r < ranks; r++) {
        int has = i < count && v[i].rank == r;

        oari_json_add(&w, "%s%s", r > 0 ? " " : "", has ? v[i].text : "-");
        i += has;
    }
    oari_json_fill(&w, 0, 1);
    *text = w.status == OAR_OK ? oari_strdup(w.text.data) : NULL;
    oari_vec_free(&w.text);
    return *text != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* Adds the one value that the ranks have under a name. */
static oar_status merge_one(const rank_value *v, int64_t count, int ranks,
                            oari_ckpt_values *into)
{
    oari_ckpt_own_value merged = { .is_text = v->flags & 1 };
    int64_t other = 1;

    while (other < count && strcmp(v[other].text, v->text) == 0)
        other++;
    if (other < count && !(v->flags & 2))
        return oari_fail(OAR_E_MISMATCH,
                         "the value \"%.100s\" is %.80s on rank %d, and %.80s "
                         "on rank %d",
                         v->name, v->text, v->rank, v[other].text,
                         v[other].rank);
    OARI_TRY(oari_vec_reserve(&into->value, 1));
    if (other < count) {
        merged.is_text = 1;
        OARI_TRY(join_counters(v, count, ranks, &merged.text));
    } else {
        merged.text = oari_strdup(v->text);
    }
    merged.name = oari_strdup(v->name);
    into->value.data[into->value.count++] = merged;
    return merged.name != NULL && merged.text != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* Puts the values of all ranks together, on all ranks. */
static oar_status merge_values(saving *s, const oari_json_writer *mine)
{
    oar_checkpoint *c = s->c;
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oari_ckpt_values merged = { { 0 } };
    rank_values all = { { 0 } };
    void *bytes = NULL;
    const char *at;
    oar_status status = sizes == NULL ? OAR_E_NOMEM : OAR_OK;

    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK)
        status = oar_all_gather_bytes(c->group, mine->text.data,
                                      (size_t)mine->text.count, &bytes, sizes,
                                      NULL, NULL);
    at = bytes;
    for (int r = 0; r < c->ranks && status == OAR_OK; r++) {
        status = decode_values(at, sizes[r], r, &all);
        at += sizes[r];
    }
    if (status == OAR_OK && all.value.count > 0)
        qsort(all.value.data, (size_t)all.value.count, sizeof *all.value.data,
              by_name_and_rank);
    for (int64_t i = 0, n; i < all.value.count && status == OAR_OK; i += n) {
        for (n = 1;
             i + n < all.value.count &&
             strcmp(all.value.data[i].name, all.value.data[i + n].name) == 0;)
            n++;
        status = merge_one(&all.value.data[i], n, c->ranks, &merged);
    }
    oari_vec_free(&all.value);
    oar_free(bytes);
    oari_free(sizes);
    oari_ckpt_values_free(&s->values);
    s->values = merged;
    return status;
}

/* Makes the plan of all ranks' lists. */
static oar_status make_plan(saving *s)
{
    oar_checkpoint *c = s->c;
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oari_ckpt_lists lists = { .ranks = c->ranks };
    oari_ckpt_save_opts opts = { .writers = c->opts.writers };
    void *bytes = NULL;
    const char *at = (const char *)s->list.wire.data;
    oar_status status = sizes == NULL ? OAR_E_NOMEM : OAR_OK;

    oari_ckpt_file_layout_free(&c->layout);
    oari_ckpt_save_plan_free(&c->plan);
    c->planned = 0;
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK && c->group != NULL) {
        status = oar_all_gather_bytes(c->group, s->list.wire.data,
                                      (size_t)s->list.wire.count, &bytes, sizes,
                                      NULL, NULL);
        at = bytes;
    } else if (status == OAR_OK) {
        sizes[0] = (size_t)s->list.wire.count;
    }
    for (int r = 0; r < c->ranks && status == OAR_OK; r++) {
        status = oari_ckpt_lists_add(&lists, r, at, sizes[r]);
        at += sizes[r];
    }
    if (status == OAR_OK)
        status = oari_ckpt_save_plan_make(&lists, &opts, &c->plan);
    if (status == OAR_OK)
        status = oari_ckpt_file_layout_make(&c->plan, &c->layout);
    oari_ckpt_lists_free(&lists);
    oar_free(bytes);
    oari_free(sizes);
    if (status == OAR_OK) {
        c->planned = 1;
        memcpy(c->list_hash, s->list.hash, sizeof c->list_hash);
    }
    return status;
}

/* Agrees on plan and values. In the steady state, when no list has changed and
 * all ranks have the same values, that is one all-reduce of 16 bytes. */
static oar_status plan_save(saving *s)
{
    oar_checkpoint *c = s->c;
    oari_json_writer values = { 0 };
    oar_status status = make_list(s);
    uint64_t word[2], hash = 0, same;

    if (status == OAR_OK)
        status = collect_values(s);
    if (status == OAR_OK)
        status = encode_values(s, &values);
    if (status == OAR_OK)
        hash = XXH3_64bits(values.text.data, (size_t)values.text.count) | 1;
    same = c->planned &&
           memcmp(c->list_hash, s->list.hash, sizeof c->list_hash) == 0;
    word[0] = status == OAR_OK && same ? hash : 0;
    word[1] = ~hash;
    if (c->group != NULL && status == OAR_OK)
        status = oar_all_reduce(c->group, oar_span_of(word, 2, OAR_U64),
                                OAR_MIN, NULL, NULL);
    else if (c->group != NULL) {
        oar_error why = *oar_last_error();

        (void)oar_all_reduce(c->group, oar_span_of(word, 2, OAR_U64), OAR_MIN,
                             NULL, NULL);
        status = oari_fail_with(&why);
    }
    if (word[0] == hash && word[1] == ~hash && status == OAR_OK) {
        oari_vec_free(&values.text);
        return OAR_OK;
    }
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK)
        status = oari_ckpt_agree(c, make_plan(s));
    if (status == OAR_OK && c->group != NULL)
        status = oari_ckpt_agree(c, merge_values(s, &values));
    oari_vec_free(&values.text);
    return status;
}

/* ---- arrays -------------------------------------------------------------- */

/* Finds each array's numbers in host memory, row by row, in the dtype that is
 * saved; copies those that do not lie so. */
static oar_status find_arrays(saving *s)
{
    size_t items = (size_t)s->state->item.count;

    s->copy = oari_alloc(items, sizeof *s->copy);
    s->array = oari_alloc(items, sizeof *s->array);
    if (s->copy == NULL || s->array == NULL)
        return OAR_E_NOMEM;
    for (size_t i = 0; i < items; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        oar_dtype dtype = saved_dtype(s, item);
        size_t bytes =
            (size_t)oar_tensor_count(item->tensor) * oar_dtype_size(dtype);

        if (dtype == oar_tensor_dtype(item->tensor) &&
            oar_tensor_is_contiguous(item->tensor) &&
            oar_tensor_device(item->tensor).kind == OAR_CPU) {
            s->array[i] = oar_tensor_const_data(item->tensor);
            if (s->array[i] == NULL && bytes > 0)
                return oari_fail(OAR_E_STATE,
                                 "checkpoint: \"%.100s\" has no data",
                                 item->name);
            continue;
        }
        s->copy[i] = oari_alloc_aligned(64, bytes > 0 ? bytes : 1);
        if (s->copy[i] == NULL)
            return OAR_E_NOMEM;
        OARI_TRY(oar_tensor_read(item->tensor, dtype, s->copy[i]));
        s->array[i] = s->copy[i];
    }
    return OAR_OK;
}

/* ---- make ---------------------------------------------------------------- */

static oar_status check_space(const saving *s)
{
    const oar_checkpoint *c = s->c;
    uint64_t wanted = c->plan.bytes + ((uint64_t)c->layout.file.count << 12);
    uint64_t space;

    if (c->disk->free_bytes(c->disk, c->folder, &space) == 0 &&
        space < wanted) {
        errno = ENOSPC;
        return oari_fail(OAR_E_SYSTEM,
                         "%s: a generation of %" PRIu64 " bytes, and %" PRIu64
                         " are free",
                         c->path, wanted, space);
    }
    return OAR_OK;
}

/* Makes the folders of the sections that have files. */
static oar_status make_sections(const saving *s)
{
    const oar_checkpoint *c = s->c;
    char section[OARI_CKPT_LONGEST_PATH], before[OARI_CKPT_LONGEST_PATH] = "";

    for (int64_t i = 0; i < c->layout.file.count; i++) {
        const char *path = c->layout.file.data[i].path;

        snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "/"),
                 path);
        if (strcmp(section, before) == 0)
            continue;
        if (c->disk->make_folder(c->disk, s->generation, section) != 0)
            return oari_fail(OAR_E_SYSTEM, "make %s/%s/%s", c->path,
                             s->part_name, section);
        memcpy(before, section, sizeof before);
    }
    return OAR_OK;
}

/* Rank 0 makes the folder. */
static oar_status make_part(saving *s)
{
    const oar_checkpoint *c = s->c;
    char name[OARI_CKPT_STEP_NAME];
    int there;

    oari_ckpt_step_name(s->step, name);
    there = c->disk->open_folder(c->disk, c->folder, name);
    if (there >= 0) {
        (void)c->disk->close(c->disk, there);
        return oari_fail(OAR_E_STATE, "%s has step %" PRId64 " already",
                         c->path, s->step);
    }
    if (errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "look at %s/%s", c->path, name);
    OARI_TRY(check_space(s));
    OARI_TRY(oari_random_id(s->id));
    snprintf(s->part_name, sizeof s->part_name, "%s.part-%s", name, s->id);
    if (c->disk->make_folder(c->disk, c->folder, s->part_name) != 0)
        return oari_fail(OAR_E_SYSTEM, "make %s/%s", c->path, s->part_name);
    s->generation = c->disk->open_folder(c->disk, c->folder, s->part_name);
    if (s->generation < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s/%s", c->path, s->part_name);
    return make_sections(s);
}

static oar_status open_part(saving *s)
{
    const oar_checkpoint *c = s->c;
    char name[OARI_CKPT_STEP_NAME];

    oari_ckpt_step_name(s->step, name);
    snprintf(s->part_name, sizeof s->part_name, "%s.part-%s", name, s->id);
    s->generation = c->disk->open_folder(c->disk, c->folder, s->part_name);
    if (s->generation < 0)
        return oari_fail(OAR_E_SYSTEM,
                         "open %s/%s, which rank 0 has made: do all ranks see "
                         "the same folder?",
                         c->path, s->part_name);
    return OAR_OK;
}

static oar_status make_generation(saving *s)
{
    oar_checkpoint *c = s->c;

    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? make_part(s) : OAR_OK));
    if (c->group == NULL)
        return OAR_OK;
    OARI_TRY(oar_broadcast(c->group, oar_span_of(s->id, sizeof s->id, OAR_U8),
                           0, NULL, NULL));
    return oari_ckpt_agree(c, c->rank != 0 ? open_part(s) : OAR_OK);
}

/* ---- commit -------------------------------------------------------------- */

/* Sends the sizes and checksums of the files to rank 0. */
static oar_status gather_written(saving *s)
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
    for (int r = 0; r < c->ranks && at != NULL && status == OAR_OK; r++)
        for (int64_t i = 0; i < files && status == OAR_OK; i++) {
            oari_ckpt_written *w = &s->written[i];
            int64_t blocks;

            if (c->layout.file.data[i].writer != r)
                continue;
            w->bytes = *at++;
            w->data = *at++;
            blocks = (int64_t)((w->bytes + c->opts.block_bytes - 1) /
                               c->opts.block_bytes);
            w->sum.count = 0;
            status = oari_vec_reserve(&w->sum, blocks);
            if (status == OAR_OK)
                memcpy(w->sum.data, at, (size_t)blocks * sizeof *at);
            w->sum.count = blocks;
            at += blocks;
        }
    oari_vec_free(&mine);
    oari_free(sizes);
    oar_free(bytes);
    return status;
}

/* Fills the index in from plan, layout, files and values. */
static oar_status make_index(saving *s, oari_ckpt_index *index)
{
    const oar_checkpoint *c = s->c;
    int64_t dims = 0, chunk = 0;

    *index =
        (oari_ckpt_index){ .id = s->id,
                           .note = s->opts.note != NULL ? s->opts.note : "",
                           .step = s->step,
                           .saved_unix_s = (int64_t)time(NULL),
                           .ranks = c->ranks,
                           .keep = s->opts.keep != 0,
                           .block_bytes = c->opts.block_bytes,
                           .files = c->layout.file.count,
                           .tensors = c->plan.tensor.count,
                           .chunks = c->plan.chunk.count,
                           .aliases = s->state->alias.count,
                           .values = s->values.value.count };
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
    for (int64_t i = 0; i < index->aliases; i++)
        index->alias[i] = s->state->alias.data[i];
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

/* Writes the index that makes "model", if its tensors are whole, a folder of
 * Hugging Face. */
static oar_status write_weight_map(const saving *s, int section)
{
    const oar_checkpoint *c = s->c;
    oari_json_writer w = { 0 };
    uint64_t bytes = 0;
    const char *separator = "";
    oar_status status;

    for (int64_t i = 0; i < c->layout.file.count; i++)
        if (strncmp(c->layout.file.data[i].path, OARI_CKPT_MODEL "/",
                    sizeof OARI_CKPT_MODEL) == 0)
            bytes += c->layout.file.data[i].data_bytes;
    oari_json_add(&w,
                  "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{",
                  bytes);
    for (int64_t i = 0; i < c->plan.tensor.count; i++) {
        const oari_ckpt_saved_tensor *t = &c->plan.tensor.data[i];
        const oari_ckpt_file *f =
            &c->layout.file.data[c->layout.place[t->first].file];

        if (strcmp(t->is.section, OARI_CKPT_MODEL) != 0)
            continue;
        oari_json_add(&w, "%s", separator);
        oari_json_quote(&w, t->is.name);
        oari_json_add(&w, ":");
        oari_json_quote(&w, strchr(f->path, '/') + 1);
        separator = ",";
    }
    oari_json_add(&w, "}}\n");
    status = write_small(c, section, "model.safetensors.index.json", &w);
    oari_vec_free(&w.text);
    return status;
}

/* Syncs the folder of each section; writes the weight map into that of whole
 * models. */
static oar_status finish_sections(const saving *s)
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
            status = write_weight_map(s, fd);
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

/* Rank 0 makes the generation what it is called. A server that answers twice
 * may say that there is nothing to rename: then the name is there. */
static oar_status commit(saving *s)
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

/* ---- the call ------------------------------------------------------------ */

static void end_saving(saving *s)
{
    const oar_checkpoint *c = s->c;

    if (s->generation >= 0)
        (void)c->disk->close(c->disk, s->generation);
    for (int64_t i = 0; s->copy != NULL && i < s->state->item.count; i++)
        oari_free(s->copy[i]);
    for (int64_t i = 0; s->written != NULL && i < c->layout.file.count; i++)
        oari_vec_free(&s->written[i].sum);
    oari_free(s->written);
    oari_free(s->copy);
    oari_free(s->array);
    oari_ckpt_values_free(&s->values);
    oari_ckpt_part_list_free(&s->list);
}

static oar_status write_phase(saving *s)
{
    oar_checkpoint *c = s->c;

    s->written = oari_alloc((size_t)c->layout.file.count, sizeof *s->written);
    if (s->written == NULL)
        return OAR_E_NOMEM;
    return oari_ckpt_write_files(c, s->generation, s->id, s->step, &s->list,
                                 s->array, s->written);
}

static oar_status run_phases(saving *s)
{
    oar_checkpoint *c = s->c;
    int64_t start = oari_now_ns(), planned, written;

    OARI_TRY(plan_save(s));
    OARI_TRY(oari_ckpt_agree(c, find_arrays(s)));
    planned = oari_now_ns();
    OARI_TRY(make_generation(s));
    OARI_TRY(oari_ckpt_agree(c, write_phase(s)));
    OARI_TRY(oari_ckpt_agree(c, gather_written(s)));
    written = oari_now_ns();
    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? commit(s) : OAR_OK));
    c->stats = (oar_checkpoint_stats){
        .size = sizeof c->stats,
        .step = s->step,
        .bytes = c->plan.load[c->rank],
        .all_bytes = c->plan.bytes,
        .plan_s = (double)(planned - start) * 1e-9,
        .write_s = (double)(written - planned) * 1e-9,
        .commit_s = (double)(oari_now_ns() - written) * 1e-9,
        .total_s = (double)(oari_now_ns() - start) * 1e-9
    };
    return OAR_OK;
}

/* Removes what a save that failed has left, without hiding why it failed. */
static void remove_part(const saving *s)
{
    oar_error why = *oar_last_error();

    if (s->part_name[0] != '\0' && s->c->rank == 0 &&
        oari_ckpt_remove_tree(s->c->disk, s->c->folder, s->part_name) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s stays: %s", s->part_name,
                 oar_last_error_text());
    (void)oari_fail_with(&why);
}

static oar_status check_save(const oar_checkpoint *c, const oar_state *state,
                             int64_t step, const oar_save_opts *opts)
{
    if (step < 0 || step > 999999999999)
        return oari_fail(OAR_E_ARG,
                         "checkpoint_save: step %" PRId64
                         "; 0 to 999,999,999,999 are allowed",
                         step);
    if (state == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_save: the state is NULL");
    if (c->opts.read_only)
        return oari_fail(OAR_E_STATE, "checkpoint_save: %s is read-only",
                         c->path);
    if (opts->note != NULL && strlen(opts->note) > 200)
        return oari_fail(OAR_E_ARG, "checkpoint_save: a note of %zu bytes",
                         strlen(opts->note));
    if (opts->has_dtype && !oari_dtype_is_float(opts->dtype))
        return oari_fail(OAR_E_DTYPE, "checkpoint_save: floats as %s",
                         oar_dtype_name(opts->dtype));
    return OAR_OK;
}

oar_status oar_checkpoint_save(oar_checkpoint *checkpoint,
                               const oar_state *state, int64_t step,
                               const oar_save_opts *opts)
{
    saving s = {
        .c = checkpoint, .state = state, .step = step, .generation = -1
    };
    oar_status status;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_save"));
    OARI_TRY(oari_opts_read(&s.opts, sizeof s.opts, opts));
    status = oari_ckpt_agree(checkpoint,
                             check_save(checkpoint, state, step, &s.opts));
    if (status != OAR_OK)
        return status;
    status = run_phases(&s);
    if (status != OAR_OK)
        remove_part(&s);
    end_saving(&s);
    if (status == OAR_OK && checkpoint->rank == 0 &&
        oari_ckpt_prune(checkpoint) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s is not pruned: %s",
                 checkpoint->path, oar_last_error_text());
    return status;
}
