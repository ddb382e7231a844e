/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/control_page.h: the control pages of ranks that read each other's
 * memory.
 *
 * Every rank owns one control page, which it alone writes and all others read:
 * its slots, a bulletin, a sleep flag, its bounce buffer and its queues. At a
 * sync point a rank writes its slot, then the slot's stamp, and waits for that
 * stamp in the slots of those ranks that it needs something of: all, one or
 * none. Sync points are numbered; number m uses slot m % OARI_SLOTS. A sync
 * point is complete for a rank when it has seen all stamps. A rank begins
 * number m only when number m - OARI_SLOTS + 1, or a later one, is complete for
 * it; if need be, it completes m - 1 first. So a slot is overwritten only when
 * all ranks have read it (docs/shared-memory.md).
 *
 * The pages are memory of one process (`sim`) or memfds of several (`native`);
 * what differs is in oari_shm_ops. One driver at a time uses shared memory,
 * except for oari_shm_wake and the fault calls.
 */
#ifndef OARI_LINK_SHM_CONTROL_PAGE_H
#define OARI_LINK_SHM_CONTROL_PAGE_H

#include <stdatomic.h>

#include <oarsong/backend.h>

#include "link/bulletin.h"
#include "link/link.h"
#include "link/shm/shm_queue.h"
#include "record/recorder.h"
#include "net/frame.h"

enum {
    OARI_SLOTS = 16,        /* a power of two, at most OARI_REPORT_ENTRIES */
    OARI_SLOT_ALIGN = 128,  /* two cache lines: some machines fetch pairs */
    OARI_SLOT_BYTES = 4096, /* room for data in a slot, at least */
    OARI_SHM_QUEUE_BYTES = 64 << 10, /* a ring */
    OARI_SHM_QUEUE_FEW = 16,         /* up to so many ranks ... */
    OARI_SHM_QUEUE_MOST = 256 << 10  /* ... this much */
};

/* A slot: what a rank shows at a sync point. Payload, stamp and addresses share
 * the first cache line when the payload is small. */
typedef struct oari_sync_slot {
    _Atomic uint64_t stamp; /* the sync point; written last */
    uint64_t fingerprint;   /* of the operation and all before: history.h */
    uint64_t sequence;      /* of the operation */
    double factor;
    uint64_t in, out;             /* places of the buffers; 0: out of reach */
    uint64_t in_count, out_count; /* elements there */
} oari_sync_slot;

/* Beside the places that peers resolve (oari_shm_ops), which are smaller. */
#define OARI_PLACE_NONE (UINT64_C(1) << 61) /* of a buffer of no elements */
/* With an address that fetch takes; and, with any place of an input: its rank
 * can fetch from all others. */
#define OARI_PLACE_PRIVATE (UINT64_C(1) << 62)
#define OARI_PLACE_FETCHES (UINT64_C(1) << 63)
/* In place of an input, at a later sync point: its rank has not got what it had
 * to fetch. */
#define OARI_PLACE_MISSED (UINT64_C(1) << 60)

/* Data in a slot begins where the places are: a sync point carries one or the
 * other. So 32 bytes of data still fit the first cache line. */
static inline unsigned char *oari_sync_slot_data(oari_sync_slot *line)
{
    return (unsigned char *)&line->in;
}

/* Collectives that ranks have given to an external engine, which compares
 * nothing: the newest few of each rank, by number. */
enum { OARI_POSTS_KEPT = 16 };

enum { OARI_CORE_WORDS = 16 };

/* The head of a control page. oari_control_page_layout says what follows. */
typedef struct oari_control_page {
    uint32_t version;
    int32_t rank, ranks;
    int64_t pid;
    uint64_t address;                  /* of this page in its rank's process */
    uint64_t small_bytes, stage_bytes; /* rank 0's count for all */
    uint64_t queue_key;                /* of its rings (shm_queue.h) */
    int32_t cpus;                      /* that it may use at a time */
    uint64_t core[OARI_CORE_WORDS];    /* on which it may run: a bit each */
    _Atomic uint32_t closed;           /* it has left, in good order */
    _Alignas(128) _Atomic uint32_t sleeping;
    /* sim only: threads cannot be kept off each other's pages, so a rank that
     * gives up waits until no rank works on its buffers. */
    _Alignas(128) _Atomic uint32_t shut;
    _Atomic uint32_t visitors;
    _Alignas(128) oari_bulletin bulletin;
    /* the number, and of the link (history.h) the lower half */
    _Alignas(128) _Atomic uint64_t posted[OARI_POSTS_KEPT];
    /* those that are complete here; read only when a rank is gone */
    _Alignas(128) _Atomic uint64_t over[OARI_POSTS_KEPT];
} oari_control_page;

/* What a rank shows a peer about the message that it waits for. */
typedef struct oari_awaited {
    _Atomic uint64_t at; /* 1 + how far it has read the peer's queue; written
                            last. 0: it is being written, or there is none */
    _Atomic uint64_t tag, any, bytes;
} oari_awaited;

