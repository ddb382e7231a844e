/* SPDX-License-Identifier: Apache-2.0 */
/* store_engine: an engine with collectives of its own and no messages, slow and
 * simple: each rank puts its input into the store, and every rank reads it
 * there. It does barrier, broadcast, and sums of f32. The rank that
 * STORE_ENGINE_FAILS names fails in the middle of an all_reduce of more than
 * 100 elements. STORE_ENGINE_LOSES_RANK names a rank that dies when it begins
 * such a call; the engine then reports the call as done without that rank's
 * part, after STORE_ENGINE_POLLS polls. With STORE_ENGINE_INLINE callers that
 * wait do the work themselves. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/backend.h>

enum {
    MOST = 8,
    KEY_BYTES = 256,
    LARGE = 100 /* elements */
};

typedef struct store_call {
    const oar_collective *call; /* NULL: free */
    oar_transfer *done;
    unsigned number;
    int asked; /* so often, of one that it will lie about */
    atomic_int lent;
} store_call;

/* Whether the caller does the work of a call, and whether that is done. */
enum { NOT_LENT, LENT, LENT_AND_DONE };

typedef struct store_engine {
    int rank, ranks;
    unsigned number;
    oar_store *store;
    char name[160];
    store_call calls[MOST];
    atomic_int aborted;
} store_engine;

static void key_of(const store_engine *c, unsigned number, int rank, char *key)
{
    snprintf(key, KEY_BYTES, "%s/store_engine/%u/%d", c->name, number, rank);
}

static void finish(store_call *s, oar_status status)
{
    s->done->status = status;
    s->done->done = 1;
    s->call = NULL;
}

/* Returns whether the variable names a rank and applies to this call; *rank is
 * that rank. */
static int applies_to(const char *variable, const oar_collective *call,
                      int *rank)
{
    const char *value = getenv(variable);

    if (value == NULL || call->kind != OAR_COLL_ALL_REDUCE ||
        call->in.count <= LARGE)
        return 0;
    *rank = atoi(value);
    return 1;
}

/* Takes what a rank has, if it is there: 1. */
static int take(store_engine *c, const store_call *s, int rank)
{
    const oar_span *out = &s->call->out;
    char key[KEY_BYTES];
    void *data;
    size_t bytes;

    key_of(c, s->number, rank, key);
    if (oar_store_get(c->store, key, 0, &data, &bytes) != OAR_OK)
        return 0;
    if (s->call->kind == OAR_COLL_BROADCAST)
        memcpy(out->data, data, bytes);
    else if (s->call->kind == OAR_COLL_ALL_REDUCE)
        for (size_t i = 0; i < out->count; i++)
            ((float *)out->data)[i] =
                (rank == 0 ? 0 : ((float *)out->data)[i]) + ((float *)data)[i];
    oar_free(data);
    return 1;
}

/* How often it was asked before it leaves out a rank; -1: it does not. */
static int polls_for(const store_call *s)
{
    const char *patience = getenv("STORE_ENGINE_POLLS");
    int rank;

    if (!applies_to("STORE_ENGINE_LOSES_RANK", s->call, &rank))
        return -1;
    return patience != NULL ? atoi(patience) : 0;
}

/* All are there before anything is taken. */
static int is_whole(store_engine *c, const store_call *s)
{
    int from = s->call->kind == OAR_COLL_BROADCAST ? s->call->root : 0;
    int to = s->call->kind == OAR_COLL_BROADCAST ? from + 1 : c->ranks;
    char key[KEY_BYTES];
    void *data;
    size_t bytes;

    for (int r = from; r < to; r++) {
        key_of(c, s->number, r, key);
        if (oar_store_get(c->store, key, 0, &data, &bytes) != OAR_OK)
            return 0;
        oar_free(data);
    }
    for (int r = from; r < to; r++)
        take(c, s, r);
    return 1;
}

static int is_over(store_engine *c, store_call *s)
{
    int patience = polls_for(s);

    return patience < 0 ? is_whole(c, s) : ++s->asked > patience;
}

