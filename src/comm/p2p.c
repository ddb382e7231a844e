/* SPDX-License-Identifier: Apache-2.0 */
/* p2p: the public calls for messages. */
#include <oarsong/p2p.h>

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/account.h"
#include "comm/check.h"
#include "comm/dispute.h"

static oar_status check_can(const oar_group *g, uint32_t bit, const char *what)
{
    if (oari_carrier(g)->send == NULL)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no messages",
                         oar_group_backend(g));
    if (bit != 0 && (g->can & bit) == 0)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no %s",
                         oar_group_backend(g), what);
    return OAR_OK;
}

static oar_status check_tag(const char *what, int64_t tag, int any)
{
    if ((tag >= 0 && tag <= UINT32_MAX) || (any && tag == OAR_ANY_TAG))
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s with tag %" PRId64 ": 0 to %" PRIu32 "%s",
                     what, tag, UINT32_MAX, any ? ", or OAR_ANY_TAG" : "");
}

/* Where a receive or a probe looks. */
static oar_status check_source(const char *what, const oar_group *g, int peer,
                               int64_t tag)
{
    OARI_TRY(check_tag(what, tag, 1));
    if (peer != OAR_ANY_SOURCE)
        OARI_TRY(oari_check_rank(what, g, peer));
    if (peer == OAR_ANY_SOURCE || tag == OAR_ANY_TAG)
        return check_can(g, OAR_CAN_ANY, "wildcards");
    return check_can(g, 0, "");
}

static oar_status make_send(oari_call *call, oar_group *group, oar_span buf,
                            int peer, int64_t tag)
{
    OARI_TRY(oari_check_span("send", &buf));
    OARI_TRY(oari_check_rank("send", group, peer));
    OARI_TRY(check_tag("send", tag, 0));
    OARI_TRY(check_can(group, call->synchronous ? OAR_CAN_SYNCHRONOUS : 0,
                       "synchronous sends"));
    call->in = call->out = buf;
    call->root = peer;
    call->tag = tag;
    return OAR_OK;
}

static oar_status make_recv(oari_call *call, oar_group *group, oar_span buf,
                            int peer, int64_t tag)
{
    OARI_TRY(oari_check_span("recv", &buf));
    OARI_TRY(check_source("recv", group, peer, tag));
    call->in = call->out = buf;
    call->root = peer;
    call->tag = tag;
    return OAR_OK;
}

oar_status oar_send_at(const char *file, int line, oar_group *group,
                       oar_span buf, int peer, int64_t tag,
                       const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_SEND, file, line, group, opts));
    OARI_TRY(make_send(&call, group, buf, peer, tag));
    return oari_post(group, &call, work);
}

oar_status oar_recv_at(const char *file, int line, oar_group *group,
                       oar_span buf, int peer, int64_t tag,
                       const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_RECV, file, line, group, opts));
    OARI_TRY(make_recv(&call, group, buf, peer, tag));
    return oari_post(group, &call, work);
}

oar_status oar_sendrecv_at(const char *file, int line, oar_group *group,
                           oar_span out, int to, int64_t out_tag, oar_span in,
                           int from, int64_t in_tag, const oar_call_opts *opts,
                           oar_work **work)
{
    oari_call call[2];

    OARI_TRY(oari_call_begin(&call[0], OAR_COLL_RECV, file, line, group, opts));
    OARI_TRY(make_recv(&call[0], group, in, from, in_tag));
    OARI_TRY(oari_call_begin(&call[1], OAR_COLL_SEND, file, line, group, opts));
    OARI_TRY(make_send(&call[1], group, out, to, out_tag));
    return oari_post_many(group, 2, call, work);
}

/* ---- what both sides say ------------------------------------------------- */

enum {
    SEQUENCE_BITS = 61 - OARI_TAG_SEQUENCE,
    INQUIRE_MS = 300 /* for a sender that waits for something */
};

