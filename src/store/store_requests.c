/* SPDX-License-Identifier: Apache-2.0 */
/* store_requests: the request handler: what requests do to the table. A request
 * for keys that do not exist is parked under the first of them; the change that
 * sets that key looks at the request again. A change is done once: a client
 * that asks again under the same number gets the reply that it has not seen. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "store/store_server.h"

typedef struct key_text {
    char text[OAR_STORE_KEY_MAX + 1];
} key_text;

static void copy_key(oari_bytes key, char *text)
{
    if (key.bytes != 0)
        memcpy(text, key.data, key.bytes);
    text[key.bytes] = 0;
}

/* ---- parking ------------------------------------------------------------- */

static oari_list *bucket_of(oar_store_server *s, const char *key)
{
    return &s->waiting[oari_key_hash(key) % OARI_WAIT_BUCKETS];
}

/* Ends the wait of a connection that is in no bucket any more. */
static void end_wait(oari_connection *c)
{
    c->state = OARI_CONNECTION_READY;
    c->deadline_ns = OARI_NEVER;
    oari_connection_drop_body(c);
}

void oari_request_cancel(oari_connection *conn)
{
    if (conn->state != OARI_CONNECTION_PARKED)
        return;
    oari_list_remove(bucket_of(conn->server, conn->asked_key), &conn->waiting);
    end_wait(conn);
}

void oari_request_time_out(oari_connection *conn)
{
    oari_request_cancel(conn);
    oari_fail(OAR_E_TIMEOUT, "store key \"%s\" did not appear",
              conn->asked_key);
    oari_connection_refuse(conn, conn->asked_index);
}

/* Sets asked_key to the next key that the request waits for. */
static void next_key(oari_connection *c)
{
    if (c->asked.head.kind == OARI_WIRE_GET)
        copy_key(c->asked.key, c->asked_key);
    else
        copy_key(oari_wire_next_key(&c->asked, &c->asked_at), c->asked_key);
}

/* Replies if all the keys that a request waits for exist; returns whether they
 * do. The connection is in no bucket, and is to be parked if they do not. */
static int reply_if_found(oari_connection *c)
{
    oari_wire_message reply = { 0 };
    const oari_value *found;

    for (;;) {
        found = oari_table_find(&c->server->table, c->asked_key);
        if (found == NULL)
            return 0;
        if (c->asked.head.kind == OARI_WIRE_GET ||
            ++c->asked_index == c->asked.count)
            break;
        next_key(c);
    }
    if (c->state == OARI_CONNECTION_PARKED)
        end_wait(c);
    reply.value = (oari_bytes){ found->data, found->bytes };
    oari_connection_reply(c, &reply);
    return 1;
}

/* GET and WAIT. */
static void handle_wait(oari_connection *c, const oari_wire_message *m)
{
    c->asked = *m;
    c->asked_at = 0;
    c->asked_index = 0;
    if (m->head.kind == OARI_WIRE_WAIT && m->count == 0) {
        oari_connection_reply(c, &(oari_wire_message){ 0 });
        return;
    }
    next_key(c);
    if (reply_if_found(c))
        return;
    if (m->amount == 0) {
        oari_request_time_out(c);
        return;
    }
    oari_list_append(bucket_of(c->server, c->asked_key), &c->waiting);
    c->state = OARI_CONNECTION_PARKED;
    c->deadline_ns = OARI_NEVER;
    if (m->amount > 0)
        oari_connection_set_deadline(c, m->amount);
}

/* Looks again at the requests that are parked under this key. */
static void wake_waiting(oar_store_server *s, const char *key)
{
    oari_list *bucket = bucket_of(s, key), all = *bucket;
    oari_link *link;

    *bucket = (oari_list){ NULL, NULL };
    while ((link = oari_list_take(&all)) != NULL) {
        oari_connection *c = OARI_CONTAINER_OF(link, oari_connection, waiting);

        if (c->dead || strcmp(c->asked_key, key) != 0 || !reply_if_found(c))
            oari_list_append(bucket_of(c->server, c->asked_key), &c->waiting);
    }
}

/* ---- changes ------------------------------------------------------------- */

