/* SPDX-License-Identifier: Apache-2.0 */
/* conform_group: groups made from groups, and many operations in flight on
 * several of them. */
#include "conform.h"

#include <stdlib.h>

/* Ranks of different colours go through different cells; each colour has this
 * many to itself, so that the cells after them are the same on all ranks. */
enum { CELLS_OF_A_COLOUR = 4096, JOBS = 24 };

/* ---- groups of groups ---------------------------------------------------- */

static void check_ranks(conform_context *d, const char *of, oar_group *group,
                        const int *ranks, int count)
{
    conform_trial t = { .kind = K_GROUPS, .count = (size_t)count, .of = of };

    if (!record_begin(d, &t))
        return;
    if (oar_group_size(group) != count) {
        record_wrong(d, "%d ranks, not %d", oar_group_size(group), count);
        return;
    }
    for (int r = 0; r < count; r++) {
        if (oar_group_to_world(group, r) != ranks[r])
            record_wrong(d, "rank %d is %d in the world, not %d", r,
                         oar_group_to_world(group, r), ranks[r]);
        if (oar_group_from_world(group, ranks[r]) != r ||
            oar_group_translate(d->world, ranks[r], group) != r)
            record_wrong(d, "the world's rank %d is not %d here", ranks[r], r);
    }
    if (oar_group_to_world(group, oar_group_rank(group)) != d->rank)
        record_wrong(d, "I am rank %d there", oar_group_rank(group));
}

/* What is tried on a child. Colours keep to cells of their own. */
static void use_group(conform_context *d, oar_group *group, const char *of,
                      int colour, int colours)
{
    size_t cell = d->cell, turn = d->turn;

    d->cell += (size_t)(colour * CELLS_OF_A_COLOUR);
    if (group != NULL) {
        conform_collectives(d, group, of, 1);
        if (!d->s->quick)
            conform_bytes(d, group, of);
    }
    d->cell = cell + (size_t)(colours * CELLS_OF_A_COLOUR);
    d->turn = turn + 101;
}

/* Notes the making of a group as a cell, if groups are asked for. */
static int made(conform_context *d, oar_status status, const char *of)
{
    conform_trial t = { .kind = K_GROUPS, .of = of };

    if (record_begin(d, &t))
        return record_status(d, status, "making the group");
    d->broken |= oar_group_fault(d->world, NULL) != OAR_OK;
    return status == OAR_OK;
}

static void try_dup(conform_context *d)
{
    int ranks[CONFORM_MAX_RANKS] = { 0 };
    oar_group *group = NULL;

    for (int r = 0; r < d->ranks; r++)
        ranks[r] = r;
    if (!made(d, oar_group_dup(d->world, &group), "dup"))
        return;
    check_ranks(d, "dup", group, ranks, d->ranks);
    use_group(d, group, "dup", 0, 1);
    conform_barriers(d, group, "dup");
    oar_group_destroy(group);
}

/* Odd and even ranks, each in reverse. */
static void try_split(conform_context *d)
{
    int ranks[CONFORM_MAX_RANKS] = { 0 }, count = 0;
    oar_group *group = NULL;
    size_t cell;

    for (int r = d->ranks - 1; r >= 0; r--)
        if (r % 2 == d->rank % 2)
            ranks[count++] = r;
    if (!made(d, oar_group_split(d->world, d->rank % 2, -d->rank, &group),
              "split"))
        return;
    cell = d->cell;
    d->cell += (size_t)(d->rank % 2);
    check_ranks(d, "split", group, ranks, count);
    d->cell = cell + 2;
    use_group(d, group, "split", d->rank % 2, 2);
    oar_group_destroy(group);
}

/* Only rank 0 wants one. */
static void try_split_away(conform_context *d)
{
    oar_group *group = NULL;

    if (!made(d, oar_group_split(d->world, d->rank == 0 ? 3 : -1, 0, &group),
              "split"))
        return;
    if ((group == NULL) != (d->rank != 0))
        record_wrong(d, "a colour below 0 %s a group",
                     group != NULL ? "has" : "lacks");
    oar_group_destroy(group);
}

/* All but rank 1, named in disorder and twice. */
static void try_subset(conform_context *d)
{
    int ranks[CONFORM_MAX_RANKS] = { 0 }, named[2 * CONFORM_MAX_RANKS];
    int count = 0, total = 0;
    size_t cell = d->cell;
    oar_group *group = NULL;

    for (int r = 0; r < d->ranks; r++)
        if (r != 1)
            ranks[count++] = r;
    for (int i = count - 1; i >= 0; i--)
        named[total++] = ranks[i];
    named[total++] = 0;
    if (d->rank != 1) {
        if (!made(d, oar_group_subset(d->world, total, named, &group),
                  "subset"))
            return;
        check_ranks(d, "subset", group, ranks, count);
    }
    d->cell = cell + 2;
    use_group(d, group, "subset", 0, 1);
    oar_group_destroy(group);
}

static void refuse_subset(conform_context *d, int count, const int *ranks,
                          oar_status wanted, const char *what)
{
    conform_trial t = { .kind = K_GROUPS,
                        .count = (size_t)count,
                        .of = "subset" };
    oar_group *group = NULL;

    if (record_begin(d, &t))
        record_wanted(d, oar_group_subset(d->world, count, ranks, &group),
                      wanted, what);
}

