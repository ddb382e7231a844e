/* SPDX-License-Identifier: Apache-2.0 */
#include "support/plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "link/shm/board.h"

/* Sizes that bring the edges near: with the first, a chunk of a bounce buffer
 * is one block of 64, and of a message too; with the second, the data of a
 * direct plan that cannot reach a buffer fits a slot; the third has partial
 * results that are wider; the last has bytes. */
static const struct {
    size_t element, wide, small_bytes, stage_bytes, chunk_bytes;
} settings[] = { { 8, 8, 512, 64, 512 },
                 { 4, 4, 64, 4096, 1024 },
                 { 2, 4, 4096, 1024, 256 },
                 { 1, 1, 256, 128, 64 } };
_Static_assert(sizeof settings / sizeof *settings == PLANS_SETTINGS, "all");

int plans_has_root(oar_coll kind)
{
    return kind == OAR_COLL_BROADCAST || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_GATHER || kind == OAR_COLL_SCATTER;
}

int plans_has_parts(oar_coll kind)
{
    return kind >= OAR_COLL_GATHER;
}

int plans_can_be_object(oar_coll kind)
{
    return kind == OAR_COLL_BROADCAST || kind == OAR_COLL_GATHER ||
           kind == OAR_COLL_SCATTER || kind == OAR_COLL_ALL_GATHER;
}

symbolic_op plans_make(const oari_algorithm *a, int ranks, size_t count,
                       plans_variant v)
{
    int set = v.object ? PLANS_SETTINGS - 1 : v.setting;
    int reduces = symbolic_reduces(a->kind);
    symbolic_op op = {
        .algorithm = a,
        .in_reach = UINT64_MAX,
        .out_reach = UINT64_MAX,
        .parts = v.seed,
        .req = { .kind = a->kind,
                 .ranks = ranks,
                 .root = plans_has_root(a->kind) ? v.root : -1,
                 .count = a->kind == OAR_COLL_BARRIER ? 0 : count,
                 .ragged = v.ragged || v.object,
                 .object = v.object,
                 .weighted = reduces && v.weighted,
                 .mean = reduces && v.weighted > 1,
                 .element = settings[set].element,
                 .wide = reduces ? settings[set].wide : settings[set].element,
                 .small_bytes = settings[set].small_bytes,
                 .slot_bytes = oari_line_bytes(settings[set].small_bytes),
                 .stage_bytes = settings[set].stage_bytes,
                 .chunk_bytes = settings[set].chunk_bytes,
                 .shm_ranks = a->over & OARI_MEMORY ? ranks : 0,
                 .sends = 1 }
    };

    op.req.promote = op.req.weighted || op.req.wide != op.req.element;
    return op;
}

const oari_algorithm *plans_find(const char *name, oar_coll kind)
{
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0 && a->kind == kind)
            return a;
    fail_msg("no planner %s of %s", name, oar_coll_name(kind));
    return NULL;
}

int plans_may_run(const symbolic_op *op)
{
    oari_plan_request req = symbolic_request(op, 0, 0);

    if (op->req.ragged && !plans_has_parts(op->req.kind) && !op->req.object)
        return 0;
    return op->algorithm->fits == NULL || op->algorithm->fits(&req);
}

void plans_run(const symbolic_case *c, symbolic_counts *did)
{
    const char *wrong = symbolic_run(c, did);

    if (wrong != NULL && c->ops == 1)
        fail_msg("%s: %s", c->op[0].algorithm->name, wrong);
    if (wrong != NULL)
        fail_msg("%s, then %s: %s", c->op[0].algorithm->name,
                 c->op[c->ops - 1].algorithm->name, wrong);
}