/* Offsets in a control page. */
typedef struct oari_control_layout {
    size_t slot, slot_step;   /* the first slot; bytes from one to the next */
    size_t stage, stage_room; /* stage_room: bytes of three chunks */
    size_t taken; /* per peer: bytes of its mail taken, credit given back, and
                      offers to it that were taken back: three atomic u64; and
                      an oari_awaited in the second cache line */
    size_t mail;  /* per destination: a ring */
    size_t ring;  /* bytes of one, its counter included */
    size_t first; /* a page that all write to, in rank 0's only: which rank
                     published each kind of fault first */
    size_t bytes; /* of the whole */
} oari_control_layout;

/* Returns the room for data in a slot: OARI_SLOT_BYTES, or small_bytes if that
 * is more. */
size_t oari_sync_slot_bytes(size_t small_bytes);

oari_control_layout oari_control_page_layout(int ranks, size_t small_bytes,
                                             size_t stage_bytes);

typedef struct oari_shm oari_shm;

typedef struct oari_shm_ops {
    /* Returns the place by which peers find this rank's memory, or 0 if they
     * cannot reach it. */
    uint64_t (*place)(void *self, void *memory, size_t bytes);
    /* Returns where a place of a peer is in this process. NULL for place 0; for
     * any other place NULL is a failure, with the last error set. */
    void *(*resolve)(void *self, int peer, uint64_t place, size_t bytes);
    /* After a failure: takes memory of this rank that peers may write to out of
     * their reach for good. In one process also keeps them from reading it:
     * then bytes may be 0. */
    oar_status (*detach)(void *self, void *memory, size_t bytes);
    /* (optional) Copies private memory of a peer's process from an address that
     * the peer has sent. OAR_E_UNSUPPORTED: it cannot be read from here, as
     * memory of devices, such as what CUDA has pinned; OAR_E_CLOSED: the peer
     * is gone. */
    oar_status (*fetch)(void *self, int peer, uint64_t address, void *to,
                        size_t bytes);
    /* (with fetch) Returns whether this rank can fetch from all peers. */
    int (*fetches)(void *self);
    /* (optional) Begins and ends work on peers' buffers; 0: a rank has shut. */
    int (*enter)(void *self);
    void (*leave)(void *self);
    /* (optional) Returns when no thread works on this rank's buffers that began
     * before the call. */
    void (*settle)(void *self);
    /* Marks peers that are gone in shm->gone. */
    void (*check)(void *self);
} oari_shm_ops;

struct oari_shm {
    const oari_shm_ops *ops;
    void *self;
    int rank, ranks;   /* in shared memory */
    const int *member; /* by rank in shared memory: the rank in the group; NULL:
                          the same. With members this is the shared memory of
                          one host in a group of several. */
    oari_control_layout layout;
    size_t small_bytes, stage_bytes;
    int64_t spin_ns;     /* 0: yield at once */
    int adapts;          /* the user has not said how long to spin */
    int crowded;         /* some ranks share cores: all say the same */
    int spare;           /* there are two cores for each rank */
    int copying;         /* the next progress goes on with a copy */
    uint64_t sync_point; /* the last that this rank has begun */
    uint64_t complete;   /* the last that all ranks are known to have begun */
    int awaited;         /* whose slots it waits for: a rank, or OARI_AWAIT_ */
    int arrived;         /* ranks below this one have reached the sync point */
    int woken;           /* sleepers have been woken for it */
    int polls;           /* of it, while they have not */
    _Atomic uint32_t *first; /* by fact, in memory that all ranks write to: 1
                                + the rank that published it first; 0: none */
    oari_control_page **control; /* by rank */
    unsigned char *gone;         /* by rank: died or left */
    int any_gone;
    const void **recorder;    /* by rank: its mapping, or NULL */
    unsigned char **slots;    /* by rank: its first slot */
    int *event;               /* by rank: descriptor that wakes it */
    int wait_fd;              /* readable when this rank is woken */
    struct oari_world *world; /* of shared memory in one process */
};

/* Allocates the arrays of shared memory whose rank and ranks are set. */
oar_status oari_shm_init(oari_shm *shm);
void oari_shm_clear(oari_shm *shm);

/* Fills in a new control page of this rank. */
void oari_control_page_init(oari_control_page *control, int rank, int ranks,
                            size_t small_bytes, size_t stage_bytes);

/* Makes shared memory ready for use when all control pages are there: takes
 * rank 0's settings, finds the slots, and decides how to wait. OAR_E_MISMATCH
 * if a page is of another version or group. */
oar_status oari_shm_ready(oari_shm *shm, int64_t spin_us);

/* Returns the bounce buffer of a rank. */
unsigned char *oari_shm_bounce_buffer(const oari_shm *shm, int rank);

/* Returns the rank in shared memory of a rank of the group; -1: it is on
 * another host. */
int oari_shm_rank(const oari_shm *shm, int group_rank);

/* ---- sync points --------------------------------------------------------- */

