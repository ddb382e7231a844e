/* SPDX-License-Identifier: Apache-2.0 */
/* inproc: control pages in this process's own memory.
 *
 * A rank that gives up on an operation cannot take its pages away from threads
 * of the same process. Instead it shuts its buffers and waits until the last
 * rank that works on them has left; a rank that comes later finds them shut.
 * That wait is short: a rank that works on them waits for no other.
 */
#include "link/shm/inproc.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/thread.h"

/* A world made of ranks of another, until all of them have found it. */
typedef struct child {
    struct child *next;
    oari_world *world;
    int left; /* ranks that have not asked for it yet */
    char name[];
} child;

struct oari_world {
    int ranks;
    _Atomic int holders;
    oari_control_layout layout;
    oari_control_page **control;
    int *event;
    const void **recorder; /* by rank: for the boards to read */
    oari_recorder **held;  /* by rank: kept while a rank may read it */
    pthread_mutex_t lock;  /* guards the rest */
    pthread_cond_t changed;
    int joined;
    child *children;
};

static void free_world(oari_world *w)
{
    for (int r = 0; r < w->ranks; r++) {
        if (w->control != NULL && w->control[r] != NULL)
            munmap(w->control[r], w->layout.bytes);
        if (w->event != NULL)
            oari_fork_close(w->event[r] - 1);
        if (w->held != NULL)
            oari_recorder_destroy(w->held[r]);
    }
    while (w->children != NULL) {
        child *c = w->children;

        w->children = c->next;
        oari_world_release(c->world);
        oari_free(c);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    oari_free(w->control);
    oari_free(w->event);
    oari_free(w->recorder);
    oari_free(w->held);
    oari_free(w);
}

void oari_world_release(oari_world *world)
{
    if (world != NULL && atomic_fetch_sub(&world->holders, 1) == 1)
        free_world(world);
}

static oar_status make_page(oari_world *w, int rank, size_t small_bytes,
                            size_t stage_bytes)
{
    void *block;
    int event;

    if (!oari_alloc_allowed(w->layout.bytes))
        return OAR_E_NOMEM;
    block = mmap(NULL, w->layout.bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "a control page of %zu bytes",
                         w->layout.bytes);
    w->control[rank] = block;
    oari_control_page_init(w->control[rank], rank, w->ranks, small_bytes,
                           stage_bytes);
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0)
        return oari_fail(OAR_E_SYSTEM, "eventfd");
    w->event[rank] = oari_fork_guard(event) + 1; /* 0: none yet */
    return OAR_OK;
}

static oar_status make_pages(oari_world *w, size_t small_bytes,
                             size_t stage_bytes)
{
    size_t n = (size_t)w->ranks;

    w->control = oari_alloc(n, sizeof *w->control);
    w->event = oari_alloc(n, sizeof *w->event);
    w->recorder = oari_alloc(n, sizeof *w->recorder);
    w->held = oari_alloc(n, sizeof *w->held);
    if (w->control == NULL || w->event == NULL || w->recorder == NULL ||
        w->held == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < w->ranks; r++)
        OARI_TRY(make_page(w, r, small_bytes, stage_bytes));
    return OAR_OK;
}

oar_status oari_world_create(int ranks, size_t small_bytes, size_t stage_bytes,
                             oari_world **world)
{
    oari_world *w = oari_alloc(1, sizeof *w);

    if (w == NULL)
        return OAR_E_NOMEM;
    w->ranks = ranks;
    atomic_store(&w->holders, 1);
    pthread_mutex_init(&w->lock, NULL);
    oari_cond_init(&w->changed);
    w->layout = oari_control_page_layout(ranks, small_bytes, stage_bytes);
    if (make_pages(w, small_bytes, stage_bytes) != OAR_OK) {
        oari_world_release(w);
        return oar_last_error()->status;
    }
    *world = w;
    return OAR_OK;
}

/* ---- worlds of some of the ranks ----------------------------------------- */

static child *add_child(oari_world *w, const char *name, int ranks,
                        size_t small_bytes, size_t stage_bytes)
{
    child *c = oari_alloc(1, sizeof *c + strlen(name) + 1);

    if (c == NULL)
        return NULL;
    if (oari_world_create(ranks, small_bytes, stage_bytes, &c->world) !=
        OAR_OK) {
        oari_free(c);
        return NULL;
    }
    memcpy(c->name, name, strlen(name) + 1);
    c->left = ranks;
    c->next = w->children;
    w->children = c;
    return c;
}

