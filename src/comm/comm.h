/* SPDX-License-Identifier: Apache-2.0 */
/* comm/comm.h: what a group and an operation of it are made of. Every
 * folder of comm includes this; what each of them does is in its own header. */
#ifndef OARI_COMM_COMM_H
#define OARI_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/group.h>
#include <oarsong/p2p.h>

#include "backends/registry/registry.h"
#include "comm/exec/exec.h"
#include "comm/exec/foreign.h"
#include "link/link.h"
#include "link/match.h"
#include "record/account.h"
#include "record/recorder.h"

enum {
    OARI_DEFAULT_TIMEOUT_MS = 300000,
    OARI_DEFAULT_STALL_MS = 30000,
    OARI_DEFAULT_SPIN_NS = 50000 /* on a backend without a board */
};

/* One operation in flight. Two hold it: the caller's handle and the engine. */
struct oar_work {
    oar_group *group;
    oari_call call;
    uint64_t sequence;
    int64_t deadline_ns;    /* 0: not looked at yet */
    int64_t since_ns;       /* looked at for the first time */
    int64_t inquired_ns;    /* a message that did not fit: 0, or until when its
                               sender may say where it sent it */
    struct oari_lane *lane; /* of a collective under way */
    struct oar_work *next;
    oar_work *whole; /* it is a part of this one; NULL: it stands alone */
    void *then_arg;
    unsigned char warned;   /* that it stalls */
    unsigned char slow;     /* its deadline waits for the end of a scope */
    unsigned char put_off;  /* it has waited a little longer than it may */
    unsigned char on_stack; /* the caller waits; not touched once done */
    unsigned char mine;     /* and drives it itself: nobody else looks */
    unsigned char heavy;    /* posted: the engine's thread drives it at once */
    unsigned char more;     /* the next in the queue is of the same batch */
    unsigned char order_only; /* on a GPU: nobody waits longer than until it is
                                 ordered */
    oar_status status;        /* once done */
    oar_status failed;        /* of a whole: the first of its parts to fail */
    _Atomic(oar_work_fn) then;
    _Atomic int done;
    _Atomic int holders;
    _Atomic int parts;   /* of a whole: how many are not done */
    _Atomic int ordered; /* on a GPU: all of it is on a stream */

    /* Not set by oari_work_init, but where they are first used: */
    oar_transfer transfer; /* of a message that has been started */
    char sent[160];        /* what the sender said; once inquired_ns is set */
};

/* Sets all members but the last two: each by itself, because that takes less
 * time than to clear them in one go. tests/unit/work_test.c finds one that is
 * left out. */
static inline void oari_work_init(oar_work *work, oar_group *group,
                                  const oari_call *call)
{
    work->group = group;
    work->call = *call;
    work->sequence = 0;
    work->deadline_ns = work->since_ns = work->inquired_ns = 0;
    work->lane = NULL;
    work->next = work->whole = NULL;
    work->then_arg = NULL;
    work->warned = work->slow = work->put_off = 0;
    work->on_stack = work->mine = work->heavy = 0;
    work->more = work->order_only = 0;
    work->status = work->failed = OAR_OK;
    atomic_init(&work->then, NULL);
    atomic_init(&work->done, 0);
    atomic_init(&work->holders, 0);
    atomic_init(&work->parts, 0);
    atomic_init(&work->ordered, 0);
}

/* A place for one collective under way. Over a board there is one, because
 * meetings have one order; over messages several, told apart by their numbers.
 */
typedef struct oari_lane {
    oari_exec exec;
    oar_work *work; /* NULL: free */
} oari_lane;

enum { OARI_LANES = 8, OARI_GPU_LANES = 128 };

/* Who drives, and what is to be driven. See engine.c. */
typedef struct oari_engine {
    const struct oari_engine_events *events; /* engine.h */
    _Atomic int token;                       /* 1: somebody drives */
    _Atomic int waiters;                     /* users that want to */
    _Atomic int posted; /* operations queued, or taken from the queue and not
                            done */
    _Atomic int heavy;  /* of those posted: worth the engine's thread */
    _Atomic int queued; /* of those posted: not begun */
    _Atomic unsigned driven; /* how often users have driven and left */
    _Atomic int parked;      /* the engine's thread sleeps until it is told */
    pthread_mutex_t lock;
    pthread_cond_t changed;   /* for users that wait for the token */
    pthread_cond_t roused;    /* for the engine's thread */
    oar_work *first, *last;   /* collectives queued; under lock */
    oar_work *fresh;          /* messages queued; under lock, newest first */
    oari_lane *lane;          /* the driver's: collectives under way */
    int host_lanes;           /* the first; the others are for device memory */
    int lanes, busy;          /* how many, and in use */
    int on_gpu;               /* lanes for device memory in use */
    int gpu_looks;            /* at events, left in this round */
    int gpu_turn, gpu_missed; /* the lane that comes first in this round, and
                                 in the next */
    _Atomic int watched;      /* of those posted: on a stream by now */
    _Atomic int watching;     /* the engine's thread naps between two looks */
    int alone;                /* the one under way, or next, is a barrier */
    int cancel_state;         /* the driver's: before it took the token */
    int64_t until_ns;         /* the driver's: how long it waits */
    uint64_t number;          /* of the collective started last */
    oari_told_parts parts;    /* of the last one that has some */
    oari_history history;     /* the driver's */
    struct oari_dispute *dispute; /* the driver's; NULL: none can be held */
    int halted;   /* the driver's: a dispute goes on; collectives stand still */
    int restless; /* the driver's: who waits must not sleep for long */
    oar_work *message; /* the driver's: messages under way */
    struct {           /* the driver's: the newest probe that did not wait */
        uint64_t sequence;
        int peer;
        int64_t tag;
    } polled;
    pthread_t thread;
    _Atomic int has_thread; /* stays so */
    int stop;               /* under lock */
} oari_engine;

