/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong conform: the whole matrix on one backend, with every value checked.
 * conform.h says how.
 *
 * There are two passes: one with the thresholds as they are, one with
 * thresholds so low that a thousand elements cross all of them. */
#include "conform.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tool.h"

enum { ROOM = 8 << 20, TIMEOUT_MS = 60000 };

/* ---- one rank ------------------------------------------------------------ */

static void go_through(conform_context *d)
{
    conform_barriers(d, d->world, "world");
    conform_collectives(d, d->world, "world", 0);
    conform_messages(d);
    if (!d->s->gpu) { /* what is of the host only */
        conform_bytes(d, d->world, "world");
        conform_matching(d);
    }
    conform_groups(d);
    conform_in_flight(d);
}

static oar_status be_rank(oar_group *group, void *arg)
{
    conform_settings *s = arg;
    conform_context d = { .s = s,
                          .world = group,
                          .rank = oar_group_rank(group),
                          .ranks = oar_group_size(group),
                          .room = ROOM };
    void *shared = NULL;
    oar_status status = oar_shared_alloc(ROOM, &shared);

    if (status != OAR_OK)
        return status;
    d.row = &s->ledger->row[d.rank];
    d.cell = (size_t)s->tight * (CONFORM_CELLS / 2);
    d.in_barriers = 0;
    d.shared = shared;
    d.private = calloc(1, ROOM);
    if (d.private != NULL && s->gpu)
        status = gpu_open(&d);
    if (status == OAR_OK && s->gpu)
        status = gpu_abilities(s);
    if (d.private != NULL && status == OAR_OK)
        go_through(&d);
    gpu_close(&d);
    free(d.private);
    oar_shared_free(shared);
    if (status != OAR_OK)
        return status;
    if (d.broken)
        return oar_group_fault(group, NULL);
    return d.private != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* ---- all of them --------------------------------------------------------- */

static oar_group_opts opts_of(const conform_settings *s)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = s->backend;
    o.algorithm = s->algorithm;
    if (getenv("OARSONG_TIMEOUT_MS") == NULL)
        o.timeout_ms = TIMEOUT_MS;
    if (s->tight) {
        o.small_bytes = 64;
        o.stage_bytes = 512;
        o.eager_bytes = 256;
        o.chunk_bytes = 128;
    }
    return o;
}

/* A group of one, without any other process. */
static oar_status run_alone(conform_settings *s, const oar_group_opts *o)
{
    oar_group *group = NULL;
    oar_status status = oar_group_create(NULL, 0, 1, o, &group);

    if (status == OAR_OK)
        status = be_rank(group, s);
    oar_group_destroy(group);
    return status;
}

/* Runs as one rank of a job that another launcher started. What it found must
 * be in the ledger before rank 0 reads it. */
static oar_status join_pass(conform_settings *s, const oar_group_opts *o)
{
    oar_group *group = NULL;
    oar_status status;

    if (s->tight && s->rank == 0) /* no rank goes on before this one joins */
        atomic_store(&s->ledger->arrived, 0);
    status = oar_group_from_env(o, &group);
    if (status == OAR_OK && oar_group_size(group) != s->ranks) {
        fprintf(stderr, "oarsong conform: %d ranks, but a job of %d\n",
                s->ranks, oar_group_size(group));
        status = OAR_E_WORLD;
    }
    if (status == OAR_OK) {
        s->rank = oar_group_rank(group);
        status = be_rank(group, s);
    }
    if (status == OAR_OK)
        status = oar_barrier(group, NULL, NULL);
    oar_group_destroy(group);
    return status;
}

static oar_status run_pass(conform_settings *s)
{
    oar_group_opts o = opts_of(s);
    oar_launch_result result = oar_launch_result_init();
    oar_launch_opts l = oar_launch_opts_init();

    l.hosts = s->hosts != NULL ? s->host : NULL;
    if (s->file != NULL)
        return join_pass(s, &o);
    atomic_store(&s->ledger->arrived, 0);
    if (strcmp(s->backend, "self") == 0)
        return run_alone(s, &o);
    if (strcmp(s->backend, "sim") == 0)
        return oar_sim_run_with(s->ranks, &o, be_rank, s);
    return oar_launch_fn(s->ranks, be_rank, s, &o, &l, &result);
}

