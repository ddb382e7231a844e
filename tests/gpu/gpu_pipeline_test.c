/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines of stages on a GPU: messages between ranks of one GPU, the
 * parameters and moments of one process, and no wait of the host but for the
 * losses at the end of a step. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"
#include "support/last_error.h"
#include "support/piped_gpt.h"
#include "support/staged_net.h"

enum { STEPS = 3, RAGGED = 4, MOST = 4096 }; /* RAGGED: micro-batches */

/* ---- one process --------------------------------------------------------- */

static int train_rank(test_job *c, int rank, void *arg)
{
    piped_kind kind = *(const piped_kind *)arg, alone;
    piped_gpt p, whole;
    oar_group *group;
    double before;
    long waits;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &kind.device, &group));
    /* Products are tuned by each process. A backward in halves has other
     * kernels than a whole one, which add in another order. */
    kind.nearly = gpu_ranks_are_real() || kind.kind == OAR_SCHEDULE_ZB_H1;
    alone = kind;
    alone.plain = 1;
    alone.recompute = 0;
    RANK_OK(piped_gpt_make(&whole, NULL, &alone));
    RANK_OK(piped_gpt_train(&whole, STEPS));
    RANK_OK(piped_gpt_make(&p, group, &kind));
    RANK_OK(piped_gpt_train(&p, STEPS - 1));
    before = p.loss;
    waits = gpu_host_waits();
    RANK_OK(piped_gpt_train(&p, STEPS));
    waits = gpu_host_waits() - waits;
    /* Tokens are copied from memory that is not pinned: two waits. A read of
     * the losses counts as two more. */
    RANK_CHECK(waits <= 2 + 2 * p.is_last);
    RANK_CHECK(p.loss != before);
    RANK_CHECK(fabs(p.loss - whole.loss) <= 1e-3);
    RANK_CHECK(kind.nearly || kind.tied || p.loss == whole.loss);
    RANK_CHECK(piped_gpt_same(&p, &whole));
    piped_gpt_drop(&p);
    piped_gpt_drop(&whole);
    oar_group_destroy(group);
    return 0;
}

static void run_case(int ranks, piped_kind kind, test_job_fn fn)
{
    test_job c;

    test_job_start(&c, ranks, fn, &kind, "%d ranks, %s, %d micro-batches",
                   ranks, oar_schedule_kind_name(kind.kind), kind.micro);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void schedules_are_one_process(void **state)
{
    run_case(2, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 4 },
             train_rank);
    run_case(2, (piped_kind){ .kind = OAR_SCHEDULE_ZB_H1, .micro = 4 },
             train_rank);
    run_case(3, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 5 },
             train_rank);
}

static void recomputation_and_ties_are_too(void **state)
{
    run_case(
        2,
        (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 3, .recompute = 1 },
        train_rank);
    run_case(2,
             (piped_kind){ .kind = OAR_SCHEDULE_ZB_H1, .micro = 3, .tied = 1 },
             train_rank);
}

static void halves_are_too(void **state)
{
    run_case(2,
             (piped_kind){
                 .kind = OAR_SCHEDULE_1F1B, .micro = 4, .dtype = OAR_BF16 },
             train_rank);
}

/* ---- lengths that always differ ------------------------------------------ */

/* A rank's stage, and what it trains on. */
typedef struct ragged_stage {
    staged_case net;
    oar_device device;
    oar_stage stage;
    oar_optim *optim;
    oar_pipeline *pipe;
} ragged_stage;

static oar_status run_ragged(ragged_stage *r, int step, double *loss)
{
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();
    oar_tensor *tensor[2][RAGGED];
    oar_status status;

    for (int i = 0; i < 2 * RAGGED; i++) {
        oar_tensor *here =
            staged_net_ragged(&r->net, step, i % RAGGED, i / RAGGED);

        tensor[i / RAGGED][i % RAGGED] = oar_to(NULL, here, r->device);
        oar_tensor_release(here);
    }
    b.inputs = r->stage.index == 0;
    b.input = tensor[0];
    b.targets = r->stage.index == r->net.stages - 1;
    b.target = tensor[1];
    b.apart = 1;
    oar_optim_zero_grad(r->optim);
    status = oar_pipeline_step(r->pipe, &b, &result);
    *loss = result.loss;
    for (int i = 0; i < 2 * RAGGED; i++)
        oar_tensor_release(tensor[i / RAGGED][i % RAGGED]);
    return status == OAR_OK ? oar_optim_step(r->optim) : status;
}

/* Parameters and gradients. */
static int near_stage(const oar_module *a, const oar_module *b)
{
    static double x[MOST], y[MOST];

    for (int i = 0; i < 2 * oar_module_params(a); i++) {
        oar_tensor *p = oar_module_param(a, i / 2);
        oar_tensor *q = oar_module_param(b, i / 2);

        p = i % 2 ? oar_tensor_grad(p) : p;
        q = i % 2 ? oar_tensor_grad(q) : q;
        if (oar_tensor_count(p) > MOST ||
            oar_tensor_read(p, OAR_F64, x) != OAR_OK ||
            oar_tensor_read(q, OAR_F64, y) != OAR_OK)
            return 0;
        for (int64_t k = 0; k < oar_tensor_count(p); k++)
            if (!(fabs(x[k] - y[k]) <= 1e-5))
                return 0;
    }
    return 1;
}

