/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/hopper.h: instructions of sm_90a: copies of tiles by the memory's
 * own engine, barriers that count bytes, and products by a warpgroup (four
 * warps, of which each has 16 of 64 rows).
 *
 * A tile in shared memory is rows of 64 halves (128 bytes), whose eight chunks
 * of 16 bytes are permuted by the row's last three bits; it begins at a
 * multiple of 1024 bytes. A wider matrix is several such tiles. */
#ifndef OARI_TENSOR_CUDA_HOPPER_H
#define OARI_TENSOR_CUDA_HOPPER_H

#include "tensor/cuda/attention_job.h"
#include "tensor/cuda/mma.h"

extern __shared__ uint4 oari_shared_memory[];

/* The block's dynamic shared memory from the first multiple of 1024 on. */
OARI_DEVICE void *oari_shared_tiles()
{
    unsigned past = oari_shared_address(oari_shared_memory) & 1023;

    return (char *)oari_shared_memory + ((1024 - past) & 1023);
}

/* ---- barriers ------------------------------------------------------------ */

OARI_DEVICE void oari_barrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(
                     oari_shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* Makes barriers that were set up known to the engine for copies. */
OARI_DEVICE void oari_barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

OARI_DEVICE void oari_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(
                     oari_shared_address(barrier))
                 : "memory");
}

/* Arrives, and lets the phase end only after so many bytes more. */
OARI_DEVICE void oari_barrier_expect(uint64_t *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(
                     oari_shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has ended; the one before the first
 * counts as an ended phase of parity 1. */
OARI_DEVICE void oari_barrier_wait(uint64_t *barrier, unsigned parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(oari_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* A barrier of `threads` threads, 1 to 15. */
OARI_DEVICE void oari_meet(int which, int threads)
{
    asm volatile("bar.sync %0,%1;" ::"r"(which), "r"(threads) : "memory");
}

/* Counts as one of them, and does not wait. */
OARI_DEVICE void oari_meet_later(int which, int threads)
{
    asm volatile("bar.arrive %0,%1;" ::"r"(which), "r"(threads) : "memory");
}

/* ---- copies -------------------------------------------------------------- */

/* Orders what this thread did in shared memory before what the engine for
 * copies, or a product, does after the next barrier. */
OARI_DEVICE void oari_hand_over()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* What the cache does with memory: it keeps what is used again soon rather than
 * what passes through once. */
OARI_DEVICE uint64_t oari_keep_in_cache()
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0,1.0;"
                 : "=l"(policy));
    return policy;
}
OARI_DEVICE uint64_t oari_pass_through_cache()
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0,1.0;"
                 : "=l"(policy));
    return policy;
}
OARI_DEVICE uint64_t oari_usual_in_cache()
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0,1.0;"
                 : "=l"(policy));
    return policy;
}

/* Begins to copy a tile of a map: columns and rows from there on, of a head. */
OARI_DEVICE void oari_copy_tile(void *tile, const oari_cuda_map *map,
                                int column, int row, int head, int outer,
                                uint64_t policy, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes.L2::cache_hint [%0],[%1,{%2,%3,%4,%5}],[%6],%7;" ::
            "r"(oari_shared_address(tile)),
        "l"(map), "r"(column), "r"(row), "r"(head), "r"(outer),
        "r"(oari_shared_address(barrier)), "l"(policy)
        : "memory");
}

/* The same for plain bytes; everything is a multiple of 16. */
OARI_DEVICE void oari_copy_bytes(void *to, const void *from, int bytes,
                                 uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0],[%1],%2,[%3];" ::"r"(oari_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(oari_shared_address(barrier))
                 : "memory");
}

/* Begins to write, or to add, f32 of shared memory to memory. */
OARI_DEVICE void oari_send_numbers(float *to, const float *from, int bytes,
                                   bool add, uint64_t policy)
{
    if (add)
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group."
                     "L2::cache_hint.add.f32 [%0],[%1],%2,%3;" ::"l"(to),
                     "r"(oari_shared_address(from)), "r"(bytes), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group."
                     "L2::cache_hint [%0],[%1],%2,%3;" ::"l"(to),
                     "r"(oari_shared_address(from)), "r"(bytes), "l"(policy)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all but `left` sends of this thread are done; _read: until they
 * no longer need their shared memory. */
template <int left> OARI_DEVICE void oari_send_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(left) : "memory");
}
template <int left> OARI_DEVICE void oari_send_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}

/* ---- registers ----------------------------------------------------------- */

