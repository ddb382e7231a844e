/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_trace_clock: a new anchor is made a few times a second, because the
 * clocks drift, and used if it is known better than the last one by now. */
#include "device/cuda/cuda_trace_clock.h"

#include <sched.h>

#include "base/clock.h"

#define DRIFT 50e-6 /* of the clocks of a GPU and its host, at most */

enum {
    TIMED = 0,
    NON_BLOCKING = 1,
    ANCHOR_US = 250000,    /* after that another is made */
    WIDE_ANCHOR_US = 5000, /* after that, if the error is more than ... */
    WIDE_US = 20,
    FORCED_ANCHOR_US = 2000000, /* after that, whatever has begun */
    ANCHOR_LOOK_US = 20,        /* at a new anchor, at most */
    FIRST_LOOK_US = 5000,       /* at the first of a device */
    FIRST_TRIES = 3
};

static uint64_t ticks_of_us(int us)
{
    return (uint64_t)(us * 1e-6 * oari_ticks_per_second());
}

void oari_gpu_clock_init(oari_gpu_clock *t)
{
    atomic_store(&t->current, -1);
    t->candidate = -1;
}

oari_gpu_anchor *oari_gpu_clock_hold(oari_gpu_clock *t)
{
    for (;;) {
        int k = atomic_load(&t->current);

        if (k < 0)
            return NULL;
        atomic_fetch_add(&t->anchor[k].users, 1);
        if (atomic_load(&t->current) == k)
            return &t->anchor[k];
        atomic_fetch_sub(&t->anchor[k].users, 1);
    }
}

int oari_gpu_anchor_see(const oari_cuda *cu, oari_gpu_anchor *a)
{
    if (a->after != 0)
        return 1;
    if (cu->EventQuery(a->event) != OARI_CU_SUCCESS)
        return 0;
    a->after = oari_ticks();
    return 1;
}

void oari_gpu_anchor_bound(oari_gpu_anchor *a, uint64_t low, uint64_t high)
{
    if (a->used)
        return;
    if (low > a->before && low < a->after)
        a->before = low;
    if (high < a->after && high > a->before)
        a->after = high;
}

double oari_gpu_anchor_width(const oari_gpu_anchor *a, uint64_t age)
{
    return (double)(a->after - a->before) + 2 * DRIFT * (double)age;
}

/* Records an anchor, and looks for it that long at most. */
static void make_candidate(oari_gpu_clock *t, const oari_cuda *cu, int look_us)
{
    int next = (atomic_load(&t->current) + 1) % OARI_GPU_ANCHORS;
    oari_gpu_anchor *a = &t->anchor[next];
    uint64_t until;

    t->candidate = -1;
    if (atomic_load(&a->users) != 0 ||
        (t->stream == NULL &&
         cu->StreamCreateWithPriority(&t->stream, NON_BLOCKING, 0) !=
             OARI_CU_SUCCESS) ||
        (a->event == NULL &&
         cu->EventCreate(&a->event, TIMED) != OARI_CU_SUCCESS))
        return;
    a->before = oari_ticks();
    a->after = 0;
    a->used = 0;
    a->number = ++t->made;
    if (cu->EventRecord(a->event, t->stream) != OARI_CU_SUCCESS)
        return;
    t->candidate = next;
    until = a->before + ticks_of_us(look_us);
    while (!oari_gpu_anchor_see(cu, a) && oari_ticks() < until)
        sched_yield();
}

/* Makes the candidate the anchor of what begins from now on. */
static void adopt_candidate(oari_gpu_clock *t)
{
    atomic_store(&t->current, t->candidate);
    t->candidate = -1;
}

/* The first thing on a stream takes longer: there is more than one try. */
static void make_first_anchor(oari_gpu_clock *t, const oari_cuda *cu)
{
    for (int i = 0; i < FIRST_TRIES; i++) {
        const oari_gpu_anchor *a = &t->anchor[0];

        make_candidate(t, cu, FIRST_LOOK_US);
        if (a->after != 0 && a->after - a->before <= ticks_of_us(2 * WIDE_US))
            break;
    }
    if (t->candidate >= 0)
        adopt_candidate(t);
}

/* Makes another anchor, if the last is old or not exact, and uses it when it is
 * known better than that. */
static void make_next_anchor(oari_gpu_clock *t, const oari_cuda *cu,
                             int running)
{
    oari_gpu_anchor *a = &t->anchor[atomic_load(&t->current)], *c;
    uint64_t now = oari_ticks(), age = now - a->before;
    int wide = oari_gpu_anchor_see(cu, a) &&
               oari_gpu_anchor_width(a, 0) > ticks_of_us(2 * WIDE_US);

    if (running != 0 && age < ticks_of_us(FORCED_ANCHOR_US))
        return;
    c = t->candidate >= 0 ? &t->anchor[t->candidate] : NULL;
    if ((c == NULL && age > ticks_of_us(wide ? WIDE_ANCHOR_US : ANCHOR_US)) ||
        (c != NULL && c->after != 0 &&
         now - c->before > ticks_of_us(WIDE_ANCHOR_US))) {
        make_candidate(t, cu, ANCHOR_LOOK_US);
        c = t->candidate >= 0 ? &t->anchor[t->candidate] : NULL;
    }
    if (c != NULL && oari_gpu_anchor_see(cu, c) && a->after != 0 &&
        oari_gpu_anchor_width(c, 0) < oari_gpu_anchor_width(a, age))
        adopt_candidate(t);
}

void oari_gpu_clock_renew(oari_gpu_clock *t, const oari_cuda *cu, int running)
{
    if (atomic_load(&t->current) < 0)
        make_first_anchor(t, cu);
    else
        make_next_anchor(t, cu, running);
}

void oari_gpu_clock_see(oari_gpu_clock *t, const oari_cuda *cu)
{
    int current = atomic_load(&t->current);

    if (current >= 0)
        oari_gpu_anchor_see(cu, &t->anchor[current]);
    if (t->candidate >= 0)
        oari_gpu_anchor_see(cu, &t->anchor[t->candidate]);
}
