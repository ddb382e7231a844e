/* SPDX-License-Identifier: Apache-2.0 */
/* DTensors that are made by a rule have the numbers of one rank, whatever the
 * cut; and what ferrotorch's DTensors do, with data. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/dtensor.h>
#include <oarsong/ops.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spec_elements.h"

enum { MOST = 64 };

/* ---- made by a rule ------------------------------------------------------ */

/* The whole of a DTensor is bitwise that tensor. Releases both. */
static oar_status check_whole(oar_dtensor a, oar_tensor *wanted)
{
    double number[MOST], same[MOST];
    oar_tensor *whole = oar_dtensor_whole(NULL, a, OAR_GRADS_EQUAL);

    CHECK(whole != NULL && wanted != NULL);
    CHECK(oar_tensor_dtype(whole) == oar_tensor_dtype(wanted));
    CHECK(oar_tensor_count(whole) == oar_tensor_count(wanted));
    CHECK_OK(oar_tensor_read(whole, OAR_F64, number));
    CHECK_OK(oar_tensor_read(wanted, OAR_F64, same));
    CHECK(memcmp(number, same,
                 (size_t)oar_tensor_count(whole) * sizeof *number) == 0);
    oar_tensor_release(whole);
    oar_tensor_release(wanted);
    oar_tensor_release(a.local);
    return OAR_OK;
}

typedef struct make_case {
    int dims, size[3];
    oar_shape shape;
    int every; /* one of so many specs */
} make_case;

static oar_status make_all(oar_group *world, void *arg)
{
    const make_case *c = arg;
    oar_shape shape = c->shape;
    oar_mesh *mesh = NULL;
    oar_tensor *lazy;
    spec_list list;

    CHECK_OK(oar_mesh_create(world, c->dims, c->size, NULL, NULL, &mesh));
    spec_list_make(mesh, shape, c->dims < 3, &list);
    oar_lazy(1);
    lazy = oar_normal(NULL, OAR_F64, shape, 9, 1, 2);
    oar_lazy(0);
    for (int i = 0; i < list.count; i += c->every) {
        const oar_spec *spec = list.spec[i];

        CHECK_OK(check_whole(oar_dtensor_zeros(NULL, OAR_F32, spec),
                             oar_zeros(NULL, OAR_F32, shape)));
        CHECK_OK(check_whole(oar_dtensor_ones(NULL, OAR_I32, spec),
                             oar_ones(NULL, OAR_I32, shape)));
        CHECK_OK(check_whole(oar_dtensor_full(NULL, OAR_F64, spec, 2.5),
                             oar_full(NULL, OAR_F64, shape, 2.5)));
        CHECK_OK(check_whole(oar_dtensor_uniform(NULL, OAR_F32, spec, 7, -1, 1),
                             oar_uniform(NULL, OAR_F32, shape, 7, -1, 1)));
        CHECK_OK(check_whole(oar_dtensor_normal(NULL, OAR_F64, spec, 8, 1, 2),
                             oar_normal(NULL, OAR_F64, shape, 8, 1, 2)));
        CHECK_OK(check_whole(oar_dtensor_from_lazy(NULL, lazy, spec),
                             oar_normal(NULL, OAR_F64, shape, 9, 1, 2)));
        CHECK(oar_tensor_is_lazy(lazy));
    }
    oar_tensor_release(lazy);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void run_sim(int ranks, make_case c)
{
    assert_int_equal(ranks_run("sim", ranks, NULL, make_all, &c), OAR_OK);
}

static void numbers_do_not_depend_on_the_cut(void **state)
{
    run_sim(1, (make_case){ 1, { 1 }, OAR_SHAPE(5, 3), 1 });
    run_sim(3, (make_case){ 1, { 3 }, OAR_SHAPE(3, 1, 5), 1 });
    run_sim(7, (make_case){ 1, { 7 }, OAR_SHAPE(5), 1 });
    run_sim(4, (make_case){ 2, { 2, 2 }, OAR_SHAPE(5, 3), 1 });
    run_sim(4, (make_case){ 2, { 2, 2 }, OAR_SHAPE(0, 3), 7 });
    run_sim(8, (make_case){ 3, { 2, 2, 2 }, OAR_SHAPE(5, 3), 7 });
}

/* What is partial has one summand with the numbers, and zeros; a product has
 * ones; of a maximum all ranks have them. */
static oar_status make_partial(oar_group *world, void *arg)
{
    static const oar_reduce_op_kind op[3] = { OAR_REDUCE_OP_SUM,
                                              OAR_REDUCE_OP_PROD,
                                              OAR_REDUCE_OP_MAX };
    static const double others[3] = { 0, 1, 4 };
    int rank = oar_group_rank(world);
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    for (int i = 0; i < 3; i++) {
        oar_placement p = oar_placement_partial(op[i]);
        oar_dtensor a = oar_dtensor_full(
            NULL, OAR_F64, oar_spec_of(mesh, 1, &p, OAR_SHAPE(2), NULL), 4);
        double number[2];

        CHECK(a.local != NULL);
        CHECK_OK(oar_tensor_read(a.local, OAR_F64, number));
        CHECK(number[1] == (rank == 0 ? 4 : others[i]));
        oar_tensor_release(a.local);
    }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void what_is_partial_is_made_once(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, make_partial, NULL), OAR_OK);
}

