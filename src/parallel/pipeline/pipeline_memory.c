/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_memory: refuses what would need more memory than is allowed, before
 * anything runs. Each stage runs on zeros, once for each number of rows, as it
 * will run in the step: recorded, with the loss and, where the schedule has it,
 * with I. Nothing of it stays: buffers and counters are put back, and no
 * gradient of a parameter is computed. */
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/reducer/agreement.h"

#include <oarsong/ops.h>

/* ---- what forward changes ------------------------------------------------ */

/* Buffers and counters of a module, as they were. */
typedef struct kept_state {
    OARI_VEC(oar_tensor *) buffer;
    OARI_VEC(uint64_t) counter;
} kept_state;

static oar_status keep_state(oar_module *module, kept_state *kept)
{
    for (int i = 0; module != NULL && i < oar_module_buffers(module); i++) {
        oar_tensor *from = oar_module_buffer(module, i), *copy;
        OARI_TRY(oari_vec_reserve(&kept->buffer, 1));
        copy = oar_empty_on(NULL, oar_tensor_device(from),
                            oar_tensor_dtype(from), oar_tensor_shape(from));
        if (copy == NULL)
            return oar_last_error()->status;
        kept->buffer.data[kept->buffer.count++] = copy;
        OARI_TRY(oar_tensor_copy(copy, from));
    }
    for (int i = 0; module != NULL && i < oar_module_counters(module); i++)
        OARI_TRY(oari_vec_push(&kept->counter, *oar_module_counter(module, i)));
    return OAR_OK;
}

/* Puts them back, unless keeping them had failed, and frees them. */
static oar_status restore_state(oar_module *module, kept_state *kept, int whole)
{
    oar_status status = OAR_OK;

    for (int64_t i = 0; i < kept->buffer.count; i++) {
        if (whole && status == OAR_OK)
            status = oar_tensor_copy(oar_module_buffer(module, (int)i),
                                     kept->buffer.data[i]);
        oar_tensor_release(kept->buffer.data[i]);
    }
    for (int64_t i = 0; whole && i < kept->counter.count; i++)
        *oar_module_counter(module, (int)i) = kept->counter.data[i];
    oari_vec_free(&kept->buffer);
    oari_vec_free(&kept->counter);
    return status;
}

/* ---- one stage ----------------------------------------------------------- */

static int has_inputs_half(const oar_pipeline *p, int stage)
{
    for (int64_t i = 0; i < oar_schedule_actions(p->schedule, p->rank); i++) {
        oar_action a;
        if (oar_schedule_action(p->schedule, p->rank, i, &a) == OAR_OK &&
            a.stage == stage && a.act == OAR_ACT_I)
            return 1;
    }
    return 0;
}

static void note_most(uint64_t *most, uint64_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

/* Runs I from the loss, or from all outputs. What is recomputed would compute
 * gradients of parameters then, and FSDP take an I without W for a failure:
 * these count as after F. */
static oar_status try_inputs_half(const oari_pipe_stage *s, oari_flight *f)
{
    oar_tensor *root[OARI_TENSORS], *seed[OARI_TENSORS];
    oar_status status = OAR_OK;
    int roots = 0;

    if (s->given.recompute || oari_stage_is_sharded(s))
        return OAR_OK;
    for (int o = 0; o < (s->last ? 1 : s->given.outputs); o++) {
        oar_tensor *t = s->last ? f->loss : f->output[o];
        if (!oar_tensor_requires_grad(t))
            continue;
        root[roots] = t;
        seed[roots] = oari_zeros_on(oar_tensor_device(t), NULL,
                                    oar_tensor_dtype(t), oar_tensor_shape(t));
        if (seed[roots++] == NULL)
            status = oar_last_error()->status;
    }
    if (status == OAR_OK && roots > 0)
        status = oar_backward_inputs(f->tape, roots, root, seed);
    while (roots > 0)
        oar_tensor_release(seed[--roots]);
    return status;
}

/* An input has the place of its gradient that it will have. */
static oar_status mark_input(const oari_pipe_stage *s, oari_flight *f, int i)
{
    oar_tensor *x = oar_tape_input(f->tape, f->input[i]);
    oar_tensor *home = oar_view_of(f->tape, s->grad[0].grad[i], 0,
                                   oar_tensor_dtype(x), oar_tensor_shape(x));

    f->input[i] = x;
    return x != NULL && home != NULL ? oar_tensor_bind_grad(x, home)
                                     : oar_last_error()->status;
}

static oar_status run_recorded(const oar_pipeline *p, oari_pipe_stage *s,
                               oari_flight *f, int micro)
{
    uint64_t came = oari_input_bytes(p, s, micro);

    OARI_TRY(oari_make_zeros(p, s, micro, f->tape, f->input));
    came -= oar_tape_bytes(f->tape); /* its inputs are on no tape in a step */
    for (int i = 0; s->index > 0 && i < s->given.inputs; i++)
        if (oari_is_float(oar_tensor_dtype(f->input[i])))
            OARI_TRY(mark_input(s, f, i));
    OARI_TRY(oari_call_stage(s, oari_stage_inner(s), f->tape, -1, f->input,
                             f->output));
    if (s->last)
        OARI_TRY(oari_call_loss(p, f, micro));
    note_most(&s->held, oar_tape_bytes(f->tape) + came);
    if (!has_inputs_half(p, s->index))
        return OAR_OK;
    OARI_TRY(try_inputs_half(s, f));
    note_most(&s->half, oar_tape_bytes(f->tape) + came);
    return OAR_OK;
}

static oar_status try_stage(const oar_pipeline *p, oari_pipe_stage *s,
                            int micro)
{
    kept_state kept = { { NULL, 0, 0 }, { NULL, 0, 0 } };
    oari_flight f = { 0 };
    oar_status status, restored;
    oar_error why;

    OARI_TRY(oar_tape_create(&f.tape));
    oar_tape_record(f.tape, 1);
    status = keep_state(s->given.module, &kept);
    if (status == OAR_OK) {
        status = run_recorded(p, s, &f, micro);
        why = *oar_last_error();
        restored = restore_state(s->given.module, &kept, 1);
        status = status != OAR_OK ? oari_fail_with(&why) : restored;
    } else {
        restore_state(s->given.module, &kept, 0);
    }
    oar_tape_destroy(f.tape);
    return status;
}

/* ---- all ----------------------------------------------------------------- */

static oar_status try_stages(oar_pipeline *p)
{
    for (int m = 0, next = 0; m < p->micro; m++) {
        if (p->class_of[m] != next)
            continue;
        next++;
        for (int i = 0; i < p->stages; i++)
            OARI_TRY(try_stage(p, &p->stage[i], m));
    }
    return OAR_OK;
}

oar_status oari_check_memory(oar_pipeline *p)
{
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule_cost cost;

    OARI_TRY(oari_agree_on_status(p->group, try_stages(p), "pipeline_step"));
    OARI_TRY(oari_gather_costs(p, &cost));
    OARI_TRY(oar_schedule_check(p->schedule, &cost, &report));
    if (report.most_bytes <= p->opts.most_bytes)
        return OAR_OK;
    return oari_about(
        report.most_rank,
        oari_fail(OAR_E_ARG,
                  "pipeline_step: rank %d needs %llu bytes for what is in "
                  "flight, and %llu are allowed (most_bytes): smaller or more "
                  "micro-batches, recomputation or another schedule need less",
                  report.most_rank, (unsigned long long)report.most_bytes,
                  (unsigned long long)p->opts.most_bytes));
}
