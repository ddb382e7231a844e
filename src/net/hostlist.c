/* SPDX-License-Identifier: Apache-2.0 */
/* hostlist: letter by letter, of bytes that anybody may have written. */
#include "net/hostlist.h"

#include <string.h>

#include "base/status.h"

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What names of hosts are made of. */
static int is_letter(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           c == '-' || c == '.' || c == '_' || c == ':';
}

typedef struct cursor {
    const char *at, *end;
    char *host;
    size_t used;
} cursor;

static int put(cursor *c, char letter)
{
    if (c->used == OARI_HOST_ROOM - 1)
        return 0;
    c->host[c->used++] = letter;
    return 1;
}

/* Behind '[': takes the first number, and skips to behind ']'. */
static int take_bracket(cursor *c)
{
    size_t before = c->used;

    while (c->at < c->end && is_digit(*c->at))
        if (!put(c, *c->at++))
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
    while (c->at < c->end && *c->at != ',') {
        char letter = *c->at++;
        if (letter == '[' ? !take_bracket(c)
                          : !is_letter(letter) || !put(c, letter))
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
        return oari_fail(OAR_E_DATA, "\"%.*s\" is no list of hosts",
                         bytes < 60 ? (int)bytes : 60, text);
    memcpy(host, name, c.used);
    host[c.used] = 0;
    return OAR_OK;
}
