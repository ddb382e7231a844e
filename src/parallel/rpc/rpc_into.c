/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: replies into memory of the caller (rpc_into.h has the rules). */
#include "parallel/rpc/rpc_into.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- places -------------------------------------------------------------- */

static oar_status read_place(const oar_rpc_call_opts *opts, int i,
                             oari_rpc_place *place)
{
    oar_span span;

    if (opts->into_tensors != NULL) {
        if (opts->into_tensors[i] == NULL)
            return oari_fail(OAR_E_ARG, "into_tensors: tensor %d is NULL", i);
        OARI_TRY(oar_tensor_span(opts->into_tensors[i], &span));
    } else {
        span = opts->into[i];
    }
    if (oar_dtype_size(span.dtype) == 0 || span.read_only ||
        (span.data == NULL && span.count > 0))
        return oari_fail(OAR_E_ARG, "into: array %d %s", i,
                         span.data == NULL ? "has no memory"
                         : span.read_only  ? "may only be read"
                                           : "has no dtype");
    if (span.device.kind != OAR_CPU)
        return oari_fail(OAR_E_DEVICE,
                         "into: array %d is memory of a GPU: take the reply, "
                         "and copy it",
                         i);
    *place = (oari_rpc_place){ .data = span.data,
                               .bytes = span.count * oar_dtype_size(span.dtype),
                               .dtype = span.dtype,
                               .count = (int64_t)span.count };
    if (opts->into_tensors != NULL)
        place->tensor = oar_tensor_retain(opts->into_tensors[i]);
    return OAR_OK;
}

oar_status oari_rpc_into_create(const oar_rpc_call_opts *opts,
                                oari_rpc_into **into)
{
    int given = (opts->into != NULL) + (opts->into_tensors != NULL);
    oar_status status = OAR_OK;
    oari_rpc_into *made;

    *into = NULL;
    if (opts->into_count == 0)
        return OAR_OK;
    if (opts->into_count < 0 || opts->into_count > OARI_RPC_ARRAYS ||
        given != 1)
        return oari_fail(OAR_E_ARG,
                         "a call with %d places for arrays of its reply: 0 to "
                         "%d, and either into or into_tensors",
                         opts->into_count, OARI_RPC_ARRAYS);
    made = oari_alloc(1, sizeof *made +
                             (size_t)opts->into_count * sizeof made->place[0]);
    if (made == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < opts->into_count && status == OAR_OK; i++) {
        status = read_place(opts, i, &made->place[i]);
        made->count += status == OAR_OK;
    }
    if (status == OAR_OK)
        *into = made;
    else
        oari_rpc_into_destroy(made);
    return status;
}

void oari_rpc_into_destroy(oari_rpc_into *into)
{
    for (int i = 0; into != NULL && i < into->count; i++)
        oar_tensor_release(into->place[i].tensor);
    oari_free(into);
}

/* ---- arriving ------------------------------------------------------------ */

/* Large arrays are attached, in order, and small ones lie among the values: so
 * the sizes say which attached one belongs to which place. */
int oari_rpc_into_begin(oar_rpc *agent, const oari_rpc_head *head,
                        const uint64_t *array_bytes, void **data,
                        int64_t *deadline_ns)
{
    oari_rpc_pending *p = oari_rpc_find_pending(agent, head->call);
    uint32_t array = 0;

    if (head->kind != OARI_RPC_ANSWER ||
        (head->flags & (OARI_RPC_FAILED | OARI_RPC_MAPPED)) != 0 || p == NULL ||
        p->into == NULL || p->future == NULL)
        return 0;
    memset(data, 0, head->arrays * sizeof *data);
    for (int i = 0; i < p->into->count; i++) {
        const oari_rpc_place *place = &p->into->place[i];

        if (place->bytes <= OARI_RPC_INSIDE)
            continue;
        if (array == head->arrays || array_bytes[array] != place->bytes)
            return 0; /* oari_rpc_into_fill will say so */
        data[array++] = place->data;
    }
    if (array == 0)
        return 0;
    p->arriving = 1;
    agent->arriving++;
    *deadline_ns = p->deadline_ns;
    return 1;
}

void oari_rpc_into_end(oar_rpc *agent, oari_rpc_pending *pending)
{
    if (pending != NULL && pending->arriving) {
        pending->arriving = 0;
        agent->arriving--;
        pthread_cond_broadcast(&agent->changed);
    }
}

/* ---- filling ------------------------------------------------------------- */

/* "f32[3, 4]" */
static void write_array(char *text, size_t bytes, oar_dtype dtype,
                        const oar_shape *shape)
{
    size_t used = (size_t)snprintf(text, bytes, "%s[", oar_dtype_name(dtype));

    for (int d = 0; d < shape->ndim && used < bytes; d++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld",
                                 d > 0 ? ", " : "", (long long)shape->dim[d]);
    if (used < bytes)
        snprintf(text + used, bytes - used, "]");
}

/* Returns OAR_OK if an array fits a place. */
static oar_status compare(const oari_rpc_place *place, const oari_rpc_value *v)
{
    int64_t count = (int64_t)(v->bytes / oar_dtype_size(v->dtype));

    if (v->dtype != place->dtype)
        return OAR_E_DTYPE;
    if (count != place->count)
        return OAR_E_SIZE;
    if (place->tensor != NULL) {
        oar_shape shape = oar_tensor_shape(place->tensor);

        if (shape.ndim != v->shape.ndim ||
            memcmp(shape.dim, v->shape.dim,
                   (size_t)shape.ndim * sizeof shape.dim[0]) != 0)
            return OAR_E_SHAPE;
    }
    return OAR_OK;
}

static oar_status say_difference(const oari_rpc_place *place, int index,
                                 const char *name, const oari_rpc_value *v,
                                 oar_status status)
{
    oar_shape wanted = oar_shape_of(1, &place->count);
    char came[160], room[160];

    if (place->tensor != NULL)
        wanted = oar_tensor_shape(place->tensor);
    write_array(came, sizeof came, v->dtype, &v->shape);
    write_array(room, sizeof room, place->dtype, &wanted);
    return oari_fail(status,
                     "array %d of the reply of \"%s\" is %s, and its place in "
                     "the caller's memory is %s",
                     index, name, came, room);
}

oar_status oari_rpc_into_fill(const oari_rpc_into *into, const char *name,
                              const oar_rpc_message *reply)
{
    size_t bytes = reply != NULL ? reply->bytes : 0;
    int64_t attached = 0;
    oari_rpc_value v;
    int i = 0;

    for (size_t at = 0; at < bytes && i < into->count; at = v.next) {
        const oari_rpc_place *place = &into->place[i];
        const void *data;
        oar_status status;

        OARI_TRY(oari_rpc_read_value(reply->values, bytes, at, &v));
        if (v.type != OARI_RPC_ARRAY)
            continue;
        data = v.inside ? v.data : reply->arrays.data[attached++].data;
        status = compare(place, &v);
        if (status != OAR_OK)
            return say_difference(place, i, name, &v, status);
        if (data != place->data && v.bytes > 0)
            memcpy(place->data, data, v.bytes);
        i++;
    }
    if (i < into->count)
        return oari_fail(OAR_E_SIZE,
                         "the reply of \"%s\" has %d arrays, and places for %d "
                         "were named",
                         name, i, into->count);
    return OAR_OK;
}
