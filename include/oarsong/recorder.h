/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.h: what each rank did last.
 *
 * Every rank keeps the last OAR_RECORDS operations of each of its groups in its
 * recorder file, which outlives it: one that `oarsong run` owns, or a file in
 * OARSONG_RECORDER_DIR (rank-N.oarrec), else memory that only the peers on the
 * host see. One cache line is written per operation. Reading never disturbs the
 * writer. autopsy.h reads the recorder files of a whole job.
 */
#ifndef OARSONG_RECORDER_H
#define OARSONG_RECORDER_H

#include <oarsong/backend.h>
#include <oarsong/group.h>

OAR_BEGIN_DECLS

enum { OAR_RECORDS = 512 };

typedef enum oar_record_state {
    OAR_RECORD_POSTED = 1,
    OAR_RECORD_DONE = 2,
    OAR_RECORD_FAILED = 3
} oar_record_state;

/* One operation, as read. */
typedef struct oar_record {
    size_t size;
    uint64_t sequence; /* from 1, counted per group and rank */
    int64_t posted_ns; /* CLOCK_MONOTONIC */
    int64_t done_ns;   /* 0 while it is under way */
    uint64_t count;    /* elements, of the larger of its buffers */
    oar_coll kind;
    oar_reduce_op_kind op;
    oar_dtype dtype;
    int root; /* or peer; -1: none */
    oar_record_state state;
    char site[96]; /* file:line */
    char label[64];
    uint64_t number; /* of a collective: from 1 among the group's collectives,
                        so that all ranks number it alike; 0: a message */
    int64_t tag;     /* of a message; -1: any, or a collective */
    int waited;      /* while it is under way: the caller waits for it */
    int ragged;      /* parts of any size, so counts differ between ranks */
} oar_record;
OAR_OPTS_INIT(oar_record);

/* Reads the index-th newest operation (0: the newest) of a rank of the group:
 * this one, or a peer whose recorder is mapped here. OAR_E_NOT_FOUND if there
 * is none; OAR_E_UNAVAILABLE if that rank's recorder cannot be seen from here.
 */
OAR_API oar_status oar_recorder_read(const oar_group *group, int rank,
                                     int index, oar_record *record);

/* Reads the index-th newest operation from a file of OARSONG_RECORDER_DIR, of
 * the group that its process called last. */
OAR_API oar_status oar_recorder_read_file(const char *path, int index,
                                          oar_record *record);

OAR_END_DECLS

#endif
