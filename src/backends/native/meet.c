/* SPDX-License-Identifier: Apache-2.0 */
/* meet: how the ranks of a host find each other.
 *
 * Every rank publishes a note in the store: who it is, which host it is on, and
 * the random name of a unix socket it listens on. The higher rank of a pair
 * connects to the lower one and proves, by the token of the lower one's note,
 * that it can read the store. Both then pass their control block, eventfd and
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

enum { NOTE_MAGIC = 0x4f415231, PROTOCOL = 1, PASSED = 3, BOOT_ID = 40 };

/* What a rank publishes. Fixed size, checked field by field. */
typedef struct note {
    uint32_t magic; /* also tells the byte order */
    uint32_t protocol;
    int32_t rank, ranks;
    uint64_t page, small_bytes, stage_bytes;
    char boot[BOOT_ID];
    char socket[OARI_LOCAL_NAME];
    unsigned char token[16];
} note;

/* What comes with the descriptors. */
typedef struct greeting {
    uint32_t magic;
    int32_t rank;
    unsigned char token[16]; /* of the listener's note */
    uint64_t control_bytes, recorder_bytes;
} greeting;

typedef struct meeting {
    native *n;
    const oar_backend_env *env;
    int64_t deadline_ns;
    int64_t instance; /* how often this name was used in this store */
    int listener;
    note mine;
    note *note; /* by rank */
} meeting;

/* ---- notes
 * ---------------------------------------------------------------------*/

static oar_status read_boot_id(char boot[BOOT_ID])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, BOOT_ID - 1) : -1;

    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return oari_fail(OAR_E_SYSTEM, "read the boot id");
    boot[got] = 0;
    boot[strcspn(boot, "\n")] = 0;
    return OAR_OK;
}

static void key_of(const meeting *m, int rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s/%lld/%d", m->env->name, (long long)m->instance,
             rank);
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
    OARI_TRY(read_boot_id(mine->boot));
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    return OAR_OK;
}

static oar_status publish(meeting *m)
{
    char key[OAR_STORE_KEY_MAX];

    OARI_TRY(oari_local_listen(m->mine.socket, &m->listener));
    oari_fork_guard(m->listener);
    key_of(m, m->env->rank, key, sizeof key);
    return oar_store_set(m->env->store, key, &m->mine, sizeof m->mine);
}

/* Joins are counted per rank, so that a name can be used again. */
static oar_status count_instance(meeting *m)
{
    char key[OAR_STORE_KEY_MAX];

    snprintf(key, sizeof key, "%s/join/%d", m->env->name, m->env->rank);
    return oar_store_add(m->env->store, key, 1, &m->instance);
}

static oar_status check_note(const meeting *m, int rank, const note *other)
{
    if (other->magic != NOTE_MAGIC || other->protocol != PROTOCOL ||
        other->page != m->mine.page)
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
    if (strncmp(other->boot, m->mine.boot, BOOT_ID) != 0)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "rank %d is on another host; groups across hosts are "
                         "not supported yet",
                         rank);
    return OAR_OK;
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
        return oari_fail(OAR_E_TIMEOUT,
                         "rank %d did not join group \"%s\" in %lld ms", rank,
                         m->env->name, (long long)m->env->timeout_ms);
    if (status != OAR_OK)
        return status;
    if (bytes == sizeof(note))
        memcpy(&m->note[rank], value, sizeof(note));
    oari_free(value);
    m->note[rank].socket[OARI_LOCAL_NAME - 1] = 0;
    return check_note(m, rank, &m->note[rank]);
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

static oar_status greet(meeting *m, int socket, const note *listener)
{
    native *n = m->n;
    greeting g = { .magic = NOTE_MAGIC,
                   .rank = m->env->rank,
                   .control_bytes = n->base.board.layout.bytes,
                   .recorder_bytes = oari_recorder_bytes() };
    int pass[PASSED] = { n->control_fd, n->event_fd,
                         oari_recorder_fd(m->env->core->recorder) };

    memcpy(g.token, listener->token, sizeof g.token);
    return oari_local_send(socket, &g, sizeof g, pass, PASSED);
}

