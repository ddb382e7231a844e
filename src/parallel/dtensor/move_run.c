/* SPDX-License-Identifier: Apache-2.0 */
/* move_run: the steps of a path, with data.
 *
 * Every rank knows every rank's parts, so nothing but elements is sent. Where
 * parts do not lie in one piece they are packed, in the order of their boxes,
 * which both sides compute. */
#include "parallel/dtensor/move_run.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- copies -------------------------------------------------------------- */

int64_t oari_copy_common(const oari_part *from, const oari_part *to,
                         size_t element, const void *from_data, int from_packed,
                         void *to_data, int to_packed)
{
    oari_box a[OARI_FLAT_BOXES], b[OARI_FLAT_BOXES], both;
    int boxes_a = oari_part_boxes(from, a), boxes_b = oari_part_boxes(to, b);
    int64_t count = 0, at_a = 0;

    for (int i = 0; i < boxes_a; i++) {
        int64_t at_b = 0;

        for (int k = 0; k < boxes_b; k++) {
            if (oari_box_meet(&a[i], &b[k], &both)) {
                size_t from_at = (size_t)(from_packed ? count : at_a);
                size_t to_at = (size_t)(to_packed ? count : at_b);

                if (to_data != NULL)
                    oari_box_copy(&both, from_packed ? &both : &a[i],
                                  to_packed ? &both : &b[k], element,
                                  (const char *)from_data + from_at * element,
                                  (char *)to_data + to_at * element);
                count += oari_box_count(&both);
            }
            at_b += oari_box_count(&b[k]);
        }
        at_a += oari_box_count(&a[i]);
    }
    return count;
}

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
        oari_copy_common(&r->had, &r->has, r->element, r->in.data, 0,
                         r->out.data, 0);
    return OAR_OK;
}

/* Memory for all parts along the step's dim, and their counts. */
typedef struct staging {
    size_t *counts;
    char *data;
} staging;

static void staging_free(staging *s)
{
    oari_free(s->counts);
    oari_free(s->data);
}

static oar_status staging_make(staging *s, int counts, int64_t elements,
                               size_t element)
{
    s->counts = oari_alloc((size_t)counts, sizeof *s->counts);
    s->data = oari_alloc_aligned(64, (size_t)elements * element + 1);
    return s->counts != NULL && s->data != NULL ? OAR_OK : OAR_E_NOMEM;
}

static oar_status run_gather(const running *r)
{
    int n = r->grid->size[r->mesh_dim];
    int direct = in_one_piece(&r->before->on[r->mesh_dim], &r->has.box);
    oar_span all = r->out;
    staging s = { 0 };
    char *at;
    oar_status status =
        staging_make(&s, n, direct ? 0 : r->has.count, r->element);

    for (int i = 0; i < n && status == OAR_OK; i++) {
        oari_part part;
        part_before(r, rank_in_group(r, i), &part);
        s.counts[i] = (size_t)part.count;
    }
    if (!direct)
        all.data = s.data;
    if (status == OAR_OK)
        status =
            oar_all_gather_v(r->group, r->in, all, s.counts, &r->opts, NULL);
    at = s.data;
    for (int i = 0; i < n && status == OAR_OK && !direct; i++) {
        oari_part part;
        part_before(r, rank_in_group(r, i), &part);
        oari_copy_common(&part, &r->has, r->element, at, 0, r->out.data, 0);
        at += s.counts[i] * r->element;
    }
    staging_free(&s);
    return status;
}

static oar_status run_reduce_scatter(const running *r)
{
    const oari_cut *op = &r->before->on[r->mesh_dim];
    int n = r->grid->size[r->mesh_dim];
    int direct = in_one_piece(&r->after->on[r->mesh_dim], &r->had.box);
    oar_span all = r->in;
    staging s = { 0 };
    char *at;
    oar_status status =
        staging_make(&s, n, direct ? 0 : r->had.count, r->element);

    at = s.data;
    for (int i = 0; i < n && status == OAR_OK; i++) {
        oari_part part;

        part_after(r, rank_in_group(r, i), &part);
        s.counts[i] = (size_t)part.count;
        if (!direct)
            oari_copy_common(&r->had, &part, r->element, r->in.data, 0, at, 0);
        at += direct ? 0 : s.counts[i] * r->element;
    }
    if (!direct)
        all.data = s.data;
    if (status == OAR_OK)
        status = oar_reduce_scatter_v(r->group, all, s.counts, r->out,
                                      OAR_REDUCE_OP(op->op, 0), &r->opts, NULL);
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
static void pack_pieces(const running *r, unsigned along, int ranks, staging *s)
{
    char *at = s->data;

    for (int i = 0; i < ranks; i++) {
        int other = rank_in_group(r, i);
        oari_part part;

        if (!reaches(r, along, other))
            continue;
        part_after(r, other, &part);
        s->counts[i] = (size_t)oari_copy_common(&r->had, &part, r->element,
                                                r->in.data, 0, at, 1);
        at += s->counts[i] * r->element;
    }
}

/* Counts what this rank gets, or with `unpack` puts it in its place. */
static void take_pieces(const running *r, unsigned along, int ranks, staging *s,
                        int unpack)
{
    const char *at = s->data;

    for (int i = 0; i < ranks; i++) {
        int other = rank_in_group(r, i);
        oari_part part;

        if (!reaches(r, along, other))
            continue;
        part_before(r, other, &part);
        s->counts[i] = (size_t)oari_copy_common(
            &part, &r->has, r->element, at, 1, unpack ? r->out.data : NULL, 0);
        at += s->counts[i] * r->element;
    }
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
    oar_span in = r->in, out = r->out;
    oar_status status =
        staging_make(&send, n, count_sent(r, along, n), r->element);

    if (status == OAR_OK)
        status = staging_make(&take, n, r->has.count, r->element);
    if (status == OAR_OK) {
        pack_pieces(r, along, n, &send);
        take_pieces(r, along, n, &take, 0);
        in.data = send.data;
        in.count = total(send.counts, n);
        out.data = take.data;
        out.count = total(take.counts, n);
        status = oar_all_to_all_v(r->group, in, send.counts, out, take.counts,
                                  &r->opts, NULL);
    }
    if (status == OAR_OK) {
        take_pieces(r, along, n, &take, 1);
        oari_copy_common(&r->had, &r->has, r->element, r->in.data, 0,
                         r->out.data, 0);
    }
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
    switch (step->kind) {
    case OARI_MOVE_CUT:
        oari_copy_common(&r->had, &r->has, r->element, r->in.data, 0,
                         r->out.data, 0);
        return OAR_OK;
    case OARI_MOVE_FILL: return run_fill(r, out);
    case OARI_MOVE_GATHER: return run_gather(r);
    case OARI_MOVE_REDUCE_SCATTER: return run_reduce_scatter(r);
    case OARI_MOVE_EXCHANGE: return run_exchange(r);
    case OARI_MOVE_REDUCE: break;
    }
    cut = &r->before->on[step->mesh_dim];
    return oar_all_reduce_into(r->group, r->in, r->out,
                               OAR_REDUCE_OP(cut->op, 0), &r->opts, NULL);
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
    return oar_empty(NULL, oar_tensor_dtype(in), oari_part_shape(&part));
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
