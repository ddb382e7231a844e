/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_hall.c: the memory that the ranks of a communicator share: a
 * memfd of the process that made it, which the others open through /proc. So
 * nothing is left behind, whoever dies. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "standin/nccl.h"

int nccl_hall_make(nccl_place *place)
{
    nccl_hall *hall;
    place->pid = (int32_t)getpid();
    place->fd = memfd_create("standin-nccl", MFD_CLOEXEC);
    if (place->fd < 0 || ftruncate(place->fd, (off_t)sizeof *hall) ||
        getrandom(&place->key, sizeof place->key, 0) != 8)
        return nccl_fail(NCCL_SYSTEM, "no shared memory");
    hall = mmap(NULL, sizeof *hall, PROT_READ | PROT_WRITE, MAP_SHARED,
                place->fd, 0);
    if (hall == MAP_FAILED) {
        close(place->fd);
        return nccl_fail(NCCL_SYSTEM, "no shared memory");
    }
    hall->key = place->key;
    munmap(hall, sizeof *hall);
    return NCCL_OK;
}

/* Only if the descriptor is still this hall: it is forgotten once. */
void nccl_hall_forget(const nccl_place *place)
{
    uint64_t key = 0;
    if (place->pid == (int32_t)getpid() &&
        pread(place->fd, &key, sizeof key, 0) == 8 && key == place->key)
        close(place->fd);
}

nccl_hall *nccl_hall_enter(const nccl_place *place)
{
    char path[64];
    nccl_hall *hall;
    int fd;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->pid, place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    hall = mmap(NULL, sizeof *hall, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (hall == MAP_FAILED)
        return NULL;
    if (hall->key == place->key)
        return hall;
    munmap(hall, sizeof *hall);
    return NULL;
}

void nccl_hall_leave(nccl_hall *hall)
{
    if (hall)
        munmap(hall, sizeof *hall);
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
