/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/windows.h: whether windows can be what options say, asked when a
 * layer is made and again by the operation. OAR_E_ARG if not. */
#ifndef OARI_AUTOGRAD_OPS_WINDOWS_H
#define OARI_AUTOGRAD_OPS_WINDOWS_H

#include <oarsong/ops.h>

/* name is that of the operation. */
oar_status oari_check_conv_opts(const char *name, const oar_conv2d_opts *opts);
oar_status oari_check_pool2d_opts(const char *name, int height, int width,
                                  const oar_pool2d_opts *opts);

#endif
