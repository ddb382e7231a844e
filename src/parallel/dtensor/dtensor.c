/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor: DTensors as values, and their moves as operations with a backward.
 *
 * The backward of a move is the move of the gradient from where the result's
 * gradient lies to where the operand's does: partial tensors have replicated
 * gradients, all others lie as the tensor does. */
#include <oarsong/custom_op.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/dtensor/move_run.h"

static const oar_dtensor failed = { NULL, NULL };

/* Checks that a tensor can be this rank's part. */
static oar_status check_local(const oar_tensor *local, const oar_spec *spec,
                              const char *call)
{
    oar_shape wanted, shape = oar_tensor_shape(local);

    if (spec == NULL)
        return oari_fail(OAR_E_ARG, "%s without a spec", call);
    if (oar_tensor_device(local).kind != OAR_CPU)
        return oari_fail(OAR_E_DEVICE, "%s: DTensors are on the cpu", call);
    wanted = oar_spec_local_shape(spec, spec->mesh->rank);
    if (!oari_same_shape(shape, wanted))
        return oari_fail(OAR_E_SHAPE,
                         "%s: the local tensor is %s, but rank %d has %s of %s",
                         call, oari_box_shape_text(shape).text,
                         spec->mesh->rank, oari_box_shape_text(wanted).text,
                         oari_box_shape_text(spec->shape).text);
    return OAR_OK;
}

oar_dtensor oar_dtensor_from_local(oar_tensor *local, const oar_spec *spec)
{
    oar_dtensor a = { local, spec };

    if (local == NULL)
        return failed;
    return check_local(local, spec, "dtensor_from_local") == OAR_OK ? a
                                                                    : failed;
}

/* ---- backward ------------------------------------------------------------ */

/* What the backward of a move, or of leaving DTensors, needs. */
typedef struct moved {
    oar_mesh *mesh; /* retained: specs live as long */
    const oar_spec *from, *to;
} moved;

static moved *moved_make(const oar_spec *from, const oar_spec *to)
{
    moved *m = oari_alloc(1, sizeof *m);

    if (m != NULL)
        *m = (moved){ oar_mesh_retain(from->mesh), from, to };
    return m;
}

static void moved_drop(void *arg)
{
    moved *m = arg;

    oar_mesh_release(m->mesh);
    oari_free(m);
}

/* Adds or stores what `fill` computes of a gradient. */
static oar_status give_grad(
    const moved *m, const oar_tensor *grad, oar_tensor *to, int add,
    oar_status (*fill)(const moved *m, const oar_tensor *grad, oar_tensor *to))
{
    oar_tensor *made, *sum = NULL;
    oar_status status;

    if (!add)
        return fill(m, grad, to);
    made = oar_empty(NULL, oar_tensor_dtype(to), oar_tensor_shape(to));
    if (made == NULL)
        return OAR_E_NOMEM;
    status = fill(m, grad, made);
    if (status == OAR_OK)
        sum = oar_add(NULL, to, made);
    if (status == OAR_OK)
        status =
            sum != NULL ? oar_tensor_copy(to, sum) : oar_last_error()->status;
    oar_tensor_release(sum);
    oar_tensor_release(made);
    return status;
}

static int adds_up(const oar_spec *spec)
{
    for (int m = 0; m < spec->mesh->grid.dims; m++)
        if (spec->layout.on[m].kind == OAR_PARTIAL &&
            spec->layout.on[m].op != OAR_REDUCE_OP_SUM)
            return 0;
    return 1;
}

static oar_status move_grad(const moved *m, const oar_tensor *grad,
                            oar_tensor *to)
{
    const oar_spec *from_spec = oari_spec_of_grad(m->to);
    const oar_spec *to_spec = oari_spec_of_grad(m->from);
    oari_move_path *path = NULL;

    if (!adds_up(m->from) || !adds_up(m->to))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "redistribute: gradients go back through partial sums "
                         "only");
    if (from_spec != NULL && to_spec != NULL)
        path = oari_move_path_of(from_spec, to_spec,
                                 oar_dtype_size(oar_tensor_dtype(grad)));
    if (path == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_move_compare(path));
    return oari_move_run(path, grad, to);
}

static oar_status move_back(void *arg, int i, const oar_tensor *grad,
                            oar_tensor *to, int add)
{
    return give_grad(arg, grad, to, add, move_grad);
}

static const oar_custom_op move_op = { .size = sizeof move_op,
                                       .name = "redistribute",
                                       .backward = move_back,
                                       .drop = moved_drop };

/* ---- moving -------------------------------------------------------------- */

/* Returns a.local, contiguous: a new reference. NULL on failure. */
static oar_tensor *contiguous(oar_tensor *local)
{
    oar_tensor *copy;

    if (oar_tensor_is_contiguous(local))
        return oar_tensor_retain(local);
    copy = oar_empty(NULL, oar_tensor_dtype(local), oar_tensor_shape(local));
    if (copy != NULL && oar_tensor_copy(copy, local) != OAR_OK) {
        oar_tensor_release(copy);
        return NULL;
    }
    return copy;
}

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

