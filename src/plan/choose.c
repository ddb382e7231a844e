/* SPDX-License-Identifier: Apache-2.0 */
/* choose: the table of algorithms and the rules for it. See choose.h.
 *
 * A row is tried only if it fits the operation at all. Of those that fit, the
 * one forced by name counts; else the first that is `wanted`, in the order of
 * the table; else the first. */
#include "plan/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "plan/planners.h"

/* ---- what can be done by whom -------------------------------------------- */

/* Whether ranks must first tell each other sizes to go by memory. */
static int open_sizes(const oari_plan_request *req)
{
    return req->object || (req->ragged && (req->kind == OAR_COLL_GATHER ||
                                           req->kind == OAR_COLL_SCATTER ||
                                           req->kind == OAR_COLL_ALL_TO_ALL));
}

static int unsettled(const oari_plan_request *req)
{
    return open_sizes(req) && !req->sizes_known;
}

/* A line has room only for so much; nothing may force more into it. */
static int fits_line(const oari_plan_request *req)
{
    return !open_sizes(req) &&
           oari_slot_count(req) <= req->small_bytes / req->element;
}

static int is_object(const oari_plan_request *req)
{
    return req->object && !req->sizes_known;
}

static int known(const oari_plan_request *req)
{
    return !open_sizes(req);
}

static int open_object(const oari_plan_request *req)
{
    return !req->object || req->sizes_known;
}

static int equal_parts(const oari_plan_request *req)
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
/* In an order of its own. */
#define OWN_ORDER(name, kind, fits, plan) \
    ROW(name, kind, OARI_MESSAGES, 0, fits, plan)
#define LEVELS(kind, canonical)                                       \
    ROW("two_level", kind, OARI_MESSAGES, canonical, oari_has_levels, \
        oari_plan_two_level)

/* clang-format off */
const oari_algorithm oari_algorithms[] = {
    MEMORY("line", BARRIER, NULL, oari_plan_line),
    ALL_KINDS("line", fits_line, oari_plan_line),
    ALL_KINDS("direct", known, oari_plan_direct),
    ALL_KINDS("staged", known, oari_plan_staged),
    MEMORY("sizes", BROADCAST, unsettled, oari_plan_sizes),
    MEMORY("sizes", GATHER, unsettled, oari_plan_sizes),
    MEMORY("sizes", SCATTER, unsettled, oari_plan_sizes),
    MEMORY("sizes", ALL_GATHER, unsettled, oari_plan_sizes),
    MEMORY("sizes", ALL_TO_ALL, unsettled, oari_plan_sizes),
    SENT("sizes", BROADCAST, is_object, oari_plan_size_messages),
    SENT("sizes", GATHER, is_object, oari_plan_size_messages),
    SENT("sizes", SCATTER, is_object, oari_plan_size_messages),
    SENT("sizes", ALL_GATHER, is_object, oari_plan_size_messages),

    LEVELS(BARRIER, 1),
    LEVELS(BROADCAST, 1),
    LEVELS(ALL_REDUCE, 0),
    LEVELS(REDUCE, 0),
    LEVELS(ALL_GATHER, 1),
    LEVELS(REDUCE_SCATTER, 0),

    SENT("dissemination", BARRIER, NULL, oari_plan_dissemination),
    SENT("binomial", BROADCAST, open_object, oari_plan_binomial),
    SENT("chain", BROADCAST, open_object, oari_plan_chain),
    SENT("exchange", ALL_REDUCE, NULL, oari_plan_exchange),
    SENT("bruck", ALL_REDUCE, NULL, oari_plan_bruck),
    OWN_ORDER("doubling", ALL_REDUCE, NULL, oari_plan_doubling),
    OWN_ORDER("halving", ALL_REDUCE, NULL, oari_plan_halving),
    OWN_ORDER("ring", ALL_REDUCE, NULL, oari_plan_ring_all_reduce),
    SENT("exchange", REDUCE, NULL, oari_plan_exchange),
    OWN_ORDER("binomial", REDUCE, NULL, oari_plan_binomial),
    OWN_ORDER("chain", REDUCE, NULL, oari_plan_chain),
    SENT("linear", GATHER, open_object, oari_plan_linear),
    SENT("binomial", GATHER, equal_parts, oari_plan_binomial),
    SENT("linear", SCATTER, open_object, oari_plan_linear),
    SENT("binomial", SCATTER, equal_parts, oari_plan_binomial),
    SENT("ring", ALL_GATHER, open_object, oari_plan_ring_all_gather),
    SENT("bruck", ALL_GATHER, open_object, oari_plan_bruck),
    SENT("exchange", ALL_GATHER, open_object, oari_plan_exchange),
    SENT("exchange", REDUCE_SCATTER, NULL, oari_plan_exchange),
    OWN_ORDER("ring", REDUCE_SCATTER, NULL, oari_plan_ring_reduce_scatter),
    SENT("pairwise", ALL_TO_ALL, NULL, oari_plan_pairwise),
    SENT("bruck", ALL_TO_ALL, equal_parts, oari_plan_bruck),
    { NULL, OAR_COLL_COUNT, 0, 0, NULL, NULL },
};
/* clang-format on */

