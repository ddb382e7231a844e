/* SPDX-License-Identifier: Apache-2.0 */
/* meet: how the ranks of a host find each other.
 *
 * Every rank publishes a note in the store: who it is, which host it is on, and
 * the random name of a unix socket it listens on. Those of one host make a
 * board. The higher rank of a pair connects to the lower one. Both prove that
 * they have read the token of the lower one's note, and that they know the
 * job's secret, if it has one, and pass their control block, eventfd and
 * recorder. The sockets stay open: they carry segments, and their end is how a
 * death is noticed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"
#include "backends/native/native.h"
#include "backends/native/proof.h"

enum { NOTE_MAGIC = 0x4f415231, PROTOCOL = 3, PASSED = 3 };

/* What a rank publishes. Fixed size, checked field by field. */
typedef struct note {
    uint32_t magic; /* also tells the byte order */
    uint32_t protocol;
    int32_t rank, ranks;
    uint64_t page, small_bytes, stage_bytes;
    char host[NATIVE_HOST];
    char socket[OARI_LOCAL_NAME];
    unsigned char token[16];
    uint64_t proves;                       /* that it knows the job's secret */
    unsigned char proof[OARI_PROOF_BYTES]; /* of all before it, see proof.h */
} note;

/* What comes with the descriptors. */
typedef struct greeting {
    uint32_t magic;
    int32_t rank;
    unsigned char proof[OARI_PROOF_BYTES];
    uint64_t control_bytes, recorder_at;
} greeting;

typedef struct meeting {
    native *n;
    const oar_backend_env *env;
    int64_t deadline_ns;
    const char *prefix; /* of the keys */
    int one_host;       /* and no other */
    int listener;
    oari_secret secret;
    note mine;
    note *note; /* by rank */
} meeting;

/* ---- notes
 * ---------------------------------------------------------------------*/

static void key_of(const meeting *m, int rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s/%d", m->prefix, rank);
}

static oar_status fill_note(const meeting *m, note *mine)
{
    mine->magic = NOTE_MAGIC;
    mine->protocol = PROTOCOL;
    mine->rank = m->env->rank;
    mine->ranks = m->env->ranks;
    mine->page = (uint64_t)sysconf(_SC_PAGESIZE);
    mine->small_bytes = m->env->core->small_bytes;
    mine->stage_bytes = m->env->core->stage_bytes;
    OARI_TRY(native_host(mine->host));
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    mine->proves = (uint64_t)m->secret.known;
    return OAR_OK;
}

static native_note as_note(const meeting *m, int rank, const note *n)
{
    return (native_note){ m->prefix, rank, n, offsetof(note, proof) };
}

static oar_status publish(meeting *m)
{
    char key[OAR_STORE_KEY_MAX];
    native_note mine = as_note(m, m->env->rank, &m->mine);

    OARI_TRY(oari_local_listen(m->mine.socket, &m->listener));
    oari_fork_guard(m->listener);
    OARI_TRY(native_vouch(&m->secret, &mine, m->mine.proof));
    key_of(m, m->env->rank, key, sizeof key);
    return oar_store_set(m->env->store, key, &m->mine, sizeof m->mine);
}

static oar_status check_note(const meeting *m, int rank, const note *other)
{
    native_note about = as_note(m, rank, other);
    int here = strncmp(other->host, m->mine.host, NATIVE_HOST) == 0;

    if (other->magic != NOTE_MAGIC || other->protocol != PROTOCOL ||
        (here && other->page != m->mine.page))
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d speaks protocol %u (page size %llu), this "
                         "is protocol %d (page size %llu)",
                         rank, other->protocol, (unsigned long long)other->page,
                         PROTOCOL, (unsigned long long)m->mine.page);
    if (other->rank != rank || other->ranks != m->env->ranks)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d calls itself rank %d of %d, this is rank %d "
                         "of %d",
                         rank, other->rank, other->ranks, m->env->rank,
                         m->env->ranks);
    if (m->one_host && !here)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "rank %d is on another host, which backend \"shm\" "
                         "does not reach",
                         rank);
    return native_believe(&m->secret, &about, other->proves != 0, other->proof);
}

