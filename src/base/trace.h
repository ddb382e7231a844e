/* SPDX-License-Identifier: Apache-2.0 */
/* base/trace.h: writes what this process does, as events in a mapped file that
 * outlives it (docs/formats.md). Nothing is written unless OARSONG_TRACE names
 * a folder: then a call costs one load and one branch.
 *
 * An event is written when it ends, by the thread that saw it end. A thread
 * writes into a chunk of its own; the chunks of a file are limited, and when
 * all are taken the trace is thinned: every second step is dropped, also of
 * those already written.
 */
#ifndef OARI_BASE_TRACE_H
#define OARI_BASE_TRACE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/plugin_export.h"

/* ---- the file ------------------------------------------------------------ */

enum {
    OARI_TRACE_VERSION = 1,
    OARI_TRACE_HEAD_BYTES = 1 << 16,
    OARI_TRACE_NAME_BYTES = 1 << 20,
    OARI_TRACE_GROUPS = 512,
    OARI_TRACE_MEMBERS = 1024,
    OARI_TRACE_CHUNK_BYTES = 1 << 18,
    OARI_TRACE_EVENTS = OARI_TRACE_CHUNK_BYTES / 32 /* of a chunk */
};
#define OARI_TRACE_SUFFIX ".oartrace"

typedef enum oari_trace_kind {
    OARI_TRACE_NONE,
    OARI_TRACE_THREAD,    /* what follows in this chunk is of this thread;
                             value: its id, name: its name; number, peer
                             and group: CLOCK_MONOTONIC at its start */
    OARI_TRACE_OPERATION, /* sub: oar_coll; value: bytes */
    OARI_TRACE_CALL,      /* of RPC */
    OARI_TRACE_WAIT,      /* the caller waits for an operation */
    OARI_TRACE_FORWARD,   /* of a module */
    OARI_TRACE_BACKWARD,
    OARI_TRACE_OPTIMIZER,
    OARI_TRACE_LOADER, /* the caller waits for a batch */
    OARI_TRACE_CHECKPOINT,
    OARI_TRACE_STAGE, /* an action of a pipeline */
    OARI_TRACE_GPU,   /* on a stream; number: the stream's name */
    OARI_TRACE_USER,
    OARI_TRACE_METRIC, /* value: the bits of a double */
    OARI_TRACE_STEP,   /* value: its number; from the end of the one before */
    OARI_TRACE_KINDS
} oari_trace_kind;

enum { OARI_TRACE_FAILED = 128, OARI_TRACE_BLOCKING = 64 }; /* in `sub` */

typedef struct oari_trace_event {
    _Atomic uint64_t start; /* ticks; written last; 0: nothing is here */
    uint32_t duration;      /* ticks, as oari_trace_shorten writes them */
    uint16_t name;
    uint8_t kind; /* oari_trace_kind */
    uint8_t sub;
    uint16_t group;
    uint16_t peer; /* 1 + root or peer; 0: none */
    uint32_t number;
    uint64_t value;
} oari_trace_event;

/* Returns CLOCK_MONOTONIC at the start of an OARI_TRACE_THREAD. */
static inline int64_t oari_trace_thread_ns(const oari_trace_event *e)
{
    return (int64_t)((uint64_t)e->number << 32 | (uint64_t)e->peer << 16 |
                     e->group);
}

typedef struct oari_trace_chunk {
    oari_trace_event event[OARI_TRACE_EVENTS];
} oari_trace_chunk;

typedef struct oari_trace_group {
    _Atomic uint32_t ready;
    int32_t rank, ranks;
    uint32_t instance;
    int64_t epoch;
    _Atomic uint32_t members; /* of `member` that are filled in; 0: a world */
    char name[160];
    uint16_t member[OARI_TRACE_MEMBERS]; /* ranks in the world */
} oari_trace_group;

typedef struct oari_trace_head {
    char magic[8];
    uint32_t version;
    uint32_t chunks; /* there is room for */
    int32_t rank;    /* in the world; -1: not known */
    int32_t world;   /* ranks in it; 0: not known */
    int64_t pid, epoch;
    int64_t base_ns, wall_ns; /* CLOCK_MONOTONIC and the calendar's, at once */
    uint64_t base_ticks;
    double ticks_per_second;
    char run[64]; /* the launcher's name for the job; "": none */
    char host[64];
    char boot[40];             /* of the host: clocks with the same compare */
    _Atomic uint32_t names;    /* bytes of names in use */
    _Atomic uint32_t groups;   /* in use */
    _Atomic uint32_t one_in;   /* steps that are kept: 1, or one in 2, 4, ... */
    _Atomic uint32_t by_time;  /* there were no steps: seconds are dropped */
    _Atomic uint32_t full;     /* writing has stopped: no room on the disk */
    _Atomic uint32_t taken;    /* chunks that were ever taken */
    _Atomic uint32_t gpu_lost; /* intervals of GPUs, for want of events */
    _Atomic uint64_t gpu_error_ns; /* the most by which times of GPUs err */
} oari_trace_head;

