/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_tokens: windows of a file of tokens, mapped for reading: the pages
 * are the page cache's, shared with other ranks, and nothing is copied but the
 * samples. A mapped page that the file no longer has is a SIGBUS, so the file's
 * size is looked at before each batch: docs/decisions/0007 says what that is
 * worth. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "data/dataset.h"

enum {
    FIELDS = 2,           /* input and target */
    END_BYTES = 64 * 1024 /* of each end, that the identity hashes */
};

/* ---- reading ------------------------------------------------------------- */

static int64_t token_bytes(const oar_dataset *d)
{
    return (int64_t)oar_dtype_size(d->file.dtype);
}

/* Where token `index` is. */
static char *token_at(const oar_dataset *d, int64_t index)
{
    return d->file.map + d->file.header + index * token_bytes(d);
}

static oar_status open_batch(const oar_dataset *d, int64_t count,
                             const int64_t *index)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct stat st;

    if (fstat(d->file.fd, &st) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at %s", d->file.path);
    if ((size_t)st.st_size < d->file.bytes)
        return oari_fail(OAR_E_STATE,
                         "%s has %lld bytes: it had %zu when it was opened, "
                         "and must not become shorter while it is in use",
                         d->file.path, (long long)st.st_size, d->file.bytes);
    for (int64_t i = 0; i < count; i++) {
        char *from = token_at(d, index[i] * d->file.stride);
        char *to = from + (d->file.length + 1) * token_bytes(d);
        size_t before = (uintptr_t)from % page;

        /* The pages of all samples are asked for before they are needed, so
         * that a batch waits for the disk once. It is advice: whether the
         * system takes it does not matter. */
        (void)madvise(from - before, (size_t)(to - from) + before,
                      MADV_WILLNEED);
    }
    return OAR_OK;
}

