/* SPDX-License-Identifier: Apache-2.0 */
/* refusal_cases.h: calls that GPUs refuse: of operations, memory,
 * optimizers and DDP. For gpu_refusals_test.c, which has the others. Each
 * returns what the refused call does. */
#ifndef OARI_TESTS_REFUSAL_CASES_H
#define OARI_TESTS_REFUSAL_CASES_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "base/status.h"
#include "support/gpu_ranks.h"
#include "tensor/kernel_table.h"

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { ROWS = 6, WIDTH = 4 };

/* Where a case is called: on every rank of a group on GPUs. Over ipc all ranks
 * have the first GPU; over nccl each has its own, on a host of its own. */
typedef struct refusal_site {
    test_job *job;
    int rank;
    oar_group *group;
    oar_device gpu;
} refusal_site;

static const oar_device cpu = { OAR_CPU, 0 };

/* ---- operands ------------------------------------------------------------ */

/* A leaf that wants a gradient. */
static oar_tensor *leaf_on(oar_device device)
{
    oar_tensor *here = oar_full(NULL, OAR_F32, OAR_SHAPE(ROWS, WIDTH), 1);
    oar_tensor *made = oar_to(NULL, here, device);

    oar_tensor_release(here);
    oar_tensor_require_grad(made, 1);
    return made;
}

static oar_tensor *targets_on(oar_device device)
{
    oar_tensor *made = oar_empty_on(NULL, device, OAR_I64, OAR_SHAPE(ROWS));

    oar_tensor_fill(made, 1);
    return made;
}

/* Two leaves: one on the GPU, one on another device. */
typedef struct leaf_pair {
    oar_tensor *leaf[2];
} leaf_pair;

static leaf_pair leaves_on(oar_device a, oar_device b)
{
    return (leaf_pair){ { leaf_on(a), leaf_on(b) } };
}

static oar_status drop_leaves(leaf_pair p, oar_status status)
{
    oar_tensor_release(p.leaf[0]);
    oar_tensor_release(p.leaf[1]);
    return status;
}

/* Takes the result of an operation; returns why there is none. */
static oar_status status_of(oar_tensor *result)
{
    if (result == NULL)
        return oar_last_error()->status;
    oar_tensor_release(result);
    return OAR_OK;
}

/* ---- operations ---------------------------------------------------------- */

static oar_status add_two(const refusal_site *s)
{
    leaf_pair p = leaves_on(s->gpu, cpu);

    return drop_leaves(p, status_of(oar_add(NULL, p.leaf[0], p.leaf[1])));
}

static oar_status weigh_elsewhere(const refusal_site *s)
{
    oar_tensor *weight = oar_full(NULL, OAR_F32, OAR_SHAPE(WIDTH), 1);
    oar_tensor *logits = leaf_on(s->gpu), *target = targets_on(s->gpu);
    oar_status status = status_of(oar_cross_entropy_with(
        NULL, logits, target,
        OAR_OPTS(oar_cross_entropy_opts, .weight = weight)));

    oar_tensor_release(weight);
    oar_tensor_release(logits);
    oar_tensor_release(target);
    return status;
}

static oar_status seed_elsewhere(const refusal_site *s)
{
    leaf_pair p = leaves_on(s->gpu, cpu);
    oar_tensor *out;
    oar_status status;
    oar_tape *tape;

    TRY(oar_tape_create(&tape));
    out = oar_exp(tape, p.leaf[0]);
    status = oar_backward_from(tape, 1, &out, &p.leaf[1]);
    oar_tape_destroy(tape);
    return drop_leaves(p, status);
}

static oar_status bind_elsewhere(const refusal_site *s)
{
    leaf_pair p = leaves_on(s->gpu, cpu);

    return drop_leaves(p, oar_tensor_bind_grad(p.leaf[0], p.leaf[1]));
}

static oar_status hash_elsewhere(const refusal_site *s)
{
    oar_tensor *sum = oar_zeros(NULL, OAR_U64, OAR_SCALAR);
    oar_tensor *leaf = leaf_on(s->gpu);
    oar_status status = oar_tensor_hash(1, &leaf, sum);

    oar_tensor_release(sum);
    oar_tensor_release(leaf);
    return status;
}

/* The table lies in memory that may only be read. All operations have kernels,
 * so one is taken out. */
