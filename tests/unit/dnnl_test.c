/* SPDX-License-Identifier: Apache-2.0 */
/* Products by oneDNN, through oari_matmul: those of the real library where it
 * is installed, and those of a stand-in (support/plugins/standin_dnnl.c) as
 * version 2 and as version 3. Elements are small whole numbers, so that every
 * sum is exact and a result has one right value. A process loads the library
 * once, so each case runs in a process of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>

#include <oarsong/oarsong.h>

#include "base/half.h"
#include "base/isa.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/product/dnnl.h"

enum { SKIPPED = 77, MOST = 4096, GAP = 3 };

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1;                                                       \
        }                                                                   \
    } while (0)

/* ---- one product --------------------------------------------------------- */

typedef struct sample {
    int64_t m, n, k;
    int a_turned, b_turned, add;
    oar_dtype dtype, to;
} sample;

typedef union mixed_numbers {
    float f32[MOST];
    uint16_t bf16[MOST];
} mixed_numbers;

static float number_at(const mixed_numbers *x, oar_dtype dtype, int64_t i)
{
    return dtype == OAR_F32 ? x->f32[i] : oari_bf16_bits_to_f32(x->bf16[i]);
}

static void put_number(mixed_numbers *x, oar_dtype dtype, int64_t i,
                       float value)
{
    if (dtype == OAR_F32)
        x->f32[i] = value;
    else
        x->bf16[i] = oari_bf16_bits_from_f32(value);
}

/* A matrix over x, with gaps between its rows (or columns, if it is turned). */
static oari_array matrix_over(mixed_numbers *x, oar_dtype dtype, int64_t rows,
                              int64_t columns, int turned)
{
    oari_array a = { .data = x,
                     .dtype = dtype,
                     .at = { .shape = OAR_SHAPE(rows, columns),
                             .stride = { columns + GAP, 1 } } };

    if (turned) {
        a.at.stride[0] = 1;
        a.at.stride[1] = rows + GAP;
    }
    return a;
}

static float element(const oari_array *a, int64_t i, int64_t j)
{
    return number_at(a->data, a->dtype,
                     i * a->at.stride[0] + j * a->at.stride[1]);
}

/* Whether oari_matmul gives what a plain loop gives, rounded once. */
static int multiplies(const sample *s)
{
    static _Thread_local mixed_numbers x, y, z, before;
    oari_array a = matrix_over(&x, s->dtype, s->m, s->k, s->a_turned);
    oari_array b = matrix_over(&y, s->dtype, s->k, s->n, s->b_turned);
    oari_array to = oari_host_array(&z, s->to, OAR_SHAPE(s->m, s->n));

    for (int64_t i = 0; i < MOST; i++) {
        put_number(&x, s->dtype, i, (float)(i * 7 % 13 - 6));
        put_number(&y, s->dtype, i, (float)(i * 5 % 11 - 5));
        put_number(&z, s->to, i, (float)(i % 9 - 4));
    }
    before = z;
    CHECK(oari_matmul(NULL, &to, s->add, &a, &b) == OAR_OK);
    for (int64_t i = 0; i < s->m * s->n; i++) {
        float sum = s->add ? number_at(&before, s->to, i) : 0;
        mixed_numbers right;

        for (int64_t k = 0; k < s->k; k++)
            sum += element(&a, i / s->n, k) * element(&b, k, i % s->n);
        put_number(&right, s->to, 0, sum);
        CHECK(number_at(&z, s->to, i) == number_at(&right, s->to, 0));
    }
    for (int64_t i = s->m * s->n; i < MOST; i++) /* nothing behind it */
        CHECK(number_at(&z, s->to, i) == number_at(&before, s->to, i));
    return 0;
}

/* All shapes and layouts, with and without adding. k = 13 is refused by the
 * stand-in, and n = 7 needs scratch memory there. */
static int multiplies_all(oar_dtype dtype, oar_dtype to)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },    { 3, 5, 2 },
                                         { 17, 7, 31 },  { 16, 16, 64 },
                                         { 33, 40, 24 }, { 5, 11, 13 },
                                         { 1, 19, 40 },  { 40, 1, 33 } };

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 8; how++) {
            const sample s = { shapes[i][0], shapes[i][1],
                               shapes[i][2], how & 1,
                               how >> 1 & 1, how >> 2,
                               dtype,        to };

            CHECK(multiplies(&s) == 0);
        }
    return 0;
}

/* Asks for a product directly: whether the library has it. */
static int has(oar_dtype dtype)
{
    static mixed_numbers x, y, z;
    oari_gemm_job job = { .dtype = dtype,
                          .m = 4,
                          .n = 4,
                          .k = 4,
                          .factor = 1,
                          .a = { &x, 4, 0 },
                          .b = { &y, 4, 0 },
                          .c = &z,
                          .lead = 4 };

    return oari_dnnl_takes(dtype, 4, 4, 4) &&
           oari_dnnl_multiply(NULL, &job, dtype) == OAR_OK;
}

/* ---- cases --------------------------------------------------------------- */

