/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h: trains a model whose stages are on several ranks, as a schedule
 * says.
 *
 *     oar_schedule_make(OAR_SCHEDULE_1F1B, 4, 16, NULL, &schedule);
 *     oar_stage stage = oar_stage_init();
 *     stage.index = rank;
 *     stage.module = my_part;                    any module, or a function
 *     oar_pipeline_create(group, schedule, 1, &stage,
 *                         OAR_OPTS(oar_pipeline_opts, .loss = my_loss), &pipe);
 *     for (...) {
 *         oar_pipeline_step(pipe, &batch, &result);      gradients are there
 *         oar_optim_step(adam);
 *         oar_optim_zero_grad(adam);
 *     }
 *
 * A step runs this rank's row of the schedule: every micro-batch goes through
 * this rank's stages, forward and backward, on a tape of its own. Gradients are
 * added to what is there. They are those of the mean loss of the batch, bit for
 * bit what one process gets that runs the micro-batches one after the other,
 * if the schedule is `ascending` (schedule.h; all that are made are). The seed
 * of micro-batch m, from which its backward begins, is scale * weight[m] / (sum
 * of weights).
 *
 * All ranks of the group make the same calls in the same order. A step begins
 * with an exchange of a few bytes: what one rank cannot do, or ranks that do
 * not mean the same, fails on all of them before anything runs, and the
 * pipeline goes on. A failure in the middle of a step (of a stage, of memory,
 * of a rank) ends it on all ranks, with an error that names stage, action and
 * micro-batch. That pipeline is over then: its calls are OAR_E_STATE, and
 * gradients are undefined. The group it was made of goes on: make another.
 * The groups over which DDP or FSDP wraps its stages end with it, so that the
 * ranks of other pipelines, which wait for its gradients, fail at once and with
 * the same words: make these again, too.
 *
 * A stage may be a module that DDP or FSDP has wrapped over other ranks, which
 * have the same stages: the columns and rows of a mesh. Its gradients are
 * reduced once, where the schedule has REDUCE_GRAD, else after the stage's last
 * backward. A function whose inside is wrapped takes care of that by itself
 * (oar_ddp_opts.accumulate).
 *
 * Clip gradients and step with a loss scaler over the ranks by parallel.h.
 *
 * Threads: one pipeline by one thread at a time.
 */
#ifndef OARSONG_PIPELINE_H
#define OARSONG_PIPELINE_H

#include <oarsong/group.h>
#include <oarsong/module.h>
#include <oarsong/schedule.h>

OAR_BEGIN_DECLS

typedef struct oar_pipeline oar_pipeline;

/* ---- stages -------------------------------------------------------------- */

enum { OAR_STAGE_TENSORS = 8 }; /* most inputs of a stage, and most outputs */

/* The forward of a stage that is no module. `in` are its inputs, and results
 * go to `out`, as tensors of the tape. micro is the micro-batch; -1 while
 * shapes are found out, with inputs of zeros: then it must not change anything.
 * A failure ends the step. */
typedef oar_status (*oar_stage_fn)(void *arg, oar_tape *tape, int micro,
                                   oar_tensor *const *in, oar_tensor **out);

/* Where an input of a stage comes from: from an output of any stage before it.
 */
typedef struct oar_stage_input {
    int stage, output;
} oar_stage_input;

/* A stage of this rank. */
typedef struct oar_stage {
    size_t size;
    int index;            /* of the stage in the schedule */
    oar_module *module;   /* one tensor in, one out; or: */
    oar_stage_fn forward; /* any function, which sees `arg` */
    void *arg;
    int inputs, outputs;          /* of a function; 0 means 1 */
    const oar_stage_input *input; /* where each input comes from: skip
                                     connections. NULL: input i is output i of
                                     the stage before. Stage 0 has the batch's
                                     inputs */
    int recompute; /* of a module: keep its input only (oar_recompute) */
} oar_stage;
OAR_OPTS_INIT(oar_stage);

/* Returns the loss of a micro-batch, a single number: the mean over its rows
 * (or tokens). `out` are the outputs of the last stage; targets may be 0. NULL,
 * with the last error set, ends the step. */
typedef oar_tensor *(*oar_loss_fn)(void *arg, oar_tape *tape, int micro,
                                   oar_tensor *const *out, int targets,
                                   oar_tensor *const *target);

/* ---- making -------------------------------------------------------------- */