static oar_status miss_kernel(const refusal_site *s)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)&oari_cuda_kernels / page * page;
    uintptr_t end = (uintptr_t)(&oari_cuda_kernels + 1);
    oari_kernel_table *table =
        (oari_kernel_table *)(uintptr_t)&oari_cuda_kernels;
    oari_kernel_table whole = oari_cuda_kernels;
    oar_tensor *leaf = leaf_on(s->gpu);
    oar_status status;

    if (mprotect((void *)from, end - from, PROT_READ | PROT_WRITE) != 0)
        return OAR_E_SYSTEM;
    table->cumsum = NULL;
    status = status_of(oar_cumsum(NULL, leaf, 1));
    table->cumsum = whole.cumsum;
    oar_tensor_release(leaf);
    return status;
}

static oar_status merge_nothing(void *arg, int64_t count, double *number)
{
    return OAR_OK;
}

static oar_status merge_loss(const refusal_site *s)
{
    oar_tensor *logits = leaf_on(s->gpu), *target = targets_on(s->gpu);
    oar_status status = status_of(oar_cross_entropy_merged(
        NULL, logits, target, NULL,
        OAR_OPTS(oar_cross_entropy_merge, .classes = WIDTH,
                 .largest = merge_nothing, .sums = merge_nothing)));

    oar_tensor_release(logits);
    oar_tensor_release(target);
    return status;
}

static oar_status merge_norm(const refusal_site *s)
{
    const oar_batch_norm_merge merge = { .sums = merge_nothing };
    oar_tensor *x = leaf_on(s->gpu);
    oar_status status = status_of(oar_batch_norm_merged(
        NULL, x, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5, &merge));

    oar_tensor_release(x);
    return status;
}

/* ---- devices and memory -------------------------------------------------- */

static oar_status name_missing_gpu(const refusal_site *s)
{
    return status_of(oar_empty_on(NULL, oar_device_of(OAR_CUDA, 77), OAR_F32,
                                  OAR_SHAPE(WIDTH)));
}

static oar_status ask_stream_of_cpu(const refusal_site *s)
{
    void *stream;

    return oar_stream_create(cpu, 0, &stream);
}

static oar_status reduce_on_cpu(const refusal_site *s)
{
    oar_tensor *here = leaf_on(cpu), *out = NULL;
    oar_status status = oar_gpu_all_reduce(s->group, here, OAR_SUM, NULL, &out);

    oar_tensor_release(here);
    return status;
}

static oar_status place_engine_on_cpu(const refusal_site *s)
{
    oar_group *group;

    return gpu_ranks_join(s->job, s->rank,
                          OAR_OPTS(oar_group_opts, .backend = "ipc",
                                   .name = "on the cpu", .device = &cpu),
                          &group);
}

static oar_status gather_across(const refusal_site *s)
{
    float all[WIDTH * GPU_RANKS_MAX];
    oar_span from =
        oar_span_of(gpu_put(0, NULL, sizeof(float) * WIDTH), WIDTH, OAR_F32);
    oar_status status;

    from.device = s->gpu;
    status = oar_all_gather(
        s->group, from,
        oar_span_of(all, (size_t)(WIDTH * oar_group_size(s->group)), OAR_F32),
        NULL, NULL);
    gpu_free(0, from.data);
    return status;
}

/* Over ipc, all ranks are on the first GPU. */
static oar_status reduce_elsewhere(const refusal_site *s)
{
    void *memory = gpu_put(1, NULL, sizeof(float) * WIDTH);
    oar_status status = oar_all_reduce(
        s->group, gpu_span(1, memory, WIDTH, OAR_F32), OAR_SUM, NULL, NULL);

    gpu_free(1, memory);
    return status;
}

static oar_status reduce_without_engine(const refusal_site *s)
{
    void *memory = gpu_put(0, NULL, sizeof(float) * WIDTH);
    oar_status status;
    oar_group *group;

    TRY(test_job_join(s->job, s->rank,
                      OAR_OPTS(oar_group_opts, .name = "without an engine"),
                      &group));
    status = oar_all_reduce(group, gpu_span(0, memory, WIDTH, OAR_F32), OAR_SUM,
                            NULL, NULL);
    oar_group_destroy(group);
    gpu_free(0, memory);
    return status;
}

/* NCCL has no order of ranks. */
static oar_status reduce_in_order(const refusal_site *s)
{
    void *memory = gpu_put(s->rank, NULL, sizeof(float) * WIDTH);
    oar_status status =
        oar_all_reduce(s->group, gpu_span(s->rank, memory, WIDTH, OAR_F32),
                       OAR_SUM, OAR_OPTS(oar_call_opts, .canonical = 1), NULL);

    gpu_free(s->rank, memory);
    return status;
}

static oar_status send_many(const refusal_site *s)
{
    void *memory = gpu_put(0, NULL, sizeof(float) * WIDTH);
    oar_status status;

    TRY(oar_batch_begin(s->group));
    for (int i = 0; i < 129; i++)
        TRY(oar_send(s->group, gpu_span(0, memory, WIDTH, OAR_F32), 1 - s->rank,
                     0, NULL, NULL));
    status = oar_batch_end(s->group, NULL);
    gpu_free(0, memory);
    return status;
}

