/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_mapping: the mappings of other processes' device memory, one for all
 * groups of this process. (The driver counts mappings, but compute-sanitizer
 * does not: it takes memory for unmapped when one of two is closed.) An
 * allocation is known by its id and its handle: ids are unique in a process,
 * handles name it.
 *
 * The lock is not held while the driver maps or unmaps, which may wait for the
 * GPU. So two groups may map the same memory at once; then one of them uses the
 * other's mapping. */
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

/* Returns the mapping that exists, used by one more; or NULL. Under lock. */
static ipc_mapping *share_mapping(int device, const ipc_memory *memory)
{
    for (ipc_mapping *m = mappings; m != NULL; m = m->next)
        if (m->id == memory->id && m->device == device &&
            memcmp(&m->handle, &memory->handle, sizeof m->handle) == 0) {
            m->users++;
            return m;
        }
    return NULL;
}

static oar_status make_mapping(const ipc *self, const ipc_memory *memory,
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

oar_status oari_ipc_mapping_open(const ipc *self, const ipc_memory *memory,
                                 ipc_mapping **mapping, oari_cu_memory *here)
{
    ipc_mapping *m, *mine = NULL;

    pthread_mutex_lock(&lock);
    m = share_mapping(self->device, memory);
    pthread_mutex_unlock(&lock);
    if (m == NULL) {
        OARI_TRY(make_mapping(self, memory, &mine));
        pthread_mutex_lock(&lock);
        m = share_mapping(self->device, memory); /* of a faster group */
        if (m == NULL) {
            mine->next = mappings;
            mappings = m = mine;
        }
        pthread_mutex_unlock(&lock);
        if (m != mine) {
            self->cu->IpcCloseMemHandle(mine->here);
            oari_free(mine);
        }
    }
    *mapping = m;
    *here = m->here;
    return OAR_OK;
}

void oari_ipc_mapping_close(const ipc *self, ipc_mapping *mapping)
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
    if (last) {
        self->cu->IpcCloseMemHandle(mapping->here);
        oari_free(mapping);
    }
}
