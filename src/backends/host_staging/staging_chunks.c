/* SPDX-License-Identifier: Apache-2.0 */
/* staging_chunks: a collective on device memory, chunk by chunk: while one
 * chunk is combined on the host, the next is loaded and the one before is
 * stored.
 *
 * A buffer is a row of parts, or one part (a rank's own, or what is combined as
 * a whole). Chunk k of a row is elements k * width and following of each of its
 * parts, packed. So every rank divides alike, and each chunk is a collective of
 * its own among parts of any size.
 */
#include "backends/host_staging/staging.h"
#include "base/status.h"
#include "device/cuda/cuda_trace.h"

enum {
    AHEAD = 2,         /* chunks that are loaded while one is combined */
    CHUNKS_WANTED = 8, /* if the buffer is not small */
    CHUNK_BYTES_LEAST = 1 << 20
};

static size_t count_of_part(const staging_side *s, int part)
{
    return s->counts != NULL ? s->counts[part] : s->each;
}

/* ---- dividing ------------------------------------------------------------ */

static staging_side one_part(const oar_span *span)
{
    return (staging_side){ span->data, span->data != NULL, span->count, NULL };
}

static staging_side row_of(const oar_span *span, const size_t *counts,
                           int ranks)
{
    return (staging_side){ span->data,
                           span->data != NULL || counts != NULL ? ranks : 0,
                           span->count / (size_t)ranks, counts };
}

static void find_sides(staging_run *p)
{
    const oar_collective *c = p->call;
    int ranks = p->h->ranks;

    switch (c->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER:
        p->in = one_part(&c->in);
        p->out = row_of(&c->out, c->out_counts, ranks);
        break;
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER:
        p->in = row_of(&c->in, c->in_counts, ranks);
        p->out = one_part(&c->out);
        break;
    case OAR_COLL_ALL_TO_ALL:
        p->in = row_of(&c->in, c->in_counts, ranks);
        p->out = row_of(&c->out, c->out_counts, ranks);
        break;
    default:
        p->in = one_part(&c->in);
        p->out = one_part(&c->out);
        break;
    }
    if (c->kind == OAR_COLL_BROADCAST && p->h->rank != c->root)
        p->in.parts = 0;
    if (c->kind == OAR_COLL_BROADCAST && p->h->rank == c->root)
        p->out.parts = 0;
}

static size_t longest_part(const staging_side *s)
{
    size_t most = 0;

    for (int i = 0; i < s->parts; i++)
        if (count_of_part(s, i) > most)
            most = count_of_part(s, i);
    return most;
}

/* Elements of a part in a chunk: as many as there is room for, but few enough
 * that one chunk is stored while another is loaded. With ragged parts no rank
 * knows all sizes. */
static size_t choose_width(const staging_run *p)
{
    oar_coll kind = p->call->kind;
    int has_parts = kind != OAR_COLL_ALL_REDUCE && kind != OAR_COLL_BROADCAST &&
                    kind != OAR_COLL_REDUCE;
    size_t parts = has_parts ? (size_t)p->h->ranks : 1;
    size_t in = longest_part(&p->in), out = longest_part(&p->out);
    size_t wanted = (in > out ? in : out) / CHUNKS_WANTED + STAGING_LINE;
    size_t least = CHUNK_BYTES_LEAST / (parts * p->element);
    size_t room = p->h->slot_bytes / (parts * p->element);

    if (p->call->ragged)
        return room;
    wanted = wanted > least ? wanted / STAGING_LINE * STAGING_LINE : least;
    return wanted < room ? wanted : room;
}

/* ---- one chunk ----------------------------------------------------------- */

size_t staging_chunk_count(const staging_run *p, const staging_side *s,
                           int part, size_t chunk)
{
    size_t count = count_of_part(s, part), first = chunk * p->width;
    size_t left = count > first ? count - first : 0;

    return left < p->width ? left : p->width;
}

/* Copies a chunk of one side between the device and its packed form. */
static oar_status copy_chunk(const staging_run *p, const staging_side *s,
                             size_t chunk, unsigned char *packed, int up)
{
    size_t before = 0, at = 0;

    for (int i = 0; i < s->parts; i++) {
        size_t bytes = staging_chunk_count(p, s, i, chunk) * p->element;
        unsigned char *there =
            s->data + (before + chunk * p->width) * p->element;

        OARI_TRY(up ? staging_copy_up(p->h, there, packed + at, bytes)
                    : staging_copy_down(p->h, packed + at, there, bytes));
        before += count_of_part(s, i);
        at += bytes;
    }
    return OAR_OK;
}

