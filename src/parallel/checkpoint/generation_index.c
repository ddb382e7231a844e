/* SPDX-License-Identifier: Apache-2.0 */
/* generation_index: the lists of an index, and index.json read into them. The
 * text is read twice: on a copy, to count, and then into lists of exactly those
 * sizes. */
#include "parallel/checkpoint/generation_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "file/json_reader.h"
#include "file/safetensors_header.h"

/* What follows the part that the last checksum is of: "end":"..."}\n */
enum { END_BYTES = 7 + 16 + 3 };

uint64_t oari_block_sum(const void *data, size_t bytes)
{
    return oari_hash64(data, bytes, 0);
}

/* ---- lists --------------------------------------------------------------- */

oar_status oari_ckpt_index_alloc(oari_ckpt_index *i)
{
    i->file = oari_alloc((size_t)i->files, sizeof *i->file);
    i->tensor = oari_alloc((size_t)i->tensors, sizeof *i->tensor);
    i->chunk = oari_alloc((size_t)i->chunks, sizeof *i->chunk);
    i->dim = oari_alloc((size_t)i->dims, sizeof *i->dim);
    i->alias = oari_alloc((size_t)i->aliases, sizeof *i->alias);
    i->value = oari_alloc((size_t)i->values, sizeof *i->value);
    i->sum = oari_alloc((size_t)i->sums, sizeof *i->sum);
    if (i->file != NULL && i->tensor != NULL && i->chunk != NULL &&
        i->dim != NULL && i->alias != NULL && i->value != NULL &&
        i->sum != NULL)
        return OAR_OK;
    return OAR_E_NOMEM;
}

void oari_ckpt_index_free(oari_ckpt_index *i)
{
    oari_free(i->sum);
    oari_free(i->value);
    oari_free(i->alias);
    oari_free(i->dim);
    oari_free(i->chunk);
    oari_free(i->tensor);
    oari_free(i->file);
    oari_free(i->text);
    *i = (oari_ckpt_index){ 0 };
}

oar_shape oari_ckpt_index_shape(const oari_ckpt_index *index,
                                const oari_ckpt_index_tensor *tensor)
{
    return oar_shape_of(tensor->ndim, index->dim + tensor->dims);
}

oari_box oari_ckpt_index_box(const oari_ckpt_index *index,
                             const oari_ckpt_index_tensor *tensor,
                             const oari_ckpt_index_chunk *chunk)
{
    oari_box box = { .ndim = tensor->ndim };

    for (int i = 0; i < tensor->ndim; i++) {
        box.offset[i] = index->dim[chunk->dims + i];
        box.extent[i] = index->dim[chunk->dims + tensor->ndim + i];
    }
    return box;
}

static int compare_names(const char *section_a, const char *a,
                         const char *section_b, const char *b)
{
    int order = strcmp(section_a, section_b);

    return order != 0 ? order : strcmp(a, b);
}

static int by_tensor(const void *key, const void *element)
{
    const oari_ckpt_index_tensor *a = key, *b = element;

    return compare_names(a->section, a->name, b->section, b->name);
}

static int by_alias(const void *key, const void *element)
{
    const oari_ckpt_alias *a = key, *b = element;

    return compare_names(a->section, a->name, b->section, b->name);
}

static int by_value(const void *key, const void *element)
{
    const oari_ckpt_value *a = key, *b = element;

    return strcmp(a->name, b->name);
}

static const oari_ckpt_index_tensor *
find_tensor(const oari_ckpt_index *index, const char *section, const char *name)
{
    oari_ckpt_index_tensor wanted = { .section = section, .name = name };

    return bsearch(&wanted, index->tensor, (size_t)index->tensors,
                   sizeof wanted, by_tensor);
}

const oari_ckpt_index_tensor *oari_ckpt_index_find(const oari_ckpt_index *index,
                                                   const char *section,
                                                   const char *name)
{
    oari_ckpt_alias alias = { section, name, NULL }, *found;

    found = bsearch(&alias, index->alias, (size_t)index->aliases, sizeof alias,
                    by_alias);
    return find_tensor(index, section, found != NULL ? found->of : name);
}

