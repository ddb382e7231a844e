/* SPDX-License-Identifier: Apache-2.0 */
/* A copy past the caches copies all bytes, wherever they lie, and no others. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "parallel/checkpoint/stream_copy.h"

enum { ROOM = (1 << 20) + 256 };

static void every_byte_is_copied_and_no_other(void **state)
{
    static const size_t sizes[] = { 0,      1,      63,     64,     4096,
                                    262143, 262144, 262145, 300001, 327680,
                                    344064, 344127, 1 << 20 };
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    unsigned char *want = malloc(ROOM);

    (void)state;
    assert_true(from != NULL && to != NULL && want != NULL);
    for (int i = 0; i < ROOM; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t at = 0; at < 70; at += 23)
            for (size_t source = 0; source < 70; source += 17) {
                memset(to, 0xee, ROOM);
                memset(want, 0xee, ROOM);
                memcpy(want + at, from + source, sizes[i]);
                oari_stream_copy(to + at, from + source, sizes[i]);
                assert_int_equal(memcmp(to, want, ROOM), 0);
            }
    free(want);
    free(to);
    free(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_copied_and_no_other),
    };

    return cmocka_run_group_tests_name("stream_copy", tests, NULL, NULL);
}
