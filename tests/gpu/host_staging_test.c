/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory through the host, on groups without an engine for GPUs: when it
 * is allowed, that its results are the host's, that it keeps the order of
 * streams, and how it fails. */
#include <pthread.h>
#include <signal.h>

#include <oarsong/log.h>

#include "base/clock.h"
#include "gpu/host_comparison.h"
#include "support/last_error.h"

/* Longest that a failure may take: 2 s where there is a core for each rank. */
enum { BOUND_MS = 12000, COUNT = 70001, DIES = 1 };

static void run(int ranks, test_job_fn fn, void *arg, int killed,
                const char *what)
{
    test_job c;

    test_job_start(&c, ranks, fn, arg, "%s, %d ranks", what, ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, r == killed ? 128 + SIGKILL : 0);
    test_job_end(&c);
}

static oar_span take(gpu_rank *s, size_t count)
{
    oar_span span = oar_span_of(NULL, count, OAR_F32);

    span.device = s->gpu;
    if (oar_device_alloc(s->gpu, count * 4, &span.data) != OAR_OK ||
        oar_device_fill(span, 1, s->stream) != OAR_OK ||
        oar_stream_synchronize(s->gpu, s->stream) != OAR_OK)
        abort();
    return span;
}

static void give(gpu_rank *s, oar_span span)
{
    oar_device_free(s->gpu, span.data, s->stream);
}

static oar_call_opts on_stream(const gpu_rank *s)
{
    oar_call_opts o = oar_call_opts_init();

    o.stream = s->stream;
    return o;
}

/* Whether what is on the stream is over soon. */
static int drains(const gpu_rank *s)
{
    int64_t began = oari_now_ns();
    int done = 0;

    while (!done && ms_since(began) < BOUND_MS)
        if (oar_stream_query(s->gpu, s->stream, &done) != OAR_OK)
            return 0;
    return done;
}

/* ---- results ------------------------------------------------------------- */

static const oar_coll kinds[] = {
    OAR_COLL_BROADCAST,      OAR_COLL_ALL_REDUCE, OAR_COLL_REDUCE,
    OAR_COLL_GATHER,         OAR_COLL_SCATTER,    OAR_COLL_ALL_GATHER,
    OAR_COLL_REDUCE_SCATTER, OAR_COLL_ALL_TO_ALL
};

static int check_kind(gpu_rank *s, oar_coll kind, int round)
{
    static const size_t counts[] = { 0, 1, 261, COUNT };
    static const oar_dtype dtypes[] = { OAR_F32, OAR_BF16, OAR_F64, OAR_I8 };
    int alike = kind == OAR_COLL_BROADCAST || kind == OAR_COLL_ALL_REDUCE ||
                kind == OAR_COLL_REDUCE;
    compared_call t = { .kind = kind,
                        .dtype = dtypes[round % 4],
                        .op = round % 3 == 0 ? OAR_MAX : OAR_SUM,
                        .count = counts[(round + round / 4) % 4],
                        .root = round % s->ranks,
                        .in_place = kind != OAR_COLL_ALL_TO_ALL && round % 2,
                        .ragged = !alike && round / 2 % 2,
                        .skew = (size_t)(round % 3),
                        .weight = 1 };

    return compare_with_host(s, &t, NULL);
}

static int goes_in_pieces(test_job *c, int rank, void *arg)
{
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int round = 0; round < 8; round++)
            RANK_CHECK(check_kind(&s, kinds[k], round) == 0);
    gpu_rank_close(&s);
    return 0;
}

static void what_goes_in_many_pieces_has_the_bits_of_the_host(void **state)
{
    setenv("OARSONG_GPU_FALLBACK_BYTES", "16384", 1);
    for (int ranks = 1; ranks <= 3; ranks++)
        run(ranks, goes_in_pieces, NULL, -1, "pieces");
    setenv("OARSONG_GPU_FALLBACK_THREADS", "2", 1);
    run(2, goes_in_pieces, NULL, -1, "pieces, sums by two threads");
    unsetenv("OARSONG_GPU_FALLBACK_THREADS");
    unsetenv("OARSONG_GPU_FALLBACK_BYTES");
}

