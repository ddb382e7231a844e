/* SPDX-License-Identifier: Apache-2.0 */
/* planners/checkpoint_catalog.h: random tensors, and what each of several ranks
 * holds of them. */
#ifndef TESTS_PLANNERS_CHECKPOINT_CATALOG_H
#define TESTS_PLANNERS_CHECKPOINT_CATALOG_H

#include <stdio.h>

#include "parallel/checkpoint/part_list.h"
#include "support/last_error.h"

/* ---- random numbers, shapes and boxes ------------------------------------ */

typedef struct catalog_random {
    uint64_t state; /* begins as the seed */
} catalog_random;

/* From 0 to limit - 1 (splitmix64). */
static inline int64_t catalog_below(catalog_random *random, int64_t limit)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ z >> 31) % (uint64_t)limit);
}

/* Up to 4 dims of up to `most`; one in twenty is 0. */
static inline oar_shape catalog_shape(catalog_random *random, int64_t most)
{
    oar_shape shape = { .ndim = (int)catalog_below(random, 5) };

    for (int d = 0; d < shape.ndim; d++)
        shape.dim[d] = catalog_below(random, 20) == 0
                           ? 0
                           : 1 + catalog_below(random, most);
    return shape;
}

static inline oari_box catalog_box(catalog_random *random, oar_shape whole)
{
    oari_box box = { .ndim = whole.ndim };

    for (int d = 0; d < whole.ndim; d++) {
        box.offset[d] = catalog_below(random, whole.dim[d] + 1);
        box.extent[d] = catalog_below(random, whole.dim[d] - box.offset[d] + 1);
    }
    return box;
}

/* The number, in the whole, of element i of a box, both row by row. */
static inline int64_t catalog_element(const oari_box *box, oar_shape whole,
                                      int64_t i)
{
    int64_t element = 0, stride = 1;

    for (int d = box->ndim - 1; d >= 0; d--) {
        element += (box->offset[d] + i % box->extent[d]) * stride;
        i /= box->extent[d];
        stride *= whole.dim[d];
    }
    return element;
}

/* ---- tensors and how they are divided ------------------------------------ */

typedef enum catalog_cut {
    CATALOG_REPLICATED, /* all ranks have all of it */
    CATALOG_SOME,       /* the ranks with an even number have all of it */
    CATALOG_ROWS,       /* along the first dim, nearly equal parts */
    CATALOG_COLUMNS,    /* along the last dim */
    CATALOG_FLAT,       /* nearly equal parts of all elements, row by row */
    CATALOG_PAIRS,      /* rows; two ranks after each other have the same */
    CATALOG_ONE,        /* one rank has all of it */
    CATALOG_CUTS
} catalog_cut;

typedef struct catalog_tensor {
    oari_ckpt_tensor is;
    char name[40];
    catalog_cut cut;
} catalog_tensor;

enum { CATALOG_MOST = 24 };

typedef struct catalog {
    int tensors;
    catalog_tensor tensor[CATALOG_MOST];
} catalog;

static inline void catalog_fill(catalog *c, catalog_random *random, int tensors,
                                int64_t most)
{
    static const char *const section[] = { "model", "optim", "extra" };

    c->tensors = tensors;
    for (int i = 0; i < tensors; i++) {
        catalog_tensor *t = &c->tensor[i];
        snprintf(t->name, sizeof t->name, "t%d.%s", (i * 29) % tensors,
                 i % 2 ? "weight" : "bias");
        t->is.section = section[catalog_below(random, 3)];
        t->is.name = t->name;
        t->is.dtype = (oar_dtype)catalog_below(random, OAR_DTYPE_COUNT_ALL);
        t->is.flags = (unsigned)catalog_below(random, 3);
        t->is.whole = catalog_shape(random, most);
        t->cut = (catalog_cut)catalog_below(random, CATALOG_CUTS);
    }
}

/* Part `rank` of `ranks` nearly equal parts of n, the first ones larger. */
static inline void catalog_divide(int64_t n, int rank, int ranks,
                                  int64_t *first, int64_t *count)
{
    int64_t base = n / ranks, more = n % ranks;

    *first = rank * base + (rank < more ? rank : more);
    *count = base + (rank < more);
}

/* What a rank has of a tensor. */
typedef struct catalog_part {
    int there;
    int flat; /* first and count instead of box */
    oari_box box;
    int64_t first, count;
} catalog_part;

static inline catalog_part catalog_part_of(const catalog_tensor *t, int rank,
                                           int ranks)
{
    catalog_part part = { .there = 1, .box = oari_box_whole(t->is.whole) };
    int ndim = part.box.ndim, dim = 0;

    if (t->cut == CATALOG_FLAT) {
        part.flat = 1;
        catalog_divide(oari_box_count(&part.box), rank, ranks, &part.first,
                       &part.count);
        return part;
    }
    if (t->cut == CATALOG_SOME)
        part.there = rank % 2 == 0;
    if (t->cut == CATALOG_ONE)
        part.there = rank == t->name[1] % ranks;
    if (t->cut == CATALOG_COLUMNS)
        dim = ndim - 1;
    if (t->cut == CATALOG_PAIRS) {
        rank /= 2;
        ranks = (ranks + 1) / 2;
    }
    if (ndim > 0 && (t->cut == CATALOG_ROWS || t->cut == CATALOG_COLUMNS ||
                     t->cut == CATALOG_PAIRS))
        catalog_divide(t->is.whole.dim[dim], rank, ranks, &part.box.offset[dim],
                       &part.box.extent[dim]);
    return part;
}

/* The list of a rank: sealed, to be freed by the caller. item[i] is the tensor
 * that item i of the list is about (may be NULL). */
static inline oar_status catalog_list(const catalog *c, int rank, int ranks,
                                      oari_ckpt_part_list *list, int *item)
{
    oar_status status = OAR_OK;

    memset(list, 0, sizeof *list);
    for (int i = 0; status == OAR_OK && i < c->tensors; i++) {
        catalog_part part = catalog_part_of(&c->tensor[i], rank, ranks);
        if (!part.there)
            continue;
        if (item != NULL)
            item[list->items] = i;
        status = part.flat ? oari_ckpt_part_list_add_flat(
                                 list, &c->tensor[i].is, part.first, part.count)
                           : oari_ckpt_part_list_add_box(list, &c->tensor[i].is,
                                                         &part.box);
    }
    if (status == OAR_OK)
        status = oari_ckpt_part_list_seal(list);
    if (status != OAR_OK)
        oari_ckpt_part_list_free(list);
    return status;
}

/* The lists of all ranks, as they come over the wire. */
static inline oar_status catalog_lists(const catalog *c, int ranks,
                                       oari_ckpt_lists *lists)
{
    oar_status status = OAR_OK;

    *lists = (oari_ckpt_lists){ .ranks = ranks };
    for (int r = 0; status == OAR_OK && r < ranks; r++) {
        oari_ckpt_part_list list;
        status = catalog_list(c, r, ranks, &list, NULL);
        if (status != OAR_OK)
            break;
        status = oari_ckpt_lists_add(lists, r, list.wire.data,
                                     (size_t)list.wire.count);
        oari_ckpt_part_list_free(&list);
    }
    if (status != OAR_OK)
        oari_ckpt_lists_free(lists);
    return status;
}

#endif
