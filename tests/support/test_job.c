/* SPDX-License-Identifier: Apache-2.0 */
#include "support/test_job.h"

#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/leak_check.h"
#include "support/mpi_ranks.h"

/* ---- flags --------------------------------------------------------------- */

/* Pages are files, so that ranks that are no children can have them. */
static struct {
    void *page;
    size_t bytes;
    int fd;
} pages[32];
enum { PAGES = sizeof pages / sizeof *pages };

void *shared_page(size_t bytes)
{
    int i = 0;

    while (i < PAGES && pages[i].page != NULL)
        i++;
    assert_true(i < PAGES);
    pages[i].fd = memfd_create("page", MFD_CLOEXEC);
    pages[i].bytes = bytes;
    assert_int_equal(ftruncate(pages[i].fd, (off_t)bytes), 0);
    pages[i].page =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages[i].fd, 0);
    assert_true(pages[i].page != MAP_FAILED);
    return pages[i].page;
}

void shared_page_free(void *page, size_t bytes)
{
    munmap(page, bytes);
    for (int i = 0; i < PAGES; i++)
        if (pages[i].page == page) {
            close(pages[i].fd);
            pages[i].page = NULL;
        }
}

int shared_page_fd(const void *page, size_t *bytes)
{
    for (int i = 0; i < PAGES; i++)
        if (pages[i].page == page) {
            *bytes = pages[i].bytes;
            return pages[i].fd;
        }
    return -1;
}

void shared_flag_raise(shared_flag *flag)
{
    atomic_fetch_add(flag, 1);
    syscall(SYS_futex, flag, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int shared_flag_await(shared_flag *flag, uint32_t value, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms), left;
    uint32_t now;

    while ((now = atomic_load(flag)) < value) {
        struct timespec time;
        if ((left = deadline - oari_now_ns()) <= 0)
            return 0;
        time.tv_sec = left / 1000000000;
        time.tv_nsec = left % 1000000000;
        syscall(SYS_futex, flag, FUTEX_WAIT, now, &time, NULL, 0);
    }
    return 1;
}

int test_job_checks_leaks;

/* Asked by a sanitizer when a process exits. */
OAR_API int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return !test_job_checks_leaks;
}

/* ---- starting ------------------------------------------------------------ */

static _Noreturn void be_rank(test_job *c, int rank, pid_t parent,
                              test_job_fn fn, void *arg)
{
    struct rlimit none = { 0, 0 };

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setrlimit(RLIMIT_CORE, &none); /* a crash leaves no file */
    setenv("TMPDIR", c->folder, 1);
    exit(fn(c, rank, arg));
}

void test_job_make_folder(test_job *c)
{
    const char *base = getenv("TMPDIR");

    snprintf(c->folder, sizeof c->folder, "%s/oarsong-job-XXXXXX",
             base != NULL ? base : "/tmp");
    if (mkdtemp(c->folder) == NULL)
        fail_msg("make a folder %s: %s", c->folder, strerror(errno));
}

void test_job_start(test_job *c, int ranks, test_job_fn fn, void *arg,
                    const char *format, ...)
{
    pid_t self = getpid();
    va_list args;

    memset(c, 0, sizeof *c);
    va_start(args, format);
    vsnprintf(c->what, sizeof c->what, format, args);
    va_end(args);
    test_job_make_folder(c);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* children of ranks become ours */
    fflush(NULL);
    c->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        pid_t pid = fork();
        if (pid == 0)
            be_rank(c, r, self, fn, arg);
        if (pid < 0)
            test_job_give_up(c, "fork: %s", strerror(errno));
        c->pid[r] = pid;
    }
}

void test_job_restart(test_job *c, int rank, test_job_fn fn, void *arg)
{
    pid_t self = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        be_rank(c, rank, self, fn, arg);
    if (pid < 0)
        test_job_give_up(c, "fork: %s", strerror(errno));
    c->pid[rank] = pid;
}

oar_status test_job_store(const test_job *c, oar_store **store)
{
    char path[160];

    snprintf(path, sizeof path, "%s/store", c->folder);
    return oar_store_create_file(path, store);
}

