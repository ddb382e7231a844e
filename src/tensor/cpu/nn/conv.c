/* SPDX-License-Identifier: Apache-2.0 */
/* conv: convolution as a product. The numbers under each window become a column
 * of a matrix, for as many windows at a time as stay in cache. Under windows of
 * one number, side by side, the planes are that matrix already. */
#include "tensor/cpu/nn/conv.h"

#include <string.h>

#include "base/status.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/gemm.h"

enum {
    CACHE_BYTES = 256 << 10, /* of columns at a time, in whole rows */
    ROW_BYTES = 2 << 20      /* a row with more is done in parts */
};

oar_shape oari_planes_shape(oar_shape shape)
{
    if (shape.ndim != 3)
        return shape;
    return OAR_SHAPE(shape.dim[0], shape.dim[1], 1, shape.dim[2]);
}

int64_t oari_window_count(int64_t size, int64_t kernel, int64_t stride,
                          int64_t padding, int64_t dilation)
{
    int64_t span = dilation * (kernel - 1) + 1;
    int64_t room = size + 2 * padding - span;

    return room < 0 ? 0 : room / stride + 1;
}

void oari_window_fit(oari_window *w, int64_t height, int64_t width)
{
    w->height = height;
    w->width = width;
    w->out_height = oari_window_count(height, w->kernel[0], w->stride[0],
                                      w->padding[0], w->dilation[0]);
    w->out_width = oari_window_count(width, w->kernel[1], w->stride[1],
                                     w->padding[1], w->dilation[1]);
}

static int64_t bytes_of(const oari_conv *c)
{
    return c->x->dtype == OAR_F32 ? 4 : 8;
}

/* Numbers under one window, of the channels of one group. */
static int64_t depth_of(const oari_conv *c)
{
    return c->in / c->groups * c->window.kernel[0] * c->window.kernel[1];
}

/* Whether every number is a window of its own. */
static int is_pointwise(const oari_conv *c)
{
    const oari_window *w = &c->window;

    return w->kernel[0] == 1 && w->kernel[1] == 1 && w->stride[0] == 1 &&
           w->stride[1] == 1 && w->padding[0] == 0 && w->padding[1] == 0 &&
           w->out_height == w->height && w->out_width == w->width;
}

/* Whole rows of results that are done at a time. */
static int64_t rows_at_once(const oari_conv *c)
{
    int64_t row = depth_of(c) * c->window.out_width * bytes_of(c);
    int64_t rows = row > 0 ? CACHE_BYTES / row : c->window.out_height;

    if (is_pointwise(c))
        return c->window.out_height; /* nothing is copied */
    if (rows < 1)
        rows = 1;
    return rows < c->window.out_height ? rows : c->window.out_height;
}

/* Results of a row that are done at a time. */
static int64_t results_at_once(const oari_conv *c)
{
    int64_t width = c->window.out_width, column = depth_of(c) * bytes_of(c);

    if (is_pointwise(c) || column == 0 || width <= ROW_BYTES / column)
        return width;
    return ROW_BYTES > column ? ROW_BYTES / column : 1;
}

/* Some rows of the results of one group of one image: `wide` results of each
 * from `left` on. They are not all of a row only if there is one row. */
typedef struct piece {
    int64_t image, group, first, rows, left, wide;
    void *columns; /* room for the matrix, unless the planes are that */
} piece;

static void *element_at(const oari_array *a, int64_t element)
{
    return (char *)oari_array_data(a) +
           element * (int64_t)oar_dtype_size(a->dtype);
}

/* The planes of the piece's group. */
static void *planes(const oari_conv *c, const piece *p)
{
    int64_t plane = c->window.height * c->window.width;

    return element_at(
        c->x, (p->image * c->in + p->group * (c->in / c->groups)) * plane);
}

static void *results(const oari_conv *c, const piece *p)
{
    int64_t plane = c->window.out_height * c->window.out_width;
    int64_t channel = p->image * c->out + p->group * (c->out / c->groups);

    return element_at(c->y, channel * plane + p->first * c->window.out_width +
                                p->left);
}

static void *weights(const oari_conv *c, const piece *p)
{
    return element_at(c->weight, p->group * (c->out / c->groups) * depth_of(c));
}

/* Of `wide` results the [from, to) whose window's column lies inside the plane,
 * if that of the first is `offset`. */
