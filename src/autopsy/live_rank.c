/* SPDX-License-Identifier: Apache-2.0 */
/* live_rank: what a rank does now, from an analysis. Rates come from the
 * operations of the last seconds, and how long it waited from the look before.
 */
#include "autopsy/live.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "autopsy/autopsy.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "record/recorder.h"

#define WINDOW_NS 2e9 /* of the rates */

/* ---- what a rank does ---------------------------------------------------- */

static oar_live_state state_of(const oari_dump *d)
{
    if (d == NULL || d->image.box == NULL)
        return OAR_LIVE_UNKNOWN;
    switch (d->life) {
    case OARI_PROCESS_ABSENT: return OAR_LIVE_STARTS;
    case OARI_PROCESS_RUNS:
    case OARI_PROCESS_SLEEPS: return OAR_LIVE_RUNS;
    case OARI_PROCESS_STOPPED: return OAR_LIVE_STOPPED;
    case OARI_PROCESS_EXITED: return OAR_LIVE_EXITED;
    case OARI_PROCESS_DEAD: return OAR_LIVE_DEAD;
    default: return OAR_LIVE_UNKNOWN;
    }
}

static void describe_op(oar_live_rank *out, const oari_group_view *g,
                        const oari_member *m, const oari_op_view *op)
{
    oar_record r;

    oari_text_copy(out->group, sizeof out->group, g->ring->group,
                   sizeof g->ring->group);
    if (op == NULL)
        return;
    r = oari_op_record(m, op);
    out->kind = op->kind;
    out->number = op->number;
    out->busy = op->state == OAR_RECORD_POSTED;
    out->waits = out->busy && op->waited;
    out->age_ns = oari_op_age(m, op);
    oari_text_copy(out->site, sizeof out->site, r.site, sizeof r.site);
    oari_text_copy(out->label, sizeof out->label, r.label, sizeof r.label);
}

/* Writes which ranks a wait is for. Of ranks of other hosts nothing is known.
 */
static void describe_wait(oar_live_rank *out, const oari_wait *w)
{
    for (int i = 0; i < w->in->ranks; i++) {
        const oari_member *m = &w->in->member[i];

        if (m == w->member || m->world < 0 || m->dump == NULL ||
            m->dump->image.box == NULL || !oari_waits_for(w, m))
            continue;
        if (out->missing < OAR_LIVE_TARGETS)
            out->waits_for[out->missing] = m->world;
        out->missing++;
    }
}

static void describe_now(const oari_analysis *a, oar_live_rank *out)
{
    const oari_wait *w = oari_wait_of_rank(a, out->rank);
    const oari_group_view *g = NULL;
    const oari_member *m;

    if (w != NULL) {
        describe_op(out, w->in, w->member, w->op);
        out->busy = out->waits = 1;
        out->age_ns = w->age_ns;
        describe_wait(out, w);
    } else if ((m = oari_last_member(a, out->rank, &g)) != NULL)
        describe_op(out, g, m, oari_member_newest(m));
}

/* ---- rates --------------------------------------------------------------- */

static int is_blocking(const oari_ring *ring, const oari_op_view *op)
{
    return (atomic_load(&ring->slot[op->sequence % OAR_RECORDS].what) >> 26 &
            1) != 0;
}

