/* SPDX-License-Identifier: Apache-2.0 */
/* round: the program, a few operations at a time.
 *
 * Nothing can deadlock if the library is right: all ranks post in one order, so
 * the earliest operation that is not done has been posted, or is about to be,
 * by all of its ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "soak.h"

enum { TIMES = 3, BATCH = 5, CHANGES = 60 /* rounds between new groups */ };

static const soak_group *pick_group(const soak *k, uint64_t op)
{
    const soak_group *c = &k->slot[draw(k, op, 1) % SOAK_SLOTS];

    return c->exists ? c : &k->slot[0];
}

/* ---- several in flight --------------------------------------------------- */

static oar_status waited(soak *k, soak_op *t, oar_status status)
{
    return status == OAR_OK
               ? OAR_OK
               : op_fail(k, t, "waiting: %s", oar_status_name(status));
}

static oar_status wait_for(soak *k, soak_op *t)
{
    int done = 0;
    oar_status status;

    if (t->work == NULL)
        return OAR_OK;
    if (own_draw(k, t->op, 42) % 2 == 0)
        return waited(k, t, oar_work_wait(t->work));
    for (int i = 0; i < 100; i++)
        if ((status = oar_work_test(t->work, &done)) != OAR_OK || done)
            return waited(k, t, status);
    return waited(k, t, oar_work_wait(t->work));
}

static oar_status wait_any(soak *k, soak_op *t, int n)
{
    oar_work *work[SOAK_FLIGHT];
    oar_status status;
    int index = 0;

    for (int i = 0; i < n; i++)
        work[i] = t[i].work;
    for (;;) {
        status = oar_work_wait_any(n, work, &index);
        if (index < 0)
            return OAR_OK;
        if (status != OAR_OK)
            return waited(k, &t[index], status);
        work[index] = NULL;
    }
}

static oar_status wait_all(soak *k, soak_op *t, int n)
{
    oar_work *work[SOAK_FLIGHT];

    for (int i = 0; i < n; i++)
        work[i] = t[i].work;
    return waited(k, t, oar_work_wait_all(n, work));
}

/* In an order of its own on each rank. */
static oar_status wait_in_some_order(soak *k, soak_op *t, int n)
{
    static const int step[] = { 1, 1, 1, 2, 3, 2, 5 }; /* prime to n */
    int at = (int)(own_draw(k, t->op, 43) % (uint64_t)n);

    for (int i = 0; i < n; i++, at = (at + step[n]) % n)
        if (wait_for(k, &t[at]) != OAR_OK)
            return OAR_E_INTERNAL;
    return OAR_OK;
}

static oar_status wait_for_flight(soak *k, soak_op *t, int n)
{
    switch (own_draw(k, t->op, 44) % 4) {
    case 0: return wait_any(k, t, n);
    case 1: return wait_all(k, t, n);
    default: return wait_in_some_order(k, t, n);
    }
}

static oar_status check_and_drop(soak *k, soak_op *t, int n)
{
    oar_status status = OAR_OK;

    for (int i = 0; i < n; i++) {
        if (status == OAR_OK)
            status = op_check(k, &t[i]);
        if (t[i].kind == K_BROADCAST_BYTES && t[i].given == t[i].in.data)
            t[i].given = NULL; /* was not given */
        op_free(&t[i]);
    }
    return status;
}

static int blocks(const soak *k, const soak_op *t)
{
    return !kind_is_plain(t->kind, 1) && t->kind < K_BROADCAST_BYTES
               ? 1
               : own_draw(k, t->op, 41) % 5 < 2;
}

static oar_status fly(soak *k)
{
    soak_op t[SOAK_FLIGHT];
    uint64_t first = k->op;
    int n = 1 + (int)(draw(k, first, 40) % SOAK_FLIGHT);
    oar_status status = OAR_OK;
    int made = 0;

    while (made < n && status == OAR_OK) {
        soak_op *one = &t[made++];
        uint64_t op = k->op++;
        status = op_make(k, one, pick_group(k, op), op, 0);
        if (status != OAR_OK)
            break;
        op_fill(k, one, op);
        status = op_post(k, one, blocks(k, one) ? NULL : &one->work);
    }
    if (status == OAR_OK)
        status = wait_for_flight(k, t, n);
    if (status != OAR_OK)
        return status; /* buffers may be in use: the process ends */
    return check_and_drop(k, t, n);
}

/* ---- as one -------------------------------------------------------------- */

static oar_status end_batch(soak *k, soak_op *t)
{
    oar_work *work = NULL;
    oar_status status;

    if (own_draw(k, t->op, 45) % 2 == 0)
        return waited(k, t, oar_batch_end(t->c->group, NULL));
    if ((status = oar_batch_end(t->c->group, &work)) == OAR_OK)
        status = oar_work_wait(work);
    oar_work_release(work);
    return waited(k, t, status);
}

static oar_status batch(soak *k)
{
    const soak_group *c = pick_group(k, k->op);
    int n = 1 + (int)(draw(k, k->op, 40) % BATCH);
    soak_op t[BATCH];

    if (c->group != NULL && oar_batch_begin(c->group) != OAR_OK)
        return op_fail(k, NULL, "begin a batch");
    for (int i = 0; i < n; i++) {
        uint64_t op = k->op++;
        if (op_make(k, &t[i], c, op, 1) != OAR_OK)
            return OAR_E_INTERNAL;
        op_fill(k, &t[i], op);
        if (op_post(k, &t[i], NULL) != OAR_OK)
            return OAR_E_INTERNAL;
    }
    if (c->group != NULL && end_batch(k, t) != OAR_OK)
        return OAR_E_INTERNAL;
    return check_and_drop(k, t, n);
}

/* ---- prepared ------------------------------------------------------------ */

