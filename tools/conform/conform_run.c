/* SPDX-License-Identifier: Apache-2.0 */
/* conform_run: the ways in which one collective can be called. */
#include "conform.h"

#include <sched.h>

/* What goes into a batch with the collective under trial. */
enum { SIDE = 5 };

static oar_call_opts opts_of(const conform_job *j)
{
    oar_call_opts o = oar_call_opts_init();

    o.label = "conform";
    o.canonical = j->t.canonical;
    if (j->t.op == OAR_REDUCE_OP_WEIGHTED_MEAN)
        o.weight = value_factor(j, j->rank);
    return o;
}

/* Waits by asking or by waiting, in turns. */
static oar_status see_through(conform_context *d, oar_work *work)
{
    oar_status status = OAR_OK;
    int done = 0;

    if (d->cell % 2 == 0)
        return oar_work_wait(work);
    while (status == OAR_OK) {
        status = oar_work_test(work, &done);
        if (done)
            break;
        sched_yield(); /* there may be more ranks than cores */
    }
    return status;
}

static void run_blocking(conform_context *d, conform_job *j)
{
    oar_call_opts o = opts_of(j);

    if (record_status(d, job_post(j, &o, NULL), "the call"))
        job_check(d, j);
}

static void run_async(conform_context *d, conform_job *j)
{
    oar_call_opts o = opts_of(j);
    oar_work *work = NULL;

    if (!record_status(d, job_post(j, &o, &work), "the call"))
        return;
    if (record_status(d, see_through(d, work), "the work"))
        job_check(d, j);
    oar_work_release(work);
}

static void run_prepared(conform_context *d, conform_job *j)
{
    oar_call_opts o = opts_of(j);
    oar_work *work = NULL;

    o.prepare = 1;
    if (!record_status(d, job_post(j, &o, &work), "the call"))
        return;
    for (int turn = 0; turn < 2; turn++) {
        j->seed += (uint64_t)turn;
        job_fill(j);
        if (!record_status(d, oar_work_start(work), "start") ||
            !record_status(d, see_through(d, work), "the work"))
            break;
        job_check(d, j);
    }
    oar_work_release(work);
}

/* With an all_reduce before it and a barrier behind. */
static oar_status post_batch(conform_context *d, conform_job *j, int *side,
                             oar_work **work)
{
    oar_call_opts o = opts_of(j);
    oar_status status = oar_batch_begin(j->group), end;

    if (status != OAR_OK)
        return status;
    status = oar_all_reduce(j->group, oar_span_of(side, SIDE, OAR_I32), OAR_SUM,
                            NULL, NULL);
    if (status == OAR_OK)
        status = job_post(j, &o, NULL);
    if (status == OAR_OK)
        status = oar_barrier(j->group, NULL, NULL);
    end = oar_batch_end(j->group, work);
    return status != OAR_OK ? status : end;
}

static void run_batched(conform_context *d, conform_job *j)
{
    int side[SIDE], want = j->size * (j->size + 1) / 2, one_handle;
    oar_work *work = NULL;

    one_handle = d->cell % 2 == 0;
    for (int i = 0; i < SIDE; i++)
        side[i] = j->rank + 1;
    if (!record_status(d, post_batch(d, j, side, one_handle ? &work : NULL),
                       "the batch")) {
        if (work != NULL) /* the rest of it is under way */
            oar_work_wait(work);
        oar_work_release(work);
        return;
    }
    if (work == NULL ||
        record_status(d, oar_work_wait(work), "the batch's work"))
        job_check(d, j);
    oar_work_release(work);
    for (int i = 0; i < SIDE; i++)
        if (side[i] != want)
            record_wrong(d, "all_reduce of the same batch: %d, not %d", side[i],
                         want);
}

/* A cell whose arithmetic makes no sense must say so, on every rank, before it
 * has an effect. */
static void run_refused(conform_context *d, conform_job *j)
{
    oar_call_opts o = opts_of(j);
    oar_status status = job_post(j, &o, NULL);

    if (status != OAR_E_DTYPE && status != OAR_E_ARG &&
        status != OAR_E_UNSUPPORTED)
        record_wrong(d, "%s of %s makes no sense, but gives %s",
                     oar_reduce_op_name(j->t.op), oar_dtype_name(j->t.dtype),
                     oar_status_name(status));
}

void job_run(conform_context *d, const conform_trial *t, oar_group *group,
             const char *of)
{
    conform_trial mine = *t;
    conform_job j;

    mine.of = of;
    if (!record_begin(d, &mine))
        return;
    job_prepare(d, &j, &mine, group, 0, 1);
    if (kind_reduces(t->kind) && !value_makes_sense(t->op, t->dtype)) {
        run_refused(d, &j);
        return;
    }
    switch (t->how) {
    case ASYNC: run_async(d, &j); break;
    case PREPARED: run_prepared(d, &j); break;
    case BATCHED: run_batched(d, &j); break;
    default: run_blocking(d, &j); break;
    }
}