/* Calls collected between oar_batch_begin and _end. Those two guard it: only
 * the thread that opened it touches it. Others look whose it is, even while it
 * changes hands: it is never theirs. */
typedef struct oari_batch {
    _Atomic int taken, open;
    _Atomic pthread_t owner;
    oar_work *first, *last;
    int count;
} oari_batch;

/* How many groups were made of one list of ranks. */
typedef struct oari_subset {
    struct oari_subset *next;
    uint64_t hash, made;
} oari_subset;

struct oar_group {
    int rank, ranks;
    unsigned generation; /* of fork */
    char *name;
    int64_t timeout_ms;
    const oar_backend_ops *backend; /* its links */
    const oari_backend *in_tree;    /* the same, if it is of this tree; never
                                       NULL once it is opened */
    void *self;
    int opened;
    oari_foreign foreign;
    oari_foreign gpu;    /* for device memory (gpu.c) */
    oari_foreign hosted; /* the same through the host, where allowed */
    int device;          /* this rank's GPU */
    int bare;            /* no way through the host */
    char *backend_name;  /* as the user thinks of it */
    oari_board *board;   /* NULL: none */
    int64_t spin_ns;     /* before a waiter yields */
    int spare;           /* every rank here has a core besides its own */
    oari_recorder *recorder;
    _Atomic uint64_t sequence;
    _Atomic int broken; /* OARI_FAULT_* */
    oari_fault fault;
    uint32_t can; /* OAR_CAN_ bits of who carries messages */
    oari_rules rules;
    oari_engine engine;
    oari_batch batch;

    /* for groups made of this one */
    oar_store *store;          /* a reference; NULL: none */
    const char *store_address; /* its server's; NULL: none */
    oar_group_opts settings;   /* every default filled in, rank 0's where it
                                counts; without name and backend */
    char *algorithm;           /* what settings point to; NULL: not ours */
    uint64_t splits;
    oari_subset *subsets;
    int *in_world; /* by rank: the rank in the first group; NULL: this is
                      it */
    unsigned char *missing; /* while it is made: as in oari_open */
    uint64_t world_key;     /* the same in all groups of one world, in here */
    uint64_t watched;       /* monitored barriers so far */
    struct oar_group *kin;  /* the next of this process; see kin.h */
    int has_kin;            /* it is in that list */
    oar_timeout_scope *scopes;          /* of mine; under the engine's lock */
    struct oari_far_scopes *far_scopes; /* the driver's; NULL: nobody is far */
    uint32_t shrinks;                   /* calls of oar_group_shrink so far */
    uint32_t shrunk; /* what the last of them came to (council.h) */
};

static inline int oari_group_broken(const oar_group *group)
{
    /* a load that acquires waits for the stores before it */
    return atomic_load_explicit(&group->broken, memory_order_relaxed) ==
               OARI_FAULT_READY &&
           atomic_load_explicit(&group->broken, memory_order_acquire) ==
               OARI_FAULT_READY;
}

/* What the user asked for: the foreign engine, or else the backend. */
static inline const oar_backend_ops *oari_group_asked(const oar_group *group)
{
    return group->foreign.ops != NULL ? group->foreign.ops : group->backend;
}

/* The backend's name, as the user thinks of it. */
static inline const char *oari_group_backend_name(const oar_group *group)
{
    return group->backend_name != NULL ? group->backend_name
                                       : oari_group_asked(group)->name;
}

/* The recorder of a rank, if it is mapped here, or NULL. */
static inline const void *oari_group_recorder(const oar_group *group, int rank)
{
    const oari_board *board = group->board;
    int here = board != NULL ? oari_board_rank(board, rank) : -1;

    if (rank == group->rank)
        return oari_recorder_base(group->recorder);
    return here >= 0 ? board->recorder[here] : NULL;
}

/* Whether it carries messages; and who does. */
static inline int oari_foreign_carries(const oar_group *group)
{
    return group->foreign.ops != NULL && group->foreign.ops->send != NULL;
}
static inline const oar_backend_ops *oari_carrier(const oar_group *group)
{
    return oari_foreign_carries(group) ? group->foreign.ops : group->backend;
}
static inline void *oari_carrier_self(const oar_group *group)
{
    return oari_foreign_carries(group) ? group->foreign.self : group->self;
}

#endif
