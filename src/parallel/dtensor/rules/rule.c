/* SPDX-License-Identifier: Apache-2.0 */
/* rule: runs operations on DTensors.
 *
 * What to do with inputs of given specs is decided once, compared over all
 * ranks, and kept by the mesh. Decisions are found without a lock: rows of the
 * table only grow, at their front, under the mesh's lock. */
#include "parallel/dtensor/rules/rule.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "parallel/dtensor/move_op.h"

oar_status oari_form_dim(const oari_form_call *call, int64_t number, int ndim,
                         int *dim)
{
    *dim = 0;
    if (number < -ndim || number >= ndim)
        return oari_fail(OAR_E_ARG, "%s: dim %lld of a tensor %s", call->name,
                         (long long)number,
                         oari_box_shape_text(call->shape[0]).text);
    *dim = (int)(number < 0 ? number + ndim : number);
    return OAR_OK;
}

oar_status oari_form_list(const oari_form_call *call, int64_t count)
{
    if (count >= 0 && count <= OAR_MAX_DIMS)
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s: %lld dims; there are %d at most",
                     call->name, (long long)count, OAR_MAX_DIMS);
}

static const oar_dtensor failed = { NULL, NULL };

/* ---- the table ----------------------------------------------------------- */

void oari_decisions_free(oari_decision *decision)
{
    while (decision != NULL) {
        oari_decision *next = decision->next;
        oari_free(decision);
        decision = next;
    }
}

static size_t row_of(const oari_rule_call *c)
{
    uint64_t hash = (uintptr_t)c->rule;

    for (int i = 0; i < c->inputs; i++)
        hash = hash * 31 + ((uintptr_t)c->in[i].spec >> 4);
    for (int i = 0; i < c->numbers; i++)
        hash = hash * 31 + (uint64_t)c->number[i];
    return hash * 0x9e3779b97f4a7c15u >> 56;
}

static uint64_t dtypes_of(const oari_rule_call *c)
{
    uint64_t dtypes = 0;

    for (int i = 0; i < c->inputs; i++)
        dtypes = dtypes << 8 | (unsigned)oar_tensor_dtype(c->in[i].local);
    return dtypes;
}

static int is_for(const oari_decision *d, const oari_rule_call *c,
                  uint64_t dtypes)
{
    if (d->rule != c->rule || d->inputs != c->inputs || d->dtypes != dtypes ||
        d->numbers != c->numbers)
        return 0;
    for (int i = 0; i < c->inputs; i++)
        if (d->given[i] != c->in[i].spec)
            return 0;
    return memcmp(d->number, c->number,
                  (size_t)c->numbers * sizeof *c->number) == 0;
}

static oari_spec_table *table_of(const oari_rule_call *c)
{
    return c->in[0].spec->mesh->kept; /* there is one, of these specs */
}

static const oari_decision *find(const oari_rule_call *c, size_t row)
{
    const oari_decision *d =
        atomic_load_explicit(&table_of(c)->decision[row], memory_order_acquire);
    uint64_t dtypes = dtypes_of(c);

    while (d != NULL && !is_for(d, c, dtypes))
        d = d->next;
    return d;
}

/* ---- deciding ------------------------------------------------------------ */

/* Writes "add of [5, 3] S(0) R and [3] R R". */
static void write_label(const oari_rule_call *c, char *text, size_t bytes)
{
    size_t at = oari_spec_text_add(text, bytes, 0, "%s of", c->rule->name);

    for (int i = 0; i < c->inputs; i++) {
        const oar_spec *spec = c->in[i].spec;

        at = oari_spec_text_add(text, bytes, at, "%s %s ", i == 0 ? "" : " and",
                                oari_box_shape_text(spec->shape).text);
        at = oari_cuts_text(&spec->mesh->grid, &spec->layout, text, bytes, at);
    }
}

static uint64_t key_of(const oari_rule_call *c, uint64_t dtypes)
{
    uint64_t key = dtypes;

    for (const char *at = c->rule->name; *at != '\0'; at++)
        key = key * 31 + (unsigned char)*at;
    for (int i = 0; i < c->inputs; i++)
        key = key * 0x9e3779b97f4a7c15u + c->in[i].spec->hash;
    for (int i = 0; i < c->numbers; i++)
        key = key * 0x9e3779b97f4a7c15u + (uint64_t)c->number[i];
    return key | 1;
}

