/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: how they are made, how they break, and what every rank reports. */
#include "support/ranks.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/p2p.h>
#include <oarsong/recorder.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/exec/exec.h"
#include "comm/group/group.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000 };

/* ---- flags that threads and processes share ------------------------------ */

typedef struct rank_flags {
    _Atomic int up[8];
    _Atomic int64_t pid[8];
} rank_flags;

static rank_flags *make_flags(void)
{
    return mmap(NULL, sizeof(rank_flags), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void drop_flags(rank_flags *f)
{
    munmap(f, sizeof *f);
}

/* Waits until a flag has that value; 0: it did not come. */
static int await(const _Atomic int *flag, int value)
{
    int64_t deadline = oari_deadline(PATIENCE_MS);

    while (atomic_load(flag) < value) {
        if (oari_now_ns() > deadline)
            return 0;
        sched_yield();
    }
    return 1;
}

static void run_on(const char *backend, int n, oar_rank_fn fn, void *arg)
{
    if (ranks_run(backend, n, NULL, fn, arg) != OAR_OK)
        fail_msg("backend %s, %d ranks: %s", backend, n, oar_last_error_text());
}

/* ---- making: bad arguments ----------------------------------------------- */

static void a_rank_or_size_that_cannot_be_is_refused(void **state)
{
    leak_check before = leak_check_begin();
    oar_store *store;
    oar_group *g = NULL;

    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    assert_fails_with(oar_group_create(store, 0, 0, NULL, &g), OAR_E_WORLD,
                      "of 0");
    assert_fails_with(oar_group_create(store, 0, -3, NULL, &g), OAR_E_WORLD,
                      "-3");
    assert_fails_with(oar_group_create(store, 0, 1025, NULL, &g), OAR_E_WORLD,
                      "1025");
    assert_fails_with(oar_group_create(store, -1, 3, NULL, &g), OAR_E_RANK,
                      "rank -1");
    assert_fails_with(oar_group_create(store, 3, 3, NULL, &g), OAR_E_RANK,
                      "rank 3");
    assert_fails_with(oar_group_create(NULL, 0, 2, NULL, &g), OAR_E_ARG,
                      "store");
    assert_fails_with(oar_group_create(store, 0, 1, NULL, NULL), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_group_from_env(NULL, NULL), OAR_E_ARG, "nowhere");
    assert_null(g);
    oar_store_destroy(store);
    leak_check_end(&before);
}

static oar_status create_with(oar_group_opts o)
{
    oar_group *g = NULL;
    oar_status status = oar_group_create(NULL, 0, 1, &o, &g);

    assert_true((g != NULL) == (status == OAR_OK));
    oar_group_destroy(g);
    return status;
}

#define OPTIONS(...) \
    ((oar_group_opts){ .size = sizeof(oar_group_opts), __VA_ARGS__ })

static void options_out_of_range_are_refused(void **state)
{
    leak_check before = leak_check_begin();

    assert_fails_with(create_with(OPTIONS(.backend = "pigeon")),
                      OAR_E_NOT_FOUND, "pigeon");
    assert_fails_with(create_with(OPTIONS(.backend = "sim")), OAR_E_UNSUPPORTED,
                      "oar_sim_run");
    assert_fails_with(create_with(OPTIONS(.small_bytes = 7)), OAR_E_ARG,
                      "small_bytes 7");
    assert_fails_with(create_with(OPTIONS(.small_bytes = (1 << 20) + 1)),
                      OAR_E_ARG, "small_bytes");
    assert_fails_with(create_with(OPTIONS(.stage_bytes = 63)), OAR_E_ARG,
                      "stage_bytes 63");
    assert_fails_with(create_with((oar_group_opts){ .size = 3 }), OAR_E_ARG,
                      "size 3");
    assert_int_equal(
        create_with(OPTIONS(.small_bytes = 1 << 20, .stage_bytes = 64,
                            .spin_us = -1, .timeout_ms = -1)),
        OAR_OK);
    leak_check_end(&before);
}

static void self_is_for_one_rank(void **state)
{
    oar_group_opts o = OPTIONS(.backend = "self");
    oar_store *store;
    oar_group *g = NULL;

    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    assert_fails_with(oar_group_create(store, 0, 2, &o, &g), OAR_E_WORLD,
                      "2 ranks");
    assert_null(g);
    oar_store_destroy(store);
}

static void settings_of_the_environment_are_checked_by_name(void **state)
{
    static const char *const bad[][2] = {
        { "OARSONG_SMALL_BYTES", "7" },     { "OARSONG_SMALL_BYTES", "many" },
        { "OARSONG_STAGE_BYTES", "63" },    { "OARSONG_STAGE_BYTES", "1G" },
        { "OARSONG_TIMEOUT_MS", "-2" },     { "OARSONG_TIMEOUT_MS", "1 h" },
        { "OARSONG_SPIN_US", "1000001" },   { "OARSONG_ALGO", "magic" },
        { "OARSONG_BACKEND", "semaphore" },
    };
    leak_check before = leak_check_begin();

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv(bad[i][0], bad[i][1], 1);
        assert_int_not_equal(create_with(oar_group_opts_init()), OAR_OK);
        if (strstr(oar_last_error_text(), bad[i][1]) == NULL)
            fail_msg("%s=%s: %s", bad[i][0], bad[i][1], oar_last_error_text());
        unsetenv(bad[i][0]);
    }
    setenv("OARSONG_SMALL_BYTES", "1K", 1);
    setenv("OARSONG_STAGE_BYTES", "4k", 1);
    setenv("OARSONG_TIMEOUT_MS", "", 1);
    assert_int_equal(create_with(oar_group_opts_init()), OAR_OK);
    unsetenv("OARSONG_SMALL_BYTES");
    unsetenv("OARSONG_STAGE_BYTES");
    unsetenv("OARSONG_TIMEOUT_MS");
    leak_check_end(&before);
}

/* ---- groups of one ------------------------------------------------------- */

static void a_group_of_one_does_everything_alone(void **state)
{
    static const char *const backend[] = { NULL, "self", "native", "shm" };

    for (int i = 0; i < 4; i++) {
        leak_check before = leak_check_begin();
        oar_group_opts o = OPTIONS(.backend = backend[i], .name = "solo");
        float x[3] = { 1, 2, 3 }, y[3] = { 0 };
        oar_span s = oar_span_of(x, 3, OAR_F32), t = oar_span_of(y, 3, OAR_F32);
        oar_work *work;
        oar_group *g;

        assert_int_equal(oar_group_create(NULL, 0, 1, &o, &g), OAR_OK);
        assert_int_equal(oar_group_rank(g), 0);
        assert_int_equal(oar_group_size(g), 1);
        assert_string_equal(oar_group_name(g), "solo");
        assert_string_equal(oar_group_backend(g),
                            backend[i] != NULL ? backend[i] : "self");
        assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
        assert_int_equal(oar_broadcast(g, s, 0, NULL, NULL), OAR_OK);
        assert_int_equal(oar_all_reduce_into(g, s, t, OAR_SUM, NULL, NULL),
                         OAR_OK);
        assert_memory_equal(x, y, sizeof x);
        y[0] = 7;
        assert_int_equal(oar_recv(g, t, 0, 5, NULL, &work), OAR_OK);
        assert_int_equal(oar_send(g, s, 0, 5, NULL, NULL), OAR_OK);
        assert_int_equal(oar_work_wait(work), OAR_OK);
        assert_memory_equal(x, y, sizeof x);
        oar_work_release(work);
        oar_group_destroy(g);
        leak_check_end(&before);
    }
}

static void nothing_is_known_of_no_group(void **state)
{
    assert_int_equal(oar_group_rank(NULL), -1);
    assert_int_equal(oar_group_size(NULL), 0);
    assert_string_equal(oar_group_backend(NULL), "");
    assert_string_equal(oar_group_name(NULL), "");
    assert_fails_with(oar_group_abort(NULL, "x"), OAR_E_ARG, "NULL");
    assert_fails_with(oar_group_fault(NULL, NULL), OAR_E_ARG, "NULL");
    oar_group_destroy(NULL);
}

static void a_group_is_called_world_unless_it_has_a_name(void **state)
{
    oar_group *g;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    assert_string_equal(oar_group_name(g), "world");
    assert_int_equal(oar_group_fault(g, NULL), OAR_OK);
    oar_group_destroy(g);
}

/* ---- several groups over one store --------------------------------------- */

static oar_status open_store(oar_store **store)
{
    const char *where = getenv("OARSONG_STORE");

    CHECK(where != NULL && strncmp(where, "tcp:", 4) == 0);
    return oar_store_create_tcp(where + 4, PATIENCE_MS, store);
}

static oar_status join(oar_group *world, oar_store *store, const char *name,
                       oar_group **g)
{
    oar_group_opts o =
        OPTIONS(.backend = "shm", .name = name, .timeout_ms = PATIENCE_MS);

    return oar_group_create(store, oar_group_rank(world), oar_group_size(world),
                            &o, g);
}

static oar_status sum_is(oar_group *g, int one, int all)
{
    float x = (float)one;

    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL));
    CHECK(x == (float)all);
    return OAR_OK;
}

