/* SPDX-License-Identifier: Apache-2.0 */
/* windows: convolutions and pools on a GPU. A convolution is a product of the
 * weights and the columns under its windows, for as many images at a time as
 * COLUMN_BYTES of columns hold; of an image that is larger, some rows of
 * results at a time. How it is cut depends on shapes only. */
#include "tensor/cuda/cuda_windows.h"

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/job_start.h"
#include "tensor/cuda/window_job.h"

#define KERNEL(text) \
    static oari_cuda_kernel_ref ref = { .file = "windows", .name = text }

enum { COLUMN_BYTES = 128 << 20, PLACES = 1 << 30 };

static int64_t column_bytes = COLUMN_BYTES;

void oari_cuda_set_column_bytes(int64_t bytes)
{
    column_bytes = bytes > 0 ? bytes : COLUMN_BYTES;
}

static oari_window_job make_job(const oari_window *w, const oari_array *to,
                                const oari_array *from)
{
    oari_window_job job = { .to = oari_array_data(to),
                            .from = oari_array_data(from),
                            .count = oari_shape_count(to->at.shape),
                            .places = oari_shape_count(from->at.shape),
                            .height = w->height,
                            .width = w->width,
                            .out_height = w->out_height,
                            .out_width = w->out_width,
                            .to_dtype = (int)to->dtype,
                            .from_dtype = (int)from->dtype,
                            .is_f64 = to->dtype == OAR_F64 };

    for (int i = 0; i < 2; i++) {
        job.kernel[i] = w->kernel[i];
        job.stride[i] = w->stride[i];
        job.padding[i] = w->padding[i];
        job.dilation[i] = w->dilation[i];
    }
    return job;
}

/* A divisor of nothing is 1. */
static oari_quick_divisor divisor_of(int64_t d)
{
    return oari_quick_divisor_of(d > 0 ? d : 1);
}

/* Whether a place in the arrays, or one beside a plane, may need 64 bits. */
static int is_large(const oari_window_job *job)
{
    int large = job->count > PLACES || job->places > PLACES;

    for (int i = 0; i < 2; i++) {
        int64_t size = i == 0 ? job->height : job->width;
        int64_t results = i == 0 ? job->out_height : job->out_width;

        large |= job->padding[i] > PLACES || job->kernel[i] > PLACES ||
                 job->stride[i] > PLACES || job->dilation[i] > PLACES ||
                 size > PLACES || results > PLACES ||
                 (double)(results + job->first) * (double)job->stride[i] +
                         (double)job->kernel[i] * (double)job->dilation[i] >
                     PLACES;
    }
    return large;
}

static void set_divisors(oari_window_job *job)
{
    job->by_images = divisor_of(job->images);
    job->by_channels = divisor_of(job->channels);
    job->by_height = divisor_of(job->height);
    job->by_width = divisor_of(job->width);
    job->by_rows = divisor_of(job->rows);
    job->by_out_height = divisor_of(job->out_height);
    job->by_out_width = divisor_of(job->out_width);
    job->by_taps = divisor_of(job->kernel[0] * job->kernel[1]);
    job->by_kernel = divisor_of(job->kernel[1]);
    for (int i = 0; i < 2; i++)
        job->by_stride[i] = divisor_of(job->stride[i]);
    job->is_large = is_large(job);
}

/* ---- pieces of a convolution --------------------------------------------- */

/* Result rows first .. first + rows - 1 of some images. */
typedef struct piece {
    int64_t image, images, first, rows;
} piece;

static int64_t depth_of(const oari_conv *c)
{
    return c->in / c->groups * c->window.kernel[0] * c->window.kernel[1];
}

static int is_pointwise(const oari_conv *c)
{
    const oari_window *w = &c->window;

    return w->kernel[0] == 1 && w->kernel[1] == 1 && w->stride[0] == 1 &&
           w->stride[1] == 1 && w->padding[0] == 0 && w->padding[1] == 0 &&
           w->out_height == w->height && w->out_width == w->width;
}

