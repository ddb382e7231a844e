/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: reading the values of a message, in their order. */
#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/status.h"
#include "parallel/rpc/rpc_message.h"

/* Reads the next value, which must be of that type, and does not go past it. */
static oar_status look_at_next(oar_rpc_message *m, oari_rpc_type type,
                               oari_rpc_value *value)
{
    if (m == NULL)
        return oari_fail(OAR_E_ARG, "a value of no message");
    if (m->at == m->bytes)
        return oari_fail(OAR_E_DATA,
                         "the message has %lld values, and %s was read after "
                         "the last",
                         (long long)m->read, oari_rpc_type_name(type));
    OARI_TRY(oari_rpc_read_value(m->values, m->bytes, m->at, value));
    if (value->type != type)
        return oari_fail(OAR_E_DATA,
                         "value %lld of the message is %s, and was read as %s",
                         (long long)m->read, oari_rpc_type_name(value->type),
                         oari_rpc_type_name(type));
    return OAR_OK;
}

static void go_past(oar_rpc_message *m, const oari_rpc_value *value)
{
    m->at = value->next;
    m->read++;
    m->next_array += value->type == OARI_RPC_ARRAY && !value->inside;
    m->next_ref += value->type == OARI_RPC_REF;
}

/* Reads the next value and goes past it. */
static oar_status take_next(oar_rpc_message *m, oari_rpc_type type,
                            const void *into, oari_rpc_value *value)
{
    if (into == NULL)
        return oari_fail(OAR_E_ARG, "no place for %s of a message",
                         oari_rpc_type_name(type));
    OARI_TRY(look_at_next(m, type, value));
    go_past(m, value);
    return OAR_OK;
}

oar_status oar_rpc_get_i64(oar_rpc_message *message, int64_t *value)
{
    oari_rpc_value v;

    if (message != NULL && value != NULL && message->at < message->bytes &&
        message->bytes - message->at >= 9 &&
        message->values[message->at] == OARI_RPC_I64) {
        *value = (int64_t)oari_rpc_u64(message->values + message->at + 1);
        message->at += 9;
        message->read++;
        return OAR_OK;
    }
    OARI_TRY(take_next(message, OARI_RPC_I64, value, &v));
    *value = v.i64;
    return OAR_OK;
}

oar_status oar_rpc_get_f64(oar_rpc_message *message, double *value)
{
    oari_rpc_value v;

    OARI_TRY(take_next(message, OARI_RPC_F64, value, &v));
    *value = v.f64;
    return OAR_OK;
}

oar_status oar_rpc_get_text(oar_rpc_message *message, const char **text)
{
    oari_rpc_value v;

    OARI_TRY(take_next(message, OARI_RPC_TEXT, text, &v));
    *text = (const char *)v.data;
    return OAR_OK;
}

oar_status oar_rpc_get_bytes(oar_rpc_message *message, const void **data,
                             size_t *bytes)
{
    oari_rpc_value v;

    if (bytes == NULL)
        return oari_fail(OAR_E_ARG, "rpc_get_bytes: no place for their number");
    OARI_TRY(take_next(message, OARI_RPC_BYTES, data, &v));
    *data = v.data;
    *bytes = v.bytes;
    return OAR_OK;
}

/* Returns where an array's numbers are. */
static void *data_of(const oar_rpc_message *m, const oari_rpc_value *v)
{
    return v->inside ? m->values + (v->data - m->values)
                     : m->arrays.data[m->next_array].data;
}

oar_status oar_rpc_get_span(oar_rpc_message *message, oar_span *span)
{
    oari_rpc_value v;

    if (span == NULL)
        return oari_fail(OAR_E_ARG, "rpc_get_span: no place for it");
    OARI_TRY(look_at_next(message, OARI_RPC_ARRAY, &v));
    *span = oar_span_of(data_of(message, &v), v.bytes / oar_dtype_size(v.dtype),
                        v.dtype);
    span->read_only = !v.inside && message->received &&
                      message->arrays.data[message->next_array].mapped;
    go_past(message, &v);
    return OAR_OK;
}

