/* SPDX-License-Identifier: Apache-2.0 */
/* Links between processes: shared memory, TCP, and both in one group, whose
 * ranks then seem to be on two hosts. Messages by the backend's own table. */
#include "support/raw_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "link/tcp/tcp.h"
#include "base/clock.h"
#include "base/fork.h"
#include "link/shm/control_page.h"
#include "link/match.h"
#include "support/leak_check.h"

#define ANY_TAG UINT64_C(0xffffffff)

/* The kinds of links, by backend and number of hosts. */
static const raw_backend_setup kinds[] = {
    { "shm", 0, 0, NULL },
    { "tcp", 0, 0, NULL },
    { "native", 0, 2, NULL },
    { "tcp", 0, 0, "tls" },
    { "native", 0, 2, "auth" },
    { "tcp", 100, 0, NULL }, /* nearly everything is offered */
    { "native", 100, 3, "tls" },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Where private memory of other processes cannot be read. */
static void forbid_fetching(raw_backend *w)
{
    static oari_shm_ops without;
    oari_shm *b = w->in_tree->shm(w->self);

    without = *b->ops;
    without.fetch = NULL;
    b->ops = &without;
}

typedef struct link_case {
    const raw_backend_setup *setup;
    int (*run)(const test_job *c, raw_backend *w);
} link_case;

/* Opens, runs, and sees that everything was given back. */
static int be_rank(test_job *c, int rank, void *arg)
{
    const link_case *j = arg;
    leak_check before = leak_check_begin(), after;
    raw_backend w;

    RANK_CHECK(raw_backend_open(&w, c, rank, j->setup) == 0);
    RANK_CHECK(j->run(c, &w) == 0);
    RANK_CHECK(raw_backend_barrier(&w) == 0);
    raw_backend_close(&w);
    after = leak_check_begin();
    RANK_CHECK(after.live == before.live);
    RANK_CHECK(after.descriptors == before.descriptors);
    return 0;
}

static void run_on(const raw_backend_setup *setup, int ranks,
                   int (*run)(const test_job *c, raw_backend *w))
{
    link_case j = { setup, run };
    test_job c;

    test_job_start(&c, ranks, be_rank, &j, "%d ranks over %s on %d hosts",
                   ranks, setup->backend, setup->hosts);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void run_on_all(int ranks, int (*run)(const test_job *c, raw_backend *w))
{
    for (int k = 0; k < KINDS; k++)
        run_on(&kinds[k], ranks, run);
}

static unsigned char byte_of(int from, int to, uint64_t tag, size_t i)
{
    return (unsigned char)(i * 7 + (i >> 8) + tag * 13 +
                           (uint64_t)(from * 31 + to * 5));
}

static unsigned char *filled(int from, int to, uint64_t tag, size_t bytes)
{
    unsigned char *data = malloc(bytes + 1);

    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, to, tag, i);
    data[bytes] = 0x77;
    return data;
}

static int is_filled(const unsigned char *data, int from, int to, uint64_t tag,
                     size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != byte_of(from, to, tag, i))
            return 0;
    return data[bytes] == 0x77;
}

/* ---- random traffic ------------------------------------------------------ */

/* What a rank sends to another as its k-th message is known to both. */
typedef struct planned_message {
    uint64_t tag;
    size_t bytes;
    int synchronous;
} planned_message;

static planned_message message_of(int from, int to, int k)
{
    static const size_t size[] = { 0,    1,     17,    99,    100,   101,
                                   4096, 65535, 65536, 65537, 300000 };
    uint64_t seed = (uint64_t)(from * 1000003 + to * 1009 + k);
    uint64_t r = next_random(&seed);

    return (planned_message){ r % 3, size[r / 8 % (r / 256 % 8 ? 6 : 11)],
                              r / 4096 % 5 == 0 };
}

enum { MESSAGES = 150 };

typedef struct message_slot {
    oar_transfer t;
    unsigned char *data;
    int peer, k;
} message_slot;

static int post_send(raw_backend *w, message_slot *s, int to, int k)
{
    planned_message p = message_of(w->rank, to, k);

    s->data = filled(w->rank, to, (uint64_t)k, p.bytes);
    s->t.synchronous = p.synchronous;
    return raw_backend_send(w, &s->t, to, p.tag, s->data, p.bytes);
}

