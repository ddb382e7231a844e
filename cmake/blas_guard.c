/* SPDX-License-Identifier: Apache-2.0 */
/* blas_guard: products of small matrices that end where a page that cannot be
 * read begins. A CBLAS that reads beyond its operands dies here. */
#define _GNU_SOURCE /* the header of BLIS would choose less */
#include <cblas.h>
#include <sys/mman.h>

enum { ROOM = 1 << 16 };

/* Memory that ends at such a page, or NULL. */
static char *guarded(void)
{
    char *at = mmap(0, 2 * ROOM, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED || mprotect(at + ROOM, ROOM, PROT_NONE) != 0)
        return 0;
    return at + ROOM;
}

int main(void)
{
    static const int sizes[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9, 11,
                                 13, 16, 17, 19, 24, 31, 33, 40, 65 };
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    char *a = guarded(), *b = guarded(), *c = guarded();

    if (a == 0 || b == 0 || c == 0)
        return 1;
    for (int i = 0; i < 4 * SIZES * SIZES * SIZES; i++) {
        int m = sizes[i / 4 % SIZES], k = sizes[i / 4 / SIZES % SIZES];
        int n = sizes[i / 4 / SIZES / SIZES];
        enum CBLAS_TRANSPOSE ta = i & 1 ? CblasTrans : CblasNoTrans;
        enum CBLAS_TRANSPOSE tb = i & 2 ? CblasTrans : CblasNoTrans;
        int lda = i & 1 ? m : k, ldb = i & 2 ? k : n;

        cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, (float *)a - m * k, lda,
                    (float *)b - k * n, ldb, 0, (float *)c - m * n, n);
        cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, (double *)a - m * k, lda,
                    (double *)b - k * n, ldb, 0, (double *)c - m * n, n);
    }
    return 0;
}
