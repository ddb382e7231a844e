/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on the backend `ipc`: ranks that stop or die, groups that are aborted,
 * and what happens to the order of streams without its events. */
#include <signal.h>
#include <unistd.h>

#include "gpu/host_comparison.h"

#include "backends/backends.h"
#include "base/clock.h"
#include "device/cuda/cuda.h"

enum { COUNT = 4099, DRAINED_MS = 1000, GIVE_UP_MS = 1500 };

/* On a page that all ranks and the test share. */
typedef struct ipc_fault_flags {
    shared_flag ready, drained, over;
} ipc_fault_flags;

typedef struct ipc_fault_case {
    ipc_fault_flags *flags;
    int victim;
    int signal; /* SIGSTOP, SIGKILL */
    int abort;  /* the others give up; else their deadline does it */
} ipc_fault_case;

/* ---- a rank that does not come ------------------------------------------- */

/* With a work it returns at once. */
static oar_status post(gpu_rank *s, void *memory, int64_t timeout_ms,
                       oar_work **work)
{
    oar_span span = oar_span_of(memory, COUNT, OAR_F32);
    oar_call_opts o = oar_call_opts_init();

    span.device = s->gpu;
    o.stream = s->stream;
    o.timeout_ms = timeout_ms;
    return oar_all_reduce(s->group, span, OAR_SUM, &o, work);
}

static oar_status all_reduce(gpu_rank *s, void *memory, int64_t timeout_ms)
{
    return post(s, memory, timeout_ms, NULL);
}

static oar_status fill(gpu_rank *s, void *memory, double value)
{
    oar_span span = oar_span_of(memory, COUNT, OAR_F32);

    span.device = s->gpu;
    return oar_device_fill(span, value, s->stream);
}

static int all_are(gpu_rank *s, void *memory, float value)
{
    static float host[COUNT];

    if (compared_copy(s, host, oar_device_of(OAR_CPU, 0), memory, s->gpu,
                      sizeof host) != OAR_OK)
        return 0;
    for (int i = 0; i < COUNT; i++)
        if (host[i] != value) {
            fprintf(stderr, "rank %d: element %d is %g, not %g\n", s->rank, i,
                    (double)host[i], (double)value);
            return 0;
        }
    return 1;
}

/* What was queued is let go soon, has not written, and no more is taken. */
static int see_it_end(test_job *c, gpu_rank *s, const ipc_fault_case *p,
                      void *memory)
{
    int64_t start;
    oar_work *work = NULL;

    JOB_CHECK(c, s->rank, fill(s, memory, 10 + s->rank) == OAR_OK);
    if (p->abort) /* unless the other one was faster to give up */
        JOB_CHECK(c, s->rank,
                  post(s, memory, 60000, &work) == OAR_OK ||
                      oar_last_error()->status == OAR_E_ABORTED);
    else
        all_reduce(s, memory, GIVE_UP_MS);
    start = oari_now_ns();
    if (p->abort)
        oar_group_abort(s->group, "a test");
    oar_work_release(work);
    JOB_CHECK(c, s->rank, oar_stream_synchronize(s->gpu, s->stream) == OAR_OK);
    JOB_CHECK(c, s->rank, !p->abort || is_in_time(start, DRAINED_MS));
    JOB_CHECK(c, s->rank, all_reduce(s, memory, 1000) != OAR_OK);
    shared_flag_raise(&p->flags->drained);
    JOB_CHECK(c, s->rank,
              shared_flag_await(&p->flags->over, 1, TEST_JOB_LIMIT_MS));
    JOB_CHECK(c, s->rank, all_are(s, memory, 10 + (float)s->rank));
    return 0;
}

static int take_part(test_job *c, int rank, void *arg)
{
    const ipc_fault_case *p = arg;
    void *memory;
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    RANK_CHECK(oar_device_alloc(s.gpu, 4 * COUNT, &memory) == OAR_OK);
    RANK_CHECK(fill(&s, memory, 1) == OAR_OK);
    RANK_CHECK(all_reduce(&s, memory, 0) == OAR_OK);
    RANK_CHECK(all_are(&s, memory, (float)s.ranks));
    RANK_CHECK(oar_barrier(s.group, NULL, NULL) == OAR_OK);
    shared_flag_raise(&p->flags->ready);
    RANK_CHECK(/* an abort reaches ranks that are still in the barrier */
               shared_flag_await(&p->flags->ready, (uint32_t)s.ranks,
                                 TEST_JOB_LIMIT_MS));
    if (rank == p->victim) {
        kill(getpid(), p->signal);
        all_reduce(&s, memory,
                   1000); /* continued: what it was stopped before */
    } else if (see_it_end(c, &s, p, memory) != 0) {
        return 1;
    }
    gpu_rank_close(&s);
    return 0;
}

