/* SPDX-License-Identifier: Apache-2.0 */
/* conform_odd: what messages can do beyond going from one to another: tags,
 * wildcards, probes, wrong sizes, batches. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 10, LARGE_COUNT = 50000 };

static oar_span ints(int *data, size_t count)
{
    return oar_span_of(data, count, OAR_I32);
}

static trial trial_of(kind k, int from, int to)
{
    return (trial){ .kind = k,
                    .root = from,
                    .to = to,
                    .count = COUNT,
                    .where = PRIVATE,
                    .of = "world" };
}

/* Everybody is here: what was sent before is under way. */
static int meet(desk *d)
{
    return note_status(d, oar_barrier(d->world, NULL, NULL), "barrier");
}

/* ---- tags ---------------------------------------------------------------- */

static const int64_t tags[] = { 0, 1, 4294967295, 7, 7 };
enum { TAGS = sizeof tags / sizeof *tags };

static void send_tags(desk *d, int to)
{
    for (int i = 0; i < TAGS; i++)
        note_status(d, oar_send(d->world, ints(&i, 1), to, tags[i], NULL, NULL),
                    "send");
}

/* In another order than they were sent; those of one tag in theirs. */
static void receive_tags(desk *d, int from)
{
    static const int order[TAGS] = { 3, 2, 4, 0, 1 };

    for (int i = 0; i < TAGS; i++) {
        int got = -1;
        if (!note_status(d,
                         oar_recv(d->world, ints(&got, 1), from, tags[order[i]],
                                  NULL, NULL),
                         "recv"))
            return;
        if (got != order[i])
            note_wrong(d, "tag %lld brought message %d, not %d",
                       (long long)tags[order[i]], got, order[i]);
    }
}

static void try_tags(desk *d, int from, int to)
{
    trial t = trial_of(K_TAGS, from, to);

    if (!note_begin(d, &t))
        return;
    if (d->rank == from)
        send_tags(d, to);
    if (d->rank == to)
        receive_tags(d, from);
}

/* ---- wildcards ----------------------------------------------------------- */

static void receive_from_all(desk *d, int64_t tag)
{
    uint64_t seen = 1; /* rank 0 sends nothing */

    for (int i = 1; i < d->ranks; i++) {
        oar_message came = oar_message_init();
        oar_call_opts o = oar_call_opts_init();
        int got = -1;
        o.message = &came;
        if (!note_status(d,
                         oar_recv(d->world, ints(&got, 1), OAR_ANY_SOURCE, tag,
                                  &o, NULL),
                         "recv"))
            return;
        if (got != came.source || (tag >= 0 && came.tag != tag) ||
            came.bytes != sizeof got || (seen >> got & 1) != 0)
            note_wrong(d, "%d came, said to be from %d with tag %lld", got,
                       came.source, (long long)came.tag);
        seen |= 1ull << got;
    }
}

static void try_any_source(desk *d, int64_t wanted)
{
    trial t = trial_of(K_WILDCARDS, d->ranks - 1, 0);

    if (!note_begin(d, &t))
        return;
    if (d->rank == 0)
        receive_from_all(d, wanted);
    else
        note_status(d,
                    oar_send(d->world, ints(&d->rank, 1), 0,
                             wanted >= 0 ? wanted : d->rank, NULL, NULL),
                    "send");
    meet(d);
}

/* From one source with any tag: in the order they were sent. */
static void try_any_tag(desk *d)
{
    trial t = trial_of(K_WILDCARDS, 1, 0);

    if (!note_begin(d, &t))
        return;
    if (d->rank == 1)
        send_tags(d, 0);
    for (int i = 0; d->rank == 0 && i < TAGS; i++) {
        int got = -1;
        if (note_status(
                d,
                oar_recv(d->world, ints(&got, 1), 1, OAR_ANY_TAG, NULL, NULL),
                "recv") &&
            got != i)
            note_wrong(d, "message %d came when %d should", got, i);
    }
    meet(d);
}

