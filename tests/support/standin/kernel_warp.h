/* SPDX-License-Identifier: Apache-2.0 */
/* standin/kernel_warp.h: barriers, shuffles, votes and atomics of CUDA's C++
 * for the host's compiler. */
#ifndef TESTS_STANDIN_KERNEL_WARP_H
#define TESTS_STANDIN_KERNEL_WARP_H

static const int warpSize = 32;

/* ---- the block ----------------------------------------------------------- */

static inline void __syncthreads(STANDIN_AT)
{
    standin::meet_block(0, { "__syncthreads", file, line });
}
static inline int __syncthreads_count(int predicate, STANDIN_AT)
{
    return standin::meet_block(predicate,
                               { "__syncthreads_count", file, line });
}
static inline int __syncthreads_or(int predicate, STANDIN_AT)
{
    return standin::meet_block(predicate, { "__syncthreads_or", file, line }) !=
           0;
}
static inline int __syncthreads_and(int predicate, STANDIN_AT)
{
    return standin::meet_block(!predicate,
                               { "__syncthreads_and", file, line }) == 0;
}

/* ---- shuffles ------------------------------------------------------------ */

namespace standin
{

inline unsigned lane_of_thread()
{
    return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x +
            threadIdx.x) %
           32;
}

template <class T> struct shuffle {
    T value, result;
    unsigned from; /* the lane whose value is wanted */
    int missing;   /* nobody with a value is there */
};

template <class T>
T shuffle_lanes(unsigned mask, T value, unsigned from, site at)
{
    static_assert(std::is_trivially_copyable<T>::value &&
                      (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2),
                  "a shuffle moves 2, 4 or 8 bytes");
    shuffle<T> mine = { value, value, from, 0 };
    meet_lanes(
        mask, &mine,
        [](void *const lane[32], unsigned) {
            for (int i = 0; i < 32; i++) {
                auto *me = static_cast<shuffle<T> *>(lane[i]);
                if (!me)
                    continue;
                auto *other = static_cast<shuffle<T> *>(lane[me->from]);
                me->missing = !other;
                if (other)
                    me->result = other->value;
            }
        },
        at);
    if (mine.missing)
        fail(at, "it takes the value of a lane that is not in the mask or not "
                 "in the block");
    return mine.result;
}

/* Lanes are counted in groups of width, a power of two. */
inline unsigned first_of_group(int width, site at)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(at, "the width is no power of two up to 32");
    return lane_of_thread() & ~((unsigned)width - 1);
}

} // namespace standin

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32,
                            STANDIN_AT)
{
    standin::site at = { "__shfl_sync", file, line };
    unsigned first = standin::first_of_group(width, at);
    return standin::shuffle_lanes(
        mask, value, first + ((unsigned)from & ((unsigned)width - 1)), at);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                                 int width = 32, STANDIN_AT)
{
    standin::site at = { "__shfl_down_sync", file, line };
    unsigned end = standin::first_of_group(width, at) + (unsigned)width;
    unsigned self = standin::lane_of_thread(), from = self + delta;
    return standin::shuffle_lanes(mask, value, from < end ? from : self, at);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                               int width = 32, STANDIN_AT)
{
    standin::site at = { "__shfl_up_sync", file, line };
    unsigned first = standin::first_of_group(width, at);
    unsigned self = standin::lane_of_thread();
    return standin::shuffle_lanes(
        mask, value, self >= first + delta ? self - delta : self, at);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with,
                                int width = 32, STANDIN_AT)
{
    standin::site at = { "__shfl_xor_sync", file, line };
    unsigned end = standin::first_of_group(width, at) + (unsigned)width;
    unsigned self = standin::lane_of_thread(), from = self ^ (unsigned)with;
    return standin::shuffle_lanes(mask, value, from < end ? from : self, at);
}

/* ---- votes and sums of a warp -------------------------------------------- */

static inline void __syncwarp(unsigned mask = 0xffffffffu, STANDIN_AT)
{
    standin::meet_lanes(mask, nullptr, [](void *const[32], unsigned) {},
                        { "__syncwarp", file, line });
}

