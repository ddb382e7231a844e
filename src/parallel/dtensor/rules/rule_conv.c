/* SPDX-License-Identifier: Apache-2.0 */
/* rule_conv: convolutions over parts of the batch, of the channels of the
 * result, and of those of the input, which add up; pools over parts of batch
 * and channels. */
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

enum { X = 0, WEIGHT = 1, BIAS = 2 };
enum { N = 0, IN = 1, OUT = 2, GROUPS = IN }; /* letters */
/* Numbers: of each spatial dim one, from these on. */
enum { KIND = 0, PARTS = 1, STRIDE = 2, PADDING = 4, DILATION = 6, MORE = 8 };
enum { PLAIN = 0, TRANSPOSED = 1 };

/* Returns the size of one side of a convolution's result. */
static int64_t side(const int64_t *number, int i, int64_t size, int64_t kernel)
{
    int64_t stride = number[STRIDE + i], reach;

    reach = number[DILATION + i] * (kernel - 1);
    if (number[KIND] == TRANSPOSED)
        return (size - 1) * stride - 2 * number[PADDING + i] + reach +
               number[MORE + i] + 1;
    if (size + 2 * number[PADDING + i] - reach < 1)
        return 0;
    return (size + 2 * number[PADDING + i] - reach - 1) / stride + 1;
}

static oar_status no_conv(const oari_form_call *call)
{
    return oari_fail(
        OAR_E_SHAPE, "%s of x %s, weight %s, bias %s in %lld groups",
        call->name, oari_box_shape_text(call->shape[X]).text,
        oari_box_shape_text(call->shape[WEIGHT]).text,
        call->inputs > BIAS ? oari_box_shape_text(call->shape[BIAS]).text
                            : "none",
        (long long)call->number[PARTS]);
}

/* In one group the channels of x and of the result have letters of their own;
 * of several groups a mesh dim cuts whole ones. */
static oar_status form_conv(const oari_form_call *call, oari_form *form)
{
    oar_shape x = call->shape[X], w = call->shape[WEIGHT];
    int64_t groups = call->number[PARTS], out;
    int transposed = call->number[KIND] == TRANSPOSED;

    if (x.ndim < 3 || w.ndim != x.ndim || groups < 1 ||
        x.dim[1] % groups != 0 || w.dim[0] % groups != 0 ||
        (transposed ? w.dim[0] : w.dim[1] * groups) != x.dim[1])
        return no_conv(call);
    out = transposed ? w.dim[1] * groups : w.dim[0];
    if (call->inputs > BIAS &&
        (call->shape[BIAS].ndim != 1 || call->shape[BIAS].dim[0] != out))
        return no_conv(call);
    form->letters = 3;
    form->size[N] = x.dim[0];
    form->size[IN] = groups > 1 ? groups : x.dim[1];
    form->size[OUT] = out;
    form->results = 1;
    form->reduces = groups == 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    form->whole = groups > 1 ? 1u << OUT : 0;
    form->shape[0] = OAR_SHAPE(x.dim[0], out);
    form->shape[0].ndim = x.ndim;
    for (int i = 2; i < x.ndim; i++) {
        form->in[X].of[i] = form->in[WEIGHT].of[i] = OARI_WHOLE;
        form->out[0].of[i] = OARI_WHOLE;
        form->shape[0].dim[i] = side(call->number, i - 2, x.dim[i], w.dim[i]);
        if (form->shape[0].dim[i] < 1)
            return no_conv(call);
    }
    form->in[X].of[0] = form->out[0].of[0] = N;
    form->in[X].of[1] = IN;
    form->out[0].of[1] = form->in[BIAS].of[0] = OUT;
    form->in[WEIGHT].of[transposed] = OUT;
    form->in[WEIGHT].of[!transposed] = IN;
    if (groups == 1)
        return OAR_OK;
    form->in[WEIGHT].of[0] = GROUPS;
    form->in[WEIGHT].of[1] = OARI_WHOLE;
    form->out[0].of[1] = form->in[BIAS].of[0] = GROUPS;
    form->in[X].rows[1] = x.dim[1] / groups;
    form->in[WEIGHT].rows[0] = w.dim[0] / groups;
    form->out[0].rows[1] = form->in[BIAS].rows[0] = out / groups;
    return OAR_OK;
}

