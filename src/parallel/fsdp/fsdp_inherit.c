/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_inherit: from what ranks have kept (fsdp_kept.c) to shards of another
 * cut.
 *
 * Ranges of elements are those of a whole array. If a rank has begun an
 * optimizer step, all ranks had reached it. Then the step is finished: what a
 * rank has not moved of its shards, others move by the gradients that it left.
 */
#include <string.h>

#include "base/status.h"
#include "parallel/fsdp/fsdp.h"

/* Elements of an array. */
typedef struct element_range {
    size_t first, end;
} element_range;

static element_range common_range(element_range a, element_range b)
{
    if (a.first < b.first)
        a.first = b.first;
    if (a.end > b.end)
        a.end = b.end;
    if (a.end < a.first)
        a.end = a.first;
    return a;
}

static element_range range_of_shard(const oar_shard *shard)
{
    return (element_range){ shard->first, shard->first + shard->count };
}

static element_range range_of_part(const oari_kept *k, int part, int array)
{
    size_t first, count;

    oari_flat_range(k->shards, array, part, &first, &count);
    return (element_range){ first, first + count };
}

void oari_inherit_plane(const oari_kept *from, int plane, const oari_kept *to,
                        const oar_shard *shard)
{
    unsigned char *target = oar_window_data(to->window);
    const unsigned char *source = oar_window_data(from->window);
    int array = shard->array, part = to->shards->part;

    for (int p = 0; p < from->shards->ranks; p++) {
        element_range both =
            common_range(range_of_part(from, p, array), range_of_shard(shard));
        size_t at;

        if (both.first == both.end)
            continue;
        at = oari_kept_at(from, p, plane, array, both.first);
        memcpy(target + oari_kept_at(to, part, plane, array, both.first),
               source + at, oari_kept_at(from, p, plane, array, both.end) - at);
    }
}

const oari_kept_record *oari_inherit_record(const oari_kept *k, uint64_t step,
                                            int array)
{
    for (int p = 0; p < k->shards->ranks; p++) {
        element_range range = range_of_part(k, p, array);

        if (range.first < range.end)
            return oari_kept_record_of(k, p, step, array);
    }
    return NULL;
}

/* ---- finishing the last step --------------------------------------------- */

/* What an old rank has left of its shard of an array, if it has not ended the
 * last step. */
typedef struct left_shard {
    int part;
    const oari_kept_line *line;
    element_range all, torn, unmoved;
} left_shard;

static left_shard look_at_left(const oari_kept *k, int part, uint64_t step,
                               int array)
{
    const oari_kept_record *r = oari_kept_record_of(k, part, step, array);
    const oari_kept_line *line = oari_kept_line_of(k, part);
    left_shard left = { .part = part, .line = line };
    uint64_t begin = oari_kept_position(r->index, 0);
    uint64_t progress = line->progress;
    size_t moved = progress > begin ? (size_t)(progress - begin) : 0;

    left.all = range_of_part(k, part, array);
    left.unmoved = left.all;
    left.unmoved.first = left.all.end;
    left.torn = left.unmoved;
    if (line->done == step || left.all.first == left.all.end || !r->has_grad ||
        moved >= left.all.end - left.all.first)
        return left;
    left.unmoved.first = left.all.first + moved;
    if (progress >= begin && line->journal == progress)
        left.torn =
            common_range(left.all, (element_range){ left.unmoved.first,
                                                    left.unmoved.first +
                                                        (size_t)line->chunk });
    return left;
}

/* Writes a chunk whose moving was interrupted as it was before. */
static void restore_torn(const oari_kept *from, const left_shard *left,
                         const oar_shard *shard, const oar_optim_entry *e)
{
    element_range both = common_range(left->torn, range_of_shard(shard));
    const unsigned char *window = oar_window_data(from->window);

    if (both.first == both.end)
        return;
    for (int slot = 0; slot <= from->slots; slot++) {
        oar_tensor *to = slot < from->slots ? e->state[slot] : e->param;
        size_t size = oar_dtype_size(oar_tensor_dtype(to));

        if (to == NULL)
            continue;
        memcpy((unsigned char *)oar_tensor_data(to) +
                   (both.first - shard->first) * size,
               window + oari_kept_journal_at(from, left->part, slot) +
                   (both.first - left->torn.first) * size,
               (both.end - both.first) * size);
    }
}

/* Moves what the rank has not moved, by its gradients. */
static oar_status move_left(const oari_kept *from, const left_shard *left,
                            const oar_shard *shard, int index)
{
    element_range both = common_range(left->unmoved, range_of_shard(shard));
    unsigned char *window = oar_window_data(from->window);
    size_t at = oari_kept_at(from, left->part, oari_kept_grads_plane(from),
                             shard->array, both.first);
    double lr = oar_optim_lr(from->optim);
    oar_status status;

    if (both.first == both.end)
        return OAR_OK;
    OARI_TRY(oar_optim_set_lr(from->optim, left->line->lr));
    status = oar_optim_move(
        from->optim, index, (int64_t)(both.first - shard->first),
        oar_span_of(window + at, both.end - both.first, shard->data.dtype));
    oar_optim_set_lr(from->optim, lr);
    return status;
}

oar_status oari_inherit_step(const oari_kept *from, uint64_t step,
                             const oar_shards *to, int entries,
                             const oar_optim_entry *entry)
{
    for (int k = 0, i = 0; i < entries; k++) {
        const oar_shard *shard = &to->shard[k];
        int64_t steps = entry[i].steps;

        if (shard->tensor != entry[i].param)
            continue;
        for (int p = 0; p < from->shards->ranks; p++) {
            left_shard left = look_at_left(from, p, step, shard->array);

            if (left.unmoved.first == left.unmoved.end)
                continue;
            restore_torn(from, &left, shard, &entry[i]);
            OARI_TRY(oar_optim_set_param_steps(from->optim, i, steps - 1));
            OARI_TRY(move_left(from, &left, shard, i));
        }
        OARI_TRY(oar_optim_set_param_steps(from->optim, i++, steps));
    }
    return OAR_OK;
}
