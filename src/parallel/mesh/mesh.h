/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/mesh/mesh.h: the parts of a mesh, for the files of this folder. */
#ifndef OARI_PARALLEL_MESH_MESH_H
#define OARI_PARALLEL_MESH_MESH_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/mesh.h>

enum { OARI_MESH_NAME = 64 }; /* bytes of a name, with the zero at its end */

/* Sizes and names. rank = sum of coordinate[d] * stride[d]. */
typedef struct oari_grid {
    int dims, ranks;
    int size[OAR_MESH_DIMS], stride[OAR_MESH_DIMS];
    char name[OAR_MESH_DIMS][OARI_MESH_NAME];
    double latency_us[OAR_MESH_DIMS], gb_per_s[OAR_MESH_DIMS];
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
    /* What another folder keeps with the mesh, and frees with it. */
    pthread_mutex_t lock;
    void *kept;
    void (*free_kept)(void *kept);
};

/* Fills a grid, once all is checked as oar_mesh_create says. ranks 0: the
 * product of the sizes. name NULL: numbers. */
oar_status oari_grid_make(int ranks, int dims, const int *size,
                          const char *const *name, oari_grid *grid);

/* Sets the figures of dims that are given; what is NULL stays. OAR_E_ARG for
 * one that is not above 0. */
oar_status oari_grid_set_figures(oari_grid *grid, const double *latency_us,
                                 const double *gb_per_s);

/* Returns the rank's coordinate along a dim. */
static inline int oari_grid_coordinate(const oari_grid *grid, int rank, int dim)
{
    return rank / grid->stride[dim] % grid->size[dim];
}

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
