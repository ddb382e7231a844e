/* SPDX-License-Identifier: Apache-2.0 */
/* cut_ranks: local operations that meet other ranks. */
#include "parallel/dtensor/rules/cut_ranks.h"

#include <oarsong/custom_op.h>

#include "base/status.h"
#include "parallel/reducer/stream_call.h"

/* Whether a mesh dim cuts one of the letters. */
static int cuts_letter(const oari_decision *d, int mesh_dim, unsigned letters)
{
    const oari_cut *cut = &d->cuts.on[mesh_dim];

    return cut->kind == OAR_SHARD && (letters >> cut->dim & 1);
}

int oari_letters_are_cut(const oari_decision *decision, unsigned letters)
{
    for (int m = 0; m < OAR_MESH_DIMS; m++)
        if (cuts_letter(decision, m, letters))
            return 1;
    return 0;
}

int oari_cut_ranks_is_first(const oari_cut_ranks *ranks)
{
    const oari_grid *grid = &ranks->mesh->grid;

    for (int m = 0; m < grid->dims; m++)
        if (cuts_letter(ranks->decision, m, ranks->letters) &&
            oari_grid_coordinate(grid, ranks->mesh->rank, m) != 0)
            return 0;
    return 1;
}

oar_status oari_cut_ranks_reduce(const oari_cut_ranks *ranks, oar_reduce_op op,
                                 int64_t count, double *number)
{
    const oari_grid *grid = &ranks->mesh->grid;
    oar_call_opts opts = oar_call_opts_init();

    opts.label = ranks->decision->label;
    opts.key = ranks->decision->key + 2;
    opts.canonical = 1;
    for (int m = 0; m < grid->dims; m++)
        if (cuts_letter(ranks->decision, m, ranks->letters) &&
            grid->size[m] > 1)
            OARI_TRY(oar_all_reduce(oar_mesh_group(ranks->mesh, m),
                                    oar_span_of(number, (size_t)count, OAR_F64),
                                    op, &opts, NULL));
    return OAR_OK;
}

int oari_cut_ranks_count(const oari_cut_ranks *ranks)
{
    const oari_grid *grid = &ranks->mesh->grid;
    int count = 1;

    for (int m = 0; m < grid->dims; m++)
        if (cuts_letter(ranks->decision, m, ranks->letters))
            count *= grid->size[m];
    return count;
}

/* `all` is [the first mesh dim, .., the last one, numbers], of those dims that
 * cut. What has been gathered along the last ones is a row of it, which is then
 * gathered along the dim before, in place. */
oar_status oari_cut_ranks_gather(const oari_cut_ranks *ranks, oar_span mine,
                                 oar_span all)
{
    const oari_grid *grid = &ranks->mesh->grid;
    size_t rows = all.count, first = 0;
    oari_stream_call call = { .kind = OARI_CALL_ALL_GATHER,
                              .in = mine,
                              .opts = oar_call_opts_init() };

    call.opts.label = ranks->decision->label;
    call.opts.key = ranks->decision->key + 2;
    for (int m = 0; m < grid->dims; m++)
        if (cuts_letter(ranks->decision, m, ranks->letters)) {
            rows /= (size_t)grid->size[m];
            first +=
                rows * (size_t)oari_grid_coordinate(grid, ranks->mesh->rank, m);
        }
    for (int m = grid->dims - 1; m >= 0; m--) {
        if (!cuts_letter(ranks->decision, m, ranks->letters))
            continue;
        first -= call.in.count *
                 (size_t)oari_grid_coordinate(grid, ranks->mesh->rank, m);
        call.group = oar_mesh_group(ranks->mesh, m);
        call.out = all;
        call.out.data = (double *)all.data + first;
        call.out.count = call.in.count * (size_t)grid->size[m];
        OARI_TRY(oari_stream_call_run(&call));
        call.in = call.out;
    }
    return OAR_OK;
}

/* ---- nothing to compute -------------------------------------------------- */

static oar_status zeros_back(void *arg, int i, const oar_tensor *grad,
                             oar_tensor *to, int add)
{
    return add ? OAR_OK : oar_tensor_fill(to, 0);
}

static const oar_custom_op zeros_op = { .size = sizeof zeros_op,
                                        .name = "nothing of a DTensor",
                                        .backward = zeros_back };

oar_tensor *oari_rule_zeros(const oari_rule_call *call,
                            const oari_decision *decision,
                            oar_tensor *const *in)
{
    const oar_spec *spec = decision->out[0];
    oar_tensor *floats[OARI_RULE_INPUTS];
    oar_tensor *out = oar_empty_on(
        call->tape, oar_tensor_device(in[0]), oar_tensor_dtype(in[0]),
        oar_spec_local_shape(spec, spec->mesh->rank));
    int n = 0;

    /* oar_zeros would be lazy where that is switched on. */
    if (out == NULL || oar_tensor_fill(out, 0) != OAR_OK)
        return NULL;
    for (int i = 0; i < call->inputs; i++)
        if (oari_is_float(oar_tensor_dtype(in[i])))
            floats[n++] = in[i];
    return oar_record_op(call->tape, &zeros_op, NULL, n, floats, out);
}

oar_tensor *oari_rule_bias_once(const oari_rule_call *call,
                                const oari_cut_ranks *ranks, oar_tensor *bias)
{
    if (bias == NULL || !oari_letters_are_cut(ranks->decision, ranks->letters))
        return bias != NULL && call->tape == NULL ? oar_tensor_retain(bias)
                                                  : bias;
    return oar_scale(call->tape, bias, oari_cut_ranks_is_first(ranks));
}

oar_tensor *oari_rule_scaled(oar_tape *tape, oar_tensor *a, double factor)
{
    oar_tensor *scaled = oar_scale(tape, a, factor);

    if (tape == NULL)
        oar_tensor_release(a);
    return scaled;
}
