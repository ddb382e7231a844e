/* SPDX-License-Identifier: Apache-2.0 */
/* store_local: every change is one update of one key; waiting looks up the key
 * again after each pause. */
#include "store/store_local.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

oar_status oari_local_store_change(void *self, oari_change *change)
{
    const oari_local_store *s = self;

    return s->ops->update(self, change->key, oari_change_apply, change);
}

oar_status oari_local_store_get(void *self, const char *key,
                                int64_t deadline_ns, int once,
                                oari_value *value)
{
    const oari_local_store *s = self;

    for (int tries = 0;; tries++) {
        OARI_TRY(s->ops->look(self, key, value));
        if (value->data != NULL || oari_now_ns() >= deadline_ns)
            return OAR_OK;
        s->ops->pause(self, tries, deadline_ns);
    }
}

oar_status oari_local_store_wait(void *self, int count, const char *const *key,
                                 int64_t deadline_ns, int *missing)
{
    *missing = -1;
    for (int i = 0; i < count; i++) {
        oari_value found = { 0 };
        OARI_TRY(oari_local_store_get(self, key[i], deadline_ns, 0, &found));
        if (found.data == NULL) {
            *missing = i;
            break;
        }
        oari_free(found.data);
    }
    return OAR_OK;
}
