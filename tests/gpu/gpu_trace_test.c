/* SPDX-License-Identifier: Apache-2.0 */
/* What runs on a GPU is in the trace: modules, the optimizer, collectives and
 * replays, on the host's time line, in order, without waits of the host. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/oarsong.h>
#include <oarsong/trace.h>
#include <oarsong/trace_read.h>

#include "device/cuda/cuda_trace.h"
#include "support/gpu.h"
#include "support/gpu_ranks.h"

enum { IN = 6, HIDDEN = 19, OUT = 5, ROWS = 4, STEPS = 6, WARM = 2 };
enum { CALLS = 5, ELEMENTS = 3000, TOO_MANY = 7, MOST = 4096 };

static char folder[128];
static const oar_device gpu = { OAR_CUDA, 0 };

/* ---- training ------------------------------------------------------------ */

typedef struct traced_training {
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;
    oar_tensor *x, *y, *loss;
} traced_training;

static oar_status open_training(traced_training *t)
{
    oar_module *layer[3] = { 0 };
    double x[ROWS * IN], y[ROWS] = { 0, 1, 2, 3 };

    for (int i = 0; i < ROWS * IN; i++)
        x[i] = sin(i * 1.3);
    t->x = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(ROWS, IN));
    t->y = oar_empty_on(NULL, gpu, OAR_I64, OAR_SHAPE(ROWS));
    t->loss = oar_empty_on(NULL, gpu, OAR_F32, OAR_SCALAR);
    if (oar_linear_create(IN, HIDDEN, 3, NULL, &layer[0]) != OAR_OK ||
        oar_relu_create(&layer[1]) != OAR_OK ||
        oar_linear_create(HIDDEN, OUT, 4, NULL, &layer[2]) != OAR_OK ||
        oar_sequential_create(3, layer, &t->net) != OAR_OK ||
        oar_module_to(t->net, gpu) != OAR_OK ||
        oar_adamw_create(t->net, NULL, &t->optim) != OAR_OK ||
        oar_tape_create(&t->tape) != OAR_OK ||
        oar_tensor_write(t->x, OAR_F64, x) != OAR_OK ||
        oar_tensor_write(t->y, OAR_F64, y) != OAR_OK)
        return oar_last_error()->status;
    return OAR_OK;
}

static void close_training(traced_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
    oar_tensor_release(t->loss);
}

static oar_status run_step(void *arg)
{
    traced_training *t = arg;
    oar_tensor *loss;

    oar_optim_zero_grad(t->optim);
    oar_tape_reset(t->tape);
    loss = oar_cross_entropy(t->tape, oar_forward(t->tape, t->net, t->x), t->y);
    if (loss == NULL || oar_backward(t->tape, loss) != OAR_OK ||
        oar_optim_step(t->optim) != OAR_OK ||
        oar_tensor_copy(t->loss, loss) != OAR_OK)
        return oar_last_error()->status;
    return OAR_OK;
}

/* Trains; the loss is read within each step, so that the GPU has done it. */
static int train(test_job *c, int rank, void *arg)
{
    traced_training t = { 0 };
    long waits = 0;

    if (arg != NULL) /* it is to be off */
        atomic_store(&oari_trace_on, 0);
    oari_trace_process(0, 1);
    RANK_OK(open_training(&t));
    for (int s = 0; s < STEPS; s++) {
        double loss;
        long before = gpu_host_waits();

        RANK_OK(run_step(&t));
        waits += s > 1 ? gpu_host_waits() - before : 0; /* products are tuned */
        RANK_OK(oar_tensor_read(t.loss, OAR_F64, &loss));
        before = gpu_host_waits();
        oar_step(s);
        waits += gpu_host_waits() - before;
    }
    RANK_CHECK(waits == 0);
    close_training(&t);
    return 0;
}

static int train_replayed(test_job *c, int rank, void *arg)
{
    traced_training t = { 0 };
    oar_replay *replay = NULL;
    double loss;

    RANK_OK(open_training(&t));
    RANK_OK(oar_replay_create(
        gpu, run_step, &t, OAR_OPTS(oar_replay_opts, .warm = WARM, .strict = 1),
        &replay));
    for (int s = 0; s < STEPS; s++)
        RANK_OK(oar_replay_run(replay));
    RANK_CHECK(oar_replay_graphs(replay) == 1);
    RANK_OK(oar_tensor_read(t.loss, OAR_F64, &loss));
    oar_replay_destroy(replay);
    close_training(&t);
    return 0;
}

/* ---- what was written ---------------------------------------------------- */

typedef struct gpu_events {
    oar_trace_event at[MOST];
    int count;
    oar_trace_process of;
    oar_trace *trace;
    int process; /* -1: it has written nothing */
} gpu_events;

/* Runs ranks, in an empty folder, and returns the pid of the last. */
static pid_t run(int ranks, test_job_fn fn, void *arg, const char *what)
{
    char command[256];
    test_job c;
    pid_t pid;

    snprintf(command, sizeof command, "rm -f '%s'/*", folder);
    assert_int_equal(system(command), 0);
    test_job_start(&c, ranks, fn, arg, "%s", what);
    pid = c.pid[ranks - 1];
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    return pid;
}

