/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the functions that an agent lets other ranks call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/name_match.h"
#include "base/status.h"
#include "parallel/rpc/rpc_agent.h"

oari_rpc_entry *oari_rpc_find_function(const oar_rpc *agent, const char *name)
{
    for (oari_link *l = agent->functions.first; l != NULL; l = l->next) {
        oari_rpc_entry *e = OARI_CONTAINER_OF(l, oari_rpc_entry, link);

        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

const char *oari_rpc_find_nearest(const oar_rpc *agent, const char *name)
{
    const char *nearest = NULL;
    int best = (int)strlen(name) / 3 + 2;

    for (oari_link *l = agent->functions.first; l != NULL; l = l->next) {
        const oari_rpc_entry *e = OARI_CONTAINER_OF(l, oari_rpc_entry, link);
        int distance = oari_edit_distance(name, strlen(name), e->name);

        if (distance < best && strncmp(e->name, "oar.", 4) != 0) {
            best = distance;
            nearest = e->name;
        }
    }
    return nearest;
}

/* Reads "0,4-7" into a byte for each rank. */
static oar_status read_callers(const char *text, int ranks, unsigned char **may)
{
    unsigned char *byte = oari_alloc((size_t)ranks, 1);
    const char *at = text;

    if (byte == NULL)
        return OAR_E_NOMEM;
    while (*at != '\0') {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        int read = end != at && *at >= '0' && *at <= '9';

        if (read && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            read = end != at && *at >= '0' && *at <= '9';
        }
        if (!read || (*end != ',' && *end != '\0') || first > last ||
            last >= ranks || (*end == ',' && end[1] == '\0')) {
            oari_free(byte);
            return oari_fail(OAR_E_ARG,
                             "callers \"%s\": ranks of a group of %d are "
                             "written like \"0,4-7\"",
                             text, ranks);
        }
        for (long r = first; r <= last; r++)
            byte[r] = 1;
        at = *end == ',' ? end + 1 : end;
    }
    *may = byte;
    return OAR_OK;
}

static void free_entry(oari_rpc_entry *e)
{
    oari_free(e->callers);
    oari_free(e);
}

oar_status oari_rpc_add_function(oar_rpc *agent, const oar_rpc_function *f)
{
    oari_rpc_entry *e = oari_alloc(1, sizeof *e);
    oar_status status = OAR_OK;

    if (e == NULL)
        return OAR_E_NOMEM;
    snprintf(e->name, sizeof e->name, "%s", f->name);
    e->fn = f->fn;
    e->arg = f->arg;
    e->manner = f->manner;
    e->message_bytes =
        f->message_bytes != 0 ? f->message_bytes : agent->opts.message_bytes;
    if (f->callers != NULL)
        status = read_callers(f->callers, agent->ranks, &e->callers);
    if (status == OAR_OK) {
        pthread_mutex_lock(&agent->lock);
        if (oari_rpc_find_function(agent, e->name) != NULL)
            status =
                oari_fail(OAR_E_STATE,
                          "a function \"%s\" is registered already", e->name);
        else
            oari_list_append(&agent->functions, &e->link);
        pthread_mutex_unlock(&agent->lock);
    }
    if (status != OAR_OK)
        free_entry(e);
    return status;
}

oar_status oar_rpc_register(oar_rpc *rpc, const oar_rpc_function *function)
{
    oar_rpc_function f;
    size_t bytes;

    OARI_TRY(oari_rpc_check(rpc, "rpc_register"));
    if (function == NULL)
        return oari_fail(OAR_E_ARG, "rpc_register: no function");
    OARI_TRY(oari_opts_read(&f, sizeof f, function));
    bytes = f.name != NULL ? strlen(f.name) : 0;
    if (bytes == 0 || bytes > OARI_RPC_NAME)
        return oari_fail(OAR_E_ARG,
                         "the name of a function has 1 to %d bytes, not %zu",
                         OARI_RPC_NAME, bytes);
    if (strncmp(f.name, "oar.", 4) == 0)
        return oari_fail(OAR_E_ARG,
                         "\"%s\": names that begin with \"oar.\" are the "
                         "library's",
                         f.name);
    if (f.fn == NULL || f.manner < OAR_RPC_POOL || f.manner > OAR_RPC_INLINE)
        return oari_fail(OAR_E_ARG, "rpc_register \"%s\": no %s", f.name,
                         f.fn == NULL ? "function" : "such manner");
    return oari_rpc_add_function(rpc, &f);
}

oar_status oar_rpc_unregister(oar_rpc *rpc, const char *name)
{
    oari_rpc_entry *e;

    OARI_TRY(oari_rpc_check(rpc, "rpc_unregister"));
    if (oari_rpc_current != NULL)
        return oari_fail(OAR_E_STATE, "rpc_unregister inside a function");
    pthread_mutex_lock(&rpc->lock);
    e = name != NULL ? oari_rpc_find_function(rpc, name) : NULL;
    if (e != NULL) {
        oari_list_remove(&rpc->functions, &e->link);
        e->closed = 1;
        while (e->users > 0)
            oari_rpc_wait_change(rpc, OARI_NEVER);
        free_entry(e);
    }
    pthread_mutex_unlock(&rpc->lock);
    if (e == NULL)
        return oari_fail(OAR_E_NOT_FOUND, "no function \"%s\" is registered",
                         name != NULL ? name : "");
    return OAR_OK;
}

void oari_rpc_free_functions(oar_rpc *agent)
{
    oari_link *link;

    while ((link = oari_list_take(&agent->functions)) != NULL)
        free_entry(OARI_CONTAINER_OF(link, oari_rpc_entry, link));
}
