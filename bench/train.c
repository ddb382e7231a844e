/* SPDX-License-Identifier: Apache-2.0 */
/* train: one process, one thread, the two models that bench/compare puts beside
 * PyTorch (models.h).
 *
 *     train mlp|gpt [SECONDS]           times steps; beside it, in turns, the
 *                                       floor
 *     train mlp|gpt memory              how much the resident size grows
 *     train mlp|gpt profile [SECONDS]   steps alone, by phase (bench/profile)
 *     train mlp|gpt --device cuda [SECONDS]   times steps on a GPU
 *
 * With KEEP set, no product is computed twice (oar_tape_rebuild).
 *
 * The floor of a step: its matrix products replayed alone through the same
 * BLAS, with the shapes and transposes they have, and one pass over memory of
 * the size of parameters and activations. What is computed twice to
 * save memory is no part of it. Prints a line
 * train,oarsong,MODEL,plain,1,BATCH,STEPS,p50_us,p10_us,samples/s,tokens/s and
 * a line floor,oarsong,MODEL,p50_us,percent (of the step that is floor); or
 * memory,oarsong,MODEL,END,PEAK,THREE: KiB by which the resident size has grown
 * since before the optimizer was made, at the end of the first step, at most
 * during it, and at the end of the third; or
 * profile,oarsong,MODEL,STEPS,forward_us,backward_us,optimizer_us (medians).
 * On a GPU there are lines train,oarsong-cuda,MODEL,plain|replay,... as above
 * and the host's time of a step in us; times are those of blocks of steps,
 * between two waits for the GPU.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "models.h"

enum { MAX_STEPS = 20000, WARM_UP = 10 };

/* `times` layers that multiply rows of `in` numbers by a matrix to get `out`;
 * of the first one nobody wants the gradient of its input. */
typedef struct dense {
    int rows, in, out, times, first;
} dense;

/* What the floor of a model is made of. */
typedef struct work {
    const dense *dense;
    int denses;
    int heads;          /* times batch and blocks: of 64 positions, 32 wide */
    size_t activations; /* floats that a step writes besides parameters */
} work;

static const dense mlp_dense[] = {
    { 64, 784, 1024, 1, 1 },
    { 64, 1024, 1024, 1, 0 },
    { 64, 1024, 10, 1, 0 },
};
static const dense gpt_dense[] = {
    { 1024, 128, 384, 4, 0 }, { 1024, 128, 128, 4, 0 },
    { 1024, 128, 512, 4, 0 }, { 1024, 512, 128, 4, 0 },
    { 1024, 128, 65, 1, 0 },
};

static const work mlp_work = { mlp_dense, 3, 0,
                               (size_t)64 * (1024 * 4 + 10) * 2 };
static const work gpt_work = { gpt_dense, 5, 64 * 4,
                               (size_t)1024 *
                                   (4 * (128 * 6 + 384 + 512 * 2) + 128 + 65) };

static const work *work_of(const model *m)
{
    return strcmp(m->name, "gpt") == 0 ? &gpt_work : &mlp_work;
}

/* ---- the floor ----------------------------------------------------------- */

enum { MOST = 1024 * 1024 }; /* floats in a matrix */

static float *scratch; /* three matrices */
static float *pass;
static size_t pass_count;

static oar_status make_floor(const model *m)
{
    pass_count = work_of(m)->activations;
    for (int i = 0; i < oar_module_params(m->net); i++)
        pass_count += (size_t)oar_tensor_count(oar_module_param(m->net, i));
    scratch = calloc((size_t)3 * MOST, sizeof *scratch);
    pass = calloc(pass_count, sizeof *pass);
    return scratch != NULL && pass != NULL ? OAR_OK : OAR_E_NOMEM;
}

enum { AS_IT_IS, TURNED };

static void multiply(int a, int b, int m, int n, int k)
{
    cblas_sgemm(CblasRowMajor, a == TURNED ? CblasTrans : CblasNoTrans,
                b == TURNED ? CblasTrans : CblasNoTrans, m, n, k, 1, scratch,
                a == TURNED ? m : k, scratch + MOST, b == TURNED ? k : n, 0,
                scratch + 2 * MOST, n);
}

/* Forward, and backward to weight and input. */
static void replay_dense(const dense *l)
{
    for (int i = 0; i < l->times; i++) {
        multiply(AS_IT_IS, TURNED, l->rows, l->out, l->in);
        multiply(TURNED, AS_IT_IS, l->out, l->in, l->rows);
        if (!l->first)
            multiply(AS_IT_IS, AS_IT_IS, l->rows, l->in, l->out);
    }
}

/* The scores twice, and what comes of them; the gradients of p, q, k, v. */
static void replay_head(void)
{
    multiply(AS_IT_IS, TURNED, 64, 64, 32);
    multiply(AS_IT_IS, AS_IT_IS, 64, 32, 64);
    multiply(AS_IT_IS, TURNED, 64, 64, 32);
    multiply(AS_IT_IS, TURNED, 64, 64, 32);
    multiply(AS_IT_IS, AS_IT_IS, 64, 32, 64);
    multiply(TURNED, AS_IT_IS, 64, 32, 64);
    multiply(TURNED, AS_IT_IS, 64, 32, 64);
}

static void floor_step(const work *m)
{
    for (int i = 0; i < m->denses; i++)
        replay_dense(&m->dense[i]);
    for (int i = 0; i < m->heads; i++)
        replay_head();
    for (size_t i = 0; i < pass_count; i++)
        pass[i] = pass[i] * 0.5f + 1;
}

/* ---- timing -------------------------------------------------------------- */

