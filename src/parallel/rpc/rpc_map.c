/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: arrays that are mapped by ranks of the host (rpc_map.h has the rules).
 */
#include "parallel/rpc/rpc_map.h"

#include <string.h>

#include <oarsong/collective.h>
#include <oarsong/window.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "parallel/rpc/rpc_ref.h"

enum { KEPT_WINDOWS = 8, KEPT_NS = 1000000000 };

/* A window of another rank that is mapped here. */
typedef struct kept_window {
    oari_link link;
    oar_window *window;
    int64_t used_ns;
    char token[OAR_WINDOW_TOKEN_BYTES];
} kept_window;

/* The arrays of one message that are mapped here; outlives its agent if a
 * tensor does. Guarded by loans_lock. */
typedef struct oari_rpc_loan {
    oari_link link; /* in agent->loans */
    oar_rpc *agent; /* NULL: it has ended */
    int from;
    uint64_t sequence;
    int arrays; /* that are in use */
} oari_rpc_loan;

/* One of them. */
typedef struct mapped_array {
    oari_rpc_loan *loan;
    oar_window *window;
} mapped_array;

/* Taken inside an agent's lock, and never the other way; refs_lock inside it.
 */
static pthread_mutex_t loans_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- agreeing ------------------------------------------------------------ */

/* Maps a page of each rank of this host, to see whether that is allowed. */
static void try_tokens(oar_group *group, int ranks,
                       char (*token)[OAR_WINDOW_TOKEN_BYTES],
                       unsigned char *can)
{
    int mine = oar_group_host(group, oar_group_rank(group));
    oar_window *window;

    for (int r = 0; r < ranks; r++)
        if (oar_group_host(group, r) == mine &&
            oar_window_import(token[r], 0, &window) == OAR_OK) {
            oar_window_release(window);
            can[r] = 1;
        }
    oar_clear_error();
}

oar_status oari_rpc_map_agree(oar_rpc *agent, oar_group *group)
{
    size_t ranks = (size_t)agent->ranks, bytes = OAR_WINDOW_TOKEN_BYTES;
    char mine[OAR_WINDOW_TOKEN_BYTES] = "";
    oar_window *window = NULL;
    unsigned char *can = oari_alloc(ranks, 1 + ranks);
    char(*token)[OAR_WINDOW_TOKEN_BYTES] = oari_alloc(ranks, bytes);
    oar_status status = can != NULL && token != NULL ? OAR_OK : OAR_E_NOMEM;

    if (oar_window_alloc(1, &window) == OAR_OK) /* else none maps from here */
        oar_window_export(window, mine);
    if (status == OAR_OK)
        status = oar_all_gather(group, oar_span_of(mine, bytes, OAR_U8),
                                oar_span_of(token, bytes * ranks, OAR_U8), NULL,
                                NULL);
    if (status == OAR_OK) {
        for (size_t r = 0; r < ranks; r++)
            token[r][bytes - 1] = '\0';
        try_tokens(group, agent->ranks, token, can);
        status = oar_all_gather(group, oar_span_of(can, ranks, OAR_U8),
                                oar_span_of(can + ranks, ranks * ranks, OAR_U8),
                                NULL, NULL);
    }
    for (size_t r = 0; r < ranks && status == OAR_OK; r++)
        agent->peer[r].maps = can[ranks + r * ranks + (size_t)agent->rank];
    oar_window_release(window);
    oari_free(token);
    oari_free(can);
    return status;
}

/* ---- the sender ---------------------------------------------------------- */

int oari_rpc_map_applies(const oar_rpc *agent, int to,
                         const oar_rpc_message *message)
{
    return message != NULL && message->mapped_bytes > 0 && to != agent->rank &&
           agent->peer[to].maps;
}

