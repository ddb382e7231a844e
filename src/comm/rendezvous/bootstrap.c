/* SPDX-License-Identifier: Apache-2.0 */
/* bootstrap: a store for as long as the ranks need it.
 *
 * Rank 0's server ends with its groups, and the next group may meet at the same
 * address: a rank that is early must not take the old server for the new one.
 * So rank 0 opens each rendezvous, by a key that the others wait for, and
 * closes it before any rank leaves; and it is the last to leave.
 */
#include "comm/rendezvous/bootstrap.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/rendezvous/pmix.h"
#include "link/link.h"
#include "link/rendezvous.h"
#include "net/secret.h"
#include "net/sock.h"
#include "store/store.h"
#include "store/store_client.h"
#include "store/store_server.h"

enum {
    PROBE_MS = 10000, /* within which a server at a used address must answer */
    LEAVE_MS = 5000   /* within which all must meet, and then leave */
};

static int64_t limit_timeout(int64_t timeout_ms, int64_t limit_ms)
{
    return timeout_ms < 0 || timeout_ms > limit_ms ? limit_ms : timeout_ms;
}

typedef struct store_key {
    char text[OARI_NAME_MAX + 32];
} store_key;

static store_key make_key(const char *what, int64_t turn, const char *name)
{
    store_key key;

    snprintf(key.text, sizeof key.text, "%s/%" PRId64 "/%.*s", what, turn,
             OARI_NAME_MAX, name != NULL ? name : "world");
    return key;
}

/* ---- at a TCP address ---------------------------------------------------- */

static oar_status reach(const char *address, int64_t timeout_ms,
                        oari_bootstrap *bootstrap)
{
    oari_secret secret;
    oar_status status;

    OARI_TRY(oari_secret_given(bootstrap->secret, &secret));
    status =
        oari_store_connect(address, timeout_ms, &secret, &bootstrap->store);
    oari_secret_forget(&secret);
    return status;
}

/* Connects to a store that is already served at the address: by a launcher, or
 * by an earlier group of this process. */
static oar_status join_other(const char *address, int64_t timeout_ms,
                             oari_bootstrap *bootstrap)
{
    oar_error why;

    if (reach(address, limit_timeout(timeout_ms, PROBE_MS), bootstrap) ==
        OAR_OK)
        return OAR_OK;
    why = *oar_last_error();
    if (why.status == OAR_E_AUTH)
        return oari_fail(OAR_E_AUTH,
                         "rank 0 cannot serve the store: %s is in use by "
                         "another job (%.300s)",
                         address, why.text);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "rank 0 cannot serve the store: %s is in use, and not by "
                     "a store of ours (%.300s)",
                     address, why.text);
}

static oar_status connect_to(const char *address, int rank, int64_t timeout_ms,
                             oari_bootstrap *bootstrap)
{
    oar_store_opts opts = { .size = sizeof opts, .secret = bootstrap->secret };

    if (rank != 0)
        return reach(address, timeout_ms, bootstrap);
    if (oar_store_serve_with(address, &opts, &bootstrap->server) == OAR_OK)
        return reach(oar_store_server_address(bootstrap->server), timeout_ms,
                     bootstrap);
    if (oar_last_error()->sys_errno != EADDRINUSE)
        return oar_last_error()->status;
    return join_other(address, timeout_ms, bootstrap);
}

/* Waits until rank 0 has set the key, and gives its value. */
static oar_status get_from_first(oar_store *store, const char *key,
                                 const char *name, int rank,
                                 int64_t deadline_ns, void **value)
{
    oari_rendezvous r = { .store = store, .group = name, .rank = rank };
    size_t bytes;

    return oari_rendezvous_get(&r, key, 0, deadline_ns, value, &bytes);
}

