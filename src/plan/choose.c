/* SPDX-License-Identifier: Apache-2.0 */
/* choose: the table of algorithms and the rules for it. See choose.h.
 *
 * A row is considered only if it fits the operation at all. Of those that fit,
 * the one that is forced by name is chosen; else the first one that the rules
 * want, in the order of the table; else the first. */
#include "plan/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "plan/planners.h"

/* How many times small_bytes go in a slot: */
enum {
    PAIR_TIMES = 2,
    ROOT_TIMES = 4,    /* where root alone shows data, and does not wait */
    CROWDED_TIMES = 8, /* where a sync point takes a switch of processes, ... */
    CROWDED_RANKS = 16 /* ... up to so many ranks, and less with more */
};

enum {
    /* Up to so many ranks a large reduce_scatter goes from each to each: as
     * many bytes as around a ring, in one round. */
    SPREAD_RANKS = 4,
    /* A chain of more ranks than these pays from so many times more on: it has
     * to fill first. */
    CHAIN_RANKS = 4
};

/* ---- what a row fits ----------------------------------------------------- */

/* Whether every rank knows all sizes that it needs to go by shared memory. */
static int knows_sizes(const oari_plan_request *req)
{
    return !req->object && !(req->ragged && (req->kind == OAR_COLL_GATHER ||
                                             req->kind == OAR_COLL_SCATTER ||
                                             req->kind == OAR_COLL_ALL_TO_ALL));
}

static int needs_sizes(const oari_plan_request *req)
{
    return !knows_sizes(req) && !req->sizes_known;
}

/* Returns how many bytes go in a slot at once. What fits takes one sync point
 * instead of two, but every rank reads all data of all ranks. That pays for
 * more bytes between two ranks, in a broadcast or scatter, whose root does not
 * wait, and above all where ranks share cores, unless there are many. */
static size_t slot_limit(const oari_plan_request *req)
{
    int from_root =
        req->kind == OAR_COLL_BROADCAST || req->kind == OAR_COLL_SCATTER;
    size_t times = from_root ? ROOT_TIMES : req->ranks == 2 ? PAIR_TIMES : 1;
    size_t crowded = CROWDED_TIMES, most;

    if (req->ranks > CROWDED_RANKS)
        crowded = CROWDED_TIMES * CROWDED_RANKS / (size_t)req->ranks;
    if (req->crowded && crowded > times)
        times = crowded;
    most = times * req->small_bytes;
    return most < req->slot_bytes ? most : req->slot_bytes;
}

/* A slot has little room, and nothing may force more into it. */
static int fits_slot(const oari_plan_request *req)
{
    return knows_sizes(req) &&
           oari_slot_count(req) <= slot_limit(req) / req->element;
}

/* Whether messages need sizes first: only those of objects do. */
static int needs_object_sizes(const oari_plan_request *req)
{
    return req->object && !req->sizes_known;
}

static int knows_object_sizes(const oari_plan_request *req)
{
    return !needs_object_sizes(req);
}

static int has_equal_parts(const oari_plan_request *req)
{
    return !req->ragged && !req->object;
}

#define ROW(name, kind, over, canonical, fits, plan)       \
    {                                                      \
        name, OAR_COLL_##kind, over, canonical, fits, plan \
    }
#define MEMORY(name, kind, fits, plan) \
    ROW(name, kind, OARI_MEMORY, 1, fits, plan)
#define ALL_KINDS(name, fits, plan)                                            \
    MEMORY(name, BROADCAST, fits, plan), MEMORY(name, ALL_REDUCE, fits, plan), \
        MEMORY(name, REDUCE, fits, plan), MEMORY(name, GATHER, fits, plan),    \
        MEMORY(name, SCATTER, fits, plan),                                     \
        MEMORY(name, ALL_GATHER, fits, plan),                                  \
        MEMORY(name, REDUCE_SCATTER, fits, plan),                              \
        MEMORY(name, ALL_TO_ALL, fits, plan)
#define SENT(name, kind, fits, plan) \
    ROW(name, kind, OARI_MESSAGES, 1, fits, plan)
/* Combines in an order of its own. */
#define OWN_ORDER(name, kind, fits, plan) \
    ROW(name, kind, OARI_MESSAGES, 0, fits, plan)
#define LEVELS(kind, canonical)                                       \
    ROW("two_level", kind, OARI_MESSAGES, canonical, oari_has_levels, \
        oari_plan_two_level)

