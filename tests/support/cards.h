/* SPDX-License-Identifier: Apache-2.0 */
/* support/cards.h: crews whose ranks have a GPU each, and buffers on it.
 *
 * With the stand-ins there are as many GPUs as ranks; with OARSONG_TEST_GPU=1
 * those of the machine count (OARSONG_TEST_GPUS, 1), and crews that need more
 * are skipped. The parent never touches the driver: its children could not.
 */
#ifndef TESTS_SUPPORT_CARDS_H
#define TESTS_SUPPORT_CARDS_H

#include <oarsong/device.h>

#include "support/crew.h"

enum { CARDS_MOST = 4, CARDS_TIMEOUT_MS = 20000 };

/* Before anything else in main. */
void cards_begin(void);
int cards_are_real(void);
/* Ranks that can have a GPU each, at most CARDS_MOST. */
int cards_count(void);
/* Skips the test if there are not as many, and says so. */
void cards_need(int ranks);

/* In a rank: its group on "nccl" (unless opts say other), on GPU number rank,
 * with a timeout of 20 s. */
oar_status cards_join(const crew *c, int rank, const oar_group_opts *opts,
                      oar_group **group);
/* GPU of a rank. */
oar_device cards_device(int rank);

/* Memory on that GPU; from: what it holds, NULL: 0xee in every byte. */
void *cards_put(int rank, const void *from, size_t bytes);
/* What it holds when everything on the default stream has run. */
void cards_get(int rank, void *into, const void *memory, size_t bytes);
void cards_free(int rank, void *memory);

/* A span there. */
oar_span cards_span(int rank, void *memory, size_t count, oar_dtype dtype);

#endif
