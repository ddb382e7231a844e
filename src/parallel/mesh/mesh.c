/* SPDX-License-Identifier: Apache-2.0 */
/* mesh: the arithmetic of a grid of ranks, and the questions about it.
 *
 * Ranks are counted row by row, so a row along a dim is a lowest rank and the
 * dim's stride. Nothing is allocated or sent here.
 */
#include "parallel/mesh/mesh.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* ---- sizes --------------------------------------------------------------- */

typedef struct sizes_text {
    char text[64];
} sizes_text;

static sizes_text write_sizes(int dims, const int *size)
{
    sizes_text t = { "" };
    size_t used = 0;

    for (int d = 0; d < dims; d++)
        used += (size_t)snprintf(t.text + used, sizeof t.text - used, "%s%d",
                                 d > 0 ? " x " : "", size[d]);
    return t;
}

/* Finds the product of the sizes, without the one that is -1. */
static oar_status multiply_sizes(int dims, const int *size, int *open,
                                 int64_t *product)
{
    *open = -1;
    *product = 1;
    for (int d = 0; d < dims; d++) {
        if (size[d] < 1 && size[d] != -1)
            return oari_fail(OAR_E_WORLD,
                             "a mesh of %s ranks: a size is at least 1, or -1 "
                             "for what is left",
                             write_sizes(dims, size).text);
        if (size[d] == -1 && *open >= 0)
            return oari_fail(OAR_E_WORLD,
                             "a mesh of %s ranks: only one size can be what is "
                             "left",
                             write_sizes(dims, size).text);
        if (size[d] == -1)
            *open = d;
        else
            *product *= size[d];
        if (*product > INT_MAX)
            return oari_fail(OAR_E_WORLD,
                             "a mesh of %s ranks: more than %d are impossible",
                             write_sizes(dims, size).text, INT_MAX);
    }
    return OAR_OK;
}

/* Fills in sizes and strides. */
static oar_status set_sizes(oari_grid *grid, int ranks, int dims,
                            const int *size)
{
    int64_t product;
    int open, stride = 1;

    OARI_TRY(multiply_sizes(dims, size, &open, &product));
    if (open >= 0 && ranks == 0)
        return oari_fail(OAR_E_WORLD,
                         "a mesh of %s ranks without a group: how many ranks "
                         "are there",
                         write_sizes(dims, size).text);
    if (ranks == 0)
        ranks = (int)product;
    if (open >= 0 ? ranks % product != 0 : product != ranks)
        return oari_fail(OAR_E_WORLD, "a mesh of %s ranks cannot be made of %d",
                         write_sizes(dims, size).text, ranks);
    grid->dims = dims;
    grid->ranks = ranks;
    for (int d = dims - 1; d >= 0; d--) {
        grid->size[d] = d == open ? ranks / (int)product : size[d];
        grid->stride[d] = stride;
        stride *= grid->size[d];
    }
    return OAR_OK;
}

/* ---- names --------------------------------------------------------------- */

static int find_name(const oari_grid *grid, int dims, const char *name,
                     size_t bytes)
{
    for (int d = 0; d < dims; d++)
        if (strlen(grid->name[d]) == bytes &&
            memcmp(grid->name[d], name, bytes) == 0)
            return d;
    return -1;
}

/* Names a dim; those before it have names already. */
static oar_status set_name(oari_grid *grid, int dim, const char *name)
{
    size_t bytes = name != NULL ? strlen(name) : 0;

    if (name == NULL)
        return oari_fail(OAR_E_ARG, "dim %d of a mesh has no name", dim);
    if (bytes == 0 || bytes >= OARI_MESH_NAME || strchr(name, ',') != NULL)
        return oari_fail(OAR_E_ARG,
                         "dim %d of a mesh is named \"%.80s\": a name has 1 to "
                         "%d bytes and no comma",
                         dim, name, OARI_MESH_NAME - 1);
    if (find_name(grid, dim, name, bytes) >= 0)
        return oari_fail(OAR_E_ARG, "two dims of a mesh are named \"%s\"",
                         name);
    memcpy(grid->name[dim], name, bytes + 1);
    return OAR_OK;
}

oar_status oari_grid_make(int ranks, int dims, const int *size,
                          const char *const *name, oari_grid *grid)
{
    oari_grid made = { 0 };

    if (dims < 1 || dims > OAR_MESH_DIMS)
        return oari_fail(OAR_E_WORLD, "a mesh of %d dims: 1 to %d are possible",
                         dims, OAR_MESH_DIMS);
    if (size == NULL)
        return oari_fail(OAR_E_ARG, "a mesh without sizes");
    OARI_TRY(set_sizes(&made, ranks, dims, size));
    for (int d = 0; d < dims; d++)
        if (name != NULL)
            OARI_TRY(set_name(&made, d, name[d]));
        else
            snprintf(made.name[d], OARI_MESH_NAME, "%d", d);
    for (int d = 0; d < dims; d++) { /* a network, until more is known */
        made.latency_us[d] = 20;
        made.gb_per_s[d] = 1.25;
    }
    *grid = made;
    return OAR_OK;
}

