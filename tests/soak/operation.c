/* SPDX-License-Identifier: Apache-2.0 */
/* operation: one operation, from its number to the check of its result. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soak.h"

static const struct {
    const char *name;
    int often, folds, plain;
} kinds[] = {
#define X(name, often, folds, plain) { #name, often, folds, plain },
    SOAK_KIND_LIST(X)
#undef X
};

int kind_reduces(soak_kind which)
{
    return kinds[which].folds;
}

int kind_is_plain(soak_kind which, int plain)
{
    return kinds[which].plain >= plain;
}

const char *kind_name(soak_kind which)
{
    return kinds[which].name;
}

/* ---- what it is ---------------------------------------------------------- */

static soak_kind pick_kind(uint64_t number)
{
    int sum = 0, at;

    for (int i = 0; i < KINDS; i++)
        sum += kinds[i].often;
    at = (int)(number % (uint64_t)sum);
    for (int i = 0;; i++)
        if ((at -= kinds[i].often) < 0)
            return (soak_kind)i;
}

static soak_kind pick_plain_kind(uint64_t number, int plain)
{
    soak_kind found;

    for (int i = 0;; i++)
        if (kind_is_plain(found = pick_kind(mix(number, (uint64_t)i)), plain))
            return found;
}

/* Mostly small, now and then some MiB. */
static size_t pick_bytes(uint64_t number, size_t most)
{
    uint64_t size = number >> 32;

    if (number % 4096 == 7)
        return size % most;
    if (number % 512 == 5)
        return size % (256 << 10);
    if (number % 64 == 3)
        return size % 65537;
    if (number % 16 == 0)
        return 0;
    return number % 4 == 1 ? size % 3000 : size % 128;
}

static void pick_types(const soak *k, soak_op *t)
{
    int i = 0;

    t->dtype = (oar_dtype)(draw(k, t->op, 3) % OAR_DTYPE_COUNT);
    if (t->kind >= K_BROADCAST_BYTES && t->kind <= K_ALL_GATHER_BYTES)
        t->dtype = OAR_U8;
    do
        t->fold = (oar_reduce_op_kind)(draw(k, t->op, 100 + i++) %
                                       OAR_REDUCE_OP_COUNT);
    while (!value_makes_sense(t->fold, t->dtype));
}

/* Of the larger buffer, where there are parts. */
static size_t pick_count(const soak *k, const soak_op *t)
{
    size_t most = k->s->most;
    size_t bytes = pick_bytes(draw(k, t->op, 4), most) % most;

    if (bytes * (size_t)t->c->size > most)
        bytes /= (size_t)t->c->size;
    return bytes / oar_dtype_size(t->dtype);
}

/* In place is a matter of each rank, except that all_to_all cannot be, and
 * broadcast is nothing else. */
static int pick_in_place(const soak *k, const soak_op *t)
{
    int wanted = own_draw(k, t->op, 5) % 3 == 0;
    int is_root = t->c->rank == t->root;

    switch (t->kind) {
    case K_BROADCAST: return 1;
    case K_ALL_REDUCE:
    case K_ALL_GATHER:
    case K_ALL_GATHER_V:
    case K_REDUCE_SCATTER:
    case K_REDUCE_SCATTER_V: return wanted;
    case K_REDUCE:
    case K_GATHER:
    case K_GATHER_V:
    case K_SCATTER:
    case K_SCATTER_V: return wanted && is_root;
    default: return 0;
    }
}

static void pick_options(const soak *k, soak_op *t)
{
    t->opts = oar_call_opts_init();
    t->message = oar_message_init();
    t->opts.label = kind_name(t->kind);
    if (t->fold == OAR_REDUCE_OP_WEIGHTED_MEAN && kind_reduces(t->kind))
        t->opts.weight = value_factor(t, t->c->rank);
    t->opts.canonical = draw(k, t->op, 9) % 5 == 0 && kind_reduces(t->kind);
}

oar_status op_make(soak *k, soak_op *t, const soak_group *c, uint64_t op,
                   int plain)
{
    memset(t, 0, sizeof *t);
    t->op = op;
    t->c = c;
    t->kind = pick_plain_kind(draw(k, op, 2), plain);
    if (k->rank == 0)
        atomic_fetch_add(&k->s->ledger->by_kind[t->kind], 1);
    if (c->group == NULL)
        return OAR_OK;
    pick_types(k, t);
    t->count = pick_count(k, t);
    t->root = (int)(draw(k, op, 6) % (uint64_t)c->size);
    t->to = (int)(draw(k, op, 7) % (uint64_t)c->size);
    t->tag = draw(k, op, 8) % 3 == 0 ? 5 : (int64_t)(op % 1000000) + 1000;
    t->in_place = pick_in_place(k, t);
    pick_options(k, t);
    return layout_make(k, t);
}

