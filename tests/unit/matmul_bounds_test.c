/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products read nothing beyond their operands, by our own loops or the
 * BLAS: the operands end here before a page that cannot be read; and several
 * threads may multiply at once, with any BLAS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>

#include <oarsong/oarsong.h>

enum { ROOM = 1 << 16 };

/* A matrix of halves in its own mapping, which ends at such a page. */
static oar_tensor *guarded(oar_dtype dtype, int64_t rows, int64_t columns)
{
    size_t bytes = (size_t)(rows * columns) * oar_dtype_size(dtype);
    char *at = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    oar_storage *storage;
    oar_tensor *tensor;

    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + ROOM, ROOM, PROT_NONE), 0);
    assert_int_equal(oar_storage_create(bytes, 0, &storage), OAR_OK);
    oar_storage_detach(storage);
    oar_storage_attach(storage, at + ROOM - bytes, NULL, NULL);
    tensor = oar_view_of(NULL, storage, 0, dtype, OAR_SHAPE(rows, columns));
    assert_non_null(tensor);
    oar_storage_release(storage);
    assert_int_equal(oar_tensor_fill(tensor, 0.5), OAR_OK);
    return tensor;
}

/* The mapping outlives the storage, which borrows it. */
static void unguard(oar_tensor *tensor)
{
    uintptr_t end = (uintptr_t)oar_tensor_data(tensor) +
                    (size_t)oar_tensor_count(tensor) *
                        oar_dtype_size(oar_tensor_dtype(tensor));

    oar_tensor_release(tensor);
    munmap((char *)end - ROOM, 2 * ROOM);
}

/* k halves times halves: every element is k / 4. */
static void judge(oar_tensor *product, int64_t k)
{
    double value;

    assert_non_null(product);
    for (int64_t i = 0; i < oar_tensor_count(product); i++) {
        value = oar_tensor_dtype(product) == OAR_F32
                    ? (double)((float *)oar_tensor_data(product))[i]
                    : ((double *)oar_tensor_data(product))[i];
        assert_true(value == (double)k / 4);
    }
    oar_tensor_release(product);
}

static void multiply(oar_dtype dtype, int64_t m, int64_t k, int64_t n)
{
    oar_tensor *a = guarded(dtype, m, k), *b = guarded(dtype, k, n);
    oar_tensor *w = guarded(dtype, n, k);
    oar_tensor *at = oar_transpose(NULL, a, 0, 1);
    oar_tensor *bt = oar_transpose(NULL, b, 0, 1);

    judge(oar_matmul(NULL, a, b), k);
    judge(oar_linear(NULL, a, w, NULL), k);
    judge(oar_matmul(NULL, bt, at), k);
    oar_tensor_release(bt);
    oar_tensor_release(at);
    unguard(w);
    unguard(b);
    unguard(a);
}

static void products_stay_inside_their_operands(void **state)
{
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 24, 40 };
    enum { SIZES = sizeof sizes / sizeof sizes[0] };

    if (!OARSONG_BLAS_STAYS_INSIDE)
        skip(); /* the build chose this BLAS by name, and warned */
    for (int i = 0; i < SIZES * SIZES * SIZES; i++) {
        int64_t m = sizes[i % SIZES], k = sizes[i / SIZES % SIZES];
        int64_t n = sizes[i / SIZES / SIZES];

        multiply(OAR_F32, m, k, n);
        multiply(OAR_F64, m, k, n);
    }
}

enum { THREADS = 4, TIMES = 20000 };

typedef struct multiplier {
    double number; /* each thread has its own */
    int wrong;
} multiplier;

static void *multiply_often(void *arg)
{
    multiplier *m = arg;
    oar_tensor *x = oar_full(NULL, OAR_F64, OAR_SHAPE(17, 7), 0.5);
    oar_tensor *w = oar_full(NULL, OAR_F64, OAR_SHAPE(24, 7), m->number);

    for (int i = 0; i < TIMES; i++) {
        oar_tensor *y = oar_linear(NULL, x, w, NULL);
        const double *number = oar_tensor_data(y);

        for (int j = 0; j < 17 * 24; j++)
            m->wrong += number[j] != 3.5 * m->number;
        oar_tensor_release(y);
    }
    oar_tensor_release(w);
    oar_tensor_release(x);
    return NULL;
}

static void threads_may_multiply_at_once(void **state)
{
    pthread_t thread[THREADS];
    multiplier m[THREADS];

    for (int i = 0; i < THREADS; i++) {
        m[i] = (multiplier){ .number = i + 1 };
        assert_int_equal(
            pthread_create(&thread[i], NULL, multiply_often, &m[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(m[i].wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_stay_inside_their_operands),
        cmocka_unit_test(threads_may_multiply_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
