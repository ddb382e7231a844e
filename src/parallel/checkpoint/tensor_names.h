/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/tensor_names.h: names of tensors as users write them:
 * lists of sections, rules that rename, and slips. */
#ifndef OARI_PARALLEL_CHECKPOINT_TENSOR_NAMES_H
#define OARI_PARALLEL_CHECKPOINT_TENSOR_NAMES_H

#include "parallel/checkpoint/generation_index.h"

/* Returns whether a section is in a list such as "model,optim". NULL has all.
 */
int oari_ckpt_section_is_in(const char *sections, const char *section);

/* Fits a name to the pattern `from`, which has one '*' or none, and writes what
 * the star stands for into the pattern `to`. Returns whether it fits. */
int oari_ckpt_rename(const char *from, const char *to, const char *name,
                     char *renamed, size_t room);

/* Returns the name in a section (NULL: in any) that is the fewest edits away,
 * or NULL if the section is empty. */
const char *oari_ckpt_index_nearest(const oari_ckpt_index *index,
                                    const char *section, const char *name);

#endif
