/* SPDX-License-Identifier: Apache-2.0 */
/* conform_collective: which collectives are tried, with which sizes and in
 * which variants.
 *
 * A variant is where the buffers are, how the call is made, in place or not,
 * the root, and whether the canonical order is asked for. Small sizes go
 * through all variants; larger ones, and the quick form, through some of them,
 * which differ for every kind, dtype, operator and size. */
#include "conform.h"

/* More than any number of variants, and prime: steps of this many go through
 * all of them. */
enum { STRIDE = 7919, SEVERAL_MIB = 3 << 20, SMALL = 1000, LARGE = 65537 };

typedef struct variants {
    int roots, in_place, canonical, total;
} variants;

static int roots_of(conform_kind k, int ranks)
{
    if (!kind_rooted(k))
        return 1;
    return ranks <= 4 ? ranks : 4;
}

/* All of them up to four ranks; else the ends and two between. */
static int root_of(int index, int ranks)
{
    const int spread[] = { 0, 1, ranks / 2, ranks - 1 };

    return ranks <= 4 ? index : spread[index];
}

static variants variants_of(const conform_trial *t, int ranks)
{
    variants v = { .roots = roots_of(t->kind, ranks),
                   .in_place = kind_can_be_in_place(t->kind) ? 2 : 1,
                   .canonical = kind_reduces(t->kind) ? 2 : 1 };

    v.total = v.roots * v.in_place * v.canonical * WHERES * (BATCHED + 1);
    return v;
}

static void set_variant(conform_trial *t, const variants *v, size_t index,
                        int ranks)
{
    t->how = (conform_call)(index % (BATCHED + 1));
    index /= BATCHED + 1;
    t->where = (conform_memory)(index % WHERES);
    index /= WHERES;
    t->in_place = (int)(index % (size_t)v->in_place);
    index /= (size_t)v->in_place;
    t->canonical = (int)(index % (size_t)v->canonical);
    index /= (size_t)v->canonical;
    t->root = root_of((int)index, ranks);
}

/* How many variants of this trial are run. */
static size_t budget(const conform_context *d, const conform_trial *t, int few)
{
    int folds = kind_reduces(t->kind);

    if (folds && !value_makes_sense(t->op, t->dtype))
        return 1;
    if (few)
        return 1;
    if (t->count > LARGE)
        return d->s->quick ? 1 : 2;
    if (t->count > SMALL)
        return d->s->quick ? 1 : 4;
    if (d->s->quick)
        return folds ? 1 : 3;
    if (t->dtype == OAR_F32 && t->op == OAR_REDUCE_OP_SUM)
        return SIZE_MAX; /* all there are */
    return folds ? 16 : 32;
}

/* count elements in all: parts of the larger sizes are smaller, so that the
 * work does not grow with the ranks. */
static size_t part_count(const conform_trial *t, size_t count, int ranks)
{
    int parts = t->kind >= K_GATHER && t->kind <= K_ALL_TO_ALL_V;

    return parts && count > SMALL ? count / (size_t)ranks + 1 : count;
}

static void try_size(conform_context *d, conform_trial t, oar_group *group,
                     const char *of, int few)
{
    int ranks = oar_group_size(group);
    variants v;
    size_t runs;

    t.count = part_count(&t, t.count, ranks);
    v = variants_of(&t, ranks);
    runs = budget(d, &t, few);
    if (runs > (size_t)v.total)
        runs = (size_t)v.total;
    for (size_t i = 0; i < runs; i++) {
        set_variant(&t, &v, d->turn++ * STRIDE % (size_t)v.total, ranks);
        job_run(d, &t, group, of);
    }
}

/* Whether a large size is worth its time: in the quick form only a few. */
static int is_tried_large(const conform_context *d, const conform_trial *t,
                          size_t bytes)
{
    int plain = t->op == OAR_REDUCE_OP_SUM || t->op == OAR_REDUCE_OP_MAX;

    if (!d->s->quick)
        return 1;
    if (bytes > 1 << 20)
        return t->op == OAR_REDUCE_OP_SUM &&
               (t->dtype == OAR_F32 || t->dtype == OAR_BF16);
    return plain;
}

static void try_sizes(conform_context *d, conform_trial t, oar_group *group,
                      const char *of, int few)
{
    static const size_t counts[] = { 0, 1, 3, 17, SMALL };
    size_t size = oar_dtype_size(t.dtype);

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        t.count = counts[i];
        if (!few || i == 2 || i == 4)
            try_size(d, t, group, of, few);
    }
    if (few || d->s->tight)
        return; /* small sizes cross every threshold there */
    t.count = LARGE;
    if (is_tried_large(d, &t, LARGE * size))
        try_size(d, t, group, of, few);
    t.count = SEVERAL_MIB / size + 5;
    if (is_tried_large(d, &t, SEVERAL_MIB))
        try_size(d, t, group, of, few);
}

void conform_collectives(conform_context *d, oar_group *group, const char *of,
                         int few)
{
    for (int k = K_BROADCAST; k <= K_ALL_TO_ALL_V; k++)
        for (int dtype = 0; dtype < OAR_DTYPE_COUNT; dtype++) {
            int ops =
                kind_reduces((conform_kind)k) && !few ? OAR_REDUCE_OP_COUNT : 1;
            for (int op = 0; op < ops && !d->broken; op++)
                try_sizes(d,
                          (conform_trial){ .kind = (conform_kind)k,
                                           .dtype = (oar_dtype)dtype,
                                           .op = (oar_reduce_op_kind)op },
                          group, of, few);
        }
}

/* ---- barriers ------------------------------------------------------------ */

/* No rank leaves before all have arrived: each counts itself first, and finds
 * all counted afterwards. Only for groups of all ranks, one barrier at a time.
 */
static void try_barrier(conform_context *d, const conform_trial *t,
                        oar_group *group)
{
    _Atomic int *arrived = &d->s->ledger->arrived;
    oar_work *work = NULL;
    oar_status status;

    if (!record_begin(d, t))
        return;
    d->in_barriers++;
    atomic_fetch_add(arrived, 1);
    if (t->kind == K_MONITORED_BARRIER)
        status = oar_monitored_barrier(group, NULL);
    else
        status = oar_barrier(group, NULL, t->how == ASYNC ? &work : NULL);
    if (work != NULL)
        status = oar_work_wait(work);
    if (record_status(d, status, "the call") &&
        atomic_load(arrived) < d->in_barriers * d->ranks)
        record_wrong(d, "returned when %d of %d had come",
                     atomic_load(arrived) - (d->in_barriers - 1) * d->ranks,
                     d->ranks);
    oar_work_release(work);
}

void conform_barriers(conform_context *d, oar_group *group, const char *of)
{
    conform_trial t = { .kind = K_BARRIER, .of = of };
    int turns = d->s->quick ? 20 : 200;

    for (int i = 0; i < turns; i++) {
        t.how = i % 2 == 0 ? BLOCKING : ASYNC;
        try_barrier(d, &t, group);
    }
    t.kind = K_MONITORED_BARRIER;
    t.how = BLOCKING;
    for (int i = 0; i < 3; i++)
        try_barrier(d, &t, group);
}
