/* SPDX-License-Identifier: Apache-2.0 */
/* Views, slices and joins of DTensors against those of one rank. */
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
#define RESHAPE(id, ...) \
    WITH(id, oar_reshape, oar_dtensor_reshape, in[0], OAR_SHAPE(__VA_ARGS__))

RESHAPE(merge, 20, 3)
RESHAPE(split_dim, 2, 2, 5, 3)
RESHAPE(inner, 4, 15)
RESHAPE(across, 6, 10)
RESHAPE(ones, 1, 4, 1, 5, -1)
RESHAPE(line, -1)
WITH(permute, oar_permute, oar_dtensor_permute, in[0], OAR_DIMS(2, 0, 1))
WITH(transpose, oar_transpose, oar_dtensor_transpose, in[0], 0, -1)
WITH(squeeze, oar_squeeze, oar_dtensor_squeeze, in[0], 1)
WITH(unsqueeze, oar_unsqueeze, oar_dtensor_unsqueeze, in[0], -2)
WITH(contiguous, oar_contiguous, oar_dtensor_contiguous, in[0])
WITH(flip, oar_flip, oar_dtensor_flip, in[0], OAR_DIMS(1))
WITH(flip_all, oar_flip, oar_dtensor_flip, in[0], OAR_NO_DIMS)
WITH(expand, oar_expand, oar_dtensor_expand, in[0], OAR_SHAPE(2, -1, 3, 5))
WITH(narrow, oar_narrow, oar_dtensor_narrow, in[0], 0, 1, 2)
WITH(narrow_last, oar_narrow, oar_dtensor_narrow, in[0], -1, 2, 1)
WITH(nothing, oar_narrow, oar_dtensor_narrow, in[0], 1, 5, 0)
WITH(slice, oar_slice, oar_dtensor_slice, in[0], 1, 1, 100, 2)
WITH(slice_short, oar_slice, oar_dtensor_slice, in[0], 1, 0, -1, 3)
WITH(select, oar_select, oar_dtensor_select, in[0], 1, -2)
WITH(select_first, oar_select, oar_dtensor_select, in[0], 0, 0)

#define BOTH(id) .name = #id, .plain = plain_##id, .spread = spread_##id

static void views_are_those_of_one_rank(void **state)
{
    truth_case cases[] = {
        { BOTH(merge) },
        { BOTH(split_dim) },
        { BOTH(inner) },
        { BOTH(across) },
        { BOTH(ones) },
        { BOTH(line) },
        { BOTH(permute) },
        { BOTH(transpose) },
        { BOTH(unsqueeze) },
        { BOTH(contiguous) },
        { BOTH(flip) },
        { BOTH(flip_all) },
        { BOTH(squeeze), .shape = { OAR_SHAPE(5, 1, 3) } },
        { BOTH(expand), .shape = { OAR_SHAPE(4, 1, 5) } },
    };
    int n = (int)(sizeof cases / sizeof *cases);

    for (int i = 0; i < n; i++) {
        cases[i].inputs = 1;
        if (cases[i].shape[0].ndim == 0)
            cases[i].shape[0] = OAR_SHAPE(4, 5, 3);
    }
    truth_run(cases, n, 4);
}

static void slices_are_those_of_one_rank(void **state)
{
    truth_case cases[] = {
        { BOTH(narrow) },       { BOTH(narrow_last) }, { BOTH(nothing) },
        { BOTH(slice) },        { BOTH(slice_short) }, { BOTH(select) },
        { BOTH(select_first) },
    };
    int n = (int)(sizeof cases / sizeof *cases);

    for (int i = 0; i < n; i++) {
        cases[i].inputs = 1;
        cases[i].shape[0] = OAR_SHAPE(4, 5, 3);
    }
    truth_run(cases, n, 5);
}

/* ---- joins --------------------------------------------------------------- */

static oar_tensor *plain_cat(oar_tape *tape, oar_tensor *const *in)
{
    return oar_cat(tape, 3, in, 1);
}

static oar_dtensor spread_cat(oar_tape *tape, const oar_dtensor *in)
{
    return oar_dtensor_cat(tape, 3, in, 1);
}

static oar_tensor *plain_stack(oar_tape *tape, oar_tensor *const *in)
{
    return oar_stack(tape, 2, in, -1);
}

