/* SPDX-License-Identifier: Apache-2.0 */
/* store_wire: one table says which fields each message has; reading and writing
 * walk it. All numbers are little-endian. A field of bytes is its length in
 * four bytes and then the bytes.
 *
 *   d  id, 8 bytes             k  key, 1 to 200 bytes, none of them 0
 *   m  method, 4               p  prefix, the same or empty
 *   f  flag, 4                 a  key or empty: the list goes on behind it
 *   i  amount, 8, signed       v  value, up to 1 MiB
 *   n  number of keys, 4,      e  expected value, up to 1 MiB
 *      and the keys            t  text, up to 511; c, w  up to 64
 */
#include "store/store_wire.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

static const unsigned char magic[4] = { 'O', 'A', 'R', 'S' };

static const struct {
    int kind;
    const char *request, *reply;
} formats[] = {
#define X(name, number, request, reply) { number, request, reply },
    OARI_WIRE_LIST(X)
#undef X
};

/* Returns the letters of the message's fields; NULL: there is no such kind. */
static const char *fields_of(const oari_wire_header *head)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (head->kind == formats[i].kind)
            return formats[i].request;
        if (head->kind == (formats[i].kind | OARI_WIRE_REPLY))
            return head->status == OAR_OK ? formats[i].reply : "ft";
    }
    return NULL;
}

/* Returns where in a message the bytes of a field are, and gives how many there
 * may be. NULL: the field is a number, or keys. */
static oari_bytes *bytes_of(oari_wire_message *m, char field, size_t *least,
                            size_t *most)
{
    *least = field == 'k';
    switch (field) {
    case 'k':
    case 'p': *most = OAR_STORE_KEY_MAX; return &m->key;
    case 'a': *most = OAR_STORE_KEY_MAX; return &m->after;
    case 'v': *most = OAR_STORE_VALUE_MAX; return &m->value;
    case 'e': *most = OAR_STORE_VALUE_MAX; return &m->expected;
    case 't': *most = OARI_WIRE_TEXT_MAX; return &m->value;
    case 'c': *most = OARI_WIRE_PROOF_MAX; return &m->expected;
    case 'w': *most = OARI_WIRE_PROOF_MAX; return &m->value;
    default: return NULL;
    }
}

/* ---- reading ------------------------------------------------------------- */

typedef struct cursor {
    const unsigned char *at;
    size_t left;
} cursor;

static uint64_t read_number(const unsigned char *at, int bytes)
{
    uint64_t n = 0;

    while (bytes-- > 0)
        n = n << 8 | at[bytes];
    return n;
}

static oar_status fail_short(void)
{
    return oari_fail(OAR_E_DATA, "a store message ends in the middle");
}

static oar_status take_number(cursor *c, int bytes, uint64_t *number)
{
    if (c->left < (size_t)bytes)
        return fail_short();
    *number = read_number(c->at, bytes);
    c->at += bytes;
    c->left -= (size_t)bytes;
    return OAR_OK;
}

static oar_status take_bytes(cursor *c, size_t least, size_t most,
                             oari_bytes *bytes)
{
    uint64_t count = 0;

    OARI_TRY(take_number(c, 4, &count));
    if (count < least || count > most)
        return oari_fail(OAR_E_DATA,
                         "a field of %llu bytes in a store message: %zu to %zu "
                         "are allowed",
                         (unsigned long long)count, least, most);
    if (c->left < count)
        return fail_short();
    *bytes = (oari_bytes){ c->at, count };
    c->at += count;
    c->left -= count;
    return OAR_OK;
}

static oar_status check_zero_free(oari_bytes key)
{
    if (key.bytes != 0 && memchr(key.data, 0, key.bytes) != NULL)
        return oari_fail(OAR_E_DATA, "a store key with a zero byte in it");
    return OAR_OK;
}

static oar_status take_field(cursor *c, char field, oari_wire_message *m)
{
    size_t least, most;
    oari_bytes *into = bytes_of(m, field, &least, &most), key;
    uint64_t n = 0;

    if (into != NULL) {
        OARI_TRY(take_bytes(c, least, most, into));
        return strchr("kpa", field) != NULL ? check_zero_free(*into) : OAR_OK;
    }
    OARI_TRY(take_number(c, field == 'd' || field == 'i' ? 8 : 4, &n));
    switch (field) {
    case 'd': m->id = n; return OAR_OK;
    case 'i': m->amount = (int64_t)n; return OAR_OK;
    case 'm': m->method = (uint32_t)n; return OAR_OK;
    case 'f': m->flag = (uint32_t)n; return OAR_OK;
    default: break;
    }
    if (n > OARI_WIRE_KEYS_MAX)
        return oari_fail(OAR_E_DATA, "a store message with %llu keys",
                         (unsigned long long)n);
    m->count = (uint32_t)n;
    m->keys.data = c->at;
    for (uint32_t i = 0; i < m->count; i++) {
        OARI_TRY(take_bytes(c, 1, OAR_STORE_KEY_MAX, &key));
        OARI_TRY(check_zero_free(key));
    }
    m->keys.bytes = (size_t)(c->at - (const unsigned char *)m->keys.data);
    return OAR_OK;
}

