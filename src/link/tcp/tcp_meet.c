/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_meet: how the ranks of a mesh find each other. Every rank publishes a
 * note in the store: where it listens, which host it is on, and a token that is
 * part of the proof of whoever calls. Rank 0's note also has the group's
 * context and, where the job has no secret, a key: then whoever can read the
 * store is a rank.
 *
 * Notes stay when their rank gives up, so one that comes late finds them all.
 * Whether the group is made is settled in one place: the first rank that has
 * all notes, or gives up, says so there, and all others end alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/proof.h"
#include "link/tcp/tcp.h"

enum { NOTE_MAGIC = 0x4f415254, BACKLOG = 1024 };

typedef struct gathering {
    tcp_mesh *m;
    const tcp_setup *setup;
    int64_t deadline_ns;
    oari_secret secret; /* the job's */
    oari_wire near;     /* what connections within a host have to be */
    tcp_note *note;     /* by rank */
    oari_rendezvous rendezvous;
} gathering;

static void key_of(const void *arg, int rank, char *key, size_t bytes)
{
    const gathering *g = arg;

    snprintf(key, bytes, "%s/tcp/%d", g->setup->prefix, rank);
}

/* At the address from which packets go to where the ranks meet; where there is
 * no network at all, on this host only. */
static oar_status begin_listening(tcp_mesh *m, const char *toward, char *text)
{
    oar_status status = oari_sock_local(toward, text);

    if (status == OAR_E_UNAVAILABLE)
        return status;
    if (status != OAR_OK)
        snprintf(text, OARI_SOCK_TEXT, "127.0.0.1:0");
    OARI_TRY(oari_sock_listen(text, BACKLOG, &m->listener));
    return oari_sock_name(m->listener, text);
}

static native_note as_note(const gathering *g, int rank)
{
    return (native_note){ g->setup->prefix, rank, &g->note[rank],
                          offsetof(tcp_note, proof) };
}

static oar_status fill_random(const gathering *g, tcp_note *mine)
{
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token ||
        getrandom(&mine->context, sizeof mine->context, 0) !=
            sizeof mine->context)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    if (g->secret.known || mine->rank != 0)
        return OAR_OK;
    if (getrandom(mine->key, sizeof mine->key, 0) != sizeof mine->key)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    return OAR_OK;
}

static oar_status fill_note(gathering *g, tcp_note *mine)
{
    const oar_backend_env *env = &g->setup->with->env;
    native_note note = as_note(g, env->rank);

    mine->magic = NOTE_MAGIC;
    mine->protocol = OARI_FRAME_VERSION;
    mine->rank = env->rank;
    mine->ranks = env->ranks;
    mine->page = (uint64_t)sysconf(_SC_PAGESIZE);
    mine->pid = getpid();
    snprintf(mine->host, sizeof mine->host, "%s", g->setup->host);
    mine->wire = (uint32_t)g->near;
    mine->proves = (uint32_t)g->secret.known;
    OARI_TRY(fill_random(g, mine));
    OARI_TRY(begin_listening(g->m, env->store_address, mine->address));
    return native_vouch(&g->secret, &note, mine->proof);
}

static oar_status check_note(const gathering *g, int rank,
                             const tcp_note *other)
{
    const oar_backend_env *env = &g->setup->with->env;
    native_note note = as_note(g, rank);

    if (other->magic != NOTE_MAGIC || other->protocol != OARI_FRAME_VERSION)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d speaks TCP protocol %u (and %s byte order), "
                         "this is protocol %d",
                         rank, other->protocol,
                         other->magic == NOTE_MAGIC ? "the same" : "another",
                         OARI_FRAME_VERSION);
    if (other->rank != rank || other->ranks != env->ranks)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d calls itself rank %d of %d, this is rank %d "
                         "of %d",
                         rank, other->rank, other->ranks, env->rank,
                         env->ranks);
    OARI_TRY(
        native_believe(&g->secret, &note, (int)other->proves, other->proof));
    if (other->wire != (uint32_t)g->near)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d has another OARSONG_WIRE than this rank",
                         rank);
    return OAR_OK;
}

static oar_status read_note(gathering *g, int rank)
{
    tcp_note *n = &g->note[rank];
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    key_of(g, rank, key, sizeof key);
    OARI_TRY(oari_rendezvous_get(&g->rendezvous, key, rank, g->deadline_ns,
                                 &value, &bytes));
    if (bytes == sizeof *n)
        memcpy(n, value, sizeof *n);
    oari_free(value);
    OARI_TRY(check_note(g, rank, n));
    n->host[sizeof n->host - 1] = n->address[sizeof n->address - 1] = 0;
    return OAR_OK;
}

/* Whether what they say to each other can leave this host. Both sides see the
 * same notes, so they come to the same answer. */
static int is_apart(const tcp_note *a, const tcp_note *b)
{
    return !native_one_machine(a->host, b->host) &&
           !(oari_sock_names_loopback(a->address) &&
             oari_sock_names_loopback(b->address));
}

