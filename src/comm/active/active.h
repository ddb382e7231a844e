/* SPDX-License-Identifier: Apache-2.0 */
/* comm/active/active.h: active messages of a loose group, for what is built on
 * messages and must answer at once. A small message is written straight into
 * the receiver's queue, where a function gets it; there is no handle, no record
 * and no posted receive. And waiting for what such a function does: the thread
 * that waits drives the group itself. */
#ifndef OARI_COMM_ACTIVE_ACTIVE_H
#define OARI_COMM_ACTIVE_ACTIVE_H

#include <oarsong/group.h>

/* Gets a message, which is borrowed until it returns, on the thread that
 * drives: it may post and send, not wait. */
typedef void (*oari_active_fn)(void *arg, int source, const unsigned char *data,
                               size_t bytes);

/* Sets the function of a group, before any rank sends. Returns 0 if no rank of
 * the group can be reached by active messages. */
int oari_active_open(oar_group *group, oari_active_fn fn, void *arg);

/* Sends an active message: 1. Returns 0 if that cannot be done now: another
 * thread drives, there is no room, or the rank is on another host. Then the
 * caller sends a message of another kind; the order of the two is not kept.
 * Never blocks, and runs no functions. Any thread. */
int oari_active_send(oar_group *group, int to, const void *data, size_t bytes);

/* Wakes a rank that sleeps and is about to be sent to: to wake takes longer
 * than to make the message. Any thread. */
void oari_active_stir(oar_group *group, int to);

/* Blocks until is_done(arg), which must be quick and take no lock. Drives the
 * group meanwhile. Returns 0 after the deadline. What makes it true calls
 * oari_active_tell. Not inside a function of the group. */
int oari_active_wait(oar_group *group, int (*is_done)(void *arg), void *arg,
                     int64_t until_ns);
void oari_active_tell(oar_group *group);

/* Drives for a moment, if no other thread does. */
void oari_active_drive(oar_group *group);

#endif
