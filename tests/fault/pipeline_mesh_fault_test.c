/* SPDX-License-Identifier: Apache-2.0 */
/* Two pipelines of two ranks on a mesh, their stages wrapped by DDP or FSDP: a
 * rank of one pipeline that fails, has no memory or dies ends the other
 * pipeline, too, long before any time is up, with an error that names stage,
 * action, micro-batch and rank. The world goes on, and new pipelines work. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/memory.h>
#include <oarsong/mesh.h>
#include <oarsong/pipeline.h>

#include "support/last_error.h"
#include "support/staged_net.h"

enum { RANKS = 4, MICRO = 3, LONG_MS = 300000 };

typedef enum struck_at { IN_FORWARD, IN_BACKWARD, NO_MEMORY, KILLED } struck_at;

typedef struct mesh_fault {
    int fsdp;
    struck_at at;
    int victim; /* rank of the world */
} mesh_fault;

typedef struct mesh_rank {
    const mesh_fault *f;
    int rank, armed, forwards, backwards;
    oar_mesh *mesh;
    oar_schedule *schedule;
    oar_stage stage;
    oar_pipeline *pipe;
    oar_hook *hook[2];
} mesh_rank;

/* ---- a rank -------------------------------------------------------------- */

/* The second micro-batch of the armed step is struck. */
static oar_status begin_forward(oar_tape *tape, oar_module *m, void *arg)
{
    mesh_rank *r = arg;

    if (!r->armed || r->rank != r->f->victim || ++r->forwards != 2)
        return OAR_OK;
    if (r->f->at == KILLED)
        raise(SIGKILL);
    if (r->f->at == NO_MEMORY)
        oar_memory_fail_after(1);
    return r->f->at == IN_FORWARD ? OAR_E_DATA : OAR_OK;
}

static oar_status begin_backward(oar_tape *tape, oar_module *m, void *arg)
{
    mesh_rank *r = arg;

    if (!r->armed || r->rank != r->f->victim || ++r->backwards != 2)
        return OAR_OK;
    return r->f->at == IN_BACKWARD ? OAR_E_DATA : OAR_OK;
}

static oar_status wrap(mesh_rank *r, int index)
{
    oar_module *inner = staged_net_stage(STAGED_MLP, index);
    oar_group *dp = oar_mesh_group(r->mesh, 0);

    CHECK_OK(oar_module_on(inner, OAR_BEFORE_FORWARD, begin_forward, r,
                           &r->hook[0]));
    CHECK_OK(oar_module_on(inner, OAR_BEFORE_BACKWARD, begin_backward, r,
                           &r->hook[1]));
    r->stage = oar_stage_init();
    r->stage.index = index;
    CHECK_OK(r->f->fsdp ? oar_fsdp_wrap(inner, dp, NULL, &r->stage.module)
                        : oar_ddp_wrap(inner, dp, NULL, &r->stage.module));
    return OAR_OK;
}

static oar_status open_rank(mesh_rank *r, const mesh_fault *f, oar_group *world)
{
    static const char *const name[] = { "dp", "pp" };
    static const int size[] = { 2, 2 };
    oar_group *pp;

    memset(r, 0, sizeof *r);
    r->f = f;
    r->rank = oar_group_rank(world);
    CHECK_OK(oar_mesh_create(world, 2, size, name, NULL, &r->mesh));
    pp = oar_mesh_group(r->mesh, 1);
    CHECK_OK(wrap(r, oar_group_rank(pp)));
    CHECK_OK(
        oar_schedule_make(OAR_SCHEDULE_1F1B, 2, MICRO, NULL, &r->schedule));
    CHECK_OK(oar_pipeline_create(
        pp, r->schedule, 1, &r->stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss), &r->pipe));
    return OAR_OK;
}

static void close_rank(mesh_rank *r)
{
    oar_pipeline_destroy(r->pipe);
    oar_schedule_release(r->schedule);
    for (int i = 0; i < 2; i++)
        oar_hook_remove(r->hook[i]);
    oar_module_release(r->stage.module);
    oar_mesh_release(r->mesh);
}

static oar_status run_step(mesh_rank *r)
{
    staged_case net = { .kind = STAGED_MLP, .rows = 2 * MICRO };
    oar_tensor *input = staged_net_input(&net, 0);
    oar_tensor *target = staged_net_target(&net, 0);
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_status status;

    b.inputs = r->stage.index == 0;
    b.input = &input;
    b.targets = r->stage.index == 1;
    b.target = &target;
    status = oar_pipeline_step(r->pipe, &b, NULL);
    oar_tensor_release(input);
    oar_tensor_release(target);
    return status;
}

/* Strikes the second step; a step without memory is the first, because later
 * ones allocate nothing. The victim may strike while others still wait for the
 * end of their first step, which then fails instead. */
