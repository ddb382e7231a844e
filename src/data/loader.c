/* SPDX-License-Identifier: Apache-2.0 */
/* loader: batches in order, read ahead by a thread.
 *
 * An epoch is an order of all samples. From position `origin` on, where it was
 * started, batch k of all ranks together is the next ranks * batch positions,
 * which the ranks take in turn. Batch k lies in slot k mod slots. `made` counts
 * the batches that are ready, `taken` those that were given out, of which the
 * last is still the caller's; the maker may fill a slot once its last batch was
 * given back. The lock guards these counts and the flags. The pool, the slots
 * that are not ready and the index belong to the maker: the worker, or, while
 * it is held still or when there is none, the caller. Slots are counted in
 * tensors from the pool, so once all have been filled nothing more is asked of
 * the system.
 */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "base/worker.h"
#include "data/dataset.h"
#include "data/loader_gpu.h"
#include "data/sampler.h"
#include "tensor/tensor_pool.h"

enum { AHEAD = 2, AHEAD_MOST = 1024 };

typedef struct slot {
    oar_tensor *field[OARI_DATASET_FIELDS];
} slot;

struct oar_loader {
    const oar_dataset *dataset;
    oar_loader_opts opts;
    int64_t epoch_batches; /* of a whole epoch */
    uint64_t epoch;
    int64_t origin;  /* samples of all ranks before batch 0 */
    int64_t rows;    /* of this rank, from there to the end of the epoch */
    int64_t batches; /* that these make */
    int64_t *order;  /* of the whole data set */
    int64_t *index;  /* of the batch that is made */
    slot *slot;
    int slots;
    oari_pool pool;
    oari_loader_gpu *gpu; /* NULL: batches stay on the cpu */
    oar_device device;
    oari_worker *worker; /* NULL: none, each batch is made when asked for */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int started;         /* an epoch */
    int hold;            /* the worker is to keep still */
    int busy;            /* it does not */
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

static oar_status make_batch(oar_loader *l, int64_t batch)
{
    const oar_loader_opts *o = &l->opts;
    slot *s = &l->slot[batch % l->slots];
    int64_t first = batch * o->batch, count = l->rows - first;

    drop_slot(l, s);
    if (count > o->batch)
        count = o->batch;
    for (int64_t i = 0; i < count; i++)
        l->index[i] = l->order[oari_sampler_place(
            l->dataset->count, l->origin, o->rank, o->ranks, first + i)];
    OARI_TRY(
        oari_dataset_batch(l->dataset, &l->pool, count, l->index, s->field));
    return l->gpu != NULL
               ? oari_loader_gpu_send(l->gpu, (int)(batch % l->slots), s->field)
               : OAR_OK;
}

/* Makes batch `made`. With the lock, which it gives up meanwhile. */
static void make_next(oar_loader *l)
{
    oar_status status;

    l->busy = 1;
    pthread_mutex_unlock(&l->lock);
    status = make_batch(l, l->made);
    pthread_mutex_lock(&l->lock);
    l->busy = 0;
    if (status == OAR_OK)
        l->made++;
    else
        l->failure = *oar_last_error();
    pthread_cond_broadcast(&l->changed);
}

/* The worker's step: one batch at a time, while there is room. */
static int64_t make_ahead(void *arg)
{
    oar_loader *l = arg;
    int makes;

    pthread_mutex_lock(&l->lock);
    makes = !l->hold && l->started && l->failure.status == OAR_OK &&
            l->made < l->batches && l->made - l->taken + l->held < l->slots;
    if (makes)
        make_next(l);
    pthread_mutex_unlock(&l->lock);
    return makes ? 0 : OARI_NEVER;
}

static void wake_worker(oar_loader *l)
{
    if (l->worker != NULL)
        oari_worker_wake(l->worker);
}

/* ---- making the loader --------------------------------------------------- */

static oar_status read_opts(const oar_loader_opts *opts, oar_loader_opts *o)
{
    OARI_TRY(oari_opts_read(o, sizeof *o, opts));
    if (o->ranks == 0)
        o->ranks = 1;
    if (o->batch == 0)
        o->batch = 1;
    if (o->ahead == 0)
        o->ahead = AHEAD;
    if (o->batch < 0 || o->ahead > AHEAD_MOST)
        return oari_fail(OAR_E_ARG,
                         "a loader of batches of %lld, %d ahead: at least 1, "
                         "at most %d",
                         (long long)o->batch, o->ahead, AHEAD_MOST);
    return OAR_OK;
}

/* Begins at a position of the order: counts rows and batches after it. */
static void set_origin(oar_loader *l, int64_t sample)
{
    int64_t each = l->opts.batch;

    l->origin = sample;
    l->rows = oari_sampler_count(l->dataset->count - sample, l->opts.ranks);
    l->batches = l->rows / each;
    if (l->rows % each != 0 && !l->opts.drop_last)
        l->batches++;
}

oar_status oar_loader_create(const oar_dataset *dataset,
                             const oar_loader_opts *opts, oar_loader **loader)
{
    oar_loader_opts o;
    oar_loader *made;
    int64_t longest;
    oar_status status = OAR_OK;

    if (dataset == NULL || loader == NULL)
        return oari_fail(OAR_E_ARG, "loader_create: no data set or nowhere to "
                                    "give it");
    OARI_TRY(read_opts(opts, &o));
    OARI_TRY(oari_sampler_check(dataset->count, o.rank, o.ranks));
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->dataset = dataset;
    made->opts = o;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    set_origin(made, 0);
    made->epoch_batches = made->batches;
    longest = o.batch < made->rows ? o.batch : made->rows;
    made->slots = o.ahead > 0 ? o.ahead + 1 : 1;
    made->order = oari_alloc((size_t)dataset->count, sizeof *made->order);
    made->index = oari_alloc((size_t)longest, sizeof *made->index);
    made->slot = oari_alloc((size_t)made->slots, sizeof *made->slot);
    if (made->order == NULL || made->index == NULL || made->slot == NULL)
        status = OAR_E_NOMEM;
    if (status == OAR_OK && o.device != NULL && o.device->kind != OAR_CPU) {
        made->device = *o.device;
        status = oari_loader_gpu_open(*o.device, made->slots, dataset->fields,
                                      &made->gpu);
    }
    made->opts.device = made->gpu != NULL ? &made->device : NULL;
    if (status == OAR_OK && o.ahead >= 0)
        status = oari_worker_create(&(oari_worker_opts){ .name = "oar-loader",
                                                         .step = make_ahead,
                                                         .arg = made },
                                    &made->worker);
    if (status != OAR_OK) {
        oar_loader_destroy(made);
        return status;
    }
    *loader = made;
    return OAR_OK;
}

/* Made by the parent of this process: its thread is not here, and what it was
 * doing when fork came is half done. */
static int is_foreign(const oar_loader *l)
{
    return l->worker != NULL && !oari_worker_is_here(l->worker);
}

void oar_loader_destroy(oar_loader *loader)
{
    if (loader == NULL || is_foreign(loader))
        return;
    pthread_mutex_lock(&loader->lock);
    loader->started = 0; /* the worker makes no more */
    pthread_mutex_unlock(&loader->lock);
    oari_worker_destroy(loader->worker, NULL);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    for (int i = 0; loader->slot != NULL && i < loader->slots; i++)
        drop_slot(loader, &loader->slot[i]);
    oari_loader_gpu_close(loader->gpu);
    oari_pool_close(&loader->pool);
    oari_free(loader->order);
    oari_free(loader->index);
    oari_free(loader->slot);
    oari_free(loader);
}

/* ---- reading ------------------------------------------------------------- */

int64_t oar_loader_batches(const oar_loader *loader)
{
    return loader != NULL ? loader->epoch_batches : 0;
}

const oar_dataset *oar_loader_dataset(const oar_loader *loader)
{
    return loader != NULL ? loader->dataset : NULL;
}

oar_status oar_loader_describe(const oar_loader *loader, oar_loader_opts *opts)
{
    oar_loader_opts o;

    if (loader == NULL)
        return oari_fail(OAR_E_ARG, "loader_describe of NULL");
    o = loader->opts;
    return oari_struct_give(opts, &o, sizeof o, "loader options");
}

static oar_status check_here(const oar_loader *l, const char *what)
{
    if (l == NULL)
        return oari_fail(OAR_E_ARG, "%s of NULL", what);
    if (is_foreign(l))
        return oari_fail(OAR_E_STATE,
                         "%s: the loader was made before fork, by the parent",
                         what);
    return OAR_OK;
}

/* Takes back the batch that the caller has, if there is one. With the lock. On
 * a GPU it is used until what is on the caller's stream has run. */
static void give_back(oar_loader *l)
{
    if (l->held && l->gpu != NULL)
        oari_loader_gpu_give_back(l->gpu, (int)((l->taken - 1) % l->slots));
    l->held = 0;
}

static void begin_epoch(oar_loader *l, uint64_t epoch, int64_t sample)
{
    oar_sampler_opts order = { .size = sizeof order,
                               .no_shuffle = l->opts.no_shuffle,
                               .seed = l->opts.seed };

    pthread_mutex_lock(&l->lock);
    l->hold = 1;
    while (l->busy)
        pthread_cond_wait(&l->changed, &l->lock);
    for (int i = 0; i < l->slots; i++)
        drop_slot(l, &l->slot[i]);
    oari_sampler_order(l->order, l->dataset->count, epoch, &order);
    l->epoch = epoch;
    set_origin(l, sample);
    give_back(l);
    l->made = l->taken = 0;
    l->failure.status = OAR_OK;
    l->started = 1;
    l->hold = 0;
    wake_worker(l);
    pthread_mutex_unlock(&l->lock);
}

oar_status oar_loader_start(oar_loader *loader, uint64_t epoch, int64_t batch)
{
    OARI_TRY(check_here(loader, "loader_start"));
    if (batch < 0 || batch > loader->epoch_batches)
        return oari_fail(OAR_E_ARG, "start at batch %lld of %lld",
                         (long long)batch, (long long)loader->epoch_batches);
    begin_epoch(loader, epoch,
                batch < loader->epoch_batches
                    ? batch * loader->opts.batch * loader->opts.ranks
                    : loader->dataset->count);
    return OAR_OK;
}

oar_status oar_loader_seek(oar_loader *loader, uint64_t epoch, int64_t sample)
{
    OARI_TRY(check_here(loader, "loader_seek"));
    if (sample < 0 || sample > loader->dataset->count)
        return oari_fail(OAR_E_ARG, "seek to sample %lld of %lld",
                         (long long)sample, (long long)loader->dataset->count);
    begin_epoch(loader, epoch, sample);
    return OAR_OK;
}

oar_status oar_loader_position(const oar_loader *loader, uint64_t *epoch,
                               int64_t *sample)
{
    OARI_TRY(check_here(loader, "loader_position"));
    if (epoch == NULL || sample == NULL)
        return oari_fail(OAR_E_ARG, "loader_position: nowhere to give it");
    *epoch = loader->epoch;
    /* The last batch may be padded, or rows may be left out after it. */
    *sample = loader->started && loader->taken == loader->batches
                  ? loader->dataset->count
                  : loader->origin +
                        loader->taken * loader->opts.batch * loader->opts.ranks;
    return OAR_OK;
}

/* Gives batch `taken`, of which there is one: waits for it, or makes it. With
 * the lock. */
static oar_status take(oar_loader *l, oar_tensor **field)
{
    if (l->made == l->taken && l->worker == NULL)
        make_next(l);
    while (l->made == l->taken && l->failure.status == OAR_OK)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->made == l->taken) {
        oari_fail_with(&l->failure);
        l->failure.status = OAR_OK; /* the next call tries again */
        wake_worker(l);
        return oar_last_error()->status;
    }
    if (l->gpu != NULL)
        OARI_TRY(
            oari_loader_gpu_take(l->gpu, (int)(l->taken % l->slots), field));
    else
        memcpy(field, l->slot[l->taken % l->slots].field,
               (size_t)l->dataset->fields * sizeof *field);
    l->taken++;
    l->held = 1;
    return OAR_OK;
}

oar_status oar_loader_next(oar_loader *loader, oar_tensor **field, int *more)
{
    OARI_TRACED(OARI_TRACE_LOADER, "loader");
    oar_status status = OAR_OK;
    int any;

    OARI_TRY(check_here(loader, "loader_next"));
    if (field == NULL || more == NULL)
        return oari_fail(OAR_E_ARG, "loader_next: nowhere to give the batch");
    if (!loader->started)
        return oari_fail(OAR_E_STATE, "loader_next before loader_start");
    pthread_mutex_lock(&loader->lock);
    give_back(loader); /* the batch before this */
    wake_worker(loader);
    any = loader->taken < loader->batches;
    if (any)
        status = take(loader, field);
    pthread_mutex_unlock(&loader->lock);
    if (status == OAR_OK)
        *more = any;
    return status;
}
