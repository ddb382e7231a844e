/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_call: hands our collectives to Gloo. */
#include <stdlib.h>
#include <string.h>

#include "backends/gloo/gloo.h"
#include "base/dtype.h"
#include "base/status.h"
#include "record/operation.h"

/* ---- which collectives Gloo runs ----------------------------------------- */

/* Returns the count that is the same on all ranks: of one rank's part, or of
 * everything where there are no parts. */
static size_t agreed_count(const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_REDUCE:
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_ALL_TO_ALL: return call->in.count;
    default: return call->out.count;
    }
}

/* Gloo cannot sum the weights of a weighted mean. A premultiplied sum needs a
 * place for the products, and half types, which are summed in f32 and rounded
 * once, a place for f32: of all reductions only all_reduce has one. */
static int takes_operator(const oar_collective *call)
{
    if (call->op.kind == OAR_REDUCE_OP_WEIGHTED_MEAN)
        return 0;
    return call->kind == OAR_COLL_ALL_REDUCE ||
           (call->op.kind != OAR_REDUCE_OP_PREMUL_SUM &&
            !oari_dtype_is_half(call->in.dtype));
}

/* Parts of different sizes exist in two collectives of Gloo. */
int gloo_takes(void *self, const oar_collective *call)
{
    const gloo *g = self;

    if (g->threads == NULL || g->choice.algorithm[call->kind] == GLOO_PLANNED)
        return 0;
    if (call->kind == OAR_COLL_BARRIER)
        return 1;
    if (oari_kind_reduces(call->kind) && !takes_operator(call))
        return 0;
    if (call->ragged)
        return call->kind == OAR_COLL_ALL_GATHER ||
               call->kind == OAR_COLL_ALL_TO_ALL;
    return agreed_count(call) != 0;
}

/* ---- the arithmetic ------------------------------------------------------ */

static void combine_elements(const void *arg, void *c, const void *a,
                             const void *b, size_t count)
{
    const gloo_operation *op = arg;
    const void *source[] = { a, b };
    void *destination[] = { c };
    oari_reduction r = { .kind = op->reduce_op,
                         .dtype = op->dtype,
                         .sources = 2,
                         .source = source,
                         .destinations = 1,
                         .destination = destination };

    oari_reduce(&r, count);
}

static void describe_operator(const gloo *g, const oar_collective *call,
                              gloo_operation *op)
{
    op->reduce_op = call->op.kind;
    op->dtype = call->in.dtype;
    op->task.combine = combine_elements;
    op->task.combine_arg = op;
    if (oari_dtype_is_half(op->dtype)) {
        op->widens = 1;
        op->half = op->dtype;
        op->dtype = OAR_F32;
        op->task.unit = sizeof(float);
        op->from = call->in.data;
        op->into = call->out.data;
    }
    if (call->op.kind == OAR_REDUCE_OP_AVG)
        op->divisor = g->ranks;
    if (call->op.kind == OAR_REDUCE_OP_PREMUL_SUM) {
        op->has_factor = 1;
        op->factor = call->op.scalar;
    }
    if (call->op.kind == OAR_REDUCE_OP_AVG ||
        call->op.kind == OAR_REDUCE_OP_PREMUL_SUM)
        op->reduce_op = OAR_REDUCE_OP_SUM;
}

/* ---- posting ------------------------------------------------------------- */

/* Returns a tag that differs between collectives that are in flight at once,
 * and between calls that do not match: these then wait until the core reports
 * the mismatch, instead of writing more than there is room for. */
static uint32_t make_tag(gloo *g, const oar_collective *call)
{
    uint64_t word = (uint64_t)call->kind | (uint64_t)call->op.kind << 4 |
                    (uint64_t)call->out.dtype << 8 |
                    (uint64_t)(uint32_t)call->root << 12;

    if (!call->ragged)
        word ^= (uint64_t)agreed_count(call) * 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 31) * 0xbf58476d1ce4e5b9u;
    return ++g->number << 24 | (uint32_t)(word >> 40);
}

/* Copies counts, if there are any: the user may free them when the call is
 * given up, while the worker still uses them. */
static const size_t *keep_counts(const gloo *g, const size_t *counts,
                                 size_t *room)
{
    if (counts == NULL)
        return NULL;
    memcpy(room, counts, (size_t)g->ranks * sizeof *counts);
    return room;
}

static gloo_operation *make_operation(gloo *g, const oar_collective *call,
                                      oar_transfer *done)
{
    size_t ranks = (size_t)g->ranks;
    gloo_operation *op = calloc(1, sizeof *op + 2 * ranks * sizeof *op->counts);
    oar_dtype dtype = call->in.data != NULL ? call->in.dtype : call->out.dtype;

    if (op == NULL)
        return NULL;
    op->done = done;
    op->task = (gloo_task){ .algorithm = g->choice.algorithm[call->kind],
                            .tag = make_tag(g, call),
                            .root = call->root,
                            .unit = oar_dtype_size(dtype),
                            .in = call->in.data,
                            .out = call->out.data,
                            .in_count = call->in.count,
                            .out_count = call->out.count };
    op->task.in_counts = keep_counts(g, call->in_counts, op->counts);
    op->task.out_counts = keep_counts(g, call->out_counts, op->counts + ranks);
    if (oari_kind_reduces(call->kind))
        describe_operator(g, call, op);
    return op;
}

/* A caller that waits runs the operation itself; others leave it to a worker.
 */
oar_status gloo_post(void *self, const oar_collective *call, oar_transfer *done)
{
    gloo *g = self;
    gloo_operation *op = make_operation(g, call, done);
    oar_status status = OAR_OK;

    if (op == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    op->next_pending = g->operations;
    g->operations = op;
    if (call->awaited)
        gloo_inline_post(g->threads, op);
    else
        status = gloo_worker_post(
            g->threads, (int)(g->number % (uint32_t)g->choice.workers), op);
    if (status != OAR_OK) {
        g->operations = op->next_pending;
        free(op);
    }
    return status;
}