static double seconds_between(int64_t from, int64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* Adds the operations of one group in the last seconds. A ring that was filled
 * since then covers less. */
static void add_rates(oar_live_rank *out, const oari_member *m)
{
    int64_t now = m->dump->now_ns, from = now - (int64_t)WINDOW_NS;
    double count = 0, bytes = 0, blocked = 0, span;

    out->operations += m->ops > 0 ? oari_member_newest(m)->sequence : 0;
    if (m->ops >= OAR_RECORDS / 2 && m->op[0].posted_ns > from)
        from = m->op[0].posted_ns;
    span = seconds_between(from, now);
    if (span <= 0)
        return;
    for (int i = 0; i < m->ops; i++) {
        const oari_op_view *op = &m->op[i];
        int64_t end = op->state == OAR_RECORD_POSTED ? now : op->done_ns;
        int64_t begin = op->posted_ns > from ? op->posted_ns : from;

        if (end < from)
            continue;
        if (is_blocking(m->ring, op))
            blocked += seconds_between(begin, end < now ? end : now);
        if (op->state == OAR_RECORD_POSTED)
            continue;
        count++;
        bytes += (double)op->count * (double)oar_dtype_size(op->dtype);
    }
    out->operations_s += count / span;
    out->bytes_s += bytes / span;
    out->waiting += blocked / span;
}

/* Returns how long callers have waited for operations that they had posted
 * before, in all. */
static double waited_s(const oari_member *m)
{
    uint64_t since = atomic_load(&m->ring->waits_since);
    double ticks = (double)atomic_load(&m->ring->waited);
    double rate = m->rate > 0 ? m->rate : m->ring->ticks_per_second;

    if (since != 0 && m->dump->look_ticks > since)
        ticks += (double)(m->dump->look_ticks - since);
    return rate > 0 ? ticks / rate : 0;
}

static void measure(const oari_analysis *a, oari_live_view *r)
{
    double waited = 0, passed;
    int64_t now = oari_now_ns();

    for (int i = 0; i < a->groups; i++)
        for (int k = 0; k < a->group[i].ranks; k++) {
            const oari_member *m = &a->group[i].member[k];

            if (m->world != r->now.rank || m->ring == NULL)
                continue;
            add_rates(&r->now, m);
            waited += waited_s(m);
        }
    passed = seconds_between(r->look_ns, now);
    if (r->look_ns != 0 && r->owner == r->now.pid && passed > 0 &&
        waited > r->waited_s)
        r->now.waiting += (waited - r->waited_s) / passed;
    if (!(r->now.waiting <= 1))
        r->now.waiting = 1;
    r->waited_s = waited;
    r->look_ns = now;
    r->owner = r->now.pid;
}

/* ---- what the program says ----------------------------------------------- */

static void read_page(oari_live_view *r, const oari_recorder_file *box)
{
    const oari_metrics_page *p = &box->metrics;
    double rate = oari_ticks_per_second();

    r->now.step = atomic_load(&p->step);
    r->now.steps = (int64_t)atomic_load(&p->steps);
    if (r->now.steps > 0 && rate > 0)
        r->now.step_s = (double)atomic_load(&p->step_length) / rate;
    for (int i = 0; i < OARI_METRICS; i++) {
        const oari_metric_slot *s = &p->slot[i];
        oar_live_metric *m = &r->metric[r->metrics];
        uint64_t bits = atomic_load(&s->value);

        if (!atomic_load(&s->ready) || s->name[0] == 0)
            continue;
        *m = oar_live_metric_init();
        oari_text_copy(m->name, sizeof m->name, s->name, sizeof s->name);
        memcpy(&m->value, &bits, sizeof m->value);
        m->count = atomic_load(&s->count);
        r->metrics++;
    }
}

/* Returns the resident bytes of a process, or 0. */
static uint64_t memory_of(int64_t pid)
{
    unsigned long long all, resident = 0;
    char path[64];
    FILE *file;

    snprintf(path, sizeof path, "/proc/%lld/statm", (long long)pid);
    if ((file = fopen(path, "re")) == NULL)
        return 0;
    if (fscanf(file, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- all of it ----------------------------------------------------------- */

void oari_live_describe(const oari_analysis *a, oari_live_view *r, int rank)
{
    const oari_dump *d = oari_dump_of_rank(a->autopsy, rank);
    const oari_recorder_head *head;

    r->now = oar_live_rank_init();
    r->now.rank = rank;
    r->now.kind = OAR_COLL_COUNT;
    r->now.state = state_of(d);
    r->metrics = 0;
    if (r->now.state == OAR_LIVE_UNKNOWN)
        return;
    head = &d->image.box->head;
    r->now.pid = atomic_load(&head->owner);
    oari_text_copy(r->now.host, sizeof r->now.host, head->host,
                   sizeof head->host);
    describe_now(a, &r->now);
    measure(a, r);
    if (!head->threads || rank == head->rank)
        read_page(r, d->image.box);
    if (r->now.state == OAR_LIVE_RUNS || r->now.state == OAR_LIVE_STOPPED)
        r->now.memory_bytes = memory_of(r->now.pid);
    else
        r->now.operations_s = r->now.bytes_s = r->now.waiting = 0;
}
