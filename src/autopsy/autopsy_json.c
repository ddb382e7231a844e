/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_json: the same for programs. docs/autopsy.md is its description;
 * whatever changes the meaning of a member changes VERSION. */
#include <jansson.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"
#include "autopsy/autopsy.h"

enum { VERSION = 1, DEFAULT_LAST = 16 };

static json_t *number(int64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *ms(int64_t ns)
{
    return json_real((double)ns / 1e6);
}

static json_t *rank_or_null(int rank)
{
    return rank >= 0 ? json_integer(rank) : json_null();
}

/* ---- operations ---------------------------------------------------------- */

static const char *state_name(oar_record_state state)
{
    return state == OAR_RECORD_DONE     ? "done"
           : state == OAR_RECORD_FAILED ? "failed"
                                        : "posted";
}

static int reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

static json_t *operation(const oari_case *c, const oari_part *p,
                         const oari_op *op)
{
    oar_record r = oari_op_record(p, op);
    int is_message = op->kind >= OAR_COLL_SEND;
    uint64_t bytes = op->count * oar_dtype_size(op->dtype);
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:s, s:I, s:s, s:s, s:s, s:b}", "kind",
        oar_coll_name(op->kind), "sequence", (json_int_t)op->sequence, "count",
        (json_int_t)op->count, "dtype", oar_dtype_name(op->dtype), "bytes",
        (json_int_t)bytes, "site", r.site, "label", r.label, "state",
        state_name(op->state), "waited", (int)op->waited);

    if (o == NULL)
        return NULL;
    if (is_message) {
        json_object_set_new(o, "peer", rank_or_null(op->root));
        json_object_set_new(o, "tag",
                            op->tag >= 0 ? number(op->tag) : json_null());
    } else {
        json_object_set_new(o, "number", number((int64_t)op->number));
        json_object_set_new(o, "root", rank_or_null(op->root));
    }
    if (reduces(op->kind))
        json_object_set_new(o, "op", json_string(oar_op_name(op->op)));
    json_object_set_new(o, "posted_ms", ms(op->posted_ns));
    json_object_set_new(o, "done_ms",
                        op->state != OAR_RECORD_POSTED ? ms(op->done_ns)
                                                       : json_null());
    json_object_set_new(o, "age_ms", ms(oari_op_age(p, op)));
    return o;
}

/* ---- members ------------------------------------------------------------- */

static json_t *records(const oari_case *c, const oari_part *p, int last)
{
    json_t *list = json_array();
    int first = last >= 0 && p->ops > last ? p->ops - last : 0;

    for (int i = first; i < p->ops; i++)
        json_array_append_new(list, operation(c, p, &p->op[i]));
    return list;
}

static json_t *member(const oari_case *c, const oari_part *p, int last)
{
    json_t *m = json_object();
    const oari_op *newest = oari_part_newest(p);
    uint64_t dropped = 0;

    if (newest != NULL && newest->sequence > OAR_RECORDS)
        dropped = newest->sequence - OAR_RECORDS;
    json_object_set_new(m, "rank", number(p->rank));
    json_object_set_new(m, "world_rank", rank_or_null(p->world));
    json_object_set_new(m, "here", json_string(oari_here_name(p->here)));
    json_object_set_new(m, "last",
                        newest != NULL && p->ring != NULL
                            ? operation(c, p, newest)
                            : json_null());
    json_object_set_new(m, "last_dropped_sequence", number((int64_t)dropped));
    json_object_set_new(m, "records", records(c, p, last));
    return m;
}

static json_t *fault(const oari_case *c)
{
    const oari_box_fault *f;

    if (c->broken < 0)
        return json_null();
    f = &c->part[c->broken].ring->fault;
    return json_pack("{s:s, s:o, s:o, s:i, s:I, s:s, s:s, s:s, s:s, s:I, s:s}",
                     "status", oar_status_name((oar_status)f->status), "rank",
                     rank_or_null(f->rank), "peer", rank_or_null(f->peer),
                     "errno", (int)f->sys_errno, "sequence",
                     (json_int_t)f->sequence, "operation", f->operation, "site",
                     f->site, "label", f->label, "host", f->host, "pid",
                     (json_int_t)f->pid, "text", f->text);
}

static json_t *group(const oari_case *c, int last)
{
    json_t *g =
        json_pack("{s:s, s:s, s:i, s:I, s:I, s:b, s:b, s:b, s:o}", "name",
                  c->ring->group, "backend", c->ring->backend, "size", c->ranks,
                  "epoch", (json_int_t)c->ring->epoch, "instance",
                  (json_int_t)c->ring->instance, "idle", c->idle, "being_made",
                  c->joining, "mismatch", c->differs >= 0, "fault", fault(c));
    json_t *members = json_array();

    json_object_set_new(
        g, "operation",
        c->number != 0 && c->teller >= 0
            ? operation(c, &c->part[c->teller], c->part[c->teller].at)
            : json_null());
    json_object_set_new(g, "waiting", number(c->waiting));
    json_object_set_new(g, "missing",
                        number(c->number != 0 || c->joining ? c->missing : 0));
    json_object_set_new(g, "waiting_ms", ms(c->since_ns));
    for (int i = 0; i < c->ranks; i++)
        json_array_append_new(members, member(c, &c->part[i], last));
    json_object_set_new(g, "members", members);
    return g;
}

