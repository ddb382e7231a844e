/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of RPC and the bytes they travel as: what is put is read, and what
 * is damaged is refused before it is believed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <oarsong/ops.h>
#include <oarsong/rpc.h>

#include "parallel/rpc/rpc_message.h"
#include "parallel/rpc/rpc_wire.h"
#include "support/last_error.h"
#include "support/leak_check.h"

static int dropped;

static void count_drop(void *arg)
{
    dropped += *(int *)arg;
}

static oar_rpc_message *make_message(void)
{
    oar_rpc_message *m = NULL;

    OK(oar_rpc_message_create(&m));
    return m;
}

static void put_float_array(oar_rpc_message *m, float *data, size_t count)
{
    static int one = 1;

    OK(oar_rpc_put_span(m, oar_span_of(data, count, OAR_F32), count_drop,
                        &one));
}

/* ---- values -------------------------------------------------------------- */

static void values_are_read_as_they_were_put(void **state)
{
    oar_rpc_message *m = make_message();
    float small[3] = { 1, 2, 3 }, *large = calloc(5000, sizeof *large);
    const char *text;
    const void *data;
    size_t bytes;
    oar_span span;
    int64_t number;
    double real;
    (void)state;

    dropped = 0;
    large[4999] = 7;
    OK(oar_rpc_put_i64(m, INT64_MIN));
    OK(oar_rpc_put_text(m, ""));
    OK(oar_rpc_put_f64(m, -0.5));
    put_float_array(m, small, 3);
    assert_int_equal(dropped, 1); /* it was copied */
    OK(oar_rpc_put_bytes(m, NULL, 0));
    put_float_array(m, large, 5000);
    assert_int_equal(dropped, 1);
    OK(oar_rpc_put_text(m, "weights"));
    assert_true(oar_rpc_message_bytes(m) > 20000);
    for (int pass = 0; pass < 2; pass++) {
        OK(oar_rpc_get_i64(m, &number));
        assert_true(number == INT64_MIN);
        OK(oar_rpc_get_text(m, &text));
        assert_string_equal(text, "");
        OK(oar_rpc_get_f64(m, &real));
        assert_true(real == -0.5);
        OK(oar_rpc_get_span(m, &span));
        assert_true(span.count == 3 && ((float *)span.data)[2] == 3);
        assert_true((uintptr_t)span.data % OARI_RPC_ALIGN == 0);
        OK(oar_rpc_get_bytes(m, &data, &bytes));
        assert_int_equal(bytes, 0);
        OK(oar_rpc_get_span(m, &span));
        assert_true(span.count == 5000 && span.data == large);
        OK(oar_rpc_get_text(m, &text));
        assert_string_equal(text, "weights");
        assert_fails_with(oar_rpc_get_i64(m, &number), OAR_E_DATA,
                          "the message has 7 values, and an i64 was read");
        oar_rpc_message_rewind(m);
    }
    oar_rpc_message_destroy(m);
    assert_int_equal(dropped, 2);
    free(large);
}

static void a_value_read_as_another_type_names_both(void **state)
{
    oar_rpc_message *m = make_message();
    oar_tensor *tensor;
    const char *text;
    int64_t number = 0;
    (void)state;

    OK(oar_rpc_put_i64(m, 5));
    OK(oar_rpc_put_text(m, "x"));
    assert_fails_with(oar_rpc_get_text(m, &text), OAR_E_DATA,
                      "value 0 of the message is an i64, and was read as a "
                      "text");
    OK(oar_rpc_get_i64(m, &number)); /* it is still the next */
    assert_int_equal(number, 5);
    assert_fails_with(oar_rpc_get_tensor(m, &tensor), OAR_E_DATA,
                      "value 1 of the message is a text, and was read as an "
                      "array");
    oar_rpc_message_destroy(m);
}

