/* SPDX-License-Identifier: Apache-2.0 */
#include "support/mpi_ranks.h"

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
typedef struct mpi_ranks {
    int ranks;
    intptr_t fn; /* how far it is from mpi_ranks_run_child: addresses differ */
    char folder[128], what[256];
    shared_flag taken, begin, leave;
    _Atomic pid_t pid[TEST_JOB_RANKS];
    _Atomic int ended[TEST_JOB_RANKS]; /* the code + 1 */
    pid_t launcher;                    /* 0: it has ended */
} mpi_ranks;

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

static void run_as_rank(test_job *c, mpi_ranks *s, int rank)
{
    struct rlimit none = { 0, 0 };

    setrlimit(RLIMIT_CORE, &none);
    c->ranks = s->ranks;
    memcpy(c->folder, s->folder, sizeof c->folder);
    memcpy(c->what, s->what, sizeof c->what);
    setenv("TMPDIR", c->folder, 1);
    atomic_store(&s->pid[rank], getpid());
    shared_flag_raise(&s->taken);
}

int mpi_ranks_run_child(int *code)
{
    const char *given = getenv(variable);
    int parent, fd[2], rank = rank_by_launcher();
    size_t bytes[2];
    mpi_ranks *s;
    test_job c = { 0 };
    void *page;

    *code = 1;
    if (given == NULL || rank < 0)
        return 0;
    if (sscanf(given, "%d %d %zu %d %zu", &parent, &fd[0], &bytes[0], &fd[1],
               &bytes[1]) != 5 ||
        (s = map_page(parent, fd[0], bytes[0])) == NULL ||
        (page = map_page(parent, fd[1], bytes[1])) == NULL)
        return 1;
    run_as_rank(&c, s, rank);
    if (!shared_flag_await(&s->begin, 1, START_MS))
        return 1;
    *code =
        ((test_job_fn)((intptr_t)mpi_ranks_run_child + s->fn))(&c, rank, page);
    fflush(NULL);
    atomic_store(&s->ended[rank], *code + 1);
    shared_flag_await(&s->leave, 1, 10 * START_MS);
    return 1;
}

/* ---- starting ------------------------------------------------------------ */

void mpi_ranks_allow_root(void)
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

/* A pipe would keep the launcher waiting for the processes that hold it. */
static _Noreturn void be_launcher(const char *launcher, int ranks, pid_t parent)
{
    char text[TEXT], count[8], self[TEXT] = "", *word[WORDS], *rest;
    int n = 0;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent ||
        readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        _exit(127);
    mpi_ranks_allow_root();
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
static void tell_ranks(const mpi_ranks *s, const void *page)
{
    size_t bytes[2];
    int fd[2] = { shared_page_fd(s, &bytes[0]),
                  shared_page_fd(page, &bytes[1]) };
    char text[TEXT];

    assert_true(fd[0] >= 0 && fd[1] >= 0);
    snprintf(text, sizeof text, "%d %d %zu %d %zu", getpid(), fd[0], bytes[0],
             fd[1], bytes[1]);
    setenv(variable, text, 1);
}

static void await_ranks(test_job *c)
{
    mpi_ranks *s = c->mpi;

    if (!shared_flag_await(&s->taken, (uint32_t)s->ranks, START_MS)) {
        mpi_ranks_print_output();
        test_job_give_up(c, "%d of %d ranks came", (int)atomic_load(&s->taken),
                         s->ranks);
    }
    for (int r = 0; r < s->ranks; r++)
        c->pid[r] = atomic_load(&s->pid[r]);
    shared_flag_raise(&s->begin);
}

void mpi_ranks_start(test_job *c, const char *launcher, int ranks,
                     test_job_fn fn, void *page, const char *format, ...)
{
    pid_t self = getpid(), child = 0;
    mpi_ranks *s = shared_page(sizeof *s);
    va_list args;

    memset(c, 0, sizeof *c);
    va_start(args, format);
    vsnprintf(c->what, sizeof c->what, format, args);
    va_end(args);
    test_job_make_folder(c);
    c->ranks = s->ranks = ranks;
    c->mpi = s;
    s->fn = (intptr_t)fn - (intptr_t)mpi_ranks_run_child;
    memcpy(s->folder, c->folder, sizeof s->folder);
    memcpy(s->what, c->what, sizeof s->what);
    tell_ranks(s, page);
    fflush(NULL);
    if (ftruncate(output_fd(), 0) != 0 || (child = fork()) < 0)
        test_job_give_up(c, "%s: %s", launcher, strerror(errno));
    if (child == 0)
        be_launcher(launcher, ranks, self);
    s->launcher = child;
    unsetenv(variable);
    await_ranks(c);
}

void mpi_ranks_print_output(void)
{
    char text[8192];
    ssize_t got = pread(output_fd(), text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = 0;
    print_message("%s\n", text);
}

/* ---- ending -------------------------------------------------------------- */

/* Returns the state that /proc shows for it; 0: it is gone. */
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

int mpi_ranks_exit_code(test_job *c, int rank)
{
    mpi_ranks *s = c->mpi;
    int gone = state_of(c->pid[rank]) == 0;
    int code = atomic_load(&s->ended[rank]) - 1;

    if (code < 0)
        return gone ? TEST_JOB_GONE : TEST_JOB_LATE;
    return code;
}

int mpi_ranks_is_stopped(test_job *c, int rank)
{
    return state_of(c->pid[rank]) == 'T';
}

static int await_launcher(mpi_ranks *s, int timeout_ms)
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

int mpi_ranks_await_end(test_job *c, int timeout_ms)
{
    return await_launcher(c->mpi, timeout_ms);
}

int mpi_ranks_release(test_job *c, int timeout_ms)
{
    shared_flag_raise(&c->mpi->leave);
    return await_launcher(c->mpi, timeout_ms);
}

/* Whether it runs; one that a launcher has killed, and not waited for, has a
 * moment to end. */
static int still_runs(test_job *c, int rank)
{
    int64_t deadline = oari_deadline(c->mpi->launcher == 0 ? DYING_MS : 0);

    while (mpi_ranks_exit_code(c, rank) == TEST_JOB_LATE) {
        if (oari_now_ns() >= deadline)
            return 1;
        nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    }
    return 0;
}

/* The launcher is asked to end, and its ranks, before it is made to. */
int mpi_ranks_kill(test_job *c)
{
    mpi_ranks *s = c->mpi;
    int left = 0;

    for (int r = 0; r < c->ranks; r++)
        if (still_runs(c, r)) {
            left += c->pid[r] > 0;
            if (c->pid[r] > 0)
                kill(c->pid[r], SIGKILL);
        }
    if (!mpi_ranks_release(c, TEST_JOB_LIMIT_MS))
        kill(s->launcher, SIGTERM);
    if (!await_launcher(s, TEST_JOB_LIMIT_MS)) {
        kill(s->launcher, SIGKILL);
        waitpid(s->launcher, NULL, 0);
    }
    shared_page_free(s, sizeof *s);
    c->mpi = NULL;
    return left;
}
