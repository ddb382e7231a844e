/* SPDX-License-Identifier: Apache-2.0 */
/* store_session: clients by their ids. Those without a connection are kept for
 * when they come back, the longest gone being forgotten first. */
#include "base/alloc.h"
#include "store/store_server.h"

static oari_session **find(oar_store_server *s, uint64_t id)
{
    oari_session **at = &s->session[id % OARI_SESSION_BUCKETS];

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void forget(oar_store_server *s, oari_session *it)
{
    oari_session **at = find(s, it->id);

    *at = it->next;
    oari_free(it);
}

/* ---- coming and going ---------------------------------------------------- */

/* A client that comes back: from nowhere, or over a connection that is still
 * thought to live. */
static void welcome_back(oar_store_server *s, oari_session *it)
{
    oari_conn *old = it->conn;

    if (old == NULL) {
        oari_list_remove(&s->lonely, &it->lonely);
        s->lonelies--;
        return;
    }
    old->session = NULL;
    oari_conn_kill(old);
}

oar_status oari_session_join(oari_conn *conn)
{
    oari_session **at = find(conn->server, conn->id);

    if (*at != NULL)
        welcome_back(conn->server, *at);
    else {
        oari_session *it = oari_alloc(1, sizeof *it);
        if (it == NULL)
            return OAR_E_NOMEM;
        it->id = conn->id;
        *at = it;
    }
    (*at)->conn = conn;
    conn->session = *at;
    return OAR_OK;
}

void oari_session_leave(oari_conn *conn)
{
    oar_store_server *s = conn->server;
    oari_session *it = conn->session;

    if (it == NULL)
        return;
    conn->session = NULL;
    it->conn = NULL;
    if (it->number == 0) { /* it has changed nothing */
        forget(s, it);
        return;
    }
    oari_list_append(&s->lonely, &it->lonely);
    if (s->lonelies < s->limits.sessions)
        s->lonelies++;
    else
        forget(s,
               OARI_HOLDER(oari_list_take(&s->lonely), oari_session, lonely));
}

void oari_session_drop_all(oar_store_server *server)
{
    for (int i = 0; i < OARI_SESSION_BUCKETS; i++)
        while (server->session[i] != NULL)
            forget(server, server->session[i]);
}
