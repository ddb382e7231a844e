/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_lane: a worker that does collectives, one after the other. All ranks
 * give a lane the same ones in the same order, so no two wait for each other.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"

static void fail(gloo_job *job, const char *why)
{
    job->failed = 1;
    snprintf(job->why, sizeof job->why, "%s", why);
}

static int make_scratch(gloo_lane *lane, gloo_job *job)
{
    size_t bytes = gloo_scratch_bytes(lane->hub->mesh, &job->task);

    if (job->widens)
        bytes = job->task.out_count * sizeof(float);
    if (bytes > lane->scratch_bytes) {
        free(lane->scratch);
        lane->scratch = malloc(bytes);
        lane->scratch_bytes = lane->scratch != NULL ? bytes : 0;
    }
    job->task.scratch = lane->scratch;
    return bytes == 0 || lane->scratch != NULL;
}

/* ---- halves, as f32 ------------------------------------------------------ */

static void widen(gloo_job *job)
{
    if (!job->widens)
        return;
    oari_convert(job->task.scratch, OAR_F32, job->from, job->half,
                 job->task.out_count);
    job->task.in = job->task.out = job->task.scratch;
}

static void narrow(const gloo_job *job)
{
    if (job->widens)
        oari_convert(job->into, job->half, job->task.out, OAR_F32,
                     job->task.out_count);
}

/* ---- factors and divisors ------------------------------------------------ */

/* out = in times factor, or divided by divisor. */
static void scale(const gloo_job *job, const void *in, size_t count,
                  const double *factor, double divisor)
{
    const void *source[] = { in };
    void *destination[] = { job->task.out };
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = job->dtype,
                         .sources = 1,
                         .source = source,
                         .factor = factor,
                         .divisor = divisor,
                         .destinations = 1,
                         .destination = destination };

    oari_reduce(&r, count);
}

static void scale_in(gloo_job *job)
{
    if (!job->has_factor)
        return;
    scale(job, job->task.in, job->task.out_count, &job->factor, 0);
    job->task.in = job->task.out;
}

static void scale_out(const gloo_job *job)
{
    if (job->divisor != 0 && job->task.out != NULL)
        scale(job, job->task.out, job->task.out_count, NULL, job->divisor);
}

/* ---- one collective ------------------------------------------------------ */

void gloo_lane_run(gloo_lane *lane, gloo_job *job)
{
    if (!make_scratch(lane, job)) {
        fail(job, "out of memory");
        return;
    }
    widen(job);
    scale_in(job);
    job->failed = gloo_mesh_run(lane->hub->mesh, &job->task, job->why) != 0;
    if (job->failed)
        return;
    scale_out(job);
    narrow(job);
}

/* ---- the worker ---------------------------------------------------------- */

/* Under the lock, which it lets go meanwhile. */
static void do_job(gloo_lane *lane, gloo_job *job)
{
    gloo_hub *hub = lane->hub;

    if (hub->stop || hub->spoiling || hub->spoiled) {
        fail(job, "it has ended");
        return;
    }
    hub->inside++;
    pthread_mutex_unlock(&hub->lock);
    gloo_lane_run(lane, job);
    pthread_mutex_lock(&hub->lock);
    hub->inside--;
    if (hub->spoiling || hub->spoiled || hub->stop)
        pthread_cond_broadcast(&hub->changed);
}

static void run_job(void *arg)
{
    gloo_job *job = arg;
    gloo_hub *hub = job->lane->hub;

    pthread_mutex_lock(&hub->lock);
    do_job(job->lane, job);
    gloo_hub_job_done(hub, job);
    pthread_mutex_unlock(&hub->lock);
}

/* Only the driver makes workers, and only it looks whether there is one. */
oar_status gloo_lane_give(gloo_hub *hub, int number, gloo_job *job)
{
    gloo_lane *lane = &hub->lane[number];

    if (lane->worker == NULL)
        OARI_TRY(oari_worker_create(&(oari_worker_opts){ .name = "oar-gloo" },
                                    &lane->worker));
    job->lane = lane;
    job->job = (oari_job){ .run = run_job, .arg = job };
    return oari_worker_post(lane->worker, &job->job, OARI_NEVER);
}

/* ---- callers ------------------------------------------------------------- */

/* There is at most one: the caller comes before anything else is offered. */
void gloo_lane_offer(gloo_hub *hub, gloo_job *job)
{
    pthread_mutex_lock(&hub->lock);
    hub->offered = job;
    pthread_mutex_unlock(&hub->lock);
}

void gloo_lane_lend(gloo_hub *hub)
{
    gloo_job *job;
    sigset_t before;

    gloo_signal_block(&before);
    pthread_mutex_lock(&hub->lock);
    job = hub->offered;
    hub->offered = NULL;
    if (job != NULL) {
        do_job(&hub->guest, job);
        gloo_hub_job_done(hub, job);
    }
    pthread_mutex_unlock(&hub->lock);
    gloo_signal_restore(&before);
}
