/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of single elements on DTensors, and what all operations share:
 * limits, scopes, and what is said of wrong use. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/log.h>

#include "support/dtensor_truth.h"
#include "support/last_error.h"
#include "support/leak_check.h"

/* ---- truth --------------------------------------------------------------- */

/* The same arguments for both. */
#define WITH(plain, spread, ...)                                             \
    static oar_tensor *plain_##spread(oar_tape *tape, oar_tensor *const *in) \
    {                                                                        \
        return plain(tape, __VA_ARGS__);                                     \
    }                                                                        \
    static oar_dtensor on_##spread(oar_tape *tape, const oar_dtensor *in)    \
    {                                                                        \
        return spread(tape, __VA_ARGS__);                                    \
    }
WITH(oar_scale, oar_dtensor_scale, in[0], 0.75)
WITH(oar_shift, oar_dtensor_shift, in[0], 0.75)
WITH(oar_power, oar_dtensor_power, in[0], 0.75)
WITH(oar_leaky_relu, oar_dtensor_leaky_relu, in[0], 0.75)
WITH(oar_minimum_scalar, oar_dtensor_minimum_scalar, in[0], 0.75)
WITH(oar_maximum_scalar, oar_dtensor_maximum_scalar, in[0], 0.75)
WITH(oar_eq_scalar, oar_dtensor_eq_scalar, in[0], 0.75)
WITH(oar_ne_scalar, oar_dtensor_ne_scalar, in[0], 0.75)
WITH(oar_lt_scalar, oar_dtensor_lt_scalar, in[0], 0.75)
WITH(oar_le_scalar, oar_dtensor_le_scalar, in[0], 0.75)
WITH(oar_gt_scalar, oar_dtensor_gt_scalar, in[0], 0.75)
WITH(oar_ge_scalar, oar_dtensor_ge_scalar, in[0], 0.75)
WITH(oar_clamp, oar_dtensor_clamp, in[0], -0.5, 0.8)
WITH(oar_cast, oar_dtensor_cast, in[0], OAR_F64)
WITH(oar_where, oar_dtensor_where, in[0], in[1], in[2])
WITH(oar_where_scalar, oar_dtensor_where_scalar, in[0], in[1], 0.5)
WITH(oar_masked_fill, oar_dtensor_masked_fill, in[0], in[1], 0.5)
WITH(oar_tril, oar_dtensor_tril, in[0], 1)
WITH(oar_triu, oar_dtensor_triu, in[0], -1)

#define BOTH(name) .plain = plain_##name, .spread = on_##name

