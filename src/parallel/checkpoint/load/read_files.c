/* SPDX-License-Identifier: Apache-2.0 */
/* read_files: the blocks that a plan needs are numbered file by file; threads
 * take one after the other. A block holds bytes of one range or several, since
 * ranges that are far apart may share one.
 *
 * Blocks are read past the page cache: a copy less, and a disk that is read in
 * whole blocks by several threads needs no read-ahead. What several ranks want
 * is read through the cache, by each of them from another block on, so that the
 * disk gives it once. */
#include "parallel/checkpoint/load/read_files.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/vec.h"
#include "base/worker.h"
#include "parallel/checkpoint/checkpoint.h"

enum { ALIGN = 4096 };

/* A block that is read, and the plan's ranges that have bytes in it. */
typedef struct read_block {
    int64_t file, number;
    int64_t first_range, ranges;
} read_block;

typedef struct file_reader {
    oari_ckpt_reading *reading;
    int *fd;            /* by file; -1: not needed */
    atomic_int *direct; /* by file: it is read past the page cache */
    OARI_VEC(read_block) block;
    int64_t start; /* the block that is read first */
    atomic_llong next;
    atomic_ullong bytes;
    pthread_mutex_t lock;
    oar_status status; /* under the lock: the first failure */
    oar_error error;
} file_reader;

oar_status oari_ckpt_read_plan_wanted(oari_ckpt_read_plan *plan,
                                      const oari_ckpt_index *index,
                                      const oari_ckpt_index_tensor *tensor,
                                      int64_t count,
                                      const oari_ckpt_wanted *wanted)
{
    oari_ckpt_tensor is = { .section = tensor->section,
                            .name = tensor->name,
                            .dtype = tensor->dtype,
                            .whole = oari_ckpt_index_shape(index, tensor) };
    oari_ckpt_stored *stored =
        oari_alloc((size_t)tensor->chunks, sizeof *stored);
    oar_status status;

    if (stored == NULL)
        return OAR_E_NOMEM;
    for (int64_t k = 0; k < tensor->chunks; k++) {
        const oari_ckpt_index_chunk *c = &index->chunk[tensor->first + k];

        stored[k] = (oari_ckpt_stored){ oari_ckpt_index_box(index, tensor, c),
                                        c->file, c->at };
    }
    status = oari_ckpt_read_plan_add(plan, &is, tensor->chunks, stored, count,
                                     wanted);
    oari_free(stored);
    return status;
}

/* ---- which blocks -------------------------------------------------------- */

static oar_status list_blocks(file_reader *r)
{
    const oari_ckpt_read_plan *plan = r->reading->plan;
    uint64_t size = r->reading->index->block_bytes;

    for (int64_t i = 0; i < plan->range.count; i++) {
        const oari_ckpt_range *range = &plan->range.data[i];
        int64_t first = (int64_t)(range->at / size);
        int64_t last = (int64_t)((range->at + range->bytes - 1) / size);

        for (int64_t b = first; range->bytes > 0 && b <= last; b++) {
            read_block *before =
                r->block.count > 0 ? &r->block.data[r->block.count - 1] : NULL;

            if (before != NULL && before->file == range->file &&
                before->number == b) {
                before->ranges = i - before->first_range + 1;
                continue;
            }
            OARI_TRY(oari_vec_push(&r->block,
                                   ((read_block){ range->file, b, i, 1 })));
        }
    }
    return OAR_OK;
}

/* Whether several ranks want the same bytes: they want more, all together, than
 * there are, if each wants as much as this one. */
static int is_shared(const oari_ckpt_reading *d)
{
    uint64_t all = 0;

    for (int64_t i = 0; i < d->index->files; i++)
        all += d->index->file[i].bytes;
    return d->ranks > 1 &&
           d->plan->read_bytes > all / (uint64_t)d->ranks * 5 / 4;
}

