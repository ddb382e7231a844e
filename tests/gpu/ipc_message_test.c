/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `ipc`: messages of device memory, and memory that was freed and
 * allocated again or cannot be shared. */
#include "gpu/host_comparison.h"

#include "device/cuda/cuda.h"

enum { SMALL = 37, LARGE = 50021 /* f32: more than is sent at once */ };

/* A buffer of i32 on the device, and what is in it. */
typedef struct i32_buffer {
    int32_t *host;
    void *device;
    size_t count;
} i32_buffer;

static oar_span on_device(const gpu_rank *s, const i32_buffer *n)
{
    oar_span span = oar_span_of(n->device, n->count, OAR_I32);

    span.device = s->gpu;
    return span;
}

/* On the stream, without waiting: a mistake in the order shows. */
static i32_buffer make_numbers(gpu_rank *s, size_t count, int first)
{
    i32_buffer n = { malloc(4 * count + 4), NULL, count };

    for (size_t i = 0; i < count; i++)
        n.host[i] = first + (int)i;
    if (oar_device_alloc(s->gpu, 4 * count, &n.device) != OAR_OK ||
        oar_device_copy(n.device, s->gpu, n.host, oar_device_of(OAR_CPU, 0),
                        4 * count, s->stream) != OAR_OK)
        n.device = NULL;
    return n;
}

static int are(gpu_rank *s, const i32_buffer *n, int first)
{
    if (compared_copy(s, n->host, oar_device_of(OAR_CPU, 0), n->device, s->gpu,
                      4 * n->count) != OAR_OK)
        return 0;
    for (size_t i = 0; i < n->count; i++)
        if (n->host[i] != first + (int)i) {
            fprintf(stderr, "rank %d: element %zu is %d, not %d\n", s->rank, i,
                    n->host[i], first + (int)i);
            return 0;
        }
    return 1;
}

static void drop_numbers(gpu_rank *s, i32_buffer *n)
{
    oar_device_free(s->gpu, n->device, s->stream);
    free(n->host);
}

static oar_call_opts on_stream(const gpu_rank *s)
{
    oar_call_opts o = oar_call_opts_init();

    o.stream = s->stream;
    return o;
}

/* ---- around the ring ----------------------------------------------------- */

/* First the send, then the receive where messages are small enough. */
static int pass_around(test_job *c, gpu_rank *s, size_t count, int64_t tag)
{
    int next = (s->rank + 1) % s->ranks;
    int before = (s->rank + s->ranks - 1) % s->ranks;
    i32_buffer out = make_numbers(s, count, 1000 * s->rank);
    i32_buffer in = make_numbers(s, count, -7);
    oar_call_opts o = on_stream(s);
    oar_status status;

    if (count == LARGE) {
        status = oar_sendrecv(s->group, on_device(s, &out), next, tag,
                              on_device(s, &in), before, tag, &o, NULL);
    } else {
        status = oar_send(s->group, on_device(s, &out), next, tag, &o, NULL);
        JOB_CHECK(c, s->rank, status == OAR_OK);
        status = oar_recv(s->group, on_device(s, &in), before, tag, &o, NULL);
    }
    JOB_CHECK(c, s->rank, status == OAR_OK);
    JOB_CHECK(c, s->rank, are(s, &in, 1000 * before));
    drop_numbers(s, &out);
    drop_numbers(s, &in);
    return 0;
}

static int pass_messages(test_job *c, int rank, void *arg)
{
    static const size_t counts[] = { 0, 1, SMALL, LARGE };
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    for (int i = 0; i < 4; i++)
        for (int64_t tag = 0; tag < 3; tag++)
            if (pass_around(c, &s, counts[i], tag) != 0)
                return 1;
    gpu_rank_close(&s);
    return 0;
}

/* ---- from any source ----------------------------------------------------- */

enum { EACH = 40 /* more than a pair's queue has room for */ };