oar_status oari_bootstrap_tcp(const char *address, int rank, const char *name,
                              int64_t timeout_ms, oari_bootstrap *bootstrap)
{
    int64_t deadline_ns = oari_deadline(timeout_ms);
    store_key open = make_key("open", 0, name);
    const char *colon = strrchr(address, ':');
    void *nothing = NULL;
    oar_status status;

    if (colon != NULL && strspn(colon + 1, "0") == strlen(colon + 1))
        return oari_fail(OAR_E_ARG, "ranks cannot meet at %s: give a port",
                         address);
    bootstrap->counted = 1;
    OARI_TRY(connect_to(address, rank, timeout_ms, bootstrap));
    if (rank == 0)
        return oar_store_set(bootstrap->store, open.text, "", 0);
    status = get_from_first(bootstrap->store, open.text, name, rank,
                            deadline_ns, &nothing);
    oari_free(nothing);
    if (status == OAR_E_TIMEOUT)
        return oari_fail(OAR_E_TIMEOUT,
                         "rank 0 did not join the rendezvous at %s in %" PRId64
                         " ms",
                         address, timeout_ms);
    return status;
}

/* ---- in a folder --------------------------------------------------------- */

/* Makes the folder. Fails if another user may have put it there. */
static oar_status make_own_folder(const char *folder)
{
    struct stat info;

    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return oari_fail(OAR_E_SYSTEM, "make folder %s", folder);
    if (lstat(folder, &info) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at folder %s", folder);
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 077) != 0)
        return oari_fail(OAR_E_AUTH,
                         "%s is not a folder of this user's alone: it may be "
                         "a trap",
                         folder);
    return OAR_OK;
}

/* The folder only says where rank 0 serves, and with which secret: it is
 * removed after the rendezvous, but the group needs a store as long as groups
 * may be made of it. */
static const char address_key[] = "address", secret_key[] = "secret";

static oar_status open_server(int64_t timeout_ms, const oari_secret *secret,
                              oari_bootstrap *bootstrap)
{
    const char *address;
    char text[OARI_SECRET_HEX];

    OARI_TRY(oari_store_serve("127.0.0.1:0", &oari_store_default_limits, secret,
                              &bootstrap->server));
    address = oar_store_server_address(bootstrap->server);
    oari_secret_text(secret, text);
    OARI_TRY(oar_store_set(bootstrap->door, secret_key, text, strlen(text)));
    OARI_TRY(
        oar_store_set(bootstrap->door, address_key, address, strlen(address)));
    return oari_store_connect(address, timeout_ms, secret, &bootstrap->store);
}

static oar_status find_server(int rank, int64_t timeout_ms, oari_secret *secret,
                              oari_bootstrap *bootstrap)
{
    oar_status status;
    void *address, *text;
    size_t bytes;

    OARI_TRY(get_from_first(bootstrap->door, address_key, NULL, rank,
                            oari_deadline(timeout_ms), &address));
    status =
        oar_store_get(bootstrap->door, secret_key, timeout_ms, &text, &bytes);
    if (status == OAR_OK) {
        status =
            oari_secret_parse("the secret of this rendezvous", text, secret);
        oar_free(text);
    }
    if (status == OAR_OK)
        status =
            oari_store_connect(address, timeout_ms, secret, &bootstrap->store);
    oar_free(address);
    return status;
}

oar_status oari_bootstrap_folder(const char *folder, int rank,
                                 int64_t timeout_ms, oari_bootstrap *bootstrap)
{
    oari_secret secret = { .known = 0 };
    oar_status status;

    OARI_TRY(make_own_folder(folder));
    OARI_TRY(oar_store_create_file(folder, &bootstrap->door));
    bootstrap->counted = 1;
    if (rank != 0)
        status = find_server(rank, timeout_ms, &secret, bootstrap);
    else {
        status = oari_secret_make(&secret);
        if (status == OAR_OK)
            status = open_server(timeout_ms, &secret, bootstrap);
    }
    oari_secret_forget(&secret);
    return status;
}

/* ---- by PMIx -------------------------------------------------------------
 * Ranks on several hosts that have no address or secret, but whose launcher
 * speaks PMIx, get both from rank 0. A process that can read what PMIx carries
 * can join the job. */

