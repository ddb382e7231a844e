/* SPDX-License-Identifier: Apache-2.0 */
/* layout: how large the buffers of an operation are, and where. */
#include <stdlib.h>
#include <string.h>

#include "soak.h"

enum { GUARD_BYTE = 0xa5, ALIGN = 64 };

/* ---- memory -------------------------------------------------------------- */

static oar_status from_arena(soak *k, int which, size_t whole, soak_buffer *a)
{
    a->data = k->arena[which] + k->used[which];
    k->used[which] += whole;
    return OAR_OK;
}

/* From an arena as long as it has room; else memory of its own. */
static oar_status take_block(soak *k, uint64_t choice, size_t whole,
                             soak_buffer *a)
{
    int which = (int)(choice & 1);

    a->shared = which == 0;
    if (choice % 8 > 1 && k->used[which] + whole <= SOAK_ARENA)
        return from_arena(k, which, whole, a);
    if (a->shared) {
        void *memory;
        oar_status status = oar_shared_alloc(whole, &memory);
        a->data = a->block = status == OAR_OK ? memory : NULL;
        return status;
    }
    a->data = a->block = malloc(whole);
    return a->block != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* A buffer at an odd place, but on a boundary of its elements. */
static oar_status take(soak *k, soak_op *t, int which, size_t bytes)
{
    soak_buffer *a = &t->area[which];
    uint64_t choice = own_draw(k, t->op, 60 + which);
    size_t odd = (choice >> 8) % 4 * oar_dtype_size(t->dtype);
    size_t whole = (bytes + odd + 2 * SOAK_GUARD + ALIGN - 1) / ALIGN * ALIGN;

    if (take_block(k, choice, whole, a) != OAR_OK)
        return op_fail(k, t, "no memory for a buffer of %zu bytes", bytes);
    a->data += odd;
    memset(a->data, GUARD_BYTE, SOAK_GUARD);
    memset(a->data + SOAK_GUARD + bytes, GUARD_BYTE, SOAK_GUARD);
    a->data += SOAK_GUARD;
    a->bytes = bytes;
    return OAR_OK;
}

int layout_guards_hold(const soak_op *t)
{
    unsigned char guard[SOAK_GUARD];

    memset(guard, GUARD_BYTE, sizeof guard);
    for (int i = 0; i < 2; i++) {
        const soak_buffer *a = &t->area[i];
        if (a->data != NULL &&
            (memcmp(a->data - SOAK_GUARD, guard, SOAK_GUARD) != 0 ||
             memcmp(a->data + a->bytes, guard, SOAK_GUARD) != 0))
            return 0;
    }
    return 1;
}

/* ---- parts --------------------------------------------------------------- */

size_t layout_start(const size_t *counts, int rank)
{
    size_t sum = 0;

    for (int r = 0; r < rank; r++)
        sum += counts[r];
    return sum;
}

size_t layout_between(const soak *k, const soak_op *t, int from, int to)
{
    uint64_t pair = (uint64_t)(from * SOAK_RANKS + to);

    if (t->kind != K_ALL_TO_ALL_V)
        return t->count;
    return t->count * (mix(draw(k, t->op, 50), pair) % 4) / 3;
}

static size_t part(const soak *k, const soak_op *t, int rank)
{
    switch (t->kind) {
    case K_GATHER_V:
    case K_SCATTER_V:
    case K_ALL_GATHER_V:
    case K_REDUCE_SCATTER_V:
        return t->count * (mix(draw(k, t->op, 51), (uint64_t)rank) % 4) / 3;
    default: return t->count;
    }
}

static void set_counts(const soak *k, soak_op *t)
{
    int me = t->c->rank;

    for (int r = 0; r < t->c->size; r++) {
        t->in_counts[r] = part(k, t, r);
        t->out_counts[r] = t->in_counts[r];
        if (t->kind == K_ALL_TO_ALL || t->kind == K_ALL_TO_ALL_V) {
            t->in_counts[r] = layout_between(k, t, me, r);
            t->out_counts[r] = layout_between(k, t, r, me);
        }
    }
}

size_t layout_bytes(const soak *k, const soak_op *t, int rank)
{
    size_t most = t->count < 4096 ? t->count : 4096;

    return mix(draw(k, t->op, 52), (uint64_t)rank) % (most + 1);
}

/* ---- buffers ------------------------------------------------------------- */

/* Elements of input and output on this rank. */
static void sizes(const soak *k, const soak_op *t, size_t *in, size_t *out)
{
    const soak_group *c = t->c;
    size_t all_in = layout_start(t->in_counts, c->size);
    size_t all_out = layout_start(t->out_counts, c->size);
    int is_root = c->rank == t->root;

    *in = *out = t->count;
    switch (t->kind) {
    case K_REDUCE: *out = is_root ? t->count : 0; break;
    case K_GATHER:
    case K_GATHER_V:
        *in = t->in_counts[c->rank];
        *out = is_root ? all_in : 0;
        break;
    case K_SCATTER:
    case K_SCATTER_V:
        *in = is_root ? all_in : 0;
        *out = t->in_counts[c->rank];
        break;
    case K_ALL_GATHER:
    case K_ALL_GATHER_V:
        *in = t->in_counts[c->rank];
        *out = all_in;
        break;
    case K_REDUCE_SCATTER:
    case K_REDUCE_SCATTER_V:
        *in = all_in;
        *out = t->in_counts[c->rank];
        break;
    case K_ALL_TO_ALL:
    case K_ALL_TO_ALL_V:
        *in = all_in;
        *out = all_out;
        break;
    case K_SCATTER_BYTES:
        *in = 0;
        for (int r = 0; r < c->size; r++)
            *in += layout_bytes(k, t, r);
        break;
    default: break;
    }
}

/* Where the smaller buffer lies in the larger, in elements. */
static size_t own_start(const soak_op *t)
{
    switch (t->kind) {
    case K_BROADCAST:
    case K_ALL_REDUCE:
    case K_REDUCE: return 0;
    default: return layout_start(t->in_counts, t->c->rank);
    }
}

static oar_status make_in_place(soak *k, soak_op *t, size_t in, size_t out)
{
    size_t size = oar_dtype_size(t->dtype);
    size_t larger = in > out ? in : out;
    unsigned char *own;

    if (take(k, t, 0, larger * size) != OAR_OK)
        return OAR_E_NOMEM;
    own = t->area[0].data + own_start(t) * size;
    t->in = oar_span_of(in == larger ? t->area[0].data : own, in, t->dtype);
    t->out = oar_span_of(out == larger ? t->area[0].data : own, out, t->dtype);
    return OAR_OK;
}

oar_status layout_make(soak *k, soak_op *t)
{
    size_t size = oar_dtype_size(t->dtype), in, out;

    set_counts(k, t);
    sizes(k, t, &in, &out);
    if (t->in_place)
        return make_in_place(k, t, in, out);
    if (take(k, t, 0, in * size) != OAR_OK ||
        take(k, t, 1, out * size) != OAR_OK)
        return OAR_E_NOMEM;
    t->in = oar_span_of(t->area[0].data, in, t->dtype);
    t->out = oar_span_of(t->area[1].data, out, t->dtype);
    return OAR_OK;
}
