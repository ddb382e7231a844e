/* SPDX-License-Identifier: Apache-2.0 */
/* carrier: a complete backend outside the library: messages over unix sockets.
 *
 * It knows how to find the others and how to move a message; the library plans
 * every collective over that. Every pair of ranks shares one stream socket; a
 * message is a head (bytes, tag) and its data. All calls come from one driver
 * at a time, except carrier_abort and carrier_wake.
 *
 *     oarsong bench all_reduce --backend ./libcarrier.so
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <oarsong/backend.h>

/* Of a group, with room for what we add to it to make a key. */
enum { NAME_MAX_BYTES = 200 };

typedef struct head {
    uint64_t bytes, tag;
} head;

/* A message that came before its receive was posted. */
typedef struct early {
    struct early *next;
    head head;
    unsigned char data[];
} early;

typedef struct peer {
    int in, out;        /* one socket, except to oneself */
    oar_transfer *send; /* queue, linked through scratch[0] */
    oar_transfer *posted;
    early *kept;
    size_t sent; /* of the first in the queue, its head included */
    head now;    /* the message being read */
    size_t head_got, got;
    oar_transfer *into;
    early *keep;
    int ended;
} peer;

typedef struct carrier {
    int rank, ranks, listener, epoll, event;
    peer *peer;
    atomic_int aborted;
} carrier;

/* ---- lists -----------------------------------------------------------------
 */

static void append(oar_transfer **list, oar_transfer *t)
{
    while (*list != NULL)
        list = (oar_transfer **)&(*list)->scratch[0];
    t->scratch[0] = NULL;
    *list = t;
}

static oar_transfer *take(oar_transfer **list, uint64_t tag)
{
    while (*list != NULL && (*list)->tag != tag)
        list = (oar_transfer **)&(*list)->scratch[0];
    oar_transfer *found = *list;
    if (found != NULL)
        *list = found->scratch[0];
    return found;
}

static void finish(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1;
}

/* A receive, with the message that came for it. */
static void finish_with(oar_transfer *t, const head *came)
{
    t->source = t->peer;
    t->got_tag = came->tag;
    t->got_bytes = came->bytes;
    finish(t, came->bytes == t->bytes ? OAR_OK : OAR_E_SIZE);
}

/* ---- moving bytes -----------------------------------------------------------
 */

/* Writes on in the first message of the queue; 1 when it is all out. */
static int push(peer *p)
{
    oar_transfer *t = p->send;
    head h = { t->bytes, t->tag };

    while (p->sent < sizeof h + t->bytes) {
        int in_head = p->sent < sizeof h;
        const char *from = in_head ? (char *)&h + p->sent
                                   : (char *)t->data + (p->sent - sizeof h);
        size_t left = (in_head ? sizeof h : sizeof h + t->bytes) - p->sent;
        ssize_t put = send(p->out, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0)
            return 0;
        p->sent += (size_t)put;
    }
    p->sent = 0;
    p->send = t->scratch[0];
    finish(t, OAR_OK);
    return 1;
}

/* The head is there: find the receive, or keep the message for later. */
static oar_status begin_message(peer *p)
{
    early **end = &p->kept;

    p->got = 0;
    p->keep = NULL;
    p->into = take(&p->posted, p->now.tag);
    if (p->into != NULL && p->into->bytes == p->now.bytes)
        return OAR_OK;
    p->keep = calloc(1, sizeof *p->keep + p->now.bytes);
    if (p->keep == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "%llu bytes for a message",
                                (unsigned long long)p->now.bytes);
    p->keep->head = p->now;
    if (p->into != NULL)
        return OAR_OK; /* of the wrong size: read, then dropped */
    while (*end != NULL)
        end = &(*end)->next;
    *end = p->keep;
    return OAR_OK;
}

static void end_message(peer *p)
{
    p->head_got = 0;
    if (p->into == NULL)
        return;
    finish_with(p->into, &p->now);
    free(p->keep);
}

static ssize_t read_some(peer *p, void *to, size_t bytes)
{
    ssize_t got = bytes != 0 ? recv(p->in, to, bytes, MSG_DONTWAIT) : 0;

    if (bytes != 0 && (got == 0 || (got < 0 && errno == ECONNRESET)))
        p->ended = 1;
    return got > 0 ? got : 0;
}

