/* SPDX-License-Identifier: Apache-2.0 */
/* read_plan: from wanted boxes to ranges of bytes in files. */
#include "parallel/checkpoint/load/read_plan.h"

#include <stdlib.h>

#include "base/status.h"
#include "parallel/checkpoint/tiling.h"

static int64_t first_of(const oari_box *box)
{
    return box->ndim > 0 ? box->offset[0] : 0;
}

static int64_t end_of(const oari_box *box)
{
    return box->ndim > 0 ? box->offset[0] + box->extent[0] : 1;
}

static oar_status check_stored(const oari_ckpt_tensor *tensor, int64_t chunks,
                               const oari_ckpt_stored *stored)
{
    size_t element = oar_dtype_size(tensor->dtype);

    if (!oari_box_shape_fits(tensor->whole, element))
        return oari_fail(OAR_E_DATA,
                         "tensor %s has a dtype or a shape that cannot be",
                         oari_ckpt_name_text(tensor).text);
    for (int64_t i = 0; i < chunks; i++) {
        const oari_box *box = &stored[i].box;
        uint64_t end;
        if (!oari_box_fits(box, tensor->whole))
            return oari_fail(OAR_E_DATA,
                             "tensor %s: chunk %lld is not within %s",
                             oari_ckpt_name_text(tensor).text, (long long)i,
                             oari_box_shape_text(tensor->whole).text);
        if (i > 0 && oari_box_compare(&stored[i - 1].box, box) > 0)
            return oari_fail(OAR_E_DATA,
                             "tensor %s: chunk %lld, %s, is not in order",
                             oari_ckpt_name_text(tensor).text, (long long)i,
                             oari_box_text(box).text);
        if (__builtin_add_overflow(
                stored[i].at, (uint64_t)oari_box_count(box) * element, &end))
            return oari_fail(OAR_E_DATA,
                             "tensor %s: chunk %lld, %s, ends in no file",
                             oari_ckpt_name_text(tensor).text, (long long)i,
                             oari_box_text(box).text);
    }
    return OAR_OK;
}

/* Makes the fetches of made.box, which a chunk and a wanted box have in common.
 * From the last dim on, what lies less than the gap apart in the file is one
 * fetch; in a dim where it lies further apart, and in those before it, each
 * index has its own. */
static oar_status fetch_common(oari_ckpt_read_plan *plan, oari_ckpt_fetch made)
{
    const oari_box all = made.box;
    uint64_t stride = made.element, span = made.element;
    int outer = all.ndim, d;

    for (; outer > 0; outer--) {
        uint64_t steps = (uint64_t)all.extent[outer - 1] - 1;
        if (steps > 0 && stride > span && stride - span >= plan->gap)
            break;
        span += steps * stride;
        stride *= (uint64_t)made.from.box.extent[outer - 1];
    }
    made.bytes = span;
    for (d = 0; d < outer; d++)
        made.box.extent[d] = 1;
    do {
        oari_box_runs runs;
        oari_box_run first = { 0 };
        oari_box_runs_start(&runs, &made.box, &made.from.box, &made.to.box,
                            made.element);
        oari_box_runs_next(&runs, &first);
        made.at = made.from.at + first.from;
        OARI_TRY(oari_vec_push(&plan->fetch, made));
        for (d = outer - 1; d >= 0; d--) {
            if (++made.box.offset[d] < all.offset[d] + all.extent[d])
                break;
            made.box.offset[d] = all.offset[d];
        }
    } while (d >= 0);
    return OAR_OK;
}

/* Checks that what the chunks have of a wanted box is all of it, once. */
static oar_status check_common(oari_ckpt_read_plan *plan,
                               const oari_ckpt_tensor *tensor,
                               const oari_box *wanted)
{
    oari_ckpt_tiling found;

    OARI_TRY(
        oari_ckpt_tile(wanted, plan->common.count, plan->common.data, &found));
    if (found.kind == OARI_CKPT_GAP)
        return oari_fail(OAR_E_DATA, "tensor %s: no chunk has %s",
                         oari_ckpt_name_text(tensor).text,
                         oari_box_text(&found.where).text);
    if (found.kind == OARI_CKPT_OVERLAP)
        return oari_fail(OAR_E_DATA, "tensor %s: two chunks have %s",
                         oari_ckpt_name_text(tensor).text,
                         oari_box_text(&found.where).text);
    return OAR_OK;
}

