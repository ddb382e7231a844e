/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/schedule/schedule.h: the rows of a schedule, and what its makers,
 * reader, judge and painter share. Nothing here knows ranks or tensors. */
#ifndef OARI_PARALLEL_SCHEDULE_SCHEDULE_H
#define OARI_PARALLEL_SCHEDULE_SCHEDULE_H

#include <stdatomic.h>

#include <oarsong/schedule.h>

#include "base/vec.h"

enum {
    OARI_SCHEDULE_NUMBERS = 65536, /* most ranks, stages, micro-batches */
    OARI_SCHEDULE_ACTIONS = 1 << 24
};

typedef OARI_VEC(oar_action) oari_action_row;

struct oar_schedule {
    atomic_int users;
    int ranks, stages, micro;
    int given;            /* its messages are the user's */
    int *rank_of;         /* by stage; -1: on none */
    oari_action_row *row; /* by rank */
};

/* ---- building (schedule.c) ----------------------------------------------- */

/* A schedule while its rows are filled. After a failure, adding does nothing.
 */
typedef struct oari_schedule_draft {
    oar_schedule *schedule;
    int forward_only; /* adds F only */
    int rank;         /* whose row is added to */
    oar_status status;
} oari_schedule_draft;

oar_status oari_schedule_draft_begin(int ranks, oari_schedule_draft *draft);
void oari_schedule_add(oari_schedule_draft *draft, int stage, oar_act act,
                       int micro);
/* Finds stages, their ranks and the number of micro-batches, puts messages in
 * if there are none, and gives the schedule. Frees it on failure. */
oar_status oari_schedule_draft_end(oari_schedule_draft *draft, int ahead,
                                   oar_schedule **schedule);

static inline int oari_act_is_message(oar_act act)
{
    return act >= OAR_ACT_SEND_F && act <= OAR_ACT_RECV_B;
}

static inline int oari_act_computes(oar_act act)
{
    return act <= OAR_ACT_W;
}

/* ---- kinds --------------------------------------------------------------- */

/* The makers. Each fills the rows of all ranks. */
typedef struct oari_schedule_size {
    int ranks, micro, chunks;
} oari_schedule_size;

void oari_make_gpipe(oari_schedule_draft *draft, const oari_schedule_size *z);
void oari_make_1f1b(oari_schedule_draft *draft, const oari_schedule_size *z);
void oari_make_looped_bfs(oari_schedule_draft *draft,
                          const oari_schedule_size *z);
void oari_make_zb_h1(oari_schedule_draft *draft, const oari_schedule_size *z);
void oari_make_interleaved(oari_schedule_draft *draft,
                           const oari_schedule_size *z);
void oari_make_zb_v(oari_schedule_draft *draft, const oari_schedule_size *z);
void oari_make_dualpipe_v(oari_schedule_draft *draft,
                          const oari_schedule_size *z);

/* ---- messages (schedule_messages.c) -------------------------------------- */

/* The stage that action (s, act) has its message from or for, which is another
 * rank's; -1: it needs none. act is one of the four message acts. */
int oari_message_peer(const oar_schedule *s, int stage, oar_act act);

/* Puts the sends and receives that rows need into them. */
oar_status oari_schedule_put_messages(oar_schedule *s, int ahead);

/* ---- texts (schedule_text.c) --------------------------------------------- */

/* Writes as snprintf does: `used` counts what did not fit, too. */
typedef struct oari_schedule_writer {
    char *text;
    size_t room, used;
} oari_schedule_writer;

void oari_write(oari_schedule_writer *w, const char *format, ...)
    OAR_PRINTF(2, 3);
const char *oari_act_notation(oar_act act);
void oari_write_action(oari_schedule_writer *w, const oar_action *action);
/* "rank 1 at 1F3 (7th)": where an action is, counted as in the user's text. */
void oari_write_place(oari_schedule_writer *w, const oar_schedule *s, int rank,
                      int64_t index);

/* ---- judging ------------------------------------------------------------- */

/* Where each action is in its rank's row: at[(stage * micro + m) * 8 + act],
 * -1 if it is nowhere. */
typedef struct oari_schedule_index {
    int32_t *at;
} oari_schedule_index;

static inline int32_t *oari_index_at(const oari_schedule_index *x,
                                     const oar_schedule *s, int stage,
                                     int micro, oar_act act)
{
    return &x->at[((int64_t)stage * s->micro + micro) * 8 + (int)act];
}

/* Checks rows one by one: everything but circles (schedule_check.c). OAR_E_ARG:
 * the reason is in `why`. */
oar_status oari_schedule_check_rows(const oar_schedule *s,
                                    oari_schedule_index *index,
                                    oari_schedule_writer *why);

/* When each action runs, rank after rank. A begin below 0: it did not. */
typedef struct oari_timeline {
    const oar_schedule *schedule;
    int64_t *first; /* of each rank in `begin` and `end` */
    double *begin, *end;
    int64_t *done; /* of each rank: how many have run */
    double time, work;
    int circle; /* some have not run: they are in a circle */
} oari_timeline;

/* Makes one of zeros. Free it in any case. */
oar_status oari_timeline_alloc(const oar_schedule *s, oari_timeline *t);
/* Runs all rows with clocks (schedule_time.c). each: what each action takes,
 * rank after rank; NULL: what `cost` says. Free it in any case. */
oar_status oari_timeline_make(const oar_schedule *s,
                              const oar_schedule_cost *cost, const double *each,
                              oari_timeline *t);
void oari_timeline_free(oari_timeline *t);

/* Finds what an action waits for that is not of its own stage: the send of a
 * neighbouring one, or its F or B (which may be an I) if both are on one rank.
 * Returns 0 if there is none. */
int oari_action_needs(const oar_schedule *s, const oar_action *action,
                      oar_action *needed);

/* Copies the costs and checks them. */
oar_status oari_cost_read(const oar_schedule *s, const oar_schedule_cost *from,
                          oar_schedule_cost *cost);
double oari_cost_of(const oar_schedule_cost *cost, const oar_action *action);

/* Checks rows and runs them (schedule_judge.c). OAR_E_ARG: the reason is in
 * `why`. Free the timeline in any case. */
oar_status oari_schedule_judge(const oar_schedule *s,
                               const oar_schedule_cost *cost,
                               oari_schedule_writer *why, oari_timeline *t);

/* Draws a timeline (schedule_draw.c). Gives text. */
oar_status oari_timeline_paint(const oari_timeline *t, oar_picture picture,
                               char **text);

/* Judges; the reason, or its beginning, is the last error. */
oar_status oari_schedule_run(const oar_schedule *s,
                             const oar_schedule_cost *cost, oari_timeline *t);

#endif
