/* SPDX-License-Identifier: Apache-2.0 */
/* spec: makes specs, each once in its mesh, and answers about them. */
#include "parallel/dtensor/spec.h"

#include <string.h>

#include <oarsong/checkpoint.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

/* ---- the table of a mesh ------------------------------------------------- */

static void free_table(void *kept)
{
    oari_spec_table *t = kept;

    for (int row = 0; row < OARI_SPEC_ROWS; row++) {
        while (t->spec[row] != NULL) {
            oar_spec *next = t->spec[row]->next;
            oari_free(t->spec[row]);
            t->spec[row] = next;
        }
        oari_move_paths_free(t->path[row]);
        oari_decisions_free(t->decision[row]);
    }
    while (t->scopes != NULL) {
        oari_scope *next = t->scopes->next;
        oari_free(t->scopes);
        t->scopes = next;
    }
    while (t->sizes != NULL) {
        oari_sizes *next = t->sizes->next;
        oari_free(t->sizes);
        t->sizes = next;
    }
    oari_free(t);
}

oari_spec_table *oari_spec_table_of(oar_mesh *mesh)
{
    if (mesh->kept == NULL) {
        mesh->kept = oari_alloc(1, sizeof(oari_spec_table));
        mesh->free_kept = mesh->kept != NULL ? free_table : NULL;
    }
    return mesh->kept;
}

