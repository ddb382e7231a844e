/* SPDX-License-Identifier: Apache-2.0 */
/* hook: a list for each moment; the handle is the list's element. */
#include "tensor/hook.h"

#include "base/alloc.h"
#include "base/status.h"

oar_status oari_hook_add(oari_hooks *list, oari_hook_fn fn, void *arg,
                         oar_hook **hook)
{
    oar_hook *made;

    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "a hook without a function");
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->list = list;
    made->fn = fn;
    made->arg = arg;
    oari_list_append(list, &made->link);
    if (hook != NULL)
        *hook = made;
    return OAR_OK;
}

void oar_hook_remove(oar_hook *hook)
{
    if (hook == NULL)
        return;
    oari_list_remove(hook->list, &hook->link);
    oari_free(hook);
}

void oari_hooks_clear(oari_hooks *list)
{
    while (list->first != NULL)
        oar_hook_remove(oari_hook_at(list->first));
}

oar_status oari_hook_failed(const char *what, oar_status status)
{
    if (oar_last_error()->status != status)
        oari_fail(status, "a %s hook failed: %s", what,
                  oar_status_text(status));
    return status;
}
