/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: files of named tensors in the format of Hugging Face, which
 * PyTorch and many others read.
 *
 * A file is a length (u64), that many bytes of JSON, and the numbers of the
 * tensors one behind the other, row by row, little-endian. Nothing in a file is
 * believed: lengths, offsets and shapes are checked before anything is
 * allocated for them, and a name is never a path. What is wrong is OAR_E_DATA,
 * with the name and the byte. A dtype or a number of dims that Oarsong does not
 * have is OAR_E_UNSUPPORTED for that tensor only.
 *
 * Threads: several threads may read an open file at once.
 */
#ifndef OARSONG_SAFETENSORS_H
#define OARSONG_SAFETENSORS_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

typedef struct oar_safetensors oar_safetensors;

typedef struct oar_safetensors_opts {
    size_t size;
    size_t header_bytes; /* the longest header that is read; 0 means
                            100,000,000, as elsewhere */
    int map; /* tensors are views of the file, which is mapped: no copy, and
                they may only be read. The file must not become shorter while
                one of them lives (data.h says why) */
} oar_safetensors_opts;
OAR_OPTS_INIT(oar_safetensors_opts);

/* Opens a file and reads its header. opts may be NULL. */
OAR_API oar_status oar_safetensors_open(const char *path,
                                        const oar_safetensors_opts *opts,
                                        oar_safetensors **file);
/* NULL is fine. Mapped tensors stay valid. */
OAR_API void oar_safetensors_close(oar_safetensors *file);

typedef struct oar_safetensors_entry {
    size_t size;
    const char *name;       /* borrowed until the file is closed */
    const char *dtype_text; /* as the file spells it: "F32"; borrowed */
    int known;              /* it can be read: dtype and shape are set */
    oar_dtype dtype;
    oar_shape shape;
    uint64_t offset, bytes; /* its place in the file */
} oar_safetensors_entry;
OAR_OPTS_INIT(oar_safetensors_entry);

OAR_API int64_t oar_safetensors_count(const oar_safetensors *file);
/* Gives a tensor's entry, by its number, in the order of the file, or by name:
 * OAR_E_ARG, OAR_E_NOT_FOUND. *entry has its size set (OAR_OPTS). */
OAR_API oar_status oar_safetensors_entry_at(const oar_safetensors *file,
                                            int64_t index,
                                            oar_safetensors_entry *entry);
OAR_API oar_status oar_safetensors_find(const oar_safetensors *file,
                                        const char *name,
                                        oar_safetensors_entry *entry);
/* Returns a text of the file's metadata, borrowed; NULL, without an error, if
 * it has none under this key. */
OAR_API const char *oar_safetensors_metadata(const oar_safetensors *file,
                                             const char *key);

/* Returns a whole tensor, as it is in the file. */
OAR_API oar_tensor *oar_safetensors_tensor(oar_tape *tape,
                                           const oar_safetensors *file,
                                           const char *name);
/* Fills `into` with the part of a tensor that begins at offset (NULL: at its
 * beginning) and has into's shape, converted to into's dtype; `into` may have
 * any strides and be on any device. Reads the bytes of that part, and those
 * between its rows where rows are short. OAR_E_SHAPE if the part is not within
 * the tensor. */
OAR_API oar_status oar_safetensors_read(const oar_safetensors *file,
                                        const char *name, const int64_t *offset,
                                        oar_tensor *into);

/* Writes a file: under another name first, synced, then renamed over the old
 * one, and its folder synced. So there is the old file or the new one, whenever
 * the machine stops. Tensors may have any strides and be on any device; a
 * tensor with two names is written twice. metadata holds `pairs` pairs of key
 * and value; it may be NULL if there are none. */
OAR_API oar_status oar_safetensors_save(const char *path, int count,
                                        const char *const *name,
                                        oar_tensor *const *tensor, int pairs,
                                        const char *const (*metadata)[2]);

OAR_END_DECLS

#endif
