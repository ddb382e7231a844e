/* SPDX-License-Identifier: Apache-2.0 */
/* sort: rows in order, by the places their elements come from. Each element has
 * a key, a u64 in the same order, whatever the dtype: short rows are sorted by
 * insertion, long ones by the digits of the keys, the least first. Both keep
 * equal elements in their order. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"

enum { SHORT = 48, DIGITS = 256, MOST_DIGITS = 8 };

typedef struct entry {
    uint64_t key;
    int64_t place;
} entry;

/* ---- keys ---------------------------------------------------------------- */

/* A zero is a zero, whatever its sign; a NaN is larger than infinity. */
static uint64_t f32_key(float x)
{
    uint32_t bits = x == 0 ? 0 : oari_bits_from_f32(x);

    if (isnan(x))
        return UINT32_MAX;
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

static uint64_t f64_key(double x)
{
    uint64_t bits = 0;

    if (isnan(x))
        return UINT64_MAX;
    if (x != 0)
        memcpy(&bits, &x, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

/* The distance from the least number of the type. */
#define INTEGER_KEY(x)                                           \
    (((uint64_t)(x) +                                            \
      ((T)-1 < (T)1 ? UINT64_C(1) << (8 * sizeof(T) - 1) : 0)) & \
     (UINT64_MAX >> (64 - 8 * sizeof(T))))

/* Of row number r. Descending is ascending by the complement. */
static void make_entries(const oari_array *a, int64_t r, int64_t width,
                         int descending, entry *e)
{
    uint64_t turn = 0;

#define KEYS(key)                                               \
    const T *x = (const T *)oari_array_data(a) + r * width;     \
    turn = descending ? UINT64_MAX >> (64 - 8 * sizeof(T)) : 0; \
    for (int64_t i = 0; i < width; i++)                         \
        e[i] = (entry){ (key) ^ turn, i };

    switch (a->dtype) {
        OARI_CASE(OAR_F32, float, float, KEYS(f32_key(x[i])))
        OARI_CASE(OAR_F64, double, double, KEYS(f64_key(x[i])))
        OARI_INTEGER_CASES(KEYS(INTEGER_KEY(x[i])))
    default: break;
    }
#undef KEYS
}

/* ---- sorting ------------------------------------------------------------- */

static void insertion_sort(entry *e, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        entry moved = e[i];
        int64_t at = i;

        for (; at > 0 && e[at - 1].key > moved.key; at--)
            e[at] = e[at - 1];
        e[at] = moved;
    }
}

static unsigned digit_of(uint64_t key, int digit)
{
    return (unsigned)(key >> (8 * digit)) & (DIGITS - 1);
}

/* Returns the one of both arrays that the result is in. */
static entry *radix_sort(entry *e, entry *other, int64_t count)
{
    int64_t often[MOST_DIGITS][DIGITS] = { { 0 } };

    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < MOST_DIGITS; d++)
            often[d][digit_of(e[i].key, d)]++;
    for (int d = 0; d < MOST_DIGITS; d++) {
        int64_t first[DIGITS], at = 0; /* where the next with a digit goes */
        entry *to = other;

        if (often[d][digit_of(e[0].key, d)] == count)
            continue; /* all have the same */
        for (int k = 0; k < DIGITS; k++) {
            first[k] = at;
            at += often[d][k];
        }
        for (int64_t i = 0; i < count; i++)
            to[first[digit_of(e[i].key, d)]++] = e[i];
        other = e;
        e = to;
    }
    return e;
}

int64_t oari_sort_scratch(int64_t width)
{
    return 2 * width * (int64_t)(sizeof(entry) / sizeof(uint64_t));
}

oar_status oari_sort(const oari_array *index, const oari_array *a,
                     int descending, uint64_t *scratch)
{
    int64_t width = a->at.shape.dim[a->at.shape.ndim - 1];
    int64_t rows = width > 0 ? oari_shape_count(a->at.shape) / width : 0;
    int64_t *place = oari_array_data(index);
    entry *e = (entry *)scratch;

    for (int64_t r = 0; r < rows; r++, place += width) {
        const entry *sorted = e;

        make_entries(a, r, width, descending, e);
        if (width <= SHORT)
            insertion_sort(e, width);
        else
            sorted = radix_sort(e, e + width, width);
        for (int64_t i = 0; i < width; i++)
            place[i] = sorted[i].place;
    }
    return OAR_OK;
}
