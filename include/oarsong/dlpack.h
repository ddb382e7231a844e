/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack.h: tensors in and out without a copy, by the DLPack protocol: 1.x, and
 * the struct without a version of before, which PyTorch before 2.9 and NumPy
 * 1.x exchange. The structs are declared by the dlpack/dlpack.h of the program
 * that shares tensors with us; nothing of it is needed to compile this header.
 *
 * From Python: a capsule named "dltensor_versioned" holds the first struct, one
 * named "dltensor" the second. Given to the wrong function, a struct is
 * OAR_E_ARG and left as it is: a version is two small numbers, which no address
 * of data is made of. */
#ifndef OARSONG_DLPACK_H
#define OARSONG_DLPACK_H

#include <oarsong/tensor.h>

struct DLManagedTensorVersioned;
struct DLManagedTensor;

OAR_BEGIN_DECLS

/* Gives the tensor's memory away for shared use: the receiver calls the
 * struct's deleter, from any thread, when it is done. The storage lives until
 * then, and cannot be detached. Memory of a GPU goes in and out as it is: what
 * is on a stream that writes it is for the two sides to order. */
OAR_API oar_status oar_dlpack_export(oar_tensor *tensor,
                                     struct DLManagedTensorVersioned **out);

/* The same without a version. That struct cannot say that its memory may only
 * be read: such a tensor is OAR_E_STATE. */
OAR_API oar_status oar_dlpack_export_unversioned(oar_tensor *tensor,
                                                 struct DLManagedTensor **out);

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
/* The same without a version; it may be written. */
OAR_API oar_tensor *oar_dlpack_import_unversioned(oar_tape *tape,
                                                  struct DLManagedTensor *in);

OAR_END_DECLS

#endif
