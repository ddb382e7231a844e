/* SPDX-License-Identifier: Apache-2.0 */
/* train: one process, one thread, the two models that bench/compare puts beside
 * PyTorch (models.h).
 *
 *     train mlp|gpt [SECONDS]           times steps; beside it, in turns, the
 *                                       floor
 *     train mlp|gpt memory              how much the resident size grows
 *     train mlp|gpt profile [SECONDS]   steps alone, by phase (bench/profile)
 *     train mlp|gpt bf16 [SECONDS]      steps of the model in bf16, masters in
 *                                       f32
 *     train mlp|gpt products [SECONDS]  its dense layers' products alone
 *     train mlp|gpt --device cuda [SECONDS]   times steps on a GPU; SECONDS 0:
 *                                       a few of a narrower MLP, for the losses
 *
 * With KEEP set, no product is computed twice (oar_tape_rebuild).
 *
 * The floor of a step: its matrix products replayed alone, with the shapes and
 * transposes they have, those of dense layers by CBLAS or by oar_matmul (which
 * may use oneDNN), whichever is faster, and one pass over memory of the size of
 * parameters and activations. What is computed twice to
 * save memory is no part of it. Prints a line
 * train,oarsong,MODEL,plain,1,BATCH,STEPS,p50_us,p10_us,samples/s,tokens/s and
 * a line floor,oarsong,MODEL,p50_us,percent (of the step that is floor); or
 * memory,oarsong,MODEL,END,PEAK,THREE: KiB by which the resident size has grown
 * since before the optimizer was made, at the end of the first step, at most
 * during it, and at the end of the third; or
 * profile,oarsong,MODEL,STEPS,forward_us,backward_us,optimizer_us (medians);
 * or train,oarsong-bf16,... as above; or
 * products,BY,MODEL,DTYPE,p50_us,GFLOP/s, by CBLAS itself and by oar_matmul in
 * f32 and bf16, in turns (OARSONG_DNNL says what that uses).
 * On a GPU there are lines train,oarsong-cuda,MODEL,plain|replay,... as above
 * and the host's time of a step in us; times are those of blocks of steps,
 * between two waits for the GPU. loss,oarsong-cuda,MODEL,plain|replay,BEFORE,
 * AFTER is the loss of one batch. --device cpu does the plain steps.
 */
#include <cblas.h>
#include <math.h>
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

static void replay_denses(const work *m)
{
    for (int i = 0; i < m->denses; i++)
        replay_dense(&m->dense[i]);
}

/* All but the dense layers. */
static void replay_rest(const work *m)
{
    for (int i = 0; i < m->heads; i++)
        replay_head();
    for (size_t i = 0; i < pass_count; i++)
        pass[i] = pass[i] * 0.5f + 1;
}

/* ---- products by the library --------------------------------------------- */

enum { MOST_DENSES = 5 };

/* Of a layer: input, weight, gradient of the result, and these two turned. */
typedef struct operands {
    oar_tensor *x, *w, *g, *wt, *gt;
} operands;

static oar_status make_operands(const dense *l, oar_dtype dtype, operands *o)
{
    o->x = oar_normal(NULL, dtype, OAR_SHAPE(l->rows, l->in), 1, 0, 1);
    o->w = oar_normal(NULL, dtype, OAR_SHAPE(l->out, l->in), 2, 0, 1);
    o->g = oar_normal(NULL, dtype, OAR_SHAPE(l->rows, l->out), 3, 0, 1);
    o->wt = oar_transpose(NULL, o->w, 0, 1);
    o->gt = oar_transpose(NULL, o->g, 0, 1);
    return o->wt != NULL && o->gt != NULL && o->x != NULL
               ? OAR_OK
               : oar_last_error()->status;
}

/* The products of replay_dense, for all layers, by oar_matmul. */
static oar_status multiply_denses(oar_tape *tape, const work *m,
                                  const operands *o)
{
    for (int i = 0; i < m->denses; i++, o++)
        for (int k = 0; k < m->dense[i].times; k++) {
            if (oar_matmul(tape, o->x, o->wt) == NULL ||
                oar_matmul(tape, o->gt, o->x) == NULL ||
                (!m->dense[i].first && oar_matmul(tape, o->g, o->w) == NULL))
                return oar_last_error()->status;
            oar_tape_reset(tape);
        }
    return OAR_OK;
}

