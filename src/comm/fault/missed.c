/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/missed.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/comm.h"
#include "store/store.h"

/* For the others to give up, too: one that only did not come in time may do so
 * a little later than this rank, and one that leaves may be seen to have left
 * before it has said why. */
enum { WORD_MS = 400, MOMENT_MS = 50 };

enum { OTHERS = 32 }; /* that a word names, at most, besides the first */

/* Which time the group is made is counted by oari_settings_agree. The store may
 * have gone with the rank that served it: then it has nothing to say. */
static oar_status key_of(oar_store *store, const char *name, int rank,
                         char *prefix, size_t bytes)
{
    void *times;
    size_t digits;

    snprintf(prefix, bytes, "%s/agree/%d", name, rank);
    OARI_TRY(oari_store_glance(store, prefix, 0, &times, &digits));
    snprintf(prefix, bytes, "%s/missed/%.20s", name, (const char *)times);
    oar_free(times);
    return OAR_OK;
}

/* What a rank says when it gives up. */
typedef struct word {
    oar_error why;             /* about the one it missed first */
    int others, other[OTHERS]; /* whom it missed, too */
} word;

static void list_others(word *w, int ranks, const unsigned char *missing)
{
    for (int r = 0; missing != NULL && r < ranks && w->others < OTHERS; r++)
        if (missing[r] && r != w->why.peer)
            w->other[w->others++] = r;
}

/* Which rank gave up, of several any of them. */
static void any_key(const char *prefix, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s/any", prefix);
}

/* Numbers (whom, status, how many others, those), then the text. */
static oar_status leave_word(oar_store *store, const char *prefix, int rank,
                             const word *mine)
{
    char key[OARI_NAME_MAX + 48],
        text[sizeof mine->why.text + 12 * OTHERS + 48];
    int used;

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    used = snprintf(text, sizeof text, "%d %d %d ", mine->why.peer,
                    (int)mine->why.status, mine->others);
    for (int i = 0; i < mine->others; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%d ",
                         mine->other[i]);
    used +=
        snprintf(text + used, sizeof text - (size_t)used, "%s", mine->why.text);
    OARI_TRY(oar_store_set(store, key, text, (size_t)used));
    any_key(prefix, key, sizeof key);
    used = snprintf(text, sizeof text, "%d", rank);
    return oar_store_set(store, key, text, (size_t)used);
}

static int next_number(const char **text, int *number)
{
    int used = 0;

    if (sscanf(*text, "%d %n", number, &used) != 1 || used == 0)
        return 0;
    *text += used;
    return 1;
}

static int parse_word(const char *text, word *w)
{
    int peer, status, others;

    if (!next_number(&text, &peer) || !next_number(&text, &status) ||
        !next_number(&text, &others) || others < 0 || others > OTHERS ||
        (status != OAR_E_PEER && status != OAR_E_TIMEOUT))
        return 0;
    for (w->others = 0; w->others < others; w->others++)
        if (!next_number(&text, &w->other[w->others]))
            return 0;
    oari_error_set(&w->why, (oar_status)status, "%s", text);
    w->why.peer = peer;
    return 1;
}

/* What a rank said; 0 if it has said nothing, or nothing that makes sense. */
static int read_word(oar_store *store, const char *prefix, int rank,
                     int64_t wait_ms, word *w)
{
    char key[OARI_NAME_MAX + 48];
    size_t bytes;
    void *text;
    int good;

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    if (oari_store_glance(store, key, wait_ms, &text, &bytes) != OAR_OK)
        return 0;
    good = parse_word(text, w);
    oar_free(text);
    return good;
}

/* ---- from word to word --------------------------------------------------- */

typedef struct search {
    oar_store *store;
    const char *prefix, *name;
    int rank, ranks;
    int *by;    /* by rank: 1 + who was the first to miss it, or 0 */
    int *queue; /* ranks to ask, in the order they were named */
    int queued;
} search;

static void ask(search *s, int rank, int by)
{
    if (rank < 0 || rank >= s->ranks || rank == s->rank || s->by[rank] != 0)
        return;
    s->by[rank] = 1 + by;
    s->queue[s->queued++] = rank;
}

static void ask_all(search *s, const word *w, int by)
{
    ask(s, w->why.peer, by);
    for (int i = 0; i < w->others; i++)
        ask(s, w->other[i], by);
}

