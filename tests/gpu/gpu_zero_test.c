/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO on GPUs: parameters, gradients and the optimizer's state are spread over
 * the ranks as on the cpu. All ranks have the same bits, the same in every run,
 * close to what the cpu trains, and the host does not wait in a step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { IN = 6, HIDDEN = 19, OUT = 5, ROWS = 4, STEPS = 10, MOST = 1024 };

typedef struct zero_case {
    const char *backend;
    oar_zero_stage stage;
    oar_dtype dtype; /* of the parameters */
    int weighted, accumulate;
    double tolerance;
} zero_case;

typedef struct zero_training {
    const zero_case *of;
    oar_group *group;
    oar_device device;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x, *y;
} zero_training;

/* Ranks begin with different numbers; rank 0's count. */
static oar_status make_net(const zero_training *t, oar_module **net)
{
    uint64_t seed = 3 + 100 * (uint64_t)oar_group_rank(t->group);
    oar_module *layer[3] = { 0 };

    TRY(oar_linear_create(IN, HIDDEN, seed, NULL, &layer[0]));
    TRY(oar_relu_create(&layer[1]));
    TRY(oar_linear_create(HIDDEN, OUT, seed + 9, NULL, &layer[2]));
    TRY(oar_sequential_create(3, layer, net));
    if (t->of->dtype != OAR_F32)
        TRY(oar_module_cast(*net, t->of->dtype, 0));
    return t->device.kind == OAR_CUDA ? oar_module_to(*net, t->device) : OAR_OK;
}

static oar_status write_batch(const zero_training *t, int number)
{
    double x[ROWS * IN], y[ROWS];

    number = number * 4 + oar_group_rank(t->group);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = sin(number * 7.0 + i * 1.3);
    for (int i = 0; i < ROWS; i++)
        y[i] = (number * 3 + i * 2) % OUT;
    TRY(oar_tensor_write(t->x, OAR_F64, x));
    return oar_tensor_write(t->y, OAR_F64, y);
}

static oar_status open_training(zero_training *t)
{
    oar_tensor *const *param;
    int params;

    t->x = oar_empty_on(NULL, t->device, t->of->dtype, OAR_SHAPE(ROWS, IN));
    t->y = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS));
    TRY(make_net(t, &t->net));
    TRY(oar_fsdp_wrap(t->net, t->group,
                      OAR_OPTS(oar_fsdp_opts, .stage = t->of->stage,
                               .hold = OAR_HOLD_OWN,
                               .weighted = t->of->weighted),
                      &t->net));
    param = oar_fsdp_params(t->net, &params);
    TRY(oar_adamw_create_over(
        params, param, OAR_OPTS(oar_adam_opts, .lr = 0.01, .master_weights = 1),
        &t->optim));
    return oar_tape_create(&t->tape);
}

static void close_training(zero_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
}

static oar_status run_step(zero_training *t)
{
    oar_optim_zero_grad(t->optim);
    for (int i = 0; i < t->of->accumulate; i++) {
        oar_tape_reset(t->tape);
        TRY(oar_backward(
            t->tape, oar_cross_entropy(
                         t->tape, oar_forward(t->tape, t->net, t->x), t->y)));
    }
    return oar_optim_step(t->optim);
}

static oar_status read_params(zero_training *t, double *out, int *count)
{
    oar_module *inner = oar_module_child(t->net, 0);
    char name[128];

    *count = 0;
    for (int i = 0; i < oar_module_params(inner); i++) {
        TRY(oar_module_param_name(inner, i, name, sizeof name));
        TRY(oar_fsdp_read_param(t->net, name, OAR_F64, out + *count));
        *count += (int)oar_tensor_count(oar_module_param(inner, i));
    }
    return OAR_OK;
}

