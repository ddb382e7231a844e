/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_shapes: finds the shapes between stages. Stage after stage runs on
 * zeros, once for each number of rows that micro-batches have, and its rank
 * tells all others what came out, or why nothing did. Dynamic shapes are noted
 * as they come (pipeline_heads.c): each micro-batch is a class of its own. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/reducer/agreement.h"

/* What a rank tells of a stage. */
typedef struct found {
    int32_t status;
    char text[400];
    oari_flow_spec out[OARI_TENSORS];
} found;

oari_flow_spec *oari_spec_at(const oar_pipeline *p, int micro, int stage,
                             int output)
{
    int64_t row = (int64_t)p->class_of[micro] * p->total + stage;

    return &p->spec[row * OARI_TENSORS + output];
}

oari_flow_spec *oari_input_spec(const oar_pipeline *p, int micro, int stage,
                                int input)
{
    const oari_stage_wiring *w = &p->wiring[stage];

    return oari_spec_at(p, micro, w->from_stage[input], w->from_output[input]);
}

/* ---- modes --------------------------------------------------------------- */

typedef OARI_VEC(int) modes;

/* Notes whether a module and all below it train. */
static oar_status note_modes(oar_module *module, modes *on)
{
    OARI_TRY(oari_vec_push(on, oar_module_training(module)));
    for (int i = 0; i < oar_module_children(module); i++)
        OARI_TRY(note_modes(oar_module_child(module, i), on));
    return OAR_OK;
}

static void restore_modes(oar_module *module, const modes *on, int64_t *next)
{
    oar_module_train(module, on->data[(*next)++]);
    for (int i = 0; i < oar_module_children(module); i++)
        restore_modes(oar_module_child(module, i), on, next);
}

oar_tensor *oari_zeros_on(oar_device device, oar_tape *tape, oar_dtype dtype,
                          oar_shape shape)
{
    oar_tensor *made;

    if (device.kind == OAR_CPU)
        return oar_zeros(tape, dtype, shape);
    made = oar_empty_on(tape, device, dtype, shape);
    if (made == NULL || oar_tensor_fill(made, 0) == OAR_OK)
        return made;
    if (tape == NULL)
        oar_tensor_release(made);
    return NULL;
}

/* ---- one stage ----------------------------------------------------------- */

oar_status oari_make_zeros(const oar_pipeline *p, const oari_pipe_stage *s,
                           int micro, oar_tape *tape, oar_tensor **in)
{
    for (int i = 0; i < s->given.inputs; i++) {
        if (s->index == 0) {
            oar_shape shape = oar_tensor_shape(p->batch->input[i]);
            shape.dim[0] = p->rows[micro];
            in[i] = oari_zeros_on(p->device, tape,
                                  oar_tensor_dtype(p->batch->input[i]), shape);
        } else {
            const oari_flow_spec *spec = oari_input_spec(p, micro, s->index, i);
            in[i] = oari_zeros_on(p->device, tape, spec->dtype, spec->shape);
        }
        if (in[i] == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

static oar_status run_on_zeros(const oar_pipeline *p, const oari_pipe_stage *s,
                               int micro, oar_tape *tape, found *told)
{
    oar_tensor *in[OARI_TENSORS], *out[OARI_TENSORS] = { NULL };

    OARI_TRY(oari_make_zeros(p, s, micro, tape, in));
    OARI_TRY(oari_call_stage(s, s->given.module, tape, -1, in, out));
    for (int o = 0; o < s->given.outputs; o++)
        told->out[o] = (oari_flow_spec){ oar_tensor_dtype(out[o]),
                                         oar_tensor_shape(out[o]) };
    return OAR_OK;
}

/* The same with modules in evaluation mode and nothing recorded. */
static oar_status try_stage(const oar_pipeline *p, const oari_pipe_stage *s,
                            int micro, found *told)
{
    oar_module *module = s->given.module;
    modes on = { NULL, 0, 0 };
    int64_t next = 0;
    oar_status status = OAR_OK;
    oar_tape *tape;

    OARI_TRY(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    if (module != NULL)
        status = note_modes(module, &on);
    if (status == OAR_OK) {
        if (module != NULL)
            oar_module_train(module, 0);
        status = run_on_zeros(p, s, micro, tape, told);
        if (module != NULL)
            restore_modes(module, &on, &next);
    }
    oari_vec_free(&on);
    oar_tape_destroy(tape);
    return status;
}

/* Runs the stage where it is, and tells all ranks. */
static oar_status find_outputs(oar_pipeline *p, int stage, int micro)
{
    const oari_pipe_stage *s = oari_own_stage(p, stage);
    int rank = oar_schedule_rank_of(p->schedule, stage);
    found told = { 0 };

    if (s != NULL && (told.status = try_stage(p, s, micro, &told)) != OAR_OK)
        snprintf(told.text, sizeof told.text, "%s",
                 oar_last_error()->status == (oar_status)told.status
                     ? oar_last_error_text()
                     : oar_status_text((oar_status)told.status));
    OARI_TRY(oar_broadcast(p->group, oar_span_of(&told, sizeof told, OAR_U8),
                           rank, OAR_OPTS(oar_call_opts, .label = "shapes"),
                           NULL));
    told.text[sizeof told.text - 1] = 0;
    if (told.status != OAR_OK)
        return oari_about(rank, oari_fail((oar_status)told.status,
                                          "stage %d, which micro-batches of "
                                          "%lld rows cannot go through: %s",
                                          stage, (long long)p->rows[micro],
                                          told.text));
    memcpy(&p->spec[((int64_t)p->class_of[micro] * p->total + stage) *
                    OARI_TENSORS],
           told.out, sizeof told.out);
    return OAR_OK;
}

/* ---- all ----------------------------------------------------------------- */

/* Sorts micro-batches into classes by their rows, and notes where they begin.
 */
static void classify(oar_pipeline *p)
{
    int64_t row = 0;

    p->classes = 0;
    for (int m = 0; m < p->micro; m++) {
        p->first_row[m] = row;
        row += p->rows[m];
        p->class_of[m] = p->opts.dynamic ? p->classes++ : -1;
        for (int k = 0; k < m && p->class_of[m] < 0; k++)
            if (p->rows[k] == p->rows[m])
                p->class_of[m] = p->class_of[k];
        if (p->class_of[m] < 0)
            p->class_of[m] = p->classes++;
    }
}

oar_status oari_find_shapes(oar_pipeline *p)
{
    int next = 0, first = oar_schedule_rank_of(p->schedule, 0);

    p->signature = 0;
    OARI_TRY(
        oar_broadcast(p->group, oar_span_of(p->rows, (size_t)p->micro, OAR_I64),
                      first, OAR_OPTS(oar_call_opts, .label = "rows"), NULL));
    classify(p);
    oari_free(p->spec);
    p->spec = oari_alloc((size_t)p->classes * (size_t)p->total * OARI_TENSORS,
                         sizeof *p->spec);
    OARI_TRY(oari_agree_on_status(
        p->group, p->spec != NULL ? OAR_OK : OAR_E_NOMEM, "pipeline_step"));
    for (int m = 0; !p->opts.dynamic && m < p->micro; m++) {
        if (p->class_of[m] != next)
            continue;
        next++;
        for (int k = 0; k < p->total; k++)
            OARI_TRY(find_outputs(p, k, m));
    }
    return OAR_OK;
}
