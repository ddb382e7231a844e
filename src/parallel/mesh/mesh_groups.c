/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_groups: makes a mesh with its groups, and slices of it.
 *
 * A mesh has a group of all its ranks, of which the groups of its rows are
 * split off. Dims with the same rows, and slices, count themselves as users of
 * one group. Before a step that needs the other ranks, and after the last, the
 * ranks tell each other how it went, so that a mesh is made on all or on none.
 */
#include <stdio.h>
#include <string.h>

#include <oarsong/collective.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/mesh/mesh.h"
#include "parallel/reducer/agreement.h"

/* ---- groups that meshes share -------------------------------------------- */

static oari_counted_group *retain_group(oari_counted_group *g)
{
    atomic_fetch_add_explicit(&g->users, 1, memory_order_relaxed);
    return g;
}

static void release_group(oari_counted_group *g)
{
    if (g == NULL ||
        atomic_fetch_sub_explicit(&g->users, 1, memory_order_acq_rel) > 1)
        return;
    oar_group_destroy(g->group);
    oari_free(g);
}

/* Leaves out dims of size 1, which change nothing about a row. */
static oari_dim_list without_ones(const oari_grid *grid,
                                  const oari_dim_list *list)
{
    oari_dim_list kept = { 0 };

    for (int i = 0; i < list->count; i++)
        if (grid->size[list->dim[i]] > 1)
            kept.dim[kept.count++] = list->dim[i];
    return kept;
}

/* Returns the group that a mesh has of the ranks along some dims, in this
 * order; NULL if it has none. */
static oari_counted_group *find_group(const oar_mesh *mesh,
                                      const oari_dim_list *list)
{
    oari_dim_list all = { mesh->grid.dims, { 0, 1, 2, 3 } }, kept;

    kept = without_ones(&mesh->grid, list);
    all = without_ones(&mesh->grid, &all);
    if (kept.count == all.count &&
        memcmp(kept.dim, all.dim, sizeof all.dim) == 0)
        return mesh->all;
    if (kept.count == 1)
        return mesh->row[kept.dim[0]];
    for (int d = 0; kept.count == 0 && d < mesh->grid.dims; d++)
        if (mesh->grid.size[d] == 1 && mesh->row[d] != NULL)
            return mesh->row[d];
    return NULL;
}

/* Gives the group of the ranks that this one reaches along some dims: one that
 * the mesh has, or a new one, for which all ranks call. */
static oar_status share_group(const oar_mesh *mesh, const oari_dim_list *list,
                              oari_counted_group **shared)
{
    oari_counted_group *g = find_group(mesh, list);
    oar_group *all = mesh->all->group;
    oar_status status;

    if (g != NULL) {
        *shared = retain_group(g);
        return OAR_OK;
    }
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return OAR_E_NOMEM;
    atomic_init(&g->users, 1);
    if (without_ones(&mesh->grid, list).count == 0)
        status = oar_group_subset(all, 1, &mesh->rank, &g->group);
    else
        status = oar_group_split(
            all, oari_grid_lowest(&mesh->grid, mesh->rank, list),
            oari_grid_rank_among(&mesh->grid, mesh->rank, list), &g->group);
    if (status == OAR_OK)
        *shared = g;
    else
        oari_free(g);
    return status;
}

static oar_status make_groups(oar_mesh *mesh, oar_group *group)
{
    oar_status status = OAR_OK;

    mesh->all = oari_alloc(1, sizeof *mesh->all);
    if (mesh->all == NULL)
        return OAR_E_NOMEM;
    atomic_init(&mesh->all->users, 1);
    OARI_TRY(oar_group_dup(group, &mesh->all->group));
    for (int d = 0; d < mesh->grid.dims && status == OAR_OK; d++)
        status = share_group(mesh, &(oari_dim_list){ 1, { d } }, &mesh->row[d]);
    if (status != OAR_OK) { /* so that no other rank waits for this one */
        oar_error why = *oar_last_error();
        oar_group_abort(mesh->all->group, why.text);
        oari_fail_with(&why);
    }
    return status;
}

/* ---- making -------------------------------------------------------------- */

oar_mesh *oar_mesh_retain(oar_mesh *mesh)
{
    if (mesh != NULL)
        atomic_fetch_add_explicit(&mesh->users, 1, memory_order_relaxed);
    return mesh;
}

void oar_mesh_release(oar_mesh *mesh)
{
    if (mesh == NULL ||
        atomic_fetch_sub_explicit(&mesh->users, 1, memory_order_acq_rel) > 1)
        return;
    for (int d = 0; d < mesh->grid.dims; d++)
        release_group(mesh->row[d]);
    release_group(mesh->all);
    if (mesh->free_kept != NULL)
        mesh->free_kept(mesh->kept);
    pthread_mutex_destroy(&mesh->lock);
    oari_free(mesh);
}

/* Makes a mesh that has no groups yet. group NULL: it gets none; else all ranks
 * make one or none does. */
