/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_comm.c: communicators: how they begin, split and end. */
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin/nccl.h"

enum { MAGIC = 0x4e43434c, NO_COLOUR = -1, POLL_NS = 20000 };

STANDIN_API int ncclGetUniqueId(nccl_id *id);
STANDIN_API int ncclCommInitRank(nccl_comm **made, int ranks, nccl_id id,
                                 int rank);
STANDIN_API int ncclCommInitRankConfig(nccl_comm **made, int ranks, nccl_id id,
                                       int rank, const nccl_config *config);
STANDIN_API int ncclCommSplit(nccl_comm *comm, int colour, int key,
                              nccl_comm **made, const nccl_config *config);
STANDIN_API int ncclCommFinalize(nccl_comm *comm);
STANDIN_API int ncclCommDestroy(nccl_comm *comm);
STANDIN_API int ncclCommAbort(nccl_comm *comm);
STANDIN_API int ncclCommGetAsyncError(nccl_comm *comm, int *result);
STANDIN_API int ncclCommCount(const nccl_comm *comm, int *count);
STANDIN_API int ncclCommUserRank(const nccl_comm *comm, int *rank);
STANDIN_API int ncclCommCuDevice(const nccl_comm *comm, int *device);

static atomic_int destroying; /* threads in ncclCommDestroy */

/* ---- threads and waiting ------------------------------------------------- */

void nccl_spawn(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, fn, arg))
        standin_die("no thread for NCCL");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_detach(thread);
}

static void check_peers(nccl_comm *comm)
{
    int expected = NCCL_OK;
    if (comm->state == NCCL_IN_PROGRESS || !comm->shm ||
        !standin_setting("STANDIN_NCCL_NOTICE", 0))
        return;
    for (int i = 0; i < comm->ranks; i++)
        if (nccl_is_gone(comm->shm->slot[i].pid) &&
            atomic_compare_exchange_strong(&comm->state, &expected,
                                           NCCL_REMOTE))
            nccl_fail(NCCL_REMOTE, "rank %d is gone", i);
}

int nccl_pause(nccl_comm *comm)
{
    const struct timespec pause = { 0, POLL_NS };
    if (comm->aborted)
        return 1;
    nanosleep(&pause, NULL);
    return 0;
}

/* Waits until all ranks have called it as often. Callers', not streams'. */
static int meet(nccl_comm *comm)
{
    uint64_t mine = ++comm->meetings;
    comm->shm->slot[comm->rank].sync_point = mine;
    for (int i = 0; i < comm->ranks; i++)
        while (comm->shm->slot[i].sync_point < mine)
            if (nccl_pause(comm))
                return nccl_fail(NCCL_SYSTEM, "aborted");
    return NCCL_OK;
}

/* ---- references ---------------------------------------------------------- */

nccl_comm *nccl_keep(nccl_comm *comm)
{
    comm->refs++;
    return comm;
}

void nccl_release(nccl_comm *comm)
{
    if (--comm->refs > 0)
        return;
    if (comm->last)
        standin_release(comm->last);
    nccl_shm_unmap(comm->shm);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

int nccl_ready(const nccl_comm *comm)
{
    if (!comm)
        return nccl_fail(NCCL_ARGUMENT, "the communicator is NULL");
    if (comm->state == NCCL_IN_PROGRESS)
        return nccl_fail(NCCL_ARGUMENT,
                         "Attempt to use communicator before the previous "
                         "operation returned ncclSuccess");
    if (comm->state)
        return comm->state;
    return comm->ended ? nccl_fail(NCCL_ARGUMENT, "it was finalized") : NCCL_OK;
}

/* ---- beginning ----------------------------------------------------------- */

static int join_comm(nccl_comm *comm)
{
    nccl_slot *slot = &comm->shm->slot[comm->rank];
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&slot->pid, &nobody, (int)getpid()))
        return nccl_fail(NCCL_USAGE, "rank %d has come twice", comm->rank);
    slot->device = comm->owner->device;
    slot->ranks = comm->ranks;
    return meet(comm);
}

static int check_slots(const nccl_comm *comm)
{
    const nccl_slot *slot = comm->shm->slot;
    int share = standin_setting("STANDIN_NCCL_SHARE", 0) != 0;
    for (int i = 0; i < comm->ranks; i++) {
        if (slot[i].ranks != comm->ranks)
            return nccl_fail(NCCL_USAGE, "rank %d takes there to be %d ranks",
                             i, slot[i].ranks);
        for (int k = 0; k < i && !share; k++)
            if (slot[i].device == slot[k].device)
                return nccl_fail(NCCL_USAGE,
                                 "Duplicate GPU detected : rank %d and rank %d "
                                 "both on CUDA device %x000",
                                 i, k, slot[i].device + 1);
    }
    return NCCL_OK;
}

/* Afterwards no rank needs the descriptor. It is closed here and nowhere else:
 * its number may soon belong to another file. */
