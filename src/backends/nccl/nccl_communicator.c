/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_communicator: one of NCCL's, with what it takes to end it from any
 * thread.
 *
 * `use` is held by whoever calls NCCL with the handle; ending it first takes
 * the handle away, so that nobody has it any more when NCCL frees it. Ending
 * waits for what runs on the GPU, and sometimes for ever: so it is a thread's,
 * and nobody has to wait for that thread.
 */
#include <oarsong/device.h>

#include "backends/nccl/nccl_engine.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

enum { FAREWELL_MS = 500 };

/* ---- making and releasing ------------------------------------------------ */

oar_status oari_nccl_comm_create(const oari_nccl *lib, int device,
                                 oari_nccl_comm **comm)
{
    oari_nccl_comm *c = oari_alloc(1, sizeof *c);

    if (c == NULL)
        return OAR_E_NOMEM;
    c->lib = lib;
    c->device = device;
    c->holders = 1;
    pthread_mutex_init(&c->use, NULL);
    pthread_mutex_init(&c->lock, NULL);
    oari_cond_init(&c->changed);
    *comm = c;
    return OAR_OK;
}

void oari_nccl_comm_release(oari_nccl_comm *comm)
{
    int left;

    if (comm == NULL)
        return;
    pthread_mutex_lock(&comm->lock);
    left = --comm->holders;
    pthread_mutex_unlock(&comm->lock);
    if (left > 0)
        return;
    if (comm->owns_stream)
        oar_stream_destroy(oar_device_of(OAR_CUDA, comm->device), comm->stream);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    pthread_mutex_destroy(&comm->use);
    oari_free(comm);
}

oar_status oari_nccl_comm_stream(oari_nccl_comm *comm, void *stream)
{
    if (stream != NULL) {
        comm->stream = stream;
        return OAR_OK;
    }
    OARI_TRY(oar_stream_create(oar_device_of(OAR_CUDA, comm->device),
                               OAR_STREAM_URGENT, &comm->stream));
    comm->owns_stream = 1;
    return OAR_OK;
}

int oari_nccl_comm_state(oari_nccl_comm *comm)
{
    int state = OARI_NCCL_SUCCESS;
    int result = comm->lib->CommGetAsyncError(comm->handle, &state);

    return result != OARI_NCCL_SUCCESS ? result : state;
}

/* ---- ending -------------------------------------------------------------- */

static oari_nccl_handle take_handle(oari_nccl_comm *comm)
{
    oari_nccl_handle handle;

    pthread_mutex_lock(&comm->use);
    handle = comm->handle;
    comm->handle = NULL;
    pthread_mutex_unlock(&comm->use);
    return handle;
}

static void has_ended(oari_nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->ended = 1;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    oari_nccl_comm_release(comm);
}

static void *abort_it(void *arg)
{
    oari_nccl_comm *comm = arg;
    oari_nccl_handle handle = take_handle(comm);

    if (handle != NULL)
        comm->lib->CommAbort(handle);
    has_ended(comm);
    return NULL;
}

/* NCCL's farewell waits for peers: for a while. */
static int say_farewell(const oari_nccl *lib, oari_nccl_handle handle)
{
    int64_t until = oari_deadline(FAREWELL_MS), since = 0;
    int state = lib->CommFinalize(handle);

    while (state == OARI_NCCL_SUCCESS || state == OARI_NCCL_IN_PROGRESS) {
        if (lib->CommGetAsyncError(handle, &state) != OARI_NCCL_SUCCESS)
            return 0;
        if (state == OARI_NCCL_SUCCESS)
            return 1;
        if (oari_now_ns() > until)
            return 0;
        oari_backoff(&since);
    }
    return 0;
}

static void *finish_it(void *arg)
{
    oari_nccl_comm *comm = arg;
    oari_nccl_handle handle = take_handle(comm);

    if (handle != NULL && say_farewell(comm->lib, handle))
        comm->lib->CommDestroy(handle);
    else if (handle != NULL)
        comm->lib->CommAbort(handle);
    has_ended(comm);
    return NULL;
}

static int send_thread(void *(*what)(void *arg), void *arg)
{
    pthread_t thread;

    if (oari_thread_start(&thread, "oar-nccl-end", what, arg) != OAR_OK)
        return 0;
    pthread_detach(thread);
    return 1;
}

static void end(oari_nccl_comm *comm, void *(*how)(void *arg))
{
    int first;

    pthread_mutex_lock(&comm->lock);
    first = !comm->ending;
    comm->ending = 1;
    comm->holders += first;
    pthread_mutex_unlock(&comm->lock);
    if (first && !send_thread(how, comm))
        how(comm);
}

void oari_nccl_comm_abort(oari_nccl_comm *comm)
{
    end(comm, abort_it);
}

void oari_nccl_comm_finish(oari_nccl_comm *comm)
{
    end(comm, finish_it);
}

int oari_nccl_comm_wait(oari_nccl_comm *comm, int64_t deadline_ns)
{
    int ended;

    pthread_mutex_lock(&comm->lock);
    while (!comm->ended &&
           oari_cond_wait(&comm->changed, &comm->lock, deadline_ns))
        ;
    ended = comm->ended;
    pthread_mutex_unlock(&comm->lock);
    return ended;
}