static void free_buffer(soak_buffer *a)
{
    if (a->shared)
        oar_shared_free(a->block);
    else
        free(a->block);
    *a = (soak_buffer){ 0 };
}

void op_free(soak_op *t)
{
    oar_work_release(t->work);
    t->work = NULL;
    oar_free(t->given);
    t->given = NULL;
    free_buffer(&t->area[0]);
    free_buffer(&t->area[1]);
}

/* ---- doing it ------------------------------------------------------------ */

static int reads_input(const soak_op *t)
{
    int is_root = t->c->rank == t->root;

    switch (t->kind) {
    case K_BROADCAST:
    case K_SCATTER:
    case K_SCATTER_V:
    case K_MESSAGE:
    case K_PROBE: return is_root;
    default: return 1;
    }
}

void op_fill(soak *k, soak_op *t, uint64_t value)
{
    t->value = value;
    if (t->c->group == NULL)
        return;
    memset(t->area[0].data, 0x5a, t->area[0].bytes);
    if (t->area[1].data != NULL)
        memset(t->area[1].data, 0x5a, t->area[1].bytes);
    if (reads_input(t))
        value_fill(k, t, t->c->rank, 0, t->in.count, t->in.data);
}

static oar_reduce_op operator_of(const soak_op *t)
{
    double factor =
        t->fold == OAR_REDUCE_OP_PREMUL_SUM ? value_factor(t, t->c->rank) : 0;

    return OAR_REDUCE_OP(t->fold, factor);
}

static oar_status post_parts(soak_op *t, oar_work **w)
{
    const size_t *counts = t->c->rank == t->root ? t->in_counts : NULL;
    oar_group *g = t->c->group;
    const oar_call_opts *o = &t->opts;

    switch (t->kind) {
    case K_GATHER: return oar_gather(g, t->in, t->out, t->root, o, w);
    case K_GATHER_V:
        return oar_gather_v(g, t->in, t->out, counts, t->root, o, w);
    case K_SCATTER: return oar_scatter(g, t->in, t->out, t->root, o, w);
    case K_SCATTER_V:
        return oar_scatter_v(g, t->in, counts, t->out, t->root, o, w);
    case K_ALL_GATHER: return oar_all_gather(g, t->in, t->out, o, w);
    case K_ALL_GATHER_V:
        return oar_all_gather_v(g, t->in, t->out, t->in_counts, o, w);
    case K_ALL_TO_ALL: return oar_all_to_all(g, t->in, t->out, o, w);
    default:
        return oar_all_to_all_v(g, t->in, t->in_counts, t->out, t->out_counts,
                                o, w);
    }
}

static oar_status post_fold(soak_op *t, oar_work **w)
{
    oar_group *g = t->c->group;
    const oar_call_opts *o = &t->opts;
    oar_reduce_op op = operator_of(t);

    switch (t->kind) {
    case K_ALL_REDUCE: return oar_all_reduce_into(g, t->in, t->out, op, o, w);
    case K_REDUCE: return oar_reduce(g, t->in, t->out, op, t->root, o, w);
    case K_REDUCE_SCATTER:
        return oar_reduce_scatter(g, t->in, t->out, op, o, w);
    default:
        return oar_reduce_scatter_v(g, t->in, t->in_counts, t->out, op, o, w);
    }
}

static oar_status post(soak *k, soak_op *t, oar_work **w)
{
    if (kind_reduces(t->kind))
        return post_fold(t, w);
    switch (t->kind) {
    case K_BARRIER: return oar_barrier(t->c->group, &t->opts, w);
    case K_MONITORED_BARRIER:
        return oar_monitored_barrier(t->c->group, &t->opts);
    case K_BROADCAST:
        return oar_broadcast(t->c->group, t->in, t->root, &t->opts, w);
    case K_BROADCAST_BYTES:
    case K_GATHER_BYTES:
    case K_SCATTER_BYTES:
    case K_ALL_GATHER_BYTES: return bytes_post(k, t, w);
    case K_MESSAGE:
    case K_SENDRECV: return message_post(k, t, w);
    case K_PROBE: return message_probe(k, t);
    case K_FAN: return message_fan(k, t);
    default: return post_parts(t, w);
    }
}

oar_status op_post(soak *k, soak_op *t, oar_work **work)
{
    oar_status status;

    if (t->c->group == NULL)
        return OAR_OK;
    status = post(k, t, work);
    return status == OAR_OK ? OAR_OK
                            : op_fail(k, t, "%s: %s", oar_status_name(status),
                                      oar_last_error_text());
}

/* ---- was it right -------------------------------------------------------- */

static oar_status check_run(soak *k, const soak_op *t, const char *what,
                            const void *data, size_t count, int rank,
                            size_t start)
{
    size_t at = value_find_wrong(k, t, rank, start, count, data);

    if (at == count)
        return OAR_OK;
    return op_fail(k, t, "%s: element %zu of %zu (of rank %d) is wrong", what,
                   at, count, rank);
}

