/* SPDX-License-Identifier: Apache-2.0 */
/* base/vec.h: arrays that grow, at least by doubling. A vector of zeros is
 * empty. Pointers into one hold until it grows. */
#ifndef OARI_BASE_VEC_H
#define OARI_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* Declares a vector:  OARI_VEC(oari_wait) waits; */
#define OARI_VEC(type)           \
    struct {                     \
        type *data;              \
        int64_t count, capacity; \
    }

/* Returns an array with room for `more` elements after the first `count`: data
 * itself, or a larger copy that replaces it, with zeros after those. Without
 * memory, data and *capacity do not change, and the last error is set. */
static inline void *oari_vec_grow(void *data, int64_t count, int64_t more,
                                  int64_t *capacity, size_t size)
{
    int64_t wanted, doubled;
    void *larger;

    if (more <= *capacity - count)
        return data;
    if (more > INT64_MAX - count) {
        oari_fail(OAR_E_NOMEM, "out of memory: an array of %lld and %lld more",
                  (long long)count, (long long)more);
        return data;
    }
    wanted = count + more > 8 ? count + more : 8;
    doubled = *capacity <= INT64_MAX / 2 ? 2 * *capacity : INT64_MAX;
    if (wanted < doubled)
        wanted = doubled;
    larger = oari_alloc((size_t)wanted, size);
    if (larger == NULL)
        return data;
    if (count > 0)
        memcpy(larger, data, (size_t)count * size);
    oari_free(data);
    *capacity = wanted;
    return larger;
}

/* oari_array_reserve, oari_vec_reserve and oari_vec_push are expressions that
 * give a status. They evaluate their arguments more than once. */

/* Makes room for `more` elements after the first `count` of an array that is
 * not a vector; its capacity is an int64_t. */
#define oari_array_reserve(array, count, capacity, more)                     \
    ((array) = oari_vec_grow((array), (int64_t)(count), (more), &(capacity), \
                             sizeof *(array)),                               \
     (more) <= (capacity) - (int64_t)(count) ? OAR_OK : OAR_E_NOMEM)

/* Makes room for `more` more elements. */
#define oari_vec_reserve(v, more) \
    oari_array_reserve((v)->data, (v)->count, (v)->capacity, more)

/* Appends one element. */
#define oari_vec_push(v, ...)                              \
    (oari_vec_reserve(v, 1) == OAR_OK                      \
         ? ((v)->data[(v)->count++] = __VA_ARGS__, OAR_OK) \
         : OAR_E_NOMEM)

/* Frees the elements' memory; the vector is empty again. */
#define oari_vec_free(v)                \
    do {                                \
        oari_free((v)->data);           \
        (v)->data = NULL;               \
        (v)->count = (v)->capacity = 0; \
    } while (0)

#endif
