/* SPDX-License-Identifier: Apache-2.0 */
/* comm/call.h: one operation as the user asked for it, checked. Everything
 * below the public calls is handed this. */
#ifndef OARI_COMM_CALL_H
#define OARI_COMM_CALL_H

#include <oarsong/backend.h>
#include <oarsong/collective.h>

typedef struct oari_call {
    oar_coll kind;
    oar_span in;
    oar_span out;
    oar_op op;
    int root; /* or the peer of a message; -1: none */
    uint32_t tag;
    double weight;      /* factor of this rank's contribution */
    int64_t timeout_ms; /* 0: the group's; below 0: none */
    const char *label;  /* may be NULL */
    const char *file;
    int line;
} oari_call;

/* What all ranks must agree on, in one word. */
static inline uint64_t oari_call_fingerprint(const oari_call *call)
{
    uint64_t word = (uint64_t)call->kind | (uint64_t)call->op.kind << 8 |
                    (uint64_t)call->out.dtype << 16 |
                    (uint64_t)(uint32_t)(call->root + 1) << 32;

    word = (word + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    word ^= (uint64_t)call->out.count * 0x94d049bb133111ebu;
    return word ^ word >> 29;
}

static inline size_t oari_call_bytes(const oari_call *call)
{
    return call->out.count * oar_dtype_size(call->out.dtype);
}

/* Writes "file:line" with the folders cut off. */
void oari_site_text(const char *file, int line, char *text, size_t bytes);

#endif
