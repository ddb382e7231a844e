/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and conversions on a GPU have the bits that the host gives; and
 * kernels that cannot be loaded say why. */
#include "support/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/half.h"
#include "device/cuda/cuda_elementwise.h"
#include "support/last_error.h"

enum { DTYPES = OAR_BOOL + 1, DIMS = 3, ROOM = 4096 /* elements */ };

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

/* ---- numbers ------------------------------------------------------------- */

/* What conversions find hard, then anything. As 64 bits each; narrower dtypes
 * take the low ones. */
static uint64_t hard_bits(int i)
{
    static const double f64[] = {
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        2.5,
        3.5,
        255,
        256,
        -128,
        -129,
        32767.5,
        65535.99,
        65519.999,
        65520,
        65504,
        1e5,
        -1e5,
        0x1p31,
        -0x1p31,
        0x1p32,
        0x1p63,
        -0x1p63,
        0x1p64,
        1e300,
        -1e300,
        0x1p-24,
        0x1p-25,
        0x1.8p-25,
        0x1p-149,
        0x1p-150,
        0x1.8p-150,
        0x1.01p0,
        0x1.011p0,
        0x1.00fp0,
        0x1.002p0,
        0x1.0020000001p0,
        0x1.001p0,
        0x1.001ffffffffffp0,
        3e38,
        4e38,
        0x1.fffffep127,
        0x1p53,
        0x1.0000000000001p53,
    };
    static const uint64_t other[] = {
        0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000001,
        0xfff4000000000000, 0x7ff0000020000000, 0x7fffffffffffffff,
        0x8000000000000000, 0xffffffffffffffff, 0x0010000000000001,
        0x00000000ffffffff, 0x7fffff8000000001, 0x0020000000010001,
        0x8000000000000401, 0x7f8000017f800001, 0xffc00001ffc00001,
    };
    enum { F64S = sizeof f64 / sizeof *f64, OTHERS = sizeof other / 8 };
    uint64_t bits, seed = (uint64_t)i * 977 + 5;

    if (i < F64S) {
        memcpy(&bits, &f64[i], sizeof bits);
        return bits;
    }
    return i < F64S + OTHERS ? other[i - F64S] : next_random(&seed);
}

/* count elements of a dtype: first those of hard_bits as they are, then what
 * becomes of the hard f64 in this dtype. */
static void make_hard(void *to, oar_dtype dtype, int count)
{
    size_t bytes = oar_dtype_size(dtype);

    for (int i = 0; i < count; i++) {
        uint64_t bits = hard_bits(i / 2);
        unsigned char *at = (unsigned char *)to + (size_t)i * bytes;

        if (dtype == OAR_BOOL)
            *at = (unsigned char)(bits & 1);
        else if (i % 2 == 0)
            memcpy(at, &bits, bytes);
        else
            oari_convert(at, dtype, &bits, OAR_F64, 1);
    }
}

/* ---- arrays -------------------------------------------------------------- */

/* The same bytes on the host and on the GPU. */
typedef struct host_and_gpu {
    unsigned char host[ROOM * 8];
    void *there;
} host_and_gpu;

static int put(test_job *c, int rank, host_and_gpu *t)
{
    if (t->there == NULL)
        RANK_OK(oar_device_alloc(gpu, sizeof t->host, &t->there));
    RANK_OK(oar_device_copy(t->there, gpu, t->host, cpu, sizeof t->host, NULL));
    return 0;
}

/* Whether both have the same bytes; all of them, so that what lies between the
 * elements is seen to be left alone. */
static int same(host_and_gpu *t)
{
    static unsigned char seen[sizeof t->host];

    if (oar_device_copy(seen, cpu, t->there, gpu, sizeof seen, NULL) != OAR_OK)
        return 0;
    for (size_t i = 0; i < sizeof seen; i++)
        if (seen[i] != t->host[i]) {
            print_error("byte %zu is %#x, not %#x\n", i, seen[i], t->host[i]);
            return 0;
        }
    return 1;
}

static void drop(host_and_gpu *t)
{
    oar_device_free(gpu, t->there, NULL);
    t->there = NULL;
}

static host_and_gpu to, a, b;

