/* SPDX-License-Identifier: Apache-2.0 */
/* native: ranks as processes. Ranks of a host share memory (link/shm); those of
 * other hosts are reached by TCP (link/tcp), through a mesh. All links share
 * one match, and one descriptor to sleep on. */
#include <sys/epoll.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "base/status.h"
#include "link/shm/shm.h"
#include "link/tcp/tcp.h"

typedef struct native {
    shm_links links; /* first: the core's view */
    tcp_mesh *mesh;  /* to other hosts; NULL: there are none */
} native;

static oar_status native_probe(oar_backend_caps *caps)
{
    caps->note = "ranks as processes, shared memory within a host, TCP across";
    caps->can = OARI_MATCH_CAN | OAR_CAN_MEMORY;
    return OAR_OK;
}

static oar_status shm_probe(oar_backend_caps *caps)
{
    caps->note = "native, shared memory only";
    caps->can = OARI_MATCH_CAN | OAR_CAN_MEMORY;
    return OAR_OK;
}

/* ---- opening ------------------------------------------------------------- */

/* Makes the mesh; its descriptors become part of the set that this rank sleeps
 * on. */
static oar_status open_mesh(native *n, const oari_open *with,
                            const char *prefix)
{
    char host[OARI_HOST_NAME_BYTES];
    tcp_setup setup = { .with = with,
                        .prefix = prefix,
                        .host = host,
                        .match = n->links.base.match };
    struct epoll_event event = { .events = EPOLLIN,
                                 .data.u32 = UINT32_MAX - 1 };

    n->mesh = oari_alloc(1, sizeof *n->mesh);
    if (n->mesh == NULL)
        return OAR_E_NOMEM;
    tcp_init(n->mesh);
    OARI_TRY(oari_host_name(host));
    OARI_TRY(tcp_open(n->mesh, &setup));
    n->mesh->ahead_bytes = TCP_AHEAD * n->mesh->eager_bytes;
    for (int r = 0; r < with->env.ranks; r++)
        if (n->links.host[r] == n->links.host[with->env.rank])
            n->mesh->peer[r].address[0] = 0; /* not by TCP */
    if (epoll_ctl(n->links.epoll_fd, EPOLL_CTL_ADD, n->mesh->epoll_fd,
                  &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch the mesh");
    return OAR_OK;
}

static oar_status open_links(native *n, const oari_open *with, int one_host)
{
    char prefix[OAR_STORE_KEY_MAX];

    OARI_TRY(shm_links_open(&n->links, with, one_host, prefix));
    return n->links.hosts > 1 ? open_mesh(n, with, prefix) : OAR_OK;
}

static oar_status native_open(void *self, const oari_open *with)
{
    return open_links(self, with, 0);
}

static oar_status shm_open_links(void *self, const oari_open *with)
{
    return open_links(self, with, 1);
}

/* ---- messages ------------------------------------------------------------ */

static oar_status native_send(void *self, oar_transfer *t)
{
    native *n = self;

    if (n->mesh != NULL &&
        n->links.host[t->peer] != n->links.host[n->links.base.rank])
        return tcp_send(n->mesh, t);
    return oari_shm_base_send(self, t);
}

static oar_status native_recv(void *self, oar_transfer *t)
{
    native *n = self;

    OARI_TRY(oari_shm_base_recv(self, t));
    if (n->mesh != NULL &&
        (t->done ? n->links.host[t->source] != n->links.host[n->links.base.rank]
                 : t->peer < 0 || n->links.host[t->peer] !=
                                      n->links.host[n->links.base.rank]))
        tcp_expect(n->mesh, t);
    return OAR_OK;
}

/* The mesh comes first: its transfers must end before the match does. */
static oar_status native_progress(void *self)
{
    native *n = self;
    oar_status status = n->mesh != NULL ? tcp_progress(n->mesh) : OAR_OK;

    return status != OAR_OK ? status : oari_shm_base_progress(self);
}

/* A receive from any rank that waits has no source yet: it is in the match,
 * which both links share. */
static int native_withdraw(void *self, oar_transfer *t, int is_send,
                           int unmoved)
{
    native *n = self;
    int with = is_send ? t->peer : t->source;

    if (n->mesh != NULL &&
        n->links.host[with] != n->links.host[n->links.base.rank])
        return tcp_withdraw(n->mesh, t, is_send, unmoved);
    return oari_shm_base_withdraw(self, t, is_send, unmoved);
}

static int native_restless(void *self)
{
    native *n = self;

    return n->mesh != NULL && tcp_restless(n->mesh);
}

static void native_watch(void *self)
{
    native *n = self;

    if (n->mesh != NULL)
        tcp_expect(n->mesh, &(oar_transfer){ .peer = -1 });
}

/* ---- peers --------------------------------------------------------------- */

static const int *native_hosts(void *self)
{
    native *n = self;

    return n->links.hosts > 1 ? n->links.host : NULL;
}

static int native_gone(void *self, int rank)
{
    native *n = self;
    const oari_shm *b = &n->links.base.shm;
    int here = oari_shm_rank(b, rank);

    if (here < 0)
        return n->mesh->peer[rank].gone;
    if (!b->gone[here])
        return 0;
    return atomic_load(&b->control[here]->closed) ? OARI_PEER_LEFT
                                                  : OARI_PEER_DIED;
}

static int native_published(void *self, oari_fault *fault)
{
    native *n = self;
    const oari_shm *b = &n->links.base.shm;
    oari_fault there;

    if (n->mesh == NULL)
        return oari_shm_published(b, OARI_FACT_FAULT, fault);
    if (oari_shm_published(b, OARI_FACT_FINAL_FAULT, fault))
        return 1;
    if (!tcp_published(n->mesh, &there))
        return oari_shm_published(b, OARI_FACT_FAULT, fault);
    if (!oari_shm_published(b, OARI_FACT_FAULT, fault) ||
        tcp_settled(n->mesh) || oari_fault_before(&there, fault))
        *fault = there;
    return 1;
}

/* Other hosts are sent the fault that all ranks of this host will report: the
 * first of those that are published at the same time. */
static void native_publish(void *self, const oari_fault *fault)
{
    native *n = self;
    oari_fault first = *fault;

    oari_shm_publish(&n->links.base.shm, OARI_FACT_FAULT, fault);
    oari_shm_published(&n->links.base.shm, OARI_FACT_FAULT, &first);
    if (n->mesh != NULL)
        tcp_publish(n->mesh, &first);
}

static void native_abort(void *self, oar_status why)
{
    native *n = self;

    if (n->mesh != NULL)
        tcp_abort(n->mesh, why);
    oari_shm_base_abort(self, why);
}

/* Ranks of other hosts say which fault they have. On this host it is enough
 * that every rank that lives has a fault, except one that is itself the cause:
 * then none can publish another. If a rank has ended, on any host, all agree.
 */
static int native_agreed(void *self)
{
    native *n = self;
    const oari_shm *b = &n->links.base.shm;
    oari_fault best;

    if (n->mesh == NULL || tcp_settled(n->mesh) ||
        oari_shm_published(b, OARI_FACT_FINAL_FAULT, &best))
        return 1;
    if (!native_published(self, &best) || !atomic_load(&n->mesh->unanimous))
        return 0;
    for (int r = 0; r < b->ranks; r++) {
        int rank = b->member != NULL ? b->member[r] : r;

        if (!oari_bulletin_has(oari_shm_bulletin(b, r), OARI_FACT_FAULT) &&
            !native_gone(n, rank) &&
            !(rank == best.error.peer && oari_fault_sure(&best)))
            return 0;
    }
    return 1;
}

/* All ranks of this host end with the same fault, and show that to other hosts.
 */
static void native_conclude(void *self, oari_fault *fault)
{
    native *n = self;
    oari_shm *b = &n->links.base.shm;

    native_published(self, fault);
    if (n->mesh == NULL)
        return;
    oari_shm_publish(b, OARI_FACT_FINAL_FAULT, fault);
    oari_shm_published(b, OARI_FACT_FINAL_FAULT, fault);
    tcp_conclude(n->mesh, fault);
}

static void native_show(void *self, oari_fact fact, const void *data)
{
    native *n = self;
    const oari_shm *b = &n->links.base.shm;

    oari_bulletin_write(oari_shm_bulletin(b, b->rank), fact, data);
    if (n->mesh != NULL && fact == OARI_FACT_BALLOT)
        tcp_show_ballot(n->mesh, data);
}

static int native_read(void *self, int rank, oari_fact fact, void *data)
{
    native *n = self;
    const oari_shm *b = &n->links.base.shm;
    int here = oari_shm_rank(b, rank);
    const oari_bulletin *bulletin =
        here >= 0 ? oari_shm_bulletin(b, here) : n->mesh->peer[rank].bulletin;

    return bulletin != NULL && oari_bulletin_read(bulletin, fact, data);
}

static int64_t native_answered(void *self, int rank)
{
    native *n = self;

    return n->mesh != NULL ? tcp_answered(n->mesh, rank) : -1;
}

static void native_close(void *self)
{
    native *n = self;

    if (n->mesh != NULL)
        tcp_close(n->mesh);
    oari_free(n->mesh);
    shm_links_close(&n->links);
}

/* The part that both tables share. */
#define NATIVE_OPS                                                           \
    .size = sizeof(oar_backend_ops), .abi = OAR_BACKEND_ABI,                 \
    .self_size = sizeof(native), .close = native_close, .send = native_send, \
    .recv = native_recv, .peek = oari_shm_base_peek,                         \
    .progress = native_progress, .abort = native_abort,                      \
    .post_count = OAR_COLL_COUNT
#define NATIVE_LINKS                                                           \
    .shm = oari_shm_base_get, .hosts = native_hosts, .gone = native_gone,      \
    .published = native_published, .publish = native_publish,                  \
    .agreed = native_agreed, .conclude = native_conclude, .show = native_show, \
    .read = native_read, .answered = native_answered,                          \
    .withdraw = native_withdraw, .restless = native_restless,                  \
    .watch = native_watch, .push = oari_shm_base_push,                         \
    .take = oari_shm_base_take, .await = oari_shm_base_await,                  \
    .match = oari_shm_base_match

const oari_backend oari_backend_native = {
    .ops = { NATIVE_OPS, .name = "native", .probe = native_probe },
    .role = OARI_ROLE_PROCESSES,
    .open = native_open,
    NATIVE_LINKS,
};
const oari_backend oari_backend_shm = {
    .ops = { NATIVE_OPS, .name = "shm", .probe = shm_probe },
    .open = shm_open_links,
    NATIVE_LINKS,
};
