/* SPDX-License-Identifier: Apache-2.0 */
/* shm: slots, sync points, sleeping and waking. See control_page.h.
 *
 * How no wake-up is lost: a rank that is about to sleep stores `sleeping` and
 * then loads the stamps; a rank that arrives stores its stamp and then loads
 * `sleeping`. Both have a seq_cst fence between the store and the load, so at
 * least one of the two sees the other, on either architecture.
 */
#include "link/shm/control_page.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

enum {
    CONTROL_VERSION = 10,
    DEFAULT_SPIN_US = 50,
    LATE_POLLS = 32,
    EXPECTED = 16 /* of so many ranks cache lines are fetched ahead */
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

size_t oari_sync_slot_bytes(size_t small_bytes)
{
    return small_bytes > OARI_SLOT_BYTES ? small_bytes : OARI_SLOT_BYTES;
}

oari_control_layout oari_control_page_layout(int ranks, size_t small_bytes,
                                             size_t stage_bytes)
{
    oari_control_layout l;
    size_t line =
        round_up(sizeof(oari_sync_slot) + oari_sync_slot_bytes(small_bytes),
                 OARI_SLOT_ALIGN);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    l.slot = round_up(sizeof(oari_control_page), OARI_SLOT_ALIGN);
    l.slot_step = line;
    l.taken = l.slot + OARI_SLOTS * line;
    l.stage = round_up(l.taken + (size_t)ranks * OARI_SLOT_ALIGN, page);
    l.stage_room = 3 * round_up(stage_bytes, page);
    l.mail = l.stage + l.stage_room;
    l.ring = OARI_SHM_QUEUE_COUNTER + (ranks <= OARI_SHM_QUEUE_FEW
                                           ? OARI_SHM_QUEUE_MOST
                                           : OARI_SHM_QUEUE_BYTES);
    l.first = round_up(l.mail + (size_t)ranks * l.ring, page);
    l.bytes = l.first + page;
    return l;
}

oar_status oari_shm_init(oari_shm *shm)
{
    size_t n = (size_t)shm->ranks;

    shm->wait_fd = -1;
    shm->control = oari_alloc(n, sizeof *shm->control);
    shm->gone = oari_alloc(n, sizeof *shm->gone);
    shm->recorder = oari_alloc(n, sizeof *shm->recorder);
    shm->slots = oari_alloc(n, sizeof *shm->slots);
    shm->event = oari_alloc(n, sizeof *shm->event);
    for (size_t i = 0; shm->event != NULL && i < n; i++)
        shm->event[i] = -1;
    if (shm->control == NULL || shm->gone == NULL || shm->recorder == NULL ||
        shm->slots == NULL || shm->event == NULL)
        return OAR_E_NOMEM;
    return OAR_OK;
}

void oari_shm_clear(oari_shm *shm)
{
    oari_free(shm->control);
    oari_free(shm->gone);
    oari_free(shm->recorder);
    oari_free(shm->slots);
    oari_free(shm->event);
    memset(shm, 0, sizeof *shm);
    shm->wait_fd = -1;
}

void oari_control_page_init(oari_control_page *control, int rank, int ranks,
                            size_t small_bytes, size_t stage_bytes)
{
    control->version = CONTROL_VERSION;
    control->rank = rank;
    control->ranks = ranks;
    control->pid = getpid();
    control->address = (uint64_t)(uintptr_t)control;
    control->small_bytes = small_bytes;
    control->stage_bytes = stage_bytes;
    if (getrandom(&control->queue_key, sizeof control->queue_key, 0) < 0)
        control->queue_key =
            oari_ticks(); /* only to tell stamps from old bytes */
    control->cpus = oari_cpus();
    oari_cpu_bits(control->core, OARI_CORE_WORDS);
}

/* Returns whether there are `each` cores for every rank that may run only where
 * c may. Launchers may have bound each rank to cores of its own: then it has
 * few, and they are enough. A quota below the cores that it may run on is for
 * all ranks together. */
static int has_room(const oari_shm *shm, const oari_control_page *c, int each)
{
    int cores = 0, inside = 0;

    for (int i = 0; i < OARI_CORE_WORDS; i++)
        cores += __builtin_popcountll(c->core[i]);
    for (int r = 0; r < shm->ranks; r++) {
        uint64_t outside = 0;

        for (int i = 0; i < OARI_CORE_WORDS; i++)
            outside |= shm->control[r]->core[i] & ~c->core[i];
        inside += outside == 0;
    }
    return each * inside <= cores &&
           (c->cpus >= cores || each * shm->ranks <= c->cpus);
}

/* Gives the same answer on all ranks. */
static int all_have_room(const oari_shm *shm, int each)
{
    for (int r = 0; r < shm->ranks; r++)
        if (!has_room(shm, shm->control[r], each))
            return 0;
    return 1;
}

oar_status oari_shm_ready(oari_shm *shm, int64_t spin_us)
{
    const oari_control_page *first = shm->control[0];

    for (int r = 0; r < shm->ranks; r++) {
        const oari_control_page *c = shm->control[r];
        unsigned char *base = (unsigned char *)shm->control[r];

        if (c->version != CONTROL_VERSION || c->rank != r ||
            c->ranks != shm->ranks || c->small_bytes != first->small_bytes ||
            c->stage_bytes != first->stage_bytes)
            return oari_fail(OAR_E_MISMATCH,
                             "rank %d calls itself rank %d of %d, with slots "
                             "of %llu and bounce buffers of %llu bytes; rank 0 "
                             "says "
                             "%d ranks, %llu and %llu bytes",
                             r, c->rank, c->ranks,
                             (unsigned long long)c->small_bytes,
                             (unsigned long long)c->stage_bytes, first->ranks,
                             (unsigned long long)first->small_bytes,
                             (unsigned long long)first->stage_bytes);
        shm->slots[r] = base + shm->layout.slot;
    }
    shm->small_bytes = first->small_bytes;
    shm->stage_bytes = first->stage_bytes;
    shm->crowded = !all_have_room(shm, 1);
    shm->adapts = spin_us == 0 && !shm->crowded;
    if (spin_us == 0) /* it helps only if every rank has a core of its own */
        spin_us = shm->adapts ? DEFAULT_SPIN_US : 0;
    shm->spin_ns = spin_us > 0 ? spin_us * 1000 : 0;
    shm->spare = all_have_room(shm, 2);
    return OAR_OK;
}

unsigned char *oari_shm_bounce_buffer(const oari_shm *shm, int rank)
{
    return (unsigned char *)shm->control[rank] + shm->layout.stage;
}

int oari_shm_rank(const oari_shm *shm, int group_rank)
{
    if (shm->member == NULL)
        return group_rank < shm->ranks ? group_rank : -1;
    for (int r = 0; r < shm->ranks; r++)
        if (shm->member[r] == group_rank)
            return r;
    return -1;
}

/* ---- sync points --------------------------------------------------------- */

oari_sync_slot *oari_shm_next_slot(oari_shm *shm)
{
    return oari_sync_slot_at(shm, shm->rank, shm->sync_point + 1);
}

/* While this rank waits, it fetches the cache line that it writes next: that
 * one has been with the others since they read it. */
void oari_sync_begin(oari_shm *shm, int awaited)
{
    oari_sync_slot *mine = oari_shm_next_slot(shm);

    shm->sync_point++;
    shm->awaited = awaited;
    shm->arrived = 0;
    shm->woken = 0;
    shm->polls = 0;
    atomic_store_explicit(&mine->stamp, shm->sync_point, memory_order_release);
    oari_prefetch_to_write(oari_shm_next_slot(shm));
}

/* The first load has no order: an acquiring load would wait for the stamp that
 * this rank has just stored. */
static int has_arrived(const oari_shm *shm, int rank)
{
    const _Atomic uint64_t *stamp = &oari_sync_slot_of(shm, rank)->stamp;

    return atomic_load_explicit(stamp, memory_order_relaxed) ==
               shm->sync_point &&
           atomic_load_explicit(stamp, memory_order_acquire) == shm->sync_point;
}

/* The bare system call is no cancellation point, unlike write: a thread that
 * holds the engine's token comes here (comm/engine/engine.c). */
static void ring_event(int event)
{
    uint64_t one = 1;

    if (event >= 0 && syscall(SYS_write, event, &one, sizeof one) < 0)
        return; /* full: it will wake anyway */
}

static void ring_if_sleeping(oari_shm *shm, int rank)
{
    if (atomic_load_explicit(&shm->control[rank]->sleeping,
                             memory_order_relaxed))
        ring_event(shm->event[rank]);
}

void oari_sync_wake(oari_shm *shm)
{
    atomic_thread_fence(memory_order_seq_cst); /* after the stamp */
    for (int r = 0; r < shm->ranks; r++)
        if (r != shm->rank)
            ring_if_sleeping(shm, r);
    shm->woken = 1;
}

static int all_have_arrived(oari_shm *shm)
{
    while (shm->arrived < shm->ranks) {
        if (shm->arrived != shm->rank && !has_arrived(shm, shm->arrived))
            return 0;
        shm->arrived++;
    }
    return 1;
}

/* Returns whether the awaited ranks have arrived. */
static int is_there(oari_shm *shm)
{
    if (shm->awaited != OARI_AWAIT_ALL)
        return shm->awaited == OARI_AWAIT_NONE ||
               has_arrived(shm, shm->awaited);
    if (!all_have_arrived(shm))
        return 0;
    shm->complete = shm->sync_point;
    return 1;
}

/* Where ranks share cores, only the last one wakes the others: a rank that is
 * woken before that takes a core from those that are still on their way, and N
 * ranks would wake each other N * N times. All ranks have a fence between their
 * stamp and this look, so the one whose fence is the last sees all stamps. A
 * rank that awaits none may be the only one that others await. */
static int poll_crowded(oari_shm *shm)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (shm->awaited == OARI_AWAIT_NONE || all_have_arrived(shm))
        oari_sync_wake(shm);
    shm->woken = 1;
    return is_there(shm);
}

