/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_step: a batch through the pipeline. Ranks exchange what they were
 * given before anything runs, and how it went afterwards. */
#include <math.h>
#include <string.h>

#include "base/call_site.h"
#include "base/clock.h"
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/reducer/agreement.h"

#include <oarsong/device.h>
#include <oarsong/ops.h>

/* ---- what this rank was given -------------------------------------------- */

static int has_stage(const oar_pipeline *p, int index)
{
    return oar_schedule_rank_of(p->schedule, index) == p->rank;
}

/* Checks tensors that are cut along dim 0, and gives their rows; -1: none. */
static oar_status check_tensors(const char *what, int count,
                                oar_tensor *const *tensor, int64_t *rows)
{
    *rows = -1;
    if (count < 0 || count > OARI_TENSORS || (count > 0 && tensor == NULL))
        return oari_fail(OAR_E_ARG,
                         "pipeline_step: %d %ss: 0 to %d, in an array", count,
                         what, OARI_TENSORS);
    for (int i = 0; i < count; i++) {
        oar_shape shape = oar_tensor_shape(tensor[i]);
        if (tensor[i] == NULL)
            return oari_fail(OAR_E_ARG, "pipeline_step: %s %d is NULL", what,
                             i);
        if (shape.ndim == 0)
            return oari_fail(OAR_E_SHAPE,
                             "pipeline_step: %s %d is a single number, which "
                             "has no rows to cut into micro-batches",
                             what, i);
        if (i > 0 && shape.dim[0] != *rows)
            return oari_fail(OAR_E_SHAPE,
                             "pipeline_step: %s %d has %lld rows, and those "
                             "before it have %lld",
                             what, i, (long long)shape.dim[0],
                             (long long)*rows);
        *rows = shape.dim[0];
    }
    return OAR_OK;
}

/* The same for tensors of each micro-batch. */
static oar_status check_apart(const oar_pipeline *p,
                              const oar_pipeline_batch *b, const char *what,
                              int count, oar_tensor *const *tensor,
                              int64_t *rows)
{
    *rows = -1;
    if (!p->opts.dynamic || b->rows != NULL)
        return oari_fail(OAR_E_ARG,
                         p->opts.dynamic
                             ? "pipeline_step: rows for micro-batches that "
                               "have tensors of their own"
                             : "pipeline_step: micro-batches have tensors of "
                               "their own: make the pipeline dynamic");
    if (count < 0 || count > OARI_TENSORS || (count > 0 && tensor == NULL))
        return oari_fail(OAR_E_ARG,
                         "pipeline_step: %d %ss: 0 to %d, in an array", count,
                         what, OARI_TENSORS);
    for (int k = 0; k < count * p->micro; k++) {
        oar_shape shape = oar_tensor_shape(tensor[k]);
        if (tensor[k] == NULL || shape.ndim == 0)
            return oari_fail(tensor[k] == NULL ? OAR_E_ARG : OAR_E_SHAPE,
                             "pipeline_step: %s %d of micro-batch %d is %s",
                             what, k / p->micro, k % p->micro,
                             tensor[k] == NULL ? "NULL" : "a single number");
        if (k < p->micro)
            *rows = (k == 0 ? 0 : *rows) + shape.dim[0];
    }
    return OAR_OK;
}

static int64_t rows_of(const oar_pipeline *p, const oar_pipeline_batch *b,
                       int64_t rows, int micro)
{
    if (b->apart)
        return oar_tensor_shape(b->input[micro]).dim[0];
    if (b->rows != NULL)
        return b->rows[micro];
    return rows / p->micro + (micro < rows % p->micro);
}

static oar_status check_inputs(const oar_pipeline *p,
                               const oar_pipeline_batch *b, int64_t *rows)
{
    int64_t sum = 0;

    OARI_TRY(b->apart ? check_apart(p, b, "input", b->inputs, b->input, rows)
                      : check_tensors("input", b->inputs, b->input, rows));
    if (!has_stage(p, 0)) {
        if (b->inputs > 0)
            return oari_fail(OAR_E_ARG,
                             "pipeline_step: rank %d has inputs, and stage 0 "
                             "is rank %d's",
                             p->rank, oar_schedule_rank_of(p->schedule, 0));
        return OAR_OK;
    }
    if (b->inputs != p->stage[0].given.inputs)
        return oari_fail(OAR_E_ARG,
                         "pipeline_step: %d inputs for stage 0, which has %d",
                         b->inputs, p->stage[0].given.inputs);
    if (b->rows == NULL && !b->apart && *rows < p->micro)
        return oari_fail(OAR_E_ARG,
                         "pipeline_step: %lld rows for %d micro-batches: at "
                         "least one for each",
                         (long long)*rows, p->micro);
    for (int m = 0; m < p->micro; m++) {
        int64_t n = rows_of(p, b, *rows, m);
        if (n < 1)
            return oari_fail(OAR_E_ARG,
                             "pipeline_step: %lld rows for micro-batch %d: at "
                             "least one",
                             (long long)n, m);
        sum += n;
    }
    if (sum != *rows)
        return oari_fail(OAR_E_ARG,
                         "pipeline_step: micro-batches of %lld rows, and "
                         "inputs of %lld",
                         (long long)sum, (long long)*rows);
    return OAR_OK;
}

