/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: beginning a call of this rank (rpc_pending.c has what follows). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/active/active.h"
#include "parallel/rpc/rpc_into.h"
#include "parallel/rpc/rpc_stream.h"

static int64_t find_deadline(const oar_rpc *agent,
                             const oar_rpc_call_opts *opts, int64_t now)
{
    const oar_rpc_call *outer = oari_rpc_current;
    int64_t deadline = oari_rpc_deadline(
        opts->timeout_ms != 0 ? opts->timeout_ms : agent->opts.timeout_ms, now);

    if (outer != NULL && !opts->detached && outer->deadline_ns < deadline)
        deadline = outer->deadline_ns;
    return deadline;
}

/* ---- beginning ----------------------------------------------------------- */

static int window_is_full(const oari_rpc_peer *peer, uint64_t bytes)
{
    return peer->calls_out >= peer->limits.window_calls ||
           (peer->bytes_out > 0 &&
            peer->bytes_out + bytes > peer->limits.window_bytes);
}

/* Says why there can be no call to a rank; with the lock. */
static oar_status check_open(const oar_rpc *agent, int to)
{
    static const char *const words[] = {
        [OAR_GONE_DIED] = "has died",
        [OAR_GONE_LEFT] = "has left",
        [OAR_GONE_UNREACHABLE] = "cannot be reached",
    };
    const oari_rpc_peer *peer = &agent->peer[to];

    if (agent->closing)
        return oari_fail(OAR_E_STATE, "the agent is being destroyed");
    if (agent->shutting && oari_rpc_current == NULL)
        return oari_fail(OAR_E_STATE, "a call after oar_rpc_shutdown");
    if (peer->gone)
        return oari_about(to, oari_fail(OAR_E_PEER, "rank %d (%s) %s", to,
                                        peer->limits.name, words[peer->gone]));
    return OAR_OK;
}

/* Waits until the window of a rank has room; with the lock. *now_ns is the time
 * after that. */
static oar_status enter_window(oar_rpc *agent, const oari_rpc_pending *p,
                               int no_wait, int64_t *now_ns)
{
    oari_rpc_peer *peer = &agent->peer[p->to];
    oar_status status;

    for (;;) {
        OARI_TRY(check_open(agent, p->to));
        if (!window_is_full(peer, p->bytes))
            return OAR_OK;
        if (no_wait || oari_rpc_pumping)
            return oari_about(
                p->to,
                oari_fail(OAR_E_BUSY,
                          "%d calls with %llu bytes are unanswered by "
                          "rank %d, which takes %lld and %llu",
                          peer->calls_out, (unsigned long long)peer->bytes_out,
                          p->to, (long long)peer->limits.window_calls,
                          (unsigned long long)peer->limits.window_bytes));
        OARI_TRY(oari_rpc_pool_block_begin(agent->pool));
        status =
            oari_rpc_drive_change(agent, p->deadline_ns)
                ? OAR_OK
                : oari_about(p->to, oari_fail(OAR_E_TIMEOUT,
                                              "rank %d has too many unanswered "
                                              "calls to take \"%s\"",
                                              p->to, p->name));
        oari_rpc_pool_block_end(agent->pool);
        OARI_TRY(status);
        *now_ns = oari_now_ns();
    }
}

/* Who calls, and from which line. */
typedef struct call_place {
    oar_rpc *agent;
    const char *file;
    int line;
    int awaited; /* the caller waits for the answer at once */
} call_place;

/* Writes file:line, of a long path its end. */
static void write_site(const char *file, int line, char *site)
{
    oari_call_site at = oari_call_site_of(file, line);
    char digit[16];
    size_t digits = 0, room, bytes = strlen(at.file);
    unsigned line_left = at.line > 0 ? (unsigned)at.line : 0;

    do
        digit[digits++] = (char)('0' + line_left % 10);
    while ((line_left /= 10) > 0);
    room = OARI_RPC_SITE - 1 - digits;
    if (bytes > room) {
        at.file += bytes - room;
        bytes = room;
    }
    memcpy(site, at.file, bytes);
    site[bytes++] = ':';
    while (digits > 0)
        site[bytes++] = digit[--digits];
    site[bytes] = '\0';
}

/* Writes the head of a call that is in the table. */
static void fill_head(const oari_rpc_pending *p, oari_rpc_on on, int64_t now_ns,
                      oari_rpc_head *head)
{
    *head = (oari_rpc_head){ .kind = OARI_RPC_CALL,
                             .call = p->number,
                             .life = p->life,
                             .reference = on.id,
                             .status = (on.flags & OARI_RPC_REMOTE) != 0
                                           ? on.lease
                                           : (uint32_t)p->parts,
                             .flags = on.flags };
    head->left_ms = oari_rpc_left_ms(p->deadline_ns, now_ns);
    head->parent = oari_rpc_current != NULL ? oari_rpc_current->number : 0;
    memcpy(head->name, p->name, strlen(p->name) + 1);
    memcpy(head->site, p->site, strlen(p->site) + 1);
}

