/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/board.h: the control pages of ranks that read each other's memory.
 *
 * Every rank owns one control page, which it alone writes and all others read:
 * two slots, a bulletin, a sleep flag, its bounce buffer and its queues. At a
 * sync point a rank writes its slot, then the slot's stamp, and waits until
 * every other rank's slot has that stamp. Sync points are numbered; number m
 * uses slot m % 2. A rank can be at most one sync point ahead of another, so a
 * slot is overwritten only when all ranks have read it.
 *
 * The pages are memory of one process (`sim`) or memfds of several (`native`);
 * what differs is in oari_board_ops. One driver at a time uses a board, except
 * for oari_board_wake and the fault calls.
 */
#ifndef OARI_LINK_SHM_BOARD_H
#define OARI_LINK_SHM_BOARD_H

#include <stdatomic.h>

#include <oarsong/backend.h>

#include "link/bulletin.h"
#include "link/link.h"
#include "link/shm/mail_ring.h"
#include "record/recorder.h"
#include "net/frame.h"

enum {
    OARI_LINE_ALIGN = 128,      /* two cache lines: some machines fetch pairs */
    OARI_LINE_BYTES = 4096,     /* room for data in a slot, at least */
    OARI_MAIL_BYTES = 64 << 10, /* a ring */
    OARI_MAIL_FEW = 16,         /* up to so many ranks ... */
    OARI_MAIL_MOST = 256 << 10  /* ... this much */
};

/* A slot: what a rank shows at a sync point. Payload, stamp and addresses share
 * the first cache line when the payload is small. */
typedef struct oari_line {
    _Atomic uint64_t stamp; /* the sync point; written last */
    uint64_t fingerprint;   /* of the operation and all before: history.h */
    uint64_t sequence;      /* of the operation */
    double factor;
    uint64_t in, out;             /* where the buffers are; 0: out of reach */
    uint64_t in_count, out_count; /* elements there */
} oari_line;

/* Data in a slot begins where the places are: a sync point carries one or the
 * other. So 32 bytes of data still fit the first cache line. */
static inline unsigned char *oari_line_data(oari_line *line)
{
    return (unsigned char *)&line->in;
}

/* Collectives that ranks have given to an external engine, which compares
 * nothing: the newest few of each rank, by number. */
enum { OARI_POSTS_KEPT = 16 };

enum { OARI_CORE_WORDS = 16 };

/* The head of a control page. oari_board_layout says what follows. */
typedef struct oari_control {
    uint32_t version;
    int32_t rank, ranks;
    int64_t pid;
    uint64_t small_bytes, stage_bytes; /* rank 0's count for all */
    uint64_t mail_key;                 /* of its rings (mail_ring.h) */
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
} oari_control;

/* Offsets in a control page. */
typedef struct oari_control_layout {
    size_t line[2], stage, stage_room; /* stage_room: bytes of three chunks */
    size_t taken; /* per source: bytes of its mail taken, and credit given
                      back: two atomic u64 */
    size_t mail;  /* per destination: a ring */
    size_t ring;  /* bytes of one, its counter included */
    size_t first; /* a page that all write to, in rank 0's only: which rank
                     published each kind of fault first */
    size_t bytes; /* of the whole */
} oari_control_layout;

/* Returns the room for data in a slot: OARI_LINE_BYTES, or small_bytes if that is
 * more. */
size_t oari_line_bytes(size_t small_bytes);

oari_control_layout oari_board_layout(int ranks, size_t small_bytes,
                                      size_t stage_bytes);

typedef struct oari_board oari_board;

typedef struct oari_board_ops {
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
     * the peer has sent. OAR_E_UNSUPPORTED: it cannot be read from here;
     * OAR_E_CLOSED: the peer is gone. */
    oar_status (*fetch)(void *self, int peer, uint64_t address, void *to,
                        size_t bytes);
    /* (optional) Begins and ends work on peers' buffers; 0: a rank has shut. */
    int (*enter)(void *self);
    void (*leave)(void *self);
    /* Marks peers that are gone in board->gone. */
    void (*check)(void *self);
} oari_board_ops;

