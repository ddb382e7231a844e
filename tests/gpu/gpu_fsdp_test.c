/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP on GPUs, for every way of holding parameters: all ranks read the same
 * bits, the same in every run, close to what the cpu trains; memory is given
 * back; a rank that dies is named. */
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

enum { VOCABULARY = 17, CONTEXT = 4, WIDTH = 16, ROWS = 3, STEPS = 4 };
enum { MOST = 16384, FAULT_AT = 2 };

typedef struct fsdp_case {
    const char *backend;
    oar_hold hold;
    oar_zero_stage stage;
    oar_fsdp_keep keep;
    int host_state;
    int mixed; /* whole parameters are bf16 */
    int weighted;
    int accumulate; /* passes that are reduced one by one before a step */
    int no_sync;    /* a pass without communication before that of a step */
    int clipped, scaled, recomputed;
    double tolerance;
} fsdp_case;

/* What one rank trains. */
typedef struct fsdp_training {
    const fsdp_case *of;
    oar_group *group;
    oar_device device;
    oar_module *net;
    oar_optim *optim;
    oar_scaler *scaler; /* or NULL */
    oar_tape *tape;
    oar_tensor *x, *y;
} fsdp_training;

/* ---- model and data ------------------------------------------------------ */

static oar_status make_net(const fsdp_training *t, oar_module **net)
{
    uint64_t seed = 3 + 100 * (uint64_t)oar_group_rank(t->group);
    oar_status status = oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = VOCABULARY, .context = CONTEXT,
                 .width = WIDTH, .layers = 2, .heads = 2, .seed = seed,
                 .recompute = t->of->recomputed),
        net);

    if (status == OAR_OK && t->device.kind == OAR_CUDA)
        status = oar_module_to(*net, t->device);
    return status;
}

/* Every rank, step and pass has other rows. */
static oar_status write_batch(const fsdp_training *t, int number)
{
    double x[ROWS * CONTEXT], y[ROWS * CONTEXT];

    number = number * 4 + oar_group_rank(t->group);
    for (int i = 0; i < ROWS * CONTEXT; i++) {
        x[i] = (number * 7 + i * 5) % VOCABULARY;
        y[i] = (number * 3 + i * 2) % VOCABULARY;
    }
    TRY(oar_tensor_write(t->x, OAR_F64, x));
    return oar_tensor_write(t->y, OAR_F64, y);
}

/* ---- training ------------------------------------------------------------ */

static oar_status wrap_net(fsdp_training *t)
{
    const fsdp_case *of = t->of;
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_tensor *const *param;
    int count;

    o.hold = of->hold;
    o.stage = of->stage;
    o.keep = of->keep;
    o.weighted = of->weighted;
    o.host_state = of->host_state;
    o.least_bytes = 1; /* every block is a unit */
    o.mixed = of->mixed;
    o.param_dtype = OAR_BF16;
    o.reduce_dtype = o.output_dtype = OAR_F32;
    if (t->device.kind == OAR_CPU) {
        o.hold = OAR_HOLD_OWN;
        o.host_state = 0;
    }
    TRY(oar_fsdp_wrap(t->net, t->group, &o, &t->net));
    param = oar_fsdp_params(t->net, &count);
    /* Adam makes large steps of gradients that are 0 but for rounding. */
    return oar_sgd_create_over(
        count, param, OAR_OPTS(oar_sgd_opts, .lr = 0.1, .momentum = 0.9),
        &t->optim);
}

static oar_status open_training(fsdp_training *t)
{
    t->x = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS, CONTEXT));
    t->y = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS * CONTEXT));
    if (t->x == NULL || t->y == NULL)
        return oar_last_error()->status;
    TRY(make_net(t, &t->net));
    TRY(wrap_net(t));
    if (t->of->scaled)
        TRY(oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = 1024),
                              &t->scaler));
    return oar_tape_create(&t->tape);
}

static void close_training(fsdp_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_scaler_destroy(t->scaler);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
}

