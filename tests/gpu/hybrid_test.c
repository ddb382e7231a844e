/* SPDX-License-Identifier: Apache-2.0 */
/* Groups with one backend for host memory and one for device memory: their
 * names, which engine they get, and handles of operations on device memory. */
#include <signal.h>

#include "gpu/twin.h"

enum { COUNT = 1031, MANY = 200 };

#define TRY_(condition) CREW_CHECK(c, rank, condition)
#define OK(call)        TRY_((call) == OAR_OK)

static void run(int ranks, crew_fn fn, void *arg, const char *what)
{
    crew c;

    crew_start(&c, ranks, fn, arg, "%s, %d ranks", what, ranks);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
}

static int says(const char *word)
{
    return strstr(oar_last_error_text(), word) != NULL;
}

static oar_span take(const scene *s, size_t count)
{
    oar_span span = oar_span_of(NULL, count, OAR_F32);

    span.device = s->gpu;
    if (oar_device_alloc(s->gpu, count * 4, &span.data) != OAR_OK ||
        oar_device_fill(span, s->rank + 1, s->stream) != OAR_OK ||
        oar_stream_synchronize(s->gpu, s->stream) != OAR_OK)
        abort();
    return span;
}

static void give(const scene *s, oar_span span)
{
    oar_device_free(s->gpu, span.data, s->stream);
}

/* The last element, behind what is on the stream. */
static float last_of(const scene *s, oar_span span)
{
    float value = -1;

    twin_copy(s, &value, oar_device_of(OAR_CPU, 0),
              (float *)span.data + span.count - 1, s->gpu, sizeof value);
    return value;
}

static float sum_of(int ranks)
{
    return (float)(ranks * (ranks + 1) / 2);
}

/* ---- names --------------------------------------------------------------- */

static int adds_up(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    float host = (float)(rank + 1);
    oar_span span;
    scene s;

    TRY_(scene_open(&s, c, rank, arg) == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    TRY_(last_of(&s, span) == sum_of(c->ranks));
    OK(oar_all_reduce(s.group, oar_span_of(&host, 1, OAR_F32), OAR_SUM, NULL,
                      NULL));
    TRY_(host == sum_of(c->ranks));
    give(&s, span);
    scene_close(&s);
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

static int is_nonsense(crew *c, int rank, void *arg)
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
        TRY_(crew_join(c, rank, &o, &g) != OAR_OK && g == NULL);
        TRY_(says("\""));
    }
    return 0;
}

static void nonsense_is_refused_in_words(void **state)
{
    run(1, is_nonsense, NULL, "nonsense");
}

/* ---- which engine -------------------------------------------------------- */

static int has_engine(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device device = oar_device_of(OAR_CUDA, 0);
    oar_group *g;

    if (strstr(arg, "nccl") != NULL)
        device.index = rank;
    o.backend = "hybrid";
    o.device = &device;
    o.timeout_ms = 20000;
    OK(crew_join(c, rank, &o, &g));
    if (strstr(oar_group_backend(g), arg) == NULL)
        fprintf(stderr, "backend is \"%s\"\n", oar_group_backend(g));
    TRY_(strstr(oar_group_backend(g), arg) != NULL);
    oar_group_destroy(g);
    return 0;
}

static void hybrid_is_ipc_where_ranks_share_a_gpu_and_else_nccl(void **state)
{
    run(2, has_engine, "cuda:ipc", "shared");
    if (twin_on_gpu())
        return;
    setenv("STANDIN_DEVICES", "2", 1);
    run(2, has_engine, "cuda:nccl", "one each");
    unsetenv("STANDIN_DEVICES");
}

/* ---- what is refused ----------------------------------------------------- */

static int is_refused(crew *c, int rank, void *arg)
{
    float host[7] = { 0 };
    oar_call_opts o = oar_call_opts_init();
    oar_span span, other;
    scene s;

    TRY_(scene_open(&s, c, rank, "ipc") == 0);
    span = take(&s, 7);
    o.stream = s.stream;
    other = span;
    other.device.index = 77;
    TRY_(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) == OAR_E_DEVICE);
    other = oar_span_of(host, 7, OAR_F32);
    other.device = s.gpu;
    TRY_(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) != OAR_OK);
    other = span;
    other.count = (size_t)1 << 40;
    TRY_(oar_all_reduce(s.group, other, OAR_SUM, &o, NULL) != OAR_OK);
    TRY_(oar_all_reduce_into(s.group, oar_span_of(host, 7, OAR_F32), span,
                             OAR_SUM, &o, NULL) == OAR_E_DEVICE);
    OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    TRY_(last_of(&s, span) == sum_of(c->ranks));
    give(&s, span);
    scene_close(&s);
    return 0;
}

static void memory_that_is_not_what_it_says_is_refused_before(void **state)
{
    run(2, is_refused, NULL, "refused");
}

/* ---- handles ------------------------------------------------------------- */

static void note(void *arg, oar_status status)
{
    atomic_store((_Atomic int *)arg, status == OAR_OK ? 1 : -1);
}

static int has_handles(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    _Atomic int told = 0;
    oar_work *work;
    oar_span span;
    void *other;
    scene s, reader;
    int done = 0;

    TRY_(scene_open(&s, c, rank, "ipc") == 0);
    OK(oar_stream_create(s.gpu, 0, &other));
    reader = s;
    reader.stream = other;
    span = take(&s, COUNT);
    o.stream = s.stream;
    OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    OK(oar_work_then(work, note, &told));
    OK(oar_work_order(work, other)); /* whose reader then sees the result */
    TRY_(last_of(&reader, span) == sum_of(c->ranks));
    while (!done)
        OK(oar_work_test(work, &done));
    TRY_(atomic_load(&told) == 1);
    oar_work_release(work);
    oar_stream_destroy(s.gpu, other);
    give(&s, span);
    scene_close(&s);
    return 0;
}

