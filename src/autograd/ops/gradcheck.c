/* SPDX-License-Identifier: Apache-2.0 */
/* gradcheck: gradients against differences of values.
 *
 * What is differentiated is one number: the elements of fn's result, each with
 * a weight of its own, so that no element can hide behind another. fn is called
 * twice, with other weights, so that its backward first stores and then adds.
 * Numbers are moved in the inputs' own memory and put back at once. */
#include <math.h>

#include <oarsong/custom_op.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/status.h"
#include "tensor/move.h"

enum { CALLS = 2, WEIGHT_SEED = 99 };

typedef struct gradcheck {
    oar_gradcheck_fn fn;
    void *arg;
    int inputs;
    oar_tensor *const *input;
    oar_tensor **leaf; /* over the inputs' memory, of the tape as it is now */
    oar_tape *tape;
    double step, tolerance;
} gradcheck;

/* The number that is differentiated, on the tape; NULL on failure. */
static oar_tensor *compute_loss(gradcheck *g)
{
    oar_tensor *loss = NULL;

    for (int i = 0; i < g->inputs; i++) {
        g->leaf[i] = oar_tape_input(g->tape, g->input[i]);
        if (g->leaf[i] == NULL)
            return NULL;
    }
    for (int call = 0; call < CALLS; call++) {
        oar_tensor *y = g->fn(g->tape, g->leaf, g->arg), *weight;

        if (y == NULL && oar_last_error()->status == OAR_OK)
            oari_fail(OAR_E_STATE, "gradcheck: the function gave no result");
        if (y == NULL)
            return NULL;
        weight = oar_uniform(g->tape, oar_tensor_dtype(y), oar_tensor_shape(y),
                             WEIGHT_SEED + (uint64_t)call, 0.5, 1.5);
        if (oar_tensor_device(y).kind != OAR_CPU)
            weight = oar_to(g->tape, weight, oar_tensor_device(y));
        y = oar_sum(g->tape, oar_mul(g->tape, y, weight));
        loss = loss != NULL ? oar_add(g->tape, loss, y) : y;
        if (loss == NULL)
            return NULL;
    }
    return loss;
}

static oar_status compute_value(gradcheck *g, double *value)
{
    const oar_tensor *loss = compute_loss(g);
    oar_status status =
        loss != NULL ? oar_tensor_item(loss, value) : oar_last_error()->status;

    oar_tape_reset(g->tape);
    return status;
}

/* Element k of a row-major tensor, on its device. */
static oari_array element_of(const oar_tensor *t, int64_t k)
{
    oari_array a = oari_array_of(t);

    a.at = oari_layout_rows(OAR_SCALAR);
    a.at.offset = t->at.offset + k;
    return a;
}

/* Sets element k, and gives the number that is there then. */
static oar_status set_number(oar_tensor *t, int64_t k, double number,
                             double *set)
{
    oari_array host = oari_host_array(&number, OAR_F64, OAR_SCALAR);
    oari_array to = element_of(t, k), back;

    back = oari_host_array(set, OAR_F64, OAR_SCALAR);
    OARI_TRY(oari_move(NULL, &to, &host));
    return oari_move(NULL, &back, &to);
}

/* The slope at element k of an input, from values on both sides of it. */
static oar_status measure_slope(gradcheck *g, oar_tensor *t, int64_t k,
                                double *slope)
{
    double middle = 0, high = 0, low = 0, moved[2], back;
    oari_array host = oari_host_array(&middle, OAR_F64, OAR_SCALAR);
    oari_array from = element_of(t, k);
    oar_status status, last;

    OARI_TRY(oari_move(NULL, &host, &from));
    status = set_number(t, k, middle + g->step, &moved[1]);
    if (status == OAR_OK)
        status = compute_value(g, &high);
    if (status == OAR_OK)
        status = set_number(t, k, middle - g->step, &moved[0]);
    if (status == OAR_OK)
        status = compute_value(g, &low);
    last = set_number(t, k, middle, &back);
    status = status == OAR_OK ? last : status;
    if (status == OAR_OK)
        *slope = (high - low) / (moved[1] - moved[0]);
    return status;
}

