/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/blas_symbols.h: lists every function and number of cuBLASLt that
 * this library uses; the functions are found at run time. X(field, symbol,
 * parameters); oari_blas_table has a pointer for each. All return a
 * cublasStatus_t but GetVersion. */
#ifndef OARI_DEVICE_CUDA_BLAS_SYMBOLS_H
#define OARI_DEVICE_CUDA_BLAS_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

typedef void *oari_lt_handle, *oari_lt_desc, *oari_lt_layout, *oari_lt_pref;

/* cublasLtMatmulAlgo_t: may be kept and used again with the same version. */
typedef struct oari_lt_algo {
    uint64_t data[8];
} oari_lt_algo;

/* cublasLtMatmulHeuristicResult_t */
typedef struct oari_lt_result {
    oari_lt_algo algo;
    size_t workspace_bytes;
    int state; /* 0: the rest is valid */
    float waves;
    int reserved[4];
} oari_lt_result;

/* Values of cublasLt.h, the same since version 12. */
enum {
    OARI_LT_F32 = 0, /* cudaDataType */
    OARI_LT_F64 = 1,
    OARI_LT_F16 = 2,
    OARI_LT_BF16 = 14,
    OARI_LT_COMPUTE_F32 = 68, /* cublasComputeType_t */
    OARI_LT_COMPUTE_F64 = 70,
    OARI_LT_COMPUTE_TF32 = 77,
    OARI_LT_DESC_TRANS_A = 3, /* cublasLtMatmulDescAttributes_t */
    OARI_LT_DESC_TRANS_B = 4,
    OARI_LT_DESC_EPILOGUE = 7,
    OARI_LT_DESC_BIAS = 8,
    OARI_LT_DESC_AUX = 11,
    OARI_LT_DESC_AUX_LEAD = 12,
    OARI_LT_LAYOUT_BATCHES = 5, /* cublasLtMatrixLayoutAttribute_t */
    OARI_LT_LAYOUT_BATCH_STRIDE = 6,
    OARI_LT_PREF_WORKSPACE = 1, /* cublasLtMatmulPreferenceAttributes_t */
    OARI_LT_PREF_REDUCTIONS = 3,
    OARI_LT_PREF_ALIGN_A = 5,  /* then B, C and D */
    OARI_LT_REDUCE_IN_F32 = 2, /* of split sums, in memory of their own */
    OARI_LT_EPILOGUE_PLAIN = 1,
    OARI_LT_EPILOGUE_BIAS = 4,
    OARI_LT_EPILOGUE_GELU_AUX_BIAS = 164,
    OARI_LT_EPILOGUE_DGELU = 192,
    OARI_LT_EPILOGUE_DGELU_BIAS_GRAD = 208,
    OARI_LT_EPILOGUE_BIAS_GRAD_B = 512,
    OARI_LT_TRANSPOSED = 1,    /* cublasOperation_t */
    OARI_LT_NOT_SUPPORTED = 15 /* cublasStatus_t */
};

/* clang-format off */
#define OARI_BLAS_SYMBOLS(X)                                                   \
    X(Create, cublasLtCreate, (oari_lt_handle *handle))                        \
    X(DescCreate, cublasLtMatmulDescCreate,                                    \
      (oari_lt_desc *desc, int compute, int scale))                            \
    X(DescDestroy, cublasLtMatmulDescDestroy, (oari_lt_desc desc))             \
    X(DescSet, cublasLtMatmulDescSetAttribute,                                 \
      (oari_lt_desc desc, int attribute, const void *value, size_t bytes))     \
    X(LayoutCreate, cublasLtMatrixLayoutCreate,                                \
      (oari_lt_layout *layout, int type, uint64_t rows, uint64_t columns,      \
       int64_t lead))                                                          \
    X(LayoutDestroy, cublasLtMatrixLayoutDestroy, (oari_lt_layout layout))     \
    X(LayoutSet, cublasLtMatrixLayoutSetAttribute,                             \
      (oari_lt_layout layout, int attribute, const void *value, size_t bytes)) \
    X(PrefCreate, cublasLtMatmulPreferenceCreate, (oari_lt_pref *pref))        \
    X(PrefDestroy, cublasLtMatmulPreferenceDestroy, (oari_lt_pref pref))       \
    X(PrefSet, cublasLtMatmulPreferenceSetAttribute,                           \
      (oari_lt_pref pref, int attribute, const void *value, size_t bytes))     \
    X(Heuristic, cublasLtMatmulAlgoGetHeuristic,                               \
      (oari_lt_handle handle, oari_lt_desc desc, oari_lt_layout a,             \
       oari_lt_layout b, oari_lt_layout c, oari_lt_layout d,                   \
       oari_lt_pref pref, int wanted, oari_lt_result *results, int *count))    \
    X(Matmul, cublasLtMatmul,                                                  \
      (oari_lt_handle handle, oari_lt_desc desc, const void *alpha,            \
       const void *a, oari_lt_layout a_layout, const void *b,                  \
       oari_lt_layout b_layout, const void *beta, const void *c,               \
       oari_lt_layout c_layout, void *d, oari_lt_layout d_layout,              \
       const oari_lt_algo *algo, void *workspace, size_t workspace_bytes,      \
       void *stream))
/* clang-format on */

typedef struct oari_blas_table {
#define X(field, symbol, parameters) int(*field) parameters;
    OARI_BLAS_SYMBOLS(X)
#undef X
    size_t (*GetVersion)(void); /* cublasLtGetVersion */
} oari_blas_table;

#endif
