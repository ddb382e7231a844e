/* SPDX-License-Identifier: Apache-2.0 */
/* slow_progress: the example backend, except that it looks for messages only
 * ten times a second: what a rank has sent is often found after that rank has
 * left. An engine with threads of its own may behave like that. */
#include <time.h>

#define oar_backend_plugin prompt_plugin
#include "../../../examples/backend_plugin/carrier.c"
#undef oar_backend_plugin

enum { LATE_NS = 100000000 };

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static oar_status slow_progress(void *self)
{
    static _Atomic int64_t looked;

    if (((carrier *)self)->aborted == OAR_OK && now_ns() - looked < LATE_NS)
        return OAR_OK;
    looked = now_ns();
    return carrier_progress(self);
}

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static oar_backend_ops ops;

    ops = carrier_ops;
    ops.name = "slow_progress";
    ops.progress = slow_progress;
    return &ops;
}
