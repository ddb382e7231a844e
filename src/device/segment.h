/* SPDX-License-Identifier: Apache-2.0 */
/* device/segment.h: memory that other processes can map: a series of memfd
 * segments. It knows nothing of ranks.
 *
 * This process alone allocates in its segments. When they are full a new one is
 * made; none is ever moved or grown, so an address given out stays good, and a
 * pair (segment, offset) names a byte for every process that has mapped it.
 * Allocations are whole pages, so that one can be taken away from peers without
 * touching its neighbours.
 */
#ifndef OARI_DEVICE_SEGMENT_H
#define OARI_DEVICE_SEGMENT_H

#include <oarsong/status.h>

/* Where a byte of this process's shared memory is, as peers name it. */
typedef struct oari_place {
    uint32_t segment;
    uint64_t offset;
} oari_place;

oar_status oari_segment_alloc(size_t bytes, void **memory);
void oari_segment_free(void *memory);

/* How many segments there are; they are numbered from 0 and never go away
 * while one may still be named by a peer. */
uint32_t oari_segment_count(void);

/* The memfd of a segment (given: the caller closes it) and its size, for a
 * peer. Of one that has nothing left to share, and never will, it is a small
 * one. */
oar_status oari_segment_export(uint32_t segment, int *fd, size_t *bytes);

/* Finds memory .. memory+bytes. Returns 0 if not all of it is in one segment
 * and still shared. */
int oari_segment_find(const void *memory, size_t bytes, oari_place *place);

/* Puts private pages with the same content in place of the ones that hold
 * memory .. memory+bytes, at the same address: what peers still write to the
 * old pages no longer reaches this process. Whole pages are replaced; they are
 * not shared again until freed and never handed out as shared again. Memory
 * outside any segment is left alone. */
oar_status oari_segment_detach(void *memory, size_t bytes);

/* Maps a segment of another process, whose memfd this borrows. Checks that it
 * really has that size and that it cannot shrink under us. */
oar_status oari_segment_map(int fd, size_t bytes, int writable, void **base);
/* The same for whole pages of one that has been mapped to read, to write. */
oar_status oari_segment_map_part(int fd, size_t at, size_t bytes, void **base);
void oari_segment_unmap(void *base, size_t bytes);

/* A memfd of this size that cannot shrink or grow, mapped at *base; MADV_DONT-
 * FORK. For single mappings such as a control page. Gives fd and mapping. */
oar_status oari_segment_make(const char *name, size_t bytes, int *fd,
                             void **base);

#endif
