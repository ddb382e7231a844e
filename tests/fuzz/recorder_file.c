/* SPDX-License-Identifier: Apache-2.0 */
/* A recorder file as another process, or a disk, may have left it. Pieces of
 * the input are laid over one that this process made, or they are the whole
 * file. What is read can be shown: texts end and are printable, numbers are in
 * range. */
#include <ctype.h>
#include <unistd.h>

#include "fuzz.h"

#include "record/recorder_file_read.h"
#include "sample_recorder_file.h"

static void check_text(const char *text, size_t room)
{
    size_t n = strnlen(text, room);

    FUZZ_CHECK(n < room);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK((unsigned char)text[i] >= 32 && text[i] != 127);
}

static void check_record(const oar_record *r)
{
    check_text(r->site, sizeof r->site);
    check_text(r->label, sizeof r->label);
    oar_coll_name(r->kind);
    oar_dtype_name(r->dtype);
    oar_reduce_op_name(r->op);
}

static void check_ring(const oari_ring *ring)
{
    uint64_t newest = oari_ring_newest(ring);
    oar_record record = oar_record_init();

    check_text(ring->group, sizeof ring->group);
    check_text(ring->backend, sizeof ring->backend);
    FUZZ_CHECK(ring->ranks >= 1 && ring->rank >= 0 && ring->rank < ring->ranks);
    for (uint64_t i = 0; i < 20 && i < newest; i++)
        if (oari_ring_find(ring, 0, newest - i, &record))
            check_record(&record);
}

static void read_recorder_file(const void *data, size_t bytes)
{
    oari_recorder_copy image = { 0 };

    if (oari_recorder_file_read(data, bytes, &image) != OAR_OK)
        return;
    FUZZ_CHECK(image.rings >= 0 && image.rings <= OARI_FILE_RINGS);
    check_text(image.box->head.host, sizeof image.box->head.host);
    check_text(image.box->head.boot, sizeof image.box->head.boot);
    check_text(image.box->head.note, sizeof image.box->head.note);
    for (int i = 0; i < image.rings; i++) {
        const oari_ring *ring = oari_recorder_copy_ring(&image, i);
        if (ring != NULL)
            check_ring(ring);
    }
    oari_recorder_copy_clear(&image);
}

/* Pieces of the input go where they say: place (4 bytes), length, bytes. */
static void lay_over(unsigned char *memory, const uint8_t *data, size_t bytes)
{
    while (bytes > 5) {
        uint32_t at;
        uint8_t n;
        fuzz_take(&data, &bytes, &at, 4);
        fuzz_take(&data, &bytes, &n, 1);
        fuzz_take(&data, &bytes, memory + at % (BYTES - 256),
                  n < bytes ? n : bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned char *whole;
    unsigned char *memory = malloc(BYTES);
    uint32_t cut;

    if (whole == NULL)
        whole = make_recorder_file(2, OARI_POSTED);
    FUZZ_CHECK(memory != NULL);
    read_recorder_file(data, bytes);
    memcpy(memory, whole, BYTES);
    fuzz_take(&data, &bytes, &cut, 4);
    lay_over(memory, data, bytes);
    read_recorder_file(memory, cut % 2 == 0 ? BYTES : cut % BYTES);
    free(memory);
    return 0;
}
