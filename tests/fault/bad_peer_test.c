/* SPDX-License-Identifier: Apache-2.0 */
/* Unauthenticated peers of a running job: three ranks that sum over TCP without
 * end, and this process, which knows their listeners. Whatever it sends, the
 * sums go on and are right, and the ranks hold no more memory or descriptors
 * than before. Without a secret, with one, and with TLS. OARSONG_TEST_LARGE=1
 * tries every bit instead of one in several. */
#include "support/fake_rank.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "support/leak_check.h"
#include "support/test_job.h"
#include "support/last_error.h"

enum {
    RANKS = 3,
    ME = 2,    /* the rank that the test claims to be */
    SLOT = 7,  /* which sockets the job does not use */
    SOON = 50, /* ms that an unauthenticated peer is listened to */
    COUNT = 1003,
    SEQUENCE = 10000, /* connections one after the other */
    KIB = 1024
};

static const char *const wires[] = { "plain", "auth", "tls" };
enum { WIRES = 3, TLS = 2 };

/* What ranks and the test share. */
typedef struct bad_peer_page {
    shared_flag rounds[RANKS];
    shared_flag stop;
    _Atomic uint64_t live[RANKS]; /* allocations of the library */
} bad_peer_page;

typedef struct attacked_job {
    test_job job;
    bad_peer_page *square;
    oari_secret secret;
    oar_store *store;
    fake_rank me;
    const char *wire;
} attacked_job;

/* ---- the ranks ----------------------------------------------------------- */

static int sum_until_told(test_job *c, int rank, void *arg)
{
    attacked_job *j = arg;
    bad_peer_page *s = j->square;
    oar_group_opts o = oar_group_opts_init();
    float x[COUNT];
    oar_group *g;

    o.backend = "tcp";
    o.timeout_ms = 15000;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    do {
        for (int i = 1; i < COUNT; i++)
            x[i] = (float)(rank + i);
        x[0] = (float)atomic_load(&s->stop);
        RANK_CHECK(oar_all_reduce(g, oar_span_of(x, COUNT, OAR_F32), OAR_SUM,
                                  NULL, NULL) == OAR_OK);
        for (int i = 1; i < COUNT; i++)
            RANK_CHECK(x[i] == (float)(RANKS * i + 3));
        atomic_store(&s->live[rank], leak_check_begin().live);
        shared_flag_raise(&s->rounds[rank]);
    } while (x[0] == 0);
    oar_group_destroy(g);
    return 0;
}

/* ---- the job ------------------------------------------------------------- */

static void start_job(attacked_job *j, int wire)
{
    char text[OARI_SECRET_HEX];

    memset(j, 0, sizeof *j);
    j->wire = wires[wire];
    j->square = shared_page(sizeof *j->square);
    if (wire > 0) {
        OK(oari_secret_make(&j->secret));
        oari_secret_text(&j->secret, text);
        setenv("OARSONG_SECRET", text, 1);
        setenv("OARSONG_WIRE", j->wire, 1);
    }
    test_job_start(&j->job, RANKS, sum_until_told, j, "%s", j->wire);
    OK(test_job_store(&j->job, &j->store));
    fake_rank_init(&j->me, j->store, "world/1", ME, RANKS, &j->secret);
    j->me.mesh.peer[0].calls = j->me.mesh.peer[1].calls = 1000;
    for (int r = 0; r < RANKS; r++)
        if (!shared_flag_await(&j->square->rounds[r], 3, TEST_JOB_LIMIT_MS))
            test_job_give_up(&j->job, "rank %d does not begin", r);
}

static void stop_job(attacked_job *j)
{
    shared_flag_raise(&j->square->stop);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&j->job, r, 0);
    oar_store_destroy(j->store);
    test_job_end(&j->job);
    fake_rank_free(&j->me);
    shared_page_free(j->square, sizeof *j->square);
    unsetenv("OARSONG_SECRET");
    unsetenv("OARSONG_WIRE");
}

/* Every rank goes on. */
static void expect_progress(attacked_job *j, const char *after)
{
    for (int r = 0; r < RANKS; r++) {
        uint32_t now = atomic_load(&j->square->rounds[r]);
        if (!shared_flag_await(&j->square->rounds[r], now + 3,
                               TEST_JOB_LIMIT_MS))
            test_job_give_up(&j->job, "rank %d does not go on after %s", r,
                             after);
    }
}

