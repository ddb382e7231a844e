/* SPDX-License-Identifier: Apache-2.0 */
/* base/trace_parts.h: parts of the writer of traces: how a file begins, and the
 * table of its names. Only src/base/trace.c uses them. */
#ifndef OARI_BASE_TRACE_PARTS_H
#define OARI_BASE_TRACE_PARTS_H

#include "base/trace.h"

/* Makes a file that nobody else has: rank-3.oartrace, or rank-3.2.oartrace if
 * another process of that rank was first. Returns -1 with errno. */
int oari_trace_file_make(const char *folder);

/* Writes the process, its host, its clocks and its place in the job. */
void oari_trace_head_fill(oari_trace_head *h, unsigned chunks);

/* Copies the names and groups of the process that forked this one: numbers of
 * theirs are kept in many places. */
void oari_trace_file_inherit(oari_trace_file *to, const oari_trace_file *from);

enum { OARI_TRACE_NAMES = 1 << 16 }; /* of the table; half of them are used */

typedef struct oari_trace_names {
    _Atomic uint32_t hash_at[OARI_TRACE_NAMES]; /* number of a name; 0: free */
    uint32_t offset_of[OARI_TRACE_NAMES];       /* of each name, in bytes */
    uint32_t count;                             /* name 0 is the empty one */
} oari_trace_names;

/* Returns the number of a name that has been entered, or 0. *at is where it is,
 * or belongs. */
unsigned oari_trace_name_find(const oari_trace_names *t,
                              const oari_trace_file *file, const char *text,
                              uint32_t *at);
/* Enters a name that is new, and returns its number; 0: there is no room. The
 * caller has the lock of the writer. */
unsigned oari_trace_name_enter(oari_trace_names *t, oari_trace_file *file,
                               const char *text);

#endif
