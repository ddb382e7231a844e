/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/presence.h: the state of another rank, as far as can be seen from
 * here: dead, stopped, or busy; what it did last, and whether it is in a
 * timeout scope. Error texts name it, and deadlines depend on it. */
#ifndef OARI_COMM_FAULT_PRESENCE_H
#define OARI_COMM_FAULT_PRESENCE_H

#include "comm/comm.h"

/* name, words. */
#define OARI_PRESENCE_LIST(X)                   \
    X(OARI_PRESENCE_RUNNING, "running")         \
    X(OARI_PRESENCE_STOPPED, "stopped")         \
    X(OARI_PRESENCE_DEAD, "dead")               \
    X(OARI_PRESENCE_LEFT, "left")               \
    X(OARI_PRESENCE_UNREACHABLE, "unreachable") \
    X(OARI_PRESENCE_ELSEWHERE, "on another host")

typedef enum oari_presence {
#define X(name, words) name,
    OARI_PRESENCE_LIST(X)
#undef X
} oari_presence;

/* Returns the state of a rank. The caller holds the token. */
oari_presence oari_presence_of(const oar_group *group, int rank);

/* Returns the one to three words for a state. */
const char *oari_presence_word(oari_presence presence);

/* Returns the predicate for a rank that is gone (OARI_PEER_*): "has died". */
const char *oari_presence_end(int gone);

/* Writes "rank 2 (pid 77, stopped; its last operation was #3 barrier() at
 * a.c:5, 14 s ago)". */
void oari_presence_text(const oar_group *group, int rank, char *text,
                        size_t bytes);

/* A slow part that a rank has announced (oar_timeout_scope_begin). */
typedef struct oari_timeout_scope {
    int64_t since_ns, until_ns; /* until: 0: none is open */
    char label[48];
} oari_timeout_scope;

_Static_assert(sizeof(oari_timeout_scope) == OARI_SCOPE_BYTES,
               "a scope's size");

/* Gives the scope that a rank is in, as far as that can be seen from here, this
 * rank's too. Returns 0 if it is in none. */
int oari_presence_scope(const oar_group *group, int rank,
                        oari_timeout_scope *scope);

/* ---- scopes of ranks without a control block here (timeout_scope.c)
 * -------------- All but `changed` are for the thread that holds the token. */

typedef struct oari_far_scopes oari_far_scopes;
oar_status oari_far_scopes_create(oar_group *group);
void oari_far_scopes_destroy(oari_far_scopes *scopes); /* NULL is fine */
/* Notes that a scope of this rank has begun or ended. */
void oari_far_scopes_changed(oar_group *group);
/* Sends this rank's scope if it has changed, and reads what others have sent.
 */
void oari_far_scopes_look(oar_group *group);
/* Gives the scope that a far rank is in; 0: none. */
int oari_far_scope(const oar_group *group, int rank, oari_timeout_scope *scope);

#endif
