/* SPDX-License-Identifier: Apache-2.0 */
/* file/safetensors_header.h: the header of a safetensors file: which tensors
 * lie where. It is read without a tree: a hostile one takes at most three times
 * its own length. */
#ifndef OARI_FILE_SAFETENSORS_HEADER_H
#define OARI_FILE_SAFETENSORS_HEADER_H

#include <oarsong/tensor.h>

#include "file/json_writer.h"

enum {
    OARI_SAFETENSORS_LONGEST_HEADER = 100000000, /* what others take */
    OARI_SAFETENSORS_LONGEST_NAME = 1000,
    OARI_SAFETENSORS_ALIGN = 4096 /* our data begins at a multiple of this */
};

/* One tensor. */
typedef struct oari_safetensors_row {
    const char *name;
    const char *dtype_text;
    uint64_t begin, end; /* bytes, from where the data begins */
    int64_t dim[OAR_MAX_DIMS];
    int8_t dtype; /* -1: not one of ours */
    int8_t ndim;  /* -1: more than we have */
} oari_safetensors_row;

typedef struct oari_safetensors_header {
    char *text; /* names and metadata are in here */
    int64_t count;
    oari_safetensors_row *row; /* as they lie in the file */
    uint32_t *by_name;         /* rows, sorted */
    const char *metadata;      /* key, zero, value, zero, and so on */
    size_t metadata_bytes;
} oari_safetensors_header;

/* Reads `bytes` of header text, which it takes (oari_free), also when it fails.
 * The byte behind them must be writable. `what` is the file, for errors, and
 * data_bytes how many bytes of data it has. Everything is checked: names are
 * unique, tensors fill the data without holes, sizes fit shapes. */
oar_status oari_safetensors_header_read(const char *what, char *text,
                                        size_t bytes, uint64_t data_bytes,
                                        oari_safetensors_header *header);
void oari_safetensors_header_free(oari_safetensors_header *header);

/* Returns the row of that name, or NULL. */
const oari_safetensors_row *
oari_safetensors_header_find(const oari_safetensors_header *header,
                             const char *name);

/* Returns the value of a metadata key, or NULL. */
const char *
oari_safetensors_header_metadata(const oari_safetensors_header *header,
                                 const char *key);

/* Writes the start of a file, from its length to the first byte of data: rows
 * as they lie in the file (their dtype_text is not used), and pairs of
 * metadata. */
void oari_safetensors_header_write(oari_json_writer *writer, int64_t count,
                                   const oari_safetensors_row *row, int pairs,
                                   const char *const (*metadata)[2]);

/* The name of a dtype in these files: "F32". */
const char *oari_safetensors_dtype_name(oar_dtype dtype);

/* Checks that a tensor may have this name: OAR_E_ARG. */
oar_status oari_safetensors_check_name(const char *name);

#endif
