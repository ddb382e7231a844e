/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy/autopsy.h: what follows from the recorder files of a job.
 *
 * A dump is the recorder file of one process and the state of that process. A
 * group view joins what the dumps say about one group: it has a member for each
 * rank of the group, known or not. An analysis holds all group views, the waits
 * between ranks, and the verdict. Each question makes its own analysis, because
 * notes may have been added since the last one.
 */
#ifndef OARI_AUTOPSY_AUTOPSY_H
#define OARI_AUTOPSY_AUTOPSY_H

#include <oarsong/autopsy.h>

#include "record/recorder_host.h"
#include "record/recorder_file_read.h"
#include "record/operation.h"

/* ---- dumps (autopsy_dump.c) ---------------------------------------------- */

typedef struct oari_dump {
    oari_recorder_copy image; /* .box == NULL: nothing is known */
    char why[160];            /* then: why not */
    int rank;                 /* in the world; -1: the file does not say */
    oari_process_state life;
    char note[160];  /* how the process ended; "": nobody has said */
    int64_t look_ns; /* when its counter was at look_ticks; 0: not known */
    uint64_t look_ticks;
    int64_t now_ns; /* what ages are counted from, by the clock of its host */
} oari_dump;

struct oar_autopsy {
    int dumps, ranks; /* ranks of the world, as far as is known */
    oari_dump *dump;
};

/* Returns the dump of a rank of the world, or NULL. */
const oari_dump *oari_dump_of_rank(const oar_autopsy *a, int rank);
/* Returns whether the process is gone. Of NULL, which may live, 0. */
int oari_dump_gone(const oari_dump *d);
/* Returns whether the process is gone and did not exit in order. */
int oari_dump_died(const oari_dump *d);
/* Returns whether every rank that has a dump died. The order of the deaths then
 * says little about the cause. */
int oari_all_died(const oar_autopsy *a);

/* Returns the rank of the world that the verdict is about, or -1: no single
 * one. */
int oari_autopsy_culprit(const oar_autopsy *a);
/* Notes that this rank ended before all others that died. */
void oari_autopsy_note_first(oar_autopsy *a, int rank);

/* ---- group views (autopsy_group.c) --------------------------------------- */

/* One operation of a member. */
typedef struct oari_op_view {
    uint64_t sequence, number, count;
    int64_t posted_ns, done_ns, tag;
    oar_coll kind;
    oar_reduce_op_kind op;
    oar_dtype dtype;
    int root;
    oar_record_state state;
    unsigned char waited, ragged;
} oari_op_view;

/* How far a member is with the operation that its group is at. */
typedef enum oari_arrival {
    OARI_UNKNOWN,   /* nothing is known about the rank */
    OARI_ABSENT,    /* it has not joined the group */
    OARI_JOINING,   /* it waits for the others to join */
    OARI_IDLE,      /* the group is at no operation */
    OARI_MISSING,   /* it has not called the operation */
    OARI_LEFT,      /* it has left the group without calling it */
    OARI_WAITS,     /* it is in the operation */
    OARI_FAILED_IN, /* it was in the operation when the group broke */
    OARI_DONE_WITH
} oari_arrival;

typedef struct oari_member {
    int rank;  /* in the group */
    int world; /* -1: not known */
    const oari_dump *dump;
    const oari_ring *ring; /* NULL: the dump has none for this group */
    double rate;           /* of its counter */
    oari_op_view *op;      /* all that are still recorded, oldest first */
    int ops;
    uint64_t last;          /* number of its last collective */
    const oari_op_view *at; /* its record of the one the group is at, or NULL */
    oari_arrival arrival;
} oari_member;

typedef struct oari_group_view {
    const oari_ring *ring; /* of one of the members: name, size, epoch */
    int dump;              /* of a group of one: whose it is; -1: */
    int ranks;
    oari_member *member; /* by rank */
    uint64_t number;     /* of the collective the group is at; 0: none */
    int teller;  /* a member whose call most others agree with; -1: none */
    int differs; /* a member that calls something else there; -1: none */
    const oari_ring_fault *fault; /* that broke the group; NULL: none */
    int joining, idle;
    int waiting, missing; /* how many members */
    int64_t since_ns;     /* how long the longest of those that wait does */
} oari_group_view;

/* Returns the member's record of a collective, or NULL. */
const oari_op_view *oari_member_number(const oari_member *m, uint64_t number);
/* Returns the member's newest operation, or NULL. */
const oari_op_view *oari_member_newest(const oari_member *m);
/* Returns how many members have not called a collective. */
int oari_group_lacks(const oari_group_view *g, uint64_t number);
/* Returns whether an operation is under way, or was when the group broke. */
int oari_op_open(const oari_op_view *op);
/* Returns whether it is a call of RPC. */
int oari_op_is_call(const oari_op_view *op);
/* Returns the nanoseconds since an operation was posted; of one that failed,
 * until then. */
int64_t oari_op_waited(const oari_member *m, const oari_op_view *op);
/* Returns the nanoseconds since an operation ended or, if it has not ended,
 * since it was posted. */
int64_t oari_op_age(const oari_member *m, const oari_op_view *op);
/* Returns the whole record of an operation, with its texts. */
oar_record oari_op_record(const oari_member *m, const oari_op_view *op);

