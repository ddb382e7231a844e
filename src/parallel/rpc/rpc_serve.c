/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: calls of other ranks. A call is in agent->serving, and
 * counts in the window of its caller, from when it came until it is answered;
 * it is always answered, so that the caller's window opens again. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/status.h"
#include "parallel/rpc/rpc_stream.h"
#include "parallel/rpc/rpc_times.h"

_Thread_local oar_rpc_call *oari_rpc_current;

/* ---- answers ------------------------------------------------------------- */

/* Fills in what a failure does not say about where it happened. */
static void complete_error(const oar_rpc_call *call, const char *name,
                           oar_error *error)
{
    if (error->host[0] != '\0')
        return; /* it came from another rank, or a group's fault */
    if (gethostname(error->host, sizeof error->host - 1) != 0)
        snprintf(error->host, sizeof error->host, "?");
    error->rank = call->agent->rank;
    error->pid = getpid();
    snprintf(error->operation, sizeof error->operation, "%.31s", name);
}

/* Makes the message of a failure; NULL: no memory. */
static oar_rpc_message *write_failure(const oar_error *error)
{
    oar_rpc_message *m = NULL;

    if (oar_rpc_message_create(&m) == OAR_OK &&
        oari_rpc_error_put(m, error) == OAR_OK)
        return m;
    oar_rpc_message_destroy(m);
    return NULL;
}

/* Sends an answer that could not be pushed; takes reply. */
static void send_answer(oar_rpc *agent, int to, oari_rpc_head *head,
                        oar_rpc_message *reply)
{
    oar_rpc_message *copy = NULL;
    oar_status status;

    if (to != agent->rank) {
        status = oari_rpc_send(agent, to, head, reply);
        if (status != OAR_OK) /* the caller's window must open again */
            oari_rpc_send(agent, to, head, NULL);
        return;
    }
    status = oari_rpc_message_copy(reply, &copy);
    oar_rpc_message_destroy(reply);
    pthread_mutex_lock(&agent->lock);
    oari_rpc_take_answer(agent, to, head->call,
                         (head->flags & OARI_RPC_FAILED) != 0, copy, status);
    pthread_mutex_unlock(&agent->lock);
}

/* Makes the failure that a reply which cannot be sent is; 0: it can. */
static int check_reply(const oar_rpc_call *call, const char *name,
                       oar_error *error)
{
    oar_rpc *agent = call->agent;
    uint64_t most = oari_rpc_message_limit(agent, call->from);

    if (oari_rref_check_all(agent, call->reply) != OAR_OK) {
        *error = *oar_last_error();
        return 1;
    }
    if (oar_rpc_message_bytes(call->reply) <= most)
        return 0;
    oari_error_set(error, OAR_E_SIZE,
                   "the reply of \"%s\" has %zu bytes, rank %d takes %llu",
                   name, oar_rpc_message_bytes(call->reply), call->from,
                   (unsigned long long)most);
    return 1;
}

/* Makes the answer of a call that has failed. */
static void write_error(oar_rpc_call *call, const char *name,
                        const oar_error *error)
{
    oar_error whole = *error;

    complete_error(call, name, &whole);
    oar_rpc_message_destroy(call->reply);
    call->reply = write_failure(&whole);
}

/* What is mapped or held by arguments is given back before the answer goes;
 * other arguments are freed when it has gone. */
static oar_rpc_message *drop_args(oar_rpc_call *call)
{
    oar_rpc_message *args = call->args;

    if (args == NULL || (args->arrays.count == 0 && args->refs.count == 0))
        return args;
    oar_rpc_message_destroy(args);
    return NULL;
}

static oari_rpc_strand *strand_of(const oar_rpc_call *call);

