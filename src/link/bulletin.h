/* SPDX-License-Identifier: Apache-2.0 */
/* link/bulletin.h: the small facts that a rank shows its peers.
 *
 * A bulletin has a slot of fixed size for each fact of one rank. In shared
 * memory each rank writes its own bulletin, in its control page, and the others
 * read it there. Over TCP a rank sends a fact in a BULLETIN frame when it has
 * changed, and each receiver keeps a bulletin of the same form for that rank.
 *
 * A slot is a sequence lock with two copies: a write goes to the copy that is
 * not shown, and the new sequence number shows it. A rank that stops in the
 * middle of a write leaves its last complete value readable, and no reader ever
 * waits for a writer. */
#ifndef OARI_LINK_BULLETIN_H
#define OARI_LINK_BULLETIN_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "net/frame.h"

enum {
    OARI_BALLOT_BYTES = 256,                     /* comm/group/membership.h */
    OARI_SCOPE_BYTES = 64,                       /* comm/fault/presence.h */
    OARI_FACT_WORDS = (OARI_FAULT_BYTES + 7) / 8 /* of the largest */
};

/* name, bytes. The numbers travel in frames. */
#define OARI_FACT_LIST(X)                      \
    X(OARI_FACT_FAULT, OARI_FAULT_BYTES)       \
    X(OARI_FACT_FINAL_FAULT, OARI_FAULT_BYTES) \
    X(OARI_FACT_BALLOT, OARI_BALLOT_BYTES)     \
    X(OARI_FACT_TIMEOUT_SCOPE, OARI_SCOPE_BYTES)

typedef enum oari_fact {
#define X(name, bytes) name,
    OARI_FACT_LIST(X)
#undef X
        OARI_FACTS
} oari_fact;

typedef struct oari_fact_slot {
    _Atomic uint64_t claimed;  /* by the one writer of a fact that is written
                                  once */
    _Atomic uint64_t sequence; /* counts writes; 0: nothing is shown */
    _Atomic uint64_t word[2][OARI_FACT_WORDS]; /* copy sequence % 2 is shown */
} oari_fact_slot;

typedef struct oari_bulletin {
    oari_fact_slot slot[OARI_FACTS];
} oari_bulletin;

/* Returns the bytes of a fact; 0: there is no such fact. */
size_t oari_fact_bytes(uint64_t fact);

/* Shows a fact in place of what was shown before. One thread at a time. */
void oari_bulletin_write(oari_bulletin *bulletin, oari_fact fact,
                         const void *data);

/* Shows a fact for good, unless a thread has done that before: then returns 0.
 * Any thread. */
int oari_bulletin_write_once(oari_bulletin *bulletin, oari_fact fact,
                             const void *data);

/* Copies the newest complete value of a fact. Returns 0 if there is none. Any
 * thread. */
int oari_bulletin_read(const oari_bulletin *bulletin, oari_fact fact,
                       void *data);

/* Returns whether a fact is shown; what it says is read by the call above. */
static inline int oari_bulletin_has(const oari_bulletin *bulletin,
                                    oari_fact fact)
{
    return atomic_load_explicit(&bulletin->slot[fact].sequence,
                                memory_order_acquire) != 0;
}

/* The same for facts that are faults, which a bulletin holds encoded. */
int oari_bulletin_write_fault(oari_bulletin *bulletin, oari_fact fact,
                              const oari_fault *fault); /* once */
int oari_bulletin_read_fault(const oari_bulletin *bulletin, oari_fact fact,
                             oari_fault *fault);

#endif
