/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_truth: what a GPT-2 computes on a GPU, in files that gpu_truth_torch.py
 * compares with PyTorch's.
 *
 *     gpu_truth FOLDER LAYERS WIDTH VOCABULARY BATCH CONTEXT STEPS WARM SEED
 *
 * FOLDER gets params (a line for each: name, dims), params.f32, tokens.i64 (all
 * batches: inputs, then targets), logits and gradients of the first batch
 * (f32.logits, f32.grads and with bf16 parameters bf16.logits, bf16.grads, all
 * of f32), and losses of STEPS steps of training as text: f32.losses,
 * bf16.losses. The learning rate grows for WARM steps; SEED makes parameters
 * and tokens. The bf16 training runs twice; 1 is returned if the bits differ.
 */
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { TOKENS = 4, MOST_STEPS = 1000 };

typedef struct truth {
    const char *folder;
    oar_device device;
    int64_t layers, width, vocabulary, batch, context, steps, warm, seed;
} truth;

static FILE *open_file(const truth *t, const char *name)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    return fopen(path, "wb");
}

static oar_status write_numbers(FILE *file, const oar_tensor *tensor)
{
    size_t count = (size_t)oar_tensor_count(tensor), done;
    float *number = malloc((count + 1) * sizeof *number);
    oar_status status = number != NULL ? OAR_OK : OAR_E_NOMEM;

    if (status == OAR_OK)
        status = oar_tensor_read(tensor, OAR_F32, number);
    if (status == OAR_OK) {
        done = fwrite(number, sizeof *number, count, file);
        status = done == count ? OAR_OK : OAR_E_SYSTEM;
    }
    free(number);
    return status;
}

static oar_status make_gpt(const truth *t, oar_module **gpt)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = t->vocabulary;
    o.context = t->context;
    o.width = t->width;
    o.layers = (int)t->layers;
    o.heads = (int)(t->width / 64 > 0 ? t->width / 64 : 1);
    o.tied = 1;
    o.seed = (uint64_t)t->seed;
    o.activation = OAR_GELU_TANH;
    TRY(oar_gpt_create(&o, gpt));
    return oar_module_to(*gpt, t->device);
}

/* Tokens of batch number i, from a row of numbers that repeats: something to
 * learn. Writes them, too. */
