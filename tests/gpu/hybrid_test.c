/* SPDX-License-Identifier: Apache-2.0 */
/* Groups with one backend for host memory and one for device memory: their
 * names, which engine they get, and handles of operations on device memory. */
#include <signal.h>

#include "gpu/host_comparison.h"
#include "support/last_error.h"

enum { COUNT = 1031, MANY = 200 };

static void run(int ranks, test_job_fn fn, void *arg, const char *what)
{
    test_job c;

    test_job_start(&c, ranks, fn, arg, "%s, %d ranks", what, ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static oar_span take(const gpu_rank *s, size_t count)
{
    oar_span span = oar_span_of(NULL, count, OAR_F32);

    span.device = s->gpu;
    if (oar_device_alloc(s->gpu, count * 4, &span.data) != OAR_OK ||
        oar_device_fill(span, s->rank + 1, s->stream) != OAR_OK ||
        oar_stream_synchronize(s->gpu, s->stream) != OAR_OK)
        abort();
    return span;
}

static void give(const gpu_rank *s, oar_span span)
{
    oar_device_free(s->gpu, span.data, s->stream);
}

/* The last element, behind what is on the stream. */
static float last_of(const gpu_rank *s, oar_span span)
{
    float value = -1;

    compared_copy(s, &value, oar_device_of(OAR_CPU, 0),
                  (float *)span.data + span.count - 1, s->gpu, sizeof value);
    return value;
}

static float sum_of(int ranks)
{
    return (float)(ranks * (ranks + 1) / 2);
}

/* ---- names --------------------------------------------------------------- */

static int adds_up(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    float host = (float)(rank + 1);
    oar_span span;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, arg) == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    RANK_CHECK(last_of(&s, span) == sum_of(c->ranks));
    RANK_OK(oar_all_reduce(s.group, oar_span_of(&host, 1, OAR_F32), OAR_SUM,
                           NULL, NULL));
    RANK_CHECK(host == sum_of(c->ranks));
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void every_name_of_a_pair_carries_host_and_device_memory(void **state)
{
    static char *names[] = { "hybrid", "ipc", "cpu:native,cuda:ipc",
                             "cuda:auto", "cuda:ipc,cpu:shm" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        run(2, adds_up, names[i], names[i]);
    run(1, adds_up, "nccl", "nccl");
}

static int is_nonsense(test_job *c, int rank, void *arg)
{
    static const char *bad[] = { "cpu:native,gpu:nccl",
                                 "cuda:",
                                 "cpu:,cuda:ipc",
                                 "cpu:native,cpu:native",
                                 "cuda:ipc,",
                                 "cuda:native",
                                 "cpu:nccl",
                                 "cuda:nothing" };
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.backend = bad[i];
        RANK_CHECK(test_job_join(c, rank, &o, &g) != OAR_OK && g == NULL);
        RANK_CHECK(last_error_has("\""));
    }
    return 0;
}

static void wrong_names_are_refused_with_a_sentence(void **state)
{
    run(1, is_nonsense, NULL, "nonsense");
}

/* ---- which engine -------------------------------------------------------- */

static int has_engine(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device device = oar_device_of(OAR_CUDA, 0);
    oar_group *g;

    if (strstr(arg, "nccl") != NULL)
        device.index = rank;
    o.backend = "hybrid";
    o.device = &device;
    o.timeout_ms = 20000;
    RANK_OK(test_job_join(c, rank, &o, &g));
    if (strstr(oar_group_backend(g), arg) == NULL)
        fprintf(stderr, "backend is \"%s\"\n", oar_group_backend(g));
    RANK_CHECK(strstr(oar_group_backend(g), arg) != NULL);
    oar_group_destroy(g);
    return 0;
}

static void hybrid_is_ipc_where_ranks_share_a_gpu_and_else_nccl(void **state)
{
    run(2, has_engine, "cuda:ipc", "shared");
    if (compared_on_gpu())
        return;
    setenv("STANDIN_DEVICES", "2", 1);
    run(2, has_engine, "cuda:nccl", "one each");
    unsetenv("STANDIN_DEVICES");
}

/* ---- what is refused ----------------------------------------------------- */

static int is_refused(test_job *c, int rank, void *arg)
{
    float host[7] = { 0 };
    oar_call_opts o = oar_call_opts_init();
    oar_span span, other;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "ipc") == 0);
    span = take(&s, 7);
    o.stream = s.stream;
    other = span;
    other.device.index = 77;
    RANK_CHECK(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) ==
               OAR_E_DEVICE);
    other = oar_span_of(host, 7, OAR_F32);
    other.device = s.gpu;
    RANK_CHECK(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) != OAR_OK);
    other = span;
    other.count = (size_t)1 << 40;
    RANK_CHECK(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) != OAR_OK);
    RANK_CHECK(oar_all_reduce_into(s.group, oar_span_of(host, 7, OAR_F32), span,
                                   OAR_SUM, &o, NULL) == OAR_E_DEVICE);
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    RANK_CHECK(last_of(&s, span) == sum_of(c->ranks));
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void memory_on_another_device_than_its_span_is_refused(void **state)
{
    run(2, is_refused, NULL, "refused");
}

