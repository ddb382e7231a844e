/* SPDX-License-Identifier: Apache-2.0 */
/* support/operation_case.h: one collective, or messages around a ring, with
 * everything about it that can vary: kind, algorithm, count and memory. The
 * list has every plan there is over shared memory; the fault tests stop or kill
 * a rank at each step of each. */
#ifndef TESTS_SUPPORT_OPERATION_CASE_H
#define TESTS_SUPPORT_OPERATION_CASE_H

#include <oarsong/backend.h>
#include <oarsong/collective.h>

#include "comm/exec/exec.h"

typedef enum operation_memory {
    OPERATION_PRIVATE,
    OPERATION_SHARED,
    OPERATION_MIXED /* private on rank 0, shared on the others */
} operation_memory;

typedef struct operation_case {
    const char *name;
    oar_coll kind;         /* OAR_COLL_SEND: a ring of messages */
    const char *algorithm; /* forced; NULL: chosen */
    size_t count;          /* of f32; of a part, where there are parts */
    operation_memory memory;
    int apart;     /* all_reduce: out of place */
    int fetched;   /* private memory is copied from process to process */
    int weighted;  /* all_reduce: the mean, by weights that are equal */
    int last_root; /* where there is one: the last rank, not the first */
} operation_case;

/* Every case; the last has a NULL name. */
extern const operation_case operation_cases[];

/* Whether a test of every step takes this case: with three ranks only every
 * third, unless OARSONG_TEST_ALL is set. */
int operation_is_chosen(const operation_case *d, int ranks);

/* A rank's buffers for one operation. */
typedef struct operation_buffers {
    const operation_case *operation;
    int rank, ranks, shared;
    float *in, *out; /* one memory in broadcast, and in all_reduce unless
                        apart */
    size_t in_count, out_count;
    const char *file; /* the call site to name; NULL: where it really is */
    int line;
} operation_buffers;

/* Returns the group options that the list was made for: slots of 512 bytes,
 * chunks of 4 KiB. Sets OARSONG_ALGO, so call it before the group is made. */
oar_group_opts operation_opts(const operation_case *d, int64_t timeout_ms);

/* Allocates the buffers and fills them with this rank's values. */
oar_status operation_buffers_alloc(operation_buffers *h,
                                   const operation_case *d, int rank,
                                   int ranks);
void operation_buffers_fill(operation_buffers *h);
void operation_buffers_free(operation_buffers *h);

oar_status operation_run(operation_buffers *h, oar_group *group,
                         int64_t timeout_ms);

/* Returns whether the output is what it must be. */
int operation_result_is_right(const operation_buffers *h);

/* ---- steps: for oari_exec_hook ------------------------------------------- */

/* Calls fn(arg) before step number `step` (from 0, in this rank's order) of the
 * next operation that the calling thread drives; -1: only counts steps. */
void step_hook_set(int step, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) when that step has been polled `visits` times and is not done:
 * while it waits, or in the middle of a large message. If the step is done
 * before that, at the next step. */
void step_hook_set_waiting(int step, int visits, void (*fn)(void *arg),
                           void *arg);
/* Returns the number of steps of that operation so far, its END included. */
int step_hook_count(void);

#endif