oar_status oar_rpc_get_tensor(oar_rpc_message *message, oar_tensor **tensor)
{
    oar_storage *storage;
    oar_tensor *made;
    oari_rpc_value v;

    if (tensor == NULL)
        return oari_fail(OAR_E_ARG, "rpc_get_tensor: no place for it");
    OARI_TRY(look_at_next(message, OARI_RPC_ARRAY, &v));
    if (v.dtype >= OAR_DTYPE_COUNT)
        return oari_fail(OAR_E_DTYPE,
                         "an array of %s is no tensor: read it as "
                         "a span",
                         oar_dtype_name(v.dtype));
    storage =
        v.inside ? NULL : message->arrays.data[message->next_array].storage;
    made = storage != NULL
               ? oar_view_of(NULL, storage, 0, v.dtype, v.shape)
               : oar_from_data(NULL, v.dtype, v.shape, data_of(message, &v));
    if (made == NULL)
        return oar_last_error()->status;
    go_past(message, &v);
    *tensor = made;
    return OAR_OK;
}

oar_status oar_rpc_get_tensor_on(oar_rpc_message *message, oar_device device,
                                 oar_tensor **tensor)
{
    oar_tensor *host, *made;
    oari_rpc_value v;
    oar_span span;

    if (device.kind == OAR_CPU)
        return oar_rpc_get_tensor(message, tensor);
    if (tensor == NULL)
        return oari_fail(OAR_E_ARG, "rpc_get_tensor_on: no place for it");
    OARI_TRY(look_at_next(message, OARI_RPC_ARRAY, &v));
    span = oar_span_of(data_of(message, &v), v.bytes / oar_dtype_size(v.dtype),
                       v.dtype);
    host = v.dtype < OAR_DTYPE_COUNT
               ? oar_from_data(NULL, v.dtype, v.shape, span.data)
               : NULL;
    made = host != NULL ? oar_to(NULL, host, device) : NULL;
    oar_tensor_release(host);
    if (v.dtype >= OAR_DTYPE_COUNT)
        return oari_fail(OAR_E_DTYPE,
                         "an array of %s is no tensor: read it into memory",
                         oar_dtype_name(v.dtype));
    if (made == NULL)
        return oar_last_error()->status;
    go_past(message, &v);
    *tensor = made;
    return OAR_OK;
}

oar_status oar_rpc_get_into(oar_rpc_message *message, oar_span span)
{
    oar_device cpu = { OAR_CPU, 0 };
    oari_rpc_value v;
    oar_status status;
    size_t count;

    OARI_TRY(look_at_next(message, OARI_RPC_ARRAY, &v));
    count = v.bytes / oar_dtype_size(v.dtype);
    if (span.dtype != v.dtype)
        return oari_fail(OAR_E_DTYPE,
                         "rpc_get_into: the array has %s, the memory %s",
                         oar_dtype_name(v.dtype), oar_dtype_name(span.dtype));
    if (span.count != count || (span.data == NULL && count > 0))
        return oari_fail(OAR_E_SIZE,
                         "rpc_get_into: the array has %zu elements, the memory "
                         "%zu",
                         count, span.data == NULL ? 0 : span.count);
    status = oar_device_copy(
        span.data, span.device, data_of(message, &v), cpu, v.bytes,
        span.device.kind == OAR_CPU ? NULL : oar_stream_current(span.device));
    if (status == OAR_OK && span.device.kind != OAR_CPU) /* it may be pinned */
        status = oar_stream_synchronize(span.device,
                                        oar_stream_current(span.device));
    if (status != OAR_OK)
        return oari_fail(OAR_E_DEVICE,
                         "rpc_get_into: memory of %s cannot be written: %.300s",
                         oar_device_text(span.device).text,
                         oar_last_error()->text);
    go_past(message, &v);
    return OAR_OK;
}

oar_status oari_rpc_message_get_ref(oar_rpc_message *message, int64_t *index)
{
    oari_rpc_value v;

    OARI_TRY(take_next(message, OARI_RPC_REF, index, &v));
    *index = message->next_ref - 1;
    return OAR_OK;
}
