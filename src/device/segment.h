/* SPDX-License-Identifier: Apache-2.0 */
/* device/segment.h: memory that other processes can map, a series of memfd
 * segments. It knows nothing of ranks.
 *
 * Only this process allocates in its segments. When they are full, it makes a
 * new one; none is ever moved or grown, so an address stays valid, and a pair
 * (segment, offset) names a byte for every process that has mapped it.
 * Allocations are whole pages, so that one can be taken away from peers without
 * touching its neighbours.
 */
#ifndef OARI_DEVICE_SEGMENT_H
#define OARI_DEVICE_SEGMENT_H

#include <oarsong/status.h>

/* The location of a byte of this process's shared memory, as peers name it. */
typedef struct oari_segment_location {
    uint32_t segment;
    uint64_t offset;
} oari_segment_location;

/* Allocates zeroed shared memory. */
oar_status oari_segment_alloc(size_t bytes, void **memory);

/* Frees shared memory. NULL is fine. */
void oari_segment_free(void *memory);

/* Returns the number of segments. They are numbered from 0, and none goes away
 * while a peer may still name it. */
uint32_t oari_segment_count(void);

/* Gives the memfd of a segment (the caller closes it) and its size, for a peer.
 * A segment that has no page left to share, and never will, has a small one. */
oar_status oari_segment_export(uint32_t segment, int *fd, size_t *bytes);

/* Finds the location of memory .. memory+bytes. Returns 0 if not all of it is
 * in one segment and still shared. */
int oari_segment_find(const void *memory, size_t bytes,
                      oari_segment_location *place);

/* Replaces the pages that hold memory .. memory+bytes by private ones with the
 * same content at the same address: this process no longer sees what peers
 * write to the old pages. Whole pages are replaced; they are never shared
 * again. Memory outside any segment is left alone. */
oar_status oari_segment_detach(void *memory, size_t bytes);

/* Maps a segment of another process, whose memfd this borrows. Checks that it
 * has that size and cannot shrink. */
oar_status oari_segment_map(int fd, size_t bytes, int writable, void **base);

/* Maps whole pages of a segment that is already mapped to read, to write them.
 */
oar_status oari_segment_map_part(int fd, size_t at, size_t bytes, void **base);

/* Unmaps what these two mapped. NULL is fine. */
void oari_segment_unmap(void *base, size_t bytes);

/* Makes a memfd of this size that cannot shrink or grow, and maps it at *base
 * (MADV_DONTFORK), for single mappings such as a control page. Gives fd and
 * mapping. */
oar_status oari_segment_make(const char *name, size_t bytes, int *fd,
                             void **base);

#endif
