/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/pipeline/pipeline.h: the inside of a pipeline.
 *
 *   pipeline.c           making and freeing one
 *   pipeline_wiring.c    which output goes to which stage
 *   pipeline_flights.c   what a micro-batch in flight has
 *   pipeline_shapes.c    shapes between stages, by a run with zeros
 *   pipeline_heads.c     or by heads that are sent before tensors
 *   pipeline_memory.c    the limit of memory, before anything runs
 *   pipeline_messages.c  posting and waiting
 *   pipeline_run.c       one action, and the row
 *   pipeline_step.c      a step: batch, agreement, result
 *   pipeline_reduce.c    stages that DDP or FSDP wraps
 *   pipeline_tie.c       parameters that stages have in common
 *   pipeline_stats.c     times and memory of the last step
 *   pipeline_trace.c     the last step over time: costs of messages, pictures
 *
 * A rank never waits for a send that its receiver may not have a receive for
 * yet: the schedule's judge counts only waits for data. */
#ifndef OARI_PARALLEL_PIPELINE_PIPELINE_H
#define OARI_PARALLEL_PIPELINE_PIPELINE_H

#include <oarsong/collective.h>
#include <oarsong/p2p.h>
#include <oarsong/pipeline.h>
#include <oarsong/tape.h>

#include "base/vec.h"

enum {
    OARI_TENSORS = OAR_STAGE_TENSORS,
    OARI_COMPUTATIONS = OAR_ACT_W + 1 /* F, B, I, W */
};

/* Dtype and shape of a tensor between stages. */
typedef struct oari_flow_spec {
    oar_dtype dtype;
    oar_shape shape;
} oari_flow_spec;

/* What all ranks know of a stage. from_stage is -1 for the batch's inputs. */
typedef struct oari_stage_wiring {
    int32_t inputs, outputs;
    int32_t from_stage[OARI_TENSORS], from_output[OARI_TENSORS];
} oari_stage_wiring;

/* One stage's use of one output of another. */
typedef struct oari_stage_edge {
    int from, output, to, input;
} oari_stage_edge;

/* What comes back for an output from one of the stages that use it. */
typedef struct oari_edge_back {
    oar_storage *grad; /* of another rank's */
    oar_work *sent, *came;
} oari_edge_back;

/* The gradients of a stage's inputs for a micro-batch, from its B or I until
 * the stages they go to have them. */
typedef struct oari_input_grads {
    oar_storage *grad[OARI_TENSORS];
    oar_work *sent[OARI_TENSORS];
} oari_input_grads;

/* Dtype and shape of a tensor on its way, where they are not known before. */
typedef struct oari_flow_head {
    uint32_t magic, dtype, ndim, zero;
    int64_t dim[OAR_MAX_DIMS];
} oari_flow_head;

/* One that is sent or received, in memory of its own for each micro-batch. */
typedef struct oari_head_message {
    oari_flow_head head;
    oar_work *work;
} oari_head_message;

/* What comes from other ranks for a stage's F. */
typedef struct oari_stage_inputs {
    oar_storage *in[OARI_TENSORS];
    oar_work *came[OARI_TENSORS];
} oari_stage_inputs;

/* A micro-batch in flight in a stage: from F to B or W. */
typedef struct oari_flight {
    oar_tape *tape;
    oar_tensor *input[OARI_TENSORS], *output[OARI_TENSORS]; /* the tape's */
    oar_tensor *loss, *seed; /* the loss is the tape's */
    oari_edge_back *back;    /* for each edge out of the stage */
    int micro;               /* whose, while it has a tape */
    int halved;              /* its I has run, and has left a W to do */
} oari_flight;

/* A stage of this rank. */
typedef struct oari_pipe_stage {
    oar_stage given;
    int index, last;
    int edges; /* out of it, the latest stage first: so one process adds up */
    oari_stage_edge *edge;
    int *turn;     /* of each micro-batch: how many have their F before its */
    int *micro_at; /* of each turn */
    int flights, arrivals, grads; /* how many of each there are at once */
    oari_flight *flight;
    oari_stage_inputs *arrival;
    oari_input_grads *grad;
    oari_head_message
        *head_out;              /* [edge][micro-batch], if shapes are dynamic */
    oari_head_message *head_in; /* [input][micro-batch] */
    int seen;                   /* the next line is filled */
    oari_flow_spec first[OARI_TENSORS]; /* the first outputs of all */
    int warned;                         /* of an input without a gradient */
    int64_t last_backward; /* where in the row; REDUCE_GRAD comes instead */
    int local;             /* a wrapper does not reduce at the moment */
    int reducing;          /* DDP's reductions are under way */
    double time[OARI_COMPUTATIONS]; /* of the last step, all micro-batches */
    int runs[OARI_COMPUTATIONS];
    uint64_t held, half; /* most bytes of a tape after F, after I */
} oari_pipe_stage;

