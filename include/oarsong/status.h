/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how every call says what happened.
 *
 * A function that can fail returns an oar_status, and leaves what it was asked
 * to give untouched unless it returns OAR_OK. The first function that knows the
 * cause writes it, once, as an oar_error into the calling thread's last error.
 * The library never prints, exits or aborts.
 */
#ifndef OARSONG_STATUS_H
#define OARSONG_STATUS_H

#include <oarsong/export.h>

OAR_BEGIN_DECLS

/* name, value, text. Values are part of the ABI: append, never renumber. */
#define OAR_STATUS_LIST(X)                                     \
    X(OAR_OK, 0, "success")                                    \
    X(OAR_E_ARG, 1, "invalid argument")                        \
    X(OAR_E_NOMEM, 2, "out of memory")                         \
    X(OAR_E_SYSTEM, 3, "system call failed")                   \
    X(OAR_E_RANK, 4, "rank out of range")                      \
    X(OAR_E_WORLD, 5, "impossible group size")                 \
    X(OAR_E_SIZE, 6, "message of the wrong size")              \
    X(OAR_E_MISMATCH, 7, "ranks disagree about the operation") \
    X(OAR_E_TIMEOUT, 8, "timed out")                           \
    X(OAR_E_PEER, 9, "a peer is gone")                         \
    X(OAR_E_ABORTED, 10, "aborted")                            \
    X(OAR_E_CLOSED, 11, "no connection")                       \
    X(OAR_E_UNAVAILABLE, 12, "not available here")             \
    X(OAR_E_UNSUPPORTED, 13, "not supported")                  \
    X(OAR_E_NOT_FOUND, 14, "not found")                        \
    X(OAR_E_STATE, 15, "called in the wrong state")            \
    X(OAR_E_DATA, 16, "malformed data")                        \
    X(OAR_E_AUTH, 17, "peer could not prove itself")           \
    X(OAR_E_SHAPE, 18, "shapes do not fit")                    \
    X(OAR_E_DTYPE, 19, "wrong dtype")                          \
    X(OAR_E_DEVICE, 20, "wrong device")                        \
    X(OAR_E_INTERNAL, 21, "a bug in Oarsong")                  \
    X(OAR_E_GPU, 22, "a GPU call failed")                      \
    X(OAR_E_BUSY, 23, "too much is under way")                 \
    X(OAR_E_CANCELLED, 24, "cancelled")

typedef enum oar_status { OAR_STATUS_LIST(OAR_ENUM_ROW) } oar_status;

/* One failure. Text fields are never NULL and always end in a zero byte; an
 * empty one, or -1 in a rank, means that it does not apply. */
typedef struct oar_error {
    size_t size; /* of this struct, as the library knows it */
    oar_status status;
    int rank;          /* the rank that saw it first */
    int peer;          /* the rank it is about */
    int sys_errno;     /* errno, or 0 */
    int64_t pid;       /* of the rank that saw it first */
    uint64_t sequence; /* of the operation in its group; 0: none */
    char operation[32];
    char site[96]; /* file:line of the call */
    char label[64];
    char host[64];
    char text[512]; /* one sentence */
} oar_error;

/* "OAR_E_TIMEOUT"; a number this library does not know gives "OAR_E_UNKNOWN".
 * Never NULL. Any thread. */
OAR_API const char *oar_status_name(oar_status status);

/* "timed out"; never NULL. Any thread. */
OAR_API const char *oar_status_text(oar_status status);

/* The last failure on the calling thread: borrowed, valid until the next call
 * into the library that fails on this thread. Before any failure its status is
 * OAR_OK. Successful calls do not clear it. */
OAR_API const oar_error *oar_last_error(void);

/* The text of the last failure on the calling thread; "" before any. */
OAR_API const char *oar_last_error_text(void);

/* Puts the calling thread's last error back to OAR_OK. */
OAR_API void oar_clear_error(void);

OAR_END_DECLS

#endif