static void unary_operations_are_those_of_one_rank(void **state)
{
    truth_case cases[] = {
        { .name = "neg", .plain1 = oar_neg, .spread1 = oar_dtensor_neg },
        { .name = "abs", .plain1 = oar_abs, .spread1 = oar_dtensor_abs },
        { .name = "relu", .plain1 = oar_relu, .spread1 = oar_dtensor_relu },
        { .name = "sign", .plain1 = oar_sign, .spread1 = oar_dtensor_sign },
        { .name = "floor", .plain1 = oar_floor, .spread1 = oar_dtensor_floor },
        { .name = "ceil", .plain1 = oar_ceil, .spread1 = oar_dtensor_ceil },
        { .name = "round", .plain1 = oar_round, .spread1 = oar_dtensor_round },
        { .name = "exp", .plain1 = oar_exp, .spread1 = oar_dtensor_exp },
        { .name = "expm1", .plain1 = oar_expm1, .spread1 = oar_dtensor_expm1 },
        { .name = "log", .plain1 = oar_log, .spread1 = oar_dtensor_log },
        { .name = "log1p", .plain1 = oar_log1p, .spread1 = oar_dtensor_log1p },
        { .name = "erf", .plain1 = oar_erf, .spread1 = oar_dtensor_erf },
        { .name = "sqrt", .plain1 = oar_sqrt, .spread1 = oar_dtensor_sqrt },
        { .name = "rsqrt", .plain1 = oar_rsqrt, .spread1 = oar_dtensor_rsqrt },
        { .name = "sin", .plain1 = oar_sin, .spread1 = oar_dtensor_sin },
        { .name = "cos", .plain1 = oar_cos, .spread1 = oar_dtensor_cos },
        { .name = "tanh", .plain1 = oar_tanh, .spread1 = oar_dtensor_tanh },
        { .name = "sigmoid",
          .plain1 = oar_sigmoid,
          .spread1 = oar_dtensor_sigmoid },
        { .name = "gelu", .plain1 = oar_gelu, .spread1 = oar_dtensor_gelu },
        { .name = "gelu_tanh",
          .plain1 = oar_gelu_tanh,
          .spread1 = oar_dtensor_gelu_tanh },
        { .name = "silu", .plain1 = oar_silu, .spread1 = oar_dtensor_silu },
        { .name = "softplus",
          .plain1 = oar_softplus,
          .spread1 = oar_dtensor_softplus },
        { .name = "scale", BOTH(oar_dtensor_scale) },
        { .name = "shift", BOTH(oar_dtensor_shift) },
        { .name = "power", BOTH(oar_dtensor_power) },
        { .name = "leaky_relu", BOTH(oar_dtensor_leaky_relu) },
        { .name = "minimum_scalar", BOTH(oar_dtensor_minimum_scalar) },
        { .name = "maximum_scalar", BOTH(oar_dtensor_maximum_scalar) },
        { .name = "eq_scalar", BOTH(oar_dtensor_eq_scalar) },
        { .name = "ne_scalar", BOTH(oar_dtensor_ne_scalar) },
        { .name = "lt_scalar", BOTH(oar_dtensor_lt_scalar) },
        { .name = "le_scalar", BOTH(oar_dtensor_le_scalar) },
        { .name = "gt_scalar", BOTH(oar_dtensor_gt_scalar) },
        { .name = "ge_scalar", BOTH(oar_dtensor_ge_scalar) },
        { .name = "clamp", BOTH(oar_dtensor_clamp) },
        { .name = "cast", BOTH(oar_dtensor_cast) },
        { .name = "tril", BOTH(oar_dtensor_tril) },
        { .name = "triu", BOTH(oar_dtensor_triu) },
        { .name = "logical_not",
          .kind = { TRUTH_MASK },
          .plain1 = oar_logical_not,
          .spread1 = oar_dtensor_logical_not },
    };
    int n = (int)(sizeof cases / sizeof *cases);

    for (int i = 0; i < n; i++) {
        cases[i].inputs = 1;
        cases[i].shape[0] = OAR_SHAPE(5, 3);
        if (cases[i].kind[0] == TRUTH_NORMAL)
            cases[i].kind[0] = TRUTH_POSITIVE;
    }
    truth_run(cases, n, 2);
}

