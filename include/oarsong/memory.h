/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: the library's own allocations, which a program can count and make
 * fail. */
#ifndef OARSONG_MEMORY_H
#define OARSONG_MEMORY_H

#include <oarsong/status.h>

OAR_BEGIN_DECLS

/* Gives back memory that a function of this library gave as plain bytes. NULL
 * is fine. Any thread. */
OAR_API void oar_free(void *memory);

/* What the library has asked of the system so far, in the whole process. */
typedef struct oar_memory_stats {
    size_t size;
    uint64_t allocations; /* since the start */
    uint64_t live;        /* allocations not yet given back */
    uint64_t live_bytes;
} oar_memory_stats;
OAR_OPTS_INIT(oar_memory_stats);

/* Fills in *stats, whose size the caller has set. Any thread. */
OAR_API oar_status oar_memory_read(oar_memory_stats *stats);

/* For tests: the n-th allocation from now (1: the next) fails, once, on
 * whatever thread it falls; 0 takes that back. */
OAR_API void oar_memory_fail_after(uint64_t n);

OAR_END_DECLS

#endif
