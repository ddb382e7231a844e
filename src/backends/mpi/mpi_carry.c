/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_carry: blocks for the relay, by MPI's point to point. A lane is a tag;
 * heads (lane 0) are received from any source. */
#include "base/alloc.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum {
    LANES = 32768,     /* the least largest tag, and 0 */
    HEAD_BYTES = 3072, /* data in a head: with it below what every MPI sends at
                          once (Open MPI: 4 KiB) */
    PATIENCE = 1000    /* times a receive that was cancelled is looked at */
};

/* ---- the list ------------------------------------------------------------ */

/* Arrays of `room` things, one copied over; 0: no memory. */
static int widen(void *row, size_t size, int count, int room)
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

static int make_room(mpi_cargo *c)
{
    int room = c->room != 0 ? 2 * c->room : 16;

    if (c->count < c->room)
        return 1;
    if (!widen(&c->request, sizeof *c->request, c->count, room) ||
        !widen(&c->parcel, sizeof *c->parcel, c->count, room) ||
        !widen(&c->index, sizeof *c->index, 0, room) ||
        !widen(&c->status, sizeof *c->status, 0, room))
        return 0;
    c->room = room;
    return 1;
}

static void take_out(mpi_cargo *c, int at)
{
    c->count--;
    c->request[at] = c->request[c->count];
    c->parcel[at] = c->parcel[c->count];
}

/* ---- moving -------------------------------------------------------------- */

typedef struct block {
    void *data;
    int count;
    MPI_Datatype type;
    int made; /* the type is */
} block;

static int make_block(const mpi_engine *e, const oari_parcel *parcel, block *b)
{
    *b = (block){ parcel->data, (int)parcel->bytes, MPI_BYTE, 0 };
    if (parcel->bytes <= (size_t)e->chunk)
        return MPI_SUCCESS;
    b->count = 1;
    b->made = 1;
    return mpi_row_type(parcel->bytes, MPI_BYTE, &b->type);
}

static int start(mpi_engine *e, oari_parcel *parcel, int put_it, MPI_Request *r)
{
    int peer = parcel->peer >= 0 ? parcel->peer : MPI_ANY_SOURCE;
    block b;
    int code = make_block(e, parcel, &b);

    if (code == MPI_SUCCESS)
        code = put_it ? MPI_Isend(b.data, b.count, b.type, peer,
                                  (int)parcel->lane, e->comm, r)
                      : MPI_Irecv(b.data, b.count, b.type, peer,
                                  (int)parcel->lane, e->comm, r);
    if (b.made && b.type != MPI_BYTE)
        MPI_Type_free(&b.type); /* goes when its last message has gone */
    return code;
}

/* Many are done at once: a look spares the next progress. */
static void finish(oari_parcel *parcel, const MPI_Status *status)
{
    if (parcel->peer < 0)
        parcel->peer = status->MPI_SOURCE;
    parcel->status = OAR_OK;
    parcel->done = 1;
}

static oar_status move(mpi_engine *e, oari_parcel *parcel, int put_it)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    int over = 0, code;

    if (mpi_is_over())
        return mpi_fail_over();
    if (!make_room(&e->cargo))
        return OAR_E_NOMEM;
    parcel->scratch[0] = put_it ? parcel : NULL; /* for drop */
    mpi_enter();
    code = start(e, parcel, put_it, &request);
    if (code == MPI_SUCCESS)
        code = MPI_Test(&request, &over, &status);
    mpi_leave();
    if (code != MPI_SUCCESS)
        return mpi_fail(code, put_it ? "MPI_Isend" : "MPI_Irecv");
    if (over) {
        finish(parcel, &status);
        return OAR_OK;
    }
    e->cargo.request[e->cargo.count] = request;
    e->cargo.parcel[e->cargo.count++] = parcel;
    return OAR_OK;
}

static oar_status put(void *self, oari_parcel *parcel)
{
    return move(self, parcel, 1);
}

static oar_status get(void *self, oari_parcel *parcel)
{
    return move(self, parcel, 0);
}

oar_status mpi_carry_test(mpi_engine *e)
{
    mpi_cargo *c = &e->cargo;
    int done = 0, code, kept = 0;

    if (c->count == 0)
        return OAR_OK;
    if (mpi_is_over())
        return mpi_fail_over();
    mpi_enter();
    code = MPI_Testsome(c->count, c->request, &done, c->index, c->status);
    mpi_leave();
    if (code != MPI_SUCCESS)
        return mpi_fail(code, "a message");
    if (done <= 0)
        return OAR_OK;
    for (int i = 0; i < done; i++)
        finish(c->parcel[c->index[i]], &c->status[i]);
    for (int i = 0; i < c->count; i++)
        if (c->request[i] != MPI_REQUEST_NULL) {
            c->request[kept] = c->request[i];
            c->parcel[kept++] = c->parcel[i];
        }
    c->count = kept;
    return OAR_OK;
}

/* ---- giving up ----------------------------------------------------------- */

/* A receive that has found no message yet can be cancelled. A send cannot: MPI
 * may read it for as long as it likes. */
static int let_go(MPI_Request *request, int is_send)
{
    int over = 0;

    mpi_enter();
    if (!is_send)
        MPI_Cancel(request);
    for (int i = 0; i < PATIENCE && !over; i++)
        if (MPI_Test(request, &over, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            is_send)
            break;
    if (!over)
        MPI_Request_free(request);
    mpi_leave();
    return over;
}

static int drop(void *self, oari_parcel *parcel)
{
    mpi_engine *e = self;
    mpi_cargo *c = &e->cargo;
    int at = 0, gone;

    while (at < c->count && c->parcel[at] != parcel)
        at++;
    if (at == c->count)
        return 0; /* was let go before, and was not over */
    gone =
        !mpi_is_over() && let_go(&c->request[at], parcel->scratch[0] != NULL);
    take_out(c, at);
    if (!gone)
        mpi_count_ruin();
    return gone;
}

/* ---- making -------------------------------------------------------------- */

oar_status mpi_carry_open(mpi_engine *e, size_t eager_bytes)
{
    oari_courier courier = { .put = put,
                             .get = get,
                             .drop = drop,
                             .self = e,
                             .lanes = LANES,
                             .mixed = 1 };

    if (eager_bytes > HEAD_BYTES)
        eager_bytes = HEAD_BYTES;
    return oari_relay_create(&courier, e->rank, e->ranks, eager_bytes,
                             &e->relay);
}

void mpi_carry_close(mpi_engine *e)
{
    mpi_cargo *c = &e->cargo;

    oari_relay_destroy(e->relay);
    oari_free(c->request);
    oari_free(c->parcel);
    oari_free(c->index);
    oari_free(c->status);
    *c = (mpi_cargo){ 0 };
}