static void binary_operations_broadcast_as_on_one_rank(void **state)
{
    const truth_case op[] = {
        { .name = "add", .plain2 = oar_add, .spread2 = oar_dtensor_add },
        { .name = "sub", .plain2 = oar_sub, .spread2 = oar_dtensor_sub },
        { .name = "mul", .plain2 = oar_mul, .spread2 = oar_dtensor_mul },
        { .name = "div", .plain2 = oar_div, .spread2 = oar_dtensor_div },
        { .name = "pow", .plain2 = oar_pow, .spread2 = oar_dtensor_pow },
        { .name = "minimum",
          .plain2 = oar_minimum,
          .spread2 = oar_dtensor_minimum },
        { .name = "maximum",
          .plain2 = oar_maximum,
          .spread2 = oar_dtensor_maximum },
        { .name = "eq", .plain2 = oar_eq, .spread2 = oar_dtensor_eq },
        { .name = "ne", .plain2 = oar_ne, .spread2 = oar_dtensor_ne },
        { .name = "lt", .plain2 = oar_lt, .spread2 = oar_dtensor_lt },
        { .name = "le", .plain2 = oar_le, .spread2 = oar_dtensor_le },
        { .name = "gt", .plain2 = oar_gt, .spread2 = oar_dtensor_gt },
        { .name = "ge", .plain2 = oar_ge, .spread2 = oar_dtensor_ge },
        { .name = "logical_and",
          .plain2 = oar_logical_and,
          .spread2 = oar_dtensor_logical_and },
        { .name = "logical_or",
          .plain2 = oar_logical_or,
          .spread2 = oar_dtensor_logical_or },
        { .name = "logical_xor",
          .plain2 = oar_logical_xor,
          .spread2 = oar_dtensor_logical_xor },
    };
    const oar_shape shape[][2] = { { OAR_SHAPE(5, 3), OAR_SHAPE(5, 3) },
                                   { OAR_SHAPE(4, 1), OAR_SHAPE(3) },
                                   { OAR_SHAPE(2, 1, 3), OAR_SHAPE(1, 4, 3) } };
    enum { OPS = sizeof op / sizeof *op };
    truth_case cases[3 * OPS];

    for (int i = 0; i < 3 * OPS; i++) {
        truth_case *c = &cases[i];

        *c = op[i / 3];
        c->inputs = 2;
        c->shape[0] = shape[i % 3][0];
        c->shape[1] = shape[i % 3][1];
        c->kind[0] = c->kind[1] =
            strncmp(c->name, "logical", 7) == 0 ? TRUTH_MASK : TRUTH_POSITIVE;
    }
    truth_run(cases, 3 * OPS, 1);
}

static void masks_choose_as_on_one_rank(void **state)
{
    const truth_case cases[] = {
        { .name = "where",
          .inputs = 3,
          .shape = { OAR_SHAPE(4, 3), OAR_SHAPE(3), OAR_SHAPE(4, 1) },
          .kind = { TRUTH_MASK },
          BOTH(oar_dtensor_where) },
        { .name = "where",
          .inputs = 3,
          .shape = { OAR_SHAPE(3), OAR_SHAPE(4, 3), OAR_SHAPE(4, 3) },
          .kind = { TRUTH_MASK },
          BOTH(oar_dtensor_where) },
        { .name = "where_scalar",
          .inputs = 2,
          .shape = { OAR_SHAPE(4, 3), OAR_SHAPE(3) },
          .kind = { TRUTH_MASK },
          BOTH(oar_dtensor_where_scalar) },
        { .name = "masked_fill",
          .inputs = 2,
          .shape = { OAR_SHAPE(4, 3), OAR_SHAPE(4, 1) },
          .kind = { TRUTH_NORMAL, TRUTH_MASK },
          BOTH(oar_dtensor_masked_fill) },
    };

    truth_run(cases, 4, 6);
}

/* ---- placements of results ----------------------------------------------- */

typedef struct placed {
    oar_placement a, b, out;
    oar_dtensor (*op)(oar_tape *tape, oar_dtensor a, oar_dtensor b);
    uint64_t moves;
} placed;

static oar_dtensor placed_part(oar_mesh *mesh, const oar_placement *p,
                               oar_shape shape)
{
    const oar_spec *spec = oar_spec_of(mesh, 1, p, shape, NULL);
    oar_tensor *part = oar_ones(
        NULL, OAR_F64, oar_spec_local_shape(spec, oar_mesh_rank(mesh)));

    return oar_dtensor_from_local(part, spec);
}

