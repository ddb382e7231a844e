/* SPDX-License-Identifier: Apache-2.0 */
/* message: what a message says besides its bytes, and what is checked when it
 * has come. */
#include "comm/engine/message.h"

#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/engine.h"
#include "record/op_report.h"

enum { INQUIRE_MS = 300 /* within which a waiting sender answers */ };

int oari_message_dtype(const oar_transfer *t)
{
    return (int)(t->got_tag >> OARI_TAG_DTYPE & 0xff);
}

/* u8 stands for plain bytes: on either side it matches every dtype. */
oar_status oari_message_check(const oar_work *work)
{
    const oar_transfer *t = &work->transfer;
    int theirs = oari_message_dtype(t), mine = (int)work->call.out.dtype + 1;

    if (t->status != OAR_OK || work->call.kind != OAR_COLL_RECV ||
        work->call.wire_tag != 0 || theirs == 0 || theirs == mine ||
        theirs == OAR_U8 + 1 || mine == OAR_U8 + 1)
        return t->status;
    return OAR_E_DTYPE;
}

/* Finds the newest operation whose number ends in the bits of the tag. */
void oari_message_recall(const void *recorder, uint64_t tag, char *text,
                         size_t bytes)
{
    uint64_t low = tag >> OARI_TAG_SEQUENCE & oari_tag_sequence_mask, back;
    oar_record r;

    text[0] = 0;
    if (oari_recorder_newest(recorder, 0, &r) != OAR_OK)
        return;
    back = (r.sequence - low) & oari_tag_sequence_mask;
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
        g->engine.mismatch == NULL || oari_group_recorder(g, t->source) != NULL)
        return 1;
    work->inquired_ns = oari_deadline(INQUIRE_MS);
    work->sent[0] = 0;
    g->engine.events->inquire(g, t);
    return 0;
}

void oari_message_came(const oar_work *work)
{
    const oar_transfer *t = &work->transfer;
    oar_message came = { .size = sizeof came,
                         .source = t->source,
                         .tag = (int64_t)(t->got_tag & UINT32_MAX),
                         .bytes = t->got_bytes };

    if (work->call.kind == OAR_COLL_RECV && work->call.message != NULL &&
        (t->status == OAR_OK || t->status == OAR_E_SIZE))
        oari_struct_give(work->call.message, &came, sizeof came, "message");
}
