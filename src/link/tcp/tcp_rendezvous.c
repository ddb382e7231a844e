/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_rendezvous: how the ranks of a mesh find each other. Every rank publishes
 * an entry in the store: where it listens, its host, and a token that callers
 * have to know. Rank 0's entry also has the group's context and, where the job
 * has no secret, a key: then every process that can read the store may be a
 * rank.
 *
 * Entries stay when their rank gives up, so a rank that is late finds them all.
 * One key decides whether the group is made: the first rank that has all
 * entries, or gives up, writes it, and all other ranks end alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/auth.h"
#include "link/tcp/tcp.h"

enum { ENTRY_MAGIC = 0x4f415254, BACKLOG = 1024 };

typedef struct tcp_join {
    tcp_mesh *m;
    const tcp_setup *setup;
    int64_t deadline_ns;
    oari_secret secret;   /* the job's */
    oari_protection near; /* what connections within a host have to be */
    tcp_entry *entry;     /* by rank */
    oari_rendezvous rendezvous;
} tcp_join;

static void entry_key(const void *arg, int rank, char *key, size_t bytes)
{
    const tcp_join *j = arg;

    snprintf(key, bytes, "%s/tcp/%d", j->setup->prefix, rank);
}

/* Listens at the address from which packets go to the store; where there is no
 * network at all, on loopback. */
static oar_status open_listener(tcp_mesh *m, const char *toward, char *text)
{
    oar_status status = oari_sock_local(toward, text);

    if (status == OAR_E_UNAVAILABLE)
        return status;
    if (status != OAR_OK)
        snprintf(text, OARI_SOCK_TEXT, "127.0.0.1:0");
    OARI_TRY(oari_sock_listen(text, BACKLOG, &m->listener));
    return oari_sock_name(m->listener, text);
}

static oari_signed_entry as_note(const tcp_join *j, int rank)
{
    return (oari_signed_entry){ j->setup->prefix, rank, &j->entry[rank],
                                offsetof(tcp_entry, proof) };
}

static oar_status fill_entry(tcp_join *j, tcp_entry *mine)
{
    const oar_backend_env *env = &j->setup->with->env;
    oari_signed_entry note = as_note(j, env->rank);

    mine->magic = ENTRY_MAGIC;
    mine->protocol = OARI_FRAME_VERSION;
    mine->rank = env->rank;
    mine->ranks = env->ranks;
    mine->page = (uint64_t)sysconf(_SC_PAGESIZE);
    mine->pid = getpid();
    snprintf(mine->host, sizeof mine->host, "%s", j->setup->host);
    mine->wire = (uint32_t)j->near;
    mine->proves = (uint32_t)j->secret.known;
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token ||
        getrandom(&mine->context, sizeof mine->context, 0) !=
            sizeof mine->context ||
        (!j->secret.known && mine->rank == 0 &&
         getrandom(mine->key, sizeof mine->key, 0) != sizeof mine->key))
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    OARI_TRY(open_listener(j->m, env->store_address, mine->address));
    return oari_entry_sign(&j->secret, &note, mine->proof);
}

static oar_status check_entry(const tcp_join *j, int rank,
                              const tcp_entry *other)
{
    const oar_backend_env *env = &j->setup->with->env;
    oari_signed_entry note = as_note(j, rank);

    if (other->magic != ENTRY_MAGIC || other->protocol != OARI_FRAME_VERSION)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d speaks TCP protocol %u (and %s byte order), "
                         "this is protocol %d",
                         rank, other->protocol,
                         other->magic == ENTRY_MAGIC ? "the same" : "another",
                         OARI_FRAME_VERSION);
    if (other->rank != rank || other->ranks != env->ranks)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d calls itself rank %d of %d, this is rank %d "
                         "of %d",
                         rank, other->rank, other->ranks, env->rank,
                         env->ranks);
    OARI_TRY(
        oari_entry_check(&j->secret, &note, (int)other->proves, other->proof));
    if (other->wire != (uint32_t)j->near)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d has another OARSONG_WIRE than this rank",
                         rank);
    return OAR_OK;
}

static oar_status read_entry(tcp_join *j, int rank)
{
    tcp_entry *n = &j->entry[rank];
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    entry_key(j, rank, key, sizeof key);
    OARI_TRY(oari_rendezvous_get(&j->rendezvous, key, rank, j->deadline_ns,
                                 &value, &bytes));
    if (bytes == sizeof *n)
        memcpy(n, value, sizeof *n);
    oari_free(value);
    OARI_TRY(check_entry(j, rank, n));
    n->host[sizeof n->host - 1] = n->address[sizeof n->address - 1] = 0;
    return OAR_OK;
}

/* Chooses by whether packets can leave this host. Both sides read the same
 * entries, so they choose the same. */
