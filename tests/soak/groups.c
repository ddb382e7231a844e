/* SPDX-License-Identifier: Apache-2.0 */
/* groups: makes and destroys groups. Their members are computed here and
 * compared with what the library says. */
#include <stdlib.h>
#include <string.h>

#include "soak.h"

enum { DUP, SPLIT, SUBSET, WAYS };

oar_status group_open_world(soak *k, oar_group *world)
{
    soak_group *c = &k->slot[0];

    *c = (soak_group){ .exists = 1,
                       .group = world,
                       .size = oar_group_size(world),
                       .rank = oar_group_rank(world) };
    for (int r = 0; r < c->size; r++)
        c->world[r] = r;
    return OAR_OK;
}

/* ---- members ------------------------------------------------------------- */

typedef struct member {
    int key, old, world;
} member;

static int by_key(const void *a, const void *b)
{
    const member *x = a, *y = b;

    return x->key != y->key ? (x->key > y->key) - (x->key < y->key)
                            : x->old - y->old;
}

static int colour_of(const soak *k, int world)
{
    int colours = 1 + (int)(draw(k, k->op, 31) % 3);
    int colour = (int)(mix(draw(k, k->op, 32), (uint64_t)world) % 8);

    return colour == 7 ? -1 : colour % colours;
}

static int key_of(const soak *k, int world)
{
    return (int)(mix(draw(k, k->op, 33), (uint64_t)world) % 4) - 1;
}

static int is_chosen(const soak *k, int world)
{
    return mix(draw(k, k->op, 34), (uint64_t)world) % 3 != 0;
}

/* Those of the parent that will be in a group with this rank. */
static void find_members(const soak *k, const soak_group *parent, int way,
                         soak_group *c)
{
    member m[SOAK_RANKS];
    int n = 0;

    for (int r = 0; r < parent->size; r++) {
        int world = parent->world[r];
        if (way == SPLIT && colour_of(k, world) != colour_of(k, k->rank))
            continue;
        if (way == SUBSET && !is_chosen(k, world))
            continue;
        m[n++] = (member){ way == SPLIT ? key_of(k, world) : 0, r, world };
    }
    qsort(m, (size_t)n, sizeof *m, by_key);
    c->size = n;
    c->rank = -1;
    for (int r = 0; r < n; r++) {
        c->world[r] = m[r].world;
        if (m[r].world == k->rank)
            c->rank = r;
    }
}

static int is_as_computed(const soak_group *c)
{
    if (oar_group_size(c->group) != c->size ||
        oar_group_rank(c->group) != c->rank)
        return 0;
    for (int r = 0; r < c->size; r++)
        if (oar_group_to_world(c->group, r) != c->world[r] ||
            oar_group_from_world(c->group, c->world[r]) != r)
            return 0;
    return 1;
}

/* ---- making and destroying ----------------------------------------------- */

static oar_status make_subset(const soak *k, const soak_group *parent,
                              soak_group *c)
{
    int ranks[SOAK_RANKS], n = 0;

    if (!is_chosen(k, k->rank))
        return OAR_OK;
    for (int r = parent->size - 1; r >= 0; r--) /* any order will do */
        if (is_chosen(k, parent->world[r]))
            ranks[n++] = r;
    return oar_group_subset(parent->group, n, ranks, &c->group);
}

static oar_status make(const soak *k, const soak_group *parent, int way,
                       soak_group *c)
{
    if (way == DUP)
        return oar_group_dup(parent->group, &c->group);
    if (way == SUBSET)
        return make_subset(k, parent, c);
    return oar_group_split(parent->group, colour_of(k, k->rank),
                           key_of(k, k->rank), &c->group);
}

static void drop(soak_group *c)
{
    if (c->kept != NULL)
        op_free(c->kept);
    free(c->kept);
    oar_group_destroy(c->group);
    *c = (soak_group){ 0 };
}

/* Half of the time no rank waits for the others before it destroys a group. */
static oar_status end(soak *k, soak_group *c)
{
    if (c->group != NULL && draw(k, k->op, 36) % 2 == 0 &&
        oar_barrier(c->group, NULL, NULL) != OAR_OK)
        return op_fail(k, NULL, "barrier before the end of a group");
    drop(c);
    return OAR_OK;
}

oar_status group_change(soak *k)
{
    soak_group *c = &k->slot[1 + draw(k, k->op, 30) % (SOAK_SLOTS - 1)];
    const soak_group *parent = &k->slot[draw(k, k->op, 35) % SOAK_SLOTS];
    int way = (int)(draw(k, k->op, 37) % WAYS);

    if (end(k, c) != OAR_OK)
        return OAR_E_INTERNAL;
    if (!parent->exists) /* it may have been c itself */
        parent = &k->slot[0];
    c->exists = 1;
    if (k->rank == 0)
        atomic_fetch_add(&k->s->ledger->groups, 1);
    if (parent->group == NULL)
        return OAR_OK;
    if (make(k, parent, way, c) != OAR_OK)
        return op_fail(k, NULL, "make a group");
    if (c->group == NULL)
        return OAR_OK;
    find_members(k, parent, way, c);
    return is_as_computed(c) ? OAR_OK
                             : op_fail(k, NULL, "ranks of a new group");
}

oar_status group_close_all(soak *k)
{
    for (int i = SOAK_SLOTS - 1; i > 0; i--)
        drop(&k->slot[i]);
    if (k->slot[0].kept != NULL)
        op_free(k->slot[0].kept);
    free(k->slot[0].kept);
    k->slot[0].kept = NULL;
    return OAR_OK;
}