/* Ends a call: answers it, and frees it. error NULL: it has succeeded. */
static void answer(oar_rpc_call *call, const char *name, const oar_error *error)
{
    oar_rpc *agent = call->agent;
    oari_rpc_peer *peer = &agent->peer[call->from];
    oari_rpc_head head = { .kind = OARI_RPC_ANSWER,
                           .call = call->number,
                           .life = call->life,
                           .left_ms = -1 };
    oar_rpc_message *args = drop_args(call), *reply;
    oari_rpc_entry *entry = call->entry;
    oari_rpc_strand *strand = entry != NULL ? strand_of(call) : NULL;
    oar_rref *rref = call->rref;
    int from = call->from, sent;
    oar_error e;

    if (error == NULL && check_reply(call, name, &e))
        error = &e;
    if (error != NULL)
        write_error(call, name, error);
    reply = call->reply;
    head.flags = error != NULL ? OARI_RPC_FAILED : 0;
    pthread_mutex_lock(&agent->lock);
    oari_rpc_leave_children(agent, call);
    oari_list_remove(&agent->serving, &call->link);
    if (call->life == peer->life) {
        peer->calls_in--;
        peer->bytes_in -= call->bytes;
    }
    agent->stats.running -= call->begun;
    if (entry != NULL)
        oari_rpc_count_time(&entry->times, oari_now_ns() - call->came_ns,
                            error != NULL);
    sent = oari_rpc_push(agent, from, &head, reply);
    if (strand != NULL)
        oari_rpc_release_strand(agent, strand);
    if ((entry != NULL && --entry->users == 0 && entry->closed) ||
        (agent->serving.first == NULL && (agent->draining || agent->closing)))
        oari_rpc_tell(agent);
    oari_rpc_keep_spare(agent, &agent->spare_call, call);
    pthread_mutex_unlock(&agent->lock);
    if (rref != NULL)
        oari_rref_drop_handle(rref);
    if (sent)
        oar_rpc_message_destroy(reply);
    else
        send_answer(agent, from, &head, reply);
    oar_rpc_message_destroy(args);
}

/* ---- running ------------------------------------------------------------- */

static void run_call(void *arg);

/* Gives a call, or the next of a strand, to the pool; with the lock. */
static void queue_call(oar_rpc *agent, oar_rpc_call *call)
{
    call->job = (oari_job){ .run = run_call, .arg = call };
    oari_rpc_pool_post(agent->pool, &call->job);
}

/* Why a call that is to begin does not; with the lock. */
static int is_unwanted(const oar_rpc_call *call, int64_t now, oar_error *error)
{
    if (atomic_load(&call->cancelled))
        oari_error_set(error, OAR_E_CANCELLED,
                       "cancelled before the function began");
    else if (call->deadline_ns <= now)
        oari_error_set(error, OAR_E_TIMEOUT,
                       "its time was over before the function began");
    else if (call->rref != NULL && call->rref->phase == OARI_RREF_FAILED)
        *error = call->rref->error; /* the calls before it have settled that */
    else
        return 0;
    return 1;
}

/* What a function that returned a failure has said about it. */
static void find_error(const oar_rpc_call *call, oar_status status,
                       oar_error *error)
{
    const oar_error *last = oar_last_error();

    if (call->error.status == status)
        *error = call->error;
    else if (last->status == status)
        *error = *last;
    else
        oari_error_set(error, status, "the function \"%s\" failed: %s",
                       call->entry->name, oar_status_text(status));
}

/* The calls that a call must not overtake; NULL: none. */
static oari_rpc_strand *strand_of(const oar_rpc_call *call)
{
    if (call->rref != NULL)
        return &call->rref->strand;
    return call->entry->manner == OAR_RPC_SERIAL ? &call->entry->strand : NULL;
}

void oari_rpc_release_strand(oar_rpc *agent, oari_rpc_strand *strand)
{
    oari_link *next = oari_list_take(&strand->waiting);

    strand->busy = next != NULL;
    if (next != NULL)
        queue_call(agent, OARI_CONTAINER_OF(next, oar_rpc_call, queued));
}

