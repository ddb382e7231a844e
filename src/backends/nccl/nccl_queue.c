/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_queue: what is posted, until NCCL has put it on the stream.
 *
 * A unit is one call, or all of a batch: it goes to NCCL as one group, made and
 * closed by one thread in one go, since NCCL keeps the open group of each
 * thread. NCCL then puts it there by a thread of its own; it takes no other
 * call, and nothing may be recorded behind it, before its state says that it
 * has. So there is one unit under way, and the others wait.
 *
 * A transfer is a link of the queue by itself: scratch[0] is the next one,
 * scratch[1] the call, scratch[2] not NULL if the next belongs to the same
 * unit.
 */
#include <stdio.h>

#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/status.h"

enum {
    LOOK_NS = 1000000,         /* between looks for errors of what runs */
    ABORT_NS = 1000 * 1000000, /* longest wait for NCCL to let go */
};

static int is_followed(const oar_transfer *t)
{
    return t->scratch[2] != NULL;
}

static void finish_list(oar_transfer **list, oar_status status)
{
    while (*list != NULL) {
        oar_transfer *t = *list;

        *list = oari_nccl_next(t);
        oari_nccl_done(t, status);
    }
}

int oari_nccl_is_idle(const oari_nccl_engine *e)
{
    return e->first == NULL && e->flying == NULL;
}

void oari_nccl_drop_all(oari_nccl_engine *e, oar_status why)
{
    finish_list(&e->flying, why);
    finish_list(&e->first, why);
    e->last = &e->first;
    finish_list(&e->to_self, why);
    finish_list(&e->from_self, why);
}

/* Why it failed is often not NCCL's to say: a peer is gone, or called something
 * else. So nothing is done; progress says that NCCL failed, and the core gives
 * the links time to know better before it aborts. */
void oari_nccl_note_failure(oari_nccl_engine *e, oar_status status)
{
    if (status == OAR_OK || e->failed != OAR_OK)
        return;
    e->failed = status;
    snprintf(e->text, sizeof e->text, "%.399s", oar_last_error_text());
}

/* ---- units --------------------------------------------------------------- */

/* The last of the first unit, or NULL: there is none, or its batch is open. */
static oar_transfer *end_of_unit(const oari_nccl_engine *e)
{
    oar_transfer *t = e->first;

    while (t != NULL && is_followed(t))
        t = oari_nccl_next(t);
    return t;
}

static void take_unit(oari_nccl_engine *e, oar_transfer *end)
{
    e->flying = e->first;
    e->first = oari_nccl_next(end);
    end->scratch[0] = NULL;
    if (e->first == NULL)
        e->last = &e->first;
}

static oar_status call_each(oari_nccl_engine *e)
{
    for (const oar_transfer *t = e->flying; t != NULL; t = oari_nccl_next(t))
        OARI_TRY(oari_nccl_call(e, oari_nccl_posted(t)));
    return OAR_OK;
}

/* The group is closed whatever happened in it. */
static oar_status make_group(oari_nccl_engine *e)
{
    const oari_nccl *lib = e->lib;
    oari_nccl_handle comm = e->comm->handle;
    oar_status status;
    int result;

    OARI_TRY(oari_nccl_check(lib, lib->GroupStart(), comm, "opening a group"));
    status = call_each(e);
    result = lib->GroupEnd();
    if (status != OAR_OK)
        return status;
    return oari_nccl_check(lib, result, comm,
                           oar_coll_name(oari_nccl_posted(e->flying)->kind));
}

static oar_status start_flying(oari_nccl_engine *e)
{
    const oari_cuda *cu;
    oar_status status = OAR_OK;

    OARI_TRY(oari_cuda_enter(e->device, &cu));
    for (const oar_transfer *t = e->flying; t != NULL && status == OAR_OK;
         t = oari_nccl_next(t))
        status = oari_nccl_wait_ready(cu, e->comm->stream, oari_nccl_posted(t));
    if (status == OAR_OK)
        status = make_group(e);
    oari_cuda_leave();
    return status;
}

static oar_status record_all(oari_nccl_engine *e)
{
    const oari_cuda *cu;
    oar_status status = OAR_OK;

    OARI_TRY(oari_cuda_enter(e->device, &cu));
    for (const oar_transfer *t = e->flying; t != NULL && status == OAR_OK;
         t = oari_nccl_next(t))
        status =
            oari_nccl_record_finished(cu, e->comm->stream, oari_nccl_posted(t));
    oari_cuda_leave();
    return status;
}

