/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUs refuse: every item of the list in docs/gpu.md ("Refused") has a
 * call here that fails with the status that the list names and says why; and
 * no case here is missing in the list. */
#include <stdio.h>
#include <string.h>

#include "gpu/refusal_cases.h"
#include "support/last_error.h"

/* ---- shards and FSDP ----------------------------------------------------- */

static oar_status wrap_as(const refusal_site *s, oar_module *net, oar_hold hold,
                          oar_zero_stage stage)
{
    return oar_fsdp_wrap(net, s->group,
                         OAR_OPTS(oar_fsdp_opts, .hold = hold, .stage = stage),
                         &net);
}

static oar_status shard_two_devices(const refusal_site *s)
{
    return wrap_as(s, net_on_two(s->gpu), OAR_HOLD_AUTO, OAR_ZERO_STAGE_3);
}

static oar_status spread_two_devices(const refusal_site *s)
{
    leaf_pair p = leaves_on(s->gpu, cpu);
    const int unit[2] = { 0 };
    oar_span array[2];
    oar_shards *shards;

    for (int i = 0; i < 2; i++)
        TRY(oar_tensor_span(p.leaf[i], &array[i]));
    return drop_leaves(
        p, oar_shards_create(s->group, 2, array, unit, NULL, &shards));
}

static oar_status map_several_gpus(const refusal_site *s)
{
    return wrap_as(s, net_on(s->gpu), OAR_HOLD_MAPPED, OAR_ZERO_STAGE_3);
}

static oar_status hold_on_hosts(const refusal_site *s)
{
    return wrap_as(s, net_on(s->gpu), OAR_HOLD_HOST, OAR_ZERO_STAGE_3);
}

static oar_status hold_in_stage_2(const refusal_site *s)
{
    return wrap_as(s, net_on(s->gpu), OAR_HOLD_HOST, OAR_ZERO_STAGE_2);
}

/* Wraps, makes an optimizer and calls what needs both. */
typedef struct sharded {
    const refusal_site *site;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x;
} sharded;

static oar_status with_sharded(const refusal_site *s, oar_replay_fn call)
{
    sharded w = { .site = s, .net = net_on(s->gpu), .x = leaf_on(s->gpu) };
    oar_tensor *const *param;
    oar_status status;
    int count;

    TRY(oar_fsdp_wrap(w.net, s->group, NULL, &w.net));
    param = oar_fsdp_params(w.net, &count);
    TRY(oar_sgd_create_over(count, param, NULL, &w.optim));
    TRY(oar_tape_create(&w.tape));
    status = call(&w);
    oar_tape_destroy(w.tape);
    oar_optim_destroy(w.optim);
    oar_module_release(w.net);
    oar_tensor_release(w.x);
    return status;
}

static oar_status call_keep(void *arg)
{
    const sharded *w = arg;

    return oar_fsdp_keep_state(w->net, w->optim);
}

static oar_status keep_state(const refusal_site *s)
{
    return with_sharded(s, call_keep);
}

static oar_status call_regroup(void *arg)
{
    const sharded *w = arg;

    return oar_fsdp_regroup(w->net, w->site->group, w->optim);
}

static oar_status regroup(const refusal_site *s)
{
    return with_sharded(s, call_regroup);
}

/* ---- replay -------------------------------------------------------------- */

/* Records the second step. */
static oar_status record(oar_device gpu, oar_replay_fn step, void *arg)
{
    oar_replay *replay;
    oar_status status;

    TRY(oar_replay_create(gpu, step, arg,
                          OAR_OPTS(oar_replay_opts, .warm = 1, .strict = 1),
                          &replay));
    TRY(oar_replay_run(replay));
    status = oar_replay_run(replay);
    oar_replay_destroy(replay);
    return status;
}

static oar_status sharded_step(void *arg)
{
    const sharded *w = arg;

    oar_tape_reset(w->tape);
    return oar_backward(w->tape,
                        oar_sum(w->tape, oar_forward(w->tape, w->net, w->x)));
}

static oar_status call_record(void *arg)
{
    const sharded *w = arg;

    return record(w->site->gpu, sharded_step, arg);
}

static oar_status replay_sharded(const refusal_site *s)
{
    return with_sharded(s, call_record);
}

static oar_status joining_step(void *arg)
{
    int active;

    return oar_ddp_join(arg, 1, &active);
}

