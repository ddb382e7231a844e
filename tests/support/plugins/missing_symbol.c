/* SPDX-License-Identifier: Apache-2.0 */
/* missing_symbol: a backend that cannot be loaded, because it needs a function
 * that does not exist. */
#include <oarsong/backend.h>

const oar_backend_ops *oar_no_such_thing(void);

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return oar_no_such_thing();
}