/* Calls the operation with the groups of this rank. */
static oar_tensor *call_conv(const oari_rule_call *c, oar_tensor *x,
                             oar_tensor *w, oar_tensor *bias, int groups)
{
    const int64_t *n = c->number;
    int two = oar_tensor_shape(x).ndim == 4;
    int s[2] = { (int)n[STRIDE], (int)n[STRIDE + 1] };
    int p[2] = { (int)n[PADDING], (int)n[PADDING + 1] };
    int d[2] = { (int)n[DILATION], (int)n[DILATION + 1] };
    int m[2] = { (int)n[MORE], (int)n[MORE + 1] };

    if (n[KIND] == TRANSPOSED && two)
        return oar_conv_transpose2d(
            c->tape, x, w, bias,
            OAR_OPTS(oar_conv_transpose2d_opts, .stride = { s[0], s[1] },
                     .padding = { p[0], p[1] },
                     .output_padding = { m[0], m[1] },
                     .dilation = { d[0], d[1] }, .groups = groups));
    if (n[KIND] == TRANSPOSED)
        return oar_conv_transpose1d(
            c->tape, x, w, bias,
            OAR_OPTS(oar_conv_transpose1d_opts, .stride = s[0], .padding = p[0],
                     .output_padding = m[0], .dilation = d[0],
                     .groups = groups));
    if (two)
        return oar_conv2d(c->tape, x, w, bias,
                          OAR_OPTS(oar_conv2d_opts, .stride = { s[0], s[1] },
                                   .padding = { p[0], p[1] },
                                   .dilation = { d[0], d[1] },
                                   .groups = groups));
    return oar_conv1d(c->tape, x, w, bias,
                      OAR_OPTS(oar_conv1d_opts, .stride = s[0], .padding = p[0],
                               .dilation = d[0], .groups = groups));
}

/* Returns what a rank without channels adds: the bias, if that is its. */
static oar_tensor *only_bias(const oari_rule_call *c, const oari_decision *d,
                             oar_tensor *const *in, oar_tensor *bias)
{
    oar_tensor *zeros = oari_rule_zeros(c, d, in), *column, *out;
    oar_shape shape = oar_tensor_shape(zeros);

    if (bias == NULL || zeros == NULL)
        return zeros;
    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = i == 1 ? shape.dim[1] : 1;
    column = oar_reshape(c->tape, bias, shape);
    out = oar_add(c->tape, zeros, column);
    if (c->tape == NULL) {
        oar_tensor_release(zeros);
        oar_tensor_release(column);
    }
    return out;
}

static oar_tensor *run_conv(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    oari_cut_ranks over = { .mesh = d->out[0]->mesh,
                            .decision = d,
                            .letters = c->number[PARTS] == 1 ? 1u << IN : 0 };
    int64_t each = d->given[X]->shape.dim[1] / c->number[PARTS];
    int64_t own = oar_tensor_shape(in[X]).dim[1];
    oar_tensor *bias = NULL, *out;

    if (c->inputs > BIAS) {
        bias = oari_rule_bias_once(c, &over, in[BIAS]);
        if (bias == NULL)
            return NULL;
    }
    if (own == 0 || oar_tensor_count(in[WEIGHT]) == 0)
        out = only_bias(c, d, in, bias);
    else
        out = call_conv(c, in[X], in[WEIGHT], bias,
                        c->number[PARTS] == 1 ? 1 : (int)(own / each));
    if (c->tape == NULL)
        oar_tensor_release(bias);
    return out;
}

static const oari_rule conv1d_rule = { "conv1d", form_conv, run_conv };
static const oari_rule conv2d_rule = { "conv2d", form_conv, run_conv };
static const oari_rule conv_transpose1d_rule = { "conv_transpose1d", form_conv,
                                                 run_conv };
