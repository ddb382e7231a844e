/* SPDX-License-Identifier: Apache-2.0 */
/* loopback: the smallest backend that works: a group of one whose messages go
 * to itself. It has no control page, no progress of its own and nothing to wait
 * on. With LOOPBACK_REFUSES set in the environment it says that it cannot work
 * here. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/backend.h>

typedef struct loopback {
    oar_transfer *sent, *posted; /* linked through scratch[0] */
    atomic_int aborted;
} loopback;

static void finish(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1;
}

static void match_pair(oar_transfer *from, oar_transfer *to)
{
    int fits = from->bytes == to->bytes;

    if (fits && from->bytes != 0)
        memcpy(to->data, from->data, from->bytes);
    finish(from, OAR_OK);
    finish(to, fits ? OAR_OK : OAR_E_SIZE);
}

/* Takes the first transfer with this tag out of a list. */
static oar_transfer *take(oar_transfer **list, uint64_t tag)
{
    oar_transfer *t;

    for (; (t = *list) != NULL; list = (oar_transfer **)&t->scratch[0])
        if (t->tag == tag) {
            *list = t->scratch[0];
            return t;
        }
    return NULL;
}

static void append(oar_transfer **list, oar_transfer *t)
{
    while (*list != NULL)
        list = (oar_transfer **)&(*list)->scratch[0];
    t->scratch[0] = NULL;
    *list = t;
}

static oar_status loopback_probe(oar_backend_caps *caps)
{
    if (getenv("LOOPBACK_REFUSES") != NULL)
        return oar_backend_fail(OAR_E_UNAVAILABLE, "loopback: %s says no",
                                "LOOPBACK_REFUSES");
    caps->note = "goes round";
    caps->dtypes = 1u << OAR_F32;
    return OAR_OK;
}

static oar_status loopback_open(void *self, const oar_backend_env *env)
{
    if (env->ranks != 1)
        return oar_backend_fail(OAR_E_WORLD, "loopback: %d ranks", env->ranks);
    return OAR_OK;
}

static void loopback_close(void *self)
{
}

static oar_status loopback_send(void *self, oar_transfer *t)
{
    loopback *l = self;
    oar_transfer *to = take(&l->posted, t->tag);

    if (to != NULL)
        match_pair(t, to);
    else
        append(&l->sent, t);
    return OAR_OK;
}

static oar_status loopback_recv(void *self, oar_transfer *t)
{
    loopback *l = self;
    oar_transfer *from = take(&l->sent, t->tag);

    if (from != NULL)
        match_pair(from, t);
    else
        append(&l->posted, t);
    return OAR_OK;
}

static void end_all(oar_transfer **list, oar_status why)
{
    while (*list != NULL) {
        oar_transfer *t = *list;
        *list = t->scratch[0];
        finish(t, why);
    }
}

static oar_status loopback_progress(void *self)
{
    loopback *l = self;
    oar_status why = (oar_status)atomic_load(&l->aborted);

    if (why != OAR_OK) {
        end_all(&l->sent, why);
        end_all(&l->posted, why);
    }
    return OAR_OK;
}

static void loopback_abort(void *self, oar_status why)
{
    atomic_store(&((loopback *)self)->aborted, (int)why);
}

static const oar_backend_ops table = { .size = sizeof table,
                                       .abi = OAR_BACKEND_ABI,
                                       .name = "loopback",
                                       .self_size = sizeof(loopback),
                                       .probe = loopback_probe,
                                       .open = loopback_open,
                                       .close = loopback_close,
                                       .send = loopback_send,
                                       .recv = loopback_recv,
                                       .progress = loopback_progress,
                                       .abort = loopback_abort,
                                       .post_count = OAR_COLL_COUNT };

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
