/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets and their addresses as text: what net/sock.h promises. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/store.h>

#include "base/clock.h"
#include "base/fork.h"
#include "net/unix_socket.h"
#include "net/sock.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000 };

static void await(int fd, short events)
{
    struct pollfd wait = { fd, events, 0 };

    assert_int_equal(poll(&wait, 1, PATIENCE_MS), 1);
}

/* Waits for the end of a connection under way. */
static oar_status settle(int fd, const char *address)
{
    int done = 0;
    oar_status status;

    while ((status = oari_sock_connected(fd, address, &done)) == OAR_OK &&
           !done)
        await(fd, POLLOUT);
    return status;
}

static int accept_one(int listener)
{
    int fd = -1;

    await(listener, POLLIN);
    assert_int_equal(oari_sock_accept(listener, &fd), OAR_OK);
    assert_true(fd >= 0);
    return fd;
}

typedef struct socket_pair {
    int listener, client, server;
    char address[OARI_SOCK_TEXT];
} socket_pair;

static int try_pair(const char *address, socket_pair *p)
{
    if (oari_sock_listen(address, 5, &p->listener) != OAR_OK)
        return 0;
    assert_int_equal(oari_sock_name(p->listener, p->address), OAR_OK);
    assert_int_equal(oari_sock_connect_again(p->address, 0, &p->client),
                     OAR_OK);
    assert_int_equal(settle(p->client, p->address), OAR_OK);
    p->server = accept_one(p->listener);
    return 1;
}

static void drop_pair(socket_pair *p)
{
    oari_fork_close(p->client);
    oari_fork_close(p->server);
    oari_fork_close(p->listener);
}

static void exchange(socket_pair *p)
{
    char got[4] = { 0 };

    assert_int_equal(send(p->client, "abc", 3, MSG_NOSIGNAL), 3);
    await(p->server, POLLIN);
    assert_int_equal(recv(p->server, got, 3, 0), 3);
    assert_string_equal(got, "abc");
}

static int option(int fd, int level, int name)
{
    int value = 0;
    socklen_t bytes = sizeof value;

    assert_int_equal(getsockopt(fd, level, name, &value, &bytes), 0);
    return value;
}

/* ---- addresses ----------------------------------------------------------- */

static void what_is_no_address_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        ":",
        "host",
        "host:",
        ":80",
        "127.0.0.1:80x",
        "127.0.0.1:-1",
        "127.0.0.1:+1",
        "127.0.0.1: 1",
        "127.0.0.1:1K",
        "127.0.0.1:123456",
        "::1:80",
        "[::1]",
        "[::1",
        "[::1]80",
        "[]:80",
        "127.0.0.1:80:81",
    };
    char wide[400];
    int fd = -7;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_fails_with(oari_sock_listen(wrong[i], 1, &fd), OAR_E_ARG,
                          wrong[i]);
        assert_fails_with(oari_sock_connect_again(wrong[i], 0, &fd), OAR_E_ARG,
                          wrong[i]);
    }
    assert_fails_with(oari_sock_listen("127.0.0.1:65536", 1, &fd), OAR_E_ARG,
                      "65536");
    assert_fails_with(oari_sock_listen(NULL, 1, &fd), OAR_E_ARG, "no address");
    memset(wide, 'h', sizeof wide);
    strcpy(wide + sizeof wide - 4, ":80");
    assert_fails_with(oari_sock_listen(wide, 1, &fd), OAR_E_ARG, "host:port");
    assert_int_equal(fd, -7);
}

static void an_unknown_name_is_not_found(void **state)
{
    int fd = -7;

    assert_fails_with(oari_sock_connect_again("no such.invalid:80", 0, &fd),
                      OAR_E_NOT_FOUND, "no such.invalid:80");
    assert_int_equal(fd, -7);
}

static void the_family_can_be_chosen(void **state)
{
    int fd = -7;

    setenv("OARSONG_SOCKET_FAMILY", "inet6", 1);
    assert_fails_with(oari_sock_listen("127.0.0.1:0", 1, &fd), OAR_E_NOT_FOUND,
                      "127.0.0.1:0");
    setenv("OARSONG_SOCKET_FAMILY", "inet", 1);
    assert_fails_with(oari_sock_listen("[::1]:0", 1, &fd), OAR_E_NOT_FOUND,
                      "[::1]");
    assert_int_equal(oari_sock_listen("127.0.0.1:0", 1, &fd), OAR_OK);
    oari_fork_close(fd);
    setenv("OARSONG_SOCKET_FAMILY", "ipx", 1);
    assert_fails_with(oari_sock_listen("127.0.0.1:0", 1, &fd), OAR_E_ARG,
                      "ipx");
    unsetenv("OARSONG_SOCKET_FAMILY");
}

