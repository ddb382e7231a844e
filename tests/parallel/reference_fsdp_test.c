/* SPDX-License-Identifier: Apache-2.0 */
/* The cases that ferrotorch has for FSDP, with its numbers, and the cases that
 * it gets wrong. It cuts every parameter into equal parts; here cuts are at
 * pages. So the whole is compared, and each element is on one rank. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { FEW = 4, MANY = 2048 }; /* MANY: a page for each of two ranks */

typedef struct reference_case {
    oar_hold hold;
    oar_zero_stage stage;
    int count;    /* of weights */
    int prefetch; /* the unit is gathered before forward */
} reference_case;

/* y = x * sum(weight); the gradient of each weight is sum(x). */
static oar_tensor *scale(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_mul(tape, x, oar_sum(tape, oar_module_param(module, 0)));
}

/* y = sum(weight * x); the gradient of the weight is x. */
static oar_tensor *dot(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_sum(tape, oar_mul(tape, oar_module_param(module, 0), x));
}

static const oar_module_class scale_class = { .size = sizeof scale_class,
                                              .name = "scale",
                                              .forward = scale };
static const oar_module_class dot_class = { .size = sizeof dot_class,
                                            .name = "dot",
                                            .forward = dot };

/* Weights are factor * 1, 2, 3, 4, 1, 2, ... */
static oar_tensor *numbers(oar_tape *tape, int count, float factor)
{
    float x[MANY];

    for (int i = 0; i < count; i++)
        x[i] = factor * (float)(i % 4 + 1);
    return oar_from_data(tape, OAR_F32, OAR_SHAPE(count), x);
}

static oar_status wrap(oar_group *g, const oar_module_class *class,
                       const reference_case *c, oar_group *replicas,
                       float factor, oar_module **net)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_module *inner;

    o.hold = c->hold;
    o.stage = c->stage;
    o.replicas = replicas;
    CHECK_OK(oar_module_create(class, &inner));
    CHECK_OK(
        oar_module_add_param(inner, "weight", numbers(NULL, c->count, factor)));
    return oar_fsdp_wrap(inner, g, &o, net);
}

/* ---- what the ranks have ------------------------------------------------- */

/* Adds this rank's elements, or gradients, of array 0 up over all ranks; those
 * of others are 0 here. */
static oar_status collect(oar_group *g, const oar_module *net, int grads,
                          float *whole)
{
    oar_shard shard = oar_shard_init();
    oar_shards *s = oar_fsdp_shards(net);
    size_t count = (size_t)oar_tensor_count(oar_module_param(net, 0));
    float owners[MANY] = { 0 };

    memset(whole, 0, count * sizeof *whole);
    for (int i = 0; i < oar_shards_count(s); i++) {
        CHECK_OK(oar_shards_shard(s, i, &shard));
        if (shard.array != 0)
            continue;
        CHECK(oar_tensor_requires_grad(shard.tensor));
        CHECK(oar_tensor_count(shard.tensor) == (int64_t)shard.count);
        memcpy(whole + shard.first, grads ? shard.grad.data : shard.data.data,
               shard.count * sizeof *whole);
        for (size_t k = 0; k < shard.count; k++)
            owners[shard.first + k] = 1;
    }
    CHECK_OK(oar_all_reduce(g, oar_span_of(whole, count, OAR_F32), OAR_SUM,
                            NULL, NULL));
    CHECK_OK(oar_all_reduce(g, oar_span_of(owners, count, OAR_F32), OAR_SUM,
                            NULL, NULL));
    for (size_t k = 0; k < count; k++)
        CHECK(owners[k] == 1);
    return OAR_OK;
}

static oar_status whole_is(oar_group *g, const oar_module *net, int grads,
                           float factor)
{
    int count = (int)oar_tensor_count(oar_module_param(net, 0));
    float whole[MANY];

    CHECK_OK(collect(g, net, grads, whole));
    for (int i = 0; i < count; i++)
        CHECK(fabsf(whole[i] - factor * (float)(i % 4 + 1)) <= 1e-4f);
    return OAR_OK;
}