static oar_status use_two_groups(oar_group *world, void *arg)
{
    oar_store *store;
    oar_group *a, *b;

    CHECK_OK(open_store(&store));
    CHECK_OK(join(world, store, "left", &a));
    CHECK_OK(join(world, store, "right/2", &b));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(sum_is(a, 1, 3));
        CHECK_OK(sum_is(b, 2, 6));
        CHECK_OK(sum_is(world, 3, 9));
    }
    CHECK_OK(oar_group_abort(a, "only this one"));
    CHECK_OK(sum_is(b, 5, 15));
    CHECK(
        fails_with(oar_barrier(a, NULL, NULL), OAR_E_ABORTED, "only this one"));
    oar_group_destroy(b);
    oar_group_destroy(a);
    oar_store_destroy(store);
    return sum_is(world, 1, 3);
}

static void groups_of_other_names_live_side_by_side(void **state)
{
    run_on("shm", 3, use_two_groups, NULL);
}

static oar_status join_with_secret(oar_group *world, oar_store *store,
                                   const char *name, int number, oar_group **g)
{
    char secret[65];
    oar_group_opts o =
        OPTIONS(.backend = oar_group_backend(world), .name = name,
                .timeout_ms = PATIENCE_MS, .secret = secret);

    snprintf(secret, sizeof secret, "%064d", number);
    return oar_group_create(store, oar_group_rank(world), oar_group_size(world),
                            &o, g);
}

static oar_status use_a_secret(oar_group *world, void *arg)
{
    oar_group_opts wrong = OPTIONS(.secret = "0123");
    oar_group *g = NULL, *same = NULL, *refused = NULL;
    oar_store *store;

    CHECK(fails_with(oar_group_create(NULL, 0, 1, &wrong, &g), OAR_E_ARG,
                     "64 hex digits"));
    CHECK_OK(open_store(&store));
    CHECK_OK(join_with_secret(world, store, "secret", 5, &g));
    CHECK_OK(oar_group_dup(g, &same));
    CHECK_OK(sum_is(g, 1, 3));
    CHECK_OK(sum_is(same, 2, 6));
    oar_group_destroy(same);
    oar_group_destroy(g);
    CHECK(join_with_secret(world, store, "other", oar_group_rank(world) == 2,
                           &refused) != OAR_OK);
    if (oar_group_rank(world) == 2)
        CHECK(strstr(oar_last_error_text(), "secret") != NULL);
    CHECK(refused == NULL);
    oar_store_destroy(store);
    return sum_is(world, 1, 3);
}

static void a_group_has_the_secret_that_it_is_given(void **state)
{
    run_on("shm", 3, use_a_secret, NULL);
    run_on("tcp", 3, use_a_secret, NULL);
}

