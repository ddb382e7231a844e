/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_library: MPI in this process. A lock guards its start; where only one
 * thread at a time may call MPI, another is held around every call.
 *
 * MPI is finalised at exit if we initialised it and all groups have ended well.
 * A rank that has failed must not: finalising waits for the other processes.
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

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;
static int serialised;
static int started, ours;
static pid_t process; /* that initialised it: a forked child must not end it */
static _Atomic int open_groups, abandoned_count;
static MPI_Op custom_min, custom_max, custom_sum;
static MPI_Datatype halves[2];

void mpi_lock(void)
{
    if (serialised)
        pthread_mutex_lock(&call_lock);
}

void mpi_unlock(void)
{
    if (serialised)
        pthread_mutex_unlock(&call_lock);
}

void mpi_count_open(int more)
{
    atomic_fetch_add(&open_groups, more);
}

void mpi_count_abandoned(void)
{
    atomic_fetch_add(&abandoned_count, 1);
}

int mpi_is_finalized(void)
{
    int over = 0;

    MPI_Finalized(&over);
    return over;
}

oar_status mpi_fail_finalized(void)
{
    return oari_fail(OAR_E_STATE,
                     "MPI_Finalize was called before this group was "
                     "destroyed: it can only be destroyed now");
}

oar_status mpi_fail(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;

    mpi_lock();
    MPI_Error_string(code, text, &bytes);
    mpi_unlock();
    text[strcspn(text, "\n")] = 0;
    return oari_fail(OAR_E_CLOSED, "%s: %s", what, text);
}

/* ---- which library ------------------------------------------------------- */

const char *mpi_version(void)
{
    enum { FULL_BYTES = 8192 }; /* MPICH's, also where Open MPI was meant */
    static char text[64];
    char full[FULL_BYTES] = "";
    const char *number = full + strlen(MADE_FOR);
    int bytes = 0;

    MPI_Get_library_version(full, &bytes);
    if (strncmp(full, MADE_FOR, strlen(MADE_FOR)) != 0) {
        oari_fail(OAR_E_UNAVAILABLE,
                  "this process uses another MPI (%.20s) than the plugin, "
                  "which is for " MADE_FOR,
                  full);
        return NULL;
    }
    /* "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n..." */
    number += strcspn(number, "0123456789");
    pthread_mutex_lock(&start_lock);
    snprintf(text, sizeof text, "%s %.*s", MADE_FOR,
             (int)strspn(number, "0123456789.abrc"), number);
    pthread_mutex_unlock(&start_lock);
    return text;
}

/* ---- operators ----------------------------------------------------------- */

/* Only for the types that our operators are used with. */
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

static void combine_elements(oar_reduce_op_kind kind, const void *in,
                             void *inout, int count, MPI_Datatype type)
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

static void combine_min(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine_elements(OAR_REDUCE_OP_MIN, in, inout, *count, *type);
}

static void combine_max(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine_elements(OAR_REDUCE_OP_MAX, in, inout, *count, *type);
}

static void combine_sum(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine_elements(OAR_REDUCE_OP_SUM, in, inout, *count, *type);
}

MPI_Op mpi_custom_op(oar_reduce_op_kind kind)
{
    return kind == OAR_REDUCE_OP_MIN   ? custom_min
           : kind == OAR_REDUCE_OP_MAX ? custom_max
                                       : custom_sum;
}

MPI_Datatype mpi_half_type(oar_dtype dtype)
{
    return halves[dtype == OAR_BF16];
}

static int make_operators(void)
{
    int code = MPI_Op_create(combine_min, 1, &custom_min);

    if (code == MPI_SUCCESS)
        code = MPI_Op_create(combine_max, 1, &custom_max);
    if (code == MPI_SUCCESS)
        code = MPI_Op_create(combine_sum, 1, &custom_sum);
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        code = MPI_Type_contiguous(1, MPI_UINT16_T, &halves[i]);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&halves[i]);
    }
    return code;
}

/* ---- starting and ending ------------------------------------------------- */

