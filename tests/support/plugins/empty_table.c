/* SPDX-License-Identifier: Apache-2.0 */
/* empty_table: a backend of the right ABI whose table lacks nearly
 * everything. */
#include <oarsong/backend.h>

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    static const oar_backend_ops ops = { .size = sizeof ops,
                                         .abi = OAR_BACKEND_ABI,
                                         .name = "empty_table" };

    return &ops;
}
