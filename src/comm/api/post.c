/* SPDX-License-Identifier: Apache-2.0 */
/* post: the one funnel that all calls go through. */
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

/* The status of a finished operation, with its record as the last error. */
oar_status oari_work_result(const oar_work *work)
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
    return oari_work_result(&work);
}

/* Two messages on host memory. */
static oar_status run_both_now(oar_group *group, const oari_call *call)
{
    oar_work work[2];

    make_on_stack(&work[0], group, &call[0]);
    make_on_stack(&work[1], group, &call[1]);
    oari_engine_run(group, 2, work);
    return oari_work_result(&work[work[0].status == OAR_OK]);
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

void oari_work_hand_over(oar_work *work, uint64_t state)
{
    prepare(work, state);
    oari_engine_enqueue(work->group, work);
}

/* One that is about to begin, or to be prepared. */
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

/* On device memory a call returns when the operation is on the stream, and the
 * engine's thread looks after it. */
static oar_status order_now(oar_group *group, const oari_call *call)
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
    prepare(work, OARI_AWAITED);
    oari_engine_queue(group, work);
    status = oar_work_order(work, stream);
    oari_work_let_go(work);
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
            oari_work_let_go(part); /* the engine's hold is left */
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
    oari_work_let_go(whole);
    return status;
}

void oari_drop_parts(oar_work *part)
{
    while (part != NULL) {
        oar_work *next = part->next;

        oari_work_free(part);
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

oar_status oari_post_list(oar_group *group, int count, oar_work *part,
                          oar_work **work)
{
    oar_work *whole;

    if (check_lanes(part) != OAR_OK) {
        oari_drop_parts(part);
        return OAR_E_UNSUPPORTED;
    }
    if (work == NULL && any_on_device(part))
        return order_parts(group, count, part);
    whole = oari_work_make_whole(group, count);

    if (whole == NULL || (work != NULL && oari_engine_start(group) != OAR_OK)) {
        oar_status why = whole == NULL ? OAR_E_NOMEM : OAR_E_SYSTEM;

        oari_drop_parts(part);
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

/* ---- the end of a work --------------------------------------------------- */
