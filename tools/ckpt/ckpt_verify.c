/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt verify: every byte of a generation against its checksums. */
#include "ckpt.h"

#include <time.h>

#include "tool.h"

typedef struct verification {
    int files, damaged;
} verification;

static void print_file(void *arg, const char *file, oar_status status)
{
    verification *v = arg;

    v->files++;
    v->damaged += status != OAR_OK;
    if (status == OAR_OK)
        printf("ok       %s\n", file);
    else
        printf("DAMAGED  %s: %s\n", file, oar_last_error_text());
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int ckpt_verify(const ckpt_options *o)
{
    verification v = { 0, 0 };
    oar_catalog *catalog;
    oar_generation g;
    oar_status status;
    double start, took;
    char size[24];

    if (oar_catalog_open(o->path[0], &catalog) != OAR_OK)
        return tool_failed("ckpt verify");
    (void)oar_catalog_describe(catalog, &g);
    start = now_s();
    status = oar_catalog_verify(catalog, print_file, &v);
    took = now_s() - start;
    oar_catalog_close(catalog);
    printf("%s: %d of %d files are whole; %s in %.2f s, %.2f GB/s\n", g.name,
           v.files - v.damaged, v.files, ckpt_size_text(g.bytes, size), took,
           took > 0 ? (double)g.bytes / took * 1e-9 : 0);
    return status == OAR_OK ? TOOL_OK : TOOL_FAILED;
}
