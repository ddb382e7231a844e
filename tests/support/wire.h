/* SPDX-License-Identifier: Apache-2.0 */
/* support/wire.h: messages of a backend without a group around it: what its
 * table promises, wildcards and probes included. For ranks of a crew. */
#ifndef TESTS_SUPPORT_WIRE_H
#define TESTS_SUPPORT_WIRE_H

#include "link/link.h"
#include "record/recorder.h"
#include "support/crew.h"

typedef struct wire {
    const oar_backend_ops *ops;
    const oari_backend *in_tree;
    void *self;
    int rank, ranks;
    oari_recorder *recorder;
    oar_store *store;
} wire;

/* How it is opened; zeros are defaults. */
typedef struct wire_setup {
    const char *backend;
    size_t eager_bytes;
    int hosts;        /* ranks are spread over that many, in blocks; 0: one */
    const char *wire; /* OARSONG_WIRE, and a secret; NULL: neither */
} wire_setup;

/* 0 when it worked; else it has said why. */
int wire_open(wire *w, const crew *c, int rank, const wire_setup *setup);
void wire_close(wire *w);

/* Fills in and starts a transfer. */
int wire_send(wire *w, oar_transfer *t, int to, uint64_t tag, void *data,
              size_t bytes);
int wire_recv(wire *w, oar_transfer *t, int from, uint64_t tag, uint64_t any,
              void *data, size_t bytes);

/* Makes progress until it is done; the status, or OAR_E_TIMEOUT. */
oar_status wire_wait(wire *w, const oar_transfer *t);
/* One round. 0 when it went well. */
int wire_turn(wire *w);
/* Waits until such a message is there; 0 when it came. */
int wire_probe(wire *w, int from, uint64_t tag, uint64_t any,
               oar_envelope *found);
/* Nobody leaves before all have come here (by messages with a tag of their
 * own). */
int wire_meet(wire *w);

#endif