/* ---- connections --------------------------------------------------------- */

static void connections_are_made_by_ipv4(void **state)
{
    leak_check before = leak_check_begin();
    char peer[OARI_SOCK_TEXT], own[OARI_SOCK_TEXT];
    socket_pair p;

    assert_true(try_pair("127.0.0.1:0", &p));
    assert_memory_equal(p.address, "127.0.0.1:", 10);
    assert_string_not_equal(p.address, "127.0.0.1:0");
    exchange(&p);
    assert_int_equal(oari_sock_peer(p.server, peer), OAR_OK);
    assert_int_equal(oari_sock_name(p.client, own), OAR_OK);
    assert_string_equal(peer, own);
    assert_int_equal(oari_sock_peer(p.client, peer), OAR_OK);
    assert_string_equal(peer, p.address);
    drop_pair(&p);
    leak_check_end(&before);
}

static void connections_are_made_by_ipv6(void **state)
{
    socket_pair p;

    if (!try_pair("[::1]:0", &p)) {
        print_message("no IPv6 here: %s\n", oar_last_error_text());
        skip();
    }
    assert_memory_equal(p.address, "[::1]:", 6);
    exchange(&p);
    assert_true(oari_sock_is_loopback(p.client));
    assert_true(oari_sock_is_loopback(p.server));
    drop_pair(&p);
}

static void the_wildcard_of_ipv6_takes_ipv4_too(void **state)
{
    int listener, client, server;
    char name[OARI_SOCK_TEXT], four[OARI_SOCK_TEXT];

    if (oari_sock_listen("[::]:0", 3, &listener) != OAR_OK)
        skip();
    assert_int_equal(oari_sock_name(listener, name), OAR_OK);
    snprintf(four, sizeof four, "127.0.0.1:%s", strrchr(name, ':') + 1);
    assert_int_equal(oari_sock_connect_again(four, 0, &client), OAR_OK);
    assert_int_equal(settle(client, four), OAR_OK);
    server = accept_one(listener);
    assert_true(oari_sock_is_loopback(server));
    oari_fork_close(server);
    oari_fork_close(client);
    oari_fork_close(listener);
}

static void a_name_may_stand_for_several_addresses(void **state)
{
    char address[OARI_SOCK_TEXT], name[OARI_SOCK_TEXT];
    int listener, client;
    oar_status status = OAR_E_SYSTEM;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 3, &listener), OAR_OK);
    assert_int_equal(oari_sock_name(listener, name), OAR_OK);
    snprintf(address, sizeof address, "localhost:%s", strrchr(name, ':') + 1);
    for (unsigned i = 0; i < 4 && status != OAR_OK; i++) {
        if (oari_sock_connect_again(address, i, &client) != OAR_OK)
            continue;
        status = settle(client, address);
        oari_fork_close(client);
    }
    assert_int_equal(status, OAR_OK);
    oari_fork_close(listener);
}

static void descriptors_do_not_block_and_are_closed_by_exec(void **state)
{
    socket_pair p;
    int fd[3];

    assert_true(try_pair("127.0.0.1:0", &p));
    fd[0] = p.listener;
    fd[1] = p.client;
    fd[2] = p.server;
    for (int i = 0; i < 3; i++) {
        assert_true(fcntl(fd[i], F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(fd[i], F_GETFD) & FD_CLOEXEC);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(option(fd[i], IPPROTO_TCP, TCP_NODELAY));
        assert_true(option(fd[i], SOL_SOCKET, SO_KEEPALIVE));
    }
    assert_true(option(p.listener, SOL_SOCKET, SO_REUSEADDR));
    drop_pair(&p);
}

static void accept_without_a_connection_is_no_failure(void **state)
{
    int listener, fd = 7;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 1, &listener), OAR_OK);
    assert_int_equal(oari_sock_accept(listener, &fd), OAR_OK);
    assert_int_equal(fd, -1);
    oari_fork_close(listener);
    assert_fails_with(oari_sock_accept(listener, &fd), OAR_E_SYSTEM, "accept");
}

/* A port that was free a moment ago. */
static void free_address(char address[OARI_SOCK_TEXT])
{
    int fd;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 1, &fd), OAR_OK);
    assert_int_equal(oari_sock_name(fd, address), OAR_OK);
    oari_fork_close(fd);
}

static void a_refused_connection_names_the_address(void **state)
{
    leak_check before = leak_check_begin();
    char address[OARI_SOCK_TEXT];
    oar_status status;
    int fd = -1;

    free_address(address);
    status = oari_sock_connect_again(address, 0, &fd);
    if (status == OAR_OK)
        status = settle(fd, address);
    assert_fails_with(status, OAR_E_SYSTEM, address);
    assert_non_null(strstr(oar_last_error_text(), strerror(ECONNREFUSED)));
    assert_int_equal(oar_last_error()->sys_errno, ECONNREFUSED);
    oari_fork_close(fd);
    leak_check_end(&before);
}