/* ---- what a rank holds --------------------------------------------------- */

typedef struct rank_resources {
    int descriptors;
    long kib;
    uint64_t live;
} rank_resources;

static rank_resources held_by(const attacked_job *j, int rank)
{
    rank_resources h = { .live = atomic_load(&j->square->live[rank]) };
    char path[64];
    FILE *f;
    DIR *list;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)j->job.pid[rank]);
    list = opendir(path);
    while (list != NULL && readdir(list) != NULL)
        h.descriptors++;
    if (list != NULL)
        closedir(list);
    snprintf(path, sizeof path, "/proc/%d/statm", (int)j->job.pid[rank]);
    f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%*d %ld", &h.kib) != 1)
        h.kib = 0;
    if (f != NULL)
        fclose(f);
    h.kib *= sysconf(_SC_PAGESIZE) / KIB;
    return h;
}

/* A sanitizer keeps what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MORE_KIB = 1 << 30 };
#else
enum { MORE_KIB = 12 * KIB };
#endif

static int holds_no_more(const attacked_job *j, int rank,
                         const rank_resources *before)
{
    rank_resources now = held_by(j, rank);

    return now.descriptors <= before->descriptors && now.live <= before->live &&
           now.kib < before->kib + MORE_KIB;
}

static void expect_no_more(attacked_job *j, const rank_resources before[RANKS],
                           const char *after)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);

    for (int r = 0; r < RANKS; r++)
        while (!holds_no_more(j, r, &before[r])) {
            rank_resources now = held_by(j, r);
            if (oari_now_ns() > deadline)
                test_job_give_up(
                    &j->job,
                    "after %s rank %d has %d descriptors, %ld KiB, "
                    "%d allocations, not %d, %ld, %d",
                    after, r, now.descriptors, now.kib, (int)now.live,
                    before[r].descriptors, before[r].kib, (int)before[r].live);
            expect_progress(j, after);
        }
}

/* ---- attacks ------------------------------------------------------------- */

/* Each leaves nothing open. 1: as it should be. */
typedef int (*attack_fn)(attacked_job *j, int to, uint64_t *seed);

/* It must be shown the door, without a word. A byte of TLS is an alert. */
static int is_refused(int fd)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    unsigned char word[256];
    int got;

    do
        got = fake_rank_recv(fd, word, sizeof word, 1000);
    while (oari_now_ns() < deadline && (got < 0 || (got > 0 && word[0] == 21)));
    oari_fork_close(fd);
    return got == 0;
}

static int say_and_go(attacked_job *j, int to, const void *data, size_t bytes)
{
    int fd = fake_rank_connect(&j->me, to);

    if (fd < 0)
        return 0;
    fake_rank_send(fd, data, bytes);
    return is_refused(fd);
}

static int speak_http(attacked_job *j, int to, uint64_t *seed)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: example.org\r\n"
                               "Accept: */*\r\nConnection: close\r\n\r\n";

    return say_and_go(j, to, text, sizeof text - 1);
}

static int speak_at_random(attacked_job *j, int to, uint64_t *seed)
{
    unsigned char bytes[3000];
    size_t count = 64 + next_random(seed) % (sizeof bytes - 64);

    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)next_random(seed);
    if (next_random(seed) % 4 == 0)
        memcpy(bytes, "\x16\x03\x01\x00\x10", 5); /* TLS, or so it seems */
    return say_and_go(j, to, bytes, count);
}

static int say_nothing(attacked_job *j, int to, uint64_t *seed)
{
    int fd = fake_rank_connect(&j->me, to);

    expect_progress(j, "a caller that says nothing");
    oari_fork_close(fd);
    return fd >= 0;
}

/* As scanners do: connect, and go, one way or the other. */
static int scan(attacked_job *j, int to, uint64_t *seed)
{
    struct linger at_once = { 1, 0 };
    int fd = fake_rank_connect(&j->me, to);

    if (fd >= 0 && next_random(seed) % 2)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    oari_fork_close(fd);
    return fd >= 0;
}

