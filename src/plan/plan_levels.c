/* SPDX-License-Identifier: Apache-2.0 */
/* plan_levels: two levels: inside each host over its board, across hosts by
 * messages. What crosses the network is sent once for each host, not once for
 * each rank.
 *
 * The work is cut over `rails`, as many as the host with the fewest ranks has.
 * Lane i is rank i of every host, and they talk only to each other, so all
 * rails send at the same time. An operation has up to three parts:
 *
 *   collect  the rails of a host combine their shares of its ranks' inputs,
 *   across   each lane does its share with its like on the other hosts,
 *   share    the rails of a host hand the results to its ranks.
 *
 * Inside a host buffers are used in place where all can be reached, else what
 * is needed goes through the stages; hosts may differ in that, because the
 * messages are the same. Chunks of the stage are used in turn, as in
 * plan_staged.c. A host with one rank needs no board.
 *
 * Ranks are combined host by host: the same on every run, but not the order of
 * ranks.
 */
#include "plan/plan_levels.h"

enum { MAX_HOSTS = 1024, MAX_LANES = 16, RING_LEAST = 4096 };

/* ---- who is where -------------------------------------------------------- */

static int host_of(const oari_plan_request *req, int rank)
{
    return req->hosts[rank];
}

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
        n += host_of(req, r) == host;
    return n;
}

/* Its rank on the board of its host. */
int oari_local_of(const oari_plan_request *req, int rank)
{
    int n = 0;

    for (int r = 0; r < rank; r++)
        n += host_of(req, r) == host_of(req, rank);
    return n;
}

int oari_rank_at(const oari_plan_request *req, int host, int local)
{
    int r = 0;

    while (host_of(req, r) != host || local-- > 0)
        r++;
    return r;
}

int oari_has_levels(const oari_plan_request *req)
{
    int hosts;

    if (req->hosts == NULL || req->object)
        return 0;
    hosts = hosts_of(req);
    return hosts > 1 && hosts < req->ranks && hosts <= MAX_HOSTS;
}

static oari_levels make_levels(const oari_plan_request *req, oari_plan *plan)
{
    oari_levels l = { .req = req,
                      .plan = plan,
                      .hosts = hosts_of(req),
                      .rails = MAX_LANES,
                      .host = host_of(req, req->rank),
                      .local = oari_local_of(req, req->rank) };

    for (int h = 0; h < l.hosts; h++)
        if (ranks_on(req, h) < l.rails)
            l.rails = ranks_on(req, h);
    l.locals = ranks_on(req, l.host);
    return l;
}

int oari_is_on_rail(const oari_levels *l)
{
    return l->local < l->rails;
}

static int root_host(const oari_levels *l)
{
    return host_of(l->req, l->req->root);
}

/* My lane, beginning with some host. rank has room for all hosts. */
static oari_rank_ring lane_circle(const oari_levels *l, int first, int *rank)
{
    for (int i = 0; i < l->hosts; i++)
        rank[i] = oari_rank_at(l->req, (first + i) % l->hosts, l->local);
    return (oari_rank_ring){ .n = l->hosts,
                             .me = (l->host - first + l->hosts) % l->hosts,
                             .rank = rank };
}

/* ---- what a lane carries ------------------------------------------------- */

int oari_rail_has_parts(const oari_plan_request *req)
{
    return req->kind == OAR_COLL_ALL_GATHER ||
           req->kind == OAR_COLL_REDUCE_SCATTER;
}

oari_rail_walk oari_rail_begin(void)
{
    return (oari_rail_walk){ .host = -1, .now = { 0, 0, 0, -1 } };
}

int oari_rail_next(const oari_levels *l, int lane, oari_rail_walk *w)
{
    const oari_plan_request *a = l->req;
    oari_partition row = oari_partition_parts(a);

    w->now.at += w->now.count;
    if (!oari_rail_has_parts(a)) {
        w->now.first = oari_slice_first(a->count, l->rails, lane);
        w->now.count = oari_slice_count(a->count, l->rails, lane);
        return ++w->host == 0;
    }
    w->local += l->rails;
    while (w->host < 0 || w->local >= ranks_on(a, w->host)) {
        if (++w->host == l->hosts)
            return 0;
        w->local = lane;
    }
    w->now.rank = oari_rank_at(a, w->host, w->local);
    w->now.first = oari_partition_first(&row, w->now.rank);
    w->now.count = oari_partition_count(&row, w->now.rank);
    return 1;
}

