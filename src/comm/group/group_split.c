/* SPDX-License-Identifier: Apache-2.0 */
/* group_split: groups made of a group's ranks.
 *
 * A child is opened like any other group, through the store its parent came
 * from (ranks as threads: through the parent's world), under a name that all
 * its ranks derive alike. So its traffic is its own from the first byte, and
 * the parent may be destroyed before it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/call_site.h"
#include "base/status.h"
#include "comm/fault/siblings.h"
#include "comm/group/group.h"
#include "link/shm/inproc.h"
#include "comm/fault/open_failure.h"
#include "comm/fault/presence.h"
#include "backends/registry/registry.h"
#include "store/store.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/fault/alone.h"
#include "comm/fault/fault.h"

/* ---- which ranks --------------------------------------------------------- */

typedef struct claim {
    int32_t colour, key, rank;
} claim;

static int by_key(const void *a, const void *b)
{
    const claim *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Gathers the claims of all ranks, and keeps those of this rank's colour. */
static oar_status gather_claims(oar_group *parent, claim mine, claim *all,
                                int *count)
{
    oar_call_opts opts = { .size = sizeof opts, .label = "group_split" };
    oar_span in = { .data = &mine, .count = 3, .dtype = OAR_I32 };
    oar_span out = { .data = all,
                     .count = 3 * (size_t)parent->ranks,
                     .dtype = OAR_I32 };
    int found = 0;

    OARI_TRY(oar_all_gather(parent, in, out, &opts, NULL));
    for (int r = 0; r < parent->ranks; r++)
        if (all[r].colour == mine.colour)
            all[found++] = all[r];
    qsort(all, (size_t)found, sizeof *all, by_key);
    *count = found;
    return OAR_OK;
}

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return x < y ? -1 : x > y;
}

/* ---- names --------------------------------------------------------------- */

/* Hashes a list of ranks. No two lists of one program may collide: a group is
 * known by the hash of its list. */
static uint64_t hash_ranks(const int *rank, int count)
{
    uint64_t hash = (uint64_t)count;

    for (int i = 0; i < count; i++) {
        hash += ((uint64_t)rank[i] + 1) * 0x9e3779b97f4a7c15u;
        hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
        hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
        hash ^= hash >> 31;
    }
    return hash;
}

/* Counts how often this list has been asked for on this group. All ranks of the
 * list count alike, and no other rank needs to. */
static oar_status count_subset(oar_group *parent, uint64_t hash,
                               uint64_t *number)
{
    oari_subset *s = parent->subsets;

    while (s != NULL && s->hash != hash)
        s = s->next;
    if (s == NULL) {
        if ((s = oari_alloc(1, sizeof *s)) == NULL)
            return OAR_E_NOMEM;
        s->hash = hash;
        s->next = parent->subsets;
        parent->subsets = s;
    }
    *number = ++s->made;
    return OAR_OK;
}

/* ---- making -------------------------------------------------------------- */

static int find_rank(const int *rank, int count, int wanted)
{
    for (int i = 0; i < count; i++)
        if (rank[i] == wanted)
            return i;
    return -1;
}

static oar_status open_sim(oar_group *parent, const oar_backend_env *env,
                           const oar_group_opts *o, int64_t rendezvous_ms,
                           int bare, oar_group **child)
{
    int64_t deadline = oari_deadline(rendezvous_ms);
    oari_world *world;
    oar_status status;

    OARI_TRY(oari_world_child(parent->shm->world, o->name, env->ranks,
                              o->small_bytes, o->stage_bytes, &world));
    status =
        oari_group_open(&(oari_choice){ .host = parent->backend, .bare = bare },
                        env, o, rendezvous_ms, world, child);
    if (status == OAR_OK)
        status = oari_world_wait(world, deadline);
    oari_world_release(world);
    return status;
}

enum { HOLD_MS = 20 }; /* to wait for the parent's token, at each look */

/* What a rank checks while the members of a child meet. */
typedef struct gathering {
    oar_group *parent;
    const oari_child_spec *spec;
    const char *name;
    const oar_backend_env *env;
} gathering;

/* Fails if a member is gone. While another thread of the user's waits in the
 * parent, its links cannot be asked. Not every member has a link to the one
 * that is gone: those that have leave a report in the store. */
static oar_status check_members(void *arg)
{
    const gathering *m = arg;
    oar_group *parent = m->parent;
    oar_error said;
    char who[400];
    int gone = 0, lost = 0;

    if (oari_group_broken(parent))
        return OAR_OK;
    if (oari_engine_hold_by(parent, oari_deadline(HOLD_MS))) {
        for (int i = 0; i < m->spec->count && !gone; i++)
            gone = oari_group_gone(parent, m->spec->member[lost = i]);
        if (gone)
            oari_presence_text(parent, m->spec->member[lost], who, sizeof who);
        oari_engine_let_go(parent);
    }
    if (gone)
        return oari_about(
            lost, oari_fail(OAR_E_PEER, "%s %s and does not join group \"%s\"",
                            who, oari_presence_end(gone), m->name));
    if (oari_open_failure_find(m->env->store, m->name, m->env->rank,
                               m->env->ranks, -1, &said))
        return oari_fail_with(&said);
    return OAR_OK;
}