static oar_status warm_up(model *m)
{
    phases at;

    for (int i = 0; i < WARM_UP; i++)
        TRY(train_step(m, i, &at));
    return OAR_OK;
}

static oar_status time_steps(model *m, double seconds)
{
    static double step[MAX_STEPS], base[MAX_STEPS];
    double start, end = now_us() + seconds * 1e6, p50;
    phases at;
    int n = 0;

    TRY(warm_up(m));
    TRY(make_floor(m));
    floor_step(work_of(m));
    while (n < MAX_STEPS && (n < 10 || now_us() < end)) {
        TRY(train_step(m, n, &at));
        step[n] = at.optimizer - at.start;
        start = now_us();
        floor_step(work_of(m));
        base[n++] = now_us() - start;
    }
    p50 = median(step, n);
    printf("train,oarsong,%s,plain,1,%d,%d,%.1f,%.1f,%.1f,%.1f\n", m->name,
           m->batch, n, p50, step[n / 10], m->batch / p50 * 1e6,
           (double)m->batch * m->sequence / p50 * 1e6);
    printf("floor,oarsong,%s,%.1f,%.0f\n", m->name, median(base, n),
           100 * median(base, n) / p50);
    return OAR_OK;
}

static oar_status time_phases(model *m, double seconds)
{
    static double forward[MAX_STEPS], backward[MAX_STEPS], optimizer[MAX_STEPS];
    double end = now_us() + seconds * 1e6;
    phases at;
    int n = 0;

    TRY(warm_up(m));
    while (n < MAX_STEPS && (n < 10 || now_us() < end)) {
        TRY(train_step(m, n, &at));
        forward[n] = at.forward - at.start;
        backward[n] = at.backward - at.forward;
        optimizer[n++] = at.optimizer - at.backward;
    }
    printf("profile,oarsong,%s,%d,%.1f,%.1f,%.1f\n", m->name, n,
           median(forward, n), median(backward, n), median(optimizer, n));
    return OAR_OK;
}

/* ---- memory -------------------------------------------------------------- */

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;

    if (file != NULL && fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (file != NULL)
        fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The most that was resident since the last forget_peak. */
static long peak_kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[128];
    long kib = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");

    if (file == NULL)
        return;
    fputs("5", file);
    fclose(file);
}

/* Before the optimizer: PyTorch's makes its state in the first step. */
static oar_status measure_memory(model *m)
{
    long before = resident_kib(), end, peak;
    phases at;

    TRY(make_optim(m));
    forget_peak();
    TRY(train_step(m, 0, &at));
    end = resident_kib();
    peak = peak_kib();
    for (int i = 1; i < 3; i++)
        TRY(train_step(m, i, &at));
    printf("memory,oarsong,%s,%ld,%ld,%ld\n", m->name, end - before,
           peak - before, resident_kib() - before);
    return OAR_OK;
}

/* ---- on a GPU ------------------------------------------------------------ */

enum { BLOCK = 50 };

static oar_status time_blocks(model *m, oar_device device, oar_replay *replay,
                              double seconds)
{
    static double step[MAX_STEPS], host[MAX_STEPS];
    void *stream = oar_stream_current(device);
    double start, end, p50;
    int n = 0;

    TRY(run_in_place(m, replay, WARM_UP));
    TRY(oar_stream_synchronize(device, stream));
    end = now_us() + seconds * 1e6;
    while (n < MAX_STEPS && (n < 5 || now_us() < end)) {
        start = now_us();
        TRY(run_in_place(m, replay, BLOCK));
        host[n] = (now_us() - start) / BLOCK;
        TRY(oar_stream_synchronize(device, stream));
        step[n++] = (now_us() - start) / BLOCK;
    }
    p50 = median(step, n);
    printf("train,oarsong-cuda,%s,%s,1,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f\n",
           m->name, replay != NULL ? "replay" : "plain", m->batch, n * BLOCK,
           p50, step[n / 10], m->batch / p50 * 1e6,
           (double)m->batch * m->sequence / p50 * 1e6, median(host, n));
    return OAR_OK;
}

static oar_status time_on_gpu(model *m, const char *name, double seconds)
{
    oar_replay *replay = NULL;
    oar_device device;
    oar_status status;

    TRY(oar_device_parse(name, &device));
    TRY(move_model(m, device));
    TRY(make_optim(m));
    TRY(time_blocks(m, device, NULL, seconds));
    TRY(oar_replay_create(device, step_in_place, m,
                          OAR_OPTS(oar_replay_opts, .strict = 1), &replay));
    status = time_blocks(m, device, replay, seconds);
    oar_replay_destroy(replay);
    return status;
}

static oar_status run(model *m, const char *what, const char *seconds)
{
    if (strcmp(what, "memory") == 0)
        return measure_memory(m);
    TRY(make_optim(m));
    if (strcmp(what, "profile") == 0)
        return time_phases(m, atof(seconds));
    return time_steps(m, atof(what));
}

int main(int argc, char **argv)
{
    model m = { 0 };
    oar_status status =
        make_model(&m, argc > 1 ? argv[1] : "mlp", MLP_WIDTH, 100);

    if (status == OAR_OK && getenv("KEEP") != NULL)
        oar_tape_rebuild(m.tape, 0);
    if (status == OAR_OK && argc > 3 && strcmp(argv[2], "--device") == 0)
        status = time_on_gpu(&m, argv[3], argc > 4 ? atof(argv[4]) : 3);
    else if (status == OAR_OK)
        status = run(&m, argc > 2 ? argv[2] : "3", argc > 3 ? argv[3] : "3");
    if (status != OAR_OK)
        fprintf(stderr, "train: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
