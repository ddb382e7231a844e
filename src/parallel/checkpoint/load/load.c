/* SPDX-License-Identifier: Apache-2.0 */
/* load: fills a state from a generation. Rank 0 finds it and sends the index to
 * all; each rank then matches names, checks everything, and reads the bytes
 * that it wants. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/collective.h>
#include <oarsong/ops.h>

#include "base/call_site.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/load/read_files.h"
#include "parallel/checkpoint/load/share.h"
#include "parallel/checkpoint/tensor_names.h"

enum { NAMES_SHOWN = 3 };

/* What is read for an item. */
typedef struct match {
    const oari_ckpt_index_tensor *tensor; /* NULL: not loaded */
    int transpose;
    oar_tensor *copy; /* as the file has it, while it is shared */
    int there;        /* it has been shared */
} match;

typedef struct loading {
    oar_checkpoint *c;
    oar_state *state;
    oar_load_opts opts;
    oari_ckpt_index index;
    oari_ckpt_found found;
    match *match;        /* by item */
    unsigned char *used; /* by tensor of the index */
    uint64_t bytes, wanted;
} loading;

/* ---- names --------------------------------------------------------------- */

/* Whether a section or "values" is to be loaded. */
static int is_wanted(const loading *l, const char *section)
{
    return oari_ckpt_section_is_in(l->opts.sections, section);
}

/* Finds the tensor for an item: by the rules in reverse, else by its name. */
static match find_tensor(const loading *l, const oari_ckpt_item *item)
{
    char name[OARI_CKPT_LONGEST_NAME + 1];
    match m = { NULL, 0, NULL, 0 };

    if (strcmp(item->section, OARI_CKPT_MODEL) == 0)
        for (int i = 0; i < l->opts.renames && m.tensor == NULL; i++) {
            const oar_rename *r = &l->opts.rename[i];

            if (!oari_ckpt_rename(r->to, r->from, item->name, name,
                                  sizeof name))
                continue;
            m.tensor = oari_ckpt_index_find(&l->index, item->section, name);
            m.transpose = m.tensor != NULL && r->transpose;
        }
    if (m.tensor == NULL)
        m.tensor = oari_ckpt_index_find(&l->index, item->section, item->name);
    return m;
}

static oar_status missing_names(const loading *l, int64_t first, int64_t count)
{
    char names[400] = "";
    const char *near =
        oari_ckpt_index_nearest(&l->index, l->state->item.data[first].section,
                                l->state->item.data[first].name);
    int shown = 0;

    for (int64_t i = first; i < l->state->item.count && shown < NAMES_SHOWN;
         i++) {
        const oari_ckpt_item *item = &l->state->item.data[i];
        size_t length = strlen(names);

        if (!is_wanted(l, item->section) || l->match[i].tensor != NULL)
            continue;
        snprintf(names + length, sizeof names - length, "%s\"%.100s\"",
                 shown > 0 ? ", " : "", item->name);
        shown++;
    }
    return oari_fail(
        OAR_E_NOT_FOUND,
        "%s, step %" PRId64 ", lacks %" PRId64
        " of the state's names: %s%s%s%.100s%s",
        l->c->path, l->index.step, count, names, count > shown ? ", ..." : "",
        near != NULL ? "; the nearest name to the first is \"" : "",
        near != NULL ? near : "", near != NULL ? "\"" : "");
}

static oar_status match_items(loading *l)
{
    int64_t missing = 0, first = -1;

    l->match = oari_alloc((size_t)l->state->item.count, sizeof *l->match);
    l->used = oari_alloc((size_t)l->index.tensors, 1);
    if (l->match == NULL || l->used == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < l->state->item.count; i++) {
        const oari_ckpt_item *item = &l->state->item.data[i];

        if (!is_wanted(l, item->section))
            continue;
        l->match[i] = find_tensor(l, item);
        if (l->match[i].tensor != NULL) {
            l->used[l->match[i].tensor - l->index.tensor] = 1;
            continue;
        }
        if (missing++ == 0)
            first = i;
    }
    for (int64_t i = 0; i < l->state->alias.count; i++) {
        const oari_ckpt_alias *a = &l->state->alias.data[i];
        const oari_ckpt_index_tensor *t =
            oari_ckpt_index_find(&l->index, a->section, a->name);

        if (t != NULL)
            l->used[t - l->index.tensor] = 1;
    }
    if (missing > 0 && !(l->opts.partial & OAR_LOAD_MISSING))
        return missing_names(l, first, missing);
    return OAR_OK;
}

