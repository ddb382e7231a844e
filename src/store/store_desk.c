/* SPDX-License-Identifier: Apache-2.0 */
/* store_desk: what requests do to the table. A request for keys that are not
 * there is parked under the first of them until that is set; who sets a key
 * wakes those parked under it. A change is done once: a client that asks again
 * under the same number gets the reply it has not seen. */
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

static void enter(oari_conn *c)
{
    oari_list_append(bucket_of(c->server, c->asked_key), &c->waiting);
}

static void leave(oari_conn *c)
{
    oari_list_remove(bucket_of(c->server, c->asked_key), &c->waiting);
}

/* Its request is over. It has left already. */
static void unpark(oari_conn *c)
{
    c->state = OARI_CONN_READY;
    c->deadline_ns = OARI_NEVER;
    oari_conn_drop_body(c);
}

void oari_desk_unpark(oari_conn *conn)
{
    if (conn->state != OARI_CONN_PARKED)
        return;
    leave(conn);
    unpark(conn);
}

void oari_desk_give_up(oari_conn *conn)
{
    oari_desk_unpark(conn);
    oari_fail(OAR_E_TIMEOUT, "store key \"%s\" did not appear",
              conn->asked_key);
    oari_conn_refuse(conn, conn->asked_index);
}

static void next_key(oari_conn *c)
{
    if (c->asked.head.kind == OARI_WIRE_GET)
        copy_key(c->asked.key, c->asked_key);
    else
        copy_key(oari_wire_next_key(&c->asked, &c->asked_at), c->asked_key);
}

/* The first key from here on that is not there; NULL and the value of the last
 * one if all are. */
static int find_all(oari_conn *c, const oari_value **found)
{
    for (;;) {
        *found = oari_table_find(&c->server->table, c->asked_key);
        if (*found == NULL)
            return 0;
        if (c->asked.head.kind == OARI_WIRE_GET ||
            ++c->asked_index == c->asked.count)
            return 1;
        next_key(c);
    }
}

/* Replies, if all it wants is there. It is under no key now. */
static int satisfy(oari_conn *c)
{
    oari_wire_message reply = { 0 };
    const oari_value *found;

    if (!find_all(c, &found))
        return 0;
    if (c->state == OARI_CONN_PARKED)
        unpark(c);
    reply.value = (oari_bytes){ found->data, found->bytes };
    oari_conn_reply(c, &reply);
    return 1;
}

static void serve_waiting(oari_conn *c, const oari_wire_message *m)
{
    c->asked = *m;
    c->asked_at = 0;
    c->asked_index = 0;
    if (m->head.kind == OARI_WIRE_WAIT && m->count == 0) {
        oari_conn_reply(c, &(oari_wire_message){ 0 });
        return;
    }
    next_key(c);
    if (satisfy(c))
        return;
    if (m->amount == 0) {
        oari_desk_give_up(c);
        return;
    }
    enter(c);
    c->state = OARI_CONN_PARKED;
    c->deadline_ns = OARI_NEVER;
    if (m->amount > 0)
        oari_conn_set_deadline(c, m->amount);
}

/* Whoever waits for this key looks again. */
static void wake(oar_store_server *s, const char *key)
{
    oari_list *bucket = bucket_of(s, key), all = *bucket;
    oari_link *link;

    *bucket = (oari_list){ NULL, NULL };
    while ((link = oari_list_take(&all)) != NULL) {
        oari_conn *c = OARI_HOLDER(link, oari_conn, waiting);

        if (c->dead || strcmp(c->asked_key, key) != 0 || !satisfy(c))
            enter(c);
    }
}

/* ---- changes ------------------------------------------------------------- */

static oar_status check_room(oar_store_server *s, const oari_wire_message *m)
{
    size_t more = m->value.bytes + m->key.bytes;

    if (s->table.bytes + more > s->limits.kept_bytes)
        return oari_fail(OAR_E_NOMEM,
                         "the store at %s is full: %zu bytes, and %zu are "
                         "allowed",
                         s->address, s->table.bytes, s->limits.kept_bytes);
    return OAR_OK;
}

static oar_status do_set(oar_store_server *s, const char *key,
                         const oari_wire_message *m, oari_wire_message *reply)
{
    oari_bytes value = m->value;

    OARI_TRY(check_room(s, m));
    return oari_table_update(&s->table, key, oari_change_to, &value);
}

static oar_status do_add(oar_store_server *s, const char *key,
                         const oari_wire_message *m, oari_wire_message *reply)
{
    oari_addition a = { key, m->amount, 0 };

    OARI_TRY(check_room(s, m));
    OARI_TRY(oari_table_update(&s->table, key, oari_change_by_adding, &a));
    reply->amount = a.sum;
    return OAR_OK;
}

