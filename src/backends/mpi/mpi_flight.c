/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_flight: collectives under way, from the call of MPI to the result.
 *
 * What is abandoned stays where it is for good: MPI may be at its buffers
 * until the process ends. */
#include "base/alloc.h"
#include "base/status.h"
#include "link/match.h"
#include "backends/mpi/mpi_engine.h"

enum { ASKS = 8 };

/* Those that were abandoned, of all groups: so that nobody takes them for
 * lost. */
static _Atomic(mpi_post *) abandoned;

mpi_post *mpi_post_begin(mpi_engine *e, const oar_collective *call,
                         oar_transfer *done)
{
    mpi_post *p = e->spare;

    if (p != NULL)
        e->spare = p->next;
    else if ((p = oari_alloc(1, sizeof *p)) == NULL)
        return NULL;
    *p = (mpi_post){
        .call = call, .done = done, .room = 1, .type = MPI_DATATYPE_NULL
    };
    p->request = &p->one;
    return p;
}

static int grow(mpi_post *p)
{
    int room = 4 * p->room;
    MPI_Request *more = oari_alloc((size_t)room, sizeof *more);

    if (more == NULL)
        return 0;
    for (int i = 0; i < p->requests; i++)
        more[i] = p->request[i];
    if (p->request != &p->one)
        oari_free(p->request);
    p->request = more;
    p->room = room;
    return 1;
}

MPI_Request *mpi_post_request(mpi_post *p)
{
    if (p->requests == p->room && !grow(p))
        return NULL;
    return &p->request[p->requests++];
}

static void put_away(mpi_engine *e, mpi_post *p)
{
    if (p->type != MPI_DATATYPE_NULL && !mpi_is_over())
        MPI_Type_free(&p->type);
    if (p->request != &p->one)
        oari_free(p->request);
    if (p->scratch != NULL)
        oari_free(p->scratch);
    if (p->copy != NULL)
        oari_free(p->copy);
    if (p->counts[0] != NULL)
        oari_free(p->counts[0]);
    if (p->counts[1] != NULL)
        oari_free(p->counts[1]);
    p->next = e->spare;
    e->spare = p;
}

static int has_result(const mpi_engine *e, const oar_collective *call)
{
    return call->kind == OAR_COLL_ALL_REDUCE ||
           call->kind == OAR_COLL_REDUCE_SCATTER ||
           (call->kind == OAR_COLL_REDUCE && call->root == e->rank);
}

/* The result is where it belongs once what MPI could not do is done. */
static void finish(mpi_engine *e, mpi_post *p)
{
    oar_transfer *done = p->done;

    if (has_result(e, p->call) &&
        (p->result != NULL || p->call->op.kind == OAR_REDUCE_OP_AVG))
        mpi_fold_finish(e, p->call,
                        p->result != NULL ? p->result : p->call->out.data,
                        p->result != NULL ? p->made : p->call->out.dtype);
    put_away(e, p);
    oari_transfer_finish(done, OAR_OK);
}

static void abandon(mpi_post *p)
{
    mpi_count_ruin();
    p->next = atomic_load(&abandoned);
    while (!atomic_compare_exchange_weak(&abandoned, &p->next, p))
        ;
}

oar_status mpi_post_started(mpi_engine *e, mpi_post *p, int code,
                            const char *what)
{
    if (p->refused != OAR_OK) {
        oar_status status = p->refused;
        put_away(e, p);
        return status;
    }
    if (code != MPI_SUCCESS) {
        abandon(p);
        return mpi_fail(code, what);
    }
    if (p->requests == 0) {
        finish(e, p);
        return OAR_OK;
    }
    *e->last = p;
    e->last = &p->next;
    return OAR_OK;
}

/* Its requests in turn, each asked a few times: what is done between two
 * questions, MPI waits for. */
static int test(mpi_post *p, int *over)
{
    int code = MPI_SUCCESS, asked = 0;

    *over = 1;
    while (p->over < p->requests && asked < ASKS && code == MPI_SUCCESS) {
        code = MPI_Test(&p->request[p->over], over, MPI_STATUS_IGNORE);
        p->over += *over;
        asked = *over ? 0 : asked + 1;
    }
    return code;
}

oar_status mpi_posts_test(mpi_engine *e)
{
    mpi_post **at = &e->first;

    if (*at != NULL && mpi_is_over())
        return mpi_fail_over();
    while (*at != NULL) {
        mpi_post *p = *at;
        int over = 0, code;
        mpi_enter();
        code = test(p, &over);
        mpi_leave();
        if (code != MPI_SUCCESS)
            return mpi_fail(code, oar_coll_name(p->call->kind));
        if (!over) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        if (*at == NULL)
            e->last = at;
        finish(e, p);
    }
    return OAR_OK;
}

void mpi_posts_abandon(mpi_engine *e, oar_status why)
{
    while (e->first != NULL) {
        mpi_post *p = e->first;
        e->first = p->next;
        oari_transfer_finish(p->done, why);
        abandon(p);
    }
    e->last = &e->first;
}

void mpi_posts_free(mpi_engine *e)
{
    while (e->spare != NULL) {
        mpi_post *p = e->spare;
        e->spare = p->next;
        oari_free(p);
    }
}