static int standin_says(const char *name)
{
    void *library = dlopen(getenv("OARSONG_DNNL_LIBRARY"), RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    int (*says)(void);

    if (symbol == NULL)
        return -1;
    memcpy(&says, &symbol, sizeof symbol);
    return says();
}

static int all_of_standin(void)
{
    CHECK(has(OAR_BF16) && has(OAR_F32));
    CHECK(multiplies_all(OAR_BF16, OAR_BF16) == 0);
    CHECK(multiplies_all(OAR_BF16, OAR_F32) == 0);
    CHECK(multiplies_all(OAR_F32, OAR_F32) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 2 + 3 * 7 * 8);
    CHECK(standin_says("standin_dnnl_wrong") == 0);
    return 0;
}

static int takes(oar_dtype dtype)
{
    return oari_dnnl_takes(dtype, 4, 4, 4);
}

/* Of f32, too, but only large ones: of 128 * 128 * 128 multiplications here. */
static int large_f32_of_standin(void)
{
    oar_tensor *a = oar_full(NULL, OAR_F32, OAR_SHAPE(128, 128), 2);
    oar_tensor *b = oar_matmul(NULL, a, a);
    float number[128 * 128];

    CHECK(takes(OAR_BF16) && !takes(OAR_F32));
    CHECK(oari_dnnl_takes(OAR_F32, 64, 128, 128));
    CHECK(!oari_dnnl_takes(OAR_F32, 64, 128, 127));
    CHECK(!oari_dnnl_takes(OAR_F32, 1 << 20, 15, 1024));
    CHECK(!oari_dnnl_takes(OAR_F64, 1024, 1024, 1024));
    CHECK(standin_says("standin_dnnl_executed") == 1);
    CHECK(oar_tensor_read(b, OAR_F32, number) == OAR_OK);
    for (int i = 0; i < 128 * 128; i++)
        CHECK(number[i] == 512);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return 0;
}

static int bf16_of_standin(void)
{
    CHECK(takes(OAR_BF16) && !takes(OAR_F32));
    CHECK(!oari_dnnl_takes(OAR_F32, 1024, 1024, 1024));
    CHECK(!takes(OAR_F64) && !takes(OAR_F16));
    CHECK(multiplies_all(OAR_F32, OAR_F32) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 0);
    CHECK(multiplies_all(OAR_BF16, OAR_BF16) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 7 * 8);
    return 0;
}

/* Twos times twos, k of them: exact in bf16. */
static int multiplies_twos(oar_shape left, oar_shape right, float wanted)
{
    oar_tensor *a = oar_full(NULL, OAR_BF16, left, 2);
    oar_tensor *b = oar_full(NULL, OAR_BF16, right, 2);
    oar_tensor *c = oar_matmul(NULL, a, b);
    float number[64];

    CHECK(c != NULL && oar_tensor_count(c) <= 64);
    CHECK(oar_tensor_read(c, OAR_F32, number) == OAR_OK);
    for (int64_t i = 0; i < oar_tensor_count(c); i++)
        CHECK(number[i] == wanted);
    oar_tensor_release(c);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return 0;
}

/* Rows of many matrices are one product; many pairs do not go there. */
static int many_of_standin(void)
{
    CHECK(multiplies_twos(OAR_SHAPE(2, 3, 4), OAR_SHAPE(4, 5), 16) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 1);
    CHECK(multiplies_twos(OAR_SHAPE(2, 3, 4), OAR_SHAPE(2, 4, 5), 16) == 0);
    CHECK(multiplies_twos(OAR_SHAPE(2, 0), OAR_SHAPE(0, 5), 0) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 1);
    return 0;
}

static int nothing_of_standin(void)
{
    CHECK(!takes(OAR_BF16) && !takes(OAR_F32));
    CHECK(multiplies_all(OAR_BF16, OAR_BF16) == 0);
    CHECK(standin_says("standin_dnnl_executed") == 0);
    return 0;
}

/* The number of threads is set for a product and put back. */
static int threads_of_standin(void)
{
    CHECK(has(OAR_BF16));
    CHECK(standin_says("standin_dnnl_threads") == 3);
    CHECK(standin_says("omp_get_max_threads") == 7);
    return 0;
}

/* 2000 kinds of products: at most 256 are kept, of six objects or fewer. */
static int few_are_kept(void)
{
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 1000; i++) {
            const sample s = { 1 + i % 10, 1 + i / 10 % 10, 1 + i / 100, 0, 1,
                               round,      OAR_BF16,        OAR_BF16 };

            CHECK(multiplies(&s) == 0);
        }
    CHECK(standin_says("standin_dnnl_executed") == 2000);
    CHECK(standin_says("standin_dnnl_live") > 0);
    CHECK(standin_says("standin_dnnl_live") <= 256 * 6);
    return 0;
}

static void *multiply_often(void *arg)
{
    static const sample s = { 9, 7, 12, 0, 1, 0, OAR_BF16, OAR_BF16 };
    int *failed = arg;

    for (int i = 0; i < 100 && !*failed; i++)
        *failed = multiplies(&s);
    return NULL;
}

