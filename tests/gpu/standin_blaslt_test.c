/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for cuBLASLt: products with each transposition, the epilogues,
 * and the same refusals as the real one. */
#include <math.h>
#include <string.h>

#include "gpu/standin_driver.h"

enum { M = 8, N = 3, K = 5, ROOM = 64 /* elements */ };
enum { F32 = 0, BF16 = 14, COMPUTE_F32 = 68, REFUSED = 15, WRONG = 7 };
enum { PLAIN = 1, GELU_AUX_BIAS = 164, DGELU_BGRAD = 208, BGRADB = 512 };

typedef struct lt_algo_bytes {
    uint64_t data[8];
} lt_algo_bytes;
typedef struct lt_found {
    lt_algo_bytes algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} lt_found;

static struct {
    int (*Create)(void **);
    int (*DescCreate)(void **, int, int);
    int (*DescSet)(void *, int, const void *, size_t);
    int (*LayoutCreate)(void **, int, uint64_t, uint64_t, int64_t);
    int (*PrefCreate)(void **);
    int (*PrefSet)(void *, int, const void *, size_t);
    int (*Heuristic)(void *, void *, void *, void *, void *, void *, void *,
                     int, lt_found *, int *);
    int (*Matmul)(void *, void *, const void *, oari_cu_memory, void *,
                  oari_cu_memory, void *, const void *, oari_cu_memory, void *,
                  oari_cu_memory, void *, const lt_algo_bytes *, void *, size_t,
                  oari_cu_stream);
} lt;

