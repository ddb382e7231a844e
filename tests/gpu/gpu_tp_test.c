/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallel layers and DTensors on GPUs: a GPT whose ranks have a part of
 * each layer has the losses of one process on the cpu, and trains to the
 * parameters that the cpu does; the host does not wait; steps are replayed;
 * every way of moving a DTensor gives the elements that it gives on the cpu. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/gpu_ranks.h"
#include "support/last_error.h"

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { WORDS = 19, CONTEXT = 4, WIDTH = 12, ROWS = 3, STEPS = 5, MOST = 8192 };

typedef struct tp_case {
    int sequence, recompute, replayed;
    double smoothing;
    oar_dtype dtype;
    double tolerance;
} tp_case;

/* What one rank trains; group NULL: one process has all of it. */
typedef struct tp_training {
    const tp_case *of;
    oar_group *group;
    oar_device device;
    oar_module *gpt;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x, *y, *loss; /* the last: of the latest step */
} tp_training;

/* ---- training ------------------------------------------------------------ */

static oar_status open_training(tp_training *t)
{
    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                .context = CONTEXT, .width = WIDTH, .layers = 2,
                                .heads = 3, .recompute = t->of->recompute,
                                .seed = 7),
                       &t->gpt));
    if (t->of->dtype != OAR_F32)
        TRY(oar_module_cast(t->gpt, t->of->dtype, 0));
    if (t->group != NULL)
        TRY(oar_tp_parallelize_gpt(
            t->gpt, t->group,
            OAR_OPTS(oar_tp_opts, .sequence = t->of->sequence)));
    if (t->device.kind == OAR_CUDA)
        TRY(oar_module_to(t->gpt, t->device));
    TRY(oar_sgd_create(t->gpt, OAR_OPTS(oar_sgd_opts, .lr = 0.2), &t->optim));
    TRY(oar_tape_create(&t->tape));
    t->x = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS, CONTEXT));
    t->y = oar_empty_on(NULL, t->device, OAR_I64, OAR_SHAPE(ROWS * CONTEXT));
    t->loss = oar_empty_on(NULL, t->device, t->of->dtype, OAR_SCALAR);
    return t->x != NULL && t->y != NULL && t->loss != NULL
               ? OAR_OK
               : oar_last_error()->status;
}

static void close_training(tp_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_module_release(t->gpt);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
    oar_tensor_release(t->loss);
}

static oar_status write_batch(const tp_training *t, int step)
{
    double x[ROWS * CONTEXT], y[ROWS * CONTEXT];

    for (int i = 0; i < ROWS * CONTEXT; i++) {
        x[i] = (step * 7 + i * 5) % WORDS;
        y[i] = (step * 3 + i * 2) % WORDS;
    }
    y[2] = 1; /* which does not count */
    TRY(oar_tensor_write(t->x, OAR_F64, x));
    return oar_tensor_write(t->y, OAR_F64, y);
}

static oar_status run_step(void *arg)
{
    tp_training *t = arg;
    oar_cross_entropy_opts o = { .size = sizeof o,
                                 .has_ignore = 1,
                                 .ignore = 1,
                                 .label_smoothing = t->of->smoothing };
    oar_tensor *logits, *loss;

    oar_optim_zero_grad(t->optim);
    oar_tape_reset(t->tape);
    logits = oar_forward(t->tape, t->gpt, t->x);
    loss = t->group != NULL ? oar_tp_cross_entropy(t->tape, logits, t->y,
                                                   t->group, WORDS, &o)
                            : oar_cross_entropy_with(t->tape, logits, t->y, &o);
    if (loss == NULL)
        return oar_last_error()->status;
    TRY(oar_tensor_copy(t->loss, loss));
    TRY(oar_backward(t->tape, loss));
    return oar_optim_step_with(t->optim, OAR_OPTS(oar_step_opts, .clip = 0));
}