static oar_dtensor spread_stack(oar_tape *tape, const oar_dtensor *in)
{
    return oar_dtensor_stack(tape, 2, in, -1);
}

enum { MANY = 17 };

static oar_tensor *plain_many(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *all[MANY];

    for (int i = 0; i < MANY; i++)
        all[i] = in[i % 2];
    return oar_mul(tape, oar_cat(tape, MANY, all, 0),
                   oar_reshape(tape, oar_stack(tape, MANY, all, 0),
                               OAR_SHAPE(MANY * 2, 3)));
}

static oar_dtensor spread_many(oar_tape *tape, const oar_dtensor *in)
{
    oar_dtensor all[MANY];

    for (int i = 0; i < MANY; i++)
        all[i] = in[i % 2];
    return oar_dtensor_mul(
        tape, oar_dtensor_cat(tape, MANY, all, 0),
        oar_dtensor_reshape(tape, oar_dtensor_stack(tape, MANY, all, 0),
                            OAR_SHAPE(MANY * 2, 3)));
}

/* Takes a tensor apart in two ways, and puts it together in another order. */
static oar_tensor *plain_pieces(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *piece[3], *chunk[2];

    if (oar_tensor_split(tape, in[0], 0, 3, (int64_t[]){ 1, 0, 3 }, piece) !=
            OAR_OK ||
        oar_chunk(tape, piece[2], 1, 2, chunk) != OAR_OK)
        return NULL;
    return oar_cat(tape, 2, (oar_tensor *[]){ chunk[1], chunk[0] }, 1);
}

static oar_dtensor spread_pieces(oar_tape *tape, const oar_dtensor *in)
{
    oar_dtensor piece[3], chunk[2], none = { NULL, NULL };

    if (oar_dtensor_split(tape, in[0], 0, 3, (int64_t[]){ 1, 0, 3 }, piece) !=
            OAR_OK ||
        oar_dtensor_chunk(tape, piece[2], 1, 2, chunk) != OAR_OK)
        return none;
    return oar_dtensor_cat(tape, 2, (oar_dtensor[]){ chunk[1], chunk[0] }, 1);
}

static void joins_are_those_of_one_rank(void **state)
{
    truth_case cases[] = {
        { BOTH(cat), .inputs = 3,
          .shape = { OAR_SHAPE(4, 2), OAR_SHAPE(4, 0), OAR_SHAPE(4, 3) } },
        { BOTH(stack), .inputs = 2,
          .shape = { OAR_SHAPE(4, 2), OAR_SHAPE(4, 2) } },
        { BOTH(many), .inputs = 2,
          .shape = { OAR_SHAPE(2, 3), OAR_SHAPE(2, 3) } },
        { BOTH(pieces), .inputs = 1, .shape = { OAR_SHAPE(4, 5) } },
    };

    truth_run(cases, 4, 4);
}

/* ---- placements ---------------------------------------------------------- */

static oar_status check_places(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0);
    oar_placement columns = oar_placement_shard(1);
    oar_placement sum = oar_placement_partial(OAR_REDUCE_OP_SUM);
    oar_dtensor_traffic t = oar_dtensor_traffic_init();
    oar_mesh *mesh = NULL;
    oar_dtensor a, b[5];

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    a = oar_dtensor_from_local(
        oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 4)),
        oar_spec_of(mesh, 1, &rows, OAR_SHAPE(6, 4), NULL));
    b[0] = oar_dtensor_transpose(NULL, a, 0, 1);
    CHECK(b[0].spec == oar_spec_of(mesh, 1, &columns, OAR_SHAPE(4, 6), NULL));
    b[1] = oar_dtensor_reshape(NULL, a, OAR_SHAPE(2, 3, 4));
    CHECK(b[1].spec == oar_spec_of(mesh, 1, &rows, OAR_SHAPE(2, 3, 4), NULL));
    b[2] = oar_dtensor_narrow(NULL, a, 0, 2, 4);
    rows.sizes = (int64_t[]){ 1, 3 };
    CHECK(b[2].spec == oar_spec_of(mesh, 1, &rows, OAR_SHAPE(4, 4), NULL));
    b[3] = oar_dtensor_select(NULL, a, 0, 5);
    CHECK(b[3].spec == oar_spec_of(mesh, 1, &sum, OAR_SHAPE(4), NULL));
    b[4] = oar_dtensor_unsqueeze(NULL, b[3], 0);
    CHECK(b[4].spec == oar_spec_of(mesh, 1, &sum, OAR_SHAPE(1, 4), NULL));
    CHECK_OK(oar_dtensor_read_traffic(mesh, NULL, &t));
    CHECK(t.moves == 0); /* all of it */
    for (int i = 0; i < 5; i++)
        oar_tensor_release(b[i].local);
    oar_tensor_release(a.local);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void views_move_nothing_where_parts_fit(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, check_places, NULL), OAR_OK);
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refusals(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0);
    oar_dtensor a, b, piece[2];
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    a = oar_dtensor_from_local(
        oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 4)),
        oar_spec_of(mesh, 1, &rows, OAR_SHAPE(6, 4), NULL));
    b = oar_dtensor_from_local(
        oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 3)),
        oar_spec_of(mesh, 1, &rows, OAR_SHAPE(6, 3), NULL));
