/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: messages. Values lie one behind the other as they travel (rpc_wire.h);
 * arrays above OARI_RPC_INSIDE bytes are attached by pointer, in the order of
 * their values.
 */
#include "parallel/rpc/rpc_message.h"

#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/rpc/rpc_memory.h"

oar_status oar_rpc_message_create(oar_rpc_message **message)
{
    oar_rpc_message *m;

    if (message == NULL)
        return oari_fail(OAR_E_ARG, "rpc_message_create: no place for it");
    m = oari_rpc_memory_take_message();
    if (m == NULL)
        return OAR_E_NOMEM;
    memset(m, 0, offsetof(oar_rpc_message, inside));
    m->values = m->inside;
    m->capacity = OARI_RPC_SMALL;
    *message = m;
    return OAR_OK;
}

void oar_rpc_message_destroy(oar_rpc_message *message)
{
    if (message == NULL)
        return;
    for (int64_t i = 0; i < message->arrays.count; i++) {
        oari_rpc_attached *a = &message->arrays.data[i];

        oar_storage_release(a->storage);
        if (a->drop != NULL)
            a->drop(a->arg);
    }
    for (int64_t i = 0; i < message->refs.count; i++)
        oari_rref_drop_handle(message->refs.data[i]);
    for (int64_t i = 0; i < message->windows.count; i++)
        oar_window_release(message->windows.data[i]);
    oari_vec_free(&message->windows);
    oari_vec_free(&message->refs);
    oari_vec_free(&message->arrays);
    if (message->values != message->inside)
        oari_free(message->values);
    oari_rpc_memory_give_message(message);
}

size_t oar_rpc_message_bytes(const oar_rpc_message *message)
{
    return message != NULL ? message->bytes + message->array_bytes : 0;
}

void oar_rpc_message_rewind(oar_rpc_message *message)
{
    if (message == NULL)
        return;
    message->at = 0;
    message->read = message->next_array = message->next_ref = 0;
}

/* ---- putting ------------------------------------------------------------- */

/* Makes room for one more value of that many bytes. */
static oar_status make_room(oar_rpc_message *m, size_t bytes)
{
    size_t wanted = 2 * m->capacity > 256 ? 2 * m->capacity : 256;
    unsigned char *larger;

    if (m->received)
        return oari_fail(OAR_E_STATE, "a message that came from another rank "
                                      "is only read: put values into a new "
                                      "one");
    if (bytes <= m->capacity - m->bytes)
        return OAR_OK;
    if (bytes > SIZE_MAX / 4 - m->bytes)
        return oari_fail(OAR_E_NOMEM, "out of memory: a value of %zu bytes",
                         bytes);
    if (wanted < m->bytes + bytes)
        wanted = m->bytes + bytes;
    larger = oari_alloc_aligned(OARI_RPC_ALIGN, wanted);
    if (larger == NULL)
        return OAR_E_NOMEM;
    if (m->bytes > 0)
        memcpy(larger, m->values, m->bytes);
    if (m->values != m->inside)
        oari_free(m->values);
    m->values = larger;
    m->capacity = wanted;
    return OAR_OK;
}

static oar_status put_number(oar_rpc_message *m, oari_rpc_type type,
                             uint64_t number)
{
    if (m == NULL)
        return oari_fail(OAR_E_ARG, "a value for no message");
    OARI_TRY(make_room(m, 9));
    m->values[m->bytes] = (unsigned char)type;
    oari_rpc_set_u64(m->values + m->bytes + 1, number);
    m->bytes += 9;
    return OAR_OK;
}

oar_status oar_rpc_put_i64(oar_rpc_message *message, int64_t value)
{
    return put_number(message, OARI_RPC_I64, (uint64_t)value);
}

oar_status oar_rpc_put_f64(oar_rpc_message *message, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return put_number(message, OARI_RPC_F64, bits);
}

