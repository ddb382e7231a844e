/* SPDX-License-Identifier: Apache-2.0 */
/* A batch norm over ranks that have a GPU each, and batches of other sizes: the
 * results, the gradients and the running statistics of one batch on the cpu. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"

enum { RANKS = 3, CHANNELS = 5, IMAGE = CHANNELS * 4, IMAGES = 6, ALL = 256 };

typedef struct norm_outcome {
    double y[ALL], dx[ALL], mean[CHANNELS], var[CHANNELS];
} norm_outcome;

/* Images first .. first + count - 1 of the batch through a batch norm. */
static oar_status run(oar_module *norm, oar_device device, int64_t first,
                      int64_t count, norm_outcome *o)
{
    oar_tensor *all[2], *part[2], *y;
    oar_tape *tape;

    if (oar_tape_create(&tape) != OAR_OK)
        return oar_last_error()->status;
    for (int i = 0; i < 2; i++) {
        all[i] = oar_normal(tape, OAR_F32, OAR_SHAPE(IMAGES, CHANNELS, 2, 2),
                            11 + (uint64_t)i, 1, 2);
        all[i] =
            oar_contiguous(tape, oar_narrow(tape, all[i], 0, first, count));
        part[i] = oar_to(NULL, all[i], device);
    }
    if (oar_tensor_require_grad(part[0], 1) != OAR_OK ||
        (y = oar_forward(tape, norm, part[0])) == NULL ||
        oar_backward_from(tape, 1, &y, &part[1]) != OAR_OK ||
        oar_tensor_read(y, OAR_F64, o->y) != OAR_OK ||
        oar_tensor_read(oar_tensor_grad(part[0]), OAR_F64, o->dx) != OAR_OK ||
        oar_tensor_read(oar_module_buffer(norm, 0), OAR_F64, o->mean) !=
            OAR_OK ||
        oar_tensor_read(oar_module_buffer(norm, 1), OAR_F64, o->var) != OAR_OK)
        return oar_last_error()->status;
    oar_tape_destroy(tape);
    oar_tensor_release(part[0]);
    oar_tensor_release(part[1]);
    return OAR_OK;
}

static int are_near(const char *what, const double *a, const double *b,
                    int64_t count, double tolerance)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i])))) {
            fprintf(stderr, "%s %ld: %.9g, on the cpu %.9g\n", what, (long)i,
                    a[i], b[i]);
            return 0;
        }
    return 1;
}

/* Ranks that ipc joins may share a GPU, and where there is one they do. */
static oar_device device_of(const char *backend, int rank)
{
    int shared = strcmp(backend, "ipc") == 0 && gpu_ranks_max() < RANKS;

    return gpu_of_rank(shared ? 0 : rank);
}

/* Rank r has r + 1 images. */
static int normalises(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    int64_t first = rank * (rank + 1) / 2, count = rank + 1;
    static norm_outcome here, there;
    oar_device device = device_of(arg, rank);
    oar_module *one, *sync;
    oar_group *group;

    o.backend = arg;
    o.device = &device;
    RANK_OK(oar_device_set_current(device));
    RANK_OK(gpu_ranks_join(c, rank, &o, &group));
    RANK_OK(oar_batch_norm_create(2, CHANNELS, NULL, &one));
    RANK_OK(oar_sync_batch_norm_create(2, CHANNELS, group, NULL, &sync));
    RANK_OK(oar_module_to(sync, device));
    RANK_OK(run(one, oar_device_of(OAR_CPU, 0), 0, IMAGES, &here));
    RANK_OK(run(sync, device, first, count, &there));
    RANK_CHECK(are_near("result", there.y, here.y + first * IMAGE,
                        count * IMAGE, 1e-5));
    RANK_CHECK(are_near("gradient", there.dx, here.dx + first * IMAGE,
                        count * IMAGE, 1e-5));
    RANK_CHECK(are_near("mean", there.mean, here.mean, CHANNELS, 1e-5));
    RANK_CHECK(are_near("variance", there.var, here.var, CHANNELS, 1e-5));
    oar_module_release(one);
    oar_module_release(sync);
    oar_group_destroy(group);
    return 0;
}

/* ---- training ------------------------------------------------------------ */

