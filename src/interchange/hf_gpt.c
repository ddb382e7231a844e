/* SPDX-License-Identifier: Apache-2.0 */
/* hf_gpt: a GPT-2 of Hugging Face's, read and written. Every tensor of the
 * files is first given its place in the model and compared with it; only then
 * is the module made, so that it is never larger than what the files hold. */
#include <oarsong/interchange.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/ops.h>

#include "base/dtype.h"
#include "file/new_file.h"
#include "interchange/gpt2_tensors.h"
#include "interchange/hf_config.h"
#include "interchange/hf_folder.h"

/* ---- which tensor is which ----------------------------------------------- */

enum { UNKNOWN_ROW = -1, UNUSED_ROW = -2 };

/* Takes a name apart: its row, and its layer. */
static int row_of(const char *name, int64_t *layer)
{
    int digits = 0, layered;

    *layer = 0;
    if (strncmp(name, "transformer.", 12) == 0)
        name += 12;
    layered = strncmp(name, "h.", 2) == 0;
    if (layered) {
        for (name += 2; *name >= '0' && *name <= '9' && digits < 10; digits++)
            *layer = 10 * *layer + (*name++ - '0');
        if (digits == 0 || (digits > 1 && name[-digits] == '0') ||
            *name++ != '.')
            return UNKNOWN_ROW;
        /* The causal mask, which old versions saved. */
        if (strcmp(name, "attn.bias") == 0 ||
            strcmp(name, "attn.masked_bias") == 0)
            return UNUSED_ROW;
    }
    for (int row = 0; row < OARI_GPT2_ROWS; row++)
        if (oari_gpt2_rows[row].layered == layered &&
            strcmp(oari_gpt2_rows[row].theirs, name) == 0)
            return row;
    return UNKNOWN_ROW;
}

/* Where a tensor is. */
typedef struct tensor_place {
    int file; /* from 1; 0: nowhere */
    int64_t index;
} tensor_place;

typedef struct hf_model {
    oari_hf_folder folder;
    int layers;
    tensor_place *place; /* [row][layer]; NULL while layers are counted */
} hf_model;

static tensor_place *place_of(const hf_model *m, int row, int64_t layer)
{
    return &m->place[(int64_t)row * m->layers + layer];
}

static const oari_hf_file *file_of(const hf_model *m, const tensor_place *place)
{
    return &m->folder.files.data[place->file - 1];
}

/* Gives one tensor's entry its place, or counts its layer. */
static oar_status take_entry(hf_model *m, const tensor_place *place)
{
    oar_safetensors_entry e = { .size = sizeof e },
                          other = { .size = sizeof e };
    const oari_hf_file *file = file_of(m, place);
    tensor_place *taken;
    int64_t layer;
    int row;

    OARI_TRY(oar_safetensors_entry_at(file->file, place->index, &e));
    row = row_of(e.name, &layer);
    if (row == UNKNOWN_ROW)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s/%s has a tensor \"%.100s\", which no GPT-2 has",
                         m->folder.path, file->name, e.name);
    if (row == UNUSED_ROW)
        return OAR_OK;
    if (layer >= OARI_GPT2_MOST_LAYERS)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s/%s has a tensor \"%.100s\"; at most %d layers are "
                         "read",
                         m->folder.path, file->name, e.name,
                         OARI_GPT2_MOST_LAYERS);
    if (m->place == NULL) {
        m->layers = layer >= m->layers ? (int)layer + 1 : m->layers;
        return OAR_OK;
    }
    taken = place_of(m, row, layer);
    if (taken->file != 0) {
        OARI_TRY(oar_safetensors_entry_at(file_of(m, taken)->file, taken->index,
                                          &other));
        return oari_fail(OAR_E_DATA,
                         "%s has the same tensor twice: \"%.100s\" in %s and "
                         "\"%.100s\" in %s",
                         m->folder.path, other.name, file_of(m, taken)->name,
                         e.name, file->name);
    }
    *taken = *place;
    return OAR_OK;
}

static oar_status take_entries(hf_model *m)
{
    for (int file = 0; file < m->folder.files.count; file++) {
        int64_t count = oar_safetensors_count(m->folder.files.data[file].file);

        for (int64_t i = 0; i < count; i++)
            OARI_TRY(take_entry(m, &(tensor_place){ file + 1, i }));
    }
    return OAR_OK;
}

