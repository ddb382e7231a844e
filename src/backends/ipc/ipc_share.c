/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_share: what is copied and combined in a collective, and which share of it
 * a rank does. Where all ranks share a GPU, one rank does everything; else each
 * rank does its own: reductions by slices or by parts, moves by the rank that
 * has the data, a broadcast by the ranks that get it. */
#include "backends/ipc/ipc.h"
#include "base/status.h"

/* A collective as this file sees it. */
typedef struct share {
    ipc *self;
    const oar_collective *call;
    const ipc_view *view; /* by rank */
    uint64_t size;        /* of an element */
} share;

int oari_ipc_reads(const ipc *self, const oar_collective *call)
{
    int root = call->root == self->rank;
    int one =
        call->kind == OAR_COLL_BROADCAST || call->kind == OAR_COLL_SCATTER;

    return call->in.count != 0 && (root || !one);
}

int oari_ipc_writes(const ipc *self, const oar_collective *call)
{
    int root = call->root == self->rank;

    if (call->out.count == 0)
        return 0;
    switch (call->kind) {
    case OAR_COLL_BROADCAST: return !root;
    case OAR_COLL_REDUCE:
    case OAR_COLL_GATHER: return root;
    default: return 1;
    }
}

/* Whether this rank does that rank's share. */
static int does_share(const share *d, int rank)
{
    return d->self->leader_works || rank == d->self->rank;
}

/* ---- reductions ---------------------------------------------------------- */

static ipc_reduction make_reduction(const share *d, uint64_t from,
                                    uint64_t count)
{
    ipc_reduction r;

    r.op = d->call->op.kind;
    r.dtype = d->call->in.dtype;
    r.sources = d->self->ranks;
    r.destinations = 0;
    r.count = count;
    for (int s = 0; s < r.sources; s++) {
        r.source[s] = d->view[s].in + from * d->size;
        r.factor[s] = d->view[s].entry->weight;
    }
    return r;
}

/* Slices begin on whole vectors, so that all but the ends are fast. */
static oar_status reduce_slice(const share *d, int first, int last)
{
    uint64_t count = d->call->in.count, lanes = OARI_CUDA_VECTOR / d->size;
    uint64_t rank = (uint64_t)d->self->rank, ranks = (uint64_t)d->self->ranks;
    uint64_t each = ((count + ranks - 1) / ranks + lanes - 1) / lanes * lanes;
    uint64_t from = rank * each < count ? rank * each : count;
    uint64_t end = count - from < each ? count : from + each;
    ipc_reduction r;

    if (d->self->leader_works) {
        from = 0;
        end = count;
    }
    r = make_reduction(d, from, end - from);
    for (int t = first; t <= last; t++)
        r.destination[r.destinations++] = d->view[t].out + from * d->size;
    return oari_ipc_reduce(d->self, &r, d->self->stream);
}

static oar_status reduce_parts(const share *d)
{
    const size_t *counts = d->call->in_counts;
    uint64_t at = 0;

    for (int t = 0; t < d->self->ranks; t++) {
        uint64_t count = counts != NULL ? counts[t] : d->call->out.count;
        ipc_reduction r = make_reduction(d, at, count);

        r.destination[r.destinations++] = d->view[t].out;
        if (does_share(d, t))
            OARI_TRY(oari_ipc_reduce(d->self, &r, d->self->stream));
        at += count;
    }
    return OAR_OK;
}

/* ---- moving -------------------------------------------------------------- */

static oar_status copy_broadcast(const share *d, ipc_copies *c)
{
    oari_cu_memory to[IPC_RANKS];
    int n = 0;

    for (int t = 0; t < d->self->ranks; t++)
        if (t != d->call->root && does_share(d, t))
            to[n++] = d->view[t].out;
    return oari_ipc_copies_add(c, d->view[d->call->root].in, to, n,
                               oari_span_bytes(&d->call->in));
}

static oar_status copy_all_gather(const share *d, ipc_copies *c)
{
    const size_t *counts = d->call->out_counts;
    oari_cu_memory to[IPC_RANKS];
    uint64_t at = 0;

    for (int s = 0; s < d->self->ranks; s++) {
        uint64_t bytes =
            d->size * (counts != NULL ? counts[s] : d->call->in.count);

        for (int t = 0; t < d->self->ranks; t++)
            to[t] = d->view[t].out + at;
        if (does_share(d, s))
            OARI_TRY(oari_ipc_copies_add(c, d->view[s].in, to, d->self->ranks,
                                         bytes));
        at += bytes;
    }
    return OAR_OK;
}

static oar_status fail_parts(const share *d, int a, uint64_t mine, int b,
                             uint64_t theirs)
{
    return oari_fail(OAR_E_MISMATCH,
                     "%s: rank %d has a part of %llu elements for rank %d, "
                     "which has %llu",
                     oar_coll_name(d->call->kind), a, (unsigned long long)mine,
                     b, (unsigned long long)theirs);
}

