/* SPDX-License-Identifier: Apache-2.0 */
/* Groups from the environment of every launcher, whose variables are set by
 * hand in child processes; and groups whose ranks meet at a TCP address. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/collective.h>
#include <oarsong/group.h>

#include "base/fork.h"
#include "comm/rendezvous/job.h"
#include "net/sock.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000, RANKS = 3, MOST_TIMES = 12 };

/* Variables of all launchers, so that none of the machine's own count. */
static const char *const known[] = {
    "OARSONG_RANK",
    "OARSONG_SIZE",
    "OARSONG_STORE",
    "OARSONG_SECRET",
    "OARSONG_SECRET_FILE",
    "OARSONG_WIRE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_PORT",
    "PMI_JOBID",
    "PMIX_RANK",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
};

static int forget_env(void **state)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    return 0;
}

static void set_number(const char *name, int n)
{
    char text[16];

    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

/* ---- ranks --------------------------------------------------------------- */

/* An address that was free a moment ago. */
static void free_address(char address[OARI_SOCK_TEXT])
{
    int fd;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 1, &fd), OAR_OK);
    assert_int_equal(oari_sock_name(fd, address), OAR_OK);
    oari_fork_close(fd);
}

/* Whether the group is as it should be and can do something. */
static int try_group(oar_group *g, int rank)
{
    float sum = (float)(rank + 1);
    oar_span span = oar_span_of(&sum, 1, OAR_F32);

    if (oar_group_rank(g) != rank || oar_group_size(g) != RANKS)
        return 2;
    if (oar_all_reduce(g, span, OAR_SUM, NULL, NULL) != OAR_OK)
        return 3;
    return sum == 6 ? 0 : 4;
}

static oar_group_opts opts(void)
{
    oar_group_opts o = oar_group_opts_init();

    o.timeout_ms = PATIENCE_MS;
    return o;
}

/* Several groups one after the other; those that stay overlap. */
static int be_rank(int rank, int times, int stay)
{
    oar_group_opts o = opts();
    oar_group *g[MOST_TIMES] = { NULL };
    int code = 0;

    for (int i = 0; i < times && code == 0; i++) {
        if (i > 0 && !stay) {
            oar_group_destroy(g[i - 1]);
            g[i - 1] = NULL;
        }
        if (oar_group_from_env(&o, &g[i]) != OAR_OK) {
            fprintf(stderr, "rank %d: %s\n", rank, oar_last_error_text());
            code = 1;
        } else
            code = try_group(g[i], rank);
    }
    for (int i = 0; i < times; i++)
        oar_group_destroy(g[i]);
    return code;
}

static void expect_all(const pid_t *pid, int ranks)
{
    int how;

    for (int r = 0; r < ranks; r++) {
        assert_int_equal(waitpid(pid[r], &how, 0), pid[r]);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            fail_msg("rank %d ended with %x", r, how);
    }
}

/* Three processes with the rank under this name; the rest is in place. */
static void run_ranks(const char *rank_name, int times, int stay)
{
    pid_t pid[RANKS];

    for (int r = 0; r < RANKS; r++)
        if ((pid[r] = fork()) == 0) {
            set_number(rank_name, r);
            _exit(be_rank(r, times, stay));
        }
    expect_all(pid, RANKS);
}

/* ---- addresses ----------------------------------------------------------- */

static void set_master(const char *address, int torch_below)
{
    int port = atoi(strrchr(address, ':') + 1);

    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port - torch_below);
    set_number("WORLD_SIZE", RANKS);
}

static void torchrun_s_ranks_meet_at_the_master(void **state)
{
    char address[OARI_SOCK_TEXT];

    free_address(address);
    set_master(address, 0);
    run_ranks("RANK", 1, 1);
}

static void a_second_group_meets_there_too(void **state)
{
    char address[OARI_SOCK_TEXT];

    free_address(address);
    set_master(address, 0);
    run_ranks("RANK", 3, 1);
}

/* The first one's server goes with it, while others may be at the second. */
static void a_second_group_may_follow_the_first(void **state)
{
    char address[OARI_SOCK_TEXT];

    free_address(address);
    set_master(address, 0);
    run_ranks("RANK", MOST_TIMES, 0);
}