static uint64_t mix(uint64_t hash, int64_t number)
{
    hash = (hash ^ (uint64_t)number) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_spec(const oari_grid *grid, oar_shape shape,
                          const oari_cuts *layout)
{
    uint64_t hash = mix(grid->dims, shape.ndim);

    for (int d = 0; d < shape.ndim; d++)
        hash = mix(hash, shape.dim[d]);
    for (int m = 0; m < grid->dims; m++) {
        const oari_cut *cut = &layout->on[m];

        hash = mix(hash, grid->size[m]);
        hash = mix(hash, cut->kind | cut->dim << 4 | (int)cut->op << 8 |
                             layout->order[m] << 12);
        for (int i = 0; cut->sizes != NULL && i < cut->sizes->parts; i++)
            hash = mix(hash, cut->sizes->size[i]);
    }
    return hash;
}

const oar_spec *oari_spec_intern(oar_mesh *mesh, oar_shape shape,
                                 const oari_cuts *layout)
{
    oari_spec_table *table = oari_spec_table_of(mesh);
    uint64_t hash = hash_spec(&mesh->grid, shape, layout);
    oar_spec **row, *spec;

    if (table == NULL)
        return NULL;
    row = &table->spec[hash % OARI_SPEC_ROWS];
    for (spec = *row; spec != NULL; spec = spec->next)
        if (spec->hash == hash && oari_same_shape(spec->shape, shape) &&
            oari_cuts_same(&spec->layout, layout, mesh->grid.dims))
            return spec;
    spec = oari_alloc(1, sizeof *spec);
    if (spec == NULL)
        return NULL;
    spec->mesh = mesh;
    spec->shape = oar_shape_of(shape.ndim, shape.dim);
    spec->layout = *layout;
    spec->hash = hash;
    oari_cuts_part(&mesh->grid, shape, layout, mesh->rank, &spec->held);
    spec->local = oari_part_shape(&spec->held);
    spec->next = *row;
    *row = spec;
    return spec;
}

const oar_spec *oari_spec_with(const oar_spec *spec, const oari_cuts *layout)
{
    const oar_spec *other;

    pthread_mutex_lock(&spec->mesh->lock);
    other = oari_spec_intern(spec->mesh, spec->shape, layout);
    pthread_mutex_unlock(&spec->mesh->lock);
    return other;
}

const oar_spec *oari_spec_replicated(oar_mesh *mesh, oar_shape shape)
{
    oari_cuts layout = { .order = { 0, 1, 2, 3 } };
    const oar_spec *spec;

    pthread_mutex_lock(&mesh->lock);
    spec = oari_spec_intern(mesh, shape, &layout);
    pthread_mutex_unlock(&mesh->lock);
    return spec;
}

const oar_spec *oari_spec_of_grad(const oar_spec *spec)
{
    oari_cuts layout = spec->layout;
    int dims = spec->mesh->grid.dims;

    if (!oari_cuts_has(&layout, dims, OAR_PARTIAL))
        return spec;
    for (int m = 0; m < dims; m++)
        if (layout.on[m].kind == OAR_PARTIAL)
            layout.on[m] = (oari_cut){ .kind = OAR_REPLICATE };
    oari_cuts_sort(&layout, dims);
    return oari_spec_with(spec, &layout);
}

/* ---- checking ------------------------------------------------------------ */

/* Fills the order, or the natural one. */
static oar_status read_order(const oari_grid *grid, const int *order,
                             oari_cuts *layout)
{
    unsigned seen = 0;

    for (int i = 0; i < OAR_MESH_DIMS; i++) {
        int m = order != NULL && i < grid->dims ? order[i] : i;

        if (m < 0 || m >= OAR_MESH_DIMS ||
            (i < grid->dims && m >= grid->dims) || (seen >> m & 1))
            return oari_fail(OAR_E_ARG,
                             "spec_of: the order of cuts must have each of %d "
                             "mesh dims once",
                             grid->dims);
        seen |= 1u << m;
        layout->order[i] = (signed char)m;
    }
    return OAR_OK;
}

static oar_status check_placement(const oari_grid *grid, oar_shape shape,
                                  int mesh_dim, const oar_placement *p)
{
    const char *name = grid->name[mesh_dim];

    if ((int)p->kind < OAR_REPLICATE || p->kind > OAR_FLAT)
        return oari_fail(OAR_E_ARG, "spec_of: no placement has the number %d",
                         (int)p->kind);
    if (p->kind == OAR_SHARD && (p->dim < -shape.ndim || p->dim >= shape.ndim))
        return oari_fail(OAR_E_ARG,
                         "spec_of: shard(%d) along \"%s\" of a tensor %s, "
                         "which has %d dims",
                         p->dim, name, oari_box_shape_text(shape).text,
                         shape.ndim);
    if (p->kind == OAR_PARTIAL && p->op != OAR_REDUCE_OP_SUM &&
        p->op != OAR_REDUCE_OP_PROD && p->op != OAR_REDUCE_OP_MIN &&
        p->op != OAR_REDUCE_OP_MAX)
        return oari_fail(OAR_E_ARG,
                         "spec_of: partial(%s) along \"%s\": it can be sum, "
                         "prod, min or max",
                         oar_reduce_op_name(p->op), name);
    return OAR_OK;
}

oar_status oari_sizes_intern(oar_mesh *mesh, int parts, const int64_t *size,
                             const oari_sizes **sizes)
{
    oari_spec_table *table = oari_spec_table_of(mesh);
    size_t n = (size_t)parts;
    oari_sizes *s;

    if (table == NULL)
        return OAR_E_NOMEM;
    for (s = table->sizes; s != NULL; s = s->next)
        if (s->parts == parts && memcmp(s->size, size, n * sizeof *size) == 0) {
            *sizes = s;
            return OAR_OK;
        }
    s = oari_alloc(1, sizeof *s + (2 * n + 1) * sizeof *size);
    if (s == NULL)
        return OAR_E_NOMEM;
    s->parts = parts;
    s->equal = 1;
    s->size = (int64_t *)(s + 1);
    s->start = s->size + n;
    for (int i = 0; i < parts; i++) {
        if (size[i] < 0 || size[i] > INT64_MAX - s->total) {
            oari_free(s);
            return oari_fail(OAR_E_SHAPE, "spec_of: part %d has %lld rows", i,
                             (long long)size[i]);
        }
        s->size[i] = size[i];
        s->start[i + 1] = s->total += size[i];
        s->largest = size[i] > s->largest ? size[i] : s->largest;
        s->equal &= size[i] == size[0];
    }
    s->next = table->sizes;
    *sizes = table->sizes = s;
    return OAR_OK;
}

/* Whether the sizes are those that parts have without sizes. */
static int nearly_equal(const oari_sizes *sizes)
{
    for (int i = 0; i < sizes->parts; i++)
        if (sizes->size[i] !=
            sizes->total / sizes->parts + (i < sizes->total % sizes->parts))
            return 0;
    return 1;
}

void oari_cuts_drop_plain_sizes(oari_cuts *layout, int dims)
{
    for (int m = 0; m < dims; m++)
        if (layout->on[m].sizes != NULL && nearly_equal(layout->on[m].sizes))
            layout->on[m].sizes = NULL;
}

/* Puts one mesh dim's cut into the layout, which has those before it in the
 * order; the others are replicated. */
static oar_status add_cut(oar_mesh *mesh, oar_shape shape, int mesh_dim,
                          const oar_placement *p, oari_cuts *layout)
{
    const oari_grid *grid = &mesh->grid;
    oari_cut cut = { .kind = p->kind };

    if (p->kind == OAR_SHARD)
        cut.dim = p->dim < 0 ? p->dim + shape.ndim : p->dim;
    if (p->kind == OAR_PARTIAL)
        cut.op = p->op;
    if (oari_cut_splits(&cut) && p->sizes != NULL)
        OARI_TRY(oari_sizes_intern(mesh, grid->size[mesh_dim], p->sizes,
                                   &cut.sizes));
    if (cut.kind == OAR_SHARD && oari_cuts_has(layout, grid->dims, OAR_FLAT))
        return oari_fail(OAR_E_ARG,
                         "spec_of: \"%s\" cuts dim %d after a flat cut: flat "
                         "ones must be last in the order",
                         grid->name[mesh_dim], cut.dim);
    for (int m = 0; m < grid->dims && cut.kind == OAR_PARTIAL; m++)
        if (layout->on[m].kind == OAR_PARTIAL && layout->on[m].op != cut.op)
            return oari_fail(OAR_E_ARG,
                             "spec_of: partial(%s) and partial(%s) in one spec",
                             oar_reduce_op_name(layout->on[m].op),
                             oar_reduce_op_name(cut.op));
    if (!oari_cuts_takes(grid, shape, layout, &cut))
        return oari_fail(OAR_E_SHAPE,
                         "spec_of: the sizes along \"%s\" add up to %lld; they "
                         "must be those of every part of a tensor %s that they "
                         "cut",
                         grid->name[mesh_dim], (long long)cut.sizes->total,
                         oari_box_shape_text(shape).text);
    if (cut.sizes != NULL && nearly_equal(cut.sizes))
        cut.sizes = NULL;
    layout->on[mesh_dim] = cut;
    return OAR_OK;
}

static oar_status make_layout(oar_mesh *mesh, const oar_placement *placement,
                              oar_shape shape, const int *order,
                              oari_cuts *layout)
{
    const oari_grid *grid = &mesh->grid;

    memset(layout, 0, sizeof *layout);
    OARI_TRY(read_order(grid, order, layout));
    for (int m = 0; m < grid->dims; m++)
        OARI_TRY(check_placement(grid, shape, m, &placement[m]));
    for (int i = 0; i < grid->dims; i++) {
        int m = layout->order[i];
        OARI_TRY(add_cut(mesh, shape, m, &placement[m], layout));
    }
    oari_cuts_sort(layout, grid->dims);
    return OAR_OK;
}

const oar_spec *oar_spec_of(oar_mesh *mesh, int count,
                            const oar_placement *placement, oar_shape shape,
                            const oar_spec_opts *opts)
{
    const oar_spec *spec = NULL;
    oar_spec_opts o;
    oari_cuts layout;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    if (mesh == NULL || placement == NULL) {
        oari_fail(OAR_E_ARG, "spec_of without %s",
                  mesh == NULL ? "a mesh" : "placements");
        return NULL;
    }
    if (count != mesh->grid.dims) {
        oari_fail(OAR_E_SHAPE, "spec_of: %d placements for a mesh of %d dims",
                  count, mesh->grid.dims);
        return NULL;
    }
    if (!oari_box_shape_fits(shape, sizeof(int64_t))) {
        oari_fail(OAR_E_SHAPE, "spec_of: no tensor has this shape");
        return NULL;
    }
    pthread_mutex_lock(&mesh->lock);
    if (make_layout(mesh, placement, shape, o.order, &layout) == OAR_OK)
        spec = oari_spec_intern(mesh, shape, &layout);
    pthread_mutex_unlock(&mesh->lock);
    return spec;
}

/* ---- questions ----------------------------------------------------------- */

oar_mesh *oar_spec_mesh(const oar_spec *spec)
{
    return spec != NULL ? spec->mesh : NULL;
}

oar_shape oar_spec_shape(const oar_spec *spec)
{
    return spec != NULL ? spec->shape : OAR_SCALAR;
}

oar_placement oar_spec_placement(const oar_spec *spec, int mesh_dim)
{
    const oari_cut *cut;
    oar_placement p = { .kind = OAR_REPLICATE };

    if (spec == NULL || mesh_dim < 0 || mesh_dim >= spec->mesh->grid.dims)
        return p;
    cut = &spec->layout.on[mesh_dim];
    p.kind = cut->kind;
    p.dim = cut->dim;
    p.op = cut->op;
    p.sizes = cut->sizes != NULL ? cut->sizes->size : NULL;
    return p;
}

oar_shape oar_spec_local_shape(const oar_spec *spec, int rank)
{
    oari_part part;

    if (spec == NULL || rank < 0 || rank >= spec->mesh->grid.ranks)
        return OAR_SCALAR;
    oari_cuts_part(&spec->mesh->grid, spec->shape, &spec->layout, rank, &part);
    return oari_part_shape(&part);
}

/* Finds where elements of a box begin in the whole, if a range of them is one
 * there: the box is whole in every dim after the first that has more than one
 * index. */
static int first_in_whole(const oari_box *box, oar_shape whole, int64_t *first)
{
    int64_t stride = 1, at = 0;
    int cut = 0;

    for (int d = whole.ndim - 1; d >= 0; d--) {
        if (cut && box->extent[d] != 1)
            return 0;
        cut |= box->extent[d] != whole.dim[d];
        at += box->offset[d] * stride;
        stride *= whole.dim[d];
    }
    *first = at;
    return 1;
}

oar_status oar_spec_place_of(const oar_spec *spec, int rank, oar_place *place,
                             oar_shape *part)
{
    oar_place p = { .size = sizeof p };
    oari_part held;

    if (spec == NULL || place == NULL || part == NULL)
        return oari_fail(OAR_E_ARG, "spec_place_of without %s",
                         spec == NULL ? "a spec" : "a place for the result");
    if (rank < 0 || rank >= spec->mesh->grid.ranks)
        return oari_fail(OAR_E_RANK, "spec_place_of: rank %d of %d", rank,
                         spec->mesh->grid.ranks);
    if (oari_cuts_has(&spec->layout, spec->mesh->grid.dims, OAR_PARTIAL))
        return oari_fail(OAR_E_STATE,
                         "spec_place_of: a rank holds no part of a partial "
                         "tensor: redistribute it first");
    oari_cuts_part(&spec->mesh->grid, spec->shape, &spec->layout, rank, &held);
    p.whole = spec->shape;
    if (!held.flat) {
        memcpy(p.offset, held.box.offset, sizeof p.offset);
    } else if (first_in_whole(&held.box, spec->shape, &p.first)) {
        p.flat = 1;
        p.first += held.first;
    } else {
        return oari_fail(OAR_E_UNSUPPORTED,
                         "spec_place_of: rank %d has elements of the box %s, "
                         "which are no range of the whole %s",
                         rank, oari_box_text(&held.box).text,
                         oari_box_shape_text(spec->shape).text);
    }
    OARI_TRY(oari_struct_give(place, &p, sizeof p, "place"));
    *part = oar_spec_local_shape(spec, rank);
    return OAR_OK;
}
