/* SPDX-License-Identifier: Apache-2.0 */
/* The order of things on GPUs with NCCL: no input is read early and no output
 * late, messages that wait for each other do not deadlock, a barrier waits, and
 * bad arguments are found before anything is enqueued. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/nccl.h>
#include <oarsong/p2p.h>

#include "support/gpu_ranks.h"

static void run(int ranks, test_job_fn fn, void *arg, const char *what)
{
    test_job c;

    gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, arg, "%s", what);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static int few(void)
{
    return gpu_ranks_max() < 3 ? 1 : 3;
}

/* ---- streams ------------------------------------------------------------- */

enum { ROUNDS = 25, ELEMENTS = 4099, LARGE = 16 << 20 };

/* What a caller does on a stream of its own: makes the input late, sums, and
 * copies the result away at once. Nothing waits on the host in between. */
typedef struct late_input_case {
    oar_device device;
    void *stream, *in, *out, *slow;
    float *seen; /* pinned */
    size_t slow_bytes;
} late_input_case;

static oar_status begin_late_input(late_input_case *w, int rank)
{
    w->device = gpu_of_rank(rank);
    w->slow_bytes = gpu_ranks_are_real() ? (size_t)LARGE * 16 : 64;
    if (oar_stream_create(w->device, 0, &w->stream) != OAR_OK ||
        oar_device_alloc(w->device, w->slow_bytes, &w->slow) != OAR_OK)
        return oar_last_error()->status;
    w->in = gpu_put(rank, NULL, ELEMENTS * sizeof(float));
    w->out = gpu_put(rank, NULL, ELEMENTS * sizeof(float));
    return oar_pinned_alloc(ELEMENTS * sizeof(float), (void **)&w->seen);
}

static void end_late_input(late_input_case *w, int rank)
{
    oar_stream_synchronize(w->device, w->stream);
    gpu_free(rank, w->in);
    gpu_free(rank, w->out);
    gpu_free(rank, w->slow);
    oar_pinned_free(w->seen);
    oar_stream_destroy(w->device, w->stream);
}

static oar_status make_late(late_input_case *w, int rank, float value)
{
    for (int i = 0; i < 4; i++) {
        oar_status status = oar_device_fill(
            gpu_span(rank, w->slow, w->slow_bytes, OAR_U8), i, w->stream);

        if (status != OAR_OK)
            return status;
    }
    return oar_device_fill(gpu_span(rank, w->in, ELEMENTS, OAR_F32), value,
                           w->stream);
}

static oar_status look_later(late_input_case *w)
{
    return oar_device_copy(w->seen, oar_device_of(OAR_CPU, 0), w->out,
                           w->device, ELEMENTS * sizeof(float), w->stream);
}

static int all_are(const float *seen, float value)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (seen[i] != value)
            return 0;
    return 1;
}

static int keeps_order(test_job *c, int rank, void *arg)
{
    oar_call_opts opts = oar_call_opts_init();
    late_input_case w;
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_OK(begin_late_input(&w, rank));
    opts.stream = w.stream;
    for (int round = 1; round <= ROUNDS; round++) {
        float value = (float)(round * (rank + 1));
        float sum = (float)(round * c->ranks * (c->ranks + 1) / 2);

        memset(w.seen, 0, ELEMENTS * sizeof(float));
        RANK_OK(make_late(&w, rank, value));
        RANK_OK(oar_all_reduce_into(g, gpu_span(rank, w.in, ELEMENTS, OAR_F32),
                                    gpu_span(rank, w.out, ELEMENTS, OAR_F32),
                                    OAR_SUM, &opts, NULL));
        RANK_OK(look_later(&w));
        RANK_OK(make_late(&w, rank, -1)); /* over what was read, behind it */
        RANK_OK(oar_stream_synchronize(w.device, w.stream));
        RANK_CHECK(all_are(w.seen, sum));
    }
    end_late_input(&w, rank);
    oar_group_destroy(g);
    return 0;
}

/* 2.18 of the original: no event bound NCCL's stream to the caller's. */
static void no_input_is_read_early_and_no_output_late(void **state)
{
    run(1, keeps_order, NULL, "order, alone");
    if (gpu_ranks_max() >= 3)
        run(3, keeps_order, NULL, "order");
}

/* ---- waiting ------------------------------------------------------------- */

static int is_done(oar_work *work)
{
    int done = 0;

    return oar_work_test(work, &done) == OAR_OK && done;
}

static int waits(test_job *c, int rank, void *arg)
{
    shared_flag *late = arg;
    oar_group *g;
    oar_work *work;
    void *memory = NULL;
    size_t count = 1 << 20;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    memory = gpu_put(rank, NULL, count * 4);
    RANK_OK(oar_all_reduce(g, gpu_span(rank, memory, count, OAR_I32), OAR_SUM,
                           NULL, &work));
    RANK_OK(oar_nccl_synchronize(g));
    RANK_CHECK(is_done(work));
    oar_work_release(work);

    RANK_OK(oar_all_reduce(g, gpu_span(rank, memory, count, OAR_I32), OAR_SUM,
                           NULL, &work));
    if (rank == c->ranks - 1)
        shared_flag_raise(late);
    RANK_OK(oar_barrier(g, NULL, NULL));
    RANK_CHECK(atomic_load(late) == 1); /* all ranks are there, */
    RANK_CHECK(is_done(work));          /* and what was before has run */
    oar_work_release(work);
    gpu_free(rank, memory);
    oar_group_destroy(g);
    return 0;
}

