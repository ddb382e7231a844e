/* SPDX-License-Identifier: Apache-2.0 */
/* work: handles of operations, and the one funnel that all calls go through. */
#include <oarsong/work.h>

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/group.h"

/* A copy of the call with the counts and the label it points to behind the
 * work. */
static oar_work *make_work(oar_group *group, const oari_call *call)
{
    size_t n = (size_t)group->ranks, counts = 2 * n * sizeof(size_t);
    size_t label = call->label != NULL ? strlen(call->label) + 1 : 0;
    oar_work *work = oari_alloc(1, sizeof *work + counts + label);
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

static void free_work(oar_work *work)
{
    if (work == NULL)
        return;
    oari_gpu_unmark(work);
    oari_free(work);
}

static void let_go(oar_work *work)
{
    if (atomic_fetch_sub(&work->holders, 1) == 1)
        free_work(work);
}

/* The status of a finished operation, with its record as the last error. */
static oar_status result_of(const oar_work *work)
{
    if (work->status == OAR_OK)
        return OAR_OK;
    if (work->status == OAR_E_SIZE || work->status == OAR_E_DTYPE)
        return oari_message_failed(work);
    if (work->status == OAR_E_INTERNAL &&
        work->group->fault.error.status != OAR_E_INTERNAL)
        return oari_fail(OAR_E_NOMEM,
                         "the buffer of this %s could not be taken out of its "
                         "peers' reach, so leave it alone; and the group has "
                         "ended: %.300s",
                         oar_coll_name(work->call.kind),
                         work->group->fault.error.text);
    if (work->group->fault.error.status ==
        OAR_OK) /* never: but never success */
        return oari_fail(OAR_E_INTERNAL, "%s failed, and nobody knows why",
                         oar_coll_name(work->call.kind));
    return oari_fail_with(&work->group->fault.error);
}

uint64_t oari_work_record(oar_group *group, const oari_call *call,
                          uint64_t state)
{
    uint64_t sequence =
        atomic_fetch_add_explicit(&group->sequence, 1, memory_order_relaxed) +
        1;

    oari_recorder_post(group->recorder, sequence, call, state);
    return sequence;
}

/* In every blocking call. */
__attribute__((always_inline)) static inline void
make_on_stack(oar_work *work, oar_group *group, const oari_call *call)
{
    oari_work_init(work, group, call);
    work->sequence = oari_work_record(group, call, OARI_AWAITED);
    work->on_stack = 1;
}

static oar_status run_now(oar_group *group, const oari_call *call)
{
    oar_work work;

    make_on_stack(&work, group, call);
    oari_engine_run(group, 1, &work);
    return result_of(&work);
}

/* Two messages on host memory. */
static oar_status run_both_now(oar_group *group, const oari_call *call)
{
    oar_work work[2];

    make_on_stack(&work[0], group, &call[0]);
    make_on_stack(&work[1], group, &call[1]);
    oari_engine_run(group, 2, work);
    return result_of(&work[work[0].status == OAR_OK]);
}

/* Makes a work ready for the engine, which holds it until it is done. */
static void prepare(oar_work *work, uint64_t state)
{
    atomic_fetch_add(&work->holders, 1);
    atomic_store(&work->ordered, 0);
    work->sequence = oari_work_record(work->group, &work->call, state);
    work->deadline_ns = 0;
    work->warned = work->slow = work->put_off = 0;
    work->inquired_ns = 0;
    work->next = NULL;
}

static void hand_over(oar_work *work, uint64_t state)
{
    prepare(work, state);
    oari_engine_enqueue(work->group, work);
}

/* One that is about to begin, or to be prepared. */
static oar_status make_marked(oar_group *group, const oari_call *call,
                              oar_work **made)
{
    oari_call checked = *call;
    oar_work *work;
    oar_status status = OAR_OK;

    if (oari_on_device(call))
        OARI_TRY(oari_gpu_check(group, &checked));
    if ((work = make_work(group, &checked)) == NULL)
        return OAR_E_NOMEM;
    if (checked.gpu != NULL && !call->prepared)
        status = oari_gpu_mark(work);
    if (status != OAR_OK) {
        free_work(work);
        return status;
    }
    *made = work;
    return OAR_OK;
}

static oar_status post_later(oar_group *group, const oari_call *call,
                             oar_work **work)
{
    oar_work *made;
    oar_status status;

    OARI_TRY(make_marked(group, call, &made));
    if (call->prepared) {
        atomic_store(&made->done, 1); /* nothing to wait for yet */
        *work = made;
        return OAR_OK;
    }
    status = oari_engine_start(group);
    if (status != OAR_OK) {
        free_work(made);
        return status;
    }
    hand_over(made, OARI_POSTED);
    *work = made;
    return OAR_OK;
}

/* On device memory a call returns when the operation is on the stream, and the
 * engine's thread looks after it. */
static oar_status order_now(oar_group *group, const oari_call *call)
{
    void *stream;
    oar_work *work;
    oar_status status;

    OARI_TRY(make_marked(group, call, &work));
    status = oari_engine_start(group);
    if (status != OAR_OK) {
        free_work(work);
        return status;
    }
    stream = work->call.stream;
    work->order_only = 1;
    prepare(work, OARI_AWAITED);
    oari_engine_queue(group, work);
    status = oar_work_order(work, stream);
    let_go(work);
    return status;
}

/* Where a span that can only be read would be written. */
static oar_status check_written(const oar_group *group, const oari_call *call)
{
    if (!call->out.read_only || call->out.count == 0 ||
        call->kind == OAR_COLL_SEND ||
        (call->kind == OAR_COLL_BROADCAST && call->root == group->rank))
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s would write to a span that is read-only",
                     oar_coll_name(call->kind));
}

