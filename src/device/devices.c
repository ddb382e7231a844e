/* SPDX-License-Identifier: Apache-2.0 */
/* devices: lists and describes devices. Each thread has a current device. */
#include <oarsong/device.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/cuda/driver.h"

/* CUdevice_attribute */
enum { PROCESSORS = 16, MAJOR = 75, MINOR = 76 };

static _Thread_local int current = -1;

/* ---- names --------------------------------------------------------------- */

oar_device_name oar_device_text(oar_device device)
{
    oar_device_name name;

    if (device.kind == OAR_CPU)
        snprintf(name.text, sizeof name.text, "cpu");
    else if (device.kind == OAR_CUDA)
        snprintf(name.text, sizeof name.text, "cuda:%d", device.index);
    else
        snprintf(name.text, sizeof name.text, "?");
    return name;
}

oar_status oar_device_parse(const char *text, oar_device *device)
{
    char *end = NULL;
    long index;

    if (text == NULL || device == NULL)
        return oari_fail(OAR_E_ARG, "device_parse with no text or no device");
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) {
        *device =
            text[1] == 'p' ? oar_device_of(OAR_CPU, 0) : oar_device_current();
        return OAR_OK;
    }
    if (strncmp(text, "cuda:", 5) != 0 || text[5] < '0' || text[5] > '9' ||
        (index = strtol(text + 5, &end, 10)) > 9999 || *end != 0)
        return oari_fail(OAR_E_ARG,
                         "\"%s\" is not a device: write \"cpu\", \"cuda\" or "
                         "\"cuda:1\"",
                         text);
    *device = oar_device_of(OAR_CUDA, (int)index);
    return OAR_OK;
}

oar_status oari_cuda_only(oar_device device, const char *what)
{
    if (device.kind == OAR_CUDA)
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE, "%s: %s is not a GPU", what,
                     oar_device_text(device).text);
}

/* ---- counting ------------------------------------------------------------ */

oar_status oar_device_available(oar_device_kind kind)
{
    int count;

    if (kind == OAR_CPU)
        return OAR_OK;
    if (kind != OAR_CUDA)
        return oari_fail(OAR_E_UNAVAILABLE, "there is no device kind %d",
                         (int)kind);
    return oari_cuda_count(&count);
}

/* Without a driver the caller did not fail: its last error stays. */
int oar_device_count(oar_device_kind kind)
{
    oar_error before = *oar_last_error();
    int count = 0;

    if (kind == OAR_CPU)
        return 1;
    if (kind != OAR_CUDA || oari_cuda_count(&count) != OAR_OK)
        oari_fail_with(&before);
    return count;
}

/* ---- properties ---------------------------------------------------------- */

static oar_status describe_gpu(int index, oar_device_properties *p)
{
    const oari_cuda *cu;
    oari_cu_device handle;
    oari_cu_uuid uuid;
    int result;

    OARI_TRY(oari_cuda_known(index, &cu));
    OARI_TRY(oari_cuda_check(cu->DeviceGet(&handle, index), "find a GPU"));
    OARI_TRY(oari_cuda_enter(index, &cu));
    result = cu->DeviceGetName(p->name, sizeof p->name, handle);
    if (result == OARI_CU_SUCCESS)
        result = cu->DeviceGetPCIBusId(p->bus, sizeof p->bus, handle);
    if (result == OARI_CU_SUCCESS)
        result = cu->DeviceGetUuid(&uuid, handle);
    if (result == OARI_CU_SUCCESS)
        memcpy(p->uuid, uuid.bytes, sizeof p->uuid);
    if (result == OARI_CU_SUCCESS)
        result = cu->DeviceGetAttribute(&p->major, MAJOR, handle);
    if (result == OARI_CU_SUCCESS)
        result = cu->DeviceGetAttribute(&p->minor, MINOR, handle);
    if (result == OARI_CU_SUCCESS)
        result = cu->DeviceGetAttribute(&p->processors, PROCESSORS, handle);
    if (result == OARI_CU_SUCCESS)
        result = cu->MemGetInfo(&p->free_bytes, &p->memory_bytes);
    oari_cuda_leave();
    p->driver_version = oari_cuda_version();
    return oari_cuda_check(result, "describe a GPU");
}

oar_status oar_device_describe(oar_device device,
                               oar_device_properties *properties)
{
    oar_device_properties made = oar_device_properties_init();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (device.kind == OAR_CPU) {
        if (device.index != 0)
            return oari_fail(OAR_E_DEVICE,
                             "there is no cpu %d: all cores are cpu 0",
                             device.index);
        snprintf(made.name, sizeof made.name, "cpu");
        made.processors = oari_cpus();
        made.memory_bytes = page * (size_t)sysconf(_SC_PHYS_PAGES);
        made.free_bytes = page * (size_t)sysconf(_SC_AVPHYS_PAGES);
    } else {
        OARI_TRY(oari_cuda_only(device, "describe"));
        OARI_TRY(describe_gpu(device.index, &made));
    }
    return oari_struct_give(properties, &made, sizeof made,
                            "device properties");
}

/* ---- the current device -------------------------------------------------- */

oar_status oar_device_set_current(oar_device device)
{
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_only(device, "set the current GPU"));
    OARI_TRY(oari_cuda_known(device.index, &cu));
    current = device.index;
    return OAR_OK;
}

/* Without a choice of the thread it is the GPU that the launcher gave to this
 * process by LOCAL_RANK, or the first one if that is not a number. */
oar_device oar_device_current(void)
{
    oar_error before = *oar_last_error();
    int count = current < 0 ? oar_device_count(OAR_CUDA) : 0;
    int64_t rank = 0;

    if (count > 0) {
        if (oari_env_int("LOCAL_RANK", 0, INT32_MAX, &rank) != OAR_OK) {
            oari_fail_with(&before);
            rank = 0;
        }
        current = (int)(rank % count);
    }
    return oar_device_of(OAR_CUDA, current < 0 ? 0 : current);
}
