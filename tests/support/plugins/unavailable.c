/* SPDX-License-Identifier: Apache-2.0 */
/* unavailable: a complete backend that says that it does not work here. */
#include <oarsong/backend.h>

static oar_status probe(oar_backend_caps *caps)
{
    return oar_backend_fail(OAR_E_UNAVAILABLE, "no %s in this machine", "oars");
}

static oar_status open_group(void *self, const oar_backend_env *env)
{
    return OAR_OK;
}

static void close_group(void *self)
{
}

static oar_status move(void *self, oar_transfer *transfer)
{
    transfer->done = 1;
    return OAR_OK;
}

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static const oar_backend_ops ops = { .size = sizeof ops,
                                         .abi = OAR_BACKEND_ABI,
                                         .name = "unavailable",
                                         .self_size = 1,
                                         .probe = probe,
                                         .open = open_group,
                                         .close = close_group,
                                         .send = move,
                                         .recv = move,
                                         .post_count = OAR_COLL_COUNT };

    return &ops;
}
