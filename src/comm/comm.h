/* SPDX-License-Identifier: Apache-2.0 */
/* comm/comm.h: what a group, its engine and its operations are made of. Every
 * folder of comm includes this header; what each of them does is in its own.
 *
 * "The driver's" marks what belongs to the thread that holds the engine's token
 * (engine.c): no other thread reads or writes it. */
#ifndef OARI_COMM_COMM_H
#define OARI_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/group.h>
#include <oarsong/p2p.h>

#include "backends/registry/registry.h"
#include "comm/exec/exec.h"
#include "comm/exec/external.h"
#include "link/link.h"
#include "link/match.h"
#include "record/op_report.h"
#include "record/recorder.h"

enum {
    OARI_DEFAULT_TIMEOUT_MS = 300000,
    OARI_DEFAULT_STALL_MS = 30000,
    OARI_DEFAULT_SPIN_NS = 50000 /* on a backend without shared memory */
};

/* ---- an operation -------------------------------------------------------- */

/* One operation in flight. It has two holders: the caller's handle and the
 * engine. A whole is the handle of several operations, its parts. */
struct oar_work {
    oar_group *group;
    oari_call call;
    _Atomic uint64_t sequence; /* its number on this rank; a work that starts
                                  again gets another, maybe while one waits */
    int64_t deadline_ns;       /* 0: the driver has not looked at it yet */
    int64_t since_ns;          /* when the driver looked at it first */
    int64_t inquired_ns;    /* of a message that did not fit: 0, or until when
                               its sender may answer where it sent it */
    struct oari_lane *lane; /* of a collective under way */
    struct oar_work *next;  /* in a queue, a batch or a list of messages */
    oar_work *whole;        /* the whole that it is a part of, or NULL */
    void *then_arg;         /* of `then` */
    oar_error *error;       /* why it failed alone; NULL: it did not, or there
                               was no memory to say */
    unsigned char warned;   /* it was logged that it stalls */
    unsigned char slow;     /* its deadline waits for the end of a scope */
    unsigned char put_off;  /* its deadline was put off once */
    unsigned char on_stack; /* the caller waits; not touched once done */
    unsigned char mine;     /* the caller drives it; no other thread sees it */
    unsigned char heavy;    /* posted: worth waking the engine's thread */
    unsigned char more;     /* the next in the queue is of the same batch */
    unsigned char order_only; /* on a GPU: its caller waits only until it is
                                 ordered */
    int alone;                /* it has failed, and nothing else (alone.h) */
    int again;                /* its function has started it again */
    oar_status status;        /* once done */
    oar_status failed; /* of a whole: the status of the first that failed */
    _Atomic(oar_work_fn) then; /* runs when it ends (oar_work_then) */
    _Atomic int done;
    _Atomic int holders;
    _Atomic int parts;   /* of a whole: how many are not done */
    _Atomic int ordered; /* on a GPU: all of it is on a stream */

    /* Not set by oari_work_init, but where they are first used: */
    oar_transfer transfer; /* of a message that has been started */
    char sent[160];        /* the sender's answer, once inquired_ns is set */
    size_t room;           /* bytes behind it */
};

/* Sets all members but the last three, one by one: that takes less time than to
 * clear the whole struct. tests/unit/work_init_test.c finds a member that is
 * left out. */
static inline void oari_work_init(oar_work *work, oar_group *group,
                                  const oari_call *call)
{
    work->group = group;
    work->call = *call;
    atomic_init(&work->sequence, 0);
    work->deadline_ns = work->since_ns = work->inquired_ns = 0;
    work->lane = NULL;
    work->next = work->whole = NULL;
    work->then_arg = NULL;
    work->error = NULL;
    work->warned = work->slow = work->put_off = 0;
    work->on_stack = work->mine = work->heavy = 0;
    work->alone = work->again = 0;
    work->more = work->order_only = 0;
    work->status = work->failed = OAR_OK;
    atomic_init(&work->then, NULL);
    atomic_init(&work->done, 0);
    atomic_init(&work->holders, 0);
    atomic_init(&work->parts, 0);
    atomic_init(&work->ordered, 0);
}

/* ---- the engine ---------------------------------------------------------- */

