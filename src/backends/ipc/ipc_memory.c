/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_memory: which device memory is exported to peers, and imported from them.
 *
 * An allocation is exported by CUDA's handle for it and by its id, which no
 * other ever has. A peer maps it once, by its base (ipc_mapping.c), and keeps
 * the mapping. Memory that was freed and allocated again may have the same
 * address, but has another id: then mappings of the same range are closed
 * first, which no rank uses any more, since the owner has freed it. Memory that
 * CUDA cannot share (of a stream-ordered pool, or mapped by hand) is not
 * exported. */
#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/status.h"

/* ---- exported ------------------------------------------------------------ */

oar_status oari_ipc_export(ipc *self, const void *data, ipc_memory *memory)
{
    oari_cuda_block block;
    ipc_exported *s;

    OARI_TRY(oari_cuda_find(data, &block));
    for (s = self->exported; s != NULL && s->memory.id != block.id;)
        s = s->next;
    if (s == NULL) {
        if ((s = oari_alloc(1, sizeof *s)) == NULL)
            return OAR_E_NOMEM;
        s->memory.id = block.id;
        s->memory.base = block.base;
        s->memory.bytes = block.bytes;
        oari_cuda_hold(block.base);
        s->unsharable =
            self->cu->IpcGetMemHandle(&s->memory.handle, block.base) != 0;
        if (s->unsharable)
            oari_cuda_unhold(block.base);
        s->next = self->exported;
        self->exported = s;
    }
    *memory = s->memory;
    memory->offset = (uint64_t)(uintptr_t)data - block.base;
    if (s->unsharable && self->ranks > 1)
        memory->id = 0;
    return OAR_OK;
}

/* ---- imported ------------------------------------------------------------ */

/* Closes mappings of a range that is now another allocation's. */
static void close_overlapping(ipc *self, int rank, const ipc_memory *memory)
{
    ipc_imported **at = &self->peer[rank].imported;

    while (*at != NULL) {
        ipc_imported *m = *at;

        if (m->base >= memory->base + memory->bytes ||
            memory->base >= m->base + m->bytes) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        oari_ipc_mapping_close(self, m->mapping);
        oari_free(m);
    }
}

static oar_status open_imported(ipc *self, int rank, const ipc_memory *memory,
                                ipc_imported **imported)
{
    ipc_imported *m = oari_alloc(1, sizeof *m);
    oar_status status;

    if (m == NULL)
        return OAR_E_NOMEM;
    close_overlapping(self, rank, memory);
    m->id = memory->id;
    m->base = memory->base;
    m->bytes = memory->bytes;
    status = oari_ipc_mapping_open(self, memory, &m->mapping, &m->here);
    if (status != OAR_OK) {
        oari_free(m);
        return status;
    }
    m->next = self->peer[rank].imported;
    *imported = self->peer[rank].imported = m;
    return OAR_OK;
}

oar_status oari_ipc_map(ipc *self, int rank, const ipc_memory *memory,
                        oari_cu_memory *here)
{
    ipc_imported *m;

    *here = 0;
    if (memory->id == 0)
        return OAR_OK;
    if (rank == self->rank) {
        *here = memory->base + memory->offset;
        return OAR_OK;
    }
    for (m = self->peer[rank].imported; m != NULL && m->id != memory->id;)
        m = m->next;
    if (m == NULL)
        OARI_TRY(open_imported(self, rank, memory, &m));
    *here = m->here + memory->offset;
    return OAR_OK;
}

/* ---- bounce buffers ------------------------------------------------------ */

oar_status oari_ipc_bounce_reserve(ipc *self, ipc_bounce *bounce, size_t bytes)
{
    void *more;

    if (bounce->bytes >= bytes)
        return OAR_OK;
    OARI_TRY(oar_device_alloc(oari_ipc_device(self), bytes, &more));
    oar_device_free(oari_ipc_device(self), bounce->memory, self->stream);
    bounce->memory = more;
    bounce->bytes = bytes;
    return OAR_OK;
}

/* ---- releasing ----------------------------------------------------------- */

void oari_ipc_release_exported(ipc_exported *exported)
{
    while (exported != NULL) {
        ipc_exported *next = exported->next;

        if (!exported->unsharable)
            oari_cuda_unhold(exported->memory.base);
        oari_free(exported);
        exported = next;
    }
}

void oari_ipc_release_memory(ipc *self)
{
    for (int r = 0; self->peer != NULL && r < self->ranks; r++) {
        ipc_peer *peer = &self->peer[r];
        ipc_imported *m;

        while ((m = peer->imported) != NULL) {
            peer->imported = m->next;
            oari_ipc_mapping_close(self, m->mapping);
            oari_free(m);
        }
        oar_device_free(oari_ipc_device(self), peer->eager, peer->stream);
        for (int i = 0; i < IPC_BOX; i++)
            oar_device_free(oari_ipc_device(self), peer->loose[i],
                            peer->stream);
    }
    oar_device_free(oari_ipc_device(self), self->in_bounce.memory,
                    self->stream);
    oar_device_free(oari_ipc_device(self), self->out_bounce.memory,
                    self->stream);
}
