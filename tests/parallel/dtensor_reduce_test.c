/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and products of DTensors against those of one rank. */
#include "support/ranks.h"

#include "support/dtensor_truth.h"
#include "support/last_error.h"
#include "support/leak_check.h"

/* The same arguments for both. */
#define WITH(id, plain, spread, ...)                                      \
    static oar_tensor *plain_##id(oar_tape *tape, oar_tensor *const *in)  \
    {                                                                     \
        return plain(tape, __VA_ARGS__);                                  \
    }                                                                     \
    static oar_dtensor spread_##id(oar_tape *tape, const oar_dtensor *in) \
    {                                                                     \
        return spread(tape, __VA_ARGS__);                                 \
    }
#define BOTH(id) .name = #id, .plain = plain_##id, .spread = spread_##id
#define OVER(name)                                                         \
    WITH(name##_some, oar_##name##_over, oar_dtensor_##name##_over, in[0], \
         OAR_DIMS(0, 2), 0)                                                \
    WITH(name##_keep, oar_##name##_over, oar_dtensor_##name##_over, in[0], \
         OAR_DIMS(-1), 1)                                                  \
    WITH(name##_all, oar_##name##_over, oar_dtensor_##name##_over, in[0],  \
         OAR_NO_DIMS, 0)
#define ALL_OVER(name)                            \
    { BOTH(name##_some) }, { BOTH(name##_keep) }, \
    {                                             \
        BOTH(name##_all)                          \
    }

OVER(sum)
OVER(mean)
OVER(max)
OVER(min)
OVER(prod)
OVER(any)
OVER(all)
WITH(var, oar_var_over, oar_dtensor_var_over, in[0], OAR_DIMS(1), 0, 1)
WITH(var_all, oar_var_over, oar_dtensor_var_over, in[0], OAR_NO_DIMS, 1, 0)
WITH(cumsum, oar_cumsum, oar_dtensor_cumsum, in[0], 1)
WITH(argmax, oar_argmax, oar_dtensor_argmax, in[0], 1, 0)
WITH(argmin, oar_argmin, oar_dtensor_argmin, in[0], -1, 1)

/* Each public name once as it is written: sum_over, mean_over, max_over,
 * min_over, prod_over, any_over, all_over. */
static oar_dtensor (*const over[])(oar_tape *tape, oar_dtensor a, oar_dims over,
                                   int keep) = {
    oar_dtensor_sum_over, oar_dtensor_mean_over, oar_dtensor_max_over,
    oar_dtensor_min_over, oar_dtensor_prod_over, oar_dtensor_any_over,
    oar_dtensor_all_over,
};

static void reductions_are_those_of_one_rank(void **state)
{
    truth_case cases[] = {
        ALL_OVER(sum),
        ALL_OVER(mean),
        ALL_OVER(max),
        ALL_OVER(min),
        ALL_OVER(prod),
        ALL_OVER(any),
        ALL_OVER(all),
        { BOTH(var) },
        { BOTH(var_all) },
        { BOTH(cumsum) },
        { BOTH(argmax) },
        { BOTH(argmin) },
        { .name = "sum", .plain1 = oar_sum, .spread1 = oar_dtensor_sum },
        { .name = "mean", .plain1 = oar_mean, .spread1 = oar_dtensor_mean },
    };
    int n = (int)(sizeof cases / sizeof *cases);

    for (int i = 0; i < n; i++) {
        cases[i].inputs = 1;
        cases[i].shape[0] = OAR_SHAPE(4, 5, 3);
    }
    truth_run(cases, n, 2);
}

/* ---- two results --------------------------------------------------------- */

/* Multiplies the values by the index, so that both are compared. */
#define PAIR(id, plain, spread, ...)                                      \
    static oar_tensor *plain_##id(oar_tape *tape, oar_tensor *const *in)  \
    {                                                                     \
        oar_tensor *value, *index;                                        \
        if (plain(tape, in[0], __VA_ARGS__, &value, &index) != OAR_OK)    \
            return NULL;                                                  \
        return oar_mul(tape, value, oar_cast(tape, index, OAR_F64));      \
    }                                                                     \
    static oar_dtensor spread_##id(oar_tape *tape, const oar_dtensor *in) \
    {                                                                     \
        oar_dtensor value = { NULL, NULL }, index = value;                \
        if (spread(tape, in[0], __VA_ARGS__, &value, &index) != OAR_OK)   \
            return value;                                                 \
        return oar_dtensor_mul(tape, value,                               \
                               oar_dtensor_cast(tape, index, OAR_F64));   \
    }

PAIR(sort, oar_sort, oar_dtensor_sort, 1, 1)
PAIR(topk, oar_topk, oar_dtensor_topk, 2)
PAIR(max_with_index, oar_max_with_index, oar_dtensor_max_with_index, 0, 0)
PAIR(min_with_index, oar_min_with_index, oar_dtensor_min_with_index, 1, 1)

static void pairs_of_results_are_those_of_one_rank(void **state)
{
    truth_case cases[] = { { BOTH(sort) },
                           { BOTH(topk) },
                           { BOTH(max_with_index) },
                           { BOTH(min_with_index) } };

    for (int i = 0; i < 4; i++) {
        cases[i].inputs = 1;
        cases[i].shape[0] = OAR_SHAPE(4, 5);
    }
    truth_run(cases, 4, 3);
}

/* ---- products ------------------------------------------------------------ */

static oar_tensor *plain_linear(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear(tape, in[0], in[1], in[2]);
}

static oar_dtensor spread_linear(oar_tape *tape, const oar_dtensor *in)
{
    return oar_dtensor_linear(tape, in[0], in[1], &in[2]);
}

static oar_tensor *plain_linear_act(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], in[2], OAR_GELU);
}

static oar_dtensor spread_linear_act(oar_tape *tape, const oar_dtensor *in)
{
    return oar_dtensor_linear_act(tape, in[0], in[1], &in[2], OAR_GELU);
}

static oar_tensor *plain_no_bias(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear(tape, in[0], in[1], NULL);
}

static oar_dtensor spread_no_bias(oar_tape *tape, const oar_dtensor *in)
{
    return oar_dtensor_linear(tape, in[0], in[1], NULL);
}

static void products_are_those_of_one_rank(void **state)
{
#define MATMUL(a, b)        \
    { .name = "matmul",     \
      .inputs = 2,          \
      .shape = { a, b },    \
      .plain2 = oar_matmul, \
      .spread2 = oar_dtensor_matmul }
    truth_case cases[] = {
        MATMUL(OAR_SHAPE(5, 4), OAR_SHAPE(4, 3)),
        MATMUL(OAR_SHAPE(2, 5, 4), OAR_SHAPE(2, 4, 3)),
        MATMUL(OAR_SHAPE(3, 1, 2, 4), OAR_SHAPE(2, 4, 3)),
        MATMUL(OAR_SHAPE(2, 5, 1), OAR_SHAPE(1, 3)),
        { BOTH(linear), .inputs = 3,
          .shape = { OAR_SHAPE(2, 3, 4), OAR_SHAPE(5, 4), OAR_SHAPE(5) } },
        { BOTH(linear), .inputs = 3,
          .shape = { OAR_SHAPE(3, 4), OAR_SHAPE(6, 4), OAR_SHAPE(6) } },
        { BOTH(no_bias), .inputs = 2,
          .shape = { OAR_SHAPE(3, 4), OAR_SHAPE(6, 4) } },
        { BOTH(linear_act), .inputs = 3,
          .shape = { OAR_SHAPE(3, 4), OAR_SHAPE(6, 4), OAR_SHAPE(6) } },
    };

    truth_run(cases, (int)(sizeof cases / sizeof *cases), 8);
}

/* ---- placements ---------------------------------------------------------- */

static oar_dtensor part_of(oar_mesh *mesh, oar_shape shape, oar_placement p)
{
    const oar_spec *spec = oar_spec_of(mesh, 1, &p, shape, NULL);

    return oar_dtensor_from_local(
        oar_ones(NULL, OAR_F32,
                 oar_spec_local_shape(spec, oar_mesh_rank(mesh))),
        spec);
}

/* The layers of Megatron: a column, then a row, nothing moves until the sum. */
static oar_status column_then_row(oar_group *world, void *arg)
{
    oar_dtensor_traffic t = oar_dtensor_traffic_init();
    oar_placement r = oar_placement_replicate();
    oar_mesh *mesh = NULL;
    oar_dtensor x, up, down, h, y, m;
    oar_tape *tape;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    x = part_of(mesh, OAR_SHAPE(3, 4), r);
    up = part_of(mesh, OAR_SHAPE(6, 4), oar_placement_shard(0));
    down = part_of(mesh, OAR_SHAPE(4, 6), oar_placement_shard(1));
    CHECK_OK(oar_tensor_require_grad(x.local, 1));
    h = oar_dtensor_relu(tape, oar_dtensor_linear(tape, x, up, NULL));
    CHECK(oar_spec_placement(h.spec, 0).kind == OAR_SHARD);
    CHECK(oar_spec_placement(h.spec, 0).dim == 1);
    y = oar_dtensor_linear(tape, h, down, NULL);
    CHECK(oar_spec_placement(y.spec, 0).kind == OAR_PARTIAL);
    m = oar_dtensor_max_over(tape, oar_dtensor_transpose(tape, up, 0, 1),
                             OAR_DIMS(1), 0); /* no gradient: partial */
    CHECK(oar_spec_placement(m.spec, 0).kind == OAR_PARTIAL);
    CHECK(oar_spec_placement(m.spec, 0).op == OAR_REDUCE_OP_MAX);
    CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &t));
    CHECK(t.moves == 0);
    CHECK_OK(oar_backward(
        tape, oar_sum(tape, oar_dtensor_whole(tape, y, OAR_GRADS_EQUAL))));
    CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &t));
    CHECK(t.moves == 1 && t.implicit_moves == 0 && t.backward_moves == 1);
    oar_tape_destroy(tape);
    oar_tensor_release(x.local);
    oar_tensor_release(up.local);
    oar_tensor_release(down.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void a_column_and_a_row_move_once_each_way(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, column_then_row, NULL), OAR_OK);
}

