/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/reducer/stream_call.h: collectives between operations on a tape. On
 * the host they are done when the call returns; on a GPU they are ordered on
 * the current stream, and a step that is recorded calls them in each replay. */
#ifndef OARI_PARALLEL_REDUCER_STREAM_CALL_H
#define OARI_PARALLEL_REDUCER_STREAM_CALL_H

#include <oarsong/collective.h>

typedef enum oari_stream_call_kind {
    OARI_CALL_ALL_REDUCE, /* in and out may be the same memory */
    OARI_CALL_ALL_GATHER,
    OARI_CALL_REDUCE_SCATTER,
    OARI_CALL_ALL_TO_ALL
} oari_stream_call_kind;

/* A call. Counts have a number for each rank, and are copied where they are
 * needed later; NULL: all are the same. The label stays where it is as long as
 * the group. */
typedef struct oari_stream_call {
    oari_stream_call_kind kind;
    oar_group *group;
    oar_span in, out;
    size_t *in_counts, *out_counts;
    oar_reduce_op op;
    oar_call_opts opts;
} oari_stream_call;

oar_status oari_stream_call_run(const oari_stream_call *call);

#endif
