/* SPDX-License-Identifier: Apache-2.0 */
/* link/link.h: what the core and the links between ranks have in common: the
 * limits of a group, what a backend of this tree is opened with, how a peer is
 * gone, and which of two faults counts. */
#ifndef OARI_LINK_LINK_H
#define OARI_LINK_LINK_H

#include <oarsong/backend.h>
#include <oarsong/group.h>

#include "net/frame.h"
#include "record/recorder.h"

enum {
    OARI_MAX_RANKS = 1024,
    OARI_NAME_MAX = 150,  /* bytes; keys of the store begin with it */
    OARI_NOTE_BYTES = 256 /* of a ballot: council.h */
};

struct oari_board;
struct oari_world;

/* What the in-tree backends are opened with besides oar_backend_env. */
typedef struct oari_open {
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
} oari_open;

/* How a rank is gone. */
enum { OARI_PEER_DIED = 1, OARI_PEER_LEFT = 2, OARI_PEER_UNREACHABLE = 3 };

/* ---- fault.c ------------------------------------------------------------- */

/* How far a fault that one thread writes and others read has come. */
enum { OARI_FAULT_NONE = 0, OARI_FAULT_WRITING = 1, OARI_FAULT_READY = 2 };

/* Of two faults that nobody can tell which was first, the one that counts. */
int oari_fault_before(const oari_fault *a, const oari_fault *b);
/* Whether it names the cause, and not only somebody who was waited for. */
int oari_fault_sure(const oari_fault *fault);

#endif
