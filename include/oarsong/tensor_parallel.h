/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_parallel.h: one model of which every rank of a group computes a part
 * (tensor parallel), and what such models are made of.
 *
 *     oar_gpt_create(&opts, &gpt);                   the same on all ranks
 *     oar_tp_parallelize_gpt(gpt, group, NULL);      each keeps its part
 *     oar_tape_share(tape, 4096);                    sums are in place
 *     for (...) {
 *         logits = oar_forward(tape, gpt, tokens);   this rank's columns
 *         loss = oar_tp_cross_entropy(tape, logits, target, group, words,
 *                                     NULL);
 *         oar_backward(tape, loss);
 *         oar_optim_step(adam);                      over the rank's parameters
 *         ...
 *     }
 *
 * The group is often a row of a mesh (mesh.h); DDP or FSDP then goes around the
 * model with the row of another dim.
 *
 * A dim of `whole` elements is cut into nearly equal parts, one for each rank
 * in their order, the first ones larger: 5 heads on 2 ranks are 3 and 2, and a
 * rank may have none. All ranks of the group run the same operations in the
 * same order.
 *
 * Threads: one model by one thread at a time, one group by one thread at a
 * time.
 */
#ifndef OARSONG_TENSOR_PARALLEL_H
#define OARSONG_TENSOR_PARALLEL_H

#include <oarsong/group.h>
#include <oarsong/models.h>

OAR_BEGIN_DECLS

/* Returns how many of `whole` elements rank `rank` of `ranks` has, and the
 * first of them in *first (may be NULL). 0 if there is no such rank. */
OAR_API int64_t oar_tp_part(int64_t whole, int rank, int ranks, int64_t *first);

/* ---- moving activations --------------------------------------------------
 * Operations on tensors of floats, recorded as those of ops.h are. Each is a
 * collective of the group, forward, backward or both:
 *
 *                          forward             backward
 *   oar_tp_copy            x itself            all_reduce of the gradient
 *   oar_tp_all_reduce      all_reduce          the gradient itself
 *   oar_tp_all_gather      all_gather          reduce_scatter
 *   oar_tp_reduce_scatter  reduce_scatter      all_gather
 *   oar_tp_gather          all_gather          this rank's part
 *   oar_tp_scatter         this rank's part    all_gather
 *
 * oar_tp_copy and oar_tp_all_gather go before what each rank computes another
 * part of; oar_tp_all_reduce and oar_tp_reduce_scatter after it. What follows
 * oar_tp_gather, and what went before oar_tp_scatter, is the same on all ranks.
 * Sums are over the ranks.
 *
 * dim is cut as above; negative: from the end. Those that gather are told its
 * size in the whole; a part of another size is OAR_E_SHAPE, on this rank only.
 * Results that lie in shared memory (oar_tape_share) are written in place. */
#define oar_tp_copy(tape, x, group) oar_tp_copy_at(OAR_HERE, tape, x, group)
OAR_API oar_tensor *oar_tp_copy_at(const char *file, int line, oar_tape *tape,
                                   oar_tensor *x, oar_group *group);
#define oar_tp_all_reduce(tape, x, group) \
    oar_tp_all_reduce_at(OAR_HERE, tape, x, group)
OAR_API oar_tensor *oar_tp_all_reduce_at(const char *file, int line,
                                         oar_tape *tape, oar_tensor *x,
                                         oar_group *group);
#define oar_tp_all_gather(tape, x, group, dim, whole) \
    oar_tp_all_gather_at(OAR_HERE, tape, x, group, dim, whole)
OAR_API oar_tensor *oar_tp_all_gather_at(const char *file, int line,
                                         oar_tape *tape, oar_tensor *x,
                                         oar_group *group, int dim,
                                         int64_t whole);
#define oar_tp_reduce_scatter(tape, x, group, dim) \
    oar_tp_reduce_scatter_at(OAR_HERE, tape, x, group, dim)
OAR_API oar_tensor *oar_tp_reduce_scatter_at(const char *file, int line,
                                             oar_tape *tape, oar_tensor *x,
                                             oar_group *group, int dim);
#define oar_tp_gather(tape, x, group, dim, whole) \
    oar_tp_gather_at(OAR_HERE, tape, x, group, dim, whole)
OAR_API oar_tensor *oar_tp_gather_at(const char *file, int line, oar_tape *tape,
                                     oar_tensor *x, oar_group *group, int dim,
                                     int64_t whole);
#define oar_tp_scatter(tape, x, group, dim) \
    oar_tp_scatter_at(OAR_HERE, tape, x, group, dim)
OAR_API oar_tensor *oar_tp_scatter_at(const char *file, int line,
                                      oar_tape *tape, oar_tensor *x,
                                      oar_group *group, int dim);

/* ---- models -------------------------------------------------------------- */

/* What becomes of a layer. In "spread by rows" an activation is cut along all
 * its dims but the last, as one: rank r has rows of its own of [n * t, width].
 */
typedef enum oar_tp_style {
    OAR_TP_COLUMN = 1, /* linear: each rank computes some of the results. The
                          input is whole, or, with `sequence`, spread by rows
                          and gathered. Bias and weight are cut along dim 0 */
    OAR_TP_ROW = 2,    /* linear: each rank has some of the inputs, as a column
                          layer gives them. The results are added up, or, with
                          `sequence`, added up and spread by rows; then comes
                          the bias. The weight is cut along dim 1 */
    OAR_TP_HEADS = 3,  /* attention: each rank has some of the heads: its "qkv"
                          is a column layer, its "out" a row layer */
    OAR_TP_VOCABULARY = 4, /* embedding: each rank has some of the rows; results
                              as of OAR_TP_ROW */
    OAR_TP_SEQUENCE = 5,   /* layer norm, RMS norm, dropout, or an embedding of
                              positions: acts on what is spread by rows, with
                              parameters that all ranks have. Only with
                              `sequence` */
    OAR_TP_LAST_NORM = 6   /* layer norm or RMS norm before a product with a
                              table that is cut (a tied head): its result is as
                              the input of OAR_TP_COLUMN */
} oar_tp_style;

