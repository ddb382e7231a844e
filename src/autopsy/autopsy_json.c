/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_json: the verdict, groups and records for programs. docs/autopsy.md
 * describes every member; a change of a member's meaning changes VERSION. */
#include <jansson.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"
#include "autopsy/autopsy.h"

enum { VERSION = 1, DEFAULT_LAST = 16 };

static json_t *ms(int64_t ns)
{
    return json_real((double)ns / 1e6);
}

static json_t *rank_or_null(int rank)
{
    return rank >= 0 ? json_integer(rank) : json_null();
}

/* ---- operations ---------------------------------------------------------- */

static json_t *pack_op(const oari_member *m, const oari_op_view *op)
{
    oar_record r = oari_op_record(m, op);
    const char *state = op->state == OAR_RECORD_DONE     ? "done"
                        : op->state == OAR_RECORD_FAILED ? "failed"
                                                         : "posted";
    uint64_t bytes = op->count * oar_dtype_size(op->dtype);
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:s, s:I, s:s, s:s, s:s, s:b}", "kind",
        oar_coll_name(op->kind), "sequence", (json_int_t)op->sequence, "count",
        (json_int_t)op->count, "dtype", oar_dtype_name(op->dtype), "bytes",
        (json_int_t)bytes, "site", r.site, "label", r.label, "state", state,
        "waited", (int)op->waited);

    if (o == NULL)
        return NULL;
    if (op->kind >= OAR_COLL_SEND) {
        json_object_set_new(o, "peer", rank_or_null(op->root));
        json_object_set_new(o, "tag",
                            op->tag >= 0 ? json_integer(op->tag) : json_null());
    } else {
        json_object_set_new(o, "number", json_integer((int64_t)op->number));
        json_object_set_new(o, "root", rank_or_null(op->root));
    }
    if (oari_kind_reduces(op->kind))
        json_object_set_new(o, "op", json_string(oar_reduce_op_name(op->op)));
    json_object_set_new(o, "posted_ms", ms(op->posted_ns));
    json_object_set_new(o, "done_ms",
                        op->state != OAR_RECORD_POSTED ? ms(op->done_ns)
                                                       : json_null());
    json_object_set_new(o, "age_ms", ms(oari_op_age(m, op)));
    return o;
}

/* ---- groups -------------------------------------------------------------- */

static json_t *pack_member(const oari_member *m, int last)
{
    json_t *o = json_object(), *records = json_array();
    const oari_op_view *newest = oari_member_newest(m);
    uint64_t dropped = 0;

    if (newest != NULL && newest->sequence > OAR_RECORDS)
        dropped = newest->sequence - OAR_RECORDS;
    for (int i = last >= 0 && m->ops > last ? m->ops - last : 0; i < m->ops;
         i++)
        json_array_append_new(records, pack_op(m, &m->op[i]));
    json_object_set_new(o, "rank", json_integer(m->rank));
    json_object_set_new(o, "world_rank", rank_or_null(m->world));
    json_object_set_new(o, "here", json_string(oari_arrival_name(m->arrival)));
    json_object_set_new(o, "last",
                        newest != NULL && m->ring != NULL ? pack_op(m, newest)
                                                          : json_null());
    json_object_set_new(o, "last_dropped_sequence",
                        json_integer((int64_t)dropped));
    json_object_set_new(o, "records", records);
    return o;
}

static json_t *pack_fault(const oari_group_view *g)
{
    const oari_ring_fault *f = g->fault;

    if (f == NULL)
        return json_null();
    return json_pack("{s:s, s:o, s:o, s:i, s:I, s:s, s:s, s:s, s:s, s:I, s:s}",
                     "status", oar_status_name((oar_status)f->status), "rank",
                     rank_or_null(f->rank), "peer", rank_or_null(f->peer),
                     "errno", (int)f->sys_errno, "sequence",
                     (json_int_t)f->sequence, "operation", f->operation, "site",
                     f->site, "label", f->label, "host", f->host, "pid",
                     (json_int_t)f->pid, "text", f->text);
}

static json_t *pack_group(const oari_group_view *g, int last)
{
    json_t *o = json_pack("{s:s, s:s, s:i, s:I, s:I, s:b, s:b, s:b, s:o}",
                          "name", g->ring->group, "backend", g->ring->backend,
                          "size", g->ranks, "epoch", (json_int_t)g->ring->epoch,
                          "instance", (json_int_t)g->ring->instance, "idle",
                          g->idle, "being_made", g->joining, "mismatch",
                          g->differs >= 0, "fault", pack_fault(g));
    json_t *members = json_array();

    json_object_set_new(
        o, "operation",
        g->number != 0 && g->teller >= 0
            ? pack_op(&g->member[g->teller], g->member[g->teller].at)
            : json_null());
    json_object_set_new(o, "waiting", json_integer(g->waiting));
    json_object_set_new(
        o, "missing",
        json_integer(g->number != 0 || g->joining ? g->missing : 0));
    json_object_set_new(o, "waiting_ms", ms(g->since_ns));
    for (int i = 0; i < g->ranks; i++)
        json_array_append_new(members, pack_member(&g->member[i], last));
    json_object_set_new(o, "members", members);
    return o;
}

