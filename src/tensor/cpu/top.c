/* SPDX-License-Identifier: Apache-2.0 */
/* top: the largest elements of each row, and where they are. Of equal ones the
 * first counts as larger; a NaN is larger than any number. */
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"

/* Whether x comes before y. */
#define ABOVE(x, y) ((x) > (y) || ((x) != (x) && (y) == (y)))
#define BELOW(x, y) ((x) < (y) || ((x) != (x) && (y) == (y)))

/* How many rows of `width` an array has; the last dim is a row. */
static int64_t row_count(const oari_array *a, int64_t width)
{
    return width > 0 ? oari_shape_count(a->at.shape) / width : 0;
}

#define FIND_FIRST(to, a, BEFORE)                                     \
    do {                                                              \
        int64_t width = (a)->at.shape.dim[(a)->at.shape.ndim - 1];    \
        int64_t rows = row_count(a, width), *y = oari_array_data(to); \
                                                                      \
        OARI_BY_NUMBER((a)->dtype, {                                  \
            const T *x = oari_array_data(a);                          \
            for (int64_t r = 0; r < rows; r++, x += width) {          \
                T best = x[0];                                        \
                y[r] = 0;                                             \
                for (int64_t i = 1; i < width; i++)                   \
                    if (BEFORE(x[i], best)) {                         \
                        best = x[i];                                  \
                        y[r] = i;                                     \
                    }                                                 \
            }                                                         \
        })                                                            \
    } while (0)

oar_status oari_argmax(const oari_array *to, const oari_array *a)
{
    FIND_FIRST(to, a, ABOVE);
    return OAR_OK;
}

oar_status oari_argmin(const oari_array *to, const oari_array *a)
{
    FIND_FIRST(to, a, BELOW);
    return OAR_OK;
}

/* Keeps value[0 .. kept) in order: puts x, at place i of its row, where it
 * belongs, and lets the last go if there are k already. */
#define INSERT(value, index, kept, k, x, i)             \
    do {                                                \
        int64_t at_ = (kept) < (k) ? (kept)++ : (k)-1;  \
        while (at_ > 0 && ABOVE(x, (value)[at_ - 1])) { \
            (value)[at_] = (value)[at_ - 1];            \
            (index)[at_] = (index)[at_ - 1];            \
            at_--;                                      \
        }                                               \
        (value)[at_] = x;                               \
        (index)[at_] = i;                               \
    } while (0)

oar_status oari_topk(const oari_array *value, const oari_array *index,
                     const oari_array *a)
{
    int last = a->at.shape.ndim - 1;
    int64_t width = a->at.shape.dim[last], k = value->at.shape.dim[last];
    int64_t rows = k > 0 ? row_count(a, width) : 0;

    OARI_BY_NUMBER(a->dtype, {
        const T *x = oari_array_data(a);
        T *y = oari_array_data(value);
        int64_t *place = oari_array_data(index);
        for (int64_t r = 0; r < rows; r++, x += width, y += k, place += k) {
            int64_t kept = 0;
            for (int64_t i = 0; i < width; i++)
                if (kept < k || ABOVE(x[i], y[k - 1]))
                    INSERT(y, place, kept, k, x[i], i);
        }
    })
    return OAR_OK;
}
