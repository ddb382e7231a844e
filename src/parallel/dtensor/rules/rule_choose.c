/* SPDX-License-Identifier: Apache-2.0 */
/* rule_choose: which letter of an operation each mesh dim cuts.
 *
 * For every mesh dim there is a short list of options: what the inputs have
 * along it, and replicated. All combinations are tried, and the one whose moves
 * cost least is taken; of equal ones the first. Every rank must choose alike:
 * costs depend on specs and the mesh's figures only. */
#include <string.h>

#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

enum { MOST_OPTIONS = 12, MOST_TRIES = 400, MOST_PARTS = 1024 };

/* Options are cuts of letters: dim is the letter. Of partial ones dim is the
 * set of inputs, by its number. */
typedef struct options {
    int count;
    int unfit; /* an input is cut where the operation allows no cut */
    oari_cut cut[MOST_OPTIONS];
} options;

typedef struct choice {
    oar_mesh *mesh;
    const oari_form *form;
    const size_t *element;
    oari_decision *d; /* given and inputs; the best so far */
    options on[OAR_MESH_DIMS];
} choice;

static const oari_cut replicate = { .kind = OAR_REPLICATE };

/* ---- letters and dims ---------------------------------------------------- */

static int dim_of(const oari_letters *letters, oar_shape shape, int letter)
{
    for (int d = 0; d < shape.ndim; d++)
        if (letters->of[d] == letter)
            return d;
    return -1;
}

static int64_t rows_of(const oari_letters *letters, int dim)
{
    return letters->rows[dim] > 1 ? letters->rows[dim] : 1;
}

static int may_cut(const oari_form *form, int letter)
{
    if (letter < 0 || (form->whole >> letter & 1))
        return 0;
    if (form->reduces || (form->merges >> letter & 1))
        return 1;
    for (int i = 0; i < form->results; i++)
        if (dim_of(&form->out[i], form->shape[i], letter) < 0)
            return 0;
    return 1;
}

/* Gives sizes that are those of a cut of `length`, multiplied or divided. No
 * sizes if they do not divide. */
static oar_status scale_sizes(oar_mesh *mesh, int mesh_dim,
                              const oari_sizes *sizes, int64_t length,
                              int64_t times, int64_t by,
                              const oari_sizes **scaled)
{
    int n = mesh->grid.size[mesh_dim];
    int64_t part[MOST_PARTS];
    oar_status status;

    *scaled = NULL;
    if (n > MOST_PARTS)
        return OAR_OK;
    for (int i = 0; i < n; i++) {
        int64_t rows =
            sizes != NULL ? sizes->size[i] : length / n + (i < length % n);
        if (rows % by != 0)
            return OAR_OK;
        part[i] = rows / by * times;
    }
    pthread_mutex_lock(&mesh->lock);
    status = oari_sizes_intern(mesh, n, part, scaled);
    pthread_mutex_unlock(&mesh->lock);
    return status;
}

/* Whether other mesh dims cut the same dim. */
static int cut_twice(const oari_cuts *layout, int dims, int mesh_dim)
{
    for (int m = 0; m < dims; m++)
        if (m != mesh_dim && layout->on[m].kind == OAR_SHARD &&
            layout->on[m].dim == layout->on[mesh_dim].dim)
            return 1;
    return 0;
}

/* ---- options ------------------------------------------------------------- */

static void offer(options *o, const oari_cut *cut)
{
    for (int i = 0; i < o->count; i++)
        if (oari_cut_same(&o->cut[i], cut))
            return;
    if (o->count < MOST_OPTIONS)
        o->cut[o->count++] = *cut;
}

/* Offers the letter of a dim that an input is cut along. */
static oar_status offer_shard(choice *c, int input, int mesh_dim)
{
    const oar_spec *spec = c->d->given[input];
    oari_cut cut = spec->layout.on[mesh_dim];
    const oari_letters *letters = &c->form->in[input];
    int64_t rows = rows_of(letters, cut.dim);
    int dim = cut.dim, fits = 1;

    cut.dim = letters->of[dim];
    if (rows > 1) {
        fits = !cut_twice(&spec->layout, c->mesh->grid.dims, mesh_dim);
        if (fits)
            OARI_TRY(scale_sizes(c->mesh, mesh_dim, cut.sizes,
                                 spec->shape.dim[dim], 1, rows, &cut.sizes));
        fits = fits && cut.sizes != NULL;
    }
    if (fits)
        offer(&c->on[mesh_dim], &cut);
    cut.sizes = NULL;
    offer(&c->on[mesh_dim], &cut);
    return OAR_OK;
}

