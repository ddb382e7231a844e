/* SPDX-License-Identifier: Apache-2.0 */
/* An autopsy of three ranks, of which two have left damaged recorder files and
 * one none. Whatever is in them, there is a text, and JSON that a strict parser
 * accepts. */
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/autopsy.h>
#include <oarsong/memory.h>

#include "sample_recorder_file.h"

enum { RECORDER_FILES = 2 };

/* Pieces: which file (1 bit) and where (4 bytes), length, bytes. */
static void lay_over(unsigned char *const *file, const uint8_t *data,
                     size_t bytes)
{
    while (bytes > 5) {
        uint32_t at;
        uint8_t n;
        fuzz_take(&data, &bytes, &at, 4);
        fuzz_take(&data, &bytes, &n, 1);
        fuzz_take(&data, &bytes,
                  file[at >> 31] + (at << 1 >> 1) % (BYTES - 256),
                  n < bytes ? n : bytes);
    }
}

static void read_all(const oar_autopsy *autopsy)
{
    oar_stall stall = oar_stall_init();
    char *text = NULL, *json = NULL;
    json_t *root;

    FUZZ_CHECK(oar_autopsy_text(autopsy, &text) == OAR_OK);
    FUZZ_CHECK(text != NULL && *text != 0);
    FUZZ_CHECK(oar_autopsy_json(autopsy, &json) == OAR_OK);
    root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    FUZZ_CHECK(json_is_object(root));
    json_decref(root);
    oar_autopsy_wrong(autopsy);
    oar_autopsy_stall(autopsy, 0, &stall);
    oar_free(text);
    oar_free(json);
}

static int put_recorder_file(const unsigned char *file)
{
    int fd = memfd_create("box", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0 && write(fd, file, BYTES) == BYTES);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned char *whole;
    const int32_t one = 1;
    unsigned char *file[RECORDER_FILES];
    int fd[RECORDER_FILES + 1] = { -1, -1, -1 };
    oar_autopsy *autopsy;

    if (whole == NULL)
        whole = make_recorder_file(3, OARI_AWAITED);
    for (int i = 0; i < RECORDER_FILES; i++) {
        FUZZ_CHECK((file[i] = malloc(BYTES)) != NULL);
        memcpy(file[i], whole, BYTES);
    }
    for (int i = 1; i <= RINGS; i++)
        memcpy(file[1] + i * OARI_FILE_UNIT + offsetof(oari_ring, rank), &one,
               sizeof one);
    lay_over(file, data, bytes);
    for (int i = 0; i < RECORDER_FILES; i++)
        fd[i] = put_recorder_file(file[i]);
    if (oar_autopsy_from_fds(fd, RECORDER_FILES + 1, &autopsy) == OAR_OK) {
        read_all(autopsy);
        oar_autopsy_destroy(autopsy);
    }
    for (int i = 0; i < RECORDER_FILES; i++) {
        close(fd[i]);
        free(file[i]);
    }
    return 0;
}
