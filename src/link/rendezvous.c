/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous: a wait in slices. Between them it says what it waits for, and
 * asks whether the launcher knows that the missing rank has ended. */
#include "link/rendezvous.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/status.h"
#include "record/recorder_host.h"
#include "link/link.h"
#include "store/store.h"

enum { SLICE_MS = 500, NAMED_MAX = 16 };

static const int64_t say_after_ms[] = { 1000, 30000 };
enum { SAY_TIMES = sizeof say_after_ms / sizeof *say_after_ms };

/* ---- saying -------------------------------------------------------------- */

static int is_missing(const oari_rendezvous *r, int rank)
{
    char text[OAR_STORE_KEY_MAX];
    const char *key = text;

    r->key(r->arg, rank, text, sizeof text);
    return oar_store_wait(r->store, 1, &key, 0) == OAR_E_TIMEOUT;
}

/* "rank 1", "ranks 1, 3, 4"; at most so many. */
static void list_missing(const oari_rendezvous *r, int peer, char *text,
                         size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "rank %d", peer);
    int named = 1;

    for (int i = peer + 1; r->key != NULL && i < r->ranks; i++) {
        if (i == r->rank || !is_missing(r, i))
            continue;
        if (named++ == 1)
            used = (size_t)snprintf(text, bytes, "ranks %d", peer);
        if (named > NAMED_MAX) {
            snprintf(text + used, bytes - used, " and others");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, ", %d", i);
    }
}

/* Under `oarsong run` all lines come out in one place: two ranks are enough. */
static oar_log_level level_of(const oari_rendezvous *r)
{
    return r->rank > 1 && oari_env_text("OARSONG_RUN_ID") != NULL
               ? OAR_LOG_INFO
               : OAR_LOG_WARN;
}

static void say(oari_rendezvous *r, int peer, int64_t deadline_ns)
{
    const char *at = oari_store_address(r->store);
    char self[OARI_NAME_MAX + 64], who[160], age[32];
    char left[48] = "it does not give up";

    list_missing(r, peer, who, sizeof who);
    oari_duration_text(oari_now_ns() - r->start_ns, age, sizeof age);
    if (deadline_ns != OARI_NEVER)
        snprintf(left, sizeof left, "it gives up in %" PRId64 " s",
                 (deadline_ns - oari_now_ns()) / 1000000000);
    if (r->group != NULL)
        snprintf(self, sizeof self, "group \"%s\", rank %d", r->group, r->rank);
    else
        snprintf(self, sizeof self, "rank %d", r->rank);
    oari_log(level_of(r), "%s has waited %s for %s to join%s%s; %s", self, age,
             who, at != NULL ? ", at the store " : "", at != NULL ? at : "",
             left);
    r->said++;
}

/* ---- ends ---------------------------------------------------------------- */

void oari_ended_key(int rank, char key[OARI_ENDED_KEY])
{
    snprintf(key, OARI_ENDED_KEY, "launcher/ended/%d", rank);
}

/* The launcher counts ranks of the job, which this group's must be. */
static int is_whole_job(const oari_rendezvous *r)
{
    int64_t rank = -1, size = -1;

    return oari_env_text("OARSONG_RUN_ID") != NULL &&
           oari_env_int("OARSONG_RANK", 0, INT_MAX, &rank) == OAR_OK &&
           oari_env_int("OARSONG_SIZE", 1, INT_MAX, &size) == OAR_OK &&
           rank == r->rank && size == r->ranks;
}

/* How the rank ended; -1: it has not, as far as is known. */
static int code_of(const oari_rendezvous *r, int peer)
{
    char key[OARI_ENDED_KEY];
    void *value = NULL;
    size_t bytes;
    int code;

    oari_ended_key(peer, key);
    if (!is_whole_job(r) ||
        oar_store_get(r->store, key, 0, &value, &bytes) != OAR_OK)
        return -1;
    code = atoi(value);
    oari_free(value);
    return code >= 0 ? code : -1;
}

/* ---- waiting ------------------------------------------------------------- */

static int64_t next_look(const oari_rendezvous *r, int64_t deadline_ns)
{
    int64_t slice = oari_deadline(SLICE_MS);

    if (r->said < SAY_TIMES) {
        int64_t at = r->start_ns + say_after_ms[r->said] * 1000000;
        slice = at < slice ? at : slice;
    }
    return slice < deadline_ns ? slice : deadline_ns;
}

static oar_status too_late(const oari_rendezvous *r, int peer)
{
    const char *group = r->group != NULL ? r->group : "world";

    return oari_about(
        peer, oari_fail(OAR_E_TIMEOUT,
                        "rank %d did not join group \"%s\" in %" PRId64 " ms",
                        peer, group, r->timeout_ms));
}

