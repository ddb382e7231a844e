/* SPDX-License-Identifier: Apache-2.0 */
/* rule_loss: losses. Where rows or elements are cut, each rank adds up its own,
 * divided by what the whole is divided by, and the loss is a partial sum. Where
 * classes are cut, cross entropy merges two numbers of each row, and no logits
 * move; on a GPU they do. */
#include "base/alloc.h"
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

enum { REDUCTION = 0 }; /* the first number of every loss */

/* ---- of two tensors, element by element ---------------------------------- */

static oar_status form_pair(const oari_form_call *call, oari_form *form)
{
    OARI_TRY(oari_form_broadcast(call, form));
    if (!oari_same_shape(call->shape[0], call->shape[1]) ||
        !oari_same_shape(call->shape[0], form->shape[0]))
        return oari_fail(OAR_E_SHAPE, "%s of %s and %s", call->name,
                         oari_box_shape_text(call->shape[0]).text,
                         oari_box_shape_text(call->shape[1]).text);
    if (call->number[REDUCTION] == OAR_LOSS_NONE)
        return OAR_OK;
    form->flat = 0;
    form->shape[0].ndim = 0;
    form->reduces = 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    return OAR_OK;
}

/* Gives the reduction that a rank computes, and the factor of its result. */
static oar_loss_reduction
local_reduction(const oari_rule_call *c, const oari_decision *d, double *factor)
{
    oar_loss_reduction given = (oar_loss_reduction)c->number[REDUCTION];
    oar_shape whole = d->given[0]->shape;
    int64_t count = 1;

    *factor = 1;
    if (given == OAR_LOSS_NONE || !oari_letters_are_cut(d, ~0u))
        return given;
    for (int i = 0; i < whole.ndim; i++)
        count *= whole.dim[i];
    if (given == OAR_LOSS_BATCH_MEAN && whole.ndim > 0)
        count = whole.dim[0];
    if (given != OAR_LOSS_SUM)
        *factor = 1 / (double)count;
    return OAR_LOSS_SUM;
}

typedef oar_tensor *pair_fn(const oari_rule_call *c, oar_tensor *const *in,
                            oar_loss_reduction reduction);

static oar_tensor *run_pair(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, pair_fn *loss)
{
    double factor;
    oar_loss_reduction reduction = local_reduction(c, d, &factor);
    oar_tensor *out = loss(c, in, reduction);

    return factor == 1 ? out : oari_rule_scaled(c->tape, out, factor);
}

static oar_tensor *mse(const oari_rule_call *c, oar_tensor *const *in,
                       oar_loss_reduction reduction)
{
    return oar_mse_with(c->tape, in[0], in[1],
                        OAR_OPTS(oar_loss_opts, .reduction = reduction));
}

static oar_tensor *l1(const oari_rule_call *c, oar_tensor *const *in,
                      oar_loss_reduction reduction)
{
    return oar_l1_loss(c->tape, in[0], in[1],
                       OAR_OPTS(oar_loss_opts, .reduction = reduction));
}

static oar_tensor *huber(const oari_rule_call *c, oar_tensor *const *in,
                         oar_loss_reduction reduction)
{
    return oar_huber_loss(c->tape, in[0], in[1], c->real[0],
                          OAR_OPTS(oar_loss_opts, .reduction = reduction));
}

static oar_tensor *smooth_l1(const oari_rule_call *c, oar_tensor *const *in,
                             oar_loss_reduction reduction)
{
    return oar_smooth_l1_loss(c->tape, in[0], in[1], c->real[0],
                              OAR_OPTS(oar_loss_opts, .reduction = reduction));
}

static oar_tensor *kl(const oari_rule_call *c, oar_tensor *const *in,
                      oar_loss_reduction reduction)
{
    return oar_kl_div(c->tape, in[0], in[1],
                      OAR_OPTS(oar_kl_div_opts, .reduction = reduction,
                               .log_target = (int)c->number[1]));
}

