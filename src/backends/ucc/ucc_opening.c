/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_opening: a context and a team for a group; and ending them.
 *
 * UCC and UCX wait without deadlines: for peers that do not come, and UCX can
 * wait for itself for ever when it starts (its hooks in the memory functions of
 * a process with threads). So both are errands.
 */
#include <sched.h>
#include <stdio.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"

enum {
    GRACE_MS = 500,   /* for what is at the deadline itself to say why */
    DESTROY_MS = 1000 /* longest that ending it is waited for */
};

/* ---- making -------------------------------------------------------------- */

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

static void make(void *arg)
{
    oari_ucc_opening *o = arg;

    o->status = make_all(o);
    if (o->status != OAR_OK)
        snprintf(o->text, sizeof o->text, "%s", oar_last_error_text());
}

/* What is half made cannot be unmade, so it is only forgotten. */
static void forget(void *arg)
{
    oari_free(arg);
}

static int64_t later(int64_t ns, int64_t ms)
{
    return ns == OARI_NEVER ? ns : ns + ms * 1000000;
}

oar_status oari_ucc_opening_run(const oar_backend_env *env,
                                oari_ucc_opening **opening)
{
    oari_ucc_opening *o = oari_alloc(1, sizeof *o);
    oar_status status;

    if (o == NULL)
        return OAR_E_NOMEM;
    oari_ucc_meeting_begin(&o->meeting, env);
    status = oari_ucc_errand(make, forget, o,
                             later(o->meeting.deadline_ns, GRACE_MS));
    oari_ucc_meeting_end(&o->meeting);
    if (status == OAR_E_TIMEOUT)
        return oar_backend_fail(
            OAR_E_TIMEOUT,
            "UCC did not come back from starting in %lld ms; if UCX waits for "
            "its own memory hooks, UCX_MEM_EVENTS=no keeps it from them",
            (long long)env->timeout_ms);
    if (status == OAR_OK && o->status != OAR_OK)
        status = oar_backend_fail(o->status, "%s", o->text);
    if (status == OAR_OK)
        *opening = o;
    else
        forget(o);
    return status;
}

/* ---- ending -------------------------------------------------------------- */

static void destroy(void *arg)
{
    oari_ucc_opening *o = arg;
    ucc_status_t status;

    while ((status = ucc_team_destroy(o->team)) == UCC_INPROGRESS) {
        ucc_context_progress(o->context);
        sched_yield();
    }
    if (status == UCC_OK)
        ucc_context_destroy(o->context);
}

/* It ends every connection properly, which a peer that is gone, or that drives
 * its side no more, may never answer. */
void oari_ucc_opening_end(oari_ucc_opening *opening)
{
    oar_status status;

    opening->meeting.state = OARI_UCC_ENDING;
    status = oari_ucc_errand(destroy, forget, opening,
                             later(oari_now_ns(), DESTROY_MS));
    if (status == OAR_OK)
        forget(opening);
}
