/* SPDX-License-Identifier: Apache-2.0 */
/* A store's server and what its clients send: two connections, whose bytes
 * arrive in pieces, in the order and sizes that the input says. The store's job
 * has a secret or not; TLS is begun, or not. Whatever arrives, the server
 * answers in frames that can be read, serves no client without a proof, and
 * holds nothing at the end. */
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/memory.h>

#include "base/clock.h"
#include "base/fork.h"
#include "store/store_server.h"

enum { CLIENTS = 2, PIECES = 64, ROOM = 1 << 16 };

typedef struct client {
    int fd;                /* its end */
    oari_connection *conn; /* the server's; NULL: it has hung up */
    unsigned char in[ROOM];
    size_t have;
    int greets; /* we do: with a proof */
    int encrypts;
} client;

static oar_store_server *make_server(oari_wire wire)
{
    oar_store_server *s = calloc(1, sizeof *s);
    oari_secret secret = { .known = wire != OARI_WIRE_PLAIN };

    FUZZ_CHECK(s != NULL);
    FUZZ_CHECK(oari_trust_make(&secret, &s->trust) == OAR_OK);
    s->trust.near = s->trust.far = wire;
    s->trust.not_far = 0;
    s->limits = oari_store_default_limits;
    s->limits.kept_bytes = 8192;
    s->limits.moving_bytes = 1 << 20;
    s->generation = oari_fork_generation();
    s->listener = s->wake_fd = -1;
    s->next_deadline_ns = OARI_NEVER;
    s->id = 77;
    FUZZ_CHECK((s->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    return s;
}

/* As oar_store_server_destroy, for one that was made above. */
static void drop_server(oar_store_server *s)
{
    while (s->all.first != NULL)
        oari_connection_destroy(
            OARI_CONTAINER_OF(s->all.first, oari_connection, all));
    oari_session_drop_all(s);
    oari_table_drop(&s->table);
    FUZZ_CHECK(s->moving == 0 && s->connections == 0);
    close(s->epoll_fd);
    free(s);
}

static void connect_client(oar_store_server *s, client *c)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
    int pair[2];

    memset(c, 0, sizeof *c);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                          0, pair) == 0);
    c->fd = pair[0];
    FUZZ_CHECK((c->conn = oari_connection_create(s, pair[1])) != NULL);
    event.data.ptr = c->conn;
    c->conn->events = event.events;
    FUZZ_CHECK(epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, pair[1], &event) == 0);
    oari_connection_set_deadline(c->conn, s->limits.handshake_ms);
}

/* ---- what the server does ------------------------------------------------ */

static void close_client(oar_store_server *s, client *clients)
{
    for (oari_link *l = s->all.first, *next; l != NULL; l = next) {
        oari_connection *c = OARI_CONTAINER_OF(l, oari_connection, all);

        next = l->next;
        if (!c->dead)
            continue;
        for (int i = 0; i < CLIENTS; i++)
            if (clients[i].conn == c)
                clients[i].conn = NULL;
        oari_connection_destroy(c);
    }
}

static void read_frames(client *c)
{
    oari_wire_message message;
    oari_wire_header head;

    while (c->have >= OARI_WIRE_HEADER_BYTES) {
        FUZZ_CHECK(oari_wire_read_header(c->in, &head) == OAR_OK);
        if (c->have < OARI_WIRE_HEADER_BYTES + head.bytes)
            return;
        FUZZ_CHECK(oari_wire_read(&head, c->in + OARI_WIRE_HEADER_BYTES,
                                  &message) == OAR_OK);
        c->have -= OARI_WIRE_HEADER_BYTES + head.bytes;
        memmove(c->in, c->in + OARI_WIRE_HEADER_BYTES + head.bytes, c->have);
    }
}

/* Takes what was said, and checks that it can be read. In TLS it cannot. */
static void hear(client *c)
{
    enum { ALERT = 21, HANDSHAKE = 22 };
    ssize_t got;

    while ((got = recv(c->fd, c->in + c->have, ROOM - c->have, 0)) > 0) {
        c->have += (size_t)got;
        c->encrypts |= c->in[0] == ALERT || c->in[0] == HANDSHAKE;
        if (c->encrypts)
            c->have = 0;
        else if (!c->greets)
            read_frames(c);
        FUZZ_CHECK(c->have < ROOM);
    }
}