static int begin(nccl_comm *comm)
{
    uint64_t seed = (uint64_t)standin_setting("STANDIN_SEED", 1) + comm->rank;
    int status;
    standin_dawdle(&seed);
    comm->shm = nccl_shm_map(&comm->place);
    status = comm->shm ? join_comm(comm)
                       : nccl_fail(NCCL_SYSTEM,
                                   "the process that made the id is gone");
    status = status ? status : check_slots(comm);
    nccl_shm_close(&comm->place);
    return status;
}

static void *begin_later(void *arg)
{
    nccl_comm *comm = arg;
    comm->state = begin(comm);
    comm->jobs--;
    nccl_release(comm);
    return NULL;
}

static nccl_comm *make(int rank, int ranks, context *owner)
{
    nccl_comm *comm = calloc(1, sizeof *comm);
    pthread_mutex_init(&comm->lock, NULL);
    comm->refs = 1;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->owner = owner;
    comm->blocking = 1;
    comm->place.fd = -1;
    return comm;
}

int ncclGetUniqueId(nccl_id *id)
{
    nccl_shm_name place;
    uint32_t magic = MAGIC;
    int status, code;
    if (nccl_must_fail("GetUniqueId", &code))
        return code;
    status = nccl_shm_create(&place);
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &magic, sizeof magic);
    memcpy(id->bytes + 8, &place, sizeof place);
    return status;
}

/* NCCL takes the device that is current, or the first. */
static context *current(void)
{
    context *c = NULL;
    return standin_enter(&c) ? standin_context(0) : c;
}

static int check_begin(int ranks, const nccl_id *id, int rank,
                       const nccl_config *config)
{
    uint32_t magic;
    memcpy(&magic, id->bytes, sizeof magic);
    if (magic != MAGIC)
        return nccl_fail(NCCL_ARGUMENT, "the id is none");
    if (ranks < 1 || ranks > NCCL_MOST_RANKS || rank < 0 || rank >= ranks)
        return nccl_fail(NCCL_ARGUMENT, "Invalid rank requested : %d/%d", rank,
                         ranks);
    if (config && config->magic != 0xcafebeef)
        return nccl_fail(NCCL_ARGUMENT, "ncclConfig_t argument not initialized "
                                        "via NCCL_CONFIG_INITIALIZER");
    if (!current())
        return nccl_fail(NCCL_CUDA, "no CUDA context");
    return NCCL_OK;
}

int ncclCommInitRankConfig(nccl_comm **made, int ranks, nccl_id id, int rank,
                           const nccl_config *config)
{
    nccl_comm *comm;
    int status;
    if (nccl_must_fail("CommInitRankConfig", &status))
        return status;
    status = check_begin(ranks, &id, rank, config);
    if (status)
        return status;
    comm = make(rank, ranks, current());
    comm->blocking = !config || config->blocking == INT_MIN || config->blocking;
    memcpy(&comm->place, id.bytes + 8, sizeof comm->place);
    if (!comm->blocking) {
        comm->state = NCCL_IN_PROGRESS;
        *made = comm;
        comm->jobs++;
        nccl_spawn(begin_later, nccl_keep(comm));
        return NCCL_IN_PROGRESS;
    }
    status = begin(comm);
    if (status)
        nccl_release(comm);
    else
        *made = comm;
    return status;
}

int ncclCommInitRank(nccl_comm **made, int ranks, nccl_id id, int rank)
{
    return ncclCommInitRankConfig(made, ranks, id, rank, NULL);
}

/* ---- splitting ----------------------------------------------------------- */

typedef struct parting {
    nccl_comm *parent, *child; /* child: NULL: no colour */
    int colour, key;
} parting;

/* This rank's number among those of its colour, and which rank is number 0. */
static int count_colour(const parting *p, int *rank, int *leader)
{
    const nccl_slot *slot = p->parent->shm->slot;
    int me = p->parent->rank, ranks = 0;
    *rank = 0;
    *leader = me;
    for (int i = 0; i < p->parent->ranks; i++) {
        int best = *leader;
        if (slot[i].colour != p->colour)
            continue;
        ranks++;
        if (slot[i].key < p->key || (slot[i].key == p->key && i < me))
            ++*rank;
        if (slot[i].key < slot[best].key ||
            (slot[i].key == slot[best].key && i < best))
            *leader = i;
    }
    return ranks;
}

static int part(const parting *p)
{
    nccl_comm *parent = p->parent;
    nccl_slot *slot = parent->shm->slot;
    int status, rank = 0, leader = 0, ranks = 0;
    slot[parent->rank].colour = p->colour;
    slot[parent->rank].key = p->key;
    if ((status = meet(parent)))
        return status;
    if (p->child)
        ranks = count_colour(p, &rank, &leader);
    if (p->child && leader == parent->rank)
        status = nccl_shm_create(&slot[leader].split);
    if (status || (status = meet(parent)) || !p->child)
        return status;
    p->child->place = slot[leader].split;
    p->child->rank = rank;
    p->child->ranks = ranks;
    return begin(p->child);
}

