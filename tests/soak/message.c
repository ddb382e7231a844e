/* SPDX-License-Identifier: Apache-2.0 */
/* message: from one rank to another.
 *
 * Two kinds of tags: 5, which many messages of a pair share, so that only their
 * order tells them apart; and the operation's number, of which there is one, so
 * that a receive may leave its source open. A receive from one rank may leave
 * its tag open, as all ranks post in the order of the program. */
#include <stdlib.h>
#include <string.h>

#include "soak.h"

enum { SHARED_TAG = 5, FAN_COUNT = 300 };
static const int64_t fan_tag = 1ll << 31;

static int any_source(const soak *k, const soak_op *t)
{
    return t->tag != SHARED_TAG && own_draw(k, t->op, 20) % 3 == 0;
}

static int any_tag(const soak *k, const soak_op *t)
{
    return !any_source(k, t) && own_draw(k, t->op, 21) % 5 == 0;
}

static oar_status post_one(soak *k, soak_op *t, oar_work **w)
{
    oar_group *g = t->c->group;
    int me = t->c->rank;

    if (me == t->root && me == t->to)
        return oar_sendrecv(g, t->in, me, t->tag, t->out, me, t->tag, &t->opts,
                            w);
    if (me == t->root) {
        t->opts.synchronous = own_draw(k, t->op, 22) % 4 == 0;
        return oar_send(g, t->in, t->to, t->tag, &t->opts, w);
    }
    if (me != t->to)
        return OAR_OK;
    t->opts.message = &t->message;
    return oar_recv(g, t->out, any_source(k, t) ? OAR_ANY_SOURCE : t->root,
                    any_tag(k, t) ? OAR_ANY_TAG : t->tag, &t->opts, w);
}

oar_status message_post(soak *k, soak_op *t, oar_work **work)
{
    int size = t->c->size, me = t->c->rank;

    if (t->kind == K_MESSAGE)
        return post_one(k, t, work);
    return oar_sendrecv(t->c->group, t->in, (me + t->to) % size, t->tag, t->out,
                        (me + size - t->to) % size, t->tag, &t->opts, work);
}

static oar_status check_envelope(const soak *k, const soak_op *t,
                                 const oar_message *m)
{
    if (m->source == t->root && m->tag == t->tag &&
        m->bytes == t->count * oar_dtype_size(t->dtype))
        return OAR_OK;
    return op_fail(k, t, "came as %zu bytes from %d with tag %lld", m->bytes,
                   m->source, (long long)m->tag);
}

oar_status message_check(soak *k, const soak_op *t)
{
    int size = t->c->size, me = t->c->rank;
    int from = t->kind == K_SENDRECV ? (me + size - t->to) % size : t->root;
    size_t at;

    if (t->kind != K_SENDRECV && me != t->to)
        return OAR_OK;
    if (t->opts.message != NULL && check_envelope(k, t, &t->message) != OAR_OK)
        return OAR_E_INTERNAL;
    at = value_find_wrong(k, t, from, 0, t->count, t->out.data);
    if (at == t->count)
        return OAR_OK;
    return op_fail(k, t, "element %zu of the message is wrong", at);
}

/* ---- looking first ------------------------------------------------------- */

oar_status message_probe(soak *k, soak_op *t)
{
    oar_group *g = t->c->group;
    int me = t->c->rank, source = any_source(k, t) ? OAR_ANY_SOURCE : t->root;
    oar_message seen = oar_message_init();
    oar_status status;

    if (me == t->root && me == t->to)
        return OAR_OK; /* a blocking send to oneself would wait for ever */
    if (me == t->root)
        return oar_send(g, t->in, t->to, t->tag, &t->opts, NULL);
    if (me != t->to)
        return OAR_OK;
    if ((status = oar_probe_wait(g, source, t->tag, 0, &seen)) != OAR_OK)
        return status;
    if (check_envelope(k, t, &seen) != OAR_OK)
        return OAR_E_INTERNAL;
    t->opts.message = &t->message;
    if ((status = oar_recv(g, t->out, source, t->tag, &t->opts, NULL)) !=
        OAR_OK)
        return status;
    return message_check(k, t);
}

/* ---- many to one --------------------------------------------------------- */

typedef struct fan {
    oar_work *work[SOAK_RANKS * SOAK_FAN];
    oar_message message[SOAK_RANKS * SOAK_FAN];
    oar_call_opts opts[SOAK_RANKS * SOAK_FAN];
    unsigned char data[SOAK_RANKS * SOAK_FAN][FAN_COUNT * 8];
} fan;

static size_t fan_count(const soak_op *t)
{
    return t->count % FAN_COUNT;
}

/* The i-th message of a rank has its inputs from i * FAN_COUNT on. */
static oar_status fan_send(soak *k, soak_op *t)
{
    unsigned char data[FAN_COUNT * 8];
    size_t count = fan_count(t);

    for (size_t i = 0; i < SOAK_FAN; i++) {
        oar_status status;
        value_fill(k, t, t->c->rank, i * FAN_COUNT, count, data);
        status =
            oar_send(t->c->group, oar_span_of(data, count, t->dtype), t->root,
                     fan_tag + (int64_t)(t->op % 1000000), &t->opts, NULL);
        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

/* Receives are matched in the order they were posted, so each rank's messages
 * lie in the order it sent them. */
static oar_status fan_check(soak *k, const soak_op *t, const fan *f, int n)
{
    size_t next[SOAK_RANKS] = { 0 }, count = fan_count(t);

    for (int i = 0; i < n; i++) {
        int from = f->message[i].source;
        size_t start;
        if (from < 0 || from >= t->c->size || next[from] == SOAK_FAN)
            return op_fail(k, t, "message %d of a fan is from %d", i, from);
        start = next[from]++ * FAN_COUNT;
        if (value_find_wrong(k, t, from, start, count, f->data[i]) != count)
            return op_fail(k, t, "message %d of a fan, from %d, is wrong", i,
                           from);
    }
    return OAR_OK;
}

static oar_status fan_wait(const fan *f, int n, int backwards)
{
    oar_status first = OAR_OK;

    for (int i = 0; i < n; i++) {
        oar_work *work = f->work[backwards ? n - 1 - i : i];
        oar_status status = work != NULL ? oar_work_wait(work) : OAR_OK;
        if (first == OAR_OK)
            first = status;
        oar_work_release(work);
    }
    return first;
}

static oar_status fan_receive(soak *k, soak_op *t, fan *f)
{
    int n = (t->c->size - 1) * SOAK_FAN;
    oar_status status = OAR_OK, waited;

    for (int i = 0; i < n && status == OAR_OK; i++) {
        f->message[i] = oar_message_init();
        f->opts[i] = t->opts;
        f->opts[i].message = &f->message[i];
        status = oar_recv(t->c->group,
                          oar_span_of(f->data[i], fan_count(t), t->dtype),
                          OAR_ANY_SOURCE, fan_tag + (int64_t)(t->op % 1000000),
                          &f->opts[i], &f->work[i]);
    }
    waited = fan_wait(f, n, own_draw(k, t->op, 23) % 2 == 0);
    if (status == OAR_OK)
        status = waited;
    return status == OAR_OK ? fan_check(k, t, f, n) : status;
}

oar_status message_fan(soak *k, soak_op *t)
{
    oar_status status;
    fan *f;

    if (t->c->rank != t->root)
        return fan_send(k, t);
    if ((f = calloc(1, sizeof *f)) == NULL)
        return OAR_E_NOMEM;
    status = fan_receive(k, t, f);
    free(f);
    return status;
}