/* Gives the loss of each step, and then all parameters. */
static oar_status train(const tp_case *of, oar_group *group, oar_device device,
                        int replayed, double *result, int *count, long *waits)
{
    tp_training t = { .of = of, .group = group, .device = device };
    oar_replay *replay = NULL;

    TRY(open_training(&t));
    if (replayed)
        TRY(oar_replay_create(device, run_step, &t,
                              OAR_OPTS(oar_replay_opts, .warm = 2, .strict = 1),
                              &replay));
    for (*count = 0; *count < STEPS; ++*count) {
        long before;

        TRY(write_batch(&t, *count));
        before = gpu_host_waits();
        TRY(replayed ? oar_replay_run(replay) : run_step(&t));
        *waits += *count > 1 ? gpu_host_waits() - before : 0;
        TRY(oar_tensor_item(t.loss, &result[*count]));
    }
    if (replayed && oar_replay_graphs(replay) < 3)
        return OAR_E_INTERNAL;
    for (int i = 0; i < oar_module_params(t.gpt); i++) {
        oar_tensor *p = oar_module_param(t.gpt, i);

        if (*count + oar_tensor_count(p) > MOST)
            return OAR_E_SIZE;
        TRY(oar_tensor_read(p, OAR_F64, result + *count));
        *count += (int)oar_tensor_count(p);
    }
    oar_replay_destroy(replay);
    close_training(&t);
    return OAR_OK;
}

static int near(const char *what, const double *a, const double *b, int n,
                double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance)) {
            fprintf(stderr, "%s %d: %.7f, not %.7f\n", what, i, a[i], b[i]);
            return 0;
        }
    return 1;
}

static int train_rank(test_job *c, int rank, void *arg)
{
    static double whole[MOST], cpu[MOST], first[MOST], second[MOST];
    oar_device host = oar_device_of(OAR_CPU, 0), device;
    const tp_case *of = arg;
    oar_group *group;
    long waits = 0, ignored = 0;
    int n = 0, all = 0;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_OK(train(of, NULL, host, 0, whole, &all, &ignored));
    RANK_OK(train(of, group, host, 0, cpu, &n, &ignored));
    RANK_OK(train(of, group, device, 0, first, &n, &waits));
    RANK_CHECK(near("loss of step", first, whole, STEPS, of->tolerance));
    RANK_CHECK(near("number", first, cpu, n, of->tolerance));
    RANK_CHECK(waits == 0);
    if (of->replayed) {
        RANK_OK(train(of, group, device, 1, second, &n, &ignored));
        RANK_CHECK(memcmp(first, second, (size_t)n * sizeof *first) == 0);
    }
    oar_group_destroy(group);
    return 0;
}