static int64_t at_most(int64_t a, int64_t most)
{
    return a < most ? a : most;
}

/* The largest piece. bytes: of an element of the columns. */
static piece largest_piece(const oari_conv *c, int64_t bytes)
{
    const oari_window *w = &c->window;
    int64_t row = c->groups * depth_of(c) * w->out_width * bytes;
    int64_t image = row * w->out_height;
    piece p = { 0, c->images, 0, w->out_height };

    if (image > 0 && image * c->images > column_bytes)
        p.images = image < column_bytes ? column_bytes / image : 1;
    if (image > column_bytes)
        p.rows = row < column_bytes ? column_bytes / row : 1;
    return p;
}

/* A piece's array of four dims over the data of an array. */
static oari_array array_over(const oari_array *a, int64_t offset,
                             const int64_t *dim, const int64_t *stride)
{
    oari_array made = *a;

    made.at.offset += offset;
    made.at.shape = OAR_SHAPE(dim[0], dim[1], dim[2], dim[3]);
    for (int i = 0; i < 4; i++)
        made.at.stride[i] = stride[i];
    return made;
}

#define FOUR(...)      \
    (const int64_t[4]) \
    {                  \
        __VA_ARGS__    \
    }

/* The results [images, groups, out / groups, rows * out_width]. */
static oari_array results_of(const oari_conv *c, const piece *p)
{
    const oari_window *w = &c->window;
    int64_t plane = w->out_height * w->out_width, out = c->out / c->groups;

    return array_over(c->y, p->image * c->out * plane + p->first * w->out_width,
                      FOUR(p->images, c->groups, out, p->rows * w->out_width),
                      FOUR(c->out * plane, out * plane, plane, 1));
}

/* The planes of a pointwise convolution as columns. */
static oari_array planes_of(const oari_conv *c, const piece *p)
{
    int64_t plane = c->window.height * c->window.width, in = c->in / c->groups;

    return array_over(c->x,
                      p->image * c->in * plane + p->first * c->window.width,
                      FOUR(p->images, c->groups, in, p->rows * c->window.width),
                      FOUR(c->in * plane, in * plane, plane, 1));
}

/* Columns [images, groups, depth, rows * out_width]; they lie [groups, depth,
 * images, ..]. */
static oari_array columns_of(const oari_conv *c, const piece *p,
                             const oar_tensor *scratch)
{
    oari_array all = oari_array_of(scratch);
    int64_t results = p->rows * c->window.out_width, depth = depth_of(c);

    return array_over(
        &all, 0, FOUR(p->images, c->groups, depth, results),
        FOUR(results, depth * p->images * results, p->images * results, 1));
}

/* The weights [1, groups, out / groups, depth], or turned. */
static oari_array weights_of(const oari_conv *c, const oari_array *weight,
                             int turned)
{
    int64_t depth = depth_of(c), out = c->out / c->groups;
    oari_array made = array_over(weight, 0, FOUR(1, c->groups, out, depth),
                                 FOUR(0, out * depth, depth, 1));

    if (turned)
        made.at = oari_layout_transpose(made.at, 2, 3);
    return made;
}

static oar_tensor *make_columns(const oari_conv *c, const piece *p,
                                oar_dtype dtype)
{
    return oari_tensor_make_on(c->pool, c->x->device, dtype,
                               OAR_SHAPE(c->groups * depth_of(c) * p->images *
                                         p->rows * c->window.out_width));
}

/* The numbers of x under each window of a piece. */
static oar_status fill_columns(const oari_conv *c, const piece *p,
                               const oari_array *columns)
{
    KERNEL("oari_fill_columns");
    oari_window_job job = make_job(&c->window, columns, c->x);

    job.from = (const char *)job.from +
               p->image * c->in * c->window.height * c->window.width *
                   (int64_t)oar_dtype_size(c->x->dtype);
    job.bytes = (int)oar_dtype_size(c->x->dtype);
    job.images = p->images;
    job.channels = c->in;
    job.first = p->first;
    job.rows = p->rows;
    set_divisors(&job);
    return oari_cuda_start_flat(c->x->device, &ref, job.count, &job);
}

