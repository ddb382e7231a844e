/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens: any bytes, any dtype, length, stride and header. */
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/data.h>
#include <oarsong/memory.h>

enum { FEW = 4 };

/* The first, the last, one in between, and one too many. */
static void read_samples(const oar_dataset *d)
{
    int64_t count = oar_dataset_count(d);
    int64_t index[FEW] = { 0, count - 1, count / 2, count };

    FUZZ_CHECK(count > 0);
    for (int n = 1; n <= FEW; n++) {
        oar_tensor *field[2] = { NULL, NULL };
        oar_status status = oar_dataset_batch(d, n, index, field);

        FUZZ_CHECK(n < FEW || status != OAR_OK);
        if (status != OAR_OK)
            continue;
        oar_tensor_release(field[0]);
        oar_tensor_release(field[1]);
    }
}

static void open_file(const char *path, oar_dtype dtype, int64_t length,
                      int64_t stride, size_t header)
{
    oar_tokens_opts o = oar_tokens_opts_init();
    char *identity;
    oar_dataset *d;

    o.stride = stride;
    o.header_bytes = header;
    if (oar_dataset_tokens_with(path, dtype, length, &o, &d) != OAR_OK)
        return;
    read_samples(d);
    FUZZ_CHECK(oar_dataset_identity(d, &identity) == OAR_OK);
    oar_free(identity);
    oar_dataset_destroy(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct {
        uint8_t dtype, wide;
        int16_t length, stride;
        int64_t long_length, long_stride;
    } ask;
    char path[64];
    int fd;

    fuzz_take(&data, &bytes, &ask, sizeof ask);
    fd = memfd_create("tokens", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ask.wide % 2 == 0)
        open_file(path, (oar_dtype)(ask.dtype % 16), ask.length, ask.stride,
                  ask.wide / 2);
    else
        open_file(path, (oar_dtype)(ask.dtype % 16), ask.long_length,
                  ask.long_stride, (size_t)ask.long_stride);
    close(fd);
    return 0;
}
