/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: how long calls take. Bucket 4 o + q has the times from (4 + q) 2^(o + 4)
 * nanoseconds on, except that the first has all that are shorter: 64 ns to 4.6
 * minutes. */
#include "parallel/rpc/rpc_times.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/rpc/rpc_agent.h"

enum { FIRST_SHIFT = 4, QUARTERS = 4, MOST_NAMES = 1024 };

static int bucket_of(int64_t ns)
{
    uint64_t scaled = ns > 0 ? (uint64_t)ns >> FIRST_SHIFT : 0;
    int octave = 0;

    if (scaled < QUARTERS)
        return 0;
    while (scaled >> octave >= 2 * QUARTERS)
        octave++;
    octave = QUARTERS * octave + (int)(scaled >> octave) - QUARTERS;
    return octave < OAR_RPC_BUCKETS ? octave : OAR_RPC_BUCKETS - 1;
}

int64_t oar_rpc_bucket_ns(int bucket)
{
    int next = bucket + 1;

    if (bucket < 0 || bucket >= OAR_RPC_BUCKETS)
        return 0;
    return (int64_t)(QUARTERS + next % QUARTERS)
           << (next / QUARTERS + FIRST_SHIFT);
}

void oari_rpc_count_time(oar_rpc_times *times, int64_t ns, int failed)
{
    times->count++;
    times->errors += (uint64_t)(failed != 0);
    times->bucket[bucket_of(ns)]++;
    if (ns > times->max_ns)
        times->max_ns = ns;
}

static oari_list *bucket_of_name(oar_rpc *agent, const char *name)
{
    unsigned hash = 5381;

    for (const char *at = name; *at != '\0'; at++)
        hash = hash * 33 + (unsigned char)*at;
    return &agent->made[hash % OARI_RPC_NAME_BUCKETS];
}

static oari_rpc_made *find_made(oari_list *list, const char *name)
{
    for (oari_link *l = list->first; l != NULL; l = l->next) {
        oari_rpc_made *made = OARI_CONTAINER_OF(l, oari_rpc_made, link);

        if (strcmp(made->name, name) == 0)
            return made;
    }
    return NULL;
}

void oari_rpc_count_made(oar_rpc *agent, const char *name, int64_t ns,
                         int failed)
{
    oari_list *list = bucket_of_name(agent, name);
    oari_rpc_made *made = find_made(list, name);
    size_t bytes = strlen(name) + 1;

    oari_rpc_count_time(&agent->all_made, ns, failed);
    if (made == NULL && agent->made_names < MOST_NAMES) {
        made = oari_alloc(1, sizeof *made + bytes);
        if (made != NULL) {
            memcpy(made->name, name, bytes);
            oari_list_append(list, &made->link);
            agent->made_names++;
        }
    }
    if (made != NULL)
        oari_rpc_count_time(&made->times, ns, failed);
}

void oari_rpc_free_times(oar_rpc *agent)
{
    oari_link *link;

    for (int b = 0; b < OARI_RPC_NAME_BUCKETS; b++)
        while ((link = oari_list_take(&agent->made[b])) != NULL)
            oari_free(OARI_CONTAINER_OF(link, oari_rpc_made, link));
}

static void add_times(oar_rpc_times *sum, const oar_rpc_times *times)
{
    sum->count += times->count;
    sum->errors += times->errors;
    for (int b = 0; b < OAR_RPC_BUCKETS; b++)
        sum->bucket[b] += times->bucket[b];
    if (times->max_ns > sum->max_ns)
        sum->max_ns = times->max_ns;
}

/* The time that so many of 100 calls did not take longer than. */
static int64_t find_percentile(const oar_rpc_times *times, uint64_t percent)
{
    uint64_t rank = (times->count * percent + 99) / 100, seen = 0;
    int64_t ns;
    int b = 0;

    if (times->count == 0)
        return 0;
    while (b < OAR_RPC_BUCKETS - 1 && (seen += times->bucket[b]) < rank)
        b++;
    ns = oar_rpc_bucket_ns(b);
    return ns < times->max_ns ? ns : times->max_ns;
}

/* With the lock. Returns 0 if there is no function of that name. */
static int find_times(oar_rpc *agent, oar_rpc_side side, const char *name,
                      oar_rpc_times *times)
{
    const oari_rpc_entry *entry;
    const oari_rpc_made *made;

    if (side == OAR_RPC_MADE && name == NULL) {
        *times = agent->all_made;
        return 1;
    }
    if (side == OAR_RPC_MADE) {
        made = find_made(bucket_of_name(agent, name), name);
        if (made != NULL)
            *times = made->times;
        return made != NULL;
    }
    if (name != NULL) {
        entry = oari_rpc_find_function(agent, name);
        if (entry != NULL)
            *times = entry->times;
        return entry != NULL;
    }
    for (oari_link *l = agent->functions.first; l != NULL; l = l->next)
        add_times(times, &OARI_CONTAINER_OF(l, oari_rpc_entry, link)->times);
    return 1;
}

oar_status oar_rpc_read_times(const oar_rpc *rpc, oar_rpc_side side,
                              const char *name, oar_rpc_times *times)
{
    oar_rpc *agent = (oar_rpc *)(uintptr_t)rpc;
    oar_rpc_times found = { 0 };
    int there;

    OARI_TRY(oari_rpc_check(rpc, "rpc_read_times"));
    if (side != OAR_RPC_MADE && side != OAR_RPC_SERVED)
        return oari_fail(OAR_E_ARG, "rpc_read_times: no such side: %d",
                         (int)side);
    pthread_mutex_lock(&agent->lock);
    there = find_times(agent, side, name, &found);
    pthread_mutex_unlock(&agent->lock);
    if (!there)
        return oari_fail(OAR_E_NOT_FOUND,
                         side == OAR_RPC_MADE
                             ? "rpc_read_times: no call of \"%s\" has ended"
                             : "rpc_read_times: no function \"%s\" is "
                               "registered",
                         name);
    found.p50_ns = find_percentile(&found, 50);
    found.p99_ns = find_percentile(&found, 99);
    return oari_struct_give(times, &found, sizeof found, "rpc_read_times");
}