static oar_status make_tokens(const truth *t, int i, FILE *file, oar_tensor **x,
                              oar_tensor **y)
{
    int64_t count = t->batch * t->context;
    int64_t *token = malloc((size_t)(count + 1) * sizeof *token);
    oar_tensor *a, *b;

    if (token == NULL)
        return OAR_E_NOMEM;
    for (int64_t k = 0; k <= count; k++)
        token[k] = ((k % 61) * (k % 61) * 7 + k / 5 * 31 + i * 1009 +
                    t->seed * 17 + 3) %
                   t->vocabulary;
    a = oar_from_data(NULL, OAR_I64, OAR_SHAPE(t->batch, t->context), token);
    b = oar_from_data(NULL, OAR_I64, OAR_SHAPE(count), token + 1);
    *x = oar_to(NULL, a, t->device);
    *y = oar_to(NULL, b, t->device);
    if (file != NULL) {
        fwrite(token, sizeof *token, (size_t)count, file);
        fwrite(token + 1, sizeof *token, (size_t)count, file);
    }
    oar_tensor_release(a);
    oar_tensor_release(b);
    free(token);
    return *x != NULL && *y != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* ---- logits and gradients ------------------------------------------------ */

static oar_status write_params(const truth *t, oar_module *gpt)
{
    FILE *list = open_file(t, "params"), *file = open_file(t, "params.f32");
    oar_status status = list != NULL && file != NULL ? OAR_OK : OAR_E_SYSTEM;
    char name[128];

    for (int i = 0; i < oar_module_params(gpt) && status == OAR_OK; i++) {
        oar_tensor *p = oar_module_param(gpt, i);
        oar_shape s = oar_tensor_shape(p);

        status = oar_module_param_name(gpt, i, name, sizeof name);
        fprintf(list, "%s", name);
        for (int d = 0; d < s.ndim; d++)
            fprintf(list, " %lld", (long long)s.dim[d]);
        fprintf(list, "\n");
        if (status == OAR_OK)
            status = write_numbers(file, p);
    }
    if (list != NULL)
        fclose(list);
    if (file != NULL)
        fclose(file);
    return status;
}

static oar_status write_outcome(const truth *t, oar_dtype dtype, oar_tensor *x,
                                oar_tensor *y)
{
    int f32 = dtype == OAR_F32;
    FILE *logits = open_file(t, f32 ? "f32.logits" : "bf16.logits"),
         *file = open_file(t, f32 ? "f32.grads" : "bf16.grads");
    oar_tensor *out, *loss;
    oar_module *gpt;
    oar_tape *tape;
    oar_status status;

    if (logits == NULL || file == NULL)
        return OAR_E_SYSTEM;
    TRY(make_gpt(t, &gpt));
    if (f32)
        TRY(write_params(t, gpt));
    TRY(oar_module_cast(gpt, dtype, 0));
    TRY(oar_tape_create(&tape));
    out = oar_forward(tape, gpt, x);
    status =
        out != NULL ? write_numbers(logits, out) : oar_last_error()->status;
    loss = oar_cross_entropy(tape, oar_cast(tape, out, OAR_F32), y);
    if (status == OAR_OK)
        status = oar_backward(tape, loss);
    for (int i = 0; i < oar_module_params(gpt) && status == OAR_OK; i++)
        status = write_numbers(file, oar_tensor_grad(oar_module_param(gpt, i)));
    fclose(logits);
    fclose(file);
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    return status;
}

/* ---- training ------------------------------------------------------------ */

static oar_status train(const truth *t, oar_dtype dtype, oar_tensor *const *x,
                        oar_tensor *const *y, double *loss)
{
    oar_adam_opts a = oar_adam_opts_init();
    oar_step_opts o = oar_step_opts_init();
    oar_module *gpt;
    oar_optim *adam;
    oar_tape *tape;

    a.lr = 6e-4;
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.master_weights = 1;
    o.clip = 1;
    TRY(make_gpt(t, &gpt));
    TRY(oar_adamw_create(gpt, &a, &adam));
    TRY(oar_optim_cast(adam, gpt, dtype, 0));
    TRY(oar_tape_create(&tape));
    for (int64_t step = 0; step < t->steps; step++) {
        int at = (int)(step % TOKENS);
        oar_tensor *out = oar_forward(tape, gpt, x[at]);
        oar_tensor *l =
            oar_cross_entropy(tape, oar_cast(tape, out, OAR_F32), y[at]);

        if (l == NULL)
            return oar_last_error()->status;
        if (step < t->warm)
            TRY(oar_optim_set_lr(adam,
                                 a.lr * (double)(step + 1) / (double)t->warm));
        TRY(oar_backward(tape, l));
        TRY(oar_optim_step_with(adam, &o));
        TRY(oar_tensor_read(l, OAR_F64, &loss[step]));
        oar_optim_zero_grad(adam);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_module_release(gpt);
    return OAR_OK;
}

static oar_status write_losses(const truth *t, const char *name,
                               const double *loss)
{
    FILE *file = open_file(t, name);

    if (file == NULL)
        return OAR_E_SYSTEM;
    for (int64_t i = 0; i < t->steps; i++)
        fprintf(file, "%.9g\n", loss[i]);
    fclose(file);
    return OAR_OK;
}

static oar_status run(const truth *t, int *same)
{
    static double loss[MOST_STEPS], again[MOST_STEPS];
    oar_tensor *x[TOKENS], *y[TOKENS];
    FILE *tokens = open_file(t, "tokens.i64");

    if (tokens == NULL)
        return OAR_E_SYSTEM;
    for (int i = 0; i < TOKENS; i++)
        TRY(make_tokens(t, i, tokens, &x[i], &y[i]));
    fclose(tokens);
    TRY(write_outcome(t, OAR_F32, x[0], y[0]));
    TRY(write_outcome(t, OAR_BF16, x[0], y[0]));
    TRY(train(t, OAR_F32, x, y, loss));
    TRY(write_losses(t, "f32.losses", loss));
    TRY(train(t, OAR_BF16, x, y, loss));
    TRY(train(t, OAR_BF16, x, y, again));
    *same = 1;
    for (int64_t i = 0; i < t->steps; i++)
        *same = *same && loss[i] == again[i];
    for (int i = 0; i < TOKENS; i++) {
        oar_tensor_release(x[i]);
        oar_tensor_release(y[i]);
    }
    return write_losses(t, "bf16.losses", loss);
}

int main(int argc, char **argv)
{
    truth t = { .folder = argc > 1 ? argv[1] : "." };
    oar_status status;
    int same = 0;

    if (argc != 10) {
        fprintf(stderr, "gpu_truth FOLDER LAYERS WIDTH VOCABULARY BATCH "
                        "CONTEXT STEPS WARM SEED\n");
        return 2;
    }
    t.layers = atoll(argv[2]);
    t.width = atoll(argv[3]);
    t.vocabulary = atoll(argv[4]);
    t.batch = atoll(argv[5]);
    t.context = atoll(argv[6]);
    t.steps = atoll(argv[7]) < MOST_STEPS ? atoll(argv[7]) : MOST_STEPS;
    t.warm = atoll(argv[8]);
    t.seed = atoll(argv[9]);
    status = oar_device_parse("cuda", &t.device);
    if (status == OAR_OK)
        status = run(&t, &same);
    if (status != OAR_OK)
        fprintf(stderr, "gpu_truth: %s\n", oar_last_error_text());
    else if (!same)
        fprintf(stderr, "gpu_truth: a second run gave other bits\n");
    return status == OAR_OK && same ? 0 : 1;
}