/* Reads tokens first .. first+count-1. */
static oar_status read_tokens(const oar_dataset *d, int64_t first,
                              int64_t count, int64_t *token)
{
    oari_convert(token, OAR_I64, token_at(d, first), d->file.dtype,
                 (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t place = first + i;

        if (token[i] < 0)
            return oari_fail(OAR_E_DATA, "%s: token %lld is %lld, below zero",
                             d->file.path, (long long)place,
                             (long long)token[i]);
    }
    return OAR_OK;
}

static oar_status copy_sample(const oar_dataset *d, int64_t index, int64_t row,
                              oar_tensor *const *field)
{
    int64_t first = index * d->file.stride, length = d->file.length;

    OARI_TRY(read_tokens(d, first, length, oari_dataset_row(field[0], row)));
    return read_tokens(d, first + 1, length, oari_dataset_row(field[1], row));
}

static oar_status identify_file(const oar_dataset *d,
                                char text[OARI_IDENTITY_BYTES])
{
    size_t end = d->file.bytes < END_BYTES ? d->file.bytes : END_BYTES;
    uint64_t hash;

    OARI_TRY(open_batch(d, 0, NULL)); /* the bytes are still there */
    hash = oari_dataset_hash(0, d->file.map, end);
    hash = oari_dataset_hash(hash, d->file.map + d->file.bytes - end, end);
    snprintf(text, OARI_IDENTITY_BYTES,
             "tokens %s, %lld samples of %lld, %lld apart, after a header of "
             "%zu, %zu bytes, xxh3 %016llx",
             oar_dtype_name(d->file.dtype), (long long)d->count,
             (long long)d->file.length, (long long)d->file.stride,
             d->file.header, d->file.bytes, (unsigned long long)hash);
    return OAR_OK;
}

/* ---- making -------------------------------------------------------------- */

static void close_file(oar_dataset *d)
{
    if (d->file.map != NULL)
        munmap(d->file.map, d->file.bytes);
    if (d->file.fd >= 0)
        close(d->file.fd);
    oari_free(d->file.path);
}

static const oari_dataset_class tokens_class = { .open = open_batch,
                                                 .copy = copy_sample,
                                                 .identify = identify_file,
                                                 .close = close_file };

/* Opens the file and counts its tokens. */
static oar_status open_file(oar_dataset *d, const char *path, int64_t *tokens)
{
    int64_t size = token_bytes(d);
    struct stat st;

    d->file.path = oari_strdup(path);
    if (d->file.path == NULL)
        return OAR_E_NOMEM;
    /* O_NONBLOCK: a pipe is refused below, not waited for. */
    d->file.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (d->file.fd < 0 || fstat(d->file.fd, &st) != 0)
        return oari_fail(OAR_E_SYSTEM, "open %s", path);
    if (!S_ISREG(st.st_mode))
        return oari_fail(OAR_E_DATA, "%s is not a plain file", path);
    if ((size_t)st.st_size < d->file.header)
        return oari_fail(OAR_E_DATA,
                         "%s has %lld bytes: less than its header of %zu", path,
                         (long long)st.st_size, d->file.header);
    if (st.st_size % size != 0)
        return oari_fail(OAR_E_DATA,
                         "%s has %lld bytes: not a multiple of the %lld of a "
                         "%s token",
                         path, (long long)st.st_size, (long long)size,
                         oar_dtype_name(d->file.dtype));
    d->file.bytes = (size_t)st.st_size;
    *tokens = (int64_t)((size_t)st.st_size - d->file.header) / size;
    return OAR_OK;
}

/* Maps the file, which then has at least one sample, and counts the samples. */
static oar_status map_samples(oar_dataset *d, int64_t tokens)
{
    void *map;

    if (tokens <= d->file.length)
        return oari_fail(OAR_E_DATA,
                         "%s has %lld tokens: a sample of %lld and its target "
                         "take one more than that",
                         d->file.path, (long long)tokens,
                         (long long)d->file.length);
    d->count = (tokens - d->file.length - 1) / d->file.stride + 1;
    d->fields = FIELDS;
    for (int i = 0; i < FIELDS; i++) {
        d->dtype[i] = OAR_I64;
        d->shape[i] = OAR_SHAPE(0, d->file.length);
    }
    map = mmap(NULL, d->file.bytes, PROT_READ, MAP_SHARED, d->file.fd, 0);
    if (map == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map %s, %zu bytes", d->file.path,
                         d->file.bytes);
    d->file.map = map;
    /* Samples come in any order: pages around them are not worth reading. */
    (void)madvise(map, d->file.bytes, MADV_RANDOM);
    return OAR_OK;
}

oar_status oar_dataset_tokens_with(const char *path, oar_dtype dtype,
                                   int64_t length, const oar_tokens_opts *opts,
                                   oar_dataset **dataset)
{
    oar_tokens_opts o;
    oar_dataset *made;
    int64_t tokens = 0;
    oar_status status;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (path == NULL || dataset == NULL)
        return oari_fail(OAR_E_ARG, "dataset_tokens: no path or nowhere to "
                                    "give it");
    if (dtype != OAR_U8 && dtype != OAR_U16 && dtype != OAR_I32)
        return oari_fail(OAR_E_DTYPE, "tokens of %s: only u8, u16 and i32",
                         oar_dtype_name(dtype));
    if (length < 1 || o.stride < 0)
        return oari_fail(OAR_E_ARG,
                         "samples of %lld tokens, %lld apart: at least one, "
                         "and forward",
                         (long long)length, (long long)o.stride);
    if (o.header_bytes % oar_dtype_size(dtype) != 0)
        return oari_fail(OAR_E_ARG,
                         "tokens after a header of %zu bytes: not a multiple "
                         "of the %zu of a %s token",
                         o.header_bytes, oar_dtype_size(dtype),
                         oar_dtype_name(dtype));
    OARI_TRY(oari_dataset_make(&tokens_class, &made));
    made->file.header = o.header_bytes;
    made->file.dtype = dtype;
    made->file.length = length;
    made->file.stride = o.stride > 0 ? o.stride : length;
    status = open_file(made, path, &tokens);
    if (status == OAR_OK)
        status = map_samples(made, tokens);
    if (status != OAR_OK) {
        oar_dataset_destroy(made);
        return status;
    }
    *dataset = made;
    return OAR_OK;
}

oar_status oar_dataset_tokens(const char *path, oar_dtype dtype, int64_t length,
                              int64_t stride, oar_dataset **dataset)
{
    oar_tokens_opts o = { .size = sizeof o, .stride = stride };

    return oar_dataset_tokens_with(path, dtype, length, &o, dataset);
}