oar_status oari_rpc_map_lend(oar_rpc_message *message, oari_rpc_lent **lent)
{
    oari_rpc_lent *made = oari_alloc(1, sizeof *made);
    oar_status status = OAR_E_NOMEM;

    if (made != NULL)
        status = oar_rpc_message_create(&made->held);
    if (status == OAR_OK)
        status = oari_vec_reserve(&made->held->windows, message->windows.count);
    if (status == OAR_OK)
        status = oari_vec_reserve(&made->held->arrays, message->arrays.count);
    if (status != OAR_OK) {
        oari_rpc_map_free_lent(made);
        return status;
    }
    for (int64_t i = 0; i < message->windows.count; i++)
        made->held->windows.data[made->held->windows.count++] =
            oar_window_retain(message->windows.data[i]);
    for (int64_t i = 0; i < message->arrays.count; i++) {
        oari_rpc_attached *a = &message->arrays.data[i];

        if (!a->mapped)
            continue;
        made->held->arrays.data[made->held->arrays.count++] = *a;
        a->drop = NULL;
    }
    *lent = made;
    return OAR_OK;
}

void oari_rpc_map_free_lent(oari_rpc_lent *lent)
{
    if (lent != NULL)
        oar_rpc_message_destroy(lent->held);
    oari_free(lent);
}

void oari_rpc_map_returned(oar_rpc *agent, int from, uint64_t sequence)
{
    oari_list *list = &agent->peer[from].lent;
    oari_rpc_lent *found = NULL;

    pthread_mutex_lock(&agent->lock);
    for (oari_link *l = list->first; l != NULL && found == NULL; l = l->next)
        if (OARI_CONTAINER_OF(l, oari_rpc_lent, link)->sequence == sequence)
            found = OARI_CONTAINER_OF(l, oari_rpc_lent, link);
    if (found != NULL)
        oari_list_remove(list, &found->link);
    else
        agent->stats.refused += !agent->peer[from].gone;
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_map_free_lent(found);
}

/* Forgets whom loans of a rank (-1: any) are to be given back to: one that is
 * started again counts its messages from 1. */
static void forget_loans(oar_rpc *agent, int from)
{
    pthread_mutex_lock(&loans_lock);
    for (oari_link *l = agent->loans.first, *next; l != NULL; l = next) {
        oari_rpc_loan *loan = OARI_CONTAINER_OF(l, oari_rpc_loan, link);

        next = l->next;
        if (from < 0 || loan->from == from) {
            oari_list_remove(&agent->loans, l);
            loan->agent = NULL;
        }
    }
    pthread_mutex_unlock(&loans_lock);
}

void oari_rpc_map_rank_gone(oar_rpc *agent, int rank)
{
    oari_list all;
    oari_link *link;

    pthread_mutex_lock(&agent->lock);
    all = agent->peer[rank].lent;
    agent->peer[rank].lent = (oari_list){ 0 };
    pthread_mutex_unlock(&agent->lock);
    while ((link = oari_list_take(&all)) != NULL)
        oari_rpc_map_free_lent(OARI_CONTAINER_OF(link, oari_rpc_lent, link));
    forget_loans(agent, rank);
}

/* ---- the receiver -------------------------------------------------------- */

void oari_rpc_map_return(oar_rpc *agent, int from, uint64_t sequence)
{
    pthread_mutex_lock(&agent->refs_lock);
    oari_rref_add_note(agent, from, OARI_RPC_RETURNED, sequence, 0, 0);
    if (agent->timer != NULL)
        oari_worker_wake(agent->timer); /* which sends it */
    pthread_mutex_unlock(&agent->refs_lock);
}

/* One array of a message less; the last tells the sender. */
static void end_loan(oari_rpc_loan *loan)
{
    oar_rpc *agent;
    int last;

    pthread_mutex_lock(&loans_lock);
    agent = loan->agent;
    last = --loan->arrays == 0;
    if (last && agent != NULL) {
        oari_list_remove(&agent->loans, &loan->link);
        oari_rpc_map_return(agent, loan->from, loan->sequence);
    }
    pthread_mutex_unlock(&loans_lock);
    if (last)
        oari_free(loan);
}

