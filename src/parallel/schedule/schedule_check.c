/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_check: what can be said about a schedule row by row: every action
 * once, in order, with its messages. What is left is circles, which
 * schedule_time.c finds by running it.
 *
 * Numbers in a text can be far larger than its rows. So the table of places,
 * which has all stages and micro-batches, is made only once every stage is
 * known to have as many F as there are micro-batches.
 */
#include "parallel/schedule/schedule.h"

#include "base/status.h"

typedef struct judge {
    const oar_schedule *s;
    oari_schedule_index *index;
    oari_schedule_writer *why;
    int forward_only;
} judge;

static int32_t place_of(const judge *j, int stage, int micro, oar_act act)
{
    return *oari_index_at(j->index, j->s, stage, micro, act);
}

/* ---- stages -------------------------------------------------------------- */

static oar_status check_stages(judge *j)
{
    const oar_schedule *s = j->s;

    for (int r = 0; r < s->ranks; r++) {
        if (s->row[r].count == 0) {
            oari_write(j->why, "rank %d has no action", r);
            return OAR_E_ARG;
        }
        for (int64_t i = 0; i < s->row[r].count; i++) {
            int stage = s->row[r].data[i].stage;

            if (s->rank_of[stage] == r)
                continue;
            oari_write_place(j->why, s, r, i);
            oari_write(j->why, ": stage %d is on rank %d already", stage,
                       s->rank_of[stage]);
            return OAR_E_ARG;
        }
    }
    for (int stage = 0; stage < s->stages; stage++)
        if (s->rank_of[stage] < 0) {
            oari_write(j->why, "stage %d is on no rank", stage);
            return OAR_E_ARG;
        }
    return OAR_OK;
}

/* Tells the first micro-batch that a stage does not run forward. */
static oar_status tell_missing(judge *j, int stage)
{
    const oari_action_row *row = &j->s->row[j->s->rank_of[stage]];
    unsigned char *seen = oari_alloc((size_t)j->s->micro, 1);
    int missing = 0;

    if (seen == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < row->count; i++)
        if (row->data[i].stage == stage && row->data[i].act == OAR_ACT_F)
            seen[row->data[i].micro] = 1;
    while (seen[missing])
        missing++;
    oari_free(seen);
    oari_write(j->why, "rank %d never runs %dF%d", j->s->rank_of[stage], stage,
               missing);
    return OAR_E_ARG;
}

static oar_status count_forwards(judge *j)
{
    const oar_schedule *s = j->s;
    int64_t *count = oari_alloc((size_t)s->stages, sizeof *count);
    oar_status status = OAR_OK;

    if (count == NULL)
        return OAR_E_NOMEM;
    j->forward_only = 1;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const oar_action *a = &s->row[r].data[i];

            count[a->stage] += a->act == OAR_ACT_F;
            j->forward_only &= a->act != OAR_ACT_B && a->act != OAR_ACT_I &&
                               a->act != OAR_ACT_W;
        }
    if (s->micro == 0) {
        oari_write(j->why, "there is no micro-batch");
        status = OAR_E_ARG;
    }
    for (int i = 0; status == OAR_OK && i < s->stages; i++)
        if (count[i] < s->micro)
            status = tell_missing(j, i);
    oari_free(count);
    return status;
}

/* ---- places -------------------------------------------------------------- */

static oar_status fill_index(judge *j)
{
    const oar_schedule *s = j->s;
    size_t places = (size_t)s->stages * (size_t)s->micro * 8;

    j->index->at = oari_alloc(places, sizeof *j->index->at);
    if (j->index->at == NULL)
        return OAR_E_NOMEM;
    memset(j->index->at, 0xff, places * sizeof *j->index->at);
    for (int r = 0; r < s->ranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const oar_action *a = &s->row[r].data[i];
            int32_t *at;

            if (a->micro < 0)
                continue;
            at = oari_index_at(j->index, s, a->stage, a->micro, a->act);
            if (*at >= 0) {
                oari_write_place(j->why, s, r, i);
                oari_write(j->why, ": it has run before");
                return OAR_E_ARG;
            }
            *at = (int32_t)i;
        }
    return OAR_OK;
}

static oar_status tell_absent(judge *j, int stage, int micro, oar_act act)
{
    oar_action absent = { stage, act, micro, 0 };

    oari_write(j->why, "rank %d never runs ", j->s->rank_of[stage]);
    oari_write_action(j->why, &absent);
    return OAR_E_ARG;
}

/* Tells that the action at `at` runs before one that must come first. */
static oar_status tell_order(judge *j, int stage, int64_t at, int64_t first)
{
    int rank = j->s->rank_of[stage];

    oari_write_place(j->why, j->s, rank, at);
    oari_write(j->why, ": it needs ");
    oari_write_action(j->why, &j->s->row[rank].data[first]);
    oari_write(j->why, ", which comes later in its row");
    return OAR_E_ARG;
}

/* ---- forward and backward ------------------------------------------------ */

