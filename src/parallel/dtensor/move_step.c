/* SPDX-License-Identifier: Apache-2.0 */
/* move_step: which single steps there are, and what each costs.
 *
 * A step costs rounds of latency, the bytes that the largest part receives, and
 * copies where what is sent does not lie in one piece. All ranks must find
 * the same plan: costs depend on sizes and the mesh's figures only. */
#include "parallel/dtensor/move_plan.h"

/* Bytes that memory copies in a microsecond, and what a step costs a rank even
 * if it sends nothing. */
static const double copied_in_us = 8000, least_us = 0.05;

static int ceil_log2(int64_t n)
{
    int log = 0;

    while (((int64_t)1 << log) < n)
        log++;
    return log;
}

static double bytes_of(const oari_mover *mover, const oari_cuts *layout)
{
    return (double)oari_cuts_largest(mover->grid, mover->shape, layout) *
           (double)mover->element;
}

/* Whether the parts along a cut lie one behind the other in what they are
 * parts of. */
static int in_one_piece(const oari_mover *mover, const oari_cut *cut)
{
    for (int d = 0; cut->kind == OAR_SHARD && d < cut->dim; d++)
        if (mover->shape.dim[d] > 1)
            return 0;
    return 1;
}

/* ---- along one mesh dim -------------------------------------------------- */

/* Whether a cut can stand on a mesh dim together with those of the others. */
static int fits_beside(const oari_mover *mover, const oari_cuts *from,
                       int mesh_dim, const oari_cut *cut)
{
    oari_cuts others = *from;

    others.on[mesh_dim] = (oari_cut){ .kind = OAR_REPLICATE };
    if (cut->kind == OAR_SHARD &&
        oari_cuts_has(&others, mover->grid->dims, OAR_FLAT))
        return 0;
    for (int m = 0; cut->kind == OAR_PARTIAL && m < mover->grid->dims; m++)
        if (others.on[m].kind == OAR_PARTIAL && others.on[m].op != cut->op)
            return 0;
    return cut->sizes == NULL ||
           oari_cuts_takes(mover->grid, mover->shape, &others, cut);
}

/* Finds what leads from one cut to another. Returns 0 if no step does. */
static int step_kind(const oari_cut *from, const oari_cut *to,
                     oari_move_kind *kind)
{
    if (to->kind == OAR_PARTIAL) {
        *kind = OARI_MOVE_FILL;
        return from->kind == OAR_REPLICATE ||
               (oari_cut_splits(from) && to->op == OAR_REDUCE_OP_SUM);
    }
    if (from->kind == OAR_PARTIAL)
        *kind = to->kind == OAR_REPLICATE ? OARI_MOVE_REDUCE
                                          : OARI_MOVE_REDUCE_SCATTER;
    else if (from->kind == OAR_REPLICATE)
        *kind = OARI_MOVE_CUT;
    else
        *kind =
            to->kind == OAR_REPLICATE ? OARI_MOVE_GATHER : OARI_MOVE_EXCHANGE;
    return !oari_cut_same(from, to);
}

static double exchange_us(const oari_mover *mover, int64_t ranks,
                          double latency, double gb, double bytes)
{
    double received = bytes * (double)(ranks - 1) / (double)ranks;

    return (ceil_log2(ranks) + (double)(ranks - 1) / 8) * latency +
           received / (gb * 1000) + 2 * received / copied_in_us;
}

/* What the step along a mesh dim costs; before and after: bytes. */
static double cost_along(const oari_mover *mover, int mesh_dim,
                         const oari_cut *from, const oari_move_step *step,
                         double before, double after)
{
    double latency = mover->grid->latency_us[mesh_dim];
    double gb = mover->grid->gb_per_s[mesh_dim];
    int n = mover->grid->size[mesh_dim], rounds = ceil_log2(n);
    const oari_cut *to = &step->after.on[mesh_dim];
    double others = (double)(n - 1) / n / (gb * 1000); /* us for each byte */

    switch (step->kind) {
    case OARI_MOVE_CUT:
    case OARI_MOVE_FILL: return after / copied_in_us;
    case OARI_MOVE_GATHER:
        return rounds * latency + after * others +
               (in_one_piece(mover, from) ? 0 : after / copied_in_us);
    case OARI_MOVE_REDUCE:
        return 2 * rounds * latency + 2 * after * others + after / copied_in_us;
    case OARI_MOVE_REDUCE_SCATTER:
        return rounds * latency + before * others +
               (in_one_piece(mover, to) ? 0 : before / copied_in_us);
    case OARI_MOVE_EXCHANGE: break;
    }
    return exchange_us(mover, n, latency, gb, after);
}

int oari_move_along(const oari_mover *mover, const oari_cuts *from,
                    int mesh_dim, const oari_cut *cut, oari_move_step *step)
{
    const oari_cut *old = &from->on[mesh_dim];
    int dims = mover->grid->dims;

    if (!step_kind(old, cut, &step->kind) ||
        !fits_beside(mover, from, mesh_dim, cut) ||
        (oari_cut_splits(old) && !oari_cuts_is_innermost(from, dims, mesh_dim)))
        return 0;
    step->mesh_dim = mesh_dim;
    step->after = *from;
    oari_cuts_put(&step->after, dims, mesh_dim, cut);
    if (mover->grid->size[mesh_dim] == 1)
        step->kind = OARI_MOVE_CUT;
    step->us =
        least_us + cost_along(mover, mesh_dim, old, step, bytes_of(mover, from),
                              bytes_of(mover, &step->after));
    return 1;
}

/* ---- over several mesh dims ---------------------------------------------- */

static int same_partials(const oari_cuts *a, const oari_cuts *b, int dims)
{
    for (int m = 0; m < dims; m++)
        if ((a->on[m].kind == OAR_PARTIAL || b->on[m].kind == OAR_PARTIAL) &&
            !oari_cut_same(&a->on[m], &b->on[m]))
            return 0;
    return 1;
}

int oari_move_exchange(const oari_mover *mover, const oari_cuts *from,
                       const oari_cuts *to, oari_move_step *step)
{
    const oari_grid *grid = mover->grid;
    unsigned moved = oari_cuts_moved_dims(from, to, grid->dims);
    double latency = 0, gb = 0, after = bytes_of(mover, to);
    int64_t ranks = 1;
    int dims = 0;

    if (!same_partials(from, to, grid->dims))
        return 0;
    step->mesh_dim = -1;
    for (int m = 0; m < grid->dims; m++) {
        if (!(moved >> m & 1) || grid->size[m] == 1)
            continue;
        ranks *= grid->size[m];
        latency = grid->latency_us[m] > latency ? grid->latency_us[m] : latency;
        gb = dims == 0 || grid->gb_per_s[m] < gb ? grid->gb_per_s[m] : gb;
        step->mesh_dim = dims++ == 0 ? m : -1;
    }
    step->kind = dims > 0 ? OARI_MOVE_EXCHANGE : OARI_MOVE_CUT;
    step->after = *to;
    step->us =
        least_us + (dims > 0 ? exchange_us(mover, ranks, latency, gb, after)
                             : after / copied_in_us);
    return 1;
}