/* Sleepers are looked for once the awaited ranks have arrived, or after a
 * while: by then the fence that this needs is cheap, because the stamp has
 * drained. */
int oari_sync_poll(oari_shm *shm)
{
    int there;

    if (!shm->woken && shm->spin_ns == 0)
        return poll_crowded(shm);
    there = is_there(shm);
    if (!shm->woken && (there || ++shm->polls == LATE_POLLS))
        oari_sync_wake(shm);
    return there;
}

int oari_sync_awaits(const oari_shm *shm, int rank)
{
    return rank != shm->rank &&
           (shm->awaited == OARI_AWAIT_ALL || shm->awaited == rank) &&
           !has_arrived(shm, rank);
}

int oari_sync_missing(const oari_shm *shm)
{
    for (int r = 0; r < shm->ranks; r++)
        if (oari_sync_awaits(shm, r))
            return r;
    return -1;
}

/* ---- collectives of an external engine -------------------------------------
 */

void oari_shm_show_post(oari_shm *shm, uint64_t number, uint64_t link)
{
    oari_control_page *mine = shm->control[shm->rank];

    atomic_store_explicit(&mine->posted[number % OARI_POSTS_KEPT],
                          number << 32 | (link & UINT32_MAX),
                          memory_order_release);
}

void oari_shm_complete_post(oari_shm *shm, uint64_t number)
{
    oari_control_page *mine = shm->control[shm->rank];

    atomic_store_explicit(&mine->over[number % OARI_POSTS_KEPT], number,
                          memory_order_release);
}