/* A backend without wildcards says so, and nothing is taken. */
static void try_no_wildcards(desk *d)
{
    trial t = trial_of(K_WILDCARDS, 0, 0);
    int got;

    if (!note_begin(d, &t))
        return;
    note_wanted(
        d, oar_recv(d->world, ints(&got, 1), OAR_ANY_SOURCE, 1, NULL, NULL),
        OAR_E_UNSUPPORTED, "recv from any source");
    if (d->row->note[d->cell].verdict == RIGHT)
        note_cannot(d);
}

/* ---- probes -------------------------------------------------------------- */

static void expect_found(desk *d, int wanted, int64_t tag)
{
    oar_message waits = oar_message_init();
    int found = -1;

    if (!note_status(d, oar_probe(d->world, 1, tag, &found, &waits), "probe"))
        return;
    if (found != wanted)
        note_wrong(d, "probe of tag %lld finds %d, not %d", (long long)tag,
                   found, wanted);
    else if (found && (waits.source != 1 || waits.bytes != COUNT * sizeof(int)))
        note_wrong(d, "probe says %zu bytes from %d", waits.bytes,
                   waits.source);
}

static void probe_and_take(desk *d)
{
    oar_message waits = oar_message_init();
    int got[COUNT];

    if (!note_status(d, oar_probe_wait(d->world, 1, 9, 0, &waits),
                     "probe_wait"))
        return;
    if (waits.source != 1 || waits.tag != 9 || waits.bytes != sizeof got)
        note_wrong(d, "probe_wait says %zu bytes from %d, tag %lld",
                   waits.bytes, waits.source, (long long)waits.tag);
    expect_found(d, 1, 9);
    expect_found(d, 0, 8);
    note_status(d, oar_recv(d->world, ints(got, COUNT), 1, 9, NULL, NULL),
                "recv");
    expect_found(d, 0, 9);
    note_wanted(d, oar_probe_wait(d->world, 1, 9, 20, &waits), OAR_E_TIMEOUT,
                "probe_wait for nothing");
}

static void try_probe(desk *d)
{
    trial t = trial_of(K_PROBE, 1, 0);
    int data[COUNT] = { 0 }, found;

    if (!note_begin(d, &t))
        return;
    if (!(d->s->can & OAR_CAN_PROBE)) {
        note_wanted(d, oar_probe(d->world, 0, 9, &found, NULL),
                    OAR_E_UNSUPPORTED, "probe");
        if (d->row->note[d->cell].verdict == RIGHT)
            note_cannot(d);
        return;
    }
    if (d->rank == 0)
        expect_found(d, 0, 9);
    if (!meet(d))
        return;
    if (d->rank == 1)
        note_status(d, oar_send(d->world, ints(data, COUNT), 0, 9, NULL, NULL),
                    "send");
    if (d->rank == 0)
        probe_and_take(d);
    meet(d);
}

/* ---- messages of the wrong size ------------------------------------------ */

/* The send may be done before anybody looks at its size, if it is small. */
static void send_wrong(desk *d, int *data, size_t count, int synchronous)
{
    oar_call_opts o = oar_call_opts_init();
    oar_status status;

    o.synchronous = synchronous;
    status = oar_send(d->world, ints(data, count), 1, 4, &o, NULL);
    if (synchronous || (count > COUNT && (d->s->can & OAR_CAN_SYNCHRONOUS)))
        note_wanted(d, status, OAR_E_SIZE, "a send of the wrong size");
    else if (status != OAR_E_SIZE)
        note_wanted(d, status, OAR_OK, "a send of the wrong size");
}

static void send_after(desk *d, int *data)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = 100 + i;
    note_status(d, oar_send(d->world, ints(data, COUNT), 1, 4, NULL, NULL),
                "the next send");
}

static void receive_wrong(desk *d, int *data, size_t count)
{
    note_wanted(d, oar_recv(d->world, ints(data, count), 0, 4, NULL, NULL),
                OAR_E_SIZE, "a receive of the wrong size");
    if (!note_status(d, oar_recv(d->world, ints(data, COUNT), 0, 4, NULL, NULL),
                     "the next receive"))
        return;
    for (int i = 0; i < COUNT; i++)
        if (data[i] != 100 + i)
            note_wrong(d, "after a wrong size, element %d is %d", i, data[i]);
}

