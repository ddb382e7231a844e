/* SPDX-License-Identifier: Apache-2.0 */
/* link/link.h: what the core and the links between ranks share: the limits of a
 * group, how a peer is gone, what a backend of this tree has beyond the public
 * table, and which of two faults counts. */
#ifndef OARI_LINK_LINK_H
#define OARI_LINK_LINK_H

#include <oarsong/backend.h>
#include <oarsong/group.h>

#include "link/bulletin.h"
#include "net/frame.h"
#include "record/recorder.h"

enum {
    OARI_MAX_RANKS = 1024,
    OARI_NAME_MAX = 150 /* bytes; keys of the store begin with it */
};

struct oari_shm;
struct oari_world;

/* How a rank is gone. */
enum { OARI_PEER_DIED = 1, OARI_PEER_LEFT = 2, OARI_PEER_UNREACHABLE = 3 };

/* ---- backends of this tree ----------------------------------------------- */

/* What a backend of this tree is opened with. */
typedef struct oari_open {
    oar_backend_env env;
    size_t small_bytes, stage_bytes, eager_bytes;
    int64_t spin_us;
    oari_recorder *recorder;
    struct oari_world *world; /* of links between threads */
    int64_t
        rendezvous_ms; /* for the rendezvous; the timeout, unless the group is
                        made of survivors */
    unsigned char *missing; /* by rank: set for ranks that this rank waited for
                               when it gave up (open_failure.h), or NULL */
    const char *secret;     /* of the group, in hex digits; NULL: the job's */
    struct oari_shm *shm;   /* an engine for GPUs: of this host; NULL: none */
    oar_group *group;       /* and its group; NULL: none */
} oari_open;

/* A receive that is given no transfer. */
typedef struct oari_direct_receive {
    uint64_t tag, any; /* as in oar_transfer */
    void *data;
    size_t bytes; /* of the message */
} oari_direct_receive;

/* What the core itself needs a backend for. */
typedef enum oari_role {
    OARI_ROLE_NONE,
    OARI_ROLE_ALONE,     /* links of a group of one */
    OARI_ROLE_PROCESSES, /* links between processes */
    OARI_ROLE_THREADS,   /* links between threads of one process */
    OARI_ROLE_STAGING,   /* device memory through the host; users do not name
                            it */
    OARI_ROLES
} oari_role;

/* One backend: its public table, and what only the core calls. */
typedef struct oari_backend {
    oar_backend_ops ops; /* without open */
    oari_role role;

    /* As oar_backend_ops.open. NULL: the backend is only a name. */
    oar_status (*open)(void *self, const oari_open *with);

    /* All that follow are of links, and each is optional. */

    /* Returns memory that all ranks of this host map. Valid from open to
     * close. */
    struct oari_shm *(*shm)(void *self);
    /* Returns the host of each rank, as numbers from 0 in the order of the
     * lowest rank there; NULL: all are on one. Valid from open to close. */
    const int *(*hosts)(void *self);
    /* Returns whether a rank is gone: 0, or OARI_PEER_DIED and so on. NULL
     * here and in the next two: as shared memory says. */
    int (*gone)(void *self, int rank);
    /* Gives the fault that counts, of those that ranks have published; returns
     * 0 if there is none. Any thread. */
    int (*published)(void *self, oari_fault *fault);
    /* Publishes a fault of this rank, once. Any thread. */
    void (*publish)(void *self, const oari_fault *fault);
    /* Returns whether all ranks that live have the fault that counts, as far
     * as can be known: 0 while one may still publish another. Any thread. */
    int (*agreed)(void *self);
    /* Gives the fault that this rank reports from now on, and shows the peers
     * that it does. Once; any thread. (NULL: so is `agreed`. Both are there
     * where publish tells other hosts) */
    void (*conclude)(void *self, oari_fault *fault);
    /* Shows a fact of this rank to all others, even if the group has failed,
     * and reads a rank's (0: it has shown none). NULL: over shared memory. For
     * the thread that drives. */
    void (*show)(void *self, oari_fact fact, const void *data);
    int (*read)(void *self, int rank, oari_fact fact, void *data);
    /* Returns the process of a rank on this host, 0: it is on another; and how
     * many milliseconds ago a rank's system last answered, -1: not known. */
    int64_t (*pid)(void *self, int rank);
    int64_t (*answered)(void *self, int rank);
    /* Takes back a message that is under way: a send or a receive. Returns 1 if
     * nothing touches its memory any more, and the links have forgotten it; 0:
     * not now. unmoved: only if none of its data has been moved. */
    int (*withdraw)(void *self, oar_transfer *transfer, int is_send,
                    int unmoved);
    /* Returns whether progress is needed soon even if nothing comes in: a call
     * has to be repeated, or a host does not answer. */
    int (*restless)(void *self);
    /* Makes sure that the end of any rank is seen without a message under way
     * with it. */
    void (*watch)(void *self);
    /* Sends an eager message at once, if there is room for it: 1. */
    int (*push)(void *self, int rank, uint64_t tag, const void *data,
                size_t bytes);
    /* Waits for the next message of a rank, for so many looks, and takes it if
     * it is the one wanted: 1. Returns 0 if it is not, or has not come; then
     * nothing has changed. No receive of the same tag is posted. */
    int (*take)(void *self, int rank, const oari_direct_receive *receive,
                int looks);
    /* A caller waits for this receive, and nothing will take it back: the
     * sender need not send the message before that is known. */
    void (*await)(void *self, const oar_transfer *receive);
    /* Returns where messages are matched. */
    struct oari_match *(*match)(void *self);
} oari_backend;

/* ---- faults (bulletin.c) ------------------------------------------------- */

/* The states of a fault that one thread writes and others read. */
enum { OARI_FAULT_NONE = 0, OARI_FAULT_WRITING = 1, OARI_FAULT_READY = 2 };

/* Returns whether a counts before b, where it is not known which came first. */
int oari_fault_before(const oari_fault *a, const oari_fault *b);
/* Returns whether a fault names the cause, and not only a rank that was waited
 * for. */
int oari_fault_sure(const oari_fault *fault);

#endif