static void run_case(int ranks, tp_case of, test_job_fn fn)
{
    test_job c;

    test_job_start(&c, ranks, fn, &of,
                   "%d ranks, sequence %d, recompute %d, replayed %d", ranks,
                   of.sequence, of.recompute, of.replayed);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void a_gpt_is_that_of_one_process(void **state)
{
    run_case(2, (tp_case){ .replayed = 1, .tolerance = 2e-4 }, train_rank);
    run_case(
        3,
        (tp_case){
            .sequence = 1, .replayed = 1, .smoothing = 0.1, .tolerance = 2e-4 },
        train_rank);
}

static void recomputation_gives_it_too(void **state)
{
    run_case(2, (tp_case){ .sequence = 1, .recompute = 1, .tolerance = 2e-4 },
             train_rank);
}

static void halves_are_near(void **state)
{
    run_case(2,
             (tp_case){ .dtype = OAR_BF16, .replayed = 1, .tolerance = 8e-2 },
             train_rank);
}

/* ---- DTensors ------------------------------------------------------------ */

enum { PLACEMENTS = 5 };

static oar_placement placement(int i)
{
    return i == 0   ? oar_placement_replicate()
           : i == 1 ? oar_placement_shard(0)
           : i == 2 ? oar_placement_shard(1)
           : i == 3 ? oar_placement_shard(2)
                    : oar_placement_partial(OAR_REDUCE_OP_SUM);
}

/* Moves on one device, and back in backward: result and gradient. */
static oar_status move_on(oar_device device, const oar_spec *from,
                          const oar_spec *to, double *result, int64_t *count)
{
    int rank = oar_mesh_rank(oar_spec_mesh(from));
    oar_tensor *made =
        oar_normal(NULL, OAR_F32, oar_spec_local_shape(from, rank),
                   11 + (uint64_t)rank, 0, 1);
    oar_tensor *local = oar_to(NULL, made, device), *grad;
    oar_dtensor b;
    oar_tape *tape;

    TRY(oar_tape_create(&tape));
    TRY(oar_tensor_require_grad(local, 1));
    b = oar_redistribute(tape, oar_dtensor_from_local(local, from), to, NULL);
    if (b.local == NULL)
        return oar_last_error()->status;
    TRY(oar_tensor_read(b.local, OAR_F64, result));
    *count = oar_tensor_count(b.local);
    if (from != to) {
        TRY(oar_backward(tape, oar_sum(tape, oar_mul(tape, b.local, b.local))));
        grad = oar_tensor_grad(local);
        TRY(oar_tensor_read(grad, OAR_F64, result + *count));
        *count += oar_tensor_count(grad);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(local);
    oar_tensor_release(made);
    return OAR_OK;
}

static int move_rank(test_job *c, int rank, void *arg)
{
    static double a[MOST], b[MOST];
    oar_shape shape = OAR_SHAPE(4, 5, 3);
    oar_device device;
    oar_group *group;
    oar_mesh *mesh;
    int64_t n, m;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_OK(oar_mesh_create(group, 1, (int[]){ c->ranks }, NULL, NULL, &mesh));
    for (int i = 0; i < PLACEMENTS; i++)
        for (int k = 0; k < PLACEMENTS; k++) {
            oar_placement p = placement(i), q = placement(k);
            const oar_spec *from = oar_spec_of(mesh, 1, &p, shape, NULL);
            const oar_spec *to = oar_spec_of(mesh, 1, &q, shape, NULL);

            RANK_CHECK(from != NULL && to != NULL);
            RANK_OK(move_on(oar_device_of(OAR_CPU, 0), from, to, a, &n));
            RANK_OK(move_on(device, from, to, b, &m));
            RANK_CHECK(n == m && near("element", b, a, (int)n, 1e-6));
        }
    oar_mesh_release(mesh);
    oar_group_destroy(group);
    return 0;
}

/* The last rank has no element, and yet takes part. */
static int least_rank(test_job *c, int rank, void *arg)
{
    static const oar_dtype dtypes[] = { OAR_I64, OAR_U64, OAR_I32 };
    oar_placement cut = oar_placement_shard(0),
                  whole = oar_placement_replicate();
    oar_dtensor least, all;
    oar_device device;
    oar_group *group;
    oar_mesh *mesh;
    double got;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    RANK_OK(oar_mesh_create(group, 1, (int[]){ c->ranks }, NULL, NULL, &mesh));
    for (int i = 0; i < 3; i++) {
        const oar_spec *spec =
            oar_spec_of(mesh, 1, &cut, OAR_SHAPE(c->ranks - 1), NULL);
        oar_tensor *local = oar_empty_on(NULL, device, dtypes[i],
                                         oar_spec_local_shape(spec, rank));

        RANK_CHECK(oar_tensor_count(local) == (rank < c->ranks - 1));
        RANK_OK(oar_tensor_fill(local, 7 + rank));
        least = oar_dtensor_min_over(NULL, oar_dtensor_from_local(local, spec),
                                     OAR_DIMS(0), 0);
        RANK_CHECK(least.local != NULL);
        all = oar_redistribute(
            NULL, least, oar_spec_of(mesh, 1, &whole, OAR_SCALAR, NULL), NULL);
        RANK_CHECK(all.local != NULL);
        RANK_OK(oar_tensor_item(all.local, &got));
        RANK_CHECK(got == 7);
        oar_tensor_release(all.local);
        oar_tensor_release(least.local);
        oar_tensor_release(local);
    }
    oar_mesh_release(mesh);
    oar_group_destroy(group);
    return 0;
}

static void the_least_needs_no_element_of_a_rank(void **state)
{
    run_case(3, (tp_case){ 0 }, least_rank);
}

static void every_move_gives_the_elements_of_the_cpu(void **state)
{
    run_case(2, (tp_case){ 0 }, move_rank);
    run_case(3, (tp_case){ 0 }, move_rank);
}

/* ---- what goes wrong ----------------------------------------------------- */

static int lose_last_rank(test_job *c, int rank, void *arg)
{
    tp_training t = { .of = arg };
    oar_status status = OAR_OK;
    size_t before;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &t.device, &t.group));
    before = gpu_used_bytes(t.device);
    RANK_OK(open_training(&t));
    for (int s = 0; s < STEPS && status == OAR_OK; s++) {
        if (s == 2 && rank == c->ranks - 1)
            raise(SIGKILL);
        RANK_OK(write_batch(&t, s));
        status = run_step(&t);
    }
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == c->ranks - 1);
    close_training(&t);
    oar_group_destroy(t.group);
    RANK_CHECK(gpu_used_bytes(t.device) == before);
    return 0;
}

