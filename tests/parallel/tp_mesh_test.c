/* SPDX-License-Identifier: Apache-2.0 */
/* DDP and FSDP around a tensor parallel GPT, on a mesh of two or three dims:
 * the training of one process on the joined batch, clipped by the norm of the
 * whole model. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { WORDS = 13, CONTEXT = 4, BATCH = 12, STEPS = 6, MOST = 4096 };

enum { COPIES, DATA, TENSOR, DIMS }; /* of the mesh */

typedef struct tp_mesh_case {
    int copies; /* of the shards of FSDP (DDP over them); 0: one */
    int data, tensor;
    int fsdp, sequence, accumulate;
    oar_hold hold;
} tp_mesh_case;

static oar_status make_gpt(oar_module **gpt)
{
    return oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                   .context = CONTEXT, .width = 12, .layers = 2,
                                   .heads = 3, .hidden = 17, .seed = 3,
                                   .dtype = OAR_F64),
                          gpt);
}

/* Rows first .. first+count-1 of a batch. */
static oar_tensor *batch(oar_tape *tape, uint64_t seed, int first, int count)
{
    oar_tensor *all =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(BATCH, CONTEXT), seed, 0, WORDS);

    return oar_narrow(tape, all, 0, first, count);
}

static oar_tensor *flat(oar_tape *tape, oar_tensor *words)
{
    return oar_reshape(tape, oar_contiguous(tape, words), OAR_SHAPE(-1));
}

/* ---- one process --------------------------------------------------------- */

