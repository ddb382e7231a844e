/* SPDX-License-Identifier: Apache-2.0 */
/* plan_levels: two levels: inside each host over shared memory, across hosts by
 * messages. What crosses the network is sent once for each host, not once for
 * each rank.
 *
 * The work is divided over rails, as many as the host with the fewest ranks
 * has. Rail i is rank i of every host. The ranks of a rail send messages only
 * to each other, so all rails send at the same time. An operation has up to
 * three parts:
 *
 *   collect  the rails of a host combine their shares of its ranks' inputs,
 *   across   each rail does its share with its peers on the other hosts,
 *   deliver  the rails of a host deliver the results to its ranks.
 *
 * Inside a host buffers are used in place if all can be reached, else data goes
 * through the bounce buffers; hosts may differ in that, because the messages
 * are the same. Chunks of the bounce buffer are used in turn, as in
 * plan_staged.c. A host with one rank needs no shared memory.
 *
 * Ranks are combined host by host: the same on every run, but not the order of
 * ranks.
 */
#include "plan/plan_levels.h"

enum { MAX_HOSTS = 1024, MAX_RAILS = 16, RING_LEAST = 4096 };

/* ---- which rank is where ------------------------------------------------- */

static int hosts_of(const oari_plan_request *req)
{
    int hosts = 1;

    for (int r = 0; r < req->ranks; r++)
        if (req->hosts[r] >= hosts)
            hosts = req->hosts[r] + 1;
    return hosts;
}

static int ranks_on(const oari_plan_request *req, int host)
{
    int n = 0;

    for (int r = 0; r < req->ranks; r++)
        n += req->hosts[r] == host;
    return n;
}

int oari_local_of(const oari_plan_request *req, int rank)
{
    int n = 0;

    for (int r = 0; r < rank; r++)
        n += req->hosts[r] == req->hosts[rank];
    return n;
}

int oari_rank_at(const oari_plan_request *req, int host, int local)
{
    int r = 0;

    while (req->hosts[r] != host || local-- > 0)
        r++;
    return r;
}

int oari_has_levels(const oari_plan_request *req)
{
    int hosts;

    if (req->hosts == NULL || req->object || req->widens)
        return 0;
    hosts = hosts_of(req);
    return hosts > 1 && hosts < req->ranks && hosts <= MAX_HOSTS;
}

int oari_is_on_rail(const oari_levels *l)
{
    return l->local < l->rails;
}

/* ---- what a rail carries ------------------------------------------------- */

oari_rail_walk oari_rail_begin(void)
{
    return (oari_rail_walk){ .host = -1, .now = { 0, 0, 0, -1 } };
}

int oari_rail_next(const oari_levels *l, int rail, oari_rail_walk *w)
{
    const oari_plan_request *req = l->req;
    oari_partition row = oari_partition_parts(req);
    int has_parts = req->kind == OAR_COLL_ALL_GATHER ||
                    req->kind == OAR_COLL_REDUCE_SCATTER;

    w->now.at += w->now.count;
    if (!has_parts) {
        w->now.first = oari_slice_first(req->count, l->rails, rail);
        w->now.count = oari_slice_count(req->count, l->rails, rail);
        return ++w->host == 0;
    }
    w->local += l->rails;
    while (w->host < 0 || w->local >= ranks_on(req, w->host)) {
        if (++w->host == l->hosts)
            return 0;
        w->local = rail;
    }
    w->now.rank = oari_rank_at(req, w->host, w->local);
    w->now.first = oari_partition_first(&row, w->now.rank);
    w->now.count = oari_partition_count(&row, w->now.rank);
    return 1;
}

size_t oari_rail_share(const oari_levels *l, int rail)
{
    oari_rail_walk w = oari_rail_begin();
    size_t total = 0;

    while (oari_rail_next(l, rail, &w))
        total += w.now.count;
    return total;
}

/* ---- across -------------------------------------------------------------- */

/* Returns the ring of my rail, with the rank on host `first` as member 0. rank
 * has room for all hosts. */
