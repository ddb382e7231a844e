/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/saved.h: what nodes keep for backward, and when memory goes.
 *
 * A result gives its memory back to the tape's pool when nothing will read it
 * any more: its own backward has run, at least the inputs half, or the module
 * that made it has dropped it (oari_tape_drop); and no node has saved it; and
 * the caller has not retained it; and it is no root. The tensor itself stays,
 * without storage, until reset.
 *
 * A dropped result whose operation can rebuild it goes at once even if nodes
 * have it saved. Backward computes it again when the first of them needs it,
 * and keeps it until the last has run. If that is costly, the result is only
 * offered to the pool, which takes the oldest such offer before it asks the
 * system for memory. So the latest, which backward wants first, stays. */
#ifndef OARI_AUTOGRAD_SAVED_H
#define OARI_AUTOGRAD_SAVED_H

#include "autograd/tape.h"

/* Keeps a reference to tensor, which may be NULL, as saved tensor k. */
void oari_save(oari_node *node, int k, oar_tensor *tensor);

/* Gives up saved tensor k. */
void oari_unsave(oari_node *node, int k);

/* Rebuilds those of a node's saved tensors that are in the mask (bit k: number
 * k) and were given back, before its backward. */
oar_status oari_rebuild_saved(oari_node *node, unsigned mask);

/* Rebuilds the node's result if it was given back and others still have it
 * saved: held nodes, that is, after whose inputs half this node's follows. Once
 * that has run, the result cannot be rebuilt any more. */
oar_status oari_rebuild_for_held(oari_node *node);

/* Refuses saved tensors in the mask that have no data or were changed
 * meanwhile. */
oar_status oari_check_saved(const oari_node *node, unsigned mask);

/* Gives back the memory of a result if nothing will read it any more. */
void oari_release_if_unused(oar_tensor *tensor);

/* Returns whether saved tensor k is row-major, can be written, and no other
 * node or caller uses it, so that it may be overwritten. */
int oari_saved_alone(const oari_node *node, int k);

/* Returns whether a result is row-major, can be written, and only the tape has
 * its memory. */
int oari_unshared(const oar_tape *tape, const oar_tensor *tensor);

/* Returns a + b, in the memory of b where that is possible. Drops b. */
oar_tensor *oari_add_over(oar_tape *tape, oar_tensor *a, oar_tensor *b);

/* Drops a result: only backward will read it again. For modules of the library,
 * about results of their own. NULL is fine. */
void oari_tape_drop(oar_tape *tape, oar_tensor *tensor);

#endif