/* A later collective in the same place has completed only after this one: fewer
 * than OARI_POSTS_KEPT are in flight at once. */
int oari_shm_has_completed_post(const oari_shm *shm, int rank, uint64_t number)
{
    const oari_control_page *theirs = shm->control[rank];

    return atomic_load_explicit(&theirs->over[number % OARI_POSTS_KEPT],
                                memory_order_acquire) >= number;
}

/* The load is relaxed: one that acquires would wait until other ranks see what
 * this rank has just written, and nothing is published behind the word. The
 * upper half is the number, which may have wrapped. */
int oari_shm_compare_post(const oari_shm *shm, int rank, uint64_t number,
                          uint64_t link)
{
    uint64_t word = atomic_load_explicit(
        &shm->control[rank]->posted[number % OARI_POSTS_KEPT],
        memory_order_relaxed);
    int32_t later = (int32_t)((uint32_t)(word >> 32) - (uint32_t)number);

    if (later != 0)
        return later > 0 ? OARI_POST_SAME : OARI_POST_MISSING;
    return (uint32_t)word == (uint32_t)link ? OARI_POST_SAME : OARI_POST_OTHER;
}

void oari_shm_prefetch_post(const oari_shm *shm, uint64_t number)
{
    int few = shm->ranks < EXPECTED ? shm->ranks : EXPECTED;

    __builtin_prefetch(
        &shm->control[shm->rank]->posted[number % OARI_POSTS_KEPT], 1);
    for (int r = 0; r < few; r++)
        if (r != shm->rank)
            __builtin_prefetch(
                &shm->control[r]->posted[number % OARI_POSTS_KEPT]);
}

