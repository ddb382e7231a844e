/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/hook.h: lists of functions to be called at some moment. Tensors and
 * modules have them; each knows the true type of its functions and casts. */
#ifndef OARI_TENSOR_HOOK_H
#define OARI_TENSOR_HOOK_H

#include <oarsong/tensor.h>

#include "base/list.h"

typedef void (*oari_hook_fn)(void); /* cast back before it is called */

typedef oari_list oari_hooks;

struct oar_hook {
    oari_link link;
    oari_hooks *list;
    oari_hook_fn fn;
    oari_hook_fn part; /* of gradients: or NULL */
    void *arg;
};

/* Appends a hook. The list must stay where it is as long as the hook lives. */
oar_status oari_hook_add(oari_hooks *list, oari_hook_fn fn, void *arg,
                         oar_hook **hook);

/* Removes and frees all hooks of a list. */
void oari_hooks_clear(oari_hooks *list);

/* Returns the status that a hook ended with, and sets the last error if the
 * hook has not. `what` is the kind of hook. */
oar_status oari_hook_failed(const char *what, oar_status status);

static inline oar_hook *oari_hook_at(oari_link *link)
{
    return OARI_CONTAINER_OF(link, oar_hook, link);
}

static inline oar_hook *oari_hook_after(const oar_hook *hook)
{
    return hook != NULL ? oari_hook_at(hook->link.next) : NULL;
}

/* A hook may remove itself while the list is run: take next before the call. */
#define OARI_EACH_HOOK(hook, following, list)          \
    for (oar_hook *hook = oari_hook_at((list)->first), \
                  *following = oari_hook_after(hook);  \
         hook != NULL; hook = following, following = oari_hook_after(hook))

#endif
