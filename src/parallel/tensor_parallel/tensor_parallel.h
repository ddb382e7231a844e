/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/tensor_parallel/tensor_parallel.h: the inside of tensor parallel
 * models.
 *
 *   tp_move.c         moves along a dim over the ranks of a group
 *   tp_ops.c          the differentiable operations made of them
 *   tp_loss.c         cross entropy over classes that are cut
 *   tp_cut.c          parts of parameters
 *   tp_layers.c       the layers: column, row, vocabulary, norm
 *   tp_rows.c         activations that are spread by rows between layers
 *   tp_plan.c         which layers the rules name, and whether they can
 *   tp_parallelize.c  from a plan to layers
 *   tp_grads.c        questions about the parameters of a model, clipping
 */
#ifndef OARI_PARALLEL_TENSOR_PARALLEL_TENSOR_PARALLEL_H
#define OARI_PARALLEL_TENSOR_PARALLEL_TENSOR_PARALLEL_H

#include <oarsong/tensor_parallel.h>

/* ---- tp_move.c ----------------------------------------------------------- */

/* How a whole is cut: `outer` runs of `size` slices of `inner` elements, of
 * which every rank has a range in each run. */
typedef struct oari_tp_layout {
    oar_group *group;
    int64_t outer, size, inner;
    uint64_t key; /* of what is moved, compared between ranks; 0: of nothing */
} oari_tp_layout;

/* Returns the layout of a whole that is cut along dim. */
oari_tp_layout oari_tp_layout_along(oar_group *group, oar_shape whole, int dim);

/* Returns the layout, given the shapes of a whole and of this rank's part. */
oari_tp_layout oari_tp_layout_of(oar_group *group, oar_shape whole,
                                 oar_shape part);

/* Move between contiguous tensors that are apart, of one dtype: all parts into
 * the whole on every rank, the sum of the ranks' wholes into each rank's part,
 * and, without the others, the own part out of the whole. */
oar_status oari_tp_move_gather(const oari_tp_layout *layout,
                               const oar_tensor *part, oar_tensor *whole);
oar_status oari_tp_move_reduce_scatter(const oari_tp_layout *layout,
                                       const oar_tensor *whole,
                                       oar_tensor *part);
oar_status oari_tp_move_own(const oari_tp_layout *layout,
                            const oar_tensor *whole, oar_tensor *part);
oar_status oari_tp_move_all_reduce(oar_group *group, uint64_t key,
                                   const oar_tensor *from, oar_tensor *to);

/* Returns a number that tensors of other numbers hardly have, so that ranks can
 * compare what they were given in a call that they make anyway; 0 if the
 * numbers do not lie in one piece. */
uint64_t oari_tp_key(const oar_tensor *t);

/* Sums x over the group in its own memory, which nothing else reads, and
 * records that. */
oar_tensor *oari_tp_all_reduce_own(oar_tape *tape, oar_tensor *x,
                                   oar_group *group, uint64_t key);
/* oar_tp_reduce_scatter along dim 0 with a key. */
oar_tensor *oari_tp_reduce_scatter_rows(oar_tape *tape, oar_tensor *x,
                                        oar_group *group, uint64_t key);

/* ---- tp_loss_gpu.c ------------------------------------------------------- */

/* oar_tp_cross_entropy of logits on a GPU. part: which classes these are. */
oar_tensor *oari_tp_cross_entropy_on(oar_tape *tape, oar_tensor *logits,
                                     oar_tensor *target,
                                     const oar_cross_entropy_opts *opts,
                                     const oar_cross_entropy_merge *part,
                                     oar_group *group);

/* ---- tp_cut.c ------------------------------------------------------------ */

enum { OARI_TP_RANGES = 3 }; /* q, k and v have one each */

/* Which part of a whole parameter a rank has: ranges of one dim, one after the
 * other. */