/* It has left no word: what was said about it by the first who missed it. */
static void name_missing(const search *s, int missing, const word *first,
                         int whose, oar_error *said)
{
    int by = s->by[missing] - 1;
    word w = *first;

    if (by != whose && !read_word(s->store, s->prefix, by, 0, &w))
        return;
    *said = w.why;
    if (w.why.peer == missing)
        return;
    oari_error_set(said, OAR_E_TIMEOUT,
                   "rank %d had not joined group \"%s\" when rank %d gave up",
                   missing, s->name, by);
    said->peer = missing;
}

/* first: what `whose` rank said. */
static void follow(search *s, const word *first, int whose, oar_error *said)
{
    int64_t deadline = oari_deadline(WORD_MS);
    word next;

    *said = first->why;
    ask_all(s, first, whose);
    for (int i = 0; i < s->queued; i++) {
        int rank = s->queue[i];

        if (!read_word(s->store, s->prefix, rank,
                       oari_deadline_left_ms(deadline), &next)) {
            name_missing(s, rank, first, whose, said);
            return;
        }
        if (said->status == OAR_E_PEER && next.why.status == OAR_E_TIMEOUT)
            *said = next.why;
        ask_all(s, &next, rank);
    }
}

static void search_from(search *s, const word *first, int whose,
                        oar_error *said)
{
    s->by = oari_alloc((size_t)s->ranks, sizeof *s->by);
    s->queue = oari_alloc((size_t)s->ranks, sizeof *s->queue);
    *said = first->why;
    if (s->by != NULL && s->queue != NULL)
        follow(s, first, whose, said);
    oari_free(s->by);
    oari_free(s->queue);
}

void oari_missed(oar_store *store, const char *name, int rank, int ranks,
                 const unsigned char *missing)
{
    word mine = { .why = *oar_last_error() };
    oar_error said = mine.why;
    char prefix[OARI_NAME_MAX + 32];
    search s = { store, prefix, name, rank, ranks, NULL, NULL, 0 };

    if (store == NULL || said.peer < 0 ||
        (said.status != OAR_E_PEER && said.status != OAR_E_TIMEOUT))
        return;
    list_others(&mine, ranks, missing);
    if (key_of(store, name, rank, prefix, sizeof prefix) == OAR_OK &&
        leave_word(store, prefix, rank, &mine) == OAR_OK)
        search_from(&s, &mine, rank, &said);
    oari_fail_with(&said);
}

/* The last rank that said that it gave up; -1: there is none. */
static int find_any(oar_store *store, const char *prefix)
{
    char key[OARI_NAME_MAX + 48];
    void *text;
    size_t bytes;
    int rank = -1;

    any_key(prefix, key, sizeof key);
    if (oari_store_glance(store, key, 0, &text, &bytes) != OAR_OK)
        return -1;
    if (sscanf(text, "%d", &rank) != 1)
        rank = -1;
    oar_free(text);
    return rank;
}

int oari_missed_word(oar_store *store, const char *name, int rank, int ranks,
                     int of, oar_error *said)
{
    char prefix[OARI_NAME_MAX + 32];
    search s = { store, prefix, name, rank, ranks, NULL, NULL, 0 };
    word first;

    if (store == NULL ||
        key_of(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return 0;
    if (of < 0 && (of = find_any(store, prefix)) < 0)
        return 0;
    if (!read_word(store, prefix, of, MOMENT_MS, &first))
        return 0;
    search_from(&s, &first, of, said);
    return 1;
}

/* ---- through an engine's opening ----------------------------------------- */

static oar_status through_key(oar_store *store, const char *name, int rank,
                              char *prefix, size_t bytes)
{
    size_t used;

    OARI_TRY(key_of(store, name, rank, prefix, bytes));
    used = strlen(prefix);
    snprintf(prefix + used, bytes - used, "/through");
    return OAR_OK;
}

void oari_missed_say_through(oar_store *store, const char *name, int rank)
{
    char prefix[OARI_NAME_MAX + 48], key[OARI_NAME_MAX + 64];

    if (store == NULL ||
        through_key(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return;
    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    oar_store_set(store, key, "", 0);
}

int oari_missed_find(oar_store *store, const char *name, int rank, int ranks,
                     unsigned char *missing)
{
    char prefix[OARI_NAME_MAX + 48], key[OARI_NAME_MAX + 64];
    int64_t deadline = oari_deadline(WORD_MS);
    int found = 0;

    if (store == NULL ||
        through_key(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return 0;
    for (int r = 0; r < ranks; r++) {
        void *value = NULL;
        size_t bytes;

        snprintf(key, sizeof key, "%s/%d", prefix, r);
        missing[r] =
            r != rank &&
            oari_store_glance(store, key, oari_deadline_left_ms(deadline),
                              &value, &bytes) != OAR_OK;
        found += missing[r];
        oar_free(value);
    }
    return found;
}
