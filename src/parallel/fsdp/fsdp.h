/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/fsdp/fsdp.h: the inside of a wrapped module.
 *
 *   fsdp_units.c  decides which modules are units, and whose a parameter is
 *   fsdp_pass.c   the hooks of units and gradients; the end of a pass
 *   fsdp_join.c   ranks that have run out of input
 *   fsdp_state.c  parameters as they are read, written, saved and loaded
 *   fsdp_kept.c   the optimizer's state in memory of all ranks of the host
 *   fsdp_inherit.c  from what is kept to shards of another cut
 *   fsdp_regroup.c  going on with the ranks that are left
 *   fsdp.c        wrapping, and the other public functions
 *
 * Array i of the shards is param[i]. The parameters of a flat (parallel/shards)
 * are views of one storage, which is attached to the flat's memory while the
 * unit is whole; their gradients are views of another, which is attached while
 * they are being written.
 */
#ifndef OARI_PARALLEL_FSDP_FSDP_H
#define OARI_PARALLEL_FSDP_FSDP_H

#include <oarsong/fsdp.h>
#include <oarsong/parallel.h>

#include <stdatomic.h>

#include "parallel/shards/shards.h"

typedef struct oari_fsdp oari_fsdp;
typedef struct oari_kept oari_kept;

typedef struct oari_fsdp_unit {
    oari_fsdp *fsdp;
    oar_module *module;
    int parent;   /* the unit around it; -1: the outermost */
    char *name;   /* dotted; "" */
    char *absent; /* what errors say of a parameter that is away */
    size_t bytes; /* of its parameters */
    int joined;   /* it is too small, and belongs to its parent */
    int index;    /* among the shards' units; of a joined one its parent's */
    int kept;     /* forwards since which it is whole until their backward */
    uint64_t version; /* of the shards, when its forward ran */
    oar_hook *hook[4];
} oari_fsdp_unit;

typedef struct oari_fsdp_param {
    oari_fsdp *fsdp;
    oar_tensor *tensor; /* borrowed */
    int array;          /* of the shards */
    int first;          /* its first place among the module's parameters */
    int unit;
    char *name;
    oar_hook *hook;
} oari_fsdp_param;

struct oari_fsdp {
    oar_group *group;
    oar_fsdp_opts opts;
    oar_shards *shards;
    int units, params; /* units: joined ones included */
    int64_t unit_room, param_room;
    oari_fsdp_unit *unit; /* 0: the whole module */
    oari_fsdp_param *param;
    oar_storage **flat;  /* by flat: its parameters */
    oar_storage **grads; /* by flat: their gradients; NULL: frozen */
    int no_sync;
    int changed; /* the shards got gradients that were not stepped at the last
                     publish, or numbers from elsewhere */
    uint64_t unstepped; /* the version of the shards when they got gradients;
                           UINT64_MAX: they have other numbers already */
    int recorded;       /* passes that hold the outermost unit */
    int in_backward;
    int joined;  /* said that it has input, and has not ended that pass */
    int leading; /* announces its calls to the ranks without input */
    unsigned char *has_input; /* by rank, at the last join */
    oar_clip_part *clip;      /* of the shards' tensors */
    oari_kept *kept;          /* or NULL */
};

/* ---- fsdp.c ------------------------------------------------------------- */

/* Returns the inside of a module that FSDP wraps, else NULL. */
oari_fsdp *oari_fsdp_of(const oar_module *module);

/* Makes shards of the parameters over a group, whose ranks all call it: of the
 * numbers that the parameters have, or, with old shards, of the whole arrays
 * there; zeros if those are of another dtype. */
oar_status oari_fsdp_make_shards(const oari_fsdp *d, oar_group *group,
                                 const oar_shards *old, oar_shards **shards);

/* Makes the list that clipping reads. */
oar_status oari_fsdp_list_clipped(const oar_shards *shards,
                                  oar_clip_part **clip);

/* ---- fsdp_state.c -------------------------------------------------------- */

/* Writes this rank's shard of a lazy parameter. */
oar_status oari_fsdp_make_shard(const oar_tensor *lazy, const oar_shard *shard);

/* Gives this rank's shard of an array; its count is 0 if it has none. */
oar_status oari_fsdp_shard_of(const oari_fsdp *d, int array, oar_shard *shard);

/* Returns the array whose parameter is the tensor, or, of the shards, the one
 * that the tensor is this rank's shard of; -1 if there is none. */
int oari_fsdp_array_of_param(const oari_fsdp *d, const oar_tensor *param);
int oari_fsdp_array_of_shard(const oari_fsdp *d, const oar_tensor *shard);

/* Other numbers were, or will be, written to the shards, on all ranks: the next
 * forward publishes them. */
void oari_fsdp_changed(oari_fsdp *d);

/* ---- fsdp_units.c -------------------------------------------------------- */

/* Finds units and parameters of a module, which is the outermost unit. */
oar_status oari_fsdp_find_units(oari_fsdp *d, oar_module *module);
void oari_fsdp_forget_units(oari_fsdp *d);

/* Returns the unit of this name that is not joined to another, or -1. */
int oari_fsdp_find(const oari_fsdp *d, const char *name);

/* ---- fsdp_pass.c --------------------------------------------------------- */

/* Adds the hooks. Every parameter has its place and its gradient. */
oar_status oari_fsdp_listen(oari_fsdp *d);
void oari_fsdp_unlisten(oari_fsdp *d);

