/* SPDX-License-Identifier: Apache-2.0 */
/* choir: an engine with collectives of its own and no messages, slow and
 * simple: what a rank has goes into the store, and everybody reads it there. It
 * does barrier, broadcast, and sums of f32; a rank told so by CHOIR_FAILS fails
 * in the middle of an all_reduce of more than 100 elements. With CHOIR_LIES it
 * says that such a one is done, without the part of that rank, when it was
 * asked CHOIR_PATIENCE times; and that rank dies when it begins one. With
 * CHOIR_LENDS callers that wait do the work themselves. */
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

typedef struct song {
    const oar_collective *call; /* NULL: free */
    oar_transfer *done;
    unsigned number;
    int asked; /* so often, of one that it will lie about */
    atomic_int lent;
} song;

/* A song that its caller does; and that it has done. */
enum { NOT_LENT, LENT, LENT_AND_DONE };

typedef struct choir {
    int rank, ranks;
    unsigned number;
    oar_store *store;
    char name[160];
    song song[MOST];
    atomic_int aborted;
} choir;

static void key_of(const choir *c, unsigned number, int rank, char *key)
{
    snprintf(key, KEY_BYTES, "%s/choir/%u/%d", c->name, number, rank);
}

static void finish(song *s, oar_status status)
{
    s->done->status = status;
    s->done->done = 1;
    s->call = NULL;
}

/* Whether the variable names a rank, and this is a song to which that matters;
 * then which. */
static int is_told(const char *variable, const oar_collective *call, int *rank)
{
    const char *value = getenv(variable);

    if (value == NULL || call->kind != OAR_COLL_ALL_REDUCE ||
        call->in.count <= LARGE)
        return 0;
    *rank = atoi(value);
    return 1;
}

/* Takes what a rank has, if it is there: 1. */
static int take(choir *c, const song *s, int rank)
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
static int patience_for(const song *s)
{
    const char *patience = getenv("CHOIR_PATIENCE");
    int rank;

    if (!is_told("CHOIR_LIES", s->call, &rank))
        return -1;
    return patience != NULL ? atoi(patience) : 0;
}

/* All are there before anything is taken. */
static int is_whole(choir *c, const song *s)
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

static int is_over(choir *c, song *s)
{
    int patience = patience_for(s);

    return patience < 0 ? is_whole(c, s) : ++s->asked > patience;
}

static oar_status choir_post(void *self, const oar_collective *call,
                             oar_transfer *done)
{
    choir *c = self;
    int rank;
    char key[KEY_BYTES];
    song *s = c->song;

    while (s->call != NULL)
        s++;
    s->call = call;
    s->done = done;
    s->number = c->number++;
    s->asked = 0;
    atomic_store(&s->lent, NOT_LENT);
    if (is_told("CHOIR_LIES", call, &rank) && rank == c->rank)
        raise(SIGKILL);
    if (is_told("CHOIR_FAILS", call, &rank) && rank == c->rank) {
        s->call = NULL;
        return oar_backend_fail(OAR_E_SYSTEM, "the choir is hoarse");
    }
    if (call->awaited && getenv("CHOIR_LENDS") != NULL)
        atomic_store(&s->lent, LENT);
    key_of(c, s->number, c->rank, key);
    return oar_store_set(c->store, key, call->in.data,
                         call->in.count * oar_dtype_size(call->in.dtype));
}

/* By the caller: blocks. */
static void choir_lend(void *self)
{
    choir *c = self;

    for (song *s = c->song; s < c->song + MOST; s++) {
        if (atomic_load(&s->lent) != LENT)
            continue;
        while (atomic_load(&c->aborted) == OAR_OK && !is_over(c, s))
            usleep(100);
        atomic_store(&s->lent, LENT_AND_DONE);
    }
}

/* Whether it is done: by its caller, who comes back at once after an abort, or
 * by us. */
static int is_done(choir *c, song *s, oar_status why)
{
    int lent = atomic_load(&s->lent);

    while (why != OAR_OK && (lent = atomic_load(&s->lent)) == LENT)
        usleep(100);
    return lent == NOT_LENT ? why != OAR_OK || is_over(c, s)
                            : lent == LENT_AND_DONE;
}

static int choir_takes(void *self, const oar_collective *call)
{
    return call->kind != OAR_COLL_ALL_REDUCE ||
           (call->op.kind == OAR_REDUCE_OP_SUM && call->in.dtype == OAR_F32);
}

static oar_status choir_progress(void *self)
{
    choir *c = self;
    oar_status why = (oar_status)atomic_load(&c->aborted);

    for (song *s = c->song; s < c->song + MOST; s++)
        if (s->call != NULL && is_done(c, s, why))
            finish(s, why);
    return OAR_OK;
}

static void choir_abort(void *self, oar_status why)
{
    atomic_store(&((choir *)self)->aborted, (int)why);
}

static oar_status choir_open(void *self, const oar_backend_env *env)
{
    choir *c = self;

    c->rank = env->rank;
    c->ranks = env->ranks;
    c->store = env->store;
    snprintf(c->name, sizeof c->name, "%s", env->name);
    return OAR_OK;
}

static void choir_close(void *self)
{
}

static oar_status choir_probe(oar_backend_caps *caps)
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
        .name = "choir",
        .self_size = sizeof(choir),
        .probe = choir_probe,
        .open = choir_open,
        .close = choir_close,
        .progress = choir_progress,
        .abort = choir_abort,
        .takes = choir_takes,
        .lend = choir_lend,
        .post_count = OAR_COLL_COUNT,
        .post = { [OAR_COLL_BARRIER] = choir_post,
                  [OAR_COLL_BROADCAST] = choir_post,
                  [OAR_COLL_ALL_REDUCE] = choir_post },
    };

    return &ops;
}
