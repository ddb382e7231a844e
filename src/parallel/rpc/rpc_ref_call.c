/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: references as programs use them: making, asking, calling, fetching. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/rpc/rpc_stream.h"

static oar_status check_rref(const oar_rref *rref, const char *call)
{
    if (rref == NULL)
        return oari_fail(OAR_E_ARG, "%s: no reference", call);
    return oari_rpc_check(rref->agent, call);
}

oar_status oar_rref_create(oar_rpc *rpc, const char *kind, void *value,
                           void (*drop)(void *value), oar_rref **rref)
{
    oar_rref *r;

    OARI_TRY(oari_rpc_check(rpc, "rref_create"));
    if (rref == NULL || kind == NULL || kind[0] == '\0' ||
        strlen(kind) >= OARI_RREF_KIND)
        return oari_fail(OAR_E_ARG, "rref_create: %s",
                         rref == NULL ? "no place for it"
                                      : "a kind has 1 to 63 bytes");
    OARI_TRY(oari_rref_promise(rpc, rpc->rank, &r));
    pthread_mutex_lock(&rpc->refs_lock);
    snprintf(r->kind, sizeof r->kind, "%s", kind);
    r->value = value;
    r->drop = drop;
    r->strand.busy = 0; /* nobody has it yet */
    r->phase = OARI_RREF_THERE;
    pthread_mutex_unlock(&rpc->refs_lock);
    *rref = r;
    return OAR_OK;
}

oar_rref *oar_rref_retain(oar_rref *rref)
{
    return rref != NULL ? oari_rref_add_handle(rref) : NULL;
}

void oar_rref_release(oar_rref *rref)
{
    oar_rpc *agent;

    if (check_rref(rref, "rref_release") != OAR_OK)
        return;
    agent = rref->agent;
    oari_rref_drop_handle(rref);
    oari_rref_send_notes(agent);
}

int oar_rref_owner(const oar_rref *rref)
{
    return rref != NULL ? rref->owner : -1;
}

uint64_t oar_rref_id(const oar_rref *rref)
{
    return rref != NULL ? rref->id : 0;
}

oar_status oar_rref_local(const oar_rref *rref, const char *kind, void **value)
{
    OARI_TRY(check_rref(rref, "rref_local"));
    if (kind == NULL || value == NULL)
        return oari_fail(OAR_E_ARG, "rref_local: no %s",
                         kind == NULL ? "kind" : "place for the value");
    if (rref->owner != rref->agent->rank)
        return oari_about(rref->owner,
                          oari_fail(OAR_E_RANK,
                                    "rref_local: the value is rank %d's",
                                    rref->owner));
    if (strcmp(rref->kind, kind) != 0)
        return oari_fail(OAR_E_ARG,
                         "rref_local: the value is of the kind \"%s\", not "
                         "\"%s\"",
                         rref->kind, kind);
    *value = rref->value;
    return OAR_OK;
}

oar_status oar_rref_on_broken(oar_rref *rref, oar_broken_fn fn, void *arg)
{
    oar_status status = OAR_OK;

    OARI_TRY(check_rref(rref, "rref_on_broken"));
    if (fn == NULL || rref->owner == rref->agent->rank)
        return oari_fail(
            fn == NULL ? OAR_E_ARG : OAR_E_RANK, "rref_on_broken: %s",
            fn == NULL ? "no function" : "the value is this rank's");
    pthread_mutex_lock(&rref->agent->refs_lock);
    if (rref->on_broken != NULL)
        status = oari_fail(OAR_E_STATE, "rref_on_broken: it has one already");
    else {
        rref->on_broken = fn;
        rref->on_broken_arg = arg;
        oari_rref_tell_broken(rref);
    }
    pthread_mutex_unlock(&rref->agent->refs_lock);
    return status;
}

/* ---- calls --------------------------------------------------------------- */