/* ---- handles ------------------------------------------------------------- */

static void note(void *arg, oar_status status)
{
    atomic_store((_Atomic int *)arg, status == OAR_OK ? 1 : -1);
}

static int has_handles(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    _Atomic int told = 0;
    oar_work *work;
    oar_span span;
    void *other;
    gpu_rank s, reader;
    int done = 0;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "ipc") == 0);
    RANK_OK(oar_stream_create(s.gpu, 0, &other));
    reader = s;
    reader.stream = other;
    span = take(&s, COUNT);
    o.stream = s.stream;
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    RANK_OK(oar_work_then(work, note, &told));
    RANK_OK(
        oar_work_order(work, other)); /* whose reader then sees the result */
    RANK_CHECK(last_of(&reader, span) == sum_of(c->ranks));
    while (!done)
        RANK_OK(oar_work_test(work, &done));
    RANK_CHECK(atomic_load(&told) == 1);
    oar_work_release(work);
    oar_stream_destroy(s.gpu, other);
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void handles_order_report_and_call_back(void **state)
{
    run(2, has_handles, NULL, "handles");
}

static int starts_again(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_work *work;
    oar_span span;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "ipc") == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    o.prepare = 1;
    RANK_OK(oar_all_reduce(s.group, span, OAR_MAX, &o, &work));
    for (int i = 0; i < 5; i++) {
        RANK_OK(oar_device_fill(span, 10 * i + rank, s.stream));
        RANK_OK(oar_work_start(work));
        RANK_OK(oar_work_wait(work));
        RANK_CHECK(last_of(&s, span) == (float)(10 * i + c->ranks - 1));
    }
    oar_work_release(work);
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void what_is_prepared_starts_again_behind_its_stream(void **state)
{
    run(2, starts_again, NULL, "again");
}

/* More than are begun together. */
static int has_a_batch(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_span span, one;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, arg) == 0);
    span = take(&s, MANY);
    one = span;
    one.count = 1;
    o.stream = s.stream;
    RANK_OK(oar_batch_begin(s.group));
    for (int i = 0; i < MANY; i++) {
        one.data = (float *)span.data + i;
        RANK_OK(oar_all_reduce(s.group, one, OAR_SUM, &o, NULL));
    }
    RANK_OK(oar_batch_end(s.group, NULL));
    RANK_CHECK(last_of(&s, span) == sum_of(c->ranks));
    RANK_OK(oar_batch_begin(s.group));
    for (int i = 0; i < MANY; i++)
        RANK_OK(oar_send(s.group, one, 0, 0, &o, NULL));
    RANK_CHECK(oar_batch_end(s.group, NULL) == OAR_E_UNSUPPORTED);
    RANK_CHECK(last_error_has("at most 128"));
    RANK_OK(oar_barrier(s.group, NULL, NULL));
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void a_long_batch_goes_in_parts_unless_it_has_messages(void **state)
{
    run(2, has_a_batch, "ipc", "a batch");
    run(1, has_a_batch, "nccl", "a batch");
}

