/* SPDX-License-Identifier: Apache-2.0 */
/* standin/copy.c: copies, fills and values on streams of the stand-in.
 *
 * Host memory that is not pinned is done with when the call returns: what is
 * read of it, up to 64 KiB, is copied aside first; everything else is waited
 * for, as with the real driver. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin/driver.h"

enum { ASIDE_MOST = 64 << 10, POLL_NS = 20000 };

typedef struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch;
    size_t width, height;
    char aside[];
} copy;

static void run_copy(void *arg)
{
    const copy *what = arg;
    for (size_t row = 0; row < what->height; row++)
        memmove(what->to + row * what->to_pitch,
                what->from + row * what->from_pitch, what->width);
}

/* from: of the host memory; what is not pinned no graph can have. */
enum { PINNED, ASIDE, WAITED };

static int put(context *c, oari_cu_stream handle, operation_fn fn, void *arg,
               int from)
{
    operation *op = NULL;
    stream *s;
    int bad = CU_INVALID_HANDLE, wait = from == WAITED;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    if (s && *standin_stream_capture(s) && from != PINNED)
        bad = standin_spoil_capture(*standin_stream_capture(s));
    else if (s)
        op = standin_put_locked(s, fn, arg, NULL);
    pthread_mutex_unlock(&standin_lock);
    if (!op) {
        free(arg);
        return bad;
    }
    if (wait)
        standin_finish(op);
    else
        standin_release(op);
    return OARI_CU_SUCCESS;
}

static copy *make_copy(void *to, const void *from, size_t bytes, int aside)
{
    copy *what = calloc(1, sizeof *what + (aside ? bytes : 0));
    what->to = to;
    what->from = aside ? memcpy(what->aside, from, bytes) : from;
    what->width = bytes;
    what->height = 1;
    return what;
}

/* 1: pinned, 0: ordinary host memory, -1: an address of the device's. */
static int host_kind(const void *memory, size_t bytes)
{
    int kind;
    pthread_mutex_lock(&standin_lock);
    kind = standin_find_host(memory, bytes) != NULL;
    if (!kind && standin_find((uint64_t)(uintptr_t)memory, 1))
        kind = -1;
    pthread_mutex_unlock(&standin_lock);
    return kind;
}

int cuMemcpyHtoDAsync_v2(oari_cu_memory to, const void *from, size_t bytes,
                         oari_cu_stream stream_handle)
{
    context *c;
    void *at = standin_reach(to, bytes);
    int pinned, aside, bad = standin_enter(&c);
    if (bad)
        return bad;
    if (bytes == 0)
        return put(c, stream_handle, NULL, NULL, 0);
    pinned = host_kind(from, bytes);
    if (!at || !from || pinned < 0)
        return OARI_CU_INVALID_VALUE;
    aside = !pinned && bytes <= ASIDE_MOST;
    return put(c, stream_handle, run_copy, make_copy(at, from, bytes, aside),
               pinned  ? PINNED
               : aside ? ASIDE
                       : WAITED);
}

int cuMemcpyDtoHAsync_v2(void *to, oari_cu_memory from, size_t bytes,
                         oari_cu_stream stream_handle)
{
    context *c;
    const void *at = standin_reach(from, bytes);
    int pinned, bad = standin_enter(&c);
    if (bad)
        return bad;
    if (bytes == 0)
        return put(c, stream_handle, NULL, NULL, 0);
    pinned = host_kind(to, bytes);
    if (!at || !to || pinned < 0)
        return OARI_CU_INVALID_VALUE;
    return put(c, stream_handle, run_copy, make_copy(to, at, bytes, 0),
               pinned ? PINNED : WAITED);
}

int cuMemcpyDtoDAsync_v2(oari_cu_memory to, oari_cu_memory from, size_t bytes,
                         oari_cu_stream stream_handle)
{
    context *c;
    void *there = standin_reach(to, bytes);
    const void *here = standin_reach(from, bytes);
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (bytes == 0)
        return put(c, stream_handle, NULL, NULL, 0);
    if (!there || !here)
        return OARI_CU_INVALID_VALUE;
    return put(c, stream_handle, run_copy, make_copy(there, here, bytes, 0), 0);
}

/* Whether memory lies in that context. */
static int belongs(oari_cu_memory memory, context *owner)
{
    block *b;
    int does;
    pthread_mutex_lock(&standin_lock);
    b = standin_find(memory, 1);
    does = b && b->owner == owner;
    pthread_mutex_unlock(&standin_lock);
    return does;
}

int cuMemcpyPeerAsync(oari_cu_memory to, oari_cu_context to_context,
                      oari_cu_memory from, oari_cu_context from_context,
                      size_t bytes, oari_cu_stream stream_handle)
{
    if (bytes && (!belongs(to, to_context) || !belongs(from, from_context)))
        return OARI_CU_INVALID_VALUE;
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream_handle);
}

/* ---- rows ---------------------------------------------------------------- */

/* Where one side of a copy of rows is; *wait: in ordinary memory. NULL: nowhere
 * it may be. */
