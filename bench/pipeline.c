/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline: a step of a GPT in stages beside what its schedule promises.
 *
 *     oarsong run -n N pipeline KIND MICRO STEPS WIDTH LAYERS VOCABULARY BATCH
 *
 * Sequences of 64 tokens, f32, AdamW, one thread a rank: set
 * OPENBLAS_NUM_THREADS=1, and bind each rank to a core of its own. KIND is a
 * kind of schedule; or one, a process that runs the micro-batches one after the
 * other. The parts of the model are timed first and dealt to the stages. Rank 0
 * prints a line
 * pipeline,KIND,RANKS,STAGES,MICRO,WALL_MS,STEP_MS,SIMULATED_MS,RATIO,BUBBLE%,
 *     SIMULATED%,PEAK_MB,PROMISED_MB,TOKENS/S,LOSS
 * with medians over the steps: of the time of a step with and without the
 * optimizer, on the slowest rank; of what the schedule takes at what the
 * actions and messages of that step took, and of the quotient of both; of the
 * part of all ranks' time that was not in stages, and of what it is in the
 * schedule; on the rank that needs most of it, the memory that micro-batches in
 * flight and messages had in use, and what the schedule needs for them. Before
 * it, for each stage, a line
 * stage,INDEX,PARTS,F_MS,I_MS,W_MS,HELD_MB,HALF_MB,MESSAGE_KB,HOP_US
 * of the last step, where HELD is what a micro-batch holds after F, and HALF
 * after I (0: there is none, and I and W are half of B each), and HOP what a
 * message takes. With PIPELINE_TRACE=FILE the last step is drawn there,
 * as a Chrome trace.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { TOKENS = 64, MOST_STEPS = 1000, STAGES = 64, PARAMS = 4096 };

#define TRY(call)                                                \
    do {                                                         \
        if ((call) != OAR_OK) {                                  \
            fprintf(stderr, "pipeline: line %d: %s\n", __LINE__, \
                    oar_last_error_text());                      \
            exit(1);                                             \
        }                                                        \
    } while (0)

typedef struct bench_run {
    const char *kind;
    int micro, steps, ranks, rank;
    int64_t batch, rows; /* of the largest micro-batch */
    oar_gpt_opts gpt;
    oar_group *world;
    oar_schedule *schedule; /* NULL: one process, in one stage */
    int total, count[STAGES];
    int stages; /* of this rank */
    oar_stage stage[STAGES];
    oar_pipeline *pipe;
    oar_optim *adam;
    oar_tape *tape;
    double wall[MOST_STEPS], step[MOST_STEPS], loss;
    /* In each step what the schedule promised, and what was. */
    double simulated[MOST_STEPS], ratio[MOST_STEPS];
    double bubble[MOST_STEPS], simulated_bubble[MOST_STEPS];
    double peak_bytes, promised_bytes;
} bench_run;

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

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n > 0 ? x[n / 2] : 0;
}

static void reduce(bench_run *r, double *x, int count, oar_reduce_op op)
{
    TRY(oar_all_reduce(r->world, oar_span_of(x, (size_t)count, OAR_F64), op,
                       NULL, NULL));
}

/* ---- parts --------------------------------------------------------------- */

static oar_tensor *new_tokens(const bench_run *r, oar_tape *tape, int64_t rows,
                              uint64_t seed)
{
    return oar_uniform(tape, OAR_I64, OAR_SHAPE(rows, TOKENS), seed, 0,
                       (double)r->gpt.vocabulary);
}

static oar_tensor *loss_of(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target)
{
    (void)arg, (void)micro, (void)targets;
    return oar_cross_entropy(tape, out[0],
                             oar_reshape(tape, target[0], OAR_SHAPE(-1)));
}

/* Runs forward of parts of the model, of which `last` says that they have the
 * head, and of the loss then. */
static oar_tensor *run_forward(const bench_run *r, oar_tape *tape,
                               oar_module *module, int first, int last)
{
    oar_tensor *x =
        first ? new_tokens(r, tape, r->rows, 5)
              : oar_uniform(tape, OAR_F32,
                            OAR_SHAPE(r->rows, TOKENS, r->gpt.width), 6, -1, 1);
    oar_tensor *target = last ? new_tokens(r, tape, r->rows, 7) : NULL;
    oar_tensor *y;

    if (!first)
        x = oar_tape_input(tape, x);
    y = oar_forward(tape, module, x);
    return last ? loss_of(NULL, tape, 0, &y, 1, &target) : y;
}

/* Returns the time of one micro-batch, forward and backward. */
static double time_once(const bench_run *r, oar_tape *tape, oar_module *module,
                        int first, int last)
{
    double from = now_ms();
    oar_tensor *y = run_forward(r, tape, module, first, last);
    oar_tensor *seed = oar_full(tape, OAR_F32, oar_tensor_shape(y), 1e-3);

    TRY(oar_backward_from(tape, 1, &y, &seed));
    oar_tape_reset(tape);
    return now_ms() - from;
}

