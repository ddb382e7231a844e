/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: what each rank of a pipeline does, as a text that is checked
 * before anything runs.
 *
 *     oar_schedule *schedule;
 *     oar_schedule_make(OAR_SCHEDULE_1F1B, 4, 16, NULL, &schedule);
 *     oar_schedule_check(schedule, NULL, &report);      time, bubble, memory
 *
 * A model is cut into stages 0, 1, ..., a batch into micro-batches 0, 1, ... A
 * schedule has a row of actions for each rank, in PyTorch's notation:
 *
 *     0F0,0F1,0B0,0F2,0B1,0B2
 *     1F0,1B0,1F1,1B1,1F2,1B2
 *
 * An action is a stage, what it does, and a micro-batch. F is forward, B
 * backward; I and W are the halves of B (the gradients of inputs, then those of
 * weights). SEND_F, RECV_F, SEND_B and RECV_B pass results on to the next stage
 * and gradients back to the one before. UNSHARD, RESHARD and REDUCE_GRAD have
 * no micro-batch. (0F3;7B1)OVERLAP_F_B is two actions at once, which run one
 * after the other here.
 *
 * A send or a receive only posts a message: an action waits for what it needs,
 * and nothing else waits.
 *
 * Nothing here needs ranks. A schedule does not change: any thread may use it.
 */
#ifndef OARSONG_SCHEDULE_H
#define OARSONG_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include <oarsong/export.h>
#include <oarsong/status.h>

OAR_BEGIN_DECLS

typedef struct oar_schedule oar_schedule;

/* ---- actions ------------------------------------------------------------- */

/* X(name, value, notation) */
#define OAR_ACT_LIST(X)                      \
    X(OAR_ACT_F, 0, "F")                     \
    X(OAR_ACT_B, 1, "B")                     \
    X(OAR_ACT_I, 2, "I")                     \
    X(OAR_ACT_W, 3, "W")                     \
    X(OAR_ACT_SEND_F, 4, "SEND_F")           \
    X(OAR_ACT_RECV_F, 5, "RECV_F")           \
    X(OAR_ACT_SEND_B, 6, "SEND_B")           \
    X(OAR_ACT_RECV_B, 7, "RECV_B")           \
    X(OAR_ACT_REDUCE_GRAD, 8, "REDUCE_GRAD") \
    X(OAR_ACT_UNSHARD, 9, "UNSHARD")         \
    X(OAR_ACT_RESHARD, 10, "RESHARD")

typedef enum oar_act { OAR_ACT_LIST(OAR_ENUM_ROW) } oar_act;

typedef struct oar_action {
    int stage;
    oar_act act;
    int micro;  /* -1: it has none */
    int joined; /* OVERLAP_F_B: with the next F, B, I or W of the row */
} oar_action;

/* ---- making them --------------------------------------------------------- */

/* X(name, value, word). The word is what the command and texts call it. */
#define OAR_SCHEDULE_KIND_LIST(X)                 \
    X(OAR_SCHEDULE_GPIPE, 0, "gpipe")             \
    X(OAR_SCHEDULE_1F1B, 1, "1f1b")               \
    X(OAR_SCHEDULE_INTERLEAVED, 2, "interleaved") \
    X(OAR_SCHEDULE_LOOPED_BFS, 3, "looped_bfs")   \
    X(OAR_SCHEDULE_ZB_H1, 4, "zb_h1")             \
    X(OAR_SCHEDULE_ZB_V, 5, "zb_v")               \
    X(OAR_SCHEDULE_DUALPIPE_V, 6, "dualpipe_v")

/* gpipe        all forward, then all backward
 * 1f1b         one forward, one backward, once the pipeline is full
 * interleaved  the same with several stages on each rank, dealt in turn
 * looped_bfs   gpipe with several stages on each rank, dealt in turn
 * zb_h1        1f1b with B in halves and W where there would be a gap
 * zb_v         two stages on each rank, down and up again: rank 0 has the first
 *              and the last; B in halves
 * dualpipe_v   the same places; needs 2 micro-batches for each rank */
typedef enum oar_schedule_kind {
    OAR_SCHEDULE_KIND_LIST(OAR_ENUM_ROW)
} oar_schedule_kind;
enum { OAR_SCHEDULE_KINDS = 7 };