static int load_blas(void)
{
    void *library = dlopen(getenv("OARSONG_CUBLASLT_LIBRARY"), RTLD_NOW);
    if (!library || begin())
        return -1;
#define FIND(field, name) (*(void **)&lt.field = dlsym(library, name))
    return !(FIND(Create, "cublasLtCreate") &&
             FIND(DescCreate, "cublasLtMatmulDescCreate") &&
             FIND(DescSet, "cublasLtMatmulDescSetAttribute") &&
             FIND(LayoutCreate, "cublasLtMatrixLayoutCreate") &&
             FIND(PrefCreate, "cublasLtMatmulPreferenceCreate") &&
             FIND(PrefSet, "cublasLtMatmulPreferenceSetAttribute") &&
             FIND(Heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
             FIND(Matmul, "cublasLtMatmul"));
}

/* Memory of each: A, B, D, the bias, aux. */
typedef struct lt_case {
    int trans[2], epilogue;
    float a[ROOM], b[ROOM], d[ROOM], bias[ROOM], aux[ROOM];
    oari_cu_memory at[5];
} lt_case;

static float number(int i, int seed)
{
    return (float)((i * 7 + seed * 3) % 11 - 5) / 4;
}

static void begin_case(lt_case *c, int ta, int tb, int epilogue)
{
    memset(c, 0, sizeof *c);
    c->trans[0] = ta;
    c->trans[1] = tb;
    c->epilogue = epilogue;
    for (int i = 0; i < ROOM; i++) {
        c->a[i] = number(i, 1);
        c->b[i] = number(i, 2);
        c->bias[i] = number(i, 3);
        c->aux[i] = number(i, 4);
    }
    for (int i = 0; i < 5; i++)
        c->at[i] = make_memory(ROOM * sizeof(float));
}

/* Multiplies by the first algorithm; shift: bytes that A begins late. */
static int multiply(lt_case *c, int shift, uint32_t alignment)
{
    static const float one = 1, zero = 0;
    float *host[5] = { c->a, c->b, c->d, c->bias, c->aux };
    void *handle, *desc, *pref, *a, *b, *d;
    int64_t lead = M;
    lt_found found;
    int count = 0, bad = lt.Create(&handle);
    for (int i = 0; i < 5; i++)
        cu.MemcpyHtoDAsync(c->at[i], host[i], ROOM * sizeof(float), NULL);
    lt.DescCreate(&desc, COMPUTE_F32, F32);
    for (int i = 0; i < 2; i++)
        lt.DescSet(desc, 3 + i, &c->trans[i], 4);
    lt.DescSet(desc, 7, &c->epilogue, 4);
    lt.DescSet(desc, 8, &c->at[3], 8);
    lt.DescSet(desc, 11, &c->at[4], 8);
    lt.DescSet(desc, 12, &lead, 8);
    lt.LayoutCreate(&a, F32, c->trans[0] ? K : M, c->trans[0] ? M : K,
                    c->trans[0] ? K : M);
    lt.LayoutCreate(&b, F32, c->trans[1] ? N : K, c->trans[1] ? K : N,
                    c->trans[1] ? N : K);
    lt.LayoutCreate(&d, F32, M, N, M);
    lt.PrefCreate(&pref);
    for (int i = 5; i < 9; i++)
        lt.PrefSet(pref, i, &alignment, 4);
    bad = bad ? bad
              : lt.Heuristic(handle, desc, a, b, d, d, pref, 1, &found, &count);
    bad = bad ? bad
              : lt.Matmul(handle, desc, &one, c->at[0] + (unsigned)shift, a,
                          c->at[1], b, &zero, c->at[2], d, c->at[2], d,
                          &found.algo, NULL, 0, NULL);
    for (int i = 0; i < 5; i++)
        cu.MemcpyDtoHAsync(host[i], c->at[i], ROOM * sizeof(float), NULL);
    return bad;
}

static float wanted_sum(const lt_case *c, int i, int j)
{
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += number(c->trans[0] ? i * K + k : k * M + i, 1) *
               number(c->trans[1] ? k * N + j : j * K + k, 2);
    return sum;
}

static double tanh_gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

static int run_products_and_epilogues(test_job *c, int rank, void *arg)
{
    lt_case p;
    RANK_ZERO(load_blas());
    for (int t = 0; t < 4; t++) {
        begin_case(&p, t & 1, t >> 1, PLAIN);
        RANK_ZERO(multiply(&p, 0, 16));
        for (int i = 0; i < M * N; i++)
            RANK_CHECK(p.d[i] == wanted_sum(&p, i % M, i / M));
    }
    begin_case(&p, 1, 0, GELU_AUX_BIAS);
    RANK_ZERO(multiply(&p, 0, 16));
    for (int i = 0; i < M * N; i++) {
        float x = wanted_sum(&p, i % M, i / M) + number(i % M, 3);
        RANK_CHECK(p.aux[i] == x && fabs(p.d[i] - tanh_gelu(x)) < 1e-6);
    }
    begin_case(&p, 0, 0, DGELU_BGRAD);
    RANK_ZERO(multiply(&p, 0, 16));
    for (int i = 0; i < M; i++) {
        double sum = 0;
        for (int j = 0; j < N; j++) {
            double x = number(j * M + i, 4), h = 1e-5;
            double slope = (tanh_gelu(x + h) - tanh_gelu(x - h)) / (2 * h);
            RANK_CHECK(fabs(p.d[j * M + i] - slope * wanted_sum(&p, i, j)) <
                       1e-4);
            sum += p.d[j * M + i];
        }
        RANK_CHECK(fabs(p.bias[i] - sum) < 1e-5);
    }
    begin_case(&p, 0, 1, BGRADB);
    RANK_ZERO(multiply(&p, 0, 16));
    for (int j = 0; j < N; j++) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += number(k * N + j, 2);
        RANK_CHECK(p.bias[j] == sum);
    }
    return 0;
}
IN_A_PROCESS(products_and_epilogues)

static int run_what_does_not_fit_is_refused(test_job *c, int rank, void *arg)
{
    lt_case p;
    RANK_ZERO(load_blas());
    begin_case(&p, 0, 0, PLAIN);
    RANK_IS(REFUSED, multiply(&p, 4, 16)); /* A is not aligned to 16 */
    RANK_ZERO(multiply(&p, 4, 4));
    p.at[0] += (ROOM - 1) * 4; /* A is not all in its memory */
    RANK_IS(WRONG, multiply(&p, 0, 4));
    return 0;
}
IN_A_PROCESS(what_does_not_fit_is_refused)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_epilogues),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("standin_blaslt", tests, NULL, NULL);
}
