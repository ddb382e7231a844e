/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_communicator: a communicator of NCCL that any thread can end.
 *
 * A thread holds `use` while it calls NCCL with the handle. To end it, the
 * handle is taken away first, so that no thread has it when NCCL frees it. The
 * end waits for what runs on the GPU, and sometimes for ever: so it runs in a
 * thread of its own, and no other thread has to wait for that one. Only the end
 * of the process waits for such threads a while: a library that is torn down
 * while a thread is in it crashes.
 */
#include <stdlib.h>

#include <oarsong/device.h>

#include "backends/nccl/nccl_engine.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

enum { FINALIZE_MS = 500, EXIT_MS = 10000 };

static atomic_int ends;     /* threads that end a communicator */
static unsigned generation; /* of the process that they run in */

/* ---- making and releasing ------------------------------------------------ */

oar_status oari_nccl_comm_create(const oari_nccl *lib, int device,
                                 oari_nccl_comm **comm)
{
    oari_nccl_comm *c = oari_alloc(1, sizeof *c);

    if (c == NULL)
        return OAR_E_NOMEM;
    c->lib = lib;
    c->device = device;
    c->references = 1;
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
    left = --comm->references;
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

oar_status oari_nccl_comm_set_stream(oari_nccl_comm *comm, void *stream)
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

static void await_ends(void)
{
    int64_t deadline = oari_deadline(EXIT_MS), since = 0;

    if (generation != oari_fork_generation())
        return; /* the threads are the parent's */
    while (atomic_load(&ends) != 0 && oari_now_ns() < deadline)
        oari_backoff(&since);
    if (atomic_load(&ends) != 0)
        oari_log(OAR_LOG_WARN,
                 "NCCL has not ended a communicator in %d s; the process ends "
                 "with a thread in it",
                 EXIT_MS / 1000);
}

/* What is registered last runs first: NCCL is loaded already. */
static void watch_exit(void)
{
    oari_fork_watch();
    generation = oari_fork_generation();
    atexit(await_ends);
}

/* ncclCommFinalize waits for the peers; this for FINALIZE_MS. Returns 1 if it
 * is done. */
static int finalize_comm(const oari_nccl *lib, oari_nccl_handle handle)
{
    int64_t deadline = oari_deadline(FINALIZE_MS), since = 0;
    int state = lib->CommFinalize(handle);

    while (state == OARI_NCCL_SUCCESS || state == OARI_NCCL_IN_PROGRESS) {
        if (lib->CommGetAsyncError(handle, &state) != OARI_NCCL_SUCCESS)
            return 0;
        if (state == OARI_NCCL_SUCCESS)
            return 1;
        if (oari_now_ns() > deadline)
            return 0;
        oari_backoff(&since);
    }
    return 0;
}

static void *end_main(void *arg)
{
    oari_nccl_comm *comm = arg;
    oari_nccl_handle handle;

    pthread_mutex_lock(&comm->use);
    handle = comm->handle;
    comm->handle = NULL;
    pthread_mutex_unlock(&comm->use);
    if (handle != NULL && !comm->aborts && finalize_comm(comm->lib, handle))
        comm->lib->CommDestroy(handle);
    else if (handle != NULL)
        comm->lib->CommAbort(handle);
    pthread_mutex_lock(&comm->lock);
    comm->ended = 1;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    oari_nccl_comm_release(comm);
    atomic_fetch_sub(&ends, 1);
    return NULL;
}

/* Ends it in this thread if there can be no other. */
static void start_end(oari_nccl_comm *comm, int aborts)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_t thread;
    int first;

    pthread_mutex_lock(&comm->lock);
    first = !comm->ending;
    if (first)
        comm->aborts = aborts;
    comm->ending = 1;
    comm->references += first;
    pthread_mutex_unlock(&comm->lock);
    if (!first)
        return;
    pthread_once(&watched, watch_exit);
    atomic_fetch_add(&ends, 1);
    if (oari_thread_start(&thread, "oar-nccl-end", end_main, comm) == OAR_OK)
        pthread_detach(thread);
    else
        end_main(comm);
}

void oari_nccl_comm_abort(oari_nccl_comm *comm)
{
    start_end(comm, 1);
}

void oari_nccl_comm_finalize(oari_nccl_comm *comm)
{
    start_end(comm, 0);
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
