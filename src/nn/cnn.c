/* SPDX-License-Identifier: Apache-2.0 */
/* cnn: a small convolutional classifier, as a row of layers. */
#include <oarsong/models.h>

#include "base/status.h"

enum { LAYERS = 10 };

/* The layers so far; the first failure stays. */
typedef struct stack {
    oar_module *layer[LAYERS];
    int count;
    oar_status status;
} stack;

/* made is read after the call that made it has returned status. */
static void push_layer(stack *s, oar_status status, oar_module *const *made)
{
    if (status == OAR_OK)
        s->layer[s->count++] = *made;
    else if (s->status == OAR_OK)
        s->status = status;
}

/* conv - norm - relu - pool. Further calls after a failure do no harm. */
static void push_stage(stack *s, int64_t in, int64_t out, uint64_t seed,
                       oar_dtype dtype)
{
    oar_conv2d_layer_opts conv = { .size = sizeof conv,
                                   .padding = { 1, 1 },
                                   .dtype = dtype };
    oar_batch_norm_opts norm = { .size = sizeof norm, .dtype = dtype };
    oar_module *made = NULL;

    if (s->status == OAR_OK)
        push_layer(s, oar_conv2d_create(in, out, 3, 3, seed, &conv, &made),
                   &made);
    if (s->status == OAR_OK)
        push_layer(s, oar_batch_norm_create(2, out, &norm, &made), &made);
    if (s->status == OAR_OK)
        push_layer(s, oar_relu_create(&made), &made);
    if (s->status == OAR_OK)
        push_layer(s, oar_max_pool2d_create(2, 2, NULL, &made), &made);
}

/* Counts the numbers that both stages leave of an image, the inputs of the
 * linear layer. Returns 1 if the count does not fit. */
static int count_features(int64_t image, int64_t width, int64_t *features)
{
    int64_t side = image / 2 / 2;

    return __builtin_mul_overflow(side, side, features) ||
           __builtin_mul_overflow(*features, 2, features) ||
           __builtin_mul_overflow(*features, width, features);
}

oar_status oar_cnn_create(const oar_cnn_opts *opts, oar_module **module)
{
    oar_cnn_opts o;
    stack s = { .status = OAR_OK };
    int64_t channels, image, width, classes, features;
    oar_linear_opts linear;
    oar_module *made = NULL;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    channels = o.channels != 0 ? o.channels : 1;
    image = o.image != 0 ? o.image : 28;
    width = o.width != 0 ? o.width : 16;
    classes = o.classes != 0 ? o.classes : 10;
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "cnn_create: nowhere to give it");
    if (channels < 1 || image < 4 || width < 1 || classes < 1 ||
        count_features(image, width, &features) != 0)
        return oari_fail(OAR_E_ARG,
                         "cnn of %lld classes from %lld channels %lld wide, "
                         "with width %lld: the image is at least 4 wide, "
                         "the others at least 1, and the linear layer has "
                         "fewer than 2^63 inputs",
                         (long long)classes, (long long)channels,
                         (long long)image, (long long)width);
    push_stage(&s, channels, width, o.seed, o.dtype);
    push_stage(&s, width, 2 * width, o.seed + 2, o.dtype);
    linear = (oar_linear_opts){ .size = sizeof linear, .dtype = o.dtype };
    if (s.status == OAR_OK)
        push_layer(&s, oar_flatten_create(1, &made), &made);
    if (s.status == OAR_OK)
        push_layer(
            &s,
            oar_linear_create(features, classes, o.seed + 4, &linear, &made),
            &made);
    if (s.status == OAR_OK)
        return oar_sequential_create(s.count, s.layer, module);
    for (int i = 0; i < s.count; i++)
        oar_module_release(s.layer[i]);
    return s.status;
}
