/* SPDX-License-Identifier: Apache-2.0 */
/* support/staged_net.h: small nets cut into stages, trained by one process that
 * runs micro-batches one after the other: what a pipeline must equal. */
#ifndef TESTS_SUPPORT_STAGED_NET_H
#define TESTS_SUPPORT_STAGED_NET_H

#include <stdint.h>

#include <oarsong/module.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

/* Linear, GELU, dropout, linear; or convolution, batch norm, ReLU. */
typedef enum staged_kind { STAGED_MLP, STAGED_CNN } staged_kind;

enum { STAGED_MOST = 16 }; /* stages */

typedef struct staged_case {
    staged_kind kind;
    int stages, micro;
    int64_t rows;
    const int64_t *rows_of; /* of each micro-batch; NULL: nearly equal */
    int equal;              /* micro-batches count the same; else by rows */
    int steps;
    int ragged;   /* micro-batches have tensors of their own, of three dims,
                     whose second one differs between them and from step to
                     step */
    int replicas; /* of data parallel training, with SGD instead of AdamW; 0: it
                     is none */
} staged_case;

/* Makes stage number `index`: everywhere the same numbers. NULL on failure. */
oar_module *staged_net_stage(staged_kind kind, int index);
/* Makes the inputs and targets of a step; of replica r in step k of several, it
 * is number k * replicas + r. */
oar_tensor *staged_net_input(const staged_case *c, int step);
oar_tensor *staged_net_target(const staged_case *c, int step);
/* Makes those of one micro-batch, if they are ragged. */
oar_tensor *staged_net_ragged(const staged_case *c, int step, int micro,
                              int target);
oar_tensor *staged_net_loss(void *arg, oar_tape *tape, int micro,
                            oar_tensor *const *out, int targets,
                            oar_tensor *const *target);
oar_optim *staged_net_optim(const staged_case *c, oar_module *stage);
int64_t staged_net_rows(const staged_case *c, int micro);

/* Returns a number for the parameters, gradients and buffers of a stage. */
uint64_t staged_net_hash(const oar_module *stage);

/* Trains in one process, and gives the hash of each stage and the loss of the
 * last step. */
oar_status staged_net_train(const staged_case *c, uint64_t *hash, double *loss);
/* The same, and gives the stages, which the caller owns. */
oar_status staged_net_trained(const staged_case *c, oar_module **stage,
                              double *loss);

#endif
