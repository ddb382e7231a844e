/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/stream_copy.h: memcpy for what is not read again soon.
 * The C library's own writes past the caches only when it copies more at once
 * than a large part of them, which no block is. */
#ifndef OARI_PARALLEL_CHECKPOINT_STREAM_COPY_H
#define OARI_PARALLEL_CHECKPOINT_STREAM_COPY_H

#include <stddef.h>

/* Copies bytes between arrays that do not overlap. Another thread may read them
 * after a lock, as usual. */
void oari_stream_copy(void *to, const void *from, size_t bytes);

#endif