typedef struct oar_pipeline_opts {
    size_t size;
    oar_loss_fn loss; /* where the last stage is; other ranks need none */
    void *loss_arg;
    int equal; /* every micro-batch counts the same; else by its rows, or by
                  the weights of the batch */
    int64_t timeout_ms;  /* of a wait for another rank; 0: the group's */
    int dynamic;         /* shapes are sent with tensors, in a small message
                           before each, and not found out by a run on zeros:
                           for shapes that differ between micro-batches, or at
                           every step, or depend on numbers */
    uint64_t most_bytes; /* OAR_E_ARG, before anything runs, if what is in
                            flight on a rank, with messages, needs more by
                            oar_schedule_check; 0: no limit. Not of a dynamic
                            pipeline. What stages hold is found by running each
                            on zeros, as for shapes but recorded and with
                            modules in the mode they are in, whose buffers and
                            counters are put back; the loss runs, too */
    const oar_device *device; /* where this rank's stages compute, and what is
                            sent to them is received; NULL: where the
                            parameters of its modules are, without any the
                            cpu. On all ranks the cpu, or a GPU */
} oar_pipeline_opts;
OAR_OPTS_INIT(oar_pipeline_opts);

/* Makes a pipeline of the stages that the schedule gives this rank. The
 * schedule is checked first. A group of one runs all stages of a schedule for
 * one rank. Keeps references to the schedule and to modules. Borrows the group,
 * of which a duplicate is used, and what is behind `arg` and `loss_arg`. All
 * ranks call it, and all fail if one does: OAR_E_MISMATCH if their schedules
 * differ; OAR_E_ARG for a schedule that cannot run, a stage that is missing or
 * not this rank's, or an input that no stage gives. */
#define oar_pipeline_create(group, schedule, stages, stage, opts, pipeline) \
    oar_pipeline_create_at(OAR_HERE, group, schedule, stages, stage, opts,  \
                           pipeline)
OAR_API oar_status oar_pipeline_create_at(const char *file, int line,
                                          oar_group *group,
                                          oar_schedule *schedule, int stages,
                                          const oar_stage *stage,
                                          const oar_pipeline_opts *opts,
                                          oar_pipeline **pipeline);
/* Frees it. Never needs a living peer. NULL is fine. */
OAR_API void oar_pipeline_destroy(oar_pipeline *pipeline);

/* ---- running ------------------------------------------------------------- */

/* A batch: inputs on the rank of stage 0, targets and weights on that of the
 * last stage. Tensors are cut along dim 0 into micro-batches of nearly the same
 * number of rows, the first ones larger; or as `rows` says (where stage 0 is);
 * or they are cut already (`apart`). Borrowed for the step. */
typedef struct oar_pipeline_batch {
    size_t size;
    int inputs, targets;
    oar_tensor *const *input;
    oar_tensor *const *target;
    const int64_t *rows;  /* of each micro-batch, at least 1; NULL: see above */
    const double *weight; /* of each micro-batch: its tokens, say; NULL: its
                             rows, or 1 if they are `equal`. With 0 a loss that
                             is no number (the mean of no tokens) is fine */
    double scale;         /* of the loss, for half types (oar_scaler); 0: 1 */
    int apart;            /* of a dynamic pipeline: each micro-batch has tensors
                             of its own, of any shapes; number i of micro-batch
                             m is input[i * micro-batches + m]. The rows of its
                             first input are its rows */
} oar_pipeline_batch;
OAR_OPTS_INIT(oar_pipeline_batch);

typedef struct oar_pipeline_result {
    size_t size;
    double loss;          /* the mean, not scaled, on every rank */
    double weight;        /* the sum of the weights, on every rank */
    const double *losses; /* of each micro-batch, where the last stage is, else
                             NULL. Borrowed until the next step */
} oar_pipeline_result;
OAR_OPTS_INIT(oar_pipeline_result);

/* Runs a batch forward and backward. Returns when this rank's row is done and
 * all ranks have told that theirs is. result may be NULL.
 *
 * Inputs of a new shape are sent through all stages once before, one rank after
 * the other, as zeros, with modules in evaluation mode and nothing recorded:
 * so the shapes between stages are known. What does not fit fails on all ranks,
 * before anything runs, with the stage named. A dynamic pipeline does not do
 * this: there what does not fit is a failure in the middle of the step, and so
 * is an output whose dtype or number of dims is not that of the first step.
 *
 * A tensor of integers between stages is fine: no gradient is sent back. An
 * input that backward leaves without a gradient counts as zeros. */
#define oar_pipeline_step(pipeline, batch, result) \
    oar_pipeline_step_at(OAR_HERE, pipeline, batch, result)
