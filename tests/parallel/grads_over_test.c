/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping and loss scaling of gradients that are spread over the rows and
 * columns of a grid of ranks: the same as in one process, and all ranks alike.
 */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

/* ---- a grid of ranks ----------------------------------------------------- */

typedef struct grid {
    int rows, columns, row, column;
    oar_group *group[2]; /* along the row, along the column */
} grid;

static oar_status grid_make(oar_group *g, int rows, grid *made)
{
    int rank = oar_group_rank(g);

    made->rows = rows;
    made->columns = oar_group_size(g) / rows;
    made->row = rank / made->columns;
    made->column = rank % made->columns;
    CHECK_OK(oar_group_split(g, made->row, made->column, &made->group[0]));
    CHECK_OK(oar_group_split(g, made->column, made->row, &made->group[1]));
    return OAR_OK;
}

static void grid_drop(grid *made)
{
    oar_group_destroy(made->group[0]);
    oar_group_destroy(made->group[1]);
}

/* ---- parameters of a whole and this rank's parts ------------------------- */

enum { WHOLE, BY_ROWS, BY_COLUMNS, BY_BOTH, UNUSED, KINDS };
enum { COUNT = 37 };

static const oar_dtype dtypes[KINDS] = { OAR_F32, OAR_F64, OAR_F32, OAR_F16,
                                         OAR_BF16 };

/* A parameter with numbers first .. end-1 of a whole gradient. */
static oar_tensor *param_of(int kind, int first, int end, double factor)
{
    oar_tensor *p, *home;
    double number[COUNT];

    for (int i = first; i < end; i++)
        number[i - first] = sin(i * 1.3 + kind) * factor;
    p = oar_full(NULL, dtypes[kind], OAR_SHAPE(end - first), 1);
    home = oar_empty(NULL, dtypes[kind], OAR_SHAPE(end - first));
    if (oar_tensor_write(home, OAR_F64, number) != OAR_OK ||
        oar_tensor_require_grad(p, 1) != OAR_OK ||
        oar_tensor_bind_grad(p, home) != OAR_OK ||
        (kind != UNUSED && oar_tensor_mark_grad(p) != OAR_OK))
        return NULL;
    oar_tensor_release(home);
    return p;
}

static int cut_at(int part, int parts)
{
    return COUNT * part / parts;
}

/* This rank's range of a parameter. Group 0 runs over the columns of a row. */
static unsigned range_of(const grid *m, int kind, int *first, int *end)
{
    int part = 0, parts = 1;
    unsigned cut = 0;

    if (kind == BY_COLUMNS || kind == BY_BOTH) {
        part = m->column;
        parts = m->columns;
        cut |= 1;
    }
    if (kind == BY_ROWS || kind == BY_BOTH) {
        part = part * m->rows + m->row;
        parts *= m->rows;
        cut |= 2;
    }
    *first = cut_at(part, parts);
    *end = cut_at(part + 1, parts);
    return cut;
}

/* Whether the numbers of this rank's gradient are those of the whole one. */
static int same_part(const oar_tensor *whole, const oar_tensor *part, int first)
{
    double all[COUNT], mine[COUNT];
    int count = (int)oar_tensor_count(part);

    if (oar_tensor_read(oar_tensor_grad(whole), OAR_F64, all) != OAR_OK ||
        oar_tensor_read(oar_tensor_grad(part), OAR_F64, mine) != OAR_OK)
        return 0;
    for (int i = 0; i < count; i++)
        if (!(fabs(all[first + i] - mine[i]) <= 1e-3 * fabs(mine[i])))
            return 0;
    return 1;
}

/* Whether all ranks have the same bits. */
static int same_everywhere(oar_group *g, double number)
{
    double all[8];

    if (oar_all_gather(g, oar_span_of(&number, 1, OAR_F64),
                       oar_span_of(all, (size_t)oar_group_size(g), OAR_F64),
                       NULL, NULL) != OAR_OK)
        return 0;
    for (int i = 0; i < oar_group_size(g); i++)
        if (memcmp(&all[i], &all[0], sizeof *all) != 0)
            return 0;
    return 1;
}

/* ---- clipping ------------------------------------------------------------ */

typedef struct clip_case {
    int rows;
    double factor, limit;
} clip_case;

