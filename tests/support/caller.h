/* SPDX-License-Identifier: Apache-2.0 */
/* support/caller.h: connections to a store's server by hand, for callers that
 * do what ours never would. */
#ifndef TESTS_SUPPORT_CALLER_H
#define TESTS_SUPPORT_CALLER_H

#include "store/store_server.h"

enum { CALLER_PATIENCE_MS = 20000 };

/* Fails the test if it takes longer than that. */
void caller_await(int fd, short events);

/* A connection (oari_fork_close it) on which nothing was said. */
int caller_connect(const oar_store_server *server);

/* Whether the other end closes the connection, whatever it says before. */
int caller_is_cut(int fd);

void caller_say(int fd, const void *bytes, size_t count);
void caller_send(int fd, const oari_wire_message *message);
void caller_hear(int fd, void *into, size_t bytes);

/* A reply whose body is small; good until the next. */
void caller_read(int fd, oari_wire_message *message);

#endif
