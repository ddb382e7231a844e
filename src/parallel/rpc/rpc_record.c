/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the calls of this rank in the flight recorder, in a ring of their own,
 * so that an autopsy shows who waits for whom in which function. A call is
 * recorded as a receive of its answer with a tag that no message has
 * (record/operation.h); its label is "name", or "name <- name of the function
 * that makes it". */
#include <stdio.h>

#include "base/call_site.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "parallel/rpc/rpc_agent.h"
#include "record/recorder.h"

enum { LABEL_BYTES = 40 };

oar_status oari_rpc_record_open(oar_rpc *agent, const char *name,
                                const int *world)
{
    oari_ring_owner owner = { .group = name,
                              .backend = "rpc",
                              .rank = agent->rank,
                              .ranks = agent->ranks };
    int64_t rank, ranks;

    if (oari_env_int("OARSONG_RANK", 0, INT32_MAX, &rank) == OAR_OK &&
        oari_env_int("OARSONG_SIZE", 0, INT32_MAX, &ranks) == OAR_OK) {
        owner.job_rank = (int)rank;
        owner.job_ranks = (int)ranks;
    }
    OARI_TRY(oari_recorder_make(&owner, &agent->recorder));
    if (world != NULL)
        oari_recorder_place(agent->recorder, world, agent->ranks);
    oari_recorder_opened(agent->recorder);
    return OAR_OK;
}

void oari_rpc_record_close(oar_rpc *agent)
{
    oari_recorder_destroy(agent->recorder);
}

void oari_rpc_record_begin(oar_rpc *agent, oari_rpc_pending *p,
                           const char *file, int line)
{
    const oar_rpc_call *outer = oari_rpc_current;
    oari_call_site site = oari_call_site_of(file, line);
    int64_t left = oari_deadline_left_ms(p->deadline_ns);
    char label[LABEL_BYTES];
    oari_operation op = { .kind = OAR_COLL_RECV,
                          .dtype = OAR_U8,
                          .root = p->to,
                          .count = left > 0 ? (uint64_t)left : 0,
                          .tag = OARI_CALL_TAG,
                          .label = label,
                          .file = site.file,
                          .line = site.line };

    if (agent->recorder == NULL)
        return;
    if (outer != NULL && outer->entry != NULL)
        snprintf(label, sizeof label, "%.17s" OARI_CALL_BY "%.17s", p->name,
                 outer->entry->name);
    else
        snprintf(label, sizeof label, "%.39s", p->name);
    p->record = ++agent->records;
    oari_recorder_post(agent->recorder, p->record, &op, OARI_POSTED);
}

void oari_rpc_record_wait(oar_rpc *agent, const oar_future *future, int waits)
{
    if (agent->recorder != NULL && future->pending != NULL)
        oari_recorder_wait(agent->recorder, future->pending->record, waits);
}

void oari_rpc_record_end(oar_rpc *agent, const oari_rpc_pending *p, int failed)
{
    if (agent->recorder != NULL && p->record != 0)
        oari_recorder_done(agent->recorder, p->record,
                           failed ? OAR_RECORD_FAILED : OAR_RECORD_DONE);
}