/* A tensor that is sent in a forward without backward, until it has arrived. */
typedef struct oari_kept_output {
    oar_tensor *tensor;
    oar_work *sent;
} oari_kept_output;

/* A parameter that this rank has in common with others. */
typedef struct oari_tie {
    oar_group *group; /* the holders */
    oar_tensor *param;
    oar_tensor *before; /* its gradient before the step, if it had one */
    oar_tensor *home;   /* of a gradient that no backward has made */
    int had;
} oari_tie;

/* When an action had what it needs, when it had computed, and when it had also
 * posted what it makes possible (ns of this host). 0: it did not run. */
typedef struct oari_action_time {
    int64_t ready, end, over;
} oari_action_time;

/* What each rank tells the others before a step. */
typedef struct oari_step_told {
    int64_t status, training;
    uint64_t signature;        /* of its inputs, where stage 0 is */
    int64_t rows, target_rows; /* -1: it has none */
} oari_step_told;

struct oar_pipeline {
    oar_group *group; /* a duplicate */
    oar_schedule *schedule;
    oar_pipeline_opts opts;
    int rank, ranks, total, micro; /* total: stages of all ranks */
    int forward_only;
    int stages;
    oari_pipe_stage *stage;    /* in ascending order */
    oari_stage_wiring *wiring; /* of all stages */
    int over;                  /* a step has failed */
    uint64_t steps;

    /* shapes: of each micro-batch a class, by its number of rows */
    uint64_t signature; /* of the inputs that they were found for; 0: none */
    int64_t *rows, *first_row;
    int *class_of;
    int classes;
    oari_flow_spec *spec; /* [class][stage][output] */

    /* the step under way */
    oari_step_told *told; /* by each rank */
    const oar_pipeline_batch *batch;
    int training;
    double weights; /* sum */
    double *weight, *loss;
    double step_s, busy_s, wait_s;
    double row_s;      /* of the longest row */
    double all_busy_s; /* of all ranks */
    double simulated_s, simulated_bubble;
    int64_t begun;          /* ns */
    oari_action_time *at;   /* by place in the row */
    double *sums;           /* room for what `finish` adds up */
    uint64_t message_bytes; /* posted, or to be sent */
    uint64_t sent_bytes;
    int messages, in_flight;
    int measuring;   /* memory, too */
    uint64_t judged; /* the signature for which memory is enough; 0: none */
    uint64_t most_bytes;
    double *cost; /* for the caller: rows of all stages, then columns */
    uint64_t *cost_bytes;
    OARI_VEC(oari_tie) tie;
    OARI_VEC(oari_kept_output) kept;
    oar_tensor **out;   /* of the last stage, without backward: in `kept` */
    oar_device device;  /* of this rank's stages, and of what is received */
    oar_tensor *losses; /* on a GPU: of the micro-batches, read at the end */
    OARI_VEC(oar_tape *) idle; /* tapes */
    int tapes;
};

static inline int oari_is_float(oar_dtype dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
           dtype == OAR_BF16;
}

static inline size_t oari_spec_bytes(const oari_flow_spec *spec)
{
    size_t bytes = oar_dtype_size(spec->dtype);

    for (int d = 0; d < spec->shape.ndim; d++)
        bytes *= (size_t)spec->shape.dim[d];
    return bytes;
}

/* Returns this rank's stage of that index; NULL if it is another rank's. */
oari_pipe_stage *oari_own_stage(const oar_pipeline *p, int index);
/* Returns what a stage gives out for a micro-batch. */
oari_flow_spec *oari_spec_at(const oar_pipeline *p, int micro, int stage,
                             int output);
/* The same of what a stage's input is. */
oari_flow_spec *oari_input_spec(const oar_pipeline *p, int micro, int stage,
                                int input);
static inline oari_flight *oari_flight_of(const oari_pipe_stage *s, int micro)
{
    return &s->flight[s->turn[micro] % s->flights];
}

static inline oari_stage_inputs *oari_inputs_of(const oari_pipe_stage *s,
                                                int micro)
{
    return &s->arrival[s->turn[micro] % s->arrivals];
}