/* The next message of that tag: receives of a tag are posted in the order of
 * its messages, those of different tags in any. */
static int next_of_tag(int from, int to, uint64_t tag, int after)
{
    int k = after + 1;

    while (k < MESSAGES && message_of(from, to, k).tag != tag)
        k++;
    return k;
}

static int post_recv(raw_backend *w, message_slot *s, int from, int k)
{
    planned_message p = message_of(from, w->rank, k);

    s->data = malloc(p.bytes + 1);
    s->data[p.bytes] = 0x77;
    s->peer = from;
    s->k = k;
    return raw_backend_recv(w, &s->t, from, p.tag, 0, s->data, p.bytes);
}

/* Posts sends and receives as chance has it, and moves on in between. */
static int pass_random(const test_job *c, raw_backend *w)
{
    size_t all = (size_t)w->ranks * MESSAGES;
    message_slot *out = calloc(all, sizeof *out), *in = calloc(all, sizeof *in);
    int(*last)[3] = calloc((size_t)w->ranks, sizeof *last);
    int *sent = calloc((size_t)w->ranks, sizeof *sent);
    size_t outs = 0, ins = 0;
    uint64_t seed = (uint64_t)w->rank + 77;

    for (int r = 0; r < w->ranks; r++)
        for (int t = 0; t < 3; t++)
            last[r][t] = next_of_tag(r, w->rank, (uint64_t)t, -1);
    while (outs < all || ins < all) {
        uint64_t r = next_random(&seed);
        int peer = (int)(r / 4 % (uint64_t)w->ranks), tag = (int)(r / 64 % 3);
        if (r % 2 && sent[peer] < MESSAGES)
            JOB_CHECK(c, w->rank,
                      post_send(w, &out[outs++], peer, sent[peer]++) == 0);
        else if (last[peer][tag] < MESSAGES) {
            JOB_CHECK(c, w->rank,
                      post_recv(w, &in[ins++], peer, last[peer][tag]) == 0);
            last[peer][tag] =
                next_of_tag(peer, w->rank, (uint64_t)tag, last[peer][tag]);
        }
        if (r / 1024 % 4 == 0)
            JOB_CHECK(c, w->rank, raw_backend_progress(w) == 0);
    }
    for (size_t i = 0; i < all; i++) {
        JOB_CHECK(c, w->rank, raw_backend_wait(w, &out[i].t) == OAR_OK);
        JOB_CHECK(c, w->rank, raw_backend_wait(w, &in[i].t) == OAR_OK);
        JOB_CHECK(c, w->rank,
                  is_filled(in[i].data, in[i].peer, w->rank, (uint64_t)in[i].k,
                            in[i].t.bytes));
        JOB_CHECK(c, w->rank, in[i].t.source == in[i].peer);
        free(out[i].data);
    }
    for (size_t i = 0; i < all; i++)
        free(in[i].data);
    free(out);
    free(in);
    free(last);
    free(sent);
    return 0;
}

static void random_messages_between_all_pairs_arrive_in_order(void **state)
{
    run_on_all(2, pass_random);
    run_on_all(5, pass_random);
}

static int pass_without_fetching(const test_job *c, raw_backend *w)
{
    forbid_fetching(w);
    return pass_random(c, w);
}

static void large_messages_go_through_the_ring_if_they_must(void **state)
{
    run_on(&kinds[0], 2, pass_without_fetching);
    run_on(&(raw_backend_setup){ "native", 100, 2, NULL }, 4,
           pass_without_fetching);
}

/* ---- wildcards and probes ------------------------------------------------ */

enum { EACH = 40 };

static int answer_all(const test_job *c, raw_backend *w)
{
    for (int k = 0; k < EACH; k++) {
        planned_message p = message_of(w->rank, 0, k);
        unsigned char *data = filled(w->rank, 0, (uint64_t)k, p.bytes);
        oar_transfer t = { .synchronous = p.synchronous };
        JOB_CHECK(c, w->rank,
                  raw_backend_send(w, &t, 0, (uint64_t)k, data, p.bytes) == 0);
        JOB_CHECK(c, w->rank, raw_backend_wait(w, &t) == OAR_OK);
        free(data);
    }
    return 0;
}

