/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/fused_product.h: the small product of fused.h, tile by
 * tile, in GCC's vectors of fixed width. The including file defines
 *
 *   BYTES      of a vector
 *   REGISTERS  how many vectors the machine holds, 16 or 32
 *   TARGET     the function attribute that allows the instructions, or nothing
 *
 * and, after including this, fuse: a b + c, rounded once, in each lane. It may
 * say OWN_PART and bring load_part and store_part: of the first `count` lanes,
 * fewer than all, touching no memory beyond them. */
#include "tensor/cpu/product/fused.h"

#define INLINE static inline __attribute__((always_inline)) TARGET
/* A loop over the rows or vectors of a tile, which is to be none: -O2 would
 * keep it. */
#if defined(__clang__)
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#endif

enum {
    LANES = BYTES / 4,
    MOST_ROWS = 8,   /* of a tile */
    MOST_VECTORS = 4 /* in a row of a tile */
};

typedef float vec __attribute__((vector_size(BYTES)));
typedef float mem __attribute__((vector_size(BYTES), aligned(4), may_alias));

INLINE vec fuse(vec a, vec b, vec c);
INLINE vec load_part(const float *from, int64_t count);
INLINE void store_part(float *to, vec x, int64_t count);

#ifndef OWN_PART
INLINE vec load_part(const float *from, int64_t count)
{
    vec x = { 0 };

    for (int i = 0; i < LANES - 1; i++)
        if (i < count)
            x[i] = from[i];
    return x;
}

INLINE void store_part(float *to, vec x, int64_t count)
{
    for (int i = 0; i < LANES - 1; i++)
        if (i < count)
            to[i] = x[i];
}
#endif

/* part: how many lanes there are, 0 for all of them. */
INLINE vec load(const float *from, int64_t part)
{
    if (part == 0)
        return *(const mem *)from;
    return load_part(from, part);
}

INLINE void store(float *to, vec x, int64_t part)
{
    if (part == 0)
        *(mem *)to = x;
    else
        store_part(to, x, part);
}

/* One number in all lanes; taking off zero is free and keeps the sign. */
INLINE vec spread(float x)
{
    return x - (vec){ 0 };
}

typedef vec sums[MOST_ROWS][MOST_VECTORS];

/* Puts a tile of sums to (i, j). What says where is copied, so that no store
 * can be thought to change it. */
INLINE void put(const oari_product *given, int64_t i, int64_t j, sums sum,
                const int rows, const int vectors, const int64_t part)
{
    const oari_product p = *given;

    EACH(r, rows)
        EACH(v, vectors) {
            float *c = p.c + (i + r) * p.ldc + j + LANES * v;
            vec made = sum[r][v] * p.factor;

            store(c, p.add ? load(c, part) + made : made, part);
        }
}

/* rows x vectors of c from (i, j) on. Those sizes are constants where this is
 * called, so the sums stay in registers. */
INLINE void tile(const oari_product *p, int64_t i, int64_t j, const int rows,
                 const int vectors, const int64_t part)
{
    const float *a = p->a + i * p->row, *b = p->b + j;
    sums sum;

    EACH(r, rows)
        EACH(v, vectors)
            sum[r][v] = (vec){ 0 };
    for (int64_t k = 0; k < p->k; k++, a += p->step, b += p->ldb) {
        vec line[MOST_VECTORS];

        EACH(v, vectors)
            line[v] = load(b + LANES * v, part);
        EACH(r, rows) {
            vec left = spread(a[r * p->row]);

            EACH(v, vectors)
                sum[r][v] = fuse(left, line[v], sum[r][v]);
        }
    }
    put(p, i, j, sum, rows, vectors, part);
}

/* All rows of c, `vectors` wide, from column j on. */
INLINE void strip(const oari_product *p, int64_t j, const int rows,
                  const int vectors, const int64_t part)
{
    int64_t i = 0;

    for (; i + rows <= p->m; i += rows)
        tile(p, i, j, rows, vectors, part);
    for (; i < p->m; i++)
        tile(p, i, j, 1, vectors, part);
}

/* Tiles of 16 sums, or 8 where registers are few: enough for two of them to be
 * begun in each step while others are on their way. */
static TARGET void product(const oari_product *p)
{
    int64_t j = 0;

#if REGISTERS == 32
    for (; j + 4 * LANES <= p->n; j += 4 * LANES)
        strip(p, j, 4, 4, 0);
#endif
    for (; j + 2 * LANES <= p->n; j += 2 * LANES)
        strip(p, j, REGISTERS / 4, 2, 0);
    for (; j + LANES <= p->n; j += LANES)
        strip(p, j, 8, 1, 0);
    if (j < p->n)
        strip(p, j, 8, 1, p->n - j);
}
