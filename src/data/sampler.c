/* SPDX-License-Identifier: Apache-2.0 */
/* sampler: the samples of a shuffled data set, given to the ranks in turn.
 *
 * The order is that of ferrotorch's DistributedSampler, number for number: a
 * Fisher-Yates shuffle from the end, by an xorshift64 whose seed is mixed with
 * the epoch, with unbiased draws (the high half of a 128-bit product; a low
 * half below 2^64 mod bound is drawn again). */
#include "data/sampler.h"

#include "base/alloc.h"
#include "base/status.h"

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Returns one of 0 .. bound-1, each as likely as the other. */
static uint64_t draw_below(uint64_t *state, uint64_t bound)
{
    unsigned __int128 product = (unsigned __int128)draw(state) * bound;
    uint64_t unfair; /* 2^64 mod bound, worked out only when it may matter */

    if ((uint64_t)product < bound) {
        unfair = (0 - bound) % bound;
        while ((uint64_t)product < unfair)
            product = (unsigned __int128)draw(state) * bound;
    }
    return (uint64_t)(product >> 64);
}

void oari_sampler_order(int64_t *list, int64_t samples, uint64_t epoch,
                        const oar_sampler_opts *opts)
{
    const uint64_t spread = 0x9e3779b97f4a7c15u;
    uint64_t state = opts->seed ^ epoch * spread;

    for (int64_t i = 0; i < samples; i++)
        list[i] = i;
    if (state == 0)
        state = 0xdeadbeefcafeu; /* 0 would stay 0 */
    for (int64_t i = opts->no_shuffle ? 0 : samples - 1; i > 0; i--) {
        int64_t k = (int64_t)draw_below(&state, (uint64_t)i + 1);
        int64_t kept = list[i];

        list[i] = list[k];
        list[k] = kept;
    }
}

oar_status oari_sampler_check(int64_t samples, int rank, int ranks)
{
    if (ranks < 1)
        return oari_fail(OAR_E_WORLD, "samples for %d ranks", ranks);
    if (rank < 0 || rank >= ranks)
        return oari_fail(OAR_E_RANK, "samples for rank %d of %d", rank, ranks);
    if (samples < 0 || samples > INT64_MAX / 2 - ranks)
        return oari_fail(OAR_E_ARG, "an order of %lld samples",
                         (long long)samples);
    return OAR_OK;
}

oar_status oar_sampler_indices(int64_t samples, int rank, int ranks,
                               uint64_t epoch, const oar_sampler_opts *opts,
                               int64_t **index, int64_t *count)
{
    oar_sampler_opts o;
    int64_t *order, *made, part;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(oari_sampler_check(samples, rank, ranks));
    if (index == NULL || count == NULL)
        return oari_fail(OAR_E_ARG, "sampler_indices: nowhere to give them");
    order = oari_alloc((size_t)samples, sizeof *order);
    if (order == NULL)
        return OAR_E_NOMEM;
    oari_sampler_order(order, samples, epoch, &o);
    part = oari_sampler_count(samples, ranks);
    made = oari_alloc((size_t)part, sizeof *made);
    for (int64_t k = 0; made != NULL && k < part; k++)
        made[k] = order[oari_sampler_place(samples, 0, rank, ranks, k)];
    oari_free(order);
    if (made == NULL)
        return OAR_E_NOMEM;
    *index = made;
    *count = part;
    return OAR_OK;
}
