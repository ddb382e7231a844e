/* SPDX-License-Identifier: Apache-2.0 */
/* staging_sum: this rank's shares of an all_reduce, combined from all ranks'
 * buffers. One core reads about as fast as a GPU's link writes; where ranks
 * have cores to spare, a second thread does half. It spins while an all_reduce
 * runs, and sleeps in between. */
#include "backends/host_staging/staging.h"
#include "base/alloc.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "base/thread.h"
#include "link/shm/board.h"

enum { SPLIT_BYTES = 4 << 10 /* shares below this are not split */ };

struct staging_sum {
    oari_reduction reduction; /* without buffers */
    /* what the second thread combines; written before `asked` */
    int owner;
    size_t at, count;
    _Atomic unsigned asked, done;
    _Atomic int awake;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop; /* under lock */
    pthread_t thread;
    int has_thread;
    double factor[]; /* by rank */
};

static void combine_share(staging *h, int owner, size_t at, size_t count)
{
    oari_reduction r = h->sum->reduction;
    const void *source[OARI_MAX_RANKS];
    void *to = h->mapped[owner] + at;

    for (int i = 0; i < h->ranks; i++)
        source[i] = h->mapped[i] + at;
    r.source = source;
    r.destination = &to;
    oari_reduce(&r, count);
}

/* ---- the second thread --------------------------------------------------- */

static void *second_main(void *arg)
{
    staging *h = arg;
    staging_sum *s = h->sum;
    int stop;

    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!atomic_load(&s->awake) && !s->stop)
            pthread_cond_wait(&s->changed, &s->lock);
        stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;
        while (atomic_load(&s->awake)) {
            if (atomic_load(&s->asked) == atomic_load(&s->done)) {
                oari_cpu_pause();
                continue;
            }
            combine_share(h, s->owner, s->at, s->count);
            atomic_fetch_add(&s->done, 1);
        }
    }
}

static void set_state(staging_sum *s, int awake, int stop)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->awake, awake);
    s->stop = stop;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void staging_sum_close(staging *h)
{
    staging_sum *s = h->sum;

    if (s == NULL)
        return;
    if (s->has_thread) {
        set_state(s, 0, 1);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    oari_free(s);
    h->sum = NULL;
}

/* ---- an all_reduce ------------------------------------------------------- */

oar_status staging_sum_begin(staging *h, const oar_collective *call)
{
    oar_reduce_op_kind op = call->op.kind;
    int factors = oari_needs_factors(op);
    size_t ranks = (size_t)h->ranks;
    double weight = call->weight;
    staging_sum *s = h->sum;

    if (s == NULL) {
        s = oari_alloc(1, sizeof *s + ranks * sizeof(double));
        if (s == NULL)
            return OAR_E_NOMEM;
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->changed, NULL);
        h->sum = s;
        if (h->sum_threads == 2) /* if it does not start, one does it all */
            s->has_thread = oari_thread_start(&s->thread, "oar-sum",
                                              second_main, h) == OAR_OK;
    }
    if (factors)
        OARI_TRY(oar_all_gather(h->inner, oar_span_of(&weight, 1, OAR_F64),
                                oar_span_of(s->factor, ranks, OAR_F64),
                                &h->untimed, NULL));
    s->reduction =
        (oari_reduction){ .kind = oari_computed_kind(op),
                          .dtype = call->out.dtype,
                          .sources = h->ranks,
                          .factor = factors ? s->factor : NULL,
                          .divisor = oari_divisor(op, h->ranks, s->factor),
                          .destinations = 1 };
    if (s->has_thread)
        set_state(s, 1, 0);
    return OAR_OK;
}

void staging_sum_end(staging *h)
{
    if (h->sum->has_thread)
        set_state(h->sum, 0, 0);
}

void staging_sum_run(staging *h, int owner, size_t at, size_t count)
{
    staging_sum *s = h->sum;
    size_t element = oar_dtype_size(s->reduction.dtype), half;

    if (!s->has_thread || count * element < SPLIT_BYTES) {
        combine_share(h, owner, at, count);
        return;
    }
    half = count / 2 / STAGING_LINE * STAGING_LINE;
    s->owner = owner;
    s->at = at + half * element;
    s->count = count - half;
    atomic_fetch_add(&s->asked, 1);
    combine_share(h, owner, at, half);
    while (atomic_load(&s->done) != atomic_load(&s->asked))
        oari_cpu_pause();
}
