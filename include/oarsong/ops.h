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
 * integers takes floats; bools go where it is said. f16 and bf16 are computed
 * in f32 and rounded once per operation; sums run in f32 at least. Both inputs
 * of an operation have the same dtype. A dtype that does not suit is
 * OAR_E_DTYPE.
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
OAR_API oar_status oar_tensor_split(oar_tape *tape, oar_tensor *a, int dim,
                                    int pieces, const int64_t *size,
                                    oar_tensor **piece);
OAR_API oar_status oar_chunk(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                             oar_tensor **piece);

/* ---- joining and converting ---------------------------------------------- */

OAR_API oar_tensor *oar_cat(oar_tape *tape, int count, oar_tensor *const *a,
                            int dim);
OAR_API oar_tensor *oar_stack(oar_tape *tape, int count, oar_tensor *const *a,
                              int dim);
/* Differentiable between floats. */
OAR_API oar_tensor *oar_cast(oar_tape *tape, oar_tensor *a, oar_dtype dtype);

/* ---- element by element; shapes broadcast as in NumPy -------------------- */

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
/* What oar_minimum and oar_maximum give with a tensor that holds this number
 * everywhere: where a is equal to it, a has half of the gradient. */
OAR_API oar_tensor *oar_minimum_scalar(oar_tape *tape, oar_tensor *a,
                                       double number);
OAR_API oar_tensor *oar_maximum_scalar(oar_tape *tape, oar_tensor *a,
                                       double number);
/* Returns a where it is above zero, and slope times a elsewhere. Takes floats.
 */
OAR_API oar_tensor *oar_leaky_relu(oar_tape *tape, oar_tensor *a, double slope);

/* One input. Those from exp on are for floats. sign, floor, ceil and round
 * have a gradient of zero; floor, ceil and round leave integers as they are. */
#define OAR_UNARY_LIST(X)                     \
    X(neg)                                    \
    X(abs)                                    \
    X(relu)                                   \
    X(sign) /* -1, 0 or 1; of NaN 0 */        \
    X(floor)                                  \
    X(ceil)                                   \
    X(round) /* halves to the even number */  \
    X(exp)                                    \
    X(expm1) /* exp(a) - 1 */                 \
    X(log)                                    \
    X(log1p) /* log(1 + a) */                 \
    X(erf)                                    \
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
/* oar_eq_scalar, ..., oar_ge_scalar compare each element with a number. Where a
 * is a float the number is rounded to its dtype first; integers and bools are
 * compared with the number as it is, also if it is not whole or lies outside
 * the dtype. */
#define OAR_COMPARE_SCALAR(name)                                           \
    OAR_API oar_tensor *oar_##name##_scalar(oar_tape *tape, oar_tensor *a, \
                                            double number);
OAR_COMPARE_LIST(OAR_COMPARE_SCALAR)
#undef OAR_COMPARE_SCALAR
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
/* Takes the element of a where mask (bool) is set, and the number elsewhere;
 * mask and a broadcast. Integers take whole numbers: another is OAR_E_ARG.
 * oar_masked_fill puts the number where the mask is set. */
OAR_API oar_tensor *oar_where_scalar(oar_tape *tape, oar_tensor *mask,
                                     oar_tensor *a, double number);
/* a, but value where mask (bool, broadcasts to a) is set. */
OAR_API oar_tensor *oar_masked_fill(oar_tape *tape, oar_tensor *a,
                                    oar_tensor *mask, double value);
/* The lower or upper triangle of the last two dims, zero elsewhere; diagonal 0
 * is the main one, above it positive. */
OAR_API oar_tensor *oar_tril(oar_tape *tape, oar_tensor *a, int64_t diagonal);
OAR_API oar_tensor *oar_triu(oar_tape *tape, oar_tensor *a, int64_t diagonal);

/* ---- reductions ---------------------------------------------------------- */

/* Of all elements: a single number. The mean of none is NaN. Of bools, sum
 * counts those that are set (i64). */
