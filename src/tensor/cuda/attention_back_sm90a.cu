// SPDX-License-Identifier: Apache-2.0
/* attention_back_sm90a: the gradients of attention of halves on Hopper GPUs.
 *
 * A block has one head of keys, or a part of them, tile by tile, and goes
 * through the queries of each. One thread copies; two warpgroups have 64 keys
 * of a tile each. Scores are computed turned (keys are rows), so that
 * probabilities and their gradients are operands of dv and dk in the registers
 * where they are made. What a tile of keys gives to dq, the engine for copies
 * adds to sums in memory that no other block touches, and a tile only when what
 * was added to it before is there: one order, the same bits every time. A
 * second kernel adds the parts and rounds (attention_rows_sm90a.cu). */
#include "tensor/cuda/attention_90.cuh"

enum {
    KEYS = OARI_BACK_90_KEYS,       /* of a tile: 64 for each of two */
    QUERIES = OARI_BACK_90_QUERIES, /* of a tile */
    BOTH = 1, /* barriers: of the two, of a warpgroup (these + its number) */
    SENDERS = 2,
    STORERS = 4
};

/* ---- shared memory ------------------------------------------------------- */

template <int width> struct back_shared {
    enum { BLOCKS = width == 64 ? 2 : 1, STAGES = width == 64 ? 4 : 2 };

    uint16_t k[BLOCKS][KEYS * width], v[BLOCKS][KEYS * width];
    uint16_t q[STAGES][QUERIES * width], out[STAGES][QUERIES * width];
    uint16_t grads[2][KEYS * QUERIES]; /* of the scores */
    float sums[2][QUERIES * width];    /* dq */
    float rows[STAGES][2 * QUERIES];   /* lse and delta */
    uint64_t kv_full[BLOCKS], kv_empty[BLOCKS], q_full[STAGES], q_empty[STAGES];
    uint64_t grads_full[2], grads_empty[2];
};

template <int width> OARI_DEVICE void set_up(back_shared<width> &at)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < at.BLOCKS; i++) {
            oari_barrier_init(&at.kv_full[i], 1);
            oari_barrier_init(&at.kv_empty[i], width == 64 ? 12 : 8);
        }
        for (int i = 0; i < at.STAGES; i++) {
            oari_barrier_init(&at.q_full[i], 1);
            oari_barrier_init(&at.q_empty[i], 8);
        }
        for (int i = 0; i < 2; i++) {
            oari_barrier_init(&at.grads_full[i], 8);
            oari_barrier_init(&at.grads_empty[i], 4);
        }
        oari_barrier_publish();
    }
    __syncthreads();
}

/* ---- work ---------------------------------------------------------------- */

/* What a block does: tiles part, part + parts, ... of the keys of a head. */
struct work {
    int part, outer, kv;
};

OARI_DEVICE work find_work(const oari_cuda_attention &a)
{
    int which = (int)(blockIdx.x / (unsigned)a.parts);
    int heads = a.heads / a.shared;

    return { (int)(blockIdx.x % (unsigned)a.parts), which / heads,
             which % heads };
}

/* ---- the thread that copies ---------------------------------------------- */

/* Copies a matrix of `rows` rows as tiles of 64 columns. The cache is for the
 * sums of dq, which otherwise go to memory and back for every tile of keys. */
template <int width, int rows>
OARI_DEVICE void copy_matrix(uint16_t *to, const oari_cuda_map *map, int row,
                             int head, int outer, uint64_t *full)
{
    const uint64_t policy = oari_pass_through_cache();

#pragma unroll
    for (int i = 0; i < width / 64; i++)
        oari_copy_tile(to + i * rows * 64, map, i * 64, row, head, outer,
                       policy, full);
}

template <int width>
OARI_DEVICE void copy_queries(const oari_cuda_attention_90 &job,
                              back_shared<width> &at, int outer, int head,
                              int tile, ring_place &q)
{
    uint64_t *full = &at.q_full[q.at];

    oari_barrier_wait(&at.q_empty[q.at], q.parity);
    oari_barrier_expect(full, 4 * QUERIES * width + 8 * QUERIES);
    copy_matrix<width, QUERIES>(at.q[q.at], &job.q, tile * QUERIES, head, outer,
                                full);
    copy_matrix<width, QUERIES>(at.out[q.at], &job.out, tile * QUERIES, head,
                                outer, full);
    oari_copy_bytes(at.rows[q.at],
                    (const float *)job.a.delta +
                        tile_number(job.a, outer, head, tile) * 2 * QUERIES,
                    8 * QUERIES, full);
    move_on<back_shared<width>::STAGES>(q);
}