void conform_groups(conform_context *d)
{
    int missing = d->ranks, other = d->rank + 1 < d->ranks ? d->rank + 1 : 0;
    int only = d->s->only_kind;

    if (d->broken || (only > K_ALL_GATHER_BYTES && only != K_GROUPS))
        return;
    try_split_away(d);
    try_dup(d);
    try_split(d);
    try_subset(d);
    refuse_subset(d, 0, &missing, OAR_E_WORLD, "an empty subset");
    refuse_subset(d, 1, &missing, OAR_E_RANK, "a subset with a rank too many");
    if (d->ranks > 1)
        refuse_subset(d, 1, &other, OAR_E_RANK, "a subset without its caller");
}

/* ---- many at once -------------------------------------------------------- */

typedef struct jobs_in_flight {
    oar_group *group[3];
    conform_job job[JOBS];
    oar_work *work[JOBS];
    _Atomic int called; /* by then */
} jobs_in_flight;

static void count_call(void *arg, oar_status status)
{
    atomic_fetch_add((_Atomic int *)arg, status == OAR_OK ? 1 : 1000);
}

/* An engine for GPUs may not have every dtype. */
static oar_dtype dtype_of(const conform_context *d, conform_kind k, int i)
{
    int all = !d->s->gpu || (d->s->can & OAR_CAN_ORDER) != 0;

    return all || !kind_reduces(k) ? (oar_dtype)(i * 5 % OAR_DTYPE_COUNT)
                                   : OAR_F32;
}

static conform_trial trial_of(const conform_context *d, int i)
{
    static const conform_kind kinds[] = { K_ALL_REDUCE,     K_BROADCAST,
                                          K_ALL_GATHER,     K_REDUCE,
                                          K_REDUCE_SCATTER, K_ALL_TO_ALL,
                                          K_GATHER_V };
    static const size_t counts[] = { 5, 3000, 1, 0, 170, 33 };
    conform_kind k = kinds[i % 7];
    size_t count = counts[i % 6];

    return (conform_trial){ .kind = k,
                            .dtype = dtype_of(d, k, i),
                            .count = k >= K_GATHER && count > 200 ? 200 : count,
                            .where = (conform_memory)(i % WHERES),
                            .how = ASYNC,
                            .of = i % 3 == 0   ? "world"
                                  : i % 3 == 1 ? "dup"
                                               : "split" };
}

static int post_all(conform_context *d, jobs_in_flight *c)
{
    for (int i = 0; i < JOBS; i++) {
        conform_trial t = trial_of(d, i);
        job_prepare(d, &c->job[i], &t, c->group[i % 3], i, JOBS);
    }
    for (int i = 0; i < JOBS; i++)
        if (!record_status(d, job_post(&c->job[i], NULL, &c->work[i]),
                           "the call"))
            return 0;
    for (int i = 0; i < JOBS; i += 4)
        record_status(d, oar_work_then(c->work[i], count_call, &c->called),
                      "then");
    return 1;
}

/* Half of them one by one as they end, the rest together. */
static int wait_for_all(conform_context *d, jobs_in_flight *c)
{
    oar_work *left[JOBS];
    int index;

    for (int i = 0; i < JOBS; i++)
        left[i] = c->work[i];
    for (int i = 0; i < JOBS / 2; i++) {
        if (!record_status(d, oar_work_wait_any(JOBS, left, &index),
                           "wait_any"))
            return 0;
        if (index < 0 || index >= JOBS || left[index] == NULL) {
            record_wrong(d, "wait_any gives index %d", index);
            return 0;
        }
        left[index] = NULL;
    }
    return record_status(d, oar_work_wait_all(JOBS, left), "wait_all");
}

static void check_all(conform_context *d, jobs_in_flight *c)
{
    conform_record *n = &d->row->note[d->cell];
    conform_trial all = n->t;

    for (int i = 0; i < JOBS; i++) {
        n->t = c->job[i].t; /* for the text */
        job_check(d, &c->job[i]);
    }
    n->t = all;
    n->hash = 0; /* ranks are in different groups */
    if (atomic_load(&c->called) != JOBS / 4)
        record_wrong(d, "then was called %d times, not %d",
                     atomic_load(&c->called), JOBS / 4);
}

static void try_in_flight(conform_context *d, oar_group *dup, oar_group *split)
{
    conform_trial t = {
        .kind = K_IN_FLIGHT, .count = JOBS, .how = ASYNC, .of = "all"
    };
    jobs_in_flight *c;

    if (!record_begin(d, &t))
        return;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        abort();
    c->group[0] = d->world;
    c->group[1] = dup;
    c->group[2] = split;
    if (post_all(d, c) && wait_for_all(d, c)) {
        for (int i = 0; i < JOBS; i++)
            oar_work_wait(c->work[i]); /* for the last callbacks */
        check_all(d, c);
    }
    for (int i = 0; i < JOBS; i++)
        oar_work_release(c->work[i]);
    free(c);
}

void conform_in_flight(conform_context *d)
{
    oar_group *dup = NULL, *split = NULL;
    int rounds = d->s->quick ? 5 : 50;

    if (d->broken || (d->s->only_kind >= 0 && d->s->only_kind != K_IN_FLIGHT))
        return;
    if (!made(d, oar_group_dup(d->world, &dup), "dup") ||
        !made(d, oar_group_split(d->world, d->rank % 2, d->rank, &split),
              "split"))
        goto end;
    for (int i = 0; i < rounds; i++)
        try_in_flight(d, dup, split);
end:
    oar_group_destroy(dup);
    oar_group_destroy(split);
}
