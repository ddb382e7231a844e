/* SPDX-License-Identifier: Apache-2.0 */
/* launch/hostfile.h: the hosts and slots of mpirun's hostfiles. */
#ifndef OARI_LAUNCH_HOSTFILE_H
#define OARI_LAUNCH_HOSTFILE_H

#include <oarsong/status.h>

enum {
    LAUNCH_HOST_ROOM = 256,
    LAUNCH_HOSTS_MAX = 1024,
    LAUNCH_SLOTS_MAX = 1024,
    LAUNCH_HOSTFILE_MAX = 1 << 18 /* bytes */
};

typedef struct launch_host {
    char name[LAUNCH_HOST_ROOM];
    int slots;
} launch_host;

/* Reads "host", "host slots=4" (Open MPI) and "host:4" (MPICH), one on a line,
 * with comments behind '#'. A host that is named again has the sum of its
 * slots. Gives an array (oari_free it). OAR_E_DATA names the line. Only reads
 * `bytes` bytes, and at most LAUNCH_HOSTFILE_MAX. */
oar_status launch_hostfile_read(const char *text, size_t bytes,
                                launch_host **hosts, int *count);

/* Gives this host's slots in the file at path. Refuses a file with other hosts,
 * and says what to start there. */
oar_status launch_hostfile_slots(const char *path, int *slots);

#endif
