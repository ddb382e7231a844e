/* SPDX-License-Identifier: Apache-2.0 */
/* exec_settle: what the planners are asked, and how an operation goes on once
 * all sizes are known: by then every rank has the counts of the others, from
 * their lines or from messages. They are compared with what was promised, room
 * is made for the result of an object, and the second plan is made. */
#include <string.h>

#include "base/alloc.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "comm/exec/exec_run.h"
#include "plan/planners.h"

/* ---- asking -------------------------------------------------------------- */

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

static size_t *begin_parts(const oari_exec *exec, size_t *at,
                           const size_t *counts)
{
    if (counts == NULL)
        return NULL;
    at[0] = 0;
    for (int r = 0; r < exec->ranks; r++)
        at[r + 1] = at[r] + counts[r];
    return at;
}

static void ask_parts(oari_exec *exec, oari_plan_request *req)
{
    const oari_call *call = exec->call;
    int in = call->kind == OAR_COLL_SCATTER ||
             call->kind == OAR_COLL_REDUCE_SCATTER ||
             call->kind == OAR_COLL_ALL_TO_ALL;

    req->ragged = 1;
    req->at = begin_parts(exec, exec->part_at,
                          in ? call->in_counts : call->out_counts);
    if (call->kind == OAR_COLL_ALL_TO_ALL)
        req->out_at = begin_parts(exec, exec->out_at, call->out_counts);
}

static void ask_operator(const oari_exec *exec, oari_plan_request *req)
{
    oar_op_kind op = exec->call->op.kind;

    req->element = exec->element;
    req->wide = oari_exec_element(exec, OARI_WORK);
    req->weighted = oari_needs_factors(op);
    req->mean = op == OAR_OP_WEIGHTED_MEAN;
    req->promote = req->weighted || req->wide != req->element;
    req->canonical = exec->call->canonical;
}

static void ask_where(const oari_exec *exec, oari_plan_request *req)
{
    const oari_board *b = exec->board;

    req->small_bytes = exec->small_bytes;
    req->slot_bytes = oari_line_bytes(exec->small_bytes);
    req->stage_bytes = exec->stage_bytes;
    req->chunk_bytes = exec->chunk_bytes;
    req->hosts = exec->hosts;
    req->sends = exec->backend != NULL && exec->backend->send != NULL;
    if (b != NULL) {
        req->shm_rank = b->rank;
        req->shm_ranks = b->ranks;
        req->shm_member = b->member;
    }
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

/* Objects over messages: what this rank says of sizes. */
static void fill_sizes(oari_exec *exec)
{
    const oari_call *call = exec->call;

    exec->table[exec->rank] = call->in.count;
    for (int r = 0; call->in_counts != NULL && r < exec->ranks; r++)
        exec->table[r] = call->in_counts[r];
}

oar_status oari_exec_make_request(oari_exec *exec, oari_plan_request *req)
{
    *req = (oari_plan_request){ .kind = exec->call->kind,
                                .rank = exec->rank,
                                .ranks = exec->ranks,
                                .root = exec->call->root,
                                .object = exec->call->is_object,
                                .count = count_of(exec) };
    ask_operator(exec, req);
    ask_where(exec, req);
    if (!exec->call->ragged)
        return OAR_OK;
    ask_parts(exec, req);
    if (req->shm_ranks == req->ranks)
        fill_table(exec);
    else if (req->object)
        fill_sizes(exec);
    return OAR_OK;
}

/* ---- settling: the sizes ------------------------------------------------- */

static oar_status differ(oari_exec *exec, int rank, size_t mine, size_t theirs,
                         const char *text)
{
    return oari_exec_report_mismatch(
        exec, rank, "rank %d %s %zu elements %s rank %d, which %s %zu",
        exec->rank, text, mine, text[0] == 'e' ? "of" : "for", rank,
        text[0] == 'e' ? "has" : "expects", theirs);
}

/* Parts that each rank has told in its line. Root has promised counts too. */
static oar_status take_parts(oari_exec *exec, const size_t *told)
{
    const oari_call *call = exec->call;
    int gather = call->kind != OAR_COLL_SCATTER;
    const size_t *mine = gather ? call->out_counts : call->in_counts;
    size_t *at = exec->part_at;

    at[0] = 0;
    for (int r = 0; r < exec->ranks; r++) {
        if (mine != NULL && mine[r] != told[r])
            return differ(exec, r, mine[r], told[r],
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
            return differ(exec, r, exec->call->out_counts[r], exec->table[r],
                          "expects");
    exec->request.their_at = exec->their_at;
    return OAR_OK;
}

static oar_status settle_by_memory(oari_exec *exec)
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

static oar_status settle_by_messages(oari_exec *exec)
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

/* ---- settling: the result of an object ----------------------------------- */

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

/* Root has a row of another length than all parts together: it knows which part
 * is wrong, and will say so. The others only wait for that. */
static int root_disagrees(const oari_exec *exec)
{
    const oari_plan_request *req = &exec->request;

    if (exec->met == 0 || req->object || req->rank == req->root)
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

static oar_status make_second(oari_exec *exec)
{
    const oari_algorithm *algorithm;

    oari_plan_clear(&exec->second);
    if (root_disagrees(exec))
        return oari_plan_make("wait", wait_for_root, &exec->request,
                              &exec->second);
    if (exec->met != 0)
        return oari_plan_make("direct", oari_plan_direct_after_sync,
                              &exec->request, &exec->second);
    algorithm = oari_choose(&exec->request, exec->rules);
    if (algorithm == NULL)
        return OAR_E_UNSUPPORTED;
    return oari_plan_make(algorithm->name, algorithm->plan, &exec->request,
                          &exec->second);
}

oari_progress oari_run_replan(oari_exec *exec)
{
    oar_status status =
        exec->met != 0 ? settle_by_memory(exec) : settle_by_messages(exec);

    exec->request.sizes_known = 1;
    if (status == OAR_OK)
        status = make_block(exec);
    if (status == OAR_OK)
        status = make_second(exec);
    if (status == OAR_OK)
        status = oari_exec_reserve_scratch(exec, &exec->second);
    if (status != OAR_OK)
        return OARI_FAILED;
    exec->plan = &exec->second;
    exec->at = 0;
    return OARI_DONE;
}
