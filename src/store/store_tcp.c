/* SPDX-License-Identifier: Apache-2.0 */
/* store_tcp: the client of a store's server. Calls of several threads at once
 * each take a link of their own; those that are free are kept. The lock guards
 * the list of free links and nothing else. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "store/store.h"
#include "store/store_link.h"

typedef struct tcp_store {
    char *address;
    oari_trust trust;
    int64_t timeout_ms;
    unsigned generation; /* of fork */
    pthread_mutex_t lock;
    oari_store_link *spare;
    int spares;
} tcp_store;

enum {
    SPARES_MAX = 8,
    GRACE_MS = 2000, /* for a reply to come when there is no time to wait */
    GLANCE_MS = 400, /* the same, if nobody can wait for it */
    WAIT_KEYS = 256  /* in one request */
};

/* ---- links --------------------------------------------------------------- */

static oar_status take_link(tcp_store *s, oari_store_link **link)
{
    oari_store_link *l;

    if (s->generation != oari_fork_generation())
        return oari_fail(OAR_E_STATE,
                         "the store at %s was opened by the process that this "
                         "one was forked from",
                         s->address);
    pthread_mutex_lock(&s->lock);
    if ((l = s->spare) != NULL) {
        s->spare = l->next;
        s->spares--;
    }
    pthread_mutex_unlock(&s->lock);
    if (l == NULL)
        return oari_link_create(s->address, &s->trust, link);
    *link = l;
    return OAR_OK;
}

static void return_link(tcp_store *s, oari_store_link *link)
{
    int keep;

    pthread_mutex_lock(&s->lock);
    if ((keep = s->spares < SPARES_MAX)) {
        link->next = s->spare;
        s->spare = link;
        s->spares++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!keep)
        oari_link_destroy(link);
}

/* ---- patience ------------------------------------------------------------ */

static oari_patience for_store(const tcp_store *s)
{
    int64_t reply_ms = s->timeout_ms != 0 ? s->timeout_ms : GRACE_MS;

    return (oari_patience){ s->timeout_ms, oari_deadline(reply_ms), 0, 0 };
}

/* Of a call that waits on the server. */
static oari_patience for_wait(const tcp_store *s, int64_t deadline_ns,
                              int64_t grace_ms)
{
    int64_t reply = deadline_ns, now = oari_now_ns();

    if (reply != OARI_NEVER)
        reply = (reply > now ? reply : now) + grace_ms * INT64_C(1000000);
    return (oari_patience){ s->timeout_ms, reply, deadline_ns, 0 };
}

/* ---- operations ---------------------------------------------------------- */

static oari_wire_message request(int kind, const char *key)
{
    return (oari_wire_message){ .head.kind = kind,
                                .key = { key, strlen(key) } };
}

/* For requests whose reply holds nothing that is borrowed. */
static oar_status ask(tcp_store *s, oari_wire_message *m,
                      oari_wire_message *reply)
{
    oari_patience patience = for_store(s);
    oari_store_link *link;
    oar_status status;

    OARI_TRY(take_link(s, &link));
    status = oari_link_ask(link, m, &patience, reply);
    return_link(s, link);
    return status;
}

static oar_status set(void *self, const char *key, oari_bytes value)
{
    oari_wire_message m = request(OARI_WIRE_SET, key), reply;

    m.value = value;
    return ask(self, &m, &reply);
}

static oar_status add(void *self, const char *key, int64_t delta, int64_t *sum)
{
    oari_wire_message m = request(OARI_WIRE_ADD, key), reply;

    m.amount = delta;
    OARI_TRY(ask(self, &m, &reply));
    *sum = reply.amount;
    return OAR_OK;
}

static oar_status compare_set(void *self, const char *key, oari_bytes expected,
                              oari_bytes wanted, int *swapped)
{
    oari_wire_message m = request(OARI_WIRE_COMPARE_SET, key), reply;

    if (expected.data != NULL) {
        m.flag = 1;
        m.expected = expected;
    }
    m.value = wanted;
    OARI_TRY(ask(self, &m, &reply));
    *swapped = reply.flag != 0;
    return OAR_OK;
}

static oar_status remove_key(void *self, const char *key)
{
    oari_wire_message m = request(OARI_WIRE_DELETE, key), reply;

    return ask(self, &m, &reply);
}

static oar_status clear(void *self, const char *prefix)
{
    oari_wire_message m = request(OARI_WIRE_CLEAR, prefix), reply;

    return ask(self, &m, &reply);
}

/* The server's word that the time is over, and not the network's. */
static int in_vain(oar_status status, const oari_wire_message *reply)
{
    return status == OAR_E_TIMEOUT && reply->head.status == OAR_E_TIMEOUT;
}

static oar_status get_by(tcp_store *s, const char *key,
                         const oari_patience *patience, oari_value *value)
{
    oari_wire_message m = request(OARI_WIRE_GET, key), reply = { 0 };
    oari_store_link *link;
    oar_status status;

    OARI_TRY(take_link(s, &link));
    status = oari_link_ask(link, &m, patience, &reply);
    if (status == OAR_OK)
        status = oari_value_copy(reply.value.data, reply.value.bytes, value);
    else if (in_vain(status, &reply))
        status = OAR_OK;
    return_link(s, link);
    return status;
}

static oar_status get(void *self, const char *key, int64_t deadline_ns,
                      oari_value *value)
{
    oari_patience patience = for_wait(self, deadline_ns, GRACE_MS);

    return get_by(self, key, &patience, value);
}

