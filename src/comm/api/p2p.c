/* SPDX-License-Identifier: Apache-2.0 */
/* p2p: the public calls for messages. */
#include <oarsong/p2p.h>

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "record/op_report.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/engine/message.h"
#include "comm/fault/fault.h"

static oar_status make_send(oari_call *call, oar_group *group, oar_span buf,
                            int peer, int64_t tag)
{
    OARI_TRY(oari_check_span("send", &buf));
    OARI_TRY(oari_check_rank("send", group, peer));
    OARI_TRY(oari_check_tag("send", tag, 0));
    OARI_TRY(oari_check_can(group, call->synchronous ? OAR_CAN_SYNCHRONOUS : 0,
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
    OARI_TRY(oari_check_source("recv", group, peer, tag));
    OARI_TRY(oari_check_can(group, call->at_most ? OAR_CAN_AT_MOST : 0,
                            "receives of at most a size"));
    if (call->at_most && buf.device.kind != OAR_CPU)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "recv of at most %zu bytes into device memory: only "
                         "host memory can be filled in part",
                         oari_span_bytes(&buf));
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

/* ---- a message that failed ----------------------------------------------- */

/* Adds to the last error which group it is about, if that is not the first. */
static oar_status fail_in_group(const oar_group *g, int peer, oar_status status)
{
    oar_error e = *oar_last_error();

    if (g->in_world == NULL)
        return status;
    oari_fault_place(g, g->rank, peer, &e);
    return oari_fail_with(&e);
}

oar_status oari_message_failed(const oar_work *work)
{
    const oari_call *call = &work->call;
    const oar_transfer *t = &work->transfer;
    const void *recorder = oari_group_recorder(work->group, t->source);
    char site[96], recalled[256] = "";
    const char *sent =
        recorder == NULL && work->inquired_ns != 0 ? work->sent : recalled;
    int theirs;

    oari_site_text(call->file, call->line, site, sizeof site);
    if (call->kind == OAR_COLL_SEND)
        return fail_in_group(
            work->group, call->root,
            oari_fail(OAR_E_SIZE,
                      "send of %zu %s (%zu bytes) to rank %d with tag %lld at "
                      "%s: the receive there is of another size",
                      call->in.count, oar_dtype_name(call->in.dtype),
                      oari_span_bytes(&call->in), call->root,
                      (long long)call->tag, site));
    theirs = oari_message_dtype(t);
    if (recorder != NULL)
        oari_message_recall(recorder, t->got_tag, recalled, sizeof recalled);
    oari_fail(work->status,
              "recv of %zu %s (%zu bytes) from rank %d with tag %lld at "
              "%s: that rank sent %zu bytes%s%s%s%s",
              call->out.count, oar_dtype_name(call->out.dtype),
              oari_span_bytes(&call->out), t->source,
              (long long)(t->got_tag & UINT32_MAX), site, t->got_bytes,
              theirs != 0 ? " of " : "",
              theirs != 0 ? oar_dtype_name((oar_dtype)(theirs - 1)) : "",
              sent[0] != 0 ? ", by " : "", sent);
    return fail_in_group(work->group, t->source, work->status);
}
