/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel training on GPUs: all ranks have the same bits, the same in
 * every run, close to what the cpu trains; the host does not wait in a step;
 * steps that are replayed have the bits of those that are not. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"
#include "support/last_error.h"

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { IN = 6, HIDDEN = 19, OUT = 5, ROWS = 4, STEPS = 10, MOST = 8192 };
enum { STREAM_KEEPS = 32 << 20 };            /* that of replays, for products */
enum { SIDE = 6, PIXELS = 2 * SIDE * SIDE }; /* of the CNN */
enum { VOCABULARY = 17, CONTEXT = 4, WIDTH = 16, FAULT_AT = 4 };

typedef struct ddp_case {
    const char *backend;
    int gpt, cnn;
    oar_dtype dtype; /* of the parameters */
    int weighted;    /* 2: by the same weights in all steps */
    int accumulate;
    enum { WHOLE, HALVES, POWER_SGD } travel;
    int scaled;   /* by a scaler, whose first steps are skipped */
    int replayed; /* in the second run on the GPU */
    double tolerance;
} ddp_case;

/* What one rank trains. */
typedef struct ddp_training {
    const ddp_case *of;
    oar_group *group;
    oar_device device;
    oar_module *net;
    oar_optim *optim;
    oar_scaler *scaler; /* or NULL */
    oar_tape *tape;
    oar_tensor *x, *y;
    int replica_checks; /* of which each waits in a later step */
} ddp_training;

/* ---- models and data ----------------------------------------------------- */

static oar_status make_mlp(uint64_t seed, oar_module **mlp)
{
    oar_module *layer[3] = { 0 };

    TRY(oar_linear_create(IN, HIDDEN, seed, NULL, &layer[0]));
    TRY(oar_relu_create(&layer[1]));
    TRY(oar_linear_create(HIDDEN, OUT, seed + 9, NULL, &layer[2]));
    return oar_sequential_create(3, layer, mlp);
}

static oar_status make_net(const ddp_training *t, oar_module **net)
{
    uint64_t seed = 3 + 100 * (uint64_t)oar_group_rank(t->group);
    oar_status status =
        t->of->cnn ? oar_cnn_create(OAR_OPTS(oar_cnn_opts, .channels = 2,
                                             .image = SIDE, .classes = OUT,
                                             .width = 4, .seed = seed),
                                    net)
        : t->of->gpt
            ? oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = VOCABULARY,
                                      .context = CONTEXT, .width = WIDTH,
                                      .layers = 1, .heads = 2, .seed = seed),
                             net)
            : make_mlp(seed, net);

    if (status == OAR_OK && t->of->dtype != OAR_F32)
        status = oar_module_cast(*net, t->of->dtype, 0);
    if (status == OAR_OK && t->device.kind == OAR_CUDA)
        status = oar_module_to(*net, t->device);
    return status;
}

/* Every rank and step has other rows. */
static oar_status write_batch(const ddp_training *t, int step)
{
    int number = step * 4 + oar_group_rank(t->group);
    double x[ROWS * PIXELS], y[ROWS * CONTEXT];
    int kinds = t->of->gpt ? VOCABULARY : OUT;

    for (int i = 0; i < ROWS * PIXELS; i++)
        x[i] = t->of->gpt ? (number * 7 + i * 5) % VOCABULARY
                          : sin(number * 7.0 + i * 1.3);
    for (int i = 0; i < ROWS * CONTEXT; i++)
        y[i] = (number * 3 + i * 2) % kinds;
    if (oar_tensor_write(t->x, OAR_F64, x) != OAR_OK)
        return oar_last_error()->status;
    return oar_tensor_write(t->y, OAR_F64, y);
}

static oar_status make_batch(ddp_training *t)
{
    int gpt = t->of->gpt;

    t->x =
        gpt ? oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS, CONTEXT))
            : oar_empty_on(NULL, t->device, t->of->dtype,
                           t->of->cnn ? OAR_SHAPE(ROWS, 2, SIDE, SIDE)
                                      : OAR_SHAPE(ROWS, IN));
    t->y = oar_empty_on(NULL, t->device, OAR_I64,
                        OAR_SHAPE(gpt ? ROWS * CONTEXT : ROWS));
    return t->x != NULL && t->y != NULL ? OAR_OK : oar_last_error()->status;
}

/* ---- training ------------------------------------------------------------ */

