/* SPDX-License-Identifier: Apache-2.0 */
/* conform_bytes: objects whose size the other ranks do not know. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST = 100003 };

/* One trial: what this rank puts in, and what came. */
typedef struct bytes_trial {
    const conform_trial *t;
    oar_group *group;
    int rank, size;
    unsigned char *mine; /* allocated here */
    void *data;          /* given by the library, or mine */
    size_t bytes;
    size_t sizes[CONFORM_MAX_RANKS];
} bytes_trial;

/* Bytes of rank r's object: some are empty, all are different. */
static size_t size_of(const bytes_trial *p, int r)
{
    if (p->t->count == 0 || r % 3 == 1)
        return 0;
    return p->t->count + 7 * (size_t)r;
}

static unsigned char byte_of(const bytes_trial *p, int r, size_t i)
{
    return (unsigned char)value_mix((uint64_t)r + p->t->count, i);
}

static size_t all_bytes(const bytes_trial *p)
{
    size_t sum = 0;

    for (int r = 0; r < p->size; r++)
        sum += size_of(p, r);
    return sum;
}

static size_t write_object(const bytes_trial *p, int r, unsigned char *to)
{
    for (size_t i = 0; i < size_of(p, r); i++)
        to[i] = byte_of(p, r, i);
    return size_of(p, r);
}

/* What this rank gives: its own object, or, as the root of a scatter, all. */
static void pack(bytes_trial *p)
{
    int all = p->t->kind == K_SCATTER_BYTES;
    unsigned char *to;

    p->mine = to = malloc(all_bytes(p) + 1);
    if (to == NULL)
        abort();
    for (int r = 0; r < p->size; r++) {
        p->sizes[r] = size_of(p, r);
        if (all || r == p->rank)
            to += write_object(p, r, to);
    }
    p->data = NULL;
    p->bytes = 77;
    if (p->t->kind == K_BROADCAST_BYTES && p->rank == p->t->root) {
        p->data = p->mine;
        p->bytes = size_of(p, p->rank);
    }
}

static oar_status post(bytes_trial *p, oar_work **work)
{
    size_t mine = size_of(p, p->rank);
    int at_root = p->rank == p->t->root;

    switch (p->t->kind) {
    case K_BROADCAST_BYTES:
        return oar_broadcast_bytes(p->group, &p->data, &p->bytes, p->t->root,
                                   NULL, work);
    case K_GATHER_BYTES:
        return oar_gather_bytes(p->group, p->mine, mine, p->t->root,
                                at_root ? &p->data : NULL,
                                at_root ? p->sizes : NULL, NULL, work);
    case K_SCATTER_BYTES:
        return oar_scatter_bytes(p->group, at_root ? p->mine : NULL,
                                 at_root ? p->sizes : NULL, p->t->root,
                                 &p->data, &p->bytes, NULL, work);
    default:
        return oar_all_gather_bytes(p->group, p->mine, mine, &p->data, p->sizes,
                                    NULL, work);
    }
}

/* Compares one object at *at and steps over it. */
static void check_object(conform_context *d, const bytes_trial *p, int r,
                         const unsigned char **at)
{
    size_t bytes = size_of(p, r);

    if (*at == NULL && bytes > 0) {
        record_wrong(d, "nothing came from rank %d", r);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        if ((*at)[i] != byte_of(p, r, i)) {
            record_wrong(d, "byte %zu of rank %d's %zu is %d, not %d", i, r,
                         bytes, (*at)[i], byte_of(p, r, i));
            return;
        }
    *at += bytes;
}

static void check_one(conform_context *d, const bytes_trial *p, int r)
{
    const unsigned char *at = p->data;

    if (p->bytes != size_of(p, r))
        record_wrong(d, "%zu bytes came, not %zu", p->bytes, size_of(p, r));
    else if ((p->data == NULL) != (p->bytes == 0) && p->data != p->mine)
        record_wrong(d, "an empty result that is not NULL, or the reverse");
    else
        check_object(d, p, r, &at);
}

static void check_all(conform_context *d, const bytes_trial *p)
{
    const unsigned char *at = p->data;

    for (int r = 0; r < p->size; r++) {
        if (p->sizes[r] != size_of(p, r)) {
            record_wrong(d, "rank %d's size is %zu, not %zu", r, p->sizes[r],
                         size_of(p, r));
            return;
        }
        check_object(d, p, r, &at);
    }
}

static void check(conform_context *d, const bytes_trial *p)
{
    switch (p->t->kind) {
    case K_BROADCAST_BYTES: check_one(d, p, p->t->root); break;
    case K_SCATTER_BYTES: check_one(d, p, p->rank); break;
    case K_GATHER_BYTES:
        if (p->rank == p->t->root)
            check_all(d, p);
        break;
    default: check_all(d, p); break;
    }
}

static void try_bytes(conform_context *d, const conform_trial *t,
                      oar_group *group)
{
    bytes_trial p = { .t = t,
                      .group = group,
                      .rank = oar_group_rank(group),
                      .size = oar_group_size(group) };
    oar_work *work = NULL;
    oar_status status;

    if (!record_begin(d, t))
        return;
    pack(&p);
    if (t->kind == K_ALL_GATHER_BYTES || t->kind == K_GATHER_BYTES)
        memset(p.sizes, 0x5a, sizeof p.sizes);
    status = post(&p, t->how == ASYNC ? &work : NULL);
    if (work != NULL)
        status = oar_work_wait(work);
    if (record_status(d, status, "the call"))
        check(d, &p);
    oar_work_release(work);
    if (status == OAR_OK && p.data != p.mine)
        oar_free(p.data);
    free(p.mine);
}

void conform_bytes(conform_context *d, oar_group *group, const char *of)
{
    static const size_t counts[] = { 0, 1, 17, 1000, LARGEST };
    conform_trial t = { .of = of };
    int ranks = oar_group_size(group), roots = d->s->quick ? 1 : ranks;

    for (int k = K_BROADCAST_BYTES; k <= K_ALL_GATHER_BYTES; k++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int root = 0; root < roots; root++) {
                t.kind = (conform_kind)k;
                t.count = counts[c];
                t.root = (int)((size_t)root + d->turn++) % ranks;
                t.how = BLOCKING;
                try_bytes(d, &t, group);
                t.how = ASYNC;
                try_bytes(d, &t, group);
            }
}