/* ---- ranks --------------------------------------------------------------- */

static json_t *pack_rank(const oar_autopsy *a, int rank)
{
    const oari_dump *d = oari_dump_of_rank(a, rank);
    json_t *o = json_object();
    const oari_recorder_head *head;

    json_object_set_new(o, "rank", json_integer(rank));
    json_object_set_new(o, "known",
                        json_boolean(d != NULL && d->image.box != NULL));
    if (d == NULL || d->image.box == NULL) {
        json_object_set_new(
            o, "why",
            json_string(d != NULL ? d->why : "no recorder file was found"));
        json_object_set_new(o, "note", json_string(d != NULL ? d->note : ""));
        return o;
    }
    head = &d->image.box->head;
    json_object_set_new(o, "host", json_string(head->host));
    json_object_set_new(o, "pid", json_integer(atomic_load(&head->owner)));
    json_object_set_new(o, "epoch", json_integer(head->epoch));
    json_object_set_new(o, "state",
                        json_string(oari_process_state_name(d->life)));
    json_object_set_new(o, "note", json_string(d->note));
    json_object_set_new(o, "now_ms", ms(d->now_ns));
    json_object_set_new(o, "wall_ms",
                        json_real(((double)head->wall_ns -
                                   (double)head->base_ns + (double)d->now_ns) /
                                  1e6));
    json_object_set_new(o, "groups_not_recorded",
                        json_integer(atomic_load(&head->crowded)));
    json_object_set_new(o, "groups_damaged", json_integer(d->image.damaged));
    return o;
}

/* ---- the whole ----------------------------------------------------------- */

static json_t *pack_analysis(const oari_analysis *a, int last)
{
    json_t *ranks = json_array(), *groups = json_array();
    json_t *waits = json_array(), *cycle = json_array();

    for (int r = 0; r < a->autopsy->ranks; r++)
        json_array_append_new(ranks, pack_rank(a->autopsy, r));
    for (int i = 0; i < a->groups; i++)
        json_array_append_new(groups, pack_group(&a->group[i], last));
    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];
        json_t *o = json_object(), *targets = json_array();

        for (int r = 0; r < w->in->ranks; r++)
            if (oari_waits_for(w, &w->in->member[r]))
                json_array_append_new(targets,
                                      rank_or_null(w->in->member[r].world));
        json_object_set_new(o, "rank", rank_or_null(w->member->world));
        json_object_set_new(o, "group", json_string(w->in->ring->group));
        json_object_set_new(o, "operation",
                            w->op != NULL ? pack_op(w->member, w->op)
                                          : json_null());
        json_object_set_new(o, "for", targets);
        json_object_set_new(o, "since_ms", ms(w->age_ns));
        json_array_append_new(waits, o);
    }
    for (int i = 0; i < a->cycles; i++)
        json_array_append_new(cycle, json_integer(a->cycle[i]));
    return json_pack("{s:s, s:i, s:s, s:b, s:o, s:i, s:o, s:o, s:o, s:o}",
                     "schema", "oarsong-autopsy", "version", VERSION, "verdict",
                     a->verdict, "wrong", a->wrong, "culprit",
                     rank_or_null(a->culprit), "size", a->autopsy->ranks,
                     "ranks", ranks, "groups", groups, "waits", waits, "circle",
                     cycle);
}

oar_status oar_autopsy_json_last(const oar_autopsy *autopsy, int last,
                                 char **json)
{
    oari_analysis a = { 0 };
    json_t *made;
    char *dumped, *copy; /* the copy is in our memory, for oar_free */

    if (autopsy == NULL || json == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_json without %s",
                         autopsy == NULL ? "an autopsy"
                                         : "a place for the result");
    OARI_TRY(oari_analysis_make(autopsy, &a));
    made = pack_analysis(&a, last);
    oari_analysis_clear(&a);
    dumped = made != NULL ? json_dumps(made, JSON_INDENT(1)) : NULL;
    copy = dumped != NULL ? oari_strdup(dumped) : NULL;
    free(dumped);
    json_decref(made);
    if (copy == NULL)
        return oari_fail(OAR_E_NOMEM, "the JSON of an autopsy");
    *json = copy;
    return OAR_OK;
}

oar_status oar_autopsy_json(const oar_autopsy *autopsy, char **json)
{
    return oar_autopsy_json_last(autopsy, DEFAULT_LAST, json);
}