/* clang-format off */
const oari_algorithm oari_algorithms[] = {
    MEMORY("line", BARRIER, NULL, oari_plan_line),
    ALL_KINDS("line", fits_slot, oari_plan_line),
    ALL_KINDS("direct", knows_sizes, oari_plan_direct),
    ALL_KINDS("staged", knows_sizes, oari_plan_staged),
    MEMORY("sizes", BROADCAST, needs_sizes, oari_plan_sizes),
    MEMORY("sizes", GATHER, needs_sizes, oari_plan_sizes),
    MEMORY("sizes", SCATTER, needs_sizes, oari_plan_sizes),
    MEMORY("sizes", ALL_GATHER, needs_sizes, oari_plan_sizes),
    MEMORY("sizes", ALL_TO_ALL, needs_sizes, oari_plan_sizes),
    SENT("sizes", BROADCAST, needs_object_sizes, oari_plan_size_messages),
    SENT("sizes", GATHER, needs_object_sizes, oari_plan_size_messages),
    SENT("sizes", SCATTER, needs_object_sizes, oari_plan_size_messages),
    SENT("sizes", ALL_GATHER, needs_object_sizes, oari_plan_size_messages),

    LEVELS(BARRIER, 1),
    LEVELS(BROADCAST, 1),
    LEVELS(ALL_REDUCE, 0),
    LEVELS(REDUCE, 0),
    LEVELS(ALL_GATHER, 1),
    LEVELS(REDUCE_SCATTER, 0),

    SENT("dissemination", BARRIER, NULL, oari_plan_dissemination),
    SENT("binomial", BROADCAST, knows_object_sizes, oari_plan_binomial),
    SENT("chain", BROADCAST, knows_object_sizes, oari_plan_chain),
    SENT("exchange", ALL_REDUCE, NULL, oari_plan_exchange),
    SENT("bruck", ALL_REDUCE, NULL, oari_plan_bruck),
    OWN_ORDER("doubling", ALL_REDUCE, NULL, oari_plan_doubling),
    OWN_ORDER("halving", ALL_REDUCE, NULL, oari_plan_halving),
    OWN_ORDER("ring", ALL_REDUCE, NULL, oari_plan_ring_all_reduce),
    SENT("exchange", REDUCE, NULL, oari_plan_exchange),
    OWN_ORDER("binomial", REDUCE, NULL, oari_plan_binomial),
    OWN_ORDER("chain", REDUCE, NULL, oari_plan_chain),
    SENT("linear", GATHER, knows_object_sizes, oari_plan_linear),
    SENT("binomial", GATHER, has_equal_parts, oari_plan_binomial),
    SENT("linear", SCATTER, knows_object_sizes, oari_plan_linear),
    SENT("binomial", SCATTER, has_equal_parts, oari_plan_binomial),
    SENT("ring", ALL_GATHER, knows_object_sizes, oari_plan_ring_all_gather),
    SENT("bruck", ALL_GATHER, knows_object_sizes, oari_plan_bruck),
    SENT("exchange", ALL_GATHER, knows_object_sizes, oari_plan_exchange),
    SENT("exchange", REDUCE_SCATTER, NULL, oari_plan_exchange),
    SENT("bruck", REDUCE_SCATTER, NULL, oari_plan_bruck),
    OWN_ORDER("halving", REDUCE_SCATTER, NULL, oari_plan_halving),
    OWN_ORDER("ring", REDUCE_SCATTER, NULL, oari_plan_ring_reduce_scatter),
    SENT("pairwise", ALL_TO_ALL, NULL, oari_plan_pairwise),
    SENT("bruck", ALL_TO_ALL, has_equal_parts, oari_plan_bruck),
    { NULL, OAR_COLL_COUNT, 0, 0, NULL, NULL },
};
/* clang-format on */

/* ---- which of those that fit is best ------------------------------------- */

size_t oari_request_bytes(const oari_plan_request *req)
{
    oari_partition row = oari_partition_parts(req);

    if (needs_sizes(req) || (req->ragged && req->at == NULL))
        return SIZE_MAX;
    switch (req->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL:
        return oari_partition_first(&row, req->ranks) * req->element;
    default: return req->count * req->element;
    }
}

