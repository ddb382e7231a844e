/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor_make: DTensors by a rule. Each rank makes its own part of a lazy
 * tensor, so the numbers are those of the whole and nothing is sent. */
#include "base/status.h"
#include "parallel/dtensor/cuts.h"
#include "parallel/dtensor/spec.h"

static const oar_dtensor failed = { NULL, NULL };

static oar_status check_lazy(const oar_tensor *lazy, const oar_spec *spec)
{
    if (spec == NULL)
        return oari_fail(OAR_E_ARG, "a DTensor without a spec");
    if (lazy == NULL)
        return oari_fail(OAR_E_ARG, "dtensor_from_lazy without a tensor");
    if (!oari_same_shape(oar_tensor_shape(lazy), spec->shape))
        return oari_fail(OAR_E_SHAPE,
                         "dtensor_from_lazy: the tensor is %s, the spec %s",
                         oari_box_shape_text(oar_tensor_shape(lazy)).text,
                         oari_box_shape_text(spec->shape).text);
    if (!oar_tensor_is_lazy(lazy))
        return oari_fail(OAR_E_STATE,
                         "dtensor_from_lazy: the tensor %s is not lazy: use "
                         "dtensor_scatter",
                         oari_box_shape_text(spec->shape).text);
    return OAR_OK;
}

/* Whether this rank keeps the numbers of what is partial: as
 * oar_redistribute, the first of each row, or with min and max all. neutral:
 * what the others have. */
static int keeps_partial(const oar_spec *spec, double *neutral)
{
    const oari_grid *grid = &spec->mesh->grid;

    for (int m = 0; m < grid->dims; m++) {
        const oari_cut *cut = &spec->layout.on[m];

        if (cut->kind != OAR_PARTIAL || cut->op == OAR_REDUCE_OP_MIN ||
            cut->op == OAR_REDUCE_OP_MAX)
            continue;
        *neutral = cut->op == OAR_REDUCE_OP_PROD;
        if (oari_grid_coordinate(grid, spec->mesh->rank, m) != 0)
            return 0;
    }
    return 1;
}

/* Writes this rank's part of what the lazy tensor would be, run by run. */
static oar_status write_part(const oar_tensor *lazy, const oar_spec *spec,
                             oar_tensor *out)
{
    oari_box box[OARI_FLAT_BOXES], whole = oari_box_whole(spec->shape);
    oar_dtype dtype = oar_tensor_dtype(out);
    char *to = oar_tensor_data(out);
    oari_box_runs runs;
    oari_box_run run;
    oari_part part;
    int boxes;

    oari_cuts_part(&spec->mesh->grid, spec->shape, &spec->layout,
                   spec->mesh->rank, &part);
    boxes = oari_part_boxes(&part, box);
    for (int i = 0; i < boxes; i++) {
        oari_box_runs_start(&runs, &box[i], &whole, &box[i], 1);
        while (oari_box_runs_next(&runs, &run))
            OARI_TRY(oar_tensor_make_range(
                lazy, (int64_t)run.from, (int64_t)run.bytes, dtype,
                to + run.to * oar_dtype_size(dtype)));
        to += (size_t)oari_box_count(&box[i]) * oar_dtype_size(dtype);
    }
    return OAR_OK;
}

oar_dtensor oar_dtensor_from_lazy(oar_tape *tape, const oar_tensor *lazy,
                                  const oar_spec *spec)
{
    oar_dtensor a = { NULL, spec };
    double neutral = 0;
    oar_status status;

    if (check_lazy(lazy, spec) != OAR_OK)
        return failed;
    a.local = oar_empty(tape, oar_tensor_dtype(lazy),
                        oar_spec_local_shape(spec, spec->mesh->rank));
    if (a.local == NULL)
        return failed;
    status = keeps_partial(spec, &neutral) ? write_part(lazy, spec, a.local)
                                           : oar_tensor_fill(a.local, neutral);
    if (status == OAR_OK)
        return a;
    if (tape == NULL)
        oar_tensor_release(a.local);
    return failed;
}

/* ---- rules --------------------------------------------------------------- */

typedef enum distribution { CONSTANT, UNIFORM, NORMAL } distribution;

static oar_dtensor make(oar_tape *tape, oar_dtype dtype, const oar_spec *spec,
                        distribution how, uint64_t seed, double a, double b)
{
    oar_shape shape = oar_spec_shape(spec);
    int before = oar_lazy(1);
    oar_dtensor made = failed;
    oar_tensor *lazy = spec == NULL      ? NULL
                       : how == CONSTANT ? oar_full(NULL, dtype, shape, a)
                       : how == UNIFORM
                           ? oar_uniform(NULL, dtype, shape, seed, a, b)
                           : oar_normal(NULL, dtype, shape, seed, a, b);

    oar_lazy(before);
    if (spec == NULL)
        oari_fail(OAR_E_ARG, "a DTensor without a spec");
    if (lazy != NULL)
        made = oar_dtensor_from_lazy(tape, lazy, spec);
    oar_tensor_release(lazy);
    return made;
}

oar_dtensor oar_dtensor_full(oar_tape *tape, oar_dtype dtype,
                             const oar_spec *spec, double value)
{
    return make(tape, dtype, spec, CONSTANT, 0, value, 0);
}

oar_dtensor oar_dtensor_zeros(oar_tape *tape, oar_dtype dtype,
                              const oar_spec *spec)
{
    return make(tape, dtype, spec, CONSTANT, 0, 0, 0);
}

oar_dtensor oar_dtensor_ones(oar_tape *tape, oar_dtype dtype,
                             const oar_spec *spec)
{
    return make(tape, dtype, spec, CONSTANT, 0, 1, 0);
}

oar_dtensor oar_dtensor_uniform(oar_tape *tape, oar_dtype dtype,
                                const oar_spec *spec, uint64_t seed, double low,
                                double high)
{
    return make(tape, dtype, spec, UNIFORM, seed, low, high);
}

oar_dtensor oar_dtensor_normal(oar_tape *tape, oar_dtype dtype,
                               const oar_spec *spec, uint64_t seed, double mean,
                               double deviation)
{
    return make(tape, dtype, spec, NORMAL, seed, mean, deviation);
}
