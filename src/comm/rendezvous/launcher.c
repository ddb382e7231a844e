/* SPDX-License-Identifier: Apache-2.0 */
/* launcher: reads the environment of the known launchers. The first launcher
 * that has set both rank and size counts; if none has, one of the two alone is
 * an error.
 *
 * The ranks meet, in this order: at OARSONG_STORE; at MASTER_ADDR and
 * MASTER_PORT; on one host, in a folder named after the job; under SLURM, on
 * the first host of the step, where rank 0 is, or else on the one that srun
 * runs on; elsewhere, if the launcher speaks PMIx, at an address that rank 0
 * publishes by it. A job on several hosts that has no secret gets one by PMIx,
 * too.
 */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/rendezvous/job.h"
#include "comm/rendezvous/bootstrap.h"
#include "comm/rendezvous/pmix.h"
#include "net/hostlist.h"
#include "net/secret.h"
#include "net/sock.h"

typedef struct launcher {
    const char *rank,
        *size;              /* names of variables, like all below but starter */
    const char *local_size; /* ranks on this host */
    const char *nodes[3];   /* hosts, where there is no local_size */
    const char *job[2];     /* tell jobs apart */
    const char *starter;    /* what sets these variables */
    int batch; /* rank 0 without a size is a batch script, a process alone */
} launcher;

#define SLURM_NODES \
    "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"

static const launcher launchers[] = {
    { .rank = "OARSONG_RANK",
      .size = "OARSONG_SIZE",
      .starter = "oarsong run" },
    { .rank = "RANK", .size = "WORLD_SIZE", .starter = "torchrun" },
    { .rank = "OMPI_COMM_WORLD_RANK",
      .size = "OMPI_COMM_WORLD_SIZE",
      .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .job = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" },
      .starter = "mpirun" },
    { .rank = "PMI_RANK", /* MPICH, and SLURM for it: srun --mpi=pmi2 */
      .size = "PMI_SIZE",
      .local_size = "MPI_LOCALNRANKS",
      .nodes = { SLURM_NODES },
      .job = { "PMI_PORT", "PMI_JOBID" },
      .starter = "mpiexec" },
    { .rank = "SLURM_PROCID",
      .size = "SLURM_NTASKS",
      .nodes = { SLURM_NODES },
      .job = { "SLURM_JOB_ID", "SLURM_STEP_ID" },
      .starter = "srun",
      .batch = 1 },
};

enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

/* Returns how many of rank and size are set. */
static int count_set(const launcher *l)
{
    return (oari_env_text(l->rank) != NULL) + (oari_env_text(l->size) != NULL);
}

/* Returns the launcher that has set both rank and size, or NULL. */
static const launcher *find_launcher(void)
{
    for (size_t i = 0; i < LAUNCHERS; i++)
        if (count_set(&launchers[i]) == 2)
            return &launchers[i];
    return NULL;
}

int oari_launcher_first(void)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        const char *rank = oari_env_text(launchers[i].rank);
        if (rank != NULL)
            return strcmp(rank, "0") == 0;
    }
    return 1;
}

/* Fails if one of a pair is set: taken for groups of one, the ranks would each
 * compute on their own, without a word. SLURM gives a batch script, which runs
 * once, a rank and often no size. */
static oar_status check_pair(const launcher *l)
{
    const char *rank = oari_env_text(l->rank);
    const char *there = rank != NULL ? l->rank : l->size;
    const char *missing = there == l->rank ? l->size : l->rank;

    if (count_set(l) != 1 ||
        (l->batch && rank != NULL && strcmp(rank, "0") == 0))
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s is set, but %s is not: %s sets both; for a process "
                     "alone unset %s",
                     there, missing, l->starter, there);
}

oar_status oari_launcher_rank(int *rank, int *size)
{
    const launcher *l = find_launcher();
    int64_t r = 0, n = 1;

    OARI_TRY(check_pair(&launchers[0]));
    for (size_t i = 1; l == NULL && i < LAUNCHERS; i++)
        OARI_TRY(check_pair(&launchers[i]));
    if (l != NULL) {
        OARI_TRY(oari_env_int(l->size, 1, INT_MAX, &n));
        OARI_TRY(oari_env_int(l->rank, 0, n - 1, &r));
    }
    *rank = (int)r;
    *size = (int)n;
    return OAR_OK;
}

/* ---- OARSONG_STORE ------------------------------------------------------- */

enum { STORE_MS = 30000 };

/* Returns what follows the scheme, with or without "//"; NULL: it is another.
 */
