/* SPDX-License-Identifier: Apache-2.0 */
/* net/frame.h: the header of every message between ranks over TCP.
 *
 * It has 64 bytes, little-endian on every machine. A CRC32C covers the others
 * and is checked before anything is done or allocated as the header says:
 *
 *    0  magic "OARF"       4  version    5  kind       6  flags (2)
 *    8  context           16  sequence (4)            20  source (4)
 *   24  tag               32  bytes     40  handle    48  fingerprint
 *   56  credit (4)        60  CRC32C of bytes 0 to 59
 */
#ifndef OARI_NET_FRAME_H
#define OARI_NET_FRAME_H

#include <oarsong/status.h>

enum { OARI_FRAME_BYTES = 64, OARI_FRAME_VERSION = 6 };

typedef enum oari_frame_kind {
    OARI_FRAME_HELLO = 1, /* the sender's rank and its authentication code; the
                             first frame on a socket, in both directions */
    OARI_FRAME_PUSH,      /* a message with its data */
    OARI_FRAME_OFFER,     /* a message without it */
    OARI_FRAME_TAKE,      /* an offered message is wanted, or refused */
    OARI_FRAME_DATA,      /* part of a message that is wanted */
    OARI_FRAME_CREDIT,    /* nothing but its credit */
    OARI_FRAME_BULLETIN,  /* a fact that the sender shows (link/bulletin.h);
                             sent even when the group has failed */
    OARI_FRAME_GOODBYE,   /* the sender leaves, in good order */
    OARI_FRAME_REVOKE,    /* an offered message is taken back */
    OARI_FRAME_MOVE,      /* the sender's frames come over this socket from
                             now on, behind those of its own */
    OARI_FRAME_KINDS
} oari_frame_kind;

enum {
    OARI_FRAME_REFUSED = 1, /* TAKE: its size is not that of the receive */
    OARI_FRAME_LAST = 2,    /* HELLO: only facts follow on this socket */
    OARI_FRAME_FLAGS = 3
};

typedef struct oari_frame {
    oari_frame_kind kind;
    uint16_t flags;
    uint64_t context;  /* of the group; the same on all ranks */
    uint32_t sequence; /* of the frame on its socket, from 0 */
    uint32_t source;   /* rank */
    uint64_t tag;      /* PUSH, OFFER; DATA: where the part begins; HELLO: which
                          of the pair's sockets; TAKE: the receiver's handle;
                          BULLETIN: which fact */
    uint64_t bytes;    /* PUSH, DATA, HELLO, BULLETIN: what follows; OFFER: what
                          would */
    uint64_t handle;   /* OFFER, TAKE, REVOKE: the sender's name for the
                          message; DATA: the receiver's; MOVE: how many
                          frames were sent over the sender's own socket */
    uint64_t fingerprint; /* of the operation; 0: none. Carried only */
    uint32_t credit;      /* given back since the beginning, modulo 2^32 */
} oari_frame;

/* Encodes a header. */
void oari_frame_write(const oari_frame *frame,
                      unsigned char raw[OARI_FRAME_BYTES]);

/* Decodes a header; OAR_E_DATA, with the reason, if the bytes are not one. The
 * caller checks whether the kind and the numbers make sense. */
oar_status oari_frame_read(const unsigned char raw[OARI_FRAME_BYTES],
                           oari_frame *frame);

/* How the rank that saw a fault knows its cause. */
typedef enum oari_evidence {
    OARI_EVIDENCE_SEEN,    /* it saw the cause: a death, an abort, a mismatch */
    OARI_EVIDENCE_TIMEOUT, /* its time was up: the rank that the fault is about
                              may itself have waited for another */
    OARI_EVIDENCE_STOPPED, /* its time was up, and it saw that the process of
                              the rank that the fault is about was stopped */
    OARI_EVIDENCES
} oari_evidence;

/* A fault as the ranks of a group report it to each other. */
typedef struct oari_fault {
    oar_error error;
    oari_evidence evidence;
} oari_fault;

/* Bytes of an encoded fault record. */
enum { OARI_FAULT_BYTES = 804 };

/* Encodes a fault. */
void oari_fault_write(const oari_fault *fault,
                      unsigned char raw[OARI_FAULT_BYTES]);
/* Decodes a fault. Its status is a failure that this library knows; its texts
 * end with a zero byte and have no control characters, whatever the bytes are.
 * Unknown evidence becomes OARI_EVIDENCE_TIMEOUT. */
void oari_fault_read(const unsigned char raw[OARI_FAULT_BYTES],
                     oari_fault *fault);

/* Returns the CRC32C (Castagnoli), by the processor's instruction if it has
 * one. */
uint32_t oari_crc32c(const void *data, size_t bytes);

/* Returns the CRC32C without that instruction; tests compare the two. */
uint32_t oari_crc32c_plain(const void *data, size_t bytes);

#endif
