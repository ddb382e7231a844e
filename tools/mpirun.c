/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun: starts ranks of the backend mpi by MPI's own launcher, the one that
 * belongs to the plugin; OARSONG_MPIRUN names another, with its options.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "tool.h"

enum { WORDS = 128 };

static int is_mpi(const char *backend)
{
    return backend != NULL && strncmp(backend, "mpi", 3) == 0 &&
           (backend[3] == 0 || backend[3] == '-');
}

int tool_under_mpirun(const char *backend)
{
    return is_mpi(backend) &&
           (getenv("OMPI_COMM_WORLD_RANK") != NULL ||
            getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL);
}

int tool_wants_mpirun(const char *backend)
{
    return is_mpi(backend) && !tool_under_mpirun(backend);
}

/* Tells Open MPI to allow more ranks than cores, and root. */
static void allow_root(void)
{
    static const char *const always[][2] = {
        { "OMPI_MCA_rmaps_base_oversubscribe", "1" },
        { "PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe" },
    };
    static const char *const root[] = {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    };

    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        setenv(always[i][0], always[i][1], 0);
    for (size_t i = 0; geteuid() == 0 && i < sizeof root / sizeof *root; i++)
        setenv(root[i], "1", 0);
}

/* A command in words; how many. */
static int split(char *text, char **word)
{
    int n = 0;

    for (char *at = strtok(text, " "); at != NULL && n < WORDS / 2;
         at = strtok(NULL, " "))
        word[n++] = at;
    return n;
}

/* Becomes the first of them that is there. */
static void become(char *const *names, int ranks, const char *program,
                   char *const *args)
{
    char count[16], own[1024], *word[WORDS];

    snprintf(count, sizeof count, "%d", ranks);
    snprintf(own, sizeof own, "%s", program);
    for (; *names != NULL; names++) {
        int n = split(*names, word);
        word[n++] = "-n";
        word[n++] = count;
        word[n++] = own;
        for (int i = 0; args[i] != NULL && n < WORDS - 1; i++)
            word[n++] = args[i];
        word[n] = NULL;
        execvp(word[0], word);
    }
}

/* The launchers of that MPI, best first. */
static void find_names(const char *version, char text[3][256], char **names)
{
    const char *asked = getenv("OARSONG_MPIRUN");
    int open = strncmp(version, "Open MPI", 8) == 0;
    int n = 0;

    if (asked != NULL && asked[0] != 0)
        snprintf(text[n++], 256, "%s", asked);
    else {
        snprintf(text[n++], 256, open ? "mpirun.openmpi" : "mpiexec.mpich");
        snprintf(text[n++], 256, open ? "mpirun" : "mpiexec.hydra");
        snprintf(text[n++], 256, "mpiexec");
    }
    for (int i = 0; i < n; i++)
        names[i] = text[i];
    names[n] = NULL;
}

static void be_launcher(const char *version, int ranks, char *const *args)
{
    char text[3][256], *names[4], program[1024] = "";
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    find_names(version, text, names);
    allow_root();
    if (length > 0)
        become(names, ranks, program, args);
    fprintf(stderr,
            "oarsong: no launcher for %s: %s: %s; install it, or name one in "
            "OARSONG_MPIRUN\n",
            version, names[0], strerror(errno));
    _exit(TOOL_FAILED);
}

int tool_mpirun(const char *backend, int ranks, char *const *args)
{
    oar_backend_caps caps = oar_backend_caps_init();
    int status = 0;
    pid_t child;

    if (oar_backend_available(backend, &caps) != OAR_OK)
        return tool_failed(args[0]);
    fflush(NULL);
    if ((child = fork()) == 0)
        be_launcher(caps.note != NULL ? caps.note : "MPI", ranks, args);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child > 0 && WIFEXITED(status))
        return WEXITSTATUS(status);
    fprintf(stderr, "oarsong %s: mpirun did not end by itself\n", args[0]);
    return TOOL_FAILED;
}