const oari_ckpt_value *oari_ckpt_index_value(const oari_ckpt_index *index,
                                             const char *name)
{
    oari_ckpt_value wanted = { .name = name };

    return bsearch(&wanted, index->value, (size_t)index->values, sizeof wanted,
                   by_value);
}

/* ---- reading ------------------------------------------------------------- */

/* Lists that are NULL are counted only. */
typedef struct index_reader {
    oari_json json;
    oari_ckpt_index *index;
} index_reader;

/* Reads an array of numbers behind those that are there; gives their count. */
static int read_dims(index_reader *r)
{
    oari_ckpt_index *index = r->index;
    int count = 0;

    oari_json_open(&r->json, '[');
    while (oari_json_element(&r->json)) {
        uint64_t number = 0;

        oari_json_u64(&r->json, &number, INT64_MAX);
        if (count == OAR_MAX_DIMS) {
            oari_json_refuse(&r->json, "begins a dim too many");
            break;
        }
        if (index->dim != NULL)
            index->dim[index->dims] = (int64_t)number;
        index->dims++;
        count++;
    }
    return count;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static void read_sums(index_reader *r, oari_ckpt_index_file *f)
{
    const char *text = "";
    size_t length;

    oari_json_text(&r->json, &text);
    length = r->json.status == OAR_OK ? strlen(text) : 0;
    if (length % 16 != 0)
        oari_json_refuse(&r->json, "ends checksums that are cut short");
    f->blocks = (int64_t)(length / 16);
    if (r->index->sum != NULL) {
        f->sum = r->index->sum + r->index->sums;
        for (size_t i = 0; i < length; i++) {
            int digit = hex_digit(text[i]);

            if (digit < 0)
                oari_json_refuse(&r->json, "ends checksums that are not "
                                           "hexadecimal");
            f->sum[i / 16] = f->sum[i / 16] << 4 | (uint64_t)(digit & 15);
        }
    }
    r->index->sums += f->blocks;
}

/* "SECTION/NAME" of letters, digits, '.', '_' and '-', no part of which begins
 * with a dot: it stays in the folder. */
static int is_safe_path(const char *path)
{
    const char *slash = strchr(path, '/');

    if (slash == NULL || slash == path || slash[1] == '\0' || path[0] == '.' ||
        slash[1] == '.' || strlen(path) > 250)
        return 0;
    for (const char *c = path; *c != '\0'; c++)
        if (c != slash && !(*c >= 'a' && *c <= 'z') &&
            !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') &&
            strchr("._-", *c) == NULL)
            return 0;
    return 1;
}

static void read_file(index_reader *r)
{
    oari_ckpt_index_file f = { .path = "" };
    uint64_t blocks;
    const char *key;

    oari_json_open(&r->json, '{');
    while (oari_json_key(&r->json, &key)) {
        if (strcmp(key, "path") == 0)
            oari_json_text(&r->json, &f.path);
        else if (strcmp(key, "bytes") == 0)
            oari_json_u64(&r->json, &f.bytes, INT64_MAX);
        else if (strcmp(key, "data") == 0)
            oari_json_u64(&r->json, &f.data, INT64_MAX);
        else if (strcmp(key, "sums") == 0)
            read_sums(r, &f);
        else
            oari_json_refuse(&r->json, "follows \"%.40s\", which no file has",
                             key);
    }
    if (r->json.status != OAR_OK)
        return;
    if (!is_safe_path(f.path))
        oari_json_refuse(&r->json, "ends a file called \"%.100s\"", f.path);
    blocks = r->index->block_bytes == 0
                 ? 0
                 : f.bytes / r->index->block_bytes +
                       (f.bytes % r->index->block_bytes != 0);
    if ((uint64_t)f.blocks != blocks || f.data > f.bytes)
        oari_json_refuse(&r->json,
                         "ends \"%.100s\", which has %lld checksums for "
                         "%" PRIu64 " blocks",
                         f.path, (long long)f.blocks, blocks);
    if (r->index->file != NULL)
        r->index->file[r->index->files] = f;
    r->index->files++;
}

static void read_chunk(index_reader *r, const oari_ckpt_index_tensor *t)
{
    oari_ckpt_index_chunk c = { .dims = -1 };
    uint64_t file = UINT64_MAX;
    const char *key;
    int offsets = -1, extents = -1;

    oari_json_open(&r->json, '{');
    while (oari_json_key(&r->json, &key)) {
        if (strcmp(key, "file") == 0) {
            oari_json_u64(&r->json, &file, INT32_MAX);
        } else if (strcmp(key, "at") == 0) {
            oari_json_u64(&r->json, &c.at, INT64_MAX);
        } else if (strcmp(key, "offset") == 0 && offsets < 0) {
            c.dims = r->index->dims;
            offsets = read_dims(r);
        } else if (strcmp(key, "shape") == 0 && offsets >= 0 && extents < 0) {
            extents = read_dims(r);
        } else {
            oari_json_refuse(&r->json,
                             "follows \"%.40s\", which has no place "
                             "in a chunk",
                             key);
        }
    }
    if (r->json.status == OAR_OK && (offsets != t->ndim || extents != t->ndim ||
                                     file >= (uint64_t)r->index->files))
        oari_json_refuse(&r->json, "ends a chunk that is not one of \"%.100s\"",
                         t->name);
    c.file = (int32_t)file;
    if (r->index->chunk != NULL)
        r->index->chunk[r->index->chunks] = c;
    r->index->chunks++;
}

/* Checks a tensor's chunks: boxes in its shape, bytes in their file. */
static void check_tensor(index_reader *r, const oari_ckpt_index_tensor *t)
{
    const oari_ckpt_index *index = r->index;
    oar_shape shape = oari_ckpt_index_shape(index, t);
    size_t element = oar_dtype_size(t->dtype);

    if (!oari_box_shape_fits(shape, element))
        oari_json_refuse(&r->json, "ends \"%.100s\", whose shape is too large",
                         t->name);
    for (int64_t i = 0; i < t->chunks && r->json.status == OAR_OK; i++) {
        const oari_ckpt_index_chunk *c = &index->chunk[t->first + i];
        const oari_ckpt_index_file *f = &index->file[c->file];
        oari_box box = oari_ckpt_index_box(index, t, c);
        uint64_t bytes;

        if (!oari_box_fits(&box, shape)) {
            oari_json_refuse(&r->json,
                             "ends \"%.100s\", a chunk of which is "
                             "not in it",
                             t->name);
            return;
        }
        bytes = (uint64_t)oari_box_count(&box) * element;
        if (c->at < f->data || c->at > f->bytes || bytes > f->bytes - c->at)
            oari_json_refuse(&r->json,
                             "ends \"%.100s\", a chunk of which is "
                             "not in its file",
                             t->name);
    }
}

static void read_tensor(index_reader *r, const char *section, const char *name)
{
    oari_ckpt_index_tensor t = {
        .section = section, .name = name, .ndim = -1, .first = r->index->chunks
    };
    const char *key, *text = "";
    int dtype = -1;

    oari_json_open(&r->json, '{');
    while (oari_json_key(&r->json, &key)) {
        if (strcmp(key, "dtype") == 0) {
            oari_json_text(&r->json, &text);
            for (int i = 0; i < OAR_DTYPE_COUNT; i++)
                if (strcmp(text, oari_safetensors_dtype_name((oar_dtype)i)) ==
                    0)
                    dtype = i;
        } else if (strcmp(key, "shape") == 0 && t.ndim < 0) {
            t.dims = r->index->dims;
            t.ndim = read_dims(r);
        } else if (strcmp(key, "chunks") == 0 && t.ndim >= 0) {
            oari_json_open(&r->json, '[');
            while (oari_json_element(&r->json)) {
                read_chunk(r, &t);
                t.chunks++;
            }
        } else {
            oari_json_refuse(&r->json,
                             "follows \"%.40s\", which has no place "
                             "in \"%.100s\"",
                             key, name);
        }
    }
    if (dtype < 0 || t.ndim < 0)
        oari_json_refuse(&r->json,
                         "ends \"%.100s\", which lacks a dtype or a "
                         "shape",
                         name);
    if (r->json.status != OAR_OK)
        return;
    t.dtype = (oar_dtype)dtype;
    if (r->index->tensor != NULL) {
        oari_ckpt_index_tensor *before =
            r->index->tensors > 0 ? &r->index->tensor[r->index->tensors - 1]
                                  : NULL;

        if (before != NULL && by_tensor(before, &t) >= 0)
            oari_json_refuse(&r->json,
                             "ends \"%.100s\", which is not in its "
                             "order",
                             name);
        r->index->tensor[r->index->tensors] = t;
        check_tensor(r, &t);
    }
    r->index->tensors++;
}

static void read_tensors(index_reader *r)
{
    const char *section, *name;

    oari_json_open(&r->json, '{');
    while (oari_json_key(&r->json, &section)) {
        oari_json_open(&r->json, '{');
        while (oari_json_key(&r->json, &name))
            read_tensor(r, section, name);
    }
}

static void read_aliases(index_reader *r)
{
    oari_ckpt_alias a = { NULL, NULL, "" };

    oari_json_open(&r->json, '{');
    while (oari_json_key(&r->json, &a.section)) {
        oari_json_open(&r->json, '{');
        while (oari_json_key(&r->json, &a.name)) {
            oari_json_text(&r->json, &a.of);
            if (r->json.status != OAR_OK)
                return;
            if (r->index->alias != NULL) {
                if (r->index->aliases > 0 &&
                    by_alias(&r->index->alias[r->index->aliases - 1], &a) >= 0)
                    oari_json_refuse(&r->json, "ends an alias that is not in "
                                               "its order");
                if (find_tensor(r->index, a.section, a.of) == NULL)
                    oari_json_refuse(&r->json,
                                     "ends an alias of \"%.100s\", which is "
                                     "no tensor",
                                     a.of);
                r->index->alias[r->index->aliases] = a;
            }
            r->index->aliases++;
        }
    }
}

static int is_number(const char *text)
{
    text += *text == '-';
    return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* Reads a value: a text, or a whole number of any sign, whose digits stay where
 * they are. */
static void read_value(index_reader *r, const char *name)
{
    oari_ckpt_value v = { .name = name, .text = "" };
    char *begin;

    while (r->json.at < r->json.end && *r->json.at == ' ')
        r->json.at++;
    begin = r->json.at;
    v.is_text = begin < r->json.end && *begin == '"';
    if (v.is_text) {
        oari_json_text(&r->json, &v.text);
    } else {
        oari_json_skip(&r->json);
        if (r->json.status != OAR_OK)
            return;
        /* One byte earlier, where the colon was, there is room for the zero
         * byte that the digits must end in. */
        memmove(begin - 1, begin, (size_t)(r->json.at - begin));
        r->json.at[-1] = '\0';
        v.text = begin - 1;
        if (!is_number(v.text))
            oari_json_refuse(&r->json, "ends \"%.60s\", which is no number",
                             name);
    }
    if (r->json.status != OAR_OK)
        return;
    if (r->index->value != NULL) {
        if (r->index->values > 0 &&
            by_value(&r->index->value[r->index->values - 1], &v) >= 0)
            oari_json_refuse(&r->json,
                             "ends \"%.60s\", which is not in its "
                             "order",
                             name);
        r->index->value[r->index->values] = v;
    }
    r->index->values++;
}

static void read_number(index_reader *r, int64_t *number, uint64_t most)
{
    uint64_t read = 0;

    oari_json_u64(&r->json, &read, most);
    *number = (int64_t)read;
}

static void read_member(index_reader *r, const char *key)
{
    oari_ckpt_index *index = r->index;
    int64_t number = 0;
    const char *name;

    if (strcmp(key, "id") == 0) {
        oari_json_text(&r->json, &index->id);
    } else if (strcmp(key, "note") == 0) {
        oari_json_text(&r->json, &index->note);
    } else if (strcmp(key, "step") == 0) {
        read_number(r, &index->step, 999999999999);
    } else if (strcmp(key, "saved_unix_s") == 0) {
        read_number(r, &index->saved_unix_s, INT64_MAX);
    } else if (strcmp(key, "ranks") == 0) {
        read_number(r, &number, INT32_MAX);
        index->ranks = (int)number;
    } else if (strcmp(key, "keep") == 0) {
        read_number(r, &number, 1);
        index->keep = (int)number;
    } else if (strcmp(key, "block_bytes") == 0) {
        oari_json_u64(&r->json, &index->block_bytes, 64 << 20);
        if (index->block_bytes < 4096 ||
            (index->block_bytes & (index->block_bytes - 1)) != 0)
            oari_json_refuse(&r->json, "ends a block size of %" PRIu64,
                             index->block_bytes);
    } else if (strcmp(key, "files") == 0) {
        oari_json_open(&r->json, '[');
        while (oari_json_element(&r->json))
            read_file(r);
    } else if (strcmp(key, "tensors") == 0) {
        read_tensors(r);
    } else if (strcmp(key, "aliases") == 0) {
        read_aliases(r);
    } else if (strcmp(key, "values") == 0) {
        oari_json_open(&r->json, '{');
        while (oari_json_key(&r->json, &name))
            read_value(r, name);
    } else if (strcmp(key, "end") == 0) {
        oari_json_text(&r->json, &name);
    } else {
        oari_json_refuse(&r->json, "follows an unknown member \"%.60s\"", key);
    }
}

static oar_status read_text(const char *what, char *text, size_t bytes,
                            oari_ckpt_index *index)
{
    static const char *const order[] = {
        "id",          "step",  "saved_unix_s", "ranks",   "keep",   "note",
        "block_bytes", "files", "tensors",      "aliases", "values", "end"
    };
    index_reader r = { .index = index };
    uint64_t format = 0;
    const char *key;

    oari_json_start(&r.json, what, text, bytes);
    oari_json_open(&r.json, '{');
    if (oari_json_key(&r.json, &key) && strcmp(key, "oarsong_checkpoint") == 0)
        oari_json_u64(&r.json, &format, INT32_MAX);
    if (r.json.status == OAR_OK && format > OARI_CKPT_FORMAT)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s is of format %" PRIu64
                         "; this version of Oarsong reads format %d",
                         what, format, OARI_CKPT_FORMAT);
    if (format != OARI_CKPT_FORMAT)
        return oari_json_refuse(&r.json, "does not begin an index of Oarsong");
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (!oari_json_key(&r.json, &key))
            return oari_json_refuse(&r.json, "ends it before \"%s\"", order[i]);
        if (strcmp(key, order[i]) != 0)
            return oari_json_refuse(&r.json,
                                    "follows \"%.60s\", where \"%s\" belongs",
                                    key, order[i]);
        read_member(&r, key);
    }
    if (oari_json_key(&r.json, &key))
        return oari_json_refuse(&r.json, "follows an unknown member \"%.60s\"",
                                key);
    return oari_json_end(&r.json);
}

