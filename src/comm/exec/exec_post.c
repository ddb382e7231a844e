/* SPDX-License-Identifier: Apache-2.0 */
/* exec_post: collectives that an external engine does (MPI, Gloo, UCC; NCCL
 * does all that is on device memory, messages too).
 *
 * The engine's messages do not say what the ranks call. So ranks write that in
 * shared memory before they begin, and compare: a rank that comes second does
 * not even begin what would not fit, and one that came first finds out while it
 * waits, or at the latest when it is done. Ranks of different hosts share no
 * memory: there, now and then, a collective is planned like any other, because
 * a plan's messages tell what all collectives before them were (history.h).
 */
#include "base/status.h"
#include "record/op_report.h"
#include "comm/exec/exec_run.h"

enum {
    POLLS_TO_COMPARE = 4,
    COLLECTIVES_TO_COMPARE = OARI_REPORT_ENTRIES,
    POLLS_THAT_ARE_LONG = 8 /* after so many, a check for missing ranks costs
                             little */
};

static oari_step post_steps[] = { { .kind = OARI_POST }, { .kind = OARI_END } };
static const oari_plan post_plan = { .algorithm = "engine",
                                     .step = post_steps };

/* ---- what others have begun ---------------------------------------------- */

/* Compares no more once all ranks are known to have begun the same. */
int oari_exec_posts_differ(oari_exec *exec)
{
    const oari_shm *b = exec->number != 0 ? exec->compared_on : NULL;
    int agreed = 1;

    for (int r = 0; b != NULL && !exec->agreed && r < b->ranks; r++) {
        int theirs = r == b->rank ? OARI_POST_SAME
                                  : oari_shm_compare_post(b, r, exec->number,
                                                          exec->link);

        agreed &= theirs == OARI_POST_SAME;
        if (theirs == OARI_POST_OTHER) {
            oari_exec_report_mismatch(
                exec, b->member != NULL ? b->member[r] : r, "%s", "");
            return 1;
        }
    }
    exec->agreed = agreed;
    return 0;
}

int oari_exec_awaits_post(const oari_exec *exec, int rank)
{
    const oari_shm *b = exec->compared_on;
    int here = b != NULL ? oari_shm_rank(b, rank) : -1;

    if (!exec->posted)
        return 0;
    if (exec->number == 0)
        return exec->call->root < 0 || exec->call->root == rank;
    return here < 0 ? !exec->post.done || exec->call->gpu != NULL
                    : oari_shm_compare_post(b, here, exec->number,
                                            exec->link) == OARI_POST_MISSING;
}

int oari_exec_has_completed(const oari_exec *exec, int rank)
{
    const oari_shm *b = exec->compared_on;
    int here = b != NULL ? oari_shm_rank(b, rank) : -1;

    return exec->number != 0 && here >= 0 &&
           oari_shm_has_completed_post(b, here, exec->number);
}

/* ---- beginning ----------------------------------------------------------- */

static void describe_call(oari_exec *exec)
{
    const oari_call *call = exec->call;

    exec->engine_call = oari_call_for_engine(call);
    exec->post = (oar_transfer){ .size = sizeof exec->post, .peer = -1 };
    if (call->kind >= OAR_COLL_SEND) { /* unless the engine says more */
        exec->post.source = call->root;
        exec->post.got_tag = (uint64_t)(call->tag >= 0 ? call->tag : 0);
        exec->post.got_bytes = oari_span_bytes(&call->out);
    }
}

/* Whether it is time to compare over messages. */
static int is_planned_to_compare(const oari_exec *exec)
{
    const oari_shm *b = exec->compared_on;

    return exec->ranks > 1 && (b == NULL || b->member != NULL) &&
           exec->number % COLLECTIVES_TO_COMPARE == 0;
}

/* Whether the engine does this call. It does none with sizes that the
 * fingerprint cannot have in it, because ranks know only their own: plans
 * compare them, but an engine may cut off what is too much, take too little for
 * enough, or end the process. */
