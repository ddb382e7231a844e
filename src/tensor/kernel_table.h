/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/kernel_table.h: the arithmetic of one kind of device, as a table of
 * kernels. The array that a kernel writes says which table:
 *
 *     oari_array to = oari_array_of(out), a = oari_array_of(x);
 *     OARI_TRY(OARI_KERNEL(&to, unary, kind, &to, &a));
 *
 * What each kernel does is said where the cpu's is declared: oari_NAME in
 * cpu/kernels.h, cpu/arith.h and cpu/nn. Those of GPUs do the same in the order
 * of the thread's current stream. All arrays of a call are on one device; an
 * array of one element that is only read may be on the cpu always, and is read
 * before the call returns. */
#ifndef OARI_TENSOR_KERNEL_TABLE_H
#define OARI_TENSOR_KERNEL_TABLE_H

#include "tensor/cpu/arith.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/low_rank.h"
#include "tensor/cpu/nn/attention.h"
#include "tensor/cpu/nn/conv.h"
#include "tensor/cpu/nn/nn_kernels.h"

typedef const oari_array *oari_in; /* an array in the list below */

#define OARI_KERNEL_LIST(X)                                                    \
    X(copy, (oari_in to, oari_in from))                                        \
    X(fill, (oari_in to, double value))                                        \
    X(scale, (oari_in to, int add, oari_in a, double factor))                  \
    X(hash_add, (oari_in to, oari_in a, uint64_t seed))                        \
    X(sum_all, (oari_in to, oari_in a, double factor))                         \
    X(sum_to, (oari_pool * pool, oari_in to, int add, oari_in a))              \
    X(matmul, (oari_pool * pool, oari_in to, int add, oari_in a, oari_in b))   \
    X(unary, (oari_unary_kind kind, oari_in to, oari_in a))                    \
    X(unary_back, (oari_unary_kind kind, oari_in to, int add, oari_in grad,    \
                   oari_in saved))                                             \
    X(binary, (oari_binary_kind kind, oari_in to, oari_in a, oari_in b))       \
    X(binary_back, (oari_binary_kind kind, int side, oari_in to, int add,      \
                    oari_in grad, oari_in a, oari_in b))                       \
    X(scalar,                                                                  \
      (oari_scalar_kind kind, oari_in to, oari_in a, const double *number))    \
    X(scalar_back, (oari_scalar_kind kind, oari_in to, int add, oari_in grad,  \
                    oari_in saved, const double *number))                      \
    X(compare, (oari_compare_kind kind, oari_in to, oari_in a, oari_in b))     \
    X(mask_select, (oari_in to, oari_in mask, oari_in a, oari_in b))           \
    X(mask_select_back,                                                        \
      (oari_in to, int add, oari_in mask, int side, oari_in grad))             \
    X(outside_triangle, (oari_in to, int upper, int64_t diagonal))             \
    X(reduce_over, (oari_pool * pool, oari_reduce_kind kind, oari_in to,       \
                    oari_in a, double factor))                                 \
    X(extreme_back, (oari_pool * pool, oari_in to, int add, oari_in grad,      \
                     oari_in a, oari_in result))                               \
    X(prod_back,                                                               \
      (oari_pool * pool, oari_in to, int add, oari_in grad, oari_in a))        \
    X(var,                                                                     \
      (oari_pool * pool, oari_in to, oari_in mean, oari_in a, double divisor)) \
    X(var_back, (oari_in to, int add, oari_in grad, oari_in a, oari_in mean,   \
                 double divisor))                                              \
    X(argmax, (oari_in to, oari_in a))                                         \
    X(argmin, (oari_in to, oari_in a))                                         \
    X(topk, (oari_in value, oari_in index, oari_in a))                         \
    X(sort, (oari_in index, oari_in a, int descending, uint64_t *scratch))     \
    X(cumsum, (oari_in to, int add, oari_in a, int dim, int from_end))         \
    X(index_select, (oari_in to, oari_in a, int dim, oari_in index))           \
    X(index_add, (oari_in to, int dim, oari_in index, oari_in grad))           \
    X(gather, (oari_in to, oari_in a, int dim, oari_in index))                 \
    X(scatter_add, (oari_in to, int dim, oari_in index, oari_in source))       \
    X(softmax, (oari_in to, oari_in a))                                        \
    X(softmax_back, (oari_in to, int add, oari_in grad, oari_in result))       \
    X(log_softmax, (oari_in to, oari_in a))                                    \
    X(log_softmax_back, (oari_in to, int add, oari_in grad, oari_in result))   \
    X(dropout, (oari_in to, int add, oari_in a, double p, uint64_t seed,       \
                int64_t first, const int64_t *stride))                         \
    X(layer_norm, (oari_in to, oari_in mean, oari_in rstd, oari_in x,          \
                   oari_in weight, oari_in bias, double eps))                  \
    X(layer_norm_again, (oari_in to, oari_in mean, oari_in rstd, oari_in x,    \
                         oari_in weight, oari_in bias))                        \
    X(layer_norm_back, (const oari_norm_back *n))                              \
    X(sum_columns, (oari_pool * pool, oari_in to, int add, oari_in a))         \
    X(sum_channels, (oari_in to, int add, oari_in a))                          \
    X(conv_forward, (const oari_conv *c, int add, oari_in bias))               \
    X(conv_back_input, (const oari_conv *c, int add))                          \
    X(conv_back_weight, (const oari_conv *c, int add))                         \
    X(conv_transpose, (const oari_conv *c, oari_in bias))                      \
    X(max_pool, (oari_in to, oari_in pick, oari_in x, const oari_window *w))   \
    X(max_pool_back,                                                           \
      (oari_in to, int add, oari_in grad, oari_in pick, const oari_window *w)) \
    X(avg_pool, (oari_in to, oari_in x, const oari_window *w))                 \
    X(avg_pool_back,                                                           \
      (oari_in to, int add, oari_in grad, const oari_window *w))               \
    X(adaptive_avg_pool, (oari_in to, oari_in x, const oari_window *w))        \
    X(adaptive_avg_pool_back,                                                  \
      (oari_in to, int add, oari_in grad, const oari_window *w))               \
    X(pick_rows, (oari_in to, oari_in table, oari_in index))                   \
    X(add_rows,                                                                \
      (oari_in to, int add, oari_in grad, oari_in index, int64_t skip))        \
    X(rotary_angles, (oari_in angle, int64_t first, double base))              \
    X(rotary, (oari_in to, int add, oari_in x, oari_in angle, int64_t turned,  \
               int back))                                                      \
    X(attend, (const oari_attention *a))                                       \
    X(attend_back, (const oari_attention *a))                                  \
    X(low_rank_p, (const oari_low_rank *l))                                    \
    X(low_rank_q, (const oari_low_rank *l))                                    \
    X(low_rank_back, (const oari_low_rank *l))

