/* SPDX-License-Identifier: Apache-2.0 */
/* record/operation.h: an operation as it is recorded: what it is, in which
 * form, and where it was called. */
#ifndef OARI_RECORD_OPERATION_H
#define OARI_RECORD_OPERATION_H

#include <oarsong/span.h>

typedef struct oari_operation {
    oar_coll kind;
    oar_reduce_op_kind op;
    oar_dtype dtype;
    int root;          /* or the peer of a message; -1: none, or any */
    uint64_t count;    /* elements, as the caller counts them */
    uint64_t tag;      /* of a message */
    const char *label; /* may be NULL */
    const char *file;  /* one pointer for each name (base/call_site.h) */
    int line;
    unsigned char ragged;    /* the form in _v */
    unsigned char is_object; /* the form in _bytes */
} oari_operation;

/* A call of RPC is recorded as a receive with this tag: its count is the time
 * it has, in milliseconds (0: no end), and its label is the function's name,
 * perhaps with OARI_CALL_BY and that of the function which makes the call. */
#define OARI_CALL_TAG ((uint64_t)1 << 62)
#define OARI_CALL_BY  " <- "

/* The form of a call, beyond its kind: eight bits. */
enum {
    OARI_FORM_PARTS = 1,      /* the form in _v */
    OARI_FORM_OBJECT = 2,     /* the form in _bytes */
    OARI_FORM_CANONICAL = 4,  /* in the order of ranks */
    OARI_FORM_DEVICE = 8,     /* on device memory */
    OARI_FORM_MONITORED = 16, /* a monitored barrier */
    OARI_FORM_KEY = 32,       /* with a key (oar_call_opts) */
    OARI_FORM_FROM_F16 = 64,  /* a narrower input: of f16 ... */
    OARI_FORM_FROM_BF16 = 128 /* ... or bf16 */
};

static inline int oari_kind_reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

/* Writes "file:line" with the folders cut off. */
void oari_site_text(const char *file, int line, char *text, size_t bytes);

/* A text that is made piece by piece. What does not fit is cut off. */
typedef struct oari_text_line {
    char *text;
    size_t room, used;
} oari_text_line;
void oari_text_add(oari_text_line *to, const char *format, ...)
    OAR_PRINTF(2, 3);

#endif
