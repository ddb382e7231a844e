/* SPDX-License-Identifier: Apache-2.0 */
/* move_run: the steps of a path, with data.
 *
 * Every rank knows every rank's parts, so nothing but elements is sent. Where
 * parts do not lie in one piece they are packed, in the order of their boxes,
 * which both sides compute. */
#include "parallel/dtensor/move_run.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/reducer/stream_call.h"

/* ---- one step ------------------------------------------------------------ */

/* A step between two layouts, on this rank. */
typedef struct running {
    const oari_move_path *path;
    const oari_grid *grid;
    oar_shape shape;
    const oari_cuts *before, *after;
    int mesh_dim, rank;
    size_t element;
    oar_group *group;
    oar_call_opts opts;
    oari_part had, has; /* this rank's */
    oar_span in, out;
    oari_place from, to; /* the same */
} running;

static void part_before(const running *r, int rank, oari_part *part)
{
    oari_cuts_part(r->grid, r->shape, r->before, rank, part);
}

static void part_after(const running *r, int rank, oari_part *part)
{
    oari_cuts_part(r->grid, r->shape, r->after, rank, part);
}

/* Returns the rank of the mesh that has a number in the step's group. */
static int rank_in_group(const running *r, int number)
{
    int m = r->mesh_dim;

    if (m < 0)
        return number;
    return r->rank + (number - oari_grid_coordinate(r->grid, r->rank, m)) *
                         r->grid->stride[m];
}

/* Whether the parts that a cut makes of a box lie one behind the other. */
static int in_one_piece(const oari_cut *cut, const oari_box *box)
{
    for (int d = 0; cut->kind == OAR_SHARD && d < cut->dim; d++)
        if (box->extent[d] != 1)
            return 0;
    return 1;
}

static oar_status run_fill(const running *r, oar_tensor *out)
{
    const oari_cut *cut = &r->after->on[r->mesh_dim];
    int splits = oari_cut_splits(&r->before->on[r->mesh_dim]);
    int keeps = oari_grid_coordinate(r->grid, r->rank, r->mesh_dim) == 0 ||
                splits || cut->op == OAR_REDUCE_OP_MIN ||
                cut->op == OAR_REDUCE_OP_MAX;

    if (splits || !keeps)
        OARI_TRY(oar_tensor_fill(out, cut->op == OAR_REDUCE_OP_PROD));
    if (keeps)
        return oari_copy_common(&r->had, &r->has, r->element, &r->from, &r->to);
    return OAR_OK;
}

/* Memory for all parts along the step's dim, where the tensors are, and their
 * counts. */
typedef struct staging {
    size_t *counts;
    oari_place at;
    oar_span span;
} staging;

static void staging_free(staging *s)
{
    oari_free(s->counts);
    if (s->at.tensor == NULL)
        oari_free(s->at.data);
    oar_tensor_release(s->at.tensor); /* behind what is on the stream */
}

/* elements 0: only counts. */
static oar_status staging_make(const running *r, staging *s, int counts,
                               int64_t elements)
{
    s->counts = oari_alloc((size_t)counts, sizeof *s->counts);
    if (s->counts == NULL)
        return OAR_E_NOMEM;
    s->span = r->out; /* which may be written */
    s->span.count = (size_t)elements;
    if (r->in.device.kind == OAR_CPU) {
        s->at.data = oari_alloc_aligned(64, (size_t)elements * r->element + 1);
        s->span.data = s->at.data;
        return s->at.data != NULL ? OAR_OK : OAR_E_NOMEM;
    }
    if (elements == 0)
        return OAR_OK;
    s->at.tensor =
        oar_empty_on(NULL, r->in.device, r->in.dtype, OAR_SHAPE(elements));
    if (s->at.tensor == NULL)
        return oar_last_error()->status;
    return oar_tensor_span(s->at.tensor, &s->span);
}

static oar_status run_gather(const running *r)
{
    int n = r->grid->size[r->mesh_dim];
    int direct = in_one_piece(&r->before->on[r->mesh_dim], &r->has.box);
    staging s = { 0 };
    oari_place at;
    oar_status status = staging_make(r, &s, n, direct ? 0 : r->has.count);

    for (int i = 0; i < n && status == OAR_OK; i++) {
        oari_part part;
        part_before(r, rank_in_group(r, i), &part);
        s.counts[i] = (size_t)part.count;
    }
    if (status == OAR_OK)
        status = oari_stream_call_run(
            &(oari_stream_call){ .kind = OARI_CALL_ALL_GATHER,
                                 .group = r->group,
                                 .in = r->in,
                                 .out = direct ? r->out : s.span,
                                 .out_counts = s.counts,
                                 .opts = r->opts });
    at = s.at;
    for (int i = 0; i < n && status == OAR_OK && !direct; i++) {
        oari_part part;
        part_before(r, rank_in_group(r, i), &part);
        status = oari_copy_common(&part, &r->has, r->element, &at, &r->to);
        oari_place_skip(&at, part.count, r->element);
    }
    staging_free(&s);
    return status;
}

