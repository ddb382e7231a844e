/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_parts: tokens a second of a GPT on one GPU that ranks share: alone, by
 * tensor parallel layers, and by a pipeline.
 *
 *     oarsong run -n N --backend ipc gpu_parts MODE STEPS WIDTH LAYERS BATCH
 *         [tiny]
 *
 * MODE: one (every rank takes the whole model), tp, sequence, 1f1b, zb_h1.
 * Sequences of 1024 tokens, bf16, AdamW with f32 masters, random tokens; a
 * pipeline has 4 micro-batches for each rank. Rank 0 prints the median step
 * without the first three:
 *     gpu_parts,MODE,RANKS,PARAMS,MS,TOKENS/s,GIB,LOSS
 * with parameters and memory of rank 0. Tokens are those of all ranks in mode
 * one, else those of the model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { MOST_STEPS = 200, WARM = 3 };

static int64_t context = 1024, words = 50304;

#define TRY(call)                                                 \
    do {                                                          \
        if ((call) != OAR_OK) {                                   \
            fprintf(stderr, "gpu_parts: line %d: %s\n", __LINE__, \
                    oar_last_error_text());                       \
            exit(1);                                              \
        }                                                         \
    } while (0)

typedef struct parts_run {
    const char *mode;
    oar_group *world;
    oar_device gpu;
    oar_gpt_opts gpt;
    int64_t batch;
    int rank, ranks, is_tp;
    oar_module *model; /* or this rank's stage */
    oar_schedule *schedule;
    oar_pipeline *pipe;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x, *y;
    double loss;
} parts_run;

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static oar_tensor *loss_of(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target)
{
    (void)arg, (void)micro, (void)targets;
    return oar_cross_entropy(tape, out[0],
                             oar_reshape(tape, target[0], OAR_SHAPE(-1)));
}

/* ---- models -------------------------------------------------------------- */

static void place_model(parts_run *r)
{
    TRY(oar_module_cast(r->model, OAR_BF16, 0));
    if (r->is_tp)
        TRY(oar_tp_parallelize_gpt(
            r->model, r->world,
            OAR_OPTS(oar_tp_opts,
                     .sequence = strcmp(r->mode, "sequence") == 0)));
    TRY(oar_module_to(r->model, r->gpu));
}

static void make_pipeline(parts_run *r)
{
    oar_stage stage = oar_stage_init();
    int kind = 0, parts = r->gpt.layers + 2, count[64], first = 0;
    double cost[256];

    while (kind < OAR_SCHEDULE_KINDS &&
           strcmp(oar_schedule_kind_name((oar_schedule_kind)kind), r->mode) !=
               0)
        kind++;
    TRY(oar_schedule_make((oar_schedule_kind)kind, r->ranks, 4 * r->ranks, NULL,
                          &r->schedule));
    if (oar_schedule_stages(r->schedule) != r->ranks || parts > 256)
        exit(fprintf(stderr, "gpu_parts: one stage a rank\n"));
    for (int i = 0; i < parts; i++)
        cost[i] = i == 0 ? 0.2 : i == parts - 1 ? 3 : 1; /* the head is large */
    TRY(oar_schedule_balance(parts, cost, r->ranks, count));
    for (int s = 0; s < r->rank; s++)
        first += count[s];
    TRY(oar_gpt_stage_create(&r->gpt, first, count[r->rank], &r->model));
    place_model(r);
    stage.index = r->rank;
    stage.module = r->model;
    TRY(oar_pipeline_create(r->world, r->schedule, 1, &stage,
                            OAR_OPTS(oar_pipeline_opts, .loss = loss_of),
                            &r->pipe));
}

static oar_tensor *make_tokens(const parts_run *r, uint64_t seed)
{
    oar_tensor *made = oar_uniform(NULL, OAR_I64, OAR_SHAPE(r->batch, context),
                                   seed, 0, (double)words);
    oar_tensor *there = oar_to(NULL, made, r->gpu);

    oar_tensor_release(made);
    return there;
}

static void make_run(parts_run *r)
{
    r->is_tp = strcmp(r->mode, "tp") == 0 || strcmp(r->mode, "sequence") == 0;
    if (r->is_tp || strcmp(r->mode, "one") == 0) {
        TRY(oar_gpt_create(&r->gpt, &r->model));
        place_model(r);
    } else {
        make_pipeline(r);
    }
    TRY(oar_adamw_create(
        r->model, OAR_OPTS(oar_adam_opts, .lr = 1e-4, .master_weights = 1),
        &r->adam));
    TRY(oar_tape_create(&r->tape));
    r->x = make_tokens(r, 1);
    r->y = make_tokens(r, 2);
}