/* Rank 0 takes whatever comes; of each source in order. */
static int take_anything(const test_job *c, raw_backend *w)
{
    int next[TEST_JOB_RANKS] = { 0 };

    if (w->rank != 0)
        return answer_all(c, w);
    for (int i = 0; i < EACH * (w->ranks - 1); i++) {
        oar_envelope e = { .size = sizeof e };
        unsigned char *data;
        oar_transfer t;
        JOB_CHECK(c, 0, raw_backend_probe(w, -1, 0, ANY_TAG, &e) == 0);
        JOB_CHECK(c, 0, e.source > 0 && e.source < w->ranks);
        JOB_CHECK(c, 0, e.tag == (uint64_t)next[e.source]);
        data = malloc(e.bytes + 1);
        data[e.bytes] = 0x77;
        JOB_CHECK(c, 0,
                  raw_backend_recv(w, &t, -1, 0, ANY_TAG, data, e.bytes) == 0);
        JOB_CHECK(c, 0, raw_backend_wait(w, &t) == OAR_OK);
        JOB_CHECK(c, 0, t.source == e.source && t.got_tag == e.tag);
        JOB_CHECK(c, 0, is_filled(data, e.source, 0, e.tag, e.bytes));
        next[e.source]++;
        free(data);
    }
    return 0;
}

static void any_source_and_any_tag_work_across_links(void **state)
{
    run_on_all(4, take_anything);
}

/* ---- the wrong size ------------------------------------------------------ */

static int misfit(const test_job *c, raw_backend *w, size_t sent, size_t wanted,
                  int synchronous, int early)
{
    unsigned char *data = calloc(1, (sent > wanted ? sent : wanted) + 1);
    oar_transfer t = { .synchronous = synchronous }, more;
    oar_envelope e = { .size = sizeof e };
    int told = synchronous || sent > 65536;
    int rank = w->rank, x = 5;
    uint64_t tag = OARI_USER_TAG | 9; /* a collective's senders are not told */

    if (rank == 1) {
        JOB_CHECK(c, 1, raw_backend_send(w, &t, 0, tag, data, sent) == 0);
        JOB_CHECK(c, 1,
                  raw_backend_wait(w, &t) == (told ? OAR_E_SIZE : OAR_OK));
        JOB_CHECK(c, 1, raw_backend_send(w, &more, 0, tag, &x, sizeof x) == 0);
        JOB_CHECK(c, 1, raw_backend_wait(w, &more) == OAR_OK);
    } else if (rank == 0) {
        if (early)
            JOB_CHECK(c, 0, raw_backend_probe(w, 1, tag, 0, &e) == 0);
        memset(data, 0x55, wanted);
        JOB_CHECK(c, 0, raw_backend_recv(w, &t, 1, tag, 0, data, wanted) == 0);
        JOB_CHECK(c, 0, raw_backend_wait(w, &t) == OAR_E_SIZE);
        JOB_CHECK(c, 0, t.got_bytes == sent);
        JOB_CHECK(c, 0, wanted == 0 || data[wanted - 1] == 0x55);
        JOB_CHECK(c, 0,
                  raw_backend_recv(w, &more, 1, tag, 0, &x, sizeof x) == 0);
        JOB_CHECK(c, 0, raw_backend_wait(w, &more) == OAR_OK && x == 5);
    }
    free(data);
    return 0;
}

static int pass_misfits(const test_job *c, raw_backend *w)
{
    static const size_t size[][2] = { { 17, 18 },     { 0, 1 },
                                      { 1, 0 },       { 65536, 65535 },
                                      { 300000, 17 }, { 17, 300000 } };

    for (int i = 0; i < 6; i++)
        for (int way = 0; way < 4; way++)
            JOB_CHECK(c, w->rank,
                      misfit(c, w, size[i][0], size[i][1], way & 1, way >> 1) ==
                          0);
    return 0;
}

static void another_size_fails_on_both_sides_and_the_link_goes_on(void **state)
{
    for (int k = 0; k < 4; k++)
        run_on(&kinds[k], 2, pass_misfits);
}

/* ---- back-pressure ------------------------------------------------------- */

enum { FLOOD = 600, FLOOD_BYTES = 60000 }; /* 36 MB */

