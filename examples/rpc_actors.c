/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_actors: rank 0 has a walker on every other rank, an object that remembers
 * where it is, and sends all of them on. If a rank dies, its walker begins
 * again on another one, or on the same when that was started again:
 *     oarsong run -n 4 --keep-going rpc_actors 60 --die
 *     oarsong run -n 4 --respawn 1 rpc_actors 60 --die --wait
 * (rank 2 kills itself half way.) */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { MOST_WALKERS = 64 };

static void must(oar_status status)
{
    if (status != OAR_OK) {
        fprintf(stderr, "rpc_actors: %s\n", oar_last_error_text());
        exit(1);
    }
}

/* ---- a walker, on the rank that has it ----------------------------------- */

typedef struct walker {
    int64_t place;
} walker;

static int64_t steps_until_death = -1;

/* Gives a reference to a new walker: the rank that gets it holds it. */
static oar_status make_walker(void *arg, oar_rpc_call *call)
{
    walker *w = calloc(1, sizeof *w);
    oar_status status;
    oar_rref *rref;

    (void)arg;
    if (w == NULL)
        return oar_rpc_fail(call, OAR_E_NOMEM, "no memory for a walker");
    status = oar_rref_create(oar_rpc_of(call), "walker", w, free, &rref);
    if (status != OAR_OK) {
        free(w);
        return status;
    }
    status = oar_rpc_put_rref(oar_rpc_reply(call), rref);
    oar_rref_release(rref);
    return status;
}

/* Called on a walker: one at a time, in order. */
static oar_status walk(void *arg, oar_rpc_call *call)
{
    oar_status status;
    int64_t steps;
    void *value;

    (void)arg;
    status = oar_rref_local(oar_rpc_self(call), "walker", &value);
    if (status != OAR_OK || oar_rpc_get_i64(oar_rpc_args(call), &steps))
        return status != OAR_OK ? status : OAR_E_DATA;
    if (steps_until_death > 0 && --steps_until_death == 0)
        raise(SIGKILL);
    ((walker *)value)->place += steps;
    return oar_rpc_put_i64(oar_rpc_reply(call), ((walker *)value)->place);
}

/* ---- rank 0 -------------------------------------------------------------- */

static oar_rref *new_walker(oar_rpc *rpc, int rank)
{
    oar_rpc_message *reply;
    oar_rref *rref;

    must(oar_rpc_sync(rpc, rank, "make_walker", NULL, NULL, &reply));
    must(oar_rpc_get_rref(reply, &rref));
    oar_rpc_message_destroy(reply);
    return rref;
}

/* Sends a walker one step on; 0 if its rank is gone. */
static int send_on(oar_rref *walker_there, int64_t *place)
{
    oar_rpc_message *args, *reply = NULL;
    oar_future *future;
    oar_status status;

    must(oar_rpc_message_create(&args));
    must(oar_rpc_put_i64(args, 1));
    status = oar_rref_call(walker_there, "walk", args, NULL, &future);
    if (status == OAR_OK) {
        status = oar_future_wait(future, &reply);
        oar_future_release(future);
    }
    if (status == OAR_E_PEER)
        return 0;
    must(status);
    must(oar_rpc_get_i64(reply, place));
    oar_rpc_message_destroy(reply);
    return 1;
}

/* Makes a new walker for one whose rank died: here, or there again. */
static oar_rref *replace_walker(oar_rpc *rpc, int i, oar_rref *lost, int wait)
{
    int rank = wait ? oar_rref_owner(lost) : 0;

    oar_rref_release(lost);
    must(oar_rpc_await(rpc, rank, 0));
    printf("the rank of walker %d died: it begins again on rank %d (%s)\n", i,
           rank, oar_rpc_name(rpc, rank));
    return new_walker(rpc, rank);
}

static void lead(oar_rpc *rpc, int steps, int wait)
{
    int size = oar_rpc_size(rpc), count = size > 1 ? size - 1 : 1;
    oar_rref *walkers[MOST_WALKERS];
    int64_t place = 0, total = 0;
    int lost = 0;

    if (count > MOST_WALKERS)
        count = MOST_WALKERS;
    for (int i = 0; i < count; i++)
        walkers[i] = new_walker(rpc, (i + 1) % size);
    for (int step = 0; step < steps; step++)
        for (int i = 0; i < count; i++)
            if (!send_on(walkers[i], &place)) {
                walkers[i] = replace_walker(rpc, i, walkers[i], wait);
                lost++;
            }
    for (int i = 0; i < count; i++) {
        must(send_on(walkers[i], &place) ? OAR_OK : OAR_E_PEER);
        total += place;
        oar_rref_release(walkers[i]);
    }
    printf("%d walkers, %d of them lost once, went %lld steps\n", count, lost,
           (long long)total);
}

/* Makes the agent of this rank: with all others, or, in a process that was
 * started again, among those that live. */
static oar_rpc *join(int again, int mortal)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions, .name = "make_walker", .fn = make_walker },
        { .size = sizeof *functions, .name = "walk", .fn = walk },
    };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_group *world;
    oar_rpc *rpc;

    opts.functions = functions;
    opts.function_count = 2;
    opts.rejoin = getenv("OARSONG_STORE") != NULL ? "walkers" : NULL;
    if (again) {
        must(oar_rpc_rejoin(-1, &opts, &rpc));
        return rpc;
    }
    must(oar_group_from_env(NULL, &world));
    if (oar_group_rank(world) != 2)
        mortal = -1;
    steps_until_death = mortal;
    must(oar_rpc_create(world, &opts, &rpc));
    oar_group_destroy(world);
    return rpc;
}

int main(int argc, char **argv)
{
    const char *respawn = getenv("OARSONG_RESPAWN");
    int steps = argc > 1 ? atoi(argv[1]) : 60;
    int die = argc > 2 && strcmp(argv[2], "--die") == 0;
    int wait = argc > 3 && strcmp(argv[3], "--wait") == 0;
    oar_rpc *rpc =
        join(respawn != NULL && atoi(respawn) > 0, die ? steps / 2 + 1 : -1);

    if (oar_rpc_rank(rpc) == 0)
        lead(rpc, steps, wait);
    must(oar_rpc_shutdown(rpc, 0));
    oar_rpc_destroy(rpc);
    return 0;
}