static void inside(const oari_window *w, int64_t wide, int64_t offset,
                   int64_t *from, int64_t *to)
{
    int64_t step = w->stride[1];

    *from = offset < 0 ? (-offset + step - 1) / step : 0;
    *to = w->width > offset ? (w->width - offset + step - 1) / step : 0;
    if (*from > wide)
        *from = wide;
    if (*to > wide)
        *to = wide;
    if (*to < *from)
        *to = *from;
}

/* Runs body for each row of the matrix and each row of results in it, with
 * `line`, the row of the plane it comes from, or NULL in the padding; `offset`,
 * the column of the first window; and `column`, the place in the matrix. */
#define EACH_LINE(c, p, data, matrix, body)                                    \
    do {                                                                       \
        const oari_window *w = &(c)->window;                                   \
        int64_t wide_ = (p)->rows * (p)->wide;                                 \
        int64_t taps_ = w->kernel[0] * w->kernel[1];                           \
        for (int64_t d_ = 0; d_ < depth_of(c); d_++) {                         \
            int64_t ky_ = d_ % taps_ / w->kernel[1] * w->dilation[0];          \
            int64_t kx_ = d_ % w->kernel[1] * w->dilation[1];                  \
            T *plane_ = (T *)(data) + d_ / taps_ * w->height * w->width;       \
            int64_t offset = (p)->left * w->stride[1] + kx_ - w->padding[1];   \
            int64_t from;                                                      \
            int64_t to;                                                        \
            inside(w, (p)->wide, offset, &from, &to);                          \
            for (int64_t r_ = 0; r_ < (p)->rows; r_++) {                       \
                int64_t y_ =                                                   \
                    ((p)->first + r_) * w->stride[0] + ky_ - w->padding[0];    \
                T *line =                                                      \
                    y_ >= 0 && y_ < w->height ? plane_ + y_ * w->width : NULL; \
                T *column = (T *)(matrix) + d_ * wide_ + r_ * (p)->wide;       \
                body                                                           \
            }                                                                  \
        }                                                                      \
    } while (0)

static void fill_columns(const oari_conv *c, const piece *p)
{
    OARI_BY_FLOAT(c->x->dtype, {
        EACH_LINE(c, p, planes(c, p), p->columns, {
            int64_t first = line != NULL ? from : p->wide;
            int64_t end = line != NULL ? to : p->wide;
            for (int64_t k = 0; k < first; k++)
                column[k] = 0;
            if (w->stride[1] == 1 && end > first)
                memcpy(column + first, line + first + offset,
                       (size_t)(end - first) * sizeof(T));
            else
                for (int64_t k = first; k < end; k++)
                    column[k] = line[k * w->stride[1] + offset];
            for (int64_t k = end; k < p->wide; k++)
                column[k] = 0;
        });
    })
}

/* The matrix of the piece's columns. */
static oari_matrix columns(const oari_conv *c, const piece *p)
{
    if (is_pointwise(c))
        return (oari_matrix){ planes(c, p), c->window.height * c->window.width,
                              0 };
    fill_columns(c, p);
    return (oari_matrix){ p->columns, p->rows * p->wide, 0 };
}

static void add_columns(const oari_conv *c, const piece *p)
{
    OARI_BY_FLOAT(c->x->dtype, {
        EACH_LINE(c, p, planes(c, p), p->columns, {
            if (line == NULL)
                continue;
            for (int64_t k = from; k < to; k++)
                line[k * w->stride[1] + offset] += column[k];
        });
    })
}

/* What is done with one piece: its result is stored, or added if `add`. */
typedef void piece_fn(const oari_conv *c, const piece *p, int add);

static oar_status each_piece(const oari_conv *c, piece_fn *fn, int add)
{
    int64_t rows = rows_at_once(c), wide = results_at_once(c);
    int64_t height = c->window.out_height, width = c->window.out_width;
    oar_tensor *columns = NULL;
    piece p = { .columns = NULL };

    if (!is_pointwise(c)) {
        columns = oari_tensor_make(c->pool, c->x->dtype,
                                   OAR_SHAPE(depth_of(c) * rows * wide));
        if (columns == NULL)
            return OAR_E_NOMEM;
        p.columns = columns->storage->data;
    }
    for (p.image = 0; p.image < c->images; p.image++)
        for (p.group = 0; p.group < c->groups; p.group++)
            for (p.first = 0; p.first < height; p.first += rows)
                for (p.left = 0; p.left < width; p.left += wide) {
                    p.rows = height - p.first < rows ? height - p.first : rows;
                    p.wide = width - p.left < wide ? width - p.left : wide;
                    fn(c, &p, add);
                }
    oari_tensor_drop(c->pool, columns);
    return OAR_OK;
}

