/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor parallel GPT is the GPT of one process: logits, losses, gradients
 * and ten steps, for any number of heads, hidden units and words. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum {
    ROWS = 3,
    CONTEXT = 5,
    STEPS = 10,
    TOKENS = ROWS * CONTEXT,
    MOST = 9000
};

typedef struct gpt_case {
    int ranks, heads, kv_heads;
    int64_t width, hidden, words;
    int tied, rotary, sequence, recompute, lazy, smooth;
    double dropout;
    oar_dtype dtype;
} gpt_case;

static double tolerance(const gpt_case *c)
{
    return c->dtype == OAR_F64 ? 1e-11 : 2e-4;
}

/* ---- the model ----------------------------------------------------------- */

static oar_status make_gpt(const gpt_case *c, int lazy, oar_module **gpt)
{
    int before = oar_lazy(lazy);
    oar_status status = oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = c->words, .context = CONTEXT + 1,
                 .width = c->width, .layers = 2, .heads = c->heads,
                 .kv_heads = c->kv_heads, .hidden = c->hidden, .tied = c->tied,
                 .rotary = c->rotary, .dropout = c->dropout,
                 .attention_dropout = c->dropout, .recompute = c->recompute,
                 .seed = 7, .dtype = c->dtype),
        gpt);

    oar_lazy(before);
    return status;
}

static oar_tensor *words_of(oar_tape *tape, const gpt_case *c, uint64_t seed,
                            oar_shape shape)
{
    return oar_uniform(tape, OAR_I64, shape, seed, 0, (double)c->words);
}

static oar_cross_entropy_opts loss_opts(const gpt_case *c)
{
    return (oar_cross_entropy_opts){ .size = sizeof(oar_cross_entropy_opts),
                                     .has_ignore = c->smooth,
                                     .ignore = 2,
                                     .label_smoothing = c->smooth ? 0.1 : 0 };
}

/* ---- which part of a whole a rank has, by the name of a parameter -------- */

static oar_tensor *rows_from(oar_tape *tape, oar_tensor *x, int dim,
                             int64_t whole, int rank, int ranks)
{
    int64_t first = 0, count = oar_tp_part(whole, rank, ranks, &first);

    return oar_narrow(tape, x, dim, first, count);
}

static oar_tensor *part_of(oar_tape *tape, const gpt_case *c, const char *name,
                           oar_tensor *x, int rank, int ranks)
{
    int kv = c->kv_heads > 0 ? c->kv_heads : c->heads;
    int64_t each = c->width / c->heads, share = c->heads / kv, first = 0;
    int64_t count = oar_tp_part(kv, rank, ranks, &first);
    oar_tensor *qkv[3];

    if (strstr(name, "tok.") != NULL || strstr(name, "head.") != NULL)
        return rows_from(tape, x, 0, c->words, rank, ranks);
    if (strstr(name, ".up.") != NULL)
        return rows_from(tape, x, 0, c->hidden, rank, ranks);
    if (strstr(name, ".down.weight") != NULL)
        return rows_from(tape, x, 1, c->hidden, rank, ranks);
    if (strstr(name, ".out.weight") != NULL)
        return oar_narrow(tape, x, 1, first * share * each,
                          count * share * each);
    if (strstr(name, ".qkv.") == NULL)
        return x;
    for (int i = 0; i < 3; i++)
        qkv[i] = oar_narrow(
            tape, x, 0,
            (i == 0 ? first * share : c->heads + (i - 1) * kv + first) * each,
            (i == 0 ? count * share : count) * each);
    return oar_cat(tape, 3, qkv, 0);
}

/* Compares this rank's part of each parameter, or of its gradient, with the
 * model of one process; 0: bitwise. */
