/* SPDX-License-Identifier: Apache-2.0 */
/* exec_replan: the plan request, and how an operation goes on once all sizes
 * are known: by then every rank has the counts of the others, from their slots
 * or from messages. They are compared with what was promised, room is made for
 * the result of an object, and the second plan is made. */
#include <string.h>

#include "base/alloc.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "comm/exec/exec_run.h"
#include "plan/planners.h"

/* ---- the plan request ---------------------------------------------------- */

static size_t count_of(const oari_exec *exec)
{
    const oari_call *call = exec->call;

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER: return call->out.count;
    case OAR_COLL_ALL_TO_ALL:
        return call->ragged ? 0 : call->in.count / (size_t)exec->ranks;
    default: return call->in.count;
    }
}

static size_t *find_parts(const oari_exec *exec, size_t *at,
                          const size_t *counts)
{
    if (counts == NULL)
        return NULL;
    at[0] = 0;
    for (int r = 0; r < exec->ranks; r++)
        at[r + 1] = at[r] + counts[r];
    return at;
}

static void fill_table(oari_exec *exec)
{
    const oari_plan_request *req = &exec->request;
    size_t n = (size_t)exec->ranks;

    memset(exec->table, 0, (n + 2) * sizeof *exec->table);
    if (oari_table_words(req) == 0 || req->at == NULL)
        return;
    for (size_t i = 0; i <= n; i++)
        exec->table[i] = req->at[i];
    for (size_t i = 0; i < n; i++)
        if (req->at[i + 1] - req->at[i] > exec->table[n + 1])
            exec->table[n + 1] = req->at[i + 1] - req->at[i];
}

/* Objects over messages: fills in the sizes that this rank sends. */
static void fill_sizes(oari_exec *exec)
{
    const oari_call *call = exec->call;

    exec->table[exec->rank] = call->in.count;
    for (int r = 0; call->in_counts != NULL && r < exec->ranks; r++)
        exec->table[r] = call->in_counts[r];
}

void oari_exec_make_request(oari_exec *exec, oari_plan_request *req)
{
    const oari_call *call = exec->call;
    const oari_shm *b = exec->shm;
    oar_reduce_op_kind op = call->op.kind;
    int of_input = call->kind == OAR_COLL_SCATTER ||
                   call->kind == OAR_COLL_REDUCE_SCATTER ||
                   call->kind == OAR_COLL_ALL_TO_ALL;

    *req = (oari_plan_request){
        .kind = call->kind,
        .rank = exec->rank,
        .ranks = exec->ranks,
        .root = call->root,
        .ragged = call->ragged != 0,
        .object = call->is_object,
        .weighted = oari_needs_factors(op),
        .mean = op == OAR_REDUCE_OP_WEIGHTED_MEAN,
        .widens = oari_call_widens(call),
        .canonical = call->canonical,
        .crowded = b != NULL && b->crowded,
        .count = count_of(exec),
        .element = exec->element,
        .wide = oari_exec_element(exec, OARI_WORK),
        .small_bytes = exec->small_bytes,
        .slot_bytes = oari_sync_slot_bytes(exec->small_bytes),
        .stage_bytes = exec->stage_bytes,
        .chunk_bytes = exec->chunk_bytes,
        .fetch_bytes = (size_t)exec->rules->fetch_bytes,
        .hosts = exec->hosts,
        .shm_rank = b != NULL ? b->rank : 0,
        .shm_ranks = b != NULL ? b->ranks : 0,
        .shm_member = b != NULL ? b->member : NULL,
        .sends = exec->backend != NULL && exec->backend->send != NULL,
    };
    req->promote = req->weighted || req->wide != req->element;
    if (!call->ragged)
        return;
    req->at = find_parts(exec, exec->part_at,
                         of_input ? call->in_counts : call->out_counts);
    if (call->kind == OAR_COLL_ALL_TO_ALL)
        req->out_at = find_parts(exec, exec->out_at, call->out_counts);
    if (req->shm_ranks == req->ranks)
        fill_table(exec);
    else if (req->object)
        fill_sizes(exec);
}

/* ---- the sizes ----------------------------------------------------------- */

static oar_status sizes_differ(oari_exec *exec, int rank, size_t mine,
                               size_t theirs, const char *text)
{
    return oari_exec_report_mismatch(
        exec, rank, "rank %d %s %zu elements %s rank %d, which %s %zu",
        exec->rank, text, mine, text[0] == 'e' ? "of" : "for", rank,
        text[0] == 'e' ? "has" : "expects", theirs);
}

/* Takes the parts that the ranks have told, and compares them with the counts
 * that this rank's call promised, if it did. */
static oar_status take_parts(oari_exec *exec, const size_t *told)
{
    const oari_call *call = exec->call;
    int gather = call->kind != OAR_COLL_SCATTER;
    const size_t *mine = gather ? call->out_counts : call->in_counts;
    size_t *at = exec->part_at;

    at[0] = 0;
    for (int r = 0; r < exec->ranks; r++) {
        if (mine != NULL && mine[r] != told[r])
            return sizes_differ(exec, r, mine[r], told[r],
                                gather ? "expects" : "has");
        if (__builtin_add_overflow(at[r], told[r], &at[r + 1]))
            return oari_fail(OAR_E_MISMATCH, "the parts of all ranks have more "
                                             "elements than can be counted");
    }
    exec->request.at = at;
    return OAR_OK;
}

