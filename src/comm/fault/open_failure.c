/* SPDX-License-Identifier: Apache-2.0 */
/* open_failure: see open_failure.h. The keys of the reports are
 * NAME/missed/TIMES/RANK. */
#include "comm/fault/open_failure.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/comm.h"
#include "store/store.h"

enum {
    /* Within which the others give up, too: a rank that only did not come in
     * time may do so a little later than this one. */
    REPORT_MS = 400,
    /* How long before its report a rank may be seen to leave. */
    MOMENT_MS = 50,
    OTHERS = 32 /* ranks that a report names at most, besides the first */
};

/* Writes the prefix of the reports' keys. oari_settings_agree counts how often
 * the group was opened. Fails if the store has gone with its server. */
static oar_status make_prefix(oar_store *store, const char *name, int rank,
                              char *prefix, size_t bytes)
{
    void *times;
    size_t digits;

    snprintf(prefix, bytes, "%s/agree/%d", name, rank);
    OARI_TRY(oari_store_get_once(store, prefix, 0, &times, &digits));
    snprintf(prefix, bytes, "%s/missed/%.20s", name, (const char *)times);
    oar_free(times);
    return OAR_OK;
}

/* What a rank reports when it gives up. */
typedef struct report {
    oar_error why;             /* about the rank it missed first */
    int others, other[OTHERS]; /* other ranks that it missed */
} report;

/* A report is numbers (the rank missed, status, how many others, those), then
 * the text. One more key names the last rank that gave up. */
static oar_status write_report(oar_store *store, const char *prefix, int rank,
                               const report *mine)
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
    snprintf(key, sizeof key, "%s/any", prefix);
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

static int parse_report(const char *text, report *w)
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

/* Reads what a rank reported. Returns 0 if it has not, or not in this form. */
static int read_report(oar_store *store, const char *prefix, int rank,
                       int64_t wait_ms, report *w)
{
    char key[OARI_NAME_MAX + 48];
    size_t bytes;
    void *text;
    int good;

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    if (oari_store_get_once(store, key, wait_ms, &text, &bytes) != OAR_OK)
        return 0;
    good = parse_report(text, w);
    oar_free(text);
    return good;
}

/* ---- from report to report ----------------------------------------------- */

typedef struct search {
    oar_store *store;
    const char *prefix, *name;
    int rank, ranks;
    int *by;    /* by rank: 1 + the first rank that missed it, or 0 */
    int *queue; /* ranks whose reports to read, in the order they were named */
    int queued;
} search;

static void queue_rank(search *s, int rank, int by)
{
    if (rank < 0 || rank >= s->ranks || rank == s->rank || s->by[rank] != 0)
        return;
    s->by[rank] = 1 + by;
    s->queue[s->queued++] = rank;
}

static void queue_ranks(search *s, const report *w, int by)
{
    queue_rank(s, w->why.peer, by);
    for (int i = 0; i < w->others; i++)
        queue_rank(s, w->other[i], by);
}

/* Gives what the first rank that missed it reported about a rank that has left
 * no report itself. */
static void name_missing(const search *s, int missing, const report *first,
                         int whose, oar_error *said)
{
    int by = s->by[missing] - 1;
    report w = *first;

    if (by != whose && !read_report(s->store, s->prefix, by, 0, &w))
        return;
    *said = w.why;
    if (w.why.peer == missing)
        return;
    oari_error_set(said, OAR_E_TIMEOUT,
                   "rank %d had not joined group \"%s\" when rank %d gave up",
                   missing, s->name, by);
    said->peer = missing;
}

