/* SPDX-License-Identifier: Apache-2.0 */
/* models.h: the two models that are trained beside PyTorch, with their data:
 *   mlp  784-WIDTH-WIDTH-10, ReLU, cross entropy, batch 64, SGD
 *   gpt  4 pre-norm blocks of width 128 with 4 heads, sequence 64, vocabulary
 *        65, batch 16, AdamW
 *   gpt2 GPT-2 124M in bf16 with master weights, sequence 1024, batch 8, AdamW:
 *        for GPUs, not beside PyTorch
 * train.c (one process) and ddp.c (ranks) include it; train_torch.py and
 * ddp_torch.py have the same. */
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { BATCHES = 8, MLP_WIDTH = 1024 };

typedef struct model {
    const char *name;
    int batch, sequence;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x[BATCHES], *y[BATCHES];
} model;

static inline double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts. */
static inline double median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, by_size);
    return value[n / 2];
}

static inline oar_status make_mlp(model *m, int64_t width, uint64_t seed)
{
    oar_module *layer[5] = { 0 };

    m->batch = 64;
    m->sequence = 1;
    TRY(oar_linear_create(784, width, 1, NULL, &layer[0]));
    TRY(oar_relu_create(&layer[1]));
    TRY(oar_linear_create(width, width, 3, NULL, &layer[2]));
    TRY(oar_relu_create(&layer[3]));
    TRY(oar_linear_create(width, 10, 5, NULL, &layer[4]));
    TRY(oar_sequential_create(5, layer, &m->net));
    for (uint64_t i = 0; i < BATCHES; i++) {
        m->x[i] = oar_normal(NULL, OAR_F32, OAR_SHAPE(64, 784), seed + i, 0, 1);
        m->y[i] =
            oar_uniform(NULL, OAR_I64, OAR_SHAPE(64), seed + 100 + i, 0, 10);
    }
    return OAR_OK;
}

static inline void make_tokens(model *m, uint64_t seed, double kinds)
{
    int64_t rows = m->batch, length = m->sequence;

    for (uint64_t i = 0; i < BATCHES; i++) {
        m->x[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(rows, length), seed + i,
                              0, kinds);
        m->y[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(rows * length),
                              seed + 100 + i, 0, kinds);
    }
}

static inline oar_status make_gpt(model *m, uint64_t seed)
{
    m->batch = 16;
    m->sequence = 64;
    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 65, .context = 64,
                                .width = 128, .layers = 4, .heads = 4,
                                .seed = 1),
                       &m->net));
    make_tokens(m, seed, 65);
    return OAR_OK;
}

static inline oar_status make_gpt2(model *m, uint64_t seed)
{
    m->batch = 8;
    m->sequence = 1024;
    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 50304,
                                .context = 1024, .width = 768, .layers = 12,
                                .heads = 12, .tied = 1, .seed = 1),
                       &m->net));
    make_tokens(m, seed, 50257);
    return oar_module_cast(m->net, OAR_BF16, 0);
}

/* The model of that name, its data by the seed, and a tape; no optimizer yet.
 */
static inline oar_status make_model(model *m, const char *name, int64_t width,
                                    uint64_t seed)
{
    m->name = name;
    if (strcmp(name, "gpt") == 0)
        TRY(make_gpt(m, seed));
    else if (strcmp(name, "gpt2") == 0)
        TRY(make_gpt2(m, seed));
    else
        TRY(make_mlp(m, width, seed));
    return oar_tape_create(&m->tape);
}

/* Converts the model and its inputs, norms excepted. Before make_optim. */
static inline oar_status cast_model(model *m, oar_dtype dtype)
{
    TRY(oar_module_cast(m->net, dtype, 0));
    for (int i = 0; i < BATCHES && oar_tensor_dtype(m->x[i]) == OAR_F32; i++) {
        oar_tensor *x = oar_cast(NULL, m->x[i], dtype);

        if (x == NULL)
            return oar_last_error()->status;
        oar_tensor_release(m->x[i]);
        m->x[i] = x;
    }
    return OAR_OK;
}

static inline oar_status make_optim(model *m)
{
    if (strcmp(m->name, "mlp") != 0)
        return oar_adamw_create(
            m->net, OAR_OPTS(oar_adam_opts, .lr = 1e-3, .master_weights = 1),
            &m->optim);
    return oar_sgd_create(
        m->net, OAR_OPTS(oar_sgd_opts, .lr = 0.1, .master_weights = 1),
        &m->optim);
}

/* Moves the model and its data there. Before make_optim. */
static inline oar_status move_model(model *m, oar_device device)
{
    TRY(oar_module_to(m->net, device));
    for (int i = 0; i < BATCHES; i++) {
        oar_tensor *x = oar_to(NULL, m->x[i], device);
        oar_tensor *y = oar_to(NULL, m->y[i], device);

        if (x == NULL || y == NULL)
            return oar_last_error()->status;
        oar_tensor_release(m->x[i]);
        oar_tensor_release(m->y[i]);
        m->x[i] = x;
        m->y[i] = y;
    }
    return OAR_OK;
}

/* A step on tensors that stay, as a replay needs it: arg is a model, whose
 * first batch is copied over before each step. */
static inline oar_status step_in_place(void *arg)
{
    model *m = arg;
    oar_tensor *logits;

    oar_optim_zero_grad(m->optim);
    oar_tape_reset(m->tape);
    logits = oar_forward(m->tape, m->net, m->x[0]);
    TRY(oar_backward(m->tape, oar_cross_entropy(m->tape, logits, m->y[0])));
    return oar_optim_step(m->optim);
}

/* Steps on a GPU, as they are (replay NULL) or replayed. */
static inline oar_status run_in_place(model *m, oar_replay *replay, int steps)
{
    for (int i = 0; i < steps; i++) {
        int from = 1 + i % (BATCHES - 1);

        TRY(oar_tensor_copy(m->x[0], m->x[from]));
        TRY(oar_tensor_copy(m->y[0], m->y[from]));
        TRY(replay != NULL ? oar_replay_run(replay) : step_in_place(m));
    }
    return OAR_OK;
}

/* When each phase of a step has ended. */
typedef struct phases {
    double start, forward, backward, optimizer;
} phases;

static inline oar_status train_step(model *m, int i, phases *at)
{
    oar_tensor *logits, *loss;

    at->start = now_us();
    logits = oar_forward(m->tape, m->net, m->x[i % BATCHES]);
    loss = oar_cross_entropy(m->tape, logits, m->y[i % BATCHES]);
    at->forward = now_us();
    TRY(oar_backward(m->tape, loss));
    at->backward = now_us();
    TRY(oar_optim_step(m->optim));
    oar_optim_zero_grad(m->optim);
    oar_tape_reset(m->tape);
    at->optimizer = now_us();
    return OAR_OK;
}

#endif