static int train_ragged(test_job *c, int rank, void *arg)
{
    static const int64_t rows[RAGGED] = { 3, 1, 2, 4 };
    const piped_kind *kind = arg;
    ragged_stage r = { .net = { .kind = STAGED_MLP,
                                .stages = c->ranks,
                                .micro = RAGGED,
                                .rows = 10,
                                .rows_of = rows,
                                .steps = STEPS,
                                .ragged = 1,
                                .replicas = 1 }, /* SGD */
                       .stage = oar_stage_init() };
    oar_module *whole[STAGED_MOST];
    double expected = 0, loss = 0;
    oar_schedule *schedule;
    oar_group *group;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &r.device, &group));
    RANK_OK(staged_net_trained(&r.net, whole, &expected)); /* on the cpu */
    RANK_OK(oar_schedule_make(kind->kind, c->ranks, RAGGED, NULL, &schedule));
    r.stage.index = rank;
    r.stage.module = staged_net_stage(STAGED_MLP, rank);
    RANK_OK(oar_module_to(r.stage.module, r.device));
    r.optim = staged_net_optim(&r.net, r.stage.module);
    RANK_OK(oar_pipeline_create(
        group, schedule, 1, &r.stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss, .dynamic = 1),
        &r.pipe));
    for (int s = 0; s < STEPS; s++)
        RANK_OK(run_ragged(&r, s, &loss));
    RANK_CHECK(fabs(loss - expected) <= 1e-5);
    RANK_CHECK(near_stage(r.stage.module, whole[rank]));
    for (int s = 0; s < r.net.stages; s++)
        oar_module_release(whole[s]);
    oar_optim_destroy(r.optim);
    oar_module_release(r.stage.module);
    oar_pipeline_destroy(r.pipe);
    oar_schedule_release(schedule);
    oar_group_destroy(group);
    return 0;
}

static void shapes_are_sent_with_tensors(void **state)
{
    run_case(2, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = RAGGED },
             train_ragged);
    run_case(3, (piped_kind){ .kind = OAR_SCHEDULE_ZB_H1, .micro = RAGGED },
             train_ragged);
}

/* ---- what goes wrong ----------------------------------------------------- */

static int lose_last_rank(test_job *c, int rank, void *arg)
{
    piped_kind kind = *(const piped_kind *)arg;
    oar_group *group;
    piped_gpt p;
    size_t before;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &kind.device, &group));
    before = gpu_used_bytes(kind.device);
    RANK_OK(piped_gpt_make(&p, group, &kind));
    RANK_OK(piped_gpt_train(&p, 1));
    if (rank == c->ranks - 1)
        raise(SIGKILL);
    RANK_CHECK(piped_gpt_step(&p) == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == c->ranks - 1);
    piped_gpt_drop(&p);
    oar_group_destroy(group);
    RANK_CHECK(gpu_used_bytes(kind.device) == before);
    return 0;
}

static void a_rank_that_dies_is_named(void **state)
{
    piped_kind kind = { .kind = OAR_SCHEDULE_1F1B, .micro = 4 };
    test_job c;

    test_job_start(&c, 3, lose_last_rank, &kind, "3 ranks lose one");
    test_job_expect(&c, 2, 128 + SIGKILL);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

static oar_status train_one_more(void *arg)
{
    return piped_gpt_step(arg);
}

/* All ranks refuse alike, and the step runs as it is afterwards. */
static int refuse_replay(test_job *c, int rank, void *arg)
{
    piped_kind kind = *(const piped_kind *)arg;
    oar_replay *replay;
    oar_group *group;
    piped_gpt p;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &kind.device, &group));
    RANK_OK(piped_gpt_make(&p, group, &kind));
    RANK_OK(oar_replay_create(kind.device, train_one_more, &p,
                              OAR_OPTS(oar_replay_opts, .warm = 1, .strict = 1),
                              &replay));
    RANK_OK(oar_replay_run(replay));
    RANK_CHECK(fails_with(oar_replay_run(replay), OAR_E_UNSUPPORTED,
                          "cannot be recorded"));
    oar_replay_destroy(replay);
    RANK_OK(piped_gpt_train(&p, p.step + 1));
    piped_gpt_drop(&p);
    oar_group_destroy(group);
    return 0;
}

/* Every rank is on the cpu, or none is. */
static int refuse_mixture(test_job *c, int rank, void *arg)
{
    oar_device cpu = oar_device_of(OAR_CPU, 0), gpu;
    oar_pipeline_opts o = oar_pipeline_opts_init();
    oar_stage stage = oar_stage_init();
    oar_schedule *schedule;
    oar_pipeline *pipe = NULL;
    oar_group *group;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &gpu, &group));
    RANK_OK(oar_schedule_make(OAR_SCHEDULE_1F1B, c->ranks, 2, NULL, &schedule));
    stage.index = rank;
    RANK_OK(oar_linear_create(3, 3, 1, NULL, &stage.module));
    o.device = rank == 1 ? &gpu : &cpu;
    o.loss = piped_gpt_loss;
    RANK_CHECK(
        fails_with(oar_pipeline_create(group, schedule, 1, &stage, &o, &pipe),
                   OAR_E_MISMATCH, "on the gpu on rank 1"));
    oar_module_release(stage.module);
    oar_schedule_release(schedule);
    oar_group_destroy(group);
    return 0;
}

static void refusals_have_a_sentence(void **state)
{
    run_case(2, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 2 },
             refuse_replay);
    run_case(2, (piped_kind){ .kind = OAR_SCHEDULE_1F1B, .micro = 2 },
             refuse_mixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_are_one_process),
        cmocka_unit_test(recomputation_and_ties_are_too),
        cmocka_unit_test(halves_are_too),
        cmocka_unit_test(shapes_are_sent_with_tensors),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(refusals_have_a_sentence),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_pipeline", tests, NULL, NULL);
}