static oar_status spread(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_module *net;
    size_t first, count;

    CHECK_OK(wrap(g, &scale_class, c, NULL, rank == 0 ? 10.0f : 0, &net));
    CHECK_OK(whole_is(g, net, 0, 10));
    CHECK_OK(oar_shards_range(oar_fsdp_shards(net), 0, rank, &first, &count));
    if (c->count == MANY && ranks == 2) {
        CHECK(count == MANY / 2 && first == (size_t)rank * MANY / 2);
        CHECK(oar_tensor_count(oar_fsdp_params(net, NULL)[0]) == MANY / 2);
    }
    oar_module_release(net);
    return OAR_OK;
}

static oar_status run_forward(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    oar_shards *s;
    oar_module *net;
    oar_tape *tape;
    float y = 0;

    CHECK_OK(wrap(g, &scale_class, c, NULL, 1, &net));
    CHECK_OK(oar_tape_create(&tape));
    s = oar_fsdp_shards(net);
    for (int i = 0; i < c->prefetch; i++) /* twice is no error */
        CHECK_OK(oar_shards_prefetch(s, 0));
    oar_tape_record(tape, 0);
    CHECK_OK(oar_tensor_read(
        oar_forward(tape, net, oar_full(tape, OAR_F32, OAR_SHAPE(1), 2)),
        OAR_F32, &y));
    CHECK(y == 2 * 2.5f * (float)c->count); /* 20 for 1, 2, 3, 4 */
    CHECK_OK(whole_is(g, net, 0, 1));
    CHECK(c->hold != OAR_HOLD_OWN || c->stage != OAR_ZERO_STAGE_3 ||
          oar_tensor_const_data(oar_module_param(net, 0)) == NULL);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void run_cases(int ranks, oar_status (*fn)(oar_group *g, void *arg))
{
    for (int hold = OAR_HOLD_AUTO; hold <= OAR_HOLD_OWN; hold += 3)
        for (int stage = 0; stage < 3; stage++)
            for (int count = FEW; count <= MANY; count += MANY - FEW) {
                reference_case c = { .hold = (oar_hold)hold,
                                     .stage = (oar_zero_stage)stage,
                                     .count = count,
                                     .prefetch = stage == 0 ? 2 : 1 };

                ranks_all(ranks, fn, &c);
            }
}

static void every_element_is_on_one_rank(void **state)
{
    run_cases(2, spread);
    run_cases(3, spread);
}

static void forward_is_that_of_the_whole_and_leaves_the_shards(void **state)
{
    run_cases(1, run_forward);
    run_cases(2, run_forward);
}

/* ---- gradients ----------------------------------------------------------- */

static oar_status pass(oar_module *net, int count, float factor)
{
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_backward(
        tape, oar_forward(tape, net, numbers(tape, count, factor))));
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* Gradients are those of autograd: not zeros. */
static oar_status mean_of_ranks(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    int ranks = oar_group_size(g);
    oar_module *net;

    CHECK_OK(wrap(g, &dot_class, c, NULL, 1, &net));
    CHECK_OK(pass(net, c->count, 1));
    CHECK_OK(whole_is(g, net, 1, 1));
    oar_shards_zero_grad(oar_fsdp_shards(net));
    CHECK_OK(pass(net, c->count, (float)oar_group_rank(g)));
    CHECK_OK(whole_is(g, net, 1, (float)(ranks - 1) / 2));
    oar_module_release(net);
    return OAR_OK;
}

static void gradients_become_their_mean(void **state)
{
    run_cases(1, mean_of_ranks);
    run_cases(2, mean_of_ranks);
}

/* Each rank changes what it has; all see the whole. */
static oar_status change_shards(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    int rank = oar_group_rank(g);
    oar_shard shard = oar_shard_init();
    oar_module *net;
    oar_shards *s;
    const float *w;

    CHECK_OK(wrap(g, &dot_class, c, NULL, 1, &net));
    s = oar_fsdp_shards(net);
    for (int i = 0; i < oar_shards_count(s); i++) {
        CHECK_OK(oar_shards_shard(s, i, &shard));
        for (size_t k = 0; k < shard.count; k++)
            ((float *)shard.data.data)[k] += 10 * (float)(rank + 1);
    }
    CHECK_OK(oar_shards_publish(s));
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    w = oar_tensor_const_data(oar_module_param(net, 0));
    for (int r = 0; r < oar_group_size(g); r++) {
        size_t first, count;

        CHECK_OK(oar_shards_range(s, 0, r, &first, &count));
        for (size_t k = first; k < first + count; k++)
            CHECK(w[k] == (float)(k % 4 + 1) + 10 * (float)(r + 1));
    }
    CHECK_OK(oar_fsdp_reshard(net, NULL));
    oar_module_release(net);
    return OAR_OK;
}

static void changed_shards_reach_all_ranks(void **state)
{
    run_cases(1, change_shards);
    run_cases(2, change_shards);
}

/* The optimizer and its momentum go on from step to step. */
static oar_status keep_momentum(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    oar_module *net;
    oar_optim *sgd;
    float w = 1, v = 0;
    int count;

    CHECK_OK(wrap(g, &dot_class, c, NULL, 1, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(
        count, param, OAR_OPTS(oar_sgd_opts, .lr = 0.125, .momentum = 0.5),
        &sgd));
    for (int step = 0; step < 4; step++) {
        CHECK_OK(pass(net, c->count, 1));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        v = 0.5f * v + 1;
        w -= 0.125f * v;
        CHECK_OK(whole_is(g, net, 0, w));
    }
    oar_optim_destroy(sgd);
    oar_module_release(net);
    return OAR_OK;
}

static void an_optimizer_goes_on_from_step_to_step(void **state)
{
    run_cases(2, keep_momentum);
}

/* ---- replicas ------------------------------------------------------------ */

static oar_status hybrid(oar_group *g, void *arg)
{
    const reference_case *c = arg;
    int rank = oar_group_rank(g);
    oar_group *row, *column;
    oar_module *net;

    CHECK_OK(oar_group_split(g, rank / 2, rank, &row));
    CHECK_OK(oar_group_split(g, rank % 2, rank, &column));
    CHECK_OK(wrap(row, &dot_class, c, column, 10, &net));
    CHECK_OK(whole_is(row, net, 0, 10));
    CHECK_OK(pass(net, c->count, 1));
    CHECK_OK(whole_is(row, net, 1, 1));
    oar_shards_zero_grad(oar_fsdp_shards(net));
    CHECK_OK(pass(net, c->count, rank < 2 ? 2 : 10));
    CHECK_OK(whole_is(row, net, 1, 6));
    oar_module_release(net);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static void the_mean_is_over_rows_and_columns(void **state)
{
    run_cases(4, hybrid);
}

/* Rows of three and of one: their ranks do not have the same shards. */
static oar_status uneven_rows(oar_group *g, void *arg)
{
    reference_case c = { .hold = OAR_HOLD_OWN, .count = MANY };
    int rank = oar_group_rank(g);
    oar_group *row, *column;
    oar_module *net = NULL;
    oar_status status;

    CHECK_OK(oar_group_split(g, rank / 3, rank, &row));
    CHECK_OK(oar_group_split(g, rank % 3, rank, &column));
    status = wrap(row, &dot_class, &c, column, 1, &net);
    CHECK(net == NULL);
    CHECK(status == OAR_E_MISMATCH);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static void rows_of_different_sizes_are_refused(void **state)
{
    ranks_all(4, uneven_rows, NULL);
}

/* ---- several parameters -------------------------------------------------- */

/* Parts of 3 and 15 elements on two ranks; six units gathered ahead; one is
 * frozen and stays so. */
static oar_status odd_layers(oar_group *g, void *arg)
{
    enum { LAYERS = 6, WIDE = 5 };
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_shards_stats stats = oar_shards_stats_init();
    int rank = oar_group_rank(g), count;
    oar_module *layer[LAYERS], *net;
    oar_optim *sgd;
    oar_tape *tape;
    float loss, last = 1e30f;

    o.hold = *(oar_hold *)arg;
    o.least_bytes = 1;
    o.prefetch = LAYERS;
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(oar_linear_create(i == LAYERS - 1 ? 3 : WIDE,
                                   i == LAYERS - 2 ? 3 : WIDE, (uint64_t)i,
                                   NULL, &layer[i]));
    CHECK_OK(oar_module_freeze(layer[2], 1));
    CHECK_OK(oar_sequential_create(LAYERS, layer, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(oar_fsdp_units(net) == LAYERS + 1);
    CHECK(strcmp(oar_fsdp_unit_name(net, 0), "") == 0);
    CHECK(strcmp(oar_fsdp_unit_name(net, LAYERS), "5") == 0);
    CHECK(oar_fsdp_unit_name(net, LAYERS + 1) == NULL);
    CHECK(oar_fsdp_unit_name(net, -1) == NULL);
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.05), &sgd));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < 5; step++) {
        oar_tensor *x = oar_uniform(tape, OAR_F32, OAR_SHAPE(7, WIDE),
                                    (uint64_t)rank, -1, 1);
        oar_tensor *y = oar_forward(tape, net, x);
        oar_tensor *mean = oar_mean(tape, oar_mul(tape, y, y));

        CHECK_OK(oar_backward(tape, mean));
        CHECK_OK(oar_tensor_read(mean, OAR_F32, &loss));
        CHECK_OK(oar_all_reduce(g, oar_span_of(&loss, 1, OAR_F32), OAR_AVG,
                                NULL, NULL));
        CHECK(loss < last);
        last = loss;
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    CHECK(!oar_shards_used(oar_fsdp_shards(net), 4)); /* layer 2's weight */
    CHECK(oar_shards_used(oar_fsdp_shards(net), 2));
    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), &stats));
    CHECK(stats.passes == 5);
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void parameters_of_any_size_train_in_any_number(void **state)
{
    oar_hold hold = OAR_HOLD_OWN;

    ranks_all(2, odd_layers, &hold);
    ranks_all(3, odd_layers, &hold);
    hold = OAR_HOLD_AUTO;
    ranks_all(2, odd_layers, &hold);
}

/* The wrapper passes on what a module is asked; buffers are rank 0's. */
static oar_status delegates(oar_group *g, void *arg)
{
    oar_module *net;
    double mean[3];
    char name[40];

    CHECK_OK(oar_batch_norm_create(1, 3, NULL, &net));
    CHECK_OK(oar_tensor_fill(oar_module_buffer(net, 0), oar_group_rank(g) + 7));
    CHECK_OK(oar_fsdp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tensor_read(oar_module_buffer(net, 0), OAR_F64, mean));
    CHECK(mean[0] == 7 && mean[2] == 7);
    oar_module_train(net, 0);
    CHECK(!oar_module_training(oar_module_child(net, 0)));
    CHECK(oar_module_params(net) == 2 && oar_module_buffers(net) == 3);
    CHECK_OK(oar_module_param_name(net, 0, name, sizeof name));
    CHECK(strcmp(name, "module.weight") == 0);
    CHECK(oar_fsdp_param_index(net, 0) == 0);
    CHECK(oar_fsdp_param_index(net, 2) == -1);
    oar_module_release(net);
    return OAR_OK;
}

static void a_wrapper_is_the_module_it_wraps(void **state)
{
    ranks_all(2, delegates, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_on_one_rank),
        cmocka_unit_test(forward_is_that_of_the_whole_and_leaves_the_shards),
        cmocka_unit_test(gradients_become_their_mean),
        cmocka_unit_test(changed_shards_reach_all_ranks),
        cmocka_unit_test(an_optimizer_goes_on_from_step_to_step),
        cmocka_unit_test(the_mean_is_over_rows_and_columns),
        cmocka_unit_test(rows_of_different_sizes_are_refused),
        cmocka_unit_test(parameters_of_any_size_train_in_any_number),
        cmocka_unit_test(a_wrapper_is_the_module_it_wraps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
