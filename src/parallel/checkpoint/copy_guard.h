/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/copy_guard.h: makes those who would change an array of a
 * state wait while lazy saves still have to copy it. */
#ifndef OARI_PARALLEL_CHECKPOINT_COPY_GUARD_H
#define OARI_PARALLEL_CHECKPOINT_COPY_GUARD_H

#include <oarsong/status.h>

typedef struct oari_ckpt_copy_guard oari_ckpt_copy_guard;

oar_status oari_ckpt_copy_guard_create(oari_ckpt_copy_guard **guard);
void oari_ckpt_copy_guard_destroy(oari_ckpt_copy_guard *guard); /* NULL: fine */

/* A save has to copy, and has copied. */
void oari_ckpt_copy_guard_begin(oari_ckpt_copy_guard *guard);
void oari_ckpt_copy_guard_end(oari_ckpt_copy_guard *guard);

/* Waits until no save has to copy. In a child made by fork, where nobody
 * copies, returns at once. */
void oari_ckpt_copy_guard_wait(oari_ckpt_copy_guard *guard);

#endif
