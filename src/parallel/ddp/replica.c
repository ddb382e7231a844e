/* SPDX-License-Identifier: Apache-2.0 */
/* replica: every now and then all ranks compare a hash of their parameters:
 * the least of it, and of its complement, tell whether all are the same. If
 * not, they compare parameter by parameter, to say who and what. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"

/* Parameters are contiguous: optimizers want that, too. */
static uint64_t hash_of(const oar_tensor *param, uint64_t seed)
{
    size_t bytes = (size_t)oar_tensor_count(param) *
                   oar_dtype_size(oar_tensor_dtype(param));
    const void *data = oar_tensor_const_data(param);

    return data != NULL ? XXH3_64bits_withSeed(data, bytes, seed) : seed;
}

oar_status oari_replica_ask(const oari_ddp *d, oari_replica_question *q)
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

/* all: the hashes of rank 0, of rank 1, ... */
static oar_status name_difference(const oari_ddp *d, const uint64_t *all)
{
    for (int r = 1; r < oar_group_size(d->group); r++)
        for (int i = 0; i < d->slots; i++) {
            if (all[r * d->slots + i] == all[i])
                continue;
            return oari_fail(OAR_E_MISMATCH,
                             "the replicas have come apart: parameter %s of "
                             "rank %d is not what it is on rank 0",
                             oari_ddp_name(d, i), r);
        }
    return oari_fail(OAR_E_MISMATCH, "the replicas have come apart");
}

static oar_status find_difference(const oari_ddp *d)
{
    size_t n = (size_t)d->slots, ranks = (size_t)oar_group_size(d->group);
    uint64_t *mine = oari_alloc(n * (ranks + 1) + 1, sizeof *mine);
    oar_status status;

    if (mine == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < d->slots; i++)
        mine[i] = hash_of(d->slot[i].param, 0);
    status =
        oar_all_gather(d->group, oar_span_of(mine, n, OAR_U64),
                       oar_span_of(mine + n, n * ranks, OAR_U64), NULL, NULL);
    if (status == OAR_OK)
        status = name_difference(d, mine + n);
    oari_free(mine);
    return status;
}

oar_status oari_replica_answer(const oari_ddp *d, oari_replica_question *q)
{
    OARI_TRY(oar_work_wait(q->work));
    if (q->word[0] == ~q->word[1])
        return OAR_OK;
    return find_difference(d);
}