static oar_status use_a_name_again(oar_group *world, void *arg)
{
    oar_store *store;
    oar_group *g;

    CHECK_OK(open_store(&store));
    for (int i = 0; i < 5; i++) {
        leak_check before = leak_check_begin();
        CHECK_OK(join(world, store, "again", &g));
        CHECK_OK(sum_is(g, i, 3 * i));
        oar_group_destroy(g);
        CHECK(leak_check_begin().descriptors == before.descriptors);
        CHECK(leak_check_begin().live == before.live);
    }
    oar_store_destroy(store);
    return OAR_OK;
}

static void a_name_can_be_used_again_after_destroy(void **state)
{
    run_on("shm", 3, use_a_name_again, NULL);
}

/* ---- ranks that are threads, each with a group over shared memory -------- */

typedef struct joining_rank {
    oar_store *store;
    int rank, size;
    int64_t timeout_ms;
    const char *name;
    oar_status status;
    oar_error error;
    pthread_t thread;
} joining_rank;

static void *join_as_thread(void *arg)
{
    joining_rank *j = arg;
    oar_group_opts o =
        OPTIONS(.backend = "shm", .timeout_ms = j->timeout_ms, .name = j->name);
    oar_group *g = NULL;

    j->status = oar_group_create(j->store, j->rank, j->size, &o, &g);
    if (j->status == OAR_OK)
        j->status = oar_barrier(g, NULL, NULL);
    j->error = *oar_last_error();
    oar_group_destroy(g);
    return NULL;
}

static void join_all(joining_rank *j, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(
            pthread_create(&j[i].thread, NULL, join_as_thread, &j[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(j[i].thread, NULL);
}

static void a_rank_that_does_not_join_is_named(void **state)
{
    leak_check before = leak_check_begin();
    joining_rank j[2] = { { .rank = 0, .size = 3, .timeout_ms = 200 },
                          { .rank = 2, .size = 3, .timeout_ms = 200 } };

    assert_int_equal(oar_store_create_memory(&j[0].store), OAR_OK);
    j[1].store = j[0].store;
    join_all(j, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(j[i].status, OAR_E_TIMEOUT);
        assert_int_equal(j[i].error.status, OAR_E_TIMEOUT);
        assert_non_null(strstr(j[i].error.text, "rank 1 "));
        assert_non_null(strstr(j[i].error.text, "200 ms"));
        assert_non_null(strstr(j[i].error.text, "\"world\""));
    }
    oar_store_destroy(j[0].store);
    leak_check_end(&before);
}

static void ranks_that_differ_about_the_size_get_an_error(void **state)
{
    joining_rank j[2] = { { .rank = 0, .size = 2, .timeout_ms = 5000 },
                          { .rank = 1, .size = 3, .timeout_ms = 5000 } };

    assert_int_equal(oar_store_create_memory(&j[0].store), OAR_OK);
    j[1].store = j[0].store;
    join_all(j, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(j[i].status, OAR_E_MISMATCH);
        assert_non_null(strstr(j[i].error.text, "calls itself rank"));
    }
    oar_store_destroy(j[0].store);
}

static void a_name_too_long_for_the_store_is_refused(void **state)
{
    char name[300];
    joining_rank j[2] = {
        { .rank = 0, .size = 2, .timeout_ms = 5000, .name = name },
        { .rank = 1, .size = 2, .timeout_ms = 5000, .name = name }
    };

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(oar_store_create_memory(&j[0].store), OAR_OK);
    j[1].store = j[0].store;
    join_all(j, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(j[i].status, OAR_E_ARG);
    name[150] = 0;
    join_all(j, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(j[i].status, OAR_OK);
    oar_store_destroy(j[0].store);
}

/* Two ranks meet while the n-th allocation of the process fails, on either. */
static void without_memory_a_rendezvous_leaves_nothing_behind(void **state)
{
    int failures = 0;

    for (uint64_t n = 1;; n += 2, failures++) {
        joining_rank j[2] = { { .rank = 0, .size = 2, .timeout_ms = 60 },
                              { .rank = 1, .size = 2, .timeout_ms = 60 } };
        leak_check before;

        assert_int_equal(oar_store_create_memory(&j[0].store), OAR_OK);
        j[1].store = j[0].store;
        before = leak_check_begin();
        oar_memory_fail_after(n);
        join_all(j, 2);
        oar_memory_fail_after(0);
        oar_store_clear(j[0].store);
        assert_true(leak_check_begin().live <= before.live);
        assert_int_equal(leak_check_begin().descriptors, before.descriptors);
        oar_store_destroy(j[0].store);
        if (j[0].status == OAR_OK && j[1].status == OAR_OK)
            break; /* it took fewer */
        assert_true(n < 1000);
    }
    assert_true(failures > 5);
}

/* ---- from the environment ------------------------------------------------ */

static const char *const env_names[][2] = {
    { "OARSONG_RANK", "OARSONG_SIZE" },
    { "RANK", "WORLD_SIZE" },
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
    { "PMI_RANK", "PMI_SIZE" },
    { "SLURM_PROCID", "SLURM_NTASKS" },
};
enum { SPELLINGS = sizeof env_names / sizeof *env_names };

static int forget_env(void **state)
{
    for (int i = 0; i < SPELLINGS; i++)
        for (int k = 0; k < 2; k++)
            unsetenv(env_names[i][k]);
    unsetenv("OARSONG_STORE");
    return 0;
}

static void say_env(int spelling, const char *rank, const char *size)
{
    setenv(env_names[spelling][0], rank, 1);
    setenv(env_names[spelling][1], size, 1);
}

static void without_a_launcher_it_is_a_group_of_one(void **state)
{
    oar_group *g;

    assert_int_equal(oar_group_from_env(NULL, &g), OAR_OK);
    assert_int_equal(oar_group_size(g), 1);
    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    oar_group_destroy(g);
}

/* What one rank of three does, in a child; its exit code. */
static int be_rank_by(int spelling, int rank, const char *store)
{
    char text[16];
    oar_group *g;
    int all = 0;

    snprintf(text, sizeof text, "%d", rank);
    say_env(spelling, text, "3");
    setenv("OARSONG_STORE", store, 1);
    if (oar_group_from_env(OAR_OPTS(oar_group_opts, .timeout_ms = PATIENCE_MS),
                           &g) != OAR_OK)
        return 1;
    if (oar_group_rank(g) != rank || oar_group_size(g) != 3)
        return 2;
    all = sum_is(g, rank, 0 + 1 + 2) == OAR_OK;
    oar_group_destroy(g);
    return all ? 0 : 3;
}

static void every_launchers_spelling_is_understood(void **state)
{
    for (int i = 0; i < SPELLINGS; i++) {
        char folder[FOLDER_PATH], store[FOLDER_PATH + 8];
        pid_t pid[3];
        int how;

        folder_make(folder);
        snprintf(store, sizeof store, i & 1 ? "file:%s" : "file://%s", folder);
        for (int r = 0; r < 3; r++)
            if ((pid[r] = fork()) == 0)
                _exit(be_rank_by(i, r, store));
        for (int r = 0; r < 3; r++) {
            assert_int_equal(waitpid(pid[r], &how, 0), pid[r]);
            if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
                fail_msg("%s: rank %d ended with %x", env_names[i][0], r, how);
        }
        folder_remove(folder);
    }
}

static void our_own_names_count_before_others(void **state)
{
    oar_group *g;

    say_env(1, "7", "9");
    say_env(0, "0", "1");
    assert_int_equal(oar_group_from_env(NULL, &g), OAR_OK);
    assert_int_equal(oar_group_size(g), 1);
    oar_group_destroy(g);
}

static void nonsense_in_the_environment_is_named(void **state)
{
    oar_group *g = NULL;

    for (int i = 0; i < SPELLINGS; i++) {
        forget_env(NULL);
        say_env(i, "3", "3");
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG,
                          env_names[i][0]);
        say_env(i, "-1", "3");
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG, "\"-1\"");
        say_env(i, "0", "0");
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG,
                          env_names[i][1]);
        say_env(i, "0", "two");
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG, "\"two\"");
        say_env(i, "first", "2");
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG, "\"first\"");
    }
    assert_null(g);
}