oar_status oari_bootstrap_secret(int rank, int64_t timeout_ms)
{
    char word[OARI_SECRET_HEX] = "";
    oari_secret secret;
    oar_status status = OAR_OK;

    OARI_TRY(oari_secret_find(&secret));
    if (secret.known)
        return oari_secret_forget(&secret), OAR_OK;
    if (rank == 0) {
        status = oari_secret_make(&secret);
        if (status == OAR_OK)
            oari_secret_text(&secret, word);
    }
    if (status == OAR_OK)
        status = oari_pmix_share(rank, "oarsong.secret", timeout_ms, word,
                                 sizeof word);
    if (status == OAR_OK)
        status = oari_secret_parse("the secret by PMIx", word, &secret);
    explicit_bzero(word, sizeof word);
    if (status == OAR_OK)
        oari_secret_adopt(&secret);
    oari_secret_forget(&secret);
    return status;
}

/* Rank 0 serves at a port of the system's choice. */
oar_status oari_bootstrap_pmix(const char *toward, int rank, int64_t timeout_ms,
                               oari_bootstrap *bootstrap)
{
    static _Atomic int times; /* all ranks come here equally often */
    char key[48], address[OARI_SOCK_TEXT] = "";

    if (!oari_pmix_here(rank))
        return oari_fail(OAR_E_UNAVAILABLE,
                         "rank %d cannot meet the others by PMIx: the launcher "
                         "does not speak it (Open MPI's mpirun and srun "
                         "--mpi=pmix do)",
                         rank);
    OARI_TRY(oari_bootstrap_secret(rank, timeout_ms));
    if (rank == 0) {
        OARI_TRY(oari_sock_local(toward, address));
        OARI_TRY(oar_store_serve(address, &bootstrap->server));
        snprintf(address, sizeof address, "%s",
                 oar_store_server_address(bootstrap->server));
    }
    snprintf(key, sizeof key, "oarsong.store.%d", atomic_fetch_add(&times, 1));
    OARI_TRY(oari_pmix_share(rank, key, timeout_ms, address, sizeof address));
    bootstrap->counted = 1;
    return oar_store_create_tcp(address, timeout_ms, &bootstrap->store);
}

/* ---- the end of a rendezvous --------------------------------------------- */

/* Counts this rank in. The last rank sets a key that says that all have come,
 * for which ranks with `wait` wait. The count grows over all groups of one name
 * and so says which of them this is. */
static oar_status count_in(oar_store *store, const oari_bootstrap_group *g,
                           const char *what, int wait)
{
    store_key count = make_key(what, 0, g->name), all;
    const char *key;
    int64_t sum = 0, turn;

    OARI_TRY(oar_store_add(store, count.text, 1, &sum));
    turn = (sum + g->ranks - 1) / g->ranks;
    all = make_key(what, turn, g->name);
    key = all.text;
    if (sum == turn * g->ranks)
        OARI_TRY(oar_store_set(store, key, "", 0));
    if (!wait)
        return OAR_OK;
    return oar_store_wait(store, 1, &key,
                          limit_timeout(g->timeout_ms, LEAVE_MS));
}

/* Rank 0 waits until all ranks have met and left, the others until all have
 * met. */
void oari_bootstrap_leave(oari_bootstrap *bootstrap,
                          const oari_bootstrap_group *g)
{
    oar_store *store = bootstrap->store;
    int all_left = bootstrap->counted && g != NULL;

    if (all_left && g->rank == 0)
        oar_store_delete(store, make_key("open", 0, g->name).text);
    all_left = all_left && count_in(store, g, "met", 1) == OAR_OK &&
               count_in(store, g, "left", g->rank == 0) == OAR_OK;
    if (bootstrap->door != NULL && (g == NULL || (g->rank == 0 && all_left)))
        oar_store_clear(bootstrap->door);
    oar_store_destroy(bootstrap->door);
    oar_store_destroy(store);
}

oar_status oari_bootstrap_explain(const oari_bootstrap *bootstrap)
{
    oar_error why = *oar_last_error();
    oar_error refused;

    if (oari_store_refused(bootstrap->server) == OAR_OK)
        return oari_fail_with(&why);
    refused = *oar_last_error();
    return oari_fail(OAR_E_AUTH, "%.120s: %.380s", why.text, refused.text);
}
