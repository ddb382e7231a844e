/* SPDX-License-Identifier: Apache-2.0 */
/* replay: runs a fuzz target over a folder of inputs without libFuzzer: each
 * file as it is and, if it is short, each of its beginnings and each of its
 * bytes changed. Prints how many inputs there were. None is a failure. */
#include <dirent.h>
#include <errno.h>

#include "fuzz.h"

enum { MOST = 1 << 20, SHORT = 300 };

/* Of its own memory, so that a sanitizer sees a byte read too far. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = calloc(1, bytes > 0 ? bytes : 1);

    FUZZ_CHECK(copy != NULL);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static long run_around(uint8_t *data, size_t bytes)
{
    long runs = 0;

    if (bytes > SHORT)
        return 0;
    for (size_t i = 0; i < bytes; i++, runs += 3) {
        uint8_t was = data[i];
        run(data, i);
        data[i] = (uint8_t)~was;
        run(data, bytes);
        data[i] = (uint8_t)(was ^ 1 << i % 8);
        run(data, bytes);
        data[i] = was;
    }
    return runs;
}

static long run_file(const char *folder, const char *name, uint8_t *room)
{
    char path[4096];
    FILE *file;
    size_t bytes;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if ((file = fopen(path, "rb")) == NULL) {
        fprintf(stderr, "open %s: %s\n", path, strerror(errno));
        exit(1);
    }
    bytes = fread(room, 1, MOST, file);
    fclose(file);
    run(room, bytes);
    return 1 + run_around(room, bytes);
}

static long run_folder(const char *path, long *files)
{
    DIR *folder = opendir(path);
    uint8_t *room = malloc(MOST);
    struct dirent *item;
    long runs = 0;

    if (folder == NULL || room == NULL) {
        fprintf(stderr, "open %s: %s\n", path, strerror(errno));
        exit(1);
    }
    while ((item = readdir(folder)) != NULL)
        if (item->d_name[0] != '.') {
            runs += run_file(path, item->d_name, room);
            *files += 1;
        }
    closedir(folder);
    free(room);
    return runs;
}

int main(int argc, char **argv)
{
    long files = 0, runs = 0;

    run(NULL, 0);
    for (int i = 1; i < argc; i++)
        runs += run_folder(argv[i], &files);
    printf("%ld files, %ld inputs\n", files, runs + 1);
    return files == 0;
}