/* Ends a call whose function has returned, and which is not kept. */
static void end_call(oar_rpc_call *call)
{
    const oar_error *error = call->status != OAR_OK ? &call->error : NULL;

    if (call->makes) {
        oari_rref_settle(call->rref, call->reply, error);
        call->reply = NULL;
    }
    answer(call, call->entry->name, error);
}

/* Notes a failure of a call, of which the first counts, and gives up one use of
 * it: the function's own, or that of the thread that keeps it. */
static void finish_use(oar_rpc_call *call, oar_status status)
{
    oar_error error;

    if (status != OAR_OK)
        find_error(call, status, &error);
    if (status != OAR_OK) {
        pthread_mutex_lock(&call->agent->lock);
        if (call->status == OAR_OK) {
            call->status = status;
            call->error = error;
        }
        pthread_mutex_unlock(&call->agent->lock);
    }
    if (atomic_fetch_sub(&call->uses, 1) == 1)
        end_call(call);
}

/* Notes that a call begins; with the lock. Returns 0 if it is not to. */
static int begin_run(oar_rpc_call *call, int64_t now, oar_error *error)
{
    int wanted = !is_unwanted(call, now, error);

    call->begun = wanted;
    call->agent->stats.running += wanted;
    call->agent->stats.served += (uint64_t)wanted;
    return wanted;
}

/* Runs the function of a call that has begun. */
static void run_function(oar_rpc_call *call)
{
    const oari_rpc_entry *entry = call->entry;
    oar_rpc_call *outer = oari_rpc_current;
    oar_status status;

    oari_rpc_current = call;
    if (oar_last_error()->status != OAR_OK)
        oar_clear_error();
    status = entry->fn(entry->arg, call);
    oari_rpc_current = outer;
    finish_use(call, status);
}

/* Ends a call that does not begin. */
static void refuse_call(oar_rpc_call *call, const oar_error *error)
{
    call->error = *error;
    finish_use(call, error->status);
}

static void run_call(void *arg)
{
    oar_rpc_call *call = arg;
    oar_rpc *agent = call->agent;
    int64_t now = call->deadline_ns != OARI_NEVER ? oari_now_ns() : 0;
    oar_error error;
    int wanted;

    pthread_mutex_lock(&agent->lock);
    wanted = begin_run(call, now, &error);
    pthread_mutex_unlock(&agent->lock);
    if (wanted)
        run_function(call);
    else
        refuse_call(call, &error);
}

oar_status oar_rpc_keep(oar_rpc_call *call)
{
    int uses = 1;

    if (call == NULL || call != oari_rpc_current)
        return oari_fail(call == NULL ? OAR_E_ARG : OAR_E_STATE, "rpc_keep: %s",
                         call == NULL ? "no call"
                                      : "only the function of the call, while "
                                        "it runs");
    if (!atomic_compare_exchange_strong(&call->uses, &uses, 2))
        return oari_fail(OAR_E_STATE, "rpc_keep: it is kept already");
    return OAR_OK;
}

void oar_rpc_answer(oar_rpc_call *call, oar_status status)
{
    if (call != NULL)
        finish_use(call, status);
}

/* Says whether a rank may make a call; with the lock. Finds its function. */
static oar_status admit(oar_rpc *agent, int from, const oari_rpc_head *head,
                        oari_rpc_entry **entry)
{
    oari_rpc_entry *e = oari_rpc_find_function(agent, head->name);
    const char *nearest;

    if (e == NULL) {
        nearest = oari_rpc_find_nearest(agent, head->name);
        return oari_fail(
            OAR_E_NOT_FOUND, "rank %d (%s) has no function \"%s\"%s%s%s",
            agent->rank, agent->peer[agent->rank].limits.name, head->name,
            nearest != NULL ? "; it has \"" : "",
            nearest != NULL ? nearest : "", nearest != NULL ? "\"" : "");
    }
    if (e->callers != NULL && !e->callers[from])
        return oari_fail(OAR_E_AUTH, "rank %d may not call \"%s\"", from,
                         head->name);
    if (head->value_bytes + head->array_bytes > e->message_bytes)
        return oari_fail(
            OAR_E_SIZE, "arguments of %llu bytes for \"%s\", which takes %zu",
            (unsigned long long)(head->value_bytes + head->array_bytes),
            head->name, e->message_bytes);
    if (agent->closing)
        return oari_fail(OAR_E_ABORTED, "rank %d ends its agent", agent->rank);
    *entry = e;
    return OAR_OK;
}

