/* SPDX-License-Identifier: Apache-2.0 */
/* gemm: small f32 products by a loop of our own where the machine has wide
 * vectors and a fused multiply and add; all others by CBLAS, which takes longer
 * to set out than a small product lasts. */
#include "tensor/cpu/product/gemm.h"

#include <cblas.h>

#include "tensor/cpu/product/blas.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/fused.h"

enum { MOST_IN_B = 8192 }; /* elements: what stays in the first cache */

static enum CBLAS_TRANSPOSE turn_of(const oari_matrix *a)
{
    return a->turned ? CblasTrans : CblasNoTrans;
}

static void multiply_by_cblas(const oari_gemm_job *j)
{
    int m = (int)j->m, n = (int)j->n, k = (int)j->k, ldc = (int)j->lead;
    int lda = (int)j->a.lead, ldb = (int)j->b.lead;

    oari_blas_enter();
    if (j->dtype == OAR_F32)
        cblas_sgemm(CblasRowMajor, turn_of(&j->a), turn_of(&j->b), m, n, k,
                    (float)j->factor, j->a.data, lda, j->b.data, ldb,
                    j->add ? 1.0f : 0.0f, j->c, ldc);
    else
        cblas_dgemm(CblasRowMajor, turn_of(&j->a), turn_of(&j->b), m, n, k,
                    j->factor, j->a.data, lda, j->b.data, ldb,
                    j->add ? 1.0 : 0.0, j->c, ldc);
    oari_blas_leave();
}

/* Whether one of our own kernels has done it. */
static int multiply_by_loops(const oari_gemm_job *j)
{
    oari_product p = { .a = j->a.data,
                       .b = j->b.data,
                       .c = j->c,
                       .m = j->m,
                       .n = j->n,
                       .k = j->k,
                       .row = j->a.turned ? 1 : j->a.lead,
                       .step = j->a.turned ? j->a.lead : 1,
                       .ldb = j->b.lead,
                       .ldc = j->lead,
                       .factor = (float)j->factor,
                       .add = j->add };

    if (j->dtype != OAR_F32 || j->b.turned || j->n * j->k > MOST_IN_B ||
        oari_fused()->product == NULL)
        return 0;
    oari_fused()->product(&p);
    return 1;
}

void oari_gemm(const oari_gemm_job *job)
{
    if (job->m == 0 || job->n == 0)
        return;
    if (job->k > 0 && !multiply_by_loops(job))
        multiply_by_cblas(job);
    if (job->k > 0 || job->add)
        return;
    OARI_BY_FLOAT(job->dtype, {
        T *c = job->c;
        for (int64_t i = 0; i < job->m; i++, c += job->lead)
            for (int64_t k = 0; k < job->n; k++)
                c[k] = 0;
    })
}
