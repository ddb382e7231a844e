/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp: memory and time of a step of a GPT trained by several ranks.
 *
 *     oarsong run -n N fsdp MODE STEPS WIDTH LAYERS VOCABULARY BATCH
 *     oarsong run -n N fsdp lazy-mapped|lazy-host|lazy-own WIDTH LAYERS
 *         VOCABULARY
 *
 * Sequences of 64 tokens, f32, AdamW. MODE is ddp; or mapped, host or own, a
 * hold of FSDP, which may end with the stage (own1, own2; else 3); or one, a
 * process that trains alone, to compare with. Rank 0 prints a line
 * fsdp,MODE,RANKS,PARAMS,PSS_MB,HOST_MB,WALL_MS,CPU_MS,TOKENS/S,LOSS,MOVED,
 *     COMMUNICATION_MS,EXPOSED_MS,HIDDEN%
 * with the mean over ranks of the proportional set size at the end of a
 * backward, that of all ranks together, the median time of a step, the median
 * CPU time of a step and rank, the bytes of parameters that one step gathered
 * on rank 0, and the medians of how long it communicated in a step, of how long
 * it waited for that, and the part that it did not wait.
 *
 * `lazy` only starts a model that is lazy, and prints
 * fsdp,MODE,RANKS,PARAMS,SHARD_MB,PEAK_MB,PEAK/SHARD,WALL_MS
 * with the parameters of one rank, the most by which the memory of any rank
 * grew meanwhile, and the time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <oarsong/oarsong.h>

#include "pss.h"

enum { TOKENS = 64, MOST_STEPS = 1000 };

#define TRY(call)                                            \
    do {                                                     \
        if ((call) != OAR_OK) {                              \
            fprintf(stderr, "fsdp: line %d: %s\n", __LINE__, \
                    oar_last_error_text());                  \
            exit(1);                                         \
        }                                                    \
    } while (0)

static double wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Returns the most memory that this process ever had in pages since the last
 * call with reset, or what it has now. */
static double resident_mb(const char *which, int reset)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256], found[64];
    long kib = 0, value;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%63[^:]: %ld", found, &value) == 2 &&
            strcmp(found, which) == 0)
            kib = value;
    if (file != NULL)
        fclose(file);
    file = reset ? fopen("/proc/self/clear_refs", "w") : NULL;
    if (file != NULL) {
        fputs("5", file);
        fclose(file);
    }
    return (double)kib / 1024;
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

typedef struct trained {
    const char *mode;
    int64_t batch, vocabulary;
    oar_module *model;
    oar_optim *adam;
} trained;

static oar_hold hold_of(const char *mode)
{
    return strncmp(mode, "mapped", 6) == 0 ? OAR_HOLD_MAPPED
           : strncmp(mode, "host", 4) == 0 ? OAR_HOLD_HOST
                                           : OAR_HOLD_OWN;
}

static oar_zero_stage stage_of(const char *mode)
{
    char last = mode[strlen(mode) - 1];

    return last == '1'   ? OAR_ZERO_STAGE_1
           : last == '2' ? OAR_ZERO_STAGE_2
                         : OAR_ZERO_STAGE_3;
}

static void wrap(trained *t, oar_group *world)
{
    const oar_adam_opts *adam = OAR_OPTS(oar_adam_opts, .lr = 1e-3);
    oar_tensor *const *param;
    int count;

    if (strcmp(t->mode, "one") == 0) {
        TRY(oar_adamw_create(t->model, adam, &t->adam));
    } else if (strcmp(t->mode, "ddp") == 0) {
        TRY(oar_ddp_wrap(t->model, world, NULL, &t->model));
        TRY(oar_adamw_create(t->model, adam, &t->adam));
    } else {
        TRY(oar_fsdp_wrap(t->model, world,
                          OAR_OPTS(oar_fsdp_opts, .hold = hold_of(t->mode),
                                   .stage = stage_of(t->mode)),
                          &t->model));
        param = oar_fsdp_params(t->model, &count);
        TRY(oar_adamw_create_over(count, param, adam, &t->adam));
    }
}

static int64_t count_params(const oar_module *model)
{
    int64_t params = 0;

    for (int i = 0; i < oar_module_params(model); i++)
        params += oar_tensor_count(oar_module_param(model, i));
    return params;
}

static int start_lazily(const char *mode, oar_gpt_opts *gpt)
{
    double from, before, peak;
    int64_t params;
    oar_module *model;
    oar_group *world;

    TRY(oar_group_from_env(NULL, &world));
    TRY(oar_barrier(world, NULL, NULL));
    from = wall_ms();
    before = resident_mb("VmRSS", 1);
    oar_lazy(1);
    TRY(oar_gpt_create(gpt, &model));
    oar_lazy(0);
    params = count_params(model);
    TRY(oar_fsdp_wrap(
        model, world,
        OAR_OPTS(oar_fsdp_opts, .hold = hold_of(mode + strlen("lazy-"))),
        &model));
    peak = resident_mb("VmHWM", 0) - before;
    TRY(oar_all_reduce(world, oar_span_of(&peak, 1, OAR_F64), OAR_MAX, NULL,
                       NULL));
    if (oar_group_rank(world) == 0) {
        double shard = (double)params * 4 / (1 << 20) / oar_group_size(world);
        printf("fsdp,%s,%d,%.1fM,%.1f,%.1f,%.3f,%.0f\n", mode,
               oar_group_size(world), (double)params / 1e6, shard, peak,
               peak / shard, wall_ms() - from);
    }
    oar_module_release(model);
    oar_group_destroy(world);
    return 0;
}