static oar_status open_training(ddp_training *t)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();

    o.weighted = t->of->weighted;
    o.accumulate = t->of->accumulate;
    o.bucket_bytes = 1024; /* several */
    o.first_bucket_bytes = 256;
    o.check_every = t->replica_checks ? 2 : -1;
    TRY(make_batch(t));
    TRY(make_net(t, &t->net));
    if (t->of->travel == HALVES)
        TRY(oar_hook_half(OAR_BF16, &hook));
    if (t->of->travel == POWER_SGD) /* the first pass is whole */
        TRY(oar_hook_power_sgd_for(
            t->net,
            OAR_OPTS(oar_power_sgd_opts, .rank = 2, .start = 1, .least = 1),
            &hook));
    o.hook = t->of->travel != WHOLE ? &hook : NULL;
    TRY(oar_ddp_wrap(t->net, t->group, &o, &t->net));
    if (t->of->gpt || t->of->cnn) /* Adam makes steps of what is rounding */
        TRY(oar_sgd_create(
            t->net, OAR_OPTS(oar_sgd_opts, .lr = 0.1, .master_weights = 1),
            &t->optim));
    else
        TRY(oar_adamw_create(
            t->net, OAR_OPTS(oar_adam_opts, .lr = 0.01, .master_weights = 1),
            &t->optim));
    if (t->of->scaled)
        TRY(oar_scaler_create(
            OAR_OPTS(oar_scaler_opts, .scale = 1 << 18, .interval = 3),
            &t->scaler));
    return oar_tape_create(&t->tape);
}

static void close_training(ddp_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_scaler_destroy(t->scaler);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
}

static oar_status run_step(void *arg)
{
    ddp_training *t = arg;

    oar_optim_zero_grad(t->optim);
    for (int i = 0; i < (t->of->accumulate > 1 ? t->of->accumulate : 1); i++) {
        oar_tensor *loss;

        oar_tape_reset(t->tape);
        loss = oar_cross_entropy(t->tape, oar_forward(t->tape, t->net, t->x),
                                 t->y);
        if (t->scaler != NULL)
            loss = oar_scaler_loss(t->tape, t->scaler, loss);
        TRY(oar_backward(t->tape, loss));
    }
    return oar_optim_step_with(
        t->optim, OAR_OPTS(oar_step_opts, .clip = 1, .scaler = t->scaler));
}

static oar_status take_steps(ddp_training *t, oar_replay *replay, long *waits)
{
    for (int s = 0; s < STEPS; s++) {
        long before;

        TRY(write_batch(t, s));
        if (s == 4)
            TRY(oar_optim_set_lr(t->optim, 0.003));
        if (t->of->weighted)
            TRY(oar_ddp_weigh(t->net, 1 + oar_group_rank(t->group) +
                                          (t->of->weighted == 1 ? s : 0)));
        before = gpu_host_waits();
        TRY(replay != NULL ? oar_replay_run(replay) : run_step(t));
        *waits +=
            s > 1 ? gpu_host_waits() - before : 0; /* products are tuned */
    }
    return OAR_OK;
}

/* All parameters in a row; *count: how many. */
static oar_status read_params(const oar_module *net, double *out, int *count)
{
    *count = 0;
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *p = oar_module_param(net, i);

        if (*count + oar_tensor_count(p) > MOST)
            return OAR_E_SIZE;
        TRY(oar_tensor_read(p, OAR_F64, out + *count));
        *count += (int)oar_tensor_count(p);
    }
    return OAR_OK;
}

static oar_status train(const ddp_case *of, oar_group *group, oar_device device,
                        int replayed, double *result, int *count, long *waits)
{
    ddp_training t = {
        .of = of, .group = group, .device = device, .replica_checks = replayed
    };
    oar_replay *replay = NULL;
    oar_status status = open_training(&t);

    if (status == OAR_OK && replayed)
        status = oar_replay_create(
            device, run_step, &t,
            OAR_OPTS(oar_replay_opts, .warm = 2, .strict = 1), &replay);
    if (status == OAR_OK)
        status = take_steps(&t, replay, waits);
    if (status == OAR_OK && replayed && oar_replay_graphs(replay) < 3)
        status = OAR_E_INTERNAL;
    if (status == OAR_OK)
        status = read_params(t.net, result, count);
    if (status == OAR_OK && of->scaled) { /* behind the parameters */
        result[*count] = oar_scaler_scale(t.scaler);
        result[*count + 1] = (double)oar_optim_steps(t.optim);
        *count += 2;
    }
    if (status == OAR_OK)
        status = oar_ddp_check_replicas(t.net);
    oar_replay_destroy(replay);
    close_training(&t);
    return status;
}

