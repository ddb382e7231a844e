/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/dnnl_symbols.h: the part of oneDNN's C interface that
 * dnnl.c uses, of versions 2 and 3, declared here so that no header of theirs
 * is needed to build. Handles are pointers, numbers are those of its enums. */
#ifndef OARI_TENSOR_CPU_PRODUCT_DNNL_SYMBOLS_H
#define OARI_TENSOR_CPU_PRODUCT_DNNL_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

enum {
    OARI_DNNL_CPU = 1,      /* kind of engine */
    OARI_DNNL_IN_ORDER = 1, /* flag of a stream */
    OARI_DNNL_BF16 = 2,     /* dtypes */
    OARI_DNNL_F32 = 3,
    OARI_DNNL_BY_CALLER = 1,  /* who has the scratch memory */
    OARI_DNNL_QUERY_NAME = 8, /* of the implementation */
    OARI_DNNL_QUERY_SCRATCH = 136,
    OARI_DNNL_ARG_A = 1, /* arguments of a product */
    OARI_DNNL_ARG_C = 17,
    OARI_DNNL_ARG_B = 33,
    OARI_DNNL_ARG_SCRATCH = 80,
    OARI_DNNL_SEQUENTIAL = 1, /* what runs its threads */
    OARI_DNNL_OPENMP = 2
};

typedef struct oari_dnnl_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} oari_dnnl_version;

typedef struct oari_dnnl_arg {
    int kind;
    void *memory;
} oari_dnnl_arg;

typedef int64_t oari_dnnl_dims[12];

/* What version 2 has as structs: the description of an array (696 bytes) and
 * of a product (2800). */
typedef struct oari_dnnl_md {
    int64_t words[128];
} oari_dnnl_md;

typedef struct oari_dnnl_op {
    int64_t words[512];
} oari_dnnl_op;

/* X(name without "dnnl_", result, parameters): of both versions, in which md is
 * a pointer to such a struct, or to one of the library's. */
#define OARI_DNNL_SYMBOLS(X)                                             \
    X(version, const oari_dnnl_version *, (void))                        \
    X(engine_create, int, (void **engine, int kind, size_t index))       \
    X(stream_create, int, (void **stream, void *engine, unsigned flags)) \
    X(stream_wait, int, (void *stream))                                  \
    X(stream_destroy, int, (void *stream))                               \
    X(primitive_attr_create, int, (void **attr))                         \
    X(primitive_attr_destroy, int, (void *attr))                         \
    X(primitive_attr_set_scratchpad_mode, int, (void *attr, int mode))   \
    X(primitive_attr_set_post_ops, int, (void *attr, const void *ops))   \
    X(post_ops_create, int, (void **ops))                                \
    X(post_ops_destroy, int, (void *ops))                                \
    X(memory_desc_get_size, size_t, (const void *md))                    \
    X(primitive_desc_query, int,                                         \
      (const void *desc, int what, int index, void *result))             \
    X(primitive_desc_query_md, const void *,                             \
      (const void *desc, int what, int index))                           \
    X(primitive_desc_destroy, int, (void *desc))                         \
    X(primitive_create, int, (void **primitive, const void *desc))       \
    X(primitive_destroy, int, (void *primitive))                         \
    X(primitive_execute, int,                                            \
      (const void *primitive, void *stream, int count,                   \
       const oari_dnnl_arg *args))                                       \
    X(memory_create, int,                                                \
      (void **memory, const void *md, void *engine, void *data))         \
    X(memory_set_data_handle, int, (void *memory, const void *data))     \
    X(memory_destroy, int, (void *memory))

#define OARI_DNNL_SYMBOLS_2(X)                                              \
    X(memory_desc_init_by_strides, int,                                     \
      (oari_dnnl_md * md, int ndims, const oari_dnnl_dims dims, int dtype,  \
       const oari_dnnl_dims strides))                                       \
    X(post_ops_append_sum_v3, int,                                          \
      (void *ops, float scale, int32_t zero, int dtype))                    \
    X(matmul_desc_init, int,                                                \
      (oari_dnnl_op * op, const oari_dnnl_md *a, const oari_dnnl_md *b,     \
       const oari_dnnl_md *bias, const oari_dnnl_md *c))                    \
    X(primitive_desc_create, int,                                           \
      (void **desc, const oari_dnnl_op *op, const void *attr, void *engine, \
       const void *hint))

#define OARI_DNNL_SYMBOLS_3(X)                                     \
    X(memory_desc_create_with_strides, int,                        \
      (void **md, int ndims, const oari_dnnl_dims dims, int dtype, \
       const oari_dnnl_dims strides))                              \
    X(memory_desc_destroy, int, (void *md))                        \
    X(post_ops_append_sum, int,                                    \
      (void *ops, float scale, int32_t zero, int dtype))           \
    X(matmul_primitive_desc_create, int,                           \
      (void **desc, void *engine, const void *a, const void *b,    \
       const void *bias, const void *c, const void *attr))

typedef struct oari_dnnl_table {
#define X(name, result, parameters) result(*name) parameters;
    OARI_DNNL_SYMBOLS(X)
    OARI_DNNL_SYMBOLS_2(X)
    OARI_DNNL_SYMBOLS_3(X)
#undef X
    /* (optional) Of OpenMP: how many threads the calling thread's next parallel
     * region has. */
    int (*get_threads)(void);
    void (*set_threads)(int threads);
} oari_dnnl_table;

#endif