/* With slots as they are: in eight, or in pieces of 1 MiB. */
static int goes_in_eight(test_job *c, int rank, void *arg)
{
    static const oar_coll some[] = { OAR_COLL_BROADCAST, OAR_COLL_ALL_REDUCE,
                                     OAR_COLL_REDUCE, OAR_COLL_ALL_GATHER };
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    for (size_t k = 0; k < sizeof some / sizeof *some; k++)
        for (size_t mib = 3; mib <= 10; mib += 7) {
            compared_call t = { .kind = some[k],
                                .dtype = OAR_F64,
                                .op = OAR_SUM,
                                .count = (mib << 17) + 77,
                                .root = 1,
                                .weight = 1 };

            RANK_CHECK(compare_with_host(&s, &t, NULL) == 0);
        }
    gpu_rank_close(&s);
    return 0;
}

static void what_is_not_small_goes_in_eight_pieces(void **state)
{
    run(2, goes_in_eight, NULL, -1, "in eight");
}

static int passes_round(test_job *c, int rank, void *arg)
{
    int next = (rank + 1) % c->ranks, last = (rank + c->ranks - 1) % c->ranks;
    float value = 0;
    oar_call_opts o;
    oar_span out, in;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    out = take(&s, COUNT);
    in = take(&s, COUNT);
    o = on_stream(&s);
    for (int round = 0; round < 5; round++) {
        RANK_OK(oar_device_fill(out, rank + 10 * round, s.stream));
        RANK_OK(
            oar_sendrecv(s.group, out, next, round, in, last, round, &o, NULL));
        RANK_OK(compared_copy(&s, &value, oar_device_of(OAR_CPU, 0),
                              (float *)in.data + COUNT - 1, s.gpu,
                              sizeof value));
        RANK_CHECK(value == (float)(last + 10 * round));
    }
    give(&s, out);
    give(&s, in);
    gpu_rank_close(&s);
    return 0;
}

static void messages_both_ways_at_once_do_not_wait_for_each_other(void **state)
{
    run(2, passes_round, NULL, -1, "both ways");
    run(3, passes_round, NULL, -1, "in a ring");
}

/* ---- order --------------------------------------------------------------- */

/* The input is made late and the result read at once, all on one stream. */
static oar_status sum_late_input(gpu_rank *s, oar_span in, oar_span out,
                                 oar_span slow, float value, float *seen)
{
    oar_call_opts o = on_stream(s);
    oar_status status = OAR_OK;

    for (int i = 0; i < 4 && status == OAR_OK; i++)
        status = oar_device_fill(slow, i, s->stream);
    if (status == OAR_OK)
        status = oar_device_fill(in, value, s->stream);
    if (status == OAR_OK)
        status = oar_all_reduce_into(s->group, in, out, OAR_SUM, &o, NULL);
    if (status == OAR_OK)
        status = oar_device_copy(seen, oar_device_of(OAR_CPU, 0), out.data,
                                 s->gpu, out.count * 4, s->stream);
    if (status == OAR_OK)
        status = oar_device_fill(in, -1, s->stream);
    return status;
}

static int keeps_order(test_job *c, int rank, void *arg)
{
    oar_span in, out, slow;
    float *seen;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    in = take(&s, COUNT);
    out = take(&s, COUNT);
    slow = take(&s, compared_on_gpu() ? (size_t)64 << 20 : 64);
    RANK_OK(oar_pinned_alloc(COUNT * sizeof *seen, (void **)&seen));
    for (int round = 1; round <= 10; round++) {
        RANK_OK(sum_late_input(&s, in, out, slow, (float)(round * (rank + 1)),
                               seen));
        RANK_OK(oar_stream_synchronize(s.gpu, s.stream));
        for (int i = 0; i < COUNT; i++)
            RANK_CHECK(seen[i] ==
                       (float)(round * c->ranks * (c->ranks + 1) / 2));
    }
    oar_pinned_free(seen);
    give(&s, in);
    give(&s, out);
    give(&s, slow);
    gpu_rank_close(&s);
    return 0;
}