static void torchrun_s_own_store_is_left_alone(void **state)
{
    char address[OARI_SOCK_TEXT];

    free_address(address);
    set_master(address, 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    run_ranks("RANK", 1, 1);
}

static void a_master_may_be_named_by_ipv6(void **state)
{
    char address[OARI_SOCK_TEXT];
    int fd;

    if (oari_sock_listen("[::1]:0", 1, &fd) != OAR_OK)
        skip();
    assert_int_equal(oari_sock_name(fd, address), OAR_OK);
    oari_fork_close(fd);
    set_master(address, 0);
    setenv("MASTER_ADDR", "::1", 1);
    run_ranks("RANK", 1, 1);
}

/* The test is the launcher here: it serves, at the master's address or at one
 * that OARSONG_STORE names. */
static void ranks_use_a_store_that_is_served_already(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    /* Its allocator takes no care of forks: a child made while the server's
     * thread allocates may never get a lock. */
    print_message(
        "skipped: the address sanitizer cannot fork beside threads\n");
    skip();
#else

    oar_store_server *server;
    oar_store *store;
    char text[OARI_SOCK_TEXT + 8];
    const char *const scheme[] = { "tcp:", "tcp://" };

    assert_int_equal(oar_store_serve("127.0.0.1:0", &server), OAR_OK);
    set_master(oar_store_server_address(server), 0);
    run_ranks("RANK", 1, 1);
    for (int i = 0; i < 2; i++) {
        forget_env(NULL);
        set_number("OARSONG_SIZE", RANKS);
        snprintf(text, sizeof text, "%s%s", scheme[i],
                 oar_store_server_address(server));
        setenv("OARSONG_STORE", text, 1);
        run_ranks("OARSONG_RANK", 2, 1);
    }
    assert_int_equal(
        oar_store_create_tcp(oar_store_server_address(server), 0, &store),
        OAR_OK);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
#endif
}

static void a_port_that_others_have_is_named(void **state)
{
    char address[OARI_SOCK_TEXT];
    oar_group_opts o = opts();
    oar_group *g = NULL;
    int fd;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 5, &fd), OAR_OK);
    assert_int_equal(oari_sock_name(fd, address), OAR_OK);
    set_master(address, 0);
    setenv("RANK", "0", 1);
    o.timeout_ms = 50;
    assert_fails_with(oar_group_from_env(&o, &g), OAR_E_UNAVAILABLE, address);
    assert_non_null(strstr(oar_last_error_text(), "in use"));
    assert_null(g);
    oari_fork_close(fd);
}

/* ---- one host ------------------------------------------------------------ */

/* The folder that a job of this process's children meets in must not be left.
 */
static void run_in_folder(const char *rank, const char *job)
{
    char base[FOLDER_PATH];

    folder_make(base);
    setenv("XDG_RUNTIME_DIR", base, 1);
    if (job != NULL)
        setenv(job, "job/7", 1);
    run_ranks(rank, 2, 1);
    run_ranks(rank, MOST_TIMES, 0);
    assert_int_equal(folder_entries(base), 0);
    unsetenv("XDG_RUNTIME_DIR");
    folder_remove(base);
}

static void open_mpi_s_ranks_on_one_host_need_no_address(void **state)
{
    set_number("OMPI_COMM_WORLD_SIZE", RANKS);
    set_number("OMPI_COMM_WORLD_LOCAL_SIZE", RANKS);
    run_in_folder("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE");
}

static void mpich_s_ranks_on_one_host_need_no_address(void **state)
{
    set_number("PMI_SIZE", RANKS);
    set_number("MPI_LOCALNRANKS", RANKS);
    run_in_folder("PMI_RANK", NULL);
}

static void slurm_s_ranks_on_one_host_need_no_address(void **state)
{
    set_number("SLURM_NTASKS", RANKS);
    set_number("SLURM_NNODES", 1);
    run_in_folder("SLURM_PROCID", "SLURM_JOB_ID");
}

/* srun --mpi=pmi2 names ranks as MPICH does, and hosts as SLURM does. */
static void slurm_s_ranks_with_pmi_need_no_address(void **state)
{
    set_number("PMI_SIZE", RANKS);
    setenv("PMI_JOBID", "17.0", 1);
    set_number("SLURM_STEP_NUM_NODES", 1);
    run_in_folder("PMI_RANK", NULL);
}