static void
ranks_without_a_rendezvous_address_are_refused_with_advice(void **state)
{
    oar_group *g = NULL;

    say_env(0, "1", "3");
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                      "`oarsong run -n 3`");
    setenv("OARSONG_STORE", "carrier-pigeon", 1);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                      "\"carrier-pigeon\"");
    assert_non_null(strstr(oar_last_error_text(), "file:FOLDER"));
    setenv("OARSONG_STORE", "file:/proc/nowhere", 1);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_SYSTEM,
                      "/proc/nowhere");
    assert_null(g);
}

/* ---- ranks that disagree ------------------------------------------------- */

typedef struct mismatch_case {
    const char *mine, *theirs; /* what the text says of either side */
    oar_coll kind[2];          /* of the others, of rank 1 */
    size_t count[2];
    oar_dtype dtype[2];
    oar_reduce_op_kind op[2];
    int root[2];
} mismatch_case;

#define ONLY(what) \
    {              \
        what, what \
    }

static const mismatch_case disputes[] = {
    { .mine = "rank 0 calls barrier at",
      .theirs = "rank 1 calls all_reduce of 17 f32 sum at",
      .kind = { OAR_COLL_BARRIER, OAR_COLL_ALL_REDUCE },
      .count = ONLY(17) },
    { .mine = "rank 0 calls all_reduce of 17 f32 sum at",
      .theirs = "rank 1 calls broadcast of 17 f32 from 0 at",
      .kind = { OAR_COLL_ALL_REDUCE, OAR_COLL_BROADCAST },
      .count = ONLY(17) },
    { .mine = "all_reduce #2: rank 0 passes op sum at",
      .theirs = "rank 1 passes op max at",
      .kind = ONLY(OAR_COLL_ALL_REDUCE),
      .count = ONLY(17),
      .op = { OAR_REDUCE_OP_SUM, OAR_REDUCE_OP_MAX } },
    { .mine = "rank 0 passes dtype f32 at",
      .theirs = "rank 1 passes dtype i32 at",
      .kind = ONLY(OAR_COLL_ALL_REDUCE),
      .count = ONLY(17),
      .dtype = { OAR_F32, OAR_I32 } },
    { .mine = "rank 0 passes count 17 at",
      .theirs = "rank 1 passes count 18 at",
      .kind = ONLY(OAR_COLL_ALL_REDUCE),
      .count = { 17, 18 } },
    { .mine = "rank 0 passes count 5000 at",
      .theirs = "rank 1 passes count 5001 at",
      .kind = ONLY(OAR_COLL_ALL_REDUCE),
      .count = { 5000, 5001 } },
    { .mine = "rank 0 passes count 5000 at",
      .theirs = "rank 1 passes count 0 at",
      .kind = ONLY(OAR_COLL_ALL_REDUCE),
      .count = { 5000, 0 } },
    { .mine = "broadcast #2: rank 0 passes root 0 at",
      .theirs = "rank 1 passes root 2 at",
      .kind = ONLY(OAR_COLL_BROADCAST),
      .count = ONLY(17),
      .root = { 0, 2 } },
};
enum { DISPUTES = sizeof disputes / sizeof *disputes };

static oar_status call_as(oar_group *g, const mismatch_case *d, int side,
                          float *x)
{
    oar_span s = oar_span_of(x, d->count[side], d->dtype[side]);
    oar_call_opts o = oar_call_opts_init();

    o.label = side == 0 ? "the many" : "the one";
    switch (d->kind[side]) {
    case OAR_COLL_BARRIER:
        return oar_barrier_at("src/a.c", 100 + side, g, &o, NULL);
    case OAR_COLL_BROADCAST:
        return oar_broadcast_at("src/a.c", 100 + side, g, s, d->root[side], &o,
                                NULL);
    default:
        return oar_all_reduce_at("src/a.c", 100 + side, g, s,
                                 OAR_REDUCE_OP(d->op[side], 0), &o, NULL);
    }
}

