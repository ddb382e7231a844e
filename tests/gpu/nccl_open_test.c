/* SPDX-License-Identifier: Apache-2.0 */
/* How groups on NCCL are made: the library, ids, one GPU each, names used
 * again, splits; and what nccl.h gives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/nccl.h>

#include "backends/backends.h"
#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "support/gpu_ranks.h"
#include "support/last_error.h"

static void run(int ranks, test_job_fn fn, void *arg, const char *what)
{
    test_job c;

    gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, arg, "%s", what);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

/* Sums rank + 1 over the group; 1 if that is what comes out. device: of this
 * process. */
static int sums(oar_group *g, int device)
{
    int size = oar_group_size(g), mine = oar_group_rank(g) + 1, got = 0;
    void *memory = gpu_put(device, &mine, sizeof mine);
    oar_span span = gpu_span(device, memory, 1, OAR_I32);
    int good = oar_all_reduce(g, span, OAR_SUM, NULL, NULL) == OAR_OK;

    gpu_get(device, &got, memory, sizeof got);
    gpu_free(device, memory);
    return good && got == size * (size + 1) / 2;
}

/* ---- the library --------------------------------------------------------- */

/* Longer than a group waits for NCCL's end. */
static int leaves_at_once(test_job *c, int rank, void *arg)
{
    oar_group *g;

    setenv("STANDIN_NCCL_DESTROY_MS", "1500", 1);
    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_CHECK(sums(g, rank));
    oar_group_destroy(g);
    return 0;
}

static void a_process_does_not_end_with_a_thread_in_nccl(void **state)
{
    run(1, leaves_at_once, NULL, "a slow end");
}

static int without_it(test_job *c, int rank, void *arg)
{
    oar_group *g;

    setenv("OARSONG_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    RANK_CHECK(oar_nccl_available() == OAR_E_UNAVAILABLE);
    RANK_CHECK(last_error_has("/nowhere/libnccl.so.2") &&
               last_error_has("install NCCL"));
    RANK_CHECK(last_error_has("OARSONG_NCCL_LIBRARY"));
    setenv("OARSONG_NCCL_LIBRARY", "libc.so.6", 1);
    oar_clear_error();
    RANK_CHECK(oar_nccl_available() == OAR_E_UNAVAILABLE &&
               last_error_has("/nowhere/"));
    RANK_CHECK(oar_nccl_create(0, 1, NULL, NULL, NULL, &g) ==
               OAR_E_UNAVAILABLE);
    RANK_CHECK(oar_backend_available("nccl", NULL) == OAR_E_UNAVAILABLE);
    return 0;
}

static void
a_missing_library_says_what_to_install_and_stays_missing(void **state)
{
    run(1, without_it, NULL, "no library");
}

static int with_another(test_job *c, int rank, void *arg)
{
    setenv("OARSONG_NCCL_LIBRARY", "libc.so.6", 1);
    RANK_CHECK(oar_nccl_available() == OAR_E_UNAVAILABLE);
    RANK_CHECK(last_error_has("libc.so.6 has no nccl"));
    return 0;
}

static void
a_library_that_is_no_nccl_is_said_to_lack_what_it_lacks(void **state)
{
    run(1, with_another, NULL, "another library");
}

static const char *say_unknown(int result)
{
    return "unknown result code";
}

static const char *say_last(oari_nccl_handle comm)
{
    return "Connection closed by remote peer 10.0.0.7";
}

/* 2.17 of the original: a code of a newer library was undefined behaviour. */
static void unknown_result_codes_are_text_with_their_number(void **state)
{
    oari_nccl lib = { .GetErrorString = say_unknown };

    for (int code = 8; code < 300; code += 97) {
        char number[32];

        snprintf(number, sizeof number, "result %d", code);
        assert_int_equal(oari_nccl_check(&lib, code, NULL, "a call"),
                         OAR_E_GPU);
        assert_non_null(strstr(oar_last_error_text(), number));
    }
    assert_int_equal(oari_nccl_check(&lib, -1, NULL, "a call"), OAR_E_GPU);
    assert_int_equal(oari_nccl_check(&lib, OARI_NCCL_IN_PROGRESS, NULL, "it"),
                     OAR_OK);
}

static void what_nccl_says_last_is_in_our_record(void **state)
{
    oari_nccl lib = { .GetErrorString = say_unknown, .GetLastError = say_last };

    assert_int_equal(oari_nccl_check(&lib, OARI_NCCL_REMOTE, NULL, "sum"),
                     OAR_E_PEER);
    assert_non_null(strstr(oar_last_error_text(), "NCCL: sum:"));
    assert_non_null(strstr(oar_last_error_text(), "ncclRemoteError"));
    assert_non_null(strstr(oar_last_error_text(), "10.0.0.7"));
}

static void operators_and_dtypes_have_nccls_numbers(void **state)
{
    int n = -1;

    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_SUM, OAR_F32, &n), OAR_OK);
    assert_int_equal(n, 0);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_AVG, OAR_BF16, &n), OAR_OK);
    assert_int_equal(n, 4);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_MAX, OAR_I64, &n), OAR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_SUM, OAR_BOOL, &n), OAR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_BXOR, OAR_I32, &n),
                     OAR_E_UNSUPPORTED);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_PREMUL_SUM, OAR_F32, &n),
                     OAR_E_UNSUPPORTED);
    assert_int_equal(oar_nccl_op(OAR_REDUCE_OP_AVG, OAR_I32, &n),
                     OAR_E_UNSUPPORTED);
    assert_int_equal(oar_nccl_op((oar_reduce_op_kind)77, OAR_F32, &n),
                     OAR_E_UNSUPPORTED);
    assert_int_equal(oar_nccl_dtype(OAR_F32, &n), OAR_OK);
    assert_int_equal(n, 7);
    assert_int_equal(oar_nccl_dtype(OAR_I8, &n), OAR_OK);
    assert_int_equal(n, 0);
    assert_int_equal(oar_nccl_dtype(OAR_U16, &n), OAR_E_UNSUPPORTED);
    assert_int_equal(oar_nccl_dtype((oar_dtype)99, &n), OAR_E_UNSUPPORTED);
    assert_int_equal(n, 0); /* untouched by what failed */
}