static void what_cannot_be_made_is_refused(void **state)
{
    oar_placement s = oar_placement_shard(0);
    oar_tensor *real = oar_ones(NULL, OAR_F32, OAR_SHAPE(4));
    oar_mesh *mesh = NULL;
    const oar_spec *spec;

    OK(oar_mesh_create(NULL, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    spec = oar_spec_of(mesh, 1, &s, OAR_SHAPE(4), NULL);
#define REFUSED(call, why, says) \
    assert_null((call).local);   \
    assert_true(fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_from_lazy(NULL, real, spec), OAR_E_STATE,
            "use dtensor_scatter");
    REFUSED(oar_dtensor_from_lazy(NULL, real,
                                  oar_spec_of(mesh, 1, &s, OAR_SHAPE(5), NULL)),
            OAR_E_SHAPE, "the tensor is [4], the spec [5]");
    REFUSED(oar_dtensor_from_lazy(NULL, NULL, spec), OAR_E_ARG, "a tensor");
    REFUSED(oar_dtensor_zeros(NULL, OAR_F32, NULL), OAR_E_ARG, "a spec");
    REFUSED(oar_dtensor_normal(NULL, OAR_I32, spec, 1, 0, 1), OAR_E_DTYPE, "");
    assert_int_equal(oar_lazy(0), 0); /* the switch is as it was */
    oar_tensor_release(real);
    oar_mesh_release(mesh);
}

static oar_status make_once(void *arg)
{
    oar_placement s = oar_placement_shard(0);
    oar_mesh *mesh = NULL;
    oar_status status =
        oar_mesh_create(NULL, 1, (int[]){ 2 }, NULL, NULL, &mesh);
    const oar_spec *spec = NULL;

    if (status != OAR_OK)
        return status;
    spec = oar_spec_of(mesh, 1, &s, OAR_SHAPE(5, 2), NULL);
    if (spec != NULL) {
        oar_dtensor a = oar_dtensor_uniform(NULL, OAR_F32, spec, 1, 0, 1);

        if (a.local == NULL)
            status = oar_last_error()->status;
        oar_tensor_release(a.local);
    } else {
        status = oar_last_error()->status;
    }
    oar_mesh_release(mesh);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    fail_each_allocation(make_once, NULL);
}

/* ---- what ferrotorch's DTensors do --------------------------------------- */

/* Its tests, by name of what they check; where it only writes an annotation
 * down, here the data moves (dtensor_test.c: both_ranks_have_both_halves). */
static oar_status original_cases(oar_group *world, void *arg)
{
    oar_placement s = oar_placement_shard(2), r = oar_placement_replicate();
    oar_placement sum = oar_placement_partial(OAR_REDUCE_OP_SUM);
    oar_placement rows = oar_placement_shard(0), two[2] = { r, r };
    oar_placement far = oar_placement_shard(5);
    oar_mesh *square = NULL, *line = NULL;
    oar_tensor *local = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 2));
    const oar_spec *spec;
    oar_dtensor a;

    /* Kinds of placements, and the dim of a shard. */
    CHECK(r.kind == OAR_REPLICATE && s.kind == OAR_SHARD && s.dim == 2);
    CHECK(sum.kind == OAR_PARTIAL && sum.op == OAR_REDUCE_OP_SUM);
    CHECK_OK(oar_mesh_create(world, 2, (int[]){ 2, 2 }, NULL, NULL, &square));
    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 4 }, NULL, NULL, &line));
    /* Replicated from local: the whole has the local shape. */
    spec = oar_spec_of(square, 2, two, OAR_SHAPE(2, 2), NULL);
    a = oar_dtensor_from_local(local, spec);
    CHECK(a.local == local && oar_spec_shape(a.spec).dim[0] == 2);
    CHECK(oar_spec_placement(spec, 0).kind == OAR_REPLICATE);
    CHECK(oar_spec_placement(spec, 1).kind == OAR_REPLICATE);
    /* Two placements for one mesh dim, and one for two. */
    CHECK(oar_spec_of(line, 2, two, OAR_SHAPE(16), NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE, "2 placements"));
    CHECK(oar_spec_of(square, 1, two, OAR_SHAPE(16), NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE, "1 placement"));
    /* A shard of a dim that is not there, also as a target. */
    CHECK(oar_spec_of(line, 1, &s, OAR_SHAPE(16), NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_ARG, ""));
    CHECK(oar_spec_of(line, 1, &far, OAR_SHAPE(8, 2), NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_ARG, ""));
    /* Elements of the whole and of the part; a local that is no part. */
    spec = oar_spec_of(line, 1, &rows, OAR_SHAPE(8, 2), NULL);
    a = oar_dtensor_from_local(local, spec);
    CHECK(shape_count(oar_spec_shape(spec)) == 16);
    CHECK(oar_tensor_count(a.local) == 4);
    spec = oar_spec_of(line, 1, &rows, OAR_SHAPE(4, 2), NULL);
    CHECK(oar_dtensor_from_local(local, spec).local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE,
                     "the local tensor is [2, 2], but rank"));
    /* A partial one is a summand until it is moved: 4 ranks with ones. */
    spec = oar_spec_of(line, 1, &sum, OAR_SHAPE(2, 2), NULL);
    CHECK_OK(check_whole(oar_dtensor_from_local(local, spec),
                         oar_full(NULL, OAR_F32, OAR_SHAPE(2, 2), 4)));
    oar_mesh_release(line);
    oar_mesh_release(square);
    return OAR_OK;
}

