/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that FSDP has spread are read, written and loaded as a whole
 * between passes, and a loss scaler steps on all ranks or on none. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

enum { VOCABULARY = 19, CONTEXT = 7, ROWS = 2, WIDTH = 24, MOST = 4096 };

static oar_gpt_opts gpt_opts(uint64_t seed)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = WIDTH;
    o.layers = 2;
    o.heads = 3;
    o.tied = 1;
    o.seed = seed;
    return o;
}

static oar_status make_gpt(uint64_t seed, oar_module **gpt)
{
    oar_gpt_opts o = gpt_opts(seed);

    return oar_gpt_create(&o, gpt);
}

static oar_status make_wrapped(oar_group *g, const oar_fsdp_opts *opts,
                               uint64_t seed, oar_module **wrapped)
{
    CHECK_OK(make_gpt(seed, wrapped));
    return oar_fsdp_wrap(*wrapped, g, opts, wrapped);
}

/* Runs both modules on the same tokens; they give the same bits. */
static oar_status same_answers(oar_module *a, oar_module *b)
{
    oar_tape *tape;
    oar_tensor *x, *y, *z;

    CHECK_OK(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), 3, 0, VOCABULARY);
    y = oar_forward(tape, a, x);
    z = oar_forward(tape, b, x);
    CHECK(y != NULL && z != NULL);
    CHECK(memcmp(oar_tensor_const_data(y), oar_tensor_const_data(z),
                 (size_t)oar_tensor_count(y) * sizeof(float)) == 0);
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* Every parameter of the wrapped module, as doubles, is that of the other. */
static oar_status same_numbers(oar_module *wrapped, const oar_module *plain)
{
    static _Thread_local double got[MOST];
    char name[128];

    for (int i = 0; i < oar_module_params(plain); i++) {
        const oar_tensor *param = oar_module_param(plain, i);
        const float *want = oar_tensor_const_data(param);

        CHECK(oar_tensor_count(param) <= MOST);
        CHECK_OK(oar_module_param_name(plain, i, name, sizeof name));
        CHECK_OK(oar_fsdp_read_param(wrapped, name, OAR_F64, got));
        for (int64_t k = 0; k < oar_tensor_count(param); k++)
            CHECK(got[k] == (double)want[k]);
    }
    return OAR_OK;
}

/* ---- one parameter ------------------------------------------------------- */

/* Arrays have the places of parameters, and units the names of modules. */
static oar_status know_names(const oar_module *net)
{
    int last = -1;

    CHECK(strcmp(oar_fsdp_unit_name(net, 0), "") == 0);
    CHECK(strcmp(oar_fsdp_unit_name(net, 1), "blocks.0") == 0);
    CHECK(oar_fsdp_unit_name(net, oar_fsdp_units(net)) == NULL);
    for (int i = 0; i < oar_module_params(net) - 1; i++) { /* one is tied */
        CHECK(oar_fsdp_param_index(net, i) > last);
        last = oar_fsdp_param_index(net, i);
    }
    CHECK(oar_fsdp_param_index(net, oar_module_params(net)) == -1);
    return OAR_OK;
}

