/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_save: writes a file of named tensors so that a crash at any
 * moment leaves the old file or the new one. Tensors are laid out by falling
 * size of their elements, so that each is aligned to its own. */
#include <oarsong/safetensors.h>

#include <stdlib.h>
#include <string.h>

#include "file/new_file.h"
#include "file/safetensors_header.h"

/* A tensor to be written, and its row in the header. */
typedef struct item {
    oari_safetensors_row row;
    oar_tensor *tensor;
} item;

static int by_element_size(const void *a, const void *b)
{
    const item *x = a, *y = b;
    size_t x_size = oar_dtype_size((oar_dtype)x->row.dtype);
    size_t y_size = oar_dtype_size((oar_dtype)y->row.dtype);

    if (x_size != y_size)
        return x_size > y_size ? -1 : 1;
    return strcmp(x->row.name, y->row.name);
}

static void lay_out(int count, item *items)
{
    uint64_t at = 0;

    qsort(items, (size_t)count, sizeof *items, by_element_size);
    for (int i = 0; i < count; i++) {
        items[i].row.begin = at;
        at += (uint64_t)oar_tensor_count(items[i].tensor) *
              oar_dtype_size((oar_dtype)items[i].row.dtype);
        items[i].row.end = at;
    }
}

static int by_item_name(const void *a, const void *b)
{
    const item *x = a, *y = b;

    return strcmp(x->row.name, y->row.name);
}

static oar_status collect_items(int count, const char *const *name,
                                oar_tensor *const *tensor, item *items)
{
    for (int i = 0; i < count; i++) {
        oar_shape shape = oar_tensor_shape(tensor[i]);

        if (tensor[i] == NULL)
            return oari_fail(OAR_E_ARG, "safetensors_save: tensor %d is NULL",
                             i);
        OARI_TRY(oari_safetensors_check_name(name[i]));
        items[i].tensor = tensor[i];
        items[i].row.name = name[i];
        items[i].row.dtype = (int8_t)oar_tensor_dtype(tensor[i]);
        items[i].row.ndim = (int8_t)shape.ndim;
        memcpy(items[i].row.dim, shape.dim, sizeof shape.dim);
    }
    qsort(items, (size_t)count, sizeof *items, by_item_name);
    for (int i = 1; i < count; i++)
        if (by_item_name(&items[i - 1], &items[i]) == 0)
            return oari_fail(OAR_E_ARG,
                             "safetensors_save: the name \"%.100s\" is there "
                             "twice",
                             items[i].row.name);
    return OAR_OK;
}

/* Writes the numbers of a tensor; those that do not lie row by row in host
 * memory by way of a copy. */
static oar_status write_tensor(const oari_new_file *file, const item *it,
                               uint64_t data_at)
{
    size_t bytes = (size_t)(it->row.end - it->row.begin);
    off_t at = (off_t)(data_at + it->row.begin);
    oar_status status;
    void *copy;

    if (bytes == 0)
        return OAR_OK;
    if (oar_tensor_is_contiguous(it->tensor) &&
        oar_tensor_device(it->tensor).kind == OAR_CPU &&
        oar_tensor_const_data(it->tensor) != NULL)
        return oari_disk_write(file->disk, file->fd,
                               oar_tensor_const_data(it->tensor), bytes, at,
                               file->path);
    copy = oari_alloc_aligned(64, bytes);
    if (copy == NULL)
        return OAR_E_NOMEM;
    status = oar_tensor_read(it->tensor, (oar_dtype)it->row.dtype, copy);
    if (status == OAR_OK)
        status =
            oari_disk_write(file->disk, file->fd, copy, bytes, at, file->path);
    oari_free(copy);
    return status;
}

static oar_status write_file(const oari_new_file *file, int count,
                             const item *items, int pairs,
                             const char *const (*metadata)[2])
{
    oari_safetensors_row *rows = oari_alloc((size_t)count, sizeof *rows);
    oari_json_writer header = { 0 };
    oar_status status;

    if (rows == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++)
        rows[i] = items[i].row;
    oari_safetensors_header_write(&header, count, rows, pairs, metadata);
    oari_free(rows);
    status = header.status;
    if (status == OAR_OK)
        status = oari_disk_write(file->disk, file->fd, header.text.data,
                                 (size_t)header.text.count, 0, file->path);
    for (int i = 0; i < count && status == OAR_OK; i++)
        status = write_tensor(file, &items[i], (uint64_t)header.text.count);
    oari_vec_free(&header.text);
    return status;
}

static oar_status check_metadata(int pairs, const char *const (*metadata)[2])
{
    if (pairs < 0 || (pairs > 0 && metadata == NULL))
        return oari_fail(OAR_E_ARG, "safetensors_save: %d pairs of metadata%s",
                         pairs, pairs > 0 ? ", which is NULL" : "");
    for (int i = 0; i < pairs; i++)
        if (metadata[i][0] == NULL || metadata[i][1] == NULL)
            return oari_fail(OAR_E_ARG,
                             "safetensors_save: pair %d of the metadata lacks "
                             "its %s",
                             i, metadata[i][0] == NULL ? "key" : "value");
    return OAR_OK;
}

oar_status oar_safetensors_save(const char *path, int count,
                                const char *const *name,
                                oar_tensor *const *tensor, int pairs,
                                const char *const (*metadata)[2])
{
    oari_new_file file;
    oar_status status;
    item *items;

    if (path == NULL || count < 0 ||
        (count > 0 && (name == NULL || tensor == NULL)))
        return oari_fail(OAR_E_ARG,
                         "safetensors_save: no path, or %d tensors without "
                         "names or tensors",
                         count);
    OARI_TRY(check_metadata(pairs, metadata));
    items = oari_alloc((size_t)count, sizeof *items);
    if (items == NULL)
        return OAR_E_NOMEM;
    status = collect_items(count, name, tensor, items);
    if (status == OAR_OK) {
        lay_out(count, items);
        status = oari_new_file_begin(path, &file);
    }
    if (status == OAR_OK) {
        status = write_file(&file, count, items, pairs, metadata);
        if (status == OAR_OK)
            status = oari_new_file_commit(&file);
        else
            oari_new_file_abandon(&file);
    }
    oari_free(items);
    return status;
}
