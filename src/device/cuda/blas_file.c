/* SPDX-License-Identifier: Apache-2.0 */
/* blas_file: choices of algorithms as lines, of OARSONG_TUNE_FILE or of another
 * rank:
 *
 *     oarsong-tune 1 130100 9.0 <numbers of the kind> : <8 numbers>
 *
 * with the version of cuBLASLt and of the GPU, without which an algorithm
 * means nothing. Lines of others, and lines that are not whole, are skipped.
 * The file is read once a line is asked for; rank 0 appends whole lines. Lines
 * of another rank count before the file's. The lock of cuda_blas.c guards all
 * of it. */
#include "device/cuda/blas_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "device/cuda/driver.h"

enum {
    LINE = OARI_BLAS_LINE,
    MAJOR = 75,
    MINOR = 76 /* CU_DEVICE_ATTRIBUTE_... */
};

static char *taken; /* lines of another rank, ended by 0; or NULL */

/* The beginning of a line: whose it is, and the kind of product. */
static void write_kind(const oari_blas_run *run, const oari_blas_key *key,
                       char line[LINE])
{
    int major = 0, minor = 0, n;
    oari_cu_device device = 0;
    const oari_cuda *cu;

    if (oari_cuda_known(run->device, &cu) == OAR_OK &&
        cu->DeviceGet(&device, run->device) == OARI_CU_SUCCESS) {
        cu->DeviceGetAttribute(&major, MAJOR, device);
        cu->DeviceGetAttribute(&minor, MINOR, device);
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

oar_status oari_blas_take_lines(const char *text, size_t bytes)
{
    char *copy = oari_alloc(bytes + 1, 1);

    if (copy == NULL)
        return OAR_E_NOMEM;
    if (bytes != 0)
        memcpy(copy, text, bytes);
    oari_free(taken);
    taken = copy;
    return OAR_OK;
}

/* Looks for a kind among the lines of another rank. */
static int recall_taken(const char *kind, oari_lt_algo *algo)
{
    size_t length = strlen(kind);
    const char *line = taken;

    while (line != NULL && *line != 0) {
        if (strncmp(line, kind, length) == 0 && read_algo(line + length, algo))
            return 1;
        line = strchr(line, '\n');
        line += line != NULL;
    }
    return 0;
}

static int recall_kept(const char *kind, oari_lt_algo *algo)
{
    const char *path = oari_env_text("OARSONG_TUNE_FILE");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    char line[LINE];
    int found = 0;

    if (file == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, kind, strlen(kind)) == 0 &&
                read_algo(line + strlen(kind), algo);
    fclose(file);
    return found;
}

int oari_blas_recall(const oari_blas_run *run, const oari_blas_key *key,
                     oari_lt_algo *algo)
{
    char kind[LINE];

    if (taken == NULL && oari_env_text("OARSONG_TUNE_FILE") == NULL)
        return 0;
    write_kind(run, key, kind);
    return recall_taken(kind, algo) || recall_kept(kind, algo);
}

size_t oari_blas_write_line(const oari_blas_run *run, const oari_blas_key *key,
                            const oari_lt_algo *algo, char line[LINE])
{
    size_t n;

    write_kind(run, key, line);
    n = strlen(line);
    for (int i = 0; i < 8; i++)
        n += (size_t)snprintf(line + n, LINE - n, " %" PRIx64, algo->data[i]);
    return n + (size_t)snprintf(line + n, LINE - n, "\n");
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
    n = oari_blas_write_line(run, key, algo, line);
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, n) != (ssize_t)n)
        oari_log(OAR_LOG_WARN, "OARSONG_TUNE_FILE: %s cannot be written: %s",
                 path, strerror(errno));
    if (fd >= 0)
        close(fd);
}