oar_status oari_post(oar_group *group, const oari_call *call, oar_work **work)
{
    OARI_TRY(oari_group_check(group));
    OARI_TRY(check_written(group, call));
    if (work != NULL)
        return post_later(group, call, work);
    if (call->prepared)
        return oari_fail(OAR_E_ARG, "%s: prepare without a work to give",
                         oar_coll_name(call->kind));
    if (oari_batching(group))
        return oari_batch_add(group, call);
    return oari_on_device(call) ? order_now(group, call) : run_now(group, call);
}

/* ---- several as one ------------------------------------------------------ */

/* One that is done when its parts are. */
static oar_work *make_whole(oar_group *group, int parts)
{
    oari_call none = { .kind = OAR_COLL_BARRIER, .root = -1 };
    oar_work *whole = make_work(group, &none);

    if (whole == NULL)
        return NULL;
    atomic_store(&whole->parts, parts);
    return whole;
}

/* A part has finished; the last one ends the whole. */
static void finish_part(oar_work *whole, const oar_work *part,
                        oar_status status)
{
    oari_engine *e = &whole->group->engine;

    if (status != OAR_OK) {
        pthread_mutex_lock(&e->lock);
        if (whole->failed == OAR_OK) {
            whole->failed = status;
            whole->call = part->call;
            whole->call.label = NULL; /* the part's own copy */
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

/* Those on device memory that follow each other are begun together, as many as
 * there are lanes: each has its own until all of them have been begun. */
static void prepare_parts(oar_work *whole, oar_work *part, uint64_t state)
{
    int together = 0;

    for (oar_work *next; part != NULL; part = next) {
        next = part->next;
        part->whole = whole;
        part->order_only = whole == NULL && part->call.gpu != NULL;
        together = part->call.gpu != NULL ? together + 1 : 0;
        part->more = together != 0 && together % OARI_GPU_LANES != 0 &&
                     next != NULL && next->call.gpu != NULL;
        prepare(part, state);
        if (whole != NULL)
            let_go(part); /* the engine's hold is left */
        part->next = next;
    }
}

/* Posts them all, linked by next; waits if nobody wants the handle. */
static oar_status post_parts(oar_group *group, oar_work *whole, oar_work *part,
                             oar_work **work)
{
    oar_status status;

    atomic_fetch_add(&whole->holders, 1); /* its parts' */
    prepare_parts(whole, part, work == NULL ? OARI_AWAITED : OARI_POSTED);
    oari_engine_enqueue(group, part);
    if (work != NULL) {
        *work = whole;
        return OAR_OK;
    }
    status = oar_work_wait(whole);
    let_go(whole);
    return status;
}

static void drop_parts(oar_work *part)
{
    while (part != NULL) {
        oar_work *next = part->next;

        free_work(part);
        part = next;
    }
}

/* Without a handle: those on device memory are ordered on their streams, the
 * others waited for. The first failure counts. */
static oar_status order_parts(oar_group *group, int count, oar_work *first)
{
    oar_work **part = oari_alloc((size_t)count, sizeof(oar_work *));
    oar_status status = part == NULL ? OAR_E_NOMEM : oari_engine_start(group);
    oar_error why = { 0 };

    if (status != OAR_OK) {
        drop_parts(first);
        oari_free(part);
        return status;
    }
    for (int i = 0; i < count; i++, first = first->next)
        part[i] = first;
    prepare_parts(NULL, part[0], OARI_AWAITED);
    oari_engine_enqueue(group, part[0]);
    for (int i = 0; i < count; i++) {
        oar_status one = oar_work_order(part[i], part[i]->call.stream);

        if (one != OAR_OK && status == OAR_OK) {
            status = one;
            why = *oar_last_error();
        }
        let_go(part[i]);
    }
    oari_free(part);
    return status != OAR_OK ? oari_fail_with(&why) : OAR_OK;
}

static int any_on_device(const oar_work *part)
{
    for (; part != NULL; part = part->next)
        if (part->call.gpu != NULL)
            return 1;
    return 0;
}

/* Messages wait for each other, so what has some is begun as one or not at
 * all. */
static oar_status check_lanes(const oar_work *part)
{
    int messages = 0, on_device = 0;

    for (; part != NULL; part = part->next) {
        on_device += part->call.gpu != NULL;
        messages += part->call.gpu != NULL && part->call.kind >= OAR_COLL_SEND;
    }
    if (messages == 0 || on_device <= OARI_GPU_LANES)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED,
                     "a batch of %d operations on device memory, with "
                     "messages among them: at most %d can be begun together",
                     on_device, OARI_GPU_LANES);
}

static oar_status post_list(oar_group *group, int count, oar_work *part,
                            oar_work **work)
{
    oar_work *whole;

    if (check_lanes(part) != OAR_OK) {
        drop_parts(part);
        return OAR_E_UNSUPPORTED;
    }
    if (work == NULL && any_on_device(part))
        return order_parts(group, count, part);
    whole = make_whole(group, count);

    if (whole == NULL || (work != NULL && oari_engine_start(group) != OAR_OK)) {
        oar_status why = whole == NULL ? OAR_E_NOMEM : OAR_E_SYSTEM;

        drop_parts(part);
        oari_free(whole);
        return why;
    }
    return post_parts(group, whole, part, work);
}

oar_status oari_post_many(oar_group *group, int count, const oari_call *call,
                          oar_work **work)
{
    oar_work *first = NULL, **end = &first;

    OARI_TRY(oari_group_check(group));
    for (int i = 0; i < count; i++)
        OARI_TRY(check_written(group, &call[i]));
    if (call->prepared)
        return oari_fail(OAR_E_ARG, "several operations cannot be prepared as "
                                    "one");
    if (work == NULL && oari_batching(group)) {
        for (int i = 0; i < count; i++)
            OARI_TRY(oari_batch_add(group, &call[i]));
        return OAR_OK;
    }
    if (work == NULL && count == 2 && !oari_on_device(&call[0]) &&
        !oari_on_device(&call[1]))
        return run_both_now(group, call);
    for (int i = 0; i < count; i++) {
        oar_status status = make_marked(group, &call[i], end);

        if (status != OAR_OK) {
            drop_parts(first);
            return status;
        }
        end = &(*end)->next;
    }
    return post_list(group, count, first, work);
}

/* ---- batches ------------------------------------------------------------- */

int oari_batching(const oar_group *group)
{
    return atomic_load_explicit(&group->batch.open, memory_order_acquire) &&
           pthread_equal(
               atomic_load_explicit(&group->batch.owner, memory_order_relaxed),
               pthread_self());
}

int oar_batch_is_open(const oar_group *group)
{
    return group != NULL && oari_batching(group);
}

oar_status oari_batch_add(oar_group *group, const oari_call *call)
{
    oari_batch *b = &group->batch;
    oar_work *made;

    OARI_TRY(make_marked(group, call, &made));
    if (b->last != NULL)
        b->last->next = made;
    else
        b->first = made;
    b->last = made;
    b->count++;
    return OAR_OK;
}

void oari_batch_drop(oar_group *group)
{
    drop_parts(group->batch.first);
    group->batch.first = group->batch.last = NULL;
    group->batch.count = 0;
}

oar_status oar_batch_begin(oar_group *group)
{
    int closed = 0;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "batch_begin without a group");
    OARI_TRY(oari_group_check(group));
    if (!atomic_compare_exchange_strong(&group->batch.taken, &closed, 1))
        return oari_fail(OAR_E_STATE, "group \"%s\" has a batch open already",
                         group->name);
    atomic_store(&group->batch.owner, pthread_self());
    atomic_store_explicit(&group->batch.open, 1, memory_order_release);
    return OAR_OK;
}

/* A handle of what is done already. */
static oar_status post_nothing(oar_group *group, oar_work **work)
{
    oar_work *whole = make_whole(group, 0);

    if (whole == NULL)
        return OAR_E_NOMEM;
    atomic_store(&whole->done, 1);
    *work = whole;
    return OAR_OK;
}

oar_status oar_batch_end(oar_group *group, oar_work **work)
{
    oar_work *first;
    int count;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "batch_end without a group");
    OARI_TRY(oari_group_owned(group));
    if (!oari_batching(group))
        return oari_fail(OAR_E_STATE,
                         "batch_end on group \"%s\" without a batch of this "
                         "thread",
                         group->name);
    first = group->batch.first;
    count = group->batch.count;
    group->batch.first = group->batch.last = NULL;
    group->batch.count = 0;
    atomic_store(&group->batch.open, 0);
    atomic_store(&group->batch.taken, 0);
    if (count == 0)
        return work != NULL ? post_nothing(group, work) : OAR_OK;
    return post_list(group, count, first, work);
}