static void handles_order_tell_and_call_back(void **state)
{
    run(2, has_handles, NULL, "handles");
}

static int starts_again(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_work *work;
    oar_span span;
    scene s;

    TRY_(scene_open(&s, c, rank, "ipc") == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    o.prepare = 1;
    OK(oar_all_reduce(s.group, span, OAR_MAX, &o, &work));
    for (int i = 0; i < 5; i++) {
        OK(oar_device_fill(span, 10 * i + rank, s.stream));
        OK(oar_work_start(work));
        OK(oar_work_wait(work));
        TRY_(last_of(&s, span) == (float)(10 * i + c->ranks - 1));
    }
    oar_work_release(work);
    give(&s, span);
    scene_close(&s);
    return 0;
}

static void what_is_prepared_starts_again_behind_its_stream(void **state)
{
    run(2, starts_again, NULL, "again");
}

/* More than are begun together. */
static int has_a_batch(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_span span, one;
    scene s;

    TRY_(scene_open(&s, c, rank, arg) == 0);
    span = take(&s, MANY);
    one = span;
    one.count = 1;
    o.stream = s.stream;
    OK(oar_batch_begin(s.group));
    for (int i = 0; i < MANY; i++) {
        one.data = (float *)span.data + i;
        OK(oar_all_reduce(s.group, one, OAR_SUM, &o, NULL));
    }
    OK(oar_batch_end(s.group, NULL));
    TRY_(last_of(&s, span) == sum_of(c->ranks));
    OK(oar_batch_begin(s.group));
    for (int i = 0; i < MANY; i++)
        OK(oar_send(s.group, one, 0, 0, &o, NULL));
    TRY_(oar_batch_end(s.group, NULL) == OAR_E_UNSUPPORTED);
    TRY_(says("at most 128"));
    OK(oar_barrier(s.group, NULL, NULL));
    give(&s, span);
    scene_close(&s);
    return 0;
}

static void a_long_batch_goes_in_parts_unless_it_has_messages(void **state)
{
    run(2, has_a_batch, "ipc", "a batch");
    run(1, has_a_batch, "nccl", "a batch");
}

static int goes_at_once(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_span span;
    scene s;

    TRY_(scene_open(&s, c, rank, arg) == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    oar_group_destroy(s.group);
    TRY_(last_of(&s, span) == sum_of(c->ranks));
    give(&s, span);
    oar_stream_destroy(s.gpu, s.stream);
    return 0;
}

static void what_was_called_comes_though_the_group_is_gone(void **state)
{
    run(2, goes_at_once, "ipc", "gone at once");
    run(1, goes_at_once, "nccl", "gone at once");
}

static int waits_in_a_barrier(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    oar_work *work;
    oar_span span;
    scene s;
    int done = 0;

    TRY_(scene_open(&s, c, rank, "ipc") == 0);
    span = take(&s, COUNT);
    o.stream = s.stream;
    for (int i = 0; i < 10; i++) {
        OK(oar_all_reduce(s.group, span, OAR_MAX, &o, &work));
        OK(oar_barrier(s.group, NULL, NULL));
        OK(oar_work_test(work, &done));
        TRY_(done);
        oar_work_release(work);
    }
    give(&s, span);
    scene_close(&s);
    return 0;
}

static void a_barrier_is_behind_what_is_on_the_gpu(void **state)
{
    run(3, waits_in_a_barrier, NULL, "a barrier");
}

/* ---- parts of groups ----------------------------------------------------- */

static int child_adds_up(crew *c, int rank, scene *s, oar_group *g)
{
    scene child = *s;
    oar_span span = take(s, COUNT);
    oar_call_opts o = oar_call_opts_init();
    float sum = 0;

    child.group = g;
    o.stream = s->stream;
    for (int r = 0; r < oar_group_size(g); r++)
        sum += (float)(oar_group_translate(g, r, s->group) + 1);
    OK(oar_all_reduce(g, span, OAR_SUM, &o, NULL));
    TRY_(last_of(&child, span) == sum);
    give(s, span);
    oar_group_destroy(g);
    return 0;
}

static int has_children(crew *c, int rank, void *arg)
{
    static const int two[] = { 2, 0 };
    oar_group *g = NULL;
    scene s;

    TRY_(scene_open(&s, c, rank, "hybrid") == 0);
    OK(oar_group_split(s.group, rank % 2, -rank, &g));
    TRY_(child_adds_up(c, rank, &s, g) == 0);
    OK(oar_group_dup(s.group, &g));
    TRY_(child_adds_up(c, rank, &s, g) == 0);
    if (rank != 1) {
        OK(oar_group_subset(s.group, 2, two, &g));
        TRY_(child_adds_up(c, rank, &s, g) == 0);
    }
    scene_close(&s);
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
        cmocka_unit_test(nonsense_is_refused_in_words),
        cmocka_unit_test(hybrid_is_ipc_where_ranks_share_a_gpu_and_else_nccl),
        cmocka_unit_test(memory_that_is_not_what_it_says_is_refused_before),
        cmocka_unit_test(handles_order_tell_and_call_back),
        cmocka_unit_test(what_is_prepared_starts_again_behind_its_stream),
        cmocka_unit_test(a_long_batch_goes_in_parts_unless_it_has_messages),
        cmocka_unit_test(what_was_called_comes_though_the_group_is_gone),
        cmocka_unit_test(a_barrier_is_behind_what_is_on_the_gpu),
        cmocka_unit_test(parts_of_a_group_have_its_engine),
    };

    setenv("STANDIN_DELAY_US", "20", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
