/* SPDX-License-Identifier: Apache-2.0 */
/* old_abi: a backend made for another ABI. */
#include <oarsong/backend.h>

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static const oar_backend_ops ops = { .size = sizeof ops,
                                         .abi = OAR_BACKEND_ABI + 7,
                                         .name = "old_abi" };

    return &ops;
}
