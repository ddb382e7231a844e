/* SPDX-License-Identifier: Apache-2.0 */
/* group.h: ranks 0 .. size-1 that run collectives together.
 *
 * Threads: any thread may post operations on a group. The order in which
 * operations are posted must be the same on all ranks; if several threads post
 * on one group, that order is theirs to keep.
 *
 * Faults: the first failure that leaves ranks out of step (a peer that died or
 * did not come in time, ranks that disagree, an abort) ends the group: every
 * pending and every later call on it returns that same record. Buffers of an
 * operation that failed are undefined, but after its call has returned no peer
 * writes to them any more, even one that was stopped and wakes up later (if the
 * system has no memory left for that, the call returns OAR_E_NOMEM instead of
 * the fault, and says so: leave that buffer alone). A bad
 * argument is not a fault: the call returns OAR_E_ARG and the group goes on.
 *
 * Fork: a child made by fork has no groups; every call there on one it
 * inherited is OAR_E_STATE, and the parent and its peers are not disturbed.
 *
 * Exit: a process that exits without destroying a group is, to its peers, a
 * rank that left; they are told, and nothing is left behind on the system.
 */
#ifndef OARSONG_GROUP_H
#define OARSONG_GROUP_H

#include <oarsong/span.h>
#include <oarsong/store.h>

OAR_BEGIN_DECLS

typedef struct oar_group oar_group;

typedef struct oar_group_opts {
    size_t size;
    const char *backend;   /* NULL: OARSONG_BACKEND, else "native" */
    const char *name;      /* NULL: "world"; for messages, and to keep groups
                              made from the same store apart; at most 150
                              bytes */
    int64_t timeout_ms;    /* of an operation; 0: 300 s, below 0: none */
    int64_t spin_us;       /* 0: by itself (spin while cores are free); below 0:
                              never spin */
    size_t small_bytes;    /* up to here data travels in the exchange line
                              itself, and where waiting costs more, up to a
                              few times as much; 0: 512 */
    size_t stage_bytes;    /* chunk for memory that is not shared; 0: 256 KiB */
    size_t eager_bytes;    /* messages up to here are sent before a receive is
                              there; 0: 64 KiB */
    size_t chunk_bytes;    /* pieces in which large messages of a collective go,
                              so that combining overlaps sending; 0: 512 KiB */
    const char *algorithm; /* of every collective that it can do; NULL: chosen.
                              Also OARSONG_ALGO; `oarsong info` lists them */
    int64_t stall_ms;      /* an operation that waits longer is reported once,
                              as a warning (log.h) that names the missing ranks
                              and what each did last; 0: OARSONG_STALL_MS,
                              else 30 s; below 0: never */
    /* of a group with an engine for GPUs (backend "nccl", "ipc", "hybrid",
       "cpu:native,cuda:nccl"): */
    const oar_device *device; /* this rank's; NULL: oar_device_current() */
    void *stream;        /* on which its collectives run; NULL: one of its own
                            beside the caller's */
    const void *nccl_id; /* 128 bytes that all ranks give alike; NULL: made by
                            rank 0, and told through the store */
    const char *secret;  /* 64 hex digits that all ranks give alike and that
                            nobody else knows: of this group, of those made of
                            it, and of the store of oar_group_create_tcp. NULL:
                            that of the job (docs/environment.md) */
} oar_group_opts;
OAR_OPTS_INIT(oar_group_opts);

/* A group of `size` ranks that all call this with the same store, size and
 * options, each with its own rank. Waits for the others up to the timeout.
 * Keeps a reference to the store, for groups made of this one later. Settings
 * on which ranks differ are rank 0's. A group of one needs no store. */
OAR_API oar_status oar_group_create(oar_store *store, int rank, int size,
                                    const oar_group_opts *opts,
                                    oar_group **group);

/* The same with a store at "host:port", which rank 0 serves there (unless a
 * server of ours has that address already) until its group is destroyed. A
 * group of one needs no network. */
OAR_API oar_status oar_group_create_tcp(const char *address, int rank, int size,
                                        const oar_group_opts *opts,
                                        oar_group **group);

/* The same with everything from the environment. Rank and size are the first
 * pair that is set: OARSONG_RANK and _SIZE (`oarsong run`), RANK and WORLD_SIZE
 * (torchrun), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and _SIZE
 * (MPICH), SLURM_PROCID and SLURM_NTASKS. With none of them, a group of one.
 * The ranks meet at the first of these that applies:
 *   OARSONG_STORE: file:FOLDER; tcp:HOST:PORT, where somebody serves a store;
 * or pmix: where rank 0 says by PMIx that it serves one. MASTER_ADDR and
 * MASTER_PORT (29500), where rank 0 serves one as above (the port above it
 * where TORCHELASTIC_USE_AGENT_STORE says that torchrun's own store is there).
 * On one host, by Open MPI, MPICH or SLURM: a folder of the job's, which is
 * gone when they have met. By SLURM, the first host of the step, or
 * SLURM_LAUNCH_NODE_IPADDR, at a port made of the job's number. By Open MPI,
 * as with pmix.
 *   A job on several hosts that has no secret gets one by PMIx where the
 * launcher speaks it (Open MPI's mpirun, srun --mpi=pmix). PMIx then stays
 * begun until the process exits. */
