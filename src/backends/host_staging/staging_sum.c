/* SPDX-License-Identifier: Apache-2.0 */
/* staging_sum: this rank's shares of an all_reduce, combined out of all ranks'
 * stages. One core reads about as fast as a GPU's link brings; where ranks have
 * cores to spare a second thread does half. It spins while an all_reduce goes
 * on, and sleeps between two. */
#include "backends/host_staging/staging.h"
#include "base/alloc.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "base/thread.h"
#include "link/shm/board.h"

enum { FEW = 4 << 10 /* bytes of a share that one thread does */ };

struct hosted_sum {
    oari_reduction how; /* without buffers */
    /* what the second thread is to combine; written before `asked` */
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

static void combine(hosted *h, int owner, size_t at, size_t count)
{
    oari_reduction r = h->sum->how;
    const void *source[OARI_MAX_RANKS];
    void *to = h->near[owner] + at;

    for (int i = 0; i < h->ranks; i++)
        source[i] = h->near[i] + at;
    r.source = source;
    r.destination = &to;
    oari_reduce(&r, count);
}

/* ---- the second thread --------------------------------------------------- */

/* 0: it is to end. */
static int rest(hosted_sum *s)
{
    int stop;

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->awake) && !s->stop)
        pthread_cond_wait(&s->changed, &s->lock);
    stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void *second(void *arg)
{
    hosted *h = arg;
    hosted_sum *s = h->sum;

    while (rest(s))
        while (atomic_load(&s->awake)) {
            if (atomic_load(&s->asked) == atomic_load(&s->done)) {
                oari_cpu_pause();
                continue;
            }
            combine(h, s->owner, s->at, s->count);
            atomic_fetch_add(&s->done, 1);
        }
    return NULL;
}

static void set(hosted_sum *s, int awake, int stop)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->awake, awake);
    s->stop = stop;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- life ---------------------------------------------------------------- */

static oar_status make(hosted *h)
{
    size_t factors = (size_t)h->ranks * sizeof(double);
    hosted_sum *s = oari_alloc(1, sizeof *s + factors);

    if (s == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    h->sum = s;
    if (h->sum_threads == 2) /* without it, one does it all */
        s->has_thread =
            oari_thread_start(&s->thread, "oar-sum", second, h) == OAR_OK;
    return OAR_OK;
}

void hosted_sum_close(hosted *h)
{
    hosted_sum *s = h->sum;

    if (s == NULL)
        return;
    if (s->has_thread) {
        set(s, 0, 1);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    oari_free(s);
    h->sum = NULL;
}

/* ---- an all_reduce ------------------------------------------------------- */

static oar_status gather_factors(hosted *h, double mine)
{
    oar_call_opts o = hosted_patience();

    return oar_all_gather(
        h->inner, oar_span_of(&mine, 1, OAR_F64),
        oar_span_of(h->sum->factor, (size_t)h->ranks, OAR_F64), &o, NULL);
}

oar_status hosted_sum_begin(hosted *h, const oar_collective *call)
{
    oar_reduce_op_kind op = call->op.kind;
    int factors = oari_needs_factors(op);

    if (h->sum == NULL)
        OARI_TRY(make(h));
    if (factors)
        OARI_TRY(gather_factors(h, call->weight));
    h->sum->how =
        (oari_reduction){ .kind = oari_computed_kind(op),
                          .dtype = call->out.dtype,
                          .sources = h->ranks,
                          .factor = factors ? h->sum->factor : NULL,
                          .divisor = oari_divisor(op, h->ranks, h->sum->factor),
                          .destinations = 1 };
    if (h->sum->has_thread)
        set(h->sum, 1, 0);
    return OAR_OK;
}

void hosted_sum_end(hosted *h)
{
    if (h->sum->has_thread)
        set(h->sum, 0, 0);
}

void hosted_sum_up(hosted *h, int owner, size_t at, size_t count)
{
    hosted_sum *s = h->sum;
    size_t element = oar_dtype_size(s->how.dtype), half;

    if (!s->has_thread || count * element < FEW) {
        combine(h, owner, at, count);
        return;
    }
    half = count / 2 / HOSTED_LINE * HOSTED_LINE;
    s->owner = owner;
    s->at = at + half * element;
    s->count = count - half;
    atomic_fetch_add(&s->asked, 1);
    combine(h, owner, at, half);
    while (atomic_load(&s->done) != atomic_load(&s->asked))
        oari_cpu_pause();
}
