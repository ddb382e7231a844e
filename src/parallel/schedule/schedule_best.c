/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_best: tries all kinds, and takes the fastest that fits. */
#include <math.h>

#include "parallel/schedule/schedule.h"
#include "base/status.h"

/* The costs of stages that are so many parts each. */
typedef struct part_costs {
    double *time[3];
    uint64_t *bytes[3];
    oar_schedule_cost cost;
} part_costs;

static void free_costs(part_costs *p)
{
    for (int i = 0; i < 3; i++) {
        oari_free(p->time[i]);
        oari_free(p->bytes[i]);
    }
}

/* Adds up neighbouring parts. A stage sends what its last part does. */
static oar_status join_parts(const oar_schedule_cost *from, int parts,
                             int joined, part_costs *p)
{
    const double *time[3] = { from->forward, from->inputs, from->weights };
    const uint64_t *bytes[3] = { from->held,
                                 from->half != NULL ? from->half : from->held,
                                 from->message };
    size_t stages = (size_t)(parts / joined);

    for (int k = 0; k < 3; k++) {
        p->time[k] = oari_alloc(stages, sizeof *p->time[k]);
        p->bytes[k] = oari_alloc(stages, sizeof *p->bytes[k]);
        if (p->time[k] == NULL || p->bytes[k] == NULL)
            return OAR_E_NOMEM;
        for (int i = 0; i < parts; i++) {
            uint64_t *sum = &p->bytes[k][i / joined];
            uint64_t part = bytes[k] != NULL ? bytes[k][i] : k < 2;

            p->time[k][i / joined] += time[k] != NULL ? time[k][i] : 1;
            *sum = k < 2 ? *sum + part : part;
        }
    }
    p->cost = (oar_schedule_cost){ .size = sizeof p->cost,
                                   .forward = p->time[0],
                                   .inputs = p->time[1],
                                   .weights = p->time[2],
                                   .hop = from->hop,
                                   .held = p->bytes[0],
                                   .half = p->bytes[1],
                                   .message = p->bytes[2] };
    return OAR_OK;
}

/* ---- trying -------------------------------------------------------------- */

typedef struct contest {
    int ranks, micro, chunks;
    const oar_schedule_cost *cost;
    uint64_t limit;
    OARI_VEC(oar_schedule_choice) tried; /* in order */
    oar_schedule *best;                  /* the first of them, if it fits */
} contest;

static int is_better(const oar_schedule_choice *a, const oar_schedule_choice *b)
{
    double little = 1e-9 * b->report.time;

    if (a->fits != b->fits)
        return a->fits;
    if (fabs(a->report.time - b->report.time) > little)
        return a->report.time < b->report.time;
    return a->report.most_bytes < b->report.most_bytes;
}

/* Puts a choice in its place. */
static oar_status enter_choice(contest *c, const oar_schedule_choice *choice,
                               int64_t *place)
{
    int64_t i = c->tried.count;

    OARI_TRY(oari_vec_push(&c->tried, *choice));
    for (; i > 0 && is_better(choice, &c->tried.data[i - 1]); i--)
        c->tried.data[i] = c->tried.data[i - 1];
    c->tried.data[i] = *choice;
    *place = i;
    return OAR_OK;
}

static oar_status judge_choice(contest *c, oar_schedule *s,
                               oar_schedule_choice *choice)
{
    part_costs p = { { NULL }, { NULL }, { 0 } };
    oar_status status = join_parts(c->cost, c->ranks * c->chunks,
                                   c->chunks / choice->chunks, &p);

    choice->report = oar_schedule_report_init();
    if (status == OAR_OK)
        status = oar_schedule_check(s, &p.cost, &choice->report);
    choice->fits = c->limit == 0 || choice->report.most_bytes <= c->limit;
    free_costs(&p);
    return status;
}

