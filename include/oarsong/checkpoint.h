/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: the state of a run on a disk, and back, on any number of ranks.
 *
 *     oar_state_create(&state);
 *     oar_state_add_module(state, network, NULL);
 *     oar_state_add_optim(state, adam, network, NULL);
 *     oar_state_add_loader(state, "train", loader);
 *     oar_state_add_i64(state, "step", &step);
 *     oar_checkpoint_open(world, "runs/a", NULL, &runs);
 *     status = oar_checkpoint_load(runs, state, OAR_NEWEST, NULL);
 *     if (status == OAR_E_NOT_FOUND)
 *         oar_clear_error();                       a fresh start
 *     ... every hundredth step:
 *     oar_checkpoint_save(runs, state, step, NULL);
 *
 * A folder holds generations, one for each step that was saved. A generation
 * gets its name by one rename, after every byte of it was synced: so whatever
 * happens to any process, or to the power, the newest complete one is whole and
 * is found. What several ranks hold is written once, by the one of them that
 * has least to write. Every block of every file has a checksum.
 *
 * A generation says nothing about the ranks that will load it: each names what
 * it wants of which tensor, and reads those bytes only.
 *
 * All ranks of the group call open, save, load and close, in the same order. A
 * failure on any rank is the failure of all: every rank gets the record of the
 * lowest rank that failed. It leaves the group whole, and older generations as
 * they were. Operations run on a duplicate of the group. A rank that dies ends
 * the call on the others (OAR_E_PEER). One that writes may take any time; one
 * that stops to write ends it after a minute and the group's timeout.
 *
 * Threads: one checkpoint by one thread at a time. A child made by fork has
 * none: OAR_E_STATE there.
 */
#ifndef OARSONG_CHECKPOINT_H
#define OARSONG_CHECKPOINT_H

#include <oarsong/data.h>
#include <oarsong/group.h>
#include <oarsong/module.h>
#include <oarsong/optim.h>
#include <oarsong/zero.h>

OAR_BEGIN_DECLS

/* ---- what is saved --------------------------------------------------------
 * A state is a list of names for things that others own. It borrows them, and
 * keeps references to tensors and modules. The names must be the same in the
 * run that loads. */
typedef struct oar_state oar_state;
OAR_API oar_status oar_state_create(oar_state **state);
OAR_API void oar_state_destroy(oar_state *state); /* NULL is fine */

/* Which part of a whole tensor an array is. Ranks that give the same part of
 * the same name hold the same numbers (a replica). Parts of a name that overlap
 * without being the same are OAR_E_ARG at the save, with both ranks; so are
 * parts that leave a gap. */
typedef struct oar_place {
    size_t size;
    oar_shape whole;
    int64_t offset[OAR_MAX_DIMS]; /* of its first element; the extent is the
                                     array's own shape */
    int flat; /* instead: elements first, first + 1, ... of the whole, row by
                 row, as many as the array has */
    int64_t first;
} oar_place;
OAR_OPTS_INIT(oar_place);

/* Gives the part of rank `rank` of `ranks` when a tensor is cut along a dim
 * into nearly equal parts, the first ones larger, and that part's shape.
 * OAR_E_RANK, OAR_E_SHAPE. */
OAR_API oar_status oar_place_of_rank(oar_shape whole, int dim, int rank,
                                     int ranks, oar_place *place,
                                     oar_shape *part);

/* section: "model", "optim" or a name of one's own (letters, digits, '-', '_';
 * up to 64): a folder of the generation. place NULL: all of it, the same on
 * every rank that adds it. Names are UTF-8, 1 to 1000 bytes, each once in its
 * section on each rank: OAR_E_ARG. */
OAR_API oar_status oar_state_add_tensor(oar_state *state, const char *section,
                                        const char *name, oar_tensor *tensor,
                                        const oar_place *place);
/* The same for an array of one's own, which must live as long as the state. */
OAR_API oar_status oar_state_add_span(oar_state *state, const char *section,
                                      const char *name, oar_span span,
                                      oar_shape shape, const oar_place *place);

/* Adds all parameters and buffers, as "model", under their dotted names behind
 * `prefix` (NULL: none), and the counters of its layers (dropout). A wrapper of
 * DDP is looked through: names are those of the module inside. A parameter that
 * is there twice is saved once, with its other name as an alias. Ranks may add
 * different modules (stages): the checkpoint has all. Counters may differ
 * between ranks; at another number of ranks they stay apart. */
OAR_API oar_status oar_state_add_module(oar_state *state, oar_module *module,
                                        const char *prefix);
/* Adds steps, learning rate and, as "optim", the state of every parameter,
 * named as PyTorch does: "state.NAME.exp_avg". NAME is what `named` calls the
 * parameter, behind prefix; one that it does not have is OAR_E_NOT_FOUND. At
 * the load an optimizer of another kind is OAR_E_STATE, and so is one with
 * other numbers, but for the learning rate, which is loaded. */
OAR_API oar_status oar_state_add_optim(oar_state *state, oar_optim *optim,
                                       const oar_module *named,
                                       const char *prefix);
/* The same over the pieces of a sharded optimizer. Any number of ranks loads
 * it, also into an optimizer that is not sharded, and the other way round. */
OAR_API oar_status oar_state_add_zero(oar_state *state, oar_zero *zero,
                                      const oar_module *named,
                                      const char *prefix);
/* Adds where a loader is in its data: epoch and sample, the same for all ranks.
 * At the load the loader starts there, whatever its number of ranks and its
 * batch. Another data set, seed or order is OAR_E_STATE. */
OAR_API oar_status oar_state_add_loader(oar_state *state, const char *name,
                                        oar_loader *loader);
