/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/embedding_job.h: the arguments of the kernels of embedding.cu,
 * for C and C++. */
#ifndef OARI_TENSOR_CUDA_EMBEDDING_JOB_H
#define OARI_TENSOR_CUDA_EMBEDDING_JOB_H

#include <stdint.h>

#include "device/cuda/index_error.h"

#ifndef __cplusplus /* CUDA has it */
typedef struct int2 {
    int x, y;
} int2;
#endif

enum {
    OARI_SORT_BITS = 8,
    OARI_SORT_DIGITS = 1 << OARI_SORT_BITS,
    OARI_SORT_THREADS = 256, /* of a block; each has a digit */
    OARI_SORT_SHARE = 1024,  /* elements that a block sorts, or more, so that */
    OARI_SORT_BLOCKS = 128,  /* there are at most so many */
    OARI_PICK_WARPS = 8,     /* of a block; each takes a row */
    OARI_ADD_PARTS = 3       /* packs of a lane of a row that is added */
};

/* Rows first .. first+count-1 of a vocabulary of `vocabulary` are the table's;
 * `row` [picks], unless NULL, gets the table's row of each index, -1 for one
 * that it does not have, whose result is zero. */
typedef struct oari_pick_job {
    const int64_t *index;
    const char *table;
    char *to;
    int64_t *row;
    int64_t picks, bytes; /* bytes of a row */
    int64_t first, count, vocabulary;
    int unit; /* bytes that are moved at once: 16, 8, 4, 2 or 1 */
    oari_index_check check;
} oari_pick_job;

typedef struct oari_positions_job {
    int64_t *to;
    int64_t count;
} oari_positions_job;

/* One pass of a sort by bits shift .. shift+7. Keys are rows of the table;
 * those that it does not have are 2^32 - 1, and last. place is where each was
 * at first. Equal keys keep their order. */
typedef struct oari_sort_job {
    const int64_t *row; /* of the first pass; else NULL */
    const uint32_t *key, *place;
    uint32_t *to_key, *to_place;
    uint32_t *count; /* [blocks, digits]: how many of each digit a block has */
    int64_t picks, blocks, share, rows;
    int shift;
} oari_sort_job;

/* to [count, width], row k, (+)= the sum of the rows of grad whose sorted keys
 * are k; nothing for row skip. start [count] is -1 before its kernel. */
typedef struct oari_add_rows_job {
    const uint32_t *key, *place;
    int2 *start; /* where a row's first pick is among the sorted, and its place
                    before */
    const void *grad;
    void *to;
    int64_t picks, count, width, skip;
    int add;
    int is_wide;   /* `to` is of the wider dtype */
    int is_packed; /* rows can be moved by 16 bytes */
} oari_add_rows_job;

#endif
