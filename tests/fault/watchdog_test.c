/* SPDX-License-Identifier: Apache-2.0 */
/* The process that watches the boxes of a folder (record/watchdog.h), and
 * strangers who keep its place or call it. */
#include "support/crew.h"

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
#include "support/census.h"

enum { NOBODY = 65534, CALLS = 60, KEY = 16, SOON_MS = 8000, MORE = 4 };

typedef struct scene {
    crew_flag joined, over;
    char folder[FOLDER_PATH]; /* of the boxes */
} scene;

static int join_and_wait(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_group *g;

    setenv("OARSONG_RECORDER_DIR", s->folder, 1);
    CREW_CHECK(c, rank, crew_join(c, rank, NULL, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    crew_raise(&s->joined);
    CREW_CHECK(c, rank, crew_await(&s->over, 1, CREW_PATIENCE_MS));
    oar_group_destroy(g);
    return 0;
}

/* ---- whom the test finds ------------------------------------------------- */

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

/* 0: nobody watches the folder. */
static pid_t find_watchman(const char *folder)
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
    scene *s = crew_page(sizeof *s);
    struct sockaddr_un name;
    socklen_t bytes = 0;
    pid_t pid;
    crew c;
    int folder, before;

    folder_make(s->folder);
    crew_start(&c, 2, join_and_wait, s, "callers that hang up");
    if (!crew_await(&s->joined, 2, CREW_PATIENCE_MS))
        crew_give_up(&c, "they do not join");
    assert_true((pid = find_watchman(s->folder)) > 0);
    assert_true(find_name(pid, &name, &bytes));
    folder = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    oari_watchdog_ask(folder);
    before = descriptors_of(pid);
    for (int i = 0; i < CALLS; i++)
        call_and_leave(&name, bytes);
    oari_watchdog_ask(folder); /* who calls later is answered later */
    assert_in_range(descriptors_of(pid), 1, before + MORE);
    close(folder);
    crew_raise(&s->over);
    for (int r = 0; r < 2; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    folder_drop(s->folder);
    crew_drop_page(s, sizeof *s);
}

/* ---- strangers ----------------------------------------------------------- */

/* Takes a name, and says nothing to those who call. */
static int squat(const char *text)
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

/* Another user, who knows the folder, and even the key that is in it. */
static _Noreturn void be_stranger(const char *folder, crew_flag *ready)
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
    if (!squat(by_number) || !squat(by_key))
        _exit(1);
    crew_raise(ready);
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

static void a_stranger_in_its_place_keeps_nobody_waiting(void **state)
{
    scene *s = crew_page(sizeof *s);
    crew_flag *squats = crew_page(sizeof *squats);
    int64_t start;
    pid_t stranger;
    crew c;

    if (geteuid() != 0) {
        print_message("skipped: only root can be another user\n");
        skip();
    }
    folder_make(s->folder);
    assert_int_equal(chmod(s->folder, 0755), 0);
    put_key(s->folder);
    if ((stranger = fork()) == 0)
        be_stranger(s->folder, squats);
    assert_true(crew_await(squats, 1, CREW_PATIENCE_MS));
    start = oari_now_ns();
    crew_start(&c, 2, join_and_wait, s, "a stranger in its place");
    if (!crew_await(&s->joined, 2, 6 * CREW_PATIENCE_MS))
        crew_give_up(&c, "they do not join");
    assert_true(crew_in_time(start, SOON_MS));
    crew_raise(&s->over);
    for (int r = 0; r < 2; r++)
        crew_expect(&c, r, 0);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    crew_end(&c);
    folder_drop(s->folder);
    crew_drop_page(s, sizeof *s);
    crew_drop_page(squats, sizeof *squats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_that_hang_up_leave_no_descriptor),
        cmocka_unit_test(a_stranger_in_its_place_keeps_nobody_waiting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
