// SPDX-License-Identifier: Apache-2.0
/* float_arith: functions of elements of f32, f16 and bf16, and their
 * derivatives, computed in f32. A block has a tile of elements. Where all arrays
 * are aligned and without gaps, or are one row, one column or one number that is
 * repeated, each thread takes eight elements at once, and reads all that it takes
 * before it computes; else it takes one after the other, wherever they are. */
#include "tensor/cuda/eights.cuh"
#include "tensor/cuda/functions.cuh"

enum {
    WARPS = OARI_TILE_THREADS / WARP,
    CHUNK = WARP * EIGHT, /* elements of a warp at a time */
    ROUNDS = OARI_TILE / (WARPS * CHUNK),
    STEP = WARPS * CHUNK
};

/* ---- a tile -------------------------------------------------------------- */

/* Where a thread's next eight elements are: those from low on and, of f32, four
 * from high on; and where those are in their rows. */
struct eight_at {
    int64_t low, high;
    uint32_t row_low, row_high;
};

/* A place of a row, `skip` elements on; skip is below width. */
DEVICE uint32_t along_row(uint32_t at, uint32_t skip, uint32_t width)
{
    at += skip;
    return at < width ? at : at - width;
}

DEVICE eight_at first_eight(const oari_arith_job &job, int64_t tile)
{
    const uint32_t width = (uint32_t)job.width;
    eight_at e;

    e.low = tile + threadIdx.x / WARP * CHUNK + threadIdx.x % WARP * job.packed;
    e.high = e.low + (job.packed == 4 ? 4 * WARP : 4);
    e.row_low = e.row_high = 0;
    if (job.has_rows) {
        e.row_low = (uint32_t)e.low % width;
        e.row_high = job.packed == 4
                         ? along_row(e.row_low, job.row_chunk, width)
                         : e.row_low + 4;
    }
    return e;
}

DEVICE eight_at next_eight(const oari_arith_job &job, eight_at e)
{
    const uint32_t width = (uint32_t)job.width;

    e.low += STEP;
    e.high += STEP;
    if (job.has_rows) {
        e.row_low = along_row(e.row_low, job.row_step, width);
        e.row_high = along_row(e.row_high, job.row_step, width);
    }
    return e;
}

/* The dtype of an array that is read by eights. What is known to be a half needs
 * half the registers. */
template <bool halves> DEVICE int dtype_of(const oari_job_array &a)
{
    return !halves ? a.dtype : a.dtype == OAR_BF16 ? OAR_BF16 : OAR_F16;
}

/* Eight elements of an array, counted as those of the first. */
template <bool halves>
DEVICE raw8 load_input(const oari_arith_job &job, const oari_job_array &a,
                       const eight_at &e)
{
    raw8 r = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
    const uint32_t width = (uint32_t)job.width;
    const int dtype = dtype_of<halves>(a);

    switch (a.lies) {
    case OARI_LIES_ONE: return r;
    case OARI_LIES_COLUMN:
        r.low.x = __float_as_uint(
            load_as<float>(a.data, a.dtype, (uint32_t)e.low / width));
        if (!halves) /* else it is the same */
            r.low.y = __float_as_uint(
                load_as<float>(a.data, a.dtype, (uint32_t)e.high / width));
        return r;
    case OARI_LIES_ROW: return load_raw(a.data, dtype, e.row_low, e.row_high);
    }
    return load_raw(a.data, dtype, e.low, e.high);
}

template <bool halves>
DEVICE void widen_input(const oari_job_array &a, const raw8 &r, float *x)
{
    if (a.lies == OARI_LIES_ONE) {
        float one = get<float>(a, 0);

        for (int k = 0; k < EIGHT; k++)
            x[k] = one;
    } else if (a.lies == OARI_LIES_COLUMN) {
        for (int k = 0; k < EIGHT; k++)
            x[k] = __uint_as_float(k < 4 || halves ? r.low.x : r.low.y);
    } else {
        widen_raw(r, dtype_of<halves>(a), x);
    }
}

