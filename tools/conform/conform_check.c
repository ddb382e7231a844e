/* SPDX-License-Identifier: Apache-2.0 */
/* conform_check: comparing buffers with the formula. */
#include "conform.h"

#include <string.h>

static void tell(conform_context *d, const conform_job *j, size_t at,
                 const void *data, const uint64_t *want)
{
    size_t size = oar_dtype_size(j->t.dtype);
    char has[48], should[48];

    value_show(j->t.dtype, (const unsigned char *)data + at * size, has);
    value_show(j->t.dtype, want, should);
    record_wrong(d, "element %zu is %s, not %s", at, has, should);
}

void check_run(conform_context *d, const conform_job *j, const void *data,
               size_t count, int source, size_t start)
{
    uint64_t want = 0;
    double worst = 0;
    size_t at;

    if (source < 0)
        at = value_find_wrong(j, start, count, data, &want, &worst);
    else
        at = value_find_other(j, source, start, count, data, &want);
    if (at < count)
        tell(d, j, at, data, &want);
    record_error(d, worst);
}

static int untouched(const unsigned char *guard)
{
    for (int i = 0; i < CONFORM_GUARD; i++)
        if (guard[i] != 0xa5)
            return 0;
    return 1;
}

void check_guards(conform_context *d, const conform_job *j)
{
    for (int i = 0; i < 2; i++) {
        const unsigned char *at = j->guarded[i];
        if (at == NULL)
            continue;
        if (!untouched(at))
            record_wrong(d, "bytes before %s were written",
                         i == 0 ? "in" : "out");
        if (!untouched(at + CONFORM_GUARD + j->guarded_bytes[i]))
            record_wrong(d, "bytes behind %s were written",
                         i == 0 ? "in" : "out");
    }
}

void check_hash(conform_context *d, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint64_t hash = bytes, word;

    for (; bytes >= 8; bytes -= 8, byte += 8) {
        memcpy(&word, byte, 8);
        hash = value_mix(hash, word);
    }
    for (; bytes > 0; bytes--)
        hash = value_mix(hash, *byte++);
    d->row->note[d->cell].hash = hash | 1;
}