/* Follows the reports from that of rank `whose` to a rank without one. */
static void search_from(search *s, const report *first, int whose,
                        oar_error *said)
{
    int64_t deadline = oari_deadline(REPORT_MS);
    report next;

    s->by = oari_alloc((size_t)s->ranks, sizeof *s->by);
    s->queue = oari_alloc((size_t)s->ranks, sizeof *s->queue);
    *said = first->why;
    if (s->by != NULL && s->queue != NULL)
        queue_ranks(s, first, whose);
    for (int i = 0; i < s->queued; i++) {
        int rank = s->queue[i];

        if (!read_report(s->store, s->prefix, rank,
                         oari_deadline_left_ms(deadline), &next)) {
            name_missing(s, rank, first, whose, said);
            break;
        }
        if (said->status == OAR_E_PEER && next.why.status == OAR_E_TIMEOUT)
            *said = next.why;
        queue_ranks(s, &next, rank);
    }
    oari_free(s->by);
    oari_free(s->queue);
}

void oari_open_failure_report(oar_store *store, const char *name, int rank,
                              int ranks, const unsigned char *missing)
{
    report mine = { .why = *oar_last_error() };
    oar_error said = mine.why;
    char prefix[OARI_NAME_MAX + 32];
    search s = { store, prefix, name, rank, ranks, NULL, NULL, 0 };

    if (store == NULL || said.peer < 0 ||
        (said.status != OAR_E_PEER && said.status != OAR_E_TIMEOUT))
        return;
    for (int r = 0; missing != NULL && r < ranks && mine.others < OTHERS; r++)
        if (missing[r] && r != said.peer)
            mine.other[mine.others++] = r;
    if (make_prefix(store, name, rank, prefix, sizeof prefix) == OAR_OK &&
        write_report(store, prefix, rank, &mine) == OAR_OK)
        search_from(&s, &mine, rank, &said);
    oari_fail_with(&said);
}

int oari_open_failure_find(oar_store *store, const char *name, int rank,
                           int ranks, int of, oar_error *said)
{
    char prefix[OARI_NAME_MAX + 32], key[OARI_NAME_MAX + 48];
    search s = { store, prefix, name, rank, ranks, NULL, NULL, 0 };
    report first;
    size_t bytes;
    void *text;

    if (store == NULL ||
        make_prefix(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return 0;
    if (of < 0) {
        snprintf(key, sizeof key, "%s/any", prefix);
        if (oari_store_get_once(store, key, 0, &text, &bytes) != OAR_OK)
            return 0;
        if (sscanf(text, "%d", &of) != 1)
            of = -1;
        oar_free(text);
    }
    if (of < 0 || !read_report(store, prefix, of, MOMENT_MS, &first))
        return 0;
    search_from(&s, &first, of, said);
    return 1;
}

/* ---- opening an engine --------------------------------------------------- */

static oar_status make_opened_prefix(oar_store *store, const char *name,
                                     int rank, char *prefix, size_t bytes)
{
    size_t used;

    OARI_TRY(make_prefix(store, name, rank, prefix, bytes));
    used = strlen(prefix);
    snprintf(prefix + used, bytes - used, "/through");
    return OAR_OK;
}

void oari_engine_opening_done(oar_store *store, const char *name, int rank)
{
    char prefix[OARI_NAME_MAX + 48], key[OARI_NAME_MAX + 64];

    if (store == NULL ||
        make_opened_prefix(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return;
    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    oar_store_set(store, key, "", 0);
}

int oari_engine_opening_missing(oar_store *store, const char *name, int rank,
                                int ranks, unsigned char *missing)
{
    char prefix[OARI_NAME_MAX + 48], key[OARI_NAME_MAX + 64];
    int64_t deadline = oari_deadline(REPORT_MS);
    int found = 0;

    if (store == NULL ||
        make_opened_prefix(store, name, rank, prefix, sizeof prefix) != OAR_OK)
        return 0;
    for (int r = 0; r < ranks; r++) {
        void *value = NULL;
        size_t bytes;

        snprintf(key, sizeof key, "%s/%d", prefix, r);
        missing[r] =
            r != rank &&
            oari_store_get_once(store, key, oari_deadline_left_ms(deadline),
                                &value, &bytes) != OAR_OK;
        found += missing[r];
        oar_free(value);
    }
    return found;
}
