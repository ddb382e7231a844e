/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that is really full, and a limit on the size of files: a save fails on
 * all ranks with the same sentence, which has the bytes that are wanted and
 * those that are free; it leaves nothing behind, and older generations load.
 *
 * The disk is a tmpfs of 8 MiB in a mount namespace of the test's own. */
#include "support/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>

#include "file/disk.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/sample_state.h"

enum {
    RANKS = 3,
    DISK_BYTES = 8 << 20,
    LARGE = 4 << 20 /* of each rank */
};

static char folder[FOLDER_PATH], runs[FOLDER_PATH + 8];

static int make_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(runs, sizeof runs, "%s/runs", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder);
}

/* ---- a file system of one's own ------------------------------------------ */

static int write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text);
}

/* Enters a mount namespace, as root or as the root of a user namespace. */
static int enter_namespace(void)
{
    char map[64];
    unsigned uid = geteuid(), gid = getegid();

    if (uid == 0 && unshare(CLONE_NEWNS) == 0)
        return 1;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return 0;
    snprintf(map, sizeof map, "0 %u 1", uid);
    if (!write_text("/proc/self/setgroups", "deny") ||
        !write_text("/proc/self/uid_map", map))
        return 0;
    snprintf(map, sizeof map, "0 %u 1", gid);
    return write_text("/proc/self/gid_map", map);
}

/* Mounts the small disk on the test's folder. */
static int mount_disk(void)
{
    char how[32];

    snprintf(how, sizeof how, "size=%d", DISK_BYTES);
    return enter_namespace() &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", folder, "tmpfs", 0, how) == 0;
}

static uint64_t free_bytes(void)
{
    struct statvfs st;

    return statvfs(folder, &st) == 0 ? (uint64_t)st.f_bavail * st.f_frsize : 0;
}

/* ---- ranks --------------------------------------------------------------- */

/* Whether the next answer, which is given before anything is written, is that
 * there is room. */
static atomic_int is_lie;

static int forget_free_bytes(const oari_disk *disk, int fd, uint64_t *bytes)
{
    if (!atomic_exchange(&is_lie, 0))
        return oari_disk_system.free_bytes(disk, fd, bytes);
    *bytes = UINT64_MAX;
    return 0;
}

typedef struct full_case {
    int unforeseen; /* the disk says that there is room, and there is none */
    int limit;      /* of the size of a file, on rank 1 */
    int error;
    const char *text;
} full_case;

/* All ranks have the same record. */
static oar_status check_record(oar_group *g, const full_case *f,
                               const oar_error *mine)
{
    oar_error first = *mine;

    CHECK_OK(oar_broadcast(g, oar_span_of(&first, sizeof first, OAR_U8), 0,
                           NULL, NULL));
    CHECK(strcmp(first.text, mine->text) == 0);
    CHECK(mine->status == OAR_E_SYSTEM && mine->sys_errno == f->error);
    CHECK(strstr(mine->text, f->text) != NULL);
    CHECK(strstr(mine->text, runs) != NULL);
    if (f->limit == 0)
        CHECK(strstr(mine->text, " are free") != NULL &&
              strstr(mine->text, " bytes") != NULL);
    return OAR_OK;
}

/* Saves a small generation; then one that does not fit; then a small one. */
static oar_status save_too_much(oar_group *g, void *arg)
{
    const full_case *f = arg;
    oar_checkpoint_opts o = { .size = sizeof o };
    int rank = oar_group_rank(g);
    oari_disk disk = oari_disk_system;
    oar_checkpoint *c;
    oar_status status;
    oar_error mine;
    sample_state s;
    oar_state *large;
    oar_place place;
    uint64_t space;
    float *part = calloc(LARGE, 1);

    CHECK(part != NULL);
    if (f->unforeseen) {
        disk.free_bytes = forget_free_bytes;
        oari_disk_replace(&disk);
    }
    CHECK_OK(sample_state_make(&s, rank, RANKS));
    CHECK_OK(oar_checkpoint_open(g, runs, &o, &c));
    sample_state_set(&s, 1);
    CHECK_OK(oar_checkpoint_save(c, s.state, 1, NULL));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    space = free_bytes();

    place = (oar_place){ .size = sizeof place,
                         .whole = OAR_SHAPE(RANKS, LARGE / 4),
                         .offset = { rank } };
    CHECK_OK(oar_state_create(&large));
    CHECK_OK(oar_state_add_span(large, "model", "large",
                                oar_span_of(part, LARGE / 4, OAR_F32),
                                OAR_SHAPE(1, LARGE / 4), &place));
    if (f->limit > 0 && rank == 1)
        setrlimit(RLIMIT_FSIZE,
                  &(struct rlimit){ (rlim_t)f->limit, RLIM_INFINITY });
    atomic_store(&is_lie, f->unforeseen && rank == 0);
    status = oar_checkpoint_save(c, large, 2, NULL);
    mine = *oar_last_error();
    if (f->limit > 0 && rank == 1)
        setrlimit(RLIMIT_FSIZE,
                  &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
    CHECK(status == OAR_E_SYSTEM);
    CHECK_OK(check_record(g, f, &mine));

    CHECK(folder_names_with(runs, ".part-") == 0);
    CHECK(f->limit > 0 || free_bytes() >= space);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    sample_state_set(&s, 0);
    CHECK_OK(oar_checkpoint_load(c, s.state, OAR_NEWEST, NULL));
    CHECK(s.step == 1 && sample_state_is_whole(&s));
    sample_state_set(&s, 2);
    CHECK_OK(oar_checkpoint_save(c, s.state, 2, NULL));
    oar_checkpoint_close(c);
    oari_disk_replace(NULL);
    oar_state_destroy(large);
    oar_state_destroy(s.state);
    free(part);
    return OAR_OK;
}

/* Runs the ranks in a process that has the small disk. Returns its exit code;
 * 77: there is no such disk here. */
static int run_on_small_disk(full_case *f)
{
    int ended;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        if (!mount_disk()) {
            fprintf(stderr, "no mount namespace: %s\n", strerror(errno));
            _exit(77);
        }
        _exit(ranks_run("native", RANKS, NULL, save_too_much, f) != OAR_OK);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    return WEXITSTATUS(ended);
}

static void a_full_disk_is_every_ranks_failure(void **state)
{
    full_case foreseen = { .error = ENOSPC, .text = ": a generation of " };
    full_case unforeseen = { .unforeseen = 1,
                             .error = ENOSPC,
                             .text = ": write " };
    int code = run_on_small_disk(&foreseen);

    (void)state;
    if (code == 77)
        skip();
    assert_int_equal(code, 0);
    assert_int_equal(run_on_small_disk(&unforeseen), 0);
}

static void a_limit_on_files_is_every_ranks_failure(void **state)
{
    full_case limited = { .limit = 100 << 10,
                          .error = EFBIG,
                          .text = "rank 1: write " };

    (void)state;
    if (ranks_run("native", RANKS, NULL, save_too_much, &limited) != OAR_OK)
        fail_msg("%s", oar_last_error_text());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_disk_is_every_ranks_failure,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_limit_on_files_is_every_ranks_failure,
                                        make_folder, remove_folder),
    };

    return cmocka_run_group_tests_name("full disk", tests, NULL, NULL);
}