static int send_all(test_job *c, gpu_rank *s)
{
    i32_buffer out = make_numbers(s, SMALL, 1000 * s->rank);
    oar_call_opts o = on_stream(s);
    oar_work *work[EACH];

    for (int i = 0; i < EACH; i++)
        JOB_CHECK(c, s->rank,
                  oar_send(s->group, on_device(s, &out), 0, i % 3, &o,
                           &work[i]) == OAR_OK);
    JOB_CHECK(c, s->rank, oar_work_wait_all(EACH, work) == OAR_OK);
    for (int i = 0; i < EACH; i++)
        oar_work_release(work[i]);
    drop_numbers(s, &out);
    return 0;
}

static int take_one(test_job *c, gpu_rank *s, int source, int64_t tag,
                    int *from)
{
    i32_buffer in = make_numbers(s, SMALL, -7);
    oar_message came = oar_message_init();
    oar_call_opts o = on_stream(s);

    o.message = &came;
    JOB_CHECK(c, s->rank,
              oar_recv(s->group, on_device(s, &in), source, tag, &o, NULL) ==
                  OAR_OK);
    JOB_CHECK(c, s->rank, came.bytes == 4 * SMALL);
    JOB_CHECK(c, s->rank, source < 0 || came.source == source);
    JOB_CHECK(c, s->rank, tag < 0 || came.tag == tag);
    JOB_CHECK(c, s->rank, are(s, &in, 1000 * came.source));
    *from = came.source;
    drop_numbers(s, &in);
    return 0;
}

static int take_all(test_job *c, gpu_rank *s)
{
    int seen[COMPARED_RANKS] = { 0 }, from;

    for (int r = 1; r < s->ranks; r++) {
        if (take_one(c, s, r, 2, &from) != 0)
            return 1;
        seen[r]++;
    }
    for (int i = 0; i < (EACH - 1) * (s->ranks - 1); i++) {
        if (take_one(c, s, OAR_ANY_SOURCE, OAR_ANY_TAG, &from) != 0)
            return 1;
        seen[from]++;
    }
    for (int r = 1; r < s->ranks; r++)
        JOB_CHECK(c, s->rank, seen[r] == EACH);
    return 0;
}

static int gather_messages(test_job *c, int rank, void *arg)
{
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0 ||
        (rank == 0 ? take_all(c, &s) : send_all(c, &s)) != 0)
        return 1;
    RANK_CHECK(oar_barrier(s.group, NULL, NULL) == OAR_OK);
    gpu_rank_close(&s);
    return 0;
}

/* ---- of the wrong size --------------------------------------------------- */

static int mistake_sizes(test_job *c, int rank, void *arg)
{
    gpu_rank s;
    i32_buffer n, large;
    oar_call_opts o;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    o = on_stream(&s);
    n = make_numbers(&s, SMALL, 3);
    large = make_numbers(&s, LARGE, 3);
    if (rank == 0) {
        oar_send(s.group, on_device(&s, &large), 1, 4, &o, NULL);
        RANK_CHECK(oar_last_error()->status == OAR_E_SIZE);
        RANK_CHECK(oar_send(s.group, on_device(&s, &large), 1, 4, &o, NULL) ==
                   OAR_OK);
    } else {
        RANK_CHECK(oar_recv(s.group, on_device(&s, &n), 0, 4, &o, NULL) ==
                   OAR_E_SIZE);
        RANK_CHECK(are(&s, &n, 3));
        RANK_CHECK(oar_recv(s.group, on_device(&s, &large), 0, 4, &o, NULL) ==
                   OAR_OK);
        RANK_CHECK(are(&s, &large, 3));
    }
    RANK_CHECK(oar_barrier(s.group, NULL, NULL) == OAR_OK);
    drop_numbers(&s, &n);
    drop_numbers(&s, &large);
    gpu_rank_close(&s);
    return 0;
}

/* ---- to itself, among collectives ---------------------------------------- */

