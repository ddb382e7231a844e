/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_interleave: 1F1B with several stages on each rank.
 *
 * A rank goes through its stages with groups of `ranks` micro-batches. If the
 * groups are full there is a closed form. With a last group that is smaller it
 * would have ranks wait for each other in a circle; then the rows are made by
 * running them in model time: an action is taken only when it could run, so no
 * circle can arise.
 */
#include "parallel/schedule/schedule.h"

enum { FORWARD_TIME = 1, BACKWARD_TIME = 2 };

typedef struct visit {
    int stage, micro;
} visit;

/* Returns the k-th stage and micro-batch that a rank visits. */
static visit visit_at(const oari_schedule_size *z, int rank, int64_t k,
                      int backward)
{
    int64_t group = k / ((int64_t)z->ranks * z->chunks);
    int first = (int)group * z->ranks;
    int size = z->micro - first < z->ranks ? z->micro - first : z->ranks;
    int rest = (int)(k - (int64_t)first * z->chunks), chunk = rest / size;

    chunk = backward ? z->chunks - 1 - chunk : chunk;
    return (visit){ chunk * z->ranks + rank, first + rest % size };
}

static void add_visit(oari_schedule_draft *d, const oari_schedule_size *z,
                      int64_t k, int backward)
{
    visit v = visit_at(z, d->rank, k, backward);

    oari_schedule_add(d, v.stage, backward ? OAR_ACT_B : OAR_ACT_F, v.micro);
}

/* Returns how many forwards a rank runs before its first backward. */
static int64_t warm_up(const oari_schedule_size *z, int rank)
{
    int64_t all = (int64_t)z->micro * z->chunks;
    int64_t warm =
        (int64_t)(z->chunks - 1) * z->ranks + 2 * (z->ranks - rank - 1);

    return warm < all ? warm : all;
}

static void make_closed(oari_schedule_draft *d, const oari_schedule_size *z)
{
    int64_t all = (int64_t)z->micro * z->chunks;

    for (d->rank = 0; d->rank < z->ranks; d->rank++) {
        int64_t warm = warm_up(z, d->rank);

        for (int64_t k = 0; k < warm; k++)
            add_visit(d, z, k, 0);
        for (int64_t k = 0; k < all; k++) {
            if (warm + k < all)
                add_visit(d, z, warm + k, 0);
            add_visit(d, z, k, 1);
        }
    }
}

/* ---- by running ---------------------------------------------------------- */

/* What a rank would do next, and when. */
typedef struct next_action {
    int64_t time; /* INT64_MAX: nothing can run */
    int backward;
} next_action;

typedef struct runner {
    const oari_schedule_size *z;
    oari_schedule_draft *draft;
    int64_t all;         /* visits of a rank, forward or backward */
    int64_t extra;       /* more than the warm-up that a rank may hold */
    int64_t *done[2];    /* by rank: how many forward and backward */
    int64_t *free_at;    /* by rank */
    int64_t *end[2];     /* by stage and micro-batch; -1: it has not run */
    next_action *next;   /* by rank */
    int *winner, leaves; /* a tree of which rank's next comes first */
} runner;

static int64_t *end_of(const runner *r, int backward, int stage, int micro)
{
    return &r->end[backward][(int64_t)stage * r->z->micro + micro];
}

/* Returns when a rank could run its next forward or backward. */
static int64_t ready_at(const runner *r, int rank, int backward)
{
    int64_t at = r->free_at[rank], needed[2] = { 0, 0 };
    int stages = r->z->ranks * r->z->chunks;
    visit v;

    if (r->done[backward][rank] == r->all)
        return INT64_MAX;
    v = visit_at(r->z, rank, r->done[backward][rank], backward);
    if (backward) {
        needed[0] = *end_of(r, 0, v.stage, v.micro);
        if (v.stage + 1 < stages)
            needed[1] = *end_of(r, 1, v.stage + 1, v.micro);
    } else if (v.stage > 0) {
        needed[0] = *end_of(r, 0, v.stage - 1, v.micro);
    }
    for (int i = 0; i < 2; i++) {
        if (needed[i] < 0)
            return INT64_MAX;
        at = needed[i] > at ? needed[i] : at;
    }
    return at;
}

