/* SPDX-License-Identifier: Apache-2.0 */
/* tiling: sweeps over boxes in the order in which they begin and end. */
#include "parallel/checkpoint/tiling.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"

/* Where a box begins or ends along a dim. */
typedef struct event {
    int64_t at;
    int64_t box;
    int64_t covers; /* elements behind this dim; below 0: its end */
} event;

static int compare_events(const void *left, const void *right)
{
    const event *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return a->box < b->box ? -1 : a->box > b->box;
}

static int64_t end_of(const oari_box *box, int dim)
{
    return box->offset[dim] + box->extent[dim];
}

/* The dim where a plane across it meets the fewest boxes on average. */
static int choose_dim(const oari_box *whole, int64_t count, const oari_box *box)
{
    double fewest = 0;
    int best = 0;

    for (int d = 0; d < whole->ndim; d++) {
        double extents = 0;
        for (int64_t i = 0; i < count; i++)
            extents += (double)box[i].extent[d];
        extents /= (double)whole->extent[d];
        if (d == 0 || extents < fewest) {
            best = d;
            fewest = extents;
        }
    }
    return best;
}

/* Compares each box with those that began before it and have not ended. */
static void find_overlap(int dim, int64_t count, const oari_box *box,
                         event *order, int64_t *open, oari_ckpt_tiling *found)
{
    int64_t opened = 0;

    for (int64_t i = 0; i < count; i++)
        order[i] =
            (event){ .at = box[i].ndim > 0 ? box[i].offset[dim] : 0, .box = i };
    qsort(order, (size_t)count, sizeof *order, compare_events);
    for (int64_t i = 0; i < count; i++) {
        int64_t now = order[i].box, kept = 0;
        if (oari_box_count(&box[now]) == 0)
            continue;
        for (int64_t j = 0; j < opened; j++) {
            int64_t other = open[j];
            if (box[now].ndim > 0 && end_of(&box[other], dim) <= order[i].at)
                continue;
            open[kept++] = other;
            if (!oari_box_meet(&box[now], &box[other], &found->where))
                continue;
            found->kind = OARI_CKPT_OVERLAP;
            found->box[0] = now < other ? now : other;
            found->box[1] = now < other ? other : now;
            return;
        }
        open[kept++] = now;
        opened = kept;
    }
}

/* Goes along dim until the boxes that are open do not fill what lies behind
 * it, and gives the range up to where the next box begins or ends. */
static void find_gap_in(const oari_box *whole, int dim, int64_t opened,
                        const int64_t *open, const oari_box *box, event *order,
                        oari_box *gap)
{
    int64_t behind = 1, covered = 0, events = 0, at = whole->offset[dim], i = 0;

    for (int d = dim + 1; d < whole->ndim; d++)
        behind *= whole->extent[d];
    for (int64_t j = 0; j < opened; j++) {
        const oari_box *b = &box[open[j]];
        int64_t covers = 1;
        for (int d = dim + 1; d < whole->ndim; d++)
            covers *= b->extent[d];
        order[events++] = (event){ b->offset[dim], open[j], covers };
        order[events++] = (event){ end_of(b, dim), open[j], -covers };
    }
    qsort(order, (size_t)events, sizeof *order, compare_events);
    for (;;) {
        for (; i < events && order[i].at == at; i++)
            covered += order[i].covers;
        if (covered < behind || i == events)
            break;
        at = order[i].at;
    }
    gap->offset[dim] = at;
    gap->extent[dim] = (i < events ? order[i].at : end_of(whole, dim)) - at;
}

/* The gap is found dim by dim: within the range of one dim all boxes that are
 * open there stay open. */
static void find_gap(const oari_box *whole, int64_t count, const oari_box *box,
                     event *order, int64_t *open, oari_ckpt_tiling *found)
{
    int64_t opened = 0, before = -1, after = -1;
    oari_box *gap = &found->where;

    *gap = (oari_box){ .ndim = whole->ndim };
    for (int64_t i = 0; i < count; i++)
        if (oari_box_count(&box[i]) > 0)
            open[opened++] = i;
    for (int d = 0; d < whole->ndim; d++) {
        int64_t kept = 0;
        find_gap_in(whole, d, opened, open, box, order, gap);
        for (int64_t j = 0; j < opened; j++)
            if (box[open[j]].offset[d] <= gap->offset[d] &&
                end_of(&box[open[j]], d) > gap->offset[d])
                open[kept++] = open[j];
        opened = kept;
    }
    for (int64_t i = 0; i < count; i++) {
        if (oari_box_count(&box[i]) == 0)
            continue;
        if (oari_box_compare(&box[i], gap) < 0) {
            if (before < 0 || oari_box_compare(&box[i], &box[before]) > 0)
                before = i;
        } else if (after < 0 || oari_box_compare(&box[i], &box[after]) < 0) {
            after = i;
        }
    }
    found->kind = OARI_CKPT_GAP;
    found->box[0] = before;
    found->box[1] = after;
}

oar_status oari_ckpt_tile(const oari_box *whole, int64_t count,
                          const oari_box *box, oari_ckpt_tiling *tiling)
{
    oari_ckpt_tiling found = { .box = { -1, -1 } };
    int64_t most = oari_box_count(whole), have = 0;
    event *order;
    int64_t *open;

    if (most == 0 || (count == 1 && oari_box_count(box) == most)) {
        *tiling = found;
        return OAR_OK;
    }
    order = oari_alloc((size_t)count + 1, 2 * sizeof *order + sizeof *open);
    if (order == NULL)
        return OAR_E_NOMEM;
    open = (int64_t *)(order + 2 * (count + 1));
    find_overlap(choose_dim(whole, count, box), count, box, order, open,
                 &found);
    for (int64_t i = 0; found.kind == OARI_CKPT_TILED && i < count; i++)
        have += oari_box_count(&box[i]);
    if (found.kind == OARI_CKPT_TILED && have < most)
        find_gap(whole, count, box, order, open, &found);
    oari_free(order);
    *tiling = found;
    return OAR_OK;
}