/* As late as streams can be. */
static void run_late(int ranks, test_job_fn fn, const char *what)
{
    const char *was = getenv("STANDIN_DELAY_US");
    char *keep = was != NULL ? strdup(was) : NULL;

    setenv("STANDIN_DELAY_US", "2000", 1);
    run(ranks, fn, NULL, -1, what);
    if (keep != NULL)
        setenv("STANDIN_DELAY_US", keep, 1);
    free(keep);
}

static void no_input_is_read_early_and_no_output_late(void **state)
{
    run_late(1, keeps_order, "order");
    run_late(3, keeps_order, "order");
}

/* One that the second group does and one that is taken from stages, beside each
 * other. */
static oar_status two_kinds(gpu_rank *s, oar_span row, oar_span part,
                            oar_span all, float value, float *seen)
{
    oar_device host = oar_device_of(OAR_CPU, 0);
    oar_call_opts o = on_stream(s);
    oar_work *work[2] = { NULL, NULL };
    oar_status status = oar_device_fill(row, value, s->stream);

    if (status == OAR_OK)
        status = oar_device_fill(all, s->rank == 0 ? -value : 0, s->stream);
    if (status == OAR_OK)
        status = oar_reduce_scatter(s->group, row, part, OAR_SUM, &o, &work[0]);
    if (status == OAR_OK)
        status = oar_broadcast(s->group, all, 0, &o, &work[1]);
    for (int i = 0; i < 2; i++) {
        if (status == OAR_OK)
            status = oar_work_order(work[i], s->stream);
        oar_work_release(work[i]);
    }
    if (status == OAR_OK)
        status = oar_device_copy(seen, host, part.data, s->gpu, part.count * 4,
                                 s->stream);
    if (status == OAR_OK)
        status = oar_device_copy(seen + part.count, host, all.data, s->gpu,
                                 all.count * 4, s->stream);
    return status == OAR_OK ? oar_stream_synchronize(s->gpu, s->stream)
                            : status;
}

static int does_two_kinds(test_job *c, int rank, void *arg)
{
    oar_span row, part, all;
    float *seen;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    row = take(&s, (size_t)c->ranks * COUNT);
    part = take(&s, COUNT);
    all = take(&s, COUNT);
    RANK_OK(oar_pinned_alloc(2 * COUNT * sizeof *seen, (void **)&seen));
    for (int round = 1; round <= 5; round++) {
        RANK_OK(two_kinds(&s, row, part, all, (float)round, seen));
        for (int i = 0; i < COUNT; i++) {
            RANK_CHECK(seen[i] == (float)(round * c->ranks));
            RANK_CHECK(seen[COUNT + i] == (float)-round);
        }
    }
    oar_pinned_free(seen);
    give(&s, row);
    give(&s, part);
    give(&s, all);
    gpu_rank_close(&s);
    return 0;
}

static void two_kinds_beside_each_other_are_right(void **state)
{
    setenv("OARSONG_GPU_FALLBACK_BYTES", "65536", 1);
    run_late(2, does_two_kinds, "two kinds");
    unsetenv("OARSONG_GPU_FALLBACK_BYTES");
}

/* ---- failures ------------------------------------------------------------ */