namespace standin
{

/* What a lane gives, and what all get. */
struct vote {
    unsigned given, result;
};

template <class Fn>
unsigned vote_lanes(unsigned mask, unsigned given, Fn, site at)
{
    vote mine = { given, 0 };
    meet_lanes(
        mask, &mine,
        [](void *const lane[32], unsigned) {
            unsigned result = Fn::begin;
            for (unsigned i = 0; i < 32; i++)
                if (lane[i])
                    result =
                        Fn::add(result, static_cast<vote *>(lane[i])->given, i);
            for (int i = 0; i < 32; i++)
                if (lane[i])
                    static_cast<vote *>(lane[i])->result = result;
        },
        at);
    return mine.result;
}

#define STANDIN_VOTE(name, first, expression)                        \
    struct name {                                                    \
        enum : unsigned { begin = first };                           \
        static unsigned add(unsigned so_far, unsigned x, unsigned i) \
        {                                                            \
            (void)i;                                                 \
            return expression;                                       \
        }                                                            \
    };
STANDIN_VOTE(vote_ballot, 0, so_far | (unsigned)(x != 0) << i)
STANDIN_VOTE(vote_add, 0, so_far + x)
STANDIN_VOTE(vote_or, 0, so_far | x)
STANDIN_VOTE(vote_and, 0xffffffffu, so_far &x)
STANDIN_VOTE(vote_min, 0xffffffffu, so_far < x ? so_far : x)
STANDIN_VOTE(vote_max, 0, so_far > x ? so_far : x)
#undef STANDIN_VOTE

} // namespace standin

static inline unsigned __ballot_sync(unsigned mask, int predicate, STANDIN_AT)
{
    return standin::vote_lanes(mask, (unsigned)predicate,
                               standin::vote_ballot(),
                               { "__ballot_sync", file, line });
}
static inline int __any_sync(unsigned mask, int predicate, STANDIN_AT)
{
    return standin::vote_lanes(mask, predicate != 0, standin::vote_or(),
                               { "__any_sync", file, line }) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, STANDIN_AT)
{
    return standin::vote_lanes(mask, predicate != 0, standin::vote_and(),
                               { "__all_sync", file, line }) == 1;
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value,
                                         STANDIN_AT)
{
    return standin::vote_lanes(mask, value, standin::vote_add(),
                               { "__reduce_add_sync", file, line });
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned value,
                                        STANDIN_AT)
{
    return standin::vote_lanes(mask, value, standin::vote_or(),
                               { "__reduce_or_sync", file, line });
}
static inline unsigned __reduce_and_sync(unsigned mask, unsigned value,
                                         STANDIN_AT)
{
    return standin::vote_lanes(mask, value, standin::vote_and(),
                               { "__reduce_and_sync", file, line });
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned value,
                                         STANDIN_AT)
{
    return standin::vote_lanes(mask, value, standin::vote_min(),
                               { "__reduce_min_sync", file, line });
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                         STANDIN_AT)
{
    return standin::vote_lanes(mask, value, standin::vote_max(),
                               { "__reduce_max_sync", file, line });
}

/* ---- atomics: of integers alone ------------------------------------------ */

namespace standin
{
template <class T> struct same {
    static_assert(std::is_integral<T>::value, "atomics are of integers");
    typedef T type;
};
} // namespace standin

#define STANDIN_ATOMIC(name, builtin)                                  \
    template <class T>                                                 \
    static inline T name(T *at, typename standin::same<T>::type value) \
    {                                                                  \
        return builtin(at, value, __ATOMIC_SEQ_CST);                   \
    }
STANDIN_ATOMIC(atomicAdd, __atomic_fetch_add)
STANDIN_ATOMIC(atomicSub, __atomic_fetch_sub)
STANDIN_ATOMIC(atomicAnd, __atomic_fetch_and)
STANDIN_ATOMIC(atomicOr, __atomic_fetch_or)
STANDIN_ATOMIC(atomicXor, __atomic_fetch_xor)
STANDIN_ATOMIC(atomicExch, __atomic_exchange_n)
#undef STANDIN_ATOMIC

template <class T>
static inline T atomicCAS(T *at, typename standin::same<T>::type wanted,
                          typename standin::same<T>::type value)
{
    __atomic_compare_exchange_n(at, &wanted, value, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return wanted;
}
template <class T>
static inline T atomicMin(T *at, typename standin::same<T>::type value)
{
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < seen &&
           !__atomic_compare_exchange_n(at, &seen, value, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return seen;
}
template <class T>
static inline T atomicMax(T *at, typename standin::same<T>::type value)
{
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(at, &seen, value, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return seen;
}

#endif
