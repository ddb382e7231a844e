/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_gpt: a small GPT whose layers are on several ranks learns the text
 * of a file.
 *     oarsong run -n 4 pipeline_gpt [options] [file]
 *     oarsong run -n 2 pipeline_gpt --checkpoint FOLDER --resume
 *
 * The layers are timed, and dealt to the stages so that the dearest stage is as
 * cheap as it can be. A batch goes through in micro-batches, as the schedule
 * says (--schedule 1f1b, zb_v, ...). A checkpoint has the names of the whole
 * model: any number of ranks goes on from it, with any schedule. Every byte of
 * the file is a token.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

#ifndef OARSONG_SOURCE
#define OARSONG_SOURCE "." /* the build says where the sources are */
#endif
#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { CONTEXT = 32, STRIDE = 8, BATCH = 16, WORDS = 256, WIDTH = 64 };
enum { LAYERS = 6, PARTS = LAYERS + 2, STAGES = 8, PARAMS = 256 };

/* Everything that a run holds. */
typedef struct run {
    const char *file, *schedule, *folder;
    int64_t steps, micro;
    int resume;
    oar_group *world;
    int rank, is_first, is_last; /* has the first, the last stage */
    oar_dataset *data;
    oar_loader *loader;
    oar_schedule *plan;
    int stages; /* of this rank */
    oar_stage stage[STAGES];
    oar_pipeline *pipe;
    oar_optim *adam;
    oar_state *state;
    oar_checkpoint *checkpoint;
    int64_t step;
} run;

static const oar_gpt_opts gpt = { .size = sizeof gpt,
                                  .vocabulary = WORDS,
                                  .context = CONTEXT,
                                  .width = WIDTH,
                                  .layers = LAYERS,
                                  .heads = 4,
                                  .dropout = 0.1 };

/* ---- dealing layers ------------------------------------------------------ */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The least time of three that a part of the model takes. */
static oar_status time_part(int part, double *seconds)
{
    oar_module *module;
    oar_tape *tape;

    TRY(oar_gpt_stage_create(&gpt, part, 1, &module));
    TRY(oar_tape_create(&tape));
    *seconds = 1e9;
    for (int i = 0; i < 3; i++) {
        oar_tensor *x =
            part == 0 ? oar_zeros(tape, OAR_I64, OAR_SHAPE(2, CONTEXT))
                      : oar_zeros(tape, OAR_F32, OAR_SHAPE(2, CONTEXT, WIDTH));
        double begun = now(), took;

        TRY(oar_backward(
            tape,
            oar_mean(tape,
                     oar_forward(tape, module,
                                 part == 0 ? x : oar_tape_input(tape, x)))));
        took = now() - begun;
        *seconds = took < *seconds ? took : *seconds;
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(module);
    return OAR_OK;
}

/* Writes how many parts each stage has: all ranks go by rank 0's times. */
static oar_status deal_parts(run *r, int stages, int *count)
{
    double cost[PARTS] = { 0 };

    for (int i = 0; r->rank == 0 && i < PARTS; i++)
        TRY(time_part(i, &cost[i]));
    TRY(oar_broadcast(r->world, oar_span_of(cost, PARTS, OAR_F64), 0, NULL,
                      NULL));
    return oar_schedule_balance(PARTS, cost, stages, count);
}

/* ---- making -------------------------------------------------------------- */

static oar_status make_schedule(run *r)
{
    for (int kind = 0; kind < OAR_SCHEDULE_KINDS; kind++)
        if (strcmp(oar_schedule_kind_name((oar_schedule_kind)kind),
                   r->schedule) == 0)
            return oar_schedule_make((oar_schedule_kind)kind,
                                     oar_group_size(r->world), (int)r->micro,
                                     NULL, &r->plan);
    return oar_schedule_load(r->schedule, NULL, &r->plan); /* a file */
}

static oar_status make_stages(run *r)
{
    int stages = oar_schedule_stages(r->plan), first = 0;
    int count[PARTS];

    TRY(deal_parts(r, stages, count));
    for (int s = 0; s < stages; first += count[s++]) {
        if (oar_schedule_rank_of(r->plan, s) != r->rank)
            continue;
        r->stage[r->stages] = oar_stage_init();
        r->stage[r->stages].index = s;
        TRY(oar_gpt_stage_create(&gpt, first, count[s],
                                 &r->stage[r->stages].module));
        r->stages++;
    }
    r->is_first = oar_schedule_rank_of(r->plan, 0) == r->rank;
    r->is_last = oar_schedule_rank_of(r->plan, stages - 1) == r->rank;
    return OAR_OK;
}

/* One optimizer over the parameters of all stages of this rank. */
static oar_status make_optim(run *r)
{
    oar_tensor *param[PARAMS];
    int count = 0;

    for (int s = 0; s < r->stages; s++)
        for (int i = 0; i < oar_module_params(r->stage[s].module); i++)
            param[count++] = oar_module_param(r->stage[s].module, i);
    return oar_adamw_create_over(count, param,
                                 OAR_OPTS(oar_adam_opts, .lr = 2e-3), &r->adam);
}

static oar_tensor *loss_of(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *logits, int targets,
                           oar_tensor *const *target)
{
    (void)arg, (void)micro, (void)targets;
    return oar_cross_entropy(tape, logits[0],
                             oar_reshape(tape, target[0], OAR_SHAPE(-1)));
}

/* Only both ends of the pipeline read the text, but all know where they are. */
static oar_status make_data(run *r)
{
    TRY(oar_dataset_tokens(r->file, OAR_U8, CONTEXT, STRIDE, &r->data));
    TRY(oar_loader_create(r->data, OAR_OPTS(oar_loader_opts, .batch = BATCH),
                          &r->loader));
    return oar_loader_start(r->loader, 0, 0);
}

static oar_status open_checkpoint(run *r)
{
    oar_status status;

    if (r->folder == NULL)
        return OAR_OK;
    TRY(oar_state_create(&r->state));
    for (int s = 0; s < r->stages; s++)
        TRY(oar_state_add_module(r->state, r->stage[s].module, NULL));
    TRY(oar_state_add_optim(r->state, r->adam, NULL, NULL));
    TRY(oar_state_add_loader(r->state, "text", r->loader));
    TRY(oar_state_add_i64(r->state, "step", &r->step));
    TRY(oar_checkpoint_open(r->world, r->folder, NULL, &r->checkpoint));
    if (!r->resume)
        return OAR_OK;
    status = oar_checkpoint_load(r->checkpoint, r->state, OAR_NEWEST, NULL);
    return status == OAR_E_NOT_FOUND ? OAR_OK : status; /* a fresh start */
}

/* ---- training ------------------------------------------------------------ */

static oar_status train_step(run *r, double *loss)
{
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_tensor *field[2];
    uint64_t epoch;
    int64_t sample;
    int more;

    TRY(oar_loader_next(r->loader, field, &more));
    if (!more) {
        TRY(oar_loader_position(r->loader, &epoch, &sample));
        TRY(oar_loader_start(r->loader, epoch + 1, 0));
        TRY(oar_loader_next(r->loader, field, &more));
    }
    batch.inputs = r->is_first;
    batch.input = &field[0];
    batch.targets = r->is_last;
    batch.target = &field[1];
    TRY(oar_pipeline_step(r->pipe, &batch, &result));
    *loss = result.loss;
    TRY(oar_optim_step(r->adam));
    oar_optim_zero_grad(r->adam);
    return OAR_OK;
}

static oar_status train(run *r)
{
    double loss;

    r->rank = oar_group_rank(r->world);
    TRY(make_schedule(r));
    TRY(make_stages(r));
    TRY(make_optim(r));
    TRY(make_data(r));
    TRY(oar_pipeline_create(r->world, r->plan, r->stages, r->stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = loss_of),
                            &r->pipe));
    TRY(open_checkpoint(r));
    while (r->step < r->steps) {
        TRY(train_step(r, &loss));
        r->step++;
        if (r->rank == 0 &&
            (r->step % (r->steps / 10 + 1) == 0 || r->step == r->steps))
            printf("step %d/%d  loss %.4f, %d stages on %d ranks\n",
                   (int)r->step, (int)r->steps, loss,
                   oar_schedule_stages(r->plan), oar_group_size(r->world));
        fflush(stdout);
    }
    return r->checkpoint == NULL
               ? OAR_OK
               : oar_checkpoint_save(r->checkpoint, r->state, r->step, NULL);
}

