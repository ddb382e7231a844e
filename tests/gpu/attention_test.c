/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU gives what the cpu's gives, to rounding, and so do its
 * gradients: every float dtype, heads that share keys, ragged lengths, masks,
 * the same dropout; twice the same bits. */
#include "support/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "base/status.h"
#include "support/last_error.h"

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };
static uint64_t seed = 1;

enum { OUT, DQ, DK, DV, RESULTS };

typedef struct problem {
    oar_dtype dtype;
    int outer, heads, kv_heads, t, s, d, e;
    oar_attention_opts opts;
} problem;

/* The result and its gradients, read as f64; oar_free... by free. */
typedef struct attention_results {
    double *of[RESULTS];
    size_t count[RESULTS];
} attention_results;

static int read_numbers(const oar_tensor *t, attention_results *n, int i)
{
    if (t == NULL)
        return 0;
    n->count[i] = (size_t)oar_tensor_count(t);
    n->of[i] = calloc(n->count[i] + 1, sizeof(double));
    return oar_tensor_read(t, OAR_F64, n->of[i]) == OAR_OK;
}

static void drop_numbers(attention_results *n)
{
    for (int i = 0; i < RESULTS; i++)
        free(n->of[i]);
}

/* Heads lie side by side in a row, as a linear layer makes them. */
static oar_tensor *make_heads(const problem *p, oar_device device, int heads,
                              int rows, int width, uint64_t with)
{
    oar_tensor *here = oar_normal(
        NULL, p->dtype, OAR_SHAPE(p->outer, rows, heads, width), with, 0, 1);
    oar_tensor *there = oar_to(NULL, here, device);

    oar_tensor_release(here);
    return there;
}

static int run_on(const problem *p, oar_device device, uint64_t with,
                  attention_results *n)
{
    oar_attention_opts o = p->opts;
    oar_tensor *leaf[3] = {
        make_heads(p, device, p->heads, p->t, p->d, with),
        make_heads(p, device, p->kv_heads, p->s, p->d, with + 1),
        make_heads(p, device, p->kv_heads, p->s, p->e, with + 2)
    };
    oar_tensor *grad = make_heads(p, device, p->heads, p->t, p->e, with + 3);
    oar_tensor *view[3], *out, *seen, *mask = NULL;
    oar_tape *tape = NULL;
    int right;

    if (oar_tape_create(&tape) != OAR_OK)
        return 0;
    if (o.mask != NULL)
        o.mask = mask = oar_to(NULL, o.mask, device);
    for (int i = 0; i < 3; i++) {
        oar_tensor_require_grad(leaf[i], 1);
        view[i] = oar_transpose(tape, leaf[i], 1, 2);
    }
    seen = oar_transpose(NULL, grad, 1, 2);
    out = oar_attention(tape, view[0], view[1], view[2], &o);
    right = out != NULL && read_numbers(out, n, OUT) &&
            oar_backward_from(tape, 1, &out, &seen) == OAR_OK;
    for (int i = 0; i < 3; i++) {
        right = right && read_numbers(oar_tensor_grad(leaf[i]), n, DQ + i);
        oar_tensor_release(leaf[i]);
    }
    if (!right)
        fprintf(stderr, "attention failed: %s\n", oar_last_error_text());
    oar_tensor_release(seen);
    oar_tensor_release(grad);
    oar_tensor_release(mask);
    oar_tape_destroy(tape);
    return right;
}

static double allowed(oar_dtype dtype)
{
    return dtype == OAR_F64   ? 1e-11
           : dtype == OAR_F32 ? 1e-4
           : dtype == OAR_F16 ? 1e-2
                              : 6e-2;
}

static int agrees(const problem *p)
{
    static const char *const name[] = { "out", "dq", "dk", "dv" };
    attention_results here = { { NULL }, { 0 } }, there = here, again = here;
    uint64_t with = seed;
    int right = run_on(p, cpu, with, &here) && run_on(p, gpu, with, &there) &&
                run_on(p, gpu, with, &again);

    seed += 4;
    for (int i = 0; i < RESULTS && right; i++) {
        double worst = 0;

        for (size_t k = 0; k < here.count[i]; k++)
            if (!(fabs(here.of[i][k] - there.of[i][k]) <= worst))
                worst = isfinite(there.of[i][k])
                            ? fabs(here.of[i][k] - there.of[i][k])
                            : 1e9;
        right = worst <= allowed(p->dtype) &&
                memcmp(there.of[i], again.of[i],
                       there.count[i] * sizeof(double)) == 0;
        if (!right)
            fprintf(stderr,
                    "%s of %s, t %d, s %d, d %d, causal %d: off by %g\n",
                    name[i], oar_dtype_name(p->dtype), p->t, p->s, p->d,
                    p->opts.causal, worst);
    }
    drop_numbers(&here);
    drop_numbers(&there);
    drop_numbers(&again);
    return right;
}