static int goes_at_once(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_span span;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, arg) == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    oar_group_destroy(s.group);
    RANK_CHECK(last_of(&s, span) == sum_of(c->ranks));
    give(&s, span);
    oar_stream_destroy(s.gpu, s.stream);
    return 0;
}

static void an_operation_completes_though_the_group_is_destroyed(void **state)
{
    run(2, goes_at_once, "ipc", "gone at once");
    run(1, goes_at_once, "nccl", "gone at once");
}

static int waits_in_a_barrier(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_work *work;
    oar_span span;
    gpu_rank s;
    int done = 0;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "ipc") == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    for (int i = 0; i < 10; i++) {
        RANK_OK(oar_all_reduce(s.group, span, OAR_MAX, &o, &work));
        RANK_OK(oar_barrier(s.group, NULL, NULL));
        RANK_OK(oar_work_test(work, &done));
        RANK_CHECK(done);
        oar_work_release(work);
    }
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void a_barrier_is_behind_what_is_on_the_gpu(void **state)
{
    run(3, waits_in_a_barrier, NULL, "a barrier");
}

/* ---- parts of groups ----------------------------------------------------- */

static int child_adds_up(test_job *c, int rank, gpu_rank *s, oar_group *g)
{
    gpu_rank child = *s;
    oar_span span = take(s, COUNT);
    oar_call_opts o = oar_call_opts_init();
    float sum = 0;

    child.group = g;
    o.stream = s->stream;
    for (int r = 0; r < oar_group_size(g); r++)
        sum += (float)(oar_group_translate(g, r, s->group) + 1);
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, &o, NULL));
    RANK_CHECK(last_of(&child, span) == sum);
    give(s, span);
    oar_group_destroy(g);
    return 0;
}

static int has_children(test_job *c, int rank, void *arg)
{
    static const int two[] = { 2, 0 };
    oar_group *g = NULL;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "hybrid") == 0);
    RANK_OK(oar_group_split(s.group, rank % 2, -rank, &g));
    RANK_CHECK(child_adds_up(c, rank, &s, g) == 0);
    RANK_OK(oar_group_dup(s.group, &g));
    RANK_CHECK(child_adds_up(c, rank, &s, g) == 0);
    if (rank != 1) {
        RANK_OK(oar_group_subset(s.group, 2, two, &g));
        RANK_CHECK(child_adds_up(c, rank, &s, g) == 0);
    }
    gpu_rank_close(&s);
    return 0;
}

static void parts_of_a_group_have_its_engine(void **state)
{
    run(3, has_children, NULL, "children");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_of_a_pair_carries_host_and_device_memory),
        cmocka_unit_test(wrong_names_are_refused_with_a_sentence),
        cmocka_unit_test(hybrid_is_ipc_where_ranks_share_a_gpu_and_else_nccl),
        cmocka_unit_test(memory_on_another_device_than_its_span_is_refused),
        cmocka_unit_test(handles_order_report_and_call_back),
        cmocka_unit_test(what_is_prepared_starts_again_behind_its_stream),
        cmocka_unit_test(a_long_batch_goes_in_parts_unless_it_has_messages),
        cmocka_unit_test(an_operation_completes_though_the_group_is_destroyed),
        cmocka_unit_test(a_barrier_is_behind_what_is_on_the_gpu),
        cmocka_unit_test(parts_of_a_group_have_its_engine),
    };

    setenv("STANDIN_DELAY_US", "20", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
