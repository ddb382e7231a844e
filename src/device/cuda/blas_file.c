/* SPDX-License-Identifier: Apache-2.0 */
/* blas_file: the choices of algorithms in OARSONG_TUNE_FILE, one line each:
 *
 *     oarsong-tune 1 130100 9.0 <numbers of the kind> : <8 numbers>
 *
 * with the version of cuBLASLt and of the GPU, without which an algorithm
 * means nothing. Lines of others, and lines that are not whole, are skipped.
 * The file is read once a line is asked for; rank 0 appends whole lines. The
 * lock of cuda_blas.c guards all of it. */
#include "device/cuda/blas_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"

enum { LINE = 2048, MAJOR = 75, MINOR = 76 /* CU_DEVICE_ATTRIBUTE_... */ };

/* The beginning of a line: whose it is, and the kind of product. */
static void write_kind(const oari_blas_run *run, const oari_blas_key *key,
                       char line[LINE])
{
    int major = 0, minor = 0, n;
    oari_cu_device device = 0;

    if (run->cu->DeviceGet(&device, run->device) == OARI_CU_SUCCESS) {
        run->cu->DeviceGetAttribute(&major, MAJOR, device);
        run->cu->DeviceGetAttribute(&minor, MINOR, device);
    }
    n = snprintf(line, LINE,
                 "oarsong-tune 1 %zu %d.%d %" PRId64 " %" PRId64 " %" PRId64
                 " %" PRId64,
                 run->lt->GetVersion(), major, minor, key->m, key->n, key->k,
                 key->batches);
    n += snprintf(line + n, (size_t)(LINE - n),
                  " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                  " %" PRId64 " %" PRId64,
                  key->a_lead, key->b_lead, key->to_lead, key->aux_lead,
                  key->a_batch, key->b_batch, key->to_batch);
    snprintf(line + n, (size_t)(LINE - n),
             " %d %d %d %d%d%d%d %d %d %d %d :", key->dtype, key->to_dtype,
             key->epilogue, key->a_turned, key->b_turned, key->add, key->tf32,
             key->align[0], key->align[1], key->align[2], key->align[3]);
}

/* Reads the eight numbers after the kind. */
static int read_algo(const char *text, oari_lt_algo *algo)
{
    oari_lt_algo made;
    int used = 0;

    for (int i = 0; i < 8; i++, text += used)
        if (sscanf(text, " %" SCNx64 "%n", &made.data[i], &used) != 1)
            return 0;
    if (*text != '\n')
        return 0;
    *algo = made;
    return 1;
}

int oari_blas_recall(const oari_blas_run *run, const oari_blas_key *key,
                     oari_lt_algo *algo)
{
    const char *path = oari_env_text("OARSONG_TUNE_FILE");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    char kind[LINE], line[LINE];
    int found = 0;

    if (file == NULL)
        return 0;
    write_kind(run, key, kind);
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, kind, strlen(kind)) == 0 &&
                read_algo(line + strlen(kind), algo);
    fclose(file);
    return found;
}

void oari_blas_remember(const oari_blas_run *run, const oari_blas_key *key,
                        const oari_lt_algo *algo)
{
    const char *path = oari_env_text("OARSONG_TUNE_FILE");
    const char *rank = getenv("RANK");
    char line[LINE];
    size_t n;
    int fd;

    if (path == NULL || (rank != NULL && strcmp(rank, "0") != 0))
        return;
    write_kind(run, key, line);
    n = strlen(line);
    for (int i = 0; i < 8; i++)
        n += (size_t)snprintf(line + n, LINE - n, " %" PRIx64, algo->data[i]);
    n += (size_t)snprintf(line + n, LINE - n, "\n");
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, n) != (ssize_t)n)
        oari_log(OAR_LOG_WARN, "OARSONG_TUNE_FILE: %s cannot be written: %s",
                 path, strerror(errno));
    if (fd >= 0)
        close(fd);
}
