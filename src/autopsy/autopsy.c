/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy: makes an analysis, and answers short questions from it. */
#include "autopsy/autopsy.h"

#include "base/alloc.h"
#include "base/status.h"
#include "record/recorder.h"

oar_status oari_analysis_make(const oar_autopsy *autopsy, oari_analysis *a)
{
    oar_status status;

    *a = (oari_analysis){ .autopsy = autopsy };
    status = oari_groups_join(a);
    if (status == OAR_OK)
        status = oari_waits_find(a);
    if (status != OAR_OK)
        oari_analysis_clear(a);
    else
        oari_verdict_find(a);
    return status;
}

void oari_analysis_clear(oari_analysis *a)
{
    for (int i = 0; i < a->groups; i++) {
        for (int r = 0; r < a->group[i].ranks; r++)
            oari_free(a->group[i].member[r].op);
        oari_free(a->group[i].member);
    }
    oari_free(a->group);
    oari_free(a->wait);
    oari_free(a->cycle);
    *a = (oari_analysis){ 0 };
}

int oar_autopsy_wrong(const oar_autopsy *autopsy)
{
    oari_analysis a = { 0 };
    int wrong;

    if (autopsy == NULL || oari_analysis_make(autopsy, &a) != OAR_OK)
        return 1;
    wrong = a.wrong;
    oari_analysis_clear(&a);
    return wrong;
}

int oari_autopsy_culprit(const oar_autopsy *autopsy)
{
    oari_analysis a = { 0 };
    int culprit;

    if (oari_analysis_make(autopsy, &a) != OAR_OK)
        return -1;
    culprit = a.culprit;
    oari_analysis_clear(&a);
    return culprit;
}

int oar_autopsy_stall(const oar_autopsy *autopsy, int64_t older_than_ms,
                      oar_stall *stall)
{
    oar_stall s = { .size = sizeof s, .kind = OAR_COLL_COUNT, .missing = -1 };
    oari_text_line text = { s.text, sizeof s.text, 0 };
    oari_analysis a = { 0 };
    const oari_wait *w, *cause;
    const oari_member *target;
    int there;

    if (autopsy == NULL || oari_analysis_make(autopsy, &a) != OAR_OK)
        return 0;
    w = oari_waits_longest(&a, older_than_ms * 1000000, 1);
    if (w == NULL || stall == NULL) {
        oari_analysis_clear(&a);
        return w != NULL;
    }
    oari_text_copy(s.group, sizeof s.group, w->in->ring->group,
                   sizeof w->in->ring->group);
    s.waiting_ms = w->age_ns / 1000000;
    s.rank = w->member->world;
    if ((target = oari_wait_target(w)) != NULL)
        s.missing = target->world;
    for (int i = 0; i < w->in->ranks; i++)
        s.missing_count += oari_waits_for(w, &w->in->member[i]);
    if (w->op != NULL) {
        oar_record r = oari_op_record(w->member, w->op);

        s.kind = w->op->kind;
        s.number = w->op->number != 0 ? w->op->number : w->op->sequence;
        oari_text_copy(s.site, sizeof s.site, r.site, sizeof r.site);
        oari_text_copy(s.label, sizeof s.label, r.label, sizeof r.label);
    }
    cause = oari_wait_follow(&a, w);
    oari_say_wait(&text, &a, cause, oari_wait_target(cause), 0);
    there = oari_struct_give(stall, &s, sizeof s, "stall") == OAR_OK;
    oari_analysis_clear(&a);
    return there;
}
