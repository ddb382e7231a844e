/* SPDX-License-Identifier: Apache-2.0 */
/* hostlist: reads character by character; the bytes are not trusted. */
#include "net/hostlist.h"

#include <string.h>

#include "base/status.h"

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

typedef struct cursor {
    const char *at, *end;
    char *host;
    size_t used;
} cursor;

static int put_char(cursor *c, char letter)
{
    if (c->used == OARI_HOST_ROOM - 1)
        return 0;
    c->host[c->used++] = letter;
    return 1;
}

/* After '[': takes the first number and skips past ']'. */
static int take_bracket(cursor *c)
{
    size_t before = c->used;

    while (c->at < c->end && is_digit(*c->at))
        if (!put_char(c, *c->at++))
            return 0;
    if (c->used == before)
        return 0;
    while (c->at < c->end &&
           (is_digit(*c->at) || *c->at == '-' || *c->at == ','))
        c->at++;
    return c->at < c->end && *c->at++ == ']';
}

static int take_host(cursor *c)
{
    static const char also[] = "-._:"; /* in a name, beside letters */

    while (c->at < c->end && *c->at != ',') {
        char letter = *c->at++;
        int good = is_digit(letter) || (letter >= 'a' && letter <= 'z') ||
                   (letter >= 'A' && letter <= 'Z') ||
                   (letter != 0 && strchr(also, letter) != NULL);
        if (letter == '[' ? !take_bracket(c) : !good || !put_char(c, letter))
            return 0;
    }
    return c->used > 0;
}

oar_status oari_hostlist_first(const char *text, size_t bytes,
                               char host[OARI_HOST_ROOM])
{
    char name[OARI_HOST_ROOM];
    cursor c = { text, text + bytes, name, 0 };

    if (bytes > OARI_HOSTLIST_MAX || !take_host(&c))
        return oari_fail(OAR_E_DATA, "\"%.*s\" is not a list of hosts",
                         bytes < 60 ? (int)bytes : 60, text);
    memcpy(host, name, c.used);
    host[c.used] = 0;
    return OAR_OK;
}