typedef struct oar_tp_rule {
    const char *name; /* of modules: dotted, parts may be "*": "blocks.*.up" */
    oar_tp_style style;
    int gather; /* OAR_TP_COLUMN: gives all results to all ranks */
} oar_tp_rule;

typedef struct oar_tp_opts {
    size_t size;
    int sequence; /* between the layers that are cut, activations are spread by
                     rows instead of being the same on all ranks (sequence
                     parallel) */
} oar_tp_opts;
OAR_OPTS_INIT(oar_tp_opts);

/* Makes a module tensor parallel, in its place: every layer that a rule names
 * keeps this rank's part of its parameters, with the bits of the whole, and
 * sends what it has to in forward and backward. Names of parameters stay; the
 * parameters that are cut are other tensors, so make optimizers and wrappers,
 * and add hooks, afterwards: an optimizer that has the old ones is OAR_E_STATE
 * when it steps. Of lazy parameters (oar_lazy) only the part is
 * made. No parameter is sent: every rank has built the same model.
 *
 * All ranks of the group call it, then forward and backward in the same order.
 * Every rank gives the same inputs, and gets the results and gradients that one
 * process would get; of a parameter that is cut, its part. Ranks that give an
 * OAR_TP_VOCABULARY layer other indices get OAR_E_MISMATCH, all of them. With
 * OAR_TP_COLUMN the result is this rank's part. Between a forward and its
 * backward, with `sequence` and oar_recompute, all inputs have the same shape.
 *
 * A layer that is given an input of another width than its style says (a row
 * layer behind no column layer, say) fails in forward, on each rank, with
 * OAR_E_SHAPE, its name and the width.
 *
 * A rank may have no part of a layer. Before anything is changed, and on all
 * ranks: OAR_E_NOT_FOUND: a rule names no module (with the nearest names).
 * OAR_E_ARG: a style does not suit a layer (with its name and class), or two
 * rules name it. OAR_E_STATE: the module, or a part of it, is tensor parallel
 * or wrapped already: first parallelize, then wrap. OAR_E_UNSUPPORTED: a
 * parameter that is cut is used by a layer that no rule names, or is cut in two
 * ways. OAR_E_MISMATCH: ranks with other rules, options, names, shapes or
 * numbers. A rank whose own call is right gets the status of the one that is
 * not.
 *
 * Borrows the module and the group, which must live as long as the module. */
#define oar_tp_parallelize(...) oar_tp_parallelize_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_tp_parallelize_at(const char *file, int line,
                                         oar_module *module, oar_group *group,
                                         int rules, const oar_tp_rule *rule,
                                         const oar_tp_opts *opts);

/* The same with the rules for a model of oar_gpt_create, tied or not: heads,
 * hidden units and vocabulary are cut. Its logits are [n * t, part of the
 * vocabulary]: give them to oar_tp_cross_entropy, or gather them along dim 1
 * (oar_tp_gather). A block sums twice in forward and twice in backward; with
 * `sequence` it gathers twice and reduce-scatters twice, each way, and sums the
 * gradients of its norms and biases. OAR_E_ARG if it is no such model. */
#define oar_tp_parallelize_gpt(gpt, group, opts) \
    oar_tp_parallelize_gpt_at(OAR_HERE, gpt, group, opts)
OAR_API oar_status oar_tp_parallelize_gpt_at(const char *file, int line,
                                             oar_module *gpt, oar_group *group,
                                             const oar_tp_opts *opts);

/* Returns oar_cross_entropy_with of the whole logits [rows, classes], of which
 * each rank has its part of the columns: the same bits on all ranks. Nothing is
 * gathered: two all-reduces of some numbers a row in forward, and none in
 * backward. target and the weights of opts are of all classes, and the same on
 * all ranks: other targets are OAR_E_MISMATCH. Label smoothing is over all
 * classes. A part of another size is OAR_E_SHAPE, on this rank
 * only. opts may be NULL. */
#define oar_tp_cross_entropy(tape, logits, target, group, classes, opts)    \
    oar_tp_cross_entropy_at(OAR_HERE, tape, logits, target, group, classes, \
                            opts)
OAR_API oar_tensor *oar_tp_cross_entropy_at(const char *file, int line,
                                            oar_tape *tape, oar_tensor *logits,
                                            oar_tensor *target,
                                            oar_group *group, int64_t classes,
                                            const oar_cross_entropy_opts *opts);

/* ---- parameters ---------------------------------------------------------- */

/* Returns whether this rank has only a part of the parameter; the module is one
 * that was parallelized, or around it. */
OAR_API int oar_tp_is_cut(const oar_module *module, const oar_tensor *param);

/* Scales all gradients of a parallelized model so that the 2-norm of the whole
 * model's is at most limit; norm (may be NULL) is the one before, the same on
 * all ranks. Every element counts once. The module may be
 * wrapped by DDP or FSDP, whose ranks call it too. Otherwise as
 * oar_clip_grad_norm_over. OAR_E_ARG: nothing in the module is parallel. */
#define oar_tp_clip_grad_norm(module, limit, norm) \
    oar_tp_clip_grad_norm_at(OAR_HERE, module, limit, norm)
OAR_API oar_status oar_tp_clip_grad_norm_at(const char *file, int line,
                                            oar_module *module, double limit,
                                            double *norm);

OAR_END_DECLS

#endif
