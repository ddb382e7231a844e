/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the TCP store, requests and replies. Writing what was read gives
 * the same bytes. */
#include "fuzz.h"

#include "base/alloc.h"
#include "store/store_wire.h"

static void walk_keys(const oari_wire_message *m)
{
    size_t at = 0, sum = 0;

    for (uint32_t i = 0; i < m->count; i++) {
        oari_bytes key = oari_wire_next_key(m, &at);
        FUZZ_CHECK(key.bytes <= OAR_STORE_KEY_MAX);
        for (size_t j = 0; j < key.bytes; j++)
            sum += ((const unsigned char *)key.data)[j];
    }
    FUZZ_CHECK(at == m->keys.bytes || m->count == 0);
    FUZZ_CHECK(sum < SIZE_MAX);
}

static void write_back(const oari_wire_message *m, const uint8_t *frame,
                       size_t bytes)
{
    unsigned char *again;
    size_t again_bytes;

    if (oari_wire_frame(m, &again, &again_bytes) != OAR_OK)
        return;
    FUZZ_CHECK(again_bytes == bytes);
    FUZZ_CHECK(memcmp(again, frame, bytes) == 0);
    oari_free(again);
}

static void read_body(oari_wire_header head, const uint8_t *frame, size_t bytes)
{
    oari_wire_message m;

    head.bytes = (uint32_t)(bytes - OARI_WIRE_HEADER_BYTES);
    if (oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &m) != OAR_OK)
        return;
    walk_keys(&m);
    if (frame[8] == (head.bytes & 255) && frame[9] == (head.bytes >> 8 & 255) &&
        frame[10] == 0 && frame[11] == 0)
        write_back(&m, frame, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    oari_wire_header head;

    oari_wire_plausible(
        data, bytes < OARI_WIRE_HEADER_BYTES ? bytes : OARI_WIRE_HEADER_BYTES);
    if (bytes >= OARI_WIRE_HEADER_BYTES && bytes < 65536 &&
        oari_wire_read_header(data, &head) == OAR_OK)
        read_body(head, data, bytes);
    return 0;
}
