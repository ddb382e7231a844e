/* SPDX-License-Identifier: Apache-2.0 */
/* web_state: what the live page shows, as one JSON object of all ranks.
 *
 * With several nodes, the process on each of them writes what it sees of its
 * own ranks into the store where the nodes meet, once a second, and reads there
 * what the others see. So each serves a page of the whole job. One lock guards
 * all of it. */
#include "web.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "rank_words.h"
#include "web_metrics.h"

enum { FRESH_MS = 400, MOST_NODES = 1024, MOST_RANKS = 1024, REACH_MS = 500 };

struct web_state {
    pthread_mutex_t lock;
    char launcher[16];
    oar_live *live; /* NULL: no rank has begun to record */
    oar_store *store;
    char endpoint[300], run[80];
    int64_t node; /* of this process among the nodes, from 1; 0: not yet */
    json_t *all;  /* what was seen last; NULL: nothing yet */
    double looked_s, asked_s;
    int ended;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

web_state *web_state_make(int launcher, const char *endpoint, const char *run)
{
    web_state *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    snprintf(s->launcher, sizeof s->launcher, "%d", launcher);
    snprintf(s->endpoint, sizeof s->endpoint, "%s",
             endpoint != NULL ? endpoint : "");
    snprintf(s->run, sizeof s->run, "%s", run != NULL ? run : "default");
    return s;
}

/* ---- the ranks of this node ---------------------------------------------- */

/* JSON has no infinity. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *describe_metrics(const oar_live *live, int rank)
{
    json_t *all = json_object();

    for (int i = 0; i < oar_live_metrics(live, rank); i++) {
        oar_live_metric m = oar_live_metric_init();

        if (oar_live_metric_at(live, rank, i, &m) == OAR_OK)
            json_object_set_new(all, m.name, number(m.value));
    }
    return all;
}

static json_t *describe_rank(const oar_live *live, const oar_live_rank *r)
{
    json_t *to = json_object(), *targets = json_array();
    char doing[300];

    rank_doing(r, doing, sizeof doing);
    for (int i = 0; i < r->missing && i < OAR_LIVE_TARGETS; i++)
        json_array_append_new(targets, json_integer(r->waits_for[i]));
    json_object_set_new(to, "rank", json_integer(r->rank));
    json_object_set_new(to, "state", json_string(rank_state(r->state)));
    json_object_set_new(to, "pid", json_integer(r->pid));
    json_object_set_new(to, "host", json_string(r->host));
    json_object_set_new(to, "does", json_string(doing));
    json_object_set_new(to, "group", json_string(r->group));
    json_object_set_new(to, "number", json_integer((json_int_t)r->number));
    json_object_set_new(to, "busy", json_boolean(r->busy));
    json_object_set_new(to, "waits", json_boolean(r->waits));
    json_object_set_new(to, "age_s", number((double)r->age_ns / 1e9));
    json_object_set_new(to, "missing", json_integer(r->missing));
    json_object_set_new(to, "waits_for", targets);
    json_object_set_new(to, "operations",
                        json_integer((json_int_t)r->operations));
    json_object_set_new(to, "operations_s", number(r->operations_s));
    json_object_set_new(to, "bytes_s", number(r->bytes_s));
    json_object_set_new(to, "waiting", number(r->waiting));
    json_object_set_new(to, "step", json_integer(r->step));
    json_object_set_new(to, "steps", json_integer(r->steps));
    json_object_set_new(to, "step_s", number(r->step_s));
    json_object_set_new(to, "memory_bytes",
                        json_integer((json_int_t)r->memory_bytes));
    json_object_set_new(to, "metrics", describe_metrics(live, r->rank));
    return to;
}

/* Returns the object of the whole job, with what is known here. */
static json_t *describe_job(const web_state *s)
{
    json_t *to = json_object(), *ranks = json_array();

    for (int i = 0; i < oar_live_ranks(s->live); i++) {
        oar_live_rank r = oar_live_rank_init();

        if (oar_live_rank_at(s->live, i, &r) == OAR_OK)
            json_array_append_new(ranks, describe_rank(s->live, &r));
    }
    json_object_set_new(to, "run", json_string(oar_live_run(s->live)));
    json_object_set_new(to, "ended", json_boolean(s->ended));
    json_object_set_new(to, "verdict",
                        json_string(s->live != NULL ? oar_live_verdict(s->live)
                                                    : "no rank has begun yet"));
    json_object_set_new(to, "ranks", ranks);
    return to;
}

/* ---- other nodes --------------------------------------------------------- */

static int reach_store(web_state *s)
{
    char key[120];

    if (s->endpoint[0] == 0)
        return 0;
    if (s->store == NULL &&
        oar_store_create_tcp(s->endpoint, REACH_MS, &s->store) != OAR_OK)
        return 0;
    snprintf(key, sizeof key, "oarsong-web/%s/nodes", s->run);
    return s->node != 0 || oar_store_add(s->store, key, 1, &s->node) == OAR_OK;
}

static int is_rank(const json_t *rank)
{
    json_int_t n = json_integer_value(json_object_get(rank, "rank"));
    const char *state = json_string_value(json_object_get(rank, "state"));

    return json_is_integer(json_object_get(rank, "rank")) && n >= 0 &&
           n < MOST_RANKS && state != NULL && strcmp(state, "unknown") != 0;
}

/* Puts the ranks that another node knows in the places of those that are not
 * known here. */
static void merge(json_t *all, const json_t *other)
{
    json_t *ranks = json_object_get(all, "ranks"), *rank;
    size_t i;

    json_array_foreach(json_object_get(other, "ranks"), i, rank)
    {
        size_t at = (size_t)json_integer_value(json_object_get(rank, "rank"));

        if (!is_rank(rank))
            continue;
        while (json_array_size(ranks) <= at)
            json_array_append_new(ranks, json_pack("{s:i,s:s}", "rank",
                                                   (int)json_array_size(ranks),
                                                   "state", "unknown"));
        if (!is_rank(json_array_get(ranks, at)))
            json_array_set(ranks, at, rank);
    }
}

static int same_text(const json_t *a, const json_t *b, const char *key)
{
    const char *x = json_string_value(json_object_get(a, key));
    const char *y = json_string_value(json_object_get(b, key));

    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

/* Finds, for a rank that waits and of whose node all ranks have come, those of
 * other nodes that have not. */
static void find_targets(json_t *ranks, json_t *waiting)
{
    json_t *targets = json_object_get(waiting, "waits_for"), *other;
    json_int_t mine = json_integer_value(json_object_get(waiting, "number"));
    int missing = 0;
    size_t i;

    if (!json_is_true(json_object_get(waiting, "waits")) || mine == 0 ||
        json_integer_value(json_object_get(waiting, "missing")) != 0)
        return;
    json_array_foreach(ranks, i, other)
    {
        if (other == waiting || !same_text(other, waiting, "group") ||
            json_integer_value(json_object_get(other, "number")) >= mine)
            continue;
        if (missing++ < OAR_LIVE_TARGETS)
            json_array_append_new(targets, json_integer((json_int_t)i));
    }
    json_object_set_new(waiting, "missing", json_integer(missing));
}

/* Writes what is known here, and reads what the others know. */
static void exchange(web_state *s, json_t *all)
{
    char key[120], *text = json_dumps(all, JSON_COMPACT);
    int64_t nodes = 0;
    json_t *rank;
    size_t i;

    snprintf(key, sizeof key, "oarsong-web/%s/nodes", s->run);
    if (text == NULL || !reach_store(s) ||
        oar_store_add(s->store, key, 0, &nodes) != OAR_OK) {
        free(text);
        return;
    }
    snprintf(key, sizeof key, "oarsong-web/%s/%lld", s->run,
             (long long)s->node);
    oar_store_set(s->store, key, text, strlen(text));
    free(text);
    for (int64_t n = 1; n <= nodes && n <= MOST_NODES; n++) {
        void *value = NULL;
        size_t bytes;
        json_t *other;

        snprintf(key, sizeof key, "oarsong-web/%s/%lld", s->run, (long long)n);
        if (n == s->node ||
            oar_store_get(s->store, key, 0, &value, &bytes) != OAR_OK)
            continue;
        other = json_loadb(value, bytes, 0, NULL);
        merge(all, other);
        json_decref(other);
        oar_free(value);
    }
    json_array_foreach(json_object_get(all, "ranks"), i, rank)
        find_targets(json_object_get(all, "ranks"), rank);
}

/* ---- looks --------------------------------------------------------------- */

static void look_locked(web_state *s)
{
    const char *folder = getenv("OARSONG_RECORDER_DIR");
    json_t *all;

    if (s->live == NULL)
        oar_live_open(folder != NULL ? folder : s->launcher, &s->live);
    else
        oar_live_look(s->live);
    s->looked_s = now_s();
    all = describe_job(s);
    if (s->endpoint[0] != 0)
        exchange(s, all);
    json_decref(s->all);
    s->all = all;
}

void web_state_look(web_state *s)
{
    pthread_mutex_lock(&s->lock);
    look_locked(s);
    pthread_mutex_unlock(&s->lock);
}

void web_state_end(web_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = 1;
    look_locked(s);
    pthread_mutex_unlock(&s->lock);
}

int web_state_asked(web_state *s, double seconds)
{
    int asked;

    pthread_mutex_lock(&s->lock);
    asked = s->asked_s > 0 && now_s() - s->asked_s < seconds;
    pthread_mutex_unlock(&s->lock);
    return asked;
}

/* Returns the autopsy, as text that free() frees; NULL: there is none. */
static char *write_autopsy(const web_state *s, int json)
{
    const oar_autopsy *a = oar_live_autopsy(s->live);
    char *text = NULL, *copy = NULL;

    if (a != NULL && (json ? oar_autopsy_json(a, &text)
                           : oar_autopsy_text(a, &text)) == OAR_OK)
        copy = strdup(text);
    oar_free(text);
    return copy;
}

char *web_state_text(web_state *s, const char *path)
{
    char *text;

    pthread_mutex_lock(&s->lock);
    s->asked_s = now_s();
    if (s->all == NULL || now_s() - s->looked_s > FRESH_MS / 1e3)
        look_locked(s);
    if (strncmp(path, "/autopsy", 8) == 0)
        text = write_autopsy(s, path[8] != 0);
    else if (strcmp(path, "/metrics") == 0)
        text = web_metrics_text(s->all);
    else
        text = json_dumps(s->all, JSON_COMPACT);
    pthread_mutex_unlock(&s->lock);
    return text;
}
