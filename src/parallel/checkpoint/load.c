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

#include "base/clock.h"
#include "base/status.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/read_files.h"

enum {
    JOIN_GAP = 256 << 10, /* bytes that are read rather than skipped */
    NAMES_SHOWN = 3,
    READ_MS = 30 * 60 * 1000 /* for a rank to read what it wants */
};

/* What is read for an item. */
typedef struct match {
    const oari_ckpt_index_tensor *tensor; /* NULL: not loaded */
    int transpose;
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
    const char *at = l->opts.sections;
    size_t length = strlen(section);

    if (at == NULL)
        return 1;
    while (*at != '\0') {
        size_t n = strcspn(at, ",");

        if (n == length && memcmp(at, section, n) == 0)
            return 1;
        at += n + (at[n] == ',');
    }
    return 0;
}

/* Fits a name to a pattern with one '*' or none, and writes what the star
 * stands for into the other pattern. Returns whether it fits. */
static int rename_by(const char *from, const char *to, const char *name,
                     char *renamed, size_t room)
{
    const char *star = strchr(from, '*');
    size_t before = star != NULL ? (size_t)(star - from) : strlen(from);
    size_t after = star != NULL ? strlen(star + 1) : 0;
    size_t length = strlen(name);
    const char *slot = strchr(to, '*');
    int n;

    if (star == NULL
            ? strcmp(from, name) != 0
            : length < before + after || memcmp(name, from, before) != 0 ||
                  memcmp(name + length - after, star + 1, after) != 0)
        return 0;
    if (star == NULL || slot == NULL)
        n = snprintf(renamed, room, "%s", to);
    else
        n = snprintf(renamed, room, "%.*s%.*s%s", (int)(slot - to), to,
                     (int)(length - before - after), name + before, slot + 1);
    return n >= 0 && (size_t)n < room;
}

/* Finds the tensor for an item: by the rules in reverse, else by its name. */
static match find_tensor(const loading *l, const oari_ckpt_item *item)
{
    char name[OARI_CKPT_LONGEST_NAME + 1];
    match m = { NULL, 0 };

    if (strcmp(item->section, OARI_CKPT_MODEL) == 0)
        for (int i = 0; i < l->opts.renames && m.tensor == NULL; i++) {
            const oar_rename *r = &l->opts.rename[i];

            if (!rename_by(r->to, r->from, item->name, name, sizeof name))
                continue;
            m.tensor = oari_ckpt_index_find(&l->index, item->section, name);
            m.transpose = m.tensor != NULL && r->transpose;
        }
    if (m.tensor == NULL)
        m.tensor = oari_ckpt_index_find(&l->index, item->section, item->name);
    return m;
}

/* The number of edits between two names, up to a limit. */
static int distance(const char *a, const char *b)
{
    enum { LONGEST = 120 };
    int row[LONGEST + 1], n = (int)strlen(b);

    if (strlen(a) > LONGEST || n > LONGEST)
        return LONGEST;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static const char *nearest_name(const loading *l, const oari_ckpt_item *item)
{
    const char *best = NULL;
    int least = 0;

    for (int64_t i = 0; i < l->index.tensors; i++) {
        const oari_ckpt_index_tensor *t = &l->index.tensor[i];
        int edits;

        if (strcmp(t->section, item->section) != 0)
            continue;
        edits = distance(item->name, t->name);
        if (best == NULL || edits < least) {
            best = t->name;
            least = edits;
        }
    }
    return best;
}

static oar_status missing_names(const loading *l, int64_t first, int64_t count)
{
    char names[400] = "";
    const char *near = nearest_name(l, &l->state->item.data[first]);
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
                             item->name, oari_ckpt_shape_text(shape).text);
        shape = OAR_SHAPE(shape.dim[1], shape.dim[0]);
    }
    if (shape.ndim != whole.ndim ||
        memcmp(shape.dim, whole.dim,
               (size_t)shape.ndim * sizeof shape.dim[0]) != 0)
        return oari_fail(OAR_E_SHAPE,
                         "load: \"%.100s\" is %s in the checkpoint, and %s in "
                         "the state",
                         item->name, oari_ckpt_shape_text(shape).text,
                         oari_ckpt_shape_text(whole).text);
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

