/* SPDX-License-Identifier: Apache-2.0 */
/* The list of what a rank holds, as ranks send it before a save: any bytes are
 * refused, or are a list that is the same bytes when it is written again, and
 * of which a plan is made, or refused with a reason. Reading takes at most four
 * times the bytes and 1 MiB. */
#include <oarsong/memory.h>

#include "fuzz.h"
#include "parallel/checkpoint/file_layout.h"

enum { OVERHEAD = 1 << 20 };

static uint64_t live_bytes(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    FUZZ_CHECK(oar_memory_read(&stats) == OAR_OK);
    return stats.live_bytes;
}

static void check_again(const oari_ckpt_part_list *list, const uint8_t *data,
                        size_t bytes)
{
    oari_ckpt_part_list again = { .items = 1 };

    for (int64_t i = 0; i < list->part.count; i++) {
        oari_ckpt_part part = list->part.data[i];

        part.item = 0;
        FUZZ_CHECK(oari_vec_push(&again.part, part) == OAR_OK);
    }
    FUZZ_CHECK(oari_ckpt_part_list_seal(&again) == OAR_OK);
    FUZZ_CHECK((size_t)again.wire.count == bytes &&
               memcmp(again.wire.data, data, bytes) == 0);
    oari_ckpt_part_list_free(&again);
}

/* Plans for two ranks that hold the same. */
static void check_plan(const uint8_t *data, size_t bytes)
{
    oari_ckpt_lists lists = { .ranks = 2 };
    oari_ckpt_file_layout layout;
    oari_ckpt_save_plan plan;
    oar_status status;

    for (int r = 0; r < 2; r++)
        FUZZ_CHECK(oari_ckpt_lists_add(&lists, r, data, bytes) == OAR_OK);
    status = oari_ckpt_save_plan_make(&lists, NULL, &plan);
    FUZZ_CHECK(status == OAR_OK || status == OAR_E_ARG ||
               status == OAR_E_MISMATCH);
    if (status == OAR_OK) {
        FUZZ_CHECK(oari_ckpt_file_layout_make(&plan, &layout) == OAR_OK);
        for (int64_t i = 0; i < layout.file.count; i++) {
            const char *slash = strchr(layout.file.data[i].path, '/');

            FUZZ_CHECK(slash != NULL && strchr(slash + 1, '/') == NULL &&
                       layout.file.data[i].path[0] != '.');
        }
        oari_ckpt_file_layout_free(&layout);
        oari_ckpt_save_plan_free(&plan);
    }
    oari_ckpt_lists_free(&lists);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    oari_ckpt_part_list list = { .items = 0 };
    uint64_t live = live_bytes();
    oar_status status = oari_ckpt_part_list_read(data, bytes, &list);

    if (status == OAR_OK) {
        FUZZ_CHECK(live_bytes() - live <= 4 * (uint64_t)bytes + OVERHEAD);
        check_again(&list, data, bytes);
        check_plan(data, bytes);
        oari_ckpt_part_list_free(&list);
    } else {
        FUZZ_CHECK(status == OAR_E_DATA);
    }
    FUZZ_CHECK(live_bytes() == live);
    return 0;
}
