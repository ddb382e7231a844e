/* SPDX-License-Identifier: Apache-2.0 */
/* train: one process, one thread, the two models that bench/compare puts beside
 * PyTorch:
 *   mlp  784-1024-1024-10, ReLU, cross entropy, batch 64, SGD
 *   gpt  4 pre-norm blocks of width 128 with 4 heads, sequence 64, vocabulary
 *        65, batch 16, AdamW
 *
 *     train mlp|gpt [SECONDS]         times steps; beside it, in turns, the
 * floor train mlp|gpt memory            how much the resident size grows in a
 * step
 *
 * The floor of a step: its matrix products replayed alone through the same
 * BLAS, and one pass over parameters and activations. Prints a line
 * train,oarsong,MODEL,plain,1,BATCH,STEPS,p50_us,p10_us,samples/s,tokens/s and
 * a line floor,oarsong,MODEL,p50_us,percent (of the step that is floor).
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { MAX_STEPS = 20000, WARM_UP = 10, BATCHES = 8 };

/* One product of the step: m x k times k x n, so many times. */
typedef struct product {
    int m, n, k, times;
} product;

typedef struct model {
    const char *name;
    int batch, sequence;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x[BATCHES], *y[BATCHES];
    const product *product;
    int products;
    size_t activations; /* floats that a step writes besides parameters */
} model;

/* Forward, and backward to input and weight: the same flops three times. The
 * first layer's input has no gradient. */
static const product mlp_products[] = {
    { 64, 1024, 784, 2 },
    { 64, 1024, 1024, 3 },
    { 64, 10, 1024, 3 },
};
static const product gpt_products[] = {
    { 1024, 384, 128, 3 * 4 },  { 1024, 128, 128, 3 * 4 },
    { 1024, 512, 128, 3 * 4 },  { 1024, 128, 512, 3 * 4 },
    { 64, 64, 32, 64 * 4 * 3 }, /* q k^T, twice, and p's gradient */
    { 64, 32, 64, 64 * 4 * 4 }, /* p v, and the gradients of q, k, v */
    { 1024, 65, 128, 3 },
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- the models ------------------------------------------------------------
 */

static oar_status make_mlp(model *m)
{
    oar_module *layer[5] = { 0 };

    m->batch = 64;
    m->sequence = 1;
    m->product = mlp_products;
    m->products = sizeof mlp_products / sizeof *mlp_products;
    m->activations = 64 * (1024 * 4 + 10) * 2;
    TRY(oar_linear_create(784, 1024, 1, NULL, &layer[0]));
    TRY(oar_relu_create(&layer[1]));
    TRY(oar_linear_create(1024, 1024, 3, NULL, &layer[2]));
    TRY(oar_relu_create(&layer[3]));
    TRY(oar_linear_create(1024, 10, 5, NULL, &layer[4]));
    TRY(oar_sequential_create(5, layer, &m->net));
    TRY(oar_sgd_create(m->net, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &m->optim));
    for (int i = 0; i < BATCHES; i++) {
        m->x[i] = oar_normal(NULL, OAR_F32, OAR_SHAPE(64, 784),
                             100 + (uint64_t)i, 0, 1);
        m->y[i] =
            oar_uniform(NULL, OAR_I64, OAR_SHAPE(64), 200 + (uint64_t)i, 0, 10);
    }
    return OAR_OK;
}

static oar_status make_gpt(model *m)
{
    m->batch = 16;
    m->sequence = 64;
    m->product = gpt_products;
    m->products = sizeof gpt_products / sizeof *gpt_products;
    m->activations = (size_t)1024 * (4 * (128 * 6 + 384 + 512 * 2) + 128 + 65);
    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 65, .context = 64,
                                .width = 128, .layers = 4, .heads = 4,
                                .seed = 1),
                       &m->net));
    TRY(oar_adamw_create(m->net, OAR_OPTS(oar_adam_opts, .lr = 1e-3),
                         &m->optim));
    for (int i = 0; i < BATCHES; i++) {
        m->x[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(16, 64),
                              100 + (uint64_t)i, 0, 65);
        m->y[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(1024), 200 + (uint64_t)i,
                              0, 65);
    }
    return OAR_OK;
}