/* ---- ids ----------------------------------------------------------------- */

typedef struct shared_id {
    shared_flag made;
    unsigned char id[OAR_NCCL_ID_BYTES];
} shared_id;

static int with_an_id(test_job *c, int rank, void *arg)
{
    shared_id *shared = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;
    int version = 0;

    RANK_OK(oar_nccl_available());
    RANK_OK(oar_nccl_version(&version));
    RANK_CHECK(version >= 21800);
    if (rank == 0) {
        RANK_OK(oar_nccl_unique_id(shared->id));
        shared_flag_raise(&shared->made);
    }
    RANK_CHECK(shared_flag_await(&shared->made, 1, TEST_JOB_LIMIT_MS));
    o.nccl_id = shared->id;
    RANK_OK(gpu_ranks_join(c, rank, &o, &g));
    RANK_CHECK(sums(g, rank));
    oar_group_destroy(g);
    return 0;
}

static void with_page(int ranks, test_job_fn fn, const char *what)
{
    shared_id *shared = shared_page(sizeof *shared);

    run(ranks, fn, shared, what);
    shared_page_free(shared, sizeof *shared);
}

static void an_id_of_the_callers_is_used(void **state)
{
    with_page(gpu_ranks_max() < 3 ? 1 : 3, with_an_id, "an id");
}

static int with_ids_that_differ(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    unsigned char id[OAR_NCCL_ID_BYTES];
    oar_group *g = NULL;

    RANK_OK(oar_nccl_unique_id(id)); /* each its own */
    o.nccl_id = id;
    RANK_CHECK(gpu_ranks_join(c, rank, &o, &g) == OAR_E_MISMATCH);
    RANK_CHECK(last_error_has("different NCCL ids") && g == NULL);
    return 0;
}

static void ids_that_differ_are_refused_on_every_rank(void **state)
{
    gpu_ranks_need(3);
    run(3, with_ids_that_differ, NULL, "ids that differ");
}

