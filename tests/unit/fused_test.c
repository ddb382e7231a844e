/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of tensor/cpu/product/fused.h at every level of instructions that
 * this machine has, against one loop that rounds once for each step, bit for
 * bit; and the source of the product once more with vectors of 64 bytes, on any
 * machine.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define TARGET
#define BYTES     64
#define REGISTERS 32
#pragma GCC diagnostic ignored "-Wpsabi" /* nothing is passed: all inlined */
#include "tensor/cpu/product/fused_product.h"

#include "base/rng.h"
#include "tensor/cpu/product/gemm.h"

INLINE vec fuse(vec a, vec b, vec c)
{
    for (int i = 0; i < LANES; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

typedef void product_fn(const oari_product *p);

enum { MOST = 10240, GAP = 3 }; /* elements of a matrix; between its rows */

static float left[MOST], right[MOST], start[MOST], got[MOST], want[MOST];

static void fill(float *a, uint64_t seed)
{
    oari_rng_uniform_f32((oari_rng){ .seed = seed }, 0, a, MOST);
    for (int i = 0; i < MOST; i++)
        a[i] = 2 * a[i] - 1;
}

/* Runs the rest of a test at each level; the best one is left in use. */
#define AT_EVERY_LEVEL(level)                                              \
    for (int level = OARI_ISA_BASELINE;                                    \
         level <= (int)oari_isa_here() && oari_fused_use((oari_isa)level); \
         level++)

/* ---- the product --------------------------------------------------------- */

static void reference(const oari_product *p)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float sum = 0, *c = p->c + i * p->ldc + j;

            for (int64_t k = 0; k < p->k; k++)
                sum = fmaf(p->a[i * p->row + k * p->step], p->b[k * p->ldb + j],
                           sum);
            sum *= p->factor;
            *c = p->add ? *c + sum : sum;
        }
}

/* The whole of c, what lies between its rows and after it too. */
static void check_product(product_fn *fn, const char *name, oari_product p)
{
    memcpy(want, start, sizeof want);
    memcpy(got, start, sizeof got);
    p.c = want;
    reference(&p);
    p.c = got;
    fn(&p);
    for (int i = 0; i < MOST; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: %d x %d x %d, row %d, add %d: %a at %d, not %a", name,
                     (int)p.m, (int)p.n, (int)p.k, (int)p.row, p.add,
                     (double)got[i], i, (double)want[i]);
}

static void check_size(product_fn *fn, const char *name, int64_t m, int64_t n,
                       int64_t k)
{
    oari_product p = { .a = left,
                       .b = right,
                       .m = m,
                       .n = n,
                       .k = k,
                       .row = k + GAP,
                       .step = 1,
                       .ldb = n + GAP,
                       .ldc = n + GAP,
                       .factor = 1 };

    check_product(fn, name, p);
    p.add = 1;
    p.factor = -0.3f;
    check_product(fn, name, p);
    p.row = 1;
    p.step = m + GAP;
    check_product(fn, name, p);
    p.add = 0;
    check_product(fn, name, p);
}

/* Around the rows and columns of every tile, and what is left of them. */
static void check_sizes(product_fn *fn, const char *name)
{
    static const int64_t rows[] = { 1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 19 };
    static const int64_t depths[] = { 0, 1, 5, 33 };
    enum { ROWS = sizeof rows / sizeof *rows, MOST_COLUMNS = 132 };

    fill(left, 1);
    fill(right, 2);
    fill(start, 3);
    for (int i = 0; i < ROWS; i++)
        for (int64_t n = 1; n <= MOST_COLUMNS; n += n < 20 ? 1 : 7)
            for (int d = 0; d < 4; d++)
                check_size(fn, name, rows[i], n, depths[d]);
}

static void every_level_multiplies_like_the_reference(void **state)
{
    int products = 0;

    AT_EVERY_LEVEL(level) {
        if (oari_fused()->product == NULL)
            continue;
        check_sizes(oari_fused()->product, oari_isa_name((oari_isa)level));
        products++;
    }
    if (products == 0)
        skip();
}

static void vectors_of_64_bytes_multiply_like_the_reference(void **state)
{
    check_sizes(product, "64 bytes");
}