typedef struct oari_tp_cut {
    int ranges; /* 0: all of it */
    int dim;
    oar_shape whole;
    int64_t first[OARI_TP_RANGES], count[OARI_TP_RANGES];
} oari_tp_cut;

/* Returns the cut of a rank's nearly equal part. */
oari_tp_cut oari_tp_cut_part(oar_shape whole, int dim, int rank, int ranks);
int oari_tp_cut_equal(const oari_tp_cut *a, const oari_tp_cut *b);

/* Gives a new tensor with the part's numbers; of an uncut one the tensor
 * itself. The caller owns a reference. */
oar_status oari_tp_cut_make(const oari_tp_cut *cut, oar_tensor *whole,
                            oar_tensor **part);

/* A box of a parameter that lies in one piece in this rank's part: elements
 * first, .. of the part are those from `offset` on, of this extent, in the
 * whole. */
typedef struct oari_tp_box {
    int64_t first;
    int64_t offset[OAR_MAX_DIMS];
    oar_shape extent;
} oari_tp_box;

/* Gives box number *next of elements first .. first+count-1 of a part, row by
 * row, and moves *next on; returns 0 when there is none left. *next is 0 at
 * first. */
int oari_tp_next_box(const oari_tp_cut *cut, int64_t first, int64_t count,
                     int64_t *next, oari_tp_box *box);

/* ---- tp_rows.c ----------------------------------------------------------- */

/* What the layers of one model share; counted by them. */
typedef struct oari_tp {
    oar_group *group; /* borrowed */
    int rank, ranks;
    int sequence;
    int users;
    oar_shape lead; /* dims but the last of what was spread by rows last */
} oari_tp;

oari_tp *oari_tp_retain(oari_tp *tp);
void oari_tp_release(void *tp); /* NULL is fine */

/* Returns x for all ranks' use, each of another part: with `sequence` it is
 * gathered from rows. */
oar_tensor *oari_tp_enter(oari_tp *tp, oar_tape *tape, oar_tensor *x);
/* Returns the sum of all ranks' x, an operation's result that nothing else
 * reads; with `sequence` spread by rows. */
oar_tensor *oari_tp_leave(oari_tp *tp, oar_tape *tape, oar_tensor *x,
                          uint64_t key);

/* Returns how many rows this rank has, and gives the first of all and how many
 * there are (either may be NULL). */
int64_t oari_tp_rows(const oari_tp *tp, int64_t *first, int64_t *all);

/* For oar_dropout_place_by: where rows of this rank lie. */
oar_status oari_tp_place_rows(void *tp, const oar_tensor *x,
                              oar_part_place *place);

/* ---- tp_layers.c --------------------------------------------------------- */

enum { OARI_TP_PARAMS = 2 }; /* weight, bias */

/* The private data of every layer. */
typedef struct oari_tp_layer {
    oari_tp *tp; /* a reference */
    char *name;  /* in the model, for messages */
    oar_tp_style style;
    int gather;
    oari_tp_cut cut[OARI_TP_PARAMS]; /* of its parameters, in order */
    double eps;
    int is_rms;
    oar_embedding_opts table;
} oari_tp_layer;

/* Returns the inside of a tensor parallel layer; NULL for any other module. */
oari_tp_layer *oari_tp_layer_of(const oar_module *module);

/* Makes the layer of this style, without parameters, for a plain one: linear,
 * embedding or norm. Takes the numbers of layer but for tp, which it counts,
 * and the name, which it copies. */
oar_status oari_tp_layer_create(oari_tp *tp, const oar_module *plain,
                                const char *name, const oari_tp_layer *layer,
                                oar_module **made);

/* ---- tp_grads.c ---------------------------------------------------------- */

/* Returns how a parameter below the module is cut; NULL: it is not. */
const oari_tp_cut *oari_tp_cut_of(const oar_module *module,
                                  const oar_tensor *param);

/* Returns this rank's number among those that share a tensor parallel model; 0
 * for any other model. */
int oari_tp_rank(const oar_module *module);

#endif
