/* SPDX-License-Identifier: Apache-2.0 */
/* hf_folder: opens the files of a model. Symbolic links are followed, because
 * Hugging Face's cache is made of them; but the names in an index are names of
 * files in its own folder, never paths. */
#include "interchange/hf_folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "file/disk.h"
#include "file/json_reader.h"

enum {
    CONFIG_MOST = 1 << 20, /* bytes */
    INDEX_MOST = 16 << 20,
    FILES_MOST = 256 /* each is an open descriptor */
};

static oar_status join_path(const oari_hf_folder *f, const char *name,
                            char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%s/%s", f->path, name);

    if (length < 0 || length >= PATH_MAX)
        return oari_fail(OAR_E_ARG, "the path %.40s.../%.40s is too long",
                         f->path, name);
    return OAR_OK;
}

static oar_status read_open_text(const oari_disk *disk, int fd,
                                 const char *path, off_t most, char **text,
                                 size_t *bytes)
{
    off_t size;

    if (disk->size(disk, fd, &size) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at %s", path);
    if (size > most)
        return oari_fail(OAR_E_DATA, "%s has %lld bytes; at most %lld are read",
                         path, (long long)size, (long long)most);
    *text = oari_alloc((size_t)size + 1, 1);
    if (*text == NULL)
        return OAR_E_NOMEM;
    *bytes = (size_t)size;
    return oari_disk_read(disk, fd, *text, *bytes, 0, path);
}

/* Reads a text file of the folder, and a zero byte behind it. *text stays NULL
 * if there is no such file. The caller frees it, also after a failure. */
static oar_status read_text(const oari_hf_folder *f, const char *name,
                            off_t most, char **text, size_t *bytes)
{
    const oari_disk *disk = oari_disk_in_use();
    char path[PATH_MAX];
    oar_status status;
    int fd;

    OARI_TRY(join_path(f, name, path));
    fd = disk->open_file(disk, AT_FDCWD, path, OARI_DISK_READ);
    if (fd < 0)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", path);
    status = read_open_text(disk, fd, path, most, text, bytes);
    (void)disk->close(disk, fd);
    return status;
}

static oar_status add_file(oari_hf_folder *f, const char *name)
{
    oari_hf_file file;
    char path[PATH_MAX];

    OARI_TRY(join_path(f, name, path));
    OARI_TRY(oari_vec_reserve(&f->files, 1));
    snprintf(file.name, sizeof file.name, "%s", name);
    OARI_TRY(oar_safetensors_open(path, NULL, &file.file));
    return oari_vec_push(&f->files, file);
}

/* ---- several files ------------------------------------------------------- */

/* Opens the file that an index gives for a tensor, if it is not open yet, and
 * sees that it has the tensor. */
static oar_status add_tensor(oari_hf_folder *f, const char *name,
                             const char *file)
{
    oar_safetensors_entry entry = { .size = sizeof entry };
    int64_t i = f->files.count - 1; /* the last one is the likely one */

    if (file[0] == '\0' || file[0] == '.' || strchr(file, '/') != NULL ||
        strlen(file) > NAME_MAX)
        return oari_fail(OAR_E_DATA,
                         "the index in %s puts \"%.100s\" into \"%.100s\", "
                         "which is no name of a file in that folder",
                         f->path, name, file);
    while (i >= 0 && strcmp(f->files.data[i].name, file) != 0)
        i--;
    if (i < 0) {
        if (f->files.count == FILES_MOST)
            return oari_fail(OAR_E_UNSUPPORTED,
                             "the index in %s names more than %d files",
                             f->path, FILES_MOST);
        OARI_TRY(add_file(f, file));
        i = f->files.count - 1;
    }
    if (oar_safetensors_find(f->files.data[i].file, name, &entry) != OAR_OK)
        return oari_fail(OAR_E_DATA,
                         "the index in %s puts \"%.100s\" into %s, which does "
                         "not have it",
                         f->path, name, file);
    return OAR_OK;
}

static oar_status read_index(oari_hf_folder *f, char *text, size_t bytes)
{
    const char *key, *file = "";
    int maps = 0;
    oari_json json;

    oari_json_start(&json, "model.safetensors.index.json", text, bytes);
    oari_json_open(&json, '{');
    while (oari_json_key(&json, &key)) {
        if (strcmp(key, "weight_map") != 0) {
            oari_json_skip(&json);
            continue;
        }
        maps++;
        oari_json_open(&json, '{');
        while (oari_json_key(&json, &key)) {
            oari_json_text(&json, &file);
            if (json.status == OAR_OK)
                json.status = add_tensor(f, key, file);
        }
    }
    OARI_TRY(oari_json_end(&json));
    if (maps != 1)
        return oari_fail(OAR_E_DATA,
                         "the index in %s has %d members \"weight_map\", not 1",
                         f->path, maps);
    return OAR_OK;
}

/* ---- open and close ------------------------------------------------------ */

static oar_status open_folder(oari_hf_folder *f)
{
    const oari_disk *disk = oari_disk_in_use();
    char path[PATH_MAX], *text = NULL;
    oar_status status;
    size_t bytes = 0;
    int fd;

    OARI_TRY(join_path(f, "model.safetensors", path));
    fd = disk->open_file(disk, AT_FDCWD, path, OARI_DISK_READ);
    if (fd >= 0 || errno != ENOENT) {
        if (fd >= 0)
            (void)disk->close(disk, fd);
        return add_file(f, "model.safetensors");
    }
    status =
        read_text(f, "model.safetensors.index.json", INDEX_MOST, &text, &bytes);
    if (status == OAR_OK && text == NULL)
        status = oari_fail(OAR_E_NOT_FOUND,
                           "%s has neither model.safetensors nor "
                           "model.safetensors.index.json",
                           f->path);
    if (status == OAR_OK)
        status = read_index(f, text, bytes);
    oari_free(text);
    return status;
}

/* Opens one file; its folder is where config.json may be. */
static oar_status open_single(oari_hf_folder *f)
{
    char *slash = strrchr(f->path, '/');
    char name[NAME_MAX + 1];
    const char *last = slash != NULL ? slash + 1 : f->path;

    if (strlen(last) > NAME_MAX)
        return oari_fail(OAR_E_ARG, "the file name %.40s... is too long", last);
    memcpy(name, last, strlen(last) + 1);
    if (slash == NULL)
        memcpy(f->path, ".", 2);
    else
        *slash =
            '\0'; /* of "/name" the empty path stays, which joins rightly */
    return add_file(f, name);
}

static oar_status open_any(const char *path, oari_hf_folder *f)
{
    const oari_disk *disk = oari_disk_in_use();
    int fd;

    if (strlen(path) >= sizeof f->path)
        return oari_fail(OAR_E_ARG, "the path %.40s... is too long", path);
    memcpy(f->path, path, strlen(path) + 1);
    fd = disk->open_folder(disk, AT_FDCWD, path);
    if (fd >= 0)
        (void)disk->close(disk, fd);
    else if (errno != ENOTDIR)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open %s", path);
    OARI_TRY(fd >= 0 ? open_folder(f) : open_single(f));
    return read_text(f, "config.json", CONFIG_MOST, &f->config,
                     &f->config_bytes);
}

oar_status oari_hf_open(const char *path, oari_hf_folder *folder)
{
    oar_status status;

    *folder = (oari_hf_folder){ .config = NULL };
    status = open_any(path, folder);
    if (status != OAR_OK)
        oari_hf_close(folder);
    return status;
}

void oari_hf_close(oari_hf_folder *f)
{
    for (int64_t i = 0; i < f->files.count; i++)
        oar_safetensors_close(f->files.data[i].file);
    oari_vec_free(&f->files);
    oari_free(f->config);
    f->config = NULL;
}
