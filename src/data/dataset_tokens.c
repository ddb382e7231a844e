/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_tokens: windows of a file of tokens.
 *
 * Read with pread, out of the same page cache that a mapping would show, and
 * shared with other ranks in the same way; but a file that somebody truncates
 * is then a short read, which can be reported, and not a SIGBUS, which cannot.
 * The size is taken once, when the file is opened; what is read is checked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "data/dataset.h"

enum { BLOCK = 1024, FIELDS = 2 }; /* tokens read at once; input and target */

/* ---- reading ------------------------------------------------------------- */

/* Reads exactly `bytes` at `at`. */
static oar_status read_bytes(const oar_dataset *d, void *into, size_t bytes,
                             int64_t at)
{
    size_t got = 0;

    while (got < bytes) {
        int64_t here = at + (int64_t)got;
        ssize_t n =
            pread(d->file.fd, (char *)into + got, bytes - got, (off_t)here);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return oari_fail(OAR_E_SYSTEM, "read %s", d->file.path);
        if (n == 0)
            return oari_fail(OAR_E_DATA,
                             "%s ends at byte %lld: it was longer when it was "
                             "opened",
                             d->file.path, (long long)here);
        got += (size_t)n;
    }
    return OAR_OK;
}

/* Reads tokens first .. first+count-1, at most BLOCK of them. */
static oar_status read_tokens(const oar_dataset *d, int64_t first,
                              int64_t count, int64_t *token)
{
    int64_t size = (int64_t)oar_dtype_size(d->file.dtype);
    int32_t raw[BLOCK]; /* of the widest dtype */

    OARI_TRY(read_bytes(d, raw, (size_t)(count * size), first * size));
    oari_convert(token, OAR_I64, raw, d->file.dtype, (size_t)count);
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
    int64_t *input = oari_dataset_row(field[0], row);
    int64_t *target = oari_dataset_row(field[1], row);
    int64_t first = index * d->file.stride, length = d->file.length;
    int64_t token[BLOCK];

    for (int64_t i = 0; i <= length; i += BLOCK) {
        int64_t n = length + 1 - i < BLOCK ? length + 1 - i : BLOCK;

        OARI_TRY(read_tokens(d, first + i, n, token));
        for (int64_t k = i; k < i + n && k < length; k++)
            input[k] = token[k - i];
        for (int64_t k = i > 0 ? i : 1; k < i + n; k++)
            target[k - 1] = token[k - i];
    }
    return OAR_OK;
}

/* ---- making -------------------------------------------------------------- */

static void close_file(oar_dataset *d)
{
    if (d->file.fd >= 0)
        close(d->file.fd);
    oari_free(d->file.path);
}

static const oari_dataset_class tokens_class = { .copy = copy_sample,
                                                 .close = close_file };

static oar_status check_ask(const char *path, oar_dtype dtype, int64_t length,
                            int64_t stride, oar_dataset *const *dataset)
{
    if (path == NULL || dataset == NULL)
        return oari_fail(OAR_E_ARG, "dataset_tokens: no path or nowhere to "
                                    "give it");
    if (dtype != OAR_U8 && dtype != OAR_U16 && dtype != OAR_I32)
        return oari_fail(OAR_E_DTYPE, "tokens of %s: only u8, u16 and i32",
                         oar_dtype_name(dtype));
    if (length < 1 || stride < 0)
        return oari_fail(OAR_E_ARG,
                         "samples of %lld tokens, %lld apart: at least one, "
                         "and forward",
                         (long long)length, (long long)stride);
    return OAR_OK;
}

/* Opens the file and counts its tokens. */
static oar_status open_file(oar_dataset *d, const char *path, int64_t *tokens)
{
    int64_t size = (int64_t)oar_dtype_size(d->file.dtype);
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
    if (st.st_size % size != 0)
        return oari_fail(OAR_E_DATA,
                         "%s has %lld bytes: not a multiple of the %lld of a "
                         "%s token",
                         path, (long long)st.st_size, (long long)size,
                         oar_dtype_name(d->file.dtype));
    *tokens = (int64_t)st.st_size / size;
    return OAR_OK;
}

static oar_status count_samples(oar_dataset *d, int64_t tokens)
{
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
    return OAR_OK;
}

oar_status oar_dataset_tokens(const char *path, oar_dtype dtype, int64_t length,
                              int64_t stride, oar_dataset **dataset)
{
    oar_dataset *made;
    int64_t tokens = 0;
    oar_status status;

    OARI_TRY(check_ask(path, dtype, length, stride, dataset));
    OARI_TRY(oari_dataset_make(&tokens_class, &made));
    made->file.dtype = dtype;
    made->file.length = length;
    made->file.stride = stride > 0 ? stride : length;
    status = open_file(made, path, &tokens);
    if (status == OAR_OK)
        status = count_samples(made, tokens);
    if (status != OAR_OK) {
        oar_dataset_destroy(made);
        return status;
    }
    *dataset = made;
    return OAR_OK;
}