static oar_status check_placed(oar_group *world, void *arg)
{
    const oar_placement r = oar_placement_replicate();
    const oar_placement rows = oar_placement_shard(0);
    const oar_placement columns = oar_placement_shard(1);
    const oar_placement sum = oar_placement_partial(OAR_REDUCE_OP_SUM);
    const placed want[] = {
        { rows, rows, rows, oar_dtensor_add, 0 },
        { rows, r, rows, oar_dtensor_mul, 1 },
        { sum, sum, sum, oar_dtensor_add, 0 },
        { sum, r, sum, oar_dtensor_sub, 1 },
        { sum, r, sum, oar_dtensor_mul, 0 },
        { r, sum, sum, oar_dtensor_mul, 0 },
        { sum, r, sum, oar_dtensor_div, 0 },
        { r, sum, r, oar_dtensor_div, 1 },
        { columns, columns, columns, oar_dtensor_pow, 0 },
        { columns, r, columns, oar_dtensor_maximum, 1 },
    };
    oar_dtensor_traffic before = oar_dtensor_traffic_init(), after = before;
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 3 }, NULL, NULL, &mesh));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        oar_dtensor a = placed_part(mesh, &want[i].a, OAR_SHAPE(7, 5));
        oar_dtensor b = placed_part(mesh, &want[i].b, OAR_SHAPE(7, 5)), c;

        CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &before));
        c = want[i].op(NULL, a, b);
        CHECK(c.local != NULL);
        CHECK(c.spec ==
              oar_spec_of(mesh, 1, &want[i].out, OAR_SHAPE(7, 5), NULL));
        CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &after));
        CHECK(after.implicit_moves - before.implicit_moves == want[i].moves);
        oar_tensor_release(a.local);
        oar_tensor_release(b.local);
        oar_tensor_release(c.local);
    }
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void results_lie_as_the_rules_say(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, check_placed, NULL), OAR_OK);
}

/* ---- limits and scopes --------------------------------------------------- */

static oar_status count_scopes(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0),
                  columns = oar_placement_shard(1);
    oar_dtensor_traffic t = oar_dtensor_traffic_init();
    oar_dtensor_limits limits = oar_dtensor_limits_init();
    oar_mesh *mesh = NULL;
    oar_dtensor a, b, c;
    oar_tape *tape;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    a = placed_part(mesh, &rows, OAR_SHAPE(4, 4));
    b = placed_part(mesh, &columns, OAR_SHAPE(4, 4));
    CHECK_OK(oar_tensor_require_grad(a.local, 1));
    CHECK_OK(oar_tensor_require_grad(b.local, 1));
    CHECK(strcmp(oar_dtensor_set_scope(mesh, "first"), "") == 0);
    c = oar_dtensor_add(tape, a, b); /* one of them goes to the other's cut */
    CHECK(c.local != NULL);
    CHECK(strcmp(oar_dtensor_set_scope(mesh, "second"), "first") == 0);
    CHECK_OK(oar_backward(
        tape, oar_sum(tape, oar_dtensor_whole(tape, c, OAR_GRADS_EQUAL))));
    CHECK_OK(oar_dtensor_read_traffic(mesh, "first", &t));
    CHECK(t.moves == 1 && t.implicit_moves == 1);
    CHECK(t.bytes == 8 * 8 && t.implicit_bytes == 8 * 8);
    CHECK(t.backward_moves == 1 && t.backward_bytes > 0);
    CHECK_OK(oar_dtensor_read_traffic(mesh, "second", &t));
    CHECK(t.moves == 1 && t.bytes == 8 * 8 && t.implicit_moves == 0);
    CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &t));
    CHECK(t.moves == 2 && t.bytes == 16 * 8);
    CHECK(fails_with(oar_dtensor_read_traffic(mesh, "third", &t),
                     OAR_E_NOT_FOUND, "no scope is called \"third\""));
    limits.most_bytes = 63;
    CHECK_OK(oar_dtensor_set_limits(mesh, &limits));
    CHECK(oar_dtensor_add(tape, a, b).local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_UNSUPPORTED,
                     "add of [4, 4] S(0) and [4, 4] S(1) would bring a rank 64 "
                     "bytes, and may bring 63"));
    CHECK_OK(oar_dtensor_set_limits(mesh, NULL));
    CHECK(oar_dtensor_add(tape, a, b).local != NULL);
    CHECK(oar_dtensor_set_scope(mesh, NULL) == NULL);
    oar_tape_destroy(tape);
    oar_tensor_release(a.local);
    oar_tensor_release(b.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void moves_are_counted_by_scope_and_limited(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, count_scopes, NULL), OAR_OK);
}

static _Atomic int warnings;

static void count_warning(void *arg, oar_log_level level, const char *line)
{
    warnings += strstr(line, "add of [4, 3] F and [3] R: no rule") != NULL;
}

