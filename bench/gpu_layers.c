/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_layers: kernels of layers on a GPU that are bound by memory, each beside
 * a copy in the same run.
 *
 *     gpu_layers [TOKENS] [WIDTH] [CLASSES] [PARAMETERS]
 *
 * by default 65536, 768, 50304 and 124 million.
 *
 * Prints a line copy,MB,us,GB/s and for each operation
 * layers,NAME,MB,us,GB/s,percent: the bytes that it has to read and write, the
 * median time, and the share of the copy's rate. In bf16; the step of AdamW has
 * f32 masters and gradients. */
#include <stdio.h>

#include "models.h"

enum { ROUNDS = 15, WARM_UP = 3, CLASS_ROWS = 8 };

typedef struct bench {
    oar_device gpu;
    void *from, *to; /* events */
    double copy_rate;
    oar_tape *tape;
} bench;

/* Time of what runs between begin and end. */
static oar_status begin(bench *b)
{
    return oar_event_record(b->gpu, b->from, oar_stream_current(b->gpu));
}

static oar_status end(bench *b, double *us)
{
    double ms;

    TRY(oar_event_record(b->gpu, b->to, oar_stream_current(b->gpu)));
    TRY(oar_event_synchronize(b->gpu, b->to));
    TRY(oar_event_elapsed(b->gpu, b->from, b->to, &ms));
    *us = ms * 1e3;
    return OAR_OK;
}

static void report(const bench *b, const char *name, double bytes, double *us)
{
    double p50 = median(us + WARM_UP, ROUNDS - WARM_UP);
    double rate = bytes / p50 * 1e-3;

    printf("layers,%s,%.1f,%.1f,%.0f,%.0f\n", name, bytes * 1e-6, p50, rate,
           100 * rate / b->copy_rate);
    fflush(stdout);
}

static oar_tensor *leaf(const bench *b, oar_dtype dtype, oar_shape shape)
{
    oar_tensor *made = oar_empty_on(NULL, b->gpu, dtype, shape);

    if (made == NULL || oar_tensor_fill(made, 0.5) != OAR_OK ||
        oar_tensor_require_grad(made, 1) != OAR_OK)
        return NULL;
    return made;
}

static oar_status time_copy(bench *b, size_t bytes)
{
    double us[ROUNDS], p50;
    void *x, *y;

    TRY(oar_device_alloc(b->gpu, bytes, &x));
    TRY(oar_device_alloc(b->gpu, bytes, &y));
    for (int i = 0; i < ROUNDS; i++) {
        TRY(begin(b));
        TRY(oar_device_copy(y, b->gpu, x, b->gpu, bytes, NULL));
        TRY(end(b, &us[i]));
    }
    p50 = median(us + WARM_UP, ROUNDS - WARM_UP);
    b->copy_rate = 2 * (double)bytes / p50 * 1e-3;
    printf("copy,%.1f,%.1f,%.0f\n", 2 * (double)bytes * 1e-6, p50,
           b->copy_rate);
    oar_device_free(b->gpu, x, NULL);
    oar_device_free(b->gpu, y, NULL);
    return OAR_OK;
}

/* An operation of up to three leaves. */
typedef oar_tensor *(*layer_op)(oar_tape *tape, oar_tensor *const *in);

static oar_tensor *run_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_layer_norm(tape, in[0], in[1], in[2], 1e-5);
}

static oar_tensor *run_softmax(oar_tape *tape, oar_tensor *const *in)
{
    return oar_softmax(tape, in[0]);
}

static oar_tensor *run_dropout(oar_tape *tape, oar_tensor *const *in)
{
    return oar_dropout(tape, in[0], 0.1, 7);
}

static oar_tensor *run_entropy(oar_tape *tape, oar_tensor *const *in)
{
    return oar_cross_entropy(tape, in[0], in[2]);
}

static oar_tensor *run_embedding(oar_tape *tape, oar_tensor *const *in)
{
    return oar_embedding(tape, in[0], in[2]);
}

/* Forward moves `forward` bytes, backward `back`. */
static oar_status time_op(bench *b, const char *name, layer_op op,
                          oar_tensor *const *in, double forward, double back)
{
    double ahead[ROUNDS], behind[ROUNDS];
    char text[64];

    for (int i = 0; i < ROUNDS; i++) {
        oar_tensor *out, *seed = NULL;

        TRY(begin(b));
        out = op(b->tape, in);
        if (out == NULL)
            return oar_last_error()->status;
        TRY(end(b, &ahead[i]));
        if (oar_tensor_count(out) > 1) { /* made before the clock runs */
            seed = oar_empty_on(b->tape, b->gpu, oar_tensor_dtype(out),
                                oar_tensor_shape(out));
            TRY(oar_tensor_fill(seed, 0.25));
        }
        TRY(begin(b));
        TRY(oar_backward_from(b->tape, 1, &out, &seed));
        TRY(end(b, &behind[i]));
        for (int k = 0; k < 3; k++)
            oar_tensor_clear_grad(in[k]);
        oar_tape_reset(b->tape);
    }
    report(b, name, forward, ahead);
    snprintf(text, sizeof text, "%s_back", name);
    report(b, text, back, behind);
    return OAR_OK;
}

