/* SPDX-License-Identifier: Apache-2.0 */
/* trace_read.h: reads the trace of a whole job: the files that its processes
 * have written (trace.h), of all hosts, on one time line.
 *
 * The clocks of hosts are aligned by what must hold: no rank's all_reduce is
 * done before the last rank has posted it, and no message is received before it
 * is sent. Every process says how exact that is.
 */
#ifndef OARSONG_TRACE_READ_H
#define OARSONG_TRACE_READ_H

#include <oarsong/backend.h>
#include <oarsong/status.h>

OAR_BEGIN_DECLS

typedef struct oar_trace oar_trace;

typedef enum oar_trace_kind {
    OAR_TRACE_OPERATION = 2, /* a collective or message, from its call on */
    OAR_TRACE_CALL,          /* of RPC */
    OAR_TRACE_WAIT,          /* for an operation */
    OAR_TRACE_FORWARD,       /* of a module */
    OAR_TRACE_BACKWARD,
    OAR_TRACE_OPTIMIZER,
    OAR_TRACE_LOADER, /* a wait for a batch */
    OAR_TRACE_CHECKPOINT,
    OAR_TRACE_STAGE,  /* an action of a pipeline */
    OAR_TRACE_GPU,    /* on a stream of a GPU */
    OAR_TRACE_USER,   /* an interval of the program's own */
    OAR_TRACE_METRIC, /* a number: begins and ends at once */
    OAR_TRACE_STEP    /* from the end of the step before */
} oar_trace_kind;

typedef struct oar_trace_event {
    size_t size;
    oar_trace_kind kind;
    int process;              /* which file, from 0 */
    int rank;                 /* in the world; -1: not known */
    int64_t thread;           /* as the system numbers threads; 0: a GPU */
    int64_t start_ns, end_ns; /* 0: when the first event of all began */
    const char *name;         /* of an operation: where it was called */
    const char *group;        /* of an operation; of a GPU: "cuda:0 stream 1";
                                 else "" */
    oar_coll op;              /* of an operation */
    int failed;               /* it was not done */
    int blocking;             /* its call returned when it was done */
    uint64_t id;              /* of a collective: the same on all its ranks, and
                                 on nothing else; else 0 */
    int peer;                 /* or root; of an action: the stage; -1: none */
    uint64_t number;          /* of an operation: the same on all ranks; of an
                                  action: its micro-batch */
    uint64_t bytes;           /* of an operation */
    double value;             /* of a metric, a step or an action */
} oar_trace_event;
OAR_OPTS_INIT(oar_trace_event);

typedef struct oar_trace_process {
    size_t size;
    int rank, world; /* -1, 0: not known */
    int64_t pid, epoch;
    char host[64];
    uint64_t events;
    unsigned one_in;      /* steps were kept: 1: all */
    int by_seconds;       /* not steps, but seconds were */
    int stopped;          /* before the end, for want of room */
    int64_t wall_ns;      /* the calendar's time at 0 of the time line */
    int64_t error_ns;     /* its clock is this exact, against the first
                          process's; 0: the same clock; -1: by the calendar's
                          only */
    uint64_t gpu_lost;    /* intervals of GPUs that are not there: too many
                           were under way, or not over at the end */
    int64_t gpu_error_ns; /* times of its GPUs are this exact, against its own
                              clock */
} oar_trace_process;
OAR_OPTS_INIT(oar_trace_process);

/* Reads every file of a folder. OAR_E_NOT_FOUND if there is none; a file that
 * is not a trace, or a broken one, is OAR_E_DATA with its name. */
OAR_API oar_status oar_trace_open(const char *folder, oar_trace **trace);
OAR_API void oar_trace_close(oar_trace *trace); /* NULL is fine */

OAR_API int oar_trace_processes(const oar_trace *trace);
OAR_API oar_status oar_trace_process_at(const oar_trace *trace, int index,
                                        oar_trace_process *process);

/* Events are in the order in which they began. Texts live as long as the trace.
 */
OAR_API uint64_t oar_trace_events(const oar_trace *trace);
OAR_API oar_status oar_trace_event_at(const oar_trace *trace, uint64_t index,
                                      oar_trace_event *event);

OAR_END_DECLS

#endif