static oar_status disagree(oar_group *g, void *arg)
{
    const mismatch_case *d = arg;
    int side = oar_group_rank(g) == 1;
    float x[5001] = { 0 };
    oar_error record = { 0 };
    oar_status status;

    CHECK_OK(oar_barrier(g, NULL, NULL));
    status = call_as(g, d, side, x);
    if (status == OAR_OK && d->kind[side] == OAR_COLL_BROADCAST)
        status = oar_barrier(g, NULL, NULL); /* none waited for rank 1 */
    CHECK(fails_with(status, OAR_E_MISMATCH, "rank 1"));
    CHECK(fails_with(OAR_E_MISMATCH, OAR_E_MISMATCH, d->mine));
    CHECK(fails_with(OAR_E_MISMATCH, OAR_E_MISMATCH, d->theirs));
    CHECK(fails_with(OAR_E_MISMATCH, OAR_E_MISMATCH, "a.c:100 (\"the many\")"));
    CHECK(fails_with(OAR_E_MISMATCH, OAR_E_MISMATCH, "a.c:101 (\"the one\")"));
    CHECK(oar_group_fault(g, &record) == OAR_E_MISMATCH);
    CHECK(record.sequence == 2);
    CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_MISMATCH, record.text));
    return OAR_OK;
}

static void ranks_that_disagree_are_both_named_to_all(void **state)
{
    for (int i = 0; i < DISPUTES; i++) {
        mismatch_case d = disputes[i];
        run_on("sim", 3, disagree, &d);
        run_on("shm", 3, disagree, &d);
    }
}

/* ---- timeouts ------------------------------------------------------------ */

static oar_status check_timeout_record(oar_group *g, int line)
{
    oar_error r = { 0 };
    char site[32];

    snprintf(site, sizeof site, "group_test.c:%d", line);
    CHECK(oar_group_fault(g, &r) == OAR_E_TIMEOUT);
    CHECK(r.size == sizeof r && r.status == OAR_E_TIMEOUT);
    CHECK(r.rank == 0 || r.rank == 2);
    CHECK(r.peer == 1 && r.sequence == 2 && r.pid > 0 && r.host[0] != 0);
    CHECK(strcmp(r.operation, "all_reduce") == 0);
    CHECK(strcmp(r.site, site) == 0 && strcmp(r.label, "the sum") == 0);
    CHECK(strstr(r.text, "all_reduce waited 100 ms for rank 1 (pid ") != NULL);
    CHECK(strstr(r.text, "#1 barrier at group_test.c:") != NULL);
    CHECK(strstr(r.text, " (\"last seen\"), done ") != NULL);
    return OAR_OK;
}

/* Rank 1 stays away until the others have given up. What it then finds complete
 * may succeed; what it would have to wait for does not. */
static oar_status stay_away(oar_group *g, void *arg)
{
    rank_flags *f = arg;
    int late = oar_group_rank(g) == 1;
    oar_status status;
    float x = 1;
    oar_span s = oar_span_of(&x, 1, OAR_F32);
    oar_call_opts o = oar_call_opts_init();
    int line;

    o.label = "last seen";
    CHECK_OK(oar_barrier(g, &o, NULL));
    o.timeout_ms = 100;
    o.label = "the sum";
    if (late)
        CHECK(await(&f->up[0], 2));
    do {
        line = __LINE__ + 1;
        status = oar_all_reduce(g, s, OAR_SUM, &o, NULL);
    } while (status == OAR_OK && late--);
    CHECK(status == OAR_E_TIMEOUT);
    CHECK_OK(check_timeout_record(g, line));
    atomic_fetch_add(&f->up[0], 1);
    CHECK(await(&f->up[0], 3));
    return OAR_OK;
}

static void
a_timeout_names_the_missing_rank_and_its_last_operation(void **state)
{
    static const char *const backend[] = { "sim", "shm" };

    for (int i = 0; i < 2; i++) {
        rank_flags *f = make_flags();
        run_on(backend[i], 3, stay_away, f);
        drop_flags(f);
    }
}

static oar_status never_call(oar_group *g, void *arg)
{
    rank_flags *f = arg;

    if (oar_group_rank(g) == 0)
        CHECK(fails_with(
            oar_barrier(g, OAR_OPTS(oar_call_opts, .timeout_ms = 50), NULL),
            OAR_E_TIMEOUT, "it has not called anything yet"));
    atomic_fetch_add(&f->up[0], 1);
    CHECK(await(&f->up[0], 2));
    return OAR_OK;
}

static void a_rank_that_has_called_nothing_is_described_so(void **state)
{
    rank_flags *f = make_flags();

    run_on("sim", 2, never_call, f);
    atomic_store(&f->up[0], 0);
    run_on("shm", 2, never_call, f);
    drop_flags(f);
}

static oar_status wait_by_default(oar_group *g, void *arg)
{
    rank_flags *f = arg;

    if (oar_group_rank(g) == 0)
        CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_TIMEOUT,
                         "barrier waited 50 ms"));
    atomic_fetch_add(&f->up[0], 1);
    CHECK(await(&f->up[0], 2));
    return OAR_OK;
}

static void the_timeout_of_the_group_is_the_default(void **state)
{
    rank_flags *f = make_flags();
    oar_group_opts o = OPTIONS(.timeout_ms = 50);

    assert_int_equal(ranks_run("sim", 2, &o, wait_by_default, f), OAR_OK);
    setenv("OARSONG_TIMEOUT_MS", "50", 1);
    atomic_store(&f->up[0], 0);
    assert_int_equal(oar_sim_run(2, wait_by_default, f), OAR_OK);
    unsetenv("OARSONG_TIMEOUT_MS");
    drop_flags(f);
}

/* ---- abort --------------------------------------------------------------- */

typedef struct aborting_thread {
    oar_group *group;
    const char *reason;
    int failed;
} aborting_thread;

