/* SPDX-License-Identifier: Apache-2.0 */
#include "support/raw_backend.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/group/group.h"
#include "backends/registry/registry.h"

enum { WIRE_TIMEOUT_MS = 15000 };
#define BARRIER_TAG (UINT64_C(0x77) << 48)

static int complain(const raw_backend *w, const char *what)
{
    fprintf(stderr, "rank %d of %d over %s: %s: %s: %s\n", w->rank, w->ranks,
            w->ops != NULL ? w->ops->name : "?", what,
            oar_status_name(oar_last_error()->status), oar_last_error_text());
    return 1;
}

static void set_wire(const raw_backend_setup *setup)
{
    static const char secret[] = "00112233445566778899aabbccddeeff"
                                 "ffeeddccbbaa99887766554433221100";

    if (setup->wire == NULL)
        return;
    setenv("OARSONG_WIRE", setup->wire, 1);
    setenv("OARSONG_SECRET", secret, 1);
}

int raw_backend_open(raw_backend *w, const test_job *c, int rank,
                     const raw_backend_setup *setup)
{
    size_t eager = setup->eager_bytes != 0 ? setup->eager_bytes : 64 << 10;
    oari_open with = { .env = { .size = sizeof with.env,
                                .rank = rank,
                                .ranks = c->ranks,
                                .name = "wire",
                                .timeout_ms = WIRE_TIMEOUT_MS },
                       .small_bytes = 512,
                       .stage_bytes = 4096,
                       .eager_bytes = eager,
                       .spin_us = -1,
                       .rendezvous_ms = WIRE_TIMEOUT_MS };
    char host[16];

    *w = (raw_backend){ .rank = rank, .ranks = c->ranks };
    set_wire(setup);
    if (setup->hosts > 0) {
        snprintf(host, sizeof host, "%d", rank * setup->hosts / c->ranks);
        setenv("OARSONG_HOST_ID", host, 1);
    }
    if (oari_backend_find(setup->backend, c->ranks, &w->ops) != OAR_OK ||
        test_job_store(c, &w->store) != OAR_OK ||
        oari_recorder_make(&(oari_ring_owner){ .group = "wire",
                                               .rank = rank,
                                               .ranks = c->ranks },
                           &w->recorder) != OAR_OK)
        return complain(w, "open");
    w->self = calloc(1, w->ops->self_size);
    w->in_tree = oari_backend_in_tree(w->ops);
    with.recorder = w->recorder;
    with.env.store = w->store;
    if (oari_backend_open(w->ops, w->self, &with) != OAR_OK)
        return complain(w, "open");
    return 0;
}

void raw_backend_close(raw_backend *w)
{
    if (w->self != NULL)
        w->ops->close(w->self);
    free(w->self);
    oari_recorder_destroy(w->recorder);
    oar_store_destroy(w->store);
}

int raw_backend_send(raw_backend *w, oar_transfer *t, int to, uint64_t tag,
                     void *data, size_t bytes)
{
    int synchronous = t->synchronous;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = to,
                         .tag = tag,
                         .data = data,
                         .bytes = bytes,
                         .synchronous = synchronous };
    return w->ops->send(w->self, t) == OAR_OK ? 0 : complain(w, "send");
}

int raw_backend_recv(raw_backend *w, oar_transfer *t, int from, uint64_t tag,
                     uint64_t any, void *data, size_t bytes)
{
    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = from,
                         .tag = tag,
                         .any = any,
                         .data = data,
                         .bytes = bytes };
    return w->ops->recv(w->self, t) == OAR_OK ? 0 : complain(w, "recv");
}

int raw_backend_progress(raw_backend *w)
{
    return w->ops->progress(w->self) == OAR_OK ? 0 : complain(w, "progress");
}

oar_status raw_backend_wait(raw_backend *w, const oar_transfer *t)
{
    int64_t deadline = oari_deadline(WIRE_TIMEOUT_MS);

    while (!t->done) {
        if (raw_backend_progress(w) != 0)
            return OAR_E_INTERNAL;
        if (!t->done && oari_now_ns() > deadline) {
            complain(w, "waited until the limit");
            return OAR_E_TIMEOUT;
        }
        if (!t->done)
            sched_yield();
    }
    return t->status;
}

int raw_backend_probe(raw_backend *w, int from, uint64_t tag, uint64_t any,
                      oar_envelope *found)
{
    int64_t deadline = oari_deadline(WIRE_TIMEOUT_MS);

    while (!w->ops->peek(w->self, from, tag, any, found)) {
        if (raw_backend_progress(w) != 0 || oari_now_ns() > deadline)
            return complain(w, "probed until the limit");
        sched_yield();
    }
    return 0;
}

/* Sends to and receives from every rank, synchronously. */
int raw_backend_barrier(raw_backend *w)
{
    oar_transfer *t = calloc(2 * (size_t)w->ranks, sizeof *t);
    int failed = 0;

    for (int r = 0; r < w->ranks; r++) {
        t[2 * r].synchronous = 1;
        failed |= raw_backend_send(w, &t[2 * r], r, BARRIER_TAG, NULL, 0);
        failed |=
            raw_backend_recv(w, &t[2 * r + 1], r, BARRIER_TAG, 0, NULL, 0);
    }
    for (int i = 0; i < 2 * w->ranks && !failed; i++)
        failed = raw_backend_wait(w, &t[i]) != OAR_OK;
    if (!failed)
        free(t);
    return failed;
}
