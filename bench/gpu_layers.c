/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_layers: kernels of layers on a GPU that are bound by memory, each beside
 * a copy in the same run.
 *
 *     gpu_layers [TOKENS] [WIDTH] [CLASSES] [PARAMETERS]
 *
 * by default 65536, 768, 50304 and 124 million.
 *
 * Prints a line copy,MB,us,GB/s and for each operation
 * layers,NAME,MB,us,GB/s,percent,percent: the bytes that it has to read and
 * write, the median time, the share of that copy's rate, and the share of the
 * rate of a copy of as many bytes, which starts and ends in the same time. In
 * bf16; the step of AdamW has f32 masters and gradients. Backward begins with a
 * copy of the gradient that it is given, which is counted. Images have WIDTH
 * channels of 16 by 16 (conv_columns, with 3 by 3 weights: 8), and as many
 * places in all as there are tokens. Batch norm reads them twice, which is
 * counted; what a sort or a convolution puts aside is not. A copy runs before
 * each operation, so that the GPU is busy while the host starts it, and nothing
 * of it lies in a cache. That copy leaves lines in the cache that are still to
 * be written: an operation that writes leaves as many itself, but one that only
 * reads pays for them. NAME_clean is such an operation after one that reads. */
#include <stdio.h>

#include "models.h"

enum { ROUNDS = 15, WARM_UP = 3, CLASS_ROWS = 8 };
enum { SEQUENCE = 1024, HEAD = 64, SIDE = 16, GROUPS = 8, CONV_CHANNELS = 8 };

typedef struct bench {
    oar_device gpu;
    void *from, *to;    /* events */
    void *here, *there; /* memory that is copied */
    size_t bytes;       /* of it */
    double copy_rate;
    oar_tape *tape;
    oar_tensor *read_first; /* before the clock runs; NULL: nothing is */
} bench;

/* Time of what runs between begin and end. */
static oar_status begin(bench *b)
{
    TRY(oar_device_copy(b->there, b->gpu, b->here, b->gpu, b->bytes, NULL));
    if (b->read_first != NULL &&
        oar_sum_over(b->tape, b->read_first, OAR_DIMS(0), 0) == NULL)
        return oar_last_error()->status;
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

/* The median time of a copy that reads and writes so many bytes in all, or as
 * many as there are. */
static oar_status time_copy(bench *b, double bytes, double *p50)
{
    size_t half =
        (size_t)(bytes / 2) < b->bytes ? (size_t)(bytes / 2) : b->bytes;
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        TRY(begin(b));
        TRY(oar_device_copy(b->there, b->gpu, b->here, b->gpu, half, NULL));
        TRY(end(b, &us[i]));
    }
    *p50 = median(us + WARM_UP, ROUNDS - WARM_UP) * bytes / (2 * (double)half);
    return OAR_OK;
}

static oar_status report(bench *b, const char *name, double bytes, double *us)
{
    double p50 = median(us + WARM_UP, ROUNDS - WARM_UP), copy;
    double rate = bytes / p50 * 1e-3;

    TRY(time_copy(b, bytes, &copy));
    printf("layers,%s,%.1f,%.1f,%.0f,%.0f,%.0f\n", name, bytes * 1e-6, p50,
           rate, 100 * rate / b->copy_rate, 100 * copy / p50);
    fflush(stdout);
    return OAR_OK;
}

static oar_tensor *leaf(const bench *b, oar_dtype dtype, oar_shape shape)
{
    oar_tensor *made = oar_empty_on(NULL, b->gpu, dtype, shape);

    if (made == NULL || oar_tensor_fill(made, 0.5) != OAR_OK ||
        oar_tensor_require_grad(made, 1) != OAR_OK)
        return NULL;
    return made;
}

static oar_status start_copies(bench *b)
{
    double p50;

    TRY(oar_device_alloc(b->gpu, b->bytes, &b->here));
    TRY(oar_device_alloc(b->gpu, b->bytes, &b->there));
    TRY(time_copy(b, 2 * (double)b->bytes, &p50));
    b->copy_rate = 2 * (double)b->bytes / p50 * 1e-3;
    printf("copy,%.1f,%.1f,%.0f\n", 2 * (double)b->bytes * 1e-6, p50,
           b->copy_rate);
    return OAR_OK;
}

/* An operation of up to three leaves. */
typedef oar_tensor *(*layer_op)(oar_tape *tape, oar_tensor *const *in);

static oar_tensor *run_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_layer_norm(tape, in[0], in[1], in[2], 1e-5);
}

static oar_tensor *run_rms_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_rms_norm(tape, in[0], in[1], 1e-5);
}

/* The gradient of the sum is there when the norm's is added to it. */
static oar_tensor *run_add_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_add_layer_norm(tape, in[0], in[1], in[2], NULL, 1e-5, NULL);
}

static oar_tensor *run_gelu(oar_tape *tape, oar_tensor *const *in)
{
    return oar_gelu(tape, in[0]);
}