static void end_run(run *r)
{
    oar_checkpoint_close(r->checkpoint);
    oar_state_destroy(r->state);
    oar_pipeline_destroy(r->pipe);
    oar_optim_destroy(r->adam);
    for (int s = 0; s < r->stages; s++)
        oar_module_release(r->stage[s].module);
    oar_schedule_release(r->plan);
    oar_loader_destroy(r->loader);
    oar_dataset_destroy(r->data);
    oar_group_destroy(r->world);
}

/* Returns 0 if the arguments make no sense. */
static int read_options(int argc, char **argv, run *r)
{
    static const struct option option[] = {
        { "steps", 1, NULL, 0 },    { "micro", 1, NULL, 1 },
        { "schedule", 1, NULL, 2 }, { "checkpoint", 1, NULL, 3 },
        { "resume", 0, NULL, 4 },   { NULL, 0, NULL, 0 },
    };
    int64_t *const number[] = { &r->steps, &r->micro };
    int which;

    while ((which = getopt_long(argc, argv, "", option, NULL)) >= 0) {
        if (which > 4 || (which < 2 && (*number[which] = atoll(optarg)) < 1))
            return 0;
        if (which == 2)
            r->schedule = optarg;
        if (which == 3)
            r->folder = optarg;
        r->resume |= which == 4;
    }
    if (optind < argc)
        r->file = argv[optind++];
    return optind == argc;
}

int main(int argc, char **argv)
{
    run r = { .steps = 300,
              .micro = 8,
              .schedule = "1f1b",
              .file = OARSONG_SOURCE "/LICENSE" };
    oar_status status;

    if (!read_options(argc, argv, &r)) {
        fputs("usage: pipeline_gpt [--steps N] [--micro N] [--schedule "
              "KIND|FILE]\n"
              "                    [--checkpoint FOLDER [--resume]] [file]\n",
              stderr);
        return 2;
    }
    status = oar_group_from_env(NULL, &r.world);
    if (status == OAR_OK)
        status = train(&r);
    if (status != OAR_OK)
        fprintf(stderr, "pipeline_gpt: %s\n", oar_last_error_text());
    end_run(&r);
    return status == OAR_OK ? 0 : 1;
}
