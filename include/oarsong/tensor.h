/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: strided tensors over counted storage.
 *
 * A tensor is a view: shape, strides and an offset into a storage that it
 * shares with other tensors. Tensors and storages are counted; `retain` adds a
 * reference, `release` gives one up, and the last one frees. A tensor that a
 * tape made belongs to that tape (see tape.h): retain it to keep it longer.
 *
 * Functions that make a tensor return it, or NULL with the thread's last error
 * set. Every function that takes a tensor accepts NULL and then returns NULL
 * (or OAR_E_ARG) without touching the last error if one is already set by the
 * call that made the NULL: so a chain of calls is checked once, at its end.
 *
 * Threads: different tensors may be used by different threads at once; one
 * tensor by one thread at a time, except for retain and release.
 */
#ifndef OARSONG_TENSOR_H
#define OARSONG_TENSOR_H

#include <oarsong/span.h>

OAR_BEGIN_DECLS

enum { OAR_MAX_DIMS = 8 };

typedef struct oar_tape oar_tape;
typedef struct oar_tensor oar_tensor;
typedef struct oar_storage oar_storage;

typedef struct oar_shape {
    int ndim; /* 0 to OAR_MAX_DIMS; 0 is a single number */
    int64_t dim[OAR_MAX_DIMS];
} oar_shape;

