/* SPDX-License-Identifier: Apache-2.0 */
/* loses_messages: an engine whose every receive fails, which it reports only in
 * the transfer. After each send it calls loses_messages_sent, if a test has set
 * it. */
#include <oarsong/backend.h>

OAR_API extern void (*loses_messages_sent)(void);
void (*loses_messages_sent)(void);

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
    if (loses_messages_sent != NULL)
        loses_messages_sent();
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
                                         .name = "loses_messages",
                                         .self_size = 1,
                                         .probe = probe,
                                         .open = open_group,
                                         .close = close_group,
                                         .send = send_nothing,
                                         .recv = lose,
                                         .post_count = OAR_COLL_COUNT };

    return &ops;
}
