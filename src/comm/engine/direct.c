/* SPDX-License-Identifier: Apache-2.0 */
/* direct: small messages between ranks that share memory, in calls that wait.
 * One that can go into its queue at once, or that comes out of it while the
 * caller looks, needs no work, no transfer and no list. All else is left to the
 * driver, as is every so many send, so that a rank that only sends still hears
 * what others ask of it. */
#include "comm/engine/engine.h"
#include "comm/engine/message.h"

enum {
    MOST_BYTES = 16 << 10, /* larger ones come in parts, or are copied once */
    LOOKS = 1000,          /* for a message: a microsecond or two */
    ROUND = 64             /* sends, of which one is left to the driver */
};

/* Returns whether the call may be one for these functions. */
static int is_direct(const oar_group *g, const oari_call *call)
{
    return call->wire_tag == 0 && call->root >= 0 && !call->synchronous &&
           !call->at_most && call->message == NULL && !g->loose &&
           g->external.ops == NULL && g->in_tree->take != NULL &&
           oari_span_bytes(&call->out) <= MOST_BYTES;
}

static void end_direct(oar_group *g, uint64_t sequence)
{
    oari_recorder_done(g->recorder, sequence, OAR_RECORD_DONE);
}

int oari_direct_send(oar_group *group, const oari_call *call, uint64_t sequence)
{
    uint64_t tag = oari_message_tag(call->tag) |
                   oari_message_says(group, call->in.dtype, sequence);
    int sent;

    if (!is_direct(group, call) || !oari_engine_enter(group))
        return 0;
    sent = ++group->engine.direct_sends % ROUND != 0 &&
           !oari_group_broken(group) &&
           group->in_tree->push(group->self, call->root, tag, call->out.data,
                                oari_span_bytes(&call->out));
    if (sent)
        end_direct(group, sequence);
    oari_engine_leave(group);
    return sent;
}

/* A message of another dtype is left to the driver, which says so. */
int oari_direct_recv(oar_group *group, const oari_call *call, uint64_t sequence)
{
    uint64_t dtype = oari_message_says(group, call->out.dtype, 0);
    oari_direct_receive receive = { .tag = oari_message_tag(call->tag) | dtype,
                                    .any = oari_message_any(group, call->tag) &
                                           ~(UINT64_C(0xff) << OARI_TAG_DTYPE),
                                    .data = call->out.data,
                                    .bytes = oari_span_bytes(&call->out) };
    int taken;

    if (!is_direct(group, call) || !oari_engine_enter(group))
        return 0;
    taken = !oari_group_broken(group) &&
            group->in_tree->take(group->self, call->root, &receive,
                                 group->spin_ns != 0 ? LOOKS : 1);
    if (taken)
        end_direct(group, sequence);
    oari_engine_leave(group);
    return taken;
}