static oar_status check_backward(judge *j, int stage, int m)
{
    int32_t forward = place_of(j, stage, m, OAR_ACT_F);
    int32_t whole = place_of(j, stage, m, OAR_ACT_B);
    int32_t inputs = place_of(j, stage, m, OAR_ACT_I);
    int32_t weights = place_of(j, stage, m, OAR_ACT_W);
    int32_t first = whole >= 0 ? whole : inputs;

    if (whole >= 0 && (inputs >= 0 || weights >= 0)) {
        oari_write_place(j->why, j->s, j->s->rank_of[stage], whole);
        oari_write(j->why, ": its row also has %s of it",
                   inputs >= 0 ? "I" : "W");
        return OAR_E_ARG;
    }
    if (whole < 0 && inputs < 0)
        return tell_absent(j, stage, m, weights >= 0 ? OAR_ACT_I : OAR_ACT_B);
    if (whole < 0 && weights < 0)
        return tell_absent(j, stage, m, OAR_ACT_W);
    if (first < forward)
        return tell_order(j, stage, first, forward);
    return whole < 0 && weights < inputs ? tell_order(j, stage, weights, inputs)
                                         : OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

/* A message that the action at `at` needs: a send after it, a receive before.
 * One that is not needed must not be there. */
static oar_status check_message(judge *j, int stage, int m, oar_act act,
                                int32_t at)
{
    int32_t place = place_of(j, stage, m, act);
    int sends = act == OAR_ACT_SEND_F || act == OAR_ACT_SEND_B;
    int needed = at >= 0 && oari_message_peer(j->s, stage, act) >= 0;

    if (!needed && place >= 0) {
        oari_write_place(j->why, j->s, j->s->rank_of[stage], place);
        oari_write(j->why, ": there is no other rank to %s",
                   sends ? "send it to" : "receive it from");
        return OAR_E_ARG;
    }
    if (needed && place < 0)
        return tell_absent(j, stage, m, act);
    if (needed && sends && place < at)
        return tell_order(j, stage, place, at);
    return needed && !sends && place > at ? tell_order(j, stage, at, place)
                                          : OAR_OK;
}

static oar_status check_micro(judge *j, int stage, int m)
{
    int32_t forward = place_of(j, stage, m, OAR_ACT_F), backward;

    if (!j->forward_only)
        OARI_TRY(check_backward(j, stage, m));
    backward = place_of(j, stage, m, OAR_ACT_B);
    if (backward < 0)
        backward = place_of(j, stage, m, OAR_ACT_I);
    OARI_TRY(check_message(j, stage, m, OAR_ACT_RECV_F, forward));
    OARI_TRY(check_message(j, stage, m, OAR_ACT_SEND_F, forward));
    OARI_TRY(check_message(j, stage, m, OAR_ACT_RECV_B, backward));
    return check_message(j, stage, m, OAR_ACT_SEND_B, backward);
}

/* ---- shards -------------------------------------------------------------- */

/* What has happened to a stage so far. */
enum { UNTOUCHED, USED, WHOLE, SHARDED };

/* Returns what is wrong with an action of a stage in this state, or NULL. */
static const char *shard_fault(int state, const oar_action *a)
{
    if (a->act == OAR_ACT_UNSHARD && state == WHOLE)
        return "the stage is whole already";
    if (a->act == OAR_ACT_UNSHARD && state == USED)
        return "the stage was used before";
    if (a->act == OAR_ACT_RESHARD && state != WHOLE)
        return "the stage is not whole";
    if (oari_act_computes(a->act) && state == SHARDED)
        return "the stage is not whole any more";
    return NULL;
}

static int next_state(int state, const oar_action *a)
{
    if (a->act == OAR_ACT_UNSHARD)
        return WHOLE;
    if (a->act == OAR_ACT_RESHARD)
        return SHARDED;
    return state == UNTOUCHED && oari_act_computes(a->act) ? USED : state;
}

/* Of a stage that is unsharded anywhere, every action lies between an UNSHARD
 * and its RESHARD; its gradients are reduced once, after all its backwards. */
static oar_status check_shards(judge *j, unsigned char *state,
                               unsigned char *reduced)
{
    for (int r = 0; r < j->s->ranks; r++)
        for (int64_t i = 0; i < j->s->row[r].count; i++) {
            const oar_action *a = &j->s->row[r].data[i];
            const char *fault = shard_fault(state[a->stage], a);

            if (fault == NULL && reduced[a->stage] &&
                (a->act == OAR_ACT_REDUCE_GRAD || a->act == OAR_ACT_B ||
                 a->act == OAR_ACT_W))
                fault = "the stage's gradients are reduced already";
            if (fault != NULL) {
                oari_write_place(j->why, j->s, r, i);
                oari_write(j->why, ": %s", fault);
                return OAR_E_ARG;
            }
            state[a->stage] = (unsigned char)next_state(state[a->stage], a);
            reduced[a->stage] |= a->act == OAR_ACT_REDUCE_GRAD;
        }
    return OAR_OK;
}

/* ---- all ----------------------------------------------------------------- */

oar_status oari_schedule_check_rows(const oar_schedule *s,
                                    oari_schedule_index *index,
                                    oari_schedule_writer *why)
{
    judge j = { s, index, why, 0 };
    unsigned char *state;
    oar_status status;

    OARI_TRY(check_stages(&j));
    OARI_TRY(count_forwards(&j));
    OARI_TRY(fill_index(&j));
    for (int stage = 0; stage < s->stages; stage++)
        for (int m = 0; m < s->micro; m++)
            OARI_TRY(check_micro(&j, stage, m));
    state = oari_alloc((size_t)s->stages, 2);
    if (state == NULL)
        return OAR_E_NOMEM;
    status = check_shards(&j, state, state + s->stages);
    oari_free(state);
    return status;
}
