/* SPDX-License-Identifier: Apache-2.0 */
/* make: new tensors, owned by a tape or by the caller. None is recorded. */
#include <math.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/lazy.h"
#include "tensor/cpu/kernels.h"

static oar_tensor *make_empty(const char *name, oar_tape *tape, oar_dtype dtype,
                              oar_shape shape)
{
    if (oari_shape_check(name, shape, dtype) != OAR_OK)
        return NULL;
    return oari_keep(tape,
                     oari_tensor_make(oari_tape_pool(tape), dtype, shape));
}

static oar_tensor *make_initialized(const char *name, oar_tape *tape,
                                    oar_shape shape,
                                    const oari_initializer *rule)
{
    if (oari_shape_check(name, shape, rule->dtype) != OAR_OK)
        return NULL;
    return oari_keep(
        tape, oari_tensor_initialized(oari_tape_pool(tape), shape, rule));
}

static oar_tensor *make_full(const char *name, oar_tape *tape, oar_dtype dtype,
                             oar_shape shape, double value)
{
    oar_tensor *made;
    oari_array to;

    if (tape == NULL)
        return make_initialized(
            name, tape, shape,
            &(oari_initializer){ .dtype = dtype, .number = { value } });
    made = make_empty(name, tape, dtype, shape);
    if (made == NULL)
        return NULL;
    to = oari_array_of(made);
    oari_fill(&to, value);
    return made;
}

oar_tensor *oar_empty(oar_tape *tape, oar_dtype dtype, oar_shape shape)
{
    return make_empty("empty", tape, dtype, shape);
}

oar_tensor *oar_empty_on(oar_tape *tape, oar_device device, oar_dtype dtype,
                         oar_shape shape)
{
    if (oari_shape_check("empty_on", shape, dtype) != OAR_OK)
        return NULL;
    return oari_keep(
        tape, oari_tensor_make_on(oari_tape_pool(tape), device, dtype, shape));
}

oar_tensor *oar_full(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                     double value)
{
    return make_full("full", tape, dtype, shape, value);
}

oar_tensor *oar_zeros(oar_tape *tape, oar_dtype dtype, oar_shape shape)
{
    return make_full("zeros", tape, dtype, shape, 0);
}

oar_tensor *oar_from_data(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                          const void *data)
{
    oar_tensor *made;

    if (oari_shape_check("from_data", shape, dtype) != OAR_OK)
        return NULL;
    if (data == NULL && oari_shape_count(shape) > 0) {
        oari_fail(OAR_E_ARG, "from_data of %s: no data",
                  oari_shape_text(shape).text);
        return NULL;
    }
    made = oar_empty(tape, dtype, shape);
    if (made != NULL && made->count > 0)
        oar_tensor_write(made, dtype, data);
    return made;
}

oar_tensor *oar_uniform(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                        uint64_t seed, double low, double high)
{
    if (!(low <= high) || !isfinite(high - low)) {
        oari_fail(OAR_E_ARG,
                  "uniform in [%g, %g): low is at most high, and high - low "
                  "is finite",
                  low, high);
        return NULL;
    }
    return make_initialized("uniform", tape, shape,
                            &(oari_initializer){ .distribution = OARI_UNIFORM,
                                                 .dtype = dtype,
                                                 .number = { low, high },
                                                 .seed = seed });
}

oar_tensor *oar_normal(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                       uint64_t seed, double mean, double deviation)
{
    if (oari_shape_check("normal", shape, dtype) != OAR_OK)
        return NULL;
    if (!oari_dtype_is_float(dtype)) {
        oari_fail(OAR_E_DTYPE, "normal of %s %s: only floats",
                  oar_dtype_name(dtype), oari_shape_text(shape).text);
        return NULL;
    }
    return make_initialized("normal", tape, shape,
                            &(oari_initializer){ .distribution = OARI_NORMAL,
                                                 .dtype = dtype,
                                                 .number = { mean, deviation },
                                                 .seed = seed });
}

oar_tensor *oar_view_of(oar_tape *tape, oar_storage *storage, int64_t offset,
                        oar_dtype dtype, oar_shape shape)
{
    oari_layout at;

    if (storage == NULL) {
        oari_null("view_of");
        return NULL;
    }
    if (oari_check_fits("view", storage, offset, dtype, shape) != OAR_OK)
        return NULL;
    at = oari_layout_rows(shape);
    at.offset = offset;
    return oari_keep(
        tape, oari_tensor_over(oari_tape_pool(tape), storage, dtype, &at));
}

oar_tensor *oar_ones(oar_tape *tape, oar_dtype dtype, oar_shape shape)
{
    return make_full("ones", tape, dtype, shape, 1);
}

/* Each number is computed by itself, so errors do not add up. */
oar_tensor *oar_arange(oar_tape *tape, oar_dtype dtype, int64_t count,
                       double first, double step)
{
    oar_tensor *made = make_empty("arange", tape, dtype, OAR_SHAPE(count));
    double block[256];

    if (made == NULL)
        return NULL;
    for (int64_t i = 0; i < count; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;

        for (int64_t k = 0; k < n; k++)
            block[k] = first + (double)(i + k) * step;
        oari_convert((char *)made->storage->data +
                         (size_t)i * oar_dtype_size(dtype),
                     dtype, block, OAR_F64, (size_t)n);
    }
    return made;
}

oar_tensor *oar_eye(oar_tape *tape, oar_dtype dtype, int64_t rows,
                    int64_t columns)
{
    oar_tensor *made = make_empty("eye", tape, dtype, OAR_SHAPE(rows, columns));
    oari_array diagonal;

    if (made == NULL)
        return NULL;
    diagonal = oari_array_of(made);
    oari_fill(&diagonal, 0);
    diagonal.at.shape = OAR_SHAPE(rows < columns ? rows : columns);
    diagonal.at.stride[0] = columns + 1;
    oari_fill(&diagonal, 1);
    return made;
}
