/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the calls of this rank in the flight recorder, in a ring of their own,
 * so that an autopsy shows who waits for whom in which function. A call is
 * recorded as a receive of its answer with a tag that no message has
 * (record/operation.h); its label is "name", or "name <- name of the function
 * that makes it". */
#include <string.h>

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

/* Appends a text to a label, at most so many bytes; returns where it ends. */
static char *append(char *to, const char *text, size_t most)
{
    size_t bytes = strnlen(text, most);

    memcpy(to, text, bytes);
    to[bytes] = '\0';
    return to + bytes;
}

void oari_rpc_record_begin(oar_rpc *agent, oari_rpc_pending *p,
                           const char *file, int line, int awaited)
{
    const oar_rpc_call *outer = oari_rpc_current;
    oari_call_site site = oari_call_site_of(file, line);
    int64_t left = oari_rpc_left_ms(p->deadline_ns, p->began_ns);
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
        append(append(append(label, p->name, 17), OARI_CALL_BY, 4),
               outer->entry->name, 17);
    else
        append(label, p->name, sizeof label - 1);
    p->record = p->future->record = ++agent->records;
    oari_recorder_post(agent->recorder, p->record, &op,
                       awaited ? OARI_AWAITED : OARI_POSTED);
}

void oari_rpc_record_wait(oar_rpc *agent, const oar_future *future, int waits)
{
    if (agent->recorder != NULL)
        oari_recorder_wait(agent->recorder, future->record, waits);
}

void oari_rpc_record_end(oar_rpc *agent, const oari_rpc_pending *p, int failed)
{
    if (agent->recorder != NULL && p->record != 0)
        oari_recorder_done(agent->recorder, p->record,
                           failed ? OAR_RECORD_FAILED : OAR_RECORD_DONE);
}