static oar_status choose_protection(tcp_join *j, int rank)
{
    tcp_mesh *m = j->m;
    tcp_peer *p = &m->peer[rank];
    const tcp_entry *mine = &j->entry[m->rank], *theirs = &j->entry[rank];

    p->apart = !oari_host_same_machine(mine->host, theirs->host) &&
               !(oari_sock_names_loopback(mine->address) &&
                 oari_sock_names_loopback(theirs->address));
    p->wire = j->near;
    if (p->apart)
        OARI_TRY(oari_protection_for(&j->secret, 0, &p->wire));
    m->apart |= p->apart;
    m->encrypts |= p->wire == OARI_PROTECTION_TLS;
    return OAR_OK;
}

static oar_status read_entries(tcp_join *j)
{
    int mine = j->m->rank, ranks = j->m->ranks, r;
    oar_status status = OAR_OK;

    for (r = 0; r < ranks && status == OAR_OK; r++)
        if (r != mine)
            status = read_entry(j, r);
    if (status == OAR_E_TIMEOUT)
        oari_join_missed_from(j->setup->with, r, entry_key, j);
    return status;
}

/* Sets the mesh as the entries say. Without a job secret, rank 0's key takes
 * its place. */
static oar_status use_entries(tcp_join *j)
{
    tcp_mesh *m = j->m;

    OARI_TRY(read_entries(j));
    for (int r = 0; r < m->ranks; r++) {
        memcpy(m->peer[r].address, j->entry[r].address, OARI_SOCK_TEXT);
        memcpy(m->peer[r].token, j->entry[r].token, TCP_TOKEN);
        m->peer[r].pid = j->entry[r].pid;
        if (r != m->rank)
            OARI_TRY(choose_protection(j, r));
    }
    m->context = j->entry[0].context;
    m->secret = j->secret;
    if (!m->secret.known)
        memcpy(m->secret.bytes, j->entry[0].key, sizeof m->secret.bytes);
    m->secret.known = 1;
    oari_host_number_all(m->ranks, j->entry[0].host, sizeof(tcp_entry),
                         m->host);
    return OAR_OK;
}

enum { MADE = -1, OUTCOME_MS = 1000 /* to read what is known to be there */ };

/* Writes that the group is made, or that this rank gives it up, unless a rank
 * has written one or the other; *by: the rank that gave it up, or MADE. */
static oar_status agree_on_outcome(const tcp_join *j, int made, int *by)
{
    oar_store *store = j->setup->with->env.store;
    char key[OAR_STORE_KEY_MAX], mine[16];
    size_t bytes;
    void *said;
    int first;

    snprintf(key, sizeof key, "%s/tcp/fate", j->setup->prefix);
    snprintf(mine, sizeof mine, "%d", *by = made ? MADE : j->m->rank);
    OARI_TRY(
        oar_store_compare_set(store, key, NULL, 0, mine, strlen(mine), &first));
    if (first)
        return OAR_OK;
    OARI_TRY(oar_store_get(store, key, OUTCOME_MS, &said, &bytes));
    snprintf(mine, sizeof mine, "%.*s", (int)bytes, (const char *)said);
    *by = atoi(mine);
    oari_free(said);
    return OAR_OK;
}

static oar_status join_ranks(tcp_join *j)
{
    const oar_backend_env *env = &j->setup->with->env;
    oar_status status = use_entries(j);
    oar_error why = *oar_last_error();
    int by;

    if (agree_on_outcome(j, status == OAR_OK, &by) != OAR_OK)
        return status == OAR_OK ? oar_last_error()->status
                                : oari_fail_with(&why);
    if (by == MADE && status == OAR_E_TIMEOUT) {
        j->deadline_ns = oari_deadline(OUTCOME_MS);
        return use_entries(j); /* the last entries came just now */
    }
    if (status != OAR_OK)
        return oari_fail_with(&why);
    if (by == MADE)
        return OAR_OK;
    return oari_about(by, oari_fail(OAR_E_PEER,
                                    "rank %d has given up making group \"%s\"",
                                    by, env->name));
}

static oar_status gather(tcp_join *j)
{
    tcp_mesh *m = j->m;
    const oar_backend_env *env = &j->setup->with->env;
    char key[OAR_STORE_KEY_MAX];

    OARI_TRY(oari_entry_secret(j->setup->with->secret, &j->secret));
    OARI_TRY(oari_protection_for(&j->secret, 1, &j->near));
    OARI_TRY(fill_entry(j, &j->entry[m->rank]));
    entry_key(j, m->rank, key, sizeof key);
    OARI_TRY(
        oar_store_set(env->store, key, &j->entry[m->rank], sizeof(tcp_entry)));
    return join_ranks(j);
}

oar_status tcp_find_peers(tcp_mesh *m, const tcp_setup *setup)
{
    tcp_join j = { .m = m,
                   .setup = setup,
                   .deadline_ns = oari_deadline(setup->with->rendezvous_ms) };
    oar_status status;

    j.rendezvous = oari_join_rendezvous(setup->with, entry_key, &j);
    j.entry = oari_alloc((size_t)m->ranks, sizeof *j.entry);
    if (j.entry == NULL)
        return OAR_E_NOMEM;
    status = gather(&j);
    oari_secret_forget(&j.secret);
    oari_free(j.entry);
    return status;
}