static oar_status train(const zero_case *of, oar_group *group,
                        oar_device device, double *result, int *count,
                        long *waits)
{
    zero_training t = { .of = of, .group = group, .device = device };
    oar_status status = open_training(&t);

    for (int s = 0; s < STEPS && status == OAR_OK; s++) {
        long before;

        status = write_batch(&t, s);
        if (status == OAR_OK && of->weighted)
            status = oar_shards_weigh(oar_fsdp_shards(t.net),
                                      1 + oar_group_rank(group) + s);
        before = gpu_host_waits();
        if (status == OAR_OK)
            status = run_step(&t);
        *waits +=
            s > 1 ? gpu_host_waits() - before : 0; /* products are tuned */
    }
    if (status == OAR_OK)
        status = read_params(&t, result, count);
    close_training(&t);
    return status;
}

static int train_rank(test_job *c, int rank, void *arg)
{
    static double cpu[MOST], first[MOST], second[MOST];
    const zero_case *of = arg;
    oar_group *group;
    oar_device device;
    long waits = 0, ignored = 0;
    int n = 0;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &device, &group));
    RANK_OK(train(of, group, oar_device_of(OAR_CPU, 0), cpu, &n, &ignored));
    RANK_OK(train(of, group, device, first, &n, &waits));
    RANK_CHECK(waits == 0);
    RANK_OK(train(of, group, device, second, &n, &ignored));
    RANK_CHECK(memcmp(first, second, (size_t)n * sizeof *first) == 0);
    RANK_CHECK(gpu_same_on_all(group, first, n));
    for (int i = 0; i < n; i++) {
        if (!(fabs(cpu[i] - first[i]) <= of->tolerance))
            fprintf(stderr, "number %d: %.7f on the cpu, %.7f there\n", i,
                    cpu[i], first[i]);
        RANK_CHECK(fabs(cpu[i] - first[i]) <= of->tolerance);
    }
    oar_group_destroy(group);
    return 0;
}

static void run_case(int ranks, const zero_case *of)
{
    zero_case copy = *of;
    test_job c;

    if (copy.accumulate == 0)
        copy.accumulate = 1;
    if (strcmp(of->backend, "nccl") == 0)
        gpu_ranks_need(ranks);
    test_job_start(&c, ranks, train_rank, &copy,
                   "%d ranks over %s, stage %d, weighted %d, accumulate %d",
                   ranks, of->backend, (int)of->stage, of->weighted,
                   of->accumulate);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void state_is_spread_over_ipc(void **state)
{
    run_case(2, &(zero_case){ .backend = "ipc",
                              .stage = OAR_ZERO_STAGE_1,
                              .tolerance = 1e-5 });
    run_case(3, &(zero_case){ .backend = "ipc",
                              .stage = OAR_ZERO_STAGE_1,
                              .weighted = 1,
                              .accumulate = 2,
                              .tolerance = 1e-5 });
    run_case(2, &(zero_case){ .backend = "ipc",
                              .stage = OAR_ZERO_STAGE_1,
                              .dtype = OAR_BF16,
                              .tolerance = 0.02 });
}

static void state_is_spread_over_nccl(void **state)
{
    run_case(2, &(zero_case){ .backend = "nccl",
                              .stage = OAR_ZERO_STAGE_1,
                              .accumulate = 2,
                              .tolerance = 1e-5 });
    run_case(3, &(zero_case){ .backend = "nccl",
                              .stage = OAR_ZERO_STAGE_1,
                              .weighted = 1,
                              .tolerance = 1e-5 });
}

static void gradients_and_parameters_are_spread_too(void **state)
{
    run_case(2, &(zero_case){ .backend = "ipc",
                              .stage = OAR_ZERO_STAGE_2,
                              .tolerance = 1e-5 });
    run_case(2, &(zero_case){ .backend = "ipc",
                              .stage = OAR_ZERO_STAGE_3,
                              .tolerance = 1e-5 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_is_spread_over_ipc),
        cmocka_unit_test(state_is_spread_over_nccl),
        cmocka_unit_test(gradients_and_parameters_are_spread_too),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_zero", tests, NULL, NULL);
}