OAR_API oar_tensor *oar_sum(oar_tape *tape, oar_tensor *a);
OAR_API oar_tensor *oar_mean(oar_tape *tape, oar_tensor *a);

/* Over some dims (none listed: over all); keep: they stay, with size 1. max and
 * min over no elements are OAR_E_SHAPE; where several are largest, the first
 * gets the gradient. var divides by n - correction. Of bools, sum and prod are
 * i64, max and min are bool; mean and var do not take them. */
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
/* Tell, as bools, whether any element is not zero, and whether all are not.
 * Of no elements, none is and all are. Take every dtype; a NaN is not zero. Not
 * differentiable. */
OAR_API oar_tensor *oar_any_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);
OAR_API oar_tensor *oar_all_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);

/* The next four look along one dim, which has at least one element (else
 * OAR_E_SHAPE), and take bools too. Of equal elements they find the first. A
 * NaN counts as larger than any number for max, and as smaller for min. */

/* Return the i64 index of the largest or smallest. Not differentiable. */
OAR_API oar_tensor *oar_argmax(oar_tape *tape, oar_tensor *a, int dim,
                               int keep);
OAR_API oar_tensor *oar_argmin(oar_tape *tape, oar_tensor *a, int dim,
                               int keep);
/* Give the largest or smallest in *value and its i64 index in *index; index may
 * be NULL. On failure neither is given. */
OAR_API oar_status oar_max_with_index(oar_tape *tape, oar_tensor *a, int dim,
                                      int keep, oar_tensor **value,
                                      oar_tensor **index);
OAR_API oar_status oar_min_with_index(oar_tape *tape, oar_tensor *a, int dim,
                                      int keep, oar_tensor **value,
                                      oar_tensor **index);
/* The k largest along the last dim, in order, and their indices (i64). index
 * may be NULL. On failure neither is given. */
OAR_API oar_status oar_topk(oar_tape *tape, oar_tensor *a, int64_t k,
                            oar_tensor **value, oar_tensor **index);

/* ---- along a dim --------------------------------------------------------- */

/* Gives the elements in ascending (or descending) order in *value, and where
 * each was before, an i64, in *index; index may be NULL. Equal elements keep
 * their order. A NaN is larger than any number. Takes every dtype. On failure
 * neither is given. */
OAR_API oar_status oar_sort(oar_tape *tape, oar_tensor *a, int dim,
                            int descending, oar_tensor **value,
                            oar_tensor **index);
/* Element i of the result is the sum of elements 0 to i. Floats are added in
 * f64 and rounded; integers keep their dtype and wrap; bools are counted in
 * i64. */
OAR_API oar_tensor *oar_cumsum(oar_tape *tape, oar_tensor *a, int dim);
/* Returns a copy with these dims reversed (none listed: all dims). Takes every
 * dtype. */
OAR_API oar_tensor *oar_flip(oar_tape *tape, oar_tensor *a, oar_dims dims);

/* ---- picking by index (i64; outside the range: OAR_E_ARG) ---------------- */

/* Slices of one dim in the order of index [n]. */
OAR_API oar_tensor *oar_index_select(oar_tape *tape, oar_tensor *a, int dim,
                                     oar_tensor *index);
/* result[i][j] = a[index[i][j]][j] for dim 0; index has a's dims. */
OAR_API oar_tensor *oar_take_along(oar_tape *tape, oar_tensor *a, int dim,
                                   oar_tensor *index);
/* A copy of a with source added at the places take_along would read. */
OAR_API oar_tensor *oar_tensor_scatter_add(oar_tape *tape, oar_tensor *a,
                                           int dim, oar_tensor *index,
                                           oar_tensor *source);
/* Rows of table [n, width] at index [..]: result [.., width]. */
OAR_API oar_tensor *oar_embedding(oar_tape *tape, oar_tensor *table,
                                  oar_tensor *index);

