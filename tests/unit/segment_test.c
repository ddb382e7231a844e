/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers can map: what segment.h and shared.h promise. A second
 * mapping of the same memfd stands for the peer. */
#include "support/ranks.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/shared.h>

#include "device/device.h"
#include "device/segment.h"
#include "support/leak_check.h"
#include "support/last_error.h"

static size_t page;

static unsigned char *take(size_t bytes)
{
    void *memory = NULL;

    assert_int_equal(oar_shared_alloc(bytes, &memory), OAR_OK);
    assert_int_equal((uintptr_t)memory % page, 0);
    return memory;
}

static int all_are(const unsigned char *memory, size_t bytes, int value)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != value)
            return 0;
    return 1;
}

/* Memory as a peer sees it. */
typedef struct view {
    unsigned char *base;
    size_t bytes;
    unsigned char *at; /* the memory that was asked for */
} view;

static view look_from_outside(const void *memory)
{
    oari_segment_location place;
    view v;
    void *base;
    int fd;

    assert_int_equal(oari_segment_find(memory, 1, &place), 1);
    assert_int_equal(oari_segment_export(place.segment, &fd, &v.bytes), OAR_OK);
    assert_int_equal(oari_segment_map(fd, v.bytes, 1, &base), OAR_OK);
    close(fd);
    v.base = base;
    v.at = v.base + place.offset;
    return v;
}

static void look_away(view v)
{
    oari_segment_unmap(v.base, v.bytes);
}

/* Runs fn in a child of this process and asserts that it is happy. */
static void in_child(oar_status (*fn)(void *arg), void *arg)
{
    pid_t pid = fork();
    int how;

    if (pid == 0)
        _exit((int)fn(arg));
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

/* ---- allocating ---------------------------------------------------------- */

static void memory_is_zeroed_also_when_it_is_used_again(void **state)
{
    static const size_t sizes[] = { 0, 1, 4096, 4097, 100000 };

    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 5; i++) {
            unsigned char *a = take(sizes[i]), *b = take(sizes[i]);
            assert_ptr_not_equal(a, b);
            assert_true(all_are(a, sizes[i], 0));
            assert_true(all_are(b, sizes[i], 0));
            memset(a, 0xa5, sizes[i]);
            assert_true(all_are(b, sizes[i], 0));
            memset(b, 0x5a, sizes[i]);
            oar_shared_free(a);
            assert_true(all_are(b, sizes[i], 0x5a));
            oar_shared_free(b);
        }
}

static void what_is_given_back_is_given_out_again(void **state)
{
    unsigned char *first = take(3 * page), *second;
    uint32_t segments = oari_segment_count();

    for (int i = 0; i < 100; i++) {
        oar_shared_free(first);
        second = take(3 * page);
        assert_ptr_equal(first, second);
    }
    assert_int_equal(oari_segment_count(), segments);
    oar_shared_free(first);
}

static void growth_is_a_new_segment_and_moves_nothing(void **state)
{
    enum { BIG = 40 << 20, BLOCKS = 3 };
    unsigned char *block[BLOCKS];
    uint32_t before = oari_segment_count();
    oari_segment_location place[BLOCKS], again;

    for (int i = 0; i < BLOCKS; i++) {
        block[i] = take(BIG);
        memset(block[i], i + 1, page);
        memset(block[i] + BIG - page, i + 1, page);
        assert_int_equal(oari_segment_find(block[i], BIG, &place[i]), 1);
    }
    assert_true(oari_segment_count() >= before + BLOCKS - 1);
    for (int i = 0; i < BLOCKS; i++) {
        assert_true(all_are(block[i], page, i + 1));
        assert_true(all_are(block[i] + BIG - page, page, i + 1));
        assert_int_equal(oari_segment_find(block[i], BIG, &again), 1);
        assert_int_equal(again.segment, place[i].segment);
        assert_int_equal(again.offset, place[i].offset);
        oar_shared_free(block[i]);
    }
}

static void one_block_may_be_larger_than_a_segment_usually_is(void **state)
{
    size_t bytes = ((size_t)80 << 20) + 1;
    unsigned char *block = take(bytes);
    oari_segment_location place;

    block[0] = block[bytes - 1] = 7;
    assert_int_equal(oari_segment_find(block, bytes, &place), 1);
    oar_shared_free(block);
}

