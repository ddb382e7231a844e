/* SPDX-License-Identifier: Apache-2.0 */
/* trace_align: makes the clocks of hosts comparable, by what operations say.
 *
 * A collective in which every rank needs every other is done nowhere before all
 * have posted it. Between two hosts A and B, each such collective bounds how
 * far B's clock is behind A's, from both sides:
 *
 *     posted_A - done_B  <=  offset_B - offset_A  <=  done_A - posted_B
 *
 * where posted is the last of a host's ranks and done the first. The tightest
 * bounds of all collectives are taken, the middle is the offset, and half the
 * width is what it may be wrong by. Hosts that share no collective with any
 * host that is aligned keep the calendar's time.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "record/trace_file.h"

/* What one host's ranks did in one collective. */
typedef struct meeting {
    uint64_t group; /* a hash of its name, instance and epoch */
    uint32_t number;
    int host;
    int64_t posted, done; /* the last, the first */
} meeting;

typedef struct meetings {
    OARI_VEC(meeting) all;
} meetings;

/* The bounds of offset_B - offset_A. */
typedef struct bounds {
    int64_t low, high;
} bounds;

/* ---- hosts --------------------------------------------------------------- */

static int64_t calendar_offset(const oari_trace_source *s)
{
    return s->file->head.wall_ns - s->file->head.base_ns;
}

static const oari_trace_source *first_of_host(const oar_trace *t, int host)
{
    int i = 0;

    while (t->source[i].host != host)
        i++;
    return &t->source[i];
}

/* ---- meetings ------------------------------------------------------------ */

/* Returns whether no rank can be done before all have posted. */
static int needs_all(unsigned op)
{
    return op == OAR_COLL_ALL_REDUCE || op == OAR_COLL_REDUCE_SCATTER ||
           op == OAR_COLL_ALL_GATHER || op == OAR_COLL_ALL_TO_ALL ||
           op == OAR_COLL_BARRIER;
}

static int by_meeting(const void *a, const void *b)
{
    const meeting *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->host < y->host ? -1 : x->host > y->host;
}

/* Collects the collectives, one entry for each host, in order. */
static oar_status collect(const oar_trace *t, meetings *m)
{
    int64_t kept = 0;

    for (uint64_t i = 0; i < t->events; i++) {
        const oari_trace_place *p = &t->place[i];
        const oari_trace_source *s = &t->source[p->source];
        const oari_trace_event *e = oari_trace_event_of(t, p);
        uint64_t end = atomic_load_explicit(&e->start, memory_order_relaxed) +
                       oari_trace_lengthen(e->duration);

        if (e->kind != OARI_TRACE_OPERATION || e->group == 0 ||
            !needs_all(e->sub & (OARI_TRACE_BLOCKING - 1)) ||
            (e->sub & OARI_TRACE_FAILED) != 0)
            continue;
        OARI_TRY(
            oari_vec_push(&m->all, (meeting){ .group = oari_trace_group_hash(
                                                  &s->file->group[e->group]),
                                              .number = e->number,
                                              .host = s->host,
                                              .posted = p->start_ns,
                                              .done = oari_trace_ns(s, end) }));
    }
    qsort(m->all.data, (size_t)m->all.count, sizeof *m->all.data, by_meeting);
    for (int64_t i = 0; i < m->all.count; i++) {
        meeting *x = &m->all.data[i];
        meeting *before = kept > 0 ? &m->all.data[kept - 1] : NULL;

        if (before == NULL || by_meeting(before, x) != 0) {
            m->all.data[kept++] = *x;
            continue;
        }
        if (x->posted > before->posted)
            before->posted = x->posted;
        if (x->done < before->done)
            before->done = x->done;
    }
    m->all.count = kept;
    return OAR_OK;
}

static int same_collective(const meeting *x, const meeting *y)
{
    return x->group == y->group && x->number == y->number;
}

/* Tightens the bounds of all pairs of hosts. of: hosts x hosts. */
static void tighten(const meetings *m, int hosts, bounds *of)
{
    for (int64_t i = 0; i < m->all.count; i++) {
        const meeting *a = &m->all.data[i];

        for (int64_t j = i + 1; j < m->all.count; j++) {
            const meeting *b = &m->all.data[j];
            bounds *ab = &of[a->host * hosts + b->host];

            if (!same_collective(a, b))
                break;
            if (a->posted - b->done > ab->low)
                ab->low = a->posted - b->done;
            if (a->done - b->posted < ab->high)
                ab->high = a->done - b->posted;
        }
    }
}

/* ---- offsets ------------------------------------------------------------- */

/* Gives the bounds of b's offset against a's, in either order; returns 0 if
 * they share no collective. */
static int bounds_between(const bounds *of, int hosts, int a, int b,
                          bounds *give)
{
    const bounds *ab = &of[(a < b ? a : b) * hosts + (a < b ? b : a)];

    if (ab->high == INT64_MAX)
        return 0;
    *give = a < b ? *ab : (bounds){ -ab->high, -ab->low };
    return 1;
}

static int64_t half_width(const bounds *b)
{
    return b->high > b->low ? (b->high - b->low) / 2 : (b->low - b->high) / 2;
}

/* Sets offset and error of each host, from the first one outwards, always by
 * the most exact step that is left. error: -1 where nothing leads. */
static void spread(const bounds *of, int hosts, int64_t *offset, int64_t *error)
{
    error[0] = 0;
    for (;;) {
        int next = -1;
        int64_t best = INT64_MAX, at = 0;

        for (int a = 0; a < hosts; a++)
            for (int b = 0; error[a] >= 0 && b < hosts; b++) {
                bounds ab;

                if (error[b] >= 0 || !bounds_between(of, hosts, a, b, &ab) ||
                    error[a] + half_width(&ab) >= best)
                    continue;
                best = error[a] + half_width(&ab);
                at = offset[a] + ab.low + (ab.high - ab.low) / 2;
                next = b;
            }
        if (next < 0)
            return;
        error[next] = best;
        offset[next] = at;
    }
}

static oar_status align_hosts(oar_trace *t, int hosts)
{
    size_t pairs = (size_t)hosts * (size_t)hosts;
    bounds *of = oari_alloc(pairs, sizeof *of);
    int64_t *offset = oari_alloc((size_t)hosts, sizeof *offset);
    int64_t *error = oari_alloc((size_t)hosts, sizeof *error);
    meetings m = { 0 };
    oar_status status = OAR_E_NOMEM;

    if (of != NULL && offset != NULL && error != NULL)
        status = collect(t, &m);
    if (status == OAR_OK) {
        for (size_t i = 0; i < pairs; i++)
            of[i] = (bounds){ INT64_MIN, INT64_MAX };
        for (int h = 0; h < hosts; h++) {
            offset[h] = calendar_offset(first_of_host(t, h)) -
                        calendar_offset(first_of_host(t, 0));
            error[h] = -1;
        }
        tighten(&m, hosts, of);
        spread(of, hosts, offset, error);
        for (int i = 0; i < t->sources; i++) {
            t->source[i].offset_ns = offset[t->source[i].host];
            t->source[i].error_ns = error[t->source[i].host];
        }
    }
    oari_vec_free(&m.all);
    oari_free(of);
    oari_free(offset);
    oari_free(error);
    return status;
}

oar_status oari_trace_align(oar_trace *t)
{
    return t->hosts > 1 ? align_hosts(t, t->hosts) : OAR_OK;
}
