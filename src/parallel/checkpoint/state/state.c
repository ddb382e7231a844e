/* SPDX-License-Identifier: Apache-2.0 */
/* state: the list of what is saved. */
#include "parallel/checkpoint/state/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "parallel/ddp/ddp.h"

/* ---- making -------------------------------------------------------------- */

oar_status oar_state_create(oar_state **state)
{
    oar_state *s;

    if (state == NULL)
        return oari_fail(OAR_E_ARG, "state_create: nowhere to give it");
    s = oari_alloc(1, sizeof *s);
    if (s == NULL)
        return OAR_E_NOMEM;
    if (oari_ckpt_copy_guard_create(&s->guard) != OAR_OK) {
        oari_free(s);
        return OAR_E_NOMEM;
    }
    *state = s;
    return OAR_OK;
}

static void clear_item(oari_ckpt_item *item)
{
    oar_tensor_release(item->tensor);
    oari_free(item->section);
    oari_free(item->name);
}

static void clear_alias(oari_ckpt_alias *alias)
{
    /* The texts are ours: see add_alias. */
    oari_free((void *)(uintptr_t)alias->section);
    oari_free((void *)(uintptr_t)alias->name);
    oari_free((void *)(uintptr_t)alias->of);
}

void oar_state_destroy(oar_state *state)
{
    if (state == NULL)
        return;
    oari_ckpt_copy_guard_wait(state->guard);
    for (int64_t i = 0; i < state->source.count; i++) {
        if (state->source.data[i].class->drop != NULL)
            state->source.data[i].class->drop(&state->source.data[i]);
        oari_free(state->source.data[i].name);
    }
    for (int64_t i = 0; i < state->item.count; i++)
        clear_item(&state->item.data[i]);
    for (int64_t i = 0; i < state->alias.count; i++)
        clear_alias(&state->alias.data[i]);
    for (int64_t i = 0; i < state->module.count; i++) {
        oar_module_release(state->module.data[i].module);
        oari_free(state->module.data[i].prefix);
    }
    oari_ckpt_values_free(&state->kept);
    oari_vec_free(&state->source);
    oari_vec_free(&state->item);
    oari_vec_free(&state->alias);
    oari_vec_free(&state->module);
    oari_ckpt_copy_guard_destroy(state->guard);
    oari_free(state);
}

/* ---- arrays -------------------------------------------------------------- */

static oar_status find_place(const char *name, oar_shape shape,
                             const oar_place *place, oari_ckpt_item *item)
{
    oar_place p;

    if (place == NULL) {
        item->whole = shape;
        item->box = oari_box_whole(shape);
        return OAR_OK;
    }
    OARI_TRY(oari_opts_read(&p, sizeof p, place));
    item->whole = p.whole;
    item->flat = p.flat != 0;
    item->first = p.first;
    if (p.flat)
        return OAR_OK;
    if (p.whole.ndim != shape.ndim)
        return oari_fail(OAR_E_ARG,
                         "state: \"%.100s\" has %d dims, its whole %d", name,
                         shape.ndim, p.whole.ndim);
    item->box.ndim = shape.ndim;
    for (int i = 0; i < shape.ndim; i++) {
        item->box.offset[i] = p.offset[i];
        item->box.extent[i] = shape.dim[i];
    }
    return OAR_OK;
}

oar_status oari_state_add(oar_state *state, const char *section,
                          const char *name, oar_tensor *tensor,
                          const oar_place *place, unsigned flags)
{
    oari_ckpt_item item = { .flags = flags };

    OARI_TRY(find_place(name, oar_tensor_shape(tensor), place, &item));
    OARI_TRY(oari_vec_reserve(&state->item, 1));
    item.section = oari_strdup(section);
    item.name = oari_strdup(name);
    if (item.section == NULL || item.name == NULL) {
        clear_item(&item);
        return OAR_E_NOMEM;
    }
    item.tensor = oar_tensor_retain(tensor);
    item.at_once = (flags & OARI_CKPT_BYTES) != 0;
    state->item.data[state->item.count++] = item;
    return OAR_OK;
}

oar_status oar_state_add_tensor(oar_state *state, const char *section,
                                const char *name, oar_tensor *tensor,
                                const oar_place *place)
{
    if (state == NULL || section == NULL || name == NULL || tensor == NULL)
        return oari_fail(OAR_E_ARG, "state_add_tensor: %s is NULL",
                         state == NULL     ? "the state"
                         : section == NULL ? "the section"
                         : name == NULL    ? "the name"
                                           : "the tensor");
    return oari_state_add(state, section, name, tensor, place, 0);
}

/* A tensor over memory of the caller's. */
static oar_status wrap_span(const char *name, oar_span span, oar_shape shape,
                            oar_tensor **tensor)
{
    size_t bytes = span.count * oar_dtype_size(span.dtype);
    oar_storage *storage;
    oar_status status;

    if (!oari_box_shape_fits(shape, oar_dtype_size(span.dtype)) ||
        (uint64_t)oari_box_count(&(oari_box[]){ oari_box_whole(shape) }[0]) !=
            span.count)
        return oari_fail(OAR_E_ARG,
                         "state: \"%.100s\" has %zu elements, its shape %s "
                         "another number",
                         name, span.count, oari_box_shape_text(shape).text);
    OARI_TRY(oar_storage_create_on(span.device, bytes, &storage));
    status = oar_storage_detach(storage);
    if (status == OAR_OK)
        status = oar_storage_attach(storage, span.data, NULL, NULL);
    if (status == OAR_OK) {
        *tensor = oar_view_of(NULL, storage, 0, span.dtype, shape);
        status = *tensor != NULL ? OAR_OK : oar_last_error()->status;
    }
    oar_storage_release(storage);
    return status;
}

