/* SPDX-License-Identifier: Apache-2.0 */
/* loader: batches in order, read ahead by a thread.
 *
 * Batch k of an epoch lies in slot k mod slots. `made` counts the batches that
 * are ready, `taken` those that were given out, of which the last is still the
 * caller's; the maker may fill a slot once its last batch was given back. The
 * lock guards these counts and the flags. The pool, the slots that are not
 * ready and the index belong to the maker: the thread, or, while it is held
 * still or when there is none, the caller. Slots are counted in tensors from
 * the pool, so once all have been filled nothing more is asked of the system.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "tensor/tensor_pool.h"

enum { AHEAD = 2, AHEAD_MOST = 1024 };

typedef struct slot {
    oar_tensor *field[OARI_DATASET_FIELDS];
} slot;

struct oar_loader {
    const oar_dataset *dataset;
    oar_loader_opts opts;
    int64_t samples; /* of this rank, in an epoch */
    int64_t batches;
    int64_t *order; /* of the whole data set */
    int64_t *index; /* of the batch that is made */
    slot *slot;
    int slots;
    oari_pool pool;
    unsigned generation; /* of fork */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int has_lock, has_thread;
    int started; /* an epoch */
    int hold;    /* the thread must not make batches */
    int busy;    /* the thread is making a batch */
    int quit;
    int64_t made, taken; /* batches of this epoch */
    int held;            /* batch taken - 1 is the caller's */
    oar_error failure;   /* of batch `made`; OAR_OK: none */
};

/* ---- making a batch ------------------------------------------------------ */

static void drop_slot(oar_loader *l, slot *s)
{
    for (int i = 0; i < l->dataset->fields; i++) {
        oari_tensor_drop(&l->pool, s->field[i]);
        s->field[i] = NULL;
    }
}

/* Makes batch `made`. The caller holds the lock, which this gives up while it
 * reads. */
static void make_next(oar_loader *l)
{
    const oar_loader_opts *o = &l->opts;
    slot *s = &l->slot[l->made % l->slots];
    int64_t first = l->made * o->batch, count = l->samples - first;
    oar_status status;

    l->busy = 1;
    pthread_mutex_unlock(&l->lock);
    drop_slot(l, s);
    if (count > o->batch)
        count = o->batch;
    for (int64_t i = 0; i < count; i++)
        l->index[i] = l->order[oari_sampler_place(l->dataset->count, o->rank,
                                                  o->ranks, first + i)];
    status =
        oari_dataset_batch(l->dataset, &l->pool, count, l->index, s->field);
    pthread_mutex_lock(&l->lock);
    l->busy = 0;
    if (status == OAR_OK)
        l->made++;
    else
        l->failure = *oar_last_error();
    pthread_cond_broadcast(&l->changed);
}

static void *run_loader(void *arg)
{
    oar_loader *l = arg;

    pthread_mutex_lock(&l->lock);
    while (!l->quit)
        if (!l->hold && l->started && l->failure.status == OAR_OK &&
            l->made < l->batches && l->made - l->taken + l->held < l->slots)
            make_next(l);
        else
            pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- making the loader --------------------------------------------------- */

static oar_status make_thread(oar_loader *l)
{
    sigset_t all, before;
    int failed;

    oari_fork_watch();
    l->generation = oari_fork_generation();
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->has_lock = 1;
    if (l->opts.ahead < 0)
        return OAR_OK;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&l->thread, NULL, run_loader, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0)
        return oari_fail(OAR_E_SYSTEM, "start the loader's thread: %s",
                         strerror(failed));
    l->has_thread = 1;
    return OAR_OK;
}

oar_status oar_loader_create(const oar_dataset *dataset,
                             const oar_loader_opts *opts, oar_loader **loader)
{
    oar_loader_opts o;
    oar_loader *made;
    oar_status status;
    int64_t longest;

    if (dataset == NULL || loader == NULL)
        return oari_fail(OAR_E_ARG, "loader_create: no data set or nowhere to "
                                    "give it");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (o.ranks == 0)
        o.ranks = 1;
    if (o.batch == 0)
        o.batch = 1;
    if (o.ahead == 0)
        o.ahead = AHEAD;
    if (o.batch < 0 || o.ahead > AHEAD_MOST)
        return oari_fail(OAR_E_ARG,
                         "a loader of batches of %lld, %d ahead: at least 1, "
                         "at most %d",
                         (long long)o.batch, o.ahead, AHEAD_MOST);
    OARI_TRY(oari_sampler_check(dataset->count, o.rank, o.ranks));
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->dataset = dataset;
    made->opts = o;
    made->samples = oari_sampler_count(dataset->count, o.ranks);
    made->batches = made->samples / o.batch;
    if (made->samples % o.batch != 0 && !o.drop_last)
        made->batches++;
    longest = o.batch < made->samples ? o.batch : made->samples;
    made->slots = o.ahead > 0 ? o.ahead + 1 : 1;
    made->order = oari_alloc((size_t)dataset->count, sizeof *made->order);
    made->index = oari_alloc((size_t)longest, sizeof *made->index);
    made->slot = oari_alloc((size_t)made->slots, sizeof *made->slot);
    status = made->order != NULL && made->index != NULL && made->slot != NULL
                 ? OAR_OK
                 : OAR_E_NOMEM;
    if (status == OAR_OK)
        status = make_thread(made);
    if (status != OAR_OK) {
        oar_loader_destroy(made);
        return status;
    }
    *loader = made;
    return OAR_OK;
}

