/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_prove: who is a rank.
 *
 * A hello carries a number that grows with every call, and a proof over it, the
 * socket's place and the listener's token, by a key that is the pair's and goes
 * one way only. The listener has seen the token nowhere but in its own note, so
 * the hello was made for this listener; and it takes each number once, so it is
 * no copy of an earlier one. Calls of several sockets may come in another
 * order: it remembers the last 64. The answer proves itself over the hello.
 *
 * Where TLS is wanted, its handshake comes before; its key is the pair's, too.
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

/* ---- proofs -------------------------------------------------------------- */

/* Who calls whom. */
typedef struct pair {
    int caller, answerer;
} pair;

static oar_status key_of(const tcp_mesh *m, const char *purpose, pair who,
                         unsigned char key[OARI_SECRET_BYTES])
{
    return oari_secret_key(&m->secret, purpose, m->context, who.caller,
                           who.answerer, key);
}

/* number: the first bytes of what the hello carries. */
static oar_status prove_call(const tcp_mesh *m, pair who,
                             const oari_frame *hello,
                             const unsigned char number[NUMBER],
                             unsigned char proof[OARI_MAC_BYTES])
{
    unsigned char key[OARI_SECRET_BYTES], place[2 * NUMBER];
    const void *part[] = { "call", m->peer[who.answerer].token, place, number };
    size_t bytes[] = { 4, TCP_TOKEN, sizeof place, NUMBER };

    put_number(place, hello->flags);
    put_number(place + NUMBER, hello->tag);
    OARI_TRY(key_of(m, "link", who, key));
    return oari_secret_mac(key, part, bytes, 4, proof);
}

static oar_status prove_answer(const tcp_mesh *m, pair who,
                               const unsigned char hello[TCP_HELLO],
                               unsigned char proof[OARI_MAC_BYTES])
{
    unsigned char key[OARI_SECRET_BYTES];
    const void *part[] = { "answer", hello };
    size_t bytes[] = { 6, TCP_HELLO };

    OARI_TRY(key_of(m, "link", who, key));
    return oari_secret_mac(key, part, bytes, 2, proof);
}

oar_status tcp_prove(tcp_mesh *m, tcp_conn *c, const oari_frame *hello,
                     unsigned char raw[TCP_HELLO])
{
    if (c->state == TCP_UP) {
        memcpy(raw, c->hello, NUMBER);
        return prove_answer(m, (pair){ c->peer, m->rank }, c->hello,
                            raw + NUMBER);
    }
    put_number(raw, ++m->peer[c->peer].calls);
    OARI_TRY(
        prove_call(m, (pair){ m->rank, c->peer }, hello, raw, raw + NUMBER));
    memcpy(c->hello, raw, TCP_HELLO);
    return OAR_OK;
}

/* Takes every number once; none that is too old to know. */
static int is_new(tcp_peer *p, uint64_t number)
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

/* What is not sealed by itself has to come by TLS, where that is wanted. */
static int comes_as_agreed(const tcp_mesh *m, const tcp_conn *c)
{
    int only_facts = (c->now.flags & OARI_FRAME_LAST) != 0;
    int wanted = !only_facts && m->peer[c->now.source].wire == OARI_WIRE_TLS;

    return wanted == (c->stream.tls != NULL) &&
           (!wanted || c->claims == (int)c->now.source);
}

static int admits_call(tcp_mesh *m, tcp_conn *c)
{
    pair who = { (int)c->now.source, m->rank };
    unsigned char proof[OARI_MAC_BYTES];

    if (!comes_as_agreed(m, c) ||
        prove_call(m, who, &c->now, c->small, proof) != OAR_OK ||
        !oari_secret_mac_equal(proof, c->small + NUMBER) ||
        !is_new(&m->peer[who.caller], get_number(c->small)))
        return 0;
    memcpy(c->hello, c->small, TCP_HELLO);
    return 1;
}

static int admits_answer(const tcp_mesh *m, const tcp_conn *c)
{
    unsigned char proof[OARI_MAC_BYTES];

    return c->now.source == (uint32_t)c->peer &&
           memcmp(c->small, c->hello, NUMBER) == 0 &&
           prove_answer(m, (pair){ m->rank, c->peer }, c->hello, proof) ==
               OAR_OK &&
           oari_secret_mac_equal(proof, c->small + NUMBER);
}

int tcp_admits(tcp_mesh *m, tcp_conn *c)
{
    if (c->now.source == (uint32_t)m->rank)
        return 0;
    return c->state == TCP_ANSWERING ? admits_call(m, c) : admits_answer(m, c);
}

/* ---- facts on connections of their own ----------------------------------- */

/* No frame of any such connection of a pair has the same. */
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
    return key_of(m, purpose, who, key);
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

/* Says which key it is: the group's context, who calls, who answers. */
static void identify(const tcp_mesh *m, pair who,
                     char text[OARI_STREAM_IDENTITY])
{
    snprintf(text, OARI_STREAM_IDENTITY, "%016llx/%d/%d",
             (unsigned long long)m->context, who.caller, who.answerer);
}

/* The rank that the text names as the caller; -1: it is not of the form. */
static int caller_in(const tcp_mesh *m, const char *text)
{
    char expected[OARI_STREAM_IDENTITY];
    const char *at = strchr(text, '/');
    long caller = at != NULL ? strtol(at + 1, NULL, 10) : -1;

    if (caller < 0 || caller >= m->ranks || caller == m->rank)
        return -1;
    identify(m, (pair){ (int)caller, m->rank }, expected);
    return strcmp(text, expected) == 0 ? (int)caller : -1;
}

static int find_key(void *arg, const char *identity,
                    unsigned char key[OARI_SECRET_BYTES])
{
    tcp_conn *c = arg;
    const tcp_mesh *m = c->mesh;

    c->claims = caller_in(m, identity);
    return c->claims >= 0 && m->peer[c->claims].wire == OARI_WIRE_TLS &&
           key_of(m, "tls", (pair){ c->claims, m->rank }, key) == OAR_OK;
}

oar_status tcp_encrypt(tcp_mesh *m, tcp_conn *c)
{
    unsigned char key[OARI_SECRET_BYTES];
    char identity[OARI_STREAM_IDENTITY];
    pair who = { m->rank, c->peer };

    c->undecided = 0;
    if (c->state == TCP_ANSWERING)
        OARI_TRY(oari_stream_tls_server(&c->stream, c->fd, find_key, c));
    else {
        identify(m, who, identity);
        OARI_TRY(key_of(m, "tls", who, key));
        OARI_TRY(oari_stream_tls_client(&c->stream, c->fd, identity, key));
    }
    c->shaking = 1;
    return OAR_OK;
}

/* A handshake of TLS begins with this byte, a frame with a letter. */
int tcp_decide(tcp_mesh *m, tcp_conn *c)
{
    unsigned char first = 0;
    ssize_t got = recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    c->undecided = 0;
    return first == TLS_HANDSHAKE && tcp_encrypt(m, c) != OAR_OK ? -1 : 1;
}

int tcp_shake(tcp_mesh *m, tcp_conn *c)
{
    short want;
    int done;

    if (oari_stream_handshake(&c->stream, &done, &want) != OAR_OK)
        return -1;
    tcp_watch_room(m, c, !done && (want & POLLOUT) != 0);
    c->shaking = !done;
    return done;
}
