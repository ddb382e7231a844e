/* SPDX-License-Identifier: Apache-2.0 */
/* thread: counts the cores of this process and starts threads without signals.
 */
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

int oari_cpus(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re"); /* of cgroup v2 */
    cpu_set_t mask;
    long quota = 0, period = 0;
    int cpus = 1;

    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        cpus = CPU_COUNT(&mask);
    if (file != NULL && fscanf(file, "%ld %ld", &quota, &period) == 2 &&
        quota > 0 && period > 0 && (quota + period - 1) / period < cpus)
        cpus = (int)((quota + period - 1) / period);
    if (file != NULL)
        fclose(file);
    return cpus > 0 ? cpus : 1;
}

void oari_cpu_bits(uint64_t *bits, int words)
{
    cpu_set_t mask;

    for (int i = 0; i < words; i++)
        bits[i] = 0;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        CPU_ZERO(&mask);
    for (int cpu = 0; cpu < 64 * words && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mask))
            bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

oar_status oari_thread_start(pthread_t *thread, const char *name,
                             void *(*body)(void *arg), void *arg)
{
    static const int kept[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    sigset_t all, before;
    char short_name[16];
    int failed;

    if (!oari_alloc_allowed(0)) /* for its stack */
        return oari_fail(OAR_E_NOMEM, "out of memory: the thread %s", name);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        sigdelset(&all, kept[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        errno = failed;
        return oari_fail(OAR_E_SYSTEM, "start the thread %s", name);
    }
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*thread, short_name);
    return OAR_OK;
}

void oari_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int oari_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock,
                   int64_t deadline_ns)
{
    struct timespec until = { deadline_ns / 1000000000,
                              deadline_ns % 1000000000 };

    if (deadline_ns == OARI_NEVER)
        return pthread_cond_wait(cond, lock) == 0;
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

void oari_backoff(int64_t *since)
{
    enum { YIELD_NS = 100000, NAP_MAX_NS = 1000000 };
    int64_t now = oari_now_ns(), idle, nap;

    if (*since == 0)
        *since = now;
    idle = now - *since;
    nap = idle / 8 < NAP_MAX_NS ? idle / 8 : NAP_MAX_NS;
    if (idle < YIELD_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){ 0, nap }, NULL);
}
