/* SPDX-License-Identifier: Apache-2.0 */
/* Which recorder file a process uses, and which ring a group gets. Every
 * process under test is a child, because a process has one recorder file. */
#include "support/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/log.h>
#include <oarsong/p2p.h>
#include <oarsong/recorder.h>

#include "base/fork.h"
#include "record/recorder_file.h"
#include "record/recorder_file_read.h"
#include "comm/group/group.h"
#include "record/recorder.h"
#include "support/leak_check.h"
#include "support/test_job.h"
#include "support/last_error.h"

static char folder[FOLDER_PATH], path[FOLDER_PATH + 32];
static int file = -1;

static int set_up(void **state)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/rank-0.oarrec", folder);
    OK(oari_recorder_file_make(5, &file));
    return 0;
}

static int tear_down(void **state)
{
    folder_remove(folder);
    close(file);
    return 0;
}

/* ---- processes ----------------------------------------------------------- */

#define IN_CHILD(condition)                                                    \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                    oar_last_error_text());                                    \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

static int run(void (*fn)(void))
{
    pid_t pid = fork();
    int how;

    if (pid == 0) {
        fn();
        exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

static void use_recorder_file(int fd)
{
    char text[16];

    snprintf(text, sizeof text, "%d", fd);
    setenv("OARSONG_RECORDER_FD", text, 1);
}

static oar_group *make_group(const char *name)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    o.name = name;
    IN_CHILD(oar_group_create(NULL, 0, 1, &o, &g) == OAR_OK);
    return g;
}

static oari_recorder_copy load(void)
{
    oari_recorder_copy image = { 0 };

    OK(oari_recorder_file_load(file, &image));
    return image;
}

/* ---- an inherited one ---------------------------------------------------- */

static void record_and_die(void)
{
    oar_group *g;

    use_recorder_file(file);
    setenv("OARSONG_EPOCH", "3", 1);
    g = make_group("mine");
    IN_CHILD((fcntl(file, F_GETFD) & FD_CLOEXEC) != 0);
    IN_CHILD(oar_barrier(g, NULL, NULL) == OAR_OK);
    IN_CHILD(oari_recorder_fd(g->recorder) == file);
    raise(SIGKILL);
}

static void a_recorder_file_that_was_inherited_outlives_a_kill(void **state)
{
    oari_recorder_copy image;
    const oari_ring *ring;
    oar_record r;

    image = load();
    assert_int_equal(atomic_load(&image.box->head.owner), 0);
    assert_int_equal(image.rings, 0);
    oari_recorder_copy_clear(&image);
    fcntl(file, F_SETFD, 0); /* as a launcher passes it on */
    assert_int_equal(run(record_and_die), 128 + SIGKILL);
    image = load();
    assert_int_equal(image.box->head.rank, 5); /* the launcher's word */
    assert_int_equal(image.box->head.epoch, 3);
    assert_int_equal(atomic_load(&image.box->head.exited), 0);
    assert_true(image.box->head.host[0] != 0 && image.box->head.boot[0] != 0);
    assert_int_equal(image.rings, 1);
    ring = oari_recorder_copy_ring(&image, 0);
    assert_string_equal(ring->group, "mine");
    assert_string_equal(ring->backend, "self");
    assert_int_equal(atomic_load(&ring->state), OARI_RING_OPEN);
    assert_int_equal(ring->epoch, 3);
    assert_int_equal(oari_ring_newest(ring), 1);
    assert_true(oari_ring_find(ring, 0, 1, &r));
    assert_int_equal(r.kind, OAR_COLL_BARRIER);
    oari_recorder_copy_clear(&image);
}

static void exit_with_a_group(void)
{
    use_recorder_file(file);
    make_group("left");
    exit(0);
}

static void an_exit_is_distinguished_from_a_death(void **state)
{
    oari_recorder_copy image;

    assert_int_equal(run(exit_with_a_group), 0);
    image = load();
    assert_int_equal(atomic_load(&image.box->head.exited), 1);
    assert_int_equal(atomic_load(&image.box->ring[0].state), OARI_RING_OPEN);
    oari_recorder_copy_clear(&image);
}

static void end_in_order(void)
{
    oar_group *g;

    use_recorder_file(file);
    g = make_group("first");
    oar_group_destroy(g);
    g = make_group("first");
    IN_CHILD(oar_group_abort(g, "enough") == OAR_OK);
    oar_group_destroy(g);
}

static void groups_of_one_name_are_distinguished_and_faults_kept(void **state)
{
    oari_recorder_copy image;

    assert_int_equal(run(end_in_order), 0);
    image = load();
    assert_int_equal(image.rings, 2);
    for (int i = 0; i < 2; i++) {
        const oari_ring *r = oari_recorder_copy_ring(&image, i);

        assert_int_equal(atomic_load(&r->state), OARI_RING_ENDED);
        assert_int_equal(r->instance, i);
        assert_int_equal(atomic_load(&r->fault.ready), i);
    }
    assert_int_equal(image.box->ring[1].fault.status, OAR_E_ABORTED);
    assert_non_null(strstr(image.box->ring[1].fault.text, "enough"));
    oari_recorder_copy_clear(&image);
}

/* ---- nonsense ------------------------------------------------------------ */

static int warned;

static void hear(void *arg, oar_log_level level, const char *text)
{
    warned +=
        level == OAR_LOG_WARN && strstr(text, "OARSONG_RECORDER_FD") != NULL;
}

static void expect_another(const char *value)
{
    oar_group *g;

    warned = 0;
    setenv("OARSONG_RECORDER_FD", value, 1);
    g = make_group("other");
    IN_CHILD(warned == 1);
    IN_CHILD(oar_barrier(g, NULL, NULL) == OAR_OK);
    IN_CHILD(oari_recorder_fd(g->recorder) != atoi(value));
    oar_group_destroy(g);
}

static void try_nonsense(void)
{
    char text[16];
    int fd = open("/proc/self/exe", O_RDONLY);

    oar_log_to(hear, NULL, OAR_LOG_WARN);
    expect_another("x");
    expect_another("-1");
    expect_another("0");
    expect_another("9999");
    expect_another("99999999999999999999");
    snprintf(text, sizeof text, "%d", fd);
    expect_another(text);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    IN_CHILD(ftruncate(fd, (off_t)OARI_FILE_BYTES) == 0);
    snprintf(text, sizeof text, "%d", fd); /* of the right size, but empty */
    expect_another(text);
}

static void a_descriptor_that_is_no_recorder_file_is_not_used(void **state)
{
    assert_int_equal(run(try_nonsense), 0);
}

/* A child of a rank that runs a program of ours beside it. */
static void share_the_file(void)
{
    oar_group *g;
    int how;
    pid_t pid;

    use_recorder_file(file);
    g = make_group("parent");
    if ((pid = fork()) == 0) {
        IN_CHILD(fcntl(file, F_GETFD) < 0); /* closed in the child */
        oar_log_to(hear, NULL, OAR_LOG_WARN);
        make_group("child");
        _exit(0);
    }
    IN_CHILD(waitpid(pid, &how, 0) == pid && how == 0);
    oar_group_destroy(g);
}

static void try_the_file_of_another(void)
{
    oar_group *g;

    use_recorder_file(file);
    oar_log_to(hear, NULL, OAR_LOG_WARN);
    g = make_group("intruder");
    _exit(warned == 1 && oari_recorder_fd(g->recorder) != file ? 0 : 1);
}

static void hold_the_file(void)
{
    use_recorder_file(file);
    make_group("owner");
    fcntl(file, F_SETFD, 0);
    oari_fork_forget(file); /* the child gets it all the same */
    IN_CHILD(run(try_the_file_of_another) == 0);
}

static void only_one_process_at_a_time_writes_to_a_recorder_file(void **state)
{
    oari_recorder_copy image;

    assert_int_equal(run(share_the_file), 0);
    image = load();
    assert_int_equal(image.rings, 1);
    oari_recorder_copy_clear(&image);
    assert_int_equal(run(hold_the_file), 0); /* the first is gone by now */
    image = load();
    assert_int_equal(image.rings, 2);
    assert_string_equal(image.box->ring[1].group, "owner");
    oari_recorder_copy_clear(&image);
}

/* ---- more groups than rings ---------------------------------------------- */

static void make_many(void)
{
    oar_group *g[OARI_FILE_RINGS + 2];
    oar_record r = oar_record_init();
    char name[32];

    use_recorder_file(file);
    for (int i = 0; i < OARI_FILE_RINGS + 2; i++) {
        snprintf(name, sizeof name, "g%d", i);
        g[i] = make_group(name);
        IN_CHILD(oar_barrier(g[i], NULL, NULL) == OAR_OK);
    }
    IN_CHILD(oari_recorder_fd(g[OARI_FILE_RINGS]->recorder) != file);
    IN_CHILD(oar_recorder_read(g[OARI_FILE_RINGS + 1], 0, 0, &r) == OAR_OK);
    for (int i = 0; i < OARI_FILE_RINGS; i++)
        IN_CHILD(oar_recorder_read(g[i], 0, 0, &r) == OAR_OK);
    oar_group_destroy(g[7]);
    oar_group_destroy(g[3]);
    g[7] = make_group("in place of 7"); /* which ended first */
    IN_CHILD(oari_recorder_fd(g[7]->recorder) == file);
    IN_CHILD(oar_recorder_read(g[7], 0, 0, &r) == OAR_E_NOT_FOUND);
    raise(SIGKILL);
}

static void when_all_rings_are_taken_the_one_that_ended_first_goes(void **state)
{
    oari_recorder_copy image;

    assert_int_equal(run(make_many), 128 + SIGKILL);
    image = load();
    assert_int_equal(image.rings, OARI_FILE_RINGS);
    assert_int_equal(atomic_load(&image.box->head.crowded), 2);
    assert_string_equal(image.box->ring[7].group, "in place of 7");
    assert_string_equal(image.box->ring[3].group, "g3");
    assert_int_equal(atomic_load(&image.box->ring[3].state), OARI_RING_ENDED);
    oari_recorder_copy_clear(&image);
}

/* A peer keeps a view of a ring that has become another group's. */
static void outlive_a_ring(void)
{
    oari_recorder *r[OARI_FILE_RINGS];
    const void *view;
    oari_operation call = { .kind = OAR_COLL_BARRIER,
                            .root = -1,
                            .file = "x.c" };
    oar_record record;

    use_recorder_file(file);
    for (int i = 0; i < OARI_FILE_RINGS; i++)
        IN_CHILD(
            oari_recorder_make(
                &(oari_ring_owner){ .group = "old", .rank = 0, .ranks = 1 },
                &r[i]) == OAR_OK);
    oari_recorder_post(r[9], 1, &call, OARI_POSTED);
    IN_CHILD(oari_recorder_map(oari_recorder_fd(r[9]), oari_recorder_at(r[9]),
                               &view) == OAR_OK);
    IN_CHILD(oari_recorder_newest(view, 0, &record) == OAR_OK);
    oari_recorder_destroy(r[9]);
    IN_CHILD(oari_recorder_newest(view, 0, &record) == OAR_OK);
    IN_CHILD(oari_recorder_make(
                 &(oari_ring_owner){ .group = "new", .rank = 0, .ranks = 1 },
                 &r[9]) == OAR_OK);
    oari_recorder_post(r[9], 1, &call, OARI_POSTED);
    IN_CHILD(oari_recorder_newest(view, 0, &record) == OAR_E_NOT_FOUND);
    IN_CHILD(oari_recorder_by_sequence(view, 1, &record) == OAR_E_NOT_FOUND);
    oari_recorder_unmap(view);
    IN_CHILD(oari_recorder_map(file, 5, &view) == OAR_E_DATA);
    IN_CHILD(oari_recorder_map(file, OARI_FILE_BYTES, &view) == OAR_E_DATA);
    IN_CHILD(oari_recorder_map(file, 0, &view) == OAR_E_DATA); /* the head */
    IN_CHILD(oari_recorder_map(0, OARI_FILE_UNIT, &view) == OAR_E_DATA);
    IN_CHILD(oari_recorder_map(-1, OARI_FILE_UNIT, &view) == OAR_E_DATA);
}

static void a_view_of_a_ring_ends_with_its_group(void **state)
{
    assert_int_equal(run(outlive_a_ring), 0);
}

/* ---- a folder ------------------------------------------------------------ */

static void use_folder_twice(void)
{
    oar_group *g;

    setenv("OARSONG_RECORDER_DIR", folder, 1);
    g = make_group("first");
    oar_group_destroy(g);
    g = make_group("second");
    oar_group_destroy(g);
}

static oari_recorder_copy load_file(void)
{
    oari_recorder_copy image = { 0 };
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    OK(oari_recorder_file_load(fd, &image));
    close(fd);
    return image;
}

static void a_process_goes_on_in_its_file_and_the_next_replaces_it(void **state)
{
    oari_recorder_copy image;
    int before, n;
    char byte;

    assert_int_equal(run(use_folder_twice), 0);
    image = load_file();
    assert_int_equal(image.rings, 2);
    assert_string_equal(image.box->ring[1].group, "second");
    n = (int)atomic_load(&image.box->head.owner);
    oari_recorder_copy_clear(&image);
    before = open(path, O_RDONLY); /* as a peer that still maps it */
    assert_int_equal(run(use_folder_twice), 0);
    image = load_file();
    assert_int_equal(image.rings, 2);
    assert_int_not_equal(atomic_load(&image.box->head.owner), n);
    oari_recorder_copy_clear(&image);
    assert_int_equal(pread(before, &byte, 1, (off_t)OARI_FILE_BYTES - 1), 1);
    close(before);
    assert_int_equal(folder_entries(folder), 1);
}

static oar_status meet(oar_group *g, void *arg)
{
    return oar_barrier(g, NULL, NULL);
}

static void run_threads(void)
{
    setenv("OARSONG_RECORDER_DIR", folder, 1);
    IN_CHILD(oar_sim_run(3, meet, NULL) == OAR_OK);
}

static void ranks_that_are_threads_share_a_recorder_file(void **state)
{
    unsigned seen = 0;
    oari_recorder_copy image;

    assert_int_equal(run(run_threads), 0);
    assert_int_equal(folder_entries(folder), 1);
    image = load_file();
    assert_int_equal(image.rings, 3);
    assert_int_equal(image.box->head.threads, 1);
    assert_int_equal(image.box->head.world, 3);
    for (int i = 0; i < 3; i++)
        seen |= 1u << image.box->ring[i].rank;
    assert_int_equal(seen, 7);
    oari_recorder_copy_clear(&image);
}

/* ---- what is recorded ---------------------------------------------------- */

static oar_record newest(const oar_group *g, int index)
{
    oar_record r = oar_record_init();

    OK(oar_recorder_read(g, 0, index, &r));
    return r;
}

static void messages_have_tags_and_collectives_numbers(void **state)
{
    oar_group *g = NULL;
    oar_work *work;
    float x[3] = { 0 }, y[3];

    OK(oar_group_create(NULL, 0, 1, NULL, &g));
    OK(oar_broadcast(g, oar_span_of(x, 3, OAR_F32), 0, NULL, NULL));
    OK(oar_recv(g, oar_span_of(y, 3, OAR_F32), 0, 77, NULL, &work));
    assert_int_equal(newest(g, 0).tag, 77);
    assert_int_equal(newest(g, 0).number, 0);
    assert_int_equal(newest(g, 0).root, 0);
    assert_int_equal(newest(g, 0).waited, 0);
    OK(oar_send(g, oar_span_of(x, 3, OAR_F32), 0, 77, NULL, NULL));
    OK(oar_work_wait(work));
    oar_work_release(work);
    OK(oar_reduce(g, oar_span_of(x, 3, OAR_F32), oar_span_of(x, 3, OAR_F32),
                  OAR_SUM, 0, NULL, NULL));
    assert_int_equal(newest(g, 0).sequence, 4);
    assert_int_equal(newest(g, 0).number, 2);
    assert_int_equal(newest(g, 0).root, 0);
    assert_int_equal(newest(g, 0).tag, -1);
    assert_int_equal(newest(g, 3).number, 1);
    OK(oar_recv(g, oar_span_of(y, 3, OAR_F32), OAR_ANY_SOURCE, OAR_ANY_TAG,
                NULL, &work));
    assert_int_equal(newest(g, 0).tag, -1);
    assert_int_equal(newest(g, 0).root, -1);
    oar_work_release(work);
    oar_group_destroy(g);
}

static oar_status look_at_members(oar_group *g, void *arg)
{
    oar_group *part = NULL;
    const oari_ring_view *view;
    int rank = oar_group_rank(g);

    CHECK_OK(oar_group_split(g, rank == 1, -rank, &part));
    view = oari_recorder_base(part->recorder);
    CHECK(atomic_load(&view->ring->members) == (rank == 1 ? 1 : 2));
    if (rank == 1)
        CHECK(view->ring->member[0] == 1);
    else
        CHECK(view->ring->member[0] == 2 && view->ring->member[1] == 0);
    oar_group_destroy(part);
    return OAR_OK;
}

static void the_members_of_a_part_are_recorded_as_ranks_of_the_world(void **s)
{
    assert_int_equal(ranks_run("shm", 3, NULL, look_at_members, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 3, NULL, look_at_members, NULL), OAR_OK);
}

#define RECORDER_FILE(test) \
    cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RECORDER_FILE(a_recorder_file_that_was_inherited_outlives_a_kill),
        RECORDER_FILE(an_exit_is_distinguished_from_a_death),
        RECORDER_FILE(groups_of_one_name_are_distinguished_and_faults_kept),
        RECORDER_FILE(a_descriptor_that_is_no_recorder_file_is_not_used),
        RECORDER_FILE(only_one_process_at_a_time_writes_to_a_recorder_file),
        RECORDER_FILE(when_all_rings_are_taken_the_one_that_ended_first_goes),
        RECORDER_FILE(a_view_of_a_ring_ends_with_its_group),
        RECORDER_FILE(a_process_goes_on_in_its_file_and_the_next_replaces_it),
        RECORDER_FILE(ranks_that_are_threads_share_a_recorder_file),
        cmocka_unit_test(
            the_members_of_a_part_are_recorded_as_ranks_of_the_world),
        cmocka_unit_test(messages_have_tags_and_collectives_numbers),
    };

    test_job_checks_leaks = 0; /* children end with groups that they have */
    unsetenv("OARSONG_RECORDER_DIR");
    unsetenv("OARSONG_RECORDER_FD");
    unsetenv("OARSONG_EPOCH");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