/* Its last word may have come just before its end was told. */
static oar_status has_ended(const oari_rendezvous *r, const char *key, int peer,
                            int code, void **value, size_t *bytes)
{
    oar_status status = oar_store_get(r->store, key, 0, value, bytes);

    if (status != OAR_E_TIMEOUT)
        return status;
    return oari_about(
        peer, oari_fail(OAR_E_PEER,
                        "rank %d ended with code %d before it joined group "
                        "\"%s\"",
                        peer, code, r->group));
}

oar_status oari_rendezvous_get(oari_rendezvous *r, const char *key, int peer,
                               int64_t deadline_ns, void **value, size_t *bytes)
{
    if (r->start_ns == 0)
        r->start_ns = oari_now_ns();
    for (;;) {
        int64_t look_ns = next_look(r, deadline_ns);
        oar_status status = oar_store_get(
            r->store, key, oari_deadline_left_ms(look_ns), value, bytes);
        int code;

        if (status == OAR_E_CLOSED) /* a slice is short for reaching it again */
            status =
                oar_store_get(r->store, key, oari_deadline_left_ms(deadline_ns),
                              value, bytes);
        if (status != OAR_E_TIMEOUT)
            return status;
        if (oari_now_ns() >= deadline_ns)
            return too_late(r, peer);
        if ((code = code_of(r, peer)) >= 0)
            return has_ended(r, key, peer, code, value, bytes);
        if (r->said < SAY_TIMES &&
            oari_now_ns() >=
                r->start_ns + say_after_ms[r->said] * INT64_C(1000000))
            say(r, peer, deadline_ns);
    }
}

/* ---- signing in ---------------------------------------------------------- */

enum { SIGNATURE = 256 };

static void write_signature(const oari_recorder_head *h, char text[SIGNATURE])
{
    snprintf(text, SIGNATURE, "%lld %llu %llu %.40s %.64s",
             (long long)atomic_load(&h->owner),
             (unsigned long long)h->pid_space, (unsigned long long)h->started,
             h->boot, h->host);
}

static int read_signature(const char *text, oari_recorder_head *h)
{
    long long pid;
    unsigned long long space, started;

    if (sscanf(text, "%lld %llu %llu %39s %63s", &pid, &space, &started,
               h->boot, h->host) < 4)
        return 0;
    atomic_store(&h->owner, pid);
    h->pid_space = space;
    h->started = started;
    return 1;
}

static int lives(oari_process_state life)
{
    return life == OARI_PROCESS_RUNS || life == OARI_PROCESS_SLEEPS ||
           life == OARI_PROCESS_STOPPED;
}

static oar_status check_signature(const char *group, int rank, const char *text,
                                  const oari_recorder_head *mine)
{
    oari_recorder_head *other = oari_alloc(1, sizeof *other);
    oar_status status = OAR_OK;

    if (other == NULL)
        return OAR_E_NOMEM;
    if (read_signature(text, other) &&
        lives(oari_host_process_state(other, mine)))
        status = oari_fail(OAR_E_RANK,
                           "rank %d of group \"%s\" is there twice: process "
                           "%lld has joined as that rank, too (this is process "
                           "%d)",
                           rank, group, (long long)atomic_load(&other->owner),
                           (int)getpid());
    oari_free(other);
    return status;
}

/* Of the same process, of one that has ended, or of another host, about which
 * nothing is known: then this one takes its place. */
static oar_status sign_over(oar_store *store, const char *group, int rank,
                            const char *key, const char *mine,
                            const oari_recorder_head *head)
{
    oar_status status = OAR_OK;
    void *text = NULL;
    size_t bytes;

    if (oar_store_get(store, key, 0, &text, &bytes) == OAR_OK) {
        if (strcmp(text, mine) != 0)
            status = check_signature(group, rank, text, head);
        oari_free(text);
    }
    return status != OAR_OK ? status
                            : oar_store_set(store, key, mine, strlen(mine));
}

oar_status oari_rendezvous_sign(oar_store *store, const char *group, int rank)
{
    char key[OARI_NAME_MAX + 32], mine[SIGNATURE];
    oari_recorder_head *head = oari_alloc(1, sizeof *head);
    oar_status status;
    int first = 0;

    if (head == NULL)
        return OAR_E_NOMEM;
    oari_host_sign(head);
    atomic_store(&head->owner, getpid());
    write_signature(head, mine);
    snprintf(key, sizeof key, "%s/process/%d", group, rank);
    status =
        oar_store_compare_set(store, key, NULL, 0, mine, strlen(mine), &first);
    if (status == OAR_OK && !first)
        status = sign_over(store, group, rank, key, mine, head);
    oari_free(head);
    return status;
}