/* OAR_SHAPE(3, 4) is a matrix, OAR_SCALAR a single number. */
#define OAR_SCALAR (oar_shape_of(0, NULL))
#ifdef __cplusplus
} /* templates cannot have C linkage */
template <class... T> static inline oar_shape OAR_SHAPE(T... dims)
{
    return oar_shape{ (int)sizeof...(dims), { (int64_t)dims... } };
}
extern "C" {
#else
#define OAR_SHAPE(...)                                                         \
    (oar_shape_of((int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                  (const int64_t[]){ __VA_ARGS__ }))
#endif

static inline oar_shape oar_shape_of(int ndim, const int64_t *dim)
{
    oar_shape shape;
    shape.ndim = ndim;
    for (int i = 0; i < OAR_MAX_DIMS; i++)
        shape.dim[i] = i < ndim ? dim[i] : 0;
    return shape;
}

/* A list of dims: OAR_DIMS(0, 2); OAR_NO_DIMS is none. */
typedef struct oar_dims {
    int count;
    int dim[OAR_MAX_DIMS];
} oar_dims;

static inline oar_dims oar_dims_of(int count, const int *dim)
{
    oar_dims dims;
    dims.count = count;
    for (int i = 0; i < OAR_MAX_DIMS; i++)
        dims.dim[i] = i < count ? dim[i] : 0;
    return dims;
}
#define OAR_NO_DIMS (oar_dims_of(0, NULL))
#ifdef __cplusplus
}
template <class... T> static inline oar_dims OAR_DIMS(T... dims)
{
    return oar_dims{ (int)sizeof...(dims), { (int)dims... } };
}
extern "C" {
#else
#define OAR_DIMS(...)                                                 \
    (oar_dims_of((int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)), \
                 (const int[]){ __VA_ARGS__ }))
#endif

/* ---- making --------------------------------------------------------------
 * tape: the owner of the new tensor; NULL: the caller owns one reference. */

/* Contents undefined. */
OAR_API oar_tensor *oar_empty(oar_tape *tape, oar_dtype dtype, oar_shape shape);
OAR_API oar_tensor *oar_zeros(oar_tape *tape, oar_dtype dtype, oar_shape shape);
OAR_API oar_tensor *oar_ones(oar_tape *tape, oar_dtype dtype, oar_shape shape);
/* first, first + step, first + 2 step, ...: count of them. */
OAR_API oar_tensor *oar_arange(oar_tape *tape, oar_dtype dtype, int64_t count,
                               double first, double step);
/* Ones on the main diagonal of rows x columns, zero elsewhere. */
OAR_API oar_tensor *oar_eye(oar_tape *tape, oar_dtype dtype, int64_t rows,
                            int64_t columns);
OAR_API oar_tensor *oar_full(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                             double value);

/* Copies the numbers at data, row by row, which are of that dtype already. */
OAR_API oar_tensor *oar_from_data(oar_tape *tape, oar_dtype dtype,
                                  oar_shape shape, const void *data);

/* On a device: cuda:1, say. All inputs of an operation are on one device, where
 * its result and the gradients are too; what a device cannot do is OAR_E_DEVICE
 * (docs/gpu.md has the list). All is in the order of the thread's current
 * stream (device.h); what reads numbers to the host waits for it. */
OAR_API oar_tensor *oar_empty_on(oar_tape *tape, oar_device device,
                                 oar_dtype dtype, oar_shape shape);

/* A copy on that device, row by row; also from a GPU to another, and back. The
 * gradient goes back to where a is. */
OAR_API oar_tensor *oar_to(oar_tape *tape, const oar_tensor *a,
                           oar_device device);

/* Uniform in [low, high), integers too, or normal, floats only. No number is
 * rounded to what high is in that dtype. The numbers depend only on seed and
 * position: the same whatever the number of ranks, threads or calls. */
OAR_API oar_tensor *oar_uniform(oar_tape *tape, oar_dtype dtype,
                                oar_shape shape, uint64_t seed, double low,
                                double high);
OAR_API oar_tensor *oar_normal(oar_tape *tape, oar_dtype dtype, oar_shape shape,
                               uint64_t seed, double mean, double deviation);

/* Switches lazy tensors on (1) or off (0) for the calling thread; returns what
 * the switch was. While it is on, oar_zeros, oar_ones, oar_full, oar_uniform
 * and oar_normal without a tape, which is how modules make their parameters and
 * buffers, make lazy tensors: without memory, and with the rule by which they
 * would be filled. So a model can be built that is larger than memory. Whatever
 * needs the numbers of a lazy tensor (an operation, copying, saving, an
 * optimizer) is OAR_E_STATE. Models that are read from files are never lazy. */
OAR_API int oar_lazy(int on);

/* Returns whether the tensor is lazy. It no longer is once it is realized, once
 * its storage has been attached to other memory, or once it is rebased. */
OAR_API int oar_tensor_is_lazy(const oar_tensor *tensor);

/* Writes elements first .. first+count-1, row by row, of what the lazy tensor
 * would be, converted to dtype, to `to`, which has room for them. They have the
 * same bits whatever the range. The tensor stays lazy. OAR_E_STATE if it is not
 * lazy, OAR_E_ARG if there is no such range. */
OAR_API oar_status oar_tensor_make_range(const oar_tensor *lazy, int64_t first,
                                         int64_t count, oar_dtype dtype,
                                         void *to);

/* Gives a lazy tensor memory and its numbers, those that it would have had from
 * the start. One that has its data already stays as it is. OAR_E_STATE if its
 * storage is detached and not lazy; OAR_E_NOMEM leaves it lazy. */
OAR_API oar_status oar_tensor_realize(oar_tensor *tensor);

/* A view of storage from element `offset` on, row-major. Takes a reference of
 * its own to the storage. OAR_E_ARG if it does not fit. */
OAR_API oar_tensor *oar_view_of(oar_tape *tape, oar_storage *storage,
                                int64_t offset, oar_dtype dtype,
                                oar_shape shape);

/* Makes a leaf a view of other memory from element `offset` on, row by row, and
 * of another dtype if wanted. Its shape stays, and whether it requires a
 * gradient; its gradient goes, bound or not. Takes a reference to the storage,
 * which may be detached, and gives the old one up. Backward through what a tape
 * recorded of the leaf before is OAR_E_STATE: reset that tape. OAR_E_ARG if the
 * leaf does not fit, OAR_E_STATE if an operation made the tensor, OAR_E_DTYPE
 * and OAR_E_DEVICE as oar_tensor_require_grad; then the leaf is what it was. */
OAR_API oar_status oar_tensor_rebase(oar_tensor *leaf, oar_storage *storage,
                                     int64_t offset, oar_dtype dtype);

OAR_API oar_tensor *oar_tensor_retain(oar_tensor *tensor);
OAR_API void oar_tensor_release(oar_tensor *tensor); /* NULL is fine */

/* ---- asking --------------------------------------------------------------
 * For NULL: an empty shape, OAR_F32, NULL, 0. */

OAR_API oar_shape oar_tensor_shape(const oar_tensor *tensor);
OAR_API oar_dtype oar_tensor_dtype(const oar_tensor *tensor);
OAR_API oar_device oar_tensor_device(const oar_tensor *tensor);
OAR_API int64_t oar_tensor_count(const oar_tensor *tensor); /* elements */
OAR_API int64_t oar_tensor_stride(const oar_tensor *tensor, int dim);
OAR_API int oar_tensor_is_contiguous(const oar_tensor *tensor);
OAR_API oar_storage *oar_tensor_storage(const oar_tensor *tensor); /* borrowed*/

/* The first element; borrowed. NULL while the storage is detached, and of a
 * result that backward has given back (tape.h). A read-only tensor (imported
 * read-only by DLPack, attached to read-only memory, or a view of such memory)
 * has no oar_tensor_data: NULL, and OAR_E_STATE as the last error. */
OAR_API void *oar_tensor_data(const oar_tensor *tensor);
OAR_API const void *oar_tensor_const_data(const oar_tensor *tensor);
OAR_API int oar_tensor_is_read_only(const oar_tensor *tensor);

/* The span of a contiguous tensor, for collectives. Otherwise OAR_E_ARG, and
 * OAR_E_STATE if it may only be read. */
OAR_API oar_status oar_tensor_span(const oar_tensor *tensor, oar_span *span);

/* The same for what only reads it: the span is read-only (span.h), the tensor
 * may be, too. */
OAR_API oar_status oar_tensor_const_span(const oar_tensor *tensor,
                                         oar_span *span);

/* The only element of a tensor of one element, as a double. */
OAR_API oar_status oar_tensor_item(const oar_tensor *tensor, double *value);

/* Copies the numbers out, row by row, converted to dtype; data has room for
 * all of them, and lies outside the tensor's memory. And the other way round.
 * Any strides; but a tensor in which elements share a place in memory, such as
 * an expanded view, cannot be written, copied to or filled: OAR_E_ARG. */
OAR_API oar_status oar_tensor_read(const oar_tensor *tensor, oar_dtype dtype,
                                   void *data);
OAR_API oar_status oar_tensor_write(oar_tensor *tensor, oar_dtype dtype,
                                    const void *data);

/* Writes the tensor as a person reads it: dtype, shape, and the numbers in
 * rows, the middle left out of long ones. Cut to fit; returns the length it
 * wanted, as snprintf does. */
OAR_API size_t oar_tensor_text(const oar_tensor *tensor, char *text,
                               size_t bytes);

/* to = from, element by element, converting; same shape. They may share memory:
 * `to` gets what `from` held before the call. Never recorded. Like write and
 * fill OAR_E_STATE on a tensor that may only be read. */
OAR_API oar_status oar_tensor_copy(oar_tensor *to, const oar_tensor *from);
OAR_API oar_status oar_tensor_fill(oar_tensor *tensor, double value);

/* Says that the caller has written to the tensor's memory through a pointer, as
 * write, copy and fill do by themselves: a backward that needs the numbers from
 * before then fails instead of computing with the new ones. OAR_E_STATE without
 * memory, or if it may only be read. */
OAR_API oar_status oar_tensor_touch(oar_tensor *tensor);

/* Writes a hash of the bytes of some tensors to `to`, one u64 on their device:
 * the same for the same bytes, and almost surely another one for others. On a
 * GPU in the order of the current stream, and the host does not wait; the hash
 * is another one there than on the cpu. OAR_E_STATE for a tensor that is not
 * contiguous or has no memory, OAR_E_DEVICE for one elsewhere. */
OAR_API oar_status oar_tensor_hash(int count, oar_tensor *const *tensor,
                                   oar_tensor *to);

/* ---- storage -------------------------------------------------------------
 * Data can be released and attached again while views and saved tensors stay
 * valid: that is what sharded training and bucketed gradients stand on. */

/* Fresh memory, 64-byte aligned; in a shared segment when `shared` (shared.h),
 * so that peers on the host can reach it. Gives one reference. */
OAR_API oar_status oar_storage_create(size_t bytes, int shared,
                                      oar_storage **storage);
/* The same on a device. */
OAR_API oar_status oar_storage_create_on(oar_device device, size_t bytes,
                                         oar_storage **storage);
/* Makes a storage without memory, for oar_storage_attach; `shared` says what
 * kind of fresh memory it may get later. */
OAR_API oar_status oar_storage_create_detached(size_t bytes, int shared,
                                               oar_storage **storage);
/* The same on a device. */
OAR_API oar_status oar_storage_create_detached_on(oar_device device,
                                                  size_t bytes,
                                                  oar_storage **storage);
OAR_API oar_storage *oar_storage_retain(oar_storage *storage);
OAR_API void oar_storage_release(oar_storage *storage);
OAR_API size_t oar_storage_bytes(const oar_storage *storage);
/* NULL while detached; the first also where the memory may only be read, with
 * OAR_E_STATE as the last error. */
OAR_API void *oar_storage_data(const oar_storage *storage);
OAR_API const void *oar_storage_const_data(const oar_storage *storage);

/* Returns a number that grows with every call of the library that writes to the
 * storage through a tensor; detaching and attaching leave it. Writing through a
 * pointer or span, as collectives do, counts with oar_tensor_touch. NULL: 0. */
OAR_API uint64_t oar_storage_version(const oar_storage *storage);

/* Gives the memory back; views stay, their data is NULL. An operation on such
 * a tensor is OAR_E_STATE. Detaching twice is fine. OAR_E_STATE while a DLPack
 * export holds the storage (dlpack.h): its consumer reads that memory. */
OAR_API oar_status oar_storage_detach(oar_storage *storage);

/* Gives a detached storage memory again: `data` of at least its bytes, on which
 * `drop(arg)` is called when it is no longer needed (drop may be NULL); or, if
 * data is NULL, fresh memory as oar_storage_create gave. A lazy storage is lazy
 * no more, and its numbers are the caller's to write. OAR_E_STATE if it is
 * attached. */
OAR_API oar_status oar_storage_attach(oar_storage *storage, void *data,
                                      void (*drop)(void *arg), void *arg);

/* The same for memory that may only be read, until it is detached: whatever
 * would write to it through a tensor is OAR_E_STATE, and there is no pointer to
 * write with. OAR_E_ARG if data is NULL, unless the storage has 0 bytes. */
OAR_API oar_status oar_storage_attach_read_only(oar_storage *storage,
                                                const void *data,
                                                void (*drop)(void *arg),
                                                void *arg);

/* Sets what errors say of a tensor whose data is away, after "a tensor [2, 3]":
 * "whose numbers other ranks hold", say. The text is kept by pointer, so it
 * must outlive the storage. NULL: "whose storage is detached". A NULL storage
 * is fine. */
OAR_API void oar_storage_explain_absence(oar_storage *storage,
                                         const char *text);

/* ---- gradients -----------------------------------------------------------
 * A leaf that requires a gradient has one gradient slot: the same for modules,
 * optimizers and wrappers. */

/* Marks a leaf (a tensor no operation made). Only floating dtypes. Off drops
 * the gradient. */
OAR_API oar_status oar_tensor_require_grad(oar_tensor *tensor, int on);
OAR_API int oar_tensor_requires_grad(const oar_tensor *tensor);

/* The gradient, borrowed; NULL while backward has not written one. */
OAR_API oar_tensor *oar_tensor_grad(const oar_tensor *tensor);

/* From now on the gradient lives in `home` (same shape, contiguous, writable:
 * OAR_E_STATE), of which the slot takes a reference: backward writes there, and
 * zeroing keeps it. Its dtype is the tensor's, or f32 for a half type: see
 * below. A gradient that was there already is moved over. NULL: back to memory
 * of its own. */
OAR_API oar_status oar_tensor_bind_grad(oar_tensor *tensor, oar_tensor *home);

/* The dtype of the gradient where it has memory of its own: the tensor's, which
 * is the default, or f32 for a half type. In f32 contributions are added up
 * without rounding in between; those of products, norms, convolutions and
 * embeddings are never rounded to the half type at all. A gradient that was
 * there already is converted. Another dtype is OAR_E_DTYPE; no leaf that
 * requires a gradient: OAR_E_STATE. */
OAR_API oar_status oar_tensor_set_grad_dtype(oar_tensor *leaf, oar_dtype dtype);

/* Marks the gradient as unwritten; the next backward stores instead of adding.
 * NULL is fine. */
OAR_API void oar_tensor_clear_grad(oar_tensor *tensor);

/* Declares the bound gradient written, after something other than backward
 * (a collective, say) has filled it. OAR_E_STATE if none is bound. */
OAR_API oar_status oar_tensor_mark_grad(oar_tensor *tensor);

/* Says that something else steps this leaf: an optimizer that is made over it
 * or steps it, clipping, or a scaler that is given it, is OAR_E_STATE with the
 * sentence `why` (kept by pointer, so it must outlive the guard). NULL: no
 * longer. A NULL leaf is fine. */
OAR_API void oar_tensor_guard(oar_tensor *leaf, const char *why);

/* Called during backward as soon as the leaf's gradient is complete for this
 * pass. May post collectives; must not wait for them. A failure ends backward
 * with that status. */
typedef oar_status (*oar_grad_fn)(oar_tensor *leaf, void *arg);
typedef struct oar_hook oar_hook;

/* Hooks run in the order they were added. Gives a handle that removes it. */
OAR_API oar_status oar_tensor_on_grad(oar_tensor *leaf, oar_grad_fn fn,
                                      void *arg, oar_hook **hook);

/* Called while backward computes the gradient, which it writes to `grad`: the
 * first `done` elements, row by row, are complete for this pass. May read them,
 * and post collectives on them; must not wait, nor change anything else. In
 * *next it says how many elements it would like to hear of next; backward
 * computes that many or somewhat more first. *next is all of them beforehand.
 */
typedef oar_status (*oar_grad_part_fn)(oar_tensor *leaf, const oar_tensor *grad,
                                       int64_t done, int64_t *next, void *arg);

/* A hook that is told of parts besides, from 0 to all elements, before `whole`
 * is called. Only operations that can compute a gradient in parts tell of them
 * (oar_linear, of its weight), in the last contribution of a pass, and only the
 * first hook of a leaf: one before it could still change the gradient. */
OAR_API oar_status oar_tensor_on_grad_parts(oar_tensor *leaf, oar_grad_fn whole,
                                            oar_grad_part_fn part, void *arg,
                                            oar_hook **hook);
/* Removes and frees. Must be called before the leaf itself is freed; NULL is
 * fine. Serves the hooks of modules too. */
OAR_API void oar_hook_remove(oar_hook *hook);

OAR_END_DECLS

#endif
