/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_library: MPI in this process. A lock guards its beginning; where the
 * library bears only one thread at a time, another is held around every call.
 *
 * MPI is finalised at exit if we initialised it and all groups have ended well;
 * finalising waits for the other processes, so a rank that has failed must not.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/reduce/reduce.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

#ifdef OPEN_MPI
#define MADE_FOR "Open MPI"
#define PACKAGE  "openmpi-bin"
#else
#define MADE_FOR "MPICH"
#define PACKAGE  "mpich"
#endif

static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static int one_at_a_time;
static int started, ours;
static pid_t process; /* that initialised it: a child of it leaves it alone */
static _Atomic int open_groups, ruins;
static MPI_Op own_min, own_max, own_sum;
static MPI_Datatype halves[2];

void mpi_enter(void)
{
    if (one_at_a_time)
        pthread_mutex_lock(&calls);
}

void mpi_leave(void)
{
    if (one_at_a_time)
        pthread_mutex_unlock(&calls);
}

int mpi_is_shared(void)
{
    return !one_at_a_time;
}

void mpi_count_open(int more)
{
    atomic_fetch_add(&open_groups, more);
}

void mpi_count_ruin(void)
{
    atomic_fetch_add(&ruins, 1);
}

int mpi_is_over(void)
{
    int over = 0;

    MPI_Finalized(&over);
    return over;
}

oar_status mpi_fail_over(void)
{
    return oari_fail(OAR_E_STATE,
                     "MPI_Finalize was called before this group was "
                     "destroyed: it can only be destroyed now");
}

oar_status mpi_fail(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;

    mpi_enter();
    MPI_Error_string(code, text, &bytes);
    mpi_leave();
    text[strcspn(text, "\n")] = 0;
    return oari_fail(OAR_E_CLOSED, "%s: %s", what, text);
}

/* ---- which library ------------------------------------------------------- */

/* "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n..." */
static void shorten(const char *full, char *text, size_t bytes)
{
    const char *number = full + strlen(MADE_FOR);
    size_t length;

    number += strcspn(number, "0123456789");
    length = strspn(number, "0123456789.abrc");
    snprintf(text, bytes, "%s %.*s", MADE_FOR, (int)length, number);
}

const char *mpi_version(void)
{
    enum { FULL_BYTES = 8192 }; /* MPICH's, also where Open MPI was meant */
    static char text[64];
    char full[FULL_BYTES] = "";
    int bytes = 0;

    MPI_Get_library_version(full, &bytes);
    if (strncmp(full, MADE_FOR, strlen(MADE_FOR)) != 0) {
        oari_fail(OAR_E_UNAVAILABLE,
                  "this process uses another MPI (%.20s) than the plugin, "
                  "which is for " MADE_FOR,
                  full);
        return NULL;
    }
    pthread_mutex_lock(&beginning);
    shorten(full, text, sizeof text);
    pthread_mutex_unlock(&beginning);
    return text;
}

/* Open MPI 6.0 (release candidate 2) loses non-blocking collectives that
 * several threads have begun on several communicators: they are never done,
 * however often it is asked. 4.1 does not; nobody has tried 5. */
static int loses_collectives(const char *version)
{
    const char *number = version + strcspn(version, "0123456789");

    return strcmp(MADE_FOR, "Open MPI") == 0 && atoi(number) >= 5;
}

/* ---- operators ----------------------------------------------------------- */

/* Of those that our operators are used with. */
static oar_dtype dtype_of(MPI_Datatype type)
{
    const struct {
        MPI_Datatype type;
        oar_dtype dtype;
    } known[] = { { MPI_FLOAT, OAR_F32 },    { MPI_DOUBLE, OAR_F64 },
                  { halves[0], OAR_F16 },    { halves[1], OAR_BF16 },
                  { MPI_UINT8_T, OAR_U8 },   { MPI_UINT16_T, OAR_U16 },
                  { MPI_UINT32_T, OAR_U32 }, { MPI_UINT64_T, OAR_U64 } };
    size_t i = 0;

    while (known[i].type != type && i + 1 < sizeof known / sizeof *known)
        i++;
    return known[i].dtype;
}

static void combine(oar_reduce_op_kind kind, const void *in, void *inout,
                    int count, MPI_Datatype type)
{
    const void *const source[2] = { in, inout };
    oari_reduction r = { .kind = kind,
                         .dtype = dtype_of(type),
                         .sources = 2,
                         .source = source,
                         .destinations = 1,
                         .destination = &inout };

    oari_reduce(&r, (size_t)count);
}

static void fold_min(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(OAR_REDUCE_OP_MIN, in, inout, *count, *type);
}

