/* SPDX-License-Identifier: Apache-2.0 */
/* staging_messages: a message of device memory: down as a whole, over the inner
 * group, and up as a whole. None waits for another, so that ranks that send to
 * each other do not stand in each other's way. */
#include "backends/host_staging/staging.h"
#include "base/status.h"

static size_t bytes_of(const hosted_job *job)
{
    const oar_span *s = &job->call.out;

    return s->count * oar_dtype_size(s->dtype);
}

static oar_status bring_down(hosted *h, hosted_job *job)
{
    hosted_slot *s = &h->slot[0];

    OARI_TRY(hosted_begin(h, &job->call));
    OARI_TRY(hosted_load(h, job->memory, job->call.out.data, bytes_of(job)));
    OARI_TRY(hosted_record(h, s->loaded, h->down));
    return hosted_await(h, s->loaded);
}

oar_status hosted_letter_begin(hosted *h, hosted_job *job)
{
    const oar_collective *c = &job->call;
    oar_call_opts o = hosted_patience();
    oar_span span;

    if (bytes_of(job) != 0)
        OARI_TRY(oar_pinned_alloc(bytes_of(job), &job->memory));
    span = oar_span_of(job->memory, c->out.count, c->out.dtype);
    if (c->kind == OAR_COLL_SEND) {
        OARI_TRY(bring_down(h, job));
        return oar_send(h->inner, span, c->root, c->tag, &o, &job->work);
    }
    job->message = oar_message_init();
    o.message = &job->message;
    return oar_recv(h->inner, span, c->root, c->tag, &o, &job->work);
}

/* What came goes up; its memory may be given back when it has. */
static oar_status bring_up(hosted *h, hosted_job *job)
{
    OARI_TRY(hosted_begin(h, &job->call));
    OARI_TRY(hosted_store(h, job->call.out.data, job->memory, bytes_of(job)));
    OARI_TRY(hosted_finish(h, &job->call));
    return hosted_await(h, job->call.finished);
}

int hosted_letter_done(hosted *h, hosted_job *job, oar_status *status)
{
    int done = 0;

    *status = oar_work_test(job->work, &done);
    if (!done && *status == OAR_OK)
        return 0;
    if (*status == OAR_OK && job->call.kind == OAR_COLL_RECV)
        *status = bring_up(h, job);
    else if (*status == OAR_OK)
        *status = hosted_finish(h, &job->call);
    return 1;
}

void hosted_letter_drop(hosted_job *job)
{
    oar_work_release(job->work);
    oar_pinned_free(job->memory);
    job->work = NULL;
    job->memory = NULL;
}
