/* SPDX-License-Identifier: Apache-2.0 */
/* blas: each library has its own name for the same wish. The names are weak:
 * whichever CBLAS is linked has one of them, or none. This file must not
 * include cblas.h, whose prototypes would not be weak. */
#include "tensor/cpu/product/blas.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"

enum { MOST_THREADS = 4096 };

#define WEAK __attribute__((weak))
extern WEAK void bli_thread_set_num_threads(int64_t threads); /* BLIS */
extern WEAK void openblas_set_num_threads(int threads);
extern WEAK void MKL_Set_Num_Threads(int threads);
extern WEAK int openblas_get_parallel(void); /* 0: built without threads */
extern WEAK int openblas_get_num_threads(void);
extern WEAK char *openblas_get_corename(void);

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* OpenBLAS without threads (0.3.21, Debian's serial build) gives wrong products
 * when two threads multiply at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int one_at_a_time;
static int64_t threads = 1;

/* ---- which kernels OpenBLAS uses ----------------------------------------- */

const char *oari_blas_better_core(const char *core, int avx2, int avx512,
                                  int bf16)
{
    if (strcmp(core, "Prescott") != 0 || !avx2)
        return NULL;
    return bf16 ? "Cooperlake" : avx512 ? "SkylakeX" : "Haswell";
}

const char *oari_blas_core(void)
{
    return openblas_get_corename != NULL ? openblas_get_corename() : NULL;
}

#if defined(__x86_64__)
static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    if (tasks == NULL)
        return 0;
    for (const struct dirent *e; (e = readdir(tasks)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Returns whether this is the only thread. One that has been joined is counted
 * for a moment. */
static int is_alone(void)
{
    for (int i = 0; i < 50; i++) {
        if (count_threads() == 1)
            return 1;
        usleep(1000);
    }
    return 0;
}

typedef void (*call)(void);

static call find_call(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    call found;

    memcpy(&found, &symbol, sizeof found);
    return found;
}

/* Lets OpenBLAS choose again, with the answer in its environment. Its threads
 * choose, too, when they start, so they are ended first, as before a fork; they
 * come back when they are needed. */
static void choose_core(const char *core)
{
    call end_threads = find_call("blas_thread_shutdown_");
    call leave = find_call("gotoblas_dynamic_quit");
    call enter = find_call("gotoblas_dynamic_init");

    if (leave == NULL || enter == NULL)
        return; /* it has kernels of one kind only */
    if (end_threads != NULL)
        end_threads();
    if (!is_alone())
        return;
    setenv("OPENBLAS_CORETYPE", core, 1);
    leave();
    enter();
    unsetenv("OPENBLAS_CORETYPE");
}

/* An OpenBLAS that is older than the processor takes it for one of 2004, whose
 * kernels are less than half as fast (0.3.21 did so on Intel's model 207). This
 * is mended where nobody can be in OpenBLAS: while the library is loaded, in a
 * process without threads but those that OpenBLAS has made. */
__attribute__((constructor)) static void mend_core(void)
{
    const char *core = oari_blas_core(), *better = NULL;

    __builtin_cpu_init();
    if (core != NULL && getenv("OPENBLAS_CORETYPE") == NULL)
        better = oari_blas_better_core(core, __builtin_cpu_supports("avx2"),
                                       __builtin_cpu_supports("avx512vl"),
                                       __builtin_cpu_supports("avx512bf16"));
    if (better != NULL && openblas_get_num_threads != NULL &&
        count_threads() <= openblas_get_num_threads())
        choose_core(better);
}
#endif

/* ---- threads ------------------------------------------------------------- */

static void find_thread_calls(void)
{
    if (oari_env_int("OARSONG_BLAS_THREADS", 1, MOST_THREADS, &threads) !=
        OAR_OK)
        oari_log(OAR_LOG_WARN, "%s", oar_last_error_text());
    if (bli_thread_set_num_threads != NULL)
        bli_thread_set_num_threads(threads);
    if (openblas_set_num_threads != NULL)
        openblas_set_num_threads((int)threads);
    one_at_a_time =
        openblas_get_parallel != NULL && openblas_get_parallel() == 0;
    if (MKL_Set_Num_Threads != NULL)
        MKL_Set_Num_Threads((int)threads);
    if (oari_blas_core() != NULL)
        oari_log(OAR_LOG_INFO, "products by OpenBLAS, kernels of %s",
                 oari_blas_core());
}

void oari_blas_enter(void)
{
    pthread_once(&once, find_thread_calls);
    if (one_at_a_time)
        pthread_mutex_lock(&lock);
}

int oari_blas_threads(void)
{
    pthread_once(&once, find_thread_calls);
    return (int)threads;
}

void oari_blas_leave(void)
{
    if (one_at_a_time)
        pthread_mutex_unlock(&lock);
}