/* Layouts: without gaps, transposed, and with gaps and repeats. */
static const int64_t shape[DIMS] = { 5, 7, 11 };
static const int64_t rows[DIMS] = { 77, 11, 1 };
static const int64_t turned[DIMS] = { 1, 5, 35 };
static const int64_t gaps[DIMS] = { 3, 400, 20 };
static const int64_t repeated[DIMS] = { 0, 13, 0 };
static const int64_t *const layouts[] = { rows, turned, gaps, repeated };
enum { COUNT = 5 * 7 * 11, WRITABLE = 3, LAYOUTS = 4 };

static const oari_cuda_shape extent = { DIMS, shape };

static oari_cuda_array on_gpu(const host_and_gpu *t, oar_dtype dtype,
                              const int64_t *stride)
{
    return (oari_cuda_array){ t->there, dtype, stride };
}

/* The element at index i of a layout, on the host. */
static void *element(host_and_gpu *t, oar_dtype dtype, const int64_t *stride,
                     int i)
{
    int64_t at =
        i % 11 * stride[2] + i / 11 % 7 * stride[1] + i / 77 * stride[0];

    return t->host + (size_t)at * oar_dtype_size(dtype);
}

/* ---- conversions --------------------------------------------------------- */

static int convert_flat(test_job *c, int rank, oar_dtype to_dtype,
                        oar_dtype from)
{
    const int64_t count = 1001, one = 1;
    oari_cuda_shape flat = { 1, &count };

    memset(to.host, 0xee, sizeof to.host);
    make_hard(a.host, from, (int)count);
    RANK_ZERO(put(c, rank, &to));
    RANK_ZERO(put(c, rank, &a));
    oari_convert(to.host, to_dtype, a.host, from, (size_t)count);
    RANK_OK(oari_cuda_assign(0, flat, on_gpu(&to, to_dtype, &one),
                             on_gpu(&a, from, &one), NULL));
    if (!same(&to)) {
        print_error("%s from %s\n", oar_dtype_name(to_dtype),
                    oar_dtype_name(from));
        return 1;
    }
    return 0;
}

GPU_TEST(every_dtype_becomes_every_other_as_on_the_host)
{
    for (int i = 0; i < DTYPES; i++)
        for (int j = 0; j < DTYPES; j++)
            RANK_ZERO(convert_flat(c, rank, (oar_dtype)i, (oar_dtype)j));
    drop(&to);
    drop(&a);
    return 0;
}

static int assign_strided(test_job *c, int rank, oar_dtype to_dtype,
                          oar_dtype from, const int64_t *to_stride,
                          const int64_t *stride)
{
    memset(to.host, 0xee, sizeof to.host);
    make_hard(a.host, from, ROOM);
    RANK_ZERO(put(c, rank, &to));
    RANK_ZERO(put(c, rank, &a));
    for (int i = 0; i < COUNT; i++)
        oari_convert(element(&to, to_dtype, to_stride, i), to_dtype,
                     element(&a, from, stride, i), from, 1);
    RANK_OK(oari_cuda_assign(0, extent, on_gpu(&to, to_dtype, to_stride),
                             on_gpu(&a, from, stride), NULL));
    return !same(&to);
}

GPU_TEST(strides_are_followed_by_moves_and_conversions)
{
    static const oar_dtype pairs[][2] = {
        { OAR_U8, OAR_U8 },   { OAR_BF16, OAR_BF16 }, { OAR_I32, OAR_I32 },
        { OAR_F64, OAR_F64 }, { OAR_F16, OAR_F32 },   { OAR_I64, OAR_BF16 }
    };

    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (int i = 0; i < WRITABLE; i++)
            for (int j = 0; j < LAYOUTS; j++)
                RANK_ZERO(assign_strided(c, rank, pairs[p][0], pairs[p][1],
                                         layouts[i], layouts[j]));
    drop(&to);
    drop(&a);
    return 0;
}