/* A NaN or an infinity stays in its row or column, also beside the edge. */
static void a_nan_stays_where_it_belongs(void **state)
{
    fill(left, 4);
    fill(right, 5);
    left[2 * (5 + GAP) + 1] = NAN;
    right[3 * (7 + GAP) + 6] = INFINITY;
    right[7] = NAN; /* in the gap */
    AT_EVERY_LEVEL(level) {
        oari_product p = { left,    right, got,     9,       7, 5,
                           5 + GAP, 1,     7 + GAP, 7 + GAP, 1, 0 };

        if (oari_fused()->product == NULL)
            continue;
        oari_fused()->product(&p);
        for (int i = 0; i < 9; i++)
            for (int j = 0; j < 7; j++)
                assert_int_equal(isfinite(got[i * (7 + GAP) + j]) != 0,
                                 i != 2 && j != 6);
    }
}

/* ---- gemm, which chooses a product --------------------------------------- */

static double element(const oari_matrix *a, oar_dtype dtype, int64_t i,
                      int64_t j)
{
    int64_t at = a->turned ? j * a->lead + i : i * a->lead + j;

    return dtype == OAR_F32 ? (double)((const float *)a->data)[at]
                            : ((const double *)a->data)[at];
}

static void check_gemm(const oari_gemm_job *j)
{
    oari_matrix c = { j->c, j->lead, 0 };
    double before = element(&c, j->dtype, j->m - 1, j->n - 1), sum = 0,
           size = 1;

    for (int64_t k = 0; k < j->k; k++) {
        double term = element(&j->a, j->dtype, j->m - 1, k) *
                      element(&j->b, j->dtype, k, j->n - 1);

        sum += j->factor * term;
        size += fabs(term);
    }
    sum += j->add ? before : 0;
    oari_gemm(j);
    assert_true(fabs(element(&c, j->dtype, j->m - 1, j->n - 1) - sum) <=
                (j->dtype == OAR_F32 ? 1e-6 : 1e-14) * size);
}

static double wide[3][MOST];

/* Bits of flags: a turned, b turned, add, f64. */
static void check_gemm_of(const int64_t *size, int flags)
{
    int64_t m = size[0], n = size[1], k = size[2];
    int a_turned = flags & 1, b_turned = flags >> 1 & 1, f64 = flags >> 3 & 1;
    const void *a = f64 ? (void *)wide[0] : left;
    const void *b = f64 ? (void *)wide[1] : right;

    check_gemm(&(oari_gemm_job){
        .dtype = f64 ? OAR_F64 : OAR_F32,
        .m = m,
        .n = n,
        .k = k,
        .factor = 0.5,
        .a = { a, a_turned ? m : k + 1, a_turned },
        .b = { b, b_turned ? k + 1 : n, b_turned },
        .c = f64 ? (void *)wide[2] : got,
        .lead = n,
        .add = flags >> 2 & 1,
    });
}

/* Small and too large for our own loops, turned or not, f32 and f64. */
static void gemm_gives_the_product_by_every_kernel(void **state)
{
    static const int64_t size[][3] = {
        { 5, 7, 3 }, { 16, 64, 32 }, { 3, 97, 101 }, { 1, 1, 1 }, { 4, 3, 0 }
    };

    fill(left, 6);
    fill(right, 7);
    fill(got, 8);
    for (int i = 0; i < MOST; i++) {
        wide[0][i] = (double)left[i];
        wide[1][i] = (double)right[i];
    }
    AT_EVERY_LEVEL(level)
        for (int s = 0; s < 5; s++)
            for (int flags = 0; flags < 16; flags++)
                check_gemm_of(size[s], flags);
}

/* ---- rows ---------------------------------------------------------------- */

static const int64_t lengths[] = {
    0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 65, 1000
};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void check_row(const float *made, double (*truth)(int), int64_t n,
                      double most, int level)
{
    for (int i = 0; i < n; i++)
        if (!(fabs((double)made[i] - truth(i)) <= most))
            fail_msg("%s: %a at %d of %d, not %a",
                     oari_isa_name((oari_isa)level), (double)made[i], i, (int)n,
                     truth(i));
    assert_true(made[n] == 77); /* untouched */
}

/* Whether made is what a level that fuses made, the first time around. */
static void same_as_others(const float *made, float *first, int64_t n,
                           int level)
{
    if (level == OARI_ISA_BASELINE)
        return;
    if (level == OARI_ISA_AVX2)
        memcpy(first, made, (size_t)n * sizeof *made);
    assert_memory_equal(made, first, (size_t)n * sizeof *made);
}

/* The shift of exp_less. */
static const float less = 0.25f;

static double true_exp(int i)
{
    return exp((double)(left[i] - less));
}