/* Finds tensors that no rank uses. All ranks call it. */
static oar_status check_unused(loading *l)
{
    char names[400] = "";
    int64_t count = 0;

    if (l->c->group != NULL && l->index.tensors > 0)
        OARI_TRY(oar_all_reduce(
            l->c->group, oar_span_of(l->used, (size_t)l->index.tensors, OAR_U8),
            OAR_MAX, NULL, NULL));
    if (l->opts.partial & OAR_LOAD_UNUSED)
        return OAR_OK;
    for (int64_t i = 0; i < l->index.tensors; i++) {
        const oari_ckpt_index_tensor *t = &l->index.tensor[i];
        size_t length = strlen(names);

        if (l->used[i] || !is_wanted(l, t->section))
            continue;
        if (count++ < NAMES_SHOWN)
            snprintf(names + length, sizeof names - length, "%s\"%.100s\"",
                     count > 1 ? ", " : "", t->name);
    }
    if (count == 0)
        return OAR_OK;
    return oari_fail(OAR_E_NOT_FOUND,
                     "%s, step %" PRId64 ", has %" PRId64
                     " names that the state does not want: %s%s",
                     l->c->path, l->index.step, count, names,
                     count > NAMES_SHOWN ? ", ..." : "");
}

/* ---- checking ------------------------------------------------------------ */

static oar_status check_item(const loading *l, int64_t i)
{
    const oari_ckpt_item *item = &l->state->item.data[i];
    const match *m = &l->match[i];
    oar_shape shape, whole = item->whole;

    if (m->tensor == NULL)
        return OAR_OK;
    shape = oari_ckpt_index_shape(&l->index, m->tensor);
    if (m->transpose) {
        if (shape.ndim != 2 || item->flat)
            return oari_fail(OAR_E_SHAPE,
                             "load: \"%.100s\" %s is not a matrix that can be "
                             "transposed",
                             item->name, oari_box_shape_text(shape).text);
        shape = OAR_SHAPE(shape.dim[1], shape.dim[0]);
    }
    if (shape.ndim != whole.ndim ||
        memcmp(shape.dim, whole.dim,
               (size_t)shape.ndim * sizeof shape.dim[0]) != 0)
        return oari_fail(OAR_E_SHAPE,
                         "load: \"%.100s\" is %s in the checkpoint, and %s in "
                         "the state",
                         item->name, oari_box_shape_text(shape).text,
                         oari_box_shape_text(whole).text);
    if (l->opts.no_convert &&
        m->tensor->dtype != oar_tensor_dtype(item->tensor))
        return oari_fail(OAR_E_DTYPE,
                         "load: \"%.100s\" is %s in the checkpoint, and %s in "
                         "the state",
                         item->name, oar_dtype_name(m->tensor->dtype),
                         oar_dtype_name(oar_tensor_dtype(item->tensor)));
    if (oar_tensor_count(item->tensor) > 0 &&
        (oar_tensor_is_read_only(item->tensor) ||
         (oar_tensor_device(item->tensor).kind == OAR_CPU &&
          oar_tensor_data(item->tensor) == NULL)))
        return oari_fail(OAR_E_STATE, "load: \"%.100s\" cannot be written",
                         item->name);
    return OAR_OK;
}

