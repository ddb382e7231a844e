/* SPDX-License-Identifier: Apache-2.0 */
/* comm/presence.h: how another rank is, as far as can be seen from here: dead,
 * stopped, or merely busy elsewhere; what it did last, and whether it has said
 * that it will be slow. For texts, and for patience. */
#ifndef OARI_COMM_PRESENCE_H
#define OARI_COMM_PRESENCE_H

#include "comm/group.h"

/* One or two words: "running", "stopped", "dead", "left", "unreachable", "on
 * another host". */
const char *oari_presence_how(const oar_group *group, int rank);

/* "rank 2 (pid 77, stopped; its last operation was #3 barrier() at a.c:5, 14 s
 * ago)". */
void oari_presence_text(const oar_group *group, int rank, char *text,
                        size_t bytes);

/* A slow part that a rank has announced (oar_timeout_scope_begin). */
typedef struct oari_scope {
    int64_t since_ns, until_ns; /* until: 0: none is open */
    char label[48];
} oari_scope;

_Static_assert(sizeof(oari_scope) == OARI_SCOPE_BYTES, "a scope's size");

/* 1 if it is in one now, as far as that can be seen. Mine too. */
int oari_presence_scope(const oar_group *group, int rank, oari_scope *scope);

/* "14 s" or "0.3 s". */
void oari_age_text(int64_t ns, char *text, size_t bytes);

#endif
