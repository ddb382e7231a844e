/* SPDX-License-Identifier: Apache-2.0 */
/* stream_copy: on x86-64, four pages at once, line by line in turn: memory is
 * then read from several banks at once. Elsewhere it is memcpy. */
#include "parallel/checkpoint/stream_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

enum { LINE = 64, PAGE = 4096, PAGES = 4, LEAST = 256 << 10 };

static void copy_line(unsigned char *to, const unsigned char *from)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

void oari_stream_copy(void *to, const void *from, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    size_t head = (size_t)(-(uintptr_t)t & (LINE - 1));

    if (bytes < LEAST) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(t, f, head);
    t += head;
    f += head;
    bytes -= head;
    for (; bytes >= PAGES * PAGE; bytes -= PAGES * PAGE) {
        for (size_t at = 0; at < PAGE; at += LINE)
            for (size_t page = 0; page < PAGES; page++)
                copy_line(t + page * PAGE + at, f + page * PAGE + at);
        t += PAGES * PAGE;
        f += PAGES * PAGE;
    }
    _mm_sfence();
    memcpy(t, f, bytes);
}
#else
void oari_stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