oar_status test_job_join(const test_job *c, int rank,
                         const oar_group_opts *opts, oar_group **group)
{
    oar_group_opts o = opts != NULL ? *opts : oar_group_opts_init();
    oar_store *store;
    oar_status status = test_job_store(c, &store);

    if (status != OAR_OK)
        return status;
    if (o.backend == NULL)
        o.backend = "shm";
    status = oar_group_create(store, rank, c->ranks, &o, group);
    oar_store_destroy(store);
    return status;
}

int test_job_fail(const test_job *c, int rank, const char *file, int line,
                  const char *condition)
{
    fprintf(stderr, "%s:%d: [%s] rank %d failed: %s\n    last error: %s: %s\n",
            file, line, c->what, rank, condition,
            oar_status_name(oar_last_error()->status), oar_last_error_text());
    return 1;
}

/* ---- waiting ------------------------------------------------------------- */

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){ 0, 200000 }, NULL);
}

static int code_of(const siginfo_t *info)
{
    return info->si_code == CLD_EXITED ? info->si_status
                                       : 128 + info->si_status;
}

/* What waitid says of a rank, asked again until the deadline; 0: nothing. */
static int look_for(test_job *c, int rank, int kind, int timeout_ms,
                    siginfo_t *info)
{
    int64_t deadline = oari_deadline(timeout_ms);

    for (;;) {
        memset(info, 0, sizeof *info);
        if (c->pid[rank] <= 0 ||
            waitid(P_PID, (id_t)c->pid[rank], info, kind | WNOHANG) != 0)
            return 0;
        if (info->si_pid != 0)
            return 1;
        if (oari_now_ns() >= deadline)
            return 0;
        pause_briefly();
    }
}

static int await_mpi_rank(test_job *c, int rank, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);
    int code;

    while ((code = mpi_ranks_exit_code(c, rank)) == TEST_JOB_LATE &&
           oari_now_ns() < deadline)
        pause_briefly();
    return code;
}

static int await_stopped_mpi_rank(test_job *c, int rank, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);

    while (!mpi_ranks_is_stopped(c, rank)) {
        if (mpi_ranks_exit_code(c, rank) != TEST_JOB_LATE ||
            oari_now_ns() >= deadline)
            return 0;
        pause_briefly();
    }
    return 1;
}

int test_job_wait(test_job *c, int rank, int timeout_ms)
{
    siginfo_t info;

    if (c->mpi != NULL)
        return await_mpi_rank(c, rank, timeout_ms);
    if (!look_for(c, rank, WEXITED, timeout_ms, &info))
        return TEST_JOB_LATE;
    c->pid[rank] = 0;
    return code_of(&info);
}

int test_job_wait_stopped(test_job *c, int rank, int timeout_ms)
{
    siginfo_t info;

    if (c->mpi != NULL)
        return await_stopped_mpi_rank(c, rank, timeout_ms);
    /* Its end is looked for as well, but left to be waited for. */
    if (!look_for(c, rank, WSTOPPED | WEXITED | WNOWAIT, timeout_ms, &info) ||
        info.si_code != CLD_STOPPED)
        return 0;
    return waitid(P_PID, (id_t)c->pid[rank], &info, WSTOPPED | WNOHANG) == 0;
}

void test_job_expect(test_job *c, int rank, int code)
{
    int ended = test_job_wait(c, rank, (int)busy_ms(TEST_JOB_LIMIT_MS));

    if (ended == code)
        return;
    if (ended == TEST_JOB_LATE)
        test_job_give_up(c, "rank %d has not ended", rank);
    test_job_give_up(c, "rank %d ended with %d, not %d", rank, ended, code);
}

/* ---- ending -------------------------------------------------------------- */

static int end_ranks(test_job *c)
{
    int left = 0;

    if (c->mpi != NULL)
        return mpi_ranks_kill(c);
    for (int r = 0; r < c->ranks; r++)
        if (c->pid[r] > 0) {
            left++;
            kill(c->pid[r], SIGKILL);
            waitpid(c->pid[r], NULL, 0);
            c->pid[r] = 0;
        }
    return left;
}

