/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: operations on tensors.
 *
 * Each takes the tape first (NULL: nothing is recorded and the caller owns the
 * result), and returns a tensor, or NULL with a sentence in the last error that
 * contains both shapes. A NULL input gives NULL and keeps the error that is
 * there, so that a chain is checked once at its end. Inputs may be strided
 * views. Results are contiguous unless said otherwise. A negative dim counts
 * from the end. All are differentiable unless said otherwise.
 *
 * Dtypes: views and index operations take every dtype; arithmetic, comparison
 * and reductions take floats and integers (which wrap); what has no meaning on
 * integers takes floats. f16 and bf16 are computed in f32 and rounded once per
 * operation; sums run in f32 at least. Both inputs of an operation have the
 * same dtype. A dtype that does not suit is OAR_E_DTYPE.
 */
#ifndef OARSONG_OPS_H
#define OARSONG_OPS_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

/* ---- views: share the input's storage ------------------------------------ */

/* One dim may be -1: what is left. Copies if the strides do not allow a view.*/
OAR_API oar_tensor *oar_reshape(oar_tape *tape, oar_tensor *a, oar_shape shape);
OAR_API oar_tensor *oar_transpose(oar_tape *tape, oar_tensor *a, int d0,
                                  int d1);
/* Dim i of the result is dim order.dim[i] of a. */
OAR_API oar_tensor *oar_permute(oar_tape *tape, oar_tensor *a, oar_dims order);
/* Elements start .. start+length-1 of one dim. */
OAR_API oar_tensor *oar_narrow(oar_tape *tape, oar_tensor *a, int dim,
                               int64_t start, int64_t length);
/* Elements start, start+step, ... below stop; negative start and stop count
 * from the end, and both are cut to the size; step is at least 1. */
OAR_API oar_tensor *oar_slice(oar_tape *tape, oar_tensor *a, int dim,
                              int64_t start, int64_t stop, int64_t step);
/* One index of one dim, which goes away. */
OAR_API oar_tensor *oar_select(oar_tape *tape, oar_tensor *a, int dim,
                               int64_t index);
/* Dims of size 1 (and new ones in front) repeated without a copy; -1 keeps. */
OAR_API oar_tensor *oar_expand(oar_tape *tape, oar_tensor *a, oar_shape shape);
/* Takes a dim of size 1 away, or puts one in. */
OAR_API oar_tensor *oar_squeeze(oar_tape *tape, oar_tensor *a, int dim);
OAR_API oar_tensor *oar_unsqueeze(oar_tape *tape, oar_tensor *a, int dim);
/* a itself if it is row-major already, else a copy that is. */
OAR_API oar_tensor *oar_contiguous(oar_tape *tape, oar_tensor *a);
/* Splits into pieces of these sizes, or into `pieces` of nearly equal size (the
 * first ones larger), as views; piece has room for all. On failure none is
 * given. */
OAR_API oar_status oar_split(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                             const int64_t *size, oar_tensor **piece);
OAR_API oar_status oar_chunk(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                             oar_tensor **piece);

/* ---- joining and converting ---------------------------------------------- */

OAR_API oar_tensor *oar_cat(oar_tape *tape, int count, oar_tensor *const *a,
                            int dim);
OAR_API oar_tensor *oar_stack(oar_tape *tape, int count, oar_tensor *const *a,
                              int dim);
/* Differentiable between floats. */
OAR_API oar_tensor *oar_cast(oar_tape *tape, oar_tensor *a, oar_dtype dtype);

/* ---- element by element; shapes broadcast as in NumPy ---------------------
 */