typedef struct oari_kernel_table {
    int wide;  /* kernels that say "f32 or f64" need f32 copies of halves; 0:
                  they take halves as they are, and add up in f32 */
    int async; /* results are there later: nothing may be read by the host */
    /* (optional) As in cpu/arith.h. */
    int (*unary_split)(oari_unary_kind kind, oari_in to, oari_in x);
    /* Numbers of scratch memory for attend or attend_back. */
    int64_t (*attend_scratch)(const oari_attention *a);
    /* (optional) to = x weight' + bias in one pass: see cuda/cuda_kernels.h. */
    oar_status (*linear)(oari_pool *pool, oari_in to, oari_in x, oari_in weight,
                         oari_in bias);
    /* NULL: the device does not have it. */
#define X(name, arguments) oar_status(*name) arguments;
    OARI_KERNEL_LIST(X)
#undef X
} oari_kernel_table;

extern const oari_kernel_table oari_cpu_kernels, oari_cuda_kernels;

static inline const oari_kernel_table *oari_kernels_on(oar_device device)
{
    return device.kind == OAR_CUDA ? &oari_cuda_kernels : &oari_cpu_kernels;
}

/* Says that a device has no kernel of this name, and returns OAR_E_DEVICE. */
oar_status oari_no_kernel(const oari_array *to, const char *name);

/* Calls the kernel of the device that an array is on; the result is its status.
 */
#define OARI_KERNEL(array, name, ...)                          \
    (oari_kernels_on((array)->device)->name != NULL            \
         ? oari_kernels_on((array)->device)->name(__VA_ARGS__) \
         : oari_no_kernel((array), #name))

#endif