static void tensors_keep_their_shape(void **state)
{
    oar_rpc_message *m = make_message(), *there;
    oar_tensor *a = oar_arange(NULL, OAR_F32, 6000, 0, 1), *got[3];
    oar_tensor *square = oar_reshape(NULL, a, OAR_SHAPE(60, 100));
    oar_tensor *turned = oar_transpose(NULL, square, 0, 1);
    oar_tensor *one = oar_full(NULL, OAR_I32, OAR_SCALAR, 42);
    (void)state;

    OK(oar_rpc_put_tensor(m, square));
    OK(oar_rpc_put_tensor(m, turned));
    OK(oar_rpc_put_tensor(m, one));
    OK(oari_rpc_message_copy(m, &there));
    oar_rpc_message_destroy(m);
    OK(oari_rpc_message_check(there));
    for (int i = 0; i < 3; i++)
        OK(oar_rpc_get_tensor(there, &got[i]));
    assert_fails_with(oar_rpc_put_i64(there, 1), OAR_E_STATE, "only read");
    oar_rpc_message_destroy(there); /* the tensors live on */
    assert_true(oar_tensor_shape(got[0]).dim[1] == 100);
    assert_true(((float *)oar_tensor_data(got[0]))[5999] == 5999);
    assert_true(oar_tensor_shape(got[1]).dim[1] == 60);
    assert_true(((float *)oar_tensor_data(got[1]))[1] == 100);
    assert_true(oar_tensor_shape(got[2]).ndim == 0);
    assert_int_equal(*(int32_t *)oar_tensor_data(got[2]), 42);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(got[i]);
    oar_tensor_release(one);
    oar_tensor_release(turned);
    oar_tensor_release(square);
    oar_tensor_release(a);
}

static oar_status fill_and_copy(void *arg)
{
    oar_rpc_message *m = NULL, *there = NULL;
    static float large[3000];
    oar_status status = oar_rpc_message_create(&m);

    (void)arg;
    if (status == OAR_OK)
        status = oar_rpc_put_text(m, "a");
    if (status == OAR_OK)
        status =
            oar_rpc_put_span(m, oar_span_of(large, 3000, OAR_F32), NULL, NULL);
    if (status == OAR_OK)
        status = oari_rpc_message_copy(m, &there);
    oar_rpc_message_destroy(m);
    oar_rpc_message_destroy(there);
    return status;
}

static void messages_without_memory_leave_nothing_behind(void **state)
{
    (void)state;
    fail_each_allocation(fill_and_copy, NULL);
}

static void wrong_use_is_refused(void **state)
{
    oar_rpc_message *m = make_message();
    oar_span span = oar_span_of(NULL, 3, OAR_F32);
    int64_t number;
    (void)state;

    assert_fails_with(oar_rpc_message_create(NULL), OAR_E_ARG, "no place");
    assert_fails_with(oar_rpc_put_i64(NULL, 1), OAR_E_ARG, "no message");
    assert_fails_with(oar_rpc_put_f64(NULL, 1), OAR_E_ARG, "no message");
    assert_fails_with(oar_rpc_put_text(m, NULL), OAR_E_ARG, "no text");
    assert_fails_with(oar_rpc_put_bytes(m, NULL, 1), OAR_E_ARG, "no data");
    assert_fails_with(oar_rpc_put_span(m, span, NULL, NULL), OAR_E_ARG,
                      "no memory");
    span.data = &number;
    span.device = (oar_device){ OAR_CUDA, 99 };
    assert_fails_with(oar_rpc_put_span(m, span, NULL, NULL), OAR_E_DEVICE,
                      "cannot take memory of cuda:99");
    assert_fails_with(oar_rpc_put_tensor(m, NULL), OAR_E_ARG, "no tensor");
    assert_fails_with(oar_rpc_get_i64(NULL, &number), OAR_E_ARG, "no message");
    assert_fails_with(oar_rpc_get_i64(m, NULL), OAR_E_ARG, "no place");
    assert_int_equal(oar_rpc_message_bytes(m), 0);
    assert_int_equal(oar_rpc_message_bytes(NULL), 0);
    oar_rpc_message_rewind(NULL);
    oar_rpc_message_destroy(NULL);
    oar_rpc_message_destroy(m);
}

