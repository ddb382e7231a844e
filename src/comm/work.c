/* SPDX-License-Identifier: Apache-2.0 */
/* work: handles of operations, and the one funnel that all calls go through. */
#include <oarsong/work.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/group.h"

static oar_work *make_work(oar_group *group, const oari_call *call)
{
    oar_work *work = oari_alloc(1, sizeof *work);

    if (work == NULL)
        return NULL;
    work->group = group;
    work->call = *call;
    atomic_store(&work->holders, 2);
    return work;
}

static void let_go(oar_work *work)
{
    if (atomic_fetch_sub(&work->holders, 1) == 1)
        oari_free(work);
}

/* The status of a finished operation, with its record as the last error. */
static oar_status result_of(const oar_work *work)
{
    if (work->status == OAR_OK)
        return OAR_OK;
    if (work->status == OAR_E_SIZE)
        return oari_fail(OAR_E_SIZE,
                         "the message of rank %d with tag %lld is not of the "
                         "%zu bytes that were to be received",
                         work->call.root, (long long)work->call.tag,
                         oari_call_bytes(&work->call));
    return oari_fail_with(&work->group->fault);
}

static uint64_t next_number(oar_group *group, const oari_call *call)
{
    uint64_t sequence =
        atomic_fetch_add_explicit(&group->sequence, 1, memory_order_relaxed) +
        1;

    oari_recorder_post(group->recorder, sequence, call);
    return sequence;
}

static oar_status run_now(oar_group *group, const oari_call *call)
{
    oar_work work;

    work.group = group;
    work.call = *call;
    work.sequence = next_number(group, call);
    work.deadline_ns = 0;
    work.then = NULL;
    work.on_stack = 1;
    work.mine = 0;
    atomic_init(&work.done, 0);
    oari_engine_run(group, &work);
    return result_of(&work);
}

oar_status oari_post(oar_group *group, const oari_call *call, oar_work **work)
{
    oar_work *made;
    oar_status status;

    OARI_TRY(oari_group_check(group));
    if (work == NULL)
        return run_now(group, call);
    if ((made = make_work(group, call)) == NULL)
        return OAR_E_NOMEM;
    made->sequence = next_number(group, call);
    status = oari_engine_post(group, made);
    if (status != OAR_OK)
        oari_free(made);
    else
        *work = made;
    return status;
}

/* The engine's side is over. A work on the stack is gone as soon as `done` is
 * seen, so nothing of it is touched after that. */
void oari_work_finish(oar_work *work, oar_status status)
{
    oari_engine *e = &work->group->engine;
    int on_stack = work->on_stack;
    oar_work_fn then;
    void *arg;

    if (work->mine) {
        work->status = status;
        atomic_store_explicit(&work->done, 1, memory_order_relaxed);
        return;
    }
    pthread_mutex_lock(&e->lock);
    work->status = status;
    then = work->then;
    arg = work->then_arg;
    atomic_store_explicit(&work->done, 1, memory_order_release);
    if (atomic_load(&e->waiters) != 0)
        pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (on_stack)
        return;
    if (then != NULL)
        then(arg, status);
    let_go(work);
}

oar_status oar_work_wait(oar_work *work)
{
    if (work == NULL)
        return oari_fail(OAR_E_ARG, "work_wait for NULL");
    OARI_TRY(oari_group_owned(work->group));
    oari_engine_wait(work->group, work);
    return result_of(work);
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

oar_status oar_work_then(oar_work *work, oar_work_fn fn, void *arg)
{
    oari_engine *e;
    int done, taken;

    if (work == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "work_then without a %s",
                         work == NULL ? "work" : "function");
    OARI_TRY(oari_group_owned(work->group));
    e = &work->group->engine;
    pthread_mutex_lock(&e->lock);
    done = atomic_load(&work->done);
    taken = work->then != NULL;
    if (!taken) {
        work->then_arg = arg;
        work->then = fn;
    }
    pthread_mutex_unlock(&e->lock);
    if (taken)
        return oari_fail(OAR_E_STATE, "the work has a function already");
    if (done)
        fn(arg, work->status);
    return OAR_OK;
}

void oar_work_release(oar_work *work)
{
    if (work != NULL)
        let_go(work);
}