static oar_status read_note(meeting *m, int rank)
{
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;
    oar_status status;

    key_of(m, rank, key, sizeof key);
    status =
        oar_store_get(m->env->store, key, oari_deadline_left_ms(m->deadline_ns),
                      &value, &bytes);
    if (status == OAR_E_TIMEOUT)
        return oari_about(
            rank,
            oari_fail(OAR_E_TIMEOUT,
                      "rank %d did not join group \"%s\" in %lld ms", rank,
                      m->env->name, (long long)m->env->core->meet_ms));
    if (status != OAR_OK)
        return status;
    if (bytes == sizeof(note))
        memcpy(&m->note[rank], value, sizeof(note));
    oari_free(value);
    OARI_TRY(check_note(m, rank, &m->note[rank]));
    m->note[rank].socket[OARI_LOCAL_NAME - 1] = 0;
    m->note[rank].host[NATIVE_HOST - 1] = 0;
    return OAR_OK;
}

static oar_status read_notes(meeting *m)
{
    for (int r = 0; r < m->env->ranks; r++)
        if (r != m->env->rank)
            OARI_TRY(read_note(m, r));
    return OAR_OK;
}

/* ---- who is on the board ------------------------------------------------- */

static int is_here(const meeting *m, int rank)
{
    return m->n->host[rank] == m->n->host[m->env->rank];
}

static oar_status list_members(meeting *m)
{
    native *n = m->n;
    oari_board *b = &n->base.board;
    int at = 0;

    n->member = oari_alloc((size_t)b->ranks, sizeof *n->member);
    if (n->member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < m->env->ranks; r++) {
        if (r == m->env->rank)
            b->rank = at;
        if (is_here(m, r))
            n->member[at++] = r;
    }
    b->member = n->member;
    return OAR_OK;
}

static oar_status make_peers(native *n)
{
    int ranks = n->base.board.ranks;

    n->peer = oari_alloc((size_t)ranks, sizeof *n->peer);
    if (n->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < ranks; r++)
        n->peer[r].socket = n->peer[r].pidfd = -1;
    return OAR_OK;
}

static oar_status find_hosts(meeting *m)
{
    native *n = m->n;
    oari_board *b = &n->base.board;

    n->host = oari_alloc((size_t)m->env->ranks, sizeof *n->host);
    if (n->host == NULL)
        return OAR_E_NOMEM;
    native_number_hosts(m->env->ranks, m->note[0].host, sizeof(note), n->host);
    b->rank = m->env->rank;
    for (int r = 0; r < m->env->ranks; r++) {
        b->ranks += is_here(m, r);
        if (n->host[r] >= n->hosts)
            n->hosts = n->host[r] + 1;
    }
    if (n->hosts > 1)
        OARI_TRY(list_members(m));
    OARI_TRY(oari_board_init(b));
    return make_peers(n);
}

/* The rank in the group of a rank on the board. */
static int rank_of(const meeting *m, int r)
{
    return m->n->member != NULL ? m->n->member[r] : r;
}

/* ---- my side
 * -------------------------------------------------------------------*/

static oar_status make_control(meeting *m)
{
    native *n = m->n;
    oari_board *b = &n->base.board;
    const note *first = &m->note[0];
    void *base;

    b->layout =
        oari_board_layout(b->ranks, first->small_bytes, first->stage_bytes);
    OARI_TRY(oari_segment_make("oarsong-control", b->layout.bytes,
                               &n->control_fd, &base));
    oari_fork_guard(n->control_fd);
    b->control[b->rank] = base;
    if (b->rank == 0)
        b->first = (void *)((char *)base + b->layout.ballot);
    oari_control_init(base, b->rank, b->ranks, first->small_bytes,
                      first->stage_bytes);
    b->recorder[b->rank] = oari_recorder_base(m->env->core->recorder);
    return OAR_OK;
}

static oar_status make_wait(native *n)
{
    oari_board *b = &n->base.board;
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = UINT32_MAX };

    n->event_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    n->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    if (n->event_fd < 0 || n->epoll_fd < 0 ||
        epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, n->event_fd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "make an eventfd");
    b->event[b->rank] = n->event_fd;
    b->wait_fd = n->epoll_fd;
    return OAR_OK;
}

/* ---- one peer
 * ------------------------------------------------------------------*/

/* What a greeting proves: which way it goes, and that whoever sends it knows
 * the listener's token and the secret. */
static oar_status prove(const meeting *m, const greeting *g, int peer,
                        const note *listener,
                        unsigned char proof[OARI_PROOF_BYTES])
{
    int answer = g->rank == listener->rank;
    int caller = answer ? peer : g->rank;
    const void *part[] = { answer ? "answer" : "caller", listener->token };
    size_t bytes[] = { 6, sizeof listener->token };
    unsigned char key[OARI_SECRET_BYTES] = { 0 };

    if (m->secret.known)
        OARI_TRY(oari_secret_key(&m->secret, "meet", 0, caller, listener->rank,
                                 key));
    return oari_secret_prove(key, part, bytes, 2, proof);
}