static const char *after_scheme(const char *text, const char *scheme)
{
    size_t bytes = strlen(scheme);

    if (strncmp(text, scheme, bytes) != 0)
        return NULL;
    return text + bytes + (strncmp(text + bytes, "//", 2) == 0 ? 2 : 0);
}

static oar_status open_store(const char *text, int rank, int64_t timeout_ms,
                             oari_bootstrap *bootstrap)
{
    const char *where;

    if ((where = after_scheme(text, "file:")) != NULL)
        return oar_store_create_file(where, &bootstrap->store);
    if ((where = after_scheme(text, "tcp:")) != NULL)
        return oar_store_create_tcp(where, timeout_ms, &bootstrap->store);
    if (strcmp(text, "pmix") == 0)
        return oari_bootstrap_pmix(NULL, rank, timeout_ms, bootstrap);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "OARSONG_STORE is \"%s\", but should be file:FOLDER, "
                     "tcp:HOST:PORT or pmix",
                     text);
}

oar_status oar_store_from_env(oar_store **store)
{
    const char *text = oari_env_text("OARSONG_STORE");
    oari_bootstrap bootstrap = { 0 };

    if (store == NULL)
        return oari_fail(OAR_E_ARG, "store_from_env: no place for the store");
    if (text == NULL || strcmp(text, "pmix") == 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "OARSONG_STORE is %s: start the job by `oarsong run`, "
                         "or make a store by oar_store_create_tcp",
                         text == NULL ? "not set" : text);
    OARI_TRY(open_store(text, 0, STORE_MS, &bootstrap));
    *store = bootstrap.store;
    return OAR_OK;
}

/* ---- MASTER_ADDR --------------------------------------------------------- */

enum { TORCH_PORT = 29500 };

/* Fails if connections to other hosts would be refused for want of a secret. */
static oar_status find_secret(void)
{
    oari_secret secret;
    oari_protection wire;
    oar_status status;

    OARI_TRY(oari_secret_find(&secret));
    status = oari_protection_for(&secret, 0, &wire);
    oari_secret_forget(&secret);
    return status;
}

/* Checks, for ranks on several hosts, that there is a secret, which may come
 * from the launcher. Without one rank 0 need not wait for ranks that its store
 * would refuse. */
static oar_status check_secret(const char *address, int rank,
                               int64_t timeout_ms)
{
    oar_status status;

    if (oari_sock_names_loopback(address))
        return OAR_OK;
    status = find_secret();
    if (status != OAR_E_AUTH || !oari_pmix_here(rank))
        return status;
    if (oari_bootstrap_secret(rank, timeout_ms) != OAR_OK)
        oari_log(OAR_LOG_WARN, "no secret by PMIx: %s", oar_last_error_text());
    return find_secret();
}

static int spans_hosts(const launcher *l, int size)
{
    int64_t here = size;
    const char *name = oari_env_text("LOCAL_WORLD_SIZE") != NULL || l == NULL ||
                               l->local_size == NULL
                           ? "LOCAL_WORLD_SIZE"
                           : l->local_size;

    return oari_env_int(name, 1, INT_MAX, &here) == OAR_OK && here < size;
}

/* Where torchrun's agent keeps a store of its own at MASTER_PORT, and tells its
 * ranks so, ours is at the port above (or, at the top, below). */
static oar_status meet_at_master(const char *host, int rank, int apart,
                                 const char *name, int64_t timeout_ms,
                                 oari_bootstrap *bootstrap)
{
    const char *agent = oari_env_text("TORCHELASTIC_USE_AGENT_STORE");
    char address[OARI_SOCK_TEXT];
    int bare_v6 = strchr(host, ':') != NULL && host[0] != '[', used;
    int64_t port = TORCH_PORT;

    OARI_TRY(oari_env_int("MASTER_PORT", 1, 65535, &port));
    if (agent != NULL && strcmp(agent, "True") == 0)
        port += port < 65535 ? 1 : -1;
    used = snprintf(address, sizeof address, bare_v6 ? "[%s]:%d" : "%s:%d",
                    host, (int)port);
    if (used >= (int)sizeof address)
        return oari_fail(OAR_E_ARG, "MASTER_ADDR is too long for an address");
    if (apart)
        OARI_TRY(check_secret(address, rank, timeout_ms));
    if (rank == 0 && apart && oari_sock_names_loopback(address))
        oari_log(OAR_LOG_WARN,
                 "rank 0 serves the store at %s, a loopback address here: "
                 "ranks on other hosts cannot reach it",
                 address);
    return oari_bootstrap_tcp(address, rank, name, timeout_ms, bootstrap);
}

/* ---- without an address -------------------------------------------------- */

/* Returns whether SLURM started the ranks, and not a launcher inside its job.
 */