static int is_taken(oari_exec *exec)
{
    const oar_backend_ops *ops = exec->external->ops;
    const oari_call *call = exec->call;
    int own_sizes = call->ragged && (call->kind == OAR_COLL_GATHER ||
                                     call->kind == OAR_COLL_SCATTER ||
                                     call->kind == OAR_COLL_ALL_TO_ALL);

    if (call->gpu != NULL) {
        describe_call(exec);
        return 1; /* the GPU's engine has been asked before */
    }
    if (is_planned_to_compare(exec) || (size_t)call->kind >= ops->post_count ||
        ops->post[call->kind] == NULL || call->is_object ||
        oari_call_widens(call) || exec->rules->forced[call->kind][0] != 0 ||
        (own_sizes && !exec->rules->engine_parts) ||
        (oari_call_form(call) & OARI_FORM_CANONICAL) != 0)
        return 0;
    describe_call(exec);
    return ops->takes == NULL ||
           ops->takes(exec->external->self, &exec->engine_call);
}

int oari_exec_post(oari_exec *exec)
{
    oar_status status;

    if (exec->compared_on != NULL && exec->number != 0)
        oari_shm_prefetch_post(exec->compared_on, exec->number);
    exec->posted = is_taken(exec);
    if (exec->compared_on != NULL && exec->number != 0)
        oari_shm_show_post(exec->compared_on, exec->number, exec->link);
    if (!exec->posted)
        return 0;
    exec->plan = &post_plan;
    exec->polls = 0;
    exec->agreed = 0;
    if (oari_exec_posts_differ(exec))
        return 1;
    status = exec->external->ops->post[exec->call->kind](
        exec->external->self, &exec->engine_call, &exec->post);
    if (status != OAR_OK) {
        exec->post.status = status;
        exec->post.done = 1;
    }
    return 1;
}

/* ---- waiting ------------------------------------------------------------- */

/* Whether the call cannot be complete unless every rank has begun it. */
static int needs_all_ranks(const oari_call *call)
{
    switch (call->kind) {
    case OAR_COLL_BARRIER: return 1;
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: return !call->ragged && call->out.count != 0;
    default: return 0;
    }
}

/* Whether the engine's success can be true. An engine may lose a failure and
 * report success. If a rank has not begun the collective, or is gone in the
 * middle of it, that report is false: then the collective goes on, and the
 * driver finds out which rank it waits for. */
static int is_plausible(const oari_exec *exec)
{
    const oari_shm *b = exec->compared_on;
    int all = !exec->agreed && needs_all_ranks(exec->call);

    if (b == NULL)
        return 1;
    if (exec->polls > POLLS_THAT_ARE_LONG)
        b->ops->check(b->self);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank &&
            ((all && oari_shm_compare_post(b, r, exec->number, exec->link) ==
                         OARI_POST_MISSING) ||
             (b->gone[r] && !oari_shm_has_completed_post(b, r, exec->number))))
            return 0;
    return 1;
}

oari_progress oari_run_post(oari_exec *exec)
{
    int look = exec->post.done || ++exec->polls % POLLS_TO_COMPARE == 0;

    if (exec->doubt.found || (look && oari_exec_posts_differ(exec)))
        return OARI_FAILED;
    if (!exec->post.done)
        return OARI_PENDING;
    if (exec->post.status != OAR_OK) {
        if (oar_last_error()->status != exec->post.status)
            oari_fail(exec->post.status, "%s gave up %s",
                      exec->external->ops->name,
                      oar_coll_name(exec->call->kind));
        return OARI_FAILED;
    }
    /* on device memory it is only on a stream by now */
    if (exec->call->gpu == NULL && !is_plausible(exec))
        return OARI_PENDING;
    if (exec->call->gpu == NULL && exec->compared_on != NULL)
        oari_shm_complete_post(exec->compared_on, exec->number);
    exec->at++;
    return OARI_DONE;
}