struct oari_board {
    const oari_board_ops *ops;
    void *self;
    int rank, ranks;   /* on the board */
    const int *member; /* by rank on the board: the rank in the group; NULL:
                          the same. A board with members is that of one host
                          in a group of several. */
    oari_control_layout layout;
    size_t small_bytes, stage_bytes;
    int64_t spin_ns; /* 0: yield at once */
    int spare;       /* there are two cores for each rank */
    uint64_t meeting;
    int arrived; /* ranks below this one have reached the sync point */
    int woken;   /* sleepers have been woken for it */
    int polls;   /* of it, while they have not */
    _Atomic uint32_t *first;  /* by fact, in memory that all ranks write to: 1
                                + the rank that published it first; 0: none */
    oari_control **control;   /* by rank */
    unsigned char *gone;      /* by rank: died or left */
    const void **recorder;    /* by rank: its mapping, or NULL */
    oari_line *(*line)[2];    /* by rank, then sync point % 2 */
    int *event;               /* by rank: descriptor that wakes it */
    int wait_fd;              /* readable when this rank is woken */
    struct oari_world *world; /* of a board in one process */
};

/* Allocates the arrays of a board whose rank and ranks are set. */
oar_status oari_board_init(oari_board *board);
void oari_board_clear(oari_board *board);

/* Fills in a new control page of this rank. */
void oari_control_init(oari_control *control, int rank, int ranks,
                       size_t small_bytes, size_t stage_bytes);

/* Makes a board ready for use when all control pages are there: takes rank 0's
 * settings, finds the slots, and decides how to wait. OAR_E_MISMATCH if a page
 * is of another version or group. */
oar_status oari_board_ready(oari_board *board, int64_t spin_us);

/* Returns the bounce buffer of a rank. */
unsigned char *oari_board_stage(const oari_board *board, int rank);

/* Returns the rank on the board of a rank of the group; -1: it is on another
 * host. */
int oari_board_rank(const oari_board *board, int group_rank);

/* ---- sync points --------------------------------------------------------- */

/* Returns this rank's slot for the next sync point: fill it in, then begin. */
oari_line *oari_board_line(oari_board *board);
void oari_meet_begin(oari_board *board);

/* Wakes ranks that sleep. Without this call polls do it, a little later. */
void oari_meet_wake(oari_board *board);

/* Returns 1 when all ranks have reached the sync point, 0 if not yet. */
int oari_meet_poll(oari_board *board);

/* Returns a rank's slot of the last sync point. */
static inline const oari_line *oari_meet_line(const oari_board *board, int rank)
{
    return board->line[rank][board->meeting & 1];
}

/* ---- collectives of an external engine -------------------------------------
 */

/* Shows that this rank is about to begin a collective. */
void oari_board_post(oari_board *board, uint64_t number, uint64_t link);

/* Compares what a rank has begun under that number: nothing yet; the same as
 * this rank; or something else. For a rank that is ahead the answer is "the
 * same": its entry has been overwritten. */
enum { OARI_POST_MISSING, OARI_POST_SAME, OARI_POST_OTHER };
int oari_board_compare(const oari_board *board, int rank, uint64_t number,
                       uint64_t link);

/* Prefetches what is written and compared for the next collective. */
void oari_board_expect(const oari_board *board, uint64_t number);

/* Shows that a collective is complete here; returns whether it is complete on
 * another rank. */
void oari_board_end(oari_board *board, uint64_t number);
int oari_board_has_ended(const oari_board *board, int rank, uint64_t number);

/* ---- waking and sleeping ------------------------------------------------- */

/* Wakes a rank, if it sleeps, because there is something new for it. */
void oari_board_notify(oari_board *board, int rank);

/* Wakes this rank's own driver. Any thread. */
void oari_board_wake(oari_board *board);

/* oari_board_arm announces that this rank is going to sleep; the caller must
 * look once more for work after it. oari_board_sleep returns when the rank is
 * woken, at the deadline, or when the other descriptor is readable (-1: none).
 * oari_board_awake takes the announcement back if it does not sleep. */
void oari_board_arm(oari_board *board);
void oari_board_sleep(oari_board *board, int other, int64_t deadline_ns);
void oari_board_awake(oari_board *board);

/* ---- faults -------------------------------------------------------------- */

/* The facts that a rank shows; only this rank's own may be written. */
static inline oari_bulletin *oari_board_bulletin(const oari_board *board,
                                                 int rank)
{
    return &board->control[rank]->bulletin;
}

/* Publishes a fault of this rank as OARI_FACT_FAULT or OARI_FACT_FINAL_FAULT,
 * unless it has published one before, and wakes all. Any thread. */
void oari_board_publish(oari_board *board, oari_fact fact,
                        const oari_fault *fault);

/* Gives the fault that a rank published first, the same on all ranks. Returns 0
 * if there is none. Any thread. */
int oari_board_published(const oari_board *board, oari_fact fact,
                         oari_fault *fault);

/* Returns the first rank that has not reached the current sync point, or -1. */
int oari_meet_missing(const oari_board *board);

#endif
