/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/spec.h: specs, and the table of them that a mesh keeps. */
#ifndef OARI_PARALLEL_DTENSOR_SPEC_H
#define OARI_PARALLEL_DTENSOR_SPEC_H

#include <stdatomic.h>

#include "parallel/dtensor/cuts.h"

struct oar_spec {
    oar_spec *next; /* in its row of the table */
    oar_mesh *mesh;
    oar_shape shape;
    oari_cuts layout; /* sorted */
    uint64_t hash;    /* of what it says: the same on all ranks */
    oari_part held;   /* this rank's part */
    oar_shape local;  /* its shape */
};

typedef struct oari_move_path oari_move_path; /* move_plan.h */
struct oari_decision;                         /* rules/rule.h */

/* What was moved while a scope was the current one; see dtensor_ops.h. */
typedef struct oari_scope {
    struct oari_scope *next;
    _Atomic uint64_t moves, bytes, implicit_moves, implicit_bytes;
    _Atomic uint64_t backward_moves, backward_bytes;
    char name[];
} oari_scope;

enum { OARI_SPEC_ROWS = 256 };

/* What a mesh keeps; its lock guards it. Nothing is taken out again. */
typedef struct oari_spec_table {
    oar_spec *spec[OARI_SPEC_ROWS];
    oari_move_path *path[OARI_SPEC_ROWS];
    oari_sizes *sizes;
    /* Read without the lock. */
    struct oari_decision *_Atomic decision[OARI_SPEC_ROWS];
    oari_scope *scopes;
    oari_scope *_Atomic scope; /* the current one; NULL: none yet */
    _Atomic int strict;
    _Atomic uint64_t most_bytes;
} oari_spec_table;

/* Returns the mesh's table, made now if there is none; NULL without memory. The
 * caller has locked the mesh. */
oari_spec_table *oari_spec_table_of(oar_mesh *mesh);

/* Returns the scope that moves are counted in now; NULL without memory. */
oari_scope *oari_scope_now(oar_mesh *mesh);

/* Finds or makes the sizes of parts. The caller has locked the mesh. */
oar_status oari_sizes_intern(oar_mesh *mesh, int parts, const int64_t *size,
                             const oari_sizes **sizes);

/* Drops sizes that are those that parts have without sizes. */
void oari_cuts_drop_plain_sizes(oari_cuts *layout, int dims);

/* Returns the spec of a layout, which is sorted; NULL without memory. The
 * caller has locked the mesh. */
const oar_spec *oari_spec_intern(oar_mesh *mesh, oar_shape shape,
                                 const oari_cuts *layout);

/* The same with another layout for the same tensor; takes the lock. */
const oar_spec *oari_spec_with(const oar_spec *spec, const oari_cuts *layout);

/* Returns the spec in which no mesh dim cuts and none is partial. */
const oar_spec *oari_spec_replicated(oar_mesh *mesh, oar_shape shape);

/* Returns the spec of its gradient: replicated where it is partial. */
const oar_spec *oari_spec_of_grad(const oar_spec *spec);

/* Writes "S(0) R" at text + at, cut to fit; returns where the text ends. */
size_t oari_cuts_text(const oari_grid *grid, const oari_cuts *layout,
                      char *text, size_t bytes, size_t at);

/* Appends to a text that is cut to fit; returns the length so far, uncut. */
size_t oari_spec_text_add(char *text, size_t bytes, size_t at,
                          const char *format, ...) OAR_PRINTF(4, 5);

#endif
