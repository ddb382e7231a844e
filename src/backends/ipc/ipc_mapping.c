/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_mapping: what this process has mapped of other processes' device memory,
 * once for all its groups. (The driver would count. compute-sanitizer does not:
 * it takes for unmapped what one of two has closed.) An allocation is known by
 * its id and its handle: ids are unique in a process, handles name it.
 *
 * The lock is not held while the driver maps or unmaps, which may wait for the
 * GPU. So two groups may map the same memory at once; then one of them takes
 * the other's. */
#include <pthread.h>
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/status.h"

enum { LAZY_PEER_ACCESS = 1 };

struct ipc_mapping {
    ipc_mapping *next;
    uint64_t id;
    oari_cu_ipc handle;
    int device; /* whose context has it */
    int users;  /* groups */
    oari_cu_memory here;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ipc_mapping *mappings; /* under lock */

/* The one that is there, used by one more; or NULL. Under lock. */
static ipc_mapping *join(int device, const ipc_memory *memory)
{
    for (ipc_mapping *m = mappings; m != NULL; m = m->next)
        if (m->id == memory->id && m->device == device &&
            memcmp(&m->handle, &memory->handle, sizeof m->handle) == 0) {
            m->users++;
            return m;
        }
    return NULL;
}

static ipc_mapping *find(int device, const ipc_memory *memory)
{
    ipc_mapping *m;

    pthread_mutex_lock(&lock);
    m = join(device, memory);
    pthread_mutex_unlock(&lock);
    return m;
}

/* Puts mine among them, unless another group was faster: then that one's. */
static ipc_mapping *add(ipc_mapping *mine, const ipc_memory *memory)
{
    ipc_mapping *there;

    pthread_mutex_lock(&lock);
    there = join(mine->device, memory);
    if (there == NULL) {
        mine->next = mappings;
        mappings = there = mine;
    }
    pthread_mutex_unlock(&lock);
    return there;
}

static oar_status map(const ipc *self, const ipc_memory *memory,
                      ipc_mapping **mapping)
{
    ipc_mapping *m = oari_alloc(1, sizeof *m);
    oar_status status;

    if (m == NULL)
        return OAR_E_NOMEM;
    m->id = memory->id;
    m->handle = memory->handle;
    m->device = self->device;
    m->users = 1;
    status = oari_cuda_check(
        self->cu->IpcOpenMemHandle(&m->here, memory->handle, LAZY_PEER_ACCESS),
        "map memory of a peer");
    if (status != OAR_OK) {
        oari_free(m);
        return status;
    }
    *mapping = m;
    return OAR_OK;
}

static void unmap(const ipc *self, ipc_mapping *m)
{
    self->cu->IpcCloseMemHandle(m->here);
    oari_free(m);
}

oar_status oari_ipc_mapping_open(const ipc *self, const ipc_memory *memory,
                                 ipc_mapping **mapping, oari_cu_memory *here)
{
    ipc_mapping *m = find(self->device, memory), *mine;

    if (m == NULL) {
        OARI_TRY(map(self, memory, &mine));
        m = add(mine, memory);
        if (m != mine)
            unmap(self, mine);
    }
    *mapping = m;
    *here = m->here;
    return OAR_OK;
}

/* 1: nobody uses it any more, and it is out of the list. */
static int leave(ipc_mapping *mapping)
{
    ipc_mapping **at = &mappings;
    int last;

    pthread_mutex_lock(&lock);
    last = --mapping->users == 0;
    while (last && *at != mapping)
        at = &(*at)->next;
    if (last)
        *at = mapping->next;
    pthread_mutex_unlock(&lock);
    return last;
}

void oari_ipc_mapping_close(const ipc *self, ipc_mapping *mapping)
{
    if (leave(mapping))
        unmap(self, mapping);
}
