/* SPDX-License-Identifier: Apache-2.0 */
/* support/sample_state.h: a small state for tests of checkpoints. Its numbers
 * follow from its step, so that what was loaded can be judged by itself: an
 * array that all ranks hold, one that is cut among them, and a number. */
#ifndef TESTS_SUPPORT_SAMPLE_STATE_H
#define TESTS_SUPPORT_SAMPLE_STATE_H

#include <oarsong/checkpoint.h>

enum { SAMPLE_WEIGHTS = 20, SAMPLE_MOMENTS = 13 };

typedef struct sample_state {
    oar_state *state;
    float weight[SAMPLE_WEIGHTS]; /* "model", on every rank */
    float moment[SAMPLE_MOMENTS]; /* "optim"; of the whole, this rank's part */
    int64_t first, count;         /* of that part */
    int64_t step;
} sample_state;

/* Makes the state of a rank; its numbers are zero. */
oar_status sample_state_make(sample_state *s, int rank, int ranks);

/* Writes the numbers of a step into it. */
void sample_state_set(sample_state *s, int64_t step);

/* Returns whether all its numbers are those of its own step. */
int sample_state_is_whole(const sample_state *s);

/* The options for small generations: blocks of 64 KiB, one thread, through the
 * page cache. */
oar_checkpoint_opts sample_checkpoint_opts(void);

/* Returns how many names in a folder have `text` in them. */
int folder_names_with(const char *path, const char *text);

#endif
