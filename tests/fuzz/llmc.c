/* SPDX-License-Identifier: Apache-2.0 */
/* Model files of llm.c: any bytes, or the first numbers of a header and any
 * bytes behind the rest of it. What is read as a model is written and read
 * again with the same parameters. */
#include <oarsong/interchange.h>
#include <oarsong/memory.h>

#include "scratch.h"

enum { HEADER_BYTES = 1024, FIRST_NUMBERS = 8 * 4 };

static oar_memory_stats read_memory(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    FUZZ_CHECK(oar_memory_read(&stats) == OAR_OK);
    return stats;
}

static void compare_params(const oar_module *a, const oar_module *b)
{
    FUZZ_CHECK(oar_module_params(a) == oar_module_params(b));
    for (int i = 0; i < oar_module_params(a); i++) {
        oar_tensor *x = oar_module_param(a, i), *y = oar_module_param(b, i);
        size_t bytes =
            (size_t)oar_tensor_count(x) * oar_dtype_size(oar_tensor_dtype(x));

        FUZZ_CHECK(oar_tensor_count(x) == oar_tensor_count(y));
        FUZZ_CHECK(memcmp(oar_tensor_const_data(x), oar_tensor_const_data(y),
                          bytes) == 0);
    }
}

static void read_file(const char *path, oar_dtype dtype, int trim)
{
    oar_memory_stats before = read_memory();
    oar_gpt_opts opts = oar_gpt_opts_init();
    oar_module *gpt, *again;
    oar_status status = oar_gpt_from_llmc(path, dtype, trim, &gpt, &opts);

    if (status != OAR_OK) {
        FUZZ_CHECK(status == OAR_E_DATA || status == OAR_E_UNSUPPORTED);
        FUZZ_CHECK(read_memory().allocations == before.allocations);
        return;
    }
    FUZZ_CHECK(opts.vocabulary > 0 && opts.width % opts.heads == 0);
    FUZZ_CHECK(oar_gpt_to_llmc(gpt, scratch_path) == OAR_OK);
    FUZZ_CHECK(oar_gpt_from_llmc(scratch_path, dtype, 1, &again, NULL) ==
               OAR_OK);
    compare_params(gpt, again);
    oar_module_release(again);
    oar_module_release(gpt);
    FUZZ_CHECK(read_memory().live == before.live);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t zeros[HEADER_BYTES];
    uint8_t ask;
    char path[64];
    int fd;

    scratch_open();
    fuzz_take(&data, &bytes, &ask, sizeof ask);
    fd = scratch_memory(path);
    if (ask % 2 == 1 && bytes >= FIRST_NUMBERS) {
        FUZZ_CHECK(write(fd, data, FIRST_NUMBERS) == FIRST_NUMBERS);
        FUZZ_CHECK(write(fd, zeros, HEADER_BYTES - FIRST_NUMBERS) ==
                   HEADER_BYTES - FIRST_NUMBERS);
        data += FIRST_NUMBERS;
        bytes -= FIRST_NUMBERS;
    }
    FUZZ_CHECK(write(fd, data, bytes) == (ssize_t)bytes);
    read_file(path, ask & 2 ? OAR_BF16 : OAR_F32, ask & 4);
    close(fd);
    return 0;
}
