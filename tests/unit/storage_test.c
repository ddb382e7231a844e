/* SPDX-License-Identifier: Apache-2.0 */
/* Storage: counted memory whose data can be freed and made again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/tensor.h>

#include "support/leak_check.h"
#include "support/last_error.h"

static void fresh_storage_is_aligned_and_counted(void **state)
{
    static const size_t sizes[] = { 0, 1, 3, 64, 1000 };
    uint64_t before = leak_check_begin().live;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        oar_storage *s;

        OK(oar_storage_create(sizes[i], 0, &s));
        assert_int_equal(oar_storage_bytes(s), sizes[i]);
        assert_int_equal((uintptr_t)oar_storage_data(s) % 64, 0);
        memset(oar_storage_data(s), 1, sizes[i]);
        assert_ptr_equal(oar_storage_retain(s), s);
        oar_storage_release(s);
        assert_int_equal(oar_storage_bytes(s), sizes[i]);
        oar_storage_release(s);
    }
    assert_int_equal(leak_check_begin().live, before);
}

static void shared_storage_is_ordinary_memory_to_its_owner(void **state)
{
    oar_storage *s;

    OK(oar_storage_create(5000, 1, &s));
    memset(oar_storage_data(s), 7, 5000);
    OK(oar_storage_detach(s));
    assert_null(oar_storage_data(s));
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    memset(oar_storage_data(s), 8, 5000);
    oar_storage_release(s);
}

static void views_stay_while_the_data_is_away(void **state)
{
    oar_storage *s;
    oar_tensor *view, *part;
    float data[12];

    OK(oar_storage_create(sizeof data, 0, &s));
    view = oar_view_of(NULL, s, 2, OAR_F32, OAR_SHAPE(2, 5));
    part = oar_narrow(NULL, view, 1, 3, 2);
    OK(oar_storage_detach(s));
    OK(oar_storage_detach(s)); /* twice is fine */
    assert_null(oar_tensor_data(view));
    assert_int_equal(oar_tensor_fill(view, 1), OAR_E_STATE);
    assert_int_equal(oar_tensor_read(part, OAR_F32, data), OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "[2, 2]"));
    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    OK(oar_storage_attach(s, data, NULL, NULL));
    assert_ptr_equal(oar_tensor_data(view), data + 2);
    OK(oar_tensor_fill(part, -1));
    assert_true(data[4] == 4 && data[5] == -1 && data[11] == -1);
    oar_storage_release(s); /* the views hold it */
    assert_ptr_equal(oar_tensor_data(part), data + 5);
    oar_tensor_release(view);
    oar_tensor_release(part);
}

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

static void attached_data_is_dropped_exactly_once(void **state)
{
    oar_storage *s;
    int drops = 0;
    float data[4];

    OK(oar_storage_create(sizeof data, 0, &s));
    assert_int_equal(oar_storage_attach(s, data, count_drop, &drops),
                     OAR_E_STATE);
    OK(oar_storage_detach(s));
    OK(oar_storage_attach(s, data, count_drop, &drops));
    assert_int_equal(drops, 0);
    OK(oar_storage_detach(s));
    assert_int_equal(drops, 1);
    OK(oar_storage_attach(s, data, count_drop, &drops));
    oar_storage_release(s);
    assert_int_equal(drops, 2);
}

static void nothing_is_asked_of_null(void **state)
{
    oar_clear_error();
    assert_int_equal(oar_storage_detach(NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_attach(NULL, NULL, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_create(1, 0, NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_bytes(NULL), 0);
    assert_null(oar_storage_data(NULL));
    assert_null(oar_storage_retain(NULL));
    oar_storage_release(NULL);
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_storage *s = NULL;

    for (int n = 1; n <= 2; n++) {
        oar_memory_fail_after((uint64_t)n);
        assert_int_equal(oar_storage_create(64, 0, &s), OAR_E_NOMEM);
        assert_null(s);
        assert_int_equal(leak_check_begin().live, before);
    }
    OK(oar_storage_create(64, 0, &s));
    OK(oar_storage_detach(s));
    oar_memory_fail_after(1);
    assert_int_equal(oar_storage_attach(s, NULL, NULL, NULL), OAR_E_NOMEM);
    assert_null(oar_storage_data(s));
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    oar_storage_release(s);
    oar_memory_fail_after(0);
    assert_int_equal(leak_check_begin().live, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fresh_storage_is_aligned_and_counted),
        cmocka_unit_test(shared_storage_is_ordinary_memory_to_its_owner),
        cmocka_unit_test(views_stay_while_the_data_is_away),
        cmocka_unit_test(attached_data_is_dropped_exactly_once),
        cmocka_unit_test(nothing_is_asked_of_null),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
