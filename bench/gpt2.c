/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2: trains GPT-2 124M, fresh, on random tokens, and says how fast.
 *
 *     gpt2 [--device cuda] [--dtype bf16] [--batch 64] [--context 1024]
 *          [--layers 12] [--width 768] [--vocabulary 50304] [--steps 20]
 *          [--peak 989] [--clip 1]
 *
 * Half parameters have f32 masters; norms stay f32. Prints a line for every
 * fifth step and at the end
 * gpt2,oarsong,DEVICE,DTYPE,BATCH,STEPS,p50_ms,tokens/s,mfu_percent,peak_MiB:
 * the median of the steps after the fifth; MFU by 6 N + 12 L C T operations a
 * token, of --peak TFLOP/s; the most memory that the device gave out. The host
 * waits once in five steps, to read the loss. */
#include <math.h>
#include <stdio.h>

#include "models.h"

enum { READ_EVERY = 5, WARM_UP = 5, MOST_STEPS = 1000, TOKEN_BATCHES = 4 };

typedef struct settings {
    oar_device device;
    oar_dtype dtype;
    int64_t batch, context, layers, width, vocabulary, steps;
    double peak, clip;
} settings;

typedef struct run {
    settings set;
    oar_module *gpt;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x[TOKEN_BATCHES], *y[TOKEN_BATCHES];
} run;

static oar_status read_settings(int argc, char **argv, settings *s)
{
    *s = (settings){ .dtype = OAR_BF16,
                     .batch = 64,
                     .context = 1024,
                     .layers = 12,
                     .width = 768,
                     .vocabulary = 50304,
                     .steps = 20,
                     .peak = 989,
                     .clip = 1 };
    TRY(oar_device_parse("cuda", &s->device));
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];

        if (strcmp(name, "--device") == 0)
            TRY(oar_device_parse(value, &s->device));
        else if (strcmp(name, "--dtype") == 0)
            s->dtype = strcmp(value, "f32") == 0   ? OAR_F32
                       : strcmp(value, "f16") == 0 ? OAR_F16
                                                   : OAR_BF16;
        else if (strcmp(name, "--batch") == 0)
            s->batch = atoll(value);
        else if (strcmp(name, "--context") == 0)
            s->context = atoll(value);
        else if (strcmp(name, "--layers") == 0)
            s->layers = atoll(value);
        else if (strcmp(name, "--width") == 0)
            s->width = atoll(value);
        else if (strcmp(name, "--vocabulary") == 0)
            s->vocabulary = atoll(value);
        else if (strcmp(name, "--steps") == 0)
            s->steps = atoll(value);
        else if (strcmp(name, "--peak") == 0)
            s->peak = atof(value);
        else if (strcmp(name, "--clip") == 0)
            s->clip = atof(value);
        else
            fprintf(stderr, "gpt2: what is %s?\n", name);
    }
    if (s->steps > MOST_STEPS)
        s->steps = MOST_STEPS;
    return OAR_OK;
}

/* Random tokens, and the next ones, on the device. */
static oar_status make_tokens(run *r, int index)
{
    int64_t count = r->set.batch * r->set.context;
    oar_shape shape = OAR_SHAPE(r->set.batch, r->set.context);
    int64_t *token = malloc((size_t)(count + 1) * sizeof *token);
    uint64_t state = 88172645463325252u + (uint64_t)index;
    oar_tensor *x, *y;

    if (token == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i <= count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        token[i] = (int64_t)(state % (uint64_t)r->set.vocabulary);
    }
    x = oar_from_data(NULL, OAR_I64, shape, token);
    y = oar_from_data(NULL, OAR_I64, OAR_SHAPE(count), token + 1);
    r->x[index] = oar_to(NULL, x, r->set.device);
    r->y[index] = oar_to(NULL, y, r->set.device);
    oar_tensor_release(x);
    oar_tensor_release(y);
    free(token);
    return r->x[index] != NULL && r->y[index] != NULL ? OAR_OK : OAR_E_NOMEM;
}

