/* SPDX-License-Identifier: Apache-2.0 */
/* conform.h: the parts of `oarsong conform`.
 *
 * A trial is one cell of the matrix: an operation with everything that
 * specifies it. Every rank goes through the same trials in the same order and
 * records the results in its row of the ledger, memory that all ranks and the
 * process that started them share. Nothing of the library takes part in
 * judging: inputs come from a formula that every rank can evaluate for every
 * other, the wanted results are computed from it here, and results of different
 * ranks are compared by the starting process, through hashes in the ledger.
 */
#ifndef OARSONG_CONFORM_H
#define OARSONG_CONFORM_H

#include <stdatomic.h>
#include <stdint.h>

#include <oarsong/oarsong.h>

#include "numbers.h"

enum {
    CONFORM_MAX_RANKS = 64,
    CONFORM_CELLS = 1 << 20, /* trials in one run */
    CONFORM_TEXTS = 8,       /* wrong ones that a rank describes */
    CONFORM_TEXT = 500,
    CONFORM_GUARD = 64 /* bytes on either side of a buffer */
};

/* name, text, whether it has a line for every dtype */
#define CONFORM_KIND_LIST(X)                     \
    X(BARRIER, "barrier", 0)                     \
    X(MONITORED_BARRIER, "monitored_barrier", 0) \
    X(BROADCAST, "broadcast", 1)                 \
    X(ALL_REDUCE, "all_reduce", 1)               \
    X(REDUCE, "reduce", 1)                       \
    X(GATHER, "gather", 1)                       \
    X(SCATTER, "scatter", 1)                     \
    X(ALL_GATHER, "all_gather", 1)               \
    X(REDUCE_SCATTER, "reduce_scatter", 1)       \
    X(ALL_TO_ALL, "all_to_all", 1)               \
    X(GATHER_V, "gather_v", 1)                   \
    X(SCATTER_V, "scatter_v", 1)                 \
    X(ALL_GATHER_V, "all_gather_v", 1)           \
    X(REDUCE_SCATTER_V, "reduce_scatter_v", 1)   \
    X(ALL_TO_ALL_V, "all_to_all_v", 1)           \
    X(BROADCAST_BYTES, "broadcast_bytes", 0)     \
    X(GATHER_BYTES, "gather_bytes", 0)           \
    X(SCATTER_BYTES, "scatter_bytes", 0)         \
    X(ALL_GATHER_BYTES, "all_gather_bytes", 0)   \
    X(SEND_RECV, "send_recv", 1)                 \
    X(SENDRECV, "sendrecv", 1)                   \
    X(TAGS, "tags", 0)                           \
    X(WILDCARDS, "wildcards", 0)                 \
    X(PROBE, "probe", 0)                         \
    X(WRONG_SIZE, "wrong_size", 0)               \
    X(BATCH, "batch", 0)                         \
    X(IN_FLIGHT, "in_flight", 0)                 \
    X(GROUPS, "groups", 0)

typedef enum conform_kind {
#define X(name, text, typed) K_##name,
    CONFORM_KIND_LIST(X)
#undef X
        KINDS
} conform_kind;

/* Where the buffers are. MIXED: the last rank's are private. CROSSED: inputs
 * private, outputs shared. */
typedef enum conform_memory {
    SHARED,
    PRIVATE,
    MIXED,
    CROSSED,
    WHERES
} conform_memory;

/* How the call is made. PREPARED: once, started twice. BATCHED: as one of
 * several. SYNCHRONOUS: messages only, a send that waits for its receive. */
typedef enum conform_call {
    BLOCKING,
    ASYNC,
    PREPARED,
    BATCHED,
    SYNCHRONOUS
} conform_call;

typedef struct conform_trial {
    conform_kind kind;
    oar_dtype dtype;
    oar_reduce_op_kind op;
    size_t count; /* elements of a buffer, or of one part */
    int root;     /* or the source of a message */
    int to;       /* of a message */
    conform_memory where;
    conform_call how;
    int in_place, canonical;
    const char *of; /* which group: "world", "dup", ... */
} conform_trial;

