/* SPDX-License-Identifier: Apache-2.0 */
/* agree: a failure on one rank is the failure of all, and a rank that works on
 * files is waited for. */
#include <oarsong/collective.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "parallel/checkpoint/checkpoint.h"

oar_status oari_ckpt_agree(oar_checkpoint *c, oar_status mine)
{
    oar_error record = *oar_last_error();
    int64_t failed = mine != OAR_OK ? c->ranks - c->rank : 0;
    int root;

    if (c->group == NULL)
        return mine;
    OARI_TRY(oar_all_reduce(c->group, oar_span_of(&failed, 1, OAR_I64), OAR_MAX,
                            NULL, NULL));
    if (failed == 0)
        return OAR_OK;
    root = c->ranks - (int)failed;
    if (root == c->rank) {
        char text[sizeof record.text];

        memcpy(text, record.text, sizeof text);
        record.rank = c->rank;
        snprintf(record.text, sizeof record.text, "rank %d: %.490s", c->rank,
                 text);
    }
    OARI_TRY(oar_broadcast(c->group,
                           oar_span_of(&record, sizeof record, OAR_U8), root,
                           NULL, NULL));
    return oari_fail_with(&record);
}

/* ---- slow parts ---------------------------------------------------------- */

enum { RENEW_NS = 1000000000 }; /* at most this often */

void oari_ckpt_slow_begin(oar_checkpoint *c, int64_t ms)
{
    oar_timeout_scope *before;

    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    before = c->slow;
    /* Without the memory for a scope the timeout counts as ever. */
    if (oar_timeout_scope_begin(c->group, "checkpoint", ms, &c->slow) != OAR_OK)
        c->slow = NULL;
    oar_timeout_scope_end(before);
    c->slow_since_ns = oari_now_ns();
    pthread_mutex_unlock(&c->slow_lock);
}

void oari_ckpt_slow_renew(oar_checkpoint *c, int64_t ms)
{
    int due;

    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    due = oari_now_ns() - c->slow_since_ns > RENEW_NS;
    pthread_mutex_unlock(&c->slow_lock);
    if (due)
        oari_ckpt_slow_begin(c, ms);
}

void oari_ckpt_slow_end(oar_checkpoint *c)
{
    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    oar_timeout_scope_end(c->slow);
    c->slow = NULL;
    pthread_mutex_unlock(&c->slow_lock);
}
