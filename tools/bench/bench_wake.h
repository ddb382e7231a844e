/* SPDX-License-Identifier: Apache-2.0 */
/* tools/bench/bench_wake.h: the time of a wake-up, as the system gives it. */
#ifndef BENCH_WAKE_H
#define BENCH_WAKE_H

/* Returns the median in microseconds from when a thread, after a pause, wakes
 * another one until it sees, spinning, that the other is awake; by a futex, or
 * by an eventfd. Below 0: it cannot be measured. */
double bench_wake_us(int by_futex, unsigned count, unsigned pause_ms);

#endif
