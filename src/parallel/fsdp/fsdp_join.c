/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_join: ranks that have run out of input take part in the passes of the
 * others.
 *
 * Where whole parameters are always there, such a rank has only to end the
 * pass: its gradients count as zero. Where units are gathered, it must gather
 * what the others gather. The first rank with input, the leader, announces
 * every call that it makes on the shards before it makes it; the ranks without
 * input make the same calls. Announcements go through the shards' own group, so
 * that a failure of the leader ends the wait for them.
 */
#include <string.h>

#include <oarsong/p2p.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/reducer/reducer.h"
#include "parallel/syncbn/syncbn.h"

enum { JOIN_TAG = 1 };

oar_status oari_fsdp_announce(const oari_fsdp *d, oari_fsdp_call call, int unit)
{
    int32_t word[2] = { (int32_t)call, unit };

    for (int r = 0; d->leading && r < oar_group_size(d->group); r++)
        if (!d->has_input[r])
            OARI_TRY(oar_send(d->shards->reduce, oar_span_of(word, 2, OAR_I32),
                              d->shards->part_of[r], JOIN_TAG,
                              OAR_OPTS(oar_call_opts, .label = "join"), NULL));
    return OAR_OK;
}

/* ---- a rank without input ------------------------------------------------ */

static int has_own_gradients(const oari_fsdp *d)
{
    for (int i = 0; i < d->params; i++)
        if (oar_tensor_grad(d->param[i].tensor) != NULL)
            return 1;
    return 0;
}

/* Gives a unit zeros for gradients now, so that the others need not keep theirs
 * until the end of the pass. */
static oar_status write_zeros(oari_fsdp *d, int unit)
{
    oar_shards *s = d->shards;

    for (int a = 0; a < s->arrays; a++) {
        oar_span grad;

        if (s->array[a].unit != unit || s->array[a].ready ||
            s->flat[s->array[a].flat].frozen)
            continue;
        grad = oar_shards_grad(s, a);
        if (grad.data == NULL)
            return oar_last_error()->status;
        OARI_TRY(oari_span_clear(&grad));
        OARI_TRY(oar_shards_ready(s, a));
    }
    return OAR_OK;
}

/* Makes the calls of the leader until its pass has ended. */
static oar_status follow_leader(oari_fsdp *d, int leader, int own)
{
    oar_shards *s = d->shards;
    int finished = 0;
    int32_t word[2];

    for (;;) {
        OARI_TRY(oar_recv(s->reduce, oar_span_of(word, 2, OAR_I32),
                          s->part_of[leader], JOIN_TAG,
                          OAR_OPTS(oar_call_opts, .label = "join"), NULL));
        if (word[0] == OARI_FSDP_UNSHARD)
            OARI_TRY(oar_shards_unshard(s, word[1]));
        else if (word[0] == OARI_FSDP_RESHARD)
            OARI_TRY(oar_shards_reshard(s, word[1]));
        else if (word[0] == OARI_FSDP_GRADS && !own && d->no_sync == 0)
            OARI_TRY(write_zeros(d, word[1]));
        else if (word[0] == OARI_FSDP_FINISH) {
            OARI_TRY(oari_fsdp_finish(d));
            finished = 1;
        } else if (word[0] == OARI_FSDP_END)
            break;
    }
    if (!finished)
        return oari_fail(OAR_E_STATE,
                         "fsdp_join: rank %d has input, but gave its pass up",
                         leader);
    return OAR_OK;
}

/* leader: below 0: nobody here has input. */
static oar_status take_part(oari_fsdp *d, int leader)
{
    oar_shards *s = d->shards;
    double weight = s->weight;
    int own = has_own_gradients(d);
    oar_status status;

    if (!own)
        s->weight = 0;
    status = s->resident || leader < 0 ? oari_fsdp_finish(d)
                                       : follow_leader(d, leader, own);
    s->weight = weight;
    return status == OAR_OK ? OAR_OK : oari_shards_break(s);
}

/* ---- all ranks ----------------------------------------------------------- */

int oari_fsdp_has_sync_layers(const oar_module *module)
{
    int any = oari_sync_layer_of(module) != NULL;

    for (int i = 0; i < oar_module_children(module) && !any; i++)
        any = oari_fsdp_has_sync_layers(oar_module_child(module, i));
    return any;
}

static oar_status check_join(oari_fsdp *d, const int *active)
{
    if (active == NULL || !d->opts.weighted)
        return oari_fail(OAR_E_ARG, "fsdp_join without %s",
                         active == NULL ? "a place for the answer"
                                        : "weighted in the options");
    OARI_TRY(oari_shards_check(d->shards, "fsdp_join"));
    if (oari_fsdp_has_sync_layers(d->unit[0].module))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "fsdp_join of a model with synchronised batch norms");
    if (d->joined) { /* the others must not wait for that pass */
        oari_fail(OAR_E_STATE, "fsdp_join with input, for which no backward "
                               "pass was run, and again");
        d->joined = 0;
        return oari_shards_break(d->shards);
    }
    return OAR_OK;
}

/* Counts the ranks that have input, in all groups; all: whether every one has.
 * The leader is that of this group. */
static oar_status count_active(oari_fsdp *d, int has_input, int *active,
                               int *all, int *leader)
{
    int ranks = oar_group_size(d->group);
    unsigned char mine = has_input != 0;
    int32_t count = 0;

    OARI_TRY(oar_all_gather(d->group, oar_span_of(&mine, 1, OAR_U8),
                            oar_span_of(d->has_input, (size_t)ranks, OAR_U8),
                            OAR_OPTS(oar_call_opts, .label = "join"), NULL));
    *leader = -1;
    for (int r = ranks - 1; r >= 0; r--)
        if (d->has_input[r]) {
            count++;
            *leader = r;
        }
    if (d->opts.replicas != NULL)
        OARI_TRY(oar_all_reduce(
            d->opts.replicas, oar_span_of(&count, 1, OAR_I32), OAR_SUM,
            OAR_OPTS(oar_call_opts, .label = "join"), NULL));
    *active = count;
    *all = count == ranks * (d->opts.replicas != NULL
                                 ? oar_group_size(d->opts.replicas)
                                 : 1);
    return OAR_OK;
}

oar_status oari_fsdp_join(oari_fsdp *d, int has_input, int *active)
{
    int count, all, leader;

    OARI_TRY(check_join(d, active));
    /* A rank with input may have done so alone, to evaluate. */
    OARI_TRY(oari_fsdp_publish(d));
    if (count_active(d, has_input, &count, &all, &leader) != OAR_OK)
        return oari_shards_break(d->shards);
    if (has_input) {
        d->joined = !all;
        d->leading = !d->shards->resident && leader == oar_group_rank(d->group);
    } else if (count > 0) {
        OARI_TRY(take_part(d, leader));
    }
    *active = count;
    return OAR_OK;
}
