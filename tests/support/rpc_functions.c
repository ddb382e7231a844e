/* SPDX-License-Identifier: Apache-2.0 */
#include "support/rpc_functions.h"

#include <time.h>

#include <oarsong/collective.h>

#define TRY(call)                    \
    do {                             \
        oar_status status_ = (call); \
        if (status_ != OAR_OK)       \
            return status_;          \
    } while (0)

static oar_status add_one(void *arg, oar_rpc_call *call)
{
    int64_t n;

    TRY(oar_rpc_get_i64(oar_rpc_args(call), &n));
    return oar_rpc_put_i64(oar_rpc_reply(call), n + 1);
}

static oar_status square(void *arg, oar_rpc_call *call)
{
    int64_t n;

    TRY(oar_rpc_get_i64(oar_rpc_args(call), &n));
    return oar_rpc_put_i64(oar_rpc_reply(call), n * n);
}

static oar_status double_it(void *arg, oar_rpc_call *call)
{
    double x;

    TRY(oar_rpc_get_f64(oar_rpc_args(call), &x));
    return oar_rpc_put_f64(oar_rpc_reply(call), 2 * x);
}

static void release_tensor(void *tensor)
{
    oar_tensor_release(tensor);
}

static oar_status echo(void *arg, oar_rpc_call *call)
{
    oar_rpc_message *in = oar_rpc_args(call), *out = oar_rpc_reply(call);

    for (;;) {
        const void *data;
        oar_tensor *tensor;
        size_t bytes;
        int64_t n;

        if (oar_rpc_get_i64(in, &n) == OAR_OK) {
            TRY(oar_rpc_put_i64(out, n));
        } else if (oar_rpc_get_bytes(in, &data, &bytes) == OAR_OK) {
            TRY(oar_rpc_put_bytes(out, data, bytes));
        } else if (oar_rpc_get_tensor(in, &tensor) == OAR_OK) {
            oar_status status = oar_rpc_put_tensor(out, tensor);

            release_tensor(tensor);
            TRY(status);
        } else {
            return OAR_OK;
        }
    }
}

static oar_status fail(void *arg, oar_rpc_call *call)
{
    return oar_rpc_fail(call, OAR_E_SHAPE, "something went wrong");
}

static oar_status fail_inside(void *arg, oar_rpc_call *call)
{
    return oar_rpc_put_text(oar_rpc_reply(call), NULL);
}

atomic_int rpc_waits_begun;

static oar_status wait_for_cancel(void *arg, oar_rpc_call *call)
{
    struct timespec nap = { 0, 1000000 };

    atomic_fetch_add(&rpc_waits_begun, 1);
    while (!oar_rpc_cancelled(call))
        nanosleep(&nap, NULL);
    return OAR_E_CANCELLED;
}

static oar_status left(void *arg, oar_rpc_call *call)
{
    return oar_rpc_put_i64(oar_rpc_reply(call), oar_rpc_left_ms(call));
}

static oar_status relay(void *arg, oar_rpc_call *call)
{
    oar_rpc_message *reply = NULL;
    const char *name;
    int64_t rank, n = 0;
    oar_status status;

    TRY(oar_rpc_get_i64(oar_rpc_args(call), &rank));
    TRY(oar_rpc_get_text(oar_rpc_args(call), &name));
    status = oar_rpc_sync(oar_rpc_of(call), (int)rank, name, rpc_message_of(1),
                          NULL, &reply);
    if (status == OAR_OK && oar_rpc_get_i64(reply, &n) == OAR_OK)
        status = oar_rpc_put_i64(oar_rpc_reply(call), n);
    oar_rpc_message_destroy(reply);
    return status;
}

oar_status rpc_open(oar_group *group, const oar_rpc_opts *opts, oar_rpc **rpc)
{
    static const oar_rpc_function function[] = {
        { .name = "add_one", .fn = add_one },
        { .name = "square", .fn = square },
        { .name = "double", .fn = double_it },
        { .name = "echo", .fn = echo },
        { .name = "fail", .fn = fail },
        { .name = "fail_inside", .fn = fail_inside },
        { .name = "wait", .fn = wait_for_cancel },
        { .name = "left", .fn = left },
        { .name = "relay", .fn = relay },
        { .name = "quick", .fn = add_one, .manner = OAR_RPC_INLINE },
        { .name = "relay_inline", .fn = relay, .manner = OAR_RPC_INLINE },
        { .name = "only_rank_0", .fn = add_one, .callers = "0" },
        { .name = "tiny", .fn = echo, .message_bytes = 100 },
    };

    TRY(oar_rpc_create(group, opts, rpc));
    for (size_t i = 0; i < sizeof function / sizeof function[0]; i++) {
        oar_rpc_function f = function[i];

        f.size = sizeof f;
        TRY(oar_rpc_register(*rpc, &f));
    }
    return oar_barrier(group, NULL, NULL);
}

oar_status rpc_close(oar_rpc *rpc)
{
    oar_status status = oar_rpc_shutdown(rpc, 0);

    oar_rpc_destroy(rpc);
    return status;
}

oar_rpc_message *rpc_message_of(int64_t value)
{
    oar_rpc_message *m = NULL;

    if (oar_rpc_message_create(&m) == OAR_OK)
        oar_rpc_put_i64(m, value);
    return m;
}

oar_status rpc_number(oar_rpc *rpc, int to, const char *name, int64_t in,
                      int64_t *out)
{
    oar_rpc_message *reply;
    oar_status status;

    TRY(oar_rpc_sync(rpc, to, name, rpc_message_of(in), NULL, &reply));
    status = oar_rpc_get_i64(reply, out);
    oar_rpc_message_destroy(reply);
    return status;
}
