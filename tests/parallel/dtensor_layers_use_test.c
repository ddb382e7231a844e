/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of layers on DTensors: what does not move, what is written, and
 * what is said of wrong use. */
#include "support/ranks.h"

#include <oarsong/dtensor_ops.h>

#include "support/last_error.h"

/* ---- what moves ---------------------------------------------------------- */

static const oar_spec *spec_on(oar_mesh *mesh, oar_placement placement,
                               oar_shape shape)
{
    return oar_spec_of(mesh, 1, &placement, shape, NULL);
}

static uint64_t moves_of(oar_mesh *mesh)
{
    oar_dtensor_traffic t = oar_dtensor_traffic_init();

    return oar_dtensor_read_traffic(mesh, NULL, &t) == OAR_OK
               ? t.moves + t.backward_moves
               : 999;
}

/* A vocabulary of 97 on 4 ranks: neither the table nor the logits move, and
 * what no rule computes on parts is refused where that is asked for. */
static oar_status vocabulary(oar_group *world, void *arg)
{
    oar_placement rows = oar_placement_shard(0), r = oar_placement_replicate();
    oar_dtensor_limits strict = oar_dtensor_limits_init();
    oar_dtensor table, index, logits, target, x;
    oar_mesh *mesh = NULL;
    oar_tape *tape;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 4 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    strict.strict = 1;
    CHECK_OK(oar_dtensor_set_limits(mesh, &strict));
    table = oar_dtensor_normal(tape, OAR_F64,
                               spec_on(mesh, rows, OAR_SHAPE(97, 3)), 1, 0, 1);
    index = oar_dtensor_uniform(tape, OAR_I64,
                                spec_on(mesh, r, OAR_SHAPE(2, 5)), 2, 0, 97);
    x = oar_dtensor_embedding(tape, table, index);
    CHECK(x.local != NULL);
    CHECK(oar_spec_placement(x.spec, 0).kind == OAR_PARTIAL);
    logits = oar_dtensor_normal(
        NULL, OAR_F64, spec_on(mesh, oar_placement_shard(1), OAR_SHAPE(5, 97)),
        3, 0, 1);
    target = oar_dtensor_uniform(tape, OAR_I64, spec_on(mesh, r, OAR_SHAPE(5)),
                                 2, 0, 97);
    CHECK_OK(oar_tensor_require_grad(logits.local, 1));
    x = oar_dtensor_cross_entropy(tape, logits, target);
    CHECK(x.local != NULL);
    CHECK(oar_spec_placement(x.spec, 0).kind == OAR_REPLICATE);
    CHECK_OK(oar_backward(tape, x.local));
    CHECK(moves_of(mesh) == 0);
    CHECK(oar_dtensor_softmax(tape, logits).local == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_UNSUPPORTED,
                     "softmax of [5, 97] S(1)"));
    oar_tensor_release(logits.local);
    oar_tape_destroy(tape);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void a_vocabulary_stays_where_it_is(void **state)
{
    assert_int_equal(ranks_run("sim", 4, NULL, vocabulary, NULL), OAR_OK);
}

/* Running statistics are those of one rank, whether batch or channels are cut;
 * afterwards they normalise without the batch. */
