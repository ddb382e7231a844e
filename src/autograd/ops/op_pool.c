/* SPDX-License-Identifier: Apache-2.0 */
/* op_pool: the largest or the mean under windows of the last two dims. */
#include <limits.h>

#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/ops/windows.h"
#include "base/status.h"
#include "tensor/cpu/nn/conv.h"
#include "tensor/operands.h"

static oari_window window_of(const oari_extra *e, oar_shape x)
{
    oari_window w = { 0 };

    for (int i = 0; i < 2; i++) {
        w.kernel[i] = e->window.kernel[i];
        w.stride[i] = e->window.stride[i];
        w.padding[i] = e->window.padding[i];
        w.dilation[i] = 1;
    }
    oari_window_fit(&w, x.dim[2], x.dim[3]);
    return w;
}

/* ---- backward ------------------------------------------------------------ */

/* saved: which were largest, for max. */
static oar_status pool_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_window w = window_of(&node->extra, to->at.shape);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    oari_array pick;

    if (node->saved[0] != NULL)
        pick = oari_array_of(node->saved[0]);
    if (operands.status == OAR_OK)
        operands.status =
            node->saved[0] != NULL
                ? OARI_KERNEL(y, max_pool_back, y, add, g, &pick, &w)
                : OARI_KERNEL(y, avg_pool_back, y, add, g, &w);
    return oari_operands_finish(&operands);
}

static const oari_op_class max_pool2d_op = { .name = "max_pool2d",
                                             .backward = pool_back };
static const oari_op_class avg_pool2d_op = { .name = "avg_pool2d",
                                             .backward = pool_back };

/* ---- checks -------------------------------------------------------------- */

static oar_status pool_mismatch(const char *name, int height, int width,
                                const oar_pool2d_opts *o, const char *why)
{
    return oari_fail(OAR_E_ARG,
                     "%s with window [%d, %d], stride [%d, %d], padding "
                     "[%d, %d]: %s",
                     name, height, width,
                     o->stride[0] != 0 ? o->stride[0] : height,
                     o->stride[1] != 0 ? o->stride[1] : width, o->padding[0],
                     o->padding[1], why);
}

oar_status oari_check_pool2d_opts(const char *name, int height, int width,
                                  const oar_pool2d_opts *opts)
{
    if (height < 1 || width < 1)
        return pool_mismatch(name, height, width, opts,
                             "the window is at least 1");
    if (opts->stride[0] < 0 || opts->stride[1] < 0 || opts->padding[0] < 0 ||
        opts->padding[1] < 0)
        return pool_mismatch(name, height, width, opts,
                             "stride and padding may not be negative");
    if (opts->padding[0] > height / 2 || opts->padding[1] > width / 2)
        return pool_mismatch(name, height, width, opts,
                             "the padding is at most half the window");
    return OAR_OK;
}

static oar_status check_pool(const char *name, oar_tape *tape, oar_tensor *x,
                             const oari_extra *e)
{
    oar_shape s = oar_tensor_shape(x);
    oari_window w;

    OARI_TRY(oari_check_inputs(name, tape, 1, &x));
    OARI_TRY(oari_check_float(name, x));
    if (s.ndim != 4)
        return oari_fail(OAR_E_SHAPE, "%s of %s: it is [n, c, h, w]", name,
                         oari_shape_text(s).text);
    w = window_of(e, s);
    if (w.out_height < 1 || w.out_width < 1 || s.dim[2] > INT_MAX / 2 ||
        s.dim[3] > INT_MAX / 2 || w.height * w.width > INT_MAX)
        return oari_fail(OAR_E_SHAPE,
                         "%s of %s with a window [%d, %d]: it does not fit",
                         name, oari_shape_text(s).text, e->window.kernel[0],
                         e->window.kernel[1]);
    return OAR_OK;
}

/* ---- forward ------------------------------------------------------------- */

static oar_status compute_pool(oari_pool *pool, const oar_tensor *out,
                               const oar_tensor *pick, const oar_tensor *x,
                               const oari_window *w)
{
    oari_array to = oari_array_of(out);
    oari_operands operands = { .pool = pool };
    const oari_array *a = oari_operands_tensor(&operands, x);
    const oari_array *y = oari_operands_out(&operands, &to, 0);

    oari_array place;

    if (pick != NULL)
        place = oari_array_of(pick);
    if (operands.status == OAR_OK)
        operands.status = pick != NULL
                              ? OARI_KERNEL(y, max_pool, y, &place, a, w)
                              : OARI_KERNEL(y, avg_pool, y, a, w);
    return oari_operands_finish(&operands);
}

/* The result, not yet recorded; *pick is made for max. */
static oar_tensor *make_pooled(oari_pool *pool, oar_tensor *x,
                               const oari_window *w, int is_max,
                               oar_tensor **pick)
{
    oar_shape shape = OAR_SHAPE(x->at.shape.dim[0], x->at.shape.dim[1],
                                w->out_height, w->out_width);
    oar_device device = oari_device_of(x);
    oar_tensor *out;

    *pick = is_max ? oari_tensor_make_on(pool, device, OAR_I32, shape) : NULL;
    if (is_max && *pick == NULL)
        return NULL;
    out = oari_tensor_make_on(pool, device, x->dtype, shape);
    if (out == NULL || compute_pool(pool, out, *pick, x, w) == OAR_OK)
        return out;
    oari_tensor_drop(pool, out);
    return NULL;
}

static oar_tensor *pool2d(oar_tape *tape, oar_tensor *x, int height, int width,
                          const oar_pool2d_opts *opts, const oari_op_class *op)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_pool2d_opts o;
    oar_tensor *pick, *out;
    oari_extra e;
    oari_window w;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        oari_check_pool2d_opts(op->name, height, width, &o) != OAR_OK)
        return NULL;
    e = (oari_extra){ .window = {
                          .kernel = { height, width },
                          .stride = { o.stride[0] != 0 ? o.stride[0] : height,
                                      o.stride[1] != 0 ? o.stride[1] : width },
                          .padding = { o.padding[0], o.padding[1] } } };
    if (check_pool(op->name, tape, x, &e) != OAR_OK)
        return NULL;
    w = window_of(&e, x->at.shape);
    out = make_pooled(pool, x, &w, op == &max_pool2d_op, &pick);
    out = oari_emit(tape, out,
                    &(oari_node_record){ .op = op,
                                         .inputs = 1,
                                         .input = { x },
                                         .saved = { pick },
                                         .extra = e });
    oari_tensor_drop(pool, pick);
    return out;
}

oar_tensor *oar_max_pool2d(oar_tape *tape, oar_tensor *x, int height, int width,
                           const oar_pool2d_opts *opts)
{
    return pool2d(tape, x, height, width, opts, &max_pool2d_op);
}

oar_tensor *oar_avg_pool2d(oar_tape *tape, oar_tensor *x, int height, int width,
                           const oar_pool2d_opts *opts)
{
    return pool2d(tape, x, height, width, opts, &avg_pool2d_op);
}
