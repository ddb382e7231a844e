/* SPDX-License-Identifier: Apache-2.0 */
/* import: a generation made of safetensors files. Their tensors are mapped, so
 * that no more of them is in memory than the writer has just read. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/safetensors.h>

#include "base/status.h"
#include "file/disk.h"
#include "interchange/hf_folder.h"
#include "parallel/checkpoint/checkpoint.h"

/* Refuses PyTorch's own folders, whose .metadata is a pickle. */
static oar_status check_source(const char *path)
{
    const oari_disk *disk = oari_disk_in_use();
    int folder = disk->open_folder(disk, AT_FDCWD, path), fd;

    if (folder < 0)
        return OAR_OK; /* a file, or nothing */
    fd = disk->open_file(disk, folder, ".metadata", OARI_DISK_READ);
    if (fd >= 0)
        (void)disk->close(disk, fd);
    (void)disk->close(disk, folder);
    if (fd < 0)
        return OAR_OK;
    return oari_fail(
        OAR_E_UNSUPPORTED,
        "%s is a checkpoint in PyTorch's own format, a pickle, which is not "
        "read: `python3 -m torch.distributed.checkpoint.format_utils "
        "dcp_to_torch %s OUT.pt` makes a file of it that safetensors can save",
        path, path);
}

static oar_status add_file(oar_state *state, const char *path, const char *name)
{
    oar_safetensors_opts opts = { .size = sizeof opts, .map = 1 };
    char what[PATH_MAX + NAME_MAX + 2];
    oar_safetensors *file;
    oar_status status = OAR_OK;

    snprintf(what, sizeof what, "%s/%s", path, name);
    OARI_TRY(oar_safetensors_open(what, &opts, &file));
    for (int64_t i = 0; i < oar_safetensors_count(file) && status == OAR_OK;
         i++) {
        oar_safetensors_entry e = oar_safetensors_entry_init();
        oar_tensor *tensor = NULL;

        status = oar_safetensors_entry_at(file, i, &e);
        if (status == OAR_OK &&
            (tensor = oar_safetensors_tensor(NULL, file, e.name)) == NULL)
            status = oar_last_error()->status;
        if (status == OAR_OK)
            status = oar_state_add_tensor(state, OARI_CKPT_MODEL, e.name,
                                          tensor, NULL);
        oar_tensor_release(tensor);
    }
    oar_safetensors_close(file);
    return status;
}

static oar_status add_files(oar_state *state, const char *path)
{
    oari_hf_folder from;
    oar_status status = OAR_OK;

    OARI_TRY(check_source(path));
    OARI_TRY(oari_hf_open(path, &from));
    for (int64_t i = 0; i < from.files.count && status == OAR_OK; i++)
        status = add_file(state, from.path, from.files.data[i].name);
    oari_hf_close(&from);
    return status;
}

oar_status oar_checkpoint_import(const char *path, const char *folder,
                                 int64_t step, const oar_save_opts *opts)
{
    oar_checkpoint *to = NULL;
    oar_state *state;
    oar_status status;

    if (path == NULL || path[0] == '\0')
        return oari_fail(OAR_E_ARG, "checkpoint_import: no path");
    OARI_TRY(oar_state_create(&state));
    status = add_files(state, path);
    if (status == OAR_OK)
        status = oar_checkpoint_open(NULL, folder, NULL, &to);
    if (status == OAR_OK)
        status = oar_checkpoint_save(to, state, step, opts);
    if (status == OAR_OK)
        status = oar_checkpoint_wait(to);
    oar_checkpoint_close(to);
    oar_state_destroy(state);
    return status;
}
