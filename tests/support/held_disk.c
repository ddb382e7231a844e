/* SPDX-License-Identifier: Apache-2.0 */
/* held_disk: a copy of the system's table with another write. */
#include "support/held_disk.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "file/disk.h"

enum { SMALL = 4096 }; /* a lock's text and an index are not held up */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int held, to_fail, error_number, writer_nice;
static oari_disk table;

static ssize_t write_at(const oari_disk *disk, int fd, const void *data,
                        size_t bytes, off_t at)
{
    int fails = 0;

    (void)disk;
    if (bytes >= SMALL) {
        pthread_mutex_lock(&lock);
        while (held)
            pthread_cond_wait(&changed, &lock);
        fails = to_fail > 0;
        to_fail -= fails;
        writer_nice = getpriority(PRIO_PROCESS, (id_t)gettid());
        pthread_mutex_unlock(&lock);
    }
    if (fails) {
        errno = error_number;
        return -1;
    }
    return oari_disk_system.write_at(&oari_disk_system, fd, data, bytes, at);
}

void held_disk_use(void)
{
    table = oari_disk_system;
    table.write_at = write_at;
    held = to_fail = 0;
    oari_disk_replace(&table);
}

void held_disk_stop(void)
{
    held_disk_let_go();
    oari_disk_replace(NULL);
}

static void set_held(int on)
{
    pthread_mutex_lock(&lock);
    held = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void held_disk_hold(void)
{
    set_held(1);
}

void held_disk_let_go(void)
{
    set_held(0);
}

void held_disk_fail(int count, int error)
{
    pthread_mutex_lock(&lock);
    to_fail = count;
    error_number = error;
    pthread_mutex_unlock(&lock);
}

int held_disk_nice(void)
{
    int value;

    pthread_mutex_lock(&lock);
    value = writer_nice;
    pthread_mutex_unlock(&lock);
    return value;
}