static oar_status check_all(loading *l)
{
    for (int64_t i = 0; i < l->state->item.count; i++)
        OARI_TRY(check_item(l, i));
    for (int64_t i = 0; i < l->state->source.count && is_wanted(l, "values");
         i++) {
        const oari_ckpt_source *source = &l->state->source.data[i];

        if (source->class->check != NULL)
            OARI_TRY(source->class->check(source, &l->found));
    }
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

/* Returns the box of an item that is not flat, as the file has it. */
static oari_box wanted_box(const loading *l, int64_t i)
{
    oari_box box = l->state->item.data[i].box;

    if (l->match[i].transpose)
        for (int d = 0; d < 2; d++) {
            box.offset[d] = l->state->item.data[i].box.offset[1 - d];
            box.extent[d] = l->state->item.data[i].box.extent[1 - d];
        }
    return box;
}

/* Adds what an item wants, to lie in memory `target`, row by row. */
static oar_status plan_item(const loading *l, int64_t i, int64_t target,
                            oari_ckpt_read_plan *plan)
{
    const oari_ckpt_item *item = &l->state->item.data[i];
    const oari_ckpt_index_tensor *t = l->match[i].tensor;
    oari_box box[OARI_FLAT_BOXES];
    oari_ckpt_wanted wanted[OARI_FLAT_BOXES];
    uint64_t at = 0;
    int boxes = 1;
    oar_status status;

    box[0] = wanted_box(l, i);
    if (item->flat)
        boxes = oari_flat_boxes(item->whole, item->first,
                                oar_tensor_count(item->tensor), box);
    if (boxes < 0)
        return oari_fail(OAR_E_SHAPE, "load: \"%.100s\" is not in its whole",
                         item->name);
    for (int k = 0; k < boxes; k++) {
        wanted[k] = (oari_ckpt_wanted){ box[k], target, at };
        at += (uint64_t)oari_box_count(&box[k]) * oar_dtype_size(t->dtype);
    }
    status = oari_ckpt_read_plan_wanted(plan, &l->index, t, boxes, wanted);
    if (status == OAR_E_DATA) {
        oar_error why = *oar_last_error();

        return oari_fail(OAR_E_DATA, "%s, step %" PRId64 ": %.300s", l->c->path,
                         l->index.step, why.text);
    }
    return status;
}

static oar_status read_plan(loading *l, oari_ckpt_read_plan *plan,
                            void *const *target)
{
    oari_ckpt_reading reading = { .disk = l->c->disk,
                                  .folder = l->c->folder,
                                  .path = l->c->path,
                                  .index = &l->index,
                                  .plan = plan,
                                  .target = target,
                                  .threads = l->c->opts.threads,
                                  .buffered = l->c->opts.buffered,
                                  .rank = l->c->rank,
                                  .ranks = l->c->ranks,
                                  .no_verify = l->opts.no_verify };
    oar_status status = oari_ckpt_read_plan_finish(plan);

    if (status == OAR_OK)
        status = oari_ckpt_read_files(&reading);
    l->bytes += reading.bytes;
    l->wanted += plan->wanted_bytes;
    return status;
}

/* Whether the bytes of the file can go straight to the item's memory. */
static int is_direct(const loading *l, int64_t i)
{
    const oari_ckpt_item *item = &l->state->item.data[i];

    return l->match[i].tensor->dtype == oar_tensor_dtype(item->tensor) &&
           !l->match[i].transpose && oar_tensor_is_contiguous(item->tensor) &&
           oar_tensor_device(item->tensor).kind == OAR_CPU;
}

/* Reads all items whose memory is as the files have it, at once. */
static oar_status read_direct(loading *l)
{
    oari_ckpt_read_plan plan = { .gap = oari_ckpt_join_gap(&l->index) };
    int64_t items = l->state->item.count;
    void **target = oari_alloc((size_t)items, sizeof *target);
    oar_status status = target == NULL ? OAR_E_NOMEM : OAR_OK;

    for (int64_t i = 0; i < items && status == OAR_OK; i++) {
        if (l->match[i].tensor == NULL || l->match[i].there || !is_direct(l, i))
            continue;
        target[i] = oar_tensor_data(l->state->item.data[i].tensor);
        status = plan_item(l, i, i, &plan);
    }
    if (status == OAR_OK)
        status = read_plan(l, &plan, target);
    for (int64_t i = 0; i < items && status == OAR_OK; i++)
        if (target[i] != NULL)
            status = oar_tensor_touch(l->state->item.data[i].tensor);
    oari_ckpt_read_plan_free(&plan);
    oari_free(target);
    return status;
}

/* Makes a tensor for an item as the file has it. */
static oar_status make_copy(const loading *l, int64_t i, oar_tensor **copy)
{
    oar_shape shape = oar_tensor_shape(l->state->item.data[i].tensor);

    if (l->match[i].transpose)
        shape = OAR_SHAPE(shape.dim[1], shape.dim[0]);
    *copy = oar_empty(NULL, l->match[i].tensor->dtype, shape);
    return *copy != NULL ? OAR_OK : oar_last_error()->status;
}

/* Converts such a tensor to what the item is. */
static oar_status take_copy(const loading *l, int64_t i, oar_tensor *copy)
{
    oar_tensor *into = l->state->item.data[i].tensor, *turned;
    oar_status status;

    if (!l->match[i].transpose)
        return oar_tensor_copy(into, copy);
    turned = oar_transpose(NULL, copy, 0, 1);
    status = turned == NULL ? oar_last_error()->status
                            : oar_tensor_copy(into, turned);
    oar_tensor_release(turned);
    return status;
}

/* Reads one item by way of a tensor as the file has it. */
static oar_status read_by_copy(loading *l, int64_t i)
{
    oari_ckpt_read_plan plan = { .gap = oari_ckpt_join_gap(&l->index) };
    oar_tensor *copy;
    oar_status status;
    void *target;

    OARI_TRY(make_copy(l, i, &copy));
    target = oar_tensor_data(copy);
    status = plan_item(l, i, 0, &plan);
    if (status == OAR_OK)
        status = read_plan(l, &plan, &target);
    if (status == OAR_OK)
        status = take_copy(l, i, copy);
    oar_tensor_release(copy);
    oari_ckpt_read_plan_free(&plan);
    return status;
}

/* ---- sharing ------------------------------------------------------------- */

/* The wants of a load, and the item of each. */
typedef struct load_wants {
    loading *l;
    int64_t *item;
} load_wants;

static oar_status begin_shared(void *arg, int64_t want, void **memory)
{
    const load_wants *w = arg;
    int64_t i = w->item[want];
    match *m = &w->l->match[i];

    if (is_direct(w->l, i)) {
        *memory = oar_tensor_data(w->l->state->item.data[i].tensor);
        return OAR_OK;
    }
    OARI_TRY(make_copy(w->l, i, &m->copy));
    *memory = oar_tensor_data(m->copy);
    return OAR_OK;
}

static oar_status end_shared(void *arg, int64_t want)
{
    const load_wants *w = arg;
    int64_t i = w->item[want];
    match *m = &w->l->match[i];
    oar_status status;

    m->there = 1;
    if (m->copy == NULL)
        return oar_tensor_touch(w->l->state->item.data[i].tensor);
    status = take_copy(w->l, i, m->copy);
    oar_tensor_release(m->copy);
    m->copy = NULL;
    return status;
}

/* Reads with the others what they want as well. All ranks call it. */
static oar_status read_shared(loading *l)
{
    int64_t items = l->state->item.count;
    load_wants w = { l, oari_alloc((size_t)items, sizeof *w.item) };
    oari_ckpt_sharing sharing = { .c = l->c,
                                  .index = &l->index,
                                  .no_verify = l->opts.no_verify,
                                  .want = oari_alloc((size_t)items,
                                                     sizeof *sharing.want),
                                  .begin = begin_shared,
                                  .end = end_shared,
                                  .arg = &w };
    oar_status status = OAR_OK;

    if (w.item == NULL || sharing.want == NULL)
        status = OAR_E_NOMEM;
    for (int64_t i = 0; i < items && status == OAR_OK; i++) {
        const oari_ckpt_item *item = &l->state->item.data[i];

        if (l->match[i].tensor == NULL || item->flat ||
            oar_tensor_count(item->tensor) == 0)
            continue;
        w.item[sharing.wants] = i;
        sharing.want[sharing.wants++] =
            (oari_ckpt_want){ .tensor = l->match[i].tensor,
                              .box = wanted_box(l, i) };
    }
    status = oari_ckpt_agree(l->c, status);
    if (status == OAR_OK)
        status = oari_ckpt_share(&sharing);
    l->bytes += sharing.bytes;
    l->wanted += sharing.wanted;
    for (int64_t i = 0; i < items; i++)
        oar_tensor_release(l->match[i].copy);
    oari_free(w.item);
    oari_free(sharing.want);
    return status;
}

/* Returns whether sharing is wanted and of use. All ranks call it. */
static oar_status choose_sharing(const loading *l, int *share)
{
    *share = l->opts.share > 0;
    if (l->c->ranks == 1 || l->opts.share < 0)
        *share = 0;
    else if (l->opts.share == 0)
        return oari_ckpt_on_several_hosts(l->c, share);
    return OAR_OK;
}

static oar_status read_all(loading *l)
{
    OARI_TRY(read_direct(l));
    for (int64_t i = 0; i < l->state->item.count; i++)
        if (l->match[i].tensor != NULL && !l->match[i].there &&
            !is_direct(l, i))
            OARI_TRY(read_by_copy(l, i));
    for (int64_t i = 0; i < l->state->source.count && is_wanted(l, "values");
         i++) {
        const oari_ckpt_source *source = &l->state->source.data[i];

        OARI_TRY(source->class->apply(source, &l->found));
    }
    return is_wanted(l, "values") ? oari_ckpt_keep_counters(l->state, &l->found)
                                  : OAR_OK;
}

/* ---- the call ------------------------------------------------------------ */

/* Rank 0 finds the generation; all get the text of its index. */
static oar_status find_index(loading *l, int64_t step)
{
    oar_checkpoint *c = l->c;
    char *text = NULL, *copy, what[300], name[OARI_CKPT_STEP_NAME] = "newest";
    void *bytes = NULL;
    size_t size = 0;
    oar_status status = OAR_OK;

    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.read_ms);
    if (c->rank == 0)
        status = step == OAR_NEWEST
                     ? oari_ckpt_find_newest(c->disk, c->folder, c->path, &step,
                                             &text, &size)
                     : oari_ckpt_read_index(c->disk, c->folder, c->path, step,
                                            &text, &size);
    oari_ckpt_slow_end(c);
    status = oari_ckpt_agree(c, status);
    if (status != OAR_OK)
        return status;
    bytes = text;
    if (c->group != NULL)
        status = oar_broadcast_bytes(c->group, &bytes, &size, 0, NULL, NULL);
    if (status == OAR_OK && c->rank != 0) {
        copy = oari_alloc(size + 1, 1);
        if (copy != NULL)
            memcpy(copy, bytes, size);
        oar_free(bytes);
        text = copy;
        status = copy == NULL ? OAR_E_NOMEM : OAR_OK;
    }
    if (step != OAR_NEWEST)
        oari_ckpt_step_name(step, name);
    snprintf(what, sizeof what, "%.200s/%s/" OARI_CKPT_INDEX, c->path, name);
    if (status == OAR_OK)
        status = oari_ckpt_index_read(what, text, size, &l->index);
    else
        oari_free(text);
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.read_ms);
    if (status == OAR_OK && c->rank == 0)
        status =
            oari_ckpt_check_files(c->disk, c->folder, c->path, step, &l->index);
    oari_ckpt_slow_end(c);
    l->found = (oari_ckpt_found){ &l->index, c->rank, c->ranks };
    return oari_ckpt_agree(c, status);
}