static int is_slurm(const launcher *l)
{
    return l->nodes[0] != NULL &&
           (l->local_size == NULL || oari_env_text(l->local_size) == NULL);
}

static oar_status on_one_host(const launcher *l, int size, int *one)
{
    int64_t here = 0, nodes = 0;

    if (l->local_size != NULL)
        OARI_TRY(oari_env_int(l->local_size, 1, INT_MAX, &here));
    for (size_t i = 0; i < 3 && nodes == 0; i++)
        if (is_slurm(l) && l->nodes[i] != NULL)
            OARI_TRY(oari_env_int(l->nodes[i], 1, INT_MAX, &nodes));
    *one = here == size || nodes == 1;
    return OAR_OK;
}

/* Uses another folder each time: all ranks come here equally often, and one
 * that is early must not find the folder that is about to be removed. */
static oar_status meet_in_folder(const launcher *l, int rank,
                                 int64_t timeout_ms, oari_bootstrap *bootstrap)
{
    static _Atomic int times;
    char folder[OARI_JOB_FOLDER];

    OARI_TRY(
        oari_job_folder(l->rank, l->job, atomic_fetch_add(&times, 1), folder));
    if (rank == 0)
        oari_job_sweep(folder);
    return oari_bootstrap_folder(folder, rank, timeout_ms, bootstrap);
}

/* The port is outside the range from which systems give any port. */
static oar_status meet_by_slurm(const char *host, int rank, const char *name,
                                int64_t timeout_ms, oari_bootstrap *bootstrap)
{
    char address[OARI_SOCK_TEXT];
    int64_t job = 0, step = 0;

    OARI_TRY(oari_env_int("SLURM_JOB_ID", 0, INT64_MAX / 64, &job));
    OARI_TRY(oari_env_int("SLURM_STEP_ID", 0, INT64_MAX / 64, &step));
    snprintf(address, sizeof address,
             strchr(host, ':') != NULL ? "[%.200s]:%d" : "%.200s:%d", host,
             (int)(12288 + (job * 31 + step) % 16384));
    OARI_TRY(check_secret(address, rank, timeout_ms));
    return oari_bootstrap_tcp(address, rank, name, timeout_ms, bootstrap);
}

/* Gives the first host of the step, or else the one that srun runs on; "" where
 * SLURM does not say. */
static oar_status find_slurm_host(char host[OARI_HOST_ROOM])
{
    static const char *const lists[] = { "SLURM_STEP_NODELIST",
                                         "SLURM_JOB_NODELIST",
                                         "SLURM_NODELIST" };
    const char *srun = oari_env_text("SLURM_LAUNCH_NODE_IPADDR");

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char *list = oari_env_text(lists[i]);
        if (list != NULL)
            return oari_hostlist_first(list, strlen(list), host);
    }
    snprintf(host, OARI_HOST_ROOM, "%s", srun != NULL ? srun : "");
    return OAR_OK;
}

static oar_status fail_without_place(const launcher *l, int size)
{
    if (l->local_size == NULL && l->nodes[0] == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%d ranks, but nothing says where they meet: start "
                         "them with `oarsong run -n %d`, or set OARSONG_STORE "
                         "to file:FOLDER, or MASTER_ADDR and MASTER_PORT",
                         size, size);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "%d ranks by %s, on several hosts as it seems: set "
                     "MASTER_ADDR and MASTER_PORT to where rank 0 can serve "
                     "a store, and OARSONG_SECRET_FILE to a secret of the job",
                     size, l->size);
}

oar_status oari_launcher_bootstrap(int rank, int size, const char *name,
                                   int64_t timeout_ms,
                                   oari_bootstrap *bootstrap)
{
    const char *store = oari_env_text("OARSONG_STORE");
    const char *master = oari_env_text("MASTER_ADDR");
    char slurm[OARI_HOST_ROOM] = "";
    const launcher *l = find_launcher();
    int one = 0;

    if (store != NULL)
        return open_store(store, rank, timeout_ms, bootstrap);
    if (master != NULL)
        return meet_at_master(master, rank, spans_hosts(l, size), name,
                              timeout_ms, bootstrap);
    OARI_TRY(on_one_host(l, size, &one));
    if (one)
        return meet_in_folder(l, rank, timeout_ms, bootstrap);
    if (is_slurm(l))
        OARI_TRY(find_slurm_host(slurm));
    if (slurm[0] != 0)
        return meet_by_slurm(slurm, rank, name, timeout_ms, bootstrap);
    if (oari_pmix_here(rank))
        return oari_bootstrap_pmix(NULL, rank, timeout_ms, bootstrap);
    return fail_without_place(l, size);
}