static int run_both(conform_settings *s)
{
    for (s->tight = 0; s->tight < 2; s->tight++)
        if (run_pass(s) != OAR_OK)
            return conform_report(s, oar_last_error_text());
    s->tight = 1;
    return s->rank == 0 ? conform_report(s, NULL) : 0;
}

/* ---- the command line ---------------------------------------------------- */

static int usage(void)
{
    printf("oarsong conform [options]\n\n"
           "Runs every collective and message on ranks that it starts itself, "
           "and compares every\nvalue with one computed here. Exit code 1 if "
           "anything is wrong.\n\n"
           "  --backend B   native, shm, tcp, sim, self, mpi (which starts its "
           "ranks by mpirun),\n                gloo, ucc, or the path of a "
           "plugin (native)\n"
           "  --ranks N     how many (4)\n"
           "  --hosts H     as if on several hosts: 3+1, or 2 to deal the ranks"
           " in turn\n"
           "  --ledger F    start no ranks: be one of a job's ranks, with "
           "OARSONG_RANK set, all\n                on this machine; F is a "
           "file, new for this run, that they share\n"
           "  --quick       fewer sizes and variants: seconds instead of "
           "minutes\n"
           "  --kind K      only this one, e.g. all_reduce or wildcards\n"
           "  --dtype D     only this one, e.g. bf16\n"
           "  --algo A      force an algorithm by name\n"
           "  --seed S      other numbers\n"
           "  --device D    cpu, or cuda: buffers on a GPU, with the backend "
           "nccl, "
           "ipc or hybrid\n                (any other: with "
           "OARSONG_ENABLE_GPU_FALLBACK=1, through the host)\n"
           "  --format F    text or json (text)\n");
    return TOOL_OK;
}

static int read_kind(const char *text, int *found)
{
    for (int k = 0; k < KINDS; k++)
        if (strcmp(text, kind_name((conform_kind)k)) == 0) {
            *found = k;
            return 1;
        }
    fprintf(stderr, "oarsong conform: the kinds are");
    for (int k = 0; k < KINDS; k++)
        fprintf(stderr, " %s", kind_name((conform_kind)k));
    fprintf(stderr, "\n");
    return 0;
}

static int read_format(const char *text, int *json)
{
    *json = strcmp(text, "json") == 0;
    return *json || strcmp(text, "text") == 0;
}

/* An option with a value: 1; 0 if the value is bad, -1 if there is no such
 * option. */
static int read_option(conform_settings *s, const char *name, const char *value)
{
    oar_dtype dtype;
    size_t number;
    int good = 1;

    if (strcmp(name, "--backend") == 0)
        s->backend = value;
    else if (strcmp(name, "--algo") == 0)
        s->algorithm = value;
    else if (strcmp(name, "--hosts") == 0)
        s->hosts = value;
    else if (strcmp(name, "--ledger") == 0)
        s->file = value;
    else if (strcmp(name, "--ranks") == 0) {
        if ((good = tool_number(value, 1, CONFORM_MAX_RANKS, &number)))
            s->ranks = (int)number;
    } else if (strcmp(name, "--seed") == 0) {
        if ((good = tool_number(value, 0, SIZE_MAX, &number)))
            s->seed = number;
    } else if (strcmp(name, "--dtype") == 0) {
        if ((good = oar_dtype_parse(value, &dtype) == OAR_OK))
            s->only_dtype = (int)dtype;
    } else if (strcmp(name, "--kind") == 0)
        good = read_kind(value, &s->only_kind);
    else if (strcmp(name, "--format") == 0)
        good = read_format(value, &s->json);
    else if (strcmp(name, "--device") == 0) {
        s->gpu = strcmp(value, "cuda") == 0;
        good = s->gpu || strcmp(value, "cpu") == 0;
    } else
        good = -1;
    return good;
}