template <int width>
OARI_DEVICE void copy_all(const oari_cuda_attention_90 &job,
                          back_shared<width> &at, const work &mine)
{
    const oari_cuda_attention &a = job.a;
    ring_place kv = { 0, 1 }, q = { 0, 1 };

    for (int block = mine.part; block * KEYS < a.s; block += a.parts) {
        uint64_t *full = &at.kv_full[kv.at];

        oari_barrier_wait(&at.kv_empty[kv.at], kv.parity);
        oari_barrier_expect(full, 4 * KEYS * width);
        copy_matrix<width, KEYS>(at.k[kv.at], &job.k, block * KEYS, mine.kv,
                                 mine.outer, full);
        copy_matrix<width, KEYS>(at.v[kv.at], &job.v, block * KEYS, mine.kv,
                                 mine.outer, full);
        move_on<back_shared<width>::BLOCKS>(kv);
        for (int i = 0; i < a.shared; i++)
            for (int tile = first_tile(a, block); tile < a.tiles; tile++)
                copy_queries<width>(job, at, mine.outer, mine.kv * a.shared + i,
                                    tile, q);
    }
}

/* ---- the warpgroups that multiply ---------------------------------------- */

/* Begins c = the warpgroup's rows of `left` times rows of `right`. */
template <class T, int width>
OARI_DEVICE void row_products(float *c, const uint16_t *left,
                              const uint16_t *right)
{
#pragma unroll
    for (int i = 0; i < width / 16; i++)
        oari_product<QUERIES, 0, 0>(
            c, oari_operand(left + i / 4 * KEYS * 64 + i % 4 * 16, 16),
            oari_operand(right + i / 4 * QUERIES * 64 + i % 4 * 16, 16), i > 0,
            T());
}

/* Begins c += the matrix in registers times rows of `right`. */
template <class T, int width>
OARI_DEVICE void mix_keys(float *c, const uint32_t (*p)[4],
                          const uint16_t *right)
{
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        oari_product<width, 1>(c, p[i],
                               oari_operand(right + i * 16 * 64, QUERIES * 128),
                               true, T());
}

/* Begins dq = the gradients of the scores, turned, times 64 columns of k. */
template <class T>
OARI_DEVICE void mix_queries(float *dq, const uint16_t *grads,
                             const uint16_t *k)
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        oari_product<64, 1, 1>(dq, oari_operand(grads + i * 16 * 64, 16),
                               oari_operand(k + i * 16 * 64, 16), i > 0, T());
}

/* The probabilities of scores, turned. key, query: of this thread's first. */
OARI_DEVICE void restore(const oari_cuda_attention &a, float *s,
                         const float *lse, float scale, int key, int query,
                         bool edge)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 less = *(const float2 *)(lse + n * 8 + (threadIdx.x & 3) * 2);

#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * n + i] =
                oari_exp2(s[4 * n + i] * scale - (i & 1 ? less.y : less.x));
    }
    if (edge)
#pragma unroll
        for (int n = 0; n < QUERIES / 2; n++) {
            int k = key + (n >> 1 & 1) * 8, r = query + n / 4 * 8 + (n & 1);

            if (k >= a.s || (a.causal && k > r))
                s[n] = 0;
        }
}

template <class T> OARI_DEVICE void as_operand(uint32_t (*p)[4], const float *s)
{
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            p[i][n] = oari_pack(s[8 * i + 2 * n], s[8 * i + 2 * n + 1], T());
}

/* Makes probabilities the gradients of their scores. */
OARI_DEVICE void turn_back(float *s, const float *d, const float *delta)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 less = *(const float2 *)(delta + n * 8 + (threadIdx.x & 3) * 2);

#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * n + i] *= d[4 * n + i] - (i & 1 ? less.y : less.x);
    }
}

/* Where this thread's row of a store of four matrices of 8 x 8 lies. */
OARI_DEVICE uint16_t *matrix_row(uint16_t *tile, int own, int i)
{
    int lane = (int)threadIdx.x & 31, row = own + (lane & 15);

    return tile + row * 64 + (((i * 2 + (lane >> 4)) ^ (row & 7)) << 3);
}

/* 64 columns of dq of a tile go to shared memory, and from there they are
 * added. */