oar_status oari_grid_set_figures(oari_grid *grid, const double *latency_us,
                                 const double *gb_per_s)
{
    for (int d = 0; d < grid->dims; d++) {
        double latency = latency_us != NULL ? latency_us[d] : 1;
        double gb = gb_per_s != NULL ? gb_per_s[d] : 1;

        if (!(latency > 0) || !(gb > 0))
            return oari_fail(OAR_E_ARG,
                             "dim \"%s\" of a mesh has %g us and %g GB/s: "
                             "both must be above 0",
                             grid->name[d], latency, gb);
    }
    for (int d = 0; d < grid->dims; d++) {
        if (latency_us != NULL)
            grid->latency_us[d] = latency_us[d];
        if (gb_per_s != NULL)
            grid->gb_per_s[d] = gb_per_s[d];
    }
    return OAR_OK;
}

/* ---- some of the dims ---------------------------------------------------- */

oar_status oari_grid_find(const oari_grid *grid, const char *names,
                          const char *call, oari_dim_list *list)
{
    oari_dim_list found = { 0 };
    const char *name = names;

    for (;;) {
        size_t bytes = strcspn(name, ",");
        int dim = find_name(grid, grid->dims, name, bytes);

        if (bytes == 0)
            return oari_fail(OAR_E_ARG, "%s: a name in \"%s\" is empty", call,
                             names);
        if (dim < 0)
            return oari_fail(OAR_E_NOT_FOUND,
                             "%s: the mesh has no dim named \"%.*s\"", call,
                             (int)(bytes < 80 ? bytes : 80), name);
        for (int i = 0; i < found.count; i++)
            if (found.dim[i] == dim)
                return oari_fail(OAR_E_ARG, "%s: \"%s\" names dim \"%s\" twice",
                                 call, names, grid->name[dim]);
        found.dim[found.count++] = dim;
        if (name[bytes] == 0)
            break;
        name += bytes + 1;
    }
    *list = found;
    return OAR_OK;
}

oar_status oari_grid_take(const oari_grid *from, const oari_dim_list *list,
                          const char *name, oari_grid *grid)
{
    const char *names[OAR_MESH_DIMS] = { NULL };
    int size[OAR_MESH_DIMS] = { 0 }, ranks = 1;
    double latency[OAR_MESH_DIMS], gb[OAR_MESH_DIMS];

    for (int i = 0; i < list->count; i++) {
        names[i] = from->name[list->dim[i]];
        size[i] = from->size[list->dim[i]];
        ranks *= size[i];
        latency[i] = from->latency_us[list->dim[i]];
        gb[i] = from->gb_per_s[list->dim[i]];
    }
    if (name == NULL)
        OARI_TRY(oari_grid_make(0, list->count, size, names, grid));
    else
        OARI_TRY(oari_grid_make(0, 1, &ranks, &name, grid));
    for (int i = 1; name != NULL && i < list->count; i++) { /* the slowest */
        latency[0] = latency[i] > latency[0] ? latency[i] : latency[0];
        gb[0] = gb[i] < gb[0] ? gb[i] : gb[0];
    }
    return oari_grid_set_figures(grid, latency, gb);
}

int oari_grid_rank_among(const oari_grid *grid, int rank,
                         const oari_dim_list *list)
{
    int among = 0;

    for (int i = 0; i < list->count; i++)
        among = among * grid->size[list->dim[i]] +
                oari_grid_coordinate(grid, rank, list->dim[i]);
    return among;
}

int oari_grid_lowest(const oari_grid *grid, int rank, const oari_dim_list *list)
{
    int lowest = rank;

    for (int i = 0; i < list->count; i++)
        lowest -= oari_grid_coordinate(grid, rank, list->dim[i]) *
                  grid->stride[list->dim[i]];
    return lowest;
}

/* ---- questions ----------------------------------------------------------- */

int oar_mesh_dims(const oar_mesh *mesh)
{
    return mesh != NULL ? mesh->grid.dims : 0;
}

int oar_mesh_size(const oar_mesh *mesh, int dim)
{
    if (mesh == NULL || dim < -1 || dim >= mesh->grid.dims)
        return 0;
    return dim < 0 ? mesh->grid.ranks : mesh->grid.size[dim];
}

