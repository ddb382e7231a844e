/* SPDX-License-Identifier: Apache-2.0 */
/* hostfile: reads line by line; the bytes may be anything. */
#include "launch/hostfile.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- words --------------------------------------------------------------- */

typedef struct word {
    const char *at;
    size_t bytes;
} word;

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Returns the next word of the line; it has no bytes at the end. */
static word next_word(const char **at, const char *end)
{
    word w;

    while (*at < end && is_blank(**at))
        ++*at;
    w.at = *at;
    while (*at < end && !is_blank(**at))
        ++*at;
    w.bytes = (size_t)(*at - w.at);
    return w;
}

/* Returns a number from 1 to LAUNCH_SLOTS_MAX; 0: it is none. */
static int read_slots(const char *at, size_t bytes)
{
    int value = 0;

    if (bytes == 0 || bytes > 6)
        return 0;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9')
            return 0;
        value = value * 10 + (at[i] - '0');
    }
    return value <= LAUNCH_SLOTS_MAX ? value : 0;
}

static int begins_with(word w, const char *text)
{
    size_t bytes = strlen(text);

    return w.bytes > bytes && memcmp(w.at, text, bytes) == 0;
}

/* ---- lines --------------------------------------------------------------- */

/* Reads "name" or "name:4"; the colons of an IPv6 address are part of a name.
 */
static int read_name(word w, launch_host *host)
{
    const char *colon = memchr(w.at, ':', w.bytes);
    const char *end = w.at + w.bytes;

    host->slots = 1;
    if (colon != NULL &&
        memchr(colon + 1, ':', (size_t)(end - colon - 1)) == NULL) {
        host->slots = read_slots(colon + 1, (size_t)(end - colon - 1));
        end = colon;
    }
    if (end == w.at || end - w.at >= LAUNCH_HOST_ROOM || host->slots == 0)
        return 0;
    for (const char *c = w.at; c < end; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 127)
            return 0;
    memcpy(host->name, w.at, (size_t)(end - w.at));
    host->name[end - w.at] = 0;
    return 1;
}

static int read_line(const char *at, const char *end, launch_host *host)
{
    word w = next_word(&at, end);

    if (!read_name(w, host))
        return 0;
    while ((w = next_word(&at, end)).bytes > 0) {
        if (begins_with(w, "slots="))
            host->slots = read_slots(w.at + 6, w.bytes - 6);
        else if (!begins_with(w, "max_slots=") && !begins_with(w, "max-slots="))
            return 0;
        if (host->slots == 0)
            return 0;
    }
    return 1;
}

static oar_status add_host(const launch_host *host, launch_host *hosts,
                           int *count)
{
    for (int i = 0; i < *count; i++)
        if (strcasecmp(hosts[i].name, host->name) == 0) {
            hosts[i].slots += host->slots;
            return hosts[i].slots <= LAUNCH_SLOTS_MAX
                       ? OAR_OK
                       : oari_fail(OAR_E_DATA, "more than %d slots on %s",
                                   LAUNCH_SLOTS_MAX, host->name);
        }
    if (*count == LAUNCH_HOSTS_MAX)
        return oari_fail(OAR_E_DATA, "more than %d hosts", LAUNCH_HOSTS_MAX);
    hosts[(*count)++] = *host;
    return OAR_OK;
}

static oar_status read_lines(const char *text, const char *end,
                             launch_host *hosts, int *count)
{
    launch_host host = { .slots = 0 };

    for (int line = 1; text < end; line++) {
        const char *next = memchr(text, '\n', (size_t)(end - text)), *stop;
        if (next == NULL)
            next = end;
        stop = memchr(text, '#', (size_t)(next - text));
        if (stop == NULL)
            stop = next;
        while (text < stop && is_blank(*text))
            text++;
        if (text < stop && !read_line(text, stop, &host))
            return oari_fail(OAR_E_DATA,
                             "line %d of the hostfile is not HOST or HOST "
                             "slots=N (1 to %d)",
                             line, LAUNCH_SLOTS_MAX);
        if (text < stop)
            OARI_TRY(add_host(&host, hosts, count));
        text = next < end ? next + 1 : end;
    }
    return *count > 0 ? OAR_OK
                      : oari_fail(OAR_E_DATA, "the hostfile names no host");
}