static oar_status run_load(loading *l, int64_t step)
{
    oar_checkpoint *c = l->c;
    int64_t start = oari_now_ns();
    oar_status status;
    int share;

    OARI_TRY(find_index(l, step));
    OARI_TRY(oari_ckpt_agree(c, match_items(l)));
    OARI_TRY(check_unused(l));
    OARI_TRY(oari_ckpt_agree(c, check_all(l)));
    for (int64_t i = 0; i < l->state->source.count; i++)
        if (l->state->source.data[i].class->begin_load != NULL)
            l->state->source.data[i].class->begin_load(
                &l->state->source.data[i]);
    OARI_TRY(choose_sharing(l, &share));
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.read_ms);
    status = share ? read_shared(l) : OAR_OK;
    if (status == OAR_OK)
        status = read_all(l);
    oari_ckpt_slow_end(c);
    OARI_TRY(oari_ckpt_agree(c, status));
    c->stats =
        (oar_checkpoint_stats){ .size = sizeof c->stats,
                                .step = l->index.step,
                                .bytes = l->bytes,
                                .wanted_bytes = l->wanted,
                                .total_s =
                                    (double)(oari_now_ns() - start) * 1e-9 };
    return OAR_OK;
}

oar_status oar_checkpoint_load_at(const char *file, int line,
                                  oar_checkpoint *checkpoint, oar_state *state,
                                  int64_t step, const oar_load_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    OARI_TRACED(OARI_TRACE_CHECKPOINT, "load");
    loading l = { .c = checkpoint, .state = state };
    oar_status status;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_load"));
    OARI_TRY(oari_opts_read(&l.opts, sizeof l.opts, opts));
    status = OAR_OK;
    if (state == NULL || (l.opts.renames > 0 && l.opts.rename == NULL))
        status = oari_fail(OAR_E_ARG, "checkpoint_load: %s",
                           state == NULL ? "the state is NULL"
                                         : "the renames are NULL");
    else if (step < OAR_NEWEST || step > 999999999999)
        status = oari_fail(OAR_E_ARG,
                           "checkpoint_load: step %" PRId64
                           "; OAR_NEWEST and 0 to 999,999,999,999 are allowed",
                           step);
    (void)oari_ckpt_settle(checkpoint, 0);
    OARI_TRY(oari_ckpt_agree(checkpoint, status));
    OARI_TRY(oari_ckpt_agree_same(
        checkpoint, "checkpoint_load", 2,
        (oari_ckpt_same[]){ { "step", step }, { "share", l.opts.share } }));
    oari_ckpt_copy_guard_wait(state->guard);
    status = run_load(&l, step);
    oari_free(l.match);
    oari_free(l.used);
    oari_ckpt_index_free(&l.index);
    return status;
}