/* Has a call run in the manner of its function; with the lock. Returns whether
 * this thread is to run it. */
static int place_call(oar_rpc *agent, oar_rpc_call *call)
{
    oari_rpc_strand *strand = strand_of(call);

    call->entry->users++;
    if (strand == NULL && call->entry->manner == OAR_RPC_INLINE)
        return 1;
    if (strand != NULL && strand->busy && !call->makes) {
        oari_list_append(&strand->waiting, &call->queued);
        return 0;
    }
    if (strand != NULL)
        strand->busy = 1;
    queue_call(agent, call);
    return 0;
}

/* The call that was to make a value is refused: the value has failed. */
static void fail_value(oar_rpc_call *call, const oar_error *error)
{
    oari_rref_settle(call->rref, NULL, error);
    pthread_mutex_lock(&call->agent->lock);
    oari_rpc_release_strand(call->agent, &call->rref->strand);
    pthread_mutex_unlock(&call->agent->lock);
}

/* Makes the record of a call that came; with the lock. NULL: no memory. */
static oar_rpc_call *make_call(oar_rpc *agent, int from,
                               const oari_rpc_head *head, oar_rpc_message *args)
{
    oar_rpc_call *call =
        oari_rpc_take_spare(agent, &agent->spare_call, sizeof *call);

    if (call == NULL)
        return NULL;
    memset(call, 0, offsetof(oar_rpc_call, error));
    call->error.status = OAR_OK;
    call->agent = agent;
    call->from = from;
    call->number = head->call;
    atomic_init(&call->uses, 1);
    call->bytes = head->value_bytes + head->array_bytes;
    call->args = args;
    call->came_ns = oari_now_ns();
    call->makes = (head->flags & OARI_RPC_REMOTE) != 0;
    call->parts = call->makes                     ? 0
                  : head->status > OARI_RPC_PARTS ? OARI_RPC_PARTS
                                                  : (int)head->status;
    call->deadline_ns = oari_rpc_deadline(head->left_ms, call->came_ns);
    memcpy(call->site, head->site, strlen(head->site) + 1);
    oari_list_append(&agent->serving, &call->link);
    call->life = agent->peer[from].life;
    if (agent->peer[from].gone)
        atomic_store(&call->cancelled, 1);
    return call;
}

/* Answers a call that cannot run, with the last error. */
static void answer_refused(oar_rpc_call *call, const char *name)
{
    oar_error error = *oar_last_error();

    error.host[0] = '\0';
    call->entry = NULL;
    if (call->makes && call->rref != NULL)
        fail_value(call, &error);
    answer(call, name, &error);
}

void oari_rpc_take_call(oar_rpc *agent, int from, const oari_rpc_head *head,
                        oar_rpc_message *args, oar_status status)
{
    oar_rpc_call *call = make_call(agent, from, head, args);
    int outer = oari_rpc_pumping, here = 0, wanted = 0;
    oar_error error;

    if (call == NULL) { /* the call is not answered; it runs out of time */
        oar_rpc_message_destroy(args);
        return;
    }
    if (status == OAR_OK)
        status = admit(agent, from, head, &call->entry);
    if (head->reference != 0) {
        oar_status found = oari_rref_find_for(agent, from, head, &call->rref);

        status = status == OAR_OK ? found : status;
    }
    if (status == OAR_OK)
        here = place_call(agent, call);
    if (here)
        wanted = begin_run(call, call->came_ns, &error);
    else if (status == OAR_OK)
        return;
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_pumping = 1;
    if (wanted)
        run_function(call);
    else if (here)
        refuse_call(call, &error);
    else
        answer_refused(call, head->name);
    oari_rpc_pumping = outer;
    pthread_mutex_lock(&agent->lock);
}