static oar_status check_parts(soak *k, const soak_op *t)
{
    size_t size = oar_dtype_size(t->dtype);
    int me = t->c->rank;

    for (int r = 0; r < t->c->size; r++) {
        size_t start = 0;
        int all = t->kind == K_ALL_TO_ALL || t->kind == K_ALL_TO_ALL_V;
        const char *at =
            (const char *)t->out.data + layout_start(t->out_counts, r) * size;
        for (int q = 0; all && q < me; q++)
            start += layout_between(k, t, r, q);
        if (check_run(k, t, "part", at, t->out_counts[r], r, start) != OAR_OK)
            return OAR_E_INTERNAL;
    }
    return OAR_OK;
}

static oar_status check_output(soak *k, const soak_op *t)
{
    size_t own = layout_start(t->in_counts, t->c->rank);
    int is_root = t->c->rank == t->root;

    switch (t->kind) {
    case K_BROADCAST:
        return check_run(k, t, "output", t->out.data, t->count, t->root, 0);
    case K_ALL_REDUCE:
    case K_REDUCE:
        return check_run(k, t, "output", t->out.data, t->out.count, -1, 0);
    case K_SCATTER:
    case K_SCATTER_V:
        return check_run(k, t, "output", t->out.data, t->out.count, t->root,
                         own);
    case K_REDUCE_SCATTER:
    case K_REDUCE_SCATTER_V:
        return check_run(k, t, "output", t->out.data, t->out.count, -1, own);
    case K_GATHER:
    case K_GATHER_V: return is_root ? check_parts(k, t) : OAR_OK;
    case K_ALL_GATHER:
    case K_ALL_GATHER_V:
    case K_ALL_TO_ALL:
    case K_ALL_TO_ALL_V: return check_parts(k, t);
    case K_BROADCAST_BYTES:
    case K_GATHER_BYTES:
    case K_SCATTER_BYTES:
    case K_ALL_GATHER_BYTES: return bytes_check(k, t);
    case K_MESSAGE:
    case K_SENDRECV: return message_check(k, t);
    default: return OAR_OK; /* barriers; probes and fans check themselves */
    }
}

/* Once: all bits of the last byte of an output that a collective left here. */
static void spoil(soak *k, const soak_op *t)
{
    size_t bytes = t->out.count * oar_dtype_size(t->dtype);
    unsigned char *out = t->out.data;

    if (k->spoiled || t->value < k->s->spoil || bytes == 0 ||
        t->kind < K_BROADCAST || t->kind > K_ALL_TO_ALL_V)
        return;
    out[bytes - 1] ^= 0xff;
    k->spoiled = 1;
}

oar_status op_check(soak *k, const soak_op *t)
{
    if (t->c->group == NULL)
        return OAR_OK;
    if (k->s->spoil != 0 && k->rank == k->s->ranks - 1)
        spoil(k, t);
    if (!layout_guards_hold(t))
        return op_fail(k, t, "wrote outside of a buffer");
    if (!t->in_place && reads_input(t) &&
        check_run(k, t, "input", t->in.data, t->in.count, t->c->rank, 0) !=
            OAR_OK)
        return OAR_E_INTERNAL;
    return check_output(k, t);
}

/* ---- failing ------------------------------------------------------------- */

void op_describe(const soak_op *t, char *text, size_t bytes)
{
    if (t == NULL)
        snprintf(text, bytes, "groups");
    else if (t->c->group == NULL)
        snprintf(text, bytes, "%s, not mine", kind_name(t->kind));
    else
        snprintf(text, bytes,
                 "%s of %zu %s, %s, root %d to %d, tag %lld, rank %d of %d%s",
                 kind_name(t->kind), t->count, oar_dtype_name(t->dtype),
                 oar_reduce_op_name(t->fold), t->root, t->to, (long long)t->tag,
                 t->c->rank, t->c->size, t->in_place ? ", in place" : "");
}

oar_status op_fail(const soak *k, const soak_op *t, const char *format, ...)
{
    const soak_settings *s = k->s;
    char text[700], what[200];
    int nobody = 0;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    op_describe(t, what, sizeof what);
    fprintf(
        stderr,
        "soak: %s rank %d, operation %llu (%s): %s\n"
        "    last error: %s\n"
        "    again: soak --backend %s --ranks %d --hosts %d%s --ops %llu "
        "--seed %llu\n",
        atomic_compare_exchange_strong(&s->ledger->failed, &nobody, k->rank + 1)
            ? "FAILED first:"
            : "also failed:",
        k->rank, (unsigned long long)(t != NULL ? t->op : k->op), what, text,
        oar_last_error_text(), s->backend, s->ranks, s->hosts,
        s->tight ? " --tight" : "", (unsigned long long)s->ops,
        (unsigned long long)s->seed);
    return OAR_E_INTERNAL;
}
