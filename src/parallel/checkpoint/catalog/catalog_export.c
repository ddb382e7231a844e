/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_export: tensors of a generation as a folder of Hugging Face. It is
 * planned as a save of as many ranks as there are files, each of which writes
 * whole tensors. The folder is written under another name, and renamed. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "file/new_file.h"
#include "parallel/checkpoint/catalog/catalog.h"
#include "parallel/checkpoint/tensor_names.h"

enum { MOST_FILES = 99999 };

/* A tensor under its name in the files. */
typedef struct exported {
    char *name;
    oari_catalog_source from;
} exported;

typedef struct exporting {
    oar_catalog *catalog;
    oar_export_opts opts;
    int64_t count;
    exported *tensor;
    oari_catalog_source *source;
    oar_checkpoint to; /* only what a writer of files needs */
    oari_ckpt_saving saving;
} exporting;

/* ---- names --------------------------------------------------------------- */

static oar_status add_tensor(exporting *x, const oari_ckpt_index_tensor *t)
{
    exported *e = &x->tensor[x->count];
    char name[OARI_CKPT_LONGEST_NAME + 1];
    int rule = 0;

    while (rule < x->opts.renames &&
           !oari_ckpt_rename(x->opts.rename[rule].from, x->opts.rename[rule].to,
                             t->name, name, sizeof name))
        rule++;
    *e = (exported){ .from = { .tensor = t } };
    if (rule < x->opts.renames)
        e->from.transpose = x->opts.rename[rule].transpose != 0;
    e->name = oari_strdup(rule < x->opts.renames ? name : t->name);
    if (e->name == NULL)
        return OAR_E_NOMEM;
    x->count++;
    if (e->from.transpose && t->ndim != 2)
        return oari_fail(OAR_E_SHAPE,
                         "catalog_export: \"%.100s\" has %d dims: it is not a "
                         "matrix that can be transposed",
                         t->name, t->ndim);
    return OAR_OK;
}