static oar_status read_and_write(oar_group *g, void *arg)
{
    static _Thread_local double number[MOST];
    const oar_fsdp_opts *o = arg;
    oar_module *plain, *net;
    char name[128];

    CHECK_OK(make_gpt(5, &plain));
    CHECK_OK(make_wrapped(g, o, 5, &net));
    CHECK_OK(same_answers(plain, net));
    CHECK_OK(same_numbers(net, plain));
    CHECK_OK(know_names(net));
    for (int i = 0; i < oar_module_params(plain); i++) {
        oar_tensor *param = oar_module_param(plain, i);

        for (int64_t k = 0; k < oar_tensor_count(param); k++)
            number[k] = sin((double)(k + 100 * i));
        CHECK_OK(oar_tensor_write(param, OAR_F64, number));
        CHECK_OK(oar_module_param_name(plain, i, name, sizeof name));
        CHECK_OK(oar_fsdp_write_param(net, name, OAR_F64, number));
    }
    CHECK_OK(same_answers(plain, net));
    CHECK_OK(same_numbers(net, plain));
    CHECK_OK(oar_fsdp_write_param(net, "norm.weight", OAR_F64, number));
    CHECK_OK(
        oar_fsdp_read_param(net, "norm.weight", OAR_F64,
                            oar_group_rank(g) == 0 ? number + MOST / 2 : NULL));
    if (oar_group_rank(g) == 0)
        CHECK((float)number[5] == (float)number[MOST / 2 + 5]);
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static void run_everywhere(int ranks, oar_rank_fn fn)
{
    static const char *const backend[] = { "sim", "native" };

    for (int b = 0; b < 2; b++)
        for (int h = OAR_HOLD_AUTO; h <= OAR_HOLD_OWN; h++)
            for (int stage = 0; stage <= 2; stage++) {
                oar_fsdp_opts o = oar_fsdp_opts_init();

                o.hold = (oar_hold)h;
                o.stage = (oar_zero_stage)stage;
                o.least_bytes = 1;
                assert_int_equal(ranks_run(backend[b], ranks, NULL, fn, &o),
                                 OAR_OK);
            }
}

static void parameters_are_read_and_written_as_a_whole(void **state)
{
    for (int ranks = 1; ranks <= 4; ranks += ranks == 1 ? 2 : 1)
        run_everywhere(ranks, read_and_write);
}

/* Whole parameters are bf16, but are read as the shards have them, of which
 * only those of the parameter are gathered. */
static oar_status read_master_weights(oar_group *g, void *arg)
{
    oar_fsdp_opts o = *(const oar_fsdp_opts *)arg;
    oar_shards_stats stats = oar_shards_stats_init();
    float table[VOCABULARY * WIDTH];
    uint64_t before;
    oar_module *plain, *net;

    o.mixed = 1;
    o.param_dtype = OAR_BF16;
    CHECK_OK(make_gpt(5, &plain));
    CHECK_OK(make_wrapped(g, &o, 5, &net));
    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), &stats));
    before = stats.gathered_bytes;
    CHECK_OK(same_numbers(net, plain));
    CHECK_OK(oar_fsdp_read_param(net, "tok.weight", OAR_F32,
                                 oar_group_rank(g) == 1 ? table : NULL));
    if (oar_group_rank(g) == 1)
        CHECK(memcmp(table, oar_tensor_const_data(oar_module_param(plain, 0)),
                     sizeof table) == 0);
    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), &stats));
    CHECK(stats.gathered_bytes == before);
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static void reading_gives_the_numbers_of_the_shards(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = 0; stage <= 2; stage += 2) {
            oar_fsdp_opts o = oar_fsdp_opts_init();

            o.hold = (oar_hold)h;
            o.stage = (oar_zero_stage)stage;
            o.least_bytes = 1;
            assert_int_equal(
                ranks_run("native", 3, NULL, read_master_weights, &o), OAR_OK);
        }
}

static oar_status read_alone(oar_group *g, void *arg)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_module *plain, *net;

    o.hold = OAR_HOLD_MAPPED;
    CHECK_OK(make_gpt(5, &plain));
    CHECK_OK(make_wrapped(g, &o, 5, &net));
    if (oar_group_rank(g) == 1)
        CHECK_OK(same_numbers(net, plain));
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static void mapped_parameters_are_read_by_any_rank(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, read_alone, NULL), OAR_OK);
    assert_int_equal(ranks_run("native", 3, NULL, read_alone, NULL), OAR_OK);
}

/* ---- all of them --------------------------------------------------------- */