static void try_wrong_size(desk *d, size_t sent, size_t wanted, int synchronous)
{
    trial t = trial_of(K_WRONG_SIZE, 0, 1);
    int *data;

    t.count = sent;
    t.how = synchronous ? SYNCHRONOUS : BLOCKING;
    if (!note_begin(d, &t))
        return;
    data = calloc(LARGE_COUNT + COUNT, sizeof *data);
    if (data == NULL)
        abort();
    if (d->rank == 0) {
        send_wrong(d, data, sent, synchronous);
        send_after(d, data);
    }
    if (d->rank == 1)
        receive_wrong(d, data, wanted);
    meet(d);
    free(data);
}

/* ---- batches ------------------------------------------------------------- */

static oar_status post_exchange(desk *d, int out[][3], int in[][3], int *sum)
{
    oar_status status = oar_batch_begin(d->world), end;

    if (status != OAR_OK)
        return status;
    for (int r = 0; r < d->ranks && status == OAR_OK; r++)
        status = oar_recv(d->world, ints(in[r], 3), r, r, NULL, NULL);
    if (status == OAR_OK)
        status = oar_all_reduce(d->world, ints(sum, 1), OAR_SUM, NULL, NULL);
    for (int r = 0; r < d->ranks && status == OAR_OK; r++)
        status = oar_send(d->world, ints(out[r], 3), r, d->rank, NULL, NULL);
    end = oar_batch_end(d->world, NULL);
    return status != OAR_OK ? status : end;
}

/* Everybody to everybody, with a collective among the messages. */
static void try_batch(desk *d)
{
    trial t = trial_of(K_BATCH, 0, 0);
    int out[CONFORM_MAX_RANKS][3] = { { 0 } };
    int in[CONFORM_MAX_RANKS][3] = { { 0 } }, sum = 1;

    t.how = BATCHED;
    if (!note_begin(d, &t))
        return;
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < 3; i++) {
            out[r][i] = d->rank * 1000 + r * 10 + i;
            in[r][i] = -1;
        }
    if (!note_status(d, post_exchange(d, out, in, &sum), "the batch"))
        return;
    if (sum != d->ranks)
        note_wrong(d, "all_reduce in the batch gives %d", sum);
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < 3; i++)
            if (in[r][i] != r * 1000 + d->rank * 10 + i)
                note_wrong(d, "from rank %d came %d", r, in[r][i]);
}

/* An empty batch, and the states in which there is none. */
static void try_empty_batch(desk *d)
{
    trial t = trial_of(K_BATCH, 0, 0);

    t.count = 0;
    if (!note_begin(d, &t))
        return;
    if (!note_status(d, oar_batch_begin(d->world), "begin"))
        return;
    note_wanted(d, oar_batch_begin(d->world), OAR_E_STATE,
                "a batch in a batch");
    note_status(d, oar_batch_end(d->world, NULL), "end");
    note_wanted(d, oar_batch_end(d->world, NULL), OAR_E_STATE,
                "an end without a begin");
}

static void try_pairs_odd(desk *d)
{
    if (d->s->can & OAR_CAN_ANY) {
        for (int64_t tag = 30; tag < 33; tag++)
            try_any_source(d, tag);
        try_any_source(d, OAR_ANY_TAG);
        if (d->ranks > 1)
            try_any_tag(d);
    } else
        try_no_wildcards(d);
    if (d->ranks > 1) {
        try_probe(d);
        try_wrong_size(d, COUNT, 7, 0);
        try_wrong_size(d, 7, COUNT, 0);
        try_wrong_size(d, 0, 3, 0);
        try_wrong_size(d, LARGE_COUNT, 7, 0);
        try_wrong_size(d, LARGE_COUNT, LARGE_COUNT - 1, 0);
        if (d->s->can & OAR_CAN_SYNCHRONOUS)
            try_wrong_size(d, COUNT, 7, 1);
    }
}

void conform_odd_messages(desk *d)
{
    for (int from = 0; from < d->ranks && from < 4; from++)
        for (int to = 0; to < d->ranks && to < 4; to++)
            try_tags(d, from, to);
    try_pairs_odd(d);
    for (int i = 0; i < (d->s->quick ? 3 : 20); i++)
        try_batch(d);
    try_empty_batch(d);
}