OAR_API oar_status oar_pipeline_step_at(const char *file, int line,
                                        oar_pipeline *pipeline,
                                        const oar_pipeline_batch *batch,
                                        oar_pipeline_result *result);

/* Runs a batch forward only, with nothing recorded; whether modules are in
 * training mode is the caller's matter. Without targets the loss is 0. Where
 * the last stage is, `output`, which may be NULL, has room for its outputs, and
 * gets them with the rows of all micro-batches; the caller owns them.
 * OAR_E_SHAPE there: those of a dynamic pipeline cannot be put together. */
#define oar_pipeline_eval(pipeline, batch, result, output) \
    oar_pipeline_eval_at(OAR_HERE, pipeline, batch, result, output)
OAR_API oar_status oar_pipeline_eval_at(const char *file, int line,
                                        oar_pipeline *pipeline,
                                        const oar_pipeline_batch *batch,
                                        oar_pipeline_result *result,
                                        oar_tensor **output);

/* ---- parameters in common ------------------------------------------------ */

/* Makes the tensors that ranks give under a name one parameter: the first
 * holder's numbers are copied to the others now, and every step leaves the sum
 * of all their gradients in each of them, with the same bits. Ranks that have
 * none give NULL; all ranks call it, with the same name. A tensor that two
 * stages of one rank use needs no tie. After DDP, the sum is one of means.
 * OAR_E_SHAPE: shapes or dtypes differ; OAR_E_UNSUPPORTED: FSDP has the
 * parameter. Clip tied parameters with `uncounted` on all holders but one. */
#define oar_pipeline_tie(pipeline, name, param) \
    oar_pipeline_tie_at(OAR_HERE, pipeline, name, param)
OAR_API oar_status oar_pipeline_tie_at(const char *file, int line,
                                       oar_pipeline *pipeline, const char *name,
                                       oar_tensor *param);

/* ---- figures ------------------------------------------------------------- */

/* Of the last step, or the last oar_pipeline_eval, on this rank. */
typedef struct oar_pipeline_stats {
    size_t size;
    uint64_t steps;        /* so far, evaluations included */
    double step_s;         /* from the exchange before it to that after it */
    double busy_s, wait_s; /* of that, in stages, and for messages */
    double bubble;         /* the part of all ranks' time, to the end of the
                              longest row, in which they were not in stages */
    uint64_t sent_bytes;
    int messages;        /* that it sent */
    int in_flight;       /* most micro-batches, each counted once for each stage
                            it was in */
    uint64_t most_bytes; /* most that micro-batches in flight and messages had
                            in use between two actions, counted as
                            oar_schedule_check does, in the first steps with
                            inputs of a shape */
    double simulated_s, simulated_bubble; /* what the schedule takes, and its
                              bubble, if every action takes what it took, with
                              what it posts, every message `hop`, and nothing
                              else is lost. 0 until
                              oar_pipeline_cost finds it out */
} oar_pipeline_stats;
OAR_OPTS_INIT(oar_pipeline_stats);
OAR_API oar_status oar_pipeline_read_stats(const oar_pipeline *pipeline,
                                           oar_pipeline_stats *stats);

/* Gives what the actions of all stages took in the last step, in seconds and
 * bytes, for oar_schedule_check (which says what time and bubble the step
 * should have had), _best and _draw. A B is given as two equal halves; `half`
 * is 0 for a stage that had no I. hop is the mean time from the end of a send
 * to when another rank, which waited for it, had what was sent. All ranks call
 * it. The arrays are borrowed until the next call, or until the pipeline is
 * destroyed. */
#define oar_pipeline_cost(pipeline, cost) \
    oar_pipeline_cost_at(OAR_HERE, pipeline, cost)
OAR_API oar_status oar_pipeline_cost_at(const char *file, int line,
                                        oar_pipeline *pipeline,
                                        oar_schedule_cost *cost);

/* Draws the last step, or the last oar_pipeline_eval, as it was, by the
 * painters of oar_schedule_draw; in a Chrome trace times are true. Clocks of
 * several hosts are aligned by the step's own messages. All ranks call it, with
 * the same picture; *text is NULL on all but rank 0 (oar_free). OAR_E_STATE
 * before the first step. */
#define oar_pipeline_draw(pipeline, picture, text) \
    oar_pipeline_draw_at(OAR_HERE, pipeline, picture, text)
OAR_API oar_status oar_pipeline_draw_at(const char *file, int line,
                                        oar_pipeline *pipeline,
                                        oar_picture picture, char **text);

OAR_END_DECLS

#endif
