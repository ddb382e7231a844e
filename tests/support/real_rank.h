/* SPDX-License-Identifier: Apache-2.0 */
/* support/real_rank.h: rank 0 of a TCP mesh of two, in this process; the test
 * is rank 1 (support/fake_rank.h). */
#ifndef TESTS_SUPPORT_REAL_RANK_H
#define TESTS_SUPPORT_REAL_RANK_H

#include "support/fake_rank.h"

/* Where the notes of both ranks are. */
#define REAL_RANK_PREFIX "g/1"

typedef struct real_rank {
    oar_store *store;
    oari_match *match;
    tcp_mesh mesh;
} real_rank;

/* Makes a store with the note of rank 1, which listens at `address`. */
void real_rank_init(real_rank *r, const oari_secret *theirs,
                    const char *address);

/* Opens the mesh of rank 0. Returns what tcp_open returns. */
oar_status real_rank_open(real_rank *r, int timeout_ms);

/* Ends what is under way. */
void real_rank_abort(real_rank *r);

void real_rank_free(real_rank *r);

#endif
