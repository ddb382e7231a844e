/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ipc/ipc.h: the private header of the backend ipc.
 *
 * Every rank has a page of host memory that all ranks map and register with the
 * driver. The host writes there what each operation's buffers are; the rank's
 * stream writes there that they are ready, and that its part of the work is
 * done. Streams of other ranks wait for these words. (Where one rank works for
 * all, the hosts write and read "ready".) Operation n uses words and entry
 * n % IPC_DEPTH; they are used again only when this rank has seen there what it
 * waited for. So a word that an abort sets is never reset while a stream waits
 * for it.
 *
 * One driver at a time works on a group's engine; any thread may abort it,
 * which writes only to pages and `why`.
 */
#ifndef OARI_BACKENDS_IPC_IPC_H
#define OARI_BACKENDS_IPC_IPC_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "device/cuda/cuda.h"
#include "device/cuda/cuda_reduce.h"
#include "link/link.h"
#include "link/match.h"

enum {
    IPC_DEPTH = 32, /* collectives in flight on the device */
    IPC_BOX = 16,   /* messages of a pair that are not received */
    IPC_RANKS = OARI_CUDA_SOURCES, /* in a group */
    IPC_EAGER_BYTES = 64 << 10     /* messages up to here do not wait */
};

/* ---- pages --------------------------------------------------------------- */

/* A word that streams write and wait for. */
typedef _Atomic uint32_t ipc_word;

/* How peers find this rank's memory. */
typedef struct ipc_memory {
    uint64_t id; /* of the allocation; 0: there is none */
    oari_cu_ipc handle;
    uint64_t base, bytes; /* of the allocation, in the owner's addresses */
    uint64_t offset;      /* of the buffer in it */
} ipc_memory;

/* A rank's buffers in a collective. */
typedef struct ipc_entry {
    ipc_word stamp; /* its number; written last */
    uint32_t has_counts;
    double weight;
    uint64_t in_count, out_count; /* elements */
    ipc_memory in, out;
    uint64_t counts[]; /* of the parts of in by rank, then of out */
} ipc_entry;

typedef struct ipc_message_header {
    uint64_t tag, bytes;
    uint32_t dtype, eager; /* eager: nobody waits for the answer */
    ipc_memory memory;
} ipc_message_header;

/* From the rank whose page it is to one other. */
typedef struct ipc_box {
    _Alignas(64) ipc_word sent; /* letters so far */
    ipc_word ready[IPC_BOX];
    ipc_message_header letter[IPC_BOX];
} ipc_box;

/* To the rank whose page it is, from one other. */
typedef struct ipc_acks {
    _Alignas(64) ipc_word answer[IPC_BOX]; /* 2 * number + refused */
    ipc_word done[IPC_BOX];
} ipc_acks;

typedef struct ipc_page {
    uint32_t version;
    ipc_word left;              /* how many ranks no longer use it */
    _Alignas(64) ipc_word stop; /* on rank 0's page: a rank has given up */
    ipc_word stopper;           /* which, plus one */
    _Alignas(64) ipc_word ready[IPC_DEPTH];
    _Alignas(64) ipc_word done[IPC_DEPTH];
} ipc_page; /* then entries, boxes and desks */

typedef struct ipc_layout {
    size_t entry, entry_bytes, box, desk, bytes;
} ipc_layout;

/* Whether a word has reached a number; numbers may wrap. */
static inline int ipc_has(ipc_word *word, uint32_t number)
{
    return (int32_t)(atomic_load(word) - number) >= 0;
}

/* ---- memory -------------------------------------------------------------- */

/* An allocation of this rank that was exported to peers, or cannot be. */
typedef struct ipc_exported {
    struct ipc_exported *next;
    ipc_memory memory;
    int unsharable;
} ipc_exported;

typedef struct ipc_mapping ipc_mapping; /* ipc_mapping.c */

/* A peer's allocation, mapped here. */
typedef struct ipc_imported {
    struct ipc_imported *next;
    uint64_t id, base, bytes;
    oari_cu_memory here;
    ipc_mapping *mapping;
} ipc_imported;