static double below(double x)
{
    return 0.5 * erfc(x * -0.70710678118654752440);
}

static double true_gelu(int i)
{
    return (double)left[i] * below((double)left[i]);
}

static double true_back(int i)
{
    double x = (double)left[i];

    return (double)right[i] *
           (below(x) + x * 0.39894228040143267794 * exp(-0.5 * x * x));
}

static double true_back_added(int i)
{
    return true_back(i) + (double)start[i];
}

static void make_rows(float scale)
{
    fill(left, 8);
    fill(right, 9);
    fill(start, 10);
    for (int i = 0; i < MOST; i++)
        left[i] *= scale;
}

static void every_level_exponentiates(void **state)
{
    static float first[MOST];

    make_rows(2);
    for (int l = 0; l < LENGTHS; l++)
        AT_EVERY_LEVEL(level) {
            int64_t n = lengths[l];

            memcpy(got, left, sizeof got); /* in place */
            got[n] = 77;
            oari_fused()->exp_less(got, got, less, n);
            check_row(got, true_exp, n, 1e-6, level);
            same_as_others(got, first, n, level);
        }
}

static void every_level_makes_gelu(void **state)
{
    static float first[MOST];

    make_rows(6);
    for (int l = 0; l < LENGTHS; l++)
        AT_EVERY_LEVEL(level) {
            int64_t n = lengths[l];

            got[n] = 77;
            oari_fused()->gelu(got, left, n);
            check_row(got, true_gelu, n, 1e-6, level);
            same_as_others(got, first, n, level);
        }
}

static void every_level_makes_the_slope_of_gelu(void **state)
{
    static float first[2][MOST];

    make_rows(6);
    for (int l = 0; l < LENGTHS; l++)
        AT_EVERY_LEVEL(level)
            for (int add = 0; add < 2; add++) {
                int64_t n = lengths[l];

                memcpy(got, start, sizeof got);
                got[n] = 77;
                oari_fused()->gelu_back(got, add, right, left, n);
                check_row(got, add ? true_back_added : true_back, n, 1e-6,
                          level);
                same_as_others(got, first[add], n, level);
            }
}

/* FNV-1a over the bits of the first n. */
static uint64_t hash_of(const float *a, int n)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (int i = 0; i < n; i++)
        hash = (hash ^ oari_bits_from_f32(a[i])) * 0x100000001b3u;
    return hash;
}

/* Every machine that fuses, of whatever kind, has these bits. */
static void bits_are_the_same_on_every_machine(void **state)
{
    oari_product p = { .a = left,
                       .b = right,
                       .c = got,
                       .m = 19,
                       .n = 93,
                       .k = 81,
                       .row = 83,
                       .step = 1,
                       .ldb = 95,
                       .ldc = 97,
                       .factor = 0.3f,
                       .add = 1 };

    make_rows(6);
    AT_EVERY_LEVEL(level) {
        if (oari_fused()->product == NULL)
            continue;
        oari_fused()->exp_less(got, left, less, MOST);
        assert_int_equal(hash_of(got, MOST), 0x72dbc402c033bc33u);
        oari_fused()->gelu(got, left, MOST);
        assert_int_equal(hash_of(got, MOST), 0x3931215924e82f9au);
        oari_fused()->gelu_back(got, 1, right, left, MOST);
        assert_int_equal(hash_of(got, MOST), 0x100feeb4e434c957u);
        oari_fused()->product(&p);
        assert_int_equal(hash_of(got, MOST), 0x7334ef3b9754de7u);
    }
}

static void what_is_not_here_cannot_be_used(void **state)
{
    const oari_fused_set *before = oari_fused();

    for (int i = (int)oari_isa_here() + 1; i < OARI_ISA_COUNT; i++)
        assert_false(oari_fused_use((oari_isa)i));
    assert_ptr_equal(oari_fused(), before);
    print_message("best here: %s\n", oari_isa_name(oari_isa_here()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_multiplies_like_the_reference),
        cmocka_unit_test(vectors_of_64_bytes_multiply_like_the_reference),
        cmocka_unit_test(a_nan_stays_where_it_belongs),
        cmocka_unit_test(gemm_gives_the_product_by_every_kernel),
        cmocka_unit_test(every_level_exponentiates),
        cmocka_unit_test(every_level_makes_gelu),
        cmocka_unit_test(every_level_makes_the_slope_of_gelu),
        cmocka_unit_test(bits_are_the_same_on_every_machine),
        cmocka_unit_test(what_is_not_here_cannot_be_used),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
