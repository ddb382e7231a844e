/* SPDX-License-Identifier: Apache-2.0 */
/* What a load costs: each rank reads the bytes that it wants, and little more,
 * from a generation of any other number of ranks; and a save or a load takes
 * little memory besides the state. */
#include "support/ranks.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"

enum { TENSORS = 3, LONG = 509, WIDE = 512, BLOCK = 64 << 10, MOST = 8 };

/* ---- from N ranks to M --------------------------------------------------- */

typedef enum cut_way { ROWS, COLUMNS, FLAT } cut_way;

/* One generation, and what the ranks that load it report. */
typedef struct moved {
    cut_way how;
    int64_t step;
    int from;
    atomic_ullong wanted, read;
} moved;

/* The first of this rank's rows, columns or elements, of `all`. */
static int64_t first_of(int64_t all, int rank, int ranks)
{
    return all / ranks * rank + (rank < all % ranks ? rank : all % ranks);
}

/* How many parts of a tensor that `from` ranks have cut are met by this rank's
 * part: each is a range of bytes of its own. */
static unsigned met_parts(cut_way how, int from, int rank, int ranks)
{
    int64_t all = how == FLAT ? LONG * WIDE : how == ROWS ? LONG : WIDE;
    int64_t begin = first_of(all, rank, ranks);
    int64_t end = first_of(all, rank + 1, ranks);
    unsigned met = 0;

    for (int r = 0; r < from; r++)
        met +=
            first_of(all, r, from) < end && begin < first_of(all, r + 1, from);
    return met;
}

static oar_status make_state(oar_group *g, cut_way how, oar_state **state)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_shape whole = OAR_SHAPE(LONG, WIDE), shape;
    oar_place place = { .size = sizeof place, .whole = whole };
    char name[16];

    CHECK_OK(oar_state_create(state));
    if (how == FLAT) {
        place.flat = 1;
        place.first = first_of(LONG * WIDE, rank, ranks);
        shape = OAR_SHAPE(first_of(LONG * WIDE, rank + 1, ranks) - place.first);
    } else {
        CHECK_OK(oar_place_of_rank(whole, how == COLUMNS, rank, ranks, &place,
                                   &shape));
    }
    for (int i = 0; i < TENSORS; i++) {
        oar_tensor *part = oar_full(NULL, OAR_F32, shape, 1);

        snprintf(name, sizeof name, "t.%d", i);
        CHECK(part != NULL);
        CHECK_OK(oar_state_add_tensor(*state, "model", name, part, &place));
        oar_tensor_release(part); /* the state has it */
    }
    return OAR_OK;
}

static oar_status save_parts(oar_group *g, void *arg)
{
    moved *m = arg;
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .no_sync = 1,
                                 .block_bytes = BLOCK };
    oar_checkpoint *runs;
    oar_state *state;

    CHECK_OK(make_state(g, m->how, &state));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, m->step, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static oar_status load_parts(oar_group *g, void *arg)
{
    moved *m = arg;
    oar_checkpoint_opts opts = { .size = sizeof opts, .read_only = 1 };
    oar_checkpoint_stats stats = { .size = sizeof stats };
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    unsigned ranges = TENSORS * met_parts(m->how, m->from, rank, ranks);
    oar_checkpoint *runs;
    oar_state *state;

    CHECK_OK(make_state(g, m->how, &state));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_load(runs, state, m->step, NULL));
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.bytes >= stats.wanted_bytes);
    if (m->how == COLUMNS)
        CHECK(stats.bytes <= 8 * stats.wanted_bytes + 2 * BLOCK * ranges);
    else
        CHECK((double)stats.bytes <=
              1.02 * (double)stats.wanted_bytes + 2.0 * BLOCK * ranges);
    atomic_fetch_add(&m->wanted, stats.wanted_bytes);
    atomic_fetch_add(&m->read, stats.bytes);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

/* Gives the bytes that this process has read from files, by the system's
 * count. */
static int read_so_far(unsigned long long *bytes)
{
    FILE *f = fopen("/proc/self/io", "r");
    int found = f != NULL && fscanf(f, "rchar: %llu", bytes) == 1;

    if (f != NULL)
        fclose(f);
    return found;
}