/* Integers of parts that some ranks do not have. */
static oar_status integers(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0);
    const oar_dtype dtype[] = { OAR_I64, OAR_U64, OAR_I32, OAR_U8 };
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 3 }, NULL, NULL, &mesh));
    for (int k = 0; k < 4; k++) {
        const oar_spec *spec = oar_spec_of(mesh, 1, &rows, OAR_SHAPE(2), NULL);
        int rank = oar_group_rank(world);
        oar_dtensor a = { oar_full(NULL, dtype[k],
                                   oar_spec_local_shape(spec, rank), rank + 2),
                          spec };

        for (int i = 0; i < 5; i++) { /* of 2 and 3 */
            const double want[] = { 5, 2, 3, 2, 6 };
            oar_dtensor b;
            oar_tensor *all;
            double number;

            if (i == 1) /* no mean of integers */
                continue;
            b = over[i](NULL, a, OAR_NO_DIMS, 0);
            all = oar_dtensor_whole(NULL, b, OAR_GRADS_EQUAL);
            CHECK_OK(oar_tensor_item(all, &number));
            CHECK(number == want[i]);
            oar_tensor_release(all);
            oar_tensor_release(b.local);
        }
        oar_tensor_release(a.local);
    }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void integers_reduce_where_parts_are_empty(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, integers, NULL), OAR_OK);
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refusals(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0);
    oar_mesh *mesh = NULL;
    oar_dtensor a, b, value;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    a = part_of(mesh, OAR_SHAPE(4, 3), rows);
    b = part_of(mesh, OAR_SHAPE(2), rows);
