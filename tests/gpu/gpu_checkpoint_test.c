/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of tensors on a GPU: what was saved there, at once, in the
 * background or lazily, while training goes on, is loaded on the cpu and back
 * with the same bits, and the run goes on as if it had not stopped. A save in
 * the background does not make the host wait for the GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"
#include "support/last_error.h"
#include "support/piped_gpt.h"
#include "support/ranks.h"
#include "support/runs_folder.h"

enum { MOST = 40000, STOP = 2, END = 4 };

typedef struct saving_case {
    oar_save_opts opts;
    size_t staging_bytes;
    int check_replicas;
    oar_dtype dtype;
    int pipeline; /* else DDP */
} saving_case;

/* Rounds numbers as the save was told to. */
static oar_status round_numbers(const oar_save_opts *o, double *number,
                                int64_t count)
{
    oar_tensor *t = oar_empty(NULL, o->dtype, OAR_SHAPE(count));
    oar_status status = oar_tensor_write(t, OAR_F64, number);

    if (status == OAR_OK)
        status = oar_tensor_read(t, OAR_F64, number);
    oar_tensor_release(t);
    return status;
}

/* Reads parameters and moments of a rank, in the order of the optimizer, as the
 * save has them. */
static oar_status read_run(oar_optim *optim, const oar_save_opts *o,
                           double *out, int64_t *count)
{
    *count = 0;
    for (int i = 0; i < oar_optim_params(optim); i++)
        for (int slot = -1; slot < 2; slot++) {
            const oar_tensor *t = slot < 0 ? oar_optim_param(optim, i)
                                           : oar_optim_state(optim, i, slot);
            oar_status status;

            if (*count + oar_tensor_count(t) > MOST)
                return OAR_E_SIZE;
            status = oar_tensor_read(t, OAR_F64, out + *count);
            if (status == OAR_OK && slot < 0 && o->has_dtype)
                status = round_numbers(o, out + *count, oar_tensor_count(t));
            if (status != OAR_OK)
                return status;
            *count += oar_tensor_count(t);
        }
    return OAR_OK;
}

static int save_and_resume(test_job *c, int rank, void *arg)
{
    static double saved[MOST], loaded[MOST], end[MOST];
    const saving_case *of = arg;
    piped_kind kind = { .plain = !of->pipeline,
                        .kind = OAR_SCHEDULE_1F1B,
                        .micro = 2,
                        .dtype = of->dtype };
    piped_kind on_cpu = kind;
    oar_checkpoint *ckpt;
    oar_group *group;
    piped_gpt a, b, d;
    int64_t n, m;
    long waits;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &kind.device, &group));
    RANK_OK(oar_checkpoint_open(group, runs_path,
                                OAR_OPTS(oar_checkpoint_opts, .no_sync = 1,
                                         .staging_bytes = of->staging_bytes,
                                         .block_bytes = 1 << 16,
                                         .check_replicas = of->check_replicas),
                                &ckpt));
    RANK_OK(piped_gpt_make(&a, group, &kind));
    RANK_OK(piped_gpt_train(&a, STOP - 1));
    RANK_OK(oar_checkpoint_save(ckpt, a.state, STOP - 1, &of->opts));
    RANK_OK(oar_checkpoint_wait(ckpt));
    RANK_OK(piped_gpt_train(&a, STOP));
    waits = gpu_host_waits();
    RANK_OK(oar_checkpoint_save(ckpt, a.state, STOP, &of->opts));
    waits = gpu_host_waits() - waits;
    RANK_CHECK(waits == 0 || !of->opts.background || of->staging_bytes > 0 ||
               of->check_replicas);
    RANK_OK(read_run(a.optim, &of->opts, saved, &n)); /* behind the copies */
    RANK_OK(piped_gpt_train(&a, END));
    RANK_OK(oar_checkpoint_wait(ckpt));

    RANK_OK(piped_gpt_make(&b, group, &on_cpu));
    RANK_OK(oar_checkpoint_load(ckpt, b.state, STOP, NULL));
    RANK_OK(read_run(b.optim, &of->opts, loaded, &m));
    RANK_CHECK(b.step == STOP && n == m &&
               memcmp(saved, loaded, (size_t)n * sizeof *saved) == 0);
    RANK_OK(oar_checkpoint_save(ckpt, b.state, STOP + 10, NULL));

    RANK_OK(piped_gpt_make(&d, group, &kind));
    RANK_OK(oar_checkpoint_load(ckpt, d.state, STOP + 10, NULL));
    RANK_OK(read_run(d.optim, &of->opts, loaded, &m));
    RANK_CHECK(memcmp(saved, loaded, (size_t)n * sizeof *saved) == 0);
    RANK_OK(piped_gpt_train(&d, END));
    RANK_OK(read_run(a.optim, &of->opts, end, &n));
    RANK_OK(read_run(d.optim, &of->opts, loaded, &m));
    RANK_CHECK(of->opts.has_dtype || gpu_ranks_are_real() ||
               memcmp(end, loaded, (size_t)n * sizeof *end) == 0);
    piped_gpt_drop(&a);
    piped_gpt_drop(&b);
    piped_gpt_drop(&d);
    oar_checkpoint_close(ckpt);
    oar_group_destroy(group);
    return 0;
}