static int with_an_id_here_and_there(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    unsigned char id[OAR_NCCL_ID_BYTES];
    oar_group *g = NULL;

    RANK_OK(oar_nccl_unique_id(id));
    o.nccl_id = rank == 1 ? id : NULL;
    RANK_CHECK(gpu_ranks_join(c, rank, &o, &g) == OAR_E_MISMATCH);
    RANK_CHECK(last_error_has("rank 1 was given an NCCL id"));
    return 0;
}

static void an_id_that_only_some_ranks_have_is_refused(void **state)
{
    gpu_ranks_need(2);
    run(2, with_an_id_here_and_there, NULL, "an id here and there");
}

/* ---- what is shared ------------------------------------------------------ */

static int on_one_gpu(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device first = gpu_of_rank(0);
    oar_group *g = NULL;

    o.device = &first;
    RANK_CHECK(gpu_ranks_join(c, rank, &o, &g) == OAR_E_UNSUPPORTED);
    RANK_CHECK(last_error_has("ranks 0 and 1 share one GPU") &&
               last_error_has("\"ipc\""));
    return 0;
}

static void
two_ranks_on_one_gpu_are_refused_by_a_sentence_that_names_ipc(void **state)
{
    test_job c;

    test_job_start(&c, 2, on_one_gpu, NULL, "one GPU"); /* needs only one */
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

static int again_and_again(test_job *c, int rank, void *arg)
{
    for (int i = 0; i < 3; i++) {
        oar_group *g;

        RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
        RANK_CHECK(sums(g, rank));
        oar_group_destroy(g);
    }
    return 0;
}

static void a_name_can_be_used_again(void **state)
{
    run(gpu_ranks_max() < 2 ? 1 : 2, again_and_again, NULL, "names again");
}

/* The core's links would miss the rank first; the engine has to by itself. */
static int waits_alone(test_job *c, int rank, void *arg)
{
    oari_nccl_engine self;
    oari_open with = { .env = { .size = sizeof with.env,
                                .rank = rank,
                                .ranks = 4,
                                .name = "lonely",
                                .timeout_ms = 300 } };
    int64_t began = oari_now_ns();

    memset(&self, 0, sizeof self);
    RANK_OK(test_job_store(c, &with.env.store));
    with.env.device = rank;
    RANK_CHECK(oari_backend_nccl.open(&self, &with) == OAR_E_TIMEOUT);
    RANK_CHECK(last_error_has("ranks 2, 3 did not come"));
    oari_backend_nccl.ops.close(&self);
    RANK_CHECK(is_in_time(began, 8000));
    oar_store_destroy(with.env.store);
    return 0;
}

static void missing_ranks_are_named_at_the_timeout(void **state)
{
    gpu_ranks_need(2);
    run(2, waits_alone, NULL, "two of four");
}

/* ---- groups of groups ---------------------------------------------------- */

static int splits(test_job *c, int rank, void *arg)
{
    oar_group *g, *half, *none = (oar_group *)c;
    void *whole;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    whole = oar_nccl_communicator(g);
    RANK_OK(oar_group_split(g, rank % 2, -rank, &half)); /* in reverse */
    RANK_CHECK(oar_nccl_communicator(half) != NULL);
    RANK_CHECK(oar_nccl_communicator(half) != whole);
    RANK_CHECK(oar_group_rank(half) == (oar_group_size(half) - 1) - rank / 2);
    RANK_CHECK(sums(half, rank) && sums(g, rank));
    RANK_OK(oar_group_split(g, rank == 0 ? -1 : 5, 0, &none));
    RANK_CHECK((none == NULL) == (rank == 0));
    oar_group_destroy(g); /* the parent first */
    RANK_CHECK(sums(half, rank));
    RANK_CHECK(none == NULL || sums(none, rank));
    oar_group_destroy(none);
    oar_group_destroy(half);
    return 0;
}

static void splits_have_communicators_that_outlive_their_parents(void **state)
{
    run(gpu_ranks_max(), splits, NULL, "splits");
}

static int subsets(test_job *c, int rank, void *arg)
{
    const int outer[] = { 0, c->ranks - 1 };
    oar_group *g, *few = NULL, *copy;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    if (rank == 0 || rank == c->ranks - 1) {
        RANK_OK(oar_group_subset(g, 2, outer, &few));
        RANK_CHECK(sums(few, rank));
    }
    RANK_OK(oar_group_dup(g, &copy));
    RANK_CHECK(sums(copy, rank) && sums(g, rank));
    oar_group_destroy(few);
    oar_group_destroy(g);
    RANK_CHECK(sums(copy, rank));
    oar_group_destroy(copy);
    return 0;
}

static void subsets_and_copies_have_their_own_communicators(void **state)
{
    gpu_ranks_need(3);
    run(3, subsets, NULL, "subsets");
}

/* ---- constructors and accessors ------------------------------------------ */

static int looks_inside(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device device = gpu_of_rank(0);
    void *stream;
    oar_group *g, *plain;

    RANK_OK(oar_stream_create(device, 0, &stream));
    o.stream = stream;
    o.device = &device;
    RANK_OK(oar_nccl_create(0, 1, NULL, NULL, &o, &g));
    RANK_CHECK(oar_nccl_stream(g) == stream);
    RANK_CHECK(oar_nccl_communicator(g) != NULL);
    RANK_CHECK(sums(g, 0));
    RANK_OK(oar_nccl_synchronize(g));
    oar_group_destroy(g);
    RANK_OK(oar_stream_synchronize(device, stream)); /* it is still ours */
    oar_stream_destroy(device, stream);

    RANK_OK(oar_group_create(NULL, 0, 1, NULL, &plain));
    RANK_CHECK(oar_nccl_stream(plain) == NULL);
    RANK_CHECK(oar_nccl_communicator(plain) == NULL);
    RANK_CHECK(oar_nccl_communicator(NULL) == NULL);
    RANK_CHECK(oar_nccl_synchronize(plain) == OAR_E_UNSUPPORTED);
    oar_group_destroy(plain);
    return 0;
}

static void the_communicator_and_the_callers_stream_can_be_had(void **state)
{
    run(1, looks_inside, NULL, "accessors");
}

/* 2.18 of the original: rank and size were not looked at. */
static int out_of_range(test_job *c, int rank, void *arg)
{
    oar_group *g = NULL;

    RANK_CHECK(oar_nccl_create(2, 2, "127.0.0.1:1", NULL, NULL, &g) != OAR_OK);
    RANK_CHECK(oar_nccl_create(-1, 2, "127.0.0.1:1", NULL, NULL, &g) != OAR_OK);
    RANK_CHECK(oar_nccl_create(0, 0, "127.0.0.1:1", NULL, NULL, &g) ==
               OAR_E_WORLD);
    RANK_CHECK(g == NULL);
    return 0;
}

static void ranks_and_sizes_out_of_range_are_refused(void **state)
{
    run(1, out_of_range, NULL, "ranges");
}

/* Where "nccl" refuses. */
static int shares_a_gpu(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device first = gpu_of_rank(0);
    oar_group *g;

    o.backend = "hybrid";
    o.device = &first;
    RANK_OK(gpu_ranks_join(c, rank, &o, &g));
    RANK_CHECK(oar_nccl_communicator(g) == NULL && oar_nccl_stream(g) == NULL);
    RANK_CHECK(sums(g, 0));
    oar_group_destroy(g);
    return 0;
}

static void hybrid_ranks_that_share_a_gpu_do_without_nccl(void **state)
{
    test_job c;

    test_job_start(&c, 2, shares_a_gpu, NULL, "hybrid, one GPU");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

/* Memory runs out at one place after the other: that is said. (The many later
 * ones are lanes, all alike.) */
static int runs_out_of_memory(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device device = gpu_of_rank(0);
    oar_group *g = NULL;
    uint64_t n;

    o.device = &device;
    RANK_OK(oar_nccl_available());
    for (n = 1; g == NULL && n < 9000; n += n < 40 ? 1 : 41) {
        oar_status status;

        oar_memory_fail_after(n);
        status = oar_nccl_create(0, 1, NULL, NULL, &o, &g);
        oar_memory_fail_after(0);
        RANK_CHECK(status == OAR_OK || status == OAR_E_NOMEM);
        RANK_CHECK((status == OAR_OK) == (g != NULL));
    }
    RANK_CHECK(n > 20 && sums(g, 0));
    oar_group_destroy(g);
    return 0;
}

static void every_failed_allocation_is_reported(void **state)
{
    if (gpu_ranks_are_real())
        skip(); /* a hundred communicators of the real one take minutes */
    run(1, runs_out_of_memory, NULL, "no memory");
}

/* Where ranks meet: rank 0 serves there. */
typedef struct store_page {
    shared_flag open, left;
    char address[64];
    unsigned char id[OAR_NCCL_ID_BYTES];
} store_page;

static int makes_both(test_job *c, int rank, const store_page *s)
{
    oar_group_opts o = oar_group_opts_init();
    oar_device device = gpu_of_rank(rank);
    float host = (float)rank;
    oar_group *g, *given;

    o.device = &device;
    o.timeout_ms = GPU_RANKS_TIMEOUT_MS;
    RANK_OK(oar_hybrid_create(rank, c->ranks, s->address, NULL, &o, &g));
    RANK_CHECK(oar_nccl_communicator(g) != NULL);
    RANK_CHECK(sums(g, rank));
    RANK_OK(
        oar_all_reduce(g, oar_span_of(&host, 1, OAR_F32), OAR_SUM, NULL, NULL));
    RANK_CHECK(host == (float)(c->ranks * (c->ranks - 1) / 2));
    RANK_OK(oar_barrier(g, NULL, NULL));
    o.name = "given";
    RANK_OK(oar_nccl_create(rank, c->ranks, s->address, s->id, &o, &given));
    RANK_CHECK(sums(given, rank));
    oar_group_destroy(given);
    oar_group_destroy(g);
    return 0;
}

static int meets_there(test_job *c, int rank, void *arg)
{
    oar_store_server *server = NULL;
    store_page *s = arg;
    int failed;

    if (rank == 0) {
        RANK_OK(oar_nccl_unique_id(s->id));
        RANK_OK(oar_store_serve("127.0.0.1:0", &server));
        snprintf(s->address, sizeof s->address, "%s",
                 oar_store_server_address(server));
        shared_flag_raise(&s->open);
    }
    RANK_CHECK(shared_flag_await(&s->open, 1, TEST_JOB_LIMIT_MS));
    failed = makes_both(c, rank, s);
    shared_flag_raise(&s->left);
    if (rank == 0)
        shared_flag_await(&s->left, (uint32_t)c->ranks, TEST_JOB_LIMIT_MS);
    oar_store_server_destroy(server);
    return failed;
}

/* 2.20 of the original: a hybrid group never reached NCCL, and needed the id
 * although it had a channel that could carry it. */
static void a_hybrid_group_takes_host_memory_and_reaches_nccl(void **state)
{
    store_page *s = shared_page(sizeof *s);

    run(gpu_ranks_max() < 2 ? 1 : 2, meets_there, s, "hybrid");
    shared_page_free(s, sizeof *s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_missing_library_says_what_to_install_and_stays_missing),
        cmocka_unit_test(
            a_library_that_is_no_nccl_is_said_to_lack_what_it_lacks),
        cmocka_unit_test(a_process_does_not_end_with_a_thread_in_nccl),
        cmocka_unit_test(unknown_result_codes_are_text_with_their_number),
        cmocka_unit_test(what_nccl_says_last_is_in_our_record),
        cmocka_unit_test(operators_and_dtypes_have_nccls_numbers),
        cmocka_unit_test(an_id_of_the_callers_is_used),
        cmocka_unit_test(ids_that_differ_are_refused_on_every_rank),
        cmocka_unit_test(an_id_that_only_some_ranks_have_is_refused),
        cmocka_unit_test(
            two_ranks_on_one_gpu_are_refused_by_a_sentence_that_names_ipc),
        cmocka_unit_test(a_name_can_be_used_again),
        cmocka_unit_test(missing_ranks_are_named_at_the_timeout),
        cmocka_unit_test(splits_have_communicators_that_outlive_their_parents),
        cmocka_unit_test(subsets_and_copies_have_their_own_communicators),
        cmocka_unit_test(the_communicator_and_the_callers_stream_can_be_had),
        cmocka_unit_test(ranks_and_sizes_out_of_range_are_refused),
        cmocka_unit_test(a_hybrid_group_takes_host_memory_and_reaches_nccl),
        cmocka_unit_test(hybrid_ranks_that_share_a_gpu_do_without_nccl),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
