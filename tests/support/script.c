/* SPDX-License-Identifier: Apache-2.0 */
#include "support/script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------- */

static int read_name(const char *word, script_call *a)
{
    for (int kind = 0; kind < OAR_COLL_COUNT; kind++) {
        const char *name = oar_coll_name((oar_coll)kind);
        size_t n = strlen(name);

        if (strncmp(word, name, n) != 0)
            continue;
        a->parts = strcmp(word + n, "_v") == 0;
        a->object = strcmp(word + n, "_bytes") == 0;
        if (word[n] == 0 || a->parts || a->object) {
            a->kind = (oar_coll)kind;
            return 1;
        }
    }
    return 0;
}

static int read_op(const char *word, script_call *a)
{
    for (int op = 0; op < OAR_REDUCE_OP_COUNT; op++)
        if (strcmp(word, oar_reduce_op_name((oar_reduce_op_kind)op)) == 0) {
            a->op.kind = (oar_reduce_op_kind)op;
            return 1;
        }
    return 0;
}

static int read_flag(const char *word, script_call *a)
{
    const struct {
        const char *name;
        int *flag;
    } flags[] = {
        { "async", &a->async },       { "apart", &a->apart },
        { "prepared", &a->prepared }, { "canonical", &a->canonical },
        { "sync", &a->synchronous },  { "batch", &a->batch },
        { "other", &a->other },       { "monitored", &a->monitored }
    };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(word, flags[i].name) == 0)
            return *flags[i].flag = 1;
    return 0;
}

static int read_value(const char *word, script_call *a)
{
    return sscanf(word, "label=%23s", a->label) == 1 ||
           sscanf(word, "tag=%ld", &a->tag) == 1 ||
           sscanf(word, "key=%" SCNu64, &a->key) == 1 ||
           sscanf(word, "within=%ld", &a->within_ms) == 1 ||
           sscanf(word, "weight=%lf", &a->weight) == 1 ||
           sscanf(word, "scale=%lf", &a->op.scalar) == 1 ||
           sscanf(word, "wide=%d", &a->wide) == 1 ||
           sscanf(word, "@%d", &a->root) == 1;
}

static int read_word(const char *word, script_call *a)
{
    char *end;

    if (read_flag(word, a) || read_value(word, a) || read_op(word, a))
        return 1;
    if (oar_dtype_parse(word, &a->dtype) == OAR_OK)
        return 1;
    a->count = strtoul(word, &end, 10);
    return *end == 0;
}

static int read_call(char *text, script_call *a)
{
    char *rest, *word = strtok_r(text, " ", &rest);

    *a = (script_call){ .count = 3, .wide = -1, .weight = 1 };
    if (word == NULL || !read_name(word, a))
        return 0;
    while ((word = strtok_r(NULL, " ", &rest)) != NULL)
        if (!read_word(word, a))
            return 0;
    return 1;
}

int script_parse(const char *text, script_call list[SCRIPT_ACTS])
{
    char copy[512], *rest, *one;
    int n = 0;

    snprintf(copy, sizeof copy, "%s", text);
    for (one = strtok_r(copy, ";", &rest); one != NULL;
         one = strtok_r(NULL, ";", &rest))
        if (n == SCRIPT_ACTS || !read_call(one, &list[n++])) {
            fprintf(stderr, "not a script: %s\n", text);
            return -1;
        }
    return n;
}

/* ---- running ------------------------------------------------------------- */

/* One call under way. */
typedef struct running_call {
    const script_runner *who;
    const script_call *act;
    int line, rank, ranks;
    oar_group *group;
    oar_call_opts opts;
    oar_work **work;
    void *got;
    size_t sizes[64];
} running_call;

/* Elements of a part; `mine` looks at it from this rank. */
static size_t part(const script_call *a, int rank)
{
    return a->count + (a->wide == rank);
}

static size_t fill_counts(const script_call *a, int ranks, int wide,
                          size_t *counts)
{
    size_t all = 0;

    for (int r = 0; r < ranks; r++)
        all += counts[r] = wide ? part(a, r) : a->count;
    return all;
}

static oar_span in_of(const running_call *s, size_t count)
{
    return oar_span_of(s->who->in, count, s->act->dtype);
}

static oar_span out_of(const running_call *s, size_t count)
{
    return oar_span_of(s->who->out, count, s->act->dtype);
}

static oar_status run_rows(running_call *s)
{
    const script_call *a = s->act;
    const char *file = s->who->file;
    size_t counts[64], also[64], all = fill_counts(a, s->ranks, 1, counts);
    size_t plain = fill_counts(a, s->ranks, 0, also), mine = part(a, s->rank);
    const size_t *given = a->parts ? counts : NULL;

    switch (a->kind) {
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_v_at(file, s->line, s->group, in_of(s, mine),
                                   out_of(s, all), given, &s->opts, s->work);
    case OAR_COLL_REDUCE_SCATTER:
        return oar_reduce_scatter_v_at(file, s->line, s->group, in_of(s, all),
                                       given, out_of(s, mine), a->op, &s->opts,
                                       s->work);
    case OAR_COLL_GATHER:
        return a->parts
                   ? oar_gather_v_at(file, s->line, s->group, in_of(s, mine),
                                     out_of(s, all), given, a->root, &s->opts,
                                     s->work)
                   : oar_gather_at(file, s->line, s->group, in_of(s, mine),
                                   out_of(s, all), a->root, &s->opts, s->work);
    case OAR_COLL_SCATTER:
        return a->parts
                   ? oar_scatter_v_at(file, s->line, s->group, in_of(s, all),
                                      given, out_of(s, mine), a->root, &s->opts,
                                      s->work)
                   : oar_scatter_at(file, s->line, s->group, in_of(s, all),
                                    out_of(s, mine), a->root, &s->opts,
                                    s->work);
    default:
        return oar_all_to_all_v_at(
            file, s->line, s->group, in_of(s, all), given, out_of(s, plain),
            given != NULL ? also : NULL, &s->opts, s->work);
    }
}

