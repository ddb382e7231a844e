/* SPDX-License-Identifier: Apache-2.0 */
/* record/watchman.h: which rank of a job ended first, where its launcher does
 * not say. */
#ifndef OARI_RECORD_WATCHMAN_H
#define OARI_RECORD_WATCHMAN_H

struct oari_head;

/* Sees to it that the boxes in a folder are watched on this host: by a process
 * that is there already, or by one that is started, and is ready when this
 * returns. If that cannot be, nobody watches: the autopsy then knows less. */
void oari_watchman_start(const char *folder);

/* Waits until whoever watches a folder (a descriptor of it) has written down
 * all that has happened; a second at most. */
void oari_watchman_ask(int folder);

/* Another rank with a box in the folder, on this host, that is gone or on its
 * way, and not because of a third; -1: none. For handlers of signals, too. */
int oari_watchman_gone(const char *path, const struct oari_head *mine);

#endif
