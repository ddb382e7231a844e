/* SPDX-License-Identifier: Apache-2.0 */
/* copy_guard: how many saves have to copy, and a condition to wait on. */
#include "parallel/checkpoint/copy_guard.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/fork.h"

struct oari_ckpt_copy_guard {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int copies;          /* under the lock: saves that have to copy */
    unsigned generation; /* of fork: whose saves these are */
};

/* Returns whether the saves are those of this process, not of its parent. */
static int is_here(const oari_ckpt_copy_guard *g)
{
    return g->generation == oari_fork_generation();
}

/* Begins to count in this process. */
static void begin_here(oari_ckpt_copy_guard *g)
{
    g->generation = oari_fork_generation();
    g->copies = 0;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->idle, NULL);
}

oar_status oari_ckpt_copy_guard_create(oari_ckpt_copy_guard **guard)
{
    oari_ckpt_copy_guard *g = oari_alloc(1, sizeof *g);

    if (g == NULL)
        return OAR_E_NOMEM;
    oari_fork_watch();
    begin_here(g);
    *guard = g;
    return OAR_OK;
}

void oari_ckpt_copy_guard_destroy(oari_ckpt_copy_guard *g)
{
    if (g != NULL && is_here(g)) {
        pthread_cond_destroy(&g->idle);
        pthread_mutex_destroy(&g->lock);
    }
    oari_free(g);
}

void oari_ckpt_copy_guard_begin(oari_ckpt_copy_guard *g)
{
    if (!is_here(g))
        begin_here(g);
    pthread_mutex_lock(&g->lock);
    g->copies++;
    pthread_mutex_unlock(&g->lock);
}

void oari_ckpt_copy_guard_end(oari_ckpt_copy_guard *g)
{
    pthread_mutex_lock(&g->lock);
    g->copies--;
    pthread_cond_broadcast(&g->idle);
    pthread_mutex_unlock(&g->lock);
}

void oari_ckpt_copy_guard_wait(oari_ckpt_copy_guard *g)
{
    if (!is_here(g))
        return;
    pthread_mutex_lock(&g->lock);
    while (g->copies > 0)
        pthread_cond_wait(&g->idle, &g->lock);
    pthread_mutex_unlock(&g->lock);
}
