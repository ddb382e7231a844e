/* SPDX-License-Identifier: Apache-2.0 */
/* group: makes a group, ends it, and answers questions about it. How a group
 * breaks is in group_fault.c. */
#include "comm/group/group.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/fault/mismatch.h"
#include "comm/fault/siblings.h"
#include "comm/fault/open_failure.h"
#include "comm/fault/presence.h"
#include "comm/rendezvous/bootstrap.h"
#include "backends/registry/registry.h"
#include "store/store.h"
#include "comm/api/post.h"
#include "comm/engine/engine.h"
#include "comm/engine/external_engine.h"
#include "comm/engine/gpu_events.h"
#include "comm/engine/work.h"
#include "comm/fault/alone.h"
#include "comm/fault/fault.h"

enum {
    REPORT_MS = 1000 /* within which the ranks that were missed are reported */
};

/* ---- questions ----------------------------------------------------------- */

int oar_group_rank(const oar_group *group)
{
    return group != NULL ? group->rank : -1;
}

int oar_group_size(const oar_group *group)
{
    return group != NULL ? group->ranks : 0;
}

int oar_group_host(const oar_group *group, int rank)
{
    const int *host;

    if (group == NULL || rank < 0 || rank >= group->ranks)
        return -1;
    host = group->in_tree->hosts != NULL ? group->in_tree->hosts(group->self)
                                         : NULL;
    return host != NULL ? host[rank] : 0;
}

int oar_group_overlaps(const oar_group *group)
{
    const oari_shm *shm = group != NULL ? group->shm : NULL;

    return group != NULL && (shm == NULL || shm->member != NULL || shm->spare);
}

const char *oar_group_backend(const oar_group *group)
{
    return group == NULL                 ? ""
           : group->backend_name != NULL ? group->backend_name
                                         : oari_group_asked(group)->name;
}

const char *oar_group_name(const oar_group *group)
{
    return group != NULL ? group->name : "";
}

oar_status oar_recorder_read(const oar_group *group, int rank, int index,
                             oar_record *record)
{
    const void *base;
    oar_record found;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "recorder_read of no group");
    OARI_TRY(oari_group_owned(group));
    if (rank < 0 || rank >= group->ranks)
        return oari_fail(OAR_E_RANK, "rank %d of %d", rank, group->ranks);
    base = oari_group_recorder(group, rank);
    if (base == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "the recorder of rank %d cannot be seen from rank %d",
                         rank, group->rank);
    OARI_TRY(oari_recorder_newest(base, index, &found));
    return oari_struct_give(record, &found, sizeof found, "record");
}

/* ---- making -------------------------------------------------------------- */

static int ranks_here(const oar_group *g)
{
    const int *host =
        g->in_tree->hosts != NULL ? g->in_tree->hosts(g->self) : NULL;
    int here = 0;

    for (int r = 0; r < g->ranks; r++)
        here += host == NULL || host[r] == host[g->rank];
    return here;
}

/* Spinning helps only while every rank on this host has a core of its own. */
static int64_t choose_spin_ns(const oar_group *g, int64_t spin_us)
{
    if (g->shm != NULL)
        return g->shm->spin_ns;
    if (spin_us != 0 || g->backend->wait_fd == NULL)
        return spin_us > 0 ? spin_us * 1000 : 0;
    return ranks_here(g) <= oari_cpus() ? OARI_DEFAULT_SPIN_NS : 0;
}

static oar_status open_backend(oar_group *g, const oar_backend_env *env,
                               const oar_group_opts *o, int64_t rendezvous_ms,
                               struct oari_world *world)
{
    oari_open with = { .env = *env,
                       .small_bytes = o->small_bytes,
                       .stage_bytes = o->stage_bytes,
                       .eager_bytes = o->eager_bytes,
                       .spin_us = o->spin_us,
                       .recorder = g->recorder,
                       .world = world,
                       .secret = o->secret,
                       .rendezvous_ms = rendezvous_ms,
                       .missing = g->missing };