/* Memory through which buffers are copied that CUDA cannot share. */
typedef struct ipc_bounce {
    void *memory;
    size_t bytes;
} ipc_bounce;

/* ---- operations ---------------------------------------------------------- */

typedef struct ipc_work {
    struct ipc_work *next;
    const oar_collective *call;
    oar_transfer *done;
    int started;
    uint32_t number; /* once started */
    int bounces_in;  /* the input was copied to the bounce buffer */
    int bounces_out; /* the result must be copied from the bounce buffer */
    int ready_said;  /* "ready" is written, or the stream will */
} ipc_work;

typedef struct ipc_queue {
    ipc_work *first;
    ipc_work **end;
} ipc_queue;

/* What is shared with one peer, and messages with it. */
typedef struct ipc_peer {
    unsigned char *page;
    int registered;             /* the page is registered with the driver */
    oari_cu_memory device_page; /* the page, as streams see it */
    ipc_imported *imported;     /* its memory */
    oari_cu_stream stream;      /* messages only; NULL: none yet */
    uint32_t sent, seen;
    ipc_queue outbox;     /* sends that wait for a place */
    ipc_queue asked;      /* sends that wait for their answer */
    void *eager;          /* IPC_BOX places */
    void *loose[IPC_BOX]; /* what stands in for memory that is not shown */
} ipc_peer;

typedef struct ipc {
    int rank, ranks, device;
    const oari_cuda *cu;
    int leader_works; /* rank 0 works for all: they share one GPU */
    unsigned processors;
    oari_cu_stream stream;
    int own_stream;
    oari_cu_function *kernel; /* as ipc_launch.c numbers them */
    size_t eager_bytes;

    ipc_layout layout;

    _Atomic uint32_t number; /* of the collective started last */
    uint64_t started;        /* how many were started */
    ipc_queue queue;         /* collectives, in order */
    ipc_work *spare;
    ipc_exported *exported;
    ipc_bounce in_bounce, out_bounce;

    ipc_peer *peer;    /* by rank */
    oari_match *match; /* of messages */
    oari_taker taker;
    _Atomic int why; /* an oar_status: aborted */
} ipc;

/* ipc_page.c */
static inline oar_device oari_ipc_device(const ipc *self)
{
    return oar_device_of(OAR_CUDA, self->device);
}

static inline ipc_page *oari_ipc_page(const ipc *self, int rank)
{
    return (ipc_page *)self->peer[rank].page;
}
ipc_entry *oari_ipc_entry(const ipc *self, int rank, uint32_t number);
ipc_box *oari_ipc_box(const ipc *self, int from, int to);
ipc_acks *oari_ipc_acks(const ipc *self, int from, int to);
/* Returns the address of a word on a rank's page for streams. */
oari_cu_memory oari_ipc_device_word(const ipc *self, int rank,
                                    const ipc_word *word);
/* Returns the address of the word that ends kernels; 0 in a group of one. */
oari_cu_memory oari_ipc_stop_word(const ipc *self);
/* Sets the word that ends kernels, then all words that this rank's streams may
 * wait for. Any thread. */
void oari_ipc_stop_streams(ipc *self);
oar_status oari_ipc_page_make(ipc *self);
void oari_ipc_page_leave(ipc *self);

/* ipc_rendezvous.c: finds the other ranks, checks that they can work together,
 * maps their pages. */
oar_status oari_ipc_rendezvous(ipc *self, const oari_open *with);

/* ipc_memory.c */
/* Exports memory to peers; id 0: they cannot map it. */
oar_status oari_ipc_export(ipc *self, const void *data, ipc_memory *memory);
/* Gives the address of a rank's memory here. */
oar_status oari_ipc_map(ipc *self, int rank, const ipc_memory *memory,
                        oari_cu_memory *here);
