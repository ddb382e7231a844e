/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines whose stages DDP or FSDP wraps, on a mesh: the parameters are those
 * of one process that runs all micro-batches of all replicas, and the replicas
 * have the same bits. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/mesh.h>
#include <oarsong/pipeline.h>

#include "support/staged_net.h"

typedef enum wrapper { DDP, FSDP, FSDP_GATHERED, WRAPPERS } wrapper;

typedef struct replica_case {
    staged_case net;
    oar_schedule_kind kind;
    int ranks; /* of the pipeline */
    wrapper wrapper;
    int recompute;
    const char *text; /* of the schedule, instead of a kind */
    oar_module *wanted[STAGED_MOST];
} replica_case;

/* A stage, wrapped, and what steps it. */
typedef struct wrapped {
    oar_module *module;
    oar_optim *optim;
} wrapped;

static oar_status wrap(const replica_case *c, oar_group *dp, int index,
                       wrapped *w)
{
    oar_module *inner = staged_net_stage(c->net.kind, index);
    int count = 0;

    if (c->wrapper == DDP) {
        CHECK_OK(oar_ddp_wrap(inner, dp, NULL, &w->module));
        w->optim = staged_net_optim(&c->net, w->module);
    } else {
        oar_fsdp_opts o = oar_fsdp_opts_init();
        oar_tensor *const *param;

        o.hold = c->wrapper == FSDP ? OAR_HOLD_AUTO : OAR_HOLD_OWN;
        CHECK_OK(oar_fsdp_wrap(inner, dp, &o, &w->module));
        param = oar_fsdp_params(w->module, &count);
        CHECK_OK(oar_sgd_create_over(
            count, param, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &w->optim));
    }
    CHECK(w->optim != NULL);
    return OAR_OK;
}

/* Compares the parameters with those of one process, and over replicas. */
static oar_status compare(const replica_case *c, oar_group *dp, int index,
                          const wrapped *w)
{
    const oar_module *wanted = c->wanted[index];
    uint64_t low = 14695981039346656037u, high;

    for (int i = 0; i < oar_module_params(wanted); i++) {
        float found[512], right[512];
        char name[100];
        int64_t count = oar_tensor_count(oar_module_param(wanted, i));

        CHECK(count <= 512);
        CHECK_OK(oar_module_param_name(wanted, i, name, sizeof name));
        CHECK_OK(oar_tensor_read(oar_module_param(wanted, i), OAR_F32, right));
        if (c->wrapper == DDP)
            CHECK_OK(oar_tensor_read(oar_module_param(w->module, i), OAR_F32,
                                     found));
        else
            CHECK_OK(oar_fsdp_read_param(w->module, name, OAR_F32, found));
        for (int64_t k = 0; k < count; k++) {
            uint32_t bits;
            CHECK(fabsf(found[k] - right[k]) < 2e-6f);
            memcpy(&bits, &found[k], sizeof bits);
            low = (low ^ bits) * 1099511628211u;
        }
    }
    high = low;
    CHECK_OK(
        oar_all_reduce(dp, oar_span_of(&low, 1, OAR_U64), OAR_MIN, NULL, NULL));
    CHECK_OK(oar_all_reduce(dp, oar_span_of(&high, 1, OAR_U64), OAR_MAX, NULL,
                            NULL));
    CHECK(low == high);
    return OAR_OK;
}

static oar_status train(const replica_case *c, oar_pipeline *pipe, int replica,
                        int first, int last, const wrapped *w, int stages)
{
    for (int k = 0; k < c->net.steps; k++) {
        int number = k * c->net.replicas + replica;
        oar_tensor *input = staged_net_input(&c->net, number);
        oar_tensor *target = staged_net_target(&c->net, number);
        oar_pipeline_batch b = oar_pipeline_batch_init();

        b.inputs = first;
        b.input = &input;
        b.targets = last;
        b.target = &target;
        for (int i = 0; i < stages; i++)
            oar_optim_zero_grad(w[i].optim);
        CHECK_OK(oar_pipeline_step(pipe, &b, NULL));
        for (int i = 0; i < stages; i++)
            CHECK_OK(oar_optim_step(w[i].optim));
        oar_tensor_release(input);
        oar_tensor_release(target);
    }
    return OAR_OK;
}

static oar_status make_schedule(const replica_case *c, oar_schedule **schedule)
{
    if (c->text != NULL)
        return oar_schedule_parse(c->text, strlen(c->text), NULL, schedule);
    return oar_schedule_make(c->kind, c->ranks, c->net.micro, NULL, schedule);
}