/* Reads on; 1 when a whole message is in. */
static int pull(peer *p, oar_status *status)
{
    unsigned char *to;

    if (p->head_got < sizeof p->now) {
        p->head_got += (size_t)read_some(p, (char *)&p->now + p->head_got,
                                         sizeof p->now - p->head_got);
        if (p->head_got < sizeof p->now ||
            (*status = begin_message(p)) != OAR_OK)
            return 0;
    }
    to = p->keep != NULL ? p->keep->data : p->into->data;
    p->got += (size_t)read_some(p, to + p->got, p->now.bytes - p->got);
    if (p->got < p->now.bytes)
        return 0;
    end_message(p);
    return 1;
}

/* ---- the table --------------------------------------------------------------
 */

static oar_status carrier_send(void *self, oar_transfer *t)
{
    peer *p = &((carrier *)self)->peer[t->peer];

    append(&p->send, t);
    while (p->send != NULL && push(p))
        ;
    return OAR_OK;
}

/* A kept message that is whole; one still being read is found again later. */
static oar_status carrier_recv(void *self, oar_transfer *t)
{
    peer *p = &((carrier *)self)->peer[t->peer];
    early **at = &p->kept, *e;

    while ((e = *at) != NULL && e->head.tag != t->tag)
        at = &e->next;
    if (e == NULL) {
        append(&p->posted, t);
        return OAR_OK;
    }
    *at = e->next;
    if (p->head_got == sizeof p->now && p->keep == e) { /* half read */
        p->into = t;
        if (e->head.bytes != t->bytes)
            return OAR_OK;
        memcpy(t->data, e->data, p->got);
        p->keep = NULL;
    } else {
        if (e->head.bytes == t->bytes && t->bytes != 0)
            memcpy(t->data, e->data, t->bytes);
        finish_with(t, &e->head);
    }
    free(e);
    return OAR_OK;
}

static void cancel(peer *p, oar_status why)
{
    while (p->send != NULL)
        finish(take(&p->send, p->send->tag), why);
    while (p->posted != NULL)
        finish(take(&p->posted, p->posted->tag), why);
    if (p->head_got == sizeof p->now && p->into != NULL)
        finish(p->into, why);
    p->head_got = 0;
}

static oar_status carrier_progress(void *self)
{
    carrier *c = self;
    oar_status why = (oar_status)atomic_load(&c->aborted), status = OAR_OK;

    for (int r = 0; r < c->ranks && status == OAR_OK; r++) {
        peer *p = &c->peer[r];
        if (why != OAR_OK) {
            cancel(p, why);
            continue;
        }
        while (p->send != NULL && push(p))
            ;
        while (pull(p, &status))
            ;
        if (p->ended && (p->posted != NULL || p->send != NULL))
            return oar_backend_fail(OAR_E_PEER, "rank %d is gone", r);
    }
    return status;
}

static int carrier_wait_fd(void *self)
{
    return ((carrier *)self)->epoll;
}

static int carrier_arm(void *self)
{
    carrier *c = self;
    uint64_t drained;

    if (read(c->event, &drained, sizeof drained) > 0)
        return 1;
    for (int r = 0; r < c->ranks; r++) {
        struct epoll_event want = { .events = EPOLLIN };
        if (c->peer[r].send != NULL)
            return 1; /* keep trying rather than watch for room */
        if (c->peer[r].ended)
            epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->peer[r].in, &want);
    }
    return 0;
}

static void carrier_wake(void *self)
{
    uint64_t one = 1;

    if (write(((carrier *)self)->event, &one, sizeof one) < 0)
        return; /* it is awake already */
}

static void carrier_abort(void *self, oar_status why)
{
    atomic_store(&((carrier *)self)->aborted, (int)why);
    carrier_wake(self);
}

/* ---- finding the others
 * ------------------------------------------------------ */

static oar_status system_failure(const char *what)
{
    return oar_backend_fail(OAR_E_SYSTEM, "%s: %s", what, strerror(errno));
}

static socklen_t address_of(const char *name, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(a->sun_path + 1, sizeof a->sun_path - 1,
                                        "%s", name));
}