/* Ranks of mpiexec in a job of SLURM's are where mpiexec put them. */
static void an_mpiexec_inside_slurm_counts_its_own_hosts(void **state)
{
    oar_group *g = NULL;

    set_number("PMI_RANK", 0);
    set_number("PMI_SIZE", RANKS);
    set_number("MPI_LOCALNRANKS", RANKS - 1);
    set_number("SLURM_NNODES", 1);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                      "on several hosts");
    assert_null(g);
}

/* mpirun says how many ranks are here: rank 0 need not wait for the others. */
static void open_mpi_s_ranks_elsewhere_need_a_secret(void **state)
{
    oar_group *g = NULL;

    set_number("OMPI_COMM_WORLD_RANK", 0);
    set_number("OMPI_COMM_WORLD_SIZE", RANKS);
    set_number("OMPI_COMM_WORLD_LOCAL_SIZE", RANKS - 1);
    setenv("MASTER_ADDR", "192.0.2.1", 1);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_AUTH,
                      "without a secret of the job");
    assert_null(g);
}

static void the_launcher_has_to_speak_pmix(void **state)
{
    oar_group *g = NULL;

    setenv("OARSONG_STORE", "pmix", 1);
    set_number("OARSONG_RANK", 0);
    set_number("OARSONG_SIZE", 2);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                      "does not speak it");
    setenv("PMIX_NAMESPACE", "elsewhere", 1);
    setenv("PMIX_RANK", "1", 1); /* another rank than this one has */
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                      "does not speak it");
    assert_null(g);
}

static void slurm_s_ranks_on_several_hosts_meet_where_it_runs(void **state)
{
    set_number("SLURM_NTASKS", RANKS);
    set_number("SLURM_NNODES", 2);
    set_number("SLURM_JOB_ID", (int)getpid()); /* and so the port */
    setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1", 1);
    run_ranks("SLURM_PROCID", 1, 1);
}

static void slurm_s_ranks_meet_on_the_first_host_of_the_step(void **state)
{
    set_number("SLURM_NTASKS", RANKS);
    set_number("SLURM_NNODES", 2);
    set_number("SLURM_JOB_ID", (int)getpid());
    setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1", 1); /* nobody's */
    setenv("SLURM_STEP_NODELIST", "127.0.0.[1-2],elsewhere", 1);
    run_ranks("SLURM_PROCID", 1, 1);
}

static void a_list_of_hosts_that_is_none_is_named(void **state)
{
    oar_group *g = NULL;

    set_number("SLURM_NTASKS", RANKS);
    set_number("SLURM_PROCID", 0);
    set_number("SLURM_NNODES", 2);
    setenv("SLURM_JOB_NODELIST", "node[1-", 1);
    assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_DATA, "node[1-");
}

static void ranks_on_several_hosts_are_refused_with_advice(void **state)
{
    static const char *const size[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_NTASKS" };
    static const char *const rank[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "SLURM_PROCID" };
    oar_group *g = NULL;

    for (int i = 0; i < 3; i++) {
        forget_env(NULL);
        set_number(size[i], 4);
        set_number(rank[i], 1);
        setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
        setenv("MPI_LOCALNRANKS", "2", 1);
        setenv("SLURM_NNODES", "2", 1);
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_UNAVAILABLE,
                          "MASTER_ADDR and MASTER_PORT");
        assert_non_null(strstr(oar_last_error_text(), size[i]));
    }
    assert_null(g);
}

static void half_a_pair_is_an_error_that_names_the_other_half(void **state)
{
    static const char *const pair[][2] = {
        { "OARSONG_RANK", "OARSONG_SIZE" },
        { "RANK", "WORLD_SIZE" },
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
        { "PMI_RANK", "PMI_SIZE" },
        { "SLURM_PROCID", "SLURM_NTASKS" },
    };
    char text[128];
    oar_group *g = NULL;

    for (int i = 0; i < 10; i++) {
        const char *there = pair[i / 2][i % 2];
        forget_env(NULL);
        set_number(there, 1);
        snprintf(text, sizeof text, "%s is set, but %s is not", there,
                 pair[i / 2][1 - i % 2]);
        assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_ARG, text);
    }
    assert_null(g);
}

