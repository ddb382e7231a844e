/* SPDX-License-Identifier: Apache-2.0 */
/* zero.h: an optimizer whose state is spread over the ranks (ZeRO, stage 1).
 *
 * Every rank steps its own piece of the parameters and keeps state only for
 * that: 1/n of it. The gradients of a module wrapped with `sharded` are
 * reduce-scattered instead of all-reduced: after backward each rank has the
 * mean of its pieces only. Step, and all ranks have all parameters again. The
 * numbers are those of the same optimizer on every rank, as long as it treats
 * every number by itself, as SGD, Adam and AdamW do.
 */
#ifndef OARSONG_ZERO_H
#define OARSONG_ZERO_H

#include <oarsong/ddp.h>

OAR_BEGIN_DECLS

typedef struct oar_zero oar_zero;

/* Makes the optimizer over this rank's pieces: flat tensors that share memory
 * with parts of the parameters. name[i] is the parameter that piece i is of. */
typedef oar_status (*oar_zero_make_fn)(void *arg, int count,
                                       oar_tensor *const *piece,
                                       const char *const *name,
                                       oar_optim **optim);

/* wrapped: by oar_ddp_wrap with `sharded`, else OAR_E_STATE. Moves the
 * parameters to memory in which they can be gathered in place: tapes that have
 * recorded them before must be reset, and two parameters that are views of one
 * memory are OAR_E_UNSUPPORTED. Keeps a reference to wrapped. */
OAR_API oar_status oar_zero_create(oar_module *wrapped, oar_zero_make_fn make,
                                   void *arg, oar_zero **zero);
OAR_API void oar_zero_destroy(oar_zero *zero); /* NULL is fine */

/* Steps this rank's pieces, and brings all parameters together. All ranks. */
#define oar_zero_step(zero) oar_zero_step_at(OAR_HERE, zero)
OAR_API oar_status oar_zero_step_at(const char *file, int line, oar_zero *zero);
OAR_API void oar_zero_zero_grad(oar_zero *zero);

/* The optimizer over this rank's pieces, borrowed: for its learning rate, its
 * state, and hooks before a step (a hook that fails on one rank only leaves the
 * others waiting for it). */
OAR_API oar_optim *oar_zero_optim(const oar_zero *zero);

/* A piece: elements first .. first + count - 1 of a parameter, row by row. The
 * pieces of all ranks together are the parameters that are trained, each
 * element once. Borrowed until the optimizer is destroyed. */
typedef struct oar_zero_piece {
    size_t size;
    oar_tensor *param; /* all of it */
    int64_t first, count;
    oar_tensor *view; /* [count], in the memory of param */
    int index;        /* among the parameters of oar_zero_optim, for its state
                         (oar_optim_state); -1: it leaves this piece out */
} oar_zero_piece;
OAR_OPTS_INIT(oar_zero_piece);

OAR_API int oar_zero_pieces(const oar_zero *zero); /* of this rank */
/* OAR_E_ARG out of range. */
OAR_API oar_status oar_zero_piece_at(const oar_zero *zero, int index,
                                     oar_zero_piece *piece);

OAR_END_DECLS

#endif
