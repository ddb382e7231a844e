/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp: memory and time of a step of a GPT trained by several ranks.
 *
 *     oarsong run -n N fsdp MODE STEPS WIDTH LAYERS VOCABULARY BATCH
 *
 * Sequences of 64 tokens, f32, AdamW. MODE is ddp; or mapped, host or own, a
 * hold of FSDP, which may end with the stage (own1, own2; else 3); or one, a
 * process that trains alone, to compare with. Rank 0 prints a line
 * fsdp,MODE,RANKS,PARAMS,PSS_MB,HOST_MB,WALL_MS,CPU_MS,TOKENS/S,LOSS,MOVED
 * with the mean over ranks of the proportional set size at the end of a
 * backward, that of all ranks together, the median time of a step, the median
 * CPU time of a step and rank, and the bytes of parameters that one step
 * gathered on rank 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <oarsong/oarsong.h>

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

static double pss_mb(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Pss: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
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
    oar_module *model;
    oar_optim *adam;
} trained;

static void wrap(trained *t, oar_group *world)
{
    const oar_adam_opts *adam = OAR_OPTS(oar_adam_opts, .lr = 1e-3);
    oar_hold hold = strncmp(t->mode, "mapped", 6) == 0 ? OAR_HOLD_MAPPED
                    : strncmp(t->mode, "host", 4) == 0 ? OAR_HOLD_HOST
                                                       : OAR_HOLD_OWN;
    char last = t->mode[strlen(t->mode) - 1];
    oar_zero_stage stage = last == '1'   ? OAR_ZERO_STAGE_1
                           : last == '2' ? OAR_ZERO_STAGE_2
                                         : OAR_ZERO_STAGE_3;
    oar_tensor *const *param;
    int count;

    if (strcmp(t->mode, "one") == 0) {
        TRY(oar_adamw_create(t->model, adam, &t->adam));
    } else if (strcmp(t->mode, "ddp") == 0) {
        TRY(oar_ddp_wrap(t->model, world, NULL, &t->model));
        TRY(oar_adamw_create(t->model, adam, &t->adam));
    } else {
        TRY(oar_fsdp_wrap(t->model, world,
                          OAR_OPTS(oar_fsdp_opts, .hold = hold, .stage = stage),
                          &t->model));
        param = oar_fsdp_params(t->model, &count);
        TRY(oar_adamw_create_over(count, param, adam, &t->adam));
    }
}

int main(int argc, char **argv)
{
    static double wall[MOST_STEPS], cpu[MOST_STEPS];
    oar_gpt_opts gpt = oar_gpt_opts_init();
    oar_shards_stats stats = oar_shards_stats_init();
    trained t = { 0 };
    oar_group *world;
    oar_tape *tape;
    double sum[3] = { 0 }, loss = 0;
    int64_t batch, params = 0;
    int steps, rank, ranks;

    if (argc != 7)
        return fprintf(stderr, "usage: fsdp MODE STEPS WIDTH LAYERS VOCABULARY "
                               "BATCH\n"),
               2;
    t.mode = argv[1];
    steps = atoi(argv[2]) < MOST_STEPS ? atoi(argv[2]) : MOST_STEPS;
    gpt.width = atol(argv[3]);
    gpt.layers = atoi(argv[4]);
    gpt.vocabulary = atol(argv[5]);
    gpt.context = TOKENS;
    batch = atol(argv[6]);
    TRY(oar_group_from_env(NULL, &world));
    rank = oar_group_rank(world);
    ranks = oar_group_size(world);
    TRY(oar_gpt_create(&gpt, &t.model));
    for (int i = 0; i < oar_module_params(t.model); i++)
        params += oar_tensor_count(oar_module_param(t.model, i));
    wrap(&t, world);
    TRY(oar_tape_create(&tape));
    for (int step = 0; step < steps; step++) {
        uint64_t seed = (uint64_t)(1000 + 100 * step + rank);
        double from, cpu_from;
        oar_tensor *x, *y, *value;

        TRY(oar_barrier(world, NULL, NULL));
        from = wall_ms();
        cpu_from = cpu_ms();
        x = oar_uniform(tape, OAR_I64, OAR_SHAPE(batch, TOKENS), seed, 0,
                        (double)gpt.vocabulary);
        y = oar_uniform(tape, OAR_I64, OAR_SHAPE(batch * TOKENS), seed + 7, 0,
                        (double)gpt.vocabulary);
        value = oar_cross_entropy(tape, oar_forward(tape, t.model, x), y);
        TRY(oar_backward(tape, value));
        TRY(oar_tensor_item(value, &loss));
        if (step == steps - 1)
            sum[0] = pss_mb();
        if (oar_fsdp_shards(t.model) != NULL)
            TRY(oar_shards_read_stats(oar_fsdp_shards(t.model), &stats));
        TRY(oar_optim_step(t.adam));
        oar_optim_zero_grad(t.adam);
        oar_tape_reset(tape);
        wall[step] = wall_ms() - from;
        cpu[step] = cpu_ms() - cpu_from;
    }
    sum[1] = median(cpu + 1, steps - 1);
    sum[2] = loss;
    TRY(oar_all_reduce(world, oar_span_of(sum, 3, OAR_F64), OAR_SUM, NULL,
                       NULL));
    if (rank == 0) {
        double ms = median(wall + 1, steps - 1);
        printf("fsdp,%s,%d,%.1fM,%.1f,%.1f,%.1f,%.1f,%.0f,%.5f,%llu\n", t.mode,
               ranks, (double)params / 1e6, sum[0] / ranks, sum[0], ms,
               sum[1] / ranks, (double)(batch * TOKENS * ranks) / ms * 1e3,
               sum[2] / ranks, (unsigned long long)stats.gathered_bytes);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(t.adam);
    oar_module_release(t.model);
    oar_group_destroy(world);
    return 0;
}