OAR_API oar_tensor *oar_add(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_sub(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_mul(oar_tape *tape, oar_tensor *a, oar_tensor *b);
/* Integers truncate toward zero; by zero they are OAR_E_ARG. */
OAR_API oar_tensor *oar_div(oar_tape *tape, oar_tensor *a, oar_tensor *b);
/* An integer to a negative power is OAR_E_ARG. */
OAR_API oar_tensor *oar_pow(oar_tape *tape, oar_tensor *a, oar_tensor *b);
/* Where both are equal, each has half of the gradient. */
OAR_API oar_tensor *oar_minimum(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_maximum(oar_tape *tape, oar_tensor *a, oar_tensor *b);
/* With a number; integers take whole ones, clamp any. */
OAR_API oar_tensor *oar_scale(oar_tape *tape, oar_tensor *a, double factor);
OAR_API oar_tensor *oar_shift(oar_tape *tape, oar_tensor *a, double offset);
OAR_API oar_tensor *oar_power(oar_tape *tape, oar_tensor *a, double exponent);
OAR_API oar_tensor *oar_clamp(oar_tape *tape, oar_tensor *a, double low,
                              double high);

/* One input. Those from exp on are for floats. */
#define OAR_UNARY_LIST(X)                     \
    X(neg)                                    \
    X(abs)                                    \
    X(relu)                                   \
    X(exp)                                    \
    X(log)                                    \
    X(sqrt)                                   \
    X(rsqrt)                                  \
    X(sin)                                    \
    X(cos)                                    \
    X(tanh)                                   \
    X(sigmoid)                                \
    X(gelu)      /* exact, by erf */          \
    X(gelu_tanh) /* the tanh approximation */ \
    X(silu)                                   \
    X(softplus)
#define OAR_DECLARE_UNARY(name) \
    OAR_API oar_tensor *oar_##name(oar_tape *tape, oar_tensor *a);
OAR_UNARY_LIST(OAR_DECLARE_UNARY)
#undef OAR_DECLARE_UNARY

/* Comparisons give bool; not differentiable. */
#define OAR_COMPARE_LIST(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)
#define OAR_DECLARE_COMPARE(name)                                 \
    OAR_API oar_tensor *oar_##name(oar_tape *tape, oar_tensor *a, \
                                   oar_tensor *b);
OAR_COMPARE_LIST(OAR_DECLARE_COMPARE)
#undef OAR_DECLARE_COMPARE
/* Of bools. */
OAR_API oar_tensor *oar_logical_and(oar_tape *tape, oar_tensor *a,
                                    oar_tensor *b);
OAR_API oar_tensor *oar_logical_or(oar_tape *tape, oar_tensor *a,
                                   oar_tensor *b);
OAR_API oar_tensor *oar_logical_xor(oar_tape *tape, oar_tensor *a,
                                    oar_tensor *b);
OAR_API oar_tensor *oar_logical_not(oar_tape *tape, oar_tensor *a);

/* Where mask (bool) is set from a, else from b; all three broadcast. */
OAR_API oar_tensor *oar_where(oar_tape *tape, oar_tensor *mask, oar_tensor *a,
                              oar_tensor *b);
/* a, but value where mask (bool, broadcasts to a) is set. */
OAR_API oar_tensor *oar_masked_fill(oar_tape *tape, oar_tensor *a,
                                    oar_tensor *mask, double value);
/* The lower or upper triangle of the last two dims, zero elsewhere; diagonal 0
 * is the main one, above it positive. */
OAR_API oar_tensor *oar_tril(oar_tape *tape, oar_tensor *a, int64_t diagonal);
OAR_API oar_tensor *oar_triu(oar_tape *tape, oar_tensor *a, int64_t diagonal);

/* ---- reductions -----------------------------------------------------------
 */

/* Of all elements: a single number. The mean of none is NaN. */
OAR_API oar_tensor *oar_sum(oar_tape *tape, oar_tensor *a);
OAR_API oar_tensor *oar_mean(oar_tape *tape, oar_tensor *a);

/* Over some dims (none listed: over all); keep: they stay, with size 1. max and
 * min over no elements are OAR_E_SHAPE; where several are largest, the first
 * gets the gradient. var divides by n - correction. */
OAR_API oar_tensor *oar_sum_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);
OAR_API oar_tensor *oar_mean_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                  int keep);
OAR_API oar_tensor *oar_prod_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                  int keep);
OAR_API oar_tensor *oar_max_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);
OAR_API oar_tensor *oar_min_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);
OAR_API oar_tensor *oar_var_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep, int correction);
/* i64 index of the first largest along one dim. Not differentiable. */
OAR_API oar_tensor *oar_argmax(oar_tape *tape, oar_tensor *a, int dim,
                               int keep);
