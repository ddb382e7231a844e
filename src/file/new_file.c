/* SPDX-License-Identifier: Apache-2.0 */
/* new_file: see its header. The folder is synced last: without that the rename
 * may be lost with the power. */
#include "file/new_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/status.h"

oar_status oari_random_id(char id[17])
{
    uint64_t number;

    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    snprintf(id, 17, "%016" PRIx64, number);
    return OAR_OK;
}

static oar_status make_file(oari_new_file *f)
{
    char id[17];
    int length;

    OARI_TRY(oari_random_id(id));
    length =
        snprintf(f->part_name, sizeof f->part_name, "%s.part-%s", f->name, id);
    if (length < 0 || (size_t)length >= sizeof f->part_name)
        return oari_fail(OAR_E_ARG, "the file name %.40s... is too long",
                         f->name);
    f->fd =
        f->disk->open_file(f->disk, f->folder, f->part_name, OARI_DISK_CREATE);
    if (f->fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make %s", f->path);
    return OAR_OK;
}

oar_status oari_new_file_begin(const char *path, oari_new_file *file)
{
    oari_new_file f = { .disk = oari_disk_in_use(), .path = path, .fd = -1 };
    oar_status status;

    OARI_TRY(oari_disk_open_parent(f.disk, path, &f.folder, &f.name));
    status = make_file(&f);
    if (status != OAR_OK) {
        (void)f.disk->close(f.disk, f.folder);
        return status;
    }
    *file = f;
    return OAR_OK;
}

oar_status oari_new_file_commit(oari_new_file *f)
{
    oar_status status = oari_disk_finish(f->disk, f->fd, f->path);

    f->fd = -1;
    if (status == OAR_OK &&
        f->disk->rename(f->disk, f->folder, f->part_name, f->name) != 0)
        status =
            oari_fail(OAR_E_SYSTEM, "rename %s to %s", f->part_name, f->path);
    if (status != OAR_OK) {
        oari_new_file_abandon(f);
        return status;
    }
    return oari_disk_finish(f->disk, f->folder, f->path);
}

void oari_new_file_abandon(oari_new_file *f)
{
    if (f->fd >= 0)
        (void)f->disk->close(f->disk, f->fd);
    (void)f->disk->remove(f->disk, f->folder, f->part_name, 0);
    (void)f->disk->close(f->disk, f->folder);
}
