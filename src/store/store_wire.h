/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_wire.h: the TCP store's protocol, which docs/formats.md
 * describes: frames to messages and back. Nothing here allocates what a peer
 * announces, or reads past the bytes it was given. */
#ifndef OARI_STORE_STORE_WIRE_H
#define OARI_STORE_STORE_WIRE_H

#include "store/store.h"

enum {
    OARI_WIRE_VERSION = 1,
    OARI_WIRE_HEADER_BYTES = 24, /* bytes of the header, before the body */
    OARI_WIRE_HANDSHAKE_MAX =
        256, /* bytes of a body before the peer has proved itself */
    OARI_WIRE_BODY_MAX = 2 * OAR_STORE_VALUE_MAX + 1024,
    OARI_WIRE_PROOF_MAX = 64,
    OARI_WIRE_TEXT_MAX = 511,
    OARI_WIRE_KEYS_MAX = 4096, /* of one message */
    OARI_WIRE_REPLY = 0x80     /* added to the kind */
};

/* Kinds of messages: name, number, fields of the request, fields of the reply.
 * A field is a letter, see store_wire.c. A reply with a failure has "ft". */
#define OARI_WIRE_LIST(X)           \
    X(HELLO, 1, "dmcw", "dmcw")     \
    X(PROOF, 2, "w", "")            \
    X(SET, 16, "kv", "")            \
    X(GET, 17, "ik", "v")           \
    X(ADD, 18, "ik", "i")           \
    X(COMPARE_SET, 19, "fkev", "f") \
    X(DELETE, 20, "k", "")          \
    X(WAIT, 21, "in", "")           \
    X(LIST, 22, "pa", "fn")         \
    X(CLEAR, 23, "p", "")

typedef enum oari_wire_kind {
#define X(name, number, request, reply) OARI_WIRE_##name = number,
    OARI_WIRE_LIST(X)
#undef X
} oari_wire_kind;

typedef struct oari_wire_header {
    int version;
    int kind;          /* with OARI_WIRE_REPLY in replies */
    oar_status status; /* of a reply */
    uint32_t bytes;    /* of the body */
    uint64_t number;   /* of the request */
} oari_wire_header;

/* One message. Which members are set depends on the kind; bytes are borrowed
 * from the frame. */
typedef struct oari_wire_message {
    oari_wire_header head;
    uint64_t id;         /* d: of the client or server that sends this */
    uint32_t method;     /* m: of authentication */
    uint32_t flag;       /* f */
    int64_t amount;      /* i: timeout in ms, number to add, sum */
    oari_bytes key;      /* k, p */
    oari_bytes value;    /* v, t, w */
    oari_bytes expected; /* e, c */
    oari_bytes after;    /* a */
    uint32_t count;      /* n: number of keys */
    oari_bytes keys;     /* n: as they lie in the frame */
} oari_wire_message;

/* Returns whether a frame can begin with these bytes, at most
 * OARI_WIRE_HEADER_BYTES.
 */
int oari_wire_plausible(const unsigned char *bytes, size_t count);

/* Reads a header. OAR_E_DATA: this is not a frame of this protocol.
 * OAR_E_UNSUPPORTED: it is of another version; only head->version is set. */
oar_status
oari_wire_read_header(const unsigned char bytes[OARI_WIRE_HEADER_BYTES],
                      oari_wire_header *head);

/* Reads a body of head->bytes into a message. OAR_E_DATA says what is wrong. */
oar_status oari_wire_read(const oari_wire_header *head,
                          const unsigned char *body,
                          oari_wire_message *message);

/* Returns how many bytes the message's frame has. The message must be one that
 * can be read back. */
size_t oari_wire_bytes(const oari_wire_message *message);

/* Writes the frame into memory of oari_wire_bytes. */
void oari_wire_write(const oari_wire_message *message, unsigned char *frame);

/* Gives the frame in memory of its own (oari_free it). */
oar_status oari_wire_frame(const oari_wire_message *message,
                           unsigned char **frame, size_t *bytes);

/* Returns the next key of message->keys, which oari_wire_read has checked. *at
 * begins as 0. */
oari_bytes oari_wire_next_key(const oari_wire_message *message, size_t *at);

/* Writes a key in the form of message->keys; returns the bytes it takes. */
size_t oari_wire_put_key(unsigned char *at, const char *key);

#endif