enum { WIDE = 5, ROWS = 4, MOST = 256, STEPS = 7, WARM = 2 };

typedef struct norm_case {
    const char *backend;
    oar_dtype dtype;  /* but of the norm, which stays f32 */
    int uneven;       /* rank r has STEPS - r batches */
    int buffers;      /* those of a rank with input go to all */
    double tolerance; /* to what the cpu has */
} norm_case;

typedef struct norm_training {
    const norm_case *of;
    oar_group *group;
    oar_device device;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x, *y;
    oar_replay *replay; /* or NULL */
} norm_training;

static oar_status make_net(norm_training *t)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *layer[4];

    if (oar_linear_create(WIDE, 4, 5, NULL, &layer[0]) != OAR_OK ||
        oar_batch_norm_create(1, 4, NULL, &layer[1]) != OAR_OK ||
        oar_relu_create(&layer[2]) != OAR_OK ||
        oar_linear_create(4, 3, 9, NULL, &layer[3]) != OAR_OK ||
        oar_sequential_create(4, layer, &t->net) != OAR_OK ||
        oar_sync_batch_norm_convert(t->net, t->group, NULL) != OAR_OK ||
        oar_module_cast(t->net, t->of->dtype, 0) != OAR_OK ||
        oar_module_to(t->net, t->device) != OAR_OK)
        return oar_last_error()->status;
    o.weighted = 1;
    o.broadcast_buffers = t->of->buffers;
    return oar_ddp_wrap(t->net, t->group, &o, &t->net);
}

static oar_status run_step(void *arg)
{
    const norm_training *t = arg;
    oar_tensor *loss;

    oar_optim_zero_grad(t->optim);
    oar_tape_reset(t->tape);
    loss = oar_cross_entropy(t->tape, oar_forward(t->tape, t->net, t->x), t->y);
    if (oar_backward(t->tape, loss) != OAR_OK)
        return oar_last_error()->status;
    return oar_optim_step(t->optim);
}

static oar_status open_training(norm_training *t, int replayed)
{
    t->x = oar_empty_on(NULL, t->device, t->of->dtype, OAR_SHAPE(ROWS, WIDE));
    t->y = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS));
    if (t->x == NULL || t->y == NULL || make_net(t) != OAR_OK ||
        oar_sgd_create(t->net,
                       OAR_OPTS(oar_sgd_opts, .lr = 0.1, .master_weights = 1),
                       &t->optim) != OAR_OK ||
        oar_tape_create(&t->tape) != OAR_OK)
        return oar_last_error()->status;
    return !replayed ? OAR_OK
                     : oar_replay_create(
                           t->device, run_step, t,
                           OAR_OPTS(oar_replay_opts, .warm = WARM, .strict = 1),
                           &t->replay);
}

static void close_training(norm_training *t)
{
    oar_replay_destroy(t->replay);
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
}

/* Every rank and step has other rows and another weight. */
static oar_status begin_step(norm_training *t, int step)
{
    int number = 10 * step + oar_group_rank(t->group);
    double x[ROWS * WIDE], y[ROWS];

    for (int i = 0; i < ROWS * WIDE; i++)
        x[i] = sin(number * 7.0 + i * 1.3);
    for (int i = 0; i < ROWS; i++)
        y[i] = (number + 2 * i) % 3;
    if (oar_tensor_write(t->x, OAR_F64, x) != OAR_OK ||
        oar_tensor_write(t->y, OAR_F64, y) != OAR_OK)
        return oar_last_error()->status;
    return oar_ddp_weigh(t->net, 1 + (number * 5) % 4);
}

static oar_status take_steps(norm_training *t)
{
    int last = STEPS - (t->of->uneven ? oar_group_rank(t->group) : 0);
    int active = oar_group_size(t->group);
    oar_status status = OAR_OK;

    for (int step = 0; status == OAR_OK; step++) {
        int has = step < last;

        if (!has)
            oar_optim_zero_grad(t->optim); /* run_step does it else */
        if (t->of->uneven)
            status = oar_ddp_join(t->net, has, &active);
        if (status != OAR_OK || active == 0 || (!has && !t->of->uneven))
            break;
        if (has)
            status = begin_step(t, step);
        if (status == OAR_OK)
            status = !has                ? oar_optim_step(t->optim)
                     : t->replay != NULL ? oar_replay_run(t->replay)
                                         : run_step(t);
    }
    return status;
}