/* ---- between replays ----------------------------------------------------- */

enum { IN = 6, HIDDEN = 19, OUT = 5, ROWS = 4, SAVED = 6, LAST = 12 };

/* A step is replayed from the fourth on: SAVED and LAST are replays, also of a
 * run that begins at SAVED. */
typedef struct replayed_run {
    oar_group *group;
    oar_device device;
    oar_module *net;
    oar_optim *optim;
    oar_scaler *scaler;
    oar_tape *tape;
    oar_tensor *x, *y;
    oar_replay *replay;
    oar_state *state;
    int64_t step;
} replayed_run;

static oar_status run_step(void *arg)
{
    const replayed_run *r = arg;
    oar_tensor *loss;
    oar_status status;

    oar_optim_zero_grad(r->optim);
    oar_tape_reset(r->tape);
    loss = oar_cross_entropy(r->tape, oar_forward(r->tape, r->net, r->x), r->y);
    status = oar_backward(r->tape, oar_scaler_loss(r->tape, r->scaler, loss));
    if (status != OAR_OK)
        return status;
    return oar_optim_step_with(
        r->optim, OAR_OPTS(oar_step_opts, .clip = 1, .scaler = r->scaler));
}

static oar_status make_net(replayed_run *r)
{
    oar_module *layer[3];

    CHECK_OK(oar_linear_create(IN, HIDDEN, 3, NULL, &layer[0]));
    CHECK_OK(oar_relu_create(&layer[1]));
    CHECK_OK(oar_linear_create(HIDDEN, OUT, 12, NULL, &layer[2]));
    CHECK_OK(oar_sequential_create(3, layer, &r->net));
    CHECK_OK(oar_module_cast(r->net, OAR_BF16, 0));
    CHECK_OK(oar_module_to(r->net, r->device));
    return oar_ddp_wrap(r->net, r->group, NULL, &r->net);
}

static oar_status open_run(replayed_run *r, oar_group *group, oar_device device)
{
    *r = (replayed_run){ .group = group, .device = device };
    r->x = oar_empty_on(NULL, device, OAR_BF16, OAR_SHAPE(ROWS, IN));
    r->y = oar_empty_on(NULL, device, OAR_I64, OAR_SHAPE(ROWS));
    CHECK(r->x != NULL && r->y != NULL);
    CHECK_OK(make_net(r));
    CHECK_OK(oar_adamw_create(
        r->net, OAR_OPTS(oar_adam_opts, .lr = 0.01, .master_weights = 1),
        &r->optim));
    CHECK_OK(oar_scaler_create(
        OAR_OPTS(oar_scaler_opts, .scale = 1 << 10, .interval = 4),
        &r->scaler));
    CHECK_OK(oar_tape_create(&r->tape));
    CHECK_OK(oar_state_create(&r->state));
    CHECK_OK(oar_state_add_module(r->state, r->net, NULL));
    CHECK_OK(oar_state_add_optim(r->state, r->optim, r->net, NULL));
    CHECK_OK(oar_state_add_scaler(r->state, "scaler", r->scaler));
    CHECK_OK(oar_state_add_i64(r->state, "step", &r->step));
    return oar_replay_create(device, run_step, r,
                             OAR_OPTS(oar_replay_opts, .warm = 2, .strict = 1),
                             &r->replay);
}

static void close_run(replayed_run *r)
{
    oar_replay_destroy(r->replay);
    oar_state_destroy(r->state);
    oar_tape_destroy(r->tape);
    oar_optim_destroy(r->optim);
    oar_scaler_destroy(r->scaler);
    oar_module_release(r->net);
    oar_tensor_release(r->x);
    oar_tensor_release(r->y);
}

/* Every rank and step has other rows and another learning rate. */
static oar_status replay_to(replayed_run *r, int64_t end)
{
    for (; r->step < end; r->step++) {
        int number = 2 * (int)r->step + oar_group_rank(r->group);
        double x[ROWS * IN], y[ROWS];

        for (int i = 0; i < ROWS * IN; i++)
            x[i] = (i * 5 + number * 7) % 13 / 4.0 - 1;
        for (int i = 0; i < ROWS; i++)
            y[i] = (number * 3 + i * 2) % OUT;
        CHECK_OK(oar_tensor_write(r->x, OAR_F64, x));
        CHECK_OK(oar_tensor_write(r->y, OAR_F64, y));
        oar_optim_set_lr(r->optim, 0.01 / (double)(1 + r->step / 4));
        CHECK_OK(oar_replay_run(r->replay));
    }
    return OAR_OK;
}