/* The first in this process, so that the segment is made for it. */
static void nothing_stays_live_once_all_is_freed(void **state)
{
    leak_check before = leak_check_begin();
    void *memory;

    assert_int_equal(oari_segment_count(), 0);
    assert_int_equal(oar_shared_alloc(page, &memory), OAR_OK);
    oar_shared_free(memory);
    assert_int_equal(leak_check_begin().live, before.live);
}

static void what_no_machine_has_is_out_of_memory(void **state)
{
    leak_check before = leak_check_begin();
    void *memory = &before;

    assert_fails_with(oar_shared_alloc(SIZE_MAX, &memory), OAR_E_NOMEM,
                      "bytes");
    assert_fails_with(oar_shared_alloc((size_t)1 << 60, &memory), OAR_E_NOMEM,
                      "bytes");
    assert_fails_with(oar_shared_alloc(1, NULL), OAR_E_ARG, "nowhere");
    assert_ptr_equal(memory, &before);
    leak_check_end(&before);
}

/* A file of that size can be had; room for it in the address space cannot. */
static void a_mapping_without_room_is_out_of_memory(void **state)
{
    leak_check before = leak_check_begin();
    void *base = NULL;
    int fd = -1;

    assert_fails_with(oari_segment_make("test", (size_t)1 << 58, &fd, &base),
                      OAR_E_NOMEM, "map a segment");
    assert_int_equal(fd, -1);
    leak_check_end(&before);
}

static void freeing_what_is_not_ours_does_nothing(void **state)
{
    unsigned char *block = take(3 * page);
    int local = 7;

    block[2 * page] = 9;
    oar_shared_free(NULL);
    oar_shared_free(&local);
    oar_shared_free(block + page); /* not where an allocation begins */
    assert_int_equal(local, 7);
    assert_int_equal(block[2 * page], 9);
    oar_shared_free(block);
}

static void device_memory_is_shared_or_private_as_asked(void **state)
{
    oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };
    void *shared = NULL, *private = NULL;

    assert_int_equal(oari_device_alloc(cpu, OARI_SHARED, 100, &shared), OAR_OK);
    assert_int_equal(oari_device_alloc(cpu, OARI_PRIVATE, 100, &private),
                     OAR_OK);
    assert_int_equal((uintptr_t) private % 64, 0);
    assert_true(oar_shared_reachable(shared, 100));
    assert_false(oar_shared_reachable(private, 100));
    oari_device_free(cpu, OARI_SHARED, shared);
    oari_device_free(cpu, OARI_PRIVATE, private);
    assert_int_equal(oari_device_alloc(gpu, OARI_SHARED, 100, &shared),
                     OAR_E_UNSUPPORTED);
}

/* ---- finding ------------------------------------------------------------- */

static void find_wants_all_bytes_in_one_segment(void **state)
{
    unsigned char *block = take(2 * page);
    oari_segment_location place, inside;
    size_t bytes;
    int fd, local;

    assert_int_equal(oari_segment_find(block, 2 * page, &place), 1);
    assert_int_equal(oari_segment_find(block + 5, 3, &inside), 1);
    assert_int_equal(inside.segment, place.segment);
    assert_int_equal(inside.offset, place.offset + 5);
    assert_int_equal(oari_segment_export(place.segment, &fd, &bytes), OAR_OK);
    close(fd);
    assert_int_equal(oari_segment_find(block, bytes + 1, &inside), 0);
    assert_int_equal(oari_segment_find(block, SIZE_MAX, &inside), 0);
    assert_int_equal(oari_segment_find(block, 0, &inside), 0);
    assert_int_equal(oari_segment_find(&local, sizeof local, &inside), 0);
    assert_int_equal(oari_segment_find(NULL, 1, &inside), 0);
    assert_true(oar_shared_reachable(block, 2 * page));
    assert_false(oar_shared_reachable(&local, sizeof local));
    assert_int_equal(oari_segment_export(oari_segment_count(), &fd, &bytes),
                     OAR_E_INTERNAL);
    oar_shared_free(block);
}

/* ---- seen from outside --------------------------------------------------- */

