/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: the state of a run on a disk, and back, on any number of ranks.
 *
 *     oar_state_create(&state);
 *     oar_state_add_module(state, network, NULL);
 *     oar_state_add_optim(state, adam, network, NULL);
 *     oar_state_add_loader(state, "train", loader);
 *     oar_state_add_i64(state, "step", &step);
 *     oar_checkpoint_open(world, "runs/a", NULL, &runs);
 *     status = oar_checkpoint_newest(runs, &newest);
 *     if (status == OAR_OK)                        else a fresh start
 *         oar_checkpoint_load(runs, state, newest, NULL);
 *     ... every hundredth step:
 *     oar_checkpoint_save(runs, state, step,
 *                         OAR_OPTS(oar_save_opts, .background = 1));
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
 * All ranks of the group call open, save, load, wait and close, in the same
 * order and with the same options. A failure on any rank is the failure of all:
 * every rank gets the record of the lowest rank that failed. It leaves the
 * group whole, and older generations as they were. Operations run on duplicates
 * of the group. A rank that dies ends the call on the others (OAR_E_PEER). One
 * that writes may take any time; one that stops to write ends it after a minute
 * and the group's timeout, one that hangs while it syncs, reads or makes
 * folders after half an hour.
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

OAR_BEGIN_DECLS

/* ---- what is saved --------------------------------------------------------
 * A state is a list of names for things that others own. It borrows them, and
 * keeps references to tensors and modules; the others must live as long as it
 * does. The names must be the same in the run that loads. */
typedef struct oar_state oar_state;
OAR_API oar_status oar_state_create(oar_state **state);
/* Waits for a lazy save that has to copy what it holds. NULL is fine. */
OAR_API void oar_state_destroy(oar_state *state);

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
 * every rank that adds it. Names are UTF-8, 1 to 1000 bytes; on one rank a name
 * is there twice in its section only for parts that have no element in common,
 * else OAR_E_ARG. */
OAR_API oar_status oar_state_add_tensor(oar_state *state, const char *section,
                                        const char *name, oar_tensor *tensor,
                                        const oar_place *place);
/* The same for an array of one's own, which must live as long as the state. */
OAR_API oar_status oar_state_add_span(oar_state *state, const char *section,
                                      const char *name, oar_span span,
                                      oar_shape shape, const oar_place *place);

/* Adds all parameters and buffers, as "model", under their dotted names behind
 * `prefix` (NULL: none), and the counters of its layers (dropout). A wrapper of
 * DDP or FSDP is looked through: names are those of the module inside, and
 * buffers are saved as the first rank of its group has them. Of what FSDP has
 * spread each rank saves and loads its shards, whether or not a parameter is
 * whole; the next forward after a load has the new numbers. What FSDP ignores
 * is left out: oar_state_add_tensor adds it, under a name for each rank where
 * ranks differ. Any wrapper loads what another has saved, on any number of
 * ranks. Of a tensor parallel model (tensor_parallel.h) each rank saves and
 * loads its parts of the whole. Keeps a reference to FSDP's wrapper, whose
 * groups must then live as long as the state. A parameter that is there twice
 * is saved once, with its other name as an alias. Ranks may add different
 * modules, and one rank several (stages of a pipeline): the checkpoint has all.
 * Modules that share a parameter may both have it under the same name. Counters
 * may differ between ranks; at another number of ranks they stay apart, and
 * those of ranks that are missing are saved on until the ranks are back. */
OAR_API oar_status oar_state_add_module(oar_state *state, oar_module *module,
                                        const char *prefix);
/* Adds steps, learning rate and, as "optim", the state of every parameter,
 * named as PyTorch does: "state.NAME.exp_avg". NAME is what `named` calls the
 * parameter, behind prefix; one that it does not have is OAR_E_NOT_FOUND. named
 * NULL, without a prefix: the modules that were added before name them, as one
 * optimizer may have the parameters of several stages of a pipeline. An
 * optimizer over oar_fsdp_params is named by FSDP's wrapper. At the load an
 * optimizer of another kind is OAR_E_STATE, and so is one with other numbers,
 * but for the learning rate, which is loaded. */
OAR_API oar_status oar_state_add_optim(oar_state *state, oar_optim *optim,
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
    size_t staging_bytes; /* for saves in the background; 0: as much as this
                             rank writes. Less, at least a block: the call
                             waits for the disk */
    int writers;          /* ranks that write what several hold; 0: all */
    int threads;          /* that write or read on each rank; 0 means 2 */
    int buffered;       /* through the page cache; else past it, where the file
                           system can */
    int check_replicas; /* compares what several ranks hold, before it is
                           written once: OAR_E_MISMATCH names the tensor and two
                           ranks */
    int no_sync;        /* does not sync: for tests and scratch disks */
} oar_checkpoint_opts;
OAR_OPTS_INIT(oar_checkpoint_opts);

/* group NULL: one process. Makes the folder (not its parents) unless read_only.
 * One job at a time writes to a folder: OAR_E_STATE names the other's host and
 * process. What a crash left half-written is removed. Borrows the group, which
 * must live as long as the checkpoint. */