static void a_rank_that_dies_is_named(void **state)
{
    tp_case of = { 0 };
    test_job c;

    test_job_start(&c, 3, lose_last_rank, &of, "3 ranks lose one");
    test_job_expect(&c, 2, 128 + SIGKILL);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

/* ---- options of the loss ------------------------------------------------- */

enum { LOSS_ROWS = 7, LOSS_MOST = LOSS_ROWS * (WORDS + 1) };

/* Gives the loss and the gradient of this rank's columns; *count: of both. */
static oar_status lose_on(oar_device device, oar_group *group, oar_dtype dtype,
                          oar_cross_entropy_opts o, int weighed, double *out,
                          int *count)
{
    static const double target[LOSS_ROWS] = { 0, 18, 1, 9, 10, 17, 1 };
    oar_tensor *all =
        oar_normal(NULL, dtype, OAR_SHAPE(LOSS_ROWS, WORDS), 3, 0, 2);
    oar_tensor *w = oar_uniform(NULL, dtype, OAR_SHAPE(WORDS), 5, 0.5, 2);
    oar_tensor *x, *y, *there, *loss, *part, *start;
    int64_t first, own = oar_tp_part(WORDS, oar_group_rank(group),
                                     oar_group_size(group), &first);
    oar_tape *tape;

    TRY(oar_tape_create(&tape));
    part = oar_contiguous(tape, oar_narrow(tape, all, 1, first, own));
    x = oar_to(NULL, part, device);
    TRY(oar_tensor_require_grad(x, 1));
    y = oar_empty_on(NULL, device, OAR_I64, OAR_SHAPE(LOSS_ROWS));
    TRY(oar_tensor_write(y, OAR_F64, target));
    there = oar_to(NULL, w, device);
    o.weight = weighed ? there : NULL;
    loss = oar_tp_cross_entropy(tape, x, y, group, WORDS, &o);
    if (loss == NULL)
        return oar_last_error()->status;
    start = oar_empty_on(tape, device, dtype, oar_tensor_shape(loss));
    TRY(oar_tensor_fill(start, 0.75));
    TRY(oar_backward_from(tape, 1, &loss, &start));
    TRY(oar_tensor_read(loss, OAR_F64, out));
    *count = (int)oar_tensor_count(loss);
    TRY(oar_tensor_read(oar_tensor_grad(x), OAR_F64, out + *count));
    *count += (int)oar_tensor_count(x);
    oar_tape_destroy(tape);
    oar_tensor_release(all);
    oar_tensor_release(w);
    oar_tensor_release(x);
    oar_tensor_release(y);
    oar_tensor_release(there);
    return OAR_OK;
}

static int lose_with_options(test_job *c, int rank, void *arg)
{
    static const double smoothing[] = { 0, 0.1, 1 };
    static const oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_BF16 };
    static const double tolerance[] = { 2e-5, 1e-12, 6e-2 };
    double cpu[LOSS_MOST], gpu[LOSS_MOST];
    oar_group *group;
    oar_device device;
    int n = 0, m = 0;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &group));
    for (int i = 0; i < 3 * 3 * 3 * 4; i++) {
        oar_cross_entropy_opts o = { .size = sizeof o,
                                     .label_smoothing = smoothing[i % 3],
                                     .reduction =
                                         (oar_loss_reduction)(i / 3 % 3),
                                     .has_ignore = i / 27 % 2,
                                     .ignore = 1 };
        int d = i / 9 % 3, weighed = i / 54;

        RANK_OK(lose_on(oar_device_of(OAR_CPU, 0), group, dtypes[d], o, weighed,
                        cpu, &n));
        RANK_OK(lose_on(device, group, dtypes[d], o, weighed, gpu, &m));
        if (n != m || !near("number", gpu, cpu, n, tolerance[d])) {
            fprintf(stderr,
                    "that was %s, smoothing %g, reduction %d, ignore %d, "
                    "weighed %d\n",
                    oar_dtype_name(dtypes[d]), o.label_smoothing,
                    (int)o.reduction, o.has_ignore, weighed);
            return 1;
        }
    }
    oar_group_destroy(group);
    return 0;
}