static void a_socket_that_met_itself_is_not_connected(void **state)
{
    struct sockaddr_in own = { .sin_family = AF_INET };
    socklen_t bytes = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), done = 0;

    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &bytes), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_fails_with(oari_sock_connected(fd, "here", &done), OAR_E_SYSTEM,
                      strerror(ECONNREFUSED));
    assert_int_equal(done, 0);
    close(fd);
}

static void a_taken_port_is_named(void **state)
{
    char address[OARI_SOCK_TEXT];
    int first, second = -7;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 1, &first), OAR_OK);
    assert_int_equal(oari_sock_name(first, address), OAR_OK);
    assert_fails_with(oari_sock_listen(address, 1, &second), OAR_E_SYSTEM,
                      address);
    assert_int_equal(oar_last_error()->sys_errno, EADDRINUSE);
    assert_int_equal(second, -7);
    oari_fork_close(first);
    assert_int_equal(oari_sock_listen(address, 1, &second), OAR_OK);
    oari_fork_close(second);
}

static void an_address_of_another_host_cannot_be_bound(void **state)
{
    int fd = -7;

    assert_fails_with(oari_sock_listen("192.0.2.1:0", 1, &fd), OAR_E_SYSTEM,
                      "192.0.2.1:0");
    assert_int_equal(oar_last_error()->sys_errno, EADDRNOTAVAIL);
}