static void half_a_pair_does_not_count_beside_a_whole_one(void **state)
{
    oar_group *g = NULL;

    set_number("WORLD_SIZE", 4);
    set_number("OMPI_COMM_WORLD_RANK", 0);
    set_number("OMPI_COMM_WORLD_SIZE", 1);
    OK(oar_group_from_env(NULL, &g));
    assert_int_equal(oar_group_size(g), 1);
    oar_group_destroy(g);
}

static void a_batch_script_of_slurm_is_a_process_alone(void **state)
{
    oar_group *g = NULL;

    set_number("SLURM_PROCID", 0);
    OK(oar_group_from_env(NULL, &g));
    assert_int_equal(oar_group_size(g), 1);
    oar_group_destroy(g);
}

static void a_word_that_means_nothing_is_refused(void **state)
{
    oar_group *g = NULL;

    setenv("OARSONG_LOG", "loud", 1);
    assert_fails_with(
        oar_group_from_env(NULL, &g), OAR_E_ARG,
        "OARSONG_LOG is \"loud\", but should be off, error, warn, info "
        "or debug");
    unsetenv("OARSONG_LOG");
    assert_null(g);
}

/* ---- the job's folder ---------------------------------------------------- */

/* What a rank says that finds something else in its folder's place. In a child,
 * whose first meeting it is. */
static int refuses(void (*prepare)(const char *folder))
{
    static const char *const job[2] = { NULL, NULL };
    char folder[OARI_JOB_FOLDER];
    oar_group *g = NULL;

    set_number("PMI_RANK", 1);
    if (oari_job_folder("PMI_RANK", job, 0, folder) != OAR_OK)
        return 1;
    prepare(folder);
    return fails_with(oar_group_from_env(NULL, &g), OAR_E_AUTH, folder) ? 0 : 2;
}

static void open_folder_to_others(const char *folder)
{
    if (mkdir(folder, 0700) != 0 || chmod(folder, 0770) != 0)
        _exit(3);
}

static void link_elsewhere(const char *folder)
{
    if (symlink("/tmp", folder) != 0)
        _exit(3);
}

static void a_folder_that_is_not_ours_alone_is_a_trap(void **state)
{
    void (*const prepare[])(const char *) = { open_folder_to_others,
                                              link_elsewhere };
    char base[FOLDER_PATH];
    pid_t pid;

    set_number("PMI_SIZE", 2);
    set_number("MPI_LOCALNRANKS", 2);
    for (int i = 0; i < 2; i++) {
        char clean[FOLDER_PATH + 64];
        folder_make(base);
        setenv("XDG_RUNTIME_DIR", base, 1);
        if ((pid = fork()) == 0)
            _exit(refuses(prepare[i]));
        expect_all(&pid, 1);
        snprintf(clean, sizeof clean, "rmdir %s/* 2>/dev/null; true", base);
        if (i == 0)
            assert_int_equal(system(clean), 0);
        folder_remove(base);
    }
    unsetenv("XDG_RUNTIME_DIR");
}

static void a_job_s_folder_is_named_by_user_job_and_launcher(void **state)
{
    static const char *const job[2] = { "SLURM_JOB_ID", "SLURM_STEP_ID" };
    char first[OARI_JOB_FOLDER], second[OARI_JOB_FOLDER], start[64];

    unsetenv("XDG_RUNTIME_DIR");
    setenv("SLURM_JOB_ID", "12/../3", 1);
    setenv("SLURM_STEP_ID", "4", 1);
    assert_int_equal(oari_job_folder("SLURM_PROCID", job, 7, first), OAR_OK);
    snprintf(start, sizeof start, "/tmp/oarsong-%ld-12....3-4-%ld-",
             (long)geteuid(), (long)getppid());
    assert_memory_equal(first, start, strlen(start));
    setenv("SLURM_STEP_ID", "5", 1);
    assert_int_equal(oari_job_folder("SLURM_PROCID", job, 7, second), OAR_OK);
    assert_string_not_equal(first, second);
}