static oar_status run_pass(fsdp_training *t)
{
    oar_tensor *loss;

    oar_tape_reset(t->tape);
    loss = oar_cross_entropy(t->tape, oar_forward(t->tape, t->net, t->x), t->y);
    if (t->scaler != NULL)
        loss = oar_scaler_loss(t->tape, t->scaler, loss);
    return oar_backward(t->tape, loss);
}

static oar_status step_optim(fsdp_training *t)
{
    double norm = 0;
    int stepped = 1;

    if (t->of->clipped)
        TRY(oar_fsdp_clip_grad_norm(t->net, 0.1, &norm));
    if (t->scaler != NULL)
        return oar_fsdp_scaler_step(t->net, t->scaler, t->optim, &stepped);
    return oar_optim_step(t->optim);
}

static oar_status run_step(fsdp_training *t, int step)
{
    int passes = t->of->accumulate > 1 ? t->of->accumulate : 1;

    oar_optim_zero_grad(t->optim);
    if (t->of->weighted)
        TRY(oar_shards_weigh(oar_fsdp_shards(t->net),
                             1 + oar_group_rank(t->group) + step));
    if (t->of->no_sync) {
        TRY(write_batch(t, 100 + step));
        TRY(oar_fsdp_no_sync_begin(t->net));
        TRY(run_pass(t));
        TRY(oar_fsdp_no_sync_end(t->net));
    }
    for (int i = 0; i < passes; i++) {
        TRY(write_batch(t, step * passes + i));
        TRY(run_pass(t));
    }
    return step_optim(t);
}

/* All parameters in a row; *count: how many. */
static oar_status read_params(oar_module *net, double *out, int *count)
{
    const oar_module *inner = oar_module_child(net, 0);

    *count = 0;
    for (int i = 0; i < oar_module_params(inner); i++) {
        int64_t n = oar_tensor_count(oar_module_param(inner, i));
        char name[200];

        if (*count + n > MOST)
            return OAR_E_SIZE;
        TRY(oar_module_param_name(inner, i, name, sizeof name));
        TRY(oar_fsdp_read_param(net, name, OAR_F64, out + *count));
        *count += (int)n;
    }
    return OAR_OK;
}

static oar_status train(const fsdp_case *of, oar_group *group,
                        oar_device device, double *result, int *count)
{
    fsdp_training t = { .of = of, .group = group, .device = device };
    oar_status status = open_training(&t);

    for (int s = 0; s < STEPS && status == OAR_OK; s++)
        status = run_step(&t, s);
    if (status == OAR_OK)
        status = read_params(t.net, result, count);
    close_training(&t);
    return status;
}

static size_t used_bytes(oar_device device)
{
    oar_device_usage usage = oar_device_usage_init();

    return oar_device_memory(device, &usage) == OAR_OK ? usage.used_bytes : 1;
}

static int train_rank(test_job *c, int rank, void *arg)
{
    static double cpu[MOST], first[MOST], second[MOST];
    const fsdp_case *of = arg;
    size_t before, after;
    oar_group *group;
    oar_device device;
    int n = 0;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &device, &group));
    RANK_OK(train(of, group, oar_device_of(OAR_CPU, 0), cpu, &n));
    RANK_OK(train(of, group, device, first, &n));
    before = used_bytes(device);
    RANK_OK(train(of, group, device, second, &n));
    after = used_bytes(device);
    if (before != after)
        fprintf(stderr, "%zu bytes used, then %zu\n", before, after);
    RANK_CHECK(before == after);
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

static void run_case(int ranks, const fsdp_case *of, test_job_fn fn)
{
    fsdp_case copy = *of;
    test_job c;

    if (copy.backend == NULL)
        copy.backend = "ipc";
    if (copy.tolerance == 0)
        copy.tolerance = copy.mixed ? 5e-2 : 1e-3;
    if (strcmp(copy.backend, "nccl") == 0)
        gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, &copy,
                   "%d ranks over %s, hold %d, stage %d, host state %d, mixed "
                   "%d, weighted %d, accumulate %d",
                   ranks, copy.backend, (int)of->hold, (int)of->stage,
                   of->host_state, of->mixed, of->weighted, of->accumulate);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

