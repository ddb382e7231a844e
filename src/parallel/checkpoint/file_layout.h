/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/file_layout.h: which file of a generation each chunk of a
 * plan lies in, and where. A pure function of the plan.
 *
 * A section is a folder. If all its tensors are written whole, its files are
 * those of Hugging Face, one for each writer:
 *     model/model-00001-of-00004.safetensors
 * Else all its files are shards, as PyTorch's distributed checkpoints have them
 * in the format of Hugging Face, and say in their headers which part of a
 * tensor each entry is (DCP_SHARDING_INFO):
 *     model/shard-00002-model-00001-of-00003.safetensors
 * is the first of three files of rank 1. No name may be twice in a file, so the
 * k-th chunk that a rank writes of one tensor is in its k-th file.
 *
 * In a file tensors with larger elements come first, then it goes by name: each
 * is aligned to its elements, and there are no holes. */
#ifndef OARI_PARALLEL_CHECKPOINT_FILE_LAYOUT_H
#define OARI_PARALLEL_CHECKPOINT_FILE_LAYOUT_H

#include "parallel/checkpoint/save_plan.h"

enum { OARI_CKPT_LONGEST_PATH = 192 };

typedef struct oari_ckpt_file {
    char path[OARI_CKPT_LONGEST_PATH]; /* from the generation's folder */
    int writer;
    int shard;            /* its header has DCP_SHARDING_INFO */
    uint64_t data_bytes;  /* without the header */
    int64_t first, count; /* of the layout's order */
} oari_ckpt_file;

typedef struct oari_ckpt_place {
    int64_t file;
    uint64_t at; /* bytes from where the data begins */
} oari_ckpt_place;

typedef struct oari_ckpt_file_layout {
    OARI_VEC(oari_ckpt_file) file; /* by section, writer and number */
    int64_t chunks;
    oari_ckpt_place *place; /* by chunk of the plan */
    int64_t *order;         /* chunks, as they lie in the files */
} oari_ckpt_file_layout;

/* OAR_E_NOMEM. */
oar_status oari_ckpt_file_layout_make(const oari_ckpt_save_plan *plan,
                                      oari_ckpt_file_layout *layout);
void oari_ckpt_file_layout_free(oari_ckpt_file_layout *layout);

/* One entry of a file's header. The name is the plan's. */
typedef struct oari_ckpt_file_entry {
    int64_t chunk; /* of the plan */
    const char *name;
    oar_dtype dtype;
    oar_shape shape;
    uint64_t begin, end;          /* data_offsets */
    int64_t offset[OAR_MAX_DIMS]; /* in each dim of shape: saved_offsets in
                                     DCP_SHARDING_INFO */
} oari_ckpt_file_entry;

/* Returns entry `index` of a file, from 0 to its count - 1, as it lies in the
 * file. */
oari_ckpt_file_entry
oari_ckpt_file_entry_at(const oari_ckpt_save_plan *plan,
                        const oari_ckpt_file_layout *layout, int64_t file,
                        int64_t index);

#endif