/* The system's count has index and sizes of files besides the blocks. */
static void load_by(int ranks, moved *m)
{
    unsigned long long before = 0, after = 0, read;
    int counted = read_so_far(&before);

    atomic_store(&m->read, 0);
    atomic_store(&m->wanted, 0);
    assert_int_equal(ranks_run("sim", ranks, NULL, load_parts, m), OAR_OK);
    read = atomic_load(&m->read);
    assert_int_equal(atomic_load(&m->wanted),
                     (uint64_t)TENSORS * LONG * WIDE * sizeof(float));
    if (!counted || !read_so_far(&after))
        return;
    assert_in_range(after - before, read, read + (256 << 10));
}

static void bytes_are_moved(cut_way how)
{
    double most = 0;

    for (int n = 1; n <= MOST; n++) {
        moved m = { .how = how, .step = 10 * how + n, .from = n };

        assert_int_equal(ranks_run("sim", n, NULL, save_parts, &m), OAR_OK);
        for (int k = 1; k <= MOST; k++) {
            double times;

            load_by(k, &m);
            times =
                (double)atomic_load(&m.read) / (double)atomic_load(&m.wanted);
            most = times > most ? times : most;
        }
    }
    print_message("at most %.2f times the wanted bytes are read\n", most);
}

static void rows_are_read_once(void **state)
{
    (void)state;
    bytes_are_moved(ROWS);
}

static void columns_are_read_with_what_lies_between(void **state)
{
    (void)state;
    bytes_are_moved(COLUMNS);
}

static void flat_ranges_are_read_once(void **state)
{
    (void)state;
    bytes_are_moved(FLAT);
}

/* ---- memory -------------------------------------------------------------- */

enum { LARGE_BLOCK = 1 << 20, THREADS = 3, LARGE_STEP = 1000 };
enum { LARGE = 24 << 20 }; /* elements */
enum {
    SLACK_KIB = 4 << 10
}; /* index, stacks, and what the system counts late */

/* Gives a line of /proc/self/status, in KiB. */
static long status_kib(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[200];
    long kib = -1;

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atol(line + strlen(key));
    if (f != NULL)
        fclose(f);
    return kib;
}

/* Makes the highest resident size start again from the present one. */
static int forget_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    int done = fd >= 0 && write(fd, "5", 1) == 1;

    if (fd >= 0)
        close(fd);
    return done;
}

/* Saves, or loads and gives by how many KiB that made the process grow at most:
 * below 0 where the system does not say. */
static oar_status move_large(int loads, long *kib)
{
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .block_bytes = LARGE_BLOCK,
                                 .threads = THREADS,
                                 .no_sync = 1 };
    oar_tensor *t = oar_full(NULL, OAR_F32, OAR_SHAPE(LARGE), 1);
    oar_checkpoint *runs;
    oar_state *state;

    CHECK(t != NULL);
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_tensor(state, "model", "t", t, NULL));
    CHECK_OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    malloc_trim(0); /* what earlier tests have freed hides nothing */
    *kib = forget_peak() ? status_kib("VmRSS:") : -1;
    CHECK_OK(loads ? oar_checkpoint_load(runs, state, LARGE_STEP, NULL)
                   : oar_checkpoint_save(runs, state, LARGE_STEP, NULL));
    if (*kib >= 0)
        *kib = status_kib("VmHWM:") - *kib;
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_tensor_release(t);
    return OAR_OK;
}

/* The same in a process of its own. */
static long growth_of(int loads)
{
    int ends[2], status;
    long kib = -1;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (move_large(loads, &kib) != OAR_OK)
            _exit(1);
        _exit(write(ends[1], &kib, sizeof kib) != sizeof kib);
    }
    close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(read(ends[0], &kib, sizeof kib), sizeof kib);
    close(ends[0]);
    return kib;
}

static void two_blocks_for_each_thread_are_enough(void **state)
{
    const long allowed = (2L * THREADS * LARGE_BLOCK >> 10) + SLACK_KIB;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they keep memory of their own beside every byte */
#endif
    for (int loads = 0; loads <= 1; loads++) {
        long kib = growth_of(loads);

        if (kib < 0)
            skip();
        print_message("a %s of %d MiB takes %ld KiB; %ld are allowed\n",
                      loads ? "load" : "save",
                      (int)(LARGE * sizeof(float) >> 20), kib, allowed);
        assert_in_range(kib, 0, allowed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_read_once),
        cmocka_unit_test(columns_are_read_with_what_lies_between),
        cmocka_unit_test(flat_ranges_are_read_once),
        cmocka_unit_test(two_blocks_for_each_thread_are_enough),
    };

    return cmocka_run_group_tests_name("checkpoint_bytes", tests,
                                       runs_folder_make, runs_folder_remove);
}
