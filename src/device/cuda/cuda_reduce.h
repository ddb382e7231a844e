/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_reduce.h: the arguments of the kernels of reduce.cu, one
 * struct by value. For C and nvcc.
 *
 * oari_reduce_DTYPE (f32, bf16, ...) combines n sources element by element, in
 * their order, and stores the result into m destinations, bit for bit as
 * base/reduce/reduce.h does (a NaN that arithmetic makes may have other bits).
 * oari_sum_DTYPE_N adds N sources without factors. oari_copy copies each of
 * several pieces of memory to any number of targets. */
#ifndef OARI_DEVICE_CUDA_CUDA_REDUCE_H
#define OARI_DEVICE_CUDA_CUDA_REDUCE_H

#include <stdint.h>

/* Arguments of a kernel have 4 KiB at most on older devices. */
enum {
    OARI_CUDA_SOURCES = 64, /* and destinations, of a reduction */
    OARI_CUDA_FEW = 8,      /* of a sum with a kernel of its own */
    OARI_CUDA_PIECES = 64,
    OARI_CUDA_TARGETS = 200,
    OARI_CUDA_VECTOR = 16,       /* bytes that a thread moves at once */
    OARI_CUDA_CHUNK = 16 * 1024, /* bytes of a piece that a block does */
    OARI_CUDA_REDUCE_THREADS = 512,
    OARI_CUDA_COPY_THREADS = 256
};

/* Elements head .. head + 16-byte vectors lie on 16 bytes in every buffer, and
 * the others are done one by one. */
typedef struct oari_cuda_range {
    uint64_t count;   /* elements */
    uint64_t head;    /* elements before the first vector */
    uint64_t vectors; /* 0: all one by one */
} oari_cuda_range;

typedef struct oari_cuda_reduction {
    uint64_t stop; /* address of a u32: if it is not 0, do nothing; 0: none */
    oari_cuda_range range;
    double divisor; /* 0: none */
    double inverse; /* of the divisor, if that is exact; else 0 */
    int32_t op;     /* oar_reduce_op_kind; a sum for means and weighted sums */
    int32_t sources, destinations;
    int32_t factors; /* there are some */
    uint64_t source[OARI_CUDA_SOURCES];
    uint64_t destination[OARI_CUDA_SOURCES];
    double factor[OARI_CUDA_SOURCES];
} oari_cuda_reduction;

typedef struct oari_cuda_sum {
    uint64_t stop;
    oari_cuda_range range;
    double divisor, inverse;
    int32_t destinations;
    uint64_t source[OARI_CUDA_FEW];
    uint64_t destination[OARI_CUDA_FEW];
} oari_cuda_sum;

/* A copy from one address to several. Chunks begin at multiples of 16 KiB from
 * `from - skew`. */
typedef struct oari_cuda_piece {
    uint64_t from, bytes;
    uint64_t chunk;   /* the first, of all chunks of all pieces */
    uint16_t target;  /* the first in `to` */
    uint16_t targets; /* how many */
    uint16_t unit;    /* 1, 2, 4, 8, 16: all begin on the same odd bytes
                         of that many */
    uint16_t skew;    /* how many those are */
} oari_cuda_piece;

typedef struct oari_cuda_copy {
    uint64_t stop;
    uint64_t chunks;
    uint32_t pieces;
    oari_cuda_piece piece[OARI_CUDA_PIECES];
    uint64_t to[OARI_CUDA_TARGETS];
} oari_cuda_copy;

#endif