/* 2.18 of the original: its barrier synchronised nothing, and its synchronise
 * returned at once on a null stream. */
static void a_barrier_waits_and_so_does_synchronize(void **state)
{
    shared_flag *late = shared_page(sizeof *late);

    run(few(), waits, late, "waits");
    shared_page_free(late, sizeof *late);
}

typedef struct posting_thread {
    oar_group *g;
    int good;
} posting_thread;

static void *post_many(void *arg)
{
    posting_thread *p = arg;

    for (int i = 0; i < 30; i++) {
        int32_t value = i, got = -1;
        void *memory = gpu_put(0, &value, sizeof value);

        p->good &= oar_all_reduce(p->g, gpu_span(0, memory, 1, OAR_I32),
                                  OAR_SUM, NULL, NULL) == OAR_OK;
        gpu_get(0, &got, memory, sizeof got);
        p->good &= got == i;
        gpu_free(0, memory);
    }
    return NULL;
}

static int has_threads(test_job *c, int rank, void *arg)
{
    pthread_t thread[4];
    posting_thread p[4];
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    for (int i = 0; i < 4; i++) {
        p[i] = (posting_thread){ g, 1 };
        RANK_CHECK(pthread_create(&thread[i], NULL, post_many, &p[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        RANK_CHECK(p[i].good);
    }
    oar_group_destroy(g);
    return 0;
}

/* 2.18 of the original: its lock was let go before the call. */
static void calls_of_several_threads_reach_nccl_one_at_a_time(void **state)
{
    run(1, has_threads, NULL, "threads");
}

/* ---- messages ------------------------------------------------------------ */

static int32_t *numbers(size_t count, int32_t first)
{
    int32_t *n = malloc(count * sizeof *n + 1);

    for (size_t i = 0; i < count; i++)
        n[i] = first + (int32_t)i;
    return n;
}

static int has(int rank, const void *memory, size_t count, int32_t first)
{
    int32_t *got = malloc(count * sizeof *got + 1);
    int good = 1;

    gpu_get(rank, got, memory, count * sizeof *got);
    for (size_t i = 0; i < count; i++)
        good &= got[i] == first + (int32_t)i;
    free(got);
    return good;
}

/* Both directions at once, in a ring, with count 0 too. */
static int sends_in_a_ring(test_job *c, int rank, void *arg)
{
    static const size_t sizes[] = { 0, 1, 1013 };
    int next = (rank + 1) % c->ranks, last = (rank + c->ranks - 1) % c->ranks;
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    for (int i = 0; i < 3; i++) {
        size_t n = sizes[i];
        int32_t *mine = numbers(n, rank * 10000);
        void *out = gpu_put(rank, mine, n * 4);
        void *in = gpu_put(rank, NULL, n * 4);

        RANK_OK(oar_sendrecv(g, gpu_span(rank, out, n, OAR_I32), next, 0,
                             gpu_span(rank, in, n, OAR_I32), last, 0, NULL,
                             NULL));
        RANK_CHECK(has(rank, in, n, last * 10000));
        gpu_free(rank, in);
        gpu_free(rank, out);
        free(mine);
    }
    oar_group_destroy(g);
    return 0;
}

/* 2.18 and 2.19 of the original: no messages between GPUs at all. */
static void messages_in_a_ring_do_not_deadlock(void **state)
{
    run(few(), sends_in_a_ring, NULL, "a ring");
}

/* Every rank sends to and receives from every rank, itself included, first all
 * sends, then all receives, with a sum in between. */
static int batches(test_job *c, int rank, void *arg)
{
    enum { N = 37 };
    void *out[GPU_RANKS_MAX], *in[GPU_RANKS_MAX], *sum;
    int32_t one = 1;
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    sum = gpu_put(rank, &one, sizeof one);
    for (int r = 0; r < c->ranks; r++) {
        int32_t *mine = numbers(N, rank * 1000 + r * 100);

        out[r] = gpu_put(rank, mine, N * 4);
        in[r] = gpu_put(rank, NULL, N * 4);
        free(mine);
    }
    RANK_OK(oar_batch_begin(g));
    for (int r = 0; r < c->ranks; r++)
        RANK_OK(
            oar_send(g, gpu_span(rank, out[r], N, OAR_I32), r, 0, NULL, NULL));
    RANK_OK(oar_all_reduce(g, gpu_span(rank, sum, 1, OAR_I32), OAR_SUM, NULL,
                           NULL));
    for (int r = 0; r < c->ranks; r++)
        RANK_OK(
            oar_recv(g, gpu_span(rank, in[r], N, OAR_I32), r, 0, NULL, NULL));
    RANK_OK(oar_batch_end(g, NULL));
    for (int r = 0; r < c->ranks; r++) {
        RANK_CHECK(has(rank, in[r], N, r * 1000 + rank * 100));
        gpu_free(rank, in[r]);
        gpu_free(rank, out[r]);
    }
    RANK_CHECK(has(rank, sum, 1, c->ranks));
    gpu_free(rank, sum);
    oar_group_destroy(g);
    return 0;
}

/* 2.19 of the original: no coalescing. */
static void
a_batch_of_messages_that_wait_for_each_other_gets_through(void **state)
{
    run(1, batches, NULL, "a batch, alone");
    if (gpu_ranks_max() >= 3)
        run(3, batches, NULL, "a batch");
}

static int talks_to_itself(test_job *c, int rank, void *arg)
{
    int32_t *mine = numbers(5, 40);
    oar_work *sent;
    oar_group *g;
    void *out, *in;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    out = gpu_put(rank, mine, 20);
    in = gpu_put(rank, NULL, 20);
    RANK_OK(oar_send(g, gpu_span(rank, out, 5, OAR_I32), rank, 0, NULL, &sent));
    RANK_OK(oar_recv(g, gpu_span(rank, in, 5, OAR_I32), rank, 0, NULL, NULL));
    RANK_OK(oar_work_wait(sent));
    oar_work_release(sent);
    RANK_CHECK(has(rank, in, 5, 40));
    RANK_OK(oar_send(g, gpu_span(rank, out, 5, OAR_I32), rank, 0, NULL, &sent));
    RANK_CHECK(oar_recv(g, gpu_span(rank, in, 4, OAR_I32), rank, 0, NULL,
                        NULL) == OAR_E_SIZE);
    RANK_CHECK(oar_work_wait(sent) == OAR_E_SIZE);
    oar_work_release(sent);
    RANK_OK(oar_all_reduce(g, gpu_span(rank, in, 5, OAR_I32), OAR_SUM, NULL,
                           NULL)); /* it goes on */
    gpu_free(rank, in);
    gpu_free(rank, out);
    free(mine);
    oar_group_destroy(g);
    return 0;
}

static void a_message_to_oneself_waits_for_its_other_end(void **state)
{
    run(1, talks_to_itself, NULL, "to itself");
}

/* ---- what is found before anything is enqueued --------------------------- */

static int is_careful(test_job *c, int rank, void *arg)
{
    int32_t one = 1;
    size_t n = (size_t)c->ranks;
    void *small, *row;
    oar_span part, whole;
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    small = gpu_put(rank, &one, sizeof one);
    row = gpu_put(rank, NULL, n * 4);
    part = gpu_span(rank, small, 1, OAR_I32);
    whole = gpu_span(rank, row, n, OAR_I32);
    /* a row that is too short, or longer than the memory it lies in */
    whole.count = n + 1;
    RANK_CHECK(oar_all_gather(g, part, whole, NULL, NULL) != OAR_OK);
    RANK_CHECK(oar_reduce_scatter(g, whole, part, OAR_SUM, NULL, NULL) !=
               OAR_OK);
    whole.count = part.count = (size_t)1 << 40;
    RANK_CHECK(oar_all_reduce(g, part, OAR_SUM, NULL, NULL) == OAR_E_ARG);
    part.count = 1;
    /* roots that are not there; host memory passed off as a GPU's */
    RANK_CHECK(oar_broadcast(g, part, c->ranks, NULL, NULL) == OAR_E_RANK);
    RANK_CHECK(oar_broadcast(g, part, -1, NULL, NULL) == OAR_E_RANK);
    part.data = &one;
    RANK_CHECK(oar_all_reduce(g, part, OAR_SUM, NULL, NULL) == OAR_E_ARG);
    part.data = small;
    /* tags that NCCL does not have */
    RANK_CHECK(oar_send(g, part, 0, 7, NULL, NULL) == OAR_E_UNSUPPORTED);
    RANK_CHECK(oar_recv(g, part, OAR_ANY_SOURCE, 0, NULL, NULL) ==
               OAR_E_UNSUPPORTED);
    /* none of it has hurt the group */
    RANK_OK(oar_all_reduce(g, part, OAR_SUM, NULL, NULL));
    RANK_CHECK(has(rank, small, 1, c->ranks));
    gpu_free(rank, small);
    gpu_free(rank, row);
    oar_group_destroy(g);
    return 0;
}

/* 2.19 of the original: sizes and roots were not checked, and wrote out of
 * bounds. */
static void
sizes_roots_and_devices_are_checked_before_anything_is_enqueued(void **state)
{
    run(few(), is_careful, NULL, "checks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_input_is_read_early_and_no_output_late),
        cmocka_unit_test(a_barrier_waits_and_so_does_synchronize),
        cmocka_unit_test(calls_of_several_threads_reach_nccl_one_at_a_time),
        cmocka_unit_test(messages_in_a_ring_do_not_deadlock),
        cmocka_unit_test(
            a_batch_of_messages_that_wait_for_each_other_gets_through),
        cmocka_unit_test(a_message_to_oneself_waits_for_its_other_end),
        cmocka_unit_test(
            sizes_roots_and_devices_are_checked_before_anything_is_enqueued),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