/* Reads the intervals of the GPU that a process has written; the caller closes
 * the trace. */
static gpu_events *read_events(pid_t pid)
{
    gpu_events *g = calloc(1, sizeof *g);
    oar_trace_event e = oar_trace_event_init();

    assert_non_null(g);
    g->process = -1;
    if (oar_trace_open(folder, &g->trace) != OAR_OK)
        return g;
    for (int i = 0; i < oar_trace_processes(g->trace); i++) {
        g->of = oar_trace_process_init();
        assert_int_equal(oar_trace_process_at(g->trace, i, &g->of), OAR_OK);
        g->process = g->of.pid == pid ? i : -1;
        if (g->process >= 0)
            break;
    }
    for (uint64_t i = 0; i < oar_trace_events(g->trace); i++) {
        assert_int_equal(oar_trace_event_at(g->trace, i, &e), OAR_OK);
        if (e.kind == OAR_TRACE_GPU && e.process == g->process) {
            assert_true(g->count < MOST);
            g->at[g->count++] = e;
        }
    }
    return g;
}

static void close_events(gpu_events *g)
{
    oar_trace_close(g->trace);
    free(g);
}

static int count_named(const gpu_events *g, const char *name)
{
    int count = 0;

    for (int i = 0; i < g->count; i++)
        count += strcmp(g->at[i].name, name) == 0;
    return count;
}

/* Returns the n-th interval with that name, which is within a step as exactly
 * as the trace says. */
static oar_trace_event nth(const gpu_events *g, const char *name, int n,
                           const oar_trace_event *step)
{
    int64_t error = g->of.gpu_error_ns;

    for (int i = 0; i < g->count; i++)
        if (strcmp(g->at[i].name, name) == 0 && n-- == 0) {
            assert_true(g->at[i].start_ns >= step->start_ns - error);
            assert_true(g->at[i].end_ns <= step->end_ns + error);
            return g->at[i];
        }
    fail_msg("no %s in step %.0f", name, step->value);
    return *step;
}

/* Runs the tool on the folder; its result has the row of the stream. */
static void expect_row(const char *command)
{
    const char *build = getenv("OARSONG_BUILD_DIR");
    char text[1024];

    snprintf(text, sizeof text,
             "'%s/bin/oarsong' %s '%s' -o '%s.out' >'%s.said' && "
             "grep -aq 'cuda:0 stream 1' '%s.out'",
             build, command, folder, folder, folder, folder);
    if (build != NULL && system(text) != 0)
        fail_msg("no row of the GPU: %s", text);
    snprintf(text, sizeof text, "rm -f '%s.out' '%s.said'", folder, folder);
    assert_int_equal(system(text), 0);
}

/* ---- tests --------------------------------------------------------------- */

static void a_step_has_its_intervals_in_order(void **state)
{
    gpu_events *g = read_events(run(1, train, NULL, "a rank that trains"));
    oar_trace_event e = oar_trace_event_init();
    int steps = 0;

    assert_true(g->process >= 0);
    assert_int_equal(g->of.gpu_lost, 0);
    assert_true(g->of.gpu_error_ns > 0);
    for (int i = 0; i < g->count; i++) {
        assert_string_equal(g->at[i].group, "cuda:0 stream 1");
        assert_int_equal(g->at[i].thread, 0);
        assert_int_equal(g->at[i].rank, 0);
    }
    for (uint64_t i = 0; i < oar_trace_events(g->trace); i++) {
        oar_trace_event forward, layer, backward, optimizer;

        assert_int_equal(oar_trace_event_at(g->trace, i, &e), OAR_OK);
        if (e.kind != OAR_TRACE_STEP || e.end_ns == e.start_ns)
            continue;
        steps++;
        forward = nth(g, "sequential", steps, &e);
        layer = nth(g, "2 linear", steps, &e);
        backward = nth(g, "sequential backward", steps, &e);
        optimizer = nth(g, "optimizer step", steps, &e);
        assert_true(layer.start_ns >= forward.start_ns &&
                    layer.end_ns <= forward.end_ns);
        assert_true(forward.end_ns <= backward.start_ns);
        assert_true(backward.end_ns <= optimizer.start_ns);
        assert_true(backward.end_ns > backward.start_ns);
    }
    assert_int_equal(steps, STEPS - 1);
    assert_int_equal(count_named(g, "optimizer step"), STEPS);
    close_events(g);
    expect_row("trace");
    expect_row("trace --format perfetto");
    expect_row("report");
}

static void without_a_trace_there_is_none(void **state)
{
    int off = 1;
    gpu_events *g = read_events(run(1, train, &off, "a rank without a trace"));

    assert_int_equal(g->process, -1);
    assert_int_equal(g->count, 0);
    close_events(g);
}

