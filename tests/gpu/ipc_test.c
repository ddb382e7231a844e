/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `ipc`: every collective, dtype and operator gives the bits that
 * the host gives, between processes that share a GPU. */
#include "gpu/host_comparison.h"

enum { NO_TWO_GPUS = 77 };

/* ---- reductions ---------------------------------------------------------- */

static const oar_coll reducing[] = { OAR_COLL_ALL_REDUCE, OAR_COLL_REDUCE,
                                     OAR_COLL_REDUCE_SCATTER };

static int check_operator(gpu_rank *s, oar_dtype dtype, oar_reduce_op op,
                          int round)
{
    for (size_t k = 0; k < 3; k++) {
        compared_call t = { .kind = reducing[k],
                            .dtype = dtype,
                            .op = op,
                            .count = (size_t)(round % 2 == 0 ? 37 : 261),
                            .root = round % s->ranks,
                            .in_place = round / 2 % 2,
                            .ragged = k == 2 && round % 3 == 0,
                            .skew = (size_t)(round % 4 == 1 ? 3 : 0),
                            .weight = 0.25 + s->rank };

        if (compare_with_host(s, &t, NULL) != 0)
            return 1;
    }
    return 0;
}

static int reduce_everything(test_job *c, int rank, void *arg)
{
    int round = 0;
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    for (int op = 0; op < OAR_REDUCE_OP_COUNT; op++)
        for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
            oar_reduce_op o =
                OAR_REDUCE_OP((oar_reduce_op_kind)op, 1.5 - 0.75 * rank);

            if (oar_reduce_op_check(o, (oar_dtype)d) == OAR_OK)
                RANK_CHECK(check_operator(&s, (oar_dtype)d, o, round++) == 0);
        }
    gpu_rank_close(&s);
    return 0;
}

/* ---- moving -------------------------------------------------------------- */

static const oar_coll moving[] = { OAR_COLL_BROADCAST, OAR_COLL_GATHER,
                                   OAR_COLL_SCATTER, OAR_COLL_ALL_GATHER,
                                   OAR_COLL_ALL_TO_ALL };
static const size_t counts[] = { 0, 1, 7, 1000, 20011 };
static const oar_dtype moved[] = { OAR_F32, OAR_U8, OAR_F64, OAR_BF16,
                                   OAR_BOOL };

static int check_moving(gpu_rank *s, oar_coll kind, int round)
{
    int alike = kind == OAR_COLL_BROADCAST;
    compared_call t = { .kind = kind,
                        .dtype = moved[round % 5],
                        .count = counts[round / 5 % 5],
                        .root = round % s->ranks,
                        .in_place = kind != OAR_COLL_ALL_TO_ALL && round % 2,
                        .ragged = !alike && round / 2 % 2,
                        .skew = (size_t)(round % 7 < 3 ? round % 7 : 0) };

    return compare_with_host(s, &t, NULL);
}

static int move_everything(test_job *c, int rank, void *arg)
{
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    for (size_t k = 0; k < sizeof moving / sizeof *moving; k++)
        for (int round = 0; round < 50; round++)
            RANK_CHECK(check_moving(&s, moving[k], round) == 0);
    gpu_rank_close(&s);
    return 0;
}

/* ---- a long row ---------------------------------------------------------- */

static compared_call random_call(uint64_t *seed, int ranks)
{
    int k = (int)(next_random(seed) % 8);
    compared_call t = {
        .kind = k < 3 ? reducing[k] : moving[k - 3],
        .dtype = (oar_dtype)(next_random(seed) % OAR_DTYPE_COUNT),
        .op = OAR_REDUCE_OP(
            (oar_reduce_op_kind)(next_random(seed) % OAR_REDUCE_OP_COUNT), 0.5),
        .count = next_random(seed) % 600,
        .root = (int)(next_random(seed) % (uint64_t)ranks),
        .in_place = (int)(next_random(seed) % 2),
        .ragged = (int)(next_random(seed) % 2),
        .weight = 1
    };

    if (t.kind == OAR_COLL_ALL_TO_ALL)
        t.in_place = 0;
    if (t.kind == OAR_COLL_BROADCAST || t.kind == OAR_COLL_ALL_REDUCE ||
        t.kind == OAR_COLL_REDUCE)
        t.ragged = 0;
    if (oar_reduce_op_check(t.op, t.dtype) != OAR_OK)
        t.op = OAR_MAX;
    if (oar_reduce_op_check(t.op, t.dtype) != OAR_OK) /* some are only moved */
        t.dtype = OAR_BF16;
    return t;
}

static int do_a_thousand(test_job *c, int rank, void *arg)
{
    uint64_t seed = 20261115; /* the same on all ranks */
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    for (int i = 0; i < *(int *)arg; i++) {
        compared_call t = random_call(&seed, s.ranks);

        RANK_CHECK(compare_with_host(&s, &t, NULL) == 0);
    }
    gpu_rank_close(&s);
    return 0;
}

/* ---- several GPUs -------------------------------------------------------- */

static int use_two_gpus(test_job *c, int rank, void *arg)
{
    uint64_t seed = 77;
    gpu_rank s;

    setenv("STANDIN_DEVICES", "2", 1);
    if (oar_device_count(OAR_CUDA) < 2)
        return NO_TWO_GPUS;
    if (gpu_rank_open_on(&s, c, rank, "ipc", 2) != 0)
        return 1;
    for (int i = 0; i < 200; i++) {
        compared_call t = random_call(&seed, s.ranks);

        RANK_CHECK(compare_with_host(&s, &t, NULL) == 0);
    }
    gpu_rank_close(&s);
    return 0;
}

