/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_header: reads and writes
 *     {"__metadata__":{"key":"value",..},
 *      "name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},..}
 * Nothing of a file is believed. Names, dtypes and metadata stay in the text
 * that was read; only the rows and their order by name are allocated, as many
 * as the text has room for at most. */
#include "file/safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "file/json_reader.h"

enum { SHORTEST_ROW = 48 }; /* bytes of text: no row can be written in fewer */

static const char *const dtype_names[OAR_DTYPE_COUNT_ALL] = {
    [OAR_F32] = "F32",   [OAR_F64] = "F64",        [OAR_F16] = "F16",
    [OAR_BF16] = "BF16", [OAR_I8] = "I8",          [OAR_U8] = "U8",
    [OAR_I16] = "I16",   [OAR_U16] = "U16",        [OAR_I32] = "I32",
    [OAR_U32] = "U32",   [OAR_I64] = "I64",        [OAR_U64] = "U64",
    [OAR_BOOL] = "BOOL", [OAR_F8E4M3] = "F8_E4M3", [OAR_F8E5M2] = "F8_E5M2"
};

const char *oari_safetensors_dtype_name(oar_dtype dtype)
{
    return dtype_names[dtype];
}

oar_status oari_safetensors_check_name(const char *name)
{
    size_t bytes = name != NULL ? strlen(name) : 0;
    uint32_t point;

    if (bytes == 0)
        return oari_fail(OAR_E_ARG, "a tensor has no name");
    if (bytes > OARI_SAFETENSORS_LONGEST_NAME)
        return oari_fail(OAR_E_ARG,
                         "the name \"%.40s...\" has %zu bytes; %d are allowed",
                         name, bytes, OARI_SAFETENSORS_LONGEST_NAME);
    if (strcmp(name, "__metadata__") == 0)
        return oari_fail(OAR_E_ARG, "no tensor can be called __metadata__");
    for (size_t at = 0, n; at < bytes; at += n) {
        n = oari_utf8_read(name + at, bytes - at, &point);
        if (n == 0)
            return oari_fail(OAR_E_ARG,
                             "byte %zu of the name \"%.60s\" is not UTF-8", at,
                             name);
    }
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

static void read_shape(oari_json *json, oari_safetensors_row *row)
{
    int ndim = 0;

    oari_json_open(json, '[');
    while (oari_json_element(json)) {
        uint64_t dim = 0;

        oari_json_u64(json, &dim, INT64_MAX);
        if (ndim < OAR_MAX_DIMS)
            row->dim[ndim++] = (int64_t)dim;
        else
            ndim = OAR_MAX_DIMS + 1; /* stays there */
    }
    row->ndim = (int8_t)(ndim <= OAR_MAX_DIMS ? ndim : -1);
}

static void read_offsets(oari_json *json, uint64_t data_bytes,
                         oari_safetensors_row *row)
{
    oari_json_open(json, '[');
    if (oari_json_element(json))
        oari_json_u64(json, &row->begin, data_bytes);
    if (oari_json_element(json))
        oari_json_u64(json, &row->end, data_bytes);
    if (oari_json_element(json))
        oari_json_refuse(json, "begins a third offset");
}

/* Checks that the bytes of a row are those of its shape. */
static void check_row_size(oari_json *json, const oari_safetensors_row *row)
{
    uint64_t bytes;

    if (row->end < row->begin) {
        oari_json_refuse(json, "ends \"%.100s\", whose offsets run backwards",
                         row->name);
        return;
    }
    if (row->dtype < 0 || row->ndim < 0)
        return;
    bytes = oar_dtype_size((oar_dtype)row->dtype);
    for (int i = 0; i < row->ndim; i++)
        if (row->dim[i] == 0)
            bytes = 0;
    for (int i = 0; i < row->ndim && bytes > 0; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)row->dim[i], &bytes)) {
            oari_json_refuse(json, "ends \"%.100s\", whose shape is too large",
                             row->name);
            return;
        }
    if (bytes != row->end - row->begin)
        oari_json_refuse(json,
                         "ends \"%.100s\", whose shape takes %" PRIu64
                         " bytes, but whose offsets give %" PRIu64,
                         row->name, bytes, row->end - row->begin);
}