/* The child says by a pipe what it was told. */
static oar_status fork_and_use(const refusal_site *s)
{
    oar_error said = { 0 };
    int way[2];
    pid_t child;

    if (pipe(way) != 0 || (child = fork()) < 0)
        return OAR_E_SYSTEM;
    if (child == 0) {
        if (name_missing_gpu(s) != OAR_OK)
            said = *oar_last_error();
        _exit(write(way[1], &said, sizeof said) != sizeof said);
    }
    close(way[1]);
    if (read(way[0], &said, sizeof said) != sizeof said)
        said.status = OAR_E_SYSTEM;
    close(way[0]);
    waitpid(child, NULL, 0);
    return oari_fail_with(&said);
}

/* ---- optimizers ---------------------------------------------------------- */

static oar_status step_on_two_gpus(const refusal_site *s)
{
    leaf_pair p = leaves_on(gpu_of_rank(0), gpu_of_rank(1));
    oar_optim *optim;
    oar_status status;

    TRY(oar_sgd_create_over(2, p.leaf, NULL, &optim));
    status = oar_optim_step(optim);
    oar_optim_destroy(optim);
    return drop_leaves(p, status);
}

static oar_status clip_on_two_gpus(const refusal_site *s)
{
    leaf_pair p = leaves_on(gpu_of_rank(0), gpu_of_rank(1));
    oar_status status;
    oar_tape *tape;
    double norm;

    TRY(oar_tape_create(&tape));
    for (int i = 0; i < 2; i++)
        TRY(oar_backward(tape, oar_sum(tape, p.leaf[i])));
    status = oar_clip_grad_norm(2, p.leaf, 1, &norm);
    oar_tape_destroy(tape);
    return drop_leaves(p, status);
}

static void ignore_move(oar_optim *optim, int index, int64_t first,
                        int64_t count, void *arg)
{
}

static oar_status watch_moves(const refusal_site *s)
{
    oar_tensor *leaf = leaf_on(s->gpu);
    oar_status status;
    oar_optim *optim;
    oar_tape *tape;
    oar_hook *hook;

    TRY(oar_sgd_create_over(1, &leaf, NULL, &optim));
    TRY(oar_optim_on_move(optim, ignore_move, NULL, &hook));
    TRY(oar_tape_create(&tape));
    TRY(oar_backward(tape, oar_sum(tape, leaf)));
    status = oar_optim_step(optim);
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_tensor_release(leaf);
    return status;
}

static oar_status move_part(const refusal_site *s)
{
    oar_tensor *leaf = leaf_on(s->gpu);
    float grad[WIDTH] = { 0 };
    oar_status status;
    oar_optim *optim;

    TRY(oar_sgd_create_over(1, &leaf, NULL, &optim));
    status = oar_optim_move(optim, 0, 0, oar_span_of(grad, WIDTH, OAR_F32));
    oar_optim_destroy(optim);
    oar_tensor_release(leaf);
    return status;
}

/* ---- modules ------------------------------------------------------------- */

static oar_module *net_on(oar_device device)
{
    oar_module *net = NULL;

    if (oar_linear_create(WIDTH, WIDTH, 1, NULL, &net) != OAR_OK ||
        oar_module_to(net, device) != OAR_OK)
        abort();
    return net;
}

/* The bias is on the cpu, the weight on the GPU. */
static oar_module *net_on_two(oar_device gpu)
{
    oar_module *net = net_on(gpu);
    oar_tensor *here = oar_zeros(NULL, OAR_F32, OAR_SHAPE(WIDTH));

    if (oar_tensor_rebase(oar_module_param(net, 1), oar_tensor_storage(here), 0,
                          OAR_F32) != OAR_OK)
        abort();
    oar_tensor_release(here);
    return net;
}

/* ---- data parallel ------------------------------------------------------- */

static oar_status reduce_two_devices(const refusal_site *s)
{
    oar_module *ddp;

    return oar_ddp_wrap(net_on_two(s->gpu), s->group, NULL, &ddp);
}

static oar_status move_wrapped(const refusal_site *s)
{
    oar_module *net = net_on(s->gpu);
    oar_tensor *x = leaf_on(cpu);
    oar_status status;
    oar_tape *tape;

    TRY(oar_ddp_wrap(net, s->group, NULL, &net));
    TRY(oar_module_to(net, cpu));
    TRY(oar_tape_create(&tape));
    status = oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x)));
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_release(x);
    return status;
}

#endif