/* ---- timing -------------------------------------------------------------- */

static oar_status warm_up(model *m)
{
    phases at;

    for (int i = 0; i < WARM_UP; i++)
        TRY(train_step(m, i, &at));
    return OAR_OK;
}

enum { STEP, BY_CBLAS, BY_MATMUL, REST, TIMES };

static oar_status time_steps(model *m, double seconds)
{
    static double us[TIMES][MAX_STEPS];
    const work *all = work_of(m);
    operands o[MOST_DENSES];
    double at[TIMES], end = now_us() + seconds * 1e6, p50, base;
    phases step;
    int n = 0;

    TRY(warm_up(m));
    TRY(make_floor(m));
    for (int i = 0; i < all->denses; i++)
        TRY(make_operands(&all->dense[i], OAR_F32, &o[i]));
    TRY(multiply_denses(m->tape, all, o));
    while (n < MAX_STEPS && (n < 10 || now_us() < end)) {
        TRY(train_step(m, n, &step));
        us[STEP][n] = step.optimizer - step.start;
        at[0] = now_us();
        replay_denses(all);
        at[1] = now_us();
        TRY(multiply_denses(m->tape, all, o));
        at[2] = now_us();
        replay_rest(all);
        at[3] = now_us();
        for (int i = 0; i < 3; i++)
            us[BY_CBLAS + i][n] = at[i + 1] - at[i];
        n++;
    }
    p50 = median(us[STEP], n);
    base = fmin(median(us[BY_CBLAS], n), median(us[BY_MATMUL], n)) +
           median(us[REST], n);
    printf("train,oarsong,%s,plain,1,%d,%d,%.1f,%.1f,%.1f,%.1f\n", m->name,
           m->batch, n, p50, us[STEP][n / 10], m->batch / p50 * 1e6,
           (double)m->batch * m->sequence / p50 * 1e6);
    printf("floor,oarsong,%s,%.1f,%.0f\n", m->name, base, 100 * base / p50);
    return OAR_OK;
}