static int by_exported_name(const void *a, const void *b)
{
    const exported *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static oar_status collect_tensors(exporting *x)
{
    const oari_ckpt_index *index = &x->catalog->index;

    x->tensor = oari_alloc((size_t)index->tensors, sizeof *x->tensor);
    x->source = oari_alloc((size_t)index->tensors, sizeof *x->source);
    if (x->tensor == NULL || x->source == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < index->tensors; i++)
        if (strcmp(index->tensor[i].section, x->opts.section) == 0)
            OARI_TRY(add_tensor(x, &index->tensor[i]));
    if (x->count == 0)
        return oari_fail(OAR_E_NOT_FOUND, "%s has no tensors in \"%.64s\"",
                         x->catalog->path, x->opts.section);
    qsort(x->tensor, (size_t)x->count, sizeof *x->tensor, by_exported_name);
    for (int64_t i = 1; i < x->count; i++)
        if (by_exported_name(&x->tensor[i - 1], &x->tensor[i]) == 0)
            return oari_fail(OAR_E_ARG,
                             "catalog_export: \"%.100s\" and \"%.100s\" both "
                             "become \"%.100s\"",
                             x->tensor[i - 1].from.tensor->name,
                             x->tensor[i].from.tensor->name, x->tensor[i].name);
    return OAR_OK;
}

/* ---- the plan ------------------------------------------------------------ */

/* Adds a tensor as one chunk of the file `writer`. */
static oar_status plan_tensor(exporting *x, int64_t i, int writer)
{
    const exported *e = &x->tensor[i];
    oari_ckpt_save_plan *plan = &x->to.plan;
    oari_ckpt_tensor is = { .section = OARI_CKPT_MODEL,
                            .name = e->name,
                            .dtype = e->from.tensor->dtype,
                            .whole = oari_ckpt_index_shape(&x->catalog->index,
                                                           e->from.tensor) };
    oari_ckpt_chunk chunk = { .tensor = i, .writer = writer, .replicas = 1 };

    if (e->from.transpose)
        is.whole = OAR_SHAPE(is.whole.dim[1], is.whole.dim[0]);
    if (x->opts.has_dtype && oari_dtype_is_float(is.dtype))
        is.dtype = x->opts.dtype;
    chunk.box = chunk.part = oari_box_whole(is.whole);
    x->source[i] = e->from;
    plan->bytes +=
        (uint64_t)oari_box_count(&chunk.box) * oar_dtype_size(is.dtype);
    OARI_TRY(oari_vec_push(
        &plan->tensor,
        ((oari_ckpt_saved_tensor){ .is = is, .first = i, .chunks = 1 })));
    return oari_vec_push(&plan->chunk, chunk);
}

static oar_status make_plan(exporting *x)
{
    oari_ckpt_file_layout *layout = &x->to.layout;
    uint64_t before = 0, in_file = 0;
    int file = 0;

    for (int64_t i = 0; i < x->count; i++) {
        uint64_t bytes;

        before = x->to.plan.bytes;
        OARI_TRY(plan_tensor(x, i, file));
        bytes = x->to.plan.bytes - before;
        if (x->opts.file_bytes > 0 && in_file > 0 &&
            in_file + bytes > x->opts.file_bytes) {
            x->to.plan.chunk.data[i].writer = ++file;
            in_file = 0;
        }
        in_file += bytes;
        if (file >= MOST_FILES)
            return oari_fail(OAR_E_ARG,
                             "catalog_export: more than %d files of %zu bytes",
                             MOST_FILES, x->opts.file_bytes);
    }
    x->to.ranks = x->to.plan.ranks = file + 1;
    OARI_TRY(oari_ckpt_file_layout_make(&x->to.plan, layout));
    for (int64_t i = 0; i < layout->file.count; i++) {
        char *path = layout->file.data[i].path;

        if (layout->file.count == 1)
            memcpy(path, "model.safetensors", sizeof "model.safetensors");
        else /* the files lie in the folder itself */
            memmove(path, path + sizeof OARI_CKPT_MODEL,
                    strlen(path + sizeof OARI_CKPT_MODEL) + 1);
    }
    return OAR_OK;
}

/* ---- the folder ---------------------------------------------------------- */

static int refuse_name(void *arg, const char *name)
{
    (void)name;
    *(int *)arg = 1;
    return 1;
}

/* Checks that the folder is not there, or empty. */
static oar_status check_folder(const oari_disk *disk, int parent,
                               const char *name, const char *path)
{
    int there = disk->open_folder(disk, parent, name), used = 0;

    if (there < 0 && errno == ENOENT)
        return OAR_OK;
    if (there < 0)
        return oari_fail(OAR_E_SYSTEM, "look at %s", path);
    if (disk->list(disk, there, refuse_name, &used) != 0)
        used = 1;
    (void)disk->close(disk, there);
    if (used)
        return oari_fail(OAR_E_STATE, "%s is there already and not empty",
                         path);
    return OAR_OK;
}

/* Writes all files into the open folder saving.generation, and syncs it. */
static oar_status write_folder(exporting *x, const char *path)
{
    oari_ckpt_saving *s = &x->saving;
    oari_catalog_rewrite rewrite = { x->catalog, &x->to, x->source };

    OARI_TRY(oari_catalog_rewrite_files(&rewrite, s));
    if (x->to.layout.file.count > 1)
        OARI_TRY(oari_ckpt_write_weight_map(s, s->generation));
    if (x->to.disk->sync(x->to.disk, s->generation) != 0)
        return oari_fail(OAR_E_SYSTEM, "sync %s", path);
    return OAR_OK;
}

static oar_status make_folder(exporting *x, int parent, const char *name,
                              const char *path)
{
    const oari_disk *disk = x->to.disk;
    char part[NAME_MAX + 1], id[17];
    oar_status status;

    OARI_TRY(check_folder(disk, parent, name, path));
    OARI_TRY(oari_random_id(id));
    if (snprintf(part, sizeof part, "%s.part-%s", name, id) >= (int)sizeof part)
        return oari_fail(OAR_E_ARG, "the folder name %.40s... is too long",
                         name);
    if (disk->make_folder(disk, parent, part) != 0)
        return oari_fail(OAR_E_SYSTEM, "make the folder %s", path);
    x->saving.generation = disk->open_folder(disk, parent, part);
    status = x->saving.generation < 0
                 ? oari_fail(OAR_E_SYSTEM, "open the folder of %s", path)
                 : write_folder(x, path);
    if (x->saving.generation >= 0)
        (void)disk->close(disk, x->saving.generation);
    if (status == OAR_OK && disk->rename(disk, parent, part, name) != 0)
        status = oari_fail(OAR_E_SYSTEM, "rename %s to %s", part, path);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        (void)oari_ckpt_remove_tree(disk, parent, part);
        return oari_fail_with(&why);
    }
    if (disk->sync(disk, parent) != 0)
        return oari_fail(OAR_E_SYSTEM, "sync the folder of %s", path);
    return OAR_OK;
}

