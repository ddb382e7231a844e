/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_table: the cpu's table, and what is said where a table has a gap. */
#include "tensor/kernel_table.h"

#include <oarsong/device.h>

#include "base/status.h"

const oari_kernel_table oari_cpu_kernels = { .wide = 1,
                                             .unary_split = oari_unary_split,
                                             .attend_scratch =
                                                 oari_attend_scratch,
#define X(name, arguments) .name = oari_##name,
                                             OARI_KERNEL_LIST(X)
#undef X
};

oar_status oari_no_kernel(const oari_array *to, const char *name)
{
    return oari_fail(OAR_E_DEVICE,
                     "there is no kernel on %s for %s of %s %s: move the "
                     "inputs to the cpu with oar_to",
                     oar_device_text(to->device).text, name,
                     oar_dtype_name(to->dtype),
                     oari_shape_text(to->at.shape).text);
}
