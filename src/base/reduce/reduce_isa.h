/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce_isa.h: the table of kernels of an instruction set for
 * reduce.c. An entry that is NULL is taken from the instruction set before it
 * in the list of reduce.c; "scalar", the first, has them all.
 *
 * The macros of this header make kernels of the loops of reduce_loops.h. */
#ifndef OARI_BASE_REDUCE_REDUCE_ISA_H
#define OARI_BASE_REDUCE_REDUCE_ISA_H

#include "base/reduce/reduce.h"

/* Reduces the first `bytes` bytes of every source; bytes is not 0. */
typedef void oari_reduce_fn(const oari_reduction *r, size_t bytes);

typedef enum oari_reduce_shape {
    OARI_ANY_SHAPE,  /* any number of sources and destinations, no scaling */
    OARI_TWO_TO_ONE, /* (optional) two sources, one destination, no scaling */
    OARI_TWO_TO_TWO, /* (optional) two sources and destinations, no scaling */
    OARI_SCALED,     /* sums of floats, any number, factor or divisor */
    OARI_SHAPES
} oari_reduce_shape;

typedef struct oari_reduce_table {
    oari_reduce_fn *fn[OARI_SHAPES][OAR_REDUCE_OP_COUNT][OAR_DTYPE_COUNT];
} oari_reduce_table;

typedef enum oari_reduce_fit {
    OARI_ISA_ABSENT,
    OARI_ISA_USABLE, /* works, but the set before it is as fast or faster */
    OARI_ISA_WANTED
} oari_reduce_fit;

typedef struct oari_reduce_set {
    const char *name;
    oari_reduce_fit (*fit)(void); /* this machine, asked once */
    oari_reduce_table table;
} oari_reduce_set;

extern const oari_reduce_set oari_reduce_scalar;
#if defined(__x86_64__)
extern const oari_reduce_set oari_reduce_avx2, oari_reduce_avx512;
#elif defined(__aarch64__)
extern const oari_reduce_set oari_reduce_neon;
/* Clang learned late to compile these without a compiler flag. */
#if !defined(__clang__) || __clang_major__ >= 16
#define OARI_REDUCE_HAS_ARM_EXTENSIONS 1
extern const oari_reduce_set oari_reduce_neon_f16, oari_reduce_neon_bf16;
extern const oari_reduce_set oari_reduce_sve;
#endif
#endif

/* Adds integers with a factor or divisor, on every instruction set. */
oari_reduce_fn oari_reduce_scaled_integers;

/* Returns 1 / divisor if multiplying by it gives the same bits as dividing,
 * that is for powers of two; else 0. */
double oari_reduce_exact_inverse(double divisor);

/* A kernel for any shape: E is the element (f32), OP the operator (sum), KIND
 * its oar_reduce_op_kind. TARGET comes from the including file. */
#define OARI_KERNEL(E, OP, KIND)                                           \
    static TARGET void E##_##OP(const oari_reduction *given, size_t bytes) \
    {                                                                      \
        oari_reduction r = *given;                                         \
                                                                           \
        r.kind = KIND;                                                     \
        r.factor = NULL;                                                   \
        r.divisor = 0;                                                     \
        E##_run(&r, 0, bytes);                                             \
    }

/* A sum of two sources into so many destinations. The pointers are copied, so
 * that they stay in registers whatever the stores might alias. */
#define OARI_KERNEL_OF_TWO(E, NAME, DESTINATIONS)                            \
    static TARGET void E##_##NAME(const oari_reduction *given, size_t bytes) \
    {                                                                        \
        const void *source[2] = { given->source[0], given->source[1] };      \
        void *destination[2] = { given->destination[0],                      \
                                 given->destination[(DESTINATIONS)-1] };     \
        oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,                      \
                             .sources = 2,                                   \
                             .source = source,                               \
                             .destinations = (DESTINATIONS),                 \
                             .destination = destination };                   \
                                                                             \
        E##_run(&r, 0, bytes);                                               \
    }

#define OARI_KERNEL_SCALED(E)                                                \
    static TARGET void E##_scaled(const oari_reduction *given, size_t bytes) \
    {                                                                        \
        oari_reduction r = *given;                                           \
                                                                             \
        r.kind = OAR_REDUCE_OP_SUM;                                          \
        E##_run(&r, oari_reduce_exact_inverse(r.divisor), bytes);            \
    }

/* All that a floating-point element has. */
#define OARI_FLOAT_KERNELS(E)            \
    OARI_FLOAT_KERNELS_BUT_TWO(E)        \
    OARI_KERNEL_OF_TWO(E, two_to_one, 1) \
    OARI_KERNEL_OF_TWO(E, two_to_two, 2)

#define OARI_FLOAT_KERNELS_BUT_TWO(E)        \
    OARI_KERNEL(E, sum, OAR_REDUCE_OP_SUM)   \
    OARI_KERNEL(E, prod, OAR_REDUCE_OP_PROD) \
    OARI_KERNEL(E, min, OAR_REDUCE_OP_MIN)   \
    OARI_KERNEL(E, max, OAR_REDUCE_OP_MAX)   \
    OARI_KERNEL_SCALED(E)

#endif
