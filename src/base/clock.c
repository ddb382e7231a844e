/* SPDX-License-Identifier: Apache-2.0 */
/* clock: both clocks at once, the rate of the raw counter, deadlines, and
 * durations as text. */
#include "base/clock.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>

enum { TRIES = 5 };

static pthread_once_t rate_once = PTHREAD_ONCE_INIT;
static double rate;

oari_moment oari_moment_now(void)
{
    oari_moment best = { 0 };
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < TRIES; i++) {
        uint64_t before = oari_ticks(), passed;
        int64_t ns = oari_now_ns();

        passed = oari_ticks() - before;
        if (passed < least) {
            least = passed;
            best = (oari_moment){ ns, before + passed / 2 };
        }
    }
    return best;
}

static void measure_rate(void)
{
#if defined(__aarch64__)
    uint64_t hertz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
    rate = (double)hertz;
#else
    oari_moment from = oari_moment_now(), to;

    do
        to = oari_moment_now();
    while (to.ns - from.ns < 1000000);
    rate = (double)(to.ticks - from.ticks) * 1e9 / (double)(to.ns - from.ns);
#endif
}

double oari_ticks_per_second(void)
{
    pthread_once(&rate_once, measure_rate);
    return rate;
}

int64_t oari_deadline(int64_t timeout_ms)
{
    if (timeout_ms < 0 || timeout_ms > INT64_MAX / 2000000)
        return OARI_NEVER;
    return oari_now_ns() + timeout_ms * 1000000;
}

int oari_deadline_left_ms(int64_t deadline_ns)
{
    int64_t left;

    if (deadline_ns == OARI_NEVER)
        return -1;
    left = (deadline_ns - oari_now_ns() + 999999) / 1000000;
    if (left <= 0)
        return 0;
    return left > INT_MAX ? INT_MAX : (int)left;
}

void oari_duration_text(int64_t ns, char *text, size_t bytes)
{
    if (ns < 10 * INT64_C(1000000000))
        snprintf(text, bytes, "%.1f s", (double)ns / 1e9);
    else
        snprintf(text, bytes, "%" PRId64 " s", ns / 1000000000);
}