/* Returns whether the parent of this process made the loader: then its thread
 * is not here, and what it was doing at the time of the fork is half done. */
static int is_parents(const oar_loader *l)
{
    return l->has_thread && l->generation != oari_fork_generation();
}

void oar_loader_destroy(oar_loader *loader)
{
    if (loader == NULL || is_parents(loader))
        return;
    if (loader->has_lock) {
        pthread_mutex_lock(&loader->lock);
        loader->quit = 1;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        if (loader->has_thread)
            pthread_join(loader->thread, NULL);
        pthread_cond_destroy(&loader->changed);
        pthread_mutex_destroy(&loader->lock);
    }
    for (int i = 0; loader->slot != NULL && i < loader->slots; i++)
        drop_slot(loader, &loader->slot[i]);
    oari_pool_close(&loader->pool);
    oari_free(loader->order);
    oari_free(loader->index);
    oari_free(loader->slot);
    oari_free(loader);
}

/* ---- reading ------------------------------------------------------------- */

int64_t oar_loader_batches(const oar_loader *loader)
{
    return loader != NULL ? loader->batches : 0;
}

static oar_status check_here(const oar_loader *l, const char *what)
{
    if (l == NULL)
        return oari_fail(OAR_E_ARG, "%s of NULL", what);
    if (is_parents(l))
        return oari_fail(OAR_E_STATE,
                         "%s: the loader was made before fork, by the parent",
                         what);
    return OAR_OK;
}

oar_status oar_loader_start(oar_loader *loader, uint64_t epoch, int64_t batch)
{
    oar_sampler_opts order = { .size = sizeof order };

    OARI_TRY(check_here(loader, "loader_start"));
    if (batch < 0 || batch > loader->batches)
        return oari_fail(OAR_E_ARG, "start at batch %lld of %lld",
                         (long long)batch, (long long)loader->batches);
    order.seed = loader->opts.seed;
    order.no_shuffle = loader->opts.no_shuffle;
    pthread_mutex_lock(&loader->lock);
    loader->hold = 1;
    while (loader->busy)
        pthread_cond_wait(&loader->changed, &loader->lock);
    for (int i = 0; i < loader->slots; i++)
        drop_slot(loader, &loader->slot[i]);
    oari_sampler_order(loader->order, loader->dataset->count, epoch, &order);
    loader->made = loader->taken = batch;
    loader->held = 0;
    loader->failure.status = OAR_OK;
    loader->started = 1;
    loader->hold = 0;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    return OAR_OK;
}

/* Gives batch `taken`, which exists in this epoch, once it is ready. The caller
 * holds the lock. */
static oar_status take_batch(oar_loader *l, oar_tensor **field)
{
    if (l->made == l->taken && !l->has_thread)
        make_next(l);
    while (l->made == l->taken && l->failure.status == OAR_OK)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->made == l->taken) {
        oari_fail_with(&l->failure);
        l->failure.status = OAR_OK; /* the next call tries again */
        pthread_cond_broadcast(&l->changed);
        return oar_last_error()->status;
    }
    memcpy(field, l->slot[l->taken % l->slots].field,
           (size_t)l->dataset->fields * sizeof *field);
    l->taken++;
    l->held = 1;
    return OAR_OK;
}

oar_status oar_loader_next(oar_loader *loader, oar_tensor **field, int *more)
{
    oar_status status = OAR_OK;
    int any;

    OARI_TRY(check_here(loader, "loader_next"));
    if (field == NULL || more == NULL)
        return oari_fail(OAR_E_ARG, "loader_next: nowhere to give the batch");
    if (!loader->started)
        return oari_fail(OAR_E_STATE, "loader_next before loader_start");
    pthread_mutex_lock(&loader->lock);
    loader->held = 0; /* the batch before this goes back */
    pthread_cond_broadcast(&loader->changed);
    any = loader->taken < loader->batches;
    if (any)
        status = take_batch(loader, field);
    pthread_mutex_unlock(&loader->lock);
    if (status == OAR_OK)
        *more = any;
    return status;
}
