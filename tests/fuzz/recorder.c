/* SPDX-License-Identifier: Apache-2.0 */
/* A recorder's memory, as another process, or a disk, may have left it. The
 * input is laid over one that this process made. */
#include "fuzz.h"

#include "comm/recorder.h"

static void check_record(const oar_record *r)
{
    FUZZ_CHECK(strnlen(r->site, sizeof r->site) < sizeof r->site);
    FUZZ_CHECK(strnlen(r->label, sizeof r->label) < sizeof r->label);
    oar_coll_name(r->kind);
    oar_dtype_name(r->dtype);
    oar_op_name(r->op);
}

/* A few operations, so that there is something to lay over. */
static unsigned char *make_memory(void)
{
    unsigned char *copy = malloc(oari_recorder_bytes());
    oari_call call = { .file = "somewhere.c", .line = 7 };
    oari_recorder *r;

    FUZZ_CHECK(copy != NULL);
    FUZZ_CHECK(oari_recorder_create("g", 0, 2, &r) == OAR_OK);
    for (uint64_t i = 1; i < 6; i++) {
        oari_recorder_post(r, i, &call);
        oari_recorder_done(r, i, OAR_RECORD_DONE);
    }
    memcpy(copy, oari_recorder_base(r), oari_recorder_bytes());
    oari_recorder_destroy(r);
    return copy;
}

/* Pieces of the input go where they say: place (4 bytes), length, bytes. */
static void lay_over(unsigned char *memory, const uint8_t *data, size_t bytes)
{
    while (bytes > 5) {
        uint32_t at;
        uint8_t n;
        fuzz_take(&data, &bytes, &at, 4);
        fuzz_take(&data, &bytes, &n, 1);
        at %= (uint32_t)oari_recorder_bytes() - 256;
        fuzz_take(&data, &bytes, memory + at, n < bytes ? n : bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned char *whole;
    unsigned char *memory = malloc(oari_recorder_bytes());
    oar_record record = oar_record_init();

    if (whole == NULL)
        whole = make_memory();
    FUZZ_CHECK(memory != NULL);
    memcpy(memory, whole, oari_recorder_bytes());
    lay_over(memory, data, bytes);
    for (int i = -1; i < 8; i++)
        if (oari_recorder_newest(memory, i, &record) == OAR_OK)
            check_record(&record);
    for (uint64_t i = 0; i < 8; i++)
        if (oari_recorder_by_sequence(memory, i * i, &record) == OAR_OK)
            check_record(&record);
    free(memory);
    return 0;
}