/* Names stand one behind the other, each ended by a zero byte: the n-th is name
 * n. Name 0 is the empty one. */
typedef struct oari_trace_file {
    union {
        oari_trace_head head;
        char room[OARI_TRACE_HEAD_BYTES];
    };
    char name[OARI_TRACE_NAME_BYTES];
    oari_trace_group group[OARI_TRACE_GROUPS];
    _Alignas(4096) oari_trace_chunk chunk[];
} oari_trace_file;

_Static_assert(sizeof(oari_trace_event) == 32, "an event has 32 bytes");

extern const char oari_trace_magic[8];

/* Writes a duration in 32 bits, to 8 digits: 27 bits, shifted by the upper 5.
 */
static inline uint32_t oari_trace_shorten(uint64_t ticks)
{
    uint32_t shift = 0;

    while (__builtin_expect(ticks >> shift >= (uint64_t)1 << 27, 0))
        shift++;
    return (uint32_t)(ticks >> shift) | shift << 27;
}

static inline uint64_t oari_trace_lengthen(uint32_t duration)
{
    return (uint64_t)(duration & ((1u << 27) - 1)) << (duration >> 27);
}

/* ---- writing ------------------------------------------------------------- */

/* Hidden, so that its address needs no load. */
extern __attribute__((visibility("hidden"))) _Atomic uint32_t oari_trace_on;

/* Returns whether events are written now. */
static inline int oari_tracing(void)
{
    return __builtin_expect(
        atomic_load_explicit(&oari_trace_on, memory_order_relaxed) != 0, 0);
}

/* Returns the time at which an event begins; 0 when nothing is written. */
static inline uint64_t oari_trace_begin(void)
{
    return oari_tracing() ? oari_ticks() : 0;
}

/* What an event says. start: ticks. */
typedef struct oari_trace_entry {
    uint64_t start, end;
    oari_trace_kind kind;
    unsigned sub, group, peer;
    unsigned name;
    uint32_t number;
    uint64_t value;
} oari_trace_entry;

/* Returns a field of an event in its place among the eight bytes it shares. */
static inline uint64_t oari_trace_field(uint64_t value, unsigned first,
                                        unsigned bytes)
{
    const int little = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

    return value << 8 * (little ? first : 8 - first - bytes);
}

/* Writes the four words of an event. They are arguments, because a struct would
 * go through the stack, whose bytes are not there yet when they are read. */
void oari_trace_put(uint64_t start, uint64_t how, uint64_t who, uint64_t value);

/* Writes an event. */
static inline void oari_trace_write(const oari_trace_entry *e)
{
    oari_trace_put(
        e->start,
        oari_trace_field(oari_trace_shorten(e->end - e->start), 0, 4) |
            oari_trace_field((uint16_t)e->name, 4, 2) |
            oari_trace_field((uint8_t)e->kind, 6, 1) |
            oari_trace_field((uint8_t)e->sub, 7, 1),
        oari_trace_field((uint16_t)e->group, 0, 2) |
            oari_trace_field((uint16_t)e->peer, 2, 2) |
            oari_trace_field(e->number, 4, 4),
        e->value);
}

/* Ends what oari_trace_begin began, unless that gave 0: an event with a name,
 * which is copied. */
void oari_trace_finish(uint64_t start, oari_trace_kind kind, const char *name);
static inline void oari_trace_end(uint64_t start, oari_trace_kind kind,
                                  const char *name)
{
    if (start != 0)
        oari_trace_finish(start, kind, name);
}

/* Writes an event of the calling block, from here to its end. The name must be
 * valid there. */
#define OARI_TRACED(kind, name)                        \
    __attribute__((cleanup(oari_trace_leave), unused)) \
    oari_trace_scope oari_traced = { oari_trace_begin(), kind, name }

typedef struct oari_trace_scope {
    uint64_t start;
    oari_trace_kind kind;
    const char *name;
} oari_trace_scope;

static inline void oari_trace_leave(const oari_trace_scope *scope)
{
    oari_trace_end(scope->start, scope->kind, scope->name);
}

/* Returns the number of a name, the same for the same text; 0 if there is no
 * room. */
unsigned oari_trace_name(const char *text);

/* Enters a group and returns its number; 0 if there is no room. Numbers of
 * names and groups hold in children by fork, too. */
typedef struct oari_trace_group_of {
    const char *name;
    int rank, ranks; /* of this process in the group */
    uint32_t instance;
    int64_t epoch;
    const uint16_t *member; /* may be NULL */
    unsigned members;
} oari_trace_group_of;
unsigned oari_trace_group_enter(const oari_trace_group_of *group);

/* Returns the head of this process's file; NULL if nothing can be written. */
oari_trace_head *oari_trace_own_head(void);

/* Called when a step has ended, unless NULL: writes what has waited. */
extern __attribute__((visibility("hidden"))) _Atomic(void (*)(
    void)) oari_trace_at_step;

/* Writes that a step has ended, and decides whether the next one is kept. */
void oari_trace_step(int64_t step);

/* Says which rank of how many this process is, if the environment does not. */
void oari_trace_process(int rank, int ranks);

#endif
