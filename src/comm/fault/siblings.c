/* SPDX-License-Identifier: Apache-2.0 */
/* siblings: see siblings.h. The process has one list under one lock, which is
 * held while siblings are driven. That cannot deadlock: a group is only driven
 * where no other thread drives it, and a thread that drives never waits for
 * this lock.
 */
#include "comm/fault/siblings.h"

#include <stdio.h>
#include <string.h>

#include "base/fork.h"
#include "record/op_report.h"
#include "comm/engine/engine.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static oar_group *first;
static unsigned generation;
static _Thread_local int looking; /* this thread holds the lock */

/* A child process has none of its parent's groups, and a thread that does not
 * exist in the child may have held the lock. */
static void take_lock(void)
{
    if (generation != oari_fork_generation()) {
        generation = oari_fork_generation();
        pthread_mutex_init(&lock, NULL);
        first = NULL;
    }
    pthread_mutex_lock(&lock);
}

void oari_siblings_join(oar_group *group)
{
    take_lock();
    group->next_sibling = first;
    group->sibling_link = &first;
    group->has_siblings = 1;
    if (first != NULL)
        first->sibling_link = &group->next_sibling;
    first = group;
    pthread_mutex_unlock(&lock);
}

void oari_siblings_move(oar_group *group, const oar_group *parent)
{
    take_lock();
    group->world_key = parent->world_key;
    pthread_mutex_unlock(&lock);
}

void oari_siblings_leave(oar_group *group)
{
    oar_group *next;

    if (!group->has_siblings)
        return;
    take_lock();
    next = group->next_sibling;
    *group->sibling_link = next;
    if (next != NULL)
        next->sibling_link = group->sibling_link;
    group->has_siblings = 0;
    pthread_mutex_unlock(&lock);
}

int oari_siblings_drive(const oar_group *group)
{
    int others = 0;

    if (looking || generation != oari_fork_generation() ||
        pthread_mutex_trylock(&lock) != 0)
        return 0;
    looking = 1;
    for (oar_group *g = first; g != NULL; g = g->next_sibling)
        if (g != group && g->world_key == group->world_key) {
            oari_engine_nudge(g);
            others++;
        }
    looking = 0;
    pthread_mutex_unlock(&lock);
    return others;
}

int oari_siblings_last(const oar_group *group, char *text, size_t bytes)
{
    const oar_group *where = NULL;
    oar_record r, newest;
    size_t used;

    if (!looking)
        take_lock();
    for (const oar_group *g = first; g != NULL; g = g->next_sibling)
        if (g->world_key == group->world_key &&
            oari_recorder_newest(oari_recorder_base(g->recorder), 0, &r) ==
                OAR_OK &&
            (where == NULL || r.posted_ns > newest.posted_ns)) {
            newest = r;
            where = g;
        }
    text[0] = 0;
    if (where != NULL)
        oari_record_text(&newest, text, bytes);
    used = strlen(text);
    if (where != NULL && where != group)
        snprintf(text + used, bytes - used, " on group \"%s\"", where->name);
    if (!looking)
        pthread_mutex_unlock(&lock);
    return where != NULL && where != group;
}
