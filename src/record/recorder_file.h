/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder_file.h: the recorder file of a process. It holds a ring of
 * records for each group, and outlives the process. It may have no name (a
 * memfd).
 *
 * A recorder file is one unit with the head and the newest numbers, then
 * OARI_FILE_RINGS units with a ring each. A ring is complete in itself, so that
 * a peer maps one ring and nothing else. The layout is the same, byte for byte,
 * on every host: the launcher and `oarsong autopsy` read these files, also
 * copies from elsewhere.
 */
#ifndef OARI_RECORD_RECORDER_FILE_H
#define OARI_RECORD_RECORDER_FILE_H

#include <stdatomic.h>
#include <stddef.h>

#include <oarsong/recorder.h>

#include "record/metrics_page.h"

enum {
    OARI_FILE_RINGS = 64,
    OARI_FILE_UNIT = 65536, /* a multiple of every page size */
    OARI_FILE_VERSION = 3,
    OARI_METRICS_AT = 4096, /* in the first unit */
    OARI_SITES = 256,
    OARI_MEMBERS = 1024 /* = OARI_MAX_RANKS */
};
#define OARI_FILE_BYTES   ((size_t)(1 + OARI_FILE_RINGS) * OARI_FILE_UNIT)
#define OARI_FILE_SUFFIX  ".oarrec"
#define OARI_TOKEN_SUFFIX ".alive" /* watchdog.h */

/* A call site. Texts, because pointers mean nothing to another process. */
typedef struct oari_site {
    char text[72];
    char label[40];
} oari_site;

/* A record: eight words, written and read as relaxed atomics. */
typedef struct oari_record_slot {
    _Alignas(64) _Atomic uint64_t sequence; /* 0 while it is being written */
    _Atomic uint64_t posted;                /* ticks */
    _Atomic uint64_t done;                  /* ticks, once it is done */
    _Atomic uint64_t count;
    _Atomic uint64_t what;  /* kind, op, dtype, flags, root + 1 */
    _Atomic uint64_t extra; /* of a message: its tag; of a collective: how
                               many messages were posted before it */
    _Atomic uint64_t site;
    _Atomic uint64_t state; /* oar_record_state, and OARI_WAITED */
} oari_record_slot;

enum {
    OARI_WAITED = 256,
    OARI_POSTED = OAR_RECORD_POSTED,
    OARI_AWAITED = OAR_RECORD_POSTED | OARI_WAITED
};

typedef enum oari_ring_state {
    OARI_RING_FREE,
    OARI_RING_JOINING, /* the group is being made */
    OARI_RING_OPEN,
    OARI_RING_ENDED
} oari_ring_state;

/* The members of an oar_error that are kept. */
typedef struct oari_ring_fault {
    _Atomic uint32_t ready;
    int32_t status, rank, peer, sys_errno;
    int64_t pid;
    uint64_t sequence;
    char operation[32];
    char site[96];
    char label[64];
    char host[64];
    char text[512];
} oari_ring_fault;

typedef struct oari_ring {
    char magic[8];
    uint32_t version;
    _Atomic uint32_t state;  /* oari_ring_state */
    _Atomic uint64_t serial; /* of all rings of the file; 0: being made */
    int32_t rank, ranks;
    int64_t pid;
    int64_t epoch;
    uint32_t instance;        /* how many groups of that name came before it */
    _Atomic uint32_t members; /* how many of `member` are filled in; 0: the
                                 group is a world, or not placed yet */
    int64_t base_ns; /* CLOCK_MONOTONIC when the counter was base_ticks */
    uint64_t base_ticks;
    double ticks_per_second;
    int64_t ended_ns;
    _Atomic uint32_t sites; /* entered; 0 is "unknown" */
    char backend[32];
    char group[160];
    uint16_t member[OARI_MEMBERS]; /* ranks in the world */
    oari_ring_fault fault;
    _Atomic uint64_t waited;      /* ticks that callers waited for operations
                                     which they had posted without waiting */
    _Atomic uint64_t waits_since; /* ticks; 0: no caller waits now */
    _Alignas(4096) oari_site site[OARI_SITES];
    oari_record_slot slot[OAR_RECORDS];
} oari_ring;