static const uint64_t sequence_mask = (UINT64_C(1) << SEQUENCE_BITS) - 1;

uint64_t oari_message_says(const oar_work *work)
{
    if (work->call.kind != OAR_COLL_SEND ||
        (work->group->can & OAR_CAN_ANY) == 0)
        return 0;
    return (uint64_t)(work->call.in.dtype + 1) << OARI_TAG_DTYPE |
           (work->sequence & sequence_mask) << OARI_TAG_SEQUENCE;
}

/* The dtype of a message that has come, plus one; 0: it does not say. */
static int dtype_told(const oar_transfer *t)
{
    return (int)(t->got_tag >> OARI_TAG_DTYPE & 0xff);
}

/* u8 is bytes, whatever they are: on either side it fits everything. */
oar_status oari_message_check(const oar_work *work)
{
    const oar_transfer *t = &work->transfer;
    int told = dtype_told(t), mine = (int)work->call.out.dtype + 1;

    if (t->status != OAR_OK || work->call.kind != OAR_COLL_RECV ||
        work->call.wire_tag != 0 || told == 0 || told == mine ||
        told == OAR_U8 + 1 || mine == OAR_U8 + 1)
        return t->status;
    return OAR_E_DTYPE;
}

/* The last operation whose number ends like that. */
void oari_message_recall(const void *recorder, uint64_t tag, char *text,
                         size_t bytes)
{
    uint64_t low = tag >> OARI_TAG_SEQUENCE & sequence_mask, back;
    oar_record r;

    text[0] = 0;
    if (oari_recorder_newest(recorder, 0, &r) != OAR_OK)
        return;
    back = (r.sequence - low) & sequence_mask;
    if (back < r.sequence &&
        oari_recorder_by_sequence(recorder, r.sequence - back, &r) == OAR_OK &&
        r.kind == OAR_COLL_SEND)
        oari_record_text(&r, text, bytes);
}

int oari_message_settled(oar_work *work)
{
    const oar_transfer *t = &work->transfer;
    oar_group *g = work->group;
    oar_status status = oari_message_check(work);

    if (work->inquired_ns != 0)
        return work->sent[0] != 0 || oari_now_ns() >= work->inquired_ns;
    if ((status != OAR_E_SIZE && status != OAR_E_DTYPE) ||
        work->call.kind != OAR_COLL_RECV || work->call.wire_tag != 0 ||
        g->engine.dispute == NULL || oari_group_recorder(g, t->source) != NULL)
        return 1;
    work->inquired_ns = oari_deadline(INQUIRE_MS);
    work->sent[0] = 0;
    oari_dispute_inquire(g, t);
    return 0;
}

/* The last error, with the group it is about. */
static oar_status fail_on(const oar_group *g, int peer, oar_status status)
{
    oar_error e = *oar_last_error();

    if (g->in_world == NULL)
        return status;
    oari_fault_place(g, g->rank, peer, &e);
    return oari_fail_with(&e);
}

static oar_status refused(const oar_work *work, const char *site)
{
    return oari_fail(OAR_E_SIZE,
                     "send of %zu %s (%zu bytes) to rank %d with tag %lld at "
                     "%s: the receive there is of another size",
                     work->call.in.count, oar_dtype_name(work->call.in.dtype),
                     oari_span_bytes(&work->call.in), work->call.root,
                     (long long)work->call.tag, site);
}