static oar_status publish(carrier *c, const oar_backend_env *env, char *prefix,
                          size_t bytes)
{
    static atomic_uint groups; /* of this process: each listens apart */
    struct sockaddr_un a;
    char key[NAME_MAX_BYTES + 32], name[64];
    int64_t times;
    oar_status status;

    snprintf(key, sizeof key, "%s/carrier/join/%d", env->name, c->rank);
    if ((status = oar_store_add(env->store, key, 1, &times)) != OAR_OK)
        return status;
    snprintf(prefix, bytes, "%s/carrier/%lld", env->name, (long long)times);
    snprintf(key, sizeof key, "%s/%d", prefix, c->rank);
    snprintf(name, sizeof name, "carrier-%d-%u", (int)getpid(),
             atomic_fetch_add(&groups, 1));
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->listener < 0 ||
        bind(c->listener, (struct sockaddr *)&a, address_of(name, &a)) != 0 ||
        listen(c->listener, c->ranks) != 0)
        return system_failure("listen");
    return oar_store_set(env->store, key, name, strlen(name));
}

static oar_status call_on(carrier *c, const oar_backend_env *env,
                          const char *prefix, int rank)
{
    struct sockaddr_un a;
    char key[NAME_MAX_BYTES + 32];
    void *name;
    size_t bytes;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    oar_status status;

    c->peer[rank].in = c->peer[rank].out = fd;
    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    status = oar_store_get(env->store, key, env->timeout_ms, &name, &bytes);
    if (status != OAR_OK)
        return status;
    status = OAR_OK;
    if (fd < 0 ||
        connect(fd, (struct sockaddr *)&a, address_of(name, &a)) != 0 ||
        send(fd, &c->rank, sizeof c->rank, MSG_NOSIGNAL) < 0)
        status = system_failure("connect");
    oar_free(name);
    return status;
}

static oar_status let_in(carrier *c)
{
    int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC), rank = -1;

    if (fd < 0 || recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank ||
        rank <= c->rank || rank >= c->ranks)
        return system_failure("accept");
    c->peer[rank].in = c->peer[rank].out = fd;
    return OAR_OK;
}

static oar_status meet(carrier *c, const oar_backend_env *env)
{
    char prefix[NAME_MAX_BYTES + 16];
    oar_status status = publish(c, env, prefix, sizeof prefix);

    for (int r = 0; r < c->rank && status == OAR_OK; r++)
        status = call_on(c, env, prefix, r);
    for (int r = c->rank + 1; r < c->ranks && status == OAR_OK; r++)
        status = let_in(c);
    return status;
}

static oar_status carrier_open(void *self, const oar_backend_env *env)
{
    carrier *c = self;
    struct epoll_event want = { .events = EPOLLIN };
    int pair[2];
    oar_status status = OAR_OK;

    c->rank = env->rank;
    c->ranks = env->ranks;
    c->listener = c->epoll = c->event = -1;
    c->peer = calloc((size_t)c->ranks, sizeof *c->peer);
    if (c->peer == NULL || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return system_failure("carrier");
    for (int r = 0; r < c->ranks; r++)
        c->peer[r].in = c->peer[r].out = -1;
    c->peer[c->rank].in = pair[0];
    c->peer[c->rank].out = pair[1];
    if (c->ranks > 1 && (status = meet(c, env)) != OAR_OK)
        return status;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->event, &want) != 0)
        return system_failure("epoll");
    for (int r = 0; r < c->ranks; r++)
        if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->peer[r].in, &want) != 0)
            return system_failure("epoll");
    return OAR_OK;
}

static void drop_peer(peer *p)
{
    while (p->kept != NULL) {
        early *e = p->kept;
        p->kept = e->next;
        free(e);
    }
    if (p->in >= 0)
        close(p->in);
    if (p->out >= 0 && p->out != p->in)
        close(p->out);
}

static void carrier_close(void *self)
{
    carrier *c = self;

    for (int r = 0; c->peer != NULL && r < c->ranks; r++)
        drop_peer(&c->peer[r]);
    free(c->peer);
    for (int fd = 0; fd < 3; fd++) {
        int each = (int[]){ c->listener, c->epoll, c->event }[fd];
        if (each >= 0)
            close(each);
    }
}

static oar_status carrier_probe(oar_backend_caps *caps)
{
    caps->note = "messages over unix sockets (an example)";
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
    .wait_fd = carrier_wait_fd,
    .arm = carrier_arm,
    .wake = carrier_wake,
    .abort = carrier_abort,
    .post_count = OAR_COLL_COUNT,
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &carrier_ops;
}
