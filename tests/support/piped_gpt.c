/* SPDX-License-Identifier: Apache-2.0 */
#include "support/piped_gpt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/tape.h>

#include "support/ranks.h"

oar_gpt_opts piped_gpt_opts(const piped_kind *k)
{
    return *OAR_OPTS(oar_gpt_opts, .vocabulary = PIPED_WORDS,
                     .context = PIPED_TIME, .width = 12, .layers = PIPED_LAYERS,
                     .heads = 3, .hidden = 17, .seed = 3, .tied = k->tied,
                     .dropout = 0.2, .attention_dropout = 0.1,
                     .recompute = k->recompute);
}

/* ---- batches ------------------------------------------------------------- */

static oar_tensor *new_tokens(const piped_gpt *p, int64_t step, uint64_t which)
{
    oar_tensor *made =
        oar_uniform(NULL, OAR_I64, OAR_SHAPE(PIPED_ROWS, PIPED_TIME),
                    (uint64_t)step + which, 0, PIPED_WORDS);
    oar_tensor *there = oar_to(NULL, made, p->is.device);

    oar_tensor_release(made);
    return there;
}

/* Gives a module the dtype and the device of the run. */
static oar_status place(const piped_gpt *p, oar_module *module)
{
    if (p->is.dtype != OAR_F32)
        CHECK_OK(oar_module_cast(module, p->is.dtype, 0));
    return p->is.device.kind == OAR_CPU ? OAR_OK
                                        : oar_module_to(module, p->is.device);
}

oar_tensor *piped_gpt_loss(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target)
{
    (void)arg;
    (void)micro;
    (void)targets;
    return oar_cross_entropy(
        tape, out[0],
        oar_reshape(tape, target[0], OAR_SHAPE(oar_tensor_count(target[0]))));
}

/* ---- one process --------------------------------------------------------- */

/* Runs forward and backward of rows first .. first + rows - 1. */
static oar_status run_rows(piped_gpt *p, oar_tape *tape, oar_tensor *x,
                           oar_tensor *y, int64_t first, int64_t rows)
{
    float seed = (float)((double)rows / PIPED_ROWS);
    double loss;
    oar_tensor *out, *of_rows, *start;

    x = oar_narrow(tape, x, 0, first, rows);
    y = oar_narrow(tape, y, 0, first, rows);
    out = oar_forward(tape, p->ddp != NULL ? p->ddp : p->stage[0], x);
    of_rows = piped_gpt_loss(NULL, tape, 0, &out, 1, &y);
    CHECK(of_rows != NULL);
    CHECK_OK(oar_tensor_item(of_rows, &loss));
    p->loss += loss * (double)rows;
    start = oar_empty_on(tape, p->is.device, oar_tensor_dtype(of_rows),
                         oar_tensor_shape(of_rows));
    CHECK_OK(oar_tensor_fill(start, (double)seed));
    CHECK_OK(oar_backward_from(tape, 1, &of_rows, &start));
    oar_tape_reset(tape);
    return OAR_OK;
}

