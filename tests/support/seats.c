/* SPDX-License-Identifier: Apache-2.0 */
#include "support/seats.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { START_MS = 60000, DYING_MS = 1000, WORDS = 16, TEXT = 512 };

/* What the test and its ranks share besides the test's page. */
typedef struct crew_seats {
    int ranks;
    intptr_t fn; /* how far it is from seats_mine: addresses differ */
    char folder[128], what[256];
    crew_flag taken, begin, leave;
    _Atomic pid_t pid[CREW_MAX];
    _Atomic int ended[CREW_MAX]; /* the code + 1 */
    pid_t launcher;              /* 0: it has ended */
} crew_seats;

static const char *const variable = "OARSONG_TEST_SEATS";

/* ---- in a rank ----------------------------------------------------------- */

static int rank_by_launcher(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "PMIX_RANK" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return atoi(getenv(names[i]));
    return -1;
}

/* A page of the test: a file that it has open. */
static void *map_page(int parent, int fd, size_t bytes)
{
    char path[64];
    void *page = MAP_FAILED;
    int file;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", parent, fd);
    if ((file = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
        page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    return page != MAP_FAILED ? page : NULL;
}

static void sit_down(crew *c, crew_seats *s, int rank)
{
    struct rlimit none = { 0, 0 };

    setrlimit(RLIMIT_CORE, &none);
    c->ranks = s->ranks;
    memcpy(c->folder, s->folder, sizeof c->folder);
    memcpy(c->what, s->what, sizeof c->what);
    setenv("TMPDIR", c->folder, 1);
    atomic_store(&s->pid[rank], getpid());
    crew_raise(&s->taken);
}

int seats_mine(int *code)
{
    const char *given = getenv(variable);
    int parent, fd[2], rank = rank_by_launcher();
    size_t bytes[2];
    crew_seats *s;
    crew c = { 0 };
    void *page;

    *code = 1;
    if (given == NULL || rank < 0)
        return 0;
    if (sscanf(given, "%d %d %zu %d %zu", &parent, &fd[0], &bytes[0], &fd[1],
               &bytes[1]) != 5 ||
        (s = map_page(parent, fd[0], bytes[0])) == NULL ||
        (page = map_page(parent, fd[1], bytes[1])) == NULL)
        return 1;
    sit_down(&c, s, rank);
    if (!crew_await(&s->begin, 1, START_MS))
        return 1;
    *code = ((crew_fn)((intptr_t)seats_mine + s->fn))(&c, rank, page);
    fflush(NULL);
    atomic_store(&s->ended[rank], *code + 1);
    crew_await(&s->leave, 1, 10 * START_MS);
    return 1;
}

/* ---- starting ------------------------------------------------------------ */

void seats_calm_open_mpi(void)
{
    static const char *const set[] = {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "OMPI_MCA_rmaps_base_oversubscribe",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    };

    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        setenv(set[i], "1", 1);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
}

/* The output of the last ones. */
static int output_fd(void)
{
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("output", MFD_CLOEXEC);
    return fd;
}

/* A pipe would keep the launcher waiting for whoever holds it. */
static _Noreturn void be_launcher(const char *launcher, int ranks, pid_t parent)
{
    char text[TEXT], count[8], self[TEXT] = "", *word[WORDS], *rest;
    int n = 0;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent ||
        readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        _exit(127);
    seats_calm_open_mpi();
    dup2(output_fd(), 1);
    dup2(output_fd(), 2);
    snprintf(text, sizeof text, "%s", launcher);
    for (char *at = strtok_r(text, " ", &rest); at != NULL && n < WORDS - 4;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = at;
    snprintf(count, sizeof count, "%d", ranks);
    word[n++] = "-n";
    word[n++] = count;
    word[n++] = self;
    word[n] = NULL;
    execvp(word[0], word);
    _exit(127);
}

/* In the environment, which launchers pass on. */
static void tell_ranks(const crew_seats *s, const void *page)
{
    size_t bytes[2];
    int fd[2] = { crew_page_fd(s, &bytes[0]), crew_page_fd(page, &bytes[1]) };
    char text[TEXT];

    assert_true(fd[0] >= 0 && fd[1] >= 0);
    snprintf(text, sizeof text, "%d %d %zu %d %zu", getpid(), fd[0], bytes[0],
             fd[1], bytes[1]);
    setenv(variable, text, 1);
}

static void await_ranks(crew *c)
{
    crew_seats *s = c->seats;

    if (!crew_await(&s->taken, (uint32_t)s->ranks, START_MS)) {
        seats_show();
        crew_give_up(c, "%d of %d ranks came", (int)atomic_load(&s->taken),
                     s->ranks);
    }
    for (int r = 0; r < s->ranks; r++)
        c->pid[r] = atomic_load(&s->pid[r]);
    crew_raise(&s->begin);
}

void seats_start(crew *c, const char *launcher, int ranks, crew_fn fn,
                 void *page, const char *format, ...)
{
    pid_t self = getpid(), child = 0;
    crew_seats *s = crew_page(sizeof *s);
    va_list args;

    memset(c, 0, sizeof *c);
    va_start(args, format);
    vsnprintf(c->what, sizeof c->what, format, args);
    va_end(args);
    crew_make_folder(c);
    c->ranks = s->ranks = ranks;
    c->seats = s;
    s->fn = (intptr_t)fn - (intptr_t)seats_mine;
    memcpy(s->folder, c->folder, sizeof s->folder);
    memcpy(s->what, c->what, sizeof s->what);
    tell_ranks(s, page);
    fflush(NULL);
    if (ftruncate(output_fd(), 0) != 0 || (child = fork()) < 0)
        crew_give_up(c, "%s: %s", launcher, strerror(errno));
    if (child == 0)
        be_launcher(launcher, ranks, self);
    s->launcher = child;
    unsetenv(variable);
    await_ranks(c);
}

void seats_show(void)
{
    char text[8192];
    ssize_t got = pread(output_fd(), text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = 0;
    print_message("%s\n", text);
}

/* ---- ending -------------------------------------------------------------- */

/* The letter that /proc has for it; 0: it is gone. */
static char state_of(pid_t pid)
{
    char path[64], text[TEXT] = "";
    const char *at;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (pid <= 0 || (file = fopen(path, "r")) == NULL)
        return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    at = strrchr(text, ')');
    return (char)(at != NULL && at[1] != 0 && at[2] != 'Z' && at[2] != 'X'
                      ? at[2]
                      : 0);
}

int seats_look(crew *c, int rank)
{
    crew_seats *s = c->seats;
    int gone = state_of(c->pid[rank]) == 0;
    int code = atomic_load(&s->ended[rank]) - 1;

    if (code < 0)
        return gone ? CREW_GONE : CREW_LATE;
    return code;
}

int seats_is_stopped(crew *c, int rank)
{
    return state_of(c->pid[rank]) == 'T';
}

static int await_launcher(crew_seats *s, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);

    while (s->launcher > 0 && waitpid(s->launcher, NULL, WNOHANG) == 0) {
        if (oari_now_ns() >= deadline)
            return 0;
        nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    }
    s->launcher = 0;
    return 1;
}

int seats_await_end(crew *c, int timeout_ms)
{
    return await_launcher(c->seats, timeout_ms);
}

int seats_leave(crew *c, int timeout_ms)
{
    crew_raise(&c->seats->leave);
    return await_launcher(c->seats, timeout_ms);
}

/* Whether it runs; one that a launcher has killed, and not waited for, has a
 * moment to end. */
static int still_runs(crew *c, int rank)
{
    int64_t deadline = oari_deadline(c->seats->launcher == 0 ? DYING_MS : 0);

    while (seats_look(c, rank) == CREW_LATE) {
        if (oari_now_ns() >= deadline)
            return 1;
        nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    }
    return 0;
}

/* The launcher is asked to end, and its ranks, before it is made to. */
int seats_end(crew *c)
{
    crew_seats *s = c->seats;
    int left = 0;

    for (int r = 0; r < c->ranks; r++)
        if (still_runs(c, r)) {
            left += c->pid[r] > 0;
            if (c->pid[r] > 0)
                kill(c->pid[r], SIGKILL);
        }
    if (!seats_leave(c, CREW_PATIENCE_MS))
        kill(s->launcher, SIGTERM);
    if (!await_launcher(s, CREW_PATIENCE_MS)) {
        kill(s->launcher, SIGKILL);
        waitpid(s->launcher, NULL, 0);
    }
    crew_drop_page(s, sizeof *s);
    c->seats = NULL;
    return left;
}