typedef struct oar_embedding_opts {
    size_t size;
    int has_padding;
    int64_t padding; /* this row gets no gradient from the places that have it
                        (has_padding); negative: from the end */
    int64_t vocabulary; /* above 0: the table has rows first, first + 1, .. of
                           one of so many rows, whose numbers index and padding
                           are. Other rows are zero and get no gradient */
    int64_t first;
} oar_embedding_opts;
OAR_OPTS_INIT(oar_embedding_opts);

/* The same with options. A padding that is no row is OAR_E_ARG, and so is a
 * table that does not lie in the vocabulary. The results of tables that make up
 * a whole one add up to that of the whole. */
OAR_API oar_tensor *oar_embedding_with(oar_tape *tape, oar_tensor *table,
                                       oar_tensor *index,
                                       const oar_embedding_opts *opts);

/* ---- products ------------------------------------------------------------ */

/* [.., m, k] x [.., k, n] -> [.., m, n], leading dims broadcast. Transposed
 * views cost no copy. Floats. */
OAR_API oar_tensor *oar_matmul(oar_tape *tape, oar_tensor *a, oar_tensor *b);

/* x [.., in] times weight [out, in] transposed, plus bias [out] or NULL. */
OAR_API oar_tensor *oar_linear(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias);

typedef enum oar_activation {
    OAR_ACTIVATION_DEFAULT = 0,
    OAR_RELU = 1,
    OAR_GELU = 2,
    OAR_GELU_TANH = 3,
    OAR_SILU = 4,
    OAR_TANH = 5,
    OAR_SIGMOID = 6,
    OAR_SOFTPLUS = 7
} oar_activation;
/* The activation of oar_linear(x, weight, bias): on a GPU one operation, with
 * one pass over memory between products; elsewhere the two one after the other.
 */
OAR_API oar_tensor *oar_linear_act(oar_tape *tape, oar_tensor *x,
                                   oar_tensor *weight, oar_tensor *bias,
                                   oar_activation kind);

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

typedef struct oar_conv1d_opts {
    size_t size;
    int stride;   /* 0: 1 */
    int padding;  /* zeros on either side */
    int dilation; /* 0: 1 */
    int groups;   /* 0: 1 */
} oar_conv1d_opts;
OAR_OPTS_INIT(oar_conv1d_opts);

/* x [n, in, length] with weight [out, in/groups, kernel] and bias [out] or
 * NULL. */
OAR_API oar_tensor *oar_conv1d(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias,
                               const oar_conv1d_opts *opts);

typedef struct oar_conv_transpose1d_opts {
    size_t size;
    int stride;         /* 0: 1 */
    int padding;        /* taken off either side of the result */
    int output_padding; /* added to one side; below stride or dilation */
    int dilation;       /* 0: 1 */
    int groups;         /* 0: 1 */
} oar_conv_transpose1d_opts;
OAR_OPTS_INIT(oar_conv_transpose1d_opts);

typedef struct oar_conv_transpose2d_opts {
    size_t size;
    int stride[2], padding[2], output_padding[2], dilation[2]; /* as above */
    int groups;
} oar_conv_transpose2d_opts;
OAR_OPTS_INIT(oar_conv_transpose2d_opts);

/* Transposed convolution: computes what the gradient of a convolution's input
 * would be. x is [n, in, length] or [n, in, h, w], weight [in, out/groups,
 * kernel] or [in, out/groups, kh, kw], bias [out] or NULL. Each side of the
 * result has (size - 1) stride - 2 padding + dilation (kernel - 1) +
 * output_padding + 1 elements; a padding that leaves none is OAR_E_SHAPE. */
OAR_API oar_tensor *oar_conv_transpose1d(oar_tape *tape, oar_tensor *x,
                                         oar_tensor *weight, oar_tensor *bias,
                                         const oar_conv_transpose1d_opts *opts);
OAR_API oar_tensor *oar_conv_transpose2d(oar_tape *tape, oar_tensor *x,
                                         oar_tensor *weight, oar_tensor *bias,
                                         const oar_conv_transpose2d_opts *opts);

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