static oar_tensor *bce(const oari_rule_call *c, oar_tensor *const *in,
                       oar_loss_reduction reduction)
{
    int64_t weight = c->number[1], positive = c->number[2];

    return oar_bce_with_logits(
        c->tape, in[0], in[1],
        OAR_OPTS(oar_bce_opts, .reduction = reduction,
                 .weight = weight < 0 ? NULL : in[weight],
                 .positive_weight = positive < 0 ? NULL : in[positive]));
}

#define PAIR(name, loss)                                                      \
    static oar_tensor *run_##name(const oari_rule_call *c,                    \
                                  const oari_decision *d,                     \
                                  oar_tensor *const *in, oar_tensor **second) \
    {                                                                         \
        return run_pair(c, d, in, loss);                                      \
    }                                                                         \
    static const oari_rule name##_rule = { #name, form_pair, run_##name };
PAIR(mse, mse)
PAIR(l1_loss, l1)
PAIR(huber_loss, huber)
PAIR(smooth_l1_loss, smooth_l1)
PAIR(kl_div, kl)
PAIR(bce_with_logits, bce)

static oar_dtensor pair_loss(oar_tape *tape, const oari_rule *rule,
                             oar_dtensor a, oar_dtensor b, double number,
                             const oar_loss_opts *opts)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { a, b },
                         .numbers = 1,
                         .real = { number } };
    oar_loss_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    c.number[REDUCTION] = o.reduction;
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_mse(oar_tape *tape, oar_dtensor a, oar_dtensor b)
{
    return pair_loss(tape, &mse_rule, a, b, 0, NULL);
}

oar_dtensor oar_dtensor_mse_with(oar_tape *tape, oar_dtensor a, oar_dtensor b,
                                 const oar_loss_opts *opts)
{
    return pair_loss(tape, &mse_rule, a, b, 0, opts);
}

oar_dtensor oar_dtensor_l1_loss(oar_tape *tape, oar_dtensor a, oar_dtensor b,
                                const oar_loss_opts *opts)
{
    return pair_loss(tape, &l1_loss_rule, a, b, 0, opts);
}

oar_dtensor oar_dtensor_huber_loss(oar_tape *tape, oar_dtensor a, oar_dtensor b,
                                   double delta, const oar_loss_opts *opts)
{
    return pair_loss(tape, &huber_loss_rule, a, b, delta, opts);
}

oar_dtensor oar_dtensor_smooth_l1_loss(oar_tape *tape, oar_dtensor a,
                                       oar_dtensor b, double beta,
                                       const oar_loss_opts *opts)
{
    return pair_loss(tape, &smooth_l1_loss_rule, a, b, beta, opts);
}

oar_dtensor oar_dtensor_kl_div(oar_tape *tape, oar_dtensor a,
                               oar_dtensor target, const oar_kl_div_opts *opts)
{
    oari_rule_call c = { .rule = &kl_div_rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { a, target },
                         .numbers = 2 };
    oar_kl_div_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    c.number[REDUCTION] = o.reduction;
    c.number[1] = o.log_target;
    return oari_rule_run(&c, NULL);
}

/* Tensors in options would be parts of which nothing says how they lie. */
static oar_status refuse_weight(const oar_tensor *weight, const char *call)
{
    if (weight == NULL)
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s: weights are DTensors, beside the options, not in "
                     "them",
                     call);
}

oar_dtensor oar_dtensor_bce_with_logits(oar_tape *tape, oar_dtensor logits,
                                        oar_dtensor target,
                                        const oar_dtensor *weight,
                                        const oar_dtensor *positive_weight,
                                        const oar_bce_opts *opts)
{
    oari_rule_call c = { .rule = &bce_with_logits_rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { logits, target },
                         .numbers = 3,
                         .number = { 0, -1, -1 } };
    oar_bce_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        refuse_weight(o.weight, "bce_with_logits") != OAR_OK ||
        refuse_weight(o.positive_weight, "bce_with_logits") != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    c.number[REDUCTION] = o.reduction;
    if (weight != NULL) {
        c.number[1] = c.inputs;
        c.in[c.inputs++] = *weight;
    }
    if (positive_weight != NULL) {
        c.number[2] = c.inputs;
        c.in[c.inputs++] = *positive_weight;
    }
    return oari_rule_run(&c, NULL);
}