/* Offers every letter, for an input whose own cut does not suit. */
static void offer_letters(choice *c, int mesh_dim)
{
    c->on[mesh_dim].unfit = 1;
    for (int l = 0; l < c->form->letters; l++) {
        oari_cut cut = { .kind = OAR_SHARD, .dim = l };

        if (may_cut(c->form, l))
            offer(&c->on[mesh_dim], &cut);
    }
}

static void offer_partial(choice *c, int input, int mesh_dim)
{
    oari_cut cut = c->d->given[input]->layout.on[mesh_dim];

    for (int i = 0; i < c->form->linears; i++) {
        cut.dim = i;
        if ((c->form->linear[i] >> input & 1) &&
            (cut.op == OAR_REDUCE_OP_SUM || c->form->moves_only))
            offer(&c->on[mesh_dim], &cut);
    }
}

static oar_status offer_all(choice *c, int mesh_dim)
{
    for (int i = 0; i < c->d->inputs; i++) {
        const oari_cut *cut = &c->d->given[i]->layout.on[mesh_dim];

        if (cut->kind == OAR_SHARD &&
            may_cut(c->form, c->form->in[i].of[cut->dim]))
            OARI_TRY(offer_shard(c, i, mesh_dim));
        else if (cut->kind == OAR_FLAT && c->form->flat)
            offer(&c->on[mesh_dim], cut);
        else if (oari_cut_splits(cut))
            offer_letters(c, mesh_dim);
        else if (cut->kind == OAR_PARTIAL)
            offer_partial(c, i, mesh_dim);
    }
    offer(&c->on[mesh_dim], &replicate);
    return OAR_OK;
}

/* ---- what cuts of letters mean for a tensor ------------------------------ */

/* Whether every cut with given sizes fits the parts that it cuts. */
static int fits(const oari_grid *grid, oar_shape shape, const oari_cuts *layout)
{
    oari_cuts before = { .order = { 0 } };
    int flat = 0;

    memcpy(before.order, layout->order, sizeof before.order);
    for (int i = 0; i < grid->dims; i++) {
        int m = layout->order[i];

        if (!oari_cuts_takes(grid, shape, &before, &layout->on[m]) ||
            (flat && layout->on[m].kind == OAR_SHARD))
            return 0;
        before.on[m] = layout->on[m];
        flat |= layout->on[m].kind == OAR_FLAT;
    }
    return 1;
}

/* Gives the cut of a dim for that of its letter, whose steps are several rows.
 * Returns 0 if there is none. */
static int cut_rows(choice *c, const oari_cuts *letters, int mesh_dim,
                    int64_t rows, oari_cut *cut)
{
    const oari_cut *given = &letters->on[mesh_dim];
    const oari_grid *grid = &c->mesh->grid;
    int64_t length = c->form->size[given->dim];

    for (int i = 0; i < grid->dims && letters->order[i] != mesh_dim; i++) {
        int m = letters->order[i];
        const oari_cut *outer = &letters->on[m];

        if (outer->kind != OAR_SHARD || outer->dim != given->dim)
            continue;
        if (outer->sizes != NULL ? !outer->sizes->equal
                                 : length % grid->size[m] != 0)
            return 0;
        length /= grid->size[m];
    }
    return scale_sizes(c->mesh, mesh_dim, given->sizes, length, rows, 1,
                       &cut->sizes) == OAR_OK &&
           cut->sizes != NULL;
}

/* Gives the cut of a result that has a window of a letter. Returns 0 if there
 * is none: another mesh dim cuts the letter, too. */
