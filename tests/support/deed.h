/* SPDX-License-Identifier: Apache-2.0 */
/* support/deed.h: one collective, or messages around a ring, with everything
 * about it that can vary: kind, algorithm, count and memory. The list has every
 * plan there is over shared memory; the fault tests do something unkind at each
 * step of each. */
#ifndef TESTS_SUPPORT_DEED_H
#define TESTS_SUPPORT_DEED_H

#include <oarsong/backend.h>
#include <oarsong/collective.h>

#include "comm/exec/exec.h"

typedef enum deed_memory {
    DEED_PRIVATE,
    DEED_SHARED,
    DEED_MIXED /* private on rank 0, shared on the others */
} deed_memory;

typedef struct deed {
    const char *name;
    oar_coll kind;         /* OAR_COLL_SEND: a ring of messages */
    const char *algorithm; /* forced; NULL: chosen */
    size_t count;          /* of f32; of a part, where there are parts */
    deed_memory memory;
    int apart;     /* all_reduce: out of place */
    int weighted;  /* all_reduce: the mean, by weights that are equal */
    int last_root; /* where there is one: the last rank, not the first */
} deed;

/* Ends with a NULL name. */
extern const deed deed_list[];

/* What a rank does it with. */
typedef struct deed_hands {
    const deed *deed;
    int rank, ranks, shared;
    float *in, *out; /* one memory in broadcast, and in all_reduce unless
                        apart */
    size_t in_count, out_count;
    const char *file; /* the call site to name; NULL: where it really is */
    int line;
} deed_hands;

/* The group's options that the list was made for: lines of 512 bytes, chunks
 * of 4 KiB. Sets OARSONG_ALGO, so call it before the group is made. */
oar_group_opts deed_opts(const deed *d, int64_t timeout_ms);

/* Buffers with this rank's values in them. */
oar_status deed_take(deed_hands *h, const deed *d, int rank, int ranks);
void deed_fill(deed_hands *h);
void deed_drop(deed_hands *h);

oar_status deed_run(deed_hands *h, oar_group *group, int64_t timeout_ms);

/* Whether the result is what it must be. */
int deed_right(const deed_hands *h);

/* ---- steps: for oari_exec_hook ------------------------------------------- */

/* Calls fn(arg) before step number `step` (from 0, as this rank comes to them)
 * of the next deed that the calling thread drives; -1: only counts. */
void deed_watch(int step, void (*fn)(void *arg), void *arg);
/* The same when that step has been looked at `visits` times and is not done:
 * while it waits, or in the middle of a large message. If it is done before, at
 * the next step. */
void deed_watch_wait(int step, int visits, void (*fn)(void *arg), void *arg);
/* Steps of that deed so far, its END included. */
int deed_steps(void);

#endif
