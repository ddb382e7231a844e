/* SPDX-License-Identifier: Apache-2.0 */
/* comm/rendezvous/job.h: a name that the processes of one job on this host
 * share with no others. */
#ifndef OARI_COMM_RENDEZVOUS_JOB_H
#define OARI_COMM_RENDEZVOUS_JOB_H

#include <oarsong/status.h>

enum { OARI_JOB_FOLDER = 256 };

/* Gives the path of a folder for the job, in XDG_RUNTIME_DIR or /tmp. Its name
 * has the user, the values of the variables `job` (those that are set), the
 * process that launched the ranks (the nearest ancestor without the variable
 * `rank`), and a number that the ranks agree on. Other users cannot guess it,
 * because it also has the addresses of the launching process's memory, which
 * only its own user can read. If they cannot be read (srun is root's), it is in
 * /run/user/UID, if there is one. The folder is not made. */
oar_status oari_job_folder(const char *rank, const char *const job[2],
                           int number, char path[OARI_JOB_FOLDER]);

/* Removes such folders beside this one whose launching process is gone, and
 * that have not changed for ten minutes: their ranks were killed while they
 * met. Failures do not matter. */
void oari_job_sweep(const char *path);

#endif
