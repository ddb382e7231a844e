/* SPDX-License-Identifier: Apache-2.0 */
/* lazy: see lazy.h. The switch belongs to a thread; the rule belongs to the
 * storage, which frees it when it gets memory or ends. */
#include "tensor/lazy.h"

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cpu/kernels.h"

enum { BLOCK = 256 }; /* elements converted at once */

static _Thread_local int lazy_on;

int oar_lazy(int on)
{
    int before = lazy_on;

    lazy_on = on != 0;
    return before;
}

int oar_tensor_is_lazy(const oar_tensor *tensor)
{
    return tensor != NULL && tensor->storage != NULL &&
           tensor->storage->initializer != NULL;
}

/* ---- numbers by a rule --------------------------------------------------- */

static void fill_constant(void *to, oar_dtype dtype, int64_t count,
                          double value)
{
    oari_array a = oari_host_array(to, dtype, OAR_SHAPE(count));

    oari_fill(&a, value);
}

/* Writes elements first .. first+count-1, of the rule's dtype. */
static void fill_range(const oari_initializer *rule, int64_t first,
                       int64_t count, void *to)
{
    int64_t zero = rule->zero_first > first ? rule->zero_first : first;
    int64_t zero_end = rule->zero_first + rule->zero_count;
    const double *number = rule->number;

    zero_end = zero_end < first + count ? zero_end : first + count;
    switch (rule->distribution) {
    case OARI_CONSTANT: fill_constant(to, rule->dtype, count, number[0]); break;
    case OARI_UNIFORM:
        oari_fill_uniform(to, rule->dtype, rule->first + first, count,
                          rule->seed, number[0], number[1]);
        break;
    case OARI_NORMAL:
        oari_fill_normal(to, rule->dtype, rule->first + first, count,
                         rule->seed, number[0], number[1]);
        break;
    }
    if (zero < zero_end)
        fill_constant((char *)to +
                          (size_t)(zero - first) * oar_dtype_size(rule->dtype),
                      rule->dtype, zero_end - zero, 0);
}

/* ---- making -------------------------------------------------------------- */

static oar_tensor *make_lazy(oar_shape shape, const oari_initializer *rule)
{
    oari_layout at = oari_layout_rows(shape);
    oari_initializer *kept;
    oar_storage *storage;
    oar_tensor *made;
    size_t bytes;

    if (oari_shape_check("a tensor", shape, rule->dtype) != OAR_OK)
        return NULL;
    bytes = (size_t)oari_shape_count(shape) * oar_dtype_size(rule->dtype);
    kept = oari_alloc(1, sizeof *kept);
    if (kept == NULL)
        return NULL;
    if (oar_storage_create_detached(bytes, 0, &storage) != OAR_OK) {
        oari_free(kept);
        return NULL;
    }
    *kept = *rule;
    storage->initializer = kept;
    made = oari_tensor_over(NULL, storage, rule->dtype, &at);
    oar_storage_release(storage); /* the tensor has its own reference */
    return made;
}

oar_tensor *oari_tensor_initialized(oari_pool *pool, oar_shape shape,
                                    const oari_initializer *rule)
{
    oar_tensor *made;

    if (pool == NULL && lazy_on)
        return make_lazy(shape, rule);
    made = oari_tensor_make(pool, rule->dtype, shape);
    if (made != NULL)
        fill_range(rule, 0, made->count, made->storage->data);
    return made;
}

/* ---- of a lazy tensor ---------------------------------------------------- */

static oar_status check_range(const oar_tensor *t, int64_t first, int64_t count,
                              oar_dtype dtype, const void *to)
{
    oari_shape_string shape;

    if (t == NULL)
        return oari_null("make_range");
    shape = oari_shape_text(t->at.shape);
    if (!oar_tensor_is_lazy(t))
        return oari_fail(OAR_E_STATE,
                         "make_range of a tensor %s that is not lazy",
                         shape.text);
    OARI_TRY(oari_check_dtype("make_range", dtype));
    if (t->dtype != t->storage->initializer->dtype ||
        !oari_layout_is_rows(&t->at))
        return oari_fail(OAR_E_ARG,
                         "make_range of a view %s of a lazy tensor: it is %s "
                         "and row by row",
                         shape.text,
                         oar_dtype_name(t->storage->initializer->dtype));
    if (first < 0 || count < 0 || count > t->count || first > t->count - count)
        return oari_fail(OAR_E_ARG,
                         "make_range of %lld elements from %lld on of a tensor "
                         "%s: no such range",
                         (long long)count, (long long)first, shape.text);
    if (to == NULL && count > 0)
        return oari_fail(OAR_E_ARG,
                         "make_range of a tensor %s: nowhere to "
                         "write to",
                         shape.text);
    return OAR_OK;
}

oar_status oar_tensor_make_range(const oar_tensor *lazy, int64_t first,
                                 int64_t count, oar_dtype dtype, void *to)
{
    const oari_initializer *rule;
    uint64_t block[BLOCK];

    OARI_TRY(check_range(lazy, first, count, dtype, to));
    rule = lazy->storage->initializer;
    first += lazy->at.offset;
    if (dtype == rule->dtype) {
        fill_range(rule, first, count, to);
        return OAR_OK;
    }
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;

        fill_range(rule, first + i, n, block);
        oari_convert((char *)to + (size_t)i * oar_dtype_size(dtype), dtype,
                     block, rule->dtype, (size_t)n);
    }
    return OAR_OK;
}

oar_status oar_tensor_realize(oar_tensor *tensor)
{
    oari_initializer rule;
    oar_storage *storage;

    if (tensor == NULL)
        return oari_null("realize");
    if (oari_tensor_attached(tensor))
        return OAR_OK;
    if (!oar_tensor_is_lazy(tensor))
        return oari_fail(OAR_E_STATE, "realize of a tensor %s %s",
                         oari_shape_text(tensor->at.shape).text,
                         oari_absence(tensor));
    storage = tensor->storage;
    rule = *storage->initializer;
    OARI_TRY(oar_storage_attach(storage, NULL, NULL, NULL));
    fill_range(&rule, 0, (int64_t)(storage->bytes / oar_dtype_size(rule.dtype)),
               storage->data);
    storage->version++;
    return OAR_OK;
}