OAR_API oar_status oar_group_from_env(const oar_group_opts *opts,
                                      oar_group **group);

/* Groups made of a group's ranks. All of its ranks call this, in the same order
 * among its collectives; each new group has traffic of its own, whatever ranks,
 * tags or wildcards it shares with others. It does not need its parent to live
 * on, and takes its settings from it. OAR_E_STATE while this thread has a batch
 * open on it (not for subset, which does not need the others).
 *
 * split: one group for each colour, ranks ordered by key and then by their old
 * rank. A colour below 0: none for me (*group is NULL). */
#define oar_group_split(parent, colour, key, group) \
    oar_group_split_at(OAR_HERE, parent, colour, key, group)
OAR_API oar_status oar_group_split_at(const char *file, int line,
                                      oar_group *parent, int colour, int key,
                                      oar_group **group);

/* The same ranks again. */
#define oar_group_dup(parent, group) oar_group_dup_at(OAR_HERE, parent, group)
OAR_API oar_status oar_group_dup_at(const char *file, int line,
                                    oar_group *parent, oar_group **group);

/* In what a duplicate differs from its parent. Alike on all ranks. */
typedef struct oar_dup_opts {
    size_t size;
    const char *name;   /* the new name is the parent's, a dot, this (up to 40
                           bytes), and a number; NULL: only a number */
    int64_t timeout_ms; /* of an operation; 0: the parent's, below 0: none */
    int64_t stall_ms;   /* as in oar_group_opts; 0: the parent's, below 0: no
                           report */
    int loose;          /* 1: messages fail alone, see below */
    int patient;        /* 1: where every rank has a core of its own, a caller
                           that waits looks for up to 5 ms before it sleeps, for
                           waits of milliseconds after which there is work */
} oar_dup_opts;
OAR_OPTS_INIT(oar_dup_opts);

/* The same ranks again, with other timeouts: for work beside the training that
 * may take its time, such as writing to a disk. opts NULL: like oar_group_dup.
 *
 * A loose group is for programs that outlive their workers. It has messages
 * (p2p.h) and no collectives, of which groups are made too (OAR_E_UNSUPPORTED).
 * A message with a rank that is gone fails with OAR_E_PEER, one that runs out
 * of time with OAR_E_TIMEOUT; each fails alone, and no other message and no
 * other rank notices. A receive from any rank fails with OAR_E_PEER when no
 * other rank is left. What a rank sent before it went can still be received,
 * as far as it has arrived. A rank that aborts the group, or whose links fail,
 * is to the others one that has left. OAR_E_UNSUPPORTED on backends of others;
 * device memory has to be staged by the caller. */
#define oar_group_dup_with(parent, opts, group) \
    oar_group_dup_with_at(OAR_HERE, parent, opts, group)
OAR_API oar_status oar_group_dup_with_at(const char *file, int line,
                                         oar_group *parent,
                                         const oar_dup_opts *opts,
                                         oar_group **group);

/* Those ranks only, in ascending order whatever order they are given in, each
 * once. Only they call this, with the same list. OAR_E_WORLD for an empty list,
 * OAR_E_RANK for a rank that is not there or if the caller's is not among them,
 * OAR_E_PEER if one of them is gone; the parent goes on. */
OAR_API oar_status oar_group_subset(oar_group *parent, int count,
                                    const int *ranks, oar_group **group);

/* How oar_group_shrink goes about it. */
typedef struct oar_shrink_opts {
    size_t size;
    int64_t timeout_ms; /* a rank that has not come, or does not get on, for so
                           long is left out; 0: 30 s, below 0: wait for ever */
    int any; /* 1: any number of survivors may go on; else only a majority of
                the group, or exactly half of it with rank 0. Also
                OARSONG_SHRINK=any */
} oar_shrink_opts;
OAR_OPTS_INIT(oar_shrink_opts);

/* A new group of those that are left. Every rank that still can calls this,
 * after a fault or without one; each time all of them do is one call, and they
 * make as many. The new group has all ranks that came, in their old order, and
 * takes its settings from the old one. Whose process is gone is not waited for;
 * one that is stopped or does not call is left out after the timeout. All
 * survivors agree on the list, also if another dies on the way (then it goes on
 * without that one). Needs neither rank 0 nor a store: only links among those
 * that are left (docs/faults.md).
 *
 * A group that is whole stays as it is, and this is like dup. If somebody was
 * left out, the old group ends; a rank that comes too late gets OAR_E_PEER.
 * OAR_E_WORLD if too few are left, OAR_E_UNSUPPORTED on backends of others.
 * Destroy the old group afterwards, before or after the new one. */
OAR_API oar_status oar_group_shrink(oar_group *group,
                                    const oar_shrink_opts *opts,
                                    oar_group **new_group);

