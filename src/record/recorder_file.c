/* SPDX-License-Identifier: Apache-2.0 */
/* recorder_file: the file that this process records in, and the rings of it
 * that its groups get.
 *
 * A process has one recorder file, opened when its first group is made and
 * closed with the last. One lock guards opening it and giving out rings;
 * posting takes no lock. A file in a folder is made aside and renamed into
 * place, so that a process that still maps the one before it keeps that one.
 */
#include "record/recorder_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "record/recorder_host.h"
#include "record/watchdog.h"

const char oari_recorder_file_magic[8] = "oarsbox",
           oari_ring_magic[8] = "oarring";

enum { TOKEN_AT = 512 };

typedef enum source { NAMELESS, INHERITED, FOLDER } source;

static struct {
    pthread_mutex_t lock;
    oari_recorder_file *map; /* NULL: none */
    int fd, holders;
    source source;
    uint64_t nonce;  /* of this process; 0: not made yet */
    int hooked;      /* the handlers of fork and exit are set */
    int token;       /* is closed when this process ends (watchdog.h); or -1 */
    void *token_map; /* the token as a mapping; or NULL */
    char folder[PATH_MAX]; /* of the recorder files, for the abort handler */
} mine = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .token = -1 };

/* ---- fork and exit ------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&mine.lock);
    oari_metrics_before_fork();
}

static void in_parent(void)
{
    oari_metrics_in_parent();
    pthread_mutex_unlock(&mine.lock);
}

/* A child has no recorder file: the mapping is the parent's, the descriptor is
 * closed. */
static void in_child(void)
{
    oari_metrics_in_child();
    mine.map = NULL;
    mine.fd = mine.token = -1;
    mine.token_map = NULL;
    mine.holders = 0;
    mine.nonce = 0;
    pthread_mutex_unlock(&mine.lock);
}

static void close_token(void)
{
    if (mine.token >= 0)
        oari_fork_close(mine.token);
    if (mine.token_map != NULL)
        munmap(mine.token_map, OARI_FILE_UNIT);
    mine.token = -1;
    mine.token_map = NULL;
}

/* Closes the token early, because engines may end other ranks in their own exit
 * handlers. Does not wait for the lock: another thread may hold it for ever. */
static void at_exit(void)
{
    if (pthread_mutex_trylock(&mine.lock) != 0)
        return;
    if (mine.map != NULL)
        atomic_store(&mine.map->head.exited, 1);
    close_token();
    pthread_mutex_unlock(&mine.lock);
}

/* Records that a peer had ended before this process aborted. An engine may
 * abort its process when the memory of a peer is gone (UCX does); of two ranks
 * that died, this one then was not the first. */
static void at_abort(int signal_number)
{
    oari_recorder_file *box = mine.map;

    if (box != NULL && atomic_load(&box->head.owner) == (int64_t)getpid())
        atomic_store(&box->head.follows,
                     1 + oari_watchdog_peer_gone(mine.folder, &box->head));
    raise(signal_number); /* now without a handler */
}

/* Sets the handlers of fork and exit, once, and gives the process its nonce. */
static oar_status set_hooks(void)
{
    if (mine.nonce == 0 && getrandom(&mine.nonce, sizeof mine.nonce, 0) !=
                               (ssize_t)sizeof mine.nonce)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    mine.nonce |= 1;
    if (mine.hooked)
        return OAR_OK;
    oari_fork_watch();
    if (pthread_atfork(before_fork, in_parent, in_child) != 0 ||
        atexit(at_exit) != 0)
        return oari_fail(OAR_E_NOMEM, "set the handlers of fork and exit");
    mine.hooked = 1;
    return OAR_OK;
}

/* ---- mapping ------------------------------------------------------------- */