static void drop_mapped(void *arg)
{
    mapped_array *a = arg;

    oar_window_release(a->window);
    end_loan(a->loan);
    oari_free(a);
}

/* Finds a window that is kept, and adds a reference; with the lock. */
static oar_window *find_kept(oar_rpc *agent, const char *token, int64_t now_ns)
{
    for (oari_link *l = agent->kept.first; l != NULL; l = l->next) {
        kept_window *k = OARI_CONTAINER_OF(l, kept_window, link);

        if (strcmp(k->token, token) == 0) {
            k->used_ns = now_ns;
            return oar_window_retain(k->window);
        }
    }
    return NULL;
}

static void drop_kept(oar_rpc *agent, kept_window *k)
{
    oari_list_remove(&agent->kept, &k->link);
    agent->kept_count--;
    oar_window_release(k->window);
    oari_free(k);
}

/* Keeps a window for a second; the oldest goes if there are many. Without
 * memory for that it is mapped again the next time. */
static void keep_window(oar_rpc *agent, const char *token, oar_window *window,
                        int64_t now_ns)
{
    kept_window *k = oari_alloc(1, sizeof *k);

    if (k == NULL)
        return;
    k->window = oar_window_retain(window);
    k->used_ns = now_ns;
    memcpy(k->token, token, sizeof k->token);
    pthread_mutex_lock(&agent->lock);
    if (agent->kept_count == KEPT_WINDOWS) {
        kept_window *oldest =
            OARI_CONTAINER_OF(agent->kept.first, kept_window, link);

        for (oari_link *l = agent->kept.first; l != NULL; l = l->next)
            if (OARI_CONTAINER_OF(l, kept_window, link)->used_ns <
                oldest->used_ns)
                oldest = OARI_CONTAINER_OF(l, kept_window, link);
        drop_kept(agent, oldest);
    }
    oari_list_append(&agent->kept, &k->link);
    agent->kept_count++;
    oari_rpc_watch_deadline(agent, now_ns + KEPT_NS);
    pthread_mutex_unlock(&agent->lock);
}

int64_t oari_rpc_map_expire(oar_rpc *agent, int64_t now_ns)
{
    int64_t next_ns = OARI_NEVER;

    for (oari_link *l = agent->kept.first, *next; l != NULL; l = next) {
        kept_window *k = OARI_CONTAINER_OF(l, kept_window, link);

        next = l->next;
        if (k->used_ns + KEPT_NS <= now_ns)
            drop_kept(agent, k);
        else if (k->used_ns + KEPT_NS < next_ns)
            next_ns = k->used_ns + KEPT_NS;
    }
    return next_ns;
}

/* Gives the window of a token, mapped, and a reference to it. */
static oar_status find_window(oar_rpc *agent, const char *token,
                              oar_window **window)
{
    int64_t now_ns = oari_now_ns();

    pthread_mutex_lock(&agent->lock);
    *window = find_kept(agent, token, now_ns);
    pthread_mutex_unlock(&agent->lock);
    if (*window != NULL)
        return OAR_OK;
    OARI_TRY(oar_window_import(token, 0, window));
    keep_window(agent, token, *window, now_ns);
    return OAR_OK;
}