static oar_status replay_join(const refusal_site *s)
{
    oar_module *net = net_on(s->gpu);
    oar_status status;

    TRY(oar_ddp_wrap(net, s->group, OAR_OPTS(oar_ddp_opts, .weighted = 1),
                     &net));
    status = record(s->gpu, joining_step, net);
    oar_module_release(net);
    return status;
}

static oar_status step_that_reads(void *arg)
{
    double value;

    return oar_tensor_item(arg, &value);
}

static oar_status replay_read(const refusal_site *s)
{
    oar_tensor *one = oar_empty_on(NULL, s->gpu, OAR_F32, OAR_SCALAR);
    oar_status status = record(s->gpu, step_that_reads, one);

    oar_tensor_release(one);
    return status;
}

/* ---- pipelines ----------------------------------------------------------- */

/* Two ranks, a linear layer each. */
typedef struct piped {
    const refusal_site *site;
    oar_schedule *schedule;
    oar_stage stage;
    oar_pipeline *pipe;
    oar_tensor *x;
} piped;

static oar_tensor *piped_loss(void *arg, oar_tape *tape, int micro,
                              oar_tensor *const *out, int targets,
                              oar_tensor *const *target)
{
    return oar_sum(tape, out[0]);
}

static oar_status piped_step(void *arg)
{
    piped *p = arg;
    oar_pipeline_batch b = oar_pipeline_batch_init();
    oar_pipeline_result result = oar_pipeline_result_init();

    b.inputs = p->site->rank == 0;
    b.input = &p->x;
    return oar_pipeline_step(p->pipe, &b, &result);
}

static oar_status piped_replay(void *arg)
{
    piped *p = arg;

    return record(p->site->gpu, piped_step, p);
}

/* Makes the pipeline on a device, and calls what needs it, if anything. */
static oar_status with_piped(const refusal_site *s, oar_device on,
                             oar_replay_fn call)
{
    piped p = { .site = s, .stage = oar_stage_init(), .x = leaf_on(on) };
    oar_status status;

    TRY(oar_schedule_make(OAR_SCHEDULE_1F1B, 2, 2, NULL, &p.schedule));
    p.stage.index = s->rank;
    p.stage.module = net_on(on);
    status = oar_pipeline_create(
        s->group, p.schedule, 1, &p.stage,
        OAR_OPTS(oar_pipeline_opts, .loss = piped_loss), &p.pipe);
    if (status == OAR_OK) {
        status = call(&p);
        oar_pipeline_destroy(p.pipe);
    }
    oar_module_release(p.stage.module);
    oar_schedule_release(p.schedule);
    oar_tensor_release(p.x);
    return status;
}

/* Every rank is on a GPU, or none is. */
static oar_status pipe_on_two_kinds(const refusal_site *s)
{
    return with_piped(s, s->rank == 1 ? s->gpu : cpu, piped_step);
}

static oar_status pipe_without_tags(const refusal_site *s)
{
    return with_piped(s, s->gpu, piped_step);
}

static oar_status replay_pipeline(const refusal_site *s)
{
    return with_piped(s, s->gpu, piped_replay);
}

/* ---- tensor parallel ----------------------------------------------------- */

/* The loss of logits of which this rank has `columns` classes. */
static oar_status cut_loss(const refusal_site *s, int64_t columns,
                           int64_t classes, oar_cross_entropy_opts o)
{
    oar_tensor *logits =
        oar_empty_on(NULL, s->gpu, OAR_F32, OAR_SHAPE(ROWS, columns));
    oar_tensor *target = targets_on(s->gpu);
    oar_status status = status_of(
        oar_tp_cross_entropy(NULL, logits, target, s->group, classes, &o));

    oar_tensor_release(logits);
    oar_tensor_release(target);
    return status;
}

static oar_status have_few_classes(const refusal_site *s)
{
    return cut_loss(s, s->rank == 0, 1, oar_cross_entropy_opts_init());
}

/* ---- RPC ----------------------------------------------------------------- */

static oar_status reply_into_gpu(const refusal_site *s)
{
    oar_tensor *into = leaf_on(s->gpu);
    oar_rpc_message *args;
    oar_future *future;
    oar_status status;
    oar_rpc *rpc;

    TRY(oar_rpc_create(s->group, NULL, &rpc));
    TRY(oar_rpc_message_create(&args));
    status = oar_rpc_async(
        rpc, 1 - s->rank, "none", args,
        OAR_OPTS(oar_rpc_call_opts, .into_count = 1, .into_tensors = &into),
        &future);
    oar_tensor_release(into);
    TRY(oar_rpc_shutdown(rpc, GPU_RANKS_TIMEOUT_MS));
    oar_rpc_destroy(rpc);
    return status;
}

