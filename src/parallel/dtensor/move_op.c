/* SPDX-License-Identifier: Apache-2.0 */
/* move_op: moves as operations with a backward.
 *
 * The backward of a move is the move of the gradient from where the result's
 * gradient lies to where the operand's does: partial tensors have replicated
 * gradients, all others lie as the tensor does. An operation whose local
 * gradients are summands says so, and their sum is part of that move. */
#include "parallel/dtensor/move_op.h"

#include <oarsong/custom_op.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/status.h"

/* What the backward of a move needs. */
typedef struct moved {
    oar_mesh *mesh; /* retained: specs and scopes live as long */
    const oar_spec *from, *to, *grad;
    oari_scope *scope;
} moved;

oar_status oari_check_local(const oar_tensor *local, const oar_spec *spec,
                            const char *call)
{
    oar_shape shape = oar_tensor_shape(local);

    if (spec == NULL)
        return oari_fail(OAR_E_ARG, "%s without a spec", call);
    if (!oari_same_shape(shape, spec->local))
        return oari_fail(
            OAR_E_SHAPE, "%s: the local tensor is %s, but rank %d has %s of %s",
            call, oari_box_shape_text(shape).text, spec->mesh->rank,
            oari_box_shape_text(spec->local).text,
            oari_box_shape_text(spec->shape).text);
    return OAR_OK;
}

/* ---- counting ------------------------------------------------------------ */

static void count(_Atomic uint64_t *number, uint64_t more)
{
    atomic_fetch_add_explicit(number, more, memory_order_relaxed);
}

static void count_move(oari_scope *scope, uint64_t bytes, int implicit)
{
    count(&scope->moves, 1);
    count(&scope->bytes, bytes);
    if (implicit) {
        count(&scope->implicit_moves, 1);
        count(&scope->implicit_bytes, bytes);
    }
}

static void count_backward(oari_scope *scope, uint64_t bytes)
{
    count(&scope->backward_moves, 1);
    count(&scope->backward_bytes, bytes);
}

/* ---- backward ------------------------------------------------------------ */

static void moved_drop(void *arg)
{
    moved *m = arg;

    oar_mesh_release(m->mesh);
    oari_free(m);
}

static moved *moved_make(const oar_spec *from, const oar_spec *to,
                         const oar_spec *grad)
{
    oari_scope *scope = oari_scope_now(from->mesh);
    moved *m = scope != NULL ? oari_alloc(1, sizeof *m) : NULL;

    if (m == NULL)
        return NULL;
    *m = (moved){ oar_mesh_retain(from->mesh), from, to, grad, scope };
    if (m->grad == NULL)
        m->grad = oari_spec_of_grad(to);
    if (m->grad != NULL)
        return m;
    moved_drop(m);
    return NULL;
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
    const oar_spec *to_spec = oari_spec_of_grad(m->from);
    oari_move_path *path = NULL;

    if (!adds_up(m->from) || !adds_up(m->to))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "redistribute: gradients go back through partial sums "
                         "only");
    if (to_spec != NULL)
        path = oari_move_path_of(m->grad, to_spec,
                                 oar_dtype_size(oar_tensor_dtype(grad)));
    if (path == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_move_compare(path));
    if (path->steps > 0)
        count_backward(m->scope, path->bytes);
    return oari_move_run(path, grad, to);
}

static oar_status move_back(void *arg, int i, const oar_tensor *grad,
                            oar_tensor *to, int add)
{
    oar_tensor *made, *sum = NULL;
    oar_status status;

    if (!add)
        return move_grad(arg, grad, to);
    made = oar_empty_on(NULL, oar_tensor_device(to), oar_tensor_dtype(to),
                        oar_tensor_shape(to));
    if (made == NULL)
        return oar_last_error()->status;
    status = move_grad(arg, grad, made);
    if (status == OAR_OK)
        sum = oar_add(NULL, to, made);
    if (status == OAR_OK)
        status =
            sum != NULL ? oar_tensor_copy(to, sum) : oar_last_error()->status;
    oar_tensor_release(sum);
    oar_tensor_release(made);
    return status;
}

static const oar_custom_op move_op = { .size = sizeof move_op,
                                       .name = "redistribute",
                                       .backward = move_back,
                                       .drop = moved_drop };

/* Records a move of `local`; what is no float has no gradient. */
static oar_tensor *record(oar_tape *tape, moved *m, oar_tensor *local,
                          oar_tensor *out)
{
    oar_dtype dtype = oar_tensor_dtype(out);

    if (dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
        dtype == OAR_BF16)
        return oar_record_op(tape, &move_op, m, 1, &local, out);
    moved_drop(m);
    return out;
}

/* ---- moving -------------------------------------------------------------- */

/* Returns the tensor, contiguous: a new reference. NULL on failure. */
static oar_tensor *contiguous(oar_tensor *local)
{
    oar_tensor *copy;

    if (oar_tensor_is_contiguous(local))
        return oar_tensor_retain(local);
    copy = oar_empty_on(NULL, oar_tensor_device(local), oar_tensor_dtype(local),
                        oar_tensor_shape(local));
    if (copy != NULL && oar_tensor_copy(copy, local) != OAR_OK) {
        oar_tensor_release(copy);
        return NULL;
    }
    return copy;
}

oar_tensor *oari_move_tensor(oar_tape *tape, oar_tensor *local,
                             oari_move_path *path, const oar_spec *grad,
                             int implicit)
{
    oar_tensor *in = contiguous(local);
    oar_tensor *out = oar_empty_on(tape, oar_tensor_device(local),
                                   oar_tensor_dtype(local), path->to->local);
    moved *m = moved_make(path->from, path->to, grad);

    if (in == NULL || out == NULL || m == NULL ||
        oari_move_run(path, in, out) != OAR_OK) {
        oar_tensor_release(in);
        if (tape == NULL)
            oar_tensor_release(out);
        if (m != NULL)
            moved_drop(m);
        return NULL;
    }
    count_move(m->scope, path->bytes, implicit);
    oar_tensor_release(in);
    return record(tape, m, local, out);
}

/* Returns a view of a tensor, the tape's, that is not recorded. */
static oar_tensor *view_of(oar_tape *tape, oar_tensor *a)
{
    oar_shape shape = oar_tensor_shape(a);
    int recorded = oar_tape_record(tape, 0);
    oar_tensor *view = shape.ndim > 0 ? oar_narrow(tape, a, 0, 0, shape.dim[0])
                                      : oar_reshape(tape, a, shape);

    oar_tape_record(tape, recorded);
    return view;
}

oar_tensor *oari_take_grad_from(oar_tape *tape, oar_tensor *local,
                                const oar_spec *spec, const oar_spec *grad)
{
    moved *m = moved_make(spec, spec, grad);
    oar_tensor *view = m != NULL ? view_of(tape, local) : NULL;

    if (view != NULL)
        return record(tape, m, local, view);
    if (m != NULL)
        moved_drop(m);
    return NULL;
}