static int flood(const test_job *c, raw_backend *w)
{
    static unsigned char data[FLOOD_BYTES];
    oar_transfer *t = calloc(FLOOD, sizeof *t);
    int done = 0;

    for (int i = 0; i < FLOOD; i++)
        JOB_CHECK(
            c, 1,
            raw_backend_send(w, &t[i], 0, (uint64_t)i, data, sizeof data) == 0);
    for (int i = 0; i < FLOOD; i++)
        done += t[i].done;
    JOB_CHECK(c, 1, done < FLOOD); /* not all of it is taken on trust */
    for (int i = 0; i < FLOOD; i++)
        JOB_CHECK(c, 1, raw_backend_wait(w, &t[i]) == OAR_OK);
    free(t);
    return 0;
}

/* The last first: nothing that waits may be in the way of what is wanted. */
static int drain_backwards(const test_job *c, raw_backend *w)
{
    static unsigned char data[FLOOD_BYTES];
    oar_envelope e = { .size = sizeof e };
    uint64_t before = memory_now().live_bytes;

    JOB_CHECK(c, 0, raw_backend_probe(w, 1, FLOOD - 1, 0, &e) == 0);
    JOB_CHECK(c, 0, memory_now().live_bytes - before < 20 << 20);
    for (int i = FLOOD - 1; i >= 0; i--) {
        oar_transfer t;
        JOB_CHECK(
            c, 0,
            raw_backend_recv(w, &t, 1, (uint64_t)i, 0, data, sizeof data) == 0);
        JOB_CHECK(c, 0, raw_backend_wait(w, &t) == OAR_OK);
    }
    JOB_CHECK(c, 0, memory_now().live_bytes - before < 1 << 20);
    return 0;
}

static int flood_and_drain(const test_job *c, raw_backend *w)
{
    return w->rank == 1 ? flood(c, w) : drain_backwards(c, w);
}

static void a_flood_is_kept_in_bounds_and_drained_in_any_order(void **state)
{
    for (int k = 0; k < 4; k++)
        run_on(&kinds[k], 2, flood_and_drain);
}

/* ---- unauthenticated peers ----------------------------------------------- */

static int connect_to(const char *address)
{
    int fd, done = 0;

    if (oari_sock_connect_again(address, 0, &fd) != OAR_OK)
        return -1;
    while (!done)
        if (oari_sock_connected(fd, address, &done) != OAR_OK)
            return -1;
    return fd;
}

/* A hello that is right but for the proof. */
static void say_false_hello(int fd, uint64_t context)
{
    unsigned char raw[OARI_FRAME_BYTES + TCP_HELLO] = { 0 };
    oari_frame hello = { .kind = OARI_FRAME_HELLO,
                         .context = context,
                         .source = 1,
                         .bytes = TCP_HELLO };

    oari_frame_write(&hello, raw);
    assert_int_equal(send(fd, raw, sizeof raw, MSG_NOSIGNAL), sizeof raw);
}

static int has_ended(raw_backend *w, int fd)
{
    int64_t deadline = oari_deadline(10000);
    char byte;

    while (oari_now_ns() < deadline && raw_backend_progress(w) == 0)
        if (recv(fd, &byte, 1, MSG_DONTWAIT) == 0)
            return 1;
    return 0;
}

static int send_attacks(const test_job *c, raw_backend *w)
{
    void *note;
    size_t bytes;
    char garbage[3000];
    int fd[5];

    if (w->rank != 0)
        return 0;
    JOB_CHECK(c, 0,
              oar_store_get(w->store, "wire/1/tcp/0", 1000, &note, &bytes) ==
                  OAR_OK);
    for (int i = 0; i < 5; i++)
        JOB_CHECK(c, 0,
                  (fd[i] = connect_to(((tcp_entry *)note)->address)) >= 0);
    memset(garbage, 'x', sizeof garbage);
    JOB_CHECK(c, 0, send(fd[0], garbage, sizeof garbage, 0) > 0);
    JOB_CHECK(c, 0, has_ended(w, fd[0]));
    say_false_hello(fd[1], ((tcp_entry *)note)->context);
    JOB_CHECK(c, 0, has_ended(w, fd[1]));
    say_false_hello(fd[2], 1 + ((tcp_entry *)note)->context);
    JOB_CHECK(c, 0, has_ended(w, fd[2]));
    JOB_CHECK(c, 0, send(fd[3], garbage, 3, 0) == 3); /* and then nothing */
    for (int i = 0; i < 5; i++)
        oari_fork_close(fd[i]);
    oar_free(note);
    return 0;
}

