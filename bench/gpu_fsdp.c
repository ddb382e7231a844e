/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_fsdp: memory and speed of a GPT that ranks train on one GPU, in bf16 with
 * f32 masters, by DDP and by every hold of FSDP.
 *
 *     oarsong run -n N gpu_fsdp MODE [--width 768] [--layers 12] [--batch 8]
 *         [--context 1024] [--vocabulary 50304] [--steps 10] [--backend ipc]
 *
 * MODE is ddp, own, mapped, host, or state (host, with the optimizer's state on
 * the host, too). --batch is a rank's. `bench/gpu-fsdp` runs them all. Rank 0
 * prints
 * gpu_fsdp,MODE,RANKS,PARAMS,BATCH,ms,tokens/s,rank_MiB,gpu_MiB,host_MiB,loss,
 *     copy_GB/s,bound_GB/s,percent
 * with the mean time of a step after three others; at the end of a backward
 * what a rank's pool has given out (the mean over ranks) and what is in use on
 * the GPU (contexts and the copy that ranks share included); the proportional
 * set size of all ranks; and the mean loss. The last three are for host and
 * state: how fast all units are brought to the GPU one after the other, by all
 * ranks at once, beside plain copies of 64 MiB from pinned memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

#include "pss.h"

enum { WARM_UP = 3, BLOCK_BYTES = 64 << 20, BLOCKS = 16, ROUNDS = 3 };

#define TRY(call)                                                \
    do {                                                         \
        if ((call) != OAR_OK) {                                  \
            fprintf(stderr, "gpu_fsdp: line %d: %s\n", __LINE__, \
                    oar_last_error_text());                      \
            exit(1);                                             \
        }                                                        \
    } while (0)

typedef struct settings {
    const char *mode, *backend;
    int64_t width, layers, batch, context, vocabulary;
    int steps;
} settings;

typedef struct training {
    settings set;
    oar_group *world;
    oar_device device;
    oar_module *model;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x, *y;
    int64_t params;
    double rank_mib, gpu_mib, loss;
} training;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int is_mode(const training *t, const char *mode)
{
    return strcmp(t->set.mode, mode) == 0;
}

/* ---- making -------------------------------------------------------------- */

static void make_model(training *t)
{
    const settings *s = &t->set;

    TRY(oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = s->vocabulary,
                 .context = s->context, .width = s->width,
                 .layers = (int)s->layers,
                 .heads = (int)(s->width / 64 > 0 ? s->width / 64 : 1),
                 .tied = 1, .activation = OAR_GELU_TANH),
        &t->model));
    for (int i = 0; i < oar_module_params(t->model); i++)
        t->params += oar_tensor_count(oar_module_param(t->model, i));
    if (is_mode(t, "ddp"))
        TRY(oar_module_cast(t->model, OAR_BF16, 0));
    TRY(oar_module_to(t->model, t->device));
}

static void wrap_model(training *t)
{
    oar_adam_opts adam = oar_adam_opts_init();
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_tensor *const *param;
    int count;

    adam.lr = 1e-4;
    if (is_mode(t, "ddp")) {
        adam.master_weights = 1;
        TRY(oar_ddp_wrap(t->model, t->world, NULL, &t->model));
        TRY(oar_adamw_create(t->model, &adam, &t->adam));
        return;
    }
    o.hold = is_mode(t, "own")      ? OAR_HOLD_OWN
             : is_mode(t, "mapped") ? OAR_HOLD_MAPPED
                                    : OAR_HOLD_HOST;
    o.host_state = is_mode(t, "state");
    o.mixed = 1;
    o.param_dtype = o.reduce_dtype = o.output_dtype = OAR_BF16;
    TRY(oar_fsdp_wrap(t->model, t->world, &o, &t->model));
    param = oar_fsdp_params(t->model, &count);
    TRY(oar_adamw_create_over(count, param, &adam, &t->adam));
}

static void make_batch(training *t)
{
    const settings *s = &t->set;
    uint64_t seed = 7 + (uint64_t)oar_group_rank(t->world);
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(s->batch, s->context),
                                seed, 0, (double)s->vocabulary);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(s->batch * s->context),
                                seed + 100, 0, (double)s->vocabulary);

    t->x = oar_to(NULL, x, t->device);
    t->y = oar_to(NULL, y, t->device);
    oar_tensor_release(x);
    oar_tensor_release(y);
    if (t->x == NULL || t->y == NULL) {
        fprintf(stderr, "gpu_fsdp: %s\n", oar_last_error_text());
        exit(1);
    }
}

/* ---- training ------------------------------------------------------------ */

static void wait_for_all(const training *t)
{
    TRY(oar_stream_synchronize(t->device, oar_stream_current(t->device)));
    TRY(oar_barrier(t->world, NULL, NULL));
}

static void run_step(training *t, int last)
{
    oar_device_properties gpu = oar_device_properties_init();
    oar_device_usage usage = oar_device_usage_init();
    oar_tensor *loss =
        oar_cross_entropy(t->tape, oar_forward(t->tape, t->model, t->x), t->y);

    TRY(oar_backward(t->tape, loss));
    if (last) {
        TRY(oar_tensor_item(loss, &t->loss));
        TRY(oar_barrier(t->world, NULL, NULL));
        TRY(oar_device_describe(t->device, &gpu));
        TRY(oar_device_memory(t->device, &usage));
        t->rank_mib = (double)usage.used_bytes / (1 << 20);
        t->gpu_mib = (double)(gpu.memory_bytes - gpu.free_bytes) / (1 << 20);
    }
    TRY(oar_optim_step(t->adam));
    oar_optim_zero_grad(t->adam);
    oar_tape_reset(t->tape);
}

