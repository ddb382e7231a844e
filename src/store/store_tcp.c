/* SPDX-License-Identifier: Apache-2.0 */
/* store_tcp: a store behind a server. Calls of several threads at once each
 * take a link of their own; free links are kept. The lock guards the list of
 * free links and nothing else. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "store/store.h"
#include "store/store_client.h"

typedef struct tcp_store {
    char *address;
    oari_trust trust;
    int64_t timeout_ms;
    unsigned generation; /* of fork */
    pthread_mutex_t lock;
    oari_store_client *spare;
    int spares;
} tcp_store;

enum {
    SPARES_MAX = 8,
    GRACE_MS = 2000,     /* for a reply, after the time to wait for a key */
    GRACE_ONCE_MS = 400, /* for a reply to a get without reconnecting */
    WAIT_KEYS = 256      /* in one request */
};

/* ---- links --------------------------------------------------------------- */

static oar_status take_link(tcp_store *s, oari_store_client **link)
{
    oari_store_client *l;

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
        return oari_store_client_create(s->address, &s->trust, link);
    *link = l;
    return OAR_OK;
}

static void return_link(tcp_store *s, oari_store_client *link)
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
        oari_store_client_destroy(link);
}

/* ---- time limits --------------------------------------------------------- */

static oari_request_limits limits_of_call(const tcp_store *s)
{
    int64_t reply_ms = s->timeout_ms != 0 ? s->timeout_ms : GRACE_MS;

    return (oari_request_limits){ s->timeout_ms, oari_deadline(reply_ms), 0,
                                  0 };
}

/* Returns the limits of a call that waits on the server for a key. */
static oari_request_limits limits_of_wait(const tcp_store *s,
                                          int64_t deadline_ns, int64_t grace_ms)
{
    int64_t reply = deadline_ns, now = oari_now_ns();

    if (reply != OARI_NEVER)
        reply = (reply > now ? reply : now) + grace_ms * INT64_C(1000000);
    return (oari_request_limits){ s->timeout_ms, reply, deadline_ns, 0 };
}

/* ---- operations ---------------------------------------------------------- */

static oari_wire_message make_request(int kind, const char *key)
{
    return (oari_wire_message){ .head.kind = kind,
                                .key = { key, strlen(key) } };
}

/* Sends a request whose reply borrows nothing that the caller reads. */
static oar_status ask_server(tcp_store *s, oari_wire_message *m,
                             oari_wire_message *reply)
{
    oari_request_limits patience = limits_of_call(s);
    oari_store_client *link;
    oar_status status;

    OARI_TRY(take_link(s, &link));
    status = oari_store_client_ask(link, m, &patience, reply);
    return_link(s, link);
    return status;
}

static oar_status change_value(void *self, oari_change *change)
{
    static const int kinds[] = {
        [OARI_CHANGE_SET] = OARI_WIRE_SET,
        [OARI_CHANGE_ADD] = OARI_WIRE_ADD,
        [OARI_CHANGE_COMPARE_SET] = OARI_WIRE_COMPARE_SET,
        [OARI_CHANGE_DELETE] = OARI_WIRE_DELETE,
    };
    oari_wire_message m = make_request(kinds[change->kind], change->key), reply;

    m.value = change->value;
    m.amount = change->delta;
    if (change->expected.data != NULL) {
        m.flag = 1;
        m.expected = change->expected;
    }
    OARI_TRY(ask_server(self, &m, &reply));
    change->sum = reply.amount;
    change->swapped = reply.flag != 0;
    return OAR_OK;
}

static oar_status clear_keys(void *self, const char *prefix)
{
    oari_wire_message m = make_request(OARI_WIRE_CLEAR, prefix), reply;

    return ask_server(self, &m, &reply);
}

/* Returns whether the server says that the time is over, not the network. */
static int is_server_timeout(oar_status status, const oari_wire_message *reply)
{
    return status == OAR_E_TIMEOUT && reply->head.status == OAR_E_TIMEOUT;
}

static oar_status get_value(void *self, const char *key, int64_t deadline_ns,
                            int once, oari_value *value)
{
    oari_wire_message m = make_request(OARI_WIRE_GET, key), reply = { 0 };
    oari_request_limits patience =
        limits_of_wait(self, deadline_ns, once ? GRACE_ONCE_MS : GRACE_MS);
    oari_store_client *link;
    oar_status status;

    patience.once = once;
    OARI_TRY(take_link(self, &link));
    status = oari_store_client_ask(link, &m, &patience, &reply);
    if (status == OAR_OK)
        status = oari_value_copy(reply.value.data, reply.value.bytes, value);
    else if (is_server_timeout(status, &reply))
        status = OAR_OK;
    return_link(self, link);
    return status;
}