/* Return the means of x [n, c, length] or [n, c, h, w] under so many windows
 * that the result has this size, at least 1. Window i of m goes from
 * floor(i size / m) to ceil((i + 1) size / m); windows may overlap. */
OAR_API oar_tensor *oar_adaptive_avg_pool1d(oar_tape *tape, oar_tensor *x,
                                            int length);
OAR_API oar_tensor *oar_adaptive_avg_pool2d(oar_tape *tape, oar_tensor *x,
                                            int height, int width);

typedef struct oar_attention_opts {
    size_t size;
    int causal;       /* position i sees positions up to i only (aligned at the
                         start, as PyTorch does) */
    double scale;     /* 0: 1/sqrt(width of a head) */
    oar_tensor *mask; /* NULL: none. Broadcasts to [.., t, s]. Bool: a key is
                         seen where it is set. Of q's dtype: added to the scaled
                         scores, with a gradient if it wants one */
    double dropout;   /* of the probabilities, from 0 to 1, as oar_dropout */
    uint64_t seed;    /* for it */
    int all_heads;    /* above 0: these are heads first_head, .. of so many, for
                         the positions that decide what dropout leaves out */
    int first_head;
} oar_attention_opts;
OAR_OPTS_INIT(oar_attention_opts);

/* softmax(q k^T scale + mask) v for q [.., t, d], k [.., s, d], v [.., s, e]:
 * result [.., t, e]. The leading dims are the same, but the last of them, the
 * heads, may be fewer in k and v, if their number divides q's: each of theirs
 * then serves as many of q's, side by side. A row that sees no key at all gives
 * zeros. Never holds a t x s matrix for more than one head at once. */
OAR_API oar_tensor *oar_attention(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                                  oar_tensor *v,
                                  const oar_attention_opts *opts);

/* Rotates pairs (i, i + d/2) of the last dim of x [.., t, d] by position times
 * base^(-2i/d); the first row has position `first`. */
OAR_API oar_tensor *oar_rotary(oar_tape *tape, oar_tensor *x, int64_t first,
                               double base);

/* ---- norms --------------------------------------------------------------- */

/* Over the last dim; weight and bias [width] or NULL. */
OAR_API oar_tensor *oar_layer_norm(oar_tape *tape, oar_tensor *x,
                                   oar_tensor *weight, oar_tensor *bias,
                                   double eps);
/* The layer norm of a + b, in one pass over memory where the device can. *sum
 * gets a + b; NULL: nobody asks. */
OAR_API oar_tensor *oar_add_layer_norm(oar_tape *tape, oar_tensor *a,
                                       oar_tensor *b, oar_tensor *weight,
                                       oar_tensor *bias, double eps,
                                       oar_tensor **sum);
OAR_API oar_tensor *oar_rms_norm(oar_tape *tape, oar_tensor *x,
                                 oar_tensor *weight, double eps);

/* Over each of `groups` groups of neighbouring channels of x [n, channels, ..],
 * for each n alone. weight and bias are [channels] or NULL. groups that do not
 * divide the channels are OAR_E_SHAPE. */
OAR_API oar_tensor *oar_group_norm(oar_tape *tape, oar_tensor *x,
                                   int64_t groups, oar_tensor *weight,
                                   oar_tensor *bias, double eps);

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

/* Batch norm over more than this batch: the holders of its other parts (other
 * ranks, say) add theirs. Both functions are called only in training, and every
 * holder of a part must call them; the struct is kept by pointer
 * until backward is done. */