/* ---- the list ------------------------------------------------------------ */

typedef enum refusal_over { IPC, IPC_TWO_GPUS, NCCL } refusal_over;

typedef struct gpu_refusal {
    const char *name; /* in the list */
    refusal_over over;
    oar_status status;
    const char *says; /* part of its sentence */
    oar_status (*call)(const refusal_site *s);
} gpu_refusal;

static const gpu_refusal refusals[] = {
    { "several-devices", IPC, OAR_E_DEVICE, "bring them to one device",
      add_two },
    { "several-devices", IPC, OAR_E_DEVICE, "on another device",
      weigh_elsewhere },
    { "several-devices", IPC, OAR_E_DEVICE, "with a gradient on",
      seed_elsewhere },
    { "several-devices", IPC, OAR_E_DEVICE, "bind_grad", bind_elsewhere },
    { "several-devices", IPC, OAR_E_DEVICE, "into one on", hash_elsewhere },
    { "no-kernel", IPC, OAR_E_DEVICE, "there is no kernel", miss_kernel },
    { "merged-loss", IPC, OAR_E_DEVICE, "on the cpu only", merge_loss },
    { "merged-norm", IPC, OAR_E_DEVICE, "no functions for GPUs", merge_norm },
    { "no-such-gpu", IPC, OAR_E_DEVICE, "there is no cuda:77",
      name_missing_gpu },
    { "cpu-as-gpu", IPC, OAR_E_DEVICE, "is not a GPU", ask_stream_of_cpu },
    { "cpu-as-gpu", IPC, OAR_E_DEVICE, "of a tensor on the cpu",
      reduce_on_cpu },
    { "cpu-as-gpu", IPC, OAR_E_DEVICE, "its engine on the cpu",
      place_engine_on_cpu },
    { "two-memories", IPC, OAR_E_DEVICE, "to memory on", gather_across },
    { "other-gpu", IPC_TWO_GPUS, OAR_E_DEVICE, "has its engine on",
      reduce_elsewhere },
    { "optimizer-gpus", IPC_TWO_GPUS, OAR_E_DEVICE,
      "one GPU for each optimizer", step_on_two_gpus },
    { "clip-gpus", IPC_TWO_GPUS, OAR_E_DEVICE, "all on one device",
      clip_on_two_gpus },
    { "optimizer-moves", IPC, OAR_E_DEVICE, "moves on the cpu only",
      watch_moves },
    { "optimizer-moves", IPC, OAR_E_DEVICE, "only on the cpu", move_part },
    { "ddp-devices", IPC, OAR_E_DEVICE, "all on one device",
      reduce_two_devices },
    { "ddp-moved", IPC, OAR_E_DEVICE, "move it first, then wrap it",
      move_wrapped },
    { "fsdp-devices", IPC, OAR_E_DEVICE, "all must be on one device",
      shard_two_devices },
    { "fsdp-devices", IPC, OAR_E_DEVICE, "all must be on one device",
      spread_two_devices },
    { "hold-mapped", NCCL, OAR_E_DEVICE, "all ranks on one GPU",
      map_several_gpus },
    { "hold-host", NCCL, OAR_E_DEVICE, "all ranks on one host", hold_on_hosts },
    { "hold-host-stage", IPC, OAR_E_DEVICE, "OAR_ZERO_STAGE_3",
      hold_in_stage_2 },
    { "keep-state", IPC, OAR_E_DEVICE, "goes with the process", keep_state },
    { "keep-state", IPC, OAR_E_DEVICE, "goes with the process", regroup },
    { "tp-few-classes", IPC, OAR_E_DEVICE, "each needs one", have_few_classes },
    { "rpc-into", IPC, OAR_E_DEVICE, "take the reply", reply_into_gpu },
    { "replay-wait", IPC, OAR_E_UNSUPPORTED, "cannot be recorded",
      replay_read },
    { "replay-join", IPC, OAR_E_UNSUPPORTED, "before oar_replay_run",
      replay_join },
    { "replay-fsdp", IPC, OAR_E_UNSUPPORTED, "cannot be replayed",
      replay_sharded },
    { "replay-pipeline", IPC, OAR_E_UNSUPPORTED, "cannot be recorded",
      replay_pipeline },
    { "pipeline-nccl", NCCL, OAR_E_UNSUPPORTED, "cannot do that",
      pipe_without_tags },
    { "pipeline-kinds", IPC, OAR_E_MISMATCH, "on the gpu on rank 1",
      pipe_on_two_kinds },
    { "no-engine", IPC, OAR_E_UNSUPPORTED, "no engine for GPUs",
      reduce_without_engine },
    { "engine-cannot", NCCL, OAR_E_UNSUPPORTED, "cannot do that",
      reduce_in_order },
    { "large-batch", IPC, OAR_E_UNSUPPORTED, "can be begun together",
      send_many },
    { "after-fork", IPC, OAR_E_STATE, "does not survive a fork", fork_and_use },
};

