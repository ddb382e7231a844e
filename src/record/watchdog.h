/* SPDX-License-Identifier: Apache-2.0 */
/* record/watchdog.h: the watchdog process, which sees the order in which the
 * ranks of a job end, where the launcher does not say. */
#ifndef OARI_RECORD_WATCHDOG_H
#define OARI_RECORD_WATCHDOG_H

struct oari_recorder_head;

/* Starts a process that watches the recorder files in a folder on this host,
 * unless there is one already. It is ready when this returns. If it cannot be
 * started, the order of the ends is not known, and the autopsy says less. */
void oari_watchdog_start(const char *folder);

/* Blocks until the watchdog process of a folder (a descriptor of it) has
 * written down all that has happened; a second at most. */
void oari_watchdog_ask(int folder);

/* Returns another rank with a recorder file in the folder, on this host, that
 * is gone or about to end, and not because of a third; or -1. Handlers of
 * signals may call it. */
int oari_watchdog_peer_gone(const char *path,
                            const struct oari_recorder_head *mine);

#endif