/* Gives what was trained, and its scale behind it. */
static oar_status read_all(const replayed_run *r, double *out, int64_t *count)
{
    oar_save_opts whole = oar_save_opts_init();

    CHECK_OK(read_run(r->optim, &whole, out, count));
    out[(*count)++] = oar_scaler_scale(r->scaler);
    out[(*count)++] = (double)oar_optim_steps(r->optim);
    return OAR_OK;
}

static int save_between_replays(test_job *c, int rank, void *arg)
{
    static double wanted[MOST], got[MOST];
    const saving_case *of = arg;
    replayed_run undisturbed, saved, resumed;
    oar_checkpoint *ckpt;
    oar_group *group;
    oar_device gpu;
    int64_t n, m;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &gpu, &group));
    RANK_OK(oar_checkpoint_open(
        group, runs_path, OAR_OPTS(oar_checkpoint_opts, .no_sync = 1), &ckpt));
    RANK_OK(open_run(&undisturbed, group, gpu));
    RANK_OK(replay_to(&undisturbed, LAST));
    RANK_OK(read_all(&undisturbed, wanted, &n));
    close_run(&undisturbed);

    RANK_OK(open_run(&saved, group, gpu));
    RANK_OK(replay_to(&saved, SAVED));
    RANK_OK(oar_checkpoint_save(ckpt, saved.state, SAVED, &of->opts));
    RANK_OK(replay_to(&saved, LAST)); /* beside the copies */
    RANK_OK(oar_checkpoint_wait(ckpt));
    RANK_OK(read_all(&saved, got, &m));
    RANK_CHECK(n == m && memcmp(wanted, got, (size_t)n * sizeof *got) == 0);

    RANK_OK(open_run(&resumed, group, gpu));
    RANK_OK(oar_checkpoint_load(ckpt, resumed.state, SAVED, NULL));
    RANK_CHECK(resumed.step == SAVED);
    RANK_OK(replay_to(&resumed, LAST));
    RANK_CHECK(oar_replay_graphs(resumed.replay) > 1);
    RANK_OK(read_all(&resumed, got, &m));
    RANK_CHECK(n == m && memcmp(wanted, got, (size_t)n * sizeof *got) == 0);
    close_run(&resumed);

    /* back to it, by the graphs that there are */
    RANK_OK(oar_checkpoint_load(ckpt, saved.state, SAVED, NULL));
    RANK_CHECK(saved.step == SAVED);
    RANK_OK(replay_to(&saved, LAST));
    RANK_OK(read_all(&saved, got, &m));
    RANK_CHECK(n == m && memcmp(wanted, got, (size_t)n * sizeof *got) == 0);
    close_run(&saved);
    oar_checkpoint_close(ckpt);
    oar_group_destroy(group);
    return 0;
}

/* ---- cases --------------------------------------------------------------- */

static void run_job(int ranks, saving_case of, test_job_fn fn)
{
    test_job c;

    runs_folder_renew();
    of.opts.size = sizeof of.opts;
    test_job_start(&c, ranks, fn, &of,
                   "%d ranks, background %d, lazy %d, staging %zu", ranks,
                   of.opts.background, of.opts.lazy, of.staging_bytes);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void run_case(int ranks, saving_case of)
{
    run_job(ranks, of, save_and_resume);
}

static void a_save_is_loaded_on_either_device(void **state)
{
    run_case(2, (saving_case){ .check_replicas = 1 });
    run_case(3, (saving_case){ .opts = { .background = 1 } });
    run_case(2, (saving_case){ .opts = { .background = 1, .lazy = 1 } });
}

static void little_memory_is_enough(void **state)
{
    run_case(1, (saving_case){ .opts = { .background = 1 },
                               .staging_bytes = 1 << 16 });
    run_case(1, (saving_case){ .opts = { .background = 1, .lazy = 1 },
                               .staging_bytes = 1 << 16 });
}

static void dtypes_and_stages_are_saved(void **state)
{
    run_case(2, (saving_case){ .opts = { .background = 1,
                                         .has_dtype = 1,
                                         .dtype = OAR_BF16 } });
    run_case(2, (saving_case){ .opts = { .background = 1 },
                               .dtype = OAR_BF16,
                               .pipeline = 1 });
}

static void a_save_between_replays_is_one_between_steps(void **state)
{
    run_job(2, (saving_case){ .opts = { .background = 0 } },
            save_between_replays);
    run_job(2, (saving_case){ .opts = { .background = 1, .lazy = 1 } },
            save_between_replays);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_is_loaded_on_either_device),
        cmocka_unit_test(little_memory_is_enough),
        cmocka_unit_test(dtypes_and_stages_are_saved),
        cmocka_unit_test(a_save_between_replays_is_one_between_steps),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_checkpoint", tests,
                                       runs_folder_make, runs_folder_remove);
}