/* The tile of this block, by eights. Inputs are arrays 1 .. N and, if what is
 * there is added to, array 0. All that a thread takes is read at first. */
template <int N, bool may_add, bool halves, class F>
DEVICE void run_eights(const oari_arith_job &job, int64_t tile)
{
    const oari_job_array &to = job.array[0];
    const int dtype = dtype_of<halves>(to);
    const bool add = may_add && job.add;
    raw8 in[ROUNDS][N + 1] = {};
    eight_at e = first_eight(job, tile);

#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (int n = 0; n < N; n++)
            in[round][n] = load_input<halves>(job, job.array[n + 1], e);
        if (add)
            in[round][N] = load_raw(to.data, dtype, e.low, e.high);
        e = next_eight(job, e);
    }
    e = first_eight(job, tile);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        float x[N][EIGHT], y[EIGHT];

#pragma unroll
        for (int n = 0; n < N; n++)
            widen_input<halves>(job.array[n + 1], in[0][n], x[n]);
        F::template run<EIGHT>(job, x, y);
        if (add) {
            float before[EIGHT];

            widen_raw(in[0][N], dtype, before);
            for (int k = 0; k < EIGHT; k++)
                y[k] += before[k];
        }
        store_eight(to.data, dtype, e.low, e.high, y);
        e.low += STEP;
        e.high += STEP;
#pragma unroll
        for (int n = 0; n <= N; n++) /* the function's code is there once */
            for (int later = 1; later < ROUNDS; later++)
                in[later - 1][n] = in[later][n];
    }
}

/* One by one. */
template <int N, bool may_add, class F>
DEVICE void run_ones(const oari_arith_job &job, int64_t tile)
{
    const oari_job_array &to = job.array[0];
    int64_t end = tile + OARI_TILE < job.count ? tile + OARI_TILE : job.count;

    for (int64_t i = tile + threadIdx.x; i < end; i += OARI_TILE_THREADS) {
        places p = place<N + 1>(job, (uint64_t)i);
        float x[N][1], y[1];

#pragma unroll
        for (int n = 0; n < N; n++)
            x[n][0] = get<float>(job.array[n + 1], p.at[n + 1]);
        F::template run<1>(job, x, y);
        if (may_add && job.add)
            y[0] += load_as<float>(to.data, to.dtype, p.at[0]);
        store_as(to.data, to.dtype, p.at[0], y[0]);
    }
}

template <int N, bool may_add, bool halves, class F>
DEVICE void run_tile(const oari_arith_job &job)
{
    int64_t tile = (int64_t)blockIdx.x * OARI_TILE;

    if (job.packed && tile + OARI_TILE <= job.count)
        run_eights<N, may_add, halves, F>(job, tile);
    else
        run_ones<N, may_add, F>(job, tile);
}

#define KERNEL_OF(kernel, inputs, may_add, halves, family)          \
    extern "C" __global__ void __launch_bounds__(OARI_TILE_THREADS) \
        kernel(const __grid_constant__ oari_arith_job job)          \
    {                                                               \
        run_tile<inputs, may_add, halves, family>(job);             \
    }