static oar_tensor *run_gelu_tanh(oar_tape *tape, oar_tensor *const *in)
{
    return oar_gelu_tanh(tape, in[0]);
}

static oar_tensor *run_mul(oar_tape *tape, oar_tensor *const *in)
{
    return oar_mul(tape, in[0], in[1]);
}

static oar_tensor *run_add(oar_tape *tape, oar_tensor *const *in)
{
    return oar_add(tape, in[0], in[1]);
}

static oar_tensor *run_sum_columns(oar_tape *tape, oar_tensor *const *in)
{
    return oar_sum_over(tape, in[0], OAR_DIMS(0), 0);
}

static oar_tensor *run_sum_rows(oar_tape *tape, oar_tensor *const *in)
{
    return oar_sum_over(tape, in[0], OAR_DIMS(1), 0);
}

static oar_tensor *run_cast(oar_tape *tape, oar_tensor *const *in)
{
    return oar_cast(tape, in[0], OAR_F32);
}

static oar_tensor *run_transposed(oar_tape *tape, oar_tensor *const *in)
{
    return oar_contiguous(tape, oar_transpose(tape, in[0], 0, 1));
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

static oar_tensor *run_rotary(oar_tape *tape, oar_tensor *const *in)
{
    return oar_rotary(tape, in[0], 0, 10000);
}

static oar_tensor *run_sort(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *value;

    return oar_sort(tape, in[0], -1, 0, &value, NULL) == OAR_OK ? value : NULL;
}

static oar_tensor *run_max_pool(oar_tape *tape, oar_tensor *const *in)
{
    return oar_max_pool2d(tape, in[0], 2, 2, NULL);
}

static oar_tensor *run_avg_pool(oar_tape *tape, oar_tensor *const *in)
{
    return oar_avg_pool2d(tape, in[0], 2, 2, NULL);
}

static oar_tensor *run_batch_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0.1, 1e-5);
}

static oar_tensor *run_group_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_group_norm(tape, in[0], GROUPS, in[1], in[2], 1e-5);
}

static oar_tensor *run_conv(oar_tape *tape, oar_tensor *const *in)
{
    return oar_conv2d(tape, in[0], in[1], NULL,
                      OAR_OPTS(oar_conv2d_opts, .padding = { 1, 1 }));
}

/* Forward moves `forward` bytes, backward `back`; 0: it is not shown. */
static oar_status time_op(bench *b, const char *name, layer_op op,
                          oar_tensor *const *in, double forward, double back)
{
    double ahead[ROUNDS], behind[ROUNDS], seed_bytes = 0;
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
            seed_bytes = 2 * (double)oar_tensor_count(out) *
                         (double)oar_dtype_size(oar_tensor_dtype(out));
        }
        TRY(begin(b));
        if (back > 0)
            TRY(oar_backward_from(b->tape, 1, &out, &seed));
        TRY(end(b, &behind[i]));
        for (int k = 0; k < 3; k++)
            oar_tensor_clear_grad(in[k]);
        oar_tape_reset(b->tape);
    }
    TRY(report(b, name, forward, ahead));
    if (back == 0)
        return OAR_OK;
    snprintf(text, sizeof text, "%s_back", name);
    return report(b, text, back + seed_bytes, behind);
}