/* Compares the call with those of the other ranks. */
static oar_status compare(const oari_decision *d, oar_mesh *mesh)
{
    oar_call_opts opts = oar_call_opts_init();
    oar_group *all = oar_mesh_group(mesh, -1);

    if (all == NULL || mesh->grid.ranks == 1)
        return OAR_OK;
    if (oar_batch_is_open(all))
        return oari_fail(OAR_E_STATE, "%s inside a batch", d->rule->name);
    opts.key = d->key;
    opts.label = d->label;
    return oar_barrier(all, &opts, NULL);
}

/* Returns whether an earlier call of the operation had no rule. */
static int was_told(const oari_spec_table *table, const oari_rule *rule)
{
    for (int row = 0; row < OARI_SPEC_ROWS; row++)
        for (const oari_decision *d = table->decision[row]; d != NULL;
             d = d->next)
            if (d->rule == rule && d->unfit)
                return 1;
    return 0;
}

static oar_status fill_form(const oari_rule_call *c, oari_form *form)
{
    oari_form_call f = { .name = c->rule->name,
                         .inputs = c->inputs,
                         .number = c->number };

    for (int i = 0; i < c->inputs; i++) {
        f.shape[i] = c->in[i].spec->shape;
        f.dtype[i] = oar_tensor_dtype(c->in[i].local);
    }
    OARI_TRY(c->rule->form(&f, form));
    for (int i = 0; i < form->results; i++)
        if (!oari_box_shape_fits(form->shape[i], sizeof(int64_t)))
            return oari_fail(OAR_E_SHAPE, "%s: no tensor has this shape",
                             c->rule->name);
    return OAR_OK;
}

static oar_status decide(const oari_rule_call *c, oari_decision *d)
{
    oar_mesh *mesh = c->in[0].spec->mesh;
    size_t element[OARI_RULE_INPUTS];
    oari_form form = { .letters = 0 };

    d->rule = c->rule;
    d->inputs = c->inputs;
    d->numbers = c->numbers;
    d->dtypes = dtypes_of(c);
    memcpy(d->number, c->number, sizeof d->number);
    for (int i = 0; i < c->inputs; i++) {
        d->given[i] = c->in[i].spec;
        element[i] = oar_dtype_size(oar_tensor_dtype(c->in[i].local));
    }
    write_label(c, d->label, sizeof d->label);
    d->key = key_of(c, d->dtypes);
    OARI_TRY(compare(d, mesh));
    OARI_TRY(fill_form(c, &form));
    OARI_TRY(oari_rule_choose(mesh, &form, element, d));
    for (int i = 0; i < d->inputs; i++) {
        oar_move_plan plan = oar_move_plan_init();

        if (d->in[i].path == NULL)
            continue;
        OARI_TRY(oar_explain(d->given[i], d->in[i].spec,
                             oar_tensor_dtype(c->in[i].local), &plan));
        d->most_bytes += plan.most_bytes;
    }
    return OAR_OK;
}

/* Decides, and keeps it. Returns NULL on failure. */
static const oari_decision *add_decision(const oari_rule_call *c, size_t row)
{
    oari_spec_table *table = table_of(c);
    oar_mesh *mesh = c->in[0].spec->mesh;
    oari_decision *d = oari_alloc(1, sizeof *d);

    if (d == NULL)
        return NULL;
    if (decide(c, d) != OAR_OK) {
        oari_free(d);
        return NULL;
    }
    pthread_mutex_lock(&mesh->lock);
    if (d->unfit && mesh->rank == 0 && !was_told(table, d->rule) &&
        !table->strict)
        oari_log(OAR_LOG_WARN,
                 "%s: no rule computes it on these parts, so inputs are moved "
                 "first: %llu bytes to a rank",
                 d->label, (unsigned long long)d->most_bytes);
    d->next = table->decision[row];
    atomic_store_explicit(&table->decision[row], d, memory_order_release);
    pthread_mutex_unlock(&mesh->lock);
    return d;
}

/* ---- running ------------------------------------------------------------- */

