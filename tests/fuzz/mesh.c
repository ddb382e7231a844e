/* SPDX-License-Identifier: Apache-2.0 */
/* Links between ranks over TCP: rank 0's mesh, and everything that may connect
 * to it. On each of two sockets we either send a hello with its proof or leave
 * all to the input; then frames, whose context, source and number are right
 * unless the input says otherwise. Receives are posted, and their buffers freed
 * as soon as they are done, so that a sanitizer sees late writes. */
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"

#include "link/tcp/tcp.h"
#include "base/clock.h"
#include "comm/group/group.h"

enum { SOCKETS = 2, RECEIVES = 5, SENDS = 2, TURNS = 3, FRAMES = 40 };
enum { NOTE_MAGIC = 0x4f415254 };

typedef struct mesh_under_test {
    tcp_mesh m;
    oari_match *match;
    oar_store *store;
    tcp_mesh them;    /* rank 1, as far as it is needed to prove itself */
    tcp_peer peer[2]; /* of it */
    int fd[SOCKETS];
    uint32_t sent[SOCKETS];
    oar_transfer t[RECEIVES + SENDS];
} mesh_under_test;

/* ---- rank 0 -------------------------------------------------------------- */

static void put_note(mesh_under_test *w, const char *host)
{
    tcp_entry note = { .magic = NOTE_MAGIC,
                       .protocol = OARI_FRAME_VERSION,
                       .rank = 1,
                       .ranks = 2,
                       .address = "127.0.0.1:1" };

    note.page = (uint64_t)sysconf(_SC_PAGESIZE);
    snprintf(note.host, sizeof note.host, "%s", host);
    FUZZ_CHECK(oar_store_set(w->store, "p/tcp/1", &note, sizeof note) ==
               OAR_OK);
}

static void open_mesh(mesh_under_test *w)
{
    oari_open with = { .env = { .size = sizeof with.env,
                                .ranks = 2,
                                .name = "g",
                                .timeout_ms = 100 },
                       .eager_bytes = 1024,
                       .spin_us = -1 };
    char host[OARI_HOST_NAME_BYTES];
    tcp_setup setup = { .with = &with, .prefix = "p", .host = host };

    FUZZ_CHECK(oar_store_create_memory(&w->store) == OAR_OK);
    FUZZ_CHECK(oari_host_name(host) == OAR_OK);
    put_note(w, host);
    FUZZ_CHECK(oari_match_create(0, 2, with.eager_bytes, &w->match) == OAR_OK);
    with.env.store = w->store;
    setup.match = w->match;
    tcp_init(&w->m);
    FUZZ_CHECK(tcp_open(&w->m, &setup) == OAR_OK);
}

/* What is done is the user's again. */
static void free_done(mesh_under_test *w)
{
    for (int i = 0; i < RECEIVES + SENDS; i++)
        if (w->t[i].done) {
            free(w->t[i].data);
            w->t[i].data = NULL;
            w->t[i].done = 0;
        }
}

static void turn(mesh_under_test *w)
{
    for (int i = 0; i < TURNS; i++) {
        if (tcp_progress(&w->m) != OAR_OK)
            tcp_abort(&w->m, OAR_E_DATA);
        if (w->m.ended != OAR_OK)
            oari_match_abort(w->match, w->m.ended);
        free_done(w);
    }
}

static void post(mesh_under_test *w)
{
    static const size_t size[] = { 0, 16, 300, 5000, 70000 };

    for (int i = 0; i < RECEIVES; i++) {
        w->t[i] = (oar_transfer){ .size = sizeof w->t[i],
                                  .peer = i % 2 ? 1 : -1,
                                  .tag = (uint64_t)i,
                                  .data = malloc(size[i] + 1),
                                  .bytes = size[i] };
        FUZZ_CHECK(oari_match_recv(w->match, &w->t[i]) == OAR_OK);
    }
    for (int i = RECEIVES; i < RECEIVES + SENDS; i++) {
        w->t[i] = (oar_transfer){ .size = sizeof w->t[i],
                                  .peer = 1,
                                  .tag = 1,
                                  .data = calloc(1, 5000),
                                  .bytes = i % 2 ? 100 : 5000 };
        if (tcp_send(&w->m, &w->t[i]) != OAR_OK)
            w->t[i].done = 1;
    }
}

