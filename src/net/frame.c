/* SPDX-License-Identifier: Apache-2.0 */
/* frame: encodes and decodes the header and the fault record; CRC32C. */
#include "net/frame.h"

#include <string.h>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "base/status.h"

enum { MAGIC = 0x4652414f }; /* "OARF" */

/* ---- CRC32C -------------------------------------------------------------- */

/* The remainders of four bits; reflected polynomial 0x82f63b78. */
static const uint32_t nibble[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
    0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
    0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t oari_crc32c_plain(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = ~0u;

    for (; bytes != 0; bytes--) {
        crc ^= *at++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

#if defined(__aarch64__)

#if defined(__clang__) /* its header has them only where all code may */
#define BY_PROCESSOR     __attribute__((target("crc")))
#define CRC_8(crc, word) __builtin_arm_crc32cd(crc, word)
#define CRC_1(crc, byte) __builtin_arm_crc32cb(crc, byte)
#else
#define BY_PROCESSOR     __attribute__((target("+crc")))
#define CRC_8(crc, word) __crc32cd(crc, word)
#define CRC_1(crc, byte) __crc32cb(crc, byte)
#endif

#define HAS_CRC() ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0)

#elif defined(__x86_64__)

#define BY_PROCESSOR     __attribute__((target("sse4.2")))
#define HAS_CRC()        __builtin_cpu_supports("sse4.2")
#define CRC_8(crc, word) (uint32_t) _mm_crc32_u64(crc, word)
#define CRC_1(crc, byte) _mm_crc32_u8(crc, byte)

#endif

#if defined(BY_PROCESSOR)

BY_PROCESSOR static uint32_t crc_fast(const unsigned char *at, size_t bytes)
{
    uint32_t crc = ~0u;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        crc = CRC_8(crc, word);
    }
    for (; bytes != 0; bytes--)
        crc = CRC_1(crc, *at++);
    return ~crc;
}

#endif

uint32_t oari_crc32c(const void *data, size_t bytes)
{
#if defined(BY_PROCESSOR)
    if (HAS_CRC())
        return crc_fast(data, bytes);
#endif
    return oari_crc32c_plain(data, bytes);
}

/* ---- little-endian numbers ----------------------------------------------- */

static void put_le(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_le(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* ---- headers ------------------------------------------------------------- */

void oari_frame_write(const oari_frame *frame,
                      unsigned char raw[OARI_FRAME_BYTES])
{
    put_le(raw, MAGIC, 4);
    raw[4] = OARI_FRAME_VERSION;
    raw[5] = (unsigned char)frame->kind;
    put_le(raw + 6, frame->flags, 2);
    put_le(raw + 8, frame->context, 8);
    put_le(raw + 16, frame->sequence, 4);
    put_le(raw + 20, frame->source, 4);
    put_le(raw + 24, frame->tag, 8);
    put_le(raw + 32, frame->bytes, 8);
    put_le(raw + 40, frame->handle, 8);
    put_le(raw + 48, frame->fingerprint, 8);
    put_le(raw + 56, frame->credit, 4);
    put_le(raw + 60, oari_crc32c(raw, 60), 4);
}

oar_status oari_frame_read(const unsigned char raw[OARI_FRAME_BYTES],
                           oari_frame *frame)
{
    if (get_le(raw, 4) != MAGIC)
        return oari_fail(OAR_E_DATA, "bytes that are not a frame");
    if (get_le(raw + 60, 4) != oari_crc32c(raw, 60))
        return oari_fail(OAR_E_DATA, "a frame whose checksum is wrong");
    if (raw[4] != OARI_FRAME_VERSION)
        return oari_fail(OAR_E_DATA, "a frame of protocol %d, this is %d",
                         raw[4], OARI_FRAME_VERSION);
    if (raw[5] == 0 || raw[5] >= OARI_FRAME_KINDS)
        return oari_fail(OAR_E_DATA, "a frame of kind %d", raw[5]);
    if ((get_le(raw + 6, 2) & ~(uint64_t)OARI_FRAME_FLAGS) != 0)
        return oari_fail(OAR_E_DATA, "a frame with flags %#x",
                         (unsigned)get_le(raw + 6, 2));
    frame->kind = (oari_frame_kind)raw[5];
    frame->flags = (uint16_t)get_le(raw + 6, 2);
    frame->context = get_le(raw + 8, 8);
    frame->sequence = (uint32_t)get_le(raw + 16, 4);
    frame->source = (uint32_t)get_le(raw + 20, 4);
    frame->tag = get_le(raw + 24, 8);
    frame->bytes = get_le(raw + 32, 8);
    frame->handle = get_le(raw + 40, 8);
    frame->fingerprint = get_le(raw + 48, 8);
    frame->credit = (uint32_t)get_le(raw + 56, 4);
    return OAR_OK;
}

/* ---- faults -------------------------------------------------------------- */

/* member, bytes it takes: the texts of a record, in order. */
#define TEXTS(X)     \
    X(operation, 32) \
    X(site, 96)      \
    X(label, 64)     \
    X(host, 64)      \
    X(text, 512)

void oari_fault_write(const oari_fault *fault,
                      unsigned char raw[OARI_FAULT_BYTES])
{
    const oar_error *record = &fault->error;
    unsigned char *at = raw + 36;

    put_le(raw, (uint32_t)record->status, 4);
    put_le(raw + 4, (uint32_t)record->rank, 4);
    put_le(raw + 8, (uint32_t)record->peer, 4);
    put_le(raw + 12, (uint32_t)record->sys_errno, 4);
    put_le(raw + 16, (uint64_t)record->pid, 8);
    put_le(raw + 24, record->sequence, 8);
    put_le(raw + 32, (uint32_t)fault->evidence, 4);
#define X(member, size)                                                     \
    _Static_assert(sizeof record->member == (size), "a text of oar_error"); \
    memcpy(at, record->member, size);                                       \
    at += (size);
    TEXTS(X)
#undef X
}

/* Copies a peer's text, which people will read: it ends with a zero byte, and
 * '?' replaces the control characters of ASCII and of Latin-1 in UTF-8, which a
 * terminal would obey. */
static void read_text(char *into, const unsigned char *from, size_t bytes)
{
    memcpy(into, from, bytes - 1);
    into[bytes - 1] = 0;
    for (char *at = into; *at != 0; at++) {
        const unsigned char *c = (const unsigned char *)at;
        if (c[0] < 0x20 || c[0] == 0x7f ||
            (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0))
            *at = '?';
    }
}

void oari_fault_read(const unsigned char raw[OARI_FAULT_BYTES],
                     oari_fault *fault)
{
    const unsigned char *at = raw + 36;
    oar_error *record = &fault->error;

    *fault = (oari_fault){ .error.size = sizeof *record };
    fault->evidence = get_le(raw + 32, 4) < OARI_EVIDENCES
                          ? (oari_evidence)get_le(raw + 32, 4)
                          : OARI_EVIDENCE_TIMEOUT;
    record->status = OAR_E_PEER; /* for success and for an unknown status */
    switch (get_le(raw, 4)) {
#define X(name, value, text) \
    case value: record->status = name != OAR_OK ? name : OAR_E_PEER; break;
        OAR_STATUS_LIST(X)
#undef X
    }
    record->rank = (int32_t)get_le(raw + 4, 4);
    record->peer = (int32_t)get_le(raw + 8, 4);
    record->sys_errno = (int32_t)get_le(raw + 12, 4);
    record->pid = (int64_t)get_le(raw + 16, 8);
    record->sequence = get_le(raw + 24, 8);
#define X(member, bytes)                  \
    read_text(record->member, at, bytes); \
    at += (bytes);
    TEXTS(X)
#undef X
}