static int loses_a_rank(test_job *c, int rank, void *arg)
{
    shared_flag *waiting = arg;
    oar_call_opts o;
    oar_work *work;
    oar_span span;
    int64_t began;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    span = take(&s, COUNT);
    o = on_stream(&s);
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
    RANK_OK(oar_stream_synchronize(s.gpu, s.stream));
    if (rank == DIES) {
        shared_flag_await(waiting, (uint32_t)c->ranks - 1, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    shared_flag_raise(waiting);
    began = oari_now_ns();
    RANK_CHECK(oar_work_wait(work) == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == DIES && last_error_has("rank 1"));
    RANK_CHECK(is_in_time(began, BOUND_MS));
    RANK_CHECK(drains(&s));
    oar_work_release(work);
    RANK_CHECK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL) == OAR_E_PEER);
    gpu_rank_close(&s);
    RANK_CHECK(is_in_time(began, 2 * BOUND_MS));
    return 0;
}

static void a_rank_that_dies_is_named_by_the_others(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    run(3, loses_a_rank, waiting, DIES, "a death");
    shared_page_free(waiting, sizeof *waiting);
}

static int is_late(test_job *c, int rank, void *arg)
{
    shared_flag *over = arg;
    oar_call_opts o;
    oar_work *work;
    oar_span span;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    span = take(&s, COUNT);
    o = on_stream(&s);
    o.timeout_ms = 500;
    if (rank == DIES) {
        RANK_CHECK(
            shared_flag_await(over, (uint32_t)c->ranks - 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL) != OAR_OK);
        gpu_rank_close(&s);
        return 0;
    }
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    RANK_CHECK(oar_work_wait(work) == OAR_E_TIMEOUT &&
               last_error_has("rank 1"));
    RANK_CHECK(drains(&s));
    oar_work_release(work);
    shared_flag_raise(over);
    gpu_rank_close(&s);
    return 0;
}

static void a_rank_that_never_calls_is_named_at_the_deadline(void **state)
{
    shared_flag *over = shared_page(sizeof *over);

    run(3, is_late, over, -1, "never called");
    shared_page_free(over, sizeof *over);
}

static void *abort_it(void *arg)
{
    oar_group_abort(arg, "enough");
    return NULL;
}

static int is_aborted(test_job *c, int rank, void *arg)
{
    shared_flag *waiting = arg;
    oar_call_opts o;
    oar_span span;
    oar_work *work;
    pthread_t thread;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    if (rank != 0) {
        RANK_CHECK(shared_flag_await(waiting, 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_barrier(s.group, NULL, NULL) == OAR_E_ABORTED);
        RANK_CHECK(last_error_has("enough"));
        gpu_rank_close(&s);
        return 0;
    }
    span = take(&s, COUNT);
    o = on_stream(&s);
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    RANK_CHECK(pthread_create(&thread, NULL, abort_it, s.group) == 0);
    shared_flag_raise(waiting);
    RANK_CHECK(oar_work_wait(work) == OAR_E_ABORTED &&
               last_error_has("enough"));
    pthread_join(thread, NULL);
    RANK_CHECK(drains(&s));
    oar_work_release(work);
    gpu_rank_close(&s);
    return 0;
}

static void an_abort_from_another_thread_ends_what_waits(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    run(2, is_aborted, waiting, -1, "an abort");
    shared_page_free(waiting, sizeof *waiting);
}

static int disagrees(test_job *c, int rank, void *arg)
{
    float host[3] = { 0 };
    oar_call_opts o;
    oar_work *work;
    oar_span span;
    gpu_rank s;

    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    span = rank == 0 ? oar_span_of(host, 3, OAR_F32) : take(&s, 3);
    o = on_stream(&s);
    RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, &work));
    RANK_CHECK(oar_work_wait(work) == OAR_E_MISMATCH);
    RANK_CHECK(last_error_has(
        "rank 0 passes memory of the host at host_staging_test.c:"));
    RANK_CHECK(last_error_has(
        "rank 1 passes memory of a GPU at host_staging_test.c:"));
    oar_work_release(work);
    gpu_rank_close(&s);
    return 0;
}

static void one_rank_on_the_host_and_one_on_a_gpu_disagree(void **state)
{
    run(2, disagrees, NULL, -1, "disagree");
}

