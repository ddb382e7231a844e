/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas are the same when they are wrapped, after every step, and from run
 * to run; when they are not, every rank names the rank and the difference. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/test_job.h"
#include "support/last_error.h"

enum { IN = 3, OUT = 2, DEFAULT_RATE = 100 };

/* ---- when they are wrapped ----------------------------------------------- */

/* What the odd rank, which is rank 1 of three, has otherwise. */
typedef enum ddp_difference {
    NAME,
    SHAPE,
    DTYPE,
    MORE,
    FEWER,
    FROZEN,
    BUFFER,
    WEIGHTED,
    BUCKETS,
    ACCUMULATE,
    HOOK,
} ddp_difference;

static oar_tensor *through(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return x;
}

static const oar_module_class container_class = {
    .size = sizeof container_class, .name = "box", .forward = through
};

static oar_status make_container(ddp_difference how, int is_odd,
                                 oar_module **module)
{
    int64_t wide = is_odd && how == SHAPE ? OUT + 1 : OUT;
    oar_dtype dtype = is_odd && how == DTYPE ? OAR_F64 : OAR_F32;

    CHECK_OK(oar_module_create(&container_class, module));
    CHECK_OK(oar_module_add_param(*module, "w",
                                  oar_full(NULL, OAR_F32, OAR_SHAPE(IN), 1)));
    if (!is_odd || how != FEWER)
        CHECK_OK(
            oar_module_add_param(*module, is_odd && how == NAME ? "c" : "b",
                                 oar_full(NULL, dtype, OAR_SHAPE(wide), 1)));
    if (is_odd && how == MORE)
        CHECK_OK(oar_module_add_param(
            *module, "v", oar_full(NULL, OAR_F32, OAR_SHAPE(1), 1)));
    if (is_odd && how == FROZEN)
        CHECK_OK(oar_tensor_require_grad(oar_module_param(*module, 1), 0));
    return oar_module_add_buffer(
        *module, "seen",
        oar_full(NULL, OAR_F32, OAR_SHAPE(is_odd && how == BUFFER ? 5 : 4), 1));
}

static const char *const expected[] = {
    [NAME] = "number 1 is parameter module.b f32 [2] on rank 0 and parameter "
             "module.c f32 [2] on rank 1",
    [SHAPE] = "parameter module.b f32 [2] on rank 0 and parameter module.b f32 "
              "[3] on rank 1",
    [DTYPE] = "parameter module.b f32 [2] on rank 0 and parameter module.b f64 "
              "[2] on rank 1",
    [MORE] = "number 2 is buffer module.seen f32 [4] on rank 0 and parameter "
             "module.v f32 [1] on rank 1",
    [FEWER] = "number 1 is parameter module.b f32 [2] on rank 0 and buffer "
              "module.seen f32 [4] on rank 1",
    [FROZEN] = "parameter module.b f32 [2] on rank 0 and parameter module.b "
               "f32 [2], frozen on rank 1",
    [BUFFER] = "buffer module.seen f32 [4] on rank 0 and buffer module.seen "
               "f32 [5] on rank 1",
    [WEIGHTED] = "options: none on rank 0 and weighted 1 on rank 1",
    [BUCKETS] = "options: none on rank 0 and bucket_bytes 4096 on rank 1",
    [ACCUMULATE] = "options: none on rank 0 and accumulate 4 on rank 1",
    [HOOK] = "options: none on rank 0 and hook 1 on rank 1",
};

static oar_status wrap_differently(oar_group *g, void *arg)
{
    const ddp_difference how = *(const ddp_difference *)arg;
    int is_odd = oar_group_rank(g) == 1;
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_module *module, *wrapped = NULL;

    CHECK_OK(make_container(how, is_odd, &module));
    o.weighted = is_odd && how == WEIGHTED;
    o.bucket_bytes = is_odd && how == BUCKETS ? 4096 : 0;
    o.accumulate = is_odd && how == ACCUMULATE ? 4 : 0;
    o.hook = is_odd && how == HOOK ? &hook : NULL;
    CHECK(fails_with(oar_ddp_wrap(module, g, &o, &wrapped), OAR_E_MISMATCH,
                     expected[how])); /* on every rank */
    CHECK(wrapped == NULL);
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* the group goes on */
    return OAR_OK;
}

static void what_differs_is_named_on_every_rank(void **state)
{
    for (ddp_difference how = NAME; how <= HOOK; how++)
        ranks_all(3, wrap_differently, &how);
}

/* ---- after every step, from run to run ----------------------------------- */

enum { STEPS = 6, WIDE = 33, DEEP_NUMBERS = 2 * (WIDE * WIDE + WIDE) };

