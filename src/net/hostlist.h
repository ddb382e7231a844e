/* SPDX-License-Identifier: Apache-2.0 */
/* net/hostlist.h: reads SLURM's lists of hosts, "node[001-003,7],login". */
#ifndef OARI_NET_HOSTLIST_H
#define OARI_NET_HOSTLIST_H

#include <oarsong/status.h>

enum { OARI_HOST_ROOM = 256, OARI_HOSTLIST_MAX = 1 << 20 /* bytes */ };

/* Gives the first host of a list, with the first number of each bracket as it
 * is written there. Reads `bytes` bytes and no more. OAR_E_DATA: the text is
 * not a list, or the name is too long. */
oar_status oari_hostlist_first(const char *text, size_t bytes,
                               char host[OARI_HOST_ROOM]);

#endif
