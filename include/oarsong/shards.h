/* SPDX-License-Identifier: Apache-2.0 */
/* shards.h: arrays spread over the ranks, each whole only while it is used
 * (ZeRO, stages 1 to 3, for programs with arrays of their own).
 *
 *     oar_shards_create(group, arrays, array, unit, NULL, &s);
 *     for (;;) {
 *         for (u = 0; u < units; u++) {                      forward
 *             oar_shards_unshard(s, u);
 *             compute(oar_shards_array(s, ...));
 *             oar_shards_reshard(s, u);
 *         }
 *         for (u = units - 1; u >= 0; u--) {                 backward
 *             oar_shards_unshard(s, u);
 *             write(oar_shards_grad(s, a)); oar_shards_ready(s, a);
 *             oar_shards_reshard(s, u);
 *         }
 *         oar_shards_wait(s);              the means are in this rank's shards
 *         oar_optim_step(optimizer over oar_shards_tensors(s));
 *         oar_shards_publish(s);
 *         oar_shards_zero_grad(s);
 *     }
 *
 * Arrays that are used together form a unit: a layer, say. Inside a unit, the
 * arrays of one dtype lie one after the other, each on cache lines of its own.
 * That row is cut at pages into nearly equal parts, one for each rank. The part
 * of an array that a rank has is its shard. Nothing is padded to the number of
 * ranks, and nothing is copied between the arrays and what travels.
 *
 * All ranks make the same calls in the same order. But where the ranks of a
 * host have the arrays in common (OAR_HOLD_MAPPED), unshard and reshard send
 * nothing, and each rank may call them as it likes.
 *
 * Threads: one object by one thread at a time.
 */
#ifndef OARSONG_SHARDS_H
#define OARSONG_SHARDS_H

#include <oarsong/collective.h>
#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

typedef struct oar_shards oar_shards;

/* What is spread over the ranks. State is what the optimizer keeps: it steps
 * shards only, so its state is always spread. */
typedef enum oar_zero_stage {
    OAR_ZERO_STAGE_3 = 0, /* arrays, gradients and state */
    OAR_ZERO_STAGE_2 = 2, /* gradients and state; arrays are always whole */
    OAR_ZERO_STAGE_1 = 1  /* state; gradients are whole, too, and stay at one
                             address, so that a program can add to them */
} oar_zero_stage;

/* Where the memory of whole arrays is. */
typedef enum oar_hold {
    OAR_HOLD_AUTO = 0,   /* the first of the next three that is possible */
    OAR_HOLD_MAPPED = 1, /* one copy that all ranks map, always whole; needs all
                            ranks on one host */
    OAR_HOLD_HOST = 2,   /* one copy on each host, gathered once for all of its
                            ranks; needs as many ranks on each host */
    OAR_HOLD_OWN = 3     /* a copy for each rank */
} oar_hold;

/* Arrays may be on a GPU, all on one. Then whole arrays and gradients are in
 * its memory, and calls belong to its current stream, as all on tensors there
 * do (docs/gpu.md says where the host waits for the GPU):
 *   OAR_HOLD_MAPPED  one copy in the memory of a GPU that all ranks are on;
 *   OAR_HOLD_HOST    one copy in pinned memory of the host, which all ranks are
 *                    on; each rank copies the units that it uses to its GPU;
 *   OAR_HOLD_OWN     as on the cpu, gathered by the group's engine for GPUs.
 * OAR_HOLD_AUTO is the first if all ranks are on one GPU, else the last. */

