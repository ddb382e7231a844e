/* SPDX-License-Identifier: Apache-2.0 */
/* support/raw_client.h: a client of the TCP store that sends and receives bytes
 * itself, and so can do what the library's client never does. */
#ifndef TESTS_SUPPORT_RAW_CLIENT_H
#define TESTS_SUPPORT_RAW_CLIENT_H

#include <sys/resource.h>

#include "store/store_server.h"

enum { RAW_CLIENT_LIMIT_MS = 20000 };

/* Waits for poll events; fails the test after that time. */
void raw_client_await(int fd, short events);

/* Returns a new connection (oari_fork_close it), on which nothing was sent. */
int raw_client_connect(const oar_store_server *server);

/* Returns whether the server closes the connection, whatever it sends
 * before. */
int raw_client_is_closed(int fd);

void raw_client_send_bytes(int fd, const void *bytes, size_t count);
void raw_client_send(int fd, const oari_wire_message *message);
void raw_client_recv_bytes(int fd, void *into, size_t bytes);

/* Receives a reply with a small body, which is valid until the next call. */
void raw_client_recv(int fd, oari_wire_message *message);

/* Raises the limit of descriptors for many connections whose two ends are in
 * this process. Skips the test if that is not possible. */
void raw_client_need_descriptors(rlim_t wanted);

#endif
