/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/blas_plan.h: how one kind of product is done by cuBLASLt: its
 * descriptors and the algorithm that was chosen. The lock of cuda_blas.c guards
 * all calls. */
#ifndef OARI_DEVICE_CUDA_BLAS_PLAN_H
#define OARI_DEVICE_CUDA_BLAS_PLAN_H

#include "device/cuda/cuda_blas.h"
#include "device/cuda/blas_symbols.h"
#include "device/cuda/cuda.h"

enum { OARI_BLAS_WORKSPACE = 32 << 20 }; /* bytes, a stream */

/* What makes two products of one kind. Compared byte by byte: no gaps. */
typedef struct oari_blas_key {
    int64_t m, n, k, batches;
    int64_t a_lead, b_lead, to_lead, aux_lead;
    int64_t a_batch, b_batch, to_batch;
    int32_t device, dtype, to_dtype, epilogue;
    int32_t a_turned, b_turned, add, tf32;
    int32_t align[4]; /* bytes, of a, b, to and the smaller of bias and aux */
} oari_blas_key;

typedef struct oari_blas_plan {
    struct oari_blas_plan *next;
    oari_blas_key key;
    oari_lt_desc desc;
    oari_lt_layout a, b, to;
    oari_lt_algo algo;
} oari_blas_plan;

/* Where and with what a product is done. */
typedef struct oari_blas_run {
    const oari_blas_table *lt;
    const oari_cuda *cu; /* its context is current */
    oari_lt_handle handle;
    void *workspace;
    int device;
    int tf32;
    oari_cu_stream stream;
} oari_blas_run;

/* Gives the plan of a kind of product; the first time it measures. */
oar_status oari_blas_find_plan(const oari_blas_run *run,
                               const oari_blas_job *job, oari_blas_plan **plan);

/* Enqueues the product, to `to`, by some algorithm. */
oar_status oari_blas_run_plan(const oari_blas_run *run,
                              const oari_blas_plan *plan,
                              const oari_blas_job *job,
                              const oari_lt_algo *algo, void *to);

/* Gives all choices as lines, and takes those that are recalled; returns how
 * many are others than before. */
oar_status oari_blas_write_plans(const oari_blas_run *run, char **text,
                                 size_t *bytes);
int oari_blas_recall_plans(const oari_blas_run *run);

/* Gives the algorithm that lines which were taken, or else OARSONG_TUNE_FILE,
 * have for this kind, or returns 0. */
int oari_blas_recall(const oari_blas_run *run, const oari_blas_key *key,
                     oari_lt_algo *algo);

/* Keeps lines that oari_blas_recall looks at first. */
oar_status oari_blas_take_lines(const char *text, size_t bytes);

enum { OARI_BLAS_LINE = 2048 };

/* Writes a choice as a line; returns its length. */
size_t oari_blas_write_line(const oari_blas_run *run, const oari_blas_key *key,
                            const oari_lt_algo *algo,
                            char line[OARI_BLAS_LINE]);

/* Writes a choice to OARSONG_TUNE_FILE, if that is set and this is rank 0. A
 * file that cannot be written is a warning. */
void oari_blas_remember(const oari_blas_run *run, const oari_blas_key *key,
                        const oari_lt_algo *algo);

/* Fails with `what` and the status; OAR_OK for 0. */
oar_status oari_blas_check(int result, const char *what);

#endif