static void clear_folder(test_job *c)
{
    oar_store *store;

    if (test_job_store(c, &store) != OAR_OK)
        return;
    oar_store_clear(store);
    oar_store_destroy(store);
}

void test_job_give_up(test_job *c, const char *format, ...)
{
    char why[256];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    test_job_close(c);
    fail_msg("%s: %s", c->what, why);
}

/* Orphans of the ranks are ours: all must end by themselves. */
static int orphans_left(void)
{
    int64_t deadline = oari_deadline(5000);
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0) {
        if (pid == 0 && oari_now_ns() >= deadline)
            return 1;
        if (pid == 0)
            pause_briefly();
    }
    return errno != ECHILD;
}

/* A fuzzer may run beside us, and has its folder in memory. */
static int is_ours(const char *name, const char *prefix)
{
    return name[0] != '.' && strncmp(name, prefix, strlen(prefix)) == 0 &&
           strncmp(name, "oarsong-fuzz", strlen("oarsong-fuzz")) != 0;
}

/* The first entry of a folder with such a name, or NULL. */
static const char *entry_of(const char *folder, const char *prefix)
{
    static char name[256];
    DIR *list = opendir(folder);
    struct dirent *item;
    const char *found = NULL;

    if (list == NULL)
        return NULL;
    while (found == NULL && (item = readdir(list)) != NULL)
        if (is_ours(item->d_name, prefix)) {
            snprintf(name, sizeof name, "%s", item->d_name);
            found = name;
        }
    closedir(list);
    return found;
}

/* Returns what is left behind after all ranks have ended, or NULL. */
static const char *look_for_rest(test_job *c, int left)
{
    static char text[512];
    const char *file;

    text[0] = 0;
    if (left != 0)
        snprintf(text, sizeof text, "%d ranks were still running", left);
    else if (orphans_left())
        snprintf(text, sizeof text, "a process is left behind");
    else if ((file = entry_of(c->folder, "")) != NULL)
        snprintf(text, sizeof text, "a file is left behind: %s/%s", c->folder,
                 file);
    else if ((file = entry_of("/dev/shm", "oarsong")) != NULL)
        snprintf(text, sizeof text, "a file is left behind: /dev/shm/%s", file);
    return text[0] != 0 ? text : NULL;
}

const char *test_job_close(test_job *c)
{
    int left = end_ranks(c);
    const char *rest;

    clear_folder(c);
    rest = look_for_rest(c, left);
    folder_remove(c->folder);
    return rest;
}

void test_job_end(test_job *c)
{
    const char *rest = test_job_close(c);

    if (rest != NULL)
        fail_msg("%s: %s", c->what, rest);
}

/* ---- numbers ------------------------------------------------------------- */

int64_t ms_since(int64_t ns)
{
    return (oari_now_ns() - ns) / 1000000;
}

int64_t busy_ms(int64_t idle_ms)
{
    FILE *file = fopen("/proc/loadavg", "re");
    long cores = sysconf(_SC_NPROCESSORS_ONLN), running = 0;
    double load = 0;                                    /* of the last minute */
    const char *slower = getenv("OARSONG_TEST_SLOWER"); /* under a tool */

    if (slower != NULL && atoi(slower) > 1)
        idle_ms *= atoi(slower);
    if (file != NULL) {
        if (fscanf(file, "%lf %*f %*f %ld/", &load, &running) != 2)
            load = 0;
        fclose(file);
    }
    if (load > (double)running)
        running = (long)load;
    return idle_ms * (1 + running / (cores > 0 ? cores : 1));
}

int is_in_time(int64_t since_ns, int64_t idle_ms)
{
    return ms_since(since_ns) < busy_ms(idle_ms);
}

uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int open_descriptors(void)
{
    DIR *list = opendir("/proc/self/fd");
    int count = 0;

    while (list != NULL && readdir(list) != NULL)
        count++;
    if (list != NULL)
        closedir(list);
    return count;
}

int memory_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int count = 0, c;

    while (maps != NULL && (c = fgetc(maps)) != EOF)
        count += c == '\n';
    if (maps != NULL)
        fclose(maps);
    return count;
}