static oar_status try_kind(contest *c, oar_schedule_kind kind, int chunks)
{
    oar_schedule_opts o = { .size = sizeof o, .chunks = chunks };
    oar_schedule_choice choice = { .size = sizeof choice,
                                   .kind = kind,
                                   .chunks = chunks };
    oar_schedule *s, *worse;
    oar_status status;
    int64_t place = -1;

    OARI_TRY(oar_schedule_make(kind, c->ranks, c->micro, &o, &s));
    status = judge_choice(c, s, &choice);
    if (status == OAR_OK)
        status = enter_choice(c, &choice, &place);
    worse = s;
    if (place == 0) {
        worse = c->best;
        c->best = s;
    }
    oar_schedule_release(worse);
    return status;
}

static oar_status try_all(contest *c)
{
    OARI_TRY(try_kind(c, OAR_SCHEDULE_GPIPE, 1));
    OARI_TRY(try_kind(c, OAR_SCHEDULE_1F1B, 1));
    OARI_TRY(try_kind(c, OAR_SCHEDULE_ZB_H1, 1));
    for (int chunks = 2; chunks <= c->chunks; chunks++) {
        if (c->chunks % chunks != 0)
            continue;
        OARI_TRY(try_kind(c, OAR_SCHEDULE_INTERLEAVED, chunks));
        OARI_TRY(try_kind(c, OAR_SCHEDULE_LOOPED_BFS, chunks));
    }
    if (c->chunks % 2 != 0)
        return OAR_OK;
    OARI_TRY(try_kind(c, OAR_SCHEDULE_ZB_V, 2));
    return c->micro / 2 >= c->ranks ? try_kind(c, OAR_SCHEDULE_DUALPIPE_V, 2)
                                    : OAR_OK;
}

/* ---- giving -------------------------------------------------------------- */

static oar_status give_list(const contest *c, int *count,
                            oar_schedule_choice *list)
{
    for (int i = 0; list != NULL && i < *count && i < c->tried.count; i++) {
        oar_schedule_choice full = c->tried.data[i];

        OARI_TRY(oari_struct_give(&list[i], &full, sizeof full,
                                  "a choice of a schedule"));
    }
    if (count != NULL)
        *count = (int)c->tried.count;
    return OAR_OK;
}

static oar_status give_best(contest *c, oar_schedule **schedule, int *count,
                            oar_schedule_choice *list)
{
    OARI_TRY(try_all(c));
    OARI_TRY(give_list(c, count, list));
    if (!c->tried.data[0].fits)
        return oari_fail(
            OAR_E_ARG,
            "no schedule of %d ranks and %d micro-batches needs "
            "%llu bytes or less: %s needs %llu",
            c->ranks, c->micro, (unsigned long long)c->limit,
            oar_schedule_kind_name(c->tried.data[0].kind),
            (unsigned long long)c->tried.data[0].report.most_bytes);
    *schedule = c->best;
    c->best = NULL;
    return OAR_OK;
}

oar_status oar_schedule_best(int ranks, int micro, int chunks,
                             const oar_schedule_cost *cost, uint64_t bytes,
                             oar_schedule **schedule, int *count,
                             oar_schedule_choice *list)
{
    contest c = { .ranks = ranks,
                  .micro = micro,
                  .chunks = chunks != 0 ? chunks : 2,
                  .limit = bytes };
    oar_schedule_cost read = { 0 };
    oar_status status;

    OARI_TRY(oari_opts_read(&read, sizeof read, cost));
    if (schedule == NULL || (list != NULL && count == NULL))
        return oari_fail(OAR_E_ARG, "nowhere to give the best schedule, or a "
                                    "list without its room");
    if (ranks < 1 || c.chunks < 1 ||
        (int64_t)ranks * c.chunks > OARI_SCHEDULE_NUMBERS)
        return oari_fail(OAR_E_ARG,
                         "%d ranks with %d parts each: 1 to %d in "
                         "all",
                         ranks, c.chunks, OARI_SCHEDULE_NUMBERS);
    c.cost = &read;
    status = give_best(&c, schedule, count, list);
    oar_schedule_release(c.best);
    oari_vec_free(&c.tried);
    return status;
}
