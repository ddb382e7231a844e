/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.h: messages of typed values, which calls of other ranks' functions carry.
 *
 *     oar_rpc_message_create(&message);
 *     oar_rpc_put_i64(message, 2);
 *     oar_rpc_put_text(message, "weights");
 *     oar_rpc_put_tensor(message, tensor);
 *
 * Values are read in the order in which they were put. A value that is read as
 * another type is OAR_E_DATA with a sentence that names both types; so is
 * reading past the last one. What came from another rank has been checked as a
 * whole before it can be read.
 *
 * Threads: one message is used by one thread at a time.
 */
#ifndef OARSONG_RPC_H
#define OARSONG_RPC_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

/* ---- messages ------------------------------------------------------------ */

typedef struct oar_rpc_message oar_rpc_message;

/* Gives an empty message. */
OAR_API oar_status oar_rpc_message_create(oar_rpc_message **message);

/* Frees it, and drops the memory that was put into it. NULL is fine. */
OAR_API void oar_rpc_message_destroy(oar_rpc_message *message);

/* Returns how many bytes its values and arrays have. 0 for NULL. */
OAR_API size_t oar_rpc_message_bytes(const oar_rpc_message *message);

/* Makes the next read begin with the first value again. NULL is fine. */
OAR_API void oar_rpc_message_rewind(oar_rpc_message *message);

/* Append one value each. Bytes and text are copied; text is at most 2^31-1
 * bytes, and data may be NULL if bytes is 0. OAR_E_STATE if the message came
 * from another rank: make a new one. */
OAR_API oar_status oar_rpc_put_i64(oar_rpc_message *message, int64_t value);
OAR_API oar_status oar_rpc_put_f64(oar_rpc_message *message, double value);
OAR_API oar_status oar_rpc_put_text(oar_rpc_message *message, const char *text);
OAR_API oar_status oar_rpc_put_bytes(oar_rpc_message *message, const void *data,
                                     size_t bytes);

/* Appends an array of host memory, which is borrowed, not copied, until
 * drop(arg) is called, on any thread, when the message is destroyed; at once if
 * the array is small (4 KiB) and was copied. On failure drop is not called.
 * drop may be NULL. OAR_E_DEVICE for memory of a GPU. */
OAR_API oar_status oar_rpc_put_span(oar_rpc_message *message, oar_span span,
                                    void (*drop)(void *arg), void *arg);

/* Appends a tensor with its shape; on the other side it is on the cpu. Keeps a
 * reference to it, and its numbers are read when the message goes: leave them
 * as they are until then. A tensor that is on a GPU or not contiguous is copied
 * now. OAR_E_STATE if it has no numbers (lazy, detached). */
OAR_API oar_status oar_rpc_put_tensor(oar_rpc_message *message,
                                      oar_tensor *tensor);

/* Read the next value. Text, bytes and spans are borrowed until the message is
 * destroyed; text ends in a zero byte. A span's memory is aligned for its
 * dtype. On failure the next value stays the next. */
OAR_API oar_status oar_rpc_get_i64(oar_rpc_message *message, int64_t *value);
OAR_API oar_status oar_rpc_get_f64(oar_rpc_message *message, double *value);
OAR_API oar_status oar_rpc_get_text(oar_rpc_message *message,
                                    const char **text);
OAR_API oar_status oar_rpc_get_bytes(oar_rpc_message *message,
                                     const void **data, size_t *bytes);
OAR_API oar_status oar_rpc_get_span(oar_rpc_message *message, oar_span *span);

/* Gives a tensor (one reference) with the shape that was put; an array put by
 * oar_rpc_put_span has one dim. A large one that came from another rank is not
 * copied: it shares the memory it was received into, and keeps it. */
OAR_API oar_status oar_rpc_get_tensor(oar_rpc_message *message,
                                      oar_tensor **tensor);

OAR_END_DECLS

#endif
