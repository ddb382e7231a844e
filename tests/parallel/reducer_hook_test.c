/* SPDX-License-Identifier: Apache-2.0 */
/* What hooks leave in a bucket, compared with their definitions: half types to
 * the bit, PowerSGD as in its paper, and a function of the user. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "base/dtype.h"
#include "base/rng.h"

/* ---- half types ---------------------------------------------------------- */

enum { NUMBERS = 67 };

typedef struct half_hook_case {
    oar_dtype wire, dtype;
    int weighted;
} half_hook_case;

/* Of few enough bits that sums in f32 are exact, but not all in 8 or 11. */
static double number(int rank, int i)
{
    double x = (double)((i * 37 + rank * 101) % 1021 - 510) / 64;

    return x + (i % 3) * 0x1p-9 - rank * 0x1p-8;
}

static double rounded(double x, oar_dtype dtype)
{
    unsigned char half[2];
    double back;

    oari_convert(half, dtype, &x, OAR_F64, 1);
    oari_convert(&back, OAR_F64, half, dtype, 1);
    return back;
}

/* Each is rounded, they are added, and the mean is rounded. */
static double half_mean(const half_hook_case *c, int ranks, int i)
{
    double sum = 0, weights = 0;

    for (int r = 0; r < ranks; r++) {
        double weight = c->weighted ? 1 + 2 * (r % 2) : 1;
        sum += weight * rounded(number(r, i), c->wire);
        weights += weight;
    }
    return rounded(sum / weights, c->wire);
}

static oar_status write_numbers(oar_span to, int rank)
{
    for (size_t i = 0; i < to.count; i++) {
        double x = number(rank, (int)i);
        oari_convert((unsigned char *)to.data + i * oar_dtype_size(to.dtype),
                     to.dtype, &x, OAR_F64, 1);
    }
    return OAR_OK;
}

static oar_status half_is_rounded_twice(oar_group *g, void *arg)
{
    const half_hook_case *c = arg;
    int rank = oar_group_rank(g);
    oar_span array = oar_span_of(NULL, NUMBERS, c->dtype);
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_reducer *r;

    CHECK_OK(oar_hook_half(c->wire, &hook));
    o.hook = &hook;
    o.weighted = c->weighted;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    if (c->weighted)
        CHECK_OK(oar_reducer_weigh(r, 1 + 2 * (rank % 2)));
    for (int pass = 0; pass < 2; pass++) {
        CHECK_OK(write_numbers(oar_reducer_span(r, 0), rank));
        CHECK_OK(oar_reducer_ready(r, 0));
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < NUMBERS; i++) {
            double got;
            oari_convert(&got, OAR_F64,
                         (unsigned char *)oar_reducer_span(r, 0).data +
                             (size_t)i * oar_dtype_size(c->dtype),
                         c->dtype, 1);
            CHECK(got == half_mean(c, oar_group_size(g), i));
        }
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void half_hooks_round_before_and_after_to_the_bit(void **state)
{
    static half_hook_case cases[] = {
        { OAR_F16, OAR_F32, 0 }, { OAR_BF16, OAR_F32, 0 },
        { OAR_F16, OAR_F64, 0 }, { OAR_BF16, OAR_F64, 1 },
        { OAR_F16, OAR_F32, 1 }, { OAR_BF16, OAR_F32, 1 },
        { OAR_F16, OAR_F16, 0 }, { OAR_BF16, OAR_BF16, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ranks_all(2, half_is_rounded_twice, &cases[i]);
        ranks_all(4, half_is_rounded_twice, &cases[i]);
    }
}

/* ---- PowerSGD ------------------------------------------------------------ */

enum { N = 13, M = 7, RANK = 2, RANKS = 3, PASSES = 4, SEED = 77 };

/* The whole algorithm, for all ranks at once, in f64. */
typedef struct power_sgd_reference {
    double lost[RANKS][N][M], m[RANKS][N][M];
    double q[RANK][M], p[RANK][N], out[N][M];
    double weight[RANKS], weights;
    int feedback;
} power_sgd_reference;

static double entry(int rank, int pass, int i, int k)
{
    return sin(i * 1.1 + k * 2.3 + pass) + 0.3 * cos(i * k + rank);
}

static void begin_reference(power_sgd_reference *t, int weighted, int feedback)
{
    float q[RANK * M];
    oari_rng random = { SEED, 0 };

    memset(t, 0, sizeof *t);
    oari_rng_normal_f32(random, 0, q, RANK * M);
    for (int c = 0; c < RANK; c++)
        for (int k = 0; k < M; k++)
            t->q[c][k] = (double)q[c * M + k];
    for (int r = 0; r < RANKS; r++)
        t->weights += t->weight[r] = weighted ? r + 1 : 1;
    t->feedback = feedback;
}

/* P = the mean of M Q, made orthonormal. */
static void find_p(power_sgd_reference *t)
{
    memset(t->p, 0, sizeof t->p);
    for (int c = 0; c < RANK; c++) {
        double length = 0;
        for (int r = 0; r < RANKS; r++)
            for (int i = 0; i < N; i++)
                for (int k = 0; k < M; k++)
                    t->p[c][i] +=
                        t->weight[r] / t->weights * t->m[r][i][k] * t->q[c][k];
        for (int b = 0; b < c; b++) {
            double dot = 0;
            for (int i = 0; i < N; i++)
                dot += t->p[b][i] * t->p[c][i];
            for (int i = 0; i < N; i++)
                t->p[c][i] -= dot * t->p[b][i];
        }
        for (int i = 0; i < N; i++)
            length += t->p[c][i] * t->p[c][i];
        for (int i = 0; i < N; i++)
            t->p[c][i] /= sqrt(length);
    }
}

/* Q = the mean of M' P; what stands for the mean is P Q'. */
static void find_q(power_sgd_reference *t)
{
    memset(t->q, 0, sizeof t->q);
    memset(t->out, 0, sizeof t->out);
    for (int c = 0; c < RANK; c++)
        for (int i = 0; i < N; i++)
            for (int k = 0; k < M; k++)
                for (int r = 0; r < RANKS; r++)
                    t->q[c][k] +=
                        t->weight[r] / t->weights * t->m[r][i][k] * t->p[c][i];
    for (int c = 0; c < RANK; c++)
        for (int i = 0; i < N; i++)
            for (int k = 0; k < M; k++)
                t->out[i][k] += t->p[c][i] * t->q[c][k];
}

static void next_of_reference(power_sgd_reference *t, int pass)
{
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N; i++)
            for (int k = 0; k < M; k++)
                t->m[r][i][k] = entry(r, pass, i, k) + t->lost[r][i][k];
    find_p(t);
    find_q(t);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N; i++)
            for (int k = 0; k < M; k++)
                t->lost[r][i][k] =
                    t->feedback ? t->m[r][i][k] - t->out[i][k] : 0;
}

