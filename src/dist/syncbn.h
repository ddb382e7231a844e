/* SPDX-License-Identifier: Apache-2.0 */
/* dist/syncbn.h: what DDP tells synchronised batch norms. */
#ifndef OARI_DIST_SYNCBN_H
#define OARI_DIST_SYNCBN_H

#include <oarsong/module.h>

/* This rank's loss counts so much in the mean over ranks: what its loss sends
 * through the statistics into other ranks' gradients must, too. For all below
 * the module. */
void oari_syncbn_weigh(const oar_module *module, double weight);

#endif