/* On a machine with a GPU also with four ranks. */
static void run_hold(const fsdp_case *of)
{
    run_case(2, of, train_rank);
    run_case(3, of, train_rank);
    if (gpu_ranks_are_real())
        run_case(4, of, train_rank);
}

static void own_is_gathered_there(void **state)
{
    run_hold(&(fsdp_case){ .hold = OAR_HOLD_OWN });
    run_case(
        2,
        &(fsdp_case){
            .hold = OAR_HOLD_OWN, .mixed = 1, .accumulate = 2, .weighted = 1 },
        train_rank);
    run_case(2,
             &(fsdp_case){ .hold = OAR_HOLD_OWN,
                           .keep = OAR_FSDP_KEEP_NOTHING,
                           .no_sync = 1,
                           .clipped = 1 },
             train_rank);
}

static void stages_keep_it_whole(void **state)
{
    run_case(2, &(fsdp_case){ .hold = OAR_HOLD_OWN, .stage = OAR_ZERO_STAGE_2 },
             train_rank);
    run_case(3,
             &(fsdp_case){ .hold = OAR_HOLD_OWN,
                           .stage = OAR_ZERO_STAGE_1,
                           .mixed = 1,
                           .accumulate = 2 },
             train_rank);
}

static void one_copy_is_mapped_by_all(void **state)
{
    run_hold(&(fsdp_case){ .hold = OAR_HOLD_MAPPED });
    run_case(
        2,
        &(fsdp_case){
            .hold = OAR_HOLD_MAPPED, .mixed = 1, .accumulate = 2, .scaled = 1 },
        train_rank);
    run_case(3,
             &(fsdp_case){ .hold = OAR_HOLD_AUTO, .weighted = 1, .clipped = 1 },
             train_rank);
}

static void the_host_has_them(void **state)
{
    run_hold(&(fsdp_case){ .hold = OAR_HOLD_HOST });
    run_case(1, &(fsdp_case){ .hold = OAR_HOLD_HOST, .mixed = 1 }, train_rank);
    run_case(
        2,
        &(fsdp_case){
            .hold = OAR_HOLD_HOST, .mixed = 1, .accumulate = 2, .scaled = 1 },
        train_rank);
}

static void the_host_has_the_state(void **state)
{
    run_hold(&(fsdp_case){ .hold = OAR_HOLD_HOST, .host_state = 1 });
    run_case(
        1,
        &(fsdp_case){
            .hold = OAR_HOLD_HOST, .host_state = 1, .mixed = 1, .clipped = 1 },
        train_rank);
    run_case(2,
             &(fsdp_case){ .hold = OAR_HOLD_HOST,
                           .host_state = 1,
                           .weighted = 1,
                           .accumulate = 2 },
             train_rank);
}

static void blocks_are_recomputed(void **state)
{
    run_case(2, &(fsdp_case){ .hold = OAR_HOLD_OWN, .recomputed = 1 },
             train_rank);
    run_case(
        2, &(fsdp_case){ .hold = OAR_HOLD_MAPPED, .recomputed = 1, .mixed = 1 },
        train_rank);
    run_case(2, &(fsdp_case){ .hold = OAR_HOLD_HOST, .recomputed = 1 },
             train_rank);
}

static void over_nccl(void **state)
{
    run_case(1, &(fsdp_case){ .backend = "nccl", .hold = OAR_HOLD_OWN },
             train_rank);
    run_case(2,
             &(fsdp_case){ .backend = "nccl",
                           .hold = OAR_HOLD_OWN,
                           .weighted = 1,
                           .mixed = 1 },
             train_rank);
    run_case(3, &(fsdp_case){ .backend = "nccl", .hold = OAR_HOLD_AUTO },
             train_rank);
    run_case(2, &(fsdp_case){ .backend = "nccl", .hold = OAR_HOLD_HOST },
             train_rank);
}

/* ---- what goes wrong ----------------------------------------------------- */