static void close_mesh(mesh_under_test *w)
{
    tcp_abort(&w->m, OAR_E_ABORTED);
    turn(w);
    tcp_close(&w->m);
    oari_match_abort(w->match, OAR_E_CLOSED);
    oari_match_destroy(w->match);
    oar_store_destroy(w->store);
    for (int i = 0; i < RECEIVES + SENDS; i++)
        free(w->t[i].data);
}

/* ---- rank 1 -------------------------------------------------------------- */

static void connect_all(mesh_under_test *w)
{
    int done = 0;

    w->them.rank = 1;
    w->them.ranks = 2;
    w->them.context = w->m.context;
    w->them.secret = w->m.secret;
    w->them.peer = w->peer;
    memcpy(w->peer[0].token, w->m.peer[0].token, TCP_TOKEN);
    for (int i = 0; i < SOCKETS; i++, done = 0) {
        const char *address = w->m.peer[0].address;
        FUZZ_CHECK(oari_sock_connect_again(address, 0, &w->fd[i]) == OAR_OK);
        while (!done)
            FUZZ_CHECK(oari_sock_connected(w->fd[i], address, &done) == OAR_OK);
    }
}

static void say(mesh_under_test *w, int i, const void *data, size_t bytes)
{
    if (bytes > 0)
        (void)!send(w->fd[i], data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_frame(mesh_under_test *w, int i, oari_frame frame,
                      const void *data, size_t bytes)
{
    unsigned char raw[OARI_FRAME_BYTES];

    frame.sequence += w->sent[i]++;
    oari_frame_write(&frame, raw);
    say(w, i, raw, sizeof raw);
    say(w, i, data, bytes);
}

static void say_hello(mesh_under_test *w, int i)
{
    oari_frame hello = { .kind = OARI_FRAME_HELLO,
                         .context = w->m.context,
                         .source = 1,
                         .tag = (uint64_t)i,
                         .bytes = TCP_HELLO };
    tcp_conn *c = calloc(1, sizeof *c);
    unsigned char raw[TCP_HELLO];

    FUZZ_CHECK(c != NULL);
    c->state = TCP_CALLING;
    FUZZ_CHECK(tcp_make_hello(&w->them, c, &hello, raw) == OAR_OK);
    say_frame(w, i, hello, raw, sizeof raw);
    free(c);
    turn(w);
}

/* ---- the input ----------------------------------------------------------- */

/* A byte that says which socket and how, then a frame in few bytes, or bytes as
 * they are. */
static void say_some(mesh_under_test *w, const uint8_t **data, size_t *bytes)
{
    struct {
        uint8_t how, kind, flags, handle, tag, payload;
        uint16_t bytes;
    } ask;
    oari_frame frame;
    size_t most;
    int i;

    fuzz_take(data, bytes, &ask, sizeof ask);
    i = ask.how % SOCKETS;
    most = ask.payload < *bytes ? ask.payload : *bytes;
    frame = (oari_frame){ .kind = (oari_frame_kind)ask.kind,
                          .flags = ask.flags,
                          .context = w->m.context,
                          .source = 1,
                          .tag = ask.tag,
                          .bytes = ask.how & 2 ? most : ask.bytes,
                          .handle = ask.handle,
                          .credit = ask.how & 64 ? ask.bytes : 0 };
    frame.context += (ask.how & 4) != 0;
    frame.source -= (ask.how & 8) != 0;
    frame.sequence += (ask.how & 16) != 0;
    if (ask.how & 32)
        say(w, i, *data, most);
    else
        say_frame(w, i, frame, *data, most);
    *data += most;
    *bytes -= most;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mesh_under_test *w = calloc(1, sizeof *w);
    uint8_t how;

    FUZZ_CHECK(w != NULL);
    open_mesh(w);
    connect_all(w);
    fuzz_take(&data, &bytes, &how, 1);
    for (int i = 0; i < SOCKETS; i++)
        if (how >> i & 1)
            say_hello(w, i);
    if (how & 4)
        post(w);
    for (int i = 0; i < FRAMES && bytes > 0; i++) {
        say_some(w, &data, &bytes);
        turn(w);
    }
    for (int i = 0; i < SOCKETS; i++)
        close(w->fd[i]);
    turn(w);
    close_mesh(w);
    free(w);
    return 0;
}