/* Adds the columns of a piece up in x, or to what is there. */
static oar_status sum_taps(const oari_conv *c, const piece *p,
                           const oari_array *columns, int add)
{
    KERNEL("oari_sum_taps");
    oari_window_job job = make_job(&c->window, c->x, columns);
    int64_t image = c->in * c->window.height * c->window.width;

    job.to = (char *)job.to +
             p->image * image * (int64_t)oar_dtype_size(c->x->dtype);
    job.count = p->images * image;
    job.images = p->images;
    job.channels = c->in;
    job.first = p->first;
    job.rows = p->rows;
    job.add = add;
    set_divisors(&job);
    return oari_cuda_start_flat(c->x->device, &ref, job.count, &job);
}

/* What is done with one piece. `first`: it is the first of its images; columns
 * are scratch memory, or NULL. */
typedef oar_status piece_fn(const oari_conv *c, const piece *p,
                            const oar_tensor *columns, int add);

static oar_status each_piece(const oari_conv *c, oar_dtype dtype,
                             int has_columns, piece_fn *fn, int add)
{
    piece most = largest_piece(c, (int64_t)oar_dtype_size(dtype)), p = most;
    oar_tensor *columns = NULL;
    oar_status status = OAR_OK;

    if (has_columns && (columns = make_columns(c, &most, dtype)) == NULL)
        return oar_last_error()->status;
    for (p.image = 0; p.image < c->images; p.image += most.images)
        for (p.first = 0; p.first < c->window.out_height;
             p.first += most.rows) {
            p.images = at_most(c->images - p.image, most.images);
            p.rows = at_most(c->window.out_height - p.first, most.rows);
            if (status == OAR_OK)
                status = fn(c, &p, columns, add);
        }
    oari_tensor_drop(c->pool, columns);
    return status;
}

/* Copies bias [channels] to every plane of an array. */
static oar_status copy_bias(const oari_array *to, const oari_array *bias)
{
    oari_array each = *bias;

    each.at.shape = OAR_SHAPE(1, bias->at.shape.dim[0], 1, 1);
    each.at.stride[1] = bias->at.stride[0];
    each.at.stride[0] = each.at.stride[2] = each.at.stride[3] = 0;
    each.at.shape.ndim = to->at.shape.ndim;
    return oari_cuda_copy(to, &each);
}

/* ---- forward ------------------------------------------------------------- */

static oar_status forward_piece(const oari_conv *c, const piece *p,
                                const oar_tensor *scratch, int add)
{
    oari_array to = results_of(c, p), a = weights_of(c, c->weight, 0), b;

    if (scratch == NULL) {
        b = planes_of(c, p);
    } else {
        b = columns_of(c, p, scratch);
        OARI_TRY(fill_columns(c, p, &b));
    }
    return oari_cuda_matmul(c->pool, &to, add, &a, &b);
}

oar_status oari_cuda_conv_forward(const oari_conv *c, int add,
                                  const oari_array *bias)
{
    if (oari_shape_count(c->y->at.shape) == 0)
        return OAR_OK;
    if (bias != NULL) { /* rounded once, with the product */
        OARI_TRY(copy_bias(c->y, bias));
        add = 1;
    }
    return each_piece(c, c->x->dtype, !is_pointwise(c), forward_piece, add);
}

/* ---- backward ------------------------------------------------------------ */