size_t oari_rail_share(const oari_levels *l, int lane)
{
    oari_rail_walk w = oari_rail_begin();
    size_t total = 0;

    while (oari_rail_next(l, lane, &w))
        total += w.now.count;
    return total;
}

/* ---- across -------------------------------------------------------------- */

/* Two hosts that swap all they have send as much as a ring would, in half the
 * time on the way; unless partial results are wider than finished ones. */
static int swaps(const oari_levels *l, size_t count)
{
    return count * l->req->wide < RING_LEAST ||
           (l->hosts == 2 && l->req->wide == l->req->element);
}

static void across_all_reduce(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    size_t count = oari_rail_share(l, l->local);
    oari_plan_reduction f = {
        .req = l->req,
        .ring = lane_circle(l, 0, rank),
        .partition = oari_partition_slices(count, l->hosts),
        .in = { OARI_WORK, 0 },
        .out = { OARI_OUT,
                 oari_slice_first(l->req->count, l->rails, l->local) },
        .work = count
    };

    if (count != 0 && swaps(l, count))
        oari_doubling(&f, l->plan, count);
    else if (count != 0)
        oari_ring_reduce(&f, l->plan, 1);
}

static void across_reduce(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    size_t count = oari_rail_share(l, l->local);
    oari_plan_reduction f = { .req = l->req,
                              .ring = lane_circle(l, root_host(l), rank),
                              .in = { OARI_WORK, 0 },
                              .out = { OARI_GATHER, 0 },
                              .work = count };

    if (l->plan->gather_count < count)
        l->plan->gather_count = count;
    oari_tree_reduce(&f, l->plan, count);
}

/* Where the shares of hosts begin in my lane's. */
static void find_segments(const oari_levels *l, size_t *at)
{
    oari_rail_walk w = oari_rail_begin();

    for (int h = 0; h <= l->hosts; h++)
        at[h] = 0;
    while (oari_rail_next(l, l->local, &w))
        at[w.host + 1] += w.now.count;
    for (int h = 0; h < l->hosts; h++)
        at[h + 1] += at[h];
}

static void across_reduce_scatter(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    size_t at[MAX_HOSTS + 1];
    oari_plan_reduction f = { .req = l->req,
                              .ring = lane_circle(l, 0, rank),
                              .partition = { .n = l->hosts, .at = at },
                              .in = { OARI_WORK, 0 },
                              .out = { OARI_GATHER, 0 } };

    find_segments(l, at);
    f.work = at[l->hosts];
    if (l->plan->gather_count < at[l->host + 1] - at[l->host])
        l->plan->gather_count = at[l->host + 1] - at[l->host];
    oari_ring_reduce(&f, l->plan, 0);
}

static void move_parts_of(const oari_levels *l, int host, int peer, int sending)
{
    oari_rail_walk w = oari_rail_begin();

    while (oari_rail_next(l, l->local, &w))
        if (w.host == host && sending)
            oari_plan_send(l->plan, peer, OARI_OUT, w.now.first, w.now.count);
        else if (w.host == host)
            oari_plan_recv(l->plan, peer, OARI_OUT, w.now.first, w.now.count);
}

/* A ring of hosts. */
static void across_all_gather(const oari_levels *l)
{
    int n = l->hosts, me = l->host;
    int next = oari_rank_at(l->req, (me + 1) % n, l->local);
    int last = oari_rank_at(l->req, (me - 1 + n) % n, l->local);

    for (int k = 0; k < n - 1; k++) {
        move_parts_of(l, (me - k - 1 + n) % n, last, 0);
        move_parts_of(l, (me - k + n) % n, next, 1);
        oari_plan_wait(l->plan);
    }
}