static oar_status check_targets(const oar_pipeline *p,
                                const oar_pipeline_batch *b, int64_t *rows)
{
    double sum = 0;

    if (b->apart) {
        OARI_TRY(check_apart(p, b, "target", b->targets, b->target, rows));
        *rows = -1; /* what they are is the loss function's matter */
    } else {
        OARI_TRY(check_tensors("target", b->targets, b->target, rows));
    }
    if (!has_stage(p, p->total - 1)) {
        if (b->targets > 0)
            return oari_fail(
                OAR_E_ARG,
                "pipeline_step: rank %d has targets, and the last stage is "
                "rank %d's",
                p->rank, oar_schedule_rank_of(p->schedule, p->total - 1));
        return OAR_OK;
    }
    if (!isfinite(b->scale))
        return oari_fail(OAR_E_ARG, "pipeline_step: a scale of %g", b->scale);
    for (int m = 0; b->weight != NULL && m < p->micro; m++) {
        if (!isfinite(b->weight[m]) || b->weight[m] < 0)
            return oari_fail(OAR_E_ARG,
                             "pipeline_step: a weight of %g for micro-batch %d",
                             b->weight[m], m);
        sum += b->weight[m];
    }
    if (b->weight != NULL && sum == 0)
        return oari_fail(OAR_E_ARG, "pipeline_step: all weights are 0");
    return OAR_OK;
}

/* ---- what all ranks were given ------------------------------------------- */

/* Returns a number for everything that shapes depend on, if they are not
 * dynamic, and for the rows; never 0. */
static uint64_t sign_inputs(const oar_pipeline *p, const oar_pipeline_batch *b,
                            int64_t rows)
{
    uint64_t hash = 1;

    for (int i = 0; !p->opts.dynamic && i < b->inputs; i++) {
        oar_shape shape = oar_tensor_shape(b->input[i]);
        hash =
            oari_pipeline_hash(hash, (uint64_t)oar_tensor_dtype(b->input[i]));
        hash = oari_pipeline_hash(hash, (uint64_t)shape.ndim);
        for (int d = 0; d < shape.ndim; d++)
            hash = oari_pipeline_hash(hash, (uint64_t)shape.dim[d]);
    }
    for (int m = 0; m < p->micro; m++)
        hash = oari_pipeline_hash(hash, (uint64_t)rows_of(p, b, rows, m));
    return hash | 1;
}

/* Compares what all ranks have told. */
static oar_status compare_told(const oar_pipeline *p)
{
    const oari_step_told *mine = &p->told[p->rank];
    const oari_step_told *first =
        &p->told[oar_schedule_rank_of(p->schedule, 0)];
    const oari_step_told *last =
        &p->told[oar_schedule_rank_of(p->schedule, p->total - 1)];

    for (int r = 0; r < p->ranks; r++)
        if (p->told[r].status != OAR_OK)
            return oari_about(
                r, oari_fail((oar_status)p->told[r].status,
                             "pipeline_step: rank %d cannot begin: %s", r,
                             oar_status_text((oar_status)p->told[r].status)));
    for (int r = 0; r < p->ranks; r++)
        if (p->told[r].training != mine->training)
            return oari_about(r, oari_fail(OAR_E_MISMATCH,
                                           "rank %d is in pipeline_%s, and "
                                           "rank %d in pipeline_%s",
                                           p->rank,
                                           mine->training ? "step" : "eval", r,
                                           mine->training ? "eval" : "step"));
    if (last->target_rows >= 0 && last->target_rows != first->rows)
        return oari_fail(OAR_E_SHAPE,
                         "pipeline_step: inputs of %lld rows on rank %d, and "
                         "targets of %lld on rank %d",
                         (long long)first->rows,
                         oar_schedule_rank_of(p->schedule, 0),
                         (long long)last->target_rows,
                         oar_schedule_rank_of(p->schedule, p->total - 1));
    return OAR_OK;
}