#define REFUSED(call, why, says)  \
    CHECK((call).local == NULL && \
          fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_sum_over(NULL, a, OAR_DIMS(2), 0), OAR_E_ARG, "dim 2");
    REFUSED(oar_dtensor_sum_over(NULL, a, OAR_DIMS(0, -2), 0), OAR_E_ARG,
            "dim 0 is listed twice");
    REFUSED(oar_dtensor_mean_over(NULL, a, (oar_dims){ .count = 40 }, 0),
            OAR_E_ARG, "40 dims");
    REFUSED(oar_dtensor_matmul(NULL, a, a), OAR_E_SHAPE,
            "matmul of [4, 3] and [4, 3]");
    REFUSED(oar_dtensor_linear(NULL, a, b, NULL), OAR_E_SHAPE,
            "linear of [4, 3] and [2]");
    REFUSED(oar_dtensor_linear(NULL, a, a, &b), OAR_E_SHAPE,
            "a bias [2] for a weight [4, 3]");
    CHECK(fails_with(oar_dtensor_topk(NULL, a, 4, &value, NULL), OAR_E_ARG,
                     "the 4 largest of [4, 3]"));
    CHECK(fails_with(oar_dtensor_sort(NULL, a, 0, 0, NULL, NULL), OAR_E_ARG,
                     "without a place"));
    oar_tensor_release(a.local);
    oar_tensor_release(b.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void wrong_use_is_named(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refusals, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_are_those_of_one_rank),
        cmocka_unit_test(pairs_of_results_are_those_of_one_rank),
        cmocka_unit_test(products_are_those_of_one_rank),
        cmocka_unit_test(a_column_and_a_row_move_once_each_way),
        cmocka_unit_test(integers_reduce_where_parts_are_empty),
        cmocka_unit_test(wrong_use_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