static oar_status store_engine_post(void *self, const oar_collective *call,
                                    oar_transfer *done)
{
    store_engine *c = self;
    int rank;
    char key[KEY_BYTES];
    store_call *s = c->calls;

    while (s->call != NULL)
        s++;
    s->call = call;
    s->done = done;
    s->number = c->number++;
    s->asked = 0;
    atomic_store(&s->lent, NOT_LENT);
    if (applies_to("STORE_ENGINE_LOSES_RANK", call, &rank) && rank == c->rank)
        raise(SIGKILL);
    if (applies_to("STORE_ENGINE_FAILS", call, &rank) && rank == c->rank) {
        s->call = NULL;
        return oar_backend_fail(OAR_E_SYSTEM, "the engine was told to fail");
    }
    if (call->awaited && getenv("STORE_ENGINE_INLINE") != NULL)
        atomic_store(&s->lent, LENT);
    key_of(c, s->number, c->rank, key);
    return oar_store_set(c->store, key, call->in.data,
                         call->in.count * oar_dtype_size(call->in.dtype));
}

/* By the caller: blocks. */
static void store_engine_lend(void *self)
{
    store_engine *c = self;

    for (store_call *s = c->calls; s < c->calls + MOST; s++) {
        if (atomic_load(&s->lent) != LENT)
            continue;
        while (atomic_load(&c->aborted) == OAR_OK && !is_over(c, s))
            usleep(100);
        atomic_store(&s->lent, LENT_AND_DONE);
    }
}

/* Returns whether the call is done: by its caller, which returns at once after
 * an abort, or by us. */
static int is_done(store_engine *c, store_call *s, oar_status why)
{
    int lent = atomic_load(&s->lent);

    while (why != OAR_OK && (lent = atomic_load(&s->lent)) == LENT)
        usleep(100);
    return lent == NOT_LENT ? why != OAR_OK || is_over(c, s)
                            : lent == LENT_AND_DONE;
}

static int store_engine_takes(void *self, const oar_collective *call)
{
    return call->kind != OAR_COLL_ALL_REDUCE ||
           (call->op.kind == OAR_REDUCE_OP_SUM && call->in.dtype == OAR_F32);
}

static oar_status store_engine_progress(void *self)
{
    store_engine *c = self;
    oar_status why = (oar_status)atomic_load(&c->aborted);

    for (store_call *s = c->calls; s < c->calls + MOST; s++)
        if (s->call != NULL && is_done(c, s, why))
            finish(s, why);
    return OAR_OK;
}

static void store_engine_abort(void *self, oar_status why)
{
    atomic_store(&((store_engine *)self)->aborted, (int)why);
}

static oar_status store_engine_open(void *self, const oar_backend_env *env)
{
    store_engine *c = self;

    c->rank = env->rank;
    c->ranks = env->ranks;
    c->store = env->store;
    snprintf(c->name, sizeof c->name, "%s", env->name);
    return OAR_OK;
}

static void store_engine_close(void *self)
{
}

static oar_status store_engine_probe(oar_backend_caps *caps)
{
    caps->can = OAR_WANTS_LINKS;
    caps->note = "an engine for tests";
    return OAR_OK;
}

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static const oar_backend_ops ops = {
        .size = sizeof ops,
        .abi = OAR_BACKEND_ABI,
        .name = "store_engine",
        .self_size = sizeof(store_engine),
        .probe = store_engine_probe,
        .open = store_engine_open,
        .close = store_engine_close,
        .progress = store_engine_progress,
        .abort = store_engine_abort,
        .takes = store_engine_takes,
        .lend = store_engine_lend,
        .post_count = OAR_COLL_COUNT,
        .post = { [OAR_COLL_BARRIER] = store_engine_post,
                  [OAR_COLL_BROADCAST] = store_engine_post,
                  [OAR_COLL_ALL_REDUCE] = store_engine_post },
    };

    return &ops;
}
