/* SPDX-License-Identifier: Apache-2.0 */
/* busy_time: for how long at least one operation of the shards was under way.
 * Operations end in any thread. */
#include "base/clock.h"
#include "parallel/shards/shards.h"

void oari_busy_begin(oari_busy_time *t)
{
    pthread_mutex_lock(&t->lock);
    if (t->under_way++ == 0)
        t->since_ns = oari_now_ns();
    pthread_mutex_unlock(&t->lock);
}

static void end_one(void *arg, oar_status status)
{
    oari_busy_time *t = arg;

    pthread_mutex_lock(&t->lock);
    if (--t->under_way == 0)
        t->ns += oari_now_ns() - t->since_ns;
    pthread_mutex_unlock(&t->lock);
}

oar_status oari_busy_end(oari_busy_time *t, oar_status status, oar_work *work)
{
    if (status == OAR_OK && work != NULL)
        return oar_work_then(work, end_one, t);
    end_one(t, status);
    return status;
}

double oari_busy_read(const oari_busy_time *t)
{
    int64_t now = t->under_way > 0 ? oari_now_ns() - t->since_ns : 0;

    return (double)(t->ns + now) * 1e-9;
}

void oari_busy_clear(oari_busy_time *t)
{
    pthread_mutex_lock(&t->lock);
    t->ns = 0;
    t->since_ns = oari_now_ns();
    pthread_mutex_unlock(&t->lock);
}
