/* SPDX-License-Identifier: Apache-2.0 */
/* explain: what a move would send, in bytes and time, before it is made. */
#include "base/status.h"
#include "parallel/dtensor/move_plan.h"

static const oar_coll coll_of[] = {
    [OARI_MOVE_CUT] = OAR_COLL_BARRIER, /* none: nothing is sent */
    [OARI_MOVE_FILL] = OAR_COLL_BARRIER,
    [OARI_MOVE_GATHER] = OAR_COLL_ALL_GATHER,
    [OARI_MOVE_REDUCE] = OAR_COLL_ALL_REDUCE,
    [OARI_MOVE_REDUCE_SCATTER] = OAR_COLL_REDUCE_SCATTER,
    [OARI_MOVE_EXCHANGE] = OAR_COLL_ALL_TO_ALL,
};

int64_t oari_move_received(const oari_mover *mover, const oari_cuts *before,
                           const oari_move_step *step, int rank)
{
    oari_part had, has;
    int n = step->mesh_dim >= 0 ? mover->grid->size[step->mesh_dim] : 1;

    oari_cuts_part(mover->grid, mover->shape, before, rank, &had);
    oari_cuts_part(mover->grid, mover->shape, &step->after, rank, &has);
    switch (step->kind) {
    case OARI_MOVE_CUT:
    case OARI_MOVE_FILL: return 0;
    case OARI_MOVE_REDUCE: /* as a ring does: twice all but the own share */
        return 2 * (has.count - has.count / n);
    case OARI_MOVE_REDUCE_SCATTER: return has.count * (n - 1);
    case OARI_MOVE_GATHER:
    case OARI_MOVE_EXCHANGE: break;
    }
    return has.count - oari_part_common(&had, &has);
}

/* Adds what a rank receives in each step. */
static void count_bytes(const oari_mover *mover, const oari_move_path *path,
                        int rank, int counts, oar_move_plan *plan)
{
    const oari_cuts *before = &path->from->layout;
    uint64_t sum = 0;

    for (int i = 0; i < path->steps; i++) {
        oar_move *move = &plan->move[i];
        uint64_t bytes =
            (uint64_t)oari_move_received(mover, before, &path->step[i], rank) *
            mover->element;

        if (counts)
            move->bytes = bytes;
        if (bytes > move->most_bytes)
            move->most_bytes = bytes;
        sum += bytes;
        before = &path->step[i].after;
    }
    if (counts)
        plan->bytes = sum;
    if (sum > plan->most_bytes)
        plan->most_bytes = sum;
}

oar_status oari_move_check(const oar_spec *from, const oar_spec *to,
                           oar_dtype dtype, const char *call)
{
    if (from == NULL || to == NULL)
        return oari_fail(OAR_E_ARG, "%s without a spec", call);
    if (from->mesh != to->mesh)
        return oari_fail(OAR_E_ARG,
                         "%s: the two specs are of two meshes: make both with "
                         "the same one",
                         call);
    if (!oari_same_shape(from->shape, to->shape))
        return oari_fail(OAR_E_ARG, "%s: from a tensor %s to one %s", call,
                         oari_box_shape_text(from->shape).text,
                         oari_box_shape_text(to->shape).text);
    for (int m = 0; m < from->mesh->grid.dims; m++) {
        const oari_cut *cut[2] = { &from->layout.on[m], &to->layout.on[m] };

        for (int i = 0; i < 2; i++)
            if (cut[i]->kind == OAR_PARTIAL &&
                oar_reduce_op_check((oar_reduce_op){ .kind = cut[i]->op },
                                    dtype) != OAR_OK)
                return oari_fail(OAR_E_DTYPE, "%s: no partial(%s) of %s", call,
                                 oar_reduce_op_name(cut[i]->op),
                                 oar_dtype_name(dtype));
    }
    return OAR_OK;
}

oar_status oar_explain(const oar_spec *from, const oar_spec *to,
                       oar_dtype dtype, oar_move_plan *plan)
{
    oar_move_plan p = { .size = sizeof p };
    const oari_move_path *path;
    oari_mover mover;

    OARI_TRY(oari_move_check(from, to, dtype, "explain"));
    mover =
        (oari_mover){ &from->mesh->grid, from->shape, oar_dtype_size(dtype) };
    path = oari_move_path_of(from, to, mover.element);
    if (path == NULL)
        return OAR_E_NOMEM;
    p.moves = path->steps;
    p.us = path->us;
    for (int i = 0; i < path->steps; i++) {
        const oari_move_step *step = &path->step[i];

        p.move[i].sends = step->kind > OARI_MOVE_FILL;
        p.move[i].kind = coll_of[step->kind];
        p.move[i].mesh_dim = step->mesh_dim;
        p.move[i].us = step->us;
        p.move[i].after = oari_spec_with(from, &step->after);
        if (p.move[i].after == NULL)
            return OAR_E_NOMEM;
    }
    for (int r = 0; r < mover.grid->ranks; r++)
        count_bytes(&mover, path, r, r == from->mesh->rank, &p);
    return oari_struct_give(plan, &p, sizeof p, "plan");
}

static size_t write_move(const oari_grid *grid, const oar_move *move,
                         char *text, size_t bytes, size_t at)
{
    if (!move->sends)
        at = oari_spec_text_add(text, bytes, at, "\n  nothing is sent, ");
    else
        at = oari_spec_text_add(
            text, bytes, at,
            "\n  %s %s%s: %llu bytes to this rank, %llu at most, ",
            oar_coll_name(move->kind),
            move->mesh_dim < 0 ? "between all ranks" : "along ",
            move->mesh_dim < 0 ? "" : grid->name[move->mesh_dim],
            (unsigned long long)move->bytes,
            (unsigned long long)move->most_bytes);
    at = oari_spec_text_add(text, bytes, at, "%.1f us: ", move->us);
    return oari_cuts_text(grid, &move->after->layout, text, bytes, at);
}

size_t oar_explain_text(const oar_spec *from, const oar_spec *to,
                        oar_dtype dtype, char *text, size_t bytes)
{
    oar_move_plan plan = oar_move_plan_init();
    size_t at;

    if (oar_explain(from, to, dtype, &plan) != OAR_OK)
        return 0;
    at = oar_spec_text(from, text, bytes);
    at = oari_spec_text_add(text, bytes, at, " to ");
    at = oari_cuts_text(&to->mesh->grid, &to->layout, text, bytes, at);
    at = oari_spec_text_add(
        text, bytes, at,
        ", %s: %d %s, %llu bytes to this rank, %llu at most, %.1f us",
        oar_dtype_name(dtype), plan.moves, plan.moves == 1 ? "step" : "steps",
        (unsigned long long)plan.bytes, (unsigned long long)plan.most_bytes,
        plan.us);
    for (int i = 0; i < plan.moves; i++)
        at = write_move(&to->mesh->grid, &plan.move[i], text, bytes, at);
    return at;
}
