/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint/catalog/catalog.h: one generation, open to be read, and its
 * tensors written into other files. */
#ifndef OARI_PARALLEL_CHECKPOINT_CATALOG_CATALOG_H
#define OARI_PARALLEL_CHECKPOINT_CATALOG_CATALOG_H

#include "parallel/checkpoint/load/read_files.h"
#include "parallel/checkpoint/saving.h"

enum { OARI_CATALOG_THREADS = 4 };

struct oar_catalog {
    const oari_disk *disk;
    char *path;     /* of the generation */
    int generation; /* its folder */
    oari_ckpt_index index;
};

/* Returns how to read a plan of the catalog. With one thread it is read through
 * the page cache: the next plan has blocks of this one. */
oari_ckpt_reading oari_catalog_reading(const oar_catalog *catalog,
                                       const oari_ckpt_read_plan *plan,
                                       void *const *target, int threads);

/* Where the numbers of a tensor that is written come from. */
typedef struct oari_catalog_source {
    const oari_ckpt_index_tensor *tensor;
    int transpose;
} oari_catalog_source;

/* Files that are written out of a catalog. `to` has the plan and the layout,
 * and stands for each of its ranks in turn. */
typedef struct oari_catalog_rewrite {
    const oar_catalog *catalog;
    oar_checkpoint *to;
    const oari_catalog_source *source; /* by tensor of the plan */
} oari_catalog_rewrite;

/* Writes all files of the plan into the folder saving->generation, and syncs
 * them. */
oar_status oari_catalog_rewrite_files(oari_catalog_rewrite *rewrite,
                                      oari_ckpt_saving *saving);

#endif
