/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_worker: runs collectives, one after the other. All ranks give a worker
 * the same collectives in the same order, so no two wait for each other. */
#include <stdio.h>
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"

static void fail_operation(gloo_operation *op, const char *why)
{
    op->failed = 1;
    snprintf(op->why, sizeof op->why, "%s", why);
}

static int make_scratch(gloo_worker *worker, gloo_operation *op)
{
    size_t bytes = gloo_scratch_bytes(&op->task);

    if (op->widens)
        bytes = op->task.out_count * sizeof(float);
    if (bytes > worker->scratch_bytes) {
        free(worker->scratch);
        worker->scratch = malloc(bytes);
        worker->scratch_bytes = worker->scratch != NULL ? bytes : 0;
    }
    op->task.scratch = worker->scratch;
    return bytes == 0 || worker->scratch != NULL;
}

/* out = in * factor, or in / divisor. */
static void scale(const gloo_operation *op, const void *in, size_t count,
                  const double *factor, double divisor)
{
    const void *source[] = { in };
    void *destination[] = { op->task.out };
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = op->dtype,
                         .sources = 1,
                         .source = source,
                         .factor = factor,
                         .divisor = divisor,
                         .destinations = 1,
                         .destination = destination };

    oari_reduce(&r, count);
}

/* Half types are summed in f32, in the scratch. */
static void run_collective(gloo_worker *worker, gloo_operation *op)
{
    if (!make_scratch(worker, op)) {
        fail_operation(op, "out of memory");
        return;
    }
    if (op->widens) {
        oari_convert(op->task.scratch, OAR_F32, op->from, op->half,
                     op->task.out_count);
        op->task.in = op->task.out = op->task.scratch;
    }
    if (op->has_factor) {
        scale(op, op->task.in, op->task.out_count, &op->factor, 0);
        op->task.in = op->task.out;
    }
    op->failed = gloo_mesh_run(worker->threads->mesh, &op->task, op->why) != 0;
    if (op->failed)
        return;
    if (op->divisor != 0 && op->task.out != NULL)
        scale(op, op->task.out, op->task.out_count, NULL, op->divisor);
    if (op->widens)
        oari_convert(op->into, op->half, op->task.out, OAR_F32,
                     op->task.out_count);
}

/* The caller holds the lock, which is released while Gloo runs. */
static void run_unless_stopped(gloo_worker *worker, gloo_operation *op)
{
    gloo_threads *threads = worker->threads;

    if (threads->stop || threads->disconnecting || threads->disconnected) {
        fail_operation(op, "it has ended");
    } else {
        threads->in_gloo++;
        pthread_mutex_unlock(&threads->lock);
        run_collective(worker, op);
        pthread_mutex_lock(&threads->lock);
        threads->in_gloo--;
        if (threads->disconnecting || threads->disconnected || threads->stop)
            pthread_cond_broadcast(&threads->changed);
    }
    gloo_threads_report_operation(threads, op);
}

static void run_operation(void *arg)
{
    gloo_operation *op = arg;
    gloo_threads *threads = op->worker->threads;

    pthread_mutex_lock(&threads->lock);
    run_unless_stopped(op->worker, op);
    pthread_mutex_unlock(&threads->lock);
}

oar_status gloo_worker_post(gloo_threads *threads, int number,
                            gloo_operation *op)
{
    gloo_worker *worker = &threads->worker[number];

    if (worker->thread == NULL)
        OARI_TRY(oari_worker_create(&(oari_worker_opts){ .name = "oar-gloo" },
                                    &worker->thread));
    op->worker = worker;
    op->job = (oari_job){ .run = run_operation, .arg = op };
    return oari_worker_post(worker->thread, &op->job, OARI_NEVER);
}

/* ---- in the caller's thread ---------------------------------------------- */

/* There is at most one: the caller runs it before another can be posted. */
void gloo_inline_post(gloo_threads *threads, gloo_operation *op)
{
    pthread_mutex_lock(&threads->lock);
    threads->inline_op = op;
    pthread_mutex_unlock(&threads->lock);
}

void gloo_inline_run(gloo_threads *threads)
{
    gloo_operation *op;
    sigset_t before;

    gloo_signal_block(&before);
    pthread_mutex_lock(&threads->lock);
    op = threads->inline_op;
    threads->inline_op = NULL;
    if (op != NULL)
        run_unless_stopped(&threads->inline_worker, op);
    pthread_mutex_unlock(&threads->lock);
    gloo_signal_restore(&before);
}
