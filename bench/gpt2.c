/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2: trains GPT-2 124M, fresh or from a file, on random tokens, and says how
 * fast.
 *
 *     gpt2 [--device cuda] [--dtype bf16] [--batch 64] [--context 1024]
 *          [--layers 12] [--width 768] [--vocabulary 50304] [--steps 20]
 *          [--peak 989] [--clip 1] [--replay 0] [--weights PATH]
 *
 * --weights: a folder or .safetensors file of Hugging Face's GPT-2, or a .bin
 * of llm.c; it says the sizes. --replay 1: the step is recorded and started as
 * a whole. Half parameters have f32 masters; norms stay f32. Prints a line for
 * every fifth step and at the end
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
    int replay;
    const char *weights; /* or NULL */
} settings;

typedef struct run {
    settings set;
    oar_module *gpt;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x[TOKEN_BATCHES], *y[TOKEN_BATCHES];
    oar_replay *replay;
    oar_tensor *batch[2], *loss; /* what a replay works on */
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
        else if (strcmp(name, "--replay") == 0)
            s->replay = atoi(value);
        else if (strcmp(name, "--weights") == 0)
            s->weights = value;
        else
            fprintf(stderr, "gpt2: what is %s?\n", name);
    }
    if (s->steps > MOST_STEPS)
        s->steps = MOST_STEPS;
    return OAR_OK;
}

/* Random tokens, and the next ones, on the device. */
static oar_status draw_tokens(run *r, int index)
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

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), last = strlen(end);

    return length >= last && strcmp(text + length - last, end) == 0;
}

static oar_status build_model(run *r)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    settings *s = &r->set;

    if (s->weights != NULL) {
        TRY(ends_with(s->weights, ".bin")
                ? oar_gpt_from_llmc(s->weights, OAR_F32, 0, &r->gpt, &o)
                : oar_gpt_from_hf(s->weights, OAR_F32, &r->gpt, &o));
        oar_module_train(r->gpt, 1);
        s->layers = o.layers;
        s->width = o.width;
        s->vocabulary = o.vocabulary;
        s->context = s->context < o.context ? s->context : o.context;
        return OAR_OK;
    }
    o.vocabulary = s->vocabulary;
    o.context = s->context;
    o.width = s->width;
    o.layers = (int)s->layers;
    o.heads = (int)(s->width / 64 > 0 ? s->width / 64 : 1);
    o.tied = 1;
    o.activation = OAR_GELU_TANH;
    return oar_gpt_create(&o, &r->gpt);
}

static oar_status record_step(void *arg);

static oar_tensor *zeros_there(const run *r, oar_dtype dtype, oar_shape shape)
{
    oar_tensor *here = oar_zeros(NULL, dtype, shape);
    oar_tensor *there = oar_to(NULL, here, r->set.device);

    oar_tensor_release(here);
    return there;
}

/* Tensors that stay, and a step that works on them. */
static oar_status make_replay(run *r)
{
    r->batch[0] = zeros_there(r, OAR_I64, oar_tensor_shape(r->x[0]));
    r->batch[1] = zeros_there(r, OAR_I64, oar_tensor_shape(r->y[0]));
    r->loss = zeros_there(r, r->set.dtype, OAR_SCALAR);
    if (r->batch[0] == NULL || r->batch[1] == NULL || r->loss == NULL)
        return OAR_E_NOMEM;
    return oar_replay_create(r->set.device, record_step, r, NULL, &r->replay);
}

static oar_status make_run(run *r)
{
    oar_adam_opts a = oar_adam_opts_init();

    TRY(build_model(r));
    if (r->set.device.kind == OAR_CUDA)
        TRY(oar_module_to(r->gpt, r->set.device));
    a.lr = 6e-4;
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.master_weights = 1;
    TRY(oar_adamw_create(r->gpt, &a, &r->adam));
    if (r->set.dtype != OAR_F32)
        TRY(oar_optim_cast(r->adam, r->gpt, r->set.dtype, 0));
    for (int i = 0; i < TOKEN_BATCHES; i++)
        TRY(draw_tokens(r, i));
    TRY(oar_tape_create(&r->tape));
    return r->set.replay ? make_replay(r) : OAR_OK;
}

/* One step; *loss, unless NULL, is read: the host waits. */
static oar_status step_on(run *r, oar_tensor *x, oar_tensor *y,
                          oar_tensor *kept, double *loss)
{
    oar_step_opts o = oar_step_opts_init();
    oar_tensor *l = oar_gpt_loss(r->tape, r->gpt, x, y, NULL);

    if (l == NULL)
        return oar_last_error()->status;
    TRY(oar_backward(r->tape, l));
    o.clip = r->set.clip;
    TRY(oar_optim_step_with(r->adam, &o));
    if (kept != NULL)
        TRY(oar_tensor_copy(kept, l));
    if (loss != NULL)
        TRY(oar_tensor_read(l, OAR_F64, loss));
    oar_optim_zero_grad(r->adam);
    oar_tape_reset(r->tape);
    return OAR_OK;
}

static oar_status record_step(void *arg)
{
    run *r = arg;

    return step_on(r, r->batch[0], r->batch[1], r->loss, NULL);
}

/* *loss is read if `reads`. */
static oar_status take_step(run *r, int64_t step, int reads, double *loss)
{
    int at = (int)(step % TOKEN_BATCHES);

    if (r->replay == NULL)
        return step_on(r, r->x[at], r->y[at], NULL, reads ? loss : NULL);
    TRY(oar_tensor_copy(r->batch[0], r->x[at]));
    TRY(oar_tensor_copy(r->batch[1], r->y[at]));
    TRY(oar_replay_run(r->replay));
    return reads ? oar_tensor_read(r->loss, OAR_F64, loss) : OAR_OK;
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
    printf("gpt2,oarsong%s,%s,%s,%lld,%lld,%.2f,%.0f,%.1f,%.0f\n",
           r->replay != NULL ? "-replay" : "",
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
    oar_replay_destroy(r.replay);
    oar_tape_destroy(r.tape);
    oar_optim_destroy(r.adam);
    oar_module_release(r.gpt);
    for (int i = 0; i < TOKEN_BATCHES; i++) {
        oar_tensor_release(r.x[i]);
        oar_tensor_release(r.y[i]);
    }
    for (int i = 0; i < 2; i++)
        oar_tensor_release(r.batch[i]);
    oar_tensor_release(r.loss);
    return status == OAR_OK ? 0 : 1;
}