static oar_status compare_rows(oari_exec *exec)
{
    for (int r = 0; r < exec->ranks; r++)
        if (exec->table[r] != exec->call->out_counts[r])
            return sizes_differ(exec, r, exec->call->out_counts[r],
                                exec->table[r], "expects");
    exec->request.their_at = exec->their_at;
    return OAR_OK;
}

static oar_status take_sizes_from_slots(oari_exec *exec)
{
    const oari_call *call = exec->call;

    switch (call->kind) {
    case OAR_COLL_ALL_TO_ALL: return compare_rows(exec);
    case OAR_COLL_BROADCAST:
        exec->request.count = exec->in_count[call->root];
        return OAR_OK;
    case OAR_COLL_SCATTER:
        exec->request.at = exec->part_at;
        return call->is_object ? OAR_OK : take_parts(exec, exec->out_count);
    default: return take_parts(exec, exec->in_count);
    }
}

static oar_status take_sizes_from_messages(oari_exec *exec)
{
    const oari_call *call = exec->call;
    int root = exec->rank == call->root;

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
        exec->request.count = exec->table[call->root];
        return OAR_OK;
    case OAR_COLL_SCATTER:
        exec->request.count = exec->table[exec->rank];
        return OAR_OK;
    case OAR_COLL_GATHER:
        if (!root)
            return OAR_OK;
        break;
    default: break;
    }
    return take_parts(exec, exec->table);
}

/* ---- the result of an object --------------------------------------------- */

static size_t object_bytes(const oari_exec *exec)
{
    const oari_plan_request *req = &exec->request;

    switch (req->kind) {
    case OAR_COLL_BROADCAST: return req->count;
    case OAR_COLL_SCATTER:
        return req->at != NULL ? req->at[req->rank + 1] - req->at[req->rank]
                               : req->count;
    default: return req->at[req->ranks];
    }
}

static oar_status make_block(oari_exec *exec)
{
    size_t bytes;

    if (exec->call->object.data == NULL)
        return OAR_OK;
    bytes = object_bytes(exec);
    if (bytes > SIZE_MAX / 2)
        return oari_fail(OAR_E_NOMEM, "an object of %zu bytes", bytes);
    if (bytes == 0)
        return OAR_OK;
    exec->block = oari_alloc(1, bytes);
    exec->out_data = exec->block;
    return exec->block != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_exec_give_object(oari_exec *exec)
{
    const oari_object *object = &exec->call->object;
    const oari_plan_request *req = &exec->request;
    int many = req->kind == OAR_COLL_GATHER || req->kind == OAR_COLL_ALL_GATHER;

    if (object->data == NULL)
        return;
    *object->data = exec->block;
    exec->block = NULL;
    if (!many)
        object->sizes[0] = object_bytes(exec);
    for (int r = 0; many && r < exec->ranks; r++)
        object->sizes[r] = req->at[r + 1] - req->at[r];
}

/* ---- the second plan ----------------------------------------------------- */

/* Whether root has a row of another length than all parts together. Root knows
 * which part is wrong and reports it; the others only wait for that. */
static int root_disagrees(const oari_exec *exec)
{
    const oari_plan_request *req = &exec->request;

    if (exec->syncs == 0 || req->object || req->rank == req->root)
        return 0;
    if (req->kind == OAR_COLL_GATHER)
        return req->at[req->ranks] != exec->out_count[req->root];
    return req->kind == OAR_COLL_SCATTER &&
           req->at[req->ranks] != exec->in_count[req->root];
}

static void wait_for_root(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_sync(plan, 0, 0);
}

static oar_status make_second_plan(oari_exec *exec)
{
    const oari_plan_request *req = &exec->request;
    const oari_algorithm *algorithm;

    if (root_disagrees(exec))
        return oari_plan_make("wait", wait_for_root, req, &exec->second);
    if (exec->syncs != 0)
        return oari_plan_make("direct", oari_plan_direct_after_sync, req,
                              &exec->second);
    algorithm = oari_choose(req, exec->rules);
    if (algorithm == NULL)
        return OAR_E_UNSUPPORTED;
    return oari_plan_make(algorithm->name, algorithm->plan, req, &exec->second);
}

oari_progress oari_run_replan(oari_exec *exec)
{
    oar_status status = exec->syncs != 0 ? take_sizes_from_slots(exec)
                                         : take_sizes_from_messages(exec);

    exec->request.sizes_known = 1;
    if (status == OAR_OK)
        status = make_block(exec);
    if (status == OAR_OK)
        status = make_second_plan(exec);
    if (status == OAR_OK)
        status = oari_exec_reserve_scratch(exec, &exec->second);
    if (status != OAR_OK)
        return OARI_FAILED;
    exec->plan = &exec->second;
    exec->at = 0;
    return OARI_DONE;
}