/* ---- cross entropy ------------------------------------------------------- */

enum { ROWS = 0, CLASSES = 1 };              /* letters */
enum { LOGITS = 0, TARGET = 1, WEIGHT = 2 }; /* inputs */
enum { ON_GPU = 1 };                         /* a number */

static oar_status form_cross_entropy(const oari_form_call *call,
                                     oari_form *form)
{
    oar_shape logits = call->shape[LOGITS], target = call->shape[TARGET];

    if (logits.ndim != 2 || target.ndim != 1 ||
        target.dim[0] != logits.dim[0] ||
        (call->inputs > WEIGHT &&
         (call->shape[WEIGHT].ndim != 1 ||
          call->shape[WEIGHT].dim[0] != logits.dim[1])))
        return oari_fail(OAR_E_SHAPE,
                         "cross_entropy of logits %s and target %s: they are "
                         "[rows, classes] and [rows], and weights [classes]",
                         oari_box_shape_text(logits).text,
                         oari_box_shape_text(target).text);
    form->letters = 2;
    form->size[ROWS] = logits.dim[0];
    form->size[CLASSES] = logits.dim[1];
    form->in[LOGITS].of[0] = form->in[TARGET].of[0] = ROWS;
    form->in[LOGITS].of[1] = form->in[WEIGHT].of[0] = CLASSES;
    if (call->number[ON_GPU]) /* there is no kernel for some of the classes */
        form->whole = 1u << CLASSES;
    else
        form->merges = 1u << CLASSES;
    form->results = 1;
    if (call->number[REDUCTION] == OAR_LOSS_NONE) {
        form->shape[0] = OAR_SHAPE(logits.dim[0]);
        form->out[0].of[0] = ROWS;
        return OAR_OK;
    }
    form->shape[0].ndim = 0;
    form->reduces = 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    return OAR_OK;
}

static oar_status largest(void *arg, int64_t count, double *number)
{
    return oari_cut_ranks_reduce(arg, OAR_MAX, count, number);
}

static oar_status sums(void *arg, int64_t count, double *sum)
{
    return oari_cut_ranks_reduce(arg, OAR_SUM, count, sum);
}

/* Adds up what the rows of this rank count, each by the weight of its target,
 * if that is one of its classes. */
static oar_status count_rows(const oar_tensor *target, const oar_tensor *weight,
                             const oar_cross_entropy_opts *o, int64_t first,
                             double *sum)
{
    int64_t rows = oar_tensor_count(target);
    int64_t classes = weight != NULL ? oar_tensor_count(weight) : 0;
    int64_t *number = oari_alloc((size_t)rows + 1, sizeof *number);
    double *of = oari_alloc((size_t)classes + 1, sizeof *of);
    oar_status status = number != NULL && of != NULL ? OAR_OK : OAR_E_NOMEM;

    *sum = 0;
    if (status == OAR_OK)
        status = oar_tensor_read(target, OAR_I64, number);
    if (status == OAR_OK && weight != NULL)
        status = oar_tensor_read(weight, OAR_F64, of);
    for (int64_t i = 0; i < rows && status == OAR_OK; i++) {
        int64_t own = number[i] - first;

        if (o->has_ignore && number[i] == o->ignore)
            continue;
        if (weight == NULL)
            *sum += 1;
        else if (own >= 0 && own < classes)
            *sum += of[own];
    }
    oari_free(number);
    oari_free(of);
    return status;
}