static oar_status place_tensors(hf_model *m)
{
    m->layers = 1; /* without one, its tensors are missing */
    OARI_TRY(take_entries(m));
    m->place = oari_alloc(OARI_GPT2_ROWS * (size_t)m->layers, sizeof *m->place);
    if (m->place == NULL)
        return OAR_E_NOMEM;
    return take_entries(m);
}

/* Gives the entry of a tensor that the model must have. */
static oar_status find_entry(const hf_model *m, int row, int layer,
                             oar_safetensors_entry *entry)
{
    const tensor_place *place = place_of(m, row, layer);
    char name[OARI_GPT2_NAME];

    *entry = (oar_safetensors_entry){ .size = sizeof *entry };
    if (place->file != 0)
        return oar_safetensors_entry_at(file_of(m, place)->file, place->index,
                                        entry);
    oari_gpt2_their_name(row, layer, name);
    return oari_fail(OAR_E_DATA,
                     "%s has no tensor \"%s\", which a GPT-2 of %d layers has",
                     m->folder.path, name, m->layers);
}

/* ---- sizes --------------------------------------------------------------- */

static oar_status refuse_shape(const hf_model *m,
                               const oar_safetensors_entry *e,
                               const char *wanted)
{
    char shape[OAR_MAX_DIMS * 24] = "", *at = shape;

    for (int i = 0; i < e->shape.ndim; i++)
        at += snprintf(at, sizeof shape - (size_t)(at - shape), "%s%lld",
                       i > 0 ? ", " : "", (long long)e->shape.dim[i]);
    return oari_fail(OAR_E_DATA,
                     "%s: the tensor \"%.100s\" is %.20s [%s]; expected is %s",
                     m->folder.path, e->name, e->dtype_text, shape, wanted);
}

/* Takes a tensor's shape [rows, columns] as sizes of the model. */
static oar_status take_sizes(const hf_model *m, int row, int64_t *rows,
                             int64_t *columns)
{
    oar_safetensors_entry e;

    OARI_TRY(find_entry(m, row, 0, &e));
    if (!e.known || e.shape.ndim != 2 || e.shape.dim[0] < 1 ||
        e.shape.dim[1] < 1)
        return refuse_shape(m, &e, "a float with two dims, neither of them 0");
    *rows = e.shape.dim[0];
    *columns = e.shape.dim[1];
    return OAR_OK;
}

static oar_status check_tensor(const hf_model *m, const oar_gpt_opts *o,
                               int row, int layer)
{
    oar_shape shape = oari_gpt2_shape(row, o);
    oar_safetensors_entry e;
    char wanted[80];

    OARI_TRY(find_entry(m, row, layer, &e));
    if (oari_gpt2_rows[row].transposed)
        shape = OAR_SHAPE(shape.dim[1], shape.dim[0]);
    if (e.known && oari_dtype_is_float(e.dtype) && e.shape.ndim == shape.ndim &&
        memcmp(e.shape.dim, shape.dim,
               (size_t)shape.ndim * sizeof shape.dim[0]) == 0)
        return OAR_OK;
    if (shape.ndim == 1)
        snprintf(wanted, sizeof wanted, "a float [%lld]",
                 (long long)shape.dim[0]);
    else
        snprintf(wanted, sizeof wanted, "a float [%lld, %lld]",
                 (long long)shape.dim[0], (long long)shape.dim[1]);
    return refuse_shape(m, &e, wanted);
}

/* Finds out what the model is, and that the files have all of it. */
static oar_status read_sizes(const hf_model *m, oar_gpt_opts *o)
{
    int64_t width;

    o->layers = m->layers;
    OARI_TRY(take_sizes(m, OARI_GPT2_WTE, &o->vocabulary, &o->width));
    OARI_TRY(take_sizes(m, OARI_GPT2_WPE, &o->context, &width));
    OARI_TRY(take_sizes(m, OARI_GPT2_UP, &width, &o->hidden));
    if (o->width > INT32_MAX || o->hidden > INT32_MAX)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s has a model of width %lld and %lld in the MLP; at "
                         "most 2^31 - 1 are read",
                         m->folder.path, (long long)o->width,
                         (long long)o->hidden);
    OARI_TRY(oari_hf_config_read(m->folder.path, m->folder.config,
                                 m->folder.config_bytes, o));
    for (int row = 0; row < OARI_GPT2_ROWS; row++)
        for (int layer = 0; layer < oari_gpt2_tensors(row, o); layer++)
            OARI_TRY(check_tensor(m, o, row, layer));
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

