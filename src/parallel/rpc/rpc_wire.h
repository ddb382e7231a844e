/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_wire.h: the bytes that agents send each other. The only
 * reader and writer of heads and values; pure, and fuzzed.
 *
 * One message of a call is a head of OARI_RPC_HEAD bytes, the name of a
 * function, the caller's file:line, a table with the bytes of each attached
 * array (8 bytes each), and the values. Values that make it longer than
 * OARI_RPC_EAGER follow by themselves, before the arrays. All numbers are
 * little-endian.
 *
 *      0 u32 magic    4 u8 kind   5 u8 flags   6 u8 name bytes  7 u8 site bytes
 *      8 u64 number of the message in its pair, from 1
 *     16 u64 call    24 u64 parent call       32 i64 ms left; below 0: no end
 *     40 u64 bytes of the values              48 u64 bytes of all arrays
 *     56 u64 reference                        64 u32 arrays   68 u32 status
 *
 * status is, of a call, the parts of a reply that the caller takes ahead, or
 * its lease if the reply stays; of a credit the parts that were taken, and
 * reference their bytes. Of messages about references, call is a lease
 * (rpc_lease.c).
 *
 * A value is a type (u8) and, by type: i64 and f64 8 bytes; text u32 and bytes
 * u64 length, then that many and, of a text, a zero; a reference u32 owner, u64
 * id; an array u8 dtype, u8 dims, u8 inside, i64 for each dim, and then
 *   inside 1: zeros up to a multiple of 16 from the beginning of the values,
 *             and its numbers;
 *   inside 0: nothing, it is the next of the attached arrays;
 *   inside 2: the token of a window, with zeros to OAR_WINDOW_TOKEN_BYTES, and
 *             u64 where in it the array begins. It is attached, too, unless
 *             the message is mapped. */
#ifndef OARI_PARALLEL_RPC_RPC_WIRE_H
#define OARI_PARALLEL_RPC_RPC_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <oarsong/tensor.h>

enum {
    OARI_RPC_HEAD = 72,
    OARI_RPC_EAGER = 32768, /* bytes of the first message at most */
    OARI_RPC_NAME = 200,    /* bytes of a name */
    OARI_RPC_SITE = 95,
    OARI_RPC_ARRAYS = 1024, /* attached to one message */
    OARI_RPC_INSIDE = 4096, /* arrays up to here lie among the values */
    OARI_RPC_ALIGN = 16
};

#define OARI_RPC_KIND_LIST(X)            \
    X(OARI_RPC_CALL, 1, "call")          \
    X(OARI_RPC_ANSWER, 2, "answer")      \
    X(OARI_RPC_CANCEL, 3, "cancel")      \
    X(OARI_RPC_LEAVING, 4, "leaving")    \
    X(OARI_RPC_HOLD, 5, "hold")          \
    X(OARI_RPC_NOTED, 6, "noted")        \
    X(OARI_RPC_HELD, 7, "held")          \
    X(OARI_RPC_DROP, 8, "drop")          \
    X(OARI_RPC_PART, 9, "part")          \
    X(OARI_RPC_CREDIT, 10, "credit")     \
    X(OARI_RPC_RETURNED, 11, "returned") \
    X(OARI_RPC_RENEW, 12, "renew")       \
    X(OARI_RPC_LAPSED, 13, "lapsed")

typedef enum oari_rpc_kind {
    OARI_RPC_KIND_LIST(OAR_ENUM_ROW) OARI_RPC_KIND_END
} oari_rpc_kind;

enum {
    OARI_RPC_FAILED = 1, /* an answer: the values are an oar_error */
    OARI_RPC_APART = 2,  /* the values follow by themselves */
    OARI_RPC_REMOTE = 4, /* a call: its reply stays, as the head's reference */
    OARI_RPC_MAPPED = 8  /* arrays that lie in windows are not attached */
};

typedef struct oari_rpc_head {
    oari_rpc_kind kind;
    unsigned flags;
    uint64_t sequence, call, parent, reference;
    int64_t left_ms;
    uint64_t value_bytes, array_bytes;
    uint32_t arrays, status;
    int life; /* of the rank that it goes to (rpc_rejoin.c); not sent */
    char name[OARI_RPC_NAME + 1], site[OARI_RPC_SITE + 1];
} oari_rpc_head;

typedef enum oari_rpc_type {
    OARI_RPC_I64 = 1,
    OARI_RPC_F64,
    OARI_RPC_TEXT,
    OARI_RPC_BYTES,
    OARI_RPC_ARRAY,
    OARI_RPC_REF,
    OARI_RPC_TYPE_END
} oari_rpc_type;

/* One value as it lies in the values' memory. */
typedef struct oari_rpc_value {
    oari_rpc_type type;
    int64_t i64;
    double f64;
    const unsigned char *data; /* text, bytes, an array that lies inside */
    size_t bytes;              /* of data, or of the attached array */
    oar_dtype dtype;
    oar_shape shape;
    int inside;
    int mapped;        /* it has: */
    const char *token; /* of a window, with a zero behind it */
    uint64_t first;    /* byte of the window */
    int owner;         /* of a reference */
    uint64_t id;
    size_t next; /* where the value after it begins */
} oari_rpc_value;

/* Writes a head with its name and site; the table and the values come behind.
 * Returns how many bytes were written: at most OARI_RPC_HEAD + OARI_RPC_NAME +
 * OARI_RPC_SITE. */
size_t oari_rpc_write_head(unsigned char *to, const oari_rpc_head *head);

/* Reads a head of a message of that many bytes, and checks everything in it
 * that can be checked without memory: *behind is where the table begins. After
 * a failure *head is not to be used.
 * OAR_E_DATA names what is wrong; OAR_E_SIZE: values and arrays of more than
 * `most` bytes. */
oar_status oari_rpc_read_head(const unsigned char *from, size_t bytes,
                              uint64_t most, oari_rpc_head *head,
                              size_t *behind);

/* Reads the table behind a head that was checked: the bytes of each array.
 * OAR_E_DATA if they are not together what the head says. */
oar_status oari_rpc_read_table(const unsigned char *table,
                               const oari_rpc_head *head,
                               uint64_t *array_bytes);

/* Reads the value at `at`, which must be below `bytes`. OAR_E_DATA if it is not
 * a value, or not all of it is there. */
oar_status oari_rpc_read_value(const unsigned char *values, size_t bytes,
                               size_t at, oari_rpc_value *value);

/* Checks that the bytes are values from beginning to end, and that their
 * arrays are as large as those attached. */
oar_status oari_rpc_check_values(const unsigned char *values, size_t bytes,
                                 uint32_t arrays, const uint64_t *array_bytes);

/* "call"; "an i64": for texts. */
const char *oari_rpc_kind_name(oari_rpc_kind kind);
const char *oari_rpc_type_name(oari_rpc_type type);

/* Numbers in little-endian order. */
void oari_rpc_set_u32(unsigned char *to, uint32_t value);
void oari_rpc_set_u64(unsigned char *to, uint64_t value);
uint32_t oari_rpc_u32(const unsigned char *from);
uint64_t oari_rpc_u64(const unsigned char *from);

#endif