OARI_DEVICE void keep_sums(float *to, const float *dq)
{
    float4 *at = (float4 *)to + (threadIdx.x & 127);

#pragma unroll
    for (int n = 0; n < 8; n++)
        at[n * 128] =
            make_float4(dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
}

/* Writes this warp's 16 rows of dk or dv, by way of a tile. */
template <class T, int width>
OARI_DEVICE void store_rows(const oari_cuda_heads &to, const work &mine,
                            int key, int end, int add, const float *c,
                            float scale, uint16_t *tile, int own)
{
    const int lane = (int)threadIdx.x & 31;

    if (to.data == NULL)
        return;
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
        uint32_t made[4];

#pragma unroll
        for (int n = 0; n < 4; n++)
            made[n] = oari_pack(c[8 * i + 2 * n] * scale,
                                c[8 * i + 2 * n + 1] * scale, T());
        oari_store_4(matrix_row(tile + i / 4 * KEYS * 64, own, i % 4), made);
    }
    __syncwarp();
    for (int i = 0; i < width / 16; i++) {
        int at = i * 32 + lane, row = own + at / (width / 8);
        int chunk = at % (width / 8);
        uint16_t *there = head_of(to, mine.outer, mine.kv) +
                          (int64_t)(key + row) * to.row + chunk * 8;
        uint4 made = *(const uint4 *)(tile + chunk / 8 * KEYS * 64 + row * 64 +
                                      ((chunk % 8 ^ (row & 7)) << 3));

        if (key + row >= end)
            continue;
        *(uint4 *)there =
            add ? add_halves<T>(*(const uint4 *)there, made) : made;
    }
}

/* What a warpgroup keeps through the turns of a tile of keys. */
template <int width> struct back_state {
    float dk[width / 2], dv[width / 2];
    float s[QUERIES / 2], d[QUERIES / 2]; /* scores; of the probabilities */
    int block, begin, turns;
    int head, tile; /* of the queries of this turn */
    int turn;       /* of all tiles of keys: its parity chooses buffers */
    ring_place kv, q;
};

/* Moves to a tile of keys. */
template <int width>
OARI_DEVICE void begin_keys(const oari_cuda_attention &a,
                            back_shared<width> &at, const work &mine,
                            back_state<width> &my)
{
    my.begin = my.tile = first_tile(a, my.block);
    my.head = mine.kv * a.shared;
    my.turns = ((int)a.tiles - my.begin) * a.shared;
    oari_barrier_wait(&at.kv_full[my.kv.at], my.kv.parity);
}

template <int width>
OARI_DEVICE void next_turn(const oari_cuda_attention &a, back_state<width> &my)
{
    if (++my.tile == (int)a.tiles) {
        my.tile = my.begin;
        my.head++;
    }
    my.turn++;
}

/* Begins the scores of a tile of queries, and the gradients of their
 * probabilities: two groups of products. */
template <class T, int width>
OARI_DEVICE void begin_scores(back_shared<width> &at, back_state<width> &my)
{
    const int rows = ((int)threadIdx.x >> 7) * 64 * 64;
    float s[QUERIES / 2], d[QUERIES / 2]; /* not what was made of the last */

    oari_barrier_wait(&at.q_full[my.q.at], my.q.parity);
    oari_products_begin();
    row_products<T, width>(s, at.k[my.kv.at] + rows, at.q[my.q.at]);
    oari_products_commit();
    row_products<T, width>(d, at.v[my.kv.at] + rows, at.out[my.q.at]);
    oari_products_commit();
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        my.s[i] = s[i];
        my.d[i] = d[i];
    }
}

/* Begins to add to dv, when the scores are there. */
template <class T, int width>
OARI_DEVICE void begin_dv(const oari_cuda_attention &a, back_shared<width> &at,
                          back_state<width> &my, uint32_t (*p)[4])
{
    const int lane = (int)threadIdx.x & 31, group = (int)threadIdx.x >> 7;
    const int own = (int)threadIdx.x / 32 * 16, key = my.block * KEYS;
    const int query = my.tile * QUERIES;
    const bool edge = key + group * 64 + 64 > a.s ||
                      (a.causal && key + group * 64 + 63 > query);

    restore(a, my.s, at.rows[my.q.at], (float)a.scale * LOG2_E,
            key + own + (lane >> 2), query + (lane & 3) * 2, edge);
    as_operand<T>(p, my.s);
    oari_products_begin();
    mix_keys<T, width>(my.dv, p, at.out[my.q.at]);
    oari_products_commit();
}

