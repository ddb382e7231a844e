/* SPDX-License-Identifier: Apache-2.0 */
/* batch: calls collected between oar_batch_begin and oar_batch_end. */
#include "base/status.h"
#include "comm/api/post.h"
#include "comm/engine/work.h"
#include "comm/fault/fault.h"

int oari_batching(const oar_group *group)
{
    return atomic_load_explicit(&group->batch.open, memory_order_acquire) &&
           pthread_equal(
               atomic_load_explicit(&group->batch.owner, memory_order_relaxed),
               pthread_self());
}

int oar_batch_is_open(const oar_group *group)
{
    return group != NULL && oari_batching(group);
}

oar_status oari_batch_add(oar_group *group, const oari_call *call)
{
    oari_batch *b = &group->batch;
    oar_work *made;

    OARI_TRY(oari_work_make_checked(group, call, &made));
    if (b->last != NULL)
        b->last->next = made;
    else
        b->first = made;
    b->last = made;
    b->count++;
    return OAR_OK;
}

void oari_batch_drop(oar_group *group)
{
    oari_drop_parts(group->batch.first);
    group->batch.first = group->batch.last = NULL;
    group->batch.count = 0;
}

oar_status oar_batch_begin(oar_group *group)
{
    int closed = 0;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "batch_begin without a group");
    OARI_TRY(oari_group_check(group));
    if (!atomic_compare_exchange_strong(&group->batch.taken, &closed, 1))
        return oari_fail(OAR_E_STATE, "group \"%s\" has a batch open already",
                         group->name);
    atomic_store(&group->batch.owner, pthread_self());
    atomic_store_explicit(&group->batch.open, 1, memory_order_release);
    return OAR_OK;
}

/* A handle of what is done already. */
static oar_status post_nothing(oar_group *group, oar_work **work)
{
    oar_work *whole = oari_work_make_whole(group, 0);

    if (whole == NULL)
        return OAR_E_NOMEM;
    atomic_store(&whole->done, 1);
    *work = whole;
    return OAR_OK;
}

oar_status oar_batch_end(oar_group *group, oar_work **work)
{
    oar_work *first;
    int count;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "batch_end without a group");
    OARI_TRY(oari_group_owned(group));
    if (!oari_batching(group))
        return oari_fail(OAR_E_STATE,
                         "batch_end on group \"%s\" without a batch of this "
                         "thread",
                         group->name);
    first = group->batch.first;
    count = group->batch.count;
    group->batch.first = group->batch.last = NULL;
    group->batch.count = 0;
    atomic_store(&group->batch.open, 0);
    atomic_store(&group->batch.taken, 0);
    if (count == 0)
        return work != NULL ? post_nothing(group, work) : OAR_OK;
    return oari_post_list(group, count, first, work);
}