static oar_status run_object(running_call *s)
{
    const script_call *a = s->act;
    const char *file = s->who->file;
    size_t bytes = a->count, counts[64];

    fill_counts(a, s->ranks, 1, counts);
    switch (a->kind) {
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_bytes_at(file, s->line, s->group, s->who->in,
                                       bytes, &s->got, s->sizes, &s->opts,
                                       s->work);
    case OAR_COLL_GATHER:
        return oar_gather_bytes_at(file, s->line, s->group, s->who->in, bytes,
                                   a->root, &s->got, s->sizes, &s->opts,
                                   s->work);
    case OAR_COLL_SCATTER:
        return oar_scatter_bytes_at(file, s->line, s->group, s->who->in, counts,
                                    a->root, &s->got, s->sizes, &s->opts,
                                    s->work);
    default:
        if (s->rank == a->root)
            s->got = s->who->in;
        s->sizes[0] = bytes;
        return oar_broadcast_bytes_at(file, s->line, s->group, &s->got,
                                      s->sizes, a->root, &s->opts, s->work);
    }
}

static oar_status run_call(running_call *s)
{
    const script_call *a = s->act;
    const char *file = s->who->file;
    oar_span in = in_of(s, a->count);
    oar_span out = a->apart ? out_of(s, a->count) : in;

    if (a->object)
        return run_object(s);
    switch (a->kind) {
    case OAR_COLL_BARRIER:
        if (a->monitored)
            return oar_monitored_barrier_at(file, s->line, s->group, &s->opts);
        return oar_barrier_at(file, s->line, s->group, &s->opts, s->work);
    case OAR_COLL_BROADCAST:
        return oar_broadcast_at(file, s->line, s->group, in, a->root, &s->opts,
                                s->work);
    case OAR_COLL_ALL_REDUCE:
        return oar_all_reduce_into_at(file, s->line, s->group, in, out, a->op,
                                      &s->opts, s->work);
    case OAR_COLL_REDUCE:
        return oar_reduce_at(file, s->line, s->group, in, out, a->op, a->root,
                             &s->opts, s->work);
    case OAR_COLL_SEND:
        return oar_send_at(file, s->line, s->group, in, a->root, a->tag,
                           &s->opts, s->work);
    case OAR_COLL_RECV:
        return oar_recv_at(file, s->line, s->group, in, a->root, a->tag,
                           &s->opts, s->work);
    default: return run_rows(s);
    }
}

static oar_status run_one(const script_runner *who, const script_call *a,
                          int index, oar_work **later)
{
    oar_work *prepared = NULL;
    running_call s = { .who = who,
                       .act = a,
                       .line = 10 * (index + 1),
                       .group = a->other ? who->other : who->group,
                       .opts = oar_call_opts_init(),
                       .work = a->async ? later : NULL };
    oar_status status;

    s.rank = oar_group_rank(s.group);
    s.ranks = oar_group_size(s.group);
    s.opts.label = a->label[0] != 0 ? a->label : NULL;
    s.opts.weight = a->weight;
    s.opts.key = a->key;
    s.opts.canonical = a->canonical;
    s.opts.synchronous = a->synchronous;
    s.opts.timeout_ms = a->within_ms;
    s.opts.prepare = a->prepared;
    if (a->prepared)
        s.work = &prepared;
    status = run_call(&s);
    if (a->prepared && status == OAR_OK) {
        status = oar_work_start(prepared);
        if (status == OAR_OK)
            status = oar_work_wait(prepared);
    }
    oar_work_release(prepared);
    if (s.got != who->in)
        oar_free(s.got);
    return status;
}

/* The first failure is the one that counts. */
static void note(oar_status got, oar_status *status, oar_error *why)
{
    if (got == OAR_OK || *status != OAR_OK)
        return;
    *status = got;
    *why = *oar_last_error();
}

static oar_status set_batch(const script_runner *who, int *open, int wanted)
{
    if (*open == wanted)
        return OAR_OK;
    *open = wanted;
    return wanted ? oar_batch_begin(who->group)
                  : oar_batch_end(who->group, NULL);
}

oar_status script_run(const script_runner *who, const script_call *list,
                      int acts, oar_error *why)
{
    oar_work *work[SCRIPT_ACTS] = { NULL };
    oar_status status = OAR_OK;
    int open = 0;

    for (int i = 0; i < acts && status == OAR_OK; i++) {
        note(set_batch(who, &open, list[i].batch), &status, why);
        if (status == OAR_OK)
            note(run_one(who, &list[i], i, &work[i]), &status, why);
    }
    note(set_batch(who, &open, 0), &status, why);
    for (int i = 0; i < acts; i++) {
        if (work[i] != NULL)
            note(oar_work_wait(work[i]), &status, why);
        oar_work_release(work[i]);
    }
    return status;
}