/* ---- the call ------------------------------------------------------------ */

static oar_status check_export(const oar_catalog *catalog, const char *folder,
                               oar_export_opts *opts)
{
    if (catalog == NULL || folder == NULL || folder[0] == '\0')
        return oari_fail(OAR_E_ARG, "catalog_export: %s",
                         catalog == NULL ? "the catalog is NULL" : "no folder");
    if (opts->renames < 0 || (opts->renames > 0 && opts->rename == NULL))
        return oari_fail(OAR_E_ARG, "catalog_export: the renames are NULL");
    if (opts->has_dtype && !oari_dtype_is_float(opts->dtype))
        return oari_fail(OAR_E_DTYPE, "catalog_export: floats as %s",
                         oar_dtype_name(opts->dtype));
    if (opts->section == NULL)
        opts->section = OARI_CKPT_MODEL;
    return OAR_OK;
}

static void end_exporting(exporting *x)
{
    oari_ckpt_saving *s = &x->saving;

    for (int64_t i = 0; s->written != NULL && i < x->to.layout.file.count; i++)
        oari_vec_free(&s->written[i].sum);
    oari_free(s->written);
    oari_ckpt_file_layout_free(&x->to.layout);
    oari_ckpt_save_plan_free(&x->to.plan);
    for (int64_t i = 0; i < x->count; i++)
        oari_free(x->tensor[i].name);
    oari_free(x->tensor);
    oari_free(x->source);
    oari_free(x->to.path);
}

oar_status oar_catalog_export(oar_catalog *catalog, const char *folder,
                              const oar_export_opts *opts)
{
    exporting x = { .catalog = catalog };
    const char *name;
    oar_status status;
    int parent;

    OARI_TRY(oari_opts_read(&x.opts, sizeof x.opts, opts));
    OARI_TRY(check_export(catalog, folder, &x.opts));
    x.to.disk = catalog->disk;
    x.to.opts.block_bytes = 4 << 20;
    x.to.opts.threads = OARI_CATALOG_THREADS;
    x.saving.c = &x.to;
    x.saving.step = catalog->index.step;
    snprintf(x.saving.id, sizeof x.saving.id, "%.16s", catalog->index.id);
    x.to.path = oari_strdup(folder);
    status = x.to.path == NULL ? OAR_E_NOMEM : OAR_OK;
    for (size_t n = strlen(folder); status == OAR_OK && n > 1; n--) {
        if (x.to.path[n - 1] != '/')
            break;
        x.to.path[n - 1] = '\0';
    }
    if (status == OAR_OK)
        status = collect_tensors(&x);
    if (status == OAR_OK)
        status = make_plan(&x);
    if (status == OAR_OK)
        status = oari_disk_open_parent(x.to.disk, x.to.path, &parent, &name);
    if (status == OAR_OK) {
        status = make_folder(&x, parent, name, x.to.path);
        (void)x.to.disk->close(x.to.disk, parent);
    }
    end_exporting(&x);
    return status;
}