/* The k largest along the last dim, in order, and their indices (i64). index
 * may be NULL. On failure neither is given. */
OAR_API oar_status oar_topk(oar_tape *tape, oar_tensor *a, int64_t k,
                            oar_tensor **value, oar_tensor **index);

/* ---- picking by index (i64; outside the range: OAR_E_ARG) ------------------
 */

/* Slices of one dim in the order of index [n]. */
OAR_API oar_tensor *oar_index_select(oar_tape *tape, oar_tensor *a, int dim,
                                     oar_tensor *index);
/* result[i][j] = a[index[i][j]][j] for dim 0; index has a's dims. */
OAR_API oar_tensor *oar_take_along(oar_tape *tape, oar_tensor *a, int dim,
                                   oar_tensor *index);
/* A copy of a with source added at the places take_along would read. */
OAR_API oar_tensor *oar_scatter_add(oar_tape *tape, oar_tensor *a, int dim,
                                    oar_tensor *index, oar_tensor *source);
/* Rows of table [n, width] at index [..]: result [.., width]. */
OAR_API oar_tensor *oar_embedding(oar_tape *tape, oar_tensor *table,
                                  oar_tensor *index);

/* ---- products --------------------------------------------------------------
 */

/* [.., m, k] x [.., k, n] -> [.., m, n], leading dims broadcast. Transposed
 * views cost no copy. Floats. */
OAR_API oar_tensor *oar_matmul(oar_tape *tape, oar_tensor *a, oar_tensor *b);

/* x [.., in] times weight [out, in] transposed, plus bias [out] or NULL. */
OAR_API oar_tensor *oar_linear(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias);

typedef struct oar_conv2d_opts {
    size_t size;
    int stride[2];   /* 0: 1 */
    int padding[2];  /* zeros on either side */
    int dilation[2]; /* 0: 1 */
    int groups;      /* 0: 1 */
} oar_conv2d_opts;
OAR_OPTS_INIT(oar_conv2d_opts);

/* x [n, in, h, w] with weight [out, in/groups, kh, kw] and bias [out] or NULL.
 */
OAR_API oar_tensor *oar_conv2d(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias,
                               const oar_conv2d_opts *opts);

typedef struct oar_pool2d_opts {
    size_t size;
    int stride[2]; /* 0: the window's size */
    int padding[2];
} oar_pool2d_opts;
OAR_OPTS_INIT(oar_pool2d_opts);

/* Over windows of the last two dims of x [n, c, h, w]. avg counts padding as
 * zeros; max never picks it. The padding is at most half the window. */
OAR_API oar_tensor *oar_max_pool2d(oar_tape *tape, oar_tensor *x, int height,
                                   int width, const oar_pool2d_opts *opts);
OAR_API oar_tensor *oar_avg_pool2d(oar_tape *tape, oar_tensor *x, int height,
                                   int width, const oar_pool2d_opts *opts);

typedef struct oar_attention_opts {
    size_t size;
    int causal;   /* position i sees positions up to i only (aligned at the
                     start, as PyTorch does) */
    double scale; /* 0: 1/sqrt(width of a head) */
} oar_attention_opts;
OAR_OPTS_INIT(oar_attention_opts);

/* softmax(q k^T scale) v for q [.., t, d], k [.., s, d], v [.., s, e], with the
 * same leading dims: result [.., t, e]. Never holds a t x s matrix for more
 * than one head at once. */
OAR_API oar_tensor *oar_attention(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                                  oar_tensor *v,
                                  const oar_attention_opts *opts);