static void lose_rank(int ranks, ipc_fault_case *p)
{
    test_job c;

    p->flags = shared_page(sizeof *p->flags);
    test_job_start(&c, ranks, take_part, p, "rank %d of %d gets signal %d",
                   p->victim, ranks, p->signal);
    if (!shared_flag_await(&p->flags->drained, (uint32_t)ranks - 1,
                           TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "the streams of the others do not end");
    if (p->signal == SIGSTOP) { /* the others may be done before it stops */
        if (!test_job_wait_stopped(&c, p->victim, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "rank %d did not stop", p->victim);
        kill(c.pid[p->victim], SIGCONT);
        test_job_expect(&c, p->victim, 0);
    } else {
        test_job_expect(&c, p->victim, 128 + p->signal);
    }
    shared_flag_raise(&p->flags->over);
    for (int r = 0; r < ranks; r++)
        if (r != p->victim)
            test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(p->flags, sizeof *p->flags);
}

static void streams_end_when_the_leader_is_stopped(void **state)
{
    lose_rank(3,
              &(ipc_fault_case){ .victim = 0, .signal = SIGSTOP, .abort = 1 });
    lose_rank(2, &(ipc_fault_case){ .victim = 0, .signal = SIGSTOP });
}

static void streams_end_when_the_leader_is_dead(void **state)
{
    lose_rank(3, &(ipc_fault_case){ .victim = 0, .signal = SIGKILL });
}

static void streams_end_when_another_is_stopped_or_dead(void **state)
{
    lose_rank(3,
              &(ipc_fault_case){ .victim = 2, .signal = SIGSTOP, .abort = 1 });
    lose_rank(3, &(ipc_fault_case){ .victim = 1, .signal = SIGKILL });
}

/* ---- the edges between streams ------------------------------------------- */

/* A group of one, by its table: the engine without the core. */
typedef struct ipc_context {
    const oari_cuda *cu;
    void *self;
    oari_cu_stream caller, reader;
    oari_cu_event ready, finished;
    uint32_t *gate;
    oari_cu_memory gate_there;
    void *memory[2];
} ipc_context;

static int open_context(test_job *c, int rank, ipc_context *d)
{
    oari_open with = { .env = { .size = sizeof with.env, .ranks = 1 } };
    oar_device gpu = oar_device_of(OAR_CUDA, 0);

    RANK_CHECK(oari_cuda_enter(0, &d->cu) == OAR_OK);
    d->self = calloc(1, oari_backend_ipc.ops.self_size);
    RANK_CHECK(oari_backend_ipc.open(d->self, &with) == OAR_OK);
    RANK_CHECK(oar_stream_create(gpu, 0, &d->caller) == OAR_OK);
    RANK_CHECK(oar_stream_create(gpu, 0, &d->reader) == OAR_OK);
    RANK_CHECK(oar_event_create(gpu, 0, &d->ready) == OAR_OK);
    RANK_CHECK(oar_event_create(gpu, 0, &d->finished) == OAR_OK);
    RANK_CHECK(d->cu->MemHostAlloc((void **)&d->gate, 4096, 2) == 0);
    RANK_CHECK(d->cu->MemHostGetDevicePointer(&d->gate_there, d->gate, 0) == 0);
    for (int i = 0; i < 2; i++)
        RANK_CHECK(oar_device_alloc(gpu, 4 * COUNT, &d->memory[i]) == OAR_OK);
    return 0;
}

static void close_context(ipc_context *d)
{
    oari_backend_ipc.ops.close(d->self);
    free(d->self);
    oari_cuda_leave();
}

static oar_span side(const ipc_context *d, int i)
{
    oar_span span = oar_span_of(d->memory[i], COUNT, OAR_F32);

    span.device = oar_device_of(OAR_CUDA, 0);
    return span;
}

/* Memory 0 becomes 5 behind a gate; the operation copies it to memory 1, which
 * is read by another stream. With `in` the operation waits for the caller, with
 * `out` the reader for the operation. Gives what was read. */
static int read_behind(test_job *c, ipc_context *d, int in, int out,
                       float *read)
{
    oar_collective call = { .size = sizeof call,
                            .kind = OAR_COLL_ALL_REDUCE,
                            .in = side(d, 0),
                            .out = side(d, 1),
                            .op = OAR_SUM,
                            .weight = 1,
                            .ready = in ? d->ready : NULL,
                            .finished = d->finished };
    oar_transfer done = { .size = sizeof done };
    const oari_cuda *cu = d->cu;

    *d->gate = 0;
    JOB_CHECK(c, 0, oar_device_fill(side(d, 0), 1, d->caller) == OAR_OK);
    JOB_CHECK(c, 0, oar_device_fill(side(d, 1), 2, d->caller) == OAR_OK);
    JOB_CHECK(c, 0, cu->StreamSynchronize(d->caller) == 0);
    JOB_CHECK(c, 0, cu->StreamWaitValue32(d->caller, d->gate_there, 1, 0) == 0);
    JOB_CHECK(c, 0, oar_device_fill(side(d, 0), 5, d->caller) == OAR_OK);
    JOB_CHECK(c, 0, cu->EventRecord(d->ready, d->caller) == 0);
    JOB_CHECK(c, 0,
              oari_backend_ipc.ops.post[call.kind](d->self, &call, &done) ==
                  OAR_OK);
    JOB_CHECK(c, 0, done.done && done.status == OAR_OK);
    if (!in) /* it does not wait: so it is over before the gate opens */
        JOB_CHECK(c, 0, cu->EventSynchronize(d->finished) == 0);
    if (out)
        JOB_CHECK(c, 0, cu->StreamWaitEvent(d->reader, d->finished, 0) == 0);
    JOB_CHECK(c, 0,
              cu->MemcpyDtoHAsync(&d->gate[1], (uintptr_t)d->memory[1], 4,
                                  d->reader) == 0);
    if (!out) /* nor does the reader */
        JOB_CHECK(c, 0, cu->StreamSynchronize(d->reader) == 0);
    __atomic_store_n(d->gate, 1, __ATOMIC_SEQ_CST);
    JOB_CHECK(c, 0, cu->StreamSynchronize(d->reader) == 0);
    JOB_CHECK(c, 0, cu->StreamSynchronize(d->caller) == 0);
    JOB_CHECK(c, 0, cu->EventSynchronize(d->finished) == 0);
    memcpy(read, &d->gate[1], sizeof *read);
    return 0;
}

static int look_at_edges(test_job *c, int rank, void *arg)
{
    ipc_context d = { 0 };
    float read = 0;

    if (open_context(c, rank, &d) != 0 || read_behind(c, &d, 1, 1, &read) != 0)
        return 1;
    RANK_CHECK(read == 5);
    if (read_behind(c, &d, 0, 1, &read) != 0)
        return 1;
    RANK_CHECK(read == 1); /* the input was read too early */
    if (read_behind(c, &d, 1, 0, &read) != 0)
        return 1;
    RANK_CHECK(read == 2); /* the output was read too early */
    close_context(&d);
    return 0;
}

static void
an_operation_waits_for_its_caller_and_its_reader_for_it(void **state)
{
    test_job c;

    test_job_start(&c, 1, look_at_edges, NULL, "the edges between streams");
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
}

/* ---- opening and leaving ------------------------------------------------- */

static int open_as_two_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *group = NULL;

    setenv("OARSONG_HOST_ID", rank == 0 ? "first" : "second", 1);
    o.backend = "ipc";
    o.timeout_ms = 10000;
    RANK_CHECK(test_job_join(c, rank, &o, &group) == OAR_E_UNAVAILABLE);
    RANK_CHECK(strstr(oar_last_error_text(), "another host") != NULL);
    return 0;
}

static void ranks_on_two_hosts_are_refused_with_a_sentence(void **state)
{
    test_job c;

    test_job_start(&c, 2, open_as_two_hosts, NULL, "two hosts");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

/* Groups come and go; what was shown to peers can be used and given back. */
static int leave_one_by_one(test_job *c, int rank, void *arg)
{
    ipc_fault_flags *f = arg;
    void *memory;

    for (int round = 0; round < 4; round++) {
        gpu_rank s;

        if (gpu_rank_open(&s, c, rank, "ipc") != 0)
            return 1;
        RANK_CHECK(oar_device_alloc(s.gpu, 4 * COUNT, &memory) == OAR_OK);
        RANK_CHECK(fill(&s, memory, 1) == OAR_OK);
        RANK_CHECK(all_reduce(&s, memory, 0) == OAR_OK);
        RANK_CHECK(all_are(&s, memory, (float)s.ranks));
        if (rank != (round + 1) % s.ranks)
            RANK_CHECK(shared_flag_await(&f->over, (uint32_t)round + 1,
                                         TEST_JOB_LIMIT_MS));
        oar_device_free(s.gpu, memory, s.stream);
        gpu_rank_close(&s);
        if (rank == (round + 1) % s.ranks)
            shared_flag_raise(&f->over);
        RANK_CHECK(oar_device_trim(s.gpu) == OAR_OK);
    }
    return 0;
}

static void a_rank_that_leaves_first_breaks_no_other(void **state)
{
    ipc_fault_flags *f = shared_page(sizeof *f);
    test_job c;

    test_job_start(&c, 3, leave_one_by_one, f, "ranks leave one by one");
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(f, sizeof *f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            an_operation_waits_for_its_caller_and_its_reader_for_it),
        cmocka_unit_test(streams_end_when_the_leader_is_stopped),
        cmocka_unit_test(streams_end_when_the_leader_is_dead),
        cmocka_unit_test(streams_end_when_another_is_stopped_or_dead),
        cmocka_unit_test(ranks_on_two_hosts_are_refused_with_a_sentence),
        cmocka_unit_test(a_rank_that_leaves_first_breaks_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