const char *oar_mesh_name(const oar_mesh *mesh, int dim)
{
    return mesh != NULL && dim >= 0 && dim < mesh->grid.dims
               ? mesh->grid.name[dim]
               : NULL;
}

int oar_mesh_dim(const oar_mesh *mesh, const char *name)
{
    int dim = mesh != NULL && name != NULL
                  ? find_name(&mesh->grid, mesh->grid.dims, name, strlen(name))
                  : -1;

    if (dim < 0)
        oari_fail(OAR_E_NOT_FOUND, "the mesh has no dim named \"%.80s\"",
                  name != NULL ? name : "");
    return dim;
}

int oar_mesh_rank(const oar_mesh *mesh)
{
    return mesh != NULL ? mesh->rank : -1;
}

static oar_status check_rank(const oar_mesh *mesh, int rank)
{
    if (rank >= 0 && rank < mesh->grid.ranks)
        return OAR_OK;
    return oari_fail(OAR_E_RANK, "rank %d in a mesh of %s ranks", rank,
                     write_sizes(mesh->grid.dims, mesh->grid.size).text);
}

oar_status oar_mesh_coordinates(const oar_mesh *mesh, int rank, int *at)
{
    if (mesh == NULL || at == NULL)
        return oari_fail(OAR_E_ARG, "mesh_coordinates without %s",
                         mesh == NULL ? "a mesh" : "a place for them");
    OARI_TRY(check_rank(mesh, rank));
    for (int d = 0; d < mesh->grid.dims; d++)
        at[d] = oari_grid_coordinate(&mesh->grid, rank, d);
    return OAR_OK;
}

int oar_mesh_rank_at(const oar_mesh *mesh, int count, const int *at)
{
    int rank = 0;

    if (mesh == NULL || at == NULL || count != mesh->grid.dims) {
        oari_fail(OAR_E_ARG,
                  "mesh_rank_at: %d coordinates in a mesh of %d dims",
                  at != NULL ? count : 0, oar_mesh_dims(mesh));
        return -1;
    }
    for (int d = 0; d < count; d++) {
        if (at[d] < 0 || at[d] >= mesh->grid.size[d]) {
            oari_fail(OAR_E_RANK,
                      "mesh_rank_at: coordinate %d along dim \"%s\", which has "
                      "size %d",
                      at[d], mesh->grid.name[d], mesh->grid.size[d]);
            return -1;
        }
        rank += at[d] * mesh->grid.stride[d];
    }
    return rank;
}

/* Writes the ranks of the row that begins with its lowest rank. */
static void write_row(const oar_mesh *mesh, int dim, int lowest, int *ranks)
{
    int stride = dim < 0 ? 1 : mesh->grid.stride[dim];

    for (int i = 0; i < oar_mesh_size(mesh, dim); i++)
        ranks[i] = lowest + i * stride;
}

static oar_status check_row(const oar_mesh *mesh, int dim, const int *ranks,
                            const char *call)
{
    if (mesh == NULL || ranks == NULL)
        return oari_fail(OAR_E_ARG, "%s without %s", call,
                         mesh == NULL ? "a mesh" : "a place for the ranks");
    if (oar_mesh_size(mesh, dim) == 0)
        return oari_fail(OAR_E_ARG, "%s: dim %d of a mesh of %d dims", call,
                         dim, mesh->grid.dims);
    return OAR_OK;
}

oar_status oar_mesh_along(const oar_mesh *mesh, int dim, int rank, int *ranks)
{
    oari_dim_list list = { 1, { dim } };

    OARI_TRY(check_row(mesh, dim, ranks, "mesh_along"));
    OARI_TRY(check_rank(mesh, rank));
    write_row(mesh, dim,
              dim < 0 ? 0 : oari_grid_lowest(&mesh->grid, rank, &list), ranks);
    return OAR_OK;
}

int oar_mesh_rows(const oar_mesh *mesh, int dim)
{
    int size = oar_mesh_size(mesh, dim);

    return size != 0 ? mesh->grid.ranks / size : 0;
}

oar_status oar_mesh_row(const oar_mesh *mesh, int dim, int index, int *ranks)
{
    int stride, lowest;

    OARI_TRY(check_row(mesh, dim, ranks, "mesh_row"));
    if (index < 0 || index >= oar_mesh_rows(mesh, dim))
        return oari_fail(OAR_E_ARG, "mesh_row: row %d of %d along dim %d",
                         index, oar_mesh_rows(mesh, dim), dim);
    stride = dim < 0 ? 1 : mesh->grid.stride[dim];
    lowest =
        index / stride * stride * oar_mesh_size(mesh, dim) + index % stride;
    write_row(mesh, dim, lowest, ranks);
    return OAR_OK;
}
