/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/shards/shards.h: the inside of shards.
 *
 *   flat.c          lays arrays out in flats and cuts them into parts; pure
 *   whole_buffer.c  memory for units and gradients while they are whole
 *   shard_gather.c  makes units whole: unshard, prefetch, reshard, publish
 *   shard_reduce.c  gradients: ready, reduce-scatter, wait
 *   shard_mean.c    from a reduction into the shards
 *   hold.c          decides where whole arrays are, and makes that memory
 *   busy_time.c     how long operations were under way
 *   shard_fill.c    the first numbers
 *   shard_gpu.c     arithmetic, fences and mapped memory on a GPU
 *   shard_offload.c whole arrays in memory of the host, used on a GPU
 *   shards.c        makes shards and answers questions
 *
 * A flat is the arrays of one unit that have one dtype and are all trained or
 * all frozen, one after the other. Flats are what is cut, gathered and reduced.
 * Part p of a flat belongs to the rank whose number in the group `reduce` is p.
 * That is its number in the caller's group, unless each host holds one copy:
 * the ranks with the same index on their hosts, which gather together, then
 * have adjacent parts, so that they gather one contiguous piece of the host's
 * copy.
 *
 * Where precision is mixed, whole flats and their gradients have another dtype
 * than shards. Both are cut at the same elements. Shards then always have
 * memory of their own (`apart`), and are converted when a unit is gathered or,
 * where it is always whole, when they are published.
 *
 * Of arrays on a GPU, whole arrays and gradients are in its memory. What a unit
 * needs is put on the current stream, or on others that this one is ordered
 * behind; so a buffer can be taken as soon as its last user is on the stream.
 * Shards are there too, or, with `host_state`, in memory of the host.
 */
#ifndef OARI_PARALLEL_SHARDS_SHARDS_H
#define OARI_PARALLEL_SHARDS_SHARDS_H

#include <pthread.h>

#include <oarsong/shards.h>
#include <oarsong/window.h>

/* ---- flat.c -------------------------------------------------------------- */

typedef struct oari_sharded_array {
    int unit, flat;
    size_t at, count; /* where it is in its flat, in elements */
    size_t row; /* cut only between rows of so many elements; 0: anywhere */
    int ready;  /* in this pass */
    int used;   /* some rank had a gradient, in the last one */
    char *name; /* or NULL */
} oari_sharded_array;

typedef struct oari_whole_buffer oari_whole_buffer;

typedef struct oari_flat {
    int unit;
    oar_dtype dtype;       /* of shards and their gradients */
    oar_dtype whole_dtype; /* of whole arrays and whole gradients */
    oar_dtype mean_dtype;  /* in which gradients are added */
    int frozen;
    size_t count;    /* elements, the gaps between arrays included */
    size_t *counts;  /* by part */
    size_t first;    /* of this rank's part */
    size_t whole_at; /* where it begins if all flats are whole, in bytes */
    size_t
        part_at; /* where this rank's part is in oar_shards.params, in bytes */
    size_t grad_at;           /* where it is in oar_shards.grads */
    oari_whole_buffer *whole; /* NULL: away, or always whole */
    oari_whole_buffer *grad;  /* NULL: no gradient is being written */
    oari_whole_buffer *mean;  /* of this rank's part, if it can be neither in
                                 the shards nor in grad */
    oari_whole_buffer *wide;  /* on a GPU: the gradient in mean_dtype */
    int first_shard, shards;  /* of this rank */
    oar_work *gather, *reduce;
} oari_flat;

typedef struct oari_shard_unit {
    char *name;       /* or NULL */
    int first, flats; /* flats first .. first + flats - 1 */
    int trained;      /* arrays that are not frozen */
    int users;        /* unshard minus reshard */
    int coming;       /* a gather is posted */
    int here;
    int ready;      /* arrays, in this pass */
    int open;       /* has memory for gradients */
    int replicated; /* the mean over replicas is posted */
} oari_shard_unit;

/* How flats are cut. */
typedef struct oari_flat_cut {
    int parts, mine; /* this rank's is the second */
    size_t page;     /* bytes */
} oari_flat_cut;

/* Cuts count elements into parts at multiples of grain, nearly equal: of the
 * grains that are left over, part `spare` gets the first, and so on. Returns
 * the `spare` for the next cut. end: by part. */
