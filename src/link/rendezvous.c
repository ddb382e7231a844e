/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous: a wait in slices. Between them it logs what it waits for, and asks
 * whether the launcher knows that the missing rank has ended. */
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

/* ---- warnings ------------------------------------------------------------ */

/* Writes "rank 1" or "ranks 1, 3, 4", of NAMED_MAX ranks at most. */
static void list_missing(const oari_rendezvous *r, int peer, char *text,
                         size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "rank %d", peer);
    int named = 1;

    for (int i = peer + 1; r->key != NULL && i < r->ranks; i++) {
        char name[OAR_STORE_KEY_MAX];
        const char *key = name;

        r->key(r->arg, i, name, sizeof name);
        if (i == r->rank ||
            oar_store_wait(r->store, 1, &key, 0) != OAR_E_TIMEOUT)
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

/* Under `oarsong run` all lines are shown in one place: two ranks are enough. */
static void log_missing(oari_rendezvous *r, int peer, int64_t deadline_ns)
{
    const char *at = oari_store_address(r->store);
    int quiet = r->rank > 1 && oari_env_text("OARSONG_RUN_ID") != NULL;
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
    oari_log(quiet ? OAR_LOG_INFO : OAR_LOG_WARN,
             "%s has waited %s for %s to join%s%s; %s", self, age, who,
             at != NULL ? ", at the store " : "", at != NULL ? at : "", left);
    r->said++;
}

/* ---- ranks that have ended ----------------------------------------------- */

void oari_ended_key(int rank, char key[OARI_ENDED_KEY])
{
    snprintf(key, OARI_ENDED_KEY, "launcher/ended/%d", rank);
}

/* Returns the exit code of a rank that has ended; -1: it has not, as far as is
 * known. The launcher counts ranks of the job, which this group's must be. */
static int exit_code(const oari_rendezvous *r, int peer)
{
    int64_t rank = -1, size = -1;
    char key[OARI_ENDED_KEY];
    void *value = NULL;
    size_t bytes;
    int code;

    oari_ended_key(peer, key);
    if (oari_env_text("OARSONG_RUN_ID") == NULL ||
        oari_env_int("OARSONG_RANK", 0, INT_MAX, &rank) != OAR_OK ||
        oari_env_int("OARSONG_SIZE", 1, INT_MAX, &size) != OAR_OK ||
        rank != r->rank || size != r->ranks ||
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

/* The rank may have put the key there just before it ended. */
static oar_status get_or_blame(const oari_rendezvous *r, const char *key,
                               int peer, int code, void **value, size_t *bytes)
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
            return oari_about(
                peer,
                oari_fail(OAR_E_TIMEOUT,
                          "rank %d did not join group \"%s\" in %" PRId64 " ms",
                          peer, r->group != NULL ? r->group : "world",
                          r->timeout_ms));
        if ((code = exit_code(r, peer)) >= 0)
            return get_or_blame(r, key, peer, code, value, bytes);
        if (r->said < SAY_TIMES &&
            oari_now_ns() >=
                r->start_ns + say_after_ms[r->said] * INT64_C(1000000))
            log_missing(r, peer, deadline_ns);
    }
}

/* ---- signatures ---------------------------------------------------------- */

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

static oar_status check_signature(const char *group, int rank, const char *text,
                                  const oari_recorder_head *mine)
{
    oari_recorder_head *other = oari_alloc(1, sizeof *other);
    oari_process_state state = OARI_PROCESS_UNKNOWN;
    oar_status status = OAR_OK;

    if (other == NULL)
        return OAR_E_NOMEM;
    if (read_signature(text, other))
        state = oari_host_process_state(other, mine);
    if (state == OARI_PROCESS_RUNS || state == OARI_PROCESS_SLEEPS ||
        state == OARI_PROCESS_STOPPED)
        status = oari_fail(OAR_E_RANK,
                           "rank %d of group \"%s\" is there twice: process "
                           "%lld has joined as that rank, too (this is process "
                           "%d)",
                           rank, group, (long long)atomic_load(&other->owner),
                           (int)getpid());
    oari_free(other);
    return status;
}

/* Replaces a signature of the same process, of one that has ended, or of one on
 * another host, of which nothing is known. */
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