static const oari_rule conv_transpose2d_rule = { "conv_transpose2d", form_conv,
                                                 run_conv };

static int64_t or_one(int number)
{
    return number == 0 ? 1 : number;
}

/* Runs a convolution over `sides` spatial dims. */
static oar_dtensor conv(oar_tape *tape, const oari_rule *rule, int sides,
                        oar_dtensor x, oar_dtensor weight,
                        const oar_dtensor *bias,
                        const oar_conv_transpose2d_opts *o)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { x, weight },
                         .numbers = 10 };
    const oar_shape shape = oar_spec_shape(x.spec);

    if (x.local != NULL && x.spec != NULL && shape.ndim != 2 + sides) {
        oari_fail(OAR_E_SHAPE, "%s of x %s", rule->name,
                  oari_box_shape_text(shape).text);
        return (oar_dtensor){ NULL, NULL };
    }
    c.number[KIND] =
        rule == &conv_transpose1d_rule || rule == &conv_transpose2d_rule
            ? TRANSPOSED
            : PLAIN;
    c.number[PARTS] = or_one(o->groups);
    for (int i = 0; i < 2; i++) {
        c.number[STRIDE + i] = or_one(o->stride[i]);
        c.number[PADDING + i] = o->padding[i];
        c.number[DILATION + i] = or_one(o->dilation[i]);
        c.number[MORE + i] = o->output_padding[i];
        if (o->stride[i] < 0 || o->padding[i] < 0 || o->dilation[i] < 0 ||
            o->output_padding[i] < 0 || o->groups < 0) {
            oari_fail(OAR_E_ARG, "%s: no option may be negative", rule->name);
            return (oar_dtensor){ NULL, NULL };
        }
    }
    if (bias != NULL)
        c.in[c.inputs++] = *bias;
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_conv2d(oar_tape *tape, oar_dtensor x,
                               oar_dtensor weight, const oar_dtensor *bias,
                               const oar_conv2d_opts *opts)
{
    oar_conv2d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    return conv(tape, &conv2d_rule, 2, x, weight, bias,
                &(oar_conv_transpose2d_opts){
                    .stride = { o.stride[0], o.stride[1] },
                    .padding = { o.padding[0], o.padding[1] },
                    .dilation = { o.dilation[0], o.dilation[1] },
                    .groups = o.groups });
}

oar_dtensor oar_dtensor_conv1d(oar_tape *tape, oar_dtensor x,
                               oar_dtensor weight, const oar_dtensor *bias,
                               const oar_conv1d_opts *opts)
{
    oar_conv1d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    return conv(tape, &conv1d_rule, 1, x, weight, bias,
                &(oar_conv_transpose2d_opts){ .stride = { o.stride },
                                              .padding = { o.padding },
                                              .dilation = { o.dilation },
                                              .groups = o.groups });
}

oar_dtensor oar_dtensor_conv_transpose1d(oar_tape *tape, oar_dtensor x,
                                         oar_dtensor weight,
                                         const oar_dtensor *bias,
                                         const oar_conv_transpose1d_opts *opts)
{
    oar_conv_transpose1d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    return conv(
        tape, &conv_transpose1d_rule, 1, x, weight, bias,
        &(oar_conv_transpose2d_opts){ .stride = { o.stride },
                                      .padding = { o.padding },
                                      .output_padding = { o.output_padding },
                                      .dilation = { o.dilation },
                                      .groups = o.groups });
}

oar_dtensor oar_dtensor_conv_transpose2d(oar_tape *tape, oar_dtensor x,
                                         oar_dtensor weight,
                                         const oar_dtensor *bias,
                                         const oar_conv_transpose2d_opts *opts)
{
    oar_conv_transpose2d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    return conv(tape, &conv_transpose2d_rule, 2, x, weight, bias, &o);
}

/* ---- pools --------------------------------------------------------------- */

enum { MAX = 0, AVG = 1, ADAPTIVE = 2 };
enum { WINDOW = 1, POOL_STRIDE = 3, POOL_PADDING = 5 }; /* numbers */

