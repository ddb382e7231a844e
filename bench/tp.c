/* SPDX-License-Identifier: Apache-2.0 */
/* tp: time of a step of a tensor parallel GPT, against one process.
 *
 *     oarsong run -n N tp STEPS WIDTH LAYERS VOCABULARY BATCH [SHARE]
 *
 * Sequences of 64 tokens, f32, AdamW. In turns, each rank takes a step of the
 * whole model alone, as it is and keeping what it would compute twice
 * (oar_tape_rebuild), and the ranks take one of the model that they share, with
 * activations that are the same on all ranks and with activations that are
 * spread by rows. Results of SHARE bytes and more lie in shared memory (4096;
 * 0: none). Rank 0 prints for each of the four a line
 * tp,MODE,RANKS,PARAMS,WALL_MS,CPU_MS,RATIO,LOSS
 * with the median time of a step, the median over steps of the mean CPU time of
 * a rank, and that as a part of the CPU time of one process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { TOKENS = 64, MOST_STEPS = 1000, HEADS = 4 };
enum { ONE, KEEPING, TP, SEQUENCE, MODES };
static const char *const mode_name[MODES] = { "one", "keeping", "tp",
                                              "sequence" };

#define TRY(call)                                          \
    do {                                                   \
        if ((call) != OAR_OK) {                            \
            fprintf(stderr, "tp: line %d: %s\n", __LINE__, \
                    oar_last_error_text());                \
            exit(1);                                       \
        }                                                  \
    } while (0)

typedef struct trained {
    oar_module *model;
    oar_optim *adam;
    oar_tape *tape;
    double wall[MOST_STEPS], cpu[MOST_STEPS], loss;
} trained;

static double clock_ms(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
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

static void make_model(trained *t, int mode, const oar_gpt_opts *gpt,
                       oar_group *world, size_t share)
{
    TRY(oar_gpt_create(gpt, &t->model));
    if (mode >= TP)
        TRY(oar_tp_parallelize_gpt(
            t->model, world,
            OAR_OPTS(oar_tp_opts, .sequence = mode == SEQUENCE)));
    TRY(oar_adamw_create(t->model, OAR_OPTS(oar_adam_opts, .lr = 1e-3),
                         &t->adam));
    TRY(oar_tape_create(&t->tape));
    oar_tape_share(t->tape, mode >= TP ? share : 0);
    oar_tape_rebuild(t->tape, mode != KEEPING);
}

static void take_step(trained *t, int mode, int step, const oar_gpt_opts *gpt,
                      int64_t batch, oar_group *world)
{
    uint64_t seed = (uint64_t)(1000 + 100 * step);
    double wall = clock_ms(CLOCK_MONOTONIC);
    double cpu = clock_ms(CLOCK_PROCESS_CPUTIME_ID);
    oar_tensor *x = oar_uniform(t->tape, OAR_I64, OAR_SHAPE(batch, TOKENS),
                                seed, 0, (double)gpt->vocabulary);
    oar_tensor *y = oar_uniform(t->tape, OAR_I64, OAR_SHAPE(batch * TOKENS),
                                seed + 7, 0, (double)gpt->vocabulary);
    oar_tensor *logits = oar_forward(t->tape, t->model, x);
    oar_tensor *loss = mode < TP
                           ? oar_cross_entropy(t->tape, logits, y)
                           : oar_tp_cross_entropy(t->tape, logits, y, world,
                                                  gpt->vocabulary, NULL);

    TRY(oar_backward(t->tape, loss));
    TRY(oar_tensor_item(loss, &t->loss));
    TRY(oar_optim_step(t->adam));
    oar_optim_zero_grad(t->adam);
    oar_tape_reset(t->tape);
    t->wall[step] = clock_ms(CLOCK_MONOTONIC) - wall;
    t->cpu[step] = clock_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu;
}

int main(int argc, char **argv)
{
    static trained t[MODES];
    oar_gpt_opts gpt = oar_gpt_opts_init();
    double one = 0;
    int64_t batch, params = 0;
    oar_group *world;
    int steps, ranks;

    if (argc != 6 && argc != 7)
        return fprintf(stderr, "usage: tp STEPS WIDTH LAYERS VOCABULARY BATCH "
                               "[SHARE]\n"),
               2;
    steps = atoi(argv[1]) < MOST_STEPS ? atoi(argv[1]) : MOST_STEPS;
    gpt.width = atol(argv[2]);
    gpt.layers = atoi(argv[3]);
    gpt.vocabulary = atol(argv[4]);
    gpt.context = TOKENS;
    gpt.heads = HEADS;
    batch = atol(argv[5]);
    TRY(oar_group_from_env(NULL, &world));
    ranks = oar_group_size(world);
    for (int m = 0; m < MODES; m++)
        make_model(&t[m], m, &gpt, world,
                   argc == 7 ? (size_t)atol(argv[6]) : 4096);
    for (int i = 0; i < oar_module_params(t[ONE].model); i++)
        params += oar_tensor_count(oar_module_param(t[ONE].model, i));
    for (int step = 0; step < steps; step++)
        for (int m = 0; m < MODES; m++) {
            TRY(oar_barrier(world, NULL, NULL));
            take_step(&t[m], m, step, &gpt, batch, world);
        }
    for (int m = 0; m < MODES; m++) {
        double cpu;

        TRY(oar_all_reduce(world, oar_span_of(t[m].cpu, (size_t)steps, OAR_F64),
                           OAR_AVG, NULL, NULL));
        cpu = median(t[m].cpu + 1, steps - 1);
        one = m == ONE ? cpu : one;
        if (oar_group_rank(world) == 0)
            printf("tp,%s,%d,%.1fM,%.1f,%.1f,%.3f,%.5f\n", mode_name[m], ranks,
                   (double)params / 1e6, median(t[m].wall + 1, steps - 1), cpu,
                   cpu / one, t[m].loss);
        oar_optim_destroy(t[m].adam);
        oar_module_release(t[m].model);
        oar_tape_destroy(t[m].tape);
    }
    oar_group_destroy(world);
    return 0;
}
