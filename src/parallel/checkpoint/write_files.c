/* SPDX-License-Identifier: Apache-2.0 */
/* write_files: this rank's files of a generation. A file is its header and the
 * data of its chunks, cut into blocks; threads take one block after the other,
 * fill a buffer, sum it up and write it. The first failure stops them all. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/worker.h"
#include "file/safetensors_header.h"
#include "parallel/checkpoint/checkpoint.h"

enum {
    ALIGN = 4096,
    BLOCK_MS = 60 * 1000,    /* for a block to be written, */
    SYNC_MS = 30 * 60 * 1000 /* and for a file to be synced */
};

/* One of the rank's files while it is written. */
typedef struct open_file {
    const oari_ckpt_file *is;
    int64_t number; /* in the layout */
    int fd;
    atomic_int direct;
    char *path; /* for errors */
    oari_json_writer header;
    oari_ckpt_written *written;
    const unsigned char **from; /* of each entry: the array of its part */
} open_file;

typedef struct file_writer {
    oar_checkpoint *checkpoint;
    int files;
    open_file *file;
    int64_t *first_block; /* of each file; then the number of all */
    atomic_llong next;
    pthread_mutex_t lock;
    oar_status status; /* under the lock: the first failure */
    oar_error error;
} file_writer;

/* ---- headers ------------------------------------------------------------- */

static void write_sharding(oari_json_writer *w, const oar_checkpoint *c,
                           int64_t file)
{
    const oari_ckpt_file *f = &c->layout.file.data[file];

    oari_json_add(w, "{");
    for (int64_t i = 0; i < f->count; i++) {
        oari_ckpt_file_entry e =
            oari_ckpt_file_entry_at(&c->plan, &c->layout, file, i);

        oari_json_add(w, "%s", i > 0 ? "," : "");
        oari_json_quote(w, e.name);
        oari_json_add(w, ":{\"saved_offsets\":[");
        for (int d = 0; d < e.shape.ndim; d++)
            oari_json_add(w, "%s%" PRId64, d > 0 ? "," : "", e.offset[d]);
        oari_json_add(w, "]}");
    }
    oari_json_add(w, "}");
    oari_json_fill(w, 0, 1);
}

static oar_status write_header(const oar_checkpoint *c, open_file *f,
                               const char *id, int64_t step)
{
    oari_safetensors_row *row = oari_alloc((size_t)f->is->count, sizeof *row);
    oari_json_writer sharding = { 0 };
    char own[128];
    const char *metadata[4][2] = { { "format", "pt" },
                                   { "oarsong", own },
                                   { "DCP_VERSION", "1.0" },
                                   { "DCP_SHARDING_INFO", NULL } };

    if (row == NULL)
        return OAR_E_NOMEM;
    snprintf(own, sizeof own,
             "{\"id\":\"%s\",\"step\":%" PRId64 ",\"rank\":%d}", id, step,
             c->rank);
    for (int64_t i = 0; i < f->is->count; i++) {
        oari_ckpt_file_entry e =
            oari_ckpt_file_entry_at(&c->plan, &c->layout, f->number, i);

        row[i] = (oari_safetensors_row){ .name = e.name,
                                         .begin = e.begin,
                                         .end = e.end,
                                         .dtype = (int8_t)e.dtype,
                                         .ndim = (int8_t)e.shape.ndim };
        memcpy(row[i].dim, e.shape.dim, sizeof e.shape.dim);
    }
    if (f->is->shard) {
        write_sharding(&sharding, c, f->number);
        metadata[3][1] = sharding.text.data;
    }
    if (sharding.status == OAR_OK)
        oari_safetensors_header_write(&f->header, f->is->count, row,
                                      f->is->shard ? 4 : 2,
                                      (const char *const(*)[2])metadata);
    oari_vec_free(&sharding.text);
    oari_free(row);
    return sharding.status != OAR_OK ? sharding.status : f->header.status;
}

/* ---- the bytes of a block ------------------------------------------------ */

static int by_part(const void *key, const void *element)
{
    const oari_ckpt_part *a = key, *b = element;
    int order = oari_ckpt_name_compare(&a->tensor, &b->tensor);

    return order != 0 ? order : oari_ckpt_box_compare(&a->box, &b->box);
}

/* Finds where the parts of a file's entries lie in memory. */
static oar_status find_arrays(const oar_checkpoint *c, open_file *f,
                              const oari_ckpt_part_list *list,
                              const void *const *array)
{
    f->from = oari_alloc((size_t)f->is->count, sizeof *f->from);
    if (f->from == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < f->is->count; i++) {
        int64_t number = c->layout.order[f->is->first + i];
        const oari_ckpt_chunk *chunk = &c->plan.chunk.data[number];
        oari_ckpt_part wanted = { .tensor =
                                      c->plan.tensor.data[chunk->tensor].is,
                                  .box = chunk->part };
        const oari_ckpt_part *part =
            bsearch(&wanted, list->part.data, (size_t)list->part.count,
                    sizeof wanted, by_part);

        if (part == NULL)
            return oari_fail(OAR_E_INTERNAL,
                             "a checkpoint's plan has %s %s, which this rank "
                             "does not hold",
                             oari_ckpt_name_text(&wanted.tensor).text,
                             oari_ckpt_box_text(&chunk->part).text);
        f->from[i] = (const unsigned char *)array[part->item] +
                     (uint64_t)part->first * oar_dtype_size(part->tensor.dtype);
    }
    return OAR_OK;
}

