/* SPDX-License-Identifier: Apache-2.0 */
/* tcp: the backend in which every pair of ranks uses TCP, on one host too. */
#include "backends/backends.h"
#include "base/status.h"
#include "link/match.h"
#include "link/tcp/tcp.h"

typedef struct tcp {
    oari_match *match;
    tcp_mesh mesh;
} tcp;

static oar_status probe_tcp(oar_backend_caps *caps)
{
    caps->note = "ranks as processes, TCP only";
    caps->can = OARI_MATCH_CAN;
    return OAR_OK;
}

static oar_status open_tcp(void *self, const oari_open *with)
{
    tcp *t = self;
    char host[OARI_HOST_NAME_BYTES], prefix[OAR_STORE_KEY_MAX];
    tcp_setup setup = { .with = with, .prefix = prefix, .host = host };

    tcp_init(&t->mesh);
    OARI_TRY(oari_match_create(with->env.rank, with->env.ranks,
                               with->eager_bytes, &t->match));
    setup.match = t->match;
    OARI_TRY(oari_host_name(host));
    if (with->env.ranks == 1)
        return tcp_open_alone(&t->mesh, &setup);
    OARI_TRY(oari_join_prefix(with, prefix, sizeof prefix));
    return tcp_open(&t->mesh, &setup);
}

static void close_tcp(void *self)
{
    tcp *t = self;

    tcp_close(&t->mesh);
    oari_match_destroy(t->match);
}

static oar_status send_tcp(void *self, oar_transfer *transfer)
{
    tcp *t = self;

    return transfer->peer == t->mesh.rank
               ? oari_match_send_self(t->match, transfer)
               : tcp_send(&t->mesh, transfer);
}

static oar_status recv_tcp(void *self, oar_transfer *transfer)
{
    tcp *t = self;

    OARI_TRY(oari_match_recv(t->match, transfer));
    tcp_expect(&t->mesh, transfer);
    return OAR_OK;
}

static int peek_tcp(void *self, int peer, uint64_t tag, uint64_t any,
                    oar_envelope *found)
{
    return oari_match_peek(((tcp *)self)->match, peer, tag, any, found);
}

static oar_status progress_tcp(void *self)
{
    tcp *t = self;
    oar_status status = tcp_progress(&t->mesh);

    if (t->mesh.ended != OAR_OK)
        oari_match_abort(t->match, t->mesh.ended);
    return status;
}

static int tcp_wait_fd(void *self)
{
    return ((tcp *)self)->mesh.epoll_fd;
}

static int arm_tcp(void *self)
{
    return tcp_arm(&((tcp *)self)->mesh);
}

static void wake_tcp(void *self)
{
    tcp_wake(&((tcp *)self)->mesh);
}

static void abort_tcp(void *self, oar_status why)
{
    tcp_abort(&((tcp *)self)->mesh, why);
}

static const int *host_numbers(void *self)
{
    return ((tcp *)self)->mesh.host;
}

static int peer_gone(void *self, int rank)
{
    return ((tcp *)self)->mesh.peer[rank].gone;
}

static int published_fault(void *self, oari_fault *fault)
{
    return tcp_published(&((tcp *)self)->mesh, fault);
}

static void publish_fault(void *self, const oari_fault *fault)
{
    tcp_publish(&((tcp *)self)->mesh, fault);
}

static int peers_agree(void *self)
{
    const tcp_mesh *m = &((tcp *)self)->mesh;

    return tcp_settled(m) || atomic_load(&m->unanimous);
}

static void conclude_fault(void *self, oari_fault *fault)
{
    tcp_mesh *m = &((tcp *)self)->mesh;

    tcp_published(m, fault);
    tcp_conclude(m, fault);
}

static void show_ballot(void *self, oari_fact fact, const void *data)
{
    if (fact == OARI_FACT_BALLOT)
        tcp_show_ballot(&((tcp *)self)->mesh, data);
}

static int read_fact(void *self, int rank, oari_fact fact, void *data)
{
    const oari_bulletin *b = ((tcp *)self)->mesh.peer[rank].bulletin;

    return b != NULL && oari_bulletin_read(b, fact, data);
}

static int64_t peer_pid(void *self, int rank)
{
    return tcp_pid(&((tcp *)self)->mesh, rank);
}

static int64_t peer_answered(void *self, int rank)
{
    return tcp_answered(&((tcp *)self)->mesh, rank);
}

static int withdraw_tcp(void *self, oar_transfer *transfer, int is_send,
                        int unmoved)
{
    return tcp_withdraw(&((tcp *)self)->mesh, transfer, is_send, unmoved);
}

static int restless_tcp(void *self)
{
    return tcp_restless(&((tcp *)self)->mesh);
}

static void watch_tcp(void *self)
{
    tcp_expect(&((tcp *)self)->mesh, &(oar_transfer){ .peer = -1 });
}

const oari_backend oari_backend_tcp = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "tcp",
    .ops.self_size = sizeof(tcp),
    .ops.probe = probe_tcp,
    .ops.close = close_tcp,
    .ops.send = send_tcp,
    .ops.recv = recv_tcp,
    .ops.peek = peek_tcp,
    .ops.progress = progress_tcp,
    .ops.wait_fd = tcp_wait_fd,
    .ops.arm = arm_tcp,
    .ops.wake = wake_tcp,
    .ops.abort = abort_tcp,
    .ops.post_count = OAR_COLL_COUNT,
    .open = open_tcp,
    .hosts = host_numbers,
    .gone = peer_gone,
    .published = published_fault,
    .publish = publish_fault,
    .agreed = peers_agree,
    .conclude = conclude_fault,
    .show = show_ballot,
    .read = read_fact,
    .pid = peer_pid,
    .answered = peer_answered,
    .withdraw = withdraw_tcp,
    .restless = restless_tcp,
    .watch = watch_tcp,
};