/* Rotates pairs (i, i + d/2) of the last dim of x [.., t, d] by position times
 * base^(-2i/d); the first row has position `first`. */
OAR_API oar_tensor *oar_rotary(oar_tape *tape, oar_tensor *x, int64_t first,
                               double base);

/* ---- norms ------------------------------------------------------------------
 */

/* Over the last dim; weight and bias [width] or NULL. */
OAR_API oar_tensor *oar_layer_norm(oar_tape *tape, oar_tensor *x,
                                   oar_tensor *weight, oar_tensor *bias,
                                   double eps);
OAR_API oar_tensor *oar_rms_norm(oar_tape *tape, oar_tensor *x,
                                 oar_tensor *weight, double eps);

/* Over all dims of x [n, channels, ..] but dim 1. training: by the batch's own
 * mean and (biased) variance, and running_mean and running_var (either both
 * NULL or [channels]) become (1-momentum) old + momentum new, with the unbiased
 * variance; else by the running ones. weight and bias [channels] or NULL. One
 * number per channel has no variance: OAR_E_SHAPE in training. */
OAR_API oar_tensor *oar_batch_norm(oar_tape *tape, oar_tensor *x,
                                   oar_tensor *weight, oar_tensor *bias,
                                   oar_tensor *running_mean,
                                   oar_tensor *running_var, int training,
                                   double momentum, double eps);

/* The same over more than this batch: whoever holds the other parts of it
 * (other ranks, say) adds theirs. Both functions are called only in training,
 * and must be called by all who hold a part; the struct is kept by pointer
 * until backward is done. */
typedef struct oar_batch_norm_merge {
    void *arg;
    /* In: how many numbers a channel of this batch has (may be 0), their means
     * and the sums of their squared distances from these; out: those of all. */
    oar_status (*moments)(void *arg, int64_t channels, double *count,
                          double *mean, double *spread);
    /* In: sums over this batch; out: over all. */
    oar_status (*sums)(void *arg, int64_t count, double *sum);
} oar_batch_norm_merge;
OAR_API oar_tensor *oar_batch_norm_merged(oar_tape *tape, oar_tensor *x,
                                          oar_tensor *weight, oar_tensor *bias,
                                          oar_tensor *running_mean,
                                          oar_tensor *running_var, int training,
                                          double momentum, double eps,
                                          const oar_batch_norm_merge *merge);

/* ---- probabilities and losses
 * ------------------------------------------------ */

/* Over the last dim, or over any. */
OAR_API oar_tensor *oar_softmax(oar_tape *tape, oar_tensor *a);
OAR_API oar_tensor *oar_softmax_over(oar_tape *tape, oar_tensor *a, int dim);
OAR_API oar_tensor *oar_log_softmax(oar_tape *tape, oar_tensor *a, int dim);

/* Each element is kept with probability 1 - p and divided by it, or zero. Which
 * ones depends on seed and position only. p = 0 gives a itself. */
OAR_API oar_tensor *oar_dropout(oar_tape *tape, oar_tensor *a, double p,
                                uint64_t seed);

typedef struct oar_cross_entropy_opts {
    size_t size;
    int has_ignore;
    int64_t ignore; /* rows with this target do not count (has_ignore) */
    double label_smoothing;
} oar_cross_entropy_opts;
OAR_OPTS_INIT(oar_cross_entropy_opts);

/* Mean over the rows of logits [rows, classes] of minus the log of the
 * softmax's entry at target [rows] (i64). A target outside [0, classes) is
 * OAR_E_ARG. The second with options; if every row is ignored it is NaN. */
OAR_API oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                      oar_tensor *target);
OAR_API oar_tensor *oar_cross_entropy_with(oar_tape *tape, oar_tensor *logits,
                                           oar_tensor *target,
                                           const oar_cross_entropy_opts *opts);
/* Mean of the squared differences. */
OAR_API oar_tensor *oar_mse(oar_tape *tape, oar_tensor *a, oar_tensor *b);

OAR_END_DECLS

#endif
