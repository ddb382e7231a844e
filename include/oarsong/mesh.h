/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.h: ranks as a grid with named dims, in which every row is a group.
 *
 *     oar_mesh *mesh;
 *     oar_mesh_create(world, 2, (int[]){ 2, -1 },
 *                     (const char *[]){ "dp", "tp" }, NULL, &mesh);
 *     oar_all_reduce(oar_mesh_group(mesh, 1), ...);   over this rank's tp row
 *
 * Ranks are counted row by row: the last dim varies fastest. With 2 x 3 ranks:
 *
 *               tp 0  1  2
 *     dp 0         0  1  2       rank 4 is at (1, 1). Its row along tp is
 *     dp 1         3  4  5       3 4 5, and its row along dp is 1 4.
 *
 * Where a function takes a dim, -1 stands for all dims as one: the only row
 * along it has all ranks.
 *
 * Threads: any thread may ask about a mesh, retain it and release it. Create,
 * slice and flatten are collectives: all ranks call them in the same order.
 */
#ifndef OARSONG_MESH_H
#define OARSONG_MESH_H

#include <oarsong/group.h>

OAR_BEGIN_DECLS

typedef struct oar_mesh oar_mesh;

enum { OAR_MESH_DIMS = 4 }; /* at most */

typedef struct oar_mesh_opts {
    size_t size;
    /* For a mesh without a group. */
    int ranks; /* how many there are; 0: the product of the sizes */
    int rank;  /* the one that oar_mesh_rank returns, and that slices are of */
    /* What a message along each dim costs, by which moves of DTensors are
     * planned (dtensor.h): one number above 0 for each dim, the same on all
     * ranks. NULL: 2 us and 8 GB/s along a dim whose rows are on one host each,
     * else, and without a group, 20 us and 1.25 GB/s. */
    const double *latency_us, *gb_per_s;
} oar_mesh_opts;
OAR_OPTS_INIT(oar_mesh_opts);

/* Arranges the ranks of a group in a grid of 1 to OAR_MESH_DIMS dims, and makes
 * a group for each row and one for all ranks. One of the sizes may be -1: what
 * is left. name has a name for each dim, of 1 to 63 bytes and without a comma;
 * they are copied. NULL: "0", "1" and so on.
 *
 * All ranks call it, with the same sizes, names and figures, which are
 * compared: if any rank has others, all get OAR_E_MISMATCH. OAR_E_WORLD: sizes
 * that do not give the group's size. OAR_E_ARG: a name that is missing, too
 * long, empty, has a comma or occurs twice; a latency or bandwidth that is not
 * above 0. OAR_E_STATE inside a batch on the group. If one rank fails, for want
 * of memory say, all do, at the latest when their time is up, and the group may
 * have ended (oar_group_fault). On failure nothing is left. Borrows the group
 * for the call only.
 *
 * group NULL: a mesh without groups, to count and plan with. Nothing is sent.
 * OAR_E_RANK if opts name a rank that is not there. opts may be NULL. */
#define oar_mesh_create(...) oar_mesh_create_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_mesh_create_at(const char *file, int line,
                                      oar_group *group, int dims,
                                      const int *size, const char *const *name,
                                      const oar_mesh_opts *opts,
                                      oar_mesh **mesh);

/* Arranges the ranks of a group by the hosts that they are on: dim 0 goes over
 * the hosts, dim 1 over the ranks of a host. name has two names; NULL: "host"
 * and "local". The ranks of a mesh are counted row by row, so one whose host
 * does not have consecutive ranks has another number in the mesh than in the
 * group. Otherwise as oar_mesh_create; OAR_E_WORLD names a host that has fewer
 * ranks than another. */
#define oar_mesh_create_by_host(group, name, mesh) \
    oar_mesh_create_by_host_at(OAR_HERE, group, name, mesh)
OAR_API oar_status oar_mesh_create_by_host_at(const char *file, int line,
                                              oar_group *group,
                                              const char *const *name,
                                              oar_mesh **mesh);

/* Counts a user more, and returns the mesh. NULL is fine. */
OAR_API oar_mesh *oar_mesh_retain(oar_mesh *mesh);
/* Counts a user less; the last one frees the mesh, and ends its groups unless
 * another mesh has them, too. Needs no other rank. NULL is fine. */