#define oar_checkpoint_open(group, folder, opts, checkpoint) \
    oar_checkpoint_open_at(OAR_HERE, group, folder, opts, checkpoint)
OAR_API oar_status oar_checkpoint_open_at(const char *file, int line,
                                          oar_group *group, const char *folder,
                                          const oar_checkpoint_opts *opts,
                                          oar_checkpoint **checkpoint);
/* Waits for a save that is under way. If it fails, or has failed and no call
 * has returned that, the log says so. NULL is fine. */
OAR_API void oar_checkpoint_close(oar_checkpoint *checkpoint);

typedef struct oar_save_opts {
    size_t size;
    int background; /* returns when the numbers that this rank writes have been
                       copied: all may change, and the state be destroyed */
    int lazy;       /* with background: returns before that. Arrays of the state
                       must not change until oar_checkpoint_copied returns.
                       Optimizers that were added wait in their next step until
                       then. Buffers, counters and numbers are copied at once */
    int no_wait;    /* OAR_E_STATE, on all ranks, if the save before is still
                       under way on one */
    int keep;       /* this generation is never pruned */
    int has_dtype;  /* floats of "model" are saved as dtype: for others, not for
                      going on */
    oar_dtype dtype;
    const char *note; /* a text to find it by, UTF-8, up to 200 bytes */
} oar_save_opts;
OAR_OPTS_INIT(oar_save_opts);

/* Saves a generation, and returns when it is on the disk for good; in the
 * background, earlier. A step that is there already is OAR_E_STATE.
 *
 * One save at a time is under way. The next call waits for it; if it failed and
 * no call has returned that yet, this one returns that failure, on all ranks,
 * and saves nothing. A call after that saves again. */
#define oar_checkpoint_save(checkpoint, state, step, opts) \
    oar_checkpoint_save_at(OAR_HERE, checkpoint, state, step, opts)
OAR_API oar_status oar_checkpoint_save_at(const char *file, int line,
                                          oar_checkpoint *checkpoint,
                                          const oar_state *state, int64_t step,
                                          const oar_save_opts *opts);
/* Waits until what the last save needs has been copied. Not a collective. */
OAR_API oar_status oar_checkpoint_copied(oar_checkpoint *checkpoint);
/* Waits until the last save is on the disk for good, or has failed, and returns
 * how it ended. May be called again. OAR_OK if there was none. */
OAR_API oar_status oar_checkpoint_wait(oar_checkpoint *checkpoint);
/* The same without waiting: *done says whether it has ended; if not, OAR_OK.
 * Not a collective: ranks may differ, and any number of them may call it. A
 * failure stays for the next save or wait. */
OAR_API oar_status oar_checkpoint_test(oar_checkpoint *checkpoint, int *done);

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
    int share;      /* what several ranks want is read by one of them and sent
                       to the others: 0: if the ranks are on several hosts, 1:
                       always, below 0: never */
} oar_load_opts;
OAR_OPTS_INIT(oar_load_opts);

/* Fills the state from a generation; OAR_NEWEST: from the newest complete one,
 * OAR_E_NOT_FOUND if there is none. Everything is checked before the first
 * number is written; a file that turns out to be damaged later is OAR_E_DATA,
 * and then the state is undefined. It returns on any rank when all have loaded.
 * It waits for a save that is under way, whose failure stays for the next save.
 */
#define oar_checkpoint_load(checkpoint, state, step, opts) \
    oar_checkpoint_load_at(OAR_HERE, checkpoint, state, step, opts)
OAR_API oar_status oar_checkpoint_load_at(const char *file, int line,
                                          oar_checkpoint *checkpoint,
                                          oar_state *state, int64_t step,
                                          const oar_load_opts *opts);
/* Gives the step of the newest complete generation; OAR_E_NOT_FOUND. */
#define oar_checkpoint_newest(checkpoint, step) \
    oar_checkpoint_newest_at(OAR_HERE, checkpoint, step)
OAR_API oar_status oar_checkpoint_newest_at(const char *file, int line,
                                            oar_checkpoint *checkpoint,
                                            int64_t *step);

/* Removes the generations that the options keep and keep_every do not keep, as
 * a save does: incomplete ones, and those saved with .keep, stay. fn (or NULL)
 * is called with each step before it is removed; with read_only it is only
 * called. It waits for a save that is under way, and removes what an earlier
 * prune could not. All ranks call it. */
typedef void (*oar_prune_fn)(void *arg, int64_t step);
#define oar_checkpoint_prune(checkpoint, fn, arg) \
    oar_checkpoint_prune_at(OAR_HERE, checkpoint, fn, arg)
OAR_API oar_status oar_checkpoint_prune_at(const char *file, int line,
                                           oar_checkpoint *checkpoint,
                                           oar_prune_fn fn, void *arg);

