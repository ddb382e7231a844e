/* SPDX-License-Identifier: Apache-2.0 */
/* record/operation.h: one operation as it is recorded: what it is, in which
 * form, and where it was called. */
#ifndef OARI_RECORD_OPERATION_H
#define OARI_RECORD_OPERATION_H

#include <oarsong/span.h>

typedef struct oari_operation {
    oar_coll kind;
    oar_op_kind op;
    oar_dtype dtype;
    int root;          /* or the peer of a message; -1: none, or any */
    uint64_t count;    /* elements, as its user thinks of them */
    uint64_t tag;      /* of a message */
    const char *label; /* may be NULL */
    const char *file;  /* one pointer for each name (base/call_site.h) */
    int line;
    unsigned char ragged;    /* the form in _v */
    unsigned char is_object; /* the form in _bytes */
} oari_operation;

/* How a call is made, beyond its kind. */
enum {
    OARI_FORM_PARTS = 1,     /* the form in _v */
    OARI_FORM_OBJECT = 2,    /* the form in _bytes */
    OARI_FORM_CANONICAL = 4, /* in the order of ranks */
    OARI_FORM_DEVICE = 8,    /* on device memory */
    OARI_FORM_MONITORED = 16 /* a monitored barrier */
};

static inline int oari_kind_reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

/* Writes "file:line" with the folders cut off. */
void oari_site_text(const char *file, int line, char *text, size_t bytes);

#endif
