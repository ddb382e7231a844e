/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_operation: collectives in flight, from the call of MPI to the result.
 *
 * An operation that is abandoned is never freed: MPI may use its buffers until
 * the process ends. */
#include "base/alloc.h"
#include "base/status.h"
#include "link/match.h"
#include "backends/mpi/mpi_engine.h"

enum { TESTS = 8 }; /* of a request that is not done, in one progress */

/* The abandoned operations of all groups, so that leak checkers find them. */
static _Atomic(mpi_operation *) abandoned;

mpi_operation *mpi_operation_create(mpi_engine *e, const oar_collective *call,
                                    oar_transfer *done)
{
    mpi_operation *p = e->spare;

    if (p != NULL)
        e->spare = p->next;
    else if ((p = oari_alloc(1, sizeof *p)) == NULL)
        return NULL;
    *p = (mpi_operation){
        .call = call, .done = done, .room = 1, .type = MPI_DATATYPE_NULL
    };
    p->request = &p->one;
    return p;
}

MPI_Request *mpi_operation_request(mpi_operation *p)
{
    if (p->requests == p->room) {
        int room = 4 * p->room;
        MPI_Request *more = oari_alloc((size_t)room, sizeof *more);

        if (more == NULL)
            return NULL;
        for (int i = 0; i < p->requests; i++)
            more[i] = p->request[i];
        if (p->request != &p->one)
            oari_free(p->request);
        p->request = more;
        p->room = room;
    }
    return &p->request[p->requests++];
}

static void recycle_operation(mpi_engine *e, mpi_operation *p)
{
    if (p->type != MPI_DATATYPE_NULL && !mpi_is_finalized())
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

/* Does what MPI could not do, and completes the operation. */
static void finish_operation(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    oar_transfer *done = p->done;
    int has_result = call->kind == OAR_COLL_ALL_REDUCE ||
                     call->kind == OAR_COLL_REDUCE_SCATTER ||
                     (call->kind == OAR_COLL_REDUCE && call->root == e->rank);

    if (has_result && p->result != NULL)
        mpi_reduction_finish(e, call, p->result, p->made);
    else if (has_result && call->op.kind == OAR_REDUCE_OP_AVG)
        mpi_reduction_finish(e, call, call->out.data, call->out.dtype);
    recycle_operation(e, p);
    oari_transfer_finish(done, OAR_OK);
}

static void abandon_operation(mpi_operation *p)
{
    mpi_count_abandoned();
    p->next = atomic_load(&abandoned);
    while (!atomic_compare_exchange_weak(&abandoned, &p->next, p))
        ;
}

oar_status mpi_operation_started(mpi_engine *e, mpi_operation *p, int code,
                                 const char *what)
{
    if (p->refused != OAR_OK) {
        oar_status status = p->refused;
        recycle_operation(e, p);
        return status;
    }
    if (code != MPI_SUCCESS) {
        abandon_operation(p);
        return mpi_fail(code, what);
    }
    if (p->requests == 0) {
        finish_operation(e, p);
        return OAR_OK;
    }
    *e->last = p;
    e->last = &p->next;
    return OAR_OK;
}

oar_status mpi_operations_test(mpi_engine *e)
{
    mpi_operation **at = &e->first;

    if (*at != NULL && mpi_is_finalized())
        return mpi_fail_finalized();
    while (*at != NULL) {
        mpi_operation *p = *at;
        int code = MPI_SUCCESS, done = 1, tests = 0;

        /* Several tests of a request: MPI progresses only when it is called. */
        mpi_lock();
        while (p->requests_done < p->requests && tests < TESTS &&
               code == MPI_SUCCESS) {
            code = MPI_Test(&p->request[p->requests_done], &done,
                            MPI_STATUS_IGNORE);
            p->requests_done += done;
            tests = done ? 0 : tests + 1;
        }
        mpi_unlock();
        if (code != MPI_SUCCESS)
            return mpi_fail(code, oar_coll_name(p->call->kind));
        if (!done) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        if (*at == NULL)
            e->last = at;
        finish_operation(e, p);
    }
    return OAR_OK;
}

void mpi_operations_abandon(mpi_engine *e, oar_status why)
{
    while (e->first != NULL) {
        mpi_operation *p = e->first;
        e->first = p->next;
        oari_transfer_finish(p->done, why);
        abandon_operation(p);
    }
    e->last = &e->first;
}
