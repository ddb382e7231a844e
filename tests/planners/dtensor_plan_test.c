/* SPDX-License-Identifier: Apache-2.0 */
/* Specs and the plans of moves, without ranks: every pair of specs on small
 * meshes is played through with numbers, and compared with the cheapest of all
 * ways. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include <oarsong/checkpoint.h>
#include <oarsong/dtensor.h>

#include "parallel/dtensor/move_plan.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spec_elements.h"

enum { MOST_RANKS = 8, MOST_ELEMENTS = 64 };

static oar_mesh *make_mesh(int dims, const int *size, double us, double gb)
{
    double latency[4] = { us, us, us, us }, speed[4] = { gb, gb, gb, gb };
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_mesh *mesh = NULL;

    o.latency_us = us > 0 ? latency : NULL;
    o.gb_per_s = us > 0 ? speed : NULL;
    OK(oar_mesh_create(NULL, dims, size, NULL, &o, &mesh));
    return mesh;
}

/* ---- a move, played through ---------------------------------------------- */

/* What a rank holds of each element; -1: it does not have it. */
typedef struct holding {
    int64_t number[MOST_RANKS][MOST_ELEMENTS];
} holding;

static void hold_start(const oar_spec *spec, holding *h)
{
    for (int r = 0; r < spec->mesh->grid.ranks; r++)
        for (int64_t e = 0; e < shape_count(spec->shape); e++)
            h->number[r][e] = spec_has_element(spec, r, e)
                                  ? spec_summand(e, spec_summand_of(spec, r))
                                  : -1;
}

static int same_but_along(const oari_grid *grid, int a, int b, int dim)
{
    for (int m = 0; m < grid->dims; m++)
        if (m != dim && a / grid->stride[m] % grid->size[m] !=
                            b / grid->stride[m] % grid->size[m])
            return 0;
    return 1;
}

/* Finds an element among the ranks that a step reaches; with several summands,
 * only of those with this rank's. */
static int64_t look_for(const oar_spec *from, const oari_move_step *step,
                        const holding *h, int rank, int64_t e)
{
    const oari_grid *grid = &from->mesh->grid;

    for (int r = 0; r < grid->ranks; r++)
        if (h->number[r][e] >= 0 &&
            spec_summand_of(from, r) == spec_summand_of(from, rank) &&
            (step->mesh_dim < 0 ||
             same_but_along(grid, rank, r, step->mesh_dim)))
            return h->number[r][e];
    return -1;
}

static int64_t play_element(const oar_spec *from, const oar_spec *to,
                            const oari_move_step *step, const holding *h,
                            int rank, int64_t e)
{
    const oari_grid *grid = &from->mesh->grid;
    int64_t sum = 0;

    switch (step->kind) {
    case OARI_MOVE_CUT: return h->number[rank][e];
    case OARI_MOVE_FILL:
        if (from->layout.on[step->mesh_dim].kind != OAR_REPLICATE)
            return h->number[rank][e] >= 0 ? h->number[rank][e] : 0;
        return rank / grid->stride[step->mesh_dim] %
                           grid->size[step->mesh_dim] ==
                       0
                   ? h->number[rank][e]
                   : 0;
    case OARI_MOVE_GATHER:
    case OARI_MOVE_EXCHANGE: return look_for(from, step, h, rank, e);
    case OARI_MOVE_REDUCE:
    case OARI_MOVE_REDUCE_SCATTER: break;
    }
    for (int r = 0; r < grid->ranks; r++)
        if (same_but_along(grid, rank, r, step->mesh_dim)) {
            assert_true(h->number[r][e] >= 0);
            sum += h->number[r][e];
        }
    return sum;
}

static void play_step(const oar_spec *from, const oar_spec *to,
                      const oari_move_step *step, holding *h)
{
    static holding after;

    for (int r = 0; r < from->mesh->grid.ranks; r++)
        for (int64_t e = 0; e < shape_count(from->shape); e++) {
            after.number[r][e] = -1;
            if (!spec_has_element(to, r, e))
                continue;
            after.number[r][e] = play_element(from, to, step, h, r, e);
            if (after.number[r][e] < 0)
                fail_msg("rank %d does not find element %lld", r, (long long)e);
        }
    *h = after;
}

