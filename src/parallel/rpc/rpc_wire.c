/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: heads and values as bytes. Nothing is allocated, sent or kept here; what
 * is read comes from another process and is believed only once it is checked.
 */
#include "parallel/rpc/rpc_wire.h"

#include <string.h>

#include <oarsong/window.h>

#include "base/status.h"

enum { MAGIC = 0x3152414fu }; /* "OAR1" */

void oari_rpc_set_u32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

void oari_rpc_set_u64(unsigned char *to, uint64_t value)
{
    oari_rpc_set_u32(to, (uint32_t)value);
    oari_rpc_set_u32(to + 4, (uint32_t)(value >> 32));
}

uint32_t oari_rpc_u32(const unsigned char *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 |
           (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

uint64_t oari_rpc_u64(const unsigned char *from)
{
    return (uint64_t)oari_rpc_u32(from) | (uint64_t)oari_rpc_u32(from + 4)
                                              << 32;
}

const char *oari_rpc_kind_name(oari_rpc_kind kind)
{
#define ROW(name, value, text) [value] = text,
    static const char *const names[] = { OARI_RPC_KIND_LIST(ROW) };
#undef ROW
    return kind > 0 && kind < OARI_RPC_KIND_END ? names[kind] : "?";
}

const char *oari_rpc_type_name(oari_rpc_type type)
{
    static const char *const names[] = {
        [OARI_RPC_I64] = "an i64",     [OARI_RPC_F64] = "an f64",
        [OARI_RPC_TEXT] = "a text",    [OARI_RPC_BYTES] = "bytes",
        [OARI_RPC_ARRAY] = "an array", [OARI_RPC_REF] = "a reference"
    };

    return type > 0 && type < OARI_RPC_TYPE_END ? names[type] : "?";
}

/* ---- heads --------------------------------------------------------------- */

size_t oari_rpc_write_head(unsigned char *to, const oari_rpc_head *head)
{
    size_t name = strlen(head->name), site = strlen(head->site);

    oari_rpc_set_u32(to, MAGIC);
    to[4] = (unsigned char)head->kind;
    to[5] = (unsigned char)head->flags;
    to[6] = (unsigned char)name;
    to[7] = (unsigned char)site;
    oari_rpc_set_u64(to + 8, head->sequence);
    oari_rpc_set_u64(to + 16, head->call);
    oari_rpc_set_u64(to + 24, head->parent);
    oari_rpc_set_u64(to + 32, (uint64_t)head->left_ms);
    oari_rpc_set_u64(to + 40, head->value_bytes);
    oari_rpc_set_u64(to + 48, head->array_bytes);
    oari_rpc_set_u64(to + 56, head->reference);
    oari_rpc_set_u32(to + 64, head->arrays);
    oari_rpc_set_u32(to + 68, head->status);
    memcpy(to + OARI_RPC_HEAD, head->name, name);
    memcpy(to + OARI_RPC_HEAD + name, head->site, site);
    return OARI_RPC_HEAD + name + site;
}

/* Checks the fields against each other and the size of the message. */
static oar_status check_head(const oari_rpc_head *head, size_t bytes,
                             size_t behind)
{
    uint64_t wanted = behind + 8 * (uint64_t)head->arrays;
    int is_call = head->kind == OARI_RPC_CALL;

    if (head->kind < 1 || head->kind >= OARI_RPC_KIND_END)
        return oari_fail(OAR_E_DATA, "a message of kind %d, which is none",
                         (int)head->kind);
    if ((head->flags & ~(unsigned)(OARI_RPC_FAILED | OARI_RPC_APART |
                                   OARI_RPC_REMOTE | OARI_RPC_MAPPED)) != 0)
        return oari_fail(OAR_E_DATA, "a %s with unknown flags %#x",
                         oari_rpc_kind_name(head->kind), head->flags);
    if ((head->flags & OARI_RPC_REMOTE) != 0 &&
        (!is_call || head->reference == 0))
        return oari_fail(OAR_E_DATA, "a %s whose reply is to stay",
                         oari_rpc_kind_name(head->kind));
    if ((head->flags & OARI_RPC_FAILED) != 0 && head->kind != OARI_RPC_ANSWER &&
        head->kind != OARI_RPC_NOTED)
        return oari_fail(OAR_E_DATA, "a %s that says it failed",
                         oari_rpc_kind_name(head->kind));
    if (is_call != (head->name[0] != '\0'))
        return oari_fail(OAR_E_DATA, "a %s %s a name",
                         oari_rpc_kind_name(head->kind),
                         is_call ? "without" : "with");
    if (head->arrays > OARI_RPC_ARRAYS)
        return oari_fail(OAR_E_DATA, "%u arrays in a message, at most %d",
                         (unsigned)head->arrays, OARI_RPC_ARRAYS);
    if ((head->flags & OARI_RPC_APART) == 0)
        wanted += head->value_bytes;
    if (wanted != bytes)
        return oari_fail(OAR_E_DATA,
                         "a message of %zu bytes whose head says %llu", bytes,
                         (unsigned long long)wanted);
    return OAR_OK;
}

/* Copies a text of the head; returns 0 if it has a zero byte in it. */
static int take_text(char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    to[bytes] = '\0';
    return memchr(from, '\0', bytes) == NULL;
}

oar_status oari_rpc_read_head(const unsigned char *from, size_t bytes,
                              uint64_t most, oari_rpc_head *head,
                              size_t *behind)
{
    size_t name, site;

    if (bytes < OARI_RPC_HEAD)
        return oari_fail(OAR_E_DATA, "a message of %zu bytes has no whole head",
                         bytes);
    if (oari_rpc_u32(from) != MAGIC)
        return oari_fail(OAR_E_DATA, "a message that is none of RPC");
    head->life = 0;
    head->kind = (oari_rpc_kind)from[4];
    head->flags = from[5];
    name = from[6];
    site = from[7];
    head->sequence = oari_rpc_u64(from + 8);
    head->call = oari_rpc_u64(from + 16);
    head->parent = oari_rpc_u64(from + 24);
    head->left_ms = (int64_t)oari_rpc_u64(from + 32);
    head->value_bytes = oari_rpc_u64(from + 40);
    head->array_bytes = oari_rpc_u64(from + 48);
    head->reference = oari_rpc_u64(from + 56);
    head->arrays = oari_rpc_u32(from + 64);
    head->status = oari_rpc_u32(from + 68);
    if (name > OARI_RPC_NAME || site > OARI_RPC_SITE ||
        OARI_RPC_HEAD + name + site > bytes)
        return oari_fail(OAR_E_DATA,
                         "a name of %zu and a site of %zu bytes in "
                         "a message of %zu",
                         name, site, bytes);
    if (!take_text(head->name, from + OARI_RPC_HEAD, name) ||
        !take_text(head->site, from + OARI_RPC_HEAD + name, site))
        return oari_fail(OAR_E_DATA, "a zero byte in a name");
    if (head->value_bytes > most ||
        head->array_bytes > most - head->value_bytes)
        return oari_fail(OAR_E_SIZE,
                         "a message of %llu and %llu bytes is larger than the "
                         "%llu that are allowed",
                         (unsigned long long)head->value_bytes,
                         (unsigned long long)head->array_bytes,
                         (unsigned long long)most);
    OARI_TRY(check_head(head, bytes, OARI_RPC_HEAD + name + site));
    *behind = OARI_RPC_HEAD + name + site;
    return OAR_OK;
}

oar_status oari_rpc_read_table(const unsigned char *table,
                               const oari_rpc_head *head, uint64_t *array_bytes)
{
    uint64_t left = head->array_bytes;

    for (uint32_t i = 0; i < head->arrays; i++) {
        array_bytes[i] = oari_rpc_u64(table + 8 * (size_t)i);
        if (array_bytes[i] > left || array_bytes[i] == 0)
            return oari_fail(OAR_E_DATA,
                             "array %u of %llu bytes where %llu "
                             "are left",
                             (unsigned)i, (unsigned long long)array_bytes[i],
                             (unsigned long long)left);
        left -= array_bytes[i];
    }
    if (left > 0)
        return oari_fail(OAR_E_DATA, "%llu bytes that belong to no array",
                         (unsigned long long)left);
    return OAR_OK;
}

/* ---- values -------------------------------------------------------------- */

/* Finds how many bytes an array of that shape has. */
static oar_status find_array_bytes(const oar_shape *shape, size_t element,
                                   size_t *bytes)
{
    size_t total = element;

    for (int d = 0; d < shape->ndim; d++)
        if (shape->dim[d] < 0 ||
            __builtin_mul_overflow(total, (size_t)shape->dim[d], &total) ||
            total > SIZE_MAX / 2)
            return oari_fail(OAR_E_DATA, "an array of an impossible shape");
    *bytes = total;
    return OAR_OK;
}

/* Reads where an array lies in a window. */
static oar_status read_window(const unsigned char *values, size_t bytes,
                              size_t at, oari_rpc_value *v)
{
    if (bytes - at < OAR_WINDOW_TOKEN_BYTES + 8)
        return oari_fail(OAR_E_DATA, "an array that ends too early");
    if (values[at + OAR_WINDOW_TOKEN_BYTES - 1] != 0)
        return oari_fail(OAR_E_DATA, "a token of a window that does not end");
    v->token = (const char *)values + at;
    v->first = oari_rpc_u64(values + at + OAR_WINDOW_TOKEN_BYTES);
    v->next = at + OAR_WINDOW_TOKEN_BYTES + 8;
    return OAR_OK;
}

static oar_status read_array(const unsigned char *values, size_t bytes,
                             size_t at, oari_rpc_value *v)
{
    size_t begin;

    if (bytes - at < 3)
        return oari_fail(OAR_E_DATA, "an array that ends too early");
    if (values[at] >= OAR_DTYPE_COUNT_ALL || values[at + 1] > OAR_MAX_DIMS ||
        values[at + 2] > 2)
        return oari_fail(OAR_E_DATA, "an array of dtype %d with %d dims",
                         values[at], values[at + 1]);
    v->dtype = (oar_dtype)values[at];
    v->shape.ndim = values[at + 1];
    v->inside = values[at + 2] == 1;
    v->mapped = values[at + 2] == 2;
    at += 3;
    if ((bytes - at) / 8 < (size_t)v->shape.ndim)
        return oari_fail(OAR_E_DATA, "an array that ends too early");
    for (int d = 0; d < v->shape.ndim; d++, at += 8)
        v->shape.dim[d] = (int64_t)oari_rpc_u64(values + at);
    OARI_TRY(find_array_bytes(&v->shape, oar_dtype_size(v->dtype), &v->bytes));
    v->next = at;
    if (v->mapped)
        return read_window(values, bytes, at, v);
    if (!v->inside)
        return OAR_OK;
    begin = (at + OARI_RPC_ALIGN - 1) / OARI_RPC_ALIGN * OARI_RPC_ALIGN;
    if (begin > bytes || bytes - begin < v->bytes)
        return oari_fail(OAR_E_DATA, "an array of %zu bytes of which %zu came",
                         v->bytes, begin > bytes ? 0 : bytes - begin);
    v->data = values + begin;
    v->next = begin + v->bytes;
    return OAR_OK;
}

static oar_status read_string(const unsigned char *values, size_t bytes,
                              size_t at, oari_rpc_value *v)
{
    size_t head = v->type == OARI_RPC_TEXT ? 4 : 8;
    size_t zero = v->type == OARI_RPC_TEXT;
    uint64_t length;

    if (bytes - at < head)
        return oari_fail(OAR_E_DATA, "%s without a length",
                         oari_rpc_type_name(v->type));
    length = zero ? oari_rpc_u32(values + at) : oari_rpc_u64(values + at);
    at += head;
    if (length > bytes - at || bytes - at - length < zero)
        return oari_fail(OAR_E_DATA, "%s of %llu bytes of which %zu came",
                         oari_rpc_type_name(v->type),
                         (unsigned long long)length, bytes - at);
    v->data = values + at;
    v->bytes = (size_t)length;
    v->next = at + v->bytes + zero;
    if (zero && strnlen((const char *)v->data, v->bytes + 1) != v->bytes)
        return oari_fail(OAR_E_DATA,
                         "a text that does not end where it should");
    return OAR_OK;
}

oar_status oari_rpc_read_value(const unsigned char *values, size_t bytes,
                               size_t at, oari_rpc_value *value)
{
    oari_rpc_value v = { .type = (oari_rpc_type)values[at] };
    uint64_t number;

    at++;
    switch (v.type) {
    case OARI_RPC_I64:
    case OARI_RPC_F64:
        if (bytes - at < 8)
            return oari_fail(OAR_E_DATA, "%s of which %zu bytes came",
                             oari_rpc_type_name(v.type), bytes - at);
        number = oari_rpc_u64(values + at);
        memcpy(&v.i64, &number, sizeof number);
        memcpy(&v.f64, &number, sizeof number);
        v.next = at + 8;
        break;
    case OARI_RPC_TEXT:
    case OARI_RPC_BYTES: OARI_TRY(read_string(values, bytes, at, &v)); break;
    case OARI_RPC_ARRAY: OARI_TRY(read_array(values, bytes, at, &v)); break;
    case OARI_RPC_REF:
        if (bytes - at < 12 || oari_rpc_u32(values + at) > INT32_MAX)
            return oari_fail(OAR_E_DATA, "a reference that is none");
        v.owner = (int)oari_rpc_u32(values + at);
        v.id = oari_rpc_u64(values + at + 4);
        v.next = at + 12;
        break;
    default:
        return oari_fail(OAR_E_DATA, "a value of type %d, which is none",
                         (int)v.type);
    }
    *value = v;
    return OAR_OK;
}

oar_status oari_rpc_check_values(const unsigned char *values, size_t bytes,
                                 uint32_t arrays, const uint64_t *array_bytes)
{
    oari_rpc_value v;
    uint32_t seen = 0;

    for (size_t at = 0; at < bytes; at = v.next) {
        if ((values[at] == OARI_RPC_I64 || values[at] == OARI_RPC_F64) &&
            bytes - at >= 9) {
            v.next = at + 9; /* most are */
            continue;
        }
        OARI_TRY(oari_rpc_read_value(values, bytes, at, &v));
        if (v.type != OARI_RPC_ARRAY || v.inside)
            continue;
        if (seen == arrays || array_bytes[seen] != v.bytes)
            return oari_fail(
                OAR_E_DATA, "array %u has %zu bytes by its shape, %llu came",
                (unsigned)seen, v.bytes,
                (unsigned long long)(seen < arrays ? array_bytes[seen] : 0));
        seen++;
    }
    if (seen != arrays)
        return oari_fail(OAR_E_DATA, "%u arrays came with a message of %u",
                         (unsigned)arrays, (unsigned)seen);
    return OAR_OK;
}