/* Right but for the secret. */
static int use_another_secret(attacked_job *j, int to, uint64_t *seed)
{
    unsigned char raw[FAKE_RANK_HELLO];
    oari_secret right = j->me.mesh.secret;

    j->me.mesh.secret.bytes[next_random(seed) % OARI_SECRET_BYTES] ^= 1;
    fake_rank_hello(&j->me, to, SLOT, raw);
    j->me.mesh.secret = right;
    return say_and_go(j, to, raw, sizeof raw);
}

/* Sends a hello for another listener, or one that claims another rank. */
static int connect_to_wrong_rank(attacked_job *j, int to, uint64_t *seed)
{
    unsigned char raw[FAKE_RANK_HELLO];

    fake_rank_hello(&j->me, 1 - to, SLOT, raw);
    return say_and_go(j, to, raw, sizeof raw);
}

static int shake_hands(oari_stream *s, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);
    int done = 0;
    short want;

    while (!done && oari_now_ns() < deadline)
        if (oari_stream_handshake(s, &done, &want) != OAR_OK)
            return 0;
    return done;
}

/* TLS with another key: no rank completes the handshake. */
static int use_another_key(attacked_job *j, int to, uint64_t *seed)
{
    oari_secret right = j->me.mesh.secret;
    int fd = fake_rank_connect(&j->me, to), shaken;
    oari_stream s;

    j->me.mesh.secret.bytes[3] ^= 1;
    s = fake_rank_start_tls(&j->me, to, fd);
    j->me.mesh.secret = right;
    shaken = shake_hands(&s, TEST_JOB_LIMIT_MS);
    oari_stream_close(&s);
    return !shaken && is_refused(fd);
}

static const struct {
    const char *name;
    attack_fn fn;
    int times;
} deeds[] = {
    { "http", speak_http, 20 },
    { "noise", speak_at_random, 300 },
    { "silence", say_nothing, 5 },
    { "a scanner", scan, 1000 },
    { "another secret", use_another_secret, 100 },
    { "a misdirected hello", connect_to_wrong_rank, 100 },
    { "another key", use_another_key, 100 },
};
enum { DEEDS = sizeof deeds / sizeof *deeds };

static void run_attack(attacked_job *j, int d, int times)
{
    uint64_t seed = 1;

    for (int i = 0; i < times; i++)
        if (!deeds[d].fn(j, i % ME, &seed))
            test_job_give_up(&j->job, "%s, number %d: not turned away",
                             deeds[d].name, i);
    expect_progress(j, deeds[d].name);
}

/* A few of each before anything is measured. */
static void send_attacks(int wire)
{
    rank_resources before[RANKS];
    attacked_job j;

    start_job(&j, wire);
    for (int d = 0; d < DEEDS; d++)
        run_attack(&j, d, 3);
    for (int r = 0; r < RANKS; r++)
        before[r] = held_by(&j, r);
    for (int d = 0; d < DEEDS; d++) {
        int most = deeds[d].fn == scan && wire > 0 ? SEQUENCE : deeds[d].times;
        run_attack(&j, d, most);
        expect_no_more(&j, before, deeds[d].name);
    }
    stop_job(&j);
}

static void bad_peers_do_no_harm_without_a_secret(void **state)
{
    send_attacks(0);
}

static void unauthenticated_peers_do_no_harm_with_a_secret(void **state)
{
    send_attacks(1);
}

static void unauthenticated_peers_do_no_harm_under_tls(void **state)
{
    send_attacks(TLS);
}

/* ---- as many as there can be --------------------------------------------- */

static void open_many_connections(int wire)
{
    enum { MANY = 2000 };
    static int fd[MANY];
    struct rlimit limit;
    rank_resources before[RANKS];
    int made = 0;
    attacked_job j;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    start_job(&j, wire);
    for (int r = 0; r < RANKS; r++)
        before[r] = held_by(&j, r);
    while (made < MANY &&
           (fd[made] = fake_rank_connect(&j.me, made % 2)) >= 0) {
        if (made % 3 == 0)
            fake_rank_send(fd[made], "\x16\x03\x01", 3);
        made++;
    }
    assert_true(made > MANY / 2);
    expect_progress(&j, "a crowd");
    for (int r = 0; r < RANKS; r++) {
        rank_resources now = held_by(&j, r);
        if (now.descriptors > before[r].descriptors + 200)
            test_job_give_up(&j.job, "rank %d lets %d connections wait", r,
                             now.descriptors - before[r].descriptors);
    }
    for (int i = 0; i < made; i++)
        oari_fork_close(fd[i]);
    expect_no_more(&j, before, "a crowd");
    stop_job(&j);
}