/* ---- the end of a work ----------------------------------------------------
 */

/* Stands for "over" where a function would be. */
static void no_function(void *arg, oar_status status)
{
    (void)arg;
    (void)status;
}

/* Runs its function, if it has one: before the work counts as done, so that who
 * waits for it finds that it has run. None can be set from now on. */
static void run_then(oar_work *work, oar_status status)
{
    oar_work_fn then = NULL;

    if (!atomic_compare_exchange_strong(&work->then, &then, no_function))
        then(work->then_arg, status);
}

/* A user that waits says so and then looks whether it is done (engine.c). */
static void wake_waiters(oari_engine *e)
{
    if (atomic_load(&e->waiters) == 0)
        return;
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* The engine's side is over. A work on the stack is gone as soon as `done` is
 * seen, so nothing of it is touched after that. */
void oari_work_finish(oar_work *work, oar_status status)
{
    oari_engine *e = &work->group->engine;
    int on_stack = work->on_stack;
    oar_work *whole = work->whole;

    work->status = status;
    if (work->mine) {
        atomic_store_explicit(&work->done, 1, memory_order_relaxed);
        return;
    }
    if (!on_stack)
        run_then(work, status);
    atomic_store(&work->done, 1);
    wake_waiters(e);
    if (on_stack)
        return;
    if (whole != NULL)
        finish_part(whole, work, status);
    let_go(work);
}

oar_status oar_work_start(oar_work *work)
{
    int done = 1;

    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_start of NULL");
    OARI_TRY(oari_group_check(work->group));
    if (!work->call.prepared)
        return oari_fail(OAR_E_STATE, "this %s was not prepared to be started",
                         oar_coll_name(work->call.kind));
    OARI_TRY(oari_engine_start(work->group));
    if (!atomic_compare_exchange_strong(&work->done, &done, 0))
        return oari_fail(OAR_E_STATE, "this %s is under way",
                         oar_coll_name(work->call.kind));
    if (work->call.gpu != NULL && oari_gpu_mark(work) != OAR_OK) {
        atomic_store(&work->done, 1);
        return oar_last_error()->status;
    }
    work->status = OAR_OK;
    atomic_store(&work->then, NULL); /* a function is for one start */
    hand_over(work, OARI_POSTED);
    return OAR_OK;
}

static int is_waited_for(oar_work *work, int64_t until_ns)
{
    if (!atomic_load_explicit(&work->done, memory_order_relaxed))
        oari_recorder_wait(work->group->recorder, work->sequence, 1);
    return oari_engine_wait(work->group, work, until_ns);
}

oar_status oar_work_wait(oar_work *work)
{
    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_wait for NULL");
    OARI_TRY(oari_group_owned(work->group));
    is_waited_for(work, OARI_NEVER);
    return result_of(work);
}

oar_status oar_work_wait_for(oar_work *work, int64_t timeout_ms)
{
    char site[96];

    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_wait_for NULL");
    OARI_TRY(oari_group_owned(work->group));
    if (timeout_ms == 0)
        timeout_ms = work->group->timeout_ms;
    if (is_waited_for(work, oari_deadline(timeout_ms)))
        return result_of(work);
    oari_recorder_wait(work->group->recorder, work->sequence, 0);
    if (work->sequence == 0)
        return oari_fail(OAR_E_TIMEOUT,
                         "the batch is not done after %lld ms; it goes on",
                         (long long)timeout_ms);
    oari_site_text(work->call.file, work->call.line, site, sizeof site);
    return oari_fail(
        OAR_E_TIMEOUT, "#%llu %s at %s is not done after %lld ms; it goes on",
        (unsigned long long)work->sequence, oar_coll_name(work->call.kind),
        site, (long long)timeout_ms);
}

static int is_ordered(const oar_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire) ||
           atomic_load_explicit(&work->ordered, memory_order_acquire);
}