oar_status oari_world_child(oari_world *world, const char *name, int ranks,
                            size_t small_bytes, size_t stage_bytes,
                            oari_world **found)
{
    oar_status status = OAR_OK;
    child **at = &world->children, *c;

    pthread_mutex_lock(&world->lock);
    while (*at != NULL && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    if (*at == NULL) {
        at = &world->children; /* a new one is put in front */
        if (add_child(world, name, ranks, small_bytes, stage_bytes) == NULL)
            status = oar_last_error()->status;
    }
    if (status == OAR_OK) {
        c = *at;
        *found = c->world;
        if (--c->left == 0) { /* the reference goes to the last rank */
            *at = c->next;
            oari_free(c);
        } else
            atomic_fetch_add(&c->world->holders, 1);
    }
    pthread_mutex_unlock(&world->lock);
    return status;
}

oar_status oari_world_wait(oari_world *world, int64_t deadline_ns)
{
    int joined;

    pthread_mutex_lock(&world->lock);
    while (world->joined < world->ranks &&
           oari_cond_wait(&world->changed, &world->lock, deadline_ns))
        ;
    joined = world->joined;
    pthread_mutex_unlock(&world->lock);
    if (joined == world->ranks)
        return OAR_OK;
    return oari_fail(OAR_E_TIMEOUT, "only %d of %d ranks have joined", joined,
                     world->ranks);
}

/* ---- the operations of shared memory ------------------------------------- */

static uint64_t place_memory(void *self, void *memory, size_t bytes)
{
    return bytes != 0 ? (uint64_t)(uintptr_t)memory : 0;
}

static void *resolve_place(void *self, int peer, uint64_t at, size_t bytes)
{
    return (void *)(uintptr_t)at;
}

static oar_status shut_buffers(void *self, void *memory, size_t bytes)
{
    oari_shm *b = self;
    oari_control_page *mine = b->control[b->rank];

    atomic_store(&mine->shut, 1);
    while (atomic_load(&mine->visitors) != 0)
        sched_yield();
    return OAR_OK;
}

static void leave_ranks(oari_shm *b, int end)
{
    for (int r = 0; r < end; r++)
        atomic_fetch_sub(&b->control[r]->visitors, 1);
}

static int enter_ranks(void *self)
{
    oari_shm *b = self;

    for (int r = 0; r < b->ranks; r++) {
        atomic_fetch_add(&b->control[r]->visitors, 1);
        if (atomic_load(&b->control[r]->shut)) {
            leave_ranks(b, r + 1);
            return 0;
        }
    }
    return 1;
}

static void leave_all_ranks(void *self)
{
    oari_shm *b = self;

    leave_ranks(b, b->ranks);
}

static void await_visitors(void *self)
{
    oari_shm *b = self;

    while (atomic_load(&b->control[b->rank]->visitors) != 0)
        sched_yield();
}

static void check_ranks(void *self)
{
    oari_shm *b = self;

    for (int r = 0; r < b->ranks; r++)
        if (atomic_load(&b->control[r]->closed))
            b->gone[r] = b->any_gone = 1;
}

static const oari_shm_ops local_ops = {
    .place = place_memory,
    .resolve = resolve_place,
    .detach = shut_buffers,
    .enter = enter_ranks,
    .leave = leave_all_ranks,
    .settle = await_visitors,
    .check = check_ranks,
};

oar_status oari_world_join(oari_world *world, int rank, int64_t spin_us,
                           oari_recorder *recorder, oari_shm *shm)
{
    shm->ops = &local_ops;
    shm->self = shm;
    shm->rank = rank;
    shm->ranks = world->ranks;
    shm->layout = world->layout;
    OARI_TRY(oari_shm_init(shm));
    for (int r = 0; r < world->ranks; r++) {
        shm->control[r] = world->control[r];
        shm->event[r] = world->event[r] - 1;
    }
    shm->first = (void *)((char *)world->control[0] + world->layout.first);
    shm->wait_fd = shm->event[rank];
    world->held[rank] = oari_recorder_retain(recorder);
    world->recorder[rank] = oari_recorder_base(recorder);
    oari_free(shm->recorder);
    shm->recorder = world->recorder; /* filled in as the others join */
    shm->world = world;
    atomic_fetch_add(&world->holders, 1);
    pthread_mutex_lock(&world->lock);
    world->joined++;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    return oari_shm_ready(shm, spin_us);
}

void oari_world_say_left(oari_shm *shm)
{
    atomic_store(&shm->control[shm->rank]->closed, 1);
    for (int r = 0; r < shm->ranks; r++)
        oari_shm_notify(shm, r);
}

void oari_world_leave(oari_shm *shm)
{
    oari_world *world = shm->world;

    if (world != NULL) {
        oari_world_say_left(shm);
        shm->recorder = NULL; /* the world's */
    }
    oari_shm_clear(shm);
    oari_world_release(world);
}