static inline oari_input_grads *oari_grads_of(const oari_pipe_stage *s,
                                              int micro)
{
    return &s->grad[s->turn[micro] % s->grads];
}

/* Puts stage, action and micro-batch before the last error's text, if it is the
 * error of this status; an abort by another rank, which names its own, stays as
 * it is. Returns the status. */
oar_status oari_pipeline_failed(const oar_action *action, oar_status status);
/* Ends the pipeline on all ranks, for a failure that they do not know of: the
 * last error, which is returned. */
oar_status oari_pipeline_give_up(oar_pipeline *p);
/* Returns why a function of the caller's gave NULL. */
oar_status oari_why_nothing(void);
/* Writes an action in the notation of schedules: "1SEND_F3". */
void oari_name_action(const oar_action *action, char *text, size_t bytes);

/* Mixes a number into a hash. */
static inline uint64_t oari_pipeline_hash(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* ---- pipeline_wiring.c --------------------------------------------------- */

/* Checks this rank's stages against the schedule, and copies them. */
oar_status oari_take_stages(oar_pipeline *p, int stages,
                            const oar_stage *stage);
/* Tells all ranks of this rank's stages, checks every input and lists the
 * edges. Fails on all ranks alike. */
oar_status oari_connect_stages(oar_pipeline *p);

/* ---- pipeline_flights.c -------------------------------------------------- */

/* Finds out how many micro-batches each stage has in flight, and makes what
 * they need, still without storage. */
oar_status oari_flights_make(oar_pipeline *p);
/* Gives them the storage that the shapes need. */
oar_status oari_flights_fill(oar_pipeline *p);
void oari_flights_free(oari_pipe_stage *s);
/* Gives up all handles and results, after a step or its failure. */
void oari_flights_reset(oar_pipeline *p);
/* Makes *storage one of at least so many bytes; shared: in memory that other
 * processes can read, if it is large. */
oar_status oari_make_room(oar_device device, oar_storage **storage,
                          size_t bytes, int shared);

/* Tapes go from one micro-batch to the next, of any stage: so a rank has as
 * many as it ever has micro-batches in flight. */
oar_status oari_tape_take(oar_pipeline *p, oari_flight *f);
void oari_tape_give(oar_pipeline *p, oari_flight *f);

/* ---- pipeline_shapes.c --------------------------------------------------- */

/* Tells all ranks the rows of micro-batches and, if shapes are not dynamic,
 * finds the shapes of everything between stages. */
oar_status oari_find_shapes(oar_pipeline *p);

/* Makes zeros, on the cpu lazy where that is switched on. */
oar_tensor *oari_zeros_on(oar_device device, oar_tape *tape, oar_dtype dtype,
                          oar_shape shape);

/* Makes zeros for the inputs of a stage. Stage 0 has the batch's, cut to the
 * rows. */
oar_status oari_make_zeros(const oar_pipeline *p, const oari_pipe_stage *s,
                           int micro, oar_tape *tape, oar_tensor **in);

/* ---- pipeline_memory.c --------------------------------------------------- */

/* Fails on all ranks if one needs more than is allowed: OAR_E_ARG. What stages
 * hold is found out by a forward, and I, on zeros. */
oar_status oari_check_memory(oar_pipeline *p);

/* ---- pipeline_heads.c ---------------------------------------------------- */

/* Reads a head that came from another rank. OAR_E_DATA: it is none. */
oar_status oari_head_read(const oari_flow_head *head, oari_flow_spec *spec);
oar_status oari_heads_make(const oar_pipeline *p, oari_pipe_stage *s);
/* Posts the receives of all heads of a step. */
oar_status oari_receive_heads(oar_pipeline *p);
/* Waits for the heads of the inputs of a micro-batch, makes room for them and
 * for their gradients, and posts their receives. */
oar_status oari_receive_by_heads(oar_pipeline *p, oari_pipe_stage *s,
                                 int micro);
/* Notes the shapes of outputs, whose dtypes and numbers of dims must be those
 * of the first micro-batch of all. */
oar_status oari_note_outputs(oar_pipeline *p, oari_pipe_stage *s,
                             const oari_flight *f, int micro);
/* Sends the head of what goes over an edge. */
oar_status oari_send_head(oar_pipeline *p, oari_pipe_stage *s,
                          const oar_action *action, int edge, int peer);
/* Waits until all heads of a step have been taken. */
oar_status oari_heads_finish(oar_pipeline *p);

/* ---- pipeline_messages.c ------------------------------------------------- */

enum { OARI_TAG_FORWARD, OARI_TAG_BACKWARD, OARI_TAG_HEAD, OARI_TAGS };

/* Returns the tag of a message, which belongs to an input of a stage. */
static inline int64_t oari_tag_of(const oar_pipeline *p, int stage, int input,
                                  int what, int micro)
{
    return (((int64_t)stage * OARI_TENSORS + input) * OARI_TAGS + what) *
               p->micro +
           micro;
}

/* Posts the receives of a micro-batch: of one of its inputs, of all, and of the
 * gradients of its outputs. */
oar_status oari_receive_input(oar_pipeline *p, oari_pipe_stage *s, int micro,
                              int input, int peer);
oar_status oari_receive_inputs(oar_pipeline *p, oari_pipe_stage *s, int micro);
oar_status oari_receive_gradients(oar_pipeline *p, oari_pipe_stage *s,
                                  int micro);
/* Posts its sends, by action: SEND_F or SEND_B. neighbours: those between
 * stages that follow each other; else all others, which no schedule has. */
oar_status oari_post_sends(oar_pipeline *p, const oar_action *action,
                           int neighbours);
/* Waits for one, if it is posted, and gives up its handle. On a GPU the current
 * stream waits, not the host. */
oar_status oari_wait_for_message(const oar_pipeline *p, oar_work **work);
/* The same for one in memory of the host. */
oar_status oari_wait_for_head(oar_work **work);

/* ---- pipeline_run.c ------------------------------------------------------ */

/* Calls the stage's forward: its function or, if it has one, a module: its own
 * or what that wraps. */
oar_status oari_call_stage(const oari_pipe_stage *s, oar_module *module,
                           oar_tape *tape, int micro, oar_tensor *const *in,
                           oar_tensor **out);
/* Calls the loss function, for the outputs of a flight. */
oar_status oari_call_loss(const oar_pipeline *p, oari_flight *f, int micro);
/* Runs the row. */
oar_status oari_run_row(oar_pipeline *p);

/* ---- pipeline_reduce.c --------------------------------------------------- */

/* Checks that a stage can run with its wrapper. */
oar_status oari_stage_check_wrapper(const oari_pipe_stage *s);
/* From here on wrapped stages do not reduce. */
oar_status oari_stages_begin(oar_pipeline *p);
/* Reduces what a stage has added up; DDP only begins to. */
oar_status oari_stage_reduce(oari_pipe_stage *s);
/* Waits for what has begun. */
oar_status oari_stages_finish(oar_pipeline *p);
/* Ends the groups of wrapped stages, after a failure. */
void oari_stages_give_up(oar_pipeline *p, const oar_error *why);
/* Makes a stage that FSDP wraps whole, or spreads it again. */
oar_status oari_stage_unshard(oari_pipe_stage *s, int whole);
/* Returns whether FSDP wraps a stage. */
int oari_stage_is_sharded(const oari_pipe_stage *s);
/* Returns the module of a stage, or what DDP wraps. */
oar_module *oari_stage_inner(const oari_pipe_stage *s);

/* ---- pipeline_tie.c ------------------------------------------------------ */

/* Puts away the sums that earlier steps have left. */
oar_status oari_ties_begin(oar_pipeline *p);
oar_status oari_ties_sum(oar_pipeline *p);
void oari_ties_free(oar_pipeline *p);

/* ---- pipeline_stats.c ---------------------------------------------------- */

void oari_stats_begin(oar_pipeline *p);
/* Notes an action that computes: when it began to wait, and its times. */
void oari_stats_note(oar_pipeline *p, oari_pipe_stage *s,
                     const oar_action *action, int64_t begun,
                     const oari_action_time *at);
/* Counts the memory of messages, before and after an action. */
void oari_stats_before(oar_pipeline *p, const oar_action *action);
void oari_stats_after(oar_pipeline *p, const oar_action *action);
/* Returns what a stage's inputs from other ranks have in a micro-batch. */
uint64_t oari_input_bytes(const oar_pipeline *p, const oari_pipe_stage *s,
                          int micro);

/* Gives all ranks what the actions of all stages took and hold. */
oar_status oari_gather_costs(oar_pipeline *p, oar_schedule_cost *cost);

/* ---- pipeline_trace.c ---------------------------------------------------- */

/* Finds what a message between ranks takes, and what the step would have taken
 * if messages did take that, and nothing else were lost. All ranks. */
oar_status oari_trace_cost(oar_pipeline *p, double *hop);

#endif
