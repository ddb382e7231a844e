/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP trains what PyTorch's FSDP2 trains: make_fsdp.py let two ranks of it
 * take ten steps of AdamW with clipping, in f64. Any number of ranks of ours,
 * however they hold parameters and whatever they spread, get its losses, norms
 * and parameters from the same batch, divided evenly or not. */
#include "support/ranks.h"

#include <oarsong/oarsong.h>

#include "golden/golden.h"
#include "parallel/shards/shards.h"

enum {
    STEPS = 10,
    BATCH = 12,
    CONTEXT = 6,
    VOCABULARY = 13,
    LARGEST = 1024 /* elements of a parameter */
};

/* One process of PyTorch is 7e-12 away from two of its own. */
static const double tolerance = 1e-10;

typedef struct golden_run {
    const char *kind; /* of make_fsdp.py: "plain" or "tied" */
    oar_hold hold;
    oar_zero_stage stage;
    int uneven; /* later ranks have fewer rows, and weights */
    int by_row; /* each row has a pass of its own; the last one reduces */
} golden_run;

static const golden *record_of(const golden_run *t, const char *when,
                               const char *name)
{
    char full[128];

    snprintf(full, sizeof full, "%s.%s", when, name);
    return golden_find(t->kind, full);
}

static int is_near(double got, double want)
{
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

/* ---- the model ----------------------------------------------------------- */

/* The model of make_fsdp.py, with the numbers that it starts from. */
static oar_status make_gpt(const golden_run *t, oar_module **gpt)
{
    char name[128];

    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = VOCABULARY,
                                     .context = CONTEXT, .width = 8,
                                     .layers = 3, .heads = 2, .dtype = OAR_F64,
                                     .tied = strcmp(t->kind, "tied") == 0),
                            gpt));
    for (int i = 0; i < oar_module_params(*gpt); i++) {
        const golden *start;

        CHECK_OK(oar_module_param_name(*gpt, i, name, sizeof name));
        start = record_of(t, "start", name);
        CHECK(start != NULL);
        CHECK_OK(oar_tensor_write(oar_module_param(*gpt, i), OAR_F64,
                                  start->number));
    }
    return OAR_OK;
}

/* Every parameter is what PyTorch has after the last step. */
static oar_status compare_params(const golden_run *t, oar_module *wrapped)
{
    double number[LARGEST];
    char name[128];

    for (int i = 0; i < oar_module_params(wrapped); i++) {
        const char *inner = name + strlen("module.");
        const golden *end;

        CHECK_OK(oar_module_param_name(wrapped, i, name, sizeof name));
        end = record_of(t, "end", inner);
        CHECK(end != NULL && end->count <= LARGEST);
        CHECK_OK(oar_fsdp_read_param(wrapped, inner, OAR_F64, number));
        for (size_t k = 0; k < end->count; k++)
            CHECK(is_near(number[k], end->number[k]));
    }
    return OAR_OK;
}

/* ---- training ------------------------------------------------------------ */

/* The first row of a rank in the batch; that of rank `ranks` is the end. */
static int first_row(const golden_run *t, int rank, int ranks)
{
    if (!t->uneven || rank == 0 || rank == ranks)
        return rank * BATCH / ranks;
    return BATCH - (ranks - rank); /* one row for each but rank 0 */
}

static oar_tensor *loss_of(oar_tape *tape, oar_module *net, int step, int first,
                           int rows)
{
    int64_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];

    for (int k = 0; k < rows * CONTEXT; k++) {
        int64_t i = (step * BATCH + first) * CONTEXT + k;

        x[k] = (i * 7919 + 13) % 1009 % VOCABULARY;
        y[k] = (i * 31 + 7) % 101 % VOCABULARY;
    }
    return oar_cross_entropy(
        tape,
        oar_forward(tape, net,
                    oar_from_data(tape, OAR_I64, OAR_SHAPE(rows, CONTEXT), x)),
        oar_from_data(tape, OAR_I64, OAR_SHAPE(rows * CONTEXT), y));
}

