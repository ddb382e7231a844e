/* SPDX-License-Identifier: Apache-2.0 */
/* support/crew.h: ranks as processes that may stop, die or hang.
 *
 * Unlike oar_launch, a crew leaves the others alone when one of them ends: what
 * they do then is what the tests look at. The processes share pages and flags
 * that the parent made before it started them; every wait has a deadline.
 */
#ifndef TESTS_SUPPORT_CREW_H
#define TESTS_SUPPORT_CREW_H

#include <stdatomic.h>
#include <sys/types.h>

#include "support/ranks.h"

enum {
    CREW_MAX = 8,
    CREW_PATIENCE_MS = 20000,
    CREW_LATE = -1,
    CREW_GONE = -2 /* of seats: ended without having said how */
};

typedef struct crew {
    int ranks;
    pid_t pid[CREW_MAX];      /* 0: not running */
    char folder[128];         /* TMPDIR of the ranks; their store is in it */
    char what[256];           /* the scenario, for messages */
    struct crew_seats *seats; /* NULL: the ranks are children */
} crew;

/* What a rank does; 0 is success. */
typedef int (*crew_fn)(crew *c, int rank, void *arg);

/* Whether a sanitizer looks for leaks when a process exits. That takes seconds
 * where there are threads, and in a forked child it finds what was on stacks
 * that are gone; so it is off in programs with crews, unless they turn it on.
 */
extern int crew_looks_for_leaks;

/* Names the scenario and starts the ranks. A failure here ends the test. */
void crew_start(crew *c, int ranks, crew_fn fn, void *arg, const char *format,
                ...) OAR_PRINTF(5, 6);

/* In a rank: its group over "shm", unless opts name another backend, and the
 * crew's store. */
oar_status crew_join(const crew *c, int rank, const oar_group_opts *opts,
                     oar_group **group);
oar_status crew_store(const crew *c, oar_store **store);

/* How the rank ended: its exit code, 128 + the signal that killed it, or
 * CREW_LATE; of seats also CREW_GONE. */
int crew_wait(crew *c, int rank, int timeout_ms);

/* Whether the rank has been stopped by a signal. */
int crew_wait_stopped(crew *c, int rank, int timeout_ms);

/* Asserts that a rank ends like that. */
void crew_expect(crew *c, int rank, int code);

/* Ends whoever is left, and asserts that nobody was, and that nothing is left
 * behind: no process, no file in the ranks' TMPDIR or of ours in /dev/shm. */
void crew_end(crew *c);

/* The same without asserting: NULL, or what was wrong, until the next call. */
const char *crew_close(crew *c);

/* Ends whoever is left, and the test. */
void crew_give_up(crew *c, const char *format, ...) OAR_PRINTF(2, 3);

/* The ranks' TMPDIR. For crew_start and its like. */
void crew_make_folder(crew *c);

/* Zeroed pages that the crew started later shares with its parent. */
void *crew_page(size_t bytes);
void crew_drop_page(void *page, size_t bytes);
/* The file behind a page; -1: it is none. */
int crew_page_fd(const void *page, size_t *bytes);

/* A number on such a page that only grows. */
typedef _Atomic uint32_t crew_flag;
void crew_raise(crew_flag *flag);
/* 1 when the flag is at least that, 0 when it was not in time. */
int crew_await(crew_flag *flag, uint32_t value, int timeout_ms);

/* Ends a rank's function with a line that says where and why. */
#define CREW_CHECK(c, rank, condition)                                 \
    do {                                                               \
        if (!(condition))                                              \
            return crew_fail(c, rank, __FILE__, __LINE__, #condition); \
    } while (0)
int crew_fail(const crew *c, int rank, const char *file, int line,
              const char *condition);

/* ---- numbers ------------------------------------------------------------- */

/* Milliseconds since a moment of oari_now_ns. */
int64_t crew_ms_since(int64_t ns);

/* So many milliseconds of an idle machine, on this one as it is now: as many
 * times more as there are threads for each core that want to run. */
int64_t crew_busy_ms(int64_t idle_ms);

/* Whether no more than that has passed since a moment of oari_now_ns. */
int crew_in_time(int64_t since_ns, int64_t idle_ms);

/* The next of a seeded row (splitmix64). */
uint64_t crew_random(uint64_t *seed);

/* Descriptors that this process has open, and entries of its memory map. */
int crew_descriptors(void);
int crew_mappings(void);

#endif