/* Copies what bytes [begin, end) of the file have of an entry. */
static void fill_entry(const oar_checkpoint *c, const open_file *f,
                       int64_t entry, uint64_t begin, uint64_t end,
                       unsigned char *block)
{
    oari_ckpt_file_entry e =
        oari_ckpt_file_entry_at(&c->plan, &c->layout, f->number, entry);
    const oari_ckpt_chunk *chunk = &c->plan.chunk.data[e.chunk];
    uint64_t data = (uint64_t)f->header.text.count + e.begin;
    oari_ckpt_runs runs;
    oari_ckpt_run run;

    oari_ckpt_runs_start(&runs, &chunk->box, &chunk->part, &chunk->box,
                         oar_dtype_size(e.dtype));
    while (oari_ckpt_runs_next(&runs, &run)) {
        uint64_t first = data + run.to, last = first + run.bytes;
        uint64_t a = first > begin ? first : begin;
        uint64_t b = last < end ? last : end;

        if (first >= end)
            break;
        if (a < b)
            memcpy(block + (a - begin), f->from[entry] + run.from + (a - first),
                   b - a);
    }
}

static void fill_block(const oar_checkpoint *c, const open_file *f,
                       uint64_t begin, uint64_t end, unsigned char *block)
{
    uint64_t header = (uint64_t)f->header.text.count;
    int64_t low = 0, high = f->is->count;

    if (begin < header)
        memcpy(block, f->header.text.data + begin,
               (end < header ? end : header) - begin);
    /* the first entry that ends behind `begin` */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (header +
                oari_ckpt_file_entry_at(&c->plan, &c->layout, f->number, middle)
                    .end <=
            begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < f->is->count; low++) {
        if (header +
                oari_ckpt_file_entry_at(&c->plan, &c->layout, f->number, low)
                    .begin >=
            end)
            break;
        fill_entry(c, f, low, begin, end, block);
    }
}

/* ---- writing ------------------------------------------------------------- */

/* Writes bytes; past the page cache where they are aligned and the file system
 * can, through it from the first time that it cannot. */
static oar_status write_bytes(const oari_disk *disk, open_file *f,
                              const unsigned char *data, size_t bytes,
                              uint64_t at)
{
    size_t done = 0;

    while (done < bytes && atomic_load(&f->direct)) {
        size_t aligned = (bytes - done) / ALIGN * ALIGN;
        ssize_t n;

        if (aligned == 0)
            break; /* the rest is the end of the file */
        n = disk->write_at(disk, f->fd, data + done, aligned,
                           (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EINVAL)
            return oari_fail(OAR_E_SYSTEM, "write %zu bytes to %s",
                             bytes - done, f->path);
        if (n > 0)
            done += (size_t)n;
        if (n <= 0 || n % ALIGN != 0)
            atomic_store(&f->direct, 0);
    }
    if (done == bytes)
        return OAR_OK;
    if (disk->set_direct(disk, f->fd, 0) != 0)
        return oari_fail(OAR_E_SYSTEM, "write to %s", f->path);
    atomic_store(&f->direct, 0);
    return oari_disk_write(disk, f->fd, data + done, bytes - done,
                           (off_t)(at + done), f->path);
}

static oar_status write_block(file_writer *w, open_file *f, int64_t number,
                              unsigned char *block)
{
    oar_checkpoint *c = w->checkpoint;
    uint64_t begin = (uint64_t)number * c->opts.block_bytes;
    uint64_t end = begin + c->opts.block_bytes;

    if (end > f->written->bytes)
        end = f->written->bytes;
    fill_block(c, f, begin, end, block);
    f->written->sum.data[number] = oari_block_sum(block, end - begin);
    OARI_TRY(write_bytes(c->disk, f, block, end - begin, begin));
    oari_ckpt_slow_renew(c, BLOCK_MS);
    if (!atomic_load(&f->direct))
        c->disk->flush(c->disk, f->fd, (off_t)begin, (off_t)(end - begin), 0);
    return OAR_OK;
}

static void keep_failure(file_writer *w, oar_status status)
{
    pthread_mutex_lock(&w->lock);
    if (w->status == OAR_OK) {
        w->status = status;
        w->error = *oar_last_error();
    }
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->next, w->first_block[w->files]); /* nothing is left */
}

static void write_blocks(void *arg)
{
    file_writer *w = arg;
    unsigned char *block =
        oari_alloc_aligned(ALIGN, w->checkpoint->opts.block_bytes);
    oar_status status = block == NULL ? OAR_E_NOMEM : OAR_OK;
    int file = 0;

    while (status == OAR_OK) {
        int64_t number = atomic_fetch_add(&w->next, 1);

        if (number >= w->first_block[w->files])
            break;
        while (number >= w->first_block[file + 1])
            file++;
        status = write_block(w, &w->file[file], number - w->first_block[file],
                             block);
    }
    if (status != OAR_OK)
        keep_failure(w, status);
    oari_free(block);
}