oar_status oar_state_add_span(oar_state *state, const char *section,
                              const char *name, oar_span span, oar_shape shape,
                              const oar_place *place)
{
    oar_tensor *tensor;
    oar_status status;

    if (state == NULL || section == NULL || name == NULL)
        return oari_fail(OAR_E_ARG, "state_add_span: %s is NULL",
                         state == NULL     ? "the state"
                         : section == NULL ? "the section"
                                           : "the name");
    OARI_TRY(wrap_span(name, span, shape, &tensor));
    status = oari_state_add(state, section, name, tensor, place, 0);
    oar_tensor_release(tensor);
    return status;
}

oar_status oar_state_add_bytes(oar_state *state, const char *name, void *data,
                               size_t bytes)
{
    oar_tensor *tensor;
    oar_status status;

    if (state == NULL || name == NULL || (data == NULL && bytes > 0))
        return oari_fail(OAR_E_ARG, "state_add_bytes: %s is NULL",
                         state == NULL  ? "the state"
                         : name == NULL ? "the name"
                                        : "data");
    OARI_TRY(wrap_span(name, oar_span_of(data, bytes, OAR_U8),
                       OAR_SHAPE((int64_t)bytes), &tensor));
    status =
        oari_state_add(state, "extra", name, tensor, NULL, OARI_CKPT_BYTES);
    oar_tensor_release(tensor);
    return status;
}

oar_status oar_place_of_rank(oar_shape whole, int dim, int rank, int ranks,
                             oar_place *place, oar_shape *part)
{
    oar_place p = { .size = sizeof p, .whole = whole };
    int64_t each, rest;

    if (ranks < 1 || rank < 0 || rank >= ranks)
        return oari_fail(OAR_E_RANK, "place_of_rank: rank %d of %d", rank,
                         ranks);
    if (whole.ndim < 1 || whole.ndim > OAR_MAX_DIMS || dim < 0 ||
        dim >= whole.ndim)
        return oari_fail(OAR_E_SHAPE, "place_of_rank: dim %d of %d dims", dim,
                         whole.ndim);
    if (place == NULL || part == NULL)
        return oari_fail(OAR_E_ARG, "place_of_rank: nowhere to give it");
    each = whole.dim[dim] / ranks;
    rest = whole.dim[dim] % ranks;
    p.offset[dim] = each * rank + (rank < rest ? rank : rest);
    *part = whole;
    part->dim[dim] = each + (rank < rest);
    return oari_struct_give(place, &p, sizeof p, "place");
}

/* ---- sources ------------------------------------------------------------- */

oar_status oari_state_add_source(oar_state *state,
                                 const oari_ckpt_source_class *class,
                                 void *object, const char *name)
{
    oari_ckpt_source source = { .class = class, .object = object };

    OARI_TRY(oari_vec_reserve(&state->source, 1));
    source.name = oari_strdup(name);
    if (source.name == NULL)
        return OAR_E_NOMEM;
    source.first = state->item.count;
    state->source.data[state->source.count++] = source;
    return OAR_OK;
}

static oar_status collect_i64(const oari_ckpt_source *source,
                              oari_ckpt_values *values)
{
    return oari_ckpt_add_number(values, source->name,
                                *(const int64_t *)source->object);
}

static oar_status apply_i64(const oari_ckpt_source *source,
                            const oari_ckpt_found *found)
{
    return oari_ckpt_get_number(found, source->name, source->object);
}

static oar_status check_i64(const oari_ckpt_source *source,
                            const oari_ckpt_found *found)
{
    int64_t number;

    return oari_ckpt_get_number(found, source->name, &number);
}

static const oari_ckpt_source_class i64_class = { .collect = collect_i64,
                                                  .check = check_i64,
                                                  .apply = apply_i64 };

static oar_status collect_f64(const oari_ckpt_source *source,
                              oari_ckpt_values *values)
{
    return oari_ckpt_add_float(values, source->name,
                               *(const double *)source->object);
}

static oar_status apply_f64(const oari_ckpt_source *source,
                            const oari_ckpt_found *found)
{
    return oari_ckpt_get_float(found, source->name, source->object);
}

static oar_status check_f64(const oari_ckpt_source *source,
                            const oari_ckpt_found *found)
{
    double number;

    return oari_ckpt_get_float(found, source->name, &number);
}

static const oari_ckpt_source_class f64_class = { .collect = collect_f64,
                                                  .check = check_f64,
                                                  .apply = apply_f64 };

/* Adds a number under "KIND.NAME". */
static oar_status add_number(oar_state *state, const char *kind,
                             const oari_ckpt_source_class *class, void *number,
                             const char *name)
{
    char full[OARI_CKPT_LONGEST_NAME + 8];

    if (state == NULL || name == NULL || number == NULL)
        return oari_fail(OAR_E_ARG, "state_add_%s: %s is NULL", kind,
                         state == NULL  ? "the state"
                         : name == NULL ? "the name"
                                        : "the number");
    snprintf(full, sizeof full, "%s.%s", kind, name);
    return oari_state_add_source(state, class, number, full);
}

oar_status oar_state_add_i64(oar_state *state, const char *name,
                             int64_t *number)
{
    return add_number(state, "i64", &i64_class, number, name);
}

oar_status oar_state_add_f64(oar_state *state, const char *name, double *number)
{
    return add_number(state, "f64", &f64_class, number, name);
}
