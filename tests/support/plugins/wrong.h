/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/wrong.h: backends that are refused. Each file wrong_*.c defines what
 * is wrong with it and includes this; old_table.c includes it too, with nothing
 * wrong. Not an ordinary header. */
#include <oarsong/backend.h>

OAR_API const oar_backend_ops *oar_backend_plugin(void);

static oar_status wrong_open(void *self, const oar_backend_env *env)
{
    return OAR_E_UNAVAILABLE;
}

static void wrong_close(void *self)
{
}

static oar_status wrong_start(void *self, oar_transfer *transfer)
{
    return OAR_E_CLOSED;
}

static int wrong_wait_fd(void *self)
{
    return -1;
}

static const oar_backend_ops table = {
#ifdef WRONG_SIZE
    .size = offsetof(oar_backend_ops, post) - 1,
#else
    .size = offsetof(oar_backend_ops, post), /* an old one: no post array */
#endif
    .abi = OAR_BACKEND_ABI,
#ifndef WRONG_NAME
    .name = "wrong",
#endif
#ifndef WRONG_SELF
    .self_size = 1,
#endif
#ifndef WRONG_OPEN
    .open = wrong_open,
#endif
#ifndef WRONG_CLOSE
    .close = wrong_close,
#endif
#ifndef WRONG_MESSAGES
    .send = wrong_start,
#endif
#if !defined WRONG_MESSAGES && !defined WRONG_RECV
    .recv = wrong_start,
#endif
#ifdef WRONG_ARM
    .wait_fd = wrong_wait_fd,
#endif
#ifdef WRONG_COUNT
    .post_count = 1,
#endif
};

const oar_backend_ops *oar_backend_plugin(void)
{
    (void)wrong_open, (void)wrong_close, (void)wrong_start, (void)wrong_wait_fd;
#ifdef WRONG_TABLE
    (void)table;
    return NULL;
#else
    return &table;
#endif
}