static void across_broadcast(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    oari_rank_ring c = lane_circle(l, root_host(l), rank);
    oari_location slice = { OARI_OUT, oari_slice_first(l->req->count, l->rails,
                                                       l->local) };

    oari_tree_broadcast(&c, l->plan, slice, oari_rail_share(l, l->local));
}

static void across(const oari_levels *l)
{
    int rank[MAX_HOSTS];
    oari_rank_ring c;

    if (!oari_is_on_rail(l))
        return;
    switch (l->req->kind) {
    case OAR_COLL_ALL_REDUCE: across_all_reduce(l); break;
    case OAR_COLL_REDUCE: across_reduce(l); break;
    case OAR_COLL_REDUCE_SCATTER: across_reduce_scatter(l); break;
    case OAR_COLL_ALL_GATHER: across_all_gather(l); break;
    case OAR_COLL_BROADCAST: across_broadcast(l); break;
    default:
        if (l->local == 0) {
            c = lane_circle(l, 0, rank);
            oari_signal_all(&c, l->plan);
        }
        break;
    }
}

/* ---- all of it ----------------------------------------------------------- */

static void run_kind(oari_levels *l)
{
    int with_root = l->req->root >= 0 && l->host == root_host(l);

    switch (l->req->kind) {
    case OAR_COLL_BROADCAST:
        if (with_root)
            oari_host_broadcast(l);
        across(l);
        if (!with_root)
            oari_host_deliver(l);
        break;
    case OAR_COLL_ALL_GATHER:
        oari_host_gather(l);
        across(l);
        oari_host_deliver(l);
        break;
    case OAR_COLL_REDUCE:
        oari_host_collect(l);
        across(l);
        if (with_root)
            oari_host_deliver(l);
        else if (l->locals > 1 && !l->staged)
            oari_plan_sync(l->plan, 0, 0); /* all inputs are read */
        break;
    default:
        oari_host_collect(l);
        across(l);
        oari_host_deliver(l);
        break;
    }
}

static void barrier(const oari_levels *l)
{
    if (l->locals > 1)
        oari_plan_sync(l->plan, 0, 0);
    across(l);
    if (l->locals > 1)
        oari_plan_sync(l->plan, 0, 0);
}

/* Which buffers of this host's ranks are used in place. */
static int wants_in(const oari_levels *l)
{
    return l->req->kind != OAR_COLL_BROADCAST || l->host == root_host(l);
}

static int wants_out(const oari_levels *l)
{
    int here = l->req->root >= 0 && l->host == root_host(l);

    switch (l->req->kind) {
    case OAR_COLL_BROADCAST: return !here;
    case OAR_COLL_REDUCE: return here;
    default: return 1;
    }
}

static void run_both_ways(oari_levels *l)
{
    const oari_plan_request *a = l->req;
    int rooted = a->kind == OAR_COLL_BROADCAST;
    int local_root = a->root >= 0 && l->host == root_host(l)
                         ? oari_local_of(a, a->root)
                         : -1;
    int in = -1, out = -1;

    if (wants_in(l))
        l->plan->shows |= OARI_SHOWS_IN;
    if (wants_out(l) && (a->kind != OAR_COLL_REDUCE || a->rank == a->root))
        l->plan->shows |= OARI_SHOWS_OUT;
    oari_plan_sync(l->plan, 0, 0);
    if (wants_in(l))
        in = oari_plan_unless_reachable(l->plan, OARI_IN,
                                        rooted ? local_root : -1);
    if (wants_out(l))
        out = oari_plan_unless_reachable(
            l->plan, OARI_OUT, a->kind == OAR_COLL_REDUCE ? local_root : -1);
    run_kind(l);
    oari_plan_end(l->plan);
    if (in >= 0)
        oari_plan_jump_here(l->plan, in);
    if (out >= 0)
        oari_plan_jump_here(l->plan, out);
    l->staged = 1;
    run_kind(l);
}

void oari_plan_two_level(const oari_plan_request *req, oari_plan *plan)
{
    oari_levels l = make_levels(req, plan);

    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    if (req->kind == OAR_COLL_BARRIER)
        barrier(&l);
    else if (l.locals > 1)
        run_both_ways(&l);
    else
        run_kind(&l);
}
