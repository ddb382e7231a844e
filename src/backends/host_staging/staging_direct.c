/* SPDX-License-Identifier: Apache-2.0 */
/* staging_direct: a collective between ranks of one host. Each rank loads its
 * chunk into its own buffer, and every rank that needs some of it stores it
 * from there: what is only moved is never copied on the host. In an all_reduce
 * each rank combines one share of a chunk; the shares go to the buffer of one
 * of the ranks, another for each chunk, from where all ranks store the whole.
 *
 * There is no barrier for each chunk. Each rank publishes how far it is
 * (staging_counters), and does what the others have made possible: it combines
 * what all have loaded, stores what is complete, and loads more where all ranks
 * have stored a slot.
 */
#include "backends/host_staging/staging.h"
#include "base/status.h"

enum { AHEAD = 4 /* chunks that are loaded before the first is stored */ };

static int reduces(const staging_run *p)
{
    return p->call->kind == OAR_COLL_ALL_REDUCE;
}

int staging_can_run_direct(const staging *h, const oar_collective *call)
{
    if (!h->all_mapped || call->ragged)
        return 0;
    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_ALL_TO_ALL: return 1;
    default: return 0;
    }
}

static staging_slot *slot_of(const staging_run *p, size_t chunk)
{
    return &p->h->slot[chunk % STAGING_SLOTS];
}

/* ---- counters ------------------------------------------------------------ */

static staging_counters *counters_of(const staging *h, int rank)
{
    return (staging_counters *)(void *)(h->mapped[rank] +
                                        STAGING_SLOTS * h->slot_bytes);
}

/* Returns how many chunks all ranks have loaded, reduced or stored. */
static size_t least_count(const staging_run *p, int which)
{
    uint64_t least = UINT64_MAX;

    for (int r = 0; r < p->h->ranks; r++) {
        uint64_t one = atomic_load_explicit(&counters_of(p->h, r)->of[which],
                                            memory_order_acquire);

        least = one < least ? one : least;
    }
    return least;
}

static void publish_count(const staging_run *p, int which, size_t chunks)
{
    atomic_store_explicit(&counters_of(p->h, p->h->rank)->of[which], chunks,
                          memory_order_release);
}

/* ---- shares of an all_reduce --------------------------------------------- */

/* Returns the rank to whose buffer the shares of a chunk go. */
static int owner_of(const staging_run *p, size_t chunk)
{
    return (int)(chunk % (size_t)p->h->ranks);
}

/* Combines this rank's share of a chunk: whole cache lines, but the last. */
static void reduce_share(staging_run *p, size_t chunk)
{
    size_t count = staging_chunk_count(p, &p->in, 0, chunk);
    size_t ranks = (size_t)p->h->ranks, unit = STAGING_LINE / p->element;
    size_t each = ((count + ranks - 1) / ranks + unit - 1) / unit * unit;
    size_t first = (size_t)p->h->rank * each, end;

    if (first > count)
        first = count;
    end = count - first < each ? count : first + each;
    staging_sum_run(p->h, owner_of(p, chunk),
                    (size_t)(slot_of(p, chunk)->data - p->h->buffer) +
                        first * p->element,
                    end - first);
}

/* ---- storing ------------------------------------------------------------- */

/* Stores what one rank has for this one into a part of the output. Where that
 * rank's chunk is a row, all its parts are equal. */
static oar_status store_part(staging_run *p, size_t chunk,
                             const staging_slot *s, int from, int part)
{
    oar_coll kind = p->call->kind;
    int row = kind == OAR_COLL_SCATTER || kind == OAR_COLL_ALL_TO_ALL;
    size_t bytes = staging_chunk_count(p, &p->out, part, chunk) * p->element;
    size_t at = (size_t)part * p->out.each + chunk * p->width;

    return staging_copy_up(p->h, p->out.data + at * p->element,
                           p->h->mapped[from] + (s->data - p->h->buffer) +
                               (row ? (size_t)p->h->rank * bytes : 0),
                           bytes);
}