static oar_status open_one(file_reader *r, int generation, const char *what,
                           int64_t file, int direct)
{
    oari_ckpt_reading *d = r->reading;
    const char *path = d->index->file[file].path;

    if (direct && oari_ckpt_open_file(d->disk, generation, what, path,
                                      OARI_DISK_READ | OARI_DISK_DIRECT,
                                      &r->fd[file]) == OAR_OK) {
        atomic_store(&r->direct[file], 1);
        return OAR_OK;
    }
    if (direct && oar_last_error()->sys_errno != EINVAL)
        return oar_last_error()->status;
    return oari_ckpt_open_file(d->disk, generation, what, path, OARI_DISK_READ,
                               &r->fd[file]);
}

static oar_status open_files(file_reader *r)
{
    oari_ckpt_reading *d = r->reading;
    char what[300], step[OARI_CKPT_STEP_NAME];
    int shared = is_shared(d), generation;
    oar_status status = OAR_OK;

    r->start = shared ? r->block.count / d->ranks * d->rank : 0;
    oari_ckpt_step_name(d->index->step, step);
    if (d->name != NULL)
        snprintf(what, sizeof what, "%.290s", d->path);
    else
        snprintf(what, sizeof what, "%.250s/%s", d->path, step);
    generation = d->disk->open_folder(d->disk, d->folder,
                                      d->name != NULL ? d->name : step);
    if (generation < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open %s, which was there", what);
    for (int64_t i = 0; i < r->block.count && status == OAR_OK; i++) {
        int64_t file = r->block.data[i].file;

        if (r->fd[file] < 0)
            status =
                open_one(r, generation, what, file, !shared && !d->buffered);
    }
    (void)d->disk->close(d->disk, generation);
    return status;
}

/* ---- one block ----------------------------------------------------------- */

/* Copies what bytes [begin, end) of the file, which lie at `data`, have of a
 * fetch. */
static void copy_fetch(const oari_ckpt_reading *d, const oari_ckpt_fetch *f,
                       uint64_t begin, uint64_t end, const unsigned char *data)
{
    unsigned char *to = (unsigned char *)d->target[f->to.target] + f->to.at;
    oari_box_runs runs;
    oari_box_run run;

    oari_box_runs_start(&runs, &f->box, &f->from.box, &f->to.box, f->element);
    while (oari_box_runs_next(&runs, &run)) {
        uint64_t first = f->from.at + run.from, last = first + run.bytes;
        uint64_t a = first > begin ? first : begin;
        uint64_t b = last < end ? last : end;

        if (first >= end)
            break;
        if (a < b)
            memcpy(to + run.to + (a - first), data + (a - begin), b - a);
    }
}

/* Reads bytes of a file: past the page cache as long as the file system can.
 * The buffer has room up to a multiple of ALIGN. */
static oar_status read_bytes(file_reader *r, int64_t file, unsigned char *data,
                             size_t bytes, uint64_t at)
{
    const oari_disk *disk = r->reading->disk;
    const char *path = r->reading->index->file[file].path;
    size_t done = 0;

    while (done < bytes && atomic_load(&r->direct[file])) {
        size_t aligned = (bytes - done + ALIGN - 1) / ALIGN * ALIGN;
        ssize_t n = disk->read_at(disk, r->fd[file], data + done, aligned,
                                  (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EINVAL)
            return oari_fail(OAR_E_SYSTEM, "read %s", path);
        if (n > 0)
            done += (size_t)n;
        if (done < bytes && (n <= 0 || n % ALIGN != 0)) {
            if (disk->set_direct(disk, r->fd[file], 0) != 0)
                return oari_fail(OAR_E_SYSTEM, "read %s", path);
            atomic_store(&r->direct[file], 0);
        }
    }
    return done >= bytes
               ? OAR_OK
               : oari_disk_read(disk, r->fd[file], data + done, bytes - done,
                                (off_t)(at + done), path);
}

static oar_status read_one(file_reader *r, const read_block *block,
                           unsigned char *data)
{
    oari_ckpt_reading *d = r->reading;
    const oari_ckpt_index_file *f = &d->index->file[block->file];
    uint64_t size = d->index->block_bytes;
    uint64_t begin = (uint64_t)block->number * size, end = begin + size;
    uint64_t sum;

    if (end > f->bytes)
        end = f->bytes;
    OARI_TRY(read_bytes(r, block->file, data, end - begin, begin));
    atomic_fetch_add(&r->bytes, end - begin);
    if (!d->no_verify) {
        sum = oari_block_sum(data, end - begin);
        if (sum != f->sum[block->number])
            return oari_fail(OAR_E_DATA,
                             "%s, step %" PRId64 ": block %" PRId64
                             " of %s (from byte %" PRIu64
                             ") is damaged: its checksum is %016" PRIx64
                             ", the index has %016" PRIx64,
                             d->path, d->index->step, block->number, f->path,
                             begin, sum, f->sum[block->number]);
    }
    for (int64_t i = 0; i < block->ranges; i++) {
        const oari_ckpt_range *range =
            &d->plan->range.data[block->first_range + i];

        for (int64_t k = 0; k < range->count; k++) {
            const oari_ckpt_fetch *fetch =
                &d->plan->fetch.data[range->first + k];

            if (fetch->at >= end)
                break;
            if (fetch->at + fetch->bytes > begin)
                copy_fetch(d, fetch, begin, end, data);
        }
    }
    return OAR_OK;
}

/* ---- threads ------------------------------------------------------------- */

static void keep_failure(file_reader *r, oar_status status)
{
    pthread_mutex_lock(&r->lock);
    if (r->status == OAR_OK) {
        r->status = status;
        r->error = *oar_last_error();
    }
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->next, r->block.count); /* nothing is left */
}

static void read_blocks(void *arg)
{
    file_reader *r = arg;
    unsigned char *data =
        oari_alloc_aligned(ALIGN, r->reading->index->block_bytes);
    oar_status status = data == NULL ? OAR_E_NOMEM : OAR_OK;

    while (status == OAR_OK) {
        int64_t number = atomic_fetch_add(&r->next, 1);

        if (number >= r->block.count)
            break;
        number += r->start;
        if (number >= r->block.count)
            number -= r->block.count;
        status = read_one(r, &r->block.data[number], data);
    }
    if (status != OAR_OK)
        keep_failure(r, status);
    oari_free(data);
}

static oar_status run_threads(file_reader *r)
{
    int threads = r->reading->threads;
    oari_job job[64];
    oari_worker *worker;

    if (threads > r->block.count)
        threads = (int)r->block.count;
    if (threads <= 1) {
        read_blocks(r);
        return r->status;
    }
    OARI_TRY(oari_worker_create(
        &(oari_worker_opts){ .name = "oar-ckpt", .threads = threads },
        &worker));
    for (int i = 0; i < threads; i++) {
        job[i] = (oari_job){ .run = read_blocks, .arg = r };
        if (oari_worker_post(worker, &job[i], 0) != OAR_OK)
            keep_failure(r, oar_last_error()->status);
    }
    oari_worker_destroy(worker, NULL); /* when all blocks are read */
    return r->status == OAR_OK ? OAR_OK : oari_fail_with(&r->error);
}

oar_status oari_ckpt_read_files(oari_ckpt_reading *reading)
{
    int64_t files = reading->index->files;
    file_reader r = { .reading = reading };
    oar_status status;

    r.fd = oari_alloc((size_t)files, sizeof *r.fd);
    r.direct = oari_alloc((size_t)files, sizeof *r.direct);
    if (r.fd == NULL || r.direct == NULL) {
        oari_free(r.fd);
        oari_free(r.direct);
        return OAR_E_NOMEM;
    }
    for (int64_t i = 0; i < files; i++)
        r.fd[i] = -1;
    pthread_mutex_init(&r.lock, NULL);
    status = list_blocks(&r);
    if (status == OAR_OK && r.block.count > 0)
        status = open_files(&r);
    if (status == OAR_OK && r.block.count > 0)
        status = run_threads(&r);
    reading->bytes += atomic_load(&r.bytes);
    for (int64_t i = 0; i < files; i++)
        if (r.fd[i] >= 0)
            (void)reading->disk->close(reading->disk, r.fd[i]);
    pthread_mutex_destroy(&r.lock);
    oari_vec_free(&r.block);
    oari_free(r.direct);
    oari_free(r.fd);
    return status;
}
