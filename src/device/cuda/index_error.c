/* SPDX-License-Identifier: Apache-2.0 */
/* index_error: one record for each device, in pinned memory, which is kept for
 * good. A lock guards the making; `made` is set last. */
#include "device/cuda/index_error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "device/cuda/driver.h"

typedef struct page {
    atomic_int made;
    oari_index_check check;
} page;

static const char *const names[OARI_INDEX_OPS] = {
    [OARI_INDEX_EMBEDDING] = "embedding",
    [OARI_INDEX_CROSS_ENTROPY] = "cross_entropy",
    [OARI_INDEX_SELECT] = "index_select",
    [OARI_INDEX_GATHER] = "gather",
    [OARI_INDEX_SCATTER] = "scatter_add",
    [OARI_INDEX_DIV] = "div",
    [OARI_INDEX_POW] = "pow",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static page pages[OARI_CUDA_DEVICES];

/* Locked. */
static oar_status make_page(int device, page *p)
{
    oar_device gpu = oar_device_of(OAR_CUDA, device);
    unsigned none = 0;
    void *record = NULL, *taken = NULL;
    oar_status status;

    OARI_TRY(oar_pinned_alloc(sizeof(oari_index_record), &record));
    memset(record, 0, sizeof(oari_index_record));
    status = oar_device_alloc(gpu, sizeof none, &taken);
    if (status == OAR_OK)
        status = oar_device_copy(taken, gpu, &none, oar_device_of(OAR_CPU, 0),
                                 sizeof none, NULL);
    if (status != OAR_OK) {
        oar_device_free(gpu, taken, NULL);
        oar_pinned_free(record);
        return status;
    }
    p->check = (oari_index_check){ taken, record };
    atomic_store_explicit(&p->made, 1, memory_order_release);
    return OAR_OK;
}

oar_status oari_index_check_of(int device, oari_index_check *check)
{
    page *p = &pages[device];
    oar_status status = OAR_OK;

    if (!atomic_load_explicit(&p->made, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load_explicit(&p->made, memory_order_relaxed))
            status = make_page(device, p);
        pthread_mutex_unlock(&lock);
    }
    if (status == OAR_OK)
        *check = p->check;
    return status;
}

static oar_status refuse(oar_device gpu, const oari_index_record *found)
{
    const char *name = found->op >= 0 && found->op < OARI_INDEX_OPS
                           ? names[found->op]
                           : "an operation";
    const char *how = "(OARSONG_GPU_CHECK=1 says which call it was)";

    if (found->op == OARI_INDEX_DIV || found->op == OARI_INDEX_POW)
        return oari_fail(
            OAR_E_ARG, "%s of integers on %s: element %lld has %s %lld %s",
            name, oar_device_text(gpu).text, (long long)found->at,
            found->op == OARI_INDEX_DIV ? "the divisor" : "the exponent",
            (long long)found->value, how);
    return oari_fail(OAR_E_ARG,
                     "%s on %s: element %lld of the indices is %lld, but it "
                     "has to be from 0 to %lld %s",
                     name, oar_device_text(gpu).text, (long long)found->at,
                     (long long)found->value, (long long)found->limit - 1, how);
}

oar_status oari_index_error(int device)
{
    page *p = &pages[device];
    oar_device gpu = oar_device_of(OAR_CUDA, device);
    unsigned none = 0;
    oari_index_record found;

    if (!atomic_load_explicit(&p->made, memory_order_acquire) ||
        !__atomic_load_n(&p->check.record->is_set, __ATOMIC_ACQUIRE))
        return OAR_OK;
    pthread_mutex_lock(&lock);
    found = *p->check.record;
    p->check.record->is_set = 0;
    pthread_mutex_unlock(&lock);
    if (!found.is_set) /* another thread has it */
        return OAR_OK;
    OARI_TRY(oar_device_copy(p->check.taken, gpu, &none,
                             oar_device_of(OAR_CPU, 0), sizeof none,
                             oar_stream_current(gpu)));
    return refuse(gpu, &found);
}

oar_status oari_index_checked(int device, void *stream)
{
    if (!oari_env_flag("OARSONG_GPU_CHECK"))
        return OAR_OK;
    return oar_stream_synchronize(oar_device_of(OAR_CUDA, device), stream);
}