static oar_status load_plain(oar_group *g, void *arg)
{
    oar_module *plain, *lazy, *ddp, *net;

    CHECK_OK(make_gpt(9, &plain));
    CHECK_OK(make_wrapped(g, arg, 5, &net));
    CHECK_OK(oar_fsdp_load(net, plain, 1));
    CHECK_OK(same_answers(plain, net));
    CHECK_OK(same_numbers(net, plain));
    oar_module_release(plain);
    oar_lazy(1);
    CHECK_OK(make_gpt(11, &lazy));
    oar_lazy(0);
    CHECK_OK(oar_fsdp_load(net, lazy, 1));
    CHECK_OK(make_gpt(11, &plain));
    CHECK_OK(same_answers(plain, net));
    oar_module_release(lazy);
    oar_module_release(plain);
    CHECK_OK(make_gpt(13, &ddp));
    CHECK_OK(oar_ddp_wrap(ddp, g, NULL, &ddp));
    CHECK_OK(oar_fsdp_load(net, ddp, 1));
    CHECK_OK(same_numbers(net, oar_module_child(ddp, 0)));
    oar_module_release(ddp);
    oar_module_release(net);
    return OAR_OK;
}

static void a_plain_module_is_loaded(void **state)
{
    run_everywhere(3, load_plain);
}

static oar_status load_buffers(oar_group *g, void *arg)
{
    oar_module *plain, *net;

    CHECK_OK(oar_cnn_create(
        OAR_OPTS(oar_cnn_opts, .image = 8, .width = 5, .seed = 4), &plain));
    CHECK_OK(
        oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = 8, .width = 5), &net));
    CHECK_OK(oar_fsdp_wrap(net, g, NULL, &net));
    for (int i = 0; i < oar_module_buffers(plain); i++)
        CHECK_OK(oar_tensor_fill(oar_module_buffer(plain, i), i + 0.5));
    CHECK_OK(oar_fsdp_load(net, plain, 1));
    CHECK_OK(same_numbers(net, plain));
    for (int i = 0; i < oar_module_buffers(plain); i++) {
        const oar_tensor *a = oar_module_buffer(plain, i);
        const oar_tensor *b = oar_module_buffer(net, i);

        CHECK(memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                     (size_t)oar_tensor_count(a) * sizeof(float)) == 0);
    }
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static void buffers_are_loaded_on_every_rank(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, load_buffers, NULL), OAR_OK);
}

/* ---- refusals ------------------------------------------------------------ */

static oar_status load_misfits(oar_group *g, void *arg)
{
    oar_gpt_opts longer = gpt_opts(9), rotary = gpt_opts(9);
    oar_module *plain, *other, *net;

    CHECK_OK(make_gpt(5, &plain));
    CHECK_OK(make_wrapped(g, arg, 5, &net));
    longer.context = CONTEXT + 1;
    CHECK_OK(oar_gpt_create(&longer, &other));
    CHECK(oar_fsdp_load(net, other, 1) == OAR_E_SHAPE);
    CHECK(oar_fsdp_load(net, other, 0) == OAR_E_SHAPE);
    CHECK_OK(same_numbers(net, plain));
    oar_module_release(other);
    rotary.rotary = 1; /* it has no "pos.weight" */
    CHECK_OK(oar_gpt_create(&rotary, &other));
    CHECK(oar_fsdp_load(net, other, 1) == OAR_E_ARG);
    CHECK_OK(same_numbers(net, plain));
    CHECK_OK(oar_fsdp_load(net, other, 0));
    CHECK_OK(oar_module_load(plain, other, 0));
    CHECK_OK(same_numbers(net, plain));
    oar_module_release(other);
    rotary = gpt_opts(9);
    rotary.tied = 0; /* the head has a weight of its own */
    rotary.layers = 3;
    CHECK_OK(oar_gpt_create(&rotary, &other));
    CHECK(oar_fsdp_load(net, other, 1) == OAR_E_ARG);
    CHECK(oar_fsdp_load(net, NULL, 1) == OAR_E_ARG);
    CHECK(oar_fsdp_load(plain, other, 1) == OAR_E_ARG);
    oar_module_release(other);
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static oar_status misuse(oar_group *g, void *arg)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    float number[WIDTH] = { 0 };
    oar_module *plain, *net;

    o.hold = OAR_HOLD_OWN;
    CHECK_OK(make_gpt(5, &plain));
    CHECK_OK(make_wrapped(g, &o, 5, &net));
    CHECK(oar_fsdp_read_param(plain, "norm.weight", OAR_F32, number) ==
          OAR_E_ARG);
    CHECK(oar_fsdp_read_param(NULL, "norm.weight", OAR_F32, number) ==
          OAR_E_ARG);
    CHECK(oar_fsdp_read_param(net, NULL, OAR_F32, number) == OAR_E_ARG);
    CHECK(oar_fsdp_read_param(net, "norm.weight", (oar_dtype)99, number) ==
          OAR_E_ARG);
    CHECK(oar_fsdp_read_param(net, "norm", OAR_F32, number) == OAR_E_NOT_FOUND);
    CHECK(oar_fsdp_write_param(net, "module.norm.weight", OAR_F32, number) ==
          OAR_E_NOT_FOUND);
    CHECK(oar_fsdp_write_param(net, "norm.weight", OAR_F32, NULL) == OAR_E_ARG);
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    CHECK(oar_fsdp_write_param(net, "norm.weight", OAR_F32, number) ==
          OAR_E_STATE);
    CHECK(oar_fsdp_load(net, plain, 1) == OAR_E_STATE);
    CHECK_OK(oar_fsdp_reshard(net, NULL));
    CHECK_OK(same_numbers(net, plain));
    CHECK(oar_fsdp_scaler_step(plain, NULL, NULL, NULL) == OAR_E_ARG);
    oar_module_release(net);
    oar_module_release(plain);
    return OAR_OK;
}

