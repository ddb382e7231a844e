/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm_layer: normalisation by channel, with running statistics. */
#include <oarsong/layers.h>

#include <string.h>

#include "autograd/ops/batch_norm.h"
#include "autograd/replay.h"
#include "base/status.h"
#include "nn/build.h"
#include "tensor/tensor.h"

typedef struct batch_norm {
    int dims, running;
    double eps, momentum;       /* below 0: cumulative average */
    oar_batch_norm_merge merge; /* .moments == NULL: none */
    void (*drop)(void *arg);    /* its arg */
} batch_norm;

enum { MEAN, VAR, BATCHES }; /* buffers */

/* Counts a batch, on the cpu, and returns how much it moves the statistics. */
static double count_batch(oar_tensor *counter, double momentum)
{
    int64_t *batches = oar_tensor_data(counter);

    ++*batches;
    oar_tensor_touch(counter);
    return momentum < 0 ? 1 / (double)*batches : momentum;
}

static oar_tensor *batch_norm_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    const batch_norm *b = oar_module_self(module);
    int training = oar_module_training(module) || !b->running;
    int moves = training && b->running && !oari_replaying(tape);
    int has = moves || !training, ndim = oar_tensor_shape(x).ndim;
    oar_tensor *counter = NULL;
    double momentum = 0;

    if (ndim != b->dims + 2 && (b->dims != 1 || ndim != 2)) {
        oari_fail(OAR_E_SHAPE,
                  "batch_norm over %d dims of a tensor with %d dims: it is "
                  "[n, channels, ..]",
                  b->dims, ndim);
        return NULL;
    }
    if (moves) {
        counter = oar_module_buffer(module, BATCHES);
        momentum = b->momentum;
        if (oari_check_writable("batch_norm into num_batches_tracked",
                                counter) != OAR_OK)
            return NULL;
        if (oari_device_of(counter).kind == OAR_CPU) {
            momentum = count_batch(counter, momentum);
            counter = NULL;
        }
    }
    return oari_batch_norm_apply(
        tape, &(oari_batch_norm_given){
                  .x = x,
                  .weight = oar_module_param(module, 0),
                  .bias = oar_module_param(module, 1),
                  .mean = has ? oar_module_buffer(module, MEAN) : NULL,
                  .var = has ? oar_module_buffer(module, VAR) : NULL,
                  .batches = counter,
                  .training = training,
                  .momentum = momentum,
                  .eps = b->eps,
                  .merge = b->merge.moments != NULL ? &b->merge : NULL });
}

static void batch_norm_destroy(void *self)
{
    batch_norm *b = self;

    if (b->drop != NULL)
        b->drop(b->merge.arg);
}

static const oar_module_class batch_norm_class = {
    .size = sizeof batch_norm_class,
    .name = "batch_norm",
    .self_size = sizeof(batch_norm),
    .forward = batch_norm_forward,
    .destroy = batch_norm_destroy,
};

/* Returns NULL if the module is no batch norm. */
static batch_norm *batch_norm_of(const oar_module *module)
{
    oar_module *mine;

    if (!oar_module_is(module, &batch_norm_class))
        return NULL;
    memcpy(&mine, &module, sizeof mine);
    return oar_module_self(mine);
}

oar_status oar_batch_norm_merge_by(oar_module *module,
                                   const oar_batch_norm_merge *merge,
                                   void (*drop)(void *arg))
{
    static const oar_batch_norm_merge none = { .arg = NULL };
    batch_norm *b = batch_norm_of(module);

    if (b == NULL)
        return oari_fail(OAR_E_ARG, "batch_norm_merge_by of a module that is "
                                    "no batch norm");
    if (b->drop != NULL)
        b->drop(b->merge.arg);
    b->merge = merge != NULL ? *merge : none;
    b->drop = merge != NULL ? drop : NULL;
    return OAR_OK;
}

const oar_batch_norm_merge *oar_batch_norm_merge_of(const oar_module *module)
{
    const batch_norm *b = batch_norm_of(module);

    return b != NULL && b->merge.moments != NULL ? &b->merge : NULL;
}

int oar_batch_norm_dims(const oar_module *module)
{
    const batch_norm *b = batch_norm_of(module);

    return b != NULL ? b->dims : 0;
}

static oar_status add_state(oar_module *module, int64_t channels,
                            const oar_batch_norm_opts *o)
{
    oar_shape shape = OAR_SHAPE(channels);

    if (!o->no_affine)
        OARI_TRY(oari_layer_affine(module, o->dtype, channels, 1));
    if (o->no_running)
        return OAR_OK;
    OARI_TRY(oari_layer_buffer(module, "running_mean",
                               oar_zeros(NULL, o->dtype, shape)));
    OARI_TRY(oari_layer_buffer(module, "running_var",
                               oar_full(NULL, o->dtype, shape, 1)));
    return oari_layer_buffer(module, "num_batches_tracked",
                             oar_zeros(NULL, OAR_I64, OAR_SCALAR));
}

oar_status oar_batch_norm_create(int dims, int64_t channels,
                                 const oar_batch_norm_opts *opts,
                                 oar_module **module)
{
    oar_batch_norm_opts o;
    oar_module *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "batch_norm_create: nowhere to give it");
    if (dims < 1 || dims > 3 || channels < 0 || !(o.eps >= 0))
        return oari_fail(OAR_E_ARG,
                         "batch_norm over %d dims of %lld channels with eps "
                         "%g: 1 to 3 dims, and the others not negative",
                         dims, (long long)channels, o.eps != 0 ? o.eps : 1e-5);
    if ((o.no_eps && o.eps != 0) || (o.no_momentum && o.momentum != 0))
        return oari_fail(OAR_E_ARG,
                         "batch_norm with no_eps %d and eps %g, no_momentum "
                         "%d and momentum %g: one or the other",
                         o.no_eps, o.eps, o.no_momentum, o.momentum);
    OARI_TRY(oari_layer_dtype("batch_norm", o.dtype));
    OARI_TRY(oar_module_create(&batch_norm_class, &made));
    *(batch_norm *)oar_module_self(made) =
        (batch_norm){ .dims = dims,
                      .running = !o.no_running,
                      .eps = o.eps > 0 || o.no_eps ? o.eps : 1e-5,
                      .momentum =
                          o.momentum != 0 || o.no_momentum ? o.momentum : 0.1 };
    return oari_layer_give(add_state(made, channels, &o), made, module);
}