/* Aborts as soon as this rank has posted its operation. */
static void *abort_when_posted(void *arg)
{
    aborting_thread *a = arg;
    oar_record r = oar_record_init();
    int64_t deadline = oari_deadline(PATIENCE_MS);

    while (oar_recorder_read(a->group, oar_group_rank(a->group), 0, &r) !=
               OAR_OK &&
           oari_now_ns() < deadline)
        sched_yield();
    a->failed = oar_group_abort(a->group, a->reason) != OAR_OK ||
                oar_group_abort(a->group, "again") != OAR_OK;
    return NULL;
}

static oar_status abort_from_beside(oar_group *g, void *arg)
{
    rank_flags *f = arg;
    aborting_thread a = { g, "enough of this", 0 };
    oar_error r = { 0 };
    pthread_t thread;

    if (oar_group_rank(g) == 0) {
        CHECK(pthread_create(&thread, NULL, abort_when_posted, &a) == 0);
        CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED,
                         "rank 0 aborted: enough of this"));
        pthread_join(thread, NULL);
        CHECK(!a.failed);
        atomic_store(&f->up[0], 1);
    } else {
        CHECK(await(&f->up[0], 1));
        if (oar_barrier(g, NULL, NULL) == OAR_OK) /* all have called it */
            CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
        CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED,
                         "rank 0 aborted: enough of this"));
        atomic_store(&f->up[1], 1);
    }
    CHECK(await(&f->up[1], 1));
    CHECK_OK(oar_group_abort(g, "too late"));
    CHECK(oar_group_fault(g, &r) == OAR_E_ABORTED);
    CHECK(r.rank == 0 && r.peer == -1 && r.sequence == 0);
    CHECK(strcmp(r.text, "rank 0 aborted: enough of this") == 0);
    return OAR_OK;
}

static void
an_abort_ends_a_waiting_call_and_the_first_reason_stays(void **state)
{
    rank_flags *f = make_flags();

    run_on("sim", 2, abort_from_beside, f);
    memset(f, 0, sizeof *f);
    run_on("shm", 2, abort_from_beside, f);
    drop_flags(f);
}

static void an_abort_needs_no_reason(void **state)
{
    oar_group *g;
    oar_work *work = NULL;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    assert_int_equal(oar_group_abort(g, NULL), OAR_OK);
    assert_fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED,
                      "no reason given");
    assert_fails_with(oar_barrier(g, NULL, &work), OAR_E_ABORTED,
                      "no reason given");
    assert_null(work);
    oar_group_destroy(g);
}

/* ---- leaving ------------------------------------------------------------- */

static oar_status leave_early(oar_group *g, void *arg)
{
    float x = 0;
    oar_span s = oar_span_of(&x, 1, OAR_F32);

    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (oar_group_rank(g) == 1)
        return OAR_OK;
    if (arg != NULL)
        CHECK(fails_with(oar_recv(g, s, 1, 0, NULL, NULL), OAR_E_PEER,
                         "has left the group"));
    else
        CHECK(fails_with(oar_all_reduce(g, s, OAR_SUM, NULL, NULL), OAR_E_PEER,
                         "has left the group"));
    CHECK(strstr(oar_last_error_text(), "rank 1 (pid ") != NULL);
    CHECK(oar_last_error()->peer == 1);
    return OAR_OK;
}

static void a_rank_that_returns_early_has_left_the_group(void **state)
{
    run_on("shm", 3, leave_early, NULL);
    run_on("shm", 2, leave_early, (void *)"a message");
    run_on("sim", 3, leave_early, NULL);
    run_on("sim", 2, leave_early, (void *)"a message");
}

typedef struct pending_call {
    sem_t called;
    _Atomic int status;
} pending_call;

static void note_status(void *arg, oar_status status)
{
    pending_call *p = arg;

    atomic_store(&p->status, (int)status);
    sem_post(&p->called);
}

/* Rank 0 destroys a group on which it waits for rank 1. */
static oar_status destroy_what_is_pending(oar_group *world, void *arg)
{
    rank_flags *f = arg;
    pending_call p = { .status = -1 };
    oar_store *store;
    oar_group *g;
    oar_work *work;

    sem_init(&p.called, 0, 0);
    CHECK_OK(open_store(&store));
    CHECK_OK(join(world, store, "doomed", &g));
    if (oar_group_rank(g) == 0) {
        CHECK_OK(oar_barrier(g, NULL, &work));
        CHECK_OK(oar_work_then(work, note_status, &p));
        oar_work_release(work);
        oar_group_destroy(g);
        CHECK(sem_trywait(&p.called) == 0);
        CHECK(atomic_load(&p.status) == OAR_E_ABORTED);
        atomic_store(&f->up[0], 1);
    } else {
        CHECK(await(&f->up[0], 1));
        if (oar_barrier(g, NULL, NULL) == OAR_OK) /* all have called it */
            CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
        CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED,
                         "the group was destroyed"));
        oar_group_destroy(g);
    }
    oar_store_destroy(store);
    return oar_barrier(world, NULL, NULL);
}

static void destroy_aborts_what_is_pending(void **state)
{
    rank_flags *f = make_flags();

    run_on("shm", 2, destroy_what_is_pending, f);
    drop_flags(f);
}

/* ---- fork ---------------------------------------------------------------- */

static oar_status call_in_child(oar_group *g, oar_work *work)
{
    float x = 1;
    oar_span s = oar_span_of(&x, 1, OAR_F32);
    oar_record r = oar_record_init();
    oar_work *made = NULL;
    oar_error e;
    int done = 7;

    CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_barrier(g, NULL, &made), OAR_E_STATE, "forked"));
    CHECK(
        fails_with(oar_broadcast(g, s, 0, NULL, NULL), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_all_reduce(g, s, OAR_SUM, NULL, NULL), OAR_E_STATE,
                     "forked"));
    CHECK(fails_with(oar_send(g, s, 0, 1, NULL, NULL), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_recv(g, s, 0, 1, NULL, NULL), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_group_abort(g, "child"), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_group_fault(g, &e), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_recorder_read(g, 0, 0, &r), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_work_wait(work), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_work_test(work, &done), OAR_E_STATE, "forked"));
    CHECK(fails_with(oar_work_then(work, note_status, &x), OAR_E_STATE,
                     "forked"));
    CHECK(fails_with(oar_work_wait_all(1, &work), OAR_E_STATE, "forked"));
    CHECK(done == 7 && made == NULL);
    oar_work_release(work);
    oar_group_destroy(g);
    return OAR_OK;
}