static const char *best_all_reduce(const oari_plan_request *req,
                                   const oari_rules *r, size_t bytes)
{
    int64_t size = (int64_t)bytes;
    int wider = req->wide != req->element; /* partial results travel wider */

    if (req->ranks == 2 && !wider && size <= r->pair_bytes)
        return size <= r->swap_bytes ? "doubling" : "halving";
    if ((req->ranks <= r->exchange_ranks || wider) && size > r->latency_bytes)
        return "exchange";
    if (size <= r->latency_bytes)
        return req->ranks <= r->bruck_ranks ? "bruck" : "doubling";
    return size < r->ring_bytes ? "halving" : "ring";
}

static const char *best_reduce(const oari_plan_request *req,
                               const oari_rules *r, size_t bytes)
{
    int64_t size = (int64_t)bytes;
    /* two that combine to the same bits in either order */
    int pair = req->ranks == 2 && !req->promote;

    if (req->ranks <= r->exchange_ranks && size > r->latency_bytes)
        return pair ? "chain" : "exchange";
    return size >= r->chain_bytes &&
                   size / req->ranks >= r->chain_bytes / CHAIN_RANKS
               ? "chain"
               : "binomial";
}

static const char *best_reduce_scatter(const oari_plan_request *req,
                                       const oari_rules *r, size_t bytes)
{
    int64_t size = (int64_t)bytes;

    if (req->ranks <= r->exchange_ranks || req->wide != req->element)
        return "exchange";
    if (req->canonical && size <= r->latency_bytes &&
        req->ranks <= r->bruck_ranks)
        return "bruck";
    if (size < r->ring_bytes)
        return "halving";
    return req->ranks <= SPREAD_RANKS ? "exchange" : "ring";
}

/* Returns the name that the rules want for an operation over messages. */
static const char *best_over_messages(const oari_plan_request *req,
                                      const oari_rules *r)
{
    size_t bytes = oari_request_bytes(req);
    int large = (int64_t)bytes >= r->chain_bytes;
    int small = bytes <= (size_t)r->latency_bytes;
    int few = req->ranks <= r->exchange_ranks;
    size_t part = bytes / (size_t)req->ranks;

    switch (req->kind) {
    case OAR_COLL_BROADCAST:
        return large && req->ranks > 2 ? "chain" : "binomial";
    case OAR_COLL_ALL_REDUCE: return best_all_reduce(req, r, bytes);
    case OAR_COLL_REDUCE: return best_reduce(req, r, bytes);
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
        return has_equal_parts(req) && req->ranks > r->tree_ranks &&
                       part <= (size_t)r->tree_bytes
                   ? "binomial"
                   : "linear";
    case OAR_COLL_ALL_GATHER:
        return small                           ? "bruck"
               : few                           ? "exchange"
               : bytes < (size_t)r->ring_bytes ? "bruck"
                                               : "ring";
    case OAR_COLL_REDUCE_SCATTER: return best_reduce_scatter(req, r, bytes);
    case OAR_COLL_ALL_TO_ALL:
        return small && has_equal_parts(req) ? "bruck" : "pairwise";
    default: return "dissemination";
    }
}

const oari_algorithm *oari_choose(const oari_plan_request *req,
                                  const oari_rules *rules)
{
    int memory = req->shm_ranks == req->ranks;
    int messages = req->sends || req->ranks == 1;
    int over = (memory ? OARI_MEMORY : 0) | (messages ? OARI_MESSAGES : 0);
    const char *forced = rules->forced[req->kind], *wanted;
    const oari_algorithm *found = NULL;

    if (memory)
        wanted = needs_sizes(req) ? "sizes"
                 : fits_slot(req) ? "line"
                                  : "direct";
    else if (needs_object_sizes(req))
        wanted = "sizes";
    else if (rules->two_level && oari_has_levels(req))
        wanted = "two_level";
    else
        wanted = best_over_messages(req, rules);
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        if (a->kind != req->kind || (a->over & ~over) != 0 ||
            (req->canonical && !a->canonical) ||
            (a->fits != NULL && !a->fits(req)))
            continue;
        if (strcmp(a->name, forced) == 0)
            return a;
        if (found == NULL ||
            (strcmp(found->name, wanted) != 0 && strcmp(a->name, wanted) == 0))
            found = a;
    }
    if (found == NULL)
        oari_fail(OAR_E_UNSUPPORTED, "no algorithm does %s of %zu elements",
                  oar_coll_name(req->kind), req->count);
    return found;
}

/* ---- rules --------------------------------------------------------------- */

/* Returns what the algorithms of a name need; kind < 0: those of all kinds. 0:
 * there is none. */