    with.env.timeout_ms = o->timeout_ms;
    with.env.name = g->name;
    with.env.store_address = g->store_address;
    g->self = oari_alloc(1, g->backend->self_size);
    if (g->self == NULL)
        return OAR_E_NOMEM;
    g->opened = 1;
    OARI_TRY(oari_backend_open(g->backend, g->self, &with));
    if (g->in_tree->shm != NULL)
        g->shm = g->in_tree->shm(g->self);
    g->spin_ns = oari_external_spin(g, choose_spin_ns(g, o->spin_us));
    g->spare =
        g->shm != NULL ? g->shm->spare : 2 * ranks_here(g) <= oari_cpus();
    with.env.timeout_ms = rendezvous_ms;
    return g->external.ops != NULL ? oari_external_open(g, &g->external, &with)
                                   : OAR_OK;
}

/* Finds out what the backend can do. One that wants links of ours beside it
 * becomes the external engine, and the links the backend. */
static oar_status find_abilities(oar_group *g)
{
    oar_backend_caps caps = { .size = sizeof caps };

    if (g->backend->probe != NULL)
        OARI_TRY(g->backend->probe(&caps));
    if (caps.can & OAR_WANTS_LINKS) {
        g->external.ops = g->backend;
        OARI_TRY(oari_backend_links(g->ranks, &g->backend));
        if (!oari_external_carries(g))
            OARI_TRY(g->backend->probe(&caps));
    }
    g->in_tree = oari_backend_in_tree(g->backend);
    g->can = caps.can;
    return OAR_OK;
}

static oar_status make_exec(oar_group *g, const oar_group_opts *o, oari_exec *x)
{
    int meets = !g->rules.messages_only && !oari_external_carries(g);

    x->rank = g->rank;
    x->ranks = g->ranks;
    x->shm = meets ? g->shm : NULL;
    x->backend = oari_carrier(g);
    x->self = oari_carrier_self(g);
    x->external = g->external.ops != NULL ? &g->external : NULL;
    x->compared_on = g->external.ops != NULL ? g->shm : NULL;
    if (meets && g->in_tree->shm != NULL && g->in_tree->hosts != NULL)
        x->hosts = g->in_tree->hosts(g->self);
    x->rules = &g->rules;
    x->checks_tags = (g->can & OAR_CAN_ANY) != 0;
    x->history = &g->engine.history;
    x->small_bytes = g->shm != NULL ? g->shm->small_bytes : o->small_bytes;
    x->stage_bytes = g->shm != NULL ? g->shm->stage_bytes : o->stage_bytes;
    x->chunk_bytes = o->chunk_bytes;
    return oari_exec_init(x);
}

/* Makes what is needed to explain a mismatch. */
static oar_status make_history(oar_group *g)
{
    oari_history *h = &g->engine.history;
    int met = g->shm != NULL && g->shm->member == NULL &&
              !g->rules.messages_only && g->external.ops == NULL;

    if (g->ranks == 1 || g->backend->peek == NULL ||
        (g->external.ops == NULL && (g->can & OAR_CAN_PROBE) == 0))
        return OAR_OK;
    h->room = met ? OARI_HISTORY_SHM : OARI_HISTORY_MESSAGES;
    h->ring = oari_alloc(h->room, sizeof *h->ring + sizeof *h->key);
    if (h->ring == NULL)
        return OAR_E_NOMEM;
    h->key = (uint64_t *)(h->ring + h->room);
    return oari_mismatch_create(g, &g->engine.mismatch);
}

/* Operations on device memory are only handed to an engine, so many may be
 * under way; they are compared in shared memory like those of any engine. */
