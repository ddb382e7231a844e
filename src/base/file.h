/* SPDX-License-Identifier: Apache-2.0 */
/* base/file.h: makes files grow. At the limit on the size of files (ulimit -f),
 * which holds for memory with a descriptor too, these functions fail with
 * EFBIG; they do not raise SIGXFSZ, which would end the process. Any thread may
 * call them. */
#ifndef OARI_BASE_FILE_H
#define OARI_BASE_FILE_H

#include <sys/types.h>

/* Calls ftruncate. */
int oari_file_resize(int fd, off_t bytes);

/* Calls posix_fallocate; returns 0 or an errno. */
int oari_file_reserve(int fd, off_t at, off_t bytes);

/* Calls fallocate for the first bytes of a file. Does nothing where the file
 * system cannot: posix_fallocate would write zeros there. */
void oari_file_preallocate(int fd, off_t bytes);

/* Calls write. */
ssize_t oari_file_write(int fd, const void *data, size_t bytes);

/* Calls pwrite. */
ssize_t oari_file_write_at(int fd, const void *data, size_t bytes, off_t at);

/* Returns " (ulimit -f)" if errno is EFBIG, else "". */
const char *oari_file_limit(void);

#endif