int oari_cut_evenly(size_t count, size_t grain, int parts, int spare,
                    size_t *end);

/* Assigns the arrays of s, whose unit, count, row, dtype and frozen (as given)
 * are known, to flats, and cuts those. Fills in s->flat, unit, array and the
 * sizes of all whole flats and of this rank's parts. */
oar_status oari_flats_make(oar_shards *s, const oar_span *array,
                           const unsigned char *frozen,
                           const oari_flat_cut *cut);

/* Gives the elements of an array that part p has. */
void oari_flat_range(const oar_shards *s, int array, int part, size_t *first,
                     size_t *count);

/* Returns how many elements of a flat lie before part p. */
size_t oari_flat_part_first(const oari_flat *flat, int part);

/* ---- whole_buffer.c ------------------------------------------------------ */

struct oari_whole_buffer {
    oari_whole_buffer *next;
    void *data;
    size_t bytes;
    int taken;
    oar_window *window;   /* NULL: shared memory of this rank */
    oar_work *unread;     /* done when no rank of the host reads it any more */
    oar_storage *storage; /* on a GPU: that data is in; else NULL */
    void *busy; /* an event: another stream uses it until then; or NULL */
};

/* Buffers, given back and taken again. There are never more than were in use at
 * once. */
typedef struct oari_buffer_pool {
    oar_group *local;  /* buffers are windows of it, which all of its ranks take
                         and give back in the same order; NULL: not shared */
    oar_device device; /* of the buffers */
    oari_whole_buffer *first;
    uint64_t *held, *most; /* bytes of buffers, now and at most */
} oari_buffer_pool;

oar_status oari_buffer_take(oari_buffer_pool *pool, size_t bytes,
                            oari_whole_buffer **buffer);
/* NULL is fine. */
oar_status oari_buffer_give_back(oari_buffer_pool *pool,
                                 oari_whole_buffer *buffer);
void oari_buffers_free(oari_buffer_pool *pool);

/* For tests: buffers that are given back are filled with 0xff, so that numbers
 * that are read or kept too long are not numbers. */
extern int oari_shards_poison;

/* ---- busy_time.c --------------------------------------------------------- */

typedef struct oari_busy_time {
    pthread_mutex_t lock; /* for those that write */
    _Atomic int under_way;
    _Atomic int64_t since_ns, ns; /* since there is one; in all before that */
} oari_busy_time;

/* An operation begins. */
void oari_busy_begin(oari_busy_time *t);
/* It has been posted, with this status, and goes on as `work`; NULL: it has
 * ended. Returns the status, or why the end cannot be noticed. */
oar_status oari_busy_end(oari_busy_time *t, oar_status status, oar_work *work);
/* Returns the time in seconds. */
double oari_busy_read(const oari_busy_time *t);
void oari_busy_clear(oari_busy_time *t);

/* ---- shards.c ------------------------------------------------------------ */

typedef struct oari_offload oari_offload;