static int has_slots_of_its_own(test_job *c, int rank, void *arg)
{
    compared_call t = { .kind = OAR_COLL_ALL_REDUCE,
                        .dtype = OAR_F32,
                        .op = OAR_SUM,
                        .count = COUNT,
                        .in_place = 1 };
    gpu_rank s;

    setenv("OARSONG_GPU_FALLBACK_BYTES", rank == 0 ? "16384" : "50000", 1);
    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    RANK_CHECK(compare_with_host(&s, &t, NULL) == 0);
    t.kind = OAR_COLL_REDUCE_SCATTER; /* over the links */
    RANK_CHECK(compare_with_host(&s, &t, NULL) == 0);
    gpu_rank_close(&s);
    return 0;
}

static void all_ranks_cut_as_rank_0_does(void **state)
{
    run(3, has_slots_of_its_own, NULL, -1, "other slots");
}

/* ---- when it is allowed -------------------------------------------------- */

typedef struct fallback_case {
    const char *word[2]; /* what the ranks have in their environment */
    int allowed;
} fallback_case;

static int has_words(test_job *c, int rank, void *arg)
{
    const fallback_case *w = arg;
    oar_call_opts o;
    oar_span span;
    oar_status status;
    gpu_rank s;

    setenv("OARSONG_ENABLE_GPU_FALLBACK", w->word[rank], 1);
    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    span = take(&s, 7);
    o = on_stream(&s);
    status = oar_all_reduce(s.group, span, OAR_SUM, &o, NULL);
    RANK_CHECK(status == (w->allowed ? OAR_OK : OAR_E_UNSUPPORTED));
    if (!w->allowed)
        RANK_CHECK(last_error_has("\"hybrid\"") &&
                   last_error_has("OARSONG_ENABLE_GPU_FALLBACK=1"));
    RANK_OK(
        oar_barrier(s.group, NULL, NULL)); /* the group goes on either way */
    give(&s, span);
    gpu_rank_close(&s);
    return 0;
}

