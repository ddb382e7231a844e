/* SPDX-License-Identifier: Apache-2.0 */
/* A trace file as another process, or a disk, may have left it: pieces of the
 * input are laid over a good one, where its head, names, groups and events are.
 * What is read can be shown: texts are UTF-8, and times run forward. */
#include <fcntl.h>
#include <stddef.h>

#include "scratch.h"

#include <oarsong/trace_read.h>

#include "base/trace.h"
#include "base/utf8.h"

enum { PLACES = 4, WINDOW = 1024, EVENTS = 16 };

static oari_trace_file *file, *good;
static size_t file_bytes;

static void make_good(void)
{
    good = aligned_alloc(_Alignof(oari_trace_file), file_bytes);
    FUZZ_CHECK(good != NULL);
    memset(good, 0, file_bytes);
    memcpy(good->head.magic, oari_trace_magic, sizeof good->head.magic);
    good->head.version = OARI_TRACE_VERSION;
    good->head.chunks = 1;
    good->head.ticks_per_second = 1e9;
    good->head.world = 2;
    atomic_store(&good->head.names, 8);
    memcpy(good->name, "\0linear", 8);
    atomic_store(&good->head.groups, 2);
    good->group[1].ranks = 2;
    memcpy(good->group[1].name, "world", 6);
    atomic_store(&good->head.one_in, 1);
    atomic_store(&good->head.taken, 1);
    for (int i = 0; i < EVENTS; i++) {
        oari_trace_event *e = &good->chunk[0].event[i];

        e->kind = (uint8_t)(1 + i % (OARI_TRACE_KINDS - 1));
        e->name = (uint16_t)(i % 2);
        e->group = (uint16_t)(i % 2);
        e->duration = (uint32_t)i;
        e->number = (uint32_t)i;
        atomic_store(&e->start, (uint64_t)i + 1);
    }
}

static void make_file(void)
{
    int fd;

    scratch_open();
    snprintf(scratch_path, sizeof scratch_path, "%s/rank-0" OARI_TRACE_SUFFIX,
             scratch_folder);
    file_bytes = offsetof(oari_trace_file, chunk) + OARI_TRACE_CHUNK_BYTES;
    fd = open(scratch_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)file_bytes) == 0);
    file = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(file != MAP_FAILED);
    close(fd);
    make_good();
    memcpy(file, good, file_bytes);
}

static void check_text(const char *text)
{
    size_t left = strlen(text), n;
    uint32_t point;

    for (; left > 0; text += n, left -= n) {
        n = oari_utf8_read(text, left, &point);
        FUZZ_CHECK(n > 0);
    }
}

static void read_all(const oar_trace *t)
{
    oar_trace_event e = oar_trace_event_init();
    oar_trace_process p = oar_trace_process_init();
    int64_t last = 0;

    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        FUZZ_CHECK(oar_trace_event_at(t, i, &e) == OAR_OK);
        FUZZ_CHECK(e.start_ns >= last && e.end_ns >= e.start_ns);
        last = e.start_ns;
        check_text(e.name);
        check_text(e.group);
    }
    FUZZ_CHECK(oar_trace_process_at(t, 0, &p) == OAR_OK);
    check_text(p.host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t start[PLACES];
    oar_trace *t;

    if (file == NULL)
        make_file();
    start[0] = 0;
    start[1] = offsetof(oari_trace_file, name);
    start[2] = offsetof(oari_trace_file, group) + sizeof(oari_trace_group);
    start[3] = offsetof(oari_trace_file, chunk);
    while (bytes > 4) {
        uint16_t at;
        uint8_t where, n;

        fuzz_take(&data, &bytes, &where, 1);
        fuzz_take(&data, &bytes, &at, 2);
        fuzz_take(&data, &bytes, &n, 1);
        fuzz_take(&data, &bytes,
                  (char *)file + start[where % PLACES] + at % WINDOW,
                  n < bytes ? n : bytes);
    }
    if (oar_trace_open(scratch_folder, &t) == OAR_OK) {
        read_all(t);
        oar_trace_close(t);
    }
    for (int i = 0; i < PLACES; i++)
        memcpy((char *)file + start[i], (char *)good + start[i], WINDOW + 256);
    return 0;
}