/* ---- heads --------------------------------------------------------------- */

typedef struct wire {
    unsigned char byte[2048];
    size_t bytes;
} wire;

static wire write_message(oari_rpc_kind kind, const char *name, uint64_t call,
                          const oar_rpc_message *m)
{
    oari_rpc_head head = { .kind = kind, .call = call, .sequence = 1 };
    wire w;

    strcpy(head.name, name);
    strcpy(head.site, kind == OARI_RPC_CALL ? "ps.c:88" : "");
    head.value_bytes = m->bytes;
    head.left_ms = -1;
    w.bytes = oari_rpc_write_head(w.byte, &head);
    if (m->bytes > 0)
        memcpy(w.byte + w.bytes, m->values, m->bytes);
    w.bytes += m->bytes;
    return w;
}

static oar_status read_message(const wire *w, oari_rpc_head *head,
                               oar_rpc_message **m)
{
    oar_status status;
    size_t behind;

    status = oari_rpc_read_head(w->byte, w->bytes, 1 << 20, head, &behind);
    if (status != OAR_OK)
        return status;
    status =
        oari_rpc_message_receive((size_t)head->value_bytes, 0, NULL, NULL, m);
    if (status != OAR_OK)
        return status;
    if ((*m)->bytes > 0)
        memcpy((*m)->values, w->byte + behind, (*m)->bytes);
    status = oari_rpc_message_check(*m);
    if (status != OAR_OK)
        oar_rpc_message_destroy(*m);
    return status;
}

/* Messages of the original's tests. */
static void original_messages(void **state)
{
    static const struct {
        oari_rpc_kind kind;
        const char *name;
        uint64_t call;
        const char *bytes;
        size_t count;
    } row[] = {
        { OARI_RPC_CALL, "add", 42, "\1\2\3", 3 },
        { OARI_RPC_ANSWER, "", 7, "\4\5\6", 3 },
        { OARI_RPC_ANSWER, "", 99, "something went wrong", 20 },
        { OARI_RPC_CALL, "add_one", 42, "\1\2\3\4", 4 },
        { OARI_RPC_ANSWER, "", 99, "\12\24\36", 3 },
        { OARI_RPC_CALL, "noop", 1, "", 0 },
        { OARI_RPC_ANSWER, "", 7, "", 0 },
    };
    (void)state;

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        oar_rpc_message *m = make_message(), *there;
        oari_rpc_head head;
        const void *data;
        size_t bytes;
        wire w;

        OK(oar_rpc_put_bytes(m, row[i].bytes, row[i].count));
        w = write_message(row[i].kind, row[i].name, row[i].call, m);
        OK(read_message(&w, &head, &there));
        assert_int_equal(head.kind, row[i].kind);
        assert_true(head.call == row[i].call);
        assert_string_equal(head.name, row[i].name);
        OK(oar_rpc_get_bytes(there, &data, &bytes));
        assert_int_equal(bytes, row[i].count);
        assert_memory_equal(data, row[i].bytes, bytes);
        oar_rpc_message_destroy(m);
        oar_rpc_message_destroy(there);
    }
}

