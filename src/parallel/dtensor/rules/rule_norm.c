/* SPDX-License-Identifier: Apache-2.0 */
/* rule_norm: norms. Weights lie along the dim that they belong to; where rows
 * are cut, they are replicated, and their gradients are added up. */
#include "base/alloc.h"
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

/* ---- over the last dim --------------------------------------------------- */

/* Gives the letter of x's dim to all inputs but x, which have one dim. */
static oar_status form_weights(const oari_form_call *call, oari_form *form,
                               int dim)
{
    for (int i = 1; i < call->inputs; i++) {
        oar_shape shape = call->shape[i];

        if (shape.ndim != 1 || shape.dim[0] != call->shape[0].dim[dim])
            return oari_fail(OAR_E_SHAPE, "%s of %s with a weight or bias %s",
                             call->name,
                             oari_box_shape_text(call->shape[0]).text,
                             oari_box_shape_text(shape).text);
        form->in[i].of[0] = form->in[0].of[dim];
        form->in[i].rows[0] = form->in[0].rows[dim];
    }
    return OAR_OK;
}

static oar_status form_last(const oari_form_call *call, oari_form *form)
{
    int last = call->shape[0].ndim - 1;

    if (last < 0)
        return oari_fail(OAR_E_SHAPE, "%s of a single number", call->name);
    oari_form_same(call, form);
    form->whole = 1u << last;
    return form_weights(call, form, last);
}

/* Adds an input if it is there; returns which one it is, or -1. */
static int add_input(oari_rule_call *c, const oar_dtensor *a)
{
    if (a == NULL)
        return -1;
    c->in[c->inputs] = *a;
    return c->inputs++;
}

static oar_tensor *input(oar_tensor *const *in, int64_t i)
{
    return i < 0 ? NULL : in[i];
}

static oar_tensor *run_layer_norm(const oari_rule_call *c,
                                  const oari_decision *d, oar_tensor *const *in,
                                  oar_tensor **second)
{
    return oar_layer_norm(c->tape, in[0], input(in, c->number[0]),
                          input(in, c->number[1]), c->real[0]);
}

static const oari_rule layer_norm_rule = { "layer_norm", form_last,
                                           run_layer_norm };

