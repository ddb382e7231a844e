/* SPDX-License-Identifier: Apache-2.0 */
/* optim_gpu: parameters that take the same step (of one group, with the same
 * number of steps behind them) share their factors, and are moved by one launch
 * or, if they are very many, a few. */
#include "optim/optim_gpu.h"

#include <math.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda/cuda_replay.h"
#include "device/cuda/cuda_trace.h"
#include "device/cuda/index_error.h"
#include "tensor/cuda/cuda_step.h"
#include "tensor/tensor.h"

static const oar_device cpu = { OAR_CPU, 0 };

/* ---- where things are ---------------------------------------------------- */

static oar_status move_state(const oari_optim_param *p, oar_tensor *state)
{
    oar_device to = oar_tensor_device(p->tensor);
    oar_tensor *moved;
    oar_status status;

    if (state == NULL || !oari_tensor_attached(p->tensor) ||
        oari_device_equal(oar_tensor_device(state), to))
        return OAR_OK;
    moved = oar_to(NULL, state, to);
    if (moved == NULL)
        return oar_last_error()->status;
    status = oar_tensor_rebase(state, moved->storage, 0, state->dtype);
    oar_tensor_release(moved);
    return status;
}

/* Finds the one GPU that parameters are on; *device is the cpu if none is. */
static oar_status find_device(const oar_optim *optim, oar_device *device)
{
    *device = cpu;
    for (int i = 0; i < optim->params; i++) {
        oar_device at = oar_tensor_device(optim->param[i].tensor);

        if (!oari_is_gpu(at))
            continue;
        if (oari_is_gpu(*device) && !oari_device_equal(*device, at))
            return oari_fail(OAR_E_DEVICE,
                             "%s with parameters on %s and %s: one GPU for "
                             "each optimizer",
                             optim->kind->step_name,
                             oar_device_text(*device).text,
                             oar_device_text(at).text);
        *device = at;
    }
    return OAR_OK;
}

/* ---- room ---------------------------------------------------------------- */

/* Parts of the memory: factors of each parameter at most, the norm, the factor
 * that clips and the number of skipped steps, and the sums of blocks. */
enum { NORM, FACTOR, SKIPPED, NUMBERS };

static oari_step_factors *factors_in(const struct oari_optim_gpu *g)
{
    return g->memory;
}

static double *numbers_in(const struct oari_optim_gpu *g)
{
    return (double *)(void *)(factors_in(g) + g->room);
}

static double *partial_in(const struct oari_optim_gpu *g)
{
    return numbers_in(g) + NUMBERS;
}

static int64_t count_blocks(const oar_optim *optim)
{
    int64_t blocks = 0;

    for (int i = 0; i < optim->params; i++)
        blocks +=
            oar_tensor_count(optim->param[i].tensor) / OARI_STEP_SHARE + 1;
    return blocks;
}

static oar_status clear_skipped(const struct oari_optim_gpu *g)
{
    oar_span span = oar_span_of(numbers_in(g) + SKIPPED, 1, OAR_F64);

    span.device = g->device;
    return oar_device_fill(span, 0, oar_stream_current(g->device));
}

/* A parameter that had no gradient in a step that was skipped has one step less
 * than it should have: it is at least 0. */
void oari_optim_gpu_settle(oar_optim *optim)
{
    struct oari_optim_gpu *g = optim->gpu;
    double skipped = 0;

    if (g == NULL || !g->scaled ||
        oar_device_copy(&skipped, cpu, numbers_in(g) + SKIPPED, g->device,
                        sizeof skipped,
                        oar_stream_current(g->device)) != OAR_OK ||
        clear_skipped(g) != OAR_OK)
        return;
    optim->steps -= (int64_t)skipped;
    for (int i = 0; i < optim->params; i++) {
        int64_t *steps = &optim->param[i].steps;

        *steps = *steps > (int64_t)skipped ? *steps - (int64_t)skipped : 0;
    }
}

void oari_optim_gpu_close(oar_optim *optim)
{
    struct oari_optim_gpu *g = optim->gpu;

    if (g == NULL)
        return;
    if (g->memory != NULL)
        oar_device_free(g->device, g->memory, oar_stream_current(g->device));
    oari_free(g->list);
    oari_free(g->index);
    oari_free(g->done);
    oari_free(g);
    optim->gpu = NULL;
}

static oar_status make_room(oar_optim *optim, oar_device device)
{
    size_t bytes = (size_t)optim->params * sizeof(oari_step_factors) +
                   ((size_t)count_blocks(optim) + NUMBERS) * sizeof(double);
    struct oari_optim_gpu *g = optim->gpu;

    if (g != NULL && g->room >= optim->params && g->bytes >= bytes &&
        oari_device_equal(g->device, device))
        return OAR_OK;
    oari_optim_gpu_settle(optim);
    oari_optim_gpu_close(optim);
    g = oari_alloc(1, sizeof *g);
    if (g == NULL)
        return OAR_E_NOMEM;
    optim->gpu = g;
    g->device = device;
    g->room = optim->params;
    g->bytes = bytes;
    g->list = oari_alloc((size_t)g->room + 1, sizeof *g->list);
    g->index = oari_alloc((size_t)g->room + 1, sizeof *g->index);
    g->done = oari_alloc((size_t)g->room + 1, 1);
    if (g->list == NULL || g->index == NULL || g->done == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oar_device_alloc(device, bytes, &g->memory));
    return clear_skipped(g);
}

