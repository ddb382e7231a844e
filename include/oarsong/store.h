/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: a small key-value rendezvous, where ranks find each other.
 *
 * Keys are texts of 1 to 200 bytes (in a file store, whose keys are file names,
 * of at most 250 when all but letters, digits, '-' and '_' count for three),
 * values up to OAR_STORE_VALUE_MAX bytes. Any
 * thread may use a store; calls on one store never mix their effects. A timeout
 * below zero waits for ever, zero does not wait.
 */
#ifndef OARSONG_STORE_H
#define OARSONG_STORE_H

#include <oarsong/memory.h>

OAR_BEGIN_DECLS

enum { OAR_STORE_KEY_MAX = 200, OAR_STORE_VALUE_MAX = 1 << 20 };

typedef struct oar_store oar_store;

/* In this process only: for ranks that are threads. */
OAR_API oar_status oar_store_create_memory(oar_store **store);

/* A folder on a disk that all ranks see; it is made if it is not there. What
 * is stored stays until oar_store_clear: give every job a folder of its own.
 * Changes are made one after the other, under a lock of the folder: if another
 * process keeps it for 30 s (because it is stopped in the middle), a change is
 * OAR_E_TIMEOUT and has not been made. Groups that are being made wait for it
 * as long as their own timeout says. */
OAR_API oar_status oar_store_create_file(const char *folder, oar_store **store);

/* The keys of another store that begin with `prefix` (1 to 199 bytes), without
 * it: a namespace. Clearing it removes only those. Keeps the other store alive;
 * the prefix counts for the length of keys. */
OAR_API oar_status oar_store_create_prefix(oar_store *parent,
                                           const char *prefix,
                                           oar_store **store);

/* The store that a server keeps, anywhere on the network: "host:port" or
 * "[v6]:port". Waits for the server to be there, up to timeout_ms (0: one
 * attempt). A call that loses its connection makes a new one and repeats
 * itself, within that time again (a get or wait within its own time, if that is
 * less but at least a second); whatever it asked for is done once. A failure to
 * reach the server is OAR_E_CLOSED, one that does not answer OAR_E_TIMEOUT, and
 * a host that nobody knows OAR_E_NOT_FOUND, at once. A server that is not there
 * after a second is logged.
 * Where the job has a secret (OARSONG_SECRET, OARSONG_SECRET_FILE), both ends
 * must know it, and between hosts all is encrypted: a server without it, with
 * another, or, between hosts, no secret at all is OAR_E_AUTH, at once. A child
 * made by fork must make its own: calls on an inherited one are
 * OAR_E_STATE. */
OAR_API oar_status oar_store_create_tcp(const char *address, int64_t timeout_ms,
                                        oar_store **store);

/* How a store is served or reached. */
typedef struct oar_store_opts {
    size_t size;
    const char *secret; /* 64 hex digits that both ends give alike; NULL: the
                           job's, if it has one */
    int64_t timeout_ms; /* of reaching it, as above; 0: 60 s, below 0: for
                           ever */
} oar_store_opts;
OAR_OPTS_INIT(oar_store_opts);

/* The same with a secret that is given, so that one process can be part of
 * several jobs. OAR_E_ARG for one that is not 64 hex digits. */
OAR_API oar_status oar_store_create_tcp_with(const char *address,
                                             const oar_store_opts *opts,
                                             oar_store **store);

/* The store of the job, as `oarsong run` gives it: OARSONG_STORE, which is
 * file:FOLDER or tcp:HOST:PORT. OAR_E_UNAVAILABLE if it is not set. */
OAR_API oar_status oar_store_from_env(oar_store **store);

/* Gives up the handle. NULL is fine. Keys stay where they are. No other thread
 * may be using it. */
OAR_API void oar_store_destroy(oar_store *store);

/* Puts a value under a key, at once as a whole, over one that was there. */
OAR_API oar_status oar_store_set(oar_store *store, const char *key,
                                 const void *value, size_t bytes);

/* Waits until the key is there and gives its value (oar_free it; it ends in a
 * zero byte that is not counted). OAR_E_TIMEOUT names the key. */
OAR_API oar_status oar_store_get(oar_store *store, const char *key,
                                 int64_t timeout_ms, void **value,
                                 size_t *bytes);

/* Adds to the whole number under a key (0 if there is none), as one step, and
 * gives the sum. The value is kept as decimal text. */
OAR_API oar_status oar_store_add(oar_store *store, const char *key,
                                 int64_t delta, int64_t *sum);

/* Puts `wanted` under the key if it now holds `expected` (NULL: if it is not
 * there), as one step; *swapped says whether it did. */
OAR_API oar_status oar_store_compare_set(oar_store *store, const char *key,
                                         const void *expected,
                                         size_t expected_bytes,
                                         const void *wanted,
                                         size_t wanted_bytes, int *swapped);

/* Removes a key; OAR_E_NOT_FOUND if it is not there. */
OAR_API oar_status oar_store_delete(oar_store *store, const char *key);

/* Waits until all keys are there. OAR_E_TIMEOUT names the first that is not. */
OAR_API oar_status oar_store_wait(oar_store *store, int count,
                                  const char *const *key, int64_t timeout_ms);

/* Gives the keys that begin with `prefix` ("" or NULL: all), sorted by their
 * bytes, with a NULL behind the last. One oar_free frees all. Keys set or
 * removed meanwhile may be in it or not. */
OAR_API oar_status oar_store_list(oar_store *store, const char *prefix,
                                  int *count, char ***keys);

/* Removes every key; a file store's folder too. */
OAR_API oar_status oar_store_clear(oar_store *store);

/* ---- serving ------------------------------------------------------------- */

typedef struct oar_store_server oar_store_server;

/* Serves a store in this process, by a thread of its own, to every client that
 * connects there and knows the secret that this process has now; without one,
 * to every client on this host (OARSONG_WIRE=plain: on any host). It is exactly
 * at this address (port 0: at a free one). Memory is bounded: what clients send
 * that is no request is dropped, and a full store says so. */
OAR_API oar_status oar_store_serve(const char *address,
                                   oar_store_server **server);

/* The same for clients that know the secret that is given. */
OAR_API oar_status oar_store_serve_with(const char *address,
                                        const oar_store_opts *opts,
                                        oar_store_server **server);

/* "ip:port", where it is; borrowed. "" for NULL. */
OAR_API const char *oar_store_server_address(const oar_store_server *server);

/* Ends it, with all it keeps. NULL is fine. In a child made by fork it does
 * nothing. */
OAR_API void oar_store_server_destroy(oar_store_server *server);

OAR_END_DECLS

#endif