/* Fails on all ranks if one cannot begin, and gives the inputs' signature. */
static oar_status exchange(oar_pipeline *p, const oar_pipeline_batch *b,
                           oar_status status, uint64_t *signature)
{
    oari_step_told mine = { .status = (int64_t)status,
                            .training = p->training,
                            .rows = -1,
                            .target_rows = -1 };
    oar_error why;

    if (status == OAR_OK)
        status = check_inputs(p, b, &mine.rows);
    if (status == OAR_OK)
        status = check_targets(p, b, &mine.target_rows);
    why = *oar_last_error();
    mine.status = (int64_t)status;
    if (status == OAR_OK && has_stage(p, 0))
        mine.signature = sign_inputs(p, b, mine.rows);
    OARI_TRY(oar_all_gather(
        p->group, oar_span_of(&mine, sizeof mine, OAR_U8),
        oar_span_of(p->told, (size_t)p->ranks * sizeof mine, OAR_U8),
        OAR_OPTS(oar_call_opts, .label = "pipeline step"), NULL));
    if (status != OAR_OK)
        return oari_fail_with(&why);
    *signature = p->told[oar_schedule_rank_of(p->schedule, 0)].signature;
    return compare_told(p);
}

/* ---- a step -------------------------------------------------------------- */

/* Shapes and memory for inputs like these. */
static oar_status prepare(oar_pipeline *p, uint64_t signature)
{
    oar_status status;

    if (signature == p->signature)
        return OAR_OK;
    for (int m = 0; has_stage(p, 0) && m < p->micro; m++)
        p->rows[m] = rows_of(p, p->batch, p->told[p->rank].rows, m);
    OARI_TRY(oari_find_shapes(p));
    status = p->opts.dynamic ? OAR_OK : oari_flights_fill(p);
    OARI_TRY(oari_agree_on_status(p->group, status, "pipeline_step"));
    p->signature = signature;
    p->measuring = 1;
    p->most_bytes = 0;
    for (int i = 0; i < p->stages; i++)
        p->stage[i].held = p->stage[i].half = 0;
    return OAR_OK;
}

static void weigh(oar_pipeline *p)
{
    p->weights = 0;
    for (int m = 0; m < p->micro; m++) {
        p->weight[m] = p->batch->weight != NULL ? p->batch->weight[m]
                       : p->opts.equal          ? 1
                                                : (double)p->rows[m];
        p->weights += p->weight[m];
    }
}

/* Everything has been posted by now, and all other rows go on. */
static oar_status wait_for_sends(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++)
        for (int k = 0; k < p->stage[i].grads; k++)
            for (int t = 0; t < OARI_TENSORS; t++)
                OARI_TRY(
                    oari_wait_for_message(p, &p->stage[i].grad[k].sent[t]));
    for (int64_t i = 0; i < p->kept.count; i++)
        OARI_TRY(oari_wait_for_message(p, &p->kept.data[i].sent));
    return oari_heads_finish(p);
}

/* Tells all ranks the loss, and that this one is done. */
static oar_status finish(oar_pipeline *p, oar_pipeline_result *result)
{
    double *sum = p->sums;
    size_t sums = (size_t)p->ranks + 3;

    memset(sum, 0, sums * sizeof *sum);
    sum[2] = p->busy_s;
    sum[3 + p->rank] = (double)(oari_now_ns() - p->begun) * 1e-9;
    OARI_TRY(wait_for_sends(p));
    if (p->training) {
        OARI_TRY(oari_stages_finish(p));
        OARI_TRY(oari_ties_sum(p));
    }
    if (has_stage(p, p->total - 1)) {
        if (p->losses != NULL) /* the only wait for the GPU */
            OARI_TRY(oar_tensor_read(p->losses, OAR_F64, p->loss));
        for (int m = 0; m < p->micro; m++)
            sum[0] += p->weight[m] != 0 ? p->weight[m] * p->loss[m] : 0;
        sum[0] /= p->weights;
        sum[1] = p->weights;
    }
    OARI_TRY(oar_all_reduce(p->group, oar_span_of(sum, sums, OAR_F64), OAR_SUM,
                            OAR_OPTS(oar_call_opts, .label = "pipeline done"),
                            NULL));
    result->loss = sum[0];
    result->weight = sum[1];
    p->all_busy_s = sum[2];
    p->row_s = 0;
    for (int r = 0; r < p->ranks; r++)
        p->row_s = sum[3 + r] > p->row_s ? sum[3 + r] : p->row_s;
    result->losses = has_stage(p, p->total - 1) ? p->loss : NULL;
    return OAR_OK;
}

static oar_status begin_training(oar_pipeline *p)
{
    OARI_TRY(oari_ties_begin(p));
    return oari_stages_begin(p);
}

