/* SPDX-License-Identifier: Apache-2.0 */
/* The process that watches the recorder files of a folder (record/watchdog.h),
 * and processes of others that take its address or connect to it. */
#include "support/test_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "record/watchdog.h"
#include "support/leak_check.h"

enum { NOBODY = 65534, CALLS = 60, KEY = 16, SOON_MS = 8000, MORE = 4 };

typedef struct watchdog_context {
    shared_flag joined, over;
    char folder[FOLDER_PATH]; /* of the recorder files */
} watchdog_context;

static int join_and_wait(test_job *c, int rank, void *arg)
{
    watchdog_context *s = arg;
    oar_group *g;

    setenv("OARSONG_RECORDER_DIR", s->folder, 1);
    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->joined);
    RANK_CHECK(shared_flag_await(&s->over, 1, TEST_JOB_LIMIT_MS));
    oar_group_destroy(g);
    return 0;
}

/* ---- what the test finds ------------------------------------------------- */

static int descriptors_of(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    return folder_entries(path);
}

static int watches(pid_t pid, const char *folder)
{
    char path[64], name[FOLDER_PATH + 1] = "";
    ssize_t bytes;

    snprintf(path, sizeof path, "/proc/%d/fd/0", (int)pid);
    bytes = readlink(path, name, sizeof name - 1);
    return bytes > 0 && strncmp(name, folder, sizeof name) == 0;
}

/* Returns 0 if no process watches the folder. */
static pid_t find_watchdog(const char *folder)
{
    DIR *all = opendir("/proc");
    struct dirent *item;
    pid_t found = 0;

    assert_non_null(all);
    while (found == 0 && (item = readdir(all)) != NULL) {
        pid_t pid = (pid_t)strtol(item->d_name, NULL, 10);

        if (pid > 0 && watches(pid, folder))
            found = pid;
    }
    closedir(all);
    return found;
}

/* The socket at which it is called: one without a file, of those it has. */
static int find_name(pid_t pid, struct sockaddr_un *name, socklen_t *bytes)
{
    FILE *sockets = fopen("/proc/net/unix", "re");
    char line[512], path[64], link[64], mine[64];
    int found = 0;

    assert_non_null(sockets);
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    while (!found && fgets(line, sizeof line, sockets) != NULL) {
        const char *at = strstr(line, " @oarsong-watchdog-");
        unsigned long inode = 0;

        if (at == NULL ||
            sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1)
            continue;
        snprintf(mine, sizeof mine, "socket:[%lu]", inode);
        for (int fd = 0; fd < 64 && !found; fd++) {
            ssize_t got;

            snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
            got = readlink(path, link, sizeof link - 1);
            link[got > 0 ? got : 0] = 0;
            found = strcmp(link, mine) == 0;
        }
        at += 2;
        memcpy(name->sun_path + 1, at, strcspn(at, "\n"));
        *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                             strcspn(at, "\n"));
    }
    fclose(sockets);
    return found;
}

/* ---- callers ------------------------------------------------------------- */

/* Calls, and has hung up before it is answered. */
static void call_and_leave(const struct sockaddr_un *name, socklen_t bytes)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)name, bytes), 0);
    close(fd);
}

static void callers_that_hang_up_leave_no_descriptor(void **state)
{
    watchdog_context *s = shared_page(sizeof *s);
    struct sockaddr_un name;
    socklen_t bytes = 0;
    pid_t pid;
    test_job c;
    int folder, before;

    folder_make(s->folder);
    test_job_start(&c, 2, join_and_wait, s, "callers that hang up");
    if (!shared_flag_await(&s->joined, 2, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "they do not join");
    assert_true((pid = find_watchdog(s->folder)) > 0);
    assert_true(find_name(pid, &name, &bytes));
    folder = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    oari_watchdog_ask(folder);
    before = descriptors_of(pid);
    for (int i = 0; i < CALLS; i++)
        call_and_leave(&name, bytes);
    oari_watchdog_ask(folder); /* later callers are answered later */
    assert_in_range(descriptors_of(pid), 1, before + MORE);
    close(folder);
    shared_flag_raise(&s->over);
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    folder_remove(s->folder);
    shared_page_free(s, sizeof *s);
}

/* ---- processes of others ------------------------------------------------- */

/* Takes an address, and sends nothing to processes that connect. */
static int take_its_address(const char *text)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    size_t length = strlen(text);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(name.sun_path + 1, text, length);
    return fd >= 0 &&
           bind(fd, (const struct sockaddr *)&name,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                            length)) == 0 &&
           listen(fd, 50) == 0;
}

/* Another user that knows the folder, and even the key that is in it. */
static _Noreturn void run_other_process(const char *folder, shared_flag *ready)
{
    char by_number[64], by_key[64] = "oarsong-watchdog-";
    struct stat info;

    if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0 ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || stat(folder, &info) != 0)
        _exit(1);
    snprintf(by_number, sizeof by_number, "oarsong-watchdog-%lu-%lu",
             (unsigned long)info.st_dev, (unsigned long)info.st_ino);
    for (int i = 0; i < KEY; i++)
        memcpy(by_key + strlen(by_key), "2a", 3);
    if (!take_its_address(by_number) || !take_its_address(by_key))
        _exit(1);
    shared_flag_raise(ready);
    for (;;)
        pause();
}

static void put_key(const char *folder)
{
    char path[FOLDER_PATH + 16];
    int fd;

    snprintf(path, sizeof path, "%s/.watchdog", folder);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "****************", KEY), KEY);
    close(fd);
}

static void another_process_at_its_address_delays_no_rank(void **state)
{
    watchdog_context *s = shared_page(sizeof *s);
    shared_flag *squats = shared_page(sizeof *squats);
    int64_t start;
    pid_t other_process;
    test_job c;

    if (geteuid() != 0) {
        print_message("skipped: only root can be another user\n");
        skip();
    }
    folder_make(s->folder);
    assert_int_equal(chmod(s->folder, 0755), 0);
    put_key(s->folder);
    if ((other_process = fork()) == 0)
        run_other_process(s->folder, squats);
    assert_true(shared_flag_await(squats, 1, TEST_JOB_LIMIT_MS));
    start = oari_now_ns();
    test_job_start(&c, 2, join_and_wait, s, "another process at its address");
    if (!shared_flag_await(&s->joined, 2, 6 * TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "they do not join");
    assert_true(is_in_time(start, SOON_MS));
    shared_flag_raise(&s->over);
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    kill(other_process, SIGKILL);
    waitpid(other_process, NULL, 0);
    test_job_end(&c);
    folder_remove(s->folder);
    shared_page_free(s, sizeof *s);
    shared_page_free(squats, sizeof *squats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_that_hang_up_leave_no_descriptor),
        cmocka_unit_test(another_process_at_its_address_delays_no_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
