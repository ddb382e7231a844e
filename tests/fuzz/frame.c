/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of frames between ranks, with and without a right checksum, and fault
 * records. Writing what was read gives the same bytes. */
#include "fuzz.h"

#include "net/frame.h"

static void put_checksum(unsigned char raw[OARI_FRAME_BYTES])
{
    uint32_t sum = oari_crc32c(raw, OARI_FRAME_BYTES - 4);

    for (int i = 0; i < 4; i++)
        raw[OARI_FRAME_BYTES - 4 + i] = (unsigned char)(sum >> 8 * i);
}

static void read_head(const unsigned char raw[OARI_FRAME_BYTES])
{
    unsigned char again[OARI_FRAME_BYTES];
    oari_frame frame;

    if (oari_frame_read(raw, &frame) != OAR_OK)
        return;
    oari_frame_write(&frame, again);
    FUZZ_CHECK(memcmp(raw, again, sizeof again) == 0);
}

static void read_fault(const unsigned char raw[OARI_FAULT_BYTES])
{
    unsigned char first[OARI_FAULT_BYTES], second[OARI_FAULT_BYTES];
    oari_fault fault, again;

    oari_fault_read(raw, &fault);
    FUZZ_CHECK(strnlen(fault.error.text, sizeof fault.error.text) <
               sizeof fault.error.text);
    FUZZ_CHECK(strnlen(fault.error.site, sizeof fault.error.site) <
               sizeof fault.error.site);
    FUZZ_CHECK(strnlen(fault.error.label, sizeof fault.error.label) <
               sizeof fault.error.label);
    FUZZ_CHECK(strnlen(fault.error.host, sizeof fault.error.host) <
               sizeof fault.error.host);
    FUZZ_CHECK(strnlen(fault.error.operation, sizeof fault.error.operation) <
               sizeof fault.error.operation);
    FUZZ_CHECK(fault.evidence < OARI_EVIDENCES);
    oari_fault_write(&fault, first);
    oari_fault_read(first, &again);
    oari_fault_write(&again, second);
    FUZZ_CHECK(memcmp(first, second, sizeof first) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char head[OARI_FRAME_BYTES], fault[OARI_FAULT_BYTES];

    fuzz_take(&data, &bytes, head, sizeof head);
    read_head(head);
    put_checksum(head);
    read_head(head);
    fuzz_take(&data, &bytes, fault, sizeof fault);
    read_fault(fault);
    return 0;
}