oar_status oari_optim_gpu_ready(oar_optim *optim)
{
    oar_device device;

    OARI_TRY(find_device(optim, &device));
    for (int i = 0; i < optim->params; i++)
        for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
            OARI_TRY(move_state(&optim->param[i], optim->param[i].state[k]));
    if (!oari_is_gpu(device))
        return OAR_OK;
    if (optim->on_move.first != NULL)
        return oari_fail(OAR_E_DEVICE,
                         "%s of parameters on %s with a hook of "
                         "oar_optim_on_move: it sees moves on the cpu only",
                         optim->kind->step_name, oar_device_text(device).text);
    OARI_TRY(oari_index_error(device.index));
    return make_room(optim, device);
}

/* ---- stepping ------------------------------------------------------------ */

static void *data_of(const oar_tensor *t)
{
    oari_array a;

    if (t == NULL)
        return NULL;
    a = oari_array_of(t);
    return oari_array_data(&a);
}

static oari_step_param entry_of(const oari_optim_param *p,
                                const oar_tensor *grad, int states)
{
    oari_step_param e = { .param = oari_array_of(p->tensor),
                          .grad = oari_array_of(grad),
                          .master = data_of(p->master) };

    for (int k = 0; k < states; k++)
        e.state[k] = data_of(p->state[k]);
    return e;
}

/* Lists parameters of the GPU with gradients, from `first` on, that have not
 * been moved and take the same step as that one (NULL: all). */
static int list_params(const oar_optim *optim, int first,
                       const oari_optim_param *like)
{
    struct oari_optim_gpu *g = optim->gpu;
    int count = 0;

    for (int i = first; i < optim->params; i++) {
        const oari_optim_param *p = &optim->param[i];
        const oar_tensor *grad = oar_tensor_grad(p->tensor);

        if (grad == NULL || g->done[i] ||
            !oari_is_gpu(oar_tensor_device(p->tensor)) ||
            (like != NULL &&
             (p->group != like->group || p->steps != like->steps)))
            continue;
        g->list[count] = entry_of(p, grad, oari_optim_states(optim));
        g->index[count++] = i;
    }
    return count;
}

static void count_moved(oar_optim *optim, int i)
{
    oari_optim_param *p = &optim->param[i];

    for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
        if (p->state[k] != NULL)
            p->state[k]->storage->version++;
    p->tensor->storage->version++;
    p->steps++;
    optim->gpu->done[i] = 1;
}

static oari_step_rule factors_of(const oar_optim *optim,
                                 const oari_optim_param *like,
                                 oari_step_factors *factors)
{
    const oari_optim_group *group = &optim->group[like->group];
    oari_step_rates pace = { .lr = optim->lr * group->lr_scale,
                             .decay = optim->weight_decay * group->decay_scale,
                             .step = like->steps + 1 };

    memset(factors, 0, sizeof *factors);
    return optim->kind->factors(optim, &pace, factors);
}

/* ---- steps that are replayed --------------------------------------------- */

/* The parameters of one call of oari_cuda_step. */
typedef struct replayed_row {
    oar_optim *optim;
    int is_first; /* of its step */
    int count;
    int index[];
} replayed_row;

/* Counts a step of the row, as the host would, and gives its factors. */
static void fill_factors(void *arg, void *to)
{
    const replayed_row *row = arg;
    oar_optim *optim = row->optim;

    factors_of(optim, &optim->param[row->index[0]], to);
    for (int k = 0; k < row->count; k++)
        count_moved(optim, row->index[k]);
    optim->steps += row->is_first;
}

static oar_status record_row(oar_optim *optim, const oari_step_factors *factors,
                             int is_first, int count, oari_step_factors **room)
{
    replayed_row *row =
        oari_alloc(1, sizeof *row + (size_t)count * sizeof *row->index);

    if (row == NULL)
        return OAR_E_NOMEM;
    row->optim = optim;
    row->is_first = is_first;
    row->count = count;
    memcpy(row->index, optim->gpu->index, (size_t)count * sizeof *row->index);
    return oari_replay_number(factors, sizeof *factors, fill_factors, row,
                              (void **)room);
}