int oari_rpc_call_fits(const oar_rpc *agent, int from,
                       const oari_rpc_head *head)
{
    const oari_rpc_peer *peer = &agent->peer[from];
    uint64_t bytes = head->value_bytes + head->array_bytes;

    return peer->calls_in < agent->opts.window_calls &&
           (peer->bytes_in == 0 ||
            peer->bytes_in + bytes <= agent->opts.window_bytes);
}

/* ---- cancelling ---------------------------------------------------------- */

void oari_rpc_cancel_serving(oar_rpc *agent, int from)
{
    for (oari_link *l = agent->serving.first; l != NULL; l = l->next) {
        oar_rpc_call *call = OARI_CONTAINER_OF(l, oar_rpc_call, link);

        if (from >= 0 && call->from != from)
            continue;
        atomic_store(&call->cancelled, 1);
        oari_rpc_cancel_children(agent, call);
    }
}

oar_rpc_call *oari_rpc_find_serving(oar_rpc *agent, int from, uint64_t number)
{
    for (oari_link *l = agent->serving.first; l != NULL; l = l->next) {
        oar_rpc_call *call = OARI_CONTAINER_OF(l, oar_rpc_call, link);

        if (call->from == from && call->number == number)
            return call;
    }
    return NULL;
}

void oari_rpc_take_cancel(oar_rpc *agent, int from, uint64_t number)
{
    oar_rpc_call *call;

    pthread_mutex_lock(&agent->lock);
    call = oari_rpc_find_serving(agent, from, number);
    if (call != NULL) {
        atomic_store(&call->cancelled, 1);
        oari_rpc_cancel_children(agent, call);
        oari_rpc_tell(agent); /* it may wait for credit */
    }
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_send_cancels(agent);
}

/* ---- inside a function --------------------------------------------------- */

oar_rpc_message *oar_rpc_args(oar_rpc_call *call)
{
    return call != NULL ? call->args : NULL;
}

oar_rpc_message *oar_rpc_reply(oar_rpc_call *call)
{
    if (call != NULL && call->reply == NULL)
        oar_rpc_message_create(&call->reply);
    return call != NULL ? call->reply : NULL;
}

oar_rpc *oar_rpc_of(const oar_rpc_call *call)
{
    return call != NULL ? call->agent : NULL;
}

int oar_rpc_caller(const oar_rpc_call *call)
{
    return call != NULL ? call->from : -1;
}

const char *oar_rpc_site(const oar_rpc_call *call)
{
    return call != NULL ? call->site : "";
}

int64_t oar_rpc_left_ms(const oar_rpc_call *call)
{
    return call != NULL ? oari_deadline_left_ms(call->deadline_ns) : -1;
}

int oar_rpc_cancelled(const oar_rpc_call *call)
{
    return call != NULL && atomic_load(&call->cancelled);
}

oar_status oar_rpc_fail_at(const char *file, int line, oar_rpc_call *call,
                           oar_status status, const char *text)
{
    oari_call_site site = oari_call_site_of(file, line);

    if (call == NULL || status == OAR_OK)
        return oari_fail(OAR_E_ARG, "rpc_fail: no %s",
                         call == NULL ? "call" : "failure");
    oari_error_set(&call->error, status, "%s", text != NULL ? text : "");
    snprintf(call->error.site, sizeof call->error.site, "%.80s:%d", site.file,
             site.line);
    return status;
}