GPU_TEST(eight_dims_are_copied_and_none_is_one_number)
{
    static const int64_t dims[8] = { 2, 1, 3, 2, 1, 2, 3, 2 };
    static const int64_t from[8] = { 1, 99, 2, 6, 99, 12, 24, 72 };
    static const int64_t into[8] = { 72, 99, 24, 12, 99, 6, 2, 1 };
    oari_cuda_shape wide = { 8, dims }, number = { 0, NULL };
    const int32_t *seen = (const int32_t *)(const void *)to.host;

    make_hard(a.host, OAR_I32, ROOM);
    RANK_ZERO(put(c, rank, &to));
    RANK_ZERO(put(c, rank, &a));
    RANK_OK(oari_cuda_assign(0, wide, on_gpu(&to, OAR_I32, into),
                             on_gpu(&a, OAR_I32, from), NULL));
    RANK_OK(oar_device_copy(to.host, cpu, to.there, gpu, 144 * 4, NULL));
    RANK_CHECK(memcmp(&seen[0], a.host, 4) == 0);
    RANK_CHECK(memcmp(&seen[1], a.host + 4 * 72, 4) == 0); /* the last dim */
    RANK_CHECK(memcmp(&seen[72], a.host + 4 * 1, 4) == 0); /* the first */
    RANK_CHECK(memcmp(&seen[24], a.host + 4 * 2, 4) == 0);
    RANK_CHECK(memcmp(&seen[143], a.host + 4 * 143, 4) == 0);
    RANK_OK(oari_cuda_assign(0, number, on_gpu(&to, OAR_F64, NULL),
                             on_gpu(&a, OAR_I32, NULL), NULL));
    oari_convert(a.host, OAR_F64, memcpy(b.host, a.host, 4), OAR_I32, 1);
    RANK_OK(oar_device_copy(to.host, cpu, to.there, gpu, 8, NULL));
    RANK_CHECK(memcmp(to.host, a.host, 8) == 0);
    drop(&to);
    drop(&a);
    return 0;
}

/* ---- kernels that cannot be had ------------------------------------------ */

GPU_TEST(kernels_that_are_not_there_are_named)
{
    oari_cu_function kernel = NULL;

    RANK_CHECK(oari_cuda_kernel(0, "elementwise", "oari_nonesuch", &kernel) ==
               OAR_E_GPU);
    RANK_CHECK(strstr(oar_last_error_text(),
                      "find the kernel oari_nonesuch in elementwise.fatbin") !=
               NULL);
    RANK_CHECK(fails_with(oari_cuda_kernel(0, "nonesuch", "oari_move", &kernel),
                          OAR_E_UNAVAILABLE, "nonesuch.fatbin"));
    RANK_CHECK(kernel == NULL);
    RANK_OK(oar_device_kernels(gpu));
    RANK_CHECK(oar_device_kernels(cpu) == OAR_E_DEVICE);
    return 0;
}

GPU_TEST(without_kernels_copies_without_gaps_still_work)
{
    const int64_t count = 33, one = 1, two = 2;
    oari_cuda_shape flat = { 1, &count };

    setenv("OARSONG_KERNELS", "/nonexistent", 1);
    RANK_CHECK(fails_with(oar_device_kernels(gpu), OAR_E_UNAVAILABLE,
                          "/nonexistent/elementwise.fatbin"));
    make_hard(a.host, OAR_F32, ROOM);
    RANK_ZERO(put(c, rank, &to));
    RANK_ZERO(put(c, rank, &a));
    RANK_OK(oari_cuda_assign(0, flat, on_gpu(&to, OAR_F32, &one),
                             on_gpu(&a, OAR_F32, &one), NULL));
    memcpy(to.host, a.host, 33 * 4);
    RANK_CHECK(same(&to));
    RANK_CHECK(fails_with(oari_cuda_assign(0, flat, on_gpu(&to, OAR_F32, &one),
                                           on_gpu(&a, OAR_F32, &two), NULL),
                          OAR_E_UNAVAILABLE,
                          "/nonexistent/elementwise.fatbin"));
    drop(&to);
    drop(&a);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_becomes_every_other_as_on_the_host),
        cmocka_unit_test(strides_are_followed_by_moves_and_conversions),
        cmocka_unit_test(eight_dims_are_copied_and_none_is_one_number),
        cmocka_unit_test(kernels_that_are_not_there_are_named),
        cmocka_unit_test(without_kernels_copies_without_gaps_still_work),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("elementwise", tests, NULL, NULL);
}
