/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor_scatter: DTensors of whole tensors. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/dtensor/move_run.h"
#include "parallel/reducer/agreement.h"

static const oar_dtensor failed = { NULL, NULL };

/* Sends each rank its part of root's tensor. */
static oar_status scatter_parts(const oar_tensor *whole, const oar_spec *spec,
                                int root, oar_tensor *out)
{
    const oari_grid *grid = &spec->mesh->grid;
    int has = spec->mesh->rank == root;
    oari_part all = { .box = oari_box_whole(spec->shape) }, part;
    oar_span in = oar_span_of(NULL, 0, oar_tensor_dtype(out)), to;
    oar_span root_has = in;
    size_t element = oar_dtype_size(in.dtype), sum = 0, *counts = NULL;
    char *data = NULL;
    oar_status status = oar_tensor_span(out, &to);
    oari_place from = { 0 };

    all.count = oari_box_count(&all.box);
    for (int r = 0; r < grid->ranks && has; r++) {
        oari_cuts_part(grid, spec->shape, &spec->layout, r, &part);
        sum += (size_t)part.count;
    }
    if (has) {
        counts = oari_alloc((size_t)grid->ranks, sizeof *counts);
        data = oari_alloc_aligned(64, sum * element + 1);
        if (counts == NULL || data == NULL)
            status = OAR_E_NOMEM;
        in.data = data;
        status =
            status == OAR_OK ? oar_tensor_const_span(whole, &root_has) : status;
        from = oari_place_of(whole, &root_has);
    }
    status = oari_agree_on_status(oar_mesh_group(spec->mesh, -1), status,
                                  "dtensor_scatter");
    for (int r = 0; r < grid->ranks && has && status == OAR_OK; r++) {
        oari_cuts_part(grid, spec->shape, &spec->layout, r, &part);
        counts[r] = (size_t)part.count;
        status = oari_copy_common(
            &all, &part, element, &from,
            &(oari_place){ .data = data + in.count * element });
        in.count += counts[r];
    }
    if (status == OAR_OK)
        status = oar_scatter_v(oar_mesh_group(spec->mesh, -1), in, counts, to,
                               root, NULL, NULL);
    oari_free(counts);
    oari_free(data);
    return status;
}

static oar_status check_whole(const oar_tensor *whole, oar_dtype dtype,
                              const oar_spec *spec)
{
    if (whole == NULL)
        return oari_fail(OAR_E_ARG, "dtensor_scatter: root has no tensor");
    if (oar_tensor_dtype(whole) != dtype)
        return oari_fail(OAR_E_DTYPE,
                         "dtensor_scatter: root's tensor is %s, "
                         "not %s",
                         oar_dtype_name(oar_tensor_dtype(whole)),
                         oar_dtype_name(dtype));
    if (!oari_same_shape(oar_tensor_shape(whole), spec->shape))
        return oari_fail(OAR_E_SHAPE,
                         "dtensor_scatter: root's tensor is %s, the spec %s",
                         oari_box_shape_text(oar_tensor_shape(whole)).text,
                         oari_box_shape_text(spec->shape).text);
    if (!oar_tensor_is_contiguous(whole) ||
        oar_tensor_device(whole).kind != OAR_CPU)
        return oari_fail(OAR_E_ARG,
                         "dtensor_scatter: root's tensor must be contiguous, "
                         "on the cpu");
    return OAR_OK;
}

/* Compares what is scattered, and checks what root has, on all ranks. */
static oar_status agree_on_scatter(const oar_tensor *whole, oar_dtype dtype,
                                   const oar_spec *spec, int root)
{
    oar_group *all = oar_mesh_group(spec->mesh, -1);
    char text[400];
    oari_manifest manifest = { .options = text, .does = "scatter" };
    size_t at = oar_spec_text(spec, text, sizeof text);

    at = at < sizeof text ? at : sizeof text - 1;
    snprintf(text + at, sizeof text - at, " as %s from rank %d",
             oar_dtype_name(dtype), root);
    OARI_TRY(oari_agree(&manifest, all));
    return oari_agree_on_status(
        all,
        spec->mesh->rank == root ? check_whole(whole, dtype, spec) : OAR_OK,
        "dtensor_scatter");
}

static oar_dtensor scatter_from(oar_tape *tape, const oar_tensor *whole,
                                oar_dtype dtype, const oar_spec *spec, int root)
{
    const oar_spec *first = oari_spec_of_grad(spec); /* nothing is partial */
    oar_dtensor a = { NULL, first }, b;
    int rank = spec->mesh->rank;

    if (agree_on_scatter(whole, dtype, spec, root) != OAR_OK || first == NULL)
        return failed;
    a.local = oar_empty(tape, dtype, oar_spec_local_shape(first, rank));
    if (a.local == NULL || scatter_parts(whole, first, root, a.local) != OAR_OK)
        b = failed;
    else
        b = oar_redistribute_at(NULL, 0, tape, a, spec, NULL);
    if (tape == NULL)
        oar_tensor_release(a.local);
    return b;
}

oar_dtensor oar_dtensor_scatter_at(const char *file, int line, oar_tape *tape,
                                   oar_tensor *whole, oar_dtype dtype,
                                   const oar_spec *spec, int root)
{
    OARI_CALLED_FROM(file, line);
    oar_dtensor a = { whole, NULL };

    if (spec == NULL) {
        oari_fail(OAR_E_ARG, "dtensor_scatter without a spec");
        return failed;
    }
    if (oari_move_ready(spec, "dtensor_scatter") != OAR_OK)
        return failed;
    if (root < -1 || root >= spec->mesh->grid.ranks) {
        oari_fail(OAR_E_RANK, "dtensor_scatter from rank %d of %d", root,
                  spec->mesh->grid.ranks);
        return failed;
    }
    if (root >= 0)
        return scatter_from(tape, whole, dtype, spec, root);
    a.spec = oari_spec_replicated(spec->mesh, spec->shape);
    return a.spec != NULL ? oar_redistribute_at(NULL, 0, tape, a, spec, NULL)
                          : failed;
}
