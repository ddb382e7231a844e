/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_state: parameters between passes: which shards they are in, how they are
 * read, written and loaded as a whole; and the step of a loss scaler.
 *
 * What is written goes to this rank's shards. The next forward, or unshard,
 * publishes it: on all ranks, as each of them has written.
 */
#include "parallel/fsdp/fsdp.h"

#include <string.h>

#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"

enum { NAME = 1024 };

/* ---- which shards -------------------------------------------------------- */

oar_status oari_fsdp_shard_of(const oari_fsdp *d, int array, oar_shard *shard)
{
    for (int i = 0; i < oar_shards_count(d->shards); i++) {
        OARI_TRY(oar_shards_shard(d->shards, i, shard));
        if (shard->array == array)
            return OAR_OK;
    }
    shard->array = array;
    shard->count = 0;
    return OAR_OK;
}

int oari_fsdp_array_of_param(const oari_fsdp *d, const oar_tensor *param)
{
    for (int i = 0; i < d->params; i++)
        if (d->param[i].tensor == param)
            return i;
    return -1;
}

int oari_fsdp_array_of_shard(const oari_fsdp *d, const oar_tensor *shard)
{
    for (int i = 0; i < d->shards->shards; i++)
        if (d->shards->shard[i].tensor == shard)
            return d->shards->shard[i].array;
    return -1;
}

void oari_fsdp_changed(oari_fsdp *d)
{
    d->changed = 1;
    d->unstepped = UINT64_MAX;
    oari_kept_begin_change(d);
}

/* ---- one parameter ------------------------------------------------------- */

static int is_param(const oar_module *module, const oar_tensor *tensor)
{
    for (int i = 0; i < oar_module_params(module); i++)
        if (oar_module_param(module, i) == tensor)
            return 1;
    return 0;
}

/* Finds a parameter by its name in the module inside, and checks the rest.
 * array: below 0 if FSDP ignores it. */
static oar_status find_param(const oar_module *wrapped, const char *what,
                             const char *name, oar_dtype dtype, oari_fsdp **d,
                             oar_tensor **param, int *array)
{
    oari_fsdp *found = oari_fsdp_of(wrapped);

    if (found == NULL)
        return oari_fail(OAR_E_ARG, "%s of a module that FSDP does not wrap",
                         what);
    if (name == NULL || oar_dtype_size(dtype) == 0)
        return oari_fail(OAR_E_ARG, "%s without a %s", what,
                         name == NULL ? "name" : "dtype");
    *param = oar_module_find(oar_module_child(wrapped, 0), name);
    if (*param == NULL || !is_param(wrapped, *param))
        return oari_fail(OAR_E_NOT_FOUND,
                         "%s: no parameter is called \"%.200s\"", what, name);
    *array = oari_fsdp_array_of_param(found, *param);
    *d = found;
    return OAR_OK;
}

/* The same on a GPU: there first, then to the host. */
static oar_status read_gpu_shards(oar_shards *s, int array, oar_dtype dtype,
                                  void *data)
{
    oar_dtype from = s->flat[s->array[array].flat].dtype;
    oar_tensor *whole = oar_empty_on(
        NULL, s->device, from, OAR_SHAPE((int64_t)s->array[array].count + 1));
    oar_tensor *numbers;
    oar_status status;

    if (whole == NULL)
        return oari_shards_break(s); /* the others wait for this rank */
    status = oari_shards_gather_array(s, array, oar_tensor_data(whole));
    if (status == OAR_OK && data != NULL && s->array[array].count > 0) {
        numbers = oar_view_of(NULL, oar_tensor_storage(whole), 0, from,
                              OAR_SHAPE((int64_t)s->array[array].count));
        status = numbers != NULL ? oar_tensor_read(numbers, dtype, data)
                                 : oar_last_error()->status;
        oar_tensor_release(numbers);
    }
    oar_tensor_release(whole);
    return status;
}

/* Gathers the shards of one parameter, on all ranks, and converts them. */
static oar_status read_shards(oari_fsdp *d, int array, oar_dtype dtype,
                              void *data)
{
    oar_shards *s = d->shards;
    oar_dtype from = s->flat[s->array[array].flat].dtype;
    size_t count = s->array[array].count;
    void *whole = from == dtype ? data : NULL;
    void *own = NULL;
    oar_status status;

    if (s->shard_device.kind == OAR_CUDA)
        return read_gpu_shards(s, array, dtype, data);
    if (whole == NULL)
        whole = own = oari_alloc(count + 1, oar_dtype_size(from));
    if (whole == NULL)
        return oari_shards_break(s); /* the others wait for this rank */
    status = oari_shards_gather_array(s, array, whole);
    if (status == OAR_OK && own != NULL && data != NULL)
        oari_convert(data, dtype, own, from, count);
    oari_free(own);
    return status;
}