static oar_status glance(void *self, const char *key, int64_t deadline_ns,
                         oari_value *value)
{
    oari_patience patience = for_wait(self, deadline_ns, GLANCE_MS);

    patience.once = 1;
    return get_by(self, key, &patience, value);
}

/* Up to WAIT_KEYS of them. */
static oar_status wait_some(tcp_store *s, int count, const char *const *key,
                            int64_t deadline_ns, int *missing)
{
    unsigned char *keys = oari_alloc((size_t)count, 4 + OAR_STORE_KEY_MAX);
    oari_wire_message m = { .head.kind = OARI_WIRE_WAIT }, reply = { 0 };
    oari_patience patience = for_wait(s, deadline_ns, GRACE_MS);
    oari_store_link *link;
    oar_status status;

    if (keys == NULL)
        return OAR_E_NOMEM;
    m.keys.data = keys;
    m.count = (uint32_t)count;
    for (int i = 0; i < count; i++)
        m.keys.bytes += oari_wire_put_key(keys + m.keys.bytes, key[i]);
    if ((status = take_link(s, &link)) == OAR_OK) {
        status = oari_link_ask(link, &m, &patience, &reply);
        return_link(s, link);
    }
    oari_free(keys);
    if (!in_vain(status, &reply))
        return status;
    *missing = reply.flag < (uint32_t)count ? (int)reply.flag : 0;
    return OAR_OK;
}

static oar_status wait_for(void *self, int count, const char *const *key,
                           int64_t deadline_ns, int *missing)
{
    *missing = -1;
    for (int at = 0; at < count && *missing < 0; at += WAIT_KEYS) {
        int some = count - at < WAIT_KEYS ? count - at : WAIT_KEYS;
        OARI_TRY(wait_some(self, some, key + at, deadline_ns, missing));
        if (*missing >= 0)
            *missing += at;
    }
    return OAR_OK;
}

/* Notes the keys of a reply, and the last of them. */
static oar_status take_names(const oari_wire_message *reply, oari_names *names,
                             char last[OAR_STORE_KEY_MAX + 1])
{
    size_t at = 0;

    for (uint32_t i = 0; i < reply->count; i++) {
        oari_bytes key = oari_wire_next_key(reply, &at);
        memcpy(last, key.data, key.bytes);
        last[key.bytes] = 0;
        OARI_TRY(oari_names_add(names, last));
    }
    return OAR_OK;
}

static oar_status list_over(tcp_store *s, oari_store_link *link,
                            const char *prefix, oari_names *names)
{
    oari_wire_message m = request(OARI_WIRE_LIST, prefix), reply;
    oari_patience patience = for_store(s);
    char last[OAR_STORE_KEY_MAX + 1] = "";

    do {
        m.after = (oari_bytes){ last, strlen(last) };
        OARI_TRY(oari_link_ask(link, &m, &patience, &reply));
        OARI_TRY(take_names(&reply, names, last));
    } while (reply.flag != 0 && reply.count != 0);
    return OAR_OK;
}

static oar_status list(void *self, const char *prefix, oari_names *names)
{
    oari_store_link *link;
    oar_status status;

    OARI_TRY(take_link(self, &link));
    status = list_over(self, link, prefix, names);
    return_link(self, link);
    return status;
}

/* In a child the descriptors are closed already, and their numbers may be
 * another's. */
static void destroy(void *self)
{
    tcp_store *s = self;
    int mine = s->generation == oari_fork_generation();

    while (s->spare != NULL) {
        oari_store_link *link = s->spare;
        s->spare = link->next;
        if (!mine)
            link->stream.fd = -1;
        oari_link_destroy(link);
    }
    pthread_mutex_destroy(&s->lock);
    oari_free(s->address);
    oari_trust_forget(&s->trust);
    oari_free(s);
}

static const char *address_of(void *self)
{
    return ((tcp_store *)self)->address;
}

static const oari_store_ops tcp_ops = {
    .set = set,
    .get = get,
    .glance = glance,
    .add = add,
    .compare_set = compare_set,
    .remove = remove_key,
    .wait = wait_for,
    .list = list,
    .clear = clear,
    .address = address_of,
    .destroy = destroy,
};

static oar_status connect_first(tcp_store *s)
{
    oari_store_link *link;
    oar_status status;

    OARI_TRY(take_link(s, &link));
    status = oari_link_connect(link, oari_deadline(s->timeout_ms));
    return_link(s, link);
    return status;
}

oar_status oari_store_join(const char *address, int64_t timeout_ms,
                           const oari_secret *secret, oar_store **store)
{
    tcp_store *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->timeout_ms = timeout_ms;
    oari_fork_watch();
    s->generation = oari_fork_generation();
    if ((s->address = oari_strdup(address)) == NULL ||
        oari_trust_make(secret, &s->trust) != OAR_OK ||
        connect_first(s) != OAR_OK) {
        oar_error why = *oar_last_error();
        destroy(s);
        return oari_fail_with(&why);
    }
    return oari_store_wrap(&tcp_ops, s, store);
}

oar_status oar_store_create_tcp(const char *address, int64_t timeout_ms,
                                oar_store **store)
{
    oari_secret secret;
    oar_status status;

    if (address == NULL || store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_tcp without %s",
                         address == NULL ? "an address" : "a place for it");
    OARI_TRY(oari_secret_find(&secret));
    status = oari_store_join(address, timeout_ms, &secret, store);
    oari_secret_forget(&secret);
    return status;
}
