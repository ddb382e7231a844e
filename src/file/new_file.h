/* SPDX-License-Identifier: Apache-2.0 */
/* file/new_file.h: writes a file under another name, and gives it its own by a
 * rename once every byte of it is on the disk: so the old file or the new one
 * is there, whenever the machine stops. */
#ifndef OARI_FILE_NEW_FILE_H
#define OARI_FILE_NEW_FILE_H

#include <limits.h>

#include "file/disk.h"

typedef struct oari_new_file {
    const oari_disk *disk;
    int folder, fd;
    const char *path;             /* borrowed */
    const char *name;             /* its last component */
    char part_name[NAME_MAX + 1]; /* until the rename */
} oari_new_file;

/* Makes PATH.part-ID. On success the caller ends with one of the next two. */
oar_status oari_new_file_begin(const char *path, oari_new_file *file);

/* Syncs it, renames it and syncs the folder. On failure the new file is gone,
 * unless only the last sync failed. */
oar_status oari_new_file_commit(oari_new_file *file);

/* Removes it; leaves the last error as it is. */
void oari_new_file_abandon(oari_new_file *file);

/* Gives 16 random hexadecimal digits. */
oar_status oari_random_id(char id[17]);

#endif