static oar_status die_in_backward(oar_tensor *leaf, void *arg)
{
    raise(SIGKILL);
    return OAR_OK;
}

/* Products of matrices and lookups take memory that stays, at the first one. */
static oar_status use_model(const fsdp_training *t)
{
    oar_tensor *x =
        oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(1, CONTEXT));
    oar_tensor *y;
    oar_module *net;

    TRY(make_net(t, &net));
    TRY(oar_tensor_fill(x, 1));
    y = oar_forward(NULL, net, x);
    oar_module_release(net);
    oar_tensor_release(x);
    oar_tensor_release(y);
    return y != NULL ? OAR_OK : oar_last_error()->status;
}

/* The last rank dies when a gradient of its third step is there; or the first,
 * which has the memory that the others map. */
static int lose_rank(test_job *c, int rank, void *arg)
{
    const fsdp_case *of = arg;
    fsdp_training t = { .of = of };
    int lost = of->weighted ? 0 : c->ranks - 1;
    oar_status status = OAR_OK;
    size_t before;

    RANK_OK(gpu_ranks_open(c, rank, of->backend, &t.device, &t.group));
    RANK_OK(use_model(&t));
    before = used_bytes(t.device);
    RANK_OK(open_training(&t));
    for (int s = 0; s < STEPS && status == OAR_OK; s++) {
        if (s == FAULT_AT && rank == lost)
            RANK_OK(oar_tensor_on_grad(oar_module_param(t.net, 2),
                                       die_in_backward, NULL, NULL));
        status = run_step(&t, s);
    }
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == lost);
    close_training(&t);
    oar_group_destroy(t.group);
    if (used_bytes(t.device) != before)
        fprintf(stderr, "%zu bytes used, then %zu\n", before,
                used_bytes(t.device));
    RANK_CHECK(used_bytes(t.device) == before);
    return 0;
}