static void *part_later(void *arg)
{
    parting *p = arg;
    int status = part(p);
    if (p->child) {
        p->child->state = status;
        p->child->jobs--;
        nccl_release(p->child);
    }
    p->parent->state = NCCL_OK;
    p->parent->jobs--;
    nccl_release(p->parent);
    free(p);
    return NULL;
}

static int split_later(const parting *p)
{
    parting *copy = malloc(sizeof *copy);
    *copy = *p;
    nccl_keep(p->parent)->state = NCCL_IN_PROGRESS;
    p->parent->jobs++;
    if (p->child) {
        nccl_keep(p->child)->state = NCCL_IN_PROGRESS;
        p->child->jobs++;
    }
    nccl_spawn(part_later, copy);
    return NCCL_IN_PROGRESS;
}

int ncclCommSplit(nccl_comm *comm, int colour, int key, nccl_comm **made,
                  const nccl_config *config)
{
    parting p = { .parent = comm, .colour = colour, .key = key };
    int status;
    if (nccl_must_fail("CommSplit", &status) || (status = nccl_ready(comm)))
        return status;
    if (colour < NO_COLOUR)
        return nccl_fail(NCCL_ARGUMENT, "colour %d", colour);
    if (colour != NO_COLOUR) {
        p.child = make(0, 1, comm->owner);
        p.child->blocking = comm->blocking;
        if (config && config->blocking != INT_MIN)
            p.child->blocking = config->blocking;
    }
    *made = p.child;
    if (!comm->blocking)
        return split_later(&p);
    status = part(&p);
    if (status && p.child) {
        nccl_release(p.child);
        *made = NULL;
    }
    return status;
}

/* ---- ending -------------------------------------------------------------- */

static void finish_last(nccl_comm *comm)
{
    operation *last;
    pthread_mutex_lock(&comm->lock);
    last = comm->last;
    comm->last = NULL;
    pthread_mutex_unlock(&comm->lock);
    if (last)
        standin_finish(last);
}

static void *end_later(void *arg)
{
    nccl_comm *comm = arg;
    int expected = NCCL_IN_PROGRESS;
    finish_last(comm);
    atomic_compare_exchange_strong(&comm->state, &expected, NCCL_OK);
    nccl_release(comm);
    return NULL;
}

int ncclCommFinalize(nccl_comm *comm)
{
    int status;
    if (nccl_must_fail("CommFinalize", &status) || (status = nccl_ready(comm)))
        return status;
    comm->ended = 1;
    if (comm->blocking) {
        finish_last(comm);
        return NCCL_OK;
    }
    comm->state = NCCL_IN_PROGRESS;
    nccl_spawn(end_later, nccl_keep(comm));
    return NCCL_IN_PROGRESS;
}

/* The real library is torn down under a thread that is in it. */
__attribute__((destructor)) static void leave(void)
{
    if (!atomic_load(&destroying))
        return;
    fprintf(stderr, "stand-in: exit during ncclCommDestroy\n");
    abort();
}

int ncclCommDestroy(nccl_comm *comm)
{
    const char *takes_ms = getenv("STANDIN_NCCL_DESTROY_MS");
    int status;
    if (nccl_must_fail("CommDestroy", &status))
        return status;
    if (!comm)
        return NCCL_OK;
    atomic_fetch_add(&destroying, 1);
    if (takes_ms)
        poll(NULL, 0, atoi(takes_ms));
    while (comm->state == NCCL_IN_PROGRESS && !nccl_pause(comm))
        ;
    finish_last(comm);
    nccl_release(comm);
    atomic_fetch_sub(&destroying, 1);
    return NCCL_OK;
}

/* What is on streams sees the flag and ends. So do threads that begin or split,
 * and they are waited for. */
int ncclCommAbort(nccl_comm *comm)
{
    const struct timespec pause = { 0, POLL_NS };
    int status;
    if (nccl_must_fail("CommAbort", &status))
        return status;
    if (!comm)
        return NCCL_OK;
    comm->aborted = 1;
    while (comm->jobs)
        nanosleep(&pause, NULL);
    nccl_release(comm);
    return NCCL_OK;
}

int ncclCommGetAsyncError(nccl_comm *comm, int *result)
{
    if (!comm)
        return nccl_fail(NCCL_ARGUMENT, "the communicator is NULL");
    check_peers(comm);
    *result = comm->state;
    return NCCL_OK;
}

int ncclCommCount(const nccl_comm *comm, int *count)
{
    int status = nccl_ready(comm);
    if (!status)
        *count = comm->ranks;
    return status;
}

int ncclCommUserRank(const nccl_comm *comm, int *rank)
{
    int status = nccl_ready(comm);
    if (!status)
        *rank = comm->rank;
    return status;
}

int ncclCommCuDevice(const nccl_comm *comm, int *device)
{
    int status = nccl_ready(comm);
    if (!status)
        *device = comm->owner->device;
    return status;
}
