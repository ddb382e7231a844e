/* SPDX-License-Identifier: Apache-2.0 */
/* op_linear_entropy: the cross entropy of a linear layer without all its logits
 * in memory: rows come in pieces, and each piece gives its loss and, in place
 * of its logits, their gradient, from which the gradients of x and of the
 * weight are made at once. Backward only multiplies them. */
#include "autograd/ops/loss.h"
#include "base/status.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/operands.h"

enum { X, WEIGHT }; /* inputs; what is saved is their gradients */

enum {
    TILE = 128,           /* rows of whole tiles of a product */
    CPU_LOGITS = 1 << 20, /* in a piece: what a cache holds */
    GPU_LOGITS = 1 << 29  /* a gigabyte of halves */
};

static const char *const name = "linear_cross_entropy";

static oar_status linear_entropy_back(oari_node *node, int i,
                                      const oari_array *to, int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array from = oari_array_of(node->saved[i]), grad, part = from;

    if (to->device.kind != OAR_CUDA)
        return OARI_KERNEL(to, scale, to, add, &from, oari_grad_number(node));
    if (from.dtype != to->dtype) {
        part.dtype = to->dtype;
        part.data = oari_operands_scratch(&operands, to->device, to->dtype,
                                          node->saved[i]->count);
        part.at.offset = 0;
        part.device = to->device;
        if (operands.status == OAR_OK)
            operands.status = OARI_KERNEL(&part, copy, &part, &from);
    }
    grad = oari_array_of(node->grad);
    grad.at = oari_layout_expand(&grad.at, to->at.shape);
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(to, binary_back, OARI_MUL, 0, to, add,
                                      &part, &part, &grad);
    return oari_operands_finish(&operands);
}

static const oari_op_class linear_entropy_op = { .name = "linear_cross_entropy",
                                                 .backward =
                                                     linear_entropy_back };

/* ---- pieces -------------------------------------------------------------- */

/* What is computed. dx and dweight may be NULL. */
typedef struct job {
    oari_pool *pool;
    oari_array x, weight, target;  /* [rows, width], [classes, width], [rows] */
    oar_tensor *logits;            /* of a piece */
    oar_tensor *lse, *loss, *sums; /* loss and sums on a GPU only */
    oar_tensor *dx, *dweight;
    oari_entropy_rule rule;
    int64_t rows, width, classes;
    double divisor, total; /* on the cpu */
    int by_weight;
} job;

static oari_array rows_from(oari_array a, int64_t first, int64_t count)
{
    a.at.offset += first * a.at.stride[0];
    a.at.shape.dim[0] = count;
    return a;
}

static oari_array turned(oari_array a)
{
    a.at = oari_layout_transpose(a.at, 0, 1);
    return a;
}

/* The losses of a piece's rows and, in place of its logits, their gradient. */
static oar_status enter_piece_gpu(job *j, const oari_array *logits,
                                  int64_t first, int64_t count)
{
    oari_array target = rows_from(j->target, first, count);
    oari_array lse = rows_from(oari_array_of(j->lse), first, count);
    oari_array loss = rows_from(oari_array_of(j->loss), first, count);
    oari_array sums = oari_array_of(j->sums);
    oari_cuda_entropy e = { .logits = logits,
                            .target = &target,
                            .lse = &lse,
                            .sums = &sums,
                            .rule = &j->rule,
                            .by_weight = j->by_weight };

    return oari_cuda_cross_entropy(&e, &loss, logits);
}

static oar_status enter_piece_cpu(job *j, const oari_array *logits,
                                  int64_t first, int64_t count)
{
    oari_array target = rows_from(j->target, first, count);
    oari_array lse = rows_from(oari_array_of(j->lse), first, count);
    oari_operands operands = { .pool = j->pool };
    const oari_array *y = oari_operands_out(&operands, logits, 1);

    if (operands.status == OAR_OK) {
        j->total += oari_cross_entropy(NULL, &lse, y, &target, &j->rule).loss;
        oari_cross_entropy_back(y, 0, 1 / j->divisor, NULL, &lse, y, &target,
                                &j->rule);
    }
    return oari_operands_finish(&operands);
}