/* Operations that only read: after a copy, and after a read. */
static oar_status time_sums(bench *b, oar_tensor *x, oar_tensor *wide,
                            double unit)
{
    for (int clean = 0; clean < 2; clean++) {
        b->read_first = clean ? wide : NULL;
        TRY(time_op(b, clean ? "sum_columns_clean" : "sum_columns",
                    run_sum_columns, (oar_tensor *[]){ x, NULL, NULL }, unit,
                    0));
        TRY(time_op(b, clean ? "sum_columns_wide_clean" : "sum_columns_wide",
                    run_sum_columns, (oar_tensor *[]){ wide, NULL, NULL },
                    4 * unit, 0));
        TRY(time_op(b, clean ? "sum_rows_clean" : "sum_rows", run_sum_rows,
                    (oar_tensor *[]){ x, NULL, NULL }, unit, 0));
    }
    b->read_first = NULL;
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

/* Sequences of SEQUENCE tokens and heads of HEAD, as far as they go in. */
static oar_status time_rotary(bench *b, int64_t tokens, int64_t width)
{
    int64_t sequence = tokens % SEQUENCE == 0 ? SEQUENCE : 1;
    int64_t head = width % HEAD == 0 ? HEAD : width;
    double unit = (double)(tokens * width) * 2;
    oar_tensor *x =
        leaf(b, OAR_BF16,
             OAR_SHAPE(tokens / sequence, sequence, width / head, head));
    oar_status status =
        time_op(b, "rotary", run_rotary, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 2 * unit);

    oar_tensor_release(x);
    return status;
}

static oar_status time_images(bench *b, int64_t tokens, int64_t width,
                              oar_tensor *weight, oar_tensor *bias)
{
    int64_t images = tokens / (SIDE * SIDE) > 0 ? tokens / (SIDE * SIDE) : 1;
    double unit = (double)(images * width * SIDE * SIDE) * 2;
    int64_t few = width < CONV_CHANNELS ? width : CONV_CHANNELS;
    int64_t many = images * width / few;
    oar_tensor *x = leaf(b, OAR_BF16, OAR_SHAPE(images, width, SIDE, SIDE));
    oar_tensor *flat = leaf(b, OAR_BF16, OAR_SHAPE(many, few, SIDE, SIDE));
    oar_tensor *filter = leaf(b, OAR_BF16, OAR_SHAPE(few, few, 3, 3));

    TRY(time_op(b, "max_pool", run_max_pool, (oar_tensor *[]){ x, NULL, NULL },
                1.25 * unit, 2.25 * unit));
    TRY(time_op(b, "avg_pool", run_avg_pool, (oar_tensor *[]){ x, NULL, NULL },
                1.25 * unit, 1.25 * unit));
    TRY(time_op(b, "batch_norm", run_batch_norm,
                (oar_tensor *[]){ x, weight, bias }, 3 * unit, 5 * unit));
    if (width % GROUPS == 0)
        TRY(time_op(b, "group_norm", run_group_norm,
                    (oar_tensor *[]){ x, weight, bias }, 2 * unit, 3 * unit));
    TRY(time_op(b, "conv_columns", run_conv,
                (oar_tensor *[]){ flat, filter, NULL }, 2 * unit, 0));
    oar_tensor_release(x);
    oar_tensor_release(flat);
    oar_tensor_release(filter);
    return OAR_OK;
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
    TRY(report(b, "adamw", (double)count * (4 + 3 * 8 + 4), us));
    TRY(report(b, "adamw_clip", (double)count * (8 + 3 * 8 + 4), clipped));
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
    oar_tensor *y = leaf(b, OAR_BF16, OAR_SHAPE(tokens, width));
    oar_tensor *wide = leaf(b, OAR_BF16, OAR_SHAPE(tokens, 4 * width));
    oar_tensor *weight = leaf(b, OAR_BF16, OAR_SHAPE(width));
    oar_tensor *bias = leaf(b, OAR_BF16, OAR_SHAPE(width));
    oar_tensor *table = leaf(b, OAR_BF16, OAR_SHAPE(classes, width));
    oar_tensor *scores = leaf(b, OAR_BF16, OAR_SHAPE(rows, classes));
    oar_tensor *index = indices(b, tokens, classes);
    oar_tensor *target = indices(b, rows, classes);

    b->bytes = (size_t)(8 * unit);
    TRY(start_copies(b));
    TRY(time_op(b, "gelu", run_gelu, (oar_tensor *[]){ wide, NULL, NULL },
                8 * unit, 12 * unit));
    TRY(time_op(b, "gelu_tanh", run_gelu_tanh,
                (oar_tensor *[]){ wide, NULL, NULL }, 8 * unit, 12 * unit));
    TRY(time_op(b, "add", run_add, (oar_tensor *[]){ x, y, NULL }, 3 * unit,
                0));
    TRY(time_op(b, "add_row", run_add, (oar_tensor *[]){ x, bias, NULL },
                2 * unit, 0));
    TRY(time_op(b, "mul", run_mul, (oar_tensor *[]){ x, y, NULL }, 3 * unit,
                6 * unit));
    TRY(time_sums(b, x, wide, unit));
    TRY(time_op(b, "cast_f32", run_cast, (oar_tensor *[]){ x, NULL, NULL },
                3 * unit, 3 * unit));
    TRY(time_op(b, "transposed", run_transposed,
                (oar_tensor *[]){ x, NULL, NULL }, 2 * unit, 0));
    TRY(time_op(b, "layer_norm", run_norm, (oar_tensor *[]){ x, weight, bias },
                2 * unit, 3 * unit));
    TRY(time_op(b, "add_layer_norm", run_add_norm,
                (oar_tensor *[]){ x, y, weight }, 4 * unit, 0));
    TRY(time_op(b, "rms_norm", run_rms_norm,
                (oar_tensor *[]){ x, weight, NULL }, 2 * unit, 3 * unit));
    TRY(time_op(b, "softmax", run_softmax, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 3 * unit));
    TRY(time_op(b, "dropout", run_dropout, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 2 * unit));
    TRY(time_op(b, "cross_entropy", run_entropy,
                (oar_tensor *[]){ scores, NULL, target }, logits, 2 * logits));
    TRY(time_rotary(b, tokens, width));
    TRY(time_op(b, "sort", run_sort, (oar_tensor *[]){ x, NULL, NULL },
                2 * unit, 0));
    TRY(time_images(b, tokens, width, weight, bias));
    TRY(time_op(b, "embedding", run_embedding,
                (oar_tensor *[]){ table, NULL, index }, 2 * unit,
                unit + (double)classes * (double)width * 2));
    TRY(time_step(b, params));
    oar_tensor_release(x);
    oar_tensor_release(y);
    oar_tensor_release(wide);
    oar_device_free(b->gpu, b->here, NULL);
    oar_device_free(b->gpu, b->there, NULL);
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