static oar_status start_once(soak *k, soak_op *t)
{
    op_fill(k, t, k->op++);
    if (t->work == NULL) /* a message of others, or a group of others */
        return OAR_OK;
    if (waited(k, t, oar_work_start(t->work)) != OAR_OK ||
        waited(k, t, oar_work_wait(t->work)) != OAR_OK)
        return OAR_E_INTERNAL;
    return op_check(k, t);
}

static oar_status prepare(soak *k, soak_op *t, const soak_group *c)
{
    if (op_make(k, t, c, k->op, 2) != OAR_OK)
        return OAR_E_INTERNAL;
    if (t->kind == K_MESSAGE && t->root == t->to)
        return OAR_OK; /* to oneself is two operations */
    t->opts.prepare = 1;
    return op_post(k, t, &t->work);
}

static oar_status prepared(soak *k)
{
    const soak_group *c = pick_group(k, k->op);
    soak_op t;

    if (prepare(k, &t, c) != OAR_OK)
        return OAR_E_INTERNAL;
    for (int i = 0; i < TIMES; i++)
        if (start_once(k, &t) != OAR_OK)
            return OAR_E_INTERNAL;
    op_free(&t);
    return OAR_OK;
}

/* One that stays with its group, in memory of its own. */
static oar_status make_kept(soak *k, soak_group *c)
{
    oar_status status;

    if ((c->kept = calloc(1, sizeof *c->kept)) == NULL)
        return OAR_E_NOMEM;
    k->used[0] = k->used[1] = SOAK_ARENA;
    status = prepare(k, c->kept, c);
    return status;
}

static oar_status kept(soak *k)
{
    soak_group *c = &k->slot[draw(k, k->op, 1) % SOAK_SLOTS];

    if (!c->exists)
        c = &k->slot[0];
    if (c->kept == NULL && make_kept(k, c) != OAR_OK)
        return OAR_E_INTERNAL;
    return start_once(k, c->kept);
}

/* ---- the whole ----------------------------------------------------------- */

static oar_status play_round(soak *k, uint64_t round)
{
    k->used[0] = k->used[1] = 0;
    if (round % CHANGES == 1 || round < SOAK_SLOTS)
        if (group_change(k) != OAR_OK)
            return OAR_E_INTERNAL;
    switch (draw(k, k->op, 0) % 10) {
    case 0: return batch(k);
    case 1: return prepared(k);
    case 2: return kept(k);
    default: return fly(k);
    }
}

/* What is held when only the world is left. As threads, one rank measures for
 * all. */
static oar_status measure(soak *k, soak_resources *h)
{
    int is_one = strcmp(k->s->backend, "sim") != 0 || k->rank == 0;

    group_close_all(k);
    for (int i = 0; i < 2; i++) {
        if (oar_barrier(k->slot[0].group, NULL, NULL) != OAR_OK)
            return op_fail(k, NULL, "barrier to measure");
        if (i == 0 && is_one)
            *h = resources_read();
    }
    return OAR_OK;
}

static void say_progress(const soak *k, const soak_resources *h)
{
    static struct timespec began;
    struct timespec now;

    if (k->rank != 0 || k->s->quiet)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (began.tv_sec == 0)
        began = now;
    printf("soak: %9llu operations  +%5llds  rss %.1f MiB (%.1f shared), "
           "%lld descriptors, "
           "%lld mappings, %lld allocations of %.1f KiB\n",
           (unsigned long long)k->op, (long long)(now.tv_sec - began.tv_sec),
           (double)h->rss / 1048576, (double)h->shared / 1048576,
           (long long)h->descriptors, (long long)h->mappings,
           (long long)h->allocations, (double)h->allocated_bytes / 1024);
    fflush(stdout);
}

static oar_status check_resources(const soak *k)
{
    soak_page *l = k->s->ledger;
    char text[200];

    if (strcmp(k->s->backend, "sim") == 0 && k->rank != 0)
        return OAR_OK;
    if (resources_are_flat(&l->warm[k->rank], &l->end[k->rank], text,
                           sizeof text))
        return OAR_OK;
    return op_fail(k, NULL, "not flat: %s", text);
}

/* When what is held later is compared with what is held now: a fifth of the
 * way, or halfway if that is too early for every buffer to have been as large
 * as it gets. */
static uint64_t warm_part(const soak_settings *s)
{
    return s->ops < 200000 ? SOAK_PARTS / 2 : SOAK_PARTS / 5;
}

static oar_status play(soak *k)
{
    soak_page *l = k->s->ledger;
    uint64_t round = 0;

    for (uint64_t i = 1; i <= SOAK_PARTS; i++) {
        soak_resources *h = &l->end[k->rank];
        while (k->op < k->s->ops * i / SOAK_PARTS)
            if (play_round(k, round++) != OAR_OK)
                return OAR_E_INTERNAL;
        if (measure(k, h) != OAR_OK)
            return OAR_E_INTERNAL;
        say_progress(k, h);
        if (i == warm_part(k->s))
            l->warm[k->rank] = *h;
    }
    return check_resources(k);
}

oar_status soak_rank(oar_group *world, void *arg)
{
    soak k = { .s = arg, .rank = oar_group_rank(world) };
    void *shared;
    oar_status status;

    group_open_world(&k, world);
    if ((status = oar_shared_alloc(SOAK_ARENA, &shared)) != OAR_OK)
        return status;
    k.arena[0] = shared;
    if ((k.arena[1] = malloc(SOAK_ARENA)) != NULL) {
        memset(k.arena[0], 1, SOAK_ARENA); /* resident from the beginning */
        memset(k.arena[1], 1, SOAK_ARENA);
        status = play(&k);
    } else
        status = OAR_E_NOMEM;
    free(k.arena[1]);
    oar_shared_free(shared);
    return status;
}