static void losses_have_the_options_of_the_cpu(void **state)
{
    run_case(3, (tp_case){ 0 }, lose_with_options);
}

static int refuse(test_job *c, int rank, void *arg)
{
    oar_cross_entropy_opts o = { .size = sizeof o, .label_smoothing = 1.5 };
    tp_training t = { .of = arg };
    double bad[ROWS * CONTEXT] = { WORDS };
    oar_tensor *logits;
    oar_status status;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &t.device, &t.group));
    RANK_OK(open_training(&t));
    RANK_OK(write_batch(&t, 0));
    logits = oar_forward(t.tape, t.gpt, t.x);
    RANK_CHECK(oar_tp_cross_entropy(t.tape, logits, t.y, t.group, WORDS, &o) ==
               NULL);
    RANK_CHECK(fails_with(oar_last_error()->status, OAR_E_ARG, "from 0 to 1"));
    o.label_smoothing = 0;
    o.weight = oar_empty_on(NULL, t.device, OAR_F32, OAR_SHAPE(WORDS - 1));
    RANK_CHECK(oar_tp_cross_entropy(t.tape, logits, t.y, t.group, WORDS, &o) ==
               NULL);
    RANK_CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE, "18 weights"));
    oar_tensor_release(o.weight);
    o.weight = oar_empty_on(NULL, t.device, OAR_F64, OAR_SHAPE(WORDS));
    RANK_CHECK(oar_tp_cross_entropy(t.tape, logits, t.y, t.group, WORDS, &o) ==
               NULL);
    RANK_CHECK(
        fails_with(oar_last_error()->status, OAR_E_DTYPE, "f64 weights"));
    oar_tensor_release(o.weight);
    o.weight = oar_empty(NULL, OAR_F32, OAR_SHAPE(WORDS));
    RANK_CHECK(oar_tp_cross_entropy(t.tape, logits, t.y, t.group, WORDS, &o) ==
               NULL);
    RANK_CHECK(
        fails_with(oar_last_error()->status, OAR_E_DEVICE, "weights on cpu"));
    oar_tensor_release(o.weight);
    RANK_OK(oar_tensor_write(t.y, OAR_F64, bad));
    status = run_step(&t);
    if (status == OAR_OK)
        status = oar_stream_synchronize(t.device, NULL);
    RANK_CHECK(status == OAR_E_ARG);
    close_training(&t);
    oar_group_destroy(t.group);
    return 0;
}

static void refusals_have_a_sentence(void **state)
{
    run_case(2, (tp_case){ 0 }, refuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt_is_that_of_one_process),
        cmocka_unit_test(recomputation_gives_it_too),
        cmocka_unit_test(halves_are_near),
        cmocka_unit_test(every_move_gives_the_elements_of_the_cpu),
        cmocka_unit_test(the_least_needs_no_element_of_a_rank),
        cmocka_unit_test(losses_have_the_options_of_the_cpu),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(refusals_have_a_sentence),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests_name("gpu_tp", tests, NULL, NULL);
}