typedef enum conform_result {
    NOT_RUN,
    RIGHT,
    CANNOT, /* the backend says so */
    WRONG
} conform_result;

typedef struct conform_record {
    uint64_t hash; /* of a result that all ranks must share; 0: none */
    float ulp;
    uint8_t result;
    char of[16]; /* t.of is a pointer of the process that wrote it */
    conform_trial t;
} conform_record;

/* One rank's row. */
typedef struct conform_row {
    size_t last[2]; /* cell of each pass */
    int texts;
    char text[CONFORM_TEXTS][CONFORM_TEXT];
    conform_record note[CONFORM_CELLS];
} conform_row;

typedef struct conform_ledger {
    _Atomic int arrived; /* for barriers: calls begun by all ranks so far */
    conform_row row[];   /* one for each rank */
} conform_ledger;

typedef struct conform_settings {
    const char *backend, *algorithm;
    const char *hosts; /* NULL: all ranks on one */
    int host[CONFORM_MAX_RANKS];
    const char *file; /* of the ledger; NULL: we start the ranks */
    int rank;         /* of a job; 0 where we start the ranks */
    int ranks, quick, json, only_kind, only_dtype; /* -1: all */
    int gpu;                                       /* buffers on a GPU */
    int tight; /* the pass with thresholds that small sizes cross */
    uint64_t seed;
    uint32_t can; /* the backend's OAR_CAN_ bits */
    conform_ledger *ledger;
} conform_settings;

/* One rank at work. */
typedef struct conform_context {
    conform_settings *s;
    oar_group *world;
    int rank, ranks;
    conform_row *row;
    size_t cell; /* the trial at hand */
    size_t turn; /* which variants come next */
    size_t room; /* bytes of each of the areas below */
    unsigned char *shared, *private;
    unsigned char *on_gpu; /* as much on a GPU: for each of them; or NULL */
    oar_device gpu;
    void *stream, *other; /* on which calls are made, and results fetched */
    int in_barriers;      /* barriers this rank has gone through */
    int broken;           /* the group is; nothing more can be tried */
} conform_context;

/* A trial on one group, with its buffers. */
typedef struct conform_job {
    conform_trial t;
    const conform_context *d;
    oar_group *group;
    int rank, size; /* in that group */
    uint64_t seed;
    oar_span in, out;
    unsigned char *guarded[2]; /* areas with guards around them */
    size_t guarded_bytes[2];
    size_t in_counts[CONFORM_MAX_RANKS], out_counts[CONFORM_MAX_RANKS];
} conform_job;

/* ---- conform_value.c: inputs by formula ---------------------------------- */

int value_is_float(oar_dtype dtype);
int value_is_signed(oar_dtype dtype);
int value_is_scaled(oar_reduce_op_kind op); /* has factors */
int value_is_pick(oar_reduce_op_kind op);   /* min or max */

/* Whether the operator makes sense on the dtype, as span.h says. */
int value_makes_sense(oar_reduce_op_kind op, oar_dtype dtype);

/* The factor of a rank under premul_sum, its weight under weighted_mean. */
double value_factor(const conform_job *j, int rank);

/* Elements are made and compared a block at a time: floats that are combined as
 * f64, which has all of them; integers, and bits, widened. */
enum { VALUE_BLOCK = 256 };

typedef union value_block {
    double f[VALUE_BLOCK];
    uint64_t u[VALUE_BLOCK];
} value_block;

/* That rank's inputs from element `start` on, at most a block. */
void value_floats(const conform_job *j, int rank, size_t start, size_t n,
                  double *f);
void value_integers(const conform_job *j, int rank, size_t start, size_t n,
                    uint64_t *u);
void value_widen(oar_dtype dtype, uint64_t *u, size_t n); /* what fits */
void value_store_integers(oar_dtype dtype, const uint64_t *u, size_t n,
                          unsigned char *to);

/* Writes them as elements, any number. */
void value_fill(const conform_job *j, int rank, size_t start, size_t count,
                void *to);

/* The first of n elements that differs; n if none does. */
size_t value_first_other(const unsigned char *got, const unsigned char *want,
                         size_t n, size_t size);