static oar_status map_box(int fd, oari_recorder_file **box)
{
    void *at;

    if (!oari_alloc_allowed(OARI_FILE_BYTES))
        return OAR_E_NOMEM;
    at = mmap(NULL, OARI_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map a recorder file");
    madvise(at, OARI_FILE_BYTES, MADV_DONTFORK);
    *box = at;
    return OAR_OK;
}

static oar_status make_memfd(size_t bytes, int *fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int made =
        memfd_create("oarsong-recorder", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (made < 0)
        return oari_fail(OAR_E_SYSTEM, "memfd_create");
    if (oari_file_resize(made, (off_t)bytes) != 0 ||
        fcntl(made, F_ADD_SEALS, seals) != 0) {
        oar_status status = oari_fail(OAR_E_SYSTEM, "size a recorder file%s",
                                      oari_file_limit());
        close(made);
        return status;
    }
    *fd = made;
    return OAR_OK;
}

static void fill_empty(oari_recorder_file *box, int rank)
{
    box->head.version = OARI_FILE_VERSION;
    box->head.rings = OARI_FILE_RINGS;
    box->head.rank = rank;
    memcpy(box->head.magic, oari_recorder_file_magic, sizeof box->head.magic);
}

oar_status oari_recorder_file_make(int rank, int *fd)
{
    oari_recorder_file *box = NULL;
    int made = -1;
    oar_status status;

    if (fd == NULL || rank < 0)
        return oari_fail(OAR_E_ARG, "box_make for rank %d%s", rank,
                         fd == NULL ? " with nowhere to put it" : "");
    OARI_TRY(make_memfd(OARI_FILE_BYTES, &made));
    status = map_box(made, &box);
    if (status != OAR_OK) {
        close(made);
        return status;
    }
    fill_empty(box, rank);
    munmap(box, OARI_FILE_BYTES);
    *fd = made;
    return OAR_OK;
}

/* ---- ownership ----------------------------------------------------------- */

/* Returns the rank of this process in its job: as the launcher says, or as its
 * first group does. */
static int job_rank(const oari_ring_owner *who)
{
    return who->job_ranks > 1 ? who->job_rank : who->threads ? 0 : who->rank;
}

static void sign_box(oari_recorder_file *box, const oari_ring_owner *who)
{
    int64_t epoch = 0;

    if (oari_env_int("OARSONG_EPOCH", 0, INT64_MAX, &epoch) != OAR_OK)
        epoch = 0;
    if (mine.source != INHERITED)
        box->head.rank = job_rank(who);
    box->head.world = who->job_ranks > 1 ? who->job_ranks : who->ranks;
    box->head.threads = who->threads;
    box->head.epoch = epoch;
    box->head.nonce = mine.nonce;
    if (oari_env_text("OARSONG_RUN_ID") != NULL)
        snprintf(box->head.run, sizeof box->head.run, "%s",
                 oari_env_text("OARSONG_RUN_ID"));
    oari_host_sign(&box->head);
    box->head.base_ticks = oari_ticks();
    atomic_store(&box->head.exited, 0);
    atomic_store(&box->head.owner, getpid());
}

/* Makes a recorder file ours if it has no owner, or one that is gone. Of
 * several processes that inherited it, one gets it. */
static int claim_box(oari_recorder_file *box)
{
    int64_t owner = atomic_load(&box->head.owner);

    if (owner == (int64_t)getpid() && box->head.nonce == mine.nonce)
        return 1;
    if (owner != 0 && (kill((pid_t)owner, 0) == 0 || errno != ESRCH))
        return 0;
    return atomic_compare_exchange_strong(&box->head.owner, &owner,
                                          (int64_t)getpid());
}

/* Maps a recorder file that is there already; NULL: it is not one of this
 * version. */
static oari_recorder_file *map_existing(int fd)
{
    oari_recorder_file *box = NULL;
    struct stat info;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size != (off_t)OARI_FILE_BYTES || map_box(fd, &box) != OAR_OK)
        return NULL;
    if (memcmp(box->head.magic, oari_recorder_file_magic,
               sizeof box->head.magic) == 0 &&
        box->head.version == OARI_FILE_VERSION &&
        box->head.rings == OARI_FILE_RINGS)
        return box;
    munmap(box, OARI_FILE_BYTES);
    return NULL;
}

/* ---- from the launcher --------------------------------------------------- */

/* Takes the file that the launcher made; returns whether that worked. If not,
 * says why, and the caller uses another file. */
static int take_inherited(void)
{
    const char *why = "it is not a recorder file of this version";
    oari_recorder_file *box = NULL;
    int64_t fd = -1;

    if (oari_env_text("OARSONG_RECORDER_FD") == NULL)
        return 0;
    if (oari_env_int("OARSONG_RECORDER_FD", 0, INT_MAX, &fd) != OAR_OK)
        why = "it is not a number";
    else if ((box = map_existing((int)fd)) != NULL) {
        if (claim_box(box)) {
            mine.fd = (int)fd;
            mine.map = box;
            mine.source = INHERITED;
            fcntl(mine.fd, F_SETFD, FD_CLOEXEC);
            return 1;
        }
        why = "another process records in it";
        munmap(box, OARI_FILE_BYTES);
    }
    oari_log(OAR_LOG_WARN, "OARSONG_RECORDER_FD=%s is not used: %s",
             oari_env_text("OARSONG_RECORDER_FD"), why);
    return 0;
}

/* ---- in a folder --------------------------------------------------------- */

/* Takes the file that this process made there before, if it is still there. */
static int take_own_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    oari_recorder_file *box = NULL;

    if (fd < 0)
        return 0;
    box = map_existing(fd);
    if (box != NULL && box->head.nonce == mine.nonce) {
        mine.fd = fd;
        mine.map = box;
        return 1;
    }
    if (box != NULL)
        munmap(box, OARI_FILE_BYTES);
    close(fd);
    return 0;
}

