/* SPDX-License-Identifier: Apache-2.0 */
/* web: starts the process that serves the live page, and is its main loop.
 *
 * The process is no child of the launcher, which ends all of its own. It ends
 * when the launcher has, which it sees by a pipe; if someone was looking, a few
 * seconds later, so that the page shows the end. */
#include "web.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef OARSONG_WITH_WEB

int tool_web_start(const char *address, const char *endpoint, const char *run)
{
    fprintf(stderr, "oarsong run: this build has no --web: libmicrohttpd was "
                    "not found (install libmicrohttpd-dev and build again)\n");
    return 0;
}

#else

enum { LINGER_S = 3, BEAT_MS = 1000, MOST_FILES = 4096 };

/* What the process says when it serves, or cannot. */
typedef struct web_answer {
    int port; /* 0: it cannot */
    char why[256];
} web_answer;

/* ---- in the process ------------------------------------------------------ */

/* Keeps two descriptors, and nothing that others wait for. */
static void detach(int keep, int also)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
    for (int fd = 3; fd < MOST_FILES; fd++)
        if (fd != keep && fd != also)
            close(fd);
}

/* Returns when the launcher has ended. */
static void wait_for_launcher(int launcher, web_state *s, int several)
{
    struct pollfd end = { launcher, POLLIN, 0 };

    while (poll(&end, 1, several ? BEAT_MS : -1) == 0 || errno == EINTR) {
        errno = 0;
        if (several)
            web_state_look(s);
        if (end.revents != 0)
            break;
    }
}

static void serve(const char *address, const char *token, const char *endpoint,
                  const char *run, pid_t launcher, int ready, int end)
{
    web_answer answer = { 0 };
    web_state *s;

    detach(ready, end);
    s = web_state_make((int)launcher, endpoint, run);
    if (s == NULL)
        snprintf(answer.why, sizeof answer.why, "out of memory");
    else
        answer.port =
            web_serve(address, token, s, answer.why, sizeof answer.why);
    if (write(ready, &answer, sizeof answer) != (ssize_t)sizeof answer ||
        answer.port == 0)
        _exit(1);
    close(ready);
    wait_for_launcher(end, s, endpoint != NULL);
    web_state_end(s);
    if (web_state_asked(s, LINGER_S))
        sleep(LINGER_S);
    _exit(0);
}

/* ---- in the launcher ----------------------------------------------------- */

/* Makes the token, or takes that of the user. Returns 0 after complaining. */
static int make_token(char token[WEB_TOKEN_ROOM])
{
    const char *given = getenv("OARSONG_WEB_TOKEN");
    unsigned char bytes[16];

    token[0] = 0;
    if (given != NULL && strcmp(given, "none") == 0)
        return 1;
    if (given != NULL && given[0] != 0) {
        size_t length = strlen(given);

        if (length < 8 || length >= WEB_TOKEN_ROOM ||
            strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                          "0123456789") != length) {
            fprintf(stderr, "oarsong run: OARSONG_WEB_TOKEN should have 8 to "
                            "64 letters and digits, or be \"none\"\n");
            return 0;
        }
        snprintf(token, WEB_TOKEN_ROOM, "%s", given);
        return 1;
    }
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        perror("oarsong run: no token for the live page");
        return 0;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return 1;
}

/* Returns the host of ADDR:PORT as a URL has it. */
static const char *host_of(const char *address, char *host, size_t room)
{
    const char *colon = strrchr(address, ':');

    snprintf(host, room, "%.*s", colon != NULL ? (int)(colon - address) : 0,
             address);
    if (host[0] == 0)
        snprintf(host, room, "127.0.0.1");
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0)
        gethostname(host, room);
    return host;
}

/* Starts the process by two forks, so that it is no child of ours. Returns
 * whether that worked. */
static int start_process(const char *address, const char *token,
                         const char *endpoint, const char *run,
                         const int ready[2], const int end[2])
{
    pid_t launcher = getpid(), pid;
    int how = 0;

    fflush(NULL);
    if ((pid = fork()) == 0) {
        setsid();
        if ((pid = fork()) == 0) {
            close(ready[0]);
            close(end[1]);
            serve(address, token, endpoint, run, launcher, ready[1], end[0]);
        }
        _exit(pid < 0);
    }
    return pid > 0 && waitpid(pid, &how, 0) == pid && how == 0;
}

int tool_web_start(const char *address, const char *endpoint, const char *run)
{
    char token[WEB_TOKEN_ROOM], host[300];
    web_answer answer = { 0 };
    int ready[2], end[2], got;

    if (!make_token(token))
        return 0;
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(end, O_CLOEXEC) != 0) {
        perror("oarsong run: no live page");
        return 0;
    }
    got = start_process(address, token, endpoint, run, ready, end);
    close(ready[1]);
    close(end[0]);
    got =
        got && read(ready[0], &answer, sizeof answer) == (ssize_t)sizeof answer;
    close(ready[0]);
    if (!got || answer.port == 0) {
        fprintf(stderr, "oarsong run: no live page: %s\n",
                got ? answer.why : "its process cannot be started");
        close(end[1]);
        return 0;
    }
    /* end[1] stays open as long as this process lives */
    fprintf(stderr, "oarsong run: live page: http://%s:%d/%s%s\n",
            host_of(address, host, sizeof host), answer.port,
            token[0] != 0 ? "?token=" : "", token);
    return 1;
}

#endif
