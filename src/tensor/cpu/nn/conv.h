/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/nn/conv.h: convolutions and pooling over the last two dims. All
 * arrays are row-major; on the cpu f32 or f64, of one dtype. */
#ifndef OARI_TENSOR_CPU_NN_CONV_H
#define OARI_TENSOR_CPU_NN_CONV_H

#include "tensor/tensor.h"

/* How windows of kernel[0] x kernel[1] go over planes of height x width and
 * give out_height x out_width results. */
typedef struct oari_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t height, width, out_height, out_width;
} oari_window;

/* Results along one side; 0 or less: the window does not fit. */
int64_t oari_window_count(int64_t size, int64_t kernel, int64_t stride,
                          int64_t padding, int64_t dilation);

/* [n, c, length] as [n, c, 1, length]; another shape as it is. */
oar_shape oari_planes_shape(oar_shape shape);

/* Fills in height, width and what follows from all the rest. */
void oari_window_fit(oari_window *w, int64_t height, int64_t width);

typedef struct oari_conv {
    oari_window window;
    int64_t images, in, out, groups; /* channels of all groups together */
    const oari_array *x;             /* [images, in, height, width] */
    const oari_array *weight;        /* [out, in / groups, kernel] */
    const oari_array *y;             /* [images, out, out_height, out_width]; in
                                 backward dy */
    oari_pool *pool;                 /* for columns */
} oari_conv;

/* y (+)= weight * x, plus bias [out] unless that is NULL. */
oar_status oari_conv_forward(const oari_conv *c, int add,
                             const oari_array *bias);
/* The gradient of x goes to c->x, that of weight to c->weight; add: to what is
 * there. */
oar_status oari_conv_back_input(const oari_conv *c, int add);
oar_status oari_conv_back_weight(const oari_conv *c, int add);
/* The transposed convolution: c->x becomes what the gradient of x would be if y
 * were that of the result, plus bias [in] unless that is NULL. Its gradients
 * are oari_conv_forward (that of y) and oari_conv_back_weight, with the
 * gradient of its result in c->x. */
oar_status oari_conv_transpose(const oari_conv *c, const oari_array *bias);

/* Planes [planes, height, width] to [planes, out_height, out_width]. pick, i32
 * of the shape of the results, gets the place in its plane of each largest, -1
 * where there is none. */
oar_status oari_max_pool(const oari_array *to, const oari_array *pick,
                         const oari_array *x, const oari_window *w);
oar_status oari_max_pool_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *pick,
                              const oari_window *w);
oar_status oari_avg_pool(const oari_array *to, const oari_array *x,
                         const oari_window *w);
oar_status oari_avg_pool_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_window *w);

/* The means of windows that cover a plane: window i of n goes from i size / n
 * to (i + 1) size / n, rounded outward. Only the sizes of w count. */
oar_status oari_adaptive_avg_pool(const oari_array *to, const oari_array *x,
                                  const oari_window *w);
oar_status oari_adaptive_avg_pool_back(const oari_array *to, int add,
                                       const oari_array *grad,
                                       const oari_window *w);

#endif
