/* SPDX-License-Identifier: Apache-2.0 */
/* standin/mma_host.h: the functions of src/tensor/cuda/mma.h for the host: the
 * 32 threads of a warp meet and give each other what they have. */
#ifndef TESTS_STANDIN_MMA_HOST_H
#define TESTS_STANDIN_MMA_HOST_H

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "standin/block.h"

namespace standin
{

struct matrices {
    const void *row;
    uint32_t *out;
};

/* Thread 8 i + r gives row r of matrix i, 8 halves. */
template <bool turned>
inline void load_matrices(uint32_t out[4], const void *row, const char *what)
{
    matrices mine = { row, out };

    warp_meet(
        mine,
        [](matrices *const lane[32]) {
            for (int i = 0; i < 4; i++)
                for (int n = 0; n < 32; n++) {
                    int g = n / 4, t = n % 4;
                    uint16_t half[2];

                    for (int k = 0; k < 2; k++) {
                        int r = turned ? 2 * t + k : g;
                        int c = turned ? g : 2 * t + k;

                        std::memcpy(&half[k],
                                    static_cast<const uint16_t *>(
                                        lane[8 * i + r]->row) +
                                        c,
                                    sizeof half[k]);
                    }
                    lane[n]->out[i] = half[0] | (uint32_t)half[1] << 16;
                }
        },
        what);
}

struct mma_operands {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <float (*widen)(uint16_t)>
inline void multiply_warp(float c[4], const uint32_t a[4], uint32_t b0,
                          uint32_t b1)
{
    mma_operands mine = { c, a, { b0, b1 } };

    warp_meet(
        mine,
        [](mma_operands *const lane[32]) {
            float x[16][16], y[16][8];

            for (int n = 0; n < 32; n++)
                for (int i = 0; i < 4; i++)
                    for (int k = 0; k < 2; k++) {
                        int g = n / 4, t = n % 4;

                        x[g + (i & 1) * 8][2 * t + k + (i >> 1) * 8] =
                            widen((uint16_t)(lane[n]->a[i] >> (16 * k)));
                        if (i < 2)
                            y[2 * t + k + i * 8][g] =
                                widen((uint16_t)(lane[n]->b[i] >> (16 * k)));
                    }
            for (int n = 0; n < 32; n++)
                for (int i = 0; i < 4; i++) {
                    int row = n / 4 + (i >> 1) * 8;
                    int column = n % 4 * 2 + (i & 1);
                    float sum = lane[n]->c[i];

                    for (int k = 0; k < 16; k++)
                        sum += x[row][k] * y[k][column];
                    lane[n]->c[i] = sum;
                }
        },
        "mma.sync");
}

} // namespace standin

static inline void oari_load_4(uint32_t out[4], const void *row)
{
    standin::load_matrices<false>(out, row, "ldmatrix");
}
static inline void oari_load_4_turned(uint32_t out[4], const void *row)
{
    standin::load_matrices<true>(out, row, "ldmatrix.trans");
}

static inline void oari_copy_16(void *shared, const void *from, int bytes)
{
    if (bytes < 16) /* zeros come as late as what is copied */
        standin::copy_later(static_cast<char *>(shared) + bytes, nullptr,
                            (size_t)(16 - bytes));
    if (bytes > 0)
        standin::copy_later(shared, from, (size_t)bytes);
}
static inline void oari_copy_4(void *shared, const void *from, bool valid)
{
    standin::copy_later(shared, valid ? from : nullptr, 4);
}
static inline void oari_copy_commit()
{
    standin::commit_copies();
}
template <int left> static inline void oari_copy_wait(STANDIN_AT)
{
    standin::wait_copies(left, { "cp.async.wait_group", file, line });
}

static inline void oari_mma(float c[4], const uint32_t a[4], uint32_t b0,
                            uint32_t b1, oari_bf16)
{
    standin::multiply_warp<oari_bf16_bits_to_f32>(c, a, b0, b1);
}
static inline void oari_mma(float c[4], const uint32_t a[4], uint32_t b0,
                            uint32_t b1, oari_f16)
{
    standin::multiply_warp<oari_f16_bits_to_f32>(c, a, b0, b1);
}

static inline uint32_t oari_pack(float low, float high, oari_bf16)
{
    return oari_bf16_bits_from_f32(low) |
           (uint32_t)oari_bf16_bits_from_f32(high) << 16;
}
static inline uint32_t oari_pack(float low, float high, oari_f16)
{
    return oari_f16_bits_from_f32(low) | (uint32_t)oari_f16_bits_from_f32(high)
                                             << 16;
}
static inline float oari_exp2(float x)
{
    return std::exp2(x);
}

#endif