static void a_replay_is_one_interval(void **state)
{
    gpu_events *g =
        read_events(run(1, train_replayed, NULL, "a rank that replays"));

    assert_int_equal(count_named(g, "replay"), STEPS - WARM);
    assert_int_equal(count_named(g, "optimizer step"), WARM);
    assert_int_equal(count_named(g, "sequential"), WARM);
    assert_int_equal(count_named(g, "sequential backward"), WARM);
    assert_int_equal(g->of.gpu_lost, 0);
    close_events(g);
}

static int reduce(test_job *c, int rank, void *arg)
{
    const char *backend = arg;
    int own = strcmp(backend, "nccl") == 0 ? rank : 0;
    oar_device device = oar_device_of(OAR_CUDA, own);
    oar_group *group = NULL;
    void *memory = gpu_put(own, NULL, ELEMENTS * sizeof(float));

    RANK_OK(oar_device_set_current(device));
    RANK_OK(gpu_ranks_join(
        c, rank,
        OAR_OPTS(oar_group_opts, .backend = backend, .device = &device),
        &group));
    for (int i = 0; i < CALLS; i++)
        RANK_OK(oar_all_reduce(group, gpu_span(own, memory, ELEMENTS, OAR_F32),
                               OAR_SUM, NULL, NULL));
    RANK_OK(oar_stream_synchronize(device, oar_stream_current(device)));
    RANK_OK(oar_barrier(group, NULL, NULL));
    gpu_free(own, memory);
    oar_group_destroy(group);
    return 0;
}

/* Over ipc on one GPU, the first rank may do the work of all. */
static void expect_reductions(const char *backend, int every_rank)
{
    char name[16];
    gpu_events *g;
    int seen = 0;

    snprintf(name, sizeof name, "%s", backend);
    if (strcmp(backend, "nccl") == 0)
        gpu_ranks_need(2);
    setenv("OARSONG_ENABLE_GPU_FALLBACK", "1", 1);
    run(2, reduce, name, backend);
    unsetenv("OARSONG_ENABLE_GPU_FALLBACK");
    g = read_events(-1);
    for (int p = 0; p < 2; p++) {
        oar_trace_process process = oar_trace_process_init();
        gpu_events *mine;

        assert_int_equal(oar_trace_process_at(g->trace, p, &process), OAR_OK);
        mine = read_events((pid_t)process.pid);
        if (every_rank || mine->count > 0)
            assert_int_equal(count_named(mine, "all_reduce"), CALLS);
        for (int i = 1; i < mine->count; i++)
            assert_true(mine->at[i - 1].end_ns <= mine->at[i].start_ns);
        assert_int_equal(mine->of.gpu_lost, 0);
        seen += mine->count;
        close_events(mine);
    }
    assert_true(seen >= CALLS);
    close_events(g);
}

static void collectives_have_intervals(void **state)
{
    expect_reductions("ipc", 0);
    expect_reductions("nccl", 1);
    expect_reductions("native", 1);
}

/* Nothing ends while the gate is closed. */
static int begin_too_many(test_job *c, int rank, void *arg)
{
    void *stream = NULL;
    stream_gate gate;

    RANK_OK(oar_stream_create(gpu, 0, &stream));
    RANK_OK(stream_gate_create(0, &gate));
    RANK_OK(stream_gate_close(0, &gate, stream));
    for (int i = 0; i < OARI_GPU_INTERVALS + TOO_MANY; i++) {
        oari_gpu_interval *one = oari_gpu_trace_begin(gpu, stream);

        RANK_CHECK((one != NULL) == (i < OARI_GPU_INTERVALS));
        oari_gpu_trace_end(one, "one of many");
    }
    stream_gate_open(&gate);
    RANK_OK(oar_stream_synchronize(gpu, stream));
    oar_step(0);
    oar_stream_destroy(gpu, stream);
    return 0;
}

static void what_is_too_much_is_counted(void **state)
{
    gpu_events *g;

    if (gpu_is_real())
        skip(); /* a real stream takes about a thousand events that wait */
    g = read_events(run(1, begin_too_many, NULL, "many intervals"));
    assert_int_equal(count_named(g, "one of many"), OARI_GPU_INTERVALS);
    assert_int_equal(g->of.gpu_lost, TOO_MANY);
    close_events(g);
}

/* A trace is written only if the variable was there when the program began. */
static void begin_again(char **argv)
{
    snprintf(folder, sizeof folder, "/tmp/oarsong-trace-XXXXXX");
    if (mkdtemp(folder) == NULL)
        exit(1);
    setenv("OARSONG_TRACE", folder, 1);
    execv("/proc/self/exe", argv);
    exit(1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_its_intervals_in_order),
        cmocka_unit_test(without_a_trace_there_is_none),
        cmocka_unit_test(a_replay_is_one_interval),
        cmocka_unit_test(collectives_have_intervals),
        cmocka_unit_test(what_is_too_much_is_counted),
    };
    char command[256];
    int failed;

    if (getenv("OARSONG_TRACE") == NULL)
        begin_again(argv);
    snprintf(folder, sizeof folder, "%s", getenv("OARSONG_TRACE"));
    gpu_ranks_init();
    failed = cmocka_run_group_tests_name("gpu_trace", tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? failed : 1;
}