/* ---- forward ------------------------------------------------------------- */

static void multiply_columns(const oari_conv *c, const piece *p, int add)
{
    oari_gemm(
        &(oari_gemm_job){ .dtype = c->x->dtype,
                          .m = c->out / c->groups,
                          .n = p->rows * p->wide,
                          .k = depth_of(c),
                          .factor = 1,
                          .a = { weights(c, p), depth_of(c), 0 },
                          .b = columns(c, p),
                          .c = results(c, p),
                          .lead = c->window.out_height * c->window.out_width,
                          .add = add });
}

/* Adds bias [channels] to the planes of all images. */
static void add_bias(const oari_conv *c, const oari_array *to, int64_t channels,
                     int64_t plane, const oari_array *bias){
    OARI_BY_FLOAT(to->dtype,
                  {
                      const T *b = oari_array_data(bias);
                      T *y = oari_array_data(to);
                      for (int64_t i = 0; i < c->images * channels;
                           i++, y += plane) {
                          const T offset = b[i % channels];
                          for (int64_t k = 0; k < plane; k++)
                              y[k] += offset;
                      }
                  })
}

oar_status
    oari_conv_forward(const oari_conv *c, int add, const oari_array *bias)
{
    OARI_TRY(each_piece(c, multiply_columns, add));
    if (bias != NULL)
        add_bias(c, c->y, c->out, c->window.out_height * c->window.out_width,
                 bias);
    return OAR_OK;
}

/* ---- backward ------------------------------------------------------------ */

/* The gradient of the columns: that of the planes themselves if a column is one
 * number, else it is summed there. */
static void input_piece(const oari_conv *c, const piece *p, int add)
{
    int direct = is_pointwise(c);

    oari_gemm(&(oari_gemm_job){
        .dtype = c->x->dtype,
        .m = depth_of(c),
        .n = p->rows * p->wide,
        .k = c->out / c->groups,
        .factor = 1,
        .a = { weights(c, p), depth_of(c), 1 },
        .b = { results(c, p), c->window.out_height * c->window.out_width, 0 },
        .c = direct ? planes(c, p) : p->columns,
        .lead = direct ? c->window.height * c->window.width : p->rows * p->wide,
        .add = direct && add });
    if (!direct)
        add_columns(c, p);
}

oar_status oari_conv_back_input(const oari_conv *c, int add)
{
    int64_t count = c->images * c->in * c->window.height * c->window.width;

    if (!add && !is_pointwise(c))
        memset(oari_array_data(c->x), 0, (size_t)(count * bytes_of(c)));
    return each_piece(c, input_piece, add);
}

/* Pieces are summed, so the result has been cleared if it is to be stored. */
static void weight_piece(const oari_conv *c, const piece *p, int add)
{
    oari_matrix turned = columns(c, p);

    turned.turned = 1;
    oari_gemm(&(oari_gemm_job){
        .dtype = c->x->dtype,
        .m = c->out / c->groups,
        .n = depth_of(c),
        .k = p->rows * p->wide,
        .factor = 1,
        .a = { results(c, p), c->window.out_height * c->window.out_width, 0 },
        .b = turned,
        .c = weights(c, p),
        .lead = depth_of(c),
        .add = 1 });
}

oar_status oari_conv_back_weight(const oari_conv *c, int add)
{
    if (!add)
        memset(oari_array_data(c->weight), 0,
               (size_t)(c->out * depth_of(c) * bytes_of(c)));
    return each_piece(c, weight_piece, add);
}

oar_status oari_conv_transpose(const oari_conv *c, const oari_array *bias)
{
    OARI_TRY(oari_conv_back_input(c, 0));
    if (bias != NULL)
        add_bias(c, c->x, c->in, c->window.height * c->window.width, bias);
    return OAR_OK;
}
