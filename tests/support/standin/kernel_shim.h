/* SPDX-License-Identifier: Apache-2.0 */
/* standin/kernel_shim.h: as much of CUDA's C++ as the library's kernels use,
 * for the host's compiler. README.md says what kernels may use. */
#ifndef TESTS_STANDIN_KERNEL_SHIM_H
#define TESTS_STANDIN_KERNEL_SHIM_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "standin/block.h"
#include "standin/kernel.h"

/* What src/tensor/cuda/mma.h includes instead of the GPU's instructions. */
#define OARI_MMA_HOST "standin/mma_host.h"

struct dim3 {
    unsigned x, y, z;
};

#define STANDIN_VECTOR(name, type, bytes)                                \
    struct alignas(2 * bytes) name##2                                    \
    {                                                                    \
        type x, y;                                                       \
    };                                                                   \
    struct alignas(bytes < 8 ? 4 * bytes : 16) name##4                   \
    {                                                                    \
        type x, y, z, w;                                                 \
    };                                                                   \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        return { x, y };                                                 \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        return { x, y, z, w };                                           \
    }
STANDIN_VECTOR(char, signed char, 1)
STANDIN_VECTOR(uchar, unsigned char, 1)
STANDIN_VECTOR(short, short, 2)
STANDIN_VECTOR(ushort, unsigned short, 2)
STANDIN_VECTOR(int, int, 4)
STANDIN_VECTOR(uint, unsigned, 4)
STANDIN_VECTOR(float, float, 4)
STANDIN_VECTOR(longlong, long long, 8)
STANDIN_VECTOR(ulonglong, unsigned long long, 8)
STANDIN_VECTOR(double, double, 8)
#undef STANDIN_VECTOR

extern __thread dim3 threadIdx, blockIdx, blockDim, gridDim;

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
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__     static
/* A section for each file, which is filled before each block. */
#define STANDIN_TEXT(name)  STANDIN_TEXT2(name)
#define STANDIN_TEXT2(name) #name
#define __shared__ \
    static         \
        __attribute__((section("standin_shared_" STANDIN_TEXT(STANDIN_FILE))))

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
template <class T> static inline T __ldlu(const T *at)
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
static inline long long __double_as_longlong(double value)
{
    return standin_bits<long long>(value);
}
static inline double __longlong_as_double(long long bits)
{
    return standin_bits<double>(bits);
}
static inline int __clz(int value)
{
    return value ? __builtin_clz((unsigned)value) : 32;
}
static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}
static inline int __popc(unsigned value)
{
    return __builtin_popcount(value);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a,
                                            unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
/* The host's library declares functions of these names. */
#define __expf(x) std::exp(static_cast<float>(x))
#define __logf(x) std::log(static_cast<float>(x))
#define __sinf(x) std::sin(static_cast<float>(x))
#define __cosf(x) std::cos(static_cast<float>(x))
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return std::sqrt(x);
}
static inline float __frsqrt_rn(float x)
{
    return 1.0f / std::sqrt(x);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float rsqrtf(float x)
{
    return 1.0f / std::sqrt(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / std::sqrt(x);
}
template <class A, class B>
static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type both;
    return both(b) < both(a) ? both(b) : both(a);
}
template <class A, class B>
static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type both;
    return both(a) < both(b) ? both(b) : both(a);
}
/* Orders as a fence does; the thread sanitizer does not know fences. */
static inline void standin_fence()
{
    static int word;

    __atomic_fetch_add(&word, 0, __ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    standin_fence();
}
static inline void __threadfence()
{
    standin_fence();
}
static inline void __threadfence_system()
{
    standin_fence();
}

#include "standin/kernel_warp.h"

namespace standin
{

template <class... P, std::size_t... I>
void call(void (*function)(P...), void *const *argument,
          std::index_sequence<I...>)
{
    function(*static_cast<std::remove_reference_t<P> *>(argument[I])...);
}

template <class... P>
void call_typed(void (*function)(void), void *const *argument)
{
    call(reinterpret_cast<void (*)(P...)>(function), argument,
         std::index_sequence_for<P...>());
}

/* The static shared memory of a file. */
struct shared_of_file {
    char *start, *end;
    pthread_mutex_t *lock;
};

struct entry {
    standin_kernel kernel{};

    template <class... P>
    entry(const char *file, const char *name, void (*function)(P...),
          const shared_of_file &shared)
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
        kernel.call = call_typed<P...>;
        kernel.shared = shared.start;
        kernel.shared_end = shared.end;
        kernel.shared_lock = shared.lock;
        kernel.function = reinterpret_cast<void (*)(void)>(function);
        standin_kernel_add(&kernel);
    }
};

} // namespace standin

#define STANDIN_KERNEL(file, name)                         \
    static standin::entry name##_entry(#file, #name, name, \
                                       standin_shared(#file));

/* Before the file's kernels. */
#define STANDIN_SHARED(file)                                                  \
    extern "C" {                                                              \
    extern char __start_standin_shared_##file[]                               \
        __attribute__((weak, visibility("hidden")));                          \
    extern char __stop_standin_shared_##file[]                                \
        __attribute__((weak, visibility("hidden")));                          \
    }                                                                         \
    static standin::shared_of_file standin_shared(const char *)               \
    {                                                                         \
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;              \
        return { __start_standin_shared_##file, __stop_standin_shared_##file, \
                 &lock };                                                     \
    }

#endif
