/* SPDX-License-Identifier: Apache-2.0 */
/* window: memory that the ranks of a host have in common, a memfd of its own
 * that each of them maps. It is no segment of device/segment.h: no recovery
 * from a fault ever swaps its pages.
 *
 * The lowest rank of a host, its owner, makes the memfd and passes it to the
 * others over sockets. No rank ever waits for a socket: each step is followed
 * by a collective of the group, after which everything that the next step reads
 * is there. So all waiting is the group's, with its timeouts and its way to
 * find ranks that are dead, stopped or elsewhere; and all ranks learn how each
 * step went, so that all get the window or none does.
 *
 * The name of the memfd has a random id in it. It shows in the /proc of a
 * process, so that an importer can tell the window from whatever else has the
 * same descriptor number by then.
 */
#include <oarsong/window.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/fault/fault.h"
#include "comm/group/group.h"
#include "device/segment.h"
#include "net/unix_socket.h"

enum { ID_BYTES = 33 }; /* 128 bits in hex, and a zero */

struct oar_window {
    _Atomic int holders;
    unsigned generation; /* of fork, when it was mapped */
    unsigned char *data; /* NULL: not mapped yet */
    size_t bytes, room;  /* as asked for; whole pages */
    int fd;              /* a child of fork closes it */
    int writable;        /* the descriptor is */
    char id[ID_BYTES];
    int ranks;           /* of the group; 0: imported */
    unsigned char has[]; /* by rank */
};

void (*oari_window_hook)(const oar_group *group, int step);

/* ---- one mapping --------------------------------------------------------- */

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Makes a window that has no memory yet. */
static oar_status make_window(size_t bytes, int ranks, oar_window **window)
{
    size_t page = page_bytes();
    oar_window *w;

    if (bytes > SIZE_MAX / 4)
        return oari_fail(OAR_E_NOMEM, "a window of %zu bytes", bytes);
    if ((w = oari_alloc(1, sizeof *w + (size_t)ranks)) == NULL)
        return OAR_E_NOMEM;
    atomic_init(&w->holders, 1);
    oari_fork_watch();
    w->generation = oari_fork_generation();
    w->bytes = bytes;
    w->room = bytes == 0 ? page : (bytes + page - 1) / page * page;
    w->fd = -1;
    w->writable = 1;
    w->ranks = ranks;
    *window = w;
    return OAR_OK;
}

static void write_name(const char *id, char name[64])
{
    snprintf(name, 64, "oarsong-window-%s", id);
}

/* Gives a window memory of its own, and an id. */
static oar_status make_memory(oar_window *w)
{
    unsigned char random[(ID_BYTES - 1) / 2];
    char name[64];
    void *base;

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(w->id + 2 * i, 3, "%02x", random[i]);
    write_name(w->id, name);
    OARI_TRY(oari_segment_make(name, w->room, &w->fd, &base));
    w->data = base;
    oari_fork_guard(w->fd);
    return OAR_OK;
}

/* Maps the memory of another process's window, whose descriptor this takes. */
static oar_status map_memory(oar_window *w, int fd)
{
    void *base;

    w->fd = oari_fork_guard(fd);
    OARI_TRY(oari_segment_map(fd, w->room, w->writable, &base));
    w->data = base;
    return OAR_OK;
}

/* In a child of fork neither the mapping nor the descriptor is there, and both
 * numbers may belong to something else. */
static int is_inherited(const oar_window *w)
{
    return w->generation != oari_fork_generation();
}

oar_window *oar_window_retain(oar_window *window)
{
    if (window != NULL)
        atomic_fetch_add(&window->holders, 1);
    return window;
}

void oar_window_release(oar_window *window)
{
    if (window == NULL || atomic_fetch_sub(&window->holders, 1) != 1)
        return;
    if (!is_inherited(window)) {
        oari_segment_unmap(window->data, window->room);
        oari_fork_close(window->fd);
    }
    oari_free(window);
}

/* ---- questions ----------------------------------------------------------- */

void *oar_window_data(const oar_window *window)
{
    return window != NULL ? window->data : NULL;
}

size_t oar_window_bytes(const oar_window *window)
{
    return window != NULL ? window->bytes : 0;
}

int oar_window_ranks(const oar_window *window)
{
    int count = 0;

    for (int r = 0; window != NULL && r < window->ranks; r++)
        count += window->has[r];
    return count;
}