static oar_status run_reduce_scatter(const running *r)
{
    const oari_cut *op = &r->before->on[r->mesh_dim];
    int n = r->grid->size[r->mesh_dim];
    int direct = in_one_piece(&r->after->on[r->mesh_dim], &r->had.box);
    staging s = { 0 };
    oari_place at;
    oar_status status = staging_make(r, &s, n, direct ? 0 : r->had.count);

    at = s.at;
    for (int i = 0; i < n && status == OAR_OK; i++) {
        oari_part part;

        part_after(r, rank_in_group(r, i), &part);
        s.counts[i] = (size_t)part.count;
        if (direct)
            continue;
        status = oari_copy_common(&r->had, &part, r->element, &r->from, &at);
        oari_place_skip(&at, part.count, r->element);
    }
    if (status == OAR_OK)
        status = oari_stream_call_run(
            &(oari_stream_call){ .kind = OARI_CALL_REDUCE_SCATTER,
                                 .group = r->group,
                                 .in = direct ? r->in : s.span,
                                 .in_counts = s.counts,
                                 .out = r->out,
                                 .op = OAR_REDUCE_OP(op->op, 0),
                                 .opts = r->opts });
    staging_free(&s);
    return status;
}

/* ---- exchange ------------------------------------------------------------ */

/* Whether two ranks differ along these mesh dims only. */
static int reaches(const running *r, unsigned along, int other)
{
    for (int m = 0; m < r->grid->dims; m++)
        if (!(along >> m & 1) && oari_grid_coordinate(r->grid, r->rank, m) !=
                                     oari_grid_coordinate(r->grid, other, m))
            return 0;
    return other != r->rank;
}

/* Packs what every other rank needs of this one, and counts what it sends. */
static oar_status pack_pieces(const running *r, unsigned along, int ranks,
                              staging *s)
{
    oari_place at = s->at;

    at.packed = 1;
    for (int i = 0; i < ranks; i++) {
        int other = rank_in_group(r, i);
        oari_part part;

        if (!reaches(r, along, other))
            continue;
        part_after(r, other, &part);
        s->counts[i] = (size_t)oari_part_common(&r->had, &part);
        if (s->counts[i] > 0)
            OARI_TRY(
                oari_copy_common(&r->had, &part, r->element, &r->from, &at));
        oari_place_skip(&at, (int64_t)s->counts[i], r->element);
    }
    return OAR_OK;
}

/* Counts what this rank gets, or with `unpack` puts it in its place. */
static oar_status take_pieces(const running *r, unsigned along, int ranks,
                              staging *s, int unpack)
{
    oari_place at = s->at;

    at.packed = 1;
    for (int i = 0; i < ranks; i++) {
        int other = rank_in_group(r, i);
        oari_part part;

        if (!reaches(r, along, other))
            continue;
        part_before(r, other, &part);
        s->counts[i] = (size_t)oari_part_common(&part, &r->has);
        if (unpack && s->counts[i] > 0)
            OARI_TRY(oari_copy_common(&part, &r->has, r->element, &at, &r->to));
        oari_place_skip(&at, (int64_t)s->counts[i], r->element);
    }
    return OAR_OK;
}

static size_t total(const size_t *counts, int ranks)
{
    size_t sum = 0;

    for (int i = 0; i < ranks; i++)
        sum += counts[i];
    return sum;
}

/* Returns how many elements this rank sends: what others need of its part may
 * be more than it has, where they are replicated. */
static int64_t count_sent(const running *r, unsigned along, int ranks)
{
    int64_t count = 0;

    for (int i = 0; i < ranks; i++) {
        int other = rank_in_group(r, i);
        oari_part part;

        if (!reaches(r, along, other))
            continue;
        part_after(r, other, &part);
        count += oari_part_common(&r->had, &part);
    }
    return count;
}

static oar_status run_exchange(const running *r)
{
    unsigned along = oari_cuts_moved_dims(r->before, r->after, r->grid->dims);
    int n = oar_group_size(r->group);
    staging send = { 0 }, take = { 0 };
    oar_status status = staging_make(r, &send, n, count_sent(r, along, n));

    if (status == OAR_OK)
        status = staging_make(r, &take, n, r->has.count);
    if (status == OAR_OK)
        status = pack_pieces(r, along, n, &send);
    if (status == OAR_OK)
        status = take_pieces(r, along, n, &take, 0);
    if (status == OAR_OK) {
        send.span.count = total(send.counts, n);
        take.span.count = total(take.counts, n);
        status = oari_stream_call_run(
            &(oari_stream_call){ .kind = OARI_CALL_ALL_TO_ALL,
                                 .group = r->group,
                                 .in = send.span,
                                 .in_counts = send.counts,
                                 .out = take.span,
                                 .out_counts = take.counts,
                                 .opts = r->opts });
    }
    if (status == OAR_OK)
        status = take_pieces(r, along, n, &take, 1);
    if (status == OAR_OK)
        status =
            oari_copy_common(&r->had, &r->has, r->element, &r->from, &r->to);
    staging_free(&send);
    staging_free(&take);
    return status;
}