static oar_status running(oar_group *world, void *arg)
{
    oar_placement cut = *(oar_placement *)arg, r = oar_placement_replicate();
    oar_placement beside = cut.dim == 1 ? oar_placement_shard(0) : r;
    oar_tensor *mean = oar_zeros(NULL, OAR_F64, OAR_SHAPE(3)), *out, *whole;
    oar_tensor *var = oar_ones(NULL, OAR_F64, OAR_SHAPE(3));
    oar_tensor *x = oar_normal(NULL, OAR_F64, OAR_SHAPE(5, 3), 4, 1, 2);
    oar_dtensor in, m, v, y;
    oar_mesh *mesh = NULL;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    in = oar_dtensor_normal(NULL, OAR_F64, spec_on(mesh, cut, OAR_SHAPE(5, 3)),
                            4, 1, 2);
    m = oar_dtensor_zeros(NULL, OAR_F64, spec_on(mesh, beside, OAR_SHAPE(3)));
    v = oar_dtensor_ones(NULL, OAR_F64, spec_on(mesh, beside, OAR_SHAPE(3)));
    for (int training = 1; training >= 0; training--) {
        double a[15], b[15];

        out =
            oar_batch_norm(NULL, x, NULL, NULL, mean, var, training, 0.3, 1e-5);
        y = oar_dtensor_batch_norm(NULL, in, NULL, NULL, &m, &v, training, 0.3,
                                   1e-5);
        whole = oar_dtensor_whole(NULL, y, OAR_GRADS_EQUAL);
        CHECK(whole != NULL && out != NULL);
        CHECK_OK(oar_tensor_read(out, OAR_F64, a));
        CHECK_OK(oar_tensor_read(whole, OAR_F64, b));
        for (int i = 0; i < 15; i++)
            CHECK(a[i] - b[i] < 1e-12 && b[i] - a[i] < 1e-12);
        oar_tensor_release(out);
        oar_tensor_release(whole);
        oar_tensor_release(y.local);
    }
    oar_tensor_release(m.local);
    if (cut.dim == 1) { /* would have to move, and be written */
        m = oar_dtensor_zeros(NULL, OAR_F64, spec_on(mesh, r, OAR_SHAPE(3)));
        y = oar_dtensor_batch_norm(NULL, in, NULL, NULL, &m, &v, 1, 0.3, 1e-5);
        CHECK(y.local == NULL);
        CHECK(fails_with(oar_last_error()->status, OAR_E_ARG,
                         "must lie as the channels do"));
        oar_tensor_release(m.local);
    }
    oar_tensor_release(v.local);
    oar_tensor_release(in.local);
    oar_tensor_release(x);
    oar_tensor_release(mean);
    oar_tensor_release(var);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void running_statistics_are_those_of_one_rank(void **state)
{
    oar_placement batch = oar_placement_shard(0);
    oar_placement channels = oar_placement_shard(1);

    assert_int_equal(ranks_run("sim", 2, NULL, running, &batch), OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, running, &channels), OAR_OK);
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refusals(oar_group *world, void *arg)
{
    oar_placement r = oar_placement_replicate();
    oar_dtensor a, b, index, c;
    oar_mesh *mesh = NULL;
    oar_tape *tape;

    CHECK_OK(oar_mesh_create(world, 1, (int[]){ 2 }, NULL, NULL, &mesh));
    CHECK_OK(oar_tape_create(&tape));
    a = oar_dtensor_ones(tape, OAR_F64, spec_on(mesh, r, OAR_SHAPE(4, 3)));
    b = oar_dtensor_ones(tape, OAR_F64, spec_on(mesh, r, OAR_SHAPE(4)));
    c = oar_dtensor_ones(tape, OAR_F64,
                         spec_on(mesh, r, OAR_SHAPE(2, 3, 4, 4)));
    index = oar_dtensor_zeros(tape, OAR_I64, spec_on(mesh, r, OAR_SHAPE(4)));
#define REFUSED(call, why, says)  \
    CHECK((call).local == NULL && \
          fails_with(oar_last_error()->status, why, says))
    REFUSED(oar_dtensor_softmax_over(tape, a, 2), OAR_E_ARG, "dim 2");
    REFUSED(oar_dtensor_layer_norm(tape, a, &b, NULL, 1e-5), OAR_E_SHAPE,
            "layer_norm of [4, 3] with a weight or bias [4]");
    REFUSED(oar_dtensor_group_norm(tape, a, 2, NULL, NULL, 1e-5), OAR_E_SHAPE,
            "groups divide the channels");
    REFUSED(oar_dtensor_batch_norm(tape, b, NULL, NULL, NULL, NULL, 1, 0.1, 1),
            OAR_E_SHAPE, "[n, channels, ..]");
    REFUSED(oar_dtensor_mse(tape, a, b), OAR_E_SHAPE, "");
    REFUSED(oar_dtensor_cross_entropy(tape, b, index), OAR_E_SHAPE,
            "[rows, classes] and [rows]");
    REFUSED(oar_dtensor_cross_entropy_with(
                tape, a, index, NULL,
                OAR_OPTS(oar_cross_entropy_opts, .weight = b.local)),
            OAR_E_ARG, "beside the options");
    REFUSED(
        oar_dtensor_bce_with_logits(tape, a, a, NULL, NULL,
                                    OAR_OPTS(oar_bce_opts, .weight = b.local)),
        OAR_E_ARG, "beside the options");
    REFUSED(oar_dtensor_embedding(tape, b, index), OAR_E_SHAPE,
            "embedding of table [4]");
    REFUSED(oar_dtensor_embedding_with(
                tape, a, index, OAR_OPTS(oar_embedding_opts, .vocabulary = 9)),
            OAR_E_ARG, "leave vocabulary 0");
    REFUSED(oar_dtensor_index_select(tape, a, 0, a), OAR_E_SHAPE,
            "an index [4, 3]");
    REFUSED(oar_dtensor_take_along(tape, a, 0, index), OAR_E_SHAPE,
            "an index [4]");
    REFUSED(oar_dtensor_scatter_add(tape, b, 0, index, a), OAR_E_SHAPE,
            "scatter_add of [4]");
    REFUSED(oar_dtensor_attention(tape, a, a, b, NULL, NULL), OAR_E_SHAPE,
            "v [4]");
    REFUSED(
        oar_dtensor_attention(tape, a, a, a, NULL,
                              OAR_OPTS(oar_attention_opts, .mask = a.local)),
        OAR_E_ARG, "the mask is a DTensor");
    REFUSED(oar_dtensor_attention(tape, a, a, a, &c, NULL), OAR_E_SHAPE,
            "a mask [2, 3, 4, 4]");
    REFUSED(oar_dtensor_rotary(tape, b, 0, 100), OAR_E_SHAPE, "[.., t, d]");
    REFUSED(oar_dtensor_conv2d(tape, a, c, NULL, NULL), OAR_E_SHAPE,
            "conv2d of x [4, 3]");
    REFUSED(oar_dtensor_conv2d(tape, c, c, &b, NULL), OAR_E_SHAPE, "bias [4]");
    REFUSED(oar_dtensor_conv2d(tape, c, c, NULL,
                               OAR_OPTS(oar_conv2d_opts, .groups = 5)),
            OAR_E_SHAPE, "5 groups");
    REFUSED(oar_dtensor_conv2d(tape, c, c, NULL,
                               OAR_OPTS(oar_conv2d_opts, .groups = -1)),
            OAR_E_ARG, "negative");
    REFUSED(oar_dtensor_max_pool2d(tape, c, 5, 5, NULL), OAR_E_SHAPE,
            "a window of 5");
    REFUSED(oar_dtensor_adaptive_avg_pool1d(tape, c, 2), OAR_E_SHAPE, "");
    REFUSED(oar_dtensor_adaptive_avg_pool2d(tape, c, 2, 0), OAR_E_ARG, "2 x 0");
    oar_tape_destroy(tape);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void wrong_shapes_are_named(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refusals, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vocabulary_stays_where_it_is),
        cmocka_unit_test(running_statistics_are_those_of_one_rank),
        cmocka_unit_test(wrong_shapes_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