static oar_status map_peer(native *n, int rank, const greeting *g,
                           const int pass[PASSED])
{
    oari_board *b = &n->base.board;
    void *base;

    if (g->control_bytes != b->layout.bytes ||
        g->recorder_bytes != oari_recorder_bytes())
        return oari_fail(OAR_E_MISMATCH, "rank %d has another control block",
                         rank);
    OARI_TRY(oari_segment_map(pass[0], b->layout.bytes, 0, &base));
    b->control[rank] = base;
    if (oari_segment_map(pass[2], oari_recorder_bytes(), 0, &base) == OAR_OK)
        b->recorder[rank] = base; /* a file of another kind: do without */
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
    int64_t pid;

    OARI_TRY(oari_local_pid(p->socket, &pid));
    p->pidfd = oari_fork_guard((int)syscall(SYS_pidfd_open, pid, 0));
    if (epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->socket, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    event.events = EPOLLIN;
    if (p->pidfd >= 0 &&
        epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    return OAR_OK;
}

static int same_token(const greeting *g, const note *expected)
{
    unsigned differ = 0;

    for (size_t i = 0; i < sizeof g->token; i++)
        differ |= (unsigned)(g->token[i] ^ expected->token[i]);
    return differ == 0 && g->magic == NOTE_MAGIC;
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
static oar_status blame(const meeting *m, int rank, oar_status status)
{
    if (status == OAR_E_CLOSED)
        return oari_fail(OAR_E_PEER,
                         "rank %d died or left while group \"%s\" was made",
                         rank, m->env->name);
    if (status == OAR_E_TIMEOUT)
        return oari_fail(OAR_E_TIMEOUT,
                         "rank %d did not answer in the %lld ms for making "
                         "group \"%s\"",
                         rank, (long long)m->env->timeout_ms, m->env->name);
    return status;
}

static oar_status call_on(meeting *m, int rank, int *socket)
{
    oar_status status = oari_local_connect(m->note[rank].socket, socket);

    if (status != OAR_OK)
        return blame(m, rank, status);
    status = greet(m, *socket, &m->note[rank]);
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
    if (g.rank != rank || !same_token(&g, &m->note[rank])) {
        turn_away(pass, socket);
        return oari_fail(OAR_E_AUTH, "somebody else answers for rank %d", rank);
    }
    return accept_greeting(m, rank, &g, pass, socket);
}

static int known(const meeting *m, const greeting *g)
{
    return same_token(g, &m->mine) && g->rank > m->env->rank &&
           g->rank < m->env->ranks && m->n->peer[g->rank].socket < 0;
}

/* Lets one higher rank in; strangers are turned away and do not count. */
static oar_status let_one_in(meeting *m, int *let_in)
{
    greeting g;
    int pass[PASSED], socket;
    int64_t pid;

    OARI_TRY(oari_local_accept(m->listener, m->deadline_ns, &socket, &pid));
    if (oari_local_recv(socket, &g, sizeof g, pass, PASSED, m->deadline_ns) !=
        OAR_OK) {
        close(socket);
        return OAR_OK;
    }
    if (!known(m, &g)) {
        turn_away(pass, socket);
        return OAR_OK;
    }
    OARI_TRY(accept_greeting(m, g.rank, &g, pass, socket));
    *let_in += 1;
    return blame(m, g.rank, greet(m, socket, &m->mine));
}

static oar_status meet_lower(meeting *m, int *socket)
{
    for (int r = 0; r < m->env->rank; r++)
        OARI_TRY(call_on(m, r, &socket[r]));
    return OAR_OK;
}

static int first_missing(const meeting *m)
{
    int rank = m->env->rank + 1;

    while (rank < m->env->ranks - 1 && m->n->peer[rank].socket >= 0)
        rank++;
    return rank;
}

static oar_status meet_higher(meeting *m)
{
    int wanted = m->env->ranks - 1 - m->env->rank, let_in = 0;
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

static oar_status meet_all(meeting *m, int *socket)
{
    OARI_TRY(fill_note(m, &m->mine));
    m->note[m->env->rank] = m->mine;
    if (m->env->ranks > 1) {
        OARI_TRY(count_instance(m));
        OARI_TRY(publish(m));
    }
    for (int r = 0; r < m->env->ranks; r++)
        if (r != m->env->rank)
            OARI_TRY(read_note(m, r));
    OARI_TRY(make_control(m));
    OARI_TRY(make_wait(m->n));
    OARI_TRY(meet_lower(m, socket));
    OARI_TRY(meet_higher(m));
    for (int r = 0; r < m->env->rank; r++) {
        int answering = socket[r];
        socket[r] = -1;
        OARI_TRY(hear_back(m, r, answering));
    }
    return OAR_OK;
}

oar_status native_meet(native *n, const oar_backend_env *env)
{
    meeting m = { .n = n,
                  .env = env,
                  .deadline_ns = oari_deadline(env->timeout_ms),
                  .listener = -1 };
    int *socket = oari_alloc((size_t)env->ranks, sizeof *socket);
    oar_status status = OAR_E_NOMEM;

    m.note = oari_alloc((size_t)env->ranks, sizeof *m.note);
    if (socket != NULL && m.note != NULL) {
        for (int r = 0; r < env->ranks; r++)
            socket[r] = -1;
        status = meet_all(&m, socket);
        for (int r = 0; r < env->ranks; r++)
            if (socket[r] >= 0)
                close(socket[r]);
    }
    oari_fork_close(m.listener);
    oari_free(m.note);
    oari_free(socket);
    return status;
}
