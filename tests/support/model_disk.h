/* SPDX-License-Identifier: Apache-2.0 */
/* support/model_disk.h: a disk in memory that knows what a power failure may
 * leave of it.
 *
 * Until a file is synced, any part of what was written to it may be lost; until
 * a folder is synced, any of the changes of names in it. The disk writes down
 * every call that changes it. Afterwards model_disk_each_state goes through the
 * calls again and, after each of them, through the states that a disk could be
 * in had the power failed there. */
#ifndef TESTS_SUPPORT_MODEL_DISK_H
#define TESTS_SUPPORT_MODEL_DISK_H

#include "file/disk.h"

typedef struct model_disk model_disk;

/* An empty disk. Folders named by a path are below its root. */
model_disk *model_disk_create(void);
void model_disk_destroy(model_disk *disk);

/* Its table, for oari_disk_replace. Any thread may call it. */
const oari_disk *model_disk_table(const model_disk *disk);

/* Writes down that something has been promised: that the generation `number`
 * is on the disk for good, say. */
void model_disk_promise(model_disk *disk, int64_t number);

/* Mistakes that the disk makes on purpose: calls that are left out. */
typedef enum model_mistake {
    MODEL_NO_MISTAKE,
    MODEL_FILES_NOT_SYNCED,  /* except the index */
    MODEL_INDEX_NOT_SYNCED,  /* files called index.json */
    MODEL_PART_NOT_SYNCED,   /* folders but the root's children */
    MODEL_PARENT_NOT_SYNCED, /* the folder in which generations are */
    MODEL_FOLDERS_NOT_SYNCED /* any */
} model_mistake;
void model_disk_mistake(model_disk *disk, model_mistake mistake);

/* Calls fn for each state, or for a sample of about 300 where a call leaves
 * more of them possible; `promised` is the last promise made before it, -1 if
 * none. fn may change the state's disk. Returns the number of states. */
typedef void model_state_fn(void *arg, const oari_disk *state,
                            int64_t promised);
long model_disk_each_state(const model_disk *disk, model_state_fn *fn,
                           void *arg);

#endif