/* When the process that launches the ranks began: anybody can find that out. */
static unsigned long long launcher_start(void)
{
    unsigned long long start = 0;
    char path[64], text[1024] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)getppid());
    file = fopen(path, "re");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_int_equal(sscanf(strrchr(text, ')') + 1,
                            " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u "
                            "%*u %*d %*d %*d %*d %*d %*d %llu",
                            &start),
                     1);
    return start;
}

static void only_its_user_can_guess_a_job_s_folder(void **state)
{
    static const char *const job[2] = { NULL, NULL };
    char path[OARI_JOB_FOLDER], guess[OARI_JOB_FOLDER], *place, *number;

    unsetenv("XDG_RUNTIME_DIR");
    snprintf(guess, sizeof guess, "/tmp/oarsong-%ld-%ld-%llu", (long)geteuid(),
             (long)getppid(), launcher_start());
    assert_int_equal(oari_job_folder("PMI_RANK", job, 0, path), OAR_OK);
    assert_memory_equal(path, guess, strlen(guess));
    number = strrchr(path, '-');
    assert_string_equal(number, "-0");
    *number = 0;
    place = strrchr(path, '-');
    assert_int_equal(strspn(place + 1, "0123456789abcdef"), 16);
    assert_int_equal(strlen(place + 1), 16);
}

static void make_left(const char *base, long pid, unsigned long long start,
                      int age_s, char path[OARI_JOB_FOLDER])
{
    struct timespec at[2] = { { .tv_nsec = UTIME_OMIT },
                              { .tv_sec = time(NULL) - age_s } };
    struct stat space;
    char secret[OARI_JOB_FOLDER + 16];
    FILE *file;

    assert_int_equal(stat("/proc/self/ns/pid", &space), 0);
    snprintf(path, OARI_JOB_FOLDER,
             "%s/oarsong-%ld-job-%ld-%llu-%llu-0123456789abcdef-0", base,
             (long)geteuid(), pid, start, (unsigned long long)space.st_ino);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(secret, sizeof secret, "%s/secret", path);
    file = fopen(secret, "we");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(utimensat(AT_FDCWD, path, at, 0), 0);
}

/* Where all ranks are killed while they meet, no process is left to clear away:
 * the next job does, unless a rank may still be there. */
static void what_a_killed_job_left_is_removed_by_the_next(void **state)
{
    char base[FOLDER_PATH], left[3][OARI_JOB_FOLDER], here[OARI_JOB_FOLDER];
    pid_t gone = fork();

    if (gone == 0)
        _exit(0);
    expect_all(&gone, 1);
    folder_make(base);
    make_left(base, gone, 1, 3600, left[0]);
    make_left(base, gone, 2, 1, left[1]); /* just now */
    make_left(base, getppid(), launcher_start(), 3600, left[2]);
    snprintf(here, sizeof here, "%s/oarsong-here", base);
    oari_job_sweep(here);
    assert_int_equal(access(left[0], F_OK), -1);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(access(left[i], F_OK), 0);
        folder_remove(left[i]);
    }
    folder_remove(base);
}

static void a_group_that_fails_leaves_no_folder(void **state)
{
    char base[FOLDER_PATH];
    oar_group_opts o = opts();
    oar_group *g = NULL;

    folder_make(base);
    setenv("XDG_RUNTIME_DIR", base, 1);
    set_number("PMI_SIZE", 2);
    set_number("MPI_LOCALNRANKS", 2);
    set_number("PMI_RANK", 1);
    o.timeout_ms = 50;
    assert_fails_with(oar_group_from_env(&o, &g), OAR_E_TIMEOUT, "");
    assert_int_equal(folder_entries(base), 0);
    unsetenv("XDG_RUNTIME_DIR");
    folder_remove(base);
}

/* ---- by address ---------------------------------------------------------- */

static int be_tcp_rank(const char *address, int rank)
{
    oar_group_opts o = opts();
    leak_check before = leak_check_begin();
    oar_group *g = NULL;
    int code;

    if (oar_group_create_tcp(address, rank, RANKS, &o, &g) != OAR_OK)
        return 1;
    code = try_group(g, rank);
    oar_group_destroy(g);
    if (code == 0 && leak_check_begin().descriptors != before.descriptors)
        code = 5;
    return code;
}