/* Begins to add to dk; the gradients of the scores are kept for dq before. */
template <class T, int width>
OARI_DEVICE void begin_dk(back_shared<width> &at, back_state<width> &my,
                          uint32_t (*g)[4])
{
    const int own = (int)threadIdx.x / 32 * 16;

#pragma unroll
    for (int n = 0; n < QUERIES / 16; n++)
        oari_store_4(matrix_row(at.grads[my.turn & 1], own, n), g[n]);
    oari_hand_over();
    if (width == 64)
        release(&at.grads_full[my.turn & 1]);
    oari_products_begin();
    mix_keys<T, width>(my.dk, g, at.q[my.q.at]);
    oari_products_commit();
}

/* The turns of a tile of keys. The next tile's scores are begun before a turn
 * ends. Two warpgroups do this, each in its own time. */
template <class T, int width>
OARI_DEVICE void back_turns(const oari_cuda_attention &a,
                            back_shared<width> &at, back_state<width> &my)
{
    uint32_t p[QUERIES / 16][4], g[QUERIES / 16][4];

    begin_scores<T, width>(at, my);
    for (int i = 0, before = 0;; i++) {
        const int stage = my.q.at;

        oari_products_wait<1>();
        oari_products_done<QUERIES / 2>(my.s);
        if (i > 0)
            release(&at.q_empty[before]);
        before = stage;
        begin_dv<T, width>(a, at, my, p);
        oari_products_wait<1>();
        oari_products_done<QUERIES / 2>(my.d);
        turn_back(my.s, my.d, at.rows[stage] + QUERIES);
        as_operand<T>(g, my.s);
        oari_products_wait<0>(); /* or the compiler makes all wait */
        oari_barrier_wait(&at.grads_empty[my.turn & 1], ~my.turn >> 1 & 1);
        begin_dk<T, width>(at, my, g);
        next_turn(a, my);
        if (i + 1 == my.turns)
            break;
        move_on<back_shared<width>::STAGES>(my.q);
        begin_scores<T, width>(at, my);
    }
    oari_products_wait<0>();
    release(&at.q_empty[my.q.at]);
    move_on<back_shared<width>::STAGES>(my.q);
}

/* Waits until sums may be sent again. All sends but the last are done then, so
 * that none is still to be added to the same tile: it comes again after two
 * turns or more. With a single turn for a tile of keys, all are done. */
OARI_DEVICE void wait_for_sends(bool all)
{
    oari_send_wait<1>();
    if (all)
        oari_send_wait<0>();
}

/* dq, by a warpgroup of its own. */
template <class T, int width>
OARI_DEVICE void add_dq(const oari_cuda_attention &a, back_shared<width> &at,
                        const work &mine, back_state<width> &my)
{
    const bool one = (threadIdx.x & 127) == 0;
    const uint64_t policy = oari_keep_in_cache();
    float dq[32];

    for (int i = 0; i < my.turns; i++) {
        const int buffer = my.turn & 1;

        oari_barrier_wait(&at.grads_full[buffer], my.turn >> 1 & 1);
        oari_products_begin();
        mix_queries<T>(dq, at.grads[buffer], at.k[my.kv.at]);
        oari_products_commit();
        if (one)
            wait_for_sends(my.turns == 1);
        oari_products_wait<0>();
        oari_products_done<32>(dq);
        release(&at.grads_empty[buffer]);
        oari_meet(SENDERS, 128);
        keep_sums(at.sums[buffer], dq);
        oari_hand_over();
        oari_meet(SENDERS, 128);
        if (one)
            oari_send_numbers(
                sums_at<width>(a, mine.part, mine.outer, my.head, my.tile),
                at.sums[buffer], QUERIES * width * 4, my.block != mine.part,
                policy);
        next_turn(a, my);
    }
}

/* The same for heads of 128, where registers do not suffice for a further
 * warpgroup: the two for keys have 64 columns of dq each. */