static int mix_orders(test_job *c, int rank, void *arg)
{
    gpu_rank s;
    i32_buffer out, in, sum;
    oar_call_opts o;
    oar_work *work[3];

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    o = on_stream(&s);
    for (int round = 0; round < 5; round++) {
        int other = s.ranks - 1 - rank;

        out = make_numbers(&s, LARGE, rank);
        in = make_numbers(&s, LARGE, -1);
        sum = make_numbers(&s, SMALL, 0);
        if (rank % 2 == 0) /* they send before they add, the others after */
            RANK_CHECK(oar_send(s.group, on_device(&s, &out), other, 9, &o,
                                &work[0]) == OAR_OK);
        RANK_CHECK(oar_all_reduce(s.group, on_device(&s, &sum), OAR_MAX, &o,
                                  &work[1]) == OAR_OK);
        if (rank % 2 != 0)
            RANK_CHECK(oar_send(s.group, on_device(&s, &out), other, 9, &o,
                                &work[0]) == OAR_OK);
        RANK_CHECK(oar_recv(s.group, on_device(&s, &in), other, 9, &o,
                            &work[2]) == OAR_OK);
        RANK_CHECK(oar_work_wait_all(3, work) == OAR_OK);
        RANK_CHECK(are(&s, &in, other) && are(&s, &sum, 0));
        for (int i = 0; i < 3; i++)
            oar_work_release(work[i]);
        drop_numbers(&s, &out);
        drop_numbers(&s, &in);
        drop_numbers(&s, &sum);
    }
    gpu_rank_close(&s);
    return 0;
}

/* ---- memory -------------------------------------------------------------- */

/* Plain memory of the driver's that is freed while peers have it mapped. */
static int reuse_addresses(test_job *c, int rank, void *arg)
{
    const oari_cuda *cu;
    oari_cu_memory memory, before = 0;
    int again = 0;
    gpu_rank s;

    setenv("STANDIN_IPC_FREE", "1", 1);
    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    for (int round = 0; round < 12; round++) {
        compared_call t = { .kind = OAR_COLL_ALL_REDUCE,
                            .dtype = OAR_F32,
                            .op = OAR_SUM,
                            .count = 3001,
                            .in_place = 1 };

        RANK_CHECK(oari_cuda_enter(0, &cu) == OAR_OK);
        RANK_CHECK(cu->MemAlloc(&memory, (4u << 20) - 8 * (unsigned)rank) == 0);
        oari_cuda_leave();
        again += memory == before;
        before = memory;
        RANK_CHECK(compare_with_host(&s, &t, (void *)(uintptr_t)memory) == 0);
        RANK_CHECK(oari_cuda_enter(0, &cu) == OAR_OK);
        RANK_CHECK(cu->MemFree(memory) == 0);
        oari_cuda_leave();
    }
    if (again == 0)
        fprintf(stderr, "rank %d: no address came again\n", rank);
    gpu_rank_close(&s);
    return 0;
}

/* Memory of another process cannot be shown on. */
static int borrow_memory(test_job *c, gpu_rank *s, oari_cu_memory *mine,
                         oari_cu_memory *theirs)
{
    const oari_cuda *cu;
    oari_cu_ipc handle, all[COMPARED_RANKS];

    JOB_CHECK(c, s->rank, oari_cuda_enter(0, &cu) == OAR_OK);
    JOB_CHECK(c, s->rank, cu->MemAlloc(mine, 4 << 20) == 0);
    JOB_CHECK(c, s->rank, cu->IpcGetMemHandle(&handle, *mine) == 0);
    JOB_CHECK(c, s->rank,
              oar_all_gather(
                  s->group, oar_span_of(&handle, sizeof handle, OAR_U8),
                  oar_span_of(all, sizeof handle * (size_t)s->ranks, OAR_U8),
                  NULL, NULL) == OAR_OK);
    JOB_CHECK(c, s->rank,
              cu->IpcOpenMemHandle(theirs, all[(s->rank + 1) % s->ranks], 1) ==
                  0);
    JOB_CHECK(c, s->rank, cu->IpcGetMemHandle(&handle, *theirs) != 0);
    oari_cuda_leave();
    return 0;
}

static const oar_coll kinds[] = {
    OAR_COLL_ALL_REDUCE, OAR_COLL_REDUCE,     OAR_COLL_REDUCE_SCATTER,
    OAR_COLL_BROADCAST,  OAR_COLL_GATHER,     OAR_COLL_SCATTER,
    OAR_COLL_ALL_GATHER, OAR_COLL_ALL_TO_ALL,
};