static oar_status time_steps_bf16(model *m, double seconds)
{
    static double step[MAX_STEPS];
    double end, p50;
    phases at;
    int n = 0;

    TRY(warm_up(m));
    end = now_us() + seconds * 1e6;
    while (n < MAX_STEPS && (n < 10 || now_us() < end)) {
        TRY(train_step(m, n, &at));
        step[n++] = at.optimizer - at.start;
    }
    p50 = median(step, n);
    printf("train,oarsong-bf16,%s,plain,1,%d,%d,%.1f,%.1f,%.1f,%.1f\n", m->name,
           m->batch, n, p50, step[n / 10], m->batch / p50 * 1e6,
           (double)m->batch * m->sequence / p50 * 1e6);
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

/* ---- products alone ------------------------------------------------------ */

static double dense_flops(const work *m)
{
    double flops = 0;

    for (int i = 0; i < m->denses; i++) {
        const dense *l = &m->dense[i];

        flops += 2.0 * l->rows * l->in * l->out * l->times * (3 - l->first);
    }
    return flops;
}

static void print_products(const char *by, const model *m, const char *dtype,
                           double *us, int n)
{
    double p50 = median(us, n);

    printf("products,%s,%s,%s,%.1f,%.1f\n", by, m->name, dtype, p50,
           dense_flops(work_of(m)) / p50 * 1e-3);
}

static oar_status time_products(model *m, double seconds)
{
    static double us[3][MAX_STEPS];
    const work *all = work_of(m);
    operands f32[MOST_DENSES], bf16[MOST_DENSES];
    double end, at[4];
    int n = -1; /* the first round is not counted */

    TRY(make_floor(m));
    for (int i = 0; i < all->denses; i++) {
        TRY(make_operands(&all->dense[i], OAR_F32, &f32[i]));
        TRY(make_operands(&all->dense[i], OAR_BF16, &bf16[i]));
    }
    end = now_us() + seconds * 1e6;
    for (; n < MAX_STEPS && (n < 5 || now_us() < end); n++) {
        at[0] = now_us();
        replay_denses(all);
        at[1] = now_us();
        TRY(multiply_denses(m->tape, all, f32));
        at[2] = now_us();
        TRY(multiply_denses(m->tape, all, bf16));
        at[3] = now_us();
        for (int i = 0; i < 3 && n >= 0; i++)
            us[i][n] = at[i + 1] - at[i];
    }
    print_products("cblas", m, "f32", us[0], n);
    print_products("oar_matmul", m, "f32", us[1], n);
    print_products("oar_matmul", m, "bf16", us[2], n);
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

enum { BLOCK = 50, NARROW = 32 };

static oar_status wait_for(oar_device device)
{
    return device.kind == OAR_CPU
               ? OAR_OK
               : oar_stream_synchronize(device, oar_stream_current(device));
}

/* Of the last batch. */
static oar_status read_loss(model *m, double *loss)
{
    oar_tensor *logits, *value;

    oar_tape_reset(m->tape);
    logits = oar_forward(m->tape, m->net, m->x[BATCHES - 1]);
    value = oar_cross_entropy(m->tape, logits, m->y[BATCHES - 1]);
    TRY(oar_tensor_item(value, loss));
    oar_tape_reset(m->tape);
    return OAR_OK;
}

static oar_status time_blocks(model *m, oar_device device, oar_replay *replay,
                              double seconds)
{
    static double step[MAX_STEPS], host[MAX_STEPS];
    const char *way = replay != NULL ? "replay" : "plain";
    const char *kind = device.kind == OAR_CUDA ? "cuda" : "cpu";
    int block = seconds > 0 ? BLOCK : 1, n = 0;
    double start, end, p50, before, after;

    TRY(read_loss(m, &before));
    /* The fourth run of a replay is recorded. */
    TRY(run_in_place(m, replay, seconds > 0 ? WARM_UP : 4));
    TRY(wait_for(device));
    end = now_us() + seconds * 1e6;
    while (n < MAX_STEPS && (n < (seconds > 0 ? 5 : 1) || now_us() < end)) {
        start = now_us();
        TRY(run_in_place(m, replay, block));
        host[n] = (now_us() - start) / block;
        TRY(wait_for(device));
        step[n++] = (now_us() - start) / block;
    }
    p50 = median(step, n);
    printf("train,oarsong-%s,%s,%s,1,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f\n", kind,
           m->name, way, m->batch, n * block, p50, step[n / 10],
           m->batch / p50 * 1e6, (double)m->batch * m->sequence / p50 * 1e6,
           median(host, n));
    TRY(read_loss(m, &after));
    printf("loss,oarsong-%s,%s,%s,%.5f,%.5f\n", kind, m->name, way, before,
           after);
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
    if (device.kind == OAR_CPU)
        return OAR_OK;
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
    if (strcmp(what, "products") == 0)
        return time_products(m, atof(seconds));
    if (strcmp(what, "bf16") == 0) {
        TRY(cast_model(m, OAR_BF16));
        TRY(make_optim(m));
        return time_steps_bf16(m, atof(seconds));
    }
    TRY(make_optim(m));
    if (strcmp(what, "profile") == 0)
        return time_phases(m, atof(seconds));
    return time_steps(m, atof(what));
}

int main(int argc, char **argv)
{
    model m = { 0 };
    int there = argc > 3 && strcmp(argv[2], "--device") == 0;
    double seconds = argc > 4 ? atof(argv[4]) : 3;
    oar_status status =
        make_model(&m, argc > 1 ? argv[1] : "mlp",
                   there && seconds == 0 ? NARROW : MLP_WIDTH, 100);

    if (status == OAR_OK && getenv("KEEP") != NULL)
        oar_tape_rebuild(m.tape, 0);
    if (status == OAR_OK && there)
        status = time_on_gpu(&m, argv[3], seconds);
    else if (status == OAR_OK)
        status = run(&m, argc > 2 ? argv[2] : "3", argc > 3 ? argv[3] : "3");
    if (status != OAR_OK)
        fprintf(stderr, "train: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
