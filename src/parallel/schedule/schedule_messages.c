/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_messages: puts sends and receives into rows that have none.
 *
 * A result or gradient is sent right after the action that made it. Its receive
 * is posted some actions before the one that takes it; that of a gradient not
 * before the F of its micro-batch, which is when the micro-batch first needs
 * memory.
 */
#include "parallel/schedule/schedule.h"

enum { MOST_AHEAD = 64 };

int oari_message_peer(const oar_schedule *s, int stage, oar_act act)
{
    int forward = act == OAR_ACT_SEND_F || act == OAR_ACT_RECV_F;
    int sends = act == OAR_ACT_SEND_F || act == OAR_ACT_SEND_B;
    int peer = forward == sends ? stage + 1 : stage - 1;

    if (peer < 0 || peer >= s->stages || s->rank_of[peer] == s->rank_of[stage])
        return -1;
    return peer;
}

static int is_backward(oar_act act)
{
    return act == OAR_ACT_B || act == OAR_ACT_I;
}

/* Whether an action takes (or, for a send, makes) a message of this act. */
static int needs_message(const oar_schedule *s, const oar_action *a,
                         oar_act message)
{
    int forward = message == OAR_ACT_SEND_F || message == OAR_ACT_RECV_F;

    return (forward ? a->act == OAR_ACT_F : is_backward(a->act)) &&
           oari_message_peer(s, a->stage, message) >= 0;
}

/* Returns the place before which the receive for action `at` is posted. */
static int64_t receive_place(const oari_action_row *row, int64_t at, int ahead)
{
    const oar_action *a = &row->data[at];
    int64_t place = at;

    for (; place > 0 && at - place < ahead; place--) {
        const oar_action *b = &row->data[place - 1];

        if (b->stage == a->stage && b->micro == a->micro)
            break;
    }
    return place;
}

static oar_status push_message(const oar_schedule *s, const oar_action *a,
                               oar_act message, oari_action_row *to)
{
    oar_action made = { a->stage, message, a->micro, 0 };

    return needs_message(s, a, message) ? oari_vec_push(to, made) : OAR_OK;
}

/* Posts the receives of the actions from `at` on whose place is here. */
static oar_status push_receives(const oar_schedule *s,
                                const oari_action_row *from, int64_t at,
                                int ahead, oari_action_row *to)
{
    for (int64_t k = at; k < from->count && k <= at + ahead; k++) {
        if (receive_place(from, k, ahead) != at)
            continue;
        OARI_TRY(push_message(s, &from->data[k], OAR_ACT_RECV_F, to));
        OARI_TRY(push_message(s, &from->data[k], OAR_ACT_RECV_B, to));
    }
    return OAR_OK;
}

static oar_status put_into(const oar_schedule *s, const oari_action_row *from,
                           int ahead, oari_action_row *to)
{
    for (int64_t i = 0; i < from->count; i++) {
        OARI_TRY(push_receives(s, from, i, ahead, to));
        OARI_TRY(oari_vec_push(to, from->data[i]));
        OARI_TRY(push_message(s, &from->data[i], OAR_ACT_SEND_F, to));
        OARI_TRY(push_message(s, &from->data[i], OAR_ACT_SEND_B, to));
    }
    return OAR_OK;
}

oar_status oari_schedule_put_messages(oar_schedule *s, int ahead)
{
    ahead = ahead == 0 ? 1 : ahead < 0 ? 0 : ahead;
    if (ahead > MOST_AHEAD)
        return oari_fail(OAR_E_ARG,
                         "receives posted %d actions ahead: at most %d", ahead,
                         MOST_AHEAD);
    for (int r = 0; r < s->ranks; r++) {
        oari_action_row full = { NULL, 0, 0 };
        oar_status status = put_into(s, &s->row[r], ahead, &full);

        if (status != OAR_OK) {
            oari_vec_free(&full);
            return status;
        }
        oari_vec_free(&s->row[r]);
        s->row[r] = full;
    }
    return OAR_OK;
}