static void read_row(oari_json *json, uint64_t data_bytes,
                     oari_safetensors_row *row)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, member;
    const char *key;

    oari_json_open(json, '{');
    while (oari_json_key(json, &key)) {
        member = strcmp(key, "dtype") == 0          ? DTYPE
                 : strcmp(key, "shape") == 0        ? SHAPE
                 : strcmp(key, "data_offsets") == 0 ? OFFSETS
                                                    : 0;
        if (member == 0 || (seen & member) != 0) {
            oari_json_refuse(json,
                             "follows the member \"%.60s\" of \"%.60s\": it is "
                             "%s",
                             key, row->name,
                             member ? "there twice" : "unknown");
            return;
        }
        seen |= member;
        if (member == SHAPE) {
            read_shape(json, row);
        } else if (member == OFFSETS) {
            read_offsets(json, data_bytes, row);
        } else {
            oari_json_text(json, &row->dtype_text);
            row->dtype = -1;
            for (int i = 0; i < OAR_DTYPE_COUNT_ALL; i++)
                if (json->status == OAR_OK &&
                    strcmp(row->dtype_text, dtype_names[i]) == 0)
                    row->dtype = (int8_t)i;
        }
    }
    if (seen != (DTYPE | SHAPE | OFFSETS))
        oari_json_refuse(json,
                         "ends \"%.100s\", which lacks dtype, shape or "
                         "data_offsets",
                         row->name);
    if (json->status == OAR_OK)
        check_row_size(json, row);
}

/* Leaves the pairs one behind the other where their text began: keys and values
 * are shorter than they were in quotes. */
static void read_metadata(oari_json *json, oari_safetensors_header *header)
{
    char *to = NULL;
    const char *key, *value;

    if (header->metadata != NULL) {
        oari_json_refuse(json, "follows a second \"__metadata__\"");
        return;
    }
    oari_json_open(json, '{');
    header->metadata = to = json->at;
    while (oari_json_key(json, &key)) {
        size_t key_bytes = strlen(key) + 1;

        oari_json_text(json, &value);
        if (json->status != OAR_OK)
            return;
        memmove(to, key, key_bytes);
        to += key_bytes;
        memmove(to, value, strlen(value) + 1);
        to += strlen(to) + 1;
    }
    header->metadata_bytes = (size_t)(to - header->metadata);
}

static int by_place(const void *a, const void *b)
{
    const oari_safetensors_row *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b, void *header)
{
    const oari_safetensors_header *h = header;

    return strcmp(h->row[*(const uint32_t *)a].name,
                  h->row[*(const uint32_t *)b].name);
}

/* Sorts the rows as they lie in the file and checks that they fill it. */
static oar_status check_places(const char *what, oari_safetensors_header *h,
                               uint64_t data_bytes)
{
    uint64_t at = 0;

    qsort(h->row, (size_t)h->count, sizeof *h->row, by_place);
    for (int64_t i = 0; i < h->count; i++) {
        if (h->row[i].begin != at)
            return oari_fail(OAR_E_DATA,
                             "%s: \"%.100s\" begins at byte %" PRIu64
                             " of the data, where byte %" PRIu64 " is next",
                             what, h->row[i].name, h->row[i].begin, at);
        at = h->row[i].end;
    }
    if (at != data_bytes)
        return oari_fail(OAR_E_DATA,
                         "%s has %" PRIu64 " bytes of data, but its tensors "
                         "end at %" PRIu64,
                         what, data_bytes, at);
    return OAR_OK;
}

static oar_status sort_names(const char *what, oari_safetensors_header *h)
{
    h->by_name = oari_alloc((size_t)h->count, sizeof *h->by_name);
    if (h->by_name == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < h->count; i++)
        h->by_name[i] = (uint32_t)i;
    qsort_r(h->by_name, (size_t)h->count, sizeof *h->by_name, by_name, h);
    for (int64_t i = 1; i < h->count; i++)
        if (by_name(&h->by_name[i - 1], &h->by_name[i], h) == 0)
            return oari_fail(OAR_E_DATA, "%s: \"%.100s\" is there twice", what,
                             h->row[h->by_name[i]].name);
    return OAR_OK;
}

/* Counts the rows that the text may have: colons outside of texts, one level
 * deep. Exact for a well-formed header, and bounded for any other. */
static size_t count_rows(const char *text, size_t bytes)
{
    size_t count = 0, most = bytes / SHORTEST_ROW + 1;
    int depth = 0, quoted = 0;

    for (size_t i = 0; i < bytes && count < most; i++) {
        char c = text[i];

        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']'))
            depth--;
        else if (!quoted && c == ':' && depth == 1)
            count++;
    }
    return count;
}

