/* SPDX-License-Identifier: Apache-2.0 */
/* llmc_gpt: the model files of llm.c: a header of 256 numbers (i32), then the
 * parameters one behind the other, each kind for all layers. There are no names
 * and no shapes in a file: its size must be exactly what the header asks for.
 * All numbers are little-endian, as those of this machine. */
#include <oarsong/interchange.h>

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "file/new_file.h"
#include "interchange/gpt2_tensors.h"

enum {
    MAGIC = 20240326,
    VERSION_F32 = 3,
    VERSION_BF16 = 5,
    PAD_VOCABULARY = 128,
    /* places in the header */
    AT_MAGIC = 0,
    AT_VERSION,
    AT_CONTEXT,
    AT_VOCABULARY,
    AT_LAYERS,
    AT_HEADS,
    AT_WIDTH,
    AT_PADDED,
    NUMBERS = 256,
    HEADER_BYTES = NUMBERS * 4
};

/* What a file is. */
typedef struct llmc_file {
    const oari_disk *disk;
    int fd;
    const char *path;
    oar_dtype dtype;
    int64_t padded; /* rows of the token table */
    off_t at;       /* of the next tensor */
} llmc_file;

/* How many numbers of a tensor the file has. */
static size_t count_in_file(const llmc_file *f, int row, const oar_gpt_opts *o)
{
    oar_shape shape = oari_gpt2_shape(row, o);

    if (row == OARI_GPT2_WTE)
        shape.dim[0] = f->padded;
    return (size_t)shape.dim[0] * (size_t)(shape.ndim > 1 ? shape.dim[1] : 1);
}

/* ---- reading ------------------------------------------------------------- */

static oar_status check_numbers(const char *path, const int32_t *number)
{
    static const char *const name[] = {
        [AT_CONTEXT] = "context", [AT_VOCABULARY] = "vocabulary",
        [AT_LAYERS] = "layers",   [AT_HEADS] = "heads",
        [AT_WIDTH] = "width",     [AT_PADDED] = "padded vocabulary"
    };

    if (number[AT_MAGIC] != MAGIC)
        return oari_fail(OAR_E_DATA,
                         "%s begins with the number %d; a model file of llm.c "
                         "begins with %d",
                         path, number[AT_MAGIC], MAGIC);
    if (number[AT_VERSION] != VERSION_F32 && number[AT_VERSION] != VERSION_BF16)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s is of version %d; versions %d (f32) and %d (bf16) "
                         "are read",
                         path, number[AT_VERSION], VERSION_F32, VERSION_BF16);
    for (int i = AT_CONTEXT; i <= AT_PADDED; i++)
        if (number[i] < 1)
            return oari_fail(OAR_E_DATA, "%s has %s %d; it is at least 1", path,
                             name[i], number[i]);
    if (number[AT_WIDTH] % number[AT_HEADS] != 0)
        return oari_fail(OAR_E_DATA,
                         "%s has %d heads, which do not divide the width %d",
                         path, number[AT_HEADS], number[AT_WIDTH]);
    if (number[AT_VOCABULARY] > number[AT_PADDED])
        return oari_fail(OAR_E_DATA,
                         "%s has vocabulary %d, but only %d rows for it", path,
                         number[AT_VOCABULARY], number[AT_PADDED]);
    if (number[AT_LAYERS] > OARI_GPT2_MOST_LAYERS)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s has %d layers; at most %d are read", path,
                         number[AT_LAYERS], OARI_GPT2_MOST_LAYERS);
    return OAR_OK;
}

/* Compares the size of the file with the parameters it must have. Sizes are
 * below 2^31 and layers few, so that only a sum of 128 bits is sure to hold. */