static void many_connections_are_accepted_a_few_at_a_time(void **state)
{
    open_many_connections(1);
    open_many_connections(TLS);
}

/* ---- handshakes that were seen ------------------------------------------- */

static int bit_step(void)
{
    return getenv("OARSONG_TEST_LARGE") != NULL ? 1 : 7;
}

/* One that is right, which the rank answers. It stays open: as far as the rank
 * knows, it is another rank's, whose end would be a death. */
static int complete_hello(attacked_job *j,
                          const unsigned char raw[FAKE_RANK_HELLO])
{
    unsigned char answer[FAKE_RANK_HELLO];
    int fd = fake_rank_connect(&j->me, 0);

    fake_rank_send(fd, raw, FAKE_RANK_HELLO);
    assert_true(fake_rank_recv(fd, answer, sizeof answer, TEST_JOB_LIMIT_MS) >
                0);
    return fd;
}

static void a_handshake_that_was_seen_is_worth_nothing(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO], other[FAKE_RANK_HELLO];
    int fd[2];
    attacked_job j;

    start_job(&j, 1);
    fake_rank_hello(&j.me, 0, SLOT, other); /* a number that is left out */
    fake_rank_hello(&j.me, 0, SLOT, raw);
    fd[0] = complete_hello(&j, raw);
    for (int i = 0; i < 20; i++) {
        assert_true(say_and_go(&j, 0, raw, sizeof raw));
        assert_true(say_and_go(&j, 1, raw, sizeof raw));
    }
    for (int i = 0; i < 64; i++)
        fake_rank_hello(&j.me, 0, SLOT, raw);
    fd[1] = complete_hello(&j, raw);
    assert_true(say_and_go(&j, 0, other, sizeof other)); /* too old to know */
    expect_progress(&j, "a replay");
    stop_job(&j);
    oari_fork_close(fd[0]);
    oari_fork_close(fd[1]);
}

/* Whatever it says before that. */
static int is_closed_by_peer(int fd)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    unsigned char word[256];
    int got;

    do
        got = fake_rank_recv(fd, word, sizeof word, 1000);
    while (got != 0 && oari_now_ns() < deadline);
    oari_fork_close(fd);
    return got == 0;
}

/* Sends the first bytes, and ends. */
static int send_cut(attacked_job *j, const unsigned char *raw, int bytes)
{
    int fd = fake_rank_connect(&j->me, 0);

    fake_rank_send(fd, raw, (size_t)bytes);
    shutdown(fd, SHUT_WR);
    return fd;
}

static void a_handshake_cut_or_changed_anywhere_is_refused(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO];
    attacked_job j;

    start_job(&j, 1);
    for (int bytes = 0; bytes < FAKE_RANK_HELLO; bytes += bit_step()) {
        fake_rank_hello(&j.me, 0, SLOT, raw);
        assert_true(is_refused(send_cut(&j, raw, bytes)));
    }
    for (int bit = 0; bit < FAKE_RANK_HELLO * 8; bit += bit_step()) {
        fake_rank_hello(&j.me, 0, SLOT, raw);
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(say_and_go(&j, 0, raw, sizeof raw));
    }
    expect_progress(&j, "changed handshakes");
    stop_job(&j);
}

/* The checksum is put right: it is the proof that counts. */
static void a_changed_head_is_refused_though_its_checksum_is_right(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO];
    attacked_job j;

    start_job(&j, 1);
    for (int bit = 0; bit < 60 * 8; bit += bit_step()) {
        uint32_t crc;
        fake_rank_hello(&j.me, 0, SLOT, raw);
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        crc = oari_crc32c(raw, 60);
        for (int i = 0; i < 4; i++)
            raw[60 + i] = (unsigned char)(crc >> 8 * i);
        assert_true(say_and_go(&j, 0, raw, sizeof raw));
    }
    expect_progress(&j, "changed heads");
    stop_job(&j);
}

/* ---- the same with TLS --------------------------------------------------- */

