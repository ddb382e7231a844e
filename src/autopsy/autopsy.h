/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy/autopsy.h: boxes as witnesses, their rings joined into cases, and
 * what follows from them.
 *
 * A witness is a box. A case is one group with a part for each of its ranks,
 * known or not. An inquest is all cases, who waits for whom, and the verdict;
 * it is made anew for each question, because notes may have come in between.
 */
#ifndef OARI_AUTOPSY_AUTOPSY_H
#define OARI_AUTOPSY_AUTOPSY_H

#include <oarsong/autopsy.h>

#include "record/box_host.h"
#include "record/box_read.h"

typedef struct oari_witness {
    oari_image image; /* .box == NULL: nothing is known */
    char why[160];    /* then: why not */
    int rank;         /* in the world; -1: it does not say */
    oari_life life;
    char note[160];  /* how it ended, if somebody said so */
    int64_t look_ns; /* when its counter was at look_ticks; 0: not known */
    uint64_t look_ticks;
    int64_t now_ns; /* what ages are counted from, by its host's clock */
} oari_witness;

struct oar_autopsy {
    int witnesses, ranks; /* ranks of the world, as far as is known */
    oari_witness *witness;
};

/* The witness of a rank of the world, or NULL. */
const oari_witness *oari_autopsy_of(const oar_autopsy *a, int rank);

/* The rank of the world that the verdict is about; -1: none alone. */
int oari_autopsy_culprit(const oar_autopsy *a);
/* Of the ranks that died, this one was seen to end first. */
void oari_autopsy_note_first(oar_autopsy *a, int rank);

/* ---- cases --------------------------------------------------------------- */

typedef struct oari_op {
    uint64_t sequence, number, count;
    int64_t posted_ns, done_ns, tag;
    oar_coll kind;
    oar_op_kind op;
    oar_dtype dtype;
    int root;
    oar_record_state state;
    unsigned char waited, ragged;
} oari_op;

/* What a rank is to the operation that its group is at. */
typedef enum oari_here {
    OARI_UNKNOWN,   /* nothing is known about it */
    OARI_ABSENT,    /* it has not joined the group */
    OARI_JOINING,   /* it waits for the others to join */
    OARI_IDLE,      /* there is no such operation */
    OARI_MISSING,   /* it has not come to it */
    OARI_LEFT,      /* it has left the group without it */
    OARI_WAITS,     /* it is in it */
    OARI_FAILED_IN, /* it was in it when the group broke */
    OARI_DONE_WITH
} oari_here;

typedef struct oari_part {
    int rank;  /* in the group */
    int world; /* -1: not known */
    const oari_witness *witness;
    const oari_ring *ring; /* NULL: it has none for this group */
    double rate;           /* of its counter */
    oari_op *op;           /* all that are left of it, oldest first */
    int ops;
    uint64_t last;     /* number of its last collective */
    const oari_op *at; /* its record of the one the group is at, or NULL */
    oari_here here;
} oari_part;

typedef struct oari_case {
    const oari_ring *ring; /* of one of its parts: name, size, epoch */
    int witness;           /* of a group of one: whose; -1: */
    int ranks;
    oari_part *part; /* by rank */
    uint64_t number; /* of the collective it is at; 0: none */
    int teller;      /* a part that has it, for what it is; -1: none has */
    int differs;     /* a part that calls something else there; -1: none */
    int broken;      /* a part with the fault; -1: none */
    int joining, idle;
    int waiting, missing; /* how many parts */
    int64_t since_ns;     /* how long the first of those that wait does */
} oari_case;

/* A message that has not found its other side, or a collective that some have
 * not come to. */
typedef struct oari_wait {
    const oari_case *in;
    const oari_part *part;
    const oari_op *op;     /* NULL: it waits for ranks to join */
    const oari_part *peer; /* of a message: whom for; NULL: anybody, or all that
                              are missing */
    int64_t age_ns;
    int strict; /* the rank does nothing else meanwhile */
} oari_wait;

typedef struct oari_inquest {
    const oar_autopsy *autopsy;
    oari_case *item;
    int items;
    int64_t room;
    oari_wait *wait;
    int waits;
    int64_t wait_room;
    int *circle; /* ranks of the world that wait for each other, in order */
    int circles; /* how many; 0: none */
    int wrong;
    int culprit; /* the rank that the verdict is about; -1: none alone */
    char verdict[1024];
} oari_inquest;

oar_status oari_inquest_hold(const oar_autopsy *a, oari_inquest *q);
void oari_inquest_clear(oari_inquest *q);

/* autopsy_case.c: fills in the cases. */
oar_status oari_cases_join(oari_inquest *q);
/* autopsy_wait.c: who waits for whom, and in a circle. */
oar_status oari_waits_find(oari_inquest *q);
/* The longest that waits, older than that; NULL: none. alive: only of ranks
 * that may still go on. */
const oari_wait *oari_waits_longest(const oari_inquest *q, int64_t older_ns,
                                    int alive);
/* Whether it is one to worry about. A message that nobody is held up by, or
 * that may come from anybody, or of the library's own, may lie there for good
 * reason. */
int oari_wait_counts(const oari_wait *w);
/* Whether a part is one that this wait is for. */
int oari_waits_for(const oari_wait *w, const oari_part *p);
/* The first part that it is for that has not come; NULL: nobody known. */
const oari_part *oari_wait_target(const oari_wait *w);
/* autopsy_judge.c: the verdict. */
void oari_judge(oari_inquest *q);
/* The sentence about one wait. */
void oari_judge_wait(const oari_inquest *q, const oari_wait *w, char *text,
                     size_t bytes);

/* ---- facts about a part -------------------------------------------------- */

/* Whether its process is gone. */
int oari_part_gone(const oari_part *p);
int oari_witness_gone(const oari_witness *w);
/* Gone, and not by an orderly exit. */
int oari_witness_died(const oari_witness *w);
/* Its record of that collective, or NULL. */
const oari_op *oari_part_number(const oari_part *p, uint64_t number);
const oari_op *oari_part_newest(const oari_part *p); /* or NULL */
/* Whether it is under way, or was when the group broke. */
int oari_op_open(const oari_op *op);
/* Nanoseconds since it was posted; until its end, if that was a failure. */
int64_t oari_op_waited(const oari_part *p, const oari_op *op);
/* Nanoseconds since it was posted or, if it has ended, since that. */
int64_t oari_op_age(const oari_part *p, const oari_op *op);
/* The whole record, with its texts. */
oar_record oari_op_record(const oari_part *p, const oari_op *op);

/* ---- words --------------------------------------------------------------- */

/* A text that grows. After a failure nothing more is added. */
typedef struct oari_words {
    char *text; /* owned; ends in 0 */
    size_t used;
    int64_t room;
    int failed;
} oari_words;
void oari_say(oari_words *w, const char *format, ...) OAR_PRINTF(2, 3);

/* "0, 1, 3", "3-15"; cut with ".." when it does not fit. */
void oari_rank_list(const int *rank, int count, char *text, size_t bytes);
/* "12.4 s", "3 ms", "2 h 5 min" */
void oari_age_text(int64_t ns, char text[32]);
/* "killed by SIGKILL", "stopped", "running" */
void oari_life_text(const oari_witness *w, char *text, size_t bytes);
/* "waits", "missing" */
const char *oari_here_name(oari_here here);
/* "all_reduce #7 at x.c:3 \"label\"", or "recv #5 from rank 1 at ..." */
void oari_op_text(const oari_case *c, const oari_part *p, const oari_op *op,
                  char *text, size_t bytes);

#endif
