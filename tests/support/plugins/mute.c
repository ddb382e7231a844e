/* SPDX-License-Identifier: Apache-2.0 */
/* mute: an engine that carries messages, and loses every one that is received:
 * it says so in the transfer, and nowhere else. After each send it calls
 * mute_sent, if a test has set it. */
#include <oarsong/backend.h>

OAR_API extern void (*mute_sent)(void);
void (*mute_sent)(void);

static oar_status probe(oar_backend_caps *caps)
{
    caps->can = OAR_WANTS_LINKS;
    return OAR_OK;
}

static oar_status open_group(void *self, const oar_backend_env *env)
{
    return OAR_OK;
}

static void close_group(void *self)
{
}

static oar_status send_nothing(void *self, oar_transfer *transfer)
{
    transfer->done = 1;
    if (mute_sent != NULL)
        mute_sent();
    return OAR_OK;
}

static oar_status lose(void *self, oar_transfer *transfer)
{
    transfer->status = OAR_E_CLOSED;
    transfer->done = 1;
    return OAR_OK;
}

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static const oar_backend_ops ops = { .size = sizeof ops,
                                         .abi = OAR_BACKEND_ABI,
                                         .name = "mute",
                                         .self_size = 1,
                                         .probe = probe,
                                         .open = open_group,
                                         .close = close_group,
                                         .send = send_nothing,
                                         .recv = lose,
                                         .post_count = OAR_COLL_COUNT };

    return &ops;
}
