// SPDX-License-Identifier: Apache-2.0
/* attention_sm90a: attention of halves on Hopper GPUs, forward.
 *
 * A block stays on its multiprocessor and takes one tile of queries after the
 * other. One thread copies tiles of queries, keys and values to shared memory;
 * warpgroups have 64 queries each and go through the keys from the last that
 * they see to the first. While the tensor cores multiply the probabilities
 * of one tile of keys with its values, and queries with the next tile of keys,
 * the warpgroup makes probabilities of the scores that are there. */
#include "tensor/cuda/attention_90.cuh"

/* What a block has at once. With heads of 64, making probabilities takes longer
 * than the products, and four warpgroups with few registers each hide that
 * best. With heads of 128 there are registers for two, which take turns. */
template <int width> struct shape {
    enum {
        GROUPS = width == 64 ? 4 : 2, /* warpgroups that multiply */
        KEYS = width == 64 ? 64 : 128,
        ROWS = 64 * GROUPS, /* queries */
        THREADS = 128 * (GROUPS + 1),
        STAGES = width == 64 ? 4 : 2, /* tiles of keys and of values */
        QUERIES = 2,                  /* tiles of queries */
        IN_TURN = width == 128,
        REGISTERS = width == 64 ? 112 : 240
    };
};

/* Named barriers. */
enum { ONE = 1 /* + warpgroup */, TURN = 8 /* + warpgroup */ };

/* ---- shared memory ------------------------------------------------------- */