static int needs_of(const char *name, int kind)
{
    int needs = 0;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0 && (kind < 0 || (int)a->kind == kind))
            needs |= a->over;
    return needs;
}

static oar_status refuse_name(const char *name, int kind)
{
    char names[400] = "";
    size_t used = 0;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        char quoted[20];
        snprintf(quoted, sizeof quoted, " %s,", a->name);
        if ((kind >= 0 && (int)a->kind != kind) ||
            strstr(names, quoted) != NULL || strcmp(a->name, "sizes") == 0)
            continue;
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s", quoted);
    }
    if (used > 0)
        names[used - 1] = 0; /* the last comma */
    return oari_fail(OAR_E_ARG, "there is no algorithm \"%s\"%s%s; there are%s",
                     name, kind >= 0 ? " of " : "",
                     kind >= 0 ? oar_coll_name((oar_coll)kind) : "", names);
}

/* Forces what a text says: "ring" or "all_reduce:ring". */
static oar_status force_one(oari_rules *rules, char *text)
{
    char *colon = strchr(text, ':');
    const char *name = colon != NULL ? colon + 1 : text;
    int kind = -1;

    if (colon != NULL) {
        *colon = 0;
        for (int k = 0; k < OAR_COLL_SEND; k++)
            if (strcmp(text, oar_coll_name((oar_coll)k)) == 0)
                kind = k;
        if (kind < 0)
            return oari_fail(OAR_E_ARG, "there is no collective \"%s\"", text);
    }
    if (strcmp(name, "sizes") == 0 || needs_of(name, kind) == 0)
        return refuse_name(name, kind);
    for (int k = 0; k < OAR_COLL_COUNT; k++)
        if ((kind < 0 && needs_of(name, k) != 0) || kind == k)
            snprintf(rules->forced[k], sizeof rules->forced[k], "%.15s", name);
    if (kind < 0 && needs_of(name, -1) == OARI_MESSAGES &&
        strcmp(name, "two_level") != 0)
        rules->messages_only = 1;
    return OAR_OK;
}

oar_status oari_rules_read(oari_rules *rules, const char *algorithm)
{
    char one[64];

    memset(rules, 0, sizeof *rules);
#define X(field, name, normal, text) \
    rules->field = (normal);         \
    OARI_TRY(oari_env_int(name, 0, OARI_RULE_MOST, &rules->field));
    OARI_RULE_LIST(X)
#undef X
    rules->through_host = oari_env_flag("OARSONG_ENABLE_GPU_FALLBACK");
    if (algorithm == NULL)
        algorithm = oari_env_text("OARSONG_ALGO");
    while (algorithm != NULL && *algorithm != 0) {
        size_t length = strcspn(algorithm, ",");
        if (length >= sizeof one)
            return oari_fail(OAR_E_ARG, "there is no algorithm \"%s\"",
                             algorithm);
        memcpy(one, algorithm, length);
        one[length] = 0;
        OARI_TRY(force_one(rules, one));
        algorithm += length + (algorithm[length] == ',');
    }
    return OAR_OK;
}

int oar_threshold_text(int index, char *text, size_t bytes)
{
    static const struct {
        const char *name, *text;
        int64_t normal;
    } rule[] = {
#define X(field, name, normal, text) { name, text, normal },
        OARI_RULE_LIST(X)
#undef X
    };

    if (index < 0 || index >= (int)(sizeof rule / sizeof *rule) || text == NULL)
        return 0;
    snprintf(text, bytes, "%s (normally %lld): %s", rule[index].name,
             (long long)rule[index].normal, rule[index].text);
    return 1;
}

const char *oar_algorithm_name(int index, oar_coll *kind)
{
    const oari_algorithm *a = oari_algorithms;

    for (int i = 0; a->name != NULL && i < index; i++)
        a++;
    if (index < 0 || a->name == NULL)
        return NULL;
    if (kind != NULL)
        *kind = a->kind;
    return a->name;
}

oar_status oari_rules_check(const oari_rules *rules, int over)
{
    for (int k = 0; k < OAR_COLL_COUNT; k++) {
        int lacks = needs_of(rules->forced[k], k) & ~over;
        if (lacks != 0)
            return oari_fail(OAR_E_UNSUPPORTED, "algorithm \"%s\" needs %s",
                             rules->forced[k],
                             lacks == OARI_MEMORY ? "shared memory"
                                                  : "messages");
    }
    return OAR_OK;
}