static void fold_max(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(OAR_REDUCE_OP_MAX, in, inout, *count, *type);
}

static void fold_sum(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(OAR_REDUCE_OP_SUM, in, inout, *count, *type);
}

MPI_Op mpi_own(oar_reduce_op_kind kind)
{
    return kind == OAR_REDUCE_OP_MIN   ? own_min
           : kind == OAR_REDUCE_OP_MAX ? own_max
                                       : own_sum;
}

MPI_Datatype mpi_half(oar_dtype dtype)
{
    return halves[dtype == OAR_BF16];
}

static int make_operators(void)
{
    int code = MPI_Op_create(fold_min, 1, &own_min);

    if (code == MPI_SUCCESS)
        code = MPI_Op_create(fold_max, 1, &own_max);
    if (code == MPI_SUCCESS)
        code = MPI_Op_create(fold_sum, 1, &own_sum);
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        code = MPI_Type_contiguous(1, MPI_UINT16_T, &halves[i]);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&halves[i]);
    }
    return code;
}

/* ---- from beginning to end ----------------------------------------------- */

static void finalise(void)
{
    if (getpid() != process || atomic_load(&open_groups) != 0 ||
        atomic_load(&ruins) != 0 || mpi_is_over())
        return;
    MPI_Op_free(&own_min);
    MPI_Op_free(&own_max);
    MPI_Op_free(&own_sum);
    MPI_Type_free(&halves[0]);
    MPI_Type_free(&halves[1]);
    MPI_Finalize();
}

/* The plugin was opened for itself alone, and MPI with it; but what MPI loads
 * then looks for MPI's symbols among those of the whole process. */
static void show_symbols(void)
{
    Dl_info found;
    void *address = NULL;
    int (*call)(int *, char ***) = MPI_Init;

    memcpy(&address, &call, sizeof address);
    if (dladdr(address, &found) != 0 && found.dli_fname != NULL)
        dlopen(found.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static int has_launcher(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_SIZE",
                                         "PMIX_RANK",
                                         "PMI_RANK",
                                         "PMI_FD",
                                         "PMI_PORT",
                                         "PMI_ID" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return 1;
    return 0;
}

/* Where there are more ranks than cores Open MPI yields the core whenever it is
 * asked in vain. Beside programs that compute that takes milliseconds each time
 * (Linux 6.18: a process that yields loses its share), and who waits here knows
 * better when to. Not where it waits itself. */
static int init(int blocking, int *level)
{
    static const char name[] = "OMPI_MCA_mpi_yield_when_idle";
    int quiet = !blocking && getenv(name) == NULL, code;

    if (quiet)
        setenv(name, "0", 1);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level);
    if (quiet)
        unsetenv(name); /* it is not for programs that this one starts */
    return code;
}

static oar_status initialise(int ranks, int blocking, int *level)
{
    int code;

    if (ranks > 1 && !has_launcher())
        return oari_fail(OAR_E_UNAVAILABLE,
                         "no MPI launcher has started this process; run it by "
                         "mpirun (package " PACKAGE ") or srun --mpi=...");
    show_symbols();
    code = init(blocking, level);
    if (code != MPI_SUCCESS)
        return oari_fail(OAR_E_UNAVAILABLE, "MPI_Init_thread: error %d", code);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    ours = 1;
    return OAR_OK;
}

static oar_status start_locked(int ranks, int blocking, const char *version)
{
    int there = 0, level = MPI_THREAD_SINGLE, code;

    MPI_Initialized(&there);
    if (mpi_is_over())
        return oari_fail(OAR_E_UNAVAILABLE,
                         "MPI is finalised in this process; no group can be "
                         "made on it any more");
    if (started)
        return OAR_OK;
    if (there)
        MPI_Query_thread(&level);
    else
        OARI_TRY(initialise(ranks, blocking, &level));
    one_at_a_time = level < MPI_THREAD_MULTIPLE ||
                    (!blocking && loses_collectives(version));
    if ((code = make_operators()) != MPI_SUCCESS)
        return oari_fail(OAR_E_UNAVAILABLE, "MPI_Op_create: error %d", code);
    process = getpid();
    if (ours)
        atexit(finalise);
    started = 1;
    return OAR_OK;
}

oar_status mpi_start(int ranks, int blocking)
{
    const char *version = mpi_version();
    oar_status status;

    if (version == NULL)
        return OAR_E_UNAVAILABLE;
    pthread_mutex_lock(&beginning);
    status = start_locked(ranks, blocking, version);
    pthread_mutex_unlock(&beginning);
    return status;
}
