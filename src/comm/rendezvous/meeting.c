/* SPDX-License-Identifier: Apache-2.0 */
/* meeting: a store for as long as the ranks need it.
 *
 * Rank 0's server goes with its groups, and the next group may meet at the same
 * address: a rank that is early must not take the old server for the new one.
 * So rank 0 opens each meeting, by a key that the others wait for, and closes
 * it before anybody leaves; and it is the last to leave. */
#include "comm/rendezvous/meeting.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/link.h"
#include "link/rendezvous.h"
#include "store/store.h"
#include "store/store_link.h"
#include "store/store_server.h"

enum {
    PROBE_MS = 10000, /* for a server at an address that is taken */
    LEAVE_MS = 5000   /* for all to have met, and for all to have left */
};

static int64_t at_most(int64_t timeout_ms, int64_t limit_ms)
{
    return timeout_ms < 0 || timeout_ms > limit_ms ? limit_ms : timeout_ms;
}

typedef struct meeting_key {
    char text[OARI_NAME_MAX + 32];
} meeting_key;

static meeting_key key_of(const char *what, int64_t turn, const char *name)
{
    meeting_key key;

    snprintf(key.text, sizeof key.text, "%s/%" PRId64 "/%.*s", what, turn,
             OARI_NAME_MAX, name != NULL ? name : "world");
    return key;
}

/* ---- places -------------------------------------------------------------- */

static int ends_in_port_0(const char *address)
{
    const char *colon = strrchr(address, ':');

    return colon != NULL && strspn(colon + 1, "0") == strlen(colon + 1);
}

/* Somebody has the address already: a launcher that serves the store, or an
 * earlier group of this process. */
static oar_status join_other(const char *address, int64_t timeout_ms,
                             oari_meeting *meeting)
{
    oar_error why;

    if (oar_store_create_tcp(address, at_most(timeout_ms, PROBE_MS),
                             &meeting->store) == OAR_OK)
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
                             oari_meeting *meeting)
{
    if (rank != 0)
        return oar_store_create_tcp(address, timeout_ms, &meeting->store);
    if (oar_store_serve(address, &meeting->server) == OAR_OK)
        return oar_store_create_tcp(oar_store_server_address(meeting->server),
                                    timeout_ms, &meeting->store);
    if (oar_last_error()->sys_errno != EADDRINUSE)
        return oar_last_error()->status;
    return join_other(address, timeout_ms, meeting);
}

/* Waits until rank 0 has put the key there. */
static oar_status get_from_first(oar_store *store, const char *key,
                                 const char *name, int rank,
                                 int64_t deadline_ns, void **value)
{
    oari_rendezvous r = { .store = store, .group = name, .rank = rank };
    size_t bytes;

    return oari_rendezvous_get(&r, key, 0, deadline_ns, value, &bytes);
}

oar_status oari_meeting_tcp(const char *address, int rank, const char *name,
                            int64_t timeout_ms, oari_meeting *meeting)
{
    int64_t deadline_ns = oari_deadline(timeout_ms);
    meeting_key open = key_of("open", 0, name);
    void *nothing = NULL;
    oar_status status;

    if (ends_in_port_0(address))
        return oari_fail(OAR_E_ARG, "ranks cannot meet at %s: give a port",
                         address);
    meeting->counted = 1;
    OARI_TRY(connect_to(address, rank, timeout_ms, meeting));
    if (rank == 0)
        return oar_store_set(meeting->store, open.text, "", 0);
    status = get_from_first(meeting->store, open.text, name, rank, deadline_ns,
                            &nothing);
    oari_free(nothing);
    if (status == OAR_E_TIMEOUT)
        return oari_fail(OAR_E_TIMEOUT,
                         "rank 0 did not come to the meeting at %s in %" PRId64
                         " ms",
                         address, timeout_ms);
    return status;
}

/* Nobody else may have put the folder there. */
static oar_status make_own(const char *folder)
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

/* The folder only says where rank 0 serves, and by which secret: it goes after
 * the meeting, but the group needs a store as long as groups may be made of it.
 */
static const char address_key[] = "address", secret_key[] = "secret";

