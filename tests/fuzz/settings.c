/* SPDX-License-Identifier: Apache-2.0 */
/* The line by which rank 0 passes its settings to the others, and what a user
 * may write in OARSONG_ALGO. */
#include "fuzz.h"

#include "base/alloc.h"
#include "plan/choose.h"
#include "comm/group/group.h"

static void read_line(const uint8_t *data, size_t bytes)
{
    oar_group_opts opts = oar_group_opts_init();
    char *algorithm = NULL;
    oari_rules rules;
    oar_store *store;

    opts.timeout_ms = 1;
    FUZZ_CHECK(oar_store_create_memory(&store) == OAR_OK);
    FUZZ_CHECK(oar_store_set(store, "g/settings/1", data, bytes) == OAR_OK);
    if (oari_settings_agree(store, "g", 1, 2, 1, &opts, &algorithm, &rules) ==
        OAR_OK) {
        FUZZ_CHECK(opts.small_bytes >= 8 && opts.small_bytes <= 1 << 20);
        FUZZ_CHECK(opts.eager_bytes >= 1 && opts.chunk_bytes >= 64);
        FUZZ_CHECK(opts.stage_bytes >= 64 && opts.stage_bytes <= 64 << 20);
        FUZZ_CHECK(rules.latency_bytes >= 0 && rules.chain_bytes >= 0);
    }
    oari_free(algorithm);
    oar_store_destroy(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes);
    oari_rules rules;

    read_line(data, bytes);
    if (oari_rules_read(&rules, text) == OAR_OK)
        oari_rules_check(&rules, OARI_MESSAGES);
    free(text);
    return 0;
}