static void ranks_meet_at_an_address(void **state)
{
    char address[OARI_SOCK_TEXT];
    pid_t pid[RANKS];

    free_address(address);
    for (int r = 0; r < RANKS; r++)
        if ((pid[r] = fork()) == 0)
            _exit(be_tcp_rank(address, r));
    expect_all(pid, RANKS);
}

/* ---- secrets ------------------------------------------------------------- */

static const char *const secret_of[2] = {
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e20"
};

static void ranks_meet_by_a_secret_and_by_tls(void **state)
{
    static const char *const wire[] = { "auto", "auth", "tls" };

    for (int i = 0; i < 3; i++) {
        char address[OARI_SOCK_TEXT];
        setenv("OARSONG_SECRET", secret_of[0], 1);
        setenv("OARSONG_WIRE", wire[i], 1);
        free_address(address);
        set_master(address, 0);
        run_ranks("RANK", 2, 1);
    }
}

/* Two jobs that were given one port: the second does not become part of the
 * first, neither by its rank 0 nor by another. */
static void two_jobs_at_one_address_do_not_merge(void **state)
{
    oar_store_server *server;
    oar_group_opts o = opts();
    oar_group *g = NULL;

    setenv("OARSONG_SECRET", secret_of[0], 1);
    assert_int_equal(oar_store_serve("127.0.0.1:0", &server), OAR_OK);
    for (int other = 0; other < 2; other++) {
        unsetenv("OARSONG_SECRET");
        if (other)
            setenv("OARSONG_SECRET", secret_of[1], 1);
        set_master(oar_store_server_address(server), 0);
        setenv("RANK", "0", 1);
        assert_fails_with(oar_group_from_env(&o, &g), OAR_E_AUTH,
                          "another job");
        setenv("RANK", "1", 1);
        assert_fails_with(oar_group_from_env(&o, &g), OAR_E_AUTH, "secret");
        assert_fails_with(oar_group_create_tcp(oar_store_server_address(server),
                                               2, 3, &o, &g),
                          OAR_E_AUTH, "secret");
    }
    assert_null(g);
    oar_store_server_destroy(server);
}

/* Where it is known that there are other hosts, no rank waits for them. */
static void several_hosts_without_a_secret_are_refused_with_advice(void **state)
{
    static const char *const words[] = { "oarsong run", "OARSONG_SECRET_FILE",
                                         "OARSONG_WIRE=plain" };
    oar_group *g = NULL;

    for (int slurm = 0; slurm < 2; slurm++)
        for (int rank = 0; rank < 2; rank++) {
            forget_env(NULL);
            set_number(slurm ? "SLURM_NTASKS" : "WORLD_SIZE", RANKS);
            set_number(slurm ? "SLURM_PROCID" : "RANK", rank);
            setenv(slurm ? "SLURM_NNODES" : "LOCAL_WORLD_SIZE", "2", 1);
            setenv(slurm ? "SLURM_LAUNCH_NODE_IPADDR" : "MASTER_ADDR",
                   "192.0.2.1", 1);
            for (int i = 0; i < 3; i++)
                assert_fails_with(oar_group_from_env(NULL, &g), OAR_E_AUTH,
                                  words[i]);
        }
    assert_null(g);
}

static void an_invalid_secret_stops_all_ranks(void **state)
{
    oar_store_server *server = NULL;
    oar_store *store = NULL;

    setenv("OARSONG_SECRET", "0123", 1);
    assert_fails_with(oar_store_serve("127.0.0.1:0", &server), OAR_E_ARG,
                      "OARSONG_SECRET");
    assert_fails_with(oar_store_create_tcp("127.0.0.1:1", 0, &store), OAR_E_ARG,
                      "OARSONG_SECRET");
    unsetenv("OARSONG_SECRET");
    setenv("OARSONG_WIRE", "tls", 1);
    assert_fails_with(oar_store_serve("127.0.0.1:0", &server), OAR_E_AUTH,
                      "OARSONG_WIRE=tls");
    setenv("OARSONG_WIRE", "sure", 1);
    assert_fails_with(oar_store_serve("127.0.0.1:0", &server), OAR_E_ARG,
                      "sure");
    assert_true(server == NULL && store == NULL);
}

