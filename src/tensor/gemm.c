/* SPDX-License-Identifier: Apache-2.0 */
/* gemm: small f32 products by a loop of our own where the baseline of the
 * machine has wide vectors and a fused multiply and add; all others by CBLAS,
 * which takes longer to set out than a small product lasts. */
#include "tensor/gemm.h"

#include <cblas.h>

#include "tensor/blas.h"
#include "tensor/dispatch.h"

static enum CBLAS_TRANSPOSE turn_of(const oari_matrix *a)
{
    return a->turned ? CblasTrans : CblasNoTrans;
}

static void by_cblas(const oari_gemm_job *j)
{
    int m = (int)j->m, n = (int)j->n, k = (int)j->k, ldc = (int)j->lead;
    int lda = (int)j->a.lead, ldb = (int)j->b.lead;

    oari_blas_settle();
    if (j->dtype == OAR_F32)
        cblas_sgemm(CblasRowMajor, turn_of(&j->a), turn_of(&j->b), m, n, k,
                    (float)j->factor, j->a.data, lda, j->b.data, ldb,
                    j->add ? 1.0f : 0.0f, j->c, ldc);
    else
        cblas_dgemm(CblasRowMajor, turn_of(&j->a), turn_of(&j->b), m, n, k,
                    j->factor, j->a.data, lda, j->b.data, ldb,
                    j->add ? 1.0 : 0.0, j->c, ldc);
}

#ifdef __aarch64__
#include <arm_neon.h>

enum {
    MOST_IN_B = 8192, /* elements: half of the first cache */
    ROWS = 4,         /* of a tile */
    VECTORS = 4       /* of four columns, of a tile */
};

/* What all tiles of a product have in common. */
typedef struct small {
    const float *a, *b;
    float *c;
    int64_t row, step; /* of a: from row to row, from one k to the next */
    int64_t ldb, ldc, k;
    float factor;
    int add;
} small;

/* rows x 4 vectors columns of c from (i, j) on. The sizes are constants where
 * this is called, so the sums stay in registers. */
static inline __attribute__((always_inline)) void
tile(const small *s, int64_t i, int64_t j, const int rows, const int vectors)
{
    const float *a = s->a + i * s->row, *b = s->b + j;
    float32x4_t sum[ROWS][VECTORS];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vdupq_n_f32(0);
    for (int64_t k = 0; k < s->k; k++, a += s->step, b += s->ldb) {
        float32x4_t line[VECTORS];

        for (int v = 0; v < vectors; v++)
            line[v] = vld1q_f32(b + 4 * v);
        for (int r = 0; r < rows; r++) {
            float32x4_t left = vld1q_dup_f32(a + r * s->row);

            for (int v = 0; v < vectors; v++)
                sum[r][v] = vfmaq_f32(sum[r][v], left, line[v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *c = s->c + (i + r) * s->ldc + j + 4 * v;
            float32x4_t made = vmulq_n_f32(sum[r][v], s->factor);

            vst1q_f32(c, s->add ? vaddq_f32(vld1q_f32(c), made) : made);
        }
}

/* One element, with the roundings of a tile. */
static void single(const small *s, int64_t i, int64_t j)
{
    const float *a = s->a + i * s->row, *b = s->b + j;
    float *c = s->c + i * s->ldc + j, sum = 0;

    for (int64_t k = 0; k < s->k; k++)
        sum = __builtin_fmaf(a[k * s->step], b[k * s->ldb], sum);
    *c = sum * s->factor + (s->add ? *c : 0);
}

static void by_tiles(const small *s, int64_t m, int64_t n)
{
    int64_t i, j = 0;

    for (; j + 4 * VECTORS <= n; j += 4 * VECTORS) {
        for (i = 0; i + ROWS <= m; i += ROWS)
            tile(s, i, j, ROWS, VECTORS);
        for (; i < m; i++)
            tile(s, i, j, 1, VECTORS);
    }
    for (; j + 4 <= n; j += 4) {
        for (i = 0; i + ROWS <= m; i += ROWS)
            tile(s, i, j, ROWS, 1);
        for (; i < m; i++)
            tile(s, i, j, 1, 1);
    }
    for (; j < n; j++)
        for (i = 0; i < m; i++)
            single(s, i, j);
}

static int by_loops(const oari_gemm_job *j)
{
    small s = { .a = j->a.data,
                .b = j->b.data,
                .c = j->c,
                .row = j->a.turned ? 1 : j->a.lead,
                .step = j->a.turned ? j->a.lead : 1,
                .ldb = j->b.lead,
                .ldc = j->lead,
                .k = j->k,
                .factor = (float)j->factor,
                .add = j->add };

    if (j->dtype != OAR_F32 || j->b.turned || j->n * j->k > MOST_IN_B)
        return 0;
    by_tiles(&s, j->m, j->n);
    return 1;
}
#else
static int by_loops(const oari_gemm_job *j)
{
    return 0;
}
#endif

static void clear(const oari_gemm_job *j)
{
    OARI_BY_FLOAT(j->dtype, {
        T *c = j->c;
        for (int64_t i = 0; i < j->m; i++, c += j->lead)
            for (int64_t k = 0; k < j->n; k++)
                c[k] = 0;
    })
}

void oari_gemm(const oari_gemm_job *job)
{
    if (job->m == 0 || job->n == 0)
        return;
    if (job->k > 0 && !by_loops(job))
        by_cblas(job);
    else if (job->k == 0 && !job->add)
        clear(job);
}
