/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_make: the kinds, and those that have a stage on each rank or deal
 * stages in turn: gpipe, 1f1b, zb_h1 and looped_bfs.
 */
#include "parallel/schedule/schedule.h"

#include "base/status.h"

static const struct {
    void (*make)(oari_schedule_draft *draft, const oari_schedule_size *z);
    int least, most; /* chunks */
} kinds[OAR_SCHEDULE_KINDS] = {
    [OAR_SCHEDULE_GPIPE] = { oari_make_gpipe, 1, 1 },
    [OAR_SCHEDULE_1F1B] = { oari_make_1f1b, 1, 1 },
    [OAR_SCHEDULE_INTERLEAVED] = { oari_make_interleaved, 1,
                                   OARI_SCHEDULE_NUMBERS },
    [OAR_SCHEDULE_LOOPED_BFS] = { oari_make_looped_bfs, 1,
                                  OARI_SCHEDULE_NUMBERS },
    [OAR_SCHEDULE_ZB_H1] = { oari_make_zb_h1, 1, 1 },
    [OAR_SCHEDULE_ZB_V] = { oari_make_zb_v, 2, 2 },
    [OAR_SCHEDULE_DUALPIPE_V] = { oari_make_dualpipe_v, 2, 2 },
};

const char *oar_schedule_kind_name(oar_schedule_kind kind)
{
    switch (kind) {
#define X(name, value, word) \
    case name: return word;
        OAR_SCHEDULE_KIND_LIST(X)
#undef X
    }
    return "?";
}

static oar_status check_chunks(oar_schedule_kind kind, int chunks)
{
    if (chunks >= kinds[kind].least && chunks <= kinds[kind].most)
        return OAR_OK;
    if (kinds[kind].most == OARI_SCHEDULE_NUMBERS)
        return oari_fail(OAR_E_ARG, "%s with %d stages on each rank",
                         oar_schedule_kind_name(kind), chunks);
    return oari_fail(OAR_E_ARG, "%s with %d stages on each rank: it has %d",
                     oar_schedule_kind_name(kind), chunks, kinds[kind].most);
}

static oar_status check_size(oar_schedule_kind kind,
                             const oari_schedule_size *z)
{
    int64_t stages = (int64_t)z->ranks * z->chunks;

    if (z->ranks < 1)
        return oari_fail(OAR_E_ARG, "a schedule of %d ranks", z->ranks);
    if (z->micro < 1)
        return oari_fail(OAR_E_ARG, "a schedule of %d micro-batches", z->micro);
    OARI_TRY(check_chunks(kind, z->chunks));
    if (stages > OARI_SCHEDULE_NUMBERS || z->micro > OARI_SCHEDULE_NUMBERS ||
        stages * z->micro > OARI_SCHEDULE_ACTIONS / 7)
        return oari_fail(OAR_E_ARG,
                         "a schedule of %lld stages and %d micro-batches: at "
                         "most %d of each, and %d actions",
                         (long long)stages, z->micro, OARI_SCHEDULE_NUMBERS,
                         OARI_SCHEDULE_ACTIONS);
    if (kind == OAR_SCHEDULE_DUALPIPE_V && z->micro / 2 < z->ranks)
        return oari_fail(OAR_E_ARG,
                         "dualpipe_v of %d ranks needs at least %d "
                         "micro-batches, not %d",
                         z->ranks, 2 * z->ranks, z->micro);
    return OAR_OK;
}

oar_status oar_schedule_make(oar_schedule_kind kind, int ranks, int micro,
                             const oar_schedule_opts *opts,
                             oar_schedule **schedule)
{
    oar_schedule_opts o = { 0 };
    oari_schedule_size z = { ranks, micro, 0 };
    oari_schedule_draft draft;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if ((unsigned)kind >= OAR_SCHEDULE_KINDS)
        return oari_fail(OAR_E_ARG, "there is no kind %d of schedules",
                         (int)kind);
    if (schedule == NULL)
        return oari_fail(OAR_E_ARG, "nowhere to give a schedule");
    z.chunks = o.chunks != 0 ? o.chunks : kinds[kind].most > 1 ? 2 : 1;
    OARI_TRY(check_size(kind, &z));
    OARI_TRY(oari_schedule_draft_begin(ranks, &draft));
    draft.forward_only = o.forward_only;
    kinds[kind].make(&draft, &z);
    return oari_schedule_draft_end(&draft, o.ahead, schedule);
}

/* ---- the simple ones ----------------------------------------------------- */

/* A whole row of one act for one stage. */
static void add_all(oari_schedule_draft *d, int stage, oar_act act, int micro)
{
    for (int m = 0; m < micro; m++)
        oari_schedule_add(d, stage, act, m);
}

/* Backward goes through the micro-batches in the order of forward, so that
 * gradients are added in the order of one process. */
void oari_make_looped_bfs(oari_schedule_draft *d, const oari_schedule_size *z)
{
    for (d->rank = 0; d->rank < z->ranks; d->rank++) {
        for (int c = 0; c < z->chunks; c++)
            add_all(d, c * z->ranks + d->rank, OAR_ACT_F, z->micro);
        for (int c = z->chunks - 1; c >= 0; c--)
            add_all(d, c * z->ranks + d->rank, OAR_ACT_B, z->micro);
    }
}

void oari_make_gpipe(oari_schedule_draft *d, const oari_schedule_size *z)
{
    oari_make_looped_bfs(d, z);
}

/* Returns how many micro-batches a rank takes in before its first backward. */
static int warm_up(int rank, const oari_schedule_size *z)
{
    int behind = z->ranks - rank - 1;

    return behind < z->micro ? behind : z->micro;
}

void oari_make_1f1b(oari_schedule_draft *d, const oari_schedule_size *z)
{
    for (int r = d->rank = 0; r < z->ranks; r = ++d->rank) {
        int warm = warm_up(r, z);

        add_all(d, r, OAR_ACT_F, warm);
        for (int m = 0; m < z->micro; m++) {
            if (warm + m < z->micro)
                oari_schedule_add(d, r, OAR_ACT_F, warm + m);
            oari_schedule_add(d, r, OAR_ACT_B, m);
        }
    }
}

/* Rank r keeps r weight halves back, and so holds as much as in 1f1b. */
void oari_make_zb_h1(oari_schedule_draft *d, const oari_schedule_size *z)
{
    for (int r = d->rank = 0; r < z->ranks; r = ++d->rank) {
        int warm = warm_up(r, z), weights = 0;

        add_all(d, r, OAR_ACT_F, warm);
        for (int m = 0; m < z->micro; m++) {
            if (warm + m < z->micro)
                oari_schedule_add(d, r, OAR_ACT_F, warm + m);
            oari_schedule_add(d, r, OAR_ACT_I, m);
            if (m + 1 - weights > r)
                oari_schedule_add(d, r, OAR_ACT_W, weights++);
        }
        while (weights < z->micro)
            oari_schedule_add(d, r, OAR_ACT_W, weights++);
    }
}