static double time_steps(training *t)
{
    double from;

    for (int i = 0; i < WARM_UP; i++)
        run_step(t, i == WARM_UP - 1);
    wait_for_all(t);
    from = now_s();
    for (int i = 0; i < t->set.steps; i++)
        run_step(t, 0);
    wait_for_all(t);
    return (now_s() - from) / t->set.steps;
}

/* ---- copies from the host ------------------------------------------------ */

/* Gives the bytes a second of plain copies, of this rank. */
static double copy_bound(const training *t)
{
    void *host, *there;
    double best = 0;

    TRY(oar_pinned_alloc(BLOCK_BYTES, &host));
    memset(host, 1, BLOCK_BYTES);
    TRY(oar_device_alloc(t->device, BLOCK_BYTES, &there));
    for (int round = 0; round < ROUNDS; round++) {
        double from, rate;

        wait_for_all(t);
        from = now_s();
        for (int i = 0; i < BLOCKS; i++)
            TRY(oar_device_copy(there, t->device, host,
                                oar_device_of(OAR_CPU, 0), BLOCK_BYTES,
                                oar_stream_current(t->device)));
        wait_for_all(t);
        rate = (double)BLOCKS * BLOCK_BYTES / (now_s() - from);
        best = rate > best ? rate : best;
    }
    oar_device_free(t->device, there, oar_stream_current(t->device));
    oar_pinned_free(host);
    return best;
}

/* The same of all units, one after the other, as a forward brings them. */
static double unit_rate(const training *t)
{
    oar_shards *s = oar_fsdp_shards(t->model);
    oar_shards_stats stats = oar_shards_stats_init();
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        double from, rate;
        uint64_t before;

        TRY(oar_shards_publish(s));
        wait_for_all(t);
        TRY(oar_shards_read_stats(s, &stats));
        before = stats.gathered_bytes;
        from = now_s();
        for (int u = 0; u < oar_shards_units(s); u++) {
            TRY(oar_shards_unshard(s, u));
            TRY(oar_shards_reshard(s, u));
        }
        wait_for_all(t);
        TRY(oar_shards_read_stats(s, &stats));
        rate = (double)(stats.gathered_bytes - before) / (now_s() - from);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- figures ------------------------------------------------------------- */

static void print_figures(training *t, double step_s)
{
    int ranks = oar_group_size(t->world);
    double tokens = (double)(t->set.batch * t->set.context * ranks);
    double sum[5] = { t->rank_mib, (double)pss_kib() / 1024, t->loss, 0, 0 };

    if (is_mode(t, "host") || is_mode(t, "state")) {
        sum[3] = unit_rate(t) * 1e-9;
        sum[4] = copy_bound(t) * 1e-9;
    }
    TRY(oar_all_reduce(t->world, oar_span_of(sum, 5, OAR_F64), OAR_SUM, NULL,
                       NULL));
    if (oar_group_rank(t->world) != 0)
        return;
    printf("gpu_fsdp,%s,%d,%.1fM,%lld,%.2f,%.0f,%.0f,%.0f,%.0f,%.4f,"
           "%.2f,%.2f,%.1f\n",
           t->set.mode, ranks, (double)t->params / 1e6, (long long)t->set.batch,
           step_s * 1e3, tokens / step_s, sum[0] / ranks, t->gpu_mib, sum[1],
           sum[2] / ranks, sum[3], sum[4],
           sum[4] > 0 ? 100 * sum[3] / sum[4] : 0);
}

static int read_settings(int argc, char **argv, settings *s)
{
    if (argc < 2)
        return 0;
    s->mode = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(name, "--width") == 0)
            s->width = atoll(value);
        else if (strcmp(name, "--layers") == 0)
            s->layers = atoll(value);
        else if (strcmp(name, "--batch") == 0)
            s->batch = atoll(value);
        else if (strcmp(name, "--context") == 0)
            s->context = atoll(value);
        else if (strcmp(name, "--vocabulary") == 0)
            s->vocabulary = atoll(value);
        else if (strcmp(name, "--steps") == 0)
            s->steps = atoi(value) > 0 ? atoi(value) : 1;
        else if (strcmp(name, "--backend") == 0)
            s->backend = value;
        else
            return 0;
    }
    return strcmp(s->mode, "ddp") == 0 || strcmp(s->mode, "own") == 0 ||
           strcmp(s->mode, "mapped") == 0 || strcmp(s->mode, "host") == 0 ||
           strcmp(s->mode, "state") == 0;
}

int main(int argc, char **argv)
{
    training t = { .set = { .backend = "ipc",
                            .width = 768,
                            .layers = 12,
                            .batch = 8,
                            .context = 1024,
                            .vocabulary = 50304,
                            .steps = 10 } };
    double step_s;

    if (!read_settings(argc, argv, &t.set)) {
        fputs("usage: gpu_fsdp ddp|own|mapped|host|state [--width N] "
              "[--layers N] [--batch N] [--context N] [--vocabulary N] "
              "[--steps N] [--backend NAME]\n",
              stderr);
        return 2;
    }
    t.device = oar_device_current();
    TRY(oar_group_from_env(
        OAR_OPTS(oar_group_opts, .backend = t.set.backend, .device = &t.device),
        &t.world));
    make_model(&t);
    wrap_model(&t);
    TRY(oar_device_trim(t.device)); /* of the model before it was spread */
    make_batch(&t);
    TRY(oar_tape_create(&t.tape));
    step_s = time_steps(&t);
    print_figures(&t, step_s);
    oar_tape_destroy(t.tape);
    oar_optim_destroy(t.adam);
    oar_module_release(t.model);
    oar_tensor_release(t.x);
    oar_tensor_release(t.y);
    oar_group_destroy(t.world);
    return 0;
}
