/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes of two dims on a GPU: DDP and FSDP around a tensor parallel GPT train
 * to the numbers of the cpu, clipped by the norm of the whole model; random
 * programs of operations on DTensors give what one rank on the cpu gives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#include "support/dtensor_program.h"
#include "support/gpu_ranks.h"

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { WORDS = 13, CONTEXT = 4, ROWS = 2, STEPS = 3, MOST = 8192 };
enum { DATA, TENSOR, DIMS }; /* of the mesh */

typedef struct gpu_mesh_case {
    int fsdp, sequence;
    oar_hold hold;
    oar_dtype dtype;
    double tolerance;
} gpu_mesh_case;

/* What one rank trains. */
typedef struct mesh_training {
    const gpu_mesh_case *of;
    oar_device device;
    oar_mesh *mesh;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
} mesh_training;

/* ---- training ------------------------------------------------------------ */

static oar_status wrap(mesh_training *t)
{
    const oar_sgd_opts *o = OAR_OPTS(oar_sgd_opts, .lr = 0.3, .momentum = 0.9);
    oar_tensor *const *param;
    int count;

    if (!t->of->fsdp) {
        TRY(oar_ddp_wrap(t->net, oar_mesh_group(t->mesh, DATA), NULL, &t->net));
        return oar_sgd_create(t->net, o, &t->optim);
    }
    TRY(oar_fsdp_wrap(
        t->net, oar_mesh_group(t->mesh, DATA),
        OAR_OPTS(oar_fsdp_opts, .hold = t->of->hold, .least_bytes = 1),
        &t->net));
    param = oar_fsdp_params(t->net, &count);
    return oar_sgd_create_over(count, param, o, &t->optim);
}

static oar_status open_training(mesh_training *t, oar_group *group)
{
    TRY(oar_mesh_create(group, DIMS, (int[]){ -1, 2 }, NULL, NULL, &t->mesh));
    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                .context = CONTEXT, .width = 12, .layers = 2,
                                .heads = 3, .hidden = 17, .seed = 3,
                                .dtype = t->of->dtype),
                       &t->net));
    TRY(oar_tp_parallelize_gpt(
        t->net, oar_mesh_group(t->mesh, TENSOR),
        OAR_OPTS(oar_tp_opts, .sequence = t->of->sequence)));
    if (t->device.kind == OAR_CUDA)
        TRY(oar_module_to(t->net, t->device));
    TRY(wrap(t));
    return oar_tape_create(&t->tape);
}

static void close_training(mesh_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
    oar_mesh_release(t->mesh);
}

/* Rows of this rank's place along the data. */
static oar_tensor *batch(const mesh_training *t, uint64_t seed, oar_shape shape)
{
    int at[DIMS];
    oar_tensor *here;

    oar_mesh_coordinates(t->mesh, oar_mesh_rank(t->mesh), at);
    here = oar_uniform(t->tape, OAR_I64, shape, seed * 10 + (uint64_t)at[DATA],
                       0, WORDS);
    return oar_to(t->tape, here, t->device);
}

/* Gives the loss and the norm of all gradients. */
static oar_status run_step(mesh_training *t, uint64_t step, double *result)
{
    oar_tensor *x = batch(t, step, OAR_SHAPE(ROWS, CONTEXT));
    oar_tensor *y = batch(t, 100 + step, OAR_SHAPE(ROWS * CONTEXT));
    oar_tensor *loss =
        oar_tp_cross_entropy(t->tape, oar_forward(t->tape, t->net, x), y,
                             oar_mesh_group(t->mesh, TENSOR), WORDS, NULL);

    if (loss == NULL)
        return oar_last_error()->status;
    TRY(oar_backward(t->tape, loss));
    TRY(oar_tensor_item(loss, &result[0]));
    TRY(oar_tp_clip_grad_norm(t->net, 0.5, &result[1]));
    TRY(oar_optim_step(t->optim));
    oar_optim_zero_grad(t->optim);
    oar_tape_reset(t->tape);
    return OAR_OK;
}