static oar_status do_compare_set(oar_store_server *s, const char *key,
                                 const oari_wire_message *m,
                                 oari_wire_message *reply)
{
    oari_swap swap = { m->expected, m->value, 0 };

    if (m->flag == 0)
        swap.expected.data = NULL;
    OARI_TRY(check_room(s, m));
    OARI_TRY(oari_table_update(&s->table, key, oari_change_if_expected, &swap));
    reply->flag = (uint32_t)swap.swapped;
    return OAR_OK;
}

static oar_status do_delete(oar_store_server *s, const char *key,
                            const oari_wire_message *m,
                            oari_wire_message *reply)
{
    return oari_table_update(&s->table, key, oari_change_to_nothing,
                             &(oari_removal){ key });
}

static oar_status do_clear(oar_store_server *s, const char *key,
                           const oari_wire_message *m, oari_wire_message *reply)
{
    oari_table_clear(&s->table, key);
    return OAR_OK;
}

typedef oar_status (*change_fn)(oar_store_server *s, const char *key,
                                const oari_wire_message *m,
                                oari_wire_message *reply);

static change_fn change_of(int kind)
{
    switch (kind) {
    case OARI_WIRE_SET: return do_set;
    case OARI_WIRE_ADD: return do_add;
    case OARI_WIRE_COMPARE_SET: return do_compare_set;
    case OARI_WIRE_DELETE: return do_delete;
    case OARI_WIRE_CLEAR: return do_clear;
    default: return NULL;
    }
}

/* The reply to the change that was done last. */
static void repeat(oari_conn *c)
{
    const oari_session *it = c->session;
    oari_wire_message reply = { .amount = it->amount, .flag = it->flag };

    reply.head.status = it->status;
    if (it->status != OAR_OK)
        reply.value = (oari_bytes){ it->text, strlen(it->text) };
    oari_conn_reply(c, &reply);
}

static void serve_change(oari_conn *c, const oari_wire_message *m, change_fn fn)
{
    oari_wire_message reply = { 0 };
    oari_session *it = c->session;
    key_text key;

    if (m->head.number < it->number) { /* numbers only grow */
        oari_conn_kill(c);
        return;
    }
    if (m->head.number > it->number) {
        copy_key(m->key, key.text);
        it->status = fn(c->server, key.text, m, &reply);
        it->number = m->head.number;
        it->amount = reply.amount;
        it->flag = reply.flag;
        if (it->status != OAR_OK)
            snprintf(it->text, sizeof it->text, "%.159s",
                     oar_last_error_text());
        else if (m->head.kind != OARI_WIRE_DELETE &&
                 m->head.kind != OARI_WIRE_CLEAR)
            wake(c->server, key.text);
    }
    repeat(c);
}

/* ---- lists --------------------------------------------------------------- */

/* Fills the reply with keys behind `after`, as many as a message holds; flag 1:
 * there are more. */
static void fill_page(char *const *key, int count, const char *after,
                      unsigned char *page, oari_wire_message *reply)
{
    size_t used = 0;

    for (int i = 0; i < count; i++) {
        if (*after != 0 && strcmp(key[i], after) <= 0)
            continue;
        if (reply->count == OARI_WIRE_KEYS_MAX) {
            reply->flag = 1;
            break;
        }
        used += oari_wire_put_key(page + used, key[i]);
        reply->count++;
    }
    reply->keys = (oari_bytes){ page, used };
}

static oar_status send_page(oari_conn *c, const oari_names *names,
                            const char *after)
{
    int most =
        names->count < OARI_WIRE_KEYS_MAX ? names->count : OARI_WIRE_KEYS_MAX;
    unsigned char *page = oari_alloc((size_t)most, 4 + OAR_STORE_KEY_MAX);
    oari_wire_message reply = { 0 };
    char **order = NULL;
    oar_status status = OAR_E_NOMEM;

    if (page != NULL && (status = oari_names_sort(names, &order)) == OAR_OK) {
        fill_page(order, names->count, after, page, &reply);
        oari_conn_reply(c, &reply);
    }
    oari_free(order);
    oari_free(page);
    return status;
}

static void serve_list(oari_conn *c, const oari_wire_message *m)
{
    oari_names names = { 0 };
    key_text prefix, after;
    oar_status status;

    copy_key(m->key, prefix.text);
    copy_key(m->after, after.text);
    status = oari_table_list(&c->server->table, prefix.text, &names);
    if (status == OAR_OK)
        status = send_page(c, &names, after.text);
    if (status != OAR_OK)
        oari_conn_refuse(c, 0);
    oari_names_drop(&names);
}

void oari_desk_serve(oari_conn *conn, const oari_wire_message *message)
{
    change_fn change = change_of(message->head.kind);

    if (change != NULL)
        serve_change(conn, message, change);
    else if (message->head.kind == OARI_WIRE_LIST)
        serve_list(conn, message);
    else if (message->head.kind == OARI_WIRE_GET ||
             message->head.kind == OARI_WIRE_WAIT)
        serve_waiting(conn, message);
    else
        oari_conn_kill(conn);
}
