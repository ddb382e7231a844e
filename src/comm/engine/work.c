/* SPDX-License-Identifier: Apache-2.0 */
/* work: the life of one operation's handle. */
#include "comm/engine/work.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/engine/gpu_events.h"

/* A program that posts the same operations again and again needs no memory for
 * them once so many works as it has at once were made. */
enum { MOST_SPARES = 64, LABEL_ROOM = 96 };

static oar_work *take_spare(oari_engine *e)
{
    oar_work *work;

    pthread_mutex_lock(&e->spare_lock);
    work = e->spare;
    if (work != NULL) {
        e->spare = work->next;
        e->spares--;
    }
    pthread_mutex_unlock(&e->spare_lock);
    return work;
}

/* Returns a work with so many bytes behind it. */
static oar_work *find_work(oar_group *group, size_t room)
{
    oar_work *work = take_spare(&group->engine);

    if (work != NULL && work->room >= room)
        return work;
    oari_free(work);
    work = oari_alloc(1, sizeof *work + room);
    if (work != NULL)
        work->room = room;
    return work;
}

/* The counts and the label that the call points to are copied to behind the
 * work. */
oar_work *oari_work_make(oar_group *group, const oari_call *call)
{
    size_t n = (size_t)group->ranks, counts = 2 * n * sizeof(size_t);
    size_t label = call->label != NULL ? strlen(call->label) + 1 : 0;
    oar_work *work =
        find_work(group, counts + (label > LABEL_ROOM ? label : LABEL_ROOM));
    size_t *room;

    if (work == NULL)
        return NULL;
    room = (size_t *)(work + 1);
    oari_work_init(work, group, call);
    if (call->in_counts != NULL)
        work->call.in_counts =
            memcpy(room, call->in_counts, n * sizeof(size_t));
    if (call->out_counts != NULL)
        work->call.out_counts =
            memcpy(room + n, call->out_counts, n * sizeof(size_t));
    if (label != 0)
        work->call.label = memcpy(room + 2 * n, call->label, label);
    atomic_store(&work->holders, 1);
    return work;
}

void oari_work_free(oar_work *work)
{
    oari_engine *e;
    int kept;

    if (work == NULL)
        return;
    oari_gpu_unmark(work);
    oari_free(work->error);
    work->error = NULL;
    e = &work->group->engine;
    pthread_mutex_lock(&e->spare_lock);
    kept = e->spares < MOST_SPARES;
    if (kept) {
        work->next = e->spare;
        e->spare = work;
        e->spares++;
    }
    pthread_mutex_unlock(&e->spare_lock);
    if (!kept)
        oari_free(work);
}

void oari_work_drop_spares(oari_engine *engine)
{
    while (engine->spare != NULL)
        oari_free(take_spare(engine));
    pthread_mutex_destroy(&engine->spare_lock);
}

void oari_work_let_go(oar_work *work)
{
    if (atomic_fetch_sub(&work->holders, 1) == 1)
        oari_work_free(work);
}

uint64_t oari_work_record(oar_group *group, const oari_call *call,
                          uint64_t state)
{
    uint64_t sequence =
        atomic_fetch_add_explicit(&group->sequence, 1, memory_order_relaxed) +
        1;
    oari_operation op = oari_call_operation(call);

    oari_recorder_post(group->recorder, sequence, &op, state);
    return sequence;
}

oar_work *oari_work_make_whole(oar_group *group, int parts)
{
    oari_call none = { .kind = OAR_COLL_BARRIER, .root = -1 };
    oar_work *whole = oari_work_make(group, &none);

    if (whole == NULL)
        return NULL;
    atomic_store(&whole->parts, parts);
    return whole;
}

/* Counts a finished part; the last one finishes the whole. */
static void finish_part(oar_work *whole, oar_work *part, oar_status status)
{
    oari_engine *e = &whole->group->engine;

    if (status != OAR_OK) {
        pthread_mutex_lock(&e->lock);
        if (whole->failed == OAR_OK) {
            whole->failed = status;
            whole->call = part->call;
            whole->call.label = NULL; /* the part's own copy */
            whole->alone = part->alone;
            whole->error = part->error;
            part->error = NULL;
            whole->transfer = part->transfer;
            whole->inquired_ns = part->inquired_ns;
            if (part->inquired_ns != 0)
                memcpy(whole->sent, part->sent, sizeof whole->sent);
        }
        pthread_mutex_unlock(&e->lock);
    }
    if (atomic_fetch_sub(&whole->parts, 1) == 1)
        oari_work_finish(whole, whole->failed);
}

/* Stands where the function was: the work is over. */
static void no_function(void *arg, oar_status status)
{
    (void)arg;
    (void)status;
}

/* ---- functions of the user's --------------------------------------------- */

static _Thread_local const oar_group *function_of; /* on this thread, or NULL */
static _Thread_local const oar_work *ending;       /* whose function runs */

void oari_work_function_begin(const oar_group *group)
{
    function_of = group;
}

void oari_work_function_end(void)
{
    function_of = NULL;
}

int oari_work_function_runs(const oar_group *group)
{
    return function_of == group;
}

int oari_work_ends_here(const oar_work *work)
{
    return ending == work;
}

/* A function may end another group's work: by destroying that group. */
static void run_function(oar_work *work, oar_work_fn then)
{
    const oar_group *outer = function_of;
    const oar_work *outer_work = ending;

    if (work->alone && work->error != NULL)
        oari_fail_with(work->error);
    function_of = work->group;
    ending = work;
    then(work->then_arg, work->status);
    function_of = outer;
    ending = outer_work;
}

/* The function (oar_work_then) runs before the work counts as done, so that a
 * thread that waits for it finds that it has run; none can be set from then on.
 * A work on the stack is gone as soon as `done` is seen, so nothing of it is
 * touched after that. */
void oari_work_finish(oar_work *work, oar_status status)
{
    oari_engine *e = &work->group->engine;
    int on_stack = work->on_stack;
    oar_work *whole = work->whole;
    oar_work_fn then = NULL;

    work->status = status;
    if (work->mine) {
        atomic_store_explicit(&work->done, 1, memory_order_relaxed);
        return;
    }
    if (!on_stack &&
        !atomic_compare_exchange_strong(&work->then, &then, no_function))
        run_function(work, then);
    if (work->again) { /* it is posted once more, and not done */
        work->again = 0;
        oari_work_let_go(work);
        return;
    }
    atomic_store(&work->done, 1);
    /* a user that waits says so and then looks whether it is done (engine.c) */
    if (atomic_load(&e->waiters) != 0) {
        pthread_mutex_lock(&e->lock);
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    if (on_stack)
        return;
    if (whole != NULL)
        finish_part(whole, work, status);
    oari_work_let_go(work);
}

int oari_work_set_function(oar_work *work, oar_work_fn fn, void *arg)
{
    oari_engine *e = &work->group->engine;
    oar_work_fn before;

    pthread_mutex_lock(&e->lock); /* one thread at a time sets one */
    before = atomic_load(&work->then);
    if (before == NULL) {
        work->then_arg = arg;
        atomic_compare_exchange_strong(&work->then, &before, fn);
    }
    if (before == no_function)
        atomic_store(&work->then, fn);
    pthread_mutex_unlock(&e->lock);
    if (before == no_function)
        fn(arg, work->status);
    return before == NULL || before == no_function;
}