static oar_status run_piece(job *j, int64_t first, int64_t count)
{
    oari_array logits = rows_from(oari_array_of(j->logits), 0, count);
    oari_array x = rows_from(j->x, first, count), w = turned(j->weight), to, g;

    OARI_TRY(OARI_KERNEL(&logits, matmul, j->pool, &logits, 0, &x, &w));
    OARI_TRY(logits.device.kind == OAR_CUDA
                 ? enter_piece_gpu(j, &logits, first, count)
                 : enter_piece_cpu(j, &logits, first, count));
    if (j->dx != NULL) {
        to = rows_from(oari_array_of(j->dx), first, count);
        OARI_TRY(
            OARI_KERNEL(&to, matmul, j->pool, &to, 0, &logits, &j->weight));
    }
    if (j->dweight == NULL)
        return OAR_OK;
    to = oari_array_of(j->dweight);
    g = turned(logits);
    return OARI_KERNEL(&to, matmul, j->pool, &to, first > 0, &g, &x);
}

/* The weights of all targets: what a mean is divided by. */
static oar_status weigh_targets(job *j)
{
    oari_array logits = oari_array_of(j->logits), sums;
    const int64_t *t = oari_array_data(&j->target);
    oari_cuda_entropy e = { .logits = &logits,
                            .target = &j->target,
                            .rule = &j->rule };

    j->divisor = 1;
    if (!j->by_weight)
        return OAR_OK;
    if (logits.device.kind == OAR_CUDA) {
        sums = oari_array_of(j->sums);
        e.sums = &sums;
        return oari_cuda_entropy_total(&e, NULL, NULL);
    }
    j->divisor = 0;
    for (int64_t i = 0; i < j->rows; i++)
        j->divisor += !j->rule.has_ignore ||
                      t[i * j->target.at.stride[0]] != j->rule.ignore;
    return OAR_OK;
}

static oar_status run_all(job *j, oar_tensor *out)
{
    int64_t piece = j->logits->at.shape.dim[0];
    oari_array to = oari_array_of(out), logits = oari_array_of(j->logits);
    oari_array loss, sums;
    oari_cuda_entropy e = { .logits = &logits,
                            .target = &j->target,
                            .rule = &j->rule,
                            .by_weight = j->by_weight };

    OARI_TRY(weigh_targets(j));
    for (int64_t first = 0; first < j->rows; first += piece)
        OARI_TRY(run_piece(j, first,
                           j->rows - first < piece ? j->rows - first : piece));
    if (to.device.kind != OAR_CUDA)
        return OARI_KERNEL(&to, fill, &to, j->total / j->divisor);
    loss = oari_array_of(j->loss);
    sums = oari_array_of(j->sums);
    e.sums = &sums;
    return oari_cuda_entropy_total(&e, &to, &loss);
}

/* ---- checking and recording ---------------------------------------------- */

static oar_status check_targets(const oar_tensor *target,
                                const oar_cross_entropy_opts *o,
                                int64_t classes)
{
    const int64_t *t;

    if (oari_device_of(target).kind == OAR_CUDA)
        return OAR_OK; /* the kernel checks them */
    t = oar_tensor_const_data(target);
    for (int64_t i = 0; i < target->count; i++) {
        int64_t chosen = t[i * target->at.stride[0]];

        if ((o->has_ignore && chosen == o->ignore) ||
            (chosen >= 0 && chosen < classes))
            continue;
        return oari_fail(OAR_E_ARG,
                         "%s with %lld classes: target %lld of row %lld is no "
                         "class",
                         name, (long long)classes, (long long)chosen,
                         (long long)i);
    }
    return OAR_OK;
}

static oar_status check_all(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                            oar_tensor *target, const oar_cross_entropy_opts *o)
{
    oar_shape xs = oar_tensor_shape(x), ws = oar_tensor_shape(weight);
    oar_shape ts = oar_tensor_shape(target);

    OARI_TRY(oari_check_inputs(name, tape, 3,
                               (oar_tensor *[]){ x, weight, target }));
    OARI_TRY(oari_check_float(name, x));
    OARI_TRY(oari_check_same_dtype(name, x, weight));
    if (target->dtype != OAR_I64)
        return oari_fail(OAR_E_DTYPE, "%s of a target in %s: it is i64", name,
                         oar_dtype_name(target->dtype));
    if (xs.ndim != 2 || ws.ndim != 2 || ts.ndim != 1 ||
        xs.dim[1] != ws.dim[1] || xs.dim[0] != ts.dim[0])
        return oari_fail(OAR_E_SHAPE,
                         "%s of %s, weight %s and target %s: they are [rows, "
                         "width], [classes, width] and [rows]",
                         name, oari_shape_text(xs).text,
                         oari_shape_text(ws).text, oari_shape_text(ts).text);
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1) ||
        (o->reduction != OAR_LOSS_MEAN && o->reduction != OAR_LOSS_SUM) ||
        o->weight != NULL)
        return oari_fail(OAR_E_ARG,
                         "%s of %s: label_smoothing is from 0 to 1, the "
                         "reduction a mean or a sum, and classes have no "
                         "weights",
                         name, oari_shape_text(xs).text);
    return check_targets(target, o, ws.dim[0]);
}