static oar_status check_inputs(const oari_rule_call *c)
{
    for (int i = 0; i < c->inputs; i++) {
        const oar_dtensor *a = &c->in[i];

        OARI_TRY(oari_check_local(a->local, a->spec, c->rule->name));
        if (a->spec->mesh != c->in[0].spec->mesh)
            return oari_fail(OAR_E_ARG, "%s: inputs of two meshes",
                             c->rule->name);
    }
    return OAR_OK;
}

/* Checks what the mesh allows. */
static oar_status check_limits(const oari_rule_call *c, const oari_decision *d)
{
    const oari_spec_table *table = table_of(c);
    uint64_t most = table->most_bytes;

    if (d->unfit && table->strict)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s: no rule computes it on these parts: "
                         "redistribute the inputs first",
                         d->label);
    if (most > 0 && d->most_bytes > most)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s would bring a rank %llu bytes, and may bring "
                         "%llu: redistribute the inputs first",
                         d->label, (unsigned long long)d->most_bytes,
                         (unsigned long long)most);
    return OAR_OK;
}

/* Brings input i to where the local operation reads it. *made is set if that is
 * a tensor of its own. */
static oar_tensor *bring(const oari_rule_call *c, const oari_decision *d, int i,
                         int *made)
{
    const oari_input_plan *plan = &d->in[i];
    oar_tensor *local = c->in[i].local;

    *made = 0;
    if (plan->path != NULL) {
        *made = 1;
        if (oari_move_ready(plan->spec, c->rule->name) != OAR_OK ||
            oari_move_compare(plan->path) != OAR_OK)
            return NULL;
        return oari_move_tensor(c->tape, local, plan->path, plan->grad, 1);
    }
    if (plan->grad != NULL && c->tape != NULL &&
        oar_tensor_requires_grad(local))
        return oari_take_grad_from(c->tape, local, plan->spec, plan->grad);
    return local;
}

/* Takes the local result, if it has the shape that its spec says. */
static oar_dtensor give(const oari_rule_call *c, oar_tensor *local,
                        const oar_spec *spec)
{
    oar_dtensor result = { local, spec };

    if (local == NULL)
        return failed;
    if (spec != NULL && oari_check_local(local, spec, c->rule->name) == OAR_OK)
        return result;
    if (c->tape == NULL)
        oar_tensor_release(local);
    return failed;
}

static oar_dtensor run_local(const oari_rule_call *c, const oari_decision *d,
                             oar_tensor *const *in, oar_dtensor *second)
{
    oar_tensor *other = NULL;
    oar_tensor *local = c->rule->run(c, d, in, &other);
    oar_dtensor result = give(c, local, d->out[0]);

    if (second != NULL)
        *second = give(c, other, d->out[1]);
    return result;
}

static oar_dtensor run_moved(const oari_rule_call *c, const oari_decision *d,
                             oar_dtensor *second)
{
    oar_tensor *in[OARI_RULE_INPUTS];
    int made[OARI_RULE_INPUTS] = { 0 }, n = 0;
    oar_dtensor result = failed;

    if (check_limits(c, d) != OAR_OK)
        return failed;
    for (; n < c->inputs; n++) {
        in[n] = bring(c, d, n, &made[n]);
        if (in[n] == NULL)
            break;
    }
    if (n == c->inputs)
        result = run_local(c, d, in, second);
    for (int i = 0; i < n && c->tape == NULL; i++)
        if (made[i])
            oar_tensor_release(in[i]);
    return result;
}

oar_dtensor oari_rule_run(const oari_rule_call *c, oar_dtensor *second)
{
    oar_tensor *in[OARI_RULE_INPUTS];
    const oari_decision *d;
    size_t row;

    if (second != NULL)
        *second = failed;
    for (int i = 0; i < c->inputs; i++) {
        in[i] = c->in[i].local;
        if (in[i] == NULL)
            return failed;
    }
    if (check_inputs(c) != OAR_OK)
        return failed;
    row = row_of(c);
    d = find(c, row);
    if (d == NULL)
        d = add_decision(c, row);
    if (d == NULL)
        return failed;
    return d->plain ? run_local(c, d, in, second) : run_moved(c, d, second);
}