typedef struct oar_batch_norm_merge {
    void *arg;
    /* In: how many numbers a channel of this batch has (may be 0), their means
     * and the sums of their squared distances from these; out: those of all. */
    oar_status (*moments)(void *arg, int64_t channels, double *count,
                          double *mean, double *spread);
    /* In: sums over this batch; out: over all. */
    oar_status (*sums)(void *arg, int64_t count, double *sum);
    /* (optional) For GPUs, without which a batch norm there is OAR_E_DEVICE:
     * how many parts there are; and f64 numbers of all parts, in one order for
     * all, from those of this one, moments or sums, on the thread's current
     * stream. Sums are scaled to what they count here; `mine` may be, too. In
     * a step that is recorded for a replay, what talks to other ranks goes
     * through oar_replay_cut_with. */
    int (*parts)(void *arg);
    oar_status (*gather_on)(void *arg, int sums, oar_span mine, oar_span all);
} oar_batch_norm_merge;
OAR_API oar_tensor *oar_batch_norm_merged(oar_tape *tape, oar_tensor *x,
                                          oar_tensor *weight, oar_tensor *bias,
                                          oar_tensor *running_mean,
                                          oar_tensor *running_var, int training,
                                          double momentum, double eps,
                                          const oar_batch_norm_merge *merge);

/* ---- probabilities and losses -------------------------------------------- */

/* Over the last dim, or over any. */
OAR_API oar_tensor *oar_softmax(oar_tape *tape, oar_tensor *a);
OAR_API oar_tensor *oar_softmax_over(oar_tape *tape, oar_tensor *a, int dim);
OAR_API oar_tensor *oar_log_softmax(oar_tape *tape, oar_tensor *a, int dim);

/* Each element is kept with probability 1 - p and divided by it, or zero. Which
 * ones depends on seed and position only. p = 0 gives a itself. */
OAR_API oar_tensor *oar_dropout(oar_tape *tape, oar_tensor *a, double p,
                                uint64_t seed);

/* Where a part lies in a whole: its element (i, j, ..) is element first +
 * i stride[0] + j stride[1] + .. of the whole, which is row-major. A part that
 * is cut out along any dims has the strides of the whole. */
typedef struct oar_part_place {
    size_t size;
    int64_t first;
    int64_t stride[OAR_MAX_DIMS]; /* all 0: the part's own, row by row */
} oar_part_place;
OAR_OPTS_INIT(oar_part_place);

/* Dropout of a part: each element is kept or not as oar_dropout of the whole
 * would have it. place NULL: a is the whole. Negative numbers, and positions
 * that no i64 holds, are OAR_E_ARG. */
OAR_API oar_tensor *oar_dropout_part(oar_tape *tape, oar_tensor *a, double p,
                                     uint64_t seed,
                                     const oar_part_place *place);

/* What becomes of the losses of single rows or elements. */
typedef enum oar_loss_reduction {
    OAR_LOSS_MEAN = 0,
    OAR_LOSS_SUM = 1,
    OAR_LOSS_NONE = 2,      /* they are the result */
    OAR_LOSS_BATCH_MEAN = 3 /* the sum, divided by the size of dim 0; not of
                               cross entropy */
} oar_loss_reduction;

typedef struct oar_cross_entropy_opts {
    size_t size;
    int has_ignore;
    int64_t ignore; /* rows with this target do not count (has_ignore) */
    double label_smoothing;
    oar_loss_reduction reduction;
    oar_tensor *weight; /* of each class, [classes], of the dtype of logits;
                           NULL: 1. Nobody gets a gradient of it: OAR_E_ARG if
                           it wants one */
} oar_cross_entropy_opts;
OAR_OPTS_INIT(oar_cross_entropy_opts);

/* Mean over the rows of logits [rows, classes] of minus the log of the
 * softmax's entry at target [rows] (i64). A target outside [0, classes) is
 * OAR_E_ARG. The second with options: with weights each row counts as its
 * target's weight, also in what the mean is divided by. A row that is ignored
 * has loss 0; if every row is, the mean is NaN. */
OAR_API oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                      oar_tensor *target);
OAR_API oar_tensor *oar_cross_entropy_with(oar_tape *tape, oar_tensor *logits,
                                           oar_tensor *target,
                                           const oar_cross_entropy_opts *opts);

/* The cross entropy of oar_linear(x, weight) without a bias: x [rows, width],
 * weight [classes, width], target [rows]. Never has the logits of all rows in
 * memory, and computes the gradients of x and weight with the loss, where they
 * are wanted. A mean or a sum, without weights of classes. */