typedef struct oar_shards_opts {
    size_t size;
    oar_zero_stage stage;
    oar_hold hold;
    int prefetch;   /* units that are gathered ahead, in the order of the last
                     pass; 0 means 1 where operations overlap, else none; below
                     0: none */
    int no_scatter; /* rank 0's numbers are not sent: every rank takes its part
                       from its own arrays, zeros from one without data */
    const size_t *rows; /* for each array: cut it only between rows of so many
                           elements; 0: anywhere. NULL: 0 for all */
    const unsigned char *frozen; /* for each array: 1 if it has no gradient.
                                    NULL: only integers have none */
    oar_group *replicas;         /* the ranks that have the same shards as this
                                    one, for means over several such groups;
                                    borrowed; NULL: none */
    int weighted;                /* a weighted mean, see oar_shards_weigh */
    int canonical; /* add in the order of ranks whatever it costs, so that the
                      bits do not depend on backend or algorithm. With
                      OAR_HOLD_HOST on several hosts: by index on the host,
                      then by host */
    const char *const *names;      /* of the arrays, for messages; copied */
    const char *const *unit_names; /* the same of the units */
    int mixed;              /* mixed precision: 1 if the next two count */
    oar_dtype whole_dtype;  /* a float: what f32 and f64 arrays are while they
                               are whole, and their whole gradients. Shards and
                               their gradients keep the dtype of the array */
    oar_dtype reduce_dtype; /* in which those gradients are added: whole_dtype,
                               or OAR_F32 for a half; another is OAR_E_DTYPE */
    int host_state; /* arrays on a GPU, with OAR_HOLD_HOST: 1 if shards and
                       their gradients are in memory of the host. So are the
                       optimizer's steps and state */
} oar_shards_opts;
OAR_OPTS_INIT(oar_shards_opts);

/* Spreads arrays over the ranks of the group. unit[i] is the unit of array i:
 * units are numbered from 0 in the order of their first use. The numbers are
 * rank 0's, zeros where it has no data; afterwards the caller's arrays are no
 * longer needed.
 *
 * All ranks call it, with the same counts, dtypes, units and options, which
 * are compared: if any rank has others, all get OAR_E_MISMATCH.
 * OAR_E_UNSUPPORTED: the wanted hold is not possible here, with the reason.
 * OAR_E_DEVICE: arrays are on several devices, or that hold is not possible on
 * GPUs. OAR_E_STATE inside a batch on the group. On failure nothing is left.
 * Borrows the group. */
#define oar_shards_create(...) oar_shards_create_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_shards_create_at(const char *file, int line,
                                        oar_group *group, int arrays,
                                        const oar_span *array, const int *unit,
                                        const oar_shards_opts *opts,
                                        oar_shards **shards);
/* Waits for what is under way. NULL is fine. */
OAR_API void oar_shards_destroy(oar_shards *shards);

OAR_API int oar_shards_units(const oar_shards *shards); /* 0 for NULL */
/* Returns the hold that is in use; never OAR_HOLD_AUTO. */
OAR_API oar_hold oar_shards_hold(const oar_shards *shards);

/* ---- whole arrays -------------------------------------------------------- */

/* Makes a unit whole until reshard is called as often as unshard was. Returns
 * when it is. */
#define oar_shards_unshard(shards, unit) \
    oar_shards_unshard_at(OAR_HERE, shards, unit)
OAR_API oar_status oar_shards_unshard_at(const char *file, int line,
                                         oar_shards *shards, int unit);
/* Begins to make a unit whole, and returns. The next unshard of it waits for
 * that; without one, publish drops it. */
#define oar_shards_prefetch(shards, unit) \
    oar_shards_prefetch_at(OAR_HERE, shards, unit)
OAR_API oar_status oar_shards_prefetch_at(const char *file, int line,
                                          oar_shards *shards, int unit);
/* OAR_E_STATE if the unit is not whole by an unshard. */
#define oar_shards_reshard(shards, unit) \
    oar_shards_reshard_at(OAR_HERE, shards, unit)
OAR_API oar_status oar_shards_reshard_at(const char *file, int line,
                                         oar_shards *shards, int unit);

/* Returns the whole array, to read, in whole_dtype where precision is mixed.
 * The span has no data while its unit is not whole. Writing to another rank's
 * part of a mapped array is a fault of the program (SIGSEGV). */
OAR_API oar_span oar_shards_array(const oar_shards *shards, int array);

/* ---- gradients ----------------------------------------------------------- */