/* Runs this rank's rows of a step; *sum is the sum of their losses. */
static oar_status run_passes(const golden_run *t, oar_group *g,
                             oar_module *wrapped, oar_tape *tape, int step,
                             double *sum)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    int first = first_row(t, rank, ranks);
    int rows = first_row(t, rank + 1, ranks) - first;
    int each = t->by_row ? 1 : rows;

    *sum = 0;
    if (t->uneven)
        CHECK_OK(oar_shards_weigh(oar_fsdp_shards(wrapped), rows));
    for (int row = 0; row < rows; row += each) {
        int silent = row + each < rows;
        oar_tensor *loss =
            oar_scale(tape, loss_of(tape, wrapped, step, first + row, each),
                      (double)each / rows);
        double value;

        if (silent)
            CHECK_OK(oar_fsdp_no_sync_begin(wrapped));
        CHECK_OK(oar_backward(tape, loss));
        if (silent)
            CHECK_OK(oar_fsdp_no_sync_end(wrapped));
        CHECK_OK(oar_tensor_item(loss, &value));
        *sum += value * rows;
        oar_tape_reset(tape);
    }
    return OAR_OK;
}

static oar_status train_step(const golden_run *t, oar_group *g,
                             oar_module *wrapped, oar_tape *tape,
                             oar_optim *adam, int step)
{
    double loss, norm;

    CHECK_OK(run_passes(t, g, wrapped, tape, step, &loss));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&loss, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK_OK(oar_fsdp_clip_grad_norm(wrapped, 1.0, &norm));
    CHECK_OK(oar_optim_step(adam));
    oar_optim_zero_grad(adam);
    CHECK(is_near(loss / BATCH, golden_find(t->kind, "loss")->number[step]));
    CHECK(is_near(norm, golden_find(t->kind, "norm")->number[step]));
    return OAR_OK;
}

static oar_status train_like_torch(oar_group *g, void *arg)
{
    const golden_run *t = arg;
    oar_tensor *const *param;
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;
    int count;

    CHECK_OK(make_gpt(t, &net));
    CHECK_OK(oar_fsdp_wrap(net, g,
                           OAR_OPTS(oar_fsdp_opts, .hold = t->hold,
                                    .stage = t->stage, .weighted = t->uneven,
                                    .least_bytes = 1),
                           &net));
    param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_adamw_create_over(count, param,
                                   OAR_OPTS(oar_adam_opts, .lr = 1e-2), &adam));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++)
        CHECK_OK(train_step(t, g, net, tape, adam, step));
    CHECK_OK(compare_params(t, net));
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_module_release(net);
    return OAR_OK;
}

static void run_on(const char *backend, int ranks, golden_run t)
{
    assert_int_equal(ranks_run(backend, ranks, NULL, train_like_torch, &t),
                     OAR_OK);
}

/* On one to four ranks, with parameters mapped and gathered. */
static void run_everywhere(golden_run t)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
            t.hold = (oar_hold)h;
            run_on("native", ranks, t);
        }
}

static void every_stage_trains_what_fsdp2_trains(void **state)
{
    for (int stage = 0; stage < 3; stage++)
        run_everywhere(
            (golden_run){ .kind = "plain", .stage = (oar_zero_stage)stage });
    run_on("native", 3, (golden_run){ .kind = "plain", .hold = OAR_HOLD_HOST });
    run_on("tcp", 3, (golden_run){ .kind = "plain" });
}

static void a_tied_head_trains_as_in_fsdp2(void **state)
{
    run_everywhere((golden_run){ .kind = "tied" });
}

static void a_batch_divided_unevenly_trains_the_same(void **state)
{
    run_everywhere((golden_run){ .kind = "plain", .uneven = 1 });
}

static void rows_in_passes_of_their_own_train_the_same(void **state)
{
    run_everywhere((golden_run){ .kind = "tied", .by_row = 1 });
}

static int load_golden(void **state)
{
    return golden_load("fsdp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_trains_what_fsdp2_trains),
        cmocka_unit_test(a_tied_head_trains_as_in_fsdp2),
        cmocka_unit_test(a_batch_divided_unevenly_trains_the_same),
        cmocka_unit_test(rows_in_passes_of_their_own_train_the_same),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, load_golden, golden_close);
}
