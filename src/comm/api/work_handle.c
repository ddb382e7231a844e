/* SPDX-License-Identifier: Apache-2.0 */
/* work_handle: the public calls on the handle of an operation. */
#include <oarsong/work.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/trace.h"
#include "comm/api/post.h"
#include "comm/engine/engine.h"
#include "comm/engine/gpu_events.h"
#include "comm/engine/work.h"
#include "comm/fault/fault.h"

oar_status oar_work_start(oar_work *work)
{
    int done = 1, ends;

    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_start of NULL");
    OARI_TRY(oari_group_check(work->group));
    if (!work->call.prepared)
        return oari_fail(OAR_E_STATE, "this %s was not prepared to be started",
                         oar_coll_name(work->call.kind));
    OARI_TRY(oari_engine_start(work->group));
    ends = oari_work_ends_here(work); /* it is not marked as done yet */
    if (ends ? work->again
             : !atomic_compare_exchange_strong(&work->done, &done, 0))
        return oari_fail(OAR_E_STATE, "this %s is under way",
                         oar_coll_name(work->call.kind));
    if (work->call.gpu != NULL && oari_gpu_mark(work) != OAR_OK) {
        atomic_store(&work->done, !ends);
        return oar_last_error()->status;
    }
    work->again = ends;
    work->status = OAR_OK;
    atomic_store(&work->then, NULL); /* a function is for one start */
    oari_work_hand_over(work, OARI_POSTED);
    return OAR_OK;
}

/* Waits and records that the caller does. Returns 0 if the time is up. */
static int wait_until(oar_work *work, int64_t until_ns)
{
    OARI_TRACED(OARI_TRACE_WAIT, "wait");
    oari_recorder *recorder = work->group->recorder;
    uint64_t since;
    int done;

    if (atomic_load_explicit(&work->done, memory_order_relaxed))
        return oari_engine_wait(work->group, work, until_ns);
    oari_recorder_wait(recorder, work->sequence, 1);
    since = oari_recorder_wait_begin(recorder);
    done = oari_engine_wait(work->group, work, until_ns);
    oari_recorder_wait_end(recorder, since);
    return done;
}

oar_status oar_work_wait(oar_work *work)
{
    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_wait for NULL");
    OARI_TRY(oari_group_owned(work->group));
    wait_until(work, OARI_NEVER);
    return oari_work_result(work);
}

oar_status oar_work_wait_for(oar_work *work, int64_t timeout_ms)
{
    char site[96];

    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_wait_for NULL");
    OARI_TRY(oari_group_owned(work->group));
    if (timeout_ms == 0)
        timeout_ms = work->group->timeout_ms;
    if (wait_until(work, oari_deadline(timeout_ms)))
        return oari_work_result(work);
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
    while (!atomic_load_explicit(&work->done, memory_order_acquire) &&
           !atomic_load_explicit(&work->ordered, memory_order_acquire)) {
        oari_engine_nudge(work->group);
        oari_backoff(&idle);
    }
    if (atomic_load_explicit(&work->done, memory_order_acquire) &&
        work->status != OAR_OK)
        return oari_work_result(work);
    return oari_gpu_follow(work, stream);
}

oar_status oar_work_test(oar_work *work, int *done)
{
    if (work == NULL || done == NULL)
        return oari_fail(OAR_E_ARG, "work_init_test without a %s",
                         work == NULL ? "work" : "place for the answer");
    OARI_TRY(oari_group_owned(work->group));
    if (!atomic_load(&work->done))
        oari_engine_nudge(work->group);
    *done = atomic_load(&work->done);
    return *done ? oari_work_result(work) : OAR_OK;
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

/* Returns the first that is done, or -1 with the number of those to wait for.
 */
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
        oari_backoff(&idle);
    }
    *index = found;
    return found >= 0 ? oari_work_result(work[found]) : OAR_OK;
}

oar_status oar_work_then(oar_work *work, oar_work_fn fn, void *arg)
{
    if (work == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "work_then without a %s",
                         work == NULL ? "work" : "function");
    OARI_TRY(oari_group_owned(work->group));
    if (!oari_work_set_function(work, fn, arg))
        return oari_fail(OAR_E_STATE, "the work has a function already");
    return OAR_OK;
}

void oar_work_release(oar_work *work)
{
    if (work != NULL)
        oari_work_let_go(work);
}
