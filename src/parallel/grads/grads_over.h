/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/grads/grads_over.h: what clipping and scaling over several groups
 * have in common. */
#ifndef OARI_PARALLEL_GRADS_GRADS_OVER_H
#define OARI_PARALLEL_GRADS_GRADS_OVER_H

#include <oarsong/parallel.h>

/* Checks what every rank must get right to take part at all. */
oar_status oari_over_check(const char *what, int groups,
                           oar_group *const *group);

/* Ends a call in which ranks have failed: with this rank's own error if it is
 * one of them, else with OAR_E_STATE. */
oar_status oari_over_failed(const char *what, const oar_error *own);

#endif