/* Every rank has its part of `to`, with the sum of all summands of `from`; if
 * `to` is partial, that is the sum over those ranks. */
static void check_end(const oar_spec *from, const oar_spec *to,
                      const holding *h)
{
    int ranks = from->mesh->grid.ranks;

    for (int64_t e = 0; e < shape_count(from->shape); e++) {
        int64_t whole = 0;

        for (int i = 0; i < spec_summands(from); i++)
            whole += spec_summand(e, i);
        for (int r = 0; r < ranks; r++) {
            int64_t sum = 0;

            assert_int_equal(h->number[r][e] >= 0, spec_has_element(to, r, e));
            if (h->number[r][e] < 0)
                continue;
            for (int k = 0; k < ranks; k++) { /* ranks at its other places */
                int beside = 1;

                for (int m = 0; m < from->mesh->grid.dims; m++)
                    if (to->layout.on[m].kind != OAR_PARTIAL &&
                        !same_but_along(&from->mesh->grid, r, k, -1))
                        beside &= r / from->mesh->grid.stride[m] %
                                      from->mesh->grid.size[m] ==
                                  k / from->mesh->grid.stride[m] %
                                      from->mesh->grid.size[m];
                if (beside)
                    sum += h->number[k][e];
            }
            assert_int_equal(sum, whole);
        }
    }
}

static void check_move(const oar_spec *from, const oar_spec *to)
{
    const oari_move_path *path = oari_move_path_of(from, to, 4);
    const oar_spec *at = from;
    holding h;

    assert_non_null(path);
    hold_start(from, &h);
    for (int i = 0; i < path->steps; i++) {
        const oar_spec *next = oari_spec_with(from, &path->step[i].after);

        play_step(at, next, &path->step[i], &h);
        at = next;
    }
    assert_ptr_equal(at, to);
    check_end(from, to, &h);
}

static void check_all_moves(int dims, const int *size, oar_shape shape, int odd,
                            int every)
{
    oar_mesh *mesh = make_mesh(dims, size, 5, 1);
    spec_list list;

    spec_list_make(mesh, shape, odd, &list);
    for (int i = 0, n = 0; i < list.count; i++)
        for (int k = 0; k < list.count; k++)
            if (n++ % every == 0)
                check_move(list.spec[i], list.spec[k]);
    oar_mesh_release(mesh);
}

static void every_pair_of_specs_has_a_plan_that_arrives(void **state)
{
    check_all_moves(1, (int[]){ 1 }, OAR_SHAPE(5, 3), 1, 1);
    check_all_moves(1, (int[]){ 3 }, OAR_SHAPE(5, 3), 1, 1);
    check_all_moves(1, (int[]){ 7 }, OAR_SHAPE(5), 1, 1);
    check_all_moves(2, (int[]){ 2, 2 }, OAR_SHAPE(5, 3), 1, 1);
    check_all_moves(2, (int[]){ 2, 3 }, OAR_SHAPE(7, 1), 1, 3);
    check_all_moves(2, (int[]){ 1, 4 }, OAR_SHAPE(2, 5), 1, 3);
    check_all_moves(2, (int[]){ 2, 2 }, OAR_SHAPE(0, 3), 1, 1);
    check_all_moves(3, (int[]){ 2, 2, 2 }, OAR_SHAPE(5, 3), 0, 13);
}

/* ---- the cheapest way ---------------------------------------------------- */

/* Fills the cost of the cheapest step between any two specs: along a mesh dim,
 * or by an exchange. */
static void find_steps(const oari_mover *mover, const spec_list *list,
                       double *us)
{
    int n = list->count;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            const oari_cuts *from = &list->spec[i]->layout;
            const oari_cuts *to = &list->spec[k]->layout;
            double *least = &us[i * n + k];
            oari_move_step step;

            *least = i == k ? 0 : 1e30;
            if (oari_move_exchange(mover, from, to, &step) && i != k)
                *least = step.us;
            for (int m = 0; m < mover->grid->dims; m++)
                if (oari_move_along(mover, from, m, &to->on[m], &step) &&
                    list->spec[k] == oari_spec_with(list->spec[k], &step.after))
                    *least = step.us < *least ? step.us : *least;
        }
}