/* Runs a gradient, which goes to c->x or c->weight, with f32 in its place. */
static oar_status add_in_f32(const oari_conv *c, const oari_array *to,
                             piece_fn *fn, int add)
{
    oar_tensor *sum =
        oari_tensor_make_on(c->pool, to->device, OAR_F32, to->at.shape);
    oari_conv wide = *c;
    oari_array array;
    oar_status status;

    if (sum == NULL)
        return oar_last_error()->status;
    array = oari_array_of(sum);
    if (to == c->x)
        wide.x = &array;
    else
        wide.weight = &array;
    status = each_piece(&wide, to == c->x ? OAR_F32 : c->x->dtype, 1, fn, 0);
    if (status == OAR_OK)
        status = oari_cuda_scale(to, add, &array, 1);
    oari_tensor_drop(c->pool, sum);
    return status;
}

static oar_status input_piece(const oari_conv *c, const piece *p,
                              const oar_tensor *scratch, int add)
{
    oari_array a = weights_of(c, c->weight, 1), b = results_of(c, p), to;

    if (scratch == NULL) {
        to = planes_of(c, p);
        return oari_cuda_matmul(c->pool, &to, add, &a, &b);
    }
    to = columns_of(c, p, scratch);
    OARI_TRY(oari_cuda_matmul(c->pool, &to, 0, &a, &b));
    return sum_taps(c, p, &to, add || p->first > 0);
}

/* Columns of halves are f32: they are added up; and so are several pieces. */
oar_status oari_cuda_conv_back_input(const oari_conv *c, int add)
{
    oar_dtype dtype = c->y->dtype == OAR_F64 ? OAR_F64 : OAR_F32;
    piece p = largest_piece(c, (int64_t)oar_dtype_size(dtype));
    int pointwise = is_pointwise(c);

    if (oari_shape_count(c->x->at.shape) == 0)
        return OAR_OK;
    if (oari_shape_count(c->y->at.shape) == 0)
        return add ? OAR_OK : oari_cuda_fill(c->x, 0);
    if (!pointwise && p.rows < c->window.out_height &&
        oari_dtype_is_half(c->x->dtype))
        return add_in_f32(c, c->x, input_piece, add);
    return each_piece(c, dtype, !pointwise, input_piece, add);
}

oar_status oari_cuda_conv_transpose(const oari_conv *c, const oari_array *bias)
{
    if (bias != NULL)
        OARI_TRY(copy_bias(c->x, bias));
    return oari_cuda_conv_back_input(c, bias != NULL);
}

/* The results of a piece as [groups, out / groups, images * results]: where
 * they lie if there is one image, else a copy, *made. */
static oar_status turn_results(const oari_conv *c, const piece *p,
                               oari_array *turned, oar_tensor **made)
{
    oari_array from = results_of(c, p), to;
    int64_t out = c->out / c->groups, results = p->rows * c->window.out_width;

    *turned = from;
    if (p->images == 1)
        return OAR_OK;
    *made = oari_tensor_make_on(c->pool, c->y->device, c->y->dtype,
                                OAR_SHAPE(c->out * p->images * results));
    if (*made == NULL)
        return oar_last_error()->status;
    *turned = oari_array_of(*made);
    to = array_over(
        turned, 0, FOUR(p->images, c->groups, out, results),
        FOUR(results, out * p->images * results, p->images * results, 1));
    *turned =
        array_over(turned, 0, FOUR(1, c->groups, out, p->images * results),
                   FOUR(0, out * p->images * results, p->images * results, 1));
    return oari_cuda_copy(&to, &from);
}

static oar_status weight_piece(const oari_conv *c, const piece *p,
                               const oar_tensor *scratch, int add)
{
    oari_array to = weights_of(c, c->weight, 0), a;
    oari_array columns = columns_of(c, p, scratch), b = columns;
    int64_t results = p->images * p->rows * c->window.out_width;
    oar_tensor *made = NULL;
    oar_status status = fill_columns(c, p, &columns);

    if (status == OAR_OK)
        status = turn_results(c, p, &a, &made);
    if (status == OAR_OK) {
        b.at.shape = OAR_SHAPE(1, c->groups, results, depth_of(c));
        b.at.stride[0] = 0;
        b.at.stride[2] = 1;
        b.at.stride[3] = results;
        status = oari_cuda_matmul(c->pool, &to,
                                  add || p->image > 0 || p->first > 0, &a, &b);
    }
    oari_tensor_drop(c->pool, made);
    return status;
}