/* Makes room in a bounce buffer. Its old memory is freed in stream order. */
oar_status oari_ipc_bounce_reserve(ipc *self, ipc_bounce *bounce, size_t bytes);
void oari_ipc_release_memory(ipc *self);
void oari_ipc_release_exported(ipc_exported *exported);

/* ipc_mapping.c */
/* Maps an allocation of another process, or shares a mapping of it. */
oar_status oari_ipc_mapping_open(const ipc *self, const ipc_memory *memory,
                                 ipc_mapping **mapping, oari_cu_memory *here);
void oari_ipc_mapping_close(const ipc *self, ipc_mapping *mapping);

/* ipc_launch.c */
oar_status oari_ipc_load_kernels(ipc *self);
/* Whether there is a kernel that reduces that dtype. */
int oari_ipc_reduces(oar_dtype dtype);

/* A reduction, with addresses here. */
typedef struct ipc_reduction {
    oar_reduce_op_kind op;
    oar_dtype dtype;
    int sources, destinations;
    uint64_t count;
    oari_cu_memory source[IPC_RANKS], destination[IPC_RANKS];
    double factor[IPC_RANKS]; /* for operators that have them */
} ipc_reduction;
oar_status oari_ipc_reduce(ipc *self, const ipc_reduction *r,
                           oari_cu_stream stream);

/* Copies, collected into as few launches as possible. */
typedef struct ipc_copies {
    ipc *self;
    oari_cu_stream stream;
    unsigned targets;
    oari_cuda_copy given;
} ipc_copies;
void oari_ipc_copies_begin(ipc *self, oari_cu_stream stream, ipc_copies *c);
/* Adds a copy to `targets` addresses; `from` itself is left out. */
oar_status oari_ipc_copies_add(ipc_copies *c, oari_cu_memory from,
                               const oari_cu_memory *to, int targets,
                               uint64_t bytes);
oar_status oari_ipc_copies_end(ipc_copies *c);
/* A single copy. */
oar_status oari_ipc_copy(ipc *self, oari_cu_memory to, oari_cu_memory from,
                         uint64_t bytes, oari_cu_stream stream);

/* ipc_share.c */
/* A rank's buffers, with addresses here. */
typedef struct ipc_view {
    oari_cu_memory in, out;
    const ipc_entry *entry;
} ipc_view;
/* Puts this rank's share of the work on the stream: all of it, if it works for
 * all ranks. OAR_E_MISMATCH if the ranks' counts differ. */
oar_status oari_ipc_run_share(ipc *self, const oar_collective *call,
                              const ipc_view *view);
int oari_ipc_reads(const ipc *self, const oar_collective *call);
int oari_ipc_writes(const ipc *self, const oar_collective *call);

/* ipc_collective.c */
oar_status oari_ipc_post(void *self, const oar_collective *call,
                         oar_transfer *done);
void oari_ipc_progress_collectives(ipc *self);

/* ipc_message.c */
oar_status oari_ipc_send(void *self, const oar_collective *call,
                         oar_transfer *done);
oar_status oari_ipc_recv(void *self, const oar_collective *call,
                         oar_transfer *done);
void oari_ipc_progress_messages(ipc *self);
oar_status oari_ipc_open_messages(ipc *self);

/* ipc.c */
oar_status oari_ipc_queue_add(ipc *self, ipc_queue *queue,
                              const oar_collective *call, oar_transfer *done);
/* Removes the work at *place and completes it. */
void oari_ipc_queue_end(ipc *self, ipc_queue *queue, ipc_work **place,
                        oar_status status);
oar_status oari_ipc_wait_event(ipc *self, oari_cu_stream stream, void *event);
/* Sets *done if an event has come. */
oar_status oari_ipc_test_event(ipc *self, void *event, int *done);
oar_status oari_ipc_record_event(ipc *self, oari_cu_stream stream, void *event);
oar_status oari_ipc_write_word(ipc *self, oari_cu_stream stream, int rank,
                               ipc_word *word, uint32_t value);
oar_status oari_ipc_wait_word(ipc *self, oari_cu_stream stream, int rank,
                              ipc_word *word, uint32_t value);

#endif