/* The figures of each step. */
typedef struct figures {
    double wall[MOST_STEPS], cpu[MOST_STEPS], sent[MOST_STEPS],
        waited[MOST_STEPS];
    double pss, loss; /* in the last one */
    oar_shards_stats stats;
} figures;

static void train_step(trained *t, oar_group *world, oar_tape *tape, int step,
                       int last, figures *f)
{
    uint64_t seed = (uint64_t)(1000 + 100 * step + oar_group_rank(world));
    double from, cpu_from;
    oar_tensor *x, *y, *value;

    TRY(oar_barrier(world, NULL, NULL));
    from = wall_ms();
    cpu_from = cpu_ms();
    x = oar_uniform(tape, OAR_I64, OAR_SHAPE(t->batch, TOKENS), seed, 0,
                    (double)t->vocabulary);
    y = oar_uniform(tape, OAR_I64, OAR_SHAPE(t->batch * TOKENS), seed + 7, 0,
                    (double)t->vocabulary);
    value = oar_cross_entropy(tape, oar_forward(tape, t->model, x), y);
    TRY(oar_backward(tape, value));
    TRY(oar_tensor_item(value, &f->loss));
    if (last)
        f->pss = (double)pss_kib() / 1024;
    if (oar_fsdp_shards(t->model) != NULL)
        TRY(oar_shards_read_stats(oar_fsdp_shards(t->model), &f->stats));
    f->sent[step] = f->stats.communication_s * 1e3;
    f->waited[step] = f->stats.exposed_s * 1e3;
    TRY(oar_optim_step(t->adam));
    oar_optim_zero_grad(t->adam);
    oar_tape_reset(tape);
    f->wall[step] = wall_ms() - from;
    f->cpu[step] = cpu_ms() - cpu_from;
}

/* Prints medians, which leave the first step out. */
static void print_figures(const trained *t, oar_group *world, int steps,
                          figures *f)
{
    double sum[3] = { f->pss, median(f->cpu + 1, steps - 1), f->loss };
    double ms = median(f->wall + 1, steps - 1);
    double all = median(f->sent + 1, steps - 1);
    double exposed = median(f->waited + 1, steps - 1);
    int ranks = oar_group_size(world);

    TRY(oar_all_reduce(world, oar_span_of(sum, 3, OAR_F64), OAR_SUM, NULL,
                       NULL));
    if (oar_group_rank(world) != 0)
        return;
    printf("fsdp,%s,%d,%.1fM,%.1f,%.1f,%.1f,%.1f,%.0f,%.5f,%llu,", t->mode,
           ranks, (double)count_params(t->model) / 1e6, sum[0] / ranks, sum[0],
           ms, sum[1] / ranks, (double)(t->batch * TOKENS * ranks) / ms * 1e3,
           sum[2] / ranks, (unsigned long long)f->stats.gathered_bytes);
    printf("%.2f,%.2f,%.1f\n", all, exposed,
           all > exposed ? 100 * (1 - exposed / all) : 0);
}

static int train(trained *t, const oar_gpt_opts *gpt, int steps)
{
    static figures f;
    oar_group *world;
    oar_tape *tape;

    f.stats = oar_shards_stats_init();
    TRY(oar_group_from_env(NULL, &world));
    TRY(oar_gpt_create(gpt, &t->model));
    wrap(t, world);
    TRY(oar_tape_create(&tape));
    for (int step = 0; step < steps; step++)
        train_step(t, world, tape, step, step == steps - 1, &f);
    print_figures(t, world, steps, &f);
    oar_tape_destroy(tape);
    oar_optim_destroy(t->adam);
    oar_module_release(t->model);
    oar_group_destroy(world);
    return 0;
}

int main(int argc, char **argv)
{
    int lazy = argc == 5 && strncmp(argv[1], "lazy-", 5) == 0;
    oar_gpt_opts gpt = oar_gpt_opts_init();
    char **model = argv + (lazy ? 2 : 3);
    int steps;

    if (!lazy && argc != 7) {
        fputs("usage: fsdp MODE STEPS WIDTH LAYERS VOCABULARY BATCH, or fsdp "
              "lazy-HOLD WIDTH LAYERS VOCABULARY\n",
              stderr);
        return 2;
    }
    gpt.context = TOKENS;
    gpt.width = atol(model[0]);
    gpt.layers = atoi(model[1]);
    gpt.vocabulary = atol(model[2]);
    if (lazy)
        return start_lazily(argv[1], &gpt);
    steps = atoi(argv[2]) < MOST_STEPS ? atoi(argv[2]) : MOST_STEPS;
    return train(&(trained){ .mode = argv[1],
                             .batch = atol(argv[6]),
                             .vocabulary = gpt.vocabulary },
                 &gpt, steps);
}
