/* SPDX-License-Identifier: Apache-2.0 */
/* save_plan: from the lists of all ranks to chunks with writers.
 *
 * Parts that one rank holds are its own to write. Parts that several hold
 * (replicas) are dealt out from the largest to the smallest, each to the holder
 * with the least to write so far. To come out even, large ones are cut into
 * shares of rows first; what a writer gets of one part is then put together
 * again, so that it is one chunk. */
#include "parallel/checkpoint/save_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/checkpoint/tiling.h"

enum {
    SHARES = 8, /* of what a rank writes: the unit that is dealt out */
    WHOLE_BYTES = 64 << 10
};

/* A part in a list. */
typedef struct held {
    const oari_ckpt_part *part;
    int64_t list;
} held;

/* A part that is in one list or in several. */
typedef struct part {
    int64_t tensor;
    oari_box box;
    int64_t first_held, helds;
    int64_t replicas; /* ranks */
    int64_t bytes;
    int64_t first_share, shares;
} part;

/* Rows of a part that go to one writer. */
typedef struct share {
    int64_t part;
    int64_t rows, bytes;
    int writer;
} share;

typedef struct by_bytes {
    int64_t bytes, share;
} by_bytes;

typedef struct planner {
    const oari_ckpt_lists *lists;
    oari_ckpt_save_opts opts;
    oari_ckpt_save_plan plan;
    oari_ckpt_holding *holding; /* sorted by list, then by rank */
    int64_t *first_holding;     /* by list, and the end */
    unsigned char *writes;      /* by rank: it may get replicas */
    int64_t helds;
    held *held; /* sorted by name, then by box */
    OARI_VEC(part) part;
    OARI_VEC(oari_box) box; /* of the parts */
    OARI_VEC(share) share;
    by_bytes *order;
} planner;

/* ---- what there is ------------------------------------------------------- */

