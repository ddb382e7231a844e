/* SPDX-License-Identifier: Apache-2.0 */
/* base/vec.h: an array that grows, at least by doubling. A vector of zeros is
 * empty. Pointers into it hold until it grows. */
#ifndef OARI_BASE_VEC_H
#define OARI_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* Declares one:  OARI_VEC(oari_wait) waits; */
#define OARI_VEC(type)           \
    struct {                     \
        type *data;              \
        int64_t count, capacity; \
    }

/* Returns an array with room for `more` elements behind the first `count`: data
 * itself, or a larger copy in place of it, zeroed behind those. Without memory,
 * data and *capacity are as they were, and the last error is set. */
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

/* Each is an expression that gives a status, and reads its arguments more than
 * once. */

/* Makes room for that many more elements. */
#define oari_vec_reserve(v, more)                                             \
    ((v)->data = oari_vec_grow((v)->data, (v)->count, (more), &(v)->capacity, \
                               sizeof *(v)->data),                            \
     (more) <= (v)->capacity - (v)->count ? OAR_OK : OAR_E_NOMEM)

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