/* Every rank forks while an operation is pending that only ends afterwards. */
static oar_status fork_in_flight(oar_group *g, void *arg)
{
    rank_flags *f = arg;
    float x = 1;
    oar_work *work;
    pid_t child;
    int how;

    if (oar_group_rank(g) != 0)
        CHECK(await(&f->up[0], 1));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, &work));
    if ((child = fork()) == 0)
        _exit(call_in_child(g, work) != OAR_OK);
    CHECK(waitpid(child, &how, 0) == child);
    CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    atomic_store(&f->up[0], 1);
    CHECK_OK(oar_work_wait(work));
    CHECK(x == (float)oar_group_size(g));
    oar_work_release(work);
    return oar_barrier(g, NULL, NULL);
}

static void a_child_has_no_groups_and_disturbs_no_rank(void **state)
{
    rank_flags *f = make_flags();

    run_on("shm", 1, fork_in_flight, f);
    memset(f, 0, sizeof *f);
    run_on("shm", 3, fork_in_flight, f);
    drop_flags(f);
}

/* ---- sim ----------------------------------------------------------------- */

static oar_status fail_on_one(oar_group *g, void *arg)
{
    if (oar_group_rank(g) == 2)
        return oari_fail(OAR_E_DATA, "rank two is not amused");
    CHECK(
        fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED, "a rank failed"));
    return arg != NULL ? oari_fail(OAR_E_ABORTED, "only heard of it") : OAR_OK;
}

static oar_status fail_wordlessly(oar_group *g, void *arg)
{
    oar_clear_error();
    return oar_group_rank(g) == 1 ? OAR_E_CLOSED : OAR_OK;
}

static void sim_run_returns_the_failure_of_the_rank_that_failed(void **state)
{
    assert_fails_with(oar_sim_run(3, fail_on_one, NULL), OAR_E_DATA,
                      "rank two is not amused");
    assert_fails_with(oar_sim_run(3, fail_on_one, (void *)"louder"), OAR_E_DATA,
                      "rank two is not amused");
    assert_fails_with(oar_sim_run(3, fail_wordlessly, NULL), OAR_E_CLOSED,
                      "rank 1 returned OAR_E_CLOSED");
}

static oar_status know_oneself(oar_group *g, void *arg)
{
    rank_flags *f = arg;

    CHECK(oar_group_size(g) == 5);
    CHECK(strcmp(oar_group_backend(g), "sim") == 0);
    CHECK(strcmp(oar_group_name(g), "five") == 0);
    atomic_fetch_add(&f->up[oar_group_rank(g)], 1);
    return OAR_OK;
}

static void sim_run_gives_every_rank_its_number(void **state)
{
    oar_group_opts o = OPTIONS(.name = "five");
    rank_flags *f = make_flags();

    assert_int_equal(oar_sim_run_with(5, &o, know_oneself, f), OAR_OK);
    for (int r = 0; r < 5; r++)
        assert_int_equal(atomic_load(&f->up[r]), 1);
    drop_flags(f);
}

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static oar_status count_files(oar_group *g, void *arg)
{
    if (oar_group_rank(g) == 0)
        *(int *)arg = open_files();
    return oar_barrier(g, NULL, NULL);
}

/* Also those for which the recorder file has no room. */
static void a_rank_as_a_thread_takes_one_descriptor(void **state)
{
    enum { RANKS = 80, FOR_ALL = 2 };
    int before = open_files(), during = 0;

    assert_int_equal(oar_sim_run(RANKS, count_files, &during), OAR_OK);
    assert_in_range(during, before + RANKS, before + RANKS + FOR_ALL);
    assert_in_range(open_files(), before, before + FOR_ALL);
}

static void sim_run_refuses_nonsense(void **state)
{
    assert_fails_with(oar_sim_run(0, know_oneself, NULL), OAR_E_WORLD, "of 0");
    assert_fails_with(oar_sim_run(1025, know_oneself, NULL), OAR_E_WORLD,
                      "1025");
    assert_fails_with(oar_sim_run(1, NULL, NULL), OAR_E_ARG, "function");
}

/* A rank that is slow to touch another's buffer finds the gate shut: by then
 * the buffer may be gone. */
static rank_flags *slow_flags;

static void hold_back(const oari_exec *x)
{
    oari_step_kind kind = x->plan->step[x->at].kind;

    if (x->rank == 1 && (kind == OARI_COPY || kind == OARI_REDUCE))
        await(&slow_flags->up[0], 1);
}

static oar_status give_up_and_unmap(oar_group *g, void *arg)
{
    size_t bytes = 1 << 20, count = bytes / sizeof(float);
    int mine = oar_group_rank(g) == 0, broadcast = arg != NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    oar_span s = oar_span_of(memory, count, OAR_F32);
    oar_call_opts o = oar_call_opts_init();
    oar_status status;

    o.timeout_ms = mine ? 50 : 0;
    status = broadcast ? oar_broadcast(g, s, 0, &o, NULL)
                       : oar_all_reduce(g, s, OAR_SUM, &o, NULL);
    CHECK(status == OAR_E_TIMEOUT);
    munmap(memory, bytes);
    if (mine)
        atomic_store(&slow_flags->up[0], 1);
    return OAR_OK;
}

static void in_sim_a_buffer_may_go_once_its_call_has_failed(void **state)
{
    slow_flags = make_flags();
    oari_exec_hook = hold_back;
    run_on("sim", 2, give_up_and_unmap, NULL);
    atomic_store(&slow_flags->up[0], 0);
    run_on("sim", 2, give_up_and_unmap, (void *)"broadcast");
    oari_exec_hook = NULL;
    drop_flags(slow_flags);
}

/* ---- without memory ------------------------------------------------------ */

