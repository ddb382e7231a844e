/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of tensor parallel models: saved on a mesh, loaded by another
 * number of ranks or by one process, and back, with the same numbers. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/leak_check.h"

enum { WORDS = 11, CONTEXT = 4, ROWS = 4, STOP = 3, STEPS = 6, MOST = 2048 };

typedef enum tp_wrapping { PLAIN, DDP, ZERO, FSDP } tp_wrapping;

/* A run on copies x data x tensor ranks. */
typedef struct tp_run_kind {
    int data, tensor, sequence, tied;
    tp_wrapping wrap;
    int copies; /* of FSDP's shards; 0: one */
} tp_run_kind;

enum { COPIES, DATA, TENSOR, DIMS }; /* of the mesh */

static int ranks_of(const tp_run_kind *k)
{
    return (k->copies > 0 ? k->copies : 1) * k->data * k->tensor;
}

typedef struct tp_run {
    oar_mesh *mesh;
    oar_module *net;
    oar_optim *optim;
    oar_state *state;
    int64_t step;
} tp_run;

static char folder[FOLDER_PATH], path[FOLDER_PATH + 8];

static int make_folder(void **state)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/runs", folder);
    return 0;
}

static int remove_folder(void **state)
{
    return folder_remove(folder);
}

static oar_status wrap_net(const tp_run_kind *k, tp_run *r)
{
    oar_group *data = oar_mesh_group(r->mesh, DATA);

    if (k->wrap == FSDP || k->wrap == ZERO)
        return oar_fsdp_wrap(
            r->net, data,
            OAR_OPTS(oar_fsdp_opts, .least_bytes = 1,
                     .replicas =
                         k->copies > 1 ? oar_mesh_group(r->mesh, COPIES) : NULL,
                     .stage =
                         k->wrap == ZERO ? OAR_ZERO_STAGE_1 : OAR_ZERO_STAGE_3),
            &r->net);
    if (k->wrap == DDP)
        return oar_ddp_wrap(r->net, data, NULL, &r->net);
    return OAR_OK;
}

static oar_status make_run(oar_group *g, const tp_run_kind *k, tp_run *r)
{
    oar_adam_opts adam = oar_adam_opts_init();
    oar_tensor *const *param;
    int count;

    *r = (tp_run){ 0 };
    CHECK_OK(oar_mesh_create(g, DIMS, (int[]){ -1, k->data, k->tensor }, NULL,
                             NULL, &r->mesh));
    CHECK_OK(oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS, .context = CONTEXT,
                 .width = 12, .layers = 1, .heads = 3, .hidden = 17, .seed = 3,
                 .tied = k->tied, .dtype = OAR_F64),
        &r->net));
    if (k->tensor > 1)
        CHECK_OK(oar_tp_parallelize_gpt(
            r->net, oar_mesh_group(r->mesh, TENSOR),
            OAR_OPTS(oar_tp_opts, .sequence = k->sequence)));
    CHECK_OK(wrap_net(k, r));
    CHECK_OK(oar_state_create(&r->state));
    CHECK_OK(oar_state_add_module(r->state, r->net, NULL));
    CHECK_OK(oar_state_add_i64(r->state, "step", &r->step));
    adam.lr = 1e-2;
    adam.eps =
        1e-3; /* a bias of keys has no gradient but what rounding leaves */
    if (k->wrap == FSDP || k->wrap == ZERO) {
        param = oar_fsdp_params(r->net, &count);
        CHECK_OK(oar_adamw_create_over(count, param, &adam, &r->optim));
    } else {
        CHECK_OK(oar_adamw_create(r->net, &adam, &r->optim));
    }
    return oar_state_add_optim(r->state, r->optim, r->net, NULL);
}

static void drop_run(tp_run *r)
{
    oar_state_destroy(r->state);
    oar_optim_destroy(r->optim);
    oar_module_release(r->net);
    oar_mesh_release(r->mesh);
}

/* All ranks have the same batch, so any mesh takes the same steps. */
static oar_status train_to(const tp_run_kind *k, tp_run *r, int64_t end)
{
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (; r->step < end; r->step++) {
        uint64_t seed = (uint64_t)r->step;
        oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT),
                                    seed, 0, WORDS);
        oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                    seed + 50, 0, WORDS);
        oar_tensor *logits = oar_forward(tape, r->net, x);

        CHECK_OK(oar_backward(
            tape, k->tensor > 1
                      ? oar_tp_cross_entropy(tape, logits, y,
                                             oar_mesh_group(r->mesh, TENSOR),
                                             WORDS, NULL)
                      : oar_cross_entropy(tape, logits, y)));
        CHECK_OK(oar_optim_step(r->optim));
        oar_optim_zero_grad(r->optim);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* ---- one run after the other --------------------------------------------- */

/* Goes on with what is there, if anything, to step `end`, and saves. */
typedef struct leg {
    tp_run_kind kind;
    int64_t end;
} leg;

