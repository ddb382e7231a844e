/* SPDX-License-Identifier: Apache-2.0 */
/* reducer.h: arrays of one's own, averaged over all ranks while they are made.
 *
 * What DDP does for the gradients of a module, for programs that have arrays
 * and no tensor of ours: say which arrays there are, write them, say that one
 * is ready; the arrays go in buckets, each reduced as soon as its last array is
 * ready, while the program writes the next. Wait at the end of each pass.
 *
 *     oar_reducer_create(group, 2, arrays, NULL, &r);
 *     for (...) {
 *         write(oar_reducer_span(r, 1).data); oar_reducer_ready(r, 1);
 *         write(oar_reducer_span(r, 0).data); oar_reducer_ready(r, 0);
 *         oar_reducer_wait(r);                       the means are there
 *     }
 *
 * Threads: one reducer by one thread at a time.
 */
#ifndef OARSONG_REDUCER_H
#define OARSONG_REDUCER_H

#include <oarsong/collective.h>

OAR_BEGIN_DECLS

typedef struct oar_reducer oar_reducer;

/* A bucket as a hook sees it: its numbers, all of which are to become the mean
 * over ranks, and the arrays in it. */
typedef struct oar_bucket {
    size_t size;
    int index, buckets; /* this one, of so many */
    oar_span data;      /* what is reduced, gaps and flags included */
    int arrays;
    const int *array; /* which ones, in the order they lie there */
    const size_t *at; /* where each begins, in elements */
    const size_t *count;
    double weight;               /* of this rank's numbers in the mean */
    int weighted;                /* or all ranks weigh the same */
    int canonical;               /* as the reducer's options say */
    struct oar_storage *storage; /* that data is all of: for oar_view_of */
} oar_bucket;

/* Another way to reduce buckets than an all_reduce of each. */
typedef struct oar_reduce_hook {
    size_t size;
    void *arg;
    /* Begins to reduce it: posts operations on the group, in the same order on
     * all ranks, and may give one to wait for in *work. Must not wait. */
    oar_status (*start)(void *arg, oar_group *group, const oar_bucket *bucket,
                        oar_work **work);
    /* (optional) When that is done: leaves the mean in bucket->data. May wait;
     * called bucket by bucket, in their order. */
    oar_status (*finish)(void *arg, oar_group *group, const oar_bucket *bucket);
    /* (optional) The reducer is destroyed, or its buckets have been cut again
     * (then `arg` stays in use). */
    void (*forget)(void *arg, int for_good);
} oar_reduce_hook;
OAR_OPTS_INIT(oar_reduce_hook);

/* Hooks that come with the library. arg is theirs.
 * Half: the numbers travel as OAR_F16 or OAR_BF16, are summed in f32 and
 * rounded once. */
OAR_API oar_status oar_hook_half(oar_dtype dtype, oar_reduce_hook *hook);

typedef struct oar_power_sgd_opts {
    size_t size;
    int rank;      /* 0 means 1 */
    int64_t start; /* passes that are reduced in full first; 0 means 10,
                      below 0 none */
    double least;  /* only matrices that become this many times smaller; 0
                      means 2 */
    uint64_t seed;
    int no_feedback; /* do not keep what was lost for the next pass */
} oar_power_sgd_opts;
OAR_OPTS_INIT(oar_power_sgd_opts);

/* PowerSGD: a matrix travels as the product of two thin ones; what that loses
 * is added to the next pass. An array counts as a matrix by shape[i] = {rows,
 * columns} (0 rows: none). The shapes are copied. */
OAR_API oar_status oar_hook_power_sgd(int arrays, const int64_t (*shape)[2],
                                      const oar_power_sgd_opts *opts,
                                      oar_reduce_hook *hook);

typedef struct oar_reducer_opts {
    size_t size;
    size_t bucket_bytes; /* SIZE_MAX: one for each dtype. 0 means 25 MiB; but
                            where operations overlap (oar_group_overlaps) no
                            more than a sixteenth of all, or 256 KiB */
    size_t first_bucket_bytes; /* of the one that is ready first, if that is
                                  less. 0 means 1 MiB; if bucket_bytes is 0,
                                  too, only where operations overlap */
    int reorder; /* cut again after the first pass, in the order in which arrays
                    got ready on rank 0: spans move then */
    int weighted;                /* a weighted mean, see oar_reducer_weigh */
    int static_graph;            /* the same arrays are ready in every pass */
    const oar_reduce_hook *hook; /* copied; the reducer's from then on */
    const char *const *names;    /* of the arrays, for messages; copied */
    int canonical; /* add in the order of ranks whatever it costs, so that the
                      bits do not depend on buckets, backend or algorithm */
} oar_reducer_opts;
OAR_OPTS_INIT(oar_reducer_opts);

/* All ranks call it, as they call a collective, with the same counts, dtypes
 * (floats), names and options, which are compared: if any rank has others, all
 * get OAR_E_MISMATCH, which names both sides, and the group goes on. An array
 * with data is the caller's: copied into its bucket when it is ready, and out
 * of it at the end. One without data lives in its bucket. Arrays are expected
 * to get ready last one first. Borrows the group.
 *
 * All arrays are on one device (array[i].device), else OAR_E_DEVICE. On a GPU
 * everything is in the order of the thread's current stream: oar_reducer_ready
 * says that the array is written by what is there, oar_reducer_wait returns
 * when the means are ordered on it, and the host does not wait for the GPU; the
 * statistics have no times. In a step that is replayed (replay.h) a pass is
 * replayed, too, with the arrays that were ready when it was recorded. */
#define oar_reducer_create(...) oar_reducer_create_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_reducer_create_at(const char *file, int line,
                                         oar_group *group, int arrays,
                                         const oar_span *array,
                                         const oar_reducer_opts *opts,
                                         oar_reducer **reducer);
/* Waits for what is under way. NULL is fine. */
OAR_API void oar_reducer_destroy(oar_reducer *reducer);

/* Where the numbers of an array are: in its bucket, or the caller's. */
OAR_API oar_span oar_reducer_span(const oar_reducer *reducer, int array);

/* The array is written. Once a pass. */
#define oar_reducer_ready(reducer, array) \
    oar_reducer_ready_at(OAR_HERE, reducer, array)
OAR_API oar_status oar_reducer_ready_at(const char *file, int line,
                                        oar_reducer *reducer, int array);

/* Ends the pass: arrays that were not ready count as zero here; returns when
 * all means are there. */
#define oar_reducer_wait(reducer) oar_reducer_wait_at(OAR_HERE, reducer)
OAR_API oar_status oar_reducer_wait_at(const char *file, int line,
                                       oar_reducer *reducer);

/* Whether the array was ready on any rank in the last pass. */
OAR_API int oar_reducer_used(const oar_reducer *reducer, int array);

/* This rank's weight from now on (tokens, samples; 0: its numbers do not
 * count), where the mean is weighted. 1 at first. */
OAR_API oar_status oar_reducer_weigh(oar_reducer *reducer, double weight);

/* What the last pass did. */
typedef struct oar_reducer_stats {
    size_t size;
    int buckets;
    int64_t passes;         /* so far */
    uint64_t reduced_bytes; /* by this rank's buckets */
    uint64_t copied_bytes;  /* between the caller's arrays and buckets */
    double communication_s; /* while at least one bucket was under way */
    double exposed_s;       /* of that, in oar_reducer_wait */
} oar_reducer_stats;
OAR_OPTS_INIT(oar_reducer_stats);
OAR_API oar_status oar_reducer_read_stats(const oar_reducer *reducer,
                                          oar_reducer_stats *stats);

OAR_END_DECLS

#endif
