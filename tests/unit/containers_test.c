/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors and lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/list.h"
#include "base/vec.h"
#include "support/leak_check.h"
#include "support/last_error.h"

/* ---- vectors ------------------------------------------------------------- */

typedef struct vec_pair {
    int a;
    double b;
} vec_pair;

typedef OARI_VEC(vec_pair) vec_pairs;

static void a_vector_keeps_what_is_pushed(void **state)
{
    leak_check before = leak_check_begin();
    vec_pairs v = { 0 };

    for (int i = 0; i < 1000; i++)
        OK(oari_vec_push(&v, (vec_pair){ i, i + 0.5 }));
    assert_int_equal(v.count, 1000);
    assert_true(v.capacity >= 1000 && v.capacity < 3000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(v.data[i].a, i);
        assert_true(v.data[i].b == i + 0.5);
    }
    oari_vec_free(&v);
    assert_null(v.data);
    assert_int_equal(v.count + v.capacity, 0);
    leak_check_end(&before);
}

static void a_vector_grows_by_doubling(void **state)
{
    oar_memory_stats first = { .size = sizeof first }, then = first;
    vec_pairs v = { 0 };

    OK(oar_memory_read(&first));
    for (int i = 0; i < 4096; i++)
        OK(oari_vec_push(&v, (vec_pair){ i, 0 }));
    OK(oar_memory_read(&then));
    assert_true(then.allocations - first.allocations <= 12);
    oari_vec_free(&v);
}

static void what_is_reserved_is_zero_and_stays_where_it_is(void **state)
{
    vec_pairs v = { 0 };
    vec_pair *at;

    OK(oari_vec_push(&v, (vec_pair){ 7, 7 }));
    OK(oari_vec_reserve(&v, 100));
    at = v.data;
    assert_int_equal(v.count, 1);
    assert_int_equal(v.data[0].a, 7);
    for (int i = 1; i <= 100; i++)
        assert_true(v.data[i].a == 0 && v.data[i].b == 0);
    for (int i = 0; i < 100; i++)
        OK(oari_vec_push(&v, (vec_pair){ i, 0 }));
    assert_ptr_equal(v.data, at);
    OK(oari_vec_reserve(&v, 0));
    assert_ptr_equal(v.data, at);
    oari_vec_free(&v);
}

/* The last two would be too many bytes, and too many elements. */
static void a_vector_that_cannot_grow_is_as_it_was(void **state)
{
    static const int64_t most = INT64_MAX;
    vec_pairs v = { 0 };
    vec_pair *at;
    int64_t capacity;

    while (v.count == 0 || v.count < v.capacity)
        OK(oari_vec_push(&v, (vec_pair){ 3, 4 }));
    at = v.data;
    capacity = v.capacity;
    oar_memory_fail_after(1);
    assert_fails_with(oari_vec_push(&v, (vec_pair){ 5, 6 }), OAR_E_NOMEM,
                      "memory");
    oar_memory_fail_after(0);
    assert_fails_with(oari_vec_reserve(&v, most / 8), OAR_E_NOMEM, "memory");
    assert_fails_with(oari_vec_reserve(&v, most), OAR_E_NOMEM, "memory");
    assert_ptr_equal(v.data, at);
    assert_int_equal(v.count, capacity);
    assert_int_equal(v.capacity, capacity);
    assert_int_equal(v.data[v.count - 1].a, 3);
    OK(oari_vec_push(&v, (vec_pair){ 5, 6 }));
    assert_int_equal(v.data[v.count - 1].a, 5);
    oari_vec_free(&v);
}

/* ---- lists --------------------------------------------------------------- */

typedef struct listed_number {
    int number;
    oari_link link;
} listed_number;

/* The numbers are those, read both ways. */
static void expect(const oari_list *list, int count, const int *number)
{
    int n = 0;

    for (oari_link *l = list->first; l != NULL; l = l->next, n++) {
        assert_true(n < count);
        assert_int_equal(OARI_CONTAINER_OF(l, listed_number, link)->number,
                         number[n]);
    }
    assert_int_equal(n, count);
    for (oari_link *l = list->last; l != NULL; l = l->prev) {
        assert_true(n > 0);
        assert_int_equal(OARI_CONTAINER_OF(l, listed_number, link)->number,
                         number[--n]);
    }
    assert_int_equal(n, 0);
}

static void append_five(oari_list *list, listed_number t[5])
{
    for (int i = 0; i < 5; i++) {
        t[i].number = i;
        oari_list_append(list, &t[i].link);
    }
}

static void a_list_keeps_the_order(void **state)
{
    listed_number t[5];
    oari_list list = { 0 };

    expect(&list, 0, NULL);
    append_five(&list, t);
    expect(&list, 5, (int[]){ 0, 1, 2, 3, 4 });
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(oari_list_take(&list), &t[i].link);
    assert_null(oari_list_take(&list));
    assert_null(OARI_CONTAINER_OF(oari_list_take(&list), listed_number, link));
    expect(&list, 0, NULL);
}

static void any_link_can_be_taken_out(void **state)
{
    listed_number t[5];
    oari_list list = { 0 };

    append_five(&list, t);
    oari_list_remove(&list, &t[2].link);
    expect(&list, 4, (int[]){ 0, 1, 3, 4 });
    oari_list_remove(&list, &t[0].link);
    expect(&list, 3, (int[]){ 1, 3, 4 });
    oari_list_remove(&list, &t[4].link);
    expect(&list, 2, (int[]){ 1, 3 });
    oari_list_append(&list, &t[0].link);
    expect(&list, 3, (int[]){ 1, 3, 0 });
    oari_list_remove(&list, &t[1].link);
    oari_list_remove(&list, &t[3].link);
    oari_list_remove(&list, &t[0].link);
    expect(&list, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vector_keeps_what_is_pushed),
        cmocka_unit_test(a_vector_grows_by_doubling),
        cmocka_unit_test(what_is_reserved_is_zero_and_stays_where_it_is),
        cmocka_unit_test(a_vector_that_cannot_grow_is_as_it_was),
        cmocka_unit_test(a_list_keeps_the_order),
        cmocka_unit_test(any_link_can_be_taken_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
