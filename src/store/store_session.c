/* SPDX-License-Identifier: Apache-2.0 */
/* store_session: clients by their ids. Those without a connection are kept
 * until they come back; when there are too many, the one that is gone for
 * longest is forgotten. */
#include "base/alloc.h"
#include "store/store_server.h"

static oari_session **find_session(oar_store_server *s, uint64_t id)
{
    oari_session **at = &s->session[id % OARI_SESSION_BUCKETS];

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void forget_session(oar_store_server *s, oari_session *it)
{
    oari_session **at = find_session(s, it->id);

    *at = it->next;
    oari_free(it);
}

oar_status oari_session_join(oari_connection *conn)
{
    oar_store_server *s = conn->server;
    oari_session **at = find_session(s, conn->id);

    if (*at == NULL) {
        oari_session *it = oari_alloc(1, sizeof *it);
        if (it == NULL)
            return OAR_E_NOMEM;
        it->id = conn->id;
        *at = it;
    } else if ((*at)->conn == NULL) {
        oari_list_remove(&s->detached, &(*at)->detached);
        s->detached_count--;
    } else { /* the old connection is still thought to live */
        (*at)->conn->session = NULL;
        oari_connection_kill((*at)->conn);
    }
    (*at)->conn = conn;
    conn->session = *at;
    return OAR_OK;
}

void oari_session_leave(oari_connection *conn)
{
    oar_store_server *s = conn->server;
    oari_session *it = conn->session;

    if (it == NULL)
        return;
    conn->session = NULL;
    it->conn = NULL;
    if (it->number == 0) { /* it has changed nothing */
        forget_session(s, it);
        return;
    }
    oari_list_append(&s->detached, &it->detached);
    if (s->detached_count < s->limits.sessions)
        s->detached_count++;
    else
        forget_session(s, OARI_CONTAINER_OF(oari_list_take(&s->detached),
                                            oari_session, detached));
}

void oari_session_drop_all(oar_store_server *server)
{
    for (int i = 0; i < OARI_SESSION_BUCKETS; i++)
        while (server->session[i] != NULL)
            forget_session(server, server->session[i]);
}