static oar_status create_one(void *backend)
{
    oar_group_opts o = OPTIONS(.backend = backend);
    oar_group *g = NULL;
    oar_status status = oar_group_create(NULL, 0, 1, &o, &g);

    oar_group_destroy(g);
    return status;
}

static oar_status do_nothing(oar_group *g, void *arg)
{
    return OAR_OK;
}

static oar_status do_something(oar_group *g, void *arg)
{
    float x[17] = { 1 };
    oar_status status = oar_barrier(g, NULL, NULL);

    if (status == OAR_OK)
        status =
            oar_all_reduce(g, oar_span_of(x, 17, OAR_F32), OAR_SUM, NULL, NULL);
    return status;
}

static oar_status run_nothing(void *arg)
{
    return oar_sim_run(3, do_nothing, NULL);
}

static oar_status run_something(void *arg)
{
    return oar_sim_run(3, do_something, NULL);
}

static void without_memory_no_group_is_made_and_nothing_is_left(void **state)
{
    fail_each_allocation(create_one, (void *)"self");
    fail_each_allocation(create_one, (void *)"native");
    fail_each_allocation(run_nothing, NULL);
}

static void
without_memory_a_collective_ends_the_group_on_all_ranks(void **state)
{
    fail_each_allocation(run_something, NULL);
    setenv("OARSONG_ALGO", "exchange", 1);
    fail_each_allocation(run_something, NULL);
    unsetenv("OARSONG_ALGO");
}

static void without_memory_for_a_handle_the_group_goes_on(void **state)
{
    oar_work *work = NULL;
    oar_group *g;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    oar_memory_fail_after(1);
    assert_int_equal(oar_barrier(g, NULL, &work), OAR_E_NOMEM);
    assert_null(work);
    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    oar_group_destroy(g);
}

/* ---- what ranks agree on ------------------------------------------------- */

/* The stage of a group called "again", as rank 0 wants it or as others hear. */
static size_t stage_of(oar_store *store, int rank, size_t wanted)
{
    oar_group_opts given = oar_group_opts_init(), o;
    char *algorithm = NULL;
    oari_rules rules;

    given.stage_bytes = wanted;
    given.timeout_ms = PATIENCE_MS;
    assert_int_equal(oari_group_settings(&given, &o), OAR_OK);
    assert_int_equal(oari_settings_agree(store, "again", rank, 2, PATIENCE_MS,
                                         &o, &algorithm, &rules),
                     OAR_OK);
    oari_free(algorithm);
    return o.stage_bytes;
}

/* Rank 0 makes two groups of one name before the others make the first. */
static void
settings_are_those_of_the_group_and_not_of_its_namesake(void **state)
{
    oar_store *store;

    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    assert_int_equal(stage_of(store, 0, 4096), 4096);
    assert_int_equal(stage_of(store, 1, 0), 4096);
    assert_int_equal(stage_of(store, 0, 8192), 8192);
    assert_int_equal(stage_of(store, 2, 0), 4096);
    assert_int_equal(stage_of(store, 2, 0), 8192);
    assert_int_equal(stage_of(store, 1, 0), 8192);
    oar_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_or_size_that_cannot_be_is_refused),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(self_is_for_one_rank),
        cmocka_unit_test(settings_of_the_environment_are_checked_by_name),
        cmocka_unit_test(a_group_of_one_does_everything_alone),
        cmocka_unit_test(nothing_is_known_of_no_group),
        cmocka_unit_test(a_group_is_called_world_unless_it_has_a_name),
        cmocka_unit_test(groups_of_other_names_live_side_by_side),
        cmocka_unit_test(a_group_has_the_secret_that_it_is_given),
        cmocka_unit_test(a_name_can_be_used_again_after_destroy),
        cmocka_unit_test(a_rank_that_does_not_join_is_named),
        cmocka_unit_test(ranks_that_differ_about_the_size_get_an_error),
        cmocka_unit_test(a_name_too_long_for_the_store_is_refused),
        cmocka_unit_test(without_memory_a_rendezvous_leaves_nothing_behind),
        cmocka_unit_test_setup_teardown(without_a_launcher_it_is_a_group_of_one,
                                        forget_env, forget_env),
        cmocka_unit_test_setup_teardown(every_launchers_spelling_is_understood,
                                        forget_env, forget_env),
        cmocka_unit_test_setup_teardown(our_own_names_count_before_others,
                                        forget_env, forget_env),
        cmocka_unit_test_setup_teardown(nonsense_in_the_environment_is_named,
                                        forget_env, forget_env),
        cmocka_unit_test_setup_teardown(
            ranks_without_a_rendezvous_address_are_refused_with_advice,
            forget_env, forget_env),
        cmocka_unit_test(ranks_that_disagree_are_both_named_to_all),
        cmocka_unit_test(
            a_timeout_names_the_missing_rank_and_its_last_operation),
        cmocka_unit_test(a_rank_that_has_called_nothing_is_described_so),
        cmocka_unit_test(the_timeout_of_the_group_is_the_default),
        cmocka_unit_test(
            an_abort_ends_a_waiting_call_and_the_first_reason_stays),
        cmocka_unit_test(an_abort_needs_no_reason),
        cmocka_unit_test(a_rank_that_returns_early_has_left_the_group),
        cmocka_unit_test(destroy_aborts_what_is_pending),
        cmocka_unit_test(a_child_has_no_groups_and_disturbs_no_rank),
        cmocka_unit_test(sim_run_returns_the_failure_of_the_rank_that_failed),
        cmocka_unit_test(sim_run_gives_every_rank_its_number),
        cmocka_unit_test(a_rank_as_a_thread_takes_one_descriptor),
        cmocka_unit_test(sim_run_refuses_nonsense),
        cmocka_unit_test(in_sim_a_buffer_may_go_once_its_call_has_failed),
        cmocka_unit_test(without_memory_no_group_is_made_and_nothing_is_left),
        cmocka_unit_test(
            without_memory_a_collective_ends_the_group_on_all_ranks),
        cmocka_unit_test(without_memory_for_a_handle_the_group_goes_on),
        cmocka_unit_test(
            settings_are_those_of_the_group_and_not_of_its_namesake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
