/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.h: what each rank did last.
 *
 * Every rank keeps the last OAR_RECORDS operations of a group in memory that
 * outlives it: peers on the host map it, and with OARSONG_RECORDER_DIR set it
 * is a file there that stays after a crash. One cache line is written per
 * operation. Reading never disturbs the writer.
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
    uint64_t sequence; /* from 1, counted per group */
    int64_t posted_ns; /* CLOCK_MONOTONIC */
    int64_t done_ns;   /* 0 while it is under way */
    uint64_t count;    /* elements */
    oar_coll kind;
    oar_op_kind op;
    oar_dtype dtype;
    int root; /* or peer; -1: none */
    oar_record_state state;
    char site[96]; /* file:line */
    char label[64];
} oar_record;
OAR_OPTS_INIT(oar_record);

/* The index-th newest operation (0: the newest) of a rank of the group: this
 * one, or a peer whose recorder is mapped here. OAR_E_NOT_FOUND if there is
 * none; OAR_E_UNAVAILABLE if that rank's recorder cannot be seen from here. */
OAR_API oar_status oar_recorder_read(const oar_group *group, int rank,
                                     int index, oar_record *record);

/* The same from a file of OARSONG_RECORDER_DIR. */
OAR_API oar_status oar_recorder_read_file(const char *path, int index,
                                          oar_record *record);

OAR_END_DECLS

#endif
