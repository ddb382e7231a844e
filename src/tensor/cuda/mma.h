/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/mma.h: a GPU's instructions for small products of halves, as
 * functions that all 32 threads of a warp call together; and the same in C++
 * for the host, over shuffles, for tests without a GPU.
 *
 * Fragments are those of mma.m16n8k16: thread 4 g + t has of a 16 x 16 matrix A
 * (rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9), of B 16 x 8
 * (those rows of column g), and of C 16 x 8 (rows g and g + 8, columns 2 t and
 * 2 t + 1). Two halves are one 32-bit word, the first in the low bits. */
#ifndef OARI_TENSOR_CUDA_MMA_H
#define OARI_TENSOR_CUDA_MMA_H

#include <stdint.h>

#include "base/half.h"

#define OARI_DEVICE static inline __device__

/* The two types of halves, as template arguments. */
struct oari_bf16 {
    uint16_t bits;
};
struct oari_f16 {
    uint16_t bits;
};

#ifdef __CUDACC__

/* ---- the GPU's ----------------------------------------------------------- */

OARI_DEVICE unsigned oari_shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* Loads four 8 x 8 matrices of halves: thread 8 i + r gives the address of row
 * r of matrix i; out[i] has row g, columns 2 t and 2 t + 1. */
OARI_DEVICE void oari_load_4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(oari_shared_address(row)));
}

/* The same; out[i] has column g, rows 2 t and 2 t + 1. */
OARI_DEVICE void oari_load_4_turned(uint32_t out[4], const void *row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(oari_shared_address(row)));
}

/* Begins to copy up to 16 bytes to shared memory, and zeros after them. The
 * address is a multiple of 16 also for 0 bytes. */
OARI_DEVICE void oari_copy_16(void *shared, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(
                     oari_shared_address(shared)),
                 "l"(from), "r"(bytes)
                 : "memory");
}

/* The same for 4 bytes. */
OARI_DEVICE void oari_copy_4(void *shared, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(
                     oari_shared_address(shared)),
                 "l"(from), "r"(valid ? 4 : 0)
                 : "memory");
}

/* Ends a group of copies of this thread. */
OARI_DEVICE void oari_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `left` groups of this thread are not there. */
template <int left> OARI_DEVICE void oari_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* c += a b. */
OARI_DEVICE void oari_mma(float c[4], const uint32_t a[4], uint32_t b0,
                          uint32_t b1, oari_bf16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
OARI_DEVICE void oari_mma(float c[4], const uint32_t a[4], uint32_t b0,
                          uint32_t b1, oari_f16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

OARI_DEVICE uint32_t oari_pack(float low, float high, oari_bf16)
{
    uint32_t both;

    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
OARI_DEVICE uint32_t oari_pack(float low, float high, oari_f16)
{
    uint32_t both;

    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* 2 to the power of x, to about 2 units in the last place. */
OARI_DEVICE float oari_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#include OARI_MMA_HOST
#endif

OARI_DEVICE float oari_widen(uint16_t bits, oari_bf16)
{
    return oari_bits_to_f32((uint32_t)bits << 16);
}
OARI_DEVICE float oari_widen(uint16_t bits, oari_f16)
{
#ifdef __CUDACC__
    float wide;

    asm("cvt.f32.f16 %0,%1;" : "=f"(wide) : "h"(bits));
    return wide;
#else
    return oari_f16_bits_to_f32(bits);
#endif
}

#endif