static oar_status form_pool(const oari_form_call *call, oari_form *form)
{
    const int64_t *number = call->number;
    oar_shape x = call->shape[X];

    if (x.ndim != (number[KIND] == ADAPTIVE && number[WINDOW + 1] == 0 ? 3 : 4))
        return oari_fail(OAR_E_SHAPE, "%s of %s", call->name,
                         oari_box_shape_text(x).text);
    oari_form_same(call, form);
    form->whole = ~3u;
    for (int i = 2; i < x.ndim; i++) {
        int64_t window = number[WINDOW + i - 2], most = x.dim[i];
        int64_t stride = number[POOL_STRIDE + i - 2], to;

        most += 2 * number[POOL_PADDING + i - 2];
        to = number[KIND] == ADAPTIVE ? window
             : window < 1 || stride < 1 || most < window
                 ? 0
                 : (most - window) / stride + 1;
        if (to < 1)
            return oari_fail(OAR_E_SHAPE, "%s of %s with a window of %lld",
                             call->name, oari_box_shape_text(x).text,
                             (long long)window);
        form->shape[0].dim[i] = to;
    }
    return OAR_OK;
}

static oar_tensor *run_pool(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    const int64_t *n = c->number;
    int height = (int)n[WINDOW], width = (int)n[WINDOW + 1];
    oar_pool2d_opts o = oar_pool2d_opts_init();

    if (oar_tensor_count(in[X]) == 0)
        return oari_rule_zeros(c, d, in);
    if (n[KIND] == ADAPTIVE)
        return width == 0
                   ? oar_adaptive_avg_pool1d(c->tape, in[X], height)
                   : oar_adaptive_avg_pool2d(c->tape, in[X], height, width);
    for (int i = 0; i < 2; i++) {
        o.stride[i] = (int)n[POOL_STRIDE + i];
        o.padding[i] = (int)n[POOL_PADDING + i];
    }
    return n[KIND] == MAX ? oar_max_pool2d(c->tape, in[X], height, width, &o)
                          : oar_avg_pool2d(c->tape, in[X], height, width, &o);
}

static const oari_rule max_pool2d_rule = { "max_pool2d", form_pool, run_pool };
static const oari_rule avg_pool2d_rule = { "avg_pool2d", form_pool, run_pool };
static const oari_rule adaptive_rule = { "adaptive_avg_pool", form_pool,
                                         run_pool };

static oar_dtensor pool(oar_tape *tape, const oari_rule *rule, int kind,
                        oar_dtensor x, int height, int width,
                        const oar_pool2d_opts *opts)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .numbers = 7,
                         .number = { kind, height, width } };
    oar_pool2d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    for (int i = 0; i < 2; i++) {
        c.number[POOL_STRIDE + i] =
            o.stride[i] != 0 ? o.stride[i] : c.number[WINDOW + i];
        c.number[POOL_PADDING + i] = o.padding[i];
    }
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_max_pool2d(oar_tape *tape, oar_dtensor x, int height,
                                   int width, const oar_pool2d_opts *opts)
{
    return pool(tape, &max_pool2d_rule, MAX, x, height, width, opts);
}

oar_dtensor oar_dtensor_avg_pool2d(oar_tape *tape, oar_dtensor x, int height,
                                   int width, const oar_pool2d_opts *opts)
{
    return pool(tape, &avg_pool2d_rule, AVG, x, height, width, opts);
}

oar_dtensor oar_dtensor_adaptive_avg_pool1d(oar_tape *tape, oar_dtensor x,
                                            int length)
{
    return pool(tape, &adaptive_rule, ADAPTIVE, x, length, 0, NULL);
}

oar_dtensor oar_dtensor_adaptive_avg_pool2d(oar_tape *tape, oar_dtensor x,
                                            int height, int width)
{
    if (x.local != NULL && width < 1) {
        oari_fail(OAR_E_ARG, "adaptive_avg_pool2d to %d x %d", height, width);
        return (oar_dtensor){ NULL, NULL };
    }
    return pool(tape, &adaptive_rule, ADAPTIVE, x, height, width, NULL);
}