/* ---- ranks --------------------------------------------------------------- */

static const char *life_name(const oari_witness *w)
{
    switch (w->life) {
    case OARI_LIFE_ABSENT: return "absent";
    case OARI_LIFE_RUNS: return "running";
    case OARI_LIFE_SLEEPS: return "sleeping";
    case OARI_LIFE_STOPPED: return "stopped";
    case OARI_LIFE_EXITED: return "exited";
    case OARI_LIFE_DEAD: return "dead";
    case OARI_LIFE_UNKNOWN: break;
    }
    return "unknown";
}

static json_t *rank_of(const oar_autopsy *a, int rank)
{
    const oari_witness *w = oari_autopsy_of(a, rank);
    json_t *o = json_object();
    const oari_head *head;

    json_object_set_new(o, "rank", number(rank));
    json_object_set_new(o, "known",
                        json_boolean(w != NULL && w->image.box != NULL));
    if (w == NULL || w->image.box == NULL) {
        json_object_set_new(
            o, "why", json_string(w != NULL ? w->why : "no box was found"));
        json_object_set_new(o, "note", json_string(w != NULL ? w->note : ""));
        return o;
    }
    head = &w->image.box->head;
    json_object_set_new(o, "host", json_string(head->host));
    json_object_set_new(o, "pid", number(atomic_load(&head->owner)));
    json_object_set_new(o, "epoch", number(head->epoch));
    json_object_set_new(o, "state", json_string(life_name(w)));
    json_object_set_new(o, "note", json_string(w->note));
    json_object_set_new(o, "now_ms", ms(w->now_ns));
    json_object_set_new(o, "wall_ms",
                        json_real(((double)head->wall_ns -
                                   (double)head->base_ns + (double)w->now_ns) /
                                  1e6));
    json_object_set_new(o, "groups_not_recorded",
                        number(atomic_load(&head->crowded)));
    json_object_set_new(o, "groups_damaged", number(w->image.damaged));
    return o;
}

/* ---- waits --------------------------------------------------------------- */

static json_t *targets(const oari_wait *w)
{
    json_t *list = json_array();

    for (int i = 0; i < w->in->ranks; i++)
        if (oari_waits_for(w, &w->in->part[i]))
            json_array_append_new(list, rank_or_null(w->in->part[i].world));
    return list;
}

static json_t *wait_object(const oari_wait *w)
{
    json_t *o = json_object();

    json_object_set_new(o, "rank", rank_or_null(w->part->world));
    json_object_set_new(o, "group", json_string(w->in->ring->group));
    json_object_set_new(o, "operation",
                        w->op != NULL ? operation(w->in, w->part, w->op)
                                      : json_null());
    json_object_set_new(o, "for", targets(w));
    json_object_set_new(o, "since_ms", ms(w->age_ns));
    return o;
}

static json_t *whole(const oari_inquest *q, int last)
{
    json_t *ranks = json_array(), *groups = json_array();
    json_t *waits = json_array(), *circle = json_array();

    for (int r = 0; r < q->autopsy->ranks; r++)
        json_array_append_new(ranks, rank_of(q->autopsy, r));
    for (int i = 0; i < q->items; i++)
        json_array_append_new(groups, group(&q->item[i], last));
    for (int i = 0; i < q->waits; i++)
        json_array_append_new(waits, wait_object(&q->wait[i]));
    for (int i = 0; i < q->circles; i++)
        json_array_append_new(circle, number(q->circle[i]));
    return json_pack("{s:s, s:i, s:s, s:b, s:o, s:i, s:o, s:o, s:o, s:o}",
                     "schema", "oarsong-autopsy", "version", VERSION, "verdict",
                     q->verdict, "wrong", q->wrong, "culprit",
                     q->culprit >= 0 ? number(q->culprit) : json_null(), "size",
                     q->autopsy->ranks, "ranks", ranks, "groups", groups,
                     "waits", waits, "circle", circle);
}

/* In memory of ours, so that oar_free frees it. */
static oar_status write_text(const json_t *json, char **text)
{
    char *dumped = json != NULL ? json_dumps(json, JSON_INDENT(1)) : NULL;
    char *copy = dumped != NULL ? oari_strdup(dumped) : NULL;

    free(dumped);
    if (copy == NULL)
        return oari_fail(OAR_E_NOMEM, "the JSON of an autopsy");
    *text = copy;
    return OAR_OK;
}

oar_status oar_autopsy_json_last(const oar_autopsy *autopsy, int last,
                                 char **json)
{
    oari_inquest q = { 0 };
    oar_status status;
    json_t *made;

    if (autopsy == NULL || json == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_json without %s",
                         autopsy == NULL ? "an autopsy" : "a place for it");
    OARI_TRY(oari_inquest_hold(autopsy, &q));
    made = whole(&q, last);
    oari_inquest_clear(&q);
    status = write_text(made, json);
    json_decref(made);
    return status;
}

oar_status oar_autopsy_json(const oar_autopsy *autopsy, char **json)
{
    return oar_autopsy_json_last(autopsy, DEFAULT_LAST, json);
}