/* ---- waits (autopsy_wait.c) ---------------------------------------------- */

/* A message that has no match, or a collective that some ranks have not called.
 */
typedef struct oari_wait {
    const oari_group_view *in;
    const oari_member *member;
    const oari_op_view *op;  /* NULL: it waits for ranks to join */
    const oari_member *peer; /* of a message: the other side; NULL: any rank, or
                                all that are missing */
    int64_t age_ns;
    int strict; /* the rank does nothing else meanwhile */
} oari_wait;

typedef struct oari_analysis {
    const oar_autopsy *autopsy;
    oari_group_view *group;
    int groups;
    int64_t group_room;
    oari_wait *wait;
    int waits;
    int64_t wait_room;
    int *cycle; /* ranks of the world that wait for each other, in order */
    int cycles; /* how many ranks those are; 0: there is no cycle */
    int wrong;
    int culprit; /* the rank that the verdict is about; -1: no single one */
    char verdict[1024];
} oari_analysis;

/* Joins the rings of all dumps into group views. */
oar_status oari_groups_join(oari_analysis *a);
/* Returns the member with the rank's last call in any group, and that group; or
 * NULL. */
const oari_member *oari_last_member(const oari_analysis *a, int rank,
                                    const oari_group_view **in);

/* Finds the waits, and a cycle among them. */
oar_status oari_waits_find(oari_analysis *a);
/* Returns the longest wait that is older than that, or NULL. alive: only of
 * ranks that may still go on. */
const oari_wait *oari_waits_longest(const oari_analysis *a, int64_t older_ns,
                                    int alive);
/* Returns the longest wait in which a rank is held up, or NULL. */
const oari_wait *oari_wait_of_rank(const oari_analysis *a, int rank);
/* Returns the longest wait for a rank, or NULL. */
const oari_wait *oari_wait_for_rank(const oari_analysis *a, int rank);
/* Follows the waits from this one to the first that is for a rank which does
 * not wait itself. */
const oari_wait *oari_wait_follow(const oari_analysis *a, const oari_wait *w);
/* Returns whether a wait is one to worry about. A message that holds nobody up,
 * that may come from any rank, or that the library sent for itself, may have
 * good reason to lie there. */
int oari_wait_counts(const oari_wait *w);
/* Returns whether a wait is for this member. */
int oari_waits_for(const oari_wait *w, const oari_member *m);
/* Returns the first member that a wait is for, or NULL: none is known. */
const oari_member *oari_wait_target(const oari_wait *w);

/* ---- words (autopsy_words.c) --------------------------------------------- */

/* A text that grows. After a failure nothing more is added. */
typedef struct oari_words {
    char *text; /* owned; ends in 0 */
    size_t used;
    int64_t room;
    int failed;
} oari_words;
void oari_say(oari_words *w, const char *format, ...) OAR_PRINTF(2, 3);

/* Writes "0, 1, 3" or "3-15"; with " and " as `last`, "0, 1 and 3". A list that
 * does not fit is cut with "..". */
void oari_rank_list(const int *rank, int count, const char *last, char *text,
                    size_t bytes);
/* Writes "12.4 s", "3 ms" or "2 h 5 min". */
void oari_age_text(int64_t ns, char text[32]);
/* Returns "running", "stopped", "dead" and so on. */
const char *oari_process_state_name(oari_process_state life);
/* Adds `all_reduce #7 at x.c:3 "label"`, or `recv #5 from rank 1 at ...`. */
void oari_text_add_op(oari_text_line *to, const oari_group_view *g,
                      const oari_member *m, const oari_op_view *op);
/* Returns "waits", "missing" and so on. */
const char *oari_arrival_name(oari_arrival arrival);

/* ---- sentences (autopsy_sentence.c) -------------------------------------- */

/* Says that a wait is for this member (NULL: for any rank). seen: the others
 * are known to have lost it, and not only when all ended. */
void oari_say_wait(oari_text_line *to, const oari_analysis *a,
                   const oari_wait *w, const oari_member *m, int seen);
/* Says how and where a rank ended. */
void oari_say_end(oari_text_line *to, const oari_analysis *a, int rank);
/* Says which calls of a group do not agree. */
void oari_say_mismatch(oari_text_line *to, const oari_group_view *g);
/* Says which ranks wait for each other, and in what. */
void oari_say_cycle(oari_text_line *to, const oari_analysis *a);
/* Says which rank aborted a group, and why. The rank has a dump. */
void oari_say_abort(oari_text_line *to, const oari_analysis *a,
                    const oari_group_view *g, int rank, const char *reason);
/* Says why a group broke, in the words of its fault. */
void oari_say_fault(oari_text_line *to, const oari_group_view *g);
/* Says that an operation, which all ranks have called, takes long. */
void oari_say_long(oari_text_line *to, const oari_group_view *g);
/* Says that nothing is wrong. */
void oari_say_well(oari_text_line *to, const oari_analysis *a);

/* ---- the analysis (autopsy_verdict.c, autopsy.c) ------------------------- */

/* Finds the verdict of an analysis that has its groups and waits. */
void oari_verdict_find(oari_analysis *a);

oar_status oari_analysis_make(const oar_autopsy *autopsy, oari_analysis *a);
void oari_analysis_clear(oari_analysis *a);

#endif