/* Backward is preferred once a rank holds its warm-up's worth. */
static next_action choose_next(const runner *r, int rank)
{
    int64_t held = r->done[0][rank] - r->done[1][rank];
    int64_t warm = warm_up(r->z, rank) + 1;
    int64_t backward = ready_at(r, rank, 1), forward = INT64_MAX;
    int full;

    warm = warm < r->all ? warm : r->all;
    full = held >= warm || r->done[0][rank] == r->all;
    if (held < warm + r->extra)
        forward = ready_at(r, rank, 0);
    if (backward < forward || (full && backward == forward))
        return (next_action){ backward, 1 };
    return (next_action){ forward, 0 };
}

/* Chooses for a rank again, and plays its matches up to the root. */
static void choose_again(runner *r, int rank)
{
    int node = r->leaves + rank;

    r->next[rank] = choose_next(r, rank);
    for (node /= 2; node >= 1; node /= 2) {
        int a = r->winner[2 * node], b = r->winner[2 * node + 1];

        r->winner[node] =
            b >= 0 && (a < 0 || r->next[b].time < r->next[a].time) ? b : a;
    }
}

static void run_next(runner *r, int rank)
{
    int backward = r->next[rank].backward, neighbour;
    visit v = visit_at(r->z, rank, r->done[backward][rank], backward);
    int64_t end =
        r->next[rank].time + (backward ? BACKWARD_TIME : FORWARD_TIME);

    r->draft->rank = rank;
    add_visit(r->draft, r->z, r->done[backward][rank]++, backward);
    *end_of(r, backward, v.stage, v.micro) = r->free_at[rank] = end;
    choose_again(r, rank);
    neighbour = (rank + (backward ? r->z->ranks - 1 : 1)) % r->z->ranks;
    choose_again(r, neighbour);
}

static void begin_run(runner *r)
{
    int ranks = r->z->ranks;
    size_t cells = (size_t)r->all * (size_t)ranks;

    for (int b = 0; b < 2; b++) {
        memset(r->done[b], 0, (size_t)ranks * sizeof *r->done[b]);
        memset(r->end[b], 0xff, cells * sizeof *r->end[b]);
    }
    memset(r->free_at, 0, (size_t)ranks * sizeof *r->free_at);
    for (int i = 0; i < 2 * r->leaves; i++)
        r->winner[i] =
            i >= r->leaves && i < r->leaves + ranks ? i - r->leaves : -1;
    for (int rank = 0; rank < ranks; rank++)
        r->next[rank] = (next_action){ INT64_MAX, 0 };
    for (int rank = 0; rank < ranks; rank++) {
        r->draft->schedule->row[rank].count = 0;
        choose_again(r, rank);
    }
}

/* Returns whether all actions have run: ranks that may hold too little get
 * stuck. */
static int run_all(runner *r)
{
    int64_t left = 2 * r->all * r->z->ranks;

    begin_run(r);
    for (; left > 0 && r->next[r->winner[1]].time < INT64_MAX; left--)
        run_next(r, r->winner[1]);
    return left == 0;
}

static oar_status alloc_runner(runner *r)
{
    size_t ranks = (size_t)r->z->ranks, cells = (size_t)r->all * ranks;

    for (r->leaves = 1; r->leaves < r->z->ranks;)
        r->leaves *= 2;
    for (int b = 0; b < 2; b++) {
        r->done[b] = oari_alloc(ranks, sizeof *r->done[b]);
        r->end[b] = oari_alloc(cells, sizeof *r->end[b]);
        if (r->done[b] == NULL || r->end[b] == NULL)
            return OAR_E_NOMEM;
    }
    r->free_at = oari_alloc(ranks, sizeof *r->free_at);
    r->next = oari_alloc(ranks, sizeof *r->next);
    r->winner = oari_alloc(2 * (size_t)r->leaves, sizeof *r->winner);
    return r->free_at != NULL && r->next != NULL && r->winner != NULL
               ? OAR_OK
               : OAR_E_NOMEM;
}

static void free_runner(runner *r)
{
    for (int b = 0; b < 2; b++) {
        oari_free(r->done[b]);
        oari_free(r->end[b]);
    }
    oari_free(r->free_at);
    oari_free(r->next);
    oari_free(r->winner);
}

void oari_make_interleaved(oari_schedule_draft *d, const oari_schedule_size *z)
{
    runner r = { .z = z, .draft = d, .all = (int64_t)z->micro * z->chunks };

    if (z->micro % z->ranks == 0) {
        make_closed(d, z);
        return;
    }
    d->status = alloc_runner(&r);
    while (d->status == OAR_OK && !run_all(&r))
        r.extra++;
    free_runner(&r);
}
