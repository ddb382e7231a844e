/* SPDX-License-Identifier: Apache-2.0 */
/* standin/ipc.c: device memory of another process. A handle says which
 * descriptor of which process it is; the ledger behind the bytes says which
 * processes map them. Freeing what a living process still maps is undefined
 * with the real driver, and ends the process here, unless STANDIN_IPC_FREE=1.
 * With STANDIN_IPC_ONCE=1 mapping what this process has mapped already ends it,
 * too: the driver counts mappings, but compute-sanitizer does not, and reports
 * what is used after the first of two is closed. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin/driver.h"

enum { LAZY_ENABLE_PEER_ACCESS = 1, MAGIC = 0x5354494e };

typedef struct ipc_note {
    uint32_t magic;
    int32_t pid, fd, device;
    uint64_t bytes, key;
} ipc_note;
_Static_assert(sizeof(ipc_note) <= sizeof(oari_cu_ipc), "handle");

void standin_check_unshared(const block *b);

/* A process that has ended but is not yet waited for does not count. */
static int is_alive(int pid)
{
    char path[64], text[256] = "", *state;
    FILE *file;
    if (kill(pid, 0))
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (!fgets(text, sizeof text, file))
        text[0] = 0;
    fclose(file);
    state = strrchr(text, ')');
    return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

void standin_check_unshared(const block *b)
{
    if (standin_setting("STANDIN_IPC_FREE", 0))
        return;
    for (int i = 0; i < STANDIN_MOST_PEERS; i++) {
        int pid = __atomic_load_n(&b->ledger->peer[i], __ATOMIC_ACQUIRE);
        if (pid != 0 && is_alive(pid))
            standin_die("memory of %zu bytes is freed while process %d has it "
                        "mapped by IPC",
                        b->bytes, pid);
    }
}

static int sign(block_ledger *ledger, int from, int to)
{
    for (int i = 0; i < STANDIN_MOST_PEERS; i++) {
        int32_t expected = from;
        if (__atomic_compare_exchange_n(&ledger->peer[i], &expected, to, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 0;
    }
    return OARI_CU_OUT_OF_MEMORY;
}

int cuIpcGetMemHandle(oari_cu_ipc *handle, oari_cu_memory memory)
{
    context *c;
    block *b;
    ipc_note note = { .magic = MAGIC, .pid = (int32_t)getpid() };
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    b = standin_find(memory, 1);
    if (b && b->kind == BLOCK_DEVICE && b->address == memory) {
        note.fd = b->fd;
        note.device = b->owner->device;
        note.bytes = b->bytes;
        note.key = b->key;
    } else
        bad = OARI_CU_INVALID_VALUE;
    pthread_mutex_unlock(&standin_lock);
    if (!bad) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &note, sizeof note);
    }
    return bad;
}

/* Locked. A descriptor of that number may be another file by now. */
static block *map_peer(context *c, const ipc_note *note)
{
    char path[64];
    block *b = calloc(1, sizeof *b);
    b->kind = BLOCK_PEER;
    b->bytes = note->bytes;
    b->key = note->key;
    b->owner = c;
    b->opens = 1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", note->pid, note->fd);
    b->fd = open(path, O_RDWR | O_CLOEXEC);
    if (b->fd < 0 || standin_map(b) || b->ledger->key != note->key ||
        b->ledger->freed || sign(b->ledger, 0, (int)getpid())) {
        standin_unmap(b);
        free(b);
        return NULL;
    }
    close(b->fd);
    b->fd = -1;
    return b;
}

/* Locked. */
static int open_peer(context *c, const ipc_note *note, oari_cu_memory *memory)
{
    block *b = standin_find_key(note->key);
    if (b && b->owner != c)
        return CU_INVALID_CONTEXT; /* one context of a process */
    if (b && standin_setting("STANDIN_IPC_ONCE", 0))
        standin_die("memory of %zu bytes is mapped by IPC twice", b->bytes);
    if (b)
        b->opens++;
    else {
        b = map_peer(c, note);
        if (!b)
            return OARI_CU_INVALID_VALUE;
        standin_list(b);
        c->peers |= 1u << note->device;
    }
    *memory = b->address;
    return OARI_CU_SUCCESS;
}

int cuIpcOpenMemHandle_v2(oari_cu_memory *memory, oari_cu_ipc handle,
                          unsigned flags)
{
    context *c;
    ipc_note note;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    memcpy(&note, &handle, sizeof note);
    if (note.magic != MAGIC || flags != LAZY_ENABLE_PEER_ACCESS)
        return OARI_CU_INVALID_VALUE;
    if (note.pid == (int32_t)getpid())
        return CU_INVALID_CONTEXT; /* its own memory */
    pthread_mutex_lock(&standin_lock);
    bad = open_peer(c, &note, memory);
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuIpcCloseMemHandle(oari_cu_memory memory)
{
    context *c;
    block *b;
    int last = 0, bad = standin_enter(&c);
    if (bad)
        return bad;
    standin_drain(c);
    pthread_mutex_lock(&standin_lock);
    b = standin_find(memory, 1);
    if (b && (b->kind != BLOCK_PEER || b->address != memory))
        b = NULL;
    if (b)
        last = --b->opens == 0;
    if (last)
        standin_unlist(memory, BLOCK_PEER);
    pthread_mutex_unlock(&standin_lock);
    if (last) {
        sign(b->ledger, (int)getpid(), 0);
        standin_unmap(b);
        free(b);
    }
    return b ? OARI_CU_SUCCESS : OARI_CU_INVALID_VALUE;
}