static oar_status make_mesh(oar_group *group, const oari_grid *grid, int rank,
                            const char *call, oar_mesh **mesh)
{
    oar_mesh *m = oari_alloc(1, sizeof *m);
    oar_status status = m != NULL ? OAR_OK : OAR_E_NOMEM;

    if (group != NULL)
        status = oari_agree_on_status(group, status, call);
    if (status != OAR_OK) {
        oari_free(m);
        return status;
    }
    atomic_init(&m->users, 1);
    pthread_mutex_init(&m->lock, NULL);
    m->grid = *grid;
    m->rank = rank;
    *mesh = m;
    return OAR_OK;
}

/* Gives the mesh to the caller if all ranks have made theirs; else frees it. */
static oar_status finish_mesh(oar_group *group, oar_status status,
                              const char *call, oar_mesh *made, oar_mesh **mesh)
{
    oar_error why;

    if (group != NULL)
        status = oari_agree_on_status(group, status, call);
    if (status == OAR_OK) {
        *mesh = made;
        return OAR_OK;
    }
    why = *oar_last_error();
    oar_mesh_release(made);
    return oari_fail_with(&why);
}

static oar_status compare_options(oar_group *group, const char *does,
                                  const char *options)
{
    oari_manifest manifest = { .options = options, .does = does };

    return oari_agree(&manifest, group);
}

/* Describes sizes and names as they are given, right or wrong: whether the
 * ranks agree is found out first, so that none fails alone. */
static oar_status compare_sizes(oar_group *group, int dims, const int *size,
                                const char *const *name,
                                const oar_mesh_opts *opts)
{
    char text[600];
    size_t room = sizeof text, used;

    used = (size_t)snprintf(text, room, "%d dims%s", dims,
                            size == NULL ? " without sizes" : "");
    if (dims > OAR_MESH_DIMS)
        dims = OAR_MESH_DIMS;
    for (int d = 0; d < dims && size != NULL; d++)
        used += (size_t)snprintf(text + used, room - used, "%s%d",
                                 d > 0 ? " x " : " of ", size[d]);
    for (int d = 0; d < dims && name != NULL; d++)
        used += (size_t)snprintf(text + used, room - used, "%s%.*s",
                                 d > 0 ? ", " : " named ", OARI_MESH_NAME,
                                 name[d] != NULL ? name[d] : "");
    for (int d = 0; d < dims && opts->latency_us != NULL; d++)
        used +=
            (size_t)snprintf(text + used, room - used, "%s%g",
                             d > 0 ? ", " : " with us ", opts->latency_us[d]);
    for (int d = 0; d < dims && opts->gb_per_s != NULL; d++)
        used +=
            (size_t)snprintf(text + used, room - used, "%s%g",
                             d > 0 ? ", " : " with GB/s ", opts->gb_per_s[d]);
    return compare_options(group, "make a mesh", text);
}

/* Sets the figures of dims whose rows are each on one host. */
static void find_local_dims(oari_grid *grid, const oar_group *group)
{
    for (int d = 0; d < grid->dims; d++) {
        int local = 1;

        for (int r = 0; r < grid->ranks && local; r++)
            local = oar_group_host(group, r) ==
                    oar_group_host(
                        group, oari_grid_lowest(grid, r,
                                                &(oari_dim_list){ 1, { d } }));
        if (local) {
            grid->latency_us[d] = 2;
            grid->gb_per_s[d] = 8;
        }
    }
}

oar_status oar_mesh_create_at(const char *file, int line, oar_group *group,
                              int dims, const int *size,
                              const char *const *name,
                              const oar_mesh_opts *opts, oar_mesh **mesh)
{
    OARI_CALLED_FROM(file, line);
    int ranks, rank;
    oar_mesh_opts o;
    oari_grid grid;
    oar_mesh *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (mesh == NULL)
        return oari_fail(OAR_E_ARG, "mesh_create without a place for the mesh");
    if (group != NULL && oar_batch_is_open(group))
        return oari_fail(OAR_E_STATE, "mesh_create inside a batch");
    if (group != NULL)
        OARI_TRY(compare_sizes(group, dims, size, name, &o));
    ranks = group != NULL ? oar_group_size(group) : o.ranks;
    rank = group != NULL ? oar_group_rank(group) : o.rank;
    if (ranks < 0)
        return oari_fail(OAR_E_WORLD, "a mesh of %d ranks", ranks);
    OARI_TRY(oari_grid_make(ranks, dims, size, name, &grid));
    if (group != NULL)
        find_local_dims(&grid, group);
    OARI_TRY(oari_grid_set_figures(&grid, o.latency_us, o.gb_per_s));
    if (rank < 0 || rank >= grid.ranks)
        return oari_fail(OAR_E_RANK, "rank %d in a mesh of %d", rank,
                         grid.ranks);
    OARI_TRY(make_mesh(group, &grid, rank, "mesh_create", &made));
    return finish_mesh(group, group != NULL ? make_groups(made, group) : OAR_OK,
                       "mesh_create", made, mesh);
}

/* Gives how many hosts there are, and the place of a rank when ranks are
 * counted host by host. */