/* A place for one collective under way. Over shared memory there is one lane,
 * because collectives meet there in one order; over messages there are several,
 * whose collectives are told apart by their numbers. Operations on device
 * memory have lanes of their own. */
typedef struct oari_lane {
    oari_exec exec;
    oar_work *work; /* NULL: free */
} oari_lane;

enum { OARI_LANES = 8, OARI_GPU_LANES = 128 };

/* Which thread drives, and what is to be driven. See engine.c. */
typedef struct oari_engine {
    const struct oari_engine_events *events; /* engine.h */

    /* the token, and counts that any thread may read */
    _Atomic int token;   /* 1: a thread drives */
    _Atomic int waiters; /* users that wait for the token */
    _Atomic int posted;  /* operations queued or under way, but not those that
                            their caller drives (mine) */
    _Atomic int heavy;   /* of those posted: worth waking the engine's thread */
    _Atomic int queued;  /* of those posted: not begun */
    _Atomic unsigned driven; /* how often users have driven and left */
    _Atomic int parked;      /* the engine's thread sleeps until it is woken */
    _Atomic int dozing;      /* it sleeps on the links, without the token:
                                engine.h */
    _Atomic int driver_sleeps; /* what drives is asleep: engine.h */

    /* queues, under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for users that wait for the token */
    pthread_cond_t roused;  /* for the engine's thread */
    oar_work *first, *last; /* collectives */
    oar_work *fresh;        /* messages, newest first */

    /* works that ended, for the next ones, under spare_lock */
    pthread_mutex_t spare_lock;
    oar_work *spare;
    int spares;

    /* the driver's: collectives under way */
    oari_lane *lane;
    int host_lanes;           /* the first of them; the others are for GPUs */
    int lanes, busy;          /* how many, and how many are in use */
    int on_gpu;               /* lanes for device memory in use */
    int gpu_looks;            /* at events, left in this round */
    int gpu_turn, gpu_missed; /* the lane that comes first in this round, and
                                 in the next */
    _Atomic int watched;      /* of those posted: on a stream by now */
    _Atomic int watching;     /* the engine's thread naps between two looks */

    /* the driver's */
    int alone;               /* the one under way, or next, is a barrier */
    int cancel_state;        /* of the driver before it took the token */
    int64_t until_ns;        /* how long the driver waits */
    uint64_t number;         /* of the collective started last */
    oari_report_parts parts; /* of the last collective that has some */
    oari_history history;
    struct oari_mismatch *mismatch; /* NULL: mismatches cannot be explained */
    int halted;        /* a mismatch is open; collectives stand still */
    int restless;      /* a thread that waits must not sleep for long */
    int quiet;         /* no other rank has to be asked what it does */
    unsigned rounds;   /* in which something moved, of a loose group */
    int useless_spins; /* grows with waits that outlasted spinning (drive.c) */
    int64_t contested_until_ns; /* others want the core */
    int64_t spent_ns;           /* on spinning where others want it, */
    uint64_t paid;         /* less what collectives up to this one earned */
    int impatient;         /* all was spent: it does not spin on */
    unsigned direct_sends; /* tried without the driver (direct.c) */
    oar_work *message;     /* messages under way */
    int unfinished;        /* a look has ended one of them, or posted another */
    int standing; /* of those posted: no operation, but a watch for ranks
                          that go; until the group has ended */
    struct {      /* the newest probe that did not wait */
        uint64_t sequence;
        int peer;
        int64_t tag;
    } polled;

    pthread_t thread;
    int doze_fd;            /* wakes it while it dozes */
    _Atomic int has_thread; /* stays so */
    int stop;               /* under lock */
} oari_engine;

/* ---- a group ------------------------------------------------------------- */

