/* SPDX-License-Identifier: Apache-2.0 */
/* conform_message: send, recv and sendrecv, for every dtype and size, between
 * all pairs (or some, where there are many), including from a rank to
 * itself. */
#include "conform.h"

#include <string.h>

/* An engine for GPUs may have no tags. */
static int64_t tag_of(const conform_context *d)
{
    return !d->s->gpu || (d->s->can & OAR_CAN_ANY) != 0 ? 5 : 0;
}

typedef struct message_trial {
    conform_context *d;
    conform_job j; /* in: what is sent, out: what comes */
    oar_work *work[2];
} message_trial;

static oar_call_opts opts_of(const message_trial *m)
{
    oar_call_opts o = oar_call_opts_init();

    o.synchronous = m->j.t.how == SYNCHRONOUS;
    o.prepare = m->j.t.how == PREPARED;
    o.stream = m->d->stream;
    return o;
}

/* Both buffers of `count` elements, filled for this rank. */
static void lay_out(message_trial *m, const conform_trial *t)
{
    conform_trial both = *t;

    both.kind = K_ALL_REDUCE; /* has an input and an output of one size */
    both.in_place = 0;
    both.op = OAR_REDUCE_OP_SUM;
    job_prepare(m->d, &m->j, &both, m->d->world, 0, 1);
    m->j.t.kind = t->kind; /* contents of messages are any bits */
    job_fill(&m->j);
}

static void check_came(message_trial *m, int source)
{
    gpu_fetch(&m->j);
    check_run(m->d, &m->j, m->j.out.data, m->j.out.count, source, 0);
    check_run(m->d, &m->j, m->j.in.data, m->j.in.count, m->j.rank, 0);
    check_guards(m->d, &m->j);
}

/* ---- one message --------------------------------------------------------- */

static oar_status finish(message_trial *m, oar_status status, int which)
{
    if (status == OAR_OK && m->work[which] != NULL && m->j.t.how == PREPARED)
        status = oar_work_start(m->work[which]);
    if (status == OAR_OK && m->work[which] != NULL)
        status = oar_work_wait(m->work[which]);
    return status;
}

static void send_one(message_trial *m)
{
    oar_call_opts o = opts_of(m);
    int waits = m->j.t.how == BLOCKING || m->j.t.how == SYNCHRONOUS;
    oar_status status =
        oar_send(m->d->world, gpu_span(&m->j, m->j.in), m->j.t.to, tag_of(m->d),
                 &o, waits ? NULL : &m->work[0]);

    record_status(m->d, finish(m, status, 0), "send");
}

static void check_message(message_trial *m, const oar_message *came)
{
    size_t bytes = m->j.out.count * oar_dtype_size(m->j.t.dtype);

    if (came->source != m->j.t.root || came->tag != tag_of(m->d) ||
        came->bytes != bytes)
        record_wrong(m->d, "the message says: from %d, tag %lld, %zu bytes",
                     came->source, (long long)came->tag, came->bytes);
}

static void receive_one(message_trial *m)
{
    oar_message came = oar_message_init();
    oar_call_opts o = opts_of(m);
    int waits = m->j.t.how == BLOCKING || m->j.t.how == SYNCHRONOUS;
    oar_status status;

    o.synchronous = 0;
    o.message = m->j.t.how == PREPARED ? NULL : &came;
    status = oar_recv(m->d->world, gpu_span(&m->j, m->j.out), m->j.t.root,
                      tag_of(m->d), &o, waits ? NULL : &m->work[1]);
    if (!record_status(m->d, finish(m, status, 1), "recv"))
        return;
    check_came(m, m->j.t.root);
    if (o.message != NULL)
        check_message(m, &came);
}