static oar_status agree_on_wire(gathering *g, int rank)
{
    tcp_mesh *m = g->m;
    tcp_peer *p = &m->peer[rank];

    p->apart = is_apart(&g->note[m->rank], &g->note[rank]);
    p->wire = g->near;
    if (p->apart)
        OARI_TRY(oari_wire_for(&g->secret, 0, &p->wire));
    m->apart |= p->apart;
    m->encrypts |= p->wire == OARI_WIRE_TLS;
    return OAR_OK;
}

/* The job's secret, or what takes its place. */
static void choose_secret(gathering *g)
{
    oari_secret *s = &g->m->secret;

    *s = g->secret;
    if (!s->known)
        memcpy(s->bytes, g->note[0].key, sizeof s->bytes);
    s->known = 1;
}

static oar_status read_notes(gathering *g)
{
    int mine = g->m->rank, ranks = g->m->ranks, r;
    oar_status status = OAR_OK;

    for (r = 0; r < ranks && status == OAR_OK; r++)
        if (r != mine)
            status = read_note(g, r);
    if (status == OAR_E_TIMEOUT)
        native_missed_from(g->setup->with, r, key_of, g);
    return status;
}

/* Takes over what the notes say. */
static oar_status use_notes(gathering *g)
{
    tcp_mesh *m = g->m;

    OARI_TRY(read_notes(g));
    for (int r = 0; r < m->ranks; r++) {
        memcpy(m->peer[r].address, g->note[r].address, OARI_SOCK_TEXT);
        memcpy(m->peer[r].token, g->note[r].token, TCP_TOKEN);
        m->peer[r].pid = g->note[r].pid;
        if (r != m->rank)
            OARI_TRY(agree_on_wire(g, r));
    }
    m->context = g->note[0].context;
    choose_secret(g);
    native_number_hosts(m->ranks, g->note[0].host, sizeof(tcp_note), m->host);
    return OAR_OK;
}

enum { MADE = -1, FATE_MS = 1000 /* to read what is known to be there */ };

/* Says that the group is made, or that this rank gives it up, unless somebody
 * has said one or the other; *by: who gave it up, or MADE. */
static oar_status settle(const gathering *g, int made, int *by)
{
    oar_store *store = g->setup->with->env.store;
    char key[OAR_STORE_KEY_MAX], mine[16];
    size_t bytes;
    void *said;
    int first;

    snprintf(key, sizeof key, "%s/tcp/fate", g->setup->prefix);
    snprintf(mine, sizeof mine, "%d", *by = made ? MADE : g->m->rank);
    OARI_TRY(
        oar_store_compare_set(store, key, NULL, 0, mine, strlen(mine), &first));
    if (first)
        return OAR_OK;
    OARI_TRY(oar_store_get(store, key, FATE_MS, &said, &bytes));
    snprintf(mine, sizeof mine, "%.*s", (int)bytes, (const char *)said);
    *by = atoi(mine);
    oari_free(said);
    return OAR_OK;
}

static oar_status gather_alike(gathering *g)
{
    const oar_backend_env *env = &g->setup->with->env;
    oar_status status = use_notes(g);
    oar_error why = *oar_last_error();
    int by;

    if (settle(g, status == OAR_OK, &by) != OAR_OK)
        return status == OAR_OK ? oar_last_error()->status
                                : oari_fail_with(&why);
    if (by == MADE && status == OAR_E_TIMEOUT) {
        g->deadline_ns = oari_deadline(FATE_MS);
        return use_notes(g); /* all have come just now */
    }
    if (status != OAR_OK)
        return oari_fail_with(&why);
    if (by == MADE)
        return OAR_OK;
    return oari_about(by, oari_fail(OAR_E_PEER,
                                    "rank %d has given up making group \"%s\"",
                                    by, env->name));
}

static oar_status gather(gathering *g)
{
    tcp_mesh *m = g->m;
    const oar_backend_env *env = &g->setup->with->env;
    char key[OAR_STORE_KEY_MAX];

    OARI_TRY(native_secret(&g->secret));
    OARI_TRY(oari_wire_for(&g->secret, 1, &g->near));
    OARI_TRY(fill_note(g, &g->note[m->rank]));
    key_of(g, m->rank, key, sizeof key);
    OARI_TRY(
        oar_store_set(env->store, key, &g->note[m->rank], sizeof(tcp_note)));
    return gather_alike(g);
}

oar_status tcp_meet(tcp_mesh *m, const tcp_setup *setup)
{
    gathering g = { .m = m,
                    .setup = setup,
                    .deadline_ns = oari_deadline(setup->with->meet_ms) };
    oar_status status;

    g.rendezvous = native_rendezvous(setup->with, key_of, &g);
    g.note = oari_alloc((size_t)m->ranks, sizeof *g.note);
    if (g.note == NULL)
        return OAR_E_NOMEM;
    status = gather(&g);
    oari_secret_forget(&g.secret);
    oari_free(g.note);
    return status;
}
