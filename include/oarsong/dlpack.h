/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack.h: tensors in and out without a copy, by the DLPack 1.x protocol. The
 * struct is declared by the dlpack/dlpack.h of whoever shares tensors with us;
 * nothing of it is needed to compile this header. */
#ifndef OARSONG_DLPACK_H
#define OARSONG_DLPACK_H

#include <oarsong/tensor.h>

struct DLManagedTensorVersioned;

OAR_BEGIN_DECLS

/* Gives the tensor's memory away for shared use: the receiver calls the
 * struct's deleter when it is done. The storage lives until then. Memory of a
 * GPU goes in and out as it is: what is on a stream that writes it is for the
 * two sides to order. */
OAR_API oar_status oar_dlpack_export(oar_tensor *tensor,
                                     struct DLManagedTensorVersioned **out);

/* Takes a managed tensor: the result shares its memory, and its deleter is
 * called when the last reference is gone. On failure (another major version,
 * a dtype or device we do not have) the deleter is called at once if the
 * version allows it.
 *
 * A read-only tensor stays so: it and its views can be read by everything, also
 * by operations that compute its gradient, and exported again, with the flag.
 * Whatever would write to it is OAR_E_STATE: write, copy to, fill, a pointer or
 * span that is not const, a gradient bound to it, an optimizer over it, running
 * statistics kept in it. */
OAR_API oar_tensor *oar_dlpack_import(oar_tape *tape,
                                      struct DLManagedTensorVersioned *in);

OAR_END_DECLS

#endif
