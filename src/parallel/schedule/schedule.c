/* SPDX-License-Identifier: Apache-2.0 */
/* schedule: rows of actions while they are filled, and questions about them.
 *
 * A schedule is filled by one maker or reader, then never changed: only the
 * number of its users is.
 */
#include "parallel/schedule/schedule.h"

#include "base/status.h"

/* ---- filling ------------------------------------------------------------- */

oar_status oari_schedule_draft_begin(int ranks, oari_schedule_draft *draft)
{
    oar_schedule *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return OAR_E_NOMEM;
    atomic_init(&s->users, 1);
    s->ranks = ranks;
    s->row = oari_alloc((size_t)ranks, sizeof *s->row);
    if (s->row == NULL) {
        oar_schedule_release(s);
        return OAR_E_NOMEM;
    }
    *draft = (oari_schedule_draft){ s, 0, 0, OAR_OK };
    return OAR_OK;
}

void oari_schedule_add(oari_schedule_draft *draft, int stage, oar_act act,
                       int micro)
{
    oari_action_row *row = &draft->schedule->row[draft->rank];
    oar_action action = { stage, act, micro, 0 };

    if (draft->status != OAR_OK || (draft->forward_only && act != OAR_ACT_F))
        return;
    draft->status = oari_vec_push(row, action);
}

/* Counts stages and micro-batches, and sees whether there are messages. */
static void count_numbers(oar_schedule *s)
{
    for (int r = 0; r < s->ranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const oar_action *a = &s->row[r].data[i];

            s->stages = a->stage < s->stages ? s->stages : a->stage + 1;
            s->micro = a->micro < s->micro ? s->micro : a->micro + 1;
            s->given |= oari_act_is_message(a->act);
        }
}

static oar_status find_ranks(oar_schedule *s)
{
    s->rank_of = oari_alloc((size_t)s->stages, sizeof *s->rank_of);
    if (s->rank_of == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < s->stages; i++)
        s->rank_of[i] = -1;
    for (int r = s->ranks - 1; r >= 0; r--)
        for (int64_t i = 0; i < s->row[r].count; i++)
            s->rank_of[s->row[r].data[i].stage] = r;
    return OAR_OK;
}

oar_status oari_schedule_draft_end(oari_schedule_draft *draft, int ahead,
                                   oar_schedule **schedule)
{
    oar_schedule *s = draft->schedule;
    oar_status status = draft->status;

    if (status == OAR_OK) {
        count_numbers(s);
        status = find_ranks(s);
    }
    if (status == OAR_OK && !s->given)
        status = oari_schedule_put_messages(s, ahead);
    if (status == OAR_OK)
        *schedule = s;
    else
        oar_schedule_release(s);
    return status;
}

/* ---- users --------------------------------------------------------------- */

oar_schedule *oar_schedule_retain(oar_schedule *schedule)
{
    if (schedule != NULL)
        atomic_fetch_add(&schedule->users, 1);
    return schedule;
}

void oar_schedule_release(oar_schedule *schedule)
{
    if (schedule == NULL || atomic_fetch_sub(&schedule->users, 1) > 1)
        return;
    for (int r = 0; schedule->row != NULL && r < schedule->ranks; r++)
        oari_vec_free(&schedule->row[r]);
    oari_free(schedule->row);
    oari_free(schedule->rank_of);
    oari_free(schedule);
}

/* ---- questions ----------------------------------------------------------- */

int oar_schedule_ranks(const oar_schedule *schedule)
{
    return schedule != NULL ? schedule->ranks : 0;
}

int oar_schedule_stages(const oar_schedule *schedule)
{
    return schedule != NULL ? schedule->stages : 0;
}

int oar_schedule_micro(const oar_schedule *schedule)
{
    return schedule != NULL ? schedule->micro : 0;
}

int oar_schedule_rank_of(const oar_schedule *schedule, int stage)
{
    return schedule != NULL && stage >= 0 && stage < schedule->stages
               ? schedule->rank_of[stage]
               : -1;
}

int64_t oar_schedule_actions(const oar_schedule *schedule, int rank)
{
    return schedule != NULL && rank >= 0 && rank < schedule->ranks
               ? schedule->row[rank].count
               : -1;
}

oar_status oar_schedule_action(const oar_schedule *schedule, int rank,
                               int64_t index, oar_action *action)
{
    int64_t count = oar_schedule_actions(schedule, rank);

    if (action == NULL)
        return oari_fail(OAR_E_ARG, "nowhere to write an action");
    if (count < 0)
        return oari_fail(OAR_E_RANK, "a schedule of %d ranks has no rank %d",
                         oar_schedule_ranks(schedule), rank);
    if (index < 0 || index >= count)
        return oari_fail(OAR_E_ARG,
                         "rank %d has %lld actions: there is no action %lld",
                         rank, (long long)count, (long long)index);
    *action = schedule->row[rank].data[index];
    return OAR_OK;
}