template <class T, int width>
OARI_DEVICE void back_wide_turns(const oari_cuda_attention &a,
                                 back_shared<width> &at, const work &mine,
                                 back_state<width> &my)
{
    const int group = (int)threadIdx.x >> 7;
    const bool one = (threadIdx.x & 127) == 0;
    const int columns = group * QUERIES * 64;
    const uint64_t policy = oari_keep_in_cache();
    float dq[32];

    begin_scores<T, width>(at, my);
    for (int i = 0;; i++) {
        uint32_t p[QUERIES / 16][4];
        const int stage = my.q.at, buffer = my.turn & 1;

        oari_products_wait<1>();
        oari_products_done<QUERIES / 2>(my.s);
        begin_dv<T, width>(a, at, my, p);
        oari_products_wait<1>();
        oari_products_done<QUERIES / 2>(my.d);
        turn_back(my.s, my.d, at.rows[stage] + QUERIES);
        oari_products_wait<0>();
        as_operand<T>(p, my.s);
        begin_dk<T, width>(at, my, p);
        if (one)
            wait_for_sends(my.turns == 1);
        oari_meet(BOTH, 256);
        oari_products_begin();
        mix_queries<T>(dq, at.grads[buffer],
                       at.k[my.kv.at] + group * KEYS * 64);
        oari_products_commit();
        oari_products_wait<0>();
        oari_products_done<32>(dq);
        release(&at.q_empty[stage]);
        move_on<back_shared<width>::STAGES>(my.q);
        keep_sums(at.sums[buffer] + columns, dq);
        oari_hand_over();
        oari_meet(SENDERS + group, 128);
        if (one)
            oari_send_numbers(
                sums_at<width>(a, mine.part, mine.outer, my.head, my.tile) +
                    columns,
                at.sums[buffer] + columns, QUERIES * 64 * 4,
                my.block != mine.part, policy);
        next_turn(a, my);
        if (i + 1 == my.turns)
            break;
        begin_scores<T, width>(at, my);
    }
    oari_meet(BOTH, 256);
}

/* dk and dv of one tile of keys, and for heads of 128 what it gives to dq. */
template <class T, int width>
OARI_DEVICE void back_keys(const oari_cuda_attention &a, back_shared<width> &at,
                           const work &mine, back_state<width> &my)
{
    const int own = (int)threadIdx.x / 32 * 16, group = (int)threadIdx.x >> 7;
    const int key = my.block * KEYS;

#pragma unroll
    for (int i = 0; i < width / 2; i++)
        my.dk[i] = my.dv[i] = 0;
    if (my.turns > 0) {
        if constexpr (width == 64)
            back_turns<T, width>(a, at, my);
        else
            back_wide_turns<T, width>(a, at, mine, my);
        oari_products_done<width / 2>(my.dk);
        oari_products_done<width / 2>(my.dv);
    }
    oari_meet(STORERS + group, 128);
    store_rows<T, width>(a.dk, mine, key, a.s, a.add_k, my.dk, (float)a.scale,
                         at.v[my.kv.at], own);
    __syncwarp();
    store_rows<T, width>(a.dv, mine, key, a.s, a.add_v, my.dv, 1,
                         at.v[my.kv.at], own);
    oari_hand_over();
}

template <class T, int width>
OARI_DEVICE void attend_back(const oari_cuda_attention_90 &job,
                             back_shared<width> &at)
{
    const oari_cuda_attention &a = job.a;
    const work mine = find_work(a);
    back_state<width> my;

    set_up<width>(at);
    if (threadIdx.x >= OARI_BACK_90_THREADS(width) - 128) {
        oari_fewer_registers<24>();
        if (threadIdx.x == OARI_BACK_90_THREADS(width) - 128)
            copy_all<width>(job, at, mine);
        return;
    }
    my.kv = my.q = { 0, 0 };
    my.turn = 0;
    my.block = mine.part;
    if (width == 64 && threadIdx.x >= 256) {
        oari_fewer_registers<88>();
        for (; my.block * KEYS < a.s; my.block += a.parts) {
            begin_keys<width>(a, at, mine, my);
            add_dq<T, width>(a, at, mine, my);
            release(&at.kv_empty[my.kv.at]);
            move_on<back_shared<width>::BLOCKS>(my.kv);
        }
        oari_send_wait<0>();
        return;
    }
    oari_more_registers<width == 64 ? 200 : 240>();
    for (; my.block * KEYS < a.s; my.block += a.parts) {
        begin_keys<width>(a, at, mine, my);
        back_keys<T, width>(a, at, mine, my);
        release(&at.kv_empty[my.kv.at]);
        move_on<back_shared<width>::BLOCKS>(my.kv);
    }
    oari_send_wait<0>();
}

/* ---- kernels ------------------------------------------------------------- */

#define KERNEL(half, width)                                                   \
    extern "C" __global__ void __launch_bounds__(OARI_BACK_90_THREADS(width), \
                                                 1)                           \
        oari_attend_back_90_##half##_##width(                                 \
            const __grid_constant__ oari_cuda_attention_90 job)               \
    {                                                                         \
        attend_back<oari_##half, width>(                                      \
            job, *(back_shared<width> *)oari_shared_tiles());                 \
    }                                                                         \
    static_assert(sizeof(back_shared<width>) + 1024 <=                        \
                  OARI_BACK_90_SHARED(width))

KERNEL(bf16, 64);
KERNEL(bf16, 128);
KERNEL(f16, 64);
KERNEL(f16, 128);
