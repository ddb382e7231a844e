/* SPDX-License-Identifier: Apache-2.0 */
/* support/test_job.h: a job whose ranks are processes that may stop, die or
 * hang.
 *
 * Unlike oar_launch, it leaves the other ranks alone when one of them ends: the
 * tests look at what those do. The processes share pages and flags that the
 * parent made before it started them; every wait has a deadline.
 */
#ifndef TESTS_SUPPORT_TEST_JOB_H
#define TESTS_SUPPORT_TEST_JOB_H

#include <stdatomic.h>
#include <sys/types.h>

#include "support/ranks.h"

enum {
    TEST_JOB_RANKS = 8,
    TEST_JOB_LIMIT_MS = 40000,
    TEST_JOB_LATE = -1,
    TEST_JOB_GONE = -2 /* under MPI: ended without an exit code */
};

typedef struct test_job {
    int ranks;
    pid_t pid[TEST_JOB_RANKS]; /* 0: not running */
    char folder[128];          /* TMPDIR of the ranks; their store is in it */
    char what[256];            /* the scenario, for messages */
    struct mpi_ranks *mpi;     /* NULL: the ranks are children */
} test_job;

/* What a rank does; 0 is success. */
typedef int (*test_job_fn)(test_job *c, int rank, void *arg);

/* Whether a sanitizer looks for leaks when a process exits. That takes seconds
 * where there are threads, and in a forked child it reports what was on stacks
 * that no longer exist; so it is off in programs with test jobs unless they
 * turn it on. */
extern int test_job_checks_leaks;

/* Starts the ranks; the format says what is tested, for messages. Ends the test
 * if that fails. */
void test_job_start(test_job *c, int ranks, test_job_fn fn, void *arg,
                    const char *format, ...) OAR_PRINTF(5, 6);

/* Starts a rank again that has ended (test_job_expect). */
void test_job_restart(test_job *c, int rank, test_job_fn fn, void *arg);

/* In a rank: makes its group over "shm", unless opts name another backend;
 * opens the job's store. */
oar_status test_job_join(const test_job *c, int rank,
                         const oar_group_opts *opts, oar_group **group);
oar_status test_job_store(const test_job *c, oar_store **store);

/* Waits for the end of a rank. Returns its exit code, 128 + the signal that
 * killed it, or TEST_JOB_LATE; under MPI also TEST_JOB_GONE. */
int test_job_wait(test_job *c, int rank, int timeout_ms);

/* Waits until a signal has stopped the rank. Returns 0 if none has in time. */
int test_job_wait_stopped(test_job *c, int rank, int timeout_ms);

/* Asserts that a rank ends with this code, as test_job_wait returns it. */
void test_job_expect(test_job *c, int rank, int code);

/* Asserts that all ranks have ended and have left nothing behind: no process,
 * no file in their TMPDIR and none of ours in /dev/shm. Ends the ranks that are
 * left. */
void test_job_end(test_job *c);

/* Does the same without asserting. Returns NULL, or what was wrong (valid until
 * the next call). */
const char *test_job_close(test_job *c);

/* Ends the ranks that are left, and fails the test. */
void test_job_give_up(test_job *c, const char *format, ...) OAR_PRINTF(2, 3);

/* Makes the ranks' TMPDIR. For test_job_start and mpi_ranks_start. */
void test_job_make_folder(test_job *c);

/* Returns zeroed pages that ranks started later share with their parent. */
void *shared_page(size_t bytes);
void shared_page_free(void *page, size_t bytes);
/* Returns the file descriptor behind such pages, or -1. */
int shared_page_fd(const void *page, size_t *bytes);

/* A number on such a page that only grows; raising adds 1. */
typedef _Atomic uint32_t shared_flag;
void shared_flag_raise(shared_flag *flag);
/* Waits until the flag is at least that. Returns 0 if it was not in time. */
int shared_flag_await(shared_flag *flag, uint32_t value, int timeout_ms);

/* Ends a rank's function with a line that says where and why. The short forms
 * are for functions whose parameters are called c and rank. */
#define JOB_CHECK_TEXT(c, rank, condition, text)                     \
    do {                                                             \
        if (!(condition))                                            \
            return test_job_fail(c, rank, __FILE__, __LINE__, text); \
    } while (0)
#define JOB_CHECK(c, rank, condition) \
    JOB_CHECK_TEXT(c, rank, condition, #condition)
#define RANK_CHECK(condition) JOB_CHECK_TEXT(c, rank, condition, #condition)
#define RANK_OK(call)         JOB_CHECK_TEXT(c, rank, (call) == OAR_OK, #call)
#define RANK_ZERO(call)       JOB_CHECK_TEXT(c, rank, (call) == 0, #call)
int test_job_fail(const test_job *c, int rank, const char *file, int line,
                  const char *condition);

/* ---- numbers ------------------------------------------------------------- */

/* Returns the milliseconds since a moment of oari_now_ns. */
int64_t ms_since(int64_t ns);

/* Returns how long something may take on this machine as it is now that takes
 * idle_ms on an idle one: longer by the number of runnable threads for each
 * core. */
int64_t busy_ms(int64_t idle_ms);

/* Returns whether no more than busy_ms(idle_ms) has passed since a moment of
 * oari_now_ns. */
int is_in_time(int64_t since_ns, int64_t idle_ms);

/* Returns the next number of a sequence (splitmix64). */
uint64_t next_random(uint64_t *seed);

/* Return how many descriptors this process has open, and how many entries its
 * memory map has. */
int open_descriptors(void);
int memory_mappings(void);

#endif