/* A step without a pipeline: one micro-batch after the other. */
static oar_status run_plain(piped_gpt *p, oar_tensor *x, oar_tensor *y)
{
    int64_t first = 0;
    oar_tape *tape;

    p->loss = 0;
    CHECK_OK(oar_tape_create(&tape));
    for (int m = 0; m < p->is.micro; m++) {
        int64_t rows =
            PIPED_ROWS / p->is.micro + (m < PIPED_ROWS % p->is.micro);

        CHECK_OK(run_rows(p, tape, x, y, first, rows));
        first += rows;
    }
    p->loss /= PIPED_ROWS;
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status make_plain(piped_gpt *p, oar_group *g)
{
    oar_gpt_opts o = piped_gpt_opts(&p->is);

    p->stages = 1;
    CHECK_OK(oar_gpt_create(&o, &p->stage[0]));
    CHECK_OK(place(p, p->stage[0]));
    if (g == NULL || oar_group_size(g) == 1)
        return OAR_OK;
    return oar_ddp_wrap(
        oar_module_retain(p->stage[0]), g,
        OAR_OPTS(oar_ddp_opts, .accumulate = p->is.micro, .canonical = 1),
        &p->ddp);
}

/* ---- a pipeline ---------------------------------------------------------- */

/* Makes those of the schedule's stages that are this rank's. */
static oar_status make_stages(piped_gpt *p, int rank)
{
    oar_gpt_opts o = piped_gpt_opts(&p->is);
    int stages = oar_schedule_stages(p->schedule), first = 0;
    int count[PIPED_STAGES];
    double cost[PIPED_PARTS];

    for (int i = 0; i < PIPED_PARTS; i++)
        cost[i] = 1;
    CHECK(stages <= PIPED_STAGES);
    CHECK_OK(oar_schedule_balance(PIPED_PARTS, cost, stages, count));
    for (int s = 0; s < stages; s++) {
        if (oar_schedule_rank_of(p->schedule, s) == rank) {
            p->index[p->stages] = s;
            CHECK_OK(oar_gpt_stage_create(&o, first, count[s],
                                          &p->stage[p->stages]));
            CHECK_OK(place(p, p->stage[p->stages++]));
        }
        first += count[s];
    }
    p->is_first = oar_schedule_rank_of(p->schedule, 0) == rank;
    p->is_last = oar_schedule_rank_of(p->schedule, stages - 1) == rank;
    if (o.tied && p->is_first && p->is_last && p->stages > 1)
        return oar_module_replace_param(
            p->stage[p->stages - 1], "tok.weight",
            oar_tensor_retain(oar_module_find(p->stage[0], "tok.weight")));
    return OAR_OK;
}

/* Returns the token table of a tied model, NULL if this rank has neither end;
 * where it has both, they share one. */
static oar_tensor *find_table(const piped_gpt *p)
{
    oar_tensor *table = NULL;

    for (int s = 0; s < p->stages && table == NULL; s++)
        table = oar_module_find(p->stage[s], "tok.weight");
    return table;
}

static oar_status make_pipeline(piped_gpt *p, oar_group *g)
{
    oar_stage stage[PIPED_STAGES];

    CHECK_OK(oar_schedule_make(p->is.kind, oar_group_size(g), p->is.micro, NULL,
                               &p->schedule));
    CHECK_OK(make_stages(p, oar_group_rank(g)));
    for (int i = 0; i < p->stages; i++) {
        stage[i] = oar_stage_init();
        stage[i].index = p->index[i];
        stage[i].module = p->stage[i];
    }
    CHECK_OK(oar_pipeline_create(
        g, p->schedule, p->stages, stage,
        OAR_OPTS(oar_pipeline_opts, .loss = piped_gpt_loss), &p->pipe));
    if (!p->is.tied)
        return OAR_OK;
    return oar_pipeline_tie(p->pipe, "tok.weight", find_table(p));
}

static oar_status run_pipeline(piped_gpt *p, oar_tensor *x, oar_tensor *y)
{
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_status status;

    batch.inputs = p->is_first;
    batch.input = &x;
    batch.targets = p->is_last;
    batch.target = &y;
    status = oar_pipeline_step(p->pipe, &batch, &result);
    p->loss = result.loss;
    return status;
}

oar_status piped_gpt_step(piped_gpt *p)
{
    oar_tensor *x = new_tokens(p, p->step, 0);
    oar_tensor *y = new_tokens(p, p->step, 50);
    oar_status status = run_pipeline(p, x, y);

    oar_tensor_release(x);
    oar_tensor_release(y);
    return status;
}

/* ---- both ---------------------------------------------------------------- */

/* Makes an optimizer over the parameters of all stages. */
static oar_status make_optim(piped_gpt *p)
{
    oar_tensor *param[256];
    int count = 0;

    for (int s = 0; s < p->stages; s++)
        for (int i = 0; i < oar_module_params(p->stage[s]); i++)
            param[count++] = oar_module_param(p->stage[s], i);
    return oar_adamw_create_over(
        count, param, OAR_OPTS(oar_adam_opts, .lr = 1e-2), &p->optim);
}

oar_status piped_gpt_make(piped_gpt *p, oar_group *g, const piped_kind *k)
{
    *p = (piped_gpt){ .is = *k };
    CHECK_OK(k->plain ? make_plain(p, g) : make_pipeline(p, g));
    CHECK_OK(make_optim(p));
    CHECK_OK(oar_state_create(&p->state));
    for (int s = 0; s < p->stages; s++)
        CHECK_OK(oar_state_add_module(p->state, p->stage[s], NULL));
    CHECK_OK(oar_state_add_optim(p->state, p->optim, NULL, NULL));
    return oar_state_add_i64(p->state, "step", &p->step);
}

void piped_gpt_drop(piped_gpt *p)
{
    oar_state_destroy(p->state);
    oar_optim_destroy(p->optim);
    oar_pipeline_destroy(p->pipe);
    oar_schedule_release(p->schedule);
    oar_module_release(p->ddp);
    for (int s = 0; s < p->stages; s++)
        oar_module_release(p->stage[s]);
}

oar_status piped_gpt_train(piped_gpt *p, int64_t end)
{
    for (; p->step < end; p->step++) {
        oar_tensor *x = new_tokens(p, p->step, 0);
        oar_tensor *y = new_tokens(p, p->step, 50);

        oar_optim_zero_grad(p->optim);
        CHECK_OK(p->is.plain ? run_plain(p, x, y) : run_pipeline(p, x, y));
        CHECK_OK(oar_optim_step(p->optim));
        oar_tensor_release(x);
        oar_tensor_release(y);
    }
    return OAR_OK;
}

enum { MOST = 2048 };

static int is_same(const oar_tensor *a, const oar_tensor *b, int nearly)
{
    static _Thread_local float x[MOST], y[MOST];
    int64_t count = oar_tensor_count(a);

    if (count != oar_tensor_count(b) || count > MOST ||
        oar_tensor_read(a, OAR_F32, x) != OAR_OK ||
        oar_tensor_read(b, OAR_F32, y) != OAR_OK)
        return 0;
    for (int64_t i = 0; i < count; i++)
        if (nearly ? !(fabsf(x[i] - y[i]) <= 1e-3f)
                   : memcmp(&x[i], &y[i], sizeof *x) != 0)
            return 0;
    return 1;
}

/* Returns the index of the parameter of that name among the optimizer's. */
static int find_param(const piped_gpt *whole, const char *name)
{
    oar_module *model = whole->stage[0];
    const oar_tensor *param = oar_module_find(model, name);
    int i = 0;

    while (i < oar_optim_params(whole->optim) &&
           oar_optim_param(whole->optim, i) != param)
        i++;
    return i;
}

int piped_gpt_same(const piped_gpt *p, const piped_gpt *whole)
{
    int at = 0, nearly = p->is.tied || p->is.nearly;

    for (int s = 0; s < p->stages; s++)
        for (int i = 0; i < oar_module_params(p->stage[s]); i++) {
            const oar_tensor *mine = oar_module_param(p->stage[s], i);
            char name[64];
            int other, same;

            if (oar_optim_param(p->optim, at) != mine)
                continue; /* the second place of a shared one */
            oar_module_param_name(p->stage[s], i, name, sizeof name);
            other = find_param(whole, name);
            same = is_same(mine, oar_optim_param(whole->optim, other), nearly);
            for (int slot = 0; slot < 2 && same; slot++)
                same =
                    is_same(oar_optim_state(p->optim, at, slot),
                            oar_optim_state(whole->optim, other, slot), nearly);
            if (!same) {
                fprintf(stderr, "stage %d: %s differs\n", p->index[s], name);
                return 0;
            }
            at++;
        }
    return at == oar_optim_params(p->optim);
}
