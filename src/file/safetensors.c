/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: opens files of named tensors and reads tensors, or parts of
 * them, by ranges of bytes. A mapped file lives until its last tensor goes. */
#include <oarsong/ops.h>
#include <oarsong/safetensors.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "file/disk.h"
#include "file/safetensors_header.h"
#include "tensor/layout.h"
#include "tensor/storage.h"

enum {
    JOINED_BYTES = 4 << 20, /* of runs that are read at once */
    SMALL_GAP = 64 << 10    /* reading these bytes costs less than a call */
};

struct oar_safetensors {
    atomic_int refs; /* the caller, and each mapped tensor */
    const oari_disk *disk;
    int fd;
    char *path;
    oari_safetensors_header header;
    uint64_t data_at, bytes;
    char *map; /* or NULL */
};

/* ---- opening ------------------------------------------------------------- */

static void release_file(void *arg)
{
    oar_safetensors *f = arg;

    if (atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (f->map != NULL)
        munmap(f->map, f->bytes);
    if (f->fd >= 0)
        (void)f->disk->close(f->disk, f->fd);
    oari_safetensors_header_free(&f->header);
    oari_free(f->path);
    oari_free(f);
}

void oar_safetensors_close(oar_safetensors *file)
{
    if (file != NULL)
        release_file(file);
}

static oar_status read_header(oar_safetensors *f, uint64_t longest)
{
    unsigned char length[8];
    uint64_t bytes = 0;
    char *text;

    if (f->bytes < sizeof length)
        return oari_fail(OAR_E_DATA,
                         "%s has %" PRIu64 " bytes: too few for a safetensors "
                         "file",
                         f->path, f->bytes);
    OARI_TRY(oari_disk_read(f->disk, f->fd, length, sizeof length, 0, f->path));
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | length[i];
    if (bytes > longest || bytes > f->bytes - sizeof length)
        return oari_fail(OAR_E_DATA,
                         "%s says that its header has %" PRIu64
                         " bytes; the file has %" PRIu64
                         ", and at most %" PRIu64 " are read",
                         f->path, bytes, f->bytes, longest);
    text = oari_alloc_aligned(16, (size_t)bytes + 1);
    if (text == NULL)
        return OAR_E_NOMEM;
    if (oari_disk_read(f->disk, f->fd, text, (size_t)bytes, sizeof length,
                       f->path) != OAR_OK) {
        oari_free(text);
        return oar_last_error()->status;
    }
    f->data_at = sizeof length + bytes;
    return oari_safetensors_header_read(f->path, text, (size_t)bytes,
                                        f->bytes - f->data_at, &f->header);
}

static oar_status open_file(oar_safetensors *f, const char *path,
                            const oar_safetensors_opts *opts)
{
    off_t bytes;

    f->path = oari_strdup(path);
    if (f->path == NULL)
        return OAR_E_NOMEM;
    f->fd = f->disk->open_file(f->disk, AT_FDCWD, path, OARI_DISK_READ);
    if (f->fd < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open %s", path);
    if (f->disk->size(f->disk, f->fd, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at %s", path);
    f->bytes = (uint64_t)bytes;
    OARI_TRY(read_header(f, opts->header_bytes != 0
                                ? opts->header_bytes
                                : OARI_SAFETENSORS_LONGEST_HEADER));
    if (!opts->map)
        return OAR_OK;
    f->map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        return oari_fail(OAR_E_SYSTEM, "map %s", path);
    }
    return OAR_OK;
}

oar_status oar_safetensors_open(const char *path,
                                const oar_safetensors_opts *opts,
                                oar_safetensors **file)
{
    oar_safetensors_opts o;
    oar_safetensors *f;
    oar_status status;

    if (path == NULL || file == NULL)
        return oari_fail(OAR_E_ARG, "safetensors_open: %s is NULL",
                         path == NULL ? "path" : "file");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    f = oari_alloc(1, sizeof *f);
    if (f == NULL)
        return OAR_E_NOMEM;
    atomic_init(&f->refs, 1);
    f->disk = oari_disk_in_use();
    f->fd = -1;
    status = open_file(f, path, &o);
    if (status != OAR_OK) {
        release_file(f);
        return status;
    }
    *file = f;
    return OAR_OK;
}

/* ---- looking ------------------------------------------------------------- */

static oar_shape shape_of(const oari_safetensors_row *row)
{
    return oar_shape_of(row->ndim, row->dim);
}

static int is_known(const oari_safetensors_row *row)
{
    return row->dtype >= 0 && row->dtype < OAR_DTYPE_COUNT && row->ndim >= 0;
}

static oar_status give_entry(const oar_safetensors *f,
                             const oari_safetensors_row *row,
                             oar_safetensors_entry *entry)
{
    oar_safetensors_entry e = { .size = sizeof e,
                                .name = row->name,
                                .dtype_text = row->dtype_text,
                                .known = is_known(row),
                                .offset = f->data_at + row->begin,
                                .bytes = row->end - row->begin };

    if (e.known) {
        e.dtype = (oar_dtype)row->dtype;
        e.shape = shape_of(row);
    }
    return oari_struct_give(entry, &e, sizeof e, "safetensors_entry");
}

int64_t oar_safetensors_count(const oar_safetensors *file)
{
    return file != NULL ? file->header.count : 0;
}

oar_status oar_safetensors_entry_at(const oar_safetensors *file, int64_t index,
                                    oar_safetensors_entry *entry)
{
    if (file == NULL || index < 0 || index >= file->header.count)
        return oari_fail(OAR_E_ARG,
                         "safetensors_entry_at: there is no entry %lld; the "
                         "file has %lld",
                         (long long)index,
                         (long long)oar_safetensors_count(file));
    return give_entry(file, &file->header.row[index], entry);
}

static oar_status find_row(const oar_safetensors *file, const char *name,
                           const oari_safetensors_row **row)
{
    if (file == NULL || name == NULL)
        return oari_fail(OAR_E_ARG, "safetensors: %s is NULL",
                         file == NULL ? "the file" : "the name");
    *row = oari_safetensors_header_find(&file->header, name);
    if (*row == NULL)
        return oari_fail(OAR_E_NOT_FOUND, "%s has no tensor \"%s\"", file->path,
                         name);
    return OAR_OK;
}

oar_status oar_safetensors_find(const oar_safetensors *file, const char *name,
                                oar_safetensors_entry *entry)
{
    const oari_safetensors_row *row;

    OARI_TRY(find_row(file, name, &row));
    return give_entry(file, row, entry);
}

const char *oar_safetensors_metadata(const oar_safetensors *file,
                                     const char *key)
{
    if (file == NULL || key == NULL)
        return NULL;
    return oari_safetensors_header_metadata(&file->header, key);
}

/* ---- reading a part ------------------------------------------------------ */

/* The part of a tensor that is wanted: runs of bytes that lie `pitch` apart in
 * each dim outside of them. */
typedef struct runs {
    uint64_t first; /* where the first one begins in the file */
    uint64_t bytes; /* of each */
    int dims;       /* outside of the runs */
    int64_t extent[OAR_MAX_DIMS];
    uint64_t pitch[OAR_MAX_DIMS];
} runs;

static runs find_runs(const oar_safetensors *f, const oari_safetensors_row *row,
                      const int64_t *offset, oar_shape part)
{
    uint64_t pitch = oar_dtype_size((oar_dtype)row->dtype);
    runs r = { .first = f->data_at + row->begin, .bytes = pitch };
    int whole = 1; /* all dims further in are taken whole */

    for (int i = row->ndim - 1; i >= 0; i--) {
        r.first += pitch * (uint64_t)(offset != NULL ? offset[i] : 0);
        r.extent[i] = part.dim[i];
        r.pitch[i] = pitch;
        if (whole)
            r.bytes *= (uint64_t)part.dim[i];
        else if (r.dims == 0)
            r.dims = i + 1;
        whole = whole && part.dim[i] == row->dim[i];
        pitch *= (uint64_t)row->dim[i];
    }
    return r;
}

/* Where run `index` begins in the file. */
static uint64_t run_at(const runs *r, uint64_t index)
{
    uint64_t at = r->first;

    for (int i = r->dims - 1; i >= 0; i--) {
        at += r->pitch[i] * (index % (uint64_t)r->extent[i]);
        index /= (uint64_t)r->extent[i];
    }
    return at;
}

/* Reads all runs to `to`, one behind the other. Runs that lie close together
 * are read at once, by way of `between`. */
static oar_status read_runs(const oar_safetensors *f, const runs *r,
                            uint64_t count, char *to, char *between)
{
    for (uint64_t i = 0, n; i < count; i += n) {
        uint64_t begin = run_at(r, i), end = begin + r->bytes;

        for (n = 1; i + n < count; n++) {
            uint64_t next = run_at(r, i + n);

            if (next - end > SMALL_GAP ||
                next + r->bytes - begin > JOINED_BYTES)
                break;
            end = next + r->bytes;
        }
        OARI_TRY(oari_disk_read(f->disk, f->fd, n == 1 ? to : between,
                                (size_t)(end - begin), (off_t)begin, f->path));
        for (uint64_t k = 0; n > 1 && k < n; k++)
            memcpy(to + k * r->bytes, between + (run_at(r, i + k) - begin),
                   r->bytes);
        to += n * r->bytes;
    }
    return OAR_OK;
}

/* Fills host memory with a part, row by row, in the file's dtype. */
static oar_status read_part(const oar_safetensors *f,
                            const oari_safetensors_row *row,
                            const int64_t *offset, oar_shape part, void *to)
{
    runs r = find_runs(f, row, offset, part);
    uint64_t count = 1;
    char *between = NULL;
    oar_status status;

    for (int i = 0; i < r.dims; i++)
        count *= (uint64_t)r.extent[i];
    if (r.bytes == 0 || count == 0)
        return OAR_OK;
    if (count > 1 && r.bytes < JOINED_BYTES) {
        between = oari_alloc_aligned(64, JOINED_BYTES);
        if (between == NULL)
            return OAR_E_NOMEM;
    }
    status = read_runs(f, &r, count, to, between);
    oari_free(between);
    return status;
}

static oar_status check_part(const oar_safetensors *f,
                             const oari_safetensors_row *row,
                             const int64_t *offset, oar_shape part)
{
    int fits = part.ndim == row->ndim;

    if (!is_known(row))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s: \"%s\" is %s%s, which cannot be read", f->path,
                         row->name, row->dtype_text,
                         row->ndim < 0 ? " with more than 8 dims" : "");
    for (int i = 0; i < row->ndim && fits; i++) {
        int64_t first = offset != NULL ? offset[i] : 0;

        fits = first >= 0 && first <= row->dim[i] &&
               part.dim[i] <= row->dim[i] - first;
    }
    if (!fits)
        return oari_fail(
            OAR_E_SHAPE, "%s: \"%s\" is %s; there is no part %s%s%s in it",
            f->path, row->name, oari_shape_text(shape_of(row)).text,
            oari_shape_text(part).text, offset ? " at " : "",
            offset ? oari_shape_text(oar_shape_of(part.ndim, offset)).text
                   : "");
    return OAR_OK;
}

oar_status oar_safetensors_read(const oar_safetensors *file, const char *name,
                                const int64_t *offset, oar_tensor *into)
{
    const oari_safetensors_row *row;
    oar_shape part = oar_tensor_shape(into);
    oar_tensor *copy;
    oar_status status;
    oar_span span;

    OARI_TRY(find_row(file, name, &row));
    if (into == NULL)
        return oari_fail(OAR_E_ARG, "safetensors_read: into is NULL");
    OARI_TRY(check_part(file, row, offset, part));
    if (oar_tensor_dtype(into) == (oar_dtype)row->dtype &&
        oar_tensor_device(into).kind == OAR_CPU &&
        oar_tensor_is_contiguous(into)) {
        OARI_TRY(oar_tensor_span(into, &span));
        OARI_TRY(oar_tensor_touch(into));
        return read_part(file, row, offset, part, span.data);
    }
    copy = oar_empty(NULL, (oar_dtype)row->dtype, part);
    if (copy == NULL)
        return oar_last_error()->status;
    status = read_part(file, row, offset, part, oar_tensor_data(copy));
    if (status == OAR_OK)
        status = oar_tensor_copy(into, copy);
    oar_tensor_release(copy);
    return status;
}

/* ---- a whole tensor ------------------------------------------------------ */

/* A view of the mapped file, which holds a reference to it. */
static oar_tensor *map_tensor(oar_tape *tape, oar_safetensors *f,
                              const oari_safetensors_row *row)
{
    oar_storage *storage;
    oar_tensor *tensor;

    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    if (oari_storage_over(f->map + f->data_at + row->begin,
                          (size_t)(row->end - row->begin), release_file, f,
                          &storage) != OAR_OK) {
        release_file(f);
        return NULL;
    }
    storage->read_only = 1;
    tensor =
        oar_view_of(tape, storage, 0, (oar_dtype)row->dtype, shape_of(row));
    oar_storage_release(storage);
    return tensor;
}

oar_tensor *oar_safetensors_tensor(oar_tape *tape, const oar_safetensors *file,
                                   const char *name)
{
    const oari_safetensors_row *row;
    oar_tensor *tensor;

    if (find_row(file, name, &row) != OAR_OK ||
        check_part(file, row, NULL, shape_of(row)) != OAR_OK)
        return NULL;
    /* A tensor that is not aligned to its elements is copied. */
    if (file->map != NULL && row->end > row->begin &&
        (file->data_at + row->begin) % oar_dtype_size((oar_dtype)row->dtype) ==
            0)
        return map_tensor(tape, (oar_safetensors *)(uintptr_t)file, row);
    tensor = oar_empty(tape, (oar_dtype)row->dtype, shape_of(row));
    if (tensor == NULL || oar_tensor_count(tensor) == 0 ||
        read_part(file, row, NULL, shape_of(row), oar_tensor_data(tensor)) ==
            OAR_OK)
        return tensor;
    if (tape == NULL)
        oar_tensor_release(tensor);
    return NULL;
}