oar_status oar_work_order(oar_work *work, void *stream)
{
    int64_t idle = 0;

    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_order of NULL");
    if (work->call.gpu == NULL)
        return oar_work_wait(work);
    OARI_TRY(oari_group_owned(work->group));
    if (work->order_only)
        oari_engine_wait(work->group, work, OARI_NEVER);
    while (!is_ordered(work)) {
        oari_engine_nudge(work->group);
        oari_rest(&idle);
    }
    if (atomic_load_explicit(&work->done, memory_order_acquire) &&
        work->status != OAR_OK)
        return result_of(work);
    return oari_gpu_follow(work, stream);
}

oar_status oar_work_test(oar_work *work, int *done)
{
    if (work == NULL || done == NULL)
        return oari_fail(OAR_E_ARG, "work_test without a %s",
                         work == NULL ? "work" : "place for the answer");
    OARI_TRY(oari_group_owned(work->group));
    if (!atomic_load(&work->done))
        oari_engine_nudge(work->group);
    *done = atomic_load(&work->done);
    return *done ? result_of(work) : OAR_OK;
}

oar_status oar_work_wait_all(int count, oar_work *const *work)
{
    oar_status first = OAR_OK, status;
    oar_error record = { 0 };

    if (count < 0 || (count > 0 && work == NULL))
        return oari_fail(OAR_E_ARG, "work_wait_all for %d works", count);
    for (int i = 0; i < count; i++) {
        status = work[i] != NULL ? oar_work_wait(work[i]) : OAR_OK;
        if (status != OAR_OK && first == OAR_OK) {
            first = status;
            record = *oar_last_error();
        }
    }
    return first != OAR_OK ? oari_fail_with(&record) : OAR_OK;
}

