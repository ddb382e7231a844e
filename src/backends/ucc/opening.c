/* SPDX-License-Identifier: Apache-2.0 */
/* opening: a context and a team for a group, made by a thread of its own.
 *
 * UCC and UCX wait without deadlines, and UCX can wait for itself for ever when
 * it starts (its hooks in the memory functions of a process with threads). So a
 * thread goes in there. If it is not back when the time is up, open returns,
 * and the thread is left alone with everything that it may still touch.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include "backends/ucc/engine.h"
#include "base/alloc.h"
#include "base/clock.h"

enum { GRACE_MS = 500 /* for what is at the deadline itself to say why */ };

struct oari_ucc_errand {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_back;
    oar_status status;
    char text[400]; /* of the thread's last error */
};

/* ---- what the thread does ------------------------------------------------ */

/* What went wrong in an exchange of ours is said already. */
static oar_status failed(const oari_ucc_opening *o, ucc_status_t status,
                         const char *what)
{
    return o->meeting.status != OAR_OK ? o->meeting.status
                                       : oari_ucc_fail(status, what);
}

static oar_status make_context(oari_ucc_opening *o)
{
    ucc_context_params_t params = { .mask = UCC_CONTEXT_PARAM_FIELD_OOB,
                                    .oob =
                                        oari_ucc_meeting_calls(&o->meeting) };
    ucc_context_config_h config;
    ucc_lib_h library;
    ucc_status_t status;
    oar_status found = oari_ucc_library(&library);

    if (found != OAR_OK)
        return found;
    status = ucc_context_config_read(library, NULL, &config);
    if (status != UCC_OK)
        return oari_ucc_fail(status, "reading the settings of a context");
    status = ucc_context_create(library, &params, config, &o->context);
    ucc_context_config_release(config);
    return status == UCC_OK ? OAR_OK : failed(o, status, "making a context");
}

static oar_status wait_for_team(oari_ucc_opening *o)
{
    const oari_ucc_meeting *m = &o->meeting;
    ucc_status_t status;

    while ((status = ucc_team_create_test(o->team)) == UCC_INPROGRESS) {
        if (oari_now_ns() > m->deadline_ns)
            return oar_backend_fail(
                OAR_E_TIMEOUT,
                "UCC made no team of %d ranks in %lld ms; UCX_TLS and "
                "UCX_NET_DEVICES say what it may use between them, "
                "UCX_LOG_LEVEL=info shows what it does",
                m->ranks, (long long)m->timeout_ms);
        ucc_context_progress(o->context);
        sched_yield(); /* for peers that share this core */
    }
    return status == UCC_OK ? OAR_OK : failed(o, status, "making a team");
}

static oar_status make_team(oari_ucc_opening *o)
{
    ucc_team_params_t params = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP |
                UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = oari_ucc_meeting_calls(&o->meeting),
        .ep = (uint64_t)o->meeting.rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    ucc_status_t status =
        ucc_team_create_post(&o->context, 1, &params, &o->team);

    if (status != UCC_OK)
        return failed(o, status, "beginning a team");
    return wait_for_team(o);
}

static oar_status make_all(oari_ucc_opening *o)
{
    oar_status status = oari_ucc_agree(o);

    if (status == OAR_OK)
        status = make_context(o);
    return status == OAR_OK ? make_team(o) : status;
}

static void *go(void *arg)
{
    oari_ucc_opening *o = arg;
    struct oari_ucc_errand *e = o->errand;

    e->status = make_all(o);
    if (e->status != OAR_OK)
        snprintf(e->text, sizeof e->text, "%s", oar_last_error_text());
    pthread_mutex_lock(&e->lock);
    e->is_back = 1;
    pthread_cond_signal(&e->ended);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- sending it ---------------------------------------------------------- */

static struct oari_ucc_errand *new_errand(void)
{
    struct oari_ucc_errand *e = oari_alloc(1, sizeof *e);
    pthread_condattr_t attributes;

    if (e == NULL)
        return NULL;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    return e;
}

/* The thread takes no signals that are meant for the program. */
static oar_status send_thread(oari_ucc_opening *o)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, go, o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return oar_backend_fail(OAR_E_SYSTEM, "a thread to open UCC");
    pthread_detach(thread);
    return OAR_OK;
}

/* 1: it is back; 0: it is left to itself. */
static int wait_for(struct oari_ucc_errand *e, int64_t deadline_ns)
{
    int64_t until = deadline_ns + (int64_t)GRACE_MS * 1000000;
    struct timespec at = { until / 1000000000, until % 1000000000 };
    int back;

    pthread_mutex_lock(&e->lock);
    while (!e->is_back && deadline_ns == OARI_NEVER)
        pthread_cond_wait(&e->ended, &e->lock);
    while (!e->is_back && oari_now_ns() < until)
        pthread_cond_timedwait(&e->ended, &e->lock, &at);
    back = e->is_back;
    pthread_mutex_unlock(&e->lock);
    return back;
}

static void free_errand(struct oari_ucc_errand *e)
{
    if (e == NULL)
        return;
    pthread_cond_destroy(&e->ended);
    pthread_mutex_destroy(&e->lock);
    oari_free(e);
}

static oar_status await(oari_ucc_opening *o)
{
    struct oari_ucc_errand *e = o->errand;
    oar_status status;
    int back = wait_for(e, o->meeting.deadline_ns);

    oari_ucc_meeting_end(&o->meeting);
    if (!back)
        return oar_backend_fail(
            OAR_E_TIMEOUT,
            "UCC did not come back from starting in %lld ms; if UCX waits for "
            "its own memory hooks, UCX_MEM_EVENTS=no keeps it from them",
            (long long)o->meeting.timeout_ms);
    status = e->status;
    if (status != OAR_OK)
        oar_backend_fail(status, "%s", e->text);
    free_errand(e);
    o->errand = NULL;
    return status;
}

/* What is half made cannot be unmade, so it is only forgotten. */
oar_status oari_ucc_opening_run(const oar_backend_env *env,
                                oari_ucc_opening **opening)
{
    oari_ucc_opening *o = oari_alloc(1, sizeof *o);
    oar_status status = OAR_E_NOMEM;

    if (o == NULL)
        return OAR_E_NOMEM;
    oari_ucc_meeting_begin(&o->meeting, env);
    o->errand = new_errand();
    if (o->errand == NULL)
        goto fail;
    status = send_thread(o);
    if (status != OAR_OK)
        goto fail;
    status = await(o);
    if (status == OAR_OK)
        *opening = o;
    return status;
fail:
    oari_ucc_opening_free(o);
    return status;
}

void oari_ucc_opening_free(oari_ucc_opening *opening)
{
    if (opening == NULL)
        return;
    free_errand(opening->errand);
    oari_free(opening);
}
