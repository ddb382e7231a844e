/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec/call.h: one operation as the user asked for it, checked. All layers
 * below the public calls get this. */
#ifndef OARI_COMM_EXEC_CALL_H
#define OARI_COMM_EXEC_CALL_H

#include <oarsong/backend.h>
#include <oarsong/p2p.h>

#include "base/dtype.h"
#include "record/operation.h"

/* Where a result goes whose size is not known when the call begins. */
typedef struct oari_object {
    void **data;   /* the block, from oari_alloc */
    size_t *sizes; /* all_gather, gather: one a rank; else one */
} oari_object;

typedef struct oari_call {
    oar_coll kind;
    oar_span in; /* the whole row where it has parts */
    oar_span out;
    const size_t *in_counts; /* of the parts, by rank; NULL: all the same, or */
    const size_t *out_counts; /* there are none. The work's own copies. */
    uint64_t agreed; /* what all ranks must have alike besides the rest: a
                        count, or a hash of all counts */
    uint64_t key;    /* oar_call_opts.key */
    oar_reduce_op op;
    int root;           /* or the peer of a message; -1: none, or any */
    int64_t tag;        /* -1: any */
    uint64_t wire_tag;  /* a message of the library itself; 0: the user */
    double weight;      /* factor of this rank's contribution */
    int64_t timeout_ms; /* 0: the group's; below 0: none */
    const char *label;  /* may be NULL; the caller's, or the work's copy */
    const char *file;   /* a copy that stays (base/call_site.h) */
    int line;
    unsigned char ragged;      /* parts of any size */
    unsigned char canonical;   /* combine in the order of ranks */
    unsigned char synchronous; /* a send that waits for its receive */
    unsigned char at_most;     /* a receive of a message that may be smaller */
    unsigned char prepared;    /* does not begin until it is told to */
    unsigned char is_object;   /* bytes whose number is not known; u8 */
    unsigned char awaited; /* its caller works for the engine (run_inline.c) */
    unsigned char monitored;   /* by monitored_barrier.c: never begun */
    oari_object object;        /* its result; .data == NULL: none for me */
    struct oari_external *gpu; /* device memory: its engine; NULL: host */
    int device;                /* which GPU */
    void *stream;              /* the caller's */
    void *ready, *finished;    /* events: see oar_collective */
    oar_message *message;      /* of a receive; NULL: not wanted */
} oari_call;

static inline int oari_on_device(const oari_call *call)
{
    return call->in.device.kind != OAR_CPU || call->out.device.kind != OAR_CPU;
}

/* Returns the dtype of what is combined: the input's. */
static inline oar_dtype oari_call_input_dtype(const oari_call *call)
{
    return call->kind == OAR_COLL_REDUCE_SCATTER ? call->in.dtype
                                                 : call->out.dtype;
}

/* Returns whether the output is wider than the input: a reduce_scatter of half
 * types into f32. */
static inline int oari_call_widens(const oari_call *call)
{
    return oari_call_input_dtype(call) != call->out.dtype;
}

static inline uint32_t oari_call_form(const oari_call *call)
{
    return (call->ragged ? OARI_FORM_PARTS : 0u) |
           (call->is_object ? OARI_FORM_OBJECT : 0u) |
           (oari_on_device(call) ? OARI_FORM_DEVICE : 0u) |
           (call->monitored ? OARI_FORM_MONITORED : 0u) |
           (call->key != 0 ? OARI_FORM_KEY : 0u) |
           (!oari_call_widens(call)     ? 0u
            : call->in.dtype == OAR_F16 ? OARI_FORM_FROM_F16
                                        : OARI_FORM_FROM_BF16) |
           (call->canonical && oari_kind_reduces(call->kind)
                ? OARI_FORM_CANONICAL
                : 0u);
}

/* Returns what a plan depends on, in one word: all that ranks must agree on but
 * the key. */
static inline uint64_t oari_call_shape(const oari_call *call)
{
    uint64_t word = (uint64_t)call->kind | (uint64_t)call->op.kind << 8 |
                    (uint64_t)call->out.dtype << 16 |
                    (uint64_t)oari_call_form(call) << 24 |
                    (uint64_t)(uint32_t)(call->root + 1) << 32;

    word = (word + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    word ^= call->agreed * 0x94d049bb133111ebu;
    return word ^ word >> 29;
}

/* Returns what all ranks must agree on, in one word. */
static inline uint64_t oari_call_fingerprint(const oari_call *call)
{
    uint64_t key = call->key * 0xd6e8feb86659fd93u;

    return oari_call_shape(call) ^ key ^ key >> 29;
}

/* Returns the call as an engine gets it. */
static inline oar_collective oari_call_for_engine(const oari_call *call)
{
    return (oar_collective){ .size = sizeof(oar_collective),
                             .kind = call->kind,
                             .in = call->in,
                             .out = call->out,
                             .in_counts = call->in_counts,
                             .out_counts = call->out_counts,
                             .op = call->op,
                             .root = call->root,
                             .weight = call->weight,
                             .ragged = call->ragged,
                             .awaited = call->awaited,
                             .tag = call->tag,
                             .stream = call->stream,
                             .ready = call->ready,
                             .finished = call->finished,
                             .canonical = call->canonical };
}

/* Returns the count of a call as its user thinks of it: that of one rank's part
 * if there are parts. */
static inline size_t oari_call_count(const oari_call *call)
{
    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER: return call->out.count;
    default: return call->in.count;
    }
}

/* Returns the bytes of the larger of the two buffers. */
static inline size_t oari_call_bytes(const oari_call *call)
{
    size_t in = oari_span_bytes(&call->in), out = oari_span_bytes(&call->out);

    return in > out ? in : out;
}

/* Returns the call as it is recorded. */
static inline oari_operation oari_call_operation(const oari_call *call)
{
    return (oari_operation){
        .kind = call->kind,
        .op = call->op.kind,
        .dtype = call->out.dtype,
        .root = call->root,
        .count = oari_call_count(call),
        .tag = call->wire_tag != 0 ? call->wire_tag : (uint64_t)call->tag,
        .label = call->label,
        .file = call->file,
        .line = call->line,
        .ragged = call->ragged,
        .is_object = call->is_object,
    };
}

#endif