int oar_window_has(const oar_window *window, int rank)
{
    return window != NULL && rank >= 0 && rank < window->ranks &&
           window->has[rank];
}

static oar_status check_owned(const char *what, const oar_window *w)
{
    if (w == NULL)
        return oari_fail(OAR_E_ARG, "%s of no window", what);
    if (is_inherited(w))
        return oari_fail(OAR_E_STATE,
                         "%s: the window belongs to the process that this one "
                         "was forked from",
                         what);
    return OAR_OK;
}

oar_status oar_window_protect(oar_window *window, size_t first, size_t bytes,
                              int writable)
{
    size_t page = page_bytes(), begin, end;

    OARI_TRY(check_owned("window_protect", window));
    if (first > window->bytes || bytes > window->bytes - first)
        return oari_fail(OAR_E_ARG,
                         "window_protect: %zu bytes from %zu on, in a window "
                         "of %zu",
                         bytes, first, window->bytes);
    if (writable && !window->writable)
        return oari_fail(OAR_E_STATE,
                         "window_protect: the window was imported to read");
    end = first + bytes == window->bytes ? window->room
                                         : (first + bytes) / page * page;
    begin = (first + page - 1) / page * page;
    if (bytes == 0 || begin >= end)
        return OAR_OK;
    if (mprotect(window->data + begin, end - begin,
                 writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
        return oari_fail(OAR_E_SYSTEM, "protect %zu bytes of a window",
                         end - begin);
    return OAR_OK;
}

/* ---- making one with others ---------------------------------------------- */

/* What a rank shows the others. */
typedef struct window_card {
    uint64_t bytes;
    char listener[OARI_UNIX_NAME]; /* of an owner; "": none */
    char id[ID_BYTES];
    char pad[7];
} window_card;

/* A window that is being made. */
typedef struct making {
    oar_group *group;
    oar_call_opts opts; /* of its collectives */
    size_t bytes;
    int owner;         /* rank of the owner on this host */
    int here;          /* ranks of this host */
    int steps;         /* begun so far */
    window_card *card; /* by rank */
    oar_window *window;
    int listener; /* the owner's */
    int socket;   /* to the owner */
} making;

static void call_hook(making *m)
{
    if (oari_window_hook != NULL)
        oari_window_hook(m->group, m->steps);
    m->steps++;
}

/* Tells all ranks how a step went here. Returns OAR_OK if it went well on all,
 * this rank's failure, or that of another rank, which it names. */
static oar_status agree(making *m, oar_status status)
{
    oar_error why = *oar_last_error();
    uint64_t word = 0;
    int rank;

    call_hook(m);
    if (status != OAR_OK)
        word = (uint64_t)status << 32 |
               (uint32_t)(OARI_MAX_RANKS - m->group->rank);
    OARI_TRY(oar_all_reduce(m->group, oar_span_of(&word, 1, OAR_U64), OAR_MAX,
                            &m->opts, NULL));
    if (status != OAR_OK)
        return oari_fail_with(&why);
    if (word == 0)
        return OAR_OK;
    rank = OARI_MAX_RANKS - (int)(word & UINT32_MAX);
    status = (oar_status)(word >> 32);
    return oari_about(
        rank, oari_fail(status,
                        "window_create: rank %d could not make its side of a "
                        "window of %zu bytes: %s",
                        rank, m->bytes, oar_status_text(status)));
}

/* Makes all that this rank needs before the others need anything of it. */
static oar_status prepare(making *m)
{
    const oar_group *g = m->group;
    int host = oar_group_host(g, g->rank);
    window_card *mine;

    m->card = oari_alloc((size_t)g->ranks, sizeof *m->card);
    if (m->card == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(make_window(m->bytes, g->ranks, &m->window));
    m->owner = -1;
    for (int r = 0; r < g->ranks; r++) {
        if (oar_group_host(g, r) != host)
            continue;
        m->owner = m->owner < 0 ? r : m->owner;
        m->window->has[r] = 1;
        m->here++;
    }
    mine = &m->card[g->rank];
    mine->bytes = m->bytes;
    if (m->owner != g->rank)
        return OAR_OK;
    OARI_TRY(make_memory(m->window));
    memcpy(mine->id, m->window->id, sizeof mine->id);
    return m->here > 1 ? oari_unix_listen(mine->listener, &m->listener)
                       : OAR_OK;
}

/* Gives every rank the cards of all, and compares the sizes. */
static oar_status exchange_cards(making *m)
{
    const oar_group *g = m->group;
    window_card mine = m->card[g->rank];

    call_hook(m);
    OARI_TRY(oar_all_gather(
        m->group, oar_span_of(&mine, sizeof mine, OAR_U8),
        oar_span_of(m->card, (size_t)g->ranks * sizeof mine, OAR_U8), &m->opts,
        NULL));
    for (int r = 1; r < g->ranks; r++)
        if (m->card[r].bytes != m->card[0].bytes)
            return oari_about(
                r, oari_fail(OAR_E_MISMATCH,
                             "window_create: rank 0 asks for %" PRIu64
                             " bytes, rank %d for %" PRIu64,
                             m->card[0].bytes, r, m->card[r].bytes));
    return OAR_OK;
}

/* Asks the owner for the memory. */
static oar_status connect_owner(making *m)
{
    const window_card *owner = &m->card[m->owner];

    if (m->owner == m->group->rank)
        return OAR_OK;
    memcpy(m->window->id, owner->id, sizeof owner->id);
    OARI_TRY(oari_unix_connect(owner->listener, &m->socket));
    return oari_unix_send(m->socket, owner->id, sizeof owner->id, NULL, 0);
}

/* Passes the memory to every process that has asked with the right id. They
 * have all asked by now. */
static oar_status serve_ranks(making *m)
{
    char id[ID_BYTES];
    int64_t pid;
    int served = 0, caller;

    if (m->owner != m->group->rank)
        return OAR_OK;
    while (served < m->here - 1) {
        oar_status status =
            oari_unix_accept(m->listener, oari_now_ns(), &caller, &pid);

        if (status != OAR_OK)
            return status;
        if (oari_unix_recv(caller, id, sizeof id, NULL, 0, oari_now_ns()) ==
                OAR_OK &&
            memcmp(id, m->window->id, sizeof id) == 0) {
            status = oari_unix_send(caller, id, 1, &m->window->fd, 1);
            served++;
        }
        close(caller);
        OARI_TRY(status);
    }
    return OAR_OK;
}

static oar_status take_memory(making *m)
{
    char byte;
    int fd = -1;

    if (m->owner == m->group->rank)
        return OAR_OK;
    OARI_TRY(oari_unix_recv(m->socket, &byte, 1, &fd, 1, oari_now_ns()));
    return map_memory(m->window, fd);
}

static oar_status make_together(making *m)
{
    OARI_TRY(agree(m, prepare(m)));
    OARI_TRY(exchange_cards(m));
    OARI_TRY(agree(m, connect_owner(m)));
    OARI_TRY(agree(m, serve_ranks(m)));
    return agree(m, take_memory(m));
}

static oar_status make_alone(size_t bytes, oar_window **window)
{
    OARI_TRY(make_window(bytes, 1, window));
    (*window)->has[0] = 1;
    return make_memory(*window);
}

oar_status oar_window_alloc(size_t bytes, oar_window **window)
{
    oar_window *made = NULL;
    oar_status status;

    if (window == NULL)
        return oari_fail(OAR_E_ARG, "window_alloc with no place for it");
    status = make_alone(bytes, &made);
    if (status == OAR_OK)
        *window = made;
    else
        oar_window_release(made);
    return status;
}

static oar_status check_group(oar_group *g)
{
    OARI_TRY(oari_group_check(g));
    if (oari_batching(g))
        return oari_fail(OAR_E_STATE,
                         "window_create while a batch is open on group \"%s\"",
                         g->name);
    if (g->ranks > 1 && g->shm == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "window_create: the ranks of group \"%s\" share no "
                         "memory over backend \"%s\"",
                         g->name, oar_group_backend(g));
    return OAR_OK;
}

oar_status oar_window_create_at(const char *file, int line, oar_group *group,
                                size_t bytes, const oar_window_opts *opts,
                                oar_window **window)
{
    OARI_CALLED_FROM(file, line);
    making m = { .group = group, .bytes = bytes, .listener = -1, .socket = -1 };
    oar_window_opts o;
    oar_status status;

    if (group == NULL || window == NULL)
        return oari_fail(OAR_E_ARG, "window_create without a %s",
                         group == NULL ? "group" : "place for the window");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (group->loose)
        return oari_fail_loose(group, "window_create");
    OARI_TRY(check_group(group));
    m.opts = oar_call_opts_init();
    m.opts.timeout_ms = o.timeout_ms;
    m.opts.label = o.label != NULL ? o.label : "window_create";
    status =
        group->ranks > 1 ? make_together(&m) : make_alone(bytes, &m.window);
    if (m.listener >= 0)
        close(m.listener);
    if (m.socket >= 0)
        close(m.socket);
    oari_free(m.card);
    if (status == OAR_OK)
        *window = m.window;
    else
        oar_window_release(m.window);
    return status;
}

/* ---- other processes ----------------------------------------------------- */

#define TOKEN_FORMAT "oarsong-window-1:%" PRId64 ":%d:%zu:%s"

oar_status oar_window_export(const oar_window *window,
                             char token[OAR_WINDOW_TOKEN_BYTES])
{
    OARI_TRY(check_owned("window_export", window));
    if (token == NULL)
        return oari_fail(OAR_E_ARG, "window_export with nowhere to write");
    snprintf(token, OAR_WINDOW_TOKEN_BYTES, TOKEN_FORMAT, (int64_t)getpid(),
             window->fd, window->bytes, window->id);
    return OAR_OK;
}

/* What a token says. */
typedef struct window_place {
    int64_t pid;
    int fd;
    size_t bytes;
    char id[ID_BYTES];
} window_place;

/* A token is good if writing what was read gives the same text again. */
static int read_token(const char *token, window_place *p)
{
    char again[OAR_WINDOW_TOKEN_BYTES];

    if (sscanf(token, "oarsong-window-1:%" SCNd64 ":%d:%zu:%32[0-9a-f]",
               &p->pid, &p->fd, &p->bytes, p->id) != 4)
        return 0;
    snprintf(again, sizeof again, TOKEN_FORMAT, p->pid, p->fd, p->bytes, p->id);
    return strcmp(again, token) == 0 && p->pid > 0 && p->fd >= 0 &&
           strlen(p->id) == ID_BYTES - 1;
}

/* Returns whether a descriptor in /proc is the memory of that id; 0 with errno
 * set if it cannot be read. */
static int is_window(const char *path, const char *id)
{
    char name[64], link[128], wanted[128];
    ssize_t n = readlink(path, link, sizeof link - 1);

    if (n < 0)
        return 0;
    link[n] = 0;
    write_name(id, name);
    snprintf(wanted, sizeof wanted, "/memfd:%s", name);
    errno = ENOENT;
    return strncmp(link, wanted, strlen(wanted)) == 0;
}

/* Opens the memory of another process. The link is read before, because to open
 * some other file might do something; and after, because the number may have
 * become another file's in between. */
static oar_status open_memory(const window_place *p, int writable, int *fd)
{
    char path[64], mine[64];
    int made = -1;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%d", p->pid, p->fd);
    if (is_window(path, p->id))
        made =
            open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    if (made >= 0) {
        snprintf(mine, sizeof mine, "/proc/self/fd/%d", made);
        if (is_window(mine, p->id)) {
            *fd = made;
            return OAR_OK;
        }
        close(made);
        errno = ENOENT;
    }
    if (errno != ENOENT && errno != ESRCH)
        return oari_fail(OAR_E_SYSTEM,
                         "window_import: the window of process %" PRId64,
                         p->pid);
    return oari_fail(OAR_E_NOT_FOUND,
                     "window_import: process %" PRId64
                     " of this host has no such window (any more)",
                     p->pid);
}

oar_status oar_window_import(const char *token, int writable,
                             oar_window **window)
{
    window_place place;
    oar_window *w;
    oar_status status;
    int fd = -1;

    if (token == NULL || window == NULL)
        return oari_fail(OAR_E_ARG, "window_import without a %s",
                         token == NULL ? "token" : "place for the window");
    if (!read_token(token, &place))
        return oari_fail(OAR_E_ARG, "window_import: \"%.40s\" is no token",
                         token);
    OARI_TRY(make_window(place.bytes, 0, &w));
    w->writable = writable != 0;
    memcpy(w->id, place.id, sizeof w->id);
    status = open_memory(&place, writable, &fd);
    if (status == OAR_OK)
        status = map_memory(w, fd);
    if (status == OAR_OK)
        *window = w;
    else
        oar_window_release(w);
    return status;
}
