/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_page: the control pages: their layout, and how they are freed.
 *
 * A page is kept until every rank has left it: a stream of a peer may still
 * read the word that stops kernels, and an abort writes to all pages. Memory
 * that was exported is held as long, since peers have it mapped. So a rank that
 * leaves retires both, and a later call frees those that no rank uses any more.
 * A rank that died has not left: what it used is kept until this process ends.
 */
#include <pthread.h>
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/status.h"
#include "device/segment.h"

enum { VERSION = 1, ALIGN = 64, AHEAD = 1 << 30 };

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

ipc_entry *oari_ipc_entry(const ipc *self, int rank, uint32_t number)
{
    size_t at = number % IPC_DEPTH * self->layout.entry_bytes;

    return (ipc_entry *)(self->peer[rank].page + self->layout.entry + at);
}

ipc_box *oari_ipc_box(const ipc *self, int from, int to)
{
    size_t at = (size_t)to * align_up(sizeof(ipc_box));

    return (ipc_box *)(self->peer[from].page + self->layout.box + at);
}

ipc_desk *oari_ipc_desk(const ipc *self, int from, int to)
{
    size_t at = (size_t)from * align_up(sizeof(ipc_desk));

    return (ipc_desk *)(self->peer[to].page + self->layout.desk + at);
}

oari_cu_memory oari_ipc_device_word(const ipc *self, int rank,
                                    const ipc_word *word)
{
    return self->peer[rank].device_page +
           ((uintptr_t)word - (uintptr_t)self->peer[rank].page);
}

oari_cu_memory oari_ipc_stop_word(const ipc *self)
{
    if (self->ranks == 1)
        return 0;
    return oari_ipc_device_word(self, 0, &oari_ipc_page(self, 0)->stop);
}

/* ---- giving up ----------------------------------------------------------- */

static void set_words(ipc_word *word, int words, uint32_t number)
{
    for (int i = 0; i < words; i++)
        atomic_store(&word[i], number);
}

/* The stop comes first, so that a kernel that starts because of what follows
 * sees it. The words of peers are set too; peers check the stop before they
 * take anything for done. */
void oari_ipc_stop_streams(ipc *self)
{
    uint32_t number = atomic_load(&self->number) + AHEAD;

    if (self->peer == NULL || self->peer[0].page == NULL)
        return;
    atomic_store(&oari_ipc_page(self, 0)->stopper, (uint32_t)self->rank + 1);
    atomic_store(&oari_ipc_page(self, 0)->stop, 1);
    for (int r = 0; r < self->ranks; r++) {
        ipc_box *in, *out;

        if (self->peer[r].page == NULL)
            continue;
        set_words(oari_ipc_page(self, r)->ready, IPC_DEPTH, number);
        set_words(oari_ipc_page(self, r)->done, IPC_DEPTH, number);
        in = oari_ipc_box(self, r, self->rank);
        out = oari_ipc_box(self, self->rank, r);
        set_words(in->ready, IPC_BOX, atomic_load(&in->sent) + AHEAD);
        set_words(oari_ipc_desk(self, self->rank, r)->done, IPC_BOX,
                  atomic_load(&out->sent) + AHEAD);
    }
}

/* ---- making and retiring ------------------------------------------------- */

typedef struct retired_page {
    struct retired_page *next;
    ipc_page *page;
    ipc_exported *exported;
    uint32_t users;
} retired_page;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static retired_page *retired_pages; /* under lock */

static void free_unused_pages(void)
{
    retired_page **at = &retired_pages;

    pthread_mutex_lock(&lock);
    while (*at != NULL) {
        retired_page *a = *at;

        if (atomic_load(&a->page->left) < a->users) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        oari_ipc_release_exported(a->exported);
        oari_segment_free(a->page);
        oari_free(a);
    }
    pthread_mutex_unlock(&lock);
}

oar_status oari_ipc_page_make(ipc *self)
{
    size_t n = (size_t)self->ranks;
    ipc_layout *l = &self->layout;
    void *made;

    free_unused_pages();
    l->entry = align_up(sizeof(ipc_page));
    l->entry_bytes = align_up(sizeof(ipc_entry) + 2 * n * sizeof(uint64_t));
    l->box = l->entry + IPC_DEPTH * l->entry_bytes;
    l->desk = l->box + n * align_up(sizeof(ipc_box));
    l->bytes = l->desk + n * align_up(sizeof(ipc_desk));
    OARI_TRY(oari_segment_alloc(self->layout.bytes, &made));
    memset(made, 0, self->layout.bytes);
    ((ipc_page *)made)->version = VERSION;
    self->peer[self->rank].page = made;
    return OAR_OK;
}

void oari_ipc_page_leave(ipc *self)
{
    ipc_page *mine = oari_ipc_page(self, self->rank);
    retired_page *a = mine != NULL ? oari_alloc(1, sizeof *a) : NULL;

    for (int r = 0; r < self->ranks; r++)
        if (self->peer[r].page != NULL)
            atomic_fetch_add(&oari_ipc_page(self, r)->left, 1);
    if (a != NULL) { /* else they are kept for good */
        a->page = mine;
        a->exported = self->exported;
        a->users = (uint32_t)self->ranks;
        pthread_mutex_lock(&lock);
        a->next = retired_pages;
        retired_pages = a;
        pthread_mutex_unlock(&lock);
        free_unused_pages();
    }
    self->exported = NULL;
}