static oar_status count_hosts(const oar_group *group, int rank, int *hosts,
                              int *place)
{
    int size = oar_group_size(group), last = 0, local;

    for (int r = 0; r < size; r++)
        if (oar_group_host(group, r) > last)
            last = oar_group_host(group, r);
    local = (size + last) / (last + 1); /* rounded up: one host has as many */
    for (int h = 0; h <= last; h++) {
        int here = 0, lowest = -1;

        for (int r = size - 1; r >= 0; r--)
            if (oar_group_host(group, r) == h) {
                here++;
                lowest = r;
            }
        if (here != local)
            return oari_fail(OAR_E_WORLD,
                             "mesh_create_by_host: %d ranks on %d hosts, but "
                             "the host of rank %d has %d of them",
                             size, last + 1, lowest, here);
    }
    *hosts = last + 1;
    *place = oar_group_host(group, rank) * local;
    for (int r = 0; r < rank; r++)
        *place += oar_group_host(group, r) == oar_group_host(group, rank);
    return OAR_OK;
}

oar_status oar_mesh_create_by_host_at(const char *file, int line,
                                      oar_group *group, const char *const *name,
                                      oar_mesh **mesh)
{
    OARI_CALLED_FROM(file, line);
    static const char *const usual[] = { "host", "local" };
    int hosts = 0, place = 0;
    oar_group *ordered = NULL;
    oar_status status;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "mesh_create_by_host without a group");
    if (oar_batch_is_open(group))
        return oari_fail(OAR_E_STATE, "mesh_create_by_host inside a batch");
    OARI_TRY(count_hosts(group, oar_group_rank(group), &hosts, &place));
    OARI_TRY(oar_group_split(group, 0, place, &ordered));
    status = oar_mesh_create_at(file, line, ordered, 2, (int[]){ hosts, -1 },
                                name != NULL ? name : usual, NULL, mesh);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_group_destroy(ordered);
        return oari_fail_with(&why);
    }
    oar_group_destroy(ordered);
    return OAR_OK;
}

/* ---- slices -------------------------------------------------------------- */

static oar_status check_slice(const oar_mesh *mesh, const char *names,
                              oar_mesh **slice, const char *call)
{
    if (mesh == NULL || names == NULL || slice == NULL)
        return oari_fail(OAR_E_ARG, "%s without %s", call,
                         mesh == NULL    ? "a mesh"
                         : names == NULL ? "names"
                                         : "a place for the new mesh");
    if (mesh->all != NULL && oar_batch_is_open(mesh->all->group))
        return oari_fail(OAR_E_STATE, "%s inside a batch", call);
    return OAR_OK;
}

static oar_status share_groups(oar_mesh *slice, const oar_mesh *mesh,
                               const oari_dim_list *list)
{
    OARI_TRY(share_group(mesh, list, &slice->all));
    for (int i = 0; i < slice->grid.dims; i++)
        slice->row[i] = retain_group(
            slice->grid.dims == 1 ? slice->all : mesh->row[list->dim[i]]);
    return OAR_OK;
}

/* flat: the name of all dims as one, or NULL. */
static oar_status slice_mesh(oar_mesh *mesh, const char *names,
                             const char *flat, const char *call,
                             oar_mesh **slice)
{
    oar_group *all = mesh->all != NULL ? mesh->all->group : NULL;
    oar_status status = OAR_OK;
    oari_dim_list list;
    oari_grid grid;
    oar_mesh *made;
    char text[400];
    int rank;

    snprintf(text, sizeof text, "dims %.300s%s%.*s", names,
             flat != NULL ? " as " : "", OARI_MESH_NAME,
             flat != NULL ? flat : "");
    if (all != NULL)
        OARI_TRY(compare_options(
            all, flat != NULL ? "flatten a mesh" : "slice a mesh", text));
    OARI_TRY(oari_grid_find(&mesh->grid, names, call, &list));
    OARI_TRY(oari_grid_take(&mesh->grid, &list, flat, &grid));
    rank = oari_grid_rank_among(&mesh->grid, mesh->rank, &list);
    OARI_TRY(make_mesh(all, &grid, rank, call, &made));
    if (all != NULL)
        status = share_groups(made, mesh, &list);
    return finish_mesh(all, status, call, made, slice);
}

oar_status oar_mesh_slice_at(const char *file, int line, oar_mesh *mesh,
                             const char *names, oar_mesh **slice)
{
    OARI_CALLED_FROM(file, line);
    OARI_TRY(check_slice(mesh, names, slice, "mesh_slice"));
    return slice_mesh(mesh, names, NULL, "mesh_slice", slice);
}

oar_status oar_mesh_flatten_at(const char *file, int line, oar_mesh *mesh,
                               const char *names, const char *name,
                               oar_mesh **flat)
{
    OARI_CALLED_FROM(file, line);
    OARI_TRY(check_slice(mesh, names, flat, "mesh_flatten"));
    return slice_mesh(mesh, names, name != NULL ? name : "", "mesh_flatten",
                      flat);
}

oar_group *oar_mesh_group(const oar_mesh *mesh, int dim)
{
    const oari_counted_group *g;

    if (oar_mesh_size(mesh, dim) == 0)
        return NULL;
    g = dim < 0 ? mesh->all : mesh->row[dim];
    return g != NULL ? g->group : NULL;
}