static oar_tensor *indices(const bench *b, int64_t count, int64_t limit)
{
    int64_t *number = malloc((size_t)count * sizeof *number);
    oar_tensor *here, *there;

    for (int64_t i = 0; i < count; i++)
        number[i] = i * 7919 % limit;
    here = oar_from_data(NULL, OAR_I64, OAR_SHAPE(count), number);
    there = oar_to(NULL, here, b->gpu);
    oar_tensor_release(here);
    free(number);
    return there;
}

static oar_status time_step(bench *b, int64_t count)
{
    oar_adam_opts o = oar_adam_opts_init();
    oar_step_opts with = oar_step_opts_init();
    double us[ROUNDS], clipped[ROUNDS];
    oar_tensor *param = leaf(b, OAR_BF16, OAR_SHAPE(count));
    oar_optim *adam;

    o.master_weights = 1;
    TRY(oar_adamw_create_over(1, &param, &o, &adam));
    with.clip = 1;
    for (int i = 0; i < ROUNDS; i++) {
        oar_tensor *out = oar_scale(b->tape, param, 1);

        TRY(oar_backward_from(b->tape, 1, &out, &(oar_tensor *){ NULL }));
        TRY(begin(b));
        TRY(oar_optim_step(adam));
        TRY(end(b, &us[i]));
        TRY(begin(b));
        TRY(oar_optim_step_with(adam, &with));
        TRY(end(b, &clipped[i]));
        oar_optim_zero_grad(adam);
        oar_tape_reset(b->tape);
    }
    report(b, "adamw", (double)count * (4 + 3 * 8 + 4), us);
    report(b, "adamw_clip", (double)count * (8 + 3 * 8 + 4), clipped);
    oar_optim_destroy(adam);
    oar_tensor_release(param);
    return OAR_OK;
}

static oar_status run_all(bench *b, int64_t tokens, int64_t width,
                          int64_t classes, int64_t params)
{
    double unit = (double)tokens * (double)width * 2;
    int64_t rows = tokens / CLASS_ROWS;
    double logits = (double)rows * (double)classes * 2;
    oar_tensor *x = leaf(b, OAR_BF16, OAR_SHAPE(tokens, width));
    oar_tensor *weight = leaf(b, OAR_BF16, OAR_SHAPE(width));
    oar_tensor *bias = leaf(b, OAR_BF16, OAR_SHAPE(width));
    oar_tensor *table = leaf(b, OAR_BF16, OAR_SHAPE(classes, width));
    oar_tensor *scores = leaf(b, OAR_BF16, OAR_SHAPE(rows, classes));
    oar_tensor *index = indices(b, tokens, classes);
    oar_tensor *target = indices(b, rows, classes);

    TRY(time_copy(b, (size_t)(8 * unit)));
    TRY(time_op(b, "layer_norm", run_norm, (oar_tensor *[]){ x, weight, bias },
                2 * unit, 3 * unit));
    TRY(time_op(b, "softmax", run_softmax, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 3 * unit));
    TRY(time_op(b, "dropout", run_dropout, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 2 * unit));
    TRY(time_op(b, "cross_entropy", run_entropy,
                (oar_tensor *[]){ scores, NULL, target }, logits, 2 * logits));
    TRY(time_op(b, "embedding", run_embedding,
                (oar_tensor *[]){ table, NULL, index }, 2 * unit,
                2 * unit + (double)classes * (double)width * 2));
    TRY(time_step(b, params));
    oar_tensor_release(x);
    oar_tensor_release(weight);
    oar_tensor_release(bias);
    oar_tensor_release(table);
    oar_tensor_release(scores);
    oar_tensor_release(index);
    oar_tensor_release(target);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    bench b = { 0 };
    oar_status status = oar_device_parse("cuda", &b.gpu);

    if (status == OAR_OK)
        status = oar_event_create(b.gpu, 1, &b.from);
    if (status == OAR_OK)
        status = oar_event_create(b.gpu, 1, &b.to);
    if (status == OAR_OK)
        status = oar_tape_create(&b.tape);
    if (status == OAR_OK)
        status = run_all(&b, argc > 1 ? atoll(argv[1]) : 65536,
                         argc > 2 ? atoll(argv[2]) : 768,
                         argc > 3 ? atoll(argv[3]) : 50304,
                         argc > 4 ? atoll(argv[4]) : 124000000);
    if (status != OAR_OK)
        fprintf(stderr, "gpu_layers: %s\n", oar_last_error_text());
    oar_tape_destroy(b.tape);
    oar_event_destroy(b.gpu, b.from);
    oar_event_destroy(b.gpu, b.to);
    return status == OAR_OK ? 0 : 1;
}