static oar_status strike(mesh_rank *r)
{
    oar_status status = r->f->at == NO_MEMORY ? OAR_OK : run_step(r);

    if (status != OAR_OK) {
        CHECK(r->rank != r->f->victim);
        return status;
    }
    r->armed = 1;
    status = run_step(r);
    oar_memory_fail_after(0);
    return status;
}

/* ---- failures ------------------------------------------------------------ */

static oar_status check_error(const mesh_rank *r, oar_status status)
{
    const char *act = r->f->at == IN_BACKWARD ? "B" : "F";
    int mine = r->rank == r->f->victim;
    char where[60];

    /* in the first step the first forward is that with zeros */
    snprintf(where, sizeof where,
             "stage %d, %s of micro-batch %d: ", r->f->victim % 2, act,
             r->f->at != NO_MEMORY);
    if (status == OAR_OK || status == OAR_E_TIMEOUT ||
        strstr(oar_last_error_text(), where) == NULL ||
        (!mine && strstr(oar_last_error_text(), "rank ") == NULL))
        fprintf(stderr, "rank %d: %s\n", r->rank, oar_last_error_text());
    CHECK(status == (mine ? r->f->at == NO_MEMORY ? OAR_E_NOMEM : OAR_E_DATA
                          : OAR_E_ABORTED));
    CHECK(last_error_has(where) && (mine || last_error_has("rank ")));
    return OAR_OK;
}

static oar_status fail_on_mesh(oar_group *world, void *arg)
{
    const mesh_fault *f = arg;
    mesh_fault none = { .fsdp = f->fsdp, .victim = -1 };
    oar_status status;
    mesh_rank r;

    CHECK_OK(open_rank(&r, f, world));
    status = strike(&r);
    CHECK_OK(check_error(&r, status));
    CHECK(run_step(&r) == OAR_E_STATE);
    close_rank(&r);
    CHECK_OK(open_rank(&r, &none, world));
    for (int k = 0; k < 2; k++)
        CHECK_OK(run_step(&r));
    close_rank(&r);
    return OAR_OK;
}

static void a_failure_ends_the_other_pipeline(void **state)
{
    oar_group_opts opts = oar_group_opts_init();

    opts.timeout_ms = LONG_MS; /* more than a test may take */
    for (int fsdp = 0; fsdp < 2; fsdp++)
        for (int at = IN_FORWARD; at <= NO_MEMORY; at++) {
            mesh_fault f = { .fsdp = fsdp,
                             .at = (struck_at)at,
                             .victim = (1 + at + fsdp) % RANKS };

            if (ranks_run("native", RANKS, &opts, fail_on_mesh, &f) != OAR_OK)
                fail_msg("%s, way %d", fsdp ? "FSDP" : "DDP", at);
        }
}

/* ---- deaths -------------------------------------------------------------- */

/* Survivors of the victim's pipeline and column see its death, the fourth rank
 * what one of them says. */
static int die_on_mesh(test_job *c, int rank, void *arg)
{
    const mesh_fault *f = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_group *world, *rest;
    oar_status status;
    mesh_rank r;
    float one = 1;

    o.backend = "native";
    o.timeout_ms = LONG_MS;
    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_OK(open_rank(&r, f, world));
    status = strike(&r);
    if (status != OAR_E_PEER && status != OAR_E_ABORTED)
        fprintf(stderr, "rank %d: %s\n", rank, oar_last_error_text());
    RANK_CHECK(status == OAR_E_PEER || status == OAR_E_ABORTED);
    RANK_CHECK(last_error_has("rank ") && last_error_has("stage "));
    close_rank(&r);
    RANK_OK(oar_group_shrink(
        world, OAR_OPTS(oar_shrink_opts, .any = 1, .timeout_ms = 10000),
        &rest));
    RANK_CHECK(oar_group_size(rest) == RANKS - 1);
    RANK_OK(oar_all_reduce(rest, oar_span_of(&one, 1, OAR_F32), OAR_SUM, NULL,
                           NULL));
    RANK_CHECK(one == RANKS - 1);
    oar_group_destroy(rest);
    oar_group_destroy(world);
    return 0;
}

static void a_death_ends_the_other_pipeline(void **state)
{
    for (int fsdp = 0; fsdp < 2; fsdp++) {
        mesh_fault f = { .fsdp = fsdp, .at = KILLED, .victim = 1 + fsdp };
        test_job job;

        test_job_start(&job, RANKS, die_on_mesh, &f, "%s, death of rank %d",
                       fsdp ? "FSDP" : "DDP", f.victim);
        for (int k = 0; k < RANKS; k++)
            test_job_expect(&job, k, k == f.victim ? 128 + SIGKILL : 0);
        test_job_end(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_ends_the_other_pipeline),
        cmocka_unit_test(a_death_ends_the_other_pipeline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
