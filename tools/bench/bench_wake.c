/* SPDX-License-Identifier: Apache-2.0 */
/* bench: how long the system takes to wake a thread that sleeps, without the
 * library: what a call from sleep cannot be faster than. */
#include "bench_wake.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct sleeper {
    int by_futex, event;
    atomic_uint word;  /* how often it was woken; the futex */
    atomic_uint awake; /* how often it has seen that */
    unsigned count;
} sleeper;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Sleeps until it was woken once more than `seen` times. */
static void sleep_until(sleeper *s, unsigned seen)
{
    uint64_t drained;

    while (atomic_load(&s->word) == seen)
        if (s->by_futex)
            syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL,
                    0);
        else if (read(s->event, &drained, sizeof drained) < 0)
            continue;
}

static void *run_sleeper(void *arg)
{
    sleeper *s = arg;

    for (unsigned i = 0; i < s->count; i++) {
        sleep_until(s, i);
        atomic_store(&s->awake, i + 1);
    }
    return NULL;
}

static void wake(sleeper *s)
{
    uint64_t one = 1;

    atomic_fetch_add(&s->word, 1);
    if (s->by_futex)
        syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    else if (write(s->event, &one, sizeof one) < 0)
        return; /* it is readable already */
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_wake_us(int by_futex, unsigned count, unsigned pause_ms)
{
    struct timespec nap = { 0, (long)pause_ms * 1000000 };
    sleeper s = { .by_futex = by_futex, .event = -1, .count = count };
    double *us = calloc(count, sizeof *us), median = -1;
    pthread_t thread;

    s.event = eventfd(0, EFD_CLOEXEC);
    if (us != NULL && s.event >= 0 &&
        pthread_create(&thread, NULL, run_sleeper, &s) == 0) {
        for (unsigned i = 0; i < count; i++) {
            double began;

            nanosleep(&nap, NULL);
            began = now_us();
            wake(&s);
            while (atomic_load(&s.awake) <= i)
                ;
            us[i] = now_us() - began;
        }
        pthread_join(thread, NULL);
        qsort(us, count, sizeof *us, by_time);
        median = us[count / 2];
    }
    if (s.event >= 0)
        close(s.event);
    free(us);
    return median;
}