oar_status oar_rpc_remote_at(const char *file, int line, oar_rpc *rpc, int to,
                             const char *name, oar_rpc_message *args,
                             const oar_rpc_call_opts *opts, oar_rref **rref)
{
    oari_rpc_on on = { .flags = OARI_RPC_REMOTE };
    oar_rref *r = NULL;
    oar_status status = oari_rpc_check(rpc, "rpc_remote");

    if (status == OAR_OK && rref == NULL)
        status = oari_fail(OAR_E_ARG, "rpc_remote: no place for the reference");
    if (status == OAR_OK && (to < 0 || to >= rpc->ranks))
        status =
            oari_fail(OAR_E_RANK, "a call to rank %d of %d", to, rpc->ranks);
    if (status == OAR_OK)
        status = oari_rref_promise(rpc, to, &r);
    if (status != OAR_OK) {
        oar_rpc_message_destroy(args);
        return status;
    }
    on.id = r->id;
    on.lease = r->lease;
    status = oari_rpc_begin(file, line, rpc, to, name, args, opts, on, NULL);
    if (status != OAR_OK) {
        oari_rref_unpromise(r);
        return status;
    }
    *rref = r;
    return OAR_OK;
}

oar_status oar_rref_call_at(const char *file, int line, oar_rref *rref,
                            const char *name, oar_rpc_message *args,
                            const oar_rpc_call_opts *opts, oar_future **future)
{
    oar_status status = check_rref(rref, "rref_call");
    oari_rpc_on on = { 0 };

    if (status == OAR_OK) {
        pthread_mutex_lock(&rref->agent->refs_lock);
        if (rref->held.broken || rref->lapsed)
            status = oari_fail_with(&rref->error);
        pthread_mutex_unlock(&rref->agent->refs_lock);
    }
    if (status != OAR_OK) {
        oar_rpc_message_destroy(args);
        return status;
    }
    on.id = rref->id;
    return oari_rpc_begin(file, line, rref->agent, rref->owner, name, args,
                          opts, on, future);
}

oar_status oari_rref_give_value(void *arg, oar_rpc_call *call)
{
    const oar_rref *r = call->rref;

    (void)arg;
    if (r == NULL || r->kind[0] != '\0')
        return oari_fail(OAR_E_ARG,
                         "rref_fetch: %s: call a function of its owner on it",
                         r == NULL ? "no reference" : r->kind);
    oar_rpc_message_destroy(call->reply);
    call->reply = NULL;
    return oari_rpc_message_copy(r->message, &call->reply);
}

oar_status oar_rref_fetch_at(const char *file, int line, oar_rref *rref,
                             const oar_rpc_call_opts *opts,
                             oar_rpc_message **value)
{
    oar_rpc_call_opts o;
    oar_future *future;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(oari_rpc_refuse_parts(o.parts, "rref_fetch"));
    OARI_TRY(
        oar_rref_call_at(file, line, rref, "oar.fetch", NULL, opts, &future));
    return oari_future_end(future, value);
}

oar_rref *oar_rpc_self(const oar_rpc_call *call)
{
    return call != NULL && !call->makes ? call->rref : NULL;
}

oar_rpc_message *oar_rpc_self_message(const oar_rpc_call *call)
{
    oar_rref *r = oar_rpc_self(call);

    if (r == NULL)
        return NULL;
    oar_rpc_message_rewind(r->message);
    return r->message;
}

/* ---- in messages --------------------------------------------------------- */

oar_status oar_rpc_put_rref(oar_rpc_message *message, oar_rref *rref)
{
    if (message == NULL)
        return oari_fail(OAR_E_ARG, "rpc_put_rref: no message");
    OARI_TRY(check_rref(rref, "rpc_put_rref"));
    OARI_TRY(oari_vec_reserve(&message->refs, 1));
    OARI_TRY(oari_rpc_message_put_ref(message, rref->owner, rref->id));
    message->refs.data[message->refs.count++] = oari_rref_add_handle(rref);
    return OAR_OK;
}

oar_status oar_rpc_get_rref(oar_rpc_message *message, oar_rref **rref)
{
    int64_t index;

    if (rref == NULL)
        return oari_fail(OAR_E_ARG, "rpc_get_rref: no place for it");
    OARI_TRY(oari_rpc_message_get_ref(message, &index));
    *rref = oari_rref_add_handle(message->refs.data[index]);
    return OAR_OK;
}