#define REFUSED(call, why, says)  \
    CHECK((call).local == NULL && \
          fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_reshape(NULL, a, OAR_SHAPE(5, 5)), OAR_E_SHAPE,
            "reshape: [6, 4] has 24 elements");
    REFUSED(oar_dtensor_reshape(NULL, a, OAR_SHAPE(5, -1)), OAR_E_SHAPE,
            "24 elements");
    REFUSED(oar_dtensor_reshape(NULL, a, OAR_SHAPE(INT64_MAX, 4)), OAR_E_SHAPE,
            "dim 1 would be 4");
    REFUSED(oar_dtensor_expand(NULL, a, OAR_SHAPE(INT64_MAX, 6, 4)),
            OAR_E_SHAPE, "no tensor has this shape");
    REFUSED(oar_dtensor_reshape(NULL, a, (oar_shape){ .ndim = 1000 }),
            OAR_E_ARG, "1000 dims; there are 8 at most");
    REFUSED(oar_dtensor_flip(NULL, a, (oar_dims){ .count = 9 }), OAR_E_ARG,
            "9 dims");
    REFUSED(oar_dtensor_permute(NULL, a, OAR_DIMS(0, 0)), OAR_E_ARG,
            "each dim of [6, 4] once");
    REFUSED(oar_dtensor_permute(NULL, a, OAR_DIMS(0)), OAR_E_ARG, "once");
    REFUSED(oar_dtensor_transpose(NULL, a, 0, 2), OAR_E_ARG, "dim 2");
    REFUSED(oar_dtensor_squeeze(NULL, a, 0), OAR_E_SHAPE, "is not 1");
    REFUSED(oar_dtensor_expand(NULL, a, OAR_SHAPE(6, 5)), OAR_E_SHAPE,
            "does not expand");
    REFUSED(oar_dtensor_narrow(NULL, a, 0, 4, 3), OAR_E_ARG,
            "3 elements from 4 on of dim 0 of [6, 4]");
    REFUSED(oar_dtensor_slice(NULL, a, 0, 0, 3, 0), OAR_E_ARG, "step");
    REFUSED(oar_dtensor_select(NULL, a, 0, 6), OAR_E_ARG, "index 6");
    REFUSED(oar_dtensor_cat(NULL, 2, (oar_dtensor[]){ a, b }, 0), OAR_E_SHAPE,
            "cat of [6, 4] and [6, 3]");
    REFUSED(oar_dtensor_cat(NULL, 0, NULL, 0), OAR_E_ARG, "0 tensors");
    CHECK(
        fails_with(oar_dtensor_split(NULL, a, 0, 2, (int64_t[]){ 1, 2 }, piece),
                   OAR_E_SHAPE, "leave 3 of 6"));
    CHECK(fails_with(oar_dtensor_chunk(NULL, a, 2, 2, piece), OAR_E_ARG,
                     "dim 2"));
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
        cmocka_unit_test(views_are_those_of_one_rank),
        cmocka_unit_test(slices_are_those_of_one_rank),
        cmocka_unit_test(joins_are_those_of_one_rank),
        cmocka_unit_test(views_move_nothing_where_parts_fit),
        cmocka_unit_test(wrong_use_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