static void a_peer_sees_what_is_written_and_writes_what_is_seen(void **state)
{
    unsigned char *block = take(3 * page);
    view v = look_from_outside(block);

    memset(block, 1, 3 * page);
    assert_true(all_are(v.at, 3 * page, 1));
    memset(v.at, 2, 3 * page);
    assert_true(all_are(block, 3 * page, 2));
    oar_shared_free(block);
    assert_true(all_are(v.at, 3 * page, 0)); /* given back for good */
    look_away(v);
}

static void a_mapping_for_reading_cannot_be_written(void **state)
{
    unsigned char *block = take(page);
    oari_segment_location place;
    void *base;
    size_t bytes;
    int fd, zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    assert_int_equal(oari_segment_find(block, page, &place), 1);
    assert_int_equal(oari_segment_export(place.segment, &fd, &bytes), OAR_OK);
    assert_int_equal(oari_segment_map(fd, bytes, 0, &base), OAR_OK);
    close(fd);
    block[0] = 3;
    assert_int_equal(((unsigned char *)base)[place.offset], 3);
    /* The system refuses to write there on our behalf, too. */
    assert_int_equal(read(zeros, (unsigned char *)base + place.offset, 1), -1);
    close(zeros);
    assert_int_equal(block[0], 3);
    oari_segment_unmap(base, bytes);
    oar_shared_free(block);
}