/* Writes the place of element k as "[1, 2]" would stand in the sentence. */
static oari_shape_string place_of(const oar_tensor *t, int64_t k)
{
    oar_shape place = t->at.shape;

    for (int d = place.ndim - 1; d >= 0; d--) {
        place.dim[d] = k % t->at.shape.dim[d];
        k /= t->at.shape.dim[d];
    }
    return oari_shape_text(place);
}

static oar_status compare_input(gradcheck *g, int i, const double *grad)
{
    oar_tensor *t = g->input[i];

    for (int64_t k = 0; k < t->count; k++) {
        double want;

        OARI_TRY(measure_slope(g, t, k, &want));
        if (fabs(grad[k] - want) <= g->tolerance * fmax(1, fabs(want)))
            continue;
        return oari_fail(OAR_E_DATA,
                         "gradcheck: the gradient of input %d at %s is %.9g, "
                         "but differences give %.9g",
                         i, place_of(t, k).text, grad[k], want);
    }
    return OAR_OK;
}

/* Writes the gradients of all inputs, one after the other, to grad; zeros where
 * backward does not come. */
static oar_status compute_grads(gradcheck *g, double *grad)
{
    oar_tensor *loss = compute_loss(g);
    oar_status status = OAR_OK;

    if (loss == NULL)
        return oar_last_error()->status;
    if (oar_tensor_requires_grad(loss))
        status = oar_backward(g->tape, loss);
    for (int i = 0; i < g->inputs && status == OAR_OK; i++) {
        if (oar_tensor_grad(g->leaf[i]) != NULL)
            status =
                oar_tensor_read(oar_tensor_grad(g->leaf[i]), OAR_F64, grad);
        grad += g->input[i]->count;
    }
    return status;
}

static oar_status check_all(gradcheck *g, double *grad)
{
    oar_status status = compute_grads(g, grad);

    oar_tape_reset(g->tape);
    oar_tape_record(g->tape, 0);
    for (int i = 0; i < g->inputs && status == OAR_OK; i++) {
        status = compare_input(g, i, grad);
        grad += g->input[i]->count;
    }
    return status;
}

/* Refuses inputs that cannot be moved, adds up their elements, and says whether
 * one is f32. */
static oar_status check_inputs(int inputs, oar_tensor *const *input,
                               int64_t *elements, int *single)
{
    if (inputs < 0 || (inputs > 0 && input == NULL))
        return oari_fail(OAR_E_ARG, "gradcheck of %d inputs", inputs);
    for (int i = 0; i < inputs; i++) {
        if (input[i] == NULL)
            return oari_null("gradcheck");
        if (input[i]->dtype != OAR_F64 && input[i]->dtype != OAR_F32)
            return oari_fail(OAR_E_DTYPE,
                             "gradcheck: input %d is %s; only f64 and f32", i,
                             oar_dtype_name(input[i]->dtype));
        if (!oar_tensor_is_contiguous(input[i]))
            return oari_fail(OAR_E_ARG,
                             "gradcheck: input %d %s is not contiguous", i,
                             oari_shape_text(input[i]->at.shape).text);
        OARI_TRY(oari_check_writable("gradcheck", input[i]));
        *elements += input[i]->count;
        *single |= input[i]->dtype == OAR_F32;
    }
    return OAR_OK;
}

oar_status oar_gradcheck(oar_gradcheck_fn fn, void *arg, int inputs,
                         oar_tensor *const *input,
                         const oar_gradcheck_opts *opts)
{
    gradcheck g = { .fn = fn, .arg = arg, .inputs = inputs, .input = input };
    double *grad = NULL;
    oar_gradcheck_opts o;
    int64_t elements = 0;
    oar_status status;
    int single = 0;

    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "gradcheck without a function");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_inputs(inputs, input, &elements, &single));
    g.step = o.step > 0 ? o.step : single ? 1e-2 : 1e-5;
    g.tolerance = o.tolerance > 0 ? o.tolerance : single ? 1e-2 : 1e-7;
    OARI_TRY(oar_tape_create(&g.tape));
    g.leaf = oari_alloc((size_t)inputs + 1, sizeof(oar_tensor *));
    grad = oari_alloc((size_t)elements + 1, sizeof *grad);
    status = g.leaf != NULL && grad != NULL ? check_all(&g, grad) : OAR_E_NOMEM;
    oar_tape_destroy(g.tape);
    oari_free(g.leaf);
    oari_free(grad);
    return status;
}