static int cut_window(choice *c, const oari_cuts *letters, int mesh_dim,
                      int64_t length, oari_cut *cut)
{
    const oari_form *form = c->form;
    const oari_cut *given = &letters->on[mesh_dim];
    int n = c->mesh->grid.size[mesh_dim];
    int64_t part[MOST_PARTS], all = form->size[given->dim], at = 0;
    oar_status status;

    if (n > MOST_PARTS || cut_twice(letters, c->mesh->grid.dims, mesh_dim))
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t rows = given->sizes != NULL ? given->sizes->size[i]
                                            : all / n + (i < all % n);
        int64_t before =
            oari_window_before(form->window_first, form->window_step, at);
        int64_t after = oari_window_before(form->window_first,
                                           form->window_step, at + rows);

        before = before < length ? before : length;
        part[i] = (after < length ? after : length) - before;
        at += rows;
    }
    pthread_mutex_lock(&c->mesh->lock);
    status = oari_sizes_intern(c->mesh, n, part, &cut->sizes);
    pthread_mutex_unlock(&c->mesh->lock);
    return status == OAR_OK;
}

/* Gives the layout of input i, or of result i. Returns 0 if there is none. */
static int lay_out(choice *c, const oari_cuts *letters, int is_result, int i,
                   oari_cuts *layout)
{
    const oari_form *form = c->form;
    oar_shape shape = is_result ? form->shape[i] : c->d->given[i]->shape;
    const oari_letters *of = is_result ? &form->out[i] : &form->in[i];
    int dims = c->mesh->grid.dims, op = -1;

    *layout = *letters;
    for (int m = 0; m < dims; m++) {
        oari_cut *cut = &layout->on[m];
        int dim = cut->kind == OAR_SHARD ? dim_of(of, shape, cut->dim) : -1;

        if (cut->kind == OAR_SHARD && dim < 0) {
            int merged = form->merges >> cut->dim & 1;

            *cut = replicate;
            if (is_result && !merged) {
                cut->kind = OAR_PARTIAL;
                cut->op = form->reduce_op;
            }
        } else if (cut->kind == OAR_SHARD) {
            int window =
                is_result && form->windows && cut->dim == form->window_letter;

            if (rows_of(of, dim) > 1 &&
                !cut_rows(c, letters, m, rows_of(of, dim), cut))
                return 0;
            if (window && !cut_window(c, letters, m, shape.dim[dim], cut))
                return 0;
            cut->dim = dim;
        } else if (cut->kind == OAR_FLAT && is_result && form->flat_reduces) {
            *cut = (oari_cut){ .kind = OAR_PARTIAL, .op = form->reduce_op };
        } else if (cut->kind == OAR_PARTIAL) {
            int among = is_result || (form->linear[cut->dim] >> i & 1);
            cut->dim = 0;
            *cut = among ? *cut : replicate;
        }
        if (cut->kind == OAR_PARTIAL && op >= 0 && op != (int)cut->op)
            return 0;
        op = cut->kind == OAR_PARTIAL ? (int)cut->op : op;
    }
    if (!fits(&c->mesh->grid, shape, layout))
        return 0;
    oari_cuts_drop_plain_sizes(layout, dims);
    oari_cuts_sort(layout, dims);
    return 1;
}

static const oar_spec *intern(oar_mesh *mesh, oar_shape shape,
                              const oari_cuts *layout)
{
    const oar_spec *spec;

    pthread_mutex_lock(&mesh->lock);
    spec = oari_spec_intern(mesh, shape, layout);
    pthread_mutex_unlock(&mesh->lock);
    return spec;
}

/* ---- trying -------------------------------------------------------------- */

/* Gives the spec of an input and the path to it, if it is possible. */
static oar_status plan_input(choice *c, const oari_cuts *letters, int i,
                             oari_input_plan *plan, double *us, int *possible)
{
    const oar_spec *given = c->d->given[i];
    oari_cuts layout;

    *plan = (oari_input_plan){ .spec = given };
    *possible = lay_out(c, letters, 0, i, &layout);
    if (!*possible ||
        oari_cuts_same(&layout, &given->layout, c->mesh->grid.dims))
        return OAR_OK;
    plan->spec = intern(c->mesh, given->shape, &layout);
    if (plan->spec == NULL)
        return OAR_E_NOMEM;
    plan->path = oari_move_path_of(given, plan->spec, c->element[i]);
    if (plan->path == NULL)
        return OAR_E_NOMEM;
    *us += plan->path->us;
    return OAR_OK;
}

