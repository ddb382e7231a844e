/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU in messages of RPC: staged in pinned memory in the order of
 * the stream, and read into memory of the host or of a GPU. */
#include "support/gpu.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/rpc.h>

#include "support/last_error.h"

enum { COUNT = 5000, FEW = 10 };

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

static int is_filled(const int32_t *at, int count, int32_t value)
{
    for (int i = 0; i < count; i++)
        if (at[i] != value)
            return 0;
    return 1;
}

GPU_TEST(spans_arrive_on_either_side)
{
    static const int counts[] = { COUNT, FEW, 0 };
    void *stream, *from, *to;
    static int32_t host[COUNT];
    oar_span device;
    int dropped = 0;

    (void)arg;
    RANK_OK(oar_stream_create(gpu, 0, &stream));
    RANK_OK(oar_stream_set_current(gpu, stream));
    RANK_OK(oar_device_alloc(gpu, sizeof host, &from));
    RANK_OK(oar_device_alloc(gpu, sizeof host, &to));
    for (int i = 0; i < 3; i++) {
        size_t n = (size_t)counts[i];
        oar_rpc_message *m;
        oar_tensor *t;

        RANK_OK(oar_rpc_message_create(&m));
        device = oar_span_on(gpu, from, n, OAR_I32);
        RANK_OK(oar_device_fill(device, 7 + i, stream));
        RANK_OK(oar_rpc_put_span(m, device, count_drop, &dropped));
        RANK_CHECK(dropped == i + 1);
        RANK_OK(oar_device_fill(device, 0, stream)); /* it was read */
        RANK_OK(oar_rpc_get_into(m, oar_span_on(gpu, to, n, OAR_I32)));
        oar_rpc_message_rewind(m);
        memset(host, 0, sizeof host);
        RANK_OK(oar_device_copy(host, cpu, to, gpu, n * 4, stream));
        RANK_OK(oar_stream_synchronize(gpu, stream));
        RANK_CHECK(is_filled(host, counts[i], 7 + i));
        memset(host, 0, sizeof host);
        RANK_OK(oar_rpc_get_into(m, oar_span_of(host, n, OAR_I32)));
        RANK_CHECK(is_filled(host, counts[i], 7 + i));
        oar_rpc_message_rewind(m);
        RANK_OK(oar_rpc_get_tensor_on(m, gpu, &t));
        RANK_CHECK(oar_tensor_device(t).kind == OAR_CUDA);
        oar_rpc_message_destroy(m);
        RANK_OK(oar_rpc_message_create(&m));
        RANK_OK(oar_rpc_put_tensor(m, t));
        oar_tensor_release(t);
        memset(host, 0, sizeof host);
        RANK_OK(oar_rpc_get_into(m, oar_span_of(host, n, OAR_I32)));
        RANK_CHECK(is_filled(host, counts[i], 7 + i));
        oar_rpc_message_destroy(m);
    }
    oar_device_free(gpu, from, stream);
    oar_device_free(gpu, to, stream);
    RANK_OK(oar_stream_synchronize(gpu, stream));
    RANK_OK(oar_stream_set_current(gpu, NULL));
    oar_stream_destroy(gpu, stream);
    return 0;
}

GPU_TEST(what_cannot_be_staged_is_refused_with_a_reason)
{
    const oar_device none = { OAR_CUDA, 99 };
    int64_t numbers[4] = { 0 };
    int dropped = 0;
    oar_rpc_message *m;

    (void)arg;
    RANK_OK(oar_rpc_message_create(&m));
    RANK_CHECK(
        fails_with(oar_rpc_put_span(m, oar_span_on(none, numbers, 4, OAR_I64),
                                    count_drop, &dropped),
                   OAR_E_DEVICE, "cannot take memory of cuda:99"));
    RANK_CHECK(dropped == 0 && oar_rpc_message_bytes(m) == 0);
    RANK_OK(oar_rpc_put_span(m, oar_span_of(numbers, 4, OAR_I64), NULL, NULL));
    RANK_CHECK(
        fails_with(oar_rpc_get_into(m, oar_span_on(none, numbers, 4, OAR_I64)),
                   OAR_E_DEVICE, "memory of cuda:99 cannot be written"));
    RANK_CHECK(fails_with(oar_rpc_get_into(m, oar_span_of(numbers, 3, OAR_I64)),
                          OAR_E_SIZE, "has 4 elements, the memory 3"));
    RANK_CHECK(fails_with(oar_rpc_get_into(m, oar_span_of(numbers, 4, OAR_F64)),
                          OAR_E_DTYPE, "the array has i64, the memory f64"));
    RANK_OK(oar_rpc_get_into(m, oar_span_of(numbers, 4, OAR_I64)));
    oar_rpc_message_destroy(m);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_arrive_on_either_side),
        cmocka_unit_test(what_cannot_be_staged_is_refused_with_a_reason),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("rpc_device", tests, NULL, NULL);
}