/* Returns the word, "?" if there is no such kind. */
OAR_API const char *oar_schedule_kind_name(oar_schedule_kind kind);

typedef struct oar_schedule_opts {
    size_t size;
    int chunks; /* stages on each rank; 0: 1, or 2 where a kind has several */
    int ahead;  /* how many actions earlier than needed a receive is posted; 0
                   means 1, below 0 none; 64 at most */
    int forward_only; /* for evaluation */
} oar_schedule_opts;
OAR_OPTS_INIT(oar_schedule_opts);

/* Makes a schedule of a kind for at least 1 rank and 1 micro-batch. There may
 * be fewer micro-batches than stages, and neither has to divide the other.
 * OAR_E_ARG: dualpipe_v with fewer than 2 micro-batches for each rank, a number
 * of chunks that the kind does not have, or more than 65536 stages or
 * micro-batches or 2^24 actions. opts may be NULL. */
OAR_API oar_status oar_schedule_make(oar_schedule_kind kind, int ranks,
                                     int micro, const oar_schedule_opts *opts,
                                     oar_schedule **schedule);

/* Reads a text: a line for each rank, actions separated by commas. Blanks and
 * empty cells are fine, and so are empty lines at the end. A text without any
 * message gets those that it needs, as opts say (.ahead; the others do not
 * matter); one that has messages is left as it is. OAR_E_DATA, with line,
 * column and what was expected: it is no such text. OAR_E_ARG: it has more than
 * 64 MiB, or numbers above 65535. Whether it can run, oar_schedule_check says.
 */
OAR_API oar_status oar_schedule_parse(const char *text, size_t bytes,
                                      const oar_schedule_opts *opts,
                                      oar_schedule **schedule);
/* The same with the text in a file, such as a CSV of PyTorch. */
OAR_API oar_status oar_schedule_load(const char *path,
                                     const oar_schedule_opts *opts,
                                     oar_schedule **schedule);

/* Counts a user more, and returns the schedule. NULL is fine. */
OAR_API oar_schedule *oar_schedule_retain(oar_schedule *schedule);
/* Counts a user less; the last one frees the schedule. NULL is fine. */
OAR_API void oar_schedule_release(oar_schedule *schedule);

/* ---- looking at them ----------------------------------------------------- */

/* Writes the schedule as a text, as snprintf does: returns the length without
 * the 0 at its end, even if that does not fit. all: with sends and receives. */
OAR_API size_t oar_schedule_text(const oar_schedule *schedule, int all,
                                 char *text, size_t bytes);

OAR_API int oar_schedule_ranks(const oar_schedule *schedule); /* 0 for NULL */
OAR_API int oar_schedule_stages(const oar_schedule *schedule);
OAR_API int oar_schedule_micro(const oar_schedule *schedule);
/* Returns the rank that has a stage, the first if several have it; -1 if none
 * has. */
OAR_API int oar_schedule_rank_of(const oar_schedule *schedule, int stage);
/* Returns how many actions a rank has, sends and receives included; -1 if there
 * is no such rank. */
OAR_API int64_t oar_schedule_actions(const oar_schedule *schedule, int rank);
/* Gives one action of a rank. OAR_E_RANK, OAR_E_ARG: there is none. */
OAR_API oar_status oar_schedule_action(const oar_schedule *schedule, int rank,
                                       int64_t index, oar_action *action);

/* ---- judging them -------------------------------------------------------- */

/* What actions cost, in any unit of time, and need, in bytes. Each array has a
 * number for each stage; NULL: what the comment says for each. */
typedef struct oar_schedule_cost {
    size_t size;
    const double *forward, *inputs, *weights; /* F, I, W: 1. B is I and W */
    double hop;              /* of a message, from one rank to another */
    const uint64_t *held;    /* bytes from F to the end of B or I, with its
                                inputs from other ranks and its outputs: 1 */
    const uint64_t *half;    /* from there to the end of W: as held */
    const uint64_t *message; /* what a stage sends forward, and what is sent
                                back to it: 0 */
} oar_schedule_cost;
OAR_OPTS_INIT(oar_schedule_cost);

