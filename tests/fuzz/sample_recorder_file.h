/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz/sample_recorder_file.h: a recorder file as a rank leaves it, for the
 * input to damage. */
#ifndef TESTS_FUZZ_SAMPLE_RECORDER_FILE_H
#define TESTS_FUZZ_SAMPLE_RECORDER_FILE_H

#include <unistd.h>

#include "fuzz.h"

#include "record/recorder.h"

enum { RINGS = 2, BYTES = (1 + RINGS) * OARI_FILE_UNIT };

/* Some operations of two groups of so many ranks, all but one of them in this
 * state, and a fault. */
static unsigned char *make_recorder_file(int ranks, uint64_t state)
{
    oari_operation call = { .file = "somewhere.c",
                            .line = 7,
                            .label = "grads" };
    oar_error error = { .size = sizeof error, .status = OAR_E_PEER };
    unsigned char *copy = malloc(BYTES);
    oari_recorder *r[RINGS];

    FUZZ_CHECK(copy != NULL);
    for (int i = 0; i < RINGS; i++) {
        FUZZ_CHECK(
            oari_recorder_make(
                &(oari_ring_owner){ .group = "g", .rank = 0, .ranks = ranks },
                &r[i]) == OAR_OK);
        oari_recorder_opened(r[i]);
        for (uint64_t j = 1; j < 6; j++)
            oari_recorder_post(r[i], j, &call, state);
        oari_recorder_done(r[i], 2, OAR_RECORD_DONE);
    }
    oari_recorder_fault(r[1], &error);
    FUZZ_CHECK(pread(oari_recorder_fd(r[0]), copy, BYTES, 0) == BYTES);
    for (int i = 0; i < RINGS; i++)
        oari_recorder_destroy(r[i]);
    return copy;
}

#endif