static char *find_rows(unsigned kind, const void *host, oari_cu_memory device,
                       size_t offset, size_t bytes, int *wait)
{
    int pinned;
    if (kind == OARI_CU_DEVICE)
        return standin_reach(device + offset, bytes);
    if (kind != OARI_CU_HOST || !host)
        return NULL;
    pinned = host_kind((const char *)host + offset, bytes);
    *wait |= pinned == 0;
    return pinned < 0 ? NULL : (char *)(uintptr_t)host + offset;
}

int cuMemcpy2DAsync_v2(const oari_cu_copy2d *p, oari_cu_stream stream_handle)
{
    context *c;
    char *to, *from;
    copy *what;
    int wait = 0, bad = standin_enter(&c);
    if (bad)
        return bad;
    if (p->width == 0 || p->height == 0)
        return put(c, stream_handle, NULL, NULL, 0);
    if (p->from_x + p->width > p->from_pitch ||
        p->to_x + p->width > p->to_pitch)
        return OARI_CU_INVALID_VALUE;
    to = find_rows(p->to_kind, p->to_host, p->to_device,
                   p->to_y * p->to_pitch + p->to_x,
                   (p->height - 1) * p->to_pitch + p->width, &wait);
    from = find_rows(p->from_kind, p->from_host, p->from_device,
                     p->from_y * p->from_pitch + p->from_x,
                     (p->height - 1) * p->from_pitch + p->width, &wait);
    if (!to || !from)
        return OARI_CU_INVALID_VALUE;
    what = make_copy(to, from, p->width, 0);
    what->height = p->height;
    what->to_pitch = p->to_pitch;
    what->from_pitch = p->from_pitch;
    return put(c, stream_handle, run_copy, what, wait ? WAITED : PINNED);
}

/* ---- fills --------------------------------------------------------------- */

typedef struct fill {
    char *to;
    size_t count, each;
    uint32_t value;
} fill;

static void run_fill(void *arg)
{
    const fill *what = arg;
    uint16_t half = (uint16_t)what->value;
    for (size_t i = 0; i < what->count; i++) {
        if (what->each == 1)
            what->to[i] = (char)what->value;
        else if (what->each == 2)
            memcpy(what->to + 2 * i, &half, 2);
        else
            memcpy(what->to + 4 * i, &what->value, 4);
    }
}

static int put_fill(oari_cu_memory to, uint32_t value, size_t each,
                    size_t count, oari_cu_stream stream_handle)
{
    context *c;
    fill *what;
    void *at = standin_reach(to, count * each);
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (count && (!at || to % each))
        return OARI_CU_INVALID_VALUE;
    what = calloc(1, sizeof *what);
    *what = (fill){ .to = at, .count = count, .each = each, .value = value };
    return put(c, stream_handle, run_fill, what, 0);
}

int cuMemsetD8Async(oari_cu_memory to, unsigned char value, size_t count,
                    oari_cu_stream stream_handle)
{
    return put_fill(to, value, 1, count, stream_handle);
}

int cuMemsetD16Async(oari_cu_memory to, unsigned short value, size_t count,
                     oari_cu_stream stream_handle)
{
    return put_fill(to, value, 2, count, stream_handle);
}

int cuMemsetD32Async(oari_cu_memory to, unsigned value, size_t count,
                     oari_cu_stream stream_handle)
{
    return put_fill(to, value, 4, count, stream_handle);
}

/* ---- values -------------------------------------------------------------- */

typedef struct word {
    uint32_t *at;
    uint32_t value;
    unsigned how;
} word;

static int has_come(const word *what)
{
    uint32_t now = __atomic_load_n(what->at, __ATOMIC_ACQUIRE);
    switch (what->how) {
    case 0: return (int32_t)(now - what->value) >= 0;
    case 1: return now == what->value;
    case 2: return (now & what->value) != 0;
    default: return ~(now | what->value) != 0;
    }
}

static void run_wait(void *arg)
{
    const struct timespec pause = { 0, POLL_NS };
    while (!has_come(arg))
        nanosleep(&pause, NULL);
}

static void run_write(void *arg)
{
    const word *what = arg;
    __atomic_store_n(what->at, what->value, __ATOMIC_RELEASE);
}

static int put_word(oari_cu_stream stream_handle, oari_cu_memory at,
                    uint32_t value, unsigned how, operation_fn fn)
{
    context *c;
    word *what;
    void *reached = standin_reach(at, 4);
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (!reached || at % 4)
        return OARI_CU_INVALID_VALUE;
    what = calloc(1, sizeof *what);
    *what = (word){ .at = reached, .value = value, .how = how };
    return put(c, stream_handle, fn, what, 0);
}

int cuStreamWaitValue32_v2(oari_cu_stream stream_handle, oari_cu_memory at,
                           uint32_t value, unsigned flags)
{
    if (flags > 3) /* flushing remote writes is not for all devices */
        return flags & 1u << 30 ? CU_NOT_SUPPORTED : OARI_CU_INVALID_VALUE;
    return put_word(stream_handle, at, value, flags, run_wait);
}

int cuStreamWriteValue32_v2(oari_cu_stream stream_handle, oari_cu_memory at,
                            uint32_t value, unsigned flags)
{
    if (flags > 1)
        return OARI_CU_INVALID_VALUE;
    return put_word(stream_handle, at, value, 0, run_write);
}