/* ---- which of those that fit is best ------------------------------------- */

size_t oari_request_bytes(const oari_plan_request *req)
{
    if (unsettled(req) || (req->ragged && req->at == NULL))
        return SIZE_MAX;
    switch (req->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: {
        oari_partition row = oari_partition_parts(req);
        return oari_partition_first(&row, req->ranks) * req->element;
    }
    default: return req->count * req->element;
    }
}

static const char *best_all_reduce(const oari_plan_request *a,
                                   const oari_rules *r, size_t bytes)
{
    int64_t size = (int64_t)bytes;
    int doubles = a->wide != a->element; /* what a sum travels as */

    if (a->ranks == 2 && !doubles && size <= r->pair_bytes)
        return size <= r->swap_bytes ? "doubling" : "halving";
    if ((a->ranks <= r->exchange_ranks || doubles) && size > r->latency_bytes)
        return "exchange";
    if (size <= r->latency_bytes)
        return a->ranks <= r->bruck_ranks ? "bruck" : "doubling";
    return size < r->ring_bytes ? "halving" : "ring";
}

/* The name that the rules want for an operation over messages. */
static const char *best_message(const oari_plan_request *a, const oari_rules *r)
{
    size_t bytes = oari_request_bytes(a);
    int large = (int64_t)bytes >= r->chain_bytes;
    int small = bytes <= (size_t)r->latency_bytes;
    int few = a->ranks <= r->exchange_ranks;

    switch (a->kind) {
    case OAR_COLL_BROADCAST:
        return large && a->ranks > 2 ? "chain" : "binomial";
    case OAR_COLL_ALL_REDUCE: return best_all_reduce(a, r, bytes);
    case OAR_COLL_REDUCE:
        return few ? "exchange" : large ? "chain" : "binomial";
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
        return equal_parts(a) &&
                       bytes / (size_t)a->ranks <= (size_t)r->tree_bytes
                   ? "binomial"
                   : "linear";
    case OAR_COLL_ALL_GATHER:
        return small ? "bruck" : few ? "exchange" : "ring";
    case OAR_COLL_REDUCE_SCATTER:
        return small || few || a->wide != a->element ? "exchange" : "ring";
    case OAR_COLL_ALL_TO_ALL:
        return small && equal_parts(a) ? "bruck" : "pairwise";
    default: return "dissemination";
    }
}

static int over_of(const oari_plan_request *req)
{
    return (req->shm_ranks == req->ranks ? OARI_MEMORY : 0) |
           (req->sends || req->ranks == 1 ? OARI_MESSAGES : 0);
}

static const char *best(const oari_plan_request *req, const oari_rules *rules)
{
    if (over_of(req) & OARI_MEMORY)
        return unsettled(req) ? "sizes" : fits_line(req) ? "line" : "direct";
    if (is_object(req))
        return "sizes";
    if (rules->two_level && oari_has_levels(req))
        return "two_level";
    return best_message(req, rules);
}

static int may(const oari_algorithm *a, const oari_plan_request *req)
{
    return a->kind == req->kind && (a->over & ~over_of(req)) == 0 &&
           (a->canonical || !req->canonical) &&
           (a->fits == NULL || a->fits(req));
}

