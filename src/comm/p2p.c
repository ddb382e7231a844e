/* SPDX-License-Identifier: Apache-2.0 */
/* p2p: the public calls for messages. */
#include <oarsong/p2p.h>

#include <inttypes.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/check.h"

static oar_status check_can(const oar_group *g, uint32_t bit, const char *what)
{
    if (g->backend->send == NULL)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no messages",
                         g->backend->name);
    if (bit != 0 && (g->can & bit) == 0)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no %s",
                         g->backend->name, what);
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

oar_status oar_probe(oar_group *group, int peer, int64_t tag, int *found,
                     oar_message *message)
{
    oar_envelope e = { .size = sizeof e };
    int there;

    if (group == NULL || found == NULL)
        return oari_fail(OAR_E_ARG, "probe without a %s",
                         group == NULL ? "group" : "place for the answer");
    OARI_TRY(oari_group_check(group));
    OARI_TRY(check_source("probe", group, peer, tag));
    OARI_TRY(check_can(group, OAR_CAN_PROBE, "probe"));
    there = oari_engine_peek(group, peer, oari_message_tag(tag),
                             oari_message_any(tag), &e);
    OARI_TRY(oari_group_check(group));
    if (there)
        OARI_TRY(give_message(&e, message));
    *found = there;
    return OAR_OK;
}

oar_status oar_probe_wait(oar_group *group, int peer, int64_t tag,
                          int64_t timeout_ms, oar_message *message)
{
    int64_t limit = timeout_ms, deadline, idle = 0;
    int found = 0;

    if (group != NULL && limit == 0)
        limit = group->timeout_ms;
    deadline = oari_deadline(limit);
    for (;;) {
        OARI_TRY(oar_probe(group, peer, tag, &found, message));
        if (found)
            return OAR_OK;
        if (oari_now_ns() >= deadline)
            return oari_fail(OAR_E_TIMEOUT,
                             "no message from rank %d with tag %" PRId64
                             " in %" PRId64 " ms",
                             peer, tag, limit);
        oari_rest(&idle);
    }
}