static oar_status make_lanes(oar_group *g, const oar_group_opts *o, int on_gpu)
{
    oari_engine *e = &g->engine;
    int means = g->backend->send != NULL ? OARI_MESSAGES : 0;

    if (g->shm != NULL && g->shm->member == NULL && !oari_external_carries(g))
        means |= OARI_MEMORY;
    e->lane =
        oari_alloc(OARI_LANES + (on_gpu ? OARI_GPU_LANES : 0), sizeof *e->lane);
    if (e->lane == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_rules_check(&g->rules, means));
    OARI_TRY(make_history(g));
    do
        OARI_TRY(make_exec(g, o, &e->lane[e->lanes++].exec));
    while (e->lane->exec.shm == NULL && e->lanes < OARI_LANES);
    e->host_lanes = e->lanes;
    for (; on_gpu && e->lanes < e->host_lanes + OARI_GPU_LANES; e->lanes++) {
        oari_exec *x = &e->lane[e->lanes].exec;

        OARI_TRY(make_exec(g, o, x));
        x->shm = NULL;
        x->compared_on = g->shm;
    }
    return oari_far_scopes_create(g);
}

oar_status oari_group_check_world(int rank, int size)
{
    if (size < 1 || size > OARI_MAX_RANKS)
        return oari_fail(OAR_E_WORLD, "a group of %d: 1 to %d ranks", size,
                         OARI_MAX_RANKS);
    if (rank < 0 || rank >= size)
        return oari_fail(OAR_E_RANK, "rank %d in a group of %d", rank, size);
    return OAR_OK;
}

static oar_status build_group(oar_group *g, const oari_choice *choice,
                              const oar_backend_env *env, int64_t rendezvous_ms,
                              struct oari_world *world)
{
    oar_group_opts *o = &g->settings;
    int has_gpu = choice->gpu != NULL || choice->any_gpu;
    oari_ring_owner owner = { .backend = g->backend->name,
                              .rank = g->rank,
                              .ranks = g->ranks,
                              .threads = world != NULL };

    g->name = oari_strdup(o->name != NULL ? o->name : "world");
    g->missing = oari_alloc((size_t)g->ranks, 1);
    if (g->name == NULL || g->missing == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_engine_init(&g->engine, &oari_fault_events));
    owner.group = g->name;
    if (oari_launcher_rank(&owner.job_rank, &owner.job_ranks) != OAR_OK)
        owner.job_ranks = 0;
    OARI_TRY(oari_recorder_make(&owner, &g->recorder));
    OARI_TRY(oari_settings_own(o->algorithm, o, &g->algorithm));
    if (o->secret != NULL && (g->secret = oari_strdup(o->secret)) == NULL)
        return OAR_E_NOMEM;
    o->secret = g->secret;
    if (env->store != NULL && env->ranks > 1)
        OARI_TRY(oari_settings_agree(env->store, g->name, g->rank, g->ranks,
                                     rendezvous_ms, o, &g->algorithm,
                                     &g->rules));
    else
        OARI_TRY(oari_rules_read(&g->rules, o->algorithm));
    OARI_TRY(find_abilities(g));
    OARI_TRY(open_backend(g, env, o, rendezvous_ms, world));
    OARI_TRY(make_lanes(g, o, has_gpu || oari_group_goes_through_host(g)));
    if (!has_gpu)
        return OAR_OK;
    g->backend_name = oari_strdup(choice->name != NULL ? choice->name : "");
    if (g->backend_name == NULL)
        return OAR_E_NOMEM;
    return oari_gpu_open(g, choice, o, rendezvous_ms);
}

static _Atomic uint64_t worlds; /* made in this process */

