/* SPDX-License-Identifier: Apache-2.0 */
/* sim_run: N ranks as threads of one process. oar_sim_run makes the world, then
 * every rank's group, then the threads; so no rank can be late or missing at
 * the start. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/group/group.h"
#include "link/shm/inproc.h"

typedef struct sim_rank {
    oar_group *group;
    oar_rank_fn fn;
    void *arg;
    pthread_t thread;
    int started;
    oar_status status;
    oar_error error;
} sim_rank;

static void *run_rank(void *arg)
{
    sim_rank *r = arg;

    r->status = oari_hosted_open(r->group);
    if (r->status == OAR_OK)
        r->status = r->fn(r->group, r->arg);
    if (r->status == OAR_OK) {
        oari_world_say_left(r->group->shm);
        return NULL;
    }
    r->error = *oar_last_error();
    if (r->error.status != r->status) /* not one of ours: say what we know */
        oari_error_set(&r->error, r->status, "rank %d returned %s",
                       oar_group_rank(r->group), oar_status_name(r->status));
    oar_group_abort(r->group, "a rank failed");
    return NULL;
}

static oar_status make_groups(int ranks, const oar_group_opts *settings,
                              sim_rank *rank)
{
    const oari_backend *sim = NULL;
    oari_world *world;
    oar_status status;

    OARI_TRY(oari_backend_in_role(OARI_ROLE_THREADS, &sim));
    OARI_TRY(oari_world_create(ranks, settings->small_bytes,
                               settings->stage_bytes, &world));
    status = OAR_OK;
    for (int r = 0; r < ranks && status == OAR_OK; r++) {
        oar_backend_env env = { .size = sizeof env, .rank = r, .ranks = ranks };
        status =
            oari_group_open(&(oari_choice){ .host = &sim->ops }, &env, settings,
                            settings->timeout_ms, world, &rank[r].group);
    }
    oari_world_release(world);
    return status;
}

static oar_status run_threads(int ranks, sim_rank *rank)
{
    oar_status status = OAR_OK;

    for (int r = 0; r < ranks && status == OAR_OK; r++) {
        int failed = pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]);
        rank[r].started = !failed;
        if (failed)
            status = oari_fail(OAR_E_SYSTEM, "start rank %d: %s", r,
                               strerror(failed));
    }
    if (status != OAR_OK)
        oar_group_abort(rank[0].group, "not all ranks could be started");
    for (int r = 0; r < ranks; r++)
        if (rank[r].started)
            pthread_join(rank[r].thread, NULL);
    return status;
}

oar_status oar_sim_run_with(int ranks, const oar_group_opts *opts,
                            oar_rank_fn fn, void *arg)
{
    oar_group_opts settings;
    const sim_rank *first = NULL;
    oar_status status;
    sim_rank *rank;

    if (ranks < 1 || ranks > OARI_MAX_RANKS)
        return oari_fail(OAR_E_WORLD, "a group of %d: 1 to %d ranks", ranks,
                         OARI_MAX_RANKS);
    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "sim_run without a function");
    OARI_TRY(oari_group_settings(opts, &settings));
    if ((rank = oari_alloc((size_t)ranks, sizeof *rank)) == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < ranks; r++) {
        rank[r].fn = fn;
        rank[r].arg = arg;
    }
    status = make_groups(ranks, &settings, rank);
    if (status == OAR_OK)
        status = run_threads(ranks, rank);
    /* Reports no rank that only heard of another's failure, if it can. */
    for (int r = 0; status == OAR_OK && r < ranks; r++)
        if (rank[r].status != OAR_OK &&
            (first == NULL || (first->status == OAR_E_ABORTED &&
                               rank[r].status != OAR_E_ABORTED)))
            first = &rank[r];
    if (first != NULL)
        status = oari_fail_with(&first->error);
    for (int r = 0; r < ranks; r++)
        oar_group_destroy(rank[r].group);
    oari_free(rank);
    return status;
}

oar_status oar_sim_run(int ranks, oar_rank_fn fn, void *arg)
{
    return oar_sim_run_with(ranks, NULL, fn, arg);
}