/* Calls collected between oar_batch_begin and oar_batch_end. Only the thread
 * that opened the batch touches it. Other threads only look whose it is, even
 * while it changes hands: it is never theirs. */
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
    unsigned generation; /* of fork, when it was made */
    char *name;
    int64_t timeout_ms;

    /* what carries its operations */
    const oar_backend_ops *backend; /* its links */
    const oari_backend *in_tree; /* the links, as a backend of this tree; never
                                    NULL once they are opened */
    void *self;                  /* of the links */
    int opened;                  /* the links */
    oari_external external;      /* engine for host memory */
    oari_external gpu;           /* engine for device memory */
    oari_external hosted; /* device memory through the host, where allowed */
    int device;           /* this rank's GPU */
    int bare;             /* device memory must not go through the host */
    char *backend_name;   /* as the user knows it; NULL: the engine's */
    oari_shm *shm;        /* NULL: none */
    int64_t spin_ns;      /* before a waiter yields */
    int spare;            /* every rank here has a core besides its own */
    int patient;          /* callers wait longer before they sleep */

    /* its operations, and how it ended */
    oari_recorder *recorder;
    _Atomic uint64_t sequence; /* of the operation posted last */
    _Atomic int broken;        /* OARI_FAULT_* */
    oari_fault fault;          /* once broken */
    uint32_t can;              /* OAR_CAN_ bits of what carries its messages */
    int loose;                 /* messages fail alone (alone.h) */
    struct oari_gone_watch *watch; /* oar_group_on_gone; NULL: none */
    struct {                       /* active/active.h; the driver's */
        void (*fn)(void *arg, int source, const unsigned char *data,
                   size_t bytes); /* NULL: none */
        void *arg;
        oari_match *match;
    } active;
    oari_rules rules;
    oari_engine engine;
    oari_batch batch;

    /* for groups made of this one */
    oar_store *store;          /* a reference; NULL: none */
    const char *store_address; /* of its server; NULL: none */
    oar_group_opts settings;   /* every default filled in, rank 0's where all
                                  must agree; without name and backend */
    char *algorithm;           /* what settings point to; NULL: none */
    char *secret;              /* likewise */
    uint64_t splits;           /* calls of oar_group_split so far */
    oari_subset *subsets;
    int *in_world; /* by rank: the rank in the first group; NULL: this is the
                      first */
    unsigned char *missing; /* while it is made: as in oari_open */
    uint64_t world_key;     /* the same in all groups of one world, in here */
    struct oar_group *next_sibling;  /* siblings.h */
    struct oar_group **sibling_link; /* what points to this one */
    int has_siblings;                /* it is in that list */

    oar_timeout_scope *scopes;          /* this rank's; under engine.lock */
    struct oari_far_scopes *far_scopes; /* the driver's; NULL: no rank is far */
    uint32_t shrinks;                   /* calls of oar_group_shrink so far */
    uint32_t
        shrunk; /* hash of what the last of them agreed on (membership.h) */
};

/* Returns whether the group has ended; then `fault` says why. */
static inline int oari_group_broken(const oar_group *group)
{
    /* relaxed first: a load that acquires waits for the stores before it */
    return atomic_load_explicit(&group->broken, memory_order_relaxed) ==
               OARI_FAULT_READY &&
           atomic_load_explicit(&group->broken, memory_order_acquire) ==
               OARI_FAULT_READY;
}

/* Returns what the user asked for: the external engine, or else the backend. */
static inline const oar_backend_ops *oari_group_asked(const oar_group *group)
{
    return group->external.ops != NULL ? group->external.ops : group->backend;
}

/* Returns the backend's name, as the user knows it. */
static inline const char *oari_group_backend_name(const oar_group *group)
{
    return group->backend_name != NULL ? group->backend_name
                                       : oari_group_asked(group)->name;
}

/* Returns the recorder of a rank if it is mapped here, or NULL. */
static inline const void *oari_group_recorder(const oar_group *group, int rank)
{
    const oari_shm *shm = group->shm;
    int here = shm != NULL ? oari_shm_rank(shm, rank) : -1;

    if (rank == group->rank)
        return oari_recorder_base(group->recorder);
    return here >= 0 ? shm->recorder[here] : NULL;
}

/* Returns whether the external engine carries messages. */
static inline int oari_external_carries(const oar_group *group)
{
    return group->external.ops != NULL && group->external.ops->send != NULL;
}

/* Returns what carries messages: the external engine, or the links. */
static inline const oar_backend_ops *oari_carrier(const oar_group *group)
{
    return oari_external_carries(group) ? group->external.ops : group->backend;
}

/* Returns the self of what carries messages. */
static inline void *oari_carrier_self(const oar_group *group)
{
    return oari_external_carries(group) ? group->external.self : group->self;
}

#endif