static void turn(oar_store_server *s, client *clients)
{
    struct epoll_event event[8];
    int n;

    for (int i = 0; i < 8; i++) {
        if ((n = epoll_wait(s->epoll_fd, event, 8, 0)) <= 0)
            break;
        for (int j = 0; j < n; j++)
            oari_connection_event(event[j].data.ptr, event[j].events);
        close_client(s, clients);
        for (int j = 0; j < CLIENTS; j++)
            hear(&clients[j]);
    }
}

/* ---- what the clients do ------------------------------------------------- */

static void say(client *c, const void *data, size_t bytes)
{
    if (c->conn != NULL && bytes > 0)
        (void)!send(c->fd, data, bytes, MSG_NOSIGNAL);
}

static void say_message(client *c, oari_wire_message *m)
{
    unsigned char frame[1024];

    FUZZ_CHECK(oari_wire_bytes(m) <= sizeof frame);
    oari_wire_write(m, frame);
    say(c, frame, oari_wire_bytes(m));
}

/* What the server has answered to a greeting. */
static int read_welcome(client *c, oari_wire_message *welcome)
{
    oari_wire_header head;

    return c->have >= OARI_WIRE_HEADER_BYTES &&
           oari_wire_read_header(c->in, &head) == OAR_OK &&
           c->have == OARI_WIRE_HEADER_BYTES + head.bytes &&
           oari_wire_read(&head, c->in + OARI_WIRE_HEADER_BYTES, welcome) ==
               OAR_OK;
}

/* Hello and proof, so that what follows is a request. */
static void send_handshake(oar_store_server *s, client *clients, client *c,
                           uint64_t id)
{
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO,
                                .head.number = 1,
                                .id = id };
    oari_wire_message proof = { .head.kind = OARI_WIRE_PROOF,
                                .head.number = 2 };
    oari_wire_message welcome;
    oari_auth auth;

    c->greets = 1;
    FUZZ_CHECK(oari_auth_open(&auth, s->trust.near, &hello) == OAR_OK);
    say_message(c, &hello);
    turn(s, clients);
    FUZZ_CHECK(read_welcome(c, &welcome));
    FUZZ_CHECK(oari_auth_answer(&auth, &s->trust, &welcome, &proof) == OAR_OK);
    c->greets = 0;
    c->have = 0;
    say_message(c, &proof);
    turn(s, clients);
    FUZZ_CHECK(c->conn != NULL && c->conn->state == OARI_CONNECTION_READY);
}

/* Pieces: whose (and how long) in one byte, then the bytes. */
static void say_pieces(oar_store_server *s, client *clients,
                       const uint8_t *data, size_t bytes)
{
    for (int i = 0; i < PIECES && bytes > 0; i++) {
        size_t most = (size_t)(*data >> 1) + 1;
        client *c = &clients[*data & 1];

        data++;
        bytes--;
        most = most < bytes ? most : bytes;
        say(c, data, most);
        data += most;
        bytes -= most;
        turn(s, clients);
    }
}

/* Where there is a secret, only clients that have sent a proof may ask. */
static void check_unauthenticated(const client *clients, int greeted,
                                  oari_wire wire)
{
    for (int i = 0; i < CLIENTS; i++)
        FUZZ_CHECK(wire == OARI_WIRE_PLAIN || (greeted >> i & 1) ||
                   clients[i].conn == NULL ||
                   clients[i].conn->state < OARI_CONNECTION_READY);
}

/* The first byte: which clients send a handshake (2 bits), whether they are the
 * same client, and the wire. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    client *clients = calloc(CLIENTS, sizeof *clients);
    oar_store_server *s;
    oari_wire wire;
    uint8_t how;

    FUZZ_CHECK(clients != NULL);
    fuzz_take(&data, &bytes, &how, 1);
    wire = (oari_wire)(how / 8 % 3);
    s = make_server(wire);
    for (int i = 0; i < CLIENTS; i++)
        connect_client(s, &clients[i]);
    for (int i = 0; i < CLIENTS && wire != OARI_WIRE_TLS; i++)
        if (how >> i & 1)
            send_handshake(s, clients, &clients[i],
                           how & 4 ? 9 : 9 + (uint64_t)i);
    say_pieces(s, clients, data, bytes);
    check_unauthenticated(clients, wire == OARI_WIRE_TLS ? 0 : how, wire);
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i].fd);
    drop_server(s);
    free(clients);
    return 0;
}