static void a_child_does_not_keep_a_connection_open(void **state)
{
    socket_pair p;
    char byte;
    int hold[2];
    pid_t child;

    assert_true(try_pair("127.0.0.1:0", &p));
    assert_int_equal(pipe(hold), 0);
    if ((child = fork()) == 0) {
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(hold[0]);
    oari_fork_close(p.client);
    await(p.server, POLLIN);
    assert_int_equal(recv(p.server, &byte, 1, 0), 0);
    close(hold[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    oari_fork_close(p.server);
    oari_fork_close(p.listener);
}

/* ---- loopback and interfaces --------------------------------------------- */

static void loopback_is_known_by_its_address(void **state)
{
    socket_pair p;

    assert_true(try_pair("127.0.0.1:0", &p));
    assert_true(oari_sock_is_loopback(p.client));
    assert_true(oari_sock_is_loopback(p.server));
    assert_false(oari_sock_is_loopback(p.listener));
    drop_pair(&p);
    assert_true(oari_sock_names_loopback("127.3.2.1:80"));
    assert_true(oari_sock_names_loopback("[::1]:80"));
    assert_true(oari_sock_names_loopback("[::ffff:127.0.0.1]:80"));
    assert_false(oari_sock_names_loopback("192.0.2.1:80"));
    assert_false(oari_sock_names_loopback("[2001:db8::1]:80"));
    assert_false(oari_sock_names_loopback("no address"));
}

/* By whatever address: what has the same at both ends has not left the host. */
static void this_host_is_known_by_its_own_address(void **state)
{
    char own[OARI_SOCK_TEXT];
    socket_pair p;

    setenv("OARSONG_SOCKET_IFNAME", "^lo", 1);
    if (oari_sock_local(NULL, own) != OAR_OK) {
        unsetenv("OARSONG_SOCKET_IFNAME");
        print_message("skipped: this host has only loopback\n");
        skip();
    }
    unsetenv("OARSONG_SOCKET_IFNAME");
    assert_false(oari_sock_names_loopback(own));
    assert_true(try_pair(own, &p));
    assert_true(oari_sock_is_loopback(p.client));
    assert_true(oari_sock_is_loopback(p.server));
    drop_pair(&p);
}

static void patterns_choose_interfaces_as_nccl_does(void **state)
{
    static const struct {
        const char *pattern, *name;
        int allowed;
    } row[] = {
        { NULL, "eth0", 1 },        { "eth", "eth0", 1 },
        { "eth", "ib0", 0 },        { "eth,ib", "ib0", 1 },
        { "eth,ib", "lo", 0 },      { "=eth0", "eth0", 1 },
        { "=eth", "eth0", 0 },      { "=eth0,eth1", "eth1", 1 },
        { "=eth0,eth1", "eth", 0 }, { "^docker", "docker0", 0 },
        { "^docker", "eth0", 1 },   { "^docker,lo", "lo", 0 },
        { "^docker,lo", "el0", 1 }, { "^=eth0", "eth0", 0 },
        { "^=eth0", "eth01", 1 },   { "eth,", "lo", 0 },
        { ",eth", "eth0", 1 },      { "=eth0", "eth01", 0 },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (oari_sock_allows(row[i].pattern, row[i].name) != row[i].allowed)
            fail_msg("\"%s\" on %s", row[i].pattern, row[i].name);
}

static void the_local_address_follows_the_route(void **state)
{
    char text[OARI_SOCK_TEXT];

    assert_int_equal(oari_sock_local("127.0.0.1:29500", text), OAR_OK);
    assert_string_equal(text, "127.0.0.1:0");
    if (oari_sock_local("[::1]:29500", text) == OAR_OK)
        assert_true(strcmp(text, "[::1]:0") == 0 || text[0] != '[');
    assert_int_equal(oari_sock_local(NULL, text), OAR_OK);
    assert_fails_with(oari_sock_local("nonsense", text), OAR_E_ARG, "nonsense");
}

static void the_interface_can_be_named(void **state)
{
    char text[OARI_SOCK_TEXT];
    int fd;

    setenv("OARSONG_SOCKET_IFNAME", "=lo", 1);
    setenv("OARSONG_SOCKET_FAMILY", "inet", 1);
    assert_int_equal(oari_sock_local("192.0.2.1:80", text), OAR_OK);
    assert_memory_equal(text, "127.", 4);
    assert_int_equal(oari_sock_listen(text, 1, &fd), OAR_OK);
    oari_fork_close(fd);
    setenv("OARSONG_SOCKET_IFNAME", "nosuch", 1);
    assert_fails_with(oari_sock_local(NULL, text), OAR_E_UNAVAILABLE, "nosuch");
    assert_non_null(strstr(oar_last_error_text(), "lo"));
    unsetenv("OARSONG_SOCKET_IFNAME");
    unsetenv("OARSONG_SOCKET_FAMILY");
}

/* ---- no descriptor left -------------------------------------------------- */

/* So that not one more can be had; in a child. */
static int exhaust(void)
{
    struct rlimit limit;
    int fd;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    limit.rlim_cur = 64;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    while ((fd = dup(0)) >= 0)
        continue;
    return errno == EMFILE;
}

static int is_told_of_it(oar_status status)
{
    return status == OAR_E_SYSTEM && oar_last_error()->sys_errno == EMFILE;
}

static int take_what_is_handed_over(void)
{
    int end[2], got = -1;
    char byte = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, end) != 0 ||
        oari_unix_send(end[0], "x", 1, &end[0], 1) != OAR_OK || !exhaust())
        return 1;
    return is_told_of_it(oari_unix_recv(end[1], &byte, 1, &got, 1,
                                        oari_deadline(PATIENCE_MS)))
               ? 0
               : 2;
}

/* It fails at once, and not as if there were no listener. */
static int call_a_store(void)
{
    int64_t start = oari_now_ns();
    oar_store *store;

    if (!exhaust())
        return 1;
    if (!is_told_of_it(
            oar_store_create_tcp("127.0.0.1:1", 10 * PATIENCE_MS, &store)))
        return 2;
    return oari_now_ns() - start < PATIENCE_MS * INT64_C(1000000) ? 0 : 3;
}

static void a_process_without_descriptors_says_so(void **state)
{
    int (*const fails[])(void) = { take_what_is_handed_over, call_a_store };

    for (int i = 0; i < 2; i++) {
        int ended = -1;
        pid_t pid = fork();

        if (pid == 0)
            _exit(fails[i]());
        assert_int_equal(waitpid(pid, &ended, 0), pid);
        assert_int_equal(ended, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_without_descriptors_says_so),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(an_unknown_name_is_not_found),
        cmocka_unit_test(the_family_can_be_chosen),
        cmocka_unit_test(connections_are_made_by_ipv4),
        cmocka_unit_test(connections_are_made_by_ipv6),
        cmocka_unit_test(the_wildcard_of_ipv6_takes_ipv4_too),
        cmocka_unit_test(a_name_may_stand_for_several_addresses),
        cmocka_unit_test(descriptors_do_not_block_and_are_closed_by_exec),
        cmocka_unit_test(accept_without_a_connection_is_no_failure),
        cmocka_unit_test(a_refused_connection_names_the_address),
        cmocka_unit_test(a_socket_that_met_itself_is_not_connected),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(an_address_of_another_host_cannot_be_bound),
        cmocka_unit_test(a_child_does_not_keep_a_connection_open),
        cmocka_unit_test(loopback_is_known_by_its_address),
        cmocka_unit_test(this_host_is_known_by_its_own_address),
        cmocka_unit_test(patterns_choose_interfaces_as_nccl_does),
        cmocka_unit_test(the_local_address_follows_the_route),
        cmocka_unit_test(the_interface_can_be_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