static oar_status open_child(oar_group *parent, const oari_child_spec *spec,
                             const char *name, oar_group **child)
{
    oar_backend_env env = { .size = sizeof env,
                            .rank = find_rank(spec->member, spec->count,
                                              parent->rank),
                            .ranks = spec->count };
    oar_group_opts o = parent->settings;
    oar_device device = { OAR_CUDA, parent->device };
    oari_choice choice = { .name = parent->backend_name,
                           .host = oari_group_asked(parent),
                           .gpu = spec->bare ? NULL : parent->gpu.ops,
                           .bare = spec->bare,
                           .split = spec->split };
    oar_status status;

    o.name = name;
    if (spec->timeout_ms != 0)
        o.timeout_ms = spec->timeout_ms;
    if (spec->stall_ms != 0)
        o.stall_ms = spec->stall_ms;
    if (choice.gpu != NULL)
        o.device = &device;
    if (spec->count == 1)
        OARI_TRY(oari_backend_find("self", 1, &choice.host));
    else if (parent->shm != NULL && parent->shm->world != NULL)
        return open_sim(parent, &env, &o, spec->rendezvous_ms, spec->bare,
                        child);
    env.store = spec->store != NULL ? spec->store : parent->store;
    oari_store_set_wait_check(check_members,
                              &(gathering){ parent, spec, name, &env });
    status =
        oari_group_open(&choice, &env, &o, spec->rendezvous_ms, NULL, child);
    oari_store_set_wait_check(NULL, NULL);
    return status;
}

oar_status oari_group_child(oar_group *parent, const oari_child_spec *spec,
                            oar_group **group)
{
    oar_group *child = NULL;
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    char name[256];
    oar_status status;
    int bytes;

    /* A parent's name that is too long is replaced by a hash. */
    bytes = snprintf(name, sizeof name, "%s.%s", parent->name, spec->own);
    if (bytes < 0 || (size_t)bytes >= sizeof name || bytes > OARI_NAME_MAX) {
        for (const char *c = parent->name; *c != 0; c++)
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        snprintf(name, sizeof name, "%.60s~%016" PRIx64 ".%s", parent->name,
                 hash, spec->own);
    }
    status = open_child(parent, spec, name, &child);
    if (status == OAR_OK)
        status = oari_group_place(child, parent, spec->member);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        oar_group_destroy(child);
        return oari_fail_with(&why);
    }
    status = oari_group_complete(child, &child);
    if (status == OAR_OK && spec->loose &&
        (status = oari_group_loosen(child)) != OAR_OK)
        oar_group_destroy(child);
    if (status == OAR_OK)
        *group = child;
    return status;
}

/* Makes the group of the claims of one colour. An engine for GPUs has a split
 * of its own, in which all ranks take part; the child takes what it makes. */
static oar_status split_by_claims(oar_group *parent, const claim *mine,
                                  const claim *all, int count,
                                  const oar_dup_opts *opts, oar_group **group)
{
    const oar_backend_ops *gpu = parent->gpu.ops;
    oar_status status = OAR_OK;
    void *made = NULL;
    char own[64];
    int *member;

    parent->splits++;
    if (gpu != NULL && gpu->split != NULL) {
        oari_engine_hold(parent);
        status = gpu->split(parent->gpu.self, mine->colour, mine->key, &made);
        oari_engine_let_go(parent);
    }
    if (status != OAR_OK)
        return status;
    if (mine->colour < 0) {
        *group = NULL;
        return OAR_OK;
    }
    member = oari_alloc((size_t)count, sizeof *member);
    for (int i = 0; member != NULL && i < count; i++)
        member[i] = all[i].rank;
    if (opts->name != NULL)
        snprintf(own, sizeof own, "%s.%" PRIu64, opts->name, parent->splits);
    else
        snprintf(own, sizeof own, "%" PRIu64 "c%d", parent->splits,
                 mine->colour);
    status = member == NULL
                 ? OAR_E_NOMEM
                 : oari_group_child(
                       parent,
                       &(oari_child_spec){ .own = own,
                                           .member = member,
                                           .count = count,
                                           .split = &made,
                                           .bare = opts->loose,
                                           .loose = opts->loose,
                                           .rendezvous_ms = parent->timeout_ms,
                                           .timeout_ms = opts->timeout_ms,
                                           .stall_ms = opts->stall_ms },
                       group);
    if (status == OAR_OK)
        (*group)->patient = opts->patient;
    oari_free(member);
    if (made != NULL)
        gpu->drop(made);
    return status;
}