static void lose_one(int ranks, const fsdp_case *of)
{
    fsdp_case copy = *of;
    int lost = of->weighted ? 0 : ranks - 1;
    test_job c;

    copy.backend = "ipc";
    test_job_start(&c, ranks, lose_rank, &copy, "%d ranks lose %d, hold %d",
                   ranks, lost, (int)of->hold);
    test_job_expect(&c, lost, 128 + SIGKILL);
    for (int r = 0; r < ranks; r++)
        if (r != lost)
            test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void a_rank_that_dies_is_named(void **state)
{
    lose_one(3, &(fsdp_case){ .hold = OAR_HOLD_OWN });
    lose_one(3, &(fsdp_case){ .hold = OAR_HOLD_MAPPED });
    lose_one(3, &(fsdp_case){ .hold = OAR_HOLD_MAPPED, .weighted = 1 });
    lose_one(2, &(fsdp_case){ .hold = OAR_HOLD_HOST });
    lose_one(2, &(fsdp_case){ .hold = OAR_HOLD_HOST, .host_state = 1 });
}

static oar_status replayed_step(void *arg)
{
    fsdp_training *t = arg;

    oar_optim_zero_grad(t->optim);
    TRY(run_pass(t));
    return oar_optim_step(t->optim);
}

/* Ranks on two GPUs cannot map one copy; other refusals have a sentence, too.
 */
static int refuse(test_job *c, int rank, void *arg)
{
    fsdp_case of = { .backend = "nccl", .hold = OAR_HOLD_OWN };
    fsdp_training t = { .of = &of };
    oar_replay *replay;
    oar_module *net;
    int count;

    RANK_OK(gpu_ranks_open(c, rank, "nccl", &t.device, &t.group));
    RANK_OK(make_net(&t, &net));
    RANK_CHECK(fails_with(
        oar_fsdp_wrap(net, t.group,
                      OAR_OPTS(oar_fsdp_opts, .hold = OAR_HOLD_MAPPED), &net),
        OAR_E_DEVICE, "all ranks on one GPU"));
    RANK_OK(make_net(&t, &net));
    RANK_CHECK(
        fails_with(oar_fsdp_wrap(net, t.group,
                                 OAR_OPTS(oar_fsdp_opts, .hold = OAR_HOLD_HOST,
                                          .stage = OAR_ZERO_STAGE_2),
                                 &net),
                   OAR_E_DEVICE, "OAR_ZERO_STAGE_3"));
    RANK_OK(make_net(&t, &net));
    RANK_CHECK(fails_with(
        oar_fsdp_wrap(net, t.group, OAR_OPTS(oar_fsdp_opts, .host_state = 1),
                      &net),
        OAR_E_ARG, "host_state"));
    RANK_OK(make_net(&t, &net));
    RANK_OK(oar_tensor_rebase(
        oar_module_param(net, 1),
        oar_tensor_storage(oar_zeros(NULL, OAR_F32, OAR_SHAPE(4096))), 0,
        OAR_F32));
    RANK_CHECK(fails_with(oar_fsdp_wrap(net, t.group, NULL, &net), OAR_E_DEVICE,
                          "all must be on one device"));
    RANK_OK(open_training(&t));
    RANK_CHECK(fails_with(oar_fsdp_keep_state(t.net, t.optim), OAR_E_DEVICE,
                          "goes with the process"));
    RANK_OK(write_batch(&t, 0));
    RANK_OK(oar_replay_create(t.device, replayed_step, &t,
                              OAR_OPTS(oar_replay_opts, .warm = 1, .strict = 1),
                              &replay));
    RANK_OK(oar_replay_run(replay));
    RANK_CHECK(fails_with(oar_replay_run(replay), OAR_E_UNSUPPORTED,
                          "cannot be replayed"));
    oar_replay_destroy(replay);
    RANK_OK(oar_fsdp_params(t.net, &count) != NULL ? OAR_OK : OAR_E_INTERNAL);
    RANK_OK(run_step(&t, 1)); /* the module is as it was */
    close_training(&t);
    oar_group_destroy(t.group);
    return 0;
}

/* A storage of a GPU without memory gets some, or that of another. */
static int attach_storage(test_job *c, int rank, void *arg)
{
    oar_device device;
    oar_storage *storage;
    oar_group *group;
    oar_tensor *a, *b;
    double got[2] = { 0 };

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_CHECK(oar_storage_create_detached_on(device, 16, NULL) == OAR_E_ARG);
    RANK_OK(oar_storage_create_detached_on(device, 16, &storage));
    RANK_CHECK(oar_storage_data(storage) == NULL);
    a = oar_view_of(NULL, storage, 0, OAR_F64, OAR_SHAPE(2));
    b = oar_empty_on(NULL, device, OAR_F64, OAR_SHAPE(2));
    RANK_OK(oar_tensor_fill(b, 3));
    RANK_OK(oar_storage_attach(storage, oar_tensor_data(b), NULL, NULL));
    RANK_OK(oar_tensor_read(a, OAR_F64, got));
    RANK_CHECK(got[0] == 3 && got[1] == 3);
    RANK_OK(oar_storage_detach(storage));
    RANK_OK(oar_storage_attach(storage, NULL, NULL, NULL));
    RANK_OK(oar_tensor_fill(a, 4));
    RANK_OK(oar_tensor_read(a, OAR_F64, got));
    RANK_CHECK(got[1] == 4);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_storage_release(storage);
    oar_group_destroy(group);
    return 0;
}

static void refusals_have_a_sentence(void **state)
{
    run_case(1, &(fsdp_case){ .backend = "ipc" }, attach_storage);
    run_case(2, &(fsdp_case){ .backend = "nccl" }, refuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_is_gathered_there),
        cmocka_unit_test(stages_keep_it_whole),
        cmocka_unit_test(one_copy_is_mapped_by_all),
        cmocka_unit_test(the_host_has_them),
        cmocka_unit_test(the_host_has_the_state),
        cmocka_unit_test(blocks_are_recomputed),
        cmocka_unit_test(over_nccl),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(refusals_have_a_sentence),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_fsdp", tests, NULL, NULL);
}