_Static_assert(sizeof(oari_ring) == OARI_FILE_UNIT, "a ring is one unit");

/* The process that records here. */
typedef struct oari_recorder_head {
    char magic[8];
    uint32_t version;
    uint32_t rings;       /* there is room for */
    int32_t rank;         /* in the world; -1: not known */
    int32_t world;        /* ranks in it; 0: not known */
    int32_t threads;      /* ranks are threads of this process */
    _Atomic int32_t fell; /* its place in the order in which the ranks of the
                             folder ended on this host, from 1 (watchdog.h);
                             0: not known */
    int64_t fell_ns; /* when that was seen, CLOCK_MONOTONIC; 0: not known */
    int64_t epoch;
    _Atomic int64_t owner; /* the pid that writes here; 0: none yet */
    uint64_t nonce;        /* of that process */
    uint64_t started;      /* when it was, as /proc says */
    uint64_t pid_space;    /* the pid namespace */
    char host[64];
    char boot[40]; /* of the host, the same for all clocks that compare */
    int64_t base_ns, wall_ns; /* CLOCK_MONOTONIC and the calendar's, at once */
    uint64_t base_ticks;
    _Atomic uint32_t used;    /* rings that were ever taken */
    _Atomic uint32_t crowded; /* groups for which there was none */
    _Atomic uint32_t exited;  /* the process has called exit */
    _Atomic int32_t follows;  /* 1 + the rank that had ended when this process
                                aborted; 0: none had */
    _Atomic uint64_t serial;  /* of the newest ring */

    /* only in a copy: the state of the process when the copy was made */
    int64_t seen_ns, seen_wall_ns; /* what ages are counted from */
    int64_t look_ns; /* when the counter was at look_ticks; 0: not known */
    uint64_t look_ticks;
    char seen_state; /* oari_box_life */
    char note[160];

    char run[64]; /* the launcher's name for the job; "": none */
} oari_recorder_head;

typedef struct oari_recorder_file {
    union {
        oari_recorder_head head;
        struct {
            char before[OARI_METRICS_AT];
            oari_metrics_page metrics;
        };
        char room[OARI_FILE_UNIT];
    };
    oari_ring ring[OARI_FILE_RINGS];
} oari_recorder_file;

_Static_assert(sizeof(oari_recorder_file) == OARI_FILE_BYTES,
               "a recorder file is 65 units");
_Static_assert(sizeof(oari_recorder_head) <= OARI_METRICS_AT,
               "the head ends before the numbers");

extern const char oari_recorder_file_magic[8], oari_ring_magic[8];

/* ---- for launchers ------------------------------------------------------- */

/* Makes an empty recorder file for a rank that will be started: a memfd that
 * the process inherits, with its number in OARSONG_RECORDER_FD. Close on exec
 * is set: the child clears it for its own. Gives the descriptor. */
oar_status oari_recorder_file_make(int rank, int *fd);

/* ---- for this process ---------------------------------------------------- */

/* The group that wants a ring. */
typedef struct oari_ring_owner {
    const char *group;
    const char *backend; /* may be NULL */
    int rank, ranks;
    int threads;             /* the ranks are threads */
    int job_rank, job_ranks; /* of the process, as its launcher says; job_ranks
                                below 2: it does not say */
} oari_ring_owner;

/* Where a ring is: `at` bytes into the file. */
typedef struct oari_ring_place {
    oari_ring *ring;
    int fd;
    uint64_t at;
    int apart; /* in a file of its own: the recorder file was full */
} oari_ring_place;

/* Takes a ring in the recorder file of this process, which is opened first if
 * need be: OARSONG_RECORDER_FD, else a file in OARSONG_RECORDER_DIR, else one
 * without a name. Every place taken is given back once. */
oar_status oari_ring_take(const oari_ring_owner *owner, oari_ring_place *place);
void oari_ring_give(oari_ring_place *place);

#endif
