/* SPDX-License-Identifier: Apache-2.0 */
/* post: the one funnel that all calls go through. A call without a handle runs
 * here to its end, on the caller's stack if it is on host memory; others get a
 * work that the engine holds until it is done. Calls between oar_batch_begin
 * and oar_batch_end are collected, and posted as one. */
#include "comm/api/post.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/engine/engine.h"
#include "comm/engine/gpu_events.h"
#include "comm/engine/work.h"
#include "comm/fault/fault.h"

oar_status oari_work_result(const oar_work *work)
{
    if (work->status == OAR_OK)
        return OAR_OK;
    if (work->alone)
        return work->error != NULL
                   ? oari_fail_with(work->error)
                   : oari_fail(work->status,
                               "%s with rank %d failed, and there is no "
                               "memory to say why",
                               oar_coll_name(work->call.kind), work->call.root);
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
    /* cannot happen; but if it did, it would not be a success */
    if (work->group->fault.error.status == OAR_OK)
        return oari_fail(OAR_E_INTERNAL, "%s failed without a known cause",
                         oar_coll_name(work->call.kind));
    return oari_fail_with(&work->group->fault.error);
}

/* Makes a work without memory of its own, in every blocking call. */
__attribute__((always_inline)) static inline void
make_on_stack(oar_work *work, oar_group *group, const oari_call *call,
              uint64_t sequence)
{
    oari_work_init(work, group, call);
    atomic_init(&work->sequence, sequence);
    work->on_stack = 1;
}

/* Frees what a work on the stack has pointed to. */
static inline oar_status end_on_stack(const oar_work *work, oar_status status)
{
    if (work->error != NULL)
        oari_free(work->error);
    return status;
}

/* Makes a work ready for the engine, which holds it until it is done. */
static void prepare_work(oar_work *work, uint64_t state)
{
    atomic_fetch_add(&work->holders, 1);
    atomic_store(&work->ordered, 0);
    atomic_store_explicit(&work->sequence,
                          oari_work_record(work->group, &work->call, state),
                          memory_order_relaxed);
    work->deadline_ns = 0;
    work->warned = work->slow = work->put_off = 0;
    work->inquired_ns = 0;
    work->alone = 0;
    oari_free(work->error);
    work->error = NULL;
    work->next = NULL;
}

void oari_work_hand_over(oar_work *work, uint64_t state)
{
    prepare_work(work, state);
    oari_engine_enqueue(work->group, work);
}

oar_status oari_work_make_checked(oar_group *group, const oari_call *call,
                                  oar_work **made)
{
    oari_call checked = *call;
    oar_work *work;
    oar_status status = OAR_OK;

    if (oari_on_device(call))
        OARI_TRY(oari_gpu_check(group, &checked));
    if ((work = oari_work_make(group, &checked)) == NULL)
        return OAR_E_NOMEM;
    if (checked.gpu != NULL && !call->prepared)
        status = oari_gpu_mark(work);
    if (status != OAR_OK) {
        oari_work_free(work);
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

    OARI_TRY(oari_work_make_checked(group, call, &made));
    if (call->prepared) {
        atomic_store(&made->done, 1); /* nothing to wait for yet */
        *work = made;
        return OAR_OK;
    }
    status = oari_engine_start(group);
    if (status != OAR_OK) {
        oari_work_free(made);
        return status;
    }
    oari_work_hand_over(made, OARI_POSTED);
    *work = made;
    return OAR_OK;
}

/* Returns when the operation is on the stream; the engine's thread watches it
 * until it is done. */
static oar_status run_on_device(oar_group *group, const oari_call *call)
{
    void *stream;
    oar_work *work;
    oar_status status;

    OARI_TRY(oari_work_make_checked(group, call, &work));
    status = oari_engine_start(group);
    if (status != OAR_OK) {
        oari_work_free(work);
        return status;
    }
    stream = work->call.stream;
    work->order_only = 1;
    prepare_work(work, OARI_AWAITED);
    oari_engine_queue(group, work);
    status = oar_work_order(work, stream);
    oari_work_let_go(work);
    return status;
}

/* Fails if a span that can only be read would be written. */
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
    oar_work now;
    uint64_t sequence;

    OARI_TRY(oari_group_check(group));
    OARI_TRY(check_written(group, call));
    if (work != NULL)
        return post_later(group, call, work);
    if (call->prepared)
        return oari_fail(OAR_E_ARG, "%s: prepare without a work to give",
                         oar_coll_name(call->kind));
    if (oari_batching(group))
        return oari_batch_add(group, call);
    if (oari_on_device(call))
        return run_on_device(group, call);
    sequence = oari_work_record(group, call, OARI_AWAITED);
    if (call->kind == OAR_COLL_SEND && oari_direct_send(group, call, sequence))
        return OAR_OK;
    if (call->kind == OAR_COLL_RECV && oari_direct_recv(group, call, sequence))
        return OAR_OK;
    make_on_stack(&now, group, call, sequence);
    oari_engine_run(group, 1, &now);
    return end_on_stack(&now, oari_work_result(&now));
}

