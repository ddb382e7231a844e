/* SPDX-License-Identifier: Apache-2.0 */
/* catalog: looking at a generation without ranks. */
#include "parallel/checkpoint/catalog/catalog.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "parallel/checkpoint/tensor_names.h"

/* ---- opening ------------------------------------------------------------- */

/* Opens the newest complete generation of a folder. The folder becomes that of
 * the generation. */
static oar_status open_newest(oar_catalog *c, char **text, size_t *bytes)
{
    char name[OARI_CKPT_STEP_NAME];
    size_t room = strlen(c->path) + sizeof name + 1;
    char *path = oari_alloc(room, 1);
    int folder = c->generation;
    oar_status status;
    int64_t step;

    if (path == NULL)
        return OAR_E_NOMEM;
    status =
        oari_ckpt_find_newest(c->disk, folder, c->path, &step, text, bytes);
    if (status != OAR_OK) {
        oari_free(path);
        return status;
    }
    oari_ckpt_step_name(step, name);
    snprintf(path, room, "%s/%s", c->path, name);
    oari_free(c->path);
    c->path = path;
    c->generation = c->disk->open_folder(c->disk, folder, name);
    (void)c->disk->close(c->disk, folder);
    if (c->generation >= 0)
        return OAR_OK;
    oari_free(*text);
    return oari_fail(OAR_E_NOT_FOUND, "%s is gone", c->path);
}

static oar_status open_path(oar_catalog *c)
{
    const oari_disk *disk = c->disk;
    char *text = NULL, what[300];
    size_t bytes = 0;
    int fd;

    c->generation = disk->open_folder(disk, AT_FDCWD, c->path);
    if (c->generation < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open the folder %s", c->path);
    fd = disk->open_file(disk, c->generation, OARI_CKPT_INDEX, OARI_DISK_READ);
    if (fd < 0 && errno == ENOENT) {
        OARI_TRY(open_newest(c, &text, &bytes));
    } else {
        if (fd >= 0)
            (void)disk->close(disk, fd);
        OARI_TRY(oari_ckpt_read_index_in(disk, c->generation, c->path, &text,
                                         &bytes));
    }
    snprintf(what, sizeof what, "%.280s/" OARI_CKPT_INDEX, c->path);
    return oari_ckpt_index_read(what, text, bytes, &c->index);
}

oar_status oar_catalog_open(const char *path, oar_catalog **catalog)
{
    oar_catalog *c;
    oar_status status;

    if (path == NULL || path[0] == '\0' || catalog == NULL)
        return oari_fail(OAR_E_ARG, "catalog_open: %s",
                         catalog == NULL ? "nowhere to give it" : "no path");
    c = oari_alloc(1, sizeof *c);
    if (c == NULL)
        return OAR_E_NOMEM;
    c->disk = oari_disk_in_use();
    c->generation = -1;
    c->path = oari_strdup(path);
    for (size_t n = strlen(path); c->path != NULL && n > 1; n--) {
        if (c->path[n - 1] != '/')
            break;
        c->path[n - 1] = '\0';
    }
    status = c->path == NULL ? OAR_E_NOMEM : open_path(c);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        oar_catalog_close(c);
        return oari_fail_with(&why);
    }
    *catalog = c;
    return OAR_OK;
}

void oar_catalog_close(oar_catalog *catalog)
{
    if (catalog == NULL)
        return;
    if (catalog->generation >= 0)
        (void)catalog->disk->close(catalog->disk, catalog->generation);
    oari_ckpt_index_free(&catalog->index);
    oari_free(catalog->path);
    oari_free(catalog);
}

/* ---- asking -------------------------------------------------------------- */

int64_t oar_catalog_step(const oar_catalog *catalog)
{
    return catalog != NULL ? catalog->index.step : -1;
}