oar_status staging_load_chunk(staging_run *p, size_t chunk, staging_slot *s)
{
    OARI_TRY(copy_chunk(p, &p->in, chunk, s->data, 0));
    return staging_record_event(p->h, s->loaded, p->h->down);
}

static oar_span packed_span(const staging_run *p, const staging_side *s,
                            unsigned char *data, size_t chunk, size_t *counts)
{
    size_t total = 0;

    for (int i = 0; i < s->parts; i++)
        total += counts[i] = staging_chunk_count(p, s, i, chunk);
    return oar_span_of(data, total, p->call->out.dtype);
}

/* Runs the chunk on the inner group. */
static oar_status run_inner(staging_run *p, size_t chunk, staging_slot *s)
{
    const oar_collective *c = p->call;
    oar_group *g = p->h->inner;
    size_t *ins = p->h->in_count, *outs = p->h->out_count;
    oar_span in = packed_span(p, &p->in, s[0].data, chunk, ins);
    oar_span out = packed_span(p, &p->out, s[1].data, chunk, outs);
    oar_call_opts o = p->h->untimed;

    o.weight = c->weight;
    o.canonical = c->canonical;
    switch (c->kind) {
    case OAR_COLL_BROADCAST:
        return oar_broadcast(g, p->in.parts != 0 ? in : out, c->root, &o, NULL);
    case OAR_COLL_ALL_REDUCE:
        return oar_all_reduce(g, in, c->op, &o,
                              NULL); /* in place: one copy less */
    case OAR_COLL_REDUCE:
        return oar_reduce(g, in, out, c->op, c->root, &o, NULL);
    case OAR_COLL_GATHER:
        return oar_gather_v(g, in, out, outs, c->root, &o, NULL);
    case OAR_COLL_SCATTER:
        return oar_scatter_v(g, in, ins, out, c->root, &o, NULL);
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_v(g, in, out, outs, &o, NULL);
    case OAR_COLL_REDUCE_SCATTER:
        return oar_reduce_scatter_v(g, in, ins, out, c->op, &o, NULL);
    case OAR_COLL_ALL_TO_ALL:
        return oar_all_to_all_v(g, in, ins, out, outs, &o, NULL);
    default: break;
    }
    return oari_fail(OAR_E_INTERNAL, "%s through the host",
                     oar_coll_name(c->kind));
}

/* By the inner group's own collectives. A chunk has two slots: for its input,
 * and for its output. */
static oar_status run_over_links(staging_run *p)
{
    int in_place = p->call->kind == OAR_COLL_ALL_REDUCE;

    for (size_t i = 0; i < p->chunks + AHEAD; i++) {
        size_t chunk = i - AHEAD, pairs = STAGING_SLOTS / 2;
        staging_slot *s;

        if (i < p->chunks) {
            s = &p->h->slot[2 * (i % pairs)];
            OARI_TRY(staging_wait_event(p->h, s->stored));
            OARI_TRY(staging_load_chunk(p, i, s));
        }
        if (i < AHEAD)
            continue;
        s = &p->h->slot[2 * (chunk % pairs)];
        OARI_TRY(staging_wait_event(p->h, s->loaded));
        OARI_TRY(run_inner(p, chunk, s));
        OARI_TRY(copy_chunk(p, &p->out, chunk, s[in_place ? 0 : 1].data, 1));
        OARI_TRY(staging_record_event(p->h, s->stored, p->h->up));
    }
    return OAR_OK;
}

oar_status staging_run_collective(staging *h, const oar_collective *call)
{
    staging_run p = { .h = h, .call = call };
    int all_known = !call->ragged || call->kind == OAR_COLL_ALL_GATHER ||
                    call->kind == OAR_COLL_REDUCE_SCATTER;
    uint64_t in, out, most; /* elements of the longest part */

    p.element = oar_dtype_size(call->out.dtype);
    find_sides(&p);
    p.width = choose_width(&p);
    OARI_TRY(staging_wait_ready(h, call));
    oari_gpu_trace_call_begin(h->device, h->up, call->finished);
    OARI_TRY(staging_map_peers(h));
    in = longest_part(&p.in);
    out = longest_part(&p.out);
    most = in > out ? in : out;
    if (!all_known) /* not every rank knows every part */
        OARI_TRY(oar_all_reduce(h->inner, oar_span_of(&most, 1, OAR_U64),
                                OAR_MAX, &h->untimed, NULL));
    p.chunks = (most + p.width - 1) / p.width;
    OARI_TRY(staging_can_run_direct(h, call) ? staging_run_direct(&p)
                                             : run_over_links(&p));
    oari_gpu_trace_call_end(h->device, call->finished,
                            oar_coll_name(call->kind));
    return staging_record_event(h, call->finished, h->up);
}
