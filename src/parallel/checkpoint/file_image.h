/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/file_image.h: the bytes of the files that this rank
 * writes, block by block. A file is its header and the data of its chunks. The
 * blocks of all files are numbered one behind the other, as the arrays that
 * they are filled from lie in the files. */
#ifndef OARI_PARALLEL_CHECKPOINT_FILE_IMAGE_H
#define OARI_PARALLEL_CHECKPOINT_FILE_IMAGE_H

#include "file/json_writer.h"
#include "parallel/checkpoint/file_layout.h"

/* Where the part that an entry of a file is cut from lies in memory. */
typedef struct oari_ckpt_image_part {
    int64_t item; /* of the rank's list */
    uint64_t at;  /* bytes from the start of its array */
} oari_ckpt_image_part;

typedef struct oari_ckpt_image {
    const oari_ckpt_file *is;
    int64_t number; /* in the layout */
    oari_json_writer header;
    uint64_t bytes; /* with the header */
    int64_t first_block, blocks;
    oari_ckpt_image_part *part; /* by entry */
} oari_ckpt_image;

/* Fills in bytes [begin, end) of the data of a file of the layout. No element
 * is cut. Threads call it at the same time. */
typedef oar_status oari_ckpt_fill_fn(void *arg, int64_t file, uint64_t begin,
                                     uint64_t end, unsigned char *data);

/* Zeros are no files. */
typedef struct oari_ckpt_images {
    const oari_ckpt_save_plan *plan;
    const oari_ckpt_file_layout *layout;
    uint64_t block_bytes;
    /* (optional) gives the data, instead of arrays: there is no list */
    oari_ckpt_fill_fn *fill;
    void *fill_arg;
    int stream; /* the bytes of a block are not read soon after */
    int files;
    oari_ckpt_image *file;
    int64_t blocks; /* of all files */
} oari_ckpt_images;

/* What a file's header says about its generation. */
typedef struct oari_ckpt_image_label {
    const char *id;
    int64_t step;
    int rank;
} oari_ckpt_image_label;

/* Makes the headers of the files of rank label->rank, whose list this is, and
 * finds their parts. The caller has set the members before `files`. After a
 * failure the images can only be freed. */
oar_status oari_ckpt_images_make(oari_ckpt_images *images,
                                 const oari_ckpt_image_label *label,
                                 const oari_ckpt_part_list *list);
void oari_ckpt_images_free(oari_ckpt_images *images); /* empties it */

/* Which bytes of which file a block is. */
typedef struct oari_ckpt_image_block {
    int file;
    uint64_t begin, end;
} oari_ckpt_image_block;
oari_ckpt_image_block oari_ckpt_image_block_at(const oari_ckpt_images *images,
                                               int64_t block);

/* Gives the numbers of an item in host memory, row by row, as they are saved.
 */
typedef oar_status oari_ckpt_array_fn(void *arg, int64_t item,
                                      const void **array);

/* Writes the bytes of a block. */
oar_status oari_ckpt_image_fill(const oari_ckpt_images *images, int64_t block,
                                oari_ckpt_array_fn *find, void *arg,
                                unsigned char *bytes);

#endif
