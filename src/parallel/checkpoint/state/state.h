/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint/state/state.h: what a state holds: arrays that go into files,
 * and sources of values, which go into the index. Neither knows of DDP or FSDP.
 */
#ifndef OARI_PARALLEL_CHECKPOINT_STATE_STATE_H
#define OARI_PARALLEL_CHECKPOINT_STATE_STATE_H

#include <oarsong/checkpoint.h>

#include "parallel/checkpoint/copy_guard.h"
#include "parallel/checkpoint/generation_index.h"
#include "parallel/checkpoint/part_list.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

/* An array, and its place in a whole tensor. */
typedef struct oari_ckpt_item {
    char *section, *name;
    oar_tensor *tensor; /* a reference */
    oar_shape whole;
    oari_box box; /* or, if flat, elements from first on */
    int flat;
    int64_t first;
    unsigned flags;
    int at_once;     /* it changes without an optimizer's step: a lazy save does
                    not put its copy off */
    int only_loaded; /* another rank's is the one that is saved */
} oari_ckpt_item;

/* A value that is being collected, or an alias; owns its texts. */
typedef struct oari_ckpt_own_value {
    char *section; /* NULL, or that of an alias, whose text is what it is of */
    char *name, *text;
    int is_text;
    int may_differ; /* between ranks: a counter */
} oari_ckpt_own_value;

/* Returns less than, equal to or more than 0: values by name, then aliases by
 * section and name. */
int oari_ckpt_value_compare(const oari_ckpt_own_value *a,
                            const oari_ckpt_own_value *b);

typedef struct oari_ckpt_values {
    OARI_VEC(oari_ckpt_own_value) value;
} oari_ckpt_values;

void oari_ckpt_values_free(oari_ckpt_values *values); /* empties it */

/* Add a number, a float (bitwise), a text, a counter or an alias. */
oar_status oari_ckpt_add_number(oari_ckpt_values *values, const char *name,
                                int64_t number);
oar_status oari_ckpt_add_float(oari_ckpt_values *values, const char *name,
                               double number);
oar_status oari_ckpt_add_text(oari_ckpt_values *values, const char *name,
                              const char *text);
oar_status oari_ckpt_add_counter(oari_ckpt_values *values, const char *name,
                                 uint64_t number);
oar_status oari_ckpt_add_alias(oari_ckpt_values *values,
                               const oari_ckpt_alias *alias);

/* The values of a generation, for one rank of the group that loads it. */
typedef struct oari_ckpt_found {
    const oari_ckpt_index *index;
    int rank, ranks;
} oari_ckpt_found;

/* Give a value: OAR_E_NOT_FOUND if there is none, OAR_E_DATA if it is of
 * another kind. A text is borrowed from the index. */
oar_status oari_ckpt_get_number(const oari_ckpt_found *found, const char *name,
                                int64_t *number);
oar_status oari_ckpt_get_float(const oari_ckpt_found *found, const char *name,
                               double *number);
oar_status oari_ckpt_get_text(const oari_ckpt_found *found, const char *name,
                              const char **text);
oar_status oari_ckpt_get_counter(const oari_ckpt_found *found, const char *name,
                                 uint64_t *number);

/* Where values come from and go to. */
typedef struct oari_ckpt_source oari_ckpt_source;
typedef struct oari_ckpt_source_class {
    /* Adds the values of now; may also refresh arrays. */
    oar_status (*collect)(const oari_ckpt_source *source,
                          oari_ckpt_values *values);
    /* (optional) Checks before anything is written that the found values fit.
     */
    oar_status (*check)(const oari_ckpt_source *source,
                        const oari_ckpt_found *found);
    /* (optional) All ranks are about to write arrays of the state. */
    void (*begin_load)(const oari_ckpt_source *source);
    /* Takes the values over, after all arrays have been loaded. */
    oar_status (*apply)(const oari_ckpt_source *source,
                        const oari_ckpt_found *found);
    /* (optional) Makes the next change of its arrays wait for the guard. */
    oar_status (*guard)(const oari_ckpt_source *source,
                        oari_ckpt_copy_guard *guard);
    void (*drop)(oari_ckpt_source *source); /* (optional) */
} oari_ckpt_source_class;

struct oari_ckpt_source {
    const oari_ckpt_source_class *class;
    void *object;  /* what the user added */
    char *name;    /* of its values */
    int64_t first; /* of the state's items that belong to it */
    int64_t items;
};

/* A module that was added, or FSDP's wrapper of it. Both are owned. */
typedef struct oari_ckpt_module {
    oar_module *module;
    char *prefix;
} oari_ckpt_module;

struct oar_state {
    OARI_VEC(oari_ckpt_item) item;
    OARI_VEC(oari_ckpt_source) source;
    OARI_VEC(oari_ckpt_alias) alias; /* texts are owned */
    OARI_VEC(oari_ckpt_module) module;
    oari_ckpt_values kept; /* counters of a generation that more ranks
                                        saved than loaded it */
    int optims;
    oari_ckpt_copy_guard *guard; /* of lazy saves */
};

/* Remembers the counters of ranks that are not here, at a load; and adds them
 * to the values of all ranks, at a save, so that those ranks find them again
 * when they are back. */
oar_status oari_ckpt_keep_counters(oar_state *state,
                                   const oari_ckpt_found *found);
oar_status oari_ckpt_add_kept(const oar_state *state, int ranks,
                              oari_ckpt_values *values);

/* Adds an array; takes a reference to the tensor. */
oar_status oari_state_add(oar_state *state, const char *section,
                          const char *name, oar_tensor *tensor,
                          const oar_place *place, unsigned flags);
/* Adds elements first, .. of this rank's part of a tensor parallel parameter,
 * row by row, which `tensor` holds: parts of one name that lie in its whole. */
oar_status oari_state_add_cut(oar_state *state, const char *section,
                              const char *name, oar_tensor *tensor,
                              int64_t first, const oari_tp_cut *cut);
/* Of the array that was added last, a shard of a parameter that a tensor
 * parallel module has whole: only the first of its ranks saves it, because the
 * others may have cut it elsewhere. */
void oari_state_save_by_first(oar_state *state, const oar_module *module);
/* Adds a source, whose name is copied. */
oar_status oari_state_add_source(oar_state *state,
                                 const oari_ckpt_source_class *class,
                                 void *object, const char *name);

#endif