/* Sends a call that could not be pushed. Takes args. */
static oar_status send_call(oar_rpc *agent, int to, oari_rpc_head *head,
                            oar_rpc_message *args)
{
    oar_rpc_message *copy;
    oar_status status;

    if (to != agent->rank)
        return oari_rpc_send(agent, to, head, args);
    status = oari_rpc_message_copy(args, &copy);
    oar_rpc_message_destroy(args);
    if (status != OAR_OK)
        return status;
    head->value_bytes = copy->bytes;
    head->array_bytes = copy->array_bytes;
    pthread_mutex_lock(&agent->lock);
    agent->peer[to].calls_in++;
    agent->peer[to].bytes_in += copy->bytes + copy->array_bytes;
    oari_rpc_take_call(agent, to, head, copy, OAR_OK);
    pthread_mutex_unlock(&agent->lock);
    return OAR_OK;
}

static oar_status check_call(oar_rpc *agent, int to, const char *name,
                             const oar_rpc_message *args)
{
    size_t bytes = oar_rpc_message_bytes(args);
    uint64_t most;

    OARI_TRY(oari_rpc_check(agent, "rpc_call"));
    if (to < 0 || to >= agent->ranks)
        return oari_fail(OAR_E_RANK, "a call to rank %d of %d", to,
                         agent->ranks);
    if (name == NULL || name[0] == '\0' || strlen(name) > OARI_RPC_NAME)
        return oari_fail(OAR_E_ARG,
                         "the name of a function has 1 to %d bytes, not %zu",
                         OARI_RPC_NAME, name != NULL ? strlen(name) : 0);
    OARI_TRY(oari_rref_check_all(agent, args));
    most = oari_rpc_message_limit(agent, to);
    if (bytes > most)
        return oari_about(
            to, oari_fail(OAR_E_SIZE,
                          "arguments of %zu bytes for \"%s\": rank %d takes "
                          "%llu",
                          bytes, name, to, (unsigned long long)most));
    return OAR_OK;
}

/* Fills the records of a call. */
static void fill_call(oari_rpc_pending *p, oar_future *f, oar_rpc *agent,
                      int to, const char *name, const oar_rpc_message *args,
                      const oar_rpc_call_opts *opts, int64_t now_ns)
{
    memset(p, 0, offsetof(oari_rpc_pending, name));
    memset(f, 0, offsetof(oar_future, error));
    p->to = to;
    p->bytes = oar_rpc_message_bytes(args);
    p->began_ns = now_ns;
    p->deadline_ns = find_deadline(agent, opts, now_ns);
    p->inside = oari_rpc_current != NULL;
    p->parent = opts->detached ? NULL : oari_rpc_current;
    p->future = f;
    p->parts = opts->parts;
    memcpy(p->name, name, strlen(name) + 1); /* check_call has seen it */
    f->agent = agent;
    f->pending = p;
    f->users = 2; /* the caller's handle, and p */
}

/* Puts a call that fits the window into the table; with the lock. */
static void add_call(const call_place *at, oari_rpc_pending *p, int awaited)
{
    oar_rpc *agent = at->agent;

    p->number = ++agent->next_call;
    oari_rpc_add_pending(agent, p);
    agent->stats.calls++;
    oari_rpc_record_begin(agent, p, at->file, at->line, awaited);
    oari_rpc_watch_deadline(agent, p->deadline_ns);
}

/* Makes what only some calls have. */
static oar_status make_extras(const oar_rpc_call_opts *opts,
                              oari_rpc_into **into, oari_rpc_stream **stream)
{
    OARI_TRY(oari_rpc_into_create(opts, into));
    if (opts->parts == 0)
        return OAR_OK;
    *stream = oari_rpc_stream_create(opts->parts);
    if (*stream != NULL)
        return OAR_OK;
    oari_rpc_into_destroy(*into);
    return OAR_E_NOMEM;
}

/* Begins a call. Without a future, args is not taken; with one and a failure,
 * the call is in the table and was not sent. */
