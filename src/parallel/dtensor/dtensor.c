/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor: DTensors as values: from local tensors, to other specs, and back. */
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/dtensor/move_op.h"

static const oar_dtensor failed = { NULL, NULL };

oar_dtensor oar_dtensor_from_local(oar_tensor *local, const oar_spec *spec)
{
    oar_dtensor a = { local, spec };

    if (local == NULL)
        return failed;
    return oari_check_local(local, spec, "dtensor_from_local") == OAR_OK
               ? a
               : failed;
}

/* ---- moving -------------------------------------------------------------- */

static oar_status check_budget(const oar_spec *from, const oar_spec *to,
                               oar_dtype dtype, uint64_t most_bytes)
{
    oar_move_plan plan = oar_move_plan_init();
    char text[400];

    if (most_bytes == 0)
        return OAR_OK;
    OARI_TRY(oar_explain(from, to, dtype, &plan));
    if (plan.most_bytes <= most_bytes)
        return OAR_OK;
    oar_explain_text(from, to, dtype, text, sizeof text);
    return oari_fail(OAR_E_UNSUPPORTED,
                     "redistribute would bring a rank %llu bytes, and may "
                     "bring %llu: %s",
                     (unsigned long long)plan.most_bytes,
                     (unsigned long long)most_bytes, text);
}

oar_dtensor oar_redistribute_at(const char *file, int line, oar_tape *tape,
                                oar_dtensor a, const oar_spec *to,
                                const oar_redistribute_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    oar_redistribute_opts o;
    oari_move_path *path;
    oar_dtensor b = { a.local, to };
    oar_dtype dtype = oar_tensor_dtype(a.local);

    if (a.local == NULL || oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        oari_move_check(a.spec, to, dtype, "redistribute") != OAR_OK ||
        oari_check_local(a.local, a.spec, "redistribute") != OAR_OK ||
        oari_move_ready(to, "redistribute") != OAR_OK ||
        check_budget(a.spec, to, dtype, o.most_bytes) != OAR_OK)
        return failed;
    path = oari_move_path_of(a.spec, to, oar_dtype_size(dtype));
    if (path == NULL || oari_move_compare(path) != OAR_OK)
        return failed;
    if (path->steps > 0)
        b.local = oari_move_tensor(tape, a.local, path, NULL, 0);
    else if (tape == NULL)
        b.local = oar_tensor_retain(a.local);
    return b.local != NULL ? b : failed;
}

/* ---- to plain tensors ---------------------------------------------------- */

/* Returns the spec of gradients that are to be added up over the ranks that
 * have the same part. */
static const oar_spec *added_grads(const oar_spec *spec)
{
    oari_cuts layout = spec->layout;

    for (int m = 0; m < spec->mesh->grid.dims; m++)
        if (layout.on[m].kind == OAR_REPLICATE && spec->mesh->grid.size[m] > 1)
            layout.on[m] =
                (oari_cut){ .kind = OAR_PARTIAL, .op = OAR_REDUCE_OP_SUM };
    oari_cuts_sort(&layout, spec->mesh->grid.dims);
    return oari_spec_with(spec, &layout);
}

static oar_status check_grads(oar_local_grads grads, const char *call)
{
    if (grads == OAR_GRADS_EQUAL || grads == OAR_GRADS_ADD)
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s: say whether the gradients of ranks with the same "
                     "part are equal (OAR_GRADS_EQUAL) or are to be added "
                     "(OAR_GRADS_ADD)",
                     call);
}

oar_tensor *oar_dtensor_to_local(oar_tape *tape, oar_dtensor a,
                                 oar_local_grads grads)
{
    const oar_spec *grad;

    if (a.local == NULL)
        return NULL;
    if (oari_check_local(a.local, a.spec, "dtensor_to_local") != OAR_OK ||
        check_grads(grads, "dtensor_to_local") != OAR_OK)
        return NULL;
    if (oari_cuts_has(&a.spec->layout, a.spec->mesh->grid.dims, OAR_PARTIAL)) {
        oari_fail(OAR_E_STATE, "dtensor_to_local: the tensor is partial: "
                               "redistribute it first");
        return NULL;
    }
    if (tape == NULL)
        return oar_tensor_retain(a.local);
    if (grads == OAR_GRADS_EQUAL)
        return a.local;
    if (oari_move_ready(a.spec, "dtensor_to_local") != OAR_OK)
        return NULL;
    grad = added_grads(a.spec);
    return grad != NULL ? oari_take_grad_from(tape, a.local, a.spec, grad)
                        : NULL;
}

oar_tensor *oar_dtensor_whole_at(const char *file, int line, oar_tape *tape,
                                 oar_dtensor a, oar_local_grads grads)
{
    OARI_CALLED_FROM(file, line);
    oar_dtensor all = failed;
    const oar_spec *to;
    oar_tensor *whole;

    if (a.local == NULL)
        return NULL;
    if (oari_check_local(a.local, a.spec, "dtensor_whole") != OAR_OK ||
        check_grads(grads, "dtensor_whole") != OAR_OK)
        return NULL;
    to = oari_spec_replicated(a.spec->mesh, a.spec->shape);
    if (to != NULL)
        all = oar_redistribute_at(NULL, 0, tape, a, to, NULL);
    whole = oar_dtensor_to_local(tape, all, grads);
    if (tape == NULL)
        oar_tensor_release(all.local);
    return whole;
}

size_t oar_dtensor_text(oar_dtensor a, char *text, size_t bytes)
{
    size_t at = oar_spec_text(a.spec, text, bytes);
    oari_part part;

    if (a.spec == NULL || a.local == NULL)
        return oari_spec_text_add(text, bytes, at, "\nno numbers");
    part = a.spec->held;
    at = oari_spec_text_add(text, bytes, at, "\nrank %d has ",
                            a.spec->mesh->rank);
    if (part.flat)
        at = oari_spec_text_add(text, bytes, at,
                                "%lld elements from %lld on of ",
                                (long long)part.count, (long long)part.first);
    at = oari_spec_text_add(text, bytes, at,
                            "%s: ", oari_box_text(&part.box).text);
    return at + oar_tensor_text(a.local, at < bytes ? text + at : NULL,
                                at < bytes ? bytes - at : 0);
}
