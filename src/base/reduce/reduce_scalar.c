/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scalar: kernels that every machine runs, in what the compiler makes of
 * short vectors without being told of any instruction set. */
#define VEC 16
#define TARGET
#define ISA_TABLE oari_reduce_scalar
#define ISA_NAME  "scalar"
#include "base/reduce/reduce_vector.h"

/* The steps of half.h, four at a time. The f16 is in the low 16 bits. */
INLINE f32_acc widen(u32_acc half)
{
    u32_acc least = (u32_acc){ 0 } + (113u << 23);
    u32_acc body = (half & 0x7fffu) << 13;
    u32_acc tiny = (u32_acc)((f32_acc)(body + least) - (f32_acc)least);
    u32_acc quiet = (u32_acc)(body > 0x0f800000u) & 0x00400000u;
    u32_acc special = (body + (224u << 23)) | quiet;
    u32_acc normal = body + (112u << 23);
    u32_acc bits = u32_pick((u32_bits)(body < 0x00800000u), tiny, normal);

    bits = u32_pick((u32_bits)(body >= 0x0f800000u), special, bits);
    return (f32_acc)(bits | (half & 0x8000u) << 16);
}

INLINE u32_acc narrow(f32_acc a)
{
    u32_acc body = (u32_acc)a & 0x7fffffffu;
    u32_acc odd = (body >> 13) & 1u;
    u32_acc normal = (body - (112u << 23) + 0x0fffu + odd) >> 13;
    u32_acc tiny = (u32_acc)((f32_acc)body + 0.5f) - (126u << 23);
    u32_acc nan = ((body >> 13) & 0x03ffu) | 0x0200u;
    u32_acc special = ((u32_acc)(body > 0x7f800000u) & nan) | 0x7c00u;
    u32_acc half = u32_pick((u32_bits)(body < 0x38800000u), tiny, normal);

    half = u32_pick((u32_bits)(body >= 0x47800000u), special, half);
    return half | ((u32_acc)a >> 16 & 0x8000u);
}

/* Even elements in one vector, odd ones in the other, as with bf16. */
INLINE f16_acc f16_load(const unsigned char *from)
{
    u32_acc pair = u32_load(from);

    return (f16_acc){ widen(pair & 0xffffu), widen(pair >> 16) };
}

INLINE void f16_store(unsigned char *to, f16_acc x)
{
    u32_store(to, narrow(x.a) | narrow(x.b) << 16);
}

static oari_reduce_fit fit(void)
{
    return OARI_ISA_WANTED;
}

#include "base/reduce/reduce_kernels.h"