/* Whose slots are awaited at a sync point, if not a rank's. */
enum { OARI_AWAIT_ALL = -1, OARI_AWAIT_NONE = -2 };

/* Returns whether a rank may begin the sync point after `last`, with so many
 * slots. */
static inline int oari_sync_has_room(uint64_t last, uint64_t complete,
                                     unsigned slots)
{
    return last + 1 - complete < slots;
}

/* Returns a rank's slot of a sync point. */
static inline oari_sync_slot *oari_sync_slot_at(const oari_shm *shm, int rank,
                                                uint64_t sync_point)
{
    return (oari_sync_slot *)(shm->slots[rank] +
                              sync_point % OARI_SLOTS * shm->layout.slot_step);
}

/* Returns a rank's slot of the last sync point. */
static inline oari_sync_slot *oari_sync_slot_of(const oari_shm *shm, int rank)
{
    return oari_sync_slot_at(shm, rank, shm->sync_point);
}

/* Returns this rank's slot for the next sync point: fill it in, then begin.
 * There must be room (oari_sync_has_room). */
oari_sync_slot *oari_shm_next_slot(oari_shm *shm);
void oari_sync_begin(oari_shm *shm, int awaited);

/* Wakes ranks that sleep. Without this call polls do it, a little later. */
void oari_sync_wake(oari_shm *shm);

/* Returns 1 when the awaited ranks have reached the sync point, 0 if not yet.
 */
int oari_sync_poll(oari_shm *shm);

/* Awaits all ranks at the last sync point from now on. */
static inline void oari_sync_await_all(oari_shm *shm)
{
    shm->awaited = OARI_AWAIT_ALL;
}

/* ---- collectives of an external engine -------------------------------------
 */

/* Shows that this rank is about to begin a collective. */
void oari_shm_show_post(oari_shm *shm, uint64_t number, uint64_t link);

/* Compares what a rank has begun under that number: nothing yet; the same as
 * this rank; or something else. For a rank that is ahead the answer is "the
 * same": its entry has been overwritten. */
enum { OARI_POST_MISSING, OARI_POST_SAME, OARI_POST_OTHER };
int oari_shm_compare_post(const oari_shm *shm, int rank, uint64_t number,
                          uint64_t link);

/* Prefetches what is written and compared for the next collective. */
void oari_shm_prefetch_post(const oari_shm *shm, uint64_t number);

/* Shows that a collective is complete here; returns whether it is complete on
 * another rank. */
void oari_shm_complete_post(oari_shm *shm, uint64_t number);
int oari_shm_has_completed_post(const oari_shm *shm, int rank, uint64_t number);

/* ---- waking and sleeping ------------------------------------------------- */

/* Wakes a rank, if it sleeps, because there is something new for it. */
void oari_shm_notify(oari_shm *shm, int rank);
/* Wakes a rank that sleeps, before there is anything new for it. */
void oari_shm_stir(oari_shm *shm, int rank);

/* Wakes this rank's own driver. Any thread. */
void oari_shm_wake(oari_shm *shm);

/* oari_shm_arm announces that this rank is going to sleep; the caller must
 * look once more for work after it. oari_shm_sleep returns when the rank is
 * woken, at the deadline, or when the other descriptor is readable (-1: none).
 * oari_shm_awake takes the announcement back if it does not sleep. */
void oari_shm_arm(oari_shm *shm);
void oari_shm_sleep(oari_shm *shm, int other, int64_t deadline_ns);
/* What oari_shm_sleep does at its end, for a thread that has slept on wait_fd
 * by itself. */
void oari_shm_rise(oari_shm *shm);
void oari_shm_awake(oari_shm *shm);

/* ---- faults -------------------------------------------------------------- */

/* The facts that a rank shows; only this rank's own may be written. */
static inline oari_bulletin *oari_shm_bulletin(const oari_shm *shm, int rank)
{
    return &shm->control[rank]->bulletin;
}

/* Publishes a fault of this rank as OARI_FACT_FAULT or OARI_FACT_FINAL_FAULT,
 * unless it has published one before, and wakes all. Any thread. */
void oari_shm_publish(oari_shm *shm, oari_fact fact, const oari_fault *fault);

/* Gives the fault that a rank published first, the same on all ranks. Returns 0
 * if there is none. Any thread. */
int oari_shm_published(const oari_shm *shm, oari_fact fact, oari_fault *fault);

/* Returns the first awaited rank that has not reached the last sync point, or
 * -1. */
int oari_sync_missing(const oari_shm *shm);

/* Returns whether this rank waits for that one at the last sync point. */
int oari_sync_awaits(const oari_shm *shm, int rank);

/* Returns whether something has gone wrong, as far as a glance shows: a fault
 * is published, or a rank is known to be gone. */
static inline int oari_shm_is_troubled(const oari_shm *shm)
{
    return shm->any_gone || (shm->first != NULL &&
                             atomic_load_explicit(&shm->first[OARI_FACT_FAULT],
                                                  memory_order_relaxed) != 0);
}

#endif