/* Whether a way may lead through this spec: it is partial only where one of its
 * ends is, and flat only if one of them is. */
static int may_pass(const oar_spec *via, const oar_spec *from,
                    const oar_spec *to)
{
    int dims = via->mesh->grid.dims;

    for (int m = 0; m < dims; m++)
        if (via->layout.on[m].kind == OAR_PARTIAL &&
            from->layout.on[m].kind != OAR_PARTIAL &&
            to->layout.on[m].kind != OAR_PARTIAL)
            return 0;
    return !oari_cuts_has(&via->layout, dims, OAR_FLAT) ||
           oari_cuts_has(&from->layout, dims, OAR_FLAT) ||
           oari_cuts_has(&to->layout, dims, OAR_FLAT);
}

/* Bellman and Ford's search over all specs, from one of them to another. */
static double cheapest(const spec_list *list, const double *us, int from,
                       int to, double *cost)
{
    int n = list->count, changed = 1;

    for (int i = 0; i < n; i++)
        cost[i] = i == from ? 0 : 1e30;
    while (changed) {
        changed = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++)
                if (cost[i] + us[i * n + k] < cost[k] - 1e-9 &&
                    may_pass(list->spec[k], list->spec[from], list->spec[to])) {
                    cost[k] = cost[i] + us[i * n + k];
                    changed = 1;
                }
    }
    return cost[to];
}

static void check_cheapest(int dims, const int *size, oar_shape shape,
                           double latency, double gb, int every)
{
    oar_mesh *mesh = make_mesh(dims, size, latency, gb);
    oari_mover mover = { &mesh->grid, shape, 4 };
    static double us[SPEC_LIST_MOST * SPEC_LIST_MOST];
    static double cost[SPEC_LIST_MOST];
    spec_list list;

    spec_list_make(mesh, shape, 0, &list);
    find_steps(&mover, &list, us);
    for (int i = 0, n = 0; i < list.count; i++)
        for (int k = 0; k < list.count; k++) {
            const oari_move_path *path;
            double best;

            if (n++ % every != 0)
                continue;
            path = oari_move_path_of(list.spec[i], list.spec[k], 4);
            best = cheapest(&list, us, i, k, cost);
            if (path->us > best + 1e-6)
                fail_msg("%s: %g us, but %g is possible", path->label, path->us,
                         best);
        }
    oar_mesh_release(mesh);
}

static void no_way_is_cheaper_than_the_plan(void **state)
{
    check_cheapest(1, (int[]){ 3 }, OAR_SHAPE(5, 3, 2), 5, 1, 1);
    check_cheapest(2, (int[]){ 2, 2 }, OAR_SHAPE(5, 3), 20, 1, 1);
    check_cheapest(2, (int[]){ 2, 3 }, OAR_SHAPE(5000, 4001), 2, 8, 1);
    check_cheapest(2, (int[]){ 8, 64 }, OAR_SHAPE(999, 1024), 20, 1, 1);
    check_cheapest(2, (int[]){ 4, 8 }, OAR_SHAPE(7, 300, 50), 1, 10, 3);
    check_cheapest(3, (int[]){ 2, 3, 2 }, OAR_SHAPE(500, 301), 2, 8, 97);
}

/* ---- specs --------------------------------------------------------------- */

/* The rows of a [5, 3] tensor on a 2 x 2 mesh that cuts them twice: PyTorch
 * loses one (pytorch#194457). */
static void rows_cut_twice_are_all_there(void **state)
{
    static const int first[4] = { 0, 2, 3, 4 }, rows[4] = { 2, 1, 1, 1 };
    oar_mesh *mesh = make_mesh(2, (int[]){ 2, 2 }, 0, 0);
    oar_placement twice[2] = { oar_placement_shard(0),
                               oar_placement_shard(-2) };
    const oar_spec *spec = oar_spec_of(mesh, 2, twice, OAR_SHAPE(5, 3), NULL);
    oar_place place = oar_place_init();
    oar_shape part;

    for (int r = 0; r < 4; r++) {
        OK(oar_spec_place_of(spec, r, &place, &part));
        assert_int_equal(place.offset[0], first[r]);
        assert_int_equal(part.dim[0], rows[r]);
        assert_true(part.dim[1] == 3 && place.offset[1] == 0 && !place.flat);
    }
    oar_mesh_release(mesh);
}

