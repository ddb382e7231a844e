/* SPDX-License-Identifier: Apache-2.0 */
/* carrier: a complete backend outside the library, for ranks on one host.
 * docs/writing-a-backend.md walks through it.
 *
 * The ranks share a file that is only in memory. From every rank to every rank,
 * itself included, there is a log in it: the sender writes a message behind the
 * last one, the receiver reads it and gives the pages back. How far the logs
 * are is in memory that all map. One thread at a time is in here, except in
 * abort. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <oarsong/backend.h>

#define LOG_BYTES  (INT64_C(1) << 31) /* of the file: memory as it is used */
#define PAGE_BYTES INT64_C(65536)     /* the largest page that systems have */

typedef struct lane { /* from one rank to another: bytes of its log, ever */
    _Atomic int64_t written, read;
} lane;

typedef struct shared {
    atomic_int here; /* ranks that have come */
    lane lane[];     /* from a to b: a * ranks + b, and so are the logs */
} shared;

typedef struct carrier {
    int rank, ranks, file;
    shared *shared;
    size_t shared_bytes;
    void *receives, *kept; /* transfers, messages: linked by scratch[0] */
    atomic_int aborted;    /* why: an oar_status */
} carrier;

static lane *lane_of(const carrier *c, int from, int to)
{
    return &c->shared->lane[from * c->ranks + to];
}

/* Where in the file a log is at that place. A message begins in the first half
 * of its log, so that it ends in it, too. */
static off_t place(const carrier *c, const lane *l, int64_t at)
{
    return (l - c->shared->lane + 1) * LOG_BYTES + at % (LOG_BYTES / 2);
}

/* A message is an oar_transfer with its data behind it, in whole pages. */
static int64_t room_for(size_t bytes)
{
    size_t pages = (sizeof(oar_transfer) + bytes - 1) / PAGE_BYTES + 1;

    return (int64_t)pages * PAGE_BYTES;
}

/* ---- matching ------------------------------------------------------------ */

static void finish(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1;
}

/* One of the two is a receive, which may leave source and tag open. */
static int fit(const oar_transfer *a, const oar_transfer *b)
{
    return (a->peer == b->peer || a->peer < 0 || b->peer < 0) &&
           ((a->tag ^ b->tag) & ~a->any & ~b->any) == 0;
}

/* Takes the first that fits t out of a list; if there is none, t waits. */
static oar_transfer *match(void **list, oar_transfer *t, void **waiting)
{
    oar_transfer *other;

    for (; (other = *list) != NULL; list = &other->scratch[0])
        if (fit(other, t)) {
            *list = other->scratch[0];
            return other;
        }
    while (*waiting != NULL)
        waiting = &((oar_transfer *)*waiting)->scratch[0];
    t->scratch[0] = NULL;
    *waiting = t;
    return NULL;
}

static void deliver(oar_transfer *message, oar_transfer *t)
{
    int same = message->bytes == t->bytes;

    if (same && t->bytes != 0)
        memcpy(t->data, message + 1, t->bytes);
    t->source = message->peer;
    t->got_tag = message->tag;
    t->got_bytes = message->bytes;
    finish(t, same ? OAR_OK : OAR_E_SIZE);
    free(message);
}

/* ---- messages ------------------------------------------------------------ */

static oar_status failed(const char *what)
{
    return oar_backend_fail(OAR_E_SYSTEM, "%s: %s", what, strerror(errno));
}

static oar_status carrier_send(void *self, oar_transfer *t)
{
    carrier *c = self;
    lane *l = lane_of(c, c->rank, t->peer);
    oar_transfer m = { .peer = c->rank, .tag = t->tag, .bytes = t->bytes };
    struct iovec parts[] = { { &m, sizeof m }, { t->data, t->bytes } };

    if (l->written - l->read + room_for(t->bytes) > LOG_BYTES / 2)
        return oar_backend_fail(OAR_E_NOMEM, "the log to rank %d is full",
                                t->peer);
    if (pwritev(c->file, parts, 2, place(c, l, l->written)) !=
        (ssize_t)(sizeof m + t->bytes))
        return failed("write to the log");
    l->written += room_for(t->bytes);
    finish(t, OAR_OK);
    return OAR_OK;
}

static oar_status carrier_recv(void *self, oar_transfer *t)
{
    carrier *c = self;
    oar_transfer *message = match(&c->kept, t, &c->receives);

    if (message != NULL)
        deliver(message, t);
    return OAR_OK;
}

static int carrier_peek(void *self, int peer, uint64_t tag, uint64_t any,
                        oar_envelope *found)
{
    oar_transfer wanted = { .peer = peer, .tag = tag, .any = any };
    const oar_transfer *m = ((carrier *)self)->kept;

    while (m != NULL && !fit(m, &wanted))
        m = m->scratch[0];
    if (m != NULL)
        *found = (oar_envelope){ found->size, m->peer, m->tag, m->bytes };
    return m != NULL;
}