static oar_status split_group(const char *call, oar_group *parent, int colour,
                              int key, const oar_dup_opts *opts,
                              oar_group **group)
{
    claim mine = { colour < 0 ? -1 : colour, key, 0 }, *all;
    oar_status status;
    int count = 0;

    if (parent == NULL || group == NULL)
        return oari_fail(OAR_E_ARG, "%s without a %s", call,
                         parent == NULL ? "group" : "place for the new one");
    if (parent->loose)
        return oari_fail_loose(parent, call);
    if (oari_batching(parent))
        return oari_fail(OAR_E_STATE,
                         "%s of \"%s\" cannot be put off: a batch is open",
                         call, parent->name);
    mine.rank = parent->rank;
    if ((all = oari_alloc((size_t)parent->ranks, sizeof *all)) == NULL)
        return OAR_E_NOMEM;
    status = gather_claims(parent, mine, all, &count);
    if (status == OAR_OK)
        status = split_by_claims(parent, &mine, all, count, opts, group);
    oari_free(all);
    return status;
}

oar_status oar_group_split_at(const char *file, int line, oar_group *parent,
                              int colour, int key, oar_group **group)
{
    OARI_CALLED_FROM(file, line);
    return split_group("group_split", parent, colour, key, &(oar_dup_opts){ 0 },
                       group);
}

oar_status oar_group_dup_at(const char *file, int line, oar_group *parent,
                            oar_group **group)
{
    OARI_CALLED_FROM(file, line);
    return split_group("group_dup", parent, 0, 0, &(oar_dup_opts){ 0 }, group);
}

oar_status oar_group_dup_with_at(const char *file, int line, oar_group *parent,
                                 const oar_dup_opts *opts, oar_group **group)
{
    OARI_CALLED_FROM(file, line);
    oar_dup_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (o.name != NULL && (o.name[0] == '\0' || strlen(o.name) > 40))
        return oari_fail(OAR_E_ARG,
                         "group_dup_with: a name of %zu bytes; 1 to 40 are "
                         "allowed",
                         strlen(o.name));
    return split_group("group_dup_with", parent, 0, 0, &o, group);
}

/* Makes a group of the ranks in a list, which is sorted here and rid of ranks
 * that occur twice. */
static oar_status make_subset(oar_group *parent, int *rank, int count,
                              oar_group **group)
{
    uint64_t hash, number;
    char own[64];
    int kept = 0;

    OARI_TRY(oari_group_check(parent));
    if (count == 0)
        return oari_fail(OAR_E_WORLD, "impossible world size: a group of no "
                                      "ranks");
    for (int i = 0; i < count; i++)
        if (rank[i] < 0 || rank[i] >= parent->ranks)
            return oari_fail(OAR_E_RANK, "rank %d in a group of %d", rank[i],
                             parent->ranks);
    if (parent->loose)
        return oari_fail_loose(parent, "group_subset");
    if (find_rank(rank, count, parent->rank) < 0)
        return oari_fail(OAR_E_RANK,
                         "rank %d asks for a group of %d ranks that it is not "
                         "one of",
                         parent->rank, count);
    qsort(rank, (size_t)count, sizeof *rank, by_number);
    for (int i = 0; i < count; i++)
        if (kept == 0 || rank[kept - 1] != rank[i])
            rank[kept++] = rank[i];
    hash = hash_ranks(rank, kept);
    OARI_TRY(count_subset(parent, hash, &number));
    snprintf(own, sizeof own, "s%016" PRIx64 "n%" PRIu64, hash, number);
    return oari_group_child(
        parent,
        &(oari_child_spec){ .own = own,
                            .member = rank,
                            .count = kept,
                            .rendezvous_ms = parent->timeout_ms },
        group);
}

oar_status oar_group_subset(oar_group *parent, int count, const int *ranks,
                            oar_group **group)
{
    oar_status status;
    int *copy;

    if (parent == NULL || group == NULL || count < 0 ||
        (count > 0 && ranks == NULL))
        return oari_fail(OAR_E_ARG, "group_subset without a group, a list or a "
                                    "place for the new one");
    if ((copy = oari_alloc((size_t)count + 1, sizeof *copy)) == NULL)
        return OAR_E_NOMEM;
    if (count != 0)
        memcpy(copy, ranks, (size_t)count * sizeof *copy);
    status = make_subset(parent, copy, count, group);
    oari_free(copy);
    return status;
}

/* ---- world ranks --------------------------------------------------------- */

oar_status oari_group_place(oar_group *child, const oar_group *parent,
                            const int *member)
{
    int *there = oari_alloc((size_t)child->ranks, sizeof *there);

    if (there == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < child->ranks; r++)
        there[r] = oar_group_to_world(parent, member[r]);
    child->in_world = there;
    oari_siblings_move(child, parent);
    oari_recorder_place(child->recorder, there, child->ranks);
    return OAR_OK;
}

int oar_group_to_world(const oar_group *group, int rank)
{
    if (group == NULL || rank < 0 || rank >= group->ranks)
        return -1;
    return group->in_world != NULL ? group->in_world[rank] : rank;
}

int oar_group_from_world(const oar_group *group, int rank)
{
    if (group == NULL || rank < 0)
        return -1;
    if (group->in_world == NULL)
        return rank < group->ranks ? rank : -1;
    return find_rank(group->in_world, group->ranks, rank);
}

int oar_group_translate(const oar_group *from, int rank, const oar_group *to)
{
    if (from == NULL || to == NULL || from->world_key != to->world_key)
        return -1;
    return oar_group_from_world(to, oar_group_to_world(from, rank));
}