static void a_flat_part_is_a_range_for_a_checkpoint(void **state)
{
    oar_mesh *mesh = make_mesh(2, (int[]){ 2, 2 }, 0, 0);
    oar_placement rows[2] = { oar_placement_shard(0), oar_placement_flat() };
    oar_placement columns[2] = { oar_placement_shard(1), oar_placement_flat() };
    oar_placement sum[2] = { oar_placement_partial(OAR_REDUCE_OP_SUM),
                             oar_placement_replicate() };
    const oar_spec *spec = oar_spec_of(mesh, 2, rows, OAR_SHAPE(5, 3), NULL);
    oar_place place = oar_place_init();
    oar_shape part;

    OK(oar_spec_place_of(spec, 3, &place, &part)); /* of rows 3 and 4 */
    assert_true(place.flat && place.first == 12 && part.dim[0] == 3);
    assert_true(part.ndim == 1 && place.whole.dim[0] == 5);
    assert_int_equal(oar_spec_local_shape(spec, 0).dim[0], 5); /* of 9 */
    spec = oar_spec_of(mesh, 2, columns, OAR_SHAPE(5, 3), NULL);
    assert_fails_with(oar_spec_place_of(spec, 0, &place, &part),
                      OAR_E_UNSUPPORTED, "no range of the whole [5, 3]");
    spec = oar_spec_of(mesh, 2, sum, OAR_SHAPE(5, 3), NULL);
    assert_fails_with(oar_spec_place_of(spec, 0, &place, &part), OAR_E_STATE,
                      "partial");
    assert_fails_with(oar_spec_place_of(spec, 4, &place, &part), OAR_E_RANK,
                      "rank 4 of 4");
    assert_int_equal(oar_spec_place_of(NULL, 0, &place, &part), OAR_E_ARG);
    oar_mesh_release(mesh);
}

static void equal_specs_are_one(void **state)
{
    oar_mesh *mesh = make_mesh(2, (int[]){ 2, 3 }, 0, 0);
    oar_placement a[2] = { oar_placement_shard(0), oar_placement_shard(1) },
                  b[2], same[2];
    int64_t even[2] = { 3, 2 }, odd[2] = { 1, 4 };
    oar_spec_opts o = oar_spec_opts_init();
    const oar_spec *spec = oar_spec_of(mesh, 2, a, OAR_SHAPE(5, 3), NULL);
    char text[100];

    o.order = (int[]){ 1, 0 };
    assert_ptr_equal(oar_spec_of(mesh, 2, a, OAR_SHAPE(5, 3), &o), spec);
    memcpy(b, a, sizeof a);
    b[0].sizes = even;
    b[1].dim = -1;
    assert_ptr_equal(oar_spec_of(mesh, 2, b, OAR_SHAPE(5, 3), NULL), spec);
    b[0].sizes = odd;
    assert_ptr_not_equal(oar_spec_of(mesh, 2, b, OAR_SHAPE(5, 3), NULL), spec);
    oar_spec_text(oar_spec_of(mesh, 2, b, OAR_SHAPE(5, 3), NULL), text,
                  sizeof text);
    assert_string_equal(text, "[5, 3] on 0=2 1=3: S(0: 1 4) S(1)");
    same[0] = same[1] = oar_placement_shard(0);
    assert_ptr_not_equal(oar_spec_of(mesh, 2, same, OAR_SHAPE(5, 3), &o),
                         oar_spec_of(mesh, 2, same, OAR_SHAPE(5, 3), NULL));
    oar_spec_text(oar_spec_of(mesh, 2, same, OAR_SHAPE(5, 3), &o), text,
                  sizeof text);
    assert_string_equal(text, "[5, 3] on 0=2 1=3: S(0) S(0) in the order 1 0");
    assert_int_equal(oar_spec_text(spec, text, 5), 28);
    assert_string_equal(text, "[5, ");
    assert_ptr_equal(oar_spec_mesh(spec), mesh);
    assert_int_equal(oar_spec_shape(spec).dim[1], 3);
    assert_int_equal(oar_spec_placement(spec, 1).dim, 1);
    assert_null(oar_spec_placement(spec, 0).sizes);
    assert_int_equal(oar_spec_placement(spec, 2).kind, OAR_REPLICATE);
    oar_mesh_release(mesh);
}