static oar_status open_server(int64_t timeout_ms, const oari_secret *secret,
                              oari_meeting *meeting)
{
    const char *address;
    char text[OARI_SECRET_HEX];

    OARI_TRY(oari_store_serve("127.0.0.1:0", &oari_store_default_limits, secret,
                              &meeting->server));
    address = oar_store_server_address(meeting->server);
    oari_secret_text(secret, text);
    OARI_TRY(oar_store_set(meeting->door, secret_key, text, strlen(text)));
    OARI_TRY(
        oar_store_set(meeting->door, address_key, address, strlen(address)));
    return oari_store_join(address, timeout_ms, secret, &meeting->store);
}

static oar_status read_secret(oar_store *door, int64_t timeout_ms,
                              oari_secret *secret)
{
    oar_status status;
    void *text;
    size_t bytes;

    OARI_TRY(oar_store_get(door, secret_key, timeout_ms, &text, &bytes));
    status = oari_secret_parse("the secret of this meeting", text, secret);
    oar_free(text);
    return status;
}

static oar_status find_server(int rank, int64_t timeout_ms, oari_secret *secret,
                              oari_meeting *meeting)
{
    oar_status status;
    void *text;

    OARI_TRY(get_from_first(meeting->door, address_key, NULL, rank,
                            oari_deadline(timeout_ms), &text));
    status = read_secret(meeting->door, timeout_ms, secret);
    if (status == OAR_OK)
        status = oari_store_join(text, timeout_ms, secret, &meeting->store);
    oar_free(text);
    return status;
}

static oar_status meet_behind(int rank, int64_t timeout_ms,
                              oari_meeting *meeting)
{
    oari_secret secret = { .known = 0 };
    oar_status status = rank == 0 ? oari_secret_make(&secret) : OAR_OK;

    if (status == OAR_OK)
        status = rank == 0 ? open_server(timeout_ms, &secret, meeting)
                           : find_server(rank, timeout_ms, &secret, meeting);
    oari_secret_forget(&secret);
    return status;
}

oar_status oari_meeting_folder(const char *folder, int rank, int64_t timeout_ms,
                               oari_meeting *meeting)
{
    OARI_TRY(make_own(folder));
    OARI_TRY(oar_store_create_file(folder, &meeting->door));
    meeting->counted = 1;
    return meet_behind(rank, timeout_ms, meeting);
}

/* ---- coming and going ---------------------------------------------------- */

/* Every rank counts itself; the last of `size` says that all have come, for
 * which some wait. A number that grows over many groups of one name says which
 * of them that was. */
static oar_status pass(oar_store *store, const oari_party *g, const char *what,
                       int wait)
{
    meeting_key count = key_of(what, 0, g->name), all;
    const char *key;
    int64_t sum = 0, turn;

    OARI_TRY(oar_store_add(store, count.text, 1, &sum));
    turn = (sum + g->ranks - 1) / g->ranks;
    all = key_of(what, turn, g->name);
    key = all.text;
    if (sum == turn * g->ranks)
        OARI_TRY(oar_store_set(store, key, "", 0));
    if (!wait)
        return OAR_OK;
    return oar_store_wait(store, 1, &key, at_most(g->timeout_ms, LEAVE_MS));
}

/* Whether everybody has met, and, for rank 0, left. */
static int see_all_off(oar_store *store, const oari_party *g)
{
    if (g->rank == 0)
        oar_store_delete(store, key_of("open", 0, g->name).text);
    return pass(store, g, "met", 1) == OAR_OK &&
           pass(store, g, "left", g->rank == 0) == OAR_OK;
}

void oari_meeting_leave(oari_meeting *meeting, const oari_party *g)
{
    int all_left =
        meeting->counted && g != NULL && see_all_off(meeting->store, g);

    if (meeting->door != NULL && (g == NULL || (g->rank == 0 && all_left)))
        oar_store_clear(meeting->door);
    oar_store_destroy(meeting->door);
    oar_store_destroy(meeting->store);
}

oar_status oari_meeting_explain(const oari_meeting *meeting)
{
    oar_error why = *oar_last_error();
    oar_error refused;

    if (oari_store_refused(meeting->server) == OAR_OK)
        return oari_fail_with(&why);
    refused = *oar_last_error();
    return oari_fail(OAR_E_AUTH, "%.120s: %.380s", why.text, refused.text);
}