static oar_status take_out(carrier *c, lane *l)
{
    off_t at = place(c, l, l->read);
    oar_transfer head, *message, *t;
    ssize_t bytes = sizeof head;

    if (pread(c->file, &head, sizeof head, at) != bytes)
        return failed("read the log");
    bytes += (ssize_t)head.bytes;
    if ((message = malloc((size_t)bytes)) == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "no memory for %zd bytes", bytes);
    if (pread(c->file, message, (size_t)bytes, at) != bytes) {
        free(message);
        return failed("read the log");
    }
    fallocate(c->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
              room_for(head.bytes));
    l->read += room_for(head.bytes);
    if ((t = match(&c->receives, message, &c->kept)) != NULL)
        deliver(message, t);
    return OAR_OK;
}

static oar_status carrier_progress(void *self)
{
    carrier *c = self;
    oar_status status = OAR_OK;
    oar_transfer *t;

    for (int r = 0; r < c->ranks; r++) {
        lane *l = lane_of(c, r, c->rank);
        while (status == OAR_OK && l->read != l->written)
            status = take_out(c, l);
    }
    while (c->aborted != OAR_OK && (t = c->receives) != NULL) {
        c->receives = t->scratch[0];
        finish(t, (oar_status)c->aborted);
    }
    return status;
}

static void carrier_abort(void *self, oar_status why)
{
    ((carrier *)self)->aborted = (int)why;
}

/* ---- coming and going ---------------------------------------------------- */

/* Rank 0 has made the file; the others open it by way of that process. */
static oar_status pass_file(carrier *c, const oar_backend_env *env)
{
    char key[2 * OAR_STORE_KEY_MAX], path[64];
    int64_t times; /* that this rank has used the name */
    void *found;
    size_t bytes;
    oar_status status;

    snprintf(key, sizeof key, "%s/carrier/%d", env->name, c->rank);
    if ((status = oar_store_add(env->store, key, 1, &times)) != OAR_OK)
        return status;
    snprintf(key, sizeof key, "%s/carrier/file/%d", env->name, (int)times);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), c->file);
    if (c->rank == 0)
        return oar_store_set(env->store, key, path, strlen(path));
    status = oar_store_get(env->store, key, env->timeout_ms, &found, &bytes);
    if (status != OAR_OK)
        return status;
    c->file = open(found, O_RDWR | O_CLOEXEC);
    oar_free(found);
    return c->file >= 0 ? OAR_OK : failed("rank 0's memory (another host?)");
}

static oar_status carrier_open(void *self, const oar_backend_env *env)
{
    carrier *c = self;
    size_t lanes = (size_t)(env->ranks * env->ranks);
    oar_status status;

    c->rank = env->rank;
    c->ranks = env->ranks;
    c->shared_bytes = sizeof *c->shared + lanes * sizeof(lane);
    c->file = c->rank == 0 ? memfd_create("carrier", MFD_CLOEXEC) : -1;
    if (c->rank == 0 &&
        (c->file < 0 || ftruncate(c->file, (off_t)c->shared_bytes) != 0))
        return failed("memory for all ranks");
    if (c->ranks > 1 && (status = pass_file(c, env)) != OAR_OK)
        return status;
    c->shared = mmap(NULL, c->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                     c->file, 0);
    if (c->shared == MAP_FAILED)
        return failed("memory for all ranks");
    c->shared->here++;
    for (int64_t ms = 0; c->shared->here < c->ranks; ms++, usleep(1000))
        if (ms == env->timeout_ms)
            return oar_backend_fail(OAR_E_TIMEOUT, "%d of %d ranks have come",
                                    c->shared->here, c->ranks);
    return OAR_OK;
}

static void carrier_close(void *self)
{
    carrier *c = self;
    oar_transfer *message;

    while ((message = c->kept) != NULL) {
        c->kept = message->scratch[0];
        free(message);
    }
    if (c->shared != NULL && c->shared != MAP_FAILED)
        munmap(c->shared, c->shared_bytes);
    if (c->file >= 0)
        close(c->file);
}

static oar_status carrier_probe(oar_backend_caps *caps)
{
    caps->note = "messages through shared memory (an example)";
    caps->can = OAR_CAN_ANY | OAR_CAN_PROBE | OAR_WANTS_LINKS;
    return OAR_OK;
}

static const oar_backend_ops carrier_ops = {
    .size = sizeof(oar_backend_ops),
    .abi = OAR_BACKEND_ABI,
    .name = "carrier",
    .self_size = sizeof(carrier),
    .probe = carrier_probe,
    .open = carrier_open,
    .close = carrier_close,
    .send = carrier_send,
    .recv = carrier_recv,
    .progress = carrier_progress,
    .abort = carrier_abort,
    .peek = carrier_peek,
    .post_count = OAR_COLL_COUNT,
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &carrier_ops;
}
