/* SPDX-License-Identifier: Apache-2.0 */
/* save_staging: the lock guards counts and flags; the bytes of a block belong
 * to the thread that copies until it is counted as copied, then to the one that
 * has taken it. */
#include "parallel/checkpoint/save_staging.h"

#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/status.h"

enum { ALIGN = 4096, HUGE_PAGE = 2 << 20 };

void oari_ckpt_staging_init(oari_ckpt_staging *staging)
{
    memset(staging, 0, sizeof *staging);
    pthread_mutex_init(&staging->lock, NULL);
    pthread_cond_init(&staging->changed, NULL);
}

void oari_ckpt_staging_free(oari_ckpt_staging *staging)
{
    oari_free(staging->memory);
    oari_free(staging->place);
    oari_free(staging->written);
    pthread_cond_destroy(&staging->changed);
    pthread_mutex_destroy(&staging->lock);
}

/* ---- places -------------------------------------------------------------- */

static uint64_t room_of(const oari_ckpt_images *images, int64_t block)
{
    oari_ckpt_image_block b = oari_ckpt_image_block_at(images, block);

    return (b.end - b.begin + ALIGN - 1) / ALIGN * ALIGN;
}

/* Takes memory of at least so many bytes. */
static oar_status grow_memory(oari_ckpt_staging *s, uint64_t bytes)
{
    if (bytes <= s->bytes)
        return OAR_OK;
    oari_free(s->memory);
    s->bytes = 0;
    s->memory = oari_alloc_aligned(bytes < HUGE_PAGE ? ALIGN : HUGE_PAGE,
                                   (size_t)bytes);
    if (s->memory == NULL)
        return OAR_E_NOMEM;
    s->bytes = (size_t)bytes;
    if (bytes >= HUGE_PAGE) /* a hint: the first copy is faster */
        (void)madvise(s->memory, s->bytes, MADV_HUGEPAGE);
    return OAR_OK;
}

oar_status oari_ckpt_staging_begin(oari_ckpt_staging *s,
                                   const oari_ckpt_images *images, size_t limit)
{
    uint64_t all = 0, largest = 0, at = 0;

    oari_free(s->place);
    oari_free(s->written);
    s->blocks = images->blocks;
    s->copied = s->oldest = 0;
    s->stopped = 0;
    s->failure.status = OAR_OK;
    s->place = oari_alloc((size_t)s->blocks + 1, sizeof *s->place);
    s->written = oari_alloc((size_t)s->blocks, 1);
    if (s->place == NULL || s->written == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < s->blocks; i++) {
        uint64_t room = room_of(images, i);

        all += room;
        if (room > largest)
            largest = room;
    }
    if (limit > 0 && all > limit)
        all = limit / ALIGN * ALIGN;
    OARI_TRY(grow_memory(s, all > largest ? all : largest));
    for (int64_t i = 0; i < s->blocks; i++) {
        uint64_t room = room_of(images, i);

        if (at % s->bytes + room > s->bytes)
            at = (at / s->bytes + 1) * s->bytes;
        s->place[i] = at;
        at += room;
    }
    s->place[s->blocks] = at;
    return OAR_OK;
}

int oari_ckpt_staging_holds_all(const oari_ckpt_staging *staging)
{
    return staging->place[staging->blocks] <= staging->bytes;
}

/* ---- copying and writing ------------------------------------------------- */

void oari_ckpt_staging_stop(oari_ckpt_staging *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Waits until there is room for a block. Returns whether there is. */
static int await_room(oari_ckpt_staging *s, int64_t block, uint64_t room)
{
    int there;

    pthread_mutex_lock(&s->lock);
    while (!s->stopped &&
           s->place[block] + room - s->place[s->oldest] > s->bytes)
        pthread_cond_wait(&s->changed, &s->lock);
    there = !s->stopped;
    pthread_mutex_unlock(&s->lock);
    return there;
}

oar_status oari_ckpt_staging_copy(oari_ckpt_staging *s,
                                  const oari_ckpt_images *images,
                                  oari_ckpt_array_fn *find, void *arg)
{
    for (int64_t i = 0; i < s->blocks; i++) {
        oar_status status;

        if (!await_room(s, i, room_of(images, i)))
            return OAR_OK;
        status = oari_ckpt_image_fill(images, i, find, arg,
                                      s->memory + s->place[i] % s->bytes);
        if (status != OAR_OK) {
            pthread_mutex_lock(&s->lock);
            s->failure = *oar_last_error();
            pthread_mutex_unlock(&s->lock);
            oari_ckpt_staging_stop(s);
            return status;
        }
        pthread_mutex_lock(&s->lock);
        s->copied = i + 1;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    return OAR_OK;
}

oar_status oari_ckpt_staging_take(oari_ckpt_staging *s, int64_t block,
                                  const unsigned char **bytes)
{
    oar_status status = OAR_OK;

    pthread_mutex_lock(&s->lock);
    while (!s->stopped && s->copied <= block)
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->stopped)
        status = s->failure.status != OAR_OK
                     ? oari_fail_with(&s->failure)
                     : oari_fail(OAR_E_STATE, "a save was stopped");
    pthread_mutex_unlock(&s->lock);
    *bytes = s->memory + s->place[block] % s->bytes;
    return status;
}

void oari_ckpt_staging_written(oari_ckpt_staging *s, int64_t block)
{
    pthread_mutex_lock(&s->lock);
    s->written[block] = 1;
    while (s->oldest < s->blocks && s->written[s->oldest])
        s->oldest++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}