/* Looks whether NCCL has put the unit on the stream: 1 if it is there and the
 * transfers are done. */
static int land(oari_nccl_engine *e)
{
    int state = oari_nccl_comm_state(e->comm);
    oar_status status;

    if (state == OARI_NCCL_IN_PROGRESS)
        return 0;
    status = oari_nccl_check(e->lib, state, e->comm->handle,
                             oar_coll_name(oari_nccl_posted(e->flying)->kind));
    if (status == OAR_OK)
        status = record_all(e);
    oari_nccl_note_failure(e, status);
    if (status != OAR_OK)
        return 0;
    finish_list(&e->flying, OAR_OK);
    return 1;
}

/* One unit after the other, until one is under way or none is left. */
static void move_on(oari_nccl_engine *e)
{
    while (e->failed == OAR_OK) {
        oar_transfer *end;

        if (e->flying != NULL && !land(e))
            return;
        if ((end = end_of_unit(e)) == NULL)
            return;
        take_unit(e, end);
        oari_nccl_note_failure(e, start_flying(e));
    }
}

/* Whoever aborts takes the handle away first. */
static void move_on_if_there(oari_nccl_engine *e)
{
    pthread_mutex_lock(&e->comm->use);
    if (e->comm->handle != NULL)
        move_on(e);
    pthread_mutex_unlock(&e->comm->use);
}

/* ---- the table's --------------------------------------------------------- */

oar_status oari_nccl_post(void *self, const oar_collective *call,
                          oar_transfer *done)
{
    oari_nccl_engine *e = self;
    oar_status why = (oar_status)e->why;

    if (why != OAR_OK) {
        oari_nccl_done(done, why);
        return OAR_OK;
    }
    done->scratch[0] = NULL;
    done->scratch[1] = (void *)(uintptr_t)call;
    done->scratch[2] = e->batching ? done : NULL;
    if (oari_nccl_is_to_self(e, call)) {
        oari_nccl_post_to_self(e, done);
        return OAR_OK;
    }
    *e->last = done;
    e->last = (oar_transfer **)&done->scratch[0];
    if (!e->batching)
        move_on_if_there(e);
    return OAR_OK;
}

/* The last one of a batch ends its unit. Whatever is in the queue before the
 * batch is ended already, so an empty batch changes nothing. */
static void close_batch(oari_nccl_engine *e)
{
    oar_transfer *t = e->first;

    while (t != NULL && oari_nccl_next(t) != NULL)
        t = oari_nccl_next(t);
    if (t != NULL)
        t->scratch[2] = NULL;
}

oar_status oari_nccl_batch(void *self, int open)
{
    oari_nccl_engine *e = self;

    e->batching = open;
    if (!open) {
        close_batch(e);
        move_on_if_there(e);
    }
    return OAR_OK;
}

/* What NCCL has found out about what runs: not at every turn, and not while a
 * unit is under way, whose state is asked for anyway. */
static void look_for_errors(oari_nccl_engine *e)
{
    int64_t now = oari_now_ns();

    if (now < e->look_ns || e->flying != NULL)
        return;
    e->look_ns = now + LOOK_NS;
    pthread_mutex_lock(&e->comm->use);
    if (e->comm->handle != NULL)
        oari_nccl_note_failure(
            e, oari_nccl_check(e->lib, oari_nccl_comm_state(e->comm),
                               e->comm->handle, "what runs on the GPU"));
    pthread_mutex_unlock(&e->comm->use);
}

/* What NCCL is about to put on the stream is done only when it has let go. */
static void give_back_all(oari_nccl_engine *e, oar_status why)
{
    if (e->ending_ns == 0)
        e->ending_ns = oari_now_ns();
    if (e->flying != NULL && !oari_nccl_comm_wait(e->comm, 0) &&
        oari_now_ns() < e->ending_ns + ABORT_NS)
        return;
    oari_nccl_drop_all(e, why);
}

oar_status oari_nccl_progress(void *self)
{
    oari_nccl_engine *e = self;
    oar_status why = (oar_status)e->why;

    if (why != OAR_OK) {
        give_back_all(e, why);
        return OAR_OK;
    }
    if (!oari_nccl_is_idle(e))
        move_on_if_there(e);
    look_for_errors(e);
    return e->failed == OAR_OK ? OAR_OK
                               : oar_backend_fail(e->failed, "%s", e->text);
}