/* Gives parameters and running statistics. */
static oar_status train(const norm_case *of, oar_group *group,
                        oar_device device, int replayed, double *state,
                        int *count)
{
    norm_training t = { .of = of, .group = group, .device = device };
    oar_status status = open_training(&t, replayed);

    if (status == OAR_OK)
        status = take_steps(&t);
    *count = 0;
    for (int i = 0; i < oar_module_params(t.net) + oar_module_buffers(t.net);
         i++) {
        int params = oar_module_params(t.net);
        oar_tensor *at = i < params ? oar_module_param(t.net, i)
                                    : oar_module_buffer(t.net, i - params);

        if (status == OAR_OK)
            status = oar_tensor_read(at, OAR_F64, state + *count);
        *count += (int)oar_tensor_count(at);
    }
    if (status == OAR_OK && replayed && oar_replay_graphs(t.replay) < 4)
        status = OAR_E_INTERNAL;
    close_training(&t);
    return status;
}

static int trains(test_job *c, int rank, void *arg)
{
    static double cpu[MOST], first[MOST], second[MOST];
    const norm_case *of = arg;
    oar_group *group;
    oar_device device;
    int n = 0;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &device, &group));
    RANK_OK(train(of, group, oar_device_of(OAR_CPU, 0), 0, cpu, &n));
    RANK_OK(train(of, group, device, 0, first, &n));
    RANK_OK(train(of, group, device, 1, second, &n));
    RANK_CHECK(memcmp(first, second, (size_t)n * sizeof *first) == 0);
    RANK_CHECK(gpu_same_on_all(group, first, n));
    RANK_CHECK(are_near("number", first, cpu, n, of->tolerance));
    oar_group_destroy(group);
    return 0;
}

static void run_job(const char *backend, int ranks, test_job_fn fn, void *arg)
{
    test_job c;

    if (strcmp(backend, "ipc") != 0)
        gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, arg, "syncbn %s, %d ranks", backend, ranks);
    for (int rank = 0; rank < ranks; rank++)
        test_job_expect(&c, rank, 0);
    test_job_end(&c);
}

static void run_case(int ranks, norm_case of)
{
    run_job(of.backend, ranks, trains, &of);
}

static void statistics_are_those_of_all_ranks_over_nccl(void **state)
{
    char backend[] = "nccl";

    run_job(backend, RANKS, normalises, backend);
}

static void statistics_are_those_of_all_ranks_over_ipc(void **state)
{
    char backend[] = "ipc";

    run_job(backend, RANKS, normalises, backend);
}

static void replays_have_the_bits_of_steps(void **state)
{
    run_case(2, (norm_case){ .backend = "ipc", .tolerance = 1e-5 });
    run_case(2, (norm_case){
                    .backend = "ipc", .dtype = OAR_BF16, .tolerance = 5e-2 });
    run_case(2, (norm_case){ .backend = "nccl", .tolerance = 1e-5 });
    run_case(2, (norm_case){
                    .backend = "nccl", .dtype = OAR_BF16, .tolerance = 5e-2 });
}

/* They are as without a replay, whether the ranks with input replay or not. */
static void ranks_without_input_take_part(void **state)
{
    run_case(2,
             (norm_case){ .backend = "ipc", .uneven = 1, .tolerance = 1e-5 });
    run_case(3, (norm_case){ .backend = "ipc",
                             .uneven = 1,
                             .buffers = 1,
                             .tolerance = 1e-5 });
    run_case(2, (norm_case){ .backend = "nccl",
                             .dtype = OAR_BF16,
                             .uneven = 1,
                             .tolerance = 5e-2 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_those_of_all_ranks_over_nccl),
        cmocka_unit_test(statistics_are_those_of_all_ranks_over_ipc),
        cmocka_unit_test(replays_have_the_bits_of_steps),
        cmocka_unit_test(ranks_without_input_take_part),
    };

    setenv("STANDIN_DELAY_US", "20", 0);
    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