static void wrong(oar_mesh *mesh, int count, oar_placement a, oar_placement b,
                  const int *order, oar_status status, const char *says)
{
    oar_placement p[2] = { a, b };
    oar_spec_opts o = oar_spec_opts_init();

    o.order = order;
    assert_null(oar_spec_of(mesh, count, p, OAR_SHAPE(5, 3), &o));
    assert_int_equal(oar_last_error()->status, status);
    assert_last_error_has(says);
}

static void specs_that_cannot_be_are_refused(void **state)
{
    oar_mesh *mesh = make_mesh(2, (int[]){ 2, 2 }, 0, 0);
    oar_placement r = oar_placement_replicate(), s = oar_placement_shard(0),
                  f = oar_placement_flat();
    oar_placement sized = oar_placement_shard(0);

    wrong(mesh, 1, r, r, NULL, OAR_E_SHAPE, "1 placements for a mesh of 2");
    wrong(mesh, 3, r, r, NULL, OAR_E_SHAPE, "3 placements");
    wrong(mesh, 2, oar_placement_shard(2), r, NULL, OAR_E_ARG,
          "shard(2) along \"0\"");
    wrong(mesh, 2, r, oar_placement_shard(-3), NULL, OAR_E_ARG, "shard(-3)");
    wrong(mesh, 2, f, s, NULL, OAR_E_ARG, "after a flat cut");
    wrong(mesh, 2, s, f, (int[]){ 1, 0 }, OAR_E_ARG, "after a flat cut");
    wrong(mesh, 2, r, r, (int[]){ 0, 0 }, OAR_E_ARG, "once");
    wrong(mesh, 2, r, r, (int[]){ 0, 2 }, OAR_E_ARG, "once");
    wrong(mesh, 2, oar_placement_partial(OAR_REDUCE_OP_AVG), r, NULL, OAR_E_ARG,
          "partial(avg)");
    wrong(mesh, 2, oar_placement_partial(OAR_REDUCE_OP_SUM),
          oar_placement_partial(OAR_REDUCE_OP_MAX), NULL, OAR_E_ARG,
          "partial(max)");
    sized.sizes = (int64_t[]){ 3, 3 };
    wrong(mesh, 2, sized, r, NULL, OAR_E_SHAPE, "add up to 6");
    sized.sizes = (int64_t[]){ 6, -1 };
    wrong(mesh, 2, sized, r, NULL, OAR_E_SHAPE, "-1 rows");
    sized.sizes = (int64_t[]){ 2, 1 }; /* of parts of 3 and 2 rows */
    wrong(mesh, 2, s, sized, NULL, OAR_E_SHAPE, "every part");
    wrong(NULL, 2, r, r, NULL, OAR_E_ARG, "without a mesh");
    assert_null(oar_spec_of(mesh, 2, NULL, OAR_SHAPE(5), NULL));
    oar_mesh_release(mesh);
}

/* ---- explain ------------------------------------------------------------- */