/* To oneself: the send must not wait for the receive that follows it. */
static void send_to_self(message_trial *m)
{
    oar_call_opts o = opts_of(m);
    oar_status status;

    o.synchronous = o.prepare = 0;
    status = oar_send(m->d->world, gpu_span(&m->j, m->j.in), m->j.t.to,
                      tag_of(m->d), &o, &m->work[0]);
    if (!record_status(m->d, status, "send"))
        return;
    m->j.t.how = BLOCKING;
    receive_one(m);
    record_status(m->d, oar_work_wait(m->work[0]), "send");
}

static void try_message(conform_context *d, const conform_trial *t)
{
    message_trial m = { .d = d };

    if (!record_begin(d, t))
        return;
    if (d->rank != t->root && d->rank != t->to)
        return;
    lay_out(&m, t);
    if (t->root == t->to)
        send_to_self(&m);
    else if (d->rank == t->root)
        send_one(&m);
    else
        receive_one(&m);
    oar_work_release(m.work[0]);
    oar_work_release(m.work[1]);
}

/* ---- rings --------------------------------------------------------------- */

/* All ranks send to the right and receive from the left at once. */
static void try_ring(conform_context *d, const conform_trial *t)
{
    message_trial m = { .d = d };
    int to = (d->rank + 1) % d->ranks;
    int from = (d->rank + d->ranks - 1) % d->ranks;
    oar_call_opts o;
    oar_status status;

    if (!record_begin(d, t))
        return;
    lay_out(&m, t);
    o = opts_of(&m);
    status = oar_sendrecv(d->world, gpu_span(&m.j, m.j.in), to, tag_of(d),
                          gpu_span(&m.j, m.j.out), from, tag_of(d), &o,
                          t->how == BLOCKING ? NULL : &m.work[0]);
    if (record_status(d, finish(&m, status, 0), "sendrecv"))
        check_came(&m, from);
    oar_work_release(m.work[0]);
}

/* ---- which --------------------------------------------------------------- */

static void try_pair(conform_context *d, conform_trial t)
{
    static const conform_call hows[] = { BLOCKING, ASYNC, PREPARED,
                                         SYNCHRONOUS };
    size_t each = d->s->quick ? 1 : 4;

    for (size_t i = 0; i < each; i++) {
        t.how = hows[d->turn % 4];
        t.where = (conform_memory)(d->turn / 4 % WHERES);
        d->turn++;
        if (t.how == SYNCHRONOUS && !(d->s->can & OAR_CAN_SYNCHRONOUS))
            t.how = BLOCKING;
        try_message(d, &t);
    }
}

static void try_pairs(conform_context *d, conform_trial t)
{
    int step = d->ranks <= 4 ? 1 : d->ranks / 2;

    t.kind = K_SEND_RECV;
    for (t.root = 0; t.root < d->ranks; t.root += step)
        for (t.to = 0; t.to < d->ranks; t.to++)
            if (!(t.to == t.root && tag_of(d) == 0) && /* not by itself */
                (!d->s->quick || d->turn++ % 3 == 0))
                try_pair(d, t);
    t.kind = K_SENDRECV;
    t.root = 0;
    t.to = d->ranks > 1;
    t.how = BLOCKING;
    t.where = (conform_memory)(d->turn++ % WHERES);
    try_ring(d, &t);
    t.how = ASYNC;
    t.where = (conform_memory)(d->turn++ % WHERES);
    try_ring(d, &t);
}

void conform_messages(conform_context *d)
{
    static const size_t counts[] = { 0, 1, 3, 17, 1000, 65537 };
    conform_trial t = { .of = "world" };

    for (int dtype = 0; dtype < OAR_DTYPE_COUNT; dtype++) {
        t.dtype = (oar_dtype)dtype;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            t.count = counts[c];
            if (c < 5 || !d->s->tight)
                try_pairs(d, t);
        }
        t.count = (3 << 20) / oar_dtype_size(t.dtype) + 5;
        if (!d->s->tight && (!d->s->quick || dtype == OAR_F32))
            try_pairs(d, t);
    }
}
