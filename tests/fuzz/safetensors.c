/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files: any bytes. What can be opened has tensors that can be read
 * and, where their dtype is ours, saved and read back with the same bytes.
 * Reading takes at most four times the file and 1 MiB. */
#include <oarsong/memory.h>
#include <oarsong/safetensors.h>

#include "scratch.h"

enum { MOST_TENSORS = 64, OVERHEAD = 1 << 20 };

static uint64_t live_before, most_bytes;

static uint64_t live_bytes(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    FUZZ_CHECK(oar_memory_read(&stats) == OAR_OK);
    return stats.live_bytes;
}

static void check_memory(void)
{
    FUZZ_CHECK(live_bytes() - live_before <= most_bytes);
}

/* What is read has been allocated by then. */
static ssize_t watched_read_at(const oari_disk *disk, int fd, void *data,
                               size_t bytes, off_t at)
{
    check_memory();
    return oari_disk_system.read_at(disk, fd, data, bytes, at);
}

/* Reads a tensor; it must be possible if its entry says so. */
static oar_tensor *read_tensor(const oar_safetensors *file,
                               const oar_safetensors_entry *e)
{
    oar_tensor *tensor = oar_safetensors_tensor(NULL, file, e->name);

    check_memory();
    FUZZ_CHECK((tensor != NULL) == e->known);
    if (tensor == NULL)
        FUZZ_CHECK(oar_last_error()->status == OAR_E_UNSUPPORTED);
    else
        FUZZ_CHECK((uint64_t)oar_tensor_count(tensor) *
                       oar_dtype_size(oar_tensor_dtype(tensor)) ==
                   e->bytes);
    return tensor;
}

static void compare_again(int count, const char *const *name,
                          oar_tensor *const *tensor)
{
    oar_safetensors *again;

    FUZZ_CHECK(oar_safetensors_open(scratch_path, NULL, &again) == OAR_OK);
    FUZZ_CHECK(oar_safetensors_count(again) == count);
    for (int i = 0; i < count; i++) {
        oar_safetensors_entry e = oar_safetensors_entry_init();
        oar_tensor *got;

        FUZZ_CHECK(oar_safetensors_find(again, name[i], &e) == OAR_OK);
        got = oar_safetensors_tensor(NULL, again, name[i]);
        FUZZ_CHECK(got != NULL &&
                   oar_tensor_dtype(got) == oar_tensor_dtype(tensor[i]) &&
                   e.shape.ndim == oar_tensor_shape(tensor[i]).ndim);
        FUZZ_CHECK(e.bytes == 0 ||
                   memcmp(oar_tensor_const_data(got),
                          oar_tensor_const_data(tensor[i]), e.bytes) == 0);
        oar_tensor_release(got);
    }
    oar_safetensors_close(again);
}

/* Reads every tensor; saves the first of those that can be. */
static void read_file(const oar_safetensors *file)
{
    const char *name[MOST_TENSORS];
    oar_tensor *tensor[MOST_TENSORS];
    int count = 0;

    for (int64_t i = 0; i < oar_safetensors_count(file); i++) {
        oar_safetensors_entry e = oar_safetensors_entry_init(), same = e;
        oar_tensor *read;

        FUZZ_CHECK(oar_safetensors_entry_at(file, i, &e) == OAR_OK);
        FUZZ_CHECK(oar_safetensors_find(file, e.name, &same) == OAR_OK);
        FUZZ_CHECK(same.offset == e.offset && same.bytes == e.bytes);
        read = read_tensor(file, &e);
        if (read != NULL && count < MOST_TENSORS) {
            name[count] = e.name;
            tensor[count++] = read;
        } else {
            oar_tensor_release(read);
        }
    }
    most_bytes = UINT64_MAX; /* the copy has a longer header */
    FUZZ_CHECK(oar_safetensors_save(scratch_path, count, name, tensor, 0,
                                    NULL) == OAR_OK);
    compare_again(count, name, tensor);
    while (count > 0)
        oar_tensor_release(tensor[--count]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    oar_safetensors *file;
    oar_status status;
    char path[64];
    int fd;

    scratch_open();
    scratch_disk.read_at = watched_read_at;
    fd = scratch_memory(path);
    FUZZ_CHECK(write(fd, data, bytes) == (ssize_t)bytes);
    live_before = live_bytes();
    most_bytes = 4 * (uint64_t)bytes + OVERHEAD;
    status = oar_safetensors_open(path, NULL, &file);
    check_memory();
    if (status == OAR_OK) {
        read_file(file);
        oar_safetensors_close(file);
    } else {
        FUZZ_CHECK(status == OAR_E_DATA);
    }
    FUZZ_CHECK(live_bytes() == live_before);
    close(fd);
    return 0;
}