static oar_status without_a_rule(oar_group *world, void *arg)
{
    oar_placement flat = oar_placement_flat(), r = oar_placement_replicate();
    oar_dtensor_limits limits = oar_dtensor_limits_init();
    oar_mesh *mesh = NULL;
    oar_dtensor a, b, c;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    a = placed_part(mesh, &flat, OAR_SHAPE(4, 3));
    b = placed_part(mesh, &r, OAR_SHAPE(3));
    for (int i = 0; i < 3; i++) {
        limits.strict = i == 1;
        CHECK_OK(oar_dtensor_set_limits(mesh, &limits));
        c = oar_dtensor_add(NULL, a, b);
        if (limits.strict)
            CHECK(fails_with(oar_last_error()->status, OAR_E_UNSUPPORTED,
                             "no rule computes it on these parts"));
        CHECK((c.local == NULL) == limits.strict);
        oar_tensor_release(c.local);
    }
    oar_tensor_release(a.local);
    oar_tensor_release(b.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void what_has_no_rule_is_said_once_or_refused(void **state)
{
    oar_log_to(count_warning, NULL, OAR_LOG_WARN);
    assert_int_equal(ranks_run("sim", 2, NULL, without_a_rule, NULL), OAR_OK);
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
    assert_int_equal(warnings, 1);
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refusals(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0);
    oar_mesh *mesh = NULL, *other = NULL;
    oar_dtensor a, b, c, wrong, line, none = { NULL, NULL };

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &other));
    a = placed_part(mesh, &rows, OAR_SHAPE(4, 3));
    b = placed_part(mesh, &rows, OAR_SHAPE(2, 3));
    c = placed_part(other, &rows, OAR_SHAPE(4, 3));
    wrong = (oar_dtensor){ b.local, a.spec };
#define REFUSED(call, why, says)  \
    CHECK((call).local == NULL && \
          fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_add(NULL, a, b), OAR_E_SHAPE,
            "add: [4, 3] and [2, 3] do not broadcast");
    REFUSED(oar_dtensor_add(NULL, a, c), OAR_E_ARG,
            "add: inputs of two meshes");
    REFUSED(oar_dtensor_mul(NULL, wrong, a), OAR_E_SHAPE,
            "mul: the local tensor is [1, 3], but rank");
    line = placed_part(mesh, &rows, OAR_SHAPE(2));
    REFUSED(oar_dtensor_tril(NULL, line, 0), OAR_E_SHAPE, "no matrix");
    oar_tensor_release(line.local);
    CHECK(oar_dtensor_relu(NULL, none).local == NULL);
    CHECK(oar_dtensor_add(NULL, a, none).local == NULL);
    oar_tensor_release(a.local);
    oar_tensor_release(b.local);
    oar_tensor_release(c.local);
    oar_mesh_release(other);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void wrong_use_is_named(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refusals, NULL), OAR_OK);
}

/* Rank 1 adds a tensor of another placement: nothing would have to move. */
static oar_status another_spec(oar_group *world, void *arg)
{
    oar_placement p = oar_placement_shard(oar_group_rank(world) == 1);
    oar_mesh *mesh = NULL;
    oar_dtensor a;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 3 }, NULL, NULL, &mesh));
    a = placed_part(mesh, &p, OAR_SHAPE(3, 3));
    CHECK(oar_dtensor_add(NULL, a, a).local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "add of [3, 3] S(0) and [3, 3] S(0)"));
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     "add of [3, 3] S(1) and [3, 3] S(1)"));
    oar_tensor_release(a.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void another_spec_on_a_rank_is_named_on_all(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, another_spec, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_operations_are_those_of_one_rank),
        cmocka_unit_test(binary_operations_broadcast_as_on_one_rank),
        cmocka_unit_test(masks_choose_as_on_one_rank),
        cmocka_unit_test(results_lie_as_the_rules_say),
        cmocka_unit_test(moves_are_counted_by_scope_and_limited),
        cmocka_unit_test(what_has_no_rule_is_said_once_or_refused),
        cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(another_spec_on_a_rank_is_named_on_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
