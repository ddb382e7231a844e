/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_rank.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "link/auth.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000, NOTE_MAGIC = 0x4f415254 };

/* ---- notes --------------------------------------------------------------- */

static void read_note(fake_rank *i, oar_store *store, const char *prefix,
                      int rank)
{
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    snprintf(key, sizeof key, "%s/tcp/%d", prefix, rank);
    OK(oar_store_get(store, key, PATIENCE_MS, &value, &bytes));
    assert_int_equal(bytes, sizeof(tcp_entry));
    memcpy(&i->note[rank], value, bytes);
    oar_free(value);
    memcpy(i->mesh.peer[rank].token, i->note[rank].token, TCP_TOKEN);
}

void fake_rank_init(fake_rank *i, oar_store *store, const char *prefix,
                    int rank, int ranks, const oari_secret *secret)
{
    memset(i, 0, sizeof *i);
    i->note = calloc((size_t)ranks, sizeof *i->note);
    i->mesh.peer = calloc((size_t)ranks, sizeof *i->mesh.peer);
    i->mesh.rank = rank;
    i->mesh.ranks = ranks;
    for (int r = 0; r < ranks; r++)
        read_note(i, store, prefix, r);
    i->mesh.context = i->note[0].context;
    i->mesh.secret = *secret;
    if (!secret->known)
        memcpy(i->mesh.secret.bytes, i->note[0].key, OARI_SECRET_BYTES);
    i->mesh.secret.known = 1;
}

void fake_rank_free(fake_rank *i)
{
    free(i->note);
    free(i->mesh.peer);
}

void fake_rank_publish(oar_store *store, const char *prefix, int rank,
                       int ranks, const oari_secret *secret,
                       const char *address)
{
    tcp_entry note = { .magic = NOTE_MAGIC,
                       .protocol = OARI_FRAME_VERSION,
                       .rank = rank,
                       .ranks = ranks,
                       .context = 5,
                       .proves = (uint32_t)secret->known };
    oari_signed_entry about = { prefix, rank, &note,
                                offsetof(tcp_entry, proof) };
    char key[OAR_STORE_KEY_MAX];
    oari_protection near;

    OK(oari_protection_for(secret, 1, &near));
    note.wire = (uint32_t)near;
    OK(oari_host_name(note.host));
    snprintf(note.address, sizeof note.address, "%s", address);
    OK(oari_entry_sign(secret, &about, note.proof));
    snprintf(key, sizeof key, "%s/tcp/%d", prefix, rank);
    OK(oar_store_set(store, key, &note, sizeof note));
}

/* ---- calls --------------------------------------------------------------- */

int fake_rank_connect(const fake_rank *i, int to)
{
    const char *address = i->note[to].address;
    int64_t deadline = oari_deadline(PATIENCE_MS);
    int fd, done = 0;

    if (oari_sock_connect_again(address, 0, &fd) != OAR_OK)
        return -1;
    while (!done) {
        struct pollfd wait = { fd, POLLOUT, 0 };
        if (oari_now_ns() > deadline || poll(&wait, 1, 1000) < 0 ||
            oari_sock_connected(fd, address, &done) != OAR_OK) {
            oari_fork_close(fd);
            return -1;
        }
    }
    return fd;
}

void fake_rank_hello(fake_rank *i, int to, int slot,
                     unsigned char raw[FAKE_RANK_HELLO])
{
    oari_frame hello = { .kind = OARI_FRAME_HELLO,
                         .context = i->mesh.context,
                         .source = (uint32_t)i->mesh.rank,
                         .flags = slot < 0 ? OARI_FRAME_LAST : 0,
                         .tag = slot < 0 ? 0 : (uint64_t)slot,
                         .bytes = TCP_HELLO };
    tcp_conn *c = calloc(1, sizeof *c);

    c->peer = to;
    c->slot = slot;
    c->state = TCP_CALLING;
    oari_frame_write(&hello, raw);
    OK(tcp_make_hello(&i->mesh, c, &hello, raw + OARI_FRAME_BYTES));
    free(c);
}

void fake_rank_answer(fake_rank *i, int to,
                      const unsigned char hello[FAKE_RANK_HELLO],
                      unsigned char raw[FAKE_RANK_HELLO])
{
    oari_frame answer = { .kind = OARI_FRAME_HELLO,
                          .context = i->mesh.context,
                          .source = (uint32_t)i->mesh.rank,
                          .bytes = TCP_HELLO };
    tcp_conn *c = calloc(1, sizeof *c);

    c->peer = to;
    c->state = TCP_UP;
    memcpy(c->hello, hello + OARI_FRAME_BYTES, TCP_HELLO);
    oari_frame_write(&answer, raw);
    OK(tcp_make_hello(&i->mesh, c, &answer, raw + OARI_FRAME_BYTES));
    free(c);
}

oari_stream fake_rank_start_tls(fake_rank *i, int to, int fd)
{
    tcp_conn *c = calloc(1, sizeof *c);
    oari_stream stream;

    c->peer = to;
    c->fd = fd;
    c->state = TCP_CONNECTING;
    OK(tcp_encrypt(&i->mesh, c));
    stream = c->stream;
    free(c);
    return stream;
}

/* ---- sockets ------------------------------------------------------------- */

void fake_rank_send(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    int64_t deadline = oari_deadline(PATIENCE_MS);

    while (bytes != 0 && oari_now_ns() < deadline) {
        struct pollfd wait = { fd, POLLOUT, 0 };
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno != EAGAIN)
            return;
        if (put < 0)
            poll(&wait, 1, 1000);
        else {
            at += put;
            bytes -= (size_t)put;
        }
    }
}

int fake_rank_recv(int fd, void *into, size_t room, int timeout_ms)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    ssize_t got;

    if (poll(&wait, 1, timeout_ms) <= 0)
        return -1;
    got = recv(fd, into, room, MSG_DONTWAIT);
    return got > 0 ? (int)got : 0;
}
