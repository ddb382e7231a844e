/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_auth: which callers are ranks.
 *
 * A hello carries a number that grows with every call, and a code (HMAC) over
 * it, the socket's place and the listener's token, by a key that belongs to the
 * pair and to one direction. The token is in no other entry of the store, so
 * the hello was made for this listener; and the listener accepts each number
 * once, so it is no copy of an earlier one. Calls of several sockets may arrive
 * in another order: it remembers the last 64. The answer's code covers the
 * hello.
 *
 * Where TLS is agreed, its handshake comes before, with a key of the pair, too.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/status.h"
#include "link/tcp/tcp.h"

enum { NUMBER = 8, TLS_HANDSHAKE = 22, WINDOW = 64 };

static void put_number(unsigned char at[NUMBER], uint64_t value)
{
    for (int i = 0; i < NUMBER; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_number(const unsigned char at[NUMBER])
{
    uint64_t value = 0;

    for (int i = 0; i < NUMBER; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* ---- hellos -------------------------------------------------------------- */

/* Which rank calls which. */
typedef struct pair {
    int caller, answerer;
} pair;

/* Makes a key of the pair. */
static oar_status pair_key(const tcp_mesh *m, const char *purpose, pair who,
                           unsigned char key[OARI_SECRET_BYTES])
{
    return oari_secret_key(&m->secret, purpose, m->context, who.caller,
                           who.answerer, key);
}

/* number: the first bytes of what the hello carries. */
static oar_status make_call_mac(const tcp_mesh *m, pair who,
                                const oari_frame *hello,
                                const unsigned char number[NUMBER],
                                unsigned char mac[OARI_MAC_BYTES])
{
    unsigned char key[OARI_SECRET_BYTES], place[2 * NUMBER];
    const void *part[] = { "call", m->peer[who.answerer].token, place, number };
    size_t bytes[] = { 4, TCP_TOKEN, sizeof place, NUMBER };

    put_number(place, hello->flags);
    put_number(place + NUMBER, hello->tag);
    OARI_TRY(pair_key(m, "link", who, key));
    return oari_secret_mac(key, part, bytes, 4, mac);
}

static oar_status make_answer_mac(const tcp_mesh *m, pair who,
                                  const unsigned char hello[TCP_HELLO],
                                  unsigned char mac[OARI_MAC_BYTES])
{
    unsigned char key[OARI_SECRET_BYTES];
    const void *part[] = { "answer", hello };
    size_t bytes[] = { 6, TCP_HELLO };

    OARI_TRY(pair_key(m, "link", who, key));
    return oari_secret_mac(key, part, bytes, 2, mac);
}

oar_status tcp_prove(tcp_mesh *m, tcp_conn *c, const oari_frame *hello,
                     unsigned char raw[TCP_HELLO])
{
    if (c->state == TCP_UP) {
        memcpy(raw, c->hello, NUMBER);
        return make_answer_mac(m, (pair){ c->peer, m->rank }, c->hello,
                               raw + NUMBER);
    }
    put_number(raw, ++m->peer[c->peer].calls);
    OARI_TRY(
        make_call_mac(m, (pair){ m->rank, c->peer }, hello, raw, raw + NUMBER));
    memcpy(c->hello, raw, TCP_HELLO);
    return OAR_OK;
}

/* Accepts every number once, and none that is too old to be known. */
static int is_new_number(tcp_peer *p, uint64_t number)
{
    uint64_t ahead = number - p->newest, behind = p->newest - number;

    if (number > p->newest) {
        p->window = ahead < WINDOW ? p->window << ahead | 1 : 1;
        p->newest = number;
        return 1;
    }
    if (number == 0 || behind >= WINDOW || (p->window >> behind & 1) != 0)
        return 0;
    p->window |= UINT64_C(1) << behind;
    return 1;
}

/* Returns whether a caller uses TLS if that is agreed. Facts on a connection of
 * their own are sealed instead. */
static int is_protected_as_agreed(const tcp_mesh *m, const tcp_conn *c)
{
    int only_facts = (c->now.flags & OARI_FRAME_LAST) != 0;
    int wanted = !only_facts && m->peer[c->now.source].wire == OARI_WIRE_TLS;

    return wanted == (c->stream.tls != NULL) &&
           (!wanted || c->tls_caller == (int)c->now.source);
}

static int check_call(tcp_mesh *m, tcp_conn *c)
{
    pair who = { (int)c->now.source, m->rank };
    unsigned char mac[OARI_MAC_BYTES];

    if (!is_protected_as_agreed(m, c) ||
        make_call_mac(m, who, &c->now, c->small, mac) != OAR_OK ||
        !oari_secret_mac_equal(mac, c->small + NUMBER) ||
        !is_new_number(&m->peer[who.caller], get_number(c->small)))
        return 0;
    memcpy(c->hello, c->small, TCP_HELLO);
    return 1;
}

int tcp_check_hello(tcp_mesh *m, tcp_conn *c)
{
    unsigned char mac[OARI_MAC_BYTES];

    if (c->now.source == (uint32_t)m->rank)
        return 0;
    if (c->state == TCP_ANSWERING)
        return check_call(m, c);
    return c->now.source == (uint32_t)c->peer &&
           memcmp(c->small, c->hello, NUMBER) == 0 &&
           make_answer_mac(m, (pair){ m->rank, c->peer }, c->hello, mac) ==
               OAR_OK &&
           oari_secret_mac_equal(mac, c->small + NUMBER);
}

/* ---- facts on connections of their own ----------------------------------- */

/* Returns a number that no other frame of such connections of a pair has. */
static uint64_t seal_number(const tcp_conn *c, uint32_t frame)
{
    return get_number(c->hello) << 16 | (frame & 0xffff);
}

/* Each fact has a key of its own: the header, which says which fact it is, is
 * not sealed. */
static oar_status fact_key(const tcp_mesh *m, pair who, oari_fact fact,
                           unsigned char key[OARI_SECRET_BYTES])
{
    char purpose[16];

    snprintf(purpose, sizeof purpose, "fact %d", (int)fact);
    return pair_key(m, purpose, who, key);
}

oar_status tcp_seal(const tcp_mesh *m, const tcp_conn *c, oari_fact fact,
                    unsigned char *raw)
{
    unsigned char key[OARI_SECRET_BYTES];
    size_t bytes = oari_fact_bytes(fact);

    OARI_TRY(fact_key(m, (pair){ m->rank, c->peer }, fact, key));
    return oari_seal(key, seal_number(c, c->sent), raw, bytes, raw + bytes);
}

oar_status tcp_unseal(const tcp_mesh *m, const tcp_conn *c, oari_fact fact,
                      unsigned char *raw)
{
    unsigned char key[OARI_SECRET_BYTES];
    size_t bytes = oari_fact_bytes(fact);

    OARI_TRY(fact_key(m, (pair){ c->peer, m->rank }, fact, key));
    return oari_unseal(key, seal_number(c, c->now.sequence), raw, bytes,
                       raw + bytes);
}

/* ---- TLS ----------------------------------------------------------------- */

/* Writes the name of a key: the group's context, the caller, the listener. */
static void write_identity(const tcp_mesh *m, pair who,
                           char text[OARI_STREAM_IDENTITY])
{
    snprintf(text, OARI_STREAM_IDENTITY, "%016llx/%d/%d",
             (unsigned long long)m->context, who.caller, who.answerer);
}

/* Returns the rank that a name has as the caller; -1: it is not such a name. */
static int find_caller(const tcp_mesh *m, const char *text)
{
    char expected[OARI_STREAM_IDENTITY];
    const char *at = strchr(text, '/');
    long caller = at != NULL ? strtol(at + 1, NULL, 10) : -1;

    if (caller < 0 || caller >= m->ranks || caller == m->rank)
        return -1;
    write_identity(m, (pair){ (int)caller, m->rank }, expected);
    return strcmp(text, expected) == 0 ? (int)caller : -1;
}

static int find_key(void *arg, const char *identity,
                    unsigned char key[OARI_SECRET_BYTES])
{
    tcp_conn *c = arg;
    const tcp_mesh *m = c->mesh;

    c->tls_caller = find_caller(m, identity);
    return c->tls_caller >= 0 && m->peer[c->tls_caller].wire == OARI_WIRE_TLS &&
           pair_key(m, "tls", (pair){ c->tls_caller, m->rank }, key) == OAR_OK;
}

oar_status tcp_encrypt(tcp_mesh *m, tcp_conn *c)
{
    unsigned char key[OARI_SECRET_BYTES];
    char identity[OARI_STREAM_IDENTITY];
    pair who = { m->rank, c->peer };

    c->maybe_tls = 0;
    if (c->state == TCP_ANSWERING)
        OARI_TRY(oari_stream_tls_server(&c->stream, c->fd, find_key, c));
    else {
        write_identity(m, who, identity);
        OARI_TRY(pair_key(m, "tls", who, key));
        OARI_TRY(oari_stream_tls_client(&c->stream, c->fd, identity, key));
    }
    c->in_tls_handshake = 1;
    return OAR_OK;
}

/* A handshake of TLS begins with the byte 22, a frame with a letter. */
int tcp_detect_tls(tcp_mesh *m, tcp_conn *c)
{
    unsigned char first = 0;
    ssize_t got = recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    c->maybe_tls = 0;
    return first == TLS_HANDSHAKE && tcp_encrypt(m, c) != OAR_OK ? -1 : 1;
}

int tcp_step_tls(tcp_mesh *m, tcp_conn *c)
{
    short want;
    int done;

    if (oari_stream_handshake(&c->stream, &done, &want) != OAR_OK)
        return -1;
    tcp_watch_room(m, c, !done && (want & POLLOUT) != 0);
    c->in_tls_handshake = !done;
    return done;
}