static oar_status check_bytes(const llmc_file *f, const oar_gpt_opts *o,
                              uint64_t bytes)
{
    unsigned __int128 wanted = 0;

    for (int row = 0; row < OARI_GPT2_HEAD; row++) {
        oar_shape shape = oari_gpt2_shape(row, o);
        int64_t rows = row == OARI_GPT2_WTE ? f->padded : shape.dim[0];

        wanted += (unsigned __int128)oari_gpt2_tensors(row, o) *
                  (uint64_t)rows *
                  (uint64_t)(shape.ndim > 1 ? shape.dim[1] : 1);
    }
    wanted = HEADER_BYTES + wanted * oar_dtype_size(f->dtype);
    if (wanted != bytes)
        return oari_fail(
            OAR_E_DATA,
            "%s has %llu bytes; with %d layers of width %lld, context %lld and "
            "%lld rows of vocabulary it would have %s%llu",
            f->path, (unsigned long long)bytes, o->layers, (long long)o->width,
            (long long)o->context, (long long)f->padded,
            wanted > UINT64_MAX ? "more than " : "",
            (unsigned long long)(wanted > UINT64_MAX ? UINT64_MAX : wanted));
    return OAR_OK;
}

static oar_status read_header(llmc_file *f, int trim, oar_gpt_opts *o)
{
    int32_t number[NUMBERS];
    off_t bytes;

    if (f->disk->size(f->disk, f->fd, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at %s", f->path);
    if (bytes < HEADER_BYTES)
        return oari_fail(OAR_E_DATA,
                         "%s has %lld bytes; a model file of llm.c begins with "
                         "%d bytes of header",
                         f->path, (long long)bytes, HEADER_BYTES);
    OARI_TRY(oari_disk_read(f->disk, f->fd, number, sizeof number, 0, f->path));
    OARI_TRY(check_numbers(f->path, number));
    f->dtype = number[AT_VERSION] == VERSION_F32 ? OAR_F32 : OAR_BF16;
    f->padded = number[AT_PADDED];
    f->at = HEADER_BYTES;
    o->context = number[AT_CONTEXT];
    o->vocabulary = number[trim ? AT_VOCABULARY : AT_PADDED];
    o->layers = number[AT_LAYERS];
    o->heads = number[AT_HEADS];
    o->width = number[AT_WIDTH];
    o->hidden = 4 * o->width;
    o->activation = OAR_GELU_TANH;
    o->tied = 1;
    return check_bytes(f, o, (uint64_t)bytes);
}

static oar_status read_param(const llmc_file *f, oar_tensor *param)
{
    size_t bytes = (size_t)oar_tensor_count(param) * oar_dtype_size(f->dtype);
    oar_status status;
    void *numbers;

    if (oar_tensor_dtype(param) == f->dtype) {
        OARI_TRY(oar_tensor_touch(param));
        return oari_disk_read(f->disk, f->fd, oar_tensor_data(param), bytes,
                              f->at, f->path);
    }
    numbers = oari_alloc_aligned(64, bytes);
    if (numbers == NULL)
        return OAR_E_NOMEM;
    status = oari_disk_read(f->disk, f->fd, numbers, bytes, f->at, f->path);
    if (status == OAR_OK)
        status = oar_tensor_write(param, f->dtype, numbers);
    oari_free(numbers);
    return status;
}

static oar_status read_model(llmc_file *f, int trim, oar_gpt_opts *o,
                             oar_module **made)
{
    OARI_TRY(read_header(f, trim, o));
    OARI_TRY(oari_gpt2_create(o, made));
    for (int row = 0; row < OARI_GPT2_HEAD; row++)
        for (int layer = 0; layer < oari_gpt2_tensors(row, o); layer++) {
            oar_tensor *param;

            OARI_TRY(oari_gpt2_param(*made, row, layer, &param));
            OARI_TRY(read_param(f, param));
            f->at +=
                (off_t)(count_in_file(f, row, o) * oar_dtype_size(f->dtype));
        }
    return OAR_OK;
}

oar_status oar_gpt_from_llmc(const char *path, oar_dtype dtype, int trim,
                             oar_module **module, oar_gpt_opts *opts)
{
    oar_gpt_opts o = { .size = sizeof o, .dtype = dtype };
    llmc_file file = { .disk = oari_disk_in_use(), .path = path };
    oar_module *made = NULL;
    oar_status status;

    if (path == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "gpt_from_llmc: %s is NULL",
                         path == NULL ? "path" : "module");
    file.fd = file.disk->open_file(file.disk, AT_FDCWD, path, OARI_DISK_READ);
    if (file.fd < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open %s", path);
    status = read_model(&file, trim, &o, &made);
    (void)file.disk->close(file.disk, file.fd);
    return oari_gpt2_give(status, made, &o, module, opts);
}

/* ---- writing ------------------------------------------------------------- */

static oar_status check_opts(const oar_gpt_opts *o)
{
    int64_t largest = o->vocabulary > o->context ? o->vocabulary : o->context;

    if (!o->tied)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has a head of its own; llm.c's is tied to "
                         "the token table");
    if (o->activation != OAR_GELU_TANH)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt's activation is number %d of layers.h; "
                         "llm.c's is OAR_GELU_TANH, %d",
                         (int)o->activation, (int)OAR_GELU_TANH);
    if (o->hidden != 4 * o->width)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has width %lld and %lld in the MLP; llm.c "
                         "has four times the width there",
                         (long long)o->width, (long long)o->hidden);
    if (o->dtype != OAR_F32 && o->dtype != OAR_BF16)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt is %s; llm.c's files are f32 or bf16",
                         oar_dtype_name(o->dtype));
    if (o->width > INT32_MAX || largest > INT32_MAX - PAD_VOCABULARY)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has vocabulary %lld, context %lld and width "
                         "%lld; llm.c's files hold numbers below 2^31",
                         (long long)o->vocabulary, (long long)o->context,
                         (long long)o->width);
    return OAR_OK;
}

