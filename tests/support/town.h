/* SPDX-License-Identifier: Apache-2.0 */
/* support/town.h: two hosts on one machine: network namespaces with a wire
 * between them. The wire is a pair of virtual interfaces, or a relay that can
 * delay, lose and swallow packets (for kernels without netem). Needs root,
 * ip(8) and, for a relay, /dev/net/tun. */
#ifndef TESTS_SUPPORT_TOWN_H
#define TESTS_SUPPORT_TOWN_H

#include "support/crew.h"

/* What the relay does, on a page that it shares with its parent. */
typedef struct town_wire {
    crew_flag ready;
    _Atomic int delay_us; /* of every packet */
    _Atomic int lost_ppm; /* of a million packets, by chance */
    _Atomic int swallows; /* bits: 1 << host: all that it sends is lost */
    _Atomic uint64_t passed, lost;
    uint64_t seed;
} town_wire;

typedef struct town {
    char name[32];   /* the namespaces are NAME0 and NAME1 */
    town_wire *wire; /* NULL: no relay */
    pid_t relay;
} town;

/* Builds it; NULL, or why that is not possible here: then nothing is left. */
const char *town_build(town *t, int with_relay);
/* Ends the relay; the interfaces go with it. Before crew_end: it is a child. */
void town_unplug(town *t);
void town_raze(town *t);

/* Moves this process, and what it starts, there; 1 when that worked. */
int town_move(const town *t, int host);

/* A host's end of the wire goes down, or up again. */
int town_link(const town *t, int host, int up);
/* Packets to the other host have nowhere to go. */
int town_lose_way(const town *t, int host);

#endif