oar_dtensor oar_dtensor_layer_norm(oar_tape *tape, oar_dtensor x,
                                   const oar_dtensor *weight,
                                   const oar_dtensor *bias, double eps)
{
    oari_rule_call c = { .rule = &layer_norm_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .numbers = 2,
                         .real = { eps } };

    c.number[0] = add_input(&c, weight);
    c.number[1] = add_input(&c, bias);
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_add_layer_norm(oar_tape *tape, oar_dtensor a,
                                       oar_dtensor b, const oar_dtensor *weight,
                                       const oar_dtensor *bias, double eps,
                                       oar_dtensor *sum)
{
    oar_dtensor both = oar_dtensor_add(tape, a, b);
    oar_dtensor result = oar_dtensor_layer_norm(tape, both, weight, bias, eps);

    if (sum != NULL && result.local != NULL)
        *sum = both;
    else if (tape == NULL)
        oar_tensor_release(both.local);
    return result;
}

static oar_tensor *run_rms_norm(const oari_rule_call *c, const oari_decision *d,
                                oar_tensor *const *in, oar_tensor **second)
{
    return oar_rms_norm(c->tape, in[0], input(in, c->number[0]), c->real[0]);
}

static const oari_rule rms_norm_rule = { "rms_norm", form_last, run_rms_norm };

oar_dtensor oar_dtensor_rms_norm(oar_tape *tape, oar_dtensor x,
                                 const oar_dtensor *weight, double eps)
{
    oari_rule_call c = { .rule = &rms_norm_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .numbers = 1,
                         .real = { eps } };

    c.number[0] = add_input(&c, weight);
    return oari_rule_run(&c, NULL);
}

/* ---- over groups of channels --------------------------------------------- */

enum { N = 0, CHANNELS = 1 };

/* A mesh dim cuts whole groups. */
static oar_status form_group_norm(const oari_form_call *call, oari_form *form)
{
    oar_shape x = call->shape[0];
    int64_t groups = call->number[2];

    if (x.ndim < 2 || groups < 1 || x.dim[CHANNELS] % groups != 0)
        return oari_fail(OAR_E_SHAPE,
                         "group_norm of %s in %lld groups: it is [n, channels, "
                         "..], and groups divide the channels",
                         oari_box_shape_text(x).text, (long long)groups);
    oari_form_same(call, form);
    form->whole = ~(1u << N | 1u << CHANNELS);
    form->size[CHANNELS] = groups;
    form->in[0].rows[CHANNELS] = form->out[0].rows[CHANNELS] =
        x.dim[CHANNELS] / groups;
    return form_weights(call, form, CHANNELS);
}

static oar_tensor *run_group_norm(const oari_rule_call *c,
                                  const oari_decision *d, oar_tensor *const *in,
                                  oar_tensor **second)
{
    int64_t each = d->given[0]->shape.dim[CHANNELS] / c->number[2];
    int64_t own = oar_tensor_shape(in[0]).dim[CHANNELS];

    if (own == 0)
        return oari_rule_zeros(c, d, in);
    return oar_group_norm(c->tape, in[0], own / each, input(in, c->number[0]),
                          input(in, c->number[1]), c->real[0]);
}

static const oari_rule group_norm_rule = { "group_norm", form_group_norm,
                                           run_group_norm };

oar_dtensor oar_dtensor_group_norm(oar_tape *tape, oar_dtensor x,
                                   int64_t groups, const oar_dtensor *weight,
                                   const oar_dtensor *bias, double eps)
{
    oari_rule_call c = { .rule = &group_norm_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .numbers = 3,
                         .real = { eps } };

    c.number[0] = add_input(&c, weight);
    c.number[1] = add_input(&c, bias);
    c.number[2] = groups;
    return oari_rule_run(&c, NULL);
}

/* ---- over the batch ------------------------------------------------------ */

static oar_status form_batch_norm(const oari_form_call *call, oari_form *form)
{
    if (call->shape[0].ndim < 2)
        return oari_fail(OAR_E_SHAPE,
                         "batch_norm of %s: it is [n, channels, ..]",
                         oari_box_shape_text(call->shape[0]).text);
    oari_form_same(call, form);
    return form_weights(call, form, CHANNELS);
}

/* What the callbacks of a batch norm need, until backward is done. */
typedef struct batch_merge {
    oari_cut_ranks ranks;
    oar_batch_norm_merge calls;
} batch_merge;

static void drop_merge(void *object)
{
    batch_merge *m = object;

    oar_mesh_release(m->ranks.mesh);
    oari_free(m);
}

/* Leaves the count, means and sums of squared distances of all parts. */
static oar_status merge_moments(void *arg, int64_t channels, double *count,
                                double *mean, double *spread)
{
    const batch_merge *m = arg;
    double *sum = oari_alloc((size_t)channels + 1, sizeof *sum), own = *count;
    oar_status status;

    if (sum == NULL)
        return OAR_E_NOMEM;
    for (int64_t c = 0; c < channels; c++)
        sum[c] = own * mean[c];
    sum[channels] = own;
    status = oari_cut_ranks_reduce(&m->ranks, OAR_SUM, channels + 1, sum);
    *count = sum[channels];
    for (int64_t c = 0; c < channels && status == OAR_OK; c++) {
        double all = sum[c] / *count, apart = mean[c] - all;

        spread[c] += own * apart * apart;
        mean[c] = all;
    }
    oari_free(sum);
    return status == OAR_OK
               ? oari_cut_ranks_reduce(&m->ranks, OAR_SUM, channels, spread)
               : status;
}

static oar_status merge_sums(void *arg, int64_t count, double *sum)
{
    const batch_merge *m = arg;

    return oari_cut_ranks_reduce(&m->ranks, OAR_SUM, count, sum);
}

/* ---- the same on a GPU --------------------------------------------------- */

static int count_parts(void *arg)
{
    return oari_cut_ranks_count(&((const batch_merge *)arg)->ranks);
}

static oar_status gather_on(void *arg, int sums_only, oar_span mine,
                            oar_span all)
{
    return oari_cut_ranks_gather(&((const batch_merge *)arg)->ranks, mine, all);
}

static batch_merge *make_merge(const oari_decision *d)
{
    batch_merge *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    m->ranks = (oari_cut_ranks){ .mesh = oar_mesh_retain(d->out[0]->mesh),
                                 .decision = d,
                                 .letters = ~(1u << CHANNELS) };
    m->calls = (oar_batch_norm_merge){ .arg = m,
                                       .moments = merge_moments,
                                       .sums = merge_sums,
                                       .parts = count_parts,
                                       .gather_on = gather_on };
    return m;
}

/* Running statistics are written, so they must lie where they are read. */
static oar_status check_running(const oari_rule_call *c, const oari_decision *d)
{
    for (int k = 2; k < 4; k++) {
        int64_t i = c->number[k];

        if (i >= 0 && c->number[4] && d->in[i].path != NULL)
            return oari_fail(OAR_E_ARG,
                             "%s: running statistics must lie as the channels "
                             "do",
                             d->label);
    }
    return OAR_OK;
}

static oar_tensor *run_batch_norm(const oari_rule_call *c,
                                  const oari_decision *d, oar_tensor *const *in,
                                  oar_tensor **second)
{
    int training = (int)c->number[4];
    batch_merge *m = NULL;
    oar_tensor *out;

    if (check_running(c, d) != OAR_OK)
        return NULL;
    if (oar_tensor_shape(in[0]).dim[CHANNELS] == 0)
        return oari_rule_zeros(c, d, in);
    if (training && oari_letters_are_cut(d, ~(1u << CHANNELS)) &&
        (m = make_merge(d)) == NULL)
        return NULL;
    if (m != NULL && c->tape != NULL &&
        oar_tape_own(c->tape, m, drop_merge) != OAR_OK)
        return NULL;
    out = oar_batch_norm_merged(
        c->tape, in[0], input(in, c->number[0]), input(in, c->number[1]),
        input(in, c->number[2]), input(in, c->number[3]), training, c->real[0],
        c->real[1], m != NULL ? &m->calls : NULL);
    if (m != NULL && c->tape == NULL)
        drop_merge(m);
    return out;
}

static const oari_rule batch_norm_rule = { "batch_norm", form_batch_norm,
                                           run_batch_norm };

oar_dtensor oar_dtensor_batch_norm(oar_tape *tape, oar_dtensor x,
                                   const oar_dtensor *weight,
                                   const oar_dtensor *bias,
                                   const oar_dtensor *running_mean,
                                   const oar_dtensor *running_var, int training,
                                   double momentum, double eps)
{
    oari_rule_call c = { .rule = &batch_norm_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .numbers = 5,
                         .real = { momentum, eps } };

    c.number[0] = add_input(&c, weight);
    c.number[1] = add_input(&c, bias);
    c.number[2] = add_input(&c, running_mean);
    c.number[3] = add_input(&c, running_var);
    c.number[4] = training != 0;
    return oari_rule_run(&c, NULL);
}
