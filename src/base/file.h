/* SPDX-License-Identifier: Apache-2.0 */
/* base/file.h: files that grow. A limit on the size of files (ulimit -f) is a
 * failure like any other, EFBIG, and not the signal SIGXFSZ, which would end
 * the process. It holds for memory that has a descriptor, too. Any thread. */
#ifndef OARI_BASE_FILE_H
#define OARI_BASE_FILE_H

#include <sys/types.h>

/* ftruncate. */
int oari_file_resize(int fd, off_t bytes);

/* posix_fallocate: 0, or an errno. */
int oari_file_reserve(int fd, off_t at, off_t bytes);

/* write. */
ssize_t oari_file_write(int fd, const void *data, size_t bytes);

/* " (ulimit -f)" if that is what errno says, or else "". */
const char *oari_file_limit(void);

#endif
