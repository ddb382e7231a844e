/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h: the whole of what a backend is: one const table.
 *
 * A backend moves messages between ranks (send and recv; the core then plans
 * every collective over it), or runs collectives of its own (post), or both.
 * What it lacks is filled in from the core's planners: over its own messages,
 * or, if it has none, over links that the core makes beside it. One driver at a
 * time calls these functions, except `abort` and `wake`, which any thread may
 * call at any time between open and close. None of them may block, but open.
 * Groups of one process have drivers of their own: nothing is shared but what
 * the backend shares itself. docs/writing-a-backend.md walks through one.
 *
 * A backend outside this library is a shared object that exports one function,
 * oar_backend_plugin, and is named by its path:
 *
 *     OARSONG_BACKEND=./libcarrier.so oarsong run -n 2 ./train
 *
 * or by NAME, if it is called liboarsong-NAME.so and lies in a folder of
 * OARSONG_PLUGIN_PATH, beside this library, or in the folder oarsong/ there.
 */
#ifndef OARSONG_BACKEND_H
#define OARSONG_BACKEND_H

#include <oarsong/span.h>
#include <oarsong/store.h>

OAR_BEGIN_DECLS

/* Grows when a table made for an older library no longer works. Appending to a
 * struct that begins with its size does not count. */
#define OAR_BACKEND_ABI 4

/* What a backend can do here. */
typedef struct oar_backend_caps {
    size_t size;
    uint32_t dtypes;  /* bit 1u << OAR_F32 and so on; 0: all */
    uint32_t devices; /* bit 1u << OAR_CPU and so on; 0: host memory only */
    const char *note; /* one line for `oarsong info`, or NULL; it stays */
    uint32_t can;     /* OAR_CAN_ bits and OAR_WANTS_LINKS */
} oar_backend_caps;
OAR_OPTS_INIT(oar_backend_caps);

/* What a backend is opened with; borrowed for the call. Store and name may be
 * used until close. */
typedef struct oar_backend_env {
    size_t size;
    int rank;
    int ranks;
    oar_store *store; /* for finding the others; NULL in a group of one */
    const char *store_address; /* HOST:PORT of the server behind it: a backend
                                  that listens is reached by the others at the
                                  address that this host has toward it; NULL:
                                  the store has none */
    const char *name; /* the group's; no other in the store has it now, but one
                         that is gone may have had it */
    int64_t timeout_ms; /* for open; below 0: for ever */
    /* of an engine for GPUs */
    int device;     /* which one is this rank's */
    void *stream;   /* the stream to work on; NULL: one of its own */
    const void *id; /* NCCL's, of 128 bytes, if the caller gave one */
    void *split;    /* what the split of the parent's engine made; or NULL */
} oar_backend_env;

/* What a backend's messages can do, in oar_backend_caps.can. */
enum {
    OAR_CAN_ANY = 1 << 0,         /* receive from any source, with any tag */
    OAR_CAN_PROBE = 1 << 1,       /* see a message without taking it */
    OAR_CAN_SYNCHRONOUS = 1 << 2, /* a send that waits for its receive */
    OAR_CAN_MEMORY = 1 << 3,      /* ranks reach each other's memory */
    OAR_CAN_ORDER = 1 << 5,   /* an engine for GPUs: it combines in the order of
                                ranks, as `canonical` asks */
    OAR_CAN_AT_MOST = 1 << 6, /* a receive of a message that may be smaller */
    OAR_WANTS_LINKS = 1 << 4 /* not what it can do: the core is to make links of
                                its own beside it (as the backend native does),
                                which find peers that are gone, tell faults and
                                compare what ranks call. A must for one that has
                                no messages of its own */
};

/* One message under way. The core owns the struct and leaves it where it is
 * until done is set. The backend sets status (and done, last) during send,
 * recv, progress or close, and touches neither afterwards.
 * A receive matches a send of that peer with the same tag; in the order sent.
 * If the sizes differ the message is dropped and the receive is OAR_E_SIZE; so
 * is the send, if it is not done yet. */
typedef struct oar_transfer {
    size_t size;
    int peer; /* a receive: -1: any (OAR_CAN_ANY) */
    uint64_t tag;
    uint64_t any; /* a receive: bits of the tag that may be anything */
    void *data;
    size_t bytes;
    int synchronous; /* a send: done when the receive has taken it */
    int done;
    oar_status status;
    int source; /* of a receive that is done: what came */
    uint64_t got_tag;
    size_t got_bytes;
    void *scratch[6]; /* the backend's, while it is under way */
    int at_most;      /* a receive: a message of fewer than `bytes` fits, too
                         (OAR_CAN_AT_MOST) */
} oar_transfer;

/* What a message that waits is. */
typedef struct oar_envelope {
    size_t size;
    int source;
    uint64_t tag;
    size_t bytes;
} oar_envelope;

/* A collective, for backends with engines of their own. */
typedef struct oar_collective {
    size_t size;
    oar_coll kind;
    oar_span in;
    oar_span out;
    const size_t *in_counts, *out_counts; /* as in collective.h; or NULL */
    oar_reduce_op op;
    int root;
    double weight;
    int ragged;  /* parts of any size: also where a rank has no counts */
    int awaited; /* its caller comes with `lend` at once: who has that need not
                    let anybody else work on it. Ranks may differ in it. */
    /* of an engine for GPUs */
    int64_t tag;    /* of a send or receive; -1: any. The peer is root */
    void *stream;   /* the caller's */
    void *ready;    /* event: the buffers may be used once it has come; NULL:
                       at once */
    void *finished; /* event to be recorded behind what was started; one that
                       has come may be left as it is if all that is over */
    int canonical;  /* of an engine with OAR_CAN_ORDER: in the order of ranks */
} oar_collective;