oar_status oar_rpc_put_text(oar_rpc_message *message, const char *text)
{
    size_t bytes = text != NULL ? strlen(text) : 0;

    if (message == NULL || text == NULL || bytes > INT32_MAX)
        return oari_fail(OAR_E_ARG, "rpc_put_text: %s",
                         message == NULL ? "no message"
                         : text == NULL  ? "no text"
                                         : "a text of more than 2^31-1 bytes");
    OARI_TRY(make_room(message, bytes + 6));
    message->values[message->bytes] = OARI_RPC_TEXT;
    oari_rpc_set_u32(message->values + message->bytes + 1, (uint32_t)bytes);
    memcpy(message->values + message->bytes + 5, text, bytes + 1);
    message->bytes += bytes + 6;
    return OAR_OK;
}

oar_status oar_rpc_put_bytes(oar_rpc_message *message, const void *data,
                             size_t bytes)
{
    if (message == NULL || (data == NULL && bytes > 0) || bytes > SIZE_MAX / 8)
        return oari_fail(OAR_E_ARG, "rpc_put_bytes: %s",
                         message == NULL ? "no message"
                         : data == NULL  ? "no data"
                                         : "impossibly many bytes");
    OARI_TRY(make_room(message, bytes + 9));
    message->values[message->bytes] = OARI_RPC_BYTES;
    oari_rpc_set_u64(message->values + message->bytes + 1, bytes);
    if (bytes > 0)
        memcpy(message->values + message->bytes + 9, data, bytes);
    message->bytes += bytes + 9;
    return OAR_OK;
}

oar_status oar_rpc_message_map(oar_rpc_message *message, oar_window *window)
{
    if (message == NULL || window == NULL)
        return oari_fail(OAR_E_ARG, "rpc_message_map: no %s",
                         message == NULL ? "message" : "window");
    OARI_TRY(make_room(message, 0));
    OARI_TRY(oari_vec_push(&message->windows, window));
    oar_window_retain(window);
    return OAR_OK;
}

/* Returns the window of the message that memory lies in, or NULL. */
static oar_window *find_window(const oar_rpc_message *m, const void *data,
                               size_t bytes)
{
    uintptr_t at = (uintptr_t)data;

    for (int64_t i = 0; i < m->windows.count; i++) {
        uintptr_t base = (uintptr_t)oar_window_data(m->windows.data[i]);
        size_t room = oar_window_bytes(m->windows.data[i]);

        if (at >= base && at - base <= room && bytes <= room - (at - base) &&
            (at - base) % OARI_RPC_ALIGN == 0)
            return m->windows.data[i];
    }
    return NULL;
}

/* Appends the place of an array in a window. */
static void put_place(oar_rpc_message *m, const oar_window *window,
                      const char *token, const void *data)
{
    memcpy(m->values + m->bytes, token, OAR_WINDOW_TOKEN_BYTES);
    m->bytes += OAR_WINDOW_TOKEN_BYTES;
    oari_rpc_set_u64(
        m->values + m->bytes,
        (uint64_t)((const char *)data - (const char *)oar_window_data(window)));
    m->bytes += 8;
}

/* Appends an array; *inside says whether it was copied. */
static oar_status put_array(oar_rpc_message *m, const oar_span *span,
                            oar_shape shape, oari_rpc_attached *attached,
                            int *inside)
{
    size_t bytes = span->count * oar_dtype_size(span->dtype);
    size_t head = 4 + 8 * (size_t)shape.ndim, begin;
    char token[OAR_WINDOW_TOKEN_BYTES] = { 0 };
    const oar_window *window;
    unsigned char *to;

    *inside = bytes <= OARI_RPC_INSIDE;
    window = *inside ? NULL : find_window(m, span->data, bytes);
    if (window != NULL && oar_window_export(window, token) != OAR_OK)
        window = NULL;
    OARI_TRY(make_room(m, head + OARI_RPC_ALIGN + (*inside ? bytes : 0) +
                              OAR_WINDOW_TOKEN_BYTES + 8));
    if (!*inside && m->arrays.count == OARI_RPC_ARRAYS)
        return oari_fail(OAR_E_ARG,
                         "a message has at most %d arrays of more than %d "
                         "bytes",
                         OARI_RPC_ARRAYS, OARI_RPC_INSIDE);
    attached->data = span->data;
    attached->bytes = bytes;
    attached->mapped = window != NULL;
    if (!*inside)
        OARI_TRY(oari_vec_push(&m->arrays, *attached));
    to = m->values + m->bytes;
    to[0] = OARI_RPC_ARRAY;
    to[1] = (unsigned char)span->dtype;
    to[2] = (unsigned char)shape.ndim;
    to[3] = (unsigned char)(window != NULL ? 2 : *inside);
    for (int d = 0; d < shape.ndim; d++)
        oari_rpc_set_u64(to + 4 + 8 * d, (uint64_t)shape.dim[d]);
    m->bytes += head;
    if (!*inside) {
        m->array_bytes += bytes;
        m->mapped_bytes += window != NULL ? bytes : 0;
        if (window != NULL)
            put_place(m, window, token, span->data);
        return OAR_OK;
    }
    begin = (m->bytes + OARI_RPC_ALIGN - 1) / OARI_RPC_ALIGN * OARI_RPC_ALIGN;
    memset(m->values + m->bytes, 0, begin - m->bytes);
    if (bytes > 0)
        memcpy(m->values + begin, span->data, bytes);
    m->bytes = begin + bytes;
    return OAR_OK;
}