typedef struct oar_schedule_report {
    size_t size;
    double time;         /* until the last rank is done */
    double bubble;       /* the part of ranks x time in which ranks are idle */
    uint64_t most_bytes; /* on the rank that needs most */
    int most_rank;       /* that rank */
    int in_flight; /* most micro-batches between F and the end of B or W on a
                      rank, each counted once for each stage */
    int ascending; /* every stage adds its gradients in the order of the
                      micro-batches, as one process would */
} oar_schedule_report;
OAR_OPTS_INIT(oar_schedule_report);

/* Checks that a schedule can run to its end: every stage is on one rank, every
 * micro-batch goes through it forward and backward once and in that order (or
 * all only forward), every message is sent and received once, between the
 * actions it belongs to, and no ranks wait for each other in a circle. If not:
 * OAR_E_ARG with the reason.
 *
 * The report, which may be NULL, says what it costs. Bytes are those of `held`
 * and `half`, and of messages: of an input from its receive to the F that takes
 * it, of a gradient from its receive to the end of the B or I that takes it,
 * and at its sender from B or I to the send. They do not depend on times. What
 * a send keeps longer is not counted. */
OAR_API oar_status oar_schedule_check(const oar_schedule *schedule,
                                      const oar_schedule_cost *cost,
                                      oar_schedule_report *report);
/* Writes why a schedule cannot run, as snprintf does: for a circle, which rank
 * waits where for which other, to the end, which may be longer than the text of
 * an error. Nothing (0) if it can, or there is no memory to tell. */
OAR_API size_t oar_schedule_explain(const oar_schedule *schedule, char *text,
                                    size_t bytes);

/* ---- choosing ------------------------------------------------------------ */

/* A schedule that oar_schedule_best has tried. */
typedef struct oar_schedule_choice {
    size_t size;
    oar_schedule_kind kind;
    int chunks;
    int fits; /* within the bytes */
    oar_schedule_report report;
} oar_schedule_choice;
OAR_OPTS_INIT(oar_schedule_choice);

/* Tries every kind for a model that can be cut into ranks x chunks parts, whose
 * costs are given, and gives the fastest one that needs at most `bytes` on each
 * rank (0: no limit); of several equally fast ones that which needs least. A
 * stage is one part, or neighbouring ones: kinds with several stages on a rank
 * are tried with all numbers that divide chunks (0: 2), and zb_v and dualpipe_v
 * only if it is even.
 *
 * list, which may be NULL, has room for *count choices with their sizes set,
 * and *count becomes how many there were; the first is the best, and the others
 * follow by time, those that do not fit last. OAR_E_ARG if none fits. */
OAR_API oar_status oar_schedule_best(int ranks, int micro, int chunks,
                                     const oar_schedule_cost *cost,
                                     uint64_t bytes, oar_schedule **schedule,
                                     int *count, oar_schedule_choice *list);

/* Deals layers with these costs to stages, in order and at least one to each,
 * so that the dearest stage is as cheap as it can be; of several ways to do so
 * that whose second stage by cost is the cheapest, and so on. Writes how many
 * layers each stage gets. OAR_E_ARG: more stages than layers, more than 4096
 * layers, or a cost that is negative or no number. */
OAR_API oar_status oar_schedule_balance(int layers, const double *cost,
                                        int stages, int *count);

/* ---- drawing ------------------------------------------------------------- */

typedef enum oar_picture {
    OAR_PICTURE_TEXT = 0,  /* a line for each stage of each rank */
    OAR_PICTURE_SVG = 1,   /* a lane for each rank */
    OAR_PICTURE_CHROME = 2 /* JSON for Perfetto or chrome://tracing, in which
                              a cost of 1 is a millisecond */
} oar_picture;

/* Draws a schedule over time, as it would run at these costs. In a text a digit
 * is F, a letter B or I, a dot W; digit and letter are the last digit of the
 * micro-batch, a for 0. Gives the picture (oar_free). OAR_E_ARG if it cannot
 * run. */
OAR_API oar_status oar_schedule_draw(const oar_schedule *schedule,
                                     const oar_schedule_cost *cost,
                                     oar_picture picture, char **text);

OAR_END_DECLS

#endif