/* Makes a recorder file under another name, and renames it into place. */
static oar_status make_file(const char *path, int rank)
{
    char aside[PATH_MAX + 32];
    oari_recorder_file *box = NULL;
    oar_status status = OAR_OK;
    int fd;

    snprintf(aside, sizeof aside, "%s.%lld", path, (long long)getpid());
    fd = open(aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make recorder file %s", path);
    if (oari_file_resize(fd, (off_t)OARI_FILE_BYTES) != 0 ||
        (errno = oari_file_reserve(fd, 0, OARI_FILE_UNIT)) != 0)
        status = oari_fail(OAR_E_SYSTEM, "make recorder file %s%s", path,
                           oari_file_limit());
    if (status == OAR_OK)
        status = map_box(fd, &box);
    if (status == OAR_OK) {
        fill_empty(box, rank);
        if (rename(aside, path) != 0) {
            status = oari_fail(OAR_E_SYSTEM, "make recorder file %s", path);
            munmap(box, OARI_FILE_BYTES);
        }
    }
    if (status != OAR_OK) {
        unlink(aside);
        close(fd);
        return status;
    }
    mine.fd = fd;
    mine.map = box;
    return OAR_OK;
}

/* Opens the token of this process, so that the watchdog process sees it end,
 * and sets the handler of SIGABRT, unless the user has set one. A launcher may
 * hear of the end by a connection that is closed with all the rest, and must
 * not be faster. Mappings go first; of descriptors, some kernels close the
 * highest first. So there is one of each, of a file that no other process
 * opens. */
static void announce_end(const char *folder, int rank)
{
    const int how = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    struct sigaction now = { .sa_handler = at_abort, .sa_flags = SA_RESETHAND };
    struct sigaction old;
    char path[PATH_MAX];
    void *at = MAP_FAILED;
    int low, again; /* the watchdog process is told when each is closed */

    snprintf(path, sizeof path, "%s/rank-%d" OARI_TOKEN_SUFFIX, folder, rank);
    oari_watchdog_start(folder);
    low = open(path, how, 0600);
    again = open(path, how, 0600);
    unlink(path);
    if (low >= 0)
        mine.token = fcntl(low, F_DUPFD_CLOEXEC, TOKEN_AT);
    if (mine.token >= 0)
        oari_fork_guard(mine.token);
    if (again >= 0)
        at = mmap(NULL, OARI_FILE_UNIT, PROT_READ, MAP_SHARED, again, 0);
    if (at != MAP_FAILED) {
        madvise(at, OARI_FILE_UNIT, MADV_DONTFORK);
        mine.token_map = at;
    }
    if (low >= 0)
        close(low);
    if (again >= 0)
        close(again);
    if (sigaction(SIGABRT, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) &&
        old.sa_handler == SIG_DFL) {
        snprintf(mine.folder, sizeof mine.folder, "%s", folder);
        sigaction(SIGABRT, &now, NULL);
    }
}

static oar_status take_file(const char *folder, const oari_ring_owner *who)
{
    int rank = job_rank(who);
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/rank-%d" OARI_FILE_SUFFIX, folder,
                 rank) >= (int)sizeof path)
        return oari_fail(OAR_E_ARG, "OARSONG_RECORDER_DIR is too long");
    mine.source = FOLDER;
    if (!take_own_file(path))
        OARI_TRY(make_file(path, rank));
    return OAR_OK;
}

