/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/saved.h: what nodes keep for backward, and when memory goes.
 *
 * A result gives its memory back to the tape's pool when nobody will ask for
 * it any more: its own backward has run, or the module that made it has said
 * so (oari_tape_drop); and no node has it saved; and nobody outside retains it,
 * it is no root. The tensor itself stays, without storage, until reset.
 *
 * A dropped result whose operation can rebuild it goes at once even if nodes
 * have it saved. Backward computes it again when the first of them needs it,
 * and keeps it until the last has run. If that is costly, the result is only
 * offered to the pool, which takes the oldest such offer before it asks the
 * system for memory. So the latest, which backward wants first, stays. */
#ifndef OARI_AUTOGRAD_SAVED_H
#define OARI_AUTOGRAD_SAVED_H

#include "autograd/tape.h"

/* Keeps a reference to tensor, which may be NULL, as number k. */
void oari_save(oari_node *node, int k, oar_tensor *tensor);

/* Gives up number k. */
void oari_unsave(oari_node *node, int k);

/* Before backward of node: rebuilds what it saved and was given back; refuses
 * what is detached or was changed meanwhile. */
oar_status oari_restore(oari_node *node);

/* Gives back the memory of a result if its time has come. */
void oari_settle(oar_tensor *tensor);

/* Whether number k is row-major and there for this node only: it may be
 * overwritten. */
int oari_saved_alone(const oari_node *node, int k);

/* Whether a result is row-major, and nobody but the tape has its memory. */
int oari_unshared(const oar_tape *tape, const oar_tensor *tensor);

/* a + b in the memory of b, which is dropped, where that is possible. */
oar_tensor *oari_add_over(oar_tape *tape, oar_tensor *a, oar_tensor *b);

/* Says that nobody will read a result again, except backward. For modules of
 * the library, about what they made themselves. NULL is fine. */
void oari_tape_drop(oar_tape *tape, oar_tensor *tensor);

#endif
