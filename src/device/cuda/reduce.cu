/* SPDX-License-Identifier: Apache-2.0 */
/* reduce: combining and spreading memory on the GPU, at the speed of its
 * memory: every thread has several loads of 16 bytes under way.
 *
 * The arithmetic is that of base/reduce/reduce_vector.h and
 * base/reduce/reduce_scaled.c, step by step: same order, nothing fused, rounded
 * once. Plain C++ without anything of CUDA's headers, so that it compiles as
 * host code too. */
#include "device/cuda/cuda_reduce.h"

#define INLINE static inline __device__

namespace
{

/* ---- bits ---------------------------------------------------------------- */

typedef struct alignas(16) vector {
    uint32_t word[4];
} vector;

template <class T, class F> INLINE T bits_as(F from)
{
    T to;

    static_assert(sizeof(T) == sizeof(F), "as many bits");
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

/* Products and sums are rounded one by one: the compiler must not fuse them. */
#ifdef __CUDA_ARCH__
INLINE float add(float a, float b)
{
    return __fadd_rn(a, b);
}
INLINE float multiply(float a, float b)
{
    return __fmul_rn(a, b);
}
INLINE float divide(float a, float b)
{
    return __fdiv_rn(a, b);
}
INLINE double add(double a, double b)
{
    return __dadd_rn(a, b);
}
INLINE double multiply(double a, double b)
{
    return __dmul_rn(a, b);
}
INLINE double divide(double a, double b)
{
    return __ddiv_rn(a, b);
}
#else
template <class T> INLINE T add(T a, T b)
{
    return a + b;
}
template <class T> INLINE T multiply(T a, T b)
{
    return a * b;
}
template <class T> INLINE T divide(T a, T b)
{
    return a / b;
}
#endif

/* ---- halves: the steps of base/half.h, in hardware where that is the same -
 */

INLINE float widen_f16_bits(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t body = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t least = 113u << 23;
    float above = bits_as<float>(body + least) - bits_as<float>(least);

    if (body < 1u << 23)
        return bits_as<float>(bits_as<uint32_t>(above) | sign);
    if (body < 31u << 23)
        return bits_as<float>((body + (112u << 23)) | sign);
    return bits_as<float>((body + (224u << 23)) | sign |
                          (body > 31u << 23 ? 0x00400000u : 0));
}

INLINE uint16_t narrow_f16_bits(float value)
{
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t body = bits & 0x7fffffffu;
    float above = bits_as<float>(body) + 0.5f;

    if (body > 255u << 23)
        return (uint16_t)(sign | 0x7e00u | ((body >> 13) & 0x03ffu));
    if (body >= 143u << 23)
        return (uint16_t)(sign | 0x7c00u);
    if (body < 113u << 23)
        return (uint16_t)(sign |
                          (bits_as<uint32_t>(above) - bits_as<uint32_t>(0.5f)));
    return (uint16_t)(sign |
                      ((body - (112u << 23) + 0x0fffu + ((body >> 13) & 1u)) >>
                       13));
}

#ifdef __CUDA_ARCH__
/* The hardware's NaN has lost its bits. */
INLINE float widen_f16(uint16_t half)
{
    float value;

    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value == value ? value : widen_f16_bits(half);
}

INLINE uint16_t narrow_f16(float value)
{
    uint16_t half;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return value == value ? half : narrow_f16_bits(value);
}
#else
INLINE float widen_f16(uint16_t half)
{
    return widen_f16_bits(half);
}
INLINE uint16_t narrow_f16(float value)
{
    return narrow_f16_bits(value);
}
#endif

INLINE uint16_t narrow_bf16(float value)
{
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);

    return (uint16_t)((value != value ? bits : rounded) >> 16);
}

/* ---- elements ------------------------------------------------------------ */

/* oar_reduce_op_kind. */
enum { SUM = 0, PROD = 2, MIN = 3, MAX = 4, BAND = 5, BOR = 6, BXOR = 7 };

/* A NaN is kept, a's before b's; of equal numbers, which are zeros if their
 * bits differ, the bits decide. */
template <class V, class B> INLINE V least(V a, V b)
{
    if (a == b)
        return bits_as<V>((B)(bits_as<B>(a) | bits_as<B>(b)));
    return a < b || a != a ? a : b;
}

template <class V, class B> INLINE V most(V a, V b)
{
    if (a == b)
        return bits_as<V>((B)(bits_as<B>(a) & bits_as<B>(b)));
    return a > b || a != a ? a : b;
}

/* V: what is computed with; B: its bits. */
template <class V, class B> struct real {
    typedef V value;
    INLINE V combine(int op, V a, V b)
    {
        switch (op) {
        case SUM: return add(a, b);
        case PROD: return multiply(a, b);
        case MIN: return least<V, B>(a, b);
        default: return most<V, B>(a, b);
        }
    }
    INLINE V scale(V a, double x)
    {
        return multiply(a, (V)x);
    }
    INLINE V finish(V a, double by, double inverse)
    {
        return inverse != 0 ? scale(a, inverse) : divide(a, (V)by);
    }
};

struct f32 : real<float, uint32_t> {
    typedef float memory;
    INLINE float load(float x)
    {
        return x;
    }
    INLINE float store(float x)
    {
        return x;
    }
};

struct f64 : real<double, uint64_t> {
    typedef double memory;
    INLINE double load(double x)
    {
        return x;
    }
    INLINE double store(double x)
    {
        return x;
    }
};

struct f16 : real<float, uint32_t> {
    typedef uint16_t memory;
    INLINE float load(uint16_t x)
    {
        return widen_f16(x);
    }
    INLINE uint16_t store(float x)
    {
        return narrow_f16(x);
    }
};

struct bf16 : real<float, uint32_t> {
    typedef uint16_t memory;
    INLINE float load(uint16_t x)
    {
        return bits_as<float>((uint32_t)x << 16);
    }
    INLINE uint16_t store(float x)
    {
        return narrow_bf16(x);
    }
};

/* The part of real numbers that an integer type has: from least on, below
 * over. */
template <class T> struct limits {
    static const bool is_signed = (T)-1 < (T)1;
    static const int bits = 8 * (int)sizeof(T) - (is_signed ? 1 : 0);
    INLINE double over()
    {
        return 2.0 * (double)(1ull << (bits - 1));
    }
    INLINE double least()
    {
        return is_signed ? -over() : 0;
    }
    INLINE T most()
    {
        return (T)(~0ull >> (64 - bits));
    }
    INLINE T lowest()
    {
        return is_signed ? (T)(1ull << bits % 64) : (T)0;
    }
};

/* Truncates and saturates; NaN gives 0. */
template <class T> INLINE T from_real(double x)
{
    typedef limits<T> limit;

    if (x != x)
        return 0;
    if (x <= limit::least())
        return limit::lowest();
    return x >= limit::over() ? limit::most() : (T)x;
}

/* T as it is in memory, W unsigned and no narrower than an int: it wraps. */
template <class T, class W> struct whole {
    typedef T value;
    typedef T memory;
    INLINE T load(T x)
    {
        return x;
    }
    INLINE T store(T x)
    {
        return x;
    }
    INLINE T combine(int op, T a, T b)
    {
        switch (op) {
        case SUM: return (T)((W)a + (W)b);
        case PROD: return (T)((W)a * (W)b);
        case MIN: return a < b ? a : b;
        case MAX: return a > b ? a : b;
        case BAND: return (T)(a & b);
        case BOR: return (T)(a | b);
        default: return (T)(a ^ b);
        }
    }
    INLINE T scale(T a, double x)
    {
        return from_real<T>(multiply((double)a, x));
    }
    INLINE bool is_whole(double by)
    {
        const bool sign = limits<T>::is_signed;

        return by >= (sign ? -0x1p63 : 1) && by < (sign ? 0x1p63 : 0x1p64) &&
               (by >= 0x1p53 || by <= -0x1p53 || by == (double)(int64_t)by);
    }
    /* A divisor that is a whole number divides as one. */
    INLINE T finish(T a, double by, double)
    {
        if (!is_whole(by))
            return from_real<T>(divide((double)a, by));
        if (!limits<T>::is_signed)
            return (T)((uint64_t)a / (uint64_t)by);
        if (by == -1)
            return (T)(0 - (uint64_t)a);
        return (T)((int64_t)a / (int64_t)by);
    }
};

struct flag {
    typedef uint8_t value;
    typedef uint8_t memory;
    INLINE uint8_t load(uint8_t x)
    {
        return x != 0;
    }
    INLINE uint8_t store(uint8_t x)
    {
        return x;
    }
    INLINE uint8_t combine(int op, uint8_t a, uint8_t b)
    {
        switch (op) {
        case SUM:
        case MAX:
        case BOR: return a | b;
        case BXOR: return a ^ b;
        default: return a & b;
        }
    }
    INLINE uint8_t scale(uint8_t a, double)
    {
        return a;
    }
    INLINE uint8_t finish(uint8_t a, double, double)
    {
        return a;
    }
};

/* ---- any number of sources and destinations ------------------------------ */

/* The host may write it at any time. Read through the caches: past them each
 * thread, or block, would wait for the bus. */
INLINE bool is_stopped(uint64_t stop)
{
    return stop != 0 && __ldca((const unsigned *)stop) != 0;
}

INLINE uint64_t my_number(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

INLINE uint64_t all_threads(void)
{
    return (uint64_t)gridDim.x * blockDim.x;
}

template <class E>
INLINE typename E::value take(const oari_cuda_reduction &r, int s,
                              typename E::memory x)
{
    typename E::value v = E::load(x);

    return r.factors ? E::scale(v, r.factor[s]) : v;
}

template <class E, class A>
INLINE typename E::memory give(const A &r, typename E::value v)
{
    return E::store(r.divisor != 0 ? E::finish(v, r.divisor, r.inverse) : v);
}

template <class E> INLINE void one(const oari_cuda_reduction &r, uint64_t i)
{
    typedef typename E::memory memory;
    typename E::value v = take<E>(r, 0, ((const memory *)r.source[0])[i]);
    memory result;

    for (int s = 1; s < r.sources; s++)
        v = E::combine(r.op, v,
                       take<E>(r, s, ((const memory *)r.source[s])[i]));
    result = give<E>(r, v);
    for (int d = 0; d < r.destinations; d++)
        ((memory *)r.destination[d])[i] = result;
}

template <class E> struct lanes {
    enum { count = sizeof(vector) / sizeof(typename E::memory) };
    typename E::memory lane[count];
};

template <class E>
INLINE vector *vector_at(uint64_t buffer, uint64_t head, uint64_t i)
{
    return (vector *)(buffer + head * sizeof(typename E::memory)) + i;
}

template <class E> INLINE void sixteen(const oari_cuda_reduction &r, uint64_t i)
{
    enum { N = lanes<E>::count };
    const uint64_t head = r.range.head;
    typename E::value v[N];
    lanes<E> x = bits_as<lanes<E>>(*vector_at<E>(r.source[0], head, i));

    for (int k = 0; k < N; k++)
        v[k] = take<E>(r, 0, x.lane[k]);
    for (int s = 1; s < r.sources; s++) {
        x = bits_as<lanes<E>>(*vector_at<E>(r.source[s], head, i));
        for (int k = 0; k < N; k++)
            v[k] = E::combine(r.op, v[k], take<E>(r, s, x.lane[k]));
    }
    for (int k = 0; k < N; k++)
        x.lane[k] = give<E>(r, v[k]);
    for (int d = 0; d < r.destinations; d++)
        *vector_at<E>(r.destination[d], head, i) = bits_as<vector>(x);
}

/* The i-th of the elements that are in no vector. */
template <class E>
INLINE uint64_t single_at(const oari_cuda_range &range, uint64_t i)
{
    return i < range.head ? i : i + range.vectors * lanes<E>::count;
}

template <class E> INLINE uint64_t singles(const oari_cuda_range &range)
{
    return range.count - range.vectors * lanes<E>::count;
}

template <class E> INLINE void reduce(const oari_cuda_reduction &r)
{
    const uint64_t step = all_threads(), mine = my_number();

    if (is_stopped(r.stop))
        return;
    for (uint64_t i = mine; i < r.range.vectors; i += step)
        sixteen<E>(r, i);
    for (uint64_t i = mine; i < singles<E>(r.range); i += step)
        one<E>(r, single_at<E>(r.range, i));
}

} // namespace

#define REDUCE(NAME, ...)                                                \
    typedef __VA_ARGS__ element_##NAME;                                  \
    extern "C" __global__ void oari_reduce_##NAME(oari_cuda_reduction r) \
    {                                                                    \
        reduce<element_##NAME>(r);                                       \
    }

REDUCE(f32, f32)
REDUCE(f64, f64)
REDUCE(f16, f16)
REDUCE(bf16, bf16)
REDUCE(i8, whole<int8_t, uint32_t>)
REDUCE(u8, whole<uint8_t, uint32_t>)
REDUCE(i16, whole<int16_t, uint32_t>)
REDUCE(u16, whole<uint16_t, uint32_t>)
REDUCE(i32, whole<int32_t, uint32_t>)
REDUCE(u32, whole<uint32_t, uint32_t>)
REDUCE(i64, whole<int64_t, uint64_t>)
REDUCE(u64, whole<uint64_t, uint64_t>)
REDUCE(bool, flag)

/* ---- sums of 2, 4 and 8 -------------------------------------------------- */

namespace
{

/* Of N sources, U vectors of each under way. */
template <class E, int N, int U>
INLINE void load_all(const oari_cuda_sum &r, uint64_t i, uint64_t step,
                     vector (&x)[N][U])
{
#pragma unroll
    for (int s = 0; s < N; s++)
#pragma unroll
        for (int u = 0; u < U; u++)
            x[s][u] = *vector_at<E>(r.source[s], r.range.head, i + u * step);
}

template <class E, int N, int U>
INLINE vector sum_of(const oari_cuda_sum &r, const vector (&x)[N][U], int u)
{
    lanes<E> sum = bits_as<lanes<E>>(x[0][u]);

#pragma unroll
    for (int k = 0; k < lanes<E>::count; k++) {
        typename E::value v = E::load(sum.lane[k]);

#pragma unroll
        for (int s = 1; s < N; s++)
            v = add(v, E::load(bits_as<lanes<E>>(x[s][u]).lane[k]));
        sum.lane[k] = give<E>(r, v);
    }
    return bits_as<vector>(sum);
}

template <class E, int N, int U>
INLINE void sum_vectors(const oari_cuda_sum &r, uint64_t i, uint64_t step)
{
    vector x[N][U];

    load_all<E, N, U>(r, i, step, x);
#pragma unroll
    for (int u = 0; u < U; u++) {
        vector sum = sum_of<E, N, U>(r, x, u);

#pragma unroll
        for (int d = 0; d < N; d++)
            if (d < r.destinations)
                *vector_at<E>(r.destination[d], r.range.head, i + u * step) =
                    sum;
    }
}

template <class E, int N>
INLINE void sum_single(const oari_cuda_sum &r, uint64_t i)
{
    typedef typename E::memory memory;
    typename E::value v = E::load(((const memory *)r.source[0])[i]);

    for (int s = 1; s < N; s++)
        v = add(v, E::load(((const memory *)r.source[s])[i]));
    for (int d = 0; d < r.destinations; d++)
        ((memory *)r.destination[d])[i] = give<E>(r, v);
}

template <class E, int N, int U> INLINE void sum(const oari_cuda_sum &r)
{
    const uint64_t step = all_threads();
    uint64_t i = my_number();

    if (is_stopped(r.stop))
        return;
    for (uint64_t k = i; k < singles<E>(r.range); k += step)
        sum_single<E, N>(r, single_at<E>(r.range, k));
    for (; i + (U - 1) * step < r.range.vectors; i += U * step)
        sum_vectors<E, N, U>(r, i, step);
    for (; i < r.range.vectors; i += step)
        sum_vectors<E, N, 1>(r, i, step);
}

} // namespace

#define SUM_OF(NAME, N, U)                                            \
    extern "C" __global__ void oari_sum_##NAME##_##N(oari_cuda_sum r) \
    {                                                                 \
        sum<NAME, N, U>(r);                                           \
    }

SUM_OF(f32, 2, 4)
SUM_OF(f32, 4, 2)
SUM_OF(f32, 8, 1)
SUM_OF(f16, 2, 4)
SUM_OF(f16, 4, 2)
SUM_OF(f16, 8, 1)
SUM_OF(bf16, 2, 4)
SUM_OF(bf16, 4, 2)
SUM_OF(bf16, 8, 1)

/* ---- copies -------------------------------------------------------------- */

namespace
{

INLINE void copy_bytes(const oari_cuda_copy &c, const oari_cuda_piece &p,
                       uint64_t from, uint64_t end)
{
    for (uint64_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        uint8_t byte = ((const uint8_t *)p.from)[i];

        for (int t = 0; t < p.targets; t++)
            ((uint8_t *)c.to[p.target + t])[i] = byte;
    }
}

/* Words from `from` to `end`, which both lie on words everywhere. */
template <class T>
INLINE void copy_words(const oari_cuda_copy &c, const oari_cuda_piece &p,
                       uint64_t from, uint64_t end)
{
    enum { AT_ONCE = 4 };
    const uint64_t n = (end - from) / sizeof(T);
    const T *source = (const T *)(p.from + from);

    for (uint64_t i = threadIdx.x; i < n; i += AT_ONCE * blockDim.x) {
        T x[AT_ONCE];

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * blockDim.x < n)
                x[u] = source[i + u * blockDim.x];
        for (int t = 0; t < p.targets; t++) {
            T *to = (T *)(c.to[p.target + t] + from);

#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (i + u * blockDim.x < n)
                    to[i + u * blockDim.x] = x[u];
        }
    }
}

INLINE void copy_units(const oari_cuda_copy &c, const oari_cuda_piece &p,
                       uint64_t from, uint64_t end)
{
    switch (p.unit) {
    case 16: copy_words<vector>(c, p, from, end); break;
    case 8: copy_words<uint64_t>(c, p, from, end); break;
    case 4: copy_words<uint32_t>(c, p, from, end); break;
    default: copy_bytes(c, p, from, end); break;
    }
}

INLINE uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* One chunk of a piece: the bytes before the first unit, units, the rest. */
INLINE void copy_chunk(const oari_cuda_copy &c, const oari_cuda_piece &p,
                       uint64_t chunk)
{
    uint64_t from = chunk * OARI_CUDA_CHUNK, end = from + OARI_CUDA_CHUNK;
    uint64_t first, last;

    from = from < p.skew ? 0 : from - p.skew;
    end = end - p.skew < p.bytes ? end - p.skew : p.bytes;
    first = round_up(from + p.skew, p.unit) - p.skew;
    if (first > end)
        first = end;
    last = first + (end - first) / p.unit * p.unit;
    copy_bytes(c, p, from, first);
    copy_units(c, p, first, last);
    copy_bytes(c, p, last, end);
}

/* Which piece a chunk is of. */
INLINE int piece_of(const oari_cuda_copy &c, uint64_t chunk)
{
    int low = 0, high = (int)c.pieces;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (c.piece[middle].chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

} // namespace

extern "C" __global__ void oari_copy(oari_cuda_copy c)
{
    if (is_stopped(c.stop))
        return;
    for (uint64_t i = blockIdx.x; i < c.chunks; i += gridDim.x) {
        const oari_cuda_piece &p = c.piece[piece_of(c, i)];

        copy_chunk(c, p, i - p.chunk);
    }
}
