/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_context: makes and ends the UCC context and team of a group.
 *
 * UCC and UCX wait without deadlines: for peers that do not come, and UCX can
 * deadlock with itself when it starts (its hooks in the memory functions of a
 * process with threads). So both run in a detached thread, which is left alone
 * if it does not return in time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

enum {
    GRACE_MS = 500,    /* for calls with the same deadline to report why */
    DESTROY_MS = 1000, /* the longest wait for the end of a context */
    LINGER_MS = 50     /* in which connections may end */
};

/* ---- detached calls ------------------------------------------------------ */

typedef struct detached_call {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_done, is_abandoned;
    void (*run)(void *arg);
    void *arg;
} detached_call;

static void free_call(detached_call *c)
{
    pthread_cond_destroy(&c->ended);
    pthread_mutex_destroy(&c->lock);
    oari_free(c);
}

static void *detached_main(void *arg)
{
    detached_call *c = arg;
    int abandoned;

    c->run(c->arg);
    pthread_mutex_lock(&c->lock);
    c->is_done = 1;
    abandoned = c->is_abandoned;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    if (abandoned) {
        oari_free(c->arg);
        free_call(c);
    }
    return NULL;
}

/* Runs run(arg) in a thread. OAR_E_TIMEOUT: it has not returned by the
 * deadline; the thread then owns arg, and frees it if it ever returns.
 */
static oar_status call_detached(void (*run)(void *arg), void *arg,
                                int64_t deadline_ns)
{
    detached_call *c = oari_alloc(1, sizeof *c);
    pthread_t thread;
    oar_status status;
    int done;

    if (c == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&c->lock, NULL);
    oari_cond_init(&c->ended);
    c->run = run;
    c->arg = arg;
    status = oari_thread_start(&thread, "oar-ucc", detached_main, c);
    if (status != OAR_OK) {
        free_call(c);
        return status;
    }
    pthread_detach(thread);
    pthread_mutex_lock(&c->lock);
    while (!c->is_done && oari_cond_wait(&c->ended, &c->lock, deadline_ns))
        ;
    done = c->is_done;
    c->is_abandoned = !done;
    pthread_mutex_unlock(&c->lock);
    if (!done)
        return OAR_E_TIMEOUT;
    free_call(c);
    return OAR_OK;
}

/* ---- agreeing ------------------------------------------------------------ */

/* What a rank shows the others before UCC starts. */
typedef struct rank_info {
    char version[28]; /* of UCC, whose own exchange does not check it */
    char host[64];
    int32_t takes_bf16;
    int32_t has_ucx_tls; /* the user has chosen UCX's transports */
} rank_info;

/* Checks that all ranks have the same UCC, and takes rank 0's choice of bf16.
 * Connections can be reset under a peer that still uses them; UCX uses none on
 * one host, unless the user asks for them. */
static oar_status agree_ranks(oari_ucc_context *o)
{
    const char *bf16 = getenv("OARSONG_UCC_BF16");
    rank_info mine = { .has_ucx_tls = getenv("UCX_TLS") != NULL };
    int ranks = o->oob.ranks, has_connections = 0;
    rank_info *row = oari_alloc((size_t)ranks, sizeof *row);
    oar_status status;

    if (row == NULL)
        return OAR_E_NOMEM;
    mine.takes_bf16 =
        bf16 != NULL && (strcmp(bf16, "1") == 0 || strcmp(bf16, "on") == 0 ||
                         strcmp(bf16, "yes") == 0 || strcmp(bf16, "true") == 0);
    snprintf(mine.version, sizeof mine.version, "%s", ucc_get_version_string());
    gethostname(mine.host, sizeof mine.host - 1);
    status = oari_ucc_oob_exchange(&o->oob, &mine, row, sizeof mine);
    for (int r = 0; r < ranks && status == OAR_OK; r++) {
        row[r].version[sizeof row[r].version - 1] = 0;
        if (strcmp(row[r].version, mine.version) != 0)
            status = oar_backend_fail(OAR_E_MISMATCH,
                                      "rank %d has UCC %s, this rank %s", r,
                                      row[r].version, mine.version);
        has_connections |=
            row[r].has_ucx_tls ||
            memcmp(row[r].host, row[0].host, sizeof row[0].host) != 0;
    }
    o->takes_bf16 = row[0].takes_bf16;
    o->oob.linger_ms = has_connections ? LINGER_MS : 0;
    oari_free(row);
    return status;
}

