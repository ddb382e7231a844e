/* SPDX-License-Identifier: Apache-2.0 */
/* interchange/hf_folder.h: the files of a model as Hugging Face lays them out:
 * one or several safetensors files, and perhaps config.json. */
#ifndef OARI_INTERCHANGE_HF_FOLDER_H
#define OARI_INTERCHANGE_HF_FOLDER_H

#include <limits.h>

#include <oarsong/safetensors.h>

#include "base/vec.h"

typedef struct oari_hf_file {
    char name[NAME_MAX + 1];
    oar_safetensors *file;
} oari_hf_file;

typedef struct oari_hf_folder {
    char path[PATH_MAX];
    OARI_VEC(oari_hf_file) files;
    char *config; /* the text of config.json, NULL if there is none */
    size_t config_bytes;
} oari_hf_folder;

/* Opens the files at path, which is a folder or a .safetensors file. On failure
 * there is nothing to close. */
oar_status oari_hf_open(const char *path, oari_hf_folder *folder);
void oari_hf_close(oari_hf_folder *folder);

#endif
