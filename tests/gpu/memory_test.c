/* SPDX-License-Identifier: Apache-2.0 */
/* What device.h and cuda.h promise of the memory of GPUs: the pool, what
 * pointers are, copies and fills. */
#include "support/gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/memory.h>

#include "base/dtype.h"
#include "support/last_error.h"

enum { MIB = 1 << 20 };

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

static oar_span bytes_at(void *memory, size_t count)
{
    return oar_span_on(gpu, memory, count, OAR_U8);
}

/* Whether the bytes there are all value; of many, those at the ends and some in
 * between. */
static int is_at(const void *memory, size_t count, int value)
{
    size_t step = count < 8192 ? 1 : 4093, wrong = 0;
    unsigned char *copy = malloc(count + 1);

    if (oar_device_copy(copy, cpu, memory, gpu, count, NULL) != OAR_OK)
        wrong++;
    for (size_t i = 0; i < count && wrong == 0; i += step)
        wrong += copy[i] != value || copy[count - 1 - i] != value;
    free(copy);
    return wrong == 0;
}

static oar_device_usage usage_now(void)
{
    oar_device_usage usage = oar_device_usage_init();

    oar_device_memory(gpu, &usage);
    return usage;
}

/* ---- the pool ------------------------------------------------------------ */

GPU_TEST(allocations_of_any_size_are_apart)
{
    static const size_t sizes[] = { 0,    1,   511,     512,     513,
                                    4097, MIB, MIB - 1, MIB + 1, 10 * MIB + 7 };
    enum { COUNT = sizeof sizes / sizeof *sizes };
    void *memory[COUNT];

    for (int i = 0; i < COUNT; i++) {
        RANK_OK(oar_device_alloc(gpu, sizes[i], &memory[i]));
        RANK_CHECK((uintptr_t)memory[i] % 256 == 0);
        RANK_OK(oar_device_fill(bytes_at(memory[i], sizes[i]), i + 1, NULL));
    }
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(is_at(memory[i], sizes[i], i + 1));
    for (int i = 0; i < COUNT; i += 2)
        oar_device_free(gpu, memory[i], NULL);
    for (int i = 1; i < COUNT; i += 2)
        RANK_CHECK(is_at(memory[i], sizes[i], i + 1));
    for (int i = 1; i < COUNT; i += 2)
        oar_device_free(gpu, memory[i], NULL);
    oar_device_free(gpu, NULL, NULL);
    RANK_CHECK(usage_now().used_bytes == 0);
    return 0;
}