/* Maps one array. */
static oar_status map_array(oar_rpc *agent, oari_rpc_loan *loan,
                            const oari_rpc_value *v, oari_rpc_attached *a)
{
    mapped_array *m = oari_alloc(1, sizeof *m);
    oar_status status = m != NULL ? OAR_OK : OAR_E_NOMEM;

    if (status == OAR_OK)
        status = find_window(agent, v->token, &m->window);
    if (status == OAR_OK &&
        (v->first > oar_window_bytes(m->window) ||
         v->bytes > oar_window_bytes(m->window) - v->first ||
         v->first % OARI_RPC_ALIGN != 0))
        status = oari_fail(OAR_E_DATA,
                           "an array of %zu bytes at %llu of a window of %zu",
                           v->bytes, (unsigned long long)v->first,
                           oar_window_bytes(m->window));
    *a = (oari_rpc_attached){ .bytes = v->bytes, .mapped = 1 };
    if (status == OAR_OK)
        status = oar_storage_create_detached(v->bytes, 0, &a->storage);
    if (status == OAR_OK) {
        a->data = (char *)oar_window_data(m->window) + v->first;
        status =
            oar_storage_attach_read_only(a->storage, a->data, drop_mapped, m);
    }
    if (status != OAR_OK) {
        oar_storage_release(a->storage);
        if (m != NULL)
            oar_window_release(m->window);
        oari_free(m);
        return status;
    }
    m->loan = loan;
    pthread_mutex_lock(&loans_lock);
    loan->arrays++;
    pthread_mutex_unlock(&loans_lock);
    return OAR_OK;
}

/* Puts the arrays of a message in the order of its values. */
static oar_status merge_arrays(oar_rpc *agent, oari_rpc_loan *loan,
                               oar_rpc_message *m)
{
    oari_rpc_attached *came = m->arrays.data;
    int64_t count = m->arrays.count, received = 0;
    oar_status status = OAR_OK;
    oari_rpc_value v;

    memset(&m->arrays, 0, sizeof m->arrays);
    for (size_t at = 0; at < m->bytes && status == OAR_OK; at = v.next) {
        oari_rpc_attached a;

        status = oari_rpc_read_value(m->values, m->bytes, at, &v);
        if (status != OAR_OK || v.type != OARI_RPC_ARRAY || v.inside)
            continue;
        status = oari_vec_reserve(&m->arrays, 1);
        if (status == OAR_OK && m->arrays.count == OARI_RPC_ARRAYS)
            status = oari_fail(OAR_E_DATA, "more than %d arrays in a message",
                               OARI_RPC_ARRAYS);
        if (status == OAR_OK && v.mapped) {
            status = map_array(agent, loan, &v, &a);
            if (status == OAR_OK) {
                m->arrays.data[m->arrays.count++] = a;
                m->array_bytes += a.bytes;
                m->mapped_bytes += a.bytes;
            }
        } else if (status == OAR_OK && received < count) {
            m->arrays.data[m->arrays.count++] = came[received++];
        } else if (status == OAR_OK) {
            status = oari_fail(OAR_E_DATA, "an array that did not come");
        }
    }
    for (int64_t i = received; i < count; i++) {
        oar_storage_release(came[i].storage);
        if (status == OAR_OK)
            status = oari_fail(OAR_E_DATA, "an array that no value has");
    }
    oari_free(came);
    return status;
}

oar_status oari_rpc_map_arrays(oar_rpc *agent, int from, uint64_t sequence,
                               oar_rpc_message *message)
{
    oari_rpc_loan *loan = oari_alloc(1, sizeof *loan);
    oar_status status;

    if (loan == NULL)
        return OAR_E_NOMEM; /* the sender lends it for as long as it lives */
    loan->agent = agent;
    loan->from = from;
    loan->sequence = sequence;
    loan->arrays = 1; /* this function */
    pthread_mutex_lock(&loans_lock);
    oari_list_append(&agent->loans, &loan->link);
    pthread_mutex_unlock(&loans_lock);
    status = merge_arrays(agent, loan, message);
    if (status != OAR_OK) {
        oar_error error = *oar_last_error();

        end_loan(loan);
        return oari_fail_with(&error);
    }
    end_loan(loan);
    return OAR_OK;
}

void oari_rpc_map_close(oar_rpc *agent)
{
    for (int r = 0; agent->peer != NULL && r < agent->ranks; r++)
        oari_rpc_map_rank_gone(agent, r);
    forget_loans(agent, -1);
    while (agent->kept.first != NULL)
        drop_kept(agent,
                  OARI_CONTAINER_OF(agent->kept.first, kept_window, link));
}