OAR_API void oar_mesh_release(oar_mesh *mesh);

/* ---- sizes and names ----------------------------------------------------- */

OAR_API int oar_mesh_dims(const oar_mesh *mesh); /* 0 for NULL */
/* Returns how many ranks a row along dim has; -1: all ranks. 0 if there is no
 * such dim. */
OAR_API int oar_mesh_size(const oar_mesh *mesh, int dim);
/* Returns the name of a dim, borrowed; NULL if there is no such dim. */
OAR_API const char *oar_mesh_name(const oar_mesh *mesh, int dim);
/* Returns the dim of that name; -1, with OAR_E_NOT_FOUND in oar_last_error, if
 * there is none. */
OAR_API int oar_mesh_dim(const oar_mesh *mesh, const char *name);

/* ---- where ranks are ----------------------------------------------------- */

/* Returns this rank's number in the mesh; -1 for NULL. */
OAR_API int oar_mesh_rank(const oar_mesh *mesh);
/* Writes where a rank is: one number for each dim. OAR_E_RANK if it is not in
 * the mesh. */
OAR_API oar_status oar_mesh_coordinates(const oar_mesh *mesh, int rank,
                                        int *at);
/* Returns the rank at these coordinates, `count` of them. -1 on failure, with
 * OAR_E_ARG in oar_last_error if count is not the number of dims, OAR_E_RANK if
 * a coordinate is outside. */
OAR_API int oar_mesh_rank_at(const oar_mesh *mesh, int count, const int *at);

/* Writes the ranks of the row along dim that a rank is in, in the order of
 * their coordinates, which is ascending. ranks has room for oar_mesh_size(mesh,
 * dim). OAR_E_ARG if there is no such dim, OAR_E_RANK if there is no such rank.
 */
OAR_API oar_status oar_mesh_along(const oar_mesh *mesh, int dim, int rank,
                                  int *ranks);
/* Returns how many rows there are along a dim; 0 if there is no such dim. */
OAR_API int oar_mesh_rows(const oar_mesh *mesh, int dim);
/* Writes the ranks of a row by its number: rows along a dim are numbered from 0
 * in the order of their lowest ranks. OAR_E_ARG if there is no such row. */
OAR_API oar_status oar_mesh_row(const oar_mesh *mesh, int dim, int index,
                                int *ranks);

/* ---- groups -------------------------------------------------------------- */

/* Returns the group of this rank's row along dim, or (-1) of all ranks of the
 * mesh. A rank's number in it is its coordinate, or its rank in the mesh. Dims
 * with the same rows have the same group. Borrowed: it lives as long as the
 * mesh. NULL if there is no such dim, or the mesh has no groups. */
OAR_API oar_group *oar_mesh_group(const oar_mesh *mesh, int dim);

/* ---- meshes of a mesh ---------------------------------------------------- */

/* Gives some dims, named in a list such as "dp,tp", as a mesh of their own: on
 * each rank, of the ranks that it reaches along those dims. Its dims are in the
 * order of the list, in which its ranks are counted, too.
 *
 * All ranks of the mesh call it with the same list, which is compared
 * (OAR_E_MISMATCH). OAR_E_NOT_FOUND: the mesh has no dim of that name.
 * OAR_E_ARG: a name is empty or occurs twice. OAR_E_STATE inside a batch on the
 * mesh's group. The groups of rows are those of the mesh; only for several, but
 * not all, of its dims or for another order is one group made: that of all
 * ranks of the slice. If one rank fails, all do, as in oar_mesh_create. The
 * slice does not need the mesh to live on. */
#define oar_mesh_slice(mesh, names, slice) \
    oar_mesh_slice_at(OAR_HERE, mesh, names, slice)
OAR_API oar_status oar_mesh_slice_at(const char *file, int line, oar_mesh *mesh,
                                     const char *names, oar_mesh **slice);

/* The same with those dims as one, of this name: a mesh of one dim, in which
 * the last dim of the list varies fastest. */
#define oar_mesh_flatten(mesh, names, name, flat) \
    oar_mesh_flatten_at(OAR_HERE, mesh, names, name, flat)
OAR_API oar_status oar_mesh_flatten_at(const char *file, int line,
                                       oar_mesh *mesh, const char *names,
                                       const char *name, oar_mesh **flat);

OAR_END_DECLS

#endif