static void only_four_words_allow_it_and_those_of_rank_0_count(void **state)
{
    static fallback_case all[] = {
        { { "1", "1" }, 1 },      { { "true", "0" }, 1 }, { { "yes", "" }, 1 },
        { { "on", "off" }, 1 },   { { "0", "1" }, 0 },    { { "", "1" }, 0 },
        { { "off", "true" }, 0 }, { { "no", "yes" }, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(2, has_words, &all[i], -1, all[i].word[0]);
}

static void count_lines(void *arg, oar_log_level level, const char *line)
{
    if (level == OAR_LOG_WARN && strstr(line, "goes through the host") != NULL)
        atomic_fetch_add((_Atomic int *)arg, 1);
}

static int is_warned(test_job *c, int rank, void *arg)
{
    _Atomic int lines = 0;
    oar_call_opts o;
    oar_span span;
    gpu_rank s;

    oar_log_to(count_lines, &lines, OAR_LOG_WARN);
    RANK_CHECK(gpu_rank_open(&s, c, rank, "native") == 0);
    span = take(&s, COUNT);
    o = on_stream(&s);
    for (int i = 1; i <= 5; i++) {
        RANK_OK(oar_all_reduce(s.group, span, OAR_SUM, &o, NULL));
        RANK_CHECK(atomic_load(&lines) == i);
    }
    RANK_OK(oar_stream_synchronize(s.gpu, s.stream));
    give(&s, span);
    gpu_rank_close(&s);
    oar_log_to(NULL, NULL, OAR_LOG_ERROR);
    return 0;
}

static void every_call_warns_once(void **state)
{
    setenv("OARSONG_GPU_FALLBACK_BYTES", "16384", 1);
    run(2, is_warned, NULL, -1, "warnings");
    unsetenv("OARSONG_GPU_FALLBACK_BYTES");
}

/* ---- ranks as threads ---------------------------------------------------- */

static oar_status add_up(oar_group *group, void *arg)
{
    gpu_rank s = { .gpu = oar_device_of(OAR_CUDA, 0), .group = group };
    oar_call_opts o;
    oar_span span;
    float seen[261];

    if (oar_stream_create(s.gpu, 0, &s.stream) != OAR_OK)
        return OAR_E_GPU;
    span = take(&s, 261);
    o = on_stream(&s);
    if (oar_all_reduce(group, span, OAR_SUM, &o, NULL) != OAR_OK ||
        compared_copy(&s, seen, oar_device_of(OAR_CPU, 0), span.data, s.gpu,
                      sizeof seen) != OAR_OK)
        return oar_last_error()->status;
    give(&s, span);
    oar_stream_destroy(s.gpu, s.stream);
    return seen[0] == 3 && seen[260] == 3 ? OAR_OK : OAR_E_DATA;
}

/* One of them gives up while all are at work. */
static oar_status give_up(oar_group *group, void *arg)
{
    gpu_rank s = { .gpu = oar_device_of(OAR_CUDA, 0), .group = group };
    oar_work *work[6];
    oar_call_opts o;
    oar_span span;

    if (oar_stream_create(s.gpu, 0, &s.stream) != OAR_OK)
        return OAR_E_GPU;
    span = take(&s, 1 << 20);
    o = on_stream(&s);
    for (int i = 0; i < 6; i++)
        if (oar_all_reduce(group, span, OAR_SUM, &o, &work[i]) != OAR_OK)
            work[i] = NULL; /* it has ended by then */
    if (oar_group_rank(group) == 1)
        oar_group_abort(group, "enough");
    for (int i = 0; i < 6; i++) {
        if (work[i] != NULL)
            oar_work_wait(work[i]);
        oar_work_release(work[i]);
    }
    if (!drains(&s))
        return OAR_E_TIMEOUT;
    give(&s, span);
    oar_stream_destroy(s.gpu, s.stream);
    return oar_barrier(group, NULL, NULL) == OAR_E_ABORTED ? OAR_OK
                                                           : OAR_E_STATE;
}

static int has_threads_that_give_up(test_job *c, int rank, void *arg)
{
    for (int i = 0; i < 5; i++)
        RANK_OK(oar_sim_run(3, give_up, NULL));
    return 0;
}

static void ranks_that_are_threads_end_together(void **state)
{
    run(1, has_threads_that_give_up, NULL, -1, "threads that give up");
}

static int has_threads(test_job *c, int rank, void *arg)
{
    RANK_OK(oar_sim_run(3, add_up, NULL));
    return 0;
}

static void ranks_that_are_threads_have_it_too(void **state)
{
    run(1, has_threads, NULL, -1, "threads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_in_many_pieces_has_the_bits_of_the_host),
        cmocka_unit_test(what_is_not_small_goes_in_eight_pieces),
        cmocka_unit_test(messages_both_ways_at_once_do_not_wait_for_each_other),
        cmocka_unit_test(no_input_is_read_early_and_no_output_late),
        cmocka_unit_test(two_kinds_beside_each_other_are_right),
        cmocka_unit_test(a_rank_that_dies_is_named_by_the_others),
        cmocka_unit_test(a_rank_that_never_calls_is_named_at_the_deadline),
        cmocka_unit_test(an_abort_from_another_thread_ends_what_waits),
        cmocka_unit_test(one_rank_on_the_host_and_one_on_a_gpu_disagree),
        cmocka_unit_test(all_ranks_cut_as_rank_0_does),
        cmocka_unit_test(only_four_words_allow_it_and_those_of_rank_0_count),
        cmocka_unit_test(every_call_warns_once),
        cmocka_unit_test(ranks_that_are_threads_have_it_too),
        cmocka_unit_test(ranks_that_are_threads_end_together),
    };

    setenv("OARSONG_ENABLE_GPU_FALLBACK", "1", 1);
    setenv("OARSONG_LOG", "error", 0);
    setenv("STANDIN_DELAY_US", "20", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
