/* SPDX-License-Identifier: Apache-2.0 */
/* conform_matching: tags, wildcards, probes, wrong sizes and batches of
 * messages. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 10, LARGE_COUNT = 50000 };

static oar_span ints(int *data, size_t count)
{
    return oar_span_of(data, count, OAR_I32);
}

static conform_trial trial_of(conform_kind k, int from, int to)
{
    return (conform_trial){ .kind = k,
                            .root = from,
                            .to = to,
                            .count = COUNT,
                            .where = PRIVATE,
                            .of = "world" };
}

/* A barrier: what was sent before is in flight. */
static int barrier(conform_context *d)
{
    return record_status(d, oar_barrier(d->world, NULL, NULL), "barrier");
}

/* ---- tags ---------------------------------------------------------------- */

static const int64_t tags[] = { 0, 1, 4294967295, 7, 7 };
enum { TAGS = sizeof tags / sizeof *tags };

static void send_tags(conform_context *d, int to)
{
    for (int i = 0; i < TAGS; i++)
        record_status(d,
                      oar_send(d->world, ints(&i, 1), to, tags[i], NULL, NULL),
                      "send");
}

/* In another order than they were sent; those of one tag in theirs. */
static void receive_tags(conform_context *d, int from)
{
    static const int order[TAGS] = { 3, 2, 4, 0, 1 };

    for (int i = 0; i < TAGS; i++) {
        int got = -1;
        if (!record_status(d,
                           oar_recv(d->world, ints(&got, 1), from,
                                    tags[order[i]], NULL, NULL),
                           "recv"))
            return;
        if (got != order[i])
            record_wrong(d, "tag %lld brought message %d, not %d",
                         (long long)tags[order[i]], got, order[i]);
    }
}

static void try_tags(conform_context *d, int from, int to)
{
    conform_trial t = trial_of(K_TAGS, from, to);

    if (!record_begin(d, &t))
        return;
    if (d->rank == from)
        send_tags(d, to);
    if (d->rank == to)
        receive_tags(d, from);
}

/* ---- wildcards ----------------------------------------------------------- */

static void receive_from_all(conform_context *d, int64_t tag)
{
    uint64_t seen = 1; /* rank 0 sends nothing */

    for (int i = 1; i < d->ranks; i++) {
        oar_message came = oar_message_init();
        oar_call_opts o = oar_call_opts_init();
        int got = -1;
        o.message = &came;
        if (!record_status(d,
                           oar_recv(d->world, ints(&got, 1), OAR_ANY_SOURCE,
                                    tag, &o, NULL),
                           "recv"))
            return;
        if (got != came.source || (tag >= 0 && came.tag != tag) ||
            came.bytes != sizeof got || (seen >> got & 1) != 0)
            record_wrong(d, "%d came, said to be from %d with tag %lld", got,
                         came.source, (long long)came.tag);
        seen |= 1ull << got;
    }
}

static void try_any_source(conform_context *d, int64_t wanted)
{
    conform_trial t = trial_of(K_WILDCARDS, d->ranks - 1, 0);

    if (!record_begin(d, &t))
        return;
    if (d->rank == 0)
        receive_from_all(d, wanted);
    else
        record_status(d,
                      oar_send(d->world, ints(&d->rank, 1), 0,
                               wanted >= 0 ? wanted : d->rank, NULL, NULL),
                      "send");
    barrier(d);
}

/* From one source with any tag: in the order they were sent. */
static void try_any_tag(conform_context *d)
{
    conform_trial t = trial_of(K_WILDCARDS, 1, 0);

    if (!record_begin(d, &t))
        return;
    if (d->rank == 1)
        send_tags(d, 0);
    for (int i = 0; d->rank == 0 && i < TAGS; i++) {
        int got = -1;
        if (record_status(
                d,
                oar_recv(d->world, ints(&got, 1), 1, OAR_ANY_TAG, NULL, NULL),
                "recv") &&
            got != i)
            record_wrong(d, "message %d came when %d should", got, i);
    }
    barrier(d);
}

/* A backend without wildcards says so, and nothing is taken. */
static void try_no_wildcards(conform_context *d)
{
    conform_trial t = trial_of(K_WILDCARDS, 0, 0);
    int got;

    if (!record_begin(d, &t))
        return;
    record_wanted(
        d, oar_recv(d->world, ints(&got, 1), OAR_ANY_SOURCE, 1, NULL, NULL),
        OAR_E_UNSUPPORTED, "recv from any source");
    if (d->row->note[d->cell].result == RIGHT)
        record_cannot(d);
}

/* ---- probes -------------------------------------------------------------- */

static void expect_found(conform_context *d, int wanted, int64_t tag)
{
    oar_message waits = oar_message_init();
    int found = -1;

    if (!record_status(d, oar_probe(d->world, 1, tag, &found, &waits), "probe"))
        return;
    if (found != wanted)
        record_wrong(d, "probe of tag %lld finds %d, not %d", (long long)tag,
                     found, wanted);
    else if (found && (waits.source != 1 || waits.bytes != COUNT * sizeof(int)))
        record_wrong(d, "probe says %zu bytes from %d", waits.bytes,
                     waits.source);
}