OAR_API oar_tensor *
oar_linear_cross_entropy(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                         oar_tensor *target,
                         const oar_cross_entropy_opts *opts);

/* Cross entropy of logits of which each caller has some of the classes: rows
 * [rows, classes from `first` on]. Both functions are given numbers of this
 * part and leave those of all parts: the largest of each, or the sum; a failure
 * ends the operation. */
typedef struct oar_cross_entropy_merge {
    size_t size;
    int64_t first;   /* class of the part's first column */
    int64_t classes; /* of all parts together */
    void *arg;
    oar_status (*largest)(void *arg, int64_t count, double *number);
    oar_status (*sums)(void *arg, int64_t count, double *sum);
} oar_cross_entropy_merge;
OAR_OPTS_INIT(oar_cross_entropy_merge);

/* The loss of the whole, on every part: the same bits if the two functions give
 * the same bits. target is among all classes; the weights of the options are of
 * the part's own. Both functions are called once in forward, on every part with
 * the same counts; backward needs nothing of the others and gives the part's
 * own gradient. A part may have no columns. One part alone gives the bits of
 * oar_cross_entropy_with. A part that does not lie in the classes is OAR_E_ARG,
 * one on a GPU OAR_E_DEVICE. */
OAR_API oar_tensor *
oar_cross_entropy_merged(oar_tape *tape, oar_tensor *logits, oar_tensor *target,
                         const oar_cross_entropy_opts *opts,
                         const oar_cross_entropy_merge *merge);

/* The losses below compare numbers of two tensors of one shape and dtype, and
 * have gradients by both. opts may be NULL: the mean, which is NaN over no
 * numbers. */
typedef struct oar_loss_opts {
    size_t size;
    oar_loss_reduction reduction;
} oar_loss_opts;
OAR_OPTS_INIT(oar_loss_opts);

/* The squared difference. */
OAR_API oar_tensor *oar_mse(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_mse_with(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                 const oar_loss_opts *opts);
/* The size of the difference; where there is none its slope is 0. */
OAR_API oar_tensor *oar_l1_loss(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                const oar_loss_opts *opts);
/* Half the square of a difference of at most delta, which is above 0; of a
 * larger one delta times its size less delta / 2. */
OAR_API oar_tensor *oar_huber_loss(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                   double delta, const oar_loss_opts *opts);
/* Huber's with delta = beta, divided by beta; with a beta of 0 l1_loss. */
OAR_API oar_tensor *oar_smooth_l1_loss(oar_tape *tape, oar_tensor *a,
                                       oar_tensor *b, double beta,
                                       const oar_loss_opts *opts);

/* Both weights broadcast to logits, and have its dtype; NULL: 1. Nobody gets a
 * gradient of them: OAR_E_ARG if they want one. */
typedef struct oar_bce_opts {
    size_t size;
    oar_loss_reduction reduction;
    oar_tensor *weight;          /* of each loss */
    oar_tensor *positive_weight; /* of the part where the target is 1 */
} oar_bce_opts;
OAR_OPTS_INIT(oar_bce_opts);

/* Binary cross entropy of sigmoid(logits), exact for logits of any size, and
 * target, probabilities from 0 to 1, which are not checked. */
OAR_API oar_tensor *oar_bce_with_logits(oar_tape *tape, oar_tensor *logits,
                                        oar_tensor *target,
                                        const oar_bce_opts *opts);

typedef struct oar_kl_div_opts {
    size_t size;
    oar_loss_reduction reduction;
    int log_target; /* target has logarithms too */
} oar_kl_div_opts;
OAR_OPTS_INIT(oar_kl_div_opts);

/* target (log target - a), where a has logarithms of probabilities: from a to
 * target. 0 where the target's probability is 0. The divergence of
 * distributions [batch, ..] is its OAR_LOSS_BATCH_MEAN. */
OAR_API oar_tensor *oar_kl_div(oar_tape *tape, oar_tensor *a,
                               oar_tensor *target, const oar_kl_div_opts *opts);

OAR_END_DECLS

#endif