/* Records an operation on a.local; what is no float has no gradient. */
static oar_tensor *record(oar_tape *tape, const oar_custom_op *op, moved *m,
                          oar_dtensor a, oar_tensor *out)
{
    oar_dtype dtype = oar_tensor_dtype(out);

    if (dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
        dtype == OAR_BF16)
        return oar_record_op(tape, op, m, 1, &a.local, out);
    moved_drop(m);
    return out;
}

/* Gives the moved tensor: the tape's, or without one a new reference. */
static oar_tensor *move(oar_tape *tape, oar_dtensor a, oari_move_path *path)
{
    oar_tensor *in = contiguous(a.local);
    oar_tensor *out =
        oar_empty(tape, oar_tensor_dtype(a.local),
                  oar_spec_local_shape(path->to, path->to->mesh->rank));
    moved *m = moved_make(path->from, path->to);

    if (in == NULL || out == NULL || m == NULL ||
        oari_move_run(path, in, out) != OAR_OK) {
        oar_tensor_release(in);
        if (tape == NULL)
            oar_tensor_release(out);
        if (m != NULL)
            moved_drop(m);
        return NULL;
    }
    oar_tensor_release(in);
    return record(tape, &move_op, m, a, out);
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
        check_local(a.local, a.spec, "redistribute") != OAR_OK ||
        oari_move_ready(to, "redistribute") != OAR_OK ||
        check_budget(a.spec, to, dtype, o.most_bytes) != OAR_OK)
        return failed;
    path = oari_move_path_of(a.spec, to, oar_dtype_size(dtype));
    if (path == NULL || oari_move_compare(path) != OAR_OK)
        return failed;
    if (path->steps > 0)
        b.local = move(tape, a, path);
    else if (tape == NULL)
        b.local = oar_tensor_retain(a.local);
    return b.local != NULL ? b : failed;
}

/* ---- to plain tensors ---------------------------------------------------- */

/* Adds a gradient up over the ranks that have the same part. */
static oar_status add_grads(const moved *m, const oar_tensor *grad,
                            oar_tensor *to)
{
    oar_call_opts opts = oar_call_opts_init();
    oar_span span;

    OARI_TRY(oar_tensor_copy(to, grad));
    OARI_TRY(oar_tensor_span(to, &span));
    opts.key = m->from->hash;
    opts.label = "gradients of dtensor_to_local";
    for (int d = 0; d < m->mesh->grid.dims; d++)
        if (m->from->layout.on[d].kind == OAR_REPLICATE &&
            m->mesh->grid.size[d] > 1)
            OARI_TRY(oar_all_reduce(oar_mesh_group(m->mesh, d), span, OAR_SUM,
                                    &opts, NULL));
    return OAR_OK;
}

static oar_status add_back(void *arg, int i, const oar_tensor *grad,
                           oar_tensor *to, int add)
{
    return give_grad(arg, grad, to, add, add_grads);
}

static const oar_custom_op add_op = { .size = sizeof add_op,
                                      .name = "dtensor_to_local",
                                      .backward = add_back,
                                      .drop = moved_drop };

/* Returns a tensor of the tape's with the numbers of another: a view if it can
 * be one. */
static oar_tensor *view_of(oar_tape *tape, oar_tensor *a)
{
    oar_storage *storage = oar_tensor_storage(a);
    oar_dtype dtype = oar_tensor_dtype(a);
    oar_shape shape = oar_tensor_shape(a);
    const char *data = oar_tensor_const_data(a);
    const char *first = oar_storage_const_data(storage);
    oar_tensor *copy;

    if (oar_tensor_is_contiguous(a) && data != NULL && first != NULL)
        return oar_view_of(tape, storage,
                           (data - first) / (int64_t)oar_dtype_size(dtype),
                           dtype, shape);
    copy = oar_empty(tape, dtype, shape);
    if (copy != NULL && oar_tensor_copy(copy, a) != OAR_OK)
        return NULL;
    return copy;
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
    oar_tensor *out;
    moved *m;

    if (a.local == NULL)
        return NULL;
    if (check_local(a.local, a.spec, "dtensor_to_local") != OAR_OK ||
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
    m = moved_make(a.spec, a.spec);
    out = m != NULL ? view_of(tape, a.local) : NULL;
    if (out == NULL) {
        if (m != NULL)
            moved_drop(m);
        return NULL;
    }
    return record(tape, &add_op, m, a, out);
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
    if (check_local(a.local, a.spec, "dtensor_whole") != OAR_OK ||
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
    oari_cuts_part(&a.spec->mesh->grid, a.spec->shape, &a.spec->layout,
                   a.spec->mesh->rank, &part);
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
