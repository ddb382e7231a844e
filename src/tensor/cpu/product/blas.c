/* SPDX-License-Identifier: Apache-2.0 */
/* blas: each library has its own name for the same wish. The names are weak:
 * whichever CBLAS is linked has one of them, or none. This file must not
 * include cblas.h, whose prototypes would not be weak. */
#include "tensor/cpu/product/blas.h"

#include <pthread.h>
#include <stdint.h>

#include "base/env.h"
#include "base/log.h"

enum { MOST_THREADS = 4096 };

#define WEAK __attribute__((weak))
extern WEAK void bli_thread_set_num_threads(int64_t threads); /* BLIS */
extern WEAK void openblas_set_num_threads(int threads);
extern WEAK void MKL_Set_Num_Threads(int threads);
extern WEAK int openblas_get_parallel(void); /* 0: built without threads */

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* OpenBLAS without threads (0.3.21, Debian's serial build) gives wrong products
 * when two threads multiply at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int one_at_a_time;

static void find_thread_calls(void)
{
    int64_t threads = 1;

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
}

void oari_blas_enter(void)
{
    pthread_once(&once, find_thread_calls);
    if (one_at_a_time)
        pthread_mutex_lock(&lock);
}

void oari_blas_leave(void)
{
    if (one_at_a_time)
        pthread_mutex_unlock(&lock);
}