static oar_status clip_as_one_process(oar_group *g, void *arg)
{
    const clip_case *c = arg;
    oar_tensor *whole[KINDS];
    oar_clip_part part[KINDS + 1];
    int first[KINDS], end;
    double want, got = -1;
    grid m;

    CHECK_OK(grid_make(g, c->rows, &m));
    for (int k = 0; k < KINDS; k++) {
        whole[k] = param_of(k, 0, COUNT, c->factor);
        part[k].cut = range_of(&m, k, &first[k], &end);
        part[k].param = param_of(k, first[k], end, c->factor);
        part[k].uncounted = 0;
        CHECK(whole[k] != NULL && part[k].param != NULL);
    }
    part[KINDS] = part[BY_BOTH]; /* tied: counts once */
    CHECK_OK(oar_clip_grad_norm(KINDS, whole, c->limit, &want));
    CHECK_OK(
        oar_clip_grad_norm_over(2, m.group, KINDS + 1, part, c->limit, &got));
    CHECK(fabs(got - want) <= 1e-12 * want || (isnan(got) && isnan(want)) ||
          got == want);
    CHECK(same_everywhere(g, got));
    for (int k = 0; k < KINDS; k++) {
        CHECK(k == UNUSED || same_part(whole[k], part[k].param, first[k]));
        oar_tensor_release(whole[k]);
        oar_tensor_release(part[k].param);
    }
    grid_drop(&m);
    return OAR_OK;
}

static void a_norm_over_rows_and_columns_is_that_of_one_process(void **state)
{
    clip_case c[] = { { .factor = 3, .limit = 1 },
                      { .factor = 1e-3, .limit = 1 },
                      { .factor = 3, .limit = 0 } };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int n = 1; n <= 4; n++)
            for (int rows = 1; rows <= n; rows++) {
                c[i].rows = rows;
                if (n % rows == 0)
                    ranks_all(n, clip_as_one_process, &c[i]);
            }
}

/* Stages of a pipeline: each has parameters of its own, the first and the last
 * share one, one has none. */
static oar_status clip_stages(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g), count = 0, all = 0;
    oar_tensor *stage[8], *counted[8];
    oar_clip_part part[2];
    double want, got, number[COUNT];

    for (int r = 0; r < ranks; r++) {
        stage[r] = param_of(BY_ROWS, 0, 5 + r, 3);
        if (r != 1) /* this stage has none */
            counted[all++] = stage[r];
    }
    stage[ranks] = counted[all++] = param_of(WHOLE, 0, COUNT, 3);
    CHECK_OK(oar_grad_squares(all, counted, &want));
    if (rank != 1)
        part[count++] = (oar_clip_part){ .param = stage[rank], .cut = 1 };
    if (rank == 0 || rank == ranks - 1)
        part[count++] = (oar_clip_part){ .param = stage[ranks],
                                         .cut = 1,
                                         .uncounted = rank != 0 };
    CHECK_OK(oar_clip_grad_norm_over(1, &g, count, count > 0 ? part : NULL, 1,
                                     &got));
    CHECK(fabs(got - sqrt(want)) <= 1e-12 * got);
    CHECK(same_everywhere(g, got));
    if (rank == ranks - 1) {
        CHECK_OK(
            oar_tensor_read(oar_tensor_grad(stage[ranks]), OAR_F64, number));
        CHECK(fabs(number[3] - sin(3.9) * 3 / got) < 1e-5);
    }
    for (int r = 0; r <= ranks; r++)
        oar_tensor_release(stage[r]);
    return OAR_OK;
}

static void a_parameter_of_two_stages_counts_once(void **state)
{
    for (int n = 1; n <= 4; n++)
        ranks_all(n, clip_stages, NULL);
}

static oar_status clip_not_finite(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), last = oar_group_size(g) - 1;
    double bad = rank == last ? *(const double *)arg : 1, norm, number[COUNT];
    oar_tensor *p = param_of(BY_ROWS, 0, 5, bad);
    oar_clip_part part = { .param = p, .cut = 1 };

    CHECK_OK(oar_clip_grad_norm_over(1, &g, 1, &part, 1e-3, &norm));
    CHECK(!isfinite(norm));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
    CHECK(rank == last || number[1] == sin(1.3 + BY_ROWS));
    oar_tensor_release(p);
    return OAR_OK;
}

static void a_norm_that_is_not_finite_changes_no_rank(void **state)
{
    double bad[] = { INFINITY, NAN };

    for (int i = 0; i < 2; i++)
        for (int n = 1; n <= 3; n++)
            ranks_all(n, clip_not_finite, &bad[i]);
}