static oar_status compare(const gpt_case *c, const oar_module *mine,
                          const oar_module *whole, int grads, int rank,
                          double most)
{
    static _Thread_local double a[MOST], b[MOST];
    char name[128];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK(oar_module_params(mine) == oar_module_params(whole));
    for (int i = 0; i < oar_module_params(mine); i++) {
        oar_tensor *x = oar_module_param(mine, i);
        oar_tensor *y = oar_module_param(whole, i);

        CHECK_OK(oar_module_param_name(mine, i, name, sizeof name));
        x = grads ? oar_tensor_grad(x) : oar_tensor_retain(x);
        y = part_of(tape, c, name, grads ? oar_tensor_grad(y) : y, rank,
                    c->ranks);
        CHECK(x != NULL && y != NULL);
        CHECK(oar_tensor_count(x) == oar_tensor_count(y) &&
              oar_tensor_count(x) <= MOST);
        CHECK_OK(oar_tensor_read(x, OAR_F64, a));
        CHECK_OK(oar_tensor_read(y, OAR_F64, b));
        for (int64_t k = 0; k < oar_tensor_count(x); k++)
            if (!(fabs(a[k] - b[k]) <= most * (1 + fabs(b[k])))) {
                print_error("%s[%d]: %.17g, not %.17g\n", name, (int)k, a[k],
                            b[k]);
                return OAR_E_DATA;
            }
        if (!grads)
            oar_tensor_release(x);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* ---- training ------------------------------------------------------------ */

static oar_status compare_logits(const gpt_case *c, oar_group *g,
                                 oar_module *mine, oar_module *whole)
{
    oar_tensor *x = words_of(NULL, c, 900, OAR_SHAPE(ROWS, CONTEXT));
    static _Thread_local double a[MOST], b[MOST];
    oar_tensor *part, *all, *expected;

    oar_module_train(mine, 0);
    oar_module_train(whole, 0);
    part = oar_forward(NULL, mine, x);
    all = oar_tp_gather(NULL, part, g, 1, c->words);
    expected = oar_forward(NULL, whole, x);
    CHECK(all != NULL && expected != NULL);
    CHECK_OK(oar_tensor_read(all, OAR_F64, a));
    CHECK_OK(oar_tensor_read(expected, OAR_F64, b));
    for (int64_t k = 0; k < TOKENS * c->words; k++)
        CHECK(fabs(a[k] - b[k]) <= tolerance(c) * (1 + fabs(b[k])));
    oar_module_train(mine, 1);
    oar_module_train(whole, 1);
    oar_tensor_release(expected);
    oar_tensor_release(all);
    oar_tensor_release(part);
    oar_tensor_release(x);
    return OAR_OK;
}

static oar_status train_both(oar_group *g, void *arg)
{
    const gpt_case *c = arg;
    oar_cross_entropy_opts o = loss_opts(c);
    oar_module *mine, *whole;
    oar_optim *optim[2];
    oar_tape *tape;
    double loss[2];

    CHECK_OK(make_gpt(c, c->lazy, &mine));
    CHECK_OK(make_gpt(c, 0, &whole));
    CHECK_OK(oar_tp_parallelize_gpt(
        mine, g, OAR_OPTS(oar_tp_opts, .sequence = c->sequence)));
    CHECK_OK(compare(c, mine, whole, 0, oar_group_rank(g), 0));
    CHECK_OK(compare_logits(c, g, mine, whole));
    CHECK_OK(oar_sgd_create(
        mine, OAR_OPTS(oar_sgd_opts, .lr = 0.2, .momentum = 0.9), &optim[0]));
    CHECK_OK(oar_sgd_create(
        whole, OAR_OPTS(oar_sgd_opts, .lr = 0.2, .momentum = 0.9), &optim[1]));
    CHECK_OK(oar_tape_create(&tape));
    oar_tape_share(tape, c->ranks % 2 ? 64 : 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        /* The last sequences of a file are shorter. */
        int64_t length = step % 4 == 3 && !c->recompute ? 2 : CONTEXT;
        oar_tensor *x = words_of(tape, c, step, OAR_SHAPE(ROWS, length));
        oar_tensor *y = words_of(tape, c, 50 + step, OAR_SHAPE(ROWS * length));
        oar_tensor *a = oar_tp_cross_entropy(tape, oar_forward(tape, mine, x),
                                             y, g, c->words, &o);
        oar_tensor *b =
            oar_cross_entropy_with(tape, oar_forward(tape, whole, x), y, &o);

        CHECK_OK(oar_tensor_item(a, &loss[0]));
        CHECK_OK(oar_tensor_item(b, &loss[1]));
        CHECK(fabs(loss[0] - loss[1]) <= tolerance(c) * (1 + loss[1]));
        CHECK_OK(oar_backward(tape, a));
        CHECK_OK(oar_backward(tape, b));
        if (step == 0)
            CHECK_OK(
                compare(c, mine, whole, 1, oar_group_rank(g), tolerance(c)));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(oar_optim_step(optim[i]));
            oar_optim_zero_grad(optim[i]);
        }
        oar_tape_reset(tape);
    }
    CHECK_OK(compare(c, mine, whole, 0, oar_group_rank(g), tolerance(c)));
    oar_tape_destroy(tape);
    oar_optim_destroy(optim[0]);
    oar_optim_destroy(optim[1]);
    oar_module_release(whole);
    oar_module_release(mine);
    return OAR_OK;
}

static void run(gpt_case c, const char *backend)
{
    if (c.width == 0)
        c.width = (int64_t)4 * c.heads;
    if (c.hidden == 0)
        c.hidden = 37;
    if (ranks_run(backend, c.ranks, NULL, train_both, &c) != OAR_OK)
        fail_msg("%d ranks, %d heads, %d words, sequence %d, tied %d, rotary "
                 "%d, recompute %d over %s",
                 c.ranks, c.heads, (int)c.words, c.sequence, c.tied, c.rotary,
                 c.recompute, backend);
}

static void any_ranks_heads_and_words_give_the_model_of_one_process(void **s)
{
    static const int heads[] = { 4, 5, 3 };

    for (int n = 1; n <= 4; n++)
        for (int h = 0; h < 3; h++)
            for (int sequence = 0; sequence < 2; sequence++)
                run((gpt_case){ .ranks = n,
                                .heads = heads[h],
                                .words = (n + h) % 2 ? 97 : 65,
                                .sequence = sequence,
                                .tied = h == 1,
                                .smooth = (n + sequence) % 2,
                                .lazy = h != 0,
                                .dtype = OAR_F64 },
                    "sim");
}

/* Some ranks have no head, and few words and rows. */
static void five_to_eight_ranks_give_it(void **s)
{
    static const int heads[] = { 8, 5, 3, 6 };

    for (int n = 5; n <= 8; n++)
        for (int sequence = 0; sequence < 2; sequence++)
            run((gpt_case){ .ranks = n,
                            .heads = heads[n - 5],
                            .kv_heads = n == 8 ? 2 : 0,
                            .words = sequence ? 97 : 11,
                            .sequence = sequence,
                            .tied = n % 2,
                            .rotary = n == 8,
                            .smooth = n == 6,
                            .dropout = n == 7 ? 0.2 : 0,
                            .recompute = n == 5,
                            .dtype = OAR_F64 },
                "sim");
}

static void dropout_leaves_out_what_one_process_does(void **s)
{
    for (int n = 2; n <= 3; n++)
        for (int sequence = 0; sequence < 2; sequence++)
            for (int recompute = 0; recompute < 2; recompute++)
                run((gpt_case){ .ranks = n,
                                .heads = 5,
                                .words = 23,
                                .sequence = sequence,
                                .recompute = recompute,
                                .dropout = 0.25,
                                .dtype = OAR_F64 },
                    "sim");
}

static void rotary_and_shared_heads_of_k_and_v_work(void **s)
{
    for (int sequence = 0; sequence < 2; sequence++)
        for (int n = 2; n <= 4; n++)
            run((gpt_case){ .ranks = n,
                            .heads = 6,
                            .kv_heads = 3,
                            .words = 65,
                            .rotary = 1,
                            .tied = sequence,
                            .sequence = sequence,
                            .dtype = OAR_F64 },
                "sim");
}

static void processes_and_f32_give_it_too(void **s)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        for (int sequence = 0; sequence < 2; sequence++)
            run((gpt_case){ .ranks = 3,
                            .heads = 5,
                            .words = 97,
                            .sequence = sequence,
                            .dropout = 0.1,
                            .dtype = OAR_F32 },
                *b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            any_ranks_heads_and_words_give_the_model_of_one_process),
        cmocka_unit_test(five_to_eight_ranks_give_it),
        cmocka_unit_test(dropout_leaves_out_what_one_process_does),
        cmocka_unit_test(rotary_and_shared_heads_of_k_and_v_work),
        cmocka_unit_test(processes_and_f32_give_it_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
