/* SPDX-License-Identifier: Apache-2.0 */
/* standin/kernel_shim.h: as much of CUDA's C++ as the library's kernels use,
 * for the host's compiler. Threads run one after the other, each to its end: a
 * thread that waits for another of its grid would never return. */
#ifndef TESTS_STANDIN_KERNEL_SHIM_H
#define TESTS_STANDIN_KERNEL_SHIM_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "standin/kernel.h"

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Left as a word when the names of the kernels are looked for. */
#ifndef STANDIN_LOOK
#define __global__
#endif
#define __device__
#define __host__
#define __restrict__ __restrict
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

static inline unsigned __ldca(const unsigned *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

template <class T> static inline T __ldg(const T *at)
{
    return *at;
}
template <class T> static inline T __ldcs(const T *at)
{
    return *at;
}
template <class T> static inline T __ldcg(const T *at)
{
    return *at;
}
template <class T> static inline void __stcs(T *at, T value)
{
    *at = value;
}
template <class T> static inline void __stcg(T *at, T value)
{
    *at = value;
}

template <class To, class From> static inline To standin_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned bits)
{
    return standin_bits<float>(bits);
}
static inline unsigned __float_as_uint(float value)
{
    return standin_bits<unsigned>(value);
}
static inline float __int_as_float(int bits)
{
    return standin_bits<float>(bits);
}
static inline int __float_as_int(float value)
{
    return standin_bits<int>(value);
}
static inline int __clz(int value)
{
    return value ? __builtin_clz((unsigned)value) : 32;
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

namespace standin
{

template <class... P, std::size_t... I>
void call(void (*function)(P...), void *const *argument,
          std::index_sequence<I...>)
{
    function(*static_cast<std::remove_reference_t<P> *>(argument[I])...);
}

template <class... P>
void run(void (*function)(void), void *const *argument, const unsigned grid[3],
         const unsigned block[3])
{
    auto typed = reinterpret_cast<void (*)(P...)>(function);
    gridDim = { grid[0], grid[1], grid[2] };
    blockDim = { block[0], block[1], block[2] };
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
                for (threadIdx.z = 0; threadIdx.z < block[2]; threadIdx.z++)
                    for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)
                        for (threadIdx.x = 0; threadIdx.x < block[0];
                             threadIdx.x++)
                            call(typed, argument,
                                 std::index_sequence_for<P...>());
}

struct entry {
    standin_kernel kernel{};

    template <class... P>
    entry(const char *file, const char *name, void (*function)(P...))
    {
        static_assert(sizeof...(P) <= STANDIN_MOST_PARAMETERS, "parameters");
        const std::size_t bytes[] = { sizeof(P)..., 0 };
        const bool pointer[] = { std::is_pointer<P>::value..., false };
        kernel.file = file;
        kernel.name = name;
        kernel.count = sizeof...(P);
        for (int i = 0; i < kernel.count; i++) {
            kernel.bytes[i] = bytes[i];
            kernel.is_pointer[i] = pointer[i];
        }
        kernel.run = run<P...>;
        kernel.function = reinterpret_cast<void (*)(void)>(function);
        standin_kernel_add(&kernel);
    }
};

} // namespace standin

#define STANDIN_KERNEL(file, name) \
    static standin::entry name##_entry(#file, #name, name);

#endif
