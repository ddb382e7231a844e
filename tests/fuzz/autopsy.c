/* SPDX-License-Identifier: Apache-2.0 */
/* An autopsy of three ranks, of which two have left damaged boxes and one none.
 * Whatever is in them, there is a text, and JSON that a strict reader takes. */
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/autopsy.h>
#include <oarsong/memory.h>

#include "made_box.h"

enum { BOXES = 2 };

/* Pieces: which box (1 bit) and where (4 bytes), length, bytes. */
static void lay_over(unsigned char *const *box, const uint8_t *data,
                     size_t bytes)
{
    while (bytes > 5) {
        uint32_t at;
        uint8_t n;
        fuzz_take(&data, &bytes, &at, 4);
        fuzz_take(&data, &bytes, &n, 1);
        fuzz_take(&data, &bytes, box[at >> 31] + (at << 1 >> 1) % (BYTES - 256),
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

static int put_box(const unsigned char *box)
{
    int fd = memfd_create("box", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0 && write(fd, box, BYTES) == BYTES);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned char *whole;
    const int32_t one = 1;
    unsigned char *box[BOXES];
    int fd[BOXES + 1] = { -1, -1, -1 };
    oar_autopsy *autopsy;

    if (whole == NULL)
        whole = make_box(3, OARI_AWAITED);
    for (int i = 0; i < BOXES; i++) {
        FUZZ_CHECK((box[i] = malloc(BYTES)) != NULL);
        memcpy(box[i], whole, BYTES);
    }
    for (int i = 1; i <= RINGS; i++)
        memcpy(box[1] + i * OARI_FILE_UNIT + offsetof(oari_ring, rank), &one,
               sizeof one);
    lay_over(box, data, bytes);
    for (int i = 0; i < BOXES; i++)
        fd[i] = put_box(box[i]);
    if (oar_autopsy_from_fds(fd, BOXES + 1, &autopsy) == OAR_OK) {
        read_all(autopsy);
        oar_autopsy_destroy(autopsy);
    }
    for (int i = 0; i < BOXES; i++) {
        close(fd[i]);
        free(box[i]);
    }
    return 0;
}