static int send_hidden(test_job *c, gpu_rank *s, oari_cu_memory hidden)
{
    int next = (s->rank + 1) % s->ranks;
    int before = (s->rank + s->ranks - 1) % s->ranks;
    i32_buffer out = make_numbers(s, LARGE, s->rank);
    i32_buffer in = make_numbers(s, LARGE, -1);
    void *memory = out.device;
    oar_call_opts o = on_stream(s);

    out.device = (void *)(uintptr_t)hidden;
    JOB_CHECK(c, s->rank,
              oar_device_copy(out.device, s->gpu, memory, s->gpu, 4 * LARGE,
                              s->stream) == OAR_OK);
    JOB_CHECK(c, s->rank,
              oar_sendrecv(s->group, on_device(s, &out), next, 1,
                           on_device(s, &in), before, 1, &o, NULL) == OAR_OK);
    JOB_CHECK(c, s->rank, are(s, &in, before));
    out.device = memory;
    drop_numbers(s, &out);
    drop_numbers(s, &in);
    return 0;
}

static int use_hidden_memory(test_job *c, int rank, void *arg)
{
    oari_cu_memory mine, theirs;
    gpu_rank s;

    setenv("STANDIN_IPC_FREE", "1", 1);
    if (gpu_rank_open(&s, c, rank, "ipc") != 0 ||
        borrow_memory(c, &s, &mine, &theirs) != 0)
        return 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int round = 0; round < 4; round++) {
            compared_call t = { .kind = kinds[k],
                                .dtype = OAR_F32,
                                .op = OAR_SUM,
                                .count = (size_t)(100 << 3 * round),
                                .root = round % s.ranks,
                                .in_place = round % 2 &&
                                            kinds[k] != OAR_COLL_ALL_TO_ALL,
                                .hidden = round != 3 || rank == 0 };

            RANK_CHECK(compare_with_host(&s, &t,
                                         t.hidden ? (void *)(uintptr_t)theirs
                                                  : NULL) == 0);
        }
    if (send_hidden(c, &s, theirs) != 0)
        return 1;
    RANK_CHECK(oar_barrier(s.group, NULL, NULL) == OAR_OK);
    gpu_rank_close(&s);
    return 0;
}

/* ---- running ------------------------------------------------------------- */

static void on_ranks(int ranks, test_job_fn fn, const char *what)
{
    test_job c;

    test_job_start(&c, ranks, fn, NULL, "%s, %d ranks", what, ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void messages_arrive_whole_and_in_order(void **state)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, pass_messages, "around the ring");
}

static void a_receive_takes_from_anybody(void **state)
{
    on_ranks(2, gather_messages, "messages from any source");
    on_ranks(4, gather_messages, "messages from any source");
}

static void a_message_of_the_wrong_size_fails_and_the_next_arrives(void **state)
{
    on_ranks(2, mistake_sizes, "messages of the wrong size");
}

static void messages_and_collectives_may_be_in_any_order(void **state)
{
    on_ranks(1, mix_orders, "messages among collectives");
    on_ranks(4, mix_orders, "messages among collectives");
}

static void
memory_that_was_freed_and_allocated_again_is_mapped_again(void **state)
{
    on_ranks(3, reuse_addresses, "addresses that come again");
}

static void memory_that_cannot_be_shared_is_used_all_the_same(void **state)
{
    on_ranks(3, use_hidden_memory, "hidden memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_and_in_order),
        cmocka_unit_test(a_receive_takes_from_anybody),
        cmocka_unit_test(
            a_message_of_the_wrong_size_fails_and_the_next_arrives),
        cmocka_unit_test(messages_and_collectives_may_be_in_any_order),
        cmocka_unit_test(
            memory_that_was_freed_and_allocated_again_is_mapped_again),
        cmocka_unit_test(memory_that_cannot_be_shared_is_used_all_the_same),
    };

    setenv("STANDIN_DELAY_US", "50", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
