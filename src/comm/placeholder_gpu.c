/* SPDX-License-Identifier: Apache-2.0 */
#include <oarsong/backend.h>
static oar_status none(oar_backend_caps *caps)
{
    (void)caps;
    return oar_backend_fail(OAR_E_UNAVAILABLE, "not there yet");
}
extern const oar_backend_ops oari_backend_nccl, oari_backend_ipc, oari_backend_hosted;
__attribute__((weak)) const oar_backend_ops oari_backend_nccl = { .name = "nccl", .probe = none };
__attribute__((weak)) const oar_backend_ops oari_backend_ipc = { .name = "ipc", .probe = none };
__attribute__((weak)) const oar_backend_ops oari_backend_hosted = { .name = "hosted", .probe = none };