/* Starts it; `done` is completed like a message (its data is not used). The
 * call and what it points to live until then. Ranks post in the same order;
 * several may be under way. What reaches it: calls that `takes` takes, without
 * `canonical`, of a known size, for which no algorithm is forced.
 *
 * An engine for GPUs (caps.devices) gets the calls on device memory, sends and
 * receives too, and no others. It works on a stream, which first has to wait
 * for `ready`; `done` is set when everything is on the stream, with `finished`
 * recorded behind it. The core looks when that comes. */
typedef oar_status (*oar_post_fn)(void *self, const oar_collective *call,
                                  oar_transfer *done);

typedef struct oar_backend_ops {
    size_t size;  /* sizeof, for the ABI */
    uint32_t abi; /* OAR_BACKEND_ABI */
    const char *name;
    size_t self_size; /* the core allocates it, zeroed */

    /* Can this work here? If not, OAR_E_UNAVAILABLE with the reason (through
     * oar_backend_fail). Fills in what it can do. (optional: yes) */
    oar_status (*probe)(oar_backend_caps *caps);

    /* Joins the group; may block up to env->timeout_ms. */
    oar_status (*open)(void *self, const oar_backend_env *env);

    /* Leaves it. Needs no living peer; copes with a half-built self. */
    void (*close)(void *self);

    /* Start a message; done may be set on return. (optional, both or none) */
    oar_status (*send)(void *self, oar_transfer *transfer);
    oar_status (*recv)(void *self, oar_transfer *transfer);

    /* Whether a message waits that such a receive would take (peer, tag and
     * any as in oar_transfer), and which. (optional: OAR_CAN_PROBE) */
    int (*peek)(void *self, int peer, uint64_t tag, uint64_t any,
                oar_envelope *found);

    /* Moves things on. A failure here ends the group. (optional) */
    oar_status (*progress)(void *self);

    /* For a driver that wants to sleep. arm returns 1 if progress would find
     * work now; 0 if not, and then the descriptor wait_fd gives turns readable
     * when it would. (optional, both or none: the core then sleeps briefly) */
    int (*wait_fd)(void *self);
    int (*arm)(void *self);

    /* Makes wait_fd readable. (optional) */
    void (*wake)(void *self);

    /* From now on every transfer fails: at the latest at the next progress all
     * that are under way are done with status `why`, and nothing touches their
     * memory any more. Idempotent. (optional where nothing is ever under way:
     * what is started is done on return) */
    void (*abort)(void *self, oar_status why);

    /* Whether post can do this one. All ranks must answer alike: so by nothing
     * but kind, op, dtype, root, whether it is ragged, and how many
     * elements there are where there are none. (optional: all its kind) */
    int (*takes)(void *self, const oar_collective *call);

    /* For an engine whose own calls block: does, in the calling thread, which
     * may wait in there as long as it takes, the collective that was posted as
     * `awaited`, if it is still to be done. Not the driver's: meanwhile others
     * drive. What is done the next progress says; abort must bring it out.
     * (optional, with OAR_WANTS_LINKS) */
    void (*lend)(void *self);

    /* Engines for GPUs. Between batch(self, 1) and batch(self, 0) calls are
     * posted that wait for each other: nothing may wait for one of them before
     * the last is there. (optional) */
    oar_status (*batch)(void *self, int open);

    /* Engines for GPUs: begins one for those ranks of this group that give the
     * same colour (below 0: none), ordered by key. Every rank calls it. What it
     * gives goes to the open of the new group (oar_backend_env.split), or comes
     * back as drop(made). May block as open does. (optional, both or none: a
     * new one is opened) */
    oar_status (*split)(void *self, int colour, int key, void **made);
    void (*drop)(void *made);

    size_t post_count;                /* OAR_COLL_COUNT as it was compiled */
    oar_post_fn post[OAR_COLL_COUNT]; /* (optional, by kind) NULL: planned */
} oar_backend_ops;

/* What a plugin exports (in C++ as extern "C"). Returns its table, which lives
 * as long as the process. */
typedef const oar_backend_ops *(*oar_backend_plugin_fn)(void);
#define OAR_BACKEND_PLUGIN_SYMBOL "oar_backend_plugin"

/* For backends: writes the thread's last error and returns status. */
OAR_API oar_status oar_backend_fail(oar_status status, const char *format, ...)
    OAR_PRINTF(2, 3);

/* Loads a plugin and checks its table; from then on its name (borrowed, in
 * *name if that is not NULL) works wherever a backend is named. Loading it
 * again gives the same. OAR_E_UNAVAILABLE with the reason if it cannot be
 * loaded or was made for another ABI. Any thread. */
OAR_API oar_status oar_backend_load(const char *path, const char **name);

/* OAR_OK if the backend of that name (or path) works here; OAR_E_UNAVAILABLE
 * with the reason if not; OAR_E_NOT_FOUND if there is none of that name. */
OAR_API oar_status oar_backend_available(const char *name,
                                         oar_backend_caps *caps);

/* The name of the index-th backend known here; NULL past the last. */
OAR_API const char *oar_backend_name(int index);

/* The name of the index-th algorithm, and which collective it does in *kind
 * (may be NULL); NULL past the last. A name comes once for each collective.
 * What oar_group_opts.algorithm and OARSONG_ALGO take. */
OAR_API const char *oar_algorithm_name(int index, oar_coll *kind);

/* The index-th threshold of the choice among them, as "NAME (normally N): what
 * it says"; returns 0 past the last. NAME is set in the environment; rank 0's
 * counts for a group. */
OAR_API int oar_threshold_text(int index, char *text, size_t bytes);

OAR_END_DECLS

#endif