/* ---- opening and closing ------------------------------------------------- */

static oar_status take_nameless(void)
{
    oar_status status;
    int fd = -1;

    OARI_TRY(make_memfd(OARI_FILE_BYTES, &fd));
    status = map_box(fd, &mine.map);
    if (status != OAR_OK) {
        close(fd);
        return status;
    }
    mine.fd = fd;
    mine.source = NAMELESS;
    fill_empty(mine.map, -1);
    return OAR_OK;
}

static oar_status open_box(const oari_ring_owner *who)
{
    const char *folder = oari_env_text("OARSONG_RECORDER_DIR");

    OARI_TRY(set_hooks());
    if (take_inherited())
        ;
    else if (folder != NULL)
        OARI_TRY(take_file(folder, who));
    else
        OARI_TRY(take_nameless());
    oari_fork_guard(mine.fd);
    if (mine.map->head.nonce != mine.nonce)
        sign_box(mine.map, who);
    oari_metrics_attach(&mine.map->metrics);
    if (mine.source == FOLDER && !who->threads)
        announce_end(folder, mine.map->head.rank);
    return OAR_OK;
}

/* Keeps the launcher's file open: there is no other way back to it. */
static void close_box(void)
{
    if (mine.source == INHERITED)
        return;
    oari_metrics_attach(NULL);
    munmap(mine.map, OARI_FILE_BYTES);
    mine.map = NULL;
    oari_fork_close(mine.fd);
    mine.fd = -1;
    close_token();
}

/* ---- rings --------------------------------------------------------------- */

/* Returns a ring that was never used, else the one whose group ended first, or
 * NULL: all are in use. */
static oari_ring *choose_ring(oari_recorder_file *box)
{
    oari_ring *oldest = NULL;

    for (int i = 0; i < OARI_FILE_RINGS; i++) {
        oari_ring *r = &box->ring[i];

        if (atomic_load(&r->state) == OARI_RING_FREE)
            return r;
        if ((atomic_load(&r->state) == OARI_RING_ENDED ||
             r->pid != (int64_t)getpid()) &&
            (oldest == NULL || r->ended_ns < oldest->ended_ns))
            oldest = r;
    }
    return oldest;
}

/* Returns how many groups of that name this process has made before. */
static uint32_t count_namesakes(const oari_recorder_file *box,
                                const char *group)
{
    uint32_t next = 0;

    for (int i = 0; i < OARI_FILE_RINGS; i++) {
        const oari_ring *r = &box->ring[i];

        if (atomic_load(&r->state) != OARI_RING_FREE &&
            r->pid == (int64_t)getpid() && r->instance >= next &&
            strncmp(r->group, group, sizeof r->group - 1) == 0)
            next = r->instance + 1;
    }
    return next;
}

/* Fills in a ring for a group. The serial is cleared first and set last, so
 * that a peer which maps the ring for the group that had it before can tell. */
static void fill_ring(oari_ring *r, const oari_ring_owner *who, uint64_t serial,
                      uint32_t instance, int64_t epoch)
{
    oari_moment base = oari_moment_now();

    atomic_store(&r->serial, 0);
    memset(r, 0, sizeof *r);
    r->version = OARI_FILE_VERSION;
    r->rank = who->rank;
    r->ranks = who->ranks;
    r->pid = getpid();
    r->epoch = epoch;
    r->instance = instance;
    snprintf(r->group, sizeof r->group, "%s", who->group);
    snprintf(r->backend, sizeof r->backend, "%s",
             who->backend != NULL ? who->backend : "");
    r->ticks_per_second = oari_ticks_per_second();
    r->base_ns = base.ns;
    r->base_ticks = base.ticks;
    snprintf(r->site[0].text, sizeof r->site[0].text, "?");
    atomic_store(&r->sites, 1);
    memcpy(r->magic, oari_ring_magic, sizeof r->magic);
    atomic_store(&r->serial, serial);
    atomic_store(&r->state, OARI_RING_JOINING);
}