const oari_algorithm *oari_choose(const oari_plan_request *req,
                                  const oari_rules *rules)
{
    const char *forced = rules->forced[req->kind];
    const char *wanted = best(req, rules);
    const oari_algorithm *found = NULL;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        if (!may(a, req))
            continue;
        if (strcmp(a->name, forced) == 0)
            return a;
        if (found == NULL ||
            (strcmp(found->name, wanted) != 0 && strcmp(a->name, wanted) == 0))
            found = a;
    }
    if (found == NULL)
        oari_fail(OAR_E_UNSUPPORTED, "%s of %zu elements has no algorithm",
                  oar_coll_name(req->kind), req->count);
    return found;
}

/* ---- rules --------------------------------------------------------------- */

static int has_algorithm(const char *name, int kind)
{
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0 && (kind < 0 || (int)a->kind == kind))
            return 1;
    return 0;
}

static void list_names(int kind, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        char quoted[20];
        snprintf(quoted, sizeof quoted, " %s,", a->name);
        if ((kind >= 0 && (int)a->kind != kind) ||
            strstr(text, quoted) != NULL || strcmp(a->name, "sizes") == 0)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s", quoted);
    }
    if (used > 0)
        text[used - 1] = 0; /* the last comma */
}

static int needs_of(const char *name, int kind)
{
    int needs = 0;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0 && (kind < 0 || (int)a->kind == kind))
            needs |= a->over;
    return needs;
}

static oar_status refuse(const char *name, int kind)
{
    char names[400];

    list_names(kind, names, sizeof names);
    return oari_fail(OAR_E_ARG, "there is no algorithm \"%s\"%s%s; there are%s",
                     name, kind >= 0 ? " of " : "",
                     kind >= 0 ? oar_coll_name((oar_coll)kind) : "", names);
}

static oar_status force(oari_rules *rules, int kind, const char *name)
{
    if (strcmp(name, "sizes") == 0 || !has_algorithm(name, kind))
        return refuse(name, kind);
    for (int k = 0; k < OAR_COLL_COUNT; k++)
        if ((kind < 0 && has_algorithm(name, k)) || kind == k)
            snprintf(rules->forced[k], sizeof rules->forced[k], "%s", name);
    if (kind < 0 && needs_of(name, -1) == OARI_MESSAGES &&
        strcmp(name, "two_level") != 0)
        rules->messages_only = 1;
    return OAR_OK;
}

static oar_status find_kind(const char *name, int *kind)
{
    for (int k = 0; k < OAR_COLL_SEND; k++)
        if (strcmp(name, oar_coll_name((oar_coll)k)) == 0) {
            *kind = k;
            return OAR_OK;
        }
    return oari_fail(OAR_E_ARG, "there is no collective \"%s\"", name);
}

/* "ring" or "all_reduce:ring". */
static oar_status force_one(oari_rules *rules, char *text)
{
    char *colon = strchr(text, ':');
    int kind = -1;

    if (colon == NULL)
        return force(rules, -1, text);
    *colon = 0;
    OARI_TRY(find_kind(text, &kind));
    return force(rules, kind, colon + 1);
}

static oar_status force_all(oari_rules *rules, const char *text)
{
    char one[64];

    while (*text != 0) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof one)
            return oari_fail(OAR_E_ARG, "an algorithm named \"%s\"", text);
        memcpy(one, text, length);
        one[length] = 0;
        OARI_TRY(force_one(rules, one));
        text += length + (text[length] == ',');
    }
    return OAR_OK;
}

oar_status oari_rules_read(oari_rules *rules, const char *algorithm)
{
    memset(rules, 0, sizeof *rules);
#define X(field, name, normal, text) \
    rules->field = (normal);         \
    OARI_TRY(oari_env_int(name, 0, OARI_RULE_MOST, &rules->field));
    OARI_RULE_LIST(X)
#undef X
    rules->through_host = oari_env_flag("OARSONG_ENABLE_GPU_FALLBACK");
    if (algorithm == NULL)
        algorithm = oari_env_text("OARSONG_ALGO");
    return algorithm != NULL ? force_all(rules, algorithm) : OAR_OK;
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