static oar_status compare(const float *got, const power_sgd_reference *t)
{
    for (int i = 0; i < N; i++)
        for (int k = 0; k < M; k++)
            CHECK(fabs((double)got[i * M + k] - t->out[i][k]) < 2e-4);
    return OAR_OK;
}

static oar_status power_sgd_as_reference(oar_group *g, void *arg)
{
    static const int64_t shape[1][2] = { { N, M } };
    const int *is = arg; /* weighted, with feedback */
    oar_span array = oar_span_of(NULL, N * M, OAR_F32);
    oar_power_sgd_opts p = oar_power_sgd_opts_init();
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_reducer *r;
    power_sgd_reference t;

    p.rank = RANK;
    p.start = -1;
    p.least = 1;
    p.seed = SEED;
    p.no_feedback = !is[1];
    o.weighted = is[0];
    CHECK_OK(oar_hook_power_sgd(1, shape, &p, &hook));
    o.hook = &hook;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    if (is[0])
        CHECK_OK(oar_reducer_weigh(r, oar_group_rank(g) + 1));
    begin_reference(&t, is[0], is[1]);
    for (int pass = 0; pass < PASSES; pass++) {
        float *m = oar_reducer_span(r, 0).data;
        for (int i = 0; i < N * M; i++)
            m[i] = (float)entry(oar_group_rank(g), pass, i / M, i % M);
        CHECK_OK(oar_reducer_ready(r, 0));
        CHECK_OK(oar_reducer_wait(r));
        next_of_reference(&t, pass);
        CHECK_OK(compare(m, &t));
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void power_sgd_does_what_the_paper_says(void **state)
{
    static int cases[][2] = { { 0, 1 }, { 0, 0 }, { 1, 1 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_all(RANKS, power_sgd_as_reference, cases[i]);
}

/* ---- a function of the user's -------------------------------------------- */

/* The greatest of all ranks instead of the mean, less one. */
static oar_status begin_greatest(void *arg, oar_group *group,
                                 const oar_bucket *bucket, oar_work **work)
{
    ++*(int *)arg;
    return oar_all_reduce(group, bucket->data, OAR_MAX, NULL, work);
}

static oar_status less_one(void *arg, oar_group *group,
                           const oar_bucket *bucket)
{
    for (int i = 0; i < bucket->arrays; i++)
        for (size_t k = 0; k < bucket->count[i]; k++)
            ((double *)bucket->data.data)[bucket->at[i] + k] -= 1;
    return OAR_OK;
}

static oar_status own_function(oar_group *g, void *arg)
{
    int begun = 0;
    oar_linear_opts l = oar_linear_opts_init();
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    double weight[6], bias[2];
    oar_module *net;
    oar_tape *tape;

    hook.arg = &begun;
    hook.start = begin_greatest;
    hook.finish = less_one;
    o.hook = &hook;
    o.bucket_bytes = 16;
    l.dtype = OAR_F64;
    CHECK_OK(oar_linear_create(3, 2, 5, &l, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 1; step <= 3; step++) {
        oar_tensor *x = oar_full(tape, OAR_F64, OAR_SHAPE(1, 3),
                                 10 * step + oar_group_rank(g));
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(net, 0)),
                                 OAR_F64, weight));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(net, 1)),
                                 OAR_F64, bias));
        for (int i = 0; i < 6; i++)
            CHECK(weight[i] == 10 * step + oar_group_size(g) - 2);
        CHECK(bias[0] == 0 && bias[1] == 0);
        CHECK(begun == 2 * step);
        oar_tensor_clear_grad(oar_module_param(net, 0));
        oar_tensor_clear_grad(oar_module_param(net, 1));
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_hook_of_the_user_reduces_as_it_likes(void **state)
{
    ranks_all(1, own_function, NULL);
    ranks_all(3, own_function, NULL);
}

/* How many had begun when the first layer's gradient, the last, was ready. */
typedef struct progress {
    int begun, when_last;
} progress;

static oar_status note_begun(oar_tensor *leaf, void *arg)
{
    progress *p = arg;

    p->when_last = p->begun;
    return OAR_OK;
}

static oar_status while_backward_runs(oar_group *g, void *arg)
{
    enum { LAYERS = 4, WIDE = 9 };
    progress p = { 0, 0 };
    oar_module *layer[LAYERS] = { 0 }, *net;
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_hook *last;
    oar_tape *tape;

    hook.arg = &p;
    hook.start = begin_greatest; /* counts in p.begun */
    o.hook = &hook;
    o.bucket_bytes = 16;
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(oar_linear_create(WIDE, WIDE, 5, NULL, &layer[i]));
    CHECK_OK(oar_sequential_create(LAYERS, layer, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(
        oar_tensor_on_grad(oar_module_param(net, 0), note_begun, &p, &last));
    CHECK_OK(oar_tape_create(&tape));
    for (int pass = 0; pass < 3; pass++) {
        oar_tensor *x = oar_full(tape, OAR_F32, OAR_SHAPE(1, WIDE), 1);
        p.begun = 0;
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
        CHECK(p.begun == 2 * LAYERS);
        CHECK(p.when_last >= 2 * LAYERS - 2);
        oar_tape_reset(tape);
    }
    oar_hook_remove(last);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void buckets_begin_while_backward_runs(void **state)
{
    ranks_all(1, while_backward_runs, NULL);
    ranks_all(3, while_backward_runs, NULL);
}

/* One that fails: the pass does, with its status, and the next may go well. */
static oar_status fail_once(void *arg, oar_group *group,
                            const oar_bucket *bucket, oar_work **work)
{
    if (++*(int *)arg == 1)
        return OAR_E_UNSUPPORTED;
    return oar_all_reduce(group, bucket->data, OAR_AVG, NULL, work);
}

static oar_status failing_function(oar_group *g, void *arg)
{
    int begun = 0;
    oar_span array = oar_span_of(NULL, 5, OAR_F32);
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_reducer *r;

    hook.arg = &begun;
    hook.start = fail_once;
    o.hook = &hook;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    CHECK(oar_reducer_ready(r, 0) == OAR_E_UNSUPPORTED);
    CHECK_OK(oar_reducer_wait(r)); /* what did not begin begins now */
    for (int i = 0; i < 5; i++)
        ((float *)oar_reducer_span(r, 0).data)[i] = (float)oar_group_rank(g);
    CHECK_OK(oar_reducer_ready(r, 0));
    CHECK_OK(oar_reducer_wait(r));
    CHECK(((float *)oar_reducer_span(r, 0).data)[4] ==
          (float)(oar_group_size(g) - 1) / 2);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void a_function_that_fails_ends_its_pass_only(void **state)
{
    ranks_all(3, failing_function, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_hooks_round_before_and_after_to_the_bit),
        cmocka_unit_test(power_sgd_does_what_the_paper_says),
        cmocka_unit_test(a_hook_of_the_user_reduces_as_it_likes),
        cmocka_unit_test(buckets_begin_while_backward_runs),
        cmocka_unit_test(a_function_that_fails_ends_its_pass_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