static void what_ferrotorch_checks_holds(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, original_cases, NULL), OAR_OK);
}

/* ---- ranks that disagree ------------------------------------------------- */

/* Every rank names the same failure: rank 2 gives another spec to a scatter;
 * rank 1 takes the whole of a tensor that others move elsewhere. */
static oar_status disagree(oar_group *world, void *arg)
{
    oar_placement s = oar_placement_shard(0), c = oar_placement_shard(1);
    int rank = oar_group_rank(world);
    oar_tensor *whole = oar_ones(NULL, OAR_F32, OAR_SHAPE(4, 4)), *all;
    oar_tensor *part = oar_ones(NULL, OAR_F32, OAR_SHAPE(1, 4));
    const oar_spec *rows, *columns;
    oar_mesh *mesh = NULL;
    oar_dtensor a;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 4 }, NULL, NULL, &mesh));
    rows = oar_spec_of(mesh, 1, &s, OAR_SHAPE(4, 4), NULL);
    columns = oar_spec_of(mesh, 1, &c, OAR_SHAPE(4, 4), NULL);
    a = oar_dtensor_scatter(NULL, rank == 0 ? whole : NULL, OAR_F32,
                            rank == 2 ? columns : rows, 0);
    CHECK(a.local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH, "S(1)"));
    a = oar_dtensor_from_local(part, rows);
    if (rank == 1) {
        all = oar_dtensor_whole(NULL, a, OAR_GRADS_EQUAL);
        CHECK(all == NULL);
    } else {
        CHECK(oar_redistribute(NULL, a, columns, NULL).local == NULL);
    }
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "redistribute [4, 4] S(0) to S(1)"));
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "redistribute [4, 4] S(0) to R"));
    oar_tensor_release(part);
    oar_tensor_release(whole);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void ranks_that_disagree_are_named_on_all(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, disagree, NULL), OAR_OK);
}

/* A mesh of another group, which has the same sizes, is another mesh. */
static oar_status another_group(oar_group *world, void *arg)
{
    oar_placement s = oar_placement_shard(0);
    oar_tensor *part = oar_ones(NULL, OAR_F32, OAR_SHAPE(2));
    oar_mesh *mesh = NULL, *other = NULL;
    oar_group *copy = NULL;
    oar_dtensor a;

    CHECK_OK(oar_group_dup(world, &copy));
    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_mesh_create(copy, 1, (int[]){ 2 }, NULL, NULL, &other));
    a = oar_dtensor_from_local(part,
                               oar_spec_of(mesh, 1, &s, OAR_SHAPE(4), NULL));
    CHECK(oar_redistribute(NULL, a,
                           oar_spec_of(other, 1, &s, OAR_SHAPE(4), NULL), NULL)
              .local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_ARG, "two meshes"));
    oar_tensor_release(part);
    oar_mesh_release(other);
    oar_mesh_release(mesh);
    oar_group_destroy(copy);
    return OAR_OK;
}

static void a_mesh_of_another_group_is_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, another_group, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_do_not_depend_on_the_cut),
        cmocka_unit_test(what_is_partial_is_made_once),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(every_failing_allocation_is_reported),
        cmocka_unit_test(what_ferrotorch_checks_holds),
        cmocka_unit_test(ranks_that_disagree_are_named_on_all),
        cmocka_unit_test(a_mesh_of_another_group_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
