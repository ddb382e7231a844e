/* SPDX-License-Identifier: Apache-2.0 */
/* live.h: what the ranks of a running job do now, read from outside.
 *
 * Every process that uses the library keeps its last operations, its step and
 * its numbers in a recorder file (recorder.h, trace.h). This reads those of all
 * ranks of a job on this host. The job has to be of the same user; nothing has
 * to be switched on in it, and it does not notice.
 *
 *     oar_live *live;
 *     oar_live_open(NULL, &live);
 *     for (;; sleep(1)) {
 *         oar_live_look(live);
 *         for (int r = 0; r < oar_live_ranks(live); r++) ...
 *     }
 *
 * One thread at a time uses an oar_live.
 */
#ifndef OARSONG_LIVE_H
#define OARSONG_LIVE_H

#include <oarsong/autopsy.h>

OAR_BEGIN_DECLS

typedef struct oar_live oar_live;

typedef enum oar_live_state {
    OAR_LIVE_UNKNOWN, /* on another host, or it records nowhere */
    OAR_LIVE_STARTS,  /* it has made no group yet */
    OAR_LIVE_RUNS,
    OAR_LIVE_STOPPED, /* by a signal or a debugger */
    OAR_LIVE_EXITED,  /* by itself */
    OAR_LIVE_DEAD     /* it ended otherwise */
} oar_live_state;

enum { OAR_LIVE_TARGETS = 8 };

typedef struct oar_live_rank {
    size_t size;
    int rank;
    oar_live_state state;
    int64_t pid; /* 0: not known */
    char host[64];
    /* its newest operation, or the one that holds it up */
    int busy;        /* the operation is under way */
    int waits;       /* and the program waits for it */
    oar_coll kind;   /* OAR_COLL_COUNT: there was none yet */
    uint64_t number; /* of a collective: the same on all ranks; else 0 */
    char group[160];
    char site[96];
    char label[64];
    int64_t age_ns; /* since it began; or, if it is over, since it ended */
    int missing;    /* so many ranks have not called it yet */
    int waits_for[OAR_LIVE_TARGETS]; /* the first of them, in the world */
    /* rates, over the last seconds */
    double operations_s, bytes_s;
    double waiting;      /* the share of time in which the program waited */
    uint64_t operations; /* so far, in the groups that it still has */
    /* as the program says, by oar_step */
    int64_t step, steps;   /* steps: that have ended; 0: it says nothing */
    double step_s;         /* how long the last one took; 0: not known */
    uint64_t memory_bytes; /* resident; 0: not known */
} oar_live_rank;
OAR_OPTS_INIT(oar_live_rank);

/* A number that a rank gave by oar_metric. */
typedef struct oar_live_metric {
    size_t size;
    char name[48];
    double value; /* the newest */
    uint64_t count;
} oar_live_metric;
OAR_OPTS_INIT(oar_live_metric);

/* Finds a job: by the id of its run, by the pid of its launcher or of one of
 * its ranks, or by its folder of recorder files. NULL: the one that was started
 * last. OAR_E_NOT_FOUND if there is none. Looks at it once. */
OAR_API oar_status oar_live_open(const char *what, oar_live **live);
OAR_API void oar_live_close(oar_live *live); /* NULL is fine */

/* Looks at the job again. Ranks that have ended since are still shown. */
OAR_API oar_status oar_live_look(oar_live *live);

/* What the last look has found. */
OAR_API int oar_live_ranks(const oar_live *live);
OAR_API oar_status oar_live_rank_at(const oar_live *live, int rank,
                                    oar_live_rank *out);
OAR_API int oar_live_metrics(const oar_live *live, int rank);
OAR_API oar_status oar_live_metric_at(const oar_live *live, int rank, int index,
                                      oar_live_metric *out);

/* Returns the id of the run, "" if no launcher of ours has given it one. */
OAR_API const char *oar_live_run(const oar_live *live);
/* Returns what is wrong, or that nothing is: one sentence. */
OAR_API const char *oar_live_verdict(const oar_live *live);
/* Returns the autopsy of the last look; it is valid until the next. */
OAR_API const oar_autopsy *oar_live_autopsy(const oar_live *live);

OAR_END_DECLS

#endif