static oar_status make_run(run *r)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_adam_opts a = oar_adam_opts_init();

    o.vocabulary = r->set.vocabulary;
    o.context = r->set.context;
    o.width = r->set.width;
    o.layers = (int)r->set.layers;
    o.heads = (int)(r->set.width / 64 > 0 ? r->set.width / 64 : 1);
    o.tied = 1;
    o.activation = OAR_GELU_TANH;
    TRY(oar_gpt_create(&o, &r->gpt));
    if (r->set.dtype != OAR_F32)
        TRY(oar_module_cast(r->gpt, r->set.dtype, 0));
    if (r->set.device.kind == OAR_CUDA)
        TRY(oar_module_to(r->gpt, r->set.device));
    a.lr = 6e-4;
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.master_weights = 1;
    TRY(oar_adamw_create(r->gpt, &a, &r->adam));
    for (int i = 0; i < TOKEN_BATCHES; i++)
        TRY(make_tokens(r, i));
    return oar_tape_create(&r->tape);
}

/* *loss is read if `reads`: the host waits. */
static oar_status take_step(run *r, int64_t step, int reads, double *loss)
{
    oar_step_opts o = oar_step_opts_init();
    int at = (int)(step % TOKEN_BATCHES);
    oar_tensor *l = oar_gpt_loss(r->tape, r->gpt, r->x[at], r->y[at], NULL);

    if (l == NULL)
        return oar_last_error()->status;
    TRY(oar_backward(r->tape, l));
    o.clip = r->set.clip;
    TRY(oar_optim_step_with(r->adam, &o));
    if (reads)
        TRY(oar_tensor_read(l, OAR_F64, loss));
    oar_optim_zero_grad(r->adam);
    oar_tape_reset(r->tape);
    return OAR_OK;
}

static double work_of_token(const run *r)
{
    double params = 0;

    for (int i = 0; i < oar_module_params(r->gpt); i++)
        params += (double)oar_tensor_count(oar_module_param(r->gpt, i));
    return 6 * params + 12 * (double)r->set.layers * (double)r->set.width *
                            (double)r->set.context;
}

static oar_status train(run *r)
{
    static double time[MOST_STEPS];
    oar_device_usage usage = oar_device_usage_init();
    double start = now_us(), loss = 0, p50, rate;
    int rounds = 0;

    for (int64_t step = 0; step < r->set.steps; step++) {
        int reads = (step + 1) % READ_EVERY == 0;

        TRY(take_step(r, step, reads, &loss));
        if (!reads)
            continue;
        if (step >= WARM_UP)
            time[rounds++] = (now_us() - start) / READ_EVERY;
        printf("step %lld loss %.4f\n", (long long)step + 1, loss);
        start = now_us();
    }
    if (rounds == 0)
        return OAR_OK;
    p50 = median(time, rounds);
    rate = (double)(r->set.batch * r->set.context) / p50 * 1e6;
    if (r->set.device.kind == OAR_CUDA)
        TRY(oar_device_memory(r->set.device, &usage));
    printf("gpt2,oarsong,%s,%s,%lld,%lld,%.2f,%.0f,%.1f,%.0f\n",
           oar_device_text(r->set.device).text, oar_dtype_name(r->set.dtype),
           (long long)r->set.batch, (long long)r->set.steps, p50 * 1e-3, rate,
           100 * rate * work_of_token(r) / (r->set.peak * 1e12),
           (double)usage.most_bytes / (1 << 20));
    return OAR_OK;
}

int main(int argc, char **argv)
{
    run r = { 0 };
    oar_status status = read_settings(argc, argv, &r.set);

    if (status == OAR_OK)
        status = make_run(&r);
    if (status == OAR_OK)
        status = train(&r);
    if (status != OAR_OK)
        fprintf(stderr, "gpt2: %s\n", oar_last_error_text());
    oar_tape_destroy(r.tape);
    oar_optim_destroy(r.adam);
    oar_module_release(r.gpt);
    for (int i = 0; i < TOKEN_BATCHES; i++) {
        oar_tensor_release(r.x[i]);
        oar_tensor_release(r.y[i]);
    }
    return status == OAR_OK ? 0 : 1;
}