/* Rank translation. The world is the group from oar_group_create, from_env or
 * sim_run that this one was made of: the rank there of a rank here, and the
 * other way. -1 if there is none. */
OAR_API int oar_group_to_world(const oar_group *group, int rank);
OAR_API int oar_group_from_world(const oar_group *group, int rank);

/* The same between any two groups of one world: the rank in `to` of `rank` in
 * `from`, or -1. */
OAR_API int oar_group_translate(const oar_group *from, int rank,
                                const oar_group *to);

/* Frees it. Pending operations are aborted first. Never needs a living peer.
 * NULL is fine. No other thread may be using it. */
OAR_API void oar_group_destroy(oar_group *group);

OAR_API int oar_group_rank(const oar_group *group); /* -1 for NULL */
OAR_API int oar_group_size(const oar_group *group); /* 0 for NULL */
/* The backend by the name that it was asked for; where "hybrid" or "auto" was,
 * what it has come to: "cpu:native,cuda:ipc". "" for NULL. */
OAR_API const char *oar_group_backend(const oar_group *group);

/* The host that a rank is on: numbers from 0, in the order of the lowest rank
 * there. The same answer on all ranks. Ranks as threads are on one host, and so
 * are, as far as is known, those of a plugin. -1 if there is no such rank. */
OAR_API int oar_group_host(const oar_group *group, int rank);

/* Whether operations that are not waited for go on beside the caller's own
 * work: 1, unless all ranks share one host's memory, where reducing is
 * computing, and there are less than two cores for each. All ranks get the same
 * answer. 0 for NULL. */
OAR_API int oar_group_overlaps(const oar_group *group);
OAR_API const char *oar_group_name(const oar_group *group);

/* Ends the group here and now: pending and later calls return OAR_E_ABORTED
 * with this reason (NULL: none given); the peers are told. Idempotent, bounded,
 * any thread. The first fault stays the one that is reported. */
OAR_API oar_status oar_group_abort(oar_group *group, const char *reason);

/* OAR_OK while the group is whole; else its fault, also in *record if that is
 * not NULL (and as this thread's last error). Any thread. */
OAR_API oar_status oar_group_fault(const oar_group *group, oar_error *record);

/* How a rank has gone. */
typedef enum oar_gone {
    OAR_GONE_DIED = 1,
    OAR_GONE_LEFT = 2,       /* it has destroyed or aborted the group */
    OAR_GONE_UNREACHABLE = 3 /* its host does not answer */
} oar_gone;

/* Calls fn(arg, rank, how) once for each rank that has gone, as soon as that is
 * known, whether or not any message is under way with it; for those that are
 * gone already, soon. Of a loose group only (OAR_E_UNSUPPORTED), and one
 * function for each (OAR_E_STATE). It runs on the thread that drives; it may
 * post, cancel and release operations, but must not wait. */
typedef void (*oar_gone_fn)(void *arg, int rank, oar_gone how);
OAR_API oar_status oar_group_on_gone(oar_group *group, oar_gone_fn fn,
                                     void *arg);

/* ---- slow parts ---------------------------------------------------------- */

/* "This part may be slow": from begin to end, and at most timeout_ms (below 0:
 * as long as it lasts), no operation on the group runs out of time that waits
 * for this rank, or that this rank waits in; one that would have gets its usual
 * time again when the scope is over. Peers see the scope, and name it in what
 * they report (on a backend without OAR_CAN_PROBE they do not: there, open it
 * on every rank). Scopes may nest: the longest counts. A death, an abort or a
 * mismatch ends operations at once as ever.
 *
 *     oar_timeout_scope *slow;
 *     oar_timeout_scope_begin(group, "checkpoint", 30 * 60 * 1000, &slow);
 *     save(model);
 *     oar_timeout_scope_end(slow);
 *
 * label (a copy of up to 47 bytes; NULL: none) is for texts. End it before the
 * group is destroyed. Any thread. */
typedef struct oar_timeout_scope oar_timeout_scope;
OAR_API oar_status oar_timeout_scope_begin(oar_group *group, const char *label,
                                           int64_t timeout_ms,
                                           oar_timeout_scope **scope);
OAR_API void oar_timeout_scope_end(oar_timeout_scope *scope); /* NULL is fine */

/* ---- ranks as threads ---------------------------------------------------- */

/* What one rank does. A failure is returned; the group is the library's. */
typedef oar_status (*oar_rank_fn)(oar_group *group, void *arg);

/* Runs fn on `ranks` threads of this process, each with its own rank of one
 * group over the backend "sim", and returns when all have returned: OAR_OK, or
 * the first failure of the lowest rank, as this thread's last error. A rank
 * that returns a failure aborts the group, so that the others end too. */
OAR_API oar_status oar_sim_run(int ranks, oar_rank_fn fn, void *arg);

/* The same with options for the group. */
OAR_API oar_status oar_sim_run_with(int ranks, const oar_group_opts *opts,
                                    oar_rank_fn fn, void *arg);

OAR_END_DECLS

#endif
