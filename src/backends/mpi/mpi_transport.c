/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_transport: moves blocks for link/chunk_link.h by MPI's point to point. A
 * lane of the chunk link is a tag; headers (lane 0) are received from any
 * source. */
#include "base/alloc.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum {
    LANES = 32768,      /* tags up to 32767 exist in every MPI */
    EAGER_BYTES = 3072, /* with its header, still eager in every MPI (Open MPI:
                           4 KiB) */
    CANCEL_TESTS = 1000 /* of a receive that was cancelled */
};

/* ---- the list ------------------------------------------------------------ */

/* Grows an array to `room` elements, keeps the first `count`; 0: no memory. */
static int grow_array(void *row, size_t size, int count, int room)
{
    void **at = row;
    unsigned char *more = oari_alloc((size_t)room, size);
    const unsigned char *old = *at;

    if (more == NULL)
        return 0;
    for (size_t i = 0; i < (size_t)count * size; i++)
        more[i] = old[i];
    if (*at != NULL)
        oari_free(*at);
    *at = more;
    return 1;
}

static int make_room(mpi_blocks *c)
{
    int room = c->room != 0 ? 2 * c->room : 16;

    if (c->count < c->room)
        return 1;
    if (!grow_array(&c->request, sizeof *c->request, c->count, room) ||
        !grow_array(&c->chunk, sizeof *c->chunk, c->count, room) ||
        !grow_array(&c->index, sizeof *c->index, 0, room) ||
        !grow_array(&c->status, sizeof *c->status, 0, room))
        return 0;
    c->room = room;
    return 1;
}

/* ---- moving -------------------------------------------------------------- */

static int start_request(mpi_engine *e, oari_chunk *chunk, int sends,
                         MPI_Request *r)
{
    int peer = chunk->peer >= 0 ? chunk->peer : MPI_ANY_SOURCE;
    int is_large = chunk->bytes > (size_t)e->chunk_max;
    int count = is_large ? 1 : (int)chunk->bytes, code = MPI_SUCCESS;
    MPI_Datatype type = MPI_BYTE;

    if (is_large)
        code = mpi_make_row_type(chunk->bytes, MPI_BYTE, &type);
    if (code == MPI_SUCCESS)
        code = sends ? MPI_Isend(chunk->data, count, type, peer,
                                 (int)chunk->lane, e->comm, r)
                     : MPI_Irecv(chunk->data, count, type, peer,
                                 (int)chunk->lane, e->comm, r);
    if (type != MPI_BYTE)
        MPI_Type_free(&type); /* MPI keeps it until the message is done */
    return code;
}

static void finish_block(oari_chunk *chunk, const MPI_Status *status)
{
    if (chunk->peer < 0)
        chunk->peer = status->MPI_SOURCE;
    chunk->status = OAR_OK;
    chunk->done = 1;
}

/* Tests at once: many blocks are done immediately. */
static oar_status start_block(mpi_engine *e, oari_chunk *chunk, int sends)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    int over = 0, code;

    if (mpi_is_finalized())
        return mpi_fail_finalized();
    if (!make_room(&e->blocks))
        return OAR_E_NOMEM;
    chunk->scratch[0] = sends ? chunk : NULL; /* for drop_block */
    mpi_lock();
    code = start_request(e, chunk, sends, &request);
    if (code == MPI_SUCCESS)
        code = MPI_Test(&request, &over, &status);
    mpi_unlock();
    if (code != MPI_SUCCESS)
        return mpi_fail(code, sends ? "MPI_Isend" : "MPI_Irecv");
    if (over) {
        finish_block(chunk, &status);
        return OAR_OK;
    }
    e->blocks.request[e->blocks.count] = request;
    e->blocks.chunk[e->blocks.count++] = chunk;
    return OAR_OK;
}

static oar_status put_block(void *self, oari_chunk *chunk)
{
    return start_block(self, chunk, 1);
}

static oar_status get_block(void *self, oari_chunk *chunk)
{
    return start_block(self, chunk, 0);
}

oar_status mpi_transport_test(mpi_engine *e)
{
    mpi_blocks *c = &e->blocks;
    int done = 0, code, kept = 0;

    if (c->count == 0)
        return OAR_OK;
    if (mpi_is_finalized())
        return mpi_fail_finalized();
    mpi_lock();
    code = MPI_Testsome(c->count, c->request, &done, c->index, c->status);
    mpi_unlock();
    if (code != MPI_SUCCESS)
        return mpi_fail(code, "a message");
    if (done <= 0)
        return OAR_OK;
    for (int i = 0; i < done; i++)
        finish_block(c->chunk[c->index[i]], &c->status[i]);
    for (int i = 0; i < c->count; i++)
        if (c->request[i] != MPI_REQUEST_NULL) {
            c->request[kept] = c->request[i];
            c->chunk[kept++] = c->chunk[i];
        }
    c->count = kept;
    return OAR_OK;
}

/* ---- giving up ----------------------------------------------------------- */

/* A receive that has not matched a message can be cancelled. A send cannot: MPI
 * may read its data at any later time. */
static int drop_block(void *self, oari_chunk *chunk)
{
    mpi_engine *e = self;
    mpi_blocks *c = &e->blocks;
    int sends = chunk->scratch[0] != NULL, done = 0, at = 0;

    while (at < c->count && c->chunk[at] != chunk)
        at++;
    if (at == c->count)
        return 0; /* it was dropped before, and was not done */
    if (!mpi_is_finalized()) {
        mpi_lock();
        if (!sends)
            MPI_Cancel(&c->request[at]);
        for (int i = 0; i < CANCEL_TESTS && !done; i++)
            if (MPI_Test(&c->request[at], &done, MPI_STATUS_IGNORE) !=
                    MPI_SUCCESS ||
                sends)
                break;
        if (!done)
            MPI_Request_free(&c->request[at]);
        mpi_unlock();
    }
    c->count--;
    c->request[at] = c->request[c->count];
    c->chunk[at] = c->chunk[c->count];
    if (!done)
        mpi_count_abandoned();
    return done;
}

/* ---- making -------------------------------------------------------------- */

oar_status mpi_transport_open(mpi_engine *e)
{
    oari_chunk_transport transport = { .put = put_block,
                                       .get = get_block,
                                       .drop = drop_block,
                                       .self = e,
                                       .lanes = LANES,
                                       .mixed = 1 };

    return oari_chunk_link_create(&transport, e->rank, e->ranks, EAGER_BYTES,
                                  &e->messages);
}

void mpi_transport_close(mpi_engine *e)
{
    mpi_blocks *c = &e->blocks;

    oari_chunk_link_destroy(e->messages);
    oari_free(c->request);
    oari_free(c->chunk);
    oari_free(c->index);
    oari_free(c->status);
    *c = (mpi_blocks){ 0 };
}
