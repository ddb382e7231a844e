/* SPDX-License-Identifier: Apache-2.0 */
/* frame: bytes of the head and of a fault record, and CRC32C. */
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

static int processor_can(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

#elif defined(__x86_64__)

#define BY_PROCESSOR __attribute__((target("sse4.2")))

static int processor_can(void)
{
    return __builtin_cpu_supports("sse4.2");
}

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

uint32_t oari_crc32c(const void *data, size_t bytes)
{
    return processor_can() ? crc_fast(data, bytes)
                           : oari_crc32c_plain(data, bytes);
}

#else

uint32_t oari_crc32c(const void *data, size_t bytes)
{
    return oari_crc32c_plain(data, bytes);
}

#endif

/* ---- numbers ------------------------------------------------------------- */

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* ---- heads --------------------------------------------------------------- */

void oari_frame_write(const oari_frame *frame,
                      unsigned char raw[OARI_FRAME_BYTES])
{
    put(raw, MAGIC, 4);
    raw[4] = OARI_FRAME_VERSION;
    raw[5] = (unsigned char)frame->kind;
    put(raw + 6, frame->flags, 2);
    put(raw + 8, frame->context, 8);
    put(raw + 16, frame->sequence, 4);
    put(raw + 20, frame->source, 4);
    put(raw + 24, frame->tag, 8);
    put(raw + 32, frame->bytes, 8);
    put(raw + 40, frame->handle, 8);
    put(raw + 48, frame->fingerprint, 8);
    put(raw + 56, frame->credit, 4);
    put(raw + 60, oari_crc32c(raw, 60), 4);
}

static oar_status check_raw(const unsigned char *raw)
{
    if (get(raw, 4) != MAGIC)
        return oari_fail(OAR_E_DATA, "what is no frame of ours");
    if (get(raw + 60, 4) != oari_crc32c(raw, 60))
        return oari_fail(OAR_E_DATA, "a frame whose checksum is wrong");
    if (raw[4] != OARI_FRAME_VERSION)
        return oari_fail(OAR_E_DATA, "a frame of protocol %d, this is %d",
                         raw[4], OARI_FRAME_VERSION);
    if (raw[5] == 0 || raw[5] >= OARI_FRAME_KINDS)
        return oari_fail(OAR_E_DATA, "a frame of kind %d", raw[5]);
    if ((get(raw + 6, 2) & ~(uint64_t)OARI_FRAME_FLAGS) != 0)
        return oari_fail(OAR_E_DATA, "a frame with flags %#x",
                         (unsigned)get(raw + 6, 2));
    return OAR_OK;
}

oar_status oari_frame_read(const unsigned char raw[OARI_FRAME_BYTES],
                           oari_frame *frame)
{
    OARI_TRY(check_raw(raw));
    frame->kind = (oari_frame_kind)raw[5];
    frame->flags = (uint16_t)get(raw + 6, 2);
    frame->context = get(raw + 8, 8);
    frame->sequence = (uint32_t)get(raw + 16, 4);
    frame->source = (uint32_t)get(raw + 20, 4);
    frame->tag = get(raw + 24, 8);
    frame->bytes = get(raw + 32, 8);
    frame->handle = get(raw + 40, 8);
    frame->fingerprint = get(raw + 48, 8);
    frame->credit = (uint32_t)get(raw + 56, 4);
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

    put(raw, (uint32_t)record->status, 4);
    put(raw + 4, (uint32_t)record->rank, 4);
    put(raw + 8, (uint32_t)record->peer, 4);
    put(raw + 12, (uint32_t)record->sys_errno, 4);
    put(raw + 16, (uint64_t)record->pid, 8);
    put(raw + 24, record->sequence, 8);
    put(raw + 32, (uint32_t)fault->evidence, 4);
#define X(member, size)                                                     \
    _Static_assert(sizeof record->member == (size), "a text of oar_error"); \
    memcpy(at, record->member, size);                                       \
    at += (size);
    TEXTS(X)
#undef X
}

/* Whether a character begins here that a terminal would obey: of ASCII, or of
 * Latin-1 as UTF-8 has it. */
static int controls(const unsigned char *at)
{
    return *at < 0x20 || *at == 0x7f ||
           (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0);
}

/* A text of a peer's is shown to people: it ends, and only its letters count.
 */
static void read_text(char *into, const unsigned char *from, size_t bytes)
{
    memcpy(into, from, bytes - 1);
    into[bytes - 1] = 0;
    for (char *at = into; *at != 0; at++)
        if (controls((const unsigned char *)at))
            *at = '?';
}

static oar_status read_status(uint64_t raw)
{
    switch (raw) {
#define X(name, value, text) \
    case value: return value == OAR_OK ? OAR_E_PEER : name;
        OAR_STATUS_LIST(X)
#undef X
    default: return OAR_E_PEER; /* it is a failure, whatever it is */
    }
}

static oari_evidence read_evidence(uint64_t raw)
{
    return raw < OARI_EVIDENCES ? (oari_evidence)raw : OARI_EVIDENCE_TIMEOUT;
}

void oari_fault_read(const unsigned char raw[OARI_FAULT_BYTES],
                     oari_fault *fault)
{
    const unsigned char *at = raw + 36;
    oar_error *record = &fault->error;

    *fault = (oari_fault){ .error.size = sizeof *record };
    fault->evidence = read_evidence(get(raw + 32, 4));
    record->status = read_status(get(raw, 4));
    record->rank = (int32_t)get(raw + 4, 4);
    record->peer = (int32_t)get(raw + 8, 4);
    record->sys_errno = (int32_t)get(raw + 12, 4);
    record->pid = (int64_t)get(raw + 16, 8);
    record->sequence = get(raw + 24, 8);
#define X(member, bytes)                  \
    read_text(record->member, at, bytes); \
    at += (bytes);
    TEXTS(X)
#undef X
}