OAR_API oar_status oar_state_add_scaler(oar_state *state, const char *name,
                                        oar_scaler *scaler);
/* Numbers of one's own: read at the save, written at the load. The same on all
 * ranks, else OAR_E_MISMATCH at the save. */
OAR_API oar_status oar_state_add_i64(oar_state *state, const char *name,
                                     int64_t *number);
OAR_API oar_status oar_state_add_f64(oar_state *state, const char *name,
                                     double *number);
/* Bytes of one's own; their number must be the same at the load. Ranks whose
 * bytes differ give them different names. */
OAR_API oar_status oar_state_add_bytes(oar_state *state, const char *name,
                                       void *data, size_t bytes);

/* ---- a folder of generations --------------------------------------------- */
typedef struct oar_checkpoint oar_checkpoint;

typedef struct oar_checkpoint_opts {
    size_t size;
    int read_only;      /* nothing is made, locked or removed */
    int keep;           /* complete generations that stay, with the one that is
                           saved; 0: all */
    int64_t keep_every; /* and all whose step is a multiple of this */
    size_t block_bytes; /* of a checksum; 0 means 4 MiB; a power of two from 64
                           KiB to 64 MiB */
    int writers;        /* ranks that write what several hold; 0: all */
    int threads;        /* that write or read on each rank; 0 means 2 */
    int buffered;       /* through the page cache; else past it, where the file
                           system can */
    int no_sync;        /* does not sync: for tests and scratch disks */
} oar_checkpoint_opts;
OAR_OPTS_INIT(oar_checkpoint_opts);

/* group NULL: one process. Makes the folder (not its parents) unless read_only.
 * One job at a time writes to a folder: OAR_E_STATE names the other's host and
 * process. What a crash left half-written is removed. Borrows the group, which
 * must live as long as the checkpoint. */
OAR_API oar_status oar_checkpoint_open(oar_group *group, const char *folder,
                                       const oar_checkpoint_opts *opts,
                                       oar_checkpoint **checkpoint);
OAR_API void oar_checkpoint_close(oar_checkpoint *checkpoint); /* NULL: fine */

typedef struct oar_save_opts {
    size_t size;
    int keep;      /* this generation is never pruned */
    int has_dtype; /* floats of "model" are saved as dtype: for others, not for
                      going on */
    oar_dtype dtype;
    const char *note; /* a text to find it by, UTF-8, up to 200 bytes */
} oar_save_opts;
OAR_OPTS_INIT(oar_save_opts);

/* Saves a generation, and returns when it is on the disk for good. A step that
 * is there already is OAR_E_STATE. */
OAR_API oar_status oar_checkpoint_save(oar_checkpoint *checkpoint,
                                       const oar_state *state, int64_t step,
                                       const oar_save_opts *opts);

enum { OAR_NEWEST = -1 };

/* {"h.*.attn.weight", "blocks.*.attention.weight"}: one '*' on each side, or
 * none. The first rule that fits counts. transpose: the file has the two dims
 * of a matrix the other way round. */
typedef struct oar_rename {
    const char *from; /* in the checkpoint */
    const char *to;   /* in the state */
    int transpose;
} oar_rename;

enum {
    OAR_LOAD_MISSING = 1, /* what the checkpoint does not have stays as it is */
    OAR_LOAD_UNUSED = 2   /* what it has besides is left alone */
};

typedef struct oar_load_opts {
    size_t size;
    int partial;          /* OAR_LOAD_...; 0: both are OAR_E_NOT_FOUND, with the
                             first names and how many */
    const char *sections; /* only these: "model" or "model,optim"; NULL: those
                             of the state. With this, numbers are loaded only if
                             "values" is among them */
    int renames;          /* of "model" */
    const oar_rename *rename;
    int no_convert; /* another dtype is OAR_E_DTYPE instead of converted */
    int no_verify;  /* checksums are not compared */
} oar_load_opts;
OAR_OPTS_INIT(oar_load_opts);

/* Fills the state from a generation; OAR_NEWEST: from the newest complete one,
 * OAR_E_NOT_FOUND if there is none. Everything is checked before the first
 * number is written; a file that turns out to be damaged later is OAR_E_DATA,
 * and then the state is undefined. It returns on any rank when all have loaded.
 */
OAR_API oar_status oar_checkpoint_load(oar_checkpoint *checkpoint,
                                       oar_state *state, int64_t step,
                                       const oar_load_opts *opts);
/* Gives the step of the newest complete generation; OAR_E_NOT_FOUND. */
OAR_API oar_status oar_checkpoint_newest(oar_checkpoint *checkpoint,
                                         int64_t *step);

/* What the last save or load did, on this rank. */
typedef struct oar_checkpoint_stats {
    size_t size;
    int64_t step;
    uint64_t bytes;        /* written or read here */
    uint64_t all_bytes;    /* written by all ranks */
    uint64_t wanted_bytes; /* load: of those read here, asked for */
    double plan_s, write_s, commit_s, total_s;
} oar_checkpoint_stats;
OAR_OPTS_INIT(oar_checkpoint_stats);
OAR_API oar_status oar_checkpoint_read_stats(const oar_checkpoint *checkpoint,
                                             oar_checkpoint_stats *stats);

/* ---- looking at a folder, without ranks ---------------------------------- */

typedef struct oar_generation {
    int64_t step;
    int complete; /* else why says what is missing */
    uint64_t bytes;
    int64_t saved_unix_s;
    int ranks; /* that saved it */
    char name[64], why[160], note[208];
} oar_generation;

/* Gives all generations of a folder, complete or not, the newest last; one
 * oar_free frees them. */
OAR_API oar_status oar_generations(const char *folder, int *count,
                                   oar_generation **list);

OAR_END_DECLS

#endif
