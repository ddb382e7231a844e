/* SPDX-License-Identifier: Apache-2.0 */
/* background: saves that go on in a thread of the checkpoint.
 *
 * The thread has the checkpoint's group from the start of a save to its end. A
 * call that needs the group waits for that first, so that on every rank the
 * operations of a save come before those of the next call: they match, and no
 * two threads of a rank are in the group at once. What has to be agreed without
 * waiting goes over a second group, which only callers use. */
#include <oarsong/collective.h>

#include "base/clock.h"
#include "base/status.h"
#include "parallel/checkpoint/copy_guard.h"
#include "parallel/checkpoint/saving.h"

/* ---- how a save ended ---------------------------------------------------- */

int oari_ckpt_is_busy(oar_checkpoint *c)
{
    int busy;

    pthread_mutex_lock(&c->lock);
    busy = c->busy;
    pthread_mutex_unlock(&c->lock);
    return busy;
}

void oari_ckpt_ended(oari_ckpt_saving *s, oar_status status, int told)
{
    oar_checkpoint *c = s->c;

    pthread_mutex_lock(&c->lock);
    c->ended = status;
    c->told = told || status == OAR_OK;
    if (status == OAR_OK)
        c->stats = s->stats;
    else
        c->failure = *oar_last_error();
    c->busy = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Waits for a save that is under way. The caller has the lock. */
static void await_end(oar_checkpoint *c)
{
    while (c->busy)
        pthread_cond_wait(&c->changed, &c->lock);
    oari_ckpt_saving_free(c->saving);
    c->saving = NULL;
}

oar_status oari_ckpt_settle(oar_checkpoint *c, int tell)
{
    oar_status status = OAR_OK;

    pthread_mutex_lock(&c->lock);
    await_end(c);
    if (tell && !c->told) {
        c->told = 1;
        status = oari_fail_with(&c->failure);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

oar_status oar_checkpoint_wait(oar_checkpoint *checkpoint)
{
    oar_checkpoint *c = checkpoint;
    oar_status status;

    OARI_TRY(oari_ckpt_check(c, "checkpoint_wait"));
    pthread_mutex_lock(&c->lock);
    await_end(c);
    c->told = 1;
    status = c->ended == OAR_OK ? OAR_OK : oari_fail_with(&c->failure);
    pthread_mutex_unlock(&c->lock);
    return status;
}

oar_status oar_checkpoint_test(oar_checkpoint *checkpoint, int *done)
{
    oar_checkpoint *c = checkpoint;
    oar_status status = OAR_OK;

    OARI_TRY(oari_ckpt_check(c, "checkpoint_test"));
    if (done == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_test: nowhere to say it");
    pthread_mutex_lock(&c->lock);
    *done = !c->busy;
    if (!c->busy && c->ended != OAR_OK)
        status = oari_fail_with(&c->failure);
    pthread_mutex_unlock(&c->lock);
    return status;
}

oar_status oar_checkpoint_copied(oar_checkpoint *checkpoint)
{
    oar_checkpoint *c = checkpoint;

    OARI_TRY(oari_ckpt_check(c, "checkpoint_copied"));
    pthread_mutex_lock(&c->lock);
    while (c->busy && !c->copied)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return OAR_OK;
}

/* ---- copying ------------------------------------------------------------- */

/* Lets go of what was copied from. */
static void end_copy(oari_ckpt_saving *s, double seconds)
{
    oar_checkpoint *c = s->c;

    oari_ckpt_free_arrays(s);
    if (s->opts.lazy)
        oari_ckpt_copy_guard_end(s->state->guard);
    s->state = NULL;
    pthread_mutex_lock(&c->lock);
    s->stats.copy_s = seconds;
    c->copied = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* A failure is found by the threads that write: it stops the staging. */
static void copy_arrays(oari_ckpt_saving *s)
{
    int64_t start = oari_now_ns();

    (void)oari_ckpt_staging_copy(&s->c->staging, &s->images, oari_ckpt_array,
                                 s);
    end_copy(s, (double)(oari_now_ns() - start) * 1e-9);
}

/* Only the thread asks this about a lazy save, which it copies itself. */
static int has_to_copy(const oari_ckpt_saving *s)
{
    return s->opts.lazy && s->state != NULL;
}

void oari_ckpt_background_copy(oari_ckpt_saving *s)
{
    if (has_to_copy(s))
        copy_arrays(s);
}

/* A failure is found when the files are written. */
static void await_fetched(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;

    (void)oari_ckpt_gpu_copy_wait(&c->gpu_copy);
    pthread_mutex_lock(&c->lock);
    s->stats.copy_s = (double)(oari_now_ns() - s->start_ns) * 1e-9;
    c->copied = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ---------------------------------------------------------- */

static void run_job(void *arg)
{
    oari_ckpt_saving *s = arg;
    OARI_CALLED_FROM(s->site.file, s->site.line);
    oari_ckpt_staging *staging = &s->c->staging;
    oar_status status;

    if (s->fetched)
        await_fetched(s);
    else if (has_to_copy(s) && oari_ckpt_staging_holds_all(staging))
        copy_arrays(s);
    status = oari_ckpt_run_phases(s);
    oari_ckpt_staging_stop(staging); /* the caller may still wait for room */
    if (has_to_copy(s))
        end_copy(s, 0);
    oari_ckpt_ended(s, status, 0);
}

oar_status oari_ckpt_background_prepare(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;

    if (c->worker == NULL)
        OARI_TRY(oari_worker_create(
            &(oari_worker_opts){ .name = "oar-ckpt-save" }, &c->worker));
    if (s->fetched) {
        s->stats.staging_bytes = c->gpu_copy.bytes;
        return OAR_OK;
    }
    OARI_TRY(oari_ckpt_staging_begin(&c->staging, &s->images,
                                     c->opts.staging_bytes));
    s->stats.staging_bytes = c->staging.bytes;
    for (int64_t i = 0; s->opts.lazy && i < s->state->source.count; i++) {
        const oari_ckpt_source *source = &s->state->source.data[i];

        if (source->class->guard != NULL)
            OARI_TRY(source->class->guard(source, s->state->guard));
    }
    return OAR_OK;
}

oar_status oari_ckpt_background_group(oar_checkpoint *c)
{
    oar_dup_opts dup = { .size = sizeof dup, .name = "calls" };
    oar_status status;

    if (c->group == NULL || c->calls != NULL)
        return OAR_OK;
    status = oari_ckpt_agree(c, oar_group_dup_with(c->group, &dup, &c->calls));
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        oar_group_destroy(c->calls);
        c->calls = NULL;
        return oari_fail_with(&why);
    }
    return OAR_OK;
}

void oari_ckpt_background_start(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    int lazy = s->opts.lazy && s->staged;
    int at_once =
        !lazy && s->staged && oari_ckpt_staging_holds_all(&c->staging);

    pthread_mutex_lock(&c->lock);
    c->busy = 1;
    c->copied = 0;
    c->saving = s;
    pthread_mutex_unlock(&c->lock);
    if (lazy)
        oari_ckpt_copy_guard_begin(s->state->guard);
    if (s->fetched)
        s->state = NULL; /* nothing looks at it any more */
    if (at_once)
        copy_arrays(s);
    s->job = (oari_job){ .run = run_job, .arg = s };
    (void)oari_worker_post(c->worker, &s->job, 0); /* there is always room */
    if (s->staged && !lazy && !at_once)
        copy_arrays(s);
    pthread_mutex_lock(&c->lock);
    s->stats.stall_s = (double)(oari_now_ns() - s->start_ns) * 1e-9;
    if (!c->busy && c->ended == OAR_OK) {
        c->stats.stall_s = s->stats.stall_s;
        c->stats.copy_s = s->stats.copy_s;
    }
    pthread_mutex_unlock(&c->lock);
}