static oar_status run_leg(oar_group *g, void *arg)
{
    const leg *l = arg;
    oar_checkpoint *c;
    int64_t newest;
    tp_run r;

    CHECK_OK(make_run(g, &l->kind, &r));
    CHECK_OK(oar_checkpoint_open(
        g, path, OAR_OPTS(oar_checkpoint_opts, .no_sync = 1), &c));
    if (oar_checkpoint_newest(c, &newest) == OAR_OK)
        CHECK_OK(oar_checkpoint_load(c, r.state, newest, NULL));
    CHECK_OK(train_to(&l->kind, &r, l->end));
    CHECK_OK(oar_checkpoint_save(c, r.state, r.step, NULL));
    oar_checkpoint_close(c);
    drop_run(&r);
    return OAR_OK;
}

/* The checkpoint, loaded by one process, is what one process has trained. */
static oar_status compare_alone(oar_group *g, void *arg)
{
    const leg *l = arg;
    tp_run_kind plain = { .data = 1, .tensor = 1, .tied = l->kind.tied };
    static double a[MOST], b[MOST];
    oar_checkpoint *c;
    tp_run found, expected;

    CHECK_OK(make_run(g, &plain, &found));
    CHECK_OK(make_run(g, &plain, &expected));
    CHECK_OK(train_to(&plain, &expected, l->end));
    CHECK_OK(oar_checkpoint_open(
        g, path, OAR_OPTS(oar_checkpoint_opts, .read_only = 1), &c));
    CHECK_OK(oar_checkpoint_load(c, found.state, OAR_NEWEST, NULL));
    CHECK(found.step == l->end);
    for (int i = 0; i < oar_optim_params(found.optim); i++)
        for (int slot = -1; slot < 2; slot++) {
            oar_tensor *x = slot < 0 ? oar_module_param(found.net, i)
                                     : oar_optim_state(found.optim, i, slot);
            oar_tensor *y = slot < 0 ? oar_module_param(expected.net, i)
                                     : oar_optim_state(expected.optim, i, slot);

            CHECK(oar_tensor_count(x) <= MOST);
            CHECK_OK(oar_tensor_read(x, OAR_F64, a));
            CHECK_OK(oar_tensor_read(y, OAR_F64, b));
            for (int64_t n = 0; n < oar_tensor_count(x); n++)
                CHECK(fabs(a[n] - b[n]) <= 1e-9);
        }
    oar_checkpoint_close(c);
    drop_run(&found);
    drop_run(&expected);
    return OAR_OK;
}

static void go(tp_run_kind kind, int64_t end)
{
    leg l = { kind, end };

    if (ranks_run("sim", ranks_of(&kind), NULL, run_leg, &l) != OAR_OK)
        fail_msg("%d ranks, %d x %d, wrap %d, to step %d", ranks_of(&kind),
                 kind.data, kind.tensor, (int)kind.wrap, (int)end);
}

static void check(int tied, int64_t end)
{
    leg l = { { .tied = tied }, end };

    assert_int_equal(ranks_run("sim", 1, NULL, compare_alone, &l), OAR_OK);
}

static void saved_at_two_by_two_loaded_at_three(void **state)
{
    for (tp_wrapping w = DDP; w <= FSDP; w++) {
        make_folder(state);
        go((tp_run_kind){ 2, 2, w == ZERO, 0, w, 0 }, STOP);
        check(0, STOP);
        go((tp_run_kind){ 1, 3, 0, 0, PLAIN, 0 }, STOP + 1);
        check(0, STOP + 1);
        go((tp_run_kind){ 1, 4, 1, 0, FSDP, 0 }, STOP + 2);
        go((tp_run_kind){ 3, 1, 0, 0, w, 0 }, STEPS);
        go((tp_run_kind){ 2, 2, 0, 0, w, 0 }, STEPS + 1);
        check(0, STEPS + 1);
        remove_folder(state);
    }
}

/* Two copies of two shards of two parts: each element is saved once. */
static void saved_at_two_by_two_by_two_loaded_at_three(void **state)
{
    make_folder(state);
    go((tp_run_kind){ 2, 2, 1, 0, FSDP, 2 }, STOP);
    check(0, STOP);
    go((tp_run_kind){ 1, 3, 0, 0, PLAIN, 0 }, STOP + 1);
    go((tp_run_kind){ 2, 2, 0, 0, FSDP, 2 }, STEPS);
    check(0, STEPS);
    remove_folder(state);
}

static void a_tied_head_is_saved_once(void **state)
{
    make_folder(state);
    go((tp_run_kind){ 1, 1, 0, 1, PLAIN, 0 }, STOP);
    go((tp_run_kind){ 1, 3, 1, 1, PLAIN, 0 }, STEPS);
    check(1, STEPS);
    remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_at_two_by_two_loaded_at_three),
        cmocka_unit_test(saved_at_two_by_two_by_two_loaded_at_three),
        cmocka_unit_test(a_tied_head_is_saved_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