static oar_status run_on_mesh(oar_group *g, void *arg)
{
    static const char *const name[] = { "dp", "pp" };
    const replica_case *c = arg;
    int size[2] = { c->net.replicas, c->ranks }, rank, stages = 0;
    oar_stage stage[STAGED_MOST];
    wrapped w[STAGED_MOST];
    oar_group *dp, *pp;
    oar_schedule *schedule;
    oar_pipeline *pipe;
    oar_mesh *mesh;

    CHECK_OK(oar_mesh_create(g, 2, size, name, NULL, &mesh));
    dp = oar_mesh_group(mesh, 0);
    pp = oar_mesh_group(mesh, 1);
    rank = oar_group_rank(pp);
    CHECK_OK(make_schedule(c, &schedule));
    for (int s = 0; s < c->net.stages; s++) {
        if (oar_schedule_rank_of(schedule, s) != rank)
            continue;
        CHECK_OK(wrap(c, dp, s, &w[stages]));
        stage[stages] = oar_stage_init();
        stage[stages].index = s;
        stage[stages].recompute = c->recompute;
        stage[stages].module = w[stages].module;
        stages++;
    }
    CHECK_OK(oar_pipeline_create(
        pp, schedule, stages, stage,
        OAR_OPTS(oar_pipeline_opts, .loss = staged_net_loss,
                 .most_bytes = 1 << 30), /* must change nothing */
        &pipe));
    CHECK_OK(train(
        c, pipe, oar_group_rank(dp), oar_schedule_rank_of(schedule, 0) == rank,
        oar_schedule_rank_of(schedule, c->net.stages - 1) == rank, w, stages));
    oar_pipeline_destroy(pipe);
    for (int i = 0; i < stages; i++) {
        CHECK_OK(compare(c, dp, stage[i].index, &w[i]));
        oar_optim_destroy(w[i].optim);
        oar_module_release(w[i].module);
    }
    oar_schedule_release(schedule);
    oar_mesh_release(mesh);
    return OAR_OK;
}

static void try_case(replica_case c, const char *backend)
{
    oar_schedule *schedule;
    double loss;

    assert_int_equal(make_schedule(&c, &schedule), OAR_OK);
    c.net.kind = STAGED_CNN; /* dropout would differ */
    c.net.stages = oar_schedule_stages(schedule);
    c.net.micro = oar_schedule_micro(schedule);
    c.net.rows = 2 * c.net.micro + 1;
    c.net.steps = 3;
    assert_int_equal(staged_net_trained(&c.net, c.wanted, &loss), OAR_OK);
    if (ranks_run(backend, c.ranks * c.net.replicas, NULL, run_on_mesh, &c) !=
        OAR_OK)
        fail_msg("wrapper %d, %s, %d x %d", c.wrapper,
                 oar_schedule_kind_name(c.kind), c.net.replicas, c.ranks);
    for (int s = 0; s < c.net.stages; s++)
        oar_module_release(c.wanted[s]);
    oar_schedule_release(schedule);
}

static void replicas_train_as_one_process(void **state)
{
    static const oar_schedule_kind kind[] = { OAR_SCHEDULE_1F1B,
                                              OAR_SCHEDULE_ZB_V,
                                              OAR_SCHEDULE_INTERLEAVED };

    for (int w = 0; w < WRAPPERS; w++)
        for (int k = 0; k < 3; k++) {
            replica_case c = { .kind = kind[k], .wrapper = (wrapper)w };

            c.net.micro = 4;
            c.ranks = k == 2 ? 3 : 2;
            c.net.replicas = k == 1 ? 3 : 2;
            try_case(c, "sim");
            if (k == 0)
                try_case(c, "shm");
        }
}

/* Backward in halves over what is recomputed. */
static void recomputed_stages_are_reduced(void **state)
{
    replica_case c = { .kind = OAR_SCHEDULE_ZB_H1, .ranks = 2, .recompute = 1 };

    c.net.micro = 4;
    c.net.replicas = 2;
    try_case(c, "sim");
}

static void a_schedule_says_where_to_reduce(void **state)
{
    replica_case c = { .ranks = 2,
                       .text =
                           "0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD,0RESHARD\n"
                           "1F0,1B0,1F1,1B1,1REDUCE_GRAD\n" };

    c.net.replicas = 2;
    for (int w = 0; w < WRAPPERS; w++) {
        c.wrapper = (wrapper)w;
        try_case(c, "sim");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_train_as_one_process),
        cmocka_unit_test(recomputed_stages_are_reduced),
        cmocka_unit_test(a_schedule_says_where_to_reduce),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