static oar_status read_params(const mesh_training *t, double *out, int *count)
{
    const oar_module *inner = oar_module_child(t->net, 0);

    if (t->of->fsdp)
        TRY(oar_fsdp_unshard(t->net, NULL));
    for (int i = 0; i < oar_module_params(inner); i++) {
        oar_tensor *p = oar_module_param(inner, i);

        if (*count + oar_tensor_count(p) > MOST)
            return OAR_E_SIZE;
        TRY(oar_tensor_read(p, OAR_F64, out + *count));
        *count += (int)oar_tensor_count(p);
    }
    return t->of->fsdp ? oar_fsdp_reshard(t->net, NULL) : OAR_OK;
}

/* Gives the loss and norm of each step, and then this rank's parameters. */
static oar_status train(const gpu_mesh_case *of, oar_group *group,
                        oar_device device, double *result, int *count)
{
    mesh_training t = { .of = of, .device = device };

    TRY(open_training(&t, group));
    for (int s = 0; s < STEPS; s++)
        TRY(run_step(&t, (uint64_t)s, result + 2 * s));
    *count = 2 * STEPS;
    TRY(read_params(&t, result, count));
    close_training(&t);
    return OAR_OK;
}

static int train_rank(test_job *c, int rank, void *arg)
{
    static double cpu[MOST], gpu[MOST];
    const gpu_mesh_case *of = arg;
    oar_device device;
    oar_group *group;
    int n = 0, m = 0;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_OK(train(of, group, oar_device_of(OAR_CPU, 0), cpu, &n));
    RANK_OK(train(of, group, device, gpu, &m));
    RANK_CHECK(n == m && cpu[1] > 0.5); /* what is clipped */
    for (int i = 0; i < n; i++) {
        if (!(fabs(cpu[i] - gpu[i]) <= of->tolerance))
            fprintf(stderr, "number %d: %.9f on the cpu, %.9f there\n", i,
                    cpu[i], gpu[i]);
        RANK_CHECK(fabs(cpu[i] - gpu[i]) <= of->tolerance);
    }
    oar_group_destroy(group);
    return 0;
}

static void run_case(int ranks, gpu_mesh_case of, test_job_fn fn)
{
    test_job c;

    test_job_start(&c, ranks, fn, &of, "%d x 2 ranks, fsdp %d, hold %d",
                   ranks / 2, of.fsdp, (int)of.hold);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void ddp_around_tensor_parallel_is_that_of_the_cpu(void **state)
{
    run_case(4, (gpu_mesh_case){ .dtype = OAR_F64, .tolerance = 1e-11 },
             train_rank);
}

static void fsdp_around_tensor_parallel_is_that_of_the_cpu(void **state)
{
    static const oar_hold hold[] = { OAR_HOLD_MAPPED, OAR_HOLD_OWN,
                                     OAR_HOLD_HOST };

    for (int i = 0; i < 3; i++)
        run_case(4,
                 (gpu_mesh_case){ .fsdp = 1,
                                  .sequence = i == 1,
                                  .hold = hold[i],
                                  .dtype = i == 0 ? OAR_F32 : OAR_F64,
                                  .tolerance = i == 0 ? 2e-5 : 1e-11 },
                 train_rank);
}

/* ---- DTensors ------------------------------------------------------------ */

enum { PROGRAMS = 24 };

static void say_nothing(void *arg, oar_log_level level, const char *line)
{
}

static int run_programs(test_job *c, int rank, void *arg)
{
    const char *seed = getenv("OARSONG_TEST_SEED");
    uint64_t first = seed != NULL ? strtoull(seed, NULL, 10) : 7000;
    int count = seed != NULL ? 1 : PROGRAMS;
    oar_device device;
    oar_group *group;
    oar_mesh *mesh;

    oar_log_to(say_nothing, NULL, OAR_LOG_WARN); /* inputs are moved */
    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_OK(oar_mesh_create(group, DIMS, (int[]){ -1, 2 }, NULL, NULL, &mesh));
    for (int i = 0; i < count; i++)
        RANK_OK(program_check(mesh, device, first + (uint64_t)i));
    oar_mesh_release(mesh);
    oar_group_destroy(group);
    return 0;
}

static void random_programs_are_those_of_one_rank(void **state)
{
    run_case(4, (gpu_mesh_case){ 0 }, run_programs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ddp_around_tensor_parallel_is_that_of_the_cpu),
        cmocka_unit_test(fsdp_around_tensor_parallel_is_that_of_the_cpu),
        cmocka_unit_test(random_programs_are_those_of_one_rank),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_mesh", tests, NULL, NULL);
}