/* Tries one option for each mesh dim, and keeps it if it costs less. */
static oar_status try_cuts(choice *c, const oari_cuts *letters)
{
    oari_input_plan plan[OARI_RULE_INPUTS];
    oari_cuts layout[OARI_RULE_RESULTS];
    oari_decision *d = c->d;
    double us = 0;
    int possible;

    for (int i = 0; i < c->form->results; i++)
        if (!lay_out(c, letters, 1, i, &layout[i]))
            return OAR_OK;
    for (int i = 0; i < d->inputs; i++) {
        OARI_TRY(plan_input(c, letters, i, &plan[i], &us, &possible));
        if (!possible || (d->results > 0 && us >= d->us))
            return OAR_OK;
    }
    d->us = us;
    d->cuts = *letters;
    d->results = c->form->results;
    memcpy(d->in, plan, (size_t)d->inputs * sizeof *plan);
    for (int i = 0; i < d->results; i++) {
        d->out[i] = intern(c->mesh, c->form->shape[i], &layout[i]);
        if (d->out[i] == NULL)
            return OAR_E_NOMEM;
    }
    return OAR_OK;
}

/* Tries all combinations of options, with cuts in one order. */
static oar_status try_all(choice *c, const signed char *order, int *tries)
{
    int dims = c->mesh->grid.dims, at[OAR_MESH_DIMS] = { 0 }, m = 0;
    oari_cuts letters = { .order = { 0 } };

    memcpy(letters.order, order, sizeof letters.order);
    while (m < dims && (*tries)++ < MOST_TRIES) {
        for (m = 0; m < dims; m++)
            letters.on[m] = c->on[m].cut[at[m]];
        OARI_TRY(try_cuts(c, &letters));
        for (m = 0; m < dims && ++at[m] == c->on[m].count; m++)
            at[m] = 0;
    }
    return OAR_OK;
}

/* ---- gradients ----------------------------------------------------------- */

/* Finds where the local gradients of inputs lie: where an input is replicated
 * and a result is not, they are summands. */
static oar_status place_grads(choice *c)
{
    oari_decision *d = c->d;

    d->plain = 1;
    for (int i = 0; i < d->inputs; i++) {
        const oar_spec *grad = oari_spec_of_grad(d->in[i].spec);
        oari_cuts layout;
        int adds = 0;

        if (grad == NULL)
            return OAR_E_NOMEM;
        layout = grad->layout;
        for (int m = 0; m < c->mesh->grid.dims; m++) {
            int differs = 0;

            for (int k = 0; k < d->results; k++)
                differs |= d->out[k]->layout.on[m].kind != OAR_REPLICATE;
            if (!differs || c->mesh->grid.size[m] == 1 ||
                (c->form->summed >> i & 1) ||
                d->in[i].spec->layout.on[m].kind != OAR_REPLICATE)
                continue;
            layout.on[m] =
                (oari_cut){ .kind = OAR_PARTIAL, .op = OAR_REDUCE_OP_SUM };
            adds = 1;
        }
        if (adds) {
            oari_cuts_sort(&layout, c->mesh->grid.dims);
            d->in[i].grad = intern(c->mesh, d->in[i].spec->shape, &layout);
            if (d->in[i].grad == NULL)
                return OAR_E_NOMEM;
        }
        d->plain &= d->in[i].path == NULL && !adds;
    }
    return OAR_OK;
}

oar_status oari_rule_choose(oar_mesh *mesh, const oari_form *form,
                            const size_t *element, oari_decision *decision)
{
    choice c = {
        .mesh = mesh, .form = form, .element = element, .d = decision
    };
    int tries = 0;

    for (int m = 0; m < mesh->grid.dims; m++)
        OARI_TRY(offer_all(&c, m));
    for (int i = 0; i < decision->inputs; i++) {
        const signed char *order = decision->given[i]->layout.order;
        int known = 0;

        for (int k = 0; k < i; k++)
            known |= memcmp(decision->given[k]->layout.order, order,
                            (size_t)mesh->grid.dims) == 0;
        if (!known)
            OARI_TRY(try_all(&c, order, &tries));
    }
    if (decision->results == 0) /* there were too many to try */
        OARI_TRY(try_cuts(&c, &(oari_cuts){ .order = { 0, 1, 2, 3 } }));
    for (int m = 0; m < mesh->grid.dims; m++)
        decision->unfit |= c.on[m].unfit;
    return place_grads(&c);
}

int oari_decision_cuts(const oari_decision *decision, int letter)
{
    for (int m = 0; m < OAR_MESH_DIMS; m++)
        if (decision->cuts.on[m].kind == OAR_SHARD &&
            decision->cuts.on[m].dim == letter)
            return 1;
    return 0;
}