/* The first flight of a call, as it was seen on the wire. */
static size_t record_call(attacked_job *j, int to, unsigned char *into,
                          size_t room)
{
    int pair[2], got, done;
    oari_stream s;
    short want;

    assert_int_equal(socketpair(AF_UNIX,
                                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                                pair),
                     0);
    s = fake_rank_start_tls(&j->me, to, pair[0]);
    OK(oari_stream_handshake(&s, &done, &want));
    got = fake_rank_recv(pair[1], into, room, 1000);
    oari_stream_close(&s);
    close(pair[0]);
    close(pair[1]);
    assert_true(got > 0);
    return (size_t)got;
}

/* Nothing of ours can follow: that is all a recording is worth. It may be
 * answered (the answer is of no use), but there is no hello. */
static void repeat_call(attacked_job *j, const unsigned char *raw, size_t bytes)
{
    unsigned char word[2000];
    int fd = fake_rank_connect(&j->me, 0);

    fake_rank_send(fd, raw, bytes);
    fake_rank_recv(fd, word, sizeof word, SOON);
    fake_rank_send(fd, raw, bytes);
    shutdown(fd, SHUT_WR);
    assert_true(is_closed_by_peer(fd));
}

static void calls_under_tls_cut_or_changed_or_repeated_are_refused(void **state)
{
    unsigned char raw[2000];
    rank_resources before[RANKS];
    size_t bytes;
    attacked_job j;

    start_job(&j, TLS);
    bytes = record_call(&j, 0, raw, sizeof raw);
    for (int i = 0; i < 20; i++)
        repeat_call(&j, raw, bytes);
    for (int r = 0; r < RANKS; r++)
        before[r] = held_by(&j, r);
    for (int cut = 0; cut < (int)bytes; cut += bit_step())
        assert_true(is_refused(send_cut(&j, raw, cut)));
    for (size_t bit = 0; bit < bytes * 8; bit += (size_t)bit_step()) {
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(is_closed_by_peer(send_cut(&j, raw, (int)bytes)));
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    expect_no_more(&j, before, "changed calls");
    stop_job(&j);
}

/* A hello that is right, but not by TLS, where that is wanted. */
static void
no_connection_without_tls_is_accepted_where_it_is_wanted(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO];
    attacked_job j;

    start_job(&j, TLS);
    for (int i = 0; i < 20; i++) {
        fake_rank_hello(&j.me, i % ME, i % 8, raw);
        assert_true(say_and_go(&j, i % ME, raw, sizeof raw));
    }
    expect_progress(&j, "a hello in clear");
    stop_job(&j);
}

/* ---- two jobs ------------------------------------------------------------ */

/* Each rank of another job, at one store. */
static int join_the_wrong_one(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    char text[OARI_SECRET_HEX];
    oari_secret mine;
    oar_group *g;

    RANK_CHECK(oari_secret_make(&mine) == OAR_OK);
    oari_secret_text(&mine, text);
    setenv("OARSONG_SECRET", text, 1);
    o.backend = arg;
    o.timeout_ms = 15000;
    RANK_CHECK(fails_with(test_job_join(c, rank, &o, &g), OAR_E_AUTH,
                          "another job secret than this rank"));
    return 0;
}

static void ranks_of_two_jobs_do_not_become_one(void **state)
{
    static char backend[][8] = { "shm", "native", "tcp" };
    test_job c;

    for (int b = 0; b < 3; b++) {
        test_job_start(&c, 2, join_the_wrong_one, backend[b], "two jobs by %s",
                       backend[b]);
        test_job_expect(&c, 0, 0);
        test_job_expect(&c, 1, 0);
        test_job_end(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_peers_do_no_harm_without_a_secret),
        cmocka_unit_test(unauthenticated_peers_do_no_harm_with_a_secret),
        cmocka_unit_test(unauthenticated_peers_do_no_harm_under_tls),
        cmocka_unit_test(many_connections_are_accepted_a_few_at_a_time),
        cmocka_unit_test(a_handshake_that_was_seen_is_worth_nothing),
        cmocka_unit_test(a_handshake_cut_or_changed_anywhere_is_refused),
        cmocka_unit_test(
            a_changed_head_is_refused_though_its_checksum_is_right),
        cmocka_unit_test(
            calls_under_tls_cut_or_changed_or_repeated_are_refused),
        cmocka_unit_test(
            no_connection_without_tls_is_accepted_where_it_is_wanted),
        cmocka_unit_test(ranks_of_two_jobs_do_not_become_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
