/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/mesh/mesh.h: the parts of a mesh, for the files of this folder. */
#ifndef OARI_PARALLEL_MESH_MESH_H
#define OARI_PARALLEL_MESH_MESH_H

#include <stdatomic.h>

#include <oarsong/mesh.h>

enum { OARI_MESH_NAME = 64 }; /* bytes of a name, with the zero at its end */

/* Sizes and names. rank = sum of coordinate[d] * stride[d]. */
typedef struct oari_grid {
    int dims, ranks;
    int size[OAR_MESH_DIMS], stride[OAR_MESH_DIMS];
    char name[OAR_MESH_DIMS][OARI_MESH_NAME];
} oari_grid;

/* Some dims of a grid, in any order. */
typedef struct oari_dim_list {
    int count, dim[OAR_MESH_DIMS];
} oari_dim_list;

/* A group that several meshes have. */
typedef struct oari_counted_group {
    _Atomic int users;
    oar_group *group;
} oari_counted_group;

struct oar_mesh {
    _Atomic int users;
    oari_grid grid;
    int rank;
    oari_counted_group *all, *row[OAR_MESH_DIMS]; /* NULL: without groups */
};

/* Fills a grid, once all is checked as oar_mesh_create says. ranks 0: the
 * product of the sizes. name NULL: numbers. */
oar_status oari_grid_make(int ranks, int dims, const int *size,
                          const char *const *name, oari_grid *grid);

/* Finds the dims of a list of names with commas between them. call is for
 * messages. */
oar_status oari_grid_find(const oari_grid *grid, const char *names,
                          const char *call, oari_dim_list *list);

/* Makes a grid of some dims of another; with a name, of all of them as one. */
oar_status oari_grid_take(const oari_grid *from, const oari_dim_list *list,
                          const char *name, oari_grid *grid);

/* Returns the number of a rank among those that it reaches along some dims. */
int oari_grid_rank_among(const oari_grid *grid, int rank,
                         const oari_dim_list *list);

/* Returns the lowest rank that a rank reaches along some dims. */
int oari_grid_lowest(const oari_grid *grid, int rank,
                     const oari_dim_list *list);

#endif