template <int count> OARI_DEVICE void oari_more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> OARI_DEVICE void oari_fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/* Stores four 8 x 8 matrices of halves: thread 8 i + r gives the address of row
 * r of matrix i. */
OARI_DEVICE void oari_store_4(void *row, const uint32_t in[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(
            oari_shared_address(row)),
        "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
        : "memory");
}

/* ---- products ------------------------------------------------------------ */

/* Describes an operand in a tile: `next` is how many bytes further the next 64
 * columns begin, for an operand whose columns are rows of the tile and which
 * has more than 64 rows. */
OARI_DEVICE uint64_t oari_operand(const void *tile, int next)
{
    uint64_t address = oari_shared_address(tile) >> 4;

    return address | (uint64_t)(next >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* Orders registers before the products that follow. */
OARI_DEVICE void oari_products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
OARI_DEVICE void oari_products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all but `left` groups are done. */
template <int left> OARI_DEVICE void oari_products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* Keeps the compiler from using c before a wait. */
template <int count> OARI_DEVICE void oari_products_done(float *c)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

#define OARI_F4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define OARI_F16(c, i) \
    OARI_F4(c, i), OARI_F4(c, i + 4), OARI_F4(c, i + 8), OARI_F4(c, i + 12)
#define OARI_F32(c, i) OARI_F16(c, i), OARI_F16(c, i + 16)
#define OARI_F64(c, i) OARI_F32(c, i), OARI_F32(c, i + 32)
#define OARI_D16       "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OARI_D32 \
    OARI_D16     \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OARI_D64                                                        \
    OARI_D32                                                            \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* Begins c = a b or c += a b: 64 rows, n columns, 16 deep. Operands lie in
 * shared memory, where 16 deep is 16 columns of the tile, or turned, and 16
 * rows. x, y, z, p, q: the numbers of the operands after c. */
#define OARI_PRODUCT_TILES(half, n, d, f, x, y, z, p, q)                   \
    asm volatile("{.reg .pred add; setp.ne.b32 add,%" #z ",0;\n"           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #half   \
                 "." #half " {" d "},%" #x ",%" #y ",add,1,1,%" #p ",%" #q \
                 ";}"                                                      \
                 : f(c, 0)                                                 \
                 : "l"(a), "l"(b), "r"((int)add), "n"(turn_a), "n"(turn_b) \
                 : "memory")
#define OARI_PRODUCT_ROWS(half, n, d, f, v, w, x, y, b0, z, q)                \
    asm volatile("{.reg .pred add; setp.ne.b32 add,%" #z ",0;\n"              \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #half      \
                 "." #half " {" d "},{%" #v ",%" #w ",%" #x ",%" #y "},%" #b0 \
                 ",add,1,1,%" #q ";}"                                         \
                 : f(c, 0)                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),        \
                   "r"((int)add), "n"(turn_b)                                 \
                 : "memory")

#define OARI_PRODUCTS(half)                                                   \
    template <int n, int turn_a, int turn_b>                                  \
    OARI_DEVICE void oari_product(float *c, uint64_t a, uint64_t b, bool add, \
                                  oari_##half)                                \
    {                                                                         \
        if constexpr (n == 32)                                                \
            OARI_PRODUCT_TILES(half, 32, OARI_D16, OARI_F16, 16, 17, 18, 19,  \
                               20);                                           \
        else if constexpr (n == 64)                                           \
            OARI_PRODUCT_TILES(half, 64, OARI_D32, OARI_F32, 32, 33, 34, 35,  \
                               36);                                           \
        else                                                                  \
            OARI_PRODUCT_TILES(half, 128, OARI_D64, OARI_F64, 64, 65, 66, 67, \
                               68);                                           \
    }                                                                         \
    /* The same; a is in registers, as mma.h's operand A. */                  \
    template <int n, int turn_b>                                              \
    OARI_DEVICE void oari_product(float *c, const uint32_t *a, uint64_t b,    \
                                  bool add, oari_##half)                      \
    {                                                                         \
        if constexpr (n == 64)                                                \
            OARI_PRODUCT_ROWS(half, 64, OARI_D32, OARI_F32, 32, 33, 34, 35,   \
                              36, 37, 38);                                    \
        else                                                                  \
            OARI_PRODUCT_ROWS(half, 128, OARI_D64, OARI_F64, 64, 65, 66, 67,  \
                              68, 69, 70);                                    \
    }

OARI_PRODUCTS(bf16)
OARI_PRODUCTS(f16)

#endif