static oar_status read_rows(const char *what, oari_safetensors_header *h,
                            size_t bytes, uint64_t data_bytes)
{
    int64_t room = (int64_t)count_rows(h->text, bytes);
    oari_json json;
    const char *name;

    h->row = oari_alloc((size_t)room, sizeof *h->row);
    if (h->row == NULL)
        return OAR_E_NOMEM;
    oari_json_start(&json, what, h->text, bytes);
    oari_json_open(&json, '{');
    while (oari_json_key(&json, &name)) {
        if (strcmp(name, "__metadata__") == 0) {
            read_metadata(&json, h);
            continue;
        }
        if (name[0] == '\0' || strlen(name) > OARI_SAFETENSORS_LONGEST_NAME)
            oari_json_refuse(&json,
                             "follows a name of %zu bytes; 1 to %d are allowed",
                             strlen(name), OARI_SAFETENSORS_LONGEST_NAME);
        else if (h->count == room)
            oari_json_refuse(&json, "does not belong to a well-formed header");
        if (json.status != OAR_OK)
            break;
        h->row[h->count].name = name;
        read_row(&json, data_bytes, &h->row[h->count]);
        h->count++;
    }
    return oari_json_end(&json);
}

oar_status oari_safetensors_header_read(const char *what, char *text,
                                        size_t bytes, uint64_t data_bytes,
                                        oari_safetensors_header *header)
{
    oari_safetensors_header h = { .text = text };
    oar_status status = read_rows(what, &h, bytes, data_bytes);

    if (status == OAR_OK)
        status = check_places(what, &h, data_bytes);
    if (status == OAR_OK)
        status = sort_names(what, &h);
    if (status != OAR_OK) {
        oari_safetensors_header_free(&h);
        return status;
    }
    *header = h;
    return OAR_OK;
}

void oari_safetensors_header_free(oari_safetensors_header *header)
{
    oari_free(header->by_name);
    oari_free(header->row);
    oari_free(header->text);
    *header = (oari_safetensors_header){ 0 };
}

const oari_safetensors_row *
oari_safetensors_header_find(const oari_safetensors_header *h, const char *name)
{
    int64_t low = 0, high = h->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const oari_safetensors_row *row = &h->row[h->by_name[middle]];
        int order = strcmp(name, row->name);

        if (order == 0)
            return row;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *oari_safetensors_header_metadata(const oari_safetensors_header *h,
                                             const char *key)
{
    for (size_t at = 0; at < h->metadata_bytes;) {
        const char *found = h->metadata + at;
        const char *value = found + strlen(found) + 1;

        if (strcmp(found, key) == 0)
            return value;
        at = (size_t)(value - h->metadata) + strlen(value) + 1;
    }
    return NULL;
}

/* ---- writing ------------------------------------------------------------- */

void oari_safetensors_header_write(oari_json_writer *w, int64_t count,
                                   const oari_safetensors_row *row, int pairs,
                                   const char *const (*metadata)[2])
{
    int64_t length_at = w->text.count;
    uint64_t length;

    oari_json_fill(w, 0, sizeof length);
    oari_json_add(w, "{");
    for (int i = 0; i < pairs; i++) {
        oari_json_add(w, "%s", i == 0 ? "\"__metadata__\":{" : ",");
        oari_json_quote(w, metadata[i][0]);
        oari_json_add(w, ":");
        oari_json_quote(w, metadata[i][1]);
    }
    oari_json_add(w, "%s", pairs > 0 ? "}" : "");
    for (int64_t i = 0; i < count; i++) {
        const oari_safetensors_row *r = &row[i];

        oari_json_add(w, "%s", i > 0 || pairs > 0 ? "," : "");
        oari_json_quote(w, r->name);
        oari_json_add(w, ":{\"dtype\":\"%s\",\"shape\":[",
                      dtype_names[r->dtype]);
        for (int d = 0; d < r->ndim; d++)
            oari_json_add(w, "%s%" PRId64, d > 0 ? "," : "", r->dim[d]);
        oari_json_add(w, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                      r->begin, r->end);
    }
    oari_json_add(w, "}");
    if (w->status != OAR_OK)
        return;
    length = (uint64_t)(w->text.count - length_at);
    oari_json_fill(w, ' ', (size_t)(-length & (OARI_SAFETENSORS_ALIGN - 1)));
    if (w->status != OAR_OK)
        return;
    length = (uint64_t)(w->text.count - length_at) - sizeof length;
    for (size_t i = 0; i < sizeof length; i++) /* little-endian */
        w->text.data[length_at + (int64_t)i] = (char)(length >> (8 * i) & 255);
}