enum { REFUSALS = sizeof refusals / sizeof *refusals };

/* Calls those of one backend, on every rank. */
static int refuse_all(test_job *c, int rank, void *arg)
{
    const int *over_nccl = arg;
    refusal_site s = { .job = c, .rank = rank };
    int failed = 0;

    if (*over_nccl)
        setenv("OARSONG_HOST_ID", rank == 0 ? "near" : "far", 1);
    RANK_OK(
        gpu_ranks_open(c, rank, *over_nccl ? "nccl" : "ipc", &s.gpu, &s.group));
    for (int i = 0; i < REFUSALS; i++) {
        const gpu_refusal *r = &refusals[i];

        if ((r->over == NCCL) != *over_nccl ||
            (r->over == IPC_TWO_GPUS && gpu_ranks_max() < 2))
            continue;
        oar_clear_error();
        if (!fails_with(r->call(&s), r->status, r->says)) {
            fprintf(stderr, "that was \"%s\" on rank %d\n", r->name, rank);
            failed = 1;
        }
    }
    RANK_OK(oar_barrier(s.group, NULL, NULL)); /* the group is as it was */
    oar_group_destroy(s.group);
    return failed;
}

static void run_ranks(int over_nccl)
{
    test_job c;

    if (over_nccl)
        gpu_ranks_need(2);
    test_job_start(&c, 2, refuse_all, &over_nccl, "what is refused over %s",
                   over_nccl ? "nccl" : "ipc");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

static void refusals_on_one_gpu_say_why(void **state)
{
    run_ranks(0);
}

static void refusals_on_several_gpus_say_why(void **state)
{
    run_ranks(1);
}

/* Reads an item, "| `name` | what | `OAR_E_DEVICE` |". Returns whether it is
 * one. */
static int read_item(const char *line, char name[64], char status[64])
{
    const char *last = strrchr(line, '`');

    if (sscanf(line, "| `%63[a-z0-9-]` |", name) != 1 || last == NULL)
        return 0;
    while (last > line && strncmp(last, "`OAR_E_", 7) != 0)
        last--;
    return sscanf(last, "`%63[A-Z_]` |", status) == 1;
}

static void every_item_of_the_list_has_a_case(void **state)
{
    const char *root = getenv("OARSONG_SOURCE_DIR");
    char path[1000], line[1000], name[64], status[64];
    int inside = 0, items = 0, found[REFUSALS] = { 0 };
    FILE *file;

    snprintf(path, sizeof path, "%s/docs/gpu.md", root != NULL ? root : ".");
    file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s cannot be read: set OARSONG_SOURCE_DIR", path);
    while (fgets(line, sizeof line, file) != NULL) {
        int cases = 0;

        if (strncmp(line, "## ", 3) == 0)
            inside = strcmp(line, "## Refused\n") == 0;
        if (!inside || line[0] != '|' || !strncmp(line, "| name", 6) ||
            !strncmp(line, "|---", 4))
            continue;
        if (!read_item(line, name, status))
            fail_msg("no item: %s", line);
        for (int i = 0; i < REFUSALS; i++)
            if (strcmp(refusals[i].name, name) == 0) {
                assert_string_equal(oar_status_name(refusals[i].status),
                                    status);
                assert_int_equal(found[i]++, 0); /* listed once */
                cases++;
            }
        if (cases == 0)
            fail_msg("\"%s\" is in docs/gpu.md, but has no case", name);
        items++;
    }
    fclose(file);
    assert_true(items > 0);
    for (int i = 0; i < REFUSALS; i++)
        if (!found[i])
            fail_msg("\"%s\" is not in the list of docs/gpu.md",
                     refusals[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_of_the_list_has_a_case),
        cmocka_unit_test(refusals_on_one_gpu_say_why),
        cmocka_unit_test(refusals_on_several_gpus_say_why),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_refusals", tests, NULL, NULL);
}