/* Gives what the sum over all rows is divided by. */
static oar_status divisor(const oari_decision *d, oar_tensor *const *in,
                          const oar_cross_entropy_opts *o, int64_t first,
                          double *by)
{
    oar_tensor *weight = d->inputs > WEIGHT ? in[WEIGHT] : NULL;
    oari_cut_ranks over = { .mesh = d->out[0]->mesh,
                            .decision = d,
                            .letters = 1u << ROWS };

    *by = (double)d->given[LOGITS]->shape.dim[0];
    if (!o->has_ignore && weight == NULL)
        return OAR_OK;
    if (weight != NULL)
        over.letters |= 1u << CLASSES;
    OARI_TRY(count_rows(in[TARGET], weight, o, first, by));
    return oari_cut_ranks_reduce(&over, OAR_SUM, 1, by);
}

static oar_tensor *run_cross_entropy(const oari_rule_call *c,
                                     const oari_decision *d,
                                     oar_tensor *const *in, oar_tensor **second)
{
    oar_cross_entropy_opts o = *(const oar_cross_entropy_opts *)c->opts;
    oari_cut_ranks over = { .mesh = d->out[0]->mesh,
                            .decision = d,
                            .letters = 1u << CLASSES };
    oar_cross_entropy_merge merge = oar_cross_entropy_merge_init();
    int mean =
        o.reduction == OAR_LOSS_MEAN && oari_letters_are_cut(d, 1u << ROWS);
    oar_tensor *out;
    double by = 1;

    merge.first = d->in[LOGITS].spec->held.box.offset[1];
    merge.classes = d->given[LOGITS]->shape.dim[1];
    merge.arg = &over;
    merge.largest = largest;
    merge.sums = sums;
    o.weight = c->inputs > WEIGHT ? in[WEIGHT] : NULL;
    if (mean) {
        o.reduction = OAR_LOSS_SUM;
        if (divisor(d, in, &o, merge.first, &by) != OAR_OK)
            return NULL;
    }
    out = oari_letters_are_cut(d, 1u << CLASSES)
              ? oar_cross_entropy_merged(c->tape, in[LOGITS], in[TARGET], &o,
                                         &merge)
              : oar_cross_entropy_with(c->tape, in[LOGITS], in[TARGET], &o);
    return mean ? oari_rule_scaled(c->tape, out, 1 / by) : out;
}

static const oari_rule cross_entropy_rule = { "cross_entropy",
                                              form_cross_entropy,
                                              run_cross_entropy };

oar_dtensor oar_dtensor_cross_entropy_with(oar_tape *tape, oar_dtensor logits,
                                           oar_dtensor target,
                                           const oar_dtensor *weight,
                                           const oar_cross_entropy_opts *opts)
{
    oar_cross_entropy_opts o;
    oari_rule_call c = { .rule = &cross_entropy_rule,
                         .tape = tape,
                         .inputs = 2,
                         .in = { logits, target },
                         .numbers = 2,
                         .opts = &o };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        refuse_weight(o.weight, "cross_entropy") != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    o.size = sizeof o;
    c.number[REDUCTION] = o.reduction;
    c.number[ON_GPU] = logits.local != NULL &&
                       oar_tensor_device(logits.local).kind == OAR_CUDA;
    if (weight != NULL)
        c.in[c.inputs++] = *weight;
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_cross_entropy(oar_tape *tape, oar_dtensor logits,
                                      oar_dtensor target)
{
    return oar_dtensor_cross_entropy_with(tape, logits, target, NULL, NULL);
}

oar_dtensor oar_dtensor_linear_cross_entropy(oar_tape *tape, oar_dtensor x,
                                             oar_dtensor weight,
                                             oar_dtensor target,
                                             const oar_cross_entropy_opts *opts)
{
    oar_dtensor logits = oar_dtensor_linear(tape, x, weight, NULL);
    oar_dtensor loss =
        oar_dtensor_cross_entropy_with(tape, logits, target, NULL, opts);

    if (tape == NULL)
        oar_tensor_release(logits.local);
    return loss;
}