/* Appends an array of a GPU, by way of pinned memory, which the message keeps.
 */
static oar_status put_staged(oar_rpc_message *m, oar_span span, oar_shape shape)
{
    size_t bytes = span.count * oar_dtype_size(span.dtype);
    oari_rpc_attached attached = { .drop = oar_pinned_free };
    oar_device cpu = { OAR_CPU, 0 };
    void *stream = oar_stream_current(span.device), *memory = NULL;
    oar_status status = oar_pinned_alloc(bytes, &memory);
    int inside = 1;

    if (status == OAR_OK)
        status =
            oar_device_copy(memory, cpu, span.data, span.device, bytes, stream);
    if (status == OAR_OK)
        status = oar_stream_synchronize(span.device, stream);
    if (status != OAR_OK && status != OAR_E_NOMEM)
        status = oari_fail(
            OAR_E_DEVICE, "a message cannot take memory of %s: %.300s",
            oar_device_text(span.device).text, oar_last_error()->text);
    if (status == OAR_OK) {
        oar_span host = oar_span_of(memory, span.count, span.dtype);

        attached.arg = memory;
        status = put_array(m, &host, shape, &attached, &inside);
    }
    if (status != OAR_OK || inside)
        oar_pinned_free(memory);
    return status;
}

oar_status oar_rpc_put_span(oar_rpc_message *message, oar_span span,
                            void (*drop)(void *arg), void *arg)
{
    oari_rpc_attached attached = { .drop = drop, .arg = arg };
    size_t element = oar_dtype_size(span.dtype);
    int64_t count = (int64_t)span.count;
    int inside;

    if (message == NULL || element == 0 ||
        (span.data == NULL && span.count > 0) ||
        span.count > SIZE_MAX / 8 / element)
        return oari_fail(OAR_E_ARG, "rpc_put_span: %s",
                         message == NULL     ? "no message"
                         : element == 0      ? "no such dtype"
                         : span.data == NULL ? "no memory"
                                             : "impossibly many elements");
    if (span.device.kind != OAR_CPU) {
        OARI_TRY(put_staged(message, span, oar_shape_of(1, &count)));
        inside = 1;
    } else {
        OARI_TRY(put_array(message, &span, oar_shape_of(1, &count), &attached,
                           &inside));
    }
    if (inside && drop != NULL)
        drop(arg);
    return OAR_OK;
}

static void release_tensor(void *arg)
{
    oar_tensor_release(arg);
}