static oar_status train_step(model *m, int i)
{
    oar_tensor *logits = oar_forward(m->tape, m->net, m->x[i % BATCHES]);
    oar_tensor *loss = oar_cross_entropy(m->tape, logits, m->y[i % BATCHES]);

    TRY(oar_backward(m->tape, loss));
    TRY(oar_optim_step(m->optim));
    oar_optim_zero_grad(m->optim);
    oar_tape_reset(m->tape);
    return OAR_OK;
}

/* ---- the floor --------------------------------------------------------------
 */

static float *scratch, *pass;
static size_t pass_count;

static oar_status make_floor(const model *m)
{
    size_t most = (size_t)1024 * 1024;

    pass_count = m->activations;
    for (int i = 0; i < oar_module_params(m->net); i++)
        pass_count += (size_t)oar_tensor_count(oar_module_param(m->net, i));
    scratch = calloc(3 * most, sizeof *scratch);
    pass = calloc(pass_count, sizeof *pass);
    return scratch != NULL && pass != NULL ? OAR_OK : OAR_E_NOMEM;
}

static void floor_step(const model *m)
{
    size_t most = (size_t)1024 * 1024;

    for (int i = 0; i < m->products; i++)
        for (int t = 0; t < m->product[i].times; t++) {
            const product *p = &m->product[i];
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, p->m, p->n,
                        p->k, 1, scratch, p->k, scratch + most, p->k, 0,
                        scratch + 2 * most, p->n);
        }
    for (size_t i = 0; i < pass_count; i++)
        pass[i] = pass[i] * 0.5f + 1;
}

/* ---- timing
 * ------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static oar_status time_steps(model *m, double seconds)
{
    static double step[MAX_STEPS], base[MAX_STEPS];
    double start, end = now_us() + seconds * 1e6, p50;
    int n = 0;

    for (int i = 0; i < WARM_UP; i++)
        TRY(train_step(m, i));
    TRY(make_floor(m));
    floor_step(m);
    while (n < MAX_STEPS && (n < 10 || now_us() < end)) {
        start = now_us();
        TRY(train_step(m, n));
        step[n] = now_us() - start;
        start = now_us();
        floor_step(m);
        base[n++] = now_us() - start;
    }
    qsort(step, (size_t)n, sizeof *step, by_size);
    qsort(base, (size_t)n, sizeof *base, by_size);
    p50 = step[n / 2];
    printf("train,oarsong,%s,plain,1,%d,%d,%.1f,%.1f,%.1f,%.1f\n", m->name,
           m->batch, n, p50, step[n / 10], m->batch / p50 * 1e6,
           (double)m->batch * m->sequence / p50 * 1e6);
    printf("floor,oarsong,%s,%.1f,%.0f\n", m->name, base[n / 2],
           100 * base[n / 2] / p50);
    return OAR_OK;
}

/* ---- memory
 * ------------------------------------------------------------------ */

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

static oar_status grow_in_a_step(model *m)
{
    long before = resident_kib();

    TRY(train_step(m, 0));
    printf("memory,oarsong,%s,%ld\n", m->name, resident_kib() - before);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    model m = { .name = argc > 1 ? argv[1] : "mlp" };
    oar_status status =
        strcmp(m.name, "gpt") == 0 ? make_gpt(&m) : make_mlp(&m);

    if (status == OAR_OK)
        status = oar_tape_create(&m.tape);
    if (status == OAR_OK && argc > 2 && strcmp(argv[2], "memory") == 0)
        status = grow_in_a_step(&m);
    else if (status == OAR_OK)
        status = time_steps(&m, argc > 2 ? atof(argv[2]) : 3);
    if (status != OAR_OK)
        fprintf(stderr, "train: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