GPU_TEST(halves_are_as_on_the_cpu)
{
    static const int shape[][6] = {
        /* heads, of k and v, t, s, d, causal */
        { 2, 2, 40, 40, 64, 1 },  { 2, 1, 33, 70, 64, 0 },
        { 1, 1, 70, 140, 64, 1 }, { 1, 1, 140, 33, 64, 1 },
        { 1, 1, 37, 37, 128, 1 }, { 2, 1, 20, 66, 128, 0 },
        { 1, 1, 130, 20, 64, 1 }, { 1, 1, 20, 260, 64, 1 },
    };

    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const int *n = shape[i];
        problem p = { .dtype = i % 2 ? OAR_F16 : OAR_BF16,
                      .outer = 1 + (i == 0),
                      .heads = n[0],
                      .kv_heads = n[1],
                      .t = n[2],
                      .s = n[3],
                      .d = n[4],
                      .e = n[4],
                      .opts = oar_attention_opts_init() };

        p.opts.causal = n[5];
        RANK_CHECK(agrees(&p));
    }
    return 0;
}

/* Long enough for every path of a GPU's kernels. */
static int attend_long(test_job *c, int rank, void *arg)
{
    static const int shape[][7] = {
        /* outer, heads, of k and v, t, s, d, causal */
        { 1, 2, 2, 700, 700, 64, 1 },  { 1, 2, 1, 333, 517, 64, 0 },
        { 1, 2, 2, 129, 640, 64, 1 },  { 1, 1, 1, 897, 897, 64, 1 },
        { 1, 2, 1, 517, 333, 128, 1 }, { 1, 2, 2, 300, 300, 128, 0 },
        { 70, 2, 2, 257, 257, 64, 1 }, { 70, 2, 1, 200, 130, 128, 1 },
        { 180, 3, 3, 300, 70, 64, 1 },
    };

    (void)c, (void)rank, (void)arg;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const int *n = shape[i];
        problem p = { .dtype = i % 2 ? OAR_F16 : OAR_BF16,
                      .outer = n[0],
                      .heads = n[1],
                      .kv_heads = n[2],
                      .t = n[3],
                      .s = n[4],
                      .d = n[5],
                      .e = n[5],
                      .opts = oar_attention_opts_init() };

        p.opts.causal = n[6];
        RANK_CHECK(agrees(&p));
    }
    return 0;
}

static void long_sequences_are_as_on_the_cpu(void **state)
{
    (void)state;
    if (!gpu_is_real())
        skip(); /* the stand-in would take minutes */
    gpu_run("long_sequences_are_as_on_the_cpu", attend_long);
}

GPU_TEST(any_width_and_dtype_is_as_on_the_cpu)
{
    static const oar_dtype dtype[] = { OAR_F32, OAR_F64, OAR_BF16, OAR_F32 };

    for (int i = 0; i < 4; i++) {
        problem p = { .dtype = dtype[i],
                      .outer = 2,
                      .heads = 4,
                      .kv_heads = 1 + i % 2,
                      .t = 9,
                      .s = i == 3 ? 131 : 7,
                      .d = 5,
                      .e = 6,
                      .opts = oar_attention_opts_init() };

        p.opts.causal = i % 2;
        RANK_CHECK(agrees(&p));
    }
    return 0;
}

GPU_TEST(short_sequences_are_as_on_the_cpu)
{
    static const int shape[][5] = {
        /* t, s, d, e, causal */
        { 64, 64, 32, 32, 1 },
        { 5, 63, 3, 32, 0 },
        { 33, 17, 32, 7, 1 },
    };

    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const int *n = shape[i];
        problem p = { .dtype = OAR_F32,
                      .outer = 2,
                      .heads = 2,
                      .kv_heads = 2,
                      .t = n[0],
                      .s = n[1],
                      .d = n[2],
                      .e = n[3],
                      .opts = oar_attention_opts_init() };

        p.opts.causal = n[4];
        RANK_CHECK(agrees(&p));
    }
    return 0;
}

GPU_TEST(masks_and_dropout_are_as_on_the_cpu)
{
    problem p = { .dtype = OAR_F32,
                  .outer = 2,
                  .heads = 2,
                  .kv_heads = 2,
                  .t = 6,
                  .s = 9,
                  .d = 8,
                  .e = 8,
                  .opts = oar_attention_opts_init() };
    uint8_t shown[6 * 9];

    p.opts.dropout = 0.3;
    p.opts.seed = 77;
    RANK_CHECK(agrees(&p));
    for (int i = 0; i < 6 * 9; i++)
        shown[i] = i / 9 != 2 && i % 4 != 1; /* row 2 sees nothing */
    p.opts.mask = oar_from_data(NULL, OAR_BOOL, OAR_SHAPE(6, 9), shown);
    RANK_CHECK(agrees(&p));
    oar_tensor_release(p.opts.mask);
    p.opts.mask = oar_normal(NULL, OAR_F32, OAR_SHAPE(2, 1, 6, 9), 3, 0, 1);
    p.opts.dropout = 0;
    p.opts.causal = 1;
    RANK_CHECK(agrees(&p));
    oar_tensor_release(p.opts.mask);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_as_on_the_cpu),
        cmocka_unit_test(long_sequences_are_as_on_the_cpu),
        cmocka_unit_test(any_width_and_dtype_is_as_on_the_cpu),
        cmocka_unit_test(short_sequences_are_as_on_the_cpu),
        cmocka_unit_test(masks_and_dropout_are_as_on_the_cpu),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