static void finalise_mpi(void)
{
    if (getpid() != process || atomic_load(&open_groups) != 0 ||
        atomic_load(&abandoned_count) != 0 || mpi_is_finalized())
        return;
    MPI_Op_free(&custom_min);
    MPI_Op_free(&custom_max);
    MPI_Op_free(&custom_sum);
    MPI_Type_free(&halves[0]);
    MPI_Type_free(&halves[1]);
    MPI_Finalize();
}

/* The plugin, and MPI with it, was loaded with RTLD_LOCAL; but components that
 * MPI loads look for MPI's symbols among the global ones. */
static void make_symbols_global(void)
{
    Dl_info found;
    void *address = NULL;
    int (*call)(int *, char ***) = MPI_Init;

    memcpy(&address, &call, sizeof address);
    if (dladdr(address, &found) != 0 && found.dli_fname != NULL)
        dlopen(found.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* Where there are more ranks than cores, Open MPI yields the core whenever it
 * makes no progress. Beside programs that compute that takes milliseconds each
 * time (on Linux 6.18 a process that yields loses its share), and the core
 * knows better when to yield. So that is switched off, unless MPI itself waits
 * (blocking). */
static oar_status initialise_mpi(int ranks, int blocking, int *level)
{
    static const char *const launchers[] = { "OMPI_COMM_WORLD_SIZE",
                                             "PMIX_RANK",
                                             "PMI_RANK",
                                             "PMI_FD",
                                             "PMI_PORT",
                                             "PMI_ID" };
    static const char yields[] = "OMPI_MCA_mpi_yield_when_idle";
    int sets = !blocking && getenv(yields) == NULL;
    int has_launcher = 0, code;

    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        has_launcher |= getenv(launchers[i]) != NULL;
    if (ranks > 1 && !has_launcher)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "no MPI launcher has started this process; run it by "
                         "mpirun (package " PACKAGE ") or srun --mpi=...");
    make_symbols_global();
    if (sets)
        setenv(yields, "0", 1);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level);
    if (sets)
        unsetenv(yields); /* programs that this one starts must not have it */
    if (code != MPI_SUCCESS)
        return oari_fail(OAR_E_UNAVAILABLE, "MPI_Init_thread: error %d", code);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    ours = 1;
    return OAR_OK;
}

static oar_status start_locked(int ranks, int blocking, const char *version)
{
    int initialised = 0, level = MPI_THREAD_SINGLE, code;

    MPI_Initialized(&initialised);
    if (mpi_is_finalized())
        return oari_fail(OAR_E_UNAVAILABLE,
                         "MPI is finalised in this process; no group can be "
                         "made on it any more");
    if (started)
        return OAR_OK;
    if (initialised)
        MPI_Query_thread(&level);
    else
        OARI_TRY(initialise_mpi(ranks, blocking, &level));
    /* Open MPI 6.0 (release candidate 2) loses non-blocking collectives that
     * several threads have started on several communicators: MPI_Test never
     * reports them done. 4.1 does not; 5 has not been tried. */
    serialised = level < MPI_THREAD_MULTIPLE ||
                 (!blocking && strcmp(MADE_FOR, "Open MPI") == 0 &&
                  atoi(version + strcspn(version, "0123456789")) >= 5);
    if ((code = make_operators()) != MPI_SUCCESS)
        return oari_fail(OAR_E_UNAVAILABLE, "MPI_Op_create: error %d", code);
    process = getpid();
    if (ours)
        atexit(finalise_mpi);
    started = 1;
    return OAR_OK;
}

oar_status mpi_start(int ranks, int blocking)
{
    const char *version = mpi_version();
    oar_status status;

    if (version == NULL)
        return OAR_E_UNAVAILABLE;
    pthread_mutex_lock(&start_lock);
    status = start_locked(ranks, blocking, version);
    pthread_mutex_unlock(&start_lock);
    if (status == OAR_OK && blocking && serialised)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "OARSONG_MPI_BLOCKING=1 where only one thread at a "
                         "time may call MPI: groups would wait for each "
                         "other; initialise it with MPI_THREAD_MULTIPLE");
    return status;
}