static int compare_holdings(const void *left, const void *right)
{
    const oari_ckpt_holding *a = left, *b = right;

    if (a->list != b->list)
        return a->list < b->list ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Finds the ranks of each list. */
static oar_status index_ranks(planner *p)
{
    int64_t n = p->lists->holding.count, lists = p->lists->list.count, at = 0;

    p->holding = oari_alloc((size_t)n + 1, sizeof *p->holding);
    p->first_holding = oari_alloc((size_t)lists + 1, sizeof *p->first_holding);
    if (p->holding == NULL || p->first_holding == NULL)
        return OAR_E_NOMEM;
    if (n > 0)
        memcpy(p->holding, p->lists->holding.data,
               (size_t)n * sizeof *p->holding);
    qsort(p->holding, (size_t)n, sizeof *p->holding, compare_holdings);
    for (int64_t i = 0; i < lists; i++) {
        p->first_holding[i] = at;
        while (at < n && p->holding[at].list == i)
            at++;
    }
    p->first_holding[lists] = n;
    return OAR_OK;
}

static int compare_held(const void *left, const void *right)
{
    const held *a = left, *b = right;
    int order = oari_ckpt_name_compare(&a->part->tensor, &b->part->tensor);

    if (order == 0)
        order = oari_box_compare(&a->part->box, &b->part->box);
    return order != 0 ? order : a->list < b->list ? -1 : a->list > b->list;
}

static oar_status collect_held(planner *p)
{
    int64_t n = 0;

    for (int64_t i = 0; i < p->lists->list.count; i++)
        n += p->lists->list.data[i].part.count;
    p->held = oari_alloc((size_t)n, sizeof *p->held);
    if (p->held == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < p->lists->list.count; i++) {
        const oari_ckpt_part_list *list = &p->lists->list.data[i];
        for (int64_t j = 0; j < list->part.count; j++)
            p->held[p->helds++] = (held){ &list->part.data[j], i };
    }
    qsort(p->held, (size_t)n, sizeof *p->held, compare_held);
    return OAR_OK;
}

/* The lowest rank that holds it. */
static int rank_of(const planner *p, int64_t entry)
{
    return p->holding[p->first_holding[p->held[entry].list]].rank;
}

static const char *kind_text(unsigned flags)
{
    return (flags & OARI_CKPT_BYTES) != 0     ? "bytes"
           : (flags & OARI_CKPT_COUNTER) != 0 ? "a counter"
                                              : "a tensor";
}

/* Compares what two lists say about the same name. */
static oar_status check_alike(const planner *p, int64_t first, int64_t other)
{
    const oari_ckpt_tensor *a = &p->held[first].part->tensor;
    const oari_ckpt_tensor *b = &p->held[other].part->tensor;
    oari_box a_box = oari_box_whole(a->whole);
    oari_box b_box = oari_box_whole(b->whole);
    int a_rank = rank_of(p, first), b_rank = rank_of(p, other);

    if (a->dtype != b->dtype)
        return oari_fail(OAR_E_MISMATCH,
                         "tensor %s is %s on rank %d and %s on rank %d",
                         oari_ckpt_name_text(a).text, oar_dtype_name(a->dtype),
                         a_rank, oar_dtype_name(b->dtype), b_rank);
    if (a->flags != b->flags)
        return oari_fail(OAR_E_MISMATCH,
                         "%s is %s on rank %d and %s on rank %d",
                         oari_ckpt_name_text(a).text, kind_text(a->flags),
                         a_rank, kind_text(b->flags), b_rank);
    if (oari_box_compare(&a_box, &b_box) != 0)
        return oari_fail(
            OAR_E_MISMATCH,
            "tensor %s has the whole shape %s on rank %d and %s on rank %d",
            oari_ckpt_name_text(a).text, oari_box_shape_text(a->whole).text,
            a_rank, oari_box_shape_text(b->whole).text, b_rank);
    return OAR_OK;
}

/* ---- parts --------------------------------------------------------------- */

static oar_status fail_overlap(const planner *p, const oari_ckpt_tensor *tensor,
                               const part *a, const part *b)
{
    return oari_fail(
        OAR_E_ARG,
        "tensor %s: %s of rank %d and %s of rank %d overlap and are not the "
        "same part",
        oari_ckpt_name_text(tensor).text, oari_box_text(&a->box).text,
        rank_of(p, a->first_held), oari_box_text(&b->box).text,
        rank_of(p, b->first_held));
}

/* before and after are NULL where there is no such part. */
static oar_status fail_gap(const planner *p, const oari_ckpt_tensor *tensor,
                           const oari_box *gap, const part *before,
                           const part *after)
{
    char left[400] = "", right[400] = "";

    if (before != NULL)
        snprintf(left, sizeof left, "%s%s of rank %d",
                 after != NULL ? ", between " : ", after ",
                 oari_box_text(&before->box).text,
                 rank_of(p, before->first_held));
    if (after != NULL)
        snprintf(right, sizeof right, "%s%s of rank %d",
                 before != NULL ? " and " : ", before ",
                 oari_box_text(&after->box).text,
                 rank_of(p, after->first_held));
    return oari_fail(OAR_E_ARG, "tensor %s of shape %s: no rank has %s%s%s",
                     oari_ckpt_name_text(tensor).text,
                     oari_box_shape_text(tensor->whole).text,
                     oari_box_text(gap).text, left, right);
}

/* Checks that the parts from `first` on are all of their tensor. */
static oar_status check_parts(planner *p, const oari_ckpt_tensor *tensor,
                              int64_t first)
{
    const oari_box whole = oari_box_whole(tensor->whole);
    const part *parts = p->part.data + first;
    oari_ckpt_tiling found;
    const part *a, *b;

    OARI_TRY(oari_ckpt_tile(&whole, p->part.count - first, p->box.data + first,
                            &found));
    a = found.box[0] >= 0 ? &parts[found.box[0]] : NULL;
    b = found.box[1] >= 0 ? &parts[found.box[1]] : NULL;
    if (found.kind == OARI_CKPT_OVERLAP)
        return fail_overlap(p, tensor, a, b);
    if (found.kind == OARI_CKPT_GAP)
        return fail_gap(p, tensor, &found.where, a, b);
    return OAR_OK;
}

/* Makes the parts of the tensor that entries [first, end) are about. An empty
 * tensor is one part, which all of them hold; of another tensor an empty part
 * is nothing. */
static oar_status fold_parts(planner *p, int64_t first, int64_t end)
{
    const oari_ckpt_tensor *tensor = &p->held[first].part->tensor;
    oari_box whole = oari_box_whole(tensor->whole);
    int empty = oari_box_count(&whole) == 0;
    int64_t first_part = p->part.count, next;

    for (int64_t i = first; i < end; i = next) {
        const oari_box *box = empty ? &whole : &p->held[i].part->box;
        part made = { .tensor = p->plan.tensor.count, .box = *box };
        for (next = i; next < end; next++) {
            const int64_t *range = &p->first_holding[p->held[next].list];
            if (!empty && oari_box_compare(box, &p->held[next].part->box))
                break;
            made.replicas += range[1] - range[0];
        }
        made.first_held = i;
        made.helds = next - i;
        made.bytes =
            oari_box_count(box) * (int64_t)oar_dtype_size(tensor->dtype);
        if (!empty && made.bytes == 0)
            continue;
        OARI_TRY(oari_vec_push(&p->part, made));
        OARI_TRY(oari_vec_push(&p->box, *box));
        if (__builtin_add_overflow(p->plan.bytes, (uint64_t)made.bytes,
                                   &p->plan.bytes) ||
            p->plan.bytes > INT64_MAX)
            return oari_fail(OAR_E_ARG, "the tensors have more bytes than "
                                        "an int64_t can count");
    }
    return check_parts(p, tensor, first_part);
}

static oar_status fold_tensors(planner *p)
{
    int64_t next;

    OARI_TRY(oari_vec_reserve(&p->part, 1));
    OARI_TRY(oari_vec_reserve(&p->box, 1));
    for (int64_t i = 0; i < p->helds; i = next) {
        const oari_ckpt_tensor *tensor = &p->held[i].part->tensor;
        for (next = i + 1; next < p->helds; next++) {
            if (oari_ckpt_name_compare(tensor, &p->held[next].part->tensor))
                break;
            OARI_TRY(check_alike(p, i, next));
        }
        OARI_TRY(fold_parts(p, i, next));
        OARI_TRY(oari_vec_push(&p->plan.tensor,
                               (oari_ckpt_saved_tensor){ .is = *tensor }));
    }
    return OAR_OK;
}

/* Makes the texts of the tensors the plan's own. */
static oar_status copy_names(oari_ckpt_save_plan *plan)
{
    const char *section = NULL;
    size_t bytes = 0;
    char *at;

    for (int64_t i = 0; i < plan->tensor.count; i++)
        bytes += strlen(plan->tensor.data[i].is.section) +
                 strlen(plan->tensor.data[i].is.name) + 2;
    at = plan->text = oari_alloc(bytes, 1);
    if (at == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < plan->tensor.count; i++)
        oari_ckpt_copy_names(&plan->tensor.data[i].is, &section, &at);
    return OAR_OK;
}

/* ---- writers ------------------------------------------------------------- */

/* Marks the ranks that may get replicas, and gives how many of them hold
 * anything. */
static oar_status choose_writers(planner *p, int64_t *writers)
{
    int ranks = p->lists->ranks, wanted = p->opts.writers;

    if (wanted <= 0 || wanted > ranks)
        wanted = ranks;
    p->writes = oari_alloc((size_t)ranks, 1);
    p->plan.load = oari_alloc((size_t)ranks, sizeof *p->plan.load);
    if (p->writes == NULL || p->plan.load == NULL)
        return OAR_E_NOMEM;
    *writers = 0;
    for (int64_t i = 0; i < p->lists->holding.count; i++) {
        int64_t list = p->holding[i].list, rank = p->holding[i].rank;
        if (p->lists->list.data[list].part.count == 0 || p->writes[rank] ||
            rank * wanted % ranks >= wanted)
            continue;
        p->writes[rank] = 1;
        ++*writers;
    }
    return OAR_OK;
}

static int is_model(const planner *p, const part *x)
{
    const oari_ckpt_tensor *t = &p->plan.tensor.data[x->tensor].is;

    return strcmp(t->section, OARI_CKPT_MODEL) == 0;
}

/* Whether every tensor of the model is held whole, and none is so large that
 * one rank would write more than its fair share. */
static int model_stays_whole(const planner *p, int64_t fair)
{
    for (int64_t i = 0; i < p->part.count; i++) {
        const part *x = &p->part.data[i];
        oari_box whole =
            oari_box_whole(p->plan.tensor.data[x->tensor].is.whole);
        if (is_model(p, x) && (oari_box_compare(&x->box, &whole) != 0 ||
                               (x->replicas > 1 && x->bytes > fair)))
            return 0;
    }
    return 1;
}

/* The dim along which a part is cut: the first that can be. -1: none. */
static int cut_dim(const oari_box *box)
{
    for (int d = 0; d < box->ndim; d++)
        if (box->extent[d] > 1)
            return d;
    return -1;
}

/* Cuts a replica into shares of nearly equal rows and at most `limit` bytes,
 * unless a row has more. */
static oar_status cut_part(planner *p, int64_t index, int64_t limit)
{
    part *x = &p->part.data[index];
    int dim = cut_dim(&x->box);
    int64_t rows = dim >= 0 ? x->box.extent[dim] : 1, row = x->bytes / rows;
    int64_t most = row > 0 && row <= limit ? limit / row : 1;

    x->first_share = p->share.count;
    x->shares = x->bytes > limit ? (rows + most - 1) / most : 1;
    most = rows / x->shares; /* and one more in the first few */
    for (int64_t i = 0; i < x->shares; i++) {
        share made = { .part = index, .rows = most + (i < rows % x->shares) };
        made.bytes = made.rows * row;
        OARI_TRY(oari_vec_push(&p->share, made));
    }
    return OAR_OK;
}

/* Returns the holder of a part with the least to write; of those that may get
 * replicas, if there are any. */
static int least_loaded(const planner *p, const part *x)
{
    const uint64_t *load = p->plan.load;
    int best = -1;

    for (int any = 0; best < 0; any = 1)
        for (int64_t h = 0; h < x->helds; h++) {
            const int64_t *range =
                &p->first_holding[p->held[x->first_held + h].list];
            for (int64_t i = range[0]; i < range[1]; i++) {
                int rank = p->holding[i].rank;
                if ((any || p->writes[rank]) &&
                    (best < 0 || load[rank] < load[best] ||
                     (load[rank] == load[best] && rank < best)))
                    best = rank;
            }
        }
    return best;
}

static int compare_bytes(const void *left, const void *right)
{
    const by_bytes *a = left, *b = right;

    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->share < b->share ? -1 : a->share > b->share;
}

static oar_status deal_out(planner *p)
{
    p->order = oari_alloc((size_t)p->share.count, sizeof *p->order);
    if (p->order == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < p->share.count; i++)
        p->order[i] = (by_bytes){ p->share.data[i].bytes, i };
    qsort(p->order, (size_t)p->share.count, sizeof *p->order, compare_bytes);
    for (int64_t i = 0; i < p->share.count; i++) {
        share *s = &p->share.data[p->order[i].share];
        s->writer = least_loaded(p, &p->part.data[s->part]);
        p->plan.load[s->writer] += (uint64_t)s->bytes;
    }
    return OAR_OK;
}

static oar_status find_writers(planner *p)
{
    int64_t writers, fair, limit, least = p->opts.whole_bytes;
    int whole;

    OARI_TRY(choose_writers(p, &writers));
    fair = (int64_t)p->plan.bytes / (writers > 0 ? writers : 1) + 1;
    limit = fair / SHARES;
    least = least > 0 ? least : WHOLE_BYTES;
    if (limit < least)
        limit = least;
    whole = model_stays_whole(p, fair);
    for (int64_t i = 0; i < p->part.count; i++) {
        const part *x = &p->part.data[i];
        if (x->replicas == 1)
            p->plan.load[rank_of(p, x->first_held)] += (uint64_t)x->bytes;
        else
            OARI_TRY(
                cut_part(p, i, whole && is_model(p, x) ? x->bytes : limit));
    }
    return deal_out(p);
}

/* ---- chunks -------------------------------------------------------------- */

static int compare_writers(const void *left, const void *right)
{
    const share *a = left, *b = right;

    return a->writer < b->writer ? -1 : a->writer > b->writer;
}

static int compare_chunks(const void *left, const void *right)
{
    const oari_ckpt_chunk *a = left, *b = right;

    return oari_box_compare(&a->box, &b->box);
}

/* Makes one chunk of a part for each of its writers, in the order of ranks. */
static oar_status make_part_chunks(planner *p, const part *x)
{
    oari_ckpt_chunk made = { .tensor = x->tensor,
                             .writer = rank_of(p, x->first_held),
                             .replicas = x->replicas,
                             .box = x->box,
                             .part = x->box };
    int dim = cut_dim(&x->box);
    share *shares;

    if (x->replicas == 1)
        return oari_vec_push(&p->plan.chunk, made);
    shares = p->share.data + x->first_share;
    qsort(shares, (size_t)x->shares, sizeof *shares, compare_writers);
    for (int64_t i = 0, next; i < x->shares; i = next) {
        int64_t rows = 0;
        for (next = i; next < x->shares; next++) {
            if (shares[next].writer != shares[i].writer)
                break;
            rows += shares[next].rows;
        }
        made.writer = shares[i].writer;
        if (dim >= 0)
            made.box.extent[dim] = rows;
        OARI_TRY(oari_vec_push(&p->plan.chunk, made));
        if (dim >= 0)
            made.box.offset[dim] += rows;
    }
    return OAR_OK;
}

static oar_status make_chunks(planner *p)
{
    oari_ckpt_save_plan *plan = &p->plan;
    int64_t next = 0;

    for (int64_t i = 0; i < plan->tensor.count; i++) {
        oari_ckpt_saved_tensor *t = &plan->tensor.data[i];
        t->first = plan->chunk.count;
        while (next < p->part.count && p->part.data[next].tensor == i)
            OARI_TRY(make_part_chunks(p, &p->part.data[next++]));
        t->chunks = plan->chunk.count - t->first;
        qsort(plan->chunk.data + t->first, (size_t)t->chunks,
              sizeof *plan->chunk.data, compare_chunks);
    }
    return OAR_OK;
}

static oar_status make_plan(planner *p)
{
    p->plan.ranks = p->lists->ranks;
    OARI_TRY(index_ranks(p));
    OARI_TRY(collect_held(p));
    OARI_TRY(fold_tensors(p));
    OARI_TRY(copy_names(&p->plan));
    OARI_TRY(find_writers(p));
    return make_chunks(p);
}

oar_status oari_ckpt_save_plan_make(const oari_ckpt_lists *lists,
                                    const oari_ckpt_save_opts *opts,
                                    oari_ckpt_save_plan *plan)
{
    planner p = { .lists = lists };
    oar_status status;

    if (opts != NULL)
        p.opts = *opts;
    status = make_plan(&p);
    oari_free(p.holding);
    oari_free(p.first_holding);
    oari_free(p.writes);
    oari_free(p.held);
    oari_free(p.order);
    oari_vec_free(&p.part);
    oari_vec_free(&p.box);
    oari_vec_free(&p.share);
    if (status == OAR_OK)
        *plan = p.plan;
    else
        oari_ckpt_save_plan_free(&p.plan);
    return status;
}

void oari_ckpt_save_plan_free(oari_ckpt_save_plan *plan)
{
    oari_vec_free(&plan->tensor);
    oari_vec_free(&plan->chunk);
    oari_free(plan->load);
    oari_free(plan->text);
    memset(plan, 0, sizeof *plan);
}

int oari_ckpt_is_whole(const oari_ckpt_save_plan *plan, int64_t tensor)
{
    const oari_ckpt_saved_tensor *t = &plan->tensor.data[tensor];
    oari_box whole = oari_box_whole(t->is.whole);

    return t->chunks == 1 &&
           oari_box_compare(&plan->chunk.data[t->first].box, &whole) == 0;
}