static oari_rank_ring rail_ring(const oari_levels *l, int first, int *rank)
{
    for (int i = 0; i < l->hosts; i++)
        rank[i] = oari_rank_at(l->req, (first + i) % l->hosts, l->local);
    return (oari_rank_ring){ .n = l->hosts,
                             .me = (l->host - first + l->hosts) % l->hosts,
                             .rank = rank };
}

/* Two hosts that swap all they have send as much as a ring would, in half the
 * time on the way; unless partial results are wider than finished ones. */
static void all_reduce_across(const oari_levels *l)
{
    const oari_plan_request *req = l->req;
    int rank[MAX_HOSTS];
    size_t count = oari_rail_share(l, l->local);
    oari_plan_reduction reduction = {
        .req = req,
        .ring = rail_ring(l, 0, rank),
        .partition = oari_partition_slices(count, l->hosts),
        .in = { OARI_WORK, 0 },
        .out = { OARI_OUT, oari_slice_first(req->count, l->rails, l->local) },
        .work = count
    };
    int swap = count * req->wide < RING_LEAST ||
               (l->hosts == 2 && req->wide == req->element);

    if (count != 0 && swap)
        oari_doubling(&reduction, l->plan, count);
    else if (count != 0)
        oari_ring_reduce(&reduction, l->plan, 1);
}

static void reduce_across(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    size_t count = oari_rail_share(l, l->local);
    oari_plan_reduction reduction = { .req = l->req,
                                      .ring = rail_ring(l, l->root_host, rank),
                                      .in = { OARI_WORK, 0 },
                                      .out = { OARI_GATHER, 0 },
                                      .work = count };

    if (l->plan->gather_count < count)
        l->plan->gather_count = count;
    oari_tree_reduce(&reduction, l->plan, count);
}

static void reduce_scatter_across(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    size_t at[MAX_HOSTS + 1] = { 0 }; /* where the hosts' shares begin */
    oari_rail_walk w = oari_rail_begin();
    oari_plan_reduction reduction = { .req = l->req,
                                      .ring = rail_ring(l, 0, rank),
                                      .partition = { .n = l->hosts, .at = at },
                                      .in = { OARI_WORK, 0 },
                                      .out = { OARI_GATHER, 0 } };

    while (oari_rail_next(l, l->local, &w))
        at[w.host + 1] += w.now.count;
    for (int h = 0; h < l->hosts; h++)
        at[h + 1] += at[h];
    reduction.work = at[l->hosts];
    if (l->plan->gather_count < at[l->host + 1] - at[l->host])
        l->plan->gather_count = at[l->host + 1] - at[l->host];
    oari_ring_reduce(&reduction, l->plan, 0);
}

/* Sends or receives the parts of my rail that belong to a host. */
static void move_parts_of(const oari_levels *l, int host, int peer, int sending)
{
    oari_rail_walk w = oari_rail_begin();

    while (oari_rail_next(l, l->local, &w))
        if (w.host == host && sending)
            oari_plan_send(l->plan, peer, OARI_OUT, w.now.first, w.now.count);
        else if (w.host == host)
            oari_plan_recv(l->plan, peer, OARI_OUT, w.now.first, w.now.count);
}

static void go_across(const oari_levels *l)
{
    const oari_plan_request *req = l->req;
    int rank[MAX_HOSTS], n = l->hosts, me = l->host, ahead, behind;
    oari_rank_ring ring;

    if (!oari_is_on_rail(l))
        return;
    switch (req->kind) {
    case OAR_COLL_ALL_REDUCE: all_reduce_across(l); break;
    case OAR_COLL_REDUCE: reduce_across(l); break;
    case OAR_COLL_REDUCE_SCATTER: reduce_scatter_across(l); break;
    case OAR_COLL_ALL_GATHER: /* a ring of hosts */
        ahead = oari_rank_at(req, (me + 1) % n, l->local);
        behind = oari_rank_at(req, (me - 1 + n) % n, l->local);
        for (int k = 0; k < n - 1; k++) {
            move_parts_of(l, (me - k - 1 + n) % n, behind, 0);
            move_parts_of(l, (me - k + n) % n, ahead, 1);
            oari_plan_wait(l->plan);
        }
        break;
    case OAR_COLL_BROADCAST:
        ring = rail_ring(l, l->root_host, rank);
        oari_tree_broadcast(
            &ring, l->plan,
            (oari_location){ OARI_OUT,
                             oari_slice_first(req->count, l->rails, l->local) },
            oari_rail_share(l, l->local));
        break;
    default:
        if (l->local != 0)
            break;
        ring = rail_ring(l, 0, rank);
        oari_signal_all(&ring, l->plan);
        break;
    }
}