static int64_t piece_rows(oar_device device, int64_t rows, int64_t classes)
{
    int64_t most = (device.kind == OAR_CUDA ? GPU_LOGITS : CPU_LOGITS) /
                   (classes > 0 ? classes : 1);

    most = most < 16 ? 16 : most;
    if (rows <= most || device.kind != OAR_CUDA)
        return rows < most ? rows : most;
    /* Pieces of one size are one kind of product to measure. */
    for (int64_t n = (rows + most - 1) / most; n <= 2 * (rows / most); n++)
        if (rows % (n * TILE) == 0)
            return rows / n;
    return most / TILE * TILE > 0 ? most / TILE * TILE : most;
}

/* Makes all that a job needs. */
static oar_status open_job(job *j, oar_tape *tape, oar_tensor *x,
                           oar_tensor *weight)
{
    oar_device device = oari_device_of(x);
    oar_dtype work = oari_work_dtype(x->dtype);
    oar_shape rows = OAR_SHAPE(j->rows);

    j->logits = oari_tensor_make_on(
        j->pool, device, x->dtype,
        OAR_SHAPE(piece_rows(device, j->rows, j->classes), j->classes));
    j->lse = oari_tensor_make_on(j->pool, device, work, rows);
    if (j->logits == NULL || j->lse == NULL)
        return OAR_E_NOMEM;
    if (device.kind == OAR_CUDA) {
        j->loss = oari_tensor_make_on(j->pool, device, work, rows);
        j->sums = oari_tensor_make_on(j->pool, device, OAR_F64, OAR_SHAPE(2));
        if (j->loss == NULL || j->sums == NULL)
            return OAR_E_NOMEM;
    }
    if (oari_grad_wanted(tape, x)) {
        j->dx = oari_tensor_make_on(j->pool, device, x->dtype, x->at.shape);
        if (j->dx == NULL)
            return OAR_E_NOMEM;
    }
    if (oari_grad_wanted(tape, weight)) {
        j->dweight =
            oari_tensor_make_on(j->pool, device, work, weight->at.shape);
        if (j->dweight == NULL)
            return OAR_E_NOMEM;
    }
    return OAR_OK;
}

static void close_job(job *j)
{
    oari_tensor_drop(j->pool, j->logits);
    oari_tensor_drop(j->pool, j->lse);
    oari_tensor_drop(j->pool, j->loss);
    oari_tensor_drop(j->pool, j->sums);
    oari_tensor_drop(j->pool, j->dx);
    oari_tensor_drop(j->pool, j->dweight);
}

oar_tensor *oar_linear_cross_entropy(oar_tape *tape, oar_tensor *x,
                                     oar_tensor *weight, oar_tensor *target,
                                     const oar_cross_entropy_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_cross_entropy_opts o;
    oar_tensor *out = NULL;
    oar_status status;
    job j = { .pool = pool };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        check_all(tape, x, weight, target, &o) != OAR_OK)
        return NULL;
    j.x = oari_array_of(x);
    j.weight = oari_array_of(weight);
    j.target = oari_array_of(target);
    j.rows = x->at.shape.dim[0];
    j.width = x->at.shape.dim[1];
    j.classes = weight->at.shape.dim[0];
    j.by_weight = o.reduction == OAR_LOSS_MEAN;
    j.rule =
        (oari_entropy_rule){ o.has_ignore, o.ignore, o.label_smoothing, NULL };
    status = open_job(&j, tape, x, weight);
    if (status == OAR_OK)
        out =
            oari_tensor_make_on(pool, oari_device_of(x), x->dtype, OAR_SCALAR);
    if (out != NULL)
        out = oari_settle(pool, out, run_all(&j, out));
    out = oari_emit(tape, out,
                    &(oari_node_record){ .op = &linear_entropy_op,
                                         .inputs = 2,
                                         .input = { x, weight },
                                         .saved = { j.dx, j.dweight } });
    close_job(&j);
    return out;
}