/* ---- waking and sleeping ------------------------------------------------- */

void oari_shm_notify(oari_shm *shm, int rank)
{
    atomic_thread_fence(memory_order_seq_cst); /* after what is new */
    ring_if_sleeping(shm, rank);
}

void oari_shm_stir(oari_shm *shm, int rank)
{
    ring_if_sleeping(shm, rank);
}

void oari_shm_wake(oari_shm *shm)
{
    ring_event(shm->event[shm->rank]);
}

void oari_shm_arm(oari_shm *shm)
{
    atomic_store_explicit(&shm->control[shm->rank]->sleeping, 1,
                          memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

void oari_shm_awake(oari_shm *shm)
{
    atomic_store_explicit(&shm->control[shm->rank]->sleeping, 0,
                          memory_order_relaxed);
}

void oari_shm_sleep(oari_shm *shm, int other, int64_t deadline_ns)
{
    struct pollfd wait[] = { { shm->wait_fd, POLLIN, 0 },
                             { other, POLLIN, 0 } };

    poll(wait, other >= 0 ? 2 : 1, oari_deadline_left_ms(deadline_ns));
    oari_shm_rise(shm);
}

void oari_shm_rise(oari_shm *shm)
{
    uint64_t drained;

    oari_shm_awake(shm);
    if (read(shm->event[shm->rank], &drained, sizeof drained) < 0)
        drained = 0; /* none: it was the deadline, or the end of a peer */
    shm->ops->check(shm->self);
}

/* ---- faults -------------------------------------------------------------- */

void oari_shm_publish(oari_shm *shm, oari_fact fact, const oari_fault *fault)
{
    uint32_t none = 0;

    if (!oari_bulletin_write_fault(oari_shm_bulletin(shm, shm->rank), fact,
                                   fault))
        return;
    atomic_compare_exchange_strong(&shm->first[fact], &none,
                                   (uint32_t)shm->rank + 1);
    atomic_thread_fence(memory_order_seq_cst); /* before any later store */
    for (int r = 0; r < shm->ranks; r++)
        ring_event(shm->event[r]);
}

/* Mostly there is none, and the relaxed load waits for nothing. */
int oari_shm_published(const oari_shm *shm, oari_fact fact, oari_fault *fault)
{
    uint32_t first;

    if (shm->first == NULL /* not ready yet */ ||
        atomic_load_explicit(&shm->first[fact], memory_order_relaxed) == 0)
        return 0;
    first = atomic_load_explicit(&shm->first[fact], memory_order_acquire);
    return first <= (uint32_t)shm->ranks &&
           oari_bulletin_read_fault(oari_shm_bulletin(shm, (int)first - 1),
                                    fact, fault);
}