static void a_plan_for_ten_thousand_ranks_is_explained(void **state)
{
    oar_mesh *mesh = make_mesh(2, (int[]){ 100, 100 }, 0, 0);
    oar_placement cut[2] = { oar_placement_shard(0), oar_placement_shard(1) };
    oar_placement swapped[2] = { oar_placement_shard(1),
                                 oar_placement_shard(0) };
    oar_placement whole[2] = { oar_placement_replicate(),
                               oar_placement_replicate() };
    oar_shape shape = OAR_SHAPE(10001, 5000);
    const oar_spec *a = oar_spec_of(mesh, 2, cut, shape, NULL);
    const oar_spec *b = oar_spec_of(mesh, 2, whole, shape, NULL);
    const oar_spec *c = oar_spec_of(mesh, 2, swapped, shape, NULL);
    oar_move_plan plan = oar_move_plan_init();
    char text[600];

    OK(oar_explain(a, b, OAR_F32, &plan)); /* all but what a rank has */
    assert_int_equal(plan.bytes, 4 * (10001 * 5000 - 101 * 50));
    assert_int_equal(plan.most_bytes, 4 * (10001 * 5000 - 100 * 50));
    assert_true(plan.us > 4e4 * 5000 / 1250);
    assert_ptr_equal(plan.move[plan.moves - 1].after, b);
    OK(oar_explain(a, c, OAR_F32, &plan)); /* not between all at once */
    assert_true(plan.moves > 1 && plan.us < 10000 / 8 * 20);
    assert_ptr_equal(plan.move[plan.moves - 1].after, c);
    oar_explain_text(a, b, OAR_F32, text, sizeof text);
    assert_non_null(strstr(text, "[10001, 5000] on 0=100 1=100: S(0) S(1) to "
                                 "R R, f32: "));
    assert_non_null(strstr(text, "199999800 bytes to this rank"));
    oar_mesh_release(mesh);
}

/* Swapping the dims that are cut is one exchange between four ranks, in which
 * two have their parts already. */
static void a_swap_is_one_exchange(void **state)
{
    static const int received[4] = { 0, 250 * 151, 251 * 150, 0 };
    oar_placement cut[2] = { oar_placement_shard(0), oar_placement_shard(1) };
    oar_placement swap[2] = { oar_placement_shard(1), oar_placement_shard(0) };

    for (int rank = 0; rank < 4; rank++) {
        oar_mesh_opts o = oar_mesh_opts_init();
        oar_move_plan plan = oar_move_plan_init();
        oar_mesh *mesh;

        o.rank = rank;
        OK(oar_mesh_create(NULL, 2, (int[]){ 2, 2 }, NULL, &o, &mesh));
        OK(oar_explain(oar_spec_of(mesh, 2, cut, OAR_SHAPE(501, 301), NULL),
                       oar_spec_of(mesh, 2, swap, OAR_SHAPE(501, 301), NULL),
                       OAR_F64, &plan));
        assert_int_equal(plan.moves, 1);
        assert_int_equal(plan.move[0].kind, OAR_COLL_ALL_TO_ALL);
        assert_int_equal(plan.move[0].mesh_dim, -1);
        assert_int_equal(plan.bytes, 8 * received[rank]);
        oar_mesh_release(mesh);
    }
}

/* Where quick links have the same parts, each gets a share of them over slow
 * ones, and they are gathered over the quick ones: the exchange is not last. */
static void an_exchange_may_be_on_the_way(void **state)
{
    oar_placement cut[3] = { oar_placement_shard(0), oar_placement_shard(1),
                             oar_placement_replicate() };
    oar_placement swap[3] = { oar_placement_shard(1), oar_placement_shard(0),
                              oar_placement_replicate() };
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_move_plan plan = oar_move_plan_init();
    oar_mesh *mesh;

    o.latency_us = (double[]){ 20, 20, 0.5 };
    o.gb_per_s = (double[]){ 1, 1, 100 };
    OK(oar_mesh_create(NULL, 3, (int[]){ 2, 2, 8 }, NULL, &o, &mesh));
    OK(oar_explain(oar_spec_of(mesh, 3, cut, OAR_SHAPE(800, 3200), NULL),
                   oar_spec_of(mesh, 3, swap, OAR_SHAPE(800, 3200), NULL),
                   OAR_F32, &plan));
    assert_int_equal(plan.moves, 2);
    assert_int_equal(plan.move[0].kind, OAR_COLL_ALL_TO_ALL);
    assert_int_equal(plan.move[1].kind, OAR_COLL_ALL_GATHER);
    assert_int_equal(plan.move[1].mesh_dim, 2);
    oar_mesh_release(mesh);
}