static oar_status store_chunk(staging_run *p, size_t chunk)
{
    staging_slot *s = slot_of(p, chunk);
    oar_coll kind = p->call->kind;

    if (kind == OAR_COLL_ALL_REDUCE)
        OARI_TRY(staging_copy_up(
            p->h, p->out.data + chunk * p->width * p->element,
            p->h->mapped[owner_of(p, chunk)] + (s->data - p->h->buffer),
            staging_chunk_count(p, &p->out, 0, chunk) * p->element));
    else if (kind == OAR_COLL_BROADCAST || kind == OAR_COLL_SCATTER)
        OARI_TRY(p->out.parts != 0 ? store_part(p, chunk, s, p->call->root, 0)
                                   : OAR_OK);
    else
        for (int r = 0; r < p->out.parts; r++)
            OARI_TRY(store_part(p, chunk, s, r, r));
    return staging_record_event(p->h, s->stored, p->h->up);
}

/* ---- all chunks ---------------------------------------------------------- */

/* How many chunks this rank has started to load, loaded, reduced, started to
 * store, and stored. */
typedef struct chunk_progress {
    size_t loading, loaded, reduced, storing, stored;
    int moved; /* something could be done */
} chunk_progress;

/* Counts copies that are done, up to `end`, and publishes the count. */
static oar_status count_done(staging_run *p, int which, size_t *count,
                             size_t end, int *moved)
{
    size_t before = *count;
    int has = 1;

    while (has && *count < end) {
        const staging_slot *s = slot_of(p, *count);

        OARI_TRY(staging_test_event(
            p->h, which == STAGING_LOADED ? s->loaded : s->stored, &has));
        *count += (size_t)has;
    }
    if (*count == before)
        return OAR_OK;
    *moved = 1;
    publish_count(p, which, *count);
    return OAR_OK;
}

static oar_status advance_chunks(staging_run *p, chunk_progress *at)
{
    OARI_TRY(
        count_done(p, STAGING_LOADED, &at->loaded, at->loading, &at->moved));
    OARI_TRY(
        count_done(p, STAGING_STORED, &at->stored, at->storing, &at->moved));
    if (at->loading < p->chunks && at->loading < at->storing + AHEAD &&
        at->loading < least_count(p, STAGING_STORED) + STAGING_SLOTS) {
        OARI_TRY(staging_load_chunk(p, at->loading, slot_of(p, at->loading)));
        at->loading++;
        at->moved = 1;
    }
    if (at->storing <
        least_count(p, reduces(p) ? STAGING_REDUCED : STAGING_LOADED)) {
        at->moved = 1;
        OARI_TRY(store_chunk(p, at->storing++));
    }
    if (reduces(p) && at->reduced < least_count(p, STAGING_LOADED)) {
        at->moved = 1;
        reduce_share(p, at->reduced++);
        publish_count(p, STAGING_REDUCED, at->reduced);
    }
    return OAR_OK;
}

static oar_status run_chunks(staging_run *p)
{
    chunk_progress at = { 0 };
    int spins = 0;

    while (at.stored < p->chunks) {
        at.moved = 0;
        OARI_TRY(staging_check_aborted(p->h));
        OARI_TRY(advance_chunks(p, &at));
        if (at.moved)
            spins = 0;
        else
            OARI_TRY(staging_backoff(p->h, &spins));
    }
    return OAR_OK;
}

/* A collective over links before it may still be storing from the slots.
 * Between the two barriers all ranks are here, so their buffers and counters
 * are valid.
 */
oar_status staging_run_direct(staging_run *p)
{
    staging *h = p->h;
    oar_status status;

    if (p->chunks == 0)
        return OAR_OK;
    for (int i = 0; i < STAGING_SLOTS; i++)
        OARI_TRY(staging_wait_event(h, h->slot[i].stored));
    if (reduces(p))
        OARI_TRY(staging_sum_begin(h, p->call));
    for (int which = 0; which < STAGING_COUNTERS; which++)
        publish_count(p, which, 0);
    status = oar_barrier(h->inner, &h->untimed, NULL);
    if (status == OAR_OK)
        status = run_chunks(p);
    if (status == OAR_OK)
        status = oar_barrier(h->inner, &h->untimed, NULL);
    if (reduces(p))
        staging_sum_end(h);
    return status;
}