oar_status oar_catalog_describe(const oar_catalog *catalog,
                                oar_generation *generation)
{
    const char *slash;

    if (catalog == NULL || generation == NULL)
        return oari_fail(OAR_E_ARG, "catalog_describe: %s is NULL",
                         catalog == NULL ? "the catalog" : "the generation");
    *generation = (oar_generation){ .complete = 1 };
    slash = strrchr(catalog->path, '/');
    snprintf(generation->name, sizeof generation->name, "%.63s",
             slash != NULL ? slash + 1 : catalog->path);
    oari_ckpt_describe(&catalog->index, generation);
    return OAR_OK;
}

int64_t oar_catalog_tensors(const oar_catalog *catalog)
{
    return catalog != NULL ? catalog->index.tensors + catalog->index.aliases
                           : 0;
}

static oar_status give_entry(const oar_catalog *c,
                             const oari_ckpt_index_tensor *t,
                             const oari_ckpt_alias *alias,
                             oar_catalog_entry *entry)
{
    oar_catalog_entry e = { .size = sizeof e,
                            .section = t->section,
                            .name = alias != NULL ? alias->name : t->name,
                            .dtype = t->dtype,
                            .shape = oari_ckpt_index_shape(&c->index, t),
                            .chunks = t->chunks,
                            .alias_of = alias != NULL ? alias->of : NULL };
    oari_box whole = oari_box_whole(e.shape);

    e.bytes = (uint64_t)oari_box_count(&whole) * oar_dtype_size(t->dtype);
    return oari_struct_give(entry, &e, sizeof e, "catalog_entry");
}

oar_status oar_catalog_entry_at(const oar_catalog *catalog, int64_t index,
                                oar_catalog_entry *entry)
{
    const oari_ckpt_alias *alias;

    if (catalog == NULL || index < 0 || index >= oar_catalog_tensors(catalog))
        return oari_fail(OAR_E_ARG,
                         "catalog_entry_at: entry %" PRId64 " of %" PRId64,
                         index, oar_catalog_tensors(catalog));
    if (index < catalog->index.tensors)
        return give_entry(catalog, &catalog->index.tensor[index], NULL, entry);
    alias = &catalog->index.alias[index - catalog->index.tensors];
    return give_entry(
        catalog,
        oari_ckpt_index_find(&catalog->index, alias->section, alias->name),
        alias, entry);
}

/* Finds a name in a section, or in the first one that has it. */
static oar_status find_tensor(const oar_catalog *c, const char *call,
                              const char *section, const char *name,
                              const oari_ckpt_index_tensor **tensor)
{
    const char *before = NULL, *near;

    if (c == NULL || name == NULL)
        return oari_fail(OAR_E_ARG, "%s: %s is NULL", call,
                         c == NULL ? "the catalog" : "the name");
    if (section != NULL)
        *tensor = oari_ckpt_index_find(&c->index, section, name);
    else
        *tensor = NULL;
    for (int64_t i = 0;
         section == NULL && *tensor == NULL && i < c->index.tensors; i++) {
        const char *is = c->index.tensor[i].section;

        if (before == NULL || strcmp(is, before) != 0)
            *tensor = oari_ckpt_index_find(&c->index, is, name);
        before = is;
    }
    if (*tensor != NULL)
        return OAR_OK;
    near = oari_ckpt_index_nearest(&c->index, section, name);
    return oari_fail(
        OAR_E_NOT_FOUND, "%s has no tensor \"%.100s\"%s%s%s%.100s%s", c->path,
        name, section != NULL ? " in " : "", section != NULL ? section : "",
        near != NULL ? "; the nearest name is \"" : "",
        near != NULL ? near : "", near != NULL ? "\"" : "");
}

oar_status oar_catalog_find(const oar_catalog *catalog, const char *section,
                            const char *name, oar_catalog_entry *entry)
{
    const oari_ckpt_index_tensor *t;

    OARI_TRY(find_tensor(catalog, "catalog_find", section, name, &t));
    for (int64_t i = 0; i < catalog->index.aliases; i++) {
        const oari_ckpt_alias *a = &catalog->index.alias[i];

        if (strcmp(a->name, name) == 0 && strcmp(a->section, t->section) == 0)
            return give_entry(catalog, t, a, entry);
    }
    return give_entry(catalog, t, NULL, entry);
}

