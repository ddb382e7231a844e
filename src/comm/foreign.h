/* SPDX-License-Identifier: Apache-2.0 */
/* comm/foreign.h: an engine with collectives of its own, beside our links. */
#ifndef OARI_COMM_FOREIGN_H
#define OARI_COMM_FOREIGN_H

#include <stdatomic.h>

#include <oarsong/backend.h>

typedef struct oari_foreign {
    const oar_backend_ops *ops; /* NULL: there is none */
    void *self;
    int opened;
    int batching;             /* the driver's: between batch(1) and batch(0) */
    unsigned turns;           /* the driver's */
    int64_t check_ns;         /* the next look whether everybody is there */
    int64_t ill_ns;           /* since when it has failed; 0: it has not */
    _Atomic int64_t *gone_ns; /* by rank: since when it is gone, or 0 */
    oar_error illness;
} oari_foreign;

#endif
