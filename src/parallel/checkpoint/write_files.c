/* SPDX-License-Identifier: Apache-2.0 */
/* write_files: this rank's files of a generation. Threads take one block after
 * the other, sum it up and write it. The first failure stops them all. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/worker.h"
#include "parallel/checkpoint/saving.h"

enum { ALIGN = 4096, BACKGROUND_NICE = 10 };

/* One of the rank's files while it is written. */
typedef struct open_file {
    int fd;
    atomic_int direct;
    char *path; /* for errors */
    oari_ckpt_written *written;
} open_file;

typedef struct file_writer {
    oari_ckpt_saving *saving;
    open_file *file; /* by image */
    atomic_llong next;
    pthread_mutex_t lock;
    oar_status status; /* under the lock: the first failure */
    oar_error error;
} file_writer;

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
            return oari_disk_write_failed(disk, f->fd, bytes - done, f->path);
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

/* Writes a block, which lies in the staging memory or is put together in
 * `buffer`. */
static oar_status write_block(file_writer *w, int64_t number,
                              unsigned char *buffer)
{
    oari_ckpt_saving *s = w->saving;
    oar_checkpoint *c = s->c;
    oari_ckpt_image_block b = oari_ckpt_image_block_at(&s->images, number);
    open_file *f = &w->file[b.file];
    const unsigned char *bytes = buffer;
    int64_t first = s->images.file[b.file].first_block;

    if (s->staged)
        OARI_TRY(oari_ckpt_staging_take(&c->staging, number, &bytes));
    else
        OARI_TRY(oari_ckpt_image_fill(&s->images, number, oari_ckpt_array, s,
                                      buffer));
    f->written->sum.data[number - first] =
        oari_block_sum(bytes, b.end - b.begin);
    OARI_TRY(write_bytes(c->disk, f, bytes, b.end - b.begin, b.begin));
    if (s->staged)
        oari_ckpt_staging_written(&c->staging, number);
    oari_ckpt_slow_renew(c, oari_ckpt_slow_limits.block_ms);
    if (!atomic_load(&f->direct))
        c->disk->flush(c->disk, f->fd, (off_t)b.begin, (off_t)(b.end - b.begin),
                       0);
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
    atomic_store(&w->next, w->saving->images.blocks); /* nothing is left */
    if (w->saving->staged)
        oari_ckpt_staging_stop(&w->saving->c->staging);
}

static void write_blocks(void *arg)
{
    file_writer *w = arg;
    const oari_ckpt_saving *s = w->saving;
    unsigned char *buffer = NULL;
    oar_status status = OAR_OK;

    if (s->opts.background) {
        id_t thread = (id_t)gettid(); /* only this one gives way to training */

        if (getpriority(PRIO_PROCESS, thread) < BACKGROUND_NICE)
            (void)setpriority(PRIO_PROCESS, thread, BACKGROUND_NICE);
    }
    if (!s->staged) {
        buffer = oari_alloc_aligned(ALIGN, s->c->opts.block_bytes);
        status = buffer == NULL ? OAR_E_NOMEM : OAR_OK;
    }
    while (status == OAR_OK) {
        int64_t number = atomic_fetch_add(&w->next, 1);

        if (number >= s->images.blocks)
            break;
        status = write_block(w, number, buffer);
    }
    if (status != OAR_OK)
        keep_failure(w, status);
    oari_free(buffer);
}

/* Writes all blocks. In the background all of them are written by threads that
 * end with it, because their priority cannot be raised again; this one may copy
 * meanwhile. */
static oar_status run_threads(file_writer *w)
{
    int background = w->saving->opts.background;
    int threads = w->saving->c->opts.threads;
    oari_job job[64];
    oari_worker *worker;

    if (threads <= 1 && !background) {
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
    if (w->saving->staged)
        oari_ckpt_background_copy(w->saving);
    oari_worker_destroy(worker, NULL); /* when all blocks are written */
    return w->status == OAR_OK ? OAR_OK : oari_fail_with(&w->error);
}

/* ---- files --------------------------------------------------------------- */

static oar_status open_one(const oari_ckpt_saving *s,
                           const oari_ckpt_image *image, open_file *f)
{
    const oar_checkpoint *c = s->c;
    char what[300];
    size_t room = strlen(c->path) + strlen(image->is->path) + 40;
    int direct = !c->opts.buffered;

    f->path = oari_alloc(room, 1);
    if (f->path == NULL)
        return OAR_E_NOMEM;
    snprintf(f->path, room, "%s/.../%s", c->path, image->is->path);
    snprintf(what, sizeof what, "%.290s", c->path);
    if (direct && oari_ckpt_open_file(
                      c->disk, s->generation, what, image->is->path,
                      OARI_DISK_CREATE | OARI_DISK_DIRECT, &f->fd) == OAR_OK) {
        atomic_store(&f->direct, 1);
        if (c->disk->reserve != NULL)
            c->disk->reserve(c->disk, f->fd, (off_t)f->written->bytes);
        return OAR_OK;
    }
    /* A file system without direct writes says EINVAL; a name that it has made
     * all the same is opened again. */
    if (direct && oar_last_error()->sys_errno != EINVAL)
        return oar_last_error()->status;
    return oari_ckpt_open_file(c->disk, s->generation, what, image->is->path,
                               OARI_DISK_SHARED, &f->fd);
}

static oar_status begin_file(const oari_ckpt_saving *s,
                             const oari_ckpt_image *image, open_file *f)
{
    f->written->data = (uint64_t)image->header.text.count;
    f->written->bytes = image->bytes;
    OARI_TRY(oari_vec_reserve(&f->written->sum, image->blocks));
    f->written->sum.count = image->blocks;
    return open_one(s, image, f);
}

static oar_status finish_file(const oar_checkpoint *c, open_file *f,
                              oar_status status)
{
    int fd = f->fd;

    if (fd >= 0 && status == OAR_OK && !c->opts.no_sync)
        status = oari_disk_finish(c->disk, fd, f->path);
    else if (fd >= 0)
        (void)c->disk->close(c->disk, fd);
    oari_free(f->path);
    return status;
}

oar_status oari_ckpt_write_files(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    file_writer w = { .saving = s };
    oar_status status =
        s->fetched ? oari_ckpt_gpu_copy_wait(&c->gpu_copy) : OAR_OK;
    int files = 0;
    int64_t start;

    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    if (s->written == NULL)
        s->written =
            oari_alloc((size_t)c->layout.file.count, sizeof *s->written);
    w.file = oari_alloc((size_t)s->images.files, sizeof *w.file);
    if (status == OAR_OK && (w.file == NULL || s->written == NULL))
        status = OAR_E_NOMEM;
    pthread_mutex_init(&w.lock, NULL);
    for (; files < s->images.files && status == OAR_OK; files++) {
        const oari_ckpt_image *image = &s->images.file[files];

        w.file[files].fd = -1;
        w.file[files].written = &s->written[image->number];
        status = begin_file(s, image, &w.file[files]);
    }
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.block_ms);
    if (status == OAR_OK)
        status = run_threads(&w);
    start = oari_now_ns();
    for (int i = 0; i < files; i++) {
        oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
        status = finish_file(c, &w.file[i], status);
    }
    s->stats.sync_s = (double)(oari_now_ns() - start) * 1e-9;
    oari_ckpt_slow_end(c);
    pthread_mutex_destroy(&w.lock);
    oari_free(w.file);
    return status;
}