/* More threads than products of one kind can be kept. */
static int threads_multiply_at_once(void)
{
    enum { THREADS = 6 };
    pthread_t thread[THREADS];
    int failed[THREADS] = { 0 };

    CHECK(has(OAR_BF16));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, multiply_often, &failed[i]) ==
              0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(!failed[i]);
    }
    CHECK(standin_says("standin_dnnl_wrong") == 0);
    return 0;
}

static int missing(void)
{
    CHECK(!takes(OAR_BF16) && !takes(OAR_F32));
    CHECK(multiplies_all(OAR_BF16, OAR_BF16) == 0);
    return 0;
}

static int f32_of_real(void)
{
    if (!takes(OAR_F32))
        return SKIPPED;
    CHECK(has(OAR_F32));
    return multiplies_all(OAR_F32, OAR_F32);
}

static int bf16_of_real(void)
{
    if (!has(OAR_BF16))
        return SKIPPED;
    CHECK(multiplies_all(OAR_BF16, OAR_BF16) == 0);
    return multiplies_all(OAR_BF16, OAR_F32);
}

/* ---- the processes ------------------------------------------------------- */

static void ignore(void *arg, oar_log_level level, const char *line)
{
}

/* Runs a case in a process with these settings. use NULL: the default. version
 * 0: the library that is installed; -1: one that is not there. */
static void run_case(int (*function)(void), const char *use, int version)
{
    pid_t child = fork();
    char text[4096];
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        oar_log_to(ignore, NULL, OAR_LOG_OFF);
        unsetenv("OARSONG_DNNL");
        if (use != NULL)
            setenv("OARSONG_DNNL", use, 1);
        unsetenv("OARSONG_DNNL_LIBRARY");
        snprintf(text, sizeof text, "%s/tests/plugins/libstandin_dnnl.so",
                 getenv("OARSONG_BUILD_DIR"));
        if (version != 0)
            setenv("OARSONG_DNNL_LIBRARY", version > 0 ? text : "/no/dnnl.so",
                   1);
        snprintf(text, sizeof text, "%d", version);
        setenv("STANDIN_DNNL_MAJOR", text, 1);
        setenv("OARSONG_BLAS_THREADS", version > 0 ? "3" : "1", 1);
        exit(function());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void products_are_those_of_a_plain_loop(void **state)
{
    run_case(all_of_standin, "all", 2);
    run_case(all_of_standin, "all", 3);
}

static void only_products_of_bf16_go_there(void **state)
{
    run_case(bf16_of_standin, "bf16", 2);
    run_case(bf16_of_standin, "BF16", 3);
}

static void rows_of_many_matrices_go_there_as_one(void **state)
{
    run_case(many_of_standin, "bf16", 3);
}

static void nothing_goes_there_when_it_is_off(void **state)
{
    run_case(nothing_of_standin, "off", 3);
}

static int processor_has_bf16(void)
{
#if defined(__x86_64__)
    return oari_isa_here() == OARI_ISA_AVX512 &&
           __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

static void the_processor_decides_by_default(void **state)
{
    int (*expected)(void) =
        processor_has_bf16() ? large_f32_of_standin : nothing_of_standin;

    run_case(expected, NULL, 3);
    run_case(expected, "auto", 3);
}

static void a_product_has_the_threads_of_the_blas(void **state)
{
    run_case(threads_of_standin, "bf16", 3);
}

static void only_some_products_are_kept(void **state)
{
    run_case(few_are_kept, "bf16", 2);
    run_case(few_are_kept, "bf16", 3);
}

static void threads_do_not_share_a_product(void **state)
{
    run_case(threads_multiply_at_once, "bf16", 3);
}

static void a_library_that_is_missing_is_not_needed(void **state)
{
    run_case(missing, "all", -1);
}

static void a_library_of_another_version_is_not_used(void **state)
{
    run_case(missing, "all", 4);
}

/* Skipped where it is not installed. */
static void the_installed_library_multiplies_f32(void **state)
{
    run_case(f32_of_real, "all", 0);
}

/* Skipped also where it cannot: version 2 without AVX-512. */
static void the_installed_library_multiplies_bf16(void **state)
{
    run_case(bf16_of_real, "bf16", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_a_plain_loop),
        cmocka_unit_test(only_products_of_bf16_go_there),
        cmocka_unit_test(rows_of_many_matrices_go_there_as_one),
        cmocka_unit_test(nothing_goes_there_when_it_is_off),
        cmocka_unit_test(the_processor_decides_by_default),
        cmocka_unit_test(a_product_has_the_threads_of_the_blas),
        cmocka_unit_test(only_some_products_are_kept),
        cmocka_unit_test(threads_do_not_share_a_product),
        cmocka_unit_test(a_library_that_is_missing_is_not_needed),
        cmocka_unit_test(a_library_of_another_version_is_not_used),
        cmocka_unit_test(the_installed_library_multiplies_f32),
        cmocka_unit_test(the_installed_library_multiplies_bf16),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