/* One for packs of halves alone, and one for all else. */
#define KERNEL(name, inputs, may_add, family)                  \
    KERNEL_OF(oari_half_##name, inputs, may_add, true, family) \
    KERNEL_OF(oari_float_##name, inputs, may_add, false, family)

/* y = expression of k for all elements. */
#define FOR_EACH(expression)                                           \
    _Pragma("unroll") for (int k = 0; k < V; k++) y[k] = (expression); \
    break

/* ---- unary --------------------------------------------------------------- */

/* What is not used often is a call for each element. */
static __noinline__ __device__ float rare_unary(int kind, float x)
{
    return unary_of(kind, x);
}

static __noinline__ __device__ float rare_unary_back(int kind, float g, float x)
{
    return unary_back_of(kind, g, x);
}

/* For halves: to about 2e-6 of the result. */
DEVICE float quick_sigmoid(float x)
{
    return quick_inverse(1.0f + quick_exp2(-1.4426950409f * x));
}

/* The argument of the sigmoid that is (1 + tanh)/2 of GELU. */
DEVICE float gelu_argument(float x)
{
    return x * (2 * (float)GELU_SCALE +
                2 * (float)(GELU_SCALE * GELU_CUBIC) * x * x);
}

/* For halves: the normal distribution beyond x >= 0, to 1e-7, by formula 7.1.26
 * of Abramowitz and Stegun; bell is exp(-x*x/2). */
DEVICE float quick_tail(float x, float *bell)
{
    float t = quick_inverse(1.0f + 0.23164189f * x), tail;

    *bell = quick_exp2(-0.72134752f * x * x);
    tail = 0.5f * 1.061405429f;
    tail = tail * t - 0.5f * 1.453152027f;
    tail = tail * t + 0.5f * 1.421413741f;
    tail = tail * t - 0.5f * 0.284496736f;
    tail = tail * t + 0.5f * 0.254829592f;
    return tail * (t * *bell);
}

/* Beyond 20 there is nothing, not even of an infinite x. */
DEVICE float quick_gelu(float x)
{
    float bell, most = fminf(fabsf(x), 20.0f);

    return fmaxf(x, 0.0f) - most * quick_tail(most, &bell);
}

DEVICE float quick_gelu_slope(float x)
{
    float bell, tail = quick_tail(fabsf(x), &bell);

    return (x > 0 ? 1 - tail : tail) + 0.39894228f * x * bell;
}

DEVICE float quick_gelu_tanh_slope(float x)
{
    float s = quick_sigmoid(gelu_argument(x));

    return s + 2 * x * s * (1 - s) *
                   ((float)GELU_SCALE +
                    3 * (float)(GELU_SCALE * GELU_CUBIC) * x * x);
}

enum { HALF = 1000 }; /* + a kind: the formula for halves */

DEVICE int kind_for(const oari_arith_job &job)
{
    int quick = job.kind == OARI_UNARY_gelu ||
                job.kind == OARI_UNARY_gelu_tanh ||
                job.kind == OARI_UNARY_silu || job.kind == OARI_UNARY_sigmoid;

    return job.kind + (quick && job.array[0].dtype != OAR_F32 ? HALF : 0);
}

struct unary_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&a)[1][V], float (&y)[V])
    {
        const float(&x)[V] = a[0];

        switch (kind_for(job)) {
        case OARI_UNARY_neg: FOR_EACH(-x[k]);
        case OARI_UNARY_abs: FOR_EACH(whole_unary(OARI_UNARY_abs, x[k]));
        case OARI_UNARY_relu: FOR_EACH(whole_unary(OARI_UNARY_relu, x[k]));
        case OARI_UNARY_exp: FOR_EACH(expf(x[k]));
        case OARI_UNARY_sqrt: FOR_EACH(sqrtf(x[k]));
        case OARI_UNARY_tanh: FOR_EACH(tanhf(x[k]));
        case HALF + OARI_UNARY_sigmoid: FOR_EACH(quick_sigmoid(x[k]));
        case HALF + OARI_UNARY_silu: FOR_EACH(x[k] * quick_sigmoid(x[k]));
        case HALF + OARI_UNARY_gelu: FOR_EACH(quick_gelu(x[k]));
        case HALF + OARI_UNARY_gelu_tanh:
            FOR_EACH(x[k] * quick_sigmoid(gelu_argument(x[k])));
        default: FOR_EACH(rare_unary(job.kind, x[k]));
        }
    }
};

KERNEL(unary, 1, false, unary_family)