oar_status oar_fsdp_read_param_at(const char *file, int line,
                                  oar_module *wrapped, const char *name,
                                  oar_dtype dtype, void *data)
{
    OARI_CALLED_FROM(file, line);
    oar_tensor *param;
    oari_fsdp *d;
    int array;

    OARI_TRY(find_param(wrapped, "fsdp_read_param", name, dtype, &d, &param,
                        &array));
    OARI_TRY(oari_shards_check(d->shards, "fsdp_read_param"));
    if (array >= 0 && (!d->shards->resident || d->shards->apart))
        return read_shards(d, array, dtype, data);
    if (array >= 0)
        OARI_TRY(oari_fsdp_publish(d));
    return data != NULL ? oar_tensor_read(param, dtype, data) : OAR_OK;
}

/* Before shards are written: no rank may read them meanwhile, and all ranks
 * publish afterwards. */
static oar_status begin_write(oari_fsdp *d, const char *what)
{
    const oar_shards *s = d->shards;

    OARI_TRY(oari_shards_check(s, what));
    for (int u = 0; u < s->units && !s->resident; u++)
        if (s->unit[u].users > 0)
            return oari_fail(OAR_E_STATE, "%s while %s is whole: reshard first",
                             what, oari_shards_unit_name(s, u).text);
    if (oari_shards_on_gpu(s) && s->local != NULL)
        OARI_TRY(oari_gpu_fence(d->shards));
    else if (s->resident && s->local != NULL)
        OARI_TRY(oar_barrier(d->group, OAR_OPTS(oar_call_opts, .label = what),
                             NULL));
    oari_fsdp_changed(d);
    return OAR_OK;
}

oar_status oar_fsdp_write_param_at(const char *file, int line,
                                   oar_module *wrapped, const char *name,
                                   oar_dtype dtype, const void *data)
{
    OARI_CALLED_FROM(file, line);
    oar_shard shard = oar_shard_init();
    oar_tensor *param;
    oari_fsdp *d;
    int array;

    OARI_TRY(find_param(wrapped, "fsdp_write_param", name, dtype, &d, &param,
                        &array));
    if (data == NULL && oar_tensor_count(param) > 0)
        return oari_fail(OAR_E_ARG, "fsdp_write_param: no numbers for \"%s\"",
                         name);
    if (array < 0)
        return oar_tensor_write(param, dtype, data);
    OARI_TRY(begin_write(d, "fsdp_write_param"));
    OARI_TRY(oari_fsdp_shard_of(d, array, &shard));
    if (shard.count == 0)
        return OAR_OK;
    return oar_tensor_write(shard.tensor, dtype,
                            (const unsigned char *)data +
                                shard.first * oar_dtype_size(dtype));
}

/* ---- all of them --------------------------------------------------------- */

static oar_status check_source(const char *name, const oar_tensor *into,
                               const oar_tensor *from)
{
    oar_shape a = oar_tensor_shape(into), b = oar_tensor_shape(from);

    if (a.ndim != b.ndim ||
        memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof a.dim[0]) != 0)
        return oari_fail(OAR_E_SHAPE,
                         "fsdp_load: \"%.200s\" has another shape in the "
                         "module that is loaded",
                         name);
    if (oar_tensor_is_lazy(from))
        return OAR_OK;
    if (!oar_tensor_is_contiguous(from))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "fsdp_load: \"%.200s\" is strided in the module that "
                         "is loaded",
                         name);
    if (oar_tensor_const_data(from) == NULL && oar_tensor_count(from) > 0)
        return oari_fail(OAR_E_STATE,
                         "fsdp_load: \"%.200s\" has no numbers in the module "
                         "that is loaded",
                         name);
    return OAR_OK;
}

/* Writes the name of parameter i, or of buffer i minus the parameters, and
 * returns the tensor; NULL and a status that is not OAR_OK if it fails. */
static oar_tensor *name_tensor(const oar_module *module, int i, char name[NAME],
                               oar_status *status)
{
    int params = oar_module_params(module);

    *status = i < params
                  ? oar_module_param_name(module, i, name, NAME)
                  : oar_module_buffer_name(module, i - params, name, NAME);
    return *status != OAR_OK ? NULL
           : i < params      ? oar_module_param(module, i)
                             : oar_module_buffer(module, i - params);
}

static oar_status check_names(const oar_module *into, const oar_module *from,
                              int strict)
{
    int mine = oar_module_params(into) + oar_module_buffers(into);
    int theirs = oar_module_params(from) + oar_module_buffers(from);
    char name[NAME];
    oar_status status = OAR_OK;

    for (int i = 0; i < mine; i++) {
        const oar_tensor *home = name_tensor(into, i, name, &status);
        const oar_tensor *source;

        OARI_TRY(status);
        source = oar_module_find(from, name);
        if (source != NULL)
            OARI_TRY(check_source(name, home, source));
        else if (strict)
            return oari_fail(OAR_E_ARG,
                             "fsdp_load: the module that is loaded has no "
                             "\"%.200s\"",
                             name);
    }
    for (int i = 0; strict && i < theirs; i++) {
        name_tensor(from, i, name, &status);
        OARI_TRY(status);
        if (oar_module_find(into, name) == NULL)
            return oari_fail(OAR_E_ARG,
                             "fsdp_load: the wrapped module has no \"%.200s\"",
                             name);
    }
    return OAR_OK;
}