/* Deals the parts of the model to the stages, by rank 0's times. */
static void deal_parts(bench_run *r)
{
    int parts = r->gpt.layers + 2;
    double *cost = calloc((size_t)parts, sizeof *cost);
    oar_module *part;
    oar_tape *tape;

    for (int p = 0; cost != NULL && r->rank == 0 && p < parts; p++) {
        TRY(oar_gpt_stage_create(&r->gpt, p, 1, &part));
        TRY(oar_tape_create(&tape));
        for (int k = 0; k < 3; k++) {
            double ms = time_once(r, tape, part, p == 0, p == parts - 1);

            if (k == 0 || ms < cost[p])
                cost[p] = ms;
        }
        oar_tape_destroy(tape);
        oar_module_release(part);
    }
    TRY(oar_broadcast(r->world, oar_span_of(cost, (size_t)parts, OAR_F64), 0,
                      NULL, NULL));
    TRY(oar_schedule_balance(parts, cost, r->total, r->count));
    free(cost);
}

/* ---- training ------------------------------------------------------------ */

static void make_stages(bench_run *r)
{
    oar_tensor *param[PARAMS];
    int count = 0, first = 0;

    for (int s = 0; s < r->total; first += r->count[s++]) {
        oar_stage *mine = &r->stage[r->stages];

        if (r->schedule != NULL &&
            oar_schedule_rank_of(r->schedule, s) != r->rank)
            continue;
        *mine = oar_stage_init();
        mine->index = s;
        TRY(oar_gpt_stage_create(&r->gpt, first, r->count[s], &mine->module));
        r->stages++;
        for (int i = 0; i < oar_module_params(mine->module) && count < PARAMS;
             i++)
            param[count++] = oar_module_param(mine->module, i);
    }
    TRY(oar_adamw_create_over(count, param, OAR_OPTS(oar_adam_opts, .lr = 1e-3),
                              &r->adam));
}

static void step_alone(bench_run *r, oar_tensor *x, oar_tensor *y)
{
    int64_t rows = r->batch / r->micro;
    double loss;

    r->loss = 0;
    for (int m = 0; m < r->micro; m++) {
        oar_tensor *target = oar_narrow(r->tape, y, 0, m * rows, rows);
        oar_tensor *out =
            oar_forward(r->tape, r->stage[0].module,
                        oar_narrow(r->tape, x, 0, m * rows, rows));
        oar_tensor *value = loss_of(NULL, r->tape, m, &out, 1, &target);
        oar_tensor *seed =
            oar_full(r->tape, OAR_F32, OAR_SCALAR, 1.0 / r->micro);

        TRY(oar_tensor_item(value, &loss));
        TRY(oar_backward_from(r->tape, 1, &value, &seed));
        oar_tape_reset(r->tape);
        r->loss += loss / r->micro;
    }
}

static void step_piped(bench_run *r, oar_tensor *x, oar_tensor *y)
{
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();

    batch.inputs = oar_schedule_rank_of(r->schedule, 0) == r->rank;
    batch.input = &x;
    batch.targets = oar_schedule_rank_of(r->schedule, r->total - 1) == r->rank;
    batch.target = &y;
    TRY(oar_pipeline_step(r->pipe, &batch, &result));
    r->loss = result.loss;
}

/* Compares a step with what its schedule takes at what its actions took. */
static void judge_step(bench_run *r, int k)
{
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule_cost cost = oar_schedule_cost_init();
    oar_pipeline_stats stats = oar_pipeline_stats_init();

    TRY(oar_pipeline_cost(r->pipe, &cost));
    TRY(oar_pipeline_read_stats(r->pipe, &stats));
    TRY(oar_schedule_check(r->schedule, &cost, &report));
    r->simulated[k] = stats.simulated_s * 1e3;
    r->simulated_bubble[k] = stats.simulated_bubble;
    r->bubble[k] = stats.bubble;
    r->peak_bytes = (double)stats.most_bytes;
    r->promised_bytes = (double)report.most_bytes;
    for (int s = 0; k == r->steps - 1 && r->rank == 0 && s < r->total; s++)
        printf("stage,%d,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.0f,%.0f\n", s,
               r->count[s], cost.forward[s] * 1e3, cost.inputs[s] * 1e3,
               cost.weights[s] * 1e3, (double)cost.held[s] / 1e6,
               (double)cost.half[s] / 1e6, (double)cost.message[s] / 1e3,
               cost.hop * 1e6);
}

/* Writes the last step as a trace, if a file is asked for. */
static void draw_step(bench_run *r)
{
    const char *path = getenv("PIPELINE_TRACE");
    char *text = NULL;
    FILE *file;

    if (path == NULL || r->pipe == NULL)
        return;
    TRY(oar_pipeline_draw(r->pipe, OAR_PICTURE_CHROME, &text));
    file = text != NULL ? fopen(path, "w") : NULL;
    if (file != NULL) {
        fputs(text, file);
        fclose(file);
    }
    oar_free(text);
}