enum fault { DETACHED, BAD_LIMIT, BAD_CUT, NO_PARAM, BAD_COUNT, FAULTS };

static oar_status clip_with_a_fault(oar_group *g, void *arg)
{
    int faulty = oar_group_rank(g) == oar_group_size(g) - 1;
    enum fault fault = *(const enum fault *)arg;
    oar_tensor *p = param_of(BY_ROWS, 0, 5, 3);
    oar_tensor *grad = oar_tensor_grad(p);
    oar_clip_part part = { .param = p, .cut = 1 };
    double norm = -1, number[COUNT];
    oar_status status;

    if (faulty && fault == DETACHED)
        CHECK_OK(oar_storage_detach(oar_tensor_storage(grad)));
    if (faulty && fault == BAD_CUT)
        part.cut = 2;
    if (faulty && fault == NO_PARAM)
        part.param = NULL;
    status = oar_clip_grad_norm_over(
        1, &g, faulty && fault == BAD_COUNT ? -1 : 1, &part,
        faulty && fault == BAD_LIMIT ? -1 : 1e-3, &norm);
    if (!faulty)
        CHECK(fails_with(status, OAR_E_STATE, "another rank could not"));
    else
        CHECK(status == (fault == DETACHED ? OAR_E_STATE : OAR_E_ARG));
    CHECK(norm == -1);
    if (!faulty) {
        CHECK_OK(oar_tensor_read(grad, OAR_F64, number));
        CHECK(number[1] == 3 * sin(1.3 + BY_ROWS));
    }
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* the group goes on */
    oar_tensor_release(p);
    return OAR_OK;
}

static void a_rank_that_cannot_clip_stops_all(void **state)
{
    for (int fault = 0; fault < FAULTS; fault++)
        for (int n = 1; n <= 3; n++)
            ranks_all(n, clip_with_a_fault, &fault);
}

static void what_no_rank_could_do_is_refused_at_once(void **state)
{
    oar_group *many[OAR_OVER_GROUPS + 1] = { NULL };
    oar_tensor *p = param_of(BY_ROWS, 0, 5, 3);
    oar_clip_part part = { .param = p };
    double norm, squares;

    assert_int_equal(oar_clip_grad_norm_over(-1, many, 0, NULL, 1, &norm),
                     OAR_E_ARG);
    assert_int_equal(oar_clip_grad_norm_over(1, NULL, 0, NULL, 1, &norm),
                     OAR_E_ARG);
    assert_int_equal(
        oar_clip_grad_norm_over(OAR_OVER_GROUPS + 1, many, 0, NULL, 1, &norm),
        OAR_E_ARG);
    assert_int_equal(oar_scaler_step_over(-1, many, NULL, NULL, NULL),
                     OAR_E_ARG);
    assert_int_equal(oar_scaler_step_over(0, NULL, NULL, NULL, NULL),
                     OAR_E_ARG);
    /* no groups, or only those of this rank alone */
    OK(oar_clip_grad_norm_over(0, NULL, 0, NULL, 1, &norm));
    assert_true(norm == 0);
    OK(oar_grad_squares(1, &p, &squares));
    OK(oar_clip_grad_norm_over(OAR_OVER_GROUPS, many, 1, &part, 1, &norm));
    assert_true(norm == sqrt(squares));
    OK(oar_clip_grad_norm_over(1, many, 1, &part, 1, NULL));
    assert_int_equal(oar_grad_squares(1, &p, NULL), OAR_E_ARG);
    assert_int_equal(oar_grad_squares(-1, &p, &squares), OAR_E_ARG);
    assert_int_equal(oar_grad_squares(1, NULL, &squares), OAR_E_ARG);
    assert_int_equal(oar_grad_scale(1, NULL, 2), OAR_E_ARG);
    OK(oar_grad_squares(0, NULL, &squares));
    assert_true(squares == 0);
    oar_tensor_release(p);
}

/* ---- scaling ------------------------------------------------------------- */

typedef struct scaled {
    oar_tensor *param;
    oar_optim *sgd;
    oar_scaler *scaler;
} scaled;

static oar_status scaled_make(scaled *s, double factor)
{
    s->param = param_of(BY_ROWS, 0, 5, factor);
    CHECK(s->param != NULL);
    CHECK_OK(oar_sgd_create_over(1, &s->param, OAR_OPTS(oar_sgd_opts, .lr = 1),
                                 &s->sgd));
    return oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = 4), &s->scaler);
}

