/* SPDX-License-Identifier: Apache-2.0 */
/* support/raw_backend.h: messages through the table of a backend, without a
 * group, wildcards and probes included. For ranks of a test job. */
#ifndef TESTS_SUPPORT_RAW_BACKEND_H
#define TESTS_SUPPORT_RAW_BACKEND_H

#include "link/link.h"
#include "record/recorder.h"
#include "support/test_job.h"

typedef struct raw_backend {
    const oar_backend_ops *ops;
    const oari_backend *in_tree;
    void *self;
    int rank, ranks;
    oari_recorder *recorder;
    oar_store *store;
} raw_backend;

/* How the backend is opened; zeros are defaults. */
typedef struct raw_backend_setup {
    const char *backend;
    size_t eager_bytes;
    int hosts;        /* ranks are spread over that many, in blocks; 0: one */
    const char *wire; /* OARSONG_WIRE, and a secret; NULL: neither */
} raw_backend_setup;

/* Returns 0, or has printed why not. */
int raw_backend_open(raw_backend *w, const test_job *c, int rank,
                     const raw_backend_setup *setup);
void raw_backend_close(raw_backend *w);

/* Fill in and start a transfer. Return 0, or have printed why not. */
int raw_backend_send(raw_backend *w, oar_transfer *t, int to, uint64_t tag,
                     void *data, size_t bytes);
int raw_backend_recv(raw_backend *w, oar_transfer *t, int from, uint64_t tag,
                     uint64_t any, void *data, size_t bytes);

/* Makes progress until the transfer is done. Returns its status, or
 * OAR_E_TIMEOUT. */
oar_status raw_backend_wait(raw_backend *w, const oar_transfer *t);
/* Makes progress once. Returns 0 if that succeeds. */
int raw_backend_progress(raw_backend *w);
/* Waits for such a message. Returns 0 when it is there. */
int raw_backend_probe(raw_backend *w, int from, uint64_t tag, uint64_t any,
                      oar_envelope *found);
/* A barrier, by messages with a tag of their own. */
int raw_backend_barrier(raw_backend *w);

#endif