/* Adds what an item wants, to lie in memory `target`, row by row. */
static oar_status plan_item(const loading *l, int64_t i, int64_t target,
                            oari_ckpt_read_plan *plan)
{
    const oari_ckpt_item *item = &l->state->item.data[i];
    const oari_ckpt_index_tensor *t = l->match[i].tensor;
    oari_ckpt_tensor tensor = { .section = t->section,
                                .name = t->name,
                                .dtype = t->dtype,
                                .whole = oari_ckpt_index_shape(&l->index, t) };
    oari_ckpt_stored *stored = oari_alloc((size_t)t->chunks, sizeof *stored);
    oari_ckpt_box box[OARI_CKPT_FLAT_BOXES];
    oari_ckpt_wanted wanted[OARI_CKPT_FLAT_BOXES];
    uint64_t at = 0;
    int boxes = 1;
    oar_status status;

    if (stored == NULL)
        return OAR_E_NOMEM;
    for (int64_t k = 0; k < t->chunks; k++) {
        const oari_ckpt_index_chunk *c = &l->index.chunk[t->first + k];

        stored[k] = (oari_ckpt_stored){ oari_ckpt_index_box(&l->index, t, c),
                                        c->file, c->at };
    }
    box[0] = item->box;
    if (item->flat)
        boxes = oari_ckpt_flat_boxes(item->whole, item->first,
                                     oar_tensor_count(item->tensor), box);
    if (l->match[i].transpose)
        for (int d = 0; d < 2; d++) {
            box[0].offset[d] = item->box.offset[1 - d];
            box[0].extent[d] = item->box.extent[1 - d];
        }
    for (int k = 0; k < boxes; k++) {
        wanted[k] = (oari_ckpt_wanted){ box[k], target, at };
        at += (uint64_t)oari_ckpt_box_count(&box[k]) * oar_dtype_size(t->dtype);
    }
    status = boxes < 0
                 ? oari_fail(OAR_E_SHAPE,
                             "load: \"%.100s\" is not in its whole", item->name)
                 : oari_ckpt_read_plan_add(plan, &tensor, t->chunks, stored,
                                           boxes, wanted);
    oari_free(stored);
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
    oari_ckpt_read_plan plan = { .gap = JOIN_GAP };
    int64_t items = l->state->item.count;
    void **target = oari_alloc((size_t)items, sizeof *target);
    oar_status status = target == NULL ? OAR_E_NOMEM : OAR_OK;

    for (int64_t i = 0; i < items && status == OAR_OK; i++) {
        if (l->match[i].tensor == NULL || !is_direct(l, i))
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

/* Reads one item by way of a tensor as the file has it. */
static oar_status read_by_copy(loading *l, int64_t i)
{
    const oari_ckpt_item *item = &l->state->item.data[i];
    oari_ckpt_read_plan plan = { .gap = JOIN_GAP };
    oar_shape shape = oar_tensor_shape(item->tensor);
    oar_tensor *copy, *turned = NULL;
    oar_status status;
    void *target;

    if (l->match[i].transpose)
        shape = OAR_SHAPE(shape.dim[1], shape.dim[0]);
    copy = oar_empty(NULL, l->match[i].tensor->dtype, shape);
    if (copy == NULL)
        return oar_last_error()->status;
    target = oar_tensor_data(copy);
    status = plan_item(l, i, 0, &plan);
    if (status == OAR_OK)
        status = read_plan(l, &plan, &target);
    if (status == OAR_OK && l->match[i].transpose) {
        turned = oar_transpose(NULL, copy, 0, 1);
        status = turned == NULL ? oar_last_error()->status
                                : oar_tensor_copy(item->tensor, turned);
    } else if (status == OAR_OK) {
        status = oar_tensor_copy(item->tensor, copy);
    }
    oar_tensor_release(turned);
    oar_tensor_release(copy);
    oari_ckpt_read_plan_free(&plan);
    return status;
}

static oar_status read_all(loading *l)
{
    OARI_TRY(read_direct(l));
    for (int64_t i = 0; i < l->state->item.count; i++)
        if (l->match[i].tensor != NULL && !is_direct(l, i))
            OARI_TRY(read_by_copy(l, i));
    for (int64_t i = 0; i < l->state->source.count && is_wanted(l, "values");
         i++) {
        const oari_ckpt_source *source = &l->state->source.data[i];

        OARI_TRY(source->class->apply(source, &l->found));
    }
    return OAR_OK;
}

/* ---- the call ------------------------------------------------------------ */

/* Rank 0 finds the generation; all get the text of its index. */
static oar_status find_index(loading *l, int64_t step)
{
    oar_checkpoint *c = l->c;
    char *text = NULL, *copy;
    void *bytes = NULL;
    size_t size = 0;
    oar_status status = OAR_OK;

    if (c->rank == 0)
        status = step == OAR_NEWEST
                     ? oari_ckpt_find_newest(c->disk, c->folder, c->path, &step,
                                             &text, &size)
                     : oari_ckpt_read_index(c->disk, c->folder, c->path, step,
                                            &text, &size);
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
    if (status == OAR_OK)
        status = oari_ckpt_index_read(OARI_CKPT_INDEX, text, size, &l->index);
    else
        oari_free(text);
    if (status == OAR_OK && c->rank == 0)
        status = oari_ckpt_check_files(c->disk, c->folder, c->path,
                                       l->index.step, &l->index);
    l->found = (oari_ckpt_found){ &l->index, c->rank, c->ranks };
    return oari_ckpt_agree(c, status);
}

static oar_status run_load(loading *l, int64_t step)
{
    oar_checkpoint *c = l->c;
    int64_t start = oari_now_ns();
    oar_status status;

    OARI_TRY(find_index(l, step));
    OARI_TRY(oari_ckpt_agree(c, match_items(l)));
    OARI_TRY(check_unused(l));
    OARI_TRY(oari_ckpt_agree(c, check_all(l)));
    oari_ckpt_slow_begin(c, READ_MS);
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

oar_status oar_checkpoint_load(oar_checkpoint *checkpoint, oar_state *state,
                               int64_t step, const oar_load_opts *opts)
{
    loading l = { .c = checkpoint, .state = state };
    oar_status status;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_load"));
    OARI_TRY(oari_opts_read(&l.opts, sizeof l.opts, opts));
    status = OAR_OK;
    if (state == NULL || step < OAR_NEWEST || step > 999999999999 ||
        (l.opts.renames > 0 && l.opts.rename == NULL))
        status = oari_fail(OAR_E_ARG, "checkpoint_load: %s",
                           state == NULL ? "the state is NULL"
                           : l.opts.renames > 0 && l.opts.rename == NULL
                               ? "the renames are NULL"
                               : "no such step");
    OARI_TRY(oari_ckpt_agree(checkpoint, status));
    status = run_load(&l, step);
    oari_free(l.match);
    oari_free(l.used);
    oari_ckpt_index_free(&l.index);
    return status;
}