/* Only those can be set apart. */
static int starts_processes(const conform_settings *s)
{
    return strcmp(s->backend, "sim") != 0 && strcmp(s->backend, "self") != 0;
}

/* What only together makes no sense. */
static int fits(conform_settings *s)
{
    if ((s->hosts != NULL || s->file != NULL) && !starts_processes(s))
        return tool_refuse("conform",
                           "backend \"%s\" has no processes, which "
                           "--hosts and --ledger need",
                           s->backend);
    if (s->hosts != NULL && s->file != NULL)
        return tool_refuse("conform",
                           "--hosts is for ranks that are started "
                           "here, --ledger for those of another job");
    if (s->hosts != NULL &&
        !tool_hosts(s->hosts, CONFORM_MAX_RANKS, &s->ranks, s->host))
        return tool_refuse("conform",
                           "--hosts %s and %d ranks do not fit: 3+1, "
                           "or 2 to deal the ranks in turn",
                           s->hosts, s->ranks);
    return 1;
}

static int read_options(conform_settings *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int good;
        if (strcmp(argv[i], "--quick") == 0) {
            s->quick = 1;
            continue;
        }
        good = read_option(s, argv[i], i + 1 < argc ? argv[i + 1] : "");
        if (good != 1 || i + 1 == argc)
            return tool_bad_option("conform", argv[i], argv[i + 1], good);
        i++;
    }
    if (strcmp(s->backend, "self") == 0)
        s->ranks = 1;
    return fits(s);
}

/* Zeros at first, also in a file: it only ever grows, to the same size. */
static conform_ledger *make_ledger(int ranks, const char *file)
{
    size_t bytes = sizeof(conform_ledger) + (size_t)ranks * sizeof(conform_row);
    int flags = MAP_SHARED | MAP_NORESERVE, fd = -1;
    void *memory;

    if (file == NULL)
        flags |= MAP_ANONYMOUS;
    else if ((fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 ||
             ftruncate(fd, (off_t)bytes) != 0)
        return NULL;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0)
        close(fd);
    return memory != MAP_FAILED ? memory : NULL;
}

/* The ranks share a file, which is there for as long as they are. */
static int run_by_mpirun(const conform_settings *s, int argc, char **argv)
{
    char path[] = "/tmp/oarsong-conform-XXXXXX", *args[64];
    int code, n = 0, fd = mkstemp(path);

    if (fd < 0) {
        perror("oarsong conform: a file for the ledger");
        return TOOL_FAILED;
    }
    close(fd);
    for (; n < argc && n < 60; n++)
        args[n] = argv[n];
    args[n++] = "--ledger";
    args[n++] = path;
    args[n] = NULL;
    code = tool_mpirun(s->backend, s->ranks, args);
    unlink(path);
    return code;
}

int tool_conform(int argc, char **argv)
{
    conform_settings s = { .backend = "native",
                           .ranks = 4,
                           .only_kind = -1,
                           .only_dtype = -1,
                           .seed = 1 };
    oar_backend_caps caps = oar_backend_caps_init();

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage();
    if (!read_options(&s, argc, argv))
        return TOOL_USAGE;
    if (s.file == NULL && tool_wants_mpirun(s.backend))
        return run_by_mpirun(&s, argc, argv);
    /* the ranks are forked, and a GPU is not to be used before */
    if (!s.gpu && oar_backend_available(s.backend, &caps) != OAR_OK)
        return tool_failed("conform");
    s.can = caps.can;
    s.ledger = make_ledger(s.ranks, s.file);
    if (s.ledger == NULL) {
        fprintf(stderr, "oarsong conform: no memory for the ledger\n");
        return TOOL_FAILED;
    }
    return run_both(&s) == 0 ? TOOL_OK : TOOL_FAILED;
}