GPU_TEST(what_is_freed_is_used_again_and_neighbours_become_one)
{
    void *memory[8], *whole = NULL;
    oar_device_usage before, after;

    for (int i = 0; i < 8; i++)
        RANK_OK(oar_device_alloc(gpu, 2 * MIB, &memory[i]));
    before = usage_now();
    RANK_CHECK(before.used_bytes == 16 * MIB && before.from_driver == 1);
    RANK_CHECK(before.kept_bytes >= before.used_bytes);
    for (int i = 0; i < 8; i++) /* not in their order */
        oar_device_free(gpu, memory[(i * 3) % 8], NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    RANK_OK(oar_device_alloc(gpu, 10 * MIB, &whole));
    after = usage_now();
    RANK_CHECK(after.from_driver == 1 && after.used_bytes == 10 * MIB);
    RANK_CHECK(after.most_bytes == 16 * MIB &&
               after.kept_bytes == before.kept_bytes);
    oar_device_free(gpu, whole, NULL);
    return 0;
}

GPU_TEST(memory_that_a_stream_still_uses_is_not_handed_out)
{
    void *first = NULL, *second = NULL, *third = NULL, *stream = NULL;
    stream_gate g;

    RANK_OK(oar_stream_create(gpu, 0, &stream));
    RANK_OK(stream_gate_create(0, &g));
    RANK_OK(oar_device_alloc(gpu, 30 * MIB, &first));
    RANK_OK(stream_gate_close(0, &g, stream));
    RANK_OK(oar_device_fill(bytes_at(first, 1001), 7, stream));
    oar_device_free(gpu, first, stream);
    RANK_CHECK(usage_now().used_bytes == 0);
    RANK_OK(oar_device_alloc(gpu, 30 * MIB, &second));
    RANK_CHECK(second != first);
    stream_gate_open(&g);
    RANK_OK(oar_stream_synchronize(gpu, stream));
    RANK_OK(oar_device_alloc(gpu, 30 * MIB, &third));
    RANK_CHECK(third == first);
    oar_device_free(gpu, second, stream);
    oar_device_free(gpu, third, stream);
    oar_stream_destroy(gpu, stream);
    return 0;
}

GPU_TEST(trim_gives_back_unused_memory)
{
    void *small = NULL, *large = NULL;

    RANK_OK(oar_device_alloc(gpu, 100, &small));
    RANK_OK(oar_device_alloc(gpu, 11 * MIB, &large));
    oar_device_free(gpu, large, NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    RANK_OK(oar_device_trim(gpu));
    RANK_CHECK(usage_now().kept_bytes == 2 * MIB);
    oar_device_free(gpu, small, NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    RANK_OK(oar_device_trim(gpu));
    RANK_CHECK(usage_now().kept_bytes == 0 && usage_now().used_bytes == 0);
    return 0;
}

GPU_TEST(what_peers_have_mapped_is_kept)
{
    oari_cuda_block block;
    void *memory = NULL;
    int local = 0;

    RANK_OK(oar_device_alloc(gpu, 11 * MIB, &memory));
    RANK_OK(oari_cuda_find(memory, &block));
    oari_cuda_hold(block.base);
    oari_cuda_hold(block.base);
    oari_cuda_hold((uintptr_t)&local); /* not the pool's */
    oar_device_free(gpu, memory, NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    oari_cuda_unhold(block.base);
    RANK_OK(oar_device_trim(gpu));
    RANK_CHECK(usage_now().kept_bytes == block.bytes);
    oari_cuda_unhold(block.base);
    oari_cuda_unhold(block.base); /* one too many */
    RANK_OK(oar_device_trim(gpu));
    RANK_CHECK(usage_now().kept_bytes == 0);
    return 0;
}

/* ---- when there is no more ----------------------------------------------- */

/* 6 tenths of what the device has: not twice. */
static int most_of_it(test_job *c, int rank, size_t *bytes)
{
    oar_device_properties p = oar_device_properties_init();

    setenv("STANDIN_MEMORY_MB", "100", 1);
    RANK_OK(oar_device_describe(gpu, &p));
    *bytes = p.free_bytes / 10 * 6 / MIB * MIB;
    return 0;
}

GPU_TEST(too_much_is_out_of_memory_and_no_more)
{
    void *memory = &memory, *small = NULL;
    size_t bytes = 0;

    RANK_ZERO(most_of_it(c, rank, &bytes));
    RANK_CHECK(fails_with(oar_device_alloc(gpu, SIZE_MAX / 2, &memory),
                          OAR_E_NOMEM, "bytes on cuda:0"));
    RANK_CHECK(fails_with(oar_device_alloc(gpu, 2 * bytes, &memory),
                          OAR_E_NOMEM, "free"));
    RANK_CHECK(memory == &memory && usage_now().used_bytes == 0);
    RANK_OK(oar_device_alloc(gpu, 1000, &small));
    oar_device_free(gpu, small, NULL);
    return 0;
}

static void *open_soon(void *arg)
{
    stream_gate_open(arg);
    return NULL;
}

GPU_TEST(out_of_memory_waits_for_what_streams_still_use)
{
    void *first = NULL, *second = NULL, *stream = NULL;
    pthread_t thread;
    size_t bytes = 0;
    stream_gate g;

    RANK_ZERO(most_of_it(c, rank, &bytes));
    RANK_OK(oar_stream_create(gpu, 0, &stream));
    RANK_OK(stream_gate_create(0, &g));
    RANK_OK(oar_device_alloc(gpu, bytes, &first));
    RANK_OK(stream_gate_close(0, &g, stream));
    oar_device_free(gpu, first, stream);
    RANK_CHECK(pthread_create(&thread, NULL, open_soon, &g) == 0);
    RANK_OK(oar_device_alloc(gpu, bytes, &second));
    RANK_CHECK(first == second);
    pthread_join(thread, NULL);
    oar_device_free(gpu, second, stream);
    oar_stream_destroy(gpu, stream);
    return 0;
}

GPU_TEST(out_of_memory_gives_back_pieces_that_do_not_fit)
{
    void *piece[3], *whole = NULL;
    size_t bytes = 0;

    RANK_ZERO(most_of_it(c, rank, &bytes));
    for (int i = 0; i < 3; i++)
        RANK_OK(oar_device_alloc(gpu, bytes / 3, &piece[i]));
    for (int i = 0; i < 3; i++)
        oar_device_free(gpu, piece[i], NULL);
    RANK_OK(oar_device_alloc(gpu, bytes, &whole));
    oar_device_free(gpu, whole, NULL);
    return 0;
}

/* The pool tries again, so most failures of the heap are not seen; none may
 * leave anything behind. */
GPU_TEST(an_allocation_that_fails_leaves_the_pool_as_it_was)
{
    void *memory = NULL, *other = NULL;
    int failed = 0;

    for (int n = 1; n <= 12; n++) {
        oar_status status;

        oar_memory_fail_after((uint64_t)n);
        status = oar_device_alloc(gpu, 700, &memory);
        if (status == OAR_OK)
            oar_device_free(gpu, memory, NULL);
        oar_memory_fail_after(0);
        RANK_CHECK(status == OAR_OK || status == OAR_E_NOMEM);
        failed += status != OAR_OK;
        RANK_OK(oar_stream_synchronize(gpu, NULL));
        RANK_OK(oar_device_alloc(gpu, 700, &other));
        oar_device_free(gpu, other, NULL);
        RANK_OK(oar_stream_synchronize(gpu, NULL));
        RANK_OK(oar_device_trim(gpu));
        RANK_CHECK(usage_now().used_bytes == 0 && usage_now().kept_bytes == 0);
    }
    RANK_CHECK(failed == 0);
    return 0;
}

GPU_TEST(memory_that_is_not_the_pools_is_left_alone)
{
    void *memory = NULL;
    int local = 7;

    RANK_OK(oar_device_alloc(gpu, 3000, &memory));
    oar_device_free(gpu, &local, NULL);
    oar_device_free(gpu, (char *)memory + 512, NULL);
    RANK_CHECK(local == 7 && usage_now().used_bytes >= 3000);
    oar_device_free(gpu, memory, NULL);
    oar_device_free(gpu, memory, NULL); /* twice */
    RANK_CHECK(usage_now().used_bytes == 0);
    return 0;
}

enum { THREADS = 4, TURNS = 60, OWN = 5 };

typedef struct pool_thread {
    pthread_t thread;
    int number, wrong;
} pool_thread;

static int take_fill_and_look(void *stream, uint64_t *seed, int value)
{
    size_t bytes = 1 + next_random(seed) % 70000;
    unsigned char *seen = malloc(bytes);
    void *memory = NULL;
    int right = 0;

    if (oar_device_alloc(gpu, bytes, &memory) == OAR_OK &&
        oar_device_fill(bytes_at(memory, bytes), value, stream) == OAR_OK &&
        oar_device_copy(seen, cpu, memory, gpu, bytes, stream) == OAR_OK)
        right = seen[0] == value && seen[bytes / 2] == value &&
                seen[bytes - 1] == value;
    oar_device_free(gpu, memory, stream);
    free(seen);
    return right;
}

static void *work(void *arg)
{
    pool_thread *w = arg;
    uint64_t seed = (uint64_t)w->number;
    void *stream = NULL;

    w->wrong = oar_stream_create(gpu, 0, &stream) != OAR_OK;
    for (int i = 0; i < TURNS; i++)
        w->wrong += !take_fill_and_look(stream, &seed, w->number * 60 + i);
    oar_stream_destroy(gpu, stream);
    return NULL;
}

GPU_TEST(threads_share_the_pool)
{
    pool_thread workers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        RANK_CHECK(
            pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        RANK_CHECK(workers[i].wrong == 0);
    }
    RANK_CHECK(usage_now().used_bytes == 0);
    return 0;
}

/* ---- what pointers are --------------------------------------------------- */

GPU_TEST(a_pointer_says_where_it_points)
{
    oari_cuda_block block = { 0 }, inside = { 0 };
    void *memory = NULL, *pinned = NULL;
    int local = 0;

    RANK_CHECK(
        fails_with(oari_cuda_find(&local, &block), OAR_E_ARG, "host memory"));
    RANK_OK(oar_device_alloc(gpu, 11 * MIB, &memory));
    RANK_OK(oar_pinned_alloc(9, &pinned));
    RANK_CHECK(fails_with(oari_cuda_find(pinned, &block), OAR_E_ARG,
                          "pinned host memory"));
    RANK_OK(oari_cuda_find(memory, &block));
    RANK_CHECK(block.base == (uintptr_t)memory && block.device == 0);
    RANK_CHECK(block.bytes >= 11 * MIB);
    RANK_OK(oari_cuda_find((char *)memory + 11 * MIB - 1, &inside));
    RANK_CHECK(inside.base == block.base && inside.id == block.id);
    oar_device_free(gpu, memory, NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    RANK_OK(oar_device_trim(gpu));
    RANK_OK(oar_device_alloc(gpu, 11 * MIB, &memory));
    RANK_OK(oari_cuda_find(memory, &inside));
    RANK_CHECK(inside.id != block.id); /* perhaps at the same address */
    oar_device_free(gpu, memory, NULL);
    oar_pinned_free(pinned);
    return 0;
}

GPU_TEST(a_span_is_checked_before_it_is_used)
{
    void *memory = NULL, *there = NULL;
    int local[4];
    oar_span span;

    gpu_set_devices(2);
    RANK_OK(oar_device_alloc(gpu, 11 * MIB, &memory));
    span = oar_span_on(gpu, memory, 11 * MIB / 4, OAR_F32);
    RANK_OK(oari_cuda_check_span("this", &span));
    span.count = 12 * MIB; /* of 4 bytes */
    RANK_CHECK(
        fails_with(oari_cuda_check_span("this", &span), OAR_E_ARG, "this: "));
    RANK_CHECK(strstr(oar_last_error_text(), "beyond the end") != NULL);
    span.count = SIZE_MAX / 3;
    RANK_CHECK(oari_cuda_check_span("this", &span) == OAR_E_ARG);
    span = oar_span_on(gpu, local, 4, OAR_I32);
    RANK_CHECK(fails_with(oari_cuda_check_span("this", &span), OAR_E_ARG,
                          "is host memory, its span says cuda:0"));
    span = oar_span_on(gpu, NULL, 0, OAR_I32);
    RANK_OK(oari_cuda_check_span("this", &span));
    span = oar_span_on(gpu, memory, 4, (oar_dtype)99);
    RANK_CHECK(oari_cuda_check_span("this", &span) == OAR_E_ARG);
    span = oar_span_on(cpu, memory, 4, OAR_I32);
    RANK_CHECK(oari_cuda_check_span("this", &span) == OAR_E_DEVICE);
    if (oar_device_count(OAR_CUDA) > 1) {
        RANK_OK(oar_device_alloc(gpu_at(1), 16, &there));
        span = oar_span_on(gpu, there, 4, OAR_I32);
        RANK_CHECK(fails_with(
            oari_cuda_check_span("this", &span), OAR_E_DEVICE,
            "this: the memory lies on cuda:1, its span says cuda:0"));
        oar_device_free(gpu_at(1), there, NULL);
    }
    oar_device_free(gpu, memory, NULL);
    return 0;
}

/* ---- copies -------------------------------------------------------------- */

GPU_TEST(memory_that_is_not_pinned_is_free_when_a_copy_returns)
{
    void *memory = NULL, *stream = NULL;
    unsigned char *host = malloc(70001);

    RANK_OK(oar_stream_create(gpu, 0, &stream));
    RANK_OK(oar_device_alloc(gpu, 70001, &memory));
    memset(host, 7, 70001);
    RANK_OK(oar_device_copy(memory, gpu, host, cpu, 70001, stream));
    memset(host, 9, 70001);
    RANK_CHECK(is_at(memory, 70001, 7));
    RANK_OK(oar_device_fill(bytes_at(memory, 70001), 5, stream));
    RANK_OK(oar_device_copy(host, cpu, memory, gpu, 70001, stream));
    RANK_CHECK(host[0] == 5 && host[70000] == 5);
    oar_device_free(gpu, memory, stream);
    oar_stream_destroy(gpu, stream);
    free(host);
    return 0;
}

GPU_TEST(copies_go_between_devices_and_within_one)
{
    void *from = NULL, *to = NULL, *there = NULL, *stream = NULL;
    char host[3] = "ab", copy[3] = "";
    oar_device other;

    gpu_set_devices(2);
    other = gpu_at(oar_device_count(OAR_CUDA) - 1);
    RANK_OK(oar_stream_create(other, 0, &stream));
    RANK_OK(oar_device_alloc(gpu, 4097, &from));
    RANK_OK(oar_device_alloc(gpu, 4097, &to));
    RANK_OK(oar_device_alloc(other, 4097, &there));
    RANK_OK(oar_device_fill(bytes_at(from, 4097), 3, NULL));
    RANK_OK(oar_device_copy(to, gpu, from, gpu, 4097, NULL));
    RANK_CHECK(is_at(to, 4097, 3));
    RANK_OK(oar_device_copy(there, other, to, gpu, 4097, stream));
    RANK_OK(oar_device_copy((char *)there + 1, other, host, cpu, 2, stream));
    RANK_OK(oar_stream_synchronize(other, stream));
    RANK_OK(oar_device_copy(from, gpu, there, other, 4097, NULL));
    RANK_CHECK(is_at(from, 1, 3) && is_at((char *)from + 1, 1, 'a'));
    RANK_CHECK(is_at((char *)from + 2, 1, 'b') &&
               is_at((char *)from + 3, 4094, 3));
    RANK_OK(oar_device_copy(copy, cpu, host, cpu, sizeof host, NULL));
    RANK_CHECK(strcmp(copy, "ab") == 0);
    oar_device_free(gpu, from, NULL);
    oar_device_free(gpu, to, NULL);
    oar_device_free(other, there, stream);
    oar_stream_destroy(other, stream);
    return 0;
}

GPU_TEST(copies_of_nothing_are_fine_and_to_nowhere_are_not)
{
    char byte = 0;

    RANK_OK(oar_device_copy(NULL, gpu, NULL, cpu, 0, NULL));
    RANK_OK(oar_device_copy(NULL, cpu, NULL, cpu, 0, NULL));
    RANK_CHECK(fails_with(oar_device_copy(NULL, gpu, &byte, cpu, 1, NULL),
                          OAR_E_ARG, "copy 1 bytes to NULL"));
    RANK_CHECK(fails_with(oar_device_copy(&byte, cpu, NULL, gpu, 1, NULL),
                          OAR_E_ARG, "from NULL"));
    RANK_CHECK(fails_with(oar_device_copy(&byte, cpu, &byte,
                                          oar_device_of((oar_device_kind)7, 0),
                                          1, NULL),
                          OAR_E_DEVICE, "? is not a GPU"));
    return 0;
}

/* ---- fills --------------------------------------------------------------- */

static int fill_and_look(test_job *c, int rank, oar_dtype dtype, double value,
                         size_t count)
{
    size_t bytes = oar_dtype_size(dtype);
    unsigned char expected[8], *seen = malloc((count + 1) * bytes);
    void *memory = NULL;

    oari_convert(expected, dtype, &value, OAR_F64, 1);
    RANK_OK(oar_device_alloc(gpu, (count + 1) * bytes, &memory));
    RANK_OK(oar_device_fill(bytes_at(memory, (count + 1) * bytes), 0xee, NULL));
    RANK_OK(
        oar_device_fill(oar_span_on(gpu, memory, count, dtype), value, NULL));
    RANK_OK(oar_device_copy(seen, cpu, memory, gpu, (count + 1) * bytes, NULL));
    for (size_t i = 0; i < count; i++)
        RANK_CHECK(memcmp(seen + i * bytes, expected, bytes) == 0);
    RANK_CHECK(seen[count * bytes] == 0xee);
    RANK_OK(oar_device_fill(oar_span_of(seen, count, dtype), value, NULL));
    RANK_CHECK(count == 0 || memcmp(seen, expected, bytes) == 0);
    oar_device_free(gpu, memory, NULL);
    free(seen);
    return 0;
}

GPU_TEST(fills_set_every_element_of_every_dtype)
{
    static const double values[] = { 0, 1, -3, 0.1, 1e300 };

    for (int d = 0; d < OAR_BOOL + 1; d++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            RANK_ZERO(fill_and_look(c, rank, (oar_dtype)d, values[v],
                                    v == 0 ? 0 : 1 + 37 * v));
    return 0;
}

GPU_TEST(a_fill_of_the_wrong_memory_is_refused)
{
    int local = 7;
    oar_span span = oar_span_on(gpu, &local, 1, OAR_I32);

    RANK_CHECK(fails_with(oar_device_fill(span, 1, NULL), OAR_E_ARG, "fill: "));
    span.data = NULL;
    RANK_CHECK(oar_device_fill(span, 1, NULL) == OAR_E_ARG);
    span.dtype = (oar_dtype)99;
    RANK_CHECK(oar_device_fill(span, 1, NULL) == OAR_E_ARG);
    span.device = gpu_at(99);
    span.dtype = OAR_I32;
    span.count = 0;
    RANK_CHECK(oar_device_fill(span, 1, NULL) == OAR_E_DEVICE);
    RANK_CHECK(local == 7);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_of_any_size_are_apart),
        cmocka_unit_test(what_is_freed_is_used_again_and_neighbours_become_one),
        cmocka_unit_test(memory_that_a_stream_still_uses_is_not_handed_out),
        cmocka_unit_test(trim_gives_back_unused_memory),
        cmocka_unit_test(what_peers_have_mapped_is_kept),
        cmocka_unit_test(too_much_is_out_of_memory_and_no_more),
        cmocka_unit_test(out_of_memory_waits_for_what_streams_still_use),
        cmocka_unit_test(out_of_memory_gives_back_pieces_that_do_not_fit),
        cmocka_unit_test(an_allocation_that_fails_leaves_the_pool_as_it_was),
        cmocka_unit_test(memory_that_is_not_the_pools_is_left_alone),
        cmocka_unit_test(threads_share_the_pool),
        cmocka_unit_test(a_pointer_says_where_it_points),
        cmocka_unit_test(a_span_is_checked_before_it_is_used),
        cmocka_unit_test(memory_that_is_not_pinned_is_free_when_a_copy_returns),
        cmocka_unit_test(copies_go_between_devices_and_within_one),
        cmocka_unit_test(copies_of_nothing_are_fine_and_to_nowhere_are_not),
        cmocka_unit_test(fills_set_every_element_of_every_dtype),
        cmocka_unit_test(a_fill_of_the_wrong_memory_is_refused),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