static oar_status make_deep(uint64_t seed, oar_module **net)
{
    oar_module *layer[3] = { 0 };

    CHECK_OK(oar_linear_create(WIDE, WIDE, seed, NULL, &layer[0]));
    CHECK_OK(oar_relu_create(&layer[1]));
    CHECK_OK(oar_linear_create(WIDE, WIDE, seed + 7, NULL, &layer[2]));
    return oar_sequential_create(3, layer, net);
}

static oar_status deep_pass(oar_group *g, oar_module *net, int step)
{
    float x[2 * WIDE];
    oar_tape *tape;
    oar_tensor *y;

    for (int i = 0; i < 2 * WIDE; i++)
        x[i] = sinf((float)(i * 1.3 + oar_group_rank(g) * 0.7 + step));
    CHECK_OK(oar_tape_create(&tape));
    y = oar_forward(tape, net,
                    oar_from_data(tape, OAR_F32, OAR_SHAPE(2, WIDE), x));
    CHECK_OK(oar_backward(tape, oar_mean(tape, oar_mul(tape, y, y))));
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void read_deep(const oar_module *net, float *to)
{
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor_read(oar_module_param(net, i), OAR_F32, to);
        to += oar_tensor_count(oar_module_param(net, i));
    }
}

/* The bits of all ranks side by side, compared with this rank's. */
static oar_status same_bits(oar_group *g, const float *mine)
{
    static _Thread_local float all[4 * DEEP_NUMBERS];
    int ranks = oar_group_size(g);

    CHECK(ranks <= 4);
    CHECK_OK(oar_all_gather(
        g, oar_span_of((float *)(uintptr_t)mine, DEEP_NUMBERS, OAR_F32),
        oar_span_of(all, (size_t)(ranks * DEEP_NUMBERS), OAR_F32), NULL, NULL));
    for (int r = 0; r < ranks; r++)
        CHECK(memcmp(all + r * DEEP_NUMBERS, mine,
                     DEEP_NUMBERS * sizeof *mine) == 0);
    return OAR_OK;
}

/* bits: of every step, of an earlier run if `again`. */
static oar_status run_once(oar_group *g, size_t bucket_bytes, int again,
                           float (*bits)[DEEP_NUMBERS])
{
    oar_ddp_opts o = oar_ddp_opts_init();
    float now[DEEP_NUMBERS];
    oar_module *net;
    oar_optim *optim;

    o.bucket_bytes = bucket_bytes;
    CHECK_OK(make_deep(5 + (uint64_t)oar_group_rank(g), &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(
        oar_adamw_create(net, OAR_OPTS(oar_adam_opts, .lr = 0.01), &optim));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(deep_pass(g, net, step));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        read_deep(net, now);
        CHECK_OK(same_bits(g, now));
        CHECK(!again || memcmp(bits[step], now, sizeof now) == 0);
        memcpy(bits[step], now, sizeof now);
    }
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status run_twice(oar_group *g, void *arg)
{
    static _Thread_local float bits[STEPS][DEEP_NUMBERS];
    size_t bucket_bytes = *(size_t *)arg;

    for (int again = 0; again < 3; again++)
        CHECK_OK(run_once(g, bucket_bytes, again, bits));
    return OAR_OK;
}

static void bits_are_the_same_on_all_ranks_and_from_run_to_run(void **state)
{
    static size_t limits[] = { 0, 1024, SIZE_MAX };

    for (int i = 0; i < 3; i++) {
        ranks_all(2, run_twice, &limits[i]);
        ranks_all(4, run_twice, &limits[i]);
    }
}

/* ---- whatever they go through -------------------------------------------- */

/* What is compared with what the first run left. Seen by all processes. */
typedef struct shared_bits {
    int known;
    size_t bucket_bytes;
    float bits[DEEP_NUMBERS];
} shared_bits;

static oar_status run_canonical(oar_group *g, void *arg)
{
    shared_bits *s = arg;
    oar_ddp_opts o = oar_ddp_opts_init();
    float now[DEEP_NUMBERS];
    oar_module *net;
    oar_optim *optim;

    o.bucket_bytes = s->bucket_bytes;
    o.canonical = 1;
    CHECK_OK(make_deep(5, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(
        oar_adamw_create(net, OAR_OPTS(oar_adam_opts, .lr = 0.01), &optim));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(deep_pass(g, net, step));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
    }
    read_deep(net, now);
    CHECK_OK(same_bits(g, now));
    if (!s->known && oar_group_rank(g) == 0)
        memcpy(s->bits, now, sizeof now);
    CHECK(!s->known || memcmp(s->bits, now, sizeof now) == 0);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

static void canonical_bits_do_not_depend_on_backend_or_buckets(void **state)
{
    static const size_t limits[] = { 0, 64, 5000 };
    shared_bits *s = shared_page(sizeof *s);

    for (int ranks = 3; ranks <= 4; ranks++) {
        s->known = 0;
        for (int i = 0; i < 3; i++)
            for (const char *const *b = ranks_backends(); *b != NULL; b++) {
                s->bucket_bytes = limits[i];
                if (ranks_run(*b, ranks, NULL, run_canonical, s) != OAR_OK)
                    fail_msg("%s, %zu: %s", *b, limits[i],
                             oar_last_error_text());
                s->known = 1;
            }
    }
    shared_page_free(s, sizeof *s);
}

/* ---- when they come apart ------------------------------------------------ */

static oar_status make_net(oar_group *g, const oar_ddp_opts *o,
                           oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();

    l.dtype = OAR_F64;
    CHECK_OK(oar_linear_create(IN, OUT, 5, &l, net));
    return oar_ddp_wrap(*net, g, o, net);
}

static oar_status backward(oar_module *net)
{
    oar_tape *tape;
    oar_tensor *x;
    oar_status status;

    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN), 1);
    status = oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x)));
    oar_tape_destroy(tape);
    return status;
}