static int make_memfd(size_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void a_segment_that_lies_about_its_size_is_refused(void **state)
{
    int fd = make_memfd(4 * page, F_SEAL_SHRINK | F_SEAL_GROW);
    void *base = &fd;

    assert_fails_with(oari_segment_map(fd, 5 * page, 1, &base), OAR_E_DATA,
                      "but should have");
    assert_fails_with(oari_segment_map(fd, 3 * page, 1, &base), OAR_E_DATA,
                      "but should have");
    assert_int_equal(oari_segment_map(fd, 0, 1, &base), OAR_E_DATA);
    assert_int_equal(oari_segment_map(fd, SIZE_MAX, 1, &base), OAR_E_DATA);
    assert_ptr_equal(base, &fd);
    assert_int_equal(oari_segment_map(fd, 4 * page, 1, &base), OAR_OK);
    oari_segment_unmap(base, 4 * page);
    close(fd);
}

static void a_segment_that_could_shrink_is_refused(void **state)
{
    int bare = make_memfd(4 * page, 0),
        grow = make_memfd(4 * page, F_SEAL_GROW);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *base;

    assert_int_equal(oari_segment_map(bare, 4 * page, 1, &base), OAR_E_DATA);
    assert_int_equal(oari_segment_map(grow, 4 * page, 1, &base), OAR_E_DATA);
    assert_int_equal(oari_segment_map(file, 4 * page, 0, &base), OAR_E_SYSTEM);
    assert_int_equal(oari_segment_map(-1, 4 * page, 0, &base), OAR_E_SYSTEM);
    close(bare);
    close(grow);
    close(file);
}

static void a_segment_we_made_can_be_mapped_and_never_resized(void **state)
{
    leak_check before = leak_check_begin();
    void *mine, *theirs;
    int fd;

    assert_int_equal(oari_segment_make("test", 3 * page, &fd, &mine), OAR_OK);
    assert_int_not_equal(ftruncate(fd, (off_t)page), 0);
    assert_int_not_equal(ftruncate(fd, (off_t)(9 * page)), 0);
    assert_int_equal(oari_segment_map(fd, 3 * page, 1, &theirs), OAR_OK);
    ((char *)mine)[0] = 'x';
    assert_int_equal(((char *)theirs)[0], 'x');
    oari_segment_unmap(mine, 3 * page);
    oari_segment_unmap(theirs, 3 * page);
    oari_segment_unmap(NULL, 0);
    close(fd);
    leak_check_end(&before);
}

/* ---- taking away --------------------------------------------------------- */

static void detached_pages_keep_their_content_and_are_out_of_reach(void **state)
{
    unsigned char *block = take(5 * page);
    view v = look_from_outside(block);

    memset(block, 1, 5 * page);
    assert_int_equal(oari_segment_detach(block + page + 10, page), OAR_OK);
    assert_true(all_are(block, 5 * page, 1));
    memset(v.at, 2, 5 * page); /* a peer that wakes up late */
    assert_true(all_are(block, page, 2));
    assert_true(all_are(block + page, 2 * page, 1));
    assert_true(all_are(block + 3 * page, 2 * page, 2));
    memset(block, 3, 5 * page);
    assert_true(all_are(v.at + page, 2 * page, 2));
    assert_true(oar_shared_reachable(block, page));
    assert_false(oar_shared_reachable(block, page + 1));
    assert_false(oar_shared_reachable(block + 2 * page, 1));
    assert_false(oar_shared_reachable(block, 5 * page));
    assert_true(oar_shared_reachable(block + 3 * page, 2 * page));
    assert_int_equal(oari_segment_detach(block, 5 * page), OAR_OK);
    assert_true(all_are(block, 5 * page, 3));
    assert_false(oar_shared_reachable(block + 3 * page, 1));
    oar_shared_free(block);
    look_away(v);
}

static void neighbours_of_detached_memory_stay_shared(void **state)
{
    unsigned char *before = take(page), *block = take(page),
                  *after = take(page);
    view left = look_from_outside(before), right = look_from_outside(after);

    assert_int_equal(oari_segment_detach(block, page), OAR_OK);
    assert_true(oar_shared_reachable(before, page));
    assert_true(oar_shared_reachable(after, page));
    left.at[page - 1] = right.at[0] = 5;
    assert_int_equal(before[page - 1], 5);
    assert_int_equal(after[0], 5);
    oar_shared_free(before);
    oar_shared_free(block);
    oar_shared_free(after);
    look_away(left);
    look_away(right);
}

static void detached_pages_are_never_given_out_again(void **state)
{
    enum { MORE = 50 };
    unsigned char *block = take(5 * page), *more[MORE];
    unsigned char *dead = block + page, *end = block + 3 * page;
    int again = 0;

    memset(block, 9, 5 * page);
    assert_int_equal(oari_segment_detach(dead, 2 * page), OAR_OK);
    oar_shared_free(block);
    assert_false(oar_shared_reachable(dead, 1));
    for (int i = 0; i < MORE; i++) {
        more[i] = take(page);
        assert_true(more[i] < dead || more[i] >= end);
        again |= more[i] == block;
        assert_true(oar_shared_reachable(more[i], page));
        assert_true(all_are(more[i], page, 0));
    }
    assert_true(again); /* what was not detached is */
    for (int i = 0; i < MORE; i++)
        oar_shared_free(more[i]);
}

static void detaching_what_is_private_does_nothing(void **state)
{
    unsigned char *block = take(page);
    int local = 3;

    assert_int_equal(oari_segment_detach(&local, sizeof local), OAR_OK);
    assert_int_equal(oari_segment_detach(block, 0), OAR_OK);
    assert_int_equal(oari_segment_detach(NULL, 5), OAR_OK);
    assert_true(oar_shared_reachable(block, page));
    assert_int_equal(oari_segment_detach(block, page), OAR_OK);
    assert_int_equal(oari_segment_detach(block, page), OAR_OK);
    oar_shared_free(block);
}

/* ---- fork ---------------------------------------------------------------- */

static oar_status begin_afresh(void *arg)
{
    unsigned char *inherited = arg;
    void *memory;

    uint64_t before = leak_check_begin().live;

    CHECK(oari_segment_count() == 0);
    CHECK(!oar_shared_reachable(inherited, 1));
    oar_shared_free(inherited); /* nothing to us */
    CHECK_OK(oar_shared_alloc(3 * page, &memory));
    CHECK(oari_segment_count() == 1);
    CHECK(leak_check_begin().live == before); /* the parent's tables are gone */
    CHECK(all_are(memory, 3 * page, 0));
    memset(memory, 4, 3 * page);
    CHECK(oar_shared_reachable(memory, 3 * page));
    oar_shared_free(memory);
    return OAR_OK;
}

static void a_child_has_no_segments_and_makes_its_own(void **state)
{
    unsigned char *block = take(page);

    memset(block, 6, page);
    in_child(begin_afresh, block);
    assert_true(all_are(block, page, 6));
    assert_true(oar_shared_reachable(block, page));
    oar_shared_free(block);
}

static void end_well(int sig)
{
    _exit(0);
}

static oar_status touch_it(void *arg)
{
    volatile unsigned char *inherited = arg;

    signal(SIGSEGV, end_well);
    CHECK(*inherited == 77 && "a child can touch its parent's memory");
    return OAR_E_INTERNAL;
}

static void a_child_that_touches_shared_memory_faults(void **state)
{
    unsigned char *block = take(page);

    in_child(touch_it, block);
    oar_shared_free(block);
}

static oar_status change_it(void *arg)
{
    unsigned char *inherited = arg;

    CHECK(all_are(inherited, 3 * page, 5));
    memset(inherited + page, 9, page);
    CHECK(all_are(inherited, page, 5) && inherited[page] == 9);
    CHECK(!oar_shared_reachable(inherited, 1));
    oar_shared_free(inherited); /* nothing to us */
    return OAR_OK;
}

static void what_a_child_writes_to_its_copy_stays_with_it(void **state)
{
    unsigned char *block = take(3 * page);

    memset(block, 5, 3 * page);
    oar_shared_copy_on_fork(1);
    in_child(change_it, block);
    assert_true(all_are(block, 3 * page, 5));
    assert_int_equal(oari_segment_detach(block, page), OAR_OK);
    in_child(change_it, block); /* its first page is private */
    assert_true(all_are(block, 3 * page, 5));
    oar_shared_copy_on_fork(0);
    in_child(touch_it, block + page);
    oar_shared_free(block);
}

/* ---- several threads ----------------------------------------------------- */

enum { THREADS = 3, TURNS = 300 };

static void *churn(void *arg)
{
    unsigned seed = *(unsigned *)arg * 7919;
    int mark = (int)*(unsigned *)arg + 1;

    for (int i = 0; i < TURNS; i++) {
        size_t bytes = (size_t)(seed = seed * 1103515245 + 12345) % (5 * page);
        void *memory;
        if (oar_shared_alloc(bytes, &memory) != OAR_OK ||
            !all_are(memory, bytes, 0))
            return arg;
        memset(memory, mark, bytes);
        if (!oar_shared_reachable(memory, bytes ? bytes : 1))
            return arg;
        if (i % 50 == 0 && oari_segment_detach(memory, bytes) != OAR_OK)
            return arg;
        if (!all_are(memory, bytes, mark))
            return arg;
        oar_shared_free(memory);
    }
    return NULL;
}

static void threads_allocate_free_and_detach_side_by_side(void **state)
{
    pthread_t thread[THREADS];
    unsigned number[THREADS];
    void *failed;

    for (unsigned i = 0; i < THREADS; i++) {
        number[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, churn, &number[i]),
                         0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
}

/* ---- without memory ------------------------------------------------------ */

static oar_status alloc_once(void *arg)
{
    void *memory = NULL;
    oar_status status = oari_segment_alloc(3 * page, &memory);

    oari_segment_free(memory);
    return status;
}

static oar_status make_once(void *arg)
{
    void *base;
    int fd;
    oar_status status = oari_segment_make("test", page, &fd, &base);

    if (status == OAR_OK) {
        oari_segment_unmap(base, page);
        close(fd);
    }
    return status;
}

static oar_status map_once(void *arg)
{
    void *base;
    oar_status status = oari_segment_map(*(int *)arg, page, 1, &base);

    if (status == OAR_OK)
        oari_segment_unmap(base, page);
    return status;
}

/* In a child, where the first allocation has to make the first segment. The
 * tables it inherited go with the first try. */
static oar_status fail_each_of_the_first(void *arg)
{
    oar_memory_fail_after(2);
    CHECK(alloc_once(NULL) == OAR_E_NOMEM);
    fail_each_allocation(alloc_once, NULL);
    return OAR_OK;
}

static void without_memory_nothing_is_left_behind(void **state)
{
    int fd = make_memfd(page, F_SEAL_SHRINK);

    in_child(fail_each_of_the_first, NULL);
    fail_each_allocation(alloc_once, NULL);
    fail_each_allocation(make_once, NULL);
    fail_each_allocation(map_once, &fd);
    close(fd);
}

/* ---- segments that are spent --------------------------------------------- */

/* A large buffer has a segment of its own: when it was given up and is given
 * back, nothing of that is ever shared again. */
static void a_segment_that_was_given_up_keeps_no_descriptor(void **state)
{
    enum { LARGE = 128 << 20, ROUNDS = 3 };
    leak_check before;

    for (int i = 0; i < ROUNDS; i++) {
        unsigned char *block = take(LARGE);
        oari_segment_location place;
        size_t bytes;
        int fd;

        assert_int_equal(oari_segment_find(block, LARGE, &place), 1);
        assert_int_equal(oari_segment_detach(block, LARGE), OAR_OK);
        oar_shared_free(block);
        if (i == 0) /* what stands for all of them is there now */
            before = leak_check_begin();
        assert_int_equal(oari_segment_export(place.segment, &fd, &bytes),
                         OAR_OK);
        assert_int_equal(bytes, page);
        close(fd);
    }
    leak_check_end(&before);
}

/* ---- a limit on the size of files ---------------------------------------- */

/* Under ulimit -f, in a child: each is a failure that says so. */
static int fails_under_limit(const char *folder)
{
    const struct rlimit limit = { 4096, 4096 };
    oar_group_opts o = oar_group_opts_init();
    static const char large[8192];
    oar_store *store;
    oar_group *g;
    void *memory;

    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        oar_store_create_file(folder, &store) != OAR_OK)
        return 1;
    if (!fails_with(oar_shared_alloc(1 << 20, &memory), OAR_E_SYSTEM,
                    "ulimit -f"))
        return 2;
    if (!fails_with(oar_store_set(store, "large", large, sizeof large),
                    OAR_E_SYSTEM, "ulimit -f"))
        return 3;
    o.backend = "shm";
    o.timeout_ms = 100;
    if (oar_group_create(store, 0, 2, &o, &g) != OAR_E_SYSTEM)
        return 4;
    oar_store_destroy(store);
    return 0;
}

static void a_limit_on_files_is_a_failure_and_no_signal(void **state)
{
    char folder[FOLDER_PATH];
    int ended = -1;
    pid_t pid;

    folder_make(folder);
    if ((pid = fork()) == 0)
        _exit(fails_under_limit(folder));
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stays_live_once_all_is_freed),
        /* first, while there is nothing yet */
        cmocka_unit_test(a_limit_on_files_is_a_failure_and_no_signal),
        cmocka_unit_test(threads_allocate_free_and_detach_side_by_side),
        cmocka_unit_test(memory_is_zeroed_also_when_it_is_used_again),
        cmocka_unit_test(what_is_given_back_is_given_out_again),
        cmocka_unit_test(growth_is_a_new_segment_and_moves_nothing),
        cmocka_unit_test(one_block_may_be_larger_than_a_segment_usually_is),
        cmocka_unit_test(what_no_machine_has_is_out_of_memory),
        cmocka_unit_test(a_mapping_without_room_is_out_of_memory),
        cmocka_unit_test(freeing_what_is_not_ours_does_nothing),
        cmocka_unit_test(device_memory_is_shared_or_private_as_asked),
        cmocka_unit_test(find_wants_all_bytes_in_one_segment),
        cmocka_unit_test(a_peer_sees_what_is_written_and_writes_what_is_seen),
        cmocka_unit_test(a_mapping_for_reading_cannot_be_written),
        cmocka_unit_test(a_segment_that_lies_about_its_size_is_refused),
        cmocka_unit_test(a_segment_that_could_shrink_is_refused),
        cmocka_unit_test(a_segment_we_made_can_be_mapped_and_never_resized),
        cmocka_unit_test(
            detached_pages_keep_their_content_and_are_out_of_reach),
        cmocka_unit_test(neighbours_of_detached_memory_stay_shared),
        cmocka_unit_test(detached_pages_are_never_given_out_again),
        cmocka_unit_test(detaching_what_is_private_does_nothing),
        cmocka_unit_test(a_child_has_no_segments_and_makes_its_own),
        cmocka_unit_test(a_child_that_touches_shared_memory_faults),
        cmocka_unit_test(what_a_child_writes_to_its_copy_stays_with_it),
        cmocka_unit_test(without_memory_nothing_is_left_behind),
        cmocka_unit_test(a_segment_that_was_given_up_keeps_no_descriptor),
    };

    page = (size_t)sysconf(_SC_PAGESIZE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