/* Messages and the loss go through the host: a graph cannot have them. */
static oar_status check_not_recorded(const oar_pipeline *p)
{
    int done;

    if (p->device.kind == OAR_CPU ||
        oar_stream_query(p->device, oar_stream_current(p->device), &done) ==
            OAR_OK)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED,
                     "pipeline_step: a step of a pipeline cannot be recorded "
                     "for a replay, or the GPU has failed: %.200s",
                     oar_last_error_text());
}

static oar_status run_batch(oar_pipeline *p, const oar_pipeline_batch *batch,
                            oar_status status, oar_pipeline_result *result)
{
    uint64_t signature = 0;

    p->batch = batch;
    oari_stats_begin(p);
    if (status == OAR_OK)
        status = check_not_recorded(p);
    status = exchange(p, batch, status, &signature);
    if (status == OAR_OK)
        status = prepare(p, signature);
    if (status == OAR_OK && p->training && p->opts.most_bytes > 0 &&
        p->judged != signature) {
        status = oari_check_memory(p);
        p->judged = status == OAR_OK ? signature : 0;
    }
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        int lost = oar_group_fault(p->group, NULL) != OAR_OK;
        status = oari_fail_with(&why);
        return lost ? oari_pipeline_give_up(p) : status;
    }
    p->begun = oari_now_ns();
    weigh(p);
    if ((p->training && begin_training(p) != OAR_OK) ||
        oari_run_row(p) != OAR_OK || finish(p, result) != OAR_OK)
        return oari_pipeline_give_up(p);
    p->step_s = (double)(oari_now_ns() - p->begun) * 1e-9;
    p->measuring = p->opts.dynamic;
    p->steps++;
    return OAR_OK;
}

/* What a pipeline must be for a step or an evaluation. */
static oar_status check_pipeline(const oar_pipeline *p, const char *call)
{
    if (p == NULL)
        return oari_fail(OAR_E_ARG, "%s without a pipeline", call);
    if (p->over)
        return oari_fail(OAR_E_STATE,
                         "%s after a step that failed: make another pipeline",
                         call);
    return OAR_OK;
}

oar_status oar_pipeline_step_at(const char *file, int line, oar_pipeline *p,
                                const oar_pipeline_batch *batch,
                                oar_pipeline_result *result)
{
    OARI_CALLED_FROM(file, line);
    oar_pipeline_result made = oar_pipeline_result_init();
    oar_pipeline_batch b;
    oar_status status;

    OARI_TRY(check_pipeline(p, "pipeline_step"));
    if (p->forward_only)
        return oari_fail(OAR_E_ARG, "pipeline_step with a schedule that has no "
                                    "backward: use pipeline_eval");
    status = oari_opts_read(&b, sizeof b, batch);
    p->training = 1;
    OARI_TRY(run_batch(p, &b, status, &made));
    return result == NULL ? OAR_OK
                          : oari_struct_give(result, &made, sizeof made,
                                             "pipeline_result");
}

/* ---- evaluation ---------------------------------------------------------- */

/* Puts the outputs of all micro-batches together. */
static oar_status join_outputs(const oar_pipeline *p, oar_tensor **output)
{
    int outputs = p->wiring[p->total - 1].outputs;
    oar_tensor *whole[OARI_TENSORS];

    for (int o = 0; o < outputs; o++) {
        whole[o] = oar_cat(NULL, p->micro, p->out + (int64_t)o * p->micro, 0);
        if (whole[o] != NULL)
            continue;
        while (o-- > 0)
            oar_tensor_release(whole[o]);
        return oar_last_error()->status;
    }
    memcpy(output, whole, (size_t)outputs * sizeof *output);
    return OAR_OK;
}

oar_status oar_pipeline_eval_at(const char *file, int line, oar_pipeline *p,
                                const oar_pipeline_batch *batch,
                                oar_pipeline_result *result,
                                oar_tensor **output)
{
    OARI_CALLED_FROM(file, line);
    oar_pipeline_result made = oar_pipeline_result_init();
    oar_pipeline_batch b;
    oar_status status;

    OARI_TRY(check_pipeline(p, "pipeline_eval"));
    status = oari_opts_read(&b, sizeof b, batch);
    p->training = 0;
    OARI_TRY(run_batch(p, &b, status, &made));
    if (output != NULL && has_stage(p, p->total - 1))
        status = join_outputs(p, output);
    oari_flights_reset(p);
    OARI_TRY(status);
    return result == NULL ? OAR_OK
                          : oari_struct_give(result, &made, sizeof made,
                                             "pipeline_result");
}