/* ---- several as one ------------------------------------------------------ */

/* Operations on device memory that follow each other are begun together, as
 * many as there are lanes: each keeps its lane until all of them have been
 * begun. */
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
        prepare_work(part, state);
        if (whole != NULL)
            oari_work_let_go(part); /* the engine's hold is left */
        part->next = next;
    }
}

void oari_drop_parts(oar_work *part)
{
    while (part != NULL) {
        oar_work *next = part->next;

        oari_work_free(part);
        part = next;
    }
}

/* Posts them without a handle. Waits until those on device memory are ordered
 * on their streams and the others are done. Returns the first failure. */
static oar_status order_parts(oar_group *group, int count, oar_work *first)
{
    oar_work **part = oari_alloc((size_t)count, sizeof(oar_work *));
    oar_status status = part == NULL ? OAR_E_NOMEM : oari_engine_start(group);
    oar_error why = { 0 };

    if (status != OAR_OK) {
        oari_drop_parts(first);
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
        oari_work_let_go(part[i]);
    }
    oari_free(part);
    return status != OAR_OK ? oari_fail_with(&why) : OAR_OK;
}

/* Counts the operations on device memory. Fails if they are too many to begin
 * together and have messages among them: those wait for each other. */
static oar_status check_lanes(const oar_work *part, int *on_device)
{
    int messages = 0;

    for (*on_device = 0; part != NULL; part = part->next) {
        *on_device += part->call.gpu != NULL;
        messages += part->call.gpu != NULL && part->call.kind >= OAR_COLL_SEND;
    }
    if (messages == 0 || *on_device <= OARI_GPU_LANES)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED,
                     "a batch of %d operations on device memory, with "
                     "messages among them: at most %d can be begun together",
                     *on_device, OARI_GPU_LANES);
}

oar_status oari_post_list(oar_group *group, int count, oar_work *part,
                          oar_work **work)
{
    oar_work *whole;
    oar_status status;
    int on_device;

    if (check_lanes(part, &on_device) != OAR_OK) {
        oari_drop_parts(part);
        return OAR_E_UNSUPPORTED;
    }
    if (work == NULL && on_device != 0)
        return order_parts(group, count, part);
    whole = oari_work_make_whole(group, count);
    if (whole == NULL || (work != NULL && oari_engine_start(group) != OAR_OK)) {
        status = whole == NULL ? OAR_E_NOMEM : OAR_E_SYSTEM;
        oari_drop_parts(part);
        oari_free(whole);
        return status;
    }
    atomic_fetch_add(&whole->holders, 1); /* for its parts */
    prepare_parts(whole, part, work == NULL ? OARI_AWAITED : OARI_POSTED);
    oari_engine_enqueue(group, part);
    if (work != NULL) {
        *work = whole;
        return OAR_OK;
    }
    status = oar_work_wait(whole);
    oari_work_let_go(whole);
    return status;
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
        !oari_on_device(&call[1])) {
        oar_work both[2];
        oar_status status;

        for (int i = 0; i < 2; i++)
            make_on_stack(&both[i], group, &call[i],
                          oari_work_record(group, &call[i], OARI_AWAITED));
        oari_engine_run(group, 2, both);
        status = oari_work_result(&both[both[0].status == OAR_OK]);
        end_on_stack(&both[0], status);
        return end_on_stack(&both[1], status);
    }
    for (int i = 0; i < count; i++) {
        oar_status status = oari_work_make_checked(group, &call[i], end);

        if (status != OAR_OK) {
            oari_drop_parts(first);
            return status;
        }
        end = &(*end)->next;
    }
    return oari_post_list(group, count, first, work);
}

/* ---- batches ------------------------------------------------------------- */

/* A batch of this thread shows in any order; so most calls need not wait for
 * what they have stored before. */
int oari_batching(const oar_group *group)
{
    return atomic_load_explicit(&group->batch.open, memory_order_relaxed) &&
           atomic_load_explicit(&group->batch.open, memory_order_acquire) &&
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

    OARI_TRY(oari_work_make_checked(group, call, &made));
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
    oari_drop_parts(group->batch.first);
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

oar_status oar_batch_end(oar_group *group, oar_work **work)
{
    oar_work *first, *whole;
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
    if (count != 0)
        return oari_post_list(group, count, first, work);
    if (work == NULL)
        return OAR_OK;
    if ((whole = oari_work_make_whole(group, 0)) == NULL)
        return OAR_E_NOMEM;
    atomic_store(&whole->done, 1);
    *work = whole;
    return OAR_OK;
}
