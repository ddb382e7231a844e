/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: the few functions of the PMIx client that are needed, with their types
 * as the PMIx standard has them (2.0 and later). */
#include "comm/rendezvous/pmix.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"

enum { LONGEST_MS = 1 << 30 };

enum { KEY_ROOM = 512, BOOL = 1, STRING = 3, TO_ALL = 3 };

typedef struct proc {
    char space[256];
    uint32_t rank;
} proc;

typedef struct value {
    uint16_t type;
    union {
        char *string;
        _Bool flag;
        char room[64]; /* more than in any version */
    } data;
} value;

/* An attribute of a call. Calls get one at most, since its size differs between
 * versions. */
typedef struct info {
    char key[KEY_ROOM];
    uint32_t flags;
    value value;
} info;

typedef void (*done_fn)(int code, void *arg);

#define FUNCTIONS(X)                                                       \
    X(int, Init, (proc *, info *, size_t))                                 \
    X(int, Finalize, (const info *, size_t))                               \
    X(int, Put, (uint8_t scope, const char *key, value *))                 \
    X(int, Commit, (void))                                                 \
    X(int, Fence_nb,                                                       \
      (const proc *, size_t procs, const info *, size_t, done_fn, void *)) \
    X(int, Get,                                                            \
      (const proc *, const char *key, const info *, size_t, value **))     \
    X(const char *, Error_string, (int))

static struct {
#define MEMBER(type, name, arguments) type(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
} pmix;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static proc me;
static pid_t begun; /* in this process; 0: not yet */

/* ---- initialisation ------------------------------------------------------ */

static oar_status load_library(void)
{
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    void *found;

    if (library == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "the launcher speaks PMIx, but its client library is "
                         "not there (%.200s): install libpmix2",
                         dlerror());
#define FIND(type, name, arguments)                                        \
    if ((found = dlsym(library, "PMIx_" #name)) == NULL)                   \
        return oari_fail(OAR_E_UNAVAILABLE, "libpmix has no PMIx_" #name); \
    memcpy(&pmix.name, &found, sizeof found);
    FUNCTIONS(FIND)
#undef FIND
    return OAR_OK;
}

static oar_status fail_with_code(const char *what, int code)
{
    return oari_fail(OAR_E_UNAVAILABLE, "PMIx cannot %s: %.200s", what,
                     pmix.Error_string(code));
}

/* The launcher takes a process that does not finalise for one that failed. */
static void finalise(void)
{
    if (begun == getpid())
        pmix.Finalize(NULL, 0);
}

static oar_status initialise(void)
{
    int code;

    if (begun == getpid())
        return OAR_OK;
    if (begun != 0)
        return oari_fail(OAR_E_STATE, "PMIx was begun before a fork");
    OARI_TRY(load_library());
    if ((code = pmix.Init(&me, NULL, 0)) != 0)
        return fail_with_code("reach the launcher", code);
    begun = getpid();
    if (atexit(finalise) != 0)
        return oari_fail(OAR_E_NOMEM, "atexit");
    return OAR_OK;
}

int oari_pmix_here(int rank)
{
    int64_t mine = -1;

    return oari_env_text("PMIX_NAMESPACE") != NULL &&
           oari_env_int("PMIX_RANK", 0, INT_MAX, &mine) == OAR_OK &&
           mine == rank;
}

/* ---- words --------------------------------------------------------------- */

/* The fence at which all ranks wait for all, and exchange what they have put.
 * If a fence ends after its caller has given up, that is ignored. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uintptr_t turn, over; /* the one under way, and the last that ended */
    int code;             /* of the last that ended */
} fence = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0 };

static void fence_ended(int code, void *arg)
{
    uintptr_t turn;

    memcpy(&turn, &arg, sizeof turn);
    pthread_mutex_lock(&fence.lock);
    if (turn == fence.turn) {
        fence.over = turn;
        fence.code = code;
        pthread_cond_broadcast(&fence.ended);
    }
    pthread_mutex_unlock(&fence.lock);
}

static oar_status await_fence(uintptr_t turn, int64_t timeout_ms)
{
    int64_t wait_ms =
        timeout_ms < 0 || timeout_ms > LONGEST_MS ? LONGEST_MS : timeout_ms;
    struct timespec until;
    int late = 0, code, over;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(wait_ms / 1000);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&fence.lock);
    while (fence.over != turn && !late)
        late = pthread_cond_timedwait(&fence.ended, &fence.lock, &until) != 0;
    over = fence.over == turn;
    code = fence.code;
    pthread_mutex_unlock(&fence.lock);
    if (!over)
        return oari_fail(OAR_E_TIMEOUT,
                         "not all ranks of the job came to meet by PMIx in "
                         "%" PRId64 " ms",
                         timeout_ms);
    return code == 0 ? OAR_OK
                     : fail_with_code("bring the ranks together", code);
}

static oar_status pass_fence(int64_t timeout_ms)
{
    static const info collect = { .key = "pmix.collect",
                                  .value = { BOOL, { .flag = 1 } } };
    uintptr_t turn;
    void *arg;
    int code;

    pthread_mutex_lock(&fence.lock);
    turn = ++fence.turn;
    pthread_mutex_unlock(&fence.lock);
    memcpy(&arg, &turn, sizeof arg);
    code = pmix.Fence_nb(NULL, 0, &collect, 1, fence_ended, arg);
    if (code != 0)
        return fail_with_code("bring the ranks together", code);
    return await_fence(turn, timeout_ms);
}

static oar_status get_word(const char *key, char *word, size_t bytes)
{
    proc first = me;
    value *v = NULL;
    oar_status status = OAR_OK;
    char *text;
    int code;

    first.rank = 0;
    code = pmix.Get(&first, key, NULL, 0, &v);
    if (code != 0 || v == NULL)
        return fail_with_code("get a word of rank 0's", code);
    text = v->type == STRING ? v->data.string : NULL;
    if (text == NULL || strlen(text) >= bytes)
        status =
            oari_fail(OAR_E_DATA, "%s of rank 0, by PMIx, is no word", key);
    else {
        memcpy(word, text, strlen(text) + 1);
        explicit_bzero(text, strlen(text));
        free(text);
    }
    free(v);
    return status;
}

oar_status oari_pmix_share(int rank, const char *key, int64_t timeout_ms,
                           char *word, size_t bytes)
{
    value v = { .type = STRING, .data.string = word };
    oar_status status;
    int code;

    pthread_mutex_lock(&lock);
    status = initialise();
    if (status == OAR_OK && rank == 0 &&
        ((code = pmix.Put(TO_ALL, key, &v)) != 0 ||
         (code = pmix.Commit()) != 0))
        status = fail_with_code("give a word to the launcher", code);
    if (status == OAR_OK)
        status = pass_fence(timeout_ms);
    if (status == OAR_OK && rank != 0)
        status = get_word(key, word, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}
