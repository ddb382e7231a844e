/* SPDX-License-Identifier: Apache-2.0 */
/* web_serve: HTTP, by GNU libmicrohttpd: one thread, GET only. Every request
 * needs the token, in the address or as a bearer token; without it the answer
 * is 403 and nothing else, whatever was asked for. */
#include "web.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECTIONS = 64, SILENT_S = 10, MEMORY = 32 << 10 };

typedef struct web_site {
    web_state *state;
    char token[WEB_TOKEN_ROOM];
} web_site;

/* ---- who may ask --------------------------------------------------------- */

/* Compares in a time that does not say where they differ. */
static int is_token(const web_site *s, const char *given)
{
    size_t bytes = strlen(s->token);
    unsigned differ = 0;

    if (given == NULL || strlen(given) != bytes)
        return 0;
    for (size_t i = 0; i < bytes; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)s->token[i];
    return differ == 0;
}

static int may_ask(const web_site *s, struct MHD_Connection *c)
{
    const char *bearer =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");

    if (s->token[0] == 0 || is_token(s, MHD_lookup_connection_value(
                                            c, MHD_GET_ARGUMENT_KIND, "token")))
        return 1;
    return bearer != NULL && strncmp(bearer, "Bearer ", 7) == 0 &&
           is_token(s, bearer + 7);
}

/* ---- answers ------------------------------------------------------------- */

static enum MHD_Result send_answer(struct MHD_Connection *c, unsigned code,
                                   const char *type,
                                   struct MHD_Response *answer)
{
    enum MHD_Result done;

    if (answer == NULL)
        return MHD_NO;
    MHD_add_response_header(answer, "Content-Type", type);
    MHD_add_response_header(answer, "Cache-Control", "no-store");
    MHD_add_response_header(answer, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(answer, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(answer, "Content-Security-Policy",
                            "default-src 'none'; script-src 'unsafe-inline'; "
                            "style-src 'unsafe-inline'; connect-src 'self'; "
                            "frame-ancestors 'none'");
    done = MHD_queue_response(c, code, answer);
    MHD_destroy_response(answer);
    return done;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned code)
{
    static char nothing[1] = "";

    return send_answer(
        c, code, "text/plain",
        MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT));
}

static const char *type_of(const char *path)
{
    if (strcmp(path, "/metrics") == 0)
        return "text/plain; version=0.0.4; charset=utf-8";
    return strcmp(path, "/autopsy") == 0 ? "text/plain; charset=utf-8"
                                         : "application/json";
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *c,
                              const char *path, const char *method,
                              const char *version, const char *data,
                              size_t *bytes, void **request)
{
    static int begun;
    web_site *s = cls;
    char *text;

    if (*request == NULL) { /* only the head is there yet */
        *request = &begun;
        return MHD_YES;
    }
    if (*bytes != 0) { /* nobody needs what is sent here */
        *bytes = 0;
        return MHD_YES;
    }
    if (!may_ask(s, c))
        return refuse(c, MHD_HTTP_FORBIDDEN);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED);
    if (strcmp(path, "/") == 0) {
        char *page = strdup(web_page);

        return page == NULL
                   ? MHD_NO
                   : send_answer(
                         c, MHD_HTTP_OK, "text/html; charset=utf-8",
                         MHD_create_response_from_buffer(
                             strlen(page), page, MHD_RESPMEM_MUST_FREE));
    }
    if (strcmp(path, "/live") != 0 && strcmp(path, "/metrics") != 0 &&
        strcmp(path, "/autopsy") != 0 && strcmp(path, "/autopsy.json") != 0)
        return refuse(c, MHD_HTTP_NOT_FOUND);
    text = web_state_text(s->state, path);
    if (text == NULL)
        return refuse(c, MHD_HTTP_SERVICE_UNAVAILABLE);
    return send_answer(c, MHD_HTTP_OK, type_of(path),
                       MHD_create_response_from_buffer(strlen(text), text,
                                                       MHD_RESPMEM_MUST_FREE));
}

/* ---- listening ----------------------------------------------------------- */

/* Splits ADDR:PORT, [ADDR]:PORT or PORT; "" is any port of this host. Returns
 * NULL with a sentence. */
static struct addrinfo *resolve(const char *address, char *why, size_t room)
{
    struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                              .ai_socktype = SOCK_STREAM };
    const char *colon = strrchr(address, ':');
    const char *port = colon != NULL ? colon + 1 : address;
    struct addrinfo *found = NULL;
    char host[256];
    int failed;

    snprintf(host, sizeof host, "%.*s",
             colon != NULL ? (int)(colon - address) : 0, address);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        memmove(host, host + 1, strlen(host));
        host[strlen(host) - 1] = 0;
    }
    failed = getaddrinfo(host[0] != 0 ? host : "127.0.0.1",
                         port[0] != 0 ? port : "0", &hints, &found);
    if (failed != 0) {
        snprintf(why, room, "--web=%.100s: %s", address, gai_strerror(failed));
        return NULL;
    }
    return found;
}

int web_serve(const char *address, const char *token, web_state *state,
              char *why, size_t room)
{
    static web_site s;
    struct addrinfo *at = resolve(address, why, room);
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;
    const union MHD_DaemonInfo *info;
    struct MHD_Daemon *daemon;

    if (at == NULL)
        return 0;
    if (at->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    s.state = state;
    snprintf(s.token, sizeof s.token, "%s", token);
    errno = 0;
    daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, answer, &s, MHD_OPTION_SOCK_ADDR, at->ai_addr,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY, MHD_OPTION_END);
    freeaddrinfo(at);
    if (daemon == NULL) {
        snprintf(why, room, "it cannot listen at %.100s: %s", address,
                 errno != 0 ? strerror(errno) : "the address is refused");
        return 0;
    }
    info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info != NULL ? info->port : 0;
}