static void scaled_drop(scaled *s)
{
    oar_scaler_destroy(s->scaler);
    oar_optim_destroy(s->sgd);
    oar_tensor_release(s->param);
}

static double second_of(const oar_tensor *t)
{
    double number[COUNT] = { 0 };

    return oar_tensor_read(t, OAR_F64, number) == OAR_OK ? number[1] : NAN;
}

/* *arg: the rank whose gradient is not finite; -1: none. */
static oar_status step_over_all(oar_group *g, void *arg)
{
    int bad = *(const int *)arg, rank = oar_group_rank(g), stepped = -1;
    int rows = oar_group_size(g) % 2 == 0 ? 2 : 1;
    double start = 1, want = 1 - sin(1.3 + BY_ROWS);
    scaled s;
    grid m;

    CHECK_OK(grid_make(g, rows, &m));
    for (int unscaled = 0; unscaled < 2; unscaled++) {
        CHECK_OK(scaled_make(&s, rank == bad ? INFINITY : 4));
        if (unscaled)
            CHECK_OK(oar_scaler_unscale(s.scaler, s.sgd, NULL));
        CHECK(oar_scaler_has_unscaled(s.scaler, s.sgd) == unscaled);
        CHECK_OK(oar_scaler_step_over(2, m.group, s.scaler, s.sgd, &stepped));
        CHECK(stepped == (bad < 0));
        CHECK(fabs(second_of(s.param) - (bad < 0 ? want : start)) < 1e-12);
        CHECK(oar_scaler_scale(s.scaler) == (bad < 0 ? 4 : 2));
        CHECK(!oar_scaler_has_unscaled(s.scaler, s.sgd));
        scaled_drop(&s);
    }
    grid_drop(&m);
    return OAR_OK;
}

static void all_ranks_step_or_none_does(void **state)
{
    for (int n = 1; n <= 4; n++)
        for (int bad = -1; bad < n; bad++)
            ranks_all(n, step_over_all, &bad);
}

static oar_status step_with_a_fault(oar_group *g, void *arg)
{
    int faulty = oar_group_rank(g) == oar_group_size(g) - 1, finite;
    oar_status status;
    oar_storage *home;
    scaled s;

    CHECK_OK(scaled_make(&s, 4));
    home = oar_tensor_storage(oar_tensor_grad(s.param));
    if (faulty)
        CHECK_OK(oar_storage_detach(home));
    status = oar_scaler_step_over(1, &g, s.scaler, s.sgd, NULL);
    CHECK(fails_with(status, OAR_E_STATE,
                     faulty ? "detached" : "another rank could not"));
    CHECK(second_of(s.param) == 1 && oar_optim_steps(s.sgd) == 0);
    /* another scale on one rank */
    if (faulty) {
        CHECK_OK(oar_storage_attach(home, NULL, NULL, NULL));
        CHECK_OK(oar_tensor_fill(oar_tensor_grad(s.param), 1));
        CHECK_OK(oar_scaler_set(s.scaler, 8, 0));
    }
    CHECK_OK(oar_scaler_found(s.scaler, s.sgd, &finite));
    CHECK(finite);
    status = oar_scaler_step_over(1, &g, s.scaler, s.sgd, NULL);
    if (oar_group_size(g) > 1)
        CHECK(fails_with(status, OAR_E_MISMATCH, "between 4 and 8"));
    else
        CHECK_OK(status);
    CHECK(oar_scaler_found(NULL, s.sgd, &finite) == OAR_E_ARG);
    CHECK(oar_scaler_found(s.scaler, NULL, &finite) == OAR_E_ARG);
    CHECK(oar_scaler_found(s.scaler, s.sgd, NULL) == OAR_E_ARG);
    CHECK(!oar_scaler_has_unscaled(NULL, NULL));
    scaled_drop(&s);
    return oar_barrier(g, NULL, NULL);
}

static void a_rank_that_cannot_step_stops_all(void **state)
{
    for (int n = 1; n <= 4; n++)
        ranks_all(n, step_with_a_fault, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_over_rows_and_columns_is_that_of_one_process),
        cmocka_unit_test(a_parameter_of_two_stages_counts_once),
        cmocka_unit_test(a_norm_that_is_not_finite_changes_no_rank),
        cmocka_unit_test(a_rank_that_cannot_clip_stops_all),
        cmocka_unit_test(what_no_rank_could_do_is_refused_at_once),
        cmocka_unit_test(all_ranks_step_or_none_does),
        cmocka_unit_test(a_rank_that_cannot_step_stops_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