/* ---- several groups ------------------------------------------------------ */

/* Each round a group comes, uses the same memory, and goes. */
static int share_memory(test_job *c, int rank, void *arg)
{
    void *memory;
    gpu_rank s, other;

    setenv("STANDIN_IPC_ONCE", "1", 1);
    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    RANK_CHECK(oar_device_alloc(s.gpu, 1 << 20, &memory) == OAR_OK);
    for (int round = 0; round < 4; round++) {
        compared_call t = { .kind = OAR_COLL_ALL_REDUCE,
                            .dtype = OAR_F32,
                            .op = OAR_SUM,
                            .count = 3001,
                            .in_place = 1 };

        other = s;
        RANK_CHECK(oar_group_dup(s.group, &other.group) == OAR_OK);
        if (round != 0)
            RANK_CHECK(compare_with_host(&s, &t, memory) == 0);
        RANK_CHECK(compare_with_host(&other, &t, memory) == 0);
        oar_group_destroy(other.group);
        RANK_CHECK(compare_with_host(&s, &t, memory) == 0);
    }
    oar_device_free(s.gpu, memory, s.stream);
    gpu_rank_close(&s);
    return 0;
}

/* ---- large --------------------------------------------------------------- */

static const size_t huge = ((size_t)1 << 31) + 77; /* bytes */

static int byte_is(gpu_rank *s, const unsigned char *memory, size_t at,
                   int value)
{
    unsigned char byte = 0;

    return compared_copy(s, &byte, oar_device_of(OAR_CPU, 0), memory + at,
                         s->gpu, 1) == OAR_OK &&
           byte == value;
}

static int move_huge(test_job *c, int rank, void *arg)
{
    oar_span in = oar_span_of(NULL, huge, OAR_U8), out;
    oar_call_opts o = oar_call_opts_init();
    size_t places[] = { 0, huge / 2, huge - 1 };
    gpu_rank s;

    if (gpu_rank_open(&s, c, rank, "ipc") != 0)
        return 1;
    o.stream = s.stream;
    in.device = s.gpu;
    out = in;
    out.count = huge * (size_t)s.ranks;
    RANK_CHECK(oar_device_alloc(s.gpu, in.count, &in.data) == OAR_OK);
    RANK_CHECK(oar_device_alloc(s.gpu, out.count, &out.data) == OAR_OK);
    RANK_CHECK(oar_device_fill(in, 1 + rank, s.stream) == OAR_OK);
    RANK_CHECK(oar_all_gather(s.group, in, out, &o, NULL) == OAR_OK);
    RANK_CHECK(oar_all_reduce(s.group, in, OAR_SUM, &o, NULL) == OAR_OK);
    for (int i = 0; i < 3; i++) {
        RANK_CHECK(byte_is(&s, in.data, places[i], 3));
        for (int r = 0; r < s.ranks; r++)
            RANK_CHECK(
                byte_is(&s, out.data, huge * (size_t)r + places[i], 1 + r));
    }
    oar_device_free(s.gpu, in.data, s.stream);
    oar_device_free(s.gpu, out.data, s.stream);
    gpu_rank_close(&s);
    return 0;
}

/* ---- running ------------------------------------------------------------- */

static void on_ranks(test_job_fn fn, void *arg, const char *what)
{
    static const int sizes[] = { 1, 2, 3, 4, 8 };

    for (int i = 0; i < (compared_on_gpu() ? 5 : 4); i++) {
        test_job c;

        test_job_start(&c, sizes[i], fn, arg, "%s, %d ranks", what, sizes[i]);
        for (int r = 0; r < sizes[i]; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
    }
}

static void every_reduction_has_the_bits_of_the_host(void **state)
{
    on_ranks(reduce_everything, NULL, "every operator and dtype");
}

static void every_collective_moves_what_the_host_moves(void **state)
{
    on_ranks(move_everything, NULL, "every kind of moving");
}

static void a_thousand_mixed_operations_are_right(void **state)
{
    test_job c;
    int many = 1000;

    test_job_start(&c, 3, do_a_thousand, &many, "a thousand operations");
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void ranks_on_several_gpus_share_the_work(void **state)
{
    int skipped = 0;

    for (int ranks = 2; ranks <= 4; ranks++) {
        test_job c;

        test_job_start(&c, ranks, use_two_gpus, NULL, "%d ranks on two GPUs",
                       ranks);
        for (int r = 0; r < ranks; r++) {
            int code = test_job_wait(&c, r, TEST_JOB_LIMIT_MS);

            skipped |= code == NO_TWO_GPUS;
            if (code != 0 && code != NO_TWO_GPUS)
                test_job_give_up(&c, "rank %d ended with %d", r, code);
        }
        test_job_end(&c);
    }
    if (skipped)
        skip();
}

static void groups_map_the_same_memory_once(void **state)
{
    test_job c;

    test_job_start(&c, 2, share_memory, NULL, "several groups");
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void more_than_two_gib_are_no_different(void **state)
{
    test_job c;

    if (!compared_on_gpu()) /* no memory and no time for that elsewhere */
        skip();
    test_job_start(&c, 2, move_huge, NULL, "more than 2 GiB");
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reduction_has_the_bits_of_the_host),
        cmocka_unit_test(every_collective_moves_what_the_host_moves),
        cmocka_unit_test(a_thousand_mixed_operations_are_right),
        cmocka_unit_test(ranks_on_several_gpus_share_the_work),
        cmocka_unit_test(groups_map_the_same_memory_once),
        cmocka_unit_test(more_than_two_gib_are_no_different),
    };

    setenv("STANDIN_DELAY_US", "20", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
