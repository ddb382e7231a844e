/* SPDX-License-Identifier: Apache-2.0 */
/* replica: compares a hash of the parameters of all ranks from time to time:
 * the minima of the hash and of its complement tell whether all are the same.
 * If not, the ranks compare parameter by parameter, to name the first
 * difference. On a GPU kernels make the hashes, and the host looks at the
 * result a few passes later. */
#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"

enum {
    EVERY = 100,
    LATER = 4 /* passes until a result of a GPU is read */
};

int oari_replica_interval(const oari_ddp *d)
{
    int every = d->opts.check_every != 0 ? d->opts.check_every : EVERY;

    return every > 0 ? every : 0;
}

/* Parameters are contiguous: optimizers need that, too. */
static uint64_t hash_of(const oar_tensor *param, uint64_t seed)
{
    size_t bytes = (size_t)oar_tensor_count(param) *
                   oar_dtype_size(oar_tensor_dtype(param));
    const void *data = oar_tensor_const_data(param);

    return data != NULL ? oari_hash64(data, bytes, seed) : seed;
}

/* ---- on a GPU ------------------------------------------------------------ */

static oar_status open_check(oari_ddp *d)
{
    oari_gpu_check *c = &d->check;
    oar_device gpu = d->reducer->device;

    if (c->param != NULL)
        return OAR_OK;
    for (int i = 0; i < 2; i++)
        if (c->word[i] == NULL)
            c->word[i] = oar_empty_on(NULL, gpu, OAR_U64, OAR_SHAPE(1));
    if (c->word[0] == NULL || c->word[1] == NULL)
        return oar_last_error()->status;
    if (c->pinned == NULL)
        OARI_TRY(oar_pinned_alloc(2 * sizeof *c->pinned, (void **)&c->pinned));
    if (c->event == NULL)
        OARI_TRY(oar_event_create(gpu, 0, &c->event));
    c->param = oari_alloc((size_t)d->slots + 1, sizeof(oar_tensor *));
    for (int i = 0; c->param != NULL && i < d->slots; i++)
        c->param[i] = d->slot[i].param;
    return c->param != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_replica_gpu_close(oari_ddp *d)
{
    oari_gpu_check *c = &d->check;

    if (c->event != NULL) {
        oar_event_synchronize(d->reducer->device, c->event);
        oar_event_destroy(d->reducer->device, c->event);
    }
    oar_pinned_free(c->pinned);
    oar_tensor_release(c->word[0]);
    oar_tensor_release(c->word[1]);
    oari_free(c->param);
}

static oar_status begin_on_gpu(oari_ddp *d)
{
    static const oar_device cpu = { OAR_CPU, 0 };
    oari_gpu_check *c = &d->check;
    oar_device gpu = d->reducer->device;
    void *stream = oar_stream_current(gpu);

    OARI_TRY(open_check(d));
    OARI_TRY(oar_tensor_hash(d->slots, c->param, c->word[0]));
    OARI_TRY(oar_tensor_copy(c->word[1], c->word[0]));
    for (int i = 0; i < 2; i++) {
        oar_span span;

        OARI_TRY(oar_tensor_span(c->word[i], &span));
        OARI_TRY(oar_all_reduce(
            d->group, span, i == 0 ? OAR_MIN : OAR_MAX,
            OAR_OPTS(oar_call_opts, .label = "replica check"), NULL));
        OARI_TRY(oar_device_copy(&c->pinned[i], cpu, span.data, gpu,
                                 sizeof *c->pinned, stream));
    }
    return oar_event_record(gpu, c->event, stream);
}

static oar_status find_difference(oari_ddp *d);

static oar_status end_on_gpu(oari_ddp *d)
{
    OARI_TRY(oar_event_synchronize(d->reducer->device, d->check.event));
    return d->check.pinned[0] == d->check.pinned[1] ? OAR_OK
                                                    : find_difference(d);
}

oar_status oari_replica_gpu_pass(oari_ddp *d)
{
    int every = oari_replica_interval(d);
    int64_t pass = d->reducer->passes + 1;

    if (d->check.read_at != 0 && pass >= d->check.read_at) {
        d->check.read_at = 0;
        OARI_TRY(end_on_gpu(d));
    }
    if (every == 0 || pass % every != 0)
        return OAR_OK;
    d->check.read_at = pass + (every < LATER ? every : LATER);
    return begin_on_gpu(d);
}

/* ---- all ranks ----------------------------------------------------------- */

oar_status oari_replica_check_begin(oari_ddp *d, oari_replica_check *q)
{
    uint64_t hash = 0;

    if (oari_reducer_on_gpu(d->reducer))
        return begin_on_gpu(d);

    for (int i = 0; i < d->slots; i++)
        hash = hash_of(d->slot[i].param, hash);
    q->word[0] = hash;
    q->word[1] = ~hash;
    return oar_all_reduce(d->group, oar_span_of(q->word, 2, OAR_U64), OAR_MIN,
                          OAR_OPTS(oar_call_opts, .label = "replica check"),
                          &q->work);
}

static oar_status hash_anywhere(oari_ddp *d, int index, uint64_t *hash)
{
    oar_tensor *param = d->slot[index].param;

    *hash = 0;
    if (!oari_reducer_on_gpu(d->reducer)) {
        *hash = hash_of(param, 0);
        return OAR_OK;
    }
    OARI_TRY(oar_tensor_hash(1, &param, d->check.word[0]));
    return oar_tensor_read(d->check.word[0], OAR_U64, hash);
}

static oar_status find_difference(oari_ddp *d)
{
    size_t n = (size_t)d->slots, ranks = (size_t)oar_group_size(d->group);
    uint64_t *mine = oari_alloc(n * (ranks + 1) + 1, sizeof *mine);
    uint64_t *all; /* the hashes of rank 0, of rank 1, ... */
    oar_status status = OAR_OK;
    size_t at = n;

    if (mine == NULL)
        return OAR_E_NOMEM;
    all = mine + n;
    for (int i = 0; i < d->slots && status == OAR_OK; i++)
        status = hash_anywhere(d, i, &mine[i]);
    if (status == OAR_OK)
        status =
            oar_all_gather(d->group, oar_span_of(mine, n, OAR_U64),
                           oar_span_of(all, n * ranks, OAR_U64), NULL, NULL);
    while (status == OAR_OK && at < n * ranks && all[at] == all[at % n])
        at++;
    if (status == OAR_OK && at < n * ranks)
        status = oari_fail(OAR_E_MISMATCH,
                           "the replicas have come apart: parameter %s of "
                           "rank %zu is not what it is on rank 0",
                           d->reducer->slot[at % n].name, at / n);
    else if (status == OAR_OK)
        status = oari_fail(OAR_E_MISMATCH, "the replicas have come apart");
    oari_free(mine);
    return status;
}

oar_status oari_replica_check_end(oari_ddp *d, oari_replica_check *q)
{
    if (oari_reducer_on_gpu(d->reducer))
        return end_on_gpu(d);
    OARI_TRY(oar_work_wait(q->work));
    if (q->word[0] == ~q->word[1])
        return OAR_OK;
    return find_difference(d);
}