/* A sum over a row is the collective of that name, not two. */
static void what_one_collective_does_is_one_step(void **state)
{
    oar_mesh *mesh = make_mesh(1, (int[]){ 8 }, 5, 1);
    oar_placement p = oar_placement_partial(OAR_REDUCE_OP_SUM);
    oar_placement r = oar_placement_replicate();
    oar_move_plan plan = oar_move_plan_init();

    OK(oar_explain(oar_spec_of(mesh, 1, &p, OAR_SHAPE(501, 301), NULL),
                   oar_spec_of(mesh, 1, &r, OAR_SHAPE(501, 301), NULL), OAR_F32,
                   &plan));
    assert_int_equal(plan.moves, 1);
    assert_int_equal(plan.move[0].kind, OAR_COLL_ALL_REDUCE);
    oar_mesh_release(mesh);
}

static void what_cannot_be_moved_is_not_explained(void **state)
{
    oar_mesh *mesh = make_mesh(1, (int[]){ 2 }, 0, 0);
    oar_mesh *other = make_mesh(1, (int[]){ 2 }, 0, 0);
    oar_placement s = oar_placement_shard(0),
                  sum = oar_placement_partial(OAR_REDUCE_OP_SUM);
    const oar_spec *a = oar_spec_of(mesh, 1, &s, OAR_SHAPE(5), NULL);
    oar_move_plan plan = oar_move_plan_init();

    assert_fails_with(oar_explain(a,
                                  oar_spec_of(other, 1, &s, OAR_SHAPE(5), NULL),
                                  OAR_F32, &plan),
                      OAR_E_ARG, "two meshes");
    assert_fails_with(oar_explain(a,
                                  oar_spec_of(mesh, 1, &s, OAR_SHAPE(6), NULL),
                                  OAR_F32, &plan),
                      OAR_E_ARG, "from a tensor [5] to one [6]");
    assert_fails_with(
        oar_explain(a, oar_spec_of(mesh, 1, &sum, OAR_SHAPE(5), NULL),
                    OAR_F8E4M3, &plan),
        OAR_E_DTYPE, "no partial(sum) of f8e4m3");
    assert_int_equal(oar_explain(a, NULL, OAR_F32, &plan), OAR_E_ARG);
    assert_int_equal(oar_explain_text(NULL, a, OAR_F32, NULL, 0), 0);
    OK(oar_explain(a, a, OAR_F32, &plan));
    assert_int_equal(plan.moves, 0);
    oar_mesh_release(mesh);
    oar_mesh_release(other);
}

static oar_status explain_once(void *arg)
{
    oar_placement p = { .kind = OAR_SHARD, .sizes = (int64_t[]){ 1, 4 } };
    oar_placement q = oar_placement_replicate();
    oar_move_plan plan = oar_move_plan_init();
    const oar_spec *a = NULL, *b = NULL;
    oar_mesh *mesh = NULL;
    oar_status status =
        oar_mesh_create(NULL, 1, (int[]){ 2 }, NULL, NULL, &mesh);

    if (status == OAR_OK)
        a = oar_spec_of(mesh, 1, &p, OAR_SHAPE(5), NULL);
    if (a != NULL)
        b = oar_spec_of(mesh, 1, &q, OAR_SHAPE(5), NULL);
    if (b != NULL)
        status = oar_explain(a, b, OAR_F32, &plan);
    else
        status = oar_last_error()->status;
    oar_mesh_release(mesh);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    fail_each_allocation(explain_once, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_specs_has_a_plan_that_arrives),
        cmocka_unit_test(no_way_is_cheaper_than_the_plan),
        cmocka_unit_test(rows_cut_twice_are_all_there),
        cmocka_unit_test(a_flat_part_is_a_range_for_a_checkpoint),
        cmocka_unit_test(equal_specs_are_one),
        cmocka_unit_test(specs_that_cannot_be_are_refused),
        cmocka_unit_test(a_plan_for_ten_thousand_ranks_is_explained),
        cmocka_unit_test(a_swap_is_one_exchange),
        cmocka_unit_test(an_exchange_may_be_on_the_way),
        cmocka_unit_test(what_one_collective_does_is_one_step),
        cmocka_unit_test(what_cannot_be_moved_is_not_explained),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