struct oar_shards {
    oar_device device;       /* of whole arrays and whole gradients */
    oar_device shard_device; /* of shards: the same, or the cpu */
    int one_gpu;             /* all ranks are on the GPU that this one is on */
    oar_storage *fence;      /* one number, for fences of a GPU; or NULL */
    oari_offload *offload;   /* NULL: whole arrays are not in the host's */
    int scales;              /* the GPU's engine has no weighted mean */
    double factor;           /* then: of this rank's gradients, in this pass */
    int64_t factor_pass;     /* which pass has found it: its number and 1 */
    oar_group *reduce;       /* all ranks, by part */
    oar_group
        *gather_group; /* the ranks that this one gathers with; NULL: alone */
    oar_group *local;  /* the ranks that have its copy of the arrays in common;
                          NULL: none */
    oar_group *replicas; /* those of the options, in a group that can be ended
                            alone; or NULL */
    oar_shards_opts opts;
    int ranks, part;  /* part: this rank's */
    int gather_first; /* the first part of its gather group */
    int *part_of;     /* by rank of the caller's group */
    int resident;     /* arrays are always whole, in `whole` */
    int apart;        /* shards have memory of their own, of another dtype */
    int arrays, flats, units, shards, trained_shards;
    oari_sharded_array *array;
    oari_flat *flat;
    oari_shard_unit *unit;
    oar_shard *shard;
    oar_tensor **tensor; /* of the shards that are not frozen */
    size_t whole_bytes, part_bytes, grad_bytes;
    oar_storage *whole;  /* all whole arrays, if resident; else NULL */
    oar_storage *params; /* this rank's parts; the same as `whole` if that is
                            there and shards are not apart */
    oar_storage *grads;  /* of this rank's parts */
    oar_window *window;  /* that `whole` is in; or NULL */
    oari_buffer_pool arrays_pool, grads_pool;
    /* the order in which units were gathered since the last publish */
    int *gathered, *gathered_before, gathers, gathers_before, position;
    /* reductions */
    int *order;           /* units, as they are reduced */
    int posted, settled;  /* of the order: begun; done, and given to shards */
    int *came, completed; /* units, as they got ready here */
    int in_pass, ending;
    int most_under_way; /* reductions, when the next unit gets memory */
    int impatient; /* in this pass a rank came late: do not wait for memory */
    int uneven; /* ranks had gradients for different arrays in the last pass */
    unsigned char *flags; /* by array: 1 a gradient; then: 1 none */
    oar_work *flags_work;
    double weight, group_weight;
    oar_work *weight_work;
    int64_t passes;
    oar_error fault; /* status OAR_OK: none */
    oar_shards_stats stats;
    oari_busy_time busy; /* since the last publish */
};

/* Returns the unit's name, or "unit N". */
typedef struct oari_unit_name {
    char text[64];
} oari_unit_name;
oari_unit_name oari_shards_unit_name(const oar_shards *s, int unit);

/* Returns the fault of shards that are broken, else OAR_OK. */
oar_status oari_shards_check(const oar_shards *s, const char *call);

/* Breaks the shards, on all ranks: the last error is their fault from now on.
 * Returns its status. */
oar_status oari_shards_break(oar_shards *s);

/* What a collective is about, for oar_call_opts.key. */
static inline uint64_t oari_shards_key(int kind, int64_t index)
{
    return (uint64_t)kind << 48 | (uint64_t)(index + 1);
}

/* ---- shard_mean.c -------------------------------------------------------- */

/* Returns where the mean of this rank's part is left by reductions. */
oar_span oari_mean_of(const oar_shards *s, const oari_flat *flat);
/* Gives the mean memory of its own where it needs that. */
oar_status oari_mean_open(oar_shards *s, oari_flat *flat);
/* Gives the mean, where it is not in the shards, to them. */
oar_status oari_mean_give(oar_shards *s, oari_flat *flat);

/* Returns whether earlier passes have left gradients in the shards of a flat.
 */
int oari_flat_has_grads(const oar_shards *s, const oari_flat *flat);

/* Adds the mean of a flat to the gradients of its shards, both on the host. */
void oari_shards_add_mean(const oar_shards *s, const oari_flat *flat,
                          oar_span mean);

/* Returns where a flat is while its unit is whole; else NULL. */
void *oari_shards_whole(const oar_shards *s, const oari_flat *flat);

/* Gives a unit memory for the gradients of a pass, if it has none. */
oar_status oari_shards_open_grads(oar_shards *s, int unit);

/* Returns the span of this rank's part of a flat, in s->params, and where that
 * is, in bytes. */
oar_span oari_shards_part(const oar_shards *s, const oari_flat *flat);
size_t oari_shards_part_at(const oar_shards *s, const oari_flat *flat);

/* ---- shard_fill.c -------------------------------------------------------- */

/* Writes the first numbers and publishes them. A collective. */
oar_status oari_shards_fill(oar_shards *s, const oar_span *array);

/* ---- shard_gpu.c --------------------------------------------------------- */

static inline int oari_shards_on_gpu(const oar_shards *s)
{
    return s->device.kind == OAR_CUDA;
}

static inline oar_span oari_span_on(oar_device device, void *data, size_t count,
                                    oar_dtype dtype)
{
    oar_span span = oar_span_of(data, count, dtype);

    span.device = device;
    return span;
}

/* Elements in a storage, from byte `at` on. */
typedef struct oari_numbers {
    oar_storage *storage;
    size_t at, count;
    oar_dtype dtype;
} oari_numbers;