static int train_rank(test_job *c, int rank, void *arg)
{
    static double cpu[MOST], first[MOST], second[MOST];
    const ddp_case *of = arg;
    oar_group *group;
    oar_device device;
    long waits = 0, ignored = 0;
    int n = 0;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &device, &group));
    RANK_OK(train(of, group, oar_device_of(OAR_CPU, 0), 0, cpu, &n, &ignored));
    RANK_OK(train(of, group, device, 0, first, &n, &waits));
    RANK_CHECK(waits == 0);
    RANK_OK(train(of, group, device, of->replayed, second, &n, &ignored));
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

static void run_case(int ranks, const ddp_case *of, test_job_fn fn)
{
    ddp_case copy = *of;
    test_job c;

    if (strcmp(of->backend, "nccl") == 0)
        gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, &copy,
                   "%d ranks over %s, gpt %d, cnn %d, %s, weighted %d, "
                   "accumulate %d, travel %d, replayed %d",
                   ranks, of->backend, of->gpt, of->cnn,
                   oar_dtype_name(of->dtype), of->weighted, of->accumulate,
                   (int)of->travel, of->replayed);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void mlp_over_ipc(void **state)
{
    run_case(3,
             &(ddp_case){ .backend = "ipc", .weighted = 1, .tolerance = 1e-5 },
             train_rank);
    for (int ranks = 4; gpu_ranks_are_real() && ranks <= 8; ranks += 4)
        run_case(
            ranks,
            &(ddp_case){ .backend = "ipc", .replayed = 1, .tolerance = 1e-5 },
            train_rank);
}

static void one_rank_over_nccl(void **state)
{
    run_case(1,
             &(ddp_case){ .backend = "nccl",
                          .weighted = 1,
                          .replayed = 1,
                          .tolerance = 1e-5 },
             train_rank);
}

static void mlp_over_nccl(void **state)
{
    run_case(2,
             &(ddp_case){ .backend = "nccl",
                          .accumulate = 2,
                          .replayed = 1,
                          .tolerance = 1e-5 },
             train_rank);
    run_case(3,
             &(ddp_case){ .backend = "nccl", .weighted = 1, .tolerance = 1e-5 },
             train_rank);
}

static void gradients_travel_as_halves(void **state)
{
    run_case(
        2, &(ddp_case){ .backend = "ipc", .travel = HALVES, .tolerance = 1e-3 },
        train_rank);
}

static void gradients_travel_as_thin_matrices(void **state)
{
    run_case(2,
             &(ddp_case){ .backend = "ipc",
                          .travel = POWER_SGD,
                          .replayed = 1,
                          .tolerance = 1e-4 },
             train_rank);
    run_case(3,
             &(ddp_case){ .backend = "ipc",
                          .travel = POWER_SGD,
                          .weighted = 1,
                          .tolerance = 1e-4 },
             train_rank);
    run_case(2,
             &(ddp_case){ .backend = "ipc",
                          .travel = POWER_SGD,
                          .gpt = 1,
                          .accumulate = 2,
                          .tolerance = 1e-3 },
             train_rank);
}

/* Gradients are scaled before, instead of a weighted mean: what is lost keeps
 * the weight of its pass, so that only equal weights give what the cpu has. */
static void thin_matrices_over_nccl(void **state)
{
    run_case(2,
             &(ddp_case){ .backend = "nccl",
                          .travel = POWER_SGD,
                          .weighted = 2,
                          .replayed = 1,
                          .tolerance = 1e-4 },
             train_rank);
}

/* 2^18 does not fit an f16: the first three steps or so are skipped, and the
 * scale is doubled later, both as on the cpu. */
static void a_scaler_needs_no_host(void **state)
{
    run_case(1,
             &(ddp_case){ .backend = "ipc",
                          .dtype = OAR_F16,
                          .scaled = 1,
                          .replayed = 1,
                          .tolerance = 5e-3 },
             train_rank);
}

/* Every model, in f32 and in bf16 with master weights, with and without a
 * replay. */
