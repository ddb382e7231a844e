/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/generation_index.h: index.json, which says what a
 * generation holds and where, with a checksum of every block of every file, and
 * ends in one of its own. docs/formats.md draws it.
 *
 * It is read without a tree: in at most four times its own length. */
#ifndef OARI_PARALLEL_CHECKPOINT_GENERATION_INDEX_H
#define OARI_PARALLEL_CHECKPOINT_GENERATION_INDEX_H

#include "file/json_writer.h"
#include "parallel/place/box.h"

#define OARI_CKPT_INDEX "index.json"
enum { OARI_CKPT_FORMAT = 1 };

typedef struct oari_ckpt_index_file {
    const char *path; /* "model/model-00001-of-00002.safetensors" */
    uint64_t bytes;
    uint64_t data;  /* where its data begins */
    int64_t blocks; /* of checksums */
    uint64_t *sum;
} oari_ckpt_index_file;

typedef struct oari_ckpt_index_tensor {
    const char *section, *name;
    oar_dtype dtype;
    int ndim;
    int64_t dims;          /* where its shape begins in the index's dims */
    int64_t first, chunks; /* of the index's */
} oari_ckpt_index_tensor;

typedef struct oari_ckpt_index_chunk {
    uint64_t at; /* bytes from the start of the file */
    int32_t file;
    int64_t dims; /* where its offsets begin in dims; its extents follow */
} oari_ckpt_index_chunk;

/* A name that is another one's tensor. */
typedef struct oari_ckpt_alias {
    const char *section, *name, *of;
} oari_ckpt_alias;

/* A number or text. Numbers are texts of digits; floats are C's hexadecimal
 * texts, so that they come back bitwise. */
typedef struct oari_ckpt_value {
    const char *name, *text;
    int is_text; /* in quotes */
} oari_ckpt_value;

/* Lists are sorted: tensors and aliases by section and name, values by name. */
typedef struct oari_ckpt_index {
    char *text; /* the texts are in here, if it was read; owned */
    const char *id, *note;
    int64_t step, saved_unix_s;
    int ranks, keep;
    uint64_t block_bytes;
    int64_t files, tensors, chunks, dims, aliases, values, sums;
    oari_ckpt_index_file *file;
    oari_ckpt_index_tensor *tensor;
    oari_ckpt_index_chunk *chunk;
    int64_t *dim;
    oari_ckpt_alias *alias;
    oari_ckpt_value *value;
    uint64_t *sum;
} oari_ckpt_index;

/* Allocates the lists by the counts that are set; zeros. */
oar_status oari_ckpt_index_alloc(oari_ckpt_index *index);
void oari_ckpt_index_free(oari_ckpt_index *index); /* empties it */

/* Writes the file's text. */
void oari_ckpt_index_write(oari_json_writer *writer,
                           const oari_ckpt_index *index);

/* Reads a text, which it takes, also when it fails (oari_free). The byte behind
 * it must be writable. `what` is the file, for errors. OAR_E_DATA if anything
 * is not as it should be, OAR_E_UNSUPPORTED for a newer format. */
oar_status oari_ckpt_index_read(const char *what, char *text, size_t bytes,
                                oari_ckpt_index *index);

/* Returns the shape of a tensor, and the box of a chunk. */
oar_shape oari_ckpt_index_shape(const oari_ckpt_index *index,
                                const oari_ckpt_index_tensor *tensor);
oari_box oari_ckpt_index_box(const oari_ckpt_index *index,
                             const oari_ckpt_index_tensor *tensor,
                             const oari_ckpt_index_chunk *chunk);

/* Return the tensor of a name, also of an alias; the value of a name. NULL. */
const oari_ckpt_index_tensor *oari_ckpt_index_find(const oari_ckpt_index *index,
                                                   const char *section,
                                                   const char *name);
const oari_ckpt_value *oari_ckpt_index_value(const oari_ckpt_index *index,
                                             const char *name);

/* Returns the checksum of a block, or of an index's text. */
uint64_t oari_block_sum(const void *data, size_t bytes);

#endif