/* Moves all parameters, one row of those that are alike after the other. */
static oar_status move_all(oar_optim *optim, const double *scale)
{
    struct oari_optim_gpu *g = optim->gpu;
    int sets = 0;

    for (int i = 0; i < optim->params; i++) {
        oari_optim_param like = optim->param[i];
        oari_step_factors factors, *room = factors_in(g) + sets;
        int recorded = oari_replay_records(g->device.index), count;
        oari_step_rule rule;

        if (g->done[i] || oar_tensor_grad(like.tensor) == NULL ||
            !oari_is_gpu(oar_tensor_device(like.tensor)))
            continue;
        count = list_params(optim, i, &like);
        rule = factors_of(optim, &like, &factors);
        if (recorded)
            OARI_TRY(record_row(optim, &factors, sets == 0, count, &room));
        OARI_TRY(oari_cuda_step(rule, recorded ? NULL : &factors, room, scale,
                                g->scaled ? numbers_in(g) + SKIPPED : NULL,
                                count, g->list));
        sets++;
        for (int k = 0; k < count; k++)
            count_moved(optim, g->index[k]);
    }
    return OAR_OK;
}

static oar_status step_all(oar_optim *optim, double clip, oar_tensor *norm,
                           oar_scaler *scaler, int moved)
{
    struct oari_optim_gpu *g = optim->gpu;
    const double *scale = NULL;
    oari_step_scaler with = { 0 };
    int64_t interval = 0;

    if (scaler != NULL) {
        OARI_TRY(
            oari_scaler_on_gpu(scaler, g->device, &with.numbers, &interval));
        with.skipped = numbers_in(g) + SKIPPED;
        with.interval = (double)interval;
        g->scaled = 1;
    }
    if (clip > 0 || norm != NULL || scaler != NULL) {
        OARI_TRY(oari_cuda_grad_norm(moved, g->list, clip > 0 ? clip : INFINITY,
                                     partial_in(g), numbers_in(g) + NORM,
                                     data_of(norm),
                                     scaler != NULL ? &with : NULL));
        if (norm != NULL)
            oar_tensor_touch(norm);
        if (clip > 0 || scaler != NULL)
            scale = numbers_in(g) + FACTOR;
    }
    return move_all(optim, scale);
}

oar_status oari_optim_gpu_step(oar_optim *optim, double clip, oar_tensor *norm,
                               oar_scaler *scaler, int *moved)
{
    struct oari_optim_gpu *g = optim->gpu;
    oari_gpu_interval *traced;
    oar_status status;

    if (g != NULL)
        memset(g->done, 0, (size_t)optim->params);
    *moved = g != NULL ? list_params(optim, 0, NULL) : 0;
    if (*moved == 0)
        return OAR_OK;
    traced = oari_gpu_trace_begin(g->device, oar_stream_current(g->device));
    status = step_all(optim, clip, norm, scaler, *moved);
    oari_gpu_trace_end(traced, status == OAR_OK ? "optimizer step" : NULL);
    return status;
}

/* ---- gradients without an optimizer -------------------------------------- */

/* The gradients as parameters that have only these. The caller frees it. */
static oar_status list_grads(int count, oar_tensor *const *grad,
                             oari_step_param **list)
{
    oari_step_param *made = oari_alloc((size_t)count, sizeof *made);

    if (made == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++) {
        made[i].param = made[i].grad = oari_array_of(grad[i]);
        if (oari_device_equal(made[i].grad.device, made[0].grad.device))
            continue;
        oari_free(made);
        return oari_fail(OAR_E_DEVICE,
                         "gradients on %s and %s together: all on one device",
                         oar_device_text(oar_tensor_device(grad[0])).text,
                         oar_device_text(oar_tensor_device(grad[i])).text);
    }
    *list = made;
    return OAR_OK;
}

/* Gives the norm of gradients and, if `limit` is not infinite, scales them. */
static oar_status clip_list(int count, const oari_step_param *list,
                            double limit, double *norm)
{
    oar_device gpu = list[0].grad.device;
    void *stream = oar_stream_current(gpu), *memory = NULL;
    size_t room = (size_t)oari_cuda_squares_room(count, list) + 2;
    double *numbers;
    oar_status status;

    OARI_TRY(oar_device_alloc(gpu, room * sizeof *numbers, &memory));
    numbers = memory;
    status = oari_cuda_grad_norm(count, list, limit, numbers + 2, numbers, NULL,
                                 NULL);
    if (status == OAR_OK && limit < INFINITY)
        status = oari_cuda_scale_grads(numbers + 1, count, list);
    if (status == OAR_OK && norm != NULL)
        status = oar_device_copy(norm, cpu, numbers, gpu, sizeof *norm, stream);
    oar_device_free(gpu, memory, stream);
    return status;
}

oar_status oari_gpu_grad_squares(int count, oar_tensor *const *grad,
                                 double *squares)
{
    oari_step_param *list;
    oar_status status;
    double norm = 0;

    OARI_TRY(list_grads(count, grad, &list));
    status = clip_list(count, list, INFINITY, &norm);
    oari_free(list);
    if (status == OAR_OK)
        *squares = norm * norm;
    return status;
}

oar_status oari_gpu_clip(int count, oar_tensor *const *grad, double limit,
                         double *norm)
{
    oari_step_param *list;
    oar_status status;

    OARI_TRY(list_grads(count, grad, &list));
    status = clip_list(count, list, limit, norm);
    oari_free(list);
    for (int i = 0; i < count; i++)
        oar_tensor_touch(grad[i]);
    return status;
}
