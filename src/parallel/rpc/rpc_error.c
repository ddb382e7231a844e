/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: an error as it travels: all its fields, as values of a message. */
#include <stdio.h>

#include "base/status.h"
#include "parallel/rpc/rpc_agent.h"

oar_status oari_rpc_error_put(oar_rpc_message *message, const oar_error *error)
{
    OARI_TRY(oar_rpc_put_i64(message, error->status));
    OARI_TRY(oar_rpc_put_i64(message, error->rank));
    OARI_TRY(oar_rpc_put_i64(message, error->peer));
    OARI_TRY(oar_rpc_put_i64(message, error->sys_errno));
    OARI_TRY(oar_rpc_put_i64(message, error->pid));
    OARI_TRY(oar_rpc_put_i64(message, (int64_t)error->sequence));
    OARI_TRY(oar_rpc_put_text(message, error->operation));
    OARI_TRY(oar_rpc_put_text(message, error->site));
    OARI_TRY(oar_rpc_put_text(message, error->label));
    OARI_TRY(oar_rpc_put_text(message, error->host));
    return oar_rpc_put_text(message, error->text);
}

static oar_status get_text(oar_rpc_message *message, char *to, size_t bytes)
{
    const char *text;

    OARI_TRY(oar_rpc_get_text(message, &text));
    snprintf(to, bytes, "%s", text);
    return OAR_OK;
}

oar_status oari_rpc_error_get(oar_rpc_message *message, oar_error *error)
{
    oar_error e;
    int64_t n[6];

    oari_error_set(&e, OAR_E_INTERNAL, "%s", "");
    for (int i = 0; i < 6; i++)
        OARI_TRY(oar_rpc_get_i64(message, &n[i]));
    if (n[0] <= OAR_OK || n[0] > OAR_E_CANCELLED)
        return oari_fail(OAR_E_DATA, "a failure with status %lld",
                         (long long)n[0]);
    e.status = (oar_status)n[0];
    e.rank = (int)n[1];
    e.peer = (int)n[2];
    e.sys_errno = (int)n[3];
    e.pid = n[4];
    e.sequence = (uint64_t)n[5];
    OARI_TRY(get_text(message, e.operation, sizeof e.operation));
    OARI_TRY(get_text(message, e.site, sizeof e.site));
    OARI_TRY(get_text(message, e.label, sizeof e.label));
    OARI_TRY(get_text(message, e.host, sizeof e.host));
    OARI_TRY(get_text(message, e.text, sizeof e.text));
    *error = e;
    return OAR_OK;
}
