/* SPDX-License-Identifier: Apache-2.0 */
/* rule_index: picking by index. A table whose rows are cut gives zeros for the
 * rows of other ranks, and the result is a partial sum. */
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

/* ---- embedding ----------------------------------------------------------- */

enum { TABLE = 0, INDEX = 1 };
enum { VOCABULARY = 0, WIDTH = 1, PLACES = 2 }; /* letters; of index: more */

static oar_status form_embedding(const oari_form_call *call, oari_form *form)
{
    oar_shape table = call->shape[TABLE], index = call->shape[INDEX];

    if (table.ndim != 2 || index.ndim >= OAR_MAX_DIMS)
        return oari_fail(OAR_E_SHAPE, "embedding of table %s and index %s",
                         oari_box_shape_text(table).text,
                         oari_box_shape_text(index).text);
    form->letters = PLACES + index.ndim;
    form->size[VOCABULARY] = table.dim[0];
    form->size[WIDTH] = table.dim[1];
    form->in[TABLE].of[0] = VOCABULARY;
    form->in[TABLE].of[1] = form->out[0].of[index.ndim] = WIDTH;
    form->shape[0] = index;
    form->shape[0].dim[form->shape[0].ndim++] = table.dim[1];
    for (int i = 0; i < index.ndim; i++) {
        form->size[PLACES + i] = index.dim[i];
        form->in[INDEX].of[i] = form->out[0].of[i] = (signed char)(PLACES + i);
    }
    form->results = 1;
    form->reduces = 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    oari_form_linear(form, 1u << TABLE);
    return OAR_OK;
}

static oar_tensor *run_embedding(const oari_rule_call *c,
                                 const oari_decision *d, oar_tensor *const *in,
                                 oar_tensor **second)
{
    oar_embedding_opts o = *(const oar_embedding_opts *)c->opts;

    if (oari_decision_cuts(d, VOCABULARY)) {
        o.vocabulary = d->given[TABLE]->shape.dim[0];
        o.first = d->in[TABLE].spec->held.box.offset[0];
    }
    return oar_embedding_with(c->tape, in[TABLE], in[INDEX], &o);
}

static const oari_rule embedding_rule = { "embedding", form_embedding,
                                          run_embedding };

