/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a generation: any bytes, with the checksum that belongs to them.
 * What can be read has only files in its own folder and chunks in their files,
 * gives every tensor a plan to read it or says what is wrong with its chunks,
 * and is the same bytes again once it has been written and read. Reading takes
 * at most four times the file and 1 MiB. */
#include <inttypes.h>

#include <oarsong/memory.h>

#include "base/alloc.h"
#include "fuzz.h"
#include "parallel/checkpoint/load/read_files.h"

#define END "\"end\":\"0123456789abcdef\"}\n"
enum { END_BYTES = sizeof END - 1, OVERHEAD = 1 << 20 };

static uint64_t live_bytes(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    FUZZ_CHECK(oar_memory_read(&stats) == OAR_OK);
    return stats.live_bytes;
}

static oar_status read_index(const void *data, size_t bytes,
                             oari_ckpt_index *index)
{
    char *text = oari_alloc(bytes + 1, 1);

    FUZZ_CHECK(text != NULL);
    memcpy(text, data, bytes);
    return oari_ckpt_index_read("fuzz", text, bytes, index);
}

static void check_files(const oari_ckpt_index *index)
{
    for (int64_t i = 0; i < index->files; i++) {
        const oari_ckpt_index_file *f = &index->file[i];
        const char *slash = strchr(f->path, '/');

        FUZZ_CHECK(slash != NULL && strchr(slash + 1, '/') == NULL);
        FUZZ_CHECK(f->path[0] != '.' && f->path[0] != '/' && slash[1] != '.' &&
                   slash[1] != '\0');
        FUZZ_CHECK(f->data <= f->bytes &&
                   (uint64_t)f->blocks ==
                       f->bytes / index->block_bytes +
                           (f->bytes % index->block_bytes != 0));
    }
}

static void check_tensor(const oari_ckpt_index *index,
                         const oari_ckpt_index_tensor *t)
{
    oari_ckpt_read_plan plan = { .gap = 4096 };
    oari_ckpt_wanted wanted = { .target = 0 };
    uint64_t element = oar_dtype_size(t->dtype);
    oar_status status;

    for (int64_t i = 0; i < t->chunks; i++) {
        const oari_ckpt_index_chunk *c = &index->chunk[t->first + i];
        oari_box box = oari_ckpt_index_box(index, t, c);
        const oari_ckpt_index_file *f = &index->file[c->file];

        FUZZ_CHECK(c->file >= 0 && c->file < index->files);
        FUZZ_CHECK(c->at >= f->data && c->at <= f->bytes &&
                   (uint64_t)oari_box_count(&box) * element <=
                       f->bytes - c->at);
    }
    FUZZ_CHECK(oari_ckpt_index_find(index, t->section, t->name) != NULL);
    wanted.box = oari_box_whole(oari_ckpt_index_shape(index, t));
    status = oari_ckpt_read_plan_wanted(&plan, index, t, 1, &wanted);
    FUZZ_CHECK(status == OAR_OK || status == OAR_E_DATA);
    oari_ckpt_read_plan_free(&plan);
}

/* Writes an index and reads it: it must come out as it went in. */
static void check_again(const oari_ckpt_index *index)
{
    oari_json_writer first = { .status = OAR_OK }, second = first;
    oari_ckpt_index again;

    oari_ckpt_index_write(&first, index);
    FUZZ_CHECK(first.status == OAR_OK);
    FUZZ_CHECK(read_index(first.text.data, (size_t)first.text.count, &again) ==
               OAR_OK);
    oari_ckpt_index_write(&second, &again);
    FUZZ_CHECK(second.text.count == first.text.count &&
               memcmp(second.text.data, first.text.data,
                      (size_t)first.text.count) == 0);
    oari_ckpt_index_free(&again);
    oari_vec_free(&first.text);
    oari_vec_free(&second.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + END_BYTES + 1);
    uint64_t live = live_bytes();
    oari_ckpt_index index;
    oar_status status;

    FUZZ_CHECK(text != NULL);
    if (bytes > 0)
        memcpy(text, data, bytes);
    snprintf(text + bytes, END_BYTES + 1, "\"end\":\"%016" PRIx64 "\"}\n",
             oari_block_sum(data, bytes));
    status = read_index(text, bytes + END_BYTES, &index);
    free(text);
    if (status == OAR_OK) {
        FUZZ_CHECK(live_bytes() - live <=
                   4 * (uint64_t)(bytes + END_BYTES) + OVERHEAD);
        check_files(&index);
        for (int64_t i = 0; i < index.tensors; i++)
            check_tensor(&index, &index.tensor[i]);
        for (int64_t i = 0; i < index.aliases; i++)
            FUZZ_CHECK(oari_ckpt_index_find(&index, index.alias[i].section,
                                            index.alias[i].name) != NULL);
        check_again(&index);
        oari_ckpt_index_free(&index);
    } else {
        FUZZ_CHECK(status == OAR_E_DATA || status == OAR_E_UNSUPPORTED);
    }
    FUZZ_CHECK(live_bytes() == live);
    return 0;
}