template <int width> struct forward_shared {
    using by = shape<width>;
    enum { STAGES = by::STAGES, QUERIES = by::QUERIES };

    uint16_t q[QUERIES][by::ROWS * width];
    uint16_t k[STAGES][by::KEYS * width], v[STAGES][by::KEYS * width];
    uint64_t q_full[QUERIES], q_empty[QUERIES];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

template <int width> OARI_DEVICE void set_up(forward_shared<width> &at)
{
    using by = shape<width>;

    if (threadIdx.x == 0) {
        for (int i = 0; i < by::QUERIES; i++) {
            oari_barrier_init(&at.q_full[i], 1);
            oari_barrier_init(&at.q_empty[i], 4 * by::GROUPS);
        }
        for (int i = 0; i < by::STAGES; i++) {
            oari_barrier_init(&at.k_full[i], 1);
            oari_barrier_init(&at.v_full[i], 1);
            oari_barrier_init(&at.k_empty[i], 4 * by::GROUPS);
            oari_barrier_init(&at.v_empty[i], 4 * by::GROUPS);
        }
        oari_barrier_publish();
    }
    __syncthreads();
}

/* ---- work ---------------------------------------------------------------- */

/* A tile of queries of a head, and how many tiles of keys it sees. */
struct query_tile {
    int which, outer, head, first, blocks;
};

template <int width> OARI_DEVICE int count_tiles(const oari_cuda_attention &a)
{
    return (a.t + shape<width>::ROWS - 1) / shape<width>::ROWS;
}

/* The tiles of one item of work: two if `pairs`, a long one and a short one,
 * but for a tile in the middle. */
template <int width>
OARI_DEVICE int count_parts(const oari_cuda_attention_90 &job, int item)
{
    int tiles = count_tiles<width>(job.a), half = (tiles + 1) / 2;

    return job.pairs && item % half != tiles - 1 - item % half ? 2 : 1;
}

template <int width>
OARI_DEVICE query_tile find_tile(const oari_cuda_attention_90 &job, int item,
                                 int part)
{
    enum { ROWS = shape<width>::ROWS, KEYS = shape<width>::KEYS };
    const oari_cuda_attention &a = job.a;
    int tiles = count_tiles<width>(a),
        each = job.pairs ? (tiles + 1) / 2 : tiles;
    int tile = part ? item % each : tiles - 1 - item % each;
    query_tile made;

    made.which = item / each;
    made.outer = made.which / a.heads;
    made.head = made.which % a.heads;
    made.first = tile * ROWS;
    made.blocks =
        ((a.causal ? smaller(a.s, made.first + ROWS) : a.s) + KEYS - 1) / KEYS;
    return made;
}

/* ---- the thread that copies ------------------------------------------------ */

/* Copies a matrix of `rows` rows as tiles of 64 columns. */
template <int width, int rows>
OARI_DEVICE void copy_matrix(uint16_t *to, const oari_cuda_map *map, int row,
                             int head, int outer, uint64_t *full)
{
    const uint64_t policy = oari_usual_in_cache();

    oari_barrier_expect(full, rows * width * 2);
#pragma unroll
    for (int i = 0; i < width / 64; i++)
        oari_copy_tile(to + i * rows * 64, map, i * 64, row, head, outer,
                       policy, full);
}

template <int width>
OARI_DEVICE void copy_all(const oari_cuda_attention_90 &job,
                          forward_shared<width> &at)
{
    using by = shape<width>;
    ring_place q = { 0, 1 }, kv = { 0, 1 };

    for (int item = (int)blockIdx.x; item < job.items; item += (int)gridDim.x)
        for (int part = 0; part < count_parts<width>(job, item); part++) {
            query_tile now = find_tile<width>(job, item, part);
            int head = now.head / job.a.shared;

            oari_barrier_wait(&at.q_empty[q.at], q.parity);
            copy_matrix<width, by::ROWS>(at.q[q.at], &job.q, now.first,
                                         now.head, now.outer, &at.q_full[q.at]);
            move_on<by::QUERIES>(q);
            for (int i = now.blocks - 1; i >= 0; i--) {
                oari_barrier_wait(&at.k_empty[kv.at], kv.parity);
                copy_matrix<width, by::KEYS>(at.k[kv.at], &job.k, i * by::KEYS,
                                             head, now.outer,
                                             &at.k_full[kv.at]);
                oari_barrier_wait(&at.v_empty[kv.at], kv.parity);
                copy_matrix<width, by::KEYS>(at.v[kv.at], &job.v, i * by::KEYS,
                                             head, now.outer,
                                             &at.v_full[kv.at]);
                move_on<by::STAGES>(kv);
            }
        }
}

/* ---- the warpgroups that multiply ---------------------------------------- */

/* Two warpgroups begin their products in turn, so that one makes probabilities
 * while the other multiplies. Both begin equally often. */
template <int width> OARI_DEVICE void wait_turn(int group)
{
    if (shape<width>::IN_TURN)
        oari_meet(TURN + group, 256);
}
template <int width> OARI_DEVICE void give_turn(int group)
{
    if (shape<width>::IN_TURN)
        oari_meet_later(TURN + (group ^ 1), 256);
}

/* Begins s = q k^T. */
template <class T, int width>
OARI_DEVICE void score(float *s, const uint16_t *q, const uint16_t *k)
{
    enum { ROWS = shape<width>::ROWS, KEYS = shape<width>::KEYS };

#pragma unroll
    for (int i = 0; i < width / 16; i++)
        oari_product<KEYS, 0, 0>(
            s, oari_operand(q + i / 4 * ROWS * 64 + i % 4 * 16, 16),
            oari_operand(k + i / 4 * KEYS * 64 + i % 4 * 16, 16), i > 0, T());
}

/* Begins o += p v. */
template <class T, int width>
OARI_DEVICE void mix(float *o, const uint32_t (*p)[4], const uint16_t *v)
{
    enum { KEYS = shape<width>::KEYS };

#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        oari_product<width, 1>(
            o, p[i], oari_operand(v + i * 16 * 64, KEYS * 128), true, T());
}

/* Hides the scores of keys that a row does not see, or that are none. */
template <int keys>
OARI_DEVICE void hide(const oari_cuda_attention &a, float *s, int row, int key)
{
#pragma unroll
    for (int n = 0; n < keys / 2; n++) {
        int k = key + n / 4 * 8 + (n & 1), r = row + (n >> 1 & 1) * 8;

        if (k >= a.s || (a.causal && k > r))
            s[n] = -INFINITY;
    }
}

/* Makes scores probabilities without their divisor; factor is what earlier sums
 * have to be multiplied with. */