static void train_models(const char *backend)
{
    enum { MLP, CNN, GPT, MODELS };
    static const double tolerance[MODELS][2] = {
        [MLP] = { 1e-5, 5e-2 }, [CNN] = { 1e-3, 0.2 }, [GPT] = { 1e-3, 5e-2 }
    };

    for (int model = 0; model < MODELS; model++)
        for (int half = 0; half < 2; half++)
            run_case(2,
                     &(ddp_case){ .backend = backend,
                                  .cnn = model == CNN,
                                  .gpt = model == GPT,
                                  .dtype = half ? OAR_BF16 : OAR_F32,
                                  .replayed = 1,
                                  .tolerance = tolerance[model][half] },
                     train_rank);
}

static void models_train_over_ipc(void **state)
{
    train_models("ipc");
}

static void models_train_over_nccl(void **state)
{
    train_models("nccl");
}

static void halves_with_masters(void **state)
{
    run_case(2,
             &(ddp_case){ .backend = "ipc",
                          .dtype = OAR_BF16,
                          .replayed = 1,
                          .weighted = 1,
                          .tolerance = 5e-2 },
             train_rank);
}

/* ---- arrays of one's own ------------------------------------------------- */

static int first_is(oar_device gpu, oar_span span, float expected)
{
    float got = -1;

    return oar_device_copy(&got, oar_device_of(OAR_CPU, 0), span.data, gpu,
                           sizeof got, oar_stream_current(gpu)) == OAR_OK &&
           got == expected;
}

/* Array 0 is the caller's; 1 gets ready on rank 0 only, 2 on no rank. */
static int reduce_own_arrays(test_job *c, int rank, void *arg)
{
    enum { COUNT = 100 };
    oar_span array[3];
    oar_reducer *r = NULL;
    oar_group *group;
    oar_device gpu;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &gpu, &group));
    for (int i = 0; i < 3; i++) {
        array[i] = oar_span_of(NULL, COUNT, OAR_F32);
        array[i].device = gpu;
    }
    array[0].data = gpu_put(0, NULL, COUNT * sizeof(float));
    array[2].device.kind = OAR_CPU;
    RANK_CHECK(fails_with(oar_reducer_create(group, 3, array, NULL, &r),
                          OAR_E_DEVICE, "all on one device"));
    array[2].device = gpu;
    RANK_OK(oar_reducer_create(group, 3, array, NULL, &r));
    for (int pass = 0; pass < 3; pass++) {
        RANK_OK(oar_device_fill(array[0], 2 + rank * 4 + pass, NULL));
        RANK_OK(oar_device_fill(oar_reducer_span(r, 1), 6, NULL));
        RANK_OK(oar_reducer_ready(r, 0));
        if (rank == 0)
            RANK_OK(oar_reducer_ready(r, 1));
        RANK_OK(oar_reducer_wait(r));
        RANK_CHECK(first_is(gpu, array[0], (float)(4 + pass)));
        RANK_CHECK(first_is(gpu, oar_reducer_span(r, 1), 3));
        RANK_CHECK(oar_reducer_used(r, 1) && !oar_reducer_used(r, 2));
    }
    oar_reducer_destroy(r);
    gpu_free(0, array[0].data);
    oar_group_destroy(group);
    return 0;
}

static void own_arrays_are_averaged(void **state)
{
    run_case(2, &(ddp_case){ .backend = "ipc" }, reduce_own_arrays);
}

/* ---- what goes wrong ----------------------------------------------------- */

static oar_status die_in_backward(oar_tensor *leaf, void *arg)
{
    raise(SIGKILL);
    return OAR_OK;
}

/* The last rank dies when a gradient of its fifth step is there. */
static int lose_last_rank(test_job *c, int rank, void *arg)
{
    const ddp_case *of = arg;
    ddp_training t = { .of = of };
    oar_replay *replay = NULL;
    oar_status status = OAR_OK;
    size_t before;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &t.device, &t.group));
    before = gpu_used_bytes(t.device);
    RANK_OK(open_training(&t));
    if (of->replayed)
        RANK_OK(oar_replay_create(t.device, run_step, &t,
                                  OAR_OPTS(oar_replay_opts, .warm = 2),
                                  &replay));
    for (int s = 0; s < STEPS && status == OAR_OK; s++) {
        if (s == FAULT_AT && rank == c->ranks - 1 && replay != NULL)
            raise(SIGKILL);
        if (s == FAULT_AT && rank == c->ranks - 1)
            RANK_OK(oar_tensor_on_grad(oar_module_param(t.net, 0),
                                       die_in_backward, NULL, NULL));
        RANK_OK(write_batch(&t, s));
        status = replay != NULL ? oar_replay_run(replay) : run_step(&t);
    }
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == c->ranks - 1);
    oar_replay_destroy(replay);
    close_training(&t);
    oar_group_destroy(t.group);
    before += of->replayed ? STREAM_KEEPS : 0;
    RANK_CHECK(gpu_used_bytes(t.device) == before);
    return 0;
}