/* Maps memory for a ring: of this process where ranks are its threads, else a
 * memfd that peers can map. */
static void *map_ring(const oari_ring_owner *who, int fd)
{
    return who->threads ? mmap(NULL, OARI_FILE_UNIT, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : mmap(NULL, OARI_FILE_UNIT, PROT_READ | PROT_WRITE,
                               MAP_SHARED, fd, 0);
}

/* Makes a ring in memory of its own, because the recorder file is full. */
static oar_status make_ring_apart(const oari_ring_owner *who, uint64_t serial,
                                  oari_ring_place *place)
{
    void *at;
    int fd = -1;

    if (!oari_alloc_allowed(OARI_FILE_UNIT))
        return OAR_E_NOMEM;
    if (!who->threads)
        OARI_TRY(make_memfd(OARI_FILE_UNIT, &fd));
    at = map_ring(who, fd);
    if (at == MAP_FAILED) {
        oar_status status =
            oari_fail(OAR_E_SYSTEM, "map a ring of the recorder");
        if (fd >= 0)
            close(fd);
        return status;
    }
    madvise(at, OARI_FILE_UNIT, MADV_DONTFORK);
    *place = (oari_ring_place){ at, fd >= 0 ? oari_fork_guard(fd) : -1, 0, 1 };
    fill_ring(at, who, serial, 0, mine.map->head.epoch);
    atomic_fetch_add(&mine.map->head.crowded, 1);
    return OAR_OK;
}

static oar_status take_ring(const oari_ring_owner *who, oari_ring_place *place)
{
    oari_recorder_file *box = mine.map;
    oari_ring *ring = choose_ring(box);
    uint64_t serial = atomic_fetch_add(&box->head.serial, 1) + 1;
    oari_ring_place found = { ring, mine.fd, 0, 0 };
    uint32_t index;

    if (ring == NULL)
        return make_ring_apart(who, serial, place);
    index = (uint32_t)(ring - box->ring);
    found.at = OARI_FILE_UNIT * (uint64_t)(index + 1);
    /* a full disk must show here: later it would be a SIGBUS */
    if (mine.source == FOLDER &&
        oari_file_reserve(found.fd, (off_t)found.at, OARI_FILE_UNIT) != 0) {
        oari_log(OAR_LOG_WARN,
                 "no room for group \"%s\" in "
                 "OARSONG_RECORDER_DIR",
                 who->group);
        return make_ring_apart(who, serial, place);
    }
    fill_ring(ring, who, serial, count_namesakes(box, who->group),
              box->head.epoch);
    if (atomic_load(&box->head.used) <= index)
        atomic_store(&box->head.used, index + 1);
    *place = found;
    return OAR_OK;
}

oar_status oari_ring_take(const oari_ring_owner *owner, oari_ring_place *place)
{
    oar_status status = OAR_OK;

    pthread_mutex_lock(&mine.lock);
    if (mine.map == NULL)
        status = open_box(owner);
    if (status == OAR_OK && mine.map != NULL)
        status = take_ring(owner, place);
    if (status == OAR_OK)
        mine.holders++;
    else if (mine.map != NULL && mine.holders == 0)
        close_box();
    pthread_mutex_unlock(&mine.lock);
    return status;
}

void oari_ring_give(oari_ring_place *place)
{
    oari_ring *ring = place->ring;

    if (ring == NULL)
        return;
    pthread_mutex_lock(&mine.lock);
    ring->ended_ns = oari_now_ns();
    atomic_store(&ring->state, OARI_RING_ENDED);
    if (place->apart) {
        munmap(ring, OARI_FILE_UNIT);
        oari_fork_close(place->fd);
    }
    if (--mine.holders == 0)
        close_box();
    pthread_mutex_unlock(&mine.lock);
    place->ring = NULL;
}