/* The first of the elements at data that is not that rank's input from `start`
 * on; count if all are. *want is what it should be. */
size_t value_find_other(const conform_job *j, int rank, size_t start,
                        size_t count, const void *data, uint64_t *want);

/* An element as text. */
void value_show(oar_dtype dtype, const void *element, char text[48]);

/* ---- conform_reduce.c: what a reduction must give ------------------------ */

/* The first that is not the reduction of all ranks' elements from `start` on;
 * count if all are. *worst is how far the others are from the exact result, in
 * units of the last place. */
size_t value_find_wrong(const conform_job *j, size_t start, size_t count,
                        const void *data, uint64_t *want, double *worst);

/* ---- conform_job.c: buffers, calls, comparison --------------------------- */

/* Lays out and fills the buffers of t on that group, in slot `slot` of `slots`
 * of the context's areas. */
void job_prepare(conform_context *d, conform_job *j, const conform_trial *t,
                 oar_group *group, int slot, int slots);
void job_fill(conform_job *j); /* again, for the next start */
oar_status job_post(const conform_job *j, const oar_call_opts *opts,
                    oar_work **work);

/* Compares what is in the buffers and notes what is wrong. */
void job_check(conform_context *d, const conform_job *j);

/* Does t on the group from end to end, and notes it as one cell. */
void job_run(conform_context *d, const conform_trial *t, oar_group *group,
             const char *of);

/* Whether the kind combines, has a root, has parts of different sizes. */
int kind_reduces(conform_kind k);
int kind_rooted(conform_kind k);
int kind_ragged(conform_kind k);
int kind_can_be_in_place(conform_kind k);

/* ---- conform_check.c: comparing buffers with the formula ----------------- */

/* count elements at data are those of rank `source` from `start` on; or, if
 * source is below 0, the reduction over all ranks. */
void check_run(conform_context *d, const conform_job *j, const void *data,
               size_t count, int source, size_t start);
void check_guards(conform_context *d, const conform_job *j);
void check_hash(conform_context *d, const void *data, size_t bytes);

/* ---- conform_record.c: the ledger ---------------------------------------- */

/* Begins a cell; 0 if it is not to be tried. */
int record_begin(conform_context *d, const conform_trial *t);
void record_wrong(conform_context *d, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void record_error(conform_context *d, double ulp);
void record_cannot(conform_context *d);

/* What a call returned: 1 if the trial can go on. UNSUPPORTED is "cannot". */
int record_status(conform_context *d, oar_status status, const char *what);
/* The same, but this failure is what is wanted. */
void record_wanted(conform_context *d, oar_status status, oar_status wanted,
                   const char *what);
/* The cell as text. */
void record_describe(const conform_trial *t, char *text, size_t bytes);
const char *kind_name(conform_kind k);
int kind_typed(conform_kind k);

/* ---- conform_gpu.c: the same on device memory -----------------------------
 * Buffers are filled and compared on the host; each has its like on the GPU,
 * guards included. */

oar_status gpu_open(conform_context *d);
/* What the backend can do with device memory, into s->can. */
oar_status gpu_abilities(conform_settings *s);
void gpu_close(conform_context *d);
/* The buffers of the job, to the GPU and back; on the host: nothing. */
void gpu_bring(const conform_job *j);
void gpu_fetch(const conform_job *j);
/* The span that a call is given. */
oar_span gpu_span(const conform_job *j, oar_span span);

/* ---- what is tried ------------------------------------------------------- */

void conform_collectives(conform_context *d, oar_group *group, const char *of,
                         int few);
void conform_barriers(conform_context *d, oar_group *group, const char *of);
void conform_bytes(conform_context *d, oar_group *group, const char *of);
void conform_messages(conform_context *d);
void conform_matching(conform_context *d);
void conform_groups(conform_context *d);
void conform_in_flight(conform_context *d);

/* ---- conform_report.c ---------------------------------------------------- */

/* Prints the table and returns the exit code. failure: why the ranks ended
 * before their time, or NULL. */
int conform_report(const conform_settings *s, const char *failure);

#endif