static void probe_and_take(conform_context *d)
{
    oar_message waits = oar_message_init();
    int got[COUNT];

    if (!record_status(d, oar_probe_wait(d->world, 1, 9, 0, &waits),
                       "probe_wait"))
        return;
    if (waits.source != 1 || waits.tag != 9 || waits.bytes != sizeof got)
        record_wrong(d, "probe_wait says %zu bytes from %d, tag %lld",
                     waits.bytes, waits.source, (long long)waits.tag);
    expect_found(d, 1, 9);
    expect_found(d, 0, 8);
    record_status(d, oar_recv(d->world, ints(got, COUNT), 1, 9, NULL, NULL),
                  "recv");
    expect_found(d, 0, 9);
    record_wanted(d, oar_probe_wait(d->world, 1, 9, 20, &waits), OAR_E_TIMEOUT,
                  "probe_wait for nothing");
}

static void try_probe(conform_context *d)
{
    conform_trial t = trial_of(K_PROBE, 1, 0);
    int data[COUNT] = { 0 }, found;

    if (!record_begin(d, &t))
        return;
    if (!(d->s->can & OAR_CAN_PROBE)) {
        record_wanted(d, oar_probe(d->world, 0, 9, &found, NULL),
                      OAR_E_UNSUPPORTED, "probe");
        if (d->row->note[d->cell].result == RIGHT)
            record_cannot(d);
        return;
    }
    if (d->rank == 0)
        expect_found(d, 0, 9);
    if (!barrier(d))
        return;
    if (d->rank == 1)
        record_status(
            d, oar_send(d->world, ints(data, COUNT), 0, 9, NULL, NULL), "send");
    if (d->rank == 0)
        probe_and_take(d);
    barrier(d);
}

/* ---- messages of the wrong size ------------------------------------------ */

/* The send may be done before its size is looked at, if it is small. */
static void send_wrong(conform_context *d, int *data, size_t count,
                       int synchronous)
{
    oar_call_opts o = oar_call_opts_init();
    oar_status status;

    o.synchronous = synchronous;
    status = oar_send(d->world, ints(data, count), 1, 4, &o, NULL);
    if (synchronous || (count > COUNT && (d->s->can & OAR_CAN_SYNCHRONOUS)))
        record_wanted(d, status, OAR_E_SIZE, "a send of the wrong size");
    else if (status != OAR_E_SIZE)
        record_wanted(d, status, OAR_OK, "a send of the wrong size");
}

static void send_after(conform_context *d, int *data)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = 100 + i;
    record_status(d, oar_send(d->world, ints(data, COUNT), 1, 4, NULL, NULL),
                  "the next send");
}

static void receive_wrong(conform_context *d, int *data, size_t count)
{
    record_wanted(d, oar_recv(d->world, ints(data, count), 0, 4, NULL, NULL),
                  OAR_E_SIZE, "a receive of the wrong size");
    if (!record_status(d,
                       oar_recv(d->world, ints(data, COUNT), 0, 4, NULL, NULL),
                       "the next receive"))
        return;
    for (int i = 0; i < COUNT; i++)
        if (data[i] != 100 + i)
            record_wrong(d, "after a wrong size, element %d is %d", i, data[i]);
}

static void try_wrong_size(conform_context *d, size_t sent, size_t wanted,
                           int synchronous)
{
    conform_trial t = trial_of(K_WRONG_SIZE, 0, 1);
    int *data;

    t.count = sent;
    t.how = synchronous ? SYNCHRONOUS : BLOCKING;
    if (!record_begin(d, &t))
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
    barrier(d);
    free(data);
}

/* ---- batches ------------------------------------------------------------- */

static oar_status post_exchange(conform_context *d, int out[][3], int in[][3],
                                int *sum)
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

/* All ranks to all ranks, with a collective among the messages. */
static void try_batch(conform_context *d)
{
    conform_trial t = trial_of(K_BATCH, 0, 0);
    int out[CONFORM_MAX_RANKS][3] = { { 0 } };
    int in[CONFORM_MAX_RANKS][3] = { { 0 } }, sum = 1;

    t.how = BATCHED;
    if (!record_begin(d, &t))
        return;
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < 3; i++) {
            out[r][i] = d->rank * 1000 + r * 10 + i;
            in[r][i] = -1;
        }
    if (!record_status(d, post_exchange(d, out, in, &sum), "the batch"))
        return;
    if (sum != d->ranks)
        record_wrong(d, "all_reduce in the batch gives %d", sum);
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < 3; i++)
            if (in[r][i] != r * 1000 + d->rank * 10 + i)
                record_wrong(d, "from rank %d came %d", r, in[r][i]);
}

/* An empty batch, and the states in which there is none. */
static void try_empty_batch(conform_context *d)
{
    conform_trial t = trial_of(K_BATCH, 0, 0);

    t.count = 0;
    if (!record_begin(d, &t))
        return;
    if (!record_status(d, oar_batch_begin(d->world), "begin"))
        return;
    record_wanted(d, oar_batch_begin(d->world), OAR_E_STATE,
                  "a batch in a batch");
    record_status(d, oar_batch_end(d->world, NULL), "end");
    record_wanted(d, oar_batch_end(d->world, NULL), OAR_E_STATE,
                  "an end without a begin");
}

static void try_pairs_matching(conform_context *d)
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

void conform_matching(conform_context *d)
{
    for (int from = 0; from < d->ranks && from < 4; from++)
        for (int to = 0; to < d->ranks && to < 4; to++)
            try_tags(d, from, to);
    try_pairs_matching(d);
    for (int i = 0; i < (d->s->quick ? 3 : 20); i++)
        try_batch(d);
    try_empty_batch(d);
}