static oar_status read_into(const hf_model *m, int row, int layer,
                            oar_tensor *into)
{
    oar_safetensors_entry e;

    OARI_TRY(find_entry(m, row, layer, &e));
    return oar_safetensors_read(file_of(m, place_of(m, row, layer))->file,
                                e.name, NULL, into);
}

static oar_status read_param(const hf_model *m, int row, int layer,
                             oar_tensor *param)
{
    oar_status status;
    oar_tensor *view;

    if (!oari_gpt2_rows[row].transposed)
        return read_into(m, row, layer, param);
    view = oar_transpose(NULL, param, 0, 1);
    if (view == NULL)
        return oar_last_error()->status;
    status = read_into(m, row, layer, view);
    oar_tensor_release(view);
    return status;
}

/* A tied model may be saved with its head nevertheless; but then the head must
 * be the table. */
static oar_status check_tied(const hf_model *m, const oar_gpt_opts *o,
                             const oar_module *module)
{
    oar_tensor *table, *head;
    oar_status status;

    OARI_TRY(check_tensor(m, o, OARI_GPT2_HEAD, 0));
    OARI_TRY(oari_gpt2_param(module, OARI_GPT2_WTE, 0, &table));
    head = oar_empty(NULL, o->dtype, oar_tensor_shape(table));
    if (head == NULL)
        return oar_last_error()->status;
    status = read_into(m, OARI_GPT2_HEAD, 0, head);
    if (status == OAR_OK &&
        memcmp(oar_tensor_const_data(head), oar_tensor_const_data(table),
               (size_t)oar_tensor_count(table) * oar_dtype_size(o->dtype)) != 0)
        status = oari_fail(OAR_E_DATA,
                           "%s: \"lm_head.weight\" differs from "
                           "\"wte.weight\", but \"tie_word_embeddings\" is "
                           "true",
                           m->folder.path);
    oar_tensor_release(head);
    return status;
}

static oar_status read_params(const hf_model *m, const oar_gpt_opts *o,
                              const oar_module *module)
{
    for (int row = 0; row < OARI_GPT2_ROWS; row++)
        for (int layer = 0; layer < oari_gpt2_tensors(row, o); layer++) {
            oar_tensor *param;

            OARI_TRY(oari_gpt2_param(module, row, layer, &param));
            OARI_TRY(read_param(m, row, layer, param));
        }
    if (o->tied && place_of(m, OARI_GPT2_HEAD, 0)->file != 0)
        return check_tied(m, o, module);
    return OAR_OK;
}

oar_status oar_gpt_from_hf(const char *path, oar_dtype dtype,
                           oar_module **module, oar_gpt_opts *opts)
{
    oar_gpt_opts o = { .size = sizeof o, .dtype = dtype };
    hf_model model = { .layers = 0 };
    oar_module *made = NULL;
    oar_status status;

    if (path == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "gpt_from_hf: %s is NULL",
                         path == NULL ? "path" : "module");
    OARI_TRY(oari_hf_open(path, &model.folder));
    status = place_tensors(&model);
    if (status == OAR_OK)
        status = read_sizes(&model, &o);
    if (status == OAR_OK)
        status = oari_gpt2_create(&o, &made);
    if (status == OAR_OK)
        status = read_params(&model, &o, made);
    oari_free(model.place);
    oari_hf_close(&model.folder);
    return oari_gpt2_give(status, made, &o, module, opts);
}

/* ---- writing ------------------------------------------------------------- */

/* The tensors of a model under their names. */
typedef struct hf_list {
    int count;
    char (*text)[OARI_GPT2_NAME + 16];
    const char **name;
    oar_tensor **tensor; /* owned */
} hf_list;