/* The root's counts, if it gave any, must be those of the other ranks. */
static oar_status check_parts(const share *d, const uint64_t *counts, int of_in,
                              uint64_t room)
{
    int root = d->call->root;
    uint64_t sum = 0;

    for (int r = 0; r < d->self->ranks; r++) {
        const ipc_entry *e = d->view[r].entry;
        uint64_t theirs = of_in ? e->in_count : e->out_count;
        uint64_t mine =
            counts != NULL ? counts[r] : room / (uint64_t)d->self->ranks;

        if (mine != theirs)
            return fail_parts(d, root, mine, r, theirs);
        sum += theirs;
    }
    return sum == room ? OAR_OK : fail_parts(d, root, room, root, sum);
}

static oar_status copy_gather(const share *d, ipc_copies *c)
{
    const ipc_view *root = &d->view[d->call->root];
    const uint64_t *counts =
        root->entry->has_counts ? root->entry->counts + d->self->ranks : NULL;
    uint64_t at = 0;

    OARI_TRY(check_parts(d, counts, 1, root->entry->out_count));
    for (int s = 0; s < d->self->ranks; s++) {
        uint64_t bytes = d->view[s].entry->in_count * d->size;
        oari_cu_memory to = root->out + at;

        if (does_share(d, s))
            OARI_TRY(oari_ipc_copies_add(c, d->view[s].in, &to, 1, bytes));
        at += bytes;
    }
    return OAR_OK;
}

static oar_status copy_scatter(const share *d, ipc_copies *c)
{
    const ipc_view *root = &d->view[d->call->root];
    const uint64_t *counts =
        root->entry->has_counts ? root->entry->counts : NULL;
    uint64_t at = 0;

    OARI_TRY(check_parts(d, counts, 0, root->entry->in_count));
    for (int t = 0; t < d->self->ranks; t++) {
        uint64_t bytes = d->view[t].entry->out_count * d->size;

        if (does_share(d, t))
            OARI_TRY(oari_ipc_copies_add(c, root->in + at, &d->view[t].out, 1,
                                         bytes));
        at += bytes;
    }
    return OAR_OK;
}

/* Returns the elements of the part of a rank's row that is for, or from,
 * another. */
static uint64_t part_count(const share *d, int rank, int other, int of_out)
{
    const ipc_entry *e = d->view[rank].entry;

    if (e->has_counts)
        return e->counts[(of_out ? d->self->ranks : 0) + other];
    return (of_out ? e->out_count : e->in_count) / (uint64_t)d->self->ranks;
}

static uint64_t part_at(const share *d, int rank, int other, int of_out)
{
    uint64_t at = 0;

    for (int r = 0; r < other; r++)
        at += part_count(d, rank, r, of_out);
    return at;
}

static oar_status copy_all_to_all(const share *d, ipc_copies *c)
{
    for (int s = 0; s < d->self->ranks; s++)
        for (int t = 0; t < d->self->ranks && does_share(d, s); t++) {
            uint64_t sent = part_count(d, s, t, 0);
            uint64_t received = part_count(d, t, s, 1);
            oari_cu_memory to = d->view[t].out + part_at(d, t, s, 1) * d->size;

            if (sent != received)
                return fail_parts(d, s, sent, t, received);
            OARI_TRY(oari_ipc_copies_add(
                c, d->view[s].in + part_at(d, s, t, 0) * d->size, &to, 1,
                sent * d->size));
        }
    return OAR_OK;
}

oar_status oari_ipc_run_share(ipc *self, const oar_collective *call,
                              const ipc_view *view)
{
    const oar_span *span =
        call->kind == OAR_COLL_SCATTER ? &call->out : &call->in;
    share d = { self, call, view, oar_dtype_size(span->dtype) };
    ipc_copies c;

    switch (call->kind) {
    case OAR_COLL_ALL_REDUCE: return reduce_slice(&d, 0, self->ranks - 1);
    case OAR_COLL_REDUCE: return reduce_slice(&d, call->root, call->root);
    case OAR_COLL_REDUCE_SCATTER: return reduce_parts(&d);
    default: break;
    }
    oari_ipc_copies_begin(self, self->stream, &c);
    switch (call->kind) {
    case OAR_COLL_BROADCAST: OARI_TRY(copy_broadcast(&d, &c)); break;
    case OAR_COLL_ALL_GATHER: OARI_TRY(copy_all_gather(&d, &c)); break;
    case OAR_COLL_GATHER: OARI_TRY(copy_gather(&d, &c)); break;
    case OAR_COLL_SCATTER: OARI_TRY(copy_scatter(&d, &c)); break;
    default: OARI_TRY(copy_all_to_all(&d, &c)); break;
    }
    return oari_ipc_copies_end(&c);
}
