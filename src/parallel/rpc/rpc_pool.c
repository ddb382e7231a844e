/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the pool. threads = idle + blocked + those that run a job; a thread is
 * started when a job is posted, none is idle, and fewer than `wanted` are not
 * blocked. */
#include "parallel/rpc/rpc_pool.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

struct oari_rpc_pool {
    pthread_mutex_t lock;
    pthread_cond_t posted;
    oari_list jobs;
    int waiting; /* jobs */
    int wanted, most;
    int threads, idle, blocked, peak;
    int ending;
    pthread_t *thread;
};

static _Thread_local oari_rpc_pool *pool_of_thread;

oar_status oari_rpc_pool_create(int threads, int most, oari_rpc_pool **pool)
{
    oari_rpc_pool *p = oari_alloc(1, sizeof *p);

    if (p == NULL)
        return OAR_E_NOMEM;
    p->thread = oari_alloc((size_t)most, sizeof *p->thread);
    if (p->thread == NULL) {
        oari_free(p);
        return OAR_E_NOMEM;
    }
    p->wanted = threads;
    p->most = most;
    pthread_mutex_init(&p->lock, NULL);
    oari_cond_init(&p->posted);
    *pool = p;
    return OAR_OK;
}

static void *run_jobs(void *arg)
{
    oari_rpc_pool *p = arg;

    pool_of_thread = p;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        oari_job *job =
            OARI_CONTAINER_OF(oari_list_take(&p->jobs), oari_job, link);

        if (job != NULL) {
            p->waiting--;
            pthread_mutex_unlock(&p->lock);
            job->run(job->arg);
            pthread_mutex_lock(&p->lock);
        } else if (p->ending) {
            break;
        } else {
            p->idle++;
            oari_cond_wait(&p->posted, &p->lock, OARI_NEVER);
            p->idle--;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts a thread if there is something for it to do; with the lock. */
static void add_thread(oari_rpc_pool *p)
{
    if (p->waiting == 0 || p->threads == p->most || p->idle >= p->waiting ||
        p->threads - p->blocked >= p->wanted)
        return;
    if (oari_thread_start(&p->thread[p->threads], "oar-rpc", run_jobs, p) !=
        OAR_OK)
        return;
    p->threads++;
    if (p->threads > p->peak)
        p->peak = p->threads;
}

void oari_rpc_pool_post(oari_rpc_pool *pool, oari_job *job)
{
    pthread_mutex_lock(&pool->lock);
    oari_list_append(&pool->jobs, &job->link);
    pool->waiting++;
    if (pool->idle > 0)
        pthread_cond_signal(&pool->posted);
    add_thread(pool);
    pthread_mutex_unlock(&pool->lock);
}

oar_status oari_rpc_pool_block_begin(oari_rpc_pool *pool)
{
    oar_status status = OAR_OK;

    if (pool_of_thread != pool)
        return OAR_OK;
    pthread_mutex_lock(&pool->lock);
    if (pool->blocked + 1 >= pool->most)
        status = oari_fail(OAR_E_BUSY,
                           "%d of the %d threads that may run functions wait "
                           "for calls inside them already: set most_threads "
                           "higher, or call without waiting",
                           pool->blocked, pool->most);
    else
        pool->blocked++;
    add_thread(pool);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void oari_rpc_pool_block_end(oari_rpc_pool *pool)
{
    if (pool_of_thread != pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->blocked--;
    pthread_mutex_unlock(&pool->lock);
}

void oari_rpc_pool_count(oari_rpc_pool *pool, int *threads, int *most,
                         int *waiting)
{
    pthread_mutex_lock(&pool->lock);
    *threads = pool->threads;
    *most = pool->peak;
    *waiting = pool->waiting;
    pthread_mutex_unlock(&pool->lock);
}

void oari_rpc_pool_destroy(oari_rpc_pool *pool)
{
    oari_link *job;

    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    while ((job = oari_list_take(&pool->jobs)) != NULL) {
        oari_job *j = OARI_CONTAINER_OF(job, oari_job, link);

        j->run(j->arg);
    }
    pthread_cond_destroy(&pool->posted);
    pthread_mutex_destroy(&pool->lock);
    oari_free(pool->thread);
    oari_free(pool);
}