static oar_status apply_change(oar_store_server *s, const char *key,
                               const oari_wire_message *m,
                               oari_wire_message *reply)
{
    oari_change change = { .key = key, .value = m->value, .delta = m->amount };

    switch (m->head.kind) {
    case OARI_WIRE_SET: change.kind = OARI_CHANGE_SET; break;
    case OARI_WIRE_ADD: change.kind = OARI_CHANGE_ADD; break;
    case OARI_WIRE_COMPARE_SET:
        change.kind = OARI_CHANGE_COMPARE_SET;
        if (m->flag != 0)
            change.expected = m->expected;
        break;
    case OARI_WIRE_DELETE: change.kind = OARI_CHANGE_DELETE; break;
    default: oari_table_clear(&s->table, key); return OAR_OK;
    }
    if (change.kind != OARI_CHANGE_DELETE &&
        s->table.bytes + m->value.bytes + m->key.bytes > s->limits.kept_bytes)
        return oari_fail(OAR_E_NOMEM,
                         "the store at %s is full: %zu bytes, and %zu are "
                         "allowed",
                         s->address, s->table.bytes, s->limits.kept_bytes);
    OARI_TRY(oari_table_update(&s->table, key, oari_change_apply, &change));
    reply->amount = change.sum;
    reply->flag = (uint32_t)change.swapped;
    return OAR_OK;
}

static void handle_change(oari_connection *c, const oari_wire_message *m)
{
    oari_session *it = c->session;
    oari_wire_message reply = { 0 };
    key_text key;

    if (m->head.number < it->number) { /* numbers only grow */
        oari_connection_kill(c);
        return;
    }
    if (m->head.number > it->number) {
        copy_key(m->key, key.text);
        it->status = apply_change(c->server, key.text, m, &reply);
        it->number = m->head.number;
        it->amount = reply.amount;
        it->flag = reply.flag;
        if (it->status != OAR_OK)
            snprintf(it->text, sizeof it->text, "%.159s",
                     oar_last_error_text());
        else if (m->head.kind != OARI_WIRE_DELETE &&
                 m->head.kind != OARI_WIRE_CLEAR)
            wake_waiting(c->server, key.text);
    }
    reply = (oari_wire_message){ .amount = it->amount, .flag = it->flag };
    reply.head.status = it->status;
    if (it->status != OAR_OK)
        reply.value = (oari_bytes){ it->text, strlen(it->text) };
    oari_connection_reply(c, &reply);
}

/* ---- lists --------------------------------------------------------------- */

/* Replies with the keys behind `after`, as many as a message holds; flag 1:
 * there are more. */
static oar_status send_keys(oari_connection *c, const oari_key_list *list,
                            const char *after)
{
    int most =
        list->count < OARI_WIRE_KEYS_MAX ? list->count : OARI_WIRE_KEYS_MAX;
    unsigned char *page = oari_alloc((size_t)most, 4 + OAR_STORE_KEY_MAX);
    oari_wire_message reply = { 0 };
    char **key = NULL;
    oar_status status = OAR_E_NOMEM;
    size_t used = 0;

    if (page != NULL)
        status = oari_key_list_sort(list, &key);
    for (int i = 0; status == OAR_OK && i < list->count; i++) {
        if (*after != 0 && strcmp(key[i], after) <= 0)
            continue;
        if (reply.count == OARI_WIRE_KEYS_MAX) {
            reply.flag = 1;
            break;
        }
        used += oari_wire_put_key(page + used, key[i]);
        reply.count++;
    }
    reply.keys = (oari_bytes){ page, used };
    if (status == OAR_OK)
        oari_connection_reply(c, &reply);
    oari_free(key);
    oari_free(page);
    return status;
}

static void handle_list(oari_connection *c, const oari_wire_message *m)
{
    oari_key_list list = { 0 };
    key_text prefix, after;
    oar_status status;

    copy_key(m->key, prefix.text);
    copy_key(m->after, after.text);
    status = oari_table_list(&c->server->table, prefix.text, &list);
    if (status == OAR_OK)
        status = send_keys(c, &list, after.text);
    if (status != OAR_OK)
        oari_connection_refuse(c, 0);
    oari_key_list_drop(&list);
}

void oari_request_handle(oari_connection *conn,
                         const oari_wire_message *message)
{
    switch (message->head.kind) {
    case OARI_WIRE_SET:
    case OARI_WIRE_ADD:
    case OARI_WIRE_COMPARE_SET:
    case OARI_WIRE_DELETE:
    case OARI_WIRE_CLEAR: handle_change(conn, message); break;
    case OARI_WIRE_LIST: handle_list(conn, message); break;
    case OARI_WIRE_GET:
    case OARI_WIRE_WAIT: handle_wait(conn, message); break;
    default: oari_connection_kill(conn);
    }
}
