/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_page: the control pages: where things stand on them, and their end.
 *
 * A page stays as it is until every rank has left it: a stream of a peer may
 * still read the word that stops kernels, and an abort writes to all pages. And
 * memory that was shown is held as long, since peers have it mapped. So a rank
 * that leaves sets both aside, and a later call gives back those that nobody
 * uses any more. A rank that died has not left: what it used is kept until this
 * process ends. */
#include <pthread.h>
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/status.h"
#include "device/segment.h"

enum { VERSION = 1, ALIGN = 64, AHEAD = 1 << 30 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

ipc_layout oari_ipc_layout(int ranks)
{
    size_t n = (size_t)ranks;
    ipc_layout l;

    l.entry = aligned(sizeof(ipc_page));
    l.entry_bytes = aligned(sizeof(ipc_entry) + 2 * n * sizeof(uint64_t));
    l.box = l.entry + IPC_DEPTH * l.entry_bytes;
    l.desk = l.box + n * aligned(sizeof(ipc_box));
    l.bytes = l.desk + n * aligned(sizeof(ipc_desk));
    return l;
}

ipc_entry *oari_ipc_entry(const ipc *self, int rank, uint32_t number)
{
    size_t at = number % IPC_DEPTH * self->layout.entry_bytes;

    return (ipc_entry *)(self->peer[rank].page + self->layout.entry + at);
}

ipc_box *oari_ipc_box(const ipc *self, int from, int to)
{
    size_t at = (size_t)to * aligned(sizeof(ipc_box));

    return (ipc_box *)(self->peer[from].page + self->layout.box + at);
}

ipc_desk *oari_ipc_desk(const ipc *self, int from, int to)
{
    size_t at = (size_t)from * aligned(sizeof(ipc_desk));

    return (ipc_desk *)(self->peer[to].page + self->layout.desk + at);
}

oari_cu_memory oari_ipc_reach(const ipc *self, int rank, const ipc_word *word)
{
    return self->peer[rank].reach +
           ((uintptr_t)word - (uintptr_t)self->peer[rank].page);
}

oari_cu_memory oari_ipc_stop(const ipc *self)
{
    if (self->ranks == 1)
        return 0;
    return oari_ipc_reach(self, 0, &oari_ipc_page(self, 0)->stop);
}

/* ---- giving up ----------------------------------------------------------- */

static void let_go(ipc_word *word, int words, uint32_t number)
{
    for (int i = 0; i < words; i++)
        atomic_store(&word[i], number);
}

/* Words of messages with one peer, both ways. */
static void release_messages(ipc *self, int peer)
{
    ipc_box *in = oari_ipc_box(self, peer, self->rank);
    ipc_box *out = oari_ipc_box(self, self->rank, peer);

    let_go(in->ready, IPC_BOX, atomic_load(&in->sent) + AHEAD);
    let_go(oari_ipc_desk(self, self->rank, peer)->done, IPC_BOX,
           atomic_load(&out->sent) + AHEAD);
}

/* The stop comes first: a kernel that is let go by what follows sees it. Peers
 * are let go too; they see the stop before they take anything for done. */
void oari_ipc_release(ipc *self)
{
    uint32_t number = atomic_load(&self->number) + AHEAD;

    if (self->peer == NULL || self->peer[0].page == NULL)
        return;
    atomic_store(&oari_ipc_page(self, 0)->stopper, (uint32_t)self->rank + 1);
    atomic_store(&oari_ipc_page(self, 0)->stop, 1);
    for (int r = 0; r < self->ranks; r++) {
        if (self->peer[r].page == NULL)
            continue;
        let_go(oari_ipc_page(self, r)->ready, IPC_DEPTH, number);
        let_go(oari_ipc_page(self, r)->done, IPC_DEPTH, number);
        release_messages(self, r);
    }
}

int oari_ipc_stopper(const ipc *self)
{
    ipc_page *first = oari_ipc_page(self, 0);

    if (!atomic_load(&first->stop))
        return -1;
    return (int)atomic_load(&first->stopper) - 1;
}

/* ---- life ---------------------------------------------------------------- */

typedef struct aside {
    struct aside *next;
    ipc_page *page;
    ipc_shown *shown;
    uint32_t users;
} aside;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static aside *set_aside; /* under lock */

static void give_back_unused(void)
{
    aside **at = &set_aside;

    pthread_mutex_lock(&lock);
    while (*at != NULL) {
        aside *a = *at;

        if (atomic_load(&a->page->left) < a->users) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        oari_ipc_forget_shown(a->shown);
        oari_segment_free(a->page);
        oari_free(a);
    }
    pthread_mutex_unlock(&lock);
}

oar_status oari_ipc_page_make(ipc *self)
{
    void *made;

    give_back_unused();
    self->layout = oari_ipc_layout(self->ranks);
    OARI_TRY(oari_segment_alloc(self->layout.bytes, &made));
    memset(made, 0, self->layout.bytes);
    ((ipc_page *)made)->version = VERSION;
    self->peer[self->rank].page = made;
    return OAR_OK;
}

/* Without memory to remember them by, they are simply kept. */
static void put_aside(ipc_page *page, ipc_shown *shown, int ranks)
{
    aside *a = oari_alloc(1, sizeof *a);

    if (a == NULL)
        return;
    a->page = page;
    a->shown = shown;
    a->users = (uint32_t)ranks;
    pthread_mutex_lock(&lock);
    a->next = set_aside;
    set_aside = a;
    pthread_mutex_unlock(&lock);
    give_back_unused();
}

void oari_ipc_page_leave(ipc *self)
{
    ipc_page *mine = oari_ipc_page(self, self->rank);

    for (int r = 0; r < self->ranks; r++)
        if (self->peer[r].page != NULL)
            atomic_fetch_add(&oari_ipc_page(self, r)->left, 1);
    if (mine != NULL)
        put_aside(mine, self->shown, self->ranks);
    self->shown = NULL;
}