int64_t oar_catalog_values(const oar_catalog *catalog)
{
    return catalog != NULL ? catalog->index.values : 0;
}

oar_status oar_catalog_value_at(const oar_catalog *catalog, int64_t index,
                                const char **name, const char **text)
{
    if (name == NULL || text == NULL || index < 0 ||
        index >= oar_catalog_values(catalog))
        return oari_fail(OAR_E_ARG,
                         "catalog_value_at: value %" PRId64 " of %" PRId64,
                         index, oar_catalog_values(catalog));
    *name = catalog->index.value[index].name;
    *text = catalog->index.value[index].text;
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

oari_ckpt_reading oari_catalog_reading(const oar_catalog *catalog,
                                       const oari_ckpt_read_plan *plan,
                                       void *const *target, int threads)
{
    return (oari_ckpt_reading){ .disk = catalog->disk,
                                .folder = catalog->generation,
                                .name = ".",
                                .path = catalog->path,
                                .index = &catalog->index,
                                .plan = plan,
                                .target = target,
                                .threads = threads,
                                .buffered = threads == 1 };
}

oar_tensor *oar_catalog_tensor(oar_catalog *catalog, const char *section,
                               const char *name)
{
    oari_ckpt_read_plan plan = { .gap = 0 };
    const oari_ckpt_index_tensor *t;
    oari_ckpt_reading reading;
    oari_ckpt_wanted wanted = { .target = 0 };
    oar_tensor *tensor;
    oar_status status;
    void *target;

    if (find_tensor(catalog, "catalog_tensor", section, name, &t) != OAR_OK)
        return NULL;
    tensor =
        oar_empty(NULL, t->dtype, oari_ckpt_index_shape(&catalog->index, t));
    if (tensor == NULL)
        return NULL;
    target = oar_tensor_data(tensor);
    plan.gap = oari_ckpt_join_gap(&catalog->index);
    wanted.box = oari_box_whole(oar_tensor_shape(tensor));
    status = oari_ckpt_read_plan_wanted(&plan, &catalog->index, t, 1, &wanted);
    if (status == OAR_OK)
        status = oari_ckpt_read_plan_finish(&plan);
    if (status == OAR_OK) {
        reading =
            oari_catalog_reading(catalog, &plan, &target, OARI_CATALOG_THREADS);
        status = oari_ckpt_read_files(&reading);
    }
    oari_ckpt_read_plan_free(&plan);
    if (status == OAR_OK)
        return tensor;
    oar_tensor_release(tensor);
    return NULL;
}

/* Reads a file, for its checksums only: a range without fetches. */
static oar_status verify_file(const oar_catalog *c, int64_t file)
{
    const oari_ckpt_index_file *f = &c->index.file[file];
    oari_ckpt_range range = { .file = file, .bytes = f->bytes };
    oari_ckpt_read_plan plan = { .range = { &range, 1, 1 } };
    oari_ckpt_reading reading =
        oari_catalog_reading(c, &plan, NULL, OARI_CATALOG_THREADS);

    OARI_TRY(oari_ckpt_check_file(c->disk, c->generation, c->path, f));
    return oari_ckpt_read_files(&reading);
}

oar_status oar_catalog_verify(oar_catalog *catalog, oar_verify_fn fn, void *arg)
{
    oar_status first = OAR_OK;
    oar_error why;

    if (catalog == NULL)
        return oari_fail(OAR_E_ARG, "catalog_verify: the catalog is NULL");
    for (int64_t i = 0; i < catalog->index.files; i++) {
        oar_status status = verify_file(catalog, i);

        if (first == OAR_OK && status != OAR_OK) {
            first = status;
            why = *oar_last_error();
        }
        if (fn != NULL)
            fn(arg, catalog->index.file[i].path, status);
    }
    return first == OAR_OK ? OAR_OK : oari_fail_with(&why);
}
