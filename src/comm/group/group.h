/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/group.h: a group from the inside: its backend, its engine, its
 * fault. */
#ifndef OARI_COMM_GROUP_GROUP_H
#define OARI_COMM_GROUP_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <oarsong/group.h>
#include <oarsong/p2p.h>

#include "record/account.h"
#include "comm/exec/exec.h"
#include "comm/engine/foreign.h"
#include "link/link.h"
#include "link/match.h"
#include "backends/registry/registry.h"
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
    int64_t deadline_ns; /* 0: not looked at yet */
    int64_t since_ns;    /* looked at for the first time */
    int warned;          /* that it stalls */
    int slow;            /* its deadline waits for the end of a scope */
    int put_off;         /* it has waited a little longer than it may */
    _Atomic int done;
    _Atomic int holders;
    oar_status status; /* once done */
    int on_stack;      /* the caller waits; not touched once done */
    int mine;          /* and drives it itself: nobody else looks */
    int heavy;         /* posted: the engine's thread drives it at once */
    _Atomic(oar_work_fn) then;
    void *then_arg;
    oar_work *whole;       /* it is a part of this one; NULL: it stands alone */
    _Atomic int parts;     /* of a whole: how many are not done */
    oar_status failed;     /* of a whole: the first of its parts to fail */
    int order_only;        /* on a GPU: nobody waits longer than until it is
                              ordered */
    _Atomic int ordered;   /* on a GPU: all of it is on a stream */
    int more;              /* the next in the queue is of the same batch */
    oar_transfer transfer; /* of a message */
    struct oari_lane *lane; /* of a collective under way */
    struct oar_work *next;
    int64_t inquired_ns; /* a message that did not fit: 0, or until when its
                            sender may say where it sent it */
    char sent[160];      /* what it said; not set while inquired_ns is 0 */
};

/* Sets every member: the group, the call, and the rest, also what is added to
 * it, to zero. Only `sent`, which hardly any operation needs, is left as it is.
 */
