/* SPDX-License-Identifier: Apache-2.0 */
#include "support/raw_client.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/alloc.h"

void raw_client_await(int fd, short events)
{
    struct pollfd wait = { fd, events, 0 };

    assert_int_equal(poll(&wait, 1, RAW_CLIENT_LIMIT_MS), 1);
}

int raw_client_connect(const oar_store_server *server)
{
    const char *address = oar_store_server_address(server);
    int fd, done = 0;

    assert_int_equal(oari_sock_connect_again(address, 0, &fd), OAR_OK);
    while (!done) {
        raw_client_await(fd, POLLOUT);
        assert_int_equal(oari_sock_connected(fd, address, &done), OAR_OK);
    }
    return fd;
}

int raw_client_is_closed(int fd)
{
    char bytes[4096];
    ssize_t got;

    do {
        raw_client_await(fd, POLLIN);
        got = recv(fd, bytes, sizeof bytes, 0);
    } while (got > 0);
    return got <= 0;
}

void raw_client_send_bytes(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

void raw_client_send(int fd, const oari_wire_message *message)
{
    unsigned char *frame;
    size_t bytes;

    assert_int_equal(oari_wire_frame(message, &frame, &bytes), OAR_OK);
    raw_client_send_bytes(fd, frame, bytes);
    oari_free(frame);
}

void raw_client_recv_bytes(int fd, void *into, size_t bytes)
{
    unsigned char *at = into;

    while (bytes > 0) {
        ssize_t got;
        raw_client_await(fd, POLLIN);
        got = recv(fd, at, bytes, 0);
        assert_true(got > 0);
        at += got;
        bytes -= (size_t)got;
    }
}

void raw_client_recv(int fd, oari_wire_message *message)
{
    static unsigned char body[4096];
    unsigned char head_bytes[OARI_WIRE_HEADER_BYTES];
    oari_wire_header head;

    raw_client_recv_bytes(fd, head_bytes, sizeof head_bytes);
    assert_int_equal(oari_wire_read_header(head_bytes, &head), OAR_OK);
    assert_true(head.bytes <= sizeof body);
    raw_client_recv_bytes(fd, body, head.bytes);
    assert_int_equal(oari_wire_read(&head, body, message), OAR_OK);
}

void raw_client_need_descriptors(rlim_t wanted)
{
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) {
        print_message("skipped: only %d descriptors here\n",
                      (int)limit.rlim_cur);
        skip();
    }
}