oar_status oari_group_open(const oari_choice *choice,
                           const oar_backend_env *env,
                           const oar_group_opts *settings,
                           int64_t rendezvous_ms, struct oari_world *world,
                           oar_group **group)
{
    oar_group *g = oari_alloc(1, sizeof *g);
    oar_status status;
    int64_t before;

    if (g == NULL)
        return OAR_E_NOMEM;
    g->rank = env->rank;
    g->ranks = env->ranks;
    oari_fork_watch();
    g->generation = oari_fork_generation();
    g->backend = choice->host;
    g->bare = choice->bare;
    g->timeout_ms = settings->timeout_ms;
    g->settings = *settings;
    g->world_key = atomic_fetch_add(&worlds, 1);
    g->store = oari_store_retain(env->store);
    g->store_address = oari_store_address(g->store);
    before = oari_store_set_lock_deadline(oari_deadline(rendezvous_ms));
    status = build_group(g, choice, env, rendezvous_ms, world);
    oari_store_set_lock_deadline(before);
    if (status != OAR_OK) {
        oar_error why;

        before = oari_store_set_lock_deadline(oari_deadline(REPORT_MS));
        if (g->name != NULL)
            oari_open_failure_report(env->store, g->name, g->rank, g->ranks,
                                     g->missing);
        oari_store_set_lock_deadline(before);
        why = *oar_last_error();
        oari_recorder_fault(g->recorder, &why);
        oar_group_destroy(g);
        return oari_fail_with(&why);
    }
    oari_recorder_opened(g->recorder);
    oari_free(g->missing);
    g->missing = NULL;
    g->settings.name = g->settings.backend = NULL; /* they are the caller's */
    g->settings.device = NULL;
    g->settings.stream = NULL;
    g->settings.nccl_id = NULL;
    oari_siblings_join(g);
    *group = g;
    return OAR_OK;
}

oar_status oar_group_create(oar_store *store, int rank, int size,
                            const oar_group_opts *opts, oar_group **group)
{
    oar_backend_env env = {
        .size = sizeof env, .rank = rank, .ranks = size, .store = store
    };
    oar_group_opts o;
    oari_choice choice;
    const char *name;
    oar_group *made;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "group_create with nowhere to put it");
    OARI_TRY(oari_group_check_world(rank, size));
    OARI_TRY(oari_group_settings(opts, &o));
    if (store == NULL && size > 1)
        return oari_fail(OAR_E_ARG, "a group of %d needs a store", size);
    name = o.backend != NULL ? o.backend : oari_env_text("OARSONG_BACKEND");
    OARI_TRY(oari_backend_choose(name, size, &choice));
    OARI_TRY(oari_group_open(&choice, &env, &o, o.timeout_ms, NULL, &made));
    return oari_group_complete(made, group);
}

oar_status oari_group_complete(oar_group *made, oar_group **group)
{
    oar_error why;

    if (oari_hosted_open(made) == OAR_OK) {
        *group = made;
        return OAR_OK;
    }
    why = *oar_last_error();
    oar_group_destroy(made);
    return oari_fail_with(&why);
}

void oar_group_destroy(oar_group *group)
{
    if (group == NULL)
        return;
    if (group->generation != oari_fork_generation())
        return; /* a child process owns none of it */
    oari_siblings_leave(group);
    if (group->name != NULL) {
        oari_gpu_await(group);
        if (atomic_load(&group->engine.posted) != 0)
            oar_group_abort(group, "the group was destroyed");
        oari_engine_close(group);
    }
    oari_external_close(&group->hosted);
    oari_external_close(&group->gpu);
    oari_external_close(&group->external);
    if (group->opened)
        group->backend->close(group->self);
    for (int i = 0; i < group->engine.lanes; i++)
        oari_exec_clear(&group->engine.lane[i].exec);
    oari_free(group->engine.lane);
    oari_mismatch_destroy(group->engine.mismatch);
    oari_free(group->engine.history.ring);
    oari_batch_drop(group);
    if (group->name != NULL)
        oari_work_drop_spares(&group->engine);
    while (group->subsets != NULL) {
        oari_subset *s = group->subsets;

        group->subsets = s->next;
        oari_free(s);
    }
    oari_gone_unwatch(group->watch);
    oari_timeout_scope_drop(group);
    oari_far_scopes_destroy(group->far_scopes);
    oar_store_destroy(group->store);
    oari_free(group->in_world);
    oari_free(group->missing);
    oari_recorder_destroy(group->recorder);
    oari_free(group->self);
    oari_free(group->name);
    oari_free(group->backend_name);
    oari_free(group->algorithm);
    if (group->secret != NULL)
        explicit_bzero(group->secret, strlen(group->secret));
    oari_free(group->secret);
    oari_free(group);
}