/* ---- steps --------------------------------------------------------------- */

static void step_piped(parts_run *r)
{
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();

    batch.inputs = r->rank == 0;
    batch.input = &r->x;
    batch.targets = r->rank == r->ranks - 1;
    batch.target = &r->y;
    TRY(oar_pipeline_step(r->pipe, &batch, &result));
    r->loss = result.loss;
}

static void step_whole(parts_run *r, int last)
{
    oar_tensor *logits, *target, *loss;

    logits = oar_forward(r->tape, r->model, r->x);
    target = oar_reshape(r->tape, r->y, OAR_SHAPE(-1));
    loss = r->is_tp ? oar_tp_cross_entropy(r->tape, logits, target, r->world,
                                           words, NULL)
                    : oar_cross_entropy(r->tape, logits, target);
    TRY(oar_backward(r->tape, loss));
    if (last)
        TRY(oar_tensor_item(loss, &r->loss));
    oar_tape_reset(r->tape);
}

static double take_step(parts_run *r, int last)
{
    double from;

    TRY(oar_barrier(r->world, NULL, NULL));
    from = now_ms();
    if (r->pipe != NULL)
        step_piped(r);
    else
        step_whole(r, last);
    TRY(oar_optim_step_with(r->adam, OAR_OPTS(oar_step_opts, .clip = 0)));
    oar_optim_zero_grad(r->adam);
    TRY(oar_stream_synchronize(r->gpu, oar_stream_current(r->gpu)));
    TRY(oar_barrier(r->world, NULL, NULL));
    return now_ms() - from;
}

static void print_line(const parts_run *r, double *ms, int steps)
{
    oar_device_usage usage = oar_device_usage_init();
    double tokens = (double)(r->batch * context), params = 0, median;

    if (strcmp(r->mode, "one") == 0)
        tokens *= r->ranks;
    for (int i = 0; i < oar_module_params(r->model); i++)
        params += (double)oar_tensor_count(oar_module_param(r->model, i));
    qsort(ms + WARM, (size_t)(steps - WARM), sizeof *ms, by_size);
    median = ms[WARM + (steps - WARM) / 2];
    TRY(oar_device_memory(r->gpu, &usage));
    if (r->rank == 0)
        printf("gpu_parts,%s,%d,%.1fM,%.2f,%.0f,%.2f,%.4f\n", r->mode, r->ranks,
               params / 1e6, median, tokens / median * 1e3,
               (double)usage.most_bytes / (1 << 30), r->loss);
}

int main(int argc, char **argv)
{
    static double ms[MOST_STEPS];
    parts_run r = { .gpt = oar_gpt_opts_init() };
    int steps;

    if (argc < 6 || (steps = atoi(argv[2])) <= WARM || steps > MOST_STEPS)
        return fprintf(stderr,
                       "usage: gpu_parts MODE STEPS WIDTH LAYERS "
                       "BATCH, with 4 to %d steps\n",
                       MOST_STEPS),
               2;
    if (argc > 6) { /* to try this program out */
        context = 32;
        words = 101;
    }
    r.mode = argv[1];
    r.gpt.vocabulary = words;
    r.gpt.context = context;
    r.gpt.width = atol(argv[3]);
    r.gpt.layers = atoi(argv[4]);
    r.gpt.heads = (int)(r.gpt.width / 64);
    r.gpt.seed = 1;
    r.batch = atol(argv[5]);
    TRY(oar_group_from_env(NULL, &r.world));
    r.rank = oar_group_rank(r.world);
    r.ranks = oar_group_size(r.world);
    r.gpu = oar_device_current();
    make_run(&r);
    for (int k = 0; k < steps; k++)
        ms[k] = take_step(&r, k == steps - 1);
    print_line(&r, ms, steps);
    oar_pipeline_destroy(r.pipe);
    oar_schedule_release(r.schedule);
    oar_optim_destroy(r.adam);
    oar_tape_destroy(r.tape);
    oar_module_release(r.model);
    oar_tensor_release(r.x);
    oar_tensor_release(r.y);
    oar_group_destroy(r.world);
    return 0;
}
