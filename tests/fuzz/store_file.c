/* SPDX-License-Identifier: Apache-2.0 */
/* Names and contents of files in the folder of a file store, where other
 * programs may have put them. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/memory.h>
#include <oarsong/store.h>

static char folder[64];

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(folder, sizeof folder, "%.40s/oarsong-fuzz-XXXXXX",
             base != NULL ? base : "/tmp");
    FUZZ_CHECK(mkdtemp(folder) != NULL);
}

/* With everything in it, as the store promises. */
static void remove_folder(void)
{
    oar_store *store;

    FUZZ_CHECK(oar_store_create_file(folder, &store) == OAR_OK);
    FUZZ_CHECK(oar_store_clear(store) == OAR_OK);
    oar_store_destroy(store);
    FUZZ_CHECK(access(folder, F_OK) != 0);
}

/* A file with the first line as its name and the rest in it. */
static int put_file(char *name, const char *content, size_t bytes)
{
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;

    FUZZ_CHECK(at >= 0);
    if (*name == 0 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0 ||
        (fd = openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) < 0) {
        close(at);
        return -1;
    }
    FUZZ_CHECK(write(fd, content, bytes) == (ssize_t)bytes);
    close(fd);
    return at;
}

static void use_store(const char *key, const char *prefix)
{
    oar_store *store;
    char **keys = NULL;
    int64_t sum;
    size_t bytes;
    int count = 0;
    void *value;

    FUZZ_CHECK(oar_store_create_file(folder, &store) == OAR_OK);
    if (oar_store_list(store, prefix, &count, &keys) == OAR_OK) {
        for (int i = 0; i < count; i++)
            FUZZ_CHECK(strlen(keys[i]) <= OAR_STORE_KEY_MAX);
        oar_free(keys);
    }
    if (oar_store_get(store, key, 0, &value, &bytes) == OAR_OK)
        oar_free(value);
    oar_store_add(store, key, 1, &sum);
    oar_store_destroy(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text, *content;
    int at;

    make_folder();
    text = fuzz_text(data, bytes);
    content = strchr(text, '\n');
    if (content != NULL) {
        *content++ = 0;
        at = put_file(text, content, bytes - (size_t)(content - text));
        if (at >= 0) {
            use_store(text, "");
            use_store("n", "n");
            close(at);
        }
    }
    remove_folder();
    free(text);
    return 0;
}