static oar_status begin_call(const call_place *at, int to, const char *name,
                             oar_rpc_message *args,
                             const oar_rpc_call_opts *opts, oari_rpc_on on,
                             oar_future **future)
{
    oar_rpc *agent = at->agent;
    int64_t now_ns = oari_now_ns();
    oari_rpc_into *into = NULL;
    oari_rpc_stream *stream = NULL;
    oar_status status = OAR_E_NOMEM;
    oari_rpc_pending *p;
    oari_rpc_head head;
    oar_future *f;
    int sent = 0;

    OARI_TRY(make_extras(opts, &into, &stream));
    pthread_mutex_lock(&agent->lock);
    p = oari_rpc_take_spare(agent, &agent->spare_pending, sizeof *p);
    f = oari_rpc_take_spare(agent, &agent->spare_future, sizeof *f);
    if (p != NULL && f != NULL) {
        fill_call(p, f, agent, to, name, args, opts, now_ns);
        write_site(at->file, at->line, p->site);
        p->into = into;
        f->stream = stream;
        status = enter_window(agent, p, opts->no_wait, &now_ns);
    }
    if (status == OAR_OK) {
        add_call(at, p, at->awaited);
        fill_head(p, on, now_ns, &head); /* p is gone as soon as its rank is */
        sent = oari_rpc_push(agent, to, &head, args);
    }
    pthread_mutex_unlock(&agent->lock);
    if (status != OAR_OK) {
        oari_rpc_into_destroy(into);
        oari_rpc_stream_destroy(stream);
        oari_free(p);
        oari_free(f);
        return status;
    }
    *future = f;
    if (!sent)
        return send_call(agent, to, &head, args);
    oar_rpc_message_destroy(args);
    return OAR_OK;
}

/* Checks what the options say about the reply. */
static oar_status check_reply(const oar_rpc_call_opts *opts, oari_rpc_on on,
                              int has_future)
{
    if (opts->parts < 0 || opts->parts > OARI_RPC_PARTS)
        return oari_fail(OAR_E_ARG,
                         "a call with %d parts of its reply taken ahead; 1 to "
                         "%d, or 0: the reply comes as one",
                         opts->parts, OARI_RPC_PARTS);
    if (has_future && (on.flags & OARI_RPC_REMOTE) == 0)
        return OAR_OK;
    if (opts->into_count != 0)
        return oari_fail(OAR_E_ARG,
                         "a call whose reply is not taken has places for it");
    return oari_rpc_refuse_parts(opts->parts, "rpc_call");
}

/* Begins a call whose options were read. */
static oar_status begin(const call_place *at, int to, const char *name,
                        oar_rpc_message *args, const oar_rpc_call_opts *opts,
                        oari_rpc_on on, oar_future **future)
{
    oar_rpc *rpc = at->agent;
    oar_future *f = NULL;
    oar_status status = check_reply(opts, on, future != NULL);

    if (status == OAR_OK)
        status = check_call(rpc, to, name, args);
    if (status == OAR_OK && rpc->net != NULL)
        oari_active_stir(rpc->net->group, to);
    if (status == OAR_OK)
        status = begin_call(at, to, name, args, opts, on, &f);
    if (status != OAR_OK && f == NULL) {
        oar_rpc_message_destroy(args);
        return status;
    }
    if (status != OAR_OK) { /* it was not sent */
        oar_error error = *oar_last_error();
        oari_rpc_pending *p;

        pthread_mutex_lock(&rpc->lock);
        p = f->pending;
        if (p != NULL) {
            oari_rpc_finish(p, &error, NULL);
            oari_rpc_remove_pending(rpc, p);
            oari_rpc_tell(rpc);
        }
        pthread_mutex_unlock(&rpc->lock);
    }
    if (status == OAR_OK && future != NULL)
        *future = f;
    else
        oar_future_release(f);
    return status;
}

oar_status oari_rpc_begin(const char *file, int line, oar_rpc *rpc, int to,
                          const char *name, oar_rpc_message *args,
                          const oar_rpc_call_opts *opts, oari_rpc_on on,
                          oar_future **future)
{
    call_place at = { rpc, file, line, 0 };
    oar_rpc_call_opts o;
    oar_status status = oari_opts_read(&o, sizeof o, opts);

    if (status == OAR_OK)
        return begin(&at, to, name, args, &o, on, future);
    oar_rpc_message_destroy(args);
    return status;
}

oar_status oar_rpc_async_at(const char *file, int line, oar_rpc *rpc, int to,
                            const char *name, oar_rpc_message *args,
                            const oar_rpc_call_opts *opts, oar_future **future)
{
    oari_rpc_on none = { 0 };

    return oari_rpc_begin(file, line, rpc, to, name, args, opts, none, future);
}

oar_status oar_rpc_sync_at(const char *file, int line, oar_rpc *rpc, int to,
                           const char *name, oar_rpc_message *args,
                           const oar_rpc_call_opts *opts,
                           oar_rpc_message **reply)
{
    call_place at = { rpc, file, line, 1 };
    oari_rpc_on none = { 0 };
    oar_rpc_call_opts o;
    oar_future *future;
    oar_status status = oari_opts_read(&o, sizeof o, opts);

    if (status == OAR_OK)
        status = oari_rpc_refuse_parts(o.parts, "rpc_sync");
    if (status != OAR_OK) {
        oar_rpc_message_destroy(args);
        return status;
    }
    OARI_TRY(begin(&at, to, name, args, &o, none, &future));
    return oari_future_end(future, reply);
}
