/* SPDX-License-Identifier: Apache-2.0 */
/* host: which ranks can share memory, and under which keys they find each other.
 *
 * Ranks are on one host when they run under the same boot of a kernel, as the
 * same user, and see the same processes and the same unix sockets. Whether they
 * can really open each other's descriptors shows in their handshake
 * (handshake.c). OARSONG_HOST_ID separates ranks that would be on one host.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"
#include "link/host.h"

static oar_status read_boot_id(char *text, size_t bytes)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, bytes - 1) : -1;

    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return oari_fail(OAR_E_SYSTEM, "read the boot id");
    text[got] = 0;
    text[strcspn(text, "\n")] = 0;
    return OAR_OK;
}

/* Returns the number of a namespace's file, which identifies it. */
static uint64_t namespace_of(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 ? (uint64_t)about.st_ino : 0;
}

oar_status native_host(char host[NATIVE_HOST])
{
    const char *other = oari_env_text("OARSONG_HOST_ID");
    char boot[40];

    OARI_TRY(read_boot_id(boot, sizeof boot));
    if (other != NULL && strlen(other) > NATIVE_HOST - 128)
        return oari_fail(OAR_E_ARG, "OARSONG_HOST_ID of %zu bytes: at most %d",
                         strlen(other), NATIVE_HOST - 128);
    snprintf(host, NATIVE_HOST, "%s %" PRIx64 " %" PRIx64 " %u %s", boot,
             namespace_of("/proc/self/ns/pid"),
             namespace_of("/proc/self/ns/net"), (unsigned)geteuid(),
             other != NULL ? other : "");
    return OAR_OK;
}

int native_one_machine(const char *a, const char *b)
{
    int spaces = 0;

    for (; *a == *b && *a != 0 && spaces < 4; a++, b++)
        spaces += *a == ' ';
    return spaces == 4;
}

/* Each rank counts how often it joins, so that a name can be used again. */
oar_status native_prefix(const oari_open *with, char *prefix, size_t bytes)
{
    char key[OAR_STORE_KEY_MAX];
    int64_t times;

    snprintf(key, sizeof key, "%s/join/%d", with->env.name, with->env.rank);
    OARI_TRY(oar_store_add(with->env.store, key, 1, &times));
    snprintf(prefix, bytes, "%s/%" PRId64, with->env.name, times);
    return OAR_OK;
}

void native_number_hosts(int ranks, const char *first, size_t stride, int *host)
{
    int hosts = 0;

    for (int r = 0; r < ranks; r++) {
        int same = 0;
        while (strcmp(first + (size_t)same * stride,
                      first + (size_t)r * stride) != 0)
            same++;
        host[r] = same == r ? hosts++ : host[same];
    }
}

void native_missed(const oari_open *with, int rank)
{
    if (with->missing != NULL)
        with->missing[rank] = 1;
}

void native_missed_from(const oari_open *with, int rank, oari_rank_key_fn key,
                        const void *arg)
{
    oar_error why = *oar_last_error();
    char text[OAR_STORE_KEY_MAX];
    const char *one = text;

    for (; rank < with->env.ranks; rank++) {
        key(arg, rank, text, sizeof text);
        if (rank != with->env.rank &&
            oar_store_wait(with->env.store, 1, &one, 0) == OAR_E_TIMEOUT)
            native_missed(with, rank);
    }
    oari_fail_with(&why);
}

oari_rendezvous native_rendezvous(const oari_open *with, oari_rank_key_fn key,
                                  const void *arg)
{
    return (oari_rendezvous){ .store = with->env.store,
                              .group = with->env.name,
                              .rank = with->env.rank,
                              .ranks = with->env.ranks,
                              .timeout_ms = with->meet_ms,
                              .key = key,
                              .arg = arg };
}