oar_status oar_rpc_put_tensor(oar_rpc_message *message, oar_tensor *tensor)
{
    oari_rpc_attached attached = { .drop = release_tensor };
    oar_tensor *own;
    oar_span span;
    oar_status status;
    int inside = 1;

    if (message == NULL || tensor == NULL)
        return oari_fail(OAR_E_ARG, "rpc_put_tensor: no %s",
                         message == NULL ? "message" : "tensor");
    if (!oar_tensor_is_contiguous(tensor))
        own = oar_contiguous(NULL, tensor);
    else
        own = oar_tensor_retain(tensor);
    if (own == NULL)
        return oar_last_error()->status;
    attached.arg = own;
    status = oar_tensor_const_span(own, &span);
    if (status == OAR_OK && span.data == NULL && span.count > 0)
        status = oari_fail(OAR_E_STATE, "rpc_put_tensor: the tensor has no "
                                        "numbers now");
    if (status == OAR_OK && span.device.kind != OAR_CPU)
        status = put_staged(message, span, oar_tensor_shape(own));
    else if (status == OAR_OK)
        status = put_array(message, &span, oar_tensor_shape(own), &attached,
                           &inside);
    if (status != OAR_OK || inside)
        oar_tensor_release(own);
    return status;
}

oar_status oari_rpc_message_put_ref(oar_rpc_message *message, int owner,
                                    uint64_t id)
{
    OARI_TRY(make_room(message, 13));
    message->values[message->bytes] = OARI_RPC_REF;
    oari_rpc_set_u32(message->values + message->bytes + 1, (uint32_t)owner);
    oari_rpc_set_u64(message->values + message->bytes + 5, id);
    message->bytes += 13;
    return OAR_OK;
}

/* ---- from other ranks ---------------------------------------------------- */

oar_status oari_rpc_message_receive(size_t value_bytes, uint32_t arrays,
                                    const uint64_t *array_bytes,
                                    void *const *data,
                                    oar_rpc_message **message)
{
    oar_rpc_message *m;
    oar_status status = OAR_OK;

    OARI_TRY(oar_rpc_message_create(&m));
    if (value_bytes > 0)
        status = make_room(m, value_bytes);
    if (status == OAR_OK && arrays > 0)
        status = oari_vec_reserve(&m->arrays, (int64_t)arrays);
    for (uint32_t i = 0; i < arrays && status == OAR_OK; i++) {
        oari_rpc_attached a = { .bytes = (size_t)array_bytes[i] };

        if (data != NULL && data[i] != NULL) {
            a.data = data[i];
        } else {
            status = oari_rpc_memory_take(a.bytes, &a.storage);
            if (status != OAR_OK)
                break;
            a.data = oar_storage_data(a.storage);
        }
        m->arrays.data[m->arrays.count++] = a;
        m->array_bytes += a.bytes;
    }
    if (status != OAR_OK) {
        oar_rpc_message_destroy(m);
        return status;
    }
    m->bytes = value_bytes;
    m->received = 1;
    *message = m;
    return OAR_OK;
}

oar_status oari_rpc_message_check(const oar_rpc_message *message)
{
    uint64_t bytes[OARI_RPC_ARRAYS];

    for (int64_t i = 0; i < message->arrays.count; i++)
        bytes[i] = message->arrays.data[i].bytes;
    return oari_rpc_check_values(message->values, message->bytes,
                                 (uint32_t)message->arrays.count, bytes);
}

oar_status oari_rpc_message_copy(const oar_rpc_message *from,
                                 oar_rpc_message **message)
{
    uint64_t bytes[OARI_RPC_ARRAYS];
    oar_rpc_message *m;

    if (from == NULL)
        return oari_rpc_message_receive(0, 0, NULL, NULL, message);
    for (int64_t i = 0; i < from->arrays.count; i++)
        bytes[i] = from->arrays.data[i].bytes;
    OARI_TRY(oari_rpc_message_receive(from->bytes, (uint32_t)from->arrays.count,
                                      bytes, NULL, &m));
    if (from->bytes > 0)
        memcpy(m->values, from->values, from->bytes);
    for (int64_t i = 0; i < from->arrays.count; i++)
        memcpy(m->arrays.data[i].data, from->arrays.data[i].data,
               (size_t)bytes[i]);
    if (from->refs.count > 0 &&
        oari_vec_reserve(&m->refs, from->refs.count) != OAR_OK) {
        oar_rpc_message_destroy(m);
        return OAR_E_NOMEM;
    }
    for (int64_t i = 0; i < from->refs.count; i++)
        m->refs.data[m->refs.count++] =
            oari_rref_add_handle(from->refs.data[i]);
    *message = m;
    return OAR_OK;
}
