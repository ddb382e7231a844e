/* SPDX-License-Identifier: Apache-2.0 */
/* plan/choose.h: which algorithm does an operation.
 *
 * There is one table of algorithms (choose.c), and there are rules: thresholds
 * that say up to which size each is used. The choice depends on nothing but
 * what all ranks know alike, so all make the same one; rules are the same on
 * all ranks of a group because all use those of rank 0.
 */
#ifndef OARI_PLAN_CHOOSE_H
#define OARI_PLAN_CHOOSE_H

#include "plan/plan.h"

/* What an algorithm needs: memory that all ranks share, or messages. */
enum { OARI_MEMORY = 1, OARI_MESSAGES = 2 };

/* A name, what it plans, and the planner; the table ends with a NULL name. */
typedef struct oari_algorithm {
    const char *name;
    oar_coll kind;
    int over;
    int canonical; /* combines in the order of ranks, or does not combine */
    int (*fits)(
        const oari_plan_request *req); /* NULL: everything of its kind */
    oari_planner plan;
} oari_algorithm;
extern const oari_algorithm oari_algorithms[];

/* The thresholds, in bytes or ranks: field, environment variable, default, what
 * it says. */
#define OARI_RULE_LIST(X)                                                    \
    X(latency_bytes, "OARSONG_LATENCY_BYTES", 4 << 10,                       \
      "messages: up to here a collective takes as few rounds as it can")     \
    X(bruck_ranks, "OARSONG_BRUCK_RANKS", 16,                                \
      "messages: up to this many ranks a small all_reduce gathers all "      \
      "inputs")                                                              \
    X(ring_bytes, "OARSONG_RING_BYTES", 2 << 20,                             \
      "messages: from here on all_reduce, all_gather and reduce_scatter go " \
      "around a ring")                                                       \
    X(swap_bytes, "OARSONG_SWAP_BYTES", 64 << 10,                            \
      "messages: up to here two ranks swap whole inputs in an all_reduce")   \
    X(pair_bytes, "OARSONG_PAIR_BYTES", 4 << 20,                             \
      "messages: up to here two ranks swap halves")                          \
    X(exchange_ranks, "OARSONG_EXCHANGE_RANKS", 2,                           \
      "messages: up to this many ranks every rank sends to every rank")      \
    X(chain_bytes, "OARSONG_CHAIN_BYTES", 1 << 20,                           \
      "messages: from here on broadcast and reduce are pipelines")           \
    X(tree_bytes, "OARSONG_TREE_BYTES", 32 << 10,                            \
      "messages: gather and scatter use a tree for parts up to here")        \
    X(tree_ranks, "OARSONG_TREE_RANKS", 8,                                   \
      "messages: up to this many ranks gather and scatter use no tree")      \
    X(fetch_bytes, "OARSONG_FETCH_BYTES", 16 << 10,                          \
      "shared memory: parts of private memory from here on are copied once") \
    X(two_level, "OARSONG_TWO_LEVEL", 1,                                     \
      "1: inside hosts first, then across; 0: all ranks alike")              \
    X(engine_parts, "OARSONG_ENGINE_PARTS", 0,                               \
      "1: an external engine also does gather_v, scatter_v, all_to_all_v")

#define OARI_RULE_MOST (INT64_MAX / 2) /* largest threshold; the least is 0 */

typedef struct oari_rules {
#define X(field, name, normal, text) int64_t field;
    OARI_RULE_LIST(X)
#undef X
    int through_host;  /* device memory may go through the host */
    int messages_only; /* forced by the name of an algorithm over messages:
                          then shared memory is not used at all */
    /* By kind, the name of the algorithm that is forced; empty: none. */
    char forced[OAR_COLL_COUNT][16];
} oari_rules;

/* Fills in rules from the environment and `algorithm` (as in OARSONG_ALGO;
 * NULL: the value of that). Rules hold no pointers, so that rank 0 can send its
 * own to all. */
oar_status oari_rules_read(oari_rules *rules, const char *algorithm);

/* Returns OAR_E_UNSUPPORTED if something is forced that needs what `over` does
 * not have. */
oar_status oari_rules_check(const oari_rules *rules, int over);

/* Returns the row for an operation; NULL with the last error set if no
 * algorithm does it. */
const oari_algorithm *oari_choose(const oari_plan_request *req,
                                  const oari_rules *rules);

/* Returns the bytes of the operation; SIZE_MAX: not all ranks know them. */
size_t oari_request_bytes(const oari_plan_request *req);

#endif