/* One bit of the bias of rank 1 flips after 37 passes: the hundredth tells. */
static oar_status found_by_default(oar_group *g, void *arg)
{
    oar_status last = OAR_OK;
    oar_module *net;
    int passes = 0;

    CHECK_OK(make_net(g, NULL, &net));
    for (; last == OAR_OK && passes < 2 * DEFAULT_RATE; passes++) {
        uint64_t *bits = oar_tensor_data(oar_module_param(net, 1));
        if (passes == 37 && oar_group_rank(g) == 1)
            bits[1] ^= 1;
        last = backward(net);
    }
    CHECK(fails_with(
        last, OAR_E_MISMATCH,
        "parameter module.bias of rank 1 is not what it is on rank 0"));
    CHECK(passes == DEFAULT_RATE);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_module_release(net);
    return OAR_OK;
}

static void a_bit_that_flips_is_found_at_the_default_rate(void **state)
{
    ranks_all(3, found_by_default, NULL);
}

static oar_status never_looked_for(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;

    o.check_every = -1;
    CHECK_OK(make_net(g, &o, &net));
    if (oar_group_rank(g) == 1)
        CHECK_OK(oar_tensor_fill(oar_module_param(net, 1), 9));
    for (int i = 0; i <= DEFAULT_RATE; i++)
        CHECK_OK(backward(net));
    CHECK(
        fails_with(oar_ddp_check_replicas(net), OAR_E_MISMATCH, "module.bias"));
    oar_module_release(net);
    return OAR_OK;
}

static void no_check_looks_when_there_is_to_be_none(void **state)
{
    assert_int_equal(oar_sim_run(3, never_looked_for, NULL), OAR_OK);
}

/* The question goes behind all buckets, also on a rank that has none ready. */
static oar_tensor *one_of_two(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_forward(
        tape, oar_module_child(module, *(int *)oar_module_self(module)), x);
}

static const oar_module_class choice_class = { .size = sizeof choice_class,
                                               .name = "choice",
                                               .self_size = sizeof(int),
                                               .forward = one_of_two };

static oar_status differently_used(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_linear_opts l = oar_linear_opts_init();
    oar_module *net, *part;

    l.dtype = OAR_F64;
    o.check_every = 1;
    o.bucket_bytes = 16;
    CHECK_OK(oar_module_create(&choice_class, &net));
    *(int *)oar_module_self(net) = oar_group_rank(g) % 2;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(oar_linear_create(IN, OUT, 5, &l, &part));
        CHECK_OK(oar_module_add_child(net, i == 0 ? "a" : "b", part));
    }
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    for (int i = 0; i < 4; i++)
        CHECK_OK(backward(net));
    oar_module_release(net);
    return OAR_OK;
}

static void ranks_that_use_different_parts_are_checked_too(void **state)
{
    ranks_all(3, differently_used, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_differs_is_named_on_every_rank),
        cmocka_unit_test(bits_are_the_same_on_all_ranks_and_from_run_to_run),
        cmocka_unit_test(canonical_bits_do_not_depend_on_backend_or_buckets),
        cmocka_unit_test(a_bit_that_flips_is_found_at_the_default_rate),
        cmocka_unit_test(no_check_looks_when_there_is_to_be_none),
        cmocka_unit_test(ranks_that_use_different_parts_are_checked_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