static int send_attacks_and_messages(const test_job *c, raw_backend *w)
{
    JOB_CHECK(c, w->rank, send_attacks(c, w) == 0);
    JOB_CHECK(c, w->rank, pass_random(c, w) == 0);
    return send_attacks(c, w);
}

static void unauthenticated_peers_are_refused_without_harm(void **state)
{
    run_on(&kinds[1], 2, send_attacks_and_messages);
    run_on(&kinds[3], 2, send_attacks_and_messages);
}

/* Peers that never send make room for those that do. */
static int open_many_connections(const test_job *c, raw_backend *w)
{
    enum { CROWD = 200 };
    void *note;
    size_t bytes;
    int fd[CROWD];

    JOB_CHECK(c, w->rank,
              oar_store_get(w->store, "wire/1/tcp/0", 1000, &note, &bytes) ==
                  OAR_OK);
    for (int i = 0; i < CROWD; i++) {
        JOB_CHECK(c, w->rank,
                  (fd[i] = connect_to(((tcp_entry *)note)->address)) >= 0);
        JOB_CHECK(c, w->rank, raw_backend_progress(w) == 0);
    }
    JOB_CHECK(c, w->rank, raw_backend_barrier(w) == 0);
    for (int i = 0; i < CROWD; i++)
        oari_fork_close(fd[i]);
    oar_free(note);
    return 0;
}

static void many_unauthenticated_peers_do_not_lock_a_rank_out(void **state)
{
    run_on(&kinds[1], 3, open_many_connections);
    run_on(&kinds[3], 3, open_many_connections);
}

/* ---- kinds of sockets ---------------------------------------------------- */

static void messages_go_over_ipv6(void **state)
{
    int fd;

    if (oari_sock_listen("[::1]:0", 1, &fd) != OAR_OK)
        skip();
    oari_fork_close(fd);
    setenv("OARSONG_SOCKET_FAMILY", "inet6", 1);
    setenv("OARSONG_SOCKET_IFNAME", "=lo", 1);
    run_on(&kinds[1], 3, pass_random);
    unsetenv("OARSONG_SOCKET_FAMILY");
    unsetenv("OARSONG_SOCKET_IFNAME");
}

static int pass_large(const test_job *c, raw_backend *w)
{
    enum { LARGE = (5 << 20) + 17 };
    unsigned char *data = filled(1 - w->rank, w->rank, 0, LARGE);
    unsigned char *mine = filled(w->rank, 1 - w->rank, 0, LARGE);
    oar_transfer in, out = { 0 };

    memset(data, 0, LARGE);
    for (int i = 0; i < 5; i++) {
        JOB_CHECK(c, w->rank,
                  raw_backend_recv(w, &in, 1 - w->rank, 1, 0, data, LARGE) ==
                      0);
        JOB_CHECK(c, w->rank,
                  raw_backend_send(w, &out, 1 - w->rank, 1, mine, LARGE) == 0);
        JOB_CHECK(c, w->rank, raw_backend_wait(w, &in) == OAR_OK);
        JOB_CHECK(c, w->rank, raw_backend_wait(w, &out) == OAR_OK);
        JOB_CHECK(c, w->rank, is_filled(data, 1 - w->rank, w->rank, 0, LARGE));
    }
    free(data);
    free(mine);
    return 0;
}

static void large_messages_are_spread_over_several_sockets(void **state)
{
    for (int sockets = 1; sockets <= 5; sockets += 2) {
        char text[16];
        snprintf(text, sizeof text, "%d", sockets);
        setenv("OARSONG_TCP_SOCKETS", text, 1);
        run_on(&kinds[1], 2, pass_large);
        run_on(&kinds[1], 3, pass_random);
        run_on(&kinds[3], 2, pass_large);
    }
    unsetenv("OARSONG_TCP_SOCKETS");
}