/* ---- paths --------------------------------------------------------------- */

static oar_status run_step(running *r, const oari_move_step *step,
                           const oar_tensor *in, oar_tensor *out)
{
    const oari_cut *cut;

    r->after = &step->after;
    r->mesh_dim = step->mesh_dim;
    r->group = oar_mesh_group(r->path->from->mesh, step->mesh_dim);
    part_before(r, r->rank, &r->had);
    part_after(r, r->rank, &r->has);
    OARI_TRY(oar_tensor_const_span(in, &r->in));
    OARI_TRY(oar_tensor_span(out, &r->out));
    r->from = oari_place_of(in, &r->in);
    r->to = oari_place_of(out, &r->out);
    switch (step->kind) {
    case OARI_MOVE_CUT:
        return oari_copy_common(&r->had, &r->has, r->element, &r->from, &r->to);
    case OARI_MOVE_FILL: return run_fill(r, out);
    case OARI_MOVE_GATHER: return run_gather(r);
    case OARI_MOVE_REDUCE_SCATTER: return run_reduce_scatter(r);
    case OARI_MOVE_EXCHANGE: return run_exchange(r);
    case OARI_MOVE_REDUCE: break;
    }
    cut = &r->before->on[step->mesh_dim];
    return oari_stream_call_run(
        &(oari_stream_call){ .kind = OARI_CALL_ALL_REDUCE,
                             .group = r->group,
                             .in = r->in,
                             .out = r->out,
                             .op = OAR_REDUCE_OP(cut->op, 0),
                             .opts = r->opts });
}

oar_status oari_move_compare(oari_move_path *path)
{
    oar_call_opts opts = oar_call_opts_init();

    if (atomic_load_explicit(&path->compared, memory_order_relaxed))
        return OAR_OK;
    opts.key = path->key;
    opts.label = path->label;
    OARI_TRY(oar_barrier(oar_mesh_group(path->from->mesh, -1), &opts, NULL));
    atomic_store_explicit(&path->compared, 1, memory_order_relaxed);
    return OAR_OK;
}

oar_status oari_move_ready(const oar_spec *spec, const char *call)
{
    oar_group *all = oar_mesh_group(spec->mesh, -1);

    if (all == NULL)
        return oari_fail(OAR_E_STATE, "%s: a mesh without a group only plans",
                         call);
    if (oar_batch_is_open(all))
        return oari_fail(OAR_E_STATE, "%s inside a batch", call);
    return OAR_OK;
}

/* Makes the tensor that a step leaves, if it is not the last. */
static oar_tensor *make_between(const running *r, const oari_move_step *step,
                                const oar_tensor *in)
{
    oari_part part;

    oari_cuts_part(r->grid, r->shape, &step->after, r->rank, &part);
    return oar_empty_on(NULL, oar_tensor_device(in), oar_tensor_dtype(in),
                        oari_part_shape(&part));
}

oar_status oari_move_run(oari_move_path *path, const oar_tensor *in,
                         oar_tensor *out)
{
    oar_mesh *mesh = path->from->mesh;
    running r = { .path = path,
                  .grid = &mesh->grid,
                  .shape = path->from->shape,
                  .before = &path->from->layout,
                  .rank = mesh->rank,
                  .element = path->element };
    oar_tensor *now = NULL, *next = NULL;
    oar_status status = OAR_OK;

    if (path->steps == 0)
        return oar_tensor_copy(out, in);
    r.opts = oar_call_opts_init();
    r.opts.label = path->label;
    for (int i = 0; i < path->steps && status == OAR_OK; i++) {
        const oari_move_step *step = &path->step[i];

        next = i == path->steps - 1 ? oar_tensor_retain(out)
                                    : make_between(&r, step, in);
        r.opts.key = path->key + 2 * (uint64_t)i;
        status = next != NULL ? run_step(&r, step, now != NULL ? now : in, next)
                              : oar_last_error()->status;
        oar_tensor_release(now);
        now = next;
        r.before = &step->after;
    }
    oar_tensor_release(now);
    if (status == OAR_OK)
        status = oar_tensor_touch(out);
    return status;
}