oar_status launch_hostfile_read(const char *text, size_t bytes,
                                launch_host **hosts, int *count)
{
    size_t lines = 1; /* at least as many as hosts */
    launch_host *found;
    int n = 0;
    oar_status status;

    if (bytes > LAUNCH_HOSTFILE_MAX)
        return oari_fail(OAR_E_DATA, "a hostfile of more than %d bytes",
                         LAUNCH_HOSTFILE_MAX);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    if (lines > LAUNCH_HOSTS_MAX)
        lines = LAUNCH_HOSTS_MAX;
    found = oari_alloc(lines, sizeof *found);
    if (found == NULL)
        return OAR_E_NOMEM;
    status = read_lines(text, text + bytes, found, &n);
    if (status != OAR_OK) {
        oari_free(found);
        return status;
    }
    *hosts = found;
    *count = n;
    return OAR_OK;
}

/* ---- this host ----------------------------------------------------------- */

static int is_own_address(const char *name)
{
    char text[NI_MAXHOST];
    struct ifaddrs *all = NULL;
    int mine = 0;

    if (getifaddrs(&all) != 0)
        return 0;
    for (struct ifaddrs *a = all; a != NULL && !mine; a = a->ifa_next) {
        int family = a->ifa_addr != NULL ? a->ifa_addr->sa_family : AF_UNSPEC;
        socklen_t bytes = family == AF_INET ? sizeof(struct sockaddr_in)
                                            : sizeof(struct sockaddr_in6);
        if (family != AF_INET && family != AF_INET6)
            continue;
        mine = getnameinfo(a->ifa_addr, bytes, text, sizeof text, NULL, 0,
                           NI_NUMERICHOST) == 0 &&
               strcmp(text, name) == 0;
    }
    freeifaddrs(all);
    return mine;
}

/* Returns whether this host has that name, with or without a domain, or that
 * address. */
static int is_here(const char *name)
{
    char self[256] = "";
    size_t bytes;

    gethostname(self, sizeof self - 1);
    bytes = strcspn(self, ".");
    return strcasecmp(name, "localhost") == 0 || strcasecmp(name, self) == 0 ||
           (bytes > 0 && strncasecmp(name, self, bytes) == 0 &&
            (name[bytes] == 0 || name[bytes] == '.')) ||
           is_own_address(name);
}

static oar_status read_file(const char *path, char **text, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "open the hostfile %s", path);
    *bytes = 0;
    *text = oari_alloc(LAUNCH_HOSTFILE_MAX + 1, 1);
    if (*text == NULL) {
        close(fd);
        return OAR_E_NOMEM;
    }
    while (*bytes <= LAUNCH_HOSTFILE_MAX &&
           (got = read(fd, *text + *bytes, LAUNCH_HOSTFILE_MAX + 1 - *bytes)) >
               0)
        *bytes += (size_t)got;
    close(fd);
    return OAR_OK;
}

static oar_status count_slots(const launch_host *hosts, int count, int *slots)
{
    *slots = 0;
    for (int i = 0; i < count; i++) {
        if (!is_here(hosts[i].name))
            return oari_fail(
                OAR_E_UNSUPPORTED,
                "the hostfile names %s, and ranks are started on this host "
                "only: start on each of the hosts `oarsong run --nnodes %d "
                "--rdzv-endpoint %s:29400 --nproc-per-node SLOTS PROGRAM`",
                hosts[i].name, count, hosts[0].name);
        *slots += hosts[i].slots;
    }
    return OAR_OK;
}

oar_status launch_hostfile_slots(const char *path, int *slots)
{
    launch_host *hosts = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int count = 0;
    oar_status status;

    OARI_TRY(read_file(path, &text, &bytes));
    status = launch_hostfile_read(text, bytes, &hosts, &count);
    if (status == OAR_OK)
        status = count_slots(hosts, count, slots);
    oari_free(hosts);
    oari_free(text);
    return status;
}
