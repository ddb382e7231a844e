/* SPDX-License-Identifier: Apache-2.0 */
/* support/trained_net.h: a small data-parallel run with all that a checkpoint
 * has to keep: AdamW, over parameters or shards, dropout, batch norm, a loader.
 */
#ifndef TESTS_SUPPORT_TRAINED_NET_H
#define TESTS_SUPPORT_TRAINED_NET_H

#include <oarsong/checkpoint.h>

typedef struct trained_net {
    oar_dataset *data;
    oar_loader *loader;
    oar_module *net; /* wrapped */
    oar_optim *optim;
    oar_state *state;
    int64_t step;
} trained_net;

/* Makes the run of a rank, at step 0; its loader is not started. stage: 1 or 2,
 * what FSDP spreads; 0: nothing, by DDP. */
oar_status trained_net_make(trained_net *t, oar_group *g, int stage,
                            int64_t width, int64_t hidden);
void trained_net_drop(trained_net *t);

/* Trains to a step; epochs follow each other. */
oar_status trained_net_train(trained_net *t, int64_t end);

/* Returns whether two runs have the same parameters, bit for bit. All ranks. */
int trained_net_same_params(const trained_net *a, const trained_net *b);

#endif