template <int keys>
OARI_DEVICE void soften(float *s, float *most, float *total, float *factor,
                        float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = most[i], sum = 0, base;

#pragma unroll
        for (int n = 0; n < keys / 2; n += 4)
            top = fmaxf(top, fmaxf(s[n + 2 * i], s[n + 2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        base = top * scale;
        factor[i] = oari_exp2(most[i] * scale - base);
        most[i] = top;
#pragma unroll
        for (int n = 0; n < keys / 2; n += 4) {
            s[n + 2 * i] = oari_exp2(s[n + 2 * i] * scale - base);
            s[n + 2 * i + 1] = oari_exp2(s[n + 2 * i + 1] * scale - base);
            sum += s[n + 2 * i] + s[n + 2 * i + 1];
        }
        total[i] = total[i] * factor[i] + sum;
    }
}

template <class T, int keys>
OARI_DEVICE void as_operand(uint32_t (*p)[4], const float *s)
{
#pragma unroll
    for (int i = 0; i < keys / 16; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            p[i][n] = oari_pack(s[8 * i + 2 * n], s[8 * i + 2 * n + 1], T());
}

/* Writes this warp's 16 rows, by way of its rows of the tile of queries. */
template <class T, int width>
OARI_DEVICE void store_rows(const oari_cuda_attention &a, const query_tile &now,
                            const float *o, const float *total, uint16_t *tile,
                            int own)
{
    enum { ROWS = shape<width>::ROWS };
    const int lane = (int)threadIdx.x & 31;
    const float low = 1 / total[0], high = 1 / total[1];
    uint16_t *to = head_of(a.out, now.outer, now.head);

#pragma unroll
    for (int i = 0; i < width / 16; i++) {
        uint32_t made[4];
        int row = own + (lane & 15), chunk = i % 4 * 2 + (lane >> 4);

        made[0] = oari_pack(o[8 * i] * low, o[8 * i + 1] * low, T());
        made[1] = oari_pack(o[8 * i + 2] * high, o[8 * i + 3] * high, T());
        made[2] = oari_pack(o[8 * i + 4] * low, o[8 * i + 5] * low, T());
        made[3] = oari_pack(o[8 * i + 6] * high, o[8 * i + 7] * high, T());
        oari_store_4(tile + i / 4 * ROWS * 64 + row * 64 +
                         ((chunk ^ (row & 7)) << 3),
                     made);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
        int at = i * 32 + lane, r = at / (width / 8), c = at % (width / 8);
        int row = own + r;
        uint4 made = *(const uint4 *)(tile + c / 8 * ROWS * 64 + row * 64 +
                                      ((c % 8 ^ (row & 7)) << 3));

        if (now.first + row < a.t)
            *(uint4 *)(to + (int64_t)(now.first + row) * a.out.row + c * 8) =
                made;
    }
}

/* One tile of queries. */
template <class T, int width>
OARI_DEVICE void attend_tile(const oari_cuda_attention &a,
                             forward_shared<width> &at, const query_tile &now,
                             uint16_t *tile, ring_place &kv)
{
    enum { STAGES = shape<width>::STAGES, KEYS = shape<width>::KEYS };
    const int lane = (int)threadIdx.x & 31, group = (int)threadIdx.x >> 7;
    const int own = (int)threadIdx.x / 32 * 16, rows = now.first + group * 64;
    const int row = now.first + own + (lane >> 2);
    const float scale = (float)a.scale * LOG2_E;
    const uint16_t *q = tile + group * 64 * 64;
    float s[KEYS / 2], o[width / 2] = {}, factor[2];
    float most[2] = { -INFINITY, -INFINITY }, total[2] = { 0, 0 };
    uint32_t p[KEYS / 16][4];
    ring_place before;
    int block = now.blocks - 1;

    for (; block >= 0 && ((!shape<width>::IN_TURN && rows >= a.t) ||
                          (a.causal && block * KEYS > rows + 63));
         block--) {
        oari_barrier_wait(&at.k_full[kv.at], kv.parity);
        release(&at.k_empty[kv.at]);
        oari_barrier_wait(&at.v_full[kv.at], kv.parity);
        release(&at.v_empty[kv.at]);
        move_on<STAGES>(kv);
    }
    if (block < 0)
        return;
    oari_barrier_wait(&at.k_full[kv.at], kv.parity);
    wait_turn<width>(group);
    oari_products_begin();
    score<T, width>(s, q, at.k[kv.at]);
    oari_products_commit();
    give_turn<width>(group);
    oari_products_wait<0>();
    oari_products_done<KEYS / 2>(s);
    release(&at.k_empty[kv.at]);
    if (block * KEYS + KEYS > a.s ||
        (a.causal && block * KEYS + KEYS - 1 > rows))
        hide<KEYS>(a, s, row, block * KEYS + (lane & 3) * 2);
    soften<KEYS>(s, most, total, factor, scale);
    as_operand<T, KEYS>(p, s);
    before = kv;
    move_on<STAGES>(kv);
    for (block--; block >= 0; block--) {
        oari_barrier_wait(&at.k_full[kv.at], kv.parity);
        wait_turn<width>(group);
        oari_products_begin();
        score<T, width>(s, q, at.k[kv.at]);
        oari_products_commit();
        oari_barrier_wait(&at.v_full[before.at], before.parity);
        oari_products_begin();
        mix<T, width>(o, p, at.v[before.at]);
        oari_products_commit();
        give_turn<width>(group);
        oari_products_wait<1>();
        oari_products_done<KEYS / 2>(s);
        release(&at.k_empty[kv.at]);
        if (a.causal && block * KEYS + KEYS - 1 > rows)
            hide<KEYS>(a, s, row, block * KEYS + (lane & 3) * 2);
        soften<KEYS>(s, most, total, factor, scale);
        oari_products_wait<0>();
        oari_products_done<width / 2>(o);
        release(&at.v_empty[before.at]);
        as_operand<T, KEYS>(p, s);
#pragma unroll
        for (int n = 0; n < width / 2; n++)
            o[n] *= factor[n >> 1 & 1];
        before = kv;
        move_on<STAGES>(kv);
    }
    oari_barrier_wait(&at.v_full[before.at], before.parity);
    oari_products_begin();
    mix<T, width>(o, p, at.v[before.at]);
    oari_products_commit();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *lse = (float *)a.lse + (int64_t)now.which * a.t;

        total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
        total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
        if ((lane & 3) == 0 && row + i * 8 < a.t)
            lse[row + i * 8] = most[i] * (float)a.scale + logf(total[i]);
    }
    oari_products_wait<0>();
    oari_products_done<width / 2>(o);
    release(&at.v_empty[before.at]);
    oari_meet(ONE + group, 128);
    store_rows<T, width>(a, now, o, total, tile, own);
    oari_hand_over();
}

template <class T, int width>
OARI_DEVICE void attend(const oari_cuda_attention_90 &job,
                        forward_shared<width> &at)
{
    using by = shape<width>;
    ring_place q = { 0, 0 }, kv = { 0, 0 };

    set_up<width>(at);
    if (threadIdx.x >= 128 * by::GROUPS) {
        oari_fewer_registers<24>();
        if (threadIdx.x == 128 * by::GROUPS)
            copy_all<width>(job, at);
        return;
    }
    oari_more_registers<by::REGISTERS>();
    if (threadIdx.x >= 128)
        give_turn<width>(1);
    for (int item = (int)blockIdx.x; item < job.items; item += (int)gridDim.x)
        for (int part = 0; part < count_parts<width>(job, item); part++) {
            query_tile now = find_tile<width>(job, item, part);

            oari_barrier_wait(&at.q_full[q.at], q.parity);
            attend_tile<T, width>(job.a, at, now, at.q[q.at], kv);
            release(&at.q_empty[q.at]);
            move_on<by::QUERIES>(q);
        }
}

/* ---- kernels ------------------------------------------------------------- */

#define KERNEL(half, width)                                             \
    extern "C" __global__ void __launch_bounds__(shape<width>::THREADS) \
        oari_attend_90_##half##_##width(                                \
            const __grid_constant__ oari_cuda_attention_90 job)         \
    {                                                                   \
        attend<oari_##half, width>(                                     \
            job, *(forward_shared<width> *)oari_shared_tiles());        \
    }                                                                   \
    static_assert(sizeof(forward_shared<width>) + 1024 <=               \
                  OARI_ATTEND_90_SHARED(width))

KERNEL(bf16, 64);
KERNEL(bf16, 128);
KERNEL(f16, 64);
KERNEL(f16, 128);