/* ---- making -------------------------------------------------------------- */

/* An exchange of ours that failed has set the last error. */
static oar_status fail_making(const oari_ucc_context *o, ucc_status_t status,
                              const char *what)
{
    return o->oob.status != OAR_OK ? o->oob.status
                                   : oari_ucc_fail(status, what);
}

static oar_status make_context(oari_ucc_context *o)
{
    ucc_context_params_t params = { .mask = UCC_CONTEXT_PARAM_FIELD_OOB,
                                    .oob = oari_ucc_oob_calls(&o->oob) };
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
    return status == UCC_OK ? OAR_OK
                            : fail_making(o, status, "making a context");
}

static oar_status make_team(oari_ucc_context *o)
{
    ucc_team_params_t params = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP |
                UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = oari_ucc_oob_calls(&o->oob),
        .ep = (uint64_t)o->oob.rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    ucc_status_t status =
        ucc_team_create_post(&o->context, 1, &params, &o->team);

    if (status != UCC_OK)
        return fail_making(o, status, "starting a team");
    while ((status = ucc_team_create_test(o->team)) == UCC_INPROGRESS) {
        if (oari_now_ns() > o->oob.deadline_ns)
            return oar_backend_fail(
                OAR_E_TIMEOUT,
                "UCC made no team of %d ranks in %lld ms; UCX_TLS and "
                "UCX_NET_DEVICES say what it may use between them, "
                "UCX_LOG_LEVEL=info shows what it does",
                o->oob.ranks, (long long)o->oob.timeout_ms);
        ucc_context_progress(o->context);
        sched_yield(); /* for peers that share this core */
    }
    return status == UCC_OK ? OAR_OK : fail_making(o, status, "making a team");
}

static void make_all(void *arg)
{
    oari_ucc_context *o = arg;

    o->status = agree_ranks(o);
    if (o->status == OAR_OK)
        o->status = make_context(o);
    if (o->status == OAR_OK)
        o->status = make_team(o);
    if (o->status != OAR_OK)
        snprintf(o->text, sizeof o->text, "%s", oar_last_error_text());
}

static int64_t add_ms(int64_t ns, int64_t ms)
{
    return ns == OARI_NEVER ? ns : ns + ms * 1000000;
}

oar_status oari_ucc_context_create(const oar_backend_env *env,
                                   oari_ucc_context **context)
{
    oari_ucc_context *o = oari_alloc(1, sizeof *o);
    oar_status status;

    if (o == NULL)
        return OAR_E_NOMEM;
    oari_ucc_oob_init(&o->oob, env);
    status = call_detached(make_all, o, add_ms(o->oob.deadline_ns, GRACE_MS));
    o->oob.state = OARI_UCC_OPEN;
    if (status == OAR_E_TIMEOUT)
        return oar_backend_fail(
            OAR_E_TIMEOUT,
            "UCC did not start in %lld ms; if UCX waits for "
            "its own memory hooks, UCX_MEM_EVENTS=no keeps it from them",
            (long long)env->timeout_ms);
    if (status == OAR_OK && o->status != OAR_OK)
        status = oar_backend_fail(o->status, "%s", o->text);
    if (status == OAR_OK)
        *context = o;
    else
        oari_free(o); /* UCC cannot destroy what is half made */
    return status;
}

/* ---- ending -------------------------------------------------------------- */

static void destroy_context(void *arg)
{
    oari_ucc_context *o = arg;
    ucc_status_t status;

    while ((status = ucc_team_destroy(o->team)) == UCC_INPROGRESS) {
        ucc_context_progress(o->context);
        sched_yield();
    }
    if (status == UCC_OK)
        ucc_context_destroy(o->context);
}

/* UCC ends every connection by a handshake, which a peer that is gone, or that
 * no longer progresses, never answers. */
void oari_ucc_context_destroy(oari_ucc_context *context)
{
    oar_status status;

    context->oob.state = OARI_UCC_ENDING;
    status = call_detached(destroy_context, context,
                           add_ms(oari_now_ns(), DESTROY_MS));
    if (status == OAR_OK)
        oari_free(context);
}