oar_dtensor oar_dtensor_embedding_with(oar_tape *tape, oar_dtensor table,
                                       oar_dtensor index,
                                       const oar_embedding_opts *opts)
{
    oar_embedding_opts o;
    oari_rule_call c = { .rule = &embedding_rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { table, index },
                         .opts = &o };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    o.size = sizeof o;
    if (o.vocabulary > 0) {
        oari_fail(OAR_E_ARG, "embedding of DTensors: the table's spec says "
                             "which rows a rank has; leave vocabulary 0");
        return (oar_dtensor){ NULL, NULL };
    }
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_embedding(oar_tape *tape, oar_dtensor table,
                                  oar_dtensor index)
{
    return oar_dtensor_embedding_with(tape, table, index, NULL);
}

/* ---- along a dim --------------------------------------------------------- */

static oar_status form_index_select(const oari_form_call *call, oari_form *form)
{
    int dim, picked = call->shape[0].ndim;

    OARI_TRY(oari_form_dim(call, call->number[0], call->shape[0].ndim, &dim));
    if (call->shape[1].ndim != 1)
        return oari_fail(OAR_E_SHAPE, "index_select with an index %s",
                         oari_box_shape_text(call->shape[1]).text);
    oari_form_same(call, form);
    form->whole = 1u << dim;
    form->size[form->letters++] = call->shape[1].dim[0];
    form->in[1].of[0] = form->out[0].of[dim] = (signed char)picked;
    form->shape[0].dim[dim] = call->shape[1].dim[0];
    form->moves_only = 1;
    oari_form_linear(form, 1);
    return OAR_OK;
}

static oar_tensor *run_index_select(const oari_rule_call *c,
                                    const oari_decision *d,
                                    oar_tensor *const *in, oar_tensor **second)
{
    return oar_index_select(c->tape, in[0], (int)c->number[0], in[1]);
}

static const oari_rule index_select_rule = { "index_select", form_index_select,
                                             run_index_select };

/* Gives letters to a and to what has its dims, but for the size of one: inputs
 * from 1 on, which share a letter there. */
static oar_status form_beside(const oari_form_call *call, oari_form *form,
                              int dim)
{
    oar_shape a = call->shape[0];

    oari_form_same(call, form);
    form->whole = 1u << dim;
    form->size[form->letters++] = call->shape[1].dim[dim];
    for (int i = 1; i < call->inputs; i++) {
        int same = call->shape[i].ndim == a.ndim;

        for (int d = 0; same && d < a.ndim; d++) {
            form->in[i].of[d] = (signed char)(d == dim ? a.ndim : d);
            same = call->shape[i].dim[d] ==
                   (d == dim ? call->shape[1].dim[dim] : a.dim[d]);
        }
        if (!same)
            return oari_fail(OAR_E_SHAPE, "%s of %s along dim %d with %s",
                             call->name, oari_box_shape_text(a).text, dim,
                             oari_box_shape_text(call->shape[i]).text);
    }
    return OAR_OK;
}

static oar_status form_take_along(const oari_form_call *call, oari_form *form)
{
    int dim, ndim = call->shape[0].ndim;

    OARI_TRY(oari_form_dim(call, call->number[0], ndim, &dim));
    if (call->shape[1].ndim != ndim)
        return oari_fail(OAR_E_SHAPE, "take_along of %s with an index %s",
                         oari_box_shape_text(call->shape[0]).text,
                         oari_box_shape_text(call->shape[1]).text);
    OARI_TRY(form_beside(call, form, dim));
    form->out[0] = form->in[1];
    form->shape[0] = call->shape[1];
    form->moves_only = 1;
    oari_form_linear(form, 1);
    return OAR_OK;
}

static oar_tensor *run_take_along(const oari_rule_call *c,
                                  const oari_decision *d, oar_tensor *const *in,
                                  oar_tensor **second)
{
    return oar_take_along(c->tape, in[0], (int)c->number[0], in[1]);
}

static const oari_rule take_along_rule = { "take_along", form_take_along,
                                           run_take_along };

/* No mesh dim cuts what is added along the dim: each rank would add to a copy
 * of a of its own. */
static oar_status form_scatter_add(const oari_form_call *call, oari_form *form)
{
    int dim, ndim = call->shape[0].ndim;

    OARI_TRY(oari_form_dim(call, call->number[0], ndim, &dim));
    if (call->shape[1].ndim != ndim)
        return oari_fail(OAR_E_SHAPE, "scatter_add to %s with an index %s",
                         oari_box_shape_text(call->shape[0]).text,
                         oari_box_shape_text(call->shape[1]).text);
    OARI_TRY(form_beside(call, form, dim));
    form->whole |= 1u << ndim;
    oari_form_linear(form, 1u << 0 | 1u << 2);
    return OAR_OK;
}

static oar_tensor *run_scatter_add(const oari_rule_call *c,
                                   const oari_decision *d,
                                   oar_tensor *const *in, oar_tensor **second)
{
    return oar_tensor_scatter_add(c->tape, in[0], (int)c->number[0], in[1],
                                  in[2]);
}

static const oari_rule scatter_add_rule = { "scatter_add", form_scatter_add,
                                            run_scatter_add };

static oar_dtensor run_at(oar_tape *tape, const oari_rule *rule, int inputs,
                          const oar_dtensor *in, int dim)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = inputs,
                         .numbers = 1,
                         .number = { dim } };

    for (int i = 0; i < inputs; i++)
        c.in[i] = in[i];
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_index_select(oar_tape *tape, oar_dtensor a, int dim,
                                     oar_dtensor index)
{
    return run_at(tape, &index_select_rule, 2, (oar_dtensor[]){ a, index },
                  dim);
}

oar_dtensor oar_dtensor_take_along(oar_tape *tape, oar_dtensor a, int dim,
                                   oar_dtensor index)
{
    return run_at(tape, &take_along_rule, 2, (oar_dtensor[]){ a, index }, dim);
}

oar_dtensor oar_dtensor_scatter_add(oar_tape *tape, oar_dtensor a, int dim,
                                    oar_dtensor index, oar_dtensor source)
{
    return run_at(tape, &scatter_add_rule, 3,
                  (oar_dtensor[]){ a, index, source }, dim);
}