static oar_status write_param(const oari_new_file *to, const llmc_file *f,
                              size_t count, const oar_tensor *param)
{
    size_t size = oar_dtype_size(f->dtype);
    void *numbers = oari_alloc(count, size); /* zeros, for the padding */
    oar_status status;

    if (numbers == NULL)
        return OAR_E_NOMEM;
    status = oar_tensor_read(param, f->dtype, numbers);
    if (status == OAR_OK)
        status = oari_disk_write(to->disk, to->fd, numbers, count * size, f->at,
                                 to->path);
    oari_free(numbers);
    return status;
}

static oar_status write_model(const oari_new_file *to, const oar_module *module,
                              const oar_gpt_opts *o)
{
    int64_t padded =
        (o->vocabulary + PAD_VOCABULARY - 1) / PAD_VOCABULARY * PAD_VOCABULARY;
    llmc_file f = { .dtype = o->dtype, .padded = padded, .at = HEADER_BYTES };
    int32_t number[NUMBERS] = {
        [AT_MAGIC] = MAGIC,
        [AT_VERSION] = o->dtype == OAR_F32 ? VERSION_F32 : VERSION_BF16,
        [AT_CONTEXT] = (int32_t)o->context,
        [AT_VOCABULARY] = (int32_t)o->vocabulary,
        [AT_LAYERS] = o->layers,
        [AT_HEADS] = o->heads,
        [AT_WIDTH] = (int32_t)o->width,
        [AT_PADDED] = (int32_t)padded,
    };

    OARI_TRY(
        oari_disk_write(to->disk, to->fd, number, sizeof number, 0, to->path));
    for (int row = 0; row < OARI_GPT2_HEAD; row++)
        for (int layer = 0; layer < oari_gpt2_tensors(row, o); layer++) {
            size_t count = count_in_file(&f, row, o);
            oar_tensor *param;

            OARI_TRY(oari_gpt2_param(module, row, layer, &param));
            OARI_TRY(write_param(to, &f, count, param));
            f.at += (off_t)(count * oar_dtype_size(f.dtype));
        }
    return OAR_OK;
}

oar_status oar_gpt_to_llmc(const oar_module *module, const char *path)
{
    oari_new_file file;
    oar_status status;
    oar_gpt_opts o;

    if (module == NULL || path == NULL)
        return oari_fail(OAR_E_ARG, "gpt_to_llmc: %s is NULL",
                         module == NULL ? "module" : "path");
    OARI_TRY(oari_gpt2_describe(module, &o));
    OARI_TRY(check_opts(&o));
    OARI_TRY(oari_new_file_begin(path, &file));
    status = write_model(&file, module, &o);
    if (status == OAR_OK)
        return oari_new_file_commit(&file);
    oari_new_file_abandon(&file);
    return status;
}