int oari_wire_plausible(const unsigned char *bytes, size_t count)
{
    return memcmp(bytes, magic, count < 4 ? count : 4) == 0;
}

oar_status
oari_wire_read_header(const unsigned char bytes[OARI_WIRE_HEADER_BYTES],
                      oari_wire_header *head)
{
    memset(head, 0, sizeof *head);
    if (!oari_wire_plausible(bytes, 4))
        return oari_fail(OAR_E_DATA, "these bytes are not a store message");
    head->version = bytes[4];
    if (head->version != OARI_WIRE_VERSION)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a store message of version %d: this is version %d",
                         head->version, OARI_WIRE_VERSION);
    head->kind = bytes[5];
    head->status = (oar_status)read_number(bytes + 6, 2);
    head->bytes = (uint32_t)read_number(bytes + 8, 4);
    head->number = read_number(bytes + 16, 8);
    if (fields_of(head) == NULL || read_number(bytes + 12, 4) != 0 ||
        head->status > OAR_E_INTERNAL ||
        (head->kind < OARI_WIRE_REPLY && head->status != OAR_OK))
        return oari_fail(OAR_E_DATA, "a store message of kind %d", head->kind);
    if (head->bytes > OARI_WIRE_BODY_MAX)
        return oari_fail(OAR_E_DATA, "a store message of %u bytes",
                         head->bytes);
    return OAR_OK;
}

oar_status oari_wire_read(const oari_wire_header *head,
                          const unsigned char *body, oari_wire_message *message)
{
    cursor c = { body, head->bytes };

    memset(message, 0, sizeof *message);
    message->head = *head;
    for (const char *f = fields_of(head); *f != 0; f++)
        OARI_TRY(take_field(&c, *f, message));
    if (c.left != 0)
        return oari_fail(OAR_E_DATA, "%zu bytes too many in a store message",
                         c.left);
    return OAR_OK;
}

oari_bytes oari_wire_next_key(const oari_wire_message *message, size_t *at)
{
    const unsigned char *keys = message->keys.data;
    oari_bytes key = { keys + *at + 4, read_number(keys + *at, 4) };

    *at += 4 + key.bytes;
    return key;
}

/* ---- writing ------------------------------------------------------------- */

static unsigned char *put_number(unsigned char *at, uint64_t n, int bytes)
{
    for (; bytes > 0; bytes--, n >>= 8)
        *at++ = (unsigned char)n;
    return at;
}

static unsigned char *put_bytes(unsigned char *at, oari_bytes bytes)
{
    at = put_number(at, bytes.bytes, 4);
    if (bytes.bytes != 0)
        memcpy(at, bytes.data, bytes.bytes);
    return at + bytes.bytes;
}

size_t oari_wire_put_key(unsigned char *at, const char *key)
{
    return (size_t)(put_bytes(at, (oari_bytes){ key, strlen(key) }) - at);
}

size_t oari_wire_bytes(const oari_wire_message *message)
{
    oari_wire_message m = *message;
    size_t bytes = OARI_WIRE_HEADER_BYTES, least, most;

    for (const char *f = fields_of(&m.head); *f != 0; f++) {
        const oari_bytes *from = bytes_of(&m, *f, &least, &most);

        if (from != NULL)
            bytes += 4 + from->bytes;
        else if (*f == 'n')
            bytes += 4 + m.keys.bytes;
        else
            bytes += *f == 'd' || *f == 'i' ? 8 : 4;
    }
    return bytes;
}

static unsigned char *put_field(unsigned char *at, char field,
                                oari_wire_message *m)
{
    size_t least, most;
    oari_bytes *from = bytes_of(m, field, &least, &most);

    if (from != NULL)
        return put_bytes(at, *from);
    switch (field) {
    case 'd': return put_number(at, m->id, 8);
    case 'i': return put_number(at, (uint64_t)m->amount, 8);
    case 'm': return put_number(at, m->method, 4);
    case 'f': return put_number(at, m->flag, 4);
    default:
        at = put_number(at, m->count, 4);
        if (m->keys.bytes != 0)
            memcpy(at, m->keys.data, m->keys.bytes);
        return at + m->keys.bytes;
    }
}

void oari_wire_write(const oari_wire_message *message, unsigned char *frame)
{
    oari_wire_message m = *message;
    unsigned char *at = frame;

    memcpy(at, magic, sizeof magic);
    at[4] = OARI_WIRE_VERSION;
    at[5] = (unsigned char)m.head.kind;
    at = put_number(at + 6, (uint64_t)m.head.status, 2);
    at = put_number(at, oari_wire_bytes(message) - OARI_WIRE_HEADER_BYTES, 4);
    at = put_number(at, 0, 4);
    at = put_number(at, m.head.number, 8);
    for (const char *f = fields_of(&m.head); *f != 0; f++)
        at = put_field(at, *f, &m);
}

oar_status oari_wire_frame(const oari_wire_message *message,
                           unsigned char **frame, size_t *bytes)
{
    size_t size = oari_wire_bytes(message);
    unsigned char *made = oari_alloc(size, 1);

    if (made == NULL)
        return OAR_E_NOMEM;
    oari_wire_write(message, made);
    *frame = made;
    *bytes = size;
    return OAR_OK;
}
