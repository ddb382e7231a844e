/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_blas.h: products of matrices by cuBLASLt, which is found at
 * run time: OARSONG_CUBLASLT_LIBRARY, else one that is loaded already, else
 * libcublasLt.so.13 or .12. Loading it takes long: it happens at the first use.
 *
 * The first product of a kind (shape, dtypes, strides, epilogue) measures the
 * first algorithms that cuBLASLt proposes, with the host waiting, and keeps the
 * fastest. None of them adds in an order that depends on timing. Without
 * OARSONG_TUNE_FILE only those count that give the same bits as the first one,
 * so that results do not depend on what was measured; with it every one, and
 * the choice is written to that file and read from it by later runs. */
#ifndef OARI_DEVICE_CUDA_CUDA_BLAS_H
#define OARI_DEVICE_CUDA_CUDA_BLAS_H

#include <oarsong/device.h>

#include "device/cuda/cuda_symbols.h"

typedef enum oari_blas_epilogue {
    OARI_BLAS_PLAIN,
    OARI_BLAS_BIAS,      /* + bias [n] in every row */
    OARI_BLAS_GELU,      /* gelu_tanh of that; aux [m, n] = what it is of */
    OARI_BLAS_GELU_BACK, /* times the slope of gelu_tanh at aux */
    OARI_BLAS_GELU_BACK_SUMS, /* and bias [n] = the sums of the columns of to */
    OARI_BLAS_SUMS            /* bias [m] = the sums of the rows of a */
} oari_blas_epilogue;

/* A matrix row by row, rows `lead` elements apart; turned: it is the transpose
 * of what lies there. Strides in elements. */
typedef struct oari_blas_side {
    const void *data;
    int turned;
    int64_t lead, batch;
} oari_blas_side;

/* to [m, n] (+)= a [m, k] b [k, n], `batches` times. Sums are in f32 (f64 for
 * f64). */
typedef struct oari_blas_job {
    oar_dtype dtype, to_dtype; /* of a and b; of to, bias and aux */
    int64_t m, n, k, batches;
    oari_blas_side a, b;
    void *to;
    int64_t to_lead, to_batch;
    int add;
    oari_blas_epilogue epilogue;
    void *bias, *aux;
    int64_t aux_lead;
} oari_blas_job;

/* Enqueues the product. OAR_E_UNAVAILABLE: there is no cuBLASLt;
 * OAR_E_UNSUPPORTED: it has no algorithm for this one. Both leave `to` as it
 * was, or unspecified where it is not added to. */
oar_status oari_blas_multiply(int device, const oari_blas_job *job,
                              oari_cu_stream stream);

/* Returns whether cuBLASLt is there, without setting an error. */
int oari_blas_present(int device);

/* Gives the choices of this process, as lines of OARSONG_TUNE_FILE; free the
 * text with oari_free. */
oar_status oari_blas_write_choices(char **text, size_t *bytes);

/* Takes such lines for choices from now on, instead of those taken before and
 * of the file's. *changed: how many kinds of products that this process has had
 * have another algorithm now. */
oar_status oari_blas_take_choices(const char *text, size_t bytes, int *changed);

/* Frees the workspace of a stream that ends. */
void oari_blas_forget(int device, oari_cu_stream stream);

#endif