static oar_status run_threads(file_writer *w)
{
    int threads = w->checkpoint->opts.threads;
    oari_job job[64];
    oari_worker *worker;

    if (threads <= 1) {
        write_blocks(w);
        return w->status;
    }
    OARI_TRY(oari_worker_create(
        &(oari_worker_opts){ .name = "oar-ckpt", .threads = threads },
        &worker));
    for (int i = 0; i < threads; i++) {
        job[i] = (oari_job){ .run = write_blocks, .arg = w };
        if (oari_worker_post(worker, &job[i], 0) != OAR_OK)
            keep_failure(w, oar_last_error()->status);
    }
    oari_worker_destroy(worker, NULL); /* when all blocks are written */
    return w->status == OAR_OK ? OAR_OK : oari_fail_with(&w->error);
}

/* ---- files --------------------------------------------------------------- */

static oar_status open_one(oar_checkpoint *c, int generation, open_file *f)
{
    char what[300];
    size_t room = strlen(c->path) + strlen(f->is->path) + 40;
    int direct = !c->opts.buffered;

    f->path = oari_alloc(room, 1);
    if (f->path == NULL)
        return OAR_E_NOMEM;
    snprintf(f->path, room, "%s/.../%s", c->path, f->is->path);
    snprintf(what, sizeof what, "%.290s", c->path);
    if (direct && oari_ckpt_open_file(c->disk, generation, what, f->is->path,
                                      OARI_DISK_CREATE | OARI_DISK_DIRECT,
                                      &f->fd) == OAR_OK) {
        atomic_store(&f->direct, 1);
        return OAR_OK;
    }
    /* A file system without direct writes says EINVAL; a name that it has made
     * all the same is opened again. */
    if (direct && oar_last_error()->sys_errno != EINVAL)
        return oar_last_error()->status;
    return oari_ckpt_open_file(c->disk, generation, what, f->is->path,
                               OARI_DISK_SHARED, &f->fd);
}

static oar_status begin_file(file_writer *w, int generation, const char *id,
                             int64_t step, const oari_ckpt_part_list *list,
                             const void *const *array, open_file *f)
{
    oar_checkpoint *c = w->checkpoint;
    int64_t blocks;

    OARI_TRY(write_header(c, f, id, step));
    OARI_TRY(find_arrays(c, f, list, array));
    f->written->data = (uint64_t)f->header.text.count;
    f->written->bytes = f->written->data + f->is->data_bytes;
    blocks = (int64_t)((f->written->bytes + c->opts.block_bytes - 1) /
                       c->opts.block_bytes);
    OARI_TRY(oari_vec_reserve(&f->written->sum, blocks));
    f->written->sum.count = blocks;
    return open_one(c, generation, f);
}

static oar_status finish_file(const oar_checkpoint *c, open_file *f,
                              oar_status status)
{
    int fd = f->fd;

    if (fd >= 0 && status == OAR_OK && !c->opts.no_sync)
        status = oari_disk_finish(c->disk, fd, f->path);
    else if (fd >= 0)
        (void)c->disk->close(c->disk, fd);
    f->fd = -1;
    oari_vec_free(&f->header.text);
    oari_free(f->from);
    oari_free(f->path);
    return status;
}

oar_status oari_ckpt_write_files(oar_checkpoint *c, int generation,
                                 const char *id, int64_t step,
                                 const oari_ckpt_part_list *list,
                                 const void *const *array,
                                 oari_ckpt_written *written)
{
    int64_t all = c->layout.file.count;
    file_writer w = { .checkpoint = c };
    oar_status status = OAR_OK;

    w.file = oari_alloc((size_t)all, sizeof *w.file);
    w.first_block = oari_alloc((size_t)all + 1, sizeof *w.first_block);
    if (w.file == NULL || w.first_block == NULL)
        status = OAR_E_NOMEM;
    pthread_mutex_init(&w.lock, NULL);
    for (int64_t i = 0; i < all && status == OAR_OK; i++) {
        open_file *f = &w.file[w.files];

        if (c->layout.file.data[i].writer != c->rank)
            continue;
        f->is = &c->layout.file.data[i];
        f->number = i;
        f->fd = -1;
        f->written = &written[i];
        w.files++;
        status = begin_file(&w, generation, id, step, list, array, f);
        w.first_block[w.files] =
            w.first_block[w.files - 1] + f->written->sum.count;
    }
    oari_ckpt_slow_begin(c, BLOCK_MS);
    if (status == OAR_OK)
        status = run_threads(&w);
    for (int i = 0; i < w.files; i++) {
        oari_ckpt_slow_begin(c, SYNC_MS);
        status = finish_file(c, &w.file[i], status);
    }
    oari_ckpt_slow_end(c);
    pthread_mutex_destroy(&w.lock);
    oari_free(w.first_block);
    oari_free(w.file);
    return status;
}
