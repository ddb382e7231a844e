/* SPDX-License-Identifier: Apache-2.0 */
/* link/link.h: what the links between ranks and the core share. */
#ifndef OARI_LINK_LINK_H
#define OARI_LINK_LINK_H

#include <oarsong/backend.h>

#include "record/recorder.h"

enum {
    OARI_DEFAULT_TIMEOUT_MS = 300000,
    OARI_DEFAULT_STALL_MS = 30000,
    OARI_DEFAULT_SPIN_NS = 50000, /* on a backend without a board */
    OARI_NAME_MAX = 150           /* bytes; keys of the store begin with it */
};

/* What the in-tree backends are opened with besides oar_backend_env. */
struct oari_open {
    size_t small_bytes, stage_bytes, eager_bytes;
    int64_t spin_us;
    oari_recorder *recorder;
    struct oari_world *world; /* sim's */
    const char *toward;       /* address at which the ranks meet; NULL: none */
    int64_t meet_ms; /* for the ranks to meet; the timeout, unless this is
                        made of survivors */
    unsigned char *missing;   /* by rank: set for whom this rank waited for when
                               it gave up (missed.h); NULL: nobody asks */
    struct oari_board *board; /* an engine for GPUs: of this host; NULL: none */
    oar_group *group;         /* and whose it is */
};

#endif