/* Attach and detach the parameters of a unit, gathering it before. */
oar_status oari_fsdp_open(oari_fsdp *d, int unit);
oar_status oari_fsdp_close(oari_fsdp *d, int unit);

/* Gives up a pass that has failed here; the last error stays. */
void oari_fsdp_fail(oari_fsdp *d);

/* Detaches the memory of gradients. */
void oari_fsdp_close_grads(oari_fsdp *d, int unit);

/* Makes what was stepped known to all ranks, if gradients came since. */
oar_status oari_fsdp_publish(oari_fsdp *d);

/* Ends the reductions of a pass. */
oar_status oari_fsdp_finish(oari_fsdp *d);
/* Reduces what passes without communication have added up. All ranks, outside
 * oar_fsdp_no_sync_begin and end. */
oar_status oari_fsdp_reduce(oari_fsdp *d);

/* ---- fsdp_join.c --------------------------------------------------------- */

typedef enum oari_fsdp_call {
    OARI_FSDP_UNSHARD,
    OARI_FSDP_RESHARD,
    OARI_FSDP_GRADS,
    OARI_FSDP_FINISH,
    OARI_FSDP_END
} oari_fsdp_call;

/* Tells ranks without input what this one, if it leads, is about to call. unit:
 * of the shards. */
oar_status oari_fsdp_announce(const oari_fsdp *d, oari_fsdp_call call,
                              int unit);

oar_status oari_fsdp_join(oari_fsdp *d, int has_input, int *active);

/* Whether a module has synchronised batch norms. */
int oari_fsdp_has_sync_layers(const oar_module *module);

/* ---- fsdp_kept.c --------------------------------------------------------- */

/* How far a rank is, for those that outlive it. A position is a parameter of
 * its optimizer and an element of that. */
typedef struct oari_kept_line {
    _Atomic uint64_t begun, done; /* optimizer steps */
    _Atomic uint64_t progress;    /* in this step: what is before is moved */
    _Atomic uint64_t journal; /* the position whose chunk is in the journal */
    _Atomic int64_t chunk;    /* elements in it */
    double lr;                /* of this step */
    _Atomic int changing; /* its shards get numbers that no step has made, and
                             that are not published */
} oari_kept_line;

/* What a rank's optimizer knows of its shard of an array before a step, beside
 * its state. */
typedef struct oari_kept_record {
    int64_t steps;
    int group;    /* -1: the optimizer does not have the shard */
    int index;    /* of the parameter there */
    int has_grad; /* at this step */
} oari_kept_record;

struct oari_kept {
    oar_optim *optim; /* borrowed */
    int params;       /* of it, that are kept */
    int *array;       /* which each is a shard of */
    int slots;        /* of its state */
    int generation;   /* regroups so far */
    const oar_shards *shards;
    oar_window *window;
    oar_storage *storage; /* all of the window */
    size_t *begin;        /* where each rank's region begins; then the end */
    oar_hook *hook[3];
};

/* Makes room for the state of an optimizer with so many slots over shards. A
 * collective: on all ranks, or on none. */
oar_status oari_kept_make(const oar_shards *s, oar_group *group, int slots,
                          oari_kept **kept);
void oari_kept_free(oari_kept *kept); /* NULL is fine */

/* Returns how many slots an optimizer's state has. */
int oari_kept_slots(const oar_optim *optim);

/* Moves the gradients of the shards into the window, and the shards themselves
 * if they are apart from whole arrays. */
oar_status oari_kept_take_shards(const oari_kept *kept, oar_shards *s);

oari_kept_line *oari_kept_line_of(const oari_kept *kept, int part);
/* Records are kept for a step and the one before. */
oari_kept_record *oari_kept_record_of(const oari_kept *kept, int part,
                                      uint64_t step, int array);
/* Planes of a region: first a slot of the state each. */
static inline int oari_kept_grads_plane(const oari_kept *kept)
{
    return kept->slots;
}
static inline int oari_kept_shards_plane(const oari_kept *kept)
{
    return kept->slots + 1;
}
/* Returns where in the window element `first` of an array is, which the part
 * has. */
size_t oari_kept_at(const oari_kept *kept, int part, int plane, int array,
                    size_t first);

/* Returns where in the window the journal has a chunk of a slot of the state,
 * or, for the number of slots, of the parameter. */
size_t oari_kept_journal_at(const oari_kept *kept, int part, int slot);
static inline uint64_t oari_kept_position(int index, int64_t first)
{
    return (uint64_t)index << 40 | (uint64_t)first;
}

/* Write down that shards are going to be changed otherwise than by steps, what
 * has become of it, and that it is published. */
void oari_kept_begin_change(const oari_fsdp *d);
void oari_kept_note_change(const oari_fsdp *d);
void oari_kept_end_change(const oari_fsdp *d);

/* ---- fsdp_inherit.c ------------------------------------------------------ */

/* Copies a plane of this rank's shard of an array, by the new cut, from the
 * regions of the old ranks. */
void oari_inherit_plane(const oari_kept *from, int plane, const oari_kept *to,
                        const oar_shard *shard);

/* Returns what an old rank with a shard of the array knew of it at a step;
 * NULL: no rank has one. */
const oari_kept_record *oari_inherit_record(const oari_kept *k, uint64_t step,
                                            int array);

/* Finishes a step in new shards, in the place of old ranks that have not. The
 * optimizer has the entries as its parameters, in the order of the shards. */
oar_status oari_inherit_step(const oari_kept *from, uint64_t step,
                             const oar_shards *to, int entries,
                             const oar_optim_entry *entry);

#endif