static oar_status check_end(const char *what, const char *text, size_t bytes)
{
    char end[END_BYTES + 1];
    size_t before = bytes - END_BYTES;

    if (bytes <= END_BYTES)
        return oari_fail(OAR_E_DATA, "%s is cut short: it has %zu bytes", what,
                         bytes);
    snprintf(end, sizeof end, "\"end\":\"%016" PRIx64 "\"}\n",
             oari_block_sum(text, before));
    if (memcmp(end, text + before, END_BYTES) != 0)
        return oari_fail(OAR_E_DATA,
                         "%s is damaged: its checksum is %.16s, that of its "
                         "bytes %.16s",
                         what, text + before + 7, end + 7);
    return OAR_OK;
}

oar_status oari_ckpt_index_read(const char *what, char *text, size_t bytes,
                                oari_ckpt_index *index)
{
    oari_ckpt_index i = { .text = text };
    oar_status status = check_end(what, text, bytes);
    char *copy = NULL;

    if (status == OAR_OK && (copy = oari_alloc(bytes + 1, 1)) == NULL)
        status = OAR_E_NOMEM;
    if (status == OAR_OK) {
        memcpy(copy, text, bytes);
        status = read_text(what, copy, bytes, &i);
        oari_free(copy);
    }
    if (status == OAR_OK)
        status = oari_ckpt_index_alloc(&i);
    if (status == OAR_OK) {
        i.files = i.tensors = i.chunks = i.dims = 0;
        i.aliases = i.values = i.sums = 0;
        status = read_text(what, text, bytes, &i);
    }
    if (status != OAR_OK) {
        oari_ckpt_index_free(&i);
        return status;
    }
    *index = i;
    return OAR_OK;
}