/* What the last save or load that ended well did, on this rank. */
typedef struct oar_checkpoint_stats {
    size_t size;
    int64_t step;
    uint64_t bytes;        /* written or read here */
    uint64_t all_bytes;    /* written by all ranks */
    uint64_t wanted_bytes; /* load: of those read here, asked for */
    double plan_s, write_s, commit_s, total_s;
    double stall_s; /* the call kept its caller */
    double copy_s;  /* to copy what this rank writes */
    double sync_s;  /* of write_s: to sync the files */
    size_t staging_bytes;
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
    int keep;  /* it is never pruned */
    char name[64], why[160], note[208];
} oar_generation;

/* Gives all generations of a folder, complete or not, the newest last; one
 * oar_free frees them. */
OAR_API oar_status oar_generations(const char *folder, int *count,
                                   oar_generation **list);

/* One generation. Only its index is held in memory. Threads: one catalog by one
 * thread at a time. */
typedef struct oar_catalog oar_catalog;

/* path: a folder of generations, of which the newest complete one is opened, or
 * the folder of one generation, whatever it is called. Nothing is locked. A
 * damaged index is OAR_E_DATA; files are looked at when they are read.
 * OAR_E_NOT_FOUND. */
OAR_API oar_status oar_catalog_open(const char *path, oar_catalog **catalog);
OAR_API void oar_catalog_close(oar_catalog *catalog); /* NULL is fine */

OAR_API int64_t oar_catalog_step(const oar_catalog *catalog);
/* Gives what oar_generations would, without looking at the files: `complete` is
 * 1 and `why` empty. */
OAR_API oar_status oar_catalog_describe(const oar_catalog *catalog,
                                        oar_generation *generation);

typedef struct oar_catalog_entry {
    size_t size;
    const char *section, *name; /* borrowed until the catalog is closed */
    oar_dtype dtype;
    oar_shape shape;
    uint64_t bytes;
    int64_t chunks;       /* pieces of it in files */
    const char *alias_of; /* the name whose tensor this is, or NULL; borrowed */
} oar_catalog_entry;
OAR_OPTS_INIT(oar_catalog_entry);

/* Returns the number of names: tensors by section and name, then aliases. */
OAR_API int64_t oar_catalog_tensors(const oar_catalog *catalog);
/* Gives an entry by its number, or by section (NULL: any) and name: OAR_E_ARG,
 * OAR_E_NOT_FOUND with the nearest name. *entry has its size set (OAR_OPTS). */
OAR_API oar_status oar_catalog_entry_at(const oar_catalog *catalog,
                                        int64_t index,
                                        oar_catalog_entry *entry);
OAR_API oar_status oar_catalog_find(const oar_catalog *catalog,
                                    const char *section, const char *name,
                                    oar_catalog_entry *entry);

/* Gives a number or text that is not a tensor, by its number, as index.json
 * spells it; borrowed. OAR_E_ARG behind the last one. */
OAR_API int64_t oar_catalog_values(const oar_catalog *catalog);
OAR_API oar_status oar_catalog_value_at(const oar_catalog *catalog,
                                        int64_t index, const char **name,
                                        const char **text);

/* Returns a whole tensor, put together of its pieces, whose checksums are
 * compared. section NULL: any. */
OAR_API oar_tensor *oar_catalog_tensor(oar_catalog *catalog,
                                       const char *section, const char *name);

/* Reads every byte and compares all checksums. fn (or NULL) is called for each
 * file with how it is; the last error then has the details. Goes on after
 * damage and returns the first: OAR_E_DATA with file, block, offset and both
 * sums. */
typedef void (*oar_verify_fn)(void *arg, const char *file, oar_status status);
OAR_API oar_status oar_catalog_verify(oar_catalog *catalog, oar_verify_fn fn,
                                      void *arg);

typedef struct oar_export_opts {
    size_t size;
    const char *section; /* NULL means "model" */
    size_t file_bytes;   /* most data of a file, unless one tensor has more; 0:
                            one file */
    int has_dtype;       /* floats are written as dtype */
    oar_dtype dtype;
    int renames; /* from: in the checkpoint, to: in the files */
    const oar_rename *rename;
} oar_export_opts;
OAR_OPTS_INIT(oar_export_opts);

/* Writes tensors as Hugging Face has them: model.safetensors, or several files
 * with model.safetensors.index.json. An alias is not written. The folder must
 * not exist, or be empty; it gets its name by a rename once all is on the disk.
 * Memory: some blocks for each thread, whatever the model. */
OAR_API oar_status oar_catalog_export(oar_catalog *catalog, const char *folder,
                                      const oar_export_opts *opts);

/* Writes the generation once more, into another folder of generations, as that
 * many ranks would that all hold everything. One process does it, with the
 * memory of some blocks. A step that is there already is OAR_E_STATE. */
OAR_API oar_status oar_catalog_reshard(oar_catalog *catalog, const char *folder,
                                       int ranks);

/* Makes a generation of a folder out of safetensors: path is a file, or a
 * folder as Hugging Face has them. Its tensors are "model", under their own
 * names. A folder of PyTorch's own format (.metadata) is OAR_E_UNSUPPORTED.
 * opts may be NULL. */
OAR_API oar_status oar_checkpoint_import(const char *path, const char *folder,
                                         int64_t step,
                                         const oar_save_opts *opts);

OAR_END_DECLS

#endif