/* Waits for up to WAIT_KEYS keys. */
static oar_status wait_some(tcp_store *s, int count, const char *const *key,
                            int64_t deadline_ns, int *missing)
{
    unsigned char *keys = oari_alloc((size_t)count, 4 + OAR_STORE_KEY_MAX);
    oari_wire_message m = { .head.kind = OARI_WIRE_WAIT }, reply = { 0 };
    oari_request_limits patience = limits_of_wait(s, deadline_ns, GRACE_MS);
    oari_store_client *link;
    oar_status status;

    if (keys == NULL)
        return OAR_E_NOMEM;
    m.keys.data = keys;
    m.count = (uint32_t)count;
    for (int i = 0; i < count; i++)
        m.keys.bytes += oari_wire_put_key(keys + m.keys.bytes, key[i]);
    if ((status = take_link(s, &link)) == OAR_OK) {
        status = oari_store_client_ask(link, &m, &patience, &reply);
        return_link(s, link);
    }
    oari_free(keys);
    if (!is_server_timeout(status, &reply))
        return status;
    *missing = reply.flag < (uint32_t)count ? (int)reply.flag : 0;
    return OAR_OK;
}

static oar_status wait_for_keys(void *self, int count, const char *const *key,
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

static oar_status list_keys(void *self, const char *prefix, oari_key_list *keys)
{
    oari_wire_message m = make_request(OARI_WIRE_LIST, prefix), reply;
    oari_request_limits patience = limits_of_call(self);
    char last[OAR_STORE_KEY_MAX + 1] = "";
    oari_store_client *link;
    oar_status status;

    OARI_TRY(take_link(self, &link));
    do {
        size_t at = 0;

        m.after = (oari_bytes){ last, strlen(last) };
        status = oari_store_client_ask(link, &m, &patience, &reply);
        for (uint32_t i = 0; status == OAR_OK && i < reply.count; i++) {
            oari_bytes key = oari_wire_next_key(&reply, &at);

            memcpy(last, key.data, key.bytes);
            last[key.bytes] = 0;
            status = oari_key_list_add(keys, last);
        }
    } while (status == OAR_OK && reply.flag != 0 && reply.count != 0);
    return_link(self, link);
    return status;
}

/* In a forked child the descriptors are closed already, and their numbers may
 * belong to other files. */
static void destroy_store(void *self)
{
    tcp_store *s = self;
    int is_forked = s->generation != oari_fork_generation();

    while (s->spare != NULL) {
        oari_store_client *link = s->spare;
        s->spare = link->next;
        if (is_forked)
            link->stream.fd = -1;
        oari_store_client_destroy(link);
    }
    pthread_mutex_destroy(&s->lock);
    oari_free(s->address);
    oari_trust_forget(&s->trust);
    oari_free(s);
}

static const char *get_address(void *self)
{
    return ((tcp_store *)self)->address;
}

static const oari_store_ops tcp_ops = {
    .change = change_value,
    .get = get_value,
    .wait = wait_for_keys,
    .list = list_keys,
    .clear = clear_keys,
    .address = get_address,
    .destroy = destroy_store,
};

oar_status oari_store_connect(const char *address, int64_t timeout_ms,
                              const oari_secret *secret, oar_store **store)
{
    tcp_store *s = oari_alloc(1, sizeof *s);
    oari_store_client *link;
    oar_status status;

    if (s == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->timeout_ms = timeout_ms;
    oari_fork_watch();
    s->generation = oari_fork_generation();
    s->address = oari_strdup(address);
    status =
        s->address != NULL ? oari_trust_make(secret, &s->trust) : OAR_E_NOMEM;
    if (status == OAR_OK && (status = take_link(s, &link)) == OAR_OK) {
        status = oari_store_client_connect(link, oari_deadline(timeout_ms));
        return_link(s, link);
    }
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        destroy_store(s);
        return oari_fail_with(&why);
    }
    return oari_store_wrap(&tcp_ops, s, store);
}

static oar_status reach_store(const char *address, int64_t timeout_ms,
                              const char *given, oar_store **store)
{
    oari_secret secret;
    oar_status status;

    if (address == NULL || store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_tcp without %s",
                         address == NULL ? "an address"
                                         : "a place for the store");
    OARI_TRY(oari_secret_given(given, &secret));
    status = oari_store_connect(address, timeout_ms, &secret, store);
    oari_secret_forget(&secret);
    return status;
}

oar_status oar_store_create_tcp(const char *address, int64_t timeout_ms,
                                oar_store **store)
{
    return reach_store(address, timeout_ms, NULL, store);
}

oar_status oar_store_create_tcp_with(const char *address,
                                     const oar_store_opts *opts,
                                     oar_store **store)
{
    enum { DEFAULT_MS = 60000 };
    oar_store_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    return reach_store(address, o.timeout_ms != 0 ? o.timeout_ms : DEFAULT_MS,
                       o.secret, store);
}