static oar_status add_param(hf_list *list, const oar_module *module, int row,
                            int layer)
{
    char name[OARI_GPT2_NAME];
    oar_tensor *param;

    OARI_TRY(oari_gpt2_param(module, row, layer, &param));
    param = oari_gpt2_rows[row].transposed ? oar_transpose(NULL, param, 0, 1)
                                           : oar_tensor_retain(param);
    if (param == NULL)
        return oar_last_error()->status;
    oari_gpt2_their_name(row, layer, name);
    snprintf(list->text[list->count], sizeof list->text[0], "%s%s",
             row == OARI_GPT2_HEAD ? "" : "transformer.", name);
    list->name[list->count] = list->text[list->count];
    list->tensor[list->count++] = param;
    return OAR_OK;
}

static oar_status list_params(const oar_module *module, const oar_gpt_opts *o,
                              hf_list *list)
{
    size_t most = OARI_GPT2_ROWS * (size_t)o->layers;

    list->text = oari_alloc(most, sizeof *list->text);
    list->name = oari_alloc(most, sizeof *list->name);
    list->tensor = oari_alloc(most, sizeof(oar_tensor *));
    if (list->text == NULL || list->name == NULL || list->tensor == NULL)
        return OAR_E_NOMEM;
    for (int row = 0; row < OARI_GPT2_ROWS; row++)
        for (int layer = 0; layer < oari_gpt2_tensors(row, o); layer++)
            OARI_TRY(add_param(list, module, row, layer));
    return OAR_OK;
}

static oar_status save_params(const oar_module *module, const oar_gpt_opts *o,
                              const char *path)
{
    static const char *const metadata[1][2] = { { "format", "pt" } };
    hf_list list = { .count = 0 };
    oar_status status = list_params(module, o, &list);

    if (status == OAR_OK)
        status = oar_safetensors_save(path, list.count, list.name, list.tensor,
                                      1, metadata);
    for (int i = 0; i < list.count; i++)
        oar_tensor_release(list.tensor[i]);
    oari_free(list.tensor);
    oari_free(list.name);
    oari_free(list.text);
    return status;
}

/* Makes the folder and syncs its parent, unless it is there. */
static oar_status make_folder(const char *folder)
{
    const oari_disk *disk = oari_disk_in_use();
    const char *name;
    int parent;

    if (disk->make_folder(disk, AT_FDCWD, folder) != 0)
        return errno == EEXIST
                   ? OAR_OK
                   : oari_fail(OAR_E_SYSTEM, "make the folder %s", folder);
    OARI_TRY(oari_disk_open_parent(disk, folder, &parent, &name));
    return oari_disk_finish(disk, parent, folder);
}

static oar_status write_text(const char *path, const char *text)
{
    oari_new_file file;
    oar_status status;

    OARI_TRY(oari_new_file_begin(path, &file));
    status =
        oari_disk_write(file.disk, file.fd, text, strlen(text), 0, file.path);
    if (status == OAR_OK)
        return oari_new_file_commit(&file);
    oari_new_file_abandon(&file);
    return status;
}

oar_status oar_gpt_to_hf(const oar_module *module, const char *folder)
{
    char path[PATH_MAX], *config;
    oar_status status;
    oar_gpt_opts o;
    size_t length;

    if (module == NULL || folder == NULL)
        return oari_fail(OAR_E_ARG, "gpt_to_hf: %s is NULL",
                         module == NULL ? "module" : "folder");
    /* A slash at the end would hide the folder's name. */
    for (length = strlen(folder); length > 1 && folder[length - 1] == '/';)
        length--;
    if (length + sizeof "/model.safetensors" > sizeof path)
        return oari_fail(OAR_E_ARG, "the path %.40s... is too long", folder);
    memcpy(path, folder, length);
    path[length] = '\0';
    OARI_TRY(oari_gpt2_describe(module, &o));
    OARI_TRY(oari_hf_config_write(&o, &config));
    status = make_folder(path);
    snprintf(path + length, sizeof path - length, "/model.safetensors");
    if (status == OAR_OK)
        status = save_params(module, &o, path);
    snprintf(path + length, sizeof path - length, "/config.json");
    if (status == OAR_OK)
        status = write_text(path, config);
    oari_free(config);
    return status;
}