oar_status oari_cuda_conv_back_weight(const oari_conv *c, int add)
{
    piece p = largest_piece(c, (int64_t)oar_dtype_size(c->x->dtype));
    int whole = p.images >= c->images && p.rows >= c->window.out_height;

    if (oari_shape_count(c->y->at.shape) == 0)
        return add ? OAR_OK : oari_cuda_fill(c->weight, 0);
    if (whole || !oari_dtype_is_half(c->weight->dtype))
        return each_piece(c, c->x->dtype, 1, weight_piece, add);
    return add_in_f32(c, c->weight, weight_piece, add);
}

oar_status oari_cuda_sum_channels(const oari_array *to, int add,
                                  const oari_array *a)
{
    oari_array each = *to;

    each.at.shape = OAR_SHAPE(1, to->at.shape.dim[0], 1, 1);
    each.at.shape.ndim = a->at.shape.ndim;
    each.at.stride[1] = to->at.stride[0];
    each.at.stride[0] = each.at.stride[2] = each.at.stride[3] = 0;
    return oari_cuda_sum_to(NULL, &each, add, a);
}

/* ---- pools --------------------------------------------------------------- */

enum { POOL_THREADS = 256 };

static oar_status start_pool(oari_float_kernels *kernels, const oari_array *to,
                             const oari_array *pick, oari_window_job *job)
{
    job->pick = oari_data_of(pick);
    set_divisors(job);
    return oari_start_float(kernels, to,
                            oari_blocks_for(job->count, POOL_THREADS),
                            POOL_THREADS, 0, job);
}

static oar_status run_pool(oari_pool_kind kind, const oari_array *to,
                           const oari_array *pick, const oari_array *x,
                           const oari_window *w)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("windows", "oari_pool_windows");
    oari_window_job job = make_job(w, to, x);

    job.kind = (int)kind;
    return start_pool(&kernels, to, pick, &job);
}

static oar_status run_pool_back(oari_pool_kind kind, const oari_array *to,
                                int add, const oari_array *grad,
                                const oari_array *pick, const oari_window *w)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("windows", "oari_pool_windows_back");
    oari_window_job job = make_job(w, to, grad);

    job.kind = (int)kind;
    job.add = add;
    return start_pool(&kernels, to, pick, &job);
}

oar_status oari_cuda_max_pool(const oari_array *to, const oari_array *pick,
                              const oari_array *x, const oari_window *w)
{
    return run_pool(OARI_POOL_MAX, to, pick, x, w);
}

oar_status oari_cuda_max_pool_back(const oari_array *to, int add,
                                   const oari_array *grad,
                                   const oari_array *pick, const oari_window *w)
{
    return run_pool_back(OARI_POOL_MAX, to, add, grad, pick, w);
}

oar_status oari_cuda_avg_pool(const oari_array *to, const oari_array *x,
                              const oari_window *w)
{
    return run_pool(OARI_POOL_AVG, to, NULL, x, w);
}

oar_status oari_cuda_avg_pool_back(const oari_array *to, int add,
                                   const oari_array *grad, const oari_window *w)
{
    return run_pool_back(OARI_POOL_AVG, to, add, grad, NULL, w);
}

oar_status oari_cuda_adaptive_avg_pool(const oari_array *to,
                                       const oari_array *x,
                                       const oari_window *w)
{
    return run_pool(OARI_POOL_COVER, to, NULL, x, w);
}

oar_status oari_cuda_adaptive_avg_pool_back(const oari_array *to, int add,
                                            const oari_array *grad,
                                            const oari_window *w)
{
    return run_pool_back(OARI_POOL_COVER, to, add, grad, NULL, w);
}
