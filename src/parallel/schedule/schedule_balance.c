/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_balance: deals layers to stages.
 *
 * For the first i layers on s stages, the best way is kept as the costs of the
 * stages, dearest first. Adding the same stage to two ways does not change
 * which of them is better, so the best way for s + 1 stages ends with one stage
 * more than a best way for s.
 */
#include <math.h>

#include "parallel/schedule/schedule.h"
#include "base/status.h"

enum { MOST_LAYERS = 4096 };

typedef struct deal {
    int layers, stages;
    double *sum;     /* of the first i costs */
    double *way[2];  /* the costs of each best way, for s - 1 and s stages */
    double *attempt; /* the same of one way */
    int *cut;        /* where the last stage of a best way begins */
} deal;

/* Writes `from` and one cost more, dearest first. */
static void insert_cost(const double *from, int count, double cost, double *to)
{
    int i = 0;

    for (; i < count && from[i] >= cost; i++)
        to[i] = from[i];
    to[i] = cost;
    for (; i < count; i++)
        to[i + 1] = from[i];
}

static int is_cheaper(const double *a, const double *b, int count)
{
    for (int i = 0; i < count; i++)
        if (a[i] != b[i])
            return a[i] < b[i];
    return 0;
}

/* Finds the best way to deal the first `layers` to `stages` stages. Later cuts
 * come first; once the last stage alone costs more than the dearest of the best
 * way, earlier ones only cost more. */
static void find_way(deal *d, int layers, int stages)
{
    const double *before = d->way[(stages - 1) % 2];
    double *best = &d->way[stages % 2][(int64_t)layers * d->stages];
    int *cut = &d->cut[(int64_t)layers * (d->stages + 1) + stages];

    *cut = -1;
    for (int from = layers - 1; from >= stages - 1; from--) {
        double last = d->sum[layers] - d->sum[from];

        if (*cut >= 0 && last > best[0])
            break;
        insert_cost(&before[(int64_t)from * d->stages], stages - 1, last,
                    d->attempt);
        if (*cut >= 0 && !is_cheaper(d->attempt, best, stages))
            continue;
        memcpy(best, d->attempt, (size_t)stages * sizeof *best);
        *cut = from;
    }
}

static void find_counts(deal *d, int *count)
{
    int left = d->layers;

    for (int s = 1; s <= d->stages; s++)
        for (int i = s; i <= d->layers; i++)
            if (s > 1) {
                find_way(d, i, s);
            } else {
                d->way[1][(int64_t)i * d->stages] = d->sum[i];
                d->cut[(int64_t)i * (d->stages + 1) + 1] = 0;
            }
    for (int s = d->stages; s >= 1; s--) {
        int from = d->cut[(int64_t)left * (d->stages + 1) + s];

        count[s - 1] = left - from;
        left = from;
    }
}

static oar_status alloc_deal(deal *d)
{
    size_t rows = (size_t)d->layers + 1, stages = (size_t)d->stages;

    d->sum = oari_alloc(rows, sizeof *d->sum);
    d->way[0] = oari_alloc(rows * stages, sizeof *d->way[0]);
    d->way[1] = oari_alloc(rows * stages, sizeof *d->way[1]);
    d->attempt = oari_alloc(stages, sizeof *d->attempt);
    d->cut = oari_alloc(rows * (stages + 1), sizeof *d->cut);
    return d->sum != NULL && d->way[0] != NULL && d->way[1] != NULL &&
                   d->attempt != NULL && d->cut != NULL
               ? OAR_OK
               : OAR_E_NOMEM;
}

static void free_deal(deal *d)
{
    oari_free(d->sum);
    oari_free(d->way[0]);
    oari_free(d->way[1]);
    oari_free(d->attempt);
    oari_free(d->cut);
}

oar_status oar_schedule_balance(int layers, const double *cost, int stages,
                                int *count)
{
    deal d = { .layers = layers, .stages = stages };
    oar_status status;

    if (cost == NULL || count == NULL)
        return oari_fail(OAR_E_ARG, "no costs of layers, or nowhere to write "
                                    "how they are dealt");
    if (stages < 1 || layers < stages || layers > MOST_LAYERS)
        return oari_fail(OAR_E_ARG,
                         "%d layers on %d stages: a stage has at least one, "
                         "and there are at most %d",
                         layers, stages, MOST_LAYERS);
    for (int i = 0; i < layers; i++)
        if (!isfinite(cost[i]) || cost[i] < 0)
            return oari_fail(OAR_E_ARG, "the cost of layer %d is %g", i,
                             cost[i]);
    status = alloc_deal(&d);
    if (status == OAR_OK) {
        for (int i = 0; i < layers; i++)
            d.sum[i + 1] = d.sum[i] + cost[i];
        find_counts(&d, count);
    }
    free_deal(&d);
    return status;
}
