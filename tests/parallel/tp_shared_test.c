/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of a tensor parallel model in shared memory: every collective of
 * its passes acts on them in place, nothing goes through a bounce buffer. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/oarsong.h>

#include "comm/exec/exec.h"

enum { WORDS = 24, ROWS = 2, CONTEXT = 8, WIDTH = 64, LAYERS = 2, PASSES = 2 };
enum { LEAST = 1024 };

typedef struct shared_case {
    int sequence, tied, recompute, ranks;
    size_t share; /* from so many bytes on */
} shared_case;

/* Collectives of layers over at least LEAST bytes. */
static struct {
    int in_place, staged;
} count;

/* At the end of a plan: whether peers could reach what they had to. */
static void count_collective(const oari_exec *exec)
{
    const oari_call *call = exec->call;
    size_t bytes = oari_span_bytes(&call->in) > oari_span_bytes(&call->out)
                       ? oari_span_bytes(&call->in)
                       : oari_span_bytes(&call->out);

    if (exec->plan->step[exec->at].kind != OARI_END || bytes < LEAST ||
        call->label == NULL || strstr(call->label, "tensor parallel") == NULL)
        return;
    if (exec->shows != 0 && exec->exposed == exec->shows)
        count.in_place++;
    else
        count.staged++;
}

static oar_status run_pass(oar_tape *tape, oar_module *gpt, oar_group *g,
                           uint64_t seed)
{
    oar_tensor *x =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), seed, 0, WORDS);
    oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                seed + 1, 0, WORDS);
    oar_tensor *loss = oar_tp_cross_entropy(tape, oar_forward(tape, gpt, x), y,
                                            g, WORDS, NULL);

    CHECK(loss != NULL);
    CHECK_OK(oar_backward(tape, loss));
    oar_tape_reset(tape);
    return OAR_OK;
}

/* Of two passes: a block moves activations twice each way (with sequence it
 * gathers twice and scatters twice), and what is around the blocks once; with
 * recompute a block does it in forward again. */
static int collectives_of(const shared_case *c)
{
    int moves = c->sequence ? 2 : 1;

    return PASSES * moves *
           (2 * (2 * LAYERS + 1) + (c->recompute ? 2 * LAYERS : 0));
}

/* With sequence, the gradients of the table of positions are added up where the
 * parameter has its gradient, which is private memory. */
static int table_sums(const shared_case *c)
{
    return c->sequence ? PASSES : 0;
}

static oar_status count_passes(oar_group *g, void *arg)
{
    const shared_case *c = arg;
    oar_module *gpt;
    oar_tape *tape;

    CHECK_OK(oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS, .context = CONTEXT,
                 .width = WIDTH, .heads = 4, .layers = LAYERS, .tied = c->tied,
                 .recompute = c->recompute),
        &gpt));
    CHECK_OK(oar_tp_parallelize_gpt(
        gpt, g, OAR_OPTS(oar_tp_opts, .sequence = c->sequence)));
    CHECK_OK(oar_tape_create(&tape));
    oar_tape_share(tape, c->share);
    oari_exec_hook = count_collective;
    for (uint64_t pass = 0; pass < PASSES; pass++)
        CHECK_OK(run_pass(tape, gpt, g, pass));
    oari_exec_hook = NULL;
    CHECK(count.in_place == (c->share > 0 ? collectives_of(c) : 0));
    CHECK(count.staged ==
          table_sums(c) + (c->share > 0 ? 0 : collectives_of(c)));
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    return OAR_OK;
}

static void sums_and_gathers_are_in_place(void **state)
{
    oar_group_opts opts = oar_group_opts_init();

    opts.small_bytes = LEAST / 16; /* LEAST bytes go in no slot */
    for (int i = 0; i < 8; i++)
        for (int share = 0; share < 2; share++) {
            shared_case c = { .sequence = i & 1,
                              .tied = i >> 1 & 1,
                              .recompute = i >> 2,
                              .ranks = 2 + i % 2,
                              .share = share ? LEAST : 0 };

            assert_int_equal(
                ranks_run("native", c.ranks, &opts, count_passes, &c), OAR_OK);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_gathers_are_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