static void train(bench_run *r)
{
    oar_tensor *x = new_tokens(r, NULL, r->batch, 1000);
    oar_tensor *y = new_tokens(r, NULL, r->batch, 2000);

    for (int k = 0; k < r->steps; k++) {
        double from;

        TRY(oar_barrier(r->world, NULL, NULL));
        from = now_ms();
        if (r->pipe != NULL)
            step_piped(r, x, y);
        else
            step_alone(r, x, y);
        r->step[k] = now_ms() - from;
        TRY(oar_optim_step(r->adam));
        oar_optim_zero_grad(r->adam);
        r->wall[k] = now_ms() - from;
        if (r->pipe != NULL)
            judge_step(r, k);
    }
    reduce(r, r->step, r->steps, OAR_MAX);
    reduce(r, r->wall, r->steps, OAR_MAX);
    reduce(r, &r->peak_bytes, 1, OAR_MAX);
    for (int k = 0; k < r->steps; k++)
        r->ratio[k] = r->simulated[k] > 0 ? r->step[k] / r->simulated[k] : 0;
    oar_tensor_release(x);
    oar_tensor_release(y);
}

/* ---- the line ------------------------------------------------------------ */

/* Prints medians, without the first step. */
static void print_line(bench_run *r)
{
    int n = r->steps - 1;
    double wall = median(r->wall + 1, n), step = median(r->step + 1, n);

    if (r->rank != 0)
        return;
    printf("pipeline,%s,%d,%d,%d,%.2f,%.2f,%.2f,%.3f,%.1f,%.1f,%.2f,%.2f,%.0f,"
           "%.5f\n",
           r->kind, r->ranks, r->total, r->micro, wall, step,
           median(r->simulated + 1, n), median(r->ratio + 1, n),
           100 * median(r->bubble + 1, n),
           100 * median(r->simulated_bubble + 1, n), r->peak_bytes / 1e6,
           r->promised_bytes / 1e6, (double)(r->batch * TOKENS) / wall * 1e3,
           r->loss);
}

static void make_schedule(bench_run *r)
{
    int kind = 0;

    r->total = 1;
    if (strcmp(r->kind, "one") == 0)
        return;
    while (kind < OAR_SCHEDULE_KINDS &&
           strcmp(oar_schedule_kind_name((oar_schedule_kind)kind), r->kind) !=
               0)
        kind++;
    TRY(oar_schedule_make((oar_schedule_kind)kind, r->ranks, r->micro, NULL,
                          &r->schedule));
    r->total = oar_schedule_stages(r->schedule);
    if (r->total > STAGES) {
        fprintf(stderr, "pipeline: %d stages, at most %d\n", r->total, STAGES);
        exit(1);
    }
}

static void run(bench_run *r)
{
    TRY(oar_group_from_env(NULL, &r->world));
    r->ranks = oar_group_size(r->world);
    r->rank = oar_group_rank(r->world);
    r->rows = (r->batch + r->micro - 1) / r->micro;
    make_schedule(r);
    deal_parts(r);
    make_stages(r);
    TRY(oar_tape_create(&r->tape));
    if (r->schedule != NULL)
        TRY(oar_pipeline_create(r->world, r->schedule, r->stages, r->stage,
                                OAR_OPTS(oar_pipeline_opts, .loss = loss_of),
                                &r->pipe));
    train(r);
    draw_step(r);
    print_line(r);
    oar_pipeline_destroy(r->pipe);
    oar_tape_destroy(r->tape);
    oar_optim_destroy(r->adam);
    for (int i = 0; i < r->stages; i++)
        oar_module_release(r->stage[i].module);
    oar_schedule_release(r->schedule);
    oar_group_destroy(r->world);
}

int main(int argc, char **argv)
{
    static bench_run r;

    if (argc != 8) {
        fputs("usage: pipeline KIND MICRO STEPS WIDTH LAYERS VOCABULARY "
              "BATCH\n",
              stderr);
        return 2;
    }
    r.kind = argv[1];
    r.micro = atoi(argv[2]);
    r.steps = atoi(argv[3]) < MOST_STEPS ? atoi(argv[3]) : MOST_STEPS;
    r.gpt = oar_gpt_opts_init();
    r.gpt.context = TOKENS;
    r.gpt.width = atol(argv[4]);
    r.gpt.layers = atoi(argv[5]);
    r.gpt.vocabulary = atol(argv[6]);
    r.gpt.seed = 1;
    r.batch = atol(argv[7]);
    if (r.micro < 1 || r.steps < 2 || r.batch < r.micro) {
        fputs("pipeline: at least 1 micro-batch, 2 steps and a row for each "
              "micro-batch\n",
              stderr);
        return 2;
    }
    run(&r);
    return 0;
}
