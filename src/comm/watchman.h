/* SPDX-License-Identifier: Apache-2.0 */
/* comm/watchman.h: which rank of a job ended first, where its launcher does not
 * say. */
#ifndef OARI_COMM_WATCHMAN_H
#define OARI_COMM_WATCHMAN_H

/* Sees to it that the boxes in a folder are watched on this host: by a process
 * that is there already, or by one that is started, and is ready when this
 * returns. If that cannot be, nobody watches: the autopsy then knows less. */
void oari_watchman_start(const char *folder);

/* Waits until whoever watches a folder (a descriptor of it) has written down
 * all that has happened; a second at most. */
void oari_watchman_ask(int folder);

#endif
