/* SPDX-License-Identifier: Apache-2.0 */
/* shrink: makes a new group of the ranks that are left of one. They agree on
 * the members in membership.c; here the group itself is made, through a store
 * that the lowest of them serves: the store of the old group may have died with
 * the process that served it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "comm/group/membership.h"
#include "store/store.h"
#include "net/sock.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/engine/engine.h"
#include "comm/fault/fault.h"
#include "comm/group/group.h"

enum { DEFAULT_TIMEOUT_MS = 30000 };

/* ---- the store ----------------------------------------------------------- */

static int on_one_host(const oar_group *g)
{
    const int *host =
        g->in_tree->hosts != NULL ? g->in_tree->hosts(g->self) : NULL;

    for (int r = 0; host != NULL && r < g->ranks; r++)
        if (host[r] != host[0])
            return 0;
    return 1;
}

/* Serves a store, where ranks on other hosts can reach it if there are any. */
static oar_status serve_store(oari_membership *c, oar_store_server **server)
{
    char at[OARI_SOCK_TEXT] = "127.0.0.1:0";
    const char *address;

    if (!on_one_host(c->group))
        OARI_TRY(oari_sock_local(oari_store_address(c->group->store), at));
    OARI_TRY(oar_store_serve(at, server));
    address = oar_store_server_address(*server);
    if (strlen(address) >= sizeof c->mine.address)
        return oari_fail(OAR_E_INTERNAL, "an address of %zu bytes",
                         strlen(address));
    memset(c->mine.address, 0, sizeof c->mine.address);
    memcpy(c->mine.address, address, strlen(address));
    return OAR_OK;
}

static oar_status open_store(oari_membership *c, int64_t limit_ms,
                             oar_store **store)
{
    int lowest = oari_membership_lowest(c);
    oar_store_server *server = NULL;
    char address[sizeof c->mine.address];
    oar_status status = OAR_OK;

    if (lowest == c->group->rank)
        status = serve_store(c, &server);
    memcpy(address, server != NULL ? c->mine.address : c->heard[lowest].address,
           sizeof address);
    address[sizeof address - 1] = 0;
    if (status == OAR_OK)
        status = oar_store_create_tcp(address, limit_ms, store);
    if (status != OAR_OK) {
        oar_store_server_destroy(server);
        return status;
    }
    oari_store_take_server(*store, server);
    return OAR_OK;
}

/* ---- the group ----------------------------------------------------------- */

oar_status oari_membership_form(oari_membership *c)
{
    oar_group *g = c->group;
    int threads = g->shm != NULL && g->shm->world != NULL;
    int *member = oari_alloc((size_t)g->ranks, sizeof *member);
    oari_child_spec spec = { .member = member };
    oar_status status = OAR_OK;
    char own[40];

    if (member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < g->ranks; r++)
        if (!oari_ranks_has(&c->mine.out, r))
            member[spec.count++] = r;
    snprintf(own, sizeof own, "x%" PRIu32 "r%" PRIu32, c->mine.call,
             c->mine.round);
    spec.own = own;
    spec.rendezvous_ms = c->timeout_ms > 0 ? (c->timeout_ms + 1) / 2 : -1;
    if (spec.count > 1 && !threads)
        status = open_store(c, spec.rendezvous_ms, &spec.store);
    if (status == OAR_OK && member[0] == g->rank)
        oari_membership_show(c, OARI_PHASE_FORM);
    if (status == OAR_OK)
        status = oari_group_child(g, &spec, &c->child);
    oar_store_destroy(spec.store);
    oari_free(member);
    return status;
}

/* ---- the call ------------------------------------------------------------ */

static oar_status check_group(oar_group *g)
{
    OARI_TRY(oari_group_owned(g));
    if (oari_batching(g))
        return oari_fail(OAR_E_STATE,
                         "group_shrink of \"%s\" while a batch is open",
                         g->name);
    if (g->ranks > 1 && g->shm == NULL && g->in_tree->show == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "backend \"%s\" has no links that outlive a fault, "
                         "which group_shrink needs",
                         g->backend->name);
    return OAR_OK;
}

/* Breaks the old group, so that ranks that were left out do not go on in it. */
static void end_parent(oar_group *g, const oari_ranks *out)
{
    int rank = 0;

    while (rank < g->ranks && !oari_ranks_has(out, rank))
        rank++;
    if (rank == g->ranks || oari_group_broken(g))
        return;
    oari_engine_hold(g);
    oari_fail(OAR_E_PEER, "rank %d was left out when group \"%s\" was shrunk",
              rank, g->name);
    oari_group_break(g, NULL, rank);
    oari_engine_let_go(g);
    oari_engine_nudge(g);
}

oar_status oar_group_shrink(oar_group *group, const oar_shrink_opts *opts,
                            oar_group **new_group)
{
    const char *rule = oari_env_text("OARSONG_SHRINK");
    oari_membership c = { .group = group };
    oar_shrink_opts o;
    oar_status status;

    if (group == NULL || new_group == NULL)
        return oari_fail(OAR_E_ARG, "group_shrink without a %s",
                         group == NULL ? "group" : "place for the new one");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (group->loose)
        return oari_fail_loose(group, "group_shrink");
    OARI_TRY(check_group(group));
    if (rule != NULL && strcasecmp(rule, "majority") != 0 &&
        strcasecmp(rule, "any") != 0)
        return oari_fail(OAR_E_ARG, "OARSONG_SHRINK=%s: any or majority", rule);
    c.any = rule != NULL && strcasecmp(rule, "any") == 0 ? 1 : o.any;
    c.timeout_ms = o.timeout_ms != 0 ? o.timeout_ms : DEFAULT_TIMEOUT_MS;
    c.heard = oari_alloc((size_t)group->ranks, sizeof *c.heard);
    if (c.heard == NULL)
        return OAR_E_NOMEM;
    c.mine.call = ++group->shrinks;
    c.mine.before = group->shrunk;
    status = oari_membership_agree(&c);
    group->shrunk = status == OAR_OK ? oari_ballot_hash(&c.mine) : 0;
    if (status == OAR_OK) {
        end_parent(group, &c.mine.out);
        *new_group = c.child;
    }
    oari_free(c.heard);
    return status;
}
