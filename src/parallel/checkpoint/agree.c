/* SPDX-License-Identifier: Apache-2.0 */
/* agree: a failure on one rank is the failure of all. */
#include <oarsong/collective.h>

#include <stdio.h>
#include <string.h>

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