static oar_status train_alone(oar_module *gpt, double *norm)
{
    oar_tensor *param[64];
    oar_optim *optim;
    oar_tape *tape;

    for (int i = 0; i < oar_module_params(gpt); i++)
        param[i] = oar_module_param(gpt, i);
    CHECK_OK(oar_sgd_create(
        gpt, OAR_OPTS(oar_sgd_opts, .lr = 0.3, .momentum = 0.9), &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (uint64_t step = 0; step < STEPS; step++) {
        oar_tensor *x = batch(tape, step, 0, BATCH);
        oar_tensor *y = batch(tape, 100 + step, 0, BATCH);

        CHECK_OK(oar_backward(
            tape,
            oar_cross_entropy(tape, oar_forward(tape, gpt, x), flat(tape, y))));
        CHECK_OK(oar_clip_grad_norm(oar_module_params(gpt), param, 0.5,
                                    &norm[step]));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    return OAR_OK;
}

/* ---- the mesh ------------------------------------------------------------ */

static oar_status wrap(const tp_mesh_case *c, oar_mesh *mesh, oar_module **net,
                       oar_optim **optim)
{
    const oar_sgd_opts *o = OAR_OPTS(oar_sgd_opts, .lr = 0.3, .momentum = 0.9);
    oar_tensor *const *param;
    int count;

    CHECK_OK(make_gpt(net));
    CHECK_OK(
        oar_tp_parallelize_gpt(*net, oar_mesh_group(mesh, TENSOR),
                               OAR_OPTS(oar_tp_opts, .sequence = c->sequence)));
    if (!c->fsdp) {
        CHECK_OK(oar_ddp_wrap(*net, oar_mesh_group(mesh, DATA), NULL, net));
        return oar_sgd_create(*net, o, optim);
    }
    CHECK_OK(oar_fsdp_wrap(
        *net, oar_mesh_group(mesh, DATA),
        OAR_OPTS(oar_fsdp_opts, .hold = c->hold, .least_bytes = 1,
                 .replicas =
                     c->copies > 1 ? oar_mesh_group(mesh, COPIES) : NULL),
        net));
    param = oar_fsdp_params(*net, &count);
    return oar_sgd_create_over(count, param, o, optim);
}

static oar_status no_sync(const tp_mesh_case *c, oar_module *net, int on)
{
    if (c->fsdp)
        return on ? oar_fsdp_no_sync_begin(net) : oar_fsdp_no_sync_end(net);
    return on ? oar_ddp_no_sync_begin(net) : oar_ddp_no_sync_end(net);
}

/* One pass over a part of this rank's rows; with c->accumulate a step has two,
 * of which each counts half. */
static oar_status run_pass(const tp_mesh_case *c, oar_mesh *mesh,
                           oar_module *net, oar_tape *tape, uint64_t step,
                           int micro)
{
    int passes = c->accumulate ? 2 : 1;
    int copies = oar_mesh_size(mesh, COPIES), at[DIMS], first;
    int rows = BATCH / copies / c->data, each = rows / passes;
    oar_tensor *x, *y, *loss;

    CHECK_OK(oar_mesh_coordinates(mesh, oar_mesh_rank(mesh), at));
    first = (at[COPIES] * c->data + at[DATA]) * rows + micro * each;
    x = batch(tape, step, first, each);
    y = batch(tape, 100 + step, first, each);
    loss = oar_tp_cross_entropy(tape, oar_forward(tape, net, x), flat(tape, y),
                                oar_mesh_group(mesh, TENSOR), WORDS, NULL);
    return oar_backward(tape, oar_scale(tape, loss, 1.0 / passes));
}

static oar_status compare(const tp_mesh_case *c, oar_mesh *mesh,
                          oar_module *net, const oar_module *whole)
{
    static _Thread_local double a[MOST], b[MOST];
    oar_group *tensor = oar_mesh_group(mesh, TENSOR);
    const oar_module *inner = oar_module_child(net, 0);
    char name[128];

    if (c->fsdp)
        CHECK_OK(oar_fsdp_unshard(net, NULL));
    for (int i = 0; i < oar_module_params(whole); i++) {
        oar_tensor *p = oar_module_param(inner, i);
        oar_tensor *q = oar_module_param(whole, i), *own = q;
        int cut = oar_tp_is_cut(net, p);
        int dim = oar_tensor_shape(p).dim[0] == oar_tensor_shape(q).dim[0];

        CHECK_OK(oar_module_param_name(inner, i, name, sizeof name));
        if (cut && strstr(name, "attention") != NULL)
            continue; /* tp_gpt_test knows where heads are */
        if (cut)
            own = oar_tp_scatter(NULL, q, tensor, dim);
        CHECK(oar_tensor_count(p) == oar_tensor_count(own));
        CHECK_OK(oar_tensor_read(p, OAR_F64, a));
        CHECK_OK(oar_tensor_read(own, OAR_F64, b));
        for (int64_t k = 0; k < oar_tensor_count(p); k++)
            CHECK(fabs(a[k] - b[k]) <= 1e-11 * (1 + fabs(b[k])));
        if (cut)
            oar_tensor_release(own);
    }
    if (c->fsdp)
        CHECK_OK(oar_fsdp_reshard(net, NULL));
    return OAR_OK;
}

static oar_status train_on_mesh(oar_group *g, void *arg)
{
    const tp_mesh_case *c = arg;
    oar_module *net, *whole;
    double norm[STEPS], found;
    oar_optim *optim;
    oar_mesh *mesh;
    oar_tape *tape;

    CHECK_OK(make_gpt(&whole));
    CHECK_OK(train_alone(whole, norm));
    CHECK_OK(oar_mesh_create(g, DIMS, (int[]){ -1, c->data, c->tensor },
                             (const char *[]){ "copies", "data", "tensor" },
                             NULL, &mesh));
    CHECK_OK(wrap(c, mesh, &net, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (uint64_t step = 0; step < STEPS; step++) {
        if (c->accumulate) {
            CHECK_OK(no_sync(c, net, 1));
            CHECK_OK(run_pass(c, mesh, net, tape, step, 0));
            CHECK_OK(no_sync(c, net, 0));
        }
        CHECK_OK(run_pass(c, mesh, net, tape, step, c->accumulate));
        CHECK_OK(oar_tp_clip_grad_norm(net, 0.5, &found));
        CHECK(fabs(found - norm[step]) <= 1e-11 * norm[step]);
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    CHECK_OK(compare(c, mesh, net, whole));
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    oar_module_release(whole);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void run(tp_mesh_case c, const char *backend)
{
    int copies = c.copies > 0 ? c.copies : 1;

    if (ranks_run(backend, copies * c.data * c.tensor, NULL, train_on_mesh,
                  &c) != OAR_OK)
        fail_msg("%d x %d x %d, fsdp %d, hold %d, sequence %d, accumulate %d",
                 copies, c.data, c.tensor, c.fsdp, (int)c.hold, c.sequence,
                 c.accumulate);
}

static void ddp_around_tensor_parallel_is_one_process(void **state)
{
    for (int k = 0; k < 4; k++)
        run((tp_mesh_case){ .data = k == 3 ? 3 : 2,
                            .tensor = 2,
                            .sequence = k & 1,
                            .accumulate = k == 2 },
            "sim");
    run((tp_mesh_case){ .data = 2, .tensor = 2 }, "native");
}

static void fsdp_around_tensor_parallel_is_one_process(void **state)
{
    static const int data[] = { 2, 3, 2, 1 }, tensor[] = { 3, 2, 2, 4 };

    for (int k = 0; k < 4; k++)
        run((tp_mesh_case){ .data = data[k],
                            .tensor = tensor[k],
                            .fsdp = 1,
                            .sequence = k & 1,
                            .accumulate = k >> 1,
                            .hold = k == 2 ? OAR_HOLD_OWN : OAR_HOLD_AUTO },
            "sim");
    run((tp_mesh_case){ .data = 2, .tensor = 2, .fsdp = 1, .sequence = 1 },
        "native");
}

/* Two copies of two shards of two parts: every rank has an eighth of the work,
 * and each element of the model counts once in the norm. */
static void ddp_of_fsdp_of_tensor_parallel_is_one_process(void **state)
{
    for (int k = 0; k < 4; k++)
        run((tp_mesh_case){ .copies = 2,
                            .data = 2,
                            .tensor = 2,
                            .fsdp = 1,
                            .sequence = k & 1,
                            .hold = k >> 1 ? OAR_HOLD_OWN : OAR_HOLD_AUTO },
            "sim");
    run((tp_mesh_case){ .copies = 2, .data = 1, .tensor = 3, .fsdp = 1 },
        "sim");
    run(
        (tp_mesh_case){
            .copies = 2, .data = 1, .tensor = 2, .fsdp = 1, .accumulate = 1 },
        "native");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ddp_around_tensor_parallel_is_one_process),
        cmocka_unit_test(fsdp_around_tensor_parallel_is_one_process),
        cmocka_unit_test(ddp_of_fsdp_of_tensor_parallel_is_one_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