/* Returns where the program writes the whole gradient of an array. The memory
 * is taken for all arrays of the unit at the first call in a pass, and holds
 * anything then: write it all, or set it to zero first. No data: an array
 * without a gradient, or, with an error in oar_last_error, no memory. */
OAR_API oar_span oar_shards_grad(oar_shards *shards, int array);

/* The gradient of an array is written; once a pass. The gradients of a unit are
 * reduce-scattered when the last of them is ready, while the program goes on.
 */
#define oar_shards_ready(shards, array) \
    oar_shards_ready_at(OAR_HERE, shards, array)
OAR_API oar_status oar_shards_ready_at(const char *file, int line,
                                       oar_shards *shards, int array);

/* Ends the pass: gradients that are not ready count as zero here. Returns when
 * the mean over all ranks is in the shards. It is added to what earlier passes
 * have left there since oar_shards_zero_grad. */
#define oar_shards_wait(shards) oar_shards_wait_at(OAR_HERE, shards)
OAR_API oar_status oar_shards_wait_at(const char *file, int line,
                                      oar_shards *shards);

/* Whether any rank had a gradient for the array in the last pass. */
OAR_API int oar_shards_used(const oar_shards *shards, int array);

/* With `weighted`: what this rank's gradients count from now on. 1 at first. */
OAR_API oar_status oar_shards_weigh(oar_shards *shards, double weight);

/* ---- shards -------------------------------------------------------------- */

/* What this rank has of one array: elements first .. first + count - 1. */
typedef struct oar_shard {
    size_t size;
    int array;
    size_t first, count;
    oar_span data;
    oar_span grad;      /* its mean gradient; no data: frozen */
    oar_tensor *tensor; /* data as a tensor of one dim; its gradient is bound to
                           grad, and is there if a pass has left one; borrowed
                         */
} oar_shard;
OAR_OPTS_INIT(oar_shard);

OAR_API int oar_shards_count(const oar_shards *shards); /* of this rank */
/* OAR_E_ARG out of range. */
OAR_API oar_status oar_shards_shard(const oar_shards *shards, int index,
                                    oar_shard *shard);
/* Returns the tensors of the shards that are not frozen, for optimizers, as
 * oar_adamw_create_over takes them. Borrowed. */
OAR_API oar_tensor *const *oar_shards_tensors(const oar_shards *shards,
                                              int *count);
/* Tells which elements of an array a rank has; count may become 0. */
OAR_API oar_status oar_shards_range(const oar_shards *shards, int array,
                                    int rank, size_t *first, size_t *count);

/* This rank has changed its shards, by a step or otherwise. All ranks call it
 * before the next unshard. OAR_E_STATE while a unit that was gathered is whole.
 */
#define oar_shards_publish(shards) oar_shards_publish_at(OAR_HERE, shards)
OAR_API oar_status oar_shards_publish_at(const char *file, int line,
                                         oar_shards *shards);

/* Forgets the gradients of this rank's shards: the next pass stores instead of
 * adding. NULL is fine. */
OAR_API void oar_shards_zero_grad(oar_shards *shards);

/* Bytes and times are those since the last publish. */
typedef struct oar_shards_stats {
    size_t size;
    int units;
    int64_t passes; /* that reduced, so far */
    int gathers;    /* of units */
    int reductions;
    uint64_t gathered_bytes; /* of whole arrays that this rank received or read
                                from its peers */
    uint64_t reduced_bytes;  /* of whole gradients */
    uint64_t shard_bytes;    /* of this rank's shards and their gradients, and
                                of whole arrays that are never released; what a
                                host's ranks have in common is divided by their
                                number */
    uint64_t whole_bytes; /* in buffers of gathered units and gradients: now */
    uint64_t most_bytes;  /* and at most so far */
    double exposed_s;     /* this thread waited for communication */
    double communication_s; /* while at least one gather or reduction of a unit
                               was under way */
} oar_shards_stats;
OAR_OPTS_INIT(oar_shards_stats);
OAR_API oar_status oar_shards_read_stats(const oar_shards *shards,
                                         oar_shards_stats *stats);

OAR_END_DECLS

#endif