static inline void oari_work_init(oar_work *work, oar_group *group,
                                  const oari_call *call)
{
    size_t rest = offsetof(oar_work, call) + sizeof *call;

    work->group = group;
    work->call = *call;
    memset((char *)work + rest, 0, offsetof(oar_work, sent) - rest);
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
    _Atomic int token;   /* 1: somebody drives */
    _Atomic int waiters; /* users that want to */
    _Atomic int posted;  /* operations queued, or taken from the queue and not
                            done */
    _Atomic int heavy;   /* of those posted: worth the engine's thread */
    _Atomic int queued;  /* of those posted: not begun */
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
    oar_work *message;            /* the driver's: messages under way */
    struct { /* the driver's: the newest probe that did not wait */
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

/* ---- engine.c ------------------------------------------------------------ */

oar_status oari_engine_init(oari_engine *engine);
/* Ends the thread and every operation left, with the group's fault. */
void oari_engine_close(oar_group *group);

/* Runs the operation, or several messages at once, to the end. The works may be
 * on the caller's stack. */
void oari_engine_run(oar_group *group, int count, oar_work *work);
/* Makes sure that what is queued goes on by itself. */
oar_status oari_engine_start(oar_group *group);
/* Several, linked by next, at one go. Begins what is light. */
void oari_engine_enqueue(oar_group *group, oar_work *work);
/* The same with one, which the caller drives itself. */
void oari_engine_queue(oar_group *group, oar_work *work);
/* Drives until it is done, or the time is up: 0. */
int oari_engine_wait(oar_group *group, oar_work *work, int64_t until_ns);
/* Drives for a moment, if nobody does. */
void oari_engine_nudge(oar_group *group);
/* Whether such a message waits (oar_backend_ops.peek), after a look around. */
int oari_engine_peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found);
/* The same for a probe, which is not queued: if it can only wait for ranks that
 * are gone, that ends the group, and that it stalls is said once. */
int oari_engine_probe(oar_group *group, oar_work *probe, oar_envelope *found);
/* The same for one that does not wait; recorded with those like it that came
 * just before. */
int oari_engine_poll(oar_group *group, oar_work *probe, oar_envelope *found);
/* Makes whoever sleeps look again. Any thread. */
void oari_engine_wake(oar_group *group);
/* Waits for the token, drives for a moment, and keeps it: what is the driver's
 * may be used until it is let go. */
void oari_engine_hold(oar_group *group);
/* The same, if it is to be had in time: 1. */
int oari_engine_hold_by(oar_group *group, int64_t deadline_ns);
/* The same without driving, if nobody has it: 1. */
int oari_engine_try_hold(oar_group *group);
void oari_engine_let_go(oar_group *group);

/* ---- group.c ------------------------------------------------------------- */

/* Options with every default filled in, from the environment and our own. */
oar_status oari_group_settings(const oar_group_opts *opts,
                               oar_group_opts *full);

/* Names the algorithm by a copy of text (NULL: none), which *algorithm owns. */
oar_status oari_settings_own(const char *text, oar_group_opts *settings,
                             char **algorithm);

/* Puts rank 0's in place of those on which all ranks must agree, and fills in
 * the rules. */
oar_status oari_settings_agree(oar_store *store, const char *name, int rank,
                               int ranks, int64_t meet_ms,
                               oar_group_opts *settings, char **algorithm,
                               oari_rules *rules);
/* Whether there can be such a rank of such a group. */
oar_status oari_group_check_world(int rank, int size);

/* Makes a group over backends, with settings as above. meet_ms: for the ranks
 * to meet. world: sim's, else NULL. */
oar_status oari_group_open(const oari_choice *choice,
                           const oar_backend_env *env,
                           const oar_group_opts *settings, int64_t meet_ms,
                           struct oari_world *world, oar_group **group);

/* Opens the way for device memory through the host, if the group may use it;
 * and the same as the last step of making a group, which is gone if it fails.
 */
oar_status oari_hosted_open(oar_group *group);
oar_status oari_group_complete(oar_group *made, oar_group **group);

/* Makes a group of these ranks of the parent (member, ascending, mine among
 * them), which all of them call with the same. own: what its name adds to the
 * parent's. store: where they meet; NULL: the parent's. meet_ms: the time for
 * it. */
typedef struct oari_kin {
    const char *own;
    const int *member;
    int count;
    oar_store *store;
    int64_t meet_ms;
    void **split; /* as in oari_choice */
    int bare;     /* without a way for device memory */
} oari_kin;
oar_status oari_group_child(oar_group *parent, const oari_kin *kin,
                            oar_group **group);

/* Says whose ranks the group's are: member, by rank: in parent. */
oar_status oari_group_place(oar_group *group, const oar_group *parent,
                            const int *member);

/* OAR_OK, or OAR_E_STATE in a child of the process that made the group. */
oar_status oari_group_owned(const oar_group *group);

/* OAR_OK, or why nothing can be done with it (as the last error). */
oar_status oari_group_check(const oar_group *group);

/* Ends the group with this thread's last error, unless it has ended; work, if
 * any, says in which operation. The group is broken when this returns, even if
 * another thread's fault came first and is only being written: what has failed
 * must not be driven on. */
void oari_group_break(oar_group *group, const oar_work *work, int peer);
/* The same with a fault that a peer has told, or that the ranks found together.
 */
void oari_group_adopt(oar_group *group, const oari_fault *fault);

static inline int oari_group_broken(const oar_group *group)
{
    /* a load that acquires waits for the stores before it */
    return atomic_load_explicit(&group->broken, memory_order_relaxed) ==
               OARI_FAULT_READY &&
           atomic_load_explicit(&group->broken, memory_order_acquire) ==
               OARI_FAULT_READY;
}

/* Adds to the text of a fault which group it is about, and who the rank and the
 * peer (below 0: none) are in the first group; nothing if it is that one. */
void oari_fault_place(const oar_group *group, int rank, int peer,
                      oar_error *fault);

/* What the user asked for: the foreign engine, or else the backend. */
static inline const oar_backend_ops *oari_group_asked(const oar_group *group)
{
    return group->foreign.ops != NULL ? group->foreign.ops : group->backend;
}

/* The recorder of a rank, if it is mapped here, or NULL. */
const void *oari_group_recorder(const oar_group *group, int rank);

/* A fault that a peer has published, or NULL. Any thread. */
const oari_fault *oari_group_published(const oar_group *group);
/* 0, or how a rank is gone (board.h). The driver's. */
int oari_group_gone(const oar_group *group, int rank);

/* ---- foreign.c ----------------------------------------------------------- */

oar_status oari_foreign_open(oar_group *group, oari_foreign *foreign,
                             const oari_open *with);
void oari_foreign_close(oari_foreign *foreign);

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

/* Moves it on. What is left when this returns is the links' turn: 1: now. */
int oari_foreign_drive(oar_group *group);
/* oari_group_gone beside an engine; gone: what the links say. */
int oari_foreign_gone(const oar_group *group, int rank, int gone);
/* How long to spin beside it; ns: without it. */
int64_t oari_foreign_spin(const oar_group *group, int64_t ns);
/* It has failed, as the last error says. Nothing ends yet: the links may come
 * to know that a peer is gone, or does something else, which is the cause. */
void oari_foreign_fail(oar_group *group, oari_foreign *foreign);
/* Ends the group if it has failed and nobody knew better for long enough. */
void oari_foreign_look(oar_group *group);
/* Whether what an engine calls done must not be handed out: because a peer has
 * given up, or may have. */
int oari_foreign_too_late(oar_group *group, const oar_work *work);
void oari_foreign_abort(oar_group *group);
/* Sleeps until it, or the links, have something new, at most until then. */
void oari_foreign_sleep(oar_group *group, int64_t idle_ns, int64_t deadline_ns);

/* ---- lend.c -------------------------------------------------------------- */

/* Whether a caller that waits can work for the engine. The driver's. */
int oari_lends(oar_group *group);
/* It does. Without the token; returns when the engine has nothing for it. */
void oari_lend(oar_group *group);
/* Nobody looks any more. */
void oari_lend_end(oari_foreign *foreign);

/* ---- gpu.c --------------------------------------------------------------- */

/* Opens what the choice says for device memory; the group is ready but for
 * that. */
oar_status oari_gpu_open(oar_group *group, const oari_choice *choice,
                         const oar_group_opts *settings, int64_t meet_ms);

/* Whether device memory may go through the host. */
int oari_group_goes_through_host(const oar_group *group);

/* Which engine fits the GPUs of the ranks: all ranks call it, and all get the
 * same. (hybrid.c) */
oar_status oari_hybrid_settle(oar_group *group, int64_t meet_ms,
                              const oar_backend_ops **ops);

/* The engine's self if it is this group's for device memory; else NULL. */
void *oari_group_gpu(const oar_group *group, const oar_backend_ops *ops);

/* Who does it, and whether its memory is what it says. */
oar_status oari_gpu_check(oar_group *group, oari_call *call);
/* Begins one: from now on what is on the stream is before it. */
oar_status oari_gpu_mark(oar_work *work);
/* What comes on the stream from now on waits for it; it is ordered. */
oar_status oari_gpu_follow(const oar_work *work, void *stream);
/* Gives back what it needed. */
void oari_gpu_unmark(oar_work *work);
/* Before the group goes: waits for what its callers think is done. */
void oari_gpu_await(oar_group *group);
/* Whether it has run. */
int oari_gpu_finished(const oar_work *work);

/* ---- scope.c ------------------------------------------------------------- */

struct oari_scope;
void oari_scope_mine(const oar_group *group, struct oari_scope *scope);
void oari_scope_drop(oar_group *group);

/* ---- work.c -------------------------------------------------------------- */

/* Gives the call its number and runs or queues it. Borrows what it points to
 * for the call. */
oar_status oari_post(oar_group *group, const oari_call *call, oar_work **work);
/* Several calls that are under way at once, as one. */
oar_status oari_post_many(oar_group *group, int count, const oari_call *call,
                          oar_work **work);

/* Whether this thread has a batch open; then calls are added to it. */
int oari_batching(const oar_group *group);
oar_status oari_batch_add(oar_group *group, const oari_call *call);
void oari_batch_drop(oar_group *group);

/* Tags on the wire: a collective's number; or the user's with bit 63 set; or
 * the library's own with bit 62 set. A message of the user's also says its
 * dtype (8 bits, from bit 32, one more than that) and 21 bits of the number of
 * its operation, which receives leave open, where the backend can do that. */
enum { OARI_TAG_DTYPE = 32, OARI_TAG_SEQUENCE = 40 };
static const uint64_t oari_tag_says =
    ((UINT64_C(1) << 61) - 1) & ~(uint64_t)UINT32_MAX;

static inline uint64_t oari_message_tag(int64_t tag)
{
    return OARI_USER_TAG | (uint64_t)(tag >= 0 ? tag : 0);
}
static inline uint64_t oari_message_any(const oar_group *group, int64_t tag)
{
    return (tag >= 0 ? 0 : UINT32_MAX) |
           ((group->can & OAR_CAN_ANY) != 0 ? oari_tag_says : 0);
}

/* drive.c */
/* Fills in what a receive was to say of what came. */
void oari_message_came(const oar_work *work);

/* p2p.c */
/* What a send adds to its tag. */
uint64_t oari_message_says(const oar_work *work);
/* OAR_OK, or OAR_E_DTYPE: the receive is done, and both sides said what it is
 * of, but not the same. */
oar_status oari_message_check(const oar_work *work);
/* Whether a message that is done may end. Of one that did not fit, the sender
 * is asked for its call, unless its recorder can be seen. */
int oari_message_settled(oar_work *work);
/* Writes the send that a recorder has, by what its tag says of its number; ""
 * if there is none. */
void oari_message_recall(const void *recorder, uint64_t tag, char *text,
                         size_t bytes);
/* The failure of one message, in words. Returns its status. */
oar_status oari_message_failed(const oar_work *work);

/* work.c */
/* Gives the call its number, under which it is recorded. */
uint64_t oari_work_record(oar_group *group, const oari_call *call,
                          uint64_t state);
void oari_work_finish(oar_work *work, oar_status status);

#endif