static oar_status greet(meeting *m, int socket, int peer, const note *listener)
{
    native *n = m->n;
    greeting g = { .magic = NOTE_MAGIC,
                   .rank = m->env->rank,
                   .control_bytes = n->base.board.layout.bytes,
                   .recorder_at = oari_recorder_at(m->env->core->recorder) };
    int pass[PASSED] = { n->control_fd, n->event_fd,
                         oari_recorder_fd(m->env->core->recorder) };

    OARI_TRY(prove(m, &g, peer, listener, g.proof));
    return oari_local_send(socket, &g, sizeof g, pass, PASSED);
}

static oar_status map_peer(native *n, int rank, const greeting *g,
                           const int pass[PASSED])
{
    oari_board *b = &n->base.board;
    void *base;

    if (g->control_bytes != b->layout.bytes)
        return oari_fail(OAR_E_MISMATCH, "rank %d has another control block",
                         rank);
    OARI_TRY(oari_segment_map(pass[0], b->layout.bytes, 0, &base));
    b->control[rank] = base;
    if (rank == 0)
        OARI_TRY(oari_segment_map_part(pass[0], b->layout.ballot,
                                       b->layout.bytes - b->layout.ballot,
                                       &base));
    if (rank == 0)
        b->first = base;
    if (oari_recorder_map(pass[2], g->recorder_at, &b->recorder[rank]) !=
        OAR_OK)
        b->recorder[rank] = NULL; /* do without */
    b->event[rank] = oari_fork_guard(pass[1]);
    return OAR_OK;
}

/* Its death shows on the socket, or, if a child of its holds that, here. The
 * socket is looked at again after the pidfd is open: had it died before, the
 * pid might be another's. */
