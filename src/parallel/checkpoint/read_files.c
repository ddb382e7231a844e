/* SPDX-License-Identifier: Apache-2.0 */
/* read_files: the blocks that a plan needs are numbered file by file; threads
 * take one after the other. A block holds bytes of one range or several, since
 * ranges that are far apart may share one. */
#include "parallel/checkpoint/read_files.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/vec.h"
#include "base/worker.h"
#include "parallel/checkpoint/checkpoint.h"

/* A block that is read, and the plan's ranges that have bytes in it. */
typedef struct read_block {
    int64_t file, number;
    int64_t first_range, ranges;
} read_block;

typedef struct file_reader {
    oari_ckpt_reading *reading;
    int *fd; /* by file; -1: not needed */
    OARI_VEC(read_block) block;
    atomic_llong next;
    atomic_ullong bytes;
    pthread_mutex_t lock;
    oar_status status; /* under the lock: the first failure */
    oar_error error;
} file_reader;

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

static oar_status open_files(file_reader *r)
{
    oari_ckpt_reading *d = r->reading;
    char what[300], name[OARI_CKPT_STEP_NAME];
    oar_status status = OAR_OK;
    int generation;

    oari_ckpt_step_name(d->index->step, name);
    snprintf(what, sizeof what, "%.250s/%s", d->path, name);
    generation = d->disk->open_folder(d->disk, d->folder, name);
    if (generation < 0)
        return oari_fail(OAR_E_NOT_FOUND, "%s is gone", what);
    for (int64_t i = 0; i < r->block.count && status == OAR_OK; i++) {
        int64_t file = r->block.data[i].file;

        if (r->fd[file] < 0)
            status = oari_ckpt_open_file(d->disk, generation, what,
                                         d->index->file[file].path,
                                         OARI_DISK_READ, &r->fd[file]);
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
    oari_ckpt_runs runs;
    oari_ckpt_run run;

    oari_ckpt_runs_start(&runs, &f->box, &f->from.box, &f->to.box, f->element);
    while (oari_ckpt_runs_next(&runs, &run)) {
        uint64_t first = f->from.at + run.from, last = first + run.bytes;
        uint64_t a = first > begin ? first : begin;
        uint64_t b = last < end ? last : end;

        if (first >= end)
            break;
        if (a < b)
            memcpy(to + run.to + (a - first), data + (a - begin), b - a);
    }
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
    OARI_TRY(oari_disk_read(d->disk, r->fd[block->file], data, end - begin,
                            (off_t)begin, f->path));
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
        oari_alloc_aligned(4096, r->reading->index->block_bytes);
    oar_status status = data == NULL ? OAR_E_NOMEM : OAR_OK;

    while (status == OAR_OK) {
        int64_t number = atomic_fetch_add(&r->next, 1);

        if (number >= r->block.count)
            break;
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
    if (r.fd == NULL)
        return OAR_E_NOMEM;
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
    oari_free(r.fd);
    return status;
}