oar_status oari_fsdp_make_shard(const oar_tensor *lazy, const oar_shard *shard)
{
    int64_t first = (int64_t)shard->first, count = (int64_t)shard->count;
    oar_dtype dtype = shard->data.dtype;
    oar_status status;
    void *room;

    if (shard->data.device.kind == OAR_CPU) {
        OARI_TRY(
            oar_tensor_make_range(lazy, first, count, dtype, shard->data.data));
        return oar_tensor_touch(shard->tensor);
    }
    room = oari_alloc(shard->count + 1, oar_dtype_size(dtype));
    if (room == NULL)
        return OAR_E_NOMEM;
    status = oar_tensor_make_range(lazy, first, count, dtype, room);
    if (status == OAR_OK)
        status = oar_tensor_write(shard->tensor, dtype, room);
    oari_free(room);
    return status;
}

/* Writes this rank's part of a parameter that is on a GPU. */
static oar_status load_from_gpu(const oar_shard *shard, const oar_tensor *from)
{
    int64_t first = (int64_t)shard->first, count = (int64_t)shard->count;
    oar_tensor *whole, *row, *part;
    oar_status status;

    memcpy(&whole, &from, sizeof whole); /* operations take any tensor */
    row = oar_reshape(NULL, whole, OAR_SHAPE(oar_tensor_count(from)));
    part = row != NULL ? oar_narrow(NULL, row, 0, first, count) : NULL;
    status = part != NULL ? oar_tensor_copy(shard->tensor, part)
                          : oar_last_error()->status;
    oar_tensor_release(part);
    oar_tensor_release(row);
    return status;
}

/* Writes this rank's part of a parameter. */
static oar_status load_param(const oari_fsdp *d, int array,
                             const oar_tensor *from)
{
    oar_dtype dtype = oar_tensor_dtype(from);
    oar_shard shard = oar_shard_init();

    OARI_TRY(oari_fsdp_shard_of(d, array, &shard));
    if (shard.count == 0)
        return OAR_OK;
    if (!oar_tensor_is_lazy(from) && oar_tensor_device(from).kind == OAR_CUDA)
        return load_from_gpu(&shard, from);
    if (!oar_tensor_is_lazy(from))
        return oar_tensor_write(
            shard.tensor, dtype,
            (const unsigned char *)oar_tensor_const_data(from) +
                shard.first * oar_dtype_size(dtype));
    return oari_fsdp_make_shard(from, &shard);
}

/* Writes a buffer, or a parameter that FSDP ignores. */
static oar_status load_tensor(oar_tensor *home, const oar_tensor *from)
{
    if (oar_tensor_is_lazy(from)) {
        OARI_TRY(oar_tensor_make_range(from, 0, oar_tensor_count(from),
                                       oar_tensor_dtype(home),
                                       oar_tensor_data(home)));
        return oar_tensor_touch(home);
    }
    return oar_tensor_copy(home, from);
}

oar_status oar_fsdp_load_at(const char *file, int line, oar_module *wrapped,
                            const oar_module *from, int strict)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = oari_fsdp_of(wrapped);
    oar_module *inner;
    char name[NAME];
    oar_status status;
    int tensors;

    if (d == NULL || from == NULL)
        return oari_fail(OAR_E_ARG, "fsdp_load %s",
                         d == NULL ? "into a module that FSDP does not wrap"
                                   : "without a module to load");
    inner = oar_module_child(wrapped, 0);
    if (oari_ddp_of(from) != NULL)
        from = oar_module_child(from, 0);
    OARI_TRY(check_names(inner, from, strict));
    OARI_TRY(begin_write(d, "fsdp_load"));
    tensors = oar_module_params(inner) + oar_module_buffers(inner);
    for (int i = 0; i < tensors; i++) {
        oar_tensor *home = name_tensor(inner, i, name, &status);
        const oar_tensor *source;
        int array;

        OARI_TRY(status);
        source = oar_module_find(from, name);
        array = oari_fsdp_array_of_param(d, home);
        if (source != NULL && (array < 0 || d->param[array].first == i))
            OARI_TRY(array >= 0 ? load_param(d, array, source)
                                : load_tensor(home, source));
    }
    return OAR_OK;
}

/* ---- loss scaling -------------------------------------------------------- */

oar_status oar_fsdp_scaler_step_at(const char *file, int line,
                                   oar_module *wrapped, oar_scaler *scaler,
                                   oar_optim *optim, int *stepped)
{
    oari_fsdp *d = oari_fsdp_of(wrapped);

    if (d == NULL)
        return oari_fail(OAR_E_ARG,
                         "fsdp_scaler_step of a module that FSDP does not "
                         "wrap");
    return oar_scaler_step_over_at(file, line, 1, &d->group, scaler, optim,
                                   stepped);
}