static oar_status watch(native *n, int rank)
{
    native_peer *p = &n->peer[rank];
    struct epoll_event event = { .events = EPOLLRDHUP,
                                 .data.u32 = (uint32_t)rank };

    OARI_TRY(oari_local_pid(p->socket, &p->pid));
    p->pidfd = oari_fork_guard((int)syscall(SYS_pidfd_open, p->pid, 0));
    if (epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->socket, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    event.events = EPOLLIN;
    if (p->pidfd >= 0 &&
        epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    return OAR_OK;
}

static int is_proved(const meeting *m, const greeting *g, const note *listener)
{
    unsigned char proof[OARI_PROOF_BYTES];

    return g->magic == NOTE_MAGIC &&
           prove(m, g, m->env->rank, listener, proof) == OAR_OK &&
           oari_secret_same(proof, g->proof);
}

/* Keeps the control block and event of a peer that greeted over this socket. */
static oar_status accept_greeting(meeting *m, int rank, const greeting *g,
                                  int pass[PASSED], int socket)
{
    native *n = m->n;
    oar_status status = map_peer(n, rank, g, pass);

    close(pass[0]);
    close(pass[2]);
    if (status != OAR_OK) {
        close(pass[1]);
        close(socket);
        return status;
    }
    n->peer[rank].socket = oari_fork_guard(socket);
    return watch(n, rank);
}

/* Says whose fault it is that nothing goes over a socket. */
static oar_status blame(const meeting *m, int peer, oar_status status)
{
    int rank = rank_of(m, peer);

    if (status == OAR_E_CLOSED)
        oari_fail(status = OAR_E_PEER,
                  "rank %d died or left while group \"%s\" was made", rank,
                  m->env->name);
    else if (status == OAR_E_TIMEOUT)
        oari_fail(status,
                  "rank %d did not answer in the %lld ms for making "
                  "group \"%s\"",
                  rank, (long long)m->env->core->meet_ms, m->env->name);
    else
        return status;
    return oari_about(rank, status);
}

static oar_status call_on(meeting *m, int rank, int *socket)
{
    const note *listener = &m->note[rank_of(m, rank)];
    oar_status status = oari_local_connect(listener->socket, socket);

    if (status != OAR_OK)
        return blame(m, rank, status);
    status = greet(m, *socket, rank_of(m, rank), listener);
    if (status != OAR_OK) {
        close(*socket);
        *socket = -1;
    }
    return blame(m, rank, status);
}

static void turn_away(const int pass[PASSED], int socket)
{
    for (int i = 0; i < PASSED; i++)
        close(pass[i]);
    close(socket);
}

static oar_status hear_back(meeting *m, int rank, int socket)
{
    greeting g;
    int pass[PASSED];
    oar_status status =
        oari_local_recv(socket, &g, sizeof g, pass, PASSED, m->deadline_ns);

    if (status != OAR_OK) {
        close(socket);
        return blame(m, rank, status);
    }
    if (g.rank != rank_of(m, rank) ||
        !is_proved(m, &g, &m->note[rank_of(m, rank)])) {
        turn_away(pass, socket);
        return oari_fail(OAR_E_AUTH, "somebody else answers for rank %d",
                         rank_of(m, rank));
    }
    return accept_greeting(m, rank, &g, pass, socket);
}

/* Its rank on the board; -1: it is none that may call. */
static int known(const meeting *m, const greeting *g)
{
    int rank;

    if (g->rank <= m->env->rank || g->rank >= m->env->ranks ||
        !is_proved(m, g, &m->mine))
        return -1;
    rank = oari_board_rank(&m->n->base.board, g->rank);
    return rank >= 0 && m->n->peer[rank].socket < 0 ? rank : -1;
}

/* Lets one higher rank in; strangers are turned away and do not count. */
static oar_status let_one_in(meeting *m, int *let_in)
{
    greeting g;
    int pass[PASSED], socket, rank;
    int64_t pid;

    OARI_TRY(oari_local_accept(m->listener, m->deadline_ns, &socket, &pid));
    if (oari_local_recv(socket, &g, sizeof g, pass, PASSED, m->deadline_ns) !=
        OAR_OK) {
        close(socket);
        return OAR_OK;
    }
    if ((rank = known(m, &g)) < 0) {
        turn_away(pass, socket);
        return OAR_OK;
    }
    OARI_TRY(accept_greeting(m, rank, &g, pass, socket));
    *let_in += 1;
    return blame(m, rank, greet(m, socket, g.rank, &m->mine));
}

static oar_status meet_lower(meeting *m, int *socket)
{
    for (int r = 0; r < m->n->base.board.rank; r++)
        OARI_TRY(call_on(m, r, &socket[r]));
    return OAR_OK;
}

static int first_missing(const meeting *m)
{
    const oari_board *b = &m->n->base.board;
    int rank = b->rank + 1;

    while (rank < b->ranks - 1 && m->n->peer[rank].socket >= 0)
        rank++;
    return rank;
}

static oar_status meet_higher(meeting *m)
{
    const oari_board *b = &m->n->base.board;
    int wanted = b->ranks - 1 - b->rank, let_in = 0;
    oar_status status;

    while (let_in < wanted) {
        status = let_one_in(m, &let_in);
        if (status == OAR_E_TIMEOUT)
            return blame(m, first_missing(m), status);
        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

static oar_status hear_lower(meeting *m, int *socket)
{
    for (int r = 0; r < m->n->base.board.rank; r++) {
        int answering = socket[r];
        socket[r] = -1;
        OARI_TRY(hear_back(m, r, answering));
    }
    return OAR_OK;
}

static oar_status meet_all(meeting *m, int *socket)
{
    OARI_TRY(native_secret(&m->secret));
    OARI_TRY(fill_note(m, &m->mine));
    if (m->env->ranks > 1)
        OARI_TRY(publish(m));
    m->note[m->env->rank] = m->mine;
    OARI_TRY(read_notes(m));
    OARI_TRY(find_hosts(m));
    OARI_TRY(make_control(m));
    OARI_TRY(make_wait(m->n));
    OARI_TRY(meet_lower(m, socket));
    OARI_TRY(meet_higher(m));
    return hear_lower(m, socket);
}

oar_status native_meet(native *n, const oar_backend_env *env, int one_host,
                       char prefix[OAR_STORE_KEY_MAX])
{
    meeting m = { .n = n,
                  .env = env,
                  .prefix = prefix,
                  .one_host = one_host,
                  .deadline_ns = oari_deadline(env->core->meet_ms),
                  .listener = -1 };
    int *socket = oari_alloc((size_t)env->ranks, sizeof *socket);
    oar_status status = OAR_E_NOMEM;

    m.note = oari_alloc((size_t)env->ranks, sizeof *m.note);
    if (socket != NULL && m.note != NULL) {
        for (int r = 0; r < env->ranks; r++)
            socket[r] = -1;
        status = env->ranks > 1 ? native_prefix(env, prefix, OAR_STORE_KEY_MAX)
                                : OAR_OK;
        if (status == OAR_OK)
            status = meet_all(&m, socket);
        for (int r = 0; r < env->ranks; r++)
            if (socket[r] >= 0)
                close(socket[r]);
    }
    oari_secret_forget(&m.secret);
    oari_fork_close(m.listener);
    oari_free(m.note);
    oari_free(socket);
    return status;
}