/* One round over them: the first that is done, or -1. */
static int find_done(int count, oar_work *const *work, int *left)
{
    *left = 0;
    for (int i = 0; i < count; i++) {
        if (work[i] == NULL)
            continue;
        if (atomic_load_explicit(&work[i]->done, memory_order_acquire))
            return i;
        ++*left;
    }
    return -1;
}

oar_status oar_work_wait_any(int count, oar_work *const *work, int *index)
{
    int64_t idle = 0;
    int left, found;

    if (count < 0 || (count > 0 && work == NULL) || index == NULL)
        return oari_fail(OAR_E_ARG, "work_wait_any for %d works", count);
    for (int i = 0; i < count; i++)
        if (work[i] != NULL)
            OARI_TRY(oari_group_owned(work[i]->group));
    while ((found = find_done(count, work, &left)) < 0 && left != 0) {
        for (int i = 0; i < count; i++)
            if (work[i] != NULL)
                oari_engine_nudge(work[i]->group);
        oari_rest(&idle);
    }
    *index = found;
    return found >= 0 ? result_of(work[found]) : OAR_OK;
}

oar_status oar_work_then(oar_work *work, oar_work_fn fn, void *arg)
{
    oar_work_fn before;
    oari_engine *e;

    if (work == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "work_then without a %s",
                         work == NULL ? "work" : "function");
    OARI_TRY(oari_group_owned(work->group));
    e = &work->group->engine;
    pthread_mutex_lock(&e->lock); /* one at a time sets one */
    before = atomic_load(&work->then);
    if (before == NULL) {
        work->then_arg = arg;
        atomic_compare_exchange_strong(&work->then, &before, fn);
    }
    if (before == no_function)
        atomic_store(&work->then, fn);
    pthread_mutex_unlock(&e->lock);
    if (before != NULL && before != no_function)
        return oari_fail(OAR_E_STATE, "the work has a function already");
    if (before == no_function)
        fn(arg, work->status);
    return OAR_OK;
}

void oar_work_release(oar_work *work)
{
    if (work != NULL)
        let_go(work);
}