static void what_does_not_fit_changes_nothing(void **state)
{
    run_everywhere(2, load_misfits);
    assert_int_equal(ranks_run("sim", 2, NULL, misuse, NULL), OAR_OK);
}

/* ---- loss scaling -------------------------------------------------------- */

/* A gradient that is not finite in one rank's shard makes all skip the step. */
static oar_status step_or_skip(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), count, stepped;
    oar_scaler *scaler;
    oar_tensor *const *shard;
    oar_module *before, *net;
    oar_optim *sgd;

    CHECK_OK(make_gpt(5, &before));
    CHECK_OK(make_wrapped(g, arg, 5, &net));
    shard = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, shard,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.5), &sgd));
    CHECK_OK(oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = 4), &scaler));
    for (int bad = 1; bad >= 0; bad--) {
        for (int i = 0; i < count; i++) {
            CHECK_OK(oar_tensor_mark_grad(shard[i]));
            CHECK_OK(oar_tensor_fill(oar_tensor_grad(shard[i]),
                                     bad && rank == 1 ? INFINITY : 2));
        }
        CHECK_OK(oar_fsdp_scaler_step(net, scaler, sgd, &stepped));
        CHECK(stepped == !bad);
        CHECK(oar_scaler_scale(scaler) == 2);
        oar_optim_zero_grad(sgd);
    }
    for (int i = 0; i < oar_module_params(before); i++) {
        oar_tensor *param = oar_module_param(before, i);
        float *x = oar_tensor_data(param);
        int again = 0;

        for (int k = 0; k < i; k++)
            again |= oar_module_param(before, k) == param;
        for (int64_t k = 0; k < oar_tensor_count(param) && !again; k++)
            x[k] -= 0.5f;
    }
    CHECK_OK(oar_shards_publish(oar_fsdp_shards(net)));
    CHECK_OK(same_numbers(net, before));
    oar_scaler_destroy(scaler);
    oar_optim_destroy(sgd);
    oar_module_release(net);
    oar_module_release(before);
    return OAR_OK;
}

static void a_scaler_steps_on_all_ranks_or_on_none(void **state)
{
    run_everywhere(3, step_or_skip);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_read_and_written_as_a_whole),
        cmocka_unit_test(reading_gives_the_numbers_of_the_shards),
        cmocka_unit_test(mapped_parameters_are_read_by_any_rank),
        cmocka_unit_test(a_plain_module_is_loaded),
        cmocka_unit_test(buffers_are_loaded_on_every_rank),
        cmocka_unit_test(what_does_not_fit_changes_nothing),
        cmocka_unit_test(a_scaler_steps_on_all_ranks_or_on_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