oar_status oari_message_failed(const oar_work *work)
{
    const oari_call *call = &work->call;
    const oar_transfer *t = &work->transfer;
    const void *recorder = oari_group_recorder(work->group, t->source);
    char site[96], recalled[256] = "";
    const char *sent =
        recorder == NULL && work->inquired_ns != 0 ? work->sent : recalled;
    int told;

    oari_site_text(call->file, call->line, site, sizeof site);
    if (call->kind == OAR_COLL_SEND)
        return fail_on(work->group, call->root, refused(work, site));
    told = dtype_told(t);
    if (recorder != NULL)
        oari_message_recall(recorder, t->got_tag, recalled, sizeof recalled);
    oari_fail(work->status,
              "recv of %zu %s (%zu bytes) from rank %d with tag %lld at "
              "%s: that rank sent %zu bytes%s%s%s%s",
              call->out.count, oar_dtype_name(call->out.dtype),
              oari_span_bytes(&call->out), t->source,
              (long long)(t->got_tag & UINT32_MAX), site, t->got_bytes,
              told != 0 ? " of " : "",
              told != 0 ? oar_dtype_name((oar_dtype)(told - 1)) : "",
              sent[0] != 0 ? ", by " : "", sent);
    return fail_on(work->group, t->source, work->status);
}

/* ---- probing ------------------------------------------------------------- */

static oar_status give_message(const oar_envelope *e, oar_message *message)
{
    oar_message found = { .size = sizeof found,
                          .source = e->source,
                          .tag = (int64_t)(e->tag & UINT32_MAX),
                          .bytes = e->bytes };

    if (message == NULL)
        return OAR_OK;
    return oari_struct_give(message, &found, sizeof found, "message");
}

static oar_status make_probe(oari_call *call, const char *file, int line,
                             oar_group *group, int peer, int64_t tag)
{
    OARI_TRY(oari_call_begin(call, OAR_COLL_PROBE, file, line, group, NULL));
    OARI_TRY(oari_group_check(group));
    OARI_TRY(check_source("probe", group, peer, tag));
    OARI_TRY(check_can(group, OAR_CAN_PROBE, "probe"));
    call->root = peer;
    call->tag = tag;
    return OAR_OK;
}

oar_status oar_probe_at(const char *file, int line, oar_group *group, int peer,
                        int64_t tag, int *found, oar_message *message)
{
    oar_envelope e = { .size = sizeof e };
    oari_call call;
    oar_work work;
    int there;

    if (found == NULL)
        return oari_fail(OAR_E_ARG, "probe without a place for the answer");
    OARI_TRY(make_probe(&call, file, line, group, peer, tag));
    oari_work_init(&work, group, &call);
    there = oari_engine_poll(group, &work, &e);
    OARI_TRY(oari_group_check(group));
    if (there)
        OARI_TRY(give_message(&e, message));
    *found = there;
    return OAR_OK;
}

/* Whether there is one; 0: not in time, or the group has ended. */
static int await_message(oar_group *group, oar_work *work, int64_t limit_ms,
                         oar_envelope *e)
{
    int64_t deadline = oari_deadline(limit_ms), idle = 0;

    work->since_ns = oari_now_ns();
    for (;;) {
        if (oari_engine_probe(group, work, e))
            return 1;
        if (oari_group_broken(group) || oari_now_ns() >= deadline)
            return 0;
        oari_rest(&idle);
    }
}

oar_status oar_probe_wait_at(const char *file, int line, oar_group *group,
                             int peer, int64_t tag, int64_t timeout_ms,
                             oar_message *message)
{
    oar_envelope e = { .size = sizeof e };
    int64_t limit = timeout_ms;
    oari_call call;
    oar_work work;
    int there;

    OARI_TRY(make_probe(&call, file, line, group, peer, tag));
    oari_work_init(&work, group, &call);
    if (limit == 0)
        limit = group->timeout_ms;
    work.sequence = oari_work_record(group, &work.call, OARI_AWAITED);
    there = await_message(group, &work, limit, &e);
    oari_recorder_done(group->recorder, work.sequence,
                       there || !oari_group_broken(group) ? OAR_RECORD_DONE
                                                          : OAR_RECORD_FAILED);
    if (there)
        return give_message(&e, message);
    OARI_TRY(oari_group_check(group));
    return oari_fail(OAR_E_TIMEOUT,
                     "no message from rank %d with tag %" PRId64 " in %" PRId64
                     " ms",
                     peer, tag, limit);
}