static void a_tcp_group_of_one_needs_no_network(void **state)
{
    leak_check before = leak_check_begin();
    oar_group *g = NULL;

    assert_int_equal(oar_group_create_tcp("192.0.2.1:1", 0, 1, NULL, &g),
                     OAR_OK);
    assert_int_equal(oar_group_size(g), 1);
    oar_group_destroy(g);
    leak_check_end(&before);
}

static void a_tcp_group_refuses_bad_arguments(void **state)
{
    leak_check before = leak_check_begin();
    oar_group_opts o = opts();
    oar_group *g = NULL;
    char address[OARI_SOCK_TEXT];

    o.timeout_ms = 30;
    free_address(address);
    assert_fails_with(oar_group_create_tcp(NULL, 0, 2, NULL, &g), OAR_E_ARG,
                      "address");
    assert_fails_with(oar_group_create_tcp("127.0.0.1:1", 0, 2, NULL, NULL),
                      OAR_E_ARG, "place");
    assert_fails_with(oar_group_create_tcp("127.0.0.1:0", 0, 2, NULL, &g),
                      OAR_E_ARG, "port");
    assert_fails_with(oar_group_create_tcp("here", 1, 2, &o, &g), OAR_E_ARG,
                      "here");
    assert_fails_with(oar_group_create_tcp(address, 2, 2, &o, &g), OAR_E_RANK,
                      "rank 2");
    assert_fails_with(oar_group_create_tcp(address, 0, 0, &o, &g), OAR_E_WORLD,
                      "group of 0");
    assert_fails_with(oar_group_create_tcp(address, 1, 2, &o, &g), OAR_E_CLOSED,
                      address);
    assert_int_not_equal(oar_group_create_tcp(address, 0, 2, &o, &g), OAR_OK);
    assert_fails_with(oar_group_create_tcp("192.0.2.1:7", 0, 2, &o, &g),
                      OAR_E_SYSTEM, "192.0.2.1:7");
    assert_null(g);
    leak_check_end(&before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, forget_env, forget_env)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(torchrun_s_ranks_meet_at_the_master),
        TEST(a_second_group_meets_there_too),
        TEST(a_second_group_may_follow_the_first),
        TEST(torchrun_s_own_store_is_left_alone),
        TEST(a_master_may_be_named_by_ipv6),
        TEST(ranks_use_a_store_that_is_served_already),
        TEST(a_port_that_others_have_is_named),
        TEST(open_mpi_s_ranks_on_one_host_need_no_address),
        TEST(mpich_s_ranks_on_one_host_need_no_address),
        TEST(slurm_s_ranks_on_one_host_need_no_address),
        TEST(slurm_s_ranks_with_pmi_need_no_address),
        TEST(an_mpiexec_inside_slurm_counts_its_own_hosts),
        TEST(open_mpi_s_ranks_elsewhere_need_a_secret),
        TEST(the_launcher_has_to_speak_pmix),
        TEST(slurm_s_ranks_on_several_hosts_meet_where_it_runs),
        TEST(slurm_s_ranks_meet_on_the_first_host_of_the_step),
        TEST(a_list_of_hosts_that_is_none_is_named),
        TEST(ranks_on_several_hosts_are_refused_with_advice),
        TEST(half_a_pair_is_an_error_that_names_the_other_half),
        TEST(half_a_pair_does_not_count_beside_a_whole_one),
        TEST(a_batch_script_of_slurm_is_a_process_alone),
        TEST(a_word_that_means_nothing_is_refused),
        TEST(a_folder_that_is_not_ours_alone_is_a_trap),
        TEST(a_job_s_folder_is_named_by_user_job_and_launcher),
        TEST(only_its_user_can_guess_a_job_s_folder),
        TEST(what_a_killed_job_left_is_removed_by_the_next),
        TEST(a_group_that_fails_leaves_no_folder),
        TEST(ranks_meet_at_an_address),
        TEST(ranks_meet_by_a_secret_and_by_tls),
        TEST(two_jobs_at_one_address_do_not_merge),
        TEST(several_hosts_without_a_secret_are_refused_with_advice),
        TEST(an_invalid_secret_stops_all_ranks),
        TEST(a_tcp_group_of_one_needs_no_network),
        TEST(a_tcp_group_refuses_bad_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