static void every_bit_of_a_head_flipped_is_refused_or_harmless(void **state)
{
    oar_rpc_message *m = make_message(), *there;
    oari_rpc_head head;
    size_t refused = 0;
    wire w;
    (void)state;

    OK(oar_rpc_put_text(m, "hello"));
    OK(oar_rpc_put_i64(m, 3));
    w = write_message(OARI_RPC_CALL, "echo", 42, m);
    for (size_t bit = 0; bit < 8 * w.bytes; bit++) {
        wire bad = w;

        bad.byte[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (read_message(&bad, &head, &there) == OAR_OK)
            oar_rpc_message_destroy(there);
        else
            refused++;
    }
    assert_true(refused > 250); /* of 64 bytes that say sizes and kinds */
    for (size_t bytes = 0; bytes < w.bytes; bytes++) {
        wire cut = w;

        cut.bytes = bytes;
        assert_int_equal(read_message(&cut, &head, &there), OAR_E_DATA);
    }
    oar_rpc_message_destroy(m);
}

static void kinds_that_are_none_are_refused(void **state)
{
    static const int kinds[] = { 0, OARI_RPC_KIND_END, 255 };
    oar_rpc_message *m = make_message(), *there;
    oari_rpc_head head;
    wire w = write_message(OARI_RPC_ANSWER, "", 1, m);
    (void)state;

    for (size_t i = 0; i < 3; i++) {
        w.byte[4] = (unsigned char)kinds[i];
        assert_fails_with(read_message(&w, &head, &there), OAR_E_DATA, "kind");
    }
    oar_rpc_message_destroy(m);
}

static void a_message_over_the_limit_is_refused_by_its_head(void **state)
{
    oari_rpc_head head = { .kind = OARI_RPC_ANSWER, .flags = OARI_RPC_APART };
    uint64_t most = (uint64_t)1 << 30;
    unsigned char byte[OARI_RPC_HEAD];
    size_t behind, bytes;
    (void)state;

    head.value_bytes = most;
    bytes = oari_rpc_write_head(byte, &head);
    OK(oari_rpc_read_head(byte, bytes, most, &head, &behind));
    head.value_bytes = most + 1;
    oari_rpc_write_head(byte, &head);
    assert_fails_with(oari_rpc_read_head(byte, bytes, most, &head, &behind),
                      OAR_E_SIZE, "larger than the 1073741824");
    head.value_bytes = 8;
    head.array_bytes = UINT64_MAX; /* a sum that would wrap */
    oari_rpc_write_head(byte, &head);
    assert_fails_with(oari_rpc_read_head(byte, bytes, most, &head, &behind),
                      OAR_E_SIZE, "larger");
}

static void a_table_must_add_up(void **state)
{
    oari_rpc_head head = { .arrays = 2, .array_bytes = 100 };
    unsigned char table[16];
    uint64_t bytes[2];
    (void)state;

    oari_rpc_set_u64(table, 60);
    oari_rpc_set_u64(table + 8, 40);
    OK(oari_rpc_read_table(table, &head, bytes));
    assert_true(bytes[0] == 60 && bytes[1] == 40);
    oari_rpc_set_u64(table + 8, 39);
    assert_fails_with(oari_rpc_read_table(table, &head, bytes), OAR_E_DATA,
                      "belong to no array");
    oari_rpc_set_u64(table, UINT64_MAX);
    assert_fails_with(oari_rpc_read_table(table, &head, bytes), OAR_E_DATA,
                      "are left");
}

static void arrays_must_be_those_that_came(void **state)
{
    oar_rpc_message *m = make_message();
    static float large[2000];
    uint64_t bytes[2] = { 8000, 8000 };
    (void)state;

    OK(oar_rpc_put_span(m, oar_span_of(large, 2000, OAR_F32), NULL, NULL));
    OK(oari_rpc_check_values(m->values, m->bytes, 1, bytes));
    assert_fails_with(oari_rpc_check_values(m->values, m->bytes, 2, bytes),
                      OAR_E_DATA, "2 arrays came with a message of 1");
    bytes[0] = 7999;
    assert_fails_with(oari_rpc_check_values(m->values, m->bytes, 1, bytes),
                      OAR_E_DATA, "8000 bytes by its shape, 7999 came");
    oar_rpc_message_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_as_they_were_put),
        cmocka_unit_test(a_value_read_as_another_type_names_both),
        cmocka_unit_test(tensors_keep_their_shape),
        cmocka_unit_test(messages_without_memory_leave_nothing_behind),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(original_messages),
        cmocka_unit_test(every_bit_of_a_head_flipped_is_refused_or_harmless),
        cmocka_unit_test(kinds_that_are_none_are_refused),
        cmocka_unit_test(a_message_over_the_limit_is_refused_by_its_head),
        cmocka_unit_test(a_table_must_add_up),
        cmocka_unit_test(arrays_must_be_those_that_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
