/* SPDX-License-Identifier: Apache-2.0 */
/* move_step: which single steps there are, and what each costs.
 *
 * A step costs rounds of latency, the bytes that the largest part receives, and
 * copies where what is sent does not lie in one piece. All ranks must find
 * the same plan: costs depend on sizes and the mesh's figures only. */
#include "parallel/dtensor/move_plan.h"

const double oari_move_copied_in_us = 8000, oari_move_least_us = 0.05;

static int ceil_log2(int64_t n)
{
    int log = 0;

    while (((int64_t)1 << log) < n)
        log++;
    return log;
}

double oari_move_bytes(const oari_mover *mover, const oari_cuts *layout)
{
    return (double)oari_cuts_largest(mover->grid, mover->shape, layout) *
           (double)mover->element;
}

int oari_move_in_one_piece(const oari_mover *mover, const oari_cut *cut)
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

void oari_move_price_gather(const oari_grid *grid, int mesh_dim, double *us,
                            double *byte)
{
    int n = grid->size[mesh_dim];

    *us = ceil_log2(n) * grid->latency_us[mesh_dim];
    *byte = (double)(n - 1) / n / (grid->gb_per_s[mesh_dim] * 1000);
}

void oari_move_price_exchange(const oari_grid *grid, unsigned along, double *us,
                              double *byte)
{
    double latency = 0, gb = 0, ranks = 1, others;

    for (int m = 0; m < grid->dims; m++) {
        if (!(along >> m & 1) || grid->size[m] == 1)
            continue;
        latency = grid->latency_us[m] > latency ? grid->latency_us[m] : latency;
        gb = gb == 0 || grid->gb_per_s[m] < gb ? grid->gb_per_s[m] : gb;
        ranks *= grid->size[m];
    }
    *us = oari_move_least_us;
    *byte = 1 / oari_move_copied_in_us;
    if (gb == 0) /* each rank cuts what it has */
        return;
    others = (ranks - 1) / ranks;
    *us += (ceil_log2((int64_t)ranks) + (ranks - 1) / 8) * latency;
    *byte = others / (gb * 1000) + 2 * others / oari_move_copied_in_us;
}

/* What the step along a mesh dim costs; before and after: bytes. */
static double cost_along(const oari_mover *mover, int mesh_dim,
                         const oari_cut *from, const oari_move_step *step,
                         double before, double after)
{
    const oari_cut *to = &step->after.on[mesh_dim];
    double copy = 1 / oari_move_copied_in_us, us, byte;

    oari_move_price_gather(mover->grid, mesh_dim, &us, &byte);
    switch (step->kind) {
    case OARI_MOVE_CUT:
    case OARI_MOVE_FILL: return oari_move_least_us + after * copy;
    case OARI_MOVE_GATHER:
        if (!oari_move_in_one_piece(mover, from))
            byte += copy;
        return oari_move_least_us + us + after * byte;
    case OARI_MOVE_REDUCE:
        return oari_move_least_us + 2 * us + after * 2 * byte;
    case OARI_MOVE_REDUCE_SCATTER:
        if (!oari_move_in_one_piece(mover, to))
            byte += copy;
        return oari_move_least_us + us + before * byte;
    case OARI_MOVE_EXCHANGE: break;
    }
    oari_move_price_exchange(mover->grid, 1u << mesh_dim, &us, &byte);
    return us + after * byte;
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
        cost_along(mover, mesh_dim, old, step, oari_move_bytes(mover, from),
                   oari_move_bytes(mover, &step->after));
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
    double us, byte;
    int dims = 0;

    if (!same_partials(from, to, grid->dims))
        return 0;
    step->mesh_dim = -1;
    for (int m = 0; m < grid->dims; m++)
        if ((moved >> m & 1) && grid->size[m] > 1)
            step->mesh_dim = dims++ == 0 ? m : -1;
    step->kind = dims > 0 ? OARI_MOVE_EXCHANGE : OARI_MOVE_CUT;
    step->after = *to;
    oari_move_price_exchange(grid, moved, &us, &byte);
    step->us = us + oari_move_bytes(mover, to) * byte;
    return 1;
}
