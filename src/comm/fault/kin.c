/* SPDX-License-Identifier: Apache-2.0 */
/* kin: see kin.h. One list for the process, under one lock, which is held while
 * others are driven: they are only driven where nobody else does, and nobody
 * who drives waits for this lock. */
#include "comm/fault/kin.h"

#include <stdio.h>
#include <string.h>

#include "base/fork.h"
#include "record/account.h"
#include "comm/engine/engine.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static oar_group *first;
static unsigned generation;
static _Thread_local int looking; /* this thread holds the lock */

/* A child has none of its parent's groups, and the lock may have been held by
 * a thread it does not have. */
static void take_lock(void)
{
    if (generation != oari_fork_generation()) {
        generation = oari_fork_generation();
        pthread_mutex_init(&lock, NULL);
        first = NULL;
    }
    pthread_mutex_lock(&lock);
}

void oari_kin_join(oar_group *group)
{
    take_lock();
    group->kin = first;
    group->has_kin = 1;
    first = group;
    pthread_mutex_unlock(&lock);
}

void oari_kin_move(oar_group *group, const oar_group *parent)
{
    take_lock();
    group->world_key = parent->world_key;
    pthread_mutex_unlock(&lock);
}

void oari_kin_leave(oar_group *group)
{
    oar_group **at = &first;

    if (!group->has_kin)
        return;
    take_lock();
    while (*at != NULL && *at != group)
        at = &(*at)->kin;
    if (*at != NULL)
        *at = group->kin;
    group->has_kin = 0;
    pthread_mutex_unlock(&lock);
}

int oari_kin_look(const oar_group *group)
{
    int others = 0;

    if (looking || generation != oari_fork_generation() ||
        pthread_mutex_trylock(&lock) != 0)
        return 0;
    looking = 1;
    for (oar_group *g = first; g != NULL; g = g->kin)
        if (g != group && g->world_key == group->world_key) {
            oari_engine_nudge(g);
            others++;
        }
    looking = 0;
    pthread_mutex_unlock(&lock);
    return others;
}

/* The newest record of all; in which group it is. */
static const oar_group *find_last(const oar_group *group, oar_record *newest)
{
    const oar_group *where = NULL;
    oar_record r;

    for (const oar_group *g = first; g != NULL; g = g->kin)
        if (g->world_key == group->world_key &&
            oari_recorder_newest(oari_recorder_base(g->recorder), 0, &r) ==
                OAR_OK &&
            (where == NULL || r.posted_ns > newest->posted_ns)) {
            *newest = r;
            where = g;
        }
    return where;
}

int oari_kin_last(const oar_group *group, char *text, size_t bytes)
{
    const oar_group *where;
    oar_record r;
    size_t used;

    if (!looking)
        take_lock();
    text[0] = 0;
    where = find_last(group, &r);
    if (where != NULL)
        oari_record_text(&r, text, bytes);
    used = strlen(text);
    if (where != NULL && where != group)
        snprintf(text + used, bytes - used, " on group \"%s\"", where->name);
    if (!looking)
        pthread_mutex_unlock(&lock);
    return where != NULL && where != group;
}