/* ---- all of it ----------------------------------------------------------- */

static void plan_kind(oari_levels *l)
{
    int with_root = l->host == l->root_host;

    switch (l->req->kind) {
    case OAR_COLL_BARRIER:
        if (l->locals > 1)
            oari_plan_sync(l->plan, 0, 0);
        go_across(l);
        if (l->locals > 1)
            oari_plan_sync(l->plan, 0, 0);
        break;
    case OAR_COLL_BROADCAST:
        if (with_root)
            oari_host_broadcast(l);
        go_across(l);
        if (!with_root)
            oari_host_deliver(l);
        break;
    case OAR_COLL_ALL_GATHER:
        oari_host_gather(l);
        go_across(l);
        oari_host_deliver(l);
        break;
    case OAR_COLL_REDUCE:
        oari_host_collect(l);
        go_across(l);
        if (with_root)
            oari_host_deliver(l);
        else if (l->locals > 1 && !l->staged)
            oari_plan_sync(l->plan, 0, 0); /* all inputs are read */
        break;
    default:
        oari_host_collect(l);
        go_across(l);
        oari_host_deliver(l);
        break;
    }
}

/* Plans the operation twice: on buffers in place, and through the bounce
 * buffers in case one of those that are needed cannot be reached. */
static void plan_both_ways(oari_levels *l)
{
    const oari_plan_request *req = l->req;
    oari_plan *plan = l->plan;
    int with_root = l->host == l->root_host;
    int broadcast = req->kind == OAR_COLL_BROADCAST;
    int reduce = req->kind == OAR_COLL_REDUCE;
    int needs_in = !broadcast || with_root;
    int needs_out = broadcast ? !with_root : reduce ? with_root : 1;
    int root = with_root ? oari_local_of(req, req->root) : -1;
    int in = -1, out = -1;

    if (needs_in)
        plan->shows |= OARI_SHOWS_IN;
    if (needs_out && (!reduce || req->rank == req->root))
        plan->shows |= OARI_SHOWS_OUT;
    oari_plan_sync(plan, 0, 0);
    if (needs_in)
        in = oari_plan_unless_reachable(plan, OARI_IN, broadcast ? root : -1);
    if (needs_out)
        out = oari_plan_unless_reachable(plan, OARI_OUT, reduce ? root : -1);
    plan_kind(l);
    oari_plan_end(plan);
    if (in >= 0)
        oari_plan_jump_here(plan, in);
    if (out >= 0)
        oari_plan_jump_here(plan, out);
    l->staged = 1;
    plan_kind(l);
}

void oari_plan_two_level(const oari_plan_request *req, oari_plan *plan)
{
    oari_levels l = { .req = req,
                      .plan = plan,
                      .hosts = hosts_of(req),
                      .rails = MAX_RAILS,
                      .host = req->hosts[req->rank],
                      .root_host = req->root >= 0 ? req->hosts[req->root] : -1,
                      .local = oari_local_of(req, req->rank) };

    for (int h = 0; h < l.hosts; h++)
        if (ranks_on(req, h) < l.rails)
            l.rails = ranks_on(req, h);
    l.locals = ranks_on(req, l.host);
    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    if (req->kind != OAR_COLL_BARRIER && l.locals > 1)
        plan_both_ways(&l);
    else
        plan_kind(&l);
}