static void lose_rank(int ranks, const char *backend, int replayed)
{
    ddp_case of = { .backend = backend, .replayed = replayed };
    test_job c;

    if (strcmp(backend, "nccl") == 0)
        gpu_ranks_need(ranks);
    test_job_start(&c, ranks, lose_last_rank, &of, "%d ranks lose one over %s",
                   ranks, backend);
    test_job_expect(&c, ranks - 1, 128 + SIGKILL);
    for (int r = 0; r < ranks - 1; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void a_rank_that_dies_is_named(void **state)
{
    lose_rank(3, "ipc", 0);
    lose_rank(2, "ipc", 1);
}

static void a_rank_that_dies_is_named_by_nccl(void **state)
{
    lose_rank(2, "nccl", 0);
}

static int refuse_what_is_not_there(test_job *c, int rank, void *arg)
{
    ddp_case of = { .backend = "ipc" };
    ddp_training t = { .of = &of };
    oar_tensor *hash;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &t.device, &t.group));
    RANK_OK(make_batch(&t));
    hash = oar_empty(NULL, OAR_U64, OAR_SHAPE(1));
    RANK_CHECK(fails_with(oar_tensor_hash(1, &t.x, hash), OAR_E_DEVICE,
                          "tensor_hash"));
    RANK_CHECK(fails_with(oar_tensor_hash(1, &t.x, t.x), OAR_E_ARG, "one u64"));
    oar_tensor_release(hash);
    close_training(&t);
    oar_group_destroy(t.group);
    return 0;
}

/* A parameter that only one rank changes is found and named. */
static int replicas_come_apart(test_job *c, int rank, void *arg)
{
    ddp_case of = { .backend = "ipc" };
    ddp_training t = { .of = &of, .replica_checks = 1 };
    oar_status status = OAR_OK;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &t.device, &t.group));
    RANK_OK(open_training(&t));
    RANK_OK(oar_ddp_check_replicas(t.net));
    if (rank == 1)
        RANK_OK(oar_tensor_fill(oar_module_param(t.net, 1), 7));
    RANK_CHECK(fails_with(oar_ddp_check_replicas(t.net), OAR_E_MISMATCH,
                          "of rank 1 is not what it is on rank 0"));
    for (int s = 0; s < STEPS && status == OAR_OK; s++) {
        RANK_OK(write_batch(&t, s));
        status = run_step(&t);
    }
    RANK_CHECK(fails_with(status, OAR_E_MISMATCH, "rank 1"));
    t.device = oar_device_of(OAR_CPU, 0);
    RANK_OK(oar_module_to(t.net, t.device));
    oar_tensor_release(t.x);
    oar_tensor_release(t.y);
    RANK_OK(make_batch(&t));
    RANK_OK(write_batch(&t, 0));
    RANK_CHECK(
        fails_with(run_step(&t), OAR_E_DEVICE, "when the module was wrapped"));
    close_training(&t);
    oar_group_destroy(t.group);
    return 0;
}

static void refusals_have_a_sentence(void **state)
{
    run_case(2, &(ddp_case){ .backend = "ipc" }, refuse_what_is_not_there);
    run_case(2, &(ddp_case){ .backend = "ipc" }, replicas_come_apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_over_ipc),
        cmocka_unit_test(mlp_over_nccl),
        cmocka_unit_test(gradients_travel_as_halves),
        cmocka_unit_test(gradients_travel_as_thin_matrices),
        cmocka_unit_test(thin_matrices_over_nccl),
        cmocka_unit_test(a_scaler_needs_no_host),
        cmocka_unit_test(models_train_over_ipc),
        cmocka_unit_test(models_train_over_nccl),
        cmocka_unit_test(halves_with_masters),
        cmocka_unit_test(own_arrays_are_averaged),
        cmocka_unit_test(one_rank_over_nccl),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(a_rank_that_dies_is_named_by_nccl),
        cmocka_unit_test(refusals_have_a_sentence),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_ddp", tests, NULL, NULL);
}
