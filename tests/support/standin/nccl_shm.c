/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_shm.c: the memory that the ranks of a communicator share: a
 * memfd of the process that made it, which the others open through /proc. So
 * nothing is left behind, whichever process dies. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "standin/nccl.h"

int nccl_shm_create(nccl_shm_name *place)
{
    nccl_shm *shm;
    place->pid = (int32_t)getpid();
    place->fd = memfd_create("standin-nccl", MFD_CLOEXEC);
    if (place->fd < 0 || ftruncate(place->fd, (off_t)sizeof *shm) ||
        getrandom(&place->key, sizeof place->key, 0) != 8)
        return nccl_fail(NCCL_SYSTEM, "no shared memory");
    shm = mmap(NULL, sizeof *shm, PROT_READ | PROT_WRITE, MAP_SHARED, place->fd,
               0);
    if (shm == MAP_FAILED) {
        close(place->fd);
        return nccl_fail(NCCL_SYSTEM, "no shared memory");
    }
    shm->key = place->key;
    munmap(shm, sizeof *shm);
    return NCCL_OK;
}

/* Closes the descriptor if it is still this memory: it is closed once. */
void nccl_shm_close(const nccl_shm_name *place)
{
    uint64_t key = 0;
    if (place->pid == (int32_t)getpid() &&
        pread(place->fd, &key, sizeof key, 0) == 8 && key == place->key)
        close(place->fd);
}

nccl_shm *nccl_shm_map(const nccl_shm_name *place)
{
    char path[64];
    nccl_shm *shm;
    int fd;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->pid, place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    shm = mmap(NULL, sizeof *shm, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shm == MAP_FAILED)
        return NULL;
    if (shm->key == place->key)
        return shm;
    munmap(shm, sizeof *shm);
    return NULL;
}

void nccl_shm_unmap(nccl_shm *shm)
{
    if (shm)
        munmap(shm, sizeof *shm);
}

/* One that has ended but is not yet waited for is gone too. */
int nccl_is_gone(int pid)
{
    char path[64], text[256] = "", *state;
    FILE *file;
    if (pid == 0 || pid == (int)getpid())
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 1;
    if (!fgets(text, sizeof text, file))
        text[0] = 0;
    fclose(file);
    state = strrchr(text, ')');
    return !state || state[1] == 0 || state[2] == 'Z' || state[2] == 'X';
}
