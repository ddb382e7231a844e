/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_memory: whose device memory is where.
 *
 * An allocation is shown by CUDA's handle for it and by its id, which no other
 * ever has. A peer maps it once, by its base (ipc_mapping.c), and keeps it.
 * Memory that was freed and allocated anew may have the same address, but has
 * another id: then what is mapped of the same range is closed first, which
 * nobody uses any more, since its owner has freed it. Memory that CUDA cannot
 * share (of a stream-ordered pool, or mapped by hand) is not shown. */
#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/status.h"

/* ---- mine ---------------------------------------------------------------- */

static ipc_shown *find_shown(const ipc *self, uint64_t id)
{
    for (ipc_shown *s = self->shown; s != NULL; s = s->next)
        if (s->memory.id == id)
            return s;
    return NULL;
}

static ipc_shown *add_shown(ipc *self, const oari_cuda_block *block)
{
    ipc_shown *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->memory.id = block->id;
    s->memory.base = block->base;
    s->memory.bytes = block->bytes;
    oari_cuda_hold(block->base);
    s->hidden = self->cu->IpcGetMemHandle(&s->memory.handle, block->base) != 0;
    if (s->hidden)
        oari_cuda_unhold(block->base);
    s->next = self->shown;
    self->shown = s;
    return s;
}

oar_status oari_ipc_show(ipc *self, const void *data, ipc_memory *memory)
{
    oari_cuda_block block;
    ipc_shown *s;

    OARI_TRY(oari_cuda_find(data, &block));
    s = find_shown(self, block.id);
    if (s == NULL && (s = add_shown(self, &block)) == NULL)
        return OAR_E_NOMEM;
    *memory = s->memory;
    memory->offset = (uint64_t)(uintptr_t)data - block.base;
    if (s->hidden && self->ranks > 1)
        memory->id = 0;
    return OAR_OK;
}

/* ---- theirs -------------------------------------------------------------- */

static ipc_mapped *find_mapped(const ipc *self, int rank, uint64_t id)
{
    for (ipc_mapped *m = self->peer[rank].mapped; m != NULL; m = m->next)
        if (m->id == id)
            return m;
    return NULL;
}

/* What is mapped of a range that is now another allocation's. */
static void close_overlapping(ipc *self, int rank, const ipc_memory *memory)
{
    ipc_mapped **at = &self->peer[rank].mapped;

    while (*at != NULL) {
        ipc_mapped *m = *at;

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

static oar_status open_mapped(ipc *self, int rank, const ipc_memory *memory,
                              ipc_mapped **mapped)
{
    ipc_mapped *m = oari_alloc(1, sizeof *m);
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
    m->next = self->peer[rank].mapped;
    *mapped = self->peer[rank].mapped = m;
    return OAR_OK;
}

oar_status oari_ipc_map(ipc *self, int rank, const ipc_memory *memory,
                        oari_cu_memory *here)
{
    ipc_mapped *m;

    *here = 0;
    if (memory->id == 0)
        return OAR_OK;
    if (rank == self->rank) {
        *here = memory->base + memory->offset;
        return OAR_OK;
    }
    m = find_mapped(self, rank, memory->id);
    if (m == NULL)
        OARI_TRY(open_mapped(self, rank, memory, &m));
    *here = m->here + memory->offset;
    return OAR_OK;
}

/* ---- stages -------------------------------------------------------------- */

static oar_device device_of(const ipc *self)
{
    return oar_device_of(OAR_CUDA, self->device);
}

oar_status oari_ipc_stage_room(ipc *self, ipc_stage *stage, size_t bytes)
{
    void *more;

    if (stage->bytes >= bytes)
        return OAR_OK;
    OARI_TRY(oar_device_alloc(device_of(self), bytes, &more));
    oar_device_free(device_of(self), stage->memory, self->stream);
    stage->memory = more;
    stage->bytes = bytes;
    return OAR_OK;
}

/* ---- the end ------------------------------------------------------------- */

void oari_ipc_forget_shown(ipc_shown *shown)
{
    while (shown != NULL) {
        ipc_shown *next = shown->next;

        if (!shown->hidden)
            oari_cuda_unhold(shown->memory.base);
        oari_free(shown);
        shown = next;
    }
}

static void forget_mapped(ipc *self, int rank)
{
    while (self->peer[rank].mapped != NULL) {
        ipc_mapped *m = self->peer[rank].mapped;

        self->peer[rank].mapped = m->next;
        oari_ipc_mapping_close(self, m->mapping);
        oari_free(m);
    }
}

static void free_messages(ipc *self, ipc_peer *peer)
{
    oar_device_free(device_of(self), peer->eager, peer->stream);
    for (int i = 0; i < IPC_BOX; i++)
        oar_device_free(device_of(self), peer->loose[i], peer->stream);
}

void oari_ipc_forget_mapped(ipc *self)
{
    for (int r = 0; self->peer != NULL && r < self->ranks; r++) {
        forget_mapped(self, r);
        free_messages(self, &self->peer[r]);
    }
    oar_device_free(device_of(self), self->in_stage.memory, self->stream);
    oar_device_free(device_of(self), self->out_stage.memory, self->stream);
}
