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
        char room[64]; /* more than any version's */
    } data;
} value;

/* What a call is told besides; one at a time, since the size varies. */
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

/* ---- beginning ----------------------------------------------------------- */

static oar_status load(void)
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

static oar_status failed(const char *what, int code)
{
    return oari_fail(OAR_E_UNAVAILABLE, "PMIx cannot %s: %.200s", what,
                     pmix.Error_string(code));
}

/* A process that has begun and does not end is taken for one that failed. */
static void end(void)
{
    if (begun == getpid())
        pmix.Finalize(NULL, 0);
}

static oar_status begin(void)
{
    int code;

    if (begun == getpid())
        return OAR_OK;
    if (begun != 0)
        return oari_fail(OAR_E_STATE, "PMIx was begun before a fork");
    OARI_TRY(load());
    if ((code = pmix.Init(&me, NULL, 0)) != 0)
        return failed("reach the launcher", code);
    begun = getpid();
    if (atexit(end) != 0)
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

static oar_status give(const char *key, char *word)
{
    value v = { .type = STRING, .data.string = word };
    int code;

    if ((code = pmix.Put(TO_ALL, key, &v)) != 0 || (code = pmix.Commit()) != 0)
        return failed("give a word to the launcher", code);
    return OAR_OK;
}

/* Where all ranks wait for all, and what they gave is exchanged. An end that
 * comes after nobody waits for it any more is nobody's. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uintptr_t turn, over; /* the one under way, and the last that ended */
    int code;             /* of that */
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

static struct timespec clock_in(int64_t timeout_ms)
{
    int64_t wait_ms =
        timeout_ms < 0 || timeout_ms > LONGEST_MS ? LONGEST_MS : timeout_ms;
    struct timespec at;

    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += (time_t)(wait_ms / 1000);
    at.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static oar_status await_fence(uintptr_t turn, int64_t timeout_ms)
{
    struct timespec until = clock_in(timeout_ms);
    int late = 0, code, over;

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
    return code == 0 ? OAR_OK : failed("bring the ranks together", code);
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
        return failed("bring the ranks together", code);
    return await_fence(turn, timeout_ms);
}

static oar_status read_word(const char *key, const value *v, char *word,
                            size_t bytes)
{
    if (v->type != STRING || v->data.string == NULL ||
        strlen(v->data.string) >= bytes)
        return oari_fail(OAR_E_DATA, "%s of rank 0, by PMIx, is no word", key);
    memcpy(word, v->data.string, strlen(v->data.string) + 1);
    explicit_bzero(v->data.string, strlen(v->data.string));
    free(v->data.string);
    return OAR_OK;
}

static oar_status take(const char *key, char *word, size_t bytes)
{
    proc first = me;
    value *v = NULL;
    oar_status status;
    int code;

    first.rank = 0;
    code = pmix.Get(&first, key, NULL, 0, &v);
    if (code != 0 || v == NULL)
        return failed("get a word of rank 0's", code);
    status = read_word(key, v, word, bytes);
    free(v);
    return status;
}

static oar_status share(int rank, const char *key, int64_t timeout_ms,
                        char *word, size_t bytes)
{
    OARI_TRY(begin());
    if (rank == 0)
        OARI_TRY(give(key, word));
    OARI_TRY(pass_fence(timeout_ms));
    return rank == 0 ? OAR_OK : take(key, word, bytes);
}

oar_status oari_pmix_share(int rank, const char *key, int64_t timeout_ms,
                           char *word, size_t bytes)
{
    oar_status status;

    pthread_mutex_lock(&lock);
    status = share(rank, key, timeout_ms, word, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}
