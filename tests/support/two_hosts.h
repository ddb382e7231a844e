/* SPDX-License-Identifier: Apache-2.0 */
/* support/two_hosts.h: two hosts on one machine: two network namespaces and a
 * link between them. The link is a pair of virtual interfaces, or a relay that
 * can delay and drop packets (for kernels without netem). Needs root, ip(8)
 * and, for a relay, /dev/net/tun. */
#ifndef TESTS_SUPPORT_TWO_HOSTS_H
#define TESTS_SUPPORT_TWO_HOSTS_H

#include "support/test_job.h"

/* What the relay does, on a page that it shares with its parent. */
typedef struct packet_relay {
    shared_flag ready;
    _Atomic int delay_us; /* of every packet */
    _Atomic int lost_ppm; /* of a million packets, by chance */
    _Atomic int swallows; /* bits: 1 << host: all that it sends is dropped */
    _Atomic uint64_t passed, lost;
    uint64_t seed;
} packet_relay;

typedef struct two_hosts {
    char name[32];      /* the namespaces are NAME0 and NAME1 */
    packet_relay *wire; /* NULL: no relay */
    pid_t relay;
} two_hosts;

/* Creates the hosts. Returns NULL, or why that is not possible here; then
 * nothing is left behind. */
const char *two_hosts_create(two_hosts *t, int with_relay);
/* Ends the relay and with it the interfaces. Call it before test_job_end, since
 * the relay is a child. */
void two_hosts_stop_relay(two_hosts *t);
void two_hosts_destroy(two_hosts *t);

/* Moves this process, and what it starts, to a host. Returns 1 on success. */
int two_hosts_enter(const two_hosts *t, int host);

/* Takes a host's interface down, or up again. Returns 1 on success. */
int two_hosts_set_link(const two_hosts *t, int host, int up);
/* Removes the route to the other host. Returns 1 on success. */
int two_hosts_drop_route(const two_hosts *t, int host);

#endif