/* Copy, add, and multiply numbers, on any device in the order of its stream.
 * The first two convert. */
oar_status oari_numbers_copy(const oari_numbers *to, const oari_numbers *from);
oar_status oari_numbers_add(const oari_numbers *to, const oari_numbers *from);
oar_status oari_numbers_scale(const oari_numbers *of, double factor);

/* Returns this rank's part of a flat: in the shards, and in whole memory. */
oari_numbers oari_part_numbers(const oar_shards *s, const oari_flat *flat);
oari_numbers oari_whole_numbers(const oar_shards *s, const oari_flat *flat);

/* Makes a storage of zeros on a device. */
oar_status oari_shards_zeros(oar_device device, size_t bytes,
                             oar_storage **made);

/* Checks that arrays are all on the cpu or all on one GPU, and takes that. */
oar_status oari_gpu_find_device(oar_shards *s, const oar_span *array);

/* Learns whether all ranks are on one GPU. A collective. */
oar_status oari_gpu_compare(oar_shards *s, oar_group *group);

/* Waits until a work has run. On a GPU the current stream waits; the host waits
 * too, for at most the timeout, unless that is below 0. */
oar_status oari_shards_await(const oar_shards *s, oar_work *work,
                             int64_t timeout_ms);

/* What is on the streams of all ranks by now runs before what any of them puts
 * on its current stream from now on. The host does not wait. */
oar_status oari_gpu_fence(oar_shards *s);

/* Returns whether this thread records a step on their GPU (replay.h). */
int oari_shards_are_recorded(const oar_shards *s);

/* Makes s->whole one copy on the GPU for all ranks. A collective; on all ranks,
 * or on none. */
oar_status oari_gpu_map_whole(oar_shards *s);

/* Posts the reduction of a flat on a GPU. */
oar_status oari_gpu_post_reduce(oar_shards *s, oari_flat *flat, oar_span mean,
                                const oar_call_opts *opts);

/* ---- shard_offload.c ----------------------------------------------------- */

/* Makes the memory of the host, one copy for all ranks, and pins it. A
 * collective; on all ranks, or on none. */
oar_status oari_offload_open(oar_shards *s);
void oari_offload_close(oar_shards *s);

/* Begins to copy a unit to the GPU, beside the current stream; and orders that
 * stream behind it. */
oar_status oari_offload_begin(oar_shards *s, int unit);
oar_status oari_offload_finish(const oar_shards *s, int unit);

/* Copies this rank's parts to the host's memory, for all ranks. */
oar_status oari_offload_publish(oar_shards *s);

/* With host_state: makes the gradients of shards, pinned; begins to copy the
 * mean of a flat, which is in flat->mean, to them; and waits for all of these
 * copies. / */
oar_status oari_offload_make_grads(oar_shards *s);
oar_status oari_offload_land(oar_shards *s, oari_flat *flat);
oar_status oari_offload_wait(oar_shards *s);

/* ---- hold.c -------------------------------------------------------------- */

/* Decides the hold if the options leave it open. OAR_E_UNSUPPORTED, on all
 * ranks: not possible with these hosts. */
oar_status oari_hold_choose(oar_shards *s, const oar_group *group);

/* Says which part each rank has. */
oar_status oari_hold_number_parts(oar_shards *s, const oar_group *group);

/* Makes the groups, and the memory that ranks have in common. A collective.
 * OAR_E_UNSUPPORTED, on all ranks: the backend shares no memory. */
oar_status oari_hold_open(oar_shards *s, oar_group *group);
void oari_hold_close(oar_shards *s); /* ends the groups */

/* Keeps this rank from writing to the mapped parts of others. */
oar_status oari_hold_protect(oar_shards *s);

/* ---- shard_gather.c, shard_reduce.c -------------------------------------- */

/* Gathers an array from the shards of all ranks to `to`, in their dtype, which
 * is not that of whole arrays where precision is mixed. A collective. */
oar_status oari_shards_gather_array(oar_shards *s, int array, void *to);

/* Waits for what is posted and gives the memory back. */
void oari_gathers_end(oar_shards *s);
void oari_reductions_end(oar_shards *s);

#endif
