/* SPDX-License-Identifier: Apache-2.0 */
/* env_check: finds typing errors in OARSONG_ variables, which would otherwise
 * change nothing, silently. An unknown name is logged once, because a newer
 * version may know it; an unknown value is an error. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/env.h"
#include "base/env_names.h"
#include "base/log.h"
#include "base/status.h"

enum { PREFIX = sizeof "OARSONG_" - 1, NEAR = PREFIX + 2 };

typedef struct known_name {
    const char *name, *words;
} known_name;

static const known_name known[] = {
#define X(name, words) { name, words },
    OARI_ENV_LIST(X)
#undef X
};
enum { KNOWN = sizeof known / sizeof *known };

static const known_name *find_name(const char *name, size_t bytes)
{
    for (int i = 0; i < KNOWN; i++) {
        size_t length = strlen(known[i].name);
        int open = known[i].name[length - 1] == '*';

        length -= (size_t)open;
        if ((open ? bytes >= length : bytes == length) &&
            strncmp(name, known[i].name, length) == 0)
            return &known[i];
    }
    return NULL;
}

/* Logs an unknown name with the known one that shares its longest prefix. */
static void warn_of_name(const char *name, size_t bytes)
{
    const char *best = NULL;
    size_t most = NEAR;

    for (int i = 0; i < KNOWN; i++) {
        size_t same = 0;
        while (same < bytes && name[same] == known[i].name[same])
            same++;
        if (same > most && strchr(known[i].name, '*') == NULL) {
            most = same;
            best = known[i].name;
        }
    }
    oari_log(OAR_LOG_WARN, "%.*s is set, but means nothing to this version%s%s",
             (int)bytes, name, best != NULL ? "; the nearest name is " : "",
             best != NULL ? best : "");
}

static int is_word(const char *words, const char *value)
{
    size_t length = strlen(value);

    for (const char *at = words; *at != 0; at += strspn(at, " ")) {
        size_t bytes = strcspn(at, " ");
        if (bytes == length && strncasecmp(at, value, bytes) == 0)
            return 1;
        at += bytes;
    }
    return 0;
}

/* Writes "auto, plain, auth or tls" for "auto plain auth tls". */
static void list_words(const char *words, char *text, size_t room)
{
    const char *last = strrchr(words, ' ');
    size_t used = 0;

    for (const char *at = words; *at != 0 && used + 8 < room; at++)
        if (*at != ' ')
            text[used++] = *at;
        else
            used += (size_t)snprintf(text + used, room - used, "%s",
                                     at == last ? " or " : ", ");
    text[used] = 0;
}

static oar_status check_variable(const char *entry, int warn)
{
    size_t bytes = strcspn(entry, "=");
    const known_name *k = find_name(entry, bytes);
    const char *value = entry + bytes + (entry[bytes] == '=');
    char words[128];

    if (k == NULL) {
        if (warn)
            warn_of_name(entry, bytes);
        return OAR_OK;
    }
    if (k->words == NULL || *value == 0 || is_word(k->words, value))
        return OAR_OK;
    list_words(k->words, words, sizeof words);
    return oari_fail(OAR_E_ARG, "%s is \"%.40s\", but should be %s", k->name,
                     value, words);
}

oar_status oari_env_check(int warn)
{
    static _Atomic int warned;

    warn = warn && !atomic_exchange(&warned, 1);
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, "OARSONG_", PREFIX) == 0)
            OARI_TRY(check_variable(*entry, warn));
    return OAR_OK;
}