/* Both are sorted by where they begin, so that chunks which end before one
 * wanted box are not looked at again for the next one. */
oar_status oari_ckpt_read_plan_add(oari_ckpt_read_plan *plan,
                                   const oari_ckpt_tensor *tensor,
                                   int64_t chunks,
                                   const oari_ckpt_stored *stored,
                                   int64_t count,
                                   const oari_ckpt_wanted *wanted)
{
    oari_ckpt_fetch made = { .element = oar_dtype_size(tensor->dtype) };
    int64_t low = 0;

    OARI_TRY(check_stored(tensor, chunks, stored));
    for (int64_t w = 0; w < count; w++) {
        const oari_box *box = &wanted[w].box;
        if (!oari_box_fits(box, tensor->whole))
            return oari_fail(OAR_E_SHAPE,
                             "tensor %s has the shape %s: %s, "
                             "which is wanted, is not within it",
                             oari_ckpt_name_text(tensor).text,
                             oari_box_shape_text(tensor->whole).text,
                             oari_box_text(box).text);
        if (w > 0 && first_of(box) < first_of(&wanted[w - 1].box))
            low = 0;
        while (low < chunks && end_of(&stored[low].box) <= first_of(box))
            low++;
        plan->common.count = 0;
        for (int64_t i = low; i < chunks; i++) {
            if (first_of(&stored[i].box) >= end_of(box))
                break;
            if (!oari_box_meet(box, &stored[i].box, &made.box))
                continue;
            made.from = stored[i];
            made.to = wanted[w];
            OARI_TRY(oari_vec_push(&plan->common, made.box));
            OARI_TRY(fetch_common(plan, made));
        }
        OARI_TRY(check_common(plan, tensor, box));
        plan->wanted_bytes += (uint64_t)oari_box_count(box) * made.element;
    }
    return OAR_OK;
}

static int compare_fetches(const void *left, const void *right)
{
    const oari_ckpt_fetch *a = left, *b = right;

    if (a->from.file != b->from.file)
        return a->from.file < b->from.file ? -1 : 1;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->to.target != b->to.target)
        return a->to.target < b->to.target ? -1 : 1;
    return a->to.at < b->to.at ? -1 : a->to.at > b->to.at;
}

oar_status oari_ckpt_read_plan_finish(oari_ckpt_read_plan *plan)
{
    if (plan->fetch.count > 0)
        qsort(plan->fetch.data, (size_t)plan->fetch.count,
              sizeof *plan->fetch.data, compare_fetches);
    for (int64_t i = 0; i < plan->fetch.count; i++) {
        const oari_ckpt_fetch *f = &plan->fetch.data[i];
        oari_ckpt_range *range =
            i > 0 ? &plan->range.data[plan->range.count - 1] : NULL;
        if (range == NULL || range->file != f->from.file ||
            (f->at > range->at + range->bytes &&
             f->at - (range->at + range->bytes) >= plan->gap)) {
            OARI_TRY(oari_vec_push(&plan->range,
                                   (oari_ckpt_range){ .file = f->from.file,
                                                      .at = f->at,
                                                      .first = i }));
            range = &plan->range.data[plan->range.count - 1];
        }
        if (f->at + f->bytes > range->at + range->bytes)
            range->bytes = f->at + f->bytes - range->at;
        range->count++;
    }
    plan->read_bytes = 0;
    for (int64_t i = 0; i < plan->range.count; i++)
        plan->read_bytes += plan->range.data[i].bytes;
    return OAR_OK;
}

void oari_ckpt_read_plan_free(oari_ckpt_read_plan *plan)
{
    oari_vec_free(&plan->fetch);
    oari_vec_free(&plan->range);
    oari_vec_free(&plan->common);
    memset(plan, 0, sizeof *plan);
}
