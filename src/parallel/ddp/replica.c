/* SPDX-License-Identifier: Apache-2.0 */
/* replica: compares a hash of the parameters of all ranks from time to time:
 * the minima of the hash and of its complement tell whether all are the same.
 * If not, the ranks compare parameter by parameter, to name the first
 * difference. */
#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"

/* Parameters are contiguous: optimizers need that, too. */
static uint64_t hash_of(const oar_tensor *param, uint64_t seed)
{
    size_t bytes = (size_t)oar_tensor_count(param) *
                   oar_dtype_size(oar_tensor_dtype(param));
    const void *data = oar_tensor_const_data(param);

    return data != NULL ? oari_hash64(data, bytes, seed) : seed;
}

oar_status oari_replica_check_begin(const oari_ddp *d, oari_replica_check *q)
{
    uint64_t hash = 0;

    for (int i = 0; i < d->slots; i++)
        hash = hash_of(d->slot[i].param, hash);
    q->word[0] = hash;
    q->word[1] = ~hash;
    return oar_all_reduce(d->group, oar_span_of(q->word, 2, OAR_U64), OAR_MIN,
                          OAR_OPTS(oar_call_opts, .label = "replica check"),
                          &q->work);
}

static oar_status find_difference(const oari_ddp *d)
{
    size_t n = (size_t)d->slots, ranks = (size_t)oar_group_size(d->group);
    uint64_t *mine = oari_alloc(n * (ranks + 1) + 1, sizeof *mine);
    uint64_t *all; /* the hashes of rank 0, of rank 1, ... */
    oar_status status;
    size_t at = n;

    if (mine == NULL)
        return OAR_E_NOMEM;
    all = mine + n;
    for (int i = 0; i < d->slots; i++)
        mine[i] = hash_of(d->slot[i].param, 0);
    status = oar_all_gather(d->group, oar_span_of(mine, n, OAR_U64),
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

oar_status oari_replica_check_end(const oari_ddp *d, oari_replica_check *q)
{
    OARI_TRY(oar_work_wait(q->work));
    if (q->word[0] == ~q->word[1])
        return OAR_OK;
    return find_difference(d);
}