/* Of the gradient and of what was saved. */
struct unary_back_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&a)[2][V], float (&y)[V])
    {
        const float(&g)[V] = a[0], (&x)[V] = a[1];

        switch (kind_for(job)) {
        case OARI_UNARY_relu: FOR_EACH(x[k] <= 0 ? 0.0f : g[k]);
        case OARI_UNARY_exp: FOR_EACH(g[k] * x[k]);
        case OARI_UNARY_tanh: FOR_EACH(g[k] * (1 - x[k] * x[k]));
        case OARI_UNARY_sigmoid:
        case HALF + OARI_UNARY_sigmoid: FOR_EACH(g[k] * x[k] * (1 - x[k]));
        case HALF + OARI_UNARY_silu: {
            float s[V];

            for (int k = 0; k < V; k++)
                s[k] = quick_sigmoid(x[k]);
            FOR_EACH(g[k] * (s[k] * (1 + x[k] * (1 - s[k]))));
        }
        case HALF + OARI_UNARY_gelu: FOR_EACH(g[k] * quick_gelu_slope(x[k]));
        case HALF + OARI_UNARY_gelu_tanh:
            FOR_EACH(g[k] * quick_gelu_tanh_slope(x[k]));
        default: FOR_EACH(rare_unary_back(job.kind, g[k], x[k]));
        }
    }
};

KERNEL(unary_back, 2, true, unary_back_family)

/* ---- binary -------------------------------------------------------------- */

static __noinline__ __device__ float rare_power(float x, float y)
{
    return powf(x, y);
}

static __noinline__ __device__ float rare_binary_back(int kind, int side,
                                                      float g, float a, float b)
{
    return binary_back_of(kind, side, g, a, b);
}

#define BINARY(name) \
    case name: FOR_EACH(binary_of(name, OARI_JOB_F32, x[0][k], x[1][k]))

struct binary_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&x)[2][V], float (&y)[V])
    {
        switch (job.kind) {
            BINARY(OARI_ADD);
            BINARY(OARI_SUB);
            BINARY(OARI_MUL);
            BINARY(OARI_DIV);
            BINARY(OARI_MINIMUM);
            BINARY(OARI_MAXIMUM);
        default: FOR_EACH(rare_power(x[0][k], x[1][k]));
        }
    }
};

KERNEL(binary, 2, true, binary_family)

/* Of the gradient and of both inputs. Sums and products do without. */
struct binary_back_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&x)[3][V], float (&y)[V])
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            y[k] =
                rare_binary_back(job.kind, job.side, x[0][k], x[1][k], x[2][k]);
    }
};

KERNEL(binary_back, 3, true, binary_back_family)

/* ---- with numbers -------------------------------------------------------- */

DEVICE float clamped(float x, float least, float most)
{
    x = x < least ? least : x;
    return x > most ? most : x;
}

struct scalar_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&a)[1][V], float (&y)[V])
    {
        const float(&x)[V] = a[0];
        float first = (float)job.number[0], second = (float)job.number[1];

        if (job.kind == OARI_POWER && job.number[0] != 2 &&
            job.number[0] != 3) {
#pragma unroll
            for (int k = 0; k < V; k++)
                y[k] = rare_power(x[k], first);
            return;
        }
        switch (job.kind) {
        case OARI_SHIFT: FOR_EACH(x[k] + first);
        case OARI_POWER: FOR_EACH(x[k] * x[k] * (first == 3 ? x[k] : 1.0f));
        case OARI_CLAMP: FOR_EACH(clamped(x[k], first, second));
        default: FOR_EACH(x[k] > 0 ? x[k] : x[k] * first);
        }
    }
};

KERNEL(scalar, 1, false, scalar_family)

static __noinline__ __device__ float rare_scalar_back(const oari_arith_job &job,
                                                      float g, float x)
{
    return scalar_back_of(job, g, x);
}

struct scalar_back_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&x)[2][V], float (&y)[V])
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            y[k] = rare_scalar_back(job, x[0][k], x[1][k]);
    }
};

KERNEL(scalar_back, 2, true, scalar_back_family)

struct scale_family {
    template <int V>
    static inline __device__ void run(const oari_arith_job &job,
                                      const float (&x)[1][V], float (&y)[V])
    {
        float factor = (float)job.number[0];

        for (int k = 0; k < V; k++)
            y[k] = factor * x[0][k];
    }
};

KERNEL(scale, 1, true, scale_family)