/* More than 4 GiB, of pages that are only there where they are written. */
static int pass_huge(const test_job *c, raw_backend *w)
{
    size_t bytes = (UINT64_C(4) << 30) + 4097;
    unsigned char *data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    oar_transfer t = { 0 };

    JOB_CHECK(c, w->rank, data != MAP_FAILED);
    if (w->rank == 0) {
        data[0] = 1;
        data[UINT64_C(1) << 32] = 2;
        data[bytes - 1] = 3;
        JOB_CHECK(c, 0, raw_backend_send(w, &t, 1, 1, data, bytes) == 0);
        JOB_CHECK(c, 0, raw_backend_wait(w, &t) == OAR_OK);
    } else {
        JOB_CHECK(c, 1, raw_backend_recv(w, &t, 0, 1, 0, data, bytes) == 0);
        JOB_CHECK(c, 1, raw_backend_wait(w, &t) == OAR_OK);
        JOB_CHECK(c, 1, t.got_bytes == bytes && data[0] == 1);
        JOB_CHECK(c, 1, data[UINT64_C(1) << 32] == 2 && data[bytes - 1] == 3);
    }
    munmap(data, bytes);
    return 0;
}

/* Takes that much memory, and a while: only where it is asked for. */
static void messages_of_more_than_4_gib_arrive(void **state)
{
    if (getenv("OARSONG_TEST_LARGE") == NULL)
        skip();
    for (int k = 0; k < 4; k++)
        run_on(&kinds[k], 2, pass_huge);
}

/* ---- before a rank answers ----------------------------------------------- */

/* A rank that makes progress only now and then still accepts connections at
 * once. */
static int receives_after_departure(raw_backend *w)
{
    oar_envelope e = { .size = sizeof e };
    int found = 0;

    for (int looks = 0; looks < 8 && !found; looks++) {
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        if (raw_backend_progress(w) != 0)
            return 0;
        found = w->ops->peek(w->self, 0, 4, 0, &e);
    }
    return found;
}

/* A small message is done, though its receiver does nothing at all; and it
 * arrives, though its sender has left by then. */
static shared_flag *flags;

static int send_and_leave(test_job *c, int rank, void *arg)
{
    char text[8] = "";
    oar_transfer t = { 0 };
    raw_backend w;

    RANK_CHECK(raw_backend_open(&w, c, rank, arg) == 0);
    if (rank == 0) {
        JOB_CHECK(c, 0,
                  raw_backend_send(&w, &t, 1, 4, (char[8]){ "hello" }, 8) == 0);
        JOB_CHECK(c, 0, t.done && t.status == OAR_OK);
        raw_backend_close(&w);
        shared_flag_raise(flags);
        return 0;
    }
    JOB_CHECK(c, 1, shared_flag_await(flags, 1, TEST_JOB_LIMIT_MS));
    JOB_CHECK(c, 1, receives_after_departure(&w));
    JOB_CHECK(c, 1, raw_backend_recv(&w, &t, 0, 4, 0, text, 8) == 0);
    JOB_CHECK(c, 1, raw_backend_wait(&w, &t) == OAR_OK);
    JOB_CHECK(c, 1, strcmp(text, "hello") == 0);
    raw_backend_close(&w);
    return 0;
}

static void a_message_arrives_though_its_sender_has_left(void **state)
{
    raw_backend_setup setup[] = { { "tcp", 0, 0, NULL },
                                  { "native", 0, 2, "auth" } };

    for (int i = 0; i < 2; i++) {
        test_job c;
        void *page = shared_page(sizeof *flags);
        flags = page;
        test_job_start(&c, 2, send_and_leave, &setup[i], "a message by %s",
                       setup[i].backend);
        test_job_expect(&c, 0, 0);
        test_job_expect(&c, 1, 0);
        test_job_end(&c);
        shared_page_free(page, sizeof *flags);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_messages_between_all_pairs_arrive_in_order),
        cmocka_unit_test(large_messages_go_through_the_ring_if_they_must),
        cmocka_unit_test(any_source_and_any_tag_work_across_links),
        cmocka_unit_test(another_size_fails_on_both_sides_and_the_link_goes_on),
        cmocka_unit_test(a_flood_is_kept_in_bounds_and_drained_in_any_order),
        cmocka_unit_test(unauthenticated_peers_are_refused_without_harm),
        cmocka_unit_test(many_unauthenticated_peers_do_not_lock_a_rank_out),
        cmocka_unit_test(messages_go_over_ipv6),
        cmocka_unit_test(large_messages_are_spread_over_several_sockets),
        cmocka_unit_test(messages_of_more_than_4_gib_arrive),
        cmocka_unit_test(a_message_arrives_though_its_sender_has_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
