/* SPDX-License-Identifier: Apache-2.0 */
/* board: slots, sync points, sleeping and waking. See board.h.
 *
 * How no wake-up is lost: a rank that is about to sleep stores `sleeping` and
 * then loads the stamps; a rank that arrives stores its stamp and then loads
 * `sleeping`. Both have a seq_cst fence between the store and the load, so at
 * least one of the two sees the other, on either architecture.
 */
#include "link/shm/board.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

enum {
    CONTROL_VERSION = 7,
    DEFAULT_SPIN_US = 50,
    LATE_POLLS = 32,
    EXPECTED = 16 /* of so many ranks cache lines are fetched ahead */
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

size_t oari_line_bytes(size_t small_bytes)
{
    return small_bytes > OARI_LINE_BYTES ? small_bytes : OARI_LINE_BYTES;
}

oari_control_layout oari_board_layout(int ranks, size_t small_bytes,
                                      size_t stage_bytes)
{
    oari_control_layout l;
    size_t line = round_up(sizeof(oari_line) + oari_line_bytes(small_bytes),
                           OARI_LINE_ALIGN);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    l.line[0] = round_up(sizeof(oari_control), OARI_LINE_ALIGN);
    l.line[1] = l.line[0] + line;
    l.taken = l.line[1] + line;
    l.stage = round_up(l.taken + (size_t)ranks * OARI_LINE_ALIGN, page);
    l.stage_room = 3 * round_up(stage_bytes, page);
    l.mail = l.stage + l.stage_room;
    l.ring = OARI_MAIL_COUNTER +
             (ranks <= OARI_MAIL_FEW ? OARI_MAIL_MOST : OARI_MAIL_BYTES);
    l.first = round_up(l.mail + (size_t)ranks * l.ring, page);
    l.bytes = l.first + page;
    return l;
}

oar_status oari_board_init(oari_board *board)
{
    size_t n = (size_t)board->ranks;

    board->wait_fd = -1;
    board->control = oari_alloc(n, sizeof *board->control);
    board->gone = oari_alloc(n, sizeof *board->gone);
    board->recorder = oari_alloc(n, sizeof *board->recorder);
    board->line = oari_alloc(n, sizeof *board->line);
    board->event = oari_alloc(n, sizeof *board->event);
    for (size_t i = 0; board->event != NULL && i < n; i++)
        board->event[i] = -1;
    if (board->control == NULL || board->gone == NULL ||
        board->recorder == NULL || board->line == NULL || board->event == NULL)
        return OAR_E_NOMEM;
    return OAR_OK;
}

void oari_board_clear(oari_board *board)
{
    oari_free(board->control);
    oari_free(board->gone);
    oari_free(board->recorder);
    oari_free(board->line);
    oari_free(board->event);
    memset(board, 0, sizeof *board);
    board->wait_fd = -1;
}

void oari_control_init(oari_control *control, int rank, int ranks,
                       size_t small_bytes, size_t stage_bytes)
{
    control->version = CONTROL_VERSION;
    control->rank = rank;
    control->ranks = ranks;
    control->pid = getpid();
    control->small_bytes = small_bytes;
    control->stage_bytes = stage_bytes;
    if (getrandom(&control->mail_key, sizeof control->mail_key, 0) < 0)
        control->mail_key =
            oari_ticks(); /* only to tell stamps from old bytes */
    control->cpus = oari_cpus();
    oari_cpu_bits(control->core, OARI_CORE_WORDS);
}

/* Returns whether there are `each` cores for every rank that may run only where
 * c may. Launchers may have bound each rank to cores of its own: then it has
 * few, and they are enough. A quota below the cores that it may run on is for
 * all ranks together. */
static int has_room(const oari_board *board, const oari_control *c, int each)
{
    int cores = 0, inside = 0;

    for (int i = 0; i < OARI_CORE_WORDS; i++)
        cores += __builtin_popcountll(c->core[i]);
    for (int r = 0; r < board->ranks; r++) {
        uint64_t outside = 0;

        for (int i = 0; i < OARI_CORE_WORDS; i++)
            outside |= board->control[r]->core[i] & ~c->core[i];
        inside += outside == 0;
    }
    return each * inside <= cores &&
           (c->cpus >= cores || each * board->ranks <= c->cpus);
}

/* Gives the same answer on all ranks. */
static int all_have_room(const oari_board *board, int each)
{
    for (int r = 0; r < board->ranks; r++)
        if (!has_room(board, board->control[r], each))
            return 0;
    return 1;
}

oar_status oari_board_ready(oari_board *board, int64_t spin_us)
{
    const oari_control *first = board->control[0];

    for (int r = 0; r < board->ranks; r++) {
        const oari_control *c = board->control[r];
        unsigned char *base = (unsigned char *)board->control[r];

        if (c->version != CONTROL_VERSION || c->rank != r ||
            c->ranks != board->ranks || c->small_bytes != first->small_bytes ||
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
        for (int i = 0; i < 2; i++)
            board->line[r][i] = (oari_line *)(base + board->layout.line[i]);
    }
    board->small_bytes = first->small_bytes;
    board->stage_bytes = first->stage_bytes;
    if (spin_us == 0) /* it helps only if every rank has a core of its own */
        spin_us = all_have_room(board, 1) ? DEFAULT_SPIN_US : 0;
    board->spin_ns = spin_us > 0 ? spin_us * 1000 : 0;
    board->spare = all_have_room(board, 2);
    return OAR_OK;
}

unsigned char *oari_board_stage(const oari_board *board, int rank)
{
    return (unsigned char *)board->control[rank] + board->layout.stage;
}

int oari_board_rank(const oari_board *board, int group_rank)
{
    if (board->member == NULL)
        return group_rank < board->ranks ? group_rank : -1;
    for (int r = 0; r < board->ranks; r++)
        if (board->member[r] == group_rank)
            return r;
    return -1;
}

/* ---- sync points --------------------------------------------------------- */

oari_line *oari_board_line(oari_board *board)
{
    return board->line[board->rank][(board->meeting + 1) & 1];
}

void oari_meet_begin(oari_board *board)
{
    oari_line *mine = oari_board_line(board);

    board->meeting++;
    board->arrived = 0;
    board->woken = 0;
    board->polls = 0;
    atomic_store_explicit(&mine->stamp, board->meeting, memory_order_release);
}

/* The first load has no order: an acquiring load would wait for the stamp that
 * this rank has just stored. */
static int has_arrived(const oari_board *board, int rank)
{
    const _Atomic uint64_t *stamp =
        &board->line[rank][board->meeting & 1]->stamp;

    return atomic_load_explicit(stamp, memory_order_relaxed) ==
               board->meeting &&
           atomic_load_explicit(stamp, memory_order_acquire) == board->meeting;
}

static void ring_event(int event)
{
    uint64_t one = 1;

    if (event >= 0 && write(event, &one, sizeof one) < 0)
        return; /* full: it will wake anyway */
}

static void ring_if_sleeping(oari_board *board, int rank)
{
    if (atomic_load_explicit(&board->control[rank]->sleeping,
                             memory_order_relaxed))
        ring_event(board->event[rank]);
}

void oari_meet_wake(oari_board *board)
{
    atomic_thread_fence(memory_order_seq_cst); /* after the stamp */
    for (int r = 0; r < board->ranks; r++)
        if (r != board->rank)
            ring_if_sleeping(board, r);
    board->woken = 1;
}

/* Sleepers are looked for once all ranks have arrived, or after a while: by then
 * the fence that this needs is cheap, because the stamp has drained. */
int oari_meet_poll(oari_board *board)
{
    while (board->arrived < board->ranks) {
        if (board->arrived != board->rank &&
            !has_arrived(board, board->arrived))
            break;
        board->arrived++;
    }
    if (!board->woken && (board->arrived == board->ranks ||
                          board->spin_ns == 0 || ++board->polls == LATE_POLLS))
        oari_meet_wake(board);
    return board->arrived == board->ranks;
}

int oari_meet_missing(const oari_board *board)
{
    for (int r = board->arrived; r < board->ranks; r++)
        if (r != board->rank && !has_arrived(board, r))
            return r;
    return -1;
}

/* ---- collectives of an external engine -------------------------------------
 */

void oari_board_post(oari_board *board, uint64_t number, uint64_t link)
{
    oari_control *mine = board->control[board->rank];

    atomic_store_explicit(&mine->posted[number % OARI_POSTS_KEPT],
                          number << 32 | (link & UINT32_MAX),
                          memory_order_release);
}

void oari_board_end(oari_board *board, uint64_t number)
{
    oari_control *mine = board->control[board->rank];

    atomic_store_explicit(&mine->over[number % OARI_POSTS_KEPT], number,
                          memory_order_release);
}

/* A later collective in the same place has completed only after this one: fewer
 * than OARI_POSTS_KEPT are in flight at once. */
int oari_board_has_ended(const oari_board *board, int rank, uint64_t number)
{
    const oari_control *theirs = board->control[rank];

    return atomic_load_explicit(&theirs->over[number % OARI_POSTS_KEPT],
                                memory_order_acquire) >= number;
}

/* The load is relaxed: one that acquires would wait until other ranks see what
 * this rank has just written, and nothing is published behind the word. The
 * upper half is the number, which may have wrapped. */
int oari_board_compare(const oari_board *board, int rank, uint64_t number,
                       uint64_t link)
{
    uint64_t word = atomic_load_explicit(
        &board->control[rank]->posted[number % OARI_POSTS_KEPT],
        memory_order_relaxed);
    int32_t later = (int32_t)((uint32_t)(word >> 32) - (uint32_t)number);

    if (later != 0)
        return later > 0 ? OARI_POST_SAME : OARI_POST_MISSING;
    return (uint32_t)word == (uint32_t)link ? OARI_POST_SAME : OARI_POST_OTHER;
}

void oari_board_expect(const oari_board *board, uint64_t number)
{
    int few = board->ranks < EXPECTED ? board->ranks : EXPECTED;

    __builtin_prefetch(
        &board->control[board->rank]->posted[number % OARI_POSTS_KEPT], 1);
    for (int r = 0; r < few; r++)
        if (r != board->rank)
            __builtin_prefetch(
                &board->control[r]->posted[number % OARI_POSTS_KEPT]);
}

/* ---- waking and sleeping ------------------------------------------------- */

void oari_board_notify(oari_board *board, int rank)
{
    atomic_thread_fence(memory_order_seq_cst); /* after what is new */
    ring_if_sleeping(board, rank);
}

void oari_board_wake(oari_board *board)
{
    ring_event(board->event[board->rank]);
}

void oari_board_arm(oari_board *board)
{
    atomic_store_explicit(&board->control[board->rank]->sleeping, 1,
                          memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

void oari_board_awake(oari_board *board)
{
    atomic_store_explicit(&board->control[board->rank]->sleeping, 0,
                          memory_order_relaxed);
}

void oari_board_sleep(oari_board *board, int other, int64_t deadline_ns)
{
    struct pollfd wait[] = { { board->wait_fd, POLLIN, 0 },
                             { other, POLLIN, 0 } };
    uint64_t drained;

    poll(wait, other >= 0 ? 2 : 1, oari_deadline_left_ms(deadline_ns));
    oari_board_awake(board);
    if (read(board->event[board->rank], &drained, sizeof drained) < 0)
        drained = 0; /* none: it was the deadline, or the end of a peer */
    board->ops->check(board->self);
}

/* ---- faults -------------------------------------------------------------- */

void oari_board_publish(oari_board *board, oari_fact fact,
                        const oari_fault *fault)
{
    uint32_t none = 0;

    if (!oari_bulletin_write_fault(oari_board_bulletin(board, board->rank),
                                   fact, fault))
        return;
    atomic_compare_exchange_strong(&board->first[fact], &none,
                                   (uint32_t)board->rank + 1);
    atomic_thread_fence(memory_order_seq_cst); /* before any later store */
    for (int r = 0; r < board->ranks; r++)
        ring_event(board->event[r]);
}

/* Mostly there is none, and the relaxed load waits for nothing. */
int oari_board_published(const oari_board *board, oari_fact fact,
                         oari_fault *fault)
{
    uint32_t first;

    if (board->first == NULL /* not ready yet */ ||
        atomic_load_explicit(&board->first[fact], memory_order_relaxed) == 0)
        return 0;
    first = atomic_load_explicit(&board->first[fact], memory_order_acquire);
    return first <= (uint32_t)board->ranks &&
           oari_bulletin_read_fault(oari_board_bulletin(board, (int)first - 1),
                                    fact, fault);
}
